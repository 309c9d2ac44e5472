"""Wrong and hostile input to a running group: a clear error each, and nothing is lost or leaks.

The full disk, corruption and locks of the data directory are tested in tests/store and
tests/cli; clients that stop reading and peers of another group are here.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import pytest

from dledger.checksum import seal
from dledger.core.types import Index, NodeId, Term
from dledger.greeting import PROTOCOL_VERSION, Identity
from dledger.promises import Start
from dledger.wire import broker_pb2 as pb
from dledger.wire import cluster_pb2 as cpb
from dledger.wire import errors_pb2 as epb
from dledger.wire.raft_pb2 import Hello, PeerMessage, VoteRequest
from tests.integration.group import SERVICES, Group, disk_of, error_of, running_group, wire_batch

UNARY = [
    (service, method.name)
    for service, descriptor in SERVICES.items()
    for method in descriptor.methods
    if not method.client_streaming and not method.server_streaming
]


OUR_FAULT = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


async def status_of(group: Group, service: str, method: str, request: bytes) -> grpc.StatusCode:
    try:
        await group.call("n1", service, method, request)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def failure(group: Group, service: str, method: str, request: Any) -> grpc.aio.AioRpcError:
    leader = await group.leader()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await group.call(leader.config.node_id, service, method, request)
    return failed.value


# A start that knows whatever the disk may have promised.
LATER = Start(99, term=Term(1 << 40), last_index=Index(1 << 40))


def test_bytes_that_are_no_request(tmp_path: Path) -> None:
    """Random and truncated bytes to every call: INVALID_ARGUMENT or a decent answer, no crash."""

    async def scenario() -> None:
        rng = random.Random(7)
        async with running_group(tmp_path, count=1) as group:
            await group.create_topic()
            for service, method in UNARY:
                error = await failure(group, service, method, b"\x0a\xff\xff")
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (service, method)
                for size in (1, 3, 17, 200):
                    status = await status_of(group, service, method, rng.randbytes(size))
                    assert status not in OUR_FAULT, (service, method, status)
            assert (await group.send(0, b"alive")).base_queue_offset == 0

    asyncio.run(scenario())


def test_random_bytes_to_the_streams(tmp_path: Path) -> None:
    """The peers' stream and the watch refuse what they can't parse."""

    async def scenario() -> None:
        async with running_group(tmp_path, count=1) as group:
            stream: Any = group.channel("n1").stream_stream("/dledger.v1.RaftPeer/Replicate")
            for first in (b"\xff\xff", b"", PeerMessage(term=5).SerializeToString()):
                call = stream()
                await call.write(first)
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            watch: Any = group.channel("n1").unary_stream("/dledger.v1.Cluster/WatchLeader")
            call = watch(b"\x0a\xff\xff")
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            term = (await group.leader()).driver.core.term
            assert term < 5, "a stream without a Hello changed the term"

    asyncio.run(scenario())


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    """A newer client's extra field doesn't disturb an older server."""

    async def scenario() -> None:
        async with running_group(tmp_path, count=1) as group:
            request = pb.CreateTopicRequest(name="t").SerializeToString() + b"\xba\x3e\x03new"
            answer = await group.call("n1", "Broker", "CreateTopic", request)
            assert (answer.topic.name, answer.topic.queue_count) == ("t", 4)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "request_", "code", "named"),
    [
        ("CreateTopic", pb.CreateTopicRequest(name=""), "INVALID_ARGUMENT", "topic name"),
        ("CreateTopic", pb.CreateTopicRequest(name="a b"), "INVALID_ARGUMENT", "a b"),
        ("CreateTopic", pb.CreateTopicRequest(name="../up"), "INVALID_ARGUMENT", "../up"),
        ("CreateTopic", pb.CreateTopicRequest(name="x" * 128), "INVALID_ARGUMENT", "127"),
        (
            "CreateTopic",
            pb.CreateTopicRequest(name="x", queue_count=1025),
            "INVALID_ARGUMENT",
            "1025",
        ),
        ("CreateTopic", pb.CreateTopicRequest(name="t", queue_count=2), "TOPIC_EXISTS", "'t'"),
        ("DeleteTopic", pb.DeleteTopicRequest(name="nope"), "TOPIC_NOT_FOUND", "nope"),
        ("RetainTopic", pb.RetainTopicRequest(name="nope"), "TOPIC_NOT_FOUND", "nope"),
        (
            "RetainTopic",
            pb.RetainTopicRequest(name="t", retention_ms=1 << 63),
            "INVALID_ARGUMENT",
            "kept",
        ),
        ("PermitTopic", pb.PermitTopicRequest(name="nope"), "TOPIC_NOT_FOUND", "nope"),
        ("PermitTopic", pb.PermitTopicRequest(name="t"), "INVALID_ARGUMENT", "not 0"),
        ("PermitTopic", pb.PermitTopicRequest(name="t", permission=7), "INVALID_ARGUMENT", "7"),
        (
            "CreateTopic",
            pb.CreateTopicRequest(name="x", permission=1 << 31),
            "INVALID_ARGUMENT",
            "2147483648",
        ),
        (
            "CreateTopic",
            pb.CreateTopicRequest(name="x", retention_ms=1 << 63),
            "INVALID_ARGUMENT",
            "kept",
        ),
        ("MeasureTopic", pb.MeasureTopicRequest(name="nope"), "TOPIC_NOT_FOUND", "nope"),
        ("MeasureTopic", pb.MeasureTopicRequest(name="t", first_queue=9), "QUEUE_NOT_FOUND", "9"),
        ("DescribeTopic", pb.DescribeTopicRequest(name="nope"), "TOPIC_NOT_FOUND", "nope"),
        ("Pull", pb.PullRequest(topic="nope"), "TOPIC_NOT_FOUND", "nope"),
        ("Pull", pb.PullRequest(topic="t", queue_id=9), "QUEUE_NOT_FOUND", "9"),
        ("Pull", pb.PullRequest(topic="t", offset=-1), "OFFSET_OUT_OF_RANGE", "-1"),
        ("Pull", pb.PullRequest(topic="t", offset=99), "OFFSET_OUT_OF_RANGE", "99"),
        (
            "GetQueueOffsets",
            pb.GetQueueOffsetsRequest(topic="t", queue_id=9),
            "QUEUE_NOT_FOUND",
            "9",
        ),
        ("GetMessage", pb.GetMessageRequest(), "INVALID_ARGUMENT", "message_id"),
        ("GetMessage", pb.GetMessageRequest(message_id="zz"), "INVALID_ARGUMENT", "zz"),
        (
            "GetMessage",
            pb.GetMessageRequest(position=pb.QueuePosition(topic="t", offset=0)),
            "MESSAGE_NOT_FOUND",
            "t/0",
        ),
        (
            "CommitOffsets",
            pb.CommitOffsetsRequest(group="g", topic="t"),
            "INVALID_ARGUMENT",
            "offsets",
        ),
        (
            "CommitOffsets",
            pb.CommitOffsetsRequest(group="", topic="t", offsets=[pb.QueueOffset()]),
            "INVALID_ARGUMENT",
            "group name",
        ),
        (
            "CommitOffsets",
            pb.CommitOffsetsRequest(group="g", topic="t", offsets=[pb.QueueOffset(offset=5)]),
            "OFFSET_OUT_OF_RANGE",
            "5",
        ),
        (
            "CommitOffsets",
            pb.CommitOffsetsRequest(group="g", topic="t", offsets=[pb.QueueOffset(queue_id=7)]),
            "QUEUE_NOT_FOUND",
            "7",
        ),
        ("FetchOffsets", pb.FetchOffsetsRequest(group="g", topic="no"), "TOPIC_NOT_FOUND", "no"),
        ("Send", pb.SendRequest(), "INVALID_ARGUMENT", "batches"),
        (
            "Send",
            pb.SendRequest(producer_id=b"short", batches=[wire_batch(0, b"x")]),
            "INVALID_ARGUMENT",
            "5 bytes",
        ),
        ("RegisterProducer", pb.RegisterProducerRequest(), "INVALID_ARGUMENT", "8 bytes"),
        (
            "RegisterProducer",
            pb.RegisterProducerRequest(token=bytes(8), name="a b"),
            "INVALID_ARGUMENT",
            "'a b'",
        ),
        (
            "RegisterProducer",
            pb.RegisterProducerRequest(token=bytes(8), previous=b"short"),
            "INVALID_ARGUMENT",
            "16 bytes",
        ),
    ],
)
def test_wrong_requests_name_what_is_wrong(
    shared: Group,
    loop: asyncio.AbstractEventLoop,
    method: str,
    request_: Any,
    code: str,
    named: str,
) -> None:
    """Each mistake has its code, its gRPC status, and a text that names the thing."""
    error = loop.run_until_complete(failure(shared, "Broker", method, request_))
    detail = error_of(error)
    assert epb.ErrorCode.Name(detail.code) == code
    assert named in detail.message
    assert detail.outcome == epb.DID_NOT_HAPPEN
    assert error.details() == detail.message


def test_a_request_beyond_every_limit_is_refused_by_the_transport(
    shared: Group, loop: asyncio.AbstractEventLoop
) -> None:
    """gRPC's own bound keeps a huge request out of the node's memory."""
    error = loop.run_until_complete(failure(shared, "Broker", "Send", bytes(17 << 20)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_clients_that_stop_reading_harm_nobody(
    shared: Group, loop: asyncio.AbstractEventLoop
) -> None:
    """Watchers that never read and held pulls that go away: the others are served."""

    async def scenario() -> None:
        leader = await shared.leader()
        name = leader.config.node_id
        watch: Any = shared.channel(name).unary_stream("/dledger.v1.Cluster/WatchLeader")
        silent = [watch(b"") for _ in range(50)]
        pull: Any = shared.channel(name).unary_unary("/dledger.v1.Broker/Pull")
        request = pb.PullRequest(topic="t", queue_id=1, hold_ms=20_000).SerializeToString()
        held = [asyncio.ensure_future(pull(request)) for _ in range(50)]
        while leader.held.statistics().held < 50:
            await asyncio.sleep(0.001)
        assert not (await shared.send(0, b"served")).HasField("error")
        for call in (*silent, *held):
            call.cancel()
        while leader.held.statistics().held:
            await asyncio.sleep(0.001)

    loop.run_until_complete(scenario())


def test_answers_that_nobody_reads_are_bounded_in_bytes(
    shared: Group, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulls whose clients don't take the answer share a budget; past it a pull is BUSY, and when
    the clients go the bytes come back."""

    async def scenario() -> None:
        leader = await shared.leader()
        name = leader.config.node_id
        answers = leader.services.pulls.budget
        size = 1 << 20
        for number in range(4):
            await shared.send(number, bytes(size), queue_id=1)
        monkeypatch.setattr(answers, "_limit", 3 * size)
        answers.take(size + size // 2)  # as clients that don't read would
        request = pb.PullRequest(topic="t", queue_id=1, max_messages=4, max_bytes=8 << 20)
        answer = await shared.call(name, "Broker", "Pull", request)
        assert answer.count == 1, "made smaller to fit what is left"
        while answers.used_bytes > size + size // 2:
            await asyncio.sleep(0.001)
        answers.take(size + size // 2)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await shared.call(name, "Broker", "Pull", request)
        assert error_of(refused.value).code == epb.BUSY
        answers.give_back(3 * size)
        assert answers.used_bytes == 0

    loop.run_until_complete(scenario())


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Pull", pb.PullRequest(topic="nope")),
        ("Pull", pb.PullRequest(topic="t", offset=99)),
        ("DeleteTopic", pb.DeleteTopicRequest(name="nope")),
        (
            "CommitOffsets",
            pb.CommitOffsetsRequest(group="g", topic="nope", offsets=[pb.QueueOffset()]),
        ),
        ("GetMessage", pb.GetMessageRequest(message_id="7F00000100001B59" + "0" * 16)),
    ],
)
def test_only_a_confirmed_leader_says_that_something_does_not_exist(
    shared: Group,
    loop: asyncio.AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    request_: Any,
) -> None:
    """A leader that can't reach a majority may lack what others acknowledged since: it sends the
    caller on instead of denying it."""

    async def scenario() -> None:
        leader = await shared.leader()
        monkeypatch.setattr(leader.driver, "read_index", lambda done: done(False))
        error = await failure(shared, "Broker", method, request_)
        assert error_of(error).code in (epb.NOT_LEADER, epb.NOT_READY)
        assert error_of(error).retriable

    loop.run_until_complete(scenario())


