"""What tools expect of a node: health, reflection, metrics, status, the leader's watch."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from dledger.level import KNOWN_LEVEL
from dledger.reading.files import is_same_directory
from dledger.wire import audit_pb2 as apb
from dledger.wire import cluster_pb2 as cpb
from tests.integration.group import Group, free_ports, make_configs, running_group


def test_health_says_serving(shared: Group, loop: asyncio.AbstractEventLoop) -> None:
    """The standard health service answers for the node and for each service."""

    async def scenario() -> None:
        check: Any = shared.channel("n1").unary_unary("/grpc.health.v1.Health/Check")
        for service in ("", "dledger.v1.Broker"):
            request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
            answer = health_pb2.HealthCheckResponse.FromString(await check(request))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

    loop.run_until_complete(scenario())


def test_reflection_lists_the_services(shared: Group, loop: asyncio.AbstractEventLoop) -> None:
    """grpcurl and its like find every service without the .proto files."""

    async def scenario() -> set[str]:
        stream: Any = shared.channel("n1").stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        call = stream()
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        await call.write(request.SerializeToString())
        answer = reflection_pb2.ServerReflectionResponse.FromString(await call.read())
        call.cancel()
        return {service.name for service in answer.list_services_response.service}

    names = loop.run_until_complete(scenario())
    assert {"dledger.v1.Broker", "dledger.v1.Cluster", "grpc.health.v1.Health"} <= names


def test_node_whose_path_is_no_utf_8_tells_its_status_and_survey(tmp_path: Path) -> None:
    """With those bytes written out: a message holds text."""

    async def scenario() -> None:
        (made,) = make_configs(tmp_path, count=1)
        directory = tmp_path / os.fsdecode(b"caf\xe9")
        group = Group([made.model_copy(update={"data_directory": directory})])
        try:
            await group.start()
            told = await group.call("n1", "Cluster", "GetStatus", b"")
            assert told.data_directory.endswith("caf\\xe9")
            assert is_same_directory(str(directory), told.data_directory)
            ask: Any = group.channel("n1").unary_unary("/dledger.v1.Audit/SurveyLog")
            survey = apb.LogSurvey.FromString(await ask(b""))
            assert survey.commitlog.startswith(told.data_directory)
        finally:
            await group.close()

    asyncio.run(scenario())


def test_metrics_show_role_indexes_and_latencies(tmp_path: Path) -> None:
    """The endpoint answers while the node works, with what operations.md lists."""

    async def scenario() -> None:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        async with running_group(tmp_path, count=1, metrics_listen=address) as group:
            await group.create_topic()
            await group.send(0, b"x")
            loop = asyncio.get_running_loop()
            text = await loop.run_in_executor(None, _get, f"http://{address}/metrics")
        assert 'dledger_role{broker_group="g1",node="n1",role="leader"} 1.0' in text
        # The level that this release knows is raised beside it, a step an entry, sooner or later.
        index = 'dledger_commit_index{broker_group="g1",node="n1"}'
        assert any(f"{index} {entry}.0" in text for entry in range(4, 5 + KNOWN_LEVEL))
        assert 'dledger_messages_appended_total{broker_group="g1",node="n1"} 1.0' in text
        for name in ("append", "send", "commit", "apply", "loop_lateness"):
            assert f'dledger_{name}_seconds_count{{broker_group="g1",node="n1"}}' in text, name
        assert "dledger_fsyncs_total" in text
        assert "_created" not in text

    asyncio.run(scenario())


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_status_tells_the_same_everywhere(shared: Group, loop: asyncio.AbstractEventLoop) -> None:
    """Every node names the same leader and term; committed digests agree."""

    async def scenario() -> None:
        leader = await shared.leader()
        while leader.machine.level.current < KNOWN_LEVEL:
            await asyncio.sleep(0.01)
        await shared.applied_everywhere()
        answers = [
            await shared.call(name, "Cluster", "GetStatus", cpb.GetStatusRequest())
            for name in shared.nodes
        ]
        assert len({answer.leader.node_id for answer in answers}) == 1
        assert len({answer.term for answer in answers}) == 1
        assert len({answer.commit_index for answer in answers}) == 1
        assert len({answer.committed_digest for answer in answers}) == 1
        assert sorted(answer.role for answer in answers) == ["follower", "follower", "leader"]
        assert all(len(answer.peers) == 2 for answer in answers)

    loop.run_until_complete(scenario())


def test_watchers_learn_of_a_new_leader(tmp_path: Path) -> None:
    """The view comes at once, and again when another node serves."""

    async def scenario() -> None:
        async with running_group(tmp_path) as group:
            leader = (await group.leader()).config.node_id
            target = next(name for name in group.nodes if name != leader)
            watch: Any = group.channel(target).unary_stream("/dledger.v1.Cluster/WatchLeader")
            call = watch(b"")
            first = cpb.LeaderView.FromString(await call.read())
            assert (first.leader.node_id, first.serving) == (leader, False)
            assert [member.node_id for member in first.members] == ["n1", "n2", "n3"]
            request = cpb.TransferLeadershipRequest(target=target)
            await group.call(leader, "Cluster", "TransferLeadership", request)
            while True:
                view = cpb.LeaderView.FromString(await asyncio.wait_for(call.read(), 10))
                if view.serving:
                    break
            assert (view.leader.node_id, view.term > first.term) == (target, True)
            call.cancel()

    asyncio.run(scenario())
