"""What tells that a segment's file is the same as it was: size, times, inode, device, and the boot.

Taken beside the files, before and after they are read. A modification time can be set to anything;
the change time can't be, but by who sets the clock. It moves with every write, every rename of most
file systems, and every `touch`. After the machine was started again nothing is the same: what a
disk's cache had not yet written may be gone while the times are there.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from audit.engines.engine import Engine
from audit.reading.replica import Replica
from dledger.reading.survey import commitlog_of, is_foreign
from dledger.records.layout import FILE_NAME

_BOOT: Final = "/proc/sys/kernel/random/boot_id"

Place = tuple[str, int]  # replica, and physical offset of the segment's first byte


class FileStamp(NamedTuple):
    """Of one file, at one moment."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int
    boot: str

    @property
    def file(self) -> str:
        """Which file it is, as `dledger.reading.files.name_of_file` says it."""
        return f"{self.boot}:{self.device}:{self.inode}"


@dataclass(frozen=True, slots=True)
class StampTask:
    """Look at the segments of one replica."""

    replica: Replica

    @property
    def host(self) -> str | None:
        return self.replica.host

    @property
    def weight(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Stamps:
    """The stamps of a replica's segments, by base. `taken_ns`: the clock of the machine that they
    lie on before the first of them was taken."""

    replica: str
    taken_ns: int
    files: tuple[tuple[int, FileStamp], ...]


def stamp_files(task: StampTask) -> Stamps:
    """What is there; nothing of a replica whose files aren't read."""
    replica, taken = task.replica, time.time_ns()
    if replica.silence or replica.address is not None:
        return Stamps(replica.id, taken, ())
    folder, boot = commitlog_of(replica.path), _boot()
    found = []
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        names = []
    for name in names if boot else ():
        if FILE_NAME.fullmatch(name) and not is_foreign(name):
            stamp = _stamp(os.path.join(folder, name), boot)
            if stamp is not None:
                found.append((int(name), stamp))
    return Stamps(replica.id, taken, tuple(found))


def stamped(replicas: Sequence[Replica], engine: Engine) -> list[Stamps]:
    """The stamps of all replicas, taken where they lie."""
    return engine.run(stamp_files, [StampTask(each) for each in replicas])


def _stamp(path: str, boot: str) -> FileStamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return FileStamp(
        found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev, boot
    )


def _boot() -> str:
    """Which start of the machine this is; empty where it can't be told, and then there are no
    stamps."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""
