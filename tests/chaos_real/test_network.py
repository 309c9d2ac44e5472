"""The proxies: what a link's faults do to the connections through it, nodes' and clients'."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from random import Random

import grpc
import pytest

from chaos.real.arena import environment
from chaos.real.network import CLIENTS, Link, Network, Quality, client_address

WITHIN_S = 10.0
SOON_S = 0.15  # long enough for what comes through an open link, many times over


class Ends:
    """A server that `b` is, and a connection that `a` made to it through the proxy."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.network.dial_table("a")["b"].rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def connected(self) -> tuple[Pair, Pair]:
        """a's end and b's."""
        dialer = await self.connect()
        return dialer, await asyncio.wait_for(self.accepted.get(), WITHIN_S)


Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def two_nodes() -> AsyncIterator[Ends]:
    """b listens behind a network; a doesn't."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await ends.accepted.put((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    network = Network({"a": "127.0.0.1:1", "b": f"127.0.0.1:{port}"}, seed=1)
    ends = Ends(network)
    await network.open()
    try:
        yield ends
    finally:
        await network.close()
        server.close()
        for writer in writers:
            writer.transport.abort()


async def arrives(reader: asyncio.StreamReader, size: int) -> bytes:
    return await asyncio.wait_for(reader.readexactly(size), WITHIN_S)


async def nothing_arrives(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), SOON_S)
        return False
    return True


def test_open_link_carries_both_directions() -> None:
    """Without faults a proxy changes nothing."""

    async def scenario() -> None:
        async with two_nodes() as ends:
            (a_reader, a_writer), (b_reader, b_writer) = await ends.connected()
            a_writer.write(b"request")
            assert await arrives(b_reader, 7) == b"request"
            b_writer.write(b"answer")
            assert await arrives(a_reader, 6) == b"answer"
            a_writer.transport.abort()

    asyncio.run(scenario())


def test_cut_holds_what_is_sent_and_delivers_it_after_the_heal() -> None:
    """As TCP does, whose packets are sent again until they arrive."""

    async def scenario() -> None:
        async with two_nodes() as ends:
            (_, a_writer), (b_reader, _) = await ends.connected()
            ends.network.set_fault("cut", [("a", "b"), ("b", "a")], Quality(cut=True))
            a_writer.write(b"late")
            assert await nothing_arrives(b_reader)
            ends.network.clear_fault("cut")
            assert await arrives(b_reader, 4) == b"late"
            a_writer.transport.abort()

    asyncio.run(scenario())


def test_one_way_cut_leaves_the_other_way_open() -> None:
    """a is heard by nobody and hears everything."""

    async def scenario() -> None:
        async with two_nodes() as ends:
            (a_reader, a_writer), (b_reader, b_writer) = await ends.connected()
            ends.network.set_fault("mute", [("a", "b")], Quality(cut=True))
            a_writer.write(b"unheard")
            b_writer.write(b"heard")
            assert await arrives(a_reader, 5) == b"heard"
            assert await nothing_arrives(b_reader)
            a_writer.transport.abort()

    asyncio.run(scenario())


def test_new_connection_through_a_cut_hangs_until_the_heal() -> None:
    """Its handshake needs both directions, so a cut of either holds it."""

    async def scenario() -> None:
        async with two_nodes() as ends:
            ends.network.set_fault("deaf", [("b", "a")], Quality(cut=True))
            _, a_writer = await ends.connect()
            a_writer.write(b"hello")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ends.accepted.get(), SOON_S)
            ends.network.clear_fault("deaf")
            b_reader, _ = await asyncio.wait_for(ends.accepted.get(), WITHIN_S)
            assert await arrives(b_reader, 5) == b"hello"
            a_writer.transport.abort()

    asyncio.run(scenario())


def test_end_of_a_connection_is_told_only_when_the_link_is_open() -> None:
    """A node behind a cut doesn't learn that its peer died."""

    async def scenario() -> None:
        async with two_nodes() as ends:
            (a_reader, a_writer), (_, b_writer) = await ends.connected()
            ends.network.set_fault("cut", [("b", "a")], Quality(cut=True))
            b_writer.transport.abort()
            assert await nothing_arrives(a_reader)
            ends.network.clear_fault("cut")
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(a_reader.read(1), WITHIN_S) == b""
            a_writer.transport.abort()

    asyncio.run(scenario())


