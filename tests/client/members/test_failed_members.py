"""A member that can't go on ends as one that is stopped: handlers are waited for, what is finished
is committed, and a goodbye said, without which the brokers count a failure of the message in front
of each of its queues (ADR 63). Where nothing can be committed any more, who asks for it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dledger.client import (
    Client,
    ClientClosed,
    ClientFault,
    ConsumerOptions,
    LeaseLost,
    MemberReplaced,
    Message,
    OffsetOutOfRange,
    PullConsumer,
    PushConsumer,
    RevokedQueues,
    StartFrom,
)
from dledger.client.members.membership import Membership
from dledger.client.members.pulling import Pulling
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, QUICK, fill, stocked, until

COUNT = 10
NEVER_S = 3_600.0
AT_THE_END = replace(PUSH, commit_every_s=NEVER_S, drain_s=30.0)
LOOP = ConsumerOptions(hold_ms=50)


async def let_go(group: FakeGroup, client: Client, topic: str = "t") -> None:
    """Retention passes what comes next in the topic's first queue, and a pull hears of it."""
    group.model.topics[topic][0].min_offset = COUNT + 10
    async with client.producer() as producer:
        await producer.send(topic, b"more", queue_id=1)


async def read_on(consumer: PullConsumer, given: list[Message]) -> None:
    """Until it ends, or raises."""
    async for message in consumer:
        given.append(message)


def said_goodbye(group: FakeGroup) -> bool:
    """Time ends no session here."""
    return group.nodes[0].calls["Leave"] == 1 and not group.members.has_sessions("g")


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_what_is_finished_is_committed_and_handlers_are_waited_for(
    blocks: bool, in_order: bool
) -> None:
    """Of all queues of all topics: only one of them can't be read."""

    @async_test
    async def check() -> None:
        async with stocked(2, COUNT) as (group, client):
            group.members.session_ms = 60_000
            group.model.create("other", 1)
            async with client.producer() as producer:
                for number in range(COUNT):
                    producer.send("other", b"%d" % number)
            go_on = asyncio.Event()
            begun: set[tuple[str, int, int]] = set()
            service = client.push_consumer("g", replace(AT_THE_END, in_order=in_order))

            async def wait(message: Message) -> None:
                begun.add((message.topic, message.queue_id, message.queue_offset))
                if (message.topic, message.queue_offset) == ("other", COUNT - 1):
                    await go_on.wait()

            def block(message: Message) -> None:
                begun.add((message.topic, message.queue_id, message.queue_offset))
                if (message.topic, message.queue_offset) == ("other", COUNT - 1):
                    while not go_on.is_set():
                        time.sleep(0.005)

            service.on("t")(block if blocks else wait)
            service.on("other")(block if blocks else wait)
            run = asyncio.create_task(service.run())
            await until(lambda: len(begun) == 3 * COUNT)
            await let_go(group, client)
            await until(service._stopped.is_set)
            await asyncio.sleep(0.05)
            assert not run.done(), "a handler is at work"
            go_on.set()
            with pytest.raises(OffsetOutOfRange):
                await run
            assert group.members.frontier("g", "t", 0) == COUNT
            assert group.members.frontier("g", "t", 1) >= COUNT
            assert group.members.frontier("g", "other") == COUNT
            assert said_goodbye(group)
            assert service.statistics().lost == 0

    check()


@async_test
async def test_handler_that_never_returns_holds_up_no_end() -> None:
    """It has `drain_s`; all else is committed."""
    async with stocked(2, COUNT) as (group, client):
        group.members.session_ms = 60_000
        begun: set[tuple[int, int]] = set()
        service = client.push_consumer("g", replace(AT_THE_END, drain_s=0.1))

        @service.on("t")
        async def handle(message: Message) -> None:
            begun.add((message.queue_id, message.queue_offset))
            if (message.queue_id, message.queue_offset) == (1, 4):
                await asyncio.sleep(NEVER_S)

        run = asyncio.create_task(service.run())
        await until(lambda: len(begun) == 2 * COUNT)
        await let_go(group, client)
        with pytest.raises(OffsetOutOfRange):
            await run
        assert group.members.frontier("g", "t", 0) == COUNT
        assert group.members.frontier("g", "t", 1) == 4
        assert group.members.finished("g", "t", 1).runs()[0][0] == 5
        assert said_goodbye(group)


