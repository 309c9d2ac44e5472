"""Whether a file is as it was: what tells it from another, and from itself once it was written to.

Taken where the file lies, before it is read. It moves with every write, and with every rename of
most file systems. It tells nothing (None) of a file that was changed within `SETTLED_S` before, as
a write that comes after it could leave the same times; nor of one with a second name, by which it
could be written to by whoever never opens this one.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

# A disk's clock ticks every few milliseconds; that of a file system in the network each second.
SETTLED_S: Final = 2.0


class FileState(NamedTuple):
    """Of one file, at one moment."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


def state_of(file: int | str) -> FileState | None:
    """The state of a file, by its descriptor or path.

    Raises:
        OSError: there is none.
    """
    now, found = time.time_ns(), os.stat(file)
    if found.st_nlink != 1 or found.st_ctime_ns >= now - int(SETTLED_S * 1e9):
        return None
    return FileState(
        found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev
    )
