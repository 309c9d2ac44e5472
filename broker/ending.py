"""What a node's process ends with, by what it failed of.

Who supervises it acts on the code: 1 asks for somebody who reads the log, 4 for another disk. A
failure whose cause isn't the disk must never end with 4, or a good one would be thrown away; rot is
no failure of the disk to do what it was asked, it has words of its own (`log_corrupt`). Nor is a
certificate on a read-only mount, or a socket in the place of one, anything about the data's disk.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from dledger.outcome import ExitCode
from store.descriptors import SCARCE_ERRNOS
from store.errors import StorageFailed

# What the operating system says of a disk that doesn't do what it should, not of one that is full
# or isn't ours.
DISK_ERRNOS: Final = frozenset(
    {
        errno.EIO,
        errno.EROFS,  # the file system was remounted read-only after an error
        errno.ENXIO,
        errno.ENODEV,  # it is gone
        errno.ENOMEDIUM,
        errno.EREMOTEIO,
        errno.EUCLEAN,  # the file system is damaged
        errno.ESTALE,
    }
)

_NOT_THE_DISKS: Final = SCARCE_ERRNOS | {errno.EACCES, errno.EPERM}


def ending_of(error: BaseException, directory: Path | None = None) -> ExitCode:
    """The exit code of a process that ends because of `error`.

    Args:
        directory: of the node's data: an error that names a file elsewhere isn't its disk's. One
            that names none is: what is synced or written lies there. None: wherever it is.
    """
    if isinstance(error, StorageFailed):
        # A write or a sync of the log is final whatever the errno; a defect of ours is no disk's,
        # nor is what the process may not do, or has nothing left for.
        cause = error.cause
        is_the_disk = isinstance(cause, OSError) and cause.errno not in _NOT_THE_DISKS
        return ExitCode.DISK_FAILED if is_the_disk else ExitCode.FAILED
    if not isinstance(error, OSError) or error.errno not in DISK_ERRNOS:
        return ExitCode.FAILED
    is_elsewhere = directory is not None and not _may_be_in(error.filename, directory)
    return ExitCode.FAILED if is_elsewhere else ExitCode.DISK_FAILED


def disk_failure_in(error: OSError, directory: Path | None = None) -> StorageFailed | None:
    """The same as an error that says so; None if it isn't the disk's: an address in use, say."""
    if ending_of(error, directory) is not ExitCode.DISK_FAILED:
        return None
    return StorageFailed("the start", error)


def _may_be_in(filename: object, directory: Path) -> bool:
    """Whether a file that an error names lies there; one of which only a number is known may."""
    if not isinstance(filename, (str, bytes, os.PathLike)):
        return True
    where = Path(os.path.abspath(os.fsdecode(filename)))
    return where.is_relative_to(os.path.abspath(directory))
