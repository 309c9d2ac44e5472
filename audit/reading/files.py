"""Reading a replica's files without disturbing their owner.

Files are opened for reading only and read with pread, never mapped: a tail that is truncated
under a map is SIGBUS, under pread a short read. A pace keeps an audit from taking the disk from a
node that serves. Nothing here writes, creates or locks anything.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

BLOCK_READ_BYTES: Final = 256 << 10  # Fits the second-level cache: hashing reads it from there.
_LONGEST_NAP_S: Final = 1.0


class Pace:
    """Holds a reader to `bytes_per_s`; 0 holds it to nothing.

    Time not used is not saved up, so a reader that was slow can't catch up in a burst.
    """

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        nap: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._nap = nap
        self._free_at = clock()

    def spend(self, size: int) -> None:
        """`size` bytes were read; returns when the next may be."""
        if self._bytes_per_s <= 0:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
        while (wait := self._free_at - self._clock()) > 0:
            self._nap(min(wait, _LONGEST_NAP_S))


@contextmanager
def opened(path: str) -> Iterator[int]:
    """A descriptor that can only read.

    Raises:
        OSError: the file is gone, or can't be read, or is none; the error names it, those of
            reading by the descriptor included.
    """
    # A pipe under a segment's name would be waited for until somebody writes into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a file", path)
        yield descriptor
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = path
        raise
    finally:
        os.close(descriptor)


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
