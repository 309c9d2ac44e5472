"""Which level of formats and commands a log in a directory uses, before there is a state machine.

A node has it from its state. Who makes a directory of a backup, or judges one, asks here whether
this program could go on with it at all (docs/adr/0023-levels.md). Nothing is changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from dledger.level import FIRST_LEVEL, KNOWN_LEVEL
from dledger.reading.entry import HEADER_SIZE, EntryKind, parse_header
from dledger.reading.levels import level_behind, level_in
from dledger.reading.log_start import FROM_THE_FIRST, LogStart
from dledger.records.errors import InvalidFrame
from dledger.wire.commands_pb2 import Command
from store.commitlog import CommitLog
from store.errors import BackupUnusable, CorruptionFound
from store.files import FileSystem
from store.snapshot_files import SnapshotFiles
from store.starting.errors import BaseUnknown

SLICE_BYTES: Final = 4 << 20


def check_base_known(files: SnapshotFiles, log: CommitLog) -> None:
    """The state as of the entry before the log's first, which is there, is of no level above the
    one that this program knows: no node of this program starts on it (ADR 23).

    Raises:
        BaseUnknown: it is of one.
    """
    if not log.start.index:
        return
    try:
        with files.opened(log.start.index) as (_, chunks):
            level = level_in(chunks)
    except InvalidFrame:
        return  # whatever else is wrong with the state is the state machine's to say
    if level > KNOWN_LEVEL:
        why = f"the group uses level {level}, and this program knows level {KNOWN_LEVEL}"
        raise BaseUnknown(str(files.path(log.start.index)), log.first_index, why)


def level_of_backup(files: FileSystem, folder: Path, start: LogStart) -> int:
    """The level in use where the backup's log begins.

    Raises:
        BackupUnusable: the state as of there isn't there, or says none, or one that isn't known.
    """
    if start == FROM_THE_FIRST:
        return FIRST_LEVEL
    try:
        with SnapshotFiles(folder, files).opened(start.index) as (_, chunks):
            level = level_in(chunks)
    except (InvalidFrame, CorruptionFound, FileNotFoundError) as error:
        raise BackupUnusable(f"{folder}: the snapshot as of {start.index}: {error}") from error
    check_known(folder, level)
    return level


def check_known(folder: Path, level: int) -> None:
    """Raises: BackupUnusable: this program doesn't know the level that the backup uses."""
    if level > KNOWN_LEVEL:
        raise BackupUnusable(
            f"{folder} is of a group that used level {level} of formats and commands, and this "
            f"program knows level {KNOWN_LEVEL}: restore it with the release that the group ran"
        )


def level_at_end(log: CommitLog, level: int) -> int:
    """The level in use where the log ends, which has `level` where it begins. Reads all of it, or
    until one that isn't known.

    Raises:
        CorruptionFound: an entry isn't what was written.
    """
    first, end = log.first_index, log.last_index
    while first <= end and level <= KNOWN_LEVEL:
        last = log.last_that_fits(first, end, SLICE_BYTES) if first < end else end
        level = _level_behind(log.read(first, last), level)
        first = last + 1
    return level


def _level_behind(frames: bytes, level: int) -> int:
    at = 0
    while at < len(frames):
        header = parse_header(frames, at)
        if header.kind == EntryKind.COMMAND and header.is_known:
            level = _raised(frames[at + HEADER_SIZE : at + header.total_size], level)
        at += header.total_size
    return level


def _raised(body: bytes, level: int) -> int:
    try:
        command = Command.FromString(body)
    except DecodeError:
        return level
    if command.WhichOneof("body") != "raise_level":
        return level
    return level_behind(level, command.raise_level.level) or level
