"""The links of a node on sockets that only remember what they were told."""

from __future__ import annotations

from random import Random

import pytest

from dledger.checksum import seal
from dledger.core.types import NodeId
from dledger.errors import PeerRefused
from dledger.greeting import Identity
from dledger.links import LinkTimes, Why
from dledger.peers import Ears, LinkPace, PeerLinks
from dledger.wire.raft_pb2 import (
    AppendRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    KeepAlive,
    PeerMessage,
)

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")
TIMES = LinkTimes()
MOST_TURNS = 10_000
PING = seal(PeerMessage(keep_alive=KeepAlive()))
REQUEST = seal(PeerMessage(term=7, heartbeat_request=HeartbeatRequest()))
ANSWER = seal(PeerMessage(term=7, heartbeat_response=HeartbeatResponse()))


def hello(name: NodeId, to: NodeId = N1) -> PeerMessage:
    return Identity("g", name, 4096).hello(to)


class FakeSockets:
    """Calls that a test answers."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.wake_s: float | None = None
        self.dialed: list[tuple[NodeId, int]] = []
        self.sent: list[tuple[int, PeerMessage]] = []
        self.ended: list[tuple[int, Why]] = []
        self.has_room = True

    def now(self) -> float:
        return self.time_s

    def wake_at(self, time_s: float) -> None:
        self.wake_s = time_s

    def dial(self, peer: NodeId, generation: int) -> None:
        self.dialed.append((peer, generation))

    def send(self, generation: int, message: PeerMessage) -> bool:
        self.sent.append((generation, message))
        return self.has_room

    def end(self, peer: NodeId, generation: int, why: Why) -> None:
        self.ended.append((generation, why))


class Node:
    """n1, whose only peer is n2."""

    def __init__(self) -> None:
        self.sockets = FakeSockets()
        self.heard: list[tuple[NodeId, PeerMessage]] = []
        self.broken: list[NodeId] = []
        ears = Ears(lambda peer, message: self.heard.append((peer, message)), self.broken.append)
        identity = Identity("g", N1, 4096)
        self.links = PeerLinks(identity, [N2], ears, self.sockets, LinkPace(TIMES, Random(1)))

    def wait(self, seconds: float) -> None:
        """Time passes, and the links are woken when they want to be."""
        sockets = self.sockets
        until = sockets.time_s + seconds
        for _ in range(MOST_TURNS):
            if sockets.wake_s is None or sockets.wake_s > until:
                break
            sockets.time_s, sockets.wake_s = max(sockets.time_s, sockets.wake_s), None
            self.links.on_time()
        else:
            raise AssertionError("the links want to be woken again and again")
        sockets.time_s = until

    def rise(self) -> int:
        """The stream to n2 is up; its generation."""
        self.links.start()
        ((_, generation),) = self.sockets.dialed
        self.links.on_message(generation, hello(N2))
        return generation

    def called(self, *, speaks: bool = True) -> int:
        """n2 has called; the generation."""
        generation, answer = self.links.on_call(hello(N2))
        assert answer.hello.to_node_id == N2
        if speaks:
            self.links.on_message(generation, PING)
        return generation

    def sent_on(self, generation: int) -> list[PeerMessage]:
        return [message for each, message in self.sockets.sent if each == generation]


def test_a_dialed_stream_begins_with_hello_and_a_keep_alive() -> None:
    """The latter takes it into use at the other end."""
    node = Node()
    generation = node.rise()
    assert node.sent_on(generation) == [hello(N1, N2), PING]


def test_requests_go_out_on_the_stream_that_is_up_and_nowhere_else() -> None:
    """Before there is one they are dropped, and counted."""
    node = Node()
    node.links.send_request(N2, REQUEST)
    assert not node.sockets.sent
    generation = node.rise()
    node.links.send_request(N2, REQUEST)
    assert node.sent_on(generation)[-1] == REQUEST
    node.sockets.has_room = False
    node.links.send_request(N2, REQUEST)
    assert node.links.pictures()[N2].dropped == 2


def test_answers_go_out_on_every_stream_in_use() -> None:
    """So nobody mutes a stream by opening another; a mere Hello gets none."""
    node = Node()
    first, second = node.called(), node.called()
    silent = node.called(speaks=False)
    node.links.send_answer(N2, ANSWER)
    assert node.sent_on(first)[-1] == node.sent_on(second)[-1] == ANSWER
    assert ANSWER not in node.sent_on(silent)


def test_keep_alives_are_answered_where_they_came_from_and_delivered_to_nobody() -> None:
    """On the stream that a peer dialed; on our own they are the answer."""
    node = Node()
    accepted = node.called()
    assert node.sent_on(accepted) == [PING]
    dialed = node.rise()
    before = len(node.sockets.sent)
    node.links.on_message(dialed, PING)
    assert len(node.sockets.sent) == before
    assert not node.heard


def test_messages_are_delivered_with_the_name_of_their_peer() -> None:
    """From both directions, until their call is over."""
    node = Node()
    dialed, accepted = node.rise(), node.called()
    node.links.on_message(dialed, ANSWER)
    node.links.on_message(accepted, REQUEST)
    assert node.heard == [(N2, ANSWER), (N2, REQUEST)]
    node.links.on_ended(dialed)
    node.links.on_message(dialed, ANSWER)
    assert len(node.heard) == 2


def test_the_end_of_either_direction_is_told_once() -> None:
    """Whatever is said of it later."""
    node = Node()
    dialed, accepted = node.rise(), node.called()
    for _ in range(3):
        node.links.on_ended(dialed)
    assert node.broken == [N2]
    for _ in range(3):
        node.links.on_ended(accepted)
    assert node.broken == [N2, N2]


def test_a_late_end_of_an_older_call_leaves_the_newer_alone() -> None:
    """The link was lost, dialed anew and is up; then the first call's end arrives again."""
    node = Node()
    first = node.rise()
    node.links.on_ended(first)
    node.wait(0.1)
    second = node.sockets.dialed[-1][1]
    node.links.on_message(second, hello(N2))
    node.links.on_ended(first)
    assert node.broken == [N2]
    node.links.send_request(N2, REQUEST)
    assert node.sent_on(second)[-1] == REQUEST


