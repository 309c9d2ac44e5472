"""A member has lost, in front of its log, what all others have let go of: nobody gives it back, and
it begins its log behind it, with a peer's state (ADR 43)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.archiving import Released
from broker.pulling import head_of
from broker.replica import Replica
from dledger.core.types import LogBase, NodeId
from dledger.wire import raft_pb2 as pb
from store.damage import Extent
from store.errors import CorruptionFound
from store.snapshot_files import BaseFound
from store.starting.errors import BaseMissing
from tests.node.members import Members
from tests.node.test_later_logs import follower, grow, on_a_loop, small_members
from tests.node.test_repairs import Wiretap


async def kept_back(group: Members, victim: Replica, *besides: Replica) -> None:
    """All but the victim, and those besides, have let the front go, as the group has decided; their
    archive commands want more time."""
    back = (victim, *besides)
    for each in back:
        each.archiver.release = not_yet  # type: ignore[method-assign]
    leader = await grow(group, 3, "first")
    await leader.propose_log_start(leader.machine.applied_index)
    await grow(group, 1, "behind")
    others = [each for each in group.replicas.values() if each not in back]
    await group.until(lambda: all(each.log.first_index > 1 for each in others))
    await group.until(lambda: victim.machine.log_start.first_index > 1)
    assert victim.log.first_index == 1


async def not_yet(segments: Iterable[Path]) -> Released:
    return Released(0, "not yet")


async def given(segments: Iterable[Path]) -> Released:
    return Released(len(list(segments)))


def rotten(victim: Replica, index: int) -> CorruptionFound:
    """A byte of that entry is another one on the disk; what a read of it says."""
    at = victim.log.position_of(index) + 60
    size = victim.log.options.segment_size_bytes
    path = victim.config.data_directory / "commitlog" / f"{at - at % size:020}"
    with path.open("r+b") as file:
        file.seek(at % size)
        byte = file.read(1)[0]
        file.seek(at % size)
        file.write(bytes([byte ^ 0x40]))
    return CorruptionFound(str(path), at % size, "what was written", "something else")


async def healed(group: Members, victim: Replica, old_first: int) -> None:
    await group.until(lambda: victim.log.first_index > old_first)
    await group.until(lambda: not victim.repairs.is_at_work)
    assert victim.failure is None


@on_a_loop
async def test_the_log_begins_behind_what_nobody_can_give_back(tmp_path: Path) -> None:
    """It is in doubt no longer, holds every entry that isn't retired, and has the others' state:
    after a restart, too. What rotted is not for the archive."""
    with capture_logs() as told:
        async with small_members(tmp_path) as group:
            leader = await group.leader()
            name = follower(group, leader)
            victim = group.replicas[name]
            await kept_back(group, victim)
            archived: list[Path] = []

            async def release(segments: Iterable[Path]) -> Released:
                archived.extend(segments)
                return Released(len(archived))

            assert victim.repairs.takes(rotten(victim, 20))
            victim.archiver.release_together = release  # type: ignore[method-assign]
            await healed(group, victim, 1)
            assert f"{0:020}" not in {path.name for path in archived}
            other = next(each for each in group.replicas.values() if each is not victim)
            await group.until(lambda: victim.log.first_index == other.log.first_index)
            last = victim.log.last_index
            await group.until(lambda: other.log.synced_index >= last)
            first = victim.log.first_index
            assert victim.log.read(first, last) == other.log.read(first, last)
            await group.stop(name)
            group.start(name)
            await group.until(lambda: group.replicas[name].machine.applied_index >= last)
            await grow(group, 1, "after")
    events = [each["event"] for each in told]
    assert "log_begins_behind_rot" in events
    assert "log_repaired" not in events


@on_a_loop
async def test_rot_behind_what_the_others_begin_with_holds_nothing_up(tmp_path: Path) -> None:
    """A segment's last entry has rotted, too, and nobody gives it for now: the log can't begin
    behind that one, but it can where the others' do."""
    async with small_members(tmp_path) as group:
        leader = await group.leader()
        victim = group.replicas[follower(group, leader)]
        victim.log._cache._capacity_bytes = 0  # what is old is read from the files
        await kept_back(group, victim)
        await grow(group, 3, "later")
        end = victim.log.end_before(victim.machine.applied_index)
        assert end is not None
        assert end >= leader.log.first_index
        tap = Wiretap(group)
        tap.change = lambda _, each: None if each.HasField("entries_response") else each
        rotten(victim, end)
        assert victim.repairs.takes(rotten(victim, 20))
        victim.archiver.release_together = given  # type: ignore[method-assign]
        await group.until(lambda: victim.log.first_index > 1)
        tap.change = lambda _, each: each
        await healed(group, victim, 1)
        assert victim.log.read(end, end) == leader.log.read(end, end)


