"""The network of a group: TCP proxies between nodes, and between clients and nodes.

Node a dials node b through a proxy of its own (`[dial]`, ADR 16). Two directed links run through
that connection: a→b carries a's requests, b→a the answers to them; the connection that b dials
carries the rest. A fault is set on a directed link and acts on both connections, so partitions of
any shape need no root and no kernel feature.

All clients of a run stand at one place, `CLIENTS`, with a link to and from each node. They reach
the nodes through one HTTP CONNECT proxy, as gRPC does where `$grpc_proxy` is set: the addresses
that nodes tell are asked for there, so no client gets round it and no node knows of it. gRPC
leaves out what `$no_grpc_proxy` names, so nodes are told to clients as `localhost`, while they
dial each other's proxies, and the tester looks at them directly, as 127.0.0.1.

What TCP makes of faults is what happens here: a cut link delivers nothing, keeps what was under
way (up to `BACKLOG_BYTES`) and delivers it after the heal; a new connection through it hangs; on a
silent one each connection notices the heal no sooner than its next retransmission, which after a
long silence comes late; a lost packet is a pause of a retransmission timeout, again and again if
it is lost again; and a message arrives twice when the connection breaks after delivery, before the
answer, so that the sender has to send it again (`reset`). TCP discards duplicate packets itself.
Source: Toxiproxy;
Jepsen's grudges; gRPC's `doc/environment_variables.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from dledger.addresses import split_address

CHUNK_BYTES: Final = 64 << 10
BACKLOG_BYTES: Final = 4 << 20  # of a link's connection, as Linux's largest socket buffers
RETRANSMISSION_S: Final = 0.2  # Linux's shortest
LONGEST_RETRANSMISSION_S: Final = 120.0  # and its longest
FIRST_OF_CONNECTING_S: Final = 1.0  # of a connection that isn't made yet
MAX_RETRANSMISSIONS: Final = 6
LOOPBACK: Final = "127.0.0.1"
CLIENTS: Final = "clients"  # where all clients stand; no node has this name
CLIENT_HOST: Final = "localhost"  # how clients, and nothing else, call the nodes' host
HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Quality:
    """How a directed link is. `loss` and `reset` are chances for each chunk of up to 64 KiB."""

    cut: bool = False
    silent: bool = False  # cut, and connections find out about the heal as TCP does
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    reset: float = 0.0

    def and_also(self, other: Quality) -> Quality:
        """Both at once: the worse of each."""
        return Quality(
            self.cut or other.cut,
            self.silent or other.silent,
            max(self.delay_ms, other.delay_ms),
            max(self.jitter_ms, other.jitter_ms),
            max(self.loss, other.loss),
            max(self.reset, other.reset),
        )


PERFECT: Final = Quality()


class Link:
    """One direction between two places."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self._quality = PERFECT
        self._opened = asyncio.Event()
        self._opened.set()
        self.bytes = 0

    @property
    def quality(self) -> Quality:
        """As it is now."""
        return self._quality

    @quality.setter
    def quality(self, quality: Quality) -> None:
        self._quality = quality
        if quality.cut:
            self._opened.clear()
        else:
            self._opened.set()

    async def opened(self, first_pause_s: float = RETRANSMISSION_S) -> None:
        """Returns when a packet gets through: at the heal of a cut, after a silence when it is
        sent again. TCP asks less and less often, each time after twice as long."""
        pause = first_pause_s
        while self._quality.silent:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRANSMISSION_S)
        await self._opened.wait()

    def delay_s(self) -> float:
        """How long the next chunk takes."""
        quality = self._quality
        if quality is PERFECT:
            return 0.0
        seconds = (quality.delay_ms + quality.jitter_ms * self._chance.random()) / 1000
        pause = RETRANSMISSION_S
        for _ in range(MAX_RETRANSMISSIONS):
            if self._chance.random() >= quality.loss:
                break
            seconds += pause
            pause *= 2
        return seconds

    def breaks(self) -> bool:
        """Whether the connection breaks after this chunk."""
        return self._quality.reset > 0 and self._chance.random() < self._quality.reset


