"""Committed offsets: how far each consumer group has come in each queue.

This owns the offsets and nothing of the topics that they are in: the machine says where a topic's
queues end, and when a topic is gone.

    state               on                          becomes
    nothing committed   commit of o                 at o           (refused: TooMuchProgress)
    at p                commit of o > p             at o
    at p                commit of o ≤ p             at p: a late commit changes nothing
    at p                reset to o                  at o
    any                 commit beyond the end       unchanged      (refused: OffsetOutOfRange)
    nothing committed   made of another group       what that has  (refused: TooMuchProgress)
    any                 its topic is deleted        nothing committed
    any                 its group is forgotten      nothing committed

A command is applied whole or not at all. Bounds: `max_progress` pairs of group and topic; how many
queues all of these have is counted, and bounded by leaders (`broker.leader.offsets_room`). Offsets
move forward only, unless a command says otherwise (RocketMQ #7790, #3210). Order: topics and the
groups of a topic are kept as they first committed, which the log decides; a snapshot keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from broker.state.errors import SnapshotDamaged, SnapshotUnknown
from broker.state.layout import COMMITTED_OFFSET, OFFSETS_SECTION
from broker.state.refusals import OffsetOutOfRange, TooMuchProgress
from broker.state.snapshot import PayloadReader, Section, pack, pack_text
from dledger.core.errors import InvariantViolation

SECTION: Final = "offsets"
VERSION: Final = 1
MAX_PROGRESS: Final = 100_000
_HEAD: Final = OFFSETS_SECTION.run("before", "count")
_ENTRY: Final = COMMITTED_OFFSET.struct()
_QUEUES_IN_RECORD: Final = 1_024

QueueOffsets = Mapping[int, int]  # queue id -> committed offset
NOTHING: Final[QueueOffsets] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """What a group wants to have committed: `(queue id, offset)` each. `incarnation`: of the topic
    that is meant; 0: whichever has the name."""

    group: str
    topic: str
    wanted: tuple[tuple[int, int], ...]
    is_reset: bool
    incarnation: int = 0


@dataclass(slots=True)
class Offsets:
    """All committed offsets, as of the last applied entry. Every field is replicated state or its
    bound, so that two of them are equal if and only if the states are."""

    max_progress: int = MAX_PROGRESS
    # Topic, then group. The offsets of a pair are replaced and never changed, so that a snapshot
    # can go on reading those that it began with.
    _topics: dict[str, dict[str, QueueOffsets]] = field(default_factory=dict, init=False)
    _topic_counts: dict[str, int] = field(default_factory=dict, init=False)  # by group
    _progress_count: int = field(default=0, init=False)
    _queue_count: int = field(default=0, init=False)

    # --- reading ------------------------------------------------------------------------------

    def of(self, group: str, topic: str) -> QueueOffsets:
        """What the group has committed in the topic; empty if nothing."""
        return self._topics.get(topic, {}).get(group, NOTHING)

    def groups(self, topic: str) -> Mapping[str, QueueOffsets]:
        """The groups that have committed in the topic, with what they have."""
        return MappingProxyType(self._topics.get(topic, {}))

    def topics(self) -> Iterable[str]:
        """The topics in which something is committed."""
        return self._topics.keys()

    @property
    def group_count(self) -> int:
        """Groups that have committed anything."""
        return len(self._topic_counts)

    @property
    def pair_count(self) -> int:
        """Pairs of a group and a topic."""
        return self._progress_count

    @property
    def queue_count(self) -> int:
        """Offsets, of all pairs in all queues."""
        return self._queue_count

    def queue_count_of(self, group: str) -> int:
        """The group's. Looks at all topics."""
        return sum(len(groups.get(group, ())) for groups in self._topics.values())

    def has(self, group: str) -> bool:
        """Whether the group has committed anything."""
        return group in self._topic_counts

    def committed_groups(self) -> list[str]:
        """Them."""
        return list(self._topic_counts)

    # --- transitions --------------------------------------------------------------------------

    def is_new(self, command: OffsetCommit) -> bool:
        """Whether the group has committed nothing in the topic yet."""
        return command.group not in self._topics.get(command.topic, {})

    def refusal_of(
        self, command: OffsetCommit, ends: Sequence[int], new: int = 0
    ) -> OffsetOutOfRange | TooMuchProgress | None:
        """Why nothing of the commit takes effect, where `new` pairs of group and topic come before
        it; None if it does."""
        for queue_id, offset in command.wanted:
            if queue_id >= len(ends) or offset > ends[queue_id]:
                return OffsetOutOfRange(command.topic, queue_id, offset)
        if self.is_new(command) and self._progress_count + new >= self.max_progress:
            return TooMuchProgress(self.max_progress)
        return None

    def commit(
        self, command: OffsetCommit, ends: Sequence[int]
    ) -> OffsetOutOfRange | TooMuchProgress | None:
        """The offsets are committed, each where it moves forward; or why none is.

        Args:
            command: what is wanted.
            ends: one past the last message of each queue of the topic.
        """
        refusal = self.refusal_of(command, ends)
        if refusal is not None:
            return refusal
        before = self._topics.get(command.topic, {}).get(command.group)
        after = dict(before or {})
        for queue_id, offset in command.wanted:
            if command.is_reset or offset > after.get(queue_id, -1):
                after[queue_id] = offset
        self._put(command.topic, command.group, after, is_new=before is None)
        return None

    def clone(self, source: str, target: str) -> TooMuchProgress | None:
        """The target, which has committed nothing, has committed what the source has; or why not.
        Looks at all topics."""
        found = [
            (topic, groups[source]) for topic, groups in self._topics.items() if source in groups
        ]
        if self._progress_count + len(found) > self.max_progress:
            return TooMuchProgress(self.max_progress)
        for topic, offsets in found:
            self._put(topic, target, offsets, is_new=True)
        return None

    def topic_count(self, group: str) -> int:
        """In how many topics the group has committed."""
        return self._topic_counts.get(group, 0)

    def on_topic_deleted(self, topic: str) -> None:
        """Nothing is committed in the topic any more."""
        for group, offsets in self._topics.pop(topic, {}).items():
            self._progress_count -= 1
            self._queue_count -= len(offsets)
            self._topic_counts[group] -= 1
            if not self._topic_counts[group]:
                del self._topic_counts[group]

    def on_group_forgotten(self, group: str) -> None:
        """The group has committed nothing any more. Looks at all topics."""
        for topic in [topic for topic, groups in self._topics.items() if group in groups]:
            self._queue_count -= len(self._topics[topic].pop(group))
            if not self._topics[topic]:
                del self._topics[topic]
            self._progress_count -= 1
        self._topic_counts.pop(group, None)

    def _put(self, topic: str, group: str, offsets: QueueOffsets, *, is_new: bool) -> None:
        groups = self._topics.setdefault(topic, {})
        self._queue_count += len(offsets) - len(groups.get(group, NOTHING))
        groups[group] = offsets
        if is_new:
            self._progress_count += 1
            self._topic_counts[group] = self._topic_counts.get(group, 0) + 1

    # --- snapshot -----------------------------------------------------------------------------

    def snapshot(self) -> Section:
        """The offsets as they are now, whatever is applied while the payloads are taken."""
        view = {topic: groups.copy() for topic, groups in self._topics.items()}
        return Section(SECTION, VERSION, pack(_records(view)))

    def restore(self, version: int, payloads: Iterable[bytes]) -> None:
        """Empty offsets become those that `snapshot` wrote.

        Raises:
            SnapshotUnknown, SnapshotDamaged: they don't; this object is of no use then.
        """
        if version != VERSION:
            raise SnapshotUnknown(SECTION, version)
        for payload in payloads:
            reader = PayloadReader(SECTION, payload)
            while not reader.is_at_end:
                self._restore_one(reader)

    def _restore_one(self, reader: PayloadReader) -> None:
        topic, group = reader.take_text(), reader.take_text()
        first, size = reader.take(_HEAD)
        before = self._topics.get(topic, {}).get(group)
        if (before is None) != (first == 0) or len(before or {}) != first:
            held = len(before or {})
            raise SnapshotDamaged(f"{SECTION}: {group} in {topic}", f"{held} before", first)
        offsets = dict(before or {})
        for queue_id, offset in reader.take_many(_ENTRY, size):
            offsets[queue_id] = offset
        if len(offsets) != first + size:
            raise SnapshotDamaged(
                f"{SECTION}: {group} in {topic}", "each queue once", first + size - len(offsets)
            )
        self._put(topic, group, offsets, is_new=before is None)

    # --- invariants ---------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Raises:
        InvariantViolation: names what doesn't hold.
        """
        counts: dict[str, int] = {}
        for topic, groups in self._topics.items():
            if not groups:
                raise InvariantViolation(f"topic {topic!r} is kept without a group")
            for group, offsets in groups.items():
                counts[group] = counts.get(group, 0) + 1
                if min(offsets.values(), default=0) < 0:
                    raise InvariantViolation(f"{group} in {topic} has committed {offsets}")
        queues = sum(len(each) for groups in self._topics.values() for each in groups.values())
        if queues != self._queue_count:
            raise InvariantViolation(f"{queues} offsets, {self._queue_count} are counted")
        counted = sum(counts.values())
        if counts != self._topic_counts or counted != self._progress_count:
            raise InvariantViolation(f"{counted} pairs, {self._progress_count} are counted")
        if counted > self.max_progress:
            raise InvariantViolation(f"{counted} pairs, the limit is {self.max_progress}")


def _records(topics: Mapping[str, Mapping[str, QueueOffsets]]) -> Iterator[bytes]:
    """A pair of many queues takes several records; queues are in order, whoever committed when."""
    for topic, groups in topics.items():
        topic_text = pack_text(topic)
        for group, offsets in groups.items():
            group_text = pack_text(group)
            entries = sorted(offsets.items())
            for first in range(0, max(1, len(entries)), _QUEUES_IN_RECORD):
                part = entries[first : first + _QUEUES_IN_RECORD]
                packed = b"".join([_ENTRY.pack(*entry) for entry in part])
                yield b"".join((topic_text, group_text, _HEAD.pack(first, len(part)), packed))
