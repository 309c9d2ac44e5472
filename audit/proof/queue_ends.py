"""Behind the ends of a replica's ConsumeQueues: units that nothing in its log explains.

Where a queue ends only the whole log knows. What lies behind tells the log's faults as well as the
queue's: a unit of an entry that the log should hold and lacks shows that the *log* is short.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Final

import numpy as np

from audit.proof.chain import Fault
from audit.proof.findings import Cause
from audit.proof.queue_files import FILE_BYTES, QueueKey
from dledger.reading.files import opened, read_at
from dledger.records.layout import FILE_NAME
from store.dispatch import UNIT, UNIT_SIZE
from store.files import any_nonzero

_MOST_NEWER: Final = 1 << 40  # bytes of log that are written while it is read
_CHUNK_BYTES: Final = 200_000 * UNIT_SIZE // 4


@dataclass(frozen=True, slots=True)
class Ending:
    """Where a replica's log ends, as far as units behind a queue's end can be judged by it.

    Args:
        log_start: the log begins here: units of entries before tell of what it had.
        log_end: the replica claims bytes up to here.
        known_end: the furthest that any replica's log reaches; never less than `log_end`.
        held: ranges of the log in which everything is intact: its units are all known.
        is_running: units of records at or behind `log_end` are of entries newer than what was
            audited, which is no fault of a replica that runs, or died without closing.
        is_closed: no node is at work on the files, so their sizes mean something.
    """

    log_start: int
    log_end: int
    known_end: int
    held: tuple[tuple[int, int], ...]
    is_running: bool
    is_closed: bool


@dataclass(frozen=True, slots=True)
class QueueEndTask:
    """Look behind the ends of a replica's queues: `(queue, next offset)` as the log has them; None
    where it begins later and holds no record of the queue."""

    replica: str
    root: str
    queues: tuple[tuple[QueueKey, int | None], ...]
    ending: Ending
    host: str | None = None

    @property
    def weight(self) -> int:
        return len(self.queues)


def check_queue_ends(task: QueueEndTask) -> list[Fault]:
    """The first unit behind each queue's end that shouldn't be there, and files of other sizes."""
    return [fault for queue, end in task.queues for fault in _faults(task, queue, end)]


def _faults(task: QueueEndTask, queue: QueueKey, end: int | None) -> list[Fault]:
    folder = os.path.join(task.root, queue[0], str(queue[1]))
    try:
        names = sorted(name for name in os.listdir(folder) if FILE_NAME.fullmatch(name))
    except OSError as error:
        return _unreadable(queue, "its folder", error)
    found = []
    if task.ending.is_closed:
        found += [fault for name in names for fault in _size_fault(folder, queue, name)]
    for name in names:
        if int(name) + FILE_BYTES > (end or 0) * UNIT_SIZE:
            try:
                beyond = _behind_end(os.path.join(folder, name), queue, end, task.ending)
            except OSError as error:
                found += _unreadable(queue, f"file {name}", error)
                continue
            if beyond is not None:
                return [*found, beyond]
    return found


def _unreadable(queue: QueueKey, what: str, error: OSError) -> list[Fault]:
    """What lies there nobody knows, unless it has been deleted meanwhile."""
    if isinstance(error, FileNotFoundError):
        return []
    detail = f"{queue[0]}/{queue[1]} {what}: {error.strerror or error}"
    return [Fault(Cause.QUEUE_UNREADABLE, 0, 0, 0, 0, detail, queue)]


def _size_fault(folder: str, queue: QueueKey, name: str) -> list[Fault]:
    try:
        size = os.stat(os.path.join(folder, name)).st_size
    except OSError:
        return []
    if size == FILE_BYTES:
        return []
    detail = f"{queue[0]}/{queue[1]} file {name} has {size} bytes, not {FILE_BYTES}"
    return [Fault(Cause.QUEUE_SIZE, 0, 0, 0, 0, detail, queue)]


def _behind_end(path: str, queue: QueueKey, end: int | None, ending: Ending) -> Fault | None:
    """Raises: OSError: the file can't be read."""
    base = int(os.path.basename(path))
    # Of a queue that the log doesn't know, all that it held was before the log's start.
    retired = ending.log_start if end is None else 0
    found = _first_unit(path, max((end or 0) * UNIT_SIZE - base, 0), retired)
    if found is None or _is_newer(found[1], ending):
        return None
    at, unit = found
    offset = (base + at) // UNIT_SIZE
    detail = f"{queue[0]}/{queue[1]} at queue offset {offset}: {unit.hex()} found, "
    known = f"ends at {end}" if end is not None else "has nothing"
    detail += f"by the log the queue {known}"
    cause = Cause.LOG_LACKS if _is_of_a_gap(unit, ending) else Cause.QUEUE_EXTRA
    return Fault(cause, 0, 0, 0, 0, detail, queue)


def _first_unit(path: str, start: int, retired: int) -> tuple[int, bytes] | None:
    """The first unit from byte `start` on that isn't empty, and its byte in the file; those of
    entries before the physical offset `retired` aside.

    Raises:
        OSError: the file can't be read.
    """
    with opened(path) as descriptor:
        at = start
        while (data := _next_data(descriptor, at)) is not None:
            at, size = data
            chunk = read_at(descriptor, min(size, _CHUNK_BYTES), at)
            if not chunk:
                break
            if any_nonzero(chunk) and (first := _first_in(chunk, retired)) is not None:
                return at + first, chunk[first : first + UNIT_SIZE]
            at += len(chunk)
    return None


def _first_in(chunk: bytes, retired: int) -> int | None:
    """Where in `chunk`, which isn't empty, such a unit begins."""
    if not retired:
        return (len(chunk) - len(chunk.lstrip(b"\x00"))) // UNIT_SIZE * UNIT_SIZE
    whole = chunk + bytes(-len(chunk) % UNIT_SIZE)
    units = np.frombuffer(whole, dtype=np.uint8).reshape(-1, UNIT_SIZE)
    offsets = units[:, :8].copy().view(">u8").ravel()
    later = np.flatnonzero(offsets >= retired)
    return int(later[0]) * UNIT_SIZE if len(later) else None


def _next_data(descriptor: int, at: int) -> tuple[int, int] | None:
    """The first unit at or behind byte `at` that isn't wholly in a hole, and the size of those up
    to the next hole: files are sparse. None where there is nothing but a hole up to the end.

    Raises:
        OSError: that can't be told.
    """
    try:
        data = os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise
    hole = os.lseek(descriptor, data, os.SEEK_HOLE)
    first = max(data - data % UNIT_SIZE, at)
    return first, -(-(hole - first) // UNIT_SIZE) * UNIT_SIZE


def _is_newer(unit: bytes, ending: Ending) -> bool:
    """Whether the unit is of an entry that came after what was audited. No entry is empty, and none
    came so far behind: a bit that flips in what nobody wrote is none."""
    if not ending.is_running or len(unit) < UNIT_SIZE:
        return False
    at, size, _ = UNIT.unpack(unit)
    return bool(size > 0 and ending.log_end <= at < ending.log_end + _MOST_NEWER)


def _is_of_a_gap(unit: bytes, ending: Ending) -> bool:
    """Whether the unit is of an entry that some log reaches to, and of which this one has nothing
    that could say otherwise."""
    if len(unit) < UNIT_SIZE:
        return False
    at = int(UNIT.unpack(unit)[0])
    is_ours = ending.log_start <= at < ending.known_end
    return is_ours and not any(start <= at < end for start, end in ending.held)
