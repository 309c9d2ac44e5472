"""Says how old an entry is, from what is known of when the group had lived how long.

An entry tells when it was appended by the log's time, and not how long the group had lived by then
(`broker.state.lived_time`). This owns *marks*: moments of the log's time of which both is known.
Between two moments, d milliseconds of the log's time apart, the group lived d at most, and at least
as much of it as one gap counts, so each mark bounds what was lived by any other moment, and the
nearest ones bound it best. It must never take an entry for older than it is: what is told of an age
is a bound that holds whichever marks are missing.

Where the log's time and lived time go alike, the marks around say all there is. They part where the
time steps, or the group rests: there a mark is set before, and one behind.

Bound: `MAX_MARKS`. Beyond, every second one goes: what is between is known less well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.state.lived_time import MAX_GAP_MS

MAX_MARKS: Final = 512


class Mark(NamedTuple):
    """By that moment of the log's time, so much was lived."""

    time_ms: int
    lived_ms: int


@dataclass(frozen=True, slots=True)
class Lived:
    """How long the group has lived since the entry before the first that is held, when that was
    appended by the log's time, and what is known of moments since, in their order. `pace`: so much
    may have been lived, lately, in a moment of 1."""

    lived_ms: int
    begin_time_ms: int
    marks: tuple[Mark, ...] = ()
    pace: int = 1

    def age_at_least(self, time_ms: int) -> int:
        """Of an entry that was appended then: lived time, never more than it is."""
        before, after = self._around(time_ms)
        most_ms = before.lived_ms + time_ms - before.time_ms
        if after is not None:
            most_ms = min(most_ms, after.lived_ms - min(after.time_ms - time_ms, MAX_GAP_MS))
        return self.lived_ms - most_ms

    def age_at_most(self, time_ms: int) -> int:
        """The same, never less than it is."""
        before, after = self._around(time_ms)
        least_ms = before.lived_ms + min(time_ms - before.time_ms, MAX_GAP_MS)
        if after is not None:
            least_ms = max(least_ms, after.lived_ms - (after.time_ms - time_ms))
        return self.lived_ms - least_ms

    def older_before(self, age_ms: int) -> int:
        """A moment of the log's time: what was appended before it is older than that."""
        lived_ms = self.lived_ms - age_ms * self.pace
        marks = [Mark(self.begin_time_ms, 0), *self.marks]
        last = bisect_right(marks, lived_ms, key=lambda mark: mark.lived_ms) - 1
        mark = marks[max(last, 0)]
        return mark.time_ms + lived_ms - mark.lived_ms

    def _around(self, time_ms: int) -> tuple[Mark, Mark | None]:
        """The nearest ones: the last one that isn't later, or else the log's beginning, and the
        first one that is later."""
        at = bisect_right(self.marks, time_ms, key=lambda mark: mark.time_ms)
        before = self.marks[at - 1] if at else Mark(self.begin_time_ms, 0)
        return before, self.marks[at] if at < len(self.marks) else None


class LivedMarks:
    """What one replica knows of moments of the log's time."""

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._latest: Mark | None = None

    def note(self, now: Mark) -> None:
        """So far it is, by what is applied: looked at now and then, and kept where the log's time
        went on by more than was lived since the last look."""
        latest, self._latest = self._latest, now
        if latest is None:
            self.add(now)
        elif now.time_ms - latest.time_ms > now.lived_ms - latest.lived_ms:
            self.add(latest)
            self.add(now)

    def add(self, mark: Mark) -> None:
        """That is known, too."""
        at = bisect_left(self._marks, mark)
        if self._marks[at : at + 1] != [mark]:
            insort(self._marks, mark)
        if len(self._marks) > MAX_MARKS:
            del self._marks[1:-2:2]

    def since(self, begin: Mark, now: Mark) -> Lived:
        """What is known as of now of a log that begins then; what is known of before is no use any
        more."""
        del self._marks[: bisect_left(self._marks, begin.time_ms, key=lambda mark: mark.time_ms)]
        known = [mark for mark in self._marks if mark.time_ms < now.time_ms]
        marks = (Mark(each.time_ms, each.lived_ms - begin.lived_ms) for each in (*known, now))
        return Lived(now.lived_ms - begin.lived_ms, begin.time_ms, tuple(marks))
