"""What a verdict speaks of, and what a finding says, in words that terminal and page share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from audit.proof.findings import OF_A_QUEUE, Finding, Verdict
from audit.proof.scope import Believed, Files, Scope
from dledger.terminal.figures import human_bytes

# The colour of a verdict, as the pages' style calls it.
CLASS_OF: Final = {
    Verdict.IDENTICAL: "same",
    Verdict.INCOMPLETE: "lack",
    Verdict.MISPLACED: "place",
    Verdict.BIT_ROT: "rot",
    Verdict.DIVERGENCE: "split",
}


def scope_in_words(scope: Scope) -> str:
    """Which files, up to where; what was left out."""
    if scope.start == scope.end:
        return "nothing was compared, as no replica holds anything"
    to = f"entry {scope.index:,} (byte {scope.end:,})" if scope.index else f"byte {scope.end:,}"
    start = f"from byte {scope.start:,} " if scope.start else ""
    said = f"{scope.files}, {start}up to {to}"
    if scope.files is Files.LOG:
        left_out = "; not ConsumeQueues, running digests, whether they start, snapshots"
        return said + left_out + _belief(scope)
    if scope.derived_index < scope.index:
        said += f", derived files up to entry {scope.derived_index:,}"
    said += "; whether they start, too" if scope.starts else "; not whether they start"
    return f"{said}; snapshots: {scope.snapshots}{_belief(scope)}"


def belief_in_words(believed: Believed) -> str:
    """How much was read now, and how much is believed, since when."""
    since = datetime.fromtimestamp(believed.since, UTC).strftime("%Y-%m-%d %H:%M")
    segments = "1 segment" if believed.segments == 1 else f"{believed.segments} segments"
    return (
        f"{human_bytes(believed.read)} of log read now, {human_bytes(believed.size)} "
        f"({segments}) believed as proved since {since} UTC"
    )


def _belief(scope: Scope) -> str:
    return "" if scope.believed is None else f"; {belief_in_words(scope.believed)}"


def where_in_words(finding: Finding) -> str:
    """From where to where, in its file or in the log, and how much of that."""
    if finding.segment is None or not finding.places:
        return ""
    start, end = finding.start, finding.end
    if finding.count == 1 and len(finding.places) == 1:
        return f"bytes {start - finding.segment:,} to {end - finding.segment:,} of it"
    said = f"bytes {start:,} to {end:,} of the log: {human_bytes(finding.size)}"
    ranges = len(finding.places)
    return said + (f" in {ranges} ranges" if ranges > 1 else "")


def entry_in_words(finding: Finding) -> str:
    """What the entry is whose bytes the finding shows. A unit of a queue is wrong although the
    entry that it stands for may be whole."""
    at = f"at physical offset {finding.entry_offset:,}"
    if finding.cause in OF_A_QUEUE:
        return f"the entry that the first wrong unit stands for, {at}"
    return f"first divergent entry, {at}"


def right_in_words(finding: Finding) -> str:
    """Who holds what was committed, if that can be known."""
    if not finding.right:
        return "which of them is right can't be told" if _is_split(finding) else ""
    verb = "holds" if len(finding.right) == 1 else "hold"
    return f"{' and '.join(finding.right)} {verb} what was committed: {finding.right_by}"


def _is_split(finding: Finding) -> bool:
    return finding.verdict.value == "divergence" and len(finding.replicas) > 1
