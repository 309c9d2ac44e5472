"""Ends sessions: of members that said goodbye, and of those that were silent for too long.

One leadership's: what it has proposed and doesn't know of yet goes with it. Nobody is told that a
session is over before the entry that says so is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog

from broker.errors import BrokerError
from broker.leader.commands import Commands
from broker.leader.groups.pace import Pace
from broker.leader.groups.presence import Presence
from broker.state.groups import Groups
from broker.state.level import Level
from broker.state.refusals import Refusal
from dledger.level import TOPIC_RULES_LEVEL
from dledger.sparing import Sparing

AT_ONCE: Final = 1_024  # by one command

log = structlog.get_logger(__name__)


class Members(Protocol):
    """`broker.state.machine.StateMachine`, as far as it is looked at here."""

    @property
    def groups(self) -> Groups: ...
    @property
    def level(self) -> Level: ...


class Ends:
    """Sessions that are to end. `silent`: how many were ended because nothing came."""

    def __init__(
        self,
        state: Members,
        commands: Commands,
        presence: Presence,
        pace: Pace,
        tell: Callable[[int], None],
    ) -> None:
        """Args:
        tell: is given each session that is over.
        """
        self._state = state
        self._commands = commands
        self._presence = presence
        self._pace = pace
        self._tell = tell
        self._leaving: dict[int, None] = {}
        self._under_way: dict[int, None] = {}
        self._again_at = 0
        self._sparing = Sparing()
        self.silent = 0

    @property
    def under_way(self) -> frozenset[int]:
        """Sessions whose end is proposed: whether it takes effect isn't known yet."""
        return frozenset(self._under_way)

    def leave(self, session: int) -> None:
        """The member has said goodbye."""
        self._leaving[session] = None

    def on_tick(self) -> None:
        """Proposes what is to end."""
        if self._presence.now < self._again_at:
            return
        due = self._presence.due()
        if not due and not self._leaving:
            return
        silent = [each for each in due if each not in self._under_way]
        ending: list[int] = []
        for session in dict.fromkeys((*self._leaving, *silent)):
            if self._state.groups.session(session) is None:
                self._presence.forget(session)
                self._leaving.pop(session, None)
            elif len(ending) < AT_ONCE:
                ending.append(session)
        if not ending:
            return
        vanished: list[int] = []
        if self._state.level.current >= TOPIC_RULES_LEVEL:
            vanished = [each for each in ending if each not in self._leaving]
        try:
            answer = self._commands.end_sessions(ending, vanished)
        except BrokerError as error:
            self._again_at = self._presence.now + self._pace.ticks(self._pace.retry_ms)
            if (unreported := self._sparing.due("end")) is not None:
                log.warning("sessions_not_ended", reason=str(error), unreported=unreported)
            return
        self._await(ending, set(silent), answer)

    def _await(
        self, ending: list[int], silent: set[int], answer: Awaitable[Refusal | None]
    ) -> None:
        for session in ending:
            self._under_way[session] = None
            self._leaving.pop(session, None)
            found = self._state.groups.session(session)
            if session in silent and found is not None:
                self.silent += 1
                log.info("session_silent", group=found.group, member=found.member, session=session)

        def done(future: asyncio.Future[Refusal | None]) -> None:
            is_applied = not future.cancelled() and future.exception() is None
            for session in ending:
                self._under_way.pop(session, None)
                if is_applied:
                    self._presence.forget(session)
                    self._tell(session)

        asyncio.ensure_future(answer).add_done_callback(done)
