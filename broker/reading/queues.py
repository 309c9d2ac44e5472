"""From queue offsets to record bytes.

A pull costs two look-ups: units of the ConsumeQueue give physical offsets and sizes, and runs
of adjacent records are read from the CommitLog as they lie (ADR 5). Consumers see what the state
machine has applied and nothing else. What lies elsewhere than its unit says is corruption, and is
never given to anybody. This reads; it never writes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from broker.errors import BrokerError, ErrorCode, replaced
from broker.state.machine import StateMachine
from broker.state.topics import TopicRef, TopicState
from dledger.records import layout
from store.errors import CorruptionFound, OutOfRange

UNIT = layout.UNIT.struct()
PLACE = layout.RECORD.run("total_size", "queue_offset", "physical_offset")
DEFAULT_MESSAGES = 32
DEFAULT_BYTES = 256 << 10
MAX_MESSAGES = 32_768
MAX_BYTES = 8 << 20
STEP_MESSAGES = 1_024  # looked at between two chances to let others have the event loop


class Queues(Protocol):
    """`store.consumequeue.ConsumeQueues`, as far as reading goes."""

    def units(self, topic: str, queue_id: int, first: int, count: int) -> bytes: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...
    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, read_at: Callable[[int, int], bytes]
    ) -> int: ...


@dataclass(frozen=True, slots=True)
class Found:
    """What a pull found. `next_offset` is where the next pull goes on; `incarnation` is that of the
    topic that was looked at."""

    records: bytes
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    incarnation: int


class QueueReader:
    """Reads queues as far as they are applied."""

    def __init__(
        self, machine: StateMachine, queues: Queues, read_at: Callable[[int, int], bytes]
    ) -> None:
        self._machine = machine
        self._queues = queues
        self._read_at = read_at

    def topic(self, topic: TopicRef) -> TopicState:
        """The topic's state.

        Raises:
            BrokerError: TOPIC_NOT_FOUND, TOPIC_REPLACED.
        """
        state = self._machine.topics.get(topic.name)
        if state is None:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {topic.name!r} does not exist")
        if not topic.means(state.incarnation):
            raise replaced(topic.name, topic.incarnation, state.incarnation)
        return state

    def bounds(self, topic: TopicRef, queue_id: int) -> tuple[int, int]:
        """The first offset held and one past the last one applied.

        Raises:
            BrokerError: TOPIC_NOT_FOUND, TOPIC_REPLACED, QUEUE_NOT_FOUND.
        """
        state = self.topic(topic)
        if queue_id >= len(state.next_offsets):
            raise BrokerError(
                ErrorCode.QUEUE_NOT_FOUND,
                f"topic {state.name!r} has queues 0 to {len(state.next_offsets) - 1}, "
                f"not {queue_id}",
            )
        return self._queues.min_offset(state.folder, queue_id), state.next_offsets[queue_id]

    def check_offset(self, topic: TopicRef, queue_id: int, offset: int) -> None:
        """Offsets from the minimum to one past the last are pullable.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE, and what `bounds` raises.
        """
        low, high = self.bounds(topic, queue_id)
        if not low <= offset <= high:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {topic.name}/{queue_id} is outside {low} to {high}",
            )

    def offset_by_time(self, topic: TopicRef, queue_id: int, time_ms: int) -> int:
        """The first offset stored at or after `time_ms`, or one past the last.

        Raises:
            BrokerError: see `bounds`.
        """
        self.bounds(topic, queue_id)
        folder = self.topic(topic).folder
        return self._queues.offset_by_time(folder, queue_id, time_ms, self._read_at)

    def pull(
        self, topic: TopicRef, queue_id: int, offset: int, max_messages: int, max_bytes: int
    ) -> Found:
        """The records from `offset` on: at most `max_messages`, at most `max_bytes` unless the
        first one alone is longer; none at the end of the queue.

        Raises:
            BrokerError: see `check_offset`.
            CorruptionFound: what lies where the queue points is not the queue's record.
        """
        steps = self.pull_in_steps(topic, queue_id, offset, max_messages, max_bytes)
        while True:
            try:
                next(steps)
            except StopIteration as found:
                answer: Found = found.value
                return answer

    def pull_in_steps(
        self, topic: TopicRef, queue_id: int, offset: int, max_messages: int, max_bytes: int
    ) -> Generator[None, None, Found]:
        """`pull`, a step at a time, none much longer than reading one entry. The units are read in
        the first one; what they point to is committed and stays where it is, so it doesn't matter
        what is sent, applied or deleted between two steps: the answer is as of the first."""
        self.check_offset(topic, queue_id, offset)
        low, high = self.bounds(topic, queue_id)
        state = self.topic(topic)
        wanted = min(max_messages or DEFAULT_MESSAGES, MAX_MESSAGES, high - offset)
        if wanted == 0:
            return Found(b"", 0, offset, low, high, state.incarnation)
        name = f"{state.folder}/{queue_id}"
        units = self._queues.units(state.folder, queue_id, offset, wanted)
        runs, count = yield from _runs(units, min(max_bytes or DEFAULT_BYTES, MAX_BYTES))
        pieces: list[bytes] = []
        for start, size in runs:
            try:
                pieces.append(self._read_at(start, size))
            except OutOfRange as error:
                raise CorruptionFound(
                    f"consume queue {name}", offset, "places within the log", str(error)
                ) from error
            yield
        records = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        yield from _check_places(records, units[: count * UNIT.size], name, offset)
        return Found(records, count, offset + count, low, high, state.incarnation)


def _runs(units: bytes, max_bytes: int) -> Generator[None, None, tuple[list[tuple[int, int]], int]]:
    """Adjacent records as (physical offset, size), and how many records they hold."""
    runs: list[tuple[int, int]] = []
    start = end = count = total = 0
    for physical, size, _ in UNIT.iter_unpack(units):
        if total + size > max_bytes and count:
            break
        if physical != end:
            if end:
                runs.append((start, end - start))
            start = physical
        end = physical + size
        total += size
        count += 1
        if count % STEP_MESSAGES == 0:
            yield
    runs.append((start, end - start))
    return runs, count


def _check_places(
    records: bytes, units: bytes, queue: str, offset: int
) -> Generator[None, None, None]:
    """Each record says that it is what its unit points to: a unit or a record whose bytes have
    changed on the disk must not reach a consumer. (The consumer checks the body's CRC.)"""
    at = 0
    for position, (physical, size, _) in enumerate(UNIT.iter_unpack(units), offset):
        expected = (size, position, physical)
        found = PLACE.unpack_from(records, at) if at + PLACE.size <= len(records) else ()
        if found != expected:
            raise CorruptionFound(
                f"commit log or consume queue {queue}",
                physical,
                f"size, queue offset, physical offset {expected}",
                found,
            )
        at += size
        if position % STEP_MESSAGES == 0:
            yield
