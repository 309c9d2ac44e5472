"""Forgets consumer groups that nobody has used for long, while this node leads.

This decides which groups are named, and owns nothing of them: whether one may go is judged again by
every replica when the command is applied. What is spared here is a matter of the leader alone. It
must never name a group whose offsets somebody counts on who doesn't come for them: who is waited
for, whose failed messages wait, and a sink's marks (`dledger.records.marks`), which are as good as
lost if a query rests for longer than groups are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from broker.errors import BrokerError
from broker.leader.commands import Commands
from broker.leader.groups import unread
from broker.leader.groups.starting import Queues
from broker.state.groups import Group, Groups
from broker.state.lived_time import LivedTime
from broker.state.refusals import Refusal
from dledger.records.marks import marked_topic
from dledger.records.reserved import LEVEL_DELAYS_MS, retry_topic

FORGOTTEN_AT_ONCE: Final = 16
LONGEST_WAIT_MS: Final = LEVEL_DELAYS_MS[-1]

log = structlog.get_logger(__name__)


class State(unread.State, Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def groups(self) -> Groups: ...
    @property
    def lived_time(self) -> LivedTime: ...


class Forgetting:
    """One replica's."""

    def __init__(
        self,
        state: State,
        commands: Commands,
        reader: Queues,
        unused_ms: int,
        is_waited_for: Callable[[str], bool],
    ) -> None:
        """Args:
        unused_ms: of lived time, until a group may be forgotten.
        is_waited_for: whether somebody waits for single messages of that group now.
        """
        self._state = state
        self._commands = commands
        self._reader = reader
        self._unused_ms = unused_ms
        self._is_waited_for = is_waited_for
        self.count = 0  # groups that were named

    def forget_groups(self) -> None:
        """Some groups that nobody has used for long; every replica looks again."""
        lived_ms = self._state.lived_time.lived_ms
        names = self._state.groups.forgettable(
            lived_ms, self._unused_ms, FORGOTTEN_AT_ONCE, lambda each: self._spares(each, lived_ms)
        )
        if not names:
            return
        try:
            answer = self._commands.forget_groups(names, self._unused_ms)
        except BrokerError:
            return  # there is time
        self.count += len(names)
        asyncio.ensure_future(answer).add_done_callback(_look_away)
        log.info("groups_forgotten", groups=names, unread=self._unread(names))

    def _unread(self, names: Sequence[str]) -> dict[str, int]:
        """By group, how many messages it leaves behind; those that leave none aren't there."""
        groups = [group for name in names if (group := self._state.groups.get(name)) is not None]
        counts = unread.left_unread(self._state, self._reader, groups)
        return {name: count for name, count in counts.items() if count}

    def _spares(self, group: Group, lived_ms: int) -> bool:
        """Whether the group stays, however long nobody has used it."""
        return self._may_wait(group, lived_ms) or self._is_mark(group)

    def _may_wait(self, group: Group, lived_ms: int) -> bool:
        """Whether workers wait for the group's messages, or its messages may wait to be tried
        again: it was used when they failed, and none waits for longer."""
        if self._is_waited_for(group.name):
            return True
        is_recent = lived_ms - group.used_ms < LONGEST_WAIT_MS
        return is_recent and retry_topic(group.name) in self._state.topics

    def _is_mark(self, group: Group) -> bool:
        """Whether the group is a sink's mark and nothing else. It goes with its topic."""
        topic, offsets = marked_topic(group.name), self._state.offsets
        is_set = bool(topic) and bool(offsets.of(group.name, topic))
        return is_set and not group.created and offsets.topic_count(group.name) == 1


def _look_away(future: asyncio.Future[Refusal | None]) -> None:
    """Who led may not lead any more; whether it took effect shows in the state."""
    if not future.cancelled():
        future.exception()
