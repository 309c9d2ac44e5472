"""The link to one node: its watch ends when it is told to, whatever happens at that moment."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

import grpc
import pytest

from dledger.client import (
    ALL,
    Client,
    ClientOptions,
    ConsumerOptions,
    NewMessage,
    Producer,
    ProducerOptions,
    WrongThread,
)
from dledger.client.broker_group import MAX_LINKS, BrokerGroup
from dledger.client.connection import ATTEND_PATH, GET_STATUS, LIST_TOPICS, NodeLink
from dledger.client.errors import ClientError, LeadershipLost
from dledger.client.group_epoch import EpochName
from dledger.client.leader_view import Member, View
from dledger.client.options import CHANNEL_OPTIONS
from dledger.client.patience import ALONE, Patience
from dledger.limits import EPOCH_METADATA_KEY, ERROR_METADATA_KEY
from dledger.outcome import Outcome
from dledger.testing.fake_nodes import FakeGroup
from dledger.wire import broker_pb2 as pb
from dledger.wire import cluster_pb2 as cpb
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as gpb
from tests.client.loops import async_test

LIMIT_S = 10.0
NUDGES = 10


@async_test
async def test_link_that_is_closed_while_it_is_nudged_ends() -> None:
    """Found by the surface's state machine: a view woke the watch in the turn of the loop in which
    `close` cancelled it, `asyncio.wait_for` gave the wake-up and dropped the cancellation (Python
    before 3.12), and `close` waited for ever."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        lost = asyncio.Event()
        link = NodeLink(
            address,
            lambda: grpc.aio.insecure_channel(address),
            str,
            on_view=lambda *_: None,
            on_lost=lambda *_: lost.set(),
            epoch=EpochName,
            on_epoch=lambda *_: None,
            patience=lambda: ALONE,
        )
        async with asyncio.timeout(LIMIT_S):
            await lost.wait()  # it pauses now
            await asyncio.sleep(0)
            link.nudge()
            await link.close()
        assert link._watching.cancelled()


@async_test
async def test_a_link_without_its_node_dials_only_when_it_is_to() -> None:
    """Found by 1,000 clients of a group that had lost a node: gRPC dialed it twice a second for
    each, as long as anybody kept an error of a call, which kept the call, and that its channel."""
    dialed, lost = 0, asyncio.Semaphore(0)

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialed
        dialed += 1
        writer.transport.abort()

    refusing = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"127.0.0.1:{refusing.sockets[0].getsockname()[1]}"
    link = NodeLink(
        address,
        lambda: grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS),
        str,
        on_view=lambda *_: None,
        on_lost=lambda *_: lost.release(),
        epoch=EpochName,
        on_epoch=lambda *_: None,
        patience=lambda: Patience(growth=10_000, most_s=600.0),
    )
    kept: list[ClientError] = []
    try:
        async with asyncio.timeout(LIMIT_S):
            for _ in range(2):  # the first rest is short
                with pytest.raises(ClientError) as failed:
                    await link.call(GET_STATUS, cpb.GetStatusRequest(), LIMIT_S)
                kept.append(failed.value)
                await lost.acquire()
            await asyncio.sleep(0.05)  # what was dialed for the calls has broken
            before = dialed
            for _ in range(NUDGES):
                link.nudge()
                await lost.acquire()
            await asyncio.sleep(0.7)  # more than gRPC waits at most
        assert dialed - before == 2 * NUDGES  # it is knocked at first
    finally:
        await link.close()
        refusing.close()
    assert len(kept) == 2


