"""Reads how long the group had lived at an entry, where nobody knows any more.

What a log's time stepped over is known to whoever was there (`broker.leader.lived_marks`), until it
starts again. The log says it as well, in the times of all entries between its beginning and the one
that is asked for. That is a segment, mostly: the step lies in the first one, for what is before it
has gone. So it is read on from the beginning, in slices, some of it at each look, whole entries
whose checksums vouch for them. It must never take long of the event loop, nor skip an entry.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from broker.leader.lived_marks import LivedMarks, Mark
from broker.state.lived_time import MAX_GAP_MS, LivedTime
from dledger.reading.entry import parse_header
from dledger.resting import rest_after
from store.commitlog import CommitLog

LOOK_BYTES: Final = 16 << 20  # that are read at one look
SLICE_BYTES: Final = 1 << 20  # that are read at once, and
SLICE_ENTRIES: Final = 256
SHARE: Final = 4  # of the event loop's time, one part


@dataclass(frozen=True, slots=True)
class Point:
    """An entry, and what is known of when it was appended."""

    index: int
    time_ms: int
    lived_ms: int


class LivedReader:
    """One replica's. `marks` is told of what is found, and of what others know."""

    def __init__(self, look_bytes: int = LOOK_BYTES) -> None:
        self.marks = LivedMarks()
        self._look_bytes = look_bytes
        self._at = Point(0, 0, 0)

    async def read_on(self, log: CommitLog, begin: Point, through: int) -> None:
        """It is nearer to knowing how long the group had lived at entry `through`, or there.

        Args:
            begin: the entry before the first, or one of the very first.

        Raises:
            CorruptionFound: an entry on the way has rotted.
        """
        loop, left = asyncio.get_running_loop(), self._look_bytes
        if not begin.index <= self._at.index <= through:
            self._at = begin
        while self._at.index < through and left > 0:
            if self._at.index + 1 < log.first_index:
                return  # it begins later by now
            began_s = loop.time()
            left -= self._read_slice(log, through)
            await asyncio.sleep(rest_after(loop.time() - began_s, SHARE - 1))
        if self._at.index == through:
            self.marks.add(Mark(self._at.time_ms, self._at.lived_ms))

    def _read_slice(self, log: CommitLog, through: int) -> int:
        """Some of the next entries have been read; how many bytes."""
        first = self._at.index + 1
        last = log.last_that_fits(first, min(through, first + SLICE_ENTRIES - 1), SLICE_BYTES)
        blob, at = log.read(first, last), 0
        while at < len(blob):
            header = parse_header(blob, at)
            at += header.total_size
            self._pass(header.index, header.append_time_ms)
        return len(blob)

    def _pass(self, index: int, time_ms: int) -> None:
        """The next entry."""
        before, lived = self._at, LivedTime(self._at.lived_ms)
        lived.advance(before.time_ms, time_ms)
        self._at = Point(index, time_ms, lived.lived_ms)
        if time_ms - before.time_ms > MAX_GAP_MS:
            self.marks.add(Mark(before.time_ms, before.lived_ms))
            self.marks.add(Mark(time_ms, lived.lived_ms))
