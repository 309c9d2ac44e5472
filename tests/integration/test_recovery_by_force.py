"""Real nodes and clients around a recovery by force (ADR 52): who serves whom when those that were
given up come back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from broker.config import NodeConfig
from broker.last_resort import check, hear
from broker.leader.epochs import EpochName
from broker.leader.groups.pace import Pace
from broker.local_group.status import ask
from broker.ports import Rhythm
from dledger.client import Client, ClientOptions, Message, ProducerOptions, PushOptions
from dledger.client.connection import PULL, WhenDeposed
from dledger.client.errors import ClientError
from dledger.client.group_epoch import epoch_in
from dledger.limits import EPOCH_METADATA_KEY
from dledger.wire import broker_pb2
from store.commitlog import CommitLogOptions
from store.directory import Identity
from store.errors import RecoveryRefused
from store.files import OsFiles
from store.out_of_service import mark_of
from store.starting.errors import OutOfService
from store.starting.opening import Site
from store.starting.recovering import Recovered, examine, force
from store.worker import InlineWorker
from tests.client.loops import async_test
from tests.integration.group import (
    SEGMENT_BYTES,
    WAIT_S,
    Group,
    error_of,
    free_ports,
    make_configs,
)

SOON = ClientOptions(deadline_s=WAIT_S)


def recovered(config: NodeConfig) -> Recovered:
    """The group goes on from that member's directory."""
    path, identity = config.data_directory, Identity("g1", config.node_id, SEGMENT_BYTES)
    options = CommitLogOptions(segment_size_bytes=SEGMENT_BYTES, reserve_bytes=0)
    site = Site(path, identity, OsFiles(), options, workers=InlineWorker)
    return force(site, examine(path, identity, OsFiles()))


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


async def begun(group: Group) -> None:
    """Three members have lived and are stopped."""
    await group.start()
    await group.at_its_level()
    await group.create_topic()
    for number in range(3):
        await group.send(number, b"before %d" % number)
    await group.applied_everywhere()
    for name in list(group.nodes):
        await group.stop(name)


async def recovered_apart(root: Path) -> Group:
    """A group that was recovered from n3, and of which nobody runs; n1 and n2 won't reach n3."""
    group = Group(make_configs(root))
    try:
        await begun(group)
    finally:
        await group.close()
    recovered(group.configs["n3"])
    return Group(apart(list(group.configs.values())))


def apart(configs: list[NodeConfig]) -> list[NodeConfig]:
    """The same members, of whom n1 and n2 can't dial n3, nor n3 the two: as long as it isn't known
    to be committed that they aren't members it would."""
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    cut_off = {"n1": ("n3",), "n2": ("n3",), "n3": ("n1", "n2")}
    return [
        each.model_copy(update={"dial": dict.fromkeys(cut_off[each.node_id], nowhere)})
        for each in configs
    ]


@async_test
async def test_members_that_were_given_up_take_themselves_out_of_service(tmp_path: Path) -> None:
    """They come back as a majority of themselves, and reach the survivor."""
    configs = make_configs(tmp_path)
    group = Group(configs)
    try:
        await begun(group)
        done = recovered(group.configs["n3"])
        await group.start("n3")
        survivor = await group.leader()
        assert survivor.config.node_id == "n3"
        assert survivor.driver.core.term > done.term
        await group.send(3, b"after")
        await group.start("n1", "n2")
        given_up = [group.nodes[name] for name in ("n1", "n2")]
        await until(lambda: all(each.failure for each in given_up), "they take part")
        for each in given_up:
            assert isinstance(each.failure, OutOfService)
            assert "given up" in str(each.failure)
            assert not each.leadership.serving
            await group.stop(each.config.node_id)
            told = mark_of(OsFiles(), each.config.data_directory)
            assert told is not None
            assert told.recoveries == (done.epoch.recoveries[0].hex(),)
            assert told.peers == ("n3",)
        assert survivor.leadership.serving
        assert survivor.failure is None
        await group.send(4, b"and on")
    finally:
        await group.close()


