"""How many queues of a topic are read and how many are written, and what changes of that leave.

This owns both numbers of each topic in which they aren't simply all of its queues, and for each
change of the write queues that is kept where every queue ended then: by that it is told from where
on a queue is held back from a group that reads in order (ADR 60). How far a group is, and what of
a queue can be read, it is told.

    state            on                                 becomes
    r, w (all of n)  update to r, w                     unchanged
    r, w             update to r', the same w           r', w
    r, w             update to r', w' != w              r', w', and one change more
    any              batch for a queue >= w             unchanged    (refused: QueueClosed)
    any              numbers that can't be              unchanged    (refused: QueueNumbersWrong)
    32 changes kept  update to another w                unchanged    (refused: TooManyChanges)
    any              the topic is deleted               nothing is known of it

Changes that are older than the log go with the next one: what lay before them can't be read. Keyed
by the topic's incarnation. A state in which no topic was changed has no sections in its snapshots,
which so are those of the releases before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd
from typing import Final, NamedTuple

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import QUEUE_CHANGES_SECTION, QUEUE_END, QUEUE_NUMBERS_SECTION
from broker.state.refusals import QueueClosed, QueueNumbersWrong, TooManyChanges
from broker.state.snapshot import PayloadReader, Section, pack
from dledger.core.errors import InvariantViolation

SECTION: Final = "queue-numbers"
CHANGES_SECTION: Final = "queue-changes"
OWN_SECTIONS: Final = (SECTION, CHANGES_SECTION)
VERSION: Final = 1
MAX_TOPIC_QUEUES: Final = 1_024
MAX_CHANGES: Final = 32  # of one topic
_HEAD: Final = QUEUE_NUMBERS_SECTION.struct()
_CHANGE: Final = QUEUE_CHANGES_SECTION.run(
    "incarnation", "index", "write_queues", "first_queue", "count"
)
_END: Final = QUEUE_END.struct()
_QUEUES_IN_RECORD: Final = 1_024


class Change(NamedTuple):
    """The write queues became others: by which entry, how many there were before, and where each
    queue ended. Queues that weren't there yet ended at 0."""

    entry: int
    write_queues: int
    ends: tuple[int, ...]

    def end_of(self, queue_id: int) -> int:
        """Where the queue ended."""
        return self.ends[queue_id] if queue_id < len(self.ends) else 0


@dataclass(frozen=True, slots=True)
class Numbers:
    """A topic's: consumers are told of `read_queues`, of which the first `write_queues` take
    messages. `changes`: in the order of the log."""

    read_queues: int
    write_queues: int
    changes: tuple[Change, ...] = ()

    @property
    def changed(self) -> int:
        """The entry by which the write queues became what they are; 0: they always were."""
        return self.changes[-1].entry if self.changes else 0


