"""A group of real nodes: what is stored stays, whoever leads, whatever restarts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import grpc
import pytest

from dledger.records.record import decode_records
from dledger.wire import broker_pb2 as pb
from dledger.wire import cluster_pb2 as cpb
from dledger.wire import errors_pb2 as epb
from tests.integration.group import Group, error_of, running_group


async def pulled(group: Group, queue_id: int = 0, hold_ms: int = 0) -> list[bytes]:
    request = pb.PullRequest(
        topic="t", queue_id=queue_id, max_messages=1_000, max_bytes=8 << 20, hold_ms=hold_ms
    )
    answer = await group.ask("Pull", request)
    return [record.body for record in decode_records(answer.records)]


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_messages_outlive_a_change_of_leader(tmp_path: Path) -> None:
    """Stop the leader: the next one has everything, and a retry is not stored again."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            await group.create_topic()
            for number in range(50):
                result = await group.send(number, b"%d" % number)
                assert result.base_queue_offset == number
            first = await group.leader()
            await group.stop(first.config.node_id)
            second = await group.leader()
            assert second.config.node_id != first.config.node_id
            again = await group.send(49, b"49")
            assert (again.duplicate, again.base_queue_offset) == (True, 49)
            await group.send(50, b"50")
            assert await pulled(group) == [b"%d" % number for number in range(51)]

    asyncio.run(scenario())


