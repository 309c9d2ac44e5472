"""Background processes of this machine that can be found again and signalled safely.

This owns starting a detached process, recognising it later from another program, and sending it
signals. It must never signal a process it didn't start: process ids are recycled, so a process
is known by its id *and* its start time (and the boot that both belong to), and the signal goes
through a pidfd, which can't change its target between the check and the signal. Linux only, as
the nodes' disk layer is.

Source: pidfd_open(2), proc_pid_stat(5) fields 3 (state), 20 (num_threads) and 22 (starttime).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_GONE = frozenset("ZXx")  # zombie, dead: its first thread is over, a parent may not have looked yet


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, for ever: no other one has both the same id and the same start."""

    pid: int
    started: str  # boot id, then clock ticks from boot to start


MAX_EXITS: Final = 1_000  # that are remembered
_exits: dict[ProcessIdentity, int] = {}  # of children of ours that are over


def spawn_detached(command: Sequence[str], output: Path) -> ProcessIdentity:
    """Starts `command` in a session of its own, so that it outlives this program and its
    terminal and hears no Ctrl-C; both its outputs are appended to `output`.

    Raises:
        OSError: the program can't be started or `output` can't be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # A shell's background job is started with SIGINT ignored, and that would be inherited.
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT],
        setsigmask=[],
    )
    return identity_of(pid)


def identity_of(pid: int) -> ProcessIdentity:
    """The process that has this id now: a child, say, that nobody has waited for.

    Raises:
        OSError: there is none.
    """
    stat = _stat(pid)
    if stat is None:
        raise OSError(f"process {pid} can't be seen in /proc")
    return ProcessIdentity(pid, stat.started)


def spawn(command: Sequence[str], output: Path) -> ProcessIdentity:
    """As `spawn_detached`, in the way that this process uses."""
    return _spawner(command, output)


def use_spawner(spawner: Spawner) -> None:
    """From now on `spawn` is that: a warm process forks what tests would wait for (`dledger_cli.
    warm`)."""
    global _spawner
    _spawner = spawner


Spawner = Callable[[Sequence[str], Path], ProcessIdentity]
_spawner: Spawner = spawn_detached


def is_running(process: ProcessIdentity) -> bool:
    """Whether it exists and isn't over. A stopped process (SIGSTOP) runs, in this sense.

    A killed process can be a zombie while other threads of it are still ending, and as long as one
    of them is there its files are open, its ports taken and its locks held: it isn't over yet.
    """
    stat = _stat(process.pid)
    if stat is None or stat.started != process.started:
        return False
    if stat.state not in _GONE or stat.threads > 1:
        return True
    _reap(process)
    return False


def exit_code_of(process: ProcessIdentity) -> int | None:
    """How a child of ours ended, negative: by which signal; None: it runs, or isn't ours, or ended
    long ago."""
    return None if is_running(process) else _exits.get(process)


def send_signal(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Sends the signal; False when that process is over, whoever has its id now."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_running(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


class _Stat(NamedTuple):
    state: str
    threads: int
    started: str  # see `ProcessIdentity`


def _stat(pid: int) -> _Stat | None:
    """What the process is that has this id now."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in brackets, and may hold spaces and brackets.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[17]), f"{boot}:{fields[19]}")


def _reap(process: ProcessIdentity) -> None:
    """Takes the exit status of a child that is over, if it is ours, so that its entry goes."""
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return
    if pid:
        _exits[process] = os.waitstatus_to_exitcode(status)
        if len(_exits) > MAX_EXITS:
            del _exits[next(iter(_exits))]
