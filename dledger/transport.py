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
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError

from dledger.core.group_epoch import Lineage
from dledger.core.types import ConfigurationPlace, DiskId, NodeId
from dledger.errors import (
    InvalidMessage,
    OlderCopy,
    PeerRefused,
    StreamEnded,
    UnknownDisk,
    WrongEpoch,
)
from dledger.greeting import Identity
from dledger.limits import MESSAGE_LENGTHS
from dledger.links import LinkTimes, Why
from dledger.outbox import Outbox
from dledger.peer_security import OPEN, At, PeerSecurity, Shown
from dledger.peers import Ears, LinkPace, PeerLink, PeerLinks
from dledger.proof import Parties
from dledger.sparing import Sparing
from dledger.wire.raft_pb2 import PeerMessage

METHOD = "/dledger.v1.RaftPeer/Replicate"
CONNECT_LIMIT_MS = 20_000  # gRPC's own; the links give up long before
CALLERS_CHECKED_EVERY_S = 2.0  # whether a certificate has been revoked since its stream began
RETRY_S = 1.0  # from a look at the links that failed to the next

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

_REJECTED = {
    UnknownDisk: "peer_on_another_disk",
    OlderCopy: "peer_is_an_older_copy",
    WrongEpoch: "peer_of_another_epoch",
}

# How writing to a stream that is over ends.
_ENDED = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it

Context: TypeAlias = "grpc.aio.ServicerContext[PeerMessage, PeerMessage]"

log = structlog.get_logger(__name__)