@async_test
async def test_queues_are_told_of_before_they_go() -> None:
    """As given up, not as lost."""
    told: list[RevokedQueues] = []
    async with stocked(2, COUNT) as (group, client):
        service = client.push_consumer("g", AT_THE_END)
        service.on_revoke(told.append)
        seen: list[int] = []

        @service.on("t")
        async def handle(message: Message) -> None:
            seen.append(message.queue_offset)

        run = asyncio.create_task(service.run())
        await until(lambda: len(seen) == 2 * COUNT)
        await let_go(group, client)
        with pytest.raises(OffsetOutOfRange):
            await run
        assert sorted(queue for each in told for queue in each.queue_ids) == [0, 1]
        assert not any(each.lost for each in told)


def fails_once(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any], name: str, when: Callable[[], bool]
) -> list[str]:
    """That function raises what nobody foresees, once, when it is time; whether it has."""
    sound, failed = getattr(kind, name), list[str]()

    def act(*arguments: Any, **named: Any) -> Any:
        if when() and not failed:
            failed.append(name)
            raise RuntimeError("planted")
        return sound(*arguments, **named)

    monkeypatch.setattr(kind, name, act)
    return failed


@pytest.mark.parametrize("by_an_error", [True, False])
@pytest.mark.parametrize("signals", [1, 2])
@async_test
async def test_first_signal_cuts_no_end_short(signals: int, *, by_an_error: bool) -> None:
    """Who ends already by an error, or was stopped, does so in an orderly way; the second signal
    doesn't wait, as always."""
    async with stocked(2, COUNT) as (group, client):
        group.members.session_ms = 60_000
        begun: set[tuple[int, int]] = set()
        go_on = asyncio.Event()
        service = client.push_consumer("g", AT_THE_END)

        @service.on("t")
        async def handle(message: Message) -> None:
            begun.add((message.queue_id, message.queue_offset))
            if (message.queue_id, message.queue_offset) == (1, 4):
                await go_on.wait()

        run = asyncio.create_task(service.run())
        await until(lambda: len(begun) == 2 * COUNT)
        if by_an_error:
            await let_go(group, client)
            await until(service._stopped.is_set)
        else:
            service.stop()
        for _ in range(signals):
            service._on_signal()
        await asyncio.sleep(0.05)
        assert run.done() is (signals == 2)
        go_on.set()
        await asyncio.wait([run])
        if signals == 2:
            assert run.cancelled()
        else:
            assert isinstance(run.exception(), OffsetOutOfRange) is by_an_error
            assert group.members.frontier("g", "t", 0) == COUNT
            assert group.members.frontier("g", "t", 1) >= COUNT
            assert said_goodbye(group)


def start_all(client: Client, **changes: Any) -> tuple[PushConsumer, set[tuple[int, int]]]:
    """A consumer that handles all at once, and what it has begun."""
    service = client.push_consumer("g", replace(AT_THE_END, **changes))
    begun: set[tuple[int, int]] = set()

    @service.on("t")
    async def handle(message: Message) -> None:
        begun.add((message.queue_id, message.queue_offset))

    return service, begun


def at_work(
    group: FakeGroup, client: Client
) -> tuple[PushConsumer, set[tuple[int, int]], asyncio.Task[None]]:
    """A consumer whose session outlasts the test, and what it has begun; of what is planted the
    loop says nothing."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    group.members.session_ms = 60_000
    service, begun = start_all(client)
    return service, begun, asyncio.create_task(service.run())


@pytest.mark.parametrize("name", ["_hand_over", "_commit_now"])
def test_second_error_while_it_ends_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What commits goes on after one of its own; the first error is the one that is raised."""

    @async_test
    async def check() -> None:
        async with stocked(2, COUNT) as (group, client):
            service, begun, run = at_work(group, client)
            failed = fails_once(monkeypatch, Membership, name, service._stopped.is_set)
            await until(lambda: len(begun) == 2 * COUNT)
            await let_go(group, client)
            with pytest.raises(OffsetOutOfRange):
                await run
            assert failed
            assert group.members.frontier("g", "t", 0) == COUNT
            assert group.members.frontier("g", "t", 1) >= COUNT
            assert said_goodbye(group)

    check()


