"""Errors of reading a log that somebody else owns. Reading changes nothing, so none leaves a trace.

    ReadingError
    ├── NotALog             the folder can't be read, or holds no log
    └── LogDamaged          the log can't be read to its end; the text says where it ends
        └── EntryDamaged    bytes that should be an intact entry are not: file, offset, facts

None is `retriable`: the files have to change first. What a node does about its own bytes is the
store's to say (`store.errors`).
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import ExitCode, Outcome


class ReadingError(Exception):
    """Root of the readers' errors."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class NotALog(ReadingError):
    """There is no log to read; the text says where it was looked for, and why there is none."""

    exit_code = ExitCode.USAGE


class LogDamaged(ReadingError):
    """The log can't be read to its end; the text says where it ends."""


class EntryDamaged(LogDamaged):
    """Committed bytes are not what was written. `offset` counts from the file's start."""

    def __init__(self, file: str, offset: int, expected: object, found: object) -> None:
        super().__init__(
            f"corruption in {file} at byte {offset}: expected {expected}, found {found}"
        )
        self.file = file
        self.offset = offset
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[type[EntryDamaged], tuple[str, int, object, object]]:
        """Engines bring it back from other processes, by all its facts."""
        return EntryDamaged, (self.file, self.offset, self.expected, self.found)
