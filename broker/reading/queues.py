"""From queue offsets to record bytes.

A pull costs two look-ups: units of the ConsumeQueue give physical offsets and sizes, and runs
of adjacent records are read from the CommitLog as they lie (ADR 5). Consumers see what the state
machine has applied and nothing else. A ConsumeQueue is derived, and no witness: what a unit points
to is given to nobody unless the record there bears it out (`proof`). A queue that is found wrong is
told, and whoever asked for what it hides is refused for now. Void units are passed over, and so is
what carries none of the tags that are asked for. This reads; it never writes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from broker.errors import BrokerError, ErrorCode, not_readable, out_of_range, replaced
from broker.reading.proof import Place, plausible, proven
from broker.reading.tags import UNITS_AT_ONCE, WantedTags, carries, chosen, look_through
from broker.state.machine import StateMachine
from broker.state.topics import MAX_QUEUES, TopicRef, TopicState
from dledger.records import layout
from dledger.records.record import DecodedRecord, decode_records
from store.dispatch import UNIT_DTYPE
from store.errors import OutOfRange
from store.voiding import is_void, leading_voids

T = TypeVar("T")
Offsets = npt.NDArray[np.int64]

UNIT = layout.UNIT.struct()
STORE_TIME = layout.RECORD.run("store_time_ms")
STORE_TIME_AT = layout.RECORD.at("store_time_ms")
DEFAULT_MESSAGES = 32
DEFAULT_BYTES = 256 << 10
MAX_MESSAGES = 32_768
MAX_BYTES = 8 << 20
STEP_MESSAGES = 1_024  # looked at between two chances to let others have the event loop


class Queues(Protocol):
    """`store.consumequeue.ConsumeQueues`, as far as reading goes."""

    def units(self, topic: str, queue_id: int, first: int, count: int) -> bytes: ...
    def vouched(self, topic: str, queue_id: int, first: int, count: int) -> tuple[bytes, int]: ...
    def min_offset(self, topic: str, queue_id: int) -> int: ...


class RecordLog(Protocol):
    """The log, as far as records are read from it."""

    @property
    def first_index(self) -> int: ...
    def read_at(self, physical_offset: int, size: int) -> bytes: ...
    def position_of(self, index: int) -> int: ...


# Told of a queue that has a wrong unit.
Suspect = Callable[[TopicState, int], None]


@dataclass(frozen=True, slots=True)
class Found:
    """What a pull found: `count` records that follow each other, behind `void_count` offsets that
    nobody may read (ADR 54). `next_offset` is where the next pull goes on; `incarnation` is that of
    the topic that was looked at. By tags the records needn't follow each other: between the offset
    asked for and `next_offset` lie all void ones, and those that were left out, too."""

    records: bytes
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    incarnation: int
    void_count: int = 0
    filtered_count: int = 0

    @property
    def passed_over(self) -> int:
        """How many offsets need nobody's look any more, and gave no record."""
        return self.void_count + self.filtered_count


