"""Members of groups for callers without an event loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dledger.client import ALL, ClientOptions, ConsumerOptions, Message, RevokedQueues
from dledger.client.blocking import BlockingClient, BlockingPushConsumer
from dledger.client.members.push import PushConsumer
from dledger.testing import BlockingFakeGroup
from tests.client.members.test_push import PUSH

ROOT = Path(__file__).parents[3]
CLIENT = ClientOptions(presume_after_s=0.02, deadline_s=5.0)


def fill(client: BlockingClient, topic: str, count: int) -> None:
    with client.producer() as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


def test_functions_of_several_threads_share_the_work() -> None:
    """`run` returns when somebody stops; everything finished is committed by then."""
    with (
        BlockingFakeGroup() as group,
        BlockingClient.connect(group.addresses, options=CLIENT) as client,
    ):
        topic = group.topic(2)
        fill(client, topic, 100)
        seen: Counter[tuple[int, int]] = Counter()
        threads: set[int] = set()
        told: list[RevokedQueues] = []
        service = client.push_consumer("g", PUSH)
        service.on_revoke(told.append)

        @service.on(topic)
        def handle(message: Message) -> None:
            threads.add(threading.get_ident())
            seen[message.queue_id, message.queue_offset] += 1
            if len(seen) == 100:
                service.stop()

        service.run()
        assert set(seen.values()) == {1}
        assert threading.get_ident() not in threads
        assert sum(client.fetch_offsets("g", topic).values()) == 100
        assert service.statistics().handled == 100
        assert sorted(q for queues in told for q in queues.queue_ids) == [0, 1]


def test_loops_take_part_in_a_group() -> None:
    """One by one, and in batches."""
    with (
        BlockingFakeGroup() as group,
        BlockingClient.connect(group.addresses, options=CLIENT) as client,
    ):
        topic = group.topic(2)
        fill(client, topic, 40)
        options = ConsumerOptions(hold_ms=50)
        with client.pull_consumer(
            topic, group="g", idle_timeout_s=0.05, options=options
        ) as consumer:
            first = next(consumer)
            consumer.commit(first)
            assert client.fetch_offsets("g", topic)[first.queue_id] == 1
            count = 1
            for batch in consumer.batches():
                count += len(batch)
                consumer.commit(batch[-1])
            assert count == 40
            assert consumer.lag() == {0: 0, 1: 0}
        assert sum(client.fetch_offsets("g", topic).values()) == 40


class Interrupted(Exception):
    """What a signal's handler raises."""


def interrupting(call: Callable[[Any], Any], every: int) -> Callable[[Any], Any]:
    """Calls of which some end by an exception of the caller's thread, as by a signal: when
    everything is done, before their answer is taken."""
    calls = count(1)

    def interrupted(work: object) -> Any:
        answer = call(work)
        if next(calls) % every == 0:
            raise Interrupted
        return answer

    return interrupted


@pytest.mark.parametrize("every", [2, 3, 5])
@pytest.mark.parametrize("group", [None, "g"], ids=["alone", "member"])
def test_what_an_interrupted_loop_was_not_given_is_given_next(
    monkeypatch: pytest.MonkeyPatch, group: str | None, every: int
) -> None:
    """One by one and in batches: counted as finished it would be committed, and forgotten."""
    with (
        BlockingFakeGroup() as nodes,
        BlockingClient.connect(nodes.addresses, options=CLIENT) as client,
    ):
        topic = nodes.topic()
        fill(client, topic, 60)
        options = ConsumerOptions(hold_ms=50, pull_bytes=400)
        consumer = client.pull_consumer(
            topic,
            group=group,
            queues=ALL if group is None else None,
            idle_timeout_s=0.2,
            options=options,
        )
        for owner, name in ((consumer._thread, "call"), (consumer, "_taken")):
            monkeypatch.setattr(owner, name, interrupting(getattr(owner, name), every))
        seen: list[int] = []
        for turn in range(400):
            with suppress(Interrupted):
                if turn % 2:
                    seen += [message.queue_offset for message in next(consumer.batches())]
                else:
                    seen.append(next(consumer).queue_offset)
            if 59 in seen:
                break
        monkeypatch.undo()
        assert seen == list(range(60))
        assert consumer.positions == {0: 60}
        if group is not None:
            consumer.commit()
            assert client.fetch_offsets(group, topic)[0] < 60  # the last one is in hand
        consumer.close()


