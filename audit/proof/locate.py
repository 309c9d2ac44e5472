"""The first divergent entry of each differing block, and whose fault it is. Pure.

Takes what the second pass saw in the differing blocks (`audit.proof.scan`) and lays the replicas'
items beside each other. The first place where they differ decides, by what each replica's own
checksums say:

    a replica has there                 it is
    an entry with a bad CRC             bit rot of that replica
    a filler with stray bytes           bit rot of that replica
    an intact entry of another place    misplaced in that replica
    zeros, though it claims more        an old copy in that replica: incomplete
    an intact entry, others too, and    divergence of all of them, unless the terms differ and
      the bytes differ                  one of the replicas doesn't know it committed: then the
                                        entry may be one that never was (Raft §5.3)

The last exception is for copies and dead nodes: a leader cut off from its group keeps entries
that lost an election until it is told. From there on, what that pair holds is not compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from audit.proof.findings import Cause, EntryView, Finding
from audit.proof.plan import Plan, SegmentPlan, holds
from audit.proof.scan import Item, ItemKind, Scanned, ScanTask
from dledger.records.layout import file_name

_FAULT: Final = {
    ItemKind.BROKEN: Cause.BAD_CRC,
    ItemKind.STRAY: Cause.STRAY_FILLER,
    ItemKind.MISPLACED: Cause.WRONG_PLACE,
    ItemKind.ZEROS: Cause.OLD_COPY,
}
_INTACT: Final = frozenset({ItemKind.ENTRY, ItemKind.FILLER})

Views = dict[str, Item | None]  # replica id -> the item that begins at a place, if one does


@dataclass(frozen=True, slots=True)
class Located:
    """`findings` in the log's order. `unsettled_from`: from there on replicas hold different
    entries that are not known to have committed. `vanished`: blocks that differed in the first
    pass and no longer did in the second, as they were being written."""

    findings: tuple[Finding, ...]
    unsettled_from: int | None
    vanished: int


def scan_tasks(
    plan: Plan, blocks: Iterable[tuple[SegmentPlan, int]], hosts: Mapping[str, str | None]
) -> list[ScanTask]:
    """One task a replica for each segment that has some of `blocks`."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for segment, block in blocks:
        edges = segment.edges
        ranges.setdefault(segment.base, []).append((edges[block], edges[block + 1]))
    tasks: list[ScanTask] = []
    for base, wanted in ranges.items():
        for survey in plan.surveys:
            held = tuple(each for each in wanted if holds(survey, *each))
            if held and any(segment.base == base for segment in survey.segments):
                task = ScanTask(
                    survey.replica,
                    survey.commitlog,
                    base,
                    plan.segment_size,
                    held,
                    hosts.get(survey.replica),
                    survey.address,
                )
                tasks.append(task)
    return tasks


def locate(
    plan: Plan, blocks: Sequence[tuple[SegmentPlan, int]], scans: Iterable[Scanned]
) -> Located:
    """The findings of the differing `blocks`, whose order is the log's."""
    by_segment: dict[int, list[Scanned]] = {}
    for scanned in scans:
        by_segment.setdefault(scanned.base, []).append(scanned)
    found: list[Finding] = []
    unsettled_from: int | None = None
    vanished = 0
    for segment, block in blocks:
        start, end = segment.edges[block], segment.edges[block + 1]
        differences = list(_differences(by_segment.get(segment.base, []), start, end))
        vanished += not differences
        guilty: set[str] = set()
        for place in differences:
            here = _judge(plan, segment, (start, end), place, unsettled_from)
            if not here and unsettled_from is None:
                unsettled_from = place[0]
            # The first divergent entry of each replica: what follows it may be its consequence.
            found += [each for each in here if not guilty.issuperset(each.replicas)]
            guilty.update(replica for each in here for replica in each.replicas)
    return Located(tuple(_merge(found)), unsettled_from, vanished)


def _differences(scans: Sequence[Scanned], start: int, end: int) -> Iterator[tuple[int, Views]]:
    """Each place at which items that touch `[start, end)` differ, and the items there."""
    touching = {
        scanned.replica: [
            item for item in scanned.items if item.start < end and item.start + item.size > start
        ]
        for scanned in scans
    }
    held = {replica: items for replica, items in touching.items() if items}
    beginning = {r: {item.start: item for item in items} for r, items in held.items()}
    for place in sorted({place for items in beginning.values() for place in items}):
        views: Views = {
            replica: beginning[replica].get(place) or _damage_over(items, max(place, start))
            for replica, items in held.items()
        }
        seen = {(item.size, item.fingerprint) if item else None for item in views.values()}
        if len(seen) > 1:
            yield place, views


