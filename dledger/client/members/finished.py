"""Which offsets of one queue are finished: a frontier, and runs above it. Pure.

Everything below the *frontier* is finished; above it, single offsets that handlers have finished
out of order, and runs: what others had finished before, and what nobody is to be given (offsets
without a message, unwanted tags). It must never count an offset as finished that nobody finished,
and a commit must never take back what an earlier one named.

The brokers unite what they are told with what they know and refuse more than `MAX_RUNS` runs a
queue. So a commit names the lowest ones, and always those that the brokers may know already: two
runs may grow together, and none ever parts, so that all of them together are no more.

    known     a lease began with it, a commit of it was answered, or the brokers finished it
    doubtful  a commit named it, and whether that went through nobody has said
    the rest  the brokers know nothing of it

What the brokers finish by themselves comes on top. Where known and doubtful ones are more than
`MAX_RUNS`, the known ones alone are named: that adds nothing, hence is taken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Final

MAX_RUNS: Final = 128

Run = tuple[int, int]  # first offset, one past the last


class Finished:
    """What is finished of one queue.

    Args:
        frontier: everything below is.
        runs: above it, ascending and apart; the brokers know of them.
    """

    __slots__ = ("_above", "_doubtful", "_doubtful_before", "_known", "_runs", "frontier")

    def __init__(self, frontier: int, runs: Iterable[Run] = ()) -> None:
        self.frontier = frontier
        self._runs = list(runs)
        self._above: set[int] = set()  # single ones, none of them in a run
        # One offset of each run, ascending.
        self._known = _firsts(self._runs)
        self._doubtful: list[int] = []
        self._doubtful_before = self._doubtful  # as it was before the commit that is under way
        self._advance()

    def __contains__(self, offset: int) -> bool:
        return offset < self.frontier or offset in self._above or self._run_at(offset) is not None

    def finish(self, offset: int) -> None:
        """The message at `offset`, which wasn't finished, is."""
        if offset == self.frontier:
            self.frontier = offset + 1
            self._advance()
        elif offset not in self:
            self._above.add(offset)

    def settle(self, offset: int) -> None:
        """The brokers have finished the message at `offset` by themselves, and said so."""
        self.finish(offset)
        if offset >= self.frontier:
            insort(self._known, offset)

    def pass_over(self, first: int, end: int) -> None:
        """Nobody is to be given `[first, end)`: as good as finished."""
        if end <= max(first, self.frontier):
            return
        if first <= self.frontier:
            self.frontier = end
            self._above = {offset for offset in self._above if offset >= end}
        else:
            self._unite(first, end)
        self._advance()

    def next_unfinished(self, offset: int) -> int:
        """`offset`, or where the run ends that it lies in."""
        offset = max(offset, self.frontier)
        run = self._run_at(offset)
        return offset if run is None else run[1]

    @property
    def has_runs(self) -> bool:
        """Whether anything is finished that was never fetched here."""
        return bool(self._runs)

    @property
    def count_above(self) -> int:
        """How many offsets above the frontier are finished."""
        return len(self._above) + sum(end - first for first, end in self._runs)

    def count_within(self, first: int, end: int) -> int:
        """How many offsets of `[first, end)` are finished."""
        runs = [(0, self.frontier), *self._runs]
        whole = sum(max(min(last, end) - max(begin, first), 0) for begin, last in runs)
        return whole + sum(first <= offset < end for offset in self._above)

    def runs(self) -> list[Run]:
        """All runs above the frontier, ascending and apart."""
        pieces = sorted([*self._runs, *((offset, offset + 1) for offset in self._above)])
        united: list[Run] = []
        for first, end in pieces:
            if united and united[-1][1] == first:
                united[-1] = (united[-1][0], end)
            else:
                united.append((first, end))
        return united

    # --- commits ------------------------------------------------------------------------------

    def name(self) -> tuple[int, list[Run]]:
        """The frontier, and the runs that a commit may name: `MAX_RUNS` at most."""
        runs = self.runs()
        if len(runs) > MAX_RUNS:
            known = [run for run in runs if _holds(run, self._known)]
            doubtful = [run for run in runs if _holds(run, self._doubtful)]
            named = {*known, *doubtful}
            if len(named) > MAX_RUNS:
                return self.frontier, known
            others = [run for run in runs if run not in named]
            runs = sorted([*named, *others[: MAX_RUNS - len(named)]])
        return self.frontier, runs

    def on_sent(self, runs: Iterable[Run]) -> None:
        """A commit that names these is on its way, and no other one."""
        self._doubtful_before = self._doubtful
        self._doubtful = sorted({*self._doubtful, *_firsts(runs)})

    def on_taken(self, runs: Sequence[Run]) -> None:
        """It went through. What the brokers have finished meanwhile they know as well."""
        named = _firsts(runs)
        others = [at for at in self._known if at >= self.frontier and not _is_in(at, runs, named)]
        self._known = sorted([*named, *others])
        self._doubtful = [
            at for at in self._doubtful if at >= self.frontier and not _is_in(at, runs, named)
        ]

    def on_refused(self) -> None:
        """It changed nothing."""
        self._doubtful = self._doubtful_before

    def _run_at(self, offset: int) -> Run | None:
        if not self._runs:
            return None
        at = bisect_right(self._runs, (offset, 1 << 64)) - 1
        return self._runs[at] if at >= 0 and offset < self._runs[at][1] else None

    def _unite(self, first: int, end: int) -> None:
        """Adds a run above the frontier, and takes in those that it touches."""
        low = bisect_left(self._runs, (first, 0))
        if low and self._runs[low - 1][1] >= first:
            low -= 1
            first = self._runs[low][0]
        high = low
        while high < len(self._runs) and self._runs[high][0] <= end:
            end = max(end, self._runs[high][1])
            high += 1
        self._runs[low:high] = [(first, end)]
        if self._above:
            self._above = {at for at in self._above if not first <= at < end}

    def _advance(self) -> None:
        """The frontier moves over what touches it."""
        above, runs = self._above, self._runs
        while above or runs:
            if self.frontier in above:
                above.remove(self.frontier)
                self.frontier += 1
            elif runs and runs[0][0] <= self.frontier:
                self.frontier = max(self.frontier, runs.pop(0)[1])
            else:
                break


def _firsts(runs: Iterable[Run]) -> list[int]:
    return [first for first, _ in runs]


def _holds(run: Run, offsets: Sequence[int]) -> bool:
    at = bisect_left(offsets, run[0])
    return at < len(offsets) and offsets[at] < run[1]


def _is_in(offset: int, runs: Sequence[Run], firsts: Sequence[int]) -> bool:
    at = bisect_right(firsts, offset) - 1
    return at >= 0 and offset < runs[at][1]


def encode_runs(frontier: int, runs: Iterable[Run]) -> list[int]:
    """As on the wire: so many unfinished from the frontier on, so many finished, and so on."""
    numbers: list[int] = []
    at = frontier
    for first, end in runs:
        numbers += (first - at, end - first)
        at = end
    return numbers


def decode_runs(frontier: int, numbers: Sequence[int]) -> list[Run]:
    """The runs that the wire's numbers stand for."""
    runs: list[Run] = []
    at = frontier
    for gap, count in zip(numbers[::2], numbers[1::2], strict=False):
        first = at + gap
        at = first + count
        runs.append((first, at))
    return runs
