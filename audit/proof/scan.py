"""Looking into the blocks that differ: which entries they hold, and which of them are intact.

The work of an audit's second pass, done beside the files, or on bytes that a node hands out
(`audit.reading.remote`). Entries are followed by their sizes from the last intact one before a
wanted range, which says itself where it lies; those that touch the range are checked byte by byte.
Where no entry begins, the next intact one is searched for, so that one broken size does not hide
what follows it. Entries are told apart by a fingerprint; their bytes stay where they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Final, Protocol

from xxhash import xxh3_64, xxh3_64_intdigest

from dledger.reading.compound import batches_in
from dledger.reading.entry import (
    FILLER_HEADER,
    FILLER_HEADER_SIZE,
    FILLER_MAGIC,
    HEADER_SIZE,
    OPENING_SIZE,
    EntryHeader,
    EntryKind,
    claim_of,
    digest_of,
    frame_crc,
    parse_header,
    possible_starts,
)
from dledger.reading.files import opened, read_at
from dledger.records.errors import InvalidFrame
from dledger.records.layout import RECORD, file_name
from dledger.records.record import FIXED_SIZE, MAX_TOPIC_BYTES

_WINDOW_BYTES: Final = 4 << 20
_LOOK_BACK_BYTES: Final = 64 << 10  # At first; most entries are smaller.
_QUEUE: Final = RECORD.run("queue_id", "queue_offset")
_QUEUE_AT: Final = RECORD.at("queue_id")
_BODY_LENGTH: Final = RECORD.run("body_length")
_BODY_LENGTH_AT: Final = RECORD.at("body_length")
MAX_ITEMS: Final = 1_000_000


class ItemKind(StrEnum):
    """What lies at a place of the log."""

    ENTRY = "entry"  # its CRC is good and it says that it lies there
    BROKEN = "broken"  # it looks like an entry, or should be one, and its CRC is bad
    MISPLACED = "misplaced"  # its CRC is good and it says that it lies elsewhere
    FILLER = "filler"  # fills the segment, zeros to its end
    STRAY = "stray"  # a filler with other bytes in it
    ZEROS = "zeros"  # nothing was ever written there, up to the segment's end


@dataclass(frozen=True, slots=True)
class Item:
    """One thing in the log, `[start, start + size)`, physical offsets. Index, term and queue
    offset are as its bytes say, which for a broken entry may be nonsense; `detail` says what is
    wrong with it; a misplaced one claims to lie at `claims`. `continues`: whether an intact entry's
    running digest continues that of the entry before; None if that one isn't known. `digest`: as it
    says."""

    start: int
    size: int
    kind: ItemKind
    fingerprint: int
    index: int = 0
    term: int = 0
    topic: str = ""
    queue_id: int = 0
    queue_offset: int | None = None
    claims: int = 0
    detail: str = ""
    continues: bool | None = None
    digest: int = 0


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Look into `ranges` (physical offsets, ascending) of one segment of one replica; by its
    node at `address`, if there is one."""

    replica: str
    commitlog: str
    base: int
    segment_size: int
    ranges: tuple[tuple[int, int], ...]
    host: str | None = None
    address: str | None = None

    @property
    def weight(self) -> int:
        return self.ranges[-1][1] - self.base


@dataclass(frozen=True, slots=True)
class Scanned:
    """The items of a segment that touch the ranges, ascending. Where it isn't `whole` there may be
    more: they were too many, or the file couldn't be read to the ranges' end."""

    replica: str
    base: int
    items: tuple[Item, ...]
    whole: bool = True


def scan_segment(task: ScanTask) -> Scanned:
    """The items of the segment that touch the task's ranges, `MAX_ITEMS` at most."""
    try:
        with _reader_of(task) as reader:
            items = tuple(islice(_walk(reader, task), MAX_ITEMS))
    except OSError:
        return Scanned(task.replica, task.base, (), whole=False)
    return Scanned(task.replica, task.base, items, whole=len(items) < MAX_ITEMS)


class Reader(Protocol):
    """Bytes of one segment; `window_bytes` of them at once cost little more than a few."""

    @property
    def window_bytes(self) -> int: ...

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from byte `at` of the segment, fewer where it ends."""
        ...


class Window:
    """Reads a file in windows of 4 MiB; larger pieces at once."""

    window_bytes = _WINDOW_BYTES

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._chunk = b""
        self._chunk_at = 0

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes from `at`, fewer where the file ends."""
        near = at - self._chunk_at
        if near < 0 or near + size > len(self._chunk):
            self._chunk = read_at(self._descriptor, max(size, _WINDOW_BYTES), at)
            self._chunk_at, near = at, 0
        return self._chunk[near : near + size]


