"""`dledger audit replicas`, without its command line: survey, hash, compare, locate, report.

This orders the passes and measures them; each pass lies in a module of its own, and whoever runs
its tasks is the engine's matter. Positions of running nodes are in the replicas before this
starts, so everything that is compared was final by then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from audit.engines.engine import Engine, PassStarted, Progress, no_progress
from audit.errors import UsageMistake
from audit.proof.beginnings import Beginnings, as_of_now, compare_beginnings, scope_start
from audit.proof.chain import Chain
from audit.proof.compare import Comparison, compare, file_findings, survey_findings
from audit.proof.derived import check_derived, read_logs
from audit.proof.digest import PartDigests
from audit.proof.findings import Cause, Finding, by_gravity
from audit.proof.intact import read_runs
from audit.proof.locate import Located, locate, scan_tasks
from audit.proof.merging import merged_ranges, with_second_look
from audit.proof.notes import notes_of
from audit.proof.passes import Passes, Reading
from audit.proof.plan import DEFAULT_BLOCK_BYTES, Plan, SegmentPlan, digest_tasks, make_plan
from audit.proof.report import Audit, Coverage, DerivedSummary, Report, Timings, verdict_of
from audit.proof.scan import scan_segment
from audit.proof.scope import Files, Scope, not_located, scope_findings, scope_of
from audit.proof.starting import judge_starts, snapshots_asked, start_findings, start_notes
from audit.reading.replica import Replica, check_replicas
from audit.reading.survey import SurveyTask, survey
from dledger.reading.objects import is_object

LOCATED_BLOCKS: Final = 256


@dataclass(frozen=True, slots=True)
class Options:
    """How to audit.

    Args:
        block_size: bytes; a power of two.
        bytes_per_s: how fast to read, all tasks together; 0: no limit.
        located_blocks: differing blocks that are looked into; the rest is only counted.
        derived: check running digests and ConsumeQueues too; None: where they can be read, which
            nodes that are asked for their logs don't allow.
        accept_retention: a replica whose log begins later than another's is as good.
        is_copy: there is one replica, with nobody to be compared with, and whether a node would
            start on its directory is for the caller to say (`audit.proof.copy`).
    """

    block_size: int = DEFAULT_BLOCK_BYTES
    bytes_per_s: float = 0
    located_blocks: int = LOCATED_BLOCKS
    derived: bool | None = None
    accept_retention: bool = False
    is_copy: bool = False


def silent(name: str, weight: int) -> Progress:
    """Shows no pass."""
    return no_progress


class _Clock:
    """Seconds of the passes, by name."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._passes: dict[str, float] = {}

    def finished(self, name: str) -> None:
        now = time.monotonic()
        self._passes[name] = now - self._last
        self._last = now

    def timings(self, digested_bytes: int) -> Timings:
        seconds = {name: round(value, 4) for name, value in self._passes.items()}
        return Timings(
            survey_s=seconds["survey"],
            digest_s=seconds["digest"],
            locate_s=seconds["locate"],
            derived_s=seconds["derived"],
            start_s=seconds["start"],
            total_s=round(time.monotonic() - self._start, 4),
            digested_bytes=digested_bytes,
        )


def audit_replicas(
    replicas: Sequence[Replica],
    engine: Engine,
    options: Options | None = None,
    started: PassStarted = silent,
    passes: Passes | None = None,
) -> Audit:
    """Every fault that the replicas' files show, and how much of them was looked at.

    Args:
        passes: who reads the log; the options' pace is for where nobody is named.

    Raises:
        UsageMistake: the replicas can't be compared with each other.
    """
    options = options or Options()
    passes = passes or Reading(options.bytes_per_s)
    check_replicas(list(replicas))
    files = _files(replicas, options)
    clock = _Clock()
    hosts = {replica.id: replica.host for replica in replicas}
    surveys = engine.run(
        survey, [SurveyTask(each) for each in replicas], started("survey", len(replicas))
    )
    plan = make_plan(surveys, options.block_size)
    scope = scope_of(surveys, files, accept_retention=options.accept_retention)
    clock.finished("survey")
    parts, digested = _digest(plan, engine, hosts, passes, started)
    comparison = compare(plan, parts)
    clock.finished("digest")
    located, skipped = _locate(plan, scope, comparison, engine, hosts, options, started)
    clock.finished("locate")
    chains: list[Chain] = []
    if files is Files.ALL:
        chains = read_logs(plan, comparison, engine, replicas, passes, started)
    plan = as_of_now(plan, engine, replicas)
    found = [
        *survey_findings(plan),
        *([] if options.is_copy else scope_findings(plan, scope)),
        *_position_findings(replicas),
        *file_findings(plan, parts),
        *located.findings,
        *not_located(plan, comparison, skipped),
    ]
    derived: DerivedSummary | None = None
    if files is Files.ALL:
        more, derived = check_derived(plan, chains, engine, hosts)
        found = with_second_look(found, more)
    beginnings = compare_beginnings(plan, comparison, scope, engine, replicas)
    plan = beginnings.plan
    if not options.accept_retention:
        scope = replace(scope, start=scope_start(plan, beginnings, scope.start))
    found += _of_beginnings(beginnings, options)
    runs = read_runs(parts, chains)
    clock.finished("derived")
    is_asked = files is Files.ALL and not options.is_copy
    # Nobody who was found anything wrong with is believed to have anything right.
    named = {replica for finding in found for replica in finding.replicas}
    runs = {replica: read for replica, read in runs.items() if replica not in named}
    judged = judge_starts(plan, engine, replicas, runs, started) if is_asked else []
    found += start_findings(judged, found)
    snapshots = snapshots_asked([each.judgement for each in judged])
    scope = replace(scope, starts=bool(judged), snapshots=snapshots, believed=passes.believed())
    clock.finished("start")
    found.sort(key=by_gravity)
    standings = tuple(each.standing for each in replicas if each.standing)
    notes = (
        *standings,
        *notes_of(plan, scope, located),
        *beginnings.notes,
        *start_notes(judged),
    )
    seen = _Seen(plan, scope, comparison, tuple(found), notes, len(skipped), derived)
    return Audit(_report(replicas, engine, seen, clock.timings(digested)), plan, comparison)


