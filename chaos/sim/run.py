"""One run from one plan: load under faults, then peace, progress, and a last look at everything.

This owns the two phases. In the first, safety is watched after every event. Then all faults stop,
and the group must come to rest within a bound: a leader serves, every batch under way is
answered, every node that can run has applied everything. At the end the history is checked for
anomalies and the replicas are compared byte for byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from broker.state.topics import TopicRef
from chaos.checkers.anomalies import find_anomalies
from chaos.checkers.linearizability import check_linearizability
from chaos.sim.clients import Administrator, Consumer, Doubter, Shared
from chaos.sim.defect import Defect
from chaos.sim.failing import FailingCrew, FailingMember, check_failed, has_moved_on
from chaos.sim.filtered import drawn, wanted_offsets
from chaos.sim.gatekeeper import Gatekeeper
from chaos.sim.keyed import (
    GROUP,
    Book,
    KeyedCrew,
    KeyedMember,
    KeyedSender,
    Resizer,
    check_keyed,
    is_through,
)
from chaos.sim.machine import Life
from chaos.sim.members import Crew, Member
from chaos.sim.nemesis import Nemesis
from chaos.sim.node import SimNode
from chaos.sim.one_away import OneAway
from chaos.sim.overseer import Overseer
from chaos.sim.plan import Fault, Plan
from chaos.sim.poppers import Popper, Shop, check_shops
from chaos.sim.producers import LifeSpan, Producer
from chaos.sim.racers import Racer, Track
from chaos.sim.replicas import Models, compare_replicas
from chaos.sim.rot import full_looks, is_unread
from chaos.sim.timeline import Livelock
from chaos.sim.unit_writers import UnitBook, UnitWriter, check_units, committed_frames
from chaos.sim.world import Line, World
from dledger.core.quorum import has_quorum
from dledger.core.types import Configuration
from dledger.level import DELIVERY_LEVEL, GROUPS_LEVEL
from dledger.records.reserved import retry_topic
from dledger.wire import commands_pb2 as cpb

PEACE_US = 15_000_000  # within which the group has to come to rest
LATE_LOOKS = 8  # times as long, at most, for logs that have rotted to be looked at
LEADER_US = 20 * 300_000  # within which somebody leads: twenty of the longest election timeouts
SETTLED_US = 2_000_000  # after which a link that was dead before the peace is known to be
TOLD_US = 1_700_000  # within which what a disk holds is told and written down, by all of all
PREFERRED_US = 15_000_000  # within which a preferred member leads that is well
READ_US = 20_000_000  # within which everything has been read
TOPIC = "orders"
GATEKEEPER_S = 0.6  # between two permissions
OVERSEER_S = 0.8  # between two things that one does
RESIZE_S = 0.5  # between two updates of a topic
KEYED_S = 0.03  # between a sender's messages with keys


@dataclass(frozen=True, slots=True)
class Failure:
    """What broke: which check, what it said, when in virtual time."""

    check: str
    detail: str
    time_us: int


@dataclass(frozen=True, slots=True)
class Report:
    """What one run gave. `cpu_s`, processor seconds, is the only thing in it that isn't
    the same every time."""

    plan: Plan
    failure: Failure | None
    trace: str
    events: int
    checks: int
    simulated_s: float
    cpu_s: float
    operations: int
    acknowledged: int
    committed: int
    leaders: int
    boots: int
    ruined: int
    repaired_bytes: int
    refills: int
    away: tuple[str, ...] | None  # what made it hard when a voter was away; None: none was
    transcript: tuple[Line, ...]


def run_plan(plan: Plan, at_rest: Callable[[World], None] | None = None) -> Report:
    """Runs a plan to its end or to its first failure.

    Args:
        at_rest: is given the world when everything has been checked and the nodes still run.
    """
    started = time.process_time()
    with quiet_logs(), _collecting_garbage_by_hand():
        run = _Run(plan, at_rest)
        failure = run.to_the_end()
    world = run.world
    return Report(
        plan=plan,
        failure=failure,
        trace=world.timeline.trace,
        events=world.timeline.events,
        checks=world.watch.checks,
        simulated_s=world.now_us / 1e6,
        cpu_s=time.process_time() - started,
        operations=len(world.history.operations),
        acknowledged=sum(each.is_ok for each in world.history.operations),
        committed=world.watch.committed,
        leaders=len(world.watch.checker.leaders),
        boots=sum(node.boots for node in world.nodes.values()),
        ruined=sum(node.is_ruined for node in world.nodes.values()),
        repaired_bytes=sum(node.repaired_bytes for node in world.nodes.values()),
        refills=sum(node.refills for node in world.nodes.values()),
        away=run.away,
        transcript=tuple(world.transcript),
    )


AnyClient = (
    Producer
    | Consumer
    | Doubter
    | Administrator
    | Racer
    | UnitWriter
    | Member
    | Overseer
    | Popper
    | KeyedSender
    | Resizer
    | Gatekeeper
)


class _Run:
    """A world with its clients and its nemesis, and what is under way."""

    def __init__(self, plan: Plan, at_rest: Callable[[World], None] | None = None) -> None:
        self.plan = plan
        self._at_rest = at_rest
        self.world = World(plan)
        history = self.world.history
        self.shared = Shared(self.world, history, moves_start=plan.moves_start)
        self.nemesis = Nemesis(self.world)
        self.units = UnitBook()
        self.keyed = Book()
        self.shops: dict[str, Shop] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.away: tuple[str, ...] | None = None
        self._others: list[asyncio.Task[None]] = []  # of those that aren't members of groups

    def to_the_end(self) -> Failure | None:
        """Every phase, until something breaks."""
        try:
            self._run()
        except (Defect, Livelock) as error:
            check = error.check if isinstance(error, Defect) else "livelock"
            return Failure(check, str(error), self.world.now_us)
        finally:
            for node in self.world.nodes.values():
                if node.life is not None:
                    node.life.loop.die()
                if node.refill is not None:
                    node.refill.die()
            self.world.clients.die()
        return None

    def _run(self) -> None:
        world, plan = self.world, self.plan
        world.start()
        self._spawn(self._create_topic())
        for client in self._make_clients():
            task = self._spawn(client.run())
            if not isinstance(client, Member | Popper):
                self._others.append(task)
        self.nemesis.schedule(plan.faults)
        self._advance(plan.duration_ms * 1000)
        self.shared.stopping = True
        world.timeline.at(world.now_us, world.clients, self.nemesis.make_peace)
        peace_us = world.now_us
        # Each that failed is told of by itself, and waits for its levels.
        deadline = peace_us + PEACE_US * (2 if plan.failing else 1)
        if not world.timeline.run(world.now_us + LEADER_US, self._somebody_leads):
            raise Defect("no leader", self._what_is_missing())
        self._come_to_rest(deadline)
        self._read_everything()
        self._come_to_rest(world.now_us + PEACE_US)
        self._advance(max(world.now_us, peace_us + SETTLED_US))
        if not world.timeline.run(max(world.now_us + SETTLED_US, deadline), self._links_work):
            raise Defect("mute link", self._what_is_missing())
        # A disk that is refused may have been found, and replaced, only by now.
        self._come_to_rest(world.now_us + PEACE_US)
        self._check_preference()  # before what is told then: that leadership moves is told, too
        self._advance(world.now_us + TOLD_US)
        self.nemesis.copies.check_told()
        if plan.one_away:
            self._take_one_away()
        self._check()
        if self._at_rest is not None:
            self._at_rest(self.world)

    def _take_one_away(self) -> None:
        """Any voter may go; then all is whole again."""
        one_away = OneAway(self.world, self.shared, self._spawn)
        if not one_away.go_through():
            return
        self.away = one_away.found
        self._come_to_rest(self.world.now_us + PEACE_US, "after one was away: ")

    def _check_preference(self) -> None:
        """Who is preferred, votes and is well is handed leadership within its time, and keeps it:
        leadership moves once, and then no more."""
        world = self.world
        if self._is_preference_met():
            return
        before = len(world.watch.checker.leaders)
        if not world.timeline.run(world.now_us + PREFERRED_US, self._is_preference_met):
            raise Defect("not preferred", self._what_is_missing())
        self._advance(world.now_us + PEACE_US)
        moves = len(world.watch.checker.leaders) - before
        if not self._is_preference_met() or moves != 1:
            raise Defect("not preferred", f"leadership moved {moves} times")
        self._come_to_rest(world.now_us + PEACE_US)

    def _is_preference_met(self) -> bool:
        for node in self.world.nodes.values():
            life = node.life
            if life is not None and life.replica.leadership.serving:
                configuration = life.core.configuration
                preferred = configuration.preferred
                is_well = preferred in configuration.voters and preferred in {
                    each.name for each in self.world.nodes.values() if each.is_running
                }
                return not is_well or preferred == node.name
        return False

    def _make_clients(self) -> list[AnyClient]:
        plan, shared = self.plan, self.shared
        count = plan.producers + plan.consumers + bool(plan.consumers) + plan.admin
        interval_s = count / plan.rate
        clients: list[AnyClient] = []
        for i in range(plan.producers):
            name = f"producer-{i}"
            life = _life_span(plan, f"billing-{i}" if i % 2 else "")
            clients.append(Producer(name, shared, plan.random(name), interval_s, life))
        for i in range(plan.consumers):
            name = f"consumer-{i}"
            clients.append(Consumer(name, shared, plan.random(name), interval_s))
        if plan.consumers:
            doubter = Doubter("doubter", shared, plan.random("doubter"), interval_s)
            clients.append(doubter)
        if plan.admin:
            chance = plan.random("administrator")
            clients.append(Administrator("administrator", shared, chance, interval_s))
        clients += self._make_members()
        for i in range(plan.overseers):
            name, groups = f"overseer-{i}", self._moved_crews()
            clients.append(Overseer(name, shared, plan.random(name), groups, OVERSEER_S))
        clients += self._make_poppers()
        clients += self._make_keyed()
        if plan.gatekeeper:
            shared.gates.has_keeper = True
            chance = plan.random("gatekeeper/at work")
            clients.append(Gatekeeper("gatekeeper", shared, chance, GATEKEEPER_S))
        track = Track()
        for i in range(plan.racers):
            name = f"racer-{i}"
            clients.append(Racer(name, shared, plan.random(name), interval_s, track))
        for i in range(plan.unit_writers):
            name = f"units-{i}"
            books = self.units, track
            clients.append(UnitWriter(name, shared, plan.random(name), interval_s, books))
        return clients

    def _make_members(self) -> list[Member]:
        """The crews: the first concurrent, the second orderly; the third member of each is another
        process that says that it is the first."""
        members: list[Member] = []
        for number, size in enumerate(self.plan.crews):
            chance = self.plan.random(f"crew-{number}")
            start = chance.choice((cpb.START_FIRST, cpb.START_LAST))
            strategy = chance.choice(("", "", "AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"))
            tags = drawn(self.plan.random(f"tags of crew-{number}"))
            self.shared.has_tags |= bool(tags)
            crew = Crew(f"crew-{number}", bool(number), start, strategy, tags)
            crew.is_drained = partial(self._is_drained, crew)
            self.world.crews[crew.group] = crew
            for at in range(size):
                name = f"{crew.group}-{at}" if at < 2 else f"{crew.group}-0/twin"
                self.world.members_of_crews.append(name)
                members.append(Member(name, self.shared, self.plan.random(name), crew, self.world))
        return members + self._make_failing()

    def _moved_crews(self) -> list[str]:
        """Those that may be moved back: whoever fails would fail again at the same."""
        crews = self.world.crews.items()
        return [name for name, each in crews if not isinstance(each, FailingCrew | KeyedCrew)]

    def _make_failing(self) -> list[Member]:
        """Crews that fail at messages: the second stays in front of them, in order."""
        found: list[Member] = []
        for group, size in (("failing", self.plan.failing), ("stopping", self.plan.stopping)):
            crew = FailingCrew(group, is_orderly=group == "stopping")
            if size:
                crew.is_drained = partial(self._is_drained, crew)
                self.world.crews[crew.group] = crew
            names = [f"{group}-{at}" for at in range(size)]
            self.world.members_of_crews += names
            shared, plan = self.shared, self.plan
            made = [FailingMember(n, shared, plan.random(n), crew, self.world) for n in names]
            for member in made[1:]:  # one at least works on what has failed
                member.takes_retries = plan.random(f"{member.name}/retries").random() < 0.7
            found += made
        return found

    def _make_keyed(self) -> list[AnyClient]:
        """A topic that grows and shrinks, who sends to it, and a crew that reads it in order."""
        plan, shared, book = self.plan, self.shared, self.keyed
        if not plan.keyed:
            return []
        crew = KeyedCrew(GROUP, is_orderly=True, book=book)
        crew.is_drained = self._is_keyed_drained
        self.world.crews[crew.group] = crew
        members = [f"keyed-{at}" for at in range(plan.keyed)]
        self.world.members_of_crews += members
        senders = [f"keyed-sender-{at}" for at in range(2)]
        return [
            Resizer("resizer", shared, plan.random("resizer"), RESIZE_S, book),
            *(KeyedSender(n, shared, plan.random(n), KEYED_S, book) for n in senders),
            *(KeyedMember(n, shared, plan.random(n), crew, self.world) for n in members),
        ]

    def _is_keyed_drained(self) -> bool:
        if self.shared.pending or not all(task.done() for task in self._others):
            return False
        for node in self.world.nodes.values():
            life = node.life
            if life is not None and life.replica.leadership.serving:
                machine = life.replica.machine
                return machine.level.current < GROUPS_LEVEL or is_through(machine)
        return False

    def _make_poppers(self) -> list[Popper]:
        """The shops: the first of any order, the second FIFO."""
        poppers: list[Popper] = []
        for number, size in enumerate(self.plan.poppers):
            shop = Shop(f"shop-{number}", is_fifo=bool(number))
            shop.is_drained = partial(self._is_through, shop.group, DELIVERY_LEVEL)
            self.shops[shop.group] = shop
            for at in range(size):
                name = f"{shop.group}-{at}"
                poppers.append(Popper(name, self.shared, self.plan.random(name), shop))
        return poppers

    def _is_drained(self, crew: Crew) -> bool:
        is_failing = isinstance(crew, FailingCrew)
        return self._is_through(crew.group, DELIVERY_LEVEL if is_failing else GROUPS_LEVEL)

    def _is_through(self, group: str, level: int) -> bool:
        """Everything has been stored, and the group is through with it."""
        if self.shared.pending or not all(task.done() for task in self._others):
            return False
        for node in self.world.nodes.values():
            life = node.life
            if life is None or not life.replica.leadership.serving:
                continue
            machine = life.replica.machine
            if machine.level.current < level:
                return True  # somebody is away for good, who hasn't said that it knows groups
            own = retry_topic(group)
            if not has_moved_on(machine):
                return False
            for name in (*self.shared.topics, *([own] if own in machine.topics else [])):
                ends = machine.topics[name].next_offsets
                offsets = machine.offsets.of(group, name)
                if any(offsets.get(queue_id, -1) < end for queue_id, end in enumerate(ends)):
                    return False
            return True
        return False

    def _check_crews(self, models: Models) -> None:
        """Every message from where a group was to go on was worked on by somebody since."""
        model = models.leases
        check_failed(self.world.crews.values(), models.retries, self._first_held)
        for crew in self.world.crews.values():
            for (incarnation, queue_id), due in model.due(crew.group).items():
                name, _ = self._queue(incarnation, queue_id)
                done = crew.done.get((name, incarnation, queue_id), {})
                wanted = self._wanted(crew, TopicRef(name, incarnation), queue_id, due.begin)
                missing = [at for at in sorted(wanted) if done.get(at, 0) <= due.since]
                if missing:
                    raise Defect(
                        "message forgotten",
                        f"{crew.group} is through with {name}/{queue_id}, and nobody has seen "
                        f"{missing[:5]} since entry {due.since}",
                    )

    def _first_held(self, topic: str) -> int:
        """Where the first queue of a topic begins, in the member whose log begins last."""
        lives = [node.life for node in self.world.nodes.values() if node.life is not None]
        found = [(life.replica.machine.topics.get(topic), life.replica.queues) for life in lives]
        return max((q.min_offset(t.folder, 0) for t, q in found if t is not None), default=0)

    def _wanted(self, crew: Crew, topic: TopicRef, queue_id: int, start: int) -> set[int]:
        """What the crew has to have worked on."""
        if not crew.tags:
            return set(range(start, self._queue(topic.incarnation, queue_id)[1]))
        node = next(
            node
            for node in self.world.nodes.values()
            if node.life is not None and node.life.replica.leadership.serving
        )
        return wanted_offsets(node, topic, queue_id, start, crew.tags)

    def _queue(self, incarnation: int, queue_id: int) -> tuple[str, int]:
        """The name of the queue's topic, and where the queue ends."""
        lives = [node.life for node in self.world.nodes.values() if node.life is not None]
        topics = [each for life in lives for each in life.replica.machine.topics.values()]
        topic = next(each for each in topics if each.incarnation == incarnation)
        return topic.name, topic.next_offsets[queue_id]

    async def _create_topic(self) -> None:
        creator = Administrator("creator", self.shared, self.plan.random("creator"), 1.0)
        while True:
            await creator.create(TOPIC, self.plan.queues)
            if any(
                topic.name == TOPIC
                for node in self.world.nodes.values()
                if node.life
                for topic in node.life.replica.machine.topics.values()
            ):
                self.shared.topics[TOPIC] = self.plan.queues
                return
            await creator.back_off()

    def _spawn(self, body: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        timeline, loop = self.world.timeline, self.world.clients
        timeline.switch(loop)
        task = loop.create_task(body)
        task.add_done_callback(self._on_end)
        self._tasks.append(task)
        loop.leave()
        timeline.switch(None)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """A client's work is done; an error of it ends the run."""
        if not task.cancelled() and (error := task.exception()):
            raise error if isinstance(error, Defect) else Defect("client", repr(error))

    def _advance(self, until_us: int, *, until_rest: bool = False) -> bool:
        return self.world.timeline.run(until_us, self._has_come_to_rest if until_rest else None)

    # --- peace -------------------------------------------------------------------------------

    def _come_to_rest(self, until_us: int, when: str = "") -> None:
        """The group is at rest: by then, or once everybody has looked at all of a log that has
        rotted. A share of a processor and some seconds between two looks make that a matter of how
        long the log is, and of no fixed time.

        Raises:
            Defect: it isn't.
        """
        before = full_looks(self.world.nodes.values())
        for _ in range(LATE_LOOKS):
            if self._advance(until_us, until_rest=True):
                return
            if not is_unread(self.world.nodes.values(), before):
                break
            until_us = self.world.now_us + PEACE_US
        raise Defect("no progress", when + self._what_is_missing())

    def _has_come_to_rest(self) -> bool:
        if self.shared.pending or not all(task.done() for task in self._tasks):
            return False
        return self._replicas_agree()

    def _somebody_leads(self) -> bool:
        """A majority follows one leader, which has committed in its term."""
        cores = {node.name: node.life.core for node in self.world.nodes.values() if node.life}
        return any(
            core.is_ready_leader
            and has_quorum(
                core.configuration,
                [
                    name
                    for name, each in cores.items()
                    if (each.term, each.leader) == (core.term, core.leader)
                ],
            )
            for core in cores.values()
        )

    def _links_work(self) -> bool:
        """Every node has heard lately of each peer, on the one stream that it dialed."""
        nodes = self.world.nodes
        lives = {name: node.life for name, node in nodes.items() if node.life is not None}
        return all(
            link.connected and life.links.dialed_to(peer) == 1
            for name, life in lives.items()
            for peer, link in life.links.links().items()
            if peer in lives and not self._holds_a_lie(lives[peer], nodes[name])
        )

    def _holds_a_lie(self, life: Life, liar: SimNode) -> bool:
        """Whether a start that never was is held against `liar`, which said that there was one: it
        isn't heard there until its disk is replaced."""
        known = life.links.promises().get(liar.name)
        return (
            liar.has_lied and known is not None and known.start.number > liar.identity.start.number
        )

    def _replicas_agree(self) -> bool:
        nodes = [
            node for node in self.world.nodes.values() if not (node.is_ruined or node.is_spare)
        ]
        if any(node.is_foreign or node.altered_from for node in nodes):
            return False
        lives = [node.life for node in nodes if node.life is not None and not node.life.failed]
        if any(life.replica.mender.is_at_work or life.replica.repairs.is_at_work for life in lives):
            return False
        if any(node.has_log_rot for node in nodes if node.life is not None):
            return False  # nobody has looked there yet
        if len(lives) < len(nodes) or not any(life.replica.leadership.serving for life in lives):
            return False
        if any(_is_changing(life.core.configuration) for life in lives):
            return False
        if any(life.replica.machine.outcomes.to_settle() for life in lives):
            return False  # the log hasn't said of all units what became of them
        ends = {
            (life.core.last_index, life.core.durable_index, life.replica.driver.applied_index)
            for life in lives
        }
        return len(ends) == 1 and len(set(ends.pop())) == 1

    def _what_is_missing(self) -> str:
        states = [
            f"{node.name}: " + ("ruined" if node.is_ruined else "down")
            if node.life is None
            else f"{node.name}: {node.life.core.role.value} of term {node.life.core.term}, "
            f"last {node.life.core.last_index}, commit {node.life.core.commit_index}, "
            f"applied {node.life.replica.driver.applied_index}, "
            f"serving {node.life.replica.leadership.serving}"
            f"{', rotten at ' + str(sorted(node.rot)[:3]) if node.rot else ''}"
            for node in self.world.nodes.values()
        ]
        waiting = sum(not task.done() for task in self._tasks)
        return "; ".join(
            [f"{self.shared.pending} batches unanswered, {waiting} clients at work", *states]
        )

    def _read_everything(self) -> None:
        self._tasks.clear()
        for i in range(2):
            reader = Consumer(f"reader-{i}", self.shared, self.plan.random(f"reader/{i}"), 1.0)
            self._spawn(self._read(reader))
        world = self.world
        if not world.timeline.run(
            world.now_us + READ_US, lambda: all(t.done() for t in self._tasks)
        ):
            raise Defect("no progress", "not everything could be read to its end")

    async def _read(self, reader: Consumer) -> None:
        for topic, queues in self.shared.topics.items():
            for queue_id in range(queues):
                while await reader.poll(topic, queue_id, final=True):
                    continue
                await reader.end(topic, queue_id)

    def _check(self) -> None:
        world, history = self.world, self.world.history
        if world.archive is not None:
            topics, nodes = self.shared.topics, world.nodes.values()
            world.archive.tell_what_went(history, topics, nodes, world.now_us)
        anomalies = [*find_anomalies(history), *check_linearizability(history)]
        if anomalies:
            raise Defect(anomalies[0].name, "; ".join(map(str, anomalies[:5])))
        incarnations = self.world.watch.incarnations
        for node in self.world.nodes.values():
            if node.life is not None and not node.spoiled:
                incarnations.check_files(node, node.life)
        self._check_units()
        for node in self.world.nodes.values():
            check_keyed(self.keyed, node)
        models = compare_replicas(world.nodes.values(), incarnations.meant, world.archive)
        if models is not None:
            self._check_crews(models)
            check_shops(
                self.shops.values(),
                models.deliveries,
                self._queue,
                is_whole=not self.plan.moves_start,
            )

    def _check_units(self) -> None:
        """Each node has of each unit all or nothing, by the history, or by a log that begins with
        entry 1; where there is neither, nothing is known."""
        nodes = [node for node in self.world.nodes.values() if node.life and not node.spoiled]
        frames = committed_frames(nodes, self.world.archive)
        for node in nodes if frames else ():
            check_units(self.units, node, frames)


def _is_changing(configuration: Configuration) -> bool:
    """Whether more is to come by itself."""
    return bool(configuration.voters_outgoing or configuration.learners - configuration.observers)


def _life_span(plan: Plan, name: str) -> LifeSpan:
    """For how long a producer that isn't used must be known all the same: for as long as the log's
    own time can't have run ahead of ours."""
    kinds = {fault.kind for fault in plan.faults}
    # Who lies about its clock is one more whose clock is wrong.
    is_majority = {Fault.CLOCK_LEAP, Fault.LIAR} <= kinds
    if is_majority or kinds & {Fault.CLOCK_STEP, Fault.CLOCK_DRIFT, Fault.CLOCKS_LEAP}:
        return LifeSpan(name, 0)
    bounds = plan.tuning.producers
    unused_ms = bounds.named_unused_ms if name else bounds.unnamed_unused_ms
    return LifeSpan(name, unused_ms * 1_000)


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Nodes log nothing while they are simulated: the transcript says what happens."""
    before = structlog.get_config()

    def drop(*_: object) -> str:
        raise structlog.DropEvent

    # The level spares nearly every call the work; what is left are the failures of nodes.
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet, processors=[drop])
    try:
        yield
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def _collecting_garbage_by_hand() -> Iterator[None]:
    """No collection in the middle of a run: finalizers would run at moments that depend on the
    memory's state, and time goes into it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
