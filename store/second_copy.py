"""A second copy of a small file, for the case that the first one rots, and what tells an old one.

The copy is written after the file itself is durable, in its place, and before anybody acts on what
it says: so a copy that is whole holds everything that was acted on, or it is of a life in which
nobody wrote it. That is told by the number of the start (`raft/boot`), which every release counts
on, those too that don't know of copies: a copy that isn't of the last start is none.

    file replaced ─▶ copy written, fdatasync ─▶ acted on

A crash before the copy is whole leaves one that isn't, or the one before; the file is good then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from crc32c import crc32c

from dledger.records.layout import SECOND_COPY
from store.errors import NotARegularFile
from store.files import FileSystem, write_all

SIZE: Final = 512  # of the file: it is written in one sector's place, and never grows
_HEAD: Final = SECOND_COPY.struct()
_CRC: Final = SECOND_COPY.run("crc")
_MAGIC: Final = SECOND_COPY.constant("magic")
_VERSION: Final = SECOND_COPY.constant("version")


class SecondCopy:
    """The copy at `path`. Its methods block."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path
        self._boot_number = 0

    def content(self, boot_number: int) -> bytes | None:
        """What the last start, number `boot_number`, left; None if that isn't known."""
        try:
            if not self._files.exists(self._path):
                return None
            handle = self._files.open(self._path)
            try:
                stored = self._files.pread(handle, SIZE, 0)
            finally:
                self._files.close(handle)
        except (OSError, NotARegularFile):
            return None
        found = _decoded(stored)
        return None if found is None or found[0] != boot_number else found[1]

    def begin(self, boot_number: int, content: bytes) -> None:
        """From now on it is start number `boot_number` that writes; `content` is what holds.

        Raises:
            OSError: it isn't there. What could be taken for it has to be made void then.
        """
        self._boot_number = boot_number
        self.write(content)

    def void(self) -> None:
        """There is no copy, durably: nobody keeps it up. Raises OSError: there may be one."""
        if self._files.exists(self._path):
            self._files.unlink(self._path)
            self._files.fsync_directory(self._path.parent)

    def write(self, content: bytes) -> None:
        """It holds `content`, durably. Raises OSError."""
        packed = _HEAD.pack(_MAGIC, _VERSION, self._boot_number, len(content)) + content
        packed += _CRC.pack(crc32c(packed))
        is_new = not self._files.exists(self._path)
        handle = (self._files.create if is_new else self._files.open)(self._path)
        try:
            if is_new:
                self._files.fallocate(handle, SIZE)
            write_all(self._files, handle, [packed.ljust(SIZE, b"\0")], 0)
            self._files.fsync(handle) if is_new else self._files.fdatasync(handle)
        finally:
            self._files.close(handle)
        if is_new:
            self._files.fsync_directory(self._path.parent)

    def is_sound(self, content: bytes) -> bool:
        """Whether it holds `content`, of this start."""
        return self.content(self._boot_number) == content


def _decoded(stored: bytes) -> tuple[int, bytes] | None:
    """Number of the start, and content; None for what is no whole copy."""
    if len(stored) < _HEAD.size + _CRC.size:
        return None
    magic, version, number, size = _HEAD.unpack_from(stored)
    end = _HEAD.size + size
    if (magic, version) != (_MAGIC, _VERSION) or end + _CRC.size > len(stored):
        return None
    if stored[end : end + _CRC.size] != _CRC.pack(crc32c(stored[:end])):
        return None
    return number, stored[_HEAD.size : end]
