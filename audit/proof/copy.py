"""Is a cold copy of one member's directory whole, and would a node start on it?

Two questions to the same files. The directory: a start is rehearsed (`store.starting`), so that
what is refused here is what a node would refuse. The log and its queues: the check of derived files
(`audit.proof.derived`) over this one replica, which reads every byte, also those that a start after
a clean stop doesn't look at. Nobody else is asked: that the copy agrees with its group's others is
`dledger audit replicas`' to say.

    verdict     said of a copy when                                              exit code
    sound       a node would start on it, and every entry and unit is right      0
    incomplete  something is missing, and nothing that is there is wrong         3
    damaged     something that is there is wrong                                 1
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from audit.engines.engine import Engine, PassStarted
from audit.proof.findings import Verdict
from audit.proof.replicas import Options, audit_replicas, silent
from audit.proof.report import Report, report_as_json
from audit.proof.scope import Snapshots
from audit.proof.soundness import Soundness
from audit.proof.starting import snapshots_asked
from audit.reading.replica import Replica
from dledger.outcome import ExitCode
from store.directory import Identity
from store.starting.judgement import Effect, Judgement, Kind
from store.starting.judging import identity_of, judge

SCHEMA: Final = "dledger-copy/1"
NAME: Final = "copy"  # of a replica that doesn't say whose it is

# What isn't there, or isn't this program's to judge; all other refusals are of something that is
# wrong.
_MISSING: Final = {
    Kind.BASE_UNKNOWN,
    Kind.UNREADABLE,
    Kind.IDENTITY_MISSING,
    Kind.LOG_MISSING,
    Kind.SEGMENT_MISSING,
    Kind.HARD_STATE_MISSING,
}
# What a start does without, and whoever wants to know whether all is there can't.
_NEEDED: Final = {Kind.CHECKPOINT_MISSING, Kind.BOOT_MISSING, Kind.HARD_STATE_MISSING}
_NEEDED_WHOLE: Final = {
    Kind.CHECKPOINT_DAMAGED,
    Kind.HARD_STATE_DAMAGED,
    Kind.HARD_STATE_OLDER,
    Kind.QUEUES_AHEAD,
    Kind.SNAPSHOT_UNUSABLE,
}


@dataclass(frozen=True, slots=True)
class CopyReport:
    """One copy. `log`: what is in its log and queues."""

    judgement: Judgement
    log: Report

    @property
    def verdict(self) -> Soundness:
        """The graver of what the directory and what the log says."""
        return max(of_directory(self.judgement), of_log(self.log), key=list(Soundness).index)

    @property
    def snapshots(self) -> Snapshots:
        """What of the snapshots of state the verdict speaks of."""
        return snapshots_asked([self.judgement])

    @property
    def exit_code(self) -> ExitCode:
        return self.verdict.exit_code


def audit_copy(
    path: Path,
    engine: Engine,
    *,
    group: str | None = None,
    node: str | None = None,
    started: PassStarted = silent,
) -> CopyReport:
    """What there is to say of the copy.

    Args:
        group, node: whose it must be; None: whose it says it is.

    Raises:
        UsageMistake: nobody can read there.
    """
    stated = identity_of(path)
    expected: Identity | None = None
    if stated is not None and (group or node):
        expected = Identity(
            group or stated.broker_group, node or stated.node_id, stated.segment_size_bytes
        )
    judgement = judge(path, expected)
    replica = Replica(stated.node_id if stated and stated.node_id else NAME, str(path))
    audited = audit_replicas([replica], engine, Options(derived=True, is_copy=True), started)
    return CopyReport(judgement, audited.report)


def of_directory(judgement: Judgement) -> Soundness:
    """What the directory's findings say."""
    kinds = {each.kind for each in judgement.findings if each.effect is not Effect.REFUSED}
    refused = {each.kind for each in judgement.of(Effect.REFUSED)}
    if refused - _MISSING or kinds & _NEEDED_WHOLE:
        return Soundness.DAMAGED
    if refused or kinds & _NEEDED or not judgement.starts:
        return Soundness.INCOMPLETE
    return Soundness.SOUND


def of_log(report: Report) -> Soundness:
    """What the log's findings say."""
    match report.verdict:
        case Verdict.IDENTICAL:
            return Soundness.SOUND
        case Verdict.INCOMPLETE:
            return Soundness.INCOMPLETE
        case _:
            return Soundness.DAMAGED


def copy_as_json(report: CopyReport) -> dict[str, object]:
    """The report's facts; see docs/audit.md for each field."""
    judgement = report.judgement
    return {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "exit_code": int(report.exit_code),
        "path": judgement.path,
        "starts": judgement.starts,
        "refusal": judgement.refusal,
        "snapshots": report.snapshots,
        "directory": asdict(judgement.facts),
        "findings": [asdict(each) for each in judgement.findings],
        "findings_left_out": dict(judgement.findings_left_out),
        "log": report_as_json(report.log),
    }
