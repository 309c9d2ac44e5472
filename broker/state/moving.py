"""What commands of administration do to consumer groups: groups, leases and offsets together.

As `broker.state.consuming` is for what members say, this is for what is said about them (ADR 61).

    command             a queue of the group     becomes
    move to o           any                      free; frontier o, nothing finished above
    move forward to o   frontier f, finished F   free; what is below o is finished, and F stays so
    clone               none, group unknown      frontiers of the source; nobody has joined

A move names queues of one topic, and moves all of them or none. A lease ends with it, so that
whatever its holder says afterwards names an epoch that isn't: no commit undoes a move, however
late. What holds for the group is that entry alone, with members or without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from broker.state.attempts import Attempts
from broker.state.consuming import At, Meant
from broker.state.groups import Groups
from broker.state.leases import Leases, Place, Ranges, united
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.refusals import (
    GroupBroadcasts,
    GroupExists,
    GroupUnknown,
    Malformed,
    Refusal,
)
from broker.state.topics import TopicRef, TopicState
from dledger.wire.commands_pb2 import CloneGroupCommand, MoveGroupCommand

NOTHING: Final[Ranges] = ()


class MovedQueue(NamedTuple):
    """A queue in which a group goes on at `offset`; None before: it had committed nothing."""

    queue_id: int
    before: int | None
    offset: int


Moves = tuple[MovedQueue, ...]


class Moving:
    """The four owners, and how to find a topic. `changed` is told each group of which something
    has changed that its members care for, and `moved` what a move found and did: whoever asked for
    it had looked earlier, and others may have committed since."""

    def __init__(
        self,
        groups: Groups,
        leases: Leases,
        offsets: Offsets,
        attempts: Attempts,
        meant: Meant,
        changed: Callable[[str], None],
        moved: Callable[[Moves], None],
    ) -> None:
        self._groups = groups
        self._leases = leases
        self._offsets = offsets
        self._attempts = attempts
        self._meant = meant
        self._changed = changed
        self._moved = moved

    def move(self, command: MoveGroupCommand, at: At) -> Refusal | None:
        """The group goes on there, in all queues named; or why in none."""
        topic = self._meant(TopicRef(command.topic, command.incarnation))
        if not isinstance(topic, TopicState):
            return topic
        group = self._groups.get(command.group)
        if group is None:
            return GroupUnknown(command.group)
        if group.created and group.settings.is_broadcast:
            return GroupBroadcasts(command.group)
        wanted = {each.queue_id: each.offset for each in command.queues}
        if not wanted or len(wanted) < len(command.queues):
            return Malformed("a move names each queue once, and one at least")
        commit = OffsetCommit(command.group, topic.name, tuple(wanted.items()), is_reset=True)
        refusal = self._offsets.refusal_of(commit, topic.next_offsets)
        if refusal is not None:
            return refusal
        known = self._offsets.of(command.group, topic.name)
        moves: list[MovedQueue] = []
        for queue_id, offset in wanted.items():
            place = Place(command.group, topic.incarnation, queue_id)
            frontier, finished = offset, NOTHING
            if command.forward:
                frontier, finished = _forward(
                    known.get(queue_id, 0), self._leases.of(place).finished, offset
                )
            moves.append(MovedQueue(queue_id, known.get(queue_id), frontier))
            self._leases.move(place, finished)
            self._attempts.on_frontier(place, frontier)
        frontiers = tuple((each.queue_id, each.offset) for each in moves)
        done = OffsetCommit(command.group, topic.name, frontiers, is_reset=True)
        self._offsets.commit(done, topic.next_offsets)
        self._groups.use(command.group, at.lived_ms)
        self._changed(command.group)
        self._moved(tuple(moves))
        return None

    def clone(self, command: CloneGroupCommand, at: At) -> Refusal | None:
        """The target has committed what the source has; or why not."""
        if self._groups.get(command.target) is not None:
            return GroupExists(command.target)
        if not self._offsets.has(command.source):
            return GroupUnknown(command.source)
        refusal = self._offsets.clone(command.source, command.target)
        if refusal is None:
            self._groups.use(command.target, at.lived_ms)
        return refusal


def _forward(frontier: int, finished: Ranges, offset: int) -> tuple[int, Ranges]:
    """Frontier and finished ranges, where all below `offset` is finished as well."""
    return united(frontier, finished, ((0, offset),) if offset else ())
