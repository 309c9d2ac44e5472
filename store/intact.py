"""Entries that opening a log need not read again, because somebody has.

An audit reads every byte of a log and then rehearses a start on it, which would read it all once
more. And a member that starts has written, or verified, nearly all of its log in a life before, and
has written down what it knew of it (`store.seals`). So it may be said of a segment that its entries
are intact, and the walk passes over them: it looks at the first one as ever, reads the header of
the last, and goes on behind it. What is said must be what the walk would have found, of each entry
but the first:

    its CRC is good, it lies behind the one before it, without a byte between them
    its index is the next one, its term isn't lower, its running digest continues the one before

The first entry is held against the log before it by the walk itself, and what lies behind the last
one is the walk's as well. An audit says that of what the disk holds now; a seal of what it was
given, and what has rotted since is the scrub's to find. Sources:
docs/adr/0034-the-fast-way-of-an-audit.md, docs/adr/0037-a-start-reads-what-is-new.md.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final, NamedTuple

from dledger.reading.entry import EntryHeader


class Marks(NamedTuple):
    """Where some of a segment's entries begin, ascending: their numbers in it, from 0, and the
    offsets. The first is `(0, 0)`."""

    slots: array[int]
    starts: array[int]


@dataclass(frozen=True, slots=True)
class IntactRun:
    """The entries that a segment begins with, as the module says, from its first byte on.

    `first`, `last`: their headers. Of those behind the first one, `terms` are `(index, term)` where
    a term begins, and `configurations` `(index, body)` of each configuration entry, ascending.
    `marks`: as many as whoever goes on to use the log wants; None: nobody does.
    """

    first: EntryHeader
    last: EntryHeader
    terms: tuple[tuple[int, int], ...]
    configurations: tuple[tuple[int, bytes], ...]
    marks: Marks | None = None

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
