"""Messages that failed, at fake nodes: they wait, come again, and end as dead letters.

The contract is docs/adr/0058-retry-and-dead-letters.md's and, in order, 0063's, as far as a client
can see it: a message that is sent back is finished where it was, and its copy is in %RETRY%group
after a while, or in %DLQ%group; in order it stays, and its failures are counted. What real brokers
take from the level of a copy, 10 s and more, is one short time here, and a test may set it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from dledger.client.members.finished import Finished, encode_runs
from dledger.records.layout import RECORD
from dledger.records.properties import encode_properties
from dledger.records.record import DecodedRecord, RecordTemplate, decode_records
from dledger.records.reserved import (
    DEAD_REASON,
    DEFAULT_ATTEMPTS,
    EXHAUSTED,
    FAILED_TIME,
    ORIGIN_MESSAGE_ID,
    ORIGIN_OFFSET,
    ORIGIN_QUEUE,
    ORIGIN_TIME,
    ORIGIN_TOPIC,
    OWN_PROPERTIES,
    REJECTED,
    RETRY_PREFIX,
    dead_letter_topic,
    retry_topic,
)
from dledger.testing.fake_members import MAX_RUNS, FakeMembers, FakePlace, FakeRecord
from dledger.testing.fake_model import Model
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as gpb

MAX_SENT_BACK = 256
RECONSUMED = RECORD.run("reconsume_times")


class Nodes(Protocol):
    """The group of nodes."""

    model: Model
    members: FakeMembers


class FakeRetries:
    """What has failed, of all consumer groups of a group of fake nodes."""

    def __init__(self, group: Nodes) -> None:
        self._group = group
        group.model.when_deleted.append(self._forget)
        self.delay_s = 0.05  # before a message that failed comes again, whatever its level
        # False: as brokers that can't take anything back now; their members keep what failed.
        self.takes_failed = True
        self._waiting: list[tuple[float, str, bytes]] = []  # due when, for which topic
        self._resent: dict[str, set[int]] = {}  # by topic of dead letters
        self._failures: dict[tuple[str, FakePlace, int], int] = {}  # in order, by offset

    # --- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> bool:
        """What has waited long enough comes again; whether anything does."""
        due = [each for each in self._waiting if each[0] <= now]
        self._waiting = [each for each in self._waiting if each[0] > now]
        for _, topic, record in due:
            self._group.model.add(topic, record)
        return bool(due)

    def stand_still(self, seconds: float) -> None:
        """Nobody leads: that time doesn't count."""
        self._waiting = [(due + seconds, topic, each) for due, topic, each in self._waiting]

    def _forget(self, topic: str) -> None:
        """The topic is deleted."""
        self._waiting = [each for each in self._waiting if each[1] != topic]
        self._resent.pop(topic, None)
        self._failures = {at: n for at, n in self._failures.items() if at[1].topic != topic}

    def waits(self, topic: str) -> bool:
        """Whether something waits to come to that topic."""
        return any(each[1] == topic for each in self._waiting)

    # --- members ------------------------------------------------------------------------------

    def failures(self, group: str, place: FakePlace, offset: int) -> int:
        """How often the message has failed in its place, in order."""
        return self._failures.get((group, place, offset), 0)

    async def on_SendBack(self, node: object, request: gpb.SendBackRequest) -> gpb.SendBackResponse:
        if not self.takes_failed:
            raise Refusal(wire_error(epb.LIMIT_REACHED, "these fake nodes take nothing back"))
        if not 0 < len(request.messages) <= MAX_SENT_BACK:
            raise Refusal(wire_error(epb.INVALID_ARGUMENT, "1 to 256 messages are sent back"))
        record = self._group.members.of_session(request.group, request.member, request.session)
        if record.settings.broadcast:
            raise Refusal(wire_error(epb.INVALID_ARGUMENT, "broadcast: tried where they are"))
        answer = gpb.SendBackResponse()
        for failed in request.messages:
            try:
                failures = self._send_back(record, request, failed)
            except Refusal as refusal:
                answer.messages.add(error=refusal.error)
            else:
                answer.messages.add(failures=failures)
        await self._group.model.ring()
        return answer

    def _send_back(
        self, record: FakeRecord, request: gpb.SendBackRequest, failed: gpb.FailedMessage
    ) -> int:
        """How often it has failed, if it stays; 0: it is finished where it was.

        Raises:
            Refusal: the queue isn't the member's, or has no such message.
        """
        place = self._group.members.meant(
            FakePlace(failed.topic, failed.incarnation, failed.queue_id)
        )
        lease = record.leases.get(place)
        if lease is None or (lease.session, lease.epoch) != (request.session, failed.epoch):
            raise Refusal(wire_error(epb.LEASE_LOST))
        if failed.offset in record.finished[place]:
            return 0
        self._check_room(record.finished[place], failed.offset)
        message = self._message(place, failed.offset)
        settings, at = record.settings, (request.group, place, failed.offset)
        known = self._failures.get(at, 0)
        was_tried = failed.rejected or not failed.failed or failed.failed > known
        here = known + was_tried
        is_over = bool(settings.max_attempts) and here >= settings.max_attempts
        if settings.orderly and not failed.rejected and not is_over:
            self._failures[at] = here
            return here
        is_copy = place.topic == retry_topic(request.group)
        count = here + (message.reconsume_times if is_copy else 0)
        is_over = is_over or count >= (settings.max_attempts or DEFAULT_ATTEMPTS)
        if failed.rejected or is_over:
            self.bury([message], request.group, count, REJECTED if failed.rejected else EXHAUSTED)
        else:
            topic = retry_topic(request.group)
            self._group.model.ensure(topic)
            due = asyncio.get_running_loop().time() + self.delay_s
            self._waiting.append((due, topic, _copy(message, topic, _origin(message), count)))
        self._failures.pop(at, None)
        self._group.members.finish(request.group, place, failed.offset)
        return 0

    def _check_room(self, finished: Finished, offset: int) -> None:
        if offset != finished.frontier and len(finished.runs()) >= MAX_RUNS:
            raise Refusal(wire_error(epb.LIMIT_REACHED, "too many runs"))

    def _message(self, place: FakePlace, offset: int) -> DecodedRecord:
        queue = self._group.model.queue(place.topic, place.queue_id, place.incarnation)
        if not queue.min_offset <= offset < len(queue.records):
            raise Refusal(self._group.model.out_of_range(queue, offset))
        return decode_records(queue.records[offset])[0]

    def bury(self, messages: Iterable[DecodedRecord], group: str, count: int, why: str) -> None:
        """They are dead letters of the group, after so many attempts."""
        topic = dead_letter_topic(group)
        self._group.model.ensure(topic)
        for message in messages:
            properties = _origin(message) | {DEAD_REASON: why}
            self._group.model.add(topic, _copy(message, topic, properties, count))

    # --- dead letters -------------------------------------------------------------------------

    async def on_GetDeadLetters(
        self, node: object, request: gpb.GetDeadLettersRequest
    ) -> gpb.GetDeadLettersResponse:
        topic, model = dead_letter_topic(request.group), self._group.model
        answer = gpb.GetDeadLettersResponse(topic=topic)
        if topic in model.topics:
            answer.incarnation = model.incarnations[topic]
            queue = model.queue(topic, 0)
            resent = sorted(self._resent.get(topic, ()))
            answer.queues.add(
                min_offset=queue.min_offset,
                max_offset=len(queue.records),
                resent=encode_runs(0, _runs(resent)),
            )
        return answer

    async def on_ResendDeadLetter(
        self, node: object, request: gpb.ResendDeadLetterRequest
    ) -> gpb.ResendDeadLetterResponse:
        topic, model = dead_letter_topic(request.group), self._group.model
        place = FakePlace(topic, request.incarnation, request.queue_id)
        letters = model.queue(topic, request.queue_id, request.incarnation)
        done = self._resent.setdefault(topic, set())
        if request.offset in done and request.offset < letters.min_offset:
            return gpb.ResendDeadLetterResponse()  # it has gone since
        message = self._message(place, request.offset)
        properties = message.properties
        origin = properties.get(ORIGIN_TOPIC, "")
        if request.offset in done:
            return gpb.ResendDeadLetterResponse(topic=origin)
        model.queue(origin, 0)  # it is there
        count = model.write_queues.get(origin, len(model.topics[origin]))
        queue_id = int(properties.get(ORIGIN_QUEUE, "0")) % count
        kept = {name: value for name, value in properties.items() if name not in OWN_PROPERTIES}
        offset = model.add(origin, _copy(message, origin, kept, 0, queue_id), queue_id)
        done.add(request.offset)
        await model.ring()
        return gpb.ResendDeadLetterResponse(
            topic=origin, resent=True, queue_id=queue_id, offset=offset
        )