def test_what_is_taken_back_is_not_covered_by_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by one of all, nor by one of the message before it."""
    with (
        BlockingFakeGroup() as nodes,
        BlockingClient.connect(nodes.addresses, options=CLIENT) as client,
    ):
        topic = nodes.topic()
        fill(client, topic, 3)
        with client.pull_consumer(topic, group="g") as consumer:
            first = next(consumer)
            with monkeypatch.context() as patched:
                patched.setattr(consumer._thread, "call", interrupting(consumer._thread.call, 1))
                with pytest.raises(Interrupted):
                    next(consumer)
            consumer._consumer._reading.take_back()
            assert consumer.positions == {0: 1}
            consumer.commit(first)
            consumer.commit()
            assert client.fetch_offsets("g", topic)[0] == 1
            assert next(consumer).queue_offset == 1


def test_the_two_faces_have_the_same_names() -> None:
    """What is on one is on the other."""
    public = {name for name in vars(PushConsumer) if not name.startswith("_")}
    assert public <= {name for name in vars(BlockingPushConsumer) if not name.startswith("_")}


PROGRAM = """
import sys, time
from dledger.client import PushOptions
from dledger.client.blocking import BlockingClient
with BlockingClient.connect(sys.argv[1]) as client:
    service = client.push_consumer("g", PushOptions(handlers=1, commit_every_s=60))
    @service.on(sys.argv[2])
    def handle(message):
        print("begun", flush=True)
        time.sleep(0.3)
        print("done", flush=True)
    service.run()
print("over", flush=True)
"""
ASYNC_PROGRAM = """
import asyncio, sys
from dledger.client import Client, PushOptions
async def main():
    async with Client.connect(sys.argv[1]) as client:
        service = client.push_consumer("g", PushOptions(handlers=1, commit_every_s=60))
        @service.on(sys.argv[2])
        async def handle(message):
            print("begun", flush=True)
            await asyncio.sleep(0.3)
            print("done", flush=True)
        await service.run()
    print("over", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("program", [PROGRAM, ASYNC_PROGRAM], ids=["blocking", "asyncio"])
def test_signal_drains(program: str, number: signal.Signals) -> None:
    """What is in a handler's hands is finished and committed; then the program goes on."""
    with (
        BlockingFakeGroup() as group,
        BlockingClient.connect(group.addresses, options=CLIENT) as client,
    ):
        topic = group.topic()
        fill(client, topic, 20)
        with subprocess.Popen(
            [sys.executable, "-c", program, group.addresses, topic],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as member:
            try:
                assert member.stdout is not None
                assert member.stdout.readline() == "begun\n"
                member.send_signal(number)
                rest = member.stdout.read().splitlines()
                assert member.wait(30) == 0
            finally:
                member.kill()
        assert rest == ["done", "over"]
        assert client.fetch_offsets("g", topic)[0] == 1


def test_handler_that_exits_ends_run() -> None:
    """SystemExit in a handler is for the program, after what is at work is done."""
    with (
        BlockingFakeGroup() as group,
        BlockingClient.connect(group.addresses, options=CLIENT) as client,
    ):
        topic = group.topic()
        fill(client, topic, 1)
        service = client.push_consumer("g", replace(PUSH, drain_s=1.0))

        @service.on(topic)
        def handle(message: Message) -> None:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            service.run()
        assert client.fetch_offsets("g", topic)[0] == 1
        assert client.queue_offsets("%RETRY%g", 0).min_offset == 0, "it comes again"