@async_test
async def test_a_client_that_knows_of_the_recovery_stops_those_of_before(tmp_path: Path) -> None:
    """They reach no member of after, elect a leader, and serve who knows of nothing: until a client
    that does tells them."""
    group = await recovered_apart(tmp_path)
    try:
        await group.start("n3", "n1", "n2")
        n1, n2, n3 = (group.nodes[name] for name in ("n1", "n2", "n3"))
        await until(lambda: n3.leadership.serving, "the survivor leads")
        await until(lambda: n1.leadership.serving or n2.leadership.serving, "they elect nobody")
        old = ",".join(group.configs[name].listen for name in ("n1", "n2"))
        async with Client.connect(old, options=SOON) as unaware:
            # It knows of n3 by the members that are named to it, and learns as it dials that.
            async with (
                Client.connect(f"{old},{n3.config.listen}", options=SOON) as aware,
                aware.producer(ProducerOptions()) as producer,
            ):
                for number in range(5):
                    await producer.send("t", b"after %d" % number, queue_id=0)
            await until(
                lambda: not (n1.leadership.serving or n2.leadership.serving), "they serve on"
            )
            assert n1.leadership.fence.is_shut or n2.leadership.fence.is_shut
            async with unaware.producer(ProducerOptions()) as producer:
                await producer.send("t", b"after 5", queue_id=0)
        found = await _bodies(n3.config.listen)
        assert found[-6:] == [b"after %d" % number for number in range(6)]
        assert n1.failure is None, "a client's word touches no disk"
        assert n3.leadership.serving
        assert not n3.leadership.fence.is_shut
    finally:
        await group.close()


async def _bodies(address: str) -> list[bytes]:
    """What the group holds in queue 0, as a client reads it."""
    found: list[bytes] = []
    async with Client.connect(address, options=SOON) as client:
        offsets = await client.queue_offsets("t", 0)
        async with client.pull_consumer("t", queues=[0]) as consumer:
            async for message in consumer:
                found.append(message.body)
                if message.queue_offset + 1 >= offsets.max_offset:
                    return found
    raise AssertionError("the loop ends by itself")


def epoch(number: int, recovery_id: bytes) -> tuple[tuple[str, bytes], ...]:
    return ((EPOCH_METADATA_KEY, number.to_bytes(4, "big") + recovery_id),)


async def _list_topics(group: Group, name: str, metadata: Any) -> EpochName:
    """The epoch that the answer tells of."""
    method: Any = group.channel(name).unary_unary("/dledger.v1.Broker/ListTopics")
    request = broker_pb2.ListTopicsRequest().SerializeToString()
    call = method(request, timeout=WAIT_S, metadata=metadata)
    await call
    found = epoch_in(await call.trailing_metadata() or ())
    return EpochName(found.number, found.recovery_id)


@async_test
async def test_what_a_caller_says_of_the_epoch_is_judged(tmp_path: Path) -> None:
    """The own one, one that led to it, and none at all are served; another one isn't, and a newer
    one shuts the node until it is started again."""
    group = Group(make_configs(tmp_path, 1))
    own = EpochName()
    try:
        await group.start()
        await group.at_its_level()
        await _list_topics(group, "n1", ())
        await _list_topics(group, "n1", None)
        for broken in (b"", b"\0\0\0\1", bytes(20), b"\0\0\0\x7f" + b"x" * 16):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await _list_topics(group, "n1", ((EPOCH_METADATA_KEY, broken),))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        (node,) = group.nodes.values()
        assert node.leadership.fence.name == own
        assert not node.leadership.fence.is_shut
        assert (await ask(node.config.listen)).newer_epoch == 0
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _list_topics(group, "n1", epoch(1, b"r" * 16))
        assert "recovered by force without this node" in error_of(refused.value).message
        assert not node.leadership.serving
        node.leadership.on_applied(node.driver.applied_index)  # as when it is elected again
        assert not node.leadership.serving
        assert not node.leadership.view().is_serving
        assert (await ask(node.config.listen)).newer_epoch == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await _list_topics(group, "n1", ())
        assert await group.stop("n1") == 0
        await group.start("n1")
        await group.leader()
        await _list_topics(group, "n1", ())
    finally:
        await group.close()


@async_test
async def test_who_was_served_in_another_recovery_is_refused(tmp_path: Path) -> None:
    """And neither side counts as newer."""
    group = Group(make_configs(tmp_path, 2))
    try:
        await group.start()
        await group.leader()
        for name in list(group.nodes):
            await group.stop(name)
        done = recovered(group.configs["n2"])
        await group.start("n2")
        await group.leader()
        now = EpochName(1, done.epoch.recoveries[0])
        assert await _list_topics(group, "n2", epoch(1, now.recovery_id)) == EpochName()
        assert await _list_topics(group, "n2", ()) == now, "who doesn't know of it is told"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _list_topics(group, "n2", epoch(1, b"r" * 16))
        assert "are two groups since" in error_of(refused.value).message
        assert (await group.leader()).config.node_id == "n2"
    finally:
        await group.close()


