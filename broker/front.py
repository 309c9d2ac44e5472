"""What one replica knows of the front of its log: for whoever decides what may go (ADR 43)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.leader.retention import Measured, SegmentEnd
from broker.snapshots import NoFiles
from broker.state.machine import QueueFiles, StateMachine
from store.commitlog import CommitLog
from store.files import FileSystem

_WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class LogFront:
    """See `broker.leader.retention.Front`.

    Attributes:
        disk_percent: the leader's disk is full from there on; 0: never.
        mended: whether rot in the log is being repaired.
        at_base: makes a machine with the state as of the entry before the first.
    """

    log: CommitLog
    machine: StateMachine
    files: FileSystem
    path: Path
    disk_percent: int
    mended: Callable[[BaseException], bool]
    at_base: Callable[[QueueFiles], Awaitable[StateMachine]]
    _known: dict[int, tuple[int, int]] = field(default_factory=dict, init=False)

    async def measured(self) -> Measured:
        """As of now. Raises: CorruptionFound, BaseMissing."""
        lived_ms, begin_time_ms = await self._beginning()
        size = self.log.options.segment_size_bytes
        first = self.log.position_of(self.log.first_index)
        return Measured(
            start_offset=first - first % size,
            end_offset=self.log.end_offset,
            segment_size=size,
            lived_ms=self.machine.lived_time.lived_ms - lived_ms,
            begin_time_ms=begin_time_ms,
            is_disk_full=bool(self.disk_percent) and self._is_a_disk_full(),
        )

    async def _beginning(self) -> tuple[int, int]:
        """How long the group had lived when the entry before the first was appended, or the very
        first, and when that was by the log's time."""
        start = self.log.start
        if not start.index:
            held = self.log.first_index <= self.log.last_index
            return 0, self.log.header_at(self.log.first_index).append_time_ms if held else 0
        if start.index not in self._known:
            lived_ms = (await self.at_base(NoFiles())).lived_time.lived_ms
            self._known.clear()
            self._known[start.index] = lived_ms, start.append_time_ms
        return self._known[start.index]

    def full_segments(self, most: int) -> Iterator[SegmentEnd]:
        """The oldest ones, that are applied whole. Raises: CorruptionFound."""
        size = self.log.options.segment_size_bytes
        if self.log.last_index < self.log.first_index:
            return
        first = self.log.position_of(self.log.first_index)
        end = first - first % size + size
        for end_offset in range(end, min(end + most * size, self.log.end_offset + 1), size):
            last = self.log.ends_by(end_offset)
            if not self.log.first_index <= last < self.machine.applied_index:
                return
            yield SegmentEnd(last, self.log.header_at(last).append_time_ms, end_offset)

    def is_behind(self) -> bool:
        """Whether what may go by the group's decision hasn't gone here yet."""
        return self.log.start_before(self.machine.log_start.first_index) is not None

    def is_mended(self, error: BaseException) -> bool:
        """Whether rot in the log is being repaired."""
        return self.mended(error)

    def _is_a_disk_full(self) -> bool:
        total = self.files.total_bytes(self.path)
        used = total - self.files.free_bytes(self.path)
        return total > 0 and used * _WHOLE >= self.disk_percent * total
