"""Handouts of one queue, packed: which messages somebody has, until when, for which time.

A *handout* is up to 64 offsets, as a base and a bitmap of those that aren't finished, that one
entry handed out (or put back). All values are immutable, so that a snapshot goes on reading what it
began with. They are packed because a million of them have to fit: 42 bytes each, in pages of at
most 64, in the order of their entries; an object for each would take five times that. `Draft` is a
queue's record while a command changes it; nothing of it shows before `done`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker.state.layout import HANDOUT

ROW: Final = HANDOUT.struct()
_INDEX: Final = HANDOUT.run("index")
SPAN: Final = 64  # offsets of one handout
PAGE_ROWS: Final = 64
MERGED_ROWS: Final = 32  # neighbours that are no more together become one page
MAX_ATTEMPT: Final = (1 << 16) - 1
MAX_MASK: Final = (1 << SPAN) - 1
ATTEMPT_ID_SIZE: Final = 8
_MASK_AT: Final = HANDOUT.at("mask")
_MASK_SIZE: Final = SPAN // 8
_ATTEMPT_AT: Final = HANDOUT.at("attempt_id")
NO_ATTEMPT: Final = bytes(ATTEMPT_ID_SIZE)


class Handout(NamedTuple):
    """Messages that one entry gave to one attempt, or put back."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks a handout for
    base: int
    mask: int
    hidden_until_ms: int
    attempt_id: bytes
    attempt: int

    @property
    def end(self) -> int:
        """One past its last unfinished offset."""
        return self.base + self.mask.bit_length()

    def offsets(self) -> list[int]:
        """The unfinished ones, ascending."""
        return offsets_of(self.base, self.mask)


def offsets_of(base: int, mask: int) -> list[int]:
    """Those that the bits stand for, ascending."""
    return [base + bit for bit in range(mask.bit_length()) if mask >> bit & 1]


def shifted(mask: int, by: int) -> int:
    """The same offsets, of a base that is `by` lower; what no handout could reach is left out."""
    if abs(by) >= SPAN:
        return 0
    return mask << by if by >= 0 else mask >> -by


@dataclass(frozen=True, slots=True)
class Page:
    """Some handouts, packed; what is asked of many pages at once is kept beside them."""

    rows: bytes
    first: int  # index of the first one's entry
    lowest: int  # the lowest base
    due_ms: int  # when the first of them is due

    @classmethod
    def of(cls, handouts: list[Handout]) -> Page:
        """A page of these; they are in order, one at least."""
        rows = b"".join([ROW.pack(*each) for each in handouts])
        lowest = min(each.base for each in handouts)
        due_ms = min(each.hidden_until_ms for each in handouts)
        return cls(rows, handouts[0].index, lowest, due_ms)

    @property
    def last(self) -> int:
        """Index of the last one's entry."""
        (index,) = _INDEX.unpack_from(self.rows, len(self.rows) - ROW.size)
        return int(index)

    def and_then(self, handout: Handout) -> Page:
        """The page with that one behind its others."""
        return Page(
            self.rows + ROW.pack(*handout),
            self.first,
            min(self.lowest, handout.base),
            min(self.due_ms, handout.hidden_until_ms),
        )

    def given_to(self, attempts: Collection[bytes]) -> list[Handout]:
        """Those that one of these attempts was given; who looks at many pages makes no objects of
        the others."""
        rows = self.rows
        return [
            Handout._make(ROW.unpack_from(rows, at - _ATTEMPT_AT))
            for at in range(_ATTEMPT_AT, len(rows), ROW.size)
            if rows[at : at + ATTEMPT_ID_SIZE] in attempts
        ]

    @property
    def unfinished(self) -> int:
        """How many messages they have. Each byte of the bitmaps is counted in all rows at once: who
        asks it of every page does so in one turn."""
        columns = (self.rows[at :: ROW.size] for at in range(_MASK_AT, _MASK_AT + _MASK_SIZE))
        return sum(int.from_bytes(column).bit_count() for column in columns)

    def __len__(self) -> int:
        return len(self.rows) // ROW.size

    def __iter__(self) -> Iterator[Handout]:
        return map(Handout._make, ROW.iter_unpack(self.rows))


@dataclass(frozen=True, slots=True)
class Record:
    """One queue of a group: below `frontier`, and between it and `next` in no handout, all is
    finished; from `next` on nothing was ever handed out."""

    next: int
    pages: tuple[Page, ...] = ()
    unfinished: int = 0
    handouts: int = 0  # how many there are

    @property
    def frontier(self) -> int:
        """The first offset that isn't finished."""
        return min([page.lowest for page in self.pages], default=self.next)

    @property
    def due_ms(self) -> int | None:
        """When the first handout is due; None if there is none."""
        return min([page.due_ms for page in self.pages], default=None)

    def __iter__(self) -> Iterator[Handout]:
        for page in self.pages:
            yield from page

    def unfinished_in(self, base: int, mask: int) -> int:
        """Which of these offsets are in any handout, as bits."""
        found = 0
        for each in self:
            found |= shifted(each.mask, each.base - base) & mask
        return found


