"""One run from one plan: load under faults, then peace, progress, and a last look at everything.

This owns the two phases. In the first, safety is watched after every event. Then all faults stop,
and the group must come to rest within a bound: a leader serves, every batch under way is
answered, every node that can run has applied everything. At the end the history is checked for
anomalies and the replicas are compared byte for byte.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from chaos.sim.at_rest import (
    entries_held,
    is_preference_met,
    links_work,
    replicas_agree,
    somebody_leads,
    told_of_nodes,
    what_is_old_has_gone,
)
from chaos.sim.cast import AnyClient, Cast
from chaos.sim.clients import Administrator, Consumer, Shared
from chaos.sim.defect import Defect
from chaos.sim.draining import Draining
from chaos.sim.last_look import LastLook
from chaos.sim.members import Member
from chaos.sim.nemesis import Nemesis
from chaos.sim.one_away import OneAway
from chaos.sim.one_way import OneWay
from chaos.sim.plan import Plan
from chaos.sim.poppers import Popper
from chaos.sim.quiet import collecting_garbage_by_hand, quiet_logs
from chaos.sim.replicas import Models
from chaos.sim.rot import full_looks, is_unread
from chaos.sim.timeline import Livelock
from chaos.sim.world import Line, World

PEACE_US = 15_000_000  # within which the group has to come to rest
LATE_LOOKS = 8  # times as long, at most, for logs that have rotted, and for groups that are at work
LATELY_US = PEACE_US // 3  # in which groups have got on that are still at work
LEADER_US = 20 * 300_000  # within which somebody leads: twenty of the longest election timeouts
SETTLED_US = 2_000_000  # after which a link that was dead before the peace is known to be
TOLD_US = 1_700_000  # within which what a disk holds is told and written down, by all of all
PREFERRED_US = 15_000_000  # within which a preferred member leads that is well
GONE_US = 15_000_000  # within which what is old has gone from the front of all logs
READ_US = 20_000_000  # within which everything has been read
TOPIC = "orders"


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
    with quiet_logs(), collecting_garbage_by_hand():
        run = Run(plan, at_rest)
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


class Run:
    """A world with its clients and its nemesis, and what is under way."""

    def __init__(self, plan: Plan, at_rest: Callable[[World], None] | None = None) -> None:
        self.plan = plan
        self._at_rest = at_rest
        self.world = World(plan)
        history = self.world.history
        self.shared = Shared(self.world, history, moves_start=plan.moves_start)
        self.nemesis = Nemesis(self.world)
        self._draining = Draining(self.world, self.shared)
        self.cast = Cast(self.world, self.shared, self._draining)
        self._tasks: list[asyncio.Task[None]] = []
        self.away: tuple[str, ...] | None = None

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
        for client in self._clients():
            task = self._spawn(client.run())
            if not isinstance(client, Member | Popper):
                self._draining.others.append(task)
        self.nemesis.schedule(plan.faults)
        self._advance(plan.duration_ms * 1000)
        self.shared.stopping = True
        world.timeline.at(world.now_us, world.clients, self.nemesis.make_peace)
        peace_us = world.now_us
        # Each that failed is told of by itself, and waits for its levels.
        deadline = peace_us + PEACE_US * (2 if plan.failing else 1)
        if not world.timeline.run(world.now_us + LEADER_US, partial(somebody_leads, world)):
            raise Defect("no leader", self._what_is_missing())
        self._come_to_rest(deadline)
        self._read_everything()
        self._come_to_rest(world.now_us + PEACE_US)
        self._advance(max(world.now_us, peace_us + SETTLED_US))
        if not world.timeline.run(
            max(world.now_us + SETTLED_US, deadline), partial(links_work, world)
        ):
            raise Defect("mute link", self._what_is_missing())
        # A disk that is refused may have been found, and replaced, only by now.
        self._come_to_rest(world.now_us + PEACE_US)
        self._check_preference()  # before what is told then: that leadership moves is told, too
        if not world.timeline.run(world.now_us + GONE_US, partial(what_is_old_has_gone, world)):
            raise Defect("kept too long", "a full segment that is too old is still there")
        holdings = self.nemesis.copies.holdings()
        self._advance(world.now_us + TOLD_US)
        self.nemesis.copies.check_told(holdings)
        if plan.one_away:
            self._take_one_away()
        if plan.one_way:
            self._cut_one_way()
        self._come_to_rest(world.now_us + PEACE_US)  # something may just be on its way
        self._look()
        if self._at_rest is not None:
            self._at_rest(self.world)

    def _clients(self) -> Sequence[AnyClient]:
        """Who is at work on the clients' loop."""
        return self.cast.make()

    def _look(self) -> Models:
        """At everything, when all is at rest."""
        return LastLook(self.world, self.shared, self.cast).look()

    def _take_one_away(self) -> None:
        """Any voter may go; then all is whole again."""
        one_away = OneAway(self.world, self.shared, self._spawn)
        if not one_away.go_through():
            return
        self.away = one_away.found
        self._come_to_rest(self.world.now_us + PEACE_US, "after one was away: ")

    def _cut_one_way(self) -> None:
        """A voter can be called, and can't call; then it can."""
        if OneWay(self.world, self.shared, self._spawn).go_through():
            self._come_to_rest(self.world.now_us + PEACE_US, "after one couldn't call: ")

    def _check_preference(self) -> None:
        """Who is preferred, votes and is well is handed leadership within its time, and keeps it:
        leadership moves once, and then no more."""
        world = self.world
        if is_preference_met(world):
            return
        before = len(world.watch.checker.leaders)
        if not world.timeline.run(world.now_us + PREFERRED_US, partial(is_preference_met, world)):
            raise Defect("not preferred", self._what_is_missing())
        self._advance(world.now_us + PEACE_US)
        moves = len(world.watch.checker.leaders) - before
        if not is_preference_met(world) or moves != 1:
            raise Defect("not preferred", f"leadership moved {moves} times")
        self._come_to_rest(world.now_us + PEACE_US)

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
        rotted, groups are through with what there is, and who was away has copied the log. A share
        of a processor and some seconds between two looks make the first a matter of how long the
        log is, one call after the other the second one of how many messages there are, an entry a
        round trip, where that is drawn, the third one of entries; none of a fixed time.

        Raises:
            Defect: it isn't.
        """
        before = full_looks(self.world.nodes.values())
        for _ in range(LATE_LOOKS):
            if self._advance(until_us - LATELY_US, until_rest=True):
                return
            done, held = self._draining.progress(), entries_held(self.world)
            if self._advance(until_us, until_rest=True):
                return
            is_at_work = self._draining.progress() > done or entries_held(self.world) > held
            if not (is_at_work or is_unread(self.world.nodes.values(), before)):
                break
            until_us = self.world.now_us + PEACE_US
        raise Defect("no progress", when + self._what_is_missing())

    def _has_come_to_rest(self) -> bool:
        if self.shared.pending or not all(task.done() for task in self._tasks):
            return False
        return replicas_agree(self.world)

    def _what_is_missing(self) -> str:
        waiting = sum(not task.done() for task in self._tasks)
        at_work = f"{self.shared.pending} batches unanswered, {waiting} clients at work"
        return "; ".join([at_work, *told_of_nodes(self.world)])

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
