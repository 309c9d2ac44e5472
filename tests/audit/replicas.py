"""Replicas for the audits' tests: made by the real CommitLog and ConsumeQueues, then damaged.

A log of data entries over two topics, commands and a no-op, in segments of 16 KiB, so that a
block of 4 KiB is a small part of one. A replica is a data directory as a node leaves it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from xxhash import xxh3_128_hexdigest

from audit.reading.replica import Replica
from dledger.reading.checkpoint import decode_checkpoint, encode_checkpoint
from dledger.reading.compound import UnitBody, build_body
from dledger.reading.entry import (
    COMPOUND_VERSION,
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    parse_header,
)
from dledger.reading.log_start import LogStart
from dledger.records.layout import file_name, topic_folder
from dledger.records.record import BATCH_PREAMBLE, RecordTemplate, encode_properties, record_starts
from dledger.wire.commands_pb2 import Command
from store.commitlog import CommitLog, CommitLogOptions
from store.consumequeue import ConsumeQueues
from store.directory import DataDirectory, Identity, write_sealed
from store.dispatch import units_for_entry
from store.files import Handle, OsFiles
from store.log_start import StartNote
from store.stamping import stamp_records
from store.worker import ManualWorker, Step

SEGMENT = 16384
BLOCK = 4096
BORN_HOST = ("10.0.0.1", 5000)
STORE_HOST = (bytes((10, 0, 0, 9)), 9000)
TIME_MS = 1_700_000_000_000
TOPICS = ("orders", "events")
COMMAND = Command(commit_offsets={"group": "g", "topic": "orders"}).SerializeToString()


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry to append: `count` messages of `topic`/`queue_id`, or the body of another kind.
    The messages' bodies are `bodies`, or made up; the first one's queue offset is `queue_offset`,
    or the next."""

    term: int
    kind: int = EntryKind.DATA
    topic: str = "orders"
    queue_id: int = 0
    count: int = 0
    size: int = 100
    body: bytes = b""
    producer: bytes = bytes(16)
    bodies: tuple[bytes, ...] = ()
    queue_offset: int | None = None


class LogBuilder:
    """A data directory being written by the real store, its workers run by hand."""

    def __init__(self, path: Path, node_id: str, segment_size: int = SEGMENT) -> None:
        identity = Identity("g", node_id, segment_size)
        self.path = path
        self.headers: list[EntryHeader] = []
        self._directory = DataDirectory.open(path, identity)
        self._workers: list[ManualWorker] = []
        options = CommitLogOptions(segment_size_bytes=segment_size, reserve_bytes=0)
        self.log = CommitLog.open(path, options, workers=self._worker)
        self._queues = ConsumeQueues(path)
        self._next: dict[tuple[str, int], int] = {}
        self._ticket = 0

    def _worker(self, name: str, step: Step) -> ManualWorker:
        self._workers.append(ManualWorker(name, step))
        return self._workers[-1]

    def add(self, entry: Entry) -> int:
        """The entry is the last one; its physical offset."""
        index = self.log.last_index + 1
        place: tuple[str, int] = (entry.topic, entry.queue_id)
        body = bytearray(entry.body)
        if entry.queue_offset is not None:
            self._next[place] = entry.queue_offset
        if entry.kind == EntryKind.DATA:
            body = _records(entry, self._next.get(place, 0))
            self._next[place] = self._next.get(place, 0) + entry.count
        size = HEADER_SIZE + len(body)
        while not self.log.has_room(size):
            self._workers[1].run_pending()
        if entry.kind == EntryKind.DATA:
            _stamp(body, self.log.next_position(size), self._next[place] - entry.count, index)
        at = self.log.append(entry.kind, index, entry.term, TIME_MS + index, entry.count, body)
        self.headers.append(self.log.header_at(index))
        return at

    def add_units(self, units: list[UnitBody]) -> int:
        """A compound entry of these is the last one; its physical offset. Queue offsets count from
        0 over the whole entry."""
        index, count = self.log.last_index + 1, 0
        body, firsts = build_body(units)
        at = self.log.next_position(HEADER_SIZE + len(body))
        sizes = [size for unit in units for _, size in unit.batches]
        for first, size in zip(firsts, sizes, strict=True):
            stamp_records(
                body,
                [start - first for start in record_starts(bytes(body), first, size)],
                at=first,
                base_queue_offset=count,
                base_physical_offset=at + HEADER_SIZE + first,
                store_time_ms=TIME_MS + index,
                store_host=STORE_HOST,
            )
            count += size
        kind, version = EntryKind.DATA, COMPOUND_VERSION
        self.log.append(kind, index, 1, TIME_MS + index, count, body, version)
        self.headers.append(self.log.header_at(index))
        return at

    def flush(self) -> None:
        """What was added is durable."""
        self._ticket += 1
        self.log.submit(self._ticket)
        self._workers[0].run_pending()

    def dispatch(self, through: int | None = None) -> None:
        """The ConsumeQueues hold the units of all entries up to `through`, and the checkpoint
        says so."""
        last = through or self.log.last_index
        for header in self.headers[:last]:
            if header.kind == EntryKind.DATA:
                frame = self.log.read(header.index, header.index)
                topic, queue_id, base, units = units_for_entry(header, frame)
                self._queues.dispatch(topic_folder(topic, 1), queue_id, base, units)
        self._queues.flush()
        self.log.checkpoint.note_consume_queue(last, TIME_MS)

    def close(self) -> None:
        self._queues.close()
        self.log.close()
        self._directory.close()


