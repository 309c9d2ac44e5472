"""A schedule of its own: a majority is lost for ever, a survivor is recovered by force, and those
that were given up come back, with clients (ADR 52).

    load ─▶ struck: everybody is down ─▶ the best survivor recovered, in several tries if its power
    fails ─▶ it serves ─▶ the others run again, cut off from it or not ─▶ peace

It isn't a fault among others: what the rest of the simulator holds to be lost for good is what this
gives up. So invariants are watched for each epoch by itself, and what lies between the two is this
module's to check:

- no client that was served in an epoch is served in an older one afterwards, and nobody by a node
  that has heard of a newer one;
- within an epoch everything that was acknowledged is kept, in order and once;
- of the epoch before, all that the survivor had;
- who was given up and reaches somebody of after is out of service, for good;
- nobody is served in the epoch after while a session of a consumer group from before is left,
  whatever level the group had come to by then.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from broker.errors import BrokerError
from broker.state.topics import TopicRef
from chaos.errors import CallFailed
from chaos.sim.defect import Defect
from chaos.sim.disk import MachineDied
from chaos.sim.drawing.plans import draw_plan
from chaos.sim.machine import Machine, Told
from chaos.sim.machine_config import DATA, GROUP
from chaos.sim.network import between
from chaos.sim.node import SimNode
from chaos.sim.plan import Plan
from chaos.sim.quiet import quiet_logs
from chaos.sim.snapshots import Snapshots
from chaos.sim.timeline import Livelock
from chaos.sim.watch import Watch
from chaos.sim.world import World
from dledger.client.group_epoch import epoch_in
from dledger.client.leader_view import LeaderBoard, from_wire
from dledger.core.types import NodeId
from dledger.level import GROUP_EPOCH_LEVEL, GROUPS_LEVEL
from dledger.records.record import RecordTemplate, decode_records
from dledger.wire import broker_pb2 as pb
from dledger.wire.commands_pb2 import Command, GroupSettings, JoinGroupCommand
from dledger.wire.raft_pb2 import PeerMessage
from store.directory import Identity
from store.errors import StoreError
from store.out_of_service import FILE_NAME as OUT_OF_SERVICE
from store.starting.opening import Site, open_member
from store.starting.recovering import Survivor, force, survivor_of
from store.worker import InlineWorker

TOPIC: Final = "orders"
CLIENTS: Final = 3
PAUSE_S: Final = 0.02  # of a client, on average, from one send to the next
STEP_US: Final = 1_000_000
PEACE_US: Final = 20_000_000
BORN: Final = ("10.0.1.1", 9000)


@dataclass(frozen=True, slots=True)
class Failure:
    """What broke, and what it said."""

    check: str
    detail: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave; numbers of acknowledged messages by epoch, and of nodes out of service."""

    failure: Failure | None
    acknowledged: tuple[int, int] = (0, 0)
    served_by_old: int = 0  # after the recovery, to clients that hadn't heard of it
    tries: int = 0
    out: int = 0
    sessions: int = 0  # of consumer groups, that the survivor had when it was struck


@dataclass(slots=True)
class _Tally:
    """What the clients were told; shared by them."""

    stopping: bool = False
    sent: int = 0
    recovered: bool = False
    served_by_old: int = 0
    acknowledged: tuple[list[tuple[bytes, int]], list[tuple[bytes, int]]] = field(
        default_factory=lambda: ([], [])
    )  # body and queue offset, by epoch


