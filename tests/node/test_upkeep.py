"""What rots beside the log of a member that runs, on real files: found within a pass, and put right
before a start would have to refuse it, or a reader would meet it."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.ports import Rhythm
from broker.replica import Replica
from broker.scrubbing import ScrubPace
from broker.snapshots import SnapshotPace
from broker.upkeep import KeptBase, KeptQueues, Upkeep
from dledger.core.types import HardState, NodeId, Term
from dledger.hard_state import HardStateStore, decode_hard_state, encode_hard_state
from dledger.reading.checkpoint import decode_checkpoint
from dledger.records.layout import FILE_NAME
from store.atomic_file import AtomicFile
from store.errors import DirectoryReplaced
from store.files import Handle, OsFiles
from store.keepsakes import Keepsake, constant_file
from store.seals import decode_seal
from store.second_copy import SecondCopy
from store.snapshot_files import BaseFound, SnapshotFiles, SnapshotHead
from store.starting.opening import FoundHardState, keep_copy
from tests.broker.leader import batch
from tests.node.members import Inline, Members, members
from tests.node.test_repairs import fill, follower
from tests.node.test_replica import on_a_loop
from tests.store.faulty_files import SimulatedDisk

SOON = 10  # entries from one snapshot to the next
QUICK = Rhythm(housekeeping_s=0.02, snapshots=SnapshotPace(SOON), scrub=ScrubPace(between_s=0.02))
NO_BASE = KeptBase(lambda: SnapshotHead(bytes(16), 0, 0, 0, 0), lambda: None)
FILE = Path("/data/hard_state")
COPY = Path("/data/hard_state.copy")
OLD, NEW = HardState(Term(3), NodeId("n1")), HardState(Term(7), NodeId("n2"))


def only(folder: Path) -> Path:
    """The newest of the files that are called by a number."""
    return max(each for each in folder.iterdir() if FILE_NAME.fullmatch(each.name))


WRITTEN_AGAIN: dict[str, Callable[[Path], Path]] = {
    "hard state": lambda data: data / "raft" / "hard_state",
    "its copy": lambda data: data / "raft" / "hard_state.copy",
    "boot number": lambda data: data / "raft" / "boot",
    "identity": lambda data: data / "identity.json",
    "founding": lambda data: data / "formation.json",
}
MADE_ANEW: dict[str, Callable[[Path], Path]] = {
    "snapshot": lambda data: only(data / "snapshot"),
    "seal": lambda data: only(data / "seal"),
}


def sealed_through(folder: Path) -> int:
    """The last entry that a seal speaks of."""
    try:
        return decode_seal(only(folder).read_bytes()).last.index
    except (OSError, ValueError):
        return 0  # none, or one on its way


@asynccontextmanager
async def a_follower(folder: Path) -> AsyncIterator[tuple[Members, Replica, Path]]:
    """A follower that has everything that can rot; its group, and its directory."""
    async with members(folder, 3, QUICK) as group:
        victim = follower(group, await fill(group))
        data = victim.config.data_directory
        # So that no other is due: what is looked for goes with nothing else.
        await group.until(
            lambda: victim.machine.applied_index - victim.snapshots.statistics().index < SOON
        )
        through = victim.snapshots.statistics().index
        await group.until(lambda: sealed_through(data / "seal") == through)
        yield group, victim, data


def content_of(path: Path) -> bytes:
    """What the file holds; nothing, if it isn't there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def flip(path: Path, at: int = 9) -> bytes:
    """A bit is another one; what was there."""
    before = path.read_bytes()
    path.write_bytes(before[:at] + bytes((before[at] ^ 4,)) + before[at + 1 :])
    return before


@pytest.mark.parametrize("name", WRITTEN_AGAIN)
@pytest.mark.parametrize("harm", [flip, Path.unlink], ids=["a bit", "gone"])
@on_a_loop
async def test_small_files_are_written_again(
    tmp_path: Path, name: str, harm: Callable[[Path], object]
) -> None:
    with capture_logs() as told:
        async with a_follower(tmp_path) as (group, victim, data):
            path = WRITTEN_AGAIN[name](data)
            before = path.read_bytes()
            harm(path)
            await group.until(lambda: path.exists() and path.read_bytes() == before)
            assert victim.failure is None
    shown = path.name.removesuffix(".copy")
    assert any(each["event"] == "file_rotted" and shown in each["file"] for each in told)


