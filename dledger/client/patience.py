"""How long a watch that broke rests before it is tried again: longer each time, and jittered.

Trying costs a connection, of which a group that has lost a node is asked for by all of its clients
at once, while the others elect. So whoever hears another node hurries only the first time: the
others name whoever leads next, and its watch is tried then, whatever rest it had
(`NodeLink.nudge`). While somebody serves, a node that is away isn't missed at all. Pure: no clock,
no timer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

REST_MIN_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Patience:
    """By what the rest grows, and up to where."""

    growth: float
    most_s: float


ALONE: Final = Patience(growth=2, most_s=1.0)  # no node is heard: any may be the first to know
HEARD: Final = Patience(growth=50, most_s=1.0)  # another node is heard, and nobody serves
SERVED: Final = Patience(growth=50, most_s=5.0)


class Rests:
    """The rests of one watch, one after the other."""

    def __init__(self) -> None:
        self._next_s = REST_MIN_S

    def next_s(self, patience: Patience) -> float:
        """How long the next one is, in seconds."""
        rest_s = min(self._next_s, patience.most_s)
        self._next_s = min(rest_s * patience.growth, patience.most_s)
        return rest_s * random.uniform(0.5, 1.0)

    def forget(self) -> None:
        """The node was heard: should it be lost, the first rest is short."""
        self._next_s = REST_MIN_S
