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
from audit.engines.placed import placed
from audit.errors import UsageMistake
from audit.proof.beginnings import Beginnings, as_of_now, compare_beginnings, scope_start
from audit.proof.chain import Chain
from audit.proof.compare import (
    Comparison,
    compare,
    file_findings,
    shared_findings,
    survey_findings,
)
from audit.proof.derived import check_derived, read_logs, unread_findings
from audit.proof.digest import PartDigests
from audit.proof.findings import Cause, Finding, Verdict, by_gravity
from audit.proof.intact import read_runs
from audit.proof.locate import locate, scan_tasks
from audit.proof.merging import merged_ranges, with_second_look
from audit.proof.notes import notes_of
from audit.proof.passes import Passes, Reading, digested
from audit.proof.plan import (
    DEFAULT_BLOCK_BYTES,
    Plan,
    SegmentPlan,
    block_tasks,
    digest_tasks,
    make_plan,
)
from audit.proof.report import Audit, Coverage, DerivedSummary, Report, Timings, verdict_of
from audit.proof.scan import scan_segment
from audit.proof.scope import Files, not_located, scope_findings, scope_of
from audit.proof.starting import (
    StartJudged,
    judge_starts,
    snapshots_asked,
    start_findings,
    start_notes,
)
from audit.reading.replica import Replica, check_replicas
from audit.reading.survey import SurveyTask, survey
from dledger.reading.objects import is_object

LOCATED_BLOCKS: Final = 256

Block = tuple[SegmentPlan, int]  # a segment, and the block's number in it


