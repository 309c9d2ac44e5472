"""Snapshots of state as files: `<data>/snapshot/<index, 20 digits>`, each whole or not there.

This owns the folder, the names and the envelope: a head that says which disk and which entry of
which log the content is of, the content in pieces, and a checksum over all of it. What the pieces
mean is not known here, nor when a snapshot is due, may have its name or is good for anything
(docs/adr/0038-snapshots-of-state-on-disk.md). A file gets its name when it is durable and never
changes afterwards; what is on its way is called `next.tmp` and read by nobody.

Nothing here is needed: a member has its log. So what can't be read is told by an error that names
the file, and no caller may end for it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from crc32c import crc32c

from dledger.records.layout import FILE_NAME, SNAPSHOT_FILE, SNAPSHOT_PIECE, file_name
from dledger.records.state_layout import SNAPSHOT_COPY, SNAPSHOT_FOLDER
from store.atomic_file import replace_file
from store.errors import CorruptionFound, NotARegularFile
from store.files import (
    CHUNK_BYTES,
    LOST_ERRNOS,
    FileSystem,
    Handle,
    make_directory,
    read_exactly,
    write_all,
)

FOLDER: Final = SNAPSHOT_FOLDER
UNFINISHED: Final = "next.tmp"
RECEIVED: Final = "received.tmp"
COPY: Final = SNAPSHOT_COPY
MAX_PIECE_BYTES: Final = 32 << 10
_HEAD: Final = SNAPSHOT_FILE.run(
    *("magic", "version", "disk_id", "applied_index", "term", "digest", "end_offset")
)
_CRC: Final = SNAPSHOT_FILE.run("crc")
_MAGIC: Final = SNAPSHOT_FILE.constant("magic")
_VERSION: Final = SNAPSHOT_FILE.constant("version")
_SIZE: Final = SNAPSHOT_PIECE.struct()


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """What a snapshot is of: the disk that it was made on, and the last entry that its state has
    applied, as that disk's log has it. `end_offset`: the byte behind it."""

    disk_id: bytes
    applied_index: int
    term: int
    digest: int
    end_offset: int


class BaseFound(Enum):
    """What was found of a snapshot that is kept twice."""

    SOUND = auto()
    MENDED = auto()  # one of the two wasn't what was written
    LOST = auto()  # neither is


class Unfinished:
    """A snapshot on its way: `add`, again and again, then `finish`; or `drop`, whenever."""

    def __init__(self, files: FileSystem, path: Path, head: SnapshotHead) -> None:
        """Raises OSError: it can't be begun, and nothing is open."""
        self.head = head
        self.size_bytes = 0
        self._files = files
        self._path = path
        self._crc = 0
        self._handle: Handle | None = files.create(path)
        packed = _HEAD.pack(
            _MAGIC,
            _VERSION,
            head.disk_id,
            head.applied_index,
            head.term,
            head.digest,
            head.end_offset,
        )
        try:
            self._append([packed, _CRC.pack(crc32c(packed))])
        except OSError:
            self.drop()
            raise

    def add(self, chunks: Sequence[bytes]) -> None:
        """These chunks come next; none is empty or longer than `MAX_PIECE_BYTES`."""
        pieces: list[bytes] = []
        for chunk in chunks:
            pieces += (_SIZE.pack(len(chunk)), chunk)
        self._append(pieces)

    def finish(self) -> None:
        """It is whole, and durable but for its name."""
        self._append([_SIZE.pack(0)])
        self._append([_CRC.pack(self._crc)])
        self._files.fsync(self._open)
        self._close()

    def drop(self) -> None:
        """It is gone, as far as the disk lets go of it; the next one begins anew all the same."""
        with contextlib.suppress(OSError):
            self._close()
        with contextlib.suppress(OSError):
            self._files.unlink(self._path)

    @property
    def _open(self) -> Handle:
        if self._handle is None:
            raise ValueError(f"{self._path} is closed")
        return self._handle

    def _append(self, buffers: list[bytes]) -> None:
        self.size_bytes += write_all(self._files, self._open, buffers, self.size_bytes)
        for buffer in buffers:
            self._crc = crc32c(buffer, self._crc)

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._files.close(handle)


