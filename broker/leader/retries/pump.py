"""Moves what is due from the levels of the schedule topic to its retry topics.

Each level is a queue in the order in which its messages are due, so of each only the first one that
waits is looked at. What is due moves by one unit: copies, and the level's offset. The unit names
what it moves, and applying it compares the time with the entry's: a leader whose clock is ahead is
refused and tries again. One unit of a level is under way at a time. This owns nothing that outlives
a term; it must never skip a message that a leader wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from broker.errors import BrokerError
from broker.leader.batches import Batch
from broker.leader.retries.copies import due_copy, due_ms, goes_to
from broker.leader.retries.own_topics import OwnTopics
from broker.leader.units import ProposedUnit, UnitResult
from broker.reading.queues import Found, QueueReader
from broker.state.refusals import LevelMoved, Refusal
from broker.state.retries import Queue, Retries
from broker.state.topics import TopicRef, Topics, TopicState
from dledger.reading.compound import MAX_PARTS
from dledger.records.record import DecodedRecord, decode_records
from dledger.records.reserved import LEVELS, SCHEDULE_TOPIC
from dledger.sparing import Sparing
from dledger.wire.commands_pb2 import Command, FireDelayedCommand

MOST_MESSAGES: Final = 128  # of a unit
MOST_BYTES: Final = 256 << 10  # of a unit; one message at least
LOOK_MS: Final = 100  # between two looks at all levels
REST_LOOKS: Final = 3  # before a level is tried again that couldn't be moved

log = structlog.get_logger(__name__)


class State(Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def topics(self) -> Topics: ...
    @property
    def retries(self) -> Retries: ...


class Proposer(Protocol):
    """`broker.leader.units.Units`, as far as it is used here."""

    def propose(
        self, wanted: ProposedUnit, *, is_internal: bool = False
    ) -> asyncio.Future[UnitResult]: ...


@dataclass(frozen=True, slots=True)
class Due:
    """What a level's next unit moves: `[first, end)`, and when the last of it was due."""

    queue: Queue
    first: int
    end: int
    due_ms: int
    batches: tuple[Batch, ...]


@dataclass(slots=True)
class _Head:
    """The first message of a level that waits, and when it is due."""

    offset: int = -1
    due_ms: int = 0
    rests_until: int = 0  # the look
    is_held: bool = False  # it is due, and couldn't be moved the last time


@dataclass(frozen=True, slots=True)
class DelayStatistics:
    """`moved`: copies since the start; `held`: levels whose first message is due and couldn't be
    moved: none behind it comes."""

    moved: int = 0
    held: int = 0


