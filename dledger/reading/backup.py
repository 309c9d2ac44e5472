"""What a backup says of itself: whose log it is, and up to where it counts.

Values and bytes only. Who writes them, and when, is `store.backup`; who reads a log that belongs to
somebody else needs to know from them where it ends. All that lies before is committed, and what
lies behind means nothing (docs/adr/0046-backups-are-logs.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

from dledger.reading.errors import ObjectsUnreadable
from dledger.reading.files import opened, read_at
from dledger.reading.sealed import unsealed
from dledger.reading.sizes import MAX_OFFSET, possible_size
from dledger.records.errors import InvalidFrame

FILE: Final = "backup.json"
_FORMAT: Final = "dledger-backup/1"
_MAX_BYTES: Final = 64 << 10
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


def fields_of(backup: Backup) -> dict[str, object]:
    """What stands for it in `backup.json`, beside the seal."""
    return {"format": _FORMAT, **asdict(backup), "last_digest": f"{backup.last_digest:016x}"}


def backup_of(stored: Mapping[str, object]) -> Backup:
    """The inverse of `fields_of`.

    Raises:
        InvalidFrame: they stand for none, or no log is like that.
    """
    named = dict(stored)
    if named.pop("format", None) != _FORMAT:
        raise InvalidFrame(0, "format", _FORMAT, "another format")
    try:
        named["last_digest"] = int(str(named["last_digest"]), 16)
        backup = Backup(**{each.name: named.pop(each.name) for each in fields(Backup)})  # type: ignore[arg-type]
    except (KeyError, ValueError) as error:
        raise InvalidFrame(0, "fields", "what a backup is", error) from error
    if named or not _is_possible(backup):
        raise InvalidFrame(0, "fields", "what a backup can be", backup)
    return backup


def backup_noted(data: str) -> Backup | None:
    """What the folder says of itself; None where nothing does.

    Raises:
        InvalidFrame: that stands for no backup.
        ObjectsUnreadable: a store that holds the folder doesn't answer.
        OSError: it can't be read.
    """
    try:
        with opened(os.path.join(data, FILE)) as descriptor:
            content = read_at(descriptor, _MAX_BYTES, 0)
    except ObjectsUnreadable:
        raise
    except (FileNotFoundError, NotADirectoryError):
        return None
    return backup_of(unsealed(content))


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
