"""Which snapshots of state a start may look into: those of its own disk, of its own log.

What is in them is the state machine's matter; here is what can be said of one without it, for the
node that restores it and for a judgement of the directory alike (ADR 31, ADR 38). None of it is a
reason not to start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dledger.reading.entry import parse_header
from store.commitlog import CommitLog
from store.errors import SnapshotOfAnother, StoreError
from store.snapshot_files import SnapshotFiles, SnapshotHead
from store.starting.errors import BaseMissing


def head_at(log: CommitLog, disk_id: bytes, index: int) -> SnapshotHead:
    """What a snapshot as of entry `index` of this log, on this disk, says of itself.

    Raises:
        CorruptionFound: the entry has rotted.
    """
    if index and index == log.start.index:
        start = log.start
        return SnapshotHead(disk_id, index, start.term, start.digest, start.end_offset)
    header = parse_header(log.read(index, index), 0)
    end = header.physical_offset + header.total_size
    return SnapshotHead(disk_id, index, header.term, header.digest, end)


@contextlib.contextmanager
def opened_own(
    files: SnapshotFiles, log: CommitLog, disk_id: bytes, index: int
) -> Iterator[tuple[SnapshotHead, Iterator[bytes]]]:
    """The snapshot as of entry `index`; see `SnapshotFiles.opened`.

    Raises:
        SnapshotOfAnother: it was made on another disk, or of another log.
        CorruptionFound: it isn't what was written, or the entry isn't; so does the iteration.
        NotARegularFile, OSError: it can't be read.
    """
    own = head_at(log, disk_id, index)
    with files.opened(index) as (head, chunks):
        path = str(files.path(index))
        if head.disk_id != disk_id:
            raise SnapshotOfAnother(path, "disk", disk_id.hex(), head.disk_id.hex())
        if head != own:
            raise SnapshotOfAnother(path, "log", _place(own), _place(head))
        yield head, chunks


def check_base(files: SnapshotFiles, log: CommitLog, disk_id: bytes) -> None:
    """The state as of the entry before the log's first is there, as far as that can be told
    without knowing it.

    Raises:
        BaseMissing: it isn't; a log without it gives no state.
    """
    if not log.start.index:
        return
    try:
        with opened_own(files, log, disk_id, log.start.index) as (_, chunks):
            for _ in chunks:
                pass
    except (StoreError, OSError) as error:
        file = str(files.path(log.start.index))
        raise BaseMissing(file, log.first_index, str(error)) from error


def _place(head: SnapshotHead) -> str:
    return f"term {head.term}, digest {head.digest:016x}, end {head.end_offset}"