@dataclass(slots=True)
class Backlog:
    """Chunks on their way, each with the time at which it is due."""

    chunks: deque[tuple[float, bytes]] = field(default_factory=deque)
    size: int = 0
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a connection goes, and the links that it runs over. `welcome` is what the dialer is
    told once it is connected."""

    target: tuple[str, int]
    there: Link
    back: Link
    welcome: bytes = b""


FindRoute = Callable[[asyncio.StreamReader], Awaitable[Route]]


class Proxy:
    """Takes connections on a port of its own and carries each where its route says.

    Args:
        find: the route of a connection; may read what the dialer says first. Raises OSError or
            EOFError for a connection that goes nowhere.
    """

    def __init__(self, find: FindRoute) -> None:
        self._find = find
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        """What the dialer is to dial."""
        if self._server is None:
            raise AssertionError("the proxy is not open")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def open(self) -> None:
        """Listens on a port of its own, until `close`."""
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0, limit=CHUNK_BYTES)

    async def close(self) -> None:
        """No connection is left."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("asyncio runs handlers in tasks")
        self._tasks.add(task)
        try:
            await _connect(await self._find(reader), reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the target is dead, or one end has broken off: so does the other
        finally:
            self._tasks.discard(task)
            writer.transport.abort()


async def _connect(
    route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    # A handshake needs both directions.
    await route.there.opened(FIRST_OF_CONNECTING_S)
    await route.back.opened(FIRST_OF_CONNECTING_S)
    far_reader, far_writer = await asyncio.open_connection(*route.target, limit=CHUNK_BYTES)
    writer.write(route.welcome)
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(carry(reader, far_writer, route.there, route.back))
            both.create_task(carry(far_reader, writer, route.back, route.there))
    except* (ConnectionError, OSError):
        pass
    finally:
        far_writer.transport.abort()


async def carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link, back: Link
) -> None:
    """Everything that comes from `reader` goes to `writer`, as well as `link` is.

    That an end has broken off is news which travels as packets do: over `link` when it is the
    sender that ended, over `back` when the receiver refuses to take more.

    Raises:
        ConnectionError: an end broke off, or the link broke the connection.
    """
    backlog = Backlog()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_take(reader, backlog, link))
        tasks.create_task(_deliver(backlog, writer, link, back))


async def _take(reader: asyncio.StreamReader, backlog: Backlog, link: Link) -> None:
    clock = asyncio.get_running_loop().time
    latest = 0.0
    while chunk := await _read(reader):
        latest = max(latest, clock() + link.delay_s())  # TCP keeps the order
        backlog.chunks.append((latest, chunk))
        backlog.size += len(chunk)
        backlog.changed.set()
        while backlog.size > BACKLOG_BYTES:
            backlog.changed.clear()
            await backlog.changed.wait()
    backlog.ended = True
    backlog.changed.set()


async def _read(reader: asyncio.StreamReader) -> bytes:
    """The next chunk; none when the sender has ended, in whatever way."""
    try:
        return await reader.read(CHUNK_BYTES)
    except ConnectionError:
        return b""


async def _deliver(backlog: Backlog, writer: asyncio.StreamWriter, link: Link, back: Link) -> None:
    clock = asyncio.get_running_loop().time
    while True:
        while not backlog.chunks and not backlog.ended:
            backlog.changed.clear()
            await backlog.changed.wait()
        if not backlog.chunks:
            break
        due, chunk = backlog.chunks.popleft()
        if (left := due - clock()) > 0:
            await asyncio.sleep(left)
        await link.opened()
        try:
            writer.write(chunk)
            await writer.drain()
        except (ConnectionError, RuntimeError) as error:
            # RuntimeError is uvloop's word for a transport that was closed meanwhile.
            await back.opened()
            raise ConnectionResetError(str(error)) from error
        link.bytes += len(chunk)
        backlog.size -= len(chunk)
        backlog.changed.set()
        if link.breaks():
            raise ConnectionResetError("ordered")
    await link.opened()  # the end of a stream is a packet, too
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
    raise ConnectionResetError("an end broke off")  # gRPC never half-closes its connections