def test_all_nodes_restart_and_nothing_is_lost(tmp_path: Path) -> None:
    """Topics, messages, committed offsets and sequences come back from the log alone."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            await group.create_topic()
            await group.send(0, b"a", b"b")
            offsets = [pb.QueueOffset(queue_id=0, offset=1)]
            await group.ask(
                "CommitOffsets", pb.CommitOffsetsRequest(group="g", topic="t", offsets=offsets)
            )
            for name in list(group.nodes):
                await group.stop(name)
            await group.start()
            assert await pulled(group) == [b"a", b"b"]
            fetched = await group.ask("FetchOffsets", pb.FetchOffsetsRequest(group="g", topic="t"))
            assert list(fetched.offsets) == offsets
            assert (await group.send(0, b"a", b"b")).duplicate
            topics = await group.ask("ListTopics", pb.ListTopicsRequest())
            assert [topic.name for topic in topics.topics] == ["t"]

    asyncio.run(scenario())


def test_replicas_hold_the_same_bytes(tmp_path: Path) -> None:
    """CommitLogs equal up to the commit index, digests and ConsumeQueues equal."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            await group.create_topic()
            for number in range(200):
                await group.send(number // 2, bytes(300), queue_id=number % 2)
            await group.applied_everywhere()
            logs, digests = set(), set()
            for node in group.nodes.values():
                index = node.driver.applied_index
                logs.add(node.log.read(1, index))
                digests.add(node.log.digest_at(index))
            assert (len(logs), len(digests)) == (1, 1)
        queues = [files_below(tmp_path / name / "consumequeue") for name in ("n1", "n2", "n3")]
        assert queues[0] == queues[1] == queues[2]
        assert len(queues[0]) == 2

    asyncio.run(scenario())


def test_deleted_consume_queues_are_rebuilt_to_the_same_bytes(tmp_path: Path) -> None:
    """Derived files are disposable (ADR 7)."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            await group.create_topic()
            for number in range(40):
                await group.send(number // 2, b"%d" % number, queue_id=number % 2)
            await group.applied_everywhere()
            for name in list(group.nodes):
                await group.stop(name)
            folder = tmp_path / "n1" / "consumequeue"
            before = files_below(folder)
            shutil.rmtree(folder)
            await group.start()
            await group.leader()
            await group.applied_everywhere()
            await group.stop("n1")
            assert files_below(folder) == before

    asyncio.run(scenario())


def test_a_held_pull_wakes_when_a_message_arrives(tmp_path: Path) -> None:
    """Long polling: held without a thread, woken on arrival."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            await group.create_topic()
            waiting = asyncio.create_task(pulled(group, hold_ms=20_000))
            leader = await group.leader()
            while not leader.held.statistics().held:
                await asyncio.sleep(0.001)
            await group.send(0, b"news")
            assert await asyncio.wait_for(waiting, 5) == [b"news"]

    asyncio.run(scenario())


def test_a_held_pull_learns_that_leadership_moved(tmp_path: Path) -> None:
    """A consumer isn't left waiting at a node that leads no more."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            await group.create_topic()
            leader = await group.leader()
            name = leader.config.node_id
            request = pb.PullRequest(topic="t", hold_ms=20_000)
            waiting = asyncio.create_task(group.call(name, "Broker", "Pull", request))
            while not leader.held.statistics().held:
                await asyncio.sleep(0.001)
            transfer = cpb.TransferLeadershipRequest()
            await group.call(name, "Cluster", "TransferLeadership", transfer)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await asyncio.wait_for(waiting, 5)
            error = error_of(failed.value)
            assert error.code == epb.NOT_LEADER
            assert error.leader.node_id != name

    asyncio.run(scenario())


def test_transfer_moves_leadership_to_the_named_node(tmp_path: Path) -> None:
    """The answer names the new leader; an unknown target is an error that says so."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            leader = (await group.leader()).config.node_id
            target = next(name for name in group.nodes if name != leader)
            request = cpb.TransferLeadershipRequest(target=target)
            answer = await group.call(leader, "Cluster", "TransferLeadership", request)
            assert answer.leader.node_id == target
            wrong = cpb.TransferLeadershipRequest(target="n9")
            with pytest.raises(grpc.aio.AioRpcError, match="n9"):
                await group.call(
                    (await group.leader()).config.node_id, "Cluster", "TransferLeadership", wrong
                )

    asyncio.run(scenario())


def test_a_follower_says_who_leads(tmp_path: Path) -> None:
    """NOT_LEADER carries the leader's address; nothing happened; retriable."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            leader = await group.leader()
            name = next(n for n in group.nodes if n != leader.config.node_id)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await group.call(name, "Broker", "Pull", pb.PullRequest(topic="t"))
            error = error_of(failed.value)
            assert error.code == epb.NOT_LEADER
            assert error.leader.address == leader.config.listen
            assert (error.retriable, error.outcome) == (True, epb.DID_NOT_HAPPEN)

    asyncio.run(scenario())


def test_a_single_node_is_a_group(tmp_path: Path) -> None:
    """One voter commits what its own disk holds."""

    async def scenario() -> None:
        async with running_group(tmp_path, count=1) as group:
            await group.create_topic()
            await group.send(0, b"alone")
            assert await pulled(group) == [b"alone"]

    asyncio.run(scenario())


def test_messages_by_id_and_by_position(tmp_path: Path) -> None:
    """An id finds its record and nothing else does."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            await group.create_topic()
            result = await group.send(0, b"first", b"second")
            host = result.store_host.hex().upper()
            message_id = f"{host}{result.base_physical_offset:016X}"
            found = await group.ask("GetMessage", pb.GetMessageRequest(message_id=message_id))
            assert decode_records(found.record)[0].body == b"first"
            assert decode_records(found.record)[0].message_id == message_id
            position = pb.QueuePosition(topic="t", queue_id=0, offset=1)
            found = await group.ask("GetMessage", pb.GetMessageRequest(position=position))
            assert decode_records(found.record)[0].body == b"second"
            for wrong in (result.base_physical_offset + 1, 0, 1 << 40):
                request = pb.GetMessageRequest(message_id=f"{host}{wrong:016X}")
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await group.ask("GetMessage", request)
                assert error_of(failed.value).code == epb.MESSAGE_NOT_FOUND

    asyncio.run(scenario())


def test_offset_by_time_finds_the_first_message_stored_since(tmp_path: Path) -> None:
    """Before everything: the first; after everything: one past the last."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            await group.create_topic()
            times = [(await group.send(n, b"x")).store_time_ms for n in range(5)]

            async def at(time_ms: int) -> int:
                request = pb.GetOffsetByTimeRequest(topic="t", queue_id=0, time_ms=time_ms)
                answer: pb.GetOffsetByTimeResponse = await group.ask("GetOffsetByTime", request)
                return answer.offset

            assert await at(0) == 0
            assert await at(times[-1] + 1) == 5
            assert await at(times[2]) == times.index(times[2])

    asyncio.run(scenario())


def test_a_deleted_topic_can_be_created_again_and_survives_a_restart(tmp_path: Path) -> None:
    """The new topic starts at offset 0 with none of the old messages."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            await group.create_topic()
            await group.send(0, b"old")
            await group.ask("DeleteTopic", pb.DeleteTopicRequest(name="t"))
            await group.create_topic()
            assert await pulled(group) == []
            result = await group.send(0, b"new")
            assert result.base_queue_offset == 0
            await group.applied_everywhere()
            for name in list(group.nodes):
                await group.stop(name)
            await group.start()
            assert await pulled(group) == [b"new"]

    asyncio.run(scenario())
