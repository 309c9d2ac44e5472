"""Where queues begin, by the whole history: a queue's first message is the first behind its log's.

A node says itself where a queue begins, and clients go by what it says: whoever let go of messages
that the log still holds would be believed. So here the entries say it. Queue offsets are dense,
those of refused records too, so what a queue lacks in a log that begins behind an entry is what
all entries through that one placed in it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from broker.state.listening import QueueKey
from chaos.sim.defect import Defect
from chaos.sim.machine import Life
from chaos.sim.machine_config import DATA
from chaos.sim.node import SimNode
from store.log_start import StartNote


class Beginnings:
    """Of all queues of one run."""

    def __init__(self) -> None:
        # Of each queue: the entries that placed records in it, and where it ended behind each.
        self._ends: dict[QueueKey, list[tuple[int, int]]] = defaultdict(list)

    def note(self, queue: QueueKey, index: int, end: int) -> None:
        """The next entry with records of the queue, void ones too, and where it ends now."""
        self._ends[queue].append((index, end))

    def of(self, queue: QueueKey, base: int) -> int:
        """The first offset that a log holds which begins behind entry `base`."""
        ends = self._ends.get(queue, [])
        at = bisect_right(ends, base, key=lambda each: each[0])
        return ends[at - 1][1] if at else 0

    def check(self, node: SimNode, life: Life) -> None:
        """The node's queues begin where its log does, neither later nor earlier; or where that is
        about to begin, which its note says first, and then each queue.

        Raises:
            Defect: names the queue that doesn't.
        """
        base = life.replica.log.start.index
        noted = StartNote(node.disk, DATA).read().index
        for topic in life.replica.machine.topics.values():
            for queue_id in range(len(topic.next_offsets)):
                queue = topic.incarnation, queue_id
                expected = self.of(queue, base)
                found = life.replica.queues.min_offset(topic.folder, queue_id)
                if found not in (expected, self.of(queue, max(base, noted))):
                    raise Defect(
                        "queue begins elsewhere",
                        f"{topic.folder}/{queue_id} of {node.name} begins at {found}, and its log, "
                        f"behind entry {base}, holds it from {expected} on",
                    )
