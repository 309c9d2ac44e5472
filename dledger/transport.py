"""Peers over gRPC: the sockets below `dledger.peers`.

Each node dials each peer and keeps one bidirectional stream; its requests go out on it and the
peer's answers come back on it, so the answers to a peer's requests use the streams that the peer
dialed. This owns channels, calls and tasks, and decides nothing: which call is started, used and
ended is `PeerLinks`' matter. Sends never block: a full outbox drops the message, which Raft treats
as a lost packet. A broken stream is reported at once, because a leader whose process died closes
its streams long before any timeout would notice (see `RaftDriver.suspect`).

An attempt to connect is a channel of its own, so that one that hangs, in the kernel or in gRPC,
holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError

from dledger.core.types import NodeId
from dledger.errors import InvalidMessage, OlderCopy, PeerRefused, UnknownDisk
from dledger.greeting import Identity
from dledger.limits import MESSAGE_LENGTHS
from dledger.links import LinkTimes, Why
from dledger.outbox import Outbox
from dledger.peers import Ears, LinkPace, PeerLink, PeerLinks
from dledger.wire.raft_pb2 import PeerMessage

METHOD = "/dledger.v1.RaftPeer/Replicate"
CONNECT_LIMIT_MS = 20_000  # gRPC's own; the links give up long before

CHANNEL_OPTIONS = (
    *MESSAGE_LENGTHS,
    # gRPC takes the first of these for the time that connecting may take.
    ("grpc.min_reconnect_backoff_ms", CONNECT_LIMIT_MS),
    ("grpc.initial_reconnect_backoff_ms", CONNECT_LIMIT_MS),
    ("grpc.max_reconnect_backoff_ms", CONNECT_LIMIT_MS),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.optimization_target", "latency"),
)

# For a server: a connection whose other end is gone without a word doesn't keep its descriptor
# for the hours that TCP would. Streams between peers are renewed long before.
KEEPALIVE_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

_REJECTED = {UnknownDisk: "peer_on_another_disk", OlderCopy: "peer_is_an_older_copy"}

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it

Context: TypeAlias = "grpc.aio.ServicerContext[PeerMessage, PeerMessage]"

log = structlog.get_logger(__name__)


class GrpcTransport:
    """The `PeerTransport` of a real node, and the `Sockets` that it runs on.

    Args:
        identity: who this node is.
        addresses: where to dial (`host:port`) every member; its own is left alone.
        on_message: is given each message of a peer; raises InvalidMessage for a broken one.
        on_broken: is told when a peer has no stream any more in one of the directions.
        times: the bounds of the links.
    """

    def __init__(
        self,
        identity: Identity,
        addresses: Mapping[NodeId, str],
        on_message: Callable[[NodeId, PeerMessage], None],
        on_broken: Callable[[NodeId], None],
        times: LinkTimes,
    ) -> None:
        self._addresses = {peer: at for peer, at in addresses.items() if peer != identity.node}
        self._greeting_s = times.attempt_s
        self._outboxes: dict[int, Outbox] = {}
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._endings: dict[int, asyncio.Future[Why]] = {}  # of accepted calls
        self._timer: asyncio.TimerHandle | None = None
        ears, pace = Ears(on_message, on_broken), LinkPace(times, random.Random())
        self._links = PeerLinks(identity, self._addresses, ears, self, pace)
        self.send_request = self._links.send_request
        self.send_answer = self._links.send_answer
        self.know = self._links.know

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts dialing every peer."""
        self._links.start()

    async def stop(self) -> None:
        """Closes the streams; nothing is dialed any more."""
        self._links.stop()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._dials.values(), return_exceptions=True)

    def links(self) -> dict[NodeId, PeerLink]:
        """The connection to each peer, as of now."""
        return self._links.pictures()

    # --- Sockets ------------------------------------------------------------------------------

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wake_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(time_s, self._links.on_time)

    def dial(self, peer: NodeId, generation: int) -> None:
        self._outboxes[generation] = Outbox()
        task = asyncio.create_task(self._dial(peer, generation), name=f"dial {peer}")
        self._dials[generation] = task

    def send(self, generation: int, message: PeerMessage) -> bool:
        outbox = self._outboxes.get(generation)
        return outbox is not None and outbox.put(message)

    def end(self, peer: NodeId, generation: int, why: Why) -> None:
        if why in (Why.SILENT, Why.REPLACED, Why.OTHER_DISK):
            log.warning("peer_stream_ended", peer=peer, reason=why.value)
        if (outbox := self._outboxes.pop(generation, None)) is not None:
            outbox.close()
        if (task := self._dials.get(generation)) is not None:
            task.cancel()
        if (ending := self._endings.pop(generation, None)) is not None:
            ending.set_result(why)

    # --- the stream that we dial --------------------------------------------------------------

    async def _dial(self, peer: NodeId, generation: int) -> None:
        """One call, from the attempt to connect to its end. Nothing that a peer does may escape:
        without being told of the end the link would never dial again."""
        address, refused = self._addresses[peer], False
        try:
            await self._call(peer, address, generation)
        except PeerRefused as error:
            event = _REJECTED.get(type(error), "peer_refused")
            log.error(event, peer=peer, address=address, error=str(error))
            refused = True
        except InvalidMessage as error:
            log.error("peer_sent_invalid_message", peer=peer, error=str(error))
        except ConnectionError as error:
            log.debug("peer_stream_broken", peer=peer, address=address, error=str(error))
        except Exception:
            log.exception("peer_dial_failed", peer=peer, address=address)
        finally:
            self._outboxes.pop(generation, None)
            self._dials.pop(generation, None)
            self._links.on_ended(generation, refused=refused)

    async def _call(self, peer: NodeId, address: str, generation: int) -> None:
        """Writes what is in the outbox, reads until the call ends.

        Raises:
            PeerRefused: the peer doesn't take this node, or this node not the peer.
            ConnectionError: it has ended otherwise.
            InvalidMessage: the peer sent what no peer sends.
        """
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            method = channel.stream_stream(
                METHOD,
                request_serializer=PeerMessage.SerializeToString,
                response_deserializer=_parse,
            )
            call: Any = method()  # type: ignore[call-arg]  # written to, not given an iterator
            outbox = self._outboxes[generation]
            writer = asyncio.create_task(_write_all(outbox, call.write), name=f"write {peer}")
            try:
                await self._read_all(generation, call.read)
                raise _broken(await call.details(), await call.code(), peer)
            except grpc.aio.AioRpcError as error:
                raise _broken(error.details(), error.code(), peer) from error
            except asyncio.InvalidStateError as error:
                raise ConnectionError(f"the call to {peer} is over") from error
            finally:
                call.cancel()
                await _cancelled(writer)

    async def _read_all(self, generation: int, read: Callable[[], Awaitable[object]]) -> None:
        """Every message is given to the links, until the stream's end."""
        on_message = self._links.on_message
        while (message := await read()) is not EOF:
            if not isinstance(message, PeerMessage):
                raise InvalidMessage("bytes that are no PeerMessage")
            on_message(generation, message)

    # --- the streams that peers dial ----------------------------------------------------------

    async def serve(self, requests: AsyncIterator[PeerMessage], context: Context) -> None:
        """Handler of `RaftPeer.Replicate`."""
        del requests  # context.read() is used: it tells the end from a failure
        try:
            first = await asyncio.wait_for(context.read(), self._greeting_s)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello was said in time")
        if first is EOF:
            return
        if not isinstance(first, PeerMessage) or not first.HasField("hello"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "the first message of a stream must be a Hello"
            )
        try:
            generation, hello = self._links.on_call(first)
        except PeerRefused as error:
            log.warning(_REJECTED.get(type(error), "peer_rejected"), error=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._outboxes[generation] = Outbox()
        self._outboxes[generation].put(hello)
        await self._serve_call(NodeId(first.hello.node_id), generation, context)

    async def _serve_call(self, peer: NodeId, generation: int, context: Context) -> None:
        """Until one of the sides ends it."""
        ending = self._endings[generation] = asyncio.get_running_loop().create_future()
        outbox = self._outboxes[generation]
        writer = asyncio.create_task(_write_all(outbox, context.write), name=f"answer {peer}")
        reader = asyncio.create_task(self._read_all(generation, context.read), name=f"read {peer}")
        try:
            await asyncio.wait({reader, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._outboxes.pop(generation, None)
            self._endings.pop(generation, None)
            await _cancelled(reader, writer)
            self._links.on_ended(generation)
        if ending.done():
            await context.abort(grpc.StatusCode.UNAVAILABLE, ending.result().value)
        try:
            await reader
        except InvalidMessage as error:
            log.error("peer_sent_invalid_message", peer=peer, error=str(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


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


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _broken(details: str | None, code: object, peer: NodeId) -> Exception:
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return PeerRefused(details or f"{peer} refuses this node")
    return ConnectionError(details or f"{peer} is not reachable")
