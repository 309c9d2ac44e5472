"""Reading one segment of one replica from end to end: CRCs, running digests, ConsumeQueue units.

The work of the check of derived files, done beside the files. Each entry's digest must continue the
one before it (ADR 6), and each record must be where its queue's ConsumeQueue says (ADR 7). What can
only be judged with other segments at hand is returned for `audit.proof.derived` to judge: where
queues end, which topics were deleted later, how the first digest continues the segment before.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from audit.proof.findings import Cause
from audit.proof.invariants import Broken, SegmentEnds, SegmentRules
from audit.proof.scan import ItemKind, ScanTask, Window, next_item
from audit.reading.pace import Pace
from dledger.reading.entry import (
    FILLER_HEADER_SIZE,
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    claim_of,
    digest_of,
    parse_header,
    preamble_of,
    verify_frame,
)
from dledger.reading.files import open_to_read, opened, read_at
from dledger.records.errors import InvalidFrame, InvalidRecord
from dledger.records.layout import UNITS_PER_FILE, file_name, topic_folder
from dledger.records.record import TOPIC_PATTERN
from dledger.wire.commands_pb2 import Command
from store.dispatch import UNIT_SIZE, units_for_entry
from store.errors import DivergenceFound

MAX_FAULTS: Final = 100  # A task names so many and counts the rest.
_OPEN_FILES: Final = 128
_FILE_BYTES: Final = UNITS_PER_FILE * UNIT_SIZE

QueueKey = tuple[str, int]

_CAUSES: Final = {
    ItemKind.BROKEN: Cause.BAD_CRC,
    ItemKind.STRAY: Cause.STRAY_FILLER,
    ItemKind.MISPLACED: Cause.WRONG_PLACE,
    ItemKind.ZEROS: Cause.OLD_COPY,
}


@dataclass(frozen=True, slots=True)
class ChainTask:
    """Read one segment up to physical offset `end`, and its records' units.

    Args:
        derived_index: the ConsumeQueues hold the units of entries up to it.
        said: index and digest that the node said of its committed log; (0, 0) if none did.
    """

    replica: str
    commitlog: str
    base: int
    segment_size: int
    end: int
    derived_index: int
    said: tuple[int, int]
    bytes_per_s: float
    host: str | None = None

    @property
    def weight(self) -> int:
        return min(self.end - self.base, self.segment_size)

    @property
    def queues_root(self) -> str:
        return os.path.join(os.path.dirname(self.commitlog), "consumequeue")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault within a segment: an entry's, or a queue's if `queue` is given."""

    cause: Cause
    start: int
    size: int
    index: int
    term: int
    detail: str
    queue: QueueKey | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """What one segment holds. `first_digest` is that of its first entry, `last_digest` that of
    its last; both None if its first or last entry is damaged. `queue_ends`: next queue offset of
    each queue. `deleted`: topics whose deletion is in this segment, as their folders are called.
    `more_faults` weren't kept. `ends`: what the segments beside it must fit."""

    replica: str
    base: int
    faults: tuple[Fault, ...]
    more_faults: int
    first_digest: int | None
    last_digest: int | None
    queue_ends: tuple[tuple[QueueKey, int], ...]
    deleted: tuple[str, ...]
    ends: SegmentEnds
    entries: int
    records: int
    verified_bytes: int


@dataclass(frozen=True, slots=True)
class SeamTask:
    """Check that the first entry of a segment continues `digest`, that of the entry before."""

    replica: str
    commitlog: str
    base: int
    digest: int
    host: str | None = None

    @property
    def weight(self) -> int:
        return HEADER_SIZE


def is_deleted(folder: str, deleted: Iterable[str]) -> bool:
    """Whether the topic whose queues are in `folder` is among the deleted ones: those that are
    named with their incarnation, and those of older releases by the name alone."""
    name, _, incarnation = folder.partition("@")
    for each in deleted:
        other, _, other_incarnation = each.partition("@")
        same = not incarnation or not other_incarnation or incarnation == other_incarnation
        if name == other and same:
            return True
    return False


def check_seam(task: SeamTask) -> Fault | None:
    """The fault, if the running digest breaks between two segments."""
    path = os.path.join(task.commitlog, file_name(task.base))
    try:
        with opened(path) as descriptor:
            header = parse_header(read_at(descriptor, HEADER_SIZE, 0), 0)
            frame = read_at(descriptor, header.total_size, 0)
    except (OSError, InvalidFrame):
        return None  # Damaged since it was read: the next audit's matter.
    digest = digest_of(frame, 0, header.total_size, task.digest)
    if digest == header.digest:
        return None
    return _digest_fault(task.base, header, digest)


