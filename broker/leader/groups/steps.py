"""Work that may be large, in steps: a generator that yields where others may have their turn.

Who runs it says how many steps a turn has; how large one is, `STEP` says. It must hold what it
works on itself: between two steps anything may change.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

STEP: Final = 512  # items, of some microseconds each

Steps = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """What comes of it, in one turn."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
