"""Says from where on the messages of topics are kept that wish it shorter than the group.

A leader that serves looks now and then at some queues of such topics, and proposes that they begin
behind what is older than the topic wishes (`broker.state.topic_retention`). Ages are lived time, as
of the log's segments (`broker.leader.retention`), and counted the same way: what is taken for a
message's age is never more than it is. It must never propose more than the wish says.

An entry that moves a queue's start costs as much as any, so messages may be read longer than is
wished by a slack: a twentieth of the wish, or `SLACK_MS` if that is more. Half of it passes before
a move is proposed, and within the other half all queues are looked at, however many there are; but
no look takes longer than the time to the next one, as what else is old waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, Protocol

import structlog

from broker.errors import BrokerError
from broker.leader.commands import Commands
from broker.leader.lived_marks import Lived
from broker.state.machine import StateMachine
from broker.state.topics import TopicRef, TopicState
from dledger.resting import rest_after

SLACK_MS: Final = 60_000
SLACK_SHARE: Final = 20
QUEUES_A_LOOK: Final = 64  # at least, of some 40 reads of the log each; the next goes on from there
LOOK_S: Final = 10.0

log = structlog.get_logger(__name__)

Starts = tuple[tuple[int, int], ...]  # (queue id, offset)


class Queues(Protocol):
    """`broker.reading.queues.QueueReader`, as far as it is used here."""

    def bounds(self, topic: TopicRef, queue_id: int) -> tuple[int, int]: ...
    def offset_by_time(self, topic: TopicRef, queue_id: int, time_ms: int) -> int: ...


class TopicRetention:
    """One replica's; `look` is called while it leads.

    Args:
        is_mended: whether an error tells of rot that is being repaired.
        slack_ms: see the module.
        look_s: from the end of a look to the next one; none takes longer.
    """

    def __init__(
        self,
        machine: StateMachine,
        queues: Queues,
        commands: Commands,
        is_mended: Callable[[BaseException], bool],
        slack_ms: int = SLACK_MS,
        look_s: float = LOOK_S,
    ) -> None:
        self._machine = machine
        self._queues = queues
        self._commands = commands
        self._is_mended = is_mended
        self._slack_ms = slack_ms
        self._look_s = look_s
        self._next = (0, 0)  # incarnation and queue, at which the next look begins
        self._refused = ""

    def longest_ms(self) -> int:
        """The longest wish; 0: there is none."""
        return max(self._machine.topic_retention.wishes().values(), default=0)

    def are_changing(self) -> bool:
        """Whether a wish is on its way into the log: what the applied ones say may be too short."""
        return bool(self._commands.wishing)

    async def look(self, now: Callable[[], Awaitable[Lived]]) -> None:
        """Some queues are looked at, and those that should begin later are proposed to."""
        topics = self._wishing()
        if not topics:
            return
        measured, loop = await now(), asyncio.get_running_loop()
        left, until_s = self._queues_a_look(topics), loop.time() + self._look_s
        for topic, wish_ms in self._in_turn(topics):
            starts: list[tuple[int, int]] = []
            first = self._next[1] if self._next[0] == topic.incarnation else 0
            last = min(len(topic.next_offsets), first + left)
            for queue_id in range(first, last):
                began_s = loop.time()
                start = self._start(topic, queue_id, measured, wish_ms)
                if start is not None:
                    starts.append((queue_id, start))
                # The oldest are the coldest on the disk.
                await asyncio.sleep(rest_after(loop.time() - began_s))
                if loop.time() >= until_s:
                    left, last = 0, queue_id + 1
                    break
            left -= last - first
            is_through = last == len(topic.next_offsets)
            self._next = (topic.incarnation + is_through, 0 if is_through else last)
            if starts:
                await self._move(topic, tuple(starts), wish_ms)
            if left <= 0:
                return

    def _queues_a_look(self, topics: Sequence[tuple[TopicState, int]]) -> int:
        """As many as it takes to look at all of them within half of the least slack. A look may
        take as long as the pause behind it, which is what the time to the next one begins with."""
        queues = sum(len(topic.next_offsets) for topic, _ in topics)
        lap_s = min(self._slack_of(wish_ms) for _, wish_ms in topics) / 2000
        looks = max(1, int(lap_s / (2 * self._look_s)))
        return max(QUEUES_A_LOOK, math.ceil(queues / looks))

    def _slack_of(self, wish_ms: int) -> int:
        return max(self._slack_ms, wish_ms // SLACK_SHARE)

    def _wishing(self) -> list[tuple[TopicState, int]]:
        wishes = self._machine.topic_retention.wishes()
        if not wishes:
            return []
        topics = self._machine.topics.values()
        return [(each, wishes[each.incarnation]) for each in topics if each.incarnation in wishes]

    def _in_turn(
        self, topics: Sequence[tuple[TopicState, int]]
    ) -> Iterator[tuple[TopicState, int]]:
        """Each once, from the one on at which the last look ended."""
        at = self._next[0]
        behind = [each for each in topics if each[0].incarnation >= at]
        yield from behind or topics

    def _start(self, topic: TopicState, queue_id: int, now: Lived, wish_ms: int) -> int | None:
        """Where the queue should begin; None: where it does, or nobody can tell."""
        ref = TopicRef(topic.name, topic.incarnation)
        slack_ms = self._slack_of(wish_ms) // 2
        try:
            low, _ = self._queues.bounds(ref, queue_id)
            if (
                self._queues.offset_by_time(ref, queue_id, now.older_before(wish_ms + slack_ms))
                == low
            ):
                return None
            return self._queues.offset_by_time(ref, queue_id, now.older_before(wish_ms))
        except BrokerError:
            return None  # it is being mended, or the topic has gone
        except Exception as error:
            if not self._is_mended(error):
                raise
            return None

    async def _move(self, topic: TopicState, starts: Starts, wish_ms: int) -> None:
        """Proposes it, if the topic wishes now what it wished as its queues were looked at, and
        nobody is about to say otherwise: a look takes long."""
        wished_ms = self._machine.topic_retention.wishes().get(topic.incarnation)
        if wished_ms != wish_ms or topic.name in self._commands.wishing:
            return
        try:
            refusal = await self._commands.move_queue_starts(
                TopicRef(topic.name, topic.incarnation), starts
            )
            reason = "" if refusal is None else str(refusal)
        except BrokerError as error:
            reason = str(error)
        if reason and reason != self._refused:
            log.info("topic_retention_waits", topic=topic.name, reason=reason)
        self._refused = reason
        if not reason:
            log.info("topic_retention", topic=topic.name, queues=len(starts))