def test_connection_to_a_dead_node_ends_at_once() -> None:
    """The dialer is refused, as without a proxy."""

    async def scenario() -> None:
        network = Network({"a": "127.0.0.1:1", "b": "127.0.0.1:2"}, seed=1)
        await network.open()
        try:
            host, _, port = network.dial_table("a")["b"].rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(1), WITHIN_S) == b""
            writer.transport.abort()
        finally:
            await network.close()

    asyncio.run(scenario())


def test_reset_breaks_the_connection_after_delivery() -> None:
    """What was sent has arrived, and its sender can't know."""

    async def scenario() -> None:
        async with two_nodes() as ends:
            (a_reader, a_writer), (b_reader, _) = await ends.connected()
            ends.network.set_fault("repeat", [("a", "b")], Quality(reset=1.0))
            a_writer.write(b"once")
            assert await arrives(b_reader, 4) == b"once"
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(a_reader.read(1), WITHIN_S) == b""
            a_writer.transport.abort()

    asyncio.run(scenario())


def test_delay_and_loss_make_a_chunk_later_and_keep_the_order() -> None:
    """A lost packet costs a retransmission timeout, then twice that, and so on."""

    link = Link(Random(1))
    assert link.delay_s() == 0.0
    link.quality = Quality(delay_ms=50)
    assert link.delay_s() == pytest.approx(0.05)
    link.quality = Quality(loss=1.0)
    assert link.delay_s() == pytest.approx(0.2 * (2**6 - 1))

    async def scenario() -> None:
        async with two_nodes() as ends:
            (_, a_writer), (b_reader, _) = await ends.connected()
            ends.network.set_fault("slow", [("a", "b")], Quality(delay_ms=1, jitter_ms=20))
            for number in range(50):
                a_writer.write(bytes((number,)))
                await a_writer.drain()
                await asyncio.sleep(0)
            assert await arrives(b_reader, 50) == bytes(range(50))
            a_writer.transport.abort()

    asyncio.run(scenario())


def test_a_connection_notices_the_end_of_a_silence_when_it_sends_again() -> None:
    """Packets were dropped, and TCP asks after pauses that double: 0.2 s, 0.4 s, 0.8 s."""

    async def scenario() -> float:
        async with two_nodes() as ends:
            (_, a_writer), (b_reader, _) = await ends.connected()
            ends.network.set_fault("silence", [("a", "b")], Quality(silent=True))
            loop = asyncio.get_running_loop()
            begin = loop.time()
            a_writer.write(b"late")
            await asyncio.sleep(0.7)
            ends.network.clear_fault("silence")
            assert await arrives(b_reader, 4) == b"late"
            a_writer.transport.abort()
            return loop.time() - begin

    assert 1.35 <= asyncio.run(scenario()) < 5


def test_a_new_connection_gets_through_a_silence_that_has_ended() -> None:
    """It asked before, so it waits for its next turn as well, but that is another's clock."""

    async def scenario() -> None:
        async with two_nodes() as ends:
            ends.network.set_fault("silence", [("a", "b"), ("b", "a")], Quality(silent=True))
            _, early = await ends.connect()
            await asyncio.sleep(SOON_S)
            assert ends.accepted.empty()
            ends.network.clear_fault("silence")
            _, fresh = await ends.connect()
            await asyncio.wait_for(ends.accepted.get(), 0.8)  # the first asks again after 1 s
            for writer in (early, fresh):
                writer.transport.abort()

    asyncio.run(scenario())


def test_faults_add_up_and_are_healed_one_by_one() -> None:
    """A link has the worse of everything that is set on it."""
    network = Network({"a": "127.0.0.1:1", "b": "127.0.0.1:2", "c": "127.0.0.1:3"}, seed=1)
    network.set_fault("slow", [("a", "b"), ("a", "c")], Quality(delay_ms=30))
    network.set_fault("cut", [("a", "b")], Quality(cut=True))
    assert network.quality("a", "b") == Quality(cut=True, delay_ms=30)
    assert network.quality("a", "c") == Quality(delay_ms=30)
    assert network.quality("b", "a") == Quality()
    network.clear_fault("slow")
    assert network.quality("a", "b") == Quality(cut=True)
    network.clear_fault("cut")
    assert network.quality("a", "b") == Quality()


