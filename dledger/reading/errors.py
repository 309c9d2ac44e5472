"""Errors of reading a log that somebody else owns. Reading changes nothing, so none leaves a trace.

    ReadingError
    ├── NotALog             the folder can't be read, or holds no log
    ├── NoAnswer            whoever holds the log, a store or a node, doesn't answer (retriable)
    ├── CredentialsShown    an object store's address with credentials in it
    ├── StoreUnknown        an object store for which nothing is installed
    ├── ObjectsUnreadable   an object store doesn't answer, or not properly (retriable)
    ├── OtherLog            the log isn't the one that was read before
    ├── OtherReplica        it isn't the one, on this machine, that was planned to be read
    ├── LogOfLaterLevel     the log is, or has become, one for a newer program than this
    └── LogDamaged          the log can't be read to its end; the text says where it ends
        └── EntryDamaged    bytes that should be an intact entry are not: file, offset, facts

But for what doesn't answer, none is `retriable`: the files have to change first. What a node does
about its own bytes is the store's to say (`store.errors`).
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


class NoAnswer(ReadingError):
    """Nobody says what the log is; the text says who was asked."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.UNREACHABLE


class CredentialsShown(ReadingError):
    """An address holds credentials, which would be printed, and are seen by other users."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, scheme: str) -> None:
        super().__init__(
            f"an address {scheme}://... with credentials in it: leave them to the environment, "
            "where other users of this machine don't see them"
        )
        self.scheme = scheme

    def __reduce__(self) -> tuple[type[CredentialsShown], tuple[str]]:
        """Engines bring it back from other processes, by its facts."""
        return CredentialsShown, (self.scheme,)


class StoreUnknown(ReadingError):
    """Nothing that is installed can ask the store; the text says what would."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class ObjectsUnreadable(ReadingError, OSError):
    """The store of `path` gave no answer; the text says what its library says."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.UNREACHABLE

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(None, f"{path} can't be read: {reason}")
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} can't be read: {self.reason}"

    def __reduce__(self) -> tuple[type[ObjectsUnreadable], tuple[str, str]]:
        """Engines bring it back from other processes, by all its facts."""
        return ObjectsUnreadable, (self.path, self.reason)


class OtherLog(ReadingError):
    """What was read before `offset` was another log's. Of which of them the rest is wanted nobody
    can tell: whoever reads begins anew, or names the log that it was."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, commitlog: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{commitlog} isn't the log that was read up to byte {offset}: {reason}. Begin anew, "
            "or name that log"
        )
        self.commitlog = commitlog
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[type[OtherLog], tuple[str, int, str]]:
        """Engines bring it back from other processes, by all its facts."""
        return OtherLog, (self.commitlog, self.offset, self.reason)


class OtherReplica(ReadingError):
    """The file on `host` isn't the one of that path that was planned to be read, up to byte
    `offset` of it. Whoever reads on one machine alone, or by the network, reads one log."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, file: str, offset: int, host: str) -> None:
        super().__init__(
            f"{file} on {host} isn't what was planned to be read up to byte {offset}: another "
            "replica lies at that path there, or it is damaged (`dledger audit replicas` tells). "
            "Run drivers and executors beside one replica, or read topics over the network"
        )
        self.file = file
        self.offset = offset
        self.host = host

    def __reduce__(self) -> tuple[type[OtherReplica], tuple[str, int, str]]:
        """Engines bring it back from other processes, by all its facts."""
        return OtherReplica, (self.file, self.offset, self.host)


class LogOfLaterLevel(ReadingError):
    """The log uses a level of formats and commands above the one that this program knows (ADR 23):
    what it holds may mean something else than is read in it."""

    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, commitlog: str, level: int, known: int) -> None:
        super().__init__(
            f"{commitlog} uses level {level} of formats and commands, and this program knows level "
            f"{known}: read it with the release that the group's nodes run"
        )
        self.commitlog = commitlog
        self.level = level
        self.known = known

    def __reduce__(self) -> tuple[type[LogOfLaterLevel], tuple[str, int, int]]:
        """Engines bring it back from other processes, by all its facts."""
        return LogOfLaterLevel, (self.commitlog, self.level, self.known)


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
