"""What units about failed messages do to several owners: groups, leases, offsets and retries
(ADR 58).

As `broker.state.consuming` for commands of their own. Each is judged against the state before its
entry, with what units before it in the entry add to bounds they share; whether the copies that go
with a command are there is judged here too: a message is never finished without its copy.

    command        the unit's records                     what it does
    send back      one, for the schedule topic, or for    the message is finished for the group
                   the group's dead letters
    fail message   none                               all before the message is finished for the
                                                      group, and its failures are counted (ADR 63)
    fire delayed   for retry topics, as many at most as   the level's queue moves on
                   the queue moves on by
    resend         one                                    the dead letter was sent again
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.state.attempts import Attempts, Failed
from broker.state.groups import Groups
from broker.state.leases import MAX_RANGES, Leases, Place, Ranges, united
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.refusals import (
    FinishedAlready,
    Malformed,
    OffsetOutOfRange,
    PartlyRefused,
    QueueRefusal,
    QueueRefused,
    Refusal,
    SessionUnknown,
    TooManyRanges,
    TopicNotFound,
    TopicReplaced,
)
from broker.state.retries import Fired, Queue, Retries
from broker.state.topics import TopicRef, TopicState
from dledger.core.errors import InvariantViolation
from dledger.records.reserved import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    dead_letter_topic,
)
from dledger.wire.commands_pb2 import (
    FailMessageCommand,
    FireDelayedCommand,
    ResendCommand,
    SendBackCommand,
)

Meant = Callable[[TopicRef], TopicState | TopicNotFound | TopicReplaced]


class Copies(Protocol):
    """`broker.state.compound.PlacedBatch`, as far as it is looked at here."""

    @property
    def topic(self) -> TopicState: ...
    @property
    def record_count(self) -> int: ...


class Owners(Protocol):
    """The owners that are asked; read only."""

    @property
    def groups(self) -> Groups: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def offsets(self) -> Offsets: ...
    @property
    def retries(self) -> Retries: ...
    @property
    def attempts(self) -> Attempts: ...


@dataclass(slots=True)
class Before:
    """What units before this one in the entry add: ranges, by queue of a group; and dead letters
    that are sent again."""

    ranges: Counter[Place] = field(default_factory=Counter)
    resent: int = 0


def is_finished(frontier: int, finished: Sequence[tuple[int, int]], offset: int) -> bool:
    """Whether the offset is below the frontier, or in a finished range above it."""
    return offset < frontier or any(first <= offset < end for first, end in finished)


def refusal_of_send_back(
    owners: Owners,
    meant: Meant,
    command: SendBackCommand,
    copies: Sequence[Copies],
    before: Before,
) -> Refusal | None:
    """Why the message isn't finished, and its copy void; None if it is."""
    wanted = SCHEDULE_TOPIC, dead_letter_topic(command.group)
    if [each.record_count for each in copies] != [1] or copies[0].topic.name not in wanted:
        return Malformed("a message is finished with one copy, that waits or is dead")
    topic = _held(owners, meant, command)
    if not isinstance(topic, TopicState):
        return topic
    place = Place(command.group, topic.incarnation, command.queue_id)
    frontier = owners.offsets.of(command.group, topic.name)[command.queue_id]
    finished = owners.leases.of(place).finished
    if is_finished(frontier, finished, command.offset):
        return FinishedAlready(command.queue_id, command.offset)
    # What units before this one finish may lie anywhere: each is a range of its own at most.
    if command.offset != frontier or before.ranges[place]:
        mine = len(finished) + before.ranges[place]
        if mine >= MAX_RANGES:
            return _of_queue(topic, command.queue_id, TooManyRanges(MAX_RANGES))
        if owners.leases.range_count + before.ranges.total() >= owners.leases.max_all_ranges:
            limit = owners.leases.max_all_ranges
            return _of_queue(topic, command.queue_id, TooManyRanges(limit))
    before.ranges[place] += 1
    return None


def _held(
    owners: Owners, meant: Meant, command: SendBackCommand | FailMessageCommand
) -> TopicState | Refusal:
    """The topic of a message that is there, in a queue that the session holds by that epoch."""
    topic = meant(TopicRef(command.topic, command.incarnation))
    if not isinstance(topic, TopicState):
        return topic
    session = owners.groups.session(command.session)
    if session is None or session.group != command.group:
        return SessionUnknown(command.session)
    place = Place(command.group, topic.incarnation, command.queue_id)
    lost = owners.leases.refusal_of(place, command.session, command.epoch)
    if lost is not None:
        return _of_queue(topic, command.queue_id, lost)
    if command.offset >= topic.next_offsets[command.queue_id]:
        return OffsetOutOfRange(topic.name, command.queue_id, command.offset)
    return topic


