"""The log of a directory whose member isn't formed yet: what of its founding is there already.

Beside `store.starting.founding`, whose values are also of use to those who open no log.
"""

from __future__ import annotations

from typing import Final

from store.commitlog import CommitLog, CommitLogOptions
from store.directory import DataDirectory, DirectoryState
from store.errors import CorruptionFound
from store.files import FileSystem
from store.starting.errors import RestoreUnfinished
from store.starting.founding import Founding
from store.worker import ManualWorker

RESTORE: Final = "restore"  # is there while a backup is being restored


def end_of_unformed(
    directory: DataDirectory,
    founding: Founding | None,
    files: FileSystem,
    options: CommitLogOptions,
) -> tuple[int, int]:
    """Index and term of the last entry in the log of one who isn't a member. If the log begins
    with the founding, all that was missing is the mark: the directory is formed now.

    Raises:
        RestoreUnfinished: it is part of a backup.
        CorruptionFound: the log is damaged, or isn't the founding's.
    """
    if files.exists(directory.path / RESTORE):  # before its log is written to, or called nobody's
        raise RestoreUnfinished(str(directory.path))
    commitlog = directory.path / "commitlog"
    if not files.exists(commitlog) or not files.listdir(commitlog):
        return 0, 0
    # Nothing runs beside this: what is submitted is done by `close`.
    log = CommitLog.open(directory.path, options, files, workers=ManualWorker)
    try:
        end = log.last_index, log.last_term
        begins = begins_with(log, founding)
    finally:
        log.close()
    if end[0] == 0 or directory.disk.state is DirectoryState.LEGACY:
        return end
    if not begins:
        raise CorruptionFound(str(commitlog), 0, "the founding as entry 1", "another log")
    directory.mark(DirectoryState.FORMED)
    return end


def begins_with(log: CommitLog, founding: Founding | None) -> bool:
    """Whether entry 1 is the founding's."""
    entries = log.configuration_entries()
    return founding is not None and entries[:1] == [(1, founding.configuration)]
