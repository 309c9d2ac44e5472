"""Gives each segment to a configured command before it goes, and holds it while that fails.

This owns which segments have been given away, and for how long one is held. The command is the
operator's: it gets the path of a segment file that is whole and never changes again, one at a time,
without a shell, beside the event loop; it may be given the same one again, as after a restart, and
every member has it run for its own file. What was given away before rot was found may have been
given away with it, and is given once more when it is sound. It must never hold a segment beyond its
bound, whatever comes to be held behind it, nor for as long as a command doesn't end: a log that
nothing goes from fills its disk. Nor may it take time in which this process stood still for time
that the command had: a node that is suspended for a day must not wake to let segments go that were
tried once. So of what passes between two looks no more counts than a look or an attempt takes.

    to go ─ run ─ ok ─────────────────────▶ given away
              └─ fails ─▶ held ─ again ─ ok ▶ given away
                            └─ longer than hold_s, or the disk is full ─▶ lost to the archive, told

What is lost goes before anything behind it is looked at, if it can: there may be room by then, and
another try may take long. As long as its file is there it is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

PLACE: Final = "{path}"  # in an argument: the segment's
TIMEOUT_S: Final = 600.0  # a command that takes longer is ended, and has failed
RETRY_S: Final = 60.0  # from one failure to the next attempt
STEP_S: Final = 10.0  # that a command is waited for at once, and what a stop takes of its time
MOMENT_S: Final = 0.1  # at last, for one that ended while nobody could see it
END_S: Final = 5.0  # that a command which is killed may take to be gone
SAID_BYTES: Final = 2_000  # of what it says, that is told

log = structlog.get_logger(__name__)


class RunCommand(Protocol):
    """Runs one command to its end."""

    async def __call__(self, arguments: Sequence[str], timeout_s: float, /) -> str:
        """Why it failed; empty: it did its work. Ended where whoever waits is cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class ArchiveStatistics:
    """Since the process started: segments given away, attempts that failed, and segments that went
    without having been given away."""

    archived: int = 0
    failed: int = 0
    unarchived: int = 0


@dataclass(frozen=True, slots=True)
class Released:
    """So many of the oldest segments may go, and why no more; empty: all may."""

    count: int
    held: str = ""


class Archiver:
    """One replica's.

    Args:
        command: program and arguments; none: nobody wants the segments.
        hold_s: how long a segment that is to go is held for a command that fails.
        run: runs the command.
        is_full: whether the disk is full, and messages are to go rather than to be refused.
        clock: monotonic, seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        hold_s: float,
        run: RunCommand,
        is_full: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._command = command
        self._hold_s = hold_s
        self._run = run
        self._is_full = is_full
        self._clock = clock
        self._given: set[Path] = set()
        self._times_forgotten = 0
        # How long each was to go and wasn't, but for the time that others took to be given away.
        self._waited_s: dict[Path, float] = {}
        self._seen_s = clock()  # up to when time was counted
        self._lost: set[Path] = set()
        self._failed_s: dict[Path, float] = {}  # when the command failed last for those that wait
        self._hung_s: float | None = None  # when it failed last, if it didn't end by itself
        self._why = ""  # it failed last
        self._archived = self._failed = self._unarchived = 0

    def statistics(self) -> ArchiveStatistics:
        """A frozen picture, as of now."""
        return ArchiveStatistics(self._archived, self._failed, self._unarchived)

    async def release(self, segments: Iterable[Path]) -> Released:
        """How many of these segments may go, of which any number of the oldest may go alone.

        Args:
            segments: the files that are about to go, the oldest first.
        """
        paths = list(segments)
        if not self._command:
            return Released(len(paths))
        self._hand(paths)
        for count, path in enumerate(paths):
            was_lost = path in self._lost
            if held := await self._why_held(path):
                return Released(count, held)
            if path in self._lost and not was_lost and path != paths[-1]:
                return Released(count + 1, "what goes without the archive goes before the rest")
        return Released(len(paths))

    async def release_together(self, segments: Iterable[Path]) -> Released:
        """The same of segments that go together or not at all. All have waited for as long as the
        oldest: it would wait for ever where others come to be with it before it may go."""
        paths = list(segments)
        self._hand(paths)
        self._waited_s = dict.fromkeys(paths, max(self._waited_s.values(), default=0.0))
        before, released = 0, await self.release(paths)
        while released.held and released.count > before:  # nothing goes before the rest here
            before, released = released.count, await self.release(paths)
        return released

    def forget(self) -> None:
        """Rot has been found, wherever: an archive may have it by now."""
        self._given.clear()
        self._times_forgotten += 1

    def _hand(self, paths: Sequence[Path]) -> None:
        """These are to go; what has gone is forgotten."""
        present = set(paths)
        self._given &= present
        self._lost &= present
        self._failed_s = {path: at_s for path, at_s in self._failed_s.items() if path in present}
        self._wait_on(RETRY_S)
        self._waited_s = {path: self._waited_s.get(path, 0.0) for path in paths}

    def _wait_on(self, at_most_s: float) -> None:
        """All have waited for what has passed, as far as whoever isn't stopped would have taken."""
        now_s = self._clock()
        passed_s, self._seen_s = min(now_s - self._seen_s, at_most_s), now_s
        self._waited_s = {path: so_far_s + passed_s for path, so_far_s in self._waited_s.items()}

    async def _why_held(self, path: Path) -> str:
        """Why this one may not go yet; empty: it was given away, or held for long enough."""
        if path in self._given:
            return ""
        before = self._times_forgotten
        if self._rests(path) or not await self._is_given(path):
            if self._is_lost(path):
                return ""
            return f"the archive command failed for {path.name}: {self._why}"
        if self._times_forgotten != before:
            return f"rot was found while {path.name} was archived: it is archived once more"
        self._given.add(path)
        self._lost.discard(path)
        return ""

    def _rests(self, path: Path) -> bool:
        """Whether it isn't tried now: it has just been, or a command that didn't end has been and
        nothing may wait for the next one."""
        now_s = self._clock()
        if path in self._failed_s and now_s - self._failed_s[path] < RETRY_S:
            return True
        return self._is_full() and self._hung_s is not None and now_s - self._hung_s < RETRY_S

    async def _is_given(self, path: Path) -> bool:
        """Whether the command has taken it."""
        began_s = self._clock()
        arguments = [each.replace(PLACE, str(path)) for each in self._command]
        why = await self._run(arguments, TIMEOUT_S)
        now_s = self._clock()
        took_s = now_s - began_s
        if not why:
            self._archived += 1
            self._seen_s = now_s  # who waits behind what is given away isn't held
            self._hung_s = None
            log.info("segment_archived", file=path.name)
            return True
        self._wait_on(TIMEOUT_S)
        self._why = why
        self._failed += 1
        self._failed_s[path] = now_s
        self._hung_s = now_s if took_s >= TIMEOUT_S else None
        log.warning("segment_not_archived", file=path.name, reason=why, retry_s=RETRY_S)
        return False

    def _is_lost(self, path: Path) -> bool:
        """Whether it may go without the archive: it has been held for long enough, behind others
        too, or the disk can't wait. Told once."""
        if not self._is_full() and self._waited_s[path] < self._hold_s:
            return False
        if path not in self._lost:
            self._lost.add(path)
            self._unarchived += 1
            log.error("segment_lost_to_the_archive", file=path.name, reason=self._why)
        return True


