"""Topics: which there are, where each of their queues goes on, and what is derived for it.

This owns the names, the incarnations, the times of creation, the next offset of every queue and the
CRC32C of its units, by which a start from a snapshot proves the ConsumeQueues (ADR 38). It knows
nothing of what else hangs on a topic; the machine tells the other owners when one is gone. A
name may be given again: a topic's incarnation, the index of the entry that created it, tells it
from those that had its name before.

    state       on               becomes
    absent      create           present, each queue at 0      (refused: TooManyQueues)
    present     create           present, unchanged            (refused: TopicExists)
    present     batch of n       present, that queue n further (refused: QueueNotFound, OffsetTaken,
                                                       TopicReplaced)
    present     grow to n        present, with n queues at least (refused: TooManyQueues)
    present     delete           absent; made anew, its queues start at 0 again

Bounds: `max_queues` over all topics. Order: topics are kept as they were created, which the log
decides; a snapshot keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, ValuesView
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from crc32c import crc32c

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.refusals import (
    OffsetTaken,
    QueueNotFound,
    Refusal,
    TooManyQueues,
    TopicExists,
    TopicReplaced,
)
from broker.state.snapshot import PayloadReader, Section, pack, pack_text
from dledger.core.errors import InvariantViolation
from dledger.records.layout import topic_folder
from dledger.records.state_layout import TOPIC_QUEUE, TOPICS, TOPICS_SECTION, TOPICS_VERSION

SECTION: Final = TOPICS
VERSION: Final = TOPICS_VERSION
MAX_QUEUES: Final = 100_000
_HEAD: Final = TOPICS_SECTION.run(
    "incarnation", "created_time_ms", "queue_count", "first_queue", "count"
)
_QUEUE: Final = TOPIC_QUEUE.struct()
_QUEUES_IN_RECORD: Final = 1_024

TopicView = tuple[str, int, int, tuple[int, ...]]  # name, incarnation, created, next offsets
QueueView = tuple[TopicView, tuple[int, ...]]  # a topic, and its queues' CRCs


class TopicRef(NamedTuple):
    """A topic as a caller names it. Incarnation 0: whichever has the name."""

    name: str
    incarnation: int = 0

    def means(self, incarnation: int) -> bool:
        """Whether the topic of that incarnation, which has the name, is meant."""
        return self.incarnation in (0, incarnation)


@dataclass(slots=True)
class TopicState:
    """A topic, the next queue offset of each of its queues, and the CRC32C of all units of each.
    Read only for all but `Topics`. `folder` is what its derived files are called by: no other topic
    ever has the same."""

    name: str
    incarnation: int  # index of the entry that created it
    created_time_ms: int
    next_offsets: list[int]
    units_crcs: list[int] = field(init=False)
    folder: str = field(init=False)

    def __post_init__(self) -> None:
        self.units_crcs = [0] * len(self.next_offsets)
        self.folder = topic_folder(self.name, self.incarnation)


@dataclass(slots=True)
class Topics:
    """All topics, as of the last applied entry. Every field is replicated state, its bound or
    what follows from it, so that two of them are equal if and only if the states are."""

    max_queues: int = MAX_QUEUES
    _topics: dict[str, TopicState] = field(default_factory=dict, init=False)
    _names: dict[int, str] = field(default_factory=dict, init=False)  # by incarnation
    _queue_count: int = field(default=0, init=False)

    # --- reading ------------------------------------------------------------------------------

    def get(self, name: str) -> TopicState | None:
        """The topic; None if there is none of that name."""
        return self._topics.get(name)

    def __getitem__(self, name: str) -> TopicState:
        return self._topics[name]

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)

    def name_of(self, incarnation: int) -> str:
        """What the topic of that incarnation is called; there must be one."""
        return self._names[incarnation]

    def values(self) -> ValuesView[TopicState]:
        """Every topic, in the order of creation."""
        return self._topics.values()

    @property
    def queue_count(self) -> int:
        """Queues over all topics."""
        return self._queue_count

    # --- transitions --------------------------------------------------------------------------

    def create(
        self, name: str, queue_count: int, *, incarnation: int, created_time_ms: int
    ) -> Refusal | None:
        """The topic is there, each of its queues at offset 0; or why it isn't."""
        existing = self._topics.get(name)
        if existing is not None:
            return TopicExists(name, len(existing.next_offsets))
        if self._queue_count + queue_count > self.max_queues:
            return TooManyQueues(queue_count, self.max_queues)
        self._topics[name] = TopicState(name, incarnation, created_time_ms, [0] * queue_count)
        self._names[incarnation] = name
        self._queue_count += queue_count
        return None

    def refusal_to_grow(self, topic: TopicState, queue_count: int) -> TooManyQueues | None:
        """Why the topic can't have that many queues; None if it can."""
        more = max(0, queue_count - len(topic.next_offsets))
        if more and self._queue_count + more > self.max_queues:
            return TooManyQueues(more, self.max_queues)
        return None

    def grow(self, topic: TopicState, queue_count: int) -> None:
        """The topic has that many queues at least, new ones at offset 0; `refusal_to_grow` was
        asked before."""
        more = max(0, queue_count - len(topic.next_offsets))
        topic.next_offsets.extend([0] * more)
        topic.units_crcs.extend([0] * more)
        self._queue_count += more

    def delete(self, name: str) -> None:
        """The topic is gone; there must be one."""
        topic = self._topics.pop(name)
        del self._names[topic.incarnation]
        self._queue_count -= len(topic.next_offsets)

    def refusal_of(
        self,
        topic: TopicState,
        queue_id: int,
        base: int,
        *,
        incarnation: int,
        end: int | None = None,
    ) -> TopicReplaced | QueueNotFound | OffsetTaken | None:
        """Why a batch that starts at offset `base` of the queue doesn't continue it; None if it
        does. `incarnation`: for which topic of the name it is; 0: for this one. `end`: where the
        queue ends by then; None: where it does now."""
        if incarnation not in (0, topic.incarnation):  # `TopicRef.means`, once for each batch
            return TopicReplaced(topic.name, incarnation, topic.incarnation)
        if not 0 <= queue_id < len(topic.next_offsets):
            return QueueNotFound(topic.name, queue_id, len(topic.next_offsets))
        expected = topic.next_offsets[queue_id] if end is None else end
        if base != expected:
            return OffsetTaken(topic.name, queue_id, base, expected)
        return None

    def advance(self, topic: TopicState, queue_id: int, end: int) -> None:
        """The queue ends at `end` now; `refusal_of` was asked before."""
        topic.next_offsets[queue_id] = end

    def derive(self, topic: TopicState, queue_id: int, units: bytes) -> None:
        """The queue's units go on with these."""
        topic.units_crcs[queue_id] = crc32c(units, topic.units_crcs[queue_id])

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> Section:
        """The topics as they are now, whatever is applied while the payloads are taken."""
        view = [
            (
                (t.name, t.incarnation, t.created_time_ms, tuple(t.next_offsets)),
                tuple(t.units_crcs),
            )
            for t in self._topics.values()
        ]
        return Section(SECTION, VERSION, pack(_records(view)))

    def restore(self, version: int, payloads: Iterable[bytes]) -> None:
        """Empty topics become those that `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: they don't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(SECTION, version)
        counts: dict[str, int] = {}
        for payload in payloads:
            reader = PayloadReader(SECTION, payload)
            while not reader.is_at_end:
                name = reader.take_text()
                incarnation, created, counts[name], first, size = reader.take(_HEAD)
                queues = list(reader.take_many(_QUEUE, size))
                part = TopicState(name, incarnation, created, [end for end, _ in queues])
                part.units_crcs = [crc for _, crc in queues]
                self._restore_one(part, first)
        for name, count in counts.items():
            held = len(self._topics[name].next_offsets)
            if held != count:
                raise SnapshotDamaged(f"{SECTION}: {name}", f"{count} queues", held)
            self._queue_count += count

    def _restore_one(self, part: TopicState, first: int) -> None:
        """`part` is of a topic, its queues from `first` on."""
        name, made = part.name, (part.incarnation, part.created_time_ms)
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = TopicState(name, *made, [])
            self._names[part.incarnation] = name
        elif first == 0:
            raise SnapshotDamaged(f"{SECTION}: {name}", "one topic of a name", "two")
        same = (topic.incarnation, topic.created_time_ms) == made
        if first != len(topic.next_offsets) or not same:
            raise SnapshotDamaged(f"{SECTION}: {name}", f"queue {len(topic.next_offsets)}", first)
        topic.next_offsets.extend(part.next_offsets)
        topic.units_crcs.extend(part.units_crcs)

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        counted = sum(len(topic.next_offsets) for topic in self._topics.values())
        if counted != self._queue_count or counted > self.max_queues:
            raise InvariantViolation(
                f"{counted} queues, {self._queue_count} counted, the limit is {self.max_queues}"
            )
        for name, topic in self._topics.items():
            if topic.name != name or min(topic.next_offsets, default=0) < 0:
                raise InvariantViolation(f"topic {name!r} is {topic}")
            if len(topic.units_crcs) != len(topic.next_offsets):
                raise InvariantViolation(f"topic {name!r} is {topic}")
        incarnations = [topic.incarnation for topic in self._topics.values()]
        if list(self._names.items()) != list(zip(incarnations, self._topics, strict=True)):
            raise InvariantViolation(f"topics are {self._names} by their incarnations")
        if any(one >= other for one, other in pairwise(incarnations)):
            raise InvariantViolation(f"topics were created in the order {incarnations}")


def _records(topics: Sequence[QueueView]) -> Iterator[bytes]:
    """A topic of many queues takes several records, so that none is long."""
    for (name, incarnation, created, offsets), crcs in topics:
        text = pack_text(name)
        for first in range(0, max(1, len(offsets)), _QUEUES_IN_RECORD):
            part = offsets[first : first + _QUEUES_IN_RECORD]
            head = _HEAD.pack(incarnation, created, len(offsets), first, len(part))
            queues = zip(part, crcs[first : first + len(part)], strict=True)
            yield b"".join((text, head, *[_QUEUE.pack(*queue) for queue in queues]))
