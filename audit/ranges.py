"""Where the committed log of one replica lies: the ranges that readers of messages divide.

Only committed entries are data: what a copy holds behind its settled position may never have
committed. A reader takes one replica, as they are all the same; `dledger audit replicas` says
whether they are.
"""

from __future__ import annotations

import os

from audit.decode import LogRange
from audit.errors import UsageMistake
from audit.reading import opened, read_at
from audit.replica import Replica
from audit.survey import Survey, SurveyTask, survey
from store.entry import FILLER_HEADER, FILLER_HEADER_SIZE, FILLER_MAGIC


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


def log_ranges(log: Survey, start: int, end: int) -> list[LogRange]:
    """`[start, end)` of the log, a range for each segment.

    Args:
        start, end: physical offsets between entries.
    """
    size = log.segment_size or 0
    return [
        LogRange(
            log.commitlog,
            segment.base,
            max(start, segment.base, log.retained_from),
            min(end, segment.base + size),
        )
        for segment in log.segments
        if segment.base < end and segment.base + size > start
    ]


def entry_end_after(log: Survey, start: int, size: int) -> int:
    """The end of the entry that reaches or passes `start + size`, within one segment; of the
    committed log if it ends before. At least one entry is passed, so a reader always goes on.

    Args:
        start: a physical offset between entries.
    """
    segment_size = log.segment_size or 0
    if start >= log.settled or not segment_size:
        return start
    base = start - start % segment_size
    last = min(base + segment_size, log.settled)
    with opened(os.path.join(log.commitlog, f"{base:020d}")) as descriptor:
        at = start
        while at < min(start + size, last):
            total, magic = FILLER_HEADER.unpack(read_at(descriptor, FILLER_HEADER_SIZE, at - base))
            if magic == FILLER_MAGIC or total == 0:
                return last
            at += total
    return min(at, last)