def _of_beginnings(beginnings: Beginnings, options: Options) -> list[Finding]:
    """What is to be told of replicas that begin apart."""
    is_let_be = options.accept_retention
    found = beginnings.findings
    return [each for each in found if not (is_let_be and each.cause is Cause.RETAINED_LATER)]


def _files(replicas: Sequence[Replica], options: Options) -> Files:
    """What is to be compared.

    Raises:
        UsageMistake: that can't be had of these replicas.
    """
    derived = options.derived
    if len(replicas) == 1 and not derived:
        raise UsageMistake("one replica has nobody to be compared with: name another, or --derived")
    asked = [replica.id for replica in replicas if replica.address is not None]
    if asked and derived:
        raise UsageMistake(
            "--derived reads ConsumeQueues, which nodes don't hand out over gRPC "
            f"({', '.join(asked)}): run it beside their files"
        )
    stored = [replica.id for replica in replicas if is_object(replica.path)]
    if stored and derived:
        raise UsageMistake(
            f"--derived reads ConsumeQueues where they are files ({', '.join(stored)} is in an "
            "object store): copy them beside this command"
        )
    return Files.LOG if derived is False or asked or stored else Files.ALL


def _digest(
    plan: Plan,
    engine: Engine,
    hosts: dict[str, str | None],
    passes: Passes,
    started: PassStarted,
) -> tuple[list[PartDigests], int]:
    """All digests, and how many bytes they stand for."""
    total = sum(each.end - each.retained_from for each in plan.surveys if each.end)
    share = -(-total // (2 * engine.parallelism))
    tasks = digest_tasks(plan, hosts, max(min(share, engine.task_bytes), plan.block_size))
    digested = sum(task.weight for task in tasks)
    results = passes.digests(engine, tasks, started("digest", digested))
    return [part for parts in results for part in parts], digested


def _locate(
    plan: Plan,
    scope: Scope,
    comparison: Comparison,
    engine: Engine,
    hosts: dict[str, str | None],
    options: Options,
    started: PassStarted,
) -> tuple[Located, list[tuple[SegmentPlan, int]]]:
    """What is in the differing blocks; and those of them that were too many to look into, or
    couldn't be read again."""
    blocks = comparison.differing_blocks()
    wanted = blocks[: options.located_blocks]
    tasks = scan_tasks(plan, wanted, hosts)
    scans = engine.run(scan_segment, tasks, started("locate", sum(task.weight for task in tasks)))
    located = locate(plan, wanted, scans, scope.end)
    return located, [*located.unread, *blocks[len(wanted) :]]


def _position_findings(replicas: Sequence[Replica]) -> list[Finding]:
    """Nodes that committed the same entry and say different digests of the log up to it."""
    said: dict[int, dict[int, list[str]]] = {}
    for replica in replicas:
        if replica.position is not None and replica.position.index:
            of_index = said.setdefault(replica.position.index, {})
            of_index.setdefault(replica.position.digest, []).append(replica.id)
    return [
        Finding(
            Cause.POSITION_DIGEST,
            tuple(sorted(name for names in digests.values() for name in names)),
            0,
            0,
            detail=f"entry {index}: "
            + ", ".join(f"{d:016x} says {' and '.join(n)}" for d, n in sorted(digests.items())),
        )
        for index, digests in sorted(said.items())
        if len(digests) > 1
    ]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the passes gave; `skipped`: blocks that nothing more is known of."""

    plan: Plan
    scope: Scope
    comparison: Comparison
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    skipped: int
    derived: DerivedSummary | None


def _report(replicas: Sequence[Replica], engine: Engine, seen: _Seen, timings: Timings) -> Report:
    plan = seen.plan
    blocks = seen.comparison.differing_blocks()
    ranges = [(segment.edges[b], segment.edges[b + 1]) for segment, b in blocks]
    return Report(
        engine=engine.name,
        group=next((each.broker_group for each in plan.surveys if each.broker_group), None),
        segment_size=plan.segment_size,
        block_size=plan.block_size,
        blocks=sum(len(segment.edges) - 1 for segment in plan.segments),
        scope=seen.scope,
        coverage=tuple(_coverage(each, plan, seen.comparison, seen.findings) for each in replicas),
        differing=merged_ranges(ranges, len(ranges)),
        findings=seen.findings,
        notes=seen.notes,
        not_located=seen.skipped,
        derived=seen.derived,
        timings=timings,
    )


def _coverage(
    replica: Replica, plan: Plan, comparison: Comparison, findings: tuple[Finding, ...]
) -> Coverage:
    survey_ = plan.survey_of(replica.id)
    return Coverage(
        replica=replica.id,
        path=replica.path,
        host=replica.host,
        start=survey_.retained_from,
        end=survey_.end,
        settled=survey_.settled,
        segments=len(survey_.segments),
        compared_bytes=comparison.compared_bytes()[replica.id],
        foreign=survey_.foreign,
        checkpoint_readable=survey_.checkpoint_readable,
        verdict=verdict_of(replica.id, findings),
    )