def _damage_over(items: Sequence[Item], place: int) -> Item | None:
    """The damaged item that covers `place` without beginning there."""
    at = bisect_right(items, place, key=lambda item: item.start) - 1
    if at < 0 or items[at].kind in _INTACT or items[at].start + items[at].size <= place:
        return None
    return items[at]


def _judge(
    plan: Plan,
    segment: SegmentPlan,
    block: tuple[int, int],
    place: tuple[int, Views],
    unsettled_from: int | None,
) -> list[Finding]:
    """The faults at a place; none if the difference is one of entries that never committed."""
    at, views = place
    found: list[Finding] = []
    for cause in dict.fromkeys(_FAULT.values()):
        guilty = tuple(
            replica
            for replica, item in views.items()
            if item is not None and _FAULT.get(item.kind) is cause
        )
        if guilty:
            found.append(_finding(plan, segment, block, place, (cause, guilty)))
    intact = {r: item for r, item in views.items() if item is None or item.kind in _INTACT}
    different = {(i.size, i.fingerprint) if i else None for i in intact.values()}
    if len(different) > 1 and not _is_unsettled(plan, at, intact, unsettled_from):
        guilty = tuple(intact)
        found.append(_finding(plan, segment, block, place, (Cause.DIFFERENT_BYTES, guilty)))
    return found


def _is_unsettled(plan: Plan, at: int, intact: Views, unsettled_from: int | None) -> bool:
    """Whether the replicas may rightly differ: not all of them know that this committed, and it
    isn't one entry (index and term) with different bytes, which Raft rules out everywhere."""
    if at < min(plan.survey_of(replica).settled for replica in intact):
        return False
    entries = [i for i in intact.values() if i is not None and i.kind is ItemKind.ENTRY]
    named = {(item.index, item.term) for item in entries}
    bytes_of_name = {(item.index, item.term, item.fingerprint) for item in entries}
    if len(bytes_of_name) > len(named):
        return False
    return (
        unsettled_from is not None
        or len({item.term for item in entries}) > 1
        or (len(entries) < len(intact))
    )


def _finding(
    plan: Plan,
    segment: SegmentPlan,
    block: tuple[int, int],
    place: tuple[int, Views],
    fault: tuple[Cause, tuple[str, ...]],
) -> Finding:
    at, views = place
    cause, guilty = fault
    first = views[guilty[0]]
    return Finding(
        cause,
        guilty,
        block[0],
        block[1],
        segment=segment.base,
        entry_offset=at,
        views=tuple(_view(replica, item) for replica, item in views.items()),
        file=f"{plan.survey_of(guilty[0]).commitlog}/{file_name(segment.base)}",
        detail=first.detail if first else "",
    )


def _view(replica: str, item: Item | None) -> EntryView:
    if item is None:
        return EntryView(replica, "absent", crc_valid=False)
    valid = item.kind in (ItemKind.ENTRY, ItemKind.MISPLACED)
    if not item.index:
        return EntryView(replica, item.kind, crc_valid=item.kind in _INTACT, detail=item.detail)
    has_records = item.queue_offset is not None
    return EntryView(
        replica,
        item.kind,
        valid,
        item.index,
        item.term,
        item.topic,
        item.queue_id if has_records else None,
        item.queue_offset,
        item.detail,
    )


def _merge(found: list[Finding]) -> list[Finding]:
    """One finding for blocks in a row that fail by one entry, or as one old copy or misplaced
    file."""
    merged: list[Finding] = []
    for each in found:
        last = next((m for m in reversed(merged) if _continues(m, each)), None)
        if last is None:
            merged.append(each)
            continue
        merged[merged.index(last)] = Finding(
            last.cause,
            last.replicas,
            last.start,
            max(last.end, each.end),
            last.segment,
            last.entry_offset,
            last.views,
            last.file,
            last.detail,
        )
    return merged


def _continues(last: Finding, each: Finding) -> bool:
    if (last.cause, last.replicas, last.segment) != (each.cause, each.replicas, each.segment):
        return False
    if last.entry_offset == each.entry_offset:
        return True
    return last.end == each.start and each.cause in (Cause.OLD_COPY, Cause.WRONG_PLACE)
