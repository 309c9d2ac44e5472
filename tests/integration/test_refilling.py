"""A node whose log has rotted while it was down, over real ports: what it says meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from audit.backing.members import members_of, remarks_on
from audit.reading.leading import leader_among
from audit.reading.live import Over, replicas_of_group
from broker.node import Node, run_node
from broker.refilling import Refilling
from dledger.wire import broker_pb2, cluster_pb2, errors_pb2
from store.errors import GapFound
from tests.integration.group import WAIT_S, Group, error_of, free_ports, running_group
from tests.integration.test_full_disk import on_a_loop


def flip(directory: Path, place: int) -> None:
    """A bit of the log's first segment is another one."""
    with (directory / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(place)
        before = file.read(1)[0]
        file.seek(place)
        file.write(bytes((before ^ 4,)))


def metrics_at(address: str) -> list[str]:
    """What the endpoint tells, by line."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=WAIT_S) as answer:
        return str(answer.read(), "utf-8").splitlines()


async def health_of(group: Group, name: str) -> int:
    """What a probe of gRPC's own health service is told."""
    check: Any = group.channel(name).unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    answer = await check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
    return int(answer.status)


@on_a_loop
async def test_node_says_that_it_refills_and_is_a_member_afterwards(tmp_path: Path) -> None:
    """It answers what it is, to people, probes and metrics, and serves nothing; for a backup that
    is no answer. As soon as somebody has the bytes it starts."""
    async with running_group(tmp_path, 3) as group:
        for config, port in zip(group.configs.values(), free_ports(3), strict=True):
            measured = {"metrics_listen": f"127.0.0.1:{port}"}
            group.configs[config.node_id] = config.model_copy(update=measured)
        await group.create_topic()
        for number in range(20):
            assert (await group.send(number, b"body %d" % number)).error.code == 0
        await group.at_its_level()
        leader = (await group.leader()).config.node_id
        name = next(each for each in group.nodes if each != leader)
        replica = group.nodes[name]
        end, place = replica.log.end_offset, replica.log.position_of(9) + 60
        segment = replica.config.data_directory / "commitlog" / f"{0:020}"
        await group.stop(name)
        before = segment.read_bytes()[:end]
        flip(replica.config.data_directory, place)
        others = list(group.nodes)
        for each in others:
            await group.stop(each)
        with pytest.raises(GapFound) as found:
            await group.start(name)
        node = Node(group.configs[name])
        refilling = asyncio.ensure_future(node.refill(found.value))
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    status = await group.call(
                        name, "Cluster", "GetStatus", cluster_pb2.GetStatusRequest()
                    )
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.02)
        assert (status.role, status.log_damages, status.node_id) == ("refilling", 1, name)
        look = partial(replicas_of_group, on_hosts=False, over=Over.GRPC)
        known = await asyncio.to_thread(look, [group.configs[name].listen])
        assert (members_of(known)[0], leader_among(known)) == ([], None)
        assert f"{name} says nothing of its log, as one that refills it" in remarks_on(known)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await group.call(name, "Broker", "ListTopics", broker_pb2.ListTopicsRequest())
        assert error_of(refused.value).code == errors_pb2.NOT_READY
        assert await health_of(group, name) == health_pb2.HealthCheckResponse.NOT_SERVING
        labels = f'{{broker_group="g1",node="{name}"}}'
        told = await asyncio.to_thread(metrics_at, str(group.configs[name].metrics_listen))
        assert f"dledger_refilling{labels} 1.0" in told
        assert f"dledger_log_damages{labels} 1.0" in told
        assert not refilling.done()
        await group.start(*others)
        async with asyncio.timeout(WAIT_S):
            assert await refilling
        await group.start(name)
        assert segment.read_bytes()[:end] == before
        await group.applied_everywhere()


@on_a_loop
async def test_node_that_refills_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    """Nobody answers; the directory is free afterwards."""
    async with running_group(tmp_path, 3) as group:
        await group.at_its_level()
        name = (await group.leader()).config.node_id
        replica = group.nodes[name]
        place = replica.log.position_of(2) + 60
        for each in list(group.nodes):
            await group.stop(each)
        flip(replica.config.data_directory, place)
        for _ in range(2):
            with pytest.raises(GapFound) as found:
                await group.start(name)
            node = Node(group.configs[name])
            refilling = asyncio.ensure_future(node.refill(found.value))
            await asyncio.sleep(0.05)
            node.ask_to_stop()
            async with asyncio.timeout(WAIT_S):
                assert not await refilling


@on_a_loop
async def test_a_stop_that_is_asked_for_between_refilling_and_the_start_behind_it_is_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process has got back what was missing, and is closing what it had open for that, when the
    signal comes: it ends, and doesn't start."""
    async with running_group(tmp_path, 3) as group:
        await group.create_topic()
        await group.at_its_level()
        leader = (await group.leader()).config.node_id
        name = next(each for each in group.nodes if each != leader)
        place = group.nodes[name].log.position_of(2) + 60
        await group.stop(name)
        flip(group.configs[name].data_directory, place)
        close, signals = Refilling.close, 0

        async def closed(refilling: Refilling) -> None:
            nonlocal signals
            signals += 1
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.1)  # the loop's handler has run
            await close(refilling)

        monkeypatch.setattr(Refilling, "close", closed)
        async with asyncio.timeout(WAIT_S):
            assert await run_node(group.configs[name]) == 0
        assert signals == 1
