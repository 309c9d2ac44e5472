"""Reading a replica's files without disturbing their owner.

Files are opened for reading only and read with pread, never mapped: a tail that is truncated
under a map is SIGBUS, under pread a short read. Nothing here writes, creates or locks anything.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from dledger.reading.objects import fetched, is_object, sizes_in

_BOOT: Final = "/proc/sys/kernel/random/boot_id"
_ESCAPED_BYTES: Final = 0xDC00
BLOCK_READ_BYTES: Final = 256 << 10  # Fits the second-level cache: hashing reads it from there.


@contextmanager
def opened(path: str) -> Iterator[int]:
    """A descriptor that can only read.

    Raises:
        OSError: the file is gone, or can't be read, or is none; the error names it, those of
            reading by the descriptor included.
    """
    descriptor = open_to_read(path)
    try:
        yield descriptor
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = path
        raise
    finally:
        os.close(descriptor)


def is_same_directory(path: str, other: str) -> bool:
    """Whether both lead to one directory; by their names where that can't be looked at."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return os.path.normpath(in_unicode(path)) == os.path.normpath(in_unicode(other))


def in_unicode(path: str | Path) -> str:
    """A path, or words that name one, as a message can hold it: bytes of it that are no UTF-8 are
    written out, `\\xff`. Everything else is as it was, so that it still leads there."""
    return os.fsencode(path).decode(errors="backslashreplace")


def printable(text: str) -> str:
    """A file's name, or what holds one, for whoever reads it: bytes that are no UTF-8, and what
    would move a terminal's cursor, are written out."""
    return "".join(each if each.isprintable() else _written_out(each) for each in text)


def _written_out(character: str) -> str:
    byte = ord(character) - _ESCAPED_BYTES  # how Python keeps a byte that is no UTF-8
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(character)[1:-1]


def open_to_read(path: str) -> int:
    """A descriptor that can only read, for who keeps it open. Raises: as `opened`."""
    if is_object(path):
        return fetched(path)
    # A pipe under a file's name would be waited for until somebody writes into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a file", path)


def name_of_file(found: os.stat_result) -> str:
    """Which file it is, of all those on machines that run: the same under every path that leads to
    it, and on no other machine, though disks that were copied have equal numbers."""
    return f"{machine()}:{found.st_dev}:{found.st_ino}"


@cache
def machine() -> str:
    """Which machine this is, until it is started again. Its containers are no others: they have one
    kernel, which numbers their disks."""
    try:
        with opened(_BOOT) as descriptor:
            return read_at(descriptor, 64, 0).decode("ascii", errors="replace").strip()
    except OSError:
        return os.uname().nodename


def names_in(folder: str) -> list[str]:
    """What lies in a folder, here or in an object store, sorted.

    Raises:
        OSError: it can't be read, or is none.
    """
    return sorted(sizes_in(folder) if is_object(folder) else os.listdir(folder))


def is_folder(path: str) -> bool:
    """Whether it is one that can be read."""
    if not is_object(path):
        return os.path.isdir(path)
    try:
        return bool(sizes_in(path))
    except FileNotFoundError:
        return False


def read_into(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fills `buffer` from byte `offset` on; how many bytes the file had."""
    filled = 0
    while filled < len(buffer):
        count = os.preadv(descriptor, [buffer[filled:]], offset + filled)
        if count == 0:
            break
        filled += count
    return filled


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """`size` bytes from `offset`; fewer where the file ends."""
    content = os.pread(descriptor, size, offset)
    while len(content) < size:
        more = os.pread(descriptor, size - len(content), offset + len(content))
        if not more:
            break
        content += more
    return content
