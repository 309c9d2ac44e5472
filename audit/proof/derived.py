"""Derived files against the log they come from: running digests and ConsumeQueues, per replica.

Every replica is checked against *its own* log, so this finds what comparing replicas can't: all
of them wrong in the same way, and derived files, which needn't be compared as they are a function
of the log (ADR 7). IndexFiles and snapshots will have their place here.

Two rounds of tasks: each segment from end to end (`audit.proof.reading`), then, together, the seams
between segments and the ends of the queues (`audit.proof.queue_ends`), which only the whole log
knows.
Deletions of topics are known before a fault of a queue is counted.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from audit.engines.engine import Engine, PassStarted
from audit.proof.chain import (
    Chain,
    ChainTask,
    Fault,
    ReadTask,
    SeamTask,
    SeenUnit,
    broken_fault,
    check_seam,
)
from audit.proof.compare import Comparison
from audit.proof.deletions import deleted_meanwhile, notes_of_deleted
from audit.proof.findings import Cause, EntryView, Finding
from audit.proof.invariants import between_segments
from audit.proof.passes import Passes
from audit.proof.plan import Plan
from audit.proof.queue_ends import Ending, QueueEndTask, check_queue_ends
from audit.proof.queue_files import QueueKey, is_deleted
from audit.proof.report import DerivedSummary
from audit.proof.scope import committed_index
from audit.reading.replica import Replica
from dledger.reading.survey import Survey
from dledger.records.layout import file_name

MAX_QUEUES: Final = 100  # Of each cause a replica's findings name so many and count the rest.


def read_logs(
    plan: Plan,
    comparison: Comparison,
    engine: Engine,
    replicas: Sequence[Replica],
    passes: Passes,
    started: PassStarted,
) -> list[Chain]:
    """What each segment holds.

    Args:
        comparison: the logs' digests. Of replicas that hold the same bytes one log is read.
    """
    tasks = _read_tasks(
        [task for each in replicas for task in _chain_tasks(plan, each)], comparison
    )
    total = sum(task.weight for task in tasks)
    return passes.chains(engine, tasks, started("derived", total))


def check_derived(
    plan: Plan, read: Sequence[Chain], engine: Engine, hosts: Mapping[str, str | None]
) -> tuple[list[Finding], DerivedSummary, tuple[str, ...]]:
    """What is wrong with digests and ConsumeQueues, how much was looked at, and what was deleted
    meanwhile, in words.

    Args:
        read: what the segments hold; some may be gone since, as a node that runs drops them.
    """
    begins = {each.replica: each.retained_from for each in plan.surveys}
    chains = [each for each in read if each.base + plan.segment_size > begins[each.replica]]
    gone = deleted_meanwhile(plan, chains, engine, hosts)
    found: list[Finding] = []
    for survey in plan.surveys:
        own = sorted((c for c in chains if c.replica == survey.replica), key=lambda c: c.base)
        taken = gone.get(survey.replica, frozenset())
        found += [_finding(survey, plan, fault) for fault in _lasting(own, taken)]
        found += [_finding(survey, plan, fault) for fault in _wrong_units(own)]
        found += _not_named(survey, own)
        ends = [chain.ends for chain in own]
        start = survey.retained_from
        found += [
            _finding(survey, plan, broken_fault(broken))
            for broken in between_segments(ends, plan.segment_size, start, survey.start)
        ]
    tails = [_end_task(plan, each, chains, hosts) for each in plan.surveys if not each.problem]
    joints: list[SeamTask | QueueEndTask] = [*_seam_tasks(plan, chains, hosts), *tails]
    for task, faults in zip(joints, engine.run(check_ends, joints), strict=True):
        found += [_finding(plan.survey_of(task.replica), plan, fault) for fault in faults]
    summary = DerivedSummary(
        entries=sum(chain.entries for chain in chains),
        records=sum(chain.records for chain in chains),
        queues=sum(len(task.queues) for task in tails),
        verified_bytes=sum(chain.verified_bytes for chain in chains),
    )
    return _gathered(found), summary, tuple(notes_of_deleted(gone, [*hosts]))


def unread_findings(plan: Plan, read: Sequence[Chain], known: Sequence[Finding]) -> list[Finding]:
    """Bytes that were there when they were hashed, and couldn't be read to be checked: of which
    nothing is `known` that explains it."""
    found = []
    for chain in read:
        survey = plan.survey_of(chain.replica)
        if chain.base + plan.segment_size <= survey.retained_from:
            continue
        own = [each for each in known if chain.replica in each.replicas]
        places = [place for each in own for place in each.places]
        for start, end in chain.gaps:
            if any(low < end and start < high for low, high in places):
                continue
            file = f"{survey.commitlog}/{file_name(chain.base)}"
            who, cause = (chain.replica,), Cause.UNREADABLE_SEGMENT
            detail = "hashed, and not to be read again: its entries weren't checked"
            gap = Finding(cause, who, start, end, chain.base, file=file, detail=detail)
            found.append(gap)
    return found


def _chain_tasks(plan: Plan, replica: Replica) -> list[ChainTask]:
    """One a segment. Of a copy all units are wanted whose entries anybody knows to have committed,
    whatever its checkpoint says; a node that runs writes behind its checkpoint, and a backup has
    none."""
    survey = plan.survey_of(replica.id)
    said = (replica.position.index, replica.position.digest) if replica.position else (0, 0)
    wanted = survey.derived_index
    if not (survey.answered or survey.is_backup):
        wanted = max(wanted, committed_index(plan.surveys))
    return [
        ChainTask(
            replica=replica.id,
            commitlog=survey.commitlog,
            base=segment.base,
            segment_size=plan.segment_size,
            end=min(survey.end, segment.base + plan.segment_size),
            derived_index=wanted,
            said=said,
            bytes_per_s=0,
            host=replica.host,
        )
        for segment in survey.segments
        if segment.base < survey.end
    ]


def _read_tasks(tasks: Sequence[ChainTask], comparison: Comparison) -> list[ReadTask]:
    """One for each segment of replicas on one host that hold the same bytes in it, up to the same
    end."""
    together: dict[tuple[object, ...], list[ChainTask]] = {}
    for task in tasks:
        digests = comparison.digests_upto(task.replica, task.base, task.end)
        who = task.replica if digests is None else ""
        key = (task.host, task.base, task.end, digests, who)
        together.setdefault(key, []).append(task)
    return [ReadTask(tuple(members)) for members in together.values()]


def _lasting(chains: Sequence[Chain], taken: Set[str]) -> Iterable[Fault]:
    """The faults of a replica, but for those of queues that a later segment deletes, and units
    that are missing from folders that were `taken` since."""
    for number, chain in enumerate(chains):
        deleted = {topic for later in chains[number + 1 :] for topic, _ in later.deleted}
        for fault in chain.faults:
            if fault.queue is None:
                yield fault
            elif fault.cause is Cause.QUEUE_MISSING and fault.queue[0] in taken:
                continue
            elif not is_deleted(fault.queue[0], deleted):
                yield fault


def _wrong_units(chains: Sequence[Chain]) -> Iterable[Fault]:
    """Units that are void in a ConsumeQueue, or aren't, and the log says otherwise in a later
    segment. What it doesn't say yet nobody reads."""
    unsettled: list[SeenUnit] = []
    for number, chain in enumerate(chains):
        deleted = {topic for later in chains[number:] for topic, _ in later.deleted}
        faults, unsettled = chain.settled.judge(unsettled)
        yield from (f for f in faults if f.queue and not is_deleted(f.queue[0], deleted))
        unsettled += chain.open_units


