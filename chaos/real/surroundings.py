"""The nemeses of disks and clocks: power, orders to the file layer and to the wall clock.

Each does one thing to its victims through the `Arena`; what it means for the schedule is said in
the table of `chaos.real.nemeses`. What a disk makes of an order is `chaos.faults`' matter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from chaos.faults import ClockFault, FaultOrders
from chaos.faults.orders import FAILABLE
from chaos.real.blow import Act, Blow
from chaos.real.processes import kill, start

OPERATIONS: Final = tuple(sorted(FAILABLE, key=lambda each: each != "fdatasync"))
MUST_STOP: Final = frozenset({"pwritev", "fdatasync"})  # every append needs both


async def cut_power(blow: Blow) -> str:
    await kill(blow)
    losses = [blow.arena.cut_power(victim, blow.chance) for victim in blow.victims]
    lost, torn = sum(each.lost for each in losses), sum(each.torn for each in losses)
    return f"{lost} writes lost, {torn} torn, {sum(each.names for each in losses)} names lost"


def ordering(change: Callable[[Blow, FaultOrders], FaultOrders]) -> Act:
    async def strike(blow: Blow) -> str:
        for victim in blow.victims:
            blow.arena.order(blow.label, victim, partial(change, blow))
        return ""

    return strike


async def rescind(blow: Blow) -> str:
    for victim in blow.victims:
        blow.arena.order(blow.label, victim, None)
    return ""


def slow_disk(blow: Blow, orders: FaultOrders) -> FaultOrders:
    return replace(orders, sync_delay_ms=int(blow.number("delay_ms")))


def full_disk(blow: Blow, orders: FaultOrders) -> FaultOrders:
    return replace(orders, free_bytes=int(blow.number("free_bytes")))


def stepped_clock(blow: Blow, orders: FaultOrders) -> FaultOrders:
    return replace(orders, clock=(ClockFault(offset_ms=int(blow.number("offset_ms"))),))


def drifting_clock(blow: Blow, orders: FaultOrders) -> FaultOrders:
    since_ms = time.time() * 1000
    return replace(orders, clock=(ClockFault(rate=blow.number("rate"), since_ms=since_ms),))


def flipping_clock(blow: Blow, orders: FaultOrders) -> FaultOrders:
    off, period = int(blow.number("offset_ms")), int(blow.number("period_ms"))
    return replace(orders, clock=(ClockFault(strobe_ms=off, strobe_period_ms=period),))


async def fail_disk(blow: Blow) -> str:
    """A disk that fails a write or a sync stops its node (ADR 8): one that runs on is a finding."""
    operation, code = str(blow.options["operation"]), str(blow.options["errno"])
    blow.arena.meant_to_be_down.update(blow.victims)
    for victim in blow.victims:
        blow.arena.order(
            blow.label, victim, lambda orders: replace(orders, failing={operation: code})
        )
    if operation in MUST_STOP:
        await asyncio.gather(*map(blow.arena.gone, blow.victims))
    return f"{operation} fails with {code}"


async def replace_failed_disk(blow: Blow) -> str:
    await rescind(blow)
    stopped = [victim for victim in blow.victims if not blow.arena.is_running(victim)]
    await start(blow)
    return f"{', '.join(stopped) or 'nobody'} stopped"
