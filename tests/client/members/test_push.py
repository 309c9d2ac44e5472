"""The push consumer against fake nodes: who is given what, and what is committed then."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from dledger.client import (
    Client,
    ClientClosed,
    ClientFault,
    ClientOptions,
    ConsumerInUse,
    GroupDiffers,
    GroupHasMembers,
    InvalidArgument,
    MemberReplaced,
    Message,
    OffsetOutOfRange,
    PushConsumer,
    PushOptions,
    Reject,
    RevokedQueues,
    StartFrom,
    WhenGone,
)
from dledger.client.members import pulling
from dledger.testing.fake_nodes import FakeGroup
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test

QUICK = ClientOptions(presume_after_s=0.02)
PUSH = PushOptions(commit_every_s=0.02, retry_delays_s=(0.02,), drain_s=2.0, suspend_s=0.02)


@asynccontextmanager
async def stocked(queues: int = 1, count: int = 0) -> AsyncIterator[tuple[FakeGroup, Client]]:
    """A topic `t` with so many messages in each queue; their bodies are their numbers."""
    async with (
        FakeGroup() as group,
        Client.connect(group.bootstrap, options=QUICK) as client,
    ):
        group.model.create("t", queues)
        group.retries.takes_failed = False  # what a member does with it is looked at here
        await fill(client, queues, count)
        yield group, client


async def fill(client: Client, queues: int, count: int) -> None:
    """So many more messages in each queue."""
    async with client.producer() as producer:
        for number in range(count):
            for queue_id in range(queues):
                producer.send("t", b"%d" % number, queue_id=queue_id)


@asynccontextmanager
async def running(service: PushConsumer) -> AsyncIterator[asyncio.Task[None]]:
    """It runs meanwhile, and is stopped afterwards."""
    task = asyncio.create_task(service.run())
    try:
        yield task
    finally:
        service.stop()
        await asyncio.wait([task])
    task.result()


async def until(condition: object, *arguments: object) -> None:
    """Returns once it holds."""
    assert callable(condition)
    while not condition(*arguments):
        await asyncio.sleep(0.005)


@async_test
async def test_every_message_is_handled_and_committed() -> None:
    """Once each; what is committed in the end is all."""
    async with stocked(3, 100) as (group, client):
        seen: Counter[tuple[int, int]] = Counter()
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            seen[message.queue_id, message.queue_offset] += 1

        async with running(service):
            await until(lambda: len(seen) == 300)
        assert set(seen.values()) == {1}
        assert [group.members.frontier("g", "t", queue) for queue in range(3)] == [100] * 3
        assert not group.members.has_sessions("g"), "it said goodbye"


@async_test
async def test_functions_run_on_threads() -> None:
    """As many as there are, and every message once."""
    async with stocked(2, 200) as (group, client):
        seen: Counter[tuple[int, int]] = Counter()
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        def handle(message: Message) -> None:
            seen[message.queue_id, message.queue_offset] += 1

        async with running(service):
            await until(lambda: len(seen) == 400)
        assert set(seen.values()) == {1}
        assert group.members.frontier("g", "t", 1) == 200


@async_test
async def test_failed_message_comes_again_and_holds_up_nobody() -> None:
    """It says how often; the frontier stays below it, and what is finished above is committed."""
    async with stocked(1, 50) as (group, client):
        attempts: list[int] = []
        seen: set[int] = set()
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            if message.queue_offset == 3:
                attempts.append(message.attempt)
                if group.members.finished("g", "t").runs() != [(4, 50)]:
                    raise ValueError("not yet")
            seen.add(message.queue_offset)

        async with running(service):
            await until(lambda: len(seen) == 50)
            statistics = service.statistics()
        assert attempts == list(range(1, len(attempts) + 1))
        assert len(attempts) > 1
        assert statistics.failed == len(attempts) - 1
        assert group.members.frontier("g", "t") == 50


@async_test
async def test_poison_fills_its_queue_and_no_other() -> None:
    """A message that always fails bounds how far its queue is read; it is told."""
    options = replace(PUSH, queue_messages=20, queue_span=30)
    async with stocked(2, 100) as (group, client):
        seen: set[tuple[int, int]] = set()
        service = client.push_consumer("g", options)

        @service.on("t")
        async def handle(message: Message) -> None:
            if (message.queue_id, message.queue_offset) == (0, 5):
                raise ValueError("poison")
            seen.add((message.queue_id, message.queue_offset))

        async with running(service):
            await until(lambda: len(seen) == 100 + 34 and service.statistics().full == 1)
            assert await service.lag() == {("t", 0): 100 - 34, ("t", 1): 0}
            service.stop()
        assert group.members.frontier("g", "t", 0) == 5
        assert group.members.finished("g", "t", 0).runs() == [(6, 35)]


@async_test
async def test_in_order_a_failed_message_suspends_its_queue() -> None:
    """One at a time, in place, whatever happens."""
    async with stocked(2, 30) as (group, client):
        order: dict[int, list[int]] = {0: [], 1: []}
        at_work: Counter[int] = Counter()
        service = client.push_consumer("g", replace(PUSH, in_order=True))

        @service.on("t")
        async def handle(message: Message) -> None:
            at_work[message.queue_id] += 1
            assert at_work[message.queue_id] == 1
            await asyncio.sleep(0)
            at_work[message.queue_id] -= 1
            if message.queue_offset % 10 == 3 and message.attempt < 3:
                raise ValueError("again")
            order[message.queue_id].append(message.queue_offset)

        async with running(service):
            await until(lambda: len(order[0]) + len(order[1]) == 60)
        assert order == {0: list(range(30)), 1: list(range(30))}
        assert group.members.frontier("g", "t", 1) == 30


@pytest.mark.parametrize("blocks", [False, True])
def test_messages_of_one_key_are_handled_in_order(blocks: bool) -> None:
    """Those of several keys side by side, by coroutines and on threads."""

    @async_test
    async def check() -> None:
        async with stocked(1) as (_, client):
            async with client.producer() as producer:
                for number in range(200):
                    producer.send("t", b"%d" % number, key=f"k{number % 5}")
            order: dict[str | None, list[int]] = {}
            at_work: set[str | None] = set()
            most = [0]
            service = client.push_consumer("g", PUSH)

            def begin(message: Message) -> None:
                assert message.keys not in at_work
                at_work.add(message.keys)
                most[0] = max(most[0], len(at_work))

            def end(message: Message) -> None:
                at_work.remove(message.keys)
                order.setdefault(message.keys, []).append(int(message.body))

            async def wait(message: Message) -> None:
                begin(message)
                await asyncio.sleep(0.001)
                end(message)

            def block(message: Message) -> None:
                begin(message)
                time.sleep(0.001)
                end(message)

            service.on("t")(block if blocks else wait)
            async with running(service):
                await until(lambda: sum(map(len, order.values())) == 200)
            assert order == {f"k{key}": list(range(key, 200, 5)) for key in range(5)}
            assert most[0] > 1

    check()


@pytest.mark.parametrize("blocks", [False, True])
def test_asked_for_queue_is_worked_off_and_given_up(blocks: bool) -> None:
    """Nothing of it is begun any more; what runs is waited for, the application told, all is
    committed and released in one."""

    @async_test
    async def check() -> None:
        async with stocked(1, 100) as (group, client):
            group.members.release_ms = 20_000
            begun: list[int] = []
            go_on = threading.Event()
            told: list[RevokedQueues] = []
            service = client.push_consumer("g", replace(PUSH, handlers=2))

            async def wait(message: Message) -> None:
                begun.append(message.queue_offset)
                await until(go_on.is_set)

            def block(message: Message) -> None:
                begun.append(message.queue_offset)
                go_on.wait()

            @service.on_revoke
            async def revoked(queues: RevokedQueues) -> None:
                assert go_on.is_set(), "handlers first"
                assert group.members.holders("g") or queues.lost
                told.append(queues)

            service.on("t")(block if blocks else wait)
            async with running(service):
                await until(lambda: len(begun) == 2)
                group.members.ask_for("g", "t", 0)
                await asyncio.sleep(0.1)
                assert group.members.holders("g"), "handlers are at work"
                go_on.set()
                await until(lambda: not group.members.holders("g"))
            assert begun == [0, 1]
            assert group.members.frontier("g", "t") == 2
            assert told[0] == RevokedQueues("t", [0], lost=False)

    check()


@async_test
async def test_hand_over_does_not_wait_for_ever() -> None:
    """What is finished by then is committed, and the queue given up, while a handler still runs."""
    async with stocked(1, 10) as (group, client):
        go_on = asyncio.Event()
        done: list[int] = []
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            if message.queue_offset == 4:
                await go_on.wait()
            done.append(message.queue_offset)

        async with running(service):
            await until(lambda: len(done) == 9)
            group.members.ask_for("g", "t", 0)
            await until(lambda: not group.members.holders("g"))
            assert group.members.finished("g", "t").runs() == [(5, 10)]
            assert service.statistics().lost == 0, "given up in time"
            go_on.set()
            await until(lambda: len(done) == 10)
        assert group.members.frontier("g", "t") == 4, "it isn't this member's to commit"


@async_test
async def test_queue_that_was_taken_away_is_dropped() -> None:
    """What its handlers finish afterwards is committed by nobody, and comes again."""
    async with stocked(1, 10) as (group, client):
        go_on = asyncio.Event()
        begun: Counter[int] = Counter()
        told: list[RevokedQueues] = []
        service = client.push_consumer("g", PUSH)
        service.on_revoke(told.append)

        @service.on("t")
        async def handle(message: Message) -> None:
            begun[message.queue_offset] += 1
            await go_on.wait()

        async with running(service):
            await until(lambda: len(begun) == 10)
            group.members.take_away("g", "t", 0)
            await until(lambda: bool(told))
            go_on.set()
            await asyncio.sleep(0.1)
            assert group.members.frontier("g", "t") == 0
            group.members.give_back("g")
            await until(lambda: group.members.frontier("g", "t") == 10)
        assert set(begun.values()) == {2}
        assert told[0] == RevokedQueues("t", [0], lost=True)


@async_test
async def test_ended_session_is_begun_anew_with_another_token() -> None:
    """Everything that it held is dropped, and what wasn't committed comes again."""
    async with stocked(1, 10) as (group, client):
        begun: Counter[int] = Counter()
        go_on = asyncio.Event()
        service = client.push_consumer("g", replace(PUSH, member="me"))

        @service.on("t")
        async def handle(message: Message) -> None:
            begun[message.queue_offset] += 1
            if message.queue_offset == 9:
                await go_on.wait()

        async with running(service):
            await until(lambda: group.members.finished("g", "t").frontier == 9)
            (before,) = group.members.records["g"].sessions.values()
            group.members.end_sessions("g")
            await until(lambda: group.members.holders("g"))
            (after,) = group.members.records["g"].sessions.values()
            assert before.token != after.token
            go_on.set()  # until then its own handler is at work on it
            await until(lambda: begun[9] == 2)
        assert begun[8] == 1
        assert group.members.frontier("g", "t") == 10