class GrpcTransport:
    """The `PeerTransport` of a real node, and the `Sockets` that it runs on.

    Args:
        identity: who this node is.
        addresses: where to dial (`host:port`) the members that this node was told of; its own is
            left alone. Others are dialed where the group's log says that they are.
        on_message: is given each message of a peer; raises InvalidMessage for a broken one.
        on_broken: is told when a peer has no stream any more in one of the directions.
        times: the bounds of the links.
        security: how peers are told from strangers.
        dialed: peers that this node was told to dial there and nowhere else (`[dial]`): neither its
            `addresses` nor the group's log know a better way for it.
    """

    def __init__(
        self,
        identity: Identity,
        addresses: Mapping[NodeId, str],
        on_message: Callable[[NodeId, PeerMessage], None],
        on_broken: Callable[[NodeId], None],
        times: LinkTimes,
        security: PeerSecurity = OPEN,
        dialed: Mapping[NodeId, str] | None = None,
    ) -> None:
        self._identity = identity
        self._security = security
        self._dialed = dict(dialed or {})
        self._configured = {peer: at for peer, at in addresses.items() if peer != identity.node}
        self._members: dict[NodeId, str] = {}  # where the group's log says that they are
        self._attempts: Counter[NodeId] = Counter()
        self._greeting_s = times.attempt_s
        self._outboxes: dict[int, Outbox] = {}
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._endings: dict[int, asyncio.Future[str]] = {}  # of accepted calls
        self._callers: dict[int, tuple[NodeId, Shown]] = {}  # who accepted calls are of
        self._answering: dict[int, tuple[NodeId, str]] = {}  # what who was dialed has shown
        self._checking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_started = False
        self._sparing = Sparing()
        ears, pace = Ears(on_message, on_broken), LinkPace(times, random.Random())
        self._links = PeerLinks(identity, self._configured, ears, self, pace)
        self.send_request = self._links.send_request
        self.send_answer = self._links.send_answer
        self.speak_for, self.recall = self._links.speak_for, self._links.recall
        self.promises, self.when_given_up = self._links.promises, self._links.when_given_up

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts dialing every peer, and takes the streams that they dial."""
        self._is_started = True
        self._links.start()
        if self._security.checks_names:
            self._checking = asyncio.create_task(self._check_certificates(), name="check peers")

    def hang_up(self) -> None:
        """The streams that peers have dialed end, and none is taken any more. They dial again soon:
        this process is about to be followed by another."""
        self._is_started = False
        for generation in list(self._endings):
            self._break(generation, "this node starts anew")

    async def stop(self) -> None:
        """Closes the streams; nothing is dialed any more."""
        self._links.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._checking is not None:
            await _cancelled(self._checking)
        await asyncio.gather(*self._dials.values(), return_exceptions=True)

    def level_of(self, peer: NodeId) -> int:
        """The level that `peer` said, as of now; see `PeerLinks.level_of`."""
        return self._links.level_of(peer)

    def links(self) -> dict[NodeId, PeerLink]:
        """The connection to each peer, as of now."""
        return self._links.pictures()

    def know(
        self,
        place: ConfigurationPlace,
        disks: Mapping[NodeId, DiskId],
        *,
        is_known: bool,
        members: Mapping[NodeId, str] | None = None,
        recoveries: Lineage = (),
        leader: NodeId | None = None,
    ) -> None:
        if members is not None:
            self._members = dict(members)
        self._links.know(
            place,
            disks,
            is_known=is_known,
            members=members,
            recoveries=recoveries,
            leader=leader,
        )

    def _address_of(self, peer: NodeId) -> str:
        """Where to dial `peer` now. Two addresses take turns: one of them is the older, and who is
        found at the other is asked for his name."""
        if peer in self._dialed:
            return self._dialed[peer]  # the way that this node goes, whatever others say
        known = (self._configured.get(peer, ""), self._members.get(peer, ""))
        addresses = [each for each in dict.fromkeys(known) if each]
        self._attempts[peer] += 1
        return addresses[(self._attempts[peer] - 1) % len(addresses)] if addresses else ""

    # --- Sockets ------------------------------------------------------------------------------

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wake_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(time_s, self._on_time)

    def dial(self, peer: NodeId, generation: int) -> None:
        self._outboxes[generation] = Outbox()
        task = asyncio.create_task(self._dial(peer, generation), name=f"dial {peer}")
        self._dials[generation] = task

    def send(self, generation: int, message: PeerMessage) -> bool:
        outbox = self._outboxes.get(generation)
        return outbox is not None and outbox.put(message)

    def end(self, peer: NodeId, generation: int, why: Why) -> None:
        if (
            why in (Why.SILENT, Why.REPLACED, Why.OTHER_DISK)
            and (unreported := self._sparing.due((why, peer))) is not None
        ):
            log.warning("peer_stream_ended", peer=peer, reason=why.value, unreported=unreported)
        if (outbox := self._outboxes.pop(generation, None)) is not None:
            outbox.close()
        if (task := self._dials.get(generation)) is not None:
            task.cancel()
        if (ending := self._endings.pop(generation, None)) is not None:
            ending.set_result(why.value)

    def _on_time(self) -> None:
        """A look at the links that failed is told, and isn't the last one: else no stream would be
        dialed or watched any more, and nobody knew."""
        try:
            self._links.on_time()
        except Exception as error:  # noqa: BLE001  the loop would tell it, and forget the links
            self._tell_failure("peer_links_failed", error)
            self.wake_at(self.now() + RETRY_S)

    def _break(self, generation: int, reason: str) -> None:
        """Ends a call, dialed or accepted, of which the links know nothing yet: its task tells."""
        if (task := self._dials.get(generation)) is not None:
            task.cancel()
        if (ending := self._endings.pop(generation, None)) is not None:
            ending.set_result(reason)

    def _tell_failure(self, event: str, error: Exception, **facts: str) -> None:
        """A defect of ours: one line and where it happened, once in a while."""
        if (unreported := self._sparing.due((event, type(error)))) is not None:
            log.error(event, unreported=unreported, exc_info=error, **facts)

    def _tell(self, event: str, peer: NodeId, **facts: str) -> None:
        """One line an event and peer once in a while: whoever sends nonsense sends it again."""
        if (unreported := self._sparing.due((event, peer))) is not None:
            log.error(event, peer=peer, unreported=unreported, **facts)

    # --- the stream that we dial --------------------------------------------------------------

    async def _dial(self, peer: NodeId, generation: int) -> None:
        """One call, from the attempt to connect to its end. Nothing that a peer does may escape:
        without being told of the end the link would never dial again."""
        address, refused = self._address_of(peer), False
        try:
            if not address:
                raise PeerRefused(f"nobody has said where {peer} is")
            await self._call(peer, address, generation)
        except PeerRefused as error:
            event = _REJECTED.get(type(error), "peer_refused")
            self._tell(event, peer, address=address, error=str(error))
            refused = True
        except InvalidMessage as error:
            self._tell("peer_sent_invalid_message", peer, error=str(error))
        except ConnectionError as error:
            log.debug("peer_stream_broken", peer=peer, address=address, error=str(error))
        except Exception:
            if (unreported := self._sparing.due(("peer_dial_failed", peer))) is not None:
                log.exception("peer_dial_failed", peer=peer, address=address, unreported=unreported)
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
        group, node = self._identity.broker_group, self._identity.node
        async with self._security.channel(address, CHANNEL_OPTIONS, group, peer) as channel:
            method = channel.stream_stream(
                METHOD,
                request_serializer=PeerMessage.SerializeToString,
                response_deserializer=_parse,
            )
            call: Any = method()  # type: ignore[call-arg]  # written to, not given an iterator
            outbox = self._outboxes[generation]
            writer: asyncio.Task[None] | None = None
            try:
                parties = Parties(group, node, peer)
                shown = await self._security.prove(parties, call.read, call.write)
                self._answering[generation] = peer, shown
                write = self._write_all(peer, generation, outbox, call.write)
                writer = asyncio.create_task(write, name=f"write {peer}")
                await self._read_all(generation, call.read)
                raise _broken(await call.details(), await call.code(), peer)
            except grpc.aio.AioRpcError as error:
                raise _broken(error.details(), error.code(), peer) from error
            except StreamEnded as error:
                raise _broken(await call.details(), await call.code(), peer) from error
            except asyncio.InvalidStateError as error:
                raise ConnectionError(f"the call to {peer} is over") from error
            finally:
                self._answering.pop(generation, None)
                call.cancel()
                if writer is not None:
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
        if not self._is_started:  # the door may be open by then: what isn't known yet isn't said
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this node is starting")
        identity, shown = self._identity, context.auth_context()
        try:
            async with asyncio.timeout(self._greeting_s):
                at = At(identity.broker_group, identity.node)
                examined = await self._security.examine(at, context.read, context.write, shown)
            first, proved = examined.first, examined.proved
            if first is EOF:
                return
            if not isinstance(first, PeerMessage) or not first.HasField("hello"):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _no_hello(first))
            peer = first.hello.node_id
            self._security.check_caller(identity.broker_group, peer, proved, shown)
            generation, hello = self._links.on_call(first)
        except StreamEnded:
            return
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello was said in time")
        except PeerRefused as error:
            event = _REJECTED.get(type(error), "peer_rejected")
            if (unreported := self._sparing.due(event)) is not None:
                log.warning(event, error=str(error), unreported=unreported)
            if isinstance(error, WrongEpoch) and error.answer is not None:
                await _said(context, error.answer)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._callers[generation] = NodeId(peer), shown
        self._outboxes[generation] = Outbox()
        self._outboxes[generation].put(hello)
        await self._serve_call(NodeId(first.hello.node_id), generation, context)

    async def _serve_call(self, peer: NodeId, generation: int, context: Context) -> None:
        """Until one of the sides ends it."""
        ending = self._endings[generation] = asyncio.get_running_loop().create_future()
        outbox = self._outboxes[generation]
        write = self._write_all(peer, generation, outbox, context.write)
        writer = asyncio.create_task(write, name=f"answer {peer}")
        reader = asyncio.create_task(self._read_all(generation, context.read), name=f"read {peer}")
        try:
            await asyncio.wait({reader, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._outboxes.pop(generation, None)
            self._endings.pop(generation, None)
            self._callers.pop(generation, None)
            # Before anything is waited for: whoever is cancelled twice comes no further.
            self._links.on_ended(generation)
            await _cancelled(reader, writer)
        if ending.done():
            await context.abort(grpc.StatusCode.UNAVAILABLE, ending.result())
        try:
            await reader
        except InvalidMessage as error:
            self._tell("peer_sent_invalid_message", peer, error=str(error))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def _check_certificates(self) -> None:
        """Ends the streams with peers whose certificates are believed no longer. Nothing that one
        of them does keeps it from looking at the others, or again."""
        while True:
            await asyncio.sleep(CALLERS_CHECKED_EVERY_S)
            for generation, (peer, shown) in list(self._callers.items()):
                check = partial(self._security.check_caller, self._identity.broker_group)
                self._check_one(generation, peer, partial(check, peer, None, shown))
            for generation, (peer, fingerprint) in list(self._answering.items()):
                check = partial(self._security.check_shown, peer, fingerprint)
                self._check_one(generation, peer, check)

    def _check_one(self, generation: int, peer: NodeId, check: Callable[[], None]) -> None:
        try:
            check()
        except PeerRefused as error:
            log.warning("peer_rejected", peer=peer, error=str(error))
            self._break(generation, str(error))
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._tell_failure("certificate_not_checked", error, peer=peer)

    async def _write_all(
        self,
        peer: NodeId,
        generation: int,
        outbox: Outbox,
        write: Callable[[PeerMessage], object],
    ) -> None:
        """Writes messages until the outbox closes or the stream breaks, which the reader sees. What
        else goes wrong ends the stream: a peer that is heard and never answered seems healthy."""
        try:
            while (message := await outbox.get()) is not None:
                await write(message)  # type: ignore[misc]
        except _ENDED:
            return
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._tell_failure("peer_stream_not_written", error, peer=peer)
            self._break(generation, "this node failed to write")


async def _said(context: Context, message: PeerMessage) -> None:
    """A call that is about to end says this last, if the caller still listens."""
    with contextlib.suppress(*_ENDED):
        await context.write(message)


def _no_hello(first: object) -> str:
    if isinstance(first, PeerMessage) and first.HasField("secret_proof"):
        return "this node has no group secret (secret_file), and was shown a proof of one"
    return "the first message of a stream must be a Hello"


def _parse(data: bytes) -> object:
    """The message in `data`; the bytes themselves when they are none, to be told apart."""
    try:
        return PeerMessage.FromString(data)
    except DecodeError:
        return data


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _broken(details: str | None, code: object, peer: NodeId) -> Exception:
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return PeerRefused(details or f"{peer} refuses this node")
    if details and ("SSL" in details or "handshake" in details or "Verification" in details):
        return PeerRefused(f"no TLS with {peer}: {details}")  # Certificates, not weather.
    return ConnectionError(details or f"{peer} is not reachable")
