"""Messages and bytes over time, in a bounded number of spans whose width grows with the time.

A width is a power of two of milliseconds, and spans begin at its multiples, so two timelines can be
added at the wider one's width whatever order they come in: every engine draws the same picture.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

MAX_SPANS: Final = 64

_Values = npt.NDArray[np.int64]


@dataclass(slots=True)
class Timeline:
    """Counts by span: span `n` is `[n * width_ms, (n + 1) * width_ms)` since the epoch."""

    width_ms: int = 1
    messages: Counter[int] = field(default_factory=Counter)
    body_bytes: Counter[int] = field(default_factory=Counter)

    def count(self, times_ms: _Values, sizes: _Values) -> None:
        """Messages stored at these times with bodies of these sizes are counted too."""
        width = self.width_ms
        while int(times_ms.max()) // width - int(times_ms.min()) // width >= MAX_SPANS:
            width *= 2
        spans, places = np.unique(times_ms // width, return_inverse=True)
        counts = np.bincount(places).tolist()
        totals = np.zeros(len(spans), np.int64)
        np.add.at(totals, places, sizes)
        made = dict(zip(spans.tolist(), counts, strict=True))
        weighed = dict(zip(spans.tolist(), totals.tolist(), strict=True))
        self.add(Timeline(width, Counter(made), Counter(weighed)))

    def add(self, other: Timeline) -> None:
        """`other`'s messages are counted too."""
        self.widen(other.width_ms)
        factor = self.width_ms // other.width_ms
        for mine, theirs in (
            (self.messages, other.messages),
            (self.body_bytes, other.body_bytes),
        ):
            for span, value in theirs.items():
                mine[span // factor] += value
        while self.messages and max(self.messages) - min(self.messages) >= MAX_SPANS:
            self.widen(2 * self.width_ms)

    def widen(self, width_ms: int) -> None:
        """A span is `width_ms` wide, unless it was wider already.

        Args:
            width_ms: a power of two.
        """
        if width_ms <= self.width_ms:
            return
        factor = width_ms // self.width_ms
        self.messages = _merged(self.messages, factor)
        self.body_bytes = _merged(self.body_bytes, factor)
        self.width_ms = width_ms


def _merged(counts: Counter[int], factor: int) -> Counter[int]:
    merged: Counter[int] = Counter()
    for span, value in counts.items():
        merged[span // factor] += value
    return merged