@async_test
@pytest.mark.parametrize("is_there", [True, False])
async def test_late_word_on_a_session_that_is_over_is_old_news(*, is_there: bool) -> None:
    """A commit is answered after the stream has told of the session's end, and the member has
    joined anew: it is then the very process by which the old session was replaced, or it was
    told of an end that it knows. It keeps what it holds."""
    async with stocked(1, 10) as (group, client):
        go_on, held = asyncio.Event(), asyncio.Event()
        service = client.push_consumer("g", replace(PUSH, member="me"))

        @service.on("t")
        async def handle(message: Message) -> None:
            if message.queue_offset == 9:
                await go_on.wait()

        async def answer_late(method: str, _node: object, request: object) -> None:
            if method != "CommitLeases" or held.is_set():
                return
            held.set()
            (before,) = group.members.records["g"].sessions.values()
            group.members.end_sessions("g")
            sessions = group.members.records["g"].sessions
            await until(lambda: any(s.token != before.token for s in sessions.values()))
            await until(lambda: service.statistics().queues == 1)
            if not is_there:
                raise Refusal(wire_error(epb.SESSION_ENDED))

        group.before.append(answer_late)
        async with running(service) as run:
            await until(held.is_set)
            await until(lambda: group.members.finished("g", "t").frontier == 9)
            assert not run.done()
            assert service.statistics().lost == 1, "by the end of the session, and once"
            go_on.set()
        assert group.members.frontier("g", "t") == 10


