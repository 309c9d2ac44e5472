"""What a leader says of who is a member: nothing that a later start couldn't read, or that peers of
who took it would refuse for ever."""

from __future__ import annotations

from typing import Final

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dledger.checksum import seal
from dledger.codec import decode_configuration, decode_message
from dledger.core.admission import wrong_base
from dledger.core.types import ConfigurationPlace, EntryKind, Index, LogBase, NodeId, Term
from dledger.errors import InvalidMessage
from dledger.greeting import Identity
from dledger.limits import MAX_CONFIGURATION_TAKEN_BYTES
from dledger.reading.entry import build_frame
from dledger.wire.raft_pb2 import (
    AppendRequest,
    Configuration,
    GroupEpoch,
    Member,
    PeerMessage,
    Recovery,
)
from dledger.wire.raft_pb2 import SnapshotOffer as WireOffer
from store.atomic_file import MAX_ATOMIC_BYTES
from store.starting.opening import start_of
from tests.node.world import World, WorldNode
from tests.scale import examples

DISKS: Final = {f"n{number}": bytes([number]) * 16 for number in range(1, 4)}
ID: Final = b"r" * 16


def three(**fields: object) -> Configuration:
    """Of n1, n2 and n3, with these fields besides."""
    members = [Member(node_id=name, disk_id=disk) for name, disk in DISKS.items()]
    told = Configuration(voters=DISKS, members=members)
    told.MergeFrom(Configuration(**fields))  # type: ignore[arg-type]
    return told


LONG: Final = three(voters=["x" * 256])
HUGE: Final = three(members=[Member(node_id="n1", address="a" * 70_000)])
MANY: Final = three(learners=[f"m{number}" for number in range(20_000)])
NO_EPOCH: Final = three(epoch=GroupEpoch(recoveries=[b"short"], last=Recovery(survivor="n1")))
TWICE: Final = three(epoch=GroupEpoch(recoveries=[ID, ID], last=Recovery(survivor="n1")))
GIVEN_UP: Final = three(
    epoch=GroupEpoch(
        recoveries=[ID], last=Recovery(given_up=[Member(node_id="x" * 70_000, disk_id=ID)])
    )
)
EACH: Final = {
    "a long name": LONG,
    "a huge address": HUGE,
    "too many": MANY,
    "no epoch": NO_EPOCH,
    "an epoch twice": TWICE,
    "a huge name, given up": GIVEN_UP,
}


def append_of(follower: WorldNode, leader: WorldNode, told: Message) -> PeerMessage:
    """The leader's next append to the follower: one entry, this configuration."""
    log, term = follower.log, leader.driver.core.term
    body = told.SerializeToString()
    index, previous = log.last_index + 1, log.digest_at(log.last_index)
    size = leader.driver.core.options.noop_size + len(body)
    where = log.next_position(size)
    kind, time_ms = EntryKind.CONFIGURATION, 1 << 42
    head, _ = build_frame(kind, index, term, where, time_ms, 0, body, previous)
    frames = head + body
    request = AppendRequest(
        prev_index=log.last_index,
        prev_term=follower.driver.core.term_at(Index(log.last_index)),
        frames=frames,
        frames_size=len(frames),
    )
    return seal(PeerMessage(term=term, append_request=request))


@pytest.mark.parametrize("told", EACH.values(), ids=EACH)
def test_a_configuration_that_no_group_has_is_not_taken(told: Configuration) -> None:
    """Not into the log: a note with it couldn't be read by the start that comes after."""
    world = World()
    leader = world.elect()
    world.settle()
    follower = world.others(leader.name)[0]
    before = follower.frames()
    with pytest.raises(InvalidMessage):
        follower.driver.on_message(leader.name, append_of(follower, leader, told))
    assert follower.frames() == before
    assert follower.failure is None
    follower.driver.on_message(leader.name, append_of(follower, leader, three()))
    assert len(follower.frames()) > len(before)


@pytest.mark.parametrize("told", EACH.values(), ids=EACH)
def test_nor_is_a_state_offered_under_it(told: Configuration) -> None:
    offer = WireOffer(index=9, index_term=1, end_offset=99, configuration_index=1)
    offer.configuration_term, offer.configuration = 1, told.SerializeToString()
    message = PeerMessage(term=1, snapshot_offer=offer)
    try:
        taken = decode_message(message, NodeId("n1"), NodeId("n2"))
    except ValueError:
        return
    assert wrong_base(taken.base, Term(1)) is not None  # type: ignore[union-attr]


NAMES = st.one_of(st.sampled_from(["", "n1", "n2", "n3", "x" * 256]), st.text(max_size=300))
BYTES = st.one_of(st.just(ID), st.binary(max_size=20))
MEMBERS = st.builds(
    Member, node_id=NAMES, disk_id=BYTES, address=st.one_of(NAMES, st.just("a" * 40_000))
)
EPOCHS = st.builds(
    GroupEpoch,
    recoveries=st.lists(BYTES, max_size=3),
    last=st.builds(Recovery, survivor=NAMES, given_up=st.lists(MEMBERS, max_size=2)),
)
CONFIGURATIONS = st.builds(
    Configuration,
    voters=st.lists(NAMES, max_size=4),
    voters_outgoing=st.lists(NAMES, max_size=2),
    learners=st.lists(NAMES, max_size=3),
    observers=st.lists(NAMES, max_size=2),
    members=st.lists(MEMBERS, max_size=4),
    preferred=NAMES,
    epoch=EPOCHS,
)


@settings(
    max_examples=examples(300),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(told=CONFIGURATIONS)
@example(told=GIVEN_UP)
@example(told=three())
def test_what_is_taken_can_be_noted_and_greeted_with(told: Configuration) -> None:
    """Whatever is said: the note of a log that begins behind it is read again, and a Hello in its
    epoch is one to everybody."""
    body = told.SerializeToString()
    if len(body) > MAX_CONFIGURATION_TAKEN_BYTES:
        return
    place = ConfigurationPlace(Term(1), Index(1))
    base = LogBase(Index(1), Term(1), 0, 0, 99, place, decode_configuration(told))
    if wrong_base(base, Term(1)) is not None or base.configuration is None:
        return
    assert len(start_of(base).encode()) < MAX_ATOMIC_BYTES
    recoveries = base.configuration.epoch.recoveries
    hello = Identity("g", NodeId("n1"), 4096).hello(NodeId("n2"), place, recoveries)
    assert Identity("g", NodeId("n2"), 4096).check(hello) == "n1"
