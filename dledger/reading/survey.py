"""The first look at a replica: which files there are, and up to where they claim to be a log.

It reads names, sizes, the identity, the checkpoint and a few headers, and judges nothing. The value
is small, so it can be made beside the replica and travel.

Two positions matter. `end`: the replica claims durable bytes up to here (the checkpoint's
watermark; of a running node its committed offset). `settled`: entries below are known committed,
so they can never change again (of a copy: those that the checkpoint says are in the ConsumeQueues;
of a running node the committed offset). Between the two a copy may rightly hold entries that
never committed. Of a backup both are where its `backup.json` says that it ends: all of it had
committed, and what lies behind is what one that was interrupted left.
"""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from dledger.reading.backup import FILE as BACKUP
from dledger.reading.backup import Backup, backup_noted
from dledger.reading.checkpoint import PAGE_SIZE, CheckpointState, decode_checkpoint
from dledger.reading.entry import HEADER_SIZE, parse_header
from dledger.reading.errors import ObjectsUnreadable
from dledger.reading.files import (
    is_folder,
    name_of_file,
    names_in,
    opened,
    printable,
    read_at,
)
from dledger.reading.headers import is_blank, place_within, walk_headers
from dledger.reading.log_start import FROM_THE_FIRST, LogStart, start_noted
from dledger.reading.objects import is_object, plain, sizes_in
from dledger.reading.sizes import MAX_OFFSET, possible_size
from dledger.records.errors import InvalidFrame
from dledger.records.layout import DELETED_FOLDER, FILE_NAME, UNFINISHED_NAME, file_name

_IDENTITY_BYTES: Final = 4096
# Files that a replica may lack, each of which is told; with more it isn't the log that it claims.
MAX_LACKING: Final = 1024
_QUEUE: Final = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Position:
    """What a running node said: its log is committed up to the physical offset `committed`, and
    the running digest there. `first_index` is the first entry that it still holds."""

    committed: int
    digest: int
    index: int
    first_index: int


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A file of the log: physical offset of its first byte, and its size in bytes. `file`: which
    one it is (`dledger.reading.files.name_of_file`); empty where nobody can say."""

    base: int
    size: int
    file: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies in a replica's directory. Offsets are physical, in bytes.

    `problem` is not empty if the directory can't be read at all; then nothing else is known;
    `silent`: because its node doesn't answer. `address`: the log is read there, over gRPC.
    `retained_from`: where the log rightly begins, retention having deleted what was before; files
    that lie before it are none of `segments`. `start`: what is known of the entry before the first;
    None where nothing tells that.
    `settled_index`: the last entry below `settled`; 0 if that isn't known. `astray`: where headers
    stop leading to what the checkpoint calls settled, and nothing intact leads on; None: they do.
    `derived_index`: the ConsumeQueues hold the units of every entry up to it.
    `is_backup`: it is one, whose `backup.json` tells `broker_group`, `segment_size` and the two
    positions; it has no ConsumeQueues.
    `disk`: which member's disk it says it is, or is a copy of; empty where it doesn't say.
    `consume_queues`: of each topic's folder, its queues; `unlisted`: folders that can't be listed.
    `is_running`: a node runs on the directory, or died on it without closing it; `answered`: it
    runs, and said its position.
    """

    replica: str
    commitlog: str
    problem: str = ""
    broker_group: str | None = None
    segment_size: int | None = None
    checkpoint_readable: bool = False
    retained_from: int = 0
    start: LogStart | None = FROM_THE_FIRST
    settled: int = 0
    settled_index: int = 0
    astray: int | None = None
    end: int = 0
    derived_index: int = 0
    segments: tuple[SegmentFile, ...] = ()
    foreign: tuple[str, ...] = ()
    consume_queues: tuple[tuple[str, int], ...] = ()
    unlisted: tuple[str, ...] = ()
    is_running: bool = False
    answered: bool = False
    silent: bool = False
    is_backup: bool = False
    address: str | None = None
    disk: str = ""