class Sender:
    """A client: finds the leader as the product's does, by its own board, and sends."""

    def __init__(self, name: str, world: World, tally: _Tally, chance: Random) -> None:
        self.board = LeaderBoard()
        self._name = name
        self._world = world
        self._tally = tally
        self._chance = chance
        self._served_in = 0

    async def run(self) -> None:
        while not self._tally.stopping:
            await asyncio.sleep(self._chance.expovariate(1 / PAUSE_S))
            await self._look(self._chance.choice(self._world.members))
            target = self.board.serving_address()
            if target is not None and not self._tally.stopping:
                await self._send(NodeId(target))

    async def _look(self, node: NodeId) -> None:
        try:
            view = await self._call(node, "view", None)
        except CallFailed:
            self.board.on_lost(node)
        else:
            self.board.on_view(node, from_wire(view))

    async def _send(self, target: NodeId) -> None:
        tally, epoch = self._tally, self.board.epoch
        body = b"%s-%d" % (self._name.encode(), tally.sent)
        tally.sent += 1
        batch = pb.SendBatch(topic=TOPIC, queue_id=0, count=1, records=_record(body))
        told = Told(epoch.metadata, pb.SendRequest(batches=[batch]))
        try:
            answer = await self._call(target, "send", told)
        except CallFailed:
            self.board.on_lost(target)
            return
        self.board.on_epoch(epoch_in(told.answered))
        if self.board.epoch != epoch or answer.results[0].HasField("error"):
            return  # it may have happened, or not
        if told.was_shut:
            raise Defect("served while shut", f"{target} had heard of a newer epoch")
        self._take(told.served_in, body, answer.results[0].base_queue_offset)

    def _take(self, served_in: int, body: bytes, offset: int) -> None:
        """The client believes that its message is stored."""
        if served_in != self.board.epoch.number or served_in < self._served_in:
            raise Defect(
                "two epochs served",
                f"{self._name} was served in epoch {self._served_in}, knows of "
                f"{self.board.epoch.number}, and is served in {served_in}",
            )
        self._served_in = served_in
        if self._tally.recovered and served_in == 0:
            self._tally.served_by_old += 1
        else:
            self._tally.acknowledged[served_in].append((body, offset))

    async def _call(self, node: NodeId, method: str, request: object) -> Any:
        wrapped = request if isinstance(request, Told) else Told(self.board.epoch.metadata, request)
        return await self._world.call(self._name, node, method, wrapped)


def _record(body: bytes) -> bytes:
    return bytes(RecordTemplate(TOPIC, BORN).encode(0, body, b"", 0))


class _Watches:
    """`chaos.sim.watch.Watch` for two epochs: each node is looked at beside those of its own."""

    def __init__(self, before: Watch, after: Watch, survivor: NodeId) -> None:
        self._before, self._after, self._survivor = before, after, survivor
        before.on_stopped(next(n for n in _nodes_of(before) if n.name == survivor))
        self.checker = after.checker

    def _of(self, node: Machine) -> Watch:
        return self._after if node.name == self._survivor else self._before

    def after_event(self, node: Machine) -> None:
        _check_sessions(node)
        self._of(node).after_event(node)

    def on_stopped(self, node: Machine) -> None:
        self._of(node).on_stopped(node)

    def on_boot(self, node: Machine) -> None:
        self._of(node).on_boot(node)

    def on_sent(self, node: Machine, to: str, message: PeerMessage) -> None:
        self._of(node).on_sent(node, to, message)

    def on_answered(self, node: Machine, physical_offset: int) -> None:
        self._of(node).on_answered(node, physical_offset)


class _SnapshotLooks:
    """`chaos.sim.snapshots.Snapshots`, in the same way."""

    def __init__(self, before: Snapshots, after: Snapshots, survivor: NodeId) -> None:
        self._before, self._after, self._survivor = before, after, survivor

    def after_event(self, node: SimNode) -> None:
        (self._after if node.name == self._survivor else self._before).after_event(node)


def _nodes_of(watch: Watch) -> list[Machine]:
    return [picture._node for picture in watch.pictures.values()]


