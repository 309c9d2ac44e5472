"""What a start takes of the ConsumeQueues before the state machine is there.

They are derived, so next to nothing about them keeps a node from starting: what is wrong is mended
from the log. But their names and files have to be of the kind that they must be, and the entries
that they were derived from are read again, whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from store.commitlog import CommitLog

SLICE_BYTES: Final = 4 << 20


class ReplayedLog(Protocol):
    """The log, as far as the reach of the ConsumeQueues is found in it."""

    @property
    def last_index(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    def position_of(self, index: int) -> int: ...
    def read_at(self, physical_offset: int, size: int) -> bytes: ...


class RecoveredQueues(Protocol):
    """The ConsumeQueues, as far as that goes."""

    def recover(self, keep_below: int, read_at: Callable[[int, int], bytes]) -> None: ...


def trusted_index(log: CommitLog) -> int:
    """Through which entry the ConsumeQueues are known to be derived, all of it committed: what the
    checkpoint notes. 0 if that is beyond what this log was known to hold when it was noted: then it
    speaks of entries that others had, those that lie in their places here may never have been
    committed, and everything is derived again as a leader says what is."""
    noted = log.checkpoint.state.consume_queue_index
    return noted if noted <= log.ends_by(log.recovery.watermark) else 0


def recover_queues(source: ReplayedLog, queues: RecoveredQueues, derived_through: int) -> int:
    """The ConsumeQueues hold what they did of entries up to `derived_through`, and nothing behind;
    the entry up to which the state is to be replayed.

    Raises:
        StoreError, OSError: something that isn't theirs lies where their files should.
    """
    derived_through = min(derived_through, source.last_index)
    keep_below = source.end_offset
    if derived_through < source.last_index:
        keep_below = source.position_of(derived_through + 1)
    queues.recover(keep_below, source.read_at)
    return derived_through


def read_replayed(log: CommitLog, through: int) -> None:
    """Every entry that the state is replayed from is intact.

    Raises:
        CorruptionFound: one isn't.
    """
    first = 1
    while first <= through:
        last = log.last_that_fits(first, through, SLICE_BYTES)
        log.read(first, last)
        first = last + 1
