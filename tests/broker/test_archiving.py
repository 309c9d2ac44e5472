"""Segments are given to a command before they go, and held while that fails, but not for ever."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from broker import archiving
from broker.archiving import RETRY_S, SAID_BYTES, TIMEOUT_S, Archiver, CommandRunner, Released

HOUR_S = 3_600.0
PATHS = [Path(f"/data/commitlog/{number:020d}") for number in (0, 1_000, 2_000)]


class Archive:
    """A command that fails as told, on a disk that is as told, in time that passes as told."""

    def __init__(self, hold_s: float = HOUR_S, command: Sequence[str] = ("put", "{path}")) -> None:
        self.ran: list[Sequence[str]] = []
        self.failing = ""
        self.is_full = False
        self.now_s = 100.0
        self.archiver = Archiver(
            command, hold_s, self._run, lambda: self.is_full, lambda: self.now_s
        )

    async def _run(self, arguments: Sequence[str], timeout_s: float, /) -> str:
        assert timeout_s == TIMEOUT_S
        self.ran.append(arguments)
        return self.failing

    def released(self, *paths: Path) -> Released:
        return asyncio.run(self.archiver.release(paths))

    def release(self, *paths: Path) -> str:
        """Why not all go."""
        return self.released(*(paths or PATHS)).held

    def gone(self, *paths: Path) -> int:
        """How many go until no more does."""
        left = list(paths or PATHS)
        while left and (count := self.released(*left).count):
            del left[:count]
        return len(paths or PATHS) - len(left)

    def held_s(self, path: Path) -> float:
        """For how long nothing but that segment stands in the way."""
        began_s = self.now_s
        while path.name in self.release():
            self.now_s += RETRY_S
            assert self.now_s - began_s <= 2 * HOUR_S
        return self.now_s - began_s

    def look_for(self, seconds: float, look: Callable[[], object]) -> None:
        """So much time passes, in which somebody looks again and again."""
        for _ in range(int(seconds // RETRY_S) - 1):
            self.now_s += RETRY_S
            look()
        self.now_s += RETRY_S

    def counts(self) -> tuple[int, int, int]:
        told = self.archiver.statistics()
        return told.archived, told.failed, told.unarchived


def test_each_segment_is_given_away_once_the_oldest_first() -> None:
    archive = Archive(command=("put", "--to={path}.kept", "{path}", "{other}"))
    assert archive.release() == ""
    assert archive.ran == [["put", f"--to={p}.kept", str(p), "{other}"] for p in PATHS]
    assert archive.release() == ""
    assert len(archive.ran) == len(PATHS)
    assert archive.counts() == (3, 0, 0)


def test_without_a_command_nothing_is_held() -> None:
    archive = Archive(command=())
    assert archive.release() == ""
    assert archive.ran == []


def test_failure_holds_the_segment_and_those_behind_it_until_the_command_works() -> None:
    """It is tried again now and then, and not at every look."""
    archive = Archive()
    archive.failing = "exit code 1: no room"
    held = archive.release()
    assert held == f"the archive command failed for {PATHS[0].name}: exit code 1: no room"
    assert archive.release() == held
    assert len(archive.ran) == 1
    archive.now_s += RETRY_S
    assert archive.release() == held
    assert len(archive.ran) == 2
    archive.failing = ""
    archive.now_s += RETRY_S
    assert archive.release() == ""
    assert archive.counts() == (3, 2, 0)


def test_segment_goes_when_it_has_been_held_for_long_enough() -> None:
    """And those that have been held as long behind it; one that comes later is held as long."""
    archive = Archive()
    archive.failing = "exit code 1"
    assert archive.held_s(PATHS[0]) == HOUR_S
    assert archive.gone(*PATHS[1:]) == 2
    assert archive.counts()[2] == len(PATHS)
    later = PATHS[0].with_name(f"{1 << 40:020d}")
    began_s = archive.now_s
    while archive.release(later):
        archive.now_s += RETRY_S
        assert archive.now_s - began_s <= 2 * HOUR_S
    assert archive.now_s - began_s == HOUR_S
    another = PATHS[0].with_name(f"{1 << 41:020d}")
    assert another.name in archive.release(another)
    archive.failing = ""
    archive.now_s += RETRY_S
    assert archive.release(another) == ""
    assert archive.counts()[0] == 1


def test_time_in_which_the_command_works_is_no_hold() -> None:
    """It takes nearly as long as it may for each; the next one's first failure begins its hold."""
    archive = Archive()
    really_run = archive._run

    async def run_slowly(arguments: Sequence[str], timeout_s: float, /) -> str:
        archive.failing = "" if len(archive.ran) < 2 else "no room"
        archive.now_s += 0 if archive.failing else TIMEOUT_S - 1
        return await really_run(arguments, timeout_s)

    archive.archiver._run = run_slowly
    assert PATHS[2].name in archive.release()
    assert archive.counts() == (2, 1, 0)
    assert archive.held_s(PATHS[2]) == HOUR_S


