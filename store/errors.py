"""Errors of the store, each with its facts as fields. What is wrong with bytes alone, wherever they
come from, is in `dledger.records.errors`.

    StoreError
    ├── OutOfRange          a read outside of what the log or the queue holds
    ├── StorageFull         no space for the next segment (retriable)
    ├── StorageFailed       a write or an fsync failed: this log takes no more work (fatal)
    ├── CorruptionFound     durable bytes are not what was written: stop, repair from a peer
    │   └── GapFound        the log goes on behind them: peers' bytes can be proven
    ├── BeyondRepair        they can't be got back, or not in part: stop
    ├── DivergenceFound     derived bytes contradict the log: stop
    ├── DirectoryInUse      another process holds the data directory
    ├── DirectoryReplaced   the data directory isn't the one that this process holds: stop
    ├── HolderUnknown       whether one holds it can't be told
    ├── WrongIdentity       the data directory belongs to another broker group, node or segment size
    ├── IdentityMissing     the data directory holds a log, and nothing says whose
    ├── NotARegularFile     a link, a pipe, a device or a directory has a file's name
    ├── SnapshotOfAnother   a snapshot of state was made on another disk, or of another log
    ├── SealRefused         a file that is no seal: what it should speak of is read instead
    ├── BackupUnusable      there is no backup, it isn't right, or not for that directory
    └── RecoveryRefused     a directory isn't one from which a group can go on alone

Two facts are common to all. `retriable`: the same call may succeed later, unchanged. `outcome`:
whether the operation did not happen, or may have happened.
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import ExitCode, Outcome
from store.gap import Holes


class StoreError(Exception):
    """Root of the store's errors."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class OutOfRange(StoreError):
    """Asked for `wanted` where only `[first, end)` is held."""

    def __init__(self, what: str, wanted: int, first: int, end: int) -> None:
        super().__init__(f"{what} {wanted} is outside of [{first}, {end})")
        self.what = what
        self.wanted = wanted
        self.first = first
        self.end = end


class StorageFull(StoreError):
    """The disk has no room for the next segment; what is stored stays readable. `scarce` says what
    else the process has run out of, if it isn't space."""

    retriable: ClassVar[bool] = True

    def __init__(
        self, directory: str, needed_bytes: int, free_bytes: int, scarce: str = ""
    ) -> None:
        super().__init__(
            f"nothing can be changed in {directory} for now: {scarce}"
            if scarce
            else f"no space in {directory}: {needed_bytes} bytes needed, {free_bytes} bytes free"
        )
        self.directory = directory
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        self.scarce = scarce


class StorageFailed(StoreError):
    """A write or fsync failed. The kernel may have marked the lost pages clean, so no retry can
    tell what is on disk: the process must stop and recover from the files (ADR 8)."""

    outcome: ClassVar[Outcome] = Outcome.MAY_HAVE_HAPPENED
    exit_code: ClassVar[ExitCode] = ExitCode.DISK_FAILED

    def __init__(self, operation: str, cause: BaseException) -> None:
        file = cause.filename if isinstance(cause, OSError) else None
        where = "" if file is None else f" of {file}"
        super().__init__(f"storage failed during {operation}{where}: {cause!r}")
        self.operation = operation
        self.cause = cause


class CorruptionFound(StoreError):
    """Bytes that were durable have changed or are gone. `offset` counts from the file's start."""

    def __init__(self, file: str, offset: int, expected: object, found: object) -> None:
        super().__init__(
            f"corruption in {file} at byte {offset}: expected {expected}, found {found}"
        )
        self.file = file
        self.offset = offset
        self.expected = expected
        self.found = found


class GapFound(CorruptionFound):
    """Of a log that isn't open: what is missing lies between entries that are intact, so that bytes
    of a peer can be judged. `missing` tells it to people, `holes` to whoever fills them."""

    def __init__(self, found: CorruptionFound, missing: str, holes: Holes) -> None:
        super().__init__(found.file, found.offset, found.expected, found.found)
        self.missing = missing
        self.holes = holes

    def __str__(self) -> str:
        return f"{super().__str__()}; peers may have what is missing: {self.missing}"


class BeyondRepair(StoreError):
    """Rotten bytes that no peer's can be put in the place of."""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file} can't be repaired from a peer: {why}")
        self.file = file
        self.why = why


class DivergenceFound(StoreError):
    """What is derived from the log contradicts what was derived before."""

    def __init__(self, where: str, expected: object, found: object) -> None:
        super().__init__(f"{where} diverges from the log: expected {expected}, found {found}")
        self.where = where
        self.expected = expected
        self.found = found


class DirectoryInUse(StoreError):
    """Another process holds the lock of the data directory."""

    retriable: ClassVar[bool] = True

    def __init__(self, directory: str, holder: str) -> None:
        super().__init__(f"data directory {directory} is in use by {holder}")
        self.directory = directory
        self.holder = holder


class DirectoryReplaced(StoreError):
    """The data directory was moved or removed under the process that holds it: what has its name
    now, if anything has, is another's, and nothing is read or written there any more."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"data directory {directory} isn't the one that this process holds: it was moved or "
            "removed meanwhile, and what may be there now is another node's"
        )
        self.directory = directory


class HolderUnknown(StoreError):
    """The file that tells whether a process holds the data directory can't be looked at."""

    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file}: {why}: so nobody can tell whether a node holds the directory")
        self.file = file
        self.why = why


class WrongIdentity(StoreError):
    """The data directory was made for something else than what was configured."""

    def __init__(self, directory: str, field: str, stored: object, configured: object) -> None:
        super().__init__(
            f"data directory {directory} has {field} {stored!r}, configured is {configured!r}"
        )
        self.directory = directory
        self.field = field
        self.stored = stored
        self.configured = configured


class IdentityMissing(StoreError):
    """A log without an identity: who formatted it here would make a new disk of an old one."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"data directory {directory} holds a log, but no identity.json says which disk it is: "
            "put the file back, or empty the directory and take it in with "
            "`dledger group replace`"
        )
        self.directory = directory


class NotARegularFile(StoreError):
    """A replica's files are regular files of its own: nothing else is opened under their names."""

    def __init__(self, file: str, kind: str) -> None:
        super().__init__(
            f"{file} is {kind} and no regular file of this directory's own: put the file itself "
            "in its place"
        )
        self.file = file
        self.kind = kind


class SnapshotOfAnother(StoreError):
    """A snapshot of state that isn't this directory's: `what` tells, disk or log."""

    def __init__(self, file: str, what: str, own: str, found: str) -> None:
        super().__init__(f"{file} is of another {what}: {found}, here it is {own}")
        self.file = file
        self.what = what
        self.own = own
        self.found = found


class BackupUnusable(StoreError):
    """The directory that was to be made of it is no member's; the text says why."""


class RecoveryRefused(StoreError):
    """A group can't be recovered by force from that directory, or needs not; `why` tells."""

    def __init__(self, directory: str, why: str) -> None:
        super().__init__(f"the group isn't recovered from {directory}: {why}")
        self.directory = directory
        self.why = why


class SealRefused(StoreError):
    """A file that is no seal. What it should speak of is read instead."""
