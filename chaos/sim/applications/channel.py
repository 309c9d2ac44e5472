"""A `grpc.aio.Channel` over the simulated network, as far as the library uses one.

Requests and answers travel as bytes and take the network's time. Where one is lost, or the client
is cut off, the connection is, and keepalive ends the call, unless its deadline does. A stream keeps
its order, and goes mute where the network loses something of it: a watch is then ended by
keepalive, members' streams find out by themselves.
A call that the client gives up is given up at the node as well, a moment later, as gRPC does. Of a
Send that was lost a copy may arrive long after that.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import grpc
from grpc.aio import AioRpcError, Metadata

from broker.doors.grpc.cluster import ClusterDoor
from broker.doors.grpc.errors import STATUS, in_metadata
from broker.errors import BrokerError, ErrorCode
from chaos.errors import CallFailed
from chaos.sim.applications.process import ClientProcess
from chaos.sim.defect import Defect
from chaos.sim.door_sizes import check_request
from chaos.sim.machine import Life, Told
from chaos.sim.rpc_limits import check_message
from chaos.sim.streams import LOSS_SHARE
from chaos.sim.timeline import ActorDied
from chaos.sim.world import NOBODY, REFUSED_US, World
from dledger.core.types import NodeId
from dledger.wire import errors_pb2 as epb

LATE_SHARE: Final = 0.3
LATE_US: Final = 500_000, 20_000_000
KEEPALIVE_US: Final = 3_000_000  # after which a connection that has lost something ends
LOST: Final = CallFailed(None, may_have_happened=True)
SILENT_S: Final = 0.5
NEVER_SENT: Final = "failed to connect to all addresses"


class Network:
    """Where the library's channels lead: the nodes, by address."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.plan.random("library/network")
        self.late = world.plan.random("library/late")
        # Clients' processes and nodes: nothing of one arrives at the other; no answer does.
        self.cuts: set[tuple[str, NodeId]] = set()
        self.deaf: set[tuple[str, NodeId]] = set()
        self._by_address = {node.config.listen: name for name, node in world.nodes.items()}
        self.addresses = list(self._by_address)

    def dial(self, process: ClientProcess, address: str) -> Channel:
        """A channel of that process."""
        return Channel(self, process, self._by_address[address])

    async def is_refused(self, process: ClientProcess, address: str) -> bool:
        """Whether the host says that nobody listens there: one that is cut off says nothing."""
        node = self.world.nodes[self._by_address[address]]
        if self.is_cut(process, node.name):
            await asyncio.sleep(SILENT_S)
            return False
        await asyncio.sleep(REFUSED_US / 1e6)
        return node.life is None

    def is_cut(self, process: ClientProcess, node: NodeId) -> bool:
        return (process.name, node) in self.cuts

    def is_deaf(self, process: ClientProcess, node: NodeId) -> bool:
        return (process.name, node) in self.deaf or self.is_cut(process, node)

    def loses(self) -> bool:
        loss = self.world.network.weather.loss
        return bool(loss) and self.chance.random() < loss


class Channel:
    """From one process to one node."""

    def __init__(self, network: Network, process: ClientProcess, node: NodeId) -> None:
        self.network = network
        self.process = process
        self.node = network.world.nodes[node]
        self._open: dict[Any, None] = {}
        self._is_closed = False

    def unary_unary(self, path: str, **coders: Any) -> Callable[..., Call]:
        method = _snake(path.rpartition("/")[2])

        def call(request: Any, timeout: float, metadata: Any = None) -> Call:
            self._check()
            return Call(self, method, request, timeout, tuple(metadata or ()), coders)

        return call

    def unary_stream(self, path: str, **coders: Any) -> Callable[..., Watch]:
        def call(request: Any, metadata: Any = None) -> Watch:
            self._check()
            return Watch(self, request)

        return call

    def stream_stream(self, path: str, **coders: Any) -> Callable[..., Attending]:
        def call(metadata: Any = None) -> Attending:
            self._check()
            return Attending(self)

        return call

    def _check(self) -> None:
        if self._is_closed:
            raise grpc.aio.UsageError("Channel is closed.")

    def note(self, call: Any) -> None:
        self._open[call] = None

    def forget(self, call: Any) -> None:
        self._open.pop(call, None)

    async def close(self, grace: float | None = None) -> None:
        """Every call of it is cancelled."""
        self._is_closed = True
        for call in list(self._open):
            call.cancel()