def _origin(message: DecodedRecord) -> dict[str, str]:
    """The properties of a copy: its own, and where the first one lay."""
    properties = message.properties
    now = {FAILED_TIME: str(message.store_time_ms)}
    if message.topic.startswith(RETRY_PREFIX) and ORIGIN_TOPIC in properties:
        return properties | now
    kept = {name: value for name, value in properties.items() if name not in OWN_PROPERTIES}
    return kept | {
        ORIGIN_TOPIC: message.topic,
        ORIGIN_QUEUE: str(message.queue_id),
        ORIGIN_OFFSET: str(message.queue_offset),
        ORIGIN_MESSAGE_ID: message.message_id,
        ORIGIN_TIME: str(message.store_time_ms),
        **now,
    }


def _copy(
    message: DecodedRecord,
    topic: str,
    properties: dict[str, str],
    failures: int,
    queue_id: int = 0,
) -> bytes:
    encoded: Any = RecordTemplate(topic, message.born_host).encode(
        queue_id,
        message.stored_body,
        encode_properties(properties),
        message.born_time_ms,
        message.flag,
        message.sysflag,
    )
    copy = bytearray(encoded)
    RECONSUMED.pack_into(copy, RECORD.at("reconsume_times"), failures)
    return bytes(copy)


def _runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending offsets, those that follow each other as one."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs
