"""What has been asked of the disk and what it has finished (ADR 3).

Owns the numbering of `Persist` requests, the one being gathered, and those outstanding. It
answers two questions: up to which entry is the log durable, and is the current term and vote
durable. A truncation clips every outstanding append: otherwise a late completion for entry 7 of
an old term would count for entry 7 of a new one (etcd's append ABA race, `test_s38`).

Bound: one outstanding record per request the driver has not completed; the driver completes
requests in order and groups them.
"""

from __future__ import annotations

from collections import deque

from dledger.core.errors import InvariantViolation
from dledger.core.types import NO_INDEX, HardState, Index, Persist, PersistSequence


class PersistQueue:
    """Persist requests: gathered, outstanding, complete."""

    __slots__ = (
        "_append_first",
        "_append_last",
        "_completed",
        "_hard_state",
        "_hard_state_sequence",
        "_next",
        "_outstanding",
        "_truncate_from",
    )

    def __init__(self) -> None:
        self._next = 1  # the sequence of the request being gathered
        self._completed = 0
        self._hard_state_sequence = 0  # the request that carries the current term and vote
        self._hard_state: HardState | None = None
        self._truncate_from: Index | None = None
        self._append_first = NO_INDEX
        self._append_last = NO_INDEX
        self._outstanding: deque[tuple[int, Index]] = deque()  # (sequence, last entry appended)

    @property
    def hard_state_is_durable(self) -> bool:
        """Whether the current term and vote would survive a crash now."""
        return self._hard_state_sequence <= self._completed

    @property
    def is_wanted(self) -> bool:
        """Whether `take` would return a request."""
        return (
            self._append_last != NO_INDEX
            or self._hard_state is not None
            or self._truncate_from is not None
        )

    def want_hard_state(self, hard_state: HardState) -> None:
        """Ask for a new term and vote; from now on it is the one that counts."""
        self._hard_state = hard_state
        self._hard_state_sequence = self._next

    def want_append(self, first: Index, last: Index) -> None:
        """Ask for entries `[first, last]`, which follow what was asked for before."""
        if self._append_last == NO_INDEX:
            self._append_first = first
        self._append_last = last

    def want_truncation(self, index: Index) -> None:
        """Ask to drop `index` and after; no earlier request counts for them any more."""
        if self._truncate_from is None or index < self._truncate_from:
            self._truncate_from = index
        if self._append_last >= index:
            self._append_last = Index(index - 1)
            if self._append_last < self._append_first:
                self._append_first = self._append_last = NO_INDEX
        self._outstanding = deque(
            (sequence, min(last, Index(index - 1))) for sequence, last in self._outstanding
        )

    def take(self) -> Persist | None:
        """Hand out the request gathered so far, if there is one."""
        if not self.is_wanted:
            return None
        request = Persist(
            PersistSequence(self._next),
            self._hard_state,
            self._truncate_from,
            self._append_first or None,
            self._append_last or None,
        )
        self._outstanding.append((self._next, self._append_last))
        self._next += 1
        self._hard_state = self._truncate_from = None
        self._append_first = self._append_last = NO_INDEX
        return request

    def complete(self, sequence: PersistSequence) -> Index:
        """Everything up to `sequence` is durable.

        Returns:
            The last entry made durable by it that still stands; 0 if none.

        Raises:
            InvariantViolation: the request was never handed out.
        """
        if sequence >= self._next:
            raise InvariantViolation(f"persist request {sequence} was never made")
        durable = NO_INDEX
        outstanding = self._outstanding
        while outstanding and outstanding[0][0] <= sequence:
            durable = max(durable, outstanding.popleft()[1])
        self._completed = max(self._completed, sequence)
        return durable
