"""Messages that failed, on their way back to the brokers, who have them tried again later (ADR 58).

This owns those that were not taken yet: at most what may wait of the member's queues, for each
counts there until the brokers have it. One call is under way at a time, and what fails meanwhile
shares the next. What they can't take is tried again by the member itself, after a pause; nothing is
forgotten, and nothing is finished before they have said that they have it. The exception is what is
gone from the log: nobody can copy it, so its last attempt is the member's to count.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import SEND_BACK
from dledger.client.errors import ClientError, LeaseLost, OffsetOutOfRange, from_wire
from dledger.client.members.clock import clock
from dledger.client.members.member import Member, Returned
from dledger.client.members.process_queue import ProcessQueue, Work
from dledger.client.members.spells import Spells
from dledger.records.reserved import DEFAULT_ATTEMPTS
from dledger.wire import groups_pb2 as gpb

MOST_A_CALL: Final = 256
CALL_S: Final = 10.0

_log = logging.getLogger("dledger.client")


class SendingBack:
    """One member's, from `run` until that is cancelled.

    Args:
        on_settled: a message of the queue was taken, or is here again.
        on_gone: the queue isn't this member's.
    """

    def __init__(
        self,
        broker_group: BrokerGroup,
        group: str,
        name: str,
        member: Member,
        *,
        on_settled: Callable[[ProcessQueue], None],
        on_gone: Callable[[ProcessQueue], None],
    ) -> None:
        self._broker_group = broker_group
        self._group = group
        self._name = name
        self._member = member
        self._on_settled = on_settled
        self._on_gone = on_gone
        self._waiting: deque[Returned] = deque()
        self._spells = Spells()
        self._wakes = asyncio.Event()
        self.sent = 0

    def add(self, returned: Returned) -> None:
        """It is to go back."""
        self._waiting.append(returned)
        self._wakes.set()

    def give_up(self, work: Work) -> None:
        """It is to go back, and wasn't tried: it kills whoever does."""
        returned = self._member.give_up(work)
        _log.warning(
            "group %s: %s, offset %d: whoever had it failed or vanished, %d times; it isn't tried",
            *(self._group, work.queue.place, work.message.queue_offset, returned.failed),
        )
        self.add(returned)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wakes.wait()
            self._wakes.clear()
            while self._waiting:
                count = min(len(self._waiting), MOST_A_CALL)
                await self._send([self._waiting.popleft() for _ in range(count)])

    async def _send(self, messages: Sequence[Returned]) -> None:
        request = gpb.SendBackRequest(
            group=self._group, member=self._name, session=self._member.session
        )
        for work, is_rejected, failed in messages:
            place = work.queue.place
            request.messages.add(
                topic=place.topic,
                incarnation=place.incarnation,
                queue_id=place.queue_id,
                epoch=work.queue.epoch,
                offset=work.message.queue_offset,
                rejected=is_rejected,
                failed=failed,
            )
        try:
            answer = await self._broker_group.call(
                SEND_BACK, request, Effect.IDEMPOTENT, deadline_s=CALL_S
            )
        except ClientError as error:
            _log.warning("group %s: sending back: %s", self._group, error.message)
            for returned in messages:
                self._keep(returned)
            return
        refusing: set[ProcessQueue] = set()
        for returned, sent in zip(messages, answer.messages, strict=True):
            if sent.HasField("error"):
                refusing.add(returned.work.queue)
                self._on_refused(returned, from_wire(sent.error))
            else:
                self._on_taken(returned, sent.failures)
        for returned in messages:  # the lowest one may be taken while others aren't
            if returned.work.queue not in refusing:
                self._spells.ends(returned.work.queue)

    def _on_taken(self, returned: Returned, failures: int) -> None:
        if failures:
            self._member.on_counted(returned.work, failures, clock())
        else:
            self.sent += 1
            self._member.on_sent_back(returned.work)
        self._on_settled(returned.work.queue)

    def _on_refused(self, returned: Returned, failure: ClientError) -> None:
        queue = returned.work.queue
        if isinstance(failure, LeaseLost):
            self._on_gone(queue)
        elif _has_gone(returned, failure) and self._is_last(returned):
            self._give_up(returned)
        else:
            if self._spells.begins(queue, failure):
                _log.warning("group %s: %s: %s", self._group, queue.place, failure.message)
            self._keep(returned)

    def _is_last(self, returned: Returned) -> bool:
        attempts = self._member.rules.max_attempts or DEFAULT_ATTEMPTS
        work = returned.work
        is_given_up = returned.is_rejected or work.queue.is_given_up(work)
        return is_given_up or work.message.attempt >= attempts

    def _give_up(self, returned: Returned) -> None:
        message = returned.work.message
        text = (
            "group %s: %s offset %d: retention has taken it, so it can't be a dead letter: given up"
        )
        _log.error(text, self._group, returned.work.queue.place, message.queue_offset)
        self._member.on_given_up(returned.work)
        self._on_settled(returned.work.queue)

    def _keep(self, returned: Returned) -> None:
        self._member.on_kept(returned.work, clock())
        self._on_settled(returned.work.queue)


def _has_gone(returned: Returned, failure: ClientError) -> bool:
    """Whether the queue begins behind the message: nothing else makes it a message of the past."""
    if not isinstance(failure, OffsetOutOfRange) or failure.valid is None:
        return False
    return returned.work.message.queue_offset < failure.valid[0]