@async_test
async def test_a_node_that_is_gone_costs_no_channel() -> None:
    """Making and dialing one costs ten times what it takes to be refused, and each client of a
    group that has lost a node asks for it again and again."""
    channels, lost = 0, asyncio.Semaphore(0)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"

        def dial() -> grpc.aio.Channel:
            nonlocal channels
            channels += 1
            return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

        failures: list[ClientError] = []

        def on_lost(_address: str, error: ClientError) -> None:
            failures.append(error)
            lost.release()

        link = NodeLink(
            address,
            dial,
            str,
            on_view=lambda *_: None,
            on_lost=on_lost,
            epoch=EpochName,
            on_epoch=lambda *_: None,
            patience=lambda: Patience(growth=10_000, most_s=600.0),
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                for _ in range(2):  # the first rest is short
                    await lost.acquire()
                for _ in range(NUDGES):
                    link.nudge()
                    await lost.acquire()
        finally:
            await link.close()
    assert channels == 2  # the one that was refused, and the one in its place
    assert {error.outcome for error in failures} == {Outcome.DID_NOT_HAPPEN}


@async_test
async def test_a_stream_that_broke_is_dialed_for_nobody() -> None:
    """Found by 1,000 members of groups that had lost their leader: who read and wrote the stream
    kept it in the errors by which they ended, until those were collected as garbage, and gRPC
    dialed the node twice a second for each."""
    dialed = 0

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialed
        dialed += 1
        writer.transport.abort()

    refusing = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"127.0.0.1:{refusing.sockets[0].getsockname()[1]}"
    lost = asyncio.Event()
    link = NodeLink(
        address,
        lambda: grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS),
        str,
        on_view=lambda *_: None,
        on_lost=lambda *_: lost.set(),
        epoch=EpochName,
        on_epoch=lambda *_: None,
        patience=lambda: Patience(growth=10_000, most_s=600.0),
    )
    kept: list[BaseException] = []
    try:
        async with asyncio.timeout(LIMIT_S):
            with link.attending() as call:
                for work in (call.read(), call.write(gpb.AttendRequest())):
                    with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)) as failed:
                        await work
                    kept.append(failed.value)
            for _ in range(2):  # the first rest is short
                lost.clear()
                link.nudge()
                await lost.wait()
            await asyncio.sleep(0.05)
            before = dialed
            await asyncio.sleep(0.7)  # more than gRPC waits at most
        assert dialed == before
    finally:
        await link.close()
        refusing.close()
    assert len(kept) == 2


@async_test
async def test_a_node_that_rests_is_asked_as_soon_as_nobody_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While somebody served it wasn't missed; it may be the next leader."""
    endless = Patience(growth=1e9, most_s=1e9)
    monkeypatch.setattr("dledger.client.broker_group.SERVED", endless)
    lost, on_lost = asyncio.Semaphore(0), BrokerGroup._on_lost

    def lose(group: BrokerGroup, address: str, failure: ClientError) -> None:
        lost.release()
        on_lost(group, address, failure)

    monkeypatch.setattr(BrokerGroup, "_on_lost", lose)
    async with FakeGroup(nodes=2) as group, Client.connect(group.bootstrap) as client:
        first, second = group.nodes
        async with asyncio.timeout(LIMIT_S):
            await client.topics()
            await second.called("WatchLeader", 1)
            await second.kill()
            for _ in range(2):  # after the first rest it was asked again
                await lost.acquire()
            await second.start()
            await first.kill()
            await second.called("WatchLeader", 2)
            group.elect(second)
            await client.topics()


@async_test
async def test_an_answer_that_comes_after_the_news_of_a_recovery_is_not_taken() -> None:
    """Whoever gave it may have been given up: it may have happened (ADR 52)."""
    async with FakeGroup() as group:
        known = [EpochName()]
        told: list[EpochName] = []
        address = group.nodes[0].address
        link = NodeLink(
            address,
            lambda: grpc.aio.insecure_channel(address),
            str,
            on_view=lambda *_: None,
            on_lost=lambda *_: None,
            epoch=lambda: known[0],
            on_epoch=lambda _, epoch: told.append(epoch),
            patience=lambda: ALONE,
        )
        try:
            await link.call(LIST_TOPICS, pb.ListTopicsRequest(), LIMIT_S)
            assert told == [EpochName()], "an answer says nothing of a group never recovered"
            pending = asyncio.ensure_future(link.call(LIST_TOPICS, pb.ListTopicsRequest(), LIMIT_S))
            await asyncio.sleep(0)  # it is under way
            known[0] = EpochName(1, b"r" * 16)
            with pytest.raises(LeadershipLost, match="recovered by force") as lost:
                await pending
            assert lost.value.outcome is Outcome.MAY_HAVE_HAPPENED
            await link.call(LIST_TOPICS, pb.ListTopicsRequest(), LIMIT_S)
        finally:
            await link.close()


