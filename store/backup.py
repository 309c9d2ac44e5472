"""A backup's own file, written and read: whose log it is, and up to where it counts.

A backup is a folder: `commitlog/`, segments as a member has them; where the log begins later than
entry 1, `log_start` and `snapshot/`; `checkpoint`; and `backup.json`, which this owns and which is
written last. Bytes behind its `end_offset` are those of a backup that was interrupted, and mean
nothing (docs/adr/0046-backups-are-logs.md). What the file says is `dledger.reading.backup`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dledger.reading.backup import FILE, Backup, backup_of, fields_of
from dledger.records.errors import InvalidFrame
from store.directory import read_sealed, write_sealed
from store.errors import CorruptionFound
from store.files import FileSystem

COMMITLOG: Final = "commitlog"


def write_backup(files: FileSystem, folder: Path, backup: Backup) -> None:
    """`backup.json` says so, durably."""
    write_sealed(files, folder / FILE, fields_of(backup))


def read_backup(files: FileSystem, folder: Path) -> Backup | None:
    """What the folder says of itself; None where nothing does.

    Raises:
        CorruptionFound: that can't be read, or no log is like that.
    """
    file = folder / FILE
    if not files.exists(file):
        return None
    try:
        return backup_of(read_sealed(files, file))
    except InvalidFrame as error:
        raise CorruptionFound(str(file), 0, error.expected, error.found) from error
