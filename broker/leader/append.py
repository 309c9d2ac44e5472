"""The leader's way into the log: validate, deduplicate, stamp, propose, answer when committed.

This owns what only a leader of one term knows: the queue offsets and producer sequences of
entries that are proposed and not yet applied, and who waits for them. All of it is thrown away
when leadership ends; whoever waits then learns that the batch *may have been stored* and finds
out by sending it again, which stores it once. It must never answer a batch before the state
machine has applied its entry, and never hand out a queue offset twice.

    Send ─ check ─┬─ new ────────── stamp, propose ── pending[index] ── applied ── answer
                  ├─ in flight ───────────────────────^ (same index)
                  ├─ stored before ── answer at once, as the first time
                  └─ gap, unknown ── refused, nothing happened
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import Batch, BatchAnswer, BatchRules, Placed
from broker.leader.pending import PendingSend, SequenceInFlight, Waiting
from broker.state.machine import NO_PRODUCER, StateMachine
from broker.state.refusals import Refusal
from broker.state.sequences import SequenceKey, StoredBatch
from dledger.core.errors import NotLeader, ProposalRefused, TooMuchUncommitted
from dledger.core.types import EntryKind, Proposed
from dledger.driver import LogBehind, LogFull, Stamp
from dledger.limits import MAX_SEND_BATCHES
from dledger.reading.entry import HEADER_SIZE
from dledger.records.errors import FormatError
from dledger.records.layout import HOST, RECORD
from dledger.records.record import BATCH_PREAMBLE
from dledger.wire.commands_pb2 import Command
from store.errors import StoreError
from store.stamping import stamp_records

PRODUCER_ID_SIZE = 16
RECORDS_AT = BATCH_PREAMBLE.size
STORE_HOST_AT = RECORD.at("store_host")


class Proposer(Protocol):
    """The driver, as far as proposals go."""

    def propose(
        self, kind: EntryKind, record_count: int, body: bytes | bytearray, stamp: Stamp | None
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
    ) -> None:
        """Starts idle; `begin` comes when this node leads.

        Args:
            proposer: the driver.
            machine: the applied state; read only.
            read_at: bytes of the log by (physical offset, size).
            is_full: whether the disk has no room for another segment.
            store_host: IPv4 address (4 bytes) and port that records are stamped with.
            max_message_bytes: the largest body.
        """
        self._read_at = read_at
        self._is_full = is_full
        self._proposer = proposer
        self._machine = machine
        self._store_host = store_host
        self._store_host_wire = HOST.struct().pack(*store_host)
        self._rules = BatchRules(max_message_bytes)
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._sequences: dict[SequenceKey, SequenceInFlight] = {}
        self._waiting: dict[int, list[Waiting]] = {}
        self._commands: dict[int, asyncio.Future[Refusal | None]] = {}
        self._in_flight: dict[int, tuple[SequenceKey, tuple[str, int]]] = {}
        self._deleting: dict[int, str] = {}  # index of a delete under way -> topic
        self._applied = 0
        self._batches = self._messages = self._bytes = self._duplicates = self._refused = 0

    # --- leadership ---------------------------------------------------------------------------

    def begin(self, applied_index: int) -> None:
        """This node leads and has applied everything in its log: start from the applied state."""
        self._forget()
        self._applied = applied_index

    def end(self, error: BrokerError) -> None:
        """Leadership is lost: everybody who waits is told `error`."""
        waiting, commands = self._waiting, self._commands
        self._forget()
        for batches in waiting.values():
            for batch in batches:
                batch.send.finish_one(batch.position, error.failure)
        for future in commands.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever awaited it may be gone

    def _forget(self) -> None:
        self._next_offsets = {}
        self._sequences = {}
        self._waiting = {}
        self._commands = {}
        self._in_flight = {}
        self._deleting = {}

    @property
    def idle(self) -> bool:
        """Whether nobody waits for anything."""
        return not self._waiting and not self._commands

    async def idled(self) -> None:
        """Returns when nobody waits for anything any more, as of the call."""
        futures: list[asyncio.Future[Any]] = list(self._commands.values())
        futures += {batch.send.done for waiting in self._waiting.values() for batch in waiting}
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
        topic, queue_id = batch.topic, batch.queue_id
        self._check_place(topic, queue_id)
        key = (producer, topic, queue_id)
        if producer != NO_PRODUCER and self._answer_known(key, batch, pending, position):
            return
        starts = self._rules.record_starts(batch)
        stored, index = self._append(key, batch, starts)
        self._batches += 1
        self._messages += batch.count
        self._bytes += len(batch.records)
        self._waiting.setdefault(index, []).append(Waiting(pending, position, self._result(stored)))

    def _check_place(self, topic: str, queue_id: int) -> None:
        state = self._machine.topics.get(topic)
        if state is None or topic in self._deleting.values():
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic!r} does not exist")
        if queue_id >= len(state.next_offsets):
            raise BrokerError(
                ErrorCode.QUEUE_NOT_FOUND,
                f"topic {topic!r} has queues 0 to {len(state.next_offsets) - 1}, not {queue_id}",
            )

    def _append(self, key: SequenceKey, batch: Batch, starts: list[int]) -> tuple[StoredBatch, int]:
        """Proposes the batch; what it will be once committed, and the entry's index."""
        producer, topic, queue_id = key
        place, records = (topic, queue_id), batch.records
        base = self._next_offsets.get(place)
        if base is None:
            base = self._machine.topics[topic].next_offsets[queue_id]
        body = bytearray(RECORDS_AT + len(records))
        BATCH_PREAMBLE.pack_into(body, 0, producer, batch.base_sequence)
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
        self._next_offsets[place] = base + batch.count
        self._in_flight[index] = (key, place)
        if producer != NO_PRODUCER:
            flight = self._sequences.setdefault(key, SequenceInFlight(0))
            flight.next_sequence = batch.base_sequence + batch.count
            flight.batches.append((index, stored))
        return stored, index

    def _propose(
        self, kind: EntryKind, count: int, body: bytes | bytearray, stamp: Stamp | None
    ) -> int:
        try:
            return self._proposer.propose(kind, count, body, stamp).index
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
        self, key: SequenceKey, batch: Batch, pending: PendingSend, position: int
    ) -> bool:
        """Answers or attaches a batch that is not new; False when it is the next one.

        Raises:
            BrokerError: a gap, an unknown producer, or a retry that doesn't fit the original.
        """
        flight = self._sequences.get(key)
        state = self._machine.sequences.get(key)
        expected = state.next_sequence if state is not None else 0
        if flight is not None:
            expected = flight.next_sequence
        if batch.base_sequence == expected:
            return False
        if batch.base_sequence > expected:
            self._refuse_gap(key, batch.base_sequence, expected)
        self._duplicates += 1
        for index, stored in flight.batches if flight is not None else ():
            if stored.base_sequence == batch.base_sequence and stored.record_count == batch.count:
                result = self._result(stored, duplicate=True)
                self._waiting.setdefault(index, []).append(Waiting(pending, position, result))
                return True
        for stored in state.recent if state is not None else ():
            if stored.base_sequence == batch.base_sequence and stored.record_count == batch.count:
                pending.finish_one(position, self._stored_before(stored))
                return True
        raise BrokerError(
            ErrorCode.INVALID_ARGUMENT,
            f"sequence {batch.base_sequence} of {batch.count} messages is older than {expected} "
            "and is none of the batches that are remembered: it was stored before, or cut "
            "differently",
        )

    def _refuse_gap(self, key: SequenceKey, found: int, expected: int) -> None:
        _, topic, queue_id = key
        if expected == 0:
            raise BrokerError(
                ErrorCode.UNKNOWN_PRODUCER,
                f"nothing is remembered of this producer in {topic}/{queue_id}; a new one "
                f"starts at sequence 0, not {found}",
            )
        raise BrokerError(
            ErrorCode.OUT_OF_SEQUENCE,
            f"sequence {found} follows {expected - 1} in {topic}/{queue_id}: {expected} is missing",
        )

    def _result(self, stored: StoredBatch, *, duplicate: bool = False) -> Placed:
        return Placed(
            base_queue_offset=stored.base_queue_offset,
            base_physical_offset=stored.base_physical_offset,
            store_time_ms=stored.store_time_ms,
            store_host=self._store_host_wire,
            is_duplicate=duplicate,
        )

    def _stored_before(self, stored: StoredBatch) -> Placed:
        """The first answer again; the host is in the record, another leader may have stored it."""
        at = stored.base_physical_offset + STORE_HOST_AT
        host = self._read_at(at, len(self._store_host_wire))
        return replace(self._result(stored, duplicate=True), store_host=host)

    # --- commands -----------------------------------------------------------------------------

    def submit(self, command: Command) -> asyncio.Future[Refusal | None]:
        """Proposes a command; the future gives its refusal, or None when it took effect.

        Raises:
            BrokerError: nothing happened.
        """
        index = self._propose(EntryKind.COMMAND, 0, command.SerializeToString(), None)
        if command.HasField("delete_topic"):
            self._deleting[index] = command.delete_topic.name
        future: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._commands[index] = future
        return future

    def on_command(self, index: int, refusal: Refusal | None) -> None:
        """The state machine has applied the command at `index`, or refused it."""
        self._deleting.pop(index, None)
        future = self._commands.pop(index, None)
        if future is not None and not future.done():
            future.set_result(refusal)

    def on_batch_voided(self, index: int) -> None:
        """Whoever waits for the batch at `index` learns that it was not stored."""
        if index in self._waiting:
            gone = "the topic was deleted before the batch"
            result = Failure(ErrorCode.TOPIC_NOT_FOUND, gone)
            waiting = self._waiting[index]
            self._waiting[index] = [batch._replace(result=result) for batch in waiting]

    def on_topic_deleted(self, name: str) -> None:
        """What was known of the topic's queues is void; a later topic starts afresh. Another
        delete of it may be under way still: see `_deleting`."""
        for place in [place for place in self._next_offsets if place[0] == name]:
            del self._next_offsets[place]
        for key in [key for key in self._sequences if key[1] == name]:
            del self._sequences[key]

    # --- completion ---------------------------------------------------------------------------

    def on_applied(self, index: int) -> None:
        """Everything up to `index` is applied: answer those who wait for it."""
        if not self._in_flight and not self._waiting:
            self._applied = max(self._applied, index)  # a follower, or nothing but commands
            return
        for applied in range(self._applied + 1, index + 1):
            placed = self._in_flight.pop(applied, None)
            if placed is not None:
                self._retire(applied, *placed)
            for batch in self._waiting.pop(applied, ()):
                batch.send.finish_one(batch.position, batch.result)
        self._applied = max(self._applied, index)

    def _retire(self, index: int, key: SequenceKey, place: tuple[str, int]) -> None:
        """Drops what the state machine knows by now."""
        flight = self._sequences.get(key)
        if flight is not None:
            while flight.batches and flight.batches[0][0] <= index:
                flight.batches.popleft()
            if not flight.batches:
                del self._sequences[key]
        topic = self._machine.topics.get(place[0])
        if topic is not None and self._next_offsets.get(place) == topic.next_offsets[place[1]]:
            del self._next_offsets[place]

    def statistics(self) -> AppenderStatistics:
        """A frozen picture, as of now."""
        return AppenderStatistics(
            sends_pending=sum(len(batches) for batches in self._waiting.values()),
            commands_pending=len(self._commands),
            batches_appended=self._batches,
            messages_appended=self._messages,
            bytes_appended=self._bytes,
            duplicates=self._duplicates,
            refused=self._refused,
        )