@contextmanager
def _reader_of(task: ScanTask) -> Iterator[Reader]:
    """The segment, in its file or at its node.

    Raises:
        OSError: it is gone, or can't be read.
    """
    if task.address is None:
        with opened(os.path.join(task.commitlog, file_name(task.base))) as descriptor:
            yield Window(descriptor)
    else:
        from audit.reading.remote import RemoteWindow, node_log  # Executors may do without gRPC.

        with node_log(task.address) as log:
            yield RemoteWindow(log, (task.base, task.segment_size))


def _walk(reader: Reader, task: ScanTask) -> Iterator[Item]:
    """The items that touch the ranges; what lies far from them isn't read."""
    at, end = 0, task.ranges[-1][1] - task.base
    of_another_place = False
    digest = 0 if task.base == 0 else None  # Of the entry before, if it is known.
    wanted = [(start - task.base, stop - task.base) for start, stop in task.ranges]
    while at < end:
        wanted = [each for each in wanted if each[1] > at]
        begin = _start_before(reader, task, at, wanted[0][0])
        if begin != at:
            of_another_place, digest = False, None
        at = begin
        item = next_item(reader, task, at, wanted[0][0])
        if item is None:
            return
        if of_another_place and item.kind in (ItemKind.FILLER, ItemKind.ZEROS):
            # What fills up a file that belongs elsewhere belongs elsewhere with it.
            item = replace(item, kind=ItemKind.MISPLACED)
        of_another_place = item.kind is ItemKind.MISPLACED
        item, digest = _linked(reader, item, at, digest)
        if item.start - task.base + item.size > wanted[0][0]:
            yield item
        at = item.start - task.base + item.size


def _linked(reader: Reader, item: Item, at: int, before: int | None) -> tuple[Item, int | None]:
    """The item, with what its running digest says, and its digest. One that was passed over, being
    far from what is wanted, is taken at its word."""
    if item.kind is not ItemKind.ENTRY:
        return item, None
    header = parse_header(reader.read(at, HEADER_SIZE), 0)
    if before is None or not item.fingerprint:
        return item, header.digest
    frame = reader.read(at, item.size)
    continues = digest_of(frame, 0, item.size, before) == header.digest
    return replace(item, continues=continues), header.digest


def _start_before(reader: Reader, task: ScanTask, at: int, wanted_from: int) -> int:
    """Where to begin so that the items that touch `wanted_from` are met as from `at`: an intact
    entry behind `at` and at most there, the search going back further each time; else `at`.

    An entry says where it lies and its CRC vouches for it, so one that says that it lies here is
    one that following the sizes from the segment's start would meet."""
    back = _LOOK_BACK_BYTES
    while wanted_from - back > at:
        start = wanted_from - back
        found = _intact_within(reader, task, start, wanted_from)
        if found is not None:
            return found
        back *= 2
    return at


def next_item(reader: Reader, task: ScanTask, at: int, wanted_from: int) -> Item | None:
    """What lies at `at`; checked in full only if it reaches to `wanted_from`. None at the end of
    the file."""
    head = reader.read(at, HEADER_SIZE)
    if len(head) < FILLER_HEADER_SIZE:
        return None
    size, magic = FILLER_HEADER.unpack_from(head)
    if magic == FILLER_MAGIC and size == task.segment_size - at:
        return _filler(reader, task, at)
    try:
        header = parse_header(head, 0)
    except InvalidFrame as error:
        return _unknown(reader, task, at, f"{error.field} is {error.found}")
    if at + header.total_size > task.segment_size:
        return _unknown(reader, task, at, f"total size is {header.total_size}")
    if at + header.total_size <= wanted_from and header.physical_offset == task.base + at:
        return Item(task.base + at, header.total_size, ItemKind.ENTRY, 0)
    return _entry(reader, task, at, header)


def _entry(reader: Reader, task: ScanTask, at: int, header: EntryHeader) -> Item:
    """The entry at `at`, checked. One with a bad CRC ends where the next intact one begins if
    its own size doesn't lead there."""
    frame = reader.read(at, header.total_size)
    size = header.total_size
    if not _is_intact(frame, header):
        if not _leads_on(reader, task, at + size):
            size = _next_intact(reader, task, at + OPENING_SIZE) - at
            frame = reader.read(at, size)
        kind, detail = ItemKind.BROKEN, "CRC32C is bad"
    elif header.physical_offset != task.base + at:
        kind, detail = ItemKind.MISPLACED, f"claims to lie at {header.physical_offset}"
    else:
        kind, detail = ItemKind.ENTRY, ""
    topic, queue_id, queue_offset = _first_record(frame, header)
    return Item(
        start=task.base + at,
        size=size,
        kind=kind,
        fingerprint=xxh3_64_intdigest(frame),
        index=header.index,
        term=header.term,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        claims=header.physical_offset,
        detail=detail,
        digest=header.digest,
    )


def _is_intact(frame: bytes, header: EntryHeader) -> bool:
    if len(frame) < header.total_size:
        return False
    return frame_crc(memoryview(frame), 0, len(frame)) == header.crc


