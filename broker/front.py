"""What one replica knows of the front of its log: for whoever decides what may go (ADR 43).

What goes can't be got back, so it must never tell a time by bytes that nothing vouches for: each
entry that is looked at is read whole, and its CRC with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from broker.leader.full_disks import FullDisks
from broker.leader.lived_marks import Mark
from broker.leader.retention import Measured, SegmentEnd
from broker.lived_reader import LivedReader, Point
from broker.snapshots import NoFiles
from broker.state.lived_time import LivedTime
from broker.state.log_start import FIRST_ENTRY
from broker.state.machine import StateMachine
from broker.state.queue_files import QueueFiles
from dledger.core.types import NodeId
from dledger.disk_figures import DiskFigure
from dledger.reading.entry import parse_header
from dledger.reading.log_start import LogStart
from store.commitlog import CommitLog


@dataclass(frozen=True, slots=True)
class LogFront:
    """See `broker.leader.retention.Front`.

    Attributes:
        node_id: this replica's.
        disk_percent: a disk is full from there on; 0: never.
        disks: how full the voters' are, as far as that is known.
        mended: whether rot in the log is being repaired.
        at_base: makes a machine with the state as of the entry before the first.
    """

    node_id: NodeId
    log: CommitLog
    machine: StateMachine
    disk_percent: int
    disks: Callable[[], Mapping[NodeId, DiskFigure]]
    mended: Callable[[BaseException], bool]
    at_base: Callable[[QueueFiles], Awaitable[StateMachine]]
    _full: FullDisks = field(default_factory=FullDisks, init=False)
    _known: dict[int, Point] = field(default_factory=dict, init=False)
    _reader: LivedReader = field(default_factory=LivedReader, init=False)

    async def measured(self) -> Measured:
        """As of now. Raises: CorruptionFound, BaseMissing."""
        begin = await self._beginning()
        lived = self._reader.marks.since(Mark(begin.time_ms, begin.lived_ms), self._now())
        size = self.log.options.segment_size_bytes
        in_need = self._full.in_need(
            self.disks(),
            self.disk_percent,
            end_offset=self.log.end_offset,
            segment_size=size,
            now_s=asyncio.get_running_loop().time(),
        )
        if self.is_behind():  # what goes next frees others' disks, and nothing of this one
            in_need -= {self.node_id}
        return Measured(
            start_offset=self._start_offset(),
            end_offset=self.log.end_offset,
            segment_size=size,
            lived_ms=lived.lived_ms,
            begin_time_ms=lived.begin_time_ms,
            in_need=in_need,
            marks=lived.marks,
        )

    def note_lived(self) -> None:
        """So long the group has lived by now."""
        if self.machine.applied_index:
            self._reader.marks.note(self._now())

    async def read_on(self, last_index: int) -> None:
        """More is known of how long the group had lived at that entry. Raises: CorruptionFound,
        BaseMissing."""
        await self._reader.read_on(self.log, await self._beginning(), last_index)

    def on_decided(self, measured: Measured) -> None:
        """What was measured has been acted on: a segment goes, or more."""
        self._full.on_gone(
            measured.in_need,
            self.disks(),
            measured.segment_size,
            end_offset=measured.end_offset,
            now_s=asyncio.get_running_loop().time(),
        )

    def on_led_no_more(self) -> None:
        """Somebody else decides."""
        self._full.end()

    def _now(self) -> Mark:
        return Mark(self.machine.append_time_ms, self.machine.lived_time.lived_ms)

    async def _beginning(self) -> Point:
        """The entry before the first, or one of the very first two."""
        start = self.log.start
        if not start.index:
            return self._founding()
        if start.index not in self._known:
            lived_ms = (await self.at_base(NoFiles())).lived_time.lived_ms
            self._known.clear()
            self._known[start.index] = Point(start.index, start.append_time_ms, lived_ms)
        return self._known[start.index]

    def _founding(self) -> Point:
        """The second entry, the first leader's: what the first one says is the clock of whoever
        formed the group, alone, and it may be years behind."""
        if self.log.last_index < FIRST_ENTRY + 1:
            return Point(0, 0, 0)  # a leader has its own first entry: nobody asks, nothing is old
        founded_ms = self._time_of(FIRST_ENTRY)
        led_ms = self._time_of(FIRST_ENTRY + 1)
        lived = LivedTime()
        lived.advance(founded_ms, led_ms)
        return Point(FIRST_ENTRY + 1, led_ms, lived.lived_ms)

    def full_segments(self, most: int) -> Iterator[SegmentEnd]:
        """The oldest ones that the group hasn't let go of, and that are applied whole. Raises:
        CorruptionFound."""
        size = self.log.options.segment_size_bytes
        if self.log.last_index < self.log.first_index:
            return
        end = self._start_offset() + size
        for end_offset in range(end, min(end + most * size, self.log.end_offset + 1), size):
            last = self.log.ends_by(end_offset)
            if not self.log.first_index <= last < self.machine.applied_index:
                return
            yield SegmentEnd(last, self._time_of(last), end_offset)

    def _start_offset(self) -> int:
        """Of the first segment that is to stay, whether what is before it has gone here or not.
        Raises: CorruptionFound."""
        size = self.log.options.segment_size_bytes
        if (decided := self._decided()) is not None:
            return decided.offset(size)
        first = self.log.position_of(self.log.first_index)
        return first - first % size

    def _decided(self) -> LogStart | None:
        """Where the log could begin by the group's decision, if it doesn't yet."""
        return self.log.start_before(self.machine.log_start.first_index)

    def _time_of(self, index: int) -> int:
        """When the entry was appended. Raises: CorruptionFound."""
        return parse_header(self.log.read(index, index), 0).append_time_ms

    def is_behind(self) -> bool:
        """Whether what may go by the group's decision hasn't gone here yet."""
        return self._decided() is not None

    def is_mended(self, error: BaseException) -> bool:
        """Whether rot in the log is being repaired."""
        return self.mended(error)