def refusal_of_failure(
    owners: Owners, meant: Meant, command: FailMessageCommand, copies: Sequence[Copies]
) -> Refusal | None:
    """Why the failure isn't counted; None if it is. Finishing what is before the message makes no
    new range, so that no bound of them is near."""
    if copies:
        return Malformed("a message that stays in front of its queue is not copied")
    topic = _held(owners, meant, command)
    if not isinstance(topic, TopicState):
        return topic
    place = Place(command.group, topic.incarnation, command.queue_id)
    frontier = owners.offsets.of(command.group, topic.name)[command.queue_id]
    if is_finished(frontier, owners.leases.of(place).finished, command.offset):
        return FinishedAlready(command.queue_id, command.offset)
    return owners.attempts.refusal_of(place, Failed(command.offset, command.failures))


def refusal_of_fire(
    owners: Owners,
    meant: Meant,
    command: FireDelayedCommand,
    copies: Sequence[Copies],
    append_time_ms: int,
) -> Refusal | None:
    """Why the level doesn't move on, and its copies are void; None if it does."""
    topic = meant(TopicRef(SCHEDULE_TOPIC, command.incarnation))
    if not isinstance(topic, TopicState):
        return topic
    ends = topic.next_offsets
    if command.queue_id >= len(ends) or command.end > ends[command.queue_id]:
        return OffsetOutOfRange(topic.name, command.queue_id, command.end)
    moved = sum(each.record_count for each in copies)
    if moved > command.end - command.first or any(
        not each.topic.name.startswith(RETRY_PREFIX) for each in copies
    ):
        return Malformed("what is due goes to retry topics, each once")
    return owners.retries.refusal_of_fire(fired_of(command), append_time_ms)


def refusal_of_resend(
    owners: Owners,
    meant: Meant,
    command: ResendCommand,
    copies: Sequence[Copies],
    before: Before,
) -> Refusal | None:
    """Why the dead letter isn't sent again, and its copy void; None if it is."""
    if [each.record_count for each in copies] != [1]:
        return Malformed("a dead letter is sent again once")
    topic = meant(TopicRef(command.topic, command.incarnation))
    if not isinstance(topic, TopicState):
        return topic
    ends = topic.next_offsets
    if not topic.name.startswith(DEAD_LETTER_PREFIX):
        return Malformed(f"topic {topic.name} has no dead letters")
    if command.queue_id >= len(ends) or command.offset >= ends[command.queue_id]:
        return OffsetOutOfRange(topic.name, command.queue_id, command.offset)
    queue = Queue(topic.incarnation, command.queue_id)
    refusal = owners.retries.refusal_of_resend(queue, command.offset, before.resent)
    if isinstance(refusal, TooManyRanges):
        return _of_queue(topic, command.queue_id, refusal)
    if refusal is None:
        before.resent += 1
    return refusal


def send_back(owners: Owners, command: SendBackCommand, topic: TopicState, lived_ms: int) -> None:
    """The message is finished for its group; it was judged."""
    place = Place(command.group, topic.incarnation, command.queue_id)
    _finish(owners, place, topic, ((command.offset, command.offset + 1),))
    owners.groups.use(command.group, lived_ms)


def fail(owners: Owners, command: FailMessageCommand, topic: TopicState, lived_ms: int) -> None:
    """The message, in front of its queue, has failed once more; it was judged."""
    place = Place(command.group, topic.incarnation, command.queue_id)
    frontier = _finish(owners, place, topic, ((0, command.offset),) if command.offset else ())
    if frontier == command.offset:  # else a unit of this entry has finished more
        owners.attempts.fail(place, command.offset)
    owners.groups.use(command.group, lived_ms)


def _finish(owners: Owners, place: Place, topic: TopicState, done: Ranges) -> int:
    """The frontier, where that is finished as well."""
    frontier = owners.offsets.of(place.group, topic.name)[place.queue_id]
    frontier, finished = united(frontier, owners.leases.of(place).finished, done)
    owners.leases.progress(place, finished)
    commit = OffsetCommit(place.group, topic.name, ((place.queue_id, frontier),), is_reset=False)
    refusal = owners.offsets.commit(commit, topic.next_offsets)
    if refusal is not None:
        raise InvariantViolation(f"what failed was judged, and is {refusal}")
    owners.attempts.on_frontier(place, frontier)
    return frontier


def fired_of(command: FireDelayedCommand) -> Fired:
    """The command as a value."""
    queue = Queue(command.incarnation, command.queue_id)
    return Fired(queue, command.first, command.end, command.due_ms)


def _of_queue(topic: TopicState, queue_id: int, why: QueueRefusal) -> PartlyRefused:
    return PartlyRefused((QueueRefused(topic.name, topic.incarnation, queue_id, why),))
