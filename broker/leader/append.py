"""The leader's way into the log: validate, deduplicate, stamp, propose, answer when committed.

This owns who waits for entries that are proposed and not yet applied; what they will be once they
are is `broker.leader.flight`. All of it is thrown away when leadership ends; whoever waits then
learns that the batch *may have been stored* and finds out by sending it again, which stores it
once. It must never answer a batch before the state machine has applied its entry, and never hand
out a queue offset twice. Who waits is known by an entry's index alone, so nothing is taken but from
`begin` to `end`: between an election and `begin` the log may hold what isn't applied, and what was
proposed in one leadership must not be there in the next, when the index is another entry's.

    Send ─ known? ─┬─ producer unknown, or fenced ──── refused
                   ├─ in flight ────────────────────── wait for the same entry
                   ├─ stored before ── answer at once, as the first time
                   └─ new ─ place? ─┬─ no such queue, or about to be deleted ── refused
                                    ├─ chosen before a change, or closed ────── refused
                                    ├─ gap, or no room for one queue more ── refused
                                    └─ stamp, propose ── pending[index] ── applied ── answer

Known comes before place: a batch whose fate its producer doesn't know may be stored in a topic that
takes no more, and "no such topic" would send it somewhere else, a second time. What is refused has
not happened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from broker.errors import BrokerError, ErrorCode, own_topic, replaced
from broker.leader.batches import Batch, BatchAnswer, BatchRules, Placed, StoredBefore
from broker.leader.closing import check_open
from broker.leader.flight import InFlight, Lane
from broker.leader.numbering import (
    Numbers,
    StoredInFlight,
    StoredLongAgo,
    check_next,
    is_behind,
    is_crowded,
    numbers_of,
    room_for,
)
from broker.leader.offsets_room import OffsetsRoom, begun_by
from broker.leader.pending import PendingSend, Waiting
from broker.leader.units import Units
from broker.leader.voided import closed, refused_batch, voided
from broker.state.compound import NO_PRODUCER, Judged
from broker.state.machine import StateMachine
from broker.state.moving import Moves
from broker.state.refusals import BatchRefusal, Refusal
from broker.state.sequences import StoredBatch
from broker.state.topics import TopicState
from dledger.core.errors import NotLeader, ProposalRefused, TooMuchUncommitted
from dledger.core.types import EntryKind, Proposed
from dledger.driver import LogBehind, LogFull, Stamp
from dledger.limits import MAX_SEND_BATCHES
from dledger.ports import USUAL_VERSION
from dledger.reading.entry import HEADER_SIZE
from dledger.records.errors import FormatError
from dledger.records.layout import HOST, RECORD
from dledger.records.record import BATCH_PREAMBLE
from dledger.records.reserved import is_reserved
from dledger.wire.commands_pb2 import Command, ForgetProducersCommand
from store.errors import CorruptionFound, OutOfRange, StoreError
from store.stamping import stamp_records

PRODUCER_ID_SIZE = 16
MAX_FORGOTTEN = 64  # producers, by one command
RECORDS_AT = BATCH_PREAMBLE.size
STORE_HOST_AT = RECORD.at("store_host")


class Proposer(Protocol):
    """The driver, as far as proposals go."""

    def propose(
        self,
        kind: EntryKind,
        record_count: int,
        body: bytes | bytearray,
        stamp: Stamp | None,
        version: int = USUAL_VERSION,
    ) -> Proposed: ...


@dataclass(frozen=True, slots=True)
class AppenderStatistics:
    sends_pending: int
    commands_pending: int
    batches_appended: int
    messages_appended: int
    bytes_appended: int
    duplicates: int
    refused: int


class Appender:
    """Takes batches and commands while this node leads; one owner thread."""

    def __init__(
        self,
        proposer: Proposer,
        machine: StateMachine,
        read_at: Callable[[int, int], bytes],
        is_full: Callable[[], bool],
        store_host: tuple[bytes, int],
        max_message_bytes: int,
        segment_bytes: int,
    ) -> None:
        """Starts idle; `begin` comes when this node leads.

        Args:
            proposer: the driver.
            machine: the applied state; read only.
            read_at: bytes of the log by (physical offset, size).
            is_full: whether the disk has no room for another segment.
            store_host: IPv4 address (4 bytes) and port that records are stamped with.
            max_message_bytes: the largest body that is taken from clients.
            segment_bytes: of the log: no entry is longer.
        """
        self._read_at = read_at
        self._is_full = is_full
        self._proposer = proposer
        self._machine = machine
        self._store_host = store_host
        self._store_host_wire = HOST.struct().pack(*store_host)
        self._rules = BatchRules(max_message_bytes, segment_bytes)
        self.check_in_steps = self._rules.check_in_steps
        self._flight = InFlight()
        self.is_behind = lambda id_, batch: is_behind(machine, self._flight, id_, batch)
        self.room = OffsetsRoom(machine, lambda: self._flight.beginning)
        self.units = Units(
            *(self._propose, machine, self.room, lambda: self._flight, self._rules),
            *(store_host, segment_bytes),
        )
        self._waiting: dict[int, list[Waiting]] = {}
        self._commands: dict[int, asyncio.Future[Any]] = {}  # what `submit` gives
        self._applied = 0
        self._is_leading = False
        self._batches = self._messages = self._bytes = self._duplicates = self._refused = 0

    # --- leadership ---------------------------------------------------------------------------

    def begin(self, applied_index: int) -> None:
        """This node leads and has applied everything in its log: start from the applied state."""
        self.end(BrokerError(ErrorCode.LEADERSHIP_LOST, "of a leadership before: it may be stored"))
        self._applied = applied_index
        self._is_leading = True
        self.units.begin()

    def end(self, error: BrokerError) -> None:
        """Leadership is lost, or was never begun: everybody who waits is told `error`."""
        waiting, commands = self._waiting, self._commands
        self._is_leading = False
        self._flight, self._waiting, self._commands = InFlight(), {}, {}
        self.units.end(error)
        for batches in waiting.values():
            for batch in batches:
                batch.send.finish_one(batch.position, error.failure)
        for future in commands.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever awaited it may be gone

    def _check_leading(self) -> None:
        """Returns between `begin` and `end`. Whoever was let in by a leadership before, and had its
        turn only now, isn't answered by a state that isn't whole.

        Raises:
            BrokerError: NOT_READY.
        """
        if not self._is_leading:
            text = "this node leads no more, or has not applied its log yet: nothing happened"
            raise BrokerError(ErrorCode.NOT_READY, text)

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._waiting and not self._commands and not self.units.futures()

    async def idled(self) -> None:
        """Returns when nobody waits for anything any more, as of the call."""
        futures: list[asyncio.Future[Any]] = list(self._commands.values())
        futures += {batch.send.done for waiting in self._waiting.values() for batch in waiting}
        futures += self.units.futures()
        if futures:
            await asyncio.wait(futures)

    # --- sends --------------------------------------------------------------------------------

    def send(
        self, producer_id: bytes, batches: Sequence[Batch]
    ) -> asyncio.Future[list[BatchAnswer]]:
        """Takes a Send; the future gives one result for each batch, in order.

        Raises:
            BrokerError: INVALID_ARGUMENT for the request as a whole; nothing happened.
        """
        if producer_id and len(producer_id) != PRODUCER_ID_SIZE:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT,
                f"producer_id has {len(producer_id)} bytes, not 16 or none",
            )
        if not 0 < len(batches) <= MAX_SEND_BATCHES:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT,
                f"a Send holds 1 to {MAX_SEND_BATCHES} batches, not {len(batches)}",
            )
        done: asyncio.Future[list[BatchAnswer]] = asyncio.get_running_loop().create_future()
        pending = PendingSend.of(len(batches), done)
        for position, batch in enumerate(batches):
            try:
                self._take(producer_id or NO_PRODUCER, batch, pending, position)
            except BrokerError as error:
                self._refused += 1
                pending.finish_one(position, error.failure)
        return done

    def _take(self, producer: bytes, batch: Batch, pending: PendingSend, position: int) -> None:
        self._check_leading()
        if is_reserved(batch.topic):
            raise own_topic(batch.topic)
        topic = self._machine.topics.get(batch.topic)
        if topic is None:
            raise _no_topic(batch.topic)
        if batch.incarnation not in (0, topic.incarnation):  # `TopicRef.means`
            raise replaced(batch.topic, batch.incarnation, topic.incarnation)
        lane = Lane(producer, topic.incarnation, batch.queue_id)
        producers, numbers = self._machine.producers, None
        if producer != NO_PRODUCER:
            numbers = numbers_of(producers, self._flight, lane)
            if batch.base_sequence < numbers.next_sequence:
                self._answer_known(numbers, batch, pending, position)
                return
        self._check_place(topic, batch)
        if numbers is not None:
            check_next(numbers, self._flight, batch)
            self._check_room(numbers)
        starts = self._rules.record_starts(batch)
        self._rules.check_properties(batch, starts)
        stored, index = self._append(lane, batch, starts)
        self._batches += 1
        self._messages += batch.count
        self._bytes += len(batch.records)
        self._waiting.setdefault(index, []).append(Waiting(pending, position, self._result(stored)))

    def _check_place(self, topic: TopicState, batch: Batch) -> None:
        queue_id = batch.queue_id
        if self._flight.is_deleting(topic.name):
            raise _no_topic(topic.name)
        self._check_choice(topic, batch)
        check_open(self._machine, self._flight, topic)
        if queue_id >= len(topic.next_offsets):
            raise BrokerError(
                ErrorCode.QUEUE_NOT_FOUND,
                f"topic {topic.name!r} has queues 0 to {len(topic.next_offsets) - 1}, "
                f"not {queue_id}",
            )
        refusal = self._machine.queue_numbers.refusal_of(topic.name, topic.incarnation, queue_id)
        if refusal is not None:
            raise closed(refusal)

    def _check_choice(self, topic: TopicState, batch: Batch) -> None:
        """The batch's queue was chosen by what the topic is, and will be when it is applied: no
        update lies between (ADR 60).

        Raises:
            BrokerError: QUEUES_CHANGED; BUSY while that isn't known; NOT_READY, others know more.
        """
        if self._flight.is_changing(topic.name):
            raise BrokerError(ErrorCode.BUSY, f"topic {topic.name!r} is being changed")
        changed = self._machine.queue_numbers.changed(topic.incarnation)
        if batch.queues_changed is None or batch.queues_changed == changed:
            return
        if batch.queues_changed > changed:
            text = f"topic {topic.name!r} isn't known here as its sender knows it"
            raise BrokerError(ErrorCode.NOT_READY, text)
        if batch.queues_changed < changed:
            text = (
                f"topic {topic.name!r} takes messages in other queues since entry {changed}: "
                "read it again, and choose by what it is now"
            )
            raise BrokerError(ErrorCode.QUEUES_CHANGED, text)

    def _append(self, lane: Lane, batch: Batch, starts: list[int]) -> tuple[StoredBatch, int]:
        """Proposes the batch; what it will be once committed, and the entry's index."""
        producer, records = lane.producer, batch.records
        next_offset = self._flight.next_offset(lane)
        if next_offset is None:
            next_offset = self._machine.topics[batch.topic].next_offsets[batch.queue_id]
        base = next_offset
        body = bytearray(RECORDS_AT + len(records))
        BATCH_PREAMBLE.pack_into(body, 0, producer, batch.base_sequence, lane.incarnation)
        body[RECORDS_AT:] = records
        stamped: list[int] = []

        def stamp(physical_offset: int, append_time_ms: int) -> None:
            first_record = physical_offset + HEADER_SIZE + RECORDS_AT
            stamp_records(
                body,
                starts,
                at=RECORDS_AT,
                base_queue_offset=base,
                base_physical_offset=first_record,
                store_time_ms=append_time_ms,
                store_host=self._store_host,
            )
            stamped.extend((first_record, append_time_ms))

        index = self._propose(EntryKind.DATA, batch.count, body, stamp)
        stored = StoredBatch(batch.base_sequence, batch.count, base, stamped[0], stamped[1])
        self._flight.add(index, lane, stored, is_numbered=producer != NO_PRODUCER)
        return stored, index

    def _propose(
        self,
        kind: EntryKind,
        count: int,
        body: bytes | bytearray,
        stamp: Stamp | None,
        version: int = USUAL_VERSION,
    ) -> int:
        try:
            return self._proposer.propose(kind, count, body, stamp, version).index
        except (TooMuchUncommitted, LogBehind) as error:
            raise BrokerError(ErrorCode.BUSY, str(error)) from error
        except NotLeader as error:
            raise BrokerError(ErrorCode.NOT_LEADER, str(error)) from error
        except ProposalRefused as error:
            raise BrokerError(ErrorCode.NOT_READY, str(error)) from error
        except LogFull as error:
            if self._is_full():
                raise BrokerError(
                    ErrorCode.STORAGE_FULL,
                    f"the leader's disk has no space for a new segment: {error}",
                ) from error
            raise BrokerError(
                ErrorCode.BUSY, f"the next segment is being prepared: {error}"
            ) from error
        except (StoreError, FormatError) as error:
            # The log failed with the entry's place taken: the next leader knows what became of it.
            raise BrokerError(
                ErrorCode.LEADERSHIP_LOST,
                f"the leader's log failed; it may have been stored: {error}",
            ) from error

    # --- deduplication ------------------------------------------------------------------------

    def _answer_known(
        self, numbers: Numbers, batch: Batch, pending: PendingSend, position: int
    ) -> None:
        """Answers a batch that is older than the next one, or lets it wait for the same entry.

        Raises:
            BrokerError: it is none of those that were sent.
        """
        match numbers.find(batch):
            case StoredInFlight(index, sent):
                result = self._result(sent, duplicate=True)
                self._waiting.setdefault(index, []).append(Waiting(pending, position, result))
            case StoredLongAgo():
                pending.finish_one(position, StoredBefore())
            case stored:
                pending.finish_one(position, self._stored_before(stored))
        self._duplicates += 1

    def _check_room(self, numbers: Numbers) -> None:
        """The producer may send to one queue more.

        Raises:
            BrokerError: LIMIT_REACHED; BUSY while others are being forgotten to make room.
        """
        refusal = room_for(self._machine.producers, self._flight, numbers)
        if refusal is None:
            return
        if refusal.limit == self._machine.producers.bounds.pairs and self._make_room():
            raise BrokerError(ErrorCode.BUSY, "producers that are unused for long are forgotten")
        raise refused_batch(refusal)

    def _make_room(self) -> bool:
        """Whether producers that are unused for long are being forgotten: proposes it. The command
        names nobody if there is nobody: lived time moves on by entries alone, and in a group that
        is full and otherwise silent nobody would ever have been unused for long."""
        if not self._flight.is_forgetting:
            machine = self._machine
            unused = machine.producers.forgettable(machine.lived_time.lived_ms, MAX_FORGOTTEN)
            self.submit(Command(forget_producers=ForgetProducersCommand(producer_ids=unused)))
            return bool(unused)
        return True

    def _result(self, stored: StoredBatch, *, duplicate: bool = False) -> Placed:
        return Placed(
            base_queue_offset=stored.base_queue_offset,
            base_physical_offset=stored.base_physical_offset,
            store_time_ms=stored.store_time_ms,
            store_host=self._store_host_wire,
            is_duplicate=duplicate,
        )

    def _stored_before(self, stored: StoredBatch) -> Placed:
        """The first answer again; the host is in the record, another leader may have stored it. Of
        a record that the log has let go it is this one: by neither it is found any more. So it is
        of one that has rotted, which is got back meanwhile: that it is stored stays true."""
        answer = self._result(stored, duplicate=True)
        at = stored.base_physical_offset + STORE_HOST_AT
        try:
            return replace(answer, store_host=self._read_at(at, len(answer.store_host)))
        except (OutOfRange, CorruptionFound):
            return answer

    # --- commands -----------------------------------------------------------------------------

    def submit(self, command: Command) -> asyncio.Future[Refusal | None]:
        """Proposes a command; the future gives its refusal, or None when it took effect; of a move
        what it did.

        Raises:
            BrokerError: nothing happened.
        """
        self._check_leading()
        begun = begun_by(self._machine, command)
        self.room.check(begun)
        if command.HasField("register_producer") and is_crowded(
            self._machine.producers, self._flight
        ):
            self._make_room()
        index = self._propose(EntryKind.COMMAND, 0, command.SerializeToString(), None)
        self._flight.add_command(index, command)
        self._flight.add_beginning(index, begun)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._commands[index] = future
        return future

    def on_command(self, index: int, result: Refusal | Moves | None) -> None:
        """The state machine has applied the command at `index`, or refused it."""
        self._flight.retire_command(index)
        self.room.heed(result)
        future = self._commands.pop(index, None)
        if future is not None and not future.done():
            future.set_result(result)

    def on_units(self, index: int, units: Sequence[Judged]) -> None:
        """The state machine has applied the units of the entry at `index`, or refused them."""
        self._flight.retire_command(index)
        for each in units:
            self.room.heed(each.refusal)
        self.units.on_applied(index, units)

    def on_batch_voided(self, index: int, refusal: BatchRefusal) -> None:
        """Whoever waits for the batch at `index` learns that it was not stored, and why."""
        self._flight.void(index)
        if index in self._waiting:
            result = voided(refusal)
            waiting = self._waiting[index]
            self._waiting[index] = [batch._replace(result=result) for batch in waiting]

    # --- completion ---------------------------------------------------------------------------

    def on_applied(self, index: int) -> None:
        """Everything up to `index` is applied: answer those who wait for it."""
        if not self._flight.is_empty or self._waiting:  # else a follower, or nothing but commands
            self._answer(index)
        self._applied = max(self._applied, index)
        self.units.go_on()

    def _answer(self, index: int) -> None:
        for applied in range(self._applied + 1, index + 1):
            self._flight.retire(applied)
            for batch in self._waiting.pop(applied, ()):
                batch.send.finish_one(batch.position, batch.result)

    def is_coming(self, incarnation: int, queue_id: int) -> bool:
        """Whether a batch for that queue, or of units, is proposed and not applied yet."""
        return self._flight.end_of((incarnation, queue_id)) is not None

    @property
    def coming(self) -> InFlight:
        """What is proposed and not applied yet; to be read."""
        return self._flight

    def meant_for(self) -> dict[int, int]:
        """The incarnation of its topic that each batch on its way is for, by index."""
        return self._flight.meant_for()

    def statistics(self) -> AppenderStatistics:
        """A frozen picture, as of now."""
        return AppenderStatistics(
            sends_pending=sum(len(batches) for batches in self._waiting.values()),
            commands_pending=len(self._commands) + len(self.units.futures()),
            batches_appended=self._batches,
            messages_appended=self._messages,
            bytes_appended=self._bytes,
            duplicates=self._duplicates,
            refused=self._refused,
        )


def _no_topic(topic: str) -> BrokerError:
    return BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic!r} does not exist")
