"""Places in a log that a reader goes on from, and whether a log is the one that they were taken of.

A byte position says nothing of whose it is: a directory may hold another log by now, or one that
ended earlier and was written on since. Each entry carries the running digest of all before it
(ADR 6), so the digest in front of a place tells that a log is the same up to there. It is compared
with what follows the place, which is one entry to read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from dledger.reading.entry import (
    FILLER_HEADER,
    FILLER_HEADER_SIZE,
    FILLER_MAGIC,
    HEADER_SIZE,
    EntryHeader,
    blank_filler,
    digest_of,
    parse_header,
    verify_frame,
)
from dledger.reading.errors import OtherLog
from dledger.reading.files import opened, read_at
from dledger.reading.headers import walk_headers
from dledger.reading.survey import Survey
from dledger.records.errors import InvalidFrame
from dledger.records.layout import file_name

_OFFSET: Final = "offset"
_GROUP: Final = "broker_group"
_DIGEST: Final = "digest"
_OR: Final = "or it is damaged there (`dledger audit replicas` tells)"


@dataclass(frozen=True, slots=True)
class Place:
    """A physical offset between entries.

    Attributes:
        broker_group: whose log it is in; empty: nobody said.
        digest: of the entry that ends there; None: nobody said.
    """

    offset: int
    broker_group: str = ""
    digest: int | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """The place that `told` says; the release before said its offset alone."""
        digest = told.get(_DIGEST)
        group = str(told.get(_GROUP) or "")
        return cls(int(told[_OFFSET]), group, None if digest is None else int(digest))

    def told(self) -> dict[str, Any]:
        """Plain values that stand for it, always the same."""
        found: dict[str, Any] = {_OFFSET: self.offset}
        if self.broker_group:
            found[_GROUP] = self.broker_group
        if self.digest is not None:
            found[_DIGEST] = self.digest
        return found


def first_place(log: Survey) -> Place:
    """Where the log begins."""
    digest = log.start.digest if log.start is not None else None
    return Place(log.retained_from, log.broker_group or "", digest)


def gone_to(log: Survey) -> int:
    """Behind the last entry that has gone, which is in front of where the log begins by what fills
    its segment up: whoever has read to there misses nothing."""
    start, size = log.start, log.segment_size
    if start is None or not size or start.offset(size) != log.retained_from:
        return log.retained_from
    return start.end_offset


def fills_up(descriptor: int, at: int, size: int) -> bool:
    """Whether nothing but what fills the segment of `size` bytes up lies behind byte `at` of it.

    Raises:
        OSError: it can't be read.
    """
    return at == size or read_at(descriptor, FILLER_HEADER_SIZE, at) == blank_filler(size - at)


def ends_segment(log: Survey, at: int) -> bool:
    """Whether no entry of its segment lies behind the physical offset `at`, at which one ends: it
    may go from then on.

    Raises:
        OSError: the segment can't be read.
    """
    size = log.segment_size or 0
    base = (at - 1) - (at - 1) % size
    with opened(os.path.join(log.commitlog, file_name(base))) as descriptor:
        return fills_up(descriptor, at - base, size)


def place_behind(log: Survey, start: Place, end: int) -> Place:
    """The place at `end`, which lies behind `start` in the same log. Without a digest where the
    segment is missing, or is damaged: whoever reads there is told so.

    Raises:
        OSError: the segment can't be read.
    """
    if end <= start.offset or not log.segment_size:
        return start
    place = Place(end, log.broker_group or start.broker_group)
    leads_there, last = _last_before(log, start.offset, end)
    if not leads_there:
        return place
    return replace(place, digest=start.digest if last is None else last.digest)


def checked_digest(log: Survey, end: int) -> int | None:
    """The digest in front of `end`, which lies in the log, by an entry that is intact; None where
    it isn't, and where no headers lead there.

    Raises:
        OSError: the segment can't be read.
    """
    start = first_place(log)
    if end <= start.offset or not log.segment_size:
        return start.digest
    leads_there, last = _last_before(log, start.offset, end)
    if not leads_there or last is None:
        return start.digest if leads_there else None
    base = last.physical_offset - last.physical_offset % log.segment_size
    with opened(os.path.join(log.commitlog, file_name(base))) as descriptor:
        return last.digest if _is_intact(descriptor, last, base) else None


def lies_across(log: Survey, end: int) -> bool:
    """Whether an intact entry of the log begins before `end` and ends behind it, or what fills its
    segment up behind one: whoever has an entry that ends there has another log.

    Raises:
        OSError: the segment can't be read.
    """
    start, size = first_place(log).offset, log.segment_size or 0
    base = end - end % size if size else 0
    if end <= start or all(each.base != base for each in log.segments):
        return False
    with opened(os.path.join(log.commitlog, file_name(base))) as descriptor:
        at, last, reason = walk_headers(descriptor, base, end - base, start=max(start - base, 0))
        if base + at >= end:
            return False
        if reason == "filler":
            begins_there = last is not None and _is_intact(descriptor, last, base)
            return begins_there and fills_up(descriptor, at, size)
        try:
            header = parse_header(read_at(descriptor, HEADER_SIZE, at), 0)
        except InvalidFrame:
            return False
        is_its_own = header.physical_offset == base + at and at + header.total_size <= size
        is_across = is_its_own and base + at + header.total_size > end
        return is_across and _is_intact(descriptor, header, base)


def _last_before(log: Survey, start: int, end: int) -> tuple[bool, EntryHeader | None]:
    """Whether headers lead to `end`, in its segment, and the last of them; none if no entry lies
    behind `start` in it.

    Raises:
        OSError: the segment can't be read.
    """
    size = log.segment_size or 0
    base = (end - 1) - (end - 1) % size
    if all(each.base != base for each in log.segments):
        return False, None
    with opened(os.path.join(log.commitlog, file_name(base))) as descriptor:
        first = max(start - base, 0)
        at, last, reason = walk_headers(descriptor, base, end - base, start=first)
    return base + at == end or (reason == "filler" and not end % size), last


def check_same_log(log: Survey, place: Place) -> None:
    """The log is the one that the place was taken of, as far as that can be told by now.

    Raises:
        OtherLog: it isn't, or is damaged there.
        OSError: a segment can't be read.
    """
    ours, theirs = log.broker_group or "", place.broker_group
    if ours and theirs and ours != theirs:
        reason = f"it is of broker group {ours!r}, and that was of {theirs!r}"
        raise OtherLog(log.commitlog, place.offset, reason)
    if place.digest is None or not gone_to(log) <= place.offset < log.settled:
        return
    if place.offset < log.retained_from:
        if place.digest != first_place(log).digest or place.offset != gone_to(log):
            reason = f"what had gone ended at byte {gone_to(log)}, and not as what was read"
            raise OtherLog(log.commitlog, place.offset, reason)
        return
    if not _continues(log, place.offset, place.digest):
        raise OtherLog(log.commitlog, place.offset, f"what lies there doesn't follow it; {_OR}")


def check_same_range(log: Survey, start: Place, end: Place) -> None:
    """As `check_same_log`, of both places, and the log has at the second what it had when that was
    taken."""
    check_same_log(log, start)
    check_same_log(log, end)
    if end.offset <= start.offset:  # what was read has gone: nothing is left to compare it with
        return
    found = place_behind(log, start, end.offset)
    if None not in (end.digest, found.digest) and end.digest != found.digest:
        raise OtherLog(log.commitlog, end.offset, f"what lies before isn't what was read; {_OR}")


def _continues(log: Survey, at: int, digest: int) -> bool:
    """Whether the entry at `at`, or behind what fills its segment up, follows `digest`. Where there
    is no segment it does: whoever reads there is told so."""
    size = log.segment_size or 0
    while at < log.settled:
        base = at - at % size
        if all(each.base != base for each in log.segments):
            return True
        with opened(os.path.join(log.commitlog, file_name(base))) as descriptor:
            head = read_at(descriptor, HEADER_SIZE, at - base)
            if _is_filler(head):
                at = base + size
                continue
            try:
                header = parse_header(head, 0)
            except InvalidFrame:
                return False
            frame = read_at(descriptor, min(header.total_size, size), at - base)
        if len(frame) != header.total_size or header.physical_offset != at:
            return False
        return digest_of(frame, 0, len(frame), digest) == header.digest
    return True


def _is_intact(descriptor: int, header: EntryHeader, base: int) -> bool:
    """Whether the entry of that header is as written, in the segment that begins at `base`."""
    frame = read_at(descriptor, header.total_size, header.physical_offset - base)
    try:
        return verify_frame(frame, 0, None) == header
    except InvalidFrame:
        return False


def _is_filler(head: bytes) -> bool:
    if len(head) < FILLER_HEADER_SIZE:
        return False
    _, magic = FILLER_HEADER.unpack_from(head, 0)
    return bool(magic == FILLER_MAGIC)
