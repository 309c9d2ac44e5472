"""The file layer of a node under test: the real one, with faults on order and an undo journal.

Every operation reaches the real disk, but for those that are ordered to fail. A failed sync makes
nothing durable, and what was written before it stays readable and counts as never synced, as ext4
treats it (ATC'20). Bytes that are ordered to be missing from the disk are missing for everything
that makes a file longer; bytes inside a file that exists already are never refused, as on a disk
whose blocks were allocated ahead, and neither are those of a block that a shorter file kept. A
limited disk fills to its last byte: a write that doesn't fit writes what does, and what is deleted,
replaced or cut can be taken again.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from chaos.faults.orders import Orders
from chaos.faults.undo import UndoJournal
from store.files import IOV_MAX, Buffer, Handle, OsFiles

SECTOR_BYTES = 512  # no file that holds anything has less


class FaultyFiles:
    """`store.files.FileSystem` of a node under test.

    Raises:
        OSError: the faults folder can't be used.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._real = OsFiles()
        self._journal = UndoJournal(orders.undo_folder)
        self._inodes: dict[Handle, int] = {}
        self._had: dict[int, int] = {}  # bytes whose blocks an inode has, though it be shorter now
        self._space = Space(orders)

    # --- files --------------------------------------------------------------------------------

    def open(self, path: Path) -> Handle:
        handle = self._opened(self._real.open(path))
        if self._real.size(handle):
            self._had.setdefault(self._inodes[handle], SECTOR_BYTES)
        return handle

    def create(self, path: Path) -> Handle:
        with self._journal.lock:
            if not path.exists():
                self._journal.note_name("create", path)
            return self._opened(self._real.create(path))

    def close(self, handle: Handle) -> None:
        inode = self._inodes.pop(handle)
        if os.fstat(handle).st_nlink == 0:
            self._journal.settle_content(inode, self._journal.latest())
        self._real.close(handle)

    def lock(self, path: Path) -> Handle | None:
        handle = self._real.lock(path)
        return None if handle is None else self._opened(handle)

    # --- content ------------------------------------------------------------------------------

    def pread(self, handle: Handle, size: int, offset: int) -> bytes:
        self._fail_if_ordered("pread")
        return self._real.pread(handle, size, offset)

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
        self._fail_if_ordered("pwritev")
        wanted = sum(map(len, buffers[:IOV_MAX]))
        with self._journal.lock:
            size = self._real.size(handle)
            more = max(0, offset + wanted - max(size, self._had.get(self._inodes[handle], 0)))
            if (short := more - self._space.take_some(more, wanted)) > 0:
                wanted -= short
                buffers = [memoryview(b"".join(buffers[:IOV_MAX]))[:wanted]]
            old = self._real.pread(handle, wanted, offset)
            self._note("write", handle, offset, wanted, size, old)
            return self._real.pwritev(handle, buffers, offset)

    def fallocate(self, handle: Handle, size: int) -> None:
        self._fail_if_ordered("fallocate")
        before = self._real.size(handle)
        self._space.take(size - before)
        with self._journal.lock:
            if size > before:
                self._note("resize", handle, before, size - before, before, b"")
            self._real.fallocate(handle, size)

    def truncate(self, handle: Handle, size: int) -> None:
        with self._journal.lock:
            before = self._real.size(handle)
            inode = self._inodes[handle]
            if 0 < size < before:
                self._had[inode] = max(self._had.get(inode, 0), before)
            old = self._real.pread(handle, max(0, before - size), size)
            self._note("resize", handle, min(size, before), abs(before - size), before, old)
            self._space.take(size - before)
            self._real.truncate(handle, size)

    def size(self, handle: Handle) -> int:
        return self._real.size(handle)

    def data_ranges(self, handle: Handle, start: int, end: int) -> Iterator[tuple[int, int]]:
        return self._real.data_ranges(handle, start, end)

    # --- syncs --------------------------------------------------------------------------------

    def fdatasync(self, handle: Handle) -> None:
        covered = self._journal.latest()
        self._begin_sync("fdatasync")
        self._real.fdatasync(handle)
        self._journal.settle_content(self._inodes[handle], covered)

    def fsync(self, handle: Handle) -> None:
        covered = self._journal.latest()
        self._begin_sync("fsync")
        self._real.fsync(handle)
        self._journal.settle_content(self._inodes[handle], covered)

    def fsync_directory(self, path: Path) -> None:
        covered = self._journal.latest()
        self._begin_sync("fsync_directory")
        self._real.fsync_directory(path)
        self._journal.settle_names(path, covered)

    # --- memory -------------------------------------------------------------------------------

    def pin(self, handle: Handle) -> str | None:
        return self._real.pin(handle)

    def unpin(self, handle: Handle) -> None:
        self._real.unpin(handle)

    # --- names --------------------------------------------------------------------------------

    def rename(self, old: Path, new: Path) -> None:
        with self._journal.lock:
            replaced = new if new.exists() else None
            freed = 0 if replaced is None else _freed_with(replaced)
            self._journal.note_name("rename", old, to=new, replaced=replaced)
            self._real.rename(old, new)
            self._space.take(-freed)

    def exchange(self, one: Path, other: Path) -> bool:
        with self._journal.lock:
            # Noted after it: what isn't noted is never lost, and an exchange that was noted and not
            # made would be made by the power cut.
            is_done = self._real.exchange(one, other)
            if is_done:
                self._journal.note_name("exchange", one, to=other)
            return is_done

    def unlink(self, path: Path) -> None:
        with self._journal.lock:
            freed = _freed_with(path)
            self._journal.note_name("unlink", path, replaced=path)
            self._real.unlink(path)
            self._space.take(-freed)

    def mkdir(self, path: Path) -> None:
        with self._journal.lock:
            if not path.exists():
                self._journal.note_name("mkdir", path)
            self._real.mkdir(path)

    def rmdir(self, path: Path) -> None:
        with self._journal.lock:
            self._journal.note_name("rmdir", path)
            self._real.rmdir(path)

    def listdir(self, path: Path) -> list[str]:
        return self._real.listdir(path)

    def exists(self, path: Path) -> bool:
        return self._real.exists(path)

    def free_bytes(self, path: Path) -> int:
        real = self._real.free_bytes(path)
        left = self._space.left()
        return real if left is None else min(real, left)

    def total_bytes(self, path: Path) -> int:
        return self._real.total_bytes(path)

    # --- faults -------------------------------------------------------------------------------

    def _note(self, kind: str, handle: Handle, at: int, length: int, size: int, old: bytes) -> None:
        self._journal.note_content(
            kind, self._inodes[handle], at=at, length=length, size=size, old=old
        )

    def _opened(self, handle: Handle) -> Handle:
        self._inodes[handle] = os.fstat(handle).st_ino
        return handle

    def _fail_if_ordered(self, operation: str) -> None:
        code = self._orders.current().errno_of(operation)
        if code is not None:
            raise OSError(code, f"{os.strerror(code)} (ordered)")

    def _begin_sync(self, operation: str) -> None:
        delay_ms = self._orders.current().sync_delay_ms
        if delay_ms:
            time.sleep(delay_ms / 1000)
        self._fail_if_ordered(operation)


