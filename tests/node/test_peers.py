"""What peers send that can't be: dropped, counted, told at a bounded rate; nobody stops for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.checksum import seal
from dledger.core.types import (
    EntryKind,
    Index,
    NodeId,
    OwnLogVerified,
    PeerContradicted,
    PeerMessageRefused,
)
from dledger.doubt import LOOK_EVERY_TICKS, REPORT_EVERY_TICKS
from dledger.errors import InvalidMessage, ReplicaDiverged
from dledger.reading.entry import HEADER_SIZE, build_frame
from dledger.wire.raft_pb2 import PeerMessage
from tests.node.world import World, WorldNode

LAST = 5


def running() -> tuple[World, WorldNode, WorldNode]:
    """A group in which `LAST` entries are committed everywhere; its leader and a follower."""
    world = World()
    leader = world.serving()
    while leader.log.last_index < LAST:
        leader.propose(f"t{leader.log.last_index}")
    world.run_for(8)
    follower = world.others(leader.name)[0]
    assert follower.driver.core.commit_index == LAST
    return world, leader, follower


def heartbeat(leader: WorldNode, index: int, digest: int, commit: int | None = None) -> PeerMessage:
    message = PeerMessage(term=leader.driver.core.term)
    message.heartbeat_request.commit_index = index if commit is None else commit
    message.heartbeat_request.digest_index = index
    message.heartbeat_request.digest = digest
    return seal(message)


def frames_message(leader: WorldNode, prev_index: int, *frames: bytes) -> PeerMessage:
    """An append of `frames` by `leader` after the entry `prev_index`."""
    message = PeerMessage(term=leader.driver.core.term)
    body = message.append_request
    body.prev_index = prev_index
    body.prev_term = leader.driver.core.term_at(Index(prev_index))
    body.frames = b"".join(frames)
    body.frames_size = len(body.frames)
    return seal(message)


def frame(
    leader: WorldNode, digest: int, kind: int = 2, time_ms: int = 2_000_000, count: int = 1
) -> bytes:
    """The frame of an entry behind what everybody holds."""
    last = leader.log.header_at(LAST)
    at = last.physical_offset + last.total_size
    head, _ = build_frame(
        kind, LAST + 1, leader.driver.core.term, at, time_ms, count, b"body", digest
    )
    return head + b"body"


def files_of(node: WorldNode) -> dict[Path, bytes]:
    """Whatever is on its disk."""
    return {path: node.disk.content(path) for path in node.disk.paths()}


def segment_of(node: WorldNode) -> Path:
    """The only file of its log."""
    return next(p for p in node.disk.paths() if p.parent.name == "commitlog")


def refuse(node: WorldNode, sender: NodeId, message: PeerMessage) -> None:
    """`node` refuses `message` and stays as it is."""
    before = node.driver.core.statistics(), node.frames(), files_of(node)
    with pytest.raises(InvalidMessage):
        node.driver.on_message(sender, message)
    node.turn()
    node.sync()
    assert (node.driver.core.statistics(), node.frames(), files_of(node)) == before
    assert node.failure is None


def test_message_with_a_wrong_checksum_is_dropped() -> None:
    """One flipped bit in the previous index of an append, or in a digest, changes nothing."""
    _, leader, follower = running()
    flipped = frames_message(leader, LAST, frame(leader, leader.log.digest_at(LAST)))
    flipped.append_request.prev_index ^= 4
    refuse(follower, leader.name, flipped)
    beat = heartbeat(leader, LAST, leader.log.digest_at(LAST))
    beat.heartbeat_request.digest ^= 1
    refuse(follower, leader.name, beat)
    assert follower.driver.statistics().messages_refused == 2
    assert follower.driver.statistics().contradictions == 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: m.ClearField("checksum"),
        lambda m: m.append_request.ClearField("frames"),
        lambda m: setattr(m.append_request, "frames", m.append_request.frames[:-1]),
        lambda m: setattr(m.append_request, "frames_size", 1),
    ],
)
def test_append_whose_bytes_are_not_those_that_were_sent_is_dropped(
    spoil: Callable[[PeerMessage], None],
) -> None:
    """Frames count by their length in the checksum, and each by its own CRC."""
    _, leader, follower = running()
    message = frames_message(leader, LAST, frame(leader, leader.log.digest_at(LAST)))
    spoil(message)
    refuse(follower, leader.name, message)


def test_second_hello_and_unknown_messages_are_refused() -> None:
    """Nothing but messages of the core comes after the Hello of a stream."""
    _, leader, follower = running()
    hello = PeerMessage()
    hello.hello.protocol_version = 2
    refuse(follower, leader.name, seal(hello))
    refuse(follower, leader.name, PeerMessage(term=1))
    vote = PeerMessage(term=9)
    vote.vote_request.reason = 7  # type: ignore[assignment]
    refuse(follower, leader.name, seal(vote))


@pytest.mark.parametrize(
    ("kind", "time_ms", "count"),
    [(2, 1 << 63, 1), (2, 253_402_300_800_000, 1), (1, 2_000_000, 1), (3, 2_000_000, 9)],
)
def test_headers_that_no_leader_stamps_are_refused(kind: int, time_ms: int, count: int) -> None:
    """A time behind the year 9999 would hold every later leader's clock there."""
    _, leader, follower = running()
    sent = frame(leader, leader.log.digest_at(LAST), kind, time_ms, count)
    refuse(follower, leader.name, frames_message(leader, LAST, sent))


