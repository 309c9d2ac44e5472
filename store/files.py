"""The file layer: the only way from the store to a disk.

Every byte the store reads or writes passes through `FileSystem`, so that a simulator can put a
faulty disk below the real code: unsynced writes lost or torn, EIO, ENOSPC, slow or failing fsync,
directory entries that vanish. `OsFiles` is the real one. Nothing here retries, caches or decides;
nothing writes through a memory map, which would turn a full disk into SIGBUS and lose write-back
errors (see `docs/formats.md`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Final, NewType, Protocol, TypeVar, cast

from store.descriptors import SCARCE_ERRNOS, DescriptorReserve
from store.errors import CorruptionFound, DirectoryReplaced, NotARegularFile

Handle = NewType("Handle", int)
Buffer = bytes | bytearray | memoryview
C = TypeVar("C", bound=Callable[..., object])

IOV_MAX: Final = 1024  # POSIX guarantees 16; Linux has had 1,024 since 2.4.
FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# Of a folder that is another's to sync, or whose file system syncs none, as an autofs map's.
UNSYNCED_ERRNOS: Final = frozenset(
    {errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.EACCES, errno.EPERM}
)
# Nothing is wrong with the disk, and nothing happened: the same call may succeed later.
PASSING_ERRNOS: Final = FULL_ERRNOS | SCARCE_ERRNOS
# What there was of a file is gone, and nothing else is said by it.
LOST_ERRNOS: Final = frozenset({errno.ENOENT, errno.EIO})
CHUNK_BYTES: Final = 1 << 20
SECTOR_BYTES: Final = 512  # the least that a disk loses

_ZEROS: Final = bytes(CHUNK_BYTES)

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_LIBC.mlock.argtypes = _LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

# Of linux/fs.h and fcntl.h; glibc has had the call since 2.28, musl has not.
_RENAMEAT2: Final = getattr(_LIBC, "renameat2", None)
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_NO_EXCHANGE: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
# What opening answers for a link, a folder, a socket, a device that isn't there.
_NO_FILE: Final = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})


class FileSystem(Protocol):
    """What the store needs from an operating system. Every call may raise OSError; and every one
    that takes a path DirectoryReplaced, once it is locked and leads to another directory."""

    def open(self, path: Path) -> Handle:
        """An existing file, for reading and writing.

        Raises:
            NotARegularFile: a link, a pipe, a device, a directory has the name.
        """
        ...

    def create(self, path: Path) -> Handle:
        """A new, empty file, for reading and writing; FileExistsError if there is one."""
        ...

    def close(self, handle: Handle) -> None: ...

    def pread(self, handle: Handle, size: int, offset: int) -> bytes:
        """At most `size` bytes; fewer only at the file's end or when interrupted."""
        ...

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
        """Writes at most `IOV_MAX` buffers; returns how many bytes, perhaps not all."""
        ...

    def fdatasync(self, handle: Handle) -> None:
        """The file's bytes and what is needed to read them are durable."""
        ...

    def fsync(self, handle: Handle) -> None: ...

    def fallocate(self, handle: Handle, size: int) -> None:
        """The file has `size` bytes whose blocks exist; new ones read as zeros."""
        ...

    def truncate(self, handle: Handle, size: int) -> None: ...

    def size(self, handle: Handle) -> int: ...

    def data_ranges(self, handle: Handle, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Ranges within `[start, end)` that may hold bytes other than zero, ascending."""
        ...

    def pin(self, handle: Handle) -> str | None:
        """Locks the file's pages into memory until it is closed; else says why it could not."""
        ...

    def unpin(self, handle: Handle) -> None:
        """The pages may be evicted again; no error if they were not pinned."""
        ...

    def rename(self, old: Path, new: Path) -> None: ...

    def exchange(self, one: Path, other: Path) -> bool:
        """Two files of one directory have each other's names, at once; False where the file
        system can't do that: nothing has happened then."""
        ...

    def unlink(self, path: Path) -> None: ...

    def mkdir(self, path: Path) -> None:
        """A directory with one existing parent; no error if it exists already."""
        ...

    def rmdir(self, path: Path) -> None: ...

    def fsync_directory(self, path: Path) -> None:
        """The names in the directory are durable."""
        ...

    def listdir(self, path: Path) -> list[str]:
        """The names in the directory, sorted."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether anything has the name, and be it a link that leads nowhere. Whoever isn't told
        gets an OSError: a directory that can't be read is no empty one."""
        ...

    def free_bytes(self, path: Path) -> int:
        """What an unprivileged process may still write to the disk that holds `path`."""
        ...

    def total_bytes(self, path: Path) -> int:
        """The size of the file system that holds `path`."""
        ...

    def lock(self, path: Path) -> Handle | None:
        """An exclusive lock on the file, made if need be, until closed; None if it is taken."""
        ...


def _naming_its_file(call: C) -> C:
    """What the system says of a descriptor names no file: whoever reads it needs to know which."""

    @wraps(call)
    def named(files: OsFiles, handle: Handle, *rest: object) -> object:
        try:
            return call(files, handle, *rest)
        except OSError as error:
            if error.filename is None:
                with contextlib.suppress(OSError):  # there is no /proc, or it was closed
                    error.filename = os.readlink(f"/proc/self/fd/{handle}")
            raise

    return cast(C, named)


@dataclass(frozen=True, slots=True)
class _Place:
    """What a lock holds, and the name that has to lead to it: the directory, or the file where
    directories can't be locked. It is open as long as this is there, so that its inode is no
    other's."""

    directory: str
    name: str
    inode: tuple[int, int]  # device and number

    def check(self, path: str) -> None:
        """Raises DirectoryReplaced: `path` lies in another directory than the one that is held."""
        if path != self.directory and not path.startswith(self.directory + os.sep):
            return
        try:
            found = os.stat(self.name)
        except (FileNotFoundError, NotADirectoryError):
            raise DirectoryReplaced(self.directory) from None
        if (found.st_dev, found.st_ino) != self.inode:
            raise DirectoryReplaced(self.directory)


class OsFiles:
    """`FileSystem` on Linux; a handle is a file descriptor.

    A directory that is locked may be moved or removed by anybody, and another put in its place,
    with a lock of its own. So before any name in it is used, it is looked at whether the directory
    still is the one that is held; what is open goes on being written where it is.

    Args:
        reserved: descriptors that are held for the time when there are none.
        access: how files are opened that are there; `O_RDONLY` for those that are only read, and
            may lie where nobody can write.
    """

    def __init__(self, reserved: int = 0, access: int = os.O_RDWR) -> None:
        self._access = access
        self._pinned: dict[int, tuple[int, int]] = {}
        self._locked: dict[int, int] = {}  # directories, by the files that stand for them
        self._places: dict[int, _Place] = {}  # by the same files
        self._reserve = DescriptorReserve(reserved)

    def open(self, path: Path) -> Handle:
        self._check_place(path)
        return self._opened(path, self._access)

    def create(self, path: Path) -> Handle:
        self._check_place(path)
        return self._opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def _opened(self, path: Path, flags: int) -> Handle:
        return Handle(self._reserve.obtain(lambda: open_regular(path, flags)))

    def _check_place(self, path: Path) -> None:
        for place in list(self._places.values()):  # another thread may lock, or close, meanwhile
            place.check(os.fspath(path))

    def close(self, handle: Handle) -> None:
        self.unpin(handle)
        self._places.pop(handle, None)
        directory = self._locked.pop(handle, None)
        if directory is not None:
            os.close(directory)
        os.close(handle)
        self._reserve.refill()

    @_naming_its_file
    def pread(self, handle: Handle, size: int, offset: int) -> bytes:
        return os.pread(handle, size, offset)

    @_naming_its_file
    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
        # Short of memory it has written nothing: what is in the page cache is told by its count.
        return self._reserve.obtain(lambda: os.pwritev(handle, buffers, offset))

    @_naming_its_file
    def fdatasync(self, handle: Handle) -> None:
        os.fdatasync(handle)

    @_naming_its_file
    def fsync(self, handle: Handle) -> None:
        os.fsync(handle)

    @_naming_its_file
    def fallocate(self, handle: Handle, size: int) -> None:
        os.posix_fallocate(handle, 0, size)

    @_naming_its_file
    def truncate(self, handle: Handle, size: int) -> None:
        os.ftruncate(handle, size)

    @_naming_its_file
    def size(self, handle: Handle) -> int:
        return os.fstat(handle).st_size

    def data_ranges(self, handle: Handle, start: int, end: int) -> Iterator[tuple[int, int]]:
        at = start
        while at < end:
            try:
                data = self._sought(handle, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # Nothing but a hole up to the end.
                    return
                raise
            if data >= end:
                return
            at = min(self._sought(handle, data, os.SEEK_HOLE), end)
            yield data, at

    @_naming_its_file
    def _sought(self, handle: Handle, at: int, whence: int) -> int:
        return os.lseek(handle, at, whence)

    def pin(self, handle: Handle) -> str | None:
        # Read-only: Python's own mmap gives no address of one, so libc is asked directly.
        size = self.size(handle)
        address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
        if address == _MAP_FAILED:
            return f"mmap: {os.strerror(ctypes.get_errno())}"
        if _LIBC.mlock(address, size) != 0:
            reason = os.strerror(ctypes.get_errno())
            _LIBC.munmap(address, size)
            return f"mlock: {reason}"
        self._pinned[handle] = (address, size)
        return None

    def unpin(self, handle: Handle) -> None:
        pinned = self._pinned.pop(handle, None)
        if pinned is not None:
            _LIBC.munmap(*pinned)

    def rename(self, old: Path, new: Path) -> None:
        self._check_place(new)
        os.rename(old, new)

    def exchange(self, one: Path, other: Path) -> bool:
        self._check_place(other)
        if _RENAMEAT2 is None:
            return False
        names = os.fsencode(one), os.fsencode(other)
        if _RENAMEAT2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
            return True
        code = ctypes.get_errno()
        if code in _NO_EXCHANGE:
            return False
        raise OSError(code, os.strerror(code), str(one), None, str(other))

    def unlink(self, path: Path) -> None:
        self._check_place(path)
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        self._check_place(path)
        path.mkdir(exist_ok=True)

    def rmdir(self, path: Path) -> None:
        self._check_place(path)
        os.rmdir(path)

    def fsync_directory(self, path: Path) -> None:
        self._check_place(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = self._reserve.obtain(lambda: os.open(path, flags))
        handle = Handle(descriptor)
        try:
            self.fsync(handle)  # which names it
        finally:
            self.close(handle)

    def listdir(self, path: Path) -> list[str]:
        self._check_place(path)
        return sorted(self._reserve.obtain(lambda: os.listdir(path)))

    def exists(self, path: Path) -> bool:
        self._check_place(path)
        # Not `os.path.lexists`: it says no wherever it isn't told, and a vote that is there would
        # be none, a mark that keeps a directory out of service gone, an intent never made.
        try:
            self._reserve.obtain(lambda: os.lstat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def free_bytes(self, path: Path) -> int:
        self._check_place(path)
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: Path) -> int:
        self._check_place(path)
        state = os.statvfs(path)
        # What only root may still use counts as used.
        return (state.f_blocks - state.f_bfree + state.f_bavail) * state.f_frsize

    def lock(self, path: Path) -> Handle | None:
        descriptor = self._opened(path, os.O_RDWR | os.O_CREAT)
        try:
            is_ours = self._flock(descriptor) and self._lock_directory(descriptor, path.parent)
        except BaseException:
            self.close(descriptor)
            raise
        if not is_ours:
            self.close(descriptor)
            return None
        self._places[descriptor] = self._place_of(descriptor, path)
        return descriptor

    def _place_of(self, lock: Handle, path: Path) -> _Place:
        directory = self._locked.get(lock)
        held = os.fstat(lock if directory is None else directory)
        name = path if directory is None else path.parent
        return _Place(os.fspath(path.parent), os.fspath(name), (held.st_dev, held.st_ino))

    @_naming_its_file
    def _flock(self, handle: Handle) -> bool:
        return _flock(handle)

    def _lock_directory(self, handle: Handle, path: Path) -> bool:
        """The directory is locked as well, as long as `handle` is open: whoever takes the file for
        a stale one and removes it would let a second process in, with a file of its own."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        directory = self._reserve.obtain(lambda: os.open(path, flags))
        try:
            is_ours = _flock(directory)
        except OSError:  # a file system that locks no directories: the file has to do
            os.close(directory)
            return True
        if is_ours:
            self._locked[handle] = directory
        else:
            os.close(directory)
        return is_ours


def _flock(descriptor: int) -> bool:
    """Whether nobody else has the lock now. Raises OSError: it can't be locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    return True


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of the regular file at `path`, which is no link; never waits for a pipe's other
    end.

    Raises:
        NotARegularFile: it isn't one. What is behind a link, a directory elsewhere has the name of,
            and syncing this one says nothing of that; two nodes might write to it, each under its
            own lock; and an atomic file would be replaced by a plain one (ADR 31).
        OSError: there is none, or it can't be opened.
    """
    careful = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags | careful, 0o644)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise NotARegularFile(str(path), _kind_of(path)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotARegularFile(str(path), _kind_of(path))
    return descriptor


def _kind_of(path: Path) -> str:
    return kind_of_file(os.lstat(path).st_mode)


def kind_of_file(mode: int) -> str:
    """What `st_mode` says a name stands for."""
    names = {
        stat.S_IFREG: "a file",
        stat.S_IFDIR: "a directory",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return names.get(stat.S_IFMT(mode), "something else")


def write_all(files: FileSystem, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
    """All of `buffers` are written one after the other from `offset` on; returns their bytes."""
    total = 0
    for first in range(0, len(buffers), IOV_MAX):
        group = buffers[first : first + IOV_MAX]
        wanted = sum(map(len, group))
        written = files.pwritev(handle, group, offset + total)
        if written < wanted:  # Rare: a signal, or a disk that is almost full.
            rest = memoryview(b"".join(group))
            while written < wanted:
                written += files.pwritev(handle, [rest[written:]], offset + total + written)
        total += wanted
    return total


def read_exactly(files: FileSystem, handle: Handle, size: int, offset: int, name: str) -> bytes:
    """`size` bytes from `offset`.

    Raises:
        CorruptionFound: the file ends before, or the disk can't give them.
    """
    content = read_upto(files, handle, size, offset, name)
    while len(content) < size:
        at = offset + len(content)
        more = read_upto(files, handle, size - len(content), at, name)
        if not more:
            found = f"the file's end after {len(content)}"
            raise CorruptionFound(name, offset + len(content), f"{size} bytes", found)
        content += more
    return content


def read_upto(files: FileSystem, handle: Handle, size: int, offset: int, name: str) -> bytes:
    """`size` bytes from `offset`; fewer only at the file's end, or when interrupted.

    A sector that the disk can't read any more is lost like one that has rotted: what was there has
    to come from elsewhere, and writing gives the file another sector.

    Raises:
        CorruptionFound: the disk can't give them; it names the first block that it can't.
    """
    try:
        return files.pread(handle, size, offset)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    sectors: list[bytes] = []  # read again, all at once, they might not be given again
    at = offset
    while at < offset + size:
        end = min(offset + size, at - at % SECTOR_BYTES + SECTOR_BYTES)
        try:
            sectors.append(files.pread(handle, end - at, at))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise CorruptionFound(
                name, at, f"{end - at} bytes", "a sector that can't be read"
            ) from error
        if len(sectors[-1]) < end - at:
            break
        at = end
    return b"".join(sectors)


def zero_range(
    files: FileSystem, handle: Handle, start: int, end: int, *, again: bool = False
) -> int:
    """`[start, end)` reads as zeros, written from the end backwards and only where it did not
    already, or couldn't be read; returns how many bytes were written. Not yet durable.

    `again`: zeros that a dead process wrote are written once more. They may be in the page cache
    only, and called clean after a sync that failed (ADR 8).
    """
    zeroed = 0
    for data_start, data_end in reversed(list(files.data_ranges(handle, start, end))):
        at = data_end
        while at > data_start:
            size = min(CHUNK_BYTES, at - data_start)
            at -= size
            if again or any_nonzero(_readable(files, handle, size, at)):
                zeroed += write_all(files, handle, [memoryview(_ZEROS)[:size]], at)
    return zeroed


def first_nonzero(files: FileSystem, handle: Handle, start: int, end: int) -> int | None:
    """The offset of the first byte in `[start, end)` that isn't zero, or of a block that can't be
    read; None if all are."""
    for data_start, data_end in files.data_ranges(handle, start, end):
        for at in range(data_start, data_end, CHUNK_BYTES):
            chunk = _readable(files, handle, min(CHUNK_BYTES, data_end - at), at)
            if any_nonzero(chunk):
                return at + len(chunk) - len(chunk.lstrip(b"\x00"))
    return None


def _readable(files: FileSystem, handle: Handle, size: int, at: int) -> bytes:
    """`size` bytes from `at`; something that isn't zero where the disk can't give them."""
    try:
        return files.pread(handle, size, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b"\xff" * size


def any_nonzero(chunk: bytes) -> bool:
    """Whether a byte of `chunk`, of `CHUNK_BYTES` at most, isn't zero. Compares, never copies."""
    return chunk != (_ZEROS if len(chunk) == CHUNK_BYTES else bytes(len(chunk)))


def make_directory(files: FileSystem, path: Path) -> None:
    """`path` and its missing parents exist, durably."""
    if files.exists(path):
        return
    make_directory(files, path.parent)
    files.mkdir(path)
    files.fsync_directory(path.parent)
