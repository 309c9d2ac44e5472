"""Dead letters of messages that were handed out as often as they may be (ADR 63).

A copy of each in %DLQ%group, and *finished* for its handout, are one unit: who leads next has both,
or hands them out again. This reads nothing and chooses nothing: a desk does.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.errors import BrokerError, ErrorCode
from broker.leader.deliveries.asking import Place
from broker.leader.deliveries.desk import UnitTaker
from broker.leader.retries.copies import Failure, copy_of
from broker.leader.retries.own_topics import OwnTopics
from broker.leader.units import ProposedUnit
from broker.reading.queues import Found
from broker.state.compound import UnitRefusal
from broker.state.handouts import Handout
from broker.state.machine import StateMachine
from dledger.records.errors import InvalidProperties, InvalidRecord
from dledger.records.record import decode_records
from dledger.records.reserved import EXHAUSTED, dead_letter_topic
from dledger.wire.commands_pb2 import BuryCommand, Command


class Burying:
    """While this node leads."""

    def __init__(
        self,
        state: StateMachine,
        units: UnitTaker,
        topics: OwnTopics,
        refused: Callable[[UnitRefusal], BrokerError],
    ) -> None:
        self._state = state
        self._units = units
        self._topics = topics
        self._refused = refused

    async def bury(
        self, place: Place, queue_id: int, handout: Handout, found: Found, attempts: int
    ) -> None:
        """The messages, which follow each other, are dead letters, and finished.

        Raises:
            BrokerError: they aren't: there is no room for the topic, or for what a copy adds.
        """
        records = decode_records(found.records)
        if not records:
            raise BrokerError(ErrorCode.MESSAGE_NOT_FOUND, "what was handed out can't be read")
        refusal = await self._topics.make(dead_letter_topic(place.group))
        if refusal is not None:
            raise self._refused(refusal)
        failure = Failure(place.group, handout.attempt, self._state.append_time_ms, EXHAUSTED)
        try:
            copies = tuple(copy_of(each, failure) for each in records)
        except (InvalidProperties, InvalidRecord) as error:
            text = f"no copy of the message can be made: {error}"
            raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, text) from error
        command = BuryCommand(
            group=place.group,
            topic=place.topic,
            incarnation=place.incarnation,
            queue_id=queue_id,
            handout=handout.index,
            base=records[0].queue_offset,
            mask=(1 << len(records)) - 1,
            attempts=attempts,
        )
        unit = ProposedUnit(copies, (Command(bury=command),))
        result = await self._units.propose(unit, is_single=True)
        if result.refusal is not None:
            raise self._refused(result.refusal)
