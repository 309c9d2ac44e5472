"""Reading a ConsumeQueue's files beside whoever writes to them, to see that they are what was
derived.

Units that are there never change; what is appended meanwhile lies behind. Files are opened here and
closed again, as the queues' own handles belong to another thread. What is missing or can't be read
reads as zeros, and no unit is that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from dledger.records.layout import UNIT, file_name
from store.errors import NotARegularFile
from store.files import LOST_ERRNOS, FileSystem

STEP_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class QueueLook:
    """Units `[first, end)` of the queue in `directory`, and the CRC32C of all before them."""

    files: FileSystem
    directory: Path
    file_size: int
    first: int
    end: int
    crc: int

    @property
    def is_over(self) -> bool:
        """Whether none is left; `crc` is that of all units then."""
        return self.first >= self.end

    def step(self) -> QueueLook:
        """The same behind the next units. Blocks."""
        at = self.first * UNIT.size
        within = at % self.file_size
        size = min(STEP_BYTES // UNIT.size * UNIT.size, self.end * UNIT.size - at)
        size = min(size, self.file_size - within)
        units = self._read(self.directory / file_name(at - within), size, within)
        behind = self.first + size // UNIT.size
        crc = crc32c(units, self.crc)
        return QueueLook(self.files, self.directory, self.file_size, behind, self.end, crc)

    def _read(self, path: Path, size: int, at: int) -> bytes:
        try:
            handle = self.files.open(path)
            try:
                found = self.files.pread(handle, size, at)
            finally:
                self.files.close(handle)
        except NotARegularFile:
            return bytes(size)
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            return bytes(size)
        return found.ljust(size, b"\0")