@dataclass(frozen=True, slots=True)
class Options:
    """How to audit.

    Args:
        block_size: bytes; a power of two.
        bytes_per_s: how fast to read, all tasks together; 0: no limit.
        located_blocks: differing blocks that are looked into, some of each kind
            (`Comparison.some_of_each_kind`); the rest is only counted.
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
    check_replicas(list(replicas))
    options = options or Options()
    course = _Course(replicas, engine, options, started, passes or Reading(options.bytes_per_s))
    course.survey()
    course.digest()
    course.locate()
    course.look_at_derived()
    course.judge_starts()
    return course.audit()


class _Course:
    """One audit: its passes, in the order in which they are defined here, and what they found."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        engine: Engine,
        options: Options,
        started: PassStarted,
        passes: Passes,
    ) -> None:
        self._replicas = replicas
        self._engine = placed(engine)
        self._options = options
        self._started = started
        self._passes = passes
        self._files = _files(replicas, options)
        self._clock = _Clock()
        self._hosts = {replica.id: replica.host for replica in replicas}
        self._derived: DerivedSummary | None = None
        self._deleted_notes: tuple[str, ...] = ()
        self._read_again: list[PartDigests] = []

    def survey(self) -> None:
        """What there is, and what of it can be compared."""
        tasks = [SurveyTask(each) for each in self._replicas]
        surveys = self._engine.run(survey, tasks, self._started("survey", len(tasks)))
        accepts = self._options.accept_retention
        self._plan = make_plan(surveys, self._options.block_size)
        self._scope = scope_of(surveys, self._files, accept_retention=accepts)
        self._clock.finished("survey")

    def digest(self) -> None:
        """Which blocks differ."""
        plan = self._plan
        total = sum(each.end - each.retained_from for each in plan.surveys if each.end)
        share = -(-total // (2 * self._engine.parallelism))
        part_bytes = max(min(share, self._engine.task_bytes), plan.block_size)
        tasks = digest_tasks(plan, self._hosts, part_bytes)
        self._digested = sum(task.weight for task in tasks)
        shown = self._started("digest", self._digested)
        results = self._passes.digests(self._engine, tasks, shown)
        self._parts = [part for parts in results for part in parts]
        self._comparison = compare(plan, self._parts)
        self._clock.finished("digest")

    def locate(self) -> None:
        """What is in the differing blocks; and which of them were too many to look into, or
        couldn't be read again."""
        wanted = self._comparison.some_of_each_kind(self._options.located_blocks)
        tasks = scan_tasks(self._plan, wanted, self._hosts)
        shown = self._started("locate", sum(task.weight for task in tasks))
        scans = self._engine.run(scan_segment, tasks, shown)
        located = locate(self._plan, wanted, scans, self._scope.end)
        open_ = self._still_open(located.vanished)
        vanished = tuple(each for each in located.vanished if each not in open_)
        self._located = replace(located, vanished=vanished)
        unseen = {*located.unread, *open_}
        seen = {(segment.base, at) for segment, at in wanted if (segment, at) not in unseen}
        blocks = self._comparison.differing_blocks()
        self._skipped = [(each, at) for each, at in blocks if (each.base, at) not in seen]
        self._clock.finished("locate")

    def _still_open(self, vanished: Sequence[Block]) -> set[Block]:
        """Those of the scope that aren't equal on all replicas when they are hashed once more:
        nothing but a repair changes a byte there, so whatever it was, it goes on."""
        end = self._scope.end
        within = [each for each in vanished if each[0].edges[each[1] + 1] <= end]
        tasks = block_tasks(self._plan, within, self._hosts)
        if not tasks:
            return set()
        hashed = digested(self._engine, tasks, self._options.bytes_per_s, no_progress)
        self._read_again = parts = [part for parts in hashed for part in parts]
        unread = {(part.base, part.first_block) for part in parts if part.problem is not None}
        unequal = set(compare(self._plan, parts).differing_blocks())
        return {
            (segment, number)
            for segment, number in within
            if (segment, number) in unequal or (segment.base, number) in unread
        }

    def look_at_derived(self) -> None:
        """What each log says by itself, and whether what is derived from it agrees; where replicas
        begin apart, what shows that they are of one log."""
        engine, replicas, is_whole = self._engine, self._replicas, self._files is Files.ALL
        chains: list[Chain] = []
        if is_whole:
            chains = read_logs(
                self._plan, self._comparison, engine, replicas, self._passes, self._started
            )
        plan = as_of_now(self._plan, engine, replicas)
        found = [
            *survey_findings(plan),
            *([] if self._options.is_copy else scope_findings(plan, self._scope)),
            *_position_findings(replicas),
            *file_findings(plan, self._parts),
            *shared_findings(self._plan, [*self._parts, *self._read_again]),
            *self._located.findings,
            *not_located(plan, self._comparison, self._skipped),
        ]
        if is_whole:
            told = check_derived(plan, chains, engine, self._hosts)
            more, self._derived, self._deleted_notes = told
            found = with_second_look(found, more)
            found += unread_findings(plan, chains, found)
        self._beginnings = compare_beginnings(plan, self._comparison, self._scope, engine, replicas)
        self._plan = self._beginnings.plan
        self._scope = replace(self._scope, start=self._start_by_now())
        self._found = [*found, *_of_beginnings(self._beginnings, self._options)]
        self._runs = read_runs(self._parts, chains)
        self._clock.finished("derived")

    def _start_by_now(self) -> int:
        """Where the scope begins, now that everything is read: fronts may have gone meanwhile."""
        if not self._options.accept_retention:
            return scope_start(self._plan, self._beginnings, self._scope.start)
        now = scope_of(self._plan.surveys, self._files, accept_retention=True)
        return min(now.start, self._scope.end)

    def judge_starts(self) -> None:
        """Whether a node would start on each. Nobody who was found anything wrong with is believed
        to have anything right."""
        is_asked = self._files is Files.ALL and not self._options.is_copy
        wrong = (each for each in self._found if each.cause is not Cause.SAME_DISK)  # no byte is
        named = {replica for finding in wrong for replica in finding.replicas}
        runs = {replica: read for replica, read in self._runs.items() if replica not in named}
        judged: list[StartJudged] = []
        if is_asked:
            judged = judge_starts(self._plan, self._engine, self._replicas, runs, self._started)
        self._found += start_findings(judged, self._found)
        self._scope = replace(
            self._scope,
            starts=bool(judged),
            snapshots=snapshots_asked([each.judgement for each in judged]),
            believed=self._passes.believed(),
        )
        self._start_notes = start_notes(judged)
        self._clock.finished("start")

    def audit(self) -> Audit:
        """All that was found, the gravest first."""
        notes = (
            *(each.standing for each in self._replicas if each.standing),
            *notes_of(self._plan, self._scope, self._located),
            *self._deleted_notes,
            *self._beginnings.notes,
            *self._start_notes,
        )
        found = tuple(sorted(self._found or self._uncompared(), key=by_gravity))
        return Audit(self._report(found, notes), self._plan, self._comparison)

    def _uncompared(self) -> list[Finding]:
        """Where nothing was found, who was compared with nobody: a node that knows nothing to be
        committed yet, say, or all of them. That retention is accepted makes nobody compared: one
        whose log begins later may share nothing, and so may the one that it leaves behind."""
        if self._options.is_copy or len(self._replicas) == 1:
            return []
        compared = self._comparison.compared_bytes()
        detail = "not a byte of it was compared with another's"
        return [
            Finding(Cause.ALONE, (each.replica,), 0, 0, detail=detail)
            for each in self._plan.surveys
            if not compared[each.replica]
        ]

    def _report(self, findings: tuple[Finding, ...], notes: tuple[str, ...]) -> Report:
        plan, comparison = self._plan, self._comparison
        blocks = comparison.differing_blocks()
        ranges = [(segment.edges[b], segment.edges[b + 1]) for segment, b in blocks]
        return Report(
            engine=self._engine.name,
            group=next((each.broker_group for each in plan.surveys if each.broker_group), None),
            segment_size=plan.segment_size,
            block_size=plan.block_size,
            blocks=sum(len(segment.edges) - 1 for segment in plan.segments),
            scope=self._scope,
            coverage=tuple(_coverage(each, plan, comparison, findings) for each in self._replicas),
            differing=merged_ranges(ranges, len(ranges)),
            findings=findings,
            notes=notes,
            not_located=len(self._skipped),
            derived=self._derived,
            timings=self._clock.timings(self._digested),
        )


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


def _coverage(
    replica: Replica, plan: Plan, comparison: Comparison, findings: tuple[Finding, ...]
) -> Coverage:
    survey_ = plan.survey_of(replica.id)
    compared = comparison.compared_bytes()[replica.id]
    verdict = verdict_of(replica.id, findings)
    has_log = survey_.end > survey_.retained_from
    if verdict is Verdict.IDENTICAL and has_log and not compared and len(plan.surveys) > 1:
        verdict = Verdict.INCOMPLETE  # With nobody: the others couldn't be read.
    return Coverage(
        replica=replica.id,
        path=replica.path,
        host=replica.host,
        start=min(survey_.retained_from, survey_.end),
        end=survey_.end,
        settled=survey_.settled,
        segments=len(survey_.segments),
        compared_bytes=compared,
        foreign=survey_.foreign,
        checkpoint_readable=survey_.checkpoint_readable,
        verdict=verdict,
    )