class Network:
    """All links of a group, and the faults that are set on them.

    Faults are named, so that several at a time can be set and healed in any order; a link has
    the worse of everything that is set on it.

    Args:
        addresses: node id to the address on which it listens.
        seed: decides jitter and losses.
    """

    def __init__(self, addresses: Mapping[str, str], seed: int) -> None:
        chance = Random(seed)
        places = (*addresses, CLIENTS)
        self._links = {
            (a, b): Link(Random(chance.random())) for a in places for b in places if a != b
        }
        self._routes = {
            (a, b): Route(split_address(addresses[b]), self._links[a, b], self._links[b, a])
            for a, b in self._links
            if b != CLIENTS
        }
        self._proxies = {
            (a, b): _to(route) for (a, b), route in self._routes.items() if a != CLIENTS
        }
        self._gateway = Proxy(self._asked_for)
        self._faults: dict[str, dict[tuple[str, str], Quality]] = {}

    async def open(self) -> None:
        """Every proxy listens."""
        for proxy in (*self._proxies.values(), self._gateway):
            await proxy.open()

    async def close(self) -> None:
        """Every proxy is closed."""
        proxies = (*self._proxies.values(), self._gateway)
        await asyncio.gather(*(proxy.close() for proxy in proxies))

    def dial_table(self, node: str) -> dict[str, str]:
        """What `node` dials to reach each peer."""
        return {b: proxy.address for (a, b), proxy in self._proxies.items() if a == node}

    def listening(self, node: str) -> tuple[str, int]:
        """Where `node` itself listens."""
        return self._routes[CLIENTS, node].target

    def client_environment(self) -> dict[str, str]:
        """With these variables gRPC's channels to `CLIENT_HOST` run over the clients' links, and
        those to 127.0.0.1 don't. They count when a channel is made."""
        return {"grpc_proxy": f"http://{self._gateway.address}", "no_grpc_proxy": LOOPBACK}

    async def _asked_for(self, reader: asyncio.StreamReader) -> Route:
        """The route to the node whose port a CONNECT asks for (RFC 9110, 9.3.6).

        Raises:
            EOFError, OSError: it asks for something else.
        """
        try:
            head = await reader.readuntil(HEAD_END)
        except asyncio.LimitOverrunError as error:
            raise OSError(f"no CONNECT: {error}") from error
        method, _, rest = head.partition(b" ")
        port = rest.partition(b" ")[0].rpartition(b":")[2]
        for (a, _), route in self._routes.items():
            if method == b"CONNECT" and a == CLIENTS and port == b"%d" % route.target[1]:
                return replace(route, welcome=b"HTTP/1.1 200 OK" + HEAD_END)
        raise OSError(f"no node is asked for: {head[:80]!r}")

    def set_fault(self, name: str, links: Iterable[tuple[str, str]], quality: Quality) -> None:
        """The directed links `(from, to)` are that bad, until `clear_fault(name)`."""
        self._faults[name] = dict.fromkeys(links, quality)
        self._apply()

    def clear_fault(self, name: str) -> None:
        """The fault of that name is over."""
        self._faults.pop(name, None)
        self._apply()

    def quality(self, a: str, b: str) -> Quality:
        """The link from `a` to `b` as it is now."""
        return self._links[a, b].quality

    def _apply(self) -> None:
        for pair, link in self._links.items():
            quality = PERFECT
            for fault in self._faults.values():
                quality = quality.and_also(fault.get(pair, PERFECT))
            link.quality = PERFECT if quality == PERFECT else quality


def client_address(address: str) -> str:
    """How clients call the node that listens on `address`."""
    return f"{CLIENT_HOST}:{split_address(address)[1]}"


def _to(route: Route) -> Proxy:
    """A proxy that leads to one place."""

    async def find(_: asyncio.StreamReader) -> Route:
        return route

    return Proxy(find)
