"""Where a desk's group begins: in all queues of a topic at once, and later in those it is given.

The next command says so, if there is room for so many offsets (`broker.leader.offsets_room`). A
group that is at work goes on where it is where there is none: nothing that is asked of its desk is
refused for it, and it isn't silent about that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from broker.errors import BrokerError, ErrorCode
from broker.leader.deliveries.choosing import Choice
from broker.leader.offsets_room import starts_begun
from broker.state.offsets import Offsets
from broker.state.topics import TopicState
from dledger.sparing import Sparing
from dledger.wire.commands_pb2 import DeliverCommand

Starts = Callable[[TopicState, int], Sequence[int]]  # where the group starts, from that queue on

log = structlog.get_logger(__name__)


class State(Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def offsets(self) -> Offsets: ...


class Beginning:
    """One desk's."""

    def __init__(self, state: State, check: Callable[[int], None], sparing: Sparing) -> None:
        """Args:
        check: raises BrokerError, LIMIT_REACHED, unless so many offsets more may begin.
        sparing: all desks': one lives as long as somebody waits at it.
        """
        self._state = state
        self._check = check
        self._sparing = sparing
        self._is_left_out = False  # of the next command

    def add_to(
        self, command: DeliverCommand, topic: TopicState, started: int, starts: Starts
    ) -> None:
        """The command says where the group starts in the queues from `started` on, if there are
        any, and there is room. Who begins nowhere yet is told by whoever takes the command."""
        is_left_out, self._is_left_out = self._is_left_out, False
        lacking = len(topic.next_offsets) - started
        if not lacking or is_left_out:
            return
        if started:
            try:
                self._check(starts_begun(self._state, command.group, topic.name, started, lacking))
            except BrokerError as error:
                if error.code is not ErrorCode.LIMIT_REACHED:
                    raise
                self._tell(command, lacking, error)
                return
        command.first_start = started
        command.starts.extend(starts(topic, started))

    def leave_out(self, choice: Choice | None, error: BrokerError) -> bool:
        """Whether the command, which failed so, is to be made again without its starts: others took
        the room while it waited for its turn. A group that begins nowhere yet has nothing else."""
        if choice is None or error.code is not ErrorCode.LIMIT_REACHED:
            return False
        command = choice.command
        if not command.first_start:
            return False
        self._is_left_out = True
        self._tell(command, len(command.starts), error)
        return True

    def _tell(self, command: DeliverCommand, queues: int, error: BrokerError) -> None:
        key = "not_begun", command.group, command.topic
        if (unreported := self._sparing.due(key)) is not None:
            log.warning(
                "group_not_begun",
                group=command.group,
                topic=command.topic,
                queues=queues,
                reason=error.message,
                unreported=unreported,
            )