@async_test
async def test_replaced_member_ends_by_name() -> None:
    """Another process is this member now; nothing more is handed out or committed here."""
    async with (
        stocked(1, 10) as (group, client),
        Client.connect(group.bootstrap, options=QUICK) as other,
    ):
        go_on = asyncio.Event()
        service = client.push_consumer("g", replace(PUSH, member="me"))
        second = other.push_consumer("g", replace(PUSH, member="me"))

        @service.on("t")
        async def handle(message: Message) -> None:
            await go_on.wait()

        seen: list[int] = []

        @second.on("t")
        async def work(message: Message) -> None:
            seen.append(message.queue_offset)

        run = asyncio.create_task(service.run())
        await until(lambda: service.statistics().running)
        async with running(second):
            with pytest.raises(MemberReplaced):
                await run
            await until(lambda: len(seen) == 10)
        assert group.members.frontier("g", "t") == 10


@async_test
async def test_nothing_is_begun_when_heartbeats_go_unanswered() -> None:
    """After two thirds of a session somebody else may have the queues; what runs, runs on."""
    async with stocked(1, 0) as (group, client):
        group.members.session_ms = 600
        seen: list[float] = []
        service = client.push_consumer("g", replace(PUSH, handlers=1))
        clock = asyncio.get_running_loop().time

        @service.on("t")
        async def handle(message: Message) -> None:
            seen.append(clock())
            await asyncio.sleep(0.01)

        async with running(service):
            await fill(client, 1, 300)
            await until(lambda: len(seen) > 3)
            group.nodes[0].running.clear()
            stopped = clock()
            await asyncio.sleep(0.8)
            assert len(seen) < 300
            assert max(seen) - stopped <= 0.4 + 0.05, "heartbeats are 50 ms apart"
            group.nodes[0].running.set()
            await until(lambda: len(seen) >= 300)


