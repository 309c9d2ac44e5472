"""A wall clock that is off by what the orders say. Timers are not touched: elections run on the
monotonic clock, which no operator can step."""

from __future__ import annotations

import time

from chaos.faults.orders import Orders


class FaultyClock:
    """The node's `now_ms`."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as the node is to believe."""
        return int(time.time() * 1000) + self._orders.current().clock_offset_ms
