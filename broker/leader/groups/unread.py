"""What a group hasn't finished, by the log alone: for who looks at it, and for who forgets it.

Messages that failed lie in `%RETRY%group` (ADR 58), of which nobody has committed anything before
they are first handed out: they are as unread as those of the topics that the group has named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from broker.leader.groups.starting import Queues
from broker.state.deliveries import Deliveries
from broker.state.groups import Group
from broker.state.handouts import Record
from broker.state.leases import Leases, Place, Ranges
from broker.state.offsets import Offsets
from broker.state.topics import TopicRef, Topics, TopicState
from dledger.records.reserved import RETRY_PREFIX, retry_topic


class State(Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def topics(self) -> Topics: ...
    @property
    def offsets(self) -> Offsets: ...
    @property
    def leases(self) -> Leases: ...
    @property
    def deliveries(self) -> Deliveries: ...


def topics_of(state: State, group: Group) -> list[str]:
    """Those in which it has committed, that it wants, and that of its failed messages; by name."""
    return _topics_of_each(state, [group])[group.name]


def _topics_of_each(state: State, groups: Sequence[Group]) -> dict[str, list[str]]:
    """By group. Looks at all topics, once: there may be ten thousand. In another group's failed
    messages one has committed that is its clone (ADR 61), and is never given any of them."""
    offsets = state.offsets
    found: dict[str, set[str]] = {group.name: set() for group in groups}
    for topic in offsets.topics():
        for name in found.keys() & offsets.groups(topic).keys():
            if not topic.startswith(RETRY_PREFIX) or topic == retry_topic(name):
                found[name].add(topic)
    for group in groups:
        if group.created:
            found[group.name] |= set(group.settings.topics)
        if retry_topic(group.name) in state.topics:
            found[group.name].add(retry_topic(group.name))
    return {name: sorted(topics) for name, topics in found.items()}


def unfinished(first: int, end: int, finished: Ranges) -> int:
    """How many of `[first, end)` aren't in `finished`."""
    return end - first - sum(last - max(at, first) for at, last in finished if last > first)


def left_unread(state: State, reader: Queues, groups: Sequence[Group]) -> dict[str, int]:
    """By group, how many messages nobody finishes if it is forgotten now: what lies behind its
    commits, and what failed. Where it hasn't committed it had nothing to go on from."""
    counts: dict[str, int] = {}
    for group, names in _topics_of_each(state, groups).items():
        topics = [topic for name in names if (topic := state.topics.get(name)) is not None]
        counts[group] = sum(_left(state, reader, group, topic) for topic in topics)
    return counts


def failed_left(state: State, reader: Queues, group: Group) -> int:
    """How many messages lie in the group's retry topic that nobody has finished."""
    topic = state.topics.get(retry_topic(group.name))
    return 0 if topic is None else _left(state, reader, group.name, topic)


def _left(state: State, reader: Queues, group: str, topic: TopicState) -> int:
    ref = TopicRef(topic.name, topic.incarnation)
    count = 0
    for queue_id, frontier in _frontiers(state, group, topic):
        low, high = reader.bounds(ref, queue_id)
        record = state.deliveries.in_topic(group, topic.incarnation).get(queue_id)
        if record is not None:
            count += _unfinished_singles(record, low, high)
            continue
        finished = state.leases.of(Place(group, topic.incarnation, queue_id)).finished
        count += unfinished(max(frontier, low), high, finished)
    return count


def _unfinished_singles(record: Record, low: int, high: int) -> int:
    """How many messages from `low` on are in some hand, or were never handed out."""
    in_hand = record.unfinished
    if low > record.frontier:  # some of it has gone from the log
        in_hand = sum((each.mask >> max(0, low - each.base)).bit_count() for each in record)
    return in_hand + high - max(record.next, low)


def _frontiers(state: State, group: str, topic: TopicState) -> Iterator[tuple[int, int]]:
    """What failed begins with its first message, wherever the group starts elsewhere."""
    committed = state.offsets.of(group, topic.name)
    if topic.name != retry_topic(group):
        yield from committed.items()
        return
    for queue_id in range(len(topic.next_offsets)):
        yield queue_id, committed.get(queue_id, 0)