@async_test
async def test_change_of_leader_moves_and_repeats_nothing() -> None:
    """The same session goes on with its leases, and its joins are numbered: what is said on a
    stream that was left may arrive after what is said on the next."""
    async with stocked(3, 200) as (group, client):
        seen: Counter[tuple[int, int]] = Counter()
        attempts: list[int] = []

        async def note(method: str, _: object, request: Any) -> None:
            if method == "Join":
                attempts.append(request.attempt)

        group.before.append(note)
        service = client.push_consumer("g", replace(PUSH, handlers=2))

        @service.on("t")
        async def handle(message: Message) -> None:
            seen[message.queue_id, message.queue_offset] += 1
            await asyncio.sleep(0.001)

        async with running(service):
            for number in (1, 2, 0):
                count = len(seen)
                await until(lambda count=count: len(seen) > count + 20)
                epochs = {p: lease.epoch for p, lease in group.members.records["g"].leases.items()}
                group.elect(group.nodes[number])
                await until(lambda number=number: group.nodes[number].calls["Join"])
                leases = group.members.records["g"].leases
                assert epochs == {place: lease.epoch for place, lease in leases.items()}
            await until(lambda: len(seen) == 600)
        assert set(seen.values()) == {1}
        assert attempts == list(range(1, len(attempts) + 1))


@async_test
async def test_lost_answers_repeat_nothing() -> None:
    """Of joins and commits: the same is asked again, and changes nothing."""
    async with stocked(1, 50) as (group, client):
        lost = Counter({"Join": 2, "CommitLeases": 3})

        async def lose(method: str, node: object, request: object) -> None:
            if lost[method]:
                lost[method] -= 1
                raise Refusal(wire_error(epb.LEADERSHIP_LOST))

        group.after.append(lose)
        seen: Counter[int] = Counter()
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            seen[message.queue_offset] += 1

        async with running(service):
            await until(lambda: group.members.finished("g", "t").frontier == 50)
            assert len(group.members.records["g"].sessions) == 1
        assert not +lost
        assert set(seen.values()) == {1}


