"""A node's links to all its peers, above whatever carries them.

This joins the state machines of `dledger.links` to greetings, keep-alives and the driver. It owns
which call a message goes out on, who is told of it when one comes in, and when to look at the
clock next. Sockets are a port: `dledger.transport` has those of gRPC, the simulator its own, and
everything that is decided here is decided by the same code in both. It never blocks, and never
calls back from inside a call of the port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from math import inf
from random import Random
from typing import Protocol

from dledger.checksum import is_intact, seal
from dledger.core.group_epoch import Lineage
from dledger.core.types import NO_DISK, ConfigurationPlace, DiskId, Holding, NodeId
from dledger.errors import InvalidMessage, OlderCopy, PeerRefused, UnknownDisk, WrongEpoch
from dledger.greeting import Identity, KnownDisks, Speaker
from dledger.links import (
    AcceptedLinks,
    Adopted,
    Broken,
    Dial,
    DialedLink,
    Effect,
    End,
    LinkTimes,
    Ping,
    Why,
)
from dledger.promises import Promises, is_credible
from dledger.wire.raft_pb2 import KeepAlive, PeerMessage

MAX_STRANGERS = 16  # who know more members than this node, and call it, at a time
OVERSLEPT_S = 0.2  # so late a wake-up tells of a process that stood still

# What counts for something where it is said.
_ANSWERS = frozenset(
    {"pre_vote_response", "vote_response", "append_response", "heartbeat_response"}
)


class Sockets(Protocol):
    """Calls, by generation. What happens to one is told by `PeerLinks.on_…`, never from inside a
    call of these, and may still be told after `end`."""

    def now(self) -> float:
        """Seconds on a clock that never runs back."""
        ...

    def wake_at(self, time_s: float) -> None:
        """`on_time` is to be called then, and no longer at the time that was asked for before."""
        ...

    def dial(self, peer: NodeId, generation: int) -> None:
        """Starts a call to `peer`. What is sent before it is connected goes out when it is."""
        ...

    def send(self, generation: int, message: PeerMessage) -> bool:
        """Queues a message; False when it had to be dropped."""
        ...

    def end(self, peer: NodeId, generation: int, why: Why) -> None:
        """Ends a call, dialed or accepted."""
        ...


@dataclass(frozen=True, slots=True)
class Ears:
    """Whom to tell.

    `on_message` is given each message of a peer and raises InvalidMessage for a broken one.
    `on_broken` is told when a peer has no stream any more in one of the directions.
    """

    on_message: Callable[[NodeId, PeerMessage], None]
    on_broken: Callable[[NodeId], None]


@dataclass(frozen=True, slots=True)
class LinkPace:
    """The bounds of the links, and what decides their jitter."""

    times: LinkTimes
    rng: Random


@dataclass(frozen=True, slots=True)
class PeerLink:
    """A frozen picture of the connection to one peer.

    Attributes:
        connected: the stream that this node dialed is up, and something was heard on it lately.
        reconnects: such streams that have ended.
        renewed: of those, the ones that this node ended for their silence.
        dropped: messages that found no stream or a full one.
        level: of formats and commands, that the peer said on that stream; 0 while it isn't up.
        is_older_copy: it was refused because its disk was put back as it once was.
        disk: the one that answers on that stream; `NO_DISK` while it isn't up.
        gives_entries: whether who greeted there last gives entries back to whom they have rotted.
        compares_digests: whether it says what its log's digest is.
        tells_log_start: whether it says where its log begins.
    """

    connected: bool
    reconnects: int
    dropped: int
    renewed: int
    level: int = 0
    is_older_copy: bool = False
    disk: DiskId = NO_DISK
    gives_entries: bool = False
    compares_digests: bool = False
    tells_log_start: bool = False


@dataclass(slots=True)
class _Peer:
    name: NodeId
    dialed: DialedLink
    accepted: AcceptedLinks
    is_member: bool = True  # as far as is known here; else it is heard, and not dialed
    has_led: bool = False  # when it went
    dropped: int = 0
    level: int = 0  # said by who answered the stream that was greeted last
    disk: DiskId = NO_DISK  # the same
    gives_entries: bool = False  # the same
    compares_digests: bool = False  # the same
    tells_log_start: bool = False  # the same


@dataclass(slots=True)
class _Call:
    """What is known of a call that isn't over."""

    peer: _Peer
    is_dialed: bool
    speaker: Speaker | None  # once it is greeted

    @property
    def is_greeted(self) -> bool:
        return self.speaker is not None


