"""Topics that are made anew: nothing of an earlier one of the name is in a later one.

Three looks at it, none of which changes anything. While nodes run: the ConsumeQueues of a node are
those of its topics and of no other, and begin behind the entry that created them. Of a leader: for
which incarnation it proposed each batch. And at the end of a run, when the log is applied once
more: no batch was void, each went to the topic that it was proposed for, and a deleted topic had
left no offsets and no sequences at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.state.compound import Judged
from broker.state.listening import QueueKey
from broker.state.machine import StateMachine
from broker.state.moving import Moves
from broker.state.refusals import (
    BatchRefusal,
    KeyTaken,
    Malformed,
    OffsetTaken,
    QueueClosed,
    QueueNotFound,
    Refusal,
)
from broker.state.topics import TopicState
from chaos.sim.defect import Defect
from chaos.sim.machine import Life, Machine
from dledger.reading.entry import EntryHeader

# What a leader proposes no batch or unit for.
_NEVER = OffsetTaken | QueueNotFound | QueueClosed | Malformed | KeyTaken
EntryKey = tuple[int, int]  # index, term: no two entries share both


class Incarnations:
    """The topics of one run, as its nodes have them."""

    def __init__(self) -> None:
        self.meant: dict[EntryKey, int] = {}  # incarnation that a leader proposed a batch for
        self._seen: dict[str, tuple[object, ...]] = {}  # of each node, what was looked at last

    def after_event(self, node: Machine, life: Life) -> None:
        """Looks at what has changed in the node."""
        replica = life.replica
        if replica.leadership.serving:
            term = life.core.term
            for index, incarnation in replica.appender.meant_for().items():
                self.meant.setdefault((index, term), incarnation)
        topics = tuple((each.name, each.incarnation) for each in replica.machine.topics.values())
        is_rotten = node.has_another_log or node.has_rotten_queues
        if self._seen.get(node.name) != topics and not is_rotten:
            self._seen[node.name] = topics
            self.check_files(node, life)

    def check_files(self, node: Machine, life: Life) -> None:
        """The node's ConsumeQueues are its topics', and hold nothing older than those.

        Raises:
            Defect: names the queue.
        """
        replica = life.replica
        topics = {each.folder: each for each in replica.machine.topics.values()}
        for folder, queue_id in replica.queues.queues():
            place = f"{folder}/{queue_id} of {node.name}"
            topic = topics.get(folder)
            if topic is None or queue_id >= len(topic.next_offsets):
                raise Defect("deleted topic left behind", f"{place} has units, and is in no topic")
            held, ends = replica.queues.max_offset(folder, queue_id), topic.next_offsets[queue_id]
            # A full disk may have taken some of a batch's units: those of an entry that isn't
            # applied, and is again when there is space.
            is_right = held >= ends if replica.driver.statistics().is_apply_paused else held == ends
            if not is_right:
                raise Defect("deleted topic left behind", f"{place} has {held} units, not {ends}")
            begins_at = replica.queues.min_offset(folder, queue_id)
            if held == begins_at:
                continue  # a start has cut it down to what was committed
            node.disk.is_observed = True
            is_held = topic.incarnation >= replica.log.first_index
            created_at = replica.log.position_of(topic.incarnation) if is_held else 0
            unit = replica.queues.units(folder, queue_id, begins_at, 1)
            first = int.from_bytes(unit[:8], "big")
            node.disk.is_observed = False
            if first < created_at:
                raise Defect(
                    "message of an earlier topic",
                    f"{place} begins at byte {first}, and was created at {created_at}",
                )


class Witness:
    """Listens to a state machine that applies the whole log, an entry at a time."""

    def __init__(self, machine: StateMachine, meant: dict[EntryKey, int]) -> None:
        self.header: EntryHeader | None = None  # of the entry that is applied next
        self.units: Sequence[Judged] = ()  # of the one that was applied last
        self._machine = machine
        self._meant = meant
        machine.listen(self)

    def arrived(self, queue: QueueKey) -> None:
        """`Listener`: in the topic that the batch was proposed for."""
        if self.header is None or self.header.is_compound:
            return  # of units `check_units` and the racers know
        meant = self._meant.get((self.header.index, self.header.term), queue[0])
        if meant != queue[0]:
            raise Defect(
                "message of an earlier topic",
                f"entry {self.header.index} was proposed for the topic of entry {meant}, and went "
                f"to the one of entry {queue[0]}",
            )

    def batch_voided(self, index: int, refusal: BatchRefusal) -> None:
        """`Listener`: no leader proposes what would be void (ADR 20)."""
        raise Defect("void batch", f"entry {index}: {refusal}")

    def entry_voided(self, index: int, refusal: Malformed) -> None:
        """`Listener`: no leader writes such entries (ADR 23)."""
        raise Defect("void entry", f"entry {index}: {refusal}")

    def topic_deleted(self, topic: TopicState) -> None:
        """`Listener`: nothing of it is left."""
        there = {each.incarnation for each in self._machine.topics.values()}
        numbered = {place[0] for each in self._machine.producers for place in each.queues}
        if topic.name in self._machine.offsets.topics() or numbered - there:
            raise Defect("deleted topic left behind", f"offsets or sequences of {topic.folder}")

    def units_applied(self, index: int, units: Sequence[Judged]) -> None:
        """`Listener`: what a unit writes goes on where its queue ends, whatever becomes of it."""
        self.units = units
        for unit in units:
            if isinstance(unit.refusal, _NEVER):
                raise Defect("void unit", f"entry {index}: {unit.refusal}")

    def topic_created(self, name: str) -> None:
        """`Listener`: as it should be."""

    def topic_changed(self, topic: TopicState) -> None:
        """`Listener`: as it should be."""

    def topic_permitted(self, topic: TopicState) -> None:
        """`Listener`: `chaos.sim.permission_model` looks at what it is then."""

    def group_changed(self, name: str) -> None:
        """`Listener`: `chaos.sim.lease_model` looks at what it is then."""

    def group_moved(self, moves: Moves) -> None:
        """`Listener`: `chaos.sim.lease_model` looks at where it is then."""

    def command_applied(self, index: int, refusal: Refusal | None) -> None:
        """`Listener`: a refusal changes nothing."""
