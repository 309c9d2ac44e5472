"""Snapshots of the replicated state, taken and restored in the midst of a run.

At random points of a run, drawn from the plan's seed, a node's state is written as chunks; the
owners' invariants must hold, and a machine that is restored from the chunks must be that state
field by field and write the same chunks again. The restored machine then applies what follows in
the log, beside the nodes: when the next point comes, on whichever node, it must be that node's
state. The same snapshot is asked for once more and taken at that next point only: it must still
show the moment at which it was asked for. And where one node has written a snapshot, every other
that stops at the same entry writes one too, which must be the same to the byte.

This reads, restores apart from the nodes and changes nothing in them: the trace of a seed is the
same with it and without.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from random import Random
from typing import Protocol

from broker.state.errors import SnapshotRefused
from broker.state.machine import StateMachine
from chaos.sim.defect import Defect
from chaos.sim.machine_config import NEWER_LEVEL
from chaos.sim.node import SimNode
from dledger.core.errors import InvariantViolation

SHARE = 0.01  # of the events that applied something, which become such a point
KEPT_SNAPSHOTS = 32  # of one run: nodes that are further behind are compared at the end


class NoQueues:
    """`QueueFiles` that keep nothing."""

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        return None

    def delete_topic(self, topic: str) -> None:
        return None


class Entries(Protocol):
    """Whoever has entries, from the first on."""

    def read(self, first: int, last: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Late:
    """A snapshot that was asked for and not taken yet, and what it must give."""

    node: str
    chunks: Iterator[bytes]
    expected: list[bytes]


class Snapshots:
    """The snapshots of one run."""

    def __init__(self, chance: Random, history: Entries | None = None) -> None:
        self._chance = chance
        self._history = history
        self._applied: dict[str, int] = {}  # by each node, as of its last event
        self._kept: OrderedDict[int, tuple[str, list[bytes]]] = OrderedDict()  # by applied index
        self._second: StateMachine | None = None
        self._late: Late | None = None

    def after_event(self, node: SimNode) -> None:
        """An event of `node` has been handled; whether it becomes a point is drawn.

        Raises:
            Defect: a snapshot, what it gives or an invariant isn't what it should be.
        """
        life = node.life
        if life is None:
            return
        machine = life.replica.machine
        applied = machine.applied_index
        if (
            applied == self._applied.get(node.name)
            or life.failed is not None
            or node.has_another_log
        ):
            return
        self._applied[node.name] = applied
        is_point = self._chance.random() < SHARE
        if not is_point and applied not in self._kept:
            return
        chunks = list(machine.snapshot())
        self._compare_with_others(node, applied, chunks)
        if is_point:
            self._follow(node, machine)
            self._second = restored(node, chunks)
            self._take_late(Late(node.name, machine.snapshot(), chunks))

    def _compare_with_others(self, node: SimNode, applied: int, chunks: list[bytes]) -> None:
        first, known = self._kept.setdefault(applied, (node.name, chunks))
        if chunks != known:
            raise Defect("snapshots differ", f"of {first} and {node.name} at entry {applied}")
        if len(self._kept) > KEPT_SNAPSHOTS:
            self._kept.popitem(last=False)

    def _take_late(self, following: Late) -> None:
        """Takes the chunks that were asked for at the point before; asks for others."""
        late, self._late = self._late, following
        if late is not None and list(late.chunks) != late.expected:
            raise Defect("late snapshot", f"{late.node}'s shows what was applied afterwards")

    def _follow(self, node: SimNode, machine: StateMachine) -> None:
        """The machine that was restored last, further on by what this node's log says: it is this
        node's state now. A node that is behind it can't tell."""
        second = self._second
        if second is None or second.applied_index > machine.applied_index or node.life is None:
            return
        if second.applied_index < machine.applied_index:
            node.disk.is_observed = True
            try:
                source = self._history or node.life.replica.log
                second.apply(source.read(second.applied_index + 1, machine.applied_index))
            except InvariantViolation as error:
                raise Defect("restored state", f"at {node.name}'s log: {error}") from error
            finally:
                node.disk.is_observed = False
        compare("restored state", node, machine, second)


def compare_snapshots(nodes: Iterable[SimNode]) -> None:
    """At rest: all nodes write the same snapshot, and each gives the state that wrote it.

    Raises:
        Defect: see `Snapshots.after_event`.
    """
    known: list[bytes] | None = None
    for node in nodes:
        if node.life is None or node.has_another_log:
            continue
        chunks = list(node.life.replica.machine.snapshot())
        compare("restored state", node, node.life.replica.machine, restored(node, chunks))
        if known is not None and chunks != known:
            raise Defect("snapshots differ", f"{node.name}'s, at the end")
        known = chunks


def check_gone_queues(node: SimNode, machine: StateMachine) -> None:
    """No group is in front of a queue that nobody is told of, and that begins at its end. It is the
    leaders' doing: a state may hold what those of earlier releases let in.

    Raises:
        Defect: one is.
    """
    for topic in machine.topics.values():
        count = len(topic.next_offsets)
        numbers = machine.queue_numbers.of(topic.incarnation, count)
        for queue_id in range(numbers.read_queues, count):
            start = machine.topic_retention.start_of(topic.incarnation, queue_id)
            for group, known in machine.offsets.groups(topic.name).items():
                if known.get(queue_id, start) < start:
                    at = f"{group} in {topic.name}/{queue_id}: {known[queue_id]}, begins at {start}"
                    raise Defect("group before a queue that went", f"of {node.name}: {at}")


def restored(node: SimNode, chunks: list[bytes]) -> StateMachine:
    """A machine from the chunks that `node` wrote, which is its state and writes them again."""
    if node.life is None:
        raise RuntimeError(f"{node.name} is down")
    machine = node.life.replica.machine
    try:
        machine.check_invariants()
    except InvariantViolation as error:
        raise Defect("state", f"of {node.name}: {error}") from error
    check_gone_queues(node, machine)
    try:
        second = StateMachine.restore(
            chunks, NoQueues(), options=machine.options, known_level=NEWER_LEVEL
        )
    except SnapshotRefused as error:
        raise Defect("snapshot", f"of {node.name}: {error}") from error
    compare("restored state", node, machine, second)
    if list(second.snapshot()) != chunks:
        raise Defect("snapshots differ", f"{node.name}'s and that of the state restored from it")
    return second


def compare(check: str, node: SimNode, expected: StateMachine, found: StateMachine) -> None:
    """The two hold the same, field by field."""
    mine, theirs = picture(expected), picture(found)
    wrong = [name for name, value in mine.items() if theirs[name] != value]
    if wrong:
        raise Defect(check, f"differs from {node.name}'s in {', '.join(wrong)}")


def picture(machine: StateMachine) -> dict[str, object]:
    """The replicated state, field by field, whatever owners it has and whatever fields
    they have: what is added is compared from then on, but for what says itself that it is none of
    the state (`compare=False`)."""
    found: dict[str, object] = {}
    for name, value in vars(machine.state).items():
        if name.startswith("_"):  # where it writes to and whom it tells
            continue
        if is_dataclass(value):
            kept = [each.name for each in fields(value) if each.compare]
            found |= {f"{name}.{each}": getattr(value, each) for each in kept}
        else:
            found[name] = value
    return found
