"""Whatever is given for an argument: it is taken, or refused within the one tree of errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import inf, nan
from typing import Any

import pytest

from dledger.client import (
    Busy,
    Client,
    ClientError,
    ClientFault,
    ConsumerOptions,
    InvalidArgument,
    Outcome,
    ProducerOptions,
    PushOptions,
    StartFrom,
)
from tests.client.loops import async_test
from tests.client.members.test_push import stocked

ODD: tuple[Any, ...] = (
    *(None, True, 5, -1, 1 << 70, 1.5, inf, nan, "", "x", "\udcff", b"x", object(), (), [3], {}),
    *("last", "first", "committed", datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)),
)
NOT_DONE = Outcome.DID_NOT_HAPPEN
OPTIONS = (ConsumerOptions, ProducerOptions, PushOptions)

Call = Callable[..., Any]


async def receive(client: Client, **given: Any) -> object:
    async with client.simple_consumer("t", "single", start=StartFrom.FIRST) as consumer:
        return await consumer.receive(**{"wait_s": 0, **given})


async def simple(client: Client, **given: Any) -> object:
    arguments = {"topic": "t", "group": "single"} | given
    async with client.simple_consumer(**arguments):
        return None


async def pull(client: Client, **given: Any) -> object:
    async with client.pull_consumer(**{"topic": "t", **given}):
        return None


async def push_on(client: Client, **given: Any) -> object:
    async with client.push_consumer("g") as consumer:
        return consumer.on(**{"topic": "t", **given})


# What is called, its arguments as they should be, and whether a second call may find it done.
CALLS: Mapping[str, tuple[Call, dict[str, Any]]] = {
    "create_topic": (Client.create_topic, {"name": "u", "queues": 2, "if_not_exists": True}),
    "retain_topic": (Client.retain_topic, {"name": "t", "hours": 1}),
    "update_topic": (Client.update_topic, {"name": "t", "read_queues": 2}),
    "topic": (Client.describe_topic, {"name": "t"}),
    "commit": (Client.commit_offsets, {"group": "c", "topic": "t", "offsets": {0: 1}}),
    "resend": (Client.resend, {"group": "g", "offset": 0}),
    "dead letters": (Client.dead_letters, {"group": "g"}),
    "receive": (receive, {"count": 1, "wait_s": 0, "done": ()}),
    "simple": (simple, {"invisible_s": 5, "in_order": False, "start": None, "max_attempts": 3}),
    "pull": (pull, {"topic": "t", "group": "p", "start": None, "queues": [0], "tags": ["a"]}),
    "on": (push_on, {"topic": "t", "tags": ["a"], "queues": None}),
    "describe": (lambda c, **k: c.consumer_groups.describe(**k), {"group": "c"}),
    "reset": (
        lambda c, **k: c.consumer_groups.reset(**k),
        {"group": "c", "topic": "t", "to": StartFrom.FIRST, "queues": ()},
    ),
    "skip": (
        lambda c, **k: c.consumer_groups.skip(**k),
        {"group": "c", "topic": "t", "count": 1, "queues": ()},
    ),
    "clone": (lambda c, **k: c.consumer_groups.clone(**k), {"source": "c", "target": "d"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_any_argument_is_taken_or_refused(name: str) -> None:
    """And what is refused for its kind has not happened."""
    call, usual = CALLS[name]

    @async_test
    async def check() -> None:
        found: list[str] = []
        async with stocked(2, 1) as (_group, client):
            for argument in usual:
                for odd in ODD:
                    try:
                        async with asyncio.timeout(20):
                            answer = call(client, **{**usual, argument: odd})
                            if inspect.isawaitable(answer):
                                await answer
                    except ClientFault as error:
                        found.append(f"{argument}={odd!r}: {error!r}")
                    except ClientError as error:
                        if isinstance(error, InvalidArgument) and error.outcome is not NOT_DONE:
                            found.append(f"{argument}={odd!r}: {error.outcome}")
                    except Exception as error:  # noqa: BLE001  what shouldn't be
                        found.append(f"{argument}={odd!r}: {error!r}")
        assert not found, "\n".join(found)

    check()


@pytest.mark.parametrize("kind", OPTIONS)
def test_any_option_is_taken_or_refused(kind: type) -> None:
    """None of them is a wait without an end, but a caller's own deadline."""
    found: list[str] = []
    for option in inspect.signature(kind).parameters:
        for odd in ODD:
            try:
                made = kind(**{option: odd})
            except InvalidArgument:
                continue
            except Exception as error:  # noqa: BLE001  what shouldn't be
                found.append(f"{option}={odd!r}: {error!r}")
                continue
            if getattr(made, option) == inf and option != "deadline_s":
                found.append(f"{option} is infinite")
    assert not found, "\n".join(found)


