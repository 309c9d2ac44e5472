"""Members that can't go on, at real nodes: who restarts them harms no message."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.client import Client, Message, OffsetOutOfRange
from dledger.client.members.pulling import Pulling
from dledger.records.reserved import GIVEN_UP_AFTER, GIVEN_UP_IN_ORDER
from tests.client.loops import async_test
from tests.integration.test_group_members import PUSH, QUEUES, fill, some_group, until


@pytest.mark.parametrize("in_order", [True, False])
def test_restarts_after_an_error_count_as_failures_of_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_order: bool
) -> None:
    """Of one queue what comes next has gone, and a supervisor starts the member again and again:
    messages of the other queues were never tried meanwhile, and are told to be."""
    lives = max(GIVEN_UP_IN_ORDER, GIVEN_UP_AFTER) + 2
    has_gone = [True]
    pulled = Pulling._on_messages

    def on_messages(self: Pulling, *brought: Any) -> None:
        if has_gone:
            raise OffsetOutOfRange("what comes next has gone")
        pulled(self, *brought)

    monkeypatch.setattr(Pulling, "_on_messages", on_messages)

    @async_test
    async def check() -> None:
        async with some_group(tmp_path) as (_, client, addresses):
            await fill(client, 2)
            options = replace(PUSH, in_order=in_order, member="me")
            for _ in range(lives):
                async with Client.connect(addresses) as process:
                    consumer = process.push_consumer("g", options=options)
                    consumer.on("t")(lambda message: None)
                    with pytest.raises(OffsetOutOfRange):
                        await consumer.run()
            has_gone.clear()
            attempts: dict[tuple[int, bytes], int] = {}
            consumer = client.push_consumer("g", options=options)

            @consumer.on("t")
            async def handle(message: Message) -> None:
                attempts[message.queue_id, message.body] = message.attempt

            run = asyncio.create_task(consumer.run())
            await until(lambda: len(attempts) == 2 * QUEUES)
            consumer.stop()
            await run
            assert set(attempts.values()) == {1}
            assert (await client.dead_letters("g")).count == 0

    check()