def survey_folder(name: str, path: str, position: Position | None = None) -> Survey:
    """What is in a replica's directory; a directory that can't be read is a value too.

    Args:
        name: what the survey calls the replica.
        path: a data directory, or its `commitlog`.
        position: what a node that runs on it said before; None for a copy nobody was asked about.
    """
    path = plain(path)
    try:
        return _surveyed(name, commitlog_of(path), position)
    except ObjectsUnreadable as error:
        return Survey(name, path, problem=str(error), silent=True)
    except OSError as error:
        return Survey(name, path, problem=f"{error.filename or path}: {error.strerror or error}")


def _surveyed(name: str, commitlog: str, position: Position | None) -> Survey:
    """Raises: OSError: the folder can't be read, or a store that holds it doesn't answer."""
    data = os.path.dirname(commitlog)
    broker_group, segment_size, disk = _identity(os.path.join(data, "identity.json"))
    # Before the files are listed: a backup that goes on has those that it says it has.
    backup = _backup(data) if broker_group is None and position is None else None
    names = names_in(commitlog)
    found = _stat_segments(commitlog, names)  # and the note afterwards: see `log_start`
    foreign = tuple(printable(name) for name in names if is_foreign(name))
    checkpoint = _checkpoint(os.path.join(data, "checkpoint"))
    if backup is not None:
        broker_group, segment_size = backup.broker_group, backup.segment_size_bytes
        checkpoint = _checkpoint_of(backup, checkpoint, found)
    segment_size = segment_size or _guess_segment_size(found)
    start, retained = begin_of(start_noted(data), found, segment_size, checkpoint)
    found = behind(found, segment_size, retained)
    begin = retained, start.index if start else 0
    committed, end = _positions(position, commitlog, (found, segment_size), checkpoint, begin)
    if backup is not None:
        committed = backup.end_offset, backup.last_index, None
    settled, settled_index, astray = committed
    queues, unlisted = _consume_queues(os.path.join(data, "consumequeue"))
    if problem := impossible_claim(commitlog, found, segment_size, (retained, end)):
        return Survey(name, commitlog, problem=problem, broker_group=broker_group)
    return Survey(
        replica=name,
        commitlog=commitlog,
        broker_group=broker_group,
        segment_size=segment_size,
        checkpoint_readable=checkpoint is not None,
        retained_from=retained,
        start=start,
        settled=settled,
        settled_index=settled_index,
        astray=astray,
        end=end,
        derived_index=checkpoint.consume_queue_index if checkpoint else 0,
        segments=found,
        foreign=foreign,
        consume_queues=queues,
        unlisted=unlisted,
        answered=position is not None,
        is_backup=backup is not None,
        disk=disk,
        # In a store there is a copy, whatever it is a copy of.
        is_running=position is not None
        or (not is_object(data) and os.path.exists(os.path.join(data, "abort"))),
    )


def is_foreign(name: str) -> bool:
    """No node put a file of this name into a log's folder."""
    if FILE_NAME.fullmatch(name):
        return int(name) > MAX_OFFSET
    return not UNFINISHED_NAME.fullmatch(name)


def commitlog_of(path: str) -> str:
    """The folder with the segments: `path/commitlog` if there is one, or if what is there is a data
    directory, which may have no log yet; else `path` itself."""
    inner = os.path.join(path, "commitlog")
    if is_folder(inner):
        return inner
    is_data = not is_object(path) and os.path.exists(os.path.join(path, "identity.json"))
    return inner if is_data else path


def _stat_segments(commitlog: str, names: list[str]) -> tuple[SegmentFile, ...]:
    """The segments; one that vanishes while it is looked at was deleted by retention."""
    stored = sizes_in(commitlog) if is_object(commitlog) else None
    found = []
    for name in names:
        if FILE_NAME.fullmatch(name) and not is_foreign(name):
            if stored is None:
                found += _segment_here(os.path.join(commitlog, name), int(name))
            elif (size := stored.get(name)) is not None:
                found.append(SegmentFile(int(name), size))
    return tuple(found)


def _segment_here(path: str, base: int) -> list[SegmentFile]:
    try:
        state = os.stat(path)
    except OSError:
        return []
    return [SegmentFile(base, state.st_size, name_of_file(state))]


