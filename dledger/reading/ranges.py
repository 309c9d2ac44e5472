"""Where the committed log of one replica lies: the ranges that readers of messages divide.

Only committed entries are data: what a copy holds behind its settled position may never have
committed. A reader takes one replica, as they are all the same; `dledger audit replicas` says
whether they are.
"""

from __future__ import annotations

import os

from dledger.reading.chunks import LogRange
from dledger.reading.entry import HEADER_SIZE, parse_header
from dledger.reading.errors import LogDamaged, NoAnswer, NotALog
from dledger.reading.files import opened, read_at
from dledger.reading.survey import Survey
from dledger.records.errors import InvalidFrame
from dledger.records.layout import file_name


def checked_log(found: Survey) -> Survey:
    """The survey, of a replica that holds a log.

    Raises:
        NotALog: it doesn't, or can't be read.
        NoAnswer: where it lies, nobody answers.
    """
    if found.silent:
        raise NoAnswer(found.problem)
    if found.problem:
        raise NotALog(found.problem)
    if found.segment_size is None or not found.segments:
        raise NotALog(f"{found.commitlog} holds no log")
    return found


def readable_log(found: Survey) -> Survey:
    """The survey, of a replica whose committed log can be read to its end.

    Raises:
        NotALog, NoAnswer: see `checked_log`.
        LogDamaged: where it ends isn't known, as damage hides it, or as no checkpoint tells it.
    """
    log = checked_log(found)
    if not (log.checkpoint_readable or log.answered):
        raise LogDamaged(
            f"{log.commitlog}: no readable checkpoint beside it, and no node was asked: nothing "
            "tells what of this log is committed"
        )
    is_copy = not (log.answered or log.is_backup or log.broker_group)
    if is_copy and not log.derived_index and log.settled <= log.retained_from < log.end:
        raise LogDamaged(
            f"{log.commitlog}: its checkpoint says of no entry that it is committed, and no node "
            "was asked; if it is a backup, it was never finished"
        )
    if log.astray is not None:
        size = log.segment_size or 0
        file = os.path.join(log.commitlog, file_name(log.astray - log.astray % size))
        raise LogDamaged(
            f"{file}: byte {log.astray % size}: the log of {log.replica} goes on to entry "
            f"{log.derived_index} by its checkpoint, and no intact entry leads there"
        )
    return log


def log_ranges(log: Survey, start: int, end: int) -> list[LogRange]:
    """`[start, end)` of the log as far as retention left it, a range for each segment.

    Args:
        start, end: physical offsets between entries.

    Raises:
        LogDamaged: a segment of it is missing.
    """
    size = log.segment_size or 0
    at = max(start, log.retained_from)
    parts = []
    for segment in log.segments:
        if segment.base < end and segment.base + size > at:
            if segment.base > at:
                break
            parts.append(LogRange(log.commitlog, segment.base, at, min(end, segment.base + size)))
            at = parts[-1].end
    if at < end:
        known = [each.base for each in log.segments if each.base > at]
        behind = min([*known, end])
        raise LogDamaged(f"{log.replica} lacks bytes {at} to {behind} of its log")
    return parts


def entry_end_after(log: Survey, start: int, size: int, records: int = 1 << 62) -> int:
    """How far a reader may go from `start`: an entry's end within one segment, at most `size`
    bytes and `records` records further, or the end of the first entry if that alone is more; so a
    reader always goes on. Never beyond the committed log.

    Args:
        start: a physical offset between entries.

    Raises:
        OSError: the segment can't be read.
    """
    segment_size = log.segment_size or 0
    if start >= log.settled or not segment_size:
        return start
    base = start - start % segment_size
    last = min(base + segment_size, log.settled)
    at, passed = start, 0
    with opened(os.path.join(log.commitlog, file_name(base))) as descriptor:
        while at < last:
            head = read_at(descriptor, HEADER_SIZE, at - base)
            try:
                header = parse_header(head, 0)
            except InvalidFrame:  # A filler, or damage, which is the reader's to find.
                return last
            passed += header.record_count
            if at > start and (at + header.total_size - start > size or passed > records):
                break
            at += header.total_size
    return min(at, last)
