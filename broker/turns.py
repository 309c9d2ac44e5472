"""How long work shares the event loop of a process: in pieces of `SHARE_S`, a turn each.

What takes longer than that asks after each step whether it is enough, and goes on in a later turn;
so nobody waits for the loop much longer than a piece and its last step take. The node's own work is
of few kinds, each of which has a share of its own (`LoopTurns`). Calls have one together
(`CallTurns`): there are as many as clients like, and a hundred pieces would be one turn. This only
measures and yields; what may change between two pieces is for who works in them to know.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

SHARE_S: Final = 0.005
# Of those that paused, look in each turn whether there is something left of it. As each takes 20 µs
# at least, so many use a share up; where the first one does, the looks of the others are 0.3 ms.
LOOKING: Final = 256


class LoopTurns:
    """`dledger.ports.Turns` on the running loop."""

    def share(self) -> Callable[[], bool]:
        """See `Turns`. By the wall clock, which costs a sixth of the thread's processor time to
        read: a piece that was kept waiting ends sooner, after one step at least."""
        clock = time.perf_counter
        end = clock() + SHARE_S
        return lambda: clock() >= end

    def later(self, call: Callable[[], None]) -> object:
        """See `Turns`."""
        return asyncio.get_running_loop().call_soon(call)

    async def pause(self) -> None:
        """See `Turns`."""
        await asyncio.sleep(0)


class CallTurns(LoopTurns):
    """`dledger.ports.Turns` of any number of calls, which have one share of a turn together.

    Whoever asks for a share first in a turn begins it for all. Whoever pauses goes on in the order
    in which they paused, in the next turn that has something left. While anybody waits so, who
    comes has no share, and pauses behind them: calls that come all the time hold up nobody for
    good. So a turn has one share, and a step of each call that began in it.

    asyncio doesn't say where a turn ends: a call that is scheduled in one runs in the next.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock`: seconds, of any origin."""
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None  # that all the rest is of
        self._is_begun = False  # the share of this turn
        self._going_on: asyncio.Task[object] | None = None  # the last of them that had paused
        self._end = 0.0
        # In the order in which they paused; bounded by the calls that a node takes.
        self._looking: deque[asyncio.Future[None]] = deque()
        self._behind: deque[asyncio.Future[None]] = deque()  # with those who were cancelled

    def share(self) -> Callable[[], bool]:
        """See `Turns`. Where the turn's is used up, or is who waits', it is enough at once."""
        self._be_on_loop()
        if self._looking and asyncio.current_task() is not self._going_on:
            return lambda: True
        self._begin()
        clock, end = self._clock, self._end
        return lambda: clock() >= end

    async def pause(self) -> None:
        """See `Turns`."""
        place = self._be_on_loop().create_future()
        try:
            if len(self._looking) < LOOKING:
                self._looking.append(place)
                await asyncio.sleep(0)
            else:
                self._behind.append(place)
                await place
            while not self._may_go_on(place):  # noqa: ASYNC110  a turn lets some go on
                await asyncio.sleep(0)
        finally:
            self._leave(place)

    def _may_go_on(self, place: asyncio.Future[None]) -> bool:
        if self._looking[0] is not place:
            return False
        if self._is_begun and self._clock() >= self._end:
            return False
        self._begin()  # before others are told to look: they do so when this turn is over
        self._going_on = asyncio.current_task()
        return True

    def _leave(self, place: asyncio.Future[None]) -> None:
        """Whoever goes on, or is cancelled; those behind may look."""
        if place not in self._looking or place.get_loop().is_closed():
            return
        self._looking.remove(place)
        while self._behind and len(self._looking) < LOOKING:
            following = self._behind.popleft()
            if not following.done():  # else it was cancelled
                self._looking.append(following)
                following.set_result(None)

    def _begin(self) -> None:
        """The share of this turn, unless it has begun."""
        if not self._is_begun:
            self._is_begun, self._end = True, self._clock() + SHARE_S
            self.later(self._end_turn)

    def _end_turn(self) -> None:
        self._is_begun, self._going_on = False, None

    def _be_on_loop(self) -> asyncio.AbstractEventLoop:
        """The running one. What was begun on one that was closed never ends."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._end_turn()
            self._looking, self._behind = deque(), deque()
        return loop