def _identity(path: str) -> tuple[str | None, int | None, str]:
    """Broker group, segment size, disk; None and empty for what can't be learned, as in a bare copy
    of a log."""
    try:
        with opened(path) as descriptor:
            stored = json.loads(read_at(descriptor, _IDENTITY_BYTES, 0))
        size, disk = possible_size(int(stored["segment_size_bytes"])), stored.get("disk_id")
        return str(stored["group"]), size, disk if isinstance(disk, str) else ""
    except ObjectsUnreadable:
        raise
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None, None, ""


def _backup(data: str) -> Backup | None:
    """What the folder says of itself, if it is a backup's.

    Raises:
        OSError: nobody can tell how much of a backup is there.
    """
    try:
        return backup_noted(data)
    except InvalidFrame as error:
        why = "nobody can tell how much of a backup is there: expected {}, found {}"
        said = why.format(error.expected, error.found)
        raise OSError(errno.EBADMSG, said, os.path.join(data, BACKUP)) from error


def _checkpoint_of(
    backup: Backup, stored: CheckpointState | None, segments: tuple[SegmentFile, ...]
) -> CheckpointState:
    """What a checkpoint beside the backup has to say. The one that lies there is of one that was
    interrupted, perhaps, and its word is wanted only for where a log begins that begins later."""
    first = 0
    if backup.first_index > 1:
        first = segments[0].base if segments else 0
        first = stored.first_offset if stored else first
    return CheckpointState(watermark=backup.end_offset, first_offset=first)


def _checkpoint(path: str) -> CheckpointState | None:
    try:
        with opened(path) as descriptor:
            return decode_checkpoint(read_at(descriptor, PAGE_SIZE + 1, 0))
    except ObjectsUnreadable:
        raise
    except OSError:
        return None


def _guess_segment_size(segments: tuple[SegmentFile, ...]) -> int | None:
    """From the names, as a size may have been cut: segments lie back to back."""
    gaps = [second.base - first.base for first, second in pairwise(segments)]
    if gaps:
        return possible_size(min(gaps))
    return possible_size(segments[0].size) if segments else None


