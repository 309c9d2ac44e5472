"""Derived files against the log they come from: running digests and ConsumeQueues, per replica.

Every replica is checked against *its own* log, so this finds what comparing replicas can't: all
of them wrong in the same way, and derived files, which needn't be compared as they are a function
of the log (ADR 7). IndexFiles and snapshots will have their place here.

Three rounds of tasks: each segment from end to end (`audit.proof.chain`), then the seams between
segments, and the ends of the queues, which only the whole log knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from audit.engines.engine import Engine, PassStarted
from audit.proof.chain import (
    Chain,
    ChainTask,
    Fault,
    QueueKey,
    SeamTask,
    broken_fault,
    check_seam,
    is_deleted,
    read_chain,
)
from audit.proof.findings import Cause, EntryView, Finding
from audit.proof.invariants import between_segments
from audit.proof.plan import Plan
from audit.proof.report import DerivedSummary
from audit.reading.replica import Replica
from dledger.reading.files import opened, read_at
from dledger.reading.survey import Survey
from dledger.records.layout import FILE_NAME, UNITS_PER_FILE, file_name
from store.dispatch import UNIT, UNIT_SIZE

_FILE_BYTES: Final = UNITS_PER_FILE * UNIT_SIZE
_CHUNK_BYTES: Final = 200_000 * UNIT_SIZE // 4


@dataclass(frozen=True, slots=True)
class QueueEndTask:
    """Look behind the ends of a replica's queues: `(queue, next offset)` as the log has them.

    Args:
        log_end: units of records at or behind it are of entries newer than what was audited,
            which is no fault of a replica that runs (`is_running`).
    """

    replica: str
    root: str
    queues: tuple[tuple[QueueKey, int], ...]
    log_end: int
    is_running: bool
    host: str | None = None

    @property
    def weight(self) -> int:
        return len(self.queues)


def check_queue_ends(task: QueueEndTask) -> list[Fault]:
    """The first unit behind each queue's end that shouldn't be there."""
    faults = (_behind_end(task, queue, end) for queue, end in task.queues)
    return [fault for fault in faults if fault is not None]


def check_derived(
    plan: Plan,
    engine: Engine,
    replicas: Sequence[Replica],
    bytes_per_s: float,
    started: PassStarted,
) -> tuple[list[Finding], DerivedSummary]:
    """What is wrong with digests and ConsumeQueues, and how much was looked at."""
    hosts = {replica.id: replica.host for replica in replicas}
    tasks = [task for each in replicas for task in _chain_tasks(plan, each)]
    rate = bytes_per_s / engine.width(tasks)
    tasks = [replace(task, bytes_per_s=rate) for task in tasks]
    total = sum(task.weight for task in tasks)
    chains = engine.run(read_chain, tasks, started("derived", total))
    found: list[Finding] = []
    for survey in plan.surveys:
        own = sorted((c for c in chains if c.replica == survey.replica), key=lambda c: c.base)
        found += [_finding(survey, plan, fault) for fault in _lasting(own)]
        ends = [chain.ends for chain in own]
        found += [
            _finding(survey, plan, broken_fault(broken))
            for broken in between_segments(ends, plan.segment_size, survey.retained_from)
        ]
    found += _seams(plan, engine, chains, hosts)
    tails = [_end_task(each, chains, hosts) for each in plan.surveys if not each.problem]
    for task, beyond in zip(tails, engine.run(check_queue_ends, tails), strict=True):
        found += [_finding(plan.survey_of(task.replica), plan, fault) for fault in beyond]
    summary = DerivedSummary(
        entries=sum(chain.entries for chain in chains),
        records=sum(chain.records for chain in chains),
        queues=sum(len(task.queues) for task in tails),
        verified_bytes=sum(chain.verified_bytes for chain in chains),
    )
    return _gathered(found), summary


def _chain_tasks(plan: Plan, replica: Replica) -> list[ChainTask]:
    survey = plan.survey_of(replica.id)
    said = (replica.position.index, replica.position.digest) if replica.position else (0, 0)
    return [
        ChainTask(
            replica=replica.id,
            commitlog=survey.commitlog,
            base=segment.base,
            segment_size=plan.segment_size,
            end=min(survey.end, segment.base + plan.segment_size),
            derived_index=survey.derived_index,
            said=said,
            bytes_per_s=0,
            host=replica.host,
        )
        for segment in survey.segments
        if segment.base < survey.end
    ]


def _lasting(chains: Sequence[Chain]) -> Iterable[Fault]:
    """The faults of a replica, but for those of queues that a later segment deletes."""
    for number, chain in enumerate(chains):
        deleted = {topic for later in chains[number + 1 :] for topic in later.deleted}
        for fault in chain.faults:
            if fault.queue is None or not is_deleted(fault.queue[0], deleted):
                yield fault


def _seams(
    plan: Plan, engine: Engine, chains: Sequence[Chain], hosts: dict[str, str | None]
) -> list[Finding]:
    by_place = {(chain.replica, chain.base): chain for chain in chains}
    tasks = []
    for chain in chains:
        before = by_place.get((chain.replica, chain.base - plan.segment_size))
        digest = 0 if chain.base == 0 else before.last_digest if before else None
        if chain.first_digest is not None and digest is not None:
            commitlog = plan.survey_of(chain.replica).commitlog
            host = hosts.get(chain.replica)
            tasks.append(SeamTask(chain.replica, commitlog, chain.base, digest, host))
    return [
        _finding(plan.survey_of(task.replica), plan, fault)
        for task, fault in zip(tasks, engine.run(check_seam, tasks), strict=True)
        if fault is not None
    ]


def _end_task(
    survey: Survey, chains: Sequence[Chain], hosts: dict[str, str | None]
) -> QueueEndTask:
    """Where the replica's queues end by its log; a folder that the log doesn't know ends at 0."""
    ends: dict[QueueKey, int] = dict.fromkeys(survey.consume_queues, 0)
    for chain in sorted((c for c in chains if c.replica == survey.replica), key=lambda c: c.base):
        for queue in [queue for queue in ends if is_deleted(queue[0], chain.deleted)]:
            ends[queue] = 0
        ends.update(chain.queue_ends)
    present = {queue: end for queue, end in ends.items() if queue in set(survey.consume_queues)}
    root = os.path.join(os.path.dirname(survey.commitlog), "consumequeue")
    return QueueEndTask(
        survey.replica,
        root,
        tuple(sorted(present.items())),
        survey.end,
        survey.is_running,
        hosts.get(survey.replica),
    )


def _behind_end(task: QueueEndTask, queue: QueueKey, end: int) -> Fault | None:
    folder = os.path.join(task.root, queue[0], str(queue[1]))
    try:
        names = sorted(name for name in os.listdir(folder) if FILE_NAME.fullmatch(name))
    except OSError:
        return None  # Deleted meanwhile.
    for name in names:
        base = int(name)
        if base + _FILE_BYTES <= end * UNIT_SIZE:
            continue
        start = max(end * UNIT_SIZE - base, 0)
        found = _first_unit(os.path.join(folder, name), start, task)
        if found is not None:
            at, unit = found
            offset = (base + at) // UNIT_SIZE
            detail = f"{queue[0]}/{queue[1]} at queue offset {offset}: {unit.hex()} found, "
            detail += f"by the log the queue ends at {end}"
            return Fault(Cause.QUEUE_EXTRA, 0, 0, 0, 0, detail, queue)
    return None


def _first_unit(path: str, start: int, task: QueueEndTask) -> tuple[int, bytes] | None:
    """The first unit from byte `start` on that counts, and its byte in the file."""
    try:
        with opened(path) as descriptor:
            at = _next_data(descriptor, start)
            while chunk := read_at(descriptor, _CHUNK_BYTES, at):
                rest = chunk.lstrip(b"\x00")
                if rest:
                    first = (len(chunk) - len(rest)) // UNIT_SIZE * UNIT_SIZE
                    unit = chunk[first : first + UNIT_SIZE]
                    return None if _is_newer(unit, task) else (at + first, unit)
                at = _next_data(descriptor, at + len(chunk))
    except OSError:
        return None
    return None


def _next_data(descriptor: int, at: int) -> int:
    """The first unit at or behind byte `at` that isn't wholly in a hole: files are sparse.

    Raises:
        OSError: there is nothing but a hole up to the end.
    """
    data = os.lseek(descriptor, at, os.SEEK_DATA)
    return max(data - data % UNIT_SIZE, at)


def _is_newer(unit: bytes, task: QueueEndTask) -> bool:
    """Whether the unit is of an entry that came after what was audited."""
    if not task.is_running or len(unit) < UNIT_SIZE:
        return False
    return bool(UNIT.unpack(unit)[0] >= task.log_end)


def _finding(survey: Survey, plan: Plan, fault: Fault) -> Finding:
    start, end = fault.start, fault.start + fault.size
    if not fault.size:
        return Finding(fault.cause, (survey.replica,), 0, 0, detail=fault.detail)
    segment = start - start % plan.segment_size
    view = EntryView(
        survey.replica, "entry", fault.cause is not Cause.BAD_CRC, fault.index, fault.term
    )
    return Finding(
        fault.cause,
        (survey.replica,),
        start,
        end,
        segment=segment,
        entry_offset=start,
        views=(view,),
        file=f"{survey.commitlog}/{file_name(segment)}",
        detail=fault.detail,
    )


def _gathered(found: Iterable[Finding]) -> list[Finding]:
    """One finding for a queue fault that many entries show, with how many they are."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in found:
        is_queue = each.cause in (Cause.QUEUE_MISSING, Cause.QUEUE_WRONG)
        queue = each.detail.split(" ", 1)[0] if is_queue else (each.entry_offset, each.detail)
        groups.setdefault((each.cause, each.replicas, queue), []).append(each)
    return [
        group[0]
        if len(group) == 1
        else Finding(
            group[0].cause,
            group[0].replicas,
            group[0].start,
            group[-1].end,
            group[0].segment,
            group[0].entry_offset,
            group[0].views,
            group[0].file,
            f"{group[0].detail}; {len(group)} units in all",
        )
        for group in groups.values()
    ]
