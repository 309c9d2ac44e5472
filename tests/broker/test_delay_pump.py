"""A leader moves what is due from its levels to the retry topics, whoever's and however large."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import BatchRules
from broker.leader.retries.copies import Failure as Failed
from broker.leader.retries.copies import copy_of
from broker.leader.retries.own_topics import OwnTopics
from broker.leader.retries.pump import DelayPump, DelayStatistics, Due
from broker.leader.units import ProposedUnit
from broker.state.refusals import Refusal, TooManyQueues
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
    retry_topic,
)
from tests.broker.attended import Room
from tests.broker.leader import batch
from tests.node.machine import SEGMENT

QUEUE_ID = FIRST_RETRY_LEVEL - 1
WAIT_MS = LEVEL_DELAYS_MS[QUEUE_ID]


LARGE = b"x" * (2 << 20)
LOWERED = 1 << 10  # the largest body, as an operator has set it since


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
            copy = copy_of(record, Failed(group, 1, 0))
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

    def lower(self) -> None:
        """The leader has started again, and takes no messages larger than that."""
        node = self.leader
        broker = node.config.broker.model_copy(update={"max_message_bytes": LOWERED})
        node.kill()
        node.config = node.config.model_copy(update={"broker": broker})
        node.boot()
        self.pass_ms(0)

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


def test_what_waits_comes_again_however_small_messages_have_to_be_since() -> None:
    """It was taken when it was sent; nobody else may send anything as large."""
    room = Levels()
    room.fail(("a", LARGE), ("b", b"small"))
    room.lower()
    room.pass_ms(WAIT_MS + 5_000)
    assert room.left == 0
    assert room.came() == {"a": [LARGE], "b": [b"small"]}
    node = room.leader
    with node.running():
        sent = node.replica.appender.send(b"", [batch(0, LARGE)])
    (answer,) = sent.result()
    assert isinstance(answer, Failure)
    assert answer.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(("body_bytes", "is_taken"), [(4 << 20, True), ((4 << 20) + 1, False)])
def test_a_copy_is_judged_by_the_largest_message_that_there_is(
    body_bytes: int, is_taken: bool
) -> None:
    rules = BatchRules(LOWERED, SEGMENT)
    (record,) = decode_records(batch(0, b"x" * body_bytes).records)
    copy = copy_of(record, Failed("g", 1, 0))
    assert copy.is_copy
    with contextlib.nullcontext() if is_taken else pytest.raises(BrokerError, match="limit is"):
        assert rules.record_starts(copy) == [0]
    for sent in (replace(copy, is_copy=False), batch(0, b"x" * (LOWERED + 1))):
        with pytest.raises(BrokerError) as found:
            rules.record_starts(sent)
        assert found.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_units_are_no_larger_than_what_fits_a_segment() -> None:
    assert BatchRules(LOWERED, SEGMENT).takes_unit(len(LARGE))
    assert not BatchRules(LOWERED, len(LARGE)).takes_unit(len(LARGE))
    assert not BatchRules(LOWERED, 1 << 30).takes_unit(5 << 20)


def test_a_level_that_cannot_go_on_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it can't: while there is no room for a topic, here."""
    room = Levels()
    room.fail(("a", b"1"), ("b", b"2"))
    delays = room.leader.replica.parts.delays
    make, full = OwnTopics.make, TooManyQueues(1, 1)

    async def made(topics: OwnTopics, name: str) -> Refusal | None:
        return full if name == retry_topic("b") else await make(topics, name)

    monkeypatch.setattr(OwnTopics, "make", made)
    room.pass_ms(WAIT_MS - 1_000)
    assert delays.statistics().held == 0
    room.pass_ms(3_000)
    assert (room.left, delays.statistics()) == (2, DelayStatistics(0, 1))
    monkeypatch.setattr(OwnTopics, "make", make)
    room.pass_ms(1_000)
    assert (room.left, delays.statistics()) == (0, DelayStatistics(2, 0))


def test_a_level_that_could_not_be_read_for_a_moment_is_not_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of it was due: nobody is to be woken for it."""
    room = Levels()
    delays = room.leader.replica.parts.delays
    due, left = DelayPump._due, 1

    def not_now(self: DelayPump, *arguments: Any) -> Due | int:
        nonlocal left
        if left:
            left -= 1
            raise BrokerError(ErrorCode.NOT_READY, "it is being mended")
        return due(self, *arguments)

    monkeypatch.setattr(DelayPump, "_due", not_now)
    room.fail(("a", b"1"))
    room.pass_ms(3_000)
    assert (left, delays.statistics().held) == (0, 0)
    room.pass_ms(WAIT_MS)
    assert (room.left, delays.statistics()) == (0, DelayStatistics(1, 0))
