"""Putting a log right: what is proven to have been there takes the place of what has rotted.

Segments in which something is wrong are walked entry by entry. Where the walk meets bytes that are
no intact entry which goes on from the one before (CRC, index, place, running digest), other
replicas are asked for the entries from there on, one replica after the other. What one gives is
believed once it *arrives*: when behind its last entry lies an intact one of this log's own that
goes on from it. As the running digest covers everything before it, there is nothing else that could
have lain between the two; so neither the giver nor its group needs to be known (ADR 39, which does
this between nodes that run, with the same journal).

    wrong ─▶ from one replica: whole frames, index by index ─▶ arrived ─▶ journal ─▶ place
                         │ no frame, another digest, no end in 32 MiB
                         └─▶ the next replica; no other: left as it is, and told with each reason

A filler is what lies behind an entry which the next segment goes on from: it follows from this log
alone. What lies behind the durable end isn't touched, nor is a file made that isn't there. It must
never write what hasn't arrived, and never outside of the journal's way (`store.repair_journal`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from audit.errors import NotProven
from audit.proof.log import OpenedLog
from audit.repairing.sources import Source, Window, folder_fetch
from dledger.reading.entry import (
    FILLER_HEADER,
    FILLER_HEADER_SIZE,
    FILLER_MAGIC,
    HEADER_SIZE,
    EntryHeader,
    blank_filler,
    claim_of,
    parse_header,
    possible_starts,
    verify_frame,
)
from dledger.reading.files import opened
from dledger.reading.headers import walk_headers
from dledger.records.errors import InvalidFrame
from dledger.records.layout import file_name
from store.damage import MAX_DAMAGE_BYTES, Extent
from store.files import FileSystem
from store.repair_journal import RepairJournal

_SCAN_BYTES: Final = 1 << 20
_FIRST_INDEX: Final = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of bytes `[offset, offset + size)` of `file` that were wrong.

    Attributes:
        first_index, last_index: the entries that they are; both 0 where they are a filler, or
            aren't known.
        source: the replica that had them; `"the log"` for a filler; empty if they are as they were.
        reasons: why each replica that was asked, or this log, couldn't give them.
    """

    file: str
    offset: int
    size: int
    first_index: int = 0
    last_index: int = 0
    source: str = ""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Here:
    """A place between two entries: byte `at` of a segment, and what has to come next. `index` and
    `digest` (of the entry before) are None where nothing before is intact."""

    base: int
    at: int
    index: int | None
    digest: int | None


@dataclass(slots=True)
class _Given:
    """What a source gave, not proven yet: for each file the first byte, and frames."""

    start: _Here
    pieces: list[tuple[int, int, list[bytes]]] = field(default_factory=list)
    size: int = 0

    def add(self, base: int, at: int, frame: bytes) -> None:
        if not self.pieces or self.pieces[-1][0] != base:
            self.pieces.append((base, at, []))
        self.pieces[-1][2].append(frame)
        self.size += len(frame)


