"""Replicas to measure audits with: members of one group, with logs, queues and votes as nodes that
were stopped leave them, written by the real store.

This owns nothing once it has returned: the caller removes the folder. Messages have a key, a tag
and a producer, as real ones have, lie in several queues, and have bodies of equal size with
different bytes.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from audit.reading.replica import Replica
from dledger.reading.entry import HEADER_SIZE, EntryKind
from dledger.records.layout import topic_folder
from dledger.records.record import BATCH_PREAMBLE, RecordTemplate, encode_properties
from dledger.wire.commands_pb2 import Command
from store.commitlog import CommitLog, CommitLogOptions
from store.consumequeue import ConsumeQueues
from store.directory import DataDirectory, DirectoryState, Identity
from store.dispatch import units_for_entry
from store.files import OsFiles
from store.stamping import stamp_records
from store.starting.founding import Founding, configuration_bytes, write_founding
from store.starting.opening import Site, open_hard_state, summarize
from store.worker import ManualWorker, Step


@dataclass(frozen=True, slots=True)
class Shape:
    """What a log's messages are like: bytes of a body, and how many messages an entry holds."""

    name: str
    body_bytes: int
    entry_messages: int


SEGMENT_BYTES: Final = 64 << 20
LARGE: Final = Shape("1 KiB messages, 64 an entry", 1024, 64)
SMALL: Final = Shape("100 B messages, 200 an entry", 100, 200)
QUEUES: Final = 4
_TOPIC: Final = "orders"
_FLUSHED_ENTRIES: Final = 256  # About 18 MiB wait in memory at most.
_TIME_MS: Final = 1_700_000_000_000
_HOST: Final = ("10.0.0.1", 5000)
_STORE_HOST: Final = (bytes((10, 0, 0, 9)), 9000)
_CREATED: Final = 2  # The entry that makes the topic; the producer's comes behind it.
_PRODUCER: Final = (_CREATED + 1).to_bytes(8, "big") + b"producer"
_GROUP: Final = "sample"
_TERM: Final = 1
_OPTIONS: Final = CommitLogOptions(segment_size_bytes=SEGMENT_BYTES, reserve_bytes=0)


def make_replicas(folder: Path, count: int, size: int, shape: Shape = LARGE) -> list[Replica]:
    """Data directories of `count` members below `folder`, each with the same committed log of
    `size` bytes or a little more."""
    names = [f"n{number}" for number in range(1, count + 1)]
    identities = [Identity(_GROUP, name, SEGMENT_BYTES) for name in names]
    members = [DataDirectory.open(folder / each.node_id, each) for each in identities]
    disks = {each.identity.node_id: each.disk.disk_id for each in members}
    addresses = {name: f"10.0.0.{number}:9000" for number, name in enumerate(names, start=1)}
    configuration = configuration_bytes(disks, addresses)
    for member in members:
        _form(member, Founding(_GROUP, SEGMENT_BYTES, _TIME_MS, configuration, is_adopted=False))
        member.close()
    sites = [Site(folder / each.node_id, each, OsFiles(), _OPTIONS) for each in identities]
    write_log(sites, configuration, size, shape)
    for name in names[1:]:
        for part in ("commitlog", "consumequeue"):
            source, target = folder / names[0] / part, folder / name / part
            shutil.copytree(source, target, copy_function=_copy_sparse)
        shutil.copy2(folder / names[0] / "checkpoint", folder / name)
    return [Replica(name, str(folder / name)) for name in names]


def _copy_sparse(source: str, target: str) -> None:
    """The same content, with holes where the source has them, as in files that a node wrote."""
    with open(source, "rb") as old, open(target, "wb") as new:
        size = os.fstat(old.fileno()).st_size
        os.truncate(new.fileno(), size)
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError:
                break  # Nothing but a hole is left.
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            while at < end:
                at += os.copy_file_range(old.fileno(), new.fileno(), end - at, at, at)


def _form(member: DataDirectory, founding: Founding) -> None:
    """The directory is a formed member's, which was started once."""
    write_founding(member.path, OsFiles(), founding)
    member.mark(DirectoryState.FORMED)
    member.next_boot()


def _vote(sites: Sequence[Site], log: CommitLog) -> None:
    """The members know the log's last term."""
    for site in sites:
        found = open_hard_state(site)
        term = summarize(log, site.path).term_runs[-1].term
        found.store.save(replace(found.state, term=term))