@dataclass(slots=True)
class QueueNumbers:
    """As of the last applied entry."""

    _topics: dict[int, Numbers] = field(default_factory=dict, init=False)

    # --- reading ------------------------------------------------------------------------------

    def of(self, incarnation: int, queue_count: int) -> Numbers:
        """The topic's, of which there are so many queues."""
        return self._topics.get(incarnation) or Numbers(queue_count, queue_count)

    def refusal_of(self, topic: str, incarnation: int, queue_id: int) -> QueueClosed | None:
        """Why the queue, which is there, takes no messages; None if it does."""
        numbers = self._topics.get(incarnation)
        if numbers is None or queue_id < numbers.write_queues:
            return None
        return QueueClosed(topic, queue_id, numbers.write_queues)

    def closed(self, incarnation: int, queue_id: int) -> int | None:
        """The entry since which the queue takes no messages; 0: one that was forgotten, which is
        before all that is kept; None: it takes them."""
        numbers = self._topics.get(incarnation)
        if numbers is None or queue_id < numbers.write_queues:
            return None
        closing = (each.entry for each in numbers.changes if queue_id < each.write_queues)
        return max(closing, default=0)

    def changed(self, incarnation: int) -> int:
        """See `Numbers.changed`."""
        numbers = self._topics.get(incarnation)
        return 0 if numbers is None else numbers.changed

    # --- transitions --------------------------------------------------------------------------

    def wanted(
        self, incarnation: int, queue_count: int, read_queues: int, write_queues: int
    ) -> Numbers | QueueNumbersWrong:
        """What the numbers would be; 0: as they are. Or why they can't be so."""
        now = self.of(incarnation, queue_count)
        read, write = read_queues or now.read_queues, write_queues or now.write_queues
        if not 1 <= write <= read <= MAX_TOPIC_QUEUES:
            return QueueNumbersWrong(read, write, MAX_TOPIC_QUEUES)
        return Numbers(read, write, now.changes)

    def too_many(
        self, incarnation: int, wanted: Numbers, first_index: int
    ) -> TooManyChanges | None:
        """Why the numbers can't become those that `wanted` gave; None if they can."""
        now = self.of(incarnation, wanted.read_queues)
        if now.write_queues != wanted.write_queues and len(_kept(now, first_index)) >= MAX_CHANGES:
            return TooManyChanges(MAX_CHANGES)
        return None

    def update(
        self,
        incarnation: int,
        wanted: Numbers,
        ends: Sequence[int],
        *,
        index: int,
        first_index: int,
    ) -> None:
        """The numbers are those that `wanted` gave; `too_many` was asked before.

        Args:
            ends: of every queue that there was before.
            index: of the entry.
            first_index: the first entry that is kept.
        """
        now, changes = self.of(incarnation, len(ends)), wanted.changes
        if now.write_queues != wanted.write_queues:
            change = Change(index, now.write_queues, tuple(ends))
            changes = (*_kept(now, first_index), change)
        if now != wanted:
            self._put(incarnation, Numbers(wanted.read_queues, wanted.write_queues, changes))

    def _put(self, incarnation: int, numbers: Numbers) -> None:
        self._topics[incarnation] = numbers

    def on_topic_deleted(self, incarnation: int) -> None:
        """Nothing is known of it."""
        self._topics.pop(incarnation, None)

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Section, ...]:
        """The numbers as they are now, whatever is applied while the payloads are taken; no section
        where there is none."""
        if not self._topics:
            return ()
        view = dict(sorted(self._topics.items()))
        found = [Section(SECTION, VERSION, pack(_heads(view)))]
        if any(each.changes for each in view.values()):
            found.append(Section(CHANGES_SECTION, VERSION, pack(_changes(view))))
        return tuple(found)

    def restore(self, section: str, version: int, payloads: Iterable[bytes]) -> None:
        """One of `OWN_SECTIONS`, in their order, becomes what `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: it doesn't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(section, version)
        for payload in payloads:
            reader = PayloadReader(section, payload)
            while not reader.is_at_end:
                if section == CHANGES_SECTION:
                    self._restore_change(reader)
                    continue
                incarnation, read, write = reader.take(_HEAD)
                if incarnation in self._topics:
                    raise SnapshotDamaged(f"{SECTION}: {incarnation}", "a topic once", "twice")
                self._topics[incarnation] = Numbers(read, write)

    def _restore_change(self, reader: PayloadReader) -> None:
        incarnation, index, write, first, size = reader.take(_CHANGE)
        part = tuple(end for (end,) in reader.take_many(_END, size))
        numbers = self._topics.get(incarnation)
        if numbers is None:
            raise SnapshotDamaged(f"{CHANGES_SECTION}: {incarnation}", "a topic above", "none")
        changes = numbers.changes
        if first:
            if not changes or changes[-1][:2] != (index, write) or len(changes[-1].ends) != first:
                raise SnapshotDamaged(f"{CHANGES_SECTION}: {incarnation}", "the next queue", first)
            part, changes = changes[-1].ends + part, changes[:-1]
        changes = (*changes, Change(index, write, part))
        self._put(incarnation, Numbers(numbers.read_queues, numbers.write_queues, changes))

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self, ends: Mapping[int, Sequence[int]], applied_index: int) -> None:
        """Args:
            ends: of each topic's queues, by incarnation.

        Raises:
            InvariantViolation: names what doesn't hold.
        """
        for incarnation, numbers in self._topics.items():
            held = ends.get(incarnation)
            if held is None:
                raise InvariantViolation(f"topic {incarnation}, which is gone, has {numbers}")
            if not 1 <= numbers.write_queues <= numbers.read_queues <= len(held):
                raise InvariantViolation(f"topic {incarnation} of {len(held)} queues: {numbers}")
            indexes = [incarnation, *(each.entry for each in numbers.changes), applied_index + 1]
            if len(numbers.changes) > MAX_CHANGES or any(a >= b for a, b in pairwise(indexes)):
                raise InvariantViolation(f"topic {incarnation} was changed by {indexes}")
            befores = [*(each.write_queues for each in numbers.changes), numbers.write_queues]
            if any(one == other for one, other in pairwise(befores)):
                raise InvariantViolation(f"topic {incarnation} was changed to the same: {befores}")
            last, after = tuple(held), numbers.write_queues
            for change in reversed(numbers.changes):
                is_there = change.write_queues <= len(change.ends) <= len(last)
                pairs = list(zip(change.ends, last, strict=False))
                is_further = any(end > later for end, later in pairs)
                if not is_there or is_further or any(a != b for a, b in pairs[after:]):
                    raise InvariantViolation(f"topic {incarnation}: {change}, then {last}")
                last, after = change.ends, change.write_queues


def _kept(numbers: Numbers, first_index: int) -> tuple[Change, ...]:
    """The changes behind which anything is read that lay before them."""
    return tuple(each for each in numbers.changes if each.entry >= first_index)


# --- what is held back -------------------------------------------------------------------------


def held_from(numbers: Numbers, queue_count: int, done: Callable[[int], int]) -> dict[int, int]:
    """From which offset on each queue is held back from a group that reads in order; queues that
    aren't held back at all aren't there.

    A key that was in queue p before a change may be in queue q behind it only if both leave the
    same remainder when divided by what both numbers have in common. So q is held back from where
    it ended at the change until all such p are finished to where they ended: and with each p what
    p itself had to wait for, also if nothing came in p since.

    Args:
        queue_count: all that there are.
        done: how far the group is in a queue: what is below it has finished, or can't be read.
    """
    found: dict[int, int] = {}
    waiting: list[bool] = []  # by queue: whether it has to wait for anything before this change
    for change, after in _steps(numbers):
        step = gcd(change.write_queues, after)
        open_queues = [
            (queue < len(waiting) and waiting[queue]) or done(queue) < change.end_of(queue)
            for queue in range(change.write_queues)
        ]
        left = [0] * step  # by remainder: how many queues aren't finished
        for queue, is_open in enumerate(open_queues):
            left[queue % step] += is_open
        waiting = [left[queue % step] > 0 for queue in range(after)]
        for queue in range(min(after, queue_count)):
            itself = queue < len(open_queues) and open_queues[queue]
            if left[queue % step] > itself:
                found.setdefault(queue, change.end_of(queue))
    return found


def open_ends(numbers: Numbers, done: Callable[[int], int]) -> list[tuple[int, int]]:
    """The queues that others may wait for, and up to where; of `done` see `held_from`."""
    ends = {
        (queue, change.end_of(queue))
        for change in numbers.changes
        for queue in range(change.write_queues)
    }
    return sorted((queue, end) for queue, end in ends if done(queue) < end)


def _steps(numbers: Numbers) -> Iterator[tuple[Change, int]]:
    """Each change, and how many write queues there were behind it."""
    afters = [each.write_queues for each in numbers.changes[1:]]
    return zip(numbers.changes, [*afters, numbers.write_queues], strict=False)


# --- records -----------------------------------------------------------------------------------


def _heads(topics: Mapping[int, Numbers]) -> Iterator[bytes]:
    for incarnation, each in topics.items():
        yield _HEAD.pack(incarnation, each.read_queues, each.write_queues)


def _changes(topics: Mapping[int, Numbers]) -> Iterator[bytes]:
    """A change of many queues takes several records, so that none is long."""
    for incarnation, numbers in topics.items():
        for change in numbers.changes:
            for first in range(0, len(change.ends), _QUEUES_IN_RECORD):
                part = change.ends[first : first + _QUEUES_IN_RECORD]
                head = _CHANGE.pack(
                    incarnation, change.entry, change.write_queues, first, len(part)
                )
                yield b"".join((head, *(_END.pack(end) for end in part)))
