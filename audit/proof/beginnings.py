"""Where replicas' logs begin, and whether what was before is the same where they begin apart.

Members let the front of the log go at different moments (docs/adr/0043-a-log-that-begins-later.md),
so at any time one's log may begin later than another's, and nothing is wrong. What a log that
begins later says of its past is its start note: index, term and running digest of the entry before
the first. Where another replica holds that entry, and it is that one by all three, both had the
same log up to there; where it is another one, they had not. So replicas that begin apart are
compared over what they share, and by that digest over what they don't (ADR 32).

A node that runs may drop segments while it is audited. Its start is asked for again behind the last
byte that was read: what lies before it isn't missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from audit.engines.engine import Engine
from audit.proof.compare import Comparison
from audit.proof.findings import Cause, Finding
from audit.proof.plan import Plan, is_overtaken
from audit.proof.scan import Item, ItemKind, Scanned, ScanTask, scan_segment
from audit.proof.scope import UNKNOWN_START, Scope
from audit.reading.replica import Replica
from audit.reading.survey import SurveyTask, survey
from dledger.reading.log_start import LogStart
from dledger.reading.survey import Survey

MAX_LOOKS: Final = 4  # at those who hold what is before; each but the first follows a drop


@dataclass(frozen=True, slots=True)
class Beginnings:
    """`accepted` begin later than another, and had the same before; `findings` are what is wrong,
    or isn't known, with others. `plan`: with where all of them began by then."""

    plan: Plan
    accepted: frozenset[str]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Pair:
    """`later` begins behind an entry that `holder` should have."""

    later: Survey
    start: LogStart
    holder: Survey


def as_of_now(plan: Plan, engine: Engine, replicas: Sequence[Replica]) -> Plan:
    """The plan, with logs that begin where they begin by now, if nodes may be at work on them."""
    may_move = {each.replica for each in plan.surveys if not each.problem and each.is_running}
    tasks = [SurveyTask(each) for each in replicas if each.id in may_move]
    if not tasks:
        return plan
    now = {each.replica: each for each in engine.run(survey, tasks)}
    surveys = tuple(_moved(each, now.get(each.replica)) for each in plan.surveys)
    return replace(plan, surveys=surveys)


def _moved(before: Survey, now: Survey | None) -> Survey:
    if now is None or now.problem or now.start is None or now.retained_from <= before.retained_from:
        return before
    kept = tuple(each for each in before.segments if each.base >= now.retained_from)
    return replace(before, retained_from=now.retained_from, start=now.start, segments=kept)


def _claims(plan: Plan) -> list[Survey]:
    """Those that hold any of what is audited."""
    claims = [each for each in plan.surveys if not each.problem and each.end > 0]
    return [each for each in claims if not is_overtaken(each)]


def _first(plan: Plan) -> int:
    """Where the log begins of whoever holds most of it."""
    return min((each.retained_from for each in _claims(plan)), default=0)


def _later(plan: Plan) -> list[Survey]:
    """Those that begin later than another."""
    first = _first(plan)
    return [each for each in _claims(plan) if each.segments and each.retained_from > first]


def compare_beginnings(
    plan: Plan,
    comparison: Comparison,
    scope: Scope,
    engine: Engine,
    replicas: Sequence[Replica],
) -> Beginnings:
    """Who begins later, and whether the others' logs say of the entry before what it says."""
    plan, looked = _look(plan, engine, replicas)
    later = _later(plan)
    same: dict[str, list[str]] = {}
    findings = list(_of_equal_starts(plan))
    for pair, scanned in looked:
        item = _last_item(scanned, pair.start)
        if item is None:
            continue
        if _is_same(item, pair.start):
            same.setdefault(pair.later.replica, []).append(pair.holder.replica)
        elif pair.holder.settled >= pair.start.end_offset:
            findings.append(_different(plan, pair, item))
    compared = comparison.compared_bytes()
    accused = {replica for finding in findings for replica in finding.replicas}
    accepted = frozenset(
        each.replica
        for each in later
        if each.replica in same
        and each.replica not in accused
        and compared[each.replica]
        and each.retained_from < scope.end
    )
    findings += [_retained(plan, each) for each in later if each.replica not in accepted]
    notes = tuple(_note(each, same[each.replica]) for each in later if each.replica in accepted)
    return Beginnings(plan, accepted, tuple(findings), notes)


