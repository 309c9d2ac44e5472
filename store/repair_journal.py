"""Putting bytes back into the log, so that a crash at any step does no harm.

The bytes have been judged (`store.damage`) when they come here. First they are written down, whole,
in a file of their own: `<data>/repair`, with a CRC over all of it, durable before it has its name.
Then they are written to their place and synced, read again, and the file goes. A crash before the
name leaves the damage as it was; after it, the next start writes the bytes again before it looks at
the log. It writes them over what isn't intact and over nothing else, so a journal that is old, or
another disk's, does nothing; one that isn't intact itself is no journal.

    damaged ─▶ repair.tmp, fsync ─▶ repair, directory synced ─▶ in place, fdatasync ─▶ read ─▶ gone

A filler is put right without a journal: what belongs there follows from the log.

Each file is opened anew. A kernel tells of a write-back that failed once for each open file: on a
file that the flusher has open a sync here would be told what the flusher has to be, and the flusher
would call durable what is nowhere (ADR 8).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from crc32c import crc32c

from dledger.reading.entry import blank_filler, walk_frames
from dledger.records.errors import InvalidFrame
from dledger.records.layout import REPAIR_JOURNAL, file_name
from store.atomic_file import replace_file
from store.damage import MAX_DAMAGE_BYTES, Extent
from store.errors import CorruptionFound
from store.files import FileSystem, Handle, read_exactly, write_all, zero_range

NAME: Final = "repair"
_HEAD: Final = REPAIR_JOURNAL.run("magic", "version", "place", "size")
_CRC: Final = REPAIR_JOURNAL.run("crc")
_MAGIC: Final = REPAIR_JOURNAL.constant("magic")
_VERSION: Final = REPAIR_JOURNAL.constant("version")


class RepairJournal:
    """The journal of one data directory. Its methods block: they are the disk hand's, or a
    start's."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._path = directory / NAME

    def write_back(self, extent: Extent, content: bytes) -> None:
        """The file has `content` where it was damaged, durably.

        Raises:
            OSError: ENOSPC where the journal finds no space: nothing has happened. Others: the disk
                failed, perhaps at what others have written to the file.
            CorruptionFound: what was written can't be read back.
        """
        place = extent.base + extent.start
        head = _HEAD.pack(_MAGIC, _VERSION, place, len(content))
        crc = crc32c(content, crc32c(head))
        try:
            replace_file(self._files, self._path, b"".join((head, content, _CRC.pack(crc))))
        except OSError:
            with contextlib.suppress(OSError):  # what there is of it keeps others' space
                self._files.unlink(self._path.with_name(NAME + ".tmp"))
            raise
        with self._opened(extent.path) as handle:
            _put(self._files, handle, extent.path, extent.start, content)
        self._remove()

    def write_filler(self, extent: Extent) -> None:
        """The segment ends in a filler again, durably. Raises OSError: the disk failed."""
        with self._opened(extent.path) as handle:
            if self._files.size(handle) < extent.end:
                self._files.fallocate(handle, extent.end)
            filler = blank_filler(extent.end - extent.start)
            zero_range(self._files, handle, extent.start + len(filler), extent.end)
            write_all(self._files, handle, [filler], extent.start)
            self._files.fdatasync(handle)

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[Handle]:
        handle = self._files.open(path)
        try:
            yield handle
        finally:
            self._files.close(handle)

    def redo(self, log: Path, segment_size: int) -> int | None:
        """A repair that a crash interrupted is done; its physical offset, or None if there was
        none, or nothing was left to do. Before anything is believed of the log in `log`."""
        if not self._files.exists(self._path):
            return None
        found = self._read()
        done = None if found is None else self._put_again(log, segment_size, *found)
        self._remove()
        return done

    def _put_again(self, log: Path, segment_size: int, place: int, content: bytes) -> int | None:
        start = place % segment_size
        path = log / file_name(place - start)
        if not self._files.exists(path):
            return None
        handle = self._files.open(path)
        try:
            if start + len(content) > self._files.size(handle):
                return None  # what became of that file is for recovery to say
            try:
                there = read_exactly(self._files, handle, len(content), start, str(path))
            except CorruptionFound:  # a sector that can't be read
                there = b""
            if there != content and _are_frames(there):
                return None
            # Also where they are there already: perhaps in the page cache only, and called clean
            # after an fsync that failed (ADR 8).
            _put(self._files, handle, path, start, content)
        finally:
            self._files.close(handle)
        return place

    def _read(self) -> tuple[int, bytes] | None:
        """Place and bytes; None for what is no intact journal."""
        handle = self._files.open(self._path)
        try:
            size = self._files.size(handle)
            if not _HEAD.size + _CRC.size <= size <= _HEAD.size + MAX_DAMAGE_BYTES + _CRC.size:
                return None
            stored = read_exactly(self._files, handle, size, 0, str(self._path))
        except CorruptionFound:  # a sector that can't be read
            return None
        finally:
            self._files.close(handle)
        magic, version, place, length = _HEAD.unpack_from(stored)
        content = stored[_HEAD.size : -_CRC.size]
        is_ours = (magic, version, length) == (_MAGIC, _VERSION, len(content))
        if not is_ours or stored[-_CRC.size :] != _CRC.pack(crc32c(stored[: -_CRC.size])):
            return None
        return (place, content) if _are_frames(content) else None

    def _remove(self) -> None:
        self._files.unlink(self._path)
        self._files.fsync_directory(self._directory)


def _put(files: FileSystem, handle: Handle, path: Path, start: int, content: bytes) -> None:
    write_all(files, handle, [content], start)
    files.fdatasync(handle)
    found = read_exactly(files, handle, len(content), start, str(path))
    if found != content:
        raise CorruptionFound(str(path), start, "what was just written", "something else")


def _are_frames(content: bytes) -> bool:
    try:
        return bool(walk_frames(content))
    except InvalidFrame:
        return False