class DelayPump:
    """One replica's; `on_tick` is called on each tick.

    Args:
        leads: the term in which this node leads and serves, 0 if it doesn't.
        now_ms: the log's time, as of now.
        is_mended: whether an error tells of rot that is being repaired.
        failed: is told of an error that ends the replica.
        delays_ms: by level, how long its messages wait.
        tick_ms: how often `on_tick` is called.
        most_bytes: of a unit; an entry fits into a segment of the log.
    """

    def __init__(
        self,
        state: State,
        reader: QueueReader,
        units: Proposer,
        topics: OwnTopics,
        leads: Callable[[], int],
        now_ms: Callable[[], int],
        is_mended: Callable[[BaseException], bool],
        failed: Callable[[BaseException], None],
        delays_ms: Sequence[int],
        tick_ms: int,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._state = state
        self._reader = reader
        self._units = units
        self._topics = topics
        self._leads = leads
        self._now_ms = now_ms
        self._is_mended = is_mended
        self._failed = failed
        self._delays_ms = delays_ms
        self._most_bytes = most_bytes
        self._every = max(1, LOOK_MS // tick_ms)
        self._ticks = self._looks = 0
        self._term = 0
        self._heads: dict[Queue, _Head] = {}
        self._moving: dict[Queue, asyncio.Task[None]] = {}
        self._sparing = Sparing()
        self._moved = 0

    def close(self) -> None:
        """Nothing is moved any more."""
        self._term = 0
        for task in self._moving.values():
            task.cancel()
        self._moving, self._heads = {}, {}

    def statistics(self) -> DelayStatistics:
        """A frozen picture, as of now; nothing is held where another one leads."""
        return DelayStatistics(self._moved, sum(head.is_held for head in self._heads.values()))

    def on_tick(self) -> None:
        """Time has passed."""
        term = self._leads()
        if term != self._term:
            self.close()
            self._term = term
        self._ticks += 1
        if not term or self._ticks % self._every:
            return
        self._looks += 1
        topic = self._state.topics.get(SCHEDULE_TOPIC)
        if topic is None:
            return
        for queue_id in range(min(LEVELS, len(topic.next_offsets))):
            self._look(topic, queue_id)

    def _look(self, topic: TopicState, queue_id: int) -> None:
        queue = Queue(topic.incarnation, queue_id)
        moved_to = self._state.retries.moved_to(queue)
        if queue in self._moving or moved_to >= topic.next_offsets[queue_id]:
            return
        head = self._heads.setdefault(queue, _Head())
        now_ms = self._now_ms()
        if self._looks < head.rests_until or (head.offset == moved_to and head.due_ms > now_ms):
            return
        try:
            due = self._due(topic, queue, moved_to, now_ms)
        except Exception as error:
            if not isinstance(error, BrokerError) and not self._is_mended(error):
                raise
            self._rest(queue, error)
            return
        if isinstance(due, int):
            head.offset, head.due_ms, head.is_held = moved_to, due, False
        else:
            task = asyncio.get_running_loop().create_task(self._move(due), name="delay-pump")
            self._moving[queue] = task
            task.add_done_callback(partial(self._on_moved, queue, self._term))

    def _due(self, topic: TopicState, queue: Queue, first: int, now_ms: int) -> Due | int:
        """What is due of the level from that offset on; or when the first of it is.

        Raises:
            BrokerError: it can't be read now.
            CorruptionFound: the log has rotted.
        """
        ref = TopicRef(topic.name, topic.incarnation)
        low, _ = self._reader.bounds(ref, queue.queue_id)
        at = max(first, low)
        found = self._reader.pull(ref, queue.queue_id, at, MOST_MESSAGES, self._most_bytes)
        by_topic: dict[str, list[Batch]] = {}
        end, latest_ms = _void_end(found, at), 0
        for record in decode_records(found.records):
            due = due_ms(record, self._delays_ms)
            if due > now_ms:
                if end == at and end == first:
                    return due
                break
            destination = goes_to(record)
            is_other = destination is not None and destination not in by_topic
            if is_other and len(by_topic) == MAX_PARTS:
                break  # the next unit begins with it
            end, latest_ms = record.queue_offset + 1, due
            if destination is None:
                self._tell_foreign(record)
            else:
                copy = due_copy(record, destination)
                by_topic.setdefault(destination, []).append(copy)
        batches = tuple(_joined(copies) for copies in by_topic.values())
        return Due(queue, first, end, latest_ms, batches)

    async def _move(self, due: Due) -> None:
        """Proposes the unit, once there are the topics that it writes to."""
        for batch in due.batches:
            refusal = await self._topics.make(batch.topic)
            if refusal is not None:
                self._rest(due.queue, refusal)
                return
        command = FireDelayedCommand(
            incarnation=due.queue.incarnation,
            queue_id=due.queue.queue_id,
            first=due.first,
            end=due.end,
            due_ms=due.due_ms,
        )
        unit = ProposedUnit(
            due.batches, (Command(fire_delayed=command),), partial(self._condition, due)
        )
        result = await self._units.propose(unit, is_internal=True)
        if result.refusal is not None:
            self._rest(due.queue, result.refusal)
        else:
            self._heads.setdefault(due.queue, _Head()).is_held = False
            self._moved += sum(batch.count for batch in due.batches)

    def _condition(self, due: Due) -> Refusal | None:
        moved_to = self._state.retries.moved_to(due.queue)
        return None if moved_to == due.first else LevelMoved(due.queue.queue_id, moved_to)

    def _on_moved(self, queue: Queue, term: int, task: asyncio.Task[None]) -> None:
        is_current = term == self._term
        if is_current:
            self._moving.pop(queue, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, BrokerError):
            self._failed(error)
        elif error is not None and is_current:
            self._rest(queue, error)

    def _rest(self, queue: Queue, why: object) -> None:
        """The level is tried again in a while; who looks is told now and then."""
        head = self._heads.setdefault(queue, _Head())
        head.rests_until, head.is_held = self._looks + REST_LOOKS, True
        if (unreported := self._sparing.due("delayed")) is not None:
            level = queue.queue_id + 1
            log.warning("level_waits", level=level, reason=str(why), unreported=unreported)

    def _tell_foreign(self, record: DecodedRecord) -> None:
        log.warning(
            "delayed_message_of_nobody", level=record.queue_id + 1, offset=record.queue_offset
        )


def _void_end(found: Found, at: int) -> int:
    """Where the void offsets end that the answer begins with."""
    return at + found.void_count


def _joined(copies: list[Batch]) -> Batch:
    """Copies for one queue as one batch, in their order."""
    first = copies[0]
    records = b"".join(copy.records for copy in copies)
    return Batch(first.topic, first.queue_id, 0, len(copies), records, is_copy=True)
