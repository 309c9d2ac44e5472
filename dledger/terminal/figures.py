"""Numbers as figures: the percentile of what was measured, and sizes as people read them.

One rule for benchmarks, chaos reports and audits, so that two of their figures can be compared.
Distributions too large to be kept are counted in buckets where they arise; those have percentiles
of their own, as right as their buckets are narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least value that `share` of `ordered` doesn't exceed (nearest rank).

    Args:
        ordered: ascending, not empty.
        share: in (0, 1]: 0.5 is the median, 1.0 the greatest.

    Raises:
        ValueError: `ordered` is empty or `share` out of range.
    """
    if not ordered or not 0 < share <= 1:
        raise ValueError("a percentile needs values, and a share in (0, 1]")
    return ordered[math.ceil(share * len(ordered)) - 1]


def human_bytes(size: float) -> str:
    """`1536` as `1.5 KiB`."""
    for unit in _UNITS[:-1]:
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
