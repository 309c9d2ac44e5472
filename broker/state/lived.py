"""Lived time: how long the log has lived, by which what is unused for long is forgotten.

The sum of the differences of append times, each counted as a minute at most: a clock that steps by
days ages nothing by days, and a group that was switched off for a month has not lived that month.
Pure arithmetic over append times, and so alike on every replica.
"""

from __future__ import annotations

from typing import Final

MAX_STEP_MS: Final = 60_000  # between two entries


def lived_between(before_ms: int, now_ms: int) -> int:
    """How much of the time between two append times counts as lived, in milliseconds."""
    return min(max(now_ms - before_ms, 0), MAX_STEP_MS)