class Call:
    """A unary call under way."""

    def __init__(
        self,
        channel: Channel,
        method: str,
        request: Any,
        timeout_s: float,
        metadata: tuple[tuple[str, Any], ...],
        coders: dict[str, Any],
    ) -> None:
        self._channel = channel
        self._method = method
        self._coders = coders
        process, network, node = channel.process, channel.network, channel.node
        check_message(process.name, request)
        check_request(process.name, request)
        self._told = Told(metadata, type(request).FromString(coders["request_serializer"](request)))
        self._future = process.create_future()
        self._serving: tuple[Life, asyncio.Task[object]] | None = None
        self._deadline = process.call_later(timeout_s, self._expire)
        channel.note(self)
        self._future.add_done_callback(self._on_done)
        timeline, world = network.world.timeline, network.world
        if network.is_cut(process, node.name) or network.loses():
            timeline.after(KEEPALIVE_US, process, self._fail, LOST)
            self._may_come_late()
            return
        if node.life is None:
            refused = CallFailed(None, may_have_happened=False)
            timeline.after(REFUSED_US, process, self._fail, refused)
            return
        world._open_calls[node.name][self._future] = None
        timeline.after(world.network.delay(), node.life.loop, self._serve, node.life)

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            answer = yield from self._future.__await__()
        except asyncio.CancelledError:
            self.cancel()
            raise
        except CallFailed as failure:
            raise _rpc_error(failure, self._told.answered) from None
        except TimeoutError:
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        return self._coders["response_deserializer"](answer.SerializeToString())

    def cancel(self) -> bool:
        """Gives it up, here at once, there a moment later."""
        if self._future.done() and not self._future.cancelled():
            return False
        self._future.cancel()
        self._give_up()
        return True

    async def trailing_metadata(self) -> Any:
        return self._told.answered

    def _on_done(self, _: object) -> None:
        self._deadline.cancel()
        self._channel.forget(self)

    def _give_up(self) -> None:
        serving, self._serving = self._serving, None
        world = self._channel.network.world
        if serving is not None and self._channel.process.alive:
            life, task = serving
            world.timeline.after(world.network.delay(), life.loop, _cancel, task)

    def _fail(self, failure: CallFailed) -> None:
        if not self._future.done():
            self._future.set_exception(failure)

    def _expire(self) -> None:
        if not self._future.done():
            self._future.set_exception(TimeoutError())
            self._give_up()

    def _may_come_late(self) -> None:
        """Of a Send that was lost a copy may lie somewhere on the way, whatever became of its
        connection, and of its caller."""
        network = self._channel.network
        if self._method == "send" and network.late.random() < LATE_SHARE:
            after_us = network.late.randrange(*LATE_US)
            network.world.timeline.after(after_us, NOBODY, self._come_late)

    def _come_late(self) -> None:
        node, timeline = self._channel.node, self._channel.network.world.timeline
        if (life := node.life) is not None and not life.is_shut:
            timeline.after(0, life.loop, self._serve_late, life)

    def _serve_late(self, life: Life) -> None:
        """Nobody hears the answer."""
        if not life.is_shut:
            task = life.loop.create_task(self._channel.node.serve(self._method, self._told))
            task.add_done_callback(_heed)

    def _serve(self, life: Life) -> None:
        channel = self._channel
        node, world = channel.node, channel.network.world
        if self._future.cancelled() or not channel.process.alive:
            world._open_calls.get(node.name, {}).pop(self._future, None)
            return
        if life.is_shut:
            world._open_calls.get(node.name, {}).pop(self._future, None)
            refused = CallFailed(None, may_have_happened=False)
            world.timeline.after(world.network.delay(), channel.process, self._fail, refused)
            return
        term = world.denials.term_of_before(life)
        task = life.loop.create_task(node.serve(self._method, self._told))
        self._serving = (life, task)
        task.add_done_callback(partial(self._on_served, life, term))

    def _on_served(self, life: Life, term: int, done: asyncio.Task[object]) -> None:
        """The answer is on its way, or lost, and its connection with it."""
        channel, network = self._channel, self._channel.network
        world, node = network.world, channel.node
        if network.is_deaf(channel.process, node.name) and not _is_defect(done):
            world._open_calls.get(node.name, {}).pop(self._future, None)
        else:
            world._respond(node, life, term, self._future, done)
        world.timeline.after(KEEPALIVE_US, channel.process, self._fail, LOST)


class Inbox:
    """What has come on a stream, until it ends; one reader at a time."""

    def __init__(self, process: ClientProcess) -> None:
        self._process = process
        self._messages: deque[Any] = deque()
        self._changed: asyncio.Future[None] | None = None
        self.end: BaseException | None = None  # why nothing more comes

    def put(self, message: Any) -> None:
        """One more; a copy, as bytes travel."""
        if self.end is None:
            self._messages.append(type(message).FromString(message.SerializeToString()))
            self._wake()

    def close(self, end: BaseException) -> bool:
        """Nothing more comes; whether that is news."""
        if self.end is not None:
            return False
        self.end = end
        self._wake()
        return True

    async def next(self) -> Any:
        """The next message; raises why there is none."""
        while not self._messages:
            if self.end is not None:
                raise self.end
            self._changed = self._process.create_future()
            await self._changed
        return self._messages.popleft()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


