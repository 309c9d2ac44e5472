"""A disk in memory that forgets what was not synced, and fails when told to.

It implements `store.files.FileSystem` below the real store. A power cut keeps of each file what
was synced and, as the given random source decides, some later writes whole or torn; of each
directory the names as of its last fsync and some prefix of the later changes. A failed fsync
marks the pages clean, as ext4, XFS and Btrfs do (ATC'20): the bytes stay readable and never reach
the platter.
"""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from store.files import Buffer, Handle


class _File:
    def __init__(self) -> None:
        self.content = bytearray()  # What a read sees.
        self.durable = bytearray()  # What the platter holds.
        self.unsynced: list[tuple[int, bytes]] = []  # Writes; offset -1: a new size.

    def write(self, offset: int, data: bytes) -> None:
        _write_into(self.content, offset, data)
        self.unsynced.append((offset, data))

    def resize(self, size: int) -> None:
        _resize(self.content, size)
        self.unsynced.append((-1, size.to_bytes(8, "big")))

    def sync(self) -> None:
        for offset, data in self.unsynced:
            _apply(self.durable, offset, data)
        self.unsynced.clear()

    def lose(self, chance: Random | None) -> None:
        for offset, data in self.unsynced:
            fate = chance.choice(("lost", "kept", "torn")) if chance else "lost"
            if fate == "kept" or (fate == "torn" and offset < 0):
                _apply(self.durable, offset, data)
            elif fate == "torn" and chance:
                _apply(self.durable, offset, data[: chance.randrange(len(data) + 1)])
        self.unsynced.clear()
        self.content = bytearray(self.durable)


