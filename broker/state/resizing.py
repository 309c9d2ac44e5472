"""What an update of a topic does to several owners: topics, queue numbers, retention and groups'.

As `broker.state.consuming` for members (ADR 60). A queue is never made anew: one that goes keeps
its end and what producers stored in it, begins at its end and is told to nobody; one that comes
back goes on there, and so does every group that was in it.

    the update            what it does
    more read queues      topics, of queues that never were; they begin with their first message
    fewer read queues     retention: those that go begin at their ends; leases of them end; a group
                          that was behind is through: offsets, what leases say is finished,
                          attempts, deliveries
    other write queues    queue numbers: a change, with where every queue ends
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from broker.state.attempts import Attempts
from broker.state.deliveries import Deliveries
from broker.state.groups import Groups
from broker.state.handouts import Record
from broker.state.leases import Leases, Place
from broker.state.log_start import RetiredThrough
from broker.state.offsets import OffsetCommit, Offsets
from broker.state.queue_numbers import Numbers, QueueNumbers
from broker.state.refusals import QueueNumbersWrong, QueuesUnread, Refusal
from broker.state.topic_retention import TopicRetentions
from broker.state.topics import Topics, TopicState
from dledger.core.errors import InvariantViolation
from dledger.wire.commands_pb2 import UpdateTopicCommand

NOT_BEGUN = -1


class Owners(Protocol):
    """`broker.state.machine.StateMachine`, as far as an update concerns it."""

    @property
    def topics(self) -> Topics: ...
    @property
    def queue_numbers(self) -> QueueNumbers: ...
    @property
    def topic_retention(self) -> TopicRetentions: ...
    @property
    def offsets(self) -> Offsets: ...
    @property
    def groups(self) -> Groups: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def attempts(self) -> Attempts: ...
    @property
    def deliveries(self) -> Deliveries: ...
    @property
    def log_start(self) -> RetiredThrough: ...


def resize(
    owners: Owners, topic: TopicState, command: UpdateTopicCommand, index: int
) -> Refusal | None:
    """The topic is read and written as the command says, by entry `index`; or why nothing has
    changed."""
    count = len(topic.next_offsets)
    numbers = owners.queue_numbers
    now = numbers.of(topic.incarnation, count)
    wanted = numbers.wanted(topic.incarnation, count, command.read_queues, command.write_queues)
    if isinstance(wanted, QueueNumbersWrong):
        return wanted
    going = range(wanted.read_queues, now.read_queues)
    if going and not command.drop:
        unread = _unread(owners, topic, going)
        if unread is not None:
            return unread
    first_index = owners.log_start.first_index
    refusal: Refusal | None = numbers.too_many(topic.incarnation, wanted, first_index)
    refusal = refusal or owners.topics.refusal_to_grow(topic, wanted.read_queues)
    if refusal is not None:
        return refusal
    numbers.update(
        topic.incarnation, wanted, topic.next_offsets, index=index, first_index=first_index
    )
    _grow(owners, topic, wanted)
    _let_go(owners, topic, going)
    return None


def _unread(owners: Owners, topic: TopicState, queues: Iterable[int]) -> QueuesUnread | None:
    """A group that reads the topic and hasn't finished one of the queues; by name, as who began
    with a snapshot may know them in another order."""
    ends = topic.next_offsets
    held = _held(owners, topic, queues)
    committed = owners.offsets.groups(topic.name)
    for name in sorted({*committed, *_waiting(owners, topic)}):
        known = committed.get(name, {})
        for queue in held:
            if known.get(queue, NOT_BEGUN) < ends[queue]:
                return QueuesUnread(
                    topic.name, name, queue, known.get(queue, NOT_BEGUN), ends[queue]
                )
    return None


def _held(owners: Owners, topic: TopicState, queues: Iterable[int]) -> list[int]:
    """Those that hold messages which are there to be read."""
    ends, retention = topic.next_offsets, owners.topic_retention
    return [queue for queue in queues if retention.start_of(topic.incarnation, queue) < ends[queue]]


def _waiting(owners: Owners, topic: TopicState) -> Iterator[str]:
    """The groups that have joined for the topic and whose offsets are in the log."""
    for group in owners.groups:
        if not group.created:
            continue  # it has only committed, and no settings
        if not group.settings.is_broadcast and topic.name in group.settings.topics:
            yield group.name


def unclaimed(
    owners: Owners,
    topic: TopicState,
    read_queues: int,
    write_queues: int,
    is_coming: Callable[[int], bool],
) -> int | None:
    """A queue that would go and holds messages, of a topic that no group is known to read. When it
    is applied an update takes it (a rule of level 9): this is for who proposes one.

    Args:
        is_coming: whether messages for a queue are on their way into the log: they are applied
            before the update is, and would go with the queue.
    """
    held = held_of_those_that_go(owners, topic, read_queues, write_queues, is_coming)
    if not held or owners.offsets.groups(topic.name) or any(_waiting(owners, topic)):
        return None
    return held[0]


def broadcasting(
    owners: Owners,
    topic: TopicState,
    read_queues: int,
    write_queues: int,
    is_coming: Callable[[int], bool],
) -> tuple[str, int] | None:
    """A group that broadcasts and has members for the topic, and a queue that would go and holds
    messages: how far they are is in no log. As `unclaimed`, for who proposes an update."""
    held = held_of_those_that_go(owners, topic, read_queues, write_queues, is_coming)
    for group in owners.groups if held else ():
        is_at_work = group.members and group.settings.is_broadcast
        if is_at_work and any(topic.name in each.topics for each in group.versions.values()):
            return group.name, held[0]
    return None


def retired(
    owners: Owners,
    topic: TopicState,
    read_queues: int,
    write_queues: int,
    is_empty: Callable[[int], bool],
) -> bool:
    """Whether queues would go, and it is decided of all they ever held that it goes by the log's
    retention: they take no messages since an entry that is no later than the first one which is
    kept. A rule of applying doesn't know this: as `unclaimed`, for who proposes an update.

    Args:
        is_empty: whether nothing in a queue can be read here any more. What is decided is carried
            out later, and may be given to somebody until then.
    """
    held = held_of_those_that_go(owners, topic, read_queues, write_queues, _is_never_coming)
    closed = [owners.queue_numbers.closed(topic.incarnation, queue) for queue in held]
    first_index = owners.log_start.first_index
    is_decided = bool(held) and all(at is not None and at <= first_index for at in closed)
    return is_decided and all(map(is_empty, held))


def _is_never_coming(queue: int) -> bool:
    return False


def held_of_those_that_go(
    owners: Owners,
    topic: TopicState,
    read_queues: int,
    write_queues: int,
    is_coming: Callable[[int], bool],
) -> list[int]:
    """The queues that would go, and hold messages or are about to."""
    count, numbers = len(topic.next_offsets), owners.queue_numbers
    wanted = numbers.wanted(topic.incarnation, count, read_queues, write_queues)
    if isinstance(wanted, QueueNumbersWrong):
        return []  # it is refused for that
    now = numbers.of(topic.incarnation, count)
    going = range(wanted.read_queues, now.read_queues)
    return sorted({*_held(owners, topic, going), *filter(is_coming, going)})


def _grow(owners: Owners, topic: TopicState, wanted: Numbers) -> None:
    """The queues that never were are there."""
    owners.topics.grow(topic, wanted.read_queues)
    owners.topic_retention.on_topic_grown(topic.incarnation, len(topic.next_offsets))


def _let_go(owners: Owners, topic: TopicState, going: range) -> None:
    """Nothing of these queues may be read any more, nobody holds them, and every group that is in
    one is through with it: grown again they begin at their ends, and who went on before that would
    be told that its next message has gone. All groups in one turn: so of each owner only what it
    has in these queues is looked at."""
    ends = topic.next_offsets
    starts = [(queue, ends[queue]) for queue in going]
    refusal = owners.topic_retention.move(topic.incarnation, starts, ends)
    if refusal is not None:
        raise InvariantViolation(f"a queue can begin at its end: {refusal}")
    _pass_over(owners, topic, going)
    for group in owners.leases.groups(topic.incarnation):
        held = owners.leases.in_topic(group, topic.incarnation)
        for queue in [queue for queue in going if queue in held]:
            owners.leases.move(Place(group, topic.incarnation, queue), ())
    for place in owners.attempts.in_topic(topic.incarnation):
        if place.queue_id in going:
            owners.attempts.on_frontier(place, ends[place.queue_id])
    for group in owners.deliveries.groups(topic.incarnation):
        records = owners.deliveries.in_topic(group, topic.incarnation)
        done = {queue: Record(ends[queue]) for queue in going if queue in records}
        is_fifo = owners.deliveries.is_fifo(group, topic.incarnation)
        owners.deliveries.put(group, topic.incarnation, done, is_fifo=bool(is_fifo))


def _pass_over(owners: Owners, topic: TopicState, going: range) -> None:
    """Each group that has committed in one of these queues has committed its end."""
    ends = topic.next_offsets
    for group, known in tuple(owners.offsets.groups(topic.name).items()):
        behind = [
            (queue, ends[queue])
            for queue in going
            if NOT_BEGUN < known.get(queue, NOT_BEGUN) < ends[queue]
        ]
        if behind:
            commit = OffsetCommit(group, topic.name, tuple(behind), is_reset=False)
            refusal = owners.offsets.commit(commit, ends)
            if refusal is not None:
                raise InvariantViolation(f"a group can be at a queue's end: {refusal}")