def _freed_with(path: Path) -> int:
    """What the disk gets back when the name goes. The journal's links to what was replaced are
    the tester's and hold no space of the node's."""
    return path.stat().st_size


class Space:
    """What the disk still takes, once that was ordered to be limited; any thread may ask."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._lock = Lock()
        self._limit: int | None = None
        self._taken = 0

    def left(self) -> int | None:
        """Bytes; None: no limit."""
        with self._lock:
            return self._left()

    def take(self, more_bytes: int) -> None:
        """A file grows by so many bytes; below zero it shrinks or goes.

        Raises:
            OSError: ENOSPC.
        """
        with self._lock:
            left = self._left()
            if left is not None and more_bytes > left:
                raise _full()
            self._taken += more_bytes

    def take_some(self, more_bytes: int, wanted: int) -> int:
        """A write of `wanted` bytes, `more_bytes` of them behind a file's end, takes what there
        is; how many of those more bytes it may write.

        Raises:
            OSError: ENOSPC, as not even one of the `wanted` bytes can be written.
        """
        with self._lock:
            left = self._left()
            granted = more_bytes if left is None else min(more_bytes, left)
            if wanted and wanted == more_bytes - granted:
                raise _full()
            self._taken += granted
            return granted

    def _left(self) -> int | None:
        limit = self._orders.current().free_bytes
        if limit != self._limit:  # a new order: what was taken before doesn't count
            self._limit, self._taken = limit, 0
        return None if limit is None else max(0, limit - self._taken)


def _full() -> OSError:
    return OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (ordered)")
