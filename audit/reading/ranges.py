"""Where the committed log of one replica lies: the ranges that readers of messages divide.

Only committed entries are data: what a copy holds behind its settled position may never have
committed. A reader takes one replica, as they are all the same; `dledger audit replicas` says
whether they are.
"""

from __future__ import annotations

import os
from typing import Final

from audit.errors import LogDamaged, UsageMistake
from audit.reading.decode import LogRange
from audit.reading.files import opened, read_at
from audit.reading.replica import Replica
from audit.reading.survey import Survey, SurveyTask, survey
from dledger.reading.entry import HEADER_SIZE, parse_header
from dledger.records.errors import InvalidFrame
from dledger.records.layout import file_name

_NAMED_TOPICS: Final = 10


def committed_log(replica: Replica) -> Survey:
    """The survey of a replica that holds a readable log.

    Raises:
        UsageMistake: it doesn't.
    """
    found = survey(SurveyTask(replica))
    if found.problem:
        raise UsageMistake(found.problem)
    if found.segment_size is None or not found.segments:
        raise UsageMistake(f"{found.commitlog} holds no log")
    return found


def check_topics(log: Survey, topics: frozenset[str] | None) -> None:
    """The log may hold messages of each of them. Where no ConsumeQueues lie beside it, as beside a
    bare copy of the log, nobody knows before it is read.

    Raises:
        UsageMistake: of one it holds none.
    """
    known = {topic for topic, _ in log.consume_queues}
    missing = sorted((topics or frozenset()) - known)
    if known and missing:
        there = ", ".join(sorted(known)[:_NAMED_TOPICS]) + (", ..." * (len(known) > _NAMED_TOPICS))
        raise UsageMistake(
            f"{log.replica} has no message of topic {missing[0]!r}; of {there} it has"
        )


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