def test_a_command_that_works_now_and_then_holds_nothing_for_ever() -> None:
    """The last one has waited for as long as it may when all failures are counted together."""
    archive = Archive()

    async def takes_the_first_only(arguments: Sequence[str], _: float, /) -> str:
        return "" if str(PATHS[0]) in arguments and archive.now_s > HOUR_S / 2 else "no room"

    archive.archiver._run = takes_the_first_only
    assert PATHS[0].name in archive.release()
    archive.look_for(HOUR_S / 2, archive.release)
    assert PATHS[1].name in archive.release()
    archive.look_for(HOUR_S / 2, archive.release)
    assert archive.gone() == 3
    assert archive.counts()[2] == 2


@pytest.mark.parametrize("is_at_work", [False, True])
def test_time_in_which_the_process_stood_still_is_no_hold(*, is_at_work: bool) -> None:
    """A machine that is suspended for a day, between two attempts or within one, wakes to try again
    as long as it would have."""
    archive = Archive()
    archive.failing = "no route to the archive"
    really_run = archive._run

    async def stops(arguments: Sequence[str], timeout_s: float, /) -> str:
        archive.now_s += 25 * HOUR_S
        return await really_run(arguments, timeout_s)

    if is_at_work:
        archive.archiver._run = stops
    assert archive.release()
    archive.archiver._run = really_run
    if not is_at_work:
        archive.now_s += 25 * HOUR_S
    assert archive.release()
    counted_s = TIMEOUT_S if is_at_work else RETRY_S
    assert archive.held_s(PATHS[0]) == HOUR_S - counted_s
    assert archive.counts()[2] == 1


def test_without_a_hold_each_is_tried_once() -> None:
    archive = Archive(hold_s=0)
    archive.failing = "exit code 1"
    assert archive.gone() == 3
    assert archive.counts() == (0, 3, 3)


def test_full_disk_waits_for_nobody() -> None:
    """What has failed goes at once, and what is behind it with an attempt of its own."""
    archive = Archive()
    archive.failing = "exit code 1"
    assert archive.release()
    archive.is_full = True
    assert archive.gone() == 3
    assert archive.counts() == (0, 3, 3)
    assert archive.ran == [["put", str(path)] for path in PATHS]


def test_what_comes_to_be_due_behind_holds_nothing_that_has_waited_for_long_enough() -> None:
    """The group lets a segment go each hour, and the command fails: each is held as long as the
    first, and no longer. When it works again it gets what is still there."""
    archive = Archive(hold_s=3 * HOUR_S)
    archive.failing = "no room"
    due: list[Path] = []
    for hour in range(10):
        due.append(PATHS[0].with_name(f"{hour:020d}"))
        released = archive.released(*due)
        assert released.count == (1 if hour >= 3 else 0)
        del due[: released.count]
        assert due[0].name in archive.released(*due).held
        archive.look_for(HOUR_S, lambda: archive.released(*due))
    assert archive.counts()[2] == 7
    archive.failing = ""
    archive.ran.clear()
    assert archive.released(*due) == Released(3)
    assert archive.ran == [["put", str(path)] for path in due]
    assert archive.counts()[0::2] == (3, 7)