def test_a_send_is_not_refused_for_good_by_a_leader_that_is_not_confirmed(
    shared: Group, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic may exist at the next leader: such a batch is retriable."""

    async def scenario() -> None:
        leader = await shared.leader()
        monkeypatch.setattr(leader.driver, "read_index", lambda done: done(False))
        request = pb.SendRequest(
            producer_id=b"producer-number2", batches=[wire_batch(0, b"x", topic="nope")]
        )
        answer = await shared.call(leader.config.node_id, "Broker", "Send", request)
        error = answer.results[0].error
        assert (error.retriable, error.outcome) == (True, epb.DID_NOT_HAPPEN)

    loop.run_until_complete(scenario())


def test_requests_under_way_are_bounded_in_bytes(
    shared: Group, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends that wait share a budget too; what is over it did not happen."""

    async def scenario() -> None:
        requests = (await shared.leader()).services.sends.budget
        monkeypatch.setattr(requests, "_limit", 1_000)
        requests.take(1_000)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await shared.send(99, b"x", queue_id=1)
        detail = error_of(refused.value)
        assert (detail.code, detail.outcome) == (epb.BUSY, epb.DID_NOT_HAPPEN)
        requests.give_back(1_000)

    loop.run_until_complete(scenario())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"broker_group": "g2"}, "broker group"),
        ({"segment_size_bytes": 1 << 30}, "segment size"),
        ({"protocol_version": 99}, "protocol version is 99 there and 2 here"),
        ({"protocol_version": 1}, "protocol version is 1 there and 2 here"),
        ({"to_node_id": "n2"}, "addressed node"),
        ({"node_id": "stranger"}, "stranger"),
        ({"node_id": "n1"}, "n1"),
    ],
)
def test_a_peer_that_does_not_fit_is_refused_by_name(
    shared: Group, loop: asyncio.AbstractEventLoop, change: dict[str, Any], named: str
) -> None:
    """Another group, segment size, version, or somebody unknown: the text says what differs."""

    async def scenario() -> None:
        node = shared.nodes["n1"]
        good: dict[str, Any] = {
            "protocol_version": PROTOCOL_VERSION,
            "broker_group": "g1",
            "node_id": "n2",
            "to_node_id": "n1",
            "segment_size_bytes": node.config.store.segment_size_bytes,
        }
        stream: Any = shared.channel("n1").stream_stream("/dledger.v1.RaftPeer/Replicate")
        call = stream()
        await call.write(seal(PeerMessage(hello=Hello(**{**good, **change}))).SerializeToString())
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert named in await call.details()

    loop.run_until_complete(scenario())


