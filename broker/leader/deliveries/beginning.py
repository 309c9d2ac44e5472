"""Where a desk's group begins: in all queues of a topic at once, and later in those it is given.

The next command says so, if there is room for so many offsets (`broker.leader.offsets_room`). A
group that is at work goes on where it is where there is none: nothing that is asked of its desk is
refused for it, and it isn't silent about that.

What a group is handed first is chosen from where it begins, and once it is in the log all before
that counts as finished. Until then it may be put elsewhere as any group is that has only committed:
so it begins where that was chosen, or the desk looks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import structlog

from broker.errors import BrokerError, ErrorCode
from broker.leader.deliveries.choosing import Choice
from broker.leader.offsets_room import starts_begun
from broker.state.delivering import Owners, begun
from broker.state.handouts import Record
from broker.state.refusals import HandoutSuperseded, Refusal
from broker.state.topic_retention import TopicRetentions
from broker.state.topics import TopicState
from dledger.sparing import Sparing

# Where the group starts, from that queue on; it may take turns to find that out.
Starts = Callable[[TopicState, int], Awaitable[Sequence[int]]]
Records = dict[int, Record]  # by queue

log = structlog.get_logger(__name__)


class State(Owners, Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def topic_retention(self) -> TopicRetentions: ...


class Beginning:
    """One desk's."""

    def __init__(
        self,
        group: str,
        state: State,
        check: Callable[[int], None],
        is_placing: Callable[[str, str], bool],
        sparing: Sparing,
    ) -> None:
        """Args:
        is_placing: whether a group is about to go on elsewhere in a topic.
        check: raises BrokerError, LIMIT_REACHED, unless so many offsets more may begin.
        sparing: all desks': one lives as long as somebody waits at it.
        """
        self._group = group
        self._state = state
        self._check = check
        self._is_placing = is_placing
        self._sparing = sparing
        self._is_left_out = False  # of the next command

    async def found(
        self, now: Callable[[], tuple[TopicState, Records]], starts: Starts | None
    ) -> tuple[TopicState, Records, Sequence[int]]:
        """The topic and what is known of its queues, now; and where the group starts in others. To
        find that out may take turns: queues that are new by then begin by the next command."""
        topic, records = now()
        if starts is None or not self._is_due(topic, len(records)):
            return topic, records, ()
        offsets = await starts(topic, len(records))
        first, start_of = len(records), self._state.topic_retention.start_of
        topic, records = now()
        # What has gone meanwhile is nothing to start at.
        offsets = [max(at, start_of(topic.incarnation, q)) for q, at in enumerate(offsets, first)]
        return topic, records, offsets

    def _is_due(self, topic: TopicState, started: int) -> bool:
        """Whether the next command says where the group starts in the queues from `started` on:
        there are any, and there is room. Who begins nowhere yet is told by whoever takes it."""
        is_left_out, self._is_left_out = self._is_left_out, False
        lacking = len(topic.next_offsets) - started
        if not lacking or is_left_out:
            return False
        if started:
            try:
                self._check(starts_begun(self._state, self._group, topic.name, started, lacking))
            except BrokerError as error:
                if error.code is not ErrorCode.LIMIT_REACHED:
                    raise
                self._tell(topic.name, lacking, error)
                return False
        return True

    def refusal_of(self, choice: Choice) -> Refusal | None:
        """Why the group can't begin as the command was chosen, asked when its turn has come: what
        was put elsewhere meanwhile isn't passed over.

        Raises:
            BrokerError: BUSY.
        """
        command, topic, records = choice.command, choice.topic, choice.planning.records
        if not command.starts:
            return None
        if self._is_placing(self._group, topic.name):
            text = f"group {self._group!r} is just about to go on elsewhere: ask again"
            raise BrokerError(ErrorCode.BUSY, text)
        known = self._state.deliveries.in_topic(self._group, topic.incarnation)
        now = begun(self._state, topic, command, len(known))
        if not isinstance(now, dict):
            return now
        retention = self._state.topic_retention
        for queue_id, start in enumerate(command.starts, command.first_start):
            record = records[queue_id]
            is_gone = record.next == start < retention.start_of(topic.incarnation, queue_id)
            if is_gone or now.get(queue_id) != record:
                return HandoutSuperseded(queue_id, record.next)
        return None

    def leave_out(self, choice: Choice | None, error: BrokerError) -> bool:
        """Whether the command, which failed so, is to be made again without its starts: others took
        the room while it waited for its turn. A group that begins nowhere yet has nothing else."""
        if choice is None or error.code not in (ErrorCode.LIMIT_REACHED, ErrorCode.BUSY):
            return False
        command = choice.command
        if not command.first_start:
            return False
        self._is_left_out = True
        self._tell(command.topic, len(command.starts), error)
        return True

    def _tell(self, topic: str, queues: int, error: BrokerError) -> None:
        key = "not_begun", self._group, topic
        if (unreported := self._sparing.due(key)) is not None:
            log.warning(
                "group_not_begun",
                group=self._group,
                topic=topic,
                queues=queues,
                reason=error.message,
                unreported=unreported,
            )
