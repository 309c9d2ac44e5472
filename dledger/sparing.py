"""Sparing words: what happens often is said once in a while, with how often it wasn't said.

A stranger can make the same thing happen a thousand times a second. The log has one line of it in
five seconds, which carries the number of those since the last one; nothing is dropped unseen.
Source: the kernel's printk ratelimit.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

EVERY_S: Final = 5.0
MAX_KEYS: Final = 256  # remembered; strangers may choose what a key is made of


@dataclass(slots=True)
class _Said:
    at_s: float
    unreported: int = 0


class Sparing:
    """Whether to say something now. One thread's."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._said: OrderedDict[Hashable, _Said] = OrderedDict()

    def due(self, key: Hashable) -> int | None:
        """How many of `key` weren't said since the last one; None: not now."""
        now, said = self._now(), self._said.get(key)
        if said is not None and now - said.at_s < EVERY_S:
            said.unreported += 1
            return None
        self._said[key] = _Said(now)
        self._said.move_to_end(key)
        if len(self._said) > MAX_KEYS:
            self._said.popitem(last=False)
        return said.unreported if said is not None else 0
