"""The members of the group that is backed up: who they are, and what they say of their logs, held
against the copy.

Only who is a member by the group's log, on the disk that this names (`audit.reading.membership`),
counts as an answer, and is copied from: a stranger's longer log would be the one that is wanted,
and its answer stand for the member's whose id it has.

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


def members_of(found: Sequence[Replica]) -> tuple[list[Replica], tuple[str, ...]]:
    """Those that answer and count, and the names of those that don't."""
    members = [each for each in found if each.is_member]
    # One that is out of service has another log than a majority: it counts as nobody.
    silent = tuple(
        each.id
        for each in members
        if each.address is None or each.silence or each.standing or _has_no_log(each)
    )
    return [each for each in members if each.id not in silent], silent


def remarks_on(found: Sequence[Replica]) -> tuple[str, ...]:
    """What is to be told of those that don't count, in words."""
    return tuple(
        each.silence or each.standing or _remark_on(each)
        for each in found
        if each.silence or each.standing or not each.is_member or _has_no_log(each)
    )


def _remark_on(replica: Replica) -> str:
    if not replica.is_member:
        return f"{replica.id} is no member by the group's log: nothing of it was asked"
    return f"{replica.id} says nothing of its log, as one that refills it"


def _has_no_log(replica: Replica) -> bool:
    """Whether a node that answers says nothing of its log, as while it gets back what a start has
    found rotten: not even where it begins."""
    told = replica.position
    return told is not None and not (told.index or told.committed or told.first_index)


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
