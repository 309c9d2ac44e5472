"""Reading one segment of one replica from end to end: CRCs, running digests, ConsumeQueue units.

The work of the check of derived files, done beside the files. Each entry's digest must continue the
one before it (ADR 6), and each record must be where its queue's ConsumeQueue says (ADR 7). What can
only be judged with other segments at hand is returned for `audit.proof.derived` to judge: where
queues end, which topics were deleted later, how the first digest continues the segment before.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from google.protobuf.message import DecodeError

from audit.proof.findings import Cause
from audit.proof.invariants import Broken, SegmentEnds, SegmentRules
from audit.proof.queue_files import QueueFiles, QueueKey, is_deleted
from audit.proof.scan import ItemKind, ScanTask, Window, next_item
from audit.proof.unit_runs import UnitRun, UnitRuns
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
from dledger.reading.files import opened, read_at
from dledger.records.errors import InvalidFrame, InvalidRecord
from dledger.records.layout import file_name, topic_folder
from dledger.wire.commands_pb2 import Command
from store.dispatch import UNIT_SIZE, units_for_entry
from store.errors import DivergenceFound

MAX_FAULTS: Final = 100  # Of each cause a task names so many and counts the rest.
MAX_GAPS: Final = 1000  # So many are told apart; the last one takes what follows.

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
    """A fault within a segment: an entry's, or a queue's if `queue` is given. Of a fault that was
    met `count` times in a row (entries) or in a queue (units) this is the first; `last_end` is
    where the last one ends, a physical offset."""

    cause: Cause
    start: int
    size: int
    index: int
    term: int
    detail: str
    queue: QueueKey | None = None
    count: int = 1
    last_end: int = 0


@dataclass(frozen=True, slots=True)
class Chain:
    """What one segment holds. `first_digest` is that of its first entry, `last_digest` that of
    its last; None if that entry is damaged, or isn't the segment's last by what is there.
    `queue_ends`: next queue offset of each queue. `deleted`: topics whose deletion is in this
    segment, as their folders are called, and the index of the entry that says so. `more`: how many
    faults of a cause weren't kept. `gaps`: physical ranges of which nothing intact is known.
    `ends`: what the segments beside it must fit. `units`: what its entries have in the
    queues, those of topics deleted within it aside; None where runs don't tell that."""

    replica: str
    base: int
    faults: tuple[Fault, ...]
    more: tuple[tuple[Cause, int], ...]
    first_digest: int | None
    last_digest: int | None
    queue_ends: tuple[tuple[QueueKey, int], ...]
    deleted: tuple[tuple[str, int], ...]
    gaps: tuple[tuple[int, int], ...]
    ends: SegmentEnds
    units: tuple[UnitRun, ...] | None
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
            reader.read(Window(descriptor), os.fstat(descriptor).st_size)
    except OSError:
        reader.give_up()  # The first pass reports it.
    finally:
        reader.queues.close()
    return reader.chain()


