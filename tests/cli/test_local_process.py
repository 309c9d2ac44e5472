"""Detached processes: started, recognised, and never confused with others."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.local_group.process import (
    ProcessIdentity,
    exit_code_of,
    is_running,
    send_signal,
    spawn_detached,
)

WAIT_S = 60.0
Spawn = Callable[..., ProcessIdentity]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Starts a program and kills it at the end of the test."""
    started: list[ProcessIdentity] = []

    def start(*command: str) -> ProcessIdentity:
        process = spawn_detached(command, tmp_path / "output")
        started.append(process)
        return process

    yield start
    for process in started:
        if send_signal(process, signal.SIGKILL):
            wait_for_end(process)
            assert not is_running(process)


def wait_for_end(process: ProcessIdentity) -> None:
    """Until the process is over; a pidfd becomes readable then."""
    descriptor = os.pidfd_open(process.pid)
    try:
        readable, _, _ = select.select([descriptor], [], [], WAIT_S)
    finally:
        os.close(descriptor)
    assert readable, f"{process} doesn't end"


def test_how_a_child_ended_is_known(spawn: Spawn) -> None:
    """Its exit code, or the signal; nothing while it runs, nor of what isn't ours."""
    for command, code in (("exit 4", 4), ("kill -SEGV $$", -signal.SIGSEGV)):
        process = spawn("/bin/sh", "-c", command)
        wait_for_end(process)
        assert exit_code_of(process) == code
        assert exit_code_of(process) == code
    running = spawn("/bin/sleep", "60")
    assert exit_code_of(running) is None
    assert exit_code_of(ProcessIdentity(os.getppid(), "long ago")) is None


def test_process_runs_in_a_session_of_its_own(spawn: Spawn) -> None:
    """Ctrl-C at our terminal doesn't reach it."""
    process = spawn("/bin/sleep", "60")
    assert is_running(process)
    assert os.getsid(process.pid) == process.pid


def test_outputs_are_appended_to_the_file(spawn: Spawn, tmp_path: Path) -> None:
    """What a former process wrote stays."""
    (tmp_path / "output").write_text("before\n")
    wait_for_end(spawn("/bin/sh", "-c", "echo out; echo error >&2"))
    assert (tmp_path / "output").read_text() == "before\nout\nerror\n"


def test_killed_process_is_not_running_and_leaves_no_zombie(spawn: Spawn) -> None:
    """A zombie has id and start time still, but it isn't alive."""
    process = spawn("/bin/sleep", "60")
    assert send_signal(process, signal.SIGKILL)
    wait_for_end(process)
    assert Path(f"/proc/{process.pid}").exists()
    assert not is_running(process)
    assert not Path(f"/proc/{process.pid}").exists()
    assert not send_signal(process, signal.SIGKILL)


# Its first thread ends, as the first of a killed process does before the others do.
HALF_GONE = """
import ctypes, threading
threading.Thread(target=threading.Event().wait).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_process_whose_first_thread_is_over_is_still_running(spawn: Spawn) -> None:
    """Its ports are taken: a node started now would find its own port in use."""
    process = spawn(sys.executable, "-c", HALF_GONE)
    deadline = time.monotonic() + WAIT_S
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the first thread doesn't end"
        os.sched_yield()
    assert is_running(process)
    assert send_signal(process, signal.SIGKILL)
    wait_for_end(process)
    assert not is_running(process)


def test_stopped_process_counts_as_running(spawn: Spawn) -> None:
    """A node under SIGSTOP must not be started a second time."""
    process = spawn("/bin/sleep", "60")
    assert send_signal(process, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert is_running(process)


def test_process_with_a_recycled_id_is_never_signalled(spawn: Spawn) -> None:
    """The id alone proves nothing: the start must match as well."""
    stranger = spawn("/bin/sleep", "60")
    recorded = replace(stranger, started="another-boot:1")
    assert not is_running(recorded)
    assert not send_signal(recorded, signal.SIGKILL)
    assert is_running(stranger)


def test_name_with_brackets_does_not_hide_the_start(spawn: Spawn, tmp_path: Path) -> None:
    """/proc/<pid>/stat quotes nothing in the program's name."""
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    assert is_running(spawn(str(program), "60"))


def test_sigint_is_heard_even_if_we_ignore_it(spawn: Spawn) -> None:
    """A shell starts background jobs with SIGINT ignored; a node must hear its Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = spawn("/bin/sleep", "60")
    finally:
        signal.signal(signal.SIGINT, before)
    assert send_signal(process, signal.SIGINT)
    wait_for_end(process)
    assert not is_running(process)


def test_program_that_does_not_exist_is_an_error(spawn: Spawn) -> None:
    """Not a process that ends at once."""
    with pytest.raises(FileNotFoundError):
        spawn("/nowhere/at/all")


def test_output_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    """A node whose log goes nowhere isn't started."""
    with pytest.raises(FileNotFoundError):
        spawn_detached([sys.executable, "-c", ""], tmp_path / "absent" / "output")
