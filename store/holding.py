"""Who holds a data directory now, learned without touching its lock.

A tool that tried the lock could keep a node from starting at that moment, and could not try on a
disk that is mounted read-only. The kernel lists the locks that are held; what this asks of it
changes nothing. It must never be taken for the lock: a node may start a moment later. Nor does a
lock count as nobody's that can't be looked at.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from store.errors import HolderUnknown

LOCKS: Final = Path("/proc/locks")
_MAX_HOLDER_BYTES: Final = 64
_ABSENT: Final = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def holder_of(directory: Path, locks: Path = LOCKS) -> str | None:
    """How who holds the directory names itself; None if nobody does.

    Where the kernel gives no list, `abort` decides: it is there while a node runs, and stays behind
    one that died. Inodes are compared and devices not, which some file systems number in two ways:
    in doubt a directory counts as held. What the list leaves out is taken for free, as nothing
    tells it from a node that died: a lock held in another pid namespace (beside or around this
    one) or on another host of a shared file system. Whoever says None where `abort` is has to say
    that, too.

    Raises:
        HolderUnknown: the lock, or the mark that decides in its place, can't be looked at.
    """
    lock = _looked_at(directory / "LOCK")
    if lock is None:
        return None  # no node was ever started on it
    try:
        is_held = lock.st_ino in _locked_inodes(locks.read_text(errors="replace"))
    except OSError:
        is_held = _looked_at(directory / "abort") is not None
    return _name_in(directory / "LOCK") if is_held else None


def _looked_at(path: Path) -> os.stat_result | None:
    """None if nothing is there."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise HolderUnknown(str(path), error.strerror or str(error)) from error


def _locked_inodes(text: str) -> set[int]:
    """Of all files with a lock of the kind that a data directory has; lines are
    `1: FLOCK ADVISORY WRITE <process> <major>:<minor>:<inode> 0 EOF`, those that wait have `->`."""
    found = set()
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK":
            inode = fields[5].rpartition(":")[2]
            if inode.isdecimal():
                found.add(int(inode))
    return found


def _name_in(lock: Path) -> str:
    try:
        with lock.open("rb") as file:
            name = file.read(_MAX_HOLDER_BYTES).decode("utf-8", errors="replace").strip("\x00 \n")
    except OSError:
        name = ""
    return name or "another process"
