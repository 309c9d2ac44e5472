"""Blocks, tasks, pace, and who runs them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
import threading
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.engines.engine import LocalEngine
from audit.errors import EngineFailed
from audit.proof.digest import PartDigests, digest_blocks
from audit.proof.plan import Plan, digest_tasks, make_plan
from audit.proof.replicas import Options, audit_replicas
from audit.reading.pace import Pace
from dledger.outcome import ExitCode
from dledger.reading.survey import SegmentFile, Survey
from tests.audit.replicas import BLOCK, ReplicaSet

SEGMENT = 1 << 20


def claim(name: str, end: int, start: int = 0) -> Survey:
    segments = tuple(SegmentFile(base, SEGMENT) for base in range(start, max(end, 1), SEGMENT))
    return Survey(
        name, "/x", segment_size=SEGMENT, retained_from=start, settled=end, end=end,
        segments=segments,
    )  # fmt: skip


def blocks_of(plan: Plan) -> list[tuple[int, int]]:
    return [pair for segment in plan.segments for pair in pairwise(segment.edges)]


@given(
    ends=st.lists(st.integers(1, 5 * SEGMENT), min_size=1, max_size=4),
    task_bytes=st.integers(1, 3 * SEGMENT),
)
def test_tasks_cover_each_claim_once_and_in_part(ends: list[int], task_bytes: int) -> None:
    """Blocks tile the log; each replica's tasks tile exactly what it claims."""
    surveys = [claim(f"n{number}", end) for number, end in enumerate(ends)]
    plan = make_plan(surveys, 64 << 10)
    blocks = blocks_of(plan)
    assert blocks[0][0] == 0
    assert blocks[-1][1] == max(ends)
    assert all(a[1] == b[0] for a, b in pairwise(blocks))
    assert all(0 < end - start <= 64 << 10 for start, end in blocks)
    for survey in surveys:
        parts = [
            part
            for task in digest_tasks(plan, {}, task_bytes)
            if task.replica == survey.replica
            for part in task.parts
        ]
        covered = [p for part in parts for p in zip(part.edges, part.edges[1:], strict=False)]
        assert covered == [block for block in blocks if block[1] <= survey.end]
        assert covered[-1][1] == survey.end


def test_block_number_of_a_part_is_its_place_in_the_segment() -> None:
    """Digests are put where they belong by the number that the part carries."""
    plan = make_plan([claim("n1", 2 * SEGMENT)], 64 << 10)
    for task in digest_tasks(plan, {}, 200 << 10):
        for part in task.parts:
            edges = next(s.edges for s in plan.segments if s.base == part.base)
            assert edges[part.first_block] == part.edges[0]


def stateless(parts: list[PartDigests]) -> list[PartDigests]:
    return [replace(part, state=None) for part in parts]


def test_pool_gives_what_one_process_gives(three: ReplicaSet) -> None:
    """The same digests in the same order, and no process left behind."""
    from audit.reading.survey import SurveyTask, survey

    surveys = [survey(SurveyTask(replica)) for replica in three.replicas]
    tasks = digest_tasks(make_plan(surveys, BLOCK), {}, 2 * BLOCK)
    done: list[int] = []
    pool = LocalEngine(processes=2, inline_bytes=0)
    try:
        pooled: list[list[PartDigests]] = pool.run(digest_blocks, tasks, done.append)
    finally:
        pool.close()
    alone: list[list[PartDigests]] = LocalEngine(processes=1).run(digest_blocks, tasks)
    # What the file's state tells depends on how long ago it was written.
    assert [stateless(parts) for parts in pooled] == [stateless(parts) for parts in alone]
    assert sum(done) == sum(task.weight for task in tasks)


def test_pace_holds_a_reader_to_its_rate() -> None:
    """Ten megabytes at one a second take ten seconds, slept in naps of a second."""
    now = [0.0]
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds

    pace = Pace(1e6, clock=lambda: now[0], nap=nap)
    for _ in range(5):
        pace.spend(2_000_000)
    assert now[0] == pytest.approx(10.0)
    assert max(naps) <= 1.0


