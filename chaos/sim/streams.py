"""Streams of members between simulated clients and nodes: the door's own handler on one end.

What is said arrives in order, some time later. A stream ends on both sides when either hangs up or
its process is gone. Where the network loses something, or a client is cut off, a stream goes mute
in both directions and nobody is told: each end has to find that out by itself, as with any
connection. This decides nothing about when that happens (`chaos.sim.network`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Protocol

from broker.doors.grpc.errors import wire_error
from broker.doors.grpc.groups import GroupsDoor
from broker.errors import BrokerError
from chaos.sim.defect import Defect
from chaos.sim.door_sizes import check_request
from chaos.sim.endings import check_internal
from chaos.sim.loop import ProcessLoop
from chaos.sim.machine import Life
from chaos.sim.network import Network
from chaos.sim.node import SimNode
from chaos.sim.rpc_limits import check_error, check_message
from chaos.sim.timeline import Actor, ActorDied, Timeline
from chaos.sim.told_leases import check_gained
from dledger.wire import errors_pb2 as epb
from dledger.wire.groups_pb2 import AttendRequest, AttendResponse

LOSS_SHARE = 0.2  # of what the network loses: a lost packet is sent again, a lost connection isn't
OnResponse = Callable[[AttendResponse], None]
OnEnd = Callable[[epb.Error | None], None]


class Surroundings(Protocol):
    """`chaos.sim.world.World`, as far as a stream needs it."""

    timeline: Timeline
    network: Network

    @property
    def now_us(self) -> int: ...


class MemberStream:
    """A client's end; it is used on the client's loop."""

    def __init__(
        self,
        world: Surroundings,
        chance: Random,
        node: SimNode,
        is_cut: Callable[[], bool],
        on_response: OnResponse,
        on_end: OnEnd,
        loop: ProcessLoop,
    ) -> None:
        self._world = world
        self._loop = loop
        self._chance = chance
        self._is_cut = is_cut
        self._on_response, self._on_end = on_response, on_end
        self.node = node
        self.is_mute = self.is_over = False
        self._said_until = self._told_until = 0  # when what was sent last arrives
        self.life = node.life
        self.groups: dict[int, str] = {}  # by slot, of those that have joined
        self._server: _ServerEnd | None = None
        if self.life is None or self.life.is_shut:
            self._later(self._end, None)
            self.life = None
            return
        self._server = _ServerEnd(self)
        self._carry(self.life.loop, self._serve, self.life)

    # --- the client --------------------------------------------------------------------------

    def say(self, request: AttendRequest) -> bool:
        """Sends it; whether it is on its way."""
        check_message(self._loop.name, request)
        check_request(self._loop.name, request)
        if self.is_over or self._goes_mute() or self._server is None or self.life is None:
            return False
        self._carry(self.life.loop, self._server.receive, request)
        return True

    def hang_up(self) -> None:
        """The client is done with it, or gone."""
        self.is_over = True
        if self._server is not None and self.life is not None and not self.is_mute:
            self._carry(self.life.loop, self._server.hang_up)

    # --- the node ----------------------------------------------------------------------------

    def _serve(self, life: Life) -> None:
        if life.is_shut or self._server is None:
            self._later(self._end, None)
            return
        door = GroupsDoor(life.replica.services)
        task = life.loop.create_task(door.attend(self._server, self._server))
        life.streams[task] = None
        task.add_done_callback(lambda done: self._served(life, done))

    def _served(self, life: Life, done: asyncio.Task[None]) -> None:
        life.streams.pop(done, None)
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, ActorDied):
            return
        if isinstance(error, Defect):
            raise error
        if error is not None and not isinstance(error, BrokerError):
            raise Defect("service", f"{self.node.name}, a stream of members: {error!r}") from error
        wire = wire_error(error.failure) if isinstance(error, BrokerError) else None
        if wire is not None:
            check_error(self.node.name, wire)
            check_internal(self.node, wire)
        if not self.is_mute:
            self._later(self._end, wire)

    def tell(self, response: AttendResponse) -> None:
        """The node sends it."""
        check_message(self.node.name, response)
        check_internal(self.node, response)
        if response.HasField("assignment") and self.life is not None:
            told, machine = response.assignment, self.life.replica.machine
            check_gained(self.node.name, machine, self.groups[told.slot], told)
        if not self._goes_mute():
            self._later(self._receive, response)

    def break_off(self) -> None:
        """The node's process is gone."""
        if not self.is_mute:
            self._later(self._end, None)

    def _receive(self, response: AttendResponse) -> None:
        if not self.is_over:
            self._on_response(response)

    def _end(self, error: epb.Error | None) -> None:
        if not self.is_over:
            self.is_over = True
            self._on_end(error)

    # --- what is in between ------------------------------------------------------------------

    def _goes_mute(self) -> bool:
        loss = self._world.network.weather.loss * LOSS_SHARE
        if self._is_cut() or (loss and self._chance.random() < loss):
            self.is_mute = True
        return self.is_mute

    def _carry(self, loop: Actor, call: Callable[..., None], *what: object) -> None:
        world = self._world
        self._said_until = max(self._said_until, world.now_us + world.network.delay())
        world.timeline.at(self._said_until, loop, call, *what)

    def _later(self, call: Callable[..., None], *what: object) -> None:
        world = self._world
        self._told_until = max(self._told_until, world.now_us + world.network.delay())
        world.timeline.at(self._told_until, self._loop, call, *what)


class _ServerEnd:
    """What the door's handler is given: requests to come, and a context to write to."""

    def __init__(self, stream: MemberStream) -> None:
        self._stream = stream
        self._requests: deque[AttendRequest | None] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def receive(self, request: AttendRequest | None) -> None:
        if request is not None and request.HasField("join"):
            self._stream.groups[request.join.slot] = request.join.group
        self._requests.append(request)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def hang_up(self) -> None:
        self.receive(None)

    def __aiter__(self) -> AsyncIterator[AttendRequest]:
        return self

    async def __anext__(self) -> AttendRequest:
        while not self._requests:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        request = self._requests.popleft()
        if request is None:
            raise StopAsyncIteration
        return request

    async def write(self, message: AttendResponse) -> None:
        self._stream.tell(message)

    def add_done_callback(self, callback: Callable[[object], None], /) -> None:
        raise Defect("service", "a stream isn't accounted for")