class QueueReader:
    """Reads queues as far as they are applied."""

    def __init__(
        self, machine: StateMachine, queues: Queues, log: RecordLog, suspect: Suspect
    ) -> None:
        self._machine = machine
        self._queues = queues
        self._log = log
        self._suspect = suspect
        self._created: dict[str, tuple[int, int]] = {}  # by topic: incarnation, position

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
        """The first offset that may be read and one past the last one applied.

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
        start = self._machine.topic_retention.start_of(state.incarnation, queue_id)
        held = self._queues.min_offset(state.folder, queue_id)
        return max(start, held), state.next_offsets[queue_id]

    def check_readable(self, topic: TopicRef) -> None:
        """Its messages may be given to consumers.

        Raises:
            BrokerError: TOPIC_NOT_READABLE, TOPIC_NOT_FOUND, TOPIC_REPLACED.
        """
        state = self.topic(topic)
        if not self._machine.topic_permissions.is_readable(state.incarnation):
            raise not_readable(state.name)

    def let_go_of(self, physical_offset: int, record: bytes) -> str:
        """Why the record at that place is read no more: its topic has let go of it, though the log
        holds it yet; empty: it hasn't, or the topic of that record is gone."""
        (found,) = decode_records(record)
        state = self._machine.topics.get(found.topic)
        if state is None or physical_offset < self._created_at(state):
            return ""
        low, _ = self.bounds(TopicRef(found.topic), found.queue_id)
        if found.queue_offset >= low:
            return ""
        place = f"{found.topic}/{found.queue_id}"
        return f"the message was offset {found.queue_offset} of {place}, which begins at {low} now"

    def check_offset(self, topic: TopicRef, queue_id: int, offset: int) -> None:
        """Offsets from the minimum to one past the last are pullable.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE, and what `bounds` raises.
        """
        low, high = self.bounds(topic, queue_id)
        if not low <= offset <= high:
            raise out_of_range(f"{topic.name}/{queue_id}", offset, (low, high))

    def offset_by_time(self, topic: TopicRef, queue_id: int, time_ms: int) -> int:
        """The first offset stored at or after `time_ms`, or one past the last. Store times don't
        go back within a queue.

        Raises:
            BrokerError: see `bounds`; NOT_READY where the ConsumeQueue is wrong.
            CorruptionFound: the log has rotted.
        """
        return _finish(self.offset_by_time_in_steps(topic, queue_id, time_ms))

    def offset_by_time_in_steps(
        self, topic: TopicRef, queue_id: int, time_ms: int
    ) -> Generator[None, None, int]:
        """As `offset_by_time`, an entry of the log a step. What comes between two of them isn't
        looked at, and what is deleted at the queue's front is passed over.

        Raises:
            BrokerError, CorruptionFound: see `offset_by_time`; in any step.
        """
        low, high = self.bounds(topic, queue_id)
        middle = low  # whoever asks for what is old is mostly answered by the first
        while low < high:
            if self._stored_at(self.topic(topic), queue_id, middle) < time_ms:
                low = middle + 1
            else:
                high = middle
            yield
            low = max(low, self.bounds(topic, queue_id)[0])
            middle = (low + high) // 2
        return low

    def stored_at(self, topic: TopicRef, queue_id: int, offset: int) -> int:
        """When the message there was stored.

        Raises:
            BrokerError: see `check_offset`; NOT_READY where the ConsumeQueue is wrong.
            CorruptionFound: the log has rotted.
        """
        self.check_offset(topic, queue_id, offset)
        return self._stored_at(self.topic(topic), queue_id, offset)

    def _stored_at(self, topic: TopicState, queue_id: int, offset: int) -> int:
        """When the message there was stored; one that is void has its time as well."""
        record, _, voids = _finish(self._prove(topic, queue_id, offset, 1, 1))
        if voids:
            unit = self._queues.units(topic.folder, queue_id, offset, 1)
            at = UNIT.unpack(unit)[0] + STORE_TIME_AT
            return int(STORE_TIME.unpack(self._log.read_at(at, STORE_TIME.size))[0])
        return int(STORE_TIME.unpack_from(record, STORE_TIME_AT)[0])

    def took_effect(self, record: DecodedRecord, incarnation: int) -> bool:
        """Whether a record that lies in the log in a unit is a message: its queue is there, and
        doesn't have it as void."""
        topic = self._machine.topics.get(record.topic)
        if topic is None or topic.incarnation != incarnation:
            return False
        low, high = self.bounds(TopicRef(topic.name, incarnation), record.queue_id)
        if not low <= record.queue_offset < high:
            return False
        place = topic.folder, record.queue_id, record.queue_offset
        return not is_void(self._queues.units(*place, 1), record.queue_offset)

    def pull(
        self, topic: TopicRef, queue_id: int, offset: int, max_messages: int, max_bytes: int
    ) -> Found:
        """The records from `offset` on: at most `max_messages`, at most `max_bytes` unless the
        first one alone is longer; none at the end of the queue, or where all that it looked at are
        void. It ends in front of the next void one.

        Raises:
            BrokerError: see `check_offset`; NOT_READY where the ConsumeQueue is wrong.
            CorruptionFound: the log has rotted.
        """
        return _finish(self.pull_in_steps(topic, queue_id, offset, max_messages, max_bytes))

    def pull_in_steps(
        self,
        topic: TopicRef,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        until: int | None = None,
    ) -> Generator[None, None, Found]:
        """`pull`, a step at a time, none much longer than reading one entry. The units are read in
        the first one; what they point to is committed and stays where it is, so it doesn't matter
        what is sent, applied or deleted between two steps: the answer is as of the first.

        Args:
            until: no message from there on; at or behind `offset`.
        """
        self.check_offset(topic, queue_id, offset)
        low, high = self.bounds(topic, queue_id)
        state = self.topic(topic)
        last = high if until is None else min(high, until)
        wanted = min(max_messages or DEFAULT_MESSAGES, MAX_MESSAGES, last - offset)
        if wanted <= 0:
            return Found(b"", 0, offset, low, high, state.incarnation)
        max_bytes = min(max_bytes or DEFAULT_BYTES, MAX_BYTES)
        steps = self._prove(state, queue_id, offset, wanted, max_bytes)
        records, count, voids = yield from steps
        return Found(records, count, offset + voids + count, low, high, state.incarnation, voids)

    def pull_by_tags_in_steps(
        self,
        place: tuple[TopicRef, int, int],
        max_messages: int,
        max_bytes: int,
        tags: WantedTags,
        until: int | None = None,
    ) -> Generator[None, None, Found]:
        """`pull_in_steps`, of messages with one of the tags. It looks at `UNITS_AT_ONCE` units at
        most, and says so by `next_offset`; there is nothing there only if that is the end."""
        topic, queue_id, offset = place
        self.check_offset(topic, queue_id, offset)
        low, high = self.bounds(topic, queue_id)
        state = self.topic(topic)
        units, sure = b"", 0
        last = high if until is None else min(high, until)
        if offset < last:
            count = min(last - offset, UNITS_AT_ONCE)
            units, sure = self._queues.vouched(state.folder, queue_id, offset, count)
        look = look_through(units, offset, tags, sure)
        most = min(max_messages or DEFAULT_MESSAGES, MAX_MESSAGES)
        numbers = look.wanted[:most]
        max_bytes = min(max_bytes or DEFAULT_BYTES, MAX_BYTES)
        runs, taken = yield from _runs(chosen(units, numbers), max_bytes)
        end = int(look.wanted[taken]) if taken < len(look.wanted) else look.end
        is_wrong = taken == len(look.wanted) and look.end * UNIT.size < len(units)
        at = self._place(state, queue_id, offset + numbers[:taken])
        records, good = yield from self._witnessed(
            state, at, chosen(units, numbers[:taken]), runs, is_wrong=is_wrong
        )
        if good < taken:
            end = int(numbers[good])
        if not end and units:
            raise _rotted(state, queue_id, offset)
        sizes = np.frombuffer(chosen(units, numbers[:good]), dtype=UNIT_DTYPE)["size"]
        records, count = yield from _with_tags(records, sizes.tolist(), tags)
        voids = int(np.searchsorted(look.voids, end))
        return Found(
            *(records, count, offset + end, low, high, state.incarnation),
            void_count=voids,
            filtered_count=end - voids - count,
        )

    def _prove(
        self, topic: TopicState, queue_id: int, offset: int, wanted: int, max_bytes: int
    ) -> Generator[None, None, tuple[bytes, int, int]]:
        """Records behind void units from `offset` on, up to the first whose unit is wrong or void;
        how many, one at least unless all are void; and how many void ones are before.

        Raises:
            BrokerError: NOT_READY, the first one is wrong.
        """
        units = self._queues.units(topic.folder, queue_id, offset, wanted)
        count, voids = plausible(units), 0
        if not count and (voids := leading_voids(units, offset)):
            if voids == wanted:
                return b"", 0, voids
            units, offset = units[voids * UNIT.size :], offset + voids
            count = plausible(units)
        is_wrong = count < wanted - voids
        if is_wrong and count:
            behind = units[count * UNIT.size : (count + 1) * UNIT.size]
            is_wrong = not is_void(behind, offset + count)
        runs, taken = yield from _runs(units[: count * UNIT.size], max_bytes)
        is_wrong = is_wrong and taken == count
        place = Place(topic.name.encode(), queue_id, offset, self._created_at(topic))
        taken_units = units[: taken * UNIT.size]
        steps = self._witnessed(topic, place, taken_units, runs, is_wrong=is_wrong)
        records, good = yield from steps
        if good == 0:
            raise _rotted(topic, queue_id, offset)
        return records, good, voids

    def _place(self, topic: TopicState, queue_id: int, offsets: Offsets) -> Place:
        """Where records with these offsets are to be."""
        first = int(offsets[0]) if len(offsets) else 0
        return Place(topic.name.encode(), queue_id, first, self._created_at(topic), offsets)

    def _witnessed(
        self,
        topic: TopicState,
        place: Place,
        units: bytes,
        runs: list[tuple[int, int]],
        *,
        is_wrong: bool,
    ) -> Generator[None, None, tuple[bytes, int]]:
        """The records of the units, up to the first that its record doesn't bear out; how many.
        `is_wrong`: whether the unit behind them is. A queue with a wrong unit is told.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE, they have gone while they were read.
        """
        taken = len(units) // UNIT.size
        records, readable = yield from self._read(runs)
        good = proven(records, units, place) if taken else 0
        low = self._queues.min_offset(topic.folder, place.queue_id)
        if taken and place.offset < low:
            end = max(low, topic.next_offsets[place.queue_id])
            raise out_of_range(f"{topic.name}/{place.queue_id}", place.offset, (low, end))
        if is_wrong or good < taken or not readable:
            self._suspect(topic, place.queue_id)
        if good < taken:
            sizes = (size for _, size, _ in UNIT.iter_unpack(units[: good * UNIT.size]))
            records = records[: sum(sizes)]
        return records, good

    def _created_at(self, topic: TopicState) -> int:
        """Where the topic's creation lies; -1: before the log begins. Kept: of an old entry that is
        a walk through a file."""
        kept = self._created.get(topic.name)
        if kept is None or kept[0] != topic.incarnation:
            if len(self._created) >= MAX_QUEUES:
                self._created.clear()
            before_all = topic.incarnation < self._log.first_index
            position = -1 if before_all else self._log.position_of(topic.incarnation)
            kept = topic.incarnation, position
            self._created[topic.name] = kept
        return kept[1]

    def _read(self, runs: list[tuple[int, int]]) -> Generator[None, None, tuple[bytes, bool]]:
        """What lies there, up to the first run that lies outside of the log; whether none does."""
        pieces: list[bytes] = []
        try:
            for start, size in runs:
                pieces.append(self._log.read_at(start, size))
                yield
        except OutOfRange:
            return b"".join(pieces), False
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), True


