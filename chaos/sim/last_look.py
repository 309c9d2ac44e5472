"""The last look at everything, at rest: the history, the files, the replicas, what groups are owed.

This owns which checks there are at the end, and their order. What each looks for is the matter of
who has the model of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.state.topics import TopicRef
from chaos.checkers.anomalies import find_anomalies
from chaos.checkers.linearizability import check_linearizability
from chaos.sim.cast import Cast
from chaos.sim.clients import Shared
from chaos.sim.defect import Defect
from chaos.sim.failing import check_failed
from chaos.sim.filtered import wanted_offsets
from chaos.sim.keyed import check_keyed
from chaos.sim.members import Crew
from chaos.sim.node import SimNode
from chaos.sim.poppers import check_shops
from chaos.sim.replicas import Models, compare_replicas
from chaos.sim.unit_writers import check_units, committed_frames
from chaos.sim.world import World


def check_comparable(nodes: Iterable[SimNode]) -> None:
    """What faults have done to disks has left two nodes that can be held against each other.

    Raises:
        Defect: it hasn't, though two run.
    """
    running = [node for node in nodes if node.life is not None]
    sound = [node for node in running if not node.has_another_log]
    if len(sound) < min(2, len(running)):
        raise Defect("not compared", f"of {len(running)} nodes that run {len(sound)} are sound")


class LastLook:
    """The end of one run."""

    def __init__(self, world: World, shared: Shared, cast: Cast) -> None:
        self._world = world
        self._shared = shared
        self._cast = cast

    def look(self) -> Models:
        """Everything is as it has to be; what the log says of it.

        Raises:
            Defect: it isn't.
        """
        world, history = self._world, self._world.history
        if world.archive is not None:
            topics, nodes = self._shared.topics, world.nodes.values()
            world.archive.tell_what_went(history, topics, nodes, world.now_us)
            for node in world.nodes.values():
                if node.life is not None and not node.has_another_log:
                    world.archive.beginnings.check(node, node.life)
        explained = check_linearizability(history)
        anomalies = [*find_anomalies(history), *explained.anomalies]
        if anomalies:
            raise Defect(anomalies[0].name, "; ".join(map(str, anomalies[:5])))
        for error in explained.undecided:
            raise error
        incarnations = self._world.watch.incarnations
        for node in self._world.nodes.values():
            if node.life is not None and not node.has_another_log:
                incarnations.check_files(node, node.life)
        self._check_units()
        for node in self._world.nodes.values():
            check_keyed(self._cast.keyed, node)
        check_comparable(world.nodes.values())
        models = compare_replicas(world.nodes.values(), incarnations.meant, world.archive)
        if models is None:
            raise Defect("not compared", "nobody runs")
        self._check_crews(models)
        check_shops(self._cast.shops.values(), models.deliveries, self._queue, self._first)
        return models

    def _check_units(self) -> None:
        """Each node has of each unit all or nothing, by the history, or by a log that begins with
        entry 1; where there is neither, nothing is known."""
        nodes = [
            node for node in self._world.nodes.values() if node.life and not node.has_another_log
        ]
        frames = committed_frames(nodes, self._world.archive)
        for node in nodes if frames else ():
            check_units(self._cast.units, node, frames)

    def _check_crews(self, models: Models) -> None:
        """Every message from where a group was to go on was worked on by somebody since."""
        model = models.leases
        check_failed(self._world.crews.values(), models.retries, self._first_held)
        for crew in self._world.crews.values():
            for (incarnation, queue_id), due in model.due(crew.group).items():
                name, _ = self._queue(incarnation, queue_id)
                told = crew.gone.get((name, incarnation, queue_id), 0)
                if told > (first := self._first(incarnation, queue_id)):
                    raise Defect(
                        "message forgotten",
                        f"{crew.group} was told that {name}/{queue_id} begins at {told}, and "
                        f"nobody lacks what is from {first} on",
                    )
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
        lives = [node.life for node in self._world.nodes.values() if node.life is not None]
        found = [(life.replica.machine.topics.get(topic), life.replica.queues) for life in lives]
        return max((q.min_offset(t.folder, 0) for t, q in found if t is not None), default=0)

    def _wanted(self, crew: Crew, topic: TopicRef, queue_id: int, start: int) -> set[int]:
        """What the crew has to have worked on."""
        if not crew.tags:
            return set(range(start, self._queue(topic.incarnation, queue_id)[1]))
        node = next(
            node
            for node in self._world.nodes.values()
            if node.life is not None and node.life.replica.leadership.serving
        )
        return wanted_offsets(node, topic, queue_id, start, crew.tags)

    def _first(self, incarnation: int, queue_id: int) -> int:
        """From where on nobody ever lacked a message of the queue."""
        archive = self._world.archive
        return archive.first_of((incarnation, queue_id)) if archive is not None else 0

    def _queue(self, incarnation: int, queue_id: int) -> tuple[str, int]:
        """The name of the queue's topic, and where the queue ends."""
        lives = [node.life for node in self._world.nodes.values() if node.life is not None]
        topics = [each for life in lives for each in life.replica.machine.topics.values()]
        topic = next(each for each in topics if each.incarnation == incarnation)
        return topic.name, topic.next_offsets[queue_id]
