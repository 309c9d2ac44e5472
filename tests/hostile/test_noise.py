"""Strangers who make noise: one line an event, once in a while, and no door that stays open."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from broker.doors.grpc import health
from broker.logging import LibraryComplaints, configure_logging
from chaos.fuzz.target import harassed, vitals
from dledger import endpoint
from dledger.core.types import EntryKind, NodeId
from dledger.endpoint import MAX_CONNECTIONS, MAX_HEAD_BYTES, Endpoint
from dledger.greeting import Identity
from dledger.links import LinkTimes
from dledger.links.effects import Why
from dledger.sparing import EVERY_S, MAX_KEYS, Sparing
from dledger.transport import GrpcTransport
from tests.broker.leader import Bench, batch
from tests.integration.group import Group

WAIT_S = 60.0
NONSENSE = (b"\x0a\xff\xff", b"\xff" * 40, b"\x0a\x05\xff\xfe\xfd\xfc\xfb")
HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


async def annoy(address: str, times: int) -> set[grpc.StatusCode]:
    """Malformed requests to each of the standard services; how they ended."""
    codes: set[grpc.StatusCode] = set()
    channel: Any = grpc.aio.insecure_channel(address)  # the stubs want what has defaults
    async with channel:
        check: Any = channel.unary_unary(HEALTH + "Check")
        watch: Any = channel.unary_stream(HEALTH + "Watch")
        reflect: Any = channel.stream_stream(REFLECTION)
        for number in range(times):
            request = NONSENSE[number % len(NONSENSE)]
            for call in (check(request), watch(request), reflect(iter([request]))):
                codes.add(await asyncio.wait_for(call.code(), WAIT_S))
    return codes


@pytest.mark.slow
def test_malformed_health_and_reflection_requests_leave_no_line(tmp_path: Path) -> None:
    """1,200 of them: refused as every malformed request is, and not a word in the log."""

    async def scenario() -> None:
        async with harassed(tmp_path / "g") as group:
            before = vitals(group)[0].log_bytes
            codes = await annoy(group.addresses[0], 400)
            assert codes == {grpc.StatusCode.INVALID_ARGUMENT}
            after = vitals(group)[0]
            assert after.tracebacks == 0
            assert after.log_bytes - before < 4_096  # elections of a busy machine may be in it

    asyncio.run(scenario())


def test_health_of_what_there_is_not(shared: Group, loop: asyncio.AbstractEventLoop) -> None:
    """NOT_FOUND, as the protocol has it, and no name of any length."""

    async def scenario() -> None:
        check: Any = shared.channel("n1").unary_unary(HEALTH + "Check")
        for service, code in (
            ("no.such.Service", grpc.StatusCode.NOT_FOUND),
            ("x" * (health.MAX_NAME_BYTES + 1), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await check(request)
            assert failed.value.code() is code

    loop.run_until_complete(scenario())


def test_streams_of_reflection_are_bounded(
    shared: Group, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who ask nothing would have all places of calls; those that end make room."""
    monkeypatch.setattr(health, "MAX_REFLECTIONS", 3)
    question = ServerReflectionRequest(list_services="").SerializeToString()

    async def scenario() -> None:
        reflect: Any = shared.channel("n1").stream_stream(REFLECTION)
        calls = [reflect() for _ in range(3)]
        for call in calls:
            await call.write(question)
            assert await asyncio.wait_for(call.read(), WAIT_S)
        refused = await asyncio.wait_for(reflect(iter([question])).code(), WAIT_S)
        assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
        monkeypatch.setattr(health, "REFLECTION_IDLE_S", 0.1)
        await calls[0].write(question)
        assert await asyncio.wait_for(calls[0].read(), WAIT_S)
        ended = await asyncio.wait_for(calls[0].read(), WAIT_S)
        assert ended is grpc.aio.EOF, "it has asked nothing for a while"  # type: ignore[attr-defined]
        for call in calls:
            call.cancel()
        deadline = time.monotonic() + WAIT_S
        while await (call := reflect(iter([question]))).read() is grpc.aio.EOF:  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        call.cancel()

    loop.run_until_complete(scenario())