@async_test
async def test_stop_waits_for_handlers_within_a_bound() -> None:
    """What is finished by then is committed, and all is given back."""
    async with stocked(1, 10) as (group, client):
        begun: list[int] = []
        service = client.push_consumer("g", replace(PUSH, drain_s=0.1, handlers=3))

        @service.on("t")
        async def handle(message: Message) -> None:
            begun.append(message.queue_offset)
            if message.queue_offset:
                await asyncio.Event().wait()

        async with running(service):
            await until(lambda: len(begun) == 4)
        assert begun == [0, 1, 2, 3]
        assert group.members.frontier("g", "t") == 1
        assert not group.members.has_sessions("g")


@async_test
async def test_cancelled_run_ends_at_once() -> None:
    """Nothing is waited for; what wasn't committed comes again."""
    async with stocked(1, 10) as (group, client):
        begun: list[int] = []
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            begun.append(message.queue_offset)
            await asyncio.Event().wait()

        run = asyncio.create_task(service.run())
        await until(lambda: begun)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await until(lambda: not group.members.has_sessions("g"))
        assert group.members.frontier("g", "t") == 0
        with pytest.raises(ConsumerInUse):
            await service.run()


@async_test
async def test_closing_the_client_drains() -> None:
    """As `stop` would."""
    async with FakeGroup() as group:
        group.model.create("t", 1)
        done: list[int] = []
        async with Client.connect(group.bootstrap, options=QUICK) as client:
            await fill(client, 1, 5)
            service = client.push_consumer("g", PUSH)

            @service.on("t")
            async def handle(message: Message) -> None:
                await asyncio.sleep(0.05)
                done.append(message.queue_offset)

            run = asyncio.create_task(service.run())
            await until(lambda: service.statistics().running == 5)
        assert sorted(done) == list(range(5))
        assert run.done()
        assert group.members.frontier("g", "t") == 5
        await run


@async_test
async def test_handler_that_takes_too_long_has_failed() -> None:
    """A coroutine is cancelled, and its message comes again; a function is told of."""
    async with stocked(1, 3) as (group, client):
        group.model.create("u", 1)
        async with client.producer() as producer:
            producer.send("u", b"x")
        cancelled: list[int] = []
        release = threading.Event()
        service = client.push_consumer("g", replace(PUSH, handler_timeout_s=0.05))

        @service.on("t")
        async def handle(message: Message) -> None:
            if message.queue_offset == 1 and message.attempt == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(message.queue_offset)

        @service.on("u")
        def block(message: Message) -> None:
            release.wait()

        async with running(service):
            await until(lambda: group.members.frontier("g", "t") == 3)
            await until(lambda: service.statistics().overdue == 2)
            assert service.statistics().failed == 1
            release.set()
            await until(lambda: group.members.frontier("g", "u") == 1)
        assert cancelled == [1]


@async_test
async def test_work_that_nobody_runs_or_waits_for_is_not_done() -> None:
    """Whoever hands over a function that makes some would have every message finished, and none
    worked on; around a hook, too."""
    begun: list[int] = []

    async def work(message: Message) -> None:
        begun.append(message.attempt)

    def in_steps(message: Message) -> Iterator[None]:
        begun.append(message.attempt)
        yield

    async def in_async_steps(message: Message) -> AsyncIterator[None]:
        begun.append(message.attempt)
        yield

    async def later(message: Message) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def on_a_pool(message: Message) -> Future[None]:
        return Future()

    handlers: list[Callable[[Message], Any]] = [
        *(lambda message, call=call: call(message) for call in (work, in_steps, in_async_steps)),
        later,
        on_a_pool,
    ]
    async with stocked(1, 1) as (group, client):
        for handler in handlers:
            for around in (None, nullcontext):
                service = client.push_consumer("g", replace(PUSH, around=around))
                service.on("t")(handler)
                async with running(service):
                    await until(lambda now=service: now.statistics().failed >= 2)
                assert (begun, group.members.frontier("g", "t")) == ([], 0), handler
        for handler in (in_steps, in_async_steps):
            with pytest.raises(InvalidArgument, match="yield"):
                client.push_consumer("g", PUSH).on("t")(handler)


