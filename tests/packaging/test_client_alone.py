"""What a program imports with the client, and what it needs to be installed for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dledger.client
import dledger.client.blocking

PROGRAM = Path(sys.executable).with_name("dledger")
STRANGERS = ("store", "broker", "chaos", "audit", "dledger_cli")
GARBAGE = "raise SystemExit('this package is the user\\'s own')\n"
CHILD = """
import json, sys
import grpc, grpc.aio  # which looks for other packages of its own
before = set(sys.modules)
from dledger.client import Client
from dledger.client.blocking import BlockingClient
new = {name.partition('.')[0] for name in set(sys.modules) - before}
new -= {name for name in new if name.startswith('_')}  # what the library's own modules bring
print(json.dumps([sorted(new - sys.stdlib_module_names), sorted(new & sys.stdlib_module_names)]))
"""
# What importing the client may cost beside grpc, on any Python that is supported: each of these is
# used. `dledger bench import` says how long it takes; a module more is a decision.
PACKAGES = {"dledger", "google", "grpc", "tenacity"}
LIBRARY = {
    *(
        "bisect",
        "calendar",
        "copy",
        "dataclasses",
        "datetime",
        "encodings",
        "fnmatch",
        "glob",
        "grp",
    ),
    *(
        "hashlib",
        "ipaddress",
        "ntpath",
        "numbers",
        "pathlib",
        "pickle",
        "pwd",
        "queue",
        "random",
        "urllib",
    ),
}


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """A folder with packages of the user's that are named as ours are."""
    for name in STRANGERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(GARBAGE)
    return tmp_path


def test_client_lives_beside_the_users_own_packages(users_folder: Path) -> None:
    """And brings with it what the base install has, nothing else: no numpy, no pydantic, and of
    Python's library no subprocess and no http."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD],  # `-c` puts the current folder first
        cwd=users_folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    packages, library = json.loads(done.stdout)
    assert set(packages) <= PACKAGES
    assert set(library) <= LIBRARY


def test_group_is_started_in_a_folder_with_a_broker_of_its_own(users_folder: Path) -> None:
    """The nodes' processes import what is installed, wherever the program was called."""
    directory = ["--dir", str(users_folder / "run")]
    try:
        done = subprocess.run(
            [PROGRAM, "group", "up", "--nodes", "1", *directory],
            cwd=users_folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    finally:
        subprocess.run(
            [PROGRAM, "group", "down", "--wipe", *directory],
            cwd=users_folder,
            capture_output=True,
            check=False,
        )


def test_program_without_its_extra_names_it() -> None:
    """Exit code 2, one line."""
    lacking = "import sys; sys.modules['typer'] = None; from dledger_cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", lacking], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "dledger[node]" in done.stderr


def test_what_is_public_is_listed() -> None:
    """Both faces say what belongs to them, and have it."""
    for module in (dledger.client, dledger.client.blocking):
        assert module.__all__ == sorted(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)


def test_public_classes_show_their_verbs_alone() -> None:
    """What the modules behind them need of each other has a leading underscore."""
    shown = {
        kind.__name__: {name for name in vars(kind) if not name.startswith("_")}
        for kind in (dledger.client.Producer, dledger.client.PullConsumer)
    }
    assert shown == {
        "Producer": {
            *("abort", "close", "flush", "register", "room", "send", "send_all", "send_one_way"),
            "statistics",
        },
        "PullConsumer": {
            *(
                "batches",
                "close",
                "commit",
                "lag",
                "pause",
                "positions",
                "resume",
                "seek",
                "skipped",
                "stop",
            ),
        },
    }
