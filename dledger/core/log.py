"""What the core knows of the log: term runs, three watermarks, sizes of the uncommitted tail.

Owns `last_index`, `durable_index` (on this node's disk), `commit_index`, and the configurations
found in the log. It never holds an entry or a payload (ADR 4), and its memory is
O(term runs + uncommitted entries + configuration entries), never O(entries): terms are kept as
runs, sizes are forgotten at commit. Watermarks hold `commit <= last` and `durable <= last` at all
times; breaking one raises `InvariantViolation`, because DLedger #316
shows what a commit index beyond the log does.

Source: Raft paper figure 2; the run representation is ours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from dledger.core.errors import InvariantViolation
from dledger.core.types import (
    NO_INDEX,
    NO_TERM,
    Configuration,
    ConfigurationPlace,
    Index,
    LogBase,
    LogSummary,
    Term,
)

_COMPACT_SIZES_AT = 1024  # forgotten sizes that may linger before the list is cut


class RaftLog:
    """The log as indexes, terms and sizes."""

    __slots__ = (
        "_configurations",
        "_ends",
        "_firsts",
        "_initial_configuration",
        "_sizes_base",
        "_sizes_base_end",
        "_sizes_head",
        "_terms",
        "base",
        "commit_index",
        "configuration",
        "durable_index",
        "last_index",
        "last_term",
    )

    def __init__(
        self, configuration: Configuration, summary: LogSummary, commit_index: Index
    ) -> None:
        """Take over the durable log that recovery found.

        Args:
            configuration: in force where neither the log nor its base holds one.
            summary: the durable log; all of it counts as durable.
            commit_index: known to be committed.

        Raises:
            InvariantViolation: the summary contradicts itself or the commit index.
        """
        _check_summary(summary, commit_index)
        self.base = summary.base
        self.last_index = summary.last_index
        self.durable_index = summary.last_index
        self.commit_index = commit_index
        self._firsts: list[Index] = [run.first_index for run in summary.term_runs]
        self._terms: list[Term] = [run.term for run in summary.term_runs]
        self.last_term = self._terms[-1] if self._terms else NO_TERM
        self._initial_configuration = summary.base.configuration or configuration
        self._configurations = list(summary.configurations)
        self.configuration = (
            self._configurations[-1][1] if self._configurations else self._initial_configuration
        )
        # `_ends[i]` is the cumulative size up to and with entry `_sizes_base + 1 + i`. Sizes of
        # what was in the log at boot are unknown: they lie at or below the base.
        self._sizes_base = summary.last_index
        self._sizes_base_end = 0
        self._sizes_head = 0  # entries of `_ends` that are committed, hence forgotten
        self._ends: list[int] = []

    # --- Terms ------------------------------------------------------------------------------

    def term_at(self, index: Index) -> Term:
        """Return the term of the entry at `index`; 0 at index 0. That of the base is known.

        Raises:
            InvariantViolation: the entry does not exist, or not any more.
        """
        firsts = self._firsts
        if firsts and firsts[-1] <= index <= self.last_index:
            return self.last_term
        if index == NO_INDEX:
            return NO_TERM
        if index < self.base.index or index > self.last_index:
            raise InvariantViolation(
                f"entry {index} has no term: the log goes from {self.base.index} to "
                f"{self.last_index}"
            )
        return self._terms[bisect_right(firsts, index) - 1]

    def matches(self, index: Index, term: Term) -> bool:
        """Tell whether the entry at `index` is held, or is the base, and carries `term`; index 0
        carries 0."""
        if not self.base.index <= index <= self.last_index:
            return False
        return self.term_at(index) == term

    def first_of_run(self, index: Index) -> Index:
        """Return the first index that carries the same term as the entry at `index`, as far as it
        is known."""
        if index == NO_INDEX:
            return index
        return self._firsts[bisect_right(self._firsts, index) - 1]

    def last_with_term(self, term: Term) -> Index:
        """Return the last index that carries `term`; 0 if no entry does."""
        at = bisect_left(self._terms, term)
        if at == len(self._terms) or self._terms[at] != term:
            return NO_INDEX
        if at + 1 == len(self._firsts):
            return self.last_index
        return Index(self._firsts[at + 1] - 1)

    # --- Growing and shrinking --------------------------------------------------------------

    def append(self, term: Term, size: int, configuration: Configuration | None = None) -> Index:
        """Add one entry of `size` bytes at the end; a configuration is in force from now on.

        Raises:
            InvariantViolation: the term would go back.
        """
        index = Index(self.last_index + 1)
        if term != self.last_term or not self._firsts:
            if term < self.last_term or term == NO_TERM:
                raise InvariantViolation(
                    f"entry {index} of term {term} after an entry of term {self.last_term}"
                )
            self._firsts.append(index)
            self._terms.append(term)
            self.last_term = term
        ends = self._ends
        ends.append((ends[-1] if ends else self._sizes_base_end) + size)
        self.last_index = index
        if configuration is not None:
            self._configurations.append((index, configuration))
            self.configuration = configuration
        return index

    def truncate_from(self, index: Index) -> None:
        """Drop the entry at `index` and everything after it, and what they had in force.

        Raises:
            InvariantViolation: a committed entry would go (`test_s30`).
        """
        if index <= self.commit_index or index > self.last_index:
            raise InvariantViolation(
                f"truncation from {index} in a log with commit index {self.commit_index} "
                f"and last index {self.last_index}"
            )
        self.last_index = Index(index - 1)
        self.durable_index = min(self.durable_index, self.last_index)
        while self._firsts and self._firsts[-1] >= index:
            self._firsts.pop()
            self._terms.pop()
        self.last_term = self._terms[-1] if self._terms else NO_TERM
        self._truncate_sizes()
        while self._configurations and self._configurations[-1][0] >= index:
            self._configurations.pop()
        self.configuration = (
            self._configurations[-1][1] if self._configurations else self._initial_configuration
        )

    def begin_at(self, base: LogBase) -> None:
        """Entries up to `base` are gone from here; it is committed, and on this node's disk.

        Raises:
            InvariantViolation: it isn't, or lies before the log.
        """
        settled = min(self.commit_index, self.durable_index)
        if not self.base.index < base.index <= settled or self.term_at(base.index) != base.term:
            raise InvariantViolation(f"a log settled to {settled} can't begin behind {base}")
        run = bisect_right(self._firsts, base.index) - 1
        del self._firsts[:run]
        del self._terms[:run]
        self._firsts[0] = base.index
        while self._configurations and self._configurations[0][0] <= base.index:
            self._initial_configuration = self._configurations.pop(0)[1]
        self.base = base

    def persisted_to(self, index: Index) -> None:
        """Entries up to `index` are on this node's disk; never moves back."""
        if index > self.last_index:
            raise InvariantViolation(f"durable index {index} beyond last {self.last_index}")
        self.durable_index = max(self.durable_index, index)

    def commit_to(self, index: Index) -> None:
        """Move the commit index forward to `index` and forget the sizes below it.

        Raises:
            InvariantViolation: it would go back or beyond the log (`test_s42`).
        """
        if not self.commit_index <= index <= self.last_index:
            raise InvariantViolation(
                f"commit index {self.commit_index} -> {index}, last index {self.last_index}"
            )
        self.commit_index = index
        self._forget_sizes()

    # --- Configurations ---------------------------------------------------------------------

    @property
    def configuration_place(self) -> ConfigurationPlace:
        """Where the configuration in force stands."""
        if not self._configurations:
            return self.base.place
        index = self._configurations[-1][0]
        return ConfigurationPlace(self.term_at(index), index)

    def has_uncommitted_configuration(self) -> bool:
        """Tell whether a change is pending."""
        return bool(self._configurations) and self._configurations[-1][0] > self.commit_index

    def configurations_that_may_count(self) -> tuple[Configuration, ...]:
        """The one in force, and, until that is known to be committed, the one before: others may
        go on with it, and the entry that ended it may be cut off."""
        if not self.has_uncommitted_configuration():
            return (self.configuration,)
        earlier = self._configurations[:-1]
        return (self.configuration, earlier[-1][1] if earlier else self._initial_configuration)

    # --- Sizes of the uncommitted tail ------------------------------------------------------

    def uncommitted_bytes(self) -> int:
        """Return the known bytes above the commit index (entries held at boot count 0)."""
        return self._ends[-1] - self._end_of_head() if self._ends else 0

    def bytes_between(self, first: Index, last: Index) -> int | None:
        """Return the bytes of `[first, last]`, inclusive; None if some are not known any more."""
        at = first - self._sizes_base - 1
        if at < self._sizes_head:
            return None
        before = self._ends[at - 1] if at > 0 else self._sizes_base_end
        return self._ends[last - self._sizes_base - 1] - before

    def _end_of_head(self) -> int:
        head = self._sizes_head
        return self._ends[head - 1] if head > 0 else self._sizes_base_end

    def _forget_sizes(self) -> None:
        # Slicing a list costs what remains, so it is done once in many commits.
        head = self._sizes_head = max(0, self.commit_index - self._sizes_base)
        if head == len(self._ends) or (head > _COMPACT_SIZES_AT and 2 * head > len(self._ends)):
            self._sizes_base_end = self._end_of_head()
            self._sizes_base = Index(self._sizes_base + head)
            del self._ends[:head]
            self._sizes_head = 0

    def _truncate_sizes(self) -> None:
        if self.last_index <= self._sizes_base:
            self._ends.clear()
            self._sizes_base = self.last_index
            self._sizes_head = 0
        else:
            del self._ends[self.last_index - self._sizes_base :]


def _check_summary(summary: LogSummary, commit_index: Index) -> None:
    if commit_index > summary.last_index:
        raise InvariantViolation(f"commit {commit_index} beyond last {summary.last_index}")
    if bool(summary.term_runs) != (summary.last_index > NO_INDEX):
        raise InvariantViolation(f"term runs do not cover the log: {summary}")
    begin = max(1, summary.base.index)
    if summary.term_runs and summary.term_runs[0].first_index != begin:
        raise InvariantViolation(f"the first term run does not begin at {begin}")
    if not summary.base.index <= min(commit_index, summary.last_index):
        raise InvariantViolation(f"what is before {summary.base} isn't committed")
    previous_first, last_term = NO_INDEX, NO_TERM
    for run in summary.term_runs:
        if not previous_first < run.first_index <= summary.last_index:
            raise InvariantViolation(f"term runs are not in order: {run}")
        if run.term < last_term or run.term == NO_TERM:
            raise InvariantViolation(f"terms go back at {run}")
        previous_first, last_term = run.first_index, run.term
