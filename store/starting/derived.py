"""What a start takes from the checkpoint's word on the ConsumeQueues, and from the log for it.

They are derived, so next to nothing about them keeps a node from starting: what is wrong is mended
from the log. But the entries that they were derived from are read again, whole.
"""

from __future__ import annotations

from typing import Final

from store.commitlog import CommitLog

SLICE_BYTES: Final = 4 << 20


def trusted_index(log: CommitLog) -> int:
    """Through which entry the ConsumeQueues are known to be derived, all of it committed: what the
    checkpoint notes. 0 if that is beyond what this log was known to hold when it was noted: then it
    speaks of entries that others had, those that lie in their places here may never have been
    committed, and everything is derived again as a leader says what is. What is before the log's
    first entry is committed in any case."""
    noted = log.checkpoint.state.consume_queue_index
    trusted = noted if noted <= log.ends_by(log.recovery.watermark) else 0
    return max(trusted, log.start.index)


def read_replayed(log: CommitLog, through: int) -> None:
    """Every entry that the state is replayed from is intact; those that were known to be when the
    log was opened are not read.

    Raises:
        CorruptionFound: one isn't.
    """
    first = log.first_index
    for known_first, known_last in log.passed_over:
        _read(log, first, min(known_first - 1, through))
        first = known_last + 1
    _read(log, first, through)


def _read(log: CommitLog, first: int, through: int) -> None:
    while first <= through:
        last = first
        if first < through:
            last = log.last_that_fits(first, through, SLICE_BYTES)
        log.read(first, last)
        first = last + 1
