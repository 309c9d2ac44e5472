"""Retries: how far each level's queue of delayed messages has moved on, and which dead letters were
sent again.

What waits is in the schedule topic, a queue for each level, in the order in which it is due. This
owns one offset for each of them, and of the dead letters only which were sent again; the messages
are in the log. A copy and the offset that says so change in one unit: who leads next goes on where
the last one was.

    state                  on                             becomes
    level at f             fire [f, e), due by then       level at e
    level at f             fire [g, e), g is not f        unchanged   (refused: LevelMoved)
    level at f             fire, not due yet              unchanged   (refused: NotDue)
    dead letter            resend                         sent again
    sent again             resend                         unchanged   (refused: FinishedAlready)
    any                    its topic is deleted           nothing is known

A queue that nothing was ever moved from is at 0. Bound: `MAX_RESENT` ranges of dead
letters, in all. Values are immutable: what a snapshot shows stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import DELAYED_SECTION, FINISHED_RANGE, RESENT_SECTION
from broker.state.refusals import FinishedAlready, LevelMoved, NotDue, TooManyRanges
from broker.state.snapshot import PayloadReader, Section, pack
from dledger.core.errors import InvariantViolation

DELAYED: Final = "delayed"
RESENT: Final = "resent"
OWN_SECTIONS: Final = (DELAYED, RESENT)
VERSION: Final = 1
MAX_RESENT: Final = 100_000
_LEVEL: Final = DELAYED_SECTION.struct()
_HEAD: Final = RESENT_SECTION.run("incarnation", "queue_id", "count")
_RANGE: Final = FINISHED_RANGE.struct()
_RANGES_IN_RECORD: Final = 1_024

Ranges = tuple[tuple[int, int], ...]  # first offset, one past the last; ascending and apart


class Queue(NamedTuple):
    """A queue of one of the brokers' own topics."""

    incarnation: int
    queue_id: int


@dataclass(frozen=True, slots=True)
class Fired:
    """What is due of a level: `[first, end)`, the last of it at `due_ms`."""

    queue: Queue
    first: int
    end: int
    due_ms: int


