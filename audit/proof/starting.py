"""Would each replica start? What a node's own start says of its directory, as findings.

The judgement is `store.starting`'s, which lets a start happen on a rehearsal; here are only its
words. It is asked of directories that no node runs on, if any of them is a member's: bare logs and
what is derived from them can be compared, but nothing starts on them, and the scope says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from audit.engines.engine import Engine, PassStarted
from audit.proof.findings import Cause, Finding
from audit.proof.intact import ReadRun
from audit.proof.plan import Plan
from audit.proof.scope import Snapshots
from audit.reading.replica import Replica
from dledger.reading.survey import Survey
from store.starting.judgement import Effect, Judgement, Kind, shared_files
from store.starting.judging import judge

MAX_NOTED: Final = 10  # Of each replica so many strays are noted, and so many snapshots.
# What passes over the log's bytes tell with more.
_OF_THE_LOG: Final = frozenset({Kind.LOG_DAMAGED, Kind.LOG_MISSING, Kind.SEGMENT_MISSING})
_OF_SNAPSHOTS: Final = frozenset({Kind.SNAPSHOT_UNUSABLE, Kind.SNAPSHOT_AHEAD})
# What says of no byte of the log that it is wrong.
_OF_WHOM_IT_IS: Final = frozenset({Cause.SAME_DISK, Cause.SHARED_FILE, Cause.ALONE})
_MEMBERS_FILES: Final = ("raft", "formation.json")


@dataclass(frozen=True, slots=True)
class StartTask:
    """Judge the directory of one replica, of whose log a start reads about `weight` bytes, those
    of `runs` aside."""

    replica: str
    data: str
    weight: int
    runs: tuple[ReadRun, ...] = ()
    host: str | None = None


@dataclass(frozen=True, slots=True)
class StartJudged:
    """Whether the directory holds what only a member's does, and what a start says of it."""

    task: StartTask
    is_members: bool
    judgement: Judgement


def judge_start(task: StartTask) -> StartJudged:
    """What was read of the log isn't read again, unless a file of it was written to since. A
    refusal is looked at twice where a node may be at work, or died: a start of a directory that is
    being written to may see files of several moments."""
    data, commitlog = Path(task.data), os.path.join(task.data, "commitlog")
    judgement = judge(data, known=tuple(each.run for each in task.runs))
    if not all(each.still_stands(commitlog) for each in task.runs):
        judgement = judge(data)
    if not judgement.starts and os.path.exists(data / "abort"):
        judgement = judge(data)
    is_members = any(os.path.lexists(data / name) for name in _MEMBERS_FILES)
    return StartJudged(task, is_members, judgement)


def judge_starts(
    plan: Plan,
    engine: Engine,
    replicas: Sequence[Replica],
    runs: Mapping[str, Sequence[ReadRun]],
    started: PassStarted,
) -> list[StartJudged]:
    """The judgements of all directories that no node runs on; none if none is a member's.

    Args:
        runs: what was read of the replicas' logs, in which nothing was found.
    """
    tasks = [
        _task(plan.survey_of(replica.id), runs.get(replica.id, ()), replica.host)
        for replica in replicas
        if _can_be_judged(plan.survey_of(replica.id))
    ]
    total = sum(task.weight for task in tasks)
    judged = engine.run(judge_start, tasks, started("start", total))
    return judged if any(each.is_members for each in judged) else []


def _task(survey: Survey, runs: Sequence[ReadRun], host: str | None) -> StartTask:
    left = survey.end - survey.retained_from - sum(each.run.size for each in runs)
    data = os.path.dirname(survey.commitlog)
    return StartTask(survey.replica, data, max(left, 0), tuple(runs), host)


def start_findings(judged: Sequence[StartJudged], known: Sequence[Finding]) -> list[Finding]:
    """What keeps a replica from starting, but for what is `known` of its log; and files that
    several replicas have in common, which makes one copy of them."""
    found = [finding for each in judged for finding in _refusals(each, known)]
    told = {each.replicas for each in known if each.cause is Cause.SHARED_FILE}
    for _, here in groupby(sorted(judged, key=_host), key=_host):
        found += [each for each in _shared(list(here)) if each.replicas not in told]
    return found


def start_notes(judged: Sequence[StartJudged]) -> Iterator[str]:
    """What lies in the directories and is no fault, or none of what a verdict speaks of."""
    for each in judged:
        yield from _snapshot_notes(each)
        strays = [f for f in each.judgement.findings if f.kind is Kind.STRAY]
        strays = [f for f in strays if not f.file.startswith("commitlog/")]  # Noted by the survey.
        for finding in strays[:MAX_NOTED]:
            yield f"{each.task.replica}: {finding.file} is no file of a node"
        if len(strays) > MAX_NOTED:
            yield f"{each.task.replica}: {len(strays) - MAX_NOTED} more files are no node's"


def _snapshot_notes(judged: StartJudged) -> Iterator[str]:
    """A start passes over them, as it has its log; so they are no fault of the replica's."""
    bad = [each for each in judged.judgement.findings if each.kind in _OF_SNAPSHOTS]
    for finding in bad[:MAX_NOTED]:
        yield f"{judged.task.replica}: {finding.kind}: {finding.file}: {finding.detail}"
    if len(bad) > MAX_NOTED:
        yield f"{judged.task.replica}: {len(bad) - MAX_NOTED} more snapshots of state like these"


def snapshots_asked(judged: Sequence[Judgement]) -> Snapshots:
    """What was asked of the directories' snapshots: only of one that starts are they looked at."""
    is_asked = bool(judged) and all(each.starts for each in judged)
    return Snapshots.SUMS if is_asked else Snapshots.UNREAD


def _can_be_judged(survey: Survey) -> bool:
    return not survey.problem and not survey.answered and survey.address is None


def _refusals(judged: StartJudged, known: Sequence[Finding]) -> Iterator[Finding]:
    if judged.judgement.starts:
        return
    who = judged.task.replica
    is_told = any(who in each.replicas for each in known if each.cause not in _OF_WHOM_IT_IS)
    refused = judged.judgement.of(Effect.REFUSED)
    for each in refused:
        if not (is_told and each.kind in _OF_THE_LOG):
            place = f"{each.file}: " if each.file else ""
            detail = f"{each.kind}: {place}{each.detail}"
            yield Finding(Cause.WOULD_NOT_START, (who,), 0, 0, detail=detail)
    if not refused and not is_told:
        yield Finding(Cause.WOULD_NOT_START, (who,), 0, 0, detail=judged.judgement.refusal)


def _shared(judged: Sequence[StartJudged]) -> Iterator[Finding]:
    names = {each.judgement.path: each.task.replica for each in judged}
    shared: dict[tuple[str, ...], list[str]] = {}
    for file, paths in shared_files(each.judgement for each in judged):
        shared.setdefault(tuple(sorted(names[path] for path in paths)), []).append(file.file)
    for replicas, files in sorted(shared.items()):
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        detail = f"{files[0]}{more}: one file of the disk, under several names"
        yield Finding(Cause.SHARED_FILE, replicas, 0, 0, detail=detail, count=len(files))


def _host(judged: StartJudged) -> str:
    return judged.task.host or ""
