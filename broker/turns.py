"""How long work shares the event loop of a process: in pieces of `SHARE_S`, a turn each.

What takes longer than that asks after each step whether it is enough, and goes on in a later turn;
so nobody waits for the loop much longer than a piece and its last step take. This only measures and
yields; what may change between two pieces is for who works in them to know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

SHARE_S: Final = 0.005


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