async def ask_gateway(
    network: Network, request: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client's connection, which has asked for something."""
    address = network.client_environment()["grpc_proxy"].removeprefix("http://")
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    return reader, writer


def connect_to(network: Network, node: str) -> bytes:
    _, port = network.listening(node)
    return b"CONNECT localhost:%d HTTP/1.1\r\nHost: x\r\n\r\n" % port


def test_client_is_carried_to_the_node_whose_port_it_asks_for() -> None:
    """As an HTTP proxy does it; what comes after the head is the connection's own."""

    async def scenario() -> None:
        async with two_nodes() as ends:
            reader, writer = await ask_gateway(ends.network, connect_to(ends.network, "b"))
            answer = b"HTTP/1.1 200 OK\r\n\r\n"
            assert await arrives(reader, len(answer)) == answer
            b_reader, b_writer = await asyncio.wait_for(ends.accepted.get(), WITHIN_S)
            writer.write(b"request")
            assert await arrives(b_reader, 7) == b"request"
            b_writer.write(b"answer")
            assert await arrives(reader, 6) == b"answer"
            writer.transport.abort()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "request_head",
    [
        b"CONNECT localhost:2 HTTP/1.1\r\n\r\n",
        b"GET localhost:%d HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
        b"x" * 100_000,
    ],
    ids=["another port", "another method", "nothing", "endless"],
)
def test_gateway_leads_to_nodes_and_nowhere_else(request_head: bytes) -> None:
    """It breaks off, without an answer."""

    async def scenario() -> None:
        async with two_nodes() as ends:
            port = b"%d" % ends.network.listening("b")[1]
            head = request_head.replace(b"%d", port)
            reader, writer = await ask_gateway(ends.network, head)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), WITHIN_S) == b""
            writer.transport.abort()
            assert ends.accepted.empty()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("links", "asked", "answered"),
    [
        ([("b", CLIENTS)], True, False),
        ([(CLIENTS, "b")], False, True),
        ([("b", CLIENTS), (CLIENTS, "b")], False, False),
        ([("a", "b"), ("b", "a")], True, True),
    ],
    ids=["deaf clients", "mute clients", "no clients", "nodes only"],
)
def test_clients_are_cut_off_by_direction_and_apart_from_nodes(
    links: list[tuple[str, str]], asked: bool, answered: bool
) -> None:
    """What nodes hear of each other and what clients do has nothing to do with each other."""

    async def scenario() -> None:
        async with two_nodes() as ends:
            reader, writer = await ask_gateway(ends.network, connect_to(ends.network, "b"))
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WITHIN_S)
            b_reader, b_writer = await asyncio.wait_for(ends.accepted.get(), WITHIN_S)
            ends.network.set_fault("cut", links, Quality(cut=True))
            writer.write(b"q")
            b_writer.write(b"a")
            assert await nothing_arrives(b_reader) is not asked
            assert await nothing_arrives(reader) is not answered
            writer.transport.abort()

    asyncio.run(scenario())


async def _echo(request: bytes, _: object) -> bytes:
    return request


def _echoed(channel: grpc.aio.Channel, timeout_s: float) -> Awaitable[bytes]:
    call = channel.unary_unary(
        "/test.Echo/Echo", request_serializer=None, response_deserializer=None
    )
    answer: Awaitable[bytes] = call(b"x", timeout=timeout_s, wait_for_ready=True)
    return answer


def test_grpc_takes_clients_through_the_gateway_and_nobody_else() -> None:
    """By the variables that it reads when a channel is made: the tester's own look at a node, at
    127.0.0.1, goes round, so it still sees a node that clients don't."""

    async def scenario() -> None:
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(_echo)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Echo", {"Echo": handler}),)
        )
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        network = Network({"n1": address}, seed=1)
        await network.open()
        network.set_fault("cut", [("n1", CLIENTS), (CLIENTS, "n1")], Quality(cut=True))
        try:
            with environment(network.client_environment()):
                direct = grpc.aio.insecure_channel(address)
                client = grpc.aio.insecure_channel(client_address(address))
            async with direct, client:
                assert await _echoed(direct, WITHIN_S) == b"x"
                with pytest.raises(grpc.aio.AioRpcError):
                    await _echoed(client, SOON_S)
                network.clear_fault("cut")
                assert await _echoed(client, WITHIN_S) == b"x"
        finally:
            await network.close()
            await server.stop(None)

    asyncio.run(scenario())
