"""Older copies of disks: taken at one moment, put back at another, and what has to come of it.

A copy is what a snapshot of the machine would hold: the platter, with what was in flight kept, torn
or gone. It is put back under the one condition under which it can do no harm (ADR 30): each of the
other members can tell, by what it has on its own platter, that the disk has promised more than the
copy knows. What the copy knows is what the product's own recovery finds on it.

From then on nobody may hear it, somebody must name it, and the operator, who knows of it only by
that name, replaces it. A disk that was never put back must not be refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from broker.memory import FILE_NAME, promises_in
from chaos.sim.defect import Defect
from chaos.sim.disk import SimulatedDisk
from chaos.sim.disk_swaps import lose_disk, put_back
from chaos.sim.machine_config import DATA
from chaos.sim.node import SimNode
from chaos.sim.operator import Operator
from chaos.sim.world import NOBODY, World
from dledger.core.types import NO_DISK, DiskId, Holding, NodeId
from dledger.promises import Promises, Start

LOOK_US: Final = 100_000
NOBODY_VOTED: Final = NodeId("")
TRIES: Final = 3  # to put a copy back, until everybody can tell
AGAIN_US: Final = 400_000
MEMORY: Final = DATA / "raft" / FILE_NAME


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of the disk of `node`, before `lost` others of its disks were lost."""

    node: SimNode
    image: SimulatedDisk
    disk: DiskId
    lost: int
    then: Callable[[], None]


class Copies:
    """All copies of one run."""

    def __init__(self, world: World, operator: Operator) -> None:
        self._world = world
        self._operator = operator
        self._suspects: set[DiskId] = set()  # that may be refused, and are replaced then
        self._is_watching = False
        self.put_back = 0
        self.is_over = False  # no more copies are put back

    @property
    def _nodes(self) -> list[SimNode]:
        return list(self._world.nodes.values())

    def suspect(self, node: SimNode) -> None:
        """What `node` said of its disk wasn't true: it may be refused."""
        self._suspects.add(node.identity.disk)
        self.watch()

    def take(
        self, node: SimNode, age_us: int, chance: Random, then: Callable[[], None] = _nothing
    ) -> None:
        """A copy of the disk of `node` as it is now is put back in `age_us`; `then` is called in
        the moment before."""
        image = node.disk.image(chance)
        self._world.log("nemesis", f"copies the disk of {node.name}")
        disk, lost = node.identity.disk, len(node.lost)
        copy = _Copy(node, image, disk, lost, then)
        self._world.timeline.after(age_us, NOBODY, self._try, copy, TRIES)
        self.watch()

    def _try(self, copy: _Copy, tries: int) -> None:
        node, image = copy.node, copy.image
        if self._is_impossible(node) or node.identity.disk != copy.disk:
            return
        if len(node.lost) != copy.lost:
            return
        start = node.start_on(image.image())
        others = [each for each in self._nodes if each is not node]
        if start is None or not all(self._can_tell(each, node, start) for each in others):
            if tries > 1:
                timeline = self._world.timeline
                timeline.after(AGAIN_US, NOBODY, self._try, copy, tries - 1)
            return
        self._suspects.add(node.identity.disk)
        self.put_back += 1
        self._world.log(
            "nemesis",
            f"puts {node.name} back to term {start.term}, vote {start.vote or 'none'}, last entry "
            f"{start.last_index}, start {start.number}",
        )
        copy.then()
        put_back(node, image)
        node.is_taken_away = partial(self._take_away, node)
        node.boot()

    def _take_away(self, node: SimNode) -> bool:
        """Whether the operator took the copy away before it starts. Each start that nobody heard
        counts on from the copy's number, until it is higher than that of the last start that was
        heard; if nothing else tells, nobody can tell any more (ADR 30)."""
        start = node.start_on(node.disk.image())
        others = [each for each in self._nodes if each is not node]
        if start is None or all(self._can_tell(each, node, start) for each in others):
            return False
        self._world.log("operator", f"takes the older copy of {node.name} away before its start")
        lose_disk(node)
        self._operator.replace(node)
        return True

    def _is_impossible(self, node: SimNode) -> bool:
        return (
            self.is_over
            or node.life is None
            or node.is_harmed
            or node.is_swapped
            or not may_harm(node, self._world)
            or any(each.altered_from for each in self._nodes)
        )

    def _can_tell(self, other: SimNode, node: SimNode, start: Start) -> bool:
        """Whether `other` knows of a promise that `start` has forgotten, whatever happens to its
        process: by what is on its platter."""
        known = remembered(other).get(node.name)
        if known is None or known.disk != node.identity.disk:
            return False
        return _has_forgotten(known, start)

    def holdings(self) -> dict[NodeId, Holding]:
        """What each member's disk holds now."""
        lives = ((node.name, node.life) for node in self._nodes)
        return {name: life.core.holding for name, life in lives if life is not None}

    def check_told(self, holdings: dict[NodeId, Holding]) -> None:
        """At rest every node remembers, on its platter too, what each other one's disk held a while
        ago: what is not told would only show in copies that can't be put back. Since then there may
        be more, where the front of the log goes as it gets old.

        Args:
            holdings: of that moment.
        """
        for observer in self._nodes:
            known = remembered(observer)
            for node in self._nodes:
                if observer is node or node.life is None or observer.life is None:
                    continue
                if node.has_lied:
                    continue  # and said that it holds what it doesn't, in terms that never were
                held, told = holdings.get(node.name, Holding()), known.get(node.name)
                if told is None or told.disk != node.identity.disk or told.term < held.term:
                    raise Defect("not remembered", f"{observer.name} of {node.name}: {told}")
                if told.settled_index < held.settled_index or told.held_index < held.settled_index:
                    raise Defect("not remembered", f"{observer.name} of {node.name}: {told}")

    # --- what has to come of it --------------------------------------------------------------

    def watch(self) -> None:
        """From now on somebody looks who is heard, and who is refused."""
        if not self._is_watching:
            self._is_watching = True
            self._look()

    def _look(self) -> None:
        self._world.timeline.after(LOOK_US, NOBODY, self._look)
        for observer in self._nodes:
            life = observer.life
            if life is None or life.failed is not None:
                continue
            configuration = life.core.configuration
            for name, link in life.links.links().items():
                named = configuration.disk_of(name)
                if link.is_older_copy:
                    self._on_refused(observer, name, named)
                is_other = link.disk not in (NO_DISK, named) and life.core.knows_own_disk
                if is_other and self._world.nodes[name].is_returned:
                    raise Defect("replaced disk heard", f"{observer.name} listens to {name}")
            if not observer.is_past:
                self._check_not_heard(observer, life.links.promises())

    def _on_refused(self, observer: SimNode, name: NodeId, disk: DiskId) -> None:
        """`observer` says that `name`, on that disk, is an older copy. One that never was, or lied,
        is refused for a moment at most, or links and progress are missed in the end."""
        if disk not in self._suspects:
            return
        node = self._world.nodes[name]
        if node.identity.disk != disk or node.is_lost or node.is_swapped:
            return
        self._world.log("operator", f"is told by {observer.name} of an older copy: {name}")
        lose_disk(node)
        self._operator.replace(node)

    def _check_not_heard(self, observer: SimNode, known: dict[NodeId, Promises]) -> None:
        for node in self._nodes:
            if node.is_past and node.name in known:
                heard = known[node.name]
                if heard.disk == node.identity.disk and heard.start == node.identity.start:
                    raise Defect(
                        "older copy heard", f"{observer.name} listens to {node.name}, {heard.start}"
                    )


