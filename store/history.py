"""What a log knows of its own past without reading it again.

Recovery builds this while it walks, appending and truncating keep it up: the last entry's term,
digest and time, where each term began, and the configuration entries. It holds no bytes of other
entries and grows with the number of elections and membership changes only.
"""

from __future__ import annotations

from bisect import bisect_right

from dledger.reading.entry import EntryHeader, EntryKind
from dledger.reading.log_start import FROM_THE_FIRST, LogStart
from store.intact import IntactRun


class History:
    """Owned by whoever owns the log at the time: recovery, then the owner thread."""

    def __init__(self, start: LogStart = FROM_THE_FIRST) -> None:
        self.start = start
        self.first_index = start.first_index
        self.last_index = start.index
        self.last_term = start.term
        self.last_digest = start.digest
        self.last_append_time_ms = start.append_time_ms
        self.term_runs: list[tuple[int, int]] = [(start.index, start.term)] if start.index else []
        self.configuration_entries: list[tuple[int, bytes]] = _configuration_of(start)

    def add(self, header: EntryHeader, body: bytes | None) -> None:
        """`header`'s entry is the last one now; `body` is given for a configuration entry."""
        if self.last_index < self.first_index:
            self.first_index = header.index
        if header.term != self.last_term:
            self.term_runs.append((header.index, header.term))
        if header.kind == EntryKind.CONFIGURATION and body is not None:
            self.configuration_entries.append((header.index, body))
        self.last_index = header.index
        self.last_term = header.term
        self.last_digest = header.digest
        self.last_append_time_ms = header.append_time_ms

    def pass_over(self, run: IntactRun) -> None:
        """The run's last entry is the last one now; its first was, until now."""
        self.term_runs += run.terms
        self.configuration_entries += run.configurations
        self.last_index = run.last.index
        self.last_term = run.last.term
        self.last_digest = run.last.digest
        self.last_append_time_ms = run.last.append_time_ms

    def term_at(self, index: int) -> int:
        """The term of the entry `index`, which is held, or is the one before the first."""
        run = bisect_right(self.term_runs, index, key=lambda each: each[0]) - 1
        return self.term_runs[run][1]

    def term_of_configuration(self, index: int) -> int:
        """The term of the configuration entry `index`, which may lie before the start; 0 for 0."""
        if index == self.start.configuration_index:
            return self.start.configuration_term
        return self.term_at(index)

    def truncate_from(self, index: int, last: EntryHeader | None) -> None:
        """`index` and everything after it are gone; `last` is the last entry, if one is left."""
        while self.term_runs and self.term_runs[-1][0] >= index:
            self.term_runs.pop()
        while self.configuration_entries and self.configuration_entries[-1][0] >= index:
            self.configuration_entries.pop()
        self.last_index = index - 1
        self.last_term = last.term if last else self.start.term
        self.last_digest = last.digest if last else self.start.digest
        self.last_append_time_ms = last.append_time_ms if last else self.start.append_time_ms

    def begin_at(self, start: LogStart) -> None:
        """Entries up to `start`, of which the last one is held or is the last, are gone."""
        self.start = start
        self.first_index = start.first_index
        behind = [run for run in self.term_runs if run[0] > start.index]
        self.term_runs = [(start.index, start.term), *behind]
        later = [each for each in self.configuration_entries if each[0] > start.index]
        self.configuration_entries = [*_configuration_of(start), *later]


def _configuration_of(start: LogStart) -> list[tuple[int, bytes]]:
    return [(start.configuration_index, start.configuration)] if start.configuration_index else []