def test_what_is_lost_to_the_archive_is_tried_again_while_it_is_there() -> None:
    """Something else keeps the log's start where it is: it is told as lost once, and given away
    when that works."""
    archive = Archive(hold_s=0)
    archive.failing = "no room"
    for _ in range(3):
        assert archive.release(PATHS[0]) == ""
    assert archive.counts() == (0, 1, 1)
    archive.now_s += RETRY_S
    assert archive.release(PATHS[0]) == ""
    assert archive.counts() == (0, 2, 1)
    archive.now_s += RETRY_S
    archive.failing = ""
    assert archive.release(PATHS[0]) == ""
    assert archive.release(PATHS[0]) == ""
    assert archive.counts() == (1, 2, 1)


def test_what_goes_together_has_waited_as_long_as_its_oldest() -> None:
    """What has rotted goes only with what a peer has let go of, which is more each hour."""
    archive = Archive(hold_s=3 * HOUR_S)
    archive.failing = "no room"
    due: list[Path] = []
    for hour in range(4):
        due.append(PATHS[0].with_name(f"{hour:020d}"))
        released = asyncio.run(archive.archiver.release_together(due))
        assert bool(released.held) == (hour < 3)
        archive.look_for(HOUR_S, lambda: asyncio.run(archive.archiver.release_together(due)))
    assert archive.counts()[2] == 4


class Hanging(Archive):
    """The command never ends by itself."""

    async def _run(self, arguments: Sequence[str], timeout_s: float, /) -> str:
        self.now_s += timeout_s
        return f"{await super()._run(arguments, timeout_s)}it took longer than {timeout_s:g} s"


def test_command_that_does_not_end_holds_up_a_full_disk_once() -> None:
    """And not once for each segment; each is told as lost."""
    archive = Hanging()
    archive.is_full = True
    due = [PATHS[0].with_name(f"{number:020d}") for number in range(20)]
    began_s = archive.now_s
    assert archive.gone(*due) == 20
    assert archive.now_s - began_s == TIMEOUT_S
    assert archive.counts() == (0, 1, 20)


def test_what_goes_without_the_archive_goes_before_the_rest_is_looked_at() -> None:
    """There may be room then; and another try may take ten minutes."""
    archive = Hanging(hold_s=0)
    assert archive.released(*PATHS).count == 1
    assert len(archive.ran) == 1
    archive.is_full = True
    assert archive.released(*PATHS[1:]).count == 1
    archive.is_full = False
    archive.archiver._hold_s = HOUR_S
    assert archive.released(PATHS[2]).count == 0


def test_what_is_lost_and_cannot_go_alone_holds_nothing_behind_it() -> None:
    """The log may begin behind several only."""
    archive = Archive(hold_s=0)
    archive.failing = "no room"
    assert [archive.released(*PATHS).count for _ in PATHS] == [1, 2, 3]
    assert archive.counts() == (0, 3, 3)


def test_command_that_works_slowly_is_let_work_on_a_full_disk() -> None:
    """A disk that is kept at its percentage is full whenever something is to go. One failure costs
    the archive one segment, however long it took."""
    archive = Archive()
    archive.is_full = True
    slow = archive.archiver._run

    async def takes_long(arguments: Sequence[str], timeout_s: float, /) -> str:
        archive.now_s += timeout_s - 1
        return await slow(arguments, timeout_s)

    archive.archiver._run = takes_long
    archive.failing = "exit code 1"
    assert archive.released(*PATHS).count == 1
    archive.failing = ""
    assert archive.released(*PATHS[1:]) == Released(2)
    assert archive.counts() == (2, 1, 1)


def test_what_was_given_away_before_rot_was_found_is_given_once_more() -> None:
    """The copy may be of rotten bytes, while the file is mended before it goes."""
    archive = Archive()
    assert archive.release() == ""
    archive.archiver.forget()
    assert archive.release() == ""
    assert archive.ran == [["put", str(path)] for path in PATHS * 2]