@pytest.mark.parametrize("threads", [False, True])
@async_test
async def test_worker_that_is_gone_ends_the_consumer(threads: bool) -> None:
    """What it had in hand nobody would ever finish. Here a filter of the application's log fails,
    where the failure of a message is told."""

    def broken(record: logging.LogRecord) -> bool:
        if "attempt" in str(record.msg):
            raise LookupError("a filter of the application's")
        return True

    async with stocked(1, 1) as (group, client):
        service = client.push_consumer("g", replace(PUSH, drain_s=0.05))

        def fail(message: Message) -> None:
            raise ValueError

        async def fail_too(message: Message) -> None:
            raise ValueError

        service.on("t")(fail if threads else fail_too)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it is told as well
        log = logging.getLogger("dledger.client")
        log.addFilter(broken)
        try:
            with pytest.raises(ClientFault, match="LookupError"):
                await service.run()
        finally:
            log.removeFilter(broken)
        assert group.members.frontier("g", "t") == 0


@async_test
async def test_cancelled_worker_ends_the_consumer() -> None:
    """By a program that cancels every task that there is, and goes on."""
    async with stocked(1, 0) as (_, client):
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def handle(message: Message) -> None:
            """Has nothing to do."""

        run = asyncio.create_task(service.run())
        await until(lambda: service.statistics().queues == 1)
        for task in asyncio.all_tasks():
            if task.get_name() == "handler":
                task.cancel()
        with pytest.raises(ClientClosed):
            await run


@async_test
async def test_cancellation_of_a_handler_s_own_is_over_with_it() -> None:
    """The worker that ran it used to count as cancelled for good, and later handlers with it."""
    async with stocked(1, 2) as (group, client):
        service = client.push_consumer("g", replace(PUSH, handlers=1))
        cancels: list[int] = []

        @service.on("t")
        async def handle(message: Message) -> None:
            task = asyncio.current_task()
            assert task is not None
            cancels.append(task.cancelling())
            if len(cancels) == 1:
                task.cancel()
                await asyncio.sleep(0)

        async with running(service):
            await until(lambda: group.members.frontier("g", "t") == 2)
        assert cancels == [0, 0, 0]
        assert service.statistics().failed == 1


@async_test
async def test_function_that_ends_by_a_cancellation_of_its_own_has_failed() -> None:
    """As one that runs an event loop of its own may; it used to end the consumer, as if the program
    had wanted to end."""
    async with stocked(1, 2) as (group, client):
        service = client.push_consumer("g", replace(PUSH, handlers=1))
        attempts: list[int] = []

        async def cancelled() -> None:
            raise asyncio.CancelledError

        @service.on("t")
        def handle(message: Message) -> None:
            attempts.append(message.attempt)
            if len(attempts) == 1:
                asyncio.run(cancelled())

        async with running(service) as task:
            await until(lambda: group.members.frontier("g", "t") == 2)
            assert not task.done()
        assert sorted(attempts) == [1, 1, 2]


@async_test
async def test_task_of_a_handler_may_reject_its_message() -> None:
    """Whatever its other tasks have raised."""
    async with stocked(1, 2) as (group, client):
        group.retries.takes_failed = True
        service = client.push_consumer("g", PUSH)

        async def work(*, is_hopeless: bool) -> None:
            raise Reject if is_hopeless else ValueError

        @service.on("t")
        async def handle(message: Message) -> None:
            async with asyncio.TaskGroup() as outer:
                outer.create_task(work(is_hopeless=False))
                async with asyncio.TaskGroup() as inner:
                    inner.create_task(work(is_hopeless=True))

        async with running(service):
            await until(lambda: group.members.frontier("g", "t") == 2)
        assert len(group.model.bodies("%DLQ%g", 0)) == 2


@async_test
async def test_without_a_thread_the_consumer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as there is work; it isn't left in a queue that nobody reads."""

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("dledger-handler"):
            raise RuntimeError("can't start new thread")
        start(thread)

    start = threading.Thread.start
    async with stocked(1, 2) as (group, client):
        service = client.push_consumer("g", replace(PUSH, drain_s=0.05))

        @service.on("t")
        def handle(message: Message) -> None:
            """Is never called."""

        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it is told as well
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ClientFault, match="can't start new thread"):
            await service.run()
        assert group.members.frontier("g", "t") == 0