@pytest.mark.parametrize(("inline_bytes", "at_once"), [(1 << 30, 1), (0, 2)])
def test_rate_is_divided_by_how_many_tasks_run_at_once(
    three: ReplicaSet, inline_bytes: int, at_once: int
) -> None:
    """A small audit runs its tasks one after the other, so each of them has the whole rate."""
    rates: list[float] = []

    class Recording(LocalEngine):
        def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
            rates.extend(getattr(task, "bytes_per_s", 0.0) for task in tasks)
            return [work(task) for task in tasks]

    engine = Recording(processes=2, inline_bytes=inline_bytes)
    options = Options(block_size=BLOCK, bytes_per_s=1e12, derived=True)
    audit_replicas(three.replicas, engine, options)
    asked = {rate for rate in rates if rate}
    assert asked == {1e12 / at_once}


def test_a_single_task_has_the_whole_rate() -> None:
    """However many processes there are."""
    (task,) = digest_tasks(make_plan([claim("n1", SEGMENT)], 64 << 10), {}, SEGMENT)
    assert LocalEngine(processes=4, inline_bytes=0).width([task]) == 1
    assert LocalEngine(processes=4, inline_bytes=0).width([task] * 3) == 3
    assert LocalEngine(processes=4, inline_bytes=0).width([task] * 9) == 4


def test_digest_of_a_large_block_is_that_of_the_whole(tmp_path: Path) -> None:
    """A block that is larger than the reading buffer has the digest of all its bytes."""
    from xxhash import xxh3_64_intdigest

    content = os.urandom(SEGMENT)
    (tmp_path / f"{0:020d}").write_bytes(content)
    survey = claim("n1", SEGMENT)
    plan = make_plan([survey], SEGMENT)
    (task,) = digest_tasks(plan, {}, SEGMENT)
    located = type(task)("n1", str(tmp_path), task.parts, 0)
    (part,) = digest_blocks(located)
    assert part.values().tolist() == [xxh3_64_intdigest(content)]


@dataclass(frozen=True)
class Deed:
    """What a task does to whoever runs it."""

    kind: str
    weight: int = 1
    host: str | None = None


def do(deed: Deed) -> int:
    if deed.kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed.kind == "last":
        time.sleep(3_600)
    if deed.kind == "eat":
        raise MemoryError
    return deed.weight


def test_killed_process_fails_a_run_and_not_the_next() -> None:
    """The system kills whoever takes too much memory; the pool is broken for good then, and
    nothing is known of any replica."""
    engine = LocalEngine(processes=2, inline_bytes=0)
    try:
        with pytest.raises(EngineFailed) as caught:
            engine.run(do, [Deed("die"), Deed("work")])
        assert (caught.value.exit_code, caught.value.retriable) == (ExitCode.INCOMPLETE, True)
        assert engine.run(do, [Deed("work"), Deed("work")]) == [1, 1]
    finally:
        engine.close()


def test_interrupted_run_ends_at_once_and_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for tasks that take an hour, and no thread fails on those that hadn't begun:
    not even where the pool's thread hears of the processes' end before it hears of the pool's."""
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    engine = LocalEngine(processes=2, inline_bytes=0)
    children = multiprocessing.active_children

    def ended() -> list[multiprocessing.process.BaseProcess]:
        assert engine._pool is not None
        for process in children():
            process.terminate()
        engine._pool._executor_manager_thread.join(60)  # type: ignore[attr-defined]
        return []

    monkeypatch.setattr(multiprocessing, "active_children", ended)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(do, [Deed("work"), *[Deed("last")] * 20], interrupt)
    assert [each.exc_value for each in failed] == []
    assert children() == []


def test_task_without_memory_says_nothing_of_a_replica() -> None:
    """In this process as in a pool's."""
    with pytest.raises(EngineFailed, match="no memory"):
        LocalEngine(processes=1).run(do, [Deed("eat")])