def test_what_is_given_away_while_rot_is_found_is_given_once_more() -> None:
    archive = Archive()
    really_run = archive._run

    async def finds_rot(arguments: Sequence[str], timeout_s: float, /) -> str:
        if len(archive.ran) == 1:
            archive.archiver.forget()
        return await really_run(arguments, timeout_s)

    archive.archiver._run = finds_rot
    assert PATHS[1].name in archive.release()
    assert archive.release() == ""
    assert archive.ran == [["put", str(path)] for path in (PATHS[0], PATHS[1], *PATHS)]


def test_what_is_lost_to_the_archive_goes_though_rot_is_found_meanwhile() -> None:
    """It was told as lost, and has been held for as long as it may."""
    archive = Archive(hold_s=0)
    archive.failing = "no room"
    really_run = archive._run

    async def finds_rot(arguments: Sequence[str], timeout_s: float, /) -> str:
        archive.archiver.forget()
        return await really_run(arguments, timeout_s)

    archive.archiver._run = finds_rot
    assert archive.gone() == 3
    assert archive.counts() == (0, 3, 3)


def test_what_has_gone_is_forgotten() -> None:
    archive = Archive()
    assert archive.release(PATHS[0]) == ""
    assert archive.release(PATHS[1]) == ""
    assert archive.release(PATHS[0]) == "", "another file of the name: it is given away as well"
    assert len(archive.ran) == 3


# --- real processes -------------------------------------------------------------------------------


def ran(*arguments: str, timeout_s: float = 30.0) -> str:
    return asyncio.run(CommandRunner()(arguments, timeout_s))


def python(program: str, *arguments: str, timeout_s: float = 30.0) -> str:
    return ran(sys.executable, "-c", program, *arguments, timeout_s=timeout_s)


