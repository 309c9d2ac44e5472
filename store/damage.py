"""Rotten bytes in the log: where they begin and end, and which bytes may take their place.

This owns two judgements. *Where*: from the place at which a read stumbled to the range of whole
entries that can't be trusted, between two entries that can. Whatever lies on this disk may be
rotten, so neighbours are judged by what is in memory (where entries begin, of which term they are)
and by their own CRC, and never found by way of other bytes. *What*: whether bytes that somebody
gave are exactly the ones that were there. They are, if each is a whole frame with its CRC, of the
index, the term and the place that this log knows for it, if the running digest goes on from the
entry before, and if it arrives at what this log holds behind the range: the digest that the next
entry carries, or the log's last. A giver needs no trust for that (ADR 39).

It must never judge what isn't committed, nor write: `store.repair_journal` does that. What a place
between two entries must hold (a filler) follows from the log and is asked of nobody.

Source: FAST'18, "Protocol-Aware Recovery for Consensus-Based Storage"; ours judges by a digest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.reading.entry import (
    FILLER_HEADER_SIZE,
    HEADER_SIZE,
    EntryHeader,
    blank_filler,
    digest_of,
    parse_header,
    verify_frame,
    walk_frames,
)
from dledger.records.errors import InvalidFrame
from dledger.records.layout import FILE_NAME
from store.errors import BeyondRepair, CorruptionFound
from store.files import FileSystem, first_nonzero, read_exactly
from store.history import History
from store.segment_reader import LogReader
from store.segments import Segment, SegmentTable
from store.starts import Run

# Of one range: it is in memory until it has been judged. More than that is a disk to be replaced.
MAX_DAMAGE_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes `[start, end)` of a segment file, whose first byte has the physical offset `base`."""

    path: Path
    base: int
    start: int
    end: int

    def holds(self, file: str, offset: int) -> bool:
        """Whether that byte of that file is one of them."""
        return file == str(self.path) and self.start <= offset < self.end


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that can't be trusted, as many entries as they are or a filler.

    Attributes:
        extents: where they lie, one in each file, in the log's order.
        first_index, last_index: the entries that they are; none (`last_index` is the one before)
            where they are the filler behind a segment's last entry.
        digest_before: the running digest at the entry before.
    """

    extents: tuple[Extent, ...]
    first_index: int
    last_index: int
    digest_before: int

    @property
    def is_filler(self) -> bool:
        """Whether no entry is concerned."""
        return self.last_index < self.first_index

    @property
    def size(self) -> int:
        """How many bytes they are."""
        return sum(each.end - each.start for each in self.extents)

    @property
    def file(self) -> str:
        """The first of the files."""
        return str(self.extents[0].path)


class Damages:
    """Finds damage in one log, and knows what belongs there. Owner thread only.

    Args:
        written_end: the byte up to which the log is known to be in its files.
    """

    def __init__(
        self,
        files: FileSystem,
        table: SegmentTable,
        reader: LogReader,
        history: History,
        segment_size: int,
        written_end: Callable[[], int],
    ) -> None:
        self._files = files
        self._table = table
        self._reader = reader
        self._history = history
        self._segment_size = segment_size
        self._written_end = written_end

    # --- where ------------------------------------------------------------------------------

    def place_of(self, file: str, offset: int) -> Extent:
        """The bytes around `offset` that begin and end where entries are known to, or a filler,
        whatever is in them: as finely as damage is told apart.

        Raises:
            BeyondRepair: it is no file of the log.
        """
        segment = self._segment_of(file)
        if offset >= segment.used:
            return Extent(segment.path, segment.base, segment.used, self._segment_size)
        run = segment.starts.run_at(offset)
        return Extent(segment.path, segment.base, run.start, _end_of(segment, run))

    def first_place(self) -> Extent | None:
        """What the log's first file begins with; None: nothing yet."""
        first = self._table.segments[0]
        return self.place_of(str(first.path), 0) if first.used else None

    def locate(self, file: str, offset: int) -> Damage | None:
        """The damage in the place of byte `offset` of `file`; None if there is none (any more).
        Where it can't be judged because what is before it has rotted as well: the damage there,
        which has to be put right first.

        Raises:
            BeyondRepair: it is none that can be put right; the text says why.
        """
        last = self._segment_of(file)
        if offset >= last.used:
            return self._filler_of(last)
        last_run = last.starts.run_at(offset)
        segment, run, digest = self._sound_before(last, last_run)
        while True:
            slot, at, digest = self._first_bad(segment, run, digest)
            if at < _end_of(segment, run):
                first_index = segment.first_index + slot
                extents, behind = self._extents(segment, run, at)
                return Damage(extents, first_index, behind - 1, digest)
            if (segment.base, run.start) == (last.base, last_run.start):
                self._table.look_again()
                return None
            segment, run = self._behind(segment, run)

    def _sound_before(self, segment: Segment, run: Run) -> tuple[Segment, Run, int]:
        """The nearest run, `run` or one before it, that comes behind an entry which is intact; and
        the digest of that one.

        Raises:
            BeyondRepair: it is too far.
        """
        walked = 0
        while (digest := self._digest_before(segment, run.slot)) is None:
            if run.slot == 0:
                segment = self._neighbour(segment, -1) or segment
            run = segment.starts.run_at((run.start or segment.used) - 1)
            walked += _end_of(segment, run) - run.start
            if walked > MAX_DAMAGE_BYTES:
                raise BeyondRepair(str(segment.path), f"{MAX_DAMAGE_BYTES} bytes or more in a row")
        return segment, run, digest

    def _behind(self, segment: Segment, run: Run) -> tuple[Segment, Run]:
        end = _end_of(segment, run)
        if end == segment.used:
            segment, end = self._neighbour(segment, 1) or segment, 0
        return segment, segment.starts.run_at(end)

    def _extents(self, segment: Segment, run: Run, at: int) -> tuple[tuple[Extent, ...], int]:
        """From `at`, in `run`, to the next entry that begins where one is known to and is intact;
        and which one that is.

        Raises:
            BeyondRepair: it is too far.
        """
        extents: list[Extent] = []
        while True:
            end, behind = _end_of(segment, run), segment.first_index + run.next_slot
            extent = Extent(segment.path, segment.base, at, end)
            if sum(each.end - each.start for each in [*extents, extent]) > MAX_DAMAGE_BYTES:
                raise BeyondRepair(str(segment.path), f"{MAX_DAMAGE_BYTES} bytes or more in a row")
            following = segment
            if end == segment.used:
                extents.append(extent)
                found = self._neighbour(segment, 1)
                if found is None or not found.count or self._is_intact(found, 0, behind):
                    return tuple(extents), behind
                following, end, at = found, 0, 0
            elif self._is_intact(segment, end, behind):
                return (*extents, extent), behind
            segment, run = following, following.starts.run_at(end)

    def _neighbour(self, segment: Segment, distance: int) -> Segment | None:
        at = self._table.position_of_segment(segment) + distance
        segments = self._table.segments
        return segments[at] if 0 <= at < len(segments) else None

    def is_gone(self, file: str) -> bool:
        """Whether it lies before the log's start: nobody needs what was in it any more."""
        name = Path(file).name
        is_ours = str(Path(file).parent) == str(self._table.last.path.parent)
        return (
            is_ours
            and FILE_NAME.fullmatch(name) is not None
            and int(name) < self._table.segments[0].base
        )

    def _segment_of(self, file: str) -> Segment:
        name = Path(file).name
        if FILE_NAME.fullmatch(name):
            for segment in self._table.segments:
                if segment.base == int(name) and str(segment.path) == file:
                    return segment
        raise BeyondRepair(file, "it is no file of the log")

    def _filler_of(self, segment: Segment) -> Damage | None:
        if segment is self._table.last:
            raise BeyondRepair(str(segment.path), "nothing was written there yet")
        if self._has_filler(segment):
            return None
        behind = segment.first_index + segment.count
        extent = Extent(segment.path, segment.base, segment.used, self._segment_size)
        return Damage((extent,), behind, behind - 1, 0)

    def _has_filler(self, segment: Segment) -> bool:
        """Whether what belongs behind its last entry is there, and nothing else."""
        at, size, name = segment.used, self._segment_size, str(segment.path)
        try:
            head = read_exactly(self._files, segment.handle, FILLER_HEADER_SIZE, at, name)
            behind = at + FILLER_HEADER_SIZE
            is_blank = first_nonzero(self._files, segment.handle, behind, size) is None
        except CorruptionFound:
            return False
        is_whole = self._files.size(segment.handle) == size
        return head == blank_filler(size - at) and is_blank and is_whole

    def _digest_before(self, segment: Segment, slot: int) -> int | None:
        """The digest at the entry before; None if that one isn't intact."""
        index = segment.first_index + slot - 1
        if index < self._history.first_index:
            return self._history.start.digest
        try:
            header = parse_header(self._reader.read(index, index), 0)
        except CorruptionFound:
            return None
        return header.digest if header.term == self._history.term_at(index) else None

    def _is_intact(self, segment: Segment, at: int, index: int) -> bool:
        return self._frame_at(segment, at, index) is not None

    def _frame_at(self, segment: Segment, at: int, index: int) -> bytes | None:
        """The frame of the entry `index`, which is known to begin at `at`; None if it isn't intact
        by its own CRC, or is of another term: the one that was there before (a write that the disk
        has lost). No other entry is read. What may not have been written yet is in memory as it was
        appended."""
        if segment.base + at >= self._written_end() and self._reader.is_cached(index):
            return self._reader.read(index, index)
        try:
            head = read_exactly(self._files, segment.handle, HEADER_SIZE, at, str(segment.path))
            size = min(int.from_bytes(head[:4], "big"), segment.used - at)
            frame = read_exactly(self._files, segment.handle, size, at, str(segment.path))
            header = verify_frame(frame, 0, None)
        except (CorruptionFound, InvalidFrame):
            return None
        place = index, self._history.term_at(index), segment.base + at
        return frame if (header.index, header.term, header.physical_offset) == place else None

    def _first_bad(self, segment: Segment, run: Run, digest: int) -> tuple[int, int, int]:
        """Slot and start of the first entry of a run that isn't what continues `digest`, and the
        digest before it; the run's end, if there is none."""
        slot, at, end = run.slot, run.start, _end_of(segment, run)
        try:
            blob = read_exactly(self._files, segment.handle, end - at, at, str(segment.path))
        except CorruptionFound:  # the file ends before; what there is of it counts as nothing
            return slot, at, digest
        while at < end:
            try:
                header = verify_frame(blob, at - run.start, digest)
            except InvalidFrame:
                return slot, at, digest
            place = segment.first_index + slot, segment.base + at
            if (header.index, header.physical_offset) != place:
                return slot, at, digest
            slot, at, digest = slot + 1, at + header.total_size, header.digest
        return slot, at, digest

    # --- what -------------------------------------------------------------------------------

    def bytes_at(self, extent: Extent, at: int) -> bytes:
        """The frame that begins at byte `at` of an extent's file, by the size that it says it has,
        unjudged; nothing where there is none, or it can't be read."""
        name = str(extent.path)
        handle = self._segment_of(name).handle
        try:
            head = read_exactly(self._files, handle, HEADER_SIZE, at, name)
            size = int.from_bytes(head[:4], "big")
            if not HEADER_SIZE <= size <= extent.end - at:
                return b""
            return read_exactly(self._files, handle, size, at, name)
        except CorruptionFound:
            return b""

    def arrives(self, damage: Damage, digest: int) -> bool:
        """Whether `digest`, at the last entry of the range, is what this log goes on from."""
        if damage.last_index == self._history.last_index:
            return digest == self._history.last_digest
        last, behind = damage.extents[-1], damage.last_index + 1
        segment, at = self._segment_of(str(last.path)), last.end
        if at == segment.used:
            segment, at = self._neighbour(segment, 1) or segment, 0
        frame = self._frame_at(segment, at, behind)
        if frame is None:
            return False
        header = parse_header(frame, 0)
        return digest_of(frame, 0, header.total_size, digest) == header.digest


