"""Comparing digests by place: which blocks differ, which no two replicas have, who lacks what.

Pure. A digest that is absent says nothing about its block; only digests that are there are
compared. This finds *that* bytes differ; what differs, and whose fault it is, is
`audit.proof.locate`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np
import numpy.typing as npt

from audit.proof.digest import FileProblem, PartDigests
from audit.proof.findings import Cause, Finding
from audit.proof.merging import merged
from audit.proof.plan import Plan, SegmentPlan, is_overtaken
from dledger.reading.files import printable
from dledger.records.layout import file_name

_CAUSE = {
    FileProblem.MISSING: Cause.MISSING_SEGMENT,
    FileProblem.TRUNCATED: Cause.TRUNCATED_SEGMENT,
    FileProblem.UNREADABLE: Cause.UNREADABLE_SEGMENT,
}


@dataclass(frozen=True, slots=True)
class BlockRow:
    """The digests of one segment: `digests[r, b]` of replica r and block b, where `present`."""

    segment: SegmentPlan
    digests: npt.NDArray[np.uint64]
    present: npt.NDArray[np.bool_]

    def differing(self) -> npt.NDArray[np.bool_]:
        """Per block, whether two replicas that have it differ."""
        low = np.where(self.present, self.digests, np.iinfo(np.uint64).max).min(axis=0)
        high = np.where(self.present, self.digests, 0).max(axis=0)
        differ: npt.NDArray[np.bool_] = (self.present.sum(axis=0) > 1) & (low != high)
        return differ

    def camps(self) -> npt.NDArray[np.int64]:
        """Per replica and block, the first replica that has the same digest; -1 without one."""
        same = (self.digests[:, None, :] == self.digests[None, :, :]) & self.present[None, :, :]
        first: npt.NDArray[np.int64] = np.where(self.present, same.argmax(axis=1), -1)
        return first

    def compared(self) -> npt.NDArray[np.bool_]:
        """Per replica and block, whether it was compared with another replica's."""
        shared: npt.NDArray[np.bool_] = self.present & (self.present.sum(axis=0) > 1)
        return shared

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each block."""
        edges = np.array(self.segment.edges, dtype=np.int64)
        return edges[1:] - edges[:-1]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All segments' rows; the replicas are in the order of the plan's surveys."""

    replicas: tuple[str, ...]
    rows: tuple[BlockRow, ...]

    def differing_blocks(self) -> list[tuple[SegmentPlan, int]]:
        """`(segment, block number)` of every block that differs, in the log's order."""
        return [
            (row.segment, int(block))
            for row in self.rows
            for block in np.flatnonzero(row.differing())
        ]

    def some_of_each_kind(self, most: int) -> list[tuple[SegmentPlan, int]]:
        """So many differing blocks at most, in the log's order. Blocks in which the same replicas
        agree with each other are of one kind, and of each kind as many are chosen, as far as there
        are: rot that one replica is full of must not keep from sight that two others differ."""
        of_kind: Counter[tuple[int, ...]] = Counter()
        ranked: list[tuple[int, int, tuple[SegmentPlan, int]]] = []
        for row in self.rows:
            numbers = np.flatnonzero(row.differing())
            kinds = row.camps()[:, numbers].T.tolist()
            for block, kind in zip(numbers.tolist(), map(tuple, kinds), strict=True):
                ranked.append((of_kind[kind], len(ranked), (row.segment, block)))
                of_kind[kind] += 1
        chosen = nsmallest(most, ranked, key=lambda each: each[:2])
        return [block for _, _, block in sorted(chosen, key=lambda each: each[1])]

    def digests_upto(self, replica: str, base: int, end: int) -> bytes | None:
        """The digests of all bytes `[base, end)` of the segment that begins at `base`: replicas of
        which they are equal hold the same bytes there. None if some of them weren't compared."""
        row = next((each for each in self.rows if each.segment.base == base), None)
        edges = row.segment.edges if row is not None else ()
        if row is None or edges[0] != base or end not in edges:
            return None
        number, blocks = self.replicas.index(replica), edges.index(end)
        if not row.present[number, :blocks].all():
            return None
        return row.digests[number, :blocks].tobytes()

    def compared_bytes(self) -> dict[str, int]:
        """How much of each replica was compared with another's."""
        totals = np.zeros(len(self.replicas), dtype=np.int64)
        for row in self.rows:
            totals += (row.compared() * row.sizes()).sum(axis=1)
        return dict(zip(self.replicas, totals.tolist(), strict=True))