class PeerLinks:
    """The `PeerTransport` of a node on any sockets.

    Args:
        identity: who this node is.
        peers: everybody else in the broker group.
        ears: who is told of messages and breaks.
        sockets: what carries the calls.
        pace: how fast and how patient they are.
    """

    def __init__(
        self,
        identity: Identity,
        peers: Iterable[NodeId],
        ears: Ears,
        sockets: Sockets,
        pace: LinkPace,
    ) -> None:
        self._times, self._rng = pace.times, pace.rng
        self._identity = identity
        self._on_message, self._on_broken = ears.on_message, ears.on_broken
        self._sockets = sockets
        self._number = count(1).__next__
        self._peers = {name: self._new_peer(name) for name in peers}
        self._calls: dict[int, _Call] = {}
        self._wake_at = inf
        self._is_started = self._is_stopped = self._is_muted = False
        self._known = KnownDisks()
        self._holding: Callable[[], Holding] = Holding
        self._given_up: Callable[[NodeId, Lineage], None] = lambda _peer, _recoveries: None
        self.strangers: Counter[type[PeerRefused]] = Counter()  # that were refused

    # --- PeerTransport ------------------------------------------------------------------------

    def send_request(self, peer: NodeId, message: PeerMessage) -> None:
        if (link := self._peers.get(peer)) is None:
            return  # no member any more: lost, like a packet
        generation = link.dialed.generation
        if generation is None or not self._sockets.send(generation, message):
            link.dropped += 1
        else:
            link.dialed.on_sent(message.append_request.frames_size)

    def send_answer(self, peer: NodeId, message: PeerMessage) -> None:
        if (link := self._peers.get(peer)) is None:
            return
        if not link.accepted.in_use:
            link.dropped += 1
        for generation in link.accepted.in_use:
            if not self._sockets.send(generation, message):
                link.dropped += 1

    def know(
        self,
        place: ConfigurationPlace,
        disks: Mapping[NodeId, DiskId],
        *,
        is_known: bool,
        members: Mapping[NodeId, str] | None = None,
        recoveries: Lineage = (),
        leader: NodeId | None = None,
    ) -> None:
        """See `PeerTransport.know`."""
        now, known = self._sockets.now(), self._known
        known.place, known.disks, known.is_known = place, dict(disks), is_known
        known.recoveries = recoveries
        # Whoever tells this forgets what such a peer had said by itself, and is in the midst of it.
        self._is_muted = True
        for generation, call in list(self._calls.items()):
            peer, speaker = call.peer, call.speaker
            if speaker is None:
                continue
            is_of_here = known.refusal_of_epoch(peer.name, speaker) is None
            if is_of_here and not known.refusal_of(peer.name, speaker, answers=call.is_dialed):
                known.named(peer.name, speaker)
                continue
            del self._calls[generation]
            self._sockets.end(peer.name, generation, Why.OTHER_DISK)
            if call.is_dialed:
                peer.dialed.on_ended(generation, now)
            else:
                peer.accepted.on_ended(generation)
            self._settle(peer)
        if members is not None:
            self._meet(members, leader)
        self._is_muted = False

    def _new_peer(self, name: NodeId) -> _Peer:
        return _Peer(name, self._new_link(), AcceptedLinks(self._times))

    def _new_link(self) -> DialedLink:
        return DialedLink(self._times, self._rng, self._number)

    def _meet(self, members: Iterable[NodeId], leader: NodeId | None = None) -> None:
        """Who is a member is dialed from now on. Who isn't is not, and isn't heard unless it knows
        more; while this node catches up, what it reads of members is the past."""
        wanted = set(members)
        for name in sorted(wanted - {peer.name for peer in self._peers.values() if peer.is_member}):
            peer = self._peers.setdefault(name, self._new_peer(name))
            peer.is_member, peer.has_led, peer.dialed = True, False, self._new_link()
            if self._is_started:
                peer.dialed.start(self._sockets.now())
                self._settle(peer)
        if self._known.is_known:
            for name in sorted(self._peers.keys() - wanted):
                self._part(self._peers[name], is_leader=name == leader)

    def _part(self, peer: _Peer, *, is_leader: bool) -> None:
        """A node that is no member isn't dialed; if it knows no more than this one, and didn't
        lead when it went, its calls end, and it is forgotten."""
        peer.has_led |= peer.is_member and is_leader
        peer.is_member = False
        peer.dialed.stop()
        calls = [call for call in self._calls.values() if call.peer is peer and not call.is_dialed]
        knows_more = any(call.speaker and call.speaker.place > self._known.place for call in calls)
        if not (knows_more or peer.has_led):
            peer.accepted.stop()
        self._settle(peer)
        self._forget_stranger(peer)

    # --- what disks hold ----------------------------------------------------------------------

    def speak_for(self, holding: Callable[[], Holding]) -> None:
        """Keep-alives say what this node's disk holds."""
        self._holding = holding

    def recall(self, promises: Mapping[NodeId, Promises]) -> None:
        """Peers are held to what they told an earlier start of this node; before `start`."""
        self._known.recall(promises)

    def promises(self) -> dict[NodeId, Promises]:
        """What the peers' disks have promised, as of now."""
        return self._known.promises

    # --- epochs -------------------------------------------------------------------------------

    def when_given_up(self, call: Callable[[NodeId, Lineage], None]) -> None:
        """`call` is told once a member says that the group was recovered without this node, and by
        which recoveries."""
        self._given_up = call

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """From now on every peer is dialed."""
        self._is_started = True
        now = self._sockets.now()
        for peer in self._peers.values():
            peer.dialed.start(now)
            self._settle(peer)

    def stop(self) -> None:
        """Every call is ended, and nobody is told of anything any more."""
        self._is_stopped = True
        for peer in self._peers.values():
            peer.dialed.stop()
            peer.accepted.stop()
            self._settle(peer)

    def level_of(self, peer: NodeId) -> int:
        """What `PeerLink.level` is of that one, for who asks at each tick; 0: it is no member."""
        link = self._peers.get(peer)
        if link is None or not link.is_member or not link.level:
            return 0
        return link.level if link.dialed.makes_progress(self._sockets.now()) else 0

    def pictures(self) -> dict[NodeId, PeerLink]:
        """The connection to each peer, as of now."""
        now = self._sockets.now()
        return {
            name: PeerLink(
                connected=peer.dialed.makes_progress(now),
                reconnects=peer.dialed.streams_ended,
                dropped=peer.dropped,
                renewed=peer.dialed.renewed,
                level=peer.level if peer.dialed.makes_progress(now) else 0,
                is_older_copy=self._known.is_older_copy(name),
                disk=peer.disk if peer.dialed.makes_progress(now) else NO_DISK,
                gives_entries=peer.gives_entries,
                compares_digests=peer.compares_digests,
                tells_log_start=peer.tells_log_start,
            )
            for name, peer in self._peers.items()
            if peer.is_member
        }

    # --- what sockets tell --------------------------------------------------------------------

    def on_time(self) -> None:
        """The time that was asked for by `wake_at` has come."""
        now = self._sockets.now()
        slept = now - self._wake_at
        self._wake_at = inf
        for peer in [*self._peers.values()]:
            if slept > OVERSLEPT_S:
                peer.dialed.forgive(slept, now)
                peer.accepted.forgive(slept, now)
            peer.dialed.on_time(now)
            peer.accepted.on_time(now)
            self._settle(peer)
            self._forget_stranger(peer)

    def on_call(self, hello: PeerMessage) -> tuple[int, PeerMessage]:
        """Somebody has called, and `hello` is the first message; the call's generation, and what
        to answer.

        Raises:
            PeerRefused: end the call and say why; after the answer, if WrongEpoch has one.
        """
        if not hello.HasField("hello"):
            raise PeerRefused("the first message of a stream must be a Hello")
        name = self._identity.check(hello)
        if self._is_stopped:
            raise PeerRefused(f"{self._identity.node} is stopping")
        own = self._identity.hello(name, self._known.place, self._known.recoveries)
        try:
            self._check_epoch(name, Speaker.of(hello.hello))
        except WrongEpoch as error:
            error.answer = own
            raise
        peer = self._peers.get(name) or self._stranger(name, Speaker.of(hello.hello))
        speaker = self._recognised(peer, hello, answers=False)
        generation = self._number()
        self._peers[name] = peer
        self._calls[generation] = _Call(peer, is_dialed=False, speaker=speaker)
        peer.accepted.on_hello(generation, self._sockets.now())
        self._settle(peer)
        return generation, own

    def _stranger(self, name: NodeId, speaker: Speaker) -> _Peer:
        """`name`, of whom this node knows nothing, is heard: it knows a later configuration, and
        may lead by it. Nobody else tells of it to who lags.

        Raises:
            PeerRefused: it isn't.
        """
        strangers = sum(not peer.is_member for peer in self._peers.values())
        if speaker.place <= self._known.place or strangers >= MAX_STRANGERS:
            raise self._identity.refusal_of_stranger(name)
        peer = self._new_peer(name)
        peer.is_member = False
        return peer

    def _forget_stranger(self, peer: _Peer) -> None:
        if not peer.is_member and not any(call.peer is peer for call in self._calls.values()):
            self._peers.pop(peer.name, None)

    def _check_epoch(self, name: NodeId, speaker: Speaker) -> None:
        """Raises:
        WrongEpoch: a recovery by force lies between the two.
        """
        if refusal := self._known.refusal_of_epoch(name, speaker):
            self.strangers[WrongEpoch] += 1
            if self._known.is_given_up(name, speaker):
                self._given_up(name, speaker.recoveries)
            raise refusal

    def _recognised(self, peer: _Peer, message: PeerMessage, *, answers: bool) -> Speaker:
        """Who speaks in the name of `peer`.

        Raises:
            PeerRefused: it isn't heard.
        """
        speaker = Speaker.of(message.hello)
        try:
            if refusal := self._known.refusal_of(peer.name, speaker, answers=answers):
                raise refusal
            if peer.is_member:  # what others promise is of no consequence, and anybody may be one
                self._known.heard(peer.name, speaker, answers=answers)
        except (UnknownDisk, OlderCopy) as error:
            self.strangers[type(error)] += 1
            raise
        return speaker

    def on_message(self, generation: int, message: PeerMessage) -> None:
        """A message came in on a call.

        Raises:
            PeerRefused: it should have been a Hello that fits: end the call and say why.
            InvalidMessage: it is none of a peer that is in its right mind: end the call.
        """
        call = self._calls.get(generation)
        if call is None:
            return
        peer, now = call.peer, self._sockets.now()
        if not call.is_dialed:
            if message.WhichOneof("body") in _ANSWERS:
                # Who dials is heard on less than who answers, as requests decide nothing by
                # themselves: an answer there could be of a disk that doesn't count (ADR 22).
                raise InvalidMessage(f"{peer.name} answers on the stream that it has dialed")
            is_wanted = peer.accepted.on_heard(generation, now)
            if peer.accepted.has_effects:
                self._settle(peer)
        elif call.is_greeted:
            is_wanted = peer.dialed.on_heard(generation, now)
        else:
            self._on_hello_back(call, generation, message)
            return
        if not is_wanted:
            return
        is_sign = message.HasField("keep_alive")
        if not is_sign or not (is_intact(message) and is_credible(message)):
            self._on_message(peer.name, message)
            if is_sign:
                return  # it was refused: there is nothing in it to remember
        elif not call.is_dialed:
            self._sockets.send(generation, self._keep_alive())
        if call.speaker is not None:
            self._known.said(message, peer.name, call.speaker, self._identity.node)

    def _keep_alive(self) -> PeerMessage:
        holding = self._holding()
        body = KeepAlive(held_index=holding.held_index, settled_index=holding.settled_index)
        return seal(PeerMessage(term=holding.term, keep_alive=body))

    def _on_hello_back(self, call: _Call, generation: int, message: PeerMessage) -> None:
        name = call.peer.name
        if not message.HasField("hello"):
            raise PeerRefused(f"{name} at its address answers with something else than a Hello")
        found = self._identity.check(message)
        if found != name:
            raise PeerRefused(f"at the address of {name} there is {found}")
        self._check_epoch(name, Speaker.of(message.hello))
        call.speaker = self._recognised(call.peer, message, answers=True)
        call.peer.level = message.hello.level
        call.peer.disk = call.speaker.disk
        call.peer.gives_entries = message.hello.gives_entries
        call.peer.compares_digests = message.hello.compares_digests
        call.peer.tells_log_start = message.hello.tells_log_start
        call.peer.dialed.on_greeted(generation, self._sockets.now())
        self._settle(call.peer)

    def on_ended(self, generation: int, *, refused: bool = False) -> None:
        """A call is over, and not because of `Sockets.end`; `refused`: the peer won't have it, or
        this node won't have the peer."""
        call = self._calls.pop(generation, None)
        if call is None:
            return
        now, peer = self._sockets.now(), call.peer
        if not call.is_dialed:
            peer.accepted.on_ended(generation)
        elif refused:
            peer.dialed.on_refused(generation, now)
        else:
            peer.dialed.on_ended(generation, now)
        self._settle(peer)
        self._forget_stranger(peer)

    # --- what links ask for -------------------------------------------------------------------

    def _settle(self, peer: _Peer) -> None:
        """Everything that the peer's links want is done."""
        # Twice at most: only a stream's adoption leads to more, and that to nothing.
        while effects := [*peer.accepted.take_effects(), *peer.dialed.take_effects()]:
            for effect in effects:
                self._perform(peer, effect)
        deadline = min(peer.dialed.deadline, peer.accepted.deadline)
        if deadline < self._wake_at and not self._is_stopped:
            self._wake_at = deadline
            self._sockets.wake_at(deadline)

    def _perform(self, peer: _Peer, effect: Effect) -> None:
        match effect:
            case Dial(generation):
                self._calls[generation] = _Call(peer, is_dialed=True, speaker=None)
                self._sockets.dial(peer.name, generation)
                known = self._known
                hello = self._identity.hello(peer.name, known.place, known.recoveries)
                self._sockets.send(generation, hello)
            case End(generation, why):
                self._calls.pop(generation, None)
                self._sockets.end(peer.name, generation, why)
            case Ping(generation):
                self._sockets.send(generation, self._keep_alive())
            case Adopted() if peer.is_member:
                peer.dialed.on_sign_of_life(self._sockets.now())
            case Broken() if not self._is_stopped and not self._is_muted:
                self._on_broken(peer.name)
            case _:
                pass
