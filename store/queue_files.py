"""The files of ConsumeQueues: which one a unit lies in, and how it gets there.

This owns the open files, and what has been written and named since the last flush. It knows one
rule, where a unit lies, and nothing of topics that there should be or of what units mean: that is
`store.consumequeue`. It must never sync: what counts as durable is what a flush has covered.

A disk without space is told as the OSError that it is; a file that was begun and couldn't be is
gone again, so that the same call may be made once more.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

from dledger.records.layout import FILE_NAME, file_name
from store.dispatch import UNIT_SIZE
from store.errors import NotARegularFile
from store.files import LOST_ERRNOS, PASSING_ERRNOS, FileSystem, Handle, write_all
from store.queue_flush import FlushWork

PAGE_BYTES: Final = 4096
FILES_A_TURN: Final = 16  # are removed; each may take the disk a millisecond

_ZEROS: Final = bytes(PAGE_BYTES)


class Queue:
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


class QueueFiles:
    """The files of all queues below `root`.

    Args:
        units_per_file: how many units a file holds.
        open_files: how many files are kept open, least recently used out first.
    """

    def __init__(self, files: FileSystem, root: Path, units_per_file: int, open_files: int) -> None:
        self.root = root
        self.topics: dict[str, Path] = {}  # Topics whose directories are there.
        self.renamed: dict[Path, None] = {}  # Directories whose names have changed.
        self.file_size = units_per_file * UNIT_SIZE
        self._files = files
        self._open_files = open_files
        self._handles: OrderedDict[Path, Handle] = OrderedDict()
        self._written: dict[Path, None] = {}

    def make_queue(self, topic: str, queue_id: int) -> Queue:
        """An empty queue whose directories are there."""
        topic_directory = self.topics.get(topic)
        if topic_directory is None:
            topic_directory = self.root / topic
            self._files.mkdir(topic_directory)
            self.topics[topic] = topic_directory
        directory = topic_directory / str(queue_id)
        self._files.mkdir(directory)
        self.renamed[self.root] = self.renamed[topic_directory] = None
        return Queue(directory, 0, 0)

    def put_aside(self, directory: Path, aside: Path) -> None:
        """A topic's directory has that name now.

        Raises:
            OSError: the disk can't take a rename now; nothing changed.
        """
        self._files.rename(directory, aside)
        self.renamed[self.root] = None

    def forget_topic(self, topic: str) -> None:
        """Nothing of the topic is open, or known to be there."""
        self.topics.pop(topic, None)
        directory = self.root / topic
        below = f"{directory}/"  # making a path's parents costs ten times as much
        for path in [path for path in self._handles if str(path).startswith(below)]:
            self._files.close(self._handles.pop(path))

    def place(self, queue: Queue, offset: int) -> tuple[Path, int]:
        """The file that holds the unit of `offset`, and the unit's byte in it."""
        at = offset * UNIT_SIZE % self.file_size
        base = offset * UNIT_SIZE - at
        if base != queue.file_base:
            queue.file_base, queue.file_path = base, queue.directory / file_name(base)
        return queue.file_path, at

    def read(self, queue: Queue, first: int, count: int) -> bytes:
        """So many units from the offset `first` on; zeros for what is lost or was never written."""
        pieces: list[bytes] = []
        left = count * UNIT_SIZE
        while left > 0:
            path, at = self.place(queue, first)
            size = min(left, self.file_size - at)
            pieces.append(self._piece(path, size, at))
            left -= size
            first += size // UNIT_SIZE
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _piece(self, path: Path, size: int, at: int) -> bytes:
        """`size` bytes of a file, zeros for those that are lost."""
        try:
            found = self._files.pread(self.handle(path), size, at)
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            return bytes(size)
        return found if len(found) == size else found.ljust(size, b"\0")

    def write(self, queue: Queue, units: bytes) -> None:
        """The queue goes on with these."""
        done = 0
        while done < len(units):
            path, at = self.place(queue, queue.next)
            piece = memoryview(units)[done : done + self.file_size - at]
            if at == 0:
                self._begin_file(queue, path, piece)
            else:
                write_all(self._files, self._there(queue, path), [piece], at)
            self._written[path] = None
            done += len(piece)
            queue.next += len(piece) // UNIT_SIZE

    def overwrite(self, queue: Queue, first: int, units: bytes) -> None:
        """The queue's units from the offset `first` on are these; it reaches further already."""
        done = 0
        while done < len(units):
            path, at = self.place(queue, first + done // UNIT_SIZE)
            piece = memoryview(units)[done : done + self.file_size - at]
            write_all(self._files, self._there(queue, path), [piece], at)
            self._written[path] = None
            done += len(piece)

    def handle(self, path: Path) -> Handle:
        """The file at `path`, which is there, open."""
        handle = self._handles.get(path)
        if handle is None:
            return self._keep(path, self._files.open(path))
        self._handles.move_to_end(path)
        return handle

    def _there(self, queue: Queue, path: Path) -> Handle:
        """A file that should be there, made if it was lost."""
        try:
            return self.handle(path)
        except FileNotFoundError:
            pass
        self._make_folders(queue)
        handle = self._keep(path, self._files.create(path))
        self._files.truncate(handle, self.file_size)
        return handle

    def _make_folders(self, queue: Queue) -> None:
        for directory in (queue.directory.parent, queue.directory):
            self._files.mkdir(directory)
            self.renamed[directory] = self.renamed[directory.parent] = None
        self.topics.setdefault(queue.directory.parent.name, queue.directory.parent)

    def _begin_file(self, queue: Queue, path: Path, piece: memoryview) -> None:
        """The file is there and begins with `piece`, or it isn't there."""
        is_begun, queue.is_begun = queue.is_begun, False
        handle = self._there(queue, path) if is_begun else self._make_file(queue, path)
        try:
            if not is_begun:
                self._files.truncate(handle, self.file_size)
            write_all(self._files, handle, [piece], 0)
        except OSError:
            self._remove_file(path)
            raise

    def _make_file(self, queue: Queue, path: Path) -> Handle:
        if self._files.exists(path):  # a stray one: the queue has never reached it
            self._remove_file(path)
        elif not self._files.exists(queue.directory):  # its first units were another disk's
            self._make_folders(queue)
        handle = self._keep(path, self._files.create(path))
        self.renamed[queue.directory] = None
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

    def remove_before(self, queue: Queue) -> bool:
        """`FILES_A_TURN` files that lie wholly before the queue's first unit are gone, the oldest
        first; whether there are more."""
        needed = queue.first * UNIT_SIZE // self.file_size
        if not needed or not self._files.exists(queue.directory):
            return False  # as a rule its first file is needed: of ten thousand, none is looked at
        needed *= self.file_size
        names = filter(FILE_NAME.fullmatch, self._files.listdir(queue.directory))
        unneeded = sorted(name for name in names if int(name) < needed)
        for name in unneeded[:FILES_A_TURN]:
            self._remove_file(queue.directory / name)
        return len(unneeded) > FILES_A_TURN

    # --- as they have to be ----------------------------------------------------------------

    def lay_out(self, queue: Queue, topic: str) -> bool:
        """The queue's files up to its end are there, each of its size; whether it needs any."""
        for path in [path for path in self._handles if path.parent == queue.directory]:
            self._files.close(self._handles.pop(path))  # its name may lead elsewhere by now
        queue.is_begun = False
        self.topics.setdefault(topic, queue.directory.parent)
        begins_at = queue.first * UNIT_SIZE // self.file_size * self.file_size
        needed = [
            queue.directory / file_name(base)
            for base in range(begins_at, queue.next * UNIT_SIZE, self.file_size)
        ]
        for path in needed:
            handle = self._there(queue, path)
            if self._files.size(handle) != self.file_size:
                self._files.truncate(handle, self.file_size)
                self._written[path] = None
        return bool(needed)

    def examine(self, queue: Queue) -> tuple[bool, bool]:
        """Whether the queue's files are each of its size, and whether anything lies behind its last
        unit. As a rule nothing does, and a start leaves the file as it is: it would be synced once
        more for nothing, and so would ten thousand others, right when the node starts to work."""
        begins_at = queue.first - queue.first * UNIT_SIZE % self.file_size // UNIT_SIZE
        for first in range(begins_at, queue.next, self.file_size // UNIT_SIZE):
            path, _ = self.place(queue, first)
            if self._files.size(self.handle(path)) != self.file_size:
                return False, False
        path, at = self.place(queue, queue.next - 1)
        handle = self.handle(path)
        ranges = self._files.data_ranges(handle, at + UNIT_SIZE, self.file_size)
        pread = self._files.pread
        rest = any(pread(handle, end - start, start).strip(b"\0") for start, end in ranges)
        following = queue.directory / file_name(queue.file_base + self.file_size)
        return True, rest or self._files.exists(following)

    def clear(self, queue: Queue) -> None:
        """A queue without units has no file but the one that its next unit will lie in, all zeros.
        That one is kept if an earlier life made it: as a rule the unit that it was made for comes
        again, and of ten thousand files making each anew takes most of a start."""
        try:
            names = self._files.listdir(queue.directory)
        except FileNotFoundError:
            return
        kept, at = self.place(queue, queue.next)
        for name in filter(FILE_NAME.fullmatch, names):
            path = queue.directory / name
            if path != kept or not self._empty(path):
                self._remove_file(path)
            elif at == 0:
                queue.is_begun = True
            # Either way: an earlier life may have left the name in the page cache only, or a power
            # cut bring back one that has gone. Whoever writes to the file later doesn't ask.
            self.renamed[queue.directory] = None

    def _empty(self, path: Path) -> bool:
        """All of a file reads as zeros; False if there is none that can be written to.

        It is written to whatever it reads as: a sync of an earlier life may have failed, after
        which the page cache calls clean what the platter doesn't have (ADR 8). Its first page is
        overwritten and not cut off: ext4 writes out a file that was cut to nothing as soon as it
        is closed, which takes as long as making one.
        """
        zeros = memoryview(_ZEROS)[: self.file_size]
        try:
            handle = self.handle(path)
            self._files.truncate(handle, len(zeros))
            write_all(self._files, handle, [zeros], 0)
            self._files.truncate(handle, self.file_size)
        except NotARegularFile:
            return False
        except OSError as error:
            if error.errno not in LOST_ERRNOS | PASSING_ERRNOS:
                raise
            return False
        return True

    def cut(self, queue: Queue, next_offset: int) -> None:
        """The queue ends at `next_offset`; everything behind reads as zeros."""
        queue.next = next_offset
        path, at = self.place(queue, next_offset)
        for name in self._files.listdir(queue.directory):
            if FILE_NAME.fullmatch(name) and name >= path.name and (name > path.name or at == 0):
                self._remove_file(queue.directory / name)
                self.renamed[queue.directory] = None
        if at:
            handle = self.handle(path)
            self._files.truncate(handle, at)
            self._files.truncate(handle, self.file_size)
            self._written[path] = None

    def take(self, deleted: list[Path]) -> FlushWork:
        """What must be synced for everything written so far to be durable, with what is to go."""
        if self._written:
            # Should a topic be put aside before the work gets to its files, their old names must
            # not come back after a power cut: the units would be missing that count as durable.
            self.renamed[self.root] = None
        work = FlushWork(self._files, list(self._written), list(self.renamed), deleted)
        self._written.clear()
        self.renamed.clear()
        return work

    def close(self) -> None:
        """The files are closed; nothing is synced."""
        while self._handles:
            self._files.close(self._handles.popitem()[1])
