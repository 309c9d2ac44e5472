"""Who is dialed and heard as members come and go (ADR 41)."""

from __future__ import annotations

import pytest

from dledger.core.types import ConfigurationPlace, DiskId, Index, NodeId, Term
from dledger.errors import PeerRefused
from dledger.greeting import Identity
from dledger.peers import MAX_STRANGERS
from dledger.promises import Start
from dledger.wire.raft_pb2 import PeerMessage
from tests.links.test_peers import N1, N2, PING, Node

N3 = NodeId("n3")
FIRST, LATER = ConfigurationPlace(Term(1), Index(1)), ConfigurationPlace(Term(2), Index(9))
BOTH = {N2: "10.0.0.2:7001", N3: "10.0.0.3:7001"}


def hello(name: NodeId, place: ConfigurationPlace = FIRST) -> PeerMessage:
    return Identity("g", name, 4096, DiskId(name.encode().ljust(16, b"-")), Start(1)).hello(
        N1, place
    )


def told(*, is_known: bool = True, members: dict[NodeId, str]) -> Node:
    node = Node()
    node.links.start()
    node.links.know(FIRST, {}, is_known=is_known, members=members)
    return node


def test_who_becomes_a_member_is_dialed() -> None:
    node = told(members=BOTH)
    assert [peer for peer, _ in node.sockets.dialed] == [N2, N3]
    assert set(node.links.pictures()) == {N2, N3}
    node.links.on_call(hello(N3))


def test_who_is_a_member_no_more_is_neither_dialed_nor_heard() -> None:
    """Its calls end, and another is refused by name."""
    node = told(members=BOTH)
    generation, _ = node.links.on_call(hello(N3))
    node.links.on_message(generation, PING)
    node.links.know(LATER, {}, is_known=True, members={N2: ""})
    assert generation in [each for each, _ in node.sockets.ended]
    assert set(node.links.pictures()) == {N2}
    with pytest.raises(PeerRefused, match="'n3' is not a peer of 'n1'"):
        node.links.on_call(hello(N3))
    dials = len(node.sockets.dialed)
    node.wait(20)
    assert N3 not in [peer for peer, _ in node.sockets.dialed[dials:]]
    node.links.send_request(N3, PING)
    node.links.send_answer(N3, PING)


def test_a_leader_that_is_a_member_no_more_is_heard_until_it_hangs_up() -> None:
    """The last that it says is who shall lead, and an answer tells it that somebody does. It isn't
    dialed any more, and once it has hung up it isn't heard either."""
    node = told(members=BOTH)
    generation, _ = node.links.on_call(hello(N3))
    node.links.know(LATER, {}, is_known=True, members={N2: ""}, leader=N3)
    assert set(node.links.pictures()) == {N2}
    node.links.on_message(generation, PING)
    node.links.on_message(generation, PeerMessage(term=3))
    assert node.heard[-1][0] == N3
    node.links.know(LATER, {}, is_known=True, members={N2: ""}, leader=N2)
    assert generation not in [each for each, _ in node.sockets.ended]
    dials = len(node.sockets.dialed)
    node.links.on_ended(generation)
    node.wait(20)
    assert N3 not in [peer for peer, _ in node.sockets.dialed[dials:]]
    with pytest.raises(PeerRefused, match="'n3' is not a peer of 'n1'"):
        node.links.on_call(hello(N3))


def test_a_leader_that_comes_back_and_goes_as_a_follower_is_heard_no_more() -> None:
    node = told(members=BOTH)
    generation, _ = node.links.on_call(hello(N3))
    node.links.know(LATER, {}, is_known=True, members={N2: ""}, leader=N3)
    node.links.know(LATER, {}, is_known=True, members=BOTH, leader=N2)
    assert generation not in [each for each, _ in node.sockets.ended]
    node.links.know(LATER, {}, is_known=True, members={N2: ""}, leader=N2)
    assert generation in [each for each, _ in node.sockets.ended]


def test_who_comes_back_is_dialed_again() -> None:
    node = told(members={N2: ""})
    node.links.know(LATER, {}, is_known=True, members=BOTH)
    node.links.know(LATER, {}, is_known=True, members={N2: ""})
    dials = len(node.sockets.dialed)
    node.links.know(LATER, {}, is_known=True, members=BOTH)
    assert [peer for peer, _ in node.sockets.dialed[dials:]] == [N3]


def test_who_catches_up_forgets_nobody() -> None:
    """What it reads of members is the past."""
    node = told(is_known=False, members={N3: ""})
    assert set(node.links.pictures()) == {N2, N3}


def test_a_stranger_who_knows_more_is_heard_and_not_dialed() -> None:
    """It may lead by a configuration that is still to come. Nobody asks what it promises."""
    node = told(members={N2: ""})
    dials = len(node.sockets.dialed)
    generation, _ = node.links.on_call(hello(N3, LATER))
    node.links.on_message(generation, PING)
    node.links.on_message(generation, PeerMessage(term=3))
    assert node.heard[-1][0] == N3
    assert N3 not in node.links.pictures()
    assert N3 not in node.links.promises()
    node.wait(0.5)
    assert N3 not in [peer for peer, _ in node.sockets.dialed[dials:]]
    # It stays while this node's configuration moves on, and is dialed once that names it.
    node.links.know(ConfigurationPlace(Term(1), Index(5)), {}, is_known=True, members={N2: ""})
    assert generation not in [each for each, _ in node.sockets.ended]
    node.links.know(LATER, {}, is_known=True, members=BOTH)
    assert N3 in [peer for peer, _ in node.sockets.dialed[dials:]]


def test_strangers_are_few() -> None:
    node = told(members={N2: ""})
    for number in range(MAX_STRANGERS):
        node.links.on_call(hello(NodeId(f"s{number}"), LATER))
    with pytest.raises(PeerRefused):
        node.links.on_call(hello(NodeId("one-more"), LATER))
    generation, _ = node.links.on_call(hello(NodeId("s0"), LATER))
    for each in range(1, generation + 1):
        node.links.on_ended(each)
    node.links.on_call(hello(NodeId("one-more"), LATER))
