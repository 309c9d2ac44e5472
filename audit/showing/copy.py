"""What is said of a cold copy, for a person at a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from audit.proof.copy import CopyReport
from audit.proof.findings import Finding
from dledger.terminal.figures import human_bytes
from store.starting.judgement import DirectoryFacts, DirectoryFinding

WIDTH: Final = 80
SHOWN: Final = 20  # findings of the directory, and of the log
_UNKNOWN: Final = "?"


def copy_lines(report: CopyReport) -> Iterator[str]:
    """The report, line by line."""
    judgement = report.judgement
    yield from _wrapped(judgement.path)
    yield from _facts(judgement.facts)
    findings = judgement.findings
    for finding in findings[:SHOWN]:
        yield ""
        yield from _directory_finding(finding)
    left = len(findings) - SHOWN + sum(count for _, count in judgement.findings_left_out)
    if left > 0:
        yield f"\n... and {left} more findings in the directory"
    for each in report.log.findings[:SHOWN]:
        yield ""
        yield from _log_finding(each)
    if len(report.log.findings) > SHOWN:
        yield f"\n... and {len(report.log.findings) - SHOWN} more in the log (--json has them)"
    yield ""
    yield from _wrapped(_summary(report))


def _facts(facts: DirectoryFacts) -> Iterator[str]:
    size = facts.segment_size_bytes
    rows = (
        ("member", f"{_or_unknown(facts.broker_group)}/{_or_unknown(facts.node_id)}, "
                   f"{_or_unknown(facts.state)}"),
        ("disk", _or_unknown(facts.disk_id)),
        ("term", f"{_or_unknown(facts.term)}, vote for {facts.vote or 'nobody'}; "
                 f"start {_or_unknown(facts.boot_number)}"),
        ("log", f"entries {_or_unknown(facts.first_index)} to {_or_unknown(facts.last_index)}, "
                f"{_or_unknown(facts.end_offset)} bytes in segments of "
                f"{human_bytes(size) if size else _UNKNOWN}"),
        ("durable", f"up to byte {_or_unknown(facts.watermark)}, "
                    f"queues up to entry {_or_unknown(facts.derived_index)}"),
        ("stopped", "cleanly" if facts.stopped_cleanly else "by a kill, or a node runs on it"),
    )  # fmt: skip
    for name, value in rows:
        yield from _wrapped(f"  {name:<9}{value}", indent=11)


def _directory_finding(finding: DirectoryFinding) -> Iterator[str]:
    where = f": {finding.file}" if finding.file else ""
    yield from _wrapped(f"{finding.effect.upper()}: {finding.kind}{where}")
    yield from _wrapped(f"  {finding.detail}", indent=2)


def _log_finding(finding: Finding) -> Iterator[str]:
    yield from _wrapped(f"{finding.verdict.upper()}: {finding.cause}")
    if finding.file:
        yield from _wrapped(f"  {finding.file}, physical offset {finding.start}", indent=2)
    if finding.detail:
        yield from _wrapped(f"  {finding.detail}", indent=2)


def _summary(report: CopyReport) -> str:
    starts = "a node would start on it" if report.judgement.starts else "no node would start on it"
    derived = report.log.derived
    read = ""
    if derived is not None:
        read = (
            f"; {derived.entries} entries, {derived.records} records, {derived.queues} queues, "
            f"{human_bytes(derived.verified_bytes)} read"
        )
    said = f"{report.verdict.upper()}: {starts}{read}; snapshots: {report.snapshots}"
    return f"{said}; {report.log.timings.total_s:.2f} s"


def _or_unknown(value: object) -> str:
    return _UNKNOWN if value is None else str(value)


def _wrapped(text: str, indent: int = 0) -> Iterator[str]:
    """The text in lines of the terminal's width; a word that is longer is cut."""
    yield from textwrap.wrap(text, WIDTH, subsequent_indent=" " * indent, drop_whitespace=True) or [
        ""
    ]
