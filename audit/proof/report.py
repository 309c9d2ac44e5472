"""What an audit reports: values, and their JSON form, which is a contract.

`SCHEMA` names that form; fields are added to it and never change their meaning. Nothing here
knows how it is shown: see `audit.showing.terminal` and `audit.showing.page`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from audit.proof.compare import Comparison
from audit.proof.findings import Finding, Verdict, exit_code, worst
from audit.proof.plan import Plan
from audit.proof.scope import Scope
from dledger.outcome import ExitCode

SCHEMA: Final = "dledger-audit/1"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a replica was looked at. Bytes of the log, physical offsets.

    `settled` of the offsets is known to have committed; `compared_bytes` were compared with at
    least one other replica's.
    """

    replica: str
    path: str
    host: str | None
    start: int
    end: int
    settled: int
    segments: int
    compared_bytes: int
    foreign: tuple[str, ...]
    checkpoint_readable: bool
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class DerivedSummary:
    """What the check of derived files covered, all replicas together."""

    entries: int
    records: int
    queues: int
    verified_bytes: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of each pass, and what they read."""

    survey_s: float
    digest_s: float
    locate_s: float
    derived_s: float
    start_s: float
    total_s: float
    digested_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """One audit. `scope` is what the verdict speaks of. `differing` are ranges of physical offsets
    whose blocks differ somewhere; `not_located`: how many differing blocks nothing more is known
    of, being too many, or gone when they were looked into."""

    engine: str
    group: str | None
    segment_size: int
    block_size: int
    blocks: int
    scope: Scope
    coverage: tuple[Coverage, ...]
    differing: tuple[tuple[int, int], ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    not_located: int
    derived: DerivedSummary | None
    timings: Timings

    @property
    def verdict(self) -> Verdict:
        """The gravest of all findings'."""
        return worst([finding.verdict for finding in self.findings])

    @property
    def exit_code(self) -> ExitCode:
        return exit_code([finding.verdict for finding in self.findings])


@dataclass(frozen=True, slots=True)
class Audit:
    """A report with what it was made of, for who draws the whole map."""

    report: Report
    plan: Plan
    comparison: Comparison


def verdict_of(replica: str, findings: tuple[Finding, ...]) -> Verdict:
    """What the findings say of one replica."""
    return worst([finding.verdict for finding in findings if replica in finding.replicas])


def report_as_json(report: Report) -> dict[str, object]:
    """The report's facts; see docs/audit.md for each field."""
    fields = asdict(report)
    for finding, as_fields in zip(report.findings, fields["findings"], strict=True):
        as_fields["verdict"] = finding.verdict
        as_fields["size"] = finding.size
    return {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "exit_code": int(report.exit_code),
        **fields,
    }
