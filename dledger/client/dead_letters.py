"""Dead letters of a consumer group: which there are, and those that are sent again (ADR 58).

They are messages of the topic %DLQ%group, which is read like any other; what was sent again of them
the brokers know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dledger.client.arguments import offset_number, u32
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import GET_DEAD_LETTERS, RESEND_DEAD_LETTER
from dledger.client.members.finished import decode_runs
from dledger.client.members.settings import group_name
from dledger.wire import groups_pb2 as gpb


@dataclass(frozen=True, slots=True)
class DeadQueue:
    """A queue of dead letters: its first and one past its last offset, and the runs of them, by
    first and one past the last, that were sent again."""

    queue_id: int
    min_offset: int
    max_offset: int
    resent: tuple[tuple[int, int], ...] = ()

    def was_resent(self, offset: int) -> bool:
        """Whether the one at that offset was sent again."""
        return any(first <= offset < end for first, end in self.resent)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """A group's: their topic, and its queues; none if nothing was ever put there."""

    topic: str
    queues: tuple[DeadQueue, ...]

    @property
    def count(self) -> int:
        """How many are held, those that were sent again too."""
        return sum(each.max_offset - each.min_offset for each in self.queues)


class Resent(NamedTuple):
    """A dead letter that is a message again; `queue_id` and `offset` None: it was before, and where
    to isn't known (an empty `topic`) if the letter has gone since."""

    topic: str
    queue_id: int | None
    offset: int | None


async def dead_letters(
    broker_group: BrokerGroup, group: str, deadline_s: float | None
) -> DeadLetters:
    """See `Client.dead_letters`."""
    answer = await broker_group.call(
        GET_DEAD_LETTERS,
        gpb.GetDeadLettersRequest(group=group_name(group)),
        Effect.NONE,
        deadline_s=deadline_s,
    )
    queues = (
        DeadQueue(q.queue_id, q.min_offset, q.max_offset, tuple(decode_runs(0, q.resent)))
        for q in answer.queues
    )
    return DeadLetters(answer.topic, tuple(queues))


async def resend(
    broker_group: BrokerGroup, group: str, offset: int, queue_id: int, deadline_s: float | None
) -> Resent:
    """See `Client.resend`."""
    request = gpb.ResendDeadLetterRequest(
        group=group_name(group),
        queue_id=u32("queue id", queue_id),
        offset=offset_number("offset", offset),
    )
    answer = await broker_group.call(
        RESEND_DEAD_LETTER, request, Effect.IDEMPOTENT, deadline_s=deadline_s
    )
    if not answer.resent:
        return Resent(answer.topic, None, None)
    return Resent(answer.topic, answer.queue_id, answer.offset)
