"""When a loop over a consumer may take silence for the end."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from dledger.client import ALL, Client, ConsumerOptions, InvalidArgument
from dledger.client.blocking import BlockingClient
from dledger.client.fetching import MIN_HOLD_MS
from dledger.testing import BlockingFakeGroup
from dledger.testing.fake_nodes import FakeNode
from tests.client.loops import async_test
from tests.client.test_consumer import drain, fetching_of, stocked

HOLD_S = 0.05
SHORT_S = 0.1
IDLE_S = 0.4


@pytest.mark.parametrize("group", [None, "g"], ids=["alone", "member"])
@async_test
async def test_what_comes_while_nobody_listens_is_not_behind_the_end(group: str | None) -> None:
    """An answer says what was so when it was made: a program that stood still meanwhile (SIGSTOP, a
    machine that slept, a handler that blocks the event loop) hears it as if all the time since then
    had been silent."""
    with (
        BlockingFakeGroup() as nodes,
        BlockingClient.connect(nodes.addresses) as other,
        other.producer() as producer,
    ):
        topic = nodes.topic()
        producer.send(topic, b"first").result()
        async with Client.connect(nodes.addresses) as client:
            consumer = client.pull_consumer(
                topic,
                group=group,
                queues=None if group else ALL,
                idle_timeout_s=IDLE_S,
                options=ConsumerOptions(hold_ms=round(HOLD_S * 1_000)),
            )
            async with consumer:
                assert (await anext(aiter(consumer))).body == b"first"
                second = asyncio.ensure_future(anext(aiter(consumer)))
                await asyncio.sleep(2.5 * HOLD_S)  # a pull is under way
                time.sleep(4 * HOLD_S)  # noqa: ASYNC251 - and answered: there is nothing
                producer.send(topic, b"second").result()
                time.sleep(IDLE_S)  # noqa: ASYNC251
                assert (await second).body == b"second"
                with pytest.raises(StopAsyncIteration):
                    await anext(aiter(consumer))


@async_test
async def test_loop_that_has_ended_asks_for_nothing_until_it_is_begun_again() -> None:
    """It asked for each queue twenty times a second, for as long as its consumer was open. Whoever
    goes on is given what has come meanwhile, and its end is another silence."""
    async with (
        stocked({0: 1, 1: 1}) as (group, client),
        client.pull_consumer("t", idle_timeout_s=SHORT_S) as consumer,
    ):
        assert await drain(consumer) == {0: [0], 1: [0]}
        fetching = fetching_of(consumer)
        await asyncio.sleep(3 * MIN_HOLD_MS / 1_000)  # what was under way is answered
        calls = group.nodes[0].calls["Pull"]
        await asyncio.sleep(10 * MIN_HOLD_MS / 1_000)
        assert group.nodes[0].calls["Pull"] == calls
        async with client.producer() as producer:
            await producer.send("t", b"more", queue_id=1)
        assert await drain(consumer) == {1: [1]}
        begun = asyncio.get_running_loop().time()
        assert await drain(consumer) == {}
        since = [reader.empty_since for reader in fetching._readers.values()]
        assert all(moment is not None and moment >= begun for moment in since)


@async_test
async def test_answer_of_before_is_no_silence_of_the_next_loop() -> None:
    """It was made while nobody asked, and heard when somebody does again."""
    async with (
        stocked({0: 0}) as (group, client),
        client.pull_consumer("t", idle_timeout_s=0) as consumer,
    ):
        late, answered = asyncio.Event(), asyncio.Event()

        async def hold(method: str, node: FakeNode, request: Any) -> None:
            if method == "Pull" and group.nodes[0].calls["Pull"] == 2:
                late.set()
                await answered.wait()

        group.after.append(hold)
        assert await drain(consumer) == {}
        await late.wait()  # it has seen an empty queue
        async with client.producer() as producer:
            await producer.send("t", b"more")
        going_on = asyncio.ensure_future(drain(consumer))
        await asyncio.sleep(0)
        answered.set()
        assert await going_on == {0: [0]}


@pytest.mark.parametrize("group", [None, "g"], ids=["alone", "member"])
@async_test
async def test_idle_timeout_that_is_no_time_is_refused(group: str | None) -> None:
    """A member used to ask the brokers to hold a pull for less than no time."""
    async with stocked({0: 1}) as (_, client):
        with pytest.raises(InvalidArgument, match="idle_timeout_s is -1"):
            client.pull_consumer("t", group=group, idle_timeout_s=-1)


@async_test
async def test_member_without_an_idle_timeout_to_wait_for_rests_between_looks() -> None:
    """With 0 it kept the event loop to itself, and had pulls held for a millisecond."""
    async with (
        stocked({0: 1}) as (group, client),
        client.pull_consumer("t", group="g", idle_timeout_s=0) as consumer,
    ):
        assert await drain(consumer) == {0: [0]}
        assert {pull.hold_ms for pull in group.members.pulls} == {MIN_HOLD_MS}
        assert consumer._reading._look_s > 0  # type: ignore[attr-defined]
