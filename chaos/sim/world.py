"""The simulated world: machines, network, clients and checks on one timeline.

This owns how calls travel between clients and nodes, who is told when a process dies, and the
transcript. It decides nothing about faults (`chaos.sim.nemesis`) or load (`chaos.sim.clients`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import Message

from broker.doors.grpc.errors import wire_error
from broker.errors import BrokerError
from chaos.checkers.history import History
from chaos.errors import CallFailed
from chaos.forming import form_disks
from chaos.sim.ages import Ages
from chaos.sim.archive import Archive
from chaos.sim.defect import Defect
from chaos.sim.denials import Denials
from chaos.sim.door_sizes import check_request
from chaos.sim.endings import check_internal
from chaos.sim.group_watch import GroupWatch
from chaos.sim.loop import WALL_START_MS, ProcessLoop
from chaos.sim.machine import Life, Machine, Told
from chaos.sim.members import Crew
from chaos.sim.network import Network
from chaos.sim.node import WRITE_UNIT, SimNode
from chaos.sim.plan import Plan
from chaos.sim.restored import check_start
from chaos.sim.rpc_limits import check_error, check_message
from chaos.sim.snapshots import Snapshots
from chaos.sim.streams import MemberStream, OnEnd, OnResponse
from chaos.sim.timeline import Actor, ActorDied, Timeline
from chaos.sim.watch import Watch
from dledger.core.types import NodeId, Role
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2 as epb
from dledger.wire.raft_pb2 import PeerMessage

CALL_TIMEOUT_US = 700_000
REOPEN_US = 1_000
REFUSED_US = 1_000  # until a connection to a dead process is refused
MAX_TRANSCRIPT = 5_000
NOBODY = Actor("world", 0)


class Line(NamedTuple):
    """One line of the transcript."""

    time_us: int
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.time_us / 1e6:10.6f}  {self.who:<12} {self.what}"


class World:
    """Everything there is; see the module."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.timeline = Timeline()
        self.members = [NodeId(f"n{i + 1}") for i in range(plan.machines)]
        chance = plan.random("network")
        self.network = Network(self.timeline, chance, plan.weather, self.members)
        self.nodes = {
            name: SimNode(self, name, number, plan) for number, name in enumerate(self.members)
        }
        # All disks are there and nothing has happened yet: forming itself is not under test here.
        founders = self.members[: plan.nodes]
        form_disks(
            [self.nodes[name].config for name in founders],
            lambda name: self.nodes[NodeId(name)].disk,
            lambda name: self.nodes[NodeId(name)].machinery,
        )
        for node in self.nodes.values():
            node.disk.kill()
        self.watch = Watch(list(self.nodes.values()), plan.tuning)
        ages = Ages(plan.tuning.retention_age_ms) if plan.goes_by_age_alone else None
        self.archive = self.watch.archive = Archive(ages) if plan.moves_start else None
        self.snapshots = Snapshots(plan.random("snapshots"), self.archive)
        self.clients = ProcessLoop(self.timeline, "clients", 99)
        self.history = History()
        self.denials = Denials()
        self.client_cuts: set[tuple[str, NodeId]] = set()
        self.transcript: deque[Line] = deque(maxlen=MAX_TRANSCRIPT)
        self._led: dict[NodeId, int] = {}  # the last term that each led
        self._chance = plan.random("calls")
        self._open_calls: dict[NodeId, dict[asyncio.Future[Any], None]] = {}
        self._deadlines: deque[tuple[int, asyncio.Future[Any]]] = deque()  # of calls, in order
        self._streams: dict[NodeId, dict[MemberStream, None]] = {}
        self.crews: dict[str, Crew] = {}
        self.members_of_crews: list[str] = []
        self.group_watch = GroupWatch(self.crews)
        self._by_actor = {node.number + 1: node for node in self.nodes.values()}
        self.timeline.after_event = self._after_event

    @property
    def now_us(self) -> int:
        return self.timeline.now

    @property
    def log_behind_us(self) -> int:
        lives = [node.life for node in self.nodes.values() if node.life is not None]
        times_ms = [life.replica.machine.append_time_ms for life in lives]
        latest_ms = max(times_ms, default=0) or WALL_START_MS
        return max(0, self.now_us - (latest_ms - WALL_START_MS) * 1000)

    @property
    def committed(self) -> int:
        return self.watch.committed

    def log(self, who: str, what: str) -> None:
        """A line of the transcript; it is part of the trace."""
        self.timeline.note(what.encode())
        self.transcript.append(Line(self.timeline.now, who, what))

    def start(self) -> None:
        """Every node boots, a little apart."""
        for position, node in enumerate(self.nodes.values()):
            self.timeline.at(1_000 * position, NOBODY, node.boot)

    # --- what nodes tell ---------------------------------------------------------------------

    def on_boot(self, node: SimNode) -> None:
        check_start(node, self.archive)
        self.watch.on_boot(node)
        self._open_calls[node.name] = {}

    def on_sent(self, node: Machine, peer: NodeId, message: PeerMessage) -> None:
        self.watch.on_sent(node, peer, message)

    def is_rotten_elsewhere(self, node: Machine) -> bool:
        """Whether the log of another one has rotted, too."""
        return any(each.has_log_rot for each in self.nodes.values() if each is not node)

    def was_altered(self, name: NodeId) -> bool:
        """Whether that member's log was ever another one than the group's."""
        node = self.nodes[name]
        return bool(node.altered_from or node.lost_altered)

    def reopen(self, node: SimNode) -> None:
        """The process goes on, with what it has got."""
        self.timeline.after(REOPEN_US, NOBODY, node.boot)

    def on_stopped(self, node: SimNode) -> None:
        """Its sockets close: peers and callers notice, unless something is in between."""
        self.watch.on_stopped(node)
        for future in self._open_calls.pop(node.name, {}):
            failure = CallFailed(None, may_have_happened=True)
            self.timeline.after(self.network.delay(), self.clients, _fail, future, failure)
        for stream in self._streams.pop(node.name, {}):
            stream.break_off()
        self.network.on_process_gone(node.name)

    def _after_event(self, actor: Actor) -> None:
        node = self._by_actor.get(actor.number)
        if node is not None and node.disk.is_off and (node.life or node.refill):
            node.die_midway()
            return
        if actor.crashes:
            error = actor.crashes[0]
            if isinstance(error, Defect):
                raise error
            raise Defect("crash", f"{actor.name}: {error!r}") from error
        if node is not None:
            if node.life is not None and node.life.replica.failure is not None:
                node.judge(node.life)
            self._tell_of_leadership(node)
            if node.life is not None:
                self.denials.on_event(node.life)
            if node.rot:
                node.note_repairs()
            self.watch.after_event(node)
            if self.crews:
                self.group_watch.after_event(node, self.now_us)
            if self.archive is not None and node.is_running and node.life is not None:
                self.archive.after_event(node, node.life)
            self.snapshots.after_event(node)

    def _tell_of_leadership(self, node: SimNode) -> None:
        """Who leads when is what one looks for in a transcript, after the faults."""
        if node.life is None or node.life.core.role is not Role.LEADER:
            return
        term = node.life.core.term
        if self._led.get(node.name) != term:
            self._led[node.name] = term
            self.log(node.name, f"leads term {term}")

    def open_stream(
        self,
        client: str,
        node: NodeId,
        on_response: OnResponse,
        on_end: OnEnd,
        *,
        is_cut: Callable[[], bool] | None = None,
        loop: ProcessLoop | None = None,
    ) -> MemberStream:
        """A client's stream of members to a node. `loop`: of a process of its own."""

        def is_client_cut() -> bool:
            return (client, node) in self.client_cuts

        ends = on_response, on_end, loop or self.clients
        target, cut = self.nodes[node], is_cut or is_client_cut
        stream = MemberStream(self, self._chance, target, cut, *ends)
        self._streams.setdefault(node, {})[stream] = None
        return stream

    # --- calls -------------------------------------------------------------------------------

    def call(self, client: str, node: NodeId, method: str, request: object) -> asyncio.Future[Any]:
        """A client calls a node; the future gets the answer, or a CallFailed."""
        future: asyncio.Future[Any] = self.clients.create_future()
        target = self.nodes[node]
        timeline = self.timeline
        asked = request.request if isinstance(request, Told) else request
        check_message(client, asked)
        check_request(client, asked)
        if (client, node) in self.client_cuts:
            self._expire_later(future)
        elif target.life is None:
            refused = CallFailed(None, may_have_happened=False)
            timeline.after(REFUSED_US, self.clients, _fail, future, refused)
        else:
            life = target.life
            self._open_calls[node][future] = None
            timeline.after(
                self.network.delay(), life.loop, self._serve, target, life, method, request, future
            )
            self._expire_later(future)
        return future

    def _expire_later(self, future: asyncio.Future[Any]) -> None:
        """The call fails if it has no answer by its deadline. All calls have the same time, so
        one event at a time, for the oldest, is enough."""
        deadline = self.timeline.now + CALL_TIMEOUT_US
        if not self._deadlines:
            self.timeline.at(deadline, self.clients, self._expire)
        self._deadlines.append((deadline, future))

    def _expire(self) -> None:
        deadlines, now = self._deadlines, self.timeline.now
        while deadlines and (deadlines[0][0] <= now or deadlines[0][1].done()):
            _fail(deadlines.popleft()[1], CallFailed(None, may_have_happened=True))
        if deadlines:
            self.timeline.at(deadlines[0][0], self.clients, self._expire)

    def _serve(
        self, node: SimNode, life: Life, method: str, request: object, future: asyncio.Future[Any]
    ) -> None:
        if life.is_shut:
            self._open_calls.get(node.name, {}).pop(future, None)
            self._answer(_fail, future, CallFailed(None, may_have_happened=False))
            return
        # Units are written past the services, which alone wait for a majority.
        term = 0 if method == WRITE_UNIT else self.denials.term_of_before(life)
        task = life.loop.create_task(node.serve(method, request))
        task.add_done_callback(lambda done: self._respond(node, life, term, future, done))

    def _respond(
        self,
        node: SimNode,
        life: Life,
        term: int,
        future: asyncio.Future[Any],
        done: asyncio.Task[object],
    ) -> None:
        """`term`: of the node, if it was one of before as the call reached it; else 0."""
        self._open_calls.get(node.name, {}).pop(future, None)
        if done.cancelled() or node.life is not life:
            return
        error = done.exception()
        if isinstance(error, ActorDied):
            return
        if isinstance(error, BrokerError):
            wire = wire_error(error.failure)
            check_error(node.name, wire)
            check_internal(node, wire)
            self.denials.check(node.name, life, term, wire)
            failure = CallFailed(wire, may_have_happened=wire.outcome == epb.MAY_HAVE_HAPPENED)
            self._answer(_fail, future, failure)
        elif error is not None:
            if isinstance(error, Defect):
                raise error
            raise Defect("service", f"{node.name}: {error!r}") from error
        else:
            answer = done.result()
            check_message(node.name, answer)
            if isinstance(answer, Message):
                check_internal(node, answer)
                self.denials.check(node.name, life, term, answer)
            if isinstance(answer, pb.SendResponse):
                for result in answer.results:
                    if not result.HasField("error") and not result.place_forgotten:
                        self.watch.on_answered(node, result.base_physical_offset)
            self._answer(_resolve, future, answer)

    def _answer(
        self,
        how: Callable[[asyncio.Future[Any], Any], None],
        future: asyncio.Future[Any],
        what: object,
    ) -> None:
        weather = self.network.weather
        if weather.loss and self._chance.random() < weather.loss:
            return  # the time-out speaks
        self.timeline.after(self.network.delay(), self.clients, how, future, what)


def _fail(future: asyncio.Future[Any], failure: CallFailed) -> None:
    if not future.done():
        future.set_exception(failure)


def _resolve(future: asyncio.Future[Any], answer: object) -> None:
    if not future.done():
        future.set_result(answer)
