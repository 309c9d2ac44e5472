"""The network between nodes: connections over which what is said arrives late, or never.

This owns the directed links between processes, which of them are cut, how long a message takes, and
the connections that run over them, as TCP makes them: what a cut link swallows is sent again after
pauses that double, so the end of a cut is noticed late; a connection may be reset, or be dead
without a word; one to a process that is gone is reset by its machine. Two tempers: messages of a
connection arrive in order and all of them until it breaks, as in production, or single ones are
lost, repeated and reordered, which Raft has to bear all the same. Messages travel as the objects
that the driver built; their bytes go into the trace. Some arrive with a flipped bit, some are lies
of their sender (`chaos.sim.lies`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations
from random import Random

from chaos.sim.lies import garble, lie
from chaos.sim.rpc_limits import check_size
from chaos.sim.timeline import Actor, Timeline
from chaos.sim.told_lies import ToldLies
from dledger.core.types import NodeId
from dledger.wire.raft_pb2 import PeerMessage

RETRANSMISSION_US = 200_000  # the first pause of a connection; each next one is twice as long
CONNECT_AGAIN_US = 1_000_000  # the first pause of one that is being made
LONGEST_PAUSE_US = 120_000_000
MAX_STUCK = 4_096  # messages that a connection holds while its link is cut

LIE_SHARE = 0.3  # of what a liar says

Link = tuple[NodeId, NodeId]


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

    @property
    def is_orderly(self) -> bool:
        """Whether connections keep what they promise."""
        return not (self.loss or self.duplication or self.reordering)


FAIR = Weather()


@dataclass(frozen=True, slots=True)
class Garbling:
    """So many of all messages have a bit flipped when they arrive, while it lasts."""

    share: float
    chance: Random


def _nobody_hears(_: PeerMessage) -> None:
    return None


def _nobody_cares() -> None:
    return None


class End:
    """One process's end of a connection, and the way from there to the other end.

    Whoever has it sets `on_message` and `on_closed`; neither is called after `close`.
    """

    __slots__ = (
        "actor",
        "far",
        "here",
        "is_caller",
        "is_lost",
        "is_open",
        "last_arrival",
        "network",
        "on_closed",
        "on_message",
        "stuck",
        "there",
    )

    def __init__(self, network: Network, actor: Actor, here: NodeId, there: NodeId) -> None:
        self.network = network
        self.actor = actor
        self.here = here
        self.there = there
        self.far: End | None = None  # until it is connected
        self.is_open = True
        self.is_caller = False  # the connection was made from here
        self.is_lost = False  # what is sent from here vanishes, and nobody is told
        self.last_arrival = 0
        self.stuck: list[PeerMessage | None] = []  # to be sent (again); None is the end
        self.on_message: Callable[[PeerMessage], None] = _nobody_hears
        self.on_closed: Callable[[], None] = _nobody_cares

    def send(self, message: PeerMessage) -> bool:
        """`message` is under way, or lost; False: there is no room, or no connection any more."""
        if not self.is_open or len(self.stuck) >= MAX_STUCK:
            return False
        self.network.carry(self, message)
        return True

    def close(self) -> None:
        """This end is closed; the other one learns of it as it learns of anything."""
        if self.is_open:
            self.is_open = False
            self.network.forget(self)
            self.network.carry(self, None)

    def shut(self) -> None:
        """Its process learns that the connection is over."""
        if self.is_open:
            self.is_open = False
            self.network.forget(self)
            self.on_closed()


Accept = Callable[[End], None]


class Network:
    """Every directed link between nodes. `listen` tells who takes connections at a name."""

    def __init__(
        self, timeline: Timeline, random: Random, weather: Weather, members: Iterable[NodeId]
    ) -> None:
        self.members = tuple(members)
        self.weather = weather
        self.cut: set[Link] = set()
        self.delivered = self.dropped = 0
        self.lies = ToldLies(lambda: timeline.now)
        self.liars: dict[NodeId, Random] = {}
        self.garbling: Garbling | None = None
        self.is_garbled = False  # the message that is being delivered
        self.connecting_us = 0  # connecting takes up to so much longer
        self._timeline = timeline
        self._random = random
        self._kernel = Actor("network", 98)  # it goes on when processes pause and die
        self._listeners: dict[NodeId, tuple[Actor, Accept]] = {}
        self._ends: dict[End, None] = {}  # that are open, the oldest first
        self._unreaching: set[NodeId] = set()  # whose calls reach nobody

    def others(self, name: NodeId) -> list[NodeId]:
        """The peers of `name`."""
        return [each for each in self.members if each != name]

    # --- connections -------------------------------------------------------------------------

    def listen(self, name: NodeId, actor: Actor, accept: Accept) -> None:
        """`accept` gets an end of every connection that is made to `name` from now on."""
        self._listeners[name] = (actor, accept)

    def connect(self, actor: Actor, here: NodeId, there: NodeId) -> End:
        """An end of a connection that is being made. What is sent now goes out when it is."""
        end = End(self, actor, here, there)
        end.is_caller = True
        self._ends[end] = None
        pause = int(self._random.random() * self.connecting_us) if self.connecting_us else 0
        delay = self.delay() + pause
        self._timeline.after(delay, self._kernel, self._knock, end, CONNECT_AGAIN_US)
        return end

    def _knock(self, end: End, pause_us: int) -> None:
        """A request to connect arrives, unless it gets lost: a handshake needs both directions."""
        if not end.is_open:
            return
        is_cut = (end.here, end.there) in self.cut or (end.there, end.here) in self.cut
        if is_cut or end.here in self._unreaching:
            self._timeline.after(pause_us, self._kernel, self._knock, end, 2 * pause_us)
            return
        delay = self.delay()
        listener = self._listeners.get(end.there)
        if listener is None:
            self._timeline.after(delay, end.actor, end.shut)
            return
        actor, accept = listener
        far = End(self, actor, end.there, end.here)
        self._ends[far] = None
        far.far, end.far = end, far
        self._timeline.after(0, actor, accept, far)
        self._timeline.after(delay, self._kernel, self._release, end)

    def forget(self, end: End) -> None:
        """`end` is no longer open."""
        self._ends.pop(end, None)

    def on_process_gone(self, name: NodeId) -> None:
        """Its machine closes what it had open."""
        self._listeners.pop(name, None)
        for end in [each for each in self._ends if each.here == name]:
            end.on_message, end.on_closed = _nobody_hears, _nobody_cares
            end.close()

    # --- faults ------------------------------------------------------------------------------

    def reset(self, one: NodeId, other: NodeId) -> None:
        """Connections between the two are over and what is under way is lost; each end that the
        network reaches notices."""
        for end in self._between(one, other):
            end.is_lost = True
            if (end.there, end.here) not in self.cut:
                self._timeline.after(self.delay(), end.actor, end.shut)

    def give_up(self, here: NodeId, there: NodeId) -> None:
        """The machine of `here` gives up its connections with `there`, and `there` isn't told."""
        for end in self._between(here, there):
            end.is_lost = True
            if end.here == here:
                self._timeline.after(0, end.actor, end.shut)

    def forbid_calls(self, name: NodeId) -> None:
        """From now on the calls of `name` reach nobody, and those that it has made are over; it can
        still be called."""
        self._unreaching.add(name)
        for end in [each for each in self._ends if each.is_caller and each.here == name]:
            for each in (end, end.far):
                if each is not None:
                    each.is_lost = True
                    self._timeline.after(self.delay(), each.actor, each.shut)

    def allow_calls(self, name: NodeId) -> None:
        """They do again."""
        self._unreaching.discard(name)

    def mute(self, one: NodeId, other: NodeId) -> None:
        """Connections between the two carry nothing any more, and nobody notices; new ones work."""
        for end in self._between(one, other):
            end.is_lost = True

    def _between(self, one: NodeId, other: NodeId) -> Iterator[End]:
        pair = {one, other}
        return (each for each in list(self._ends) if each.far and {each.here, each.there} == pair)

    def delay(self) -> int:
        """How long a message takes now, microseconds."""
        weather, random = self.weather, self._random
        if weather.spikes and random.random() < weather.spikes:
            return int(random.random() * weather.spike_us)
        return weather.delay_us + int(random.random() * weather.jitter_us)

    def heal(self, weather: Weather) -> None:
        """Every link works, and behaves as `weather` says. Connections that are dead stay so."""
        self.cut.clear()
        self._unreaching.clear()
        self.weather = weather
        self.connecting_us = 0
        self.garbling = None
        self.liars.clear()

    # --- messages ----------------------------------------------------------------------------

    def carry(self, end: End, message: PeerMessage | None) -> None:
        """`message`, or the news that `end` was closed, is under way, or lost."""
        if message is not None:
            message = self._said(end.here, message)
            data = message.SerializeToString()
            check_size(end.here, len(data), message)
            self._timeline.note(data)
        if end.is_lost:
            self.dropped += 1
        elif end.far is None or end.stuck:
            end.stuck.append(message)
        elif (end.here, end.there) in self.cut:
            self._swallow(end, message)
        elif message is None or self.weather.is_orderly:
            self._let_go(end, message)
        else:
            self._let_go_perhaps(end, message)

    def _said(self, speaker: NodeId, message: PeerMessage) -> PeerMessage:
        """`message`, unless its speaker lies."""
        liar = self.liars.get(speaker)
        if liar is None or liar.random() >= LIE_SHARE:
            return message
        told = lie(message, liar)
        self.lies.on_told(speaker, told)
        return told

    def _deliver(self, far: End, message: PeerMessage) -> None:
        self.delivered += 1
        self.lies.on_delivered(far.there, far.here, message)
        garbling = self.garbling
        if garbling is None or garbling.chance.random() >= garbling.share:
            far.on_message(message)
            return
        # Bytes that are no message any more stand for one that says nothing. And a flipped bit may
        # change nothing: true is written as any number but 0.
        arrived = garble(message, garbling.chance) or PeerMessage()
        self.is_garbled = arrived != message
        far.on_message(arrived)
        self.is_garbled = False

    def _let_go_perhaps(self, end: End, message: PeerMessage) -> None:
        weather, random = self.weather, self._random
        if message.HasField("hello"):  # nothing works without, and it is said once
            self._let_go(end, message)
            return
        if weather.loss and random.random() < weather.loss:
            self.dropped += 1
            return
        self._let_go(end, message)
        if weather.duplication and random.random() < weather.duplication:
            self._let_go(end, message)

    def _let_go(self, end: End, message: PeerMessage | None) -> None:
        far = end.far
        if far is None:
            raise AssertionError("nothing is let go before there is a connection")
        arrival = self._timeline.now + self.delay()
        reordering = self.weather.reordering
        if not reordering or message is None or self._random.random() >= reordering:
            arrival = max(arrival, end.last_arrival)
            end.last_arrival = arrival
        self._timeline.at(arrival, far.actor, self._arrive, end, far, message)

    def _arrive(self, end: End, far: End, message: PeerMessage | None) -> None:
        if end.is_lost:
            self.dropped += 1
        elif (end.here, end.there) in self.cut:
            self._swallow(end, message)
        elif end.stuck and self.weather.is_orderly:
            end.stuck.append(message)  # what was swallowed comes before it
        elif message is None:
            far.shut()
        elif far.is_open:
            self._deliver(far, message)
        elif end.is_open and (end.there, end.here) not in self.cut:
            self.dropped += 1
            self._timeline.after(self.delay(), end.actor, end.shut)

    def _swallow(self, end: End, message: PeerMessage | None) -> None:
        """A packet is lost on a cut link. A connection that keeps its promises sends it again."""
        if not self.weather.is_orderly and message is not None:
            self.dropped += 1
            return
        if not end.stuck:
            pause = RETRANSMISSION_US
            self._timeline.after(pause, self._kernel, self._send_again, end, 2 * pause)
        end.stuck.append(message)

    def _send_again(self, end: End, pause_us: int) -> None:
        if end.is_lost:
            end.stuck.clear()
        elif (end.here, end.there) in self.cut:
            pause = min(pause_us, LONGEST_PAUSE_US)
            self._timeline.after(pause, self._kernel, self._send_again, end, 2 * pause)
        else:
            self._release(end)

    def _release(self, end: End) -> None:
        """What has waited goes out."""
        stuck, end.stuck = end.stuck, []
        for message in stuck:
            self._let_go(end, message)


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
