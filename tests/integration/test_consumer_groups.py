"""Members of consumer groups at real nodes: sessions, leases and hand-overs over the wire."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from broker.leader.groups.pace import Pace
from broker.ports import Rhythm
from dledger.wire import broker_pb2, errors_pb2
from dledger.wire import groups_pb2 as pb
from tests.integration.attending import Stream, attending, commit_of
from tests.integration.group import Group, error_of, make_configs

# As usual, but for what a test would wait for.
PACE = Pace(session_ms=3_000, return_ms=2_100, release_ms=700, orderly_release_ms=1_400)
Begin = Callable[[], Any]
QUEUES = 4


@contextlib.asynccontextmanager
async def some_group(
    directory: Path, count: int = 1, pace: Pace = PACE
) -> AsyncIterator[tuple[Group, Begin]]:
    """Nodes with a topic, at their level."""
    group = Group(make_configs(directory, count), rhythm=Rhythm(groups=pace))
    try:
        await group.start()
        await group.at_its_level()
        await group.create_topic(queues=QUEUES)
        async with attending(group) as begin:
            yield group, begin
    finally:
        await group.close()


async def ask(group: Group, method: str, request: Message) -> Any:
    """A call on the Groups service of the leader."""
    leader = await group.leader()
    return await group.call(leader.config.node_id, "Groups", method, request)


async def refusal_of(call: Any) -> int:
    """The code that a call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return error_of(failure.value).code


