"""Messages that failed: sent back by the members that have them, and dead letters sent again
(ADR 58).

What a member says is which message failed, by the epoch of its lease. Everything else is read from
the log here: the message, how often it had failed, where it came from. So a member can neither
invent a message nor miscount. Sent back twice, a message is copied once: the second is told the
same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.errors import Failure as Told
from broker.leader.batches import Batch
from broker.leader.retries.copies import Failure, copy_of, failures_before, resent_copy
from broker.leader.retries.own_topics import OwnTopics
from broker.leader.retries.proposals import Failed, failed_in_place, sent_again, sent_back
from broker.leader.units import ProposedUnit, UnitResult, Units
from broker.reading.queues import QueueReader
from broker.services.gate import Gate
from broker.services.refused import refused, resend_refused, session_ended, unit_refused
from broker.services.soundness import Soundness
from broker.services.updates import QueueOf
from broker.state.compound import UnitRefusal
from broker.state.groups import Group
from broker.state.leases import Place
from broker.state.machine import StateMachine
from broker.state.refusals import (
    CountedAlready,
    FinishedAlready,
    PartlyRefused,
    QueueRefused,
    Refusal,
    SessionUnknown,
)
from broker.state.retries import Queue, Ranges
from broker.state.retrying import is_finished
from broker.state.topics import TopicRef
from dledger.level import DELIVERY_LEVEL, TOPIC_RULES_LEVEL
from dledger.ports import Turns
from dledger.records.errors import InvalidProperties, InvalidRecord
from dledger.records.record import DecodedRecord, decode_records
from dledger.records.reserved import (
    EXHAUSTED,
    GIVEN_UP_AFTER,
    GIVEN_UP_IN_ORDER,
    ORIGIN_QUEUE,
    ORIGIN_TOPIC,
    REJECTED,
    SCHEDULE_TOPIC,
    dead_letter_topic,
    is_reserved,
    retry_topic,
)

MAX_MESSAGES_IN_CALL: Final = 256


class FailedMessage(NamedTuple):
    """A message that a member couldn't work on; `is_rejected`: nobody can. `failed`: how often by
    now as the log counts, if it has counted so many it wasn't tried; 0: once more."""

    queue: QueueOf
    epoch: int
    offset: int
    is_rejected: bool
    failed: int = 0


@dataclass(frozen=True, slots=True)
class SendBack:
    """What a member sends back."""

    group: str
    member: str
    session: int
    messages: tuple[FailedMessage, ...]


class Verdict(NamedTuple):
    """What becomes of a failed message: how often it has failed where it is, whether it stays in
    front of its queue, and whether that was its last attempt there."""

    failures: int
    stays: bool = False
    is_over: bool = False


class _Begun(NamedTuple):
    """A message that was looked at, in that leadership: what is on its way of it, or why nothing is
    (None: nothing need be); and how often it has failed then."""

    leadership: int
    found: asyncio.Future[UnitResult] | UnitRefusal | BrokerError | None
    failures: int = 0


def verdict(group: Group, failed: FailedMessage, known: int) -> Verdict:
    """What becomes of it, where the log has counted `known` failures. Out of order those are ends
    of its holders alone, who may have been at work on anything: attempts only once it is given up.

    Raises:
        BrokerError: INVALID_ARGUMENT, it wasn't tried, and there is no reason for that.
    """
    was_tried = failed.is_rejected or not failed.failed or failed.failed > known
    failures = known + was_tried
    settings = group.settings
    if was_tried and known < GIVEN_UP_AFTER and not settings.is_orderly:
        return Verdict(1)
    if failed.is_rejected:
        return Verdict(failures)
    if settings.is_orderly:
        enough = settings.max_attempts
        if not was_tried:  # the first who vanished may have had another one in hand
            enough = max(enough, GIVEN_UP_IN_ORDER)
        is_over = bool(settings.max_attempts) and failures >= enough
        return Verdict(failures, stays=not is_over, is_over=is_over)
    if not was_tried and known < GIVEN_UP_AFTER:
        text = f"the message at offset {failed.offset} has failed {known} times, and wasn't tried"
        raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
    return Verdict(failures)


