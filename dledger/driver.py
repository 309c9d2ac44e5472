"""Drives the Raft core: persist, send, apply, in the order of ADR 3.

This owns the order in which a node touches the world. The core says what is safe; the driver
does it: it builds the frames of proposals, hands durable work to the flusher, reads ranges of
the log for outgoing appends, applies committed entries in bounded slices, and checks the
running digest that heartbeats carry (ADR 6). It must never send a message that the core has not
handed out, apply past the commit index, or block: durable work happens elsewhere and comes
back through `on_durable`. Everything here runs on one thread, the event loop's.

    event (message, tick, proposal, durable)
      └─> core ──> Effects: no-op frame, persist (submit), messages, reads, events, then apply

Many proposals of one event-loop turn become one set of effects: `propose` only schedules.

Applying (`dledger.applying`), waiting reads (`dledger.reads`) and what an append finds here
(`dledger.incoming`) are modules of their own; persisting and sending stay together, since apart
they would hide the one order between them that matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

from google.protobuf.message import DecodeError

from dledger.applying import APPLY_SLICE_BYTES, Applier
from dledger.checksum import is_intact
from dledger.codec import (
    ANSWERS,
    configuration_bytes,
    decode_append,
    decode_digest,
    decode_disk,
    decode_message,
    decode_wall_clock,
    encode_append,
    encode_heartbeat,
    encode_message,
)
from dledger.core import Raft
from dledger.core.errors import (
    Contradiction,
    InvariantViolation,
    MessageRefused,
    NotLeader,
    ReadRefused,
)
from dledger.core.types import (
    NO_INDEX,
    AppendRange,
    AppendRequest,
    Configuration,
    Effects,
    EntryKind,
    HardState,
    HeartbeatRequest,
    HeartbeatResponse,
    IncomingMessage,
    Index,
    LogBase,
    NodeId,
    OutgoingMessage,
    PersistSequence,
    Proposed,
    Role,
    SnapshotOffer,
)
from dledger.disk_figures import DiskFigure, DiskFigures
from dledger.doubt import Doubt
from dledger.errors import InvalidMessage, LogBehind, LogFull
from dledger.incoming import check_continuity, held_of, is_to_be_appended
from dledger.log_clock import ClockStatistics, LogClock
from dledger.ports import USUAL_VERSION, H, Ports
from dledger.reads import ReadDone, Reads
from dledger.room import Room
from dledger.wire.raft_pb2 import PeerMessage

# `LogBehind` and `LogFull` are part of what `propose` is: who calls it handles them.
__all__ = [
    "EFFECT_ROUNDS",
    "DriverStatistics",
    "LogBehind",
    "LogFull",
    "Ports",
    "RaftDriver",
    "Stamp",
]

EFFECT_ROUNDS = 1_000  # a core that never comes to rest is a defect of ours

Stamp = Callable[[int, int], None]  # (physical offset of the frame, append time in ms)


@dataclass(frozen=True, slots=True)
class DriverStatistics:
    """A frozen picture of the driver, for metrics and status."""

    applied_index: Index
    messages_in: int
    messages_out: int
    appends_refused_for_space: int
    is_apply_paused: bool
    apply_stopped: str  # why; empty while it isn't
    is_short_of_space: bool
    messages_refused: int
    contradictions: int
    reads_waiting: int
    uncompleted_persists: int
    clock: ClockStatistics


class RaftDriver(Generic[H]):
    """One node's replication, from the thread that owns it."""

    def __init__(
        self,
        core: Raft,
        node: NodeId,
        ports: Ports[H],
        applied_index: Index,
        *,
        apply_slice_bytes: int = APPLY_SLICE_BYTES,
    ) -> None:
        self._core = core
        self._node = node
        self._ports = ports
        self._applier = Applier(
            ports,
            applied_index,
            apply_slice_bytes,
            in_turn=lambda: self._guarded(self._apply),
            on_applied=self._on_applied,
        )
        self._scheduled = False
        self._more_scheduled = False
        self._stopped = False
        self._reads = Reads(core.read_index)
        self._digest: tuple[Index, int] = (Index(0), 0)
        self._latest_append: tuple[AppendRange, PeerMessage] | None = None
        self._messages_in = self._messages_out = 0
        self._refused_for_space = 0
        self._clock = LogClock(node, ports.log.last_append_time_ms, self._now_us())
        self._disks = DiskFigures()
        self._doubt: Doubt[H] = Doubt(ports.log, ports.observer, ports.contradicted)
        self._submitted_ticket = self._durable_ticket = 0
        options = core.options
        self._room: Room[H] = Room(
            ports.log, ports.makes_room, options.noop_size, options.max_inflight_bytes
        )
        self._configurations: tuple[Configuration, ...] = ()  # that the transport was told of

    # --- inputs ------------------------------------------------------------------------------

    @property
    def core(self) -> Raft:
        """The core, for reading; only the driver gives it inputs."""
        return self._core

    @property
    def is_stopped(self) -> bool:
        """Whether it heeds nobody any more: what comes is dropped, unjudged."""
        return self._stopped

    @property
    def applied_index(self) -> Index:
        return self._applier.applied

    @property
    def settled_index(self) -> Index:
        """The last entry that is applied and that this node's own disk would keep through a loss
        of power. A commit needs a majority of disks, of which this one may not be one: what is
        noted on it must not run ahead of its own log."""
        core, log = self._core, self._ports.log
        return Index(min(self._applier.applied, core.durable_index, log.synced_index))

    def introduce(self) -> None:
        """The transport is told who belongs to the group, as the log has it; before it starts, so
        that no Hello is said that speaks of no epoch."""
        self._heed_configuration()

    def start(self) -> None:
        """Applies what is known to be committed; call once, before the first tick."""
        self._heed_configuration()
        self._schedule()

    def stop(self) -> None:
        """Nothing happens after this: no message, no apply."""
        self._stopped = True
        self._reads.abort()

    def tick(self) -> None:
        """One tick of the core's clock has passed."""
        self._applier.tick()
        self._guarded(self._tick_core)

    def _tick_core(self) -> None:
        try:
            self._doubt.on_tick()
        except Exception as error:
            if not self._ports.is_mended(error):
                raise
            self._doubt.give_up()
        leader = self._core.leader
        self._core.report_fitness(
            is_short=self._room.is_short(),
            can_serve=self._can_serve(),
            leader_can_serve=leader is None or leader == self._node or self._ports.can_lead(leader),
        )
        self._core.tick()
        if self._core.role is Role.LEADER:
            self._estimate_time()

    def _can_serve(self) -> bool:
        """Whether what is committed is applied here: what derives from the log finds space, and
        this program knows what the log holds. Its disk takes entries all the same."""
        return not self._applier.is_paused and self._applier.stopped is None

    def voters_disks(self) -> dict[NodeId, DiskFigure]:
        """How full the voters' disks are, this node's among them, as far as that is known by now:
        to who leads, as heartbeats are answered to nobody else."""
        configuration = self._core.configuration
        voters = configuration.voters | configuration.voters_outgoing
        known = self._disks.fresh(voters - {self._node}, self._now_us())
        own = self._ports.own_disk()
        if own is not None and self._node in voters:
            known[self._node] = own
        return known

    def begin_at(self, base: LogBase) -> None:
        """Entries up to `base` are gone from the log, which says so already. Told of an append or a
        heartbeat that speaks of them, this node knows that it can't tell."""
        self._latest_append = None
        self._guarded(lambda: self._core.begin_at(base))

    def report_doubt(self, *, is_in_doubt: bool) -> None:
        """Committed entries have rotted on this disk, or they are back; see `Raft.report_doubt`.
        Safe from within whatever reads the log: what follows from it happens in a later turn."""
        self._core.report_doubt(is_in_doubt=is_in_doubt)
        self._schedule()

    def suspect(self, peer: NodeId) -> None:
        """A stream to or from `peer` broke."""

        def both() -> None:
            self._core.peer_unreachable(peer)
            self._core.suspect_leader(peer)

        self._guarded(both)

    def hasten_election(self) -> None:
        """This node campaigns at its next tick, if it knows of no leader."""
        self._guarded(self._core.hasten_election)

    def transfer_leadership(self, target: NodeId | None) -> None:
        """Starts handing leadership to `target`, or to the best caught-up voter.

        Raises:
            ProposalRefused: this node doesn't lead, or the target can't.
        """
        self._core.transfer_leadership(target)
        self._schedule()

    def propose(
        self,
        kind: EntryKind,
        record_count: int,
        body: bytes | bytearray,
        stamp: Stamp | None,
        version: int = USUAL_VERSION,
    ) -> Proposed:
        """Appends an entry and starts replicating it in this loop turn.

        Args:
            kind: DATA or COMMAND.
            record_count: records in `body`, 0 for a command.
            body: the entry's body; the driver keeps it, the caller must not touch it again.
            stamp: is called before the frame is built, to write positions into `body`.
            version: of the entry.

        Raises:
            ProposalRefused: nothing happened; see `dledger.core.errors`.
            LogFull: nothing happened; no space.
            LogBehind: nothing happened; the disk is far behind.
        """
        return self._append(kind, record_count, body, stamp, None, version)

    def _append(
        self,
        kind: EntryKind,
        record_count: int,
        body: bytes | bytearray,
        stamp: Stamp | None,
        configuration: Configuration | None,
        version: int = USUAL_VERSION,
    ) -> Proposed:
        if self._stopped:
            raise NotLeader(None)
        log = self._ports.log
        size = self._core.options.noop_size + len(body)
        if self._applier.is_paused or not self._room.takes(kind, size, body):
            raise LogFull(f"no room for {size} bytes")
        # What others commit without this disk is bounded by nothing else while it is stalled.
        if log.unwritten_bytes > self._core.options.max_uncommitted_bytes:
            raise LogBehind(f"{log.unwritten_bytes} bytes wait for the leader's disk")
        placed = self._core.propose(size, kind, configuration)
        try:
            append_time_ms = self._clock.read_ms(self._now_us())
            if stamp is not None:
                stamp(log.next_position(size), append_time_ms)
            log.append(kind, placed.index, placed.term, append_time_ms, record_count, body, version)
        except Exception as error:
            # The core has the entry and the log hasn't, as when the flusher has just failed and
            # its news is still on the way: nothing may be sent or answered from here on.
            self._fail(error)
            raise
        self._heed_configuration()
        self._schedule()
        return placed

    def _heed_configuration(self) -> None:
        """Whoever is no longer the disk that the configuration names is not heard from here on:
        not even what it has already said and nobody has looked at."""
        core = self._core
        may_count = core.configurations_that_may_count
        if may_count == self._configurations:
            return
        self._configurations = may_count
        node = self._node
        disks = {peer: disk for peer, disk in core.configuration.disks if peer != node}
        members: dict[NodeId, str] = {}
        for configuration in reversed(may_count):
            places = dict(configuration.addresses)
            members |= {peer: places.get(peer, "") for peer in configuration.members() - {node}}
        self._ports.transport.know(
            core.configuration_place,
            disks,
            is_known=core.knows_own_disk,
            members=members,
            recoveries=core.configuration.epoch.recoveries,
            leader=core.leader,
        )
        self._ports.observer.on_configuration()

    def propose_configuration(self, wanted: Configuration) -> Proposed:
        """Appends a configuration, which is in force at once, and starts replicating it.

        Raises:
            ProposalRefused, LogFull, LogBehind: as for `propose`; nothing happened.
        """
        body = configuration_bytes(wanted)
        return self._append(EntryKind.CONFIGURATION, 0, body, None, wanted)

    def read_index(self, done: ReadDone) -> None:
        """Calls `done(True)` once a linearizable read can be served from the state machine, or
        `done(False)` when leadership is lost first. Reads of one loop turn share a round. While
        applying stands still none is taken: it would wait for as long as that lasts, and nobody
        would forget it when its caller has gone.

        Raises:
            ReadRefused: this node can't start one now.
        """
        if self._stopped or not self._core.is_ready_leader:
            raise ReadRefused("not a leader that has committed in its term", self._core.leader)
        if not self._can_serve():
            raise ReadRefused("what is committed can't be applied here now", self._core.leader)
        self._reads.add(done)
        self._schedule()

    def on_durable(self, ticket: int) -> None:
        """The flusher finished everything up to `ticket`."""
        self._durable_ticket = max(self._durable_ticket, ticket)
        self._guarded(lambda: self._core.on_persisted(PersistSequence(ticket)))

    def on_storage_failed(self, error: BaseException) -> None:
        """The disk failed: stop leading and voting, then stop the node (ADR 8)."""
        if not self._stopped:
            try:
                self._core.on_storage_failed()
                self._run()
            finally:
                self._fail(error)  # whatever became of the last effects

    def fall_silent(self, reason: str) -> None:
        """This node's log isn't the group's: it stops leading, and nothing happens after this."""
        if not self._stopped:
            self._core.fall_silent(reason)
            self._run()
            self.stop()

    def on_message(self, peer: NodeId, wire: PeerMessage) -> None:
        """A message of `peer`, already known to be of this broker group.

        Raises:
            InvalidMessage: no working peer sends it to this node; nothing has changed. Close the
                stream.
        """
        if self._stopped:
            return
        self._messages_in += 1
        try:
            self._take(peer, wire)
        except (InvalidMessage, MessageRefused) as error:
            settled = min(self._core.commit_index, self._core.durable_index)
            members = self._core.configuration.members()
            self._doubt.on_refused(peer, error, settled, members)
            raise InvalidMessage(str(error)) from error

    def _take(self, peer: NodeId, wire: PeerMessage) -> None:
        if not is_intact(wire):
            raise InvalidMessage(f"a message of {peer} doesn't have the checksum of its fields")
        if wire.HasField("append_request"):
            self._on_append(peer, wire)
            return
        try:
            message = decode_message(wire, peer, self._node)
            told = decode_digest(wire) if isinstance(message, HeartbeatRequest) else None
            shown_ms, disk = decode_wall_clock(wire), decode_disk(wire)
        except ValueError as error:
            raise InvalidMessage(f"{peer}: {error}") from error
        self._guarded(lambda: self._step(message, told, shown_ms))
        if isinstance(message, HeartbeatResponse):  # that was admitted
            self._disks.on_heard(peer, disk, self._now_us())

    def _step(
        self, message: IncomingMessage, told: tuple[Index, int] | None, shown_ms: int | None
    ) -> None:
        if told is not None:
            self._core.admit(message)
            self._check_digest(message, *told)
        self._core.step(message)
        # Whoever is elected by this very answer has heard its clock before the first entry.
        if shown_ms is not None:
            self._clock.on_heard(message.sender, shown_ms, self._now_us())

    # --- appends from the leader --------------------------------------------------------------

    def _on_append(self, peer: NodeId, wire: PeerMessage) -> None:
        frames = wire.append_request.frames
        if len(frames) != wire.append_request.frames_size:
            raise InvalidMessage(f"{len(frames)} bytes of frames of {peer} are not as many as said")
        try:
            headers = self._ports.parse_frames(frames) if frames else []
            message = decode_append(wire, peer, self._node, headers, self._ports.configuration_of)
        except (ValueError, DecodeError) as error:
            raise InvalidMessage(f"{peer}: {error}") from error
        self._guarded(lambda: self._accept(message, headers, frames))

    def _accept(self, message: AppendRequest, headers: list[H], frames: bytes) -> None:
        self._run()  # what is pending must not mix with the effects of this append
        self._core.admit(message)
        skip = held_of(self._core, headers)
        new = headers[skip:]
        blob = memoryview(frames)[sum(header.total_size for header in headers[:skip]) :]
        # What isn't to be appended needs no room: its answer tells the leader where the logs part,
        # or that its time is over, and no disk is so full that nobody should hear that.
        if new and is_to_be_appended(self._core, message, new):
            try:
                if not self._room.takes_frames(new, blob):
                    # Nothing is cut either. Space may have come back when it is sent again.
                    self._refused_for_space += 1
                    return
                check_continuity(self._ports.log, message, new, blob)
            except Exception as error:
                if self._ports.is_mended(error):
                    return  # not acknowledged, so it is sent again
                raise
        self._take_append(message, new, blob)

    def _take_append(self, message: AppendRequest, new: list[H], blob: memoryview) -> None:
        self._core.step(message)
        self._heed_configuration()
        while self._core.has_effects():
            effects = self._core.take_effects()
            persist = effects.persist
            if persist is not None and persist.truncate_from is not None:
                self._ports.log.truncate_from(persist.truncate_from)
            if persist is not None and persist.append_first is not None and effects.noop is None:
                if not new or persist.append_first != new[0].index:
                    raise InvariantViolation(f"the core appends from {persist.append_first}")
                self._ports.log.append_frames(blob, new)
                self._clock.on_taken(new[-1].append_time_ms, self._now_us())
            self._perform(effects)

    # --- effects ------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._ports.call_soon(self._run_scheduled)

    def _run_scheduled(self) -> None:
        self._scheduled = False
        self._guarded(lambda: None)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Runs `step` and then the effects; what it can't survive stops the node."""
        if self._stopped:
            return
        try:
            step()
            self._heed_configuration()
            self._run()
        except (MessageRefused, ReadRefused):
            raise
        except Exception as error:  # noqa: BLE001  the boundary: the node stops, loudly
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._stopped:
            self._stopped = True
            self._reads.abort()
            self._ports.fail(error)

    def _run(self) -> None:
        self._reads.start()
        for _ in range(EFFECT_ROUNDS):
            if not self._core.has_effects():
                break
            effects = self._core.take_effects()
            persist = effects.persist
            if persist is not None and persist.truncate_from is not None:
                self._ports.log.truncate_from(persist.truncate_from)
            self._perform(effects)
        else:
            raise InvariantViolation(f"the core has effects after {EFFECT_ROUNDS} rounds")
        if self._core.role is not Role.LEADER:
            self._reads.end_leadership()
        if self._core.has_more_to_send and not self._more_scheduled:
            self._more_scheduled = True
            self._ports.turns.later(self._send_more)
        if self._applier.applied < self._core.commit_index:
            if self._core.role is Role.LEADER and not self._applier.is_scheduled:
                self._apply()  # callers wait for it
            else:
                self._applier.schedule()

    def _apply(self) -> None:
        self._applier.apply(self._core.commit_index)

    def _on_applied(self, last: Index) -> None:
        self._ports.observer.on_applied(last)
        self._reads.on_applied(last)

    def _send_more(self) -> None:
        """The next append for each peer that is far behind; nothing if it no longer is one, or this
        node no longer leads."""
        self._more_scheduled = False
        self._guarded(self._core.send_more)

    def _perform(self, effects: Effects) -> None:
        """Does what `effects` ask for; truncation and follower appends are done already."""
        log = self._ports.log
        if effects.noop is not None:
            self._clock.begin_leading(self._now_us())
            self._estimate_time()
            time_ms = self._clock.read_ms(self._now_us())
            log.append(EntryKind.NOOP, effects.noop.index, effects.noop.term, time_ms, 0, b"")
        if effects.persist is not None:
            self._submitted_ticket = effects.persist.sequence
            log.submit(effects.persist.sequence, self._prelude(effects.persist.hard_state))
        for message in effects.messages:
            self._send(message)
        for read in effects.reads:
            self._reads.on_read(read, self._applier.applied)
        if effects.offer is not None:
            self._ports.offered(effects.offer)
        for event in effects.events:
            self._ports.observer.on_event(event)

    def _prelude(self, state: HardState | None) -> Callable[[], None] | None:
        if state is None:
            return None
        store = self._ports.hard_state
        return lambda: store.save(state)

    @property
    def log_time_ms(self) -> int:
        """The log's time now, to be asked of a leader: no append time to come is below it."""
        return self._clock.shown_ms(self._now_us())

    def _now_us(self) -> int:
        return int(self._ports.monotonic_s() * 1e6)

    def _estimate_time(self) -> None:
        """What a majority's clocks show, for the append times to come."""
        voters, now_us = self._core.configuration, self._now_us()
        for event in self._clock.estimate(voters, self._ports.wall_ms(), now_us):
            self._ports.observer.on_event(event)

    def _send(self, message: OutgoingMessage) -> None:
        self._messages_out += 1
        if isinstance(message, AppendRange):
            append = self._append_message(message)
            if append is not None:
                self._ports.transport.send_request(message.to, append)
            return
        if isinstance(message, HeartbeatRequest):
            index = message.commit_index
            digest = self._digest_at(index) if index else None
            beat = encode_heartbeat(message, index if digest is not None else NO_INDEX, digest or 0)
            self._ports.transport.send_request(message.to, beat)
            return
        if isinstance(message, SnapshotOffer) and not self._ports.takes_offers(message.to):
            return
        wire = encode_message(message, self._ports.wall_ms(), self._ports.own_disk())
        if isinstance(message, ANSWERS):
            self._ports.transport.send_answer(message.to, wire)
        else:
            self._ports.transport.send_request(message.to, wire)

    def _append_message(self, message: AppendRange) -> PeerMessage | None:
        """The append with its frames; peers that keep up are sent one and the same. None where the
        frames are being got back: to the peer it got lost on the way."""
        latest = self._latest_append
        if latest is not None and replace(latest[0], to=message.to) == message:
            return latest[1]
        frames = b""
        if message.last_index >= message.first_index:
            try:
                frames = self._ports.log.read(message.first_index, message.last_index)
            except Exception as error:
                if self._ports.is_mended(error):
                    return None
                raise
        wire = encode_append(message, frames)
        self._latest_append = (message, wire)
        return wire

    # --- the live divergence alarm (ADR 6) -------------------------------------------------------

    def _digest_at(self, index: Index) -> int | None:
        """None where it can't be read, and is being got back, or is gone."""
        if index < self._core.base.index:
            return None
        if self._digest[0] != index:
            try:
                self._digest = (index, self._ports.log.digest_at(index))
            except Exception as error:
                if self._ports.is_mended(error):
                    return None
                raise
        return self._digest[1]

    def _check_digest(self, message: IncomingMessage, index: Index, theirs: int) -> None:
        """Compares what both sides know to be committed; nothing above our commit index is."""
        if message.term < self._core.term or index > self._core.commit_index:
            return
        ours = self._digest_at(index)
        if ours is not None and ours != theirs:
            raise Contradiction(
                message.sender,
                f"{message.sender} has digest {theirs:016x} at committed entry {index}, which "
                f"is {ours:016x} here",
                index,
            )

    def statistics(self) -> DriverStatistics:
        """A frozen picture, as of now."""
        return DriverStatistics(
            applied_index=self._applier.applied,
            messages_in=self._messages_in,
            messages_out=self._messages_out,
            appends_refused_for_space=self._refused_for_space,
            is_apply_paused=self._applier.is_paused,
            apply_stopped=str(self._applier.stopped or ""),
            is_short_of_space=self._room.is_short() or not self._can_serve(),
            messages_refused=self._doubt.messages_refused,
            contradictions=self._doubt.contradictions,
            reads_waiting=self._reads.waiting,
            uncompleted_persists=self._submitted_ticket - self._durable_ticket,
            clock=self._clock.statistics(self._now_us())
            if self._core.role is Role.LEADER
            else ClockStatistics(),
        )
