"""How long background work rests after a piece of it, so that it takes a share of the time only.

A multiple of what the piece took is right for one that worked all the while, and for no other: what
waited for the disk, or stood still with its process, has worked for none of that time, and there is
nothing to make up for. So no rest may be longer than its bound.
"""

from __future__ import annotations

from typing import Final

LONGEST_REST_S: Final = 10.0


def rest_after(took_s: float, times: float = 1.0) -> float:
    """So many times as long as the piece took, within the bound; seconds."""
    return min(times * took_s, LONGEST_REST_S)
