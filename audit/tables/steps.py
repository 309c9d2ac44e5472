"""The log in steps of which each becomes one transaction, and whether it is the log that a table
has the beginning of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from audit.errors import UsageMistake
from dledger.reading.chunks import LogRange
from dledger.reading.entry import (
    FILLER_HEADER,
    FILLER_HEADER_SIZE,
    FILLER_MAGIC,
    HEADER_SIZE,
    EntryHeader,
    digest_of,
    parse_header,
)
from dledger.reading.errors import EntryDamaged
from dledger.reading.files import opened, read_at
from dledger.reading.ranges import log_ranges
from dledger.reading.survey import Survey
from dledger.records.errors import InvalidFrame

_WINDOW_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Step:
    """Entries of one segment; `digest` is the last one's, or that of the entry before if `part`
    holds nothing but what fills a segment up, and None if nobody knows it."""

    part: LogRange
    digest: int | None


def steps(
    log: Survey, start: int, end: int, size: int, digest: int | None = None
) -> Iterator[Step]:
    """`[start, end)` of the log in order, at most `size` bytes a step unless an entry is larger.

    Args:
        start, end: physical offsets between entries.
        digest: of the entry that ends at `start`; what follows must continue it. None: not known.

    Raises:
        UsageMistake: the log is another one: what it has at `start` doesn't continue `digest`.
        EntryDamaged: something that is no entry lies where one should begin.
        LogDamaged: a segment is missing.
        OSError: one can't be read.
    """
    is_followed = digest is None
    for part in (each for each in log_ranges(log, start, end) if each.start < each.end):
        with opened(part.path) as descriptor:
            headers = _Headers(descriptor, part)
            if not is_followed and (first := headers.at(part.start)) is not None:
                frame = read_at(descriptor, first.total_size, part.start - part.base)
                _check_continues(log, part.start, first, frame, digest or 0)
                is_followed = True
            at = part.start
            while at < part.end:
                begin = at
                while at < part.end and (header := headers.at(at)) is not None:
                    if at > begin and at + header.total_size - begin > size:
                        break
                    at, digest = at + header.total_size, header.digest
                else:
                    at = part.end  # A filler, to the segment's end; or there already.
                yield Step(LogRange(part.commitlog, part.base, begin, at), digest)


def cut(step: Step, index: int) -> tuple[Step, Step]:
    """The step up to entry `index`, which isn't its first one, and from there on.

    Raises:
        EntryDamaged, OSError: as `steps`.
    """
    part = step.part
    with opened(part.path) as descriptor:
        headers = _Headers(descriptor, part)
        at, digest = part.start, None
        while (header := headers.at(at)) is not None and header.index < index:
            at, digest = at + header.total_size, header.digest
    return (
        Step(replace(part, end=at), digest),
        Step(replace(part, start=at), step.digest),
    )


def _check_continues(log: Survey, at: int, header: EntryHeader, frame: bytes, digest: int) -> None:
    is_here = len(frame) == header.total_size and header.physical_offset == at
    if is_here and digest_of(frame, 0, header.total_size, digest) == header.digest:
        return
    raise UsageMistake(
        f"what {log.replica} has at byte {at} doesn't follow what was exported before: it is "
        "another log, or it is damaged there (`dledger audit replicas` tells)"
    )


class _Headers:
    """The headers of one segment, read in windows."""

    def __init__(self, descriptor: int, part: LogRange) -> None:
        self._descriptor = descriptor
        self._part = part
        self._window = b""
        self._window_at = 0

    def at(self, at: int) -> EntryHeader | None:
        """Of the entry at the physical offset `at`; None where a filler begins.

        Raises:
            EntryDamaged: neither does.
        """
        place = at - self._part.base
        near = place - self._window_at
        if near < 0 or near + HEADER_SIZE > len(self._window):
            self._window, self._window_at = read_at(self._descriptor, _WINDOW_BYTES, place), place
            near = 0
        if len(self._window) - near >= FILLER_HEADER_SIZE:
            _, magic = FILLER_HEADER.unpack_from(self._window, near)
            if magic == FILLER_MAGIC:
                return None
        try:
            return parse_header(self._window, near)
        except InvalidFrame as error:
            expected = f"an entry with {error.field} {error.expected}"
            raise EntryDamaged(self._part.path, place, expected, error.found) from error
