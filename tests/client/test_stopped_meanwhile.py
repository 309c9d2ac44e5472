"""A process that was stopped, or a machine that slept, while its receive was answered."""

from __future__ import annotations

import asyncio

import pytest

from dledger.client import delivery, receives
from dledger.client.broker_group import Effect
from dledger.client.connection import RECEIVE
from dledger.client.options import ClientOptions, StartFrom
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import commands_pb2 as kpb
from dledger.wire import deliveries_pb2 as pb
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test
from tests.client.members.test_push import fill, stocked
from tests.client.test_receives import asking, handed, receiving

INVISIBLE_S = 30  # of the consumers of `receiving`


class Clock:
    """Time that the test makes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in (receives, delivery):
            patch.setattr(module, "clock", self)

    def __call__(self) -> float:
        return self.now


def answered(first: int, held_ms: int | None) -> pb.ReceiveResponse:
    answer = handed(first, 1)
    if held_ms is not None:
        answer.held_ms = held_ms
    return answer


@async_test
async def test_what_others_may_have_by_now_is_asked_for_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer lay there while nobody read it; the same attempt is given what nobody has had
    since, and nothing of an attempt that nobody made is counted."""
    clock = Clock(monkeypatch)
    async with receiving() as (brokers, consumer):
        (task,) = asking(consumer, 1, wait_s=60)
        call = await brokers.asked(1)
        attempt_id, is_again = call.request.attempt_id, call.request.again
        clock.now += 2 + INVISIBLE_S
        call.answer.set_result(answered(0, held_ms=2_000))
        call = await brokers.asked(2)
        assert consumer._in_hand == {}
        assert (is_again, call.request.again) == (False, True)
        assert call.request.attempt_id == attempt_id
        call.answer.set_result(answered(0, held_ms=0))
        (job,) = await task
        assert job.hidden_until_s == pytest.approx(clock.now + INVISIBLE_S)


@async_test
async def test_who_was_stopped_for_long_has_the_time_to_ask_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its wait and the deadline behind it are over by then: that is no error of the call."""
    clock = Clock(monkeypatch)
    async with receiving() as (brokers, consumer):
        brokers.options = ClientOptions(deadline_s=1.0)
        (task,) = asking(consumer, 1, wait_s=0.05)
        call = await brokers.asked(1)
        await asyncio.sleep(1.1)
        clock.now += INVISIBLE_S
        call.answer.set_result(answered(0, held_ms=0))
        call = await brokers.asked(2)
        assert call.deadline_s > 0.01
        call.answer.set_result(answered(0, held_ms=0))
        (job,) = await task
        assert job.hidden_until_s == pytest.approx(clock.now + INVISIBLE_S)


@async_test
async def test_answers_that_take_longer_than_messages_are_hidden_are_given_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else nobody would ever be given them, and they ended as dead letters. With a receipt that
    says that its time is over."""
    clock = Clock(monkeypatch)
    async with receiving() as (brokers, consumer):
        (task,) = asking(consumer, 1, wait_s=60)
        for number in (1, 2):
            call = await brokers.asked(number)
            clock.now += INVISIBLE_S
            call.answer.set_result(answered(0, held_ms=0))
        (job,) = await task
        assert job.hidden_until_s == pytest.approx(clock.now)


@async_test
async def test_message_that_is_answered_too_late_is_no_dead_letter_that_nobody_was_given() -> None:
    """Whoever was stopped makes none of its attempts by that."""
    async with stocked(1, 1) as (group, client):
        worker = client.simple_consumer(
            "t", "g", start=StartFrom.FIRST, invisible_s=0.1, max_attempts=2
        )
        late = 0

        async def delay(method: str, _node: object, _request: object) -> None:
            nonlocal late
            if method == "Receive" and late < 3:
                late += 1
                await asyncio.sleep(0.15)

        group.after.append(delay)
        (job,) = await worker.receive(1, wait_s=5)
        assert job.message.attempt == 1


@pytest.mark.parametrize(
    ("held_ms", "read_after_s", "hidden_from_s"),
    [(2_000, 10, 2), (2_000, 1.5, 1.5), (0, 10, 0), (None, 10, 10), (None, 80, 60)],
)
@async_test
async def test_time_counts_from_when_the_brokers_chose(
    monkeypatch: pytest.MonkeyPatch,
    held_ms: int | None,
    read_after_s: float,
    hidden_from_s: float,
) -> None:
    """However late the answer is read; older brokers don't say when that was, but hold no call
    any longer than they were asked to, or than two minutes."""
    clock = Clock(monkeypatch)
    async with receiving() as (brokers, consumer):
        (task,) = asking(consumer, 1, wait_s=60)
        call = await brokers.asked(1)
        clock.now += read_after_s
        call.answer.set_result(answered(0, held_ms))
        (job,) = await task
        assert job.hidden_until_s == pytest.approx(100 + hidden_from_s + INVISIBLE_S)


@async_test
async def test_the_attempt_that_is_answered_counts() -> None:
    """Refusals before it have taken their time, which nobody's message was hidden for."""
    async with stocked(1, 1) as (group, client):
        worker = client.simple_consumer("t", "g", start=StartFrom.FIRST)
        refused = 0
        sent: list[int] = []

        async def refuse(method: str, _node: object, _request: object) -> None:
            nonlocal refused
            if method == "Receive" and refused < 2:
                refused += 1
                raise Refusal(wire_error(epb.BUSY))

        group.before.append(refuse)
        request = pb.ReceiveRequest(
            group="g", topic="t", attempt_id=b"12345678", hold_ms=0, hidden_ms=1_000
        )
        request.start = kpb.START_FIRST
        answer = await worker._broker_group().call(
            RECEIVE, request, Effect.ONCE, on_sent=lambda: sent.append(refused)
        )
        assert answer.handed
        assert sent == [0, 1, 2]


@async_test
async def test_fake_nodes_say_for_how_long_they_held_a_receive() -> None:
    """As real ones do."""
    async with stocked(1, 0) as (group, client):
        request = pb.ReceiveRequest(
            group="g", topic="t", attempt_id=b"12345678", hold_ms=10_000, hidden_ms=1_000
        )
        receiving = asyncio.ensure_future(group.deliveries.on_Receive(None, request))
        await asyncio.sleep(0.1)
        await fill(client, 1, 1)
        answer = await receiving
        assert answer.handed
        assert 100 <= answer.held_ms < 10_000
        request.hold_ms = 0
        assert not (await group.deliveries.on_Receive(None, request)).HasField("held_ms")