@async_test
async def test_an_answer_of_before_is_not_the_groups(tmp_path: Path) -> None:
    """A call under way to a node of before, which answers after the client has heard of the
    recovery: it may have happened, and that is all that is told."""
    group = await recovered_apart(tmp_path)
    try:
        await group.start("n1", "n2")
        leader = await group.leader()
        async with Client.connect(leader.config.listen, options=SOON) as client:
            await client.topics()
            # A pull that is held there: it would be answered with nothing, at its leisure.
            group_of_it = client._broker_group
            link = group_of_it.target
            assert link is not None
            request = broker_pb2.PullRequest(topic="t", queue_id=0, offset=3, hold_ms=15_000)
            pending = asyncio.ensure_future(link.call(PULL, request, 15.0, WhenDeposed.AWAIT))
            await until(lambda: leader.held.statistics().held > 0, "it isn't held")
            await group.start("n3")
            await until(lambda: group_of_it._board.epoch.number == 1, "it hears of nothing")
            with pytest.raises(ClientError, match=r"recovered by force|leads no longer"):
                await pending
            await client.topics()
            target = group_of_it.target
            assert target is not None
            assert target.address == group.configs["n3"].listen
    finally:
        await group.close()


@async_test
async def test_members_that_run_are_asked_before_anybody_is_given_up(tmp_path: Path) -> None:
    group = Group(make_configs(tmp_path))
    try:
        await begun(group)
        config = group.configs["n3"]
        identity = Identity("g1", "n3", SEGMENT_BYTES)
        survivor = examine(config.data_directory, identity, OsFiles())
        assert await hear(survivor, (), None) == ()
        check(survivor, (), ())
        await group.start("n1")
        (heard,) = await hear(survivor, (), None)
        assert (heard.node_id, heard.epoch) == ("n1", 0)
        with pytest.raises(RecoveryRefused, match="n1 can be reached, and with n3"):
            check(survivor, (), (heard,))
    finally:
        await group.close()


PACE = Pace(heartbeat_ms=500, session_ms=6_000, return_ms=4_200)


async def _send_to_the_group(client: Client, *bodies: bytes) -> None:
    """To queue 0, in this order; the last one is acknowledged."""
    async with client.producer(ProducerOptions()) as producer:
        for body in bodies:
            await producer.send("t", body, queue_id=0)


@async_test
async def test_a_member_that_had_read_beyond_the_survivors_end_is_set_back(tmp_path: Path) -> None:
    """It has finished, and committed, offsets that are filled again with other messages: it is
    handed these, as its session is over and the log says where its group goes on."""
    configs = make_configs(tmp_path)
    group = Group(configs, rhythm=Rhythm(groups=PACE))
    found: list[bytes] = []
    options = ClientOptions(deadline_s=2 * WAIT_S)
    try:
        await group.start()
        await group.at_its_level()
        await group.create_topic()
        addresses = ",".join(config.listen for config in configs)
        async with Client.connect(addresses, options=options) as client:
            service = client.push_consumer("g", PushOptions(hold_ms=500, commit_every_s=0.05))

            @service.on("t")
            async def handle(message: Message) -> None:
                found.append(message.body)

            running = asyncio.create_task(service.run())
            try:
                early, late = ([b"%s %d" % (word, n) for n in range(9)] for word in (b"a", b"b"))
                await _send_to_the_group(client, *early)
                await until(lambda: set(found) == set(early), "the first ones aren't handled")
                await group.applied_everywhere()
                await until(lambda: _committed(group, "n3") == 9, "the survivor hasn't heard of it")
                if (await group.leader()).config.node_id == "n3":
                    await group.stop("n3")
                    await group.leader()
                else:
                    await group.stop("n3")
                await _send_to_the_group(client, *late)
                await until(lambda: set(late) <= set(found), "the next ones aren't handled")
                leader = (await group.leader()).config.node_id
                await until(lambda: _committed(group, leader) == 18, "they aren't committed")
                for name in ("n1", "n2"):
                    await group.stop(name)
                recovered(group.configs["n3"])
                await group.start("n3")
                assert _committed(group, "n3") == 9
                again = [b"c %d" % n for n in range(12)]
                await _send_to_the_group(client, *again)
                await until(lambda: set(again) <= set(found), f"{found[18:]} is all that came")
                await until(lambda: _committed(group, "n3") == 21, "it doesn't commit")
                assert Counter(found) == Counter([*early, *late, *again])
            finally:
                service.stop()
                await asyncio.wait([running])
            running.result()
    finally:
        await group.close()


def _committed(group: Group, node: str) -> int:
    """How far group g is with queue 0, by what that node has applied."""
    return group.nodes[node].machine.offsets.of("g", "t").get(0, 0)