def impossible_claim(
    commitlog: str,
    segments: tuple[SegmentFile, ...],
    segment_size: int | None,
    claimed: tuple[int, int],
) -> str:
    """Why the files can't be the log that is claimed; empty if they can. Every loop over a log's
    segments relies on this: it is bounded by the files that exist."""
    start, end = claimed
    wanted = 0
    if segment_size is not None and end > start:
        wanted = -(-end // segment_size) - start // segment_size
    if wanted <= len(segments) + MAX_LACKING and max(start, end) <= MAX_OFFSET:
        return ""
    return (
        f"{commitlog} can't be the log of bytes {start} to {end} that it claims to be: "
        f"{len(segments)} files of {wanted}"
    )


def begin_of(
    noted: LogStart | None,
    segments: tuple[SegmentFile, ...],
    segment_size: int | None,
    checkpoint: CheckpointState | None,
) -> tuple[LogStart | None, int]:
    """What is known of the entry before the log's first, and where the log begins, in bytes.

    The start note decides. Without one a log begins with entry 1; a bare copy of its files may have
    been parted from its note, and then the checkpoint's word counts, or else the files are believed
    to be all there are.

    Args:
        noted: what the note says, read after the files were listed; None: it can't be read.
    """
    first = segments[0].base if segments else 0
    if noted not in (None, FROM_THE_FIRST) and segment_size:
        return noted, noted.offset(segment_size)
    begin = checkpoint.first_offset if checkpoint else first
    return (None if begin else noted), begin


def behind(
    segments: tuple[SegmentFile, ...], segment_size: int | None, begin: int
) -> tuple[SegmentFile, ...]:
    """Those that hold anything at or behind the physical offset `begin`: what lies before the
    log's start is what a drop hasn't removed yet, and may be gone at any moment."""
    return tuple(each for each in segments if each.base + (segment_size or each.size) > begin)


def _positions(
    position: Position | None,
    commitlog: str,
    files: tuple[tuple[SegmentFile, ...], int | None],
    checkpoint: CheckpointState | None,
    begin: tuple[int, int],
) -> tuple[tuple[int, int, int | None], int]:
    """`(settled, settled_index, astray), end`.

    Args:
        files: the segments, and their size.
        begin: where the log begins, and the index of the entry before its first, or 0.
    """
    segments, segment_size = files
    if position is not None:
        return (position.committed, position.index, None), position.committed
    if checkpoint is None:
        end = max(begin[0], _walked_end(commitlog, segments, segment_size))
        return (segments[0].base if segments else 0, 0, None), end
    settled, astray = begin, None
    if checkpoint.consume_queue_index > begin[1]:
        index = checkpoint.consume_queue_index
        settled, is_there = _place_behind(commitlog, segments, segment_size, index, begin)
        astray = None if is_there else settled[0]
    if settled[0] > checkpoint.watermark:
        settled = checkpoint.watermark, 0
    return (*settled, astray), checkpoint.watermark


def _place_behind(
    commitlog: str,
    segments: tuple[SegmentFile, ...],
    segment_size: int | None,
    index: int,
    begin: tuple[int, int],
) -> tuple[tuple[int, int], bool]:
    """Physical offset behind entry `index`, and that; and whether anything leads there.

    A header that has rotten leads nowhere: the next intact entry is searched for, and leads on.
    Else damage would end what is settled, and whoever reads up to there would never meet it. Where
    nothing does, it is the place where headers stop, and the entry before it; `begin` if none leads
    anywhere.
    """
    first = _last_that_begins(commitlog, segments, index)
    stopped = begin if first is None else None
    for segment in segments[first or 0 :]:
        try:
            with opened(os.path.join(commitlog, file_name(segment.base))) as descriptor:
                size = segment_size or segment.size
                place, here = place_within(descriptor, segment.base, size, index)
        except ObjectsUnreadable:
            raise
        except OSError:
            place, here = None, (segment.base, 0)
        if place is not None:
            return (place, index), True
        stopped = stopped or here
    return stopped or begin, False


def _last_that_begins(commitlog: str, segments: tuple[SegmentFile, ...], index: int) -> int | None:
    """The number of the last segment that says that it begins with entry `index` or before."""
    for number in reversed(range(len(segments))):
        try:
            path = os.path.join(commitlog, file_name(segments[number].base))
            with opened(path) as descriptor:
                if parse_header(read_at(descriptor, HEADER_SIZE, 0), 0).index <= index:
                    return number
        except ObjectsUnreadable:
            raise
        except (InvalidFrame, OSError):
            continue
    return None


def _walked_end(commitlog: str, segments: tuple[SegmentFile, ...], segment_size: int | None) -> int:
    """Where the last segment that holds anything ends; behind all of it if it ends in garbage, or
    if anything lies behind the zeros that it seems to end with: then they are a hole."""
    for segment in reversed(segments):
        try:
            with opened(os.path.join(commitlog, file_name(segment.base))) as descriptor:
                at, last, reason = walk_headers(descriptor, segment.base, segment.size)
                is_end = reason == "zeros" and is_blank(descriptor, at)
        except ObjectsUnreadable:
            raise
        except OSError:
            continue
        if is_end and last is None and segment is not segments[0]:
            continue  # Preallocated, nothing in it yet.
        if is_end:
            return segment.base + at
        return segment.base + (segment_size or segment.size)
    return 0


def _consume_queues(root: str) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    """`(topic, queue id)` of every queue folder, and the folders that can't be listed; of those
    that are only there until they are removed none."""
    found: list[tuple[str, int]] = []
    unlisted: list[str] = []
    for topic in _listed(root, unlisted):
        inner = os.path.join(root, topic)
        if is_folder(inner) and not DELETED_FOLDER.fullmatch(topic):
            names = _listed(inner, unlisted)
            found += [(topic, int(name)) for name in names if _QUEUE.fullmatch(name)]
    return tuple(sorted(found)), tuple(unlisted)


def _listed(folder: str, unlisted: list[str]) -> list[str]:
    """What lies in it; nothing if it isn't there, or no folder. It is added to `unlisted` where
    nobody can say.

    Raises:
        ObjectsUnreadable: the store that holds it doesn't answer.
    """
    try:
        return names_in(folder)
    except ObjectsUnreadable:
        raise
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unlisted.append(f"{folder}: {error.strerror or error}")
        return []
