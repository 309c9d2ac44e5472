"""What a verdict speaks of: which files, from where, up to which entry. Pure.

A verdict that says that replicas are equal is worth what its scope says (ADR 32). The scope ends at
what is committed, as far as any replica knows; a node that runs and is behind moves the end. What
lies within it and wasn't compared is a finding, which is made here where the surveys alone show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from audit.proof.compare import Comparison
from audit.proof.findings import Cause, Finding
from audit.proof.merging import merged_ranges
from audit.proof.plan import Plan, SegmentPlan, is_overtaken
from dledger.reading.survey import Survey

MAX_UNLISTED: Final = 10  # folders of queues that are named, of each replica
UNKNOWN_START: Final = "nothing tells what its first entry has to continue"


class Files(StrEnum):
    """What is compared."""

    LOG = "log"
    ALL = "log and derived files"


class Snapshots(StrEnum):
    """What was asked of the snapshots of state: what they hold is nobody's to compare here, as only
    the broker can make a state of a log."""

    UNREAD = "not read"
    SUMS = "sums only"  # each is whole, of its disk and its log


@dataclass(frozen=True, slots=True)
class Believed:
    """What of the scope wasn't read now, because it was proved before and nothing tells that it has
    changed (ADR 35): `segments`, replica by replica, of `size` bytes together; `read` bytes of log
    were read. `since`: when that was proved which was proved first, seconds since the epoch."""

    segments: int
    size: int
    read: int
    since: float


@dataclass(frozen=True, slots=True)
class Scope:
    """What was to be compared: of the log the bytes `[start, end)`, physical offsets, and of
    `files` what is derived from them. `index`: the last entry below `end`; 0 if nobody knows it.
    `derived_index`: up to there the derived files; nodes that run may be behind with them.
    `starts`: whether those that don't run would start was asked as well; `snapshots`: what was
    asked of theirs, which are no derived files. `believed`: None if all of it was read now."""

    files: Files
    start: int
    end: int
    index: int
    derived_index: int
    starts: bool = False
    snapshots: Snapshots = Snapshots.UNREAD
    believed: Believed | None = None


def scope_of(surveys: Sequence[Survey], files: Files, *, accept_retention: bool) -> Scope:
    """What is to be compared; empty where no replica claims anything."""
    claims = [each for each in surveys if not each.problem and each.end > 0]
    if not claims:
        return Scope(files, 0, 0, 0, 0)
    begins = sorted(each.retained_from for each in claims if not is_overtaken(each)) or [0]
    start = begins[1] if accept_retention and len(begins) > 1 else begins[0]
    known = [each for each in claims if each.settled_index]
    furthest = max(known, key=lambda each: (each.settled, each.settled_index), default=None)
    if furthest is None:
        end, index = min(each.end for each in claims), 0
    else:
        end, index = furthest.settled, furthest.settled_index
    for each in claims:
        if each.answered and each.settled < end:
            end, index = each.settled, each.settled_index
    with_queues = files is Files.ALL and not all(each.is_backup for each in claims)
    running = [each.derived_index for each in claims if each.answered]
    derived_index = min([index, *running]) if with_queues else 0
    return Scope(files, start, max(start, end), index, derived_index)


def committed_index(surveys: Sequence[Survey]) -> int:
    """The last entry that any replica knows to have committed."""
    return max((each.settled_index for each in surveys if not each.problem), default=0)


def scope_findings(plan: Plan, scope: Scope) -> list[Finding]:
    """What lies in the scope and couldn't be compared, as the surveys show."""
    claims = [each for each in plan.surveys if not each.problem and each.end > 0]
    found = []
    if len(claims) == 1 and len(plan.surveys) == 1:
        detail = "compared with itself: CRCs, running digests, ConsumeQueues"
        found.append(
            Finding(Cause.ALONE, (claims[0].replica,), scope.start, scope.end, detail=detail)
        )
    if scope.files is Files.ALL:
        found += [
            Finding(Cause.CHECKPOINT_LOST, (each.replica,), 0, 0, detail=_what_is_unknown(each))
            for each in plan.surveys
            if not each.problem and each.segments and not each.checkpoint_readable
        ]
        found += [
            Finding(Cause.START_UNKNOWN, (each.replica,), 0, 0, detail=UNKNOWN_START)
            for each in plan.surveys
            if not each.problem and each.segments and each.start is None
        ]
        found += [
            Finding(Cause.QUEUE_UNREADABLE, (each.replica,), 0, 0, detail=folder)
            for each in plan.surveys
            for folder in _told_of(each.unlisted)
        ]
    return found


def not_located(
    plan: Plan, comparison: Comparison, blocks: Sequence[tuple[SegmentPlan, int]]
) -> list[Finding]:
    """One finding for differing blocks that nobody could say more of."""
    if not blocks:
        return []
    rows = {row.segment.base: row for row in comparison.rows}
    ranges = tuple((segment.edges[at], segment.edges[at + 1]) for segment, at in blocks)
    present = {
        survey.replica
        for number, survey in enumerate(plan.surveys)
        if any(rows[segment.base].present[number, at] for segment, at in blocks)
    }
    first = blocks[0][0].base
    detail = f"{len(blocks)} blocks differ between replicas, and nothing is said of them"
    return [
        Finding(
            Cause.NOT_LOCATED,
            tuple(each.replica for each in plan.surveys if each.replica in present),
            ranges[0][0],
            ranges[-1][1],
            segment=first,
            detail=detail,
            count=len(blocks),
            ranges=merged_ranges(ranges),
        )
    ]


def _what_is_unknown(survey: Survey) -> str:
    return (
        f"nobody knows what it had durable; its log is taken to end at {survey.end}"
        if not survey.answered
        else "how far its ConsumeQueues are isn't known"
    )


def _told_of(folders: Sequence[str]) -> list[str]:
    """So many by name, and how many more there are."""
    more = len(folders) - MAX_UNLISTED
    return [*folders[:MAX_UNLISTED], *([f"{more} more folders"] if more > 0 else [])]
