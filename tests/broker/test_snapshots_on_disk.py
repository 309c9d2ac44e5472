"""Snapshots on disk: when one is written, when it has its name, and what a start makes of it."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest

from broker.ending import DISK_ERRNOS, ending_of
from broker.snapshots import SnapshotKeeper, SnapshotPace, SnapshotSource, restore_newest
from broker.state.machine import StateMachine
from broker.state.replay import Replayed, replay_derived
from dledger.outcome import ExitCode
from dledger.reading.log_start import LogStart
from dledger.records.layout import file_name
from dledger.wire.commands_pb2 import Command, RaiseLevelCommand
from store.consumequeue import ConsumeQueues
from store.dispatch import UNIT
from store.errors import StorageFailed
from store.files import FULL_ERRNOS, FileSystem
from store.log_start import Install
from store.snapshot_files import SnapshotFiles, SnapshotHead
from store.starting.snapshots import head_at
from tests.broker.test_replay import filled
from tests.node.machine import Standing
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA, SEGMENT, LogUnderTest

T = TypeVar("T")

DISK = bytes(16)
EAGER = SnapshotPace(entries=1, share=0)


class Member:
    """A log with a topic's messages, the state of it, and what keeps its snapshots."""

    def __init__(self, messages: int = 7, pace: SnapshotPace = EAGER) -> None:
        self.disk = SimulatedDisk()
        self.made = LogUnderTest(self.disk)
        self.queues = ConsumeQueues(DATA, self.disk)
        self.machine = filled(self.made, self.queues, ("t", "other"), messages)
        self.files = SnapshotFiles(DATA, self.disk)
        source = SnapshotSource(self.machine, self.made.log, DISK)
        self.keeper = SnapshotKeeper(
            source, self.files, Standing(), lambda: lambda: True, None, pace
        )

    def more(self) -> None:
        """An entry that changes nothing is applied."""
        self.made.append(Command(raise_level=RaiseLevelCommand(level=9)).SerializeToString())
        self.made.flush()
        last = self.made.log.last_index
        self.machine.apply(self.made.log.read(last, last))

    def note(self) -> None:
        """Everything applied is derived and durable."""
        self.made.log.checkpoint.note_consume_queue(self.machine.applied_index, 1)

    def step(self) -> None:
        asyncio.run(self.keeper.step())

    def snapshot(self) -> int:
        """Another entry, and a snapshot of what it leaves."""
        self.more()
        self.note()
        self.step()
        return self.machine.applied_index

    def restored(self, *, disk_id: bytes = DISK, known_level: int = 1) -> int:
        """The entry of the snapshot that a start would begin with; 0: with none."""

        def make(chunks: Iterable[bytes]) -> StateMachine:
            return StateMachine.restore(chunks, self.queues, known_level=known_level)

        through = self.made.log.checkpoint.state.consume_queue_index
        found = restore_newest(self.files, self.made.log, disk_id, through, make)
        if found is None:
            return 0
        assert list(found.machine.snapshot()) or found.machine.applied_index
        return found.head.applied_index

    def spoil(self, index: int) -> None:
        self.disk.flip(self.files.path(index), 100, 0)


def test_it_is_written_when_all_it_speaks_of_is_noted() -> None:
    """Until then it is in memory; it shows the moment at which it was taken."""
    member = Member()
    member.step()
    index = member.machine.applied_index
    assert not any(path.parent.name == "snapshot" for path in member.disk.paths())
    member.more()
    member.note()
    member.step()
    assert member.files.indexes() == [index]
    assert member.restored() == index


def test_the_note_is_on_the_platter_before_the_name() -> None:
    """A power cut right after leaves a snapshot that the next start believes."""
    member = Member()
    index = member.snapshot()
    member.disk.power_cut()
    again = LogUnderTest(member.disk).log
    assert again.checkpoint.state.consume_queue_index == index
    assert member.files.indexes() == [index]


def test_the_newest_two_are_kept() -> None:
    member = Member()
    indexes = [member.snapshot() for _ in range(4)]
    assert member.files.indexes() == [indexes[3], indexes[2]]


def test_one_that_is_spoilt_is_passed_over_and_not_counted() -> None:
    """The one before stands for it; of both spoilt, none; the next two replace them."""
    member = Member()
    first, second = member.snapshot(), member.snapshot()
    member.spoil(second)
    assert member.restored() == first
    member.spoil(first)
    assert member.restored() == 0
    third, fourth = member.snapshot(), member.snapshot()
    assert member.files.indexes() == [fourth, third]
    assert member.restored() == fourth


def test_another_disks_is_refused() -> None:
    member = Member()
    member.snapshot()
    assert member.restored(disk_id=bytes(15) + b"\1") == 0


def test_another_logs_is_refused() -> None:
    """Alike in its bytes but for one: the digest of its last entry."""
    member = Member()
    index = member.snapshot()
    source = member.keeper.source
    for other in (
        replace(source.head(), digest=1),
        replace(source.head(), term=9),
        replace(source.head(), end_offset=9),
    ):
        unfinished = member.files.begin(other)
        unfinished.add(list(member.machine.snapshot()))
        unfinished.finish()
        member.files.publish(unfinished)
        assert member.files.indexes()[0] == index
        assert member.restored() == 0


