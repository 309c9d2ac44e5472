"""A node that is asked to stop before it has begun to hear that by itself ends with 0: a service
manager takes anything else for a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# A module that hides the signal, as libraries do that try an import and go on without.
PROGRAM = """
import signal, sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from types import ModuleType
import dledger_cli.node as cli
from dledger_cli.app import app

where, number, *words = sys.argv[1:]

def interrupt():
    signal.raise_signal(int(number))

class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "broker.node":
            with suppress(BaseException):
                interrupt()

async def run_node(config, reopen_log):
    interrupt()
    await __import__("asyncio").sleep(60)

match where:
    case "config":
        load, cli.load_config = cli.load_config, lambda path: (interrupt(), load(path))[1]
    case "import":
        sys.meta_path.insert(0, Finder())
    case "loop":
        sys.modules["broker.node"] = made = ModuleType("broker.node")
        made.run_node = run_node
app(words)
"""


@pytest.mark.parametrize("number", [2, 15])
@pytest.mark.parametrize("where", ["config", "import", "loop"])
def test_a_node_that_is_stopped_early_was_stopped(tmp_path: Path, where: str, number: int) -> None:
    """While its configuration is read, its modules are imported, its loop begins."""
    config = tmp_path / "node.toml"
    config.write_text(
        'broker_group = "g"\nnode_id = "n1"\nlisten = "127.0.0.1:1"\n'
        f'data_directory = "{tmp_path / "data"}"\n\n[peers]\nn1 = "127.0.0.1:1"\n',
        encoding="utf-8",
    )
    words = [where, str(number), "node", "--config", str(config)]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data").exists()