def test_digest_of_what_is_not_committed_is_refused() -> None:
    """A heartbeat tells the digest at its commit index, or below it."""
    _, leader, follower = running()
    refuse(follower, leader.name, heartbeat(leader, LAST, 1, commit=LAST - 1))
    refuse(follower, leader.name, heartbeat(leader, 0, 1, commit=LAST - 1))


def test_differing_digest_raises_the_alarm_and_stops_nobody() -> None:
    """A committed index with another digest: one of the two replicas is wrong (ADR 6). This one
    reads its own log again, finds it as it always was, and goes on."""
    world, leader, follower = running()
    refuse(follower, leader.name, heartbeat(leader, LAST, 12345))
    assert follower.driver.statistics().contradictions == 1
    assert [type(event) for event in follower.events[-1:]] == [PeerContradicted]
    world.tick()
    verified = OwnLogVerified(Index(LAST), follower.log.digest_at(LAST))
    assert follower.events[-1:] == [verified]
    assert follower.failure is None
    leader.propose("later")
    world.settle()
    assert follower.log.last_index == LAST + 1


def test_replica_whose_own_files_differ_stops() -> None:
    """The look finds that the log isn't what the node has told of it: it must not go on."""
    world, leader, follower = running()
    before, at = follower.log.header_at(LAST - 1), follower.log.position_of(LAST)
    own = follower.log.read(LAST, LAST)
    body = bytes(reversed(own[HEADER_SIZE:]))
    head = build_frame(
        EntryKind.COMMAND, LAST, before.term, at, before.append_time_ms, 0, body, before.digest
    )[0]
    assert len(head + body) == len(own)
    follower.disk.spoil(segment_of(follower), at, head + body)
    refuse(follower, leader.name, heartbeat(leader, LAST, 12345))
    world.tick()
    assert type(follower.failure) is ReplicaDiverged


def test_frames_that_do_not_continue_the_log_are_refused() -> None:
    """Index, term and CRC fit, the digest shows that the sender's log is another one below."""
    _, leader, follower = running()
    refuse(follower, leader.name, frames_message(leader, LAST, frame(leader, 999)))
    assert follower.driver.statistics().contradictions == 1
    follower.driver.on_message(
        leader.name, frames_message(leader, LAST, frame(leader, leader.log.digest_at(LAST)))
    )
    assert follower.log.last_index == LAST + 1


def test_acknowledgement_beyond_the_log_does_not_stop_the_leader() -> None:
    """It is dropped, and the leader commits with those who say what can be."""
    world, leader, follower = running()
    message = PeerMessage(term=leader.driver.core.term)
    message.append_response.accepted = True
    message.append_response.match_index = 1 << 40
    refuse(leader, follower.name, seal(message))
    leader.propose("later")
    world.settle()
    assert leader.driver.core.commit_index == LAST + 1


def test_refusals_are_told_at_a_bounded_rate() -> None:
    """One event for each peer and kind in five seconds, with the number of those not told."""
    _, leader, follower = running()

    def lie() -> None:
        refuse(follower, leader.name, heartbeat(leader, 0, 1, commit=LAST - 1))

    def told() -> list[PeerMessageRefused]:
        return [e for e in follower.events if isinstance(e, PeerMessageRefused)]

    for _ in range(50):
        lie()
    assert [event.unreported for event in told()] == [0]
    refuse(follower, leader.name, heartbeat(leader, LAST, 12345))  # an alarm is another kind
    for _ in range(REPORT_EVERY_TICKS):
        follower.driver.tick()
    lie()
    assert [event.unreported for event in told()] == [0, 49]
    assert follower.driver.statistics().messages_refused == 52


def test_names_that_callers_choose_are_not_remembered_without_end() -> None:
    """Who is no member calls under any name, under many in turn: all of them share a line, and
    hide nothing of what a member says."""
    _, leader, follower = running()
    wrong = heartbeat(leader, 0, 1, commit=LAST - 1)
    told = len(follower.events)
    for number in range(1_000):
        refuse(follower, NodeId(f"stranger-{number}"), wrong)
    assert len(follower.events) == told + 1
    refuse(follower, leader.name, wrong)
    assert len(follower.events) == told + 2
    assert len(follower.driver._doubt._reports) == 2


def test_own_log_is_not_read_again_and_again() -> None:
    """A peer that contradicts at every heartbeat must not keep the disk busy."""
    world, leader, follower = running()

    def looks() -> int:
        return sum(isinstance(event, OwnLogVerified) for event in follower.events)

    for _ in range(20):
        refuse(follower, leader.name, heartbeat(leader, LAST, 12345))
        world.tick()
        world.settle()
    assert looks() == 1
    for _ in range(LOOK_EVERY_TICKS):
        follower.driver.tick()
    with pytest.raises(InvalidMessage):
        follower.driver.on_message(leader.name, heartbeat(leader, LAST, 12345))
    follower.driver.tick()
    assert looks() == 2
