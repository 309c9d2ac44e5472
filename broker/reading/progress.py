"""How far consumer groups have come, read from the replicated state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class QueueOffset(NamedTuple):
    """An offset of one queue of a topic."""

    queue_id: int
    offset: int


class CommittedOffsets(Protocol):
    """The replicated state, as far as consumer groups go: group, topic, queue id -> offset."""

    @property
    def offsets(self) -> Mapping[str, Mapping[str, Mapping[int, int]]]: ...


def committed_offsets(state: CommittedOffsets, group: str, topic: str) -> tuple[QueueOffset, ...]:
    """A group's offsets in a topic, by queue; queues without one are left out."""
    offsets = state.offsets.get(group, {}).get(topic, {})
    return tuple(QueueOffset(queue_id, offset) for queue_id, offset in sorted(offsets.items()))
