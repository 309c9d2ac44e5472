"""The units that a segment's entries have in the ConsumeQueues, told by queue in a few bytes.

Whoever has read a segment knows what its queues must hold. A *run* says that again without the
segment: where in the queue its units begin, how many they are, and a digest over all of them. So
the queues of a segment can be read again without its log (ADR 35). XXH3 finds accidents and not
forgers, as everywhere in an audit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from xxhash import xxh3_64

from audit.proof.queue_files import QueueFiles, QueueKey, is_deleted
from audit.reading.pace import Pace
from store.dispatch import UNIT_SIZE

_CHUNK_UNITS: Final = 50_000  # A megabyte is read at once.


class UnitRun(NamedTuple):
    """Units `[first, first + units)` of a queue, queue offsets, and the XXH3-64 of their bytes."""

    queue: QueueKey
    first: int
    units: int
    digest: int


@dataclass(slots=True)
class _Growing:
    """A run that is still read."""

    first: int
    next: int
    state: xxh3_64 = field(default_factory=xxh3_64)


class UnitRuns:
    """The runs of one segment, gathered entry by entry.

    A queue that doesn't go on where it stopped within the segment has no run, and an entry that
    can't say which queue it is for has none either: then nothing can be said of this segment.
    """

    def __init__(self) -> None:
        self._runs: dict[QueueKey, _Growing] = {}
        self._is_told = True

    def expect(self, queue: QueueKey, first: int, units: bytes) -> None:
        """An entry's units are next in `queue`, from queue offset `first` on."""
        run = self._runs.get(queue)
        if run is None:
            run = self._runs[queue] = _Growing(first, first)
        if run.next != first:
            self.give_up()
        run.state.update(units)
        run.next += len(units) // UNIT_SIZE

    def forget(self, deleted: str) -> None:
        """The topic of these folders is gone, and its queues need not be there."""
        kept = {key: run for key, run in self._runs.items() if not is_deleted(key[0], [deleted])}
        self._runs = kept

    def give_up(self) -> None:
        """Runs don't tell what this segment's queues hold."""
        self._is_told = False

    def told(self) -> tuple[UnitRun, ...] | None:
        """The runs by queue; None if they don't tell all."""
        if not self._is_told:
            return None
        return tuple(
            UnitRun(queue, run.first, run.next - run.first, run.state.intdigest())
            for queue, run in sorted(self._runs.items())
        )


@dataclass(frozen=True, slots=True)
class RunsTask:
    """Read the units of these segments of one replica: `(base, runs)`."""

    replica: str
    queues_root: str
    segments: tuple[tuple[int, tuple[UnitRun, ...]], ...]
    bytes_per_s: float
    host: str | None = None

    @property
    def weight(self) -> int:
        """Bytes to read."""
        return UNIT_SIZE * sum(run.units for _, runs in self.segments for run in runs)


def differing_runs(task: RunsTask) -> list[int]:
    """The bases of those segments of which a run is another one now, or can't be read whole."""
    files, pace = QueueFiles(task.queues_root), Pace(task.bytes_per_s)
    try:
        return [
            base
            for base, runs in task.segments
            if not all(_is_there(files, run, pace) for run in runs)
        ]
    finally:
        files.close()


def _is_there(files: QueueFiles, run: UnitRun, pace: Pace) -> bool:
    state, at, end = xxh3_64(), run.first, run.first + run.units
    while at < end:
        count = min(_CHUNK_UNITS, end - at)
        units = files.units(run.queue, at, count)
        if len(units) < count * UNIT_SIZE:
            return False
        state.update(units)
        pace.spend(len(units))
        at += count
    return bool(state.intdigest() == run.digest)
