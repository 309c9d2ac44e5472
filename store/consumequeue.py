"""ConsumeQueues: where each message of a queue lies in the CommitLog.

This owns `<data>/consumequeue`. The files are derived from the committed log, disposable (ADR 7):
deleting them and dispatching the log again gives the same bytes. They are written without being
synced; what counts as durable is what a `flush` has covered, and after a restart everything else
is dropped and dispatched again. Nothing here may accept units that don't follow each other: a gap
or a difference means that this replica has diverged, and it must stop.

    consumequeue/<topic>@<incarnation>/<queueId>/<20 digits>
    consumequeue/.deleted-<n>        what a deleted topic left, until the next flush

A file holds `UNITS_PER_FILE` units (`dledger.records.layout`) and is named by the queue's byte
position of its first one. Files are sparse and of full size from the start; a unit of zeros is
one that was never written. One owner thread; only `FlushWork.perform` may run elsewhere, so that
deleting a thousand queues costs the owner one rename. A disk without space is told as StorageFull
and changes nothing: the same call may be made again.

Source: RocketMQ `ConsumeQueue` (layout, sizes), `ConsumeQueueStore`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from dledger.records.layout import FILE_NAME, RECORD, UNITS_PER_FILE, file_name
from dledger.records.record import MIN_RECORD_SIZE
from store.dispatch import UNIT, UNIT_DTYPE, UNIT_SIZE
from store.errors import DivergenceFound, OutOfRange, StorageFull
from store.files import PASSING_ERRNOS, FileSystem, Handle, OsFiles, make_directory, write_all
from store.queue_flush import FlushWork, remove_topic
from store.stamping import OFFSETS, OFFSETS_AT

OPEN_FILES: Final = 512

# Physical offset and size to bytes, as `CommitLog.read_at`.
ReadAt = Callable[[int, int], bytes]

_DELETED: Final = ".deleted-"  # No topic's name holds a dot.
_QUEUE_NAME: Final = re.compile(r"[0-9]{1,10}")
_STORE_TIME: Final = RECORD.run("store_time_ms")
_STORE_TIME_AT: Final = RECORD.at("store_time_ms")


class _Queue:
    """One queue: `[first, next)` are the offsets whose units it holds. The path of the file used
    last is kept: making and hashing one costs more than writing a unit."""

    __slots__ = ("directory", "file_base", "file_path", "first", "next")

    def __init__(self, directory: Path, first: int, next_offset: int) -> None:
        self.directory = directory
        self.first = first
        self.next = next_offset
        self.file_base = -1
        self.file_path = directory


class ConsumeQueues:
    """All queues of one node.

    Args:
        directory: the node's data directory; the queues are in `<directory>/consumequeue`.
        units_per_file: 300,000; tests take less.
        open_files: how many files are kept open, least recently used out first.
    """

    def __init__(
        self,
        directory: Path,
        files: FileSystem | None = None,
        *,
        units_per_file: int = UNITS_PER_FILE,
        open_files: int = OPEN_FILES,
    ) -> None:
        self._files = files or OsFiles()
        self._root = directory / "consumequeue"
        self._file_size = units_per_file * UNIT_SIZE
        self._open_files = open_files
        self._handles: OrderedDict[Path, Handle] = OrderedDict()
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._written: dict[Path, None] = {}
        self._renamed: dict[Path, None] = {}
        self._deleted: list[Path] = []
        self._delete_count = 0
        self._topics: dict[str, Path] = {}  # Topics whose directories are there.
        make_directory(self._files, self._root)

    # --- what is there ---------------------------------------------------------------------

    def queues(self) -> list[tuple[str, int]]:
        """`(topic, queue id)` of every queue that holds or held a unit, sorted."""
        return sorted(self._queues)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset held; 0 for a queue without messages."""
        queue = self._queues.get((topic, queue_id))
        return queue.first if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset of the next message; 0 for a queue without messages."""
        queue = self._queues.get((topic, queue_id))
        return queue.next if queue else 0

    def units(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        """The units of offsets `[first, first + count)`, fewer where the queue ends before.

        Raises:
            OutOfRange: `first` is below the minimum or above the maximum offset.
        """
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        if not low <= first <= high:
            raise OutOfRange("queue offset", first, low, high + 1)
        count = min(count, high - first)
        queue = self._queues.get((topic, queue_id))
        return self._read(queue, first, count) if queue and count > 0 else b""

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, read_at: ReadAt) -> int:
        """The first offset whose message was stored at `time_ms` or later; the maximum offset if
        none was. Store times don't go back within a queue."""
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        while low < high:
            middle = (low + high) // 2
            physical_offset, _, _ = UNIT.unpack(self.units(topic, queue_id, middle, 1))
            (stored,) = _STORE_TIME.unpack(
                read_at(physical_offset + _STORE_TIME_AT, _STORE_TIME.size)
            )
            if stored < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    # --- what changes ----------------------------------------------------------------------

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        """The queue holds `units` from `base_queue_offset` on. Units that it holds already, as
        after a restart, are compared and left.

        Raises:
            DivergenceFound: a gap, or a unit that differs from the one held.
            StorageFull: the disk took some of them or none; dispatch them again later.
        """
        try:
            self._dispatch(topic, queue_id, base_queue_offset, units)
        except OSError as error:
            raise self._told(error, len(units)) from error

    def _dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        queue = self._queues.get((topic, queue_id)) or self._add_queue(topic, queue_id)
        name = f"queue {topic}/{queue_id}"
        if not queue.first <= base_queue_offset <= queue.next:
            raise DivergenceFound(name, f"queue offset {queue.next}", base_queue_offset)
        held = min(queue.next - base_queue_offset, len(units) // UNIT_SIZE)
        if held:
            found = self._read(queue, base_queue_offset, held)
            expected = units[: held * UNIT_SIZE]
            if found != expected:
                raise DivergenceFound(
                    f"{name} from offset {base_queue_offset}", expected.hex(), found.hex()
                )
            units = units[held * UNIT_SIZE :]
        if units:
            self._write(queue, units)

    def delete_topic(self, topic: str) -> None:
        """The topic's queues are gone, durably with the next flush; no error if there were none.
        Their files are put aside here and removed there.

        Raises:
            StorageFull: the disk can't take a rename now; nothing changed.
        """
        directory = self._root / topic
        if topic not in self._topics and not self._files.exists(directory):
            return
        aside = self._unused_name()
        try:
            self._files.rename(directory, aside)
        except OSError as error:
            raise self._told(error, 0) from error
        self._deleted.append(aside)
        self._renamed[self._root] = None
        self._topics.pop(topic, None)
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]
        for path in [path for path in self._handles if path.parent.parent == directory]:
            self._files.close(self._handles.pop(path))

    def recover(self, keep_below: int, read_at: ReadAt) -> None:
        """The queues hold the units of records below `keep_below`, and no others.

        Args:
            keep_below: physical offset up to which units are known to be durable and committed:
                that of the entry behind the checkpoint's `consume_queue_index`. The caller
                dispatches from that entry on, or from an earlier one.
            read_at: reads the log. The last unit kept of each queue is checked against its
                record, as a page that was half lost can make one up that looks right.
        """
        self._queues.clear()
        for topic in self._files.listdir(self._root):
            if topic.startswith(_DELETED):
                remove_topic(self._files, self._root / topic)
                continue
            directory = self._topics[topic] = self._root / topic
            # Made by a process that died before its flush, these names may be known to the page
            # cache only; what is dispatched to their queues must not count as durable then.
            self._renamed[self._root] = self._renamed[directory] = None
            for name in self._files.listdir(directory):
                if _QUEUE_NAME.fullmatch(name):
                    self._recover_queue(topic, int(name), keep_below, read_at)

    def truncate_to_physical(self, physical_offset: int) -> None:
        """Units of records at or above `physical_offset` are gone from all queues."""
        for queue in self._queues.values():
            low, high = queue.first, queue.next
            while low < high:
                middle = (low + high) // 2
                if UNIT.unpack(self._read(queue, middle, 1))[0] < physical_offset:
                    low = middle + 1
                else:
                    high = middle
            self._cut(queue, low)

    def take(self) -> FlushWork:
        """What must be synced for everything dispatched so far to be durable."""
        if self._written:
            # Should a topic be put aside before the work gets to its files, their old names must
            # not come back after a power cut: the units would be missing that count as durable.
            self._renamed[self._root] = None
        work = FlushWork(self._files, list(self._written), list(self._renamed), self._deleted)
        self._written.clear()
        self._renamed.clear()
        self._deleted = []
        return work

    def flush(self) -> None:
        """Everything dispatched so far is durable. Raises OSError as `FlushWork.perform`."""
        self.take().perform()

    def close(self) -> None:
        """The files are closed; nothing is synced."""
        while self._handles:
            self._files.close(self._handles.popitem()[1])

    # --- files -----------------------------------------------------------------------------

    def _add_queue(self, topic: str, queue_id: int) -> _Queue:
        topic_directory = self._topics.get(topic)
        if topic_directory is None:
            topic_directory = self._root / topic
            self._files.mkdir(topic_directory)
            self._topics[topic] = topic_directory
        directory = topic_directory / str(queue_id)
        self._files.mkdir(directory)
        self._renamed[self._root] = self._renamed[topic_directory] = None
        queue = self._queues[(topic, queue_id)] = _Queue(directory, 0, 0)
        return queue

    def _unused_name(self) -> Path:
        """A name for a deleted topic; an earlier life may have left some."""
        while True:
            self._delete_count += 1
            path = self._root / f"{_DELETED}{self._delete_count}"
            if not self._files.exists(path):
                return path

    def _told(self, error: OSError, needed_bytes: int) -> Exception:
        """StorageFull where that is what `error` means: the same call may succeed later."""
        if error.errno not in PASSING_ERRNOS:
            return error
        return StorageFull(str(self._root), needed_bytes, self._files.free_bytes(self._root))

    def _place(self, queue: _Queue, offset: int) -> tuple[Path, int]:
        """The file that holds the unit of `offset`, and the unit's byte in it."""
        at = offset * UNIT_SIZE % self._file_size
        base = offset * UNIT_SIZE - at
        if base != queue.file_base:
            queue.file_base, queue.file_path = base, queue.directory / file_name(base)
        return queue.file_path, at

    def _read(self, queue: _Queue, first: int, count: int) -> bytes:
        pieces: list[bytes] = []
        left = count * UNIT_SIZE
        while left > 0:
            path, at = self._place(queue, first)
            size = min(left, self._file_size - at)
            pieces.append(self._files.pread(self._handle(path), size, at))
            left -= size
            first += size // UNIT_SIZE
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _write(self, queue: _Queue, units: bytes) -> None:
        done = 0
        while done < len(units):
            path, at = self._place(queue, queue.next)
            piece = memoryview(units)[done : done + self._file_size - at]
            if at == 0:
                self._begin_file(queue, path, piece)
            else:
                write_all(self._files, self._handle(path), [piece], at)
            self._written[path] = None
            done += len(piece)
            queue.next += len(piece) // UNIT_SIZE

    def _handle(self, path: Path) -> Handle:
        handle = self._handles.get(path)
        if handle is None:
            return self._keep(path, self._files.open(path))
        self._handles.move_to_end(path)
        return handle

    def _begin_file(self, queue: _Queue, path: Path, piece: memoryview) -> None:
        """The file is there and begins with `piece`, or it isn't there."""
        handle = self._keep(path, self._files.create(path))
        try:
            self._files.truncate(handle, self._file_size)
            write_all(self._files, handle, [piece], 0)
        except OSError:
            self._remove_file(path)
            raise
        self._renamed[queue.directory] = None

    def _keep(self, path: Path, handle: Handle) -> Handle:
        self._handles[path] = handle
        if len(self._handles) > self._open_files:
            self._files.close(self._handles.popitem(last=False)[1])
        return handle

    def _remove_file(self, path: Path) -> None:
        handle = self._handles.pop(path, None)
        if handle is not None:
            self._files.close(handle)
        self._written.pop(path, None)
        self._files.unlink(path)

    # --- recovery --------------------------------------------------------------------------

    def _recover_queue(self, topic: str, queue_id: int, keep_below: int, read_at: ReadAt) -> None:
        directory = self._root / topic / str(queue_id)
        names = [name for name in self._files.listdir(directory) if FILE_NAME.fullmatch(name)]
        bases = [int(name) for name in names]
        queue = _Queue(directory, bases[0] // UNIT_SIZE if bases else 0, 0)
        queue.next = queue.first
        for base in bases:
            handle = self._handle(directory / file_name(base))
            if base != queue.next * UNIT_SIZE or self._files.size(handle) != self._file_size:
                break
            held = self._count_units(handle, keep_below)
            queue.next += held
            if held * UNIT_SIZE < self._file_size:
                break
        while queue.next > queue.first and not self._is_recorded(queue, read_at):
            queue.next -= 1
        self._queues[(topic, queue_id)] = queue
        if self._has_rest(queue, bases):
            self._cut(queue, queue.next)

    def _has_rest(self, queue: _Queue, bases: list[int]) -> bool:
        """Whether anything lies behind the queue's last unit. As a rule nothing does, and then a
        start leaves the file as it is: it would be synced once more for nothing, and so would ten
        thousand others, right when the node starts to work."""
        _, at = self._place(queue, queue.next)
        if at == 0:
            return bool(bases) and bases[-1] >= queue.file_base
        if bases[-1] != queue.file_base:
            return True
        handle = self._handle(queue.file_path)
        if self._files.size(handle) != self._file_size:
            return True
        ranges = self._files.data_ranges(handle, at, self._file_size)
        return any(any(self._files.pread(handle, end - start, start)) for start, end in ranges)

    def _count_units(self, handle: Handle, keep_below: int) -> int:
        """How many units from the file's start are whole and of records below `keep_below`.

        A file whose last unit is one of these is full of them: units ascend, and what isn't
        durable lies behind what is."""
        last = self._files.pread(handle, UNIT_SIZE, self._file_size - UNIT_SIZE)
        physical_offset, size, _ = UNIT.unpack(last)
        if size >= MIN_RECORD_SIZE and physical_offset < keep_below:
            return self._file_size // UNIT_SIZE
        end = 0
        for _, data_end in self._files.data_ranges(handle, 0, self._file_size):
            end = data_end
        content = self._files.pread(handle, end - end % UNIT_SIZE, 0)
        units = np.frombuffer(content, dtype=UNIT_DTYPE)
        offsets = units["physical_offset"].astype(np.int64)
        good = (units["size"] >= MIN_RECORD_SIZE) & (offsets < keep_below)
        good[1:] &= offsets[1:] > offsets[:-1]
        return len(good) if good.all() else int(np.argmin(good))

    def _is_recorded(self, queue: _Queue, read_at: ReadAt) -> bool:
        """The last unit's record says that it lies there and belongs to that offset."""
        physical_offset, _, _ = UNIT.unpack(self._read(queue, queue.next - 1, 1))
        try:
            stamped = read_at(physical_offset + OFFSETS_AT, OFFSETS.size)
        except OutOfRange:
            return False
        return OFFSETS.unpack(stamped) == (queue.next - 1, physical_offset)

    def _cut(self, queue: _Queue, next_offset: int) -> None:
        """The queue ends at `next_offset`; everything behind reads as zeros."""
        queue.next = next_offset
        path, at = self._place(queue, next_offset)
        for name in self._files.listdir(queue.directory):
            if FILE_NAME.fullmatch(name) and name >= path.name and (name > path.name or at == 0):
                self._remove_file(queue.directory / name)
                self._renamed[queue.directory] = None
        if at:
            handle = self._handle(path)
            self._files.truncate(handle, at)
            self._files.truncate(handle, self._file_size)
            self._written[path] = None
