"""The network between nodes: what is said arrives late, twice, in another order, or never.

This owns the links: which are cut, how long a message takes, and the streams that break. Two
tempers: a link is a stream, as in production (in order, all or nothing until it breaks), or it
loses, repeats and reorders single messages, which Raft has to bear all the same. Messages
travel as the objects that the driver built; their bytes go into the trace. Some arrive with a
flipped bit, some are lies of their sender (`chaos.sim.lies`): what the receiver makes of them is
judged by `judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import permutations
from random import Random

from chaos.sim.lies import garble, lie
from chaos.sim.timeline import Actor, Timeline
from dledger.core.types import NodeId
from dledger.wire.raft_pb2 import PeerMessage

Link = tuple[NodeId, NodeId]
Receive = Callable[[NodeId, PeerMessage], bool]  # False: it was refused, and changed nothing

LIE_SHARE = 0.3  # of what a liar says


@dataclass(frozen=True, slots=True)
class Weather:
    """How links behave. Probabilities are per message, delays microseconds."""

    delay_us: int = 150
    jitter_us: int = 100
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    spikes: float = 0.0
    spike_us: int = 100_000


FAIR = Weather()


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message on its way. `message` None: its bytes are none any more."""

    message: PeerMessage | None
    is_garbled: bool = False
    is_lie: bool = False


@dataclass(frozen=True, slots=True)
class Garbling:
    """So many of all messages have a bit flipped, while it lasts."""

    share: float
    chance: Random


class Network:
    """Every directed link between nodes. `endpoints` tells who listens at a name, if anyone."""

    def __init__(self, timeline: Timeline, random: Random, weather: Weather) -> None:
        self.weather = weather
        self.cut: set[Link] = set()
        self.endpoints: dict[NodeId, tuple[Actor, Receive]] = {}
        self.delivered = self.dropped = 0
        self.lies = 0  # told so far
        self.garbling: Garbling | None = None
        self.liars: dict[NodeId, Random] = {}
        self.judge: Callable[[Link, Parcel, bool], None] = lambda link, parcel, is_taken: None
        self._timeline = timeline
        self._random = random
        self._last_arrival: dict[tuple[NodeId, NodeId, bool], int] = {}
        self._epochs: dict[Link, int] = {}

    def send(self, source: NodeId, target: NodeId, message: PeerMessage, *, answer: bool) -> None:
        """`message` is under way, or lost."""
        self._timeline.note(message.SerializeToString())
        endpoint = self.endpoints.get(target)
        weather, random = self.weather, self._random
        if endpoint is None or (source, target) in self.cut:
            self.dropped += 1
            return
        if weather.loss and random.random() < weather.loss:
            self.dropped += 1
            return
        parcel = self._wrap(source, message)
        self._carry((source, target), parcel, answer, endpoint)
        if weather.duplication and random.random() < weather.duplication:
            self._carry((source, target), parcel, answer, endpoint)

    def _wrap(self, source: NodeId, message: PeerMessage) -> Parcel:
        """`message`, or what becomes of it."""
        liar, garbling = self.liars.get(source), self.garbling
        if liar is not None and liar.random() < LIE_SHARE:
            self.lies += 1
            return Parcel(lie(message, liar), is_lie=True)
        if garbling is not None and garbling.chance.random() < garbling.share:
            arrived = garble(message, garbling.chance)
            # A flipped bit may change nothing: true is written as any number but 0.
            return Parcel(arrived, is_garbled=arrived != message)
        return Parcel(message)

    def break_streams(self, one: NodeId, other: NodeId) -> None:
        """What is under way between the two is lost."""
        for link in ((one, other), (other, one)):
            self._epochs[link] = self._epochs.get(link, 0) + 1

    def delay(self) -> int:
        """How long a message takes now, microseconds."""
        weather, random = self.weather, self._random
        if weather.spikes and random.random() < weather.spikes:
            return int(random.random() * weather.spike_us)
        return weather.delay_us + int(random.random() * weather.jitter_us)

    def heal(self, weather: Weather) -> None:
        """Every link works, and behaves as `weather` says."""
        self.cut.clear()
        self.weather = weather
        self.garbling = None
        self.liars.clear()

    def _carry(
        self, link: Link, parcel: Parcel, answer: bool, endpoint: tuple[Actor, Receive]
    ) -> None:
        arrival = self._timeline.now + self.delay()
        if not self.weather.reordering or self._random.random() >= self.weather.reordering:
            key = (*link, answer)
            arrival = max(arrival, self._last_arrival.get(key, 0))
            self._last_arrival[key] = arrival
        epoch = self._epochs.get(link, 0)
        actor, receive = endpoint
        self._timeline.at(arrival, actor, self._arrive, link, epoch, receive, parcel)

    def _arrive(self, link: Link, epoch: int, receive: Receive, parcel: Parcel) -> None:
        if link in self.cut or epoch != self._epochs.get(link, 0):
            self.dropped += 1
            return
        self.delivered += 1
        is_taken = parcel.message is not None and receive(link[0], parcel.message)
        self.judge(link, parcel, is_taken)


# --- shapes of partitions: which links to cut ---------------------------------------------------


def between(one: Iterable[NodeId], other: Iterable[NodeId]) -> list[Link]:
    """No message from one side to the other, in either direction."""
    sides = list(one), list(other)
    return [link for a in sides[0] for b in sides[1] if a != b for link in ((a, b), (b, a))]


def ring(members: list[NodeId]) -> list[Link]:
    """Each node reaches its two neighbours only: everybody sees a majority, no two the same
    (for three nodes, one link is cut)."""
    count = len(members)
    if count == 3:
        return between(members[:1], members[1:2])
    return [
        (a, b)
        for (i, a), (j, b) in permutations(enumerate(members), 2)
        if (i - j) % count not in (1, count - 1)
    ]


def bridge(members: list[NodeId]) -> list[Link]:
    """Two halves that only the first of `members` reaches."""
    rest = members[1:]
    middle = len(rest) // 2
    return between(rest[:middle], rest[middle:])


def one_way(victim: NodeId, others: Iterable[NodeId], *, sends: bool) -> list[Link]:
    """`victim` can send and hears nothing, or hears and can't send."""
    return [(other, victim) if sends else (victim, other) for other in others]
