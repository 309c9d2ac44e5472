"""Who has been heard of lately: sessions and when, in ticks, they count as gone.

A tick that was late counts once (`broker.ticker`), and what a member has sent meanwhile is still in
a socket then: so time is the count of ticks that were run, and after a late one nobody is called
gone before a few more have been run. It must never look at a clock: a leader that slept would end
everybody's session as it wakes. This decides nothing: `broker.leader.groups.keeper` ends sessions.

    present until t   heard        present until now + `session_ticks`
    present until t   broken off   present until now + `away_ticks`, or t, whichever is first, and
                                   never before all may be back that were there as this began
    present until t   t is over    due, until it is heard again or forgotten
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

SETTLE_TICKS: Final = 3  # that are run after a late one before anybody is due


class Presence:
    """All sessions of a leadership."""

    def __init__(self, session_ticks: int, away_ticks: int) -> None:
        self._session_ticks = session_ticks
        self._away_ticks = away_ticks
        self._until: dict[int, int] = {}
        # (tick, session): when it is looked at, each in time. One entry of a session counts, which
        # is in `_queued`; those that an earlier one took the place of are void and go at their time
        self._heap: list[tuple[int, int]] = []
        self._queued: dict[int, int] = {}
        self._settled_at = self._back_at = 0
        self.now = 0

    def __contains__(self, session: int) -> bool:
        return session in self._until

    def __len__(self) -> int:
        return len(self._until)

    def left(self, session: int) -> int:
        """In how many ticks the session is due, 0 where it is, or isn't known."""
        return max(0, self._until.get(session, 0) - self.now)

    def on_tick(self, *, is_late: bool) -> None:
        """One more tick was run."""
        self.now += 1
        if is_late:
            self._settled_at = self.now + SETTLE_TICKS

    def begin(self, sessions: Iterable[int], ticks: int) -> None:
        """These count as present for so long, whatever was before."""
        self._until, self._heap, self._queued = {}, [], {}
        self._back_at = self.now + ticks
        for session in sessions:
            self._put(session, self.now + ticks)

    def heard(self, session: int) -> None:
        """It is there now."""
        self._put(session, self.now + self._session_ticks)

    def broken_off(self, session: int) -> None:
        """The stream on which it was heard is gone."""
        until = max(self.now + self._away_ticks, self._back_at)
        if self._until.get(session, 0) > until:
            self._put(session, until)

    def forget(self, session: int) -> None:
        """It is over."""
        self._until.pop(session, None)
        self._queued.pop(session, None)

    def due(self) -> list[int]:
        """Those whose time is over, longest ago first; the same again until they are forgotten."""
        if self.now < self._settled_at or not self._heap or self._heap[0][0] > self.now:
            return []
        found: list[int] = []
        while self._heap and self._heap[0][0] <= self.now:
            tick, session = heapq.heappop(self._heap)
            if self._queued.get(session) != tick:
                continue
            del self._queued[session]
            until = self._until[session]
            if until > self.now:
                self._queue(session, until)
            else:
                found.append(session)
        found.sort(key=self._until.__getitem__)
        for session in found:
            self._queue(session, self._until[session])
        return found

    def _put(self, session: int, until: int) -> None:
        self._until[session] = until
        queued = self._queued.get(session)
        if queued is None or until < queued:  # a later one is put off when its entry comes up
            self._queue(session, until)

    def _queue(self, session: int, tick: int) -> None:
        self._queued[session] = tick
        heapq.heappush(self._heap, (tick, session))