class SimulatedDisk:
    """One machine's disk. `calls` lists `(operation, file name)` in order."""

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda _operation, _name: None
        self.pin_refusal: str | None = None
        self._names: dict[Path, _File | None] = {Path("/"): None}  # None: a directory.
        self._durable_names: dict[Path, _File | None] = {Path("/"): None}
        self._name_changes: dict[Path, list[dict[Path, _File | None]]] = {}
        self._renames: list[tuple[Path, Path]] = []  # of directories, perhaps not durable
        self._open: dict[int, tuple[Path, _File]] = {}
        self._locks: dict[int, Path] = {}
        self._next_handle = 1
        self._faults: list[tuple[str, str, int]] = []

    # --- what happens to disks ---------------------------------------------------------------

    def fail_next(self, operation: str, code: int, name: str = "") -> None:
        """The next `operation` on a file whose name holds `name` raises OSError(code)."""
        self._faults.append((operation, name, code))

    def power_cut(self, chance: Random | None = None) -> None:
        """The process is gone, and what was not synced with it; see the module."""
        self.kill()
        for parent, states in self._name_changes.items():
            survivors = chance.randrange(len(states) + 1) if chance else 0
            if survivors:
                self._adopt(parent, states[survivors - 1])
        self._name_changes.clear()
        self._undo_renames()
        for path in sorted(self._durable_names):  # Parents first: what they held is lost with them.
            if path.parent not in self._durable_names:
                del self._durable_names[path]
        self._names = dict(self._durable_names)
        for file in self._names.values():
            if file is not None:
                file.lose(chance)

    def kill(self) -> None:
        """The process is gone; the page cache survives."""
        self._open.clear()
        self._locks.clear()
        self._faults.clear()

    def clone(self) -> SimulatedDisk:
        """An independent disk with the same bytes; no file is open on it."""
        other = SimulatedDisk(self.capacity_bytes)
        memo: dict[int, object] = {}
        other._names = copy.deepcopy(self._names, memo)
        other._durable_names = copy.deepcopy(self._durable_names, memo)
        other._renames = list(self._renames)
        other._name_changes = copy.deepcopy(self._name_changes, memo)
        return other

    def content(self, path: Path) -> bytearray:
        """The bytes of a file, to look at or to spoil: a change is on the platter as well."""
        file = self._file(path)
        file.sync()
        file.durable = file.content
        return file.content

    def durable_content(self, path: Path) -> bytes:
        """What a power cut now would leave of a file; empty if its name isn't durable."""
        file = self._durable_names.get(path)
        return bytes(file.durable) if file else b""

    def paths(self) -> list[Path]:
        """All files, sorted."""
        return sorted(path for path, file in self._names.items() if file is not None)

    def open_handles(self) -> list[int]:
        """Handles that nobody has closed."""
        return sorted(self._open)

    def count(self, operation: str, name: str = "") -> int:
        """How often `operation` was called on files whose names hold `name`."""
        return sum(done == operation and name in on for done, on in self.calls)

    # --- FileSystem --------------------------------------------------------------------------

    def open(self, path: Path) -> Handle:
        self._note("open", path)
        return self._handle(path, self._file(path))

    def create(self, path: Path) -> Handle:
        self._note("create", path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        self._set_name(path, _File())
        return self._handle(path, self._file(path))

    def close(self, handle: Handle) -> None:
        del self._open[handle]
        self._locks.pop(handle, None)

    def pread(self, handle: Handle, size: int, offset: int) -> bytes:
        path, file = self._open[handle]
        self._note("pread", path)
        return bytes(file.content[offset : offset + size])

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
        path, file = self._open[handle]
        self._note("pwritev", path)
        data = b"".join(buffers)
        self._need(offset + len(data) - len(file.content))
        file.write(offset, data)
        return len(data)

    def fdatasync(self, handle: Handle) -> None:
        self._sync("fdatasync", handle)

    def fsync(self, handle: Handle) -> None:
        self._sync("fsync", handle)

    def fallocate(self, handle: Handle, size: int) -> None:
        path, file = self._open[handle]
        self._note("fallocate", path)
        self._need(size - len(file.content))
        if size > len(file.content):
            file.resize(size)

    def truncate(self, handle: Handle, size: int) -> None:
        path, file = self._open[handle]
        self._note("truncate", path)
        file.resize(size)

    def size(self, handle: Handle) -> int:
        return len(self._open[handle][1].content)

    def data_ranges(self, handle: Handle, start: int, end: int) -> Iterator[tuple[int, int]]:
        if start < end:
            yield start, end

    def pin(self, handle: Handle) -> str | None:
        self._note("pin", self._open[handle][0])
        return self.pin_refusal

    def unpin(self, handle: Handle) -> None:
        self._note("unpin", self._open[handle][0])

    def rename(self, old: Path, new: Path) -> None:
        self._note("rename", new)
        if old.parent != new.parent:
            raise NotImplementedError("the store renames within a directory only")
        if self._names.get(old, old) is None:
            self._rename_directory(old, new)
            return
        file = self._file(old)
        del self._names[old]
        self._set_name(new, file)
        for handle, (path, opened) in list(self._open.items()):
            if path == old:
                self._open[handle] = (new, opened)

    def _rename_directory(self, old: Path, new: Path) -> None:
        """Names below move with it, on the platter as well: what is in a directory belongs to it,
        not to its name. A power cut may put it back, see `_undo_renames`."""

        def moved(path: Path) -> Path:
            return new / path.relative_to(old)

        for names in (self._names, self._durable_names):
            _move_below(names, old, new)
        for parent in [path for path in self._name_changes if old in (path, *path.parents)]:
            self._name_changes[moved(parent)] = [
                {moved(path): file for path, file in state.items()}
                for state in self._name_changes.pop(parent)
            ]
        del self._names[old]
        self._renames.append((old, new))
        self._set_name(new, None)

    def unlink(self, path: Path) -> None:
        self._note("unlink", path)
        self._file(path)
        del self._names[path]
        self._log_names(path.parent)

    def mkdir(self, path: Path) -> None:
        self._note("mkdir", path)
        if path.parent not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no parent", str(path))
        if path not in self._names:
            self._set_name(path, None)

    def rmdir(self, path: Path) -> None:
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "not empty", str(path))
        del self._names[path]
        self._log_names(path.parent)

    def fsync_directory(self, path: Path) -> None:
        self._note("fsync_directory", path)
        self._adopt(path, self._children(path))
        self._name_changes.pop(path, None)
        self._renames = [each for each in self._renames if each[0].parent != path]

    def listdir(self, path: Path) -> list[str]:
        return sorted(child.name for child in self._children(path))

    def exists(self, path: Path) -> bool:
        return path in self._names

    def free_bytes(self, path: Path) -> int:
        used = sum(len(file.content) for file in self._names.values() if file is not None)
        return max(0, self.capacity_bytes - used)

    def lock(self, path: Path) -> Handle | None:
        if path in self._locks.values():
            return None
        handle = self.open(path) if path in self._names else self.create(path)
        self._locks[handle] = path
        return handle

    # --- below -------------------------------------------------------------------------------

    def _note(self, operation: str, path: Path) -> None:
        self.calls.append((operation, path.name))
        self.before(operation, path.name)
        for fault in self._faults:
            if fault[0] == operation and fault[1] in path.name:
                self._faults.remove(fault)
                raise OSError(fault[2], os.strerror(fault[2]), str(path))

    def _sync(self, operation: str, handle: Handle) -> None:
        path, file = self._open[handle]
        try:
            self._note(operation, path)
        except OSError:
            file.unsynced.clear()  # The pages are clean now, and the bytes are nowhere.
            raise
        file.sync()

    def _need(self, more_bytes: int) -> None:
        if more_bytes > 0 and more_bytes > self.free_bytes(Path("/")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _file(self, path: Path) -> _File:
        file = self._names.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return file

    def _handle(self, path: Path, file: _File) -> Handle:
        handle = Handle(self._next_handle)
        self._next_handle += 1
        self._open[handle] = (path, file)
        return handle

    def _children(self, path: Path) -> dict[Path, _File | None]:
        return {
            each: file for each, file in self._names.items() if each.parent == path and each != path
        }

    def _undo_renames(self) -> None:
        """Directories whose new names didn't reach the platter have their old ones."""
        for old, new in reversed(self._renames):
            if new not in self._durable_names:
                _move_below(self._durable_names, new, old)
        self._renames.clear()

    def _set_name(self, path: Path, file: _File | None) -> None:
        self._names[path] = file
        self._log_names(path.parent)

    def _log_names(self, parent: Path) -> None:
        self._name_changes.setdefault(parent, []).append(self._children(parent))

    def _adopt(self, parent: Path, names: dict[Path, _File | None]) -> None:
        for each in [each for each in self._durable_names if each.parent == parent != each]:
            if each not in names:
                for gone in [path for path in self._durable_names if each in (path, *path.parents)]:
                    del self._durable_names[gone]
        self._durable_names.update(names)


def _move_below(names: dict[Path, _File | None], old: Path, new: Path) -> None:
    """What lies below `old` lies below `new`, and nothing else does."""
    for path in [path for path in names if new in path.parents]:
        del names[path]
    for path in [path for path in names if old in path.parents]:
        names[new / path.relative_to(old)] = names.pop(path)


def _write_into(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        _resize(content, offset)
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _apply(content: bytearray, offset: int, data: bytes) -> None:
    if offset < 0:
        _resize(content, int.from_bytes(data, "big"))
    else:
        _write_into(content, offset, data)
