"""How long something lasts or lasted, for people who look at a table."""

from __future__ import annotations

from typing import Final

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400


def duration(value_s: float) -> str:
    """The time in the largest unit of which it has one."""
    for unit_s, name in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if value_s >= unit_s:
            return f"{value_s / unit_s:.1f} {name}"
    return f"{value_s:.1f} s"
