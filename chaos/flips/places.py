"""What lies in a member's directory, by kind, and one bit of it.

A kind is what a file is for; the layout of the directory (docs/formats.md) says which. Of the log
and of ConsumeQueues there are several: what has been written, the space ahead of it, where a bit
means nothing until something is written over it, and units of messages that are retired, which
nobody may ask for. So it is with `….spare`, `LOCK` and `abort`, whose presence counts and whose
content doesn't.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from random import Random
from typing import Final

from dledger.records.layout import FILE_GLOB, FILE_NAME, UNIT

LOG: Final = "log"
QUEUES: Final = "consumequeue"
AHEAD: Final = " ahead"  # of what has been written
RETIRED: Final = " retired"  # units of what the log no longer holds
MEANINGLESS: Final = frozenset(
    {f"{LOG}{AHEAD}", f"{QUEUES}{AHEAD}", f"{QUEUES}{RETIRED}", "spare", "LOCK", "abort"}
)
WEIGHTS: Final = {LOG: 6, QUEUES: 3}  # most of what a disk holds; any other kind: 1
UNFINISHED: Final = ".tmp"
_OFFSET: Final = UNIT.struct("physical_offset")


class Fate(Enum):
    """What became of a flipped byte."""

    STILL = auto()  # it is what it was made
    BACK = auto()  # it is what it was before
    ANEW = auto()  # another file has the name, or another byte is there
    GONE = auto()  # no file has the name, or it is shorter


@dataclass(frozen=True, slots=True)
class Place:
    """One bit of a file, which exists."""

    kind: str
    file: Path
    at: int
    bit: int

    def flip(self) -> Flip:
        """It is the other one.

        Raises:
            OSError: the file is gone, or shorter.
        """
        descriptor = os.open(self.file, os.O_RDWR)
        try:
            before = os.pread(descriptor, 1, self.at)
            if not before:
                raise OSError(f"{self.file} is shorter than {self.at} bytes")
            os.pwrite(descriptor, bytes((before[0] ^ 1 << self.bit,)), self.at)
            return Flip(self, before[0], os.fstat(descriptor).st_ino)
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Flip:
    """A bit that was flipped; `before` is its byte, `inode` its file."""

    place: Place
    before: int
    inode: int

    def fate(self) -> Fate:
        """As of now."""
        try:
            with self.place.file.open("rb", buffering=0) as file:
                inode = os.fstat(file.fileno()).st_ino
                found = os.pread(file.fileno(), 1, self.place.at)
        except FileNotFoundError:
            return Fate.GONE
        if not found:
            return Fate.GONE
        if found[0] == self.before ^ 1 << self.place.bit:
            return Fate.STILL if inode == self.inode else Fate.ANEW
        is_same = found[0] == self.before and inode == self.inode
        return Fate.BACK if is_same else Fate.ANEW

    def undo(self) -> None:
        """The byte is what it was, if it is still flipped."""
        if self.fate() is Fate.STILL:
            self.place.flip()


def draw(directory: Path, log_end: int, chance: Random, only: Collection[str] = ()) -> Place | None:
    """A bit of a member's directory: of a random kind, of a random file of it; None: there is none
    of those kinds.

    Args:
        log_end: the physical offset behind its last entry.
        only: of these kinds; none: of all.
    """
    by_kind = spans(directory, log_end)
    kinds = sorted(kind for kind in by_kind if not only or kind in only)
    if not kinds:
        return None
    (kind,) = chance.choices(kinds, [WEIGHTS.get(kind, 1) for kind in kinds])
    file, span = chance.choice(sorted(by_kind[kind], key=str))
    return Place(kind, file, chance.choice(span), chance.randrange(8))


def spans(directory: Path, log_end: int) -> dict[str, list[tuple[Path, range]]]:
    """Files with bytes in them, and which bytes, by kind."""
    found: dict[str, list[tuple[Path, range]]] = defaultdict(list)
    log_start = start_of_log(directory)
    for path in directory.rglob("*"):
        if not path.is_file() or path.suffix == UNFINISHED:
            continue
        size = path.stat().st_size
        kind, begin, written = _kind(path.relative_to(directory)), 0, size
        if kind == LOG:
            written = min(size, max(0, log_end - int(path.name)))
        elif kind == QUEUES:
            begin, written = written_units(path.read_bytes(), log_start)
        for name, span in (
            (f"{kind}{RETIRED}", range(begin)),
            (kind, range(begin, written)),
            (f"{kind}{AHEAD}", range(written, size)),
        ):
            if span:
                found[name].append((path, span))
    return dict(found)


def start_of_log(directory: Path) -> int:
    """The physical offset with which the member's log begins."""
    return min((int(path.name) for path in (directory / "commitlog").glob(FILE_GLOB)), default=0)


def written_units(content: bytes, log_start: int) -> tuple[int, int]:
    """Of a ConsumeQueue's file: bytes `[begin, end)` of the units whose messages the log holds."""
    size = UNIT.size
    count = -(-len(content.rstrip(b"\0")) // size)
    begin = bisect_left(
        range(count), log_start, key=lambda at: _OFFSET.unpack_from(content, at * size)[0]
    )
    return begin * size, count * size


def _kind(inner: Path) -> str:
    """What the file is for, by its path within the directory."""
    if inner.suffix == ".spare":
        return "spare"
    if inner.parts[0] == "commitlog":
        return LOG
    if FILE_NAME.fullmatch(inner.stem):
        return inner.parts[0] + inner.suffix  # a second copy has a suffix
    return inner.name
