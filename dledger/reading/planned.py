"""Ranges that are planned on one machine and read on another: whether it is the same log there.

Replicas of several hosts lie at one path as a rule, and a cluster gives a task to whoever is free.
What a task finds at the path may be another replica's, which isn't as far, or whose end is another
leader's and will be cut off: in order by itself, so that its entries say nothing of it. The running
digest of a range's last entry does (ADR 6): where it is the same, so is everything before. It is
looked at before the range's first message is given to anybody, as who asks for a few messages never
reads to the end.

Sizes alone are followed, which is quick: where they lead astray, the digest is another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from dledger.reading.chunks import LogRange
from dledger.reading.entry import (
    ENTRY_MAGIC,
    FILLER_HEADER,
    FILLER_HEADER_SIZE,
    FILLER_MAGIC,
    HEADER_SIZE,
    EntryHeader,
    parse_header,
)
from dledger.reading.errors import EntryDamaged, OtherReplica
from dledger.reading.files import opened, read_at
from dledger.reading.objects import is_object
from dledger.records.errors import InvalidFrame

_WINDOW_BYTES: Final = 256 << 10
_LARGE_BYTES: Final = 16 << 10


def planned(parts: Iterable[LogRange]) -> list[LogRange]:
    """The ranges, with the digests of their last entries; without those that hold no entries, of
    which nothing tells whether they are the same elsewhere, and nothing is to be read. What lies in
    an object store is the same for everybody, and isn't fetched for that.

    Raises:
        EntryDamaged: sizes don't lead through one of them.
        OSError: one can't be read.
    """
    found: list[LogRange] = []
    for part in parts:
        if is_object(part.path):
            found.append(part)
        elif (last := _last_in(part)) is not None:
            found.append(replace(part, digest=last.digest))
    return found


def check_planned(part: LogRange) -> None:
    """What is to be read here is what was planned.

    Raises:
        OtherReplica: it isn't, or is damaged.
        OSError: it can't be read.
    """
    if part.digest is None:
        return
    try:
        last = _last_in(part)
    except EntryDamaged:
        last = None
    if last is None or last.digest != part.digest:
        raise OtherReplica(part.path, part.end - part.base, os.uname().nodename)


def _last_in(part: LogRange) -> EntryHeader | None:
    """The header of the range's last entry, as far as sizes lead, to its end or to a filler; None
    if it has none.

    Raises:
        EntryDamaged: they lead to neither.
        OSError: the file can't be read.
    """
    at, end = part.start - part.base, part.end - part.base
    window, window_at, last, size = b"", 0, -1, 0
    with opened(part.path) as descriptor:
        while at < end:
            if at + FILLER_HEADER_SIZE > window_at + len(window):
                # Of large entries there is one header in a window at most.
                wanted = HEADER_SIZE if size >= _LARGE_BYTES else _WINDOW_BYTES
                window, window_at = read_at(descriptor, wanted, at), at
                if len(window) < FILLER_HEADER_SIZE:
                    raise EntryDamaged(part.path, at, "an entry", "the file's end")
            size, magic = FILLER_HEADER.unpack_from(window, at - window_at)
            if magic == FILLER_MAGIC:
                break
            if magic != ENTRY_MAGIC or not HEADER_SIZE <= size <= end - at:
                expected = f"an entry of {end - at} bytes at most"
                raise EntryDamaged(part.path, at, expected, f"{size} bytes, magic {magic:08x}")
            at, last = at + size, at
        return None if last < 0 else _header_at(descriptor, part, last)


def _header_at(descriptor: int, part: LogRange, at: int) -> EntryHeader:
    try:
        return parse_header(read_at(descriptor, HEADER_SIZE, at), 0)
    except InvalidFrame as error:
        expected = f"an entry with {error.field} {error.expected}"
        raise EntryDamaged(part.path, at, expected, error.found) from error
