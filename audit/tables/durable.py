"""What a table's package wrote is on disk: neither deltalake nor pyiceberg syncs a file.

Whoever is told that a segment is exported may let it go. So before a run says so, the file systems
on which the table lies are synced, whole: that has the files of rows, those that name them and all
folders around them, of this run and of one before that was killed behind its commit, and nobody has
to know which they are. Stores of objects keep what they have answered for.

Source: syncfs(2); it tells of pages that couldn't be written since Linux 5.8.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from audit.errors import TableUnsynced
from dledger.reading.objects import is_object

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def local_folder(place: str | None) -> str | None:
    """The path of a folder on this machine; None for an address of a store, and for nothing."""
    if not place or is_object(place):
        return None
    return urlsplit(place).path if place.startswith("file:") else place


def sync_folders(name: str, folders: Collection[str]) -> None:
    """All that lies in these outlives a power cut.

    Raises:
        TableUnsynced: it isn't known to, of the table called `name`.
    """
    for folder in sorted(folders):
        try:
            _sync_file_system(folder)
        except OSError as error:
            raise TableUnsynced(name, error.strerror or str(error)) from error


def _sync_file_system(folder: str) -> None:
    """The file system on which the folder lies is on disk.

    Raises:
        OSError: it isn't, or there is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), folder)
    finally:
        os.close(descriptor)
