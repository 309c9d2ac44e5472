"""Peers over gRPC: one long-lived bidirectional stream per direction, reconnected for ever.

Each node dials each peer. Its requests go out on that stream and the peer's answers come back
on it, so the answers to a peer's requests use the stream that the peer dialed. A stream is
opened by a Hello from each side; a peer of another group, version or segment size is refused
with a text that says what differs. Sends never block: a full outbox drops the message, which
Raft treats as a lost packet. A broken stream is reported at once, because a leader whose
process died closes its streams long before any timeout would notice (see `RaftDriver.suspect`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from dledger.core.types import NodeId
from dledger.errors import PeerRefused
from dledger.limits import MESSAGE_LENGTHS
from dledger.ports import InvalidFrames
from dledger.wire.raft_pb2 import Hello, PeerMessage

PROTOCOL_VERSION = 1
METHOD = "/dledger.v1.RaftPeer/Replicate"
OUTBOX_BYTES = 32 << 20  # past this a message is dropped; the core's windows stay far below
OUTBOX_MESSAGES = 4_096
HELLO_TIMEOUT_S = 2.0
RECONNECT_MIN_S = 0.02
RECONNECT_MAX_S = 0.5
REFUSED_RETRY_S = 2.0

CHANNEL_OPTIONS = (
    *MESSAGE_LENGTHS,
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.optimization_target", "latency"),
)

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this node is to its peers."""

    group: str
    node: NodeId
    segment_size_bytes: int

    def hello(self, to: NodeId) -> PeerMessage:
        """The first message of a stream."""
        return PeerMessage(
            hello=Hello(
                protocol_version=PROTOCOL_VERSION,
                group=self.group,
                node_id=self.node,
                to_node_id=to,
                segment_size_bytes=self.segment_size_bytes,
            )
        )

    def check(self, hello: Hello, members: Mapping[NodeId, str]) -> NodeId:
        """The id of the peer that `hello` introduces.

        Raises:
            PeerRefused: it must not take part; the text names what differs.
        """
        differing = {
            "protocol version": (hello.protocol_version, PROTOCOL_VERSION),
            "group": (hello.group, self.group),
            "addressed node": (hello.to_node_id, self.node),
            "segment size": (hello.segment_size_bytes, self.segment_size_bytes),
        }
        for what, (theirs, ours) in differing.items():
            if theirs != ours:
                raise PeerRefused(
                    f"peer {hello.node_id!r}: {what} is {theirs!r} there and {ours!r} here"
                )
        peer = NodeId(hello.node_id)
        if peer not in members or peer == self.node:
            raise PeerRefused(f"{hello.node_id!r} is not a peer of {self.node!r} in this group")
        return peer


class Outbox:
    """Messages on their way to one stream, bounded in bytes and count."""

    def __init__(self) -> None:
        self._messages: deque[tuple[PeerMessage, int]] = deque()
        self._bytes = 0
        self._ready = asyncio.Event()
        self._closed = False
        self.dropped = 0

    def put(self, message: PeerMessage) -> None:
        """Queues `message`, or drops it when the bound is reached."""
        size = len(message.append_request.frames)
        full = self._bytes + size > OUTBOX_BYTES or len(self._messages) >= OUTBOX_MESSAGES
        if self._closed or (full and self._messages):
            self.dropped += 1
            return
        self._messages.append((message, size))
        self._bytes += size
        self._ready.set()

    def close(self) -> None:
        """Ends the iteration once the present message is out."""
        self._closed = True
        self._ready.set()

    async def get(self) -> PeerMessage | None:
        """The next message; None once closed."""
        while not self._messages and not self._closed:
            self._ready.clear()
            await self._ready.wait()
        if self._closed:
            return None
        message, size = self._messages.popleft()
        self._bytes -= size
        return message


@dataclass(frozen=True, slots=True)
class PeerLink:
    """A frozen picture of the connection to one peer."""

    connected: bool
    reconnects: int
    dropped: int


