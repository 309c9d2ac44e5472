"""Replicas to measure audits with: a log of messages written by the real store, and copies of it.

This owns nothing once it has returned: the caller removes the folder. Messages have a key, a tag
and a producer's id, as real ones have, and bodies of equal size with different bytes.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from audit.reading.replica import Replica
from dledger.reading.entry import HEADER_SIZE, EntryKind
from dledger.records.record import BATCH_PREAMBLE, RecordTemplate, encode_properties
from store.commitlog import CommitLog, CommitLogOptions
from store.directory import DataDirectory, Identity
from store.stamping import stamp_records
from store.worker import ManualWorker, Step

SEGMENT_BYTES: Final = 64 << 20
BODY_BYTES: Final = 1024
ENTRY_MESSAGES: Final = 64
_FLUSHED_ENTRIES: Final = 256  # About 18 MiB wait in memory at most.
_TIME_MS: Final = 1_700_000_000_000
_HOST: Final = ("10.0.0.1", 5000)
_STORE_HOST: Final = (bytes((10, 0, 0, 9)), 9000)


def make_replicas(folder: Path, count: int, size: int) -> list[Replica]:
    """`count` equal data directories below `folder`, each with a committed log of `size` bytes or
    a little more."""
    first = folder / "n1"
    write_log(first, size)
    for number in range(2, count + 1):
        shutil.copytree(first, folder / f"n{number}")
    return [Replica(f"n{number}", str(folder / f"n{number}")) for number in range(1, count + 1)]


def write_log(path: Path, size: int) -> int:
    """A data directory whose log has reached `size` bytes, closed cleanly; how many messages."""
    workers: list[ManualWorker] = []

    def worker(name: str, step: Step) -> ManualWorker:
        workers.append(ManualWorker(name, step))
        return workers[-1]

    directory = DataDirectory.open(path, Identity("sample", "n1", SEGMENT_BYTES))
    options = CommitLogOptions(segment_size_bytes=SEGMENT_BYTES, reserve_bytes=0)
    log = CommitLog.open(path, options, workers=worker)
    flusher, allocator = workers
    for index, records in enumerate(_batches(), start=1):
        frame_size = HEADER_SIZE + BATCH_PREAMBLE.size + sum(map(len, records))
        while not log.has_room(frame_size):
            allocator.run_pending()
        _append(log, index, records)
        if index % _FLUSHED_ENTRIES == 0 or log.end_offset >= size:
            log.submit(index)
            flusher.run_pending()
        if log.end_offset >= size:
            break
    messages = log.last_index * ENTRY_MESSAGES
    log.checkpoint.note_consume_queue(log.last_index, _TIME_MS)
    log.close()
    directory.close()
    return messages


def _batches() -> Iterator[list[bytes]]:
    """An entry's records, without end."""
    template = RecordTemplate("orders", _HOST)
    noise = random.Random(1).randbytes(BODY_BYTES + ENTRY_MESSAGES)
    number = 0
    while True:
        records = []
        for at in range(ENTRY_MESSAGES):
            named = {
                "KEYS": f"order-{number % 100_000:06d}",
                "TAGS": f"tag{number % 3}",
                "UNIQ_KEY": f"{number:032x}",
            }
            body = noise[at : at + BODY_BYTES]
            records.append(template.encode(0, body, encode_properties(named), _TIME_MS))
            number += 1
        yield records


def _append(log: CommitLog, index: int, records: list[bytes]) -> None:
    """The records are the log's last entry, stamped as a leader stamps them."""
    base = (index - 1) * ENTRY_MESSAGES
    body = bytearray(b"".join([BATCH_PREAMBLE.pack(bytes(16), base, 1), *records]))
    starts = [0]
    for record in records[:-1]:
        starts.append(starts[-1] + len(record))
    at = BATCH_PREAMBLE.size
    stamp_records(
        body,
        starts,
        at=at,
        base_queue_offset=base,
        base_physical_offset=log.next_position(HEADER_SIZE + len(body)) + HEADER_SIZE + at,
        store_time_ms=_TIME_MS + index,
        store_host=_STORE_HOST,
    )
    log.append(EntryKind.DATA, index, 1, _TIME_MS + index, len(records), body)