def _not_named(survey: Survey, chains: Sequence[Chain]) -> Iterable[Finding]:
    """What was too much to be told one by one, by cause."""
    more: Counter[Cause] = Counter()
    for chain in chains:
        more.update(dict(chain.more))
    for cause, count in sorted(more.items()):
        detail = f"{count} more places than are named"
        yield Finding(cause, (survey.replica,), 0, 0, detail=detail, count=count)


def check_ends(task: SeamTask | QueueEndTask) -> list[Fault]:
    """What is wrong where a segment, or a queue, ends: one round of tasks, as each costs a cluster
    more than the work in it."""
    if isinstance(task, QueueEndTask):
        return check_queue_ends(task)
    fault = check_seam(task)
    return [] if fault is None else [fault]


def _seam_tasks(
    plan: Plan, chains: Sequence[Chain], hosts: Mapping[str, str | None]
) -> list[SeamTask]:
    by_place = {(chain.replica, chain.base): chain for chain in chains}
    tasks = []
    for chain in chains:
        before = by_place.get((chain.replica, chain.base - plan.segment_size))
        survey = plan.survey_of(chain.replica)
        digest = before.last_digest if before else None
        if chain.base == survey.retained_from:
            digest = survey.start.digest if survey.start is not None else None
        if chain.first_digest is not None and digest is not None:
            commitlog = survey.commitlog
            host = hosts.get(chain.replica)
            tasks.append(SeamTask(chain.replica, commitlog, chain.base, digest, host))
    return tasks