class DeadQueue(NamedTuple):
    """A queue of dead letters: bounds, and what was sent again of it."""

    queue_id: int
    min_offset: int
    max_offset: int
    resent: Ranges


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A group's; no queues: it has none."""

    topic: str
    incarnation: int
    queues: tuple[DeadQueue, ...]


class Resent(NamedTuple):
    """Where a dead letter is a message again; None: it was sent again before, and where to isn't
    known (an empty topic) if the letter has gone."""

    topic: str
    place: tuple[int, int] | None  # queue id, offset


class Retries:
    """What members and operators ask for about messages that failed."""

    def __init__(
        self,
        gate: Gate,
        reader: QueueReader,
        soundness: Soundness,
        units: Units,
        topics: OwnTopics,
        state: StateMachine,
        turns: Turns,
    ) -> None:
        self._gate = gate
        self._reader = reader
        self._soundness = soundness
        self._units = units
        self._topics = topics
        self._state = state
        self._turns = turns

    # --- members ------------------------------------------------------------------------------

    async def send_back(self, wish: SendBack) -> tuple[Told | int, ...]:
        """For each message 0, it is finished here and its copy stored on a majority of disks, by
        this call or an earlier one; in order, how often it has failed, where it stays; or why
        neither is so.

        Raises:
            BrokerError: SESSION_ENDED, MEMBER_REPLACED, INVALID_ARGUMENT; NOT_READY, not every
                member of the broker group knows how yet.
        """
        self._check()
        if not 0 < len(wish.messages) <= MAX_MESSAGES_IN_CALL:
            text = f"1 to {MAX_MESSAGES_IN_CALL} messages are sent back, not {len(wish.messages)}"
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        group = await self._gate.surely(lambda: self._group_of(wish))
        begun: list[_Begun] = []
        is_enough = self._turns.share()
        for each in wish.messages:
            if is_enough():
                await self._turns.pause()
                is_enough = self._turns.share()
            begun.append(await self._begin(wish, group, each))
        return tuple(await asyncio.gather(*(self._one(wish, each) for each in begun)))

    def _check(self) -> None:
        self._gate.check_writable()
        level = self._state.level.current
        if level < DELIVERY_LEVEL:
            text = f"level {level} is in use: not every member knows retries yet"
            raise BrokerError(ErrorCode.NOT_READY, text)

    def _group_of(self, wish: SendBack) -> Group:
        """The group, which the session is of."""
        found = self._state.groups.session(wish.session)
        if found is None or (found.group, found.member) != (wish.group, wish.member):
            raise session_ended(self._state.groups, wish.group, wish.member, wish.session)
        group = self._state.groups.get(found.group)
        assert group is not None
        if group.settings.is_broadcast or not all(self._takes(group, m) for m in wish.messages):
            text = f"group {wish.group!r} tries its messages again where they are"
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        return group

    def _takes(self, group: Group, failed: FailedMessage) -> bool:
        is_counted = failed.failed > 0 and self._state.level.current >= TOPIC_RULES_LEVEL
        return failed.is_rejected or is_counted or group.has_retries

    async def _begin(self, wish: SendBack, group: Group, failed: FailedMessage) -> _Begun:
        """The message is read and its copy on its way, if it is to be: that is most of the work."""
        leadership = self._gate.leadership
        try:
            failed = self._in_its_topic(failed)
            refusal = self._refusal(wish, failed)
            if refusal is not None:
                return _Begun(leadership, refusal)
            unit, failures = await self._unit(wish, group, failed)
            proposed = None if unit is None else self._units.propose(unit)
        except BrokerError as error:
            return _Begun(leadership, error)
        return _Begun(leadership, proposed, failures)

    async def _one(self, wish: SendBack, begun: _Begun) -> Told | int:
        try:
            return await self._gate.denying_surely(self._ended(wish, begun), begun.leadership)
        except BrokerError as error:
            return error.failure

    async def _ended(self, wish: SendBack, begun: _Begun) -> int:
        """How often the message has failed, if it stays; 0: it is finished."""
        found = begun.found
        if isinstance(found, BrokerError):
            raise found
        refusal = (await found).refusal if isinstance(found, asyncio.Future) else found
        match refusal:
            case None:
                return begun.failures
            case FinishedAlready():
                return 0
            case CountedAlready(_, known):
                return known
            case SessionUnknown():
                raise session_ended(self._state.groups, wish.group, wish.member, wish.session)
            case _:
                raise unit_refused(refusal)

    async def _unit(
        self, wish: SendBack, group: Group, failed: FailedMessage
    ) -> tuple[ProposedUnit | None, int]:
        """What is to be said of the message, if anything is; and how often it has failed by then
        where it stays, 0 if it doesn't."""
        queue = failed.queue
        known = self._state.attempts.of(Place(wish.group, *queue[1:]), failed.offset)
        here = verdict(group, failed, known)
        at = TopicRef(queue.topic, queue.incarnation), queue.queue_id
        done = Failed(wish.group, wish.session, *at, failed.epoch, failed.offset)
        if here.stays:
            if here.failures == known:
                return None, known
            unit = failed_in_place(done, here.failures, lambda: self._refusal(wish, failed))
            return unit, here.failures
        self._units.check_readable()
        record = self._read(*at, failed.offset)
        count = failures_before(wish.group, record) + here.failures
        dead = REJECTED if failed.is_rejected else ""
        dead = dead or (EXHAUSTED if here.is_over or count >= group.settings.attempts else "")
        failure = Failure(wish.group, count, self._state.append_time_ms, dead)
        batch = _made(lambda: copy_of(record, failure))
        await self._make(batch.topic)
        if batch.topic == SCHEDULE_TOPIC:
            await self._make(retry_topic(wish.group))  # members are given it before it is due
        return sent_back(batch, done, lambda: self._refusal(wish, failed)), 0

    def _in_its_topic(self, failed: FailedMessage) -> FailedMessage:
        """With the incarnation of the topic that it is in, where the caller means whichever there
        is: all that is judged and proposed of it is of one topic then."""
        queue = failed.queue
        topic = self._reader.topic(TopicRef(queue.topic, queue.incarnation))
        return failed._replace(queue=queue._replace(incarnation=topic.incarnation))

    def _refusal(self, wish: SendBack, failed: FailedMessage) -> Refusal | None:
        """What is known already of why the message isn't finished now; None: nothing."""
        queue = failed.queue
        topic = self._reader.topic(TopicRef(queue.topic, queue.incarnation))
        place = Place(wish.group, topic.incarnation, queue.queue_id)
        if self._state.groups.session(wish.session) is None:
            return SessionUnknown(wish.session)
        lost = self._state.leases.refusal_of(place, wish.session, failed.epoch)
        if lost is not None:
            return PartlyRefused((QueueRefused(*queue, lost),))
        frontier = self._state.offsets.of(wish.group, topic.name)[queue.queue_id]
        finished = self._state.leases.of(place).finished
        if is_finished(frontier, finished, failed.offset):
            return FinishedAlready(queue.queue_id, failed.offset)
        return None

    # --- dead letters -------------------------------------------------------------------------

    async def dead_letters(self, group: str) -> DeadLetters:
        """What there is of the group's dead letters.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY.
        """
        await self._gate.confirm()
        topic = self._state.topics.get(dead_letter_topic(group))
        if topic is None:
            return DeadLetters(dead_letter_topic(group), 0, ())
        ref = TopicRef(topic.name, topic.incarnation)
        queues = tuple(
            DeadQueue(
                queue_id,
                *self._reader.bounds(ref, queue_id),
                self._state.retries.resent(Queue(topic.incarnation, queue_id)),
            )
            for queue_id in range(len(topic.next_offsets))
        )
        return DeadLetters(topic.name, topic.incarnation, queues)

    async def resend(self, group: str, incarnation: int, queue_id: int, offset: int) -> Resent:
        """The dead letter is a message of the topic that it came from again, once.

        Args:
            incarnation: of the group's topic of dead letters; 0: whichever there is.

        Raises:
            BrokerError: TOPIC_NOT_FOUND, QUEUE_NOT_FOUND, OFFSET_OUT_OF_RANGE; LIMIT_REACHED;
                whatever a unit meets on its way into the log.
        """
        self._check()
        ref = TopicRef(dead_letter_topic(group), incarnation)
        return await self._gate.denying_surely(self._resend(ref, queue_id, offset))

    async def _resend(self, ref: TopicRef, queue_id: int, offset: int) -> Resent:
        topic = self._reader.topic(ref)
        ref, queue = TopicRef(topic.name, topic.incarnation), Queue(topic.incarnation, queue_id)
        if self._resent(queue, offset) is not None:  # whatever has gone since
            return Resent(self._told_origin(ref, queue_id, offset), None)
        record = self._read(ref, queue_id, offset)
        destination = self._reader.topic(_origin_of(record))
        count = len(destination.next_offsets)
        numbers = self._state.queue_numbers.of(destination.incarnation, count)
        to = _origin_queue(record) % numbers.write_queues
        batch = _made(lambda: resent_copy(record, destination.name, to))
        batch = replace(batch, incarnation=destination.incarnation)
        unit = sent_again(batch, ref, queue_id, offset, lambda: self._resent(queue, offset))
        result = await self._units.propose(unit)
        if isinstance(result.refusal, FinishedAlready):
            return Resent(destination.name, None)
        if result.refusal is not None:
            raise resend_refused(result.refusal)
        return Resent(destination.name, (to, result.placed[0].base_queue_offset))

    def _told_origin(self, ref: TopicRef, queue_id: int, offset: int) -> str:
        """Where the dead letter came from; empty if that can't be read any more, or now."""
        try:
            return _origin_of(self._read(ref, queue_id, offset)).name
        except BrokerError:
            return ""

    def _resent(self, queue: Queue, offset: int) -> Refusal | None:
        is_done = self._state.retries.was_resent(queue, offset)
        return FinishedAlready(queue.queue_id, offset) if is_done else None

    # --- both ---------------------------------------------------------------------------------

    def _read(self, topic: TopicRef, queue_id: int, offset: int) -> DecodedRecord:
        """The message there.

        Raises:
            BrokerError: MESSAGE_NOT_FOUND, OFFSET_OUT_OF_RANGE, NOT_READY.
        """
        found = self._soundness.read(lambda: self._reader.pull(topic, queue_id, offset, 1, 1))
        if not found.count or found.void_count:
            text = f"no message is at offset {offset} of {topic.name}/{queue_id}"
            raise BrokerError(ErrorCode.MESSAGE_NOT_FOUND, text)
        return decode_records(found.records)[0]

    async def _make(self, topic: str) -> None:
        refusal = await self._topics.make(topic)
        if refusal is not None:
            raise refused(refusal)


def _origin_of(record: DecodedRecord) -> TopicRef:
    """The topic that a dead letter was first sent to.

    Raises:
        BrokerError: INVALID_ARGUMENT, it doesn't say.
    """
    topic = record.properties.get(ORIGIN_TOPIC, "")
    if not topic or is_reserved(topic):
        text = f"the message at offset {record.queue_offset} doesn't say where it came from"
        raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
    return TopicRef(topic)


def _origin_queue(record: DecodedRecord) -> int:
    queue_id = record.properties.get(ORIGIN_QUEUE, "")
    return int(queue_id) if queue_id.isdecimal() else record.queue_offset


def _made(make: Callable[[], Batch]) -> Batch:
    """A copy.

    Raises:
        BrokerError: MESSAGE_TOO_LARGE, there is no room in it for what the brokers add.
    """
    try:
        return make()
    except (InvalidProperties, InvalidRecord) as error:
        text = f"no copy of the message can be made: {error}"
        raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, text) from error
