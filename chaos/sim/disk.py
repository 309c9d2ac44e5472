"""A disk in memory that forgets what was not synced, and fails when told to.

It implements `store.files.FileSystem` below the real store. A power cut keeps of each file what
was synced and, page by page as the random source decides, some later writes whole or torn at any
byte; of each directory the names as of its last fsync and some prefix of the later changes. A
failed fsync marks the pages clean, as ext4, XFS and Btrfs do (ATC'20): the bytes stay readable
and never reach the platter. A loss is told once to each who has the file open, at its next sync.
Files are sparse: what was never written costs nothing.

One promise of real disks is kept, as `store.checkpoint` builds on it: the first 512-byte sector
of a file is written whole or not at all.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from random import Random

from chaos.sim.disk_failures import SPACE, DiskFailures
from chaos.sim.files import SECTOR_BYTES, Directory, SimulatedFile, write_into
from chaos.sim.timeline import ActorDied
from store.files import Buffer, Handle

UNLIMITED = 1 << 50
LATENT_OPERATIONS = frozenset({"fdatasync", "fsync", "fsync_directory"})
READ_OPERATIONS = frozenset({"open", "pread", "pin", "unpin"})


class MachineDied(ActorDied):
    """The power went off in the middle of a disk operation."""


class SimulatedDisk:
    """One machine's disk.

    `latency_us` is asked for the duration of each sync; the sum since the last look is
    `take_latency`. `is_off` is true from a power cut to the next `power_on`.
    """

    def __init__(self, latency_us: Callable[[], int] = lambda: 0) -> None:
        self.capacity_bytes = UNLIMITED
        self.is_off = False
        self.keeps_cache = False  # what turned it off was the death of the process
        self.is_observed = False  # a check reads through the store: nothing may come of that
        self.operations = 0
        self.changes = 0  # operations after which something may be there that wasn't
        self.failures = DiskFailures()
        self.latency_us = latency_us
        self._cut_at: int | None = None
        self._room: int | None = None
        self._fills_at: int | None = None
        self._room_then = 0
        self._latency = 0
        self._root = Directory()
        self._open: dict[int, tuple[Path, SimulatedFile]] = {}
        self._seen: dict[int, int] = {}  # the losses of its file that an open handle was told of
        self._locks: dict[int, Path] = {}
        self._next_handle = 1
        self._faults: list[tuple[str, str, int]] = []
        self.asked = 0  # calls of any kind, those that only look among them
        self._odd: tuple[int, int, int] | None = None  # first and last call that fails, and how

    # --- what happens to disks ---------------------------------------------------------------

    def fail_next(self, operation: str, code: int, name: str = "") -> None:
        """The next `operation` on a file whose path holds `name` raises OSError(code)."""
        self._faults.append((operation, name, code))

    def fail_write_back(self, path: Path) -> None:
        """What was written to the file and not synced is lost, before anybody has asked for a sync:
        the next one by each handle raises EIO."""
        self._file(path).lose_writes()

    def fail_calls(self, in_calls: int, code: int, count: int = 1) -> None:
        """`count` calls fail with OSError(code), whatever they are, from the `in_calls`-th on."""
        first = self.asked + in_calls
        self._odd = (first, first + count - 1, code)

    def heal(self) -> None:
        """Nothing fails any more, and there is space."""
        self._faults.clear()
        self._odd = None
        self._cut_at = None
        self.keeps_cache = False
        self.make_room()

    def fill_up(self, room_bytes: int, *, in_operations: int = 0) -> None:
        """`in_operations` disk operations from now on others have all the space but `room_bytes`,
        and take what is set free at once: the disk is full to the byte, until `make_room`."""
        self._fills_at = self.operations + in_operations
        self._room_then = room_bytes

    @property
    def is_locked(self) -> bool:
        """Whether a process holds a lock of it."""
        return bool(self._locks)

    @property
    def is_limited(self) -> bool:
        """Whether there may be no space."""
        return self.capacity_bytes != UNLIMITED or (self._room, self._fills_at) != (None, None)

    def make_room(self) -> None:
        """There is space again."""
        self._room = self._fills_at = None
        self.capacity_bytes = UNLIMITED

    def cut_power_in(self, operations: int, *, keeps_cache: bool = False) -> None:
        """The power goes off at the `operations`-th disk operation from now; `keeps_cache`: it is
        the process that dies there."""
        self._cut_at = self.operations + operations
        self.keeps_cache = keeps_cache

    def power_off(self, chance: Random) -> None:
        """The process is gone, and what was not synced with it; see the module."""
        self.kill()
        self._root.lose(chance)
        for _, file in self._root.walk():
            file.lose(chance)
        self.is_off = True

    def power_on(self) -> None:
        """Operations work again."""
        self.is_off = False

    def kill(self) -> None:
        """The process is gone; the page cache survives."""
        self._open.clear()
        self._seen.clear()
        self._locks.clear()
        self._faults.clear()
        self.failures.on_process_gone()
        self._odd = None
        self._cut_at = None
        self.keeps_cache = False

    def wipe(self) -> SimulatedDisk:
        """A new, empty disk has been put in; the old one, for those who ask what was on it."""
        self.kill()
        old = SimulatedDisk()
        old._root, self._root = self._root, Directory()
        return old

    def image(self, chance: Random | None = None) -> SimulatedDisk:
        """Another disk with what is on the platter of this one, as a snapshot of the machine holds
        it; `chance` decides what was in flight, as in a power cut."""
        other = SimulatedDisk()
        other._root = deepcopy(self._root)
        if chance is not None:
            other._root.lose(chance)
            for _, file in other._root.walk():
                file.lose(chance)
        return other

    def put_in(self, content: SimulatedDisk) -> SimulatedDisk:
        """From now on this machine has what is on `content`; what it had is given back."""
        old = self.wipe()
        self._root = content._root
        return old

    def take_latency(self) -> int:
        """Microseconds that the syncs since the last call take."""
        latency, self._latency = self._latency, 0
        return latency

    # --- what is on the platter --------------------------------------------------------------

    def paths(self) -> list[Path]:
        """All files, sorted."""
        return sorted(Path("/", *names) for names, _ in self._root.walk())

    def content(self, path: Path) -> bytes:
        """What a read of the whole file gives; trailing zeros of a sparse file are left out."""
        return bytes(self._file(path).content)

    def durable(self, path: Path) -> bytes | None:
        """What is on the platter of a file; None if its name isn't."""
        file = self._durable_file(path)
        return None if file is None else bytes(file.durable)

    def copies(self, path: Path) -> tuple[bytearray, bytearray]:
        """What a read of the whole file gives, and what is on the platter of it, to look at now;
        nothing where it has no name."""
        found, held = self._find(path), self._durable_file(path)
        read = found.content if isinstance(found, SimulatedFile) else bytearray()
        return read, bytearray() if held is None else held.durable

    def has(self, path: Path) -> bool:
        """Whether there is such a file. Nobody's operation."""
        return isinstance(self._find(path), SimulatedFile)

    def bytes_between(self, path: Path, start: int, end: int, *, on_platter: bool) -> bytes:
        """`[start, end)` of what is on the platter, or else of what a read gives; empty if there
        the file has no name."""
        if on_platter:
            file = self._durable_file(path)
            return b"" if file is None else bytes(file.durable[start:end])
        found = self._find(path)
        return bytes(found.content[start:end]) if isinstance(found, SimulatedFile) else b""

    def unsettled(self, folder: Path) -> list[tuple[Path, bytes, bytes]]:
        """Files below `folder` whose bytes are not all on the platter: path, what a read gives,
        and what the platter has, trailing zeros left out of both."""
        found = self._find(folder)
        held = self._find(folder, on_platter=True)
        if not isinstance(found, Directory):
            return []
        return [
            (folder.joinpath(*names), bytes(file.content), durable)
            for names, file, durable in found.differences(held)
        ]

    def _durable_file(self, path: Path) -> SimulatedFile | None:
        found = self._find(path, on_platter=True)
        return found if isinstance(found, SimulatedFile) else None

    def flip(self, path: Path, at: int, bit: int) -> int:
        """One bit of a file has rotted, on the platter and in what is read; the byte before."""
        file = self._file(path)
        before = file.content[at]
        for copy in (file.content, file.durable):
            if at < len(copy):
                copy[at] ^= 1 << bit
        return before

    def lose_sector(self, path: Path, at: int) -> None:
        """The sector that has byte `at` of a file can't be read any more, until it is written."""
        self._file(path).lost.add(at // SECTOR_BYTES)

    def regain(self, path: Path) -> None:
        """All of a file can be read again."""
        self._file(path).lost.clear()

    def spoil(self, path: Path, at: int, data: bytes) -> None:
        """Other bytes are there, on the platter and in what is read; the file may have grown."""
        file = self._file(path)
        for copy in (file.content, file.durable):
            write_into(copy, at, data)
        file.size = max(file.size, at + len(data))
        file.durable_size = max(file.durable_size, at + len(data))

    def cut_short(self, path: Path, size: int) -> None:
        """The file has lost its end, on the platter and in what is read."""
        file = self._file(path)
        for copy in (file.content, file.durable):
            del copy[size:]
        file.size, file.durable_size = min(file.size, size), min(file.durable_size, size)

    # --- FileSystem --------------------------------------------------------------------------

    def open(self, path: Path) -> Handle:
        self._note("open", path)
        return self._handle(path, self._file(path))

    def create(self, path: Path) -> Handle:
        self._note("create", path)
        parent = self._directory(path.parent)
        if path.name in parent.children:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        file = SimulatedFile()
        parent.change({path.name: file})
        return self._handle(path, file)

    def close(self, handle: Handle) -> None:
        if handle not in self._open and not self.is_off:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._open.pop(handle, None)
        self._seen.pop(handle, None)
        self._locks.pop(handle, None)

    def pread(self, handle: Handle, size: int, offset: int) -> bytes:
        path, file = self._at(handle)
        self._note("pread", path)
        return file.read(offset, size)

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
        path, file = self._at(handle)
        self._note("pwritev", path)
        data = self._fitting(file, offset, b"".join(buffers))
        self._need(path, file, offset + len(data))
        file.write(offset, data)
        return len(data)

    def fdatasync(self, handle: Handle) -> None:
        self._sync("fdatasync", handle)

    def fsync(self, handle: Handle) -> None:
        self._sync("fsync", handle)

    def fallocate(self, handle: Handle, size: int) -> None:
        path, file = self._at(handle)
        self._note("fallocate", path)
        self._need(path, file, size)
        file.allocated = max(file.allocated, size)
        if size > file.size:
            file.resize(size)

    def truncate(self, handle: Handle, size: int) -> None:
        path, file = self._at(handle)
        self._note("truncate", path)
        file.resize(size)

    def size(self, handle: Handle) -> int:
        path, file = self._at(handle)
        self._look("size", path)
        return file.size

    def data_ranges(self, handle: Handle, start: int, end: int) -> Iterator[tuple[int, int]]:
        path, file = self._at(handle)
        self._look("data_ranges", path)
        end = min(end, len(file.content))
        if start < end:
            yield start, end

    def pin(self, handle: Handle) -> str | None:
        self._note("pin", self._at(handle)[0])
        return None

    def unpin(self, handle: Handle) -> None:
        self._note("unpin", self._at(handle)[0])

    def rename(self, old: Path, new: Path) -> None:
        self._note("rename", new)
        if old.parent != new.parent:
            raise NotImplementedError("the store renames within a directory only")
        parent = self._directory(old.parent)
        moved = parent.children.get(old.name)
        if moved is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(old))
        parent.change({old.name: None, new.name: moved})
        for handle, (path, file) in list(self._open.items()):  # a collector may close some
            if path == old:
                self._open[handle] = (new, file)

    def exchange(self, one: Path, other: Path) -> bool:
        self._note("exchange", other)
        first, second = self._file(one), self._file(other)
        self._directory(one.parent).change({one.name: second, other.name: first})
        names = {one: other, other: one}
        for handle, (path, file) in list(self._open.items()):  # a collector may close some
            self._open[handle] = (names.get(path, path), file)
        return True

    def unlink(self, path: Path) -> None:
        self._note("unlink", path)
        self._file(path)
        self._directory(path.parent).change({path.name: None})

    def mkdir(self, path: Path) -> None:
        self._note("mkdir", path)
        parent = self._directory(path.parent)
        if path.name not in parent.children:
            parent.change({path.name: Directory()})

    def rmdir(self, path: Path) -> None:
        self._note("rmdir", path)
        if self._directory(path).children:
            raise OSError(errno.ENOTEMPTY, "not empty", str(path))
        self._directory(path.parent).change({path.name: None})

    def fsync_directory(self, path: Path) -> None:
        directory = self._directory(path)
        self._note("fsync_directory", path)
        directory.sync()

    def listdir(self, path: Path) -> list[str]:
        self._look("listdir", path)
        return sorted(self._directory(path).children)

    def exists(self, path: Path) -> bool:
        self._look("exists", path)
        return self._find(path) is not None

    def free_bytes(self, path: Path) -> int:
        self._look("free_bytes", path)
        return self._free_bytes()

    def _free_bytes(self) -> int:
        free = max(0, self.capacity_bytes - self.used_bytes())
        return free if self._room is None else min(free, self._room)

    def total_bytes(self, path: Path) -> int:
        self._look("total_bytes", path)
        return self.capacity_bytes

    def used_bytes(self) -> int:
        """What the files take; holes take nothing."""
        return sum(file.used_bytes() for _, file in self._root.walk())

    def lock(self, path: Path) -> Handle | None:
        self._look("lock", path)
        if path in self._locks.values():
            return None
        handle = self.open(path) if self.exists(path) else self.create(path)
        self._locks[handle] = path
        return handle

    # --- below -------------------------------------------------------------------------------

    def _note(self, operation: str, path: Path) -> None:
        if self.is_observed:
            return
        if self.is_off:
            raise MachineDied
        self.operations += 1
        self.changes += operation not in READ_OPERATIONS
        if self._cut_at is not None and self.operations >= self._cut_at:
            self.is_off = True
            raise MachineDied
        if self._fills_at is not None and self.operations >= self._fills_at:
            self._room, self._fills_at = self._room_then, None
        if operation in LATENT_OPERATIONS:
            self._latency += self.latency_us()
        self._look(operation, path)

    def _look(self, operation: str, path: Path) -> None:
        """A call that changes nothing, takes no time and is no moment for a power cut: it fails as
        any other."""
        if self.is_observed or self.is_off:
            return
        self.asked += 1
        if self._odd is not None and self._odd[0] <= self.asked <= self._odd[1]:
            raise self.failures.inject(operation, path, self._odd[2])
        if self._faults:
            self._fail_if_told(operation, path)

    def _fail_if_told(self, operation: str, path: Path) -> None:
        for fault in self._faults:
            if fault[0] == operation and fault[1] in str(path):
                self._faults.remove(fault)
                raise self.failures.inject(operation, path, fault[2])

    def _at(self, handle: Handle) -> tuple[Path, SimulatedFile]:
        found = self._open.get(handle)
        if found is None:
            if self.is_off:
                raise MachineDied
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return found

    def _sync(self, operation: str, handle: Handle) -> None:
        path, file = self._at(handle)
        try:
            self._note(operation, path)
        except OSError:
            file.lose_writes()
            self._tell(handle, file)
            raise
        file.sync()
        if self._seen[handle] < file.losses:
            self._tell(handle, file)
            raise self.failures.inject(operation, path, errno.EIO)

    def _tell(self, handle: Handle, file: SimulatedFile) -> None:
        file.is_told, self._seen[handle] = True, file.losses

    def _need(self, path: Path, file: SimulatedFile, end: int) -> None:
        more_bytes = end - file.used_bytes()
        if self.is_limited and 0 < more_bytes > self._free_bytes():
            raise self.failures.inject(SPACE, path, errno.ENOSPC)
        if self._room is not None and more_bytes > 0:
            self._room -= more_bytes

    def _fitting(self, file: SimulatedFile, offset: int, data: bytes) -> bytes:
        """What of `data` is written before the disk is full; all of it where nothing is, which is
        refused then."""
        if self._room is None:
            return data
        fitting = file.used_bytes() + self._room - offset
        return data[:fitting] if fitting > 0 else data

    def _find(self, path: Path, *, on_platter: bool = False) -> Directory | SimulatedFile | None:
        found: Directory | SimulatedFile | None = self._root
        for name in path.parts[1:]:
            if not isinstance(found, Directory):
                return None
            found = (found.durable if on_platter else found.children).get(name)
        return found

    def _file(self, path: Path) -> SimulatedFile:
        found = self._find(path)
        if not isinstance(found, SimulatedFile):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return found

    def _directory(self, path: Path) -> Directory:
        found = self._find(path)
        if not isinstance(found, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return found

    def _handle(self, path: Path, file: SimulatedFile) -> Handle:
        handle = Handle(self._next_handle)
        self._next_handle += 1
        self._open[handle] = (path, file)
        self._seen[handle] = file.losses_seen
        return handle
