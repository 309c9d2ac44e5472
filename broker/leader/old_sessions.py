"""Sessions that an epoch of the broker group began with are over before anybody is served in it.

A group that is recovered by force (ADR 52) or restored from a backup (ADR 46) goes on from a log
that may end before what members of consumer groups were given. From level 8 on applying the entry
that begins the epoch ends their sessions (`broker.state.recovered`). Programs of levels before
apply it without, and nothing of that can change; so whoever leads ends, by a command that those
levels know, whatever sessions are older than that entry, and serves nobody until none is left. No
session begins before somebody serves: none that began in the epoch is meant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from broker.errors import BrokerError
from broker.state.refusals import Refusal
from dledger.core.group_epoch import GroupEpoch
from dledger.sparing import Sparing

AT_ONCE: Final = 1_000  # sessions of one command

log = structlog.get_logger(__name__)


class OldSessions:
    """Of a leader that has applied its whole log and doesn't serve yet."""

    def __init__(
        self,
        epoch: Callable[[], GroupEpoch],
        sessions: Callable[[], Iterable[int]],
        end: Callable[[list[int]], Awaitable[Refusal | None]],
    ) -> None:
        """Args:
        epoch: of the configuration in force.
        sessions: those that aren't over, by the index of the entry that began each.
        end: proposes that these are.
        """
        self._epoch = epoch
        self._sessions = sessions
        self._end = end
        self._sparing = Sparing()

    def are_over(self) -> bool:
        """Whether none is left; else the end of some is proposed, if that can be. It is asked again
        when all is applied."""
        began = self._epoch().last
        old = [] if began is None else [each for each in self._sessions() if each < began.index]
        if not old:
            return True
        try:
            self._end(old[:AT_ONCE])
        except BrokerError as error:  # full, or leading no more
            if (unreported := self._sparing.due("end")) is not None:
                log.warning("sessions_not_ended", reason=str(error), unreported=unreported)
        else:
            log.info("sessions_of_before_ended", count=len(old[:AT_ONCE]), left=len(old))
        return False