def _end_of(segment: Segment, run: Run) -> int:
    return segment.used if run.next_start is None else run.next_start


# The frame that begins at that byte of an extent's file, by its size; nothing if it can't be read.
ReadBytes = Callable[[Extent, int], bytes]


def _nothing(extent: Extent, at: int) -> bytes:
    return b""


class Refill:
    """The bytes of one damage, as they are given piece by piece by one giver.

    Args:
        term_at: the term of an entry, as this log knows it.
        arrives: see `Damages.arrives`.
        read: see `Damages.bytes_at`.
    """

    def __init__(
        self,
        damage: Damage,
        term_at: Callable[[int], int],
        arrives: Callable[[Damage, int], bool],
        read: ReadBytes = _nothing,
    ) -> None:
        self.damage = damage
        self._read = read
        self.next_index = damage.first_index
        self._digest = damage.digest_before
        self._term_at = term_at
        self._arrives = arrives
        self._left = [*damage.extents]  # not filled yet; the first from `_at` on
        self._at = damage.extents[0].start
        self._pieces: list[bytes] = []

    def take(self, blob: bytes) -> bool:
        """The next frames are in `blob`; True if the range is complete and proven.

        Raises:
            InvalidFrame: they are not what was there. Nothing of this giver is worth anything.
        """
        damage, at = self.damage, 0
        headers = walk_frames(blob)
        if not headers:
            raise InvalidFrame(0, "frames", "one at least", "none")
        for header in headers:
            self._check(header, at)
            digest = digest_of(blob, at, header.total_size, self._digest)
            if digest != header.digest:
                raise InvalidFrame(at, "digest", f"{digest:016x}", f"{header.digest:016x}")
            self._digest = digest
            self._go_on(header.total_size)
            self.next_index += 1
            at += header.total_size
        self._pieces.append(blob)
        if self.next_index <= damage.last_index:
            return False
        if self._left:
            raise InvalidFrame(at, "end", self._left[0].end, self._at)
        if not self._arrives(damage, self._digest):
            found = f"{self._digest:016x}"
            raise InvalidFrame(at, "digest", f"one that entry {self.next_index} follows", found)
        return True

    def own_frame(self) -> bytes:
        """The next frame as it lies in this log, if it is intact and carries on what was taken."""
        if not self._left:
            return b""
        extent = self._left[0]
        frame = self._read(extent, self._at)
        try:
            header = verify_frame(frame, 0, self._digest)
            self._check(header, 0)
        except InvalidFrame:
            return b""
        return frame

    def next_term(self) -> int | None:
        """The term of the next entry, as this log knows it."""
        return self._term_at(self.next_index)

    def _go_on(self, size: int) -> None:
        self._at += size
        if self._at == self._left[0].end:
            del self._left[0]
            if self._left:
                self._at = self._left[0].start

    def _check(self, header: EntryHeader, at: int) -> None:
        if header.index != self.next_index or header.index > self.damage.last_index:
            raise InvalidFrame(at, "index", self.next_index, header.index)
        if not self._left:
            raise InvalidFrame(at, "end", "no more entries", header.index)
        extent = self._left[0]
        if header.physical_offset != extent.base + self._at:
            expected = extent.base + self._at
            raise InvalidFrame(at, "physical offset", expected, header.physical_offset)
        if header.term != self._term_at(header.index):
            raise InvalidFrame(at, "term", self._term_at(header.index), header.term)
        if self._at + header.total_size > extent.end:
            raise InvalidFrame(at, "size", extent.end - self._at, header.total_size)

    def contents(self) -> list[tuple[Extent, bytes]]:
        """Everything that was taken, by where it belongs."""
        content, at = b"".join(self._pieces), 0
        found: list[tuple[Extent, bytes]] = []
        for extent in self.damage.extents:
            size = extent.end - extent.start
            found.append((extent, content[at : at + size]))
            at += size
        return found
