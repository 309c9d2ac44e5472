"""A test that forks, as `multiprocessing` does, shares nothing of its groups by that.

Each runs a program of its own: a fork of the tests' process would take its threads' locks along.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

WAIT_S = 60.0

LIVING_CHILD = """
import json, os, sys, time
from dledger.testing import BrokerGroup
group = BrokerGroup(nodes=1)
child = os.fork()
if child == 0:
    time.sleep(600)
print(json.dumps([str(group._directory), str(group._warm.path), child]), flush=True)
sys.stdin.read()
"""

CHILD_THAT_ENDS = """
import os, sys
from dledger.testing import BrokerGroup
with BrokerGroup(nodes=1) as group:
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert group.kill() == "n1"
    group.restart("n1")
    BrokerGroup(nodes=1).close()
"""

CHILD_WITH_A_GROUP = """
import os, sys
from dledger.testing import BrokerGroup
with BrokerGroup(nodes=1) as group:
    child = os.fork()
    if child == 0:
        with BrokerGroup(nodes=1) as own:
            assert own._warm.path != group._warm.path
            assert own.kill() == "n1"
        assert group.kill() == "n1"
        group.restart("n1")
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert group.kill() == "n1"
"""

FORK_MEANWHILE = """
import os, signal, sys, threading, time
from dledger.testing.warm import WarmProgram
begun = []
starting = threading.Thread(target=lambda: begun.append(WarmProgram()))
starting.start()
while sys._current_frames()[starting.ident].f_code.co_name != "_begun":
    time.sleep(0.001)
time.sleep(0.05)  # it waits for the imports now
child = os.fork()
if child == 0:
    os._exit(0)
deadline = time.monotonic() + 20
ended = 0
while not ended and time.monotonic() < deadline:
    time.sleep(0.01)
    ended, _ = os.waitpid(child, os.WNOHANG)
if not ended:
    os.kill(child, signal.SIGKILL)
starting.join()
assert ended, "the child hangs in fork()"
assert begun[0].run("version").returncode == 0
"""


@contextmanager
def with_living_child() -> Iterator[tuple[subprocess.Popen[str], Path, Path]]:
    """A process with a group, which forked one that lives on: with the group's folder, and the warm
    process's socket."""
    parent = subprocess.Popen(
        [sys.executable, "-c", LIVING_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    directory, socket, child = json.loads(parent.stdout.readline())
    try:
        yield parent, Path(directory), Path(socket)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.wait()
        for stream in (parent.stdin, parent.stdout):
            if stream is not None:
                stream.close()


def test_a_forked_child_is_no_reason_to_go_on() -> None:
    """The tests' process is killed, and its nodes and folders go, whoever it forked."""
    with with_living_child() as (parent, directory, socket):
        parent.kill()
        deadline = time.monotonic() + WAIT_S
        while directory.exists() or socket.parent.exists():
            assert time.monotonic() < deadline, "left behind"
            time.sleep(0.05)


def test_an_end_waits_for_no_forked_child() -> None:
    """A process that just ends is over, though one that it forked isn't."""
    with with_living_child() as (parent, directory, socket):
        assert parent.stdin is not None
        parent.stdin.close()
        assert parent.wait(WAIT_S) == 0
        assert not directory.exists()
        assert not socket.parent.exists()


def ran(program: str) -> None:
    """The program ends well."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_a_forked_child_that_ends_ends_nothing_else() -> None:
    """Not by leaving `with`, nor by what is called at its exit."""
    ran(CHILD_THAT_ENDS)


def test_a_forked_child_has_a_warm_process_of_its_own() -> None:
    """For groups of its own; that of the parent it can still ask."""
    ran(CHILD_WITH_A_GROUP)


def test_a_child_may_be_forked_while_a_warm_process_starts() -> None:
    """Another thread waits for its imports; the child closes what that one reads from."""
    ran(FORK_MEANWHILE)