class LogRepair:
    """One log, whose directory is this process's alone.

    Args:
        log: nothing of it was read but headers.
        sources: asked in this order.
        files: writes; None: nothing is written, and what would be is told.
    """

    def __init__(self, log: OpenedLog, sources: Sequence[Source], files: FileSystem | None) -> None:
        self._log = log
        self._sources = sources
        self._files = files
        self._commitlog = Path(log.survey.commitlog)
        self._own = folder_fetch(log.survey.commitlog)
        self._windows: dict[int, Window] = {}
        self._reached: _Here | None = None  # where the last walk ended

    def finish_interrupted(self) -> int | None:
        """A repair that a crash interrupted is done; its physical offset, None if there is none."""
        if self._files is None:
            return None
        journal = RepairJournal(self._files, self._commitlog.parent)
        return journal.redo(self._commitlog, self._log.segment_size)

    def mend(self, base: int, tell: Callable[[Outcome], None]) -> None:
        """The segment at `base` was walked, and each place in it that was wrong is told, put right
        or not. Segments are given in ascending order.

        Raises:
            OSError, CorruptionFound: it can't be written to. What was told is in its place.
        """
        self._windows.clear()
        limit = min(self._log.end - base, self._log.segment_size)
        if not self._path(base).exists():
            lacks = "there is no such file; a new disk has to be taken in"
            tell(Outcome(str(self._path(base)), 0, limit, reasons=(lacks,)))
            return
        here = self._reached if self._reached and self._reached.base == base else None
        here = here or self._beginning(base)
        while here.base == base and here.at < limit:
            header = self._intact(here)
            if header is not None:
                here = _behind(here, header)
            elif self._is_filler(here):
                here = self._beyond(here)
            elif self._next_segment_follows(here):
                tell(self._filled(here))
                here = self._beyond(here)
            else:
                outcome, here = self._refilled(here, limit)
                tell(outcome)
        self._reached = here

    # --- this log ---------------------------------------------------------------------------

    def _beginning(self, base: int) -> _Here:
        """Before the segment's first entry, with what the segment before ends in; of a log that
        begins later, with what its start note says of the entry before its first."""
        start_note = self._log.survey.start
        if base == self._log.survey.retained_from and start_note is not None:
            return _Here(base, 0, start_note.first_index, start_note.digest)
        if base == 0:
            return _Here(0, 0, _FIRST_INDEX, 0)
        before = base - self._log.segment_size
        try:
            with opened(str(self._path(before))) as descriptor:
                at, last, _ = walk_headers(descriptor, before, self._log.segment_size)
        except OSError:
            return _Here(base, 0, None, None)
        if last is None:
            return _Here(base, 0, None, None)
        start = _Here(before, at - last.total_size, last.index, None)
        if self._intact(start) != last or not self._is_filler(_behind(start, last)):
            return _Here(base, 0, None, None)
        return _Here(base, 0, last.index + 1, last.digest)

    def _intact(self, here: _Here) -> EntryHeader | None:
        """The entry there in this log; None if it isn't intact or not the one that comes next."""
        try:
            frame = _frame(self._window(here.base), here, self._log.segment_size)
            return _checked(frame, here)
        except (InvalidFrame, OSError):
            return None

    def _is_filler(self, here: _Here) -> bool:
        """Whether a filler lies there that is one to its last byte."""
        size = self._log.segment_size - here.at
        window, at = self._window(here.base), here.at
        try:
            if size < FILLER_HEADER_SIZE or window.read(at, FILLER_HEADER_SIZE) != blank_filler(
                size
            ):
                return False
            at += FILLER_HEADER_SIZE
            while at < self._log.segment_size:
                wanted = min(_SCAN_BYTES, self._log.segment_size - at)
                content = window.read(at, wanted)
                if len(content) < wanted or any(content):
                    return False
                at += wanted
        except OSError:
            return False
        return True

    def _next_segment_follows(self, here: _Here) -> bool:
        """Whether the next segment goes on from `here`, so that no entry lies between."""
        return here.digest is not None and self._intact(self._beyond(here)) is not None

    def _beyond(self, here: _Here) -> _Here:
        """What comes next is the next segment's first entry."""
        return _Here(here.base + self._log.segment_size, 0, here.index, here.digest)

    def _goes_on(self, here: _Here) -> bool:
        """Whether this log has an intact entry that comes next, there or in the next segment."""
        return self._intact(here) is not None or self._next_segment_follows(here)

    def _window(self, base: int) -> Window:
        if base not in self._windows:
            self._windows[base] = Window(self._own, base)
        return self._windows[base]

    def _path(self, base: int) -> Path:
        return self._commitlog / file_name(base)

    # --- others -----------------------------------------------------------------------------

    def _refilled(self, here: _Here, limit: int) -> tuple[Outcome, _Here]:
        """What becomes of the bytes from `here` on, and where to go on."""
        reasons: list[str] = []
        for source in self._sources if here.digest is not None else ():
            try:
                given, behind = self._from(source, here)
            except (InvalidFrame, OSError, NotProven) as error:
                reasons.append(f"{source.name}: {error}")
                continue
            self._put(given)
            first, last = here.index or 0, (behind.index or 0) - 1
            file = str(self._path(here.base))
            outcome = Outcome(file, here.at, given.size, first, last, source.name)
            # What was put there is walked, too: between two files there may be a filler to mend.
            return outcome, here if self._files is not None else behind
        if here.digest is None:
            reasons.append("nothing intact lies before it")
        behind = self._next_intact(here, limit)
        size = behind.at - here.at
        return Outcome(str(self._path(here.base)), here.at, size, reasons=tuple(reasons)), behind

    def _from(self, source: Source, here: _Here) -> tuple[_Given, _Here]:
        """What the source has from `here` on, up to where this log goes on from it.

        Raises:
            InvalidFrame, OSError, NotProven: it hasn't got what was there.
        """
        given, window = _Given(here), Window(source.fetch, here.base)
        while True:
            frame = _frame(window, here, self._log.segment_size)
            if frame is None:  # it ends with a filler there
                here = self._beyond(here)
                window = Window(source.fetch, here.base)
            else:
                given.add(here.base, here.at, frame)
                here = _behind(here, _checked(frame, here))
            if given.size and self._goes_on(here):
                return given, here
            if here.base + here.at >= self._log.end:
                raise NotProven("what it has isn't followed by an intact entry of this log")
            if given.size > MAX_DAMAGE_BYTES:
                raise NotProven(f"more than {MAX_DAMAGE_BYTES} bytes in a row")

    def _next_intact(self, here: _Here, limit: int) -> _Here:
        """The next place in the segment where an intact entry lies that says it lies there; the
        segment's end, if there is none."""
        window, at = self._window(here.base), here.at + 1
        while at < limit:
            try:
                chunk = window.read(at, min(_SCAN_BYTES, limit - at))
            except OSError:
                break
            for start in possible_starts(chunk):
                found = _Here(here.base, at + start, None, None)
                if start + HEADER_SIZE > len(chunk):
                    break
                if claim_of(chunk, start)[1] == here.base + found.at and self._intact(found):
                    return found
            if len(chunk) <= HEADER_SIZE:
                break
            at += len(chunk) - HEADER_SIZE
        return _Here(here.base, limit, None, None)

    # --- writing ----------------------------------------------------------------------------

    def _put(self, given: _Given) -> None:
        if self._files is None:
            return
        journal = RepairJournal(self._files, self._commitlog.parent)
        for base, at, frames in given.pieces:
            content = b"".join(frames)
            extent = Extent(self._path(base), base, at, at + len(content))
            handle = self._files.open(extent.path)
            try:
                if self._files.size(handle) < self._log.segment_size:
                    self._files.fallocate(handle, self._log.segment_size)
            finally:
                self._files.close(handle)
            journal.write_back(extent, content)
        self._windows.clear()

    def _filled(self, here: _Here) -> Outcome:
        size = self._log.segment_size - here.at
        path = self._path(here.base)
        if self._files is not None:
            extent = Extent(path, here.base, here.at, self._log.segment_size)
            RepairJournal(self._files, self._commitlog.parent).write_filler(extent)
            self._windows.clear()
        return Outcome(str(path), here.at, size, source="the log")


