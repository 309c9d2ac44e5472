"""What a leader knows of entries that are proposed and not yet applied.

This owns, for each queue, the offset that follows what is on its way; for each producer and queue,
its batches on the way; and the commands on their way that would make a batch void. It is the
leader's memory of one term and is thrown away with it.

A topic's name may be another topic's by the time an entry is applied, so nothing here is found by
a name: a place is the topic's *incarnation*, which is the index of the entry that created it, and
a queue. What was in flight for an earlier incarnation never meets the new one.

The rule that keeps an entry out of an incarnation that it wasn't meant for (ADR 20): **a batch is
proposed only for a topic that is there in the applied state, and of whose name no delete is in
flight.** A leader proposes nothing before it has applied everything that it found in its log, so
that it has proposed whatever lies between its applied state and the batch; only a delete ends an
incarnation; and a log that holds the batch holds the same entries before it on every replica,
under every later leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.state.sequences import StoredBatch
from broker.state.topic_permissions import Permission
from dledger.wire.commands_pb2 import Command, JoinGroupCommand


class Lane(NamedTuple):
    """A producer's way into one queue of one incarnation of a topic."""

    producer: bytes
    incarnation: int
    queue_id: int

    @property
    def place(self) -> tuple[int, int]:
        """The queue, whoever sends to it."""
        return self.incarnation, self.queue_id


class UnitEnd(NamedTuple):
    """Where a batch of a unit ends: the queue, and the offset behind it."""

    incarnation: int
    queue_id: int
    end: int


@dataclass(slots=True)
class SequenceInFlight:
    """A producer's batches to one queue that are proposed and not yet applied."""

    next_sequence: int
    batches: deque[tuple[int, StoredBatch]] = field(default_factory=deque)  # (index, batch)