def _runs(units: bytes, max_bytes: int) -> Generator[None, None, tuple[list[tuple[int, int]], int]]:
    """Adjacent records as (physical offset, size), and how many records they hold."""
    runs: list[tuple[int, int]] = []
    start = end = count = total = 0
    for physical, size, _ in UNIT.iter_unpack(units):
        if total + size > max_bytes and count:
            break
        if physical != end or not count:
            if count:
                runs.append((start, end - start))
            start = physical
        end = physical + size
        total += size
        count += 1
        if count % STEP_MESSAGES == 0:
            yield
    if count:
        runs.append((start, end - start))
    return runs, count


def _with_tags(
    records: bytes, sizes: Sequence[int], tags: WantedTags
) -> Generator[None, None, tuple[bytes, int]]:
    """Those of the records, which have these sizes, that carry one of the tags; how many."""
    kept: list[bytes] = []
    at = 0
    for number, size in enumerate(sizes):
        if carries(records, at, at + size, tags):
            kept.append(records[at : at + size])
        at += size
        if number % STEP_MESSAGES == STEP_MESSAGES - 1:
            yield
    return (records if len(kept) == len(sizes) else b"".join(kept)), len(kept)


def _rotted(topic: TopicState, queue_id: int, offset: int) -> BrokerError:
    return BrokerError(
        ErrorCode.NOT_READY,
        f"offset {offset} of the ConsumeQueue {topic.name}/{queue_id} has rotted here; it is being "
        "derived again from the log",
    )


def _finish(steps: Generator[None, None, T]) -> T:
    """What `steps` give in the end, all of them in one turn."""
    while True:
        try:
            next(steps)
        except StopIteration as found:
            answer: T = found.value
            return answer