def gone(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_command_gets_its_arguments_as_they_are(tmp_path: Path) -> None:
    """No shell looks at them."""
    said = tmp_path / "said; touch x"
    odd = "$(touch y) `z` 'a' \"b\" *"
    assert python("import sys; open(sys.argv[1], 'w').write(sys.argv[2])", str(said), odd) == ""
    assert said.read_text() == odd
    assert [each.name for each in tmp_path.iterdir()] == [said.name]


def test_failure_tells_what_the_command_said_as_far_as_it_is_short() -> None:
    """What it says beyond is read, so that it never waits for anybody."""
    assert python("raise SystemExit(3)") == "exit code 3"
    told = python("import sys; sys.stderr.write('no room'); sys.stdout.write('x'); sys.exit(1)")
    assert told == "exit code 1: no room"
    much = python("import sys; sys.stderr.write('y' * 10_000_000); sys.exit(1)")
    assert much == "exit code 1: " + "y" * SAID_BYTES
    assert "can't be started" in ran("/no/such/program")
    assert "can't be started" in ran("a\0b")


def test_command_reads_nothing() -> None:
    assert python("import sys; sys.exit(len(sys.stdin.read()))") == ""


async def stopped_while(command: Sequence[str], begun: Callable[[int], None]) -> str:
    """What is told of a command in whose time this process stands still for an hour, once it has
    begun. Only then is there the file that its last argument names."""
    loop, runner, stood_s = asyncio.get_running_loop(), CommandRunner(), 0.0
    time_s = loop.time
    loop.time = lambda: time_s() + stood_s  # type: ignore[method-assign]
    running = loop.create_task(runner(command, TIMEOUT_S))
    while runner._left is None:
        await asyncio.sleep(0)
    begun(runner._left.pid)
    stood_s = HOUR_S
    for _ in range(10):  # turns of the loop, which what is late by now needs few of
        await asyncio.sleep(0)
    Path(command[-1]).touch()
    return await running


def test_command_that_ends_while_this_process_stands_still_has_ended(tmp_path: Path) -> None:
    """Its exit comes with the end of the time that it had, and counts."""
    command = (sys.executable, "-c", "", str(tmp_path / "go on"))
    assert asyncio.run(stopped_while(command, lambda pid: until(lambda: gone(pid)))) == ""


def test_command_that_stood_still_with_this_process_has_its_time_after_that(tmp_path: Path) -> None:
    """As on a machine that was suspended: it is let end."""
    program = "import sys, os, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    command = (sys.executable, "-c", program, str(tmp_path / "go on"))
    assert asyncio.run(stopped_while(command, lambda _: None)) == ""


LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
open(sys.argv[1], "w").write(str(child.pid))
child.wait()
"""


def test_command_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    told = python(LEAVES_A_CHILD, str(note), timeout_s=3.0)
    assert told == "it took longer than 3 s"
    until(lambda: gone(int(note.read_text())))


LEAVES_SESSION = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(30)"], start_new_session=True
)
sys.exit("left")
"""


def test_command_that_leaves_something_behind_keeps_nobody_waiting() -> None:
    """It holds on to what the command could say things on, in a session of its own."""
    began_s = time.monotonic()
    assert python(LEAVES_SESSION) == "exit code 1: left"
    assert time.monotonic() - began_s < 25


def test_command_ends_with_who_waits_for_it(tmp_path: Path) -> None:
    """As with a node that is stopped."""
    note = tmp_path / "pid"

    async def stopped() -> None:
        arguments = (sys.executable, "-c", LEAVES_A_CHILD, str(note))
        waiting = asyncio.create_task(CommandRunner()(arguments, 600.0))
        while not note.exists() or not note.read_text():
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(stopped())
    until(lambda: gone(int(note.read_text())))


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_command_that_nobody_can_end_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool
) -> None:
    """As one that runs as root, or waits for a device: it is told, none is started beside it, and a
    node stops without it."""
    monkeypatch.setattr(archiving, "END_S", 0.2)
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    really, refused = os.killpg, list[int]()

    def refuse(pid: int, _: int) -> None:
        refused.append(pid)
        raise PermissionError(errno.EPERM, "not yours")

    async def work() -> None:
        runner = CommandRunner()
        monkeypatch.setattr(os, "killpg", refuse)
        if is_stopped:
            waiting = asyncio.create_task(runner(sleep, 600.0))
            await asyncio.sleep(0.5)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            told = await runner(sleep, 0.5)
            assert told == f"it took longer than 0.5 s, and can't be ended: process {refused[0]}"
        told = await runner(["true"], 30.0)
        assert told == f"the command before can't be ended: process {refused[0]}"
        monkeypatch.undo()
        really(refused[0], signal.SIGKILL)
        async with asyncio.timeout(30):
            while await runner(["true"], 30.0):
                await asyncio.sleep(0.05)

    asyncio.run(work())
    assert len(refused) == 1


def test_who_is_cancelled_while_a_command_is_started_leaves_no_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that is stopped then would keep two descriptors, and the loop a reader of one."""
    pipes: list[tuple[int, int]] = []
    make_pipe = os.pipe

    def noted() -> tuple[int, int]:
        pipes.append(make_pipe())
        return pipes[-1]

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def stopped() -> None:
        monkeypatch.setattr(os, "pipe", noted)
        monkeypatch.setattr(asyncio, "create_subprocess_exec", never)
        waiting = asyncio.create_task(CommandRunner()(["true"], 600.0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        ((reads, writes),) = pipes
        assert not asyncio.get_running_loop().remove_reader(reads)
        for descriptor in (reads, writes):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)

    asyncio.run(stopped())


@pytest.mark.parametrize("call", ["pipe", "process"])
def test_a_process_without_descriptors_holds_the_segment_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A burst of connections is over in a moment; the log's front waits for that, and nobody ends
    for it."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def work() -> str:
        if call == "pipe":
            monkeypatch.setattr(os, "pipe", refuse)
        else:
            monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
        return await CommandRunner()(["true"], 60.0)

    assert "Too many open files" in asyncio.run(work())