@dataclass(slots=True)
class InFlight:
    """All of it. Bounded by the bytes that the core lets be uncommitted."""

    _lanes: dict[int, Lane] = field(default_factory=dict)  # index -> whose batch
    _ends: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    _sequences: dict[Lane, SequenceInFlight] = field(default_factory=dict)
    _units: dict[int, tuple[UnitEnd, ...]] = field(default_factory=dict)  # index -> their batches
    _deletes: dict[int, tuple[str, ...]] = field(default_factory=dict)  # index -> topics
    _changing: dict[int, str] = field(default_factory=dict)  # index -> topic
    _closing: dict[int, str] = field(default_factory=dict)  # index -> topic written no more
    _moving: set[int] = field(default_factory=set)  # indexes: the log is to begin later
    _wishing: dict[int, str] = field(default_factory=dict)  # index -> topic of another retention
    _failing: dict[int, set[str]] = field(default_factory=dict)  # index -> groups
    _ending: set[int] = field(default_factory=set)  # indexes: groups are forgotten
    _joining: dict[int, JoinGroupCommand] = field(default_factory=dict)  # by index; who broadcasts
    _placing: dict[int, str] = field(default_factory=dict)  # index -> group put elsewhere
    _registering: dict[int, str] = field(default_factory=dict)  # index -> name, or none
    _forgetting: dict[int, frozenset[bytes]] = field(default_factory=dict)  # index -> ids
    _beginning: dict[int, int] = field(default_factory=dict)  # index -> offsets that are new

    @property
    def is_empty(self) -> bool:
        """Whether no batch is on its way."""
        return not self._lanes and not self._units

    def meant_for(self) -> dict[int, int]:
        """The incarnation that each batch on its way was proposed for, by index; not of units."""
        return {index: lane.incarnation for index, lane in self._lanes.items()}

    # --- batches ------------------------------------------------------------------------------

    def next_offset(self, lane: Lane) -> int | None:
        """See `end_of`."""
        return self.end_of(lane.place)

    def end_of(self, place: tuple[int, int]) -> int | None:
        """The queue's next offset; None if nothing is on its way: then the applied state has it."""
        end = self._ends.get(place)
        return None if end is None else end[1]

    def sequence(self, lane: Lane) -> SequenceInFlight | None:
        """The producer's batches on the way; None if there are none, or they aren't numbered."""
        return self._sequences.get(lane)

    def lanes(self) -> Collection[Lane]:
        """Those in which numbered batches are on their way."""
        return self._sequences.keys()

    def add(self, index: int, lane: Lane, batch: StoredBatch, *, is_numbered: bool) -> None:
        """The batch is proposed, as entry `index`."""
        self._lanes[index] = lane
        self._ends[lane.place] = index, batch.base_queue_offset + batch.record_count
        if is_numbered:
            flight = self._sequences.setdefault(lane, SequenceInFlight(0))
            flight.next_sequence = batch.base_sequence + batch.record_count
            flight.batches.append((index, batch))

    def add_units(self, index: int, batches: Iterable[UnitEnd]) -> None:
        """Units are proposed, as entry `index`, with these batches."""
        self._units[index] = tuple(batches)
        for batch in self._units[index]:
            self._ends[batch.incarnation, batch.queue_id] = index, batch.end

    def retire(self, index: int) -> None:
        """The entry is applied: from here on the applied state knows."""
        for batch in self._units.pop(index, ()):
            end = self._ends.get(batch[:2])
            if end is not None and end[0] <= index:
                del self._ends[batch[:2]]
        lane = self._lanes.pop(index, None)
        if lane is None:
            return
        flight = self._sequences.get(lane)
        if flight is not None:
            while flight.batches and flight.batches[0][0] <= index:
                flight.batches.popleft()
            if not flight.batches:
                del self._sequences[lane]
        end = self._ends.get(lane.place)
        if end is not None and end[0] <= index:
            del self._ends[lane.place]

    def void(self, index: int) -> None:
        """The entry had no effect. What follows it in its queue counts on it and will be void as
        well: the next batch starts from the applied state."""
        lane = self._lanes.get(index)
        if lane is not None:
            self._void(lane.place)

    def void_units(self, places: Iterable[tuple[int, int]]) -> None:
        """So it is with these queues, whose offsets units were to take and haven't taken."""
        for place in places:
            self._void(place)

    def _void(self, place: tuple[int, int]) -> None:
        self._ends.pop(place, None)
        for other in [each for each in self._sequences if each.place == place]:
            del self._sequences[other]

    # --- commands -----------------------------------------------------------------------------

    def add_command(self, index: int, command: Command) -> None:
        """The command is proposed, as entry `index`."""
        match command.WhichOneof("body"):
            case "delete_topic":
                self._deletes[index] = (
                    *self._deletes.get(index, ()),
                    command.delete_topic.name,
                )
            case "update_topic":
                self._changing[index] = command.update_topic.name
            case "permit_topic":
                if Permission.WRITE not in Permission(command.permit_topic.permission):
                    self._closing[index] = command.permit_topic.name
            case "move_log_start":
                self._moving.add(index)
            case "retain_topic":
                self._wishing[index] = command.retain_topic.name
            case "send_back":
                self._failing.setdefault(index, set()).add(command.send_back.group)
            case "forget_groups":
                if command.forget_groups.groups:
                    self._ending.add(index)
            case "join_group":
                if command.join_group.settings.broadcast:
                    self._joining[index] = command.join_group
            case "move_group":
                self._placing[index] = command.move_group.group
            case "clone_group":
                self._placing[index] = command.clone_group.target
            case "register_producer":
                self._registering[index] = command.register_producer.name
            case "forget_producers":
                self._forgetting[index] = frozenset(command.forget_producers.producer_ids)
            case _:
                pass

    def retire_command(self, index: int) -> None:
        """If entry `index` is a command, it is applied."""
        self._deletes.pop(index, None)
        self._changing.pop(index, None)
        self._closing.pop(index, None)
        self._moving.discard(index)
        self._wishing.pop(index, None)
        self._failing.pop(index, None)
        self._ending.discard(index)
        self._joining.pop(index, None)
        self._placing.pop(index, None)
        self._registering.pop(index, None)
        self._forgetting.pop(index, None)
        self._beginning.pop(index, None)

    def add_beginning(self, index: int, offsets: int) -> None:
        """By entry `index` groups are to have offsets in so many queues more."""
        if offsets:
            self._beginning[index] = offsets

    @property
    def beginning(self) -> int:
        """Offsets that are to be there by what is on its way, and aren't yet."""
        return sum(self._beginning.values())

    def is_deleting(self, topic: str) -> bool:
        """Whether any delete of that name is on its way: of this incarnation, or of one that is
        made by a creation on its way."""
        return any(topic in each for each in self._deletes.values())

    def is_changing(self, topic: str) -> bool:
        """Whether any update of the topic is on its way: whatever is proposed behind it has to be
        chosen by what it makes of it."""
        return topic in self._changing.values()

    def is_closing(self, topic: str) -> bool:
        """Whether a permission is on its way after which nobody may send to a topic of that name:
        a batch behind that would be void."""
        return topic in self._closing.values()

    def is_closed(self, producer: bytes, name: str) -> bool:
        """Whether the producer's forgetting, or another registration of its name, is on its way:
        a batch behind that could be void."""
        taken = bool(name) and name in self._registering.values()
        return taken or any(producer in each for each in self._forgetting.values())

    @property
    def is_moving_start(self) -> bool:
        """Whether a later start of the log is on its way."""
        return bool(self._moving)

    def wishing(self) -> Collection[str]:
        """Topics whose wish for their messages is about to be another one: by the one that is
        applied nothing is let go of."""
        return self._wishing.values()

    def is_failing(self, group: str) -> bool:
        """Whether a message that the group couldn't work on is on its way to where it waits."""
        return any(group in each for each in self._failing.values())

    @property
    def is_ending_groups(self) -> bool:
        """Whether groups are about to be forgotten: behind that nobody waits for them."""
        return bool(self._ending)

    def is_broadcasting(self, topic: str) -> bool:
        """Whether a member that is given every message of the topic is about to be there: how far
        it is will be in no log."""
        return any(topic in each.settings.topics for each in self._joining.values())

    def is_placing(self, group: str, topic: str) -> bool:
        """Whether the group is about to go on elsewhere in the topic: moved, made as a clone, or
        through with queues that go."""
        return group in self._placing.values() or self.is_changing(topic)

    @property
    def registrations(self) -> int:
        """How many are on their way."""
        return len(self._registering)

    @property
    def is_forgetting(self) -> bool:
        """Whether a forgetting is on its way."""
        return bool(self._forgetting)