def compare(plan: Plan, parts: Iterable[PartDigests]) -> Comparison:
    """The digests, put where they belong."""
    replicas = tuple(survey.replica for survey in plan.surveys)
    order = {replica: number for number, replica in enumerate(replicas)}
    rows = {segment.base: _empty_row(segment, len(replicas)) for segment in plan.segments}
    for part in parts:
        row, values = rows[part.base], part.values()
        blocks = slice(part.first_block, part.first_block + len(values))
        row.digests[order[part.replica], blocks] = values
        row.present[order[part.replica], blocks] = True
    return Comparison(replicas, tuple(rows[segment.base] for segment in plan.segments))


def file_findings(plan: Plan, parts: Iterable[PartDigests]) -> list[Finding]:
    """What could not be read though its replica claims it; one finding for segments in a row. A
    replica that has none at all is told by its survey."""
    found: dict[tuple[str, int], Finding] = {}
    for part in parts:
        if part.problem is None or (part.replica, part.base) in found:
            continue
        survey = plan.survey_of(part.replica)
        # What a drop took while it was read isn't missing.
        if not survey.segments or part.base + plan.segment_size <= survey.retained_from:
            continue
        found[(part.replica, part.base)] = Finding(
            _CAUSE[part.problem],
            (part.replica,),
            part.readable,
            min(part.base + plan.segment_size, survey.end),
            segment=part.base,
            file=f"{survey.commitlog}/{file_name(part.base)}",
            detail=part.detail,
        )
    return merged(found.values())


def shared_findings(plan: Plan, parts: Iterable[PartDigests]) -> list[Finding]:
    """Segments of several replicas that are one file, whichever paths lead there: it was compared
    with itself. A task of one replica may have read another's, on a machine where that lies."""
    owners: dict[str, tuple[int, set[str]]] = {}
    for survey in plan.surveys:
        for each in survey.segments:
            owners.setdefault(each.file, (each.base, set()))[1].add(survey.replica)
    for part in parts:
        owners.setdefault(part.file, (part.base, set()))[1].add(part.replica)
    owners.pop("", None)
    shared: dict[tuple[str, ...], list[int]] = {}
    for base, whose in owners.values():
        if len(whose) > 1:
            shared.setdefault(tuple(sorted(whose)), []).append(base)
    found = []
    for replicas, bases in sorted(shared.items()):
        more = f" and {len(bases) - 1} more" if len(bases) > 1 else ""
        detail = f"{file_name(min(bases))}{more}: one file of the disk, under several names"
        count = len(bases)
        found.append(Finding(Cause.SHARED_FILE, replicas, 0, 0, detail=detail, count=count))
    return found + _copies(plan, {replica for replicas in shared for replica in replicas})


def _copies(plan: Plan, told: set[str]) -> list[Finding]:
    """Replicas that say that they are one disk, though their files are not: that a member agrees
    with what was copied of it says nothing of another one. `told`: who shares files anyway."""
    disks: dict[str, list[str]] = {}
    for survey in plan.surveys:
        if survey.disk and survey.replica not in told:
            disks.setdefault(survey.disk, []).append(survey.replica)
    return [
        Finding(
            Cause.SAME_DISK,
            tuple(sorted(replicas)),
            0,
            0,
            detail=f"disk {printable(disk)}: what agrees there is one member with itself",
        )
        for disk, replicas in sorted(disks.items())
        if len(replicas) > 1
    ]


def survey_findings(plan: Plan) -> list[Finding]:
    """What the surveys alone show: replicas that can't be read, hold nothing, or end too early."""
    found: list[Finding] = []
    committed = max((survey.settled for survey in plan.surveys), default=0)
    for survey in plan.surveys:
        who = (survey.replica,)
        if survey.problem:
            cause = Cause.UNREACHABLE_NODE if survey.silent else Cause.UNREADABLE_REPLICA
            found.append(_finding(cause, who, 0, 0, survey.problem))
        elif is_overtaken(survey):
            detail = f"it was to be audited up to {survey.end}, and begins at "
            detail += f"{survey.retained_from} by now: a snapshot was installed, or retention "
            detail += "went on, while it was audited. Audit it again"
            start = min(plan.start, survey.end)
            found.append(_finding(Cause.OVERTAKEN, who, start, survey.end, detail))
        elif not survey.segments:
            found.append(_finding(Cause.EMPTY_REPLICA, who, 0, plan.end, survey.commitlog))
        elif survey.end < committed and not survey.answered:
            detail = f"it ends at {survey.end}, {committed} is committed"
            found.append(_finding(Cause.SHORTER, who, survey.end, committed, detail))
    return found


def _finding(cause: Cause, who: tuple[str, ...], start: int, end: int, detail: str) -> Finding:
    return Finding(cause, who, start, end, detail=detail)


def _empty_row(segment: SegmentPlan, replicas: int) -> BlockRow:
    shape = (replicas, len(segment.edges) - 1)
    return BlockRow(segment, np.zeros(shape, dtype=np.uint64), np.zeros(shape, dtype=np.bool_))
