"""Files and directories of a simulated disk: what is seen, what the platter holds, what lies
between.

This owns bytes and names only; faults and latency are `chaos.sim.disk`'s. A file is sparse: bytes
behind the last one written read as zeros and take no memory. What is in a directory belongs to
it and not to its name, so it moves along when that changes.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from copy import deepcopy
from random import Random

PAGE_BYTES = 4096
SECTOR_BYTES = 512


def _sectors(start: int, end: int) -> range:
    return range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))


class LostSector(OSError):
    """What is asked for can't be read: that is rot, which somebody has done to the disk."""


class SimulatedFile:
    """A file. `unsynced` lists writes as (offset, bytes), a new size as (-1, size)."""

    __slots__ = (
        "allocated",
        "content",
        "durable",
        "durable_size",
        "is_told",
        "losses",
        "lost",
        "size",
        "unsynced",
    )

    def __init__(self) -> None:
        self.content = bytearray()
        self.size = 0
        self.allocated = 0  # by fallocate, bytes
        self.durable = bytearray()
        self.durable_size = 0
        self.unsynced: list[tuple[int, bytes | int]] = []
        self.lost: set[int] = set()  # sectors that can't be read until they are written, whole
        self.losses = 0  # how often what was written got lost on its way to the platter
        self.is_told = True  # whether somebody has been told of the last time

    def __deepcopy__(self, memo: dict[int, object]) -> SimulatedFile:
        """Written out: disks are copied by the thousand, and most bytes of a file are one piece."""
        other = SimulatedFile()
        other.content = bytearray(self.content)
        is_one = self.durable is self.content
        other.durable = other.content if is_one else bytearray(self.durable)
        other.size, other.allocated = self.size, self.allocated
        other.durable_size = self.durable_size
        other.unsynced = list(self.unsynced)
        other.lost = set(self.lost)
        other.losses, other.is_told = self.losses, self.is_told
        return other

    def used_bytes(self) -> int:
        """What the file takes of the disk."""
        return max(self.allocated, len(self.content))

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the file's end."""
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        if self.lost and self.lost & set(_sectors(offset, end)):
            raise LostSector(errno.EIO, "a sector is lost")
        found = bytes(self.content[offset:end])
        return found if len(found) == end - offset else found.ljust(end - offset, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        """`data` is in the page cache. A sector of which some is to stay has to be read first."""
        end = offset + len(data)
        for sector in self.lost & set(_sectors(offset, end)) if self.lost else ():
            if not offset <= sector * SECTOR_BYTES <= (sector + 1) * SECTOR_BYTES <= end:
                raise LostSector(errno.EIO, "a sector is lost")
            self.lost.discard(sector)
        write_into(self.content, offset, data)
        self.size = max(self.size, offset + len(data))
        self.unsynced.append((offset, data))

    def resize(self, size: int) -> None:
        """The file has `size` bytes; new ones are zeros."""
        del self.content[size:]
        self.size = size
        self.unsynced.append((-1, size))

    def sync(self) -> None:
        """What was written is on the platter."""
        for offset, data in self.unsynced:
            self._persist(offset, data)
        self.unsynced.clear()

    def lose_writes(self) -> None:
        """What wasn't synced never reaches the platter, and is called clean."""
        self.unsynced.clear()
        self.losses += 1
        self.is_told = False

    @property
    def losses_seen(self) -> int:
        """How many of them who opens the file now isn't told of: one that nobody has been told of
        yet is told to who comes later, too, as Linux does (errseq)."""
        return self.losses if self.is_told else self.losses - 1

    def lose(self, chance: Random) -> None:
        """A power cut: of what was not synced, each page is kept, torn or lost by itself."""
        for offset, data in self.unsynced:
            if isinstance(data, int):
                if chance.random() < 0.5:
                    self._persist(offset, data)
                continue
            for at, piece in _pages(offset, data):
                fate = chance.choice(("lost", "kept", "torn"))
                if fate == "torn":
                    piece = _torn(at, piece, chance)
                if fate != "lost" and piece:
                    self._persist(at, piece)
        self.unsynced.clear()
        self.content = bytearray(self.durable)
        self.size = self.durable_size
        sectors = -(-self.size // SECTOR_BYTES)  # space is given by the sector at least
        self.allocated = min(self.allocated, sectors * SECTOR_BYTES)

    def _persist(self, offset: int, data: bytes | int) -> None:
        if isinstance(data, int):
            del self.durable[data:]
            self.durable_size = data
            return
        write_into(self.durable, offset, data)
        self.durable_size = max(self.durable_size, offset + len(data))


class Directory:
    """A directory. `children` is what a look-up finds, `durable` what the platter has, `changes`
    the difference, one after the other: names and what they lead to, None to nothing."""

    __slots__ = ("changes", "children", "durable")

    def __init__(self) -> None:
        self.children: dict[str, Directory | SimulatedFile] = {}
        self.durable: dict[str, Directory | SimulatedFile] = {}
        self.changes: list[Mapping[str, Directory | SimulatedFile | None]] = []

    def __deepcopy__(self, memo: dict[int, object]) -> Directory:
        """`memo` keeps what has several names one."""
        other = Directory()
        other.children = {name: deepcopy(each, memo) for name, each in self.children.items()}
        other.durable = {name: deepcopy(each, memo) for name, each in self.durable.items()}
        other.changes = [
            {name: deepcopy(each, memo) for name, each in change.items()} for change in self.changes
        ]
        return other

    def change(self, names: Mapping[str, Directory | SimulatedFile | None]) -> None:
        """These names change at once."""
        _adopt(self.children, names)
        self.changes.append(names)

    def sync(self) -> None:
        """What the names lead to is on the platter; what is in directories below is not."""
        self.durable = dict(self.children)
        self.changes.clear()

    def lose(self, chance: Random) -> None:
        """A power cut: of the changes that were not synced a prefix survives, here and in what
        is still below."""
        for change in self.changes[: chance.randrange(len(self.changes) + 1)]:
            _adopt(self.durable, change)
        self.changes.clear()
        self.children = dict(self.durable)
        for name in sorted(self.children):
            child = self.children[name]
            if isinstance(child, Directory):
                child.lose(chance)

    def walk(self) -> Iterator[tuple[tuple[str, ...], SimulatedFile]]:
        """Every file below with the names that lead to it, in their order."""
        for name in sorted(self.children):
            child = self.children[name]
            if isinstance(child, Directory):
                for names, file in child.walk():
                    yield (name, *names), file
            else:
                yield (name,), child

    def differences(
        self, held: Directory | SimulatedFile | None
    ) -> Iterator[tuple[tuple[str, ...], SimulatedFile, bytes]]:
        """Every file below that the platter's `held`, which is looked for at the same place, has
        with other bytes or not at all: the names that lead to it, and the platter's bytes."""
        names_held = held.durable if isinstance(held, Directory) else {}
        for name, child in self.children.items():
            other = names_held.get(name)
            if isinstance(child, Directory):
                for names, file, durable in child.differences(other):
                    yield (name, *names), file, durable
            else:
                durable = bytes(other.durable) if isinstance(other, SimulatedFile) else b""
                if child.content != durable:
                    yield (name,), child, durable


def _adopt(
    names: dict[str, Directory | SimulatedFile],
    changes: Mapping[str, Directory | SimulatedFile | None],
) -> None:
    for name, child in changes.items():
        if child is None:
            names.pop(name, None)
        else:
            names[name] = child


def write_into(content: bytearray, offset: int, data: bytes) -> None:
    """`content` holds `data` at `offset`, zeros between its end and there."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _pages(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    """`data` cut where pages of the file begin."""
    pieces: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        size = PAGE_BYTES - (offset + at) % PAGE_BYTES
        pieces.append((offset + at, data[at : at + size]))
        at += size
    return pieces


def _torn(at: int, piece: bytes, chance: Random) -> bytes:
    kept = chance.randrange(len(piece) + 1)
    if at + kept < SECTOR_BYTES:
        return b""  # the first sector is written whole
    return piece[:kept]
