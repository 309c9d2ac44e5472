"""Dead letters of one handout: each is a copy of its own message, whatever the others are."""

from __future__ import annotations

from typing import Any

from broker.errors import BrokerError
from broker.leader.deliveries.asking import Place
from broker.leader.deliveries.burying import Burying
from broker.leader.units import ProposedUnit, UnitResult
from broker.state.compound import UnitRefusal
from broker.state.handouts import Handout
from broker.state.topics import TopicRef
from dledger.records.record import DecodedRecord, decode_records
from dledger.records.reserved import (
    DEAD_REASON,
    EXHAUSTED,
    ORIGIN_MESSAGE_ID,
    ORIGIN_OFFSET,
    ORIGIN_QUEUE,
    ORIGIN_TIME,
    ORIGIN_TOPIC,
    OWN_PROPERTIES,
)
from tests.broker.test_held_back import Shop

T = TopicRef("t")
BODIES = [b"the first", b"the second", b"the third"]
QUEUE_ID = 1
ORIGINS = (ORIGIN_TOPIC, ORIGIN_QUEUE, ORIGIN_OFFSET, ORIGIN_MESSAGE_ID, ORIGIN_TIME)


class Taken:
    """Units that were proposed, and topics that were made."""

    def __init__(self) -> None:
        self.units: list[ProposedUnit] = []
        self.topics: list[str] = []

    async def propose(self, wanted: ProposedUnit, *, is_single: bool = False) -> UnitResult:
        self.units.append(wanted)
        return UnitResult(None)

    async def make(self, name: str) -> None:
        self.topics.append(name)


def refused(refusal: UnitRefusal) -> BrokerError:
    raise AssertionError(refusal)


def buried() -> tuple[Taken, list[DecodedRecord]]:
    """What is proposed of three messages of one hand, and those as they lie in the log."""
    shop, taken = Shop(), Taken()
    shop.send(QUEUE_ID, b"not in it", *BODIES)
    node = shop.room.leader
    machine = node.replica.machine
    found = node.replica.parts.reader.pull(T, QUEUE_ID, 1, len(BODIES), 1 << 20)
    owner: Any = taken
    burying = Burying(machine, owner, owner, refused)
    place = Place("g", "t", machine.topics["t"].incarnation)
    hand = Handout(77, 1, 0b111, 0, b"attempt!", 3)
    shop.room.world.run(node, burying.bury(place, QUEUE_ID, hand, found, 3))
    return taken, decode_records(found.records)


def test_each_dead_letter_of_a_hand_is_a_copy_of_its_own_message() -> None:
    taken, messages = buried()
    (unit,) = taken.units
    copies = [record for each in unit.batches for record in decode_records(each.records)]
    assert [each.body for each in copies] == BODIES
    assert {each.topic for each in copies} == set(taken.topics) == {"%DLQ%g"}
    for copy, message in zip(copies, messages, strict=True):
        theirs = {n: each for n, each in copy.properties.items() if n not in OWN_PROPERTIES}
        assert (theirs, copy.flag) == (message.properties, message.flag)
        assert copy.reconsume_times == 3
        said = {name: copy.properties[name] for name in (*ORIGINS, DEAD_REASON)}
        assert said == {
            ORIGIN_TOPIC: "t",
            ORIGIN_QUEUE: str(QUEUE_ID),
            ORIGIN_OFFSET: str(message.queue_offset),
            ORIGIN_MESSAGE_ID: message.message_id,
            ORIGIN_TIME: str(message.store_time_ms),
            DEAD_REASON: EXHAUSTED,
        }


def test_those_that_are_dead_letters_are_those_that_are_finished() -> None:
    """Of that hand, and no others of it."""
    taken, messages = buried()
    (unit,) = taken.units
    (command,) = unit.commands
    assert (command.bury.handout, command.bury.base) == (77, messages[0].queue_offset)
    assert command.bury.mask == 0b111