def test_watches_of_health_are_bounded(
    shared: Group, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One too many is told to come back; those that end make room."""
    monkeypatch.setattr(health, "MAX_WATCHES", 3)

    async def scenario() -> None:
        watch: Any = shared.channel("n1").unary_stream(HEALTH + "Watch")
        calls = [watch(b"") for _ in range(3)]
        for call in calls:
            answer = health_pb2.HealthCheckResponse.FromString(await call.read())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        refused = await asyncio.wait_for(watch(b"").code(), WAIT_S)  # one that is open has no end
        assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()
        deadline = time.monotonic() + WAIT_S
        while await (call := watch(b"")).read() is grpc.aio.EOF:  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
        call.cancel()

    loop.run_until_complete(scenario())


# --- the metrics endpoint -------------------------------------------------------------------------


@pytest.fixture
def port() -> Iterator[int]:
    """Where an endpoint answers."""
    opened = Endpoint(lambda: ("text/plain", b"metric 1\n" * 100_000))
    yield opened.open("127.0.0.1", 0)
    opened.close()


def got(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_endpoint_answers_what_it_is_asked(port: int) -> None:
    """All of it, and nothing else."""
    assert got(port) == (200, b"metric 1\n" * 100_000)
    assert got(port, "/?name=x")[0] == 200
    assert got(port, "/etc/passwd")[0] == 404
    assert got(port, method="POST")[0] == 405
    assert got(port, method="HEAD") == (200, b"")


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\nHost: x", b"x" * 5_000])
def test_half_open_connections_cost_no_thread_and_are_given_up(
    port: int, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of them, each in its own way; who asks in earnest afterwards is answered."""
    monkeypatch.setattr(endpoint, "REQUEST_S", 0.2)
    threads = threading.active_count()
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(3 * MAX_CONNECTIONS)]
    try:
        for connection in held:
            connection.sendall(said)
        assert threading.active_count() == threads
        for connection in held:
            connection.settimeout(WAIT_S)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b""
        assert got(port)[0] == 200
    finally:
        for connection in held:
            connection.close()


def test_connections_to_the_endpoint_are_bounded(port: int) -> None:
    """One too many is closed unheard, long before those that are there have had their time."""
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * MAX_CONNECTIONS)]
    began, closed = time.monotonic(), 0
    try:
        waiting = held[::-1]
        # Again and again: one may be accepted, and closed, after it was looked at.
        while closed < MAX_CONNECTIONS and time.monotonic() - began < endpoint.REQUEST_S / 2:
            connection = waiting.pop(0)
            connection.settimeout(endpoint.REQUEST_S / 100)
            try:
                closed += not connection.recv(1)
            except ConnectionError:
                closed += 1
            except TimeoutError:
                waiting.append(connection)
        assert closed >= MAX_CONNECTIONS
        assert time.monotonic() - began < endpoint.REQUEST_S
    finally:
        for connection in held:
            connection.close()


def test_a_request_without_end_is_not_kept(port: int) -> None:
    """A head beyond its bound ends the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        try:
            while connection.send(b"x" * MAX_HEAD_BYTES):
                pass
        except ConnectionError:
            return
    pytest.fail("it goes on listening")


def test_an_answer_that_nobody_takes_is_given_up(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that stalls holds its place for so long and no longer."""
    monkeypatch.setattr(endpoint, "ANSWER_S", 0.2)
    stalled = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_CONNECTIONS)]
    for connection in stalled:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if got(port)[0] == 200:
                break
        except (ConnectionError, http.client.HTTPException):
            time.sleep(0.05)
    else:
        pytest.fail("the stalled keep everybody out")
    for connection in stalled:
        connection.close()


def test_a_node_too_busy_to_say_is_told() -> None:
    """With a status that a scraper understands."""

    def text() -> tuple[str, bytes]:
        raise TimeoutError

    opened = Endpoint(text)
    try:
        assert got(opened.open("127.0.0.1", 0))[0] == 503
    finally:
        opened.close()


# --- what is said ---------------------------------------------------------------------------------