class CommandRunner:
    """`RunCommand` of the operating system: in a session of its own, without input, what it says on
    standard error is told as far as `SAID_BYTES`, and nothing else is kept. One that can't be
    ended, as it waits for a device or runs as somebody else, is left, and none is started until it
    is gone: whoever waits must go on, and a process can't have many such."""

    def __init__(self) -> None:
        self._left: asyncio.subprocess.Process | None = None

    async def __call__(self, arguments: Sequence[str], timeout_s: float, /) -> str:
        """See `RunCommand`."""
        left = self._left
        if left is not None and left.returncode is None:
            return f"the command before can't be ended: process {left.pid}"
        self._left = None
        return await self._run(arguments, timeout_s)

    async def _run(self, arguments: Sequence[str], timeout_s: float) -> str:
        try:
            words = _Words()
        except OSError as error:  # a process short of descriptors is no reason to end
            return f"it can't be started: {error}"
        null = asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments, stdin=null, stdout=null, stderr=words.end, start_new_session=True
            )
        except (OSError, ValueError) as error:
            words.close()
            return f"it can't be started: {error}"
        except BaseException:  # cancelled meanwhile; asyncio ends what it has started so far
            words.close()
            raise
        self._left = process
        code, text = None, ""
        try:
            code = await _ended(process, timeout_s)
        finally:
            try:
                is_gone = await _end(process)
            finally:
                text = words.close()
        if code is None:
            rest = "" if is_gone else f", and can't be ended: process {process.pid}"
            return f"it took longer than {timeout_s:g} s{rest}"
        return f"exit code {code}{': ' if text else ''}{text}" if code else ""


class _Words:
    """What is written to `end`: its beginning is kept; the rest is read and dropped, so that nobody
    waits to say it. A pipe of our own: asyncio's would keep `wait` from ending for as long as
    anybody holds the other end, as what a command has left behind may."""

    def __init__(self) -> None:
        self._reads, self.end = os.pipe()
        os.set_blocking(self._reads, False)
        self._said = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reads, self._read)

    def _read(self) -> bool:
        """Whether there may be more."""
        try:
            piece = os.read(self._reads, 1 << 16)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._reads)
        self._said += piece[: SAID_BYTES - len(self._said)]
        return bool(piece)

    def close(self) -> str:
        """Nothing is read any more; what was said."""
        while len(self._said) < SAID_BYTES and self._read():
            pass
        self._loop.remove_reader(self._reads)
        for descriptor in (self._reads, self.end):
            os.close(descriptor)
        return self._said.decode(errors="replace").strip()


async def _ended(process: asyncio.subprocess.Process, timeout_s: float) -> int | None:
    """Its exit code; None: it hasn't ended in that time. It is waited for in steps, of which a stop
    of this process takes one: the command may have stood still as well, or have ended meanwhile,
    which a wait that is too late as it wakes doesn't tell."""
    whole, rest_s = divmod(timeout_s, STEP_S)
    for step_s in (*[STEP_S] * int(whole), rest_s, MOMENT_S):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(step_s):
                return await process.wait()
    return process.returncode


async def _end(process: asyncio.subprocess.Process) -> bool:
    """Whether it is gone, and what it has started in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        return False
    return True