def epochs_of(context: Any) -> tuple[tuple[str, bytes], ...]:
    """What a caller says of the group's epoch."""
    said = context.invocation_metadata() or ()
    return tuple(each for each in said if each[0] == EPOCH_METADATA_KEY)


class Elsewhere:
    """A node of a group that can be another one by now: what its callers say."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = EpochName(3, b"e" * 16)  # of the group that it is of
        self.watched: asyncio.Queue[tuple[str, object]] = asyncio.Queue()
        self.asked: list[object] = []
        self.address = ""
        self.speaks = asyncio.Event()
        self.speaks.set()
        self._server = grpc.aio.server()

    async def __aenter__(self) -> Elsewhere:
        handlers = {
            "WatchLeader": grpc.unary_stream_rpc_method_handler(
                self._watch,
                cpb.WatchLeaderRequest.FromString,
                cpb.LeaderView.SerializeToString,
            ),
            "GetStatus": grpc.unary_unary_rpc_method_handler(
                self._status, cpb.GetStatusRequest.FromString, cpb.NodeStatus.SerializeToString
            ),
        }
        generic = grpc.method_handlers_generic_handler("dledger.v1.Cluster", handlers)
        self._server.add_generic_rpc_handlers((generic,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._server.stop(None)

    async def _watch(self, request: cpb.WatchLeaderRequest, context: Any) -> None:
        self.watched.put_nowait((request.broker_group, epochs_of(context)))
        if request.broker_group not in ("", self.name):
            error = epb.Error(code=epb.WRONG_BROKER_GROUP, message="another group's")
            told = ((ERROR_METADATA_KEY, error.SerializeToString()),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another group's", told)
        await self.speaks.wait()
        await context.write(cpb.LeaderView(broker_group=self.name, node_id="n1"))
        await asyncio.Event().wait()

    async def _status(self, request: object, context: Any) -> cpb.NodeStatus:
        self.asked.append(epochs_of(context))
        context.set_trailing_metadata(self.epoch.metadata)
        return cpb.NodeStatus(broker_group=self.name)


@async_test
async def test_the_epoch_goes_along_with_the_groups_name() -> None:
    """A node of a group that was never recovered takes any epoch for a newer one of its own, and
    serves nobody from then on. So no watch tells one to whoever is there: not without a name,
    which is told as soon as it is known, and not where another group was heard last (ADR 52)."""
    names, known = [""], EpochName(1, b"r" * 16)
    views: asyncio.Queue[View] = asyncio.Queue()

    async with Elsewhere("billing") as node:
        node.speaks.clear()
        link = NodeLink(
            node.address,
            lambda: grpc.aio.insecure_channel(node.address),
            lambda: names[0],
            on_view=lambda _, view: views.put_nowait(view),
            on_lost=lambda *_: None,
            epoch=lambda: known,
            on_epoch=lambda *_: None,
            patience=lambda: ALONE,
        )
        try:
            assert await node.watched.get() == ("", ())
            names[0] = "orders"  # by another node's view, before this one's
            node.speaks.set()
            assert (await views.get()).broker_group == "billing"
            link.ask_again()
            for _ in range(2):  # it is refused, and asks again
                assert await node.watched.get() == ("orders", ())
                link.nudge()
            node.name = "orders"
            assert await node.watched.get() == ("orders", ())
            assert (await views.get()).broker_group == "orders"
            link.ask_again()
            assert await node.watched.get() == ("orders", known.metadata)
        finally:
            await link.close()


@async_test
async def test_a_nodes_status_says_nothing_of_the_groups_epoch() -> None:
    """Every address is asked for it, whosever node is there. Another group's epoch was taken for
    the own one's, and shut each node of that."""
    told: list[EpochName] = []
    async with Elsewhere("billing") as node:
        link = NodeLink(
            node.address,
            lambda: grpc.aio.insecure_channel(node.address),
            lambda: "orders",
            on_view=lambda *_: None,
            on_lost=lambda *_: None,
            epoch=lambda: EpochName(1, b"r" * 16),
            on_epoch=lambda _, epoch: told.append(epoch),
            patience=lambda: ALONE,
        )
        try:
            status = await link.call(GET_STATUS, cpb.GetStatusRequest(), 60.0)
        finally:
            await link.close()
    assert status.broker_group == "billing"
    assert node.asked == [()]
    assert told == []