def fill_first_segment(builder: LogBuilder) -> int:
    """Two messages, then commands up to what fills the first segment up, are known committed; the
    two messages that follow in the next segment aren't. The physical offset behind the former."""
    for entry in (Entry(1, EntryKind.NOOP), Entry(1, count=2)):
        builder.add(entry)
    while builder.headers[-1].physical_offset < SEGMENT:
        builder.add(Entry(1, EntryKind.COMMAND, body=COMMAND))
    builder.add(Entry(1, count=2))
    builder.flush()
    last = builder.headers[-3]
    builder.dispatch(last.index)
    return last.physical_offset + last.total_size


def usual_entries(count: int = 60) -> Iterator[Entry]:
    """A no-op, a command, then data entries of two topics with a command now and then."""
    random = Random(4)
    yield Entry(1, EntryKind.NOOP)
    for number in range(1, count):
        term = 1 + number // 25
        if number % 11 == 0:
            yield Entry(term, EntryKind.COMMAND, body=COMMAND)
        else:
            topic = TOPICS[number % 2]
            yield Entry(
                term,
                topic=topic,
                queue_id=number % 3,
                count=1 + number % 4,
                size=random.randint(50, 400),
                producer=bytes((number % 2 + 1,)) * 16,
            )


def build(path: Path, entries: Iterator[Entry] | list[Entry], node_id: str = "n1") -> LogBuilder:
    """A replica of `entries`, closed cleanly."""
    builder = LogBuilder(path, node_id)
    for entry in entries:
        builder.add(entry)
        builder.flush()
    builder.dispatch()
    builder.close()
    return builder


def on_own_disk(path: Path, name: str) -> None:
    """The copy of a member's directory is another member's, on a disk of its own."""
    file = path / "identity.json"
    fields = json.loads(file.read_text(encoding="utf-8"))
    del fields["crc32c"]
    disk = xxh3_128_hexdigest(name.encode())
    write_sealed(OsFiles(), file, {**fields, "node_id": name, "disk_id": disk})


