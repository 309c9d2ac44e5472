"""Members that come and go in a simulated group: two administrators, and whoever carries it out.

An administrator asks whoever leads for a change, drawn at that moment: machines that stand by are
taken in, members go, are promoted, put down, or give their vote to others, some of it at once. The
two don't know of each other. What is asked for may be refused, and often is. Carrying it out is the
operator's: a machine whose disk the group's log names is told to join and started, one that is a
member no more is stopped, after a while as a rule, and its disk is wiped; then it stands by again.

What counts is the newest configuration that a leader which serves calls committed: nothing that is
older is believed, as a leader that has been followed may not know yet.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from broker.errors import BrokerError
from broker.leader.changes import Change, NewMember
from chaos.forming import describe_disk, join_disk
from chaos.sim.defect import Defect
from chaos.sim.disk_swaps import stand_by
from chaos.sim.machine import Life
from chaos.sim.node import SimNode
from chaos.sim.operator import TROUBLE
from chaos.sim.world import NOBODY, World
from dledger.core.types import Configuration, ConfigurationPlace, DiskId, NodeId

LOOK_US: Final = 150_000
LINGER_US: Final = 1_500_000  # for how long a member that is none any more may go on, at most


class Churn:
    """Of one run; nothing happens unless `change` is called."""

    def __init__(self, world: World, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self._place = ConfigurationPlace()
        self._leaving: dict[NodeId, int] = {}  # until when those go on that are members no more
        self._is_watching = False
        self.is_over = False  # no more changes; whoever has left is stopped at once
        self.taken_up = 0  # changes that a leader took

    def watch(self) -> None:
        """From now on what the group's log says of its members is carried out."""
        if not self._is_watching:
            self._is_watching = True
            self._look()

    # --- what is wanted ----------------------------------------------------------------------

    def change(self, chance: Random) -> None:
        """An administrator asks for something; or both do, at the same moment."""
        self.watch()
        leader = self._serving()
        nodes = self._world.nodes.values()
        if leader is None or any(node.is_lost or node.has_log_rot for node in nodes):
            # A disk that is lost is replaced first, and what has rotted is got back: without it a
            # change that takes out another voter could leave too few, or nobody who has the bytes,
            # and that is no fault of the group's.
            return
        for _ in range(chance.choice((1, 1, 1, 2))):
            wanted = self._draw(leader.core.configuration, chance)
            if wanted is not None:
                self._world.timeline.after(0, leader.loop, self._ask, leader, wanted)

    def _draw(self, present: Configuration, chance: Random) -> Change | None:
        voters, observers = sorted(present.voters), sorted(present.observers)
        spares = [node for node in self._world.nodes.values() if node.is_spare]
        some = frozenset(chance.sample(voters, min(len(voters), chance.choice((1, 1, 2)))))
        match chance.randrange(10):
            case 0 | 1 | 2 | 3 if spares:
                count = chance.choice((1, 1, 2))
                added = [self._new(each, chance) for each in spares[:count]]
                return Change(add=tuple(each for each in added if each is not None))
            case 4 | 5 | 6:
                return Change(remove=some | frozenset(present.learners if len(voters) < 2 else ()))
            case 7 if observers:
                return Change(promote=frozenset(observers))
            case 8 if observers:
                return Change(promote=frozenset(observers), remove=some)
            case _:
                return Change(demote=some)

    def _new(self, node: SimNode, chance: Random) -> NewMember | None:
        if node.disk.is_off:
            return None
        try:
            disk = DiskId(describe_disk(node.config, node.disk, node.machinery).disk_id)
        except TROUBLE:
            return None
        finally:
            node.disk.kill()
        observes = chance.random() < 0.35
        return NewMember(node.name, disk, node.config.listen, observes=observes)

    def _ask(self, leader: Life, wanted: Change) -> None:
        """On the leader's event loop: its answer is awaited there."""
        self._world.log("administrator", f"asks {leader.replica.config.node_id}: {_told(wanted)}")
        task = leader.loop.create_task(leader.replica.membership.change(wanted))
        task.add_done_callback(lambda done: self._on_answer(done, leader))

    def _on_answer(self, done: asyncio.Task[Configuration], leader: Life) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.taken_up += 1
            self._world.log("administrator", "is told that it is so")
        elif isinstance(error, BrokerError):
            self._world.log("administrator", f"is refused: {error.message}")
        elif leader.failed is None:
            raise Defect("administrator", repr(error)) from error

    # --- what comes of it --------------------------------------------------------------------

    def _look(self) -> None:
        self._world.timeline.after(LOOK_US, NOBODY, self._look)
        leader = self._serving()
        if leader is None:
            return
        core = leader.core
        place, known = core.configuration_place, core.configuration
        if place < self._place or place.at > core.commit_index:
            return
        self._place = place
        for node in self._world.nodes.values():
            if node.is_spare:
                if known.disk_of(node.name):
                    self._take_in(node, known)
            elif node.name not in known.members():
                self._let_go(node)
            else:
                self._leaving.pop(node.name, None)

    def _serving(self) -> Life | None:
        for node in self._world.nodes.values():
            if node.is_running and node.life and node.life.replica.leadership.serving:
                return node.life
        return None

    def _take_in(self, node: SimNode, known: Configuration) -> None:
        if node.disk.is_off:
            node.disk.power_on()
        try:
            if describe_disk(node.config, node.disk, node.machinery).disk_id != known.disk_of(
                node.name
            ):
                return
            join_disk(node.config, node.disk, node.machinery)
        except TROUBLE:
            return
        finally:
            node.disk.kill()
        self._world.log("operator", f"{node.name} joins")
        node.is_spare = False
        node.boot()

    def _let_go(self, node: SimNode) -> None:
        now_us = self._world.now_us
        lingers = now_us if self._chance.random() < 0.5 else now_us + LINGER_US
        if not self.is_over and now_us < self._leaving.setdefault(node.name, lingers):
            return
        self._leaving.pop(node.name, None)
        stand_by(node)


def _told(wanted: Change) -> str:
    added = [each.node + (" to observe" if each.observes else "") for each in wanted.add]
    groups = (
        ("add", added),
        ("remove", wanted.remove),
        ("promote", wanted.promote),
        ("demote", wanted.demote),
    )
    return ", ".join(f"{what} {' and '.join(sorted(names))}" for what, names in groups if names)