@async_test
async def test_around_a_handler() -> None:
    """It is entered and left for each, hears of what was raised, and changes nothing."""
    heard: list[tuple[int, str | None]] = []

    @contextmanager
    def around(message: Message) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            heard.append((message.queue_offset, str(error)))
            raise
        else:
            heard.append((message.queue_offset, None))

    async with stocked(1, 3) as (_, client):
        service = client.push_consumer("g", replace(PUSH, around=around, handlers=1))

        @service.on("t")
        async def handle(message: Message) -> None:
            if message.queue_offset == 1 and message.attempt == 1:
                raise ValueError("bad")

        async with running(service):
            await until(lambda: len(heard) == 4)
        assert heard == [(0, None), (1, "bad"), (2, None), (1, None)]
        assert service.statistics().hook_failures == 0


@async_test
async def test_refusals_of_the_group_are_raised_by_run() -> None:
    """By name: other settings, another style."""
    async with stocked(1, 1) as (_, client):
        first = client.push_consumer("g", PUSH)
        first.on("t")(lambda message: None)
        async with running(first):
            await until(lambda: first.statistics().handled)
            for options, error in (
                (replace(PUSH, start=StartFrom.LAST), GroupDiffers),
                (replace(PUSH, in_order=True), GroupHasMembers),
            ):
                other = client.push_consumer("g", options)
                other.on("t")(lambda message: None)
                with pytest.raises(error):
                    await other.run()


@async_test
async def test_tags_are_chosen_here_and_others_are_passed_over() -> None:
    """What isn't wanted is as good as finished."""
    async with stocked(1) as (group, client):
        async with client.producer() as producer:
            for number in range(30):
                producer.send("t", b"%d" % number, tag="ab"[number % 2])
        seen: list[int] = []
        service = client.push_consumer("g", PUSH)

        @service.on("t", tags=["b"])
        async def handle(message: Message) -> None:
            seen.append(int(message.body))

        async with running(service):
            await until(lambda: group.members.frontier("g", "t") == 30)
        assert sorted(seen) == list(range(1, 30, 2))


@async_test
async def test_members_may_name_their_queues() -> None:
    """With the strategy CONFIG, and with no other."""
    async with stocked(3, 5) as (_, client):
        services = []
        seen: list[set[int]] = [set(), set()]
        for mine, queues in zip(seen, ([0], [1, 2]), strict=True):
            service = client.push_consumer("g", replace(PUSH, strategy="CONFIG"))

            @service.on("t", queues=queues)
            async def handle(message: Message, mine: set[int] = mine) -> None:
                mine.add(message.queue_id)

            services.append(service)
        async with running(services[0]), running(services[1]):
            await until(lambda: seen == [{0}, {1, 2}])
        with pytest.raises(InvalidArgument, match="CONFIG"):
            client.push_consumer("g", PUSH).on("t", queues=[1])