class Watch:
    """A WatchLeader stream."""

    def __init__(self, channel: Channel, request: Any) -> None:
        self._channel = channel
        self._inbox = Inbox(channel.process)
        self._task: asyncio.Task[None] | None = None
        self._arrives_us = 0
        self.is_mute = False
        process, network, node = channel.process, channel.network, channel.node
        self._life = node.life
        channel.note(self)
        world = network.world
        if network.is_cut(process, node.name):
            self._go_mute()
        elif self._life is None or self._life.is_shut:
            world.timeline.after(REFUSED_US, process, self._break, NEVER_SENT)
        else:
            world._streams.setdefault(node.name, {})[self] = None  # type: ignore[index]
            delay = world.network.delay()
            world.timeline.after(delay, self._life.loop, self._serve, self._life, request)

    # --- at the client ------------------------------------------------------------------------

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._inbox.next()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> bool:
        """Its reader sees it cancelled."""
        if self._inbox.close(asyncio.CancelledError()):
            self._hang_up()
        return True

    def _hang_up(self) -> None:
        self._channel.forget(self)
        world = self._channel.network.world
        streams: Any = world._streams.get(self._channel.node.name, {})
        streams.pop(self, None)
        if self._task is not None and self._life is not None and not self.is_mute:
            delay = world.network.delay()
            world.timeline.after(delay, self._life.loop, _cancel, self._task)

    def _break(self, why: str = "Socket closed") -> None:
        if self._inbox.close(_error(grpc.StatusCode.UNAVAILABLE, why)):
            self._channel.forget(self)

    # --- at the node --------------------------------------------------------------------------

    def _serve(self, life: Life, request: Any) -> None:
        if life.is_shut:
            self._later(self._break)
            return
        door = ClusterDoor(life.replica.services.cluster)
        self._task = life.loop.create_task(door.watch_leader(request, self))
        life.streams[self._task] = None
        self._task.add_done_callback(lambda done: self._served(life, done))

    def _served(self, life: Life, done: asyncio.Task[None]) -> None:
        life.streams.pop(done, None)
        if done.cancelled() or isinstance(error := done.exception(), ActorDied):
            return
        if error is not None and not isinstance(error, BrokerError):
            raise Defect("service", f"{self._channel.node.name}, a watch: {error!r}") from error
        self._later(self._break)

    async def write(self, view: Any) -> None:
        """The node says it."""
        network, channel = self._channel.network, self._channel
        lost = network.world.network.weather.loss * LOSS_SHARE
        is_cut = network.is_deaf(channel.process, channel.node.name)
        if is_cut or (lost and network.chance.random() < lost):
            self._go_mute()
        if not self.is_mute:
            self._later(self._inbox.put, view)

    def break_off(self) -> None:
        """The node's process is gone."""
        if not self.is_mute:
            self._later(self._break)

    def _go_mute(self) -> None:
        if not self.is_mute:
            self.is_mute = True
            timeline = self._channel.network.world.timeline
            timeline.after(KEEPALIVE_US, self._channel.process, self._break)

    def _later(self, call: Callable[..., None], *what: object) -> None:
        world = self._channel.network.world
        self._arrives_us = max(self._arrives_us, world.now_us + world.network.delay())
        world.timeline.at(self._arrives_us, self._channel.process, call, *what)


class Attending:
    """A stream of members."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inbox = Inbox(channel.process)
        channel.note(self)
        network, process, node = channel.network, channel.process, channel.node
        self._stream = network.world.open_stream(
            process.name,
            node.name,
            self._inbox.put,
            self._on_end,
            is_cut=lambda: network.is_deaf(process, node.name),
            loop=process,
        )

    async def write(self, request: Any) -> None:
        """Says it; nothing tells whether it arrives."""
        if self._inbox.end is not None:
            raise asyncio.InvalidStateError("RPC already finished.")
        self._stream.say(type(request).FromString(request.SerializeToString()))

    async def read(self) -> Any:
        """The next answer."""
        try:
            return await self._inbox.next()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def cancel(self) -> bool:
        """Hangs up; its reader sees it cancelled."""
        if self._inbox.close(asyncio.CancelledError()):
            self._channel.forget(self)
            if self._channel.process.alive:
                self._stream.hang_up()
        return True

    def _on_end(self, error: epb.Error | None) -> None:
        end = _error(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if error is not None:
            end = _rpc_error(CallFailed(error, may_have_happened=False), ())
        if self._inbox.close(end):
            self._channel.forget(self)


def _is_defect(done: asyncio.Task[object]) -> bool:
    """Whether it ended as no call may."""
    error = None if done.cancelled() else done.exception()
    return error is not None and not isinstance(error, BrokerError | ActorDied)


def _heed(done: asyncio.Task[object]) -> None:
    """Raises what no call may end with."""
    if _is_defect(done):
        done.result()


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _cancel(task: asyncio.Task[Any]) -> None:
    if not task.done():
        task.cancel()


def _error(code: grpc.StatusCode, details: str, trailing: Any = ()) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(*trailing), details, None)


def _rpc_error(failure: CallFailed, answered: Any) -> AioRpcError:
    """What gRPC makes of it."""
    if failure.error is None:
        details = "Socket closed" if failure.may_have_happened else NEVER_SENT
        return _error(grpc.StatusCode.UNAVAILABLE, details)
    code = grpc.StatusCode.UNKNOWN
    with suppress(KeyError, ValueError):
        code = STATUS[ErrorCode[epb.ErrorCode.Name(failure.error.code)]]
    trailing = (*in_metadata(failure.error), *answered)
    return _error(code, failure.error.message, trailing)
