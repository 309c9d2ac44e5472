"""The first divergent entry of each differing block, and whose fault it is. Pure.

Takes what the second pass saw in the differing blocks (`audit.proof.scan`) and lays the replicas'
items beside each other. The first place where they differ decides, by what each replica's own
checksums say:

    a replica has there                 it is
    an entry with a bad CRC             bit rot of that replica
    a filler with stray bytes           bit rot of that replica
    an intact entry of another place    misplaced in that replica
    zeros, though it claims more        an old copy in that replica: incomplete
    an intact entry, others too, and    divergence of all of them, unless the terms differ: those
      the bytes differ                  that don't know it to have committed may hold one that
                                        never did (Raft §5.3); and unless a recovery by force lies
                                        between them: those of before are of another epoch (ADR 52)

A recovery shows itself by the terms behind it, which are far above all before. The exception for
what isn't known to have committed is for copies and dead nodes: a leader cut off from its group
keeps entries that lost an election until it is told. Within the audit's scope such a replica is
incomplete, as what it should hold can't be compared; from there on it is left out, and the others
are not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from audit.proof.findings import Cause, EntryView, Finding
from audit.proof.merging import BREAKS, merged
from audit.proof.plan import Plan, SegmentPlan, holds
from audit.proof.scan import Item, ItemKind, Scanned, ScanTask
from dledger.reading.entry import EPOCH_TERM_GAP
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
    entries that are not known to have committed. `vanished`: blocks that
    differed in the first pass and showed no difference in the second: they were being written, or
    repaired, or nobody knows why. `unread`: blocks that couldn't be read whole a second time."""

    findings: tuple[Finding, ...]
    unsettled_from: int | None
    vanished: tuple[tuple[SegmentPlan, int], ...]
    unread: tuple[tuple[SegmentPlan, int], ...]


@dataclass(frozen=True, slots=True)
class _Block:
    """A block that differs, and what was seen in its segment."""

    segment: SegmentPlan
    number: int
    scans: tuple[Scanned, ...]

    @property
    def start(self) -> int:
        return self.segment.edges[self.number]

    @property
    def end(self) -> int:
        return self.segment.edges[self.number + 1]


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
    plan: Plan,
    blocks: Sequence[tuple[SegmentPlan, int]],
    scans: Iterable[Scanned],
    scope_end: int,
) -> Located:
    """The findings of the differing `blocks`, whose order is the log's.

    Args:
        scope_end: physical offset; behind it entries may rightly differ that never committed.
    """
    by_segment: dict[int, list[Scanned]] = {}
    for scanned in scans:
        by_segment.setdefault(scanned.base, []).append(scanned)
    judge = _Judge(plan, scope_end)
    vanished, unread = [], []
    for segment, number in blocks:
        block = _Block(segment, number, tuple(by_segment.get(segment.base, ())))
        places = list(_differences(block.scans, block.start, block.end))
        judge.block(block, places)
        if not all(scanned.whole for scanned in block.scans):
            unread.append((segment, number))
        elif not places:
            vanished.append((segment, number))
    return Located(tuple(merged(judge.found)), judge.unsettled_from, tuple(vanished), tuple(unread))


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


