"""Where queues begin in a log that begins later than with entry 1.

The state as of the entry before the first says it: a queue's next offset there is the first that
the log can hold a message of. A member can't start without that state, its base, and keeps it twice
(docs/adr/0043-a-log-that-begins-later.md). Messages that are left can't stand in for it: a queue
that retention has emptied has none, and where the first of what was left has got lost, the next one
would pass for the beginning.

A name may have been given anew in the log that is left. The state knows the topic that had it
before; the one that histories speak of began in the log, and each of its queues with 0.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Set
from typing import Final

from audit.delivery.history import QueueKey
from audit.delivery.judged import QueueStarts
from dledger.reading.files import opened
from dledger.reading.log_start import LogStart
from dledger.reading.survey import Survey
from dledger.records.errors import InvalidFrame
from dledger.records.layout import file_name
from dledger.records.state_layout import (
    SNAPSHOT_CHUNK,
    TOPIC_QUEUE,
    TOPICS,
    TOPICS_SECTION,
    TOPICS_VERSION,
)
from store.errors import SnapshotOfAnother, StoreError
from store.files import Handle, OsFiles
from store.snapshot_files import COPY, FOLDER, SnapshotHead, content_of

_CHUNK: Final = SNAPSHOT_CHUNK.struct()
_CHUNK_VERSION: Final = SNAPSHOT_CHUNK.constant("version")
_CRC_SIZE: Final = SNAPSHOT_CHUNK.run("crc").size
_NAME_LENGTH: Final = TOPICS_SECTION.run("name_length")
_TOPIC: Final = TOPICS_SECTION.run(
    "incarnation", "created_time_ms", "queue_count", "first_queue", "count"
)
_QUEUE: Final = TOPIC_QUEUE.struct()


def starts_of(log: Survey, made_anew: Set[tuple[str, int]]) -> QueueStarts:
    """Each queue's first offset; why nobody knows it, if the log begins later and the state that it
    begins with isn't there.

    Args:
        made_anew: topics that ended in the log and whose names others have by now
            (`Lifetimes.made_anew`).
    """
    if log.retained_from == 0:
        return QueueStarts()
    if log.start is None or not log.start.index:
        return QueueStarts(unknown="nothing tells what its first entry has to continue")
    folder = os.path.join(os.path.dirname(log.commitlog), FOLDER)
    path = os.path.join(folder, file_name(log.start.index))
    reasons = []
    for name in (path, path + COPY):
        try:
            return QueueStarts(_starts_in(name, log.start, made_anew))
        except (InvalidFrame, StoreError, OSError, struct.error, ValueError) as error:
            reasons.append(f"{name}: {error}")
    return QueueStarts(unknown=reasons[0])


def _starts_in(path: str, start: LogStart, made_anew: Set[tuple[str, int]]) -> dict[QueueKey, int]:
    """The queues' next offsets in the snapshot, of topics that keep their names in the log.

    Raises:
        SnapshotOfAnother: it isn't that of the entry that the log begins behind.
        InvalidFrame: it is in bytes that aren't known here.
        StoreError, OSError: it can't be read, or isn't what was written.
    """
    with opened(path) as descriptor:
        files = OsFiles(access=os.O_RDONLY)
        head, chunks = content_of(files, Handle(descriptor), path)
        wanted = (start.index, start.term, start.digest, start.end_offset)
        if _place(head) != wanted:
            raise SnapshotOfAnother(path, "log", str(wanted), str(_place(head)))
        offsets = _next_offsets(list(chunks))  # All of it is good only once all is read.
        return {
            (topic, queue_id): offset
            for topic, incarnation, queue_id, offset in offsets
            if offset and made_anew.isdisjoint({(topic, incarnation), (topic, 0)})
        }


def _place(head: SnapshotHead) -> tuple[int, int, int, int]:
    return head.applied_index, head.term, head.digest, head.end_offset


def _next_offsets(chunks: Iterable[bytes]) -> Iterator[tuple[str, int, int, int]]:
    known = (_CHUNK_VERSION, TOPICS_VERSION)
    for chunk in chunks:
        _, envelope, name_size, version, *_ = _CHUNK.unpack_from(chunk)
        name_end = _CHUNK.size + name_size
        if chunk[_CHUNK.size : name_end] != TOPICS.encode():
            continue
        if (envelope, version) != known:
            raise InvalidFrame(0, f"version of {TOPICS}", known, (envelope, version))
        yield from _queues_in(chunk[name_end:-_CRC_SIZE])


def _queues_in(payload: bytes) -> Iterator[tuple[str, int, int, int]]:
    """The queues of the records in a payload: topic, incarnation, id, next offset. Each record is
    whole."""
    at = 0
    while at < len(payload):
        (size,) = _NAME_LENGTH.unpack_from(payload, at)
        at += _NAME_LENGTH.size
        topic = payload[at : at + size].decode()
        incarnation, _, _, first, count = _TOPIC.unpack_from(payload, at + size)
        at += size + _TOPIC.size
        queues = payload[at : at + count * _QUEUE.size]
        for queue_id, (next_offset, _) in enumerate(_QUEUE.iter_unpack(queues), first):
            yield topic, incarnation, queue_id, next_offset
        at += len(queues)
