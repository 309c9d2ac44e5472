"""Links between simulated nodes: the product's, over the simulator's connections.

This is the sibling of `dledger.transport`: sockets below `dledger.peers`, and nothing that decides.
Which connection is used, renewed or ended is decided by the code that decides it in production, so
streams that are stolen, replaced, late or mute are faults here. And it has the thief, who calls a
node in the name of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from random import Random

from chaos.sim.defect import Defect
from chaos.sim.loop import ProcessLoop, Timer
from chaos.sim.network import End, Network
from chaos.sim.timeline import Actor, Timeline
from dledger.checksum import seal
from dledger.core.types import NodeId
from dledger.errors import InvalidMessage, PeerRefused, WrongEpoch
from dledger.greeting import Identity
from dledger.links import Why
from dledger.peers import Ears, LinkPace, PeerLink, PeerLinks
from dledger.wire.raft_pb2 import KeepAlive, PeerMessage

STRANGER = NodeId("stranger")  # where thieves call from: no partition is about them
MAX_DIALED = 8  # calls to one peer at a time, the one in use included
THEFT_US = 200_000  # from one sign of life of a thief to the next


class ReadFailed(Exception):
    """What a message asks for can't be read, for what was done to the disk: the stream ends."""


class SimulatedLinks:
    """The links of a simulated process.

    Args:
        network: what it is connected to.
        loop: the process.
        identity: who it is.
        ears: who is told of messages and breaks.
        pace: how fast and how patient the links are.
        peers: that it was told of; None: everybody.
    """

    def __init__(
        self,
        network: Network,
        loop: ProcessLoop,
        identity: Identity,
        ears: Ears,
        pace: LinkPace,
        peers: Iterable[NodeId] | None = None,
    ) -> None:
        self._network = network
        self._loop = loop
        self._name = identity.node
        self._ends: dict[int, End] = {}
        self._dialed: dict[int, NodeId] = {}
        self._timer: Timer | None = None
        known = network.others(identity.node) if peers is None else peers
        self._links = PeerLinks(identity, known, ears, self, pace)
        self.send_request = self._links.send_request
        self.send_answer = self._links.send_answer
        self.know = self._links.know
        self.speak_for, self.recall = self._links.speak_for, self._links.recall
        self.promises, self.when_given_up = self._links.promises, self._links.when_given_up

    def start(self) -> None:
        """Takes calls, and dials every peer."""
        self._network.listen(self._name, self._loop, self._accept)
        self._links.start()

    def stop(self) -> None:
        """Every connection is closed; nobody is told of anything any more."""
        self._links.stop()

    def level_of(self, peer: NodeId) -> int:
        """See `PeerLinks.level_of`."""
        return self._links.level_of(peer)

    def links(self) -> Mapping[NodeId, PeerLink]:
        """The connection to each peer, as of now."""
        return self._links.pictures()

    def dialed_to(self, peer: NodeId) -> int:
        """The calls to `peer` that are not over."""
        return sum(each == peer for each in self._dialed.values())

    @property
    def connections(self) -> int:
        """The calls that are not over."""
        return len(self._ends)

    # --- Sockets ------------------------------------------------------------------------------

    def now(self) -> float:
        return self._loop.time()

    def wake_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(time_s, self._links.on_time)

    def dial(self, peer: NodeId, generation: int) -> None:
        if self.dialed_to(peer) >= MAX_DIALED:
            raise AssertionError(f"{self._name} has {MAX_DIALED} calls to {peer} and makes another")
        self._dialed[generation] = peer
        self._use(generation, self._network.connect(self._loop, self._name, peer))

    def send(self, generation: int, message: PeerMessage) -> bool:
        end = self._ends.get(generation)
        return end is not None and end.send(message)

    def end(self, peer: NodeId, generation: int, why: Why) -> None:
        self._dialed.pop(generation, None)
        if (end := self._ends.pop(generation, None)) is not None:
            end.close()

    # --- what connections tell ----------------------------------------------------------------

    def _use(self, generation: int, end: End) -> None:
        self._ends[generation] = end
        end.on_message = partial(self._on_message, generation)
        end.on_closed = partial(self._on_closed, generation)

    def _accept(self, end: End) -> None:
        end.on_message = partial(self._on_first, end)

    def _on_first(self, end: End, message: PeerMessage) -> None:
        try:
            generation, hello = self._links.on_call(message)
        except PeerRefused as error:
            if isinstance(error, WrongEpoch) and error.answer is not None:
                end.send(error.answer)
            end.close()
            return
        self._use(generation, end)
        end.send(hello)

    def _on_message(self, generation: int, message: PeerMessage) -> None:
        try:
            self._links.on_message(generation, message)
        except PeerRefused:
            self.end(self._name, generation, Why.REFUSED)
            self._links.on_ended(generation, refused=True)
        except (InvalidMessage, ReadFailed):
            self.end(self._name, generation, Why.REFUSED)
            self._links.on_ended(generation)
        except OSError as error:
            kind = message.WhichOneof("body")
            raise Defect("link", f"{self._name} can't take {kind}: {error!r}") from error

    def _on_closed(self, generation: int) -> None:
        del self._ends[generation]
        self._dialed.pop(generation, None)
        self._links.on_ended(generation)


class Thief:
    """Somebody who calls `victim` as `name`, and stays for a while: silent, or saying something
    now and then so that the stream counts as one that works."""

    def __init__(self, network: Network, timeline: Timeline, actor: Actor, random: Random) -> None:
        self._network = network
        self._timeline = timeline
        self._actor = actor
        self._random = random

    def steal(self, name: Identity, victim: NodeId) -> None:
        """Calls once."""
        end = self._network.connect(self._actor, STRANGER, victim)
        end.send(name.hello(victim))
        signs = self._random.choice((0, 1, 1, 20))
        end.on_message = partial(self._on_hello_back, end, signs)
        stays_us = self._random.choice((10_000, 300_000, 5_000_000))
        self._timeline.after(stays_us, self._actor, end.close)

    def _on_hello_back(self, end: End, signs: int, message: PeerMessage) -> None:
        end.on_message = lambda _: None
        self._say(end, signs)

    def _say(self, end: End, signs: int) -> None:
        if signs and end.send(seal(PeerMessage(keep_alive=KeepAlive()))):
            self._timeline.after(THEFT_US, self._actor, self._say, end, signs - 1)
