"""When a loop over a consumer may take silence for the end."""

from __future__ import annotations

import asyncio
import time

import pytest

from dledger.client import ALL, Client, ConsumerOptions
from dledger.client.blocking import BlockingClient
from dledger.testing import BlockingFakeGroup
from tests.client.loops import async_test

HOLD_S = 0.05
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
