"""Entries that a start can't read, between two that it can, and what they must be.

Bytes that somebody gives are the ones that were there, if each is a whole frame, of the next index,
in the place that the sizes before it dictate, carrying on the running digest, and if the one that
is intact behind the gap goes on from the last of them. That entry's digest covers all that came
before it, so nothing else can have lain between; which of them are committed doesn't matter, and
who gives them needs no trust (docs/adr/0053-a-start-gets-back-what-has-rotted.md).

Where gaps are is `store.gap_search`'s to say, `store.gap_files` writes: nothing here does either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dledger.reading.entry import (
    EntryHeader,
    digest_of,
    position_after,
    verify_frame,
    walk_frames,
)
from dledger.records.errors import AppendRefused, InvalidFrame


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that can't be trusted, and what is around them.

    Attributes:
        start: physical offset behind the last entry before it.
        first_index: of the entries that are missing.
        term, digest: of the entry before, and the running digest there.
        behind: the first entry that is intact again.
    """

    start: int
    first_index: int
    term: int
    digest: int
    behind: EntryHeader

    @property
    def last_index(self) -> int:
        """Of the entries that are missing; the one before `first_index` where none is: what has
        rotted is the filler between two segments."""
        return self.behind.index - 1

    @property
    def is_filler(self) -> bool:
        """Whether no entry is missing."""
        return self.last_index < self.first_index

    @property
    def size(self) -> int:
        """Bytes from the entry before to the one behind."""
        return self.behind.physical_offset - self.start

    def __str__(self) -> str:
        if self.is_filler:
            return f"the filler before entry {self.behind.index}"
        return f"entries {self.first_index} to {self.last_index}"


@dataclass(frozen=True, slots=True)
class Holes:
    """All gaps of a log, ascending, and what it ends with: the last entry that continues what is
    intact, and every configuration entry that can be read, by index. `terms`: first entries of what
    is intact that are of another term than the one before, or behind a gap, with their terms."""

    gaps: tuple[Gap, ...]
    last_index: int
    configurations: tuple[tuple[int, bytes], ...]
    terms: tuple[tuple[int, int], ...]


class GapFilling:
    """The bytes of one gap, as they are given piece by piece by one giver.

    Args:
        behind: the frame of the entry that is intact behind it.
        read: the frame that begins at a physical offset of this log, by the size that it says it
            has; nothing if there is none.
    """

    def __init__(
        self,
        gap: Gap,
        segment_size: int,
        behind: bytes,
        read: Callable[[int], bytes] = lambda _: b"",
    ) -> None:
        self.gap = gap
        self._read = read
        self._behind = behind
        self.next_index = gap.first_index
        self._segment_size = segment_size
        self._end = gap.start
        self._term = gap.term
        self._digest = gap.digest
        self._pieces: list[tuple[int, bytes]] = []  # by physical offset

    def anew(self) -> GapFilling:
        """The same, of another giver."""
        return GapFilling(self.gap, self._segment_size, self._behind, self._read)

    def take(self, blob: bytes) -> bool:
        """The next frames are in `blob`; True if the gap is full, and that is proven.

        Raises:
            InvalidFrame: they are not what was there. Nothing of this giver is worth anything.
        """
        at = 0
        headers = walk_frames(blob)
        if not headers or headers[0].index != self.next_index:
            found = headers[0].index if headers else "none"
            raise InvalidFrame(0, "index", self.next_index, found)
        for header in headers:
            if header.index > self.gap.last_index:
                break  # the one behind, which is asked for as well, is here
            self._check(blob, at, header)
            self._pieces.append((header.physical_offset, blob[at : at + header.total_size]))
            self._end = header.physical_offset + header.total_size
            self._term, self._digest = header.term, header.digest
            self.next_index += 1
            at += header.total_size
        if self.next_index <= self.gap.last_index:
            return False
        if not self._arrives():
            found = f"{self._digest:016x}"
            raise InvalidFrame(at, "digest", f"one that entry {self.next_index} follows", found)
        return True

    def own_frame(self) -> bytes:
        """The next frame as it lies in this log, if it is intact and carries on what was taken;
        in the next segment, where a filler comes first."""
        place = self._end
        for at in (place, place + self._segment_size - place % self._segment_size):
            frame = self._read(at) if at < self.gap.behind.physical_offset else b""
            try:
                if frame:
                    self._check(frame, 0, verify_frame(frame, 0, self._digest))
                    return frame
            except InvalidFrame:
                continue
        return b""

    def next_term(self) -> int | None:
        """The term of the next entry; known where those before and behind it are of the same."""
        return self._term if self._term == self.gap.behind.term else None

    def _check(self, blob: bytes, at: int, header: EntryHeader) -> None:
        if header.index != self.next_index:
            raise InvalidFrame(at, "index", self.next_index, header.index)
        if not self._term <= header.term <= self.gap.behind.term:
            expected = f"{self._term} to {self.gap.behind.term}"
            raise InvalidFrame(at, "term", expected, header.term)
        place = self._place_of(at, header)
        if header.physical_offset != place:
            raise InvalidFrame(at, "physical offset", place, header.physical_offset)
        if place + header.total_size > self.gap.behind.physical_offset:
            left = self.gap.behind.physical_offset - place
            raise InvalidFrame(at, "size", f"at most {left}", header.total_size)
        digest = digest_of(blob, at, header.total_size, self._digest)
        if digest != header.digest:
            raise InvalidFrame(at, "digest", f"{digest:016x}", f"{header.digest:016x}")

    def _place_of(self, at: int, header: EntryHeader) -> int:
        try:
            return position_after(self._end, header.total_size, self._segment_size)
        except AppendRefused as error:
            raise InvalidFrame(at, "size", "what a segment holds", header.total_size) from error

    def _arrives(self) -> bool:
        """Whether the entry that is intact here goes on from what was taken."""
        header = self.gap.behind
        place = position_after(self._end, header.total_size, self._segment_size)
        digest = digest_of(self._behind, 0, header.total_size, self._digest)
        return (place, digest) == (header.physical_offset, header.digest)

    def contents(self) -> list[tuple[int, bytes]]:
        """What was taken, by the physical offset that it begins at: a piece a segment."""
        pieces: dict[int, list[tuple[int, bytes]]] = {}
        for place, content in self._pieces:
            pieces.setdefault(place // self._segment_size, []).append((place, content))
        return [(each[0][0], b"".join(content for _, content in each)) for each in pieces.values()]

    def fillers(self) -> list[int]:
        """The physical offsets at which segments end in a filler, from the gap's first on."""
        ends = [place + len(content) for place, content in self.contents()] or [self.gap.start]
        size = self._segment_size
        if self._pieces and self._pieces[0][0] // size != self.gap.start // size:
            ends.insert(0, self.gap.start)
        last = self.gap.behind.physical_offset // size
        return [end for end in ends if end // size != last and end % size]