def test_a_hello_with_a_flipped_bit_is_refused(
    shared: Group, loop: asyncio.AbstractEventLoop
) -> None:
    """Its fields say whom it comes from: a wrong checksum means that they can't be believed."""

    async def scenario() -> None:
        node = shared.nodes["n1"]
        size = node.config.store.segment_size_bytes
        hello = Identity("g1", NodeId("n2"), size).hello(NodeId("n1"))
        hello.checksum ^= 1
        stream: Any = shared.channel("n1").stream_stream("/dledger.v1.RaftPeer/Replicate")
        call = stream()
        await call.write(hello.SerializeToString())
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "checksum" in await call.details()

    loop.run_until_complete(scenario())


def test_an_absurd_message_ends_its_stream(shared: Group, loop: asyncio.AbstractEventLoop) -> None:
    """It is dropped and counted, and the node goes on."""

    async def scenario() -> None:
        node = shared.nodes["n1"]
        before = node.driver.statistics().messages_refused
        size = node.config.store.segment_size_bytes
        hello = Identity("g1", NodeId("n2"), size, disk_of("n2"), LATER).hello(NodeId("n1"))
        stream: Any = shared.channel("n1").stream_stream("/dledger.v1.RaftPeer/Replicate")
        call = stream()
        await call.write(hello.SerializeToString())
        await call.read()
        vote = seal(PeerMessage(term=(1 << 64) - 1, vote_request=VoteRequest()))
        await call.write(vote.SerializeToString())
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "term" in await call.details()
        assert node.driver.statistics().messages_refused == before + 1
        assert node.driver.core.term < 1_000

    loop.run_until_complete(scenario())


def test_a_watcher_of_another_group_is_told(shared: Group, loop: asyncio.AbstractEventLoop) -> None:
    """A client configured for another group finds out at once."""

    async def scenario() -> None:
        watch: Any = shared.channel("n1").unary_stream("/dledger.v1.Cluster/WatchLeader")
        call = watch(cpb.WatchLeaderRequest(broker_group="other").SerializeToString())
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "'other'" in await call.details()

    loop.run_until_complete(scenario())