class GrpcTransport:
    """The `PeerTransport` of a real node.

    Args:
        identity: who this node is.
        members: address (`host:port`) of every member, this node included.
        on_message: is given each message of a peer; raises InvalidFrames for a broken one.
        on_broken: is told when a stream with a peer, in either direction, has ended.
        dial: where to dial a peer instead of at its address; everybody is still told the address.
    """

    def __init__(
        self,
        identity: Identity,
        members: Mapping[NodeId, str],
        on_message: Callable[[NodeId, PeerMessage], None],
        on_broken: Callable[[NodeId], None],
        dial: Mapping[NodeId, str] | None = None,
    ) -> None:
        self._identity = identity
        self._members = dict(members)
        self._dialed = {**self._members, **(dial or {})}
        self._on_message = on_message
        self._on_broken = on_broken
        self._requests: dict[NodeId, Outbox] = {}
        self._answers: dict[NodeId, Outbox] = {}
        self._reconnects: dict[NodeId, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    # --- PeerTransport ------------------------------------------------------------------------

    def send_request(self, peer: NodeId, message: PeerMessage) -> None:
        outbox = self._requests.get(peer)
        if outbox is not None:
            outbox.put(message)

    def send_answer(self, peer: NodeId, message: PeerMessage) -> None:
        outbox = self._answers.get(peer)
        if outbox is not None:
            outbox.put(message)

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts dialing every peer."""
        for peer, address in self._dialed.items():
            if peer != self._identity.node:
                task = asyncio.create_task(self._keep_dialing(peer, address), name=f"dial {peer}")
                self._tasks.append(task)

    async def stop(self) -> None:
        """Closes the streams; nothing is dialed any more."""
        self._stopping = True
        for outbox in [*self._requests.values(), *self._answers.values()]:
            outbox.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def links(self) -> dict[NodeId, PeerLink]:
        """The connection to each peer, as of now."""
        return {
            peer: PeerLink(
                connected=peer in self._requests,
                reconnects=self._reconnects.get(peer, 0),
                dropped=self._requests[peer].dropped if peer in self._requests else 0,
            )
            for peer in self._members
            if peer != self._identity.node
        }

    # --- the stream that we dial --------------------------------------------------------------

    async def _keep_dialing(self, peer: NodeId, address: str) -> None:
        """Dials until the node stops. Nothing that a peer does may end this: without its stream
        the peer would get no vote, append or heartbeat of ours any more."""
        delay = RECONNECT_MIN_S
        while not self._stopping:
            pause = delay
            try:
                await self._dial(peer, address)
                pause = delay = RECONNECT_MIN_S
            except PeerRefused as error:
                log.error("peer_refused", peer=peer, address=address, error=str(error))
                pause = REFUSED_RETRY_S
            except ConnectionError as error:
                log.debug("peer_not_reached", peer=peer, address=address, error=str(error))
            except Exception:
                log.exception("peer_dial_failed", peer=peer, address=address)
            # Jitter keeps restarted nodes from dialing in step.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            delay = min(delay * 2, RECONNECT_MAX_S)

    async def _dial(self, peer: NodeId, address: str) -> None:
        """One connection, until it breaks.

        Raises:
            PeerRefused: the peer doesn't take this node, or this node not the peer.
            ConnectionError: there was no stream to use.
        """
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            method = channel.stream_stream(
                METHOD,
                request_serializer=PeerMessage.SerializeToString,
                response_deserializer=_parse,
            )
            call: Any = method()  # type: ignore[call-arg]  # written to, not given an iterator
            await self._greet(peer, call)
            await self._use(peer, call)

    async def _greet(self, peer: NodeId, call: Any) -> None:
        """Both Hellos have been said and fit."""
        try:
            await call.write(self._identity.hello(peer))
            answer = await asyncio.wait_for(call.read(), HELLO_TIMEOUT_S)
            if answer is EOF:
                raise _refusal(await call.details(), await call.code(), peer)
        except grpc.aio.AioRpcError as error:
            raise _refusal(error.details(), error.code(), peer) from error
        except (asyncio.InvalidStateError, TimeoutError) as error:
            raise ConnectionError(f"{peer} said no Hello") from error
        if not isinstance(answer, PeerMessage) or not answer.HasField("hello"):
            raise PeerRefused(f"{peer} at its address answers with something else than a Hello")
        self._identity.check(answer.hello, self._members)

    async def _use(self, peer: NodeId, call: Any) -> None:
        outbox = self._requests[peer] = Outbox()
        writer = asyncio.create_task(_write_all(outbox, call.write), name=f"write {peer}")
        try:
            while (message := await call.read()) is not EOF:
                if not isinstance(message, PeerMessage):
                    raise InvalidFrames("bytes that are no PeerMessage")
                self._on_message(peer, message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            log.debug("peer_stream_broken", peer=peer, error=str(error))
        except InvalidFrames as error:
            log.error("peer_sent_invalid_message", peer=peer, error=str(error))
        finally:
            if self._requests.get(peer) is outbox:
                del self._requests[peer]
            self._reconnects[peer] = self._reconnects.get(peer, 0) + 1
            outbox.close()
            writer.cancel()
            call.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            self._report_broken(peer)

    # --- the stream that a peer dials ---------------------------------------------------------

    async def serve(
        self,
        requests: AsyncIterator[PeerMessage],
        context: grpc.aio.ServicerContext[PeerMessage, PeerMessage],
    ) -> None:
        """Handler of `RaftPeer.Replicate`."""
        del requests  # context.read() is used: it tells the end from a failure
        first = await context.read()
        if first is EOF:
            return
        if not isinstance(first, PeerMessage) or not first.HasField("hello"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream must be a Hello"
            )
        try:
            peer = self._identity.check(first.hello, self._members)
        except PeerRefused as error:
            log.warning("peer_rejected", error=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        await context.write(self._identity.hello(peer))
        await self._serve_peer(peer, context)

    async def _serve_peer(
        self, peer: NodeId, context: grpc.aio.ServicerContext[PeerMessage, PeerMessage]
    ) -> None:
        previous = self._answers.get(peer)
        if previous is not None:
            previous.close()  # the peer dialed again: its old stream is dead
        outbox = self._answers[peer] = Outbox()
        writer = asyncio.create_task(_write_all(outbox, context.write), name=f"answer {peer}")
        try:
            while not self._stopping and (message := await context.read()) is not EOF:
                if not isinstance(message, PeerMessage):
                    raise InvalidFrames("bytes that are no PeerMessage")
                self._on_message(peer, message)
        except InvalidFrames as error:
            log.error("peer_sent_invalid_message", peer=peer, error=str(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            outbox.close()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            if self._answers.get(peer) is outbox:
                del self._answers[peer]
                self._report_broken(peer)

    def _report_broken(self, peer: NodeId) -> None:
        if not self._stopping:
            self._on_broken(peer)


def _parse(data: bytes) -> object:
    """The message in `data`; the bytes themselves when they are none, to be told apart."""
    try:
        return PeerMessage.FromString(data)
    except DecodeError:
        return data


async def _write_all(outbox: Outbox, write: Callable[[PeerMessage], object]) -> None:
    """Writes messages until the outbox closes or the stream breaks; the reader sees the break."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.RpcError):
        while (message := await outbox.get()) is not None:
            await write(message)  # type: ignore[misc]


def _refusal(details: str | None, code: object, peer: NodeId) -> Exception:
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return PeerRefused(details or f"{peer} refuses this node")
    return ConnectionError(details or f"{peer} is not reachable")