@pytest.mark.parametrize(
    ("kind", "name"), [(Membership, "_hand_over"), (Pulling, "_on_messages"), (Pulling, "_chosen")]
)
def test_what_nobody_foresaw_ends_it_so_too(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any], name: str
) -> None:
    """Also in what commits."""

    @async_test
    async def check() -> None:
        async with stocked(2, COUNT) as (group, client):
            _, begun, run = at_work(group, client)
            failed = fails_once(monkeypatch, kind, name, lambda: len(begun) >= 2 * COUNT)
            await until(lambda: len(begun) >= 2 * COUNT)
            await fill(client, 2, 1)
            with pytest.raises(ClientFault, match="planted"):
                await run
            assert failed
            assert group.members.frontier("g", "t", 0) >= COUNT
            assert group.members.frontier("g", "t", 1) >= COUNT
            assert said_goodbye(group)

    check()


@async_test
async def test_session_that_is_over_while_it_ends_holds_up_no_end() -> None:
    """What was finished comes again then, as after any session's end."""
    async with stocked(2, COUNT) as (group, client):
        service = client.push_consumer("g", AT_THE_END)
        begun: set[tuple[int, int]] = set()

        @service.on("t")
        async def handle(message: Message) -> None:
            begun.add((message.queue_id, message.queue_offset))
            if message.queue_offset == COUNT - 1:
                await asyncio.sleep(NEVER_S)

        run = asyncio.create_task(service.run())
        await until(lambda: len(begun) == 2 * COUNT)
        await let_go(group, client)
        await until(service._stopped.is_set)
        group.members.end_sessions("g")
        async with asyncio.timeout(10):
            with pytest.raises(OffsetOutOfRange):
                await run
        assert group.members.frontier("g", "t", 1) == 0


@async_test
async def test_a_loop_may_commit_after_its_error() -> None:
    """The usual `finally`: what its loop has finished is committed, in every queue."""
    async with stocked(2, COUNT) as (group, client):
        group.members.session_ms = 60_000
        consumer = client.pull_consumer("t", group="g", options=LOOP)
        for _ in range(2 * COUNT):
            await anext(consumer)
        await let_go(group, client)
        with pytest.raises(OffsetOutOfRange):
            await read_on(consumer, [])
        await consumer.commit()
        assert group.members.frontier("g", "t", 0) == COUNT
        assert group.members.frontier("g", "t", 1) >= COUNT
        with pytest.raises(OffsetOutOfRange):
            await anext(consumer)
        await consumer.close()
        assert said_goodbye(group)


@async_test
async def test_a_loop_is_given_what_was_fetched_before() -> None:
    """As of a queue that can't be read, whoever reads it; then the error, as often as it asks."""
    async with stocked(2, COUNT) as (group, client):
        consumer = client.pull_consumer("t", group="g", options=LOOP)
        given = [await anext(consumer)]
        membership = consumer._reading._membership  # type: ignore[attr-defined]
        await until(lambda: membership.member.running + _waiting(membership) == 2 * COUNT)
        await let_go(group, client)
        await until(lambda: consumer._reading._error is not None)  # type: ignore[attr-defined]
        with pytest.raises(OffsetOutOfRange):
            await read_on(consumer, given)
        assert len(given) >= 2 * COUNT
        await consumer.commit()
        assert group.members.frontier("g", "t", 0) == COUNT


def _waiting(membership: Membership) -> int:
    queues = membership.member.queues.values()
    return sum(queue.waiting_messages - queue.running for queue in queues)


@async_test
async def test_seeking_goes_on_after_the_error_of_a_loop() -> None:
    """As without a group: the queue from there, and the others from where they were. Sought in
    another queue than the one that can't be read, it is the same error again."""
    async with stocked(2, COUNT) as (group, client):
        await client.commit_offsets("g", "t", {0: 2, 1: 4})
        group.model.topics["t"][0].min_offset = 6
        options = ConsumerOptions(hold_ms=50)
        consumer = client.pull_consumer("t", group="g", idle_timeout_s=0.2, options=options)
        given: list[Message] = []
        with pytest.raises(OffsetOutOfRange):
            await read_on(consumer, given)
        await consumer.seek(1, 8)
        with pytest.raises(OffsetOutOfRange):
            await read_on(consumer, given)
        await consumer.seek(0, StartFrom.FIRST)
        await consumer.seek(1, 5)
        given.clear()
        await read_on(consumer, given)
        offsets = {0: list[int](), 1: list[int]()}
        for message in given:
            offsets[message.queue_id].append(message.queue_offset)
        assert offsets == {0: [6, 7, 8, 9], 1: [5, 6, 7, 8, 9]}
        await consumer.commit()
        assert [group.members.frontier("g", "t", queue) for queue in range(2)] == [COUNT, COUNT]
        await consumer.close()