class ReplicaSet:
    """Three equal replicas, copied from one that the store wrote, each on a disk of its own."""

    def __init__(self, root: Path, builder: LogBuilder) -> None:
        self.root = root
        self.headers = builder.headers
        self.end = builder.log.end_offset
        self.paths = {name: root / name for name in ("n1", "n2", "n3")}
        for name, path in self.paths.items():
            shutil.copytree(builder.path, path, copy_function=copy_sparse)
            on_own_disk(path, name)

    @property
    def replicas(self) -> list[Replica]:
        return [Replica(name, str(path)) for name, path in self.paths.items()]

    def segment(self, name: str, base: int) -> Path:
        return self.paths[name] / "commitlog" / f"{base:020d}"

    def bases(self, name: str = "n1") -> list[int]:
        return sorted(int(p.name) for p in (self.paths[name] / "commitlog").iterdir())

    def flip(self, name: str, physical_offset: int, bit: int = 0) -> Path:
        """One bit of one replica's log is flipped."""
        base = physical_offset - physical_offset % SEGMENT
        path = self.segment(name, base)
        flip_bit(path, physical_offset - base, bit)
        return path

    def header_of(self, kind: int = EntryKind.DATA, after: int = 0) -> EntryHeader:
        """The first entry of a kind behind a physical offset."""
        return next(h for h in self.headers if h.kind == kind and h.physical_offset >= after)

    def filler(self) -> int:
        """Physical offset of the first segment's filler."""
        last = next(
            before
            for before, after in zip(self.headers, self.headers[1:], strict=False)
            if after.physical_offset == SEGMENT
        )
        return last.physical_offset + last.total_size


def start_of(path: Path, index: int) -> LogStart:
    """The latest start that leaves entry `index` in the log, which nobody has open."""
    log = CommitLog.open(path, CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0))
    start = log.start_before(index)
    log.close()
    assert start is not None
    return start


def dropping(path: Path, start: LogStart) -> Iterator[None]:
    """Begins the log at `start`, a step of the disk at a time: note, checkpoint, files."""
    StartNote(OsFiles(), path).replace(start)
    yield
    page = path / "checkpoint"
    state = decode_checkpoint(page.read_bytes())
    assert state is not None
    page.write_bytes(encode_checkpoint(replace(state, first_offset=start.offset(SEGMENT))))
    yield
    for file in sorted((path / "commitlog").iterdir()):
        if file.name < file_name(start.offset(SEGMENT)):
            file.unlink()
            yield


def copy_sparse(source: str, target: str) -> None:
    """A copy with the same holes: ConsumeQueue files are mostly that."""
    files = OsFiles()
    with open(source, "rb") as old, open(target, "wb") as new:
        new.truncate(os.fstat(old.fileno()).st_size)
        for start, end in files.data_ranges(Handle(old.fileno()), 0, 1 << 62):
            os.pwrite(new.fileno(), os.pread(old.fileno(), end - start, start), start)


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    """One bit of a file is flipped in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes((byte ^ (1 << bit),)))


def cut(path: Path, size: int) -> None:
    """The file is `size` bytes long."""
    os.truncate(path, size)


def listed(path: Path) -> list[tuple[str, int, int, int]]:
    """All that lies there: its name, mode, size and when it was last changed."""
    found = []
    for each in sorted(path.rglob("*")):
        state = each.lstat()
        found.append((str(each), state.st_mode, state.st_size, state.st_mtime_ns))
    return found


def header_at(path: Path, at: int) -> EntryHeader:
    """The header at byte `at` of a segment file."""
    return parse_header(path.read_bytes(), at)


def _records(entry: Entry, base_queue_offset: int) -> bytearray:
    template = RecordTemplate(entry.topic, BORN_HOST)
    records = [
        template.encode(
            entry.queue_id,
            entry.bodies[number]
            if entry.bodies
            else bytes(((base_queue_offset + number) % 251,)) * entry.size,
            encode_properties(
                {"KEYS": f"k{(base_queue_offset + number) % 7}", "TAGS": f"t{number % 2}"}
            ),
            TIME_MS - 5,
        )
        for number in range(entry.count)
    ]
    return bytearray(BATCH_PREAMBLE.pack(entry.producer, base_queue_offset, 1) + b"".join(records))


def _stamp(body: bytearray, position: int, base_queue_offset: int, index: int) -> None:
    at = BATCH_PREAMBLE.size
    count_all = record_starts(body, at, 1)
    starts, start = [], count_all[0]
    while start < len(body):
        starts.append(start - at)
        start += int.from_bytes(body[start : start + 4], "big")
    stamp_records(
        body,
        starts,
        at=at,
        base_queue_offset=base_queue_offset,
        base_physical_offset=position + HEADER_SIZE + at,
        store_time_ms=TIME_MS + index,
        store_host=STORE_HOST,
    )