def test_topic_whose_second_step_failed_is_said_to_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fewer written queues are a call of their own; what can't be is refused before the first."""

    @async_test
    async def check() -> None:
        async with stocked(1, 1) as (_group, client):

            async def update(*_: object, **__: object) -> None:
                raise Busy("later")

            with pytest.raises(InvalidArgument, match="write_queues"):
                await client.create_topic("u", queues=2, write_queues=3)
            assert [each.name for each in await client.topics()] == ["t"]
            monkeypatch.setattr(Client, "update_topic", update)
            with pytest.raises(Busy, match="topic 'u' is there") as told:
                await client.create_topic("u", queues=2, write_queues=1)
            assert told.value.outcome is Outcome.MAY_HAVE_HAPPENED
            assert "u" in [each.name for each in await client.topics()]

    check()


@pytest.mark.parametrize("queues", [0, False, None, "0", b"0", iter(())])
def test_what_is_no_list_of_queues_means_none_and_not_all(queues: Any) -> None:
    """All would be skipped."""

    @async_test
    async def check() -> None:
        async with stocked(2, 1) as (_group, client):
            await client.commit_offsets("c", "t", {0: 0})
            with pytest.raises(InvalidArgument, match="queues"):
                await client.consumer_groups.skip("c", "t", queues=queues)
            with pytest.raises(InvalidArgument, match="queues"):
                await client.consumer_groups.reset("c", "t", StartFrom.LAST, queues=queues)

    check()


def test_what_rides_on_a_receive_may_be_a_generator() -> None:
    """It can be gone over only once: nothing of it is lost by being looked at."""

    @async_test
    async def check() -> None:
        async with (
            stocked(1, 2) as (_group, client),
            client.simple_consumer("t", "single", start=StartFrom.FIRST) as consumer,
        ):
            had = await consumer.receive(2, wait_s=1)
            riding: Any = (each for each in had)
            await consumer.receive(wait_s=0, done=riding)
            assert all(each.is_settled for each in had)

    check()


def test_push_consumer_is_closed_where_its_block_ends() -> None:
    @async_test
    async def check() -> None:
        async with stocked(1, 1) as (_group, client), client.push_consumer("g") as service:
            seen = asyncio.Event()

            @service.on("t")
            async def handle(_: object) -> None:
                seen.set()

            running = asyncio.ensure_future(service.run())
            async with service:
                await seen.wait()
            await running

    check()


def test_who_is_cancelled_in_the_block_of_a_push_consumer_waits_for_no_handler() -> None:
    """As with producers: a handler may have half an hour."""

    @async_test
    async def check() -> None:
        patient = PushOptions(drain_s=3_600)
        async with stocked(1, 1) as (_group, client):
            service = client.push_consumer("g", patient)
            seen = asyncio.Event()

            @service.on("t")
            async def handle(_: object) -> None:
                seen.set()
                await asyncio.Event().wait()

            async def work() -> None:
                async with service:
                    running.append(asyncio.ensure_future(service.run()))
                    await asyncio.Event().wait()

            running: list[asyncio.Future[None]] = []
            working = asyncio.ensure_future(work())
            async with asyncio.timeout(20):
                await seen.wait()
                working.cancel()
                await asyncio.wait([working, *running])
            assert working.cancelled()
            assert running[0].cancelled()

    check()
