"""Where queues begin in a log that begins later than with entry 1.

The state as of the entry before the first says it: a queue's next offset there is the first that
the log can hold a message of. A topic that it doesn't know, and that wasn't made in the log either,
was deleted before: nobody knows what it was sent. A member can't start without that state, its
base, and keeps it twice (docs/adr/0043-a-log-that-begins-later.md). Messages that are left can't
stand in for it: a queue that retention has emptied has none, and where the first of what was left
has got lost, the next one would pass for the beginning.

A name may have been given anew in the log that is left. The state knows the topic that had it
first; those behind it began in the log, and each of their queues with 0. Where one ends the log
says. Which of the topics from before the log lived when it began, and could end in it, the state
tells.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from audit.delivery.judged import QueueStarts
from dledger.reading.decode import Ended
from dledger.reading.files import opened
from dledger.reading.lifetimes import Lifetimes
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


def starts_of(log: Survey, lifetimes: Lifetimes) -> QueueStarts:
    """Each queue's first offset, and which topics of its name were there before; why nobody knows
    the first, if the log begins later and the state that it begins with isn't there."""
    has_voids = bool(lifetimes.left_out().refused)
    known = QueueStarts(ends=_by_name(lifetimes.made_anew), has_voids=has_voids)
    if log.retained_from == 0:
        return known
    if log.start is None or not log.start.index:
        return replace(known, unknown="nothing tells what its first entry has to continue")
    folder = os.path.join(os.path.dirname(log.commitlog), FOLDER)
    path = os.path.join(folder, file_name(log.start.index))
    reasons = []
    for name in (path, path + COPY):
        try:
            found = _starts_in(name, log.start)
        except (InvalidFrame, StoreError, OSError, struct.error, ValueError) as error:
            reasons.append(f"{name}: {error}")
            continue
        offsets = {(topic, queue_id): offset for topic, _, queue_id, offset in found if offset}
        first = {topic: incarnation for topic, incarnation, *_ in found}
        ended = _with_effect(lifetimes.made_anew, first)
        made = {**lifetimes.first_made, **first}
        return replace(known, offsets=offsets, made=made, ends=_by_name(ended))
    return replace(known, unknown=reasons[0])


def _by_name(ended: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, ...]]:
    """The entries that ended topics, ascending."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for name, _, at in ended:
        found[name].append(at)
    return {name: tuple(ends) for name, ends in found.items()}


def _with_effect(ended: Ended, first: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Of those in the log's order, the ones that did end: of a name that was there when the log
    began, the topic that had it, and those that were created behind that one's end.

    Args:
        first: which topics were there, by name: the entries that created them.
    """
    last: dict[str, int] = {}  # the end of the one before, of the names that were there
    for name, created, at in ended:
        if name not in first or created in (first[name], 0) or created > last.get(name, at):
            last[name] = at
            yield name, created, at


def _starts_in(path: str, start: LogStart) -> list[tuple[str, int, int, int]]:
    """The queues in the snapshot: topic, incarnation, id, next offset.

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
        return list(_next_offsets(list(chunks)))  # All of it is good only once all is read.


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
