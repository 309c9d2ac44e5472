"""What tables show: times in words, names cut so that lines fit 80 columns; JSON has them whole."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len, set_cell_size

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
DAY_S: Final = 86_400
WIDTH: Final = 80
NAME_WIDTH: Final = 36  # of a name beside other columns


def duration(value_s: float) -> str:
    """The time in the largest unit of which it has one."""
    for unit_s, name in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if value_s >= unit_s:
            return f"{value_s / unit_s:.1f} {name}"
    return f"{value_s:.1f} s"


def cut(name: str, width: int = NAME_WIDTH) -> str:
    """The name, or its beginning and that there is more. Some characters are two columns wide."""
    return name if cell_len(name) <= width else f"{set_cell_size(name, width - 1)}…"