def _look(
    plan: Plan, engine: Engine, replicas: Sequence[Replica]
) -> tuple[Plan, list[tuple[_Pair, Scanned]]]:
    """What those that claim to hold the entry before another's first have there. One that can't be
    read has been dropped meanwhile, perhaps: then it is looked again, so many times."""
    hosts = {replica.id: replica.host for replica in replicas}
    for _ in range(MAX_LOOKS):
        pairs = list(_pairs(plan))
        tasks = [_task(plan, pair, hosts) for pair in pairs]
        scans = engine.run(scan_segment, tasks) if tasks else []
        now = plan if all(each.whole for each in scans) else as_of_now(plan, engine, replicas)
        if now == plan:
            break
        plan = now
    return plan, list(zip(pairs, scans, strict=True))


def scope_start(plan: Plan, beginnings: Beginnings, start: int) -> int:
    """Where the scope begins: from where on at least two replicas were compared, if all that begin
    later were accepted; else at `start`, as somebody lacks what is there."""
    begins = sorted(each.retained_from for each in _claims(plan))
    later = {each.replica for each in _later(plan)}
    if not begins or not later <= beginnings.accepted:
        return start
    return begins[1] if later else max(start, begins[0])


def _pairs(plan: Plan) -> Iterator[_Pair]:
    """Each that begins later, with each that claims to hold the entry before."""
    for each in _later(plan):
        start = each.start
        if start is None or not start.end_offset:
            continue
        before = start.offset(plan.segment_size) - plan.segment_size
        for other in plan.surveys:
            claims = not other.problem and other.end >= start.end_offset
            if other is not each and claims and other.retained_from <= before:
                yield _Pair(each, start, other)


def _task(plan: Plan, pair: _Pair, hosts: Mapping[str, str | None]) -> ScanTask:
    """Look what the holder has where the entry ends: the last one of its segment."""
    end, holder = pair.start.end_offset, pair.holder
    return ScanTask(
        holder.replica,
        holder.commitlog,
        pair.start.offset(plan.segment_size) - plan.segment_size,
        plan.segment_size,
        ((end - 1, end),),
        hosts.get(holder.replica),
        holder.address,
    )


def _last_item(scanned: Scanned, start: LogStart) -> Item | None:
    """The entry or filler over the byte before the start's end; None where nothing intact is known
    of it, which others tell."""
    items = [each for each in scanned.items if each.start < start.end_offset]
    if not scanned.whole or not items:
        return None
    last = items[-1]
    return last if last.kind in (ItemKind.ENTRY, ItemKind.FILLER) else None


def _is_same(item: Item, start: LogStart) -> bool:
    found = (item.index, item.term, item.digest, item.start + item.size)
    return found == (start.index, start.term, start.digest, start.end_offset)


def _of_equal_starts(plan: Plan) -> Iterator[Finding]:
    """Logs that begin alike behind entries that aren't."""
    known: dict[int, Survey] = {}
    for each in plan.surveys:
        if each.problem or each.start is None or not each.start.end_offset:
            continue
        first = known.setdefault(each.retained_from, each)
        if first.start is not None and _name(first.start) != _name(each.start):
            said = f"{_said(first.start)} by the start note of {first.replica}, "
            said += f"{_said(each.start)} by that of {each.replica}"
            yield Finding(Cause.START_DIFFERS, (first.replica, each.replica), 0, 0, detail=said)


def _name(start: LogStart) -> tuple[int, int, int, int]:
    return start.index, start.term, start.digest, start.end_offset


def _said(start: LogStart) -> str:
    return f"entry {start.index} of term {start.term}, digest {start.digest:016x}"


def _different(plan: Plan, pair: _Pair, item: Item) -> Finding:
    theirs = f"a filler at {item.start}"
    if item.kind is ItemKind.ENTRY:
        theirs = f"entry {item.index} of term {item.term}, digest {item.digest:016x}"
    detail = f"{_said(pair.start)} by the start note of {pair.later.replica}, {theirs} "
    detail += f"in the log of {pair.holder.replica}"
    who = (pair.later.replica, pair.holder.replica)
    return Finding(Cause.START_DIFFERS, who, 0, 0, detail=detail)


def _retained(plan: Plan, each: Survey) -> Finding:
    first = _first(plan)
    detail = f"it begins at {each.retained_from}, another at {first}"
    if each.start is None:
        detail += f", and {UNKNOWN_START}"
    who = (each.replica,)
    return Finding(Cause.RETAINED_LATER, who, first, each.retained_from, detail=detail)


def _note(each: Survey, holders: Sequence[str]) -> str:
    first = each.start.first_index if each.start else 0
    verb = "holds" if len(holders) == 1 else "hold"
    return (
        f"{each.replica}: begins later, with entry {first} (byte {each.retained_from}); "
        f"{' and '.join(holders)} {verb} the one before, with the digest of its start note"
    )
