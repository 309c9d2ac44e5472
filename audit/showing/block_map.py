"""The state of each block of each replica: what the map in the HTML report shows. Pure.

States are the verdicts, and what a verdict can't say of a block: that nobody could be asked, that
the replica never claimed it, that replicas differ in it and nobody looked further. Where a log has
more blocks than a picture has room for, neighbours share a cell, which shows the gravest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from audit.proof.compare import BlockRow, Comparison
from audit.proof.findings import Cause, Finding, Verdict
from audit.proof.plan import Plan, holds

MAX_COLUMNS: Final = 64  # Cells a segment.
MAX_STRIPS: Final = 240  # Segments a map; more than that share a strip.


class State(IntEnum):
    """Of a cell; a higher one hides a lower one."""

    NOT_CLAIMED = 0
    IDENTICAL = 1
    ALONE = 2  # no other replica has it
    INCOMPLETE = 3
    DIFFERS = 4  # from another's, and nobody looked why
    MISPLACED = 5
    BIT_ROT = 6
    DIVERGENCE = 7


STATE_OF: Final = {
    Verdict.IDENTICAL: State.IDENTICAL,
    Verdict.INCOMPLETE: State.INCOMPLETE,
    Verdict.MISPLACED: State.MISPLACED,
    Verdict.BIT_ROT: State.BIT_ROT,
    Verdict.DIVERGENCE: State.DIVERGENCE,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """Bytes `[start, end)` of the log on one replica."""

    start: int
    end: int
    state: State


@dataclass(frozen=True, slots=True)
class Strip:
    """A stretch of the log, usually a segment: one row of cells a replica."""

    start: int
    end: int
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]

    @property
    def worst(self) -> State:
        return max(cell.state for _, cells in self.rows for cell in cells)


def draw_map(plan: Plan, comparison: Comparison, findings: Sequence[Finding]) -> list[Strip]:
    """The strips, in the log's order."""
    placed = [
        finding
        for finding in findings
        if finding.segment is not None and finding.cause is not Cause.NOT_LOCATED
    ]
    per_strip = -(-len(comparison.rows) // MAX_STRIPS) or 1
    return [
        _strip(plan, comparison, comparison.rows[first : first + per_strip], placed)
        for first in range(0, len(comparison.rows), per_strip)
    ]


def _strip(
    plan: Plan, comparison: Comparison, rows: Sequence[BlockRow], findings: Sequence[Finding]
) -> Strip:
    drawn = []
    for number, replica in enumerate(comparison.replicas):
        cells = [cell for row in rows for cell in _cells(plan, row, number, findings)]
        drawn.append((replica, tuple(_merged(cells, MAX_COLUMNS))))
    return Strip(rows[0].segment.edges[0], rows[-1].segment.edges[-1], tuple(drawn))


def _cells(plan: Plan, row: BlockRow, number: int, findings: Sequence[Finding]) -> list[Cell]:
    survey = plan.surveys[number]
    first, last = row.segment.edges[0], row.segment.edges[-1]
    here = [finding for finding in findings if _touches(finding, first, last)]
    replica = survey.replica
    present, compared = row.present[number], row.compared()[number]
    differing = row.differing()
    cells = []
    for block in range(len(present)):
        start, end = row.segment.edges[block], row.segment.edges[block + 1]
        faults = [finding for finding in here if _touches(finding, start, end)]
        own = [STATE_OF[f.verdict] for f in faults if replica in f.replicas]
        if own:
            state = max(own)
        elif not present[block]:
            state = State.INCOMPLETE if holds(survey, start, end) else State.NOT_CLAIMED
        elif differing[block] and not faults:
            state = State.DIFFERS
        else:
            state = State.IDENTICAL if compared[block] else State.ALONE
        cells.append(Cell(start, end, state))
    return cells


def _touches(finding: Finding, start: int, end: int) -> bool:
    if finding.start >= end or finding.end <= start:
        return False
    return any(first < end and last > start for first, last in finding.places)


def _merged(cells: list[Cell], columns: int) -> list[Cell]:
    """At most `columns` cells, each as grave as the gravest it stands for."""
    step = -(-len(cells) // columns) or 1
    groups = [cells[first : first + step] for first in range(0, len(cells), step)]
    return [Cell(g[0].start, g[-1].end, max(cell.state for cell in g)) for g in groups]
