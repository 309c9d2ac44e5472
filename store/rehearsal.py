"""A file system on which a start can be rehearsed: it reads a real directory and changes nothing.

What is written, cut, renamed or made stays in memory and is seen by whoever reads on through the
same `RehearsedFiles`; the disk is opened for reading only, and not even locked. So the very code of
a start says what it would refuse and mend, and nobody has to know its rules a second time
(docs/adr/0031-one-reader-of-a-directory.md). Whether the disk has space, and the process a right to
write, is not rehearsed.

Memory holds what differs from the disk, in pages: bytes written again as they were are free, and
zeros share one page. Directories can be made and removed, never renamed: no start does that before
it has decided to start.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from store.errors import NotARegularFile
from store.files import Buffer, Handle, OsFiles, open_regular

PAGE: Final = 4096
FREE_BYTES: Final = 1 << 62

_ZEROS: Final = bytes(PAGE)


class _File:
    """One file: the first `shown` bytes of the real one at `real`, zeros behind them up to `size`,
    and `pages` instead of what lies there. Its descriptor is open while it has handles."""

    __slots__ = ("descriptor", "handles", "pages", "real", "shown", "size")

    def __init__(self, real: Path | None, size: int) -> None:
        self.real = real
        self.shown = self.size = size
        self.pages: dict[int, bytes] = {}
        self.handles = 0
        self.descriptor = -1

    def open(self) -> None:
        if self.handles == 0 and self.real is not None:
            self.descriptor = open_regular(self.real, os.O_RDONLY)
        self.handles += 1

    def close(self) -> None:
        self.handles -= 1
        if self.handles == 0 and self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def read(self, size: int, at: int) -> bytes:
        size = max(0, min(size, self.size - at))
        content = b""
        if at < self.shown:
            content = os.pread(self.descriptor, min(size, self.shown - at), at)
        if not self.pages or size == 0:
            return content.ljust(size, b"\x00")
        patched = bytearray(content.ljust(size, b"\x00"))
        for number in range(at // PAGE, (at + size - 1) // PAGE + 1):
            page = self.pages.get(number)
            if page is not None:
                start = number * PAGE
                low, high = max(start, at), min(start + PAGE, at + size)
                patched[low - at : high - at] = page[low - start : high - start]
        return bytes(patched)

    def write(self, content: bytes, at: int) -> None:
        if self.read(len(content), at) == content:
            return  # as it was: what a recovery writes again to be sure of it
        end = at + len(content)
        self.size = max(self.size, end)
        for number in range(at // PAGE, (end - 1) // PAGE + 1):
            start = number * PAGE
            before = self.read(PAGE, start).ljust(PAGE, b"\x00")
            low, high = max(start, at), min(start + PAGE, end)
            page = before[: low - start] + content[low - at : high - at] + before[high - start :]
            if page != before:
                self.pages[number] = _ZEROS if page == _ZEROS else page

    def truncate(self, size: int) -> None:
        if size < self.size:
            self.shown = min(self.shown, size)
            first, within = divmod(size, PAGE)
            for number in [each for each in self.pages if each > first]:
                del self.pages[number]
            if first in self.pages:
                self.pages[first] = self.pages[first][:within].ljust(PAGE, b"\x00")
        self.size = size


class RehearsedFiles:
    """`store.files.FileSystem` that leaves the disk as it is; closed with all that it has open."""

    def __init__(self) -> None:
        self._disk = OsFiles()
        self._handles: dict[Handle, _File] = {}
        self._files: dict[Path, _File] = {}  # that were opened, made or named
        self._inodes: dict[tuple[int, int], _File] = {}  # those of the disk among them
        # Names that the disk doesn't have, and those that only it still has, by directory.
        self._added: defaultdict[Path, set[str]] = defaultdict(set)
        self._gone: defaultdict[Path, set[str]] = defaultdict(set)
        self._made: set[Path] = set()  # directories
        self._last_handle = 0

    # --- files --------------------------------------------------------------------------------

    def open(self, path: Path) -> Handle:
        file = self._file(path)
        file.open()
        self._last_handle += 1
        handle = Handle(self._last_handle)
        self._handles[handle] = file
        return handle

    def create(self, path: Path) -> Handle:
        if self.exists(path):
            raise _error(errno.EEXIST, path)
        self._check_directory(path.parent)
        self._name(path, _File(None, 0))
        return self.open(path)

    def close(self, handle: Handle) -> None:
        self._handles.pop(handle).close()

    def close_all(self) -> None:
        """No descriptor is left open."""
        while self._handles:
            self._handles.popitem()[1].close()

    def held_pages(self) -> int:
        """How much differs from the disk, in pages."""
        return sum(len(file.pages) for file in set(self._files.values()))

    def lock(self, path: Path) -> Handle | None:
        return self.open(path) if self.exists(path) else self.create(path)

    # --- content ------------------------------------------------------------------------------

    def pread(self, handle: Handle, size: int, offset: int) -> bytes:
        return self._handles[handle].read(size, offset)

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
        content = b"".join(buffers)
        if content:
            self._handles[handle].write(content, offset)
        return len(content)

    def fdatasync(self, handle: Handle) -> None:
        """Nothing to do."""

    def fsync(self, handle: Handle) -> None:
        """Nothing to do."""

    def fallocate(self, handle: Handle, size: int) -> None:
        file = self._handles[handle]
        file.size = max(file.size, size)

    def truncate(self, handle: Handle, size: int) -> None:
        self._handles[handle].truncate(size)

    def size(self, handle: Handle) -> int:
        return self._handles[handle].size

    def data_ranges(self, handle: Handle, start: int, end: int) -> Iterator[tuple[int, int]]:
        file = self._handles[handle]
        end = min(end, file.size)
        found: list[tuple[int, int]] = []
        if start < min(end, file.shown):
            descriptor = Handle(file.descriptor)
            found += self._disk.data_ranges(descriptor, start, min(end, file.shown))
        for number in file.pages:
            low, high = max(number * PAGE, start), min((number + 1) * PAGE, end)
            if low < high:
                found.append((low, high))
        at = start
        for low, high in sorted(found):
            if high > at:
                yield max(low, at), high
                at = high

    def pin(self, handle: Handle) -> str | None:
        return "nothing is pinned in a rehearsal"

    def unpin(self, handle: Handle) -> None:
        """Nothing was pinned."""

    # --- names --------------------------------------------------------------------------------

    def rename(self, old: Path, new: Path) -> None:
        file = self._file(old)
        self._check_directory(new.parent)
        self._forget(old)
        self._name(new, file)

    def exchange(self, one: Path, other: Path) -> bool:
        first, second = self._file(one), self._file(other)
        self._name(one, second)
        self._name(other, first)
        return True

    def unlink(self, path: Path) -> None:
        # Whatever it is, but a directory, its name can go; it needn't be opened for that.
        if self._is_directory(path) and not path.is_symlink():
            raise _error(errno.EISDIR, path)
        if not self.exists(path):
            raise _error(errno.ENOENT, path)
        self._forget(path)

    def mkdir(self, path: Path) -> None:
        if self._is_directory(path):
            return
        if self.exists(path):
            raise _error(errno.EEXIST, path)
        self._check_directory(path.parent)
        self._made.add(path)
        self._added[path.parent].add(path.name)

    def rmdir(self, path: Path) -> None:
        self._check_directory(path)
        if path.is_symlink():
            raise _error(errno.ENOTDIR, path)
        if self.listdir(path):
            raise _error(errno.ENOTEMPTY, path)
        self._made.discard(path)
        self._forget(path)

    def fsync_directory(self, path: Path) -> None:
        self._check_directory(path)

    def listdir(self, path: Path) -> list[str]:
        self._check_directory(path)
        names = set() if path in self._made else set(self._disk.listdir(path))
        return sorted((names - self._gone.get(path, set())) | self._added.get(path, set()))

    def exists(self, path: Path) -> bool:
        if path.name in self._added.get(path.parent, ()):
            return True
        return not self._is_gone(path) and self._disk.exists(path)

    def free_bytes(self, path: Path) -> int:
        return FREE_BYTES

    def total_bytes(self, path: Path) -> int:
        return 2 * FREE_BYTES

    def _file(self, path: Path) -> _File:
        """The file of that name."""
        file = self._files.get(path)
        if file is None:
            if path in self._made:
                raise NotARegularFile(str(path), "a directory")
            if self._is_gone(path):
                raise _error(errno.ENOENT, path)
            descriptor = open_regular(path, os.O_RDONLY)
            state = os.fstat(descriptor)
            os.close(descriptor)
            # Two names of one file are one file here, too: what is written by one is read by both.
            key = state.st_dev, state.st_ino
            file = self._inodes.setdefault(key, _File(path, state.st_size))
            self._files[path] = file
        return file

    def _name(self, path: Path, file: _File) -> None:
        self._files[path] = file
        self._added[path.parent].add(path.name)

    def _forget(self, path: Path) -> None:
        self._files.pop(path, None)
        self._added[path.parent].discard(path.name)
        self._gone[path.parent].add(path.name)

    def _is_gone(self, path: Path) -> bool:
        return path.name in self._gone.get(path.parent, ())

    def _is_directory(self, path: Path) -> bool:
        return path in self._made or (not self._is_gone(path) and path.is_dir())

    def _check_directory(self, path: Path) -> None:
        if not self._is_directory(path):
            raise _error(errno.ENOTDIR if self.exists(path) else errno.ENOENT, path)


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