async def share(one: Any, other: Any, streams: tuple[Stream, Stream]) -> None:
    """Until two members have all queues between them, two each."""
    for stream in streams:
        await stream.until(lambda: len(one.held) == len(other.held) == QUEUES // 2)
    assert one.queues | other.queues == set(range(QUEUES))


async def release_all(group: Group, member: Any, frontier: int = 0) -> None:
    """Gives back what was asked for."""
    for _, queue_id in sorted(member.asked):
        answer = await ask(
            group, "CommitLeases", commit_of(member, queue_id, frontier, release=True)
        )
        assert not answer.refused


def test_a_queue_goes_on_with_its_next_holder(tmp_path: Path) -> None:
    """Where the one before had come, what was finished above that included."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (group, begin):
            await group.send(0, *(b"%d" % n for n in range(9)))
            stream = await begin()
            first = await stream.join("a")
            await stream.until(lambda: len(first.held) == QUEUES and first.is_whole)
            assert first.held["t", 0].frontier == 0
            answer = await ask(group, "CommitLeases", commit_of(first, 0, 2, 1, 2, 1, 1))
            assert not answer.refused
            second = await stream.join("b")
            await stream.until(lambda: len(first.asked) == QUEUES // 2)
            await release_all(group, first)
            await share(first, second, (stream, stream))
            await stream.leave(first)
            await stream.until(lambda: first.ended and len(second.held) == QUEUES)
            assert first.ended is not None
            assert not first.ended.HasField("error")
            lease = second.held["t", 0]
            assert (lease.frontier, list(lease.finished)) == (2, [1, 2, 1, 1])
            stale = commit_of(second, 0, 3, epoch=first.held["t", 0].epoch)
            refused = (await ask(group, "CommitLeases", stale)).refused
            if first.held["t", 0].epoch != lease.epoch:
                assert [each.error.code for each in refused] == [errors_pb2.LEASE_LOST]
            assert await refusal_of(ask(group, "CommitLeases", commit_of(first, 0, 3))) == (
                errors_pb2.SESSION_ENDED
            )

    asyncio.run(scenario())


def test_what_is_not_given_back_is_taken(tmp_path: Path) -> None:
    """When its time is over, and the holder learns that it has lost it."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (group, begin):
            stream = await begin()
            first = await stream.join("a")
            await stream.until(lambda: len(first.held) == QUEUES)
            epochs = {queue_id: lease.epoch for (_, queue_id), lease in first.held.items()}
            second = await stream.join("b")
            await share(first, second, (stream, stream))
            (queue_id, *_) = second.queues
            late = commit_of(first, queue_id, 0, epoch=epochs[queue_id])
            (refused,) = (await ask(group, "CommitLeases", late)).refused
            assert refused.error.code == errors_pb2.LEASE_LOST

    asyncio.run(scenario())


def test_a_member_whose_stream_broke_is_replaced_soon(tmp_path: Path) -> None:
    """Of a concurrent group; of an orderly one only when its session is over."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (_, begin):
            for group_name, is_orderly in (("quick", False), ("slow", True)):
                one, other = await begin(), await begin()
                settings = {"group": group_name, "orderly": is_orderly}
                first = await one.join("a", **settings)
                await one.until(lambda first=first: len(first.held) == QUEUES)
                second = await other.join("b", **settings)
                began = time.monotonic()
                await one.close()
                await other.until(lambda second=second: len(second.held) == QUEUES)
                took_ms = (time.monotonic() - began) * 1000
                # How soon is shown where time stands still: tests/broker/test_keeper.py.
                assert took_ms > 2 * PACE.away_ms or not is_orderly

    asyncio.run(scenario())


def test_a_member_that_sleeps_finds_its_commits_refused(tmp_path: Path) -> None:
    """By name, once others have what it held."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (group, begin):
            one, other = await begin(), await begin()
            first = await one.join("a", orderly=True)
            await one.until(lambda: len(first.held) == QUEUES)
            second = await other.join("b", orderly=True)
            one.stop_beating()
            await other.until(lambda: len(second.held) == QUEUES)
            assert await refusal_of(ask(group, "CommitLeases", commit_of(first, 0, 0))) == (
                errors_pb2.SESSION_ENDED
            )
            await one.until(lambda: one.is_over)

    asyncio.run(scenario())


def test_a_change_of_leader_moves_no_lease(tmp_path: Path) -> None:
    """Members come back with their sessions, and find the same epochs. They have time for that
    while the former leader still stops: another one leads before its end."""
    pace = replace(PACE, return_ms=6_000)

    async def scenario() -> None:
        async with some_group(tmp_path, 3, pace) as (group, begin):
            one, other = await begin(), await begin()
            first, second = await one.join("a"), await other.join("b")
            await share(first, second, (one, other))
            before = {**first.held, **second.held}
            await group.applied_everywhere()
            await group.stop((await group.leader()).config.node_id)
            await one.until(lambda: one.is_over)
            assert one.failure is not None
            back = await begin()
            again = await back.join("a", session=first.session)
            third = await back.join("b", session=second.session)
            await back.until(lambda: again.is_whole and third.is_whole)
            assert (again.session, third.session) == (first.session, second.session)
            assert {**again.held, **third.held} == before
            await asyncio.sleep(pace.return_ms / 1000 + 0.5)
            assert {**again.held, **third.held} == before

    asyncio.run(scenario())


def test_who_may_not_join_is_told_why(tmp_path: Path) -> None:
    """Each by its name."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (group, begin):
            stream, other = await begin(), await begin()
            first = await stream.join("a")
            await stream.until(lambda: first.is_whole)
            wrong = {
                errors_pb2.GROUP_DIFFERS: await other.join("b", orderly=True),
                errors_pb2.STRATEGY_UNKNOWN: await other.join("c", strategy="NOBODYS", version=1),
                errors_pb2.SESSION_ENDED: await other.join("d", session=7),
                errors_pb2.MEMBER_REPLACED: await other.join("a", session=7, token=b"token--0"),
                errors_pb2.INVALID_ARGUMENT: await other.join("e", topics=("b", "a")),
                errors_pb2.GROUP_HAS_MEMBERS: await other.join("f", orderly=True, version=2),
            }
            for code, member in wrong.items():
                if code == errors_pb2.MEMBER_REPLACED:
                    continue  # session 7 is older than the present one: see below
                await other.until(lambda member=member: member.ended)
                assert member.ended.error.code == code
            newcomer = await other.join("a", token=b"token--2")
            await stream.until(lambda: first.ended)
            assert first.ended is not None
            assert first.ended.error.code == errors_pb2.MEMBER_REPLACED
            await other.until(lambda: newcomer.is_whole and len(newcomer.held) == QUEUES)
            commit = broker_pb2.CommitOffsetsRequest(
                group="g", topic="t", offsets=[broker_pb2.QueueOffset(queue_id=0, offset=0)]
            )
            assert (
                await refusal_of(group.ask("CommitOffsets", commit)) == errors_pb2.GROUP_HAS_MEMBERS
            )
            answer = await group.ask(
                "FetchOffsets", broker_pb2.FetchOffsetsRequest(group="g", topic="t")
            )
            assert len(answer.offsets) == QUEUES

    asyncio.run(scenario())


def test_one_pull_reads_all_queues_of_a_member(tmp_path: Path) -> None:
    """It is held while none has any, and a queue that isn't held any more has an error of its
    own."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (group, begin):
            stream = await begin()
            member = await stream.join()
            await stream.until(lambda: len(member.held) == QUEUES)

            def wanted(hold_ms: int, *offsets: int) -> pb.PullQueuesRequest:
                return pb.PullQueuesRequest(
                    group="g",
                    hold_ms=hold_ms,
                    queues=[
                        pb.QueuePull(
                            topic="t",
                            topic_incarnation=member.incarnations["t"],
                            queue_id=queue_id,
                            epoch=member.held["t", queue_id].epoch,
                            offset=offset,
                        )
                        for queue_id, offset in enumerate(offsets)
                    ],
                )

            assert not (await ask(group, "PullQueues", wanted(0, 0, 0, 0, 0))).queues
            held = asyncio.create_task(ask(group, "PullQueues", wanted(15_000, 0, 0, 0, 0)))
            while not (await group.leader()).held.statistics().held:
                await asyncio.sleep(0.005)
            await group.send(0, b"a", b"b", queue_id=2)
            (found,) = (await held).queues
            assert (found.position, found.count, found.next_offset) == (2, 2, 2)
            await group.send(0, b"c", queue_id=1)
            answer = await ask(group, "PullQueues", wanted(0, 0, 0, 0, 0))
            assert [(each.position, each.count) for each in answer.queues] == [(1, 1), (2, 2)]
            stale = wanted(0, 0, 0, 0, 0)
            stale.queues[2].epoch += 1
            answer = await ask(group, "PullQueues", stale)
            assert [each.error.code for each in answer.queues] == [0, errors_pb2.LEASE_LOST]
            too_far = wanted(0, 9, 0, 0, 0)
            answer = await ask(group, "PullQueues", too_far)
            assert answer.queues[0].error.code == errors_pb2.OFFSET_OUT_OF_RANGE
            nothing = pb.PullQueuesRequest()
            assert (
                await refusal_of(ask(group, "PullQueues", nothing)) == errors_pb2.INVALID_ARGUMENT
            )

    asyncio.run(scenario())


def test_every_member_of_a_broadcast_group_has_every_queue(tmp_path: Path) -> None:
    """Without leases; of topics that come and go as well; nothing is committed."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (group, begin):
            stream = await begin()
            topics = ("later", "t")
            members = [await stream.join(name, broadcast=True, topics=topics) for name in "ab"]
            await stream.until(lambda: all(len(each.held) == QUEUES for each in members))
            assert all(not lease.epoch for each in members for lease in each.held.values())
            refused = refusal_of(ask(group, "CommitLeases", commit_of(members[0], 0, 0)))
            assert await refused == errors_pb2.INVALID_ARGUMENT
            await group.create_topic("later", 1)
            await stream.until(lambda: all(("later", 0) in each.held for each in members))
            await group.ask("DeleteTopic", broker_pb2.DeleteTopicRequest(name="t"))
            await stream.until(lambda: all(len(each.held) == 1 for each in members))

    asyncio.run(scenario())


def test_a_stream_that_says_what_cannot_be_ends(tmp_path: Path) -> None:
    """Bytes that are no request, a slot that is taken."""

    async def scenario() -> None:
        async with some_group(tmp_path) as (group, begin):
            stream = await begin()
            await stream.say(pb.AttendRequest())
            await stream.until(lambda: stream.is_over)
            assert stream.failure is not None
            assert stream.failure.code == errors_pb2.INVALID_ARGUMENT
            again = await begin()
            member = await again.join()
            await again.say(pb.AttendRequest(join=member.join))
            await again.until(lambda: again.is_over)
            assert again.failure is not None
            assert again.failure.code == errors_pb2.INVALID_ARGUMENT
            leader = await group.leader()
            async with asyncio.timeout(20):
                while leader.groups.statistics().streams:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())
