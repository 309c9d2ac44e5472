"""Where a log that isn't open yet has gaps: bytes that can't be read, with a log behind them.

A gap begins behind the last entry that continues the log from its beginning, and ends before the
next one that is intact by itself, lies where it says it does, can follow, and has behind it an
entry that carries on its digest, or what the log is known to hold at least. It must never say where
a log goes on of which nothing behind is intact: what that held, and up to which entry, can be
proven by nothing on this disk. Nothing is written, and what the bytes must be is `store.gap`'s.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

from dledger.reading.entry import (
    HEADER_SIZE,
    OPENING_SIZE,
    EntryHeader,
    claim_of,
    digest_of,
    position_after,
    possible_starts,
    verify_frame,
)
from dledger.records.errors import InvalidFrame
from store.errors import CorruptionFound
from store.files import CHUNK_BYTES, SECTOR_BYTES, FileSystem, Handle, read_upto
from store.gap import Gap, Holes
from store.history import History
from store.intact import Known
from store.segments import Segment, SegmentTable
from store.walking import LogWalker

# Of one gap, held in memory until it has been judged. More than that is a disk to be replaced.
MAX_GAP_BYTES: Final = 32 << 20
MAX_GAPS: Final = 64  # in one log; more is a disk to be replaced, too


def intact_frames(
    files: FileSystem, segments: list[Segment], segment_size: int, offset: int
) -> Iterator[tuple[Segment, EntryHeader]]:
    """Frames that are intact by themselves and lie where they say they do, from the physical offset
    on, ascending. What a record's bytes say may be among them."""
    for segment in segments:
        if segment.base + segment_size <= offset:
            continue
        for at in range(max(offset - segment.base, 0), segment_size, CHUNK_BYTES):
            # Chunks overlap, so that no size and magic are cut in two.
            size = min(CHUNK_BYTES + OPENING_SIZE - 1, segment_size - at)
            for start in possible_starts(_readable(files, segment.handle, size, at)):
                header = _frame_at(files, segment, segment_size, at + start)
                if header is not None:
                    yield segment, header


def _frame_at(
    files: FileSystem, segment: Segment, segment_size: int, at: int
) -> EntryHeader | None:
    name = str(segment.path)
    try:
        head = read_upto(files, segment.handle, HEADER_SIZE, at, name)
        if len(head) < HEADER_SIZE:
            return None
        total_size, physical_offset = claim_of(head, 0)
        if physical_offset != segment.base + at or total_size > segment_size - at:
            return None
        header = verify_frame(read_upto(files, segment.handle, total_size, at, name), 0, None)
    except (InvalidFrame, CorruptionFound):
        return None
    return header if header.physical_offset == segment.base + at else None


def _readable(files: FileSystem, handle: Handle, size: int, at: int) -> bytes:
    """`size` bytes from `at`, zeros for sectors that the disk can't give."""
    try:
        return files.pread(handle, size, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    parts: list[bytes] = []
    end = at + size
    while at < end:
        behind = min(end, at - at % SECTOR_BYTES + SECTOR_BYTES)
        try:
            parts.append(files.pread(handle, behind - at, at))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            parts.append(bytes(behind - at))
        at = behind
    return b"".join(parts)


class GapSearch:
    """Looks for the gaps of one log, whose segments are open.

    Args:
        watermark: the byte up to which the log is known to go; 0: that isn't known.
        known: entries that are known to be intact.
        first_thorough: see `LogWalker.walk`.
    """

    def __init__(
        self,
        files: FileSystem,
        segments: list[Segment],
        segment_size: int,
        watermark: int,
        known: Known,
        first_thorough: int,
    ) -> None:
        self._files = files
        self._segments = segments
        self._segment_size = segment_size
        self._watermark = watermark
        self._known = known
        self._first_thorough = first_thorough

    def find(self, end: int, history: History) -> Holes | None:
        """The gaps from `end` on, where the log that `history` is of breaks off; None where they
        are none that can be filled: too many, too large, or with nothing intact behind.

        Args:
            end: a physical offset, behind the last entry before.
        """
        gaps: list[Gap] = []
        configurations, terms = list(history.configuration_entries), list(history.term_runs)
        while True:
            found = self._behind(end, history)
            if found is None:
                break
            header, end_of_stretch, stretch = found
            gaps.append(
                Gap(end, history.last_index + 1, history.last_term, history.last_digest, header)
            )
            configurations += stretch.configuration_entries
            terms += [(header.index, header.term), *stretch.term_runs]
            end, history = end_of_stretch, stretch
            if len(gaps) > MAX_GAPS or gaps[-1].size > MAX_GAP_BYTES:
                return None
            if end >= self._watermark > 0:
                break
        if not gaps or end < self._watermark:
            return None
        return Holes(tuple(gaps), history.last_index, tuple(configurations), tuple(terms))

    def _behind(self, end: int, history: History) -> tuple[EntryHeader, int, History] | None:
        """The entry that the gap at `end` ends before, where what follows it breaks off, and what
        that is."""
        frames = intact_frames(self._files, self._segments, self._segment_size, end)
        for segment, header in frames:
            if header.physical_offset - end > MAX_GAP_BYTES:
                return None
            if not self._can_follow(segment, header, end, history):
                continue
            behind, stretch = self._walked_from(segment, header)
            is_followed = stretch.last_index > header.index
            if is_followed or behind >= self._watermark:
                return header, behind, stretch
        return None

    def _can_follow(
        self, segment: Segment, header: EntryHeader, end: int, history: History
    ) -> bool:
        missing = header.index - history.last_index - 1
        if missing < 0 or header.term < history.last_term:
            return False  # what was there before: a write that the disk has lost
        if missing * HEADER_SIZE > header.physical_offset - end:
            return False
        if missing:
            return True
        frame = self._files.pread(
            segment.handle, header.total_size, header.physical_offset - segment.base
        )
        carried_on = digest_of(frame, 0, header.total_size, history.last_digest)
        place = position_after(end, header.total_size, self._segment_size)
        return (carried_on, place) == (header.digest, header.physical_offset) and place != end

    def _walked_from(self, segment: Segment, header: EntryHeader) -> tuple[int, History]:
        """Where the log breaks off behind an entry that is intact, and what it is up to there."""
        table, history = SegmentTable(self._files), History()
        history.first_index, history.last_index = header.index, header.index - 1
        history.last_term = header.term
        copies = [Segment(each.base, each.path, each.handle) for each in self._segments]
        behind = [each for each in copies if each.base >= segment.base]
        walker = LogWalker(self._files, self._segment_size, table, history, self._known)
        walker.walk_from(header, behind, self._first_thorough)
        return table.last.end_offset, history
