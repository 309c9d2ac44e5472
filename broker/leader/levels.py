"""Raises the level of formats and commands when every member knows the next one (ADR 23).

Only a leader that serves does, as nothing of a level may stand in front of its raise. What members
know is what they have said on the streams that are up now; one that is away holds the level back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from broker.errors import BrokerError
from broker.leader.commands import Commands
from broker.state.refusals import Refusal
from dledger.core.types import NodeId
from dledger.peers import PeerLink

RETRY_TICKS: Final = 100  # a second, as a rule, from one attempt to the next

log = structlog.get_logger(__name__)


class LevelKeeper:
    """Looks at every tick whether the level can be raised; one attempt is under way at a time."""

    def __init__(
        self,
        known: int,
        commands: Commands,
        *,
        current: Callable[[], int],
        serves: Callable[[], bool],
        others: Callable[[], Iterable[NodeId]],
        links: Callable[[], Mapping[NodeId, PeerLink]],
    ) -> None:
        """Args:
        known: to this program.
        current: the level in use.
        serves: whether this node is a leader that serves.
        others: the other members of the configuration.
        links: the connections to them.
        """
        self._known = known
        self._commands = commands
        self._current = current
        self._serves = serves
        self._others = others
        self._links = links
        self._under_way: asyncio.Future[Refusal | None] | None = None
        self._ticks_to_wait = 0  # until the next attempt, if this one comes to nothing
        self._raised_from = 0

    def on_tick(self) -> None:
        """Proposes the next level if everybody knows it."""
        current = self._current()
        if current >= self._known or not self._serves():
            return
        if self._ticks_to_wait and current <= self._raised_from:
            self._ticks_to_wait -= 1
            return
        if self._under_way is not None and not self._under_way.done():
            return
        links = self._links()
        told = [links[peer].level if peer in links else 0 for peer in self._others()]
        if min(told, default=self._known) <= current:
            return
        self._ticks_to_wait, self._raised_from = RETRY_TICKS, current
        try:
            self._under_way = asyncio.ensure_future(self._commands.raise_level(current + 1))
        except BrokerError as error:
            log.warning("level_not_raised", level=current + 1, reason=error.message)
            return
        self._under_way.add_done_callback(_ended)


def _ended(attempt: asyncio.Future[Refusal | None]) -> None:
    """Whether it took effect shows in the state; who led may not lead any more."""
    if not attempt.cancelled() and (error := attempt.exception()) is not None:
        log.warning("level_not_raised", reason=str(error))