def test_what_happens_often_is_said_once_in_a_while() -> None:
    """With how often it happened since; each thing by itself."""
    clock = [0.0]
    sparing = Sparing(lambda: clock[0])
    assert [sparing.due("a") for _ in range(5)] == [0, None, None, None, None]
    assert sparing.due("b") == 0
    clock[0] = EVERY_S
    assert [sparing.due("a"), sparing.due("a"), sparing.due("b")] == [4, None, 0]


def test_what_is_remembered_of_it_is_bounded() -> None:
    """Strangers may choose what makes one thing differ from another."""
    sparing = Sparing(lambda: 0.0)
    for number in range(10 * MAX_KEYS):
        assert sparing.due(number) == 0
    assert len(sparing._said) == MAX_KEYS


def test_libraries_complain_in_one_line_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand tracebacks of one kind are one event."""
    root = logging.getLogger()
    before, level, configured = root.handlers[:], root.level, structlog.get_config()
    try:
        written = io.StringIO()
        monkeypatch.setattr(sys, "stderr", written)
        configure_logging("info", "json", node="n1")
        assert [type(each) for each in root.handlers] == [LibraryComplaints]
        for number in range(1_000):
            try:
                raise ValueError(number)
            except ValueError:
                logging.getLogger("grpc._cython").exception("Unexpected %s", number)
        logging.getLogger("x").warning("%d", "no number")
        try:
            raise cygrpc.ExecuteBatchError
        except cygrpc.ExecuteBatchError:
            logging.getLogger("grpc._cython").exception("A caller went away")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        structlog.configure(**configured)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["library_complained"] * 3
    assert "exception" not in lines[2]
    assert (lines[0]["library"], lines[0]["text"]) == ("grpc._cython", "Unexpected 0")
    assert "ValueError: 0" in lines[0]["exception"]


def test_peer_that_sends_nonsense_again_and_again_is_told_of_once() -> None:
    """Each peer by itself."""
    identity = Identity("g", NodeId("n1"), 8 << 20)
    transport = GrpcTransport(identity, {}, lambda *_: None, lambda _: None, LinkTimes.of(0.3))
    with structlog.testing.capture_logs() as told:
        for _ in range(100):
            for peer in ("n2", "n3"):
                transport._tell("peer_sent_invalid_message", NodeId(peer), error="bytes")
    assert [line["peer"] for line in told] == ["n2", "n3"]


def test_streams_that_are_replaced_again_and_again_are_told_of_once() -> None:
    """Each peer and each reason by itself: one of them may be the alarm."""
    identity = Identity("g", NodeId("n1"), 8 << 20)
    transport = GrpcTransport(identity, {}, lambda *_: None, lambda _: None, LinkTimes.of(0.3))
    with structlog.testing.capture_logs() as told:
        for generation in range(100):
            for peer in ("n2", "n3"):
                for why in (Why.REPLACED, Why.OTHER_DISK):
                    transport.end(NodeId(peer), generation, why)
    assert [(line["peer"], line["reason"], line["unreported"]) for line in told] == [
        (peer, why.value, 0) for peer in ("n2", "n3") for why in (Why.REPLACED, Why.OTHER_DISK)
    ]


def test_void_entries_are_told_of_once_in_a_while() -> None:
    """A leader of a wrong program writes thousands of them, and each replica applies them all.
    One line a cause; the metric counts each."""
    bench = Bench()
    bench.topic("gone")
    bench.topic("small")
    first = bench.log.last_index + 1
    for _ in range(300):
        for topic in ("gone", "small"):
            bench.send(batch(0, b"x", topic=topic, queue_id=1), producer=b"")
        bench.propose(EntryKind.COMMAND, 0, b"\xff\xff", None)
    bench.machine.topics.delete("gone")
    del bench.machine.topics["small"].next_offsets[1:]
    with structlog.testing.capture_logs() as told:
        bench.commit()
    assert [(line["event"], line["index"], line["unreported"]) for line in told] == [
        ("batch_voided", first, 0),
        ("batch_voided", first + 1, 0),
        ("entry_voided", first + 2, 0),
    ]
    assert bench.machine.statistics().entries_void == 900
