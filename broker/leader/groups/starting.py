"""Where a group starts in the queues of a topic, as its settings wish.

By time that reads the log, some entries for each queue, so it goes in steps (ADR 64). Asked once
for each queue, when the first lease in it is granted; the answer is written into the log
with that grant, and nobody asks again. What is younger than the group, topic or queue, starts with
its first message: the group was there before it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple, Protocol

from broker.leader.groups.steps import Steps, at_once
from broker.state.groups import Group, Start
from broker.state.topics import TopicRef, TopicState
from dledger.records.reserved import is_reserved


class Queues(Protocol):
    """`broker.reading.queues.QueueReader`, as far as it is used here."""

    def bounds(self, topic: TopicRef, queue_id: int) -> tuple[int, int]: ...
    def offset_by_time_in_steps(
        self, topic: TopicRef, queue_id: int, time_ms: int
    ) -> Generator[None, None, int]: ...


class Asked(NamedTuple):
    """What the answer is of: while it is the same, so are offsets by time."""

    incarnation: int
    queues: int
    started: int
    created: int
    time_ms: int


def by_time(group: Group, topic: TopicState, started: int) -> Asked | None:
    """What is to be looked for in the log; None: nothing."""
    queues, settings = len(topic.next_offsets), group.settings
    if started == queues or wish_of(group, topic, started) is not Start.TIME:
        return None
    return Asked(topic.incarnation, queues, started, group.created, settings.start_time_ms)


def wish_of(group: Group, topic: TopicState, started: int) -> Start:
    """At what the group starts in the queues of the topic from `started` on."""
    # What failed before is none of a group's wishes, and neither is what comes after it was made.
    is_all = started or topic.incarnation > group.created or is_reserved(topic.name)
    return Start.FIRST if is_all else group.settings.start


def starts(reader: Queues, group: Group, topic: TopicState, started: int) -> Steps[Sequence[int]]:
    """Where the group starts in each queue of the topic from `started` on; an entry a step.

    Raises:
        BrokerError, StoreError: it can't be told now.
    """
    ref, settings = TopicRef(topic.name, topic.incarnation), group.settings
    wish = wish_of(group, topic, started)
    found: list[int] = []
    for queue_id in range(started, len(topic.next_offsets)):
        first, last = reader.bounds(ref, queue_id)
        match wish:
            case Start.FIRST:
                found.append(first)
            case Start.LAST:
                found.append(last)
            case Start.TIME:
                time_ms = settings.start_time_ms
                found.append((yield from reader.offset_by_time_in_steps(ref, queue_id, time_ms)))
    return found


class Beginnings:
    """Where one group starts by time, as far as it was found. That stays so, whoever comes or goes
    meanwhile."""

    def __init__(self) -> None:
        self._found: dict[Asked, Sequence[int]] = {}  # and not granted yet

    def is_unknown(self, group: Group, topic: TopicState, started: int) -> bool:
        """Whether it is to be looked for before the topic's next queue is granted."""
        asked = by_time(group, topic, started)
        return asked is not None and asked not in self._found

    def look(
        self, reader: Queues, group: Group, topics: Sequence[tuple[TopicState, int]]
    ) -> Steps[None]:
        """It is known of these topics, in each of which the group has started in so many queues.

        Raises:
            BrokerError, StoreError: see `starts`.
        """
        for topic, started in topics:
            if (asked := by_time(group, topic, started)) is not None:
                self._found[asked] = yield from starts(reader, group, topic, started)

    def take(self, reader: Queues, group: Group, topic: TopicState, started: int) -> Sequence[int]:
        """Where the group starts in the queues from `started` on, in one turn; by time what is
        known, and nothing else: what has gone from a queue's front since is passed over.

        Raises:
            BrokerError, StoreError: see `starts`.
        """
        asked = by_time(group, topic, started)
        if asked is None:
            return at_once(starts(reader, group, topic, started))
        ref, found = TopicRef(topic.name, topic.incarnation), self._found.pop(asked, ())
        return [max(at, reader.bounds(ref, queue)[0]) for queue, at in enumerate(found, started)]
