"""The members of the group that is backed up: what each says of its log, held against the copy.

The copy is proven by its own digests, which say that it is one log, and not whose. Each member that
answered knew an entry to be committed, and the running digest there, which covers all before: the
same digest in the copy is the same log up to there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from audit.errors import BackupRefused
from audit.reading.replica import Replica
from dledger.reading.files import opened
from dledger.reading.headers import walk_headers
from dledger.reading.survey import Position
from dledger.records.layout import file_name
from store.backup import COMMITLOG
from store.files import OsFiles
from store.log_start import StartNote


def check_members(folder: Path, segment_size: int, members: Sequence[Replica]) -> None:
    """What each member said of its log is so in the copy, which was verified.

    Raises:
        BackupRefused: one of them has another log, and nobody here knows whose is the group's.
    """
    start = StartNote(OsFiles(), folder).read()
    for member in members:
        told = member.position
        if told is None or not told.index or told.index < start.index:
            continue  # nothing of the copy
        own = (start.end_offset, start.digest)
        if told.index > start.index:
            own = _end_and_digest(folder / COMMITLOG, segment_size, told)
        if own != (told.committed, told.digest):
            raise BackupRefused(
                f"{member.id} says that entry {told.index} ends at byte {told.committed} with the "
                f"digest {told.digest:016x}, and in the copy it isn't so: it has another log. Find "
                "out whose is wrong with `dledger audit replicas`"
            )


def _end_and_digest(commitlog: Path, segment_size: int, told: Position) -> tuple[int, int]:
    """Where the entry ends in that log, and its digest, if it lies where it was told to; zeros if
    it doesn't."""
    base = (told.committed - 1) - (told.committed - 1) % segment_size
    path = commitlog / file_name(base)
    if not path.exists():
        return 0, 0
    with opened(str(path)) as descriptor:
        at, last, _ = walk_headers(descriptor, base, segment_size, stop_index=told.index)
    if last is None or last.index != told.index:
        return 0, 0
    return base + at, last.digest
