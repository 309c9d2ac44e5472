"""Says in the node's log when its disk has no room for more of the log, and when it has again.

A full follower refuses entries and is told nobody but its leader, and the leader's clients notice
nothing: without this the member's own log, which is where one looks, would be silent. Said once at
each edge, never in between.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class SpaceWatch:
    """`is_full`: whether the last attempt to make a segment found no space."""

    def __init__(self, is_full: Callable[[], bool]) -> None:
        self._is_full = is_full
        self._was_full = False

    def on_tick(self) -> None:
        """What has changed since the last tick has been said."""
        is_full = self._is_full()
        if is_full == self._was_full:
            return
        self._was_full = is_full
        if is_full:
            log.warning("log_full", reason="no space for another segment of the log")
        else:
            log.info("log_has_room")
