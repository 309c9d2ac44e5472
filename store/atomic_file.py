"""Small files that are replaced as a whole, so that a crash leaves the old content or the new.

This owns how a file gets new content at once, and the space that the next one needs. It never
writes into a file that has the name, and believes no content whose CRC doesn't fit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from crc32c import crc32c

from dledger.records.layout import ATOMIC_FILE
from store.errors import CorruptionFound
from store.files import FULL_ERRNOS, PASSING_ERRNOS, FileSystem, read_upto, write_all

MAX_ATOMIC_BYTES: Final = 64 << 10  # far beyond what any atomic file holds; more is none

_CRC: Final = ATOMIC_FILE.run("crc")


class AtomicFile:
    """A small file that is replaced as a whole: write a new one, fsync, rename, fsync the
    directory. A CRC32C of the content follows it, so that a reader can trust what it finds.

    With `spare_bytes` no replacement after `settle` needs space (ADR 28). `<name>.spare` is a file
    whose blocks are there already: the new content goes into it, and the two files exchange their
    names, so that the old one is the next spare. Nothing is set free in between that somebody else
    could take. Where the file system can't exchange names, the old file's space is set free and
    asked for again; should another have taken it, only the next replacement finds out.

    Source: ATC'20, "Can Applications Recover from fsync Failures?"; DLedger deletes the old file
    first and never syncs.
    """

    def __init__(self, files: FileSystem, path: Path, spare_bytes: int = 0) -> None:
        self._files = files
        self._path = path
        self._spare_bytes = spare_bytes
        self._spare = path.with_name(path.name + ".spare")

    def read(self) -> bytes | None:
        """The content; None when the file doesn't exist.

        Raises:
            CorruptionFound: the CRC doesn't fit.
        """
        if not self._files.exists(self._path):
            return None
        handle = self._files.open(self._path)
        try:
            stored = read_upto(self._files, handle, MAX_ATOMIC_BYTES, 0, str(self._path))
        finally:
            self._files.close(handle)
        content, crc = stored[: -_CRC.size], stored[-_CRC.size :]
        computed = _CRC.pack(crc32c(content))
        if crc != computed:
            at = max(0, len(stored) - _CRC.size)
            expected = f"CRC32C {computed.hex()}"
            raise CorruptionFound(str(self._path), at, expected, crc.hex() or "nothing")
        return content

    def replace(self, content: bytes) -> None:
        """The file holds `content` durably when this returns, the old content before that."""
        stored = content + _CRC.pack(crc32c(content))
        if not self._write_to_spare(stored):
            self._write_anew(stored)
        else:
            is_there = self._files.exists(self._path)
            if not is_there or not self._files.exchange(self._spare, self._path):
                self._files.rename(self._spare, self._path)
            self._files.fsync_directory(self._path.parent)
        try:
            self.keep_space()
        except OSError as error:
            if error.errno not in PASSING_ERRNOS:
                raise

    def settle(self) -> bytes | None:
        """The content, durable when this returns, and the next one's space is there; None when the
        file doesn't exist. Called before anything is built on what a former process left: one that
        died, or whose last fsync failed, may have left its newest name for the file in the page
        cache only.

        Raises:
            CorruptionFound: the CRC doesn't fit.
            OSError: ENOSPC, where there is no spare and no space for one.
        """
        content = self.read()
        if content is not None:
            try:
                # Never into the spare: to the platter that may be the file itself, as yet.
                self._write_anew(content + _CRC.pack(crc32c(content)))
            except OSError as error:
                if error.errno not in FULL_ERRNOS:
                    raise
                # Whoever gave it its name had synced the bytes.
                self._files.fsync_directory(self._path.parent)
        self.keep_space()
        return content

    def _write_to_spare(self, stored: bytes) -> bool:
        """Whether there was a spare that is large enough; it holds `stored`, durably, if so.

        A crash may have left anything in it: it is never the truth before it is renamed. That it
        has a size says that its space was had."""
        if len(stored) > self._spare_bytes or not self._files.exists(self._spare):
            return False
        handle = self._files.open(self._spare)
        try:
            if self._files.size(handle) == 0:
                return False
            write_all(self._files, handle, [stored], 0)
            self._files.truncate(handle, len(stored))
            self._files.fsync(handle)
        finally:
            self._files.close(handle)
        return True

    def _write_anew(self, stored: bytes) -> None:
        """A new file with `stored` has the name, and room for whatever a spare must hold."""
        replace_file(self._files, self._path, stored, self._spare_bytes)

    def keep_space(self) -> None:
        """There is a durable spare, if one is wanted: made, should there be none.

        Raises:
            OSError: ENOSPC, where there is no space for it.
        """
        if not self._spare_bytes or self._has_spare():
            return
        if self._files.exists(self._spare):  # a crash, or a full disk, left it without space
            self._files.unlink(self._spare)
        handle = self._files.create(self._spare)
        try:
            self._files.fallocate(handle, self._spare_bytes)
            self._files.fsync(handle)
        finally:
            self._files.close(handle)
        self._files.fsync_directory(self._path.parent)

    def _has_spare(self) -> bool:
        if not self._files.exists(self._spare):
            return False
        handle = self._files.open(self._spare)
        try:
            return self._files.size(handle) > 0
        finally:
            self._files.close(handle)

    def remove(self) -> None:
        """The file is gone, durably; no error if it never was. Its space is the spare's."""
        if not self._files.exists(self._path):
            return
        if self._spare_bytes:
            self._files.rename(self._path, self._spare)
        else:
            self._files.unlink(self._path)
        self._files.fsync_directory(self._path.parent)


def replace_file(files: FileSystem, path: Path, content: bytes, room_bytes: int = 0) -> None:
    """`path` holds `content` durably when this returns, what it held before that until then. The
    file has blocks for `room_bytes` at least."""
    temporary = path.with_name(path.name + ".tmp")
    if files.exists(temporary):  # Left by a crash; it was never the truth.
        files.unlink(temporary)
    handle = files.create(temporary)
    try:
        if room_bytes > len(content):
            files.fallocate(handle, room_bytes)
        write_all(files, handle, [content], 0)
        if room_bytes > len(content):
            files.truncate(handle, len(content))
        files.fsync(handle)
    finally:
        files.close(handle)
    files.rename(temporary, path)
    files.fsync_directory(path.parent)
