"""A leader's broker without a network: a log in memory that commits when told.

`Bench` joins the real Appender, StateMachine and QueueReader to a memory log. Proposals wait
until `commit` applies them, as the driver would.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable

from broker.announcing import Announcer
from broker.leader.append import Appender
from broker.leader.batches import Batch, BatchAnswer
from broker.leader.commands import Commands
from broker.reading.held import HeldPulls
from broker.reading.queues import QueueReader
from broker.state.listening import QueueKey
from broker.state.machine import MachineOptions, StateMachine
from broker.state.refusals import BatchRefusal, Malformed, Refusal
from broker.state.registration import Registration, producer_id
from broker.state.topics import TopicState
from dledger.core.types import EntryKind, Index, Proposed, Term
from dledger.driver import Stamp
from dledger.reading.entry import (
    EntryHeader,
    build_frame,
    digest_of,
    parse_header,
    position_after,
    verify_frame,
)
from dledger.records.properties import encode_properties
from dledger.records.record import RecordTemplate, record_starts
from dledger.wire.commands_pb2 import Command, CreateTopicCommand
from store.errors import StorageFull
from store.stamping import stamp_records

HOST = (bytes([127, 0, 0, 1]), 7001)
SEGMENT = 64 << 20
TOKEN = b"number01"
PRODUCER = producer_id(1, TOKEN)  # every bench begins with its registration


class MemoryLog:
    """`ReplicatedLog` without files; `flush` makes everything submitted durable."""

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = list(frames)
        self.room = True
        self.capacity_bytes = SEGMENT
        self.durable: list[bytes] = list(frames)
        self._submitted: deque[tuple[int, Callable[[], None] | None, list[bytes]]] = deque()
        self.on_durable: Callable[[int], None] = lambda _: None

    @property
    def last_index(self) -> int:
        return len(self.frames)

    @property
    def last_append_time_ms(self) -> int:
        return parse_header(self.frames[-1], 0).append_time_ms if self.frames else 0

    def _end(self) -> tuple[int, int]:
        if not self.frames:
            return 0, 0
        last = parse_header(self.frames[-1], 0)
        return last.physical_offset + last.total_size, last.digest

    def next_position(self, frame_size: int) -> int:
        return position_after(self._end()[0], frame_size, SEGMENT)

    def has_room(self, frame_bytes: int) -> bool:
        return self.room and self._end()[0] + frame_bytes <= self.capacity_bytes

    @property
    def unwritten_bytes(self) -> int:
        return sum(map(len, self.frames[len(self.durable) :]))

    def is_short_of_space(self, frame_bytes: int) -> bool:
        return not self.has_room(frame_bytes)

    def append(
        self,
        kind: int,
        index: int,
        term: int,
        append_time_ms: int,
        record_count: int,
        body: bytes | bytearray,
    ) -> int:
        assert index == self.last_index + 1
        at = self.next_position(56 + len(body))
        if at + 56 + len(body) > self.capacity_bytes:
            raise StorageFull("memory", 56 + len(body), self.capacity_bytes - at)
        header, _ = build_frame(
            kind, index, term, at, append_time_ms, record_count, body, self._end()[1]
        )
        self.frames.append(header + bytes(body))
        return at

    def refusal_of(self, blob: memoryview, headers: list[EntryHeader]) -> str | None:
        at, digest = 0, self.digest_at(headers[0].index - 1)
        for header in headers:
            digest = digest_of(blob, at, header.total_size, digest)
            if digest != header.digest:
                return f"digest {header.digest:016x}, expected {digest:016x}"
            at += header.total_size
        return None

    def verify(self, first: int, last: int, digest: int) -> int:
        for frame in self.durable[first - 1 : last]:
            digest = verify_frame(frame, 0, digest).digest
        return digest

    @property
    def synced_index(self) -> int:
        return len(self.durable)

    def append_frames(self, blob: memoryview, headers: list[EntryHeader]) -> None:
        at = 0
        for header in headers:
            assert header.index == self.last_index + 1
            self.frames.append(bytes(blob[at : at + header.total_size]))
            at += header.total_size

    def truncate_from(self, index: int) -> None:
        del self.frames[index - 1 :]

    def submit(self, ticket: int, prelude: Callable[[], None] | None) -> None:
        self._submitted.append((ticket, prelude, list(self.frames)))

    def flush(self) -> None:
        """Everything submitted is on disk, one ticket after the other."""
        while self._submitted:
            ticket, prelude, frames = self._submitted.popleft()
            if prelude is not None:
                prelude()
            self.durable = frames
            self.on_durable(ticket)

    def read(self, first: int, last: int) -> bytes:
        return b"".join(self.frames[first - 1 : last])

    def last_that_fits(self, first: int, last: int, max_bytes: int) -> int:
        size, index = 0, first
        for candidate in range(first, last + 1):
            size += len(self.frames[candidate - 1])
            if size > max_bytes and candidate > first:
                break
            index = candidate
        return index

    def digest_at(self, index: int) -> int:
        return parse_header(self.frames[index - 1], 0).digest if index else 0


class MemoryQueues:
    """ConsumeQueues in memory."""

    def __init__(self) -> None:
        self.held: defaultdict[tuple[str, int], bytearray] = defaultdict(bytearray)
        self.is_full = False

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        if self.is_full:
            raise StorageFull("memory", len(units), 0)
        assert len(self.held[topic, queue_id]) == base_queue_offset * 20
        self.held[topic, queue_id] += units

    def delete_topic(self, topic: str) -> None:
        if self.is_full:
            raise StorageFull("memory", 0, 0)
        for key in [key for key in self.held if key[0] == topic]:
            del self.held[key]

    def units(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        return bytes(self.held[topic, queue_id][first * 20 : (first + count) * 20])

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0


class Bench:
    """One leader. `refuse` makes the next proposals fail."""

    def __init__(self, options: MachineOptions | None = None) -> None:
        self.log = MemoryLog([])
        self.queues = MemoryQueues()
        self.machine = StateMachine(self.queues, options=options or MachineOptions())
        self.now_ms = 1_700_000_000_000
        self.refuse: Exception | None = None
        self.is_full = True
        self.proposed = 0
        self.appender = Appender(
            self, self.machine, self.read_at, lambda: self.is_full, HOST, 4 << 20
        )
        self.suspected: list[tuple[str, int]] = []
        self.reader = QueueReader(
            self.machine,
            self.queues,
            self,
            lambda topic, queue_id: self.suspected.append((topic.name, queue_id)),
        )
        self.arrivals: list[QueueKey] = []
        self.voided: list[tuple[int, Malformed]] = []
        self.held = HeldPulls(10)
        self.machine.listen(self)
        self.appender.begin(0)
        self.registered: list[bytes] = []
        self.register(TOKEN)

    def propose(
        self, kind: EntryKind, record_count: int, body: bytes | bytearray, stamp: Stamp | None
    ) -> Proposed:
        """`Proposer`: appends to the memory log."""
        if self.refuse is not None:
            raise self.refuse
        index = self.log.last_index + 1
        if stamp is not None:
            stamp(self.log.next_position(56 + len(body)), self.now_ms)
        self.log.append(kind, index, 1, self.now_ms, record_count, body)
        self.proposed += 1
        return Proposed(Index(index), Term(1))

    @property
    def announcer(self) -> Announcer:
        """The product's, of the present appender."""
        return Announcer(self.appender, self.held)

    def arrived(self, queue: QueueKey) -> None:
        """`Listener`."""
        self.arrivals.append(queue)
        self.announcer.arrived(queue)

    def batch_voided(self, index: int, refusal: BatchRefusal) -> None:
        """`Listener`."""
        self.announcer.batch_voided(index, refusal)

    def entry_voided(self, index: int, refusal: Malformed) -> None:
        """`Listener`."""
        self.voided.append((index, refusal))
        self.announcer.entry_voided(index, refusal)

    def topic_deleted(self, topic: TopicState) -> None:
        """`Listener`."""
        self.announcer.topic_deleted(topic)

    def command_applied(self, index: int, refusal: Refusal | None) -> None:
        """`Listener`."""
        self.announcer.command_applied(index, refusal)

    def read_at(self, physical_offset: int, size: int) -> bytes:
        """Bytes of the log; the memory log has no fillers as long as tests stay small."""
        return b"".join(self.log.frames)[physical_offset : physical_offset + size]

    def position_of(self, index: int) -> int:
        """Where the entry begins."""
        return sum(map(len, self.log.frames[: index - 1]))

    def commit(self, through: int | None = None) -> None:
        """Everything up to `through` (default: all) is applied and answered."""
        last = through or self.log.last_index
        self.machine.apply(self.log.read(self.machine.applied_index + 1, last))
        self.appender.on_applied(last)

    def topic(self, name: str = "t", queues: int = 2) -> None:
        """Creates a topic and commits it."""
        command = Command(create_topic=CreateTopicCommand(name=name, queue_count=queues))
        self.appender.submit(command)
        self.commit()

    def register(self, token: bytes, name: str = "", previous: bytes = b"") -> bytes:
        """Registers a producer and commits it; its id, which the next entry gives."""
        wanted = Registration(token, name, previous)
        Commands(self.appender).register_producer(wanted)
        self.commit()
        self.registered.append(producer_id(self.log.last_index, token))
        return self.registered[-1]

    def submit(self, *commands: Command) -> list[Refusal | None]:
        """Proposes commands and commits them; what became of each."""
        answers = [self.appender.submit(command) for command in commands]
        self.commit()
        return [answer.result() for answer in answers]

    def send(
        self,
        *batches: Batch,
        producer: bytes = PRODUCER,
    ) -> asyncio.Future[list[BatchAnswer]]:
        """Hands batches to the appender."""
        return self.appender.send(producer, list(batches))

    def broken_rule(
        self, known: StateMachine, late: Batch, producer: bytes = PRODUCER
    ) -> asyncio.Future[list[BatchAnswer]]:
        """Proposes by the state of `known` instead of the present one, as only a leader that broke
        the rules could, and commits it."""
        appender = Appender(self, known, self.read_at, lambda: self.is_full, HOST, 4 << 20)
        appender.begin(self.log.last_index)
        answer = appender.send(producer, [late])
        before, self.appender = self.appender, appender
        self.commit()
        self.appender = before
        before.on_applied(self.log.last_index)
        return answer

    def replay(self) -> StateMachine:
        """Another replica: the same log, applied from the start."""
        machine = StateMachine(MemoryQueues())
        machine.apply(self.log.read(1, self.machine.applied_index))
        return machine


def batch(
    sequence: int,
    *bodies: bytes,
    topic: str = "t",
    queue_id: int = 0,
    tag: str | None = None,
) -> Batch:
    """A batch of one producer as the client would build it."""
    template = RecordTemplate(topic, ("127.0.0.1", 5555))
    properties = encode_properties({"TAGS": tag}) if tag else b""
    records = b"".join(template.encode(queue_id, body, properties, 1_000) for body in bodies)
    return Batch(
        topic=topic, queue_id=queue_id, base_sequence=sequence, count=len(bodies), records=records
    )


def run(test: Callable[[], object]) -> None:
    """Runs an async test function."""
    asyncio.run(test())  # type: ignore[arg-type]


__all__ = ["Bench", "MemoryQueues", "batch", "record_starts", "run", "stamp_records"]
