"""Members that want some tags: what their group says of it, what they are given, what counts as
finished."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.doors.grpc.sizes import MAX_LENGTHS
from broker.services.queue_pulls import MAX_TAGS_IN_ALL
from dledger.client import (
    Client,
    ConsumerOptions,
    GroupDiffers,
    InvalidArgument,
    Message,
    PushOptions,
)
from dledger.client.arguments import MAX_TAG_BYTES
from dledger.client.members import pulling
from dledger.client.members.member import MAX_QUEUES_A_CALL
from dledger.client.members.pulling import MAX_TAGS_WEIGHT, TAG_WEIGHT
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, QUICK, running, until

LOOP = ConsumerOptions(hold_ms=100, commit_every_s=0.02)


@asynccontextmanager
async def tagged(tags: str, *, knows_tags: bool = True) -> AsyncIterator[tuple[FakeGroup, Client]]:
    """A topic `t` of one queue; each letter is a message's tag."""
    async with FakeGroup() as group, Client.connect(group.bootstrap, options=QUICK) as client:
        group.model.create("t", 1)
        group.model.knows_tags = knows_tags
        group.model.looked_at_once = 20
        async with client.producer() as producer:
            for tag in tags:
                producer.send("t", b"", queue_id=0, tag=tag)
        yield group, client


async def handled(
    group: FakeGroup, client: Client, options: PushOptions, tags: list[str], end: int
) -> list[int]:
    """The offsets that a member is given until the group is done with the queue."""
    seen: list[int] = []
    service = client.push_consumer("g", options)

    @service.on("t", tags=tags)
    async def handle(message: Message) -> None:
        seen.append(message.queue_offset)

    async with running(service):
        await until(lambda: group.members.frontier("g", "t") == end)
    return seen


@pytest.mark.parametrize("knows_tags", [True, False])
def test_what_is_passed_over_counts_as_finished(knows_tags: bool) -> None:
    """Whoever has passed over it; the end of the queue is committed, no message being there."""

    @async_test
    async def scenario() -> None:
        async with tagged("b" * 55 + "ab" + "b" * 70, knows_tags=knows_tags) as (group, client):
            assert await handled(group, client, PUSH, ["a"], 127) == [55]

    scenario()


@async_test
async def test_loop_of_a_member_ends_only_at_the_end() -> None:
    """A pull that has passed over a stretch says nothing of what lies behind it."""
    async with tagged("b" * 250 + "a" + "b" * 30) as (group, client):
        consumer = client.pull_consumer(
            "t", group="g", tags=["a"], idle_timeout_s=0.05, options=LOOP
        )
        async with consumer:
            assert [message.queue_offset async for message in consumer] == [250]
            assert await consumer.lag() == {0: 0}
        assert group.members.frontier("g", "t") == 281


@async_test
async def test_members_want_the_same_unless_with_a_higher_version() -> None:
    """Of functions and of loops; it is the group's, not the process's."""
    async with tagged("ab") as (group, client):
        assert await handled(group, client, PUSH, ["a"], 2) == [0]
        service = client.push_consumer("g", PUSH)
        service.on("t", tags=["b"])(print)
        with pytest.raises(GroupDiffers):
            await service.run()
        loop = client.pull_consumer("t", group="g", idle_timeout_s=0.05, options=LOOP)
        with pytest.raises(GroupDiffers):
            _ = [message async for message in loop]
        newer = replace(LOOP, version=1)
        async with client.pull_consumer(
            "t", group="g", idle_timeout_s=0.05, options=newer
        ) as consumer:
            assert [message async for message in consumer] == []


@async_test
async def test_broadcast_members_say_with_each_pull_what_they_want(tmp_path: Path) -> None:
    """Nobody leases anything there; what is kept of offsets covers the rest."""
    async with tagged("b" * 30 + "a" + "b" * 30) as (group, client):
        seen: list[int] = []
        options = replace(PUSH, broadcast=True, offsets_file=tmp_path / "offsets")
        service = client.push_consumer("g", options)

        @service.on("t", tags=["a"])
        async def handle(message: Message) -> None:
            seen.append(message.queue_offset)

        async with running(service):
            await until(lambda: "61" in (tmp_path / "offsets").read_text() if seen else False)
        assert seen == [30]
        asked = [queue for request in group.members.pulls for queue in request.queues]
        assert {(tuple(queue.tags), queue.epoch) for queue in asked} == {(("a",), 0)}


@async_test
async def test_tags_of_all_topics_are_bounded_together() -> None:
    """They are one group's settings."""
    async with tagged("a") as (_, client):
        service = client.push_consumer("g", PUSH)
        for topic in ("t", "u"):
            service.on(topic, tags=[f"{number:04}" for number in range(800)])(print)
        with pytest.raises(InvalidArgument, match="tags wanted"):
            await service.run()


@async_test
async def test_one_long_tag_joins_no_group() -> None:
    """Brokers that are older than the bound would end by it."""
    async with tagged("a") as (_, client):
        service = client.push_consumer("g", PUSH)
        service.on("t", tags=["x" * (MAX_TAG_BYTES + 1)])(print)
        with pytest.raises(InvalidArgument, match="4,096 at most"):
            await service.run()


def test_queues_of_a_broadcast_group_name_no_more_tags_than_a_call_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each queue names its topic's: with many tags a call asks for fewer queues, and all have their
    turn."""
    share = TAG_WEIGHT + len("tag0")
    monkeypatch.setattr(pulling, "MAX_TAGS_WEIGHT", 2 * 3 * share)

    @async_test
    async def check() -> None:
        async with (
            FakeGroup() as group,
            Client.connect(group.bootstrap, options=QUICK) as client,
        ):
            group.model.create("t", 5)
            named: list[int] = []

            async def note(method: str, node: object, request: Any) -> None:
                if method == "PullQueues":
                    named.append(sum(len(each.tags) for each in request.queues))

            group.before.append(note)
            options = replace(PUSH, broadcast=True, offsets_file=tmp_path / "offsets")
            service = client.push_consumer("g", options)
            seen: list[int] = []

            @service.on("t", tags=["tag0", "tag1", "tag2"])
            async def handle(message: Message) -> None:
                seen.append(message.queue_id)

            async with running(service):
                await until(lambda: service.statistics().queues == 5)
                async with client.producer() as producer:
                    for queue_id in range(5):
                        await producer.send("t", b"", queue_id=queue_id, tag="tag1")
                await until(lambda: sorted(seen) == [0, 1, 2, 3, 4])
            assert max(named) == 6

    check()


def test_brokers_take_what_the_heaviest_tags_weigh() -> None:
    """However many queues name them, in number as in bytes."""
    assert MAX_TAGS_WEIGHT // TAG_WEIGHT <= MAX_TAGS_IN_ALL
    named = MAX_QUEUES_A_CALL * 256  # a topic's name and the numbers of each
    assert MAX_TAGS_WEIGHT + named <= MAX_LENGTHS["Groups.PullQueues"]
