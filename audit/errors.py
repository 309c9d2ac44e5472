"""Errors of the audits, and how a command that meets one ends.

    AuditError
    ├── UsageMistake        the request makes no sense: arguments, replicas of other broker groups
    ├── Unreachable         a node or broker group that is to be audited doesn't answer (retriable)
    ├── NodeRefused         a node that reads its log for us doesn't, or not to the end (retriable)
    ├── SegmentGone         the node has no such segment (any more)
    ├── FrontGone           a log's front went each time it was read (retriable)
    ├── SegmentNotReached   an export ended before the segment that it was to reach (retriable)
    ├── NotTheGroups        no log that can be read is shown to be the group's
    ├── NotProven           what another replica gives isn't shown to be what was there
    ├── BackupRefused       a backup can't be made of that, or there; the one that there was stays
    ├── TableTaken          somebody else wrote to the table that an export read (retriable)
    ├── CommitUnknown       a table's commit got no answer: it may have happened (retriable)
    ├── TableUnsynced       what a table holds isn't known to be on disk (retriable)
    ├── KeptUnreadable      what is kept of a proof is none: its segment is read again
    ├── StoreInUse          another watch keeps its results there (retriable)
    ├── ExportUnderWay      another export writes to that folder (retriable)
    ├── NotBesideFiles      no executor runs on the machine where a replica lies (retriable)
    └── EngineUnavailable   the engine asked for can't run here: no pyspark, no Java, no cluster
        └── EngineFailed    it ran, and a process or the job ended before its tasks had (retriable)

The two that stand for a file at a node are `OSError`s as well: who reads a log needn't know whether
it lies on this machine. A log that can't be read to its end is
`dledger.reading.errors.LogDamaged`. What is wrong with a *replica* is no error but a finding
(`audit.proof.findings`): an audit that meets a broken file has done its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dledger.outcome import ExitCode, Outcome


class AuditError(Exception):
    """Root of the audits' errors. Nothing was changed: audits only read, and exports say more."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.INCONSISTENT


class UsageMistake(AuditError):
    """What was asked for can't be done; the text says what would."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class Unreachable(AuditError):
    """`who` gave no answer."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(f"{who} can't be reached: {reason}")
        self.who = who
        self.reason = reason


class NodeRefused(AuditError, OSError):
    """The node at `address` didn't answer, or not with what was asked for."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(None, f"{address}: {reason}")


class SegmentGone(AuditError, FileNotFoundError):
    """The node has no such segment."""

    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE


class FrontGone(AuditError):
    """Retention took segments of `replica`'s log while it was read, so many `looks` in a row;
    `reason`: what couldn't be read at the last, which needn't have gone."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, replica: str, looks: int, reason: str) -> None:
        super().__init__(
            f"{replica}'s log began later each time it was read, {looks} times in a row: nothing "
            f"was judged; audit a copy, or when less is taken away (the last time: {reason})"
        )


class SegmentNotReached(AuditError):
    """What was exported ends at the physical offset `end`, and the segment at `path` at
    `segment_end`; what was exported stays so."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, path: str, end: int, segment_end: int) -> None:
        super().__init__(
            f"the log is exported up to byte {end}, as far as its checkpoint calls it committed, "
            f"and {path} ends at {segment_end}: run the export again once more is"
        )
        self.path = path
        self.end = end
        self.segment_end = segment_end


class NotTheGroups(AuditError):
    """Logs there are, and what one of them holds says nothing of the group; `reasons` say why."""

    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


class NotProven(AuditError):
    """What a replica gives for another one's rotten bytes may not be what was there; the text says
    why."""


class BackupRefused(AuditError):
    """What was there is still the backup that it was; the text says what is in the way."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class TableTaken(AuditError):
    """The table at `name` isn't what was read any more, so nothing was written to it."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, name: str) -> None:
        super().__init__(f"somebody else wrote to {name} meanwhile; run the export again")
        self.name = name


class CommitUnknown(AuditError):
    """Whether the commit is in the table at `name` is known to whoever reads it, as a run does."""

    retriable: ClassVar[bool] = True
    outcome: ClassVar[Outcome] = Outcome.MAY_HAVE_HAPPENED
    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"a commit to {name} may have happened ({reason}); run the export again: it goes on "
            "from what the table holds"
        )
        self.name = name
        self.reason = reason


class TableUnsynced(AuditError):
    """The table at `name` has what was exported, and a power cut may take it, or has by then: its
    disk failed."""

    retriable: ClassVar[bool] = True
    outcome: ClassVar[Outcome] = Outcome.MAY_HAVE_HAPPENED
    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"what {name} holds isn't known to be on disk ({reason}): look at that disk, and "
            "whether the table can be read, before you rely on it"
        )
        self.name = name
        self.reason = reason


class KeptUnreadable(AuditError, ValueError):
    """Bytes of a store are none that were written there."""


class StoreInUse(AuditError):
    """Another watch has the folder."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, folder: str) -> None:
        super().__init__(f"another watch writes to {folder}: name another folder with --reports")
        self.folder = folder


class ExportUnderWay(AuditError):
    """Another run has the folder: nothing was written there by this one."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, folder: str) -> None:
        super().__init__(f"another export writes to {folder}; run this one again when it is done")
        self.folder = folder


class NotBesideFiles(AuditError):
    """Tasks of `hosts` ran on other machines only, where they read nothing: what lies there at the
    same path is another replica's."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE

    def __init__(self, hosts: Sequence[str]) -> None:
        super().__init__(
            f"no executor reads on {', '.join(hosts)}: tasks came to other machines, or to one "
            "where that name or address isn't the machine's own. Start executors there, or ask "
            "the nodes (--bootstrap with --over grpc); of files that can be read everywhere name "
            "no host (--replica NAME=PATH)"
        )
        self.hosts = tuple(hosts)


class EngineUnavailable(AuditError):
    """The engine can't run on this machine; the text says what is missing and what to do."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class EngineFailed(EngineUnavailable):
    """Tasks have no result because of whoever ran them: nothing is known of what they were to
    read."""

    retriable: ClassVar[bool] = True
    exit_code: ClassVar[ExitCode] = ExitCode.INCOMPLETE
