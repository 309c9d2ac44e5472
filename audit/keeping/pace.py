"""Whose turn it is: which kept results are read again, so that all are within a period. Pure.

A result ends with the period, whatever happened in between, and one that was proved in the future
is none, as the clock was set back since. Before that, rounds share the work: each takes the oldest,
as much of all as time has passed since the round before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from audit.keeping.stamps import Place


@dataclass(frozen=True, slots=True)
class Pace:
    """All is read again within `period_s`; the last round began `since_last_s` ago (seconds)."""

    period_s: float
    since_last_s: float

    def is_over(self, age_s: float) -> bool:
        """Whether a result of that age says nothing any more."""
        return not 0 <= age_s < self.period_s

    def due(self, kept: Mapping[Place, tuple[float, int]]) -> set[Place]:
        """Those to be read in this round.

        Args:
            kept: of each place the age (seconds) and the size (bytes).
        """
        over = {place for place, (age, _) in kept.items() if self.is_over(age)}
        share = min(max(self.since_last_s / self.period_s, 0.0), 1.0)
        budget = share * sum(size for _, size in kept.values())
        taken = float(sum(kept[place][1] for place in over))
        due = set(over)
        for place, (_, size) in sorted(kept.items(), key=lambda each: -each[1][0]):
            if taken >= budget:
                break
            if place not in due:
                due.add(place)
                taken += size
        return due