class _ChainReader:
    """Walks a segment's entries and keeps what `Chain` tells of them."""

    def __init__(self, task: ChainTask) -> None:
        self.queues = QueueFiles(task.queues_root)
        self._task = task
        self._pace = Pace(task.bytes_per_s)
        self._rules = SegmentRules(task.base)
        self._faults: list[Fault] = []
        self._of_queues: dict[tuple[Cause, QueueKey], Fault] = {}
        self._more: Counter[Cause] = Counter()
        self._gaps: list[tuple[int, int]] = []
        self._at = 0  # Where in the segment it has come to.
        self._first: int | None = None
        self._previous: int | None = None
        self._ends: dict[QueueKey, int] = {}
        self._units = UnitRuns()
        self._deleted: dict[str, int] = {}
        self._entries = self._records = self._verified = 0

    def chain(self) -> Chain:
        task = self._task
        return Chain(
            task.replica,
            task.base,
            (*self._faults, *self._of_queues.values()),
            tuple(self._more.items()),
            self._first,
            self._previous,
            tuple(sorted(self._ends.items())),
            tuple(self._deleted.items()),
            tuple(self._gaps),
            self._rules.ends(),
            self._units.told(),
            self._entries,
            self._records,
            self._verified,
        )

    def read(self, window: Window, length: int) -> None:
        """Every entry up to the task's end; `length`: the file's, in bytes."""
        for header, frame in self._frames(window, length):
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
                self._note_deletion(header, frame)

    def give_up(self) -> None:
        """What follows can't be read."""
        self._lose()
        self._gap(self._at, min(self._task.end - self._task.base, self._task.segment_size))

    def _frames(self, window: Window, length: int) -> Iterator[tuple[EntryHeader, bytes]]:
        """Intact entries; what isn't one becomes a fault."""
        end = min(self._task.end - self._task.base, self._task.segment_size)
        while self._at < end:
            at = self._at
            head = window.read(at, HEADER_SIZE)
            size = claim_of(head, 0)[0] if len(head) == HEADER_SIZE else 0
            if HEADER_SIZE <= size <= end - at:
                frame = window.read(at, size)
                header = self._verify(frame, at)
                if header is not None:
                    self._spend(size)
                    yield header, frame
                    self._at = at + size
                    continue
            self._at = self._pass_over(window, at, length)

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

    def _pass_over(self, window: Window, at: int, length: int) -> int:
        """Where reading goes on behind what is no intact entry; a fault unless it is a filler, or
        what a file that is too short ends with: that lacks bytes, which the first pass tells."""
        task = self._task
        scan = ScanTask(
            task.replica, task.commitlog, task.base, task.segment_size, ((task.base, task.end),)
        )
        item = next_item(window, scan, at, 0)
        end = min(task.end - task.base, task.segment_size)
        if item is None or (length < end and at + item.size >= length):
            self._lose()
            self._gap(at, end)
            return task.segment_size
        self._spend(item.size)
        cause = _CAUSES.get(item.kind)
        if cause is not None:
            self._lose()
            self._keep(Fault(cause, item.start, item.size, item.index, item.term, item.detail))
            if item.kind is not ItemKind.STRAY:
                self._gap(at, min(at + item.size, end))
        elif item.kind is ItemKind.ENTRY:  # It reaches beyond what is claimed.
            self._lose()
            self._gap(at, end)
        return at + max(item.size, FILLER_HEADER_SIZE)

    def _lose(self) -> None:
        """What the next entry follows isn't known."""
        self._previous = None
        self._rules.damaged()

    def _check_units(self, header: EntryHeader, frame: bytes) -> None:
        try:
            topic, queue_id, base, expected = units_for_entry(header, frame)
            incarnation = preamble_of(header, frame).incarnation
        except (InvalidRecord, InvalidFrame, DivergenceFound) as error:
            self._keep(_fault(Cause.RECORDS_LIE, header, str(error)))
            return
        queue = (self.queues.folder(topic, incarnation, header.index), queue_id)
        self._ends[queue] = base + header.record_count
        self._units.expect(queue, base, expected)
        if not incarnation:
            self._units.give_up()  # Its folder is a guess from those that are there now.
        if header.index > self._task.derived_index:
            return
        found = self.queues.units(queue, base, header.record_count)
        if found == expected:
            return
        for number in range(header.record_count):
            unit = slice(number * UNIT_SIZE, (number + 1) * UNIT_SIZE)
            if found[unit] != expected[unit]:
                self._count(_unit_fault(header, queue, base + number, expected[unit], found[unit]))

    def _note_deletion(self, header: EntryHeader, frame: bytes) -> None:
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
        self._deleted[gone] = header.index
        self._units.forget(gone)
        self._ends = {
            queue: end for queue, end in self._ends.items() if not is_deleted(queue[0], [gone])
        }
        self._of_queues = {
            key: f for key, f in self._of_queues.items() if not is_deleted(key[1][0], [gone])
        }

    def _spend(self, size: int) -> None:
        self._verified += size
        self._pace.spend(size)

    def _count(self, fault: Fault) -> None:
        """A unit's fault, under its queue's: there are as many of these as there are queues, so
        none of them displaces another."""
        assert fault.queue is not None
        key = fault.cause, fault.queue
        first = self._of_queues.get(key)
        self._of_queues[key] = fault if first is None else _with(first, fault)

    def _keep(self, fault: Fault) -> None:
        """An entry's fault. What fails alike with nothing intact between is one."""
        last = self._faults[-1] if self._faults else None
        end = 0 if last is None else last.last_end or last.start + last.size
        if last is not None and (last.cause, end) == (fault.cause, fault.start):
            self._faults[-1] = _with(last, fault)
        elif sum(each.cause is fault.cause for each in self._faults) < MAX_FAULTS:
            self._faults.append(fault)
        else:
            self._more[fault.cause] += 1

    def _gap(self, start: int, end: int) -> None:
        """Nothing intact is known of these bytes of the segment."""
        start, end = self._task.base + start, self._task.base + end
        if start >= end:
            return
        if self._gaps and (self._gaps[-1][1] == start or len(self._gaps) == MAX_GAPS):
            self._gaps[-1] = self._gaps[-1][0], end
        else:
            self._gaps.append((start, end))


def _with(first: Fault, again: Fault) -> Fault:
    return replace(first, count=first.count + 1, last_end=again.start + again.size)


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
