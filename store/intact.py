"""Entries that opening a log need not read again, because whoever opens it has read them.

An audit reads every byte of a log and then rehearses a start on it, which would read it all once
more. So who opens a log may say of a segment that its entries are intact, and the walk passes over
them: it looks at the first one as ever, and goes on behind the last. A node has read nothing and
says nothing. What is said must be what the walk would have found, of each entry but the first:

    its CRC is good, it lies behind the one before it, without a byte between them
    its index is the next one, its term isn't lower, its running digest continues the one before

The first entry is held against the log before it by the walk itself, and what lies behind the last
one is the walk's as well. Source: docs/adr/0034-the-fast-way-of-an-audit.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.reading.entry import EntryHeader


@dataclass(frozen=True, slots=True)
class IntactRun:
    """The entries that a segment begins with, as the module says, from its first byte on.

    `first`, `last`: their headers. Of those behind the first one, `terms` are `(index, term)` where
    a term begins, and `configurations` `(index, body)` of each configuration entry, ascending.
    """

    first: EntryHeader
    last: EntryHeader
    terms: tuple[tuple[int, int], ...]
    configurations: tuple[tuple[int, bytes], ...]

    @property
    def base(self) -> int:
        """Physical offset of the segment's first byte."""
        return self.first.physical_offset

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return self.last.physical_offset + self.last.total_size - self.base


Known = tuple[IntactRun, ...]  # one a segment
NOTHING_KNOWN: Final[Known] = ()
