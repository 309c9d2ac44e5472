"""ConsumeQueues: where each message of a queue lies in the CommitLog.

This owns `<data>/consumequeue`. The files are derived from the committed log, disposable (ADR 7):
deleting them and dispatching the log again gives the same bytes. They are written without being
synced; what counts as durable is what a `flush` has covered. After a restart the log says how far
that is, and everything behind is cut and dispatched again (ADR 27). Nothing here may accept units
that don't follow each other: a gap or a difference means that this replica has diverged, and it
must stop. What the files hold is no witness of anything: whoever reads units compares them with the
log (`broker/reading/proof.py`), and a queue whose files are wrong is mended in place (ADR 28).

    consumequeue/<topic>@<incarnation>/<queueId>/<20 digits>
    consumequeue/.deleted-<n>        what a deleted topic left, until the next flush

A file holds `UNITS_PER_FILE` units (`dledger.records.layout`) and is named by the queue's byte
position of its first one. Files are sparse and of full size from the start; a unit of zeros is
one that was never written. One owner thread; only `FlushWork.perform` may run elsewhere, so that
deleting a thousand queues costs the owner one rename. A disk without space is told as StorageFull
and changes nothing: the same call may be made again.

It is longer than most modules: dispatching, mending and cutting share the one rule of where a unit
lies, and apart from each other would each have a copy of it.

Source: RocketMQ `ConsumeQueue` (layout, sizes), `ConsumeQueueStore`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Final

from dledger.records.layout import FILE_NAME, UNITS_PER_FILE, file_name
from store.dispatch import UNIT, UNIT_SIZE
from store.errors import DivergenceFound, NotARegularFile, OutOfRange, StorageFull
from store.files import (
    CHUNK_BYTES,
    LOST_ERRNOS,
    PASSING_ERRNOS,
    FileSystem,
    Handle,
    OsFiles,
    make_directory,
    write_all,
)
from store.queue_flush import FlushWork, remove_topic
from store.unit_marks import UnitMarks

OPEN_FILES: Final = 512
PAGE_BYTES: Final = 4096

_DELETED: Final = ".deleted-"  # No topic's name holds a dot.
_QUEUE_NAME: Final = re.compile(r"[0-9]{1,10}")
_ZEROS: Final = bytes(PAGE_BYTES)


class _Queue:
    """One queue: `[first, next)` are the offsets whose units it holds. The path of the file used
    last is kept: making and hashing one costs more than writing a unit. `is_begun`: the file that
    begins with the next unit is there already, all zeros."""

    __slots__ = ("directory", "file_base", "file_path", "first", "is_begun", "next")

    def __init__(self, directory: Path, first: int, next_offset: int) -> None:
        self.directory = directory
        self.first = first
        self.next = next_offset
        self.file_base = -1
        self.file_path = directory
        self.is_begun = False


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
        self.units_per_file = units_per_file
        self._file_size = units_per_file * UNIT_SIZE
        self._open_files = open_files
        self._handles: OrderedDict[Path, Handle] = OrderedDict()
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._begun: dict[tuple[str, int], _Queue] = {}  # Not known yet, but there is a file.
        self._written: dict[Path, None] = {}
        self._renamed: dict[Path, None] = {}
        self._deleted: list[Path] = []
        self._delete_count = 0
        self._topics: dict[str, Path] = {}  # Topics whose directories are there.
        self._marks: dict[tuple[str, int], UnitMarks] = {}
        make_directory(self._files, self._root)

    # --- what is there ---------------------------------------------------------------------

    def folders(self) -> list[str]:
        """The names of the topics' folders, sorted."""
        return sorted(self._topics)

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

    def holds(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> bool:
        """Whether the queue's files have exactly these units from `base_queue_offset` on, whatever
        is known of the queue."""
        if topic not in self._topics:
            return False
        queue = self._queues.get((topic, queue_id)) or self._queue_at(topic, queue_id)
        if self._read(queue, base_queue_offset, len(units) // UNIT_SIZE) != units:
            return False
        self._learn((topic, queue_id), base_queue_offset, units)
        return True

    def vouched(self, topic: str, queue_id: int, first: int, count: int) -> tuple[bytes, int]:
        """`units`, and how many of them, from the first on, are known to be what was derived. The
        others needn't be wrong: nothing is known of them.

        Raises:
            OutOfRange: as `units`.
        """
        marks, queue = self._marks.get((topic, queue_id)), self._queues.get((topic, queue_id))
        end = min(first + count, self.max_offset(topic, queue_id))
        if marks is None or queue is None or not marks.first <= first < min(end, marks.end):
            return self.units(topic, queue_id, first, count), 0
        low, high = marks.around(first, min(end, marks.end))
        if first < queue.first or low < queue.first:  # what is before may have gone
            return self.units(topic, queue_id, first, count), 0
        units = self._read(queue, low, max(high, end) - low)
        sure = min(marks.proven(low, units[: (high - low) * UNIT_SIZE]), end) - first
        return units[(first - low) * UNIT_SIZE : (end - low) * UNIT_SIZE], max(0, sure)

    def bears_out(
        self, topic: str, queue_id: int, count: int, crc: int, first: int = 0, before: int = 0
    ) -> bool:
        """Whether `crc` is the CRC32C of the queue's first `count` units, whatever is known of it:
        of what its files hold from the offset `first` on, on top of `before`, that of the units
        before. It reads no further than they go."""
        queue = self._queues.get((topic, queue_id)) or self._queue_at(topic, queue_id)
        marks, piece = UnitMarks(first, before), CHUNK_BYTES // UNIT_SIZE
        for at in range(first, count, piece):
            units = self._read(queue, at, min(piece, count - at))
            if units[-UNIT_SIZE:] == bytes(UNIT_SIZE):
                return False  # what was never written, or is lost, reads as zeros
            marks.extend(units)
        if marks.crc != crc:
            return False
        self._marks[(topic, queue_id)] = marks
        return True

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
        if len(units) > held * UNIT_SIZE:
            self._write(queue, units[held * UNIT_SIZE :] if held else units)
        self._learn((topic, queue_id), base_queue_offset, units)

    def _learn(self, key: tuple[str, int], base: int, units: bytes) -> None:
        """The units from `base` on are these, as the log says."""
        marks = self._marks.get(key)
        if marks is None or base < marks.first:
            marks = self._marks[key] = UnitMarks(base)
        if base <= marks.end:
            marks.extend(units[(marks.end - base) * UNIT_SIZE :] if base < marks.end else units)

    def _forget(self, key: tuple[str, int], end: int) -> None:
        """What is known of units from the offset `end` on isn't so any more."""
        if (marks := self._marks.get(key)) is not None and marks.end > end:
            del self._marks[key]

    def delete_topic(self, topic: str) -> None:
        """The topic's queues are gone, durably with the next flush; no error if there were none.
        Their files are put aside here and removed there.

        Raises:
            StorageFull: the disk can't take a rename now; nothing changed.
        """
        directory = self._root / topic
        if self._files.exists(directory):
            aside = self._unused_name()
            try:
                self._files.rename(directory, aside)
            except OSError as error:
                raise self._told(error, 0) from error
            self._deleted.append(aside)
            self._renamed[self._root] = None
        self._topics.pop(topic, None)
        for known in (self._queues, self._begun, self._marks):
            for key in [key for key in known if key[0] == topic]:
                del known[key]
        for path in [path for path in self._handles if path.parent.parent == directory]:
            self._files.close(self._handles.pop(path))

    def look(self) -> None:
        """Which topics have files is known, by one look at their folders' names; no queue is. What
        deleted topics left is removed. For a start, before anything else is done."""
        self._queues.clear()
        self._begun.clear()
        self._marks.clear()
        self._topics.clear()
        for topic in self._files.listdir(self._root):
            if topic.startswith(_DELETED):
                remove_topic(self._files, self._root / topic)
                continue
            directory = self._topics[topic] = self._root / topic
            # Made by a process that died before its flush, these names may be known to the page
            # cache only; what is dispatched to their queues must not count as durable then.
            self._renamed[self._root] = self._renamed[directory] = None

    def inspect(self) -> None:
        """Whatever has the name of a queue's file can be opened as one. For a rehearsal, which
        knows no topics: a start opens those of its topics only, and removes the others'.

        Raises:
            StoreError, OSError: something else lies there.
        """
        self.look()
        for directory in self._topics.values():
            for queue_id in filter(_QUEUE_NAME.fullmatch, self._files.listdir(directory)):
                queue = directory / queue_id
                for name in filter(FILE_NAME.fullmatch, self._files.listdir(queue)):
                    self._handle(queue / name)

    def settle(self, topic: str, queue_id: int) -> bool:
        """Nothing lies behind the end of a queue that is expected: what an earlier life derived
        from entries that this one hasn't applied yet is gone, and will be derived again. False if
        a file isn't there or not of its size: then nothing has happened."""
        queue = self._queues.get((topic, queue_id))
        if topic not in self._topics:
            return queue is None or queue.first == queue.next
        if queue is None:
            queue = self._queue_at(topic, queue_id)
        if queue.first == queue.next:
            self._clear(queue)
            if queue.is_begun and queue.next == 0:
                self._begun[(topic, queue_id)] = queue
            return True
        try:
            is_whole, has_rest = self._examine(queue)
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            return False
        if is_whole and has_rest:
            self._cut(queue, queue.next)
        return is_whole

    def drop_stray(self, topic: str) -> None:
        """A folder that is no topic's is put aside, as a deleted topic's is.

        Raises:
            StorageFull: not now.
            OSError: it isn't even a folder; who put it there?
        """
        self._files.listdir(self._root / topic)
        self.delete_topic(topic)

    def expect(self, topic: str, queue_id: int, next_offset: int, first: int = 0) -> None:
        """The queue reaches from `first` to `next_offset`, whatever its files hold: what they lack
        reads as zeros, and they are to be mended. No file is touched. One that ends at 0 isn't
        known."""
        if next_offset:
            self._queues[(topic, queue_id)] = self._queue_at(topic, queue_id, first, next_offset)
            self._forget((topic, queue_id), next_offset)

    def begin_at(self, topic: str, queue_id: int, first: int) -> bool:
        """The queue's units begin with that of the offset `first`, its next one at most; whether
        files may not be needed any more: `drop_unneeded`."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return False
        before = queue.first * UNIT_SIZE // self._file_size
        queue.first = max(queue.first, min(first, queue.next))
        return queue.first * UNIT_SIZE // self._file_size > before

    def drop_unneeded(self, topic: str, queue_id: int) -> None:
        """Files that lie wholly before the queue's first unit are gone. Not durable: what comes
        back lies there once more."""
        queue = self._queues.get((topic, queue_id))
        needed = 0 if queue is None else queue.first * UNIT_SIZE // self._file_size
        if queue is None or not needed or not self._files.exists(queue.directory):
            return  # as a rule its first file is needed: of ten thousand, none is looked at
        needed *= self._file_size
        for name in sorted(self._files.listdir(queue.directory)):
            if FILE_NAME.fullmatch(name) and int(name) < needed:
                self._remove_file(queue.directory / name)

    def lay_out(self, topic: str, queue_id: int) -> None:
        """The queue's files are those that it needs, each of its size, zeros behind the last unit.

        Raises:
            StorageFull: not all of it is done; call it again later.
        """
        try:
            self._lay_out(self._queues[(topic, queue_id)], topic)
        except OSError as error:
            raise self._told(error, 0) from error

    def mend(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> int:
        """The queue's files have these units from `base_queue_offset` on, below its end; how many
        were wrong.

        Raises:
            StorageFull: some may be wrong yet; call it again later.
        """
        queue = self._queues[(topic, queue_id)]
        units = units[max(0, queue.first - base_queue_offset) * UNIT_SIZE :]
        base_queue_offset = max(base_queue_offset, queue.first)
        count = min(len(units) // UNIT_SIZE, queue.next - base_queue_offset)
        if count <= 0:
            return 0
        units = units[: count * UNIT_SIZE]
        self._learn((topic, queue_id), base_queue_offset, units)
        found = self._read(queue, base_queue_offset, count)
        if found == units:
            return 0
        try:
            self._overwrite(queue, base_queue_offset, units)
        except OSError as error:
            raise self._told(error, len(units)) from error
        return sum(
            found[at : at + UNIT_SIZE] != units[at : at + UNIT_SIZE]
            for at in range(0, len(units), UNIT_SIZE)
        )

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

    def _queue_at(self, topic: str, queue_id: int, first: int = 0, next_offset: int = 0) -> _Queue:
        directory = self._topics.get(topic) or self._root / topic  # making a path costs more
        return _Queue(directory / str(queue_id), first, next_offset)

    def _add_queue(self, topic: str, queue_id: int) -> _Queue:
        begun = self._begun.pop((topic, queue_id), None)
        if begun is not None:
            self._queues[(topic, queue_id)] = begun
            return begun
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
            pieces.append(self._piece(path, size, at))
            left -= size
            first += size // UNIT_SIZE
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _piece(self, path: Path, size: int, at: int) -> bytes:
        """`size` bytes of a file, zeros for those that are lost."""
        try:
            found = self._files.pread(self._handle(path), size, at)
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            return bytes(size)
        return found if len(found) == size else found.ljust(size, b"\0")

    def _write(self, queue: _Queue, units: bytes) -> None:
        done = 0
        while done < len(units):
            path, at = self._place(queue, queue.next)
            piece = memoryview(units)[done : done + self._file_size - at]
            if at == 0:
                self._begin_file(queue, path, piece)
            else:
                write_all(self._files, self._there(queue, path), [piece], at)
            self._written[path] = None
            done += len(piece)
            queue.next += len(piece) // UNIT_SIZE

    def _overwrite(self, queue: _Queue, first: int, units: bytes) -> None:
        done = 0
        while done < len(units):
            path, at = self._place(queue, first + done // UNIT_SIZE)
            piece = memoryview(units)[done : done + self._file_size - at]
            write_all(self._files, self._there(queue, path), [piece], at)
            self._written[path] = None
            done += len(piece)

    def _handle(self, path: Path) -> Handle:
        handle = self._handles.get(path)
        if handle is None:
            return self._keep(path, self._files.open(path))
        self._handles.move_to_end(path)
        return handle

    def _there(self, queue: _Queue, path: Path) -> Handle:
        """A file that should be there, made if it was lost."""
        try:
            return self._handle(path)
        except FileNotFoundError:
            pass
        self._make_folders(queue)
        handle = self._keep(path, self._files.create(path))
        self._files.truncate(handle, self._file_size)
        return handle

    def _make_folders(self, queue: _Queue) -> None:
        for directory in (queue.directory.parent, queue.directory):
            self._files.mkdir(directory)
            self._renamed[directory] = self._renamed[directory.parent] = None
        self._topics.setdefault(queue.directory.parent.name, queue.directory.parent)

    def _lay_out(self, queue: _Queue, topic: str) -> None:
        for path in [path for path in self._handles if path.parent == queue.directory]:
            self._files.close(self._handles.pop(path))  # its name may lead elsewhere by now
        queue.is_begun = False
        self._topics.setdefault(topic, queue.directory.parent)
        begins_at = queue.first * UNIT_SIZE // self._file_size * self._file_size
        needed = [
            queue.directory / file_name(base)
            for base in range(begins_at, queue.next * UNIT_SIZE, self._file_size)
        ]
        for path in needed:
            handle = self._there(queue, path)
            if self._files.size(handle) != self._file_size:
                self._files.truncate(handle, self._file_size)
                self._written[path] = None
        if needed:
            self._cut(queue, queue.next)

    def _begin_file(self, queue: _Queue, path: Path, piece: memoryview) -> None:
        """The file is there and begins with `piece`, or it isn't there."""
        is_begun, queue.is_begun = queue.is_begun, False
        handle = self._there(queue, path) if is_begun else self._make_file(queue, path)
        try:
            if not is_begun:
                self._files.truncate(handle, self._file_size)
            write_all(self._files, handle, [piece], 0)
        except OSError:
            self._remove_file(path)
            raise

    def _make_file(self, queue: _Queue, path: Path) -> Handle:
        if self._files.exists(path):  # a stray one: the queue has never reached it
            self._remove_file(path)
        elif not self._files.exists(queue.directory):  # its first units were another disk's
            self._make_folders(queue)
        handle = self._keep(path, self._files.create(path))
        self._renamed[queue.directory] = None
        return handle

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

    # --- cutting ---------------------------------------------------------------------------

    def _examine(self, queue: _Queue) -> tuple[bool, bool]:
        """Whether the queue's files are each of its size, and whether anything lies behind its last
        unit. As a rule nothing does, and a start leaves the file as it is: it would be synced once
        more for nothing, and so would ten thousand others, right when the node starts to work."""
        begins_at = queue.first - queue.first * UNIT_SIZE % self._file_size // UNIT_SIZE
        for first in range(begins_at, queue.next, self._file_size // UNIT_SIZE):
            path, _ = self._place(queue, first)
            if self._files.size(self._handle(path)) != self._file_size:
                return False, False
        path, at = self._place(queue, queue.next - 1)
        handle = self._handle(path)
        ranges = self._files.data_ranges(handle, at + UNIT_SIZE, self._file_size)
        pread = self._files.pread
        rest = any(pread(handle, end - start, start).strip(b"\0") for start, end in ranges)
        following = queue.directory / file_name(queue.file_base + self._file_size)
        return True, rest or self._files.exists(following)

    def _clear(self, queue: _Queue) -> None:
        """A queue without units has no file but the one that its next unit will lie in, all zeros.
        That one is kept if an earlier life made it: as a rule the unit that it was made for comes
        again, and of ten thousand files making each anew takes most of a start."""
        try:
            names = self._files.listdir(queue.directory)
        except FileNotFoundError:
            return
        kept, at = self._place(queue, queue.next)
        for name in filter(FILE_NAME.fullmatch, names):
            path = queue.directory / name
            if path != kept or not self._empty(path):
                self._remove_file(path)
            elif at == 0:
                queue.is_begun = True
            # Either way: an earlier life may have left the name in the page cache only, or a power
            # cut bring back one that has gone. Whoever writes to the file later doesn't ask.
            self._renamed[queue.directory] = None

    def _empty(self, path: Path) -> bool:
        """All of a file reads as zeros; False if there is none that can be written to.

        It is written to whatever it reads as: a sync of an earlier life may have failed, after
        which the page cache calls clean what the platter doesn't have (ADR 8). Its first page is
        overwritten and not cut off: ext4 writes out a file that was cut to nothing as soon as it
        is closed, which takes as long as making one.
        """
        zeros = memoryview(_ZEROS)[: self._file_size]
        try:
            handle = self._handle(path)
            self._files.truncate(handle, len(zeros))
            write_all(self._files, handle, [zeros], 0)
            self._files.truncate(handle, self._file_size)
        except NotARegularFile:
            return False
        except OSError as error:
            if error.errno not in LOST_ERRNOS | PASSING_ERRNOS:
                raise
            return False
        return True

    def _cut(self, queue: _Queue, next_offset: int) -> None:
        """The queue ends at `next_offset`; everything behind reads as zeros."""
        queue.next = next_offset
        self._forget((queue.directory.parent.name, int(queue.directory.name)), next_offset)
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