class _Judge:
    """Decides of place after place whose fault it is. A replica found to hold entries that it
    doesn't know to have committed is left out from there on; the others are still compared."""

    def __init__(self, plan: Plan, scope_end: int) -> None:
        self.found: list[Finding] = []
        self.unsettled_from: int | None = None
        self._plan = plan
        self._scope_end = scope_end
        self._left_out: dict[str, None] = {}

    def block(self, block: _Block, places: Iterable[tuple[int, Views]]) -> None:
        """The first fault of each replica in a block: what follows it may be its consequence."""
        guilty: set[str] = set()
        for place in places:
            here = list(self._place(block, place))
            self.found += [each for each in here if not guilty.issuperset(each.replicas)]
            guilty.update(replica for each in here for replica in each.replicas)

    def _place(self, block: _Block, place: tuple[int, Views]) -> Iterator[Finding]:
        at, views = place
        for cause in dict.fromkeys(_FAULT.values()):
            guilty = tuple(
                replica
                for replica, item in views.items()
                if item is not None and _FAULT.get(item.kind) is cause
            )
            if guilty:
                yield self._finding(block, place, cause, guilty)
        intact = {
            replica: item
            for replica, item in views.items()
            if replica not in self._left_out and (item is None or item.kind in _INTACT)
        }
        if not _differ(intact):
            return
        given_up = _of_before(block.scans, intact)
        if given_up:
            self._left_out.update(dict.fromkeys(given_up))
            yield self._finding(block, place, Cause.ANOTHER_EPOCH, given_up)
            intact = {r: item for r, item in intact.items() if r not in self._left_out}
            if not _differ(intact):
                return
        unsettled = self._unsettled(at, intact)
        if unsettled:
            self._left_out.update(dict.fromkeys(unsettled))
            if self.unsettled_from is None:
                self.unsettled_from = at
            if at < self._scope_end:
                yield self._finding(block, place, Cause.NOT_COMMITTED, unsettled)
            intact = {r: item for r, item in intact.items() if r not in self._left_out}
        if _differ(intact):
            yield self._divergence(block, place, intact)

    def _unsettled(self, at: int, intact: Views) -> tuple[str, ...]:
        """Those that may rightly differ: they don't know that this committed, and it isn't one
        entry (index and term) with different bytes, which Raft rules out everywhere."""
        unsettled = tuple(r for r in intact if at >= self._plan.survey_of(r).settled)
        entries = [i for i in intact.values() if i is not None and i.kind is ItemKind.ENTRY]
        named = {(item.index, item.term) for item in entries}
        bytes_of_name = {(item.index, item.term, item.fingerprint) for item in entries}
        if len(bytes_of_name) > len(named):
            return ()
        may_differ = len({item.term for item in entries}) > 1 or len(entries) < len(intact)
        return unsettled if may_differ else ()

    def _divergence(self, block: _Block, place: tuple[int, Views], intact: Views) -> Finding:
        found = self._finding(block, place, Cause.DIFFERENT_BYTES, tuple(intact))
        right, right_by = who_is_right(block.scans, place[0], intact, len(self._plan.surveys))
        return replace(found, right=right, right_by=right_by)

    def _finding(
        self,
        block: _Block,
        place: tuple[int, Views],
        cause: Cause,
        guilty: tuple[str, ...],
    ) -> Finding:
        at, views = place
        first = views[guilty[0]]
        commitlog = self._plan.survey_of(guilty[0]).commitlog
        return Finding(
            cause,
            guilty,
            block.start,
            block.end,
            segment=block.segment.base,
            entry_offset=at,
            views=tuple(_view(replica, item) for replica, item in views.items()),
            file=f"{commitlog}/{file_name(block.segment.base)}",
            detail=first.detail if first else "",
        )


def _of_before(scans: Iterable[Scanned], intact: Views) -> tuple[str, ...]:
    """Those of `intact` that a recovery by force has given up: another one's terms, in the same
    segment, are far above theirs. What such a recovery writes continues the log, and terms never
    go back after it: one altered term among others is no epoch."""
    mine = [scanned for scanned in scans if scanned.replica in intact]
    newest = {scanned.replica: max(_terms(scanned), default=0) for scanned in mine}
    highest = max((newest[each.replica] for each in mine if _is_leaders_work(each)), default=0)
    return tuple(r for r, term in newest.items() if highest - term >= EPOCH_TERM_GAP)


def _terms(scanned: Scanned) -> list[int]:
    return [item.term for item in scanned.items if item.kind is ItemKind.ENTRY]


def _is_leaders_work(scanned: Scanned) -> bool:
    """Whether leaders may have written its entries, by their order and what they continue."""
    terms = _terms(scanned)
    is_ascending = all(a <= b for a, b in pairwise(terms))
    return is_ascending and all(item.continues is not False for item in scanned.items)


def who_is_right(
    scans: Iterable[Scanned], at: int, intact: Views, replicas: int
) -> tuple[tuple[str, ...], str]:
    """Those of `intact`, which hold different entries at `at`, that hold what was committed, and
    how that is known; nobody if it isn't.

    Args:
        scans: of the segment.
        replicas: how many there are, those that can't be read included.
    """
    broken = {
        scanned.replica
        for scanned in scans
        if any(item.continues is False and item.start >= at for item in scanned.items)
    }
    camps: dict[tuple[int, int] | None, list[str]] = {}
    for replica, item in intact.items():
        camps.setdefault((item.size, item.fingerprint) if item else None, []).append(replica)
    whole = [camp for print_, camp in camps.items() if print_ and broken.isdisjoint(camp)]
    if broken and len(whole) == 1:
        return tuple(whole[0]), BREAKS
    most = max(camps.values(), key=len)
    if 2 * len(most) > replicas and broken.isdisjoint(most):
        return tuple(most), "a majority agrees"
    return (), ""


def _differ(views: Views) -> bool:
    return len({(item.size, item.fingerprint) if item else None for item in views.values()}) > 1


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
