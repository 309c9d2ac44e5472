"""Which disk a peer speaks from: unknown ones, the past of known ones, and the end of a stream."""

from __future__ import annotations

import pytest

from dledger.checksum import seal
from dledger.core.types import ConfigurationPlace, DiskId, Index, NodeId, Term
from dledger.errors import InvalidMessage, OlderCopy, UnknownDisk
from dledger.greeting import Identity, KnownDisks, Speaker
from dledger.promises import Start
from dledger.wire.raft_pb2 import (
    AppendResponse,
    HeartbeatResponse,
    PeerMessage,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from tests.links.test_peers import N1, N2, Node

OLD, NEW = DiskId(b"o" * 16), DiskId(b"n" * 16)
FIRST, LATER = ConfigurationPlace(Term(1), Index(1)), ConfigurationPlace(Term(2), Index(9))


def speaker(
    disk: DiskId, boot: int = 1, nonce: int = 1, place: ConfigurationPlace = FIRST
) -> Speaker:
    return Speaker(disk, Start(boot, nonce), place)


@pytest.mark.parametrize("answers", [True, False])
def test_a_disk_that_is_not_named_is_refused_with_what_to_do(*, answers: bool) -> None:
    known = KnownDisks(FIRST, {N2: OLD})
    assert known.refusal_of(N2, speaker(OLD), answers=answers) is None
    refusal = known.refusal_of(N2, speaker(NEW), answers=answers)
    assert isinstance(refusal, UnknownDisk)
    assert "group replace n2" in str(refusal)


def test_requests_of_who_knows_more_are_heard_and_never_its_answers() -> None:
    """A new disk that leads is the only one to tell of itself; what it grants doesn't count here
    until this node's own log names it."""
    known = KnownDisks(FIRST, {N2: OLD})
    assert known.refusal_of(N2, speaker(NEW, place=LATER), answers=False) is None
    assert known.refusal_of(N2, speaker(NEW, place=LATER), answers=True) is not None


def test_who_catches_up_hears_everybody() -> None:
    """What it reads about disks is the past."""
    known = KnownDisks(FIRST, {N2: OLD}, is_known=False)
    assert known.refusal_of(N2, speaker(NEW), answers=True) is None


@pytest.mark.parametrize(("boot", "nonce"), [(3, 1), (4, 2)], ids=["an earlier", "a twin"])
def test_a_start_from_the_past_of_a_disk_is_refused(boot: int, nonce: int) -> None:
    """An older copy of the directory was put back, or two of it run."""
    known = KnownDisks(FIRST, {N2: OLD})
    known.heard(N2, speaker(OLD, 4, 1), answers=True)
    known.heard(N2, speaker(OLD, 4, 1), answers=True)
    with pytest.raises(OlderCopy, match="group replace n2"):
        known.heard(N2, speaker(OLD, boot, nonce), answers=True)
    known.heard(N2, speaker(OLD, 5, 7), answers=True)
    known.heard(N2, speaker(NEW, 1, 1), answers=True)


def hello(disk: DiskId) -> Identity:
    return Identity("g", N2, 4096, disk, Start(1))


def test_streams_end_in_the_turn_in_which_a_disk_is_replaced() -> None:
    """Before another message of the lost disk is taken, and nobody is called back meanwhile."""
    node = Node()
    node.links.know(FIRST, {N2: OLD}, is_known=True)
    generation, _ = node.links.on_call(hello(OLD).hello(N1, FIRST))
    with pytest.raises(UnknownDisk):
        node.links.on_call(hello(NEW).hello(N1, FIRST))
    assert node.links.strangers[UnknownDisk] == 1
    node.links.know(LATER, {N2: NEW}, is_known=True)
    assert generation not in node.links._calls
    node.links.on_call(hello(NEW).hello(N1, FIRST))
    with pytest.raises(UnknownDisk):
        node.links.on_call(hello(OLD).hello(N1, FIRST))


def test_a_hello_tells_the_place_of_the_configuration() -> None:
    node = Node()
    node.links.know(LATER, {NodeId("n2"): OLD}, is_known=True)
    _, answer = node.links.on_call(hello(OLD).hello(N1, FIRST))
    told = (answer.hello.configuration_term, answer.hello.configuration_index)
    assert told == tuple(LATER)


@pytest.mark.parametrize(
    "answer",
    [
        PeerMessage(term=7, pre_vote_response=PreVoteResponse(granted=True)),
        PeerMessage(term=7, vote_response=VoteResponse(granted=True)),
        PeerMessage(term=7, append_response=AppendResponse(accepted=True, match_index=9)),
        PeerMessage(term=7, heartbeat_response=HeartbeatResponse()),
    ],
    ids=["pre-vote", "vote", "append", "heartbeat"],
)
def test_nobody_answers_on_a_stream_that_it_has_dialed(answer: PeerMessage) -> None:
    """There another disk is heard than the one that is named, if it says that it knows a later
    configuration: its requests are, and its vote must not count in the name of the lost one."""
    node = Node()
    node.links.know(FIRST, {N2: OLD}, is_known=True)
    generation, _ = node.links.on_call(hello(NEW).hello(N1, LATER))
    with pytest.raises(InvalidMessage, match="n2 answers on the stream"):
        node.links.on_message(generation, seal(answer))
    assert not node.heard
    asked = seal(PeerMessage(term=7, vote_request=VoteRequest()))
    node.links.on_message(generation, asked)
    assert node.heard == [(N2, asked)]