@on_a_loop
async def test_what_nobody_has_holds_up_no_repair_of_what_somebody_has(tmp_path: Path) -> None:
    """Nor does it have to be passed before: the place behind it is mended meanwhile."""
    async with small_members(tmp_path) as group:
        leader = await group.leader()
        victim = group.replicas[follower(group, leader)]
        await kept_back(group, victim)
        last = victim.log.end_before(victim.machine.applied_index)
        assert last is not None
        assert last >= leader.log.first_index
        for index in (20, last):
            assert victim.repairs.takes(rotten(victim, index))
        assert victim.repairs.statistics().damages == 2
        await group.until(lambda: victim.repairs.statistics().damages == 1)
        assert victim.log.first_index == 1
        assert victim.log.read(last, last) == leader.log.read(last, last)


@on_a_loop
async def test_member_waits_in_doubt_until_a_peer_gives_the_state(tmp_path: Path) -> None:
    """All of them are asked, and asked again."""
    async with small_members(tmp_path) as group:
        leader = await group.leader()
        victim = group.replicas[follower(group, leader)]
        await kept_back(group, victim)
        asked: list[NodeId] = []
        tap = Wiretap(group)

        def swallow(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
            if not message.HasField("snapshot_response"):
                return message
            asked.append(sender)
            return None

        tap.change = swallow
        assert victim.repairs.takes(rotten(victim, 20))
        victim.archiver.release = given  # type: ignore[method-assign]
        await group.until(lambda: len(asked) > 2)
        assert victim.log.first_index == 1
        assert victim.repairs.is_at_work
        tap.change = lambda _, message: message
        await healed(group, victim, 1)


@on_a_loop
async def test_a_queue_that_is_mended_from_the_same_rot_holds_nothing_up(tmp_path: Path) -> None:
    """Nothing new is noted as derived while it waits for what nobody can give: the log begins
    beyond what is noted, as what lies before its start needs no note, and so does the next start
    (simulator's seed 440056)."""
    async with small_members(tmp_path) as group:
        leader = await group.leader()
        name = follower(group, leader)
        victim = group.replicas[name]
        noted = victim.log.checkpoint.state.consume_queue_index
        victim.log.checkpoint.note_consume_queue = lambda *_: None  # type: ignore[method-assign]
        await kept_back(group, victim)
        other = next(each for each in group.replicas.values() if each is not victim)
        assert noted < other.log.first_index - 1
        assert victim.repairs.takes(rotten(victim, 20))
        victim.mender.suspect(next(iter(victim.machine.topics.values())), 0)
        victim.archiver.release = given  # type: ignore[method-assign]
        await healed(group, victim, 1)
        await group.until(lambda: not victim.mender.is_at_work)
        assert victim.log.checkpoint.state.consume_queue_index == noted
        last = victim.log.last_index
        await group.stop(name)
        group.start(name)
        back = group.replicas[name]
        await group.until(lambda: back.machine.applied_index >= last)
        back.machine.check_invariants()
        await group.until(lambda: back.log.checkpoint.state.consume_queue_index >= last)
        assert not back.mender.statistics().queues_found
        await grow(group, 1, "after")


def spoil_base(victim: Replica) -> None:
    """A byte of what its log begins with is another one, in both copies."""
    path = victim.base.files.path(victim.log.start.index)
    for each in (path, path.with_suffix(".copy")):
        spoil(each)


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[90] ^= 1
    path.write_bytes(content)


def held_for_rot(told: Sequence[Mapping[str, Any]]) -> int:
    """How often it was told that nothing goes because what the log begins with has rotted."""
    held = [each["reason"] for each in told if each["event"] == "log_start_not_moved"]
    return sum("has rotted here" in each for each in held)


@on_a_loop
async def test_what_the_log_begins_with_is_got_back_from_a_peer(tmp_path: Path) -> None:
    """Both copies have rotted: they are what they were. Where the others have let go of the state
    as of there meanwhile, the log begins with the one that they have; a start begins with that."""
    with capture_logs() as told:
        async with small_members(tmp_path) as group:
            leader = await grow(group, 2, "first")
            await leader.propose_log_start(leader.machine.applied_index)
            name = follower(group, leader)
            victim = group.replicas[name]
            await grow(group, 1, "behind")
            await group.until(lambda: {e.log.first_index for e in group.replicas.values()} != {1})
            await group.until(lambda: victim.log.first_index > 1)
            first, files = victim.log.first_index, victim.base.files
            own = head_of(victim.base.disk_id, victim.log.start)
            await group.until(lambda: files.mend_base(own) is BaseFound.SOUND)
            spoil_base(victim)
            victim.mender.suspect(next(iter(victim.machine.topics.values())), 0)
            await grow(group, 1, "meanwhile")
            assert victim.mender.is_at_work
            victim.log_start.on_base_rotted()
            # Looking at `held` alone could come too late: a peer may give it within a turn.
            await group.until(lambda: held_for_rot(told))
            await group.until(lambda: not victim.log_start.held)
            assert files.mend_base(own) is BaseFound.SOUND
            assert victim.log.first_index == first
            await group.until(lambda: not victim.mender.is_at_work)
            released = victim.archiver.release
            victim.archiver.release = not_yet  # type: ignore[method-assign]
            await grow(group, 1, "more")
            await leader.propose_log_start(leader.machine.applied_index)
            await grow(group, 1, "most")
            others = [each for each in group.replicas.values() if each is not victim]
            await group.until(lambda: all(each.log.first_index > first for each in others))
            spoil_base(victim)
            victim.archiver.release = released  # type: ignore[method-assign]
            await group.until(lambda: victim.log.first_index > first)
            assert victim.failure is None
            await group.stop(name)
            group.start(name)
            last = leader.log.last_index
            await group.until(lambda: group.replicas[name].machine.applied_index >= last)
    assert held_for_rot(told) > 1


@on_a_loop
async def test_who_is_alone_is_told_to_keep_what_there_is(tmp_path: Path) -> None:
    """No peer gives the state, nor fills an empty directory: while the node runs what there is can
    be read, and a start that refuses doesn't advise to throw it away."""
    with capture_logs() as told:
        async with small_members(tmp_path, 1) as group:
            leader = await grow(group, 2, "first")
            await leader.propose_log_start(leader.machine.applied_index)
            await grow(group, 1, "behind")
            await group.until(lambda: leader.log.first_index > 1)
            own = head_of(leader.base.disk_id, leader.log.start)
            await group.until(lambda: leader.base.files.mend_base(own) is BaseFound.SOUND)
            spoil_base(leader)
            leader.log_start.on_base_rotted()
            await group.until(lambda: held_for_rot(told))
            assert "In a group of one nobody has it: consume" in leader.log_start.held
            assert leader.log.read(leader.log.first_index, leader.log.last_index)
            (name,) = group.replicas
            await group.stop(name)
            for each in tmp_path.rglob("snapshot/*"):
                each.unlink()
            with pytest.raises(BaseMissing, match="only member, keep the directory"):
                group.start(name)


@on_a_loop
async def test_what_the_log_begins_with_is_mended_from_its_copy_first(tmp_path: Path) -> None:
    """One of the two has rotted, and the front is to move before a scrub has come by: the other is
    good, no peer is asked, as a group of one has none, and the front goes. So it does after what
    only couldn't be read for a moment."""
    async with small_members(tmp_path) as group:
        leader = await grow(group, 2, "first")
        await leader.propose_log_start(leader.machine.applied_index)
        await grow(group, 1, "behind")
        victim = group.replicas[follower(group, leader)]
        await group.until(lambda: victim.log.first_index > 1)
        first, files = victim.log.first_index, victim.base.files
        own = head_of(victim.base.disk_id, victim.log.start)
        await group.until(lambda: files.mend_base(own) is BaseFound.SOUND)
        asked: list[NodeId] = []

        async def nobody_has_it(base: LogBase) -> None:
            asked.append(NodeId(victim.config.node_id))

        keeper = victim.log_start
        keeper._front = replace(keeper._front, fetched=nobody_has_it)
        keeper.on_base_rotted()  # as after EMFILE: both are what they were
        await group.until(lambda: not keeper._is_base_rotten)
        spoil(files.path(victim.log.start.index))
        await grow(group, 1, "more")
        await leader.propose_log_start(leader.machine.applied_index)
        await grow(group, 1, "most")
        await group.until(lambda: victim.log.first_index > first)
        assert not asked
        assert victim.failure is None


@on_a_loop
async def test_a_repair_that_waits_for_space_lets_the_front_go(tmp_path: Path) -> None:
    """What has rotted is given, and the disk has no room for the journal: that the log begins
    behind it is the one way by which this member sets space free itself."""
    async with small_members(tmp_path) as group:
        leader = await group.leader()
        victim = group.replicas[follower(group, leader)]
        [giver] = [each for each in group.replicas.values() if each not in (leader, victim)]
        await kept_back(group, victim, giver)
        tried: list[Extent] = []

        def full(extent: Extent, content: bytes) -> None:
            tried.append(extent)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        victim.repairs._journal.write_back = full  # type: ignore[method-assign]
        assert victim.repairs.takes(rotten(victim, 20))
        await group.until(lambda: len(tried) > 1)
        assert victim.log.first_index == 1
        victim.archiver.release = given  # type: ignore[method-assign]
        await healed(group, victim, 1)
        assert victim.log.first_index == leader.log.first_index
        assert giver.log.first_index == 1