def _leads_on(reader: Reader, task: ScanTask, at: int) -> bool:
    """Whether something begins at `at` that can follow an entry there."""
    head = reader.read(at, HEADER_SIZE)
    if len(head) < FILLER_HEADER_SIZE:
        return at == task.segment_size
    size, magic = FILLER_HEADER.unpack_from(head)
    if (size, magic) == (task.segment_size - at, FILLER_MAGIC) or size == magic == 0:
        return True
    try:
        return parse_header(head, 0).physical_offset == task.base + at
    except InvalidFrame:
        return False


def _first_record(frame: bytes, header: EntryHeader) -> tuple[str, int, int | None]:
    """Topic, queue and queue offset of the entry's first record, as far as the bytes tell."""
    if header.is_compound:
        try:
            first = next(batches_in(header, frame), None)
        except InvalidFrame:
            first = None
        return ("", 0, None) if first is None else _first_record(first.frame, first.header)
    at = header.first_record_at
    if header.kind != EntryKind.DATA or len(frame) < at + FIXED_SIZE + 1:
        return "", 0, None
    queue_id, queue_offset = _QUEUE.unpack_from(frame, at + _QUEUE_AT)
    (body_length,) = _BODY_LENGTH.unpack_from(frame, at + _BODY_LENGTH_AT)
    topic_at = at + FIXED_SIZE + body_length
    length = frame[topic_at] if topic_at < len(frame) else 0
    if not 1 <= length <= MAX_TOPIC_BYTES:
        return "", queue_id, queue_offset
    topic = frame[topic_at + 1 : topic_at + 1 + length]
    return topic.decode("ascii", errors="replace"), queue_id, queue_offset


def _filler(reader: Reader, task: ScanTask, at: int) -> Item:
    size, fingerprint, stray = _digest_range(reader, at, task.segment_size, FILLER_HEADER_SIZE)
    return Item(
        task.base + at,
        size,
        ItemKind.FILLER if stray is None else ItemKind.STRAY,
        fingerprint,
        detail="" if stray is None else f"byte {stray} of the file isn't zero",
    )


def _unknown(reader: Reader, task: ScanTask, at: int, why: str) -> Item:
    """Bytes that no entry begins with, up to the next intact entry, or to the segment's end."""
    end = _next_intact(reader, task, at + 1)
    size, fingerprint, stray = _digest_range(reader, at, end, 0)
    is_zero = end == task.segment_size and stray is None
    return Item(
        task.base + at,
        max(size, 1),
        ItemKind.ZEROS if is_zero else ItemKind.BROKEN,
        fingerprint,
        detail="zeros to the segment's end" if is_zero else f"{why}, which no entry begins with",
    )


def _digest_range(reader: Reader, at: int, end: int, skipped: int) -> tuple[int, int, int | None]:
    """How many bytes of `[at, end)` there are, their fingerprint, and the first that isn't zero
    behind the `skipped` ones."""
    state = xxh3_64()
    stray: int | None = None
    start = at
    while at < end:
        chunk = reader.read(at, min(reader.window_bytes, end - at))
        if not chunk:
            break
        state.update(chunk)
        rest = chunk[skipped:].lstrip(b"\x00")
        if stray is None and rest:
            stray = at + len(chunk) - len(rest)
        at, skipped = at + len(chunk), 0
    return at - start, state.intdigest(), stray


def _next_intact(reader: Reader, task: ScanTask, start: int) -> int:
    """Where the next intact entry begins at `start` or later; the segment's end if none does."""
    found = _intact_within(reader, task, start, task.segment_size)
    return task.segment_size if found is None else found


def _intact_within(reader: Reader, task: ScanTask, start: int, end: int) -> int | None:
    """Where the first intact entry begins in `[start, end)`."""
    # Chunks overlap, so that no size and magic are cut in two.
    overlap = OPENING_SIZE - 1
    at, stop = start, min(end + overlap, task.segment_size)
    while at < end:
        wanted = min(reader.window_bytes, stop - at)
        chunk = reader.read(at, wanted)
        for found in possible_starts(chunk):
            if _begins_entry(reader, task, at + found):
                return at + found
        if len(chunk) < max(wanted, OPENING_SIZE):
            break
        at += len(chunk) - overlap
        if at + overlap >= stop:
            break
    return None


def _begins_entry(reader: Reader, task: ScanTask, at: int) -> bool:
    head = reader.read(at, HEADER_SIZE)
    if len(head) < HEADER_SIZE:
        return False
    total_size, physical_offset = claim_of(head, 0)
    if physical_offset != task.base + at or at + total_size > task.segment_size:
        return False
    try:
        header = parse_header(head, 0)
    except InvalidFrame:
        return False
    return _is_intact(reader.read(at, total_size), header)