def test_a_stream_into_use_is_a_sign_of_life() -> None:
    """While a dialed attempt backs off, the peer calls: it is dialed at once."""
    node = Node()
    node.links.start()
    for _ in range(6):
        node.links.on_ended(node.sockets.dialed[-1][1])
        node.wait(0.5)
    node.links.on_ended(node.sockets.dialed[-1][1])
    dialed = len(node.sockets.dialed)
    node.called()
    node.wait(TIMES.back_off_min_s)
    assert len(node.sockets.dialed) == dialed + 1


@pytest.mark.parametrize(
    ("answer", "named"),
    [(hello(N3), "n3"), (hello(N2, N3), "addressed node"), (ANSWER, "something else")],
)
def test_whoever_answers_wrongly_is_refused(answer: PeerMessage, named: str) -> None:
    """And dialed again two seconds later; nothing was broken."""
    node = Node()
    node.links.start()
    ((_, generation),) = node.sockets.dialed
    with pytest.raises(PeerRefused, match=named):
        node.links.on_message(generation, answer)
    node.links.on_ended(generation, refused=True)
    node.wait(TIMES.refused_s / 2 - 0.1)
    assert len(node.sockets.dialed) == 1
    node.wait(TIMES.refused_s)
    assert len(node.sockets.dialed) > 1
    assert not node.broken


def test_whoever_calls_wrongly_is_refused() -> None:
    """Strangers, and who begins with something else than a Hello."""
    node = Node()
    with pytest.raises(PeerRefused, match="n3"):
        node.links.on_call(hello(N3))
    with pytest.raises(PeerRefused, match="must be a Hello"):
        node.links.on_call(REQUEST)


def test_a_process_that_slept_renews_nothing() -> None:
    """It is woken minutes late; its peer has been there all the time."""
    node = Node()
    generation = node.rise()
    node.links.on_message(generation, PING)
    node.sockets.time_s += 120
    node.links.on_time()
    assert node.sockets.ended == []
    node.links.on_message(generation, PING)
    assert node.links.pictures()[N2].connected


def test_a_level_counts_while_who_said_it_is_heard() -> None:
    """Asked for one peer at each tick, it is what the picture of all says: nothing of a stream
    that has fallen silent, and nothing of strangers."""
    node = Node()
    generation = node.rise()
    node.links.on_message(generation, PING)
    said = node.links.level_of(N2)
    assert said == node.links.pictures()[N2].level > 0
    node.sockets.time_s += TIMES.silence_s * 1.01
    assert node.links.level_of(N2) == node.links.pictures()[N2].level == 0
    assert node.links.level_of(NodeId("n9")) == 0


def test_a_large_append_has_the_time_that_it_takes() -> None:
    """Its size counts, as the link learns from what is sent."""
    node = Node()
    generation = node.rise()
    node.links.on_message(generation, PING)
    frames = AppendRequest(frames=bytes(4 << 20), frames_size=4 << 20)
    large = seal(PeerMessage(append_request=frames))
    node.links.send_request(N2, large)
    node.wait(TIMES.silence_s + 1.0)
    assert node.sockets.ended == []


def test_after_a_stop_nobody_is_told_of_anything() -> None:
    """Every call is ended, a new one is turned away."""
    node = Node()
    dialed, accepted = node.rise(), node.called()
    node.links.stop()
    assert node.sockets.ended == [(accepted, Why.STOPPED), (dialed, Why.STOPPED)]
    node.links.on_ended(dialed)
    node.links.on_message(accepted, REQUEST)
    node.wait(10)
    assert not node.broken
    assert not node.heard
    with pytest.raises(PeerRefused, match="stopping"):
        node.called()


def test_a_keep_alive_with_a_flipped_bit_is_not_answered() -> None:
    """It goes where every message goes that isn't intact: to who refuses it and counts it."""
    node = Node()
    accepted = node.called()
    before = len(node.sockets.sent)
    flipped = PeerMessage(keep_alive=KeepAlive(), checksum=PING.checksum ^ 1)
    node.links.on_message(accepted, flipped)
    assert len(node.sockets.sent) == before
    assert node.heard == [(N2, flipped)]