@pytest.mark.parametrize("how", ["ask_for", "take_away"])
@async_test
async def test_a_loop_goes_on_when_the_queue_of_its_error_is_gone(how: str) -> None:
    """It is for whoever holds it now; what this member holds it reads. If the queue comes back,
    so does the error."""
    async with stocked(2, COUNT) as (group, client):
        group.members.session_ms = 60_000
        await client.commit_offsets("g", "t", {0: 2})
        group.model.topics["t"][0].min_offset = 6
        consumer = client.pull_consumer("t", group="g", idle_timeout_s=0.2, options=LOOP)
        given: list[Message] = []
        with pytest.raises(OffsetOutOfRange):
            await read_on(consumer, given)
        getattr(group.members, how)("g", "t", 0)
        membership = consumer._reading._membership  # type: ignore[attr-defined]
        await until(lambda: len(membership.member.queues) == 1)
        await read_on(consumer, given)
        assert [(m.queue_id, m.queue_offset) for m in given] == [(1, at) for at in range(COUNT)]
        group.members.give_back("g")
        await until(lambda: consumer._reading._error is not None)  # type: ignore[attr-defined]
        with pytest.raises(OffsetOutOfRange):
            await read_on(consumer, given)
        await consumer.close()


@async_test
async def test_a_loop_that_commits_by_itself_does_so_after_its_error() -> None:
    """As it is closed, at the latest."""
    async with stocked(2, COUNT) as (group, client):
        group.members.session_ms = 60_000
        options = ConsumerOptions(hold_ms=50, commit_every_s=NEVER_S)
        async with client.pull_consumer("t", group="g", options=options) as consumer:
            for _ in range(2 * COUNT):
                await anext(consumer)
            await let_go(group, client)
            with pytest.raises(OffsetOutOfRange):
                await read_on(consumer, [])
        assert group.members.frontier("g", "t", 0) == COUNT
        assert group.members.frontier("g", "t", 1) >= COUNT
        assert said_goodbye(group)


@pytest.mark.parametrize("says", ["stream", "commit", "client"])
@async_test
async def test_commit_of_a_loop_that_is_no_member_any_more_says_so(says: str) -> None:
    """Whoever says first that it is none: what wasn't committed comes again."""
    told: list[RevokedQueues] = []
    async with (
        stocked(1, COUNT) as (group, client),
        Client.connect(group.bootstrap, options=QUICK) as other,
    ):
        options = ConsumerOptions(hold_ms=50, member="me", on_revoke=told.append)
        consumer = client.pull_consumer("t", group="g", options=options)
        for _ in range(4):
            await anext(consumer)
        membership: Any = consumer._reading._membership  # type: ignore[attr-defined]
        if says == "client":
            membership._on_failed(ClientClosed("the client is closed"))
        elif says == "commit":
            session = membership.member.session
            membership._on_no_session(session, MemberReplaced("another one is this member"))
        else:
            second = other.pull_consumer(
                "t", group="g", options=ConsumerOptions(hold_ms=50, member="me")
            )
            await anext(second)
            await until(lambda: consumer._reading._error is not None)  # type: ignore[attr-defined]
        with pytest.raises(LeaseLost):
            await consumer.commit()
        await asyncio.sleep(0)
        assert told == ([] if says == "client" else [RevokedQueues("t", [0], lost=True)])


def test_broadcast_member_keeps_how_far_it_is(tmp_path: Path) -> None:
    """Nothing that it has finished comes again."""

    @async_test
    async def check() -> None:
        async with stocked(2, COUNT) as (group, client):
            file = tmp_path / "offsets"
            service, begun = start_all(client, broadcast=True, offsets_file=file)
            run = asyncio.create_task(service.run())
            await until(lambda: len(begun) == 2 * COUNT)
            await let_go(group, client)
            with pytest.raises(OffsetOutOfRange):
                await run
            again, seen = start_all(client, broadcast=True, offsets_file=file)
            group.model.topics["t"][0].min_offset = 0
            run = asyncio.create_task(again.run())
            await fill(client, 2, 1)
            await until(lambda: {(0, COUNT), (1, COUNT + 1)} <= seen)
            again.stop()
            await run
            assert all(offset >= COUNT for _, offset in seen)

    check()
