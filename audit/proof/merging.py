"""Findings put together: one fault is one finding, however many blocks, entries or passes show it.

Pure. A finding keeps where it begins and what was seen there first; it gains ranges and a count, so
nothing is lost but repetition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from audit.proof.findings import Cause, Finding

MAX_RANGES: Final = 1000  # A finding names so many; the last one takes what follows.
# Whatever lies between: one replica's history left the others' at the first of these.
_ONE_STORY: Final = frozenset(
    {Cause.DIFFERENT_BYTES, Cause.NOT_COMMITTED, Cause.ANOTHER_EPOCH, Cause.POSITION_DIGEST}
)


_CONSEQUENCES: Final = frozenset({Cause.DIGEST_BROKEN, Cause.NO_LEADERS, Cause.RECORDS_LIE})


BREAKS: Final = "the others' running digests break"


def merged(found: Iterable[Finding]) -> list[Finding]:
    """One finding for blocks or files in a row that fail alike, and for all blocks in which the
    same replicas diverge. `found` is in the log's order, and so is what comes out."""
    kept: list[Finding] = []
    for each in found:
        at = next((n for n in reversed(range(len(kept))) if _continues(kept[n], each)), None)
        if at is None:
            kept.append(each)
        else:
            kept[at] = joined(kept[at], each)
    return kept


def joined(one: Finding, other: Finding) -> Finding:
    """Both as one, told as the first of them."""
    ranges = merged_ranges([*one.places, *other.places])
    same = one.entry_offset is not None and one.entry_offset == other.entry_offset
    return replace(
        one,
        start=ranges[0][0] if ranges else one.start,
        end=ranges[-1][1] if ranges else one.end,
        ranges=ranges if len(ranges) > 1 else (),
        count=max(one.count, other.count) if same else one.count + other.count,
        right=one.right if one.right == other.right else one.right or other.right,
        right_by=one.right_by or other.right_by,
    )


def merged_ranges(
    ranges: Iterable[tuple[int, int]], most: int = MAX_RANGES
) -> tuple[tuple[int, int], ...]:
    """The same bytes, ascending and apart; so many ranges at most."""
    kept: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if kept and (start <= kept[-1][1] or len(kept) == most):
            kept[-1] = kept[-1][0], max(kept[-1][1], end)
        else:
            kept.append((start, end))
    return tuple(kept)


def with_second_look(known: Iterable[Finding], more: Iterable[Finding]) -> list[Finding]:
    """What a second look found beside what the first one had: the same fault again, and what
    follows from a divergence, are counted in where they belong. None is graver than what it is
    counted in."""
    kept, fresh = list(known), []
    for each in more:
        at = next((n for n, finding in enumerate(kept) if _tells(finding, each)), None)
        if at is None:
            fresh.append(each)
        else:
            kept[at] = _with(kept[at], each)
    return kept + fresh


def _continues(last: Finding, each: Finding) -> bool:
    if (last.cause, last.replicas) != (each.cause, each.replicas):
        return False
    if each.cause in _ONE_STORY:
        return True
    if not each.views:  # Files that are gone, or short.
        return bool(each.places) and last.end == each.start
    if last.segment != each.segment:
        return False
    return last.entry_offset == each.entry_offset or last.end >= each.start


def _tells(known: Finding, each: Finding) -> bool:
    if not set(each.replicas) <= set(known.replicas) or not each.places or not known.places:
        return False
    if known.cause is Cause.DIFFERENT_BYTES and each.cause in _CONSEQUENCES:
        return each.start >= known.start
    return known.cause is each.cause and (
        known.entry_offset == each.entry_offset or _overlap(known, each)
    )


def _overlap(one: Finding, other: Finding) -> bool:
    return any(
        start < other_end and end > other_start
        for start, end in one.places
        for other_start, other_end in other.places
    )


def _with(known: Finding, each: Finding) -> Finding:
    """`known`, of which `each` is a part. Whose own digests break isn't right."""
    if known.cause is not each.cause:
        others = tuple(r for r in known.replicas if r not in each.replicas)
        breaks = each.cause is Cause.DIGEST_BROKEN and len(others) == 1
        if breaks and known.right_by != BREAKS:
            return replace(known, right=others, right_by=BREAKS)
        is_right = not set(each.replicas).isdisjoint(known.right)
        return replace(known, right=(), right_by="") if is_right else known
    if known.entry_offset == each.entry_offset:
        return replace(known, count=max(known.count, each.count))
    return replace(known, count=known.count + each.count)