@on_a_loop
async def test_the_checkpoint_is_written_again(tmp_path: Path) -> None:
    """What it says goes on meanwhile."""
    async with a_follower(tmp_path) as (group, victim, data):
        flip(data / "checkpoint", 60)
        await group.until(lambda: decode_checkpoint((data / "checkpoint").read_bytes()))
        flip(data / "checkpoint", 3000)
        await group.until(lambda: decode_checkpoint((data / "checkpoint").read_bytes()))
        assert decode_checkpoint((data / "checkpoint").read_bytes()) == victim.log.checkpoint.state


@pytest.mark.parametrize("name", MADE_ANEW)
@on_a_loop
async def test_what_can_be_made_anew_is(tmp_path: Path, name: str) -> None:
    """A snapshot of state counts no more, and is gone, or made anew; a seal is what it was."""
    with capture_logs() as told:
        async with a_follower(tmp_path) as (group, victim, data):
            path = MADE_ANEW[name](data)
            before = flip(path, 70)
            if name == "snapshot":
                assert int(path.name) in victim.snapshots.kept()
                await group.until(lambda: content_of(path) in (b"", before))
                # The next one is due, and may be as of the same entry.
                assert content_of(path) == before or int(path.name) not in victim.snapshots.kept()
            else:
                await group.until(lambda: path.read_bytes() == before)
            assert victim.failure is None
    assert {"file": str(path), "became": "made anew"}.items() <= told_of(told).items()


@on_a_loop
async def test_a_snapshot_of_a_life_before_is_looked_at_too(tmp_path: Path) -> None:
    """A start goes on from the newest, and would from that one."""
    with capture_logs() as told:
        async with a_follower(tmp_path) as (group, _, data):
            newest = only(data / "snapshot")
            older = newest.with_name(f"{int(newest.name) - 1:020}")
            older.write_bytes(newest.read_bytes())
            await group.until(lambda: not older.exists())
            assert newest.exists()
    assert told_of(told)["file"] == str(older)