def read_chain(task: ChainTask) -> Chain:
    """What the segment holds; a file that can't be read holds nothing."""
    reader = _ChainReader(task)
    try:
        with opened(os.path.join(task.commitlog, file_name(task.base))) as descriptor:
            reader.read(Window(descriptor))
    except OSError:
        pass  # The first pass reports it.
    finally:
        reader.queues.close()
    return reader.chain()


class QueueFiles:
    """Reads units of a replica's ConsumeQueues; the last files used stay open."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._open: OrderedDict[str, int] = OrderedDict()
        self._incarnations: dict[str, list[int]] = {}
        for name in os.listdir(root) if os.path.isdir(root) else ():
            topic, _, incarnation = name.partition("@")
            if incarnation.isdecimal():
                self._incarnations.setdefault(topic, []).append(int(incarnation))

    def folder(self, topic: str, incarnation: int, index: int) -> str:
        """Where the units of entry `index` are. An entry of version 1 doesn't say which topic of
        its name it is for: the one that was created last before it, if its folder tells that."""
        if incarnation:
            return topic_folder(topic, incarnation)
        created = [each for each in self._incarnations.get(topic, ()) if each < index]
        return topic_folder(topic, max(created)) if created else topic

    def units(self, queue: QueueKey, first: int, count: int) -> bytes:
        """The units from offset `first` on; fewer where a file is missing or short."""
        pieces: list[bytes] = []
        at, left = first * UNIT_SIZE, count * UNIT_SIZE
        while left > 0:
            base = at - at % _FILE_BYTES
            size = min(left, base + _FILE_BYTES - at)
            piece = self._read(queue, base, size, at - base)
            pieces.append(piece)
            if len(piece) < size:
                break
            at, left = at + size, left - size
        return b"".join(pieces)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _read(self, queue: QueueKey, base: int, size: int, at: int) -> bytes:
        if TOPIC_PATTERN.fullmatch(queue[0].partition("@")[0]) is None:
            return b""
        path = os.path.join(self._root, queue[0], str(queue[1]), file_name(base))
        descriptor = self._open.get(path)
        try:
            if descriptor is None:
                descriptor = open_to_read(path)
                self._open[path] = descriptor
                if len(self._open) > _OPEN_FILES:
                    os.close(self._open.popitem(last=False)[1])
            else:
                self._open.move_to_end(path)
            return read_at(descriptor, size, at)
        except OSError:
            return b""


class _ChainReader:
    """Walks a segment's entries and keeps what `Chain` tells of them."""

    def __init__(self, task: ChainTask) -> None:
        self.queues = QueueFiles(task.queues_root)
        self._task = task
        self._pace = Pace(task.bytes_per_s)
        self._rules = SegmentRules(task.base)
        self._faults: list[Fault] = []
        self._more = 0
        self._first: int | None = None
        self._previous: int | None = None
        self._ends: dict[QueueKey, int] = {}
        self._deleted: dict[str, None] = {}
        self._entries = self._records = self._verified = 0

    def chain(self) -> Chain:
        task = self._task
        return Chain(
            task.replica,
            task.base,
            tuple(self._faults),
            self._more,
            self._first,
            self._previous,
            tuple(sorted(self._ends.items())),
            tuple(self._deleted),
            self._rules.ends(),
            self._entries,
            self._records,
            self._verified,
        )

    def read(self, window: Window) -> None:
        """Every entry up to the task's end."""
        for header, frame in self._frames(window):
            self._entries += 1
            self._records += header.record_count
            if header.index == self._task.said[0] and header.digest != self._task.said[1]:
                detail = f"{header.digest:016x} in the file, {self._task.said[1]:016x} said"
                self._keep(_fault(Cause.POSITION_DIGEST, header, detail))
            for why in self._rules.broken_by(header, frame):
                self._keep(_fault(Cause.NO_LEADERS, header, why))
            if header.kind == EntryKind.DATA:
                self._check_units(header, frame)
            elif header.kind == EntryKind.COMMAND:
                self._note_deletion(frame)

    def _frames(self, window: Window) -> Iterator[tuple[EntryHeader, bytes]]:
        """Intact entries; what isn't one becomes a fault."""
        at, end = 0, min(self._task.end - self._task.base, self._task.segment_size)
        while at < end:
            head = window.read(at, HEADER_SIZE)
            size = claim_of(head, 0)[0] if len(head) == HEADER_SIZE else 0
            if HEADER_SIZE <= size <= end - at:
                frame = window.read(at, size)
                header = self._verify(frame, at)
                if header is not None:
                    self._spend(size)
                    yield header, frame
                    at += size
                    continue
            at = self._pass_over(window, at)

    def _verify(self, frame: bytes, at: int) -> EntryHeader | None:
        """The header of an intact entry that lies where it says; its digest is checked too."""
        try:
            header = verify_frame(frame, 0, None)
        except InvalidFrame:
            return None
        if header.physical_offset != self._task.base + at:
            return None
        if self._previous is not None:
            digest = digest_of(frame, 0, header.total_size, self._previous)
            if digest != header.digest:
                self._keep(_digest_fault(self._task.base + at, header, digest))
        elif at == 0:
            self._first = header.digest
        self._previous = header.digest
        return header

    def _pass_over(self, window: Window, at: int) -> int:
        """Where reading goes on behind what is no intact entry; a fault unless it is a filler."""
        task = self._task
        scan = ScanTask(
            task.replica, task.commitlog, task.base, task.segment_size, ((task.base, task.end),)
        )
        item = next_item(window, scan, at, 0)
        if item is None:
            return task.segment_size
        self._spend(item.size)
        cause = _CAUSES.get(item.kind)
        if cause is not None:
            self._previous = None
            self._rules.damaged()
            self._keep(Fault(cause, item.start, item.size, item.index, item.term, item.detail))
        return at + max(item.size, FILLER_HEADER_SIZE)

    def _check_units(self, header: EntryHeader, frame: bytes) -> None:
        try:
            topic, queue_id, base, expected = units_for_entry(header, frame)
            incarnation = preamble_of(header, frame).incarnation
        except (InvalidRecord, InvalidFrame, DivergenceFound) as error:
            self._keep(_fault(Cause.RECORDS_LIE, header, str(error)))
            return
        queue = (self.queues.folder(topic, incarnation, header.index), queue_id)
        self._ends[queue] = base + header.record_count
        if header.index > self._task.derived_index:
            return
        found = self.queues.units(queue, base, header.record_count)
        if found == expected:
            return
        for number in range(header.record_count):
            unit = slice(number * UNIT_SIZE, (number + 1) * UNIT_SIZE)
            if found[unit] != expected[unit]:
                self._keep(_unit_fault(header, queue, base + number, expected[unit], found[unit]))

    def _note_deletion(self, frame: bytes) -> None:
        """Queues of a deleted topic are rightly gone, and may begin again at offset 0."""
        try:
            command = Command.FromString(frame[HEADER_SIZE:])
        except DecodeError:
            return
        if command.WhichOneof("body") != "delete_topic":
            return
        gone, incarnation = command.delete_topic.name, command.delete_topic.incarnation
        if incarnation:
            gone = topic_folder(gone, incarnation)
        self._deleted[gone] = None
        self._ends = {
            queue: end for queue, end in self._ends.items() if not is_deleted(queue[0], [gone])
        }
        self._faults = [
            f for f in self._faults if f.queue is None or not is_deleted(f.queue[0], [gone])
        ]

    def _spend(self, size: int) -> None:
        self._verified += size
        self._pace.spend(size)

    def _keep(self, fault: Fault) -> None:
        if len(self._faults) < MAX_FAULTS:
            self._faults.append(fault)
        else:
            self._more += 1


def _fault(cause: Cause, header: EntryHeader, detail: str) -> Fault:
    return Fault(
        cause, header.physical_offset, header.total_size, header.index, header.term, detail
    )


def broken_fault(broken: Broken) -> Fault:
    """The fault of an entry that doesn't follow what other segments hold."""
    return _fault(Cause.NO_LEADERS, broken.header, broken.why)


def _digest_fault(start: int, header: EntryHeader, digest: int) -> Fault:
    detail = f"{digest:016x} continues the entry before, {header.digest:016x} is there"
    return Fault(Cause.DIGEST_BROKEN, start, header.total_size, header.index, header.term, detail)


def _unit_fault(
    header: EntryHeader, queue: QueueKey, offset: int, expected: bytes, found: bytes
) -> Fault:
    missing = len(found) < UNIT_SIZE or not any(found)
    cause = Cause.QUEUE_MISSING if missing else Cause.QUEUE_WRONG
    detail = f"{queue[0]}/{queue[1]} at queue offset {offset}: {expected.hex()} expected, "
    detail += "nothing found" if missing else f"{found.hex()} found"
    return Fault(
        cause, header.physical_offset, header.total_size, header.index, header.term, detail, queue
    )