def remembered(node: SimNode) -> dict[NodeId, Promises]:
    """What a node's platter says of the disks of the others."""
    content = node.disk.durable(MEMORY)
    if not content:
        return {}
    return promises_in(json.loads(content))


def _has_forgotten(known: Promises, start: Start) -> bool:
    """The rule of ADR 30, once more: by the product's own, a broken one would not be found out."""
    newest = known.start
    if start.number <= newest.number or start.term < known.term:
        return True
    if start.term == known.term and known.vote not in (NOBODY_VOTED, start.vote):
        return True
    held = known.held_index if start.term == known.held_term else 0
    return newest.is_synced and start.last_index < max(known.settled_index, held)


def may_harm(node: SimNode, world: World) -> bool:
    """Whether a majority of disks stays intact without that of `node`, of the voters of every
    configuration that may count for some member."""
    nodes = world.nodes.values()
    harmed = {str(each.name) for each in nodes if each.is_harmed} | {str(node.name)}
    return all(2 * len(each & harmed) < len(each) for each in _electorates(world))


def voters_for_now(world: World) -> frozenset[str]:
    """Who votes by every configuration that may count for some member."""
    electorates = _electorates(world)
    return frozenset.intersection(*electorates) if electorates else frozenset()


def _electorates(world: World) -> set[frozenset[str]]:
    members = [each.name for each in world.nodes.values() if not each.is_spare]
    return {each for name in members for each in world.watch.pictures[name].sets_that_may_count}