class SnapshotFiles:
    """The snapshots of one data directory. None is begun where less than `reserve_bytes` are free:
    the log needs them more."""

    def __init__(self, directory: Path, files: FileSystem, reserve_bytes: int = 0) -> None:
        self._files = files
        self._reserve_bytes = reserve_bytes
        self._folder = directory / FOLDER

    def path(self, index: int) -> Path:
        """The name of the snapshot as of entry `index`."""
        return self._folder / file_name(index)

    def indexes(self) -> list[int]:
        """Of which entries there are snapshots, by their names; the newest first.

        Raises:
            OSError: what has the folder's name is none, or can't be read.
        """
        if not self._files.exists(self._folder):
            return []
        names = filter(FILE_NAME.fullmatch, self._files.listdir(self._folder))
        return sorted(map(int, names), reverse=True)

    @contextlib.contextmanager
    def opened(self, index: int) -> Iterator[tuple[SnapshotHead, Iterator[bytes]]]:
        """The head, checked, and the chunks, which are checked as they are taken: only when the
        last one has been taken, and the iteration has ended, all of the file is known to be good.

        Raises:
            CorruptionFound: it isn't what was written; the iteration raises it, too.
            NotARegularFile, OSError: it can't be read.
        """
        path = self.path(index)
        handle = self._files.open(path)
        try:
            reader = _Reader(self._files, handle, str(path))
            head = reader.head()
            if head.applied_index != index:
                raise CorruptionFound(str(path), 0, f"entry {index}", head.applied_index)
            yield head, reader.chunks()
        finally:
            self._files.close(handle)

    def is_whole(self, index: int) -> bool:
        """Whether the snapshot as of entry `index` is there, and what was written. Blocks. Raises
        OSError: that can't be told now."""
        content = self._whole(self.path(index), lambda head: head.applied_index == index)
        return content is not None

    def mend_base(self, own: SnapshotHead) -> BaseFound:
        """The snapshot with that head is there twice, as nothing else can take its place (ADR 43):
        whichever of the two isn't what was written, and be it another's, is written again. Blocks.

        Raises:
            OSError: it can't be.
        """
        path = self.path(own.applied_index)
        copy = path.with_suffix(COPY)
        content, copied = (self._whole(each, lambda head: head == own) for each in (path, copy))
        if content is not None and copied == content:
            return BaseFound.SOUND
        if content is not None:
            was_there = self._files.exists(copy)
            self._keep(copy, content, self._reserve_bytes)
            return BaseFound.MENDED if was_there else BaseFound.SOUND
        if copied is None:
            return BaseFound.LOST
        self._keep(path, copied, 0)
        return BaseFound.MENDED

    def _keep(self, path: Path, content: bytes, reserve_bytes: int) -> None:
        """The file holds `content`. Raises OSError: it doesn't, and nothing is left of trying."""
        if reserve_bytes and self._files.free_bytes(self._folder) < reserve_bytes + len(content):
            raise OSError(errno.ENOSPC, "less is free than is kept for the log")
        try:
            replace_file(self._files, path, content)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.unlink(path.with_name(path.name + ".tmp"))
            raise

    def _whole(self, path: Path, is_wanted: Callable[[SnapshotHead], bool]) -> bytes | None:
        """The bytes of a file that is a whole snapshot, and the one that is wanted; None if it
        isn't."""
        try:
            handle = self._files.open(path)
            try:
                size = self._files.size(handle)
                reader = _Reader(self._files, handle, str(path))
                if not is_wanted(reader.head()):
                    return None
                for _ in reader.chunks():
                    pass
                return read_exactly(self._files, handle, size, 0, str(path))
            finally:
                self._files.close(handle)
        except (CorruptionFound, NotARegularFile):
            return None
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            return None

    # --- giving and receiving: blocking steps -------------------------------------------------

    def piece(self, index: int, at: int, size: int) -> tuple[int, bytes]:
        """How large the snapshot as of entry `index` is, and `size` bytes of it from `at` on, fewer
        where it ends; nothing is checked.

        Raises:
            NotARegularFile, OSError: it can't be read.
        """
        handle = self._files.open(self.path(index))
        try:
            return self._files.size(handle), self._files.pread(handle, size, at)
        finally:
            self._files.close(handle)

    def check_room(self, size_bytes: int, gives_back: int) -> None:
        """There is room for a state of that size, twice: as it comes, and as this disk's own. Of
        what is kept free for the log it may take half, or as much as the log gives back for it.

        Raises:
            OSError: ENOSPC: there isn't.
        """
        free = self._files.free_bytes(self._folder.parent)
        kept = max(0, self._reserve_bytes - max(self._reserve_bytes // 2, gives_back))
        if self._reserve_bytes and free < 2 * size_bytes + kept:
            why = (
                f"a state of {size_bytes} bytes takes twice that, and of the {free} bytes that are "
                f"free {kept} are kept for the log"
            )
            raise OSError(errno.ENOSPC, why, str(self._folder))

    def receive(self, at: int, piece: bytes) -> None:
        """What is received has these bytes from `at` on; with 0 it begins anew.

        Raises:
            OSError: not now.
        """
        path = self._folder / RECEIVED
        if at == 0:
            make_directory(self._files, self._folder)
            if self._files.exists(path):
                self._files.unlink(path)
            handle = self._files.create(path)
        else:
            handle = self._files.open(path)
        try:
            write_all(self._files, handle, [piece], at)
        finally:
            self._files.close(handle)

    def received(self) -> tuple[SnapshotHead, list[bytes]]:
        """What was received: whole, as far as its sums tell.

        Raises:
            CorruptionFound: it isn't what was written.
            OSError: it can't be read.
        """
        path = self._folder / RECEIVED
        handle = self._files.open(path)
        try:
            reader = _Reader(self._files, handle, str(path))
            return reader.head(), list(reader.chunks())
        finally:
            self._files.close(handle)

    def drop_received(self) -> None:
        """What was received is gone, as far as the disk lets go of it."""
        with contextlib.suppress(OSError):
            if self._files.exists(self._folder / RECEIVED):
                self._files.unlink(self._folder / RECEIVED)

    # --- writing: blocking steps, one at a time -----------------------------------------------

    def begin(self, head: SnapshotHead, *, takes_reserve: bool = False) -> Unfinished:
        """A new one, in the place of one that was never finished.

        Args:
            takes_reserve: it frees more of the log than it takes.

        Raises:
            OSError: not now; nothing is open.
        """
        if (
            not takes_reserve
            and self._reserve_bytes
            and self._files.free_bytes(self._folder.parent) < self._reserve_bytes
        ):
            raise OSError(errno.ENOSPC, "less is free than is kept for the log")
        make_directory(self._files, self._folder)
        path = self._folder / UNFINISHED
        if self._files.exists(path):
            self._files.unlink(path)
        return Unfinished(self._files, path, head)

    def publish(self, finished: Unfinished) -> None:
        """It has its name, durably.

        Raises:
            OSError: it has it or hasn't; what has it is whole.
        """
        self._files.rename(self._folder / UNFINISHED, self.path(finished.head.applied_index))
        self._files.fsync_directory(self._folder)

    def remove_all_but(self, kept: Collection[int]) -> list[str]:
        """No other snapshot is there; why those are that can't be removed. Not durable: one that
        comes back is removed the next time."""
        failed: list[str] = []
        for name in sorted(self._files.listdir(self._folder)) if self.indexes() else ():
            path = self._folder / name
            index, _, rest = name.partition(".")
            is_unfinished = rest.endswith("tmp")  # nobody is at it: this is the disk's one hand
            is_ours = FILE_NAME.fullmatch(index) and (is_unfinished or rest in ("", COPY[1:]))
            if is_ours and (is_unfinished or int(index) not in kept):
                try:
                    self._files.unlink(path)
                except OSError as error:
                    failed.append(f"{path}: {error}")
        return failed

    def remove_copies(self) -> None:
        """Nothing is kept twice: its space is needed more. Raises OSError: not now."""
        for name in self._files.listdir(self._folder) if self.indexes() else ():
            if name.endswith(COPY):
                self._files.unlink(self._folder / name)

    def remove(self, index: int) -> None:
        """The snapshot as of entry `index` is gone. Raises OSError: not now."""
        if self._files.exists(self.path(index)):
            self._files.unlink(self.path(index))


def content_of(
    files: FileSystem, handle: Handle, name: str
) -> tuple[SnapshotHead, Iterator[bytes]]:
    """Of a snapshot that is open, wherever it lies, what `SnapshotFiles.opened` gives of one here.

    Raises:
        CorruptionFound: it isn't what was written; the iteration raises it, too.
        OSError: it can't be read.
    """
    reader = _Reader(files, handle, name)
    return reader.head(), reader.chunks()


class _Reader:
    """Reads one file from its beginning, in blocks."""

    def __init__(self, files: FileSystem, handle: Handle, name: str) -> None:
        self._files = files
        self._handle = handle
        self._name = name
        self._block = b""
        self._at = 0  # in the block
        self._block_end = 0  # in the file
        self._crc = 0

    def head(self) -> SnapshotHead:
        packed = self._take(_HEAD.size)
        (crc,) = _CRC.unpack(self._take(_CRC.size))
        if crc != crc32c(packed):
            raise self._damaged("the head's CRC32C", crc)
        magic, version, *values = _HEAD.unpack(packed)
        if (magic, version) != (_MAGIC, _VERSION):
            raise self._damaged(f"magic {_MAGIC:08x}, version {_VERSION}", packed[:8].hex())
        return SnapshotHead(*values)

    def chunks(self) -> Iterator[bytes]:
        while True:
            (size,) = _SIZE.unpack(self._take(_SIZE.size))
            if size > MAX_PIECE_BYTES:
                raise self._damaged(f"at most {MAX_PIECE_BYTES} bytes", size)
            if size == 0:
                break
            yield self._take(size)
        expected = self._crc
        (crc,) = _CRC.unpack(self._take(_CRC.size))
        if crc != expected:
            raise self._damaged(f"CRC32C {expected:08x}", f"{crc:08x}")
        end = self._block_end - len(self._block) + self._at
        if self._files.size(self._handle) != end:
            raise self._damaged(f"the end at {end}", self._files.size(self._handle))

    def _take(self, size: int) -> bytes:
        if self._at + size > len(self._block):
            rest = self._block[self._at :]
            block = self._files.pread(self._handle, CHUNK_BYTES, self._block_end)
            if len(rest) + len(block) < size:  # interrupted, or the file's end
                missing = size - len(rest)
                block = read_exactly(
                    self._files, self._handle, missing, self._block_end, self._name
                )
            self._block_end += len(block)
            self._block, self._at = rest + block, 0
        taken = self._block[self._at : self._at + size]
        self._at += size
        self._crc = crc32c(taken, self._crc)
        return taken

    def _damaged(self, expected: str, found: object) -> CorruptionFound:
        at = self._block_end - len(self._block) + self._at
        return CorruptionFound(self._name, at, expected, found)
