"""When consumers may end: everything has been stored, and their group is through with it.

This owns that judgement, and who it is that stores: the tasks of all who aren't members of groups.
What a group is through with is what the leader's state says. A level that is too low for groups
ends consumers only where it stays so: who went while it was about to rise would leave what nobody
else takes to members that have just come.
"""

from __future__ import annotations

import asyncio

from broker.state.machine import StateMachine
from chaos.sim.at_rest import is_held_back
from chaos.sim.clients import Shared
from chaos.sim.failing import FailingCrew, has_moved_on
from chaos.sim.keyed import is_through
from chaos.sim.members import Crew
from chaos.sim.world import World
from dledger.level import DELIVERY_LEVEL, GROUPS_LEVEL
from dledger.records.reserved import DEAD_LETTER_PREFIX, SCHEDULE_TOPIC, retry_topic


class Draining:
    """How far the consumer groups of a run are."""

    def __init__(self, world: World, shared: Shared) -> None:
        self._world = world
        self._shared = shared
        self.others: list[asyncio.Task[None]] = []  # of those that aren't members of groups

    def progress(self) -> int:
        """How much is done, as far as anybody has applied the log: what groups have committed, and
        copies of messages that failed, dead letters among them. As long as that grows, nobody who
        works one call after the other is done for."""
        lives = [node.life for node in self._world.nodes.values() if node.life is not None]
        return max((_done(each.replica.machine) for each in lives), default=0)

    def is_drained(self, crew: Crew) -> bool:
        """The crew's group is, which is one of the level that the crew needs."""
        is_failing = isinstance(crew, FailingCrew)
        return self.is_through(crew.group, DELIVERY_LEVEL if is_failing else GROUPS_LEVEL)

    def is_keyed_drained(self) -> bool:
        """The crew that reads keys in order is."""
        if self._shared.pending or not all(task.done() for task in self.others):
            return False
        for node in self._world.nodes.values():
            life = node.life
            if life is not None and life.replica.leadership.serving:
                machine = life.replica.machine
                if machine.level.current < GROUPS_LEVEL:
                    return is_held_back(self._world, life)
                return is_through(machine)
        return False

    def is_through(self, group: str, level: int) -> bool:
        """Everything has been stored, and the group is through with it."""
        if self._shared.pending or not all(task.done() for task in self.others):
            return False
        for node in self._world.nodes.values():
            life = node.life
            if life is None or not life.replica.leadership.serving:
                continue
            machine = life.replica.machine
            if machine.level.current < level:
                return is_held_back(self._world, life)
            own = retry_topic(group)
            if not has_moved_on(machine):
                return False
            for name in (*self._shared.topics, *([own] if own in machine.topics else [])):
                ends = machine.topics[name].next_offsets
                offsets = machine.offsets.of(group, name)
                if any(offsets.get(queue_id, -1) < end for queue_id, end in enumerate(ends)):
                    return False
            return True
        return False


def _done(machine: StateMachine) -> int:
    topics = list(machine.topics.values())
    copies = [each for each in topics if each.name.startswith((SCHEDULE_TOPIC, DEAD_LETTER_PREFIX))]
    committed = (
        sum(machine.offsets.of(group.name, topic.name).values())
        for group in machine.groups
        for topic in topics
    )
    return sum(sum(each.next_offsets) for each in copies) + sum(committed)