@async_test
async def test_a_client_without_a_groups_name_tells_it_once_it_is_known() -> None:
    """By whichever node is heard first, to all of them."""
    async with Elsewhere("orders") as theirs, Elsewhere("billing") as other:
        group = BrokerGroup([theirs.address, other.address], None, ClientOptions())
        try:
            for node in (theirs, other):
                assert await node.watched.get() == ("", ())
            while not group._name:
                await asyncio.sleep(0)
            heard, unheard = (theirs, other) if group._name == "orders" else (other, theirs)
            group._on_epoch(heard.address, EpochName(1, b"r" * 16))
            assert await heard.watched.get() == (heard.name, EpochName(1, b"r" * 16).metadata)
            assert (await unheard.watched.get())[0] == heard.name
        finally:
            await group.close()


@async_test
async def test_members_streams_tell_the_epoch_that_is_known() -> None:
    """As every call does: who was given up is not to serve them (ADR 52)."""
    seen: list[tuple[tuple[str, str | bytes], ...]] = []

    async def attend(_: object, context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        said = context.invocation_metadata() or ()
        seen.append(tuple(each for each in said if each[0] == EPOCH_METADATA_KEY))

    server = grpc.aio.server()
    service, method = ATTEND_PATH[1:].split("/")
    handler = grpc.stream_stream_rpc_method_handler(attend)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    link = NodeLink(
        address,
        lambda: grpc.aio.insecure_channel(address),
        str,
        on_view=lambda *_: None,
        on_lost=lambda *_: None,
        epoch=lambda: EpochName(2, b"r" * 16),
        on_epoch=lambda *_: None,
        patience=lambda: ALONE,
    )
    try:
        with link.attending() as stream:
            assert await stream.read() is None
    finally:
        await link.close()
        await server.stop(None)
    assert seen == [EpochName(2, b"r" * 16).metadata]


@async_test
async def test_call_that_cleans_up_after_a_cancellation_survives_a_change_of_leader() -> None:
    """A task stays marked as cancelled while its `finally` runs. A commit there, given up because
    its node leads no longer, used to be taken for cancelled itself, and was lost."""
    async with FakeGroup() as group, Client.connect(group.bootstrap) as client:
        group.model.create("t", 1)
        await client.topics()
        begun, asked = asyncio.Event(), asyncio.Event()

        async def stall(method: str, node: object, request: object) -> None:
            if method == "CommitOffsets" and not asked.is_set():
                asked.set()
                await asyncio.sleep(LIMIT_S)

        async def job() -> None:
            try:
                begun.set()
                await asyncio.sleep(LIMIT_S)
            finally:
                await client.commit_offsets("g", "t", {0: 0})

        group.before.append(stall)
        task = asyncio.create_task(job())
        await begun.wait()
        task.cancel()
        await asked.wait()
        group.nodes[0].running.clear()  # stopped: it will say nothing more, not of the next either
        group.elect(group.nodes[1])
        async with asyncio.timeout(LIMIT_S):
            await asyncio.wait([task])
        assert task.cancelled()
        assert group.model.offsets["g", "t"] == {0: 0}


@async_test
async def test_infinite_times_are_long_and_not_over() -> None:
    """gRPC's clock overflows: calls without an end used to be over at once, and asked again for
    ever."""
    never = float("inf")
    options = ClientOptions(deadline_s=never, status_timeout_s=never)
    patient = ProducerOptions(delivery_timeout_ms=10**30, request_timeout_ms=10**30)
    async with (
        asyncio.timeout(LIMIT_S),
        FakeGroup() as group,
        Client.connect(group.bootstrap, options=options) as client,
        client.producer(patient) as producer,
    ):
        group.model.create("t", 1)
        await client.topics()
        await client.topics(deadline_s=never)
        assert any(node.alive for node in await client.status())
        assert (await producer.send("t", b"x")).queue_offset == 0
        consumer = client.pull_consumer(
            "t", idle_timeout_s=never, options=ConsumerOptions(deadline_s=never)
        )
        assert (await anext(consumer)).body == b"x"


def test_producer_of_a_loop_that_is_over_says_so() -> None:
    """It took messages that nobody sent, and who flushed or closed waited for ever. In its own loop
    all is well, before it runs, too."""

    async def begin(group: FakeGroup) -> tuple[Client, Producer]:
        await group.__aenter__()
        group.model.create("t", 1)
        client = await Client.connect(group.bootstrap).__aenter__()
        producer = client.producer()
        await producer.send("t", b"x")
        return client, producer

    async def elsewhere(producer: Producer) -> None:
        for send in (producer.send, producer.send_one_way):
            with pytest.raises(WrongThread, match="another event loop"):
                send("t", b"y")
        message = NewMessage("t", b"y")
        for call in (
            *(producer.flush, partial(producer.send_all, [message]), producer.room),
            *(producer.register, producer.close, producer.abort),
        ):
            with pytest.raises(WrongThread, match="another event loop"):
                await call()

    group = FakeGroup()
    with asyncio.Runner() as first:
        client, producer = first.run(begin(group))
        asyncio.run(elsewhere(producer))
        producer.send_one_way("t", b"z")
        first.run(client.close())
        assert group.model.bodies("t", 0) == [b"x", b"z"]
        first.run(group.__aexit__())


def test_client_of_a_loop_that_is_over_says_so() -> None:
    """A client kept over two `asyncio.run`s belongs to the first."""

    async def open_client(group: FakeGroup) -> Client:
        await group.__aenter__()
        return await Client.connect(group.bootstrap).__aenter__()

    async def elsewhere(client: Client) -> None:
        with pytest.raises(WrongThread, match="another event loop"):
            await client.topics()
        with pytest.raises(WrongThread, match="another event loop"):
            client.pull_consumer("t", group="g", queues=ALL)
        with pytest.raises(WrongThread, match="another event loop"):
            await client.close()

    async def once_more(producer: Producer) -> None:
        await producer.close()
        await producer.abort()

    async def closed_producer(client: Client) -> Producer:
        producer = client.producer()
        await producer.close()
        return producer

    group = FakeGroup()
    with asyncio.Runner() as first:
        client = first.run(open_client(group))
        asyncio.run(elsewhere(client))
        asyncio.run(once_more(first.run(closed_producer(client))))  # what is closed is, anywhere
        first.run(client.close())
        first.run(group.__aexit__())


@async_test
async def test_client_that_outlives_many_members_still_hears_of_new_ones() -> None:
    """Members are replaced over the years: addresses at which nobody answers and that nobody names
    make room for new ones. What the user gave, and what is in use, stays."""
    given, heard = "127.0.0.1:1", "127.0.0.1:2"
    group = BrokerGroup([given], None, ClientOptions())
    try:
        for year in range(MAX_LINKS + 20):
            now = (Member("n1", heard), Member("n2", f"127.0.0.1:{100 + year}"))
            group._on_view(heard, View("g", "n1", 1, now[0], serving=True, members=now))
            assert len(group._links) <= MAX_LINKS
            assert {given, heard, now[1].address} <= set(group._links)
            assert group.target is group._links[heard]
        crowd = tuple(Member(f"m{n}", f"127.0.0.1:{1000 + n}") for n in range(MAX_LINKS))
        group._on_view(heard, View("g", "n1", 1, crowd[0], serving=True, members=crowd))
        assert len(group._links) == MAX_LINKS  # a view that names too many is not followed
    finally:
        async with asyncio.timeout(LIMIT_S):
            await group.close()
    assert not group._leaving
