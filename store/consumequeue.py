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

What is here is which queues there are, from where to where, what may be added to them, and what is
known of their units; where a unit lies, and the files, are `store.queue_files`.

A file holds `UNITS_PER_FILE` units (`dledger.records.layout`) and is named by the queue's byte
position of its first one. Files are sparse and of full size from the start; a unit of zeros is
one that was never written. One owner thread; only `FlushWork.perform` may run elsewhere, so that
deleting a thousand queues costs the owner one rename. A disk without space is told as StorageFull
and changes nothing: the same call may be made again.

Source: RocketMQ `ConsumeQueue` (layout, sizes), `ConsumeQueueStore`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from dledger.records.layout import FILE_NAME, UNITS_PER_FILE
from store.dispatch import UNIT, UNIT_SIZE
from store.errors import DivergenceFound, OutOfRange, StorageFull
from store.files import (
    CHUNK_BYTES,
    FULL_ERRNOS,
    LOST_ERRNOS,
    PASSING_ERRNOS,
    FileSystem,
    OsFiles,
    make_directory,
)
from store.queue_files import Queue, QueueFiles
from store.queue_flush import FlushWork, remove_topic
from store.unit_marks import UnitMarks

OPEN_FILES: Final = 512

_DELETED: Final = ".deleted-"  # No topic's name holds a dot.
_QUEUE_NAME: Final = re.compile(r"[0-9]{1,10}")


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
        self._disk = QueueFiles(self._files, self._root, units_per_file, open_files)
        self._queues: dict[tuple[str, int], Queue] = {}
        self._begun: dict[tuple[str, int], Queue] = {}  # Not known yet, but there is a file.
        self._deleted: list[Path] = []
        self._delete_count = 0
        self._marks: dict[tuple[str, int], UnitMarks] = {}
        self._ends: dict[str, int] = {}  # Of each topic, behind its last queue known in the above.
        make_directory(self._files, self._root)

    # --- what is there ---------------------------------------------------------------------

    def folders(self) -> list[str]:
        """The names of the topics' folders, sorted."""
        return sorted(self._disk.topics)

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
            StorageFull: a file can't be opened now, which says nothing about it.
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
        if topic not in self._disk.topics:
            return False
        queue = self._queues.get((topic, queue_id)) or self._queue_at(topic, queue_id)
        if self._disk.read(queue, base_queue_offset, len(units) // UNIT_SIZE) != units:
            return False
        self._learn((topic, queue_id), base_queue_offset, units)
        return True

    def vouched(self, topic: str, queue_id: int, first: int, count: int) -> tuple[bytes, int]:
        """`units`, and how many of them, from the first on, are known to be what was derived. The
        others needn't be wrong: nothing is known of them.

        Raises:
            OutOfRange, StorageFull: as `units`.
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
            units = self._disk.read(queue, at, min(piece, count - at))
            if units[-UNIT_SIZE:] == bytes(UNIT_SIZE):
                return False  # what was never written, or is lost, reads as zeros
            marks.extend(units)
        self._count(topic, queue_id)
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
            found = self._disk.read(queue, base_queue_offset, held)
            expected = units[: held * UNIT_SIZE]
            if found != expected:
                raise DivergenceFound(
                    f"{name} from offset {base_queue_offset}", expected.hex(), found.hex()
                )
        if len(units) > held * UNIT_SIZE:
            self._disk.write(queue, units[held * UNIT_SIZE :] if held else units)
        self._learn((topic, queue_id), base_queue_offset, units)

    def _learn(self, key: tuple[str, int], base: int, units: bytes) -> None:
        """The units from `base` on are these, as the log says."""
        marks = self._marks.get(key)
        if marks is None or base < marks.first:
            self._count(*key)
            marks = self._marks[key] = UnitMarks(base)
        if base <= marks.end:
            marks.extend(units[(marks.end - base) * UNIT_SIZE :] if base < marks.end else units)

    def _forget(self, key: tuple[str, int], end: int) -> None:
        """What is known of units from the offset `end` on isn't so any more."""
        if (marks := self._marks.get(key)) is not None and marks.end > end:
            del self._marks[key]

    def _forget_before(self, key: tuple[str, int], first: int) -> None:
        """The queue begins at `first` now. Marks that end before it would learn nothing more."""
        marks = self._marks.get(key)
        if marks is not None and marks.end < first:
            del self._marks[key]
        elif marks is not None:
            marks.forget_before(first)

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
                self._disk.put_aside(directory, aside)
            except OSError as error:
                raise self._told(error, 0) from error
            self._deleted.append(aside)
        for queue_id in range(self._ends.pop(topic, 0)):  # of the others there may be 100,000
            for known in (self._queues, self._begun, self._marks):
                known.pop((topic, queue_id), None)
        self._disk.forget_topic(topic)

    def look(self) -> None:
        """Which topics have files is known, by one look at their folders' names; no queue is. What
        deleted topics left is removed. For a start, before anything else is done."""
        self._queues.clear()
        self._begun.clear()
        self._marks.clear()
        self._ends.clear()
        self._disk.topics.clear()
        for topic in self._files.listdir(self._root):
            if topic.startswith(_DELETED):
                remove_topic(self._files, self._root / topic)
                continue
            directory = self._disk.topics[topic] = self._root / topic
            # Made by a process that died before its flush, these names may be known to the page
            # cache only; what is dispatched to their queues must not count as durable then.
            self._disk.renamed[self._root] = self._disk.renamed[directory] = None

    def inspect(self) -> None:
        """Whatever has the name of a queue's file can be opened as one. For a rehearsal, which
        knows no topics: a start opens those of its topics only, and removes the others'.

        Raises:
            StoreError, OSError: something else lies there.
        """
        self.look()
        for directory in self._disk.topics.values():
            for queue_id in filter(_QUEUE_NAME.fullmatch, self._files.listdir(directory)):
                queue = directory / queue_id
                for name in filter(FILE_NAME.fullmatch, self._files.listdir(queue)):
                    self._disk.handle(queue / name)

    def settle(self, topic: str, queue_id: int) -> bool:
        """Nothing lies behind the end of a queue that is expected: what an earlier life derived
        from entries that this one hasn't applied yet is gone, and will be derived again. False if
        a file isn't there or not of its size: then nothing has happened."""
        queue = self._queues.get((topic, queue_id))
        if topic not in self._disk.topics:
            return queue is None or queue.first == queue.next
        if queue is None:
            queue = self._queue_at(topic, queue_id)
        if queue.first == queue.next:
            self._disk.clear(queue)
            if queue.is_begun and queue.next == 0:
                self._count(topic, queue_id)
                self._begun[(topic, queue_id)] = queue
            return True
        try:
            is_whole, has_rest = self._disk.examine(queue)
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
            self._count(topic, queue_id)
            self._queues[(topic, queue_id)] = self._queue_at(topic, queue_id, first, next_offset)
            self._forget((topic, queue_id), next_offset)

    def begin_at(self, topic: str, queue_id: int, first: int) -> bool:
        """The queue's units begin with that of the offset `first`, its next one at most; whether
        files may not be needed any more: `drop_unneeded`."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return False
        before = queue.first * UNIT_SIZE // self._disk.file_size
        queue.first = max(queue.first, min(first, queue.next))
        self._forget_before((topic, queue_id), queue.first)
        return queue.first * UNIT_SIZE // self._disk.file_size > before

    def drop_unneeded(self, topic: str, queue_id: int) -> bool:
        """Some files that lie wholly before the queue's first unit are gone; whether there are
        more. Not durable: what comes back lies there once more."""
        queue = self._queues.get((topic, queue_id))
        return queue is not None and self._disk.remove_before(queue)

    def lay_out(self, topic: str, queue_id: int) -> None:
        """The queue's files are those that it needs, each of its size, zeros behind the last unit.

        Raises:
            StorageFull: not all of it is done; call it again later.
        """
        queue = self._queues[(topic, queue_id)]
        try:
            if self._disk.lay_out(queue, topic):
                self._cut(queue, queue.next)
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
        try:
            found = self._disk.read(queue, base_queue_offset, count)
            if found == units:
                return 0
            self._disk.overwrite(queue, base_queue_offset, units)
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
                if UNIT.unpack(self._disk.read(queue, middle, 1))[0] < physical_offset:
                    low = middle + 1
                else:
                    high = middle
            self._cut(queue, low)

    def take(self) -> FlushWork:
        """What must be synced for everything dispatched so far to be durable."""
        work = self._disk.take(self._deleted)
        self._deleted = []
        return work

    def flush(self) -> None:
        """Everything dispatched so far is durable. Raises OSError as `FlushWork.perform`."""
        self.take().perform()

    def close(self) -> None:
        """The files are closed; nothing is synced."""
        self._disk.close()

    # --- files -----------------------------------------------------------------------------

    def _read(self, queue: Queue, first: int, count: int) -> bytes:
        """`QueueFiles.read`, for whoever may come back later. Raises StorageFull then."""
        try:
            return self._disk.read(queue, first, count)
        except OSError as error:
            raise self._told(error, 0) from error

    def _queue_at(self, topic: str, queue_id: int, first: int = 0, next_offset: int = 0) -> Queue:
        directory = self._disk.topics.get(topic) or self._root / topic  # making a path costs more
        return Queue(directory / str(queue_id), first, next_offset)

    def _add_queue(self, topic: str, queue_id: int) -> Queue:
        begun = self._begun.pop((topic, queue_id), None)
        if begun is not None:
            self._queues[(topic, queue_id)] = begun
            return begun
        queue = self._queues[(topic, queue_id)] = self._disk.make_queue(topic, queue_id)
        self._count(topic, queue_id)
        return queue

    def _count(self, topic: str, queue_id: int) -> None:
        """Something is known of the queue from now on; a topic's go from 0 without a gap."""
        if queue_id >= self._ends.get(topic, 0):
            self._ends[topic] = queue_id + 1

    def _cut(self, queue: Queue, next_offset: int) -> None:
        """The queue ends at `next_offset`, and nothing is known of what was behind."""
        self._forget((queue.directory.parent.name, int(queue.directory.name)), next_offset)
        self._disk.cut(queue, next_offset)

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
        free = self._files.free_bytes(self._root)
        scarce = "" if error.errno in FULL_ERRNOS else str(error.strerror)
        return StorageFull(str(self._root), needed_bytes, free, scarce)
