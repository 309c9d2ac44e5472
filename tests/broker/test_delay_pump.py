"""A leader moves what is due from its levels to the retry topics, whoever's and however large."""

from __future__ import annotations

import pytest

from broker.leader.retries.copies import Failure, copy_of
from broker.leader.units import ProposedUnit
from broker.state.retries import Queue
from broker.state.topics import TopicRef
from dledger.reading.compound import MAX_PARTS
from dledger.records.record import decode_records
from dledger.records.reserved import (
    FIRST_RETRY_LEVEL,
    LEVEL_DELAYS_MS,
    LEVELS,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
)
from tests.broker.attended import Room
from tests.broker.leader import batch

QUEUE_ID = FIRST_RETRY_LEVEL - 1
WAIT_MS = LEVEL_DELAYS_MS[QUEUE_ID]


class Levels(Room):
    """A leader with the schedule topic."""

    def __init__(self) -> None:
        super().__init__()
        self.own_topic(SCHEDULE_TOPIC, LEVELS)

    def fail(self, *failed: tuple[str, bytes]) -> None:
        """Messages that those groups couldn't work on wait for the first time."""
        units = self.leader.replica.appender.units
        for group, body in failed:
            (record,) = decode_records(batch(0, body).records)
            copy = copy_of(record, Failure(group, 1, 0))
            with self.leader.running():
                units.propose(ProposedUnit((copy,)))
        self.pass_ms(100)

    def came(self) -> dict[str, list[bytes]]:
        """What lies in the retry topics, by group."""
        found = {}
        for topic in list(self.machine.topics.values()):
            if topic.name.startswith(RETRY_PREFIX):
                found[topic.name[len(RETRY_PREFIX) :]] = self.bodies(topic.name)
        return found

    def bodies(self, topic: str) -> list[bytes]:
        reader, bodies, at = self.leader.replica.reader, list[bytes](), 0
        while True:
            found = reader.pull(TopicRef(topic), 0, at, 1_000, 8 << 20)
            bodies += [each.body for each in decode_records(found.records)]
            if found.next_offset == at:
                return bodies
            at = found.next_offset

    @property
    def left(self) -> int:
        """How many messages the level still has."""
        topic = self.machine.topics[SCHEDULE_TOPIC]
        moved_to = self.machine.retries.moved_to(Queue(topic.incarnation, QUEUE_ID))
        return topic.next_offsets[QUEUE_ID] - moved_to


@pytest.mark.parametrize("groups", [MAX_PARTS, MAX_PARTS + 6, 200])
def test_messages_of_any_number_of_groups_come_again(groups: int) -> None:
    """A unit takes those of 64, so the level goes on from the first one of another."""
    room = Levels()
    names = [f"g{number:03}" for number in range(groups)]
    waits = [(name, f"{at} of {name}".encode()) for at in range(2) for name in names]
    room.fail(*waits)
    assert room.left == len(waits)
    room.pass_ms(WAIT_MS + 5_000)
    assert room.left == 0
    assert room.came() == {n: [body for name, body in waits if name == n] for n in names}