class Draft:
    """A record that is being changed.

    Args:
        loses_rows: as members below level 9 do it, and one that applies beside them has to: where
            several pages become smaller at once, rows of one may go with another's.
    """

    def __init__(self, record: Record, *, loses_rows: bool = False) -> None:
        self._loses_rows = loses_rows
        self.next = record.next
        self.unfinished = record.unfinished
        self._pages = list(record.pages)

    def __iter__(self) -> Iterator[Handout]:
        for page in self._pages:
            yield from page

    @property
    def pages(self) -> tuple[Page, ...]:
        """As they are now, whatever changes afterwards."""
        return tuple(self._pages)

    def due(self, now_ms: int) -> Iterator[Handout]:
        """Those that, when this is called, may be handed out again at that time. Pages in which
        there are none are passed over."""
        return (
            each
            for page in self.pages
            if page.due_ms <= now_ms
            for each in page
            if each.hidden_until_ms <= now_ms
        )

    def of_entry(self, index: int) -> list[Handout]:
        """Those that the entry gave or returned."""
        first = max(0, bisect_left(self._pages, index, key=_first) - 1)
        last = bisect_right(self._pages, index, key=_first)
        return [each for page in self._pages[first:last] for each in page if each.index == index]

    def take(self, index: int, base: int, mask: int) -> list[Handout] | None:
        """These messages are in no handout any more; the handouts that they were, with nothing
        else in them. None, and nothing has changed: entry `index` didn't hand out all of them, or
        somebody else has."""
        first = max(0, bisect_left(self._pages, index, key=_first) - 1)
        last = bisect_right(self._pages, index, key=_first)
        taken: list[Handout] = []
        pages: dict[int, list[Handout]] = {}
        found = 0
        for at in range(first, last):
            left: list[Handout] = []
            is_changed = False
            for each in self._pages[at]:
                bits = shifted(mask, base - each.base) & each.mask if each.index == index else 0
                if bits:
                    is_changed = True
                    found |= shifted(bits, each.base - base)
                    taken.append(trimmed(each, bits))
                if bits != each.mask:
                    left.append(trimmed(each, each.mask & ~bits) if bits else each)
            if is_changed:
                pages[at] = left
        if found != mask:
            return None
        if len(pages) > 1 and not self._loses_rows:
            self._replace_several(pages)
        else:
            for at in sorted(pages, reverse=True):
                self._replace(at, pages[at])
        self.unfinished -= mask.bit_count()
        return taken

    def put(self, handout: Handout) -> None:
        """One handout more; its messages are in none."""
        self.unfinished += handout.mask.bit_count()
        at = bisect_right(self._pages, handout.index, key=_first) - 1
        if at < 0:
            self._pages.insert(0, Page.of([handout]))
            return
        page = self._pages[at]
        if at == len(self._pages) - 1 and page.last <= handout.index:
            self._pages[at:] = (
                [page.and_then(handout)]
                if len(page) < PAGE_ROWS
                else [
                    page,
                    Page.of([handout]),
                ]
            )
            return
        rows = list(page)
        place = bisect_right(rows, handout.index, key=_index)
        self._replace(at, [*rows[:place], handout, *rows[place:]])

    def _replace(self, at: int, rows: list[Handout]) -> None:
        """The page is these handouts now: as two where they are too many, with a neighbour where
        they are few."""
        if len(rows) > PAGE_ROWS:
            half = len(rows) // 2
            self._pages[at : at + 1] = [Page.of(rows[:half]), Page.of(rows[half:])]
            return
        self._pages[at : at + 1] = [Page.of(rows)] if rows else []
        for left in (at, at - 1):
            self._merge(left)

    def _replace_several(self, pages: dict[int, list[Handout]]) -> None:
        """These pages, none of them larger than before, are those handouts now. All of them are
        exchanged before any is put together with a neighbour, which moves those behind it."""
        low, end = min(pages), max(pages) + 1
        kept = ((pages.get(at), self._pages[at]) for at in range(low, end))
        changed = [
            page if rows is None else Page.of(rows) for rows, page in kept if rows is None or rows
        ]
        self._pages[low:end] = changed
        for left in range(low + len(changed) - 1, low - 2, -1):
            self._merge(left)

    def _merge(self, left: int) -> None:
        """That page and the next one become one, where they are few."""
        if 0 <= left < len(self._pages) - 1:
            one, other = self._pages[left : left + 2]
            if len(one) + len(other) <= MERGED_ROWS:
                self._pages[left : left + 2] = [Page.of([*one, *other])]

    def done(self) -> Record:
        """What the record has become."""
        handouts = sum(map(len, self._pages))
        return Record(self.next, tuple(self._pages), self.unfinished, handouts)


def trimmed(handout: Handout, mask: int) -> Handout:
    """That of the handout which the bits stand for; it begins with its first one."""
    by = (mask & -mask).bit_length() - 1
    return handout._replace(base=handout.base + by, mask=mask >> by)


def with_page(record: Record, page: Page) -> Record:
    """The record with that page behind its others."""
    unfinished = record.unfinished + page.unfinished
    pages = (*record.pages, page)
    return Record(record.next, pages, unfinished, record.handouts + len(page))


def counted(record: Record) -> Record:
    """The record as a snapshot gives it back: what it says of its handouts is counted from them."""
    unfinished = sum(page.unfinished for page in record.pages)
    if unfinished == record.unfinished:
        return record
    return replace(record, unfinished=unfinished)


def _first(page: Page) -> int:
    return page.first


def _index(handout: Handout) -> int:
    return handout.index
