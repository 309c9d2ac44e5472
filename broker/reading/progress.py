"""How far consumer groups have come, read from the replicated state."""

from __future__ import annotations

from typing import NamedTuple

from broker.state.offsets import Offsets


class QueueOffset(NamedTuple):
    """An offset of one queue of a topic."""

    queue_id: int
    offset: int


def committed_offsets(offsets: Offsets, group: str, topic: str) -> tuple[QueueOffset, ...]:
    """A consumer group's offsets in a topic, by queue; queues without one are left out."""
    return tuple(QueueOffset(*each) for each in sorted(offsets.of(group, topic).items()))
