"""Forgets consumer groups that nobody has used for long, while this node leads.

This decides which groups are named, a few by a command and one of these after the other, and owns
nothing of them: whether one may go is judged again by every replica when the command is applied.
What is spared here is a matter of the leader alone. It must never name a group whose offsets
somebody counts on who doesn't come for them: who is waited for, who is kept out of a topic
(ADR 62), whose failed messages wait, and a sink's marks (`dledger.records.marks`), which are as
good as lost if a query rests for longer than groups are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from broker.errors import BrokerError
from broker.leader.commands import Commands
from broker.leader.groups import unread
from broker.leader.groups.starting import Queues
from broker.state.delivering import MAX_HIDDEN_MS
from broker.state.groups import Group, Groups
from broker.state.lived_time import LivedTime
from broker.state.refusals import Refusal
from broker.state.topic_permissions import TopicPermissions
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
    @property
    def topic_permissions(self) -> TopicPermissions: ...
    @property
    def append_time_ms(self) -> int: ...


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
        self._is_under_way = self._is_soon = self._is_wanted = False
        self._not_before = self._moves_not_before = 0  # ticks
        self.count = 0  # groups that are gone

    def begin(self) -> None:
        """A leadership begins, and its ticks are counted anew."""
        self._is_soon = self._is_wanted = False
        self._not_before = self._moves_not_before = 0

    def make_room(self) -> None:
        """There was no room for what somebody wanted of groups: it isn't waited for the next look.
        Once a period a command is proposed though there may be nobody to name: lived time moves on
        by entries alone, and in a group that is full and otherwise silent nobody would ever be
        unused for long."""
        self._is_wanted = True

    def on_tick(self, now: int, *, period: int, pause: int) -> None:
        """Looks at who may be forgotten, once a period, or after a pause (both in ticks) where more
        are known to be there, or room is wanted."""
        is_soon = (self._is_soon or self._is_wanted) and now >= self._not_before
        if self._is_under_way or not (now % period == 0 or is_soon):
            return
        moves_time = self._is_wanted and now >= self._moves_not_before
        if moves_time:
            self._moves_not_before = now + period
        self._is_wanted, self._not_before = False, now + pause
        self._forget_groups(moves_time=moves_time)

    def _forget_groups(self, *, moves_time: bool) -> None:
        """Some groups that nobody has used for long; every replica looks again. Whether there are
        more shows when these are gone."""
        lived_ms, kept_out = self._state.lived_time.lived_ms, self._kept_out()
        names = self._state.groups.forgettable(
            *(lived_ms, self._unused_ms, FORGOTTEN_AT_ONCE),
            lambda each: each.name in kept_out or self._spares(each, lived_ms),
        )
        self._is_soon = len(names) >= FORGOTTEN_AT_ONCE
        if not names and not moves_time:
            return
        left = self._unread(names)
        try:
            answer = self._commands.forget_groups(names, self._unused_ms)
        except BrokerError:
            return  # there is time
        self._is_under_way = True

        def done(future: asyncio.Future[Refusal | None]) -> None:
            self._is_under_way = False
            if not future.cancelled() and future.exception() is None:
                self._tell(names, left)

        asyncio.ensure_future(answer).add_done_callback(done)

    def _tell(self, names: Sequence[str], left: Mapping[str, int]) -> None:
        """Of those that were named, who is gone."""
        gone = [name for name in names if self._state.groups.get(name) is None]
        self.count += len(gone)
        if gone:
            unread = {name: left[name] for name in gone if name in left}
            log.info("groups_forgotten", groups=gone, unread=unread)

    def _unread(self, names: Sequence[str]) -> dict[str, int]:
        """By group, how many messages it leaves behind; those that leave none aren't there."""
        groups = [group for name in names if (group := self._state.groups.get(name)) is not None]
        counts = unread.left_unread(self._state, self._reader, groups)
        return {name: count for name, count in counts.items() if count}

    def _kept_out(self) -> set[str]:
        """Groups with offsets in topics that may not be read: those go on from there when they may.
        Who asked for messages is in use by that, where the log could be told."""
        state, found = self._state, set[str]()
        for incarnation in state.topic_permissions.unreadable():
            found |= state.offsets.groups(state.topics.name_of(incarnation)).keys()
        return found

    def _spares(self, group: Group, lived_ms: int) -> bool:
        """Whether the group stays, however long nobody has used it."""
        return (
            self._may_wait(group, lived_ms)
            or self._is_mark(group)
            or self._is_hiding(group, lived_ms)
        )

    def _may_wait(self, group: Group, lived_ms: int) -> bool:
        """Whether workers wait for the group's messages, or its messages may wait to be tried
        again: it was used when they failed, and none waits for longer."""
        if self._is_waited_for(group.name):
            return True
        is_recent = lived_ms - group.used_ms < LONGEST_WAIT_MS
        return is_recent and retry_topic(group.name) in self._state.topics

    def _is_hiding(self, group: Group, lived_ms: int) -> bool:
        """Whether somebody may be at work on its messages: it would be named in vain, in the place
        of another one. All its handouts are looked at, so only where one can be hidden still: it
        was used when that was given, and no more time was lived than has passed."""
        if lived_ms - group.used_ms >= MAX_HIDDEN_MS:
            return False
        return self._state.deliveries.is_hiding(group.name, self._state.append_time_ms)

    def _is_mark(self, group: Group) -> bool:
        """Whether the group is a sink's mark and nothing else. It goes with its topic."""
        topic, offsets = marked_topic(group.name), self._state.offsets
        is_set = bool(topic) and bool(offsets.of(group.name, topic))
        return is_set and not group.created and offsets.topic_count(group.name) == 1
