"""What a scrub has found sound of one segment: its pieces, and what is known at each one's edges.

It is kept for as long as the segment is, so it is numbers in arrays: 36 bytes a piece, in which the
collector finds nothing to walk. As objects they were 300, and with those of a terabyte a full
collection took longer than an election timeout. It must never read or judge. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Between two entries: the offset in its segment, the entry that comes next, and what the one
    before it says."""

    at: int
    index: int
    term: int
    digest: int | None  # None where the segment before hasn't been walked yet


@dataclass(frozen=True, slots=True)
class Piece:
    """Sound entries from `start` up to `end`."""

    start: Place
    end: Place
    digest: int  # XXH3-64 of the bytes, not the running one


class SoundPieces:
    """The pieces of one segment, without gaps from its first entry on, by their numbers.

    Args:
        end: behind the last piece, before the first one while there is none; None: it isn't known
            where that begins.
        is_partial: the first piece is not the segment's.
    """

    __slots__ = (
        "_digests",
        "_hashes",
        "_indexes",
        "_is_chained",
        "_starts",
        "_terms",
        "end",
        "is_partial",
    )

    def __init__(self, end: Place | None = None, *, is_partial: bool = False) -> None:
        self.end = end
        self.is_partial = is_partial
        self._starts = array("I")  # A segment has 2 GiB at most.
        self._indexes = array("Q")
        self._terms = array("Q")
        self._digests = array("Q")  # the running ones
        self._hashes = array("Q")
        self._is_chained = False  # The first piece's running digest is known, as all others are.

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, piece: Piece) -> None:
        """`piece` follows the last one."""
        start, self.end = piece.start, piece.end
        if not self._starts:
            self._is_chained = start.digest is not None
        self._starts.append(start.at)
        self._indexes.append(start.index)
        self._terms.append(start.term)
        self._digests.append(start.digest or 0)
        self._hashes.append(piece.digest)

    def number_at(self, at: int) -> int:
        """The number of the first piece that begins at `at` or behind."""
        return bisect_left(self._starts, at)

    def start_of(self, number: int) -> int:
        """Where the piece begins in the segment."""
        return self._starts[number]

    def piece(self, number: int) -> Piece:
        """The piece of that number, made for who asks."""
        start, end = self._place(number), self.end
        if number + 1 < len(self._starts):
            end = self._place(number + 1)
        assert end is not None
        return Piece(start, end, self._hashes[number])

    def _place(self, number: int) -> Place:
        digest = self._digests[number] if number or self._is_chained else None
        return Place(self._starts[number], self._indexes[number], self._terms[number], digest)

    def some(self, number: int, count: int, size: int) -> SoundPieces:
        """That piece and those behind it that begin within `size` bytes from there, `count` at
        most, as they are now."""
        behind = min(number + count, bisect_left(self._starts, self._starts[number] + size))
        end = self._place(behind) if behind < len(self) else self.end
        some = SoundPieces(end, is_partial=self.is_partial)
        some._is_chained = number > 0 or self._is_chained
        some._starts = self._starts[number:behind]
        some._indexes = self._indexes[number:behind]
        some._terms = self._terms[number:behind]
        some._digests = self._digests[number:behind]
        some._hashes = self._hashes[number:behind]
        return some

    def extents(self) -> list[tuple[int, int, int]]:
        """Each piece's `(start, end, XXH3-64)`."""
        ends = self._starts[1:]
        if self.end is not None:
            ends.append(self.end.at)
        return list(zip(self._starts, ends, self._hashes, strict=False))

    def cut(self, number: int) -> None:
        """The piece and those behind it are known no more."""
        self.end = self._place(number)
        for each in (self._starts, self._indexes, self._terms, self._digests, self._hashes):
            del each[number:]
