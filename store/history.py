"""What a log knows of its own past without reading it again.

Recovery builds this while it walks, appending and truncating keep it up: the last entry's term,
digest and time, where each term began, and the configuration entries. It holds no bytes of other
entries and grows with the number of elections and membership changes only.
"""

from __future__ import annotations

from bisect import bisect_right

from dledger.reading.entry import EntryHeader, EntryKind
from store.intact import IntactRun


class History:
    """Owned by whoever owns the log at the time: recovery, then the owner thread."""

    def __init__(self) -> None:
        self.first_index = 1
        self.last_index = 0
        self.last_term = 0
        self.last_digest = 0
        self.last_append_time_ms = 0
        self.term_runs: list[tuple[int, int]] = []
        self.configuration_entries: list[tuple[int, bytes]] = []

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
        """The term of the entry `index`, which is held."""
        run = bisect_right(self.term_runs, index, key=lambda each: each[0]) - 1
        return self.term_runs[run][1]

    def truncate_from(self, index: int, last: EntryHeader | None) -> None:
        """`index` and everything after it are gone; `last` is the last entry, if one is left."""
        while self.term_runs and self.term_runs[-1][0] >= index:
            self.term_runs.pop()
        while self.configuration_entries and self.configuration_entries[-1][0] >= index:
            self.configuration_entries.pop()
        self.last_index = index - 1
        self.last_term = last.term if last else 0
        self.last_digest = last.digest if last else 0
        self.last_append_time_ms = last.append_time_ms if last else 0