@async_test
async def test_message_that_has_gone_ends_run_or_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As the application said beforehand."""
    async with stocked(1, 10) as (group, client):
        await client.commit_offsets("g", "t", {0: 2})
        group.model.topics["t"][0].min_offset = 6
        raising = client.push_consumer("g", PUSH)
        raising.on("t")(lambda message: None)
        with pytest.raises(OffsetOutOfRange):
            await raising.run()
        seen: list[int] = []
        service = client.push_consumer("g", replace(PUSH, when_gone=WhenGone.FIRST))

        @service.on("t")
        async def handle(message: Message) -> None:
            seen.append(message.queue_offset)

        async with running(service):
            await until(lambda: group.members.frontier("g", "t") == 10)
            assert service.statistics().skipped == {("t", 0): 4}
        assert "group g: t/0: offsets 2 to 5 had gone" in caplog.messages
        assert seen == [6, 7, 8, 9]


@async_test
async def test_what_others_had_finished_of_what_has_gone_was_not_passed_over() -> None:
    """Somebody has worked on it: nothing of it is lost."""
    async with stocked(1, 10) as (group, client):
        options = replace(PUSH, when_gone=WhenGone.FIRST)
        service = client.push_consumer("g", options)
        service.on("t")(lambda message: None)
        async with running(service):
            await until(lambda: group.members.frontier("g", "t") == 10)
        await fill(client, 1, 10)
        group.members.finished("g", "t").pass_over(11, 13)
        group.members.finished("g", "t").pass_over(14, 17)
        group.model.topics["t"][0].min_offset = 16
        service = client.push_consumer("g", options)
        service.on("t")(lambda message: None)
        async with running(service):
            await until(lambda: group.members.frontier("g", "t") == 20)
            assert service.statistics().skipped == {("t", 0): 2}, "10 and 13"


@async_test
async def test_what_cannot_be_run_is_refused_at_once() -> None:
    """By name, before anybody is asked."""
    async with stocked(1) as (_, client):
        with pytest.raises(InvalidArgument, match="no topic has a handler"):
            await client.push_consumer("g").run()
        service = client.push_consumer("g", PUSH)
        service.on("t")(lambda message: None)
        with pytest.raises(InvalidArgument, match="has a handler already"):
            service.on("t")(lambda message: None)
        for wrong in ({"handlers": 0}, {"retry_delays_s": ()}, {"broadcast": True}):
            with pytest.raises(InvalidArgument):
                replace(PUSH, **wrong)
        with pytest.raises(InvalidArgument, match="FIRST, LAST"):
            replace(PUSH, start=StartFrom.COMMITTED)


@async_test
async def test_aborted_member_leaves_its_queues_to_others_of_the_same_client() -> None:
    """They share a stream, whose heartbeats go on."""
    async with stocked(2, 10) as (group, client):
        seen: Counter[tuple[int, int]] = Counter()
        services = [client.push_consumer("g", PUSH) for _ in range(2)]
        for service in services:

            @service.on("t")
            async def handle(message: Message) -> None:
                seen[message.queue_id, message.queue_offset] += 1

        async with running(services[1]):
            run = asyncio.create_task(services[0].run())
            await until(lambda: [s.statistics().queues for s in services] == [1, 1])
            run.cancel()
            await asyncio.wait([run])
            await until(lambda: services[1].statistics().queues == 2)
            await fill(client, 2, 5)
            await until(lambda: len(seen) == 30)
        assert group.members.frontier("g", "t", 0) == 15


@async_test
async def test_handlers_may_send_while_the_client_closes() -> None:
    """Producers are closed when the handlers have done."""
    async with FakeGroup() as group:
        group.model.create("t", 1)
        group.model.create("u", 1)
        async with Client.connect(group.bootstrap, options=QUICK) as client:
            await fill(client, 1, 3)
            producer = client.producer()
            service = client.push_consumer("g", PUSH)

            @service.on("t")
            async def handle(message: Message) -> None:
                await asyncio.sleep(0.05)
                await producer.send("u", message.body)

            run = asyncio.create_task(service.run())
            await until(lambda: service.statistics().running == 3)
        await run
        assert sorted(group.model.bodies("u", 0)) == [b"0", b"1", b"2"]


@async_test
async def test_of_more_queues_than_a_call_takes_each_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though those that were asked first never bring anything, and no call has all of them."""
    monkeypatch.setattr(pulling, "MAX_QUEUES_A_CALL", 2)
    async with stocked(7) as (_, client):
        handled: list[int] = []
        service = client.push_consumer("g", PUSH)

        @service.on("t")
        async def look(message: Message) -> None:
            handled.append(message.queue_id)

        async with running(service):
            await until(lambda: service.statistics().queues == 7)
            async with client.producer() as producer:
                for queue_id in (6, 5, 0, 6):
                    await producer.send("t", b"x", queue_id=queue_id)
            await until(lambda: sorted(handled) == [0, 5, 6, 6])


@async_test
async def test_of_more_queues_than_a_call_takes_all_may_be_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that ends when nothing is left ends."""
    monkeypatch.setattr(pulling, "MAX_QUEUES_A_CALL", 2)
    async with stocked(5) as (_, client):
        async with client.producer() as producer:
            for queue_id in (4, 0, 4):
                await producer.send("t", b"x", queue_id=queue_id)
        async with client.pull_consumer("t", group="g", idle_timeout_s=0.2) as consumer:
            assert sorted([message.queue_id async for message in consumer]) == [0, 4, 4]
