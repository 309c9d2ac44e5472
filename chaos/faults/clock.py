"""A wall clock that is wrong as the orders say: off, too fast or slow, or flipping to and fro.

Only the wall clock. Elections and time-outs run on the monotonic clock of the node's event loop,
which no operator can step; what a wrong pace of *that* does is tried with other ticks in the
node's configuration (`chaos.scenarios.clocks`). How wrong the clock is depends on the real time
alone, so a node that is started again is as wrong as it was.
"""

from __future__ import annotations

import time

from chaos.faults.orders import ClockFault, Orders


class FaultyClock:
    """The node's `now_ms`."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as the node is to believe."""
        now_ms = time.time() * 1000
        return int(now_ms + sum(error_ms(each, now_ms) for each in self._orders.current().clock))


def error_ms(fault: ClockFault, now_ms: float) -> float:
    """How far the clock is off at the real time `now_ms`, milliseconds since the epoch."""
    off = fault.offset_ms + (fault.rate - 1.0) * (now_ms - fault.since_ms)
    if fault.strobe_ms and int(now_ms // fault.strobe_period_ms) % 2:
        off += fault.strobe_ms
    return off
