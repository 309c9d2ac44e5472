"""What topics wish for their messages: how long they are kept, and from which offsets on they are.

This owns, for each topic that wishes something else than the group, how long that is, and for each
of its queues the first offset that may be read. Which messages are old enough a leader decides
(`broker.leader.topic_retention`), and says by which offsets that is: no clock is looked at here. An
offset never goes back, nor beyond the queue's end; bytes stay where they are until their segment
goes (`broker.state.log_start`).

    state                 on                          becomes
    no wish               wish of n ms                wish n ms
    wish of n ms          wish of 0                   no wish; what begins later stays so
    queue begins at m     move to k, m <= k <= end    begins at k
    queue begins at m     move to any other           unchanged      (refused: QueueStartNotMoved)
    any                   the topic has more queues   the same; these begin at 0
    any                   the topic is deleted        nothing is known of it

A command moves all queues that it names, or none. Keyed by the topic's incarnation. Bounds: those
of topics and queues. A state in which no topic ever wished anything has no section in its
snapshots, which so are those of the releases before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import QUEUE_START, TOPIC_RETENTION_SECTION
from broker.state.refusals import QueueStartNotMoved, RetentionOutOfRange
from broker.state.snapshot import PayloadReader, Section, pack
from dledger.core.errors import InvariantViolation

SECTION: Final = "topic-retention"
VERSION: Final = 1
MAX_RETENTION_MS: Final = 36_500 * 24 * 3_600_000  # a hundred years
_HEAD: Final = TOPIC_RETENTION_SECTION.run(
    "incarnation", "retention_ms", "queue_count", "first_queue", "count"
)
_START: Final = QUEUE_START.struct()
_QUEUES_IN_RECORD: Final = 1_024


@dataclass(frozen=True, slots=True)
class Keeping:
    """A topic's wish, 0 for none; and where its queues begin, empty as long as none was moved."""

    retention_ms: int = 0
    starts: tuple[int, ...] = ()


_USUAL: Final = Keeping()


@dataclass(slots=True)
class TopicRetentions:
    """As of the last applied entry."""

    _topics: dict[int, Keeping] = field(default_factory=dict, init=False)

    # --- reading ------------------------------------------------------------------------------

    def of(self, incarnation: int) -> Keeping:
        """What the topic wishes."""
        return self._topics.get(incarnation, _USUAL)

    def start_of(self, incarnation: int, queue_id: int) -> int:
        """The first offset of the queue that may be read, as far as the topic's wish goes."""
        starts = self.of(incarnation).starts
        return starts[queue_id] if starts else 0

    def wishes(self) -> dict[int, int]:
        """How long each topic that wishes it wants its messages kept, in ms, by incarnation."""
        return {
            topic: each.retention_ms for topic, each in self._topics.items() if each.retention_ms
        }

    # --- transitions --------------------------------------------------------------------------

    def wish(self, incarnation: int, retention_ms: int) -> RetentionOutOfRange | None:
        """The topic's messages are wanted for that long, 0: as long as the group's; or why not."""
        if not 0 <= retention_ms <= MAX_RETENTION_MS:
            return RetentionOutOfRange(retention_ms, MAX_RETENTION_MS)
        self._put(incarnation, Keeping(retention_ms, self.of(incarnation).starts))
        return None

    def move(
        self, incarnation: int, starts: Iterable[tuple[int, int]], ends: Sequence[int]
    ) -> QueueStartNotMoved | None:
        """These queues of the topic begin there; or why none was moved.

        Args:
            starts: (queue id, offset).
            ends: one past the last message of each queue of the topic.
        """
        keeping = self.of(incarnation)
        moved = list(keeping.starts or [0] * len(ends))
        for queue_id, offset in starts:
            if queue_id >= len(ends) or not moved[queue_id] <= offset <= ends[queue_id]:
                return QueueStartNotMoved(queue_id, offset)
            moved[queue_id] = offset
        if any(moved):
            self._put(incarnation, Keeping(keeping.retention_ms, tuple(moved)))
        return None

    def on_topic_grown(self, incarnation: int, queue_count: int) -> None:
        """The topic has that many queues: the new ones begin with their first message."""
        keeping = self.of(incarnation)
        if keeping.starts:
            starts = (*keeping.starts, *[0] * (queue_count - len(keeping.starts)))
            self._put(incarnation, Keeping(keeping.retention_ms, starts))

    def on_topic_deleted(self, incarnation: int) -> None:
        """Nothing is known of it."""
        self._topics.pop(incarnation, None)

    def _put(self, incarnation: int, keeping: Keeping) -> None:
        if keeping == _USUAL:
            self._topics.pop(incarnation, None)
        else:
            self._topics[incarnation] = keeping

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[Section, ...]:
        """The wishes as they are now, whatever is applied while the payloads are taken; no section
        where there is none."""
        if not self._topics:
            return ()
        return (Section(SECTION, VERSION, pack(_records(dict(sorted(self._topics.items()))))),)

    def restore(self, version: int, payloads: Iterable[bytes]) -> None:
        """It becomes what `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: it doesn't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(SECTION, version)
        counts: dict[int, int] = {}
        for payload in payloads:
            reader = PayloadReader(SECTION, payload)
            while not reader.is_at_end:
                incarnation, retention_ms, count, first, size = reader.take(_HEAD)
                held = self._topics.get(incarnation, Keeping(retention_ms))
                is_next = first == len(held.starts) and (incarnation in self._topics) == (first > 0)
                if not is_next or held.retention_ms != retention_ms:
                    raise SnapshotDamaged(f"{SECTION}: {incarnation}", len(held.starts), first)
                if counts.setdefault(incarnation, count) != count:
                    raise SnapshotDamaged(f"{SECTION}: {incarnation}", counts[incarnation], count)
                part = tuple(start for (start,) in reader.take_many(_START, size))
                self._topics[incarnation] = Keeping(retention_ms, held.starts + part)
        for incarnation, count in counts.items():
            found = len(self._topics[incarnation].starts)
            if found != count:
                raise SnapshotDamaged(f"{SECTION}: {incarnation}", f"{count} queues", found)

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self, ends: Mapping[int, Sequence[int]]) -> None:
        """Args:
            ends: of each topic's queues, by incarnation.

        Raises:
            InvariantViolation: names what doesn't hold.
        """
        for incarnation, keeping in self._topics.items():
            if incarnation not in ends:
                raise InvariantViolation(f"topic {incarnation}, which is gone, wishes {keeping}")
            if not 0 <= keeping.retention_ms <= MAX_RETENTION_MS or keeping == _USUAL:
                raise InvariantViolation(f"topic {incarnation} wishes {keeping}")
            starts, held = keeping.starts, ends[incarnation]
            if starts and (
                len(starts) != len(held)
                or not any(starts)
                or any(start > end for start, end in zip(starts, held, strict=True))
            ):
                raise InvariantViolation(f"queues of topic {incarnation} begin at {starts}")


def _records(topics: Mapping[int, Keeping]) -> Iterator[bytes]:
    """A topic of many queues takes several records, so that none is long."""
    for incarnation, keeping in topics.items():
        starts = keeping.starts
        for first in range(0, max(1, len(starts)), _QUEUES_IN_RECORD):
            part = starts[first : first + _QUEUES_IN_RECORD]
            head = _HEAD.pack(incarnation, keeping.retention_ms, len(starts), first, len(part))
            yield b"".join((head, *(_START.pack(start) for start in part)))