def _end_task(
    plan: Plan, survey: Survey, chains: Sequence[Chain], hosts: Mapping[str, str | None]
) -> QueueEndTask:
    """Where the replica's queues end by its log; a folder that the log doesn't know ends at 0, or,
    if the log begins later, where nobody here knows. A topic whose deletion it may not have applied
    yet may be there or gone."""
    own = sorted((c for c in chains if c.replica == survey.replica), key=lambda c: c.base)
    unknown = None if survey.retained_from else 0
    ends: dict[QueueKey, int | None] = dict.fromkeys(survey.consume_queues, unknown)
    for chain in own:
        for topic, index in chain.deleted:
            for queue in [queue for queue in ends if is_deleted(queue[0], [topic])]:
                if index <= survey.derived_index:
                    ends[queue] = 0
                else:
                    del ends[queue]
        ends.update(chain.queue_ends)
    present = {queue: end for queue, end in ends.items() if queue in set(survey.consume_queues)}
    return QueueEndTask(
        replica=survey.replica,
        root=_queues_root(survey),
        queues=tuple(sorted(present.items(), key=lambda each: each[0])),
        ending=Ending(
            log_start=survey.retained_from,
            log_end=survey.end,
            known_end=max(survey.end, plan.end),
            held=_held(plan, survey, own),
            is_running=survey.is_running,
            is_closed=not survey.answered,
        ),
        host=hosts.get(survey.replica),
    )


def _queues_root(survey: Survey) -> str:
    """The folder of the replica's ConsumeQueues."""
    return os.path.join(os.path.dirname(survey.commitlog), "consumequeue")


def _held(plan: Plan, survey: Survey, chains: Sequence[Chain]) -> tuple[tuple[int, int], ...]:
    """The ranges of the log in which everything is as it was written."""
    held: list[tuple[int, int]] = []
    for chain in chains:
        at, end = chain.base, min(chain.base + plan.segment_size, survey.end)
        for start, stop in (*chain.gaps, (end, end)):
            if start > at:
                held.append((at, start))
            at = max(at, stop)
    return tuple(held)


def _finding(survey: Survey, plan: Plan, fault: Fault) -> Finding:
    start, end = fault.start, fault.last_end or fault.start + fault.size
    who = (survey.replica,)
    if not fault.size:
        return Finding(fault.cause, who, 0, 0, detail=fault.detail, count=fault.count)
    segment: int | None = start - start % plan.segment_size
    file = f"{survey.commitlog}/{file_name(start - start % plan.segment_size)}"
    if fault.queue is not None:  # The log is right there, its queue isn't.
        segment = None
        file = os.path.join(_queues_root(survey), fault.queue[0], str(fault.queue[1]))
    view = EntryView(
        survey.replica, "entry", fault.cause is not Cause.BAD_CRC, fault.index, fault.term
    )
    return Finding(
        fault.cause,
        who,
        start,
        end,
        segment=segment,
        entry_offset=start,
        views=(view,),
        file=file,
        detail=fault.detail,
        count=fault.count,
    )


_OF_QUEUES: Final = frozenset(
    {
        Cause.QUEUE_MISSING,
        Cause.QUEUE_WRONG,
        Cause.QUEUE_EXTRA,
        Cause.QUEUE_SIZE,
        Cause.QUEUE_UNREADABLE,
        Cause.LOG_LACKS,
    }
)


def _gathered(found: Iterable[Finding]) -> list[Finding]:
    """One finding for a queue's faults of one cause, with how many units they are. Of each cause
    and replica `MAX_QUEUES` queues are named; one more finding says how many others there are."""
    groups: dict[tuple[Cause, tuple[str, ...], str], Finding] = {}
    kept: list[Finding] = []
    for each in found:
        if each.cause not in _OF_QUEUES:
            kept.append(each)
            continue
        key = each.cause, each.replicas, each.detail.split(" ", 1)[0]
        first = groups.get(key)
        groups[key] = each if first is None else _with(first, each)
    named: Counter[tuple[Cause, tuple[str, ...]]] = Counter()
    rest: dict[tuple[Cause, tuple[str, ...]], tuple[int, int]] = {}
    for (cause, who, _), finding in groups.items():
        named[cause, who] += 1
        if named[cause, who] <= MAX_QUEUES:
            kept.append(_counted(finding))
        else:
            queues, units = rest.get((cause, who), (0, 0))
            rest[cause, who] = queues + 1, units + finding.count
    for (cause, who), (queues, units) in rest.items():
        detail = f"{queues} more queues than are named; {units} units in all"
        kept.append(Finding(cause, who, 0, 0, detail=detail, count=units))
    return kept


def _with(first: Finding, again: Finding) -> Finding:
    return replace(first, end=max(first.end, again.end), count=first.count + again.count)


def _counted(finding: Finding) -> Finding:
    if finding.count == 1:
        return finding
    return replace(finding, detail=f"{finding.detail}; {finding.count} units in all")