def test_what_is_beyond_the_note_is_not_believed() -> None:
    """Those entries may never have been committed here; the one before may be used."""
    member = Member()
    first, second = member.snapshot(), member.snapshot()
    member.made.log.checkpoint.note_consume_queue(second - 1, 1)
    assert member.restored() == first


def test_a_state_of_a_level_that_is_not_known_is_refused() -> None:
    """An older program would go on by rules that it doesn't know; from the log it stops in front
    of the raise."""
    member = Member()
    member.machine.level.raise_by_one()
    index = member.snapshot()
    assert member.restored(known_level=2) == index
    assert member.restored(known_level=1) == 0


@pytest.mark.parametrize("version", [0, 2, 7])
def test_a_state_by_other_rules_is_refused(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier release's, or a later one's that was put back: the log is alike, digest and all,
    and what it gives is not. A member without a snapshot has the present program's state."""
    member = Member()
    first = member.snapshot()
    monkeypatch.setattr("broker.state.replicated.APPLYING", version)
    second = member.snapshot()
    assert member.restored() == second
    monkeypatch.undo()
    assert member.restored() == first
    member.files.remove_all_but({second})
    assert member.restored() == 0


@pytest.mark.parametrize("operation", ["mkdir", "create", "pwritev", "fsync", "rename", "unlink"])
def test_a_full_disk_is_told_and_the_next_one_is_written(operation: str) -> None:
    """The member lives, and what it had stays."""
    member = Member(pace=replace(EAGER, retry_s=0.0))
    kept = member.snapshot() if operation != "mkdir" else 0
    member.snapshot() if operation == "unlink" else None
    member.disk.fail_next(operation, errno.ENOSPC, "snapshot")
    member.snapshot()
    assert member.keeper.statistics().failed == (operation != "unlink")
    assert member.restored() >= kept
    index = member.snapshot()
    assert member.restored() == index
    assert len(member.files.indexes()) <= 2


STEPS = ["create", "pwritev", "fsync", "rename", "fsync_directory"]  # of writing one


@pytest.mark.parametrize("code", sorted(DISK_ERRNOS), ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", STEPS)
def test_a_disk_that_fails_ends_the_member(operation: str, code: int) -> None:
    """As it does wherever else it is written (ADR 8), by whatever word; what it had stays."""
    member = Member()
    first = member.snapshot()
    member.disk.fail_next(operation, code, "snapshot")
    with pytest.raises(OSError, match=re.escape(os.strerror(code))) as caught:
        member.snapshot()
    assert ending_of(caught.value) is ExitCode.DISK_FAILED
    assert first in member.files.indexes()


@pytest.mark.parametrize("code", sorted(DISK_ERRNOS | FULL_ERRNOS), ids=errno.errorcode.get)
def test_the_checkpoint_is_not_under_the_leniency_of_snapshots(code: int) -> None:
    """It is the log's: whatever its sync is refused for ends the member; nothing gets a name."""
    member = Member()
    first = member.snapshot()
    member.disk.fail_next("fdatasync", code, "checkpoint")
    with pytest.raises(StorageFailed) as caught:
        member.snapshot()
    assert ending_of(caught.value) is ExitCode.DISK_FAILED
    assert member.files.indexes() == [first]
    with pytest.raises(OSError, match=re.escape(os.strerror(code))):
        member.made.log.checkpoint.sync()


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_lies_in_its_place_is_told(what: str) -> None:
    """Somebody's file called as the folder, or a folder called as a snapshot."""
    member = Member(pace=replace(EAGER, retry_s=0.0))
    folder = member.files.path(1).parent
    if what == "file":
        member.disk.close(member.disk.create(folder))
        member.disk.listdir = _no_folder(member.disk.listdir)  # type: ignore[method-assign]
    else:
        member.disk.mkdir(folder)
        member.note()
        member.disk.mkdir(member.files.path(member.machine.applied_index))
    assert member.restored() == 0


def _no_folder(listdir: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """As a real disk answers for a file."""

    def asked(path: object) -> list[str]:
        if str(path).endswith("snapshot"):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory")
        return listdir(path)

    return asked


@pytest.mark.parametrize("entries", [1, 1 << 30])
def test_none_is_due_of_what_the_log_begins_with(entries: int) -> None:
    """A start doesn't take it for a snapshot where earlier rules made it, and nothing is applied
    yet: it is neither written over, nor is there an entry to look at."""
    made = Member().made
    index, disk = made.log.last_index, SimulatedDisk()
    disk.mkdir(DATA)
    Install(disk, DATA).intend(LogStart(index, 3, 5, SEGMENT, 1_000, 1, 1, b"c"))
    Install(disk, DATA).settle(SEGMENT)
    later = LogUnderTest(disk)
    assert later.log.start.index == index
    later.log.checkpoint.note_consume_queue(index, 1)
    source = SnapshotSource(Member().machine, later.log, DISK)
    files, pace = SnapshotFiles(DATA, disk), SnapshotPace(entries=entries, share=0)
    keeper = SnapshotKeeper(source, files, Standing(), lambda: lambda: True, None, pace)
    asyncio.run(keeper.step())
    assert not files.indexes()


def test_one_is_due_by_entries_by_bytes_and_by_segments() -> None:
    """And not while writing them would take more than its share of the time."""
    for pace, is_due in (
        (SnapshotPace(entries=1), True),
        (SnapshotPace(entries=1 << 30, bytes=1), True),
        (SnapshotPace(entries=1 << 30, bytes=1 << 30), False),
    ):
        member = Member(pace=pace)
        member.note()
        member.step()
        assert bool(member.files.indexes()) is is_due
    member = Member(40, SnapshotPace(entries=1 << 30, bytes=1 << 30, share=0))
    assert member.made.log.statistics().segments > 1
    member.note()
    member.step()
    assert member.files.indexes()


def test_next_one_is_due_minutes_after_a_write_in_which_the_process_stood_still() -> None:
    """That took none of the time: a crash would have all applied again that comes meanwhile."""
    member, stood_s = Member(pace=SnapshotPace(entries=1)), 0.0

    class Stopped(Standing):
        async def run(self, step: Callable[[], T]) -> T:
            nonlocal stood_s
            stood_s = max(stood_s, 3_600.0)
            return await super().run(step)

    async def work() -> None:
        nonlocal stood_s
        loop = asyncio.get_running_loop()
        time_s = loop.time
        loop.time = lambda: time_s() + stood_s  # type: ignore[method-assign]
        member.keeper._hand = Stopped()
        member.note()
        await member.keeper.step()
        member.more()
        member.note()
        await member.keeper.step()
        assert len(member.files.indexes()) == 1
        stood_s += SnapshotPace().longest_s
        await member.keeper.step()

    asyncio.run(work())
    assert len(member.files.indexes()) == 2


@pytest.mark.parametrize("wrong_at", [None, 0, 3, 6, 8])
def test_units_before_a_snapshot_are_proved_by_it(wrong_at: int | None) -> None:
    """A start that doesn't apply their entries finds a wrong one all the same, and no other
    queue's; the units behind the snapshot as ever."""
    member = Member()
    member.snapshot()
    path = DATA / "consumequeue" / member.machine.topics["t"].folder / "0" / file_name(0)
    if wrong_at is not None:
        member.disk.bytes_of(path)[wrong_at * UNIT.size] ^= 1
    member.queues.close()
    replayed = started(member, member.disk)
    is_wrong = wrong_at is not None and wrong_at < 7
    found = [(each.topic.name, each.queue_id) for each in replayed.wrong]
    assert found == ([("t", 0)] if is_wrong else [])
    assert replayed.machine.topics == member.machine.topics


def started(member: Member, disk: FileSystem) -> Replayed:
    """What a start makes of the queues, from the newest snapshot on."""
    through = member.made.log.checkpoint.state.consume_queue_index

    def begin(queues: object) -> StateMachine:
        restored = restore_newest(
            member.files,
            member.made.log,
            DISK,
            through,
            lambda chunks: StateMachine.restore(chunks, queues),  # type: ignore[arg-type]
        )
        assert restored is not None
        return restored.machine

    return replay_derived(member.made.log, ConsumeQueues(DATA, disk), through, begin)


class Front:
    """A hand, as one who moves the log's front meets it: what it asks for while a snapshot gets its
    name is done right behind that."""

    def __init__(self, moves: Callable[[], Coroutine[object, object, None]]) -> None:
        self._moves = moves

    async def run(self, step: Callable[[], object]) -> object:
        done = step()
        if isinstance(step, partial) and step.func.__name__ == "publish":
            await self._moves()
        return done


def written_as_the_front_moves(member: Member, base: SnapshotHead) -> int:
    """The entry of a snapshot that gets its name as the log begins with `base`."""
    keeper = member.keeper
    keeper._hand = Front(lambda: keeper.begin_at(base))
    return member.snapshot()


def test_one_that_gets_its_name_as_the_front_moves_stays() -> None:
    """It counts as the newest from then on, and is what the next start begins with."""
    member = Member()
    first = member.snapshot()
    base = head_at(member.made.log, DISK, first)
    second = written_as_the_front_moves(member, base)
    assert member.keeper.kept() == [second, first]
    assert member.files.indexes() == [second, first]
    assert member.restored() == second


def test_one_that_gets_its_name_as_the_log_begins_behind_it_is_not_the_newest() -> None:
    """What the log begins with is; an older one isn't read any more, and goes."""
    member = Member()
    member.step()  # is taken, and waits for the note
    taken = member.machine.applied_index
    member.more()
    base = head_at(member.made.log, DISK, taken + 1)
    member.note()
    member.keeper._hand = Front(lambda: member.keeper.begin_at(base))
    member.step()
    assert member.keeper.kept() == [base.applied_index]
    assert member.files.indexes() == []
