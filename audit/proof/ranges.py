"""Which segments hold a range of entries, and what of the range was found. It judges nothing.

Headers are believed no further than they must be. Where to begin is decided by entries whose
checksum is right and which lie where they say; where to end, by what was read. In doubt a segment
more is read: one that is passed over is one whose damage nobody tells.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from dledger.reading.entry import HEADER_SIZE, EntryHeader, parse_header, verify_frame
from dledger.reading.files import opened, read_at
from dledger.reading.headers import walk_headers
from dledger.reading.survey import Survey
from dledger.records.errors import InvalidFrame
from dledger.records.layout import file_name

EVERYTHING: Final = (1, 1 << 63)  # first and last index, both of them

Missing = tuple[int, int | None]  # first and last index; None: whatever follows


def bases_from(survey: Survey, read_end: int, first: int) -> Sequence[int]:
    """The segments in which entry `first` may lie, and all behind them, missing ones too."""
    size = survey.segment_size or 0
    start = survey.retained_from - survey.retained_from % size
    bases = range(start, read_end, size)
    if first <= EVERYTHING[0]:
        return bases
    for number in range(len(bases) - 1, 0, -1):
        index = first_index(survey, bases[number])
        if index is not None and index <= first:
            return bases[number:]
    return bases


def first_index(survey: Survey, base: int) -> int | None:
    """The index of the segment's first entry; None if that isn't intact, or not of this place."""
    header = _intact_at(survey, base, 0)
    return None if header is None else header.index


def digest_before(survey: Survey, base: int) -> int | None:
    """The running digest that the segment's first entry has to continue; None if that, or the
    entry before it, isn't intact, or if they don't follow each other."""
    size = survey.segment_size or 0
    first, before = first_index(survey, base), base - size
    if first is None or before < 0:
        return None
    try:
        with opened(_path(survey, before)) as descriptor:
            _, last, _ = walk_headers(descriptor, before, size)
    except OSError:
        return None
    if last is None or last.index != first - 1:
        return None
    header = _intact_at(survey, before, last.physical_offset - before)
    return None if header is None else header.digest


def missing_of(
    survey: Survey, wanted: tuple[int, int], first: int | None, last: int | None
) -> tuple[Missing, ...]:
    """What of the wanted range was not found.

    From the first entry on means from where the log rightly begins, which only a checkpoint or byte
    0 tells; to the last one, to where it ends.

    Args:
        first, last: indexes of the first and of the last intact entry that was read.
    """
    low, high = wanted
    is_open = high == EVERYTHING[1]
    until = None if is_open else high
    begins = low == EVERYTHING[0] and (
        survey.checkpoint_readable or (first is not None and survey.retained_from == 0)
    )
    if first is None or last is None:
        return () if begins and is_open else ((low, until),)
    found: list[Missing] = []
    if first > low and (first > high or not begins):
        found.append((low, min(first - 1, high)))
    if last < (low if is_open else high):
        found.append((max(low, last + 1), until))
    return tuple(found)


def _intact_at(survey: Survey, base: int, at: int) -> EntryHeader | None:
    """The header of the intact entry at byte `at` of the segment."""
    try:
        with opened(_path(survey, base)) as descriptor:
            header = parse_header(read_at(descriptor, HEADER_SIZE, at), 0)
            if at + header.total_size > (survey.segment_size or 0):
                return None
            verify_frame(read_at(descriptor, header.total_size, at), 0, None)
    except (OSError, InvalidFrame):
        return None
    return header if header.physical_offset == base + at else None


def _path(survey: Survey, base: int) -> str:
    return os.path.join(survey.commitlog, file_name(base))
