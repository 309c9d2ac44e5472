"""Linearizable reads that wait for proof that their leader still leads (ReadIndex).

A read takes the commit index of its moment and the number of the next heartbeat round; once a
majority has answered that round or a later one, no newer leader can have committed anything
before the read began. Several reads share a round. No clock and no lease: a paused leader wakes
up and still has to ask (`test_s59`).

Source: dissertation §6.4. Bound: `RaftOptions.max_pending_reads`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from dledger.core.errors import InvariantViolation
from dledger.core.types import Index, ReadAborted, ReadReady


class _PendingRead(NamedTuple):
    context: int
    commit_index: Index
    round_number: int


class PendingReads:
    """Reads in the order they came, hence in the order of their rounds."""

    __slots__ = ("_contexts", "_queue")

    def __init__(self) -> None:
        self._queue: deque[_PendingRead] = deque()
        self._contexts: set[int] = set()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, context: int, index: Index, round_number: int) -> None:
        """Hold read `context` until heartbeat round `round_number` is confirmed.

        Raises:
            InvariantViolation: the context is not positive or is already pending.
        """
        if context <= 0 or context in self._contexts:
            raise InvariantViolation(f"read context {context} is not positive and unique")
        self._contexts.add(context)
        self._queue.append(_PendingRead(context, index, round_number))

    def confirm(self, round_number: int) -> list[ReadReady]:
        """Release every read whose round is at most `round_number`."""
        ready: list[ReadReady] = []
        while self._queue and self._queue[0].round_number <= round_number:
            read = self._queue.popleft()
            self._contexts.discard(read.context)
            ready.append(ReadReady(read.context, read.commit_index))
        return ready

    def abort(self) -> list[ReadAborted]:
        """Give up on every read: leadership is lost."""
        aborted = [ReadAborted(read.context) for read in self._queue]
        self._queue.clear()
        self._contexts.clear()
        return aborted