@dataclass(slots=True)
class Retries:
    """As of the last applied entry. What is compared is replicated state or its bound; `_topics`
    has the queues of `_resent` by incarnation: one entry may delete hundreds of topics."""

    max_resent: int = MAX_RESENT
    _levels: dict[Queue, int] = field(default_factory=dict, init=False)
    _resent: dict[Queue, Ranges] = field(default_factory=dict, init=False)
    _ranges: int = field(default=0, init=False)
    _topics: dict[int, set[Queue]] = field(default_factory=dict, init=False, compare=False)

    # --- reading ------------------------------------------------------------------------------

    def moved_to(self, queue: Queue) -> int:
        """The first offset of the schedule topic's queue that waits."""
        return self._levels.get(queue, 0)

    @property
    def range_count(self) -> int:
        """How many ranges of dead letters were sent again, of all queues."""
        return self._ranges

    def resent(self, queue: Queue) -> Ranges:
        """Which offsets of a queue of dead letters were sent again."""
        return self._resent.get(queue, ())

    def was_resent(self, queue: Queue, offset: int) -> bool:
        """Whether the dead letter at that offset was."""
        ranges = self.resent(queue)
        at = _begun_by(ranges, offset)
        return at > 0 and offset < ranges[at - 1][1]

    def places(self) -> Mapping[Queue, int]:
        """Of each queue of which anything is known, an offset that it must reach."""
        ends = {queue: ranges[-1][1] for queue, ranges in self._resent.items()}
        return {**self._levels, **ends}

    def refusal_of_fire(self, fired: Fired, append_time_ms: int) -> LevelMoved | NotDue | None:
        """Why a level doesn't move on; None if it does."""
        moved_to = self.moved_to(fired.queue)
        if fired.first != moved_to or fired.end <= fired.first:
            return LevelMoved(fired.queue.queue_id, moved_to)
        if fired.due_ms > append_time_ms:
            return NotDue(fired.queue.queue_id, fired.due_ms)
        return None

    def refusal_of_resend(
        self, queue: Queue, offset: int, new: int
    ) -> FinishedAlready | TooManyRanges | None:
        """Why a dead letter isn't sent again, where `new` others are before it; None if it is."""
        if self.was_resent(queue, offset):
            return FinishedAlready(queue.queue_id, offset)
        if self._ranges + new >= self.max_resent:
            return TooManyRanges(self.max_resent)
        return None

    # --- transitions --------------------------------------------------------------------------

    def fire(self, fired: Fired) -> None:
        """The level has moved on; `refusal_of_fire` was asked before."""
        self._levels[fired.queue] = fired.end

    def resend(self, queue: Queue, offset: int) -> None:
        """The dead letter was sent again; `refusal_of_resend` was asked before."""
        self._put(queue, _with(self.resent(queue), offset))

    def _put(self, queue: Queue, ranges: Ranges) -> None:
        self._ranges += len(ranges) - len(self.resent(queue))
        self._resent[queue] = ranges
        self._topics.setdefault(queue.incarnation, set()).add(queue)

    def on_topic_deleted(self, incarnation: int) -> None:
        """Nothing is known of the topic. Of levels there are few; of dead letters only its own are
        looked at."""
        for queue in [each for each in self._levels if each.incarnation == incarnation]:
            del self._levels[queue]
        for queue in self._topics.pop(incarnation, ()):
            self._ranges -= len(self._resent.pop(queue))

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Section, ...]:
        """The state as it is now, whatever is applied while the payloads are taken."""
        levels, resent = self._levels.copy(), self._resent.copy()
        found: list[Section] = []
        if levels:
            records = (_LEVEL.pack(*queue, at) for queue, at in sorted(levels.items()))
            found.append(Section(DELAYED, VERSION, pack(records)))
        if resent:
            found.append(Section(RESENT, VERSION, pack(_records(resent))))
        return tuple(found)

    def restore(self, section: str, version: int, payloads: Iterable[bytes]) -> None:
        """One of `OWN_SECTIONS` becomes what `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: it doesn't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(section, version)
        for payload in payloads:
            reader = PayloadReader(section, payload)
            while not reader.is_at_end:
                if section == DELAYED:
                    incarnation, queue_id, moved_to = reader.take(_LEVEL)
                    queue = Queue(incarnation, queue_id)
                    if queue in self._levels:
                        raise SnapshotDamaged(section, "each queue once", queue)
                    self._levels[queue] = moved_to
                else:
                    incarnation, queue_id, count = reader.take(_HEAD)
                    more = tuple((first, end) for first, end in reader.take_many(_RANGE, count))
                    queue = Queue(incarnation, queue_id)
                    self._put(queue, self.resent(queue) + more)

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        if any(moved_to <= 0 for moved_to in self._levels.values()):
            raise InvariantViolation(f"levels have moved to {self._levels}")
        for queue, ranges in self._resent.items():
            ends = [offset for each in ranges for offset in each]
            if not ends or any(one >= other for one, other in pairwise(ends)):
                raise InvariantViolation(f"dead letters of {queue} were sent again: {ranges}")
        by_topic = {queue for queues in self._topics.values() for queue in queues}
        if by_topic != self._resent.keys() or not all(self._topics.values()):
            raise InvariantViolation(f"{len(self._resent)} queues, {len(by_topic)} by topic")
        counted = sum(len(ranges) for ranges in self._resent.values())
        if counted != self._ranges or counted > self.max_resent:
            raise InvariantViolation(f"{counted} ranges of dead letters, {self._ranges} counted")


def _begun_by(ranges: Ranges, offset: int) -> int:
    """How many of them begin at the offset or before it."""
    return bisect_left(ranges, (offset + 1,))


def _with(ranges: Ranges, offset: int) -> Ranges:
    """The ranges, and that offset, which isn't in them."""
    before = after = _begun_by(ranges, offset)
    first, end = offset, offset + 1
    if before and ranges[before - 1][1] == first:
        before -= 1
        first = ranges[before][0]
    if after < len(ranges) and ranges[after][0] == end:
        end = ranges[after][1]
        after += 1
    return (*ranges[:before], (first, end), *ranges[after:])


def _records(resent: Mapping[Queue, Ranges]) -> Iterator[bytes]:
    """A queue of many ranges takes several records."""
    for queue, ranges in sorted(resent.items()):
        for first in range(0, len(ranges), _RANGES_IN_RECORD):
            part = ranges[first : first + _RANGES_IN_RECORD]
            packed = b"".join([_RANGE.pack(*each) for each in part])
            yield _HEAD.pack(*queue, len(part)) + packed