def told_of(told: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    return next(each for each in told if each["event"] == "file_rotted")


@pytest.mark.parametrize("harm", [flip, Path.unlink], ids=["a bit", "gone"])
@on_a_loop
async def test_queues_that_nobody_reads_are_mended(
    tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    async with a_follower(tmp_path) as (group, victim, data):
        leader = await group.leader()
        await leader.appender.send(b"", [batch(0, b"one", b"two", topic="topic-3")])
        path = data / "consumequeue" / victim.machine.topics["topic-3"].folder / "0" / f"{0:020}"
        await group.until(path.exists)
        before = path.read_bytes()
        harm(path)
        await group.until(lambda: victim.mender.statistics().units_mended)
        await group.until(lambda: not victim.mender.is_at_work)
        assert path.read_bytes() == before


class Topic:
    """Of one queue, with units that its files don't have."""

    def __init__(self) -> None:
        self.name, self.folder = "t", "t@1"
        self.next_offsets, self.units_crcs = [3], [7]


@pytest.mark.parametrize("meanwhile", ["nothing", "deleted", "made anew", "begins later"])
@on_a_loop
async def test_a_queue_is_suspected_for_what_it_still_must_hold(meanwhile: str) -> None:
    """What is read while the topic goes, or the log's front, says nothing."""
    topic, suspected = Topic(), []
    topics, starts = {"t": topic}, {}

    def change(name: str) -> None:
        if name == "_further":  # the queues' step
            match meanwhile:
                case "deleted":
                    topics.clear()
                case "made anew":
                    topics["t"] = Topic()
                case "begins later":
                    starts["t@1", 0] = (2, 5)

    hand = Inline()
    hand.before = change
    mender: Any = SimpleNamespace(
        is_at_work=False, suspect=lambda topic, queue_id: suspected.append((topic, queue_id))
    )
    machine: Any = SimpleNamespace(topics=topics)
    files: Any = made_disk()
    queues = KeptQueues(files, Path("/data/cq"), 100, machine, lambda: starts, mender)
    nothing: Any = SimpleNamespace(kept=list, indexes=list, looks=list)
    upkeep = Upkeep(hand, [], nothing, nothing, nothing, NO_BASE, queues)
    found = sum([each async for each in upkeep.round()])
    expected = [(topic, 0)] if meanwhile == "nothing" else []
    assert (suspected, found) == (expected, len(expected))


# --- term and vote, twice ---------------------------------------------------------------------


def kept_twice(disk: SimulatedDisk, boot_number: int = 4) -> HardStateStore:
    """Term and vote, OLD, of a start that has this number."""
    store, copy = HardStateStore(AtomicFile(disk, FILE)), SecondCopy(disk, COPY)
    store.save(OLD)
    copy.begin(boot_number, encode_hard_state(OLD))
    store.keep_copy(copy, OLD)
    return store


def made_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir(FILE.parent)
    disk.fsync_directory(FILE.parent.parent)
    return disk


def copied(disk: SimulatedDisk, boot_number: int = 4) -> HardState | None:
    content = SecondCopy(disk, COPY).content(boot_number)
    return None if content is None else decode_hard_state(content)


def test_what_was_saved_is_in_both_places_before_anybody_acts_on_it() -> None:
    """Power lost at each call: the copy is what was acted on, or newer, or none; and once it has
    been saved no other."""
    calls = 0
    for last in range(40):
        disk = made_disk()
        store, calls = kept_twice(disk), 0

        def die(_operation: str, _name: str, last: int = last) -> None:
            nonlocal calls
            calls += 1
            if calls > last:
                raise KeyboardInterrupt

        disk.before = die
        try:
            store.save(NEW)
        except KeyboardInterrupt:
            is_saved = False
        else:
            is_saved = True
        disk.before = lambda _operation, _name: None
        disk.power_cut()
        found = copied(disk)
        assert found == NEW if is_saved else found in (OLD, NEW, None)
        if is_saved:
            return
    raise AssertionError("it is never saved")


def test_a_copy_of_another_start_is_none() -> None:
    """A release that doesn't know copies has counted on, and may have voted."""
    disk = made_disk()
    kept_twice(disk, 4)
    assert copied(disk, 4) == OLD
    assert copied(disk, 5) is None


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_a_copy_that_cannot_be_kept_up_is_none(call: str) -> None:
    """A full disk: what was written of it is whole, and would be older than what is promised."""
    disk = made_disk()
    store = kept_twice(disk, 4)

    def refuse(operation: str, name: str) -> None:
        if (operation, name) == (call, COPY.name):
            raise OSError(errno.ENOSPC, "refused")

    disk.before = refuse
    keep_copy(FoundHardState(store, OLD, SecondCopy(disk, COPY)), 5)
    disk.before = lambda _operation, _name: None
    assert copied(disk, 5) is None
    assert copied(disk, 4) is None


@pytest.mark.parametrize("at", [0, 5, 9, 17, 25, 40])
def test_a_copy_that_has_rotted_is_none(at: int) -> None:
    disk = made_disk()
    store = kept_twice(disk)
    disk.bytes_of(COPY)[at] ^= 1
    assert copied(disk) is None
    assert store.mend()
    assert copied(disk) == OLD
    assert not store.mend()


# --- what it must not do ----------------------------------------------------------------------


def test_a_file_that_nobody_has_is_no_keepsake() -> None:
    assert constant_file(made_disk(), FILE) is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.EIO])
@on_a_loop
async def test_a_full_disk_is_tried_again_and_one_that_fails_ends_it(number: int) -> None:
    def refuse() -> bool:
        raise OSError(number, "refused")

    looked = small_files(Keepsake("f", refuse))
    if number == errno.EIO:
        with pytest.raises(OSError, match="refused"):
            await anext(looked)
    else:
        assert await anext(looked) == 0


def small_files(*keepsakes: Keepsake) -> AsyncIterator[int]:
    """A round of an upkeep that gets no further than these."""
    nothing: Any = None
    return Upkeep(Inline(), keepsakes, nothing, nothing, nothing, NO_BASE, nothing).round()


