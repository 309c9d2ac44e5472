"""What a backup says of itself: whose log it is, and up to where it counts.

A backup is a folder: `commitlog/`, segments as a member has them; where the log begins later than
entry 1, `log_start` and `snapshot/`; `checkpoint`; and `backup.json`, which this owns and which is
written last. Bytes behind its `end_offset` are those of a backup that
was interrupted, and mean nothing (docs/adr/0046-backups-are-logs.md).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from dledger.reading.survey import MAX_OFFSET, possible_size
from store.directory import read_sealed, write_sealed
from store.errors import CorruptionFound
from store.files import FileSystem

FILE: Final = "backup.json"
COMMITLOG: Final = "commitlog"
_FORMAT: Final = "dledger-backup/1"
_MAX_DIGEST: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Backup:
    """A broker group's log from entry `first_index` through `last_index`.

    Attributes:
        first_index: 1, or the one behind what `log_start` and the snapshot there stand for.
        node_id: whose copy most of the bytes are.
        last_digest: the log's running digest there.
        end_offset: physical offset behind that entry.
        taken_ms: when it was found to be right, ms since the epoch, by the clock of who took it.
    """

    broker_group: str
    node_id: str
    segment_size_bytes: int
    first_index: int
    last_index: int
    last_term: int
    last_digest: int
    end_offset: int
    taken_ms: int


def write_backup(files: FileSystem, folder: Path, backup: Backup) -> None:
    """`backup.json` says so, durably."""
    stored = {**asdict(backup), "last_digest": f"{backup.last_digest:016x}"}
    write_sealed(files, folder / FILE, {"format": _FORMAT, **stored})


def read_backup(files: FileSystem, folder: Path) -> Backup | None:
    """What the folder says of itself; None where nothing does.

    Raises:
        CorruptionFound: that can't be read, or no log is like that.
    """
    file = folder / FILE
    if not files.exists(file):
        return None
    stored = read_sealed(files, file)
    if stored.pop("format", None) != _FORMAT:
        raise CorruptionFound(str(file), 0, _FORMAT, "another format")
    try:
        named = {**stored, "last_digest": int(str(stored["last_digest"]), 16)}
        backup = Backup(**{each.name: named.pop(each.name) for each in fields(Backup)})  # type: ignore[arg-type]
    except (KeyError, ValueError) as error:
        raise CorruptionFound(str(file), 0, "what a backup is", error) from error
    if named or not _is_possible(backup):
        raise CorruptionFound(str(file), 0, "what a backup can be", backup)
    return backup


def _is_possible(backup: Backup) -> bool:
    words = (backup.broker_group, backup.node_id)
    numbers = (
        (backup.first_index, MAX_OFFSET),
        (backup.last_index, MAX_OFFSET),
        (backup.last_term, MAX_OFFSET),
        (backup.end_offset, MAX_OFFSET),
        (backup.taken_ms, MAX_OFFSET),
        (backup.last_digest, _MAX_DIGEST),
        (backup.segment_size_bytes, MAX_OFFSET),
    )
    return (
        all(isinstance(word, str) and word for word in words)
        and all(type(number) is int and 0 <= number <= most for number, most in numbers)
        and possible_size(backup.segment_size_bytes) is not None
        and backup.first_index <= backup.last_index
        and min(backup.first_index, backup.last_term, backup.end_offset) > 0
    )
