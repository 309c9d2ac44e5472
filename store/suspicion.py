"""What a member suspects of its own log, for the case that its process ends before it is settled.

Two suspicions outlive a process, in `<data>/suspected.json` (ADR 44):

    differs    at that entry another member holds something else, and it isn't known who is wrong
    memory     what the process said of its log isn't what its files hold

With either the next start compares with the others from its first moment on. After the second it
reads its log, all of it: its seals were written from a memory that is known to have been wrong.
The note goes when a majority holds the same, or nobody differs any more. One that can't be read is
one: it says that everything is to be read. Whoever holds it blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from store.directory import read_sealed, write_sealed
from store.errors import CorruptionFound, NotARegularFile
from store.files import FileSystem

NAME: Final = "suspected.json"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Suspicion:
    """`index`: the entry at which logs, or memory and files, differ; 0: that isn't known."""

    index: int
    is_memory: bool


UNKNOWN: Final = Suspicion(0, is_memory=True)


class SuspicionNote:
    """The note of one data directory."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / NAME

    def read(self) -> Suspicion | None:
        """What is suspected; None: nothing. Raises OSError: not now."""
        try:
            if not self._files.exists(self._path):
                return None
            stored = read_sealed(self._files, self._path)
        except (CorruptionFound, NotARegularFile):
            return UNKNOWN
        match stored:
            case {"format_version": 1, "index": int() as index, "is_memory": bool() as is_memory}:
                return Suspicion(max(index, 0), is_memory)
        return UNKNOWN

    def write(self, suspicion: Suspicion | None) -> None:
        """It says so, durably; None: there is none. Raises OSError: it may or may not."""
        if suspicion is not None:
            fields: dict[str, object] = {
                "format_version": FORMAT_VERSION,
                "index": suspicion.index,
                "is_memory": suspicion.is_memory,
            }
            write_sealed(self._files, self._path, fields)
        elif self._files.exists(self._path):
            self._files.unlink(self._path)
            self._files.fsync_directory(self._path.parent)
