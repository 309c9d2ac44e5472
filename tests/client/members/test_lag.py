"""What members say that they haven't finished yet, against what there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dledger.client import Message
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, running, stocked, until

COUNT, POISON = 100, 5


@pytest.mark.parametrize("gone", [0, POISON + 1, 70, 100])
@async_test
async def test_what_retention_has_taken_is_neither_finished_nor_to_be(gone: int) -> None:
    """A message that always fails holds the frontier, much above it is finished, and retention has
    passed it: what was finished of what has gone makes nothing of the rest finished."""
    async with stocked(1, COUNT) as (group, client):
        options = replace(PUSH, queue_messages=20, queue_span=30, retry_delays_s=(3_600.0,))
        service = client.push_consumer("g", options)
        seen: set[int] = set()

        @service.on("t")
        async def handle(message: Message) -> None:
            seen.add(message.queue_offset)
            if message.queue_offset == POISON:
                raise ValueError("poison")

        async with running(service):
            await until(lambda: group.members.finished("g", "t").runs() == [(POISON + 1, 35)])
            group.model.topics["t"][0].min_offset = gone
            left = {at for at in range(gone, COUNT) if at == POISON or at not in seen}
            assert await service.lag() == {("t", 0): len(left)}
            group.model.topics["t"][0].min_offset = 0


@async_test
async def test_what_is_finished_behind_the_answer_is_not_subtracted() -> None:
    """Messages come, and are finished, while the answer is on its way."""
    async with stocked(1, COUNT) as (_, client):
        options = replace(PUSH, retry_delays_s=(3_600.0,))
        service = client.push_consumer("g", options)
        done: set[int] = set()

        @service.on("t")
        async def handle(message: Message) -> None:
            if message.queue_offset in (POISON, POISON + 1):
                raise ValueError("poison")
            done.add(message.queue_offset)

        async with running(service):
            await until(lambda: len(done) == COUNT - 2)
            membership = service._membership
            assert membership is not None
            (queue,) = membership.member.queues.values()
            queue.finished.pass_over(COUNT, COUNT + 10)
            assert await service.lag() == {("t", 0): 2}
