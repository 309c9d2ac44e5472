"""Reads what lies behind a gap of a log, and writes what has been judged into it.

Bytes go by way of the repair journal (`store.repair_journal`), a segment's at a time, so that a
crash at any step leaves a log with a gap, or without one. All of it blocks. The log isn't open, and
the data directory is this process's alone.
"""

from __future__ import annotations

from pathlib import Path

from dledger.reading.entry import HEADER_SIZE
from dledger.records.layout import file_name
from store.damage import Extent
from store.errors import CorruptionFound
from store.files import SECTOR_BYTES, FileSystem, read_exactly
from store.gap import Gap, GapFilling
from store.repair_journal import RepairJournal
from store.seals import FOLDER as SEALS


class GapFiles:
    """The segments of one data directory, as far as their gaps go."""

    def __init__(self, files: FileSystem, directory: Path, segment_size: int) -> None:
        self._files = files
        self._commitlog = directory / "commitlog"
        self._seals = directory / SEALS
        self._segment_size = segment_size
        self._journal = RepairJournal(files, directory)

    def begin(self, gap: Gap) -> GapFilling:
        """What judges bytes for the gap.

        Raises:
            CorruptionFound: what lies behind it can't be read any more; or what shares a sector
                with its beginning, which only what is whole can be written over.
        """
        at = gap.start % self._segment_size
        self._read(gap.start - at % SECTOR_BYTES, at % SECTOR_BYTES)
        behind = self._read(gap.behind.physical_offset, gap.behind.total_size)
        return GapFilling(gap, self._segment_size, behind, self.frame_at)

    def unseal(self, gap: Gap) -> bool:
        """What lies before the gap isn't passed over by the next start, durably; False if this one
        hasn't passed over it either."""
        seal = self._seals / file_name(gap.start - gap.start % self._segment_size)
        if not self._files.exists(seal):
            return False
        self._files.unlink(seal)
        self._files.fsync_directory(self._seals)
        return True

    def write(self, filled: GapFilling) -> None:
        """The log has no gap there any more, durably.

        Raises:
            OSError: ENOSPC where the journal finds no space: what is written already stays.
            CorruptionFound: what was written can't be read back.
        """
        for place, content in filled.contents():
            extent = self._extent(place, len(content))
            self._journal.write_back(extent, content)
        for place in filled.fillers():
            extent = self._extent(place, self._segment_size - place % self._segment_size)
            self._journal.write_filler(extent)

    def frame_at(self, place: int) -> bytes:
        """By the size that it says it has, unjudged; nothing where that can't be."""
        try:
            size = int.from_bytes(self._read(place, HEADER_SIZE)[:4], "big")
            if not HEADER_SIZE <= size <= self._segment_size - place % self._segment_size:
                return b""
            return self._read(place, size)
        except CorruptionFound:
            return b""

    def _read(self, place: int, size: int) -> bytes:
        extent = self._extent(place, size)
        handle = self._files.open(extent.path)
        try:
            return read_exactly(self._files, handle, size, extent.start, str(extent.path))
        finally:
            self._files.close(handle)

    def _extent(self, place: int, size: int) -> Extent:
        start = place % self._segment_size
        base = place - start
        return Extent(self._commitlog / file_name(base), base, start, start + size)