class LastResort:
    """One run of the schedule."""

    def __init__(self, seed: int) -> None:
        chance = self._chance = Random(f"{seed}/last-resort")
        drawn = draw_plan(seed)
        plan = Plan(
            seed,
            nodes=chance.choice((2, 3, 3, 5)),
            weather=drawn.weather,
            tuning=replace(
                drawn.tuning,
                flush="sync",
                retention_age_ms=0,
                retention_bytes=0,
                retention_disk_percent=0,
            ),
        )
        self._plan = plan
        self.world = World(plan)
        self.tally = _Tally()
        self.senders = [
            Sender(f"sender-{i}", self.world, self.tally, plan.random(f"sender-{i}"))
            for i in range(CLIENTS)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self.tries = 0
        self.out = 0
        self.sessions = 0
        level = plan.random("level-before").choice((0, GROUPS_LEVEL, GROUP_EPOCH_LEVEL))
        for node in self.world.nodes.values():
            node.older_level = level

    def to_the_end(self) -> Failure | None:
        """Every phase, until something breaks."""
        try:
            self._run()
        except (Defect, Livelock) as error:
            check = error.check if isinstance(error, Defect) else "livelock"
            return Failure(check, str(error))
        finally:
            for node in self.world.nodes.values():
                if node.life is not None:
                    node.life.loop.die()
            self.world.clients.die()
        return None

    def _run(self) -> None:
        world, chance = self.world, self._chance
        world.start()
        self._spawn(self._create_topic())
        self._until(lambda: all(task.done() for task in self._tasks), "nobody leads")
        for sender in self.senders:
            self._spawn(sender.run())
        self._pass(chance.randrange(STEP_US // 4, 2 * STEP_US))
        self._join_members()
        survivor = self._strike()
        kept = self._recover(survivor)
        self._return(survivor)
        self._check(survivor, kept)

    # --- phases -------------------------------------------------------------------------------

    def _join_members(self) -> None:
        """Somebody has a session or two, if a leader takes them now."""
        for number in range(2):
            leader = next((n for n in self.world.nodes.values() if self._is_serving(n)), None)
            if leader is not None and leader.life is not None:
                self.world.timeline.after(0, leader.life.loop, _join, leader, b"member-%d" % number)
            self._pass(STEP_US // 5)
        self.sessions = max(
            len(node.life.replica.machine.groups.sessions())
            for node in self.world.nodes.values()
            if node.life is not None
        )

    def _strike(self) -> SimNode:
        """Everybody is down, one after the other, and of a majority the disks are given up for
        lost; the survivor with the longest log."""
        world, chance = self.world, self._chance
        for node in chance.sample(list(world.nodes.values()), len(world.nodes)):
            if chance.random() < 0.5:
                node.cut_power()
            else:
                node.kill()
            self._pass(chance.randrange(0, STEP_US // 3))
        left = (len(world.nodes) - 1) // 2 or 1
        found = chance.sample(list(world.nodes.values()), left)
        ends = {node.name: self._examine(node).end for node in found}
        survivor = max(found, key=lambda node: (ends[node.name], node.name))
        for node in world.nodes.values():
            node.was_given_up = node is not survivor
            node.older_level = 0  # the program at hand is the one that recovers
        return survivor

    def _site(self, node: SimNode) -> Site:
        node.disk.power_on()
        config = node.config
        identity = Identity(GROUP, node.name, config.store.segment_size_bytes)
        options = node.machinery.log_options
        if options is None:
            raise AssertionError("a simulated node has options of its own")
        return Site(DATA, identity, node.disk, options, workers=InlineWorker)

    def _examine(self, node: SimNode) -> Survivor:
        """As it is found, and nothing runs on it afterwards."""
        site = self._site(node)
        opened = open_member(site)
        try:
            return survivor_of(site, opened)
        finally:
            node.disk.kill()
            node.disk.power_on()

    def _agreed(self, node: SimNode) -> int:
        """The last entry of the survivor's that was committed, for all that anybody knew: what
        comes behind it in its log may stand in the place of others that were."""
        site, known = self._site(node), self.world.watch.checker.committed
        opened = open_member(site)
        try:
            log = opened.log
            for index in range(min(log.last_index, len(known)), 0, -1):
                if log.digest_at(index) == known[index - 1]:
                    return index
            return 0
        finally:
            node.disk.kill()
            node.disk.power_on()

    def _recover(self, node: SimNode) -> int:
        """The survivor's group goes on from it; up to which entry its log was the group's. The
        power may fail in the midst of it: then the whole of it is done, or nothing."""
        world, chance = self.world, self._chance
        before, agreed = self._examine(node), self._agreed(node)
        known = world.watch.checker.committed
        while True:
            self.tries += 1
            shown = self._examine(node)
            if shown.is_alone and shown.recovery is not None:
                break
            if shown.configuration != before.configuration or shown.end != before.end:
                raise Defect("half recovered", f"{node.name}: {shown}")
            if chance.random() < 0.6:
                node.disk.cut_power_in(chance.randrange(1, 60))
            try:
                done = force(
                    self._site(node),
                    shown,
                    recovery_id=lambda: chance.randbytes(16),
                    now_ms=lambda: world.now_us // 1000,
                )
            except (MachineDied, StoreError, OSError) as error:
                world.log(node.name, f"isn't recovered: {error!r}")
                if not node.disk.is_off:
                    node.disk.kill()
                    node.disk.power_on()
            else:
                if (done.index, done.survivor.end) != (before.last_index + 1, before.end):
                    raise Defect("recovered elsewhere", f"{node.name}: {done}")
                world.log(node.name, f"recovered by entry {done.index} of term {done.term}")
                node.disk.kill()
            if node.disk.is_off:
                node.disk.power_off(chance)
        node.disk.kill()
        node.disk.power_on()
        after = Watch([node], self._plan.tuning)
        after.checker.committed = list(known[:agreed])
        world.watch = _Watches(world.watch, after, node.name)  # type: ignore[assignment]
        looks = Snapshots(self._plan.random("snapshots-after"), None)
        world.snapshots = _SnapshotLooks(  # type: ignore[assignment]
            world.snapshots, looks, node.name
        )
        self.tally.recovered = True
        return agreed

    def _return(self, survivor: SimNode) -> None:
        """The survivor runs; the others come back, reach it or not, are killed now and then, and in
        the end there is peace."""
        world, chance = self.world, self._chance
        others = [node for node in world.nodes.values() if node is not survivor]
        if chance.random() < 0.7:
            links = between([survivor.name], [node.name for node in others])
            world.network.cut.update(links)
        order = [survivor, *others] if chance.random() < 0.7 else [*others, survivor]
        for node in order:
            node.boot()
            self._pass(chance.randrange(0, STEP_US))
        for _ in range(chance.randrange(4)):
            node = chance.choice(list(world.nodes.values()))
            node.kill()
            self._pass(chance.randrange(0, STEP_US // 2))
            node.boot()
        self._pass(chance.randrange(0, 3 * STEP_US))
        world.network.heal(world.plan.weather)
        world.network.cut.clear()
        self._until(lambda: self._is_serving(survivor), "the survivor doesn't serve")
        self._until(
            lambda: all(self._is_out(node) for node in others), "who was given up takes part"
        )
        wanted = len(self.tally.acknowledged[1]) + 5
        self._until(lambda: len(self.tally.acknowledged[1]) >= wanted, "nobody is served")
        self.tally.stopping = True
        self._until(lambda: all(task.done() for task in self._tasks), "a client doesn't end")
        self.out = len(others)

    def _is_serving(self, node: SimNode) -> bool:
        return node.life is not None and node.life.replica.leadership.serving

    def _is_out(self, node: SimNode) -> bool:
        return node.life is None and node.disk.has(DATA / OUT_OF_SERVICE)

    # --- what has to be so --------------------------------------------------------------------

    def _check(self, survivor: SimNode, kept: int) -> None:
        """What the survivor's log holds of what clients believe to be stored."""
        life = survivor.life
        if life is None:
            raise Defect("survivor", f"{survivor.name} is down")
        reader, log = life.replica.reader, life.replica.log
        topic = life.replica.machine.topics.get(TOPIC)
        if topic is None:
            if self.tally.acknowledged[1]:
                raise Defect("topic lost", "of what was acknowledged since")
            return
        end = topic.next_offsets[0]
        bodies: list[bytes] = []
        ends: list[int] = []
        while len(bodies) < end:
            found = reader.pull(TopicRef(TOPIC), 0, len(bodies), 1_000, 1 << 20)
            for record in decode_records(found.records):
                bodies.append(record.body)
                ends.append(record.physical_offset)
        kept_end = log.position_of(kept) if kept else 0
        for served_in, acknowledged in enumerate(self.tally.acknowledged):
            for body, offset in acknowledged:
                is_there = offset < len(bodies) and bodies[offset] == body
                may_be_lost = served_in == 0 and (offset >= len(ends) or ends[offset] > kept_end)
                if not is_there and not may_be_lost:
                    raise Defect("lost", f"{body!r} at {offset}, acknowledged in epoch {served_in}")
        if len(set(bodies)) != len(bodies):
            raise Defect("twice", "a message is there twice")

    # --- how it runs --------------------------------------------------------------------------

    async def _create_topic(self) -> None:
        request = pb.CreateTopicRequest(name=TOPIC, queue_count=1)
        chance = self._plan.random("creator")
        while True:
            await asyncio.sleep(0.1)
            node = chance.choice(self.world.members)
            try:
                await self.world.call("creator", node, "create_topic", request)
            except CallFailed as failure:
                if failure.error is not None and "exists" in failure.error.message:
                    return
            else:
                return

    def _spawn(self, body: Any) -> None:
        timeline, loop = self.world.timeline, self.world.clients
        timeline.switch(loop)
        task = loop.create_task(body)
        task.add_done_callback(_raise_its_error)
        self._tasks.append(task)
        loop.leave()
        timeline.switch(None)

    def _pass(self, time_us: int) -> None:
        self.world.timeline.run(self.world.now_us + time_us)

    def _until(self, holds: Any, what: str) -> None:
        world = self.world
        if not world.timeline.run(world.now_us + PEACE_US, holds):
            states = ", ".join(
                f"{node.name}: {'down' if node.life is None else node.life.core.role.value}"
                for node in world.nodes.values()
            )
            raise Defect("no progress", f"{what}; {states}")


def _check_sessions(node: Machine) -> None:
    """Whoever serves in an epoch has no session from before it."""
    if node.life is None or not node.life.replica.leadership.serving:
        return
    began = node.life.core.configuration.epoch.last
    sessions = node.life.replica.machine.groups.sessions()
    if began is not None and any(each < began.index for each in sessions):
        raise Defect("session of before", f"{node.name} serves, and {sessions} aren't over")


def _join(leader: SimNode, member: bytes) -> None:
    """A member of a consumer group asks; a refusal is fine."""
    if leader.life is None:
        return
    settings = GroupSettings(version=1, strategy="STICKY", topics=[TOPIC])
    wish = JoinGroupCommand(group="g", member=member.decode(), token=member, settings=settings)
    with suppress(BrokerError):
        leader.life.replica.appender.submit(Command(join_group=wish))


def _raise_its_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        raise error if isinstance(error, Defect) else Defect("client", repr(error))


def run_last_resort(seed: int) -> Outcome:
    """The schedule of `seed`."""
    with quiet_logs():
        run = LastResort(seed)
        failure = run.to_the_end()
    before, after = run.tally.acknowledged
    served = (len(before), len(after))
    return Outcome(failure, served, run.tally.served_by_old, run.tries, run.out, run.sessions)
