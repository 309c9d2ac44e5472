"""Rot in one member's log, on real files: found by the scrub or by a reader, got back from a peer
that is believed in nothing, and what becomes of the member meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.ports import Rhythm
from broker.replica import Replica
from broker.scrubbing import ScrubPace
from broker.snapshots import SnapshotPace
from dledger.applying import MENDED_RETRY_TICKS, Applier
from dledger.checksum import seal
from dledger.core.types import Index, NodeId, Role
from dledger.errors import InvalidMessage
from dledger.level import KNOWN_LEVEL
from dledger.wire import commands_pb2 as kpb
from dledger.wire import raft_pb2 as pb
from store.directory import write_sealed
from store.errors import CorruptionFound, GapFound
from store.files import OsFiles
from tests.audit.replicas import flip_bit
from tests.node.members import Members, make_configs, members, nothing_to_shut
from tests.node.test_replica import on_a_loop

N1, N2 = NodeId("n1"), NodeId("n2")
ENTRIES = 40
QUICK = Rhythm(housekeeping_s=0.02, scrub=ScrubPace(between_s=0.02))
SEALING = Rhythm(housekeeping_s=0.02, snapshots=SnapshotPace(10), scrub=ScrubPace(between_s=0.02))
RARELY = Rhythm(housekeeping_s=0.02, scrub=ScrubPace(between_s=3600.0))


async def fill(group: Members) -> Replica:
    """Entries that every member has applied; the leader."""
    leader = await group.leader()
    # Its raises are entries as well, and smaller than those that are meant to rot.
    await group.until(lambda: leader.machine.level.current == KNOWN_LEVEL)
    for number in range(ENTRIES):
        create = kpb.CreateTopicCommand(name=f"topic-{number}", queue_count=1)
        assert await leader.appender.submit(kpb.Command(create_topic=create)) is None
    last = leader.machine.applied_index
    await group.until(
        lambda: all(
            each.machine.applied_index >= last and each.log.synced_index >= last
            for each in group.replicas.values()
        )
    )
    return leader


def segment(replica: Replica) -> Path:
    return replica.config.data_directory / "commitlog" / f"{0:020}"


def content(replica: Replica) -> bytes:
    """The log's bytes, up to its end."""
    return segment(replica).read_bytes()[: replica.log.end_offset]


def rot(replica: Replica, index: int, within: int = 60, count: int = 1) -> None:
    """Bytes of an entry are others from now on."""
    at = replica.log.position_of(index) + within
    with segment(replica).open("r+b") as file:
        file.seek(at)
        before = file.read(count)
        file.seek(at)
        file.write(bytes(byte ^ 0x40 for byte in before))


def follower(group: Members, leader: Replica) -> Replica:
    return next(each for each in group.replicas.values() if each is not leader)


class Wiretap:
    """What members say goes through `change` first; None: it gets lost."""

    def __init__(self, group: Members) -> None:
        self.change: Callable[[NodeId, pb.PeerMessage], pb.PeerMessage | None] = lambda _, m: m
        self._carry = group.wires.carry
        group.wires.carry = self._tapped  # type: ignore[method-assign]

    def _tapped(self, sender: NodeId, to: NodeId, message: pb.PeerMessage) -> None:
        changed = self.change(sender, message)
        if changed is not None:
            self._carry(sender, to, changed)