def _behind(here: _Here, header: EntryHeader) -> _Here:
    return _Here(here.base, here.at + header.total_size, header.index + 1, header.digest)


def _frame(window: Window, here: _Here, segment_size: int) -> bytes | None:
    """The frame there, unchecked but for its size; None where a filler begins.

    Raises:
        InvalidFrame: none begins there.
        OSError: it can't be read.
    """
    head = window.read(here.at, HEADER_SIZE)
    if len(head) >= FILLER_HEADER_SIZE and FILLER_HEADER.unpack_from(head)[1] == FILLER_MAGIC:
        return None
    header = parse_header(head, 0)
    most = min(segment_size - here.at, MAX_DAMAGE_BYTES)
    if header.total_size > most:
        raise InvalidFrame(here.at, "size", f"up to {most}", header.total_size)
    return window.read(here.at, header.total_size)


def _checked(frame: bytes | None, here: _Here) -> EntryHeader:
    """The header of a frame that is the one which comes next.

    Raises:
        InvalidFrame: it isn't.
    """
    if frame is None:
        raise InvalidFrame(here.at, "magic", "an entry's", "a filler's")
    header = verify_frame(frame, 0, here.digest)
    if header.physical_offset != here.base + here.at:
        expected = here.base + here.at
        raise InvalidFrame(here.at, "physical offset", expected, header.physical_offset)
    if here.index is not None and header.index != here.index:
        raise InvalidFrame(here.at, "index", here.index, header.index)
    return header
