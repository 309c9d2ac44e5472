"""What is drawn beside faults: how long things are kept, and what machines and networks bear."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from broker.leader.lived_marks import Lived, LivedMarks
from broker.leader.retention import Measured, SegmentEnd
from broker.leader.topic_retention import TopicRetention
from broker.lived_reader import LivedReader
from broker.state.topics import TopicState
from chaos.sim import rpc_limits
from chaos.sim.defect import Defect
from chaos.sim.drawing.plans import draw_plan
from chaos.sim.plan import Fault, FaultEvent, Plan
from chaos.sim.rpc_limits import check_error, check_size
from chaos.sim.run import run_plan
from chaos.sim.strikes import clocks
from chaos.sim.world import World
from dledger.limits import RPC_LIMIT_BYTES
from dledger.wire import errors_pb2 as epb
from store.consumequeue import ConsumeQueues

WISHED = 740020  # some of its topics' messages go


def aged(seed: int) -> Plan:
    """A group that lets go what is too old, and nothing else."""
    plan = draw_plan(seed, duration_ms=6_000)
    assert plan.goes_by_age_alone
    return plan


def test_what_is_old_goes_and_nothing_else() -> None:
    """By the leader's own word, and by the whole history."""
    found: list[int] = []

    def look(world: World) -> None:
        assert world.archive is not None
        assert world.archive.ages is not None
        found.append(world.archive.ages.moves)

    assert run_plan(aged(9), look).failure is None
    assert found > [0]


def test_an_age_that_is_reckoned_too_high_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything as old as the log is."""

    def oldest(_: SegmentEnd, measured: Measured) -> int:
        return measured.lived_ms

    monkeypatch.setattr(SegmentEnd, "age_ms", oldest)
    failure = run_plan(aged(9)).failure
    assert failure is not None
    assert failure.check == "retired too early"


def stepping(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """One whose log's time steps by days, now and then, a minute of which is lived each: what was
    stored before the first is old in the end, and what is between the last two isn't."""
    days = count(1)
    monkeypatch.setattr(clocks, "_leap_ms", lambda _: next(days) * clocks.DAY_MS)
    plan = aged(9)
    kinds = (Fault.CLOCKS_LEAP, Fault.TRANSFER, Fault.TRANSFER)
    faults = [
        FaultEvent(3 * at + number + 1, 600 + 900 * at + 200 * number, kind)
        for at in range(5)
        for number, kind in enumerate(kinds)
    ]
    tuning = replace(plan.tuning, retention_age_ms=70_000)
    return replace(plan, tuning=tuning, faults=tuple(faults))


async def unread(*_: object) -> None:
    """Nothing more is known."""


def unseen(*_: object) -> None:
    """Nobody was there."""


@pytest.mark.long
def test_what_is_old_goes_however_far_the_logs_time_stepped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether its leader was there, or has to read it."""
    plan = stepping(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(LivedReader, "read_on", unread)
        assert run_plan(plan).failure is None
    stepping(monkeypatch)
    monkeypatch.setattr(LivedMarks, "note", unseen)
    assert run_plan(plan).failure is None


def test_what_a_step_keeps_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As leaders did that knew how long the group had lived at their log's beginning alone: what
    followed a step was kept for as long as that was."""
    monkeypatch.setattr(LivedReader, "read_on", unread)
    monkeypatch.setattr(LivedMarks, "note", unseen)
    failure = run_plan(stepping(monkeypatch)).failure
    assert failure is not None
    assert failure.check == "kept too long"


def test_a_queue_that_begins_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that takes what its log holds for gone says so to every client."""

    def at_its_end(queues: ConsumeQueues, topic: str, queue_id: int, _: int) -> bool:
        return honest(queues, topic, queue_id, queues.max_offset(topic, queue_id))

    honest = ConsumeQueues.begin_at
    monkeypatch.setattr(ConsumeQueues, "begin_at", at_its_end)
    failure = run_plan(aged(9)).failure
    assert failure is not None
    assert failure.check == "queue begins elsewhere"


def test_a_part_of_the_seeds_goes_by_age_alone() -> None:
    """Some of those whose log's front goes at all."""
    plans = [draw_plan(seed) for seed in range(200)]
    assert 10 < sum(plan.goes_by_age_alone for plan in plans) < 50
    assert sum(plan.tuning.retention_age_ms > 0 for plan in plans) < 80


def test_what_grpc_would_not_carry_is_found() -> None:
    """A message beyond its limit, and an error whose text takes too much room beside a status."""
    check_size("n1", RPC_LIMIT_BYTES, b"")
    with pytest.raises(Defect, match="message beyond"):
        check_size("n1", RPC_LIMIT_BYTES + 1, b"")
    check_error("n1", epb.Error(message="a" * 3_000))
    check_error("n1", epb.Error(message="ü" * 800))
    for text in ("a" * 4_000, "ü" * 2_000):
        with pytest.raises(Defect, match="error beyond"):
            check_error("n1", epb.Error(message=text))


def test_an_errors_text_is_held_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every error that a node answers with."""
    monkeypatch.setattr(rpc_limits, "METADATA_BYTES", 0)
    failure = run_plan(draw_plan(1, duration_ms=500)).failure
    assert failure is not None
    assert failure.check == "error beyond gRPC's metadata"


def wished(seed: int) -> Plan:
    """A group whose topics wish their messages for longer and shorter."""
    plan = replace(draw_plan(seed, duration_ms=6_000), faults=())
    assert plan.wisher
    return plan


def test_what_a_topic_lets_go_of_is_as_old_as_it_wishes() -> None:
    """By the leader's own word, and by the whole history."""
    found: list[int] = []

    def look(world: World) -> None:
        assert world.archive is not None
        found.append(world.archive.wishes.moves)

    assert run_plan(wished(WISHED), look).failure is None
    assert found > [0]


def test_what_a_topic_lets_go_of_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that takes each wish for one of 300 ms."""
    honest = TopicRetention._start

    def hasty(
        of: TopicRetention, topic: TopicState, queue_id: int, now: Lived, wish_ms: int
    ) -> int | None:
        return honest(of, topic, queue_id, now, 300)

    monkeypatch.setattr(TopicRetention, "_start", hasty)
    failure = run_plan(wished(WISHED)).failure
    assert failure is not None
    assert failure.check == "let go too early"
