"""What a replica that fails says and writes, for the operator and for its next process.

None of it may keep the replica from ending: what can't be written is told, and the next process
finds out anew.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import structlog

from store.commitlog import CommitLog
from store.errors import CorruptionFound, StoreError
from store.files import FileSystem
from store.out_of_service import Divergence, mark
from store.suspicion import Suspicion, SuspicionNote

ROT_ADVICE = (
    "stopped: dledger log repair, with bytes of its peers; else a new disk: docs/operations.md, "
    "Corruption"
)

log = structlog.get_logger(__name__)


class LastWords:
    """Of the member whose log that is, in the directory `path`."""

    def __init__(self, files: FileSystem, path: Path, commit_log: CommitLog) -> None:
        self._files = files
        self._path = path
        self._log = commit_log

    def tell_of_rot(self, error: CorruptionFound) -> None:
        """What an operator needs to know of rot in the log."""
        entry: int | None = None
        with contextlib.suppress(StoreError, ValueError):
            entry = self._log.index_at(int(Path(error.file).name) + error.offset)
        log.critical(
            "log_corrupt",
            file=error.file,
            offset=error.offset,
            entry=entry,
            expected=str(error.expected),
            found=str(error.found),
            advice=ROT_ADVICE,
        )

    def suspect_memory(self, index: int) -> None:
        """The next process reads the whole log, and compares it with the others'."""
        note = SuspicionNote(self._files, self._path)
        try:
            note.write(Suspicion(index, is_memory=True))
        except OSError as error:
            log.error("suspicion_not_noted", index=index, reason=str(error))

    def mark(self, divergence: Divergence) -> None:
        """The last thing that is written. Without it the next process finds out anew."""
        try:
            mark(self._files, self._path, divergence)
        except OSError as error:
            log.error("out_of_service_not_marked", reason=str(error))
