"""What fake nodes have replicated: topics, queues, producers with their numbers, offsets.

One object for all nodes, as if replication took no time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Sequence_
from dataclasses import dataclass, field

from dledger.records.layout import RECORD
from dledger.records.record import decode_records, record_starts
from dledger.records.reserved import is_reserved
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import broker_pb2 as pb
from dledger.wire import commands_pb2 as kpb
from dledger.wire import errors_pb2 as epb

STORE_HOST = ("127.0.0.1", 9_999)
STORE_HOST_WIRE = bytes((127, 0, 0, 1)) + STORE_HOST[1].to_bytes(4, "big")
OFFSETS = RECORD.run("queue_offset", "physical_offset")
STORED = RECORD.run("store_time_ms", "store_host")
REMEMBERED_BATCHES = 5
WRITTEN, READ = 2, 4  # bits of a topic's permission
MAX_QUEUES = 1_024  # of a topic


@dataclass
class FakeQueue:
    """Stamped records by offset; `min_offset` moves when a test deletes old ones."""

    records: list[bytes] = field(default_factory=list)
    min_offset: int = 0

    def offset_by_time(self, time_ms: int) -> int:
        """The first message stored then or later, or one past the last."""
        for offset in range(self.min_offset, len(self.records)):
            if decode_records(self.records[offset])[0].store_time_ms >= time_ms:
                return offset
        return len(self.records)

    def start(self, wish: int, time_ms: int) -> int:
        """Where a group begins that wishes so: at `START_FIRST`, `START_LAST` or `START_TIME`."""
        if wish == kpb.START_TIME:
            return self.offset_by_time(time_ms)
        return len(self.records) if wish == kpb.START_LAST else self.min_offset


@dataclass
class Sequence:
    next_sequence: int = 0
    recent: deque[tuple[int, int, pb.SendResult]] = field(
        default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES)
    )


@dataclass
class Registered:
    """A producer: its id now, and its first one, under which its numbers are kept."""

    producer_id: bytes
    origin: bytes


class Model:
    """The replicated state: topics, queues, producers, sequences, offsets."""

    def __init__(self) -> None:
        self.topics: dict[str, list[FakeQueue]] = {}
        self.incarnations: dict[str, int] = {}  # by topic: the entry that created it
        self.created_ms: dict[str, int] = {}  # by topic
        self.sequences: dict[tuple[bytes, str, int], Sequence] = {}
        self.producers: dict[bytes, Registered] = {}  # by token, former ones too
        self.names: dict[str, Registered] = {}
        self.retention_ms: dict[str, int] = {}  # by topic
        self.write_queues: dict[str, int] = {}  # of topics that were changed
        self.changes: dict[str, int] = {}  # by topic: the entry by which they were
        self.permissions: dict[str, int] = {}  # by topic
        self.entries = 0
        self.max_producers = 100
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.physical = 1_000
        self.arrived = asyncio.Condition()
        self.knows_wishes = True  # False: as nodes from before that, it makes topics without
        self.knows_tags = True  # False: as nodes from before that, it gives everything
        self.looked_at_once = 32_768  # records, by tags
        self.max_hold_ms = 20_000
        self.when_deleted: list[Callable[[str], None]] = []  # called with the topic's name

    def create(self, name: str, queues: int) -> None:
        """The topic is there, without a message; one that had the name is gone."""
        if name in self.topics:
            self.delete(name)
        self.entries += 1
        self.incarnations[name] = self.entries
        self.created_ms[name] = time.time_ns() // 1_000_000
        self.topics[name] = [FakeQueue() for _ in range(queues)]

    def delete(self, name: str) -> None:
        """The topic is gone, and whatever was known of it."""
        del self.topics[name], self.incarnations[name]
        self.sequences = {key: each for key, each in self.sequences.items() if key[1] != name}
        self.offsets = {key: each for key, each in self.offsets.items() if key[1] != name}
        for known in (self.retention_ms, self.write_queues, self.changes, self.permissions):
            known.pop(name, None)
        for forget in self.when_deleted:
            forget(name)

    def hold_s(self, wanted_ms: int) -> float:
        """For how long a call is held that is to be held so long."""
        return min(wanted_ms, self.max_hold_ms) / 1000

    def queues(self, topic: str, incarnation: int = 0) -> list[FakeQueue]:
        """Those of the topic that has the name. Incarnation 0: whichever has.

        Raises:
            Refusal: there is none, or another one than is meant.
        """
        if topic not in self.topics:
            raise Refusal(wire_error(epb.TOPIC_NOT_FOUND, f"topic {topic!r} does not exist"))
        present = self.incarnations[topic]
        if incarnation not in (0, present):
            raise Refusal(wire_error(epb.TOPIC_REPLACED, f"the one of entry {present}"))
        return self.topics[topic]

    def queue(self, topic: str, queue_id: int, incarnation: int = 0) -> FakeQueue:
        """A queue of the topic; see `queues`.

        Raises:
            Refusal: the topic isn't there, or has no such queue.
        """
        queues = self.queues(topic, incarnation)
        if queue_id >= len(queues):
            raise Refusal(wire_error(epb.QUEUE_NOT_FOUND, f"{len(queues)} queues"))
        return queues[queue_id]

    def ensure(self, topic: str) -> None:
        """A topic of the brokers' own is there."""
        if topic not in self.topics:
            self.create(topic, 1)

    def add(self, topic: str, record: bytes, queue_id: int = 0) -> int:
        """The record, which the brokers have made, is stored; at which offset."""
        batch = pb.SendBatch(topic=topic, queue_id=queue_id, count=1, records=record)
        return self._append(self.queue(topic, queue_id), batch).base_queue_offset

    async def ring(self) -> None:
        """Whoever waits for messages looks again."""
        async with self.arrived:
            self.arrived.notify_all()

    def out_of_range(self, queue: FakeQueue, offset: int) -> epb.Error:
        """The error of who asks for that offset."""
        refused = wire_error(epb.OFFSET_OUT_OF_RANGE, f"offset {offset}")
        refused.valid.min_offset = queue.min_offset
        refused.valid.max_offset = len(queue.records)
        return refused

    def check_permission(self, topic: str, bit: int) -> None:
        """The topic is written (2), or read (4).

        Raises:
            Refusal: it isn't.
        """
        if not self.permissions.get(topic, 6) & bit:
            code = epb.TOPIC_NOT_WRITABLE if bit == WRITTEN else epb.TOPIC_NOT_READABLE
            raise Refusal(wire_error(code, f"topic {topic!r}: its permission doesn't say so"))

    def chosen(
        self, queue: FakeQueue, offset: int, tags: Sequence_[str], *, most: int, size: int
    ) -> tuple[list[bytes], int]:
        """Up to `most` records from `offset` on that carry one of the tags, none: all; their size
        in all is `size` at most, or there is one; and how far it has looked."""
        found: list[bytes] = []
        wanted = frozenset(tags) if self.knows_tags else frozenset()
        end = len(queue.records)
        if wanted:
            end = min(end, offset + self.looked_at_once)
        for at in range(offset, end):
            record = queue.records[at]
            if wanted and decode_records(record)[0].tags not in wanted:
                continue
            if len(found) == most or (found and len(record) > size):
                return found, at
            found.append(record)
            size -= len(record)
        return found, max(offset, end)

    def store(self, producer: bytes, batch: pb.SendBatch) -> pb.SendResult:
        """Stores a batch once, as the state machine would; of nobody's as often as it is sent."""
        check_own(batch.topic)
        self.queues(batch.topic, batch.topic_incarnation)
        if not producer:
            queue = self.queue(batch.topic, batch.queue_id)
            self._check_choice(batch)
            self.check_permission(batch.topic, WRITTEN)
            return self._append(queue, batch)
        known = self.producers.get(producer[8:])
        if known is None:
            raise Refusal(wire_error(epb.UNKNOWN_PRODUCER, "not registered"))
        if known.producer_id != producer:
            raise Refusal(wire_error(epb.PRODUCER_FENCED, "registered by another"))
        queue = self.queue(batch.topic, batch.queue_id)
        key = (known.origin, batch.topic, batch.queue_id)
        state = self.sequences.get(key, Sequence())
        for base, count, result in state.recent:
            if (base, count) == (batch.base_sequence, batch.count):
                again = pb.SendResult()
                again.CopyFrom(result)
                again.duplicate = True
                return again
        if batch.base_sequence > state.next_sequence:
            code = epb.OUT_OF_SEQUENCE if state.next_sequence else epb.UNKNOWN_PRODUCER
            raise Refusal(wire_error(code, f"{batch.base_sequence} is not next"))
        if batch.base_sequence + batch.count <= state.next_sequence:
            return pb.SendResult(duplicate=True, place_forgotten=True)
        if batch.base_sequence < state.next_sequence:
            raise Refusal(wire_error(epb.INVALID_ARGUMENT, "older than what is remembered"))
        self._check_choice(batch)
        self.check_permission(batch.topic, WRITTEN)
        result = self._append(queue, batch)
        state.next_sequence += batch.count
        state.recent.append((batch.base_sequence, batch.count, result))
        self.sequences[key] = state
        return result

    def _check_choice(self, batch: pb.SendBatch) -> None:
        present = self.changes.get(batch.topic, 0)
        if batch.HasField("queues_changed") and batch.queues_changed != present:
            raise Refusal(wire_error(epb.QUEUES_CHANGED, "read the topic again"))
        if batch.queue_id >= self.write_queues.get(batch.topic, 1 << 32):
            raise Refusal(wire_error(epb.QUEUE_CLOSED, f"queue {batch.queue_id} is closed"))

    def update(self, topic: str, read_queues: int, write_queues: int) -> None:
        """The topic is read and written in so many queues; 0: as it is. None goes."""
        queues = self.topics[topic]
        before = self.write_queues.get(topic, len(queues))
        read, write = max(read_queues, len(queues)), write_queues or before
        if not write <= read <= MAX_QUEUES:
            raise Refusal(wire_error(epb.INVALID_ARGUMENT, f"{write} of {read} queues"))
        queues += [FakeQueue() for _ in range(read - len(queues))]
        self.write_queues[topic] = write
        if write != before:
            self.entries += 1
            self.changes[topic] = self.entries

    def register(self, token: bytes, name: str, previous: bytes) -> Registered:
        """Registers a producer, as the state machine would."""
        if token in self.producers:
            return self.producers[token]
        self.entries += 1
        identity = self.entries.to_bytes(8, "big") + token
        held = self.names.get(name)
        if held is not None:
            if previous and previous != held.producer_id:
                raise Refusal(wire_error(epb.PRODUCER_FENCED, f"{name} is another's"))
            held.producer_id = identity
        elif len(self.producers) >= self.max_producers:
            raise Refusal(wire_error(epb.LIMIT_REACHED, "too many producers"))
        else:
            held = Registered(identity, identity)
        if name:
            self.names[name] = held
        self.producers[token] = held
        return held

    def forget(self) -> None:
        """Nothing is known of any producer any more."""
        self.producers.clear()
        self.names.clear()
        self.sequences.clear()

    def _append(self, queue: FakeQueue, batch: pb.SendBatch) -> pb.SendResult:
        buf = bytearray(batch.records)
        starts = record_starts(buf, 0, batch.count)
        base = len(queue.records)
        for number, start in enumerate(starts):
            place = (base + number, self.physical + start)
            OFFSETS.pack_into(buf, start + RECORD.at("queue_offset"), *place)
            stored = (1_700_000_000_000 + self.physical, STORE_HOST_WIRE)
            STORED.pack_into(buf, start + RECORD.at("store_time_ms"), *stored)
        ends = [*starts[1:], len(buf)]
        queue.records += [bytes(buf[start:end]) for start, end in zip(starts, ends, strict=True)]
        result = pb.SendResult(
            base_queue_offset=base,
            base_physical_offset=self.physical,
            store_time_ms=1_700_000_000_000 + self.physical,
            store_host=STORE_HOST_WIRE,
        )
        self.physical += len(buf)
        return result

    def bodies(self, topic: str, queue_id: int) -> list[bytes]:
        """What is stored in a queue, in order."""
        return [decode_records(record)[0].body for record in self.topics[topic][queue_id].records]


def check_own(topic: str) -> None:
    """The topic isn't one of the brokers' own.

    Raises:
        Refusal: it is.
    """
    if is_reserved(topic):
        text = f"topic {topic!r} is the brokers' own: it can be read, and nothing else"
        raise Refusal(wire_error(epb.INVALID_ARGUMENT, text))