def write_log(sites: Sequence[Site], configuration: bytes, size: int, shape: Shape) -> None:
    """The first member's log has reached `size` bytes, its queues hold its messages, and both
    were closed cleanly; all members have voted in its term."""
    log = _Log(sites[0].path)
    log.add(EntryKind.CONFIGURATION, 0, bytearray(configuration))
    create = Command(create_topic={"name": _TOPIC, "queue_count": QUEUES})
    log.add(EntryKind.COMMAND, 0, bytearray(create.SerializeToString()))
    register = Command(register_producer={"token": _PRODUCER[8:]})
    log.add(EntryKind.COMMAND, 0, bytearray(register.SerializeToString()))
    for number, records in enumerate(_batches(shape)):
        log.add_batch(number, records)
        if log.end >= size:
            break
    _vote(sites, log.log)
    log.close()


def _batches(shape: Shape) -> Iterator[list[bytes]]:
    """An entry's records, without end; those of each queue in turn."""
    template = RecordTemplate(_TOPIC, _HOST)
    noise = random.Random(1).randbytes(shape.body_bytes + shape.entry_messages)
    number = queue = 0
    while True:
        records = []
        for at in range(shape.entry_messages):
            named = {
                "KEYS": f"order-{number % 100_000:06d}",
                "TAGS": f"tag{number % 3}",
                "UNIQ_KEY": f"{number:032x}",
            }
            body = noise[at : at + shape.body_bytes]
            records.append(template.encode(queue, body, encode_properties(named), _TIME_MS))
            number += 1
        yield records
        queue = (queue + 1) % QUEUES


class _Log:
    """A log and its queues being written, the store's workers run by hand."""

    def __init__(self, path: Path) -> None:
        self._workers: list[ManualWorker] = []
        self.log = CommitLog.open(path, _OPTIONS, workers=self._worker)
        self._queues = ConsumeQueues(path)
        self._lanes = [0] * QUEUES  # The next offset of each queue, and the next sequence.

    def _worker(self, name: str, step: Step) -> ManualWorker:
        self._workers.append(ManualWorker(name, step))
        return self._workers[-1]

    @property
    def end(self) -> int:
        """The physical offset behind the last entry."""
        return self.log.end_offset

    def add(self, kind: EntryKind, count: int, body: bytearray) -> None:
        """The entry is the log's last."""
        self._make_room(HEADER_SIZE + len(body))
        index = self.log.last_index + 1
        self.log.append(kind, index, _TERM, _TIME_MS + index, count, body)
        if index % _FLUSHED_ENTRIES == 0:
            self._flush()

    def add_batch(self, number: int, records: list[bytes]) -> None:
        """The records are the log's last entry, stamped as a leader stamps them, and in their
        queue."""
        queue = number % QUEUES
        offset = self._lanes[queue]
        self._lanes[queue] += len(records)
        body = bytearray(b"".join([BATCH_PREAMBLE.pack(_PRODUCER, offset, _CREATED), *records]))
        starts = [0]
        for record in records[:-1]:
            starts.append(starts[-1] + len(record))
        self._make_room(HEADER_SIZE + len(body))
        at = BATCH_PREAMBLE.size
        index = self.log.last_index + 1
        stamp_records(
            body,
            starts,
            at=at,
            base_queue_offset=offset,
            base_physical_offset=self.log.next_position(HEADER_SIZE + len(body)) + HEADER_SIZE + at,
            store_time_ms=_TIME_MS + index,
            store_host=_STORE_HOST,
        )
        self.add(EntryKind.DATA, len(records), body)
        frame = self.log.read(index, index)
        topic, _, base, units = units_for_entry(self.log.header_at(index), frame)
        self._queues.dispatch(topic_folder(topic, _CREATED), queue, base, units)

    def _make_room(self, frame_size: int) -> None:
        while not self.log.has_room(frame_size):
            self._workers[1].run_pending()

    def _flush(self) -> None:
        self.log.submit(self.log.last_index)
        self._workers[0].run_pending()

    def close(self) -> None:
        """All of it is durable, and the checkpoint says so."""
        self._flush()
        self._queues.flush()
        last = self.log.last_index
        self.log.checkpoint.note_consume_queue(last, _TIME_MS + last)
        self._queues.close()
        self.log.close()