def without_answers(_: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
    return None if message.HasField("entries_response") else message


@pytest.mark.parametrize("within", [0, 5, 12, 20, 30, 50, 60], ids=lambda at: f"byte {at}")
@on_a_loop
async def test_the_scrub_finds_a_rotten_entry_and_a_peer_gives_it_back(
    tmp_path: Path, within: int
) -> None:
    """Whichever of an entry's fields it is: afterwards the bytes are the leader's, and it's told
    where, what and from whom."""
    with capture_logs() as told:
        async with members(tmp_path, 3, QUICK) as group:
            leader = await fill(group)
            victim = follower(group, leader)
            before = content(victim)
            rot(victim, 20, within)
            assert content(victim) != before
            await group.until(lambda: victim.repairs.statistics().repaired)
            assert content(victim)[: len(before)] == before
            assert not victim.repairs.is_at_work
            assert victim.failure is None
    found = next(each for each in told if each["event"] == "log_rot_found")
    assert (found["first_entry"], found["last_entry"]) == (20, 20)
    repaired = next(each for each in told if each["event"] == "log_repaired")
    assert repaired["first_entry"] == 20
    assert repaired["peer"] in {"n1", "n2", "n3"} - {victim.config.node_id}
    assert not (victim.config.data_directory / "repair").exists()


@on_a_loop
async def test_all_that_has_rotted_is_found_in_one_pass(tmp_path: Path) -> None:
    """However close together: a disk that changes one byte changes others, and while anything is
    rotten a member promises nothing."""
    pace = ScrubPace(between_s=0.5)
    async with members(tmp_path, 3, Rhythm(housekeeping_s=0.02, scrub=pace)) as group:
        leader = await fill(group)
        victim, scrub = follower(group, leader), follower(group, leader).scrubber
        before = content(victim)
        passes = scrub.statistics().passes
        await group.until(lambda: scrub.statistics().passes > passes)
        rotten = range(4, 28, 3)
        for index in rotten:
            rot(victim, index)
        passes = scrub.statistics().passes
        await group.until(lambda: victim.repairs.statistics().repaired >= len(rotten))
        assert scrub.statistics().passes <= passes + 1
        assert content(victim)[: len(before)] == before


@on_a_loop
async def test_what_a_reader_stumbles_over_is_refused_for_now_and_repaired(tmp_path: Path) -> None:
    """A leader whose old entry has rotted: who reads it is told to come again, nobody is given a
    wrong byte, leadership moves, and the member is sound and follows."""
    async with members(tmp_path, 3, RARELY) as group:
        leader = await fill(group)
        before = content(leader)
        rot(leader, 10, count=5)
        with pytest.raises(CorruptionFound) as found:
            leader.log.verify(1, 12, 0)
        assert leader.repairs.takes(found.value)
        assert leader.repairs.is_at_work
        assert leader.driver.core.holding.held_index == 0
        await group.until(lambda: leader.repairs.statistics().repaired)
        assert content(leader)[: len(before)] == before
        assert leader.log.verify(1, 12, 0) == leader.log.digest_at(12)


@on_a_loop
async def test_two_members_rotten_in_different_places_heal_each_other(tmp_path: Path) -> None:
    """The third is cut off: what either lacks the other has."""
    async with members(tmp_path, 3, QUICK) as group:
        leader = await fill(group)
        one, other = [each for each in group.replicas.values() if each is not leader]
        before = content(one)
        away = NodeId(leader.config.node_id)
        for each in (one, other):
            name = NodeId(each.config.node_id)
            group.wires.cut |= {(away, name), (name, away)}
        rot(one, 5)
        rot(other, 25)
        await group.until(lambda: all(each.repairs.statistics().repaired for each in (one, other)))
        assert content(one)[: len(before)] == content(other)[: len(before)] == before


@on_a_loop
async def test_a_member_in_doubt_neither_votes_nor_acknowledges(tmp_path: Path) -> None:
    """Nobody gives the bytes: it takes entries and owes their acknowledgement, and gives it when it
    is sound again."""
    async with members(tmp_path, 3, QUICK) as group:
        leader = await fill(group)
        victim = follower(group, leader)
        name = NodeId(victim.config.node_id)
        said: list[pb.PeerMessage] = []
        tap = Wiretap(group)

        def tapped(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
            if sender == name and victim.repairs.is_at_work:
                said.append(message)
            return without_answers(sender, message)

        tap.change = tapped
        rot(victim, 20)
        await group.until(lambda: victim.repairs.is_at_work)
        said.clear()
        create = kpb.CreateTopicCommand(name="another", queue_count=1)
        assert await leader.appender.submit(kpb.Command(create_topic=create)) is None
        last = leader.machine.applied_index
        await group.until(lambda: victim.log.synced_index >= last)
        await asyncio.sleep(0.2)
        match = leader.driver.core.statistics().peers[name].match_index
        assert match < last
        assert not any(message.append_response.accepted for message in said)
        assert victim.driver.core.role is Role.FOLLOWER
        tap.change = lambda _, message: message
        await group.until(lambda: victim.repairs.statistics().repaired)
        await group.until(lambda: leader.driver.core.statistics().peers[name].match_index >= last)


@on_a_loop
async def test_a_lying_peer_is_believed_in_nothing(tmp_path: Path) -> None:
    """Whole frames with their CRCs that aren't the ones: refused and told; the next peer gives the
    right ones."""
    async with members(tmp_path, 3, QUICK) as group:
        leader = await fill(group)
        victim = follower(group, leader)
        before = content(victim)
        name = NodeId(victim.config.node_id)
        liar = min(each for each in group.configs if each != name)

        def lying(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
            if sender != liar or not message.HasField("entries_response"):
                return message
            other = group.replicas[liar].log.read(21, 21)
            body = pb.EntriesResponse()
            body.CopyFrom(message.entries_response)
            body.frames, body.frames_size = other, len(other)
            return seal(pb.PeerMessage(entries_response=body))

        Wiretap(group).change = lying
        rot(victim, 20)
        await group.until(lambda: victim.repairs.statistics().repaired)
        assert victim.repairs.statistics().answers_refused >= 1
        assert content(victim)[: len(before)] == before


@on_a_loop
async def test_an_answer_to_another_question_is_none(tmp_path: Path) -> None:
    """The right bytes under another number: nobody knows what they were given for."""

    def renumbered(_: NodeId, message: pb.PeerMessage) -> pb.PeerMessage:
        if not message.HasField("entries_response"):
            return message
        body = pb.EntriesResponse()
        body.CopyFrom(message.entries_response)
        body.number += 1_000
        return seal(pb.PeerMessage(entries_response=body))

    async with members(tmp_path, 3, QUICK) as group:
        leader = await fill(group)
        victim = follower(group, leader)
        tap = Wiretap(group)
        tap.change = renumbered
        rot(victim, 20)
        await group.until(lambda: victim.repairs.is_at_work)
        await asyncio.sleep(0.3)
        assert victim.repairs.is_at_work
        tap.change = lambda _, message: message
        await group.until(lambda: victim.repairs.statistics().repaired)


@on_a_loop
async def test_a_stop_with_rot_in_the_log_is_not_clean(tmp_path: Path) -> None:
    """The next start has to know of it."""
    async with members(tmp_path, 3, QUICK) as group:
        leader = await fill(group)
        victim = follower(group, leader)
        Wiretap(group).change = without_answers
        rot(victim, 20)
        await group.until(lambda: victim.repairs.is_at_work)
        await group.stop(NodeId(victim.config.node_id))
        assert (victim.config.data_directory / "abort").exists()
        assert (victim.config.data_directory / "doubt.json").exists()
        with pytest.raises(CorruptionFound):
            group.open(NodeId(victim.config.node_id))


@pytest.mark.parametrize(
    "places",
    [
        [["00000000000000999424", 5]],  # a segment that has gone, or is to come
        [[f"{0:020}", 1 << 40]],
        [[f"{0:020}", -1]],
        [["../identity.json", 0]],
        [[5, "x"], "x", None, [f"{0:020}"]],
        {"no": "list"},
    ],
)
@on_a_loop
async def test_a_note_of_what_is_no_more_ends_nobody(tmp_path: Path, places: object) -> None:
    """The log was cut, its front went, it was begun anew; or it is no note of ours."""
    async with members(tmp_path, 3, QUICK) as group:
        victim = follower(group, await fill(group))
        name, path = NodeId(victim.config.node_id), victim.config.data_directory / "doubt.json"
        await group.stop(name)
        write_sealed(OsFiles(), path, {"format_version": 1, "places": places})
        group.start(name)
        again = group.replicas[name]
        await group.until(lambda: not path.exists())
        assert not again.repairs.is_at_work
        assert again.failure is None


@on_a_loop
async def test_who_was_in_doubt_is_in_doubt_after_a_restart(tmp_path: Path) -> None:
    """Though its start passes over the place by a seal: until a peer has given the bytes."""
    async with members(tmp_path, 3, SEALING) as group:
        leader = await fill(group)
        victim = follower(group, leader)
        name = NodeId(victim.config.node_id)
        seals = victim.config.data_directory / "seal"
        await group.until(lambda: seals.exists() and victim.log.seals.due(30) is None)
        before = content(victim)
        tap = Wiretap(group)
        tap.change = without_answers
        rot(victim, 20)
        await group.until(lambda: victim.repairs.is_at_work)
        await group.until((victim.config.data_directory / "doubt.json").exists)
        await group.stop(name)
        group.start(name)
        again = group.replicas[name]
        assert again.repairs.is_at_work
        assert again.driver.core.is_in_doubt
        tap.change = lambda _, message: message
        await group.until(lambda: not again.repairs.is_at_work)
        assert content(again)[: len(before)] == before
        await group.until(lambda: not (again.config.data_directory / "doubt.json").exists())


@pytest.mark.parametrize("places", [[[f"{0:020}", each] for each in range(256)], "rotten itself"])
@on_a_loop
async def test_nothing_is_passed_over_where_more_may_have_rotted_than_was_noted(
    tmp_path: Path, places: object
) -> None:
    """A note that is full, or can't be read: by its seals the member would acknowledge and vote on
    what it once knew not to hold."""
    async with members(tmp_path, 3, SEALING) as group:
        victim = follower(group, await fill(group))
        name, path = NodeId(victim.config.node_id), victim.config.data_directory
        seals, at = path / "seal", victim.log.position_of(20) + 60
        await group.until(lambda: seals.exists() and victim.log.seals.due(30) is None)
        await group.stop(name)
        write_sealed(OsFiles(), path / "doubt.json", {"format_version": 1, "places": places})
        flip_bit(segment(victim), at)
        with pytest.raises(GapFound):
            group.open(name)


@on_a_loop
async def test_a_stop_waits_for_a_repair_that_is_under_way(tmp_path: Path) -> None:
    """For a while: without it the next start would refuse."""
    async with members(tmp_path, 3, QUICK) as group:
        leader = await fill(group)
        victim = follower(group, leader)
        tap = Wiretap(group)
        tap.change = without_answers
        rot(victim, 20)
        await group.until(lambda: victim.repairs.is_at_work)
        name = NodeId(victim.config.node_id)
        stopping = asyncio.create_task(group.stop(name))
        await asyncio.sleep(0.1)
        assert not stopping.done()
        tap.change = lambda _, message: message
        assert await stopping
        assert not (victim.config.data_directory / "abort").exists()
        group.start(name)


@on_a_loop
async def test_what_is_not_committed_is_not_repaired_but_may_be_given(
    tmp_path: Path,
) -> None:
    """It may be cut, and another entry come in its place; whoever asks for the one that is here
    says of which term it is."""
    async with members(tmp_path, 3, RARELY) as group:
        leader = await fill(group)
        name = NodeId(leader.config.node_id)
        others = [each for each in group.configs if each != name]
        group.wires.cut |= {(name, each) for each in others}
        create = kpb.CreateTopicCommand(name="another", queue_count=1)
        waiting = leader.appender.submit(kpb.Command(create_topic=create))
        last = leader.log.last_index
        await group.until(lambda: leader.log.synced_index >= last)
        at = leader.log.position_of(last)
        error = CorruptionFound(str(segment(leader)), at + 3, "what was written", "something else")
        assert leader.driver.core.commit_index < last
        rot(leader, last, 3)
        assert not leader.repairs.takes(error)
        assert not leader.repairs.is_at_work
        rot(leader, last, 3)
        term = leader.driver.core.term
        said: list[pb.PeerMessage] = []
        tap = Wiretap(group)
        tap.change = lambda _, message: said.append(message)
        for asked_term in (term + 1, term):
            asked = pb.EntriesRequest(
                number=7, first_index=last, last_index=last, last_term=asked_term
            )
            leader.repairs.on_message(others[0], seal(pb.PeerMessage(entries_request=asked)))
        answers = [each.entries_response for each in said if each.HasField("entries_response")]
        assert [each.status for each in answers] == [
            pb.ENTRIES_STATUS_NOT_YET,
            pb.ENTRIES_STATUS_GIVEN,
        ]
        assert answers[1].frames == leader.log.read(last, last)
        tap.change = lambda _, message: message
        group.wires.cut.clear()
        await asyncio.wait([waiting])


def test_applying_waits_for_what_is_being_got_back() -> None:
    """Nothing is applied, nothing fails, and some ticks later it is asked for again."""
    reads: list[int] = []
    applied: list[Index] = []

    def read(first: int, last: int) -> bytes:
        reads.append(first)
        if len(reads) == 1:
            raise CorruptionFound("file", 0, "a frame", "rot")
        return b"frames"

    ports: Any = SimpleNamespace(
        log=SimpleNamespace(read=read, last_that_fits=lambda first, last, size: last),
        machine=SimpleNamespace(apply=lambda frames, is_enough: 3),
        turns=SimpleNamespace(share=lambda: None, later=lambda call: None),
        is_mended=lambda error: isinstance(error, CorruptionFound),
    )
    applier: Applier[Any] = Applier(
        ports, Index(2), 100, in_turn=lambda: None, on_applied=applied.append
    )
    applier.apply(Index(3))
    assert (reads, applied, applier.applied) == ([3], [], 2)
    applier.apply(Index(3))
    assert reads == [3]
    for _ in range(MENDED_RETRY_TICKS):
        applier.tick()
    applier.apply(Index(3))
    assert (reads, applied, applier.applied) == ([3, 3], [3], 3)


@on_a_loop
async def test_the_scrub_goes_on_soon_after_a_step_that_was_held_up(tmp_path: Path) -> None:
    """By a process that was stopped, say: it makes up for the work it did, not for the wait."""
    pace = ScrubPace(between_s=0.0, longest_pause_s=0.05)
    async with members(tmp_path, 1, Rhythm(housekeeping_s=0.02, scrub=pace)) as group:
        alone = await group.leader()
        # At three percent of a processor it would be half a minute to the next step.
        group.hands[N1].before = lambda step: time.sleep(1.0) if step == "<lambda>" else None
        passes = alone.scrubber.statistics().passes
        await group.until(lambda: alone.scrubber.statistics().passes >= passes + 2)


@on_a_loop
async def test_a_peer_that_is_a_member_no_more_is_not_waited_for(tmp_path: Path) -> None:
    """It was to be asked next, when the group's log took it out: the others are asked on."""
    async with members(tmp_path, 3, RARELY) as group:
        leader = await fill(group)
        victim, before = follower(group, leader), content(leader)
        first, gone = sorted(group.configs.keys() - {NodeId(victim.config.node_id)})
        ends, asked = group.wires.ends, []
        end = ends[gone]

        def change(sender: NodeId, message: pb.PeerMessage) -> pb.PeerMessage | None:
            if message.HasField("entries_request"):
                asked.append(sender)
                ends.pop(gone, None)
            return without_answers(sender, message)

        tap = Wiretap(group)
        tap.change = change
        rot(victim, 10)
        with pytest.raises(CorruptionFound) as found:
            victim.log.verify(1, 12, 0)
        assert victim.repairs.takes(found.value)
        await group.until(lambda: len(asked) >= 2)
        tap.change, ends[gone] = (lambda _, message: message), end
        await group.until(lambda: victim.repairs.statistics().repaired)
        assert victim.failure is None
        assert content(victim)[: len(before)] == before, first


@on_a_loop
async def test_nobody_has_them_ends_the_member_with_what_each_peer_said(tmp_path: Path) -> None:
    """All members have lost the same entry, and none has it in memory: each says so, and stops."""
    group = Members(make_configs(tmp_path, 3), QUICK)
    group.start()
    await fill(group)
    for name in list(group.replicas):
        await group.stop(name)
    for name in group.configs:
        replica = group.replicas[name] = group.open(name)
        rot(replica, 20)
    for replica in group.replicas.values():
        replica.start()
    await group.until(lambda: all(each.failure for each in group.replicas.values()))
    said = [str(each.failure) for each in group.replicas.values()]
    assert any("entries 20 to 20" in each and "rotten, too" in each for each in said)
    for replica in group.replicas.values():
        assert not await replica.stop(nothing_to_shut)


@on_a_loop
async def test_alone_it_ends_at_once(tmp_path: Path) -> None:
    """A group of one has nobody to ask."""
    group = Members(make_configs(tmp_path, 1), QUICK)
    group.start()
    await fill(group)
    replica = group.replicas[N1]
    rot(replica, 20)
    await replica.wait()
    assert isinstance(replica.failure, CorruptionFound)
    assert not await replica.stop(nothing_to_shut)


BAD: list[Callable[[pb.PeerMessage], None]] = [
    lambda message: setattr(message, "term", 3),
    lambda message: setattr(message.entries_request, "first_index", 0),
    lambda message: setattr(message.entries_request, "last_index", 1),
    lambda message: setattr(message.entries_request, "last_index", 1 << 63),
    lambda message: setattr(message.entries_request, "last_term", 0),
]


@pytest.mark.parametrize("spoil", BAD)
@on_a_loop
async def test_requests_that_no_peer_makes_are_refused(
    tmp_path: Path, spoil: Callable[[pb.PeerMessage], None]
) -> None:
    """Out of range, or unsealed: dropped whole, as any such message."""
    async with members(tmp_path, 1, RARELY) as group:
        replica = group.replicas[N1]
        body = pb.EntriesRequest(number=1, first_index=2, last_index=3, last_term=1)
        message = pb.PeerMessage(entries_request=body)
        spoil(message)
        with pytest.raises(InvalidMessage):
            replica.repairs.on_message(N2, seal(message))
        message = seal(pb.PeerMessage(entries_request=body))
        message.checksum ^= 1
        with pytest.raises(InvalidMessage):
            replica.repairs.on_message(N2, message)
