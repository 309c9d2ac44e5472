"""When faults happen: at random times, in numbers of their own.

A fault's own randomness comes from its number, so each kind that is drawn apart counts from a first
number of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from chaos.sim.plan import Fault, FaultEvent, Plan


def now_and_then(
    plan: Plan, chance: Random, every_ms: float, first: int, drawn: Callable[[], Fault]
) -> list[FaultEvent]:
    """Faults at random times, `every_ms` on average, numbered from `first`."""
    events: list[FaultEvent] = []
    at = 500.0 + chance.expovariate(1 / every_ms)
    while at < plan.duration_ms:
        events.append(FaultEvent(first + len(events), int(at), drawn()))
        at += chance.expovariate(1 / every_ms)
    return events


def in_order(events: list[FaultEvent]) -> tuple[FaultEvent, ...]:
    """As they happen; two of one moment by their numbers."""
    return tuple(sorted(events, key=lambda event: (event.time_ms, event.number)))
