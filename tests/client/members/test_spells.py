"""What the brokers refuse of a queue again and again is told once, and again when it is back."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from dledger.client import Message
from dledger.client.members.finished import MAX_RUNS
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, fill, running, stocked, until

FULL = "more than 128 finished ranges: commit the lowest first"


class Judge:
    """Refuses what is said of some queues, and lets the rest through to who judged before."""

    def __init__(self) -> None:
        self.full: set[int] = set()  # queues
        self.refused: Counter[int] = Counter()
        self.taken: Counter[int] = Counter()

    def refuses(self, queue_id: int) -> bool:
        is_full = queue_id in self.full
        (self.refused if is_full else self.taken)[queue_id] += 1
        return is_full

    async def refused_more(self, queue_id: int) -> None:
        """Five times at least from now on."""
        before = self.refused[queue_id]
        await until(lambda: self.refused[queue_id] >= before + 5)


def told(caplog: pytest.LogCaptureFixture) -> Counter[int]:
    """How often that was told, by queue."""
    texts = [each.getMessage() for each in caplog.records if FULL in each.getMessage()]
    return Counter(int(text.partition(" t/")[2][0]) for text in texts)


@async_test
async def test_refused_commits_are_told_once_a_queue_and_spell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They come again with every round; each queue is told of by itself."""
    caplog.set_level(logging.WARNING, "dledger.client")
    judge = Judge()
    async with stocked(2, 2) as (group, client):
        commit = group.members._commit_queue

        def judged(record: Any, request: Any, place: Any, queue: Any) -> epb.Error | None:
            if judge.refuses(place.queue_id):
                return wire_error(epb.LIMIT_REACHED, FULL)
            return commit(record, request, place, queue)

        group.members._commit_queue = judged  # type: ignore[method-assign]
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            """Nothing fails."""

        judge.full = {0}
        async with running(service):
            await judge.refused_more(0)
            assert told(caplog) == {0: 1}
            judge.full = {0, 1}
            await fill(client, 2, 1)
            await judge.refused_more(1)
            assert told(caplog) == {0: 1, 1: 1}
            judge.full = set()
            await until(lambda: group.members.frontier("g", "t") == 3)
            judge.full = {0}
            await fill(client, 2, 1)
            await judge.refused_more(0)
            assert told(caplog) == {0: 2, 1: 1}
            judge.full = set()
        assert service.statistics().refused >= 15


@async_test
async def test_what_is_not_taken_back_is_told_once_a_queue_and_spell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A spell lasts while the first message of a call is taken and the others aren't."""
    caplog.set_level(logging.WARNING, "dledger.client")
    judge = Judge()
    async with stocked(1, 3) as (group, client):
        group.retries.takes_failed = True
        send_back = group.retries._send_back

        is_first_taken = False

        def judged(record: Any, request: Any, failed: Any) -> int:
            in_company = len(request.messages) > 1
            if failed.topic != "t" or (is_first_taken and in_company and failed.offset == 0):
                return send_back(record, request, failed)
            if judge.refuses(failed.queue_id):
                raise Refusal(wire_error(epb.LIMIT_REACHED, FULL))
            return send_back(record, request, failed)

        group.retries._send_back = judged  # type: ignore[method-assign]
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            if not message.reconsume_times or message.topic == "t":
                raise ValueError

        judge.full = {0}
        async with running(service):
            await judge.refused_more(0)
            is_first_taken = True
            await until(lambda: group.members.frontier("g", "t") == 1)
            await judge.refused_more(0)
            assert told(caplog) == {0: 1}
            judge.full = set()
            await until(lambda: group.members.frontier("g", "t") == 3)
            judge.full = {0}
            await fill(client, 1, 1)
            await judge.refused_more(0)
            assert told(caplog) == {0: 2}
            judge.full = set()


@async_test
async def test_nothing_is_given_up_for_an_offset_that_has_not_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even at the last attempt: a queue that seems to end before the message lacks it for
    now. One that begins behind it lacks it for good."""
    caplog.set_level(logging.WARNING, "dledger.client")
    async with stocked(1, 2) as (group, client):
        group.retries.takes_failed = True
        ends: epb.OffsetRange | None = epb.OffsetRange(min_offset=0, max_offset=0)
        asked = 0

        def judged(record: Any, request: Any, failed: Any) -> int:
            nonlocal asked
            asked += 1
            refusal = wire_error(epb.OFFSET_OUT_OF_RANGE, "outside")
            if ends is not None:
                refusal.valid.CopyFrom(ends)
            raise Refusal(refusal)

        group.retries._send_back = judged  # type: ignore[method-assign]
        service = client.push_consumer("g", replace(PUSH, max_attempts=1))

        @service.on("t")
        async def handle(message: Message) -> None:
            raise ValueError

        def given_up() -> int:
            return sum("given up" in each.getMessage() for each in caplog.records)

        async with running(service):
            await until(lambda: asked >= 4)
            ends, asked = None, 0
            await until(lambda: asked >= 4)
            assert (given_up(), group.members.frontier("g", "t")) == (0, 0)
            ends = epb.OffsetRange(min_offset=1, max_offset=2)
            await until(lambda: group.members.frontier("g", "t") == 1)
            assert given_up() == 1
            ends = epb.OffsetRange(min_offset=2, max_offset=2)
            await until(lambda: group.members.frontier("g", "t") == 2)


@async_test
async def test_a_message_that_is_given_up_is_nothing_that_the_brokers_know() -> None:
    """They have as many ranges as they take: one more, and a commit of the queue is refused whole
    for as long as the message in front of them is at work."""
    async with stocked(1, 0) as (group, client):
        group.retries.takes_failed = True
        options = replace(PUSH, max_attempts=1)
        service = client.push_consumer("g", options)
        service.on("t")(lambda message: None)
        async with running(service):
            await until(lambda: service.statistics().queues == 1)
        await fill(client, 1, 2 * MAX_RUNS + 4)
        last, given_up, may_end = 2 * MAX_RUNS + 3, 0, False
        for each in range(2, 2 * MAX_RUNS + 2, 2):
            group.members.finished("g", "t").pass_over(each, each + 1)

        def judged(record: Any, request: Any, failed: Any) -> int:
            nonlocal given_up
            if failed.offset != last:
                raise Refusal(wire_error(epb.LIMIT_REACHED, "not now"))
            given_up += 1
            refusal = wire_error(epb.OFFSET_OUT_OF_RANGE, "outside")
            refusal.valid.CopyFrom(epb.OffsetRange(min_offset=last + 1, max_offset=last + 1))
            raise Refusal(refusal)

        group.retries._send_back = judged  # type: ignore[method-assign]
        service = client.push_consumer("g", options)

        @service.on("t")
        async def handle(message: Message) -> None:
            if message.queue_offset or not may_end:
                raise ValueError

        async with running(service):
            await until(lambda: given_up == 1)
            may_end = True
            await until(lambda: group.members.frontier("g", "t") == 1)
            assert len(group.members.finished("g", "t").runs()) == MAX_RUNS
            assert service.statistics().refused == 0
            assert given_up == 1