@on_a_loop
async def test_who_has_no_descriptor_left_drops_nothing(tmp_path: Path) -> None:
    """What can't be opened now isn't rotten."""
    async with a_follower(tmp_path) as (group, victim, data):
        opened, refusals = OsFiles.open, 0
        kept = victim.snapshots.kept()

        def refuse(self: OsFiles, path: Path) -> Handle:
            nonlocal refusals
            if path.is_relative_to(data) and path.parent.name != "commitlog":
                refusals += 1
                raise OSError(errno.EMFILE, "refused", str(path))
            return opened(self, path)

        OsFiles.open = refuse  # type: ignore[method-assign]
        try:
            passes = victim.scrubber.statistics().passes
            await group.until(lambda: victim.scrubber.statistics().passes > passes + 1)
        finally:
            OsFiles.open = opened  # type: ignore[method-assign]
        assert refusals
        assert victim.failure is None
        assert victim.snapshots.kept() == kept
        assert not victim.mender.statistics().queues_found


def test_a_base_is_kept_twice() -> None:
    """Either of the two gives the other; without both it is lost."""
    disk = made_disk()
    files = SnapshotFiles(FILE.parent, disk)
    own = SnapshotHead(bytes(16), 7, 1, 5, 99)
    unfinished = files.begin(own)
    unfinished.add([b"state"])
    unfinished.finish()
    files.publish(unfinished)
    path = files.path(7)
    copy = path.with_suffix(".copy")
    assert files.mend_base(own) is BaseFound.SOUND
    content = bytes(disk.bytes_of(path))
    for spoilt in (path, copy):
        disk.bytes_of(spoilt)[66] ^= 1
        assert files.mend_base(own) is BaseFound.MENDED
        assert disk.bytes_of(path) == disk.bytes_of(copy) == content
    for spoilt in (path, copy):
        disk.bytes_of(spoilt)[66] ^= 1
    assert files.mend_base(own) is BaseFound.LOST
    assert not files.is_whole(7)
    assert files.remove_all_but(()) == []
    assert [each.name for each in disk.paths() if each.parent == path.parent] == []


def test_another_disks_state_takes_no_bases_place() -> None:
    """Whole as it is, and as of the same entry, it is what was put there: the copy gives back this
    disk's own, and isn't written over. Where both are another's, it is lost, and a peer asked."""
    disk = made_disk()
    files = SnapshotFiles(FILE.parent, disk)
    own, other = (SnapshotHead(bytes([each] * 16), 7, 1, 5, 99) for each in (1, 2))
    for head in (other, own):
        unfinished = files.begin(head)
        unfinished.add([b"state"])
        unfinished.finish()
        files.publish(unfinished)
        if head is other:
            anothers = bytes(disk.bytes_of(files.path(7)))
    path = files.path(7)
    copy = path.with_suffix(".copy")
    assert files.mend_base(own) is BaseFound.SOUND
    content = bytes(disk.bytes_of(path))
    for put_back in (path, copy):
        disk.bytes_of(put_back)[:] = anothers
        assert files.mend_base(own) is BaseFound.MENDED
        assert disk.bytes_of(path) == disk.bytes_of(copy) == content
    for put_back in (path, copy):
        disk.bytes_of(put_back)[:] = anothers
    assert files.mend_base(own) is BaseFound.LOST


@on_a_loop
async def test_a_member_whose_directory_was_replaced_writes_nothing_there(tmp_path: Path) -> None:
    """The folder of a local group was moved away under its nodes, and another group made there. A
    round of upkeep would find the other's files to be something else than its own, and mend them;
    the member ends instead."""
    async with a_follower(tmp_path) as (group, victim, data):
        aside = data.rename(data.with_name("moved"))
        for name in WRITTEN_AGAIN:
            path = WRITTEN_AGAIN[name](data)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"another's")
        await group.until(lambda: victim.failure is not None)
        assert isinstance(victim.failure, DirectoryReplaced)
        files = [WRITTEN_AGAIN[name](data) for name in WRITTEN_AGAIN]
        assert {each.read_bytes() for each in files} == {b"another's"}
        assert {each for each in data.rglob("*") if each.is_file()} == set(files)
        assert (aside / "identity.json").exists()
