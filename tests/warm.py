"""What tests start of the program, forked from a warm process (`dledger_cli.warm`): half of what a
node in a test takes, and nearly all of what a command does, are imports.

Nodes of local groups that are made in the tests' process come from here by themselves (`conftest`).
Others are started as a program: where its start, pipes and signals are the subject
(`cli/test_process.py`, `cli/test_streams.py`), where it is measured (some in `bench`), and below
`dledger chaos`, `demo` and `bench` where these are processes of their own.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from broker.local_group.process import ProcessIdentity, is_running, send_signal
from dledger.testing.warm import WarmProgram
from dledger_cli.warm_nodes import forked_by


@functools.cache
def warm() -> WarmProgram:
    """The warm process of this one, begun with the first call."""
    return WarmProgram("chaos.node", "chaos.cli")


def spawn(command: Sequence[str], output: Path) -> ProcessIdentity:
    """As `broker.local_group.process.spawn_detached`, where that starts Python."""
    return forked_by(warm().path)(command, output)


def node(config: Path, output: Path) -> ProcessIdentity:
    """`dledger node` on that configuration runs; what it says is appended to `output`."""
    words = [sys.executable, "-P", "-m", "dledger_cli", "node", "--config", str(config)]
    return spawn(words, output)


def kill(process: ProcessIdentity) -> None:
    """It is over, by SIGKILL: its ports are free, its locks released."""
    send_signal(process, signal.SIGKILL)
    while is_running(process):
        time.sleep(0.01)


def program(*words: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """`dledger WORDS` in a process of its own: how it ended, and both its outputs."""
    return warm().run(*words, timeout_s=timeout_s)
