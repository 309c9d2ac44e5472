"""The data directory of one node: who owns it, which disk it is, and for what it was made.

This owns `<data>/LOCK`, `<data>/identity.json` and `<data>/raft/boot`. It must never let two
processes write one log, nor let a node open the files of another broker group, node or segment
size: positions are a function of the segment size, so replicas that differ in it can't be
byte-identical. And it must never take a directory that has lost its identity for a new one.

A directory's identity is made when it is first used, and its state says how far it is on the way
to being a member's (docs/adr/0022-disk-identities.md):

    unformed ──prepared, committed──▶ formed ◀──its log names it── joining ◀──told to── unformed
    legacy ────prepared, committed──▶ formed

Who may move it there is not decided here.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from dledger.reading.sealed import seal_of, unsealed
from dledger.records.errors import InvalidFrame
from dledger.records.layout import BOOT
from store.atomic_file import AtomicFile, replace_file
from store.errors import (
    CorruptionFound,
    DirectoryInUse,
    IdentityMissing,
    NotARegularFile,
    StorageFull,
    WrongIdentity,
)
from store.files import (
    FULL_ERRNOS,
    LOST_ERRNOS,
    FileSystem,
    Handle,
    OsFiles,
    make_directory,
    read_upto,
    write_all,
)

FORMAT_VERSION: Final = 2
LEGACY_VERSION: Final = 1  # had no disk identity
DISK_ID_BYTES: Final = 16
MAX_BOOTS: Final = 1 << 62  # beyond what anybody starts; one more still has room in the file
_MAX_HOLDER_BYTES: Final = 64
_MAX_SEALED_BYTES: Final = 64 << 10
_BOOT: Final = BOOT.struct()
_BOOT_MAGIC: Final = BOOT.constant("magic")
_BOOT_VERSION: Final = BOOT.constant("version")
_IDENTITY_BYTES: Final = 512  # or thereabouts, for a message
_BOOT_SPARE_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Identity:
    """What the directory holds: one node's part of one broker group."""

    broker_group: str
    node_id: str
    segment_size_bytes: int


class DirectoryState(Enum):
    """How far a directory is on the way to being a member's."""

    UNFORMED = "unformed"
    LEGACY = "legacy"  # of format version 1: it has a log, and its disk had no identity
    JOINING = "joining"  # takes the place of a disk that was lost
    FORMED = "formed"

    @property
    def is_member(self) -> bool:
        """Whether a node may start on it."""
        return self in (DirectoryState.JOINING, DirectoryState.FORMED)


@dataclass(frozen=True, slots=True)
class Birth:
    """What a disk is given when its directory is first used: 16 random bytes, and the time."""

    disk_id: bytes
    time_ms: int


def born_now() -> Birth:
    """A disk that no other one is."""
    return Birth(os.urandom(DISK_ID_BYTES), int(time.time() * 1000))


@dataclass(frozen=True, slots=True)
class Disk:
    """What `identity.json` says beside whose it is."""

    disk_id: bytes
    born_ms: int
    state: DirectoryState


class DataDirectory:
    """An open, locked data directory. Closing it, or the death of the process, frees it."""

    def __init__(
        self, path: Path, identity: Identity, disk: Disk, files: FileSystem, lock: Handle
    ) -> None:
        self.path = path
        self.identity = identity
        self.disk = disk
        self._files = files
        self._lock: Handle | None = lock

    @classmethod
    def open(
        cls,
        path: Path,
        identity: Identity,
        files: FileSystem | None = None,
        holder: str | None = None,
        birth: Callable[[], Birth] = born_now,
    ) -> DataDirectory:
        """The directory exists, is this process's alone, and is `identity`'s.

        Args:
            holder: how this process names itself to one that comes later; its id by default.
            birth: gives a disk that is used for the first time its identity.

        Raises:
            DirectoryInUse: another process holds it.
            WrongIdentity: it was made for something else; the error names both values.
            IdentityMissing: it holds a log, and nothing says whose.
            CorruptionFound: `identity.json` can't be read.
            StorageFull: a new directory found no space for it.
        """
        files = files or OsFiles()
        make_directory(files, path)
        if not files.exists(path / "identity.json"):
            # A start that died, or whose sync failed, may have left the directory's own name in the
            # page cache only: everything that is made durable in it would be lost with that.
            files.fsync_directory(path.parent)
        lock = lock_directory(files, path, holder or f"process {os.getpid()}")
        try:
            disk = _disk_of(files, path, identity, birth)
        except BaseException:
            files.close(lock)
            raise
        return cls(path, identity, disk, files, lock)

    def mark(self, state: DirectoryState) -> None:
        """`identity.json` says `state`, durably."""
        disk = Disk(self.disk.disk_id, self.disk.born_ms, state)
        _write_identity(self._files, self.path, self.identity, disk)
        self.disk = disk

    def mend(self) -> bool:
        """Whether `identity.json` was found to say something else than this; then it is written
        again. Raises OSError: it can't be."""
        fields = _identity_fields(self.identity, self.disk)
        if _says(self._files, self.path / "identity.json", fields):
            return False
        write_sealed(self._files, self.path / "identity.json", fields)
        return True

    def next_boot(self) -> int:
        """The number of this start, greater than that of every start before: durable when this
        returns, and so before anybody is told of it.

        Raises:
            CorruptionFound: the number of the last start is none.
            OSError: the disk can't give it any more: nobody goes on without it, so it has failed.
            StorageFull: at the first start on this disk; later ones have their space.
        """
        make_directory(self._files, self.path / "raft")
        path = self.path / "raft" / "boot"
        file = AtomicFile(self._files, path, _BOOT_SPARE_BYTES)
        try:
            content = file.settle()
            number = 1 + (0 if content is None else _boot_number(self.path, content))
            file.replace(_BOOT.pack(_BOOT_MAGIC, _BOOT_VERSION, number))
        except CorruptionFound as error:
            cause = error.__cause__
            if not isinstance(cause, OSError):
                raise
            raise OSError(cause.errno, cause.strerror, str(path)) from cause
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            free = self._files.free_bytes(self.path)
            raise StorageFull(str(self.path / "raft"), _BOOT_SPARE_BYTES, free) from error
        return number

    def close(self) -> None:
        """Another process may open the directory. Closing twice is harmless."""
        if self._lock is not None:
            self._files.close(self._lock)
            self._lock = None


def lock_directory(files: FileSystem, path: Path, holder: str) -> Handle:
    """Nobody else has the directory while the handle is open.

    Args:
        holder: how this process names itself to one that comes later.

    Raises:
        DirectoryInUse: another process holds it.
    """
    lock = files.lock(path / "LOCK")
    if lock is None:
        raise DirectoryInUse(str(path), _holder_of(files, path / "LOCK"))
    try:
        _name_holder(files, lock, holder)
    except BaseException:
        files.close(lock)
        raise
    return lock


def stored_boot_number(files: FileSystem, path: Path) -> int:
    """The number of the last start on the directory; 0 if there was none.

    Raises:
        CorruptionFound: it can't be read.
    """
    content = AtomicFile(files, path / "raft" / "boot").read()
    return 0 if content is None else _boot_number(path, content)


def _boot_number(path: Path, content: bytes) -> int:
    try:
        magic, version, number = _BOOT.unpack(content)
    except struct.error:
        magic, version, number = 0, 0, 0
    file = str(path / "raft" / "boot")
    if (magic, version) != (_BOOT_MAGIC, _BOOT_VERSION):
        raise CorruptionFound(file, 0, f"magic {_BOOT_MAGIC:08x}", content.hex())
    if number > MAX_BOOTS:
        raise CorruptionFound(file, BOOT.at("number"), f"at most {MAX_BOOTS} starts", number)
    return int(number)


def _disk_of(files: FileSystem, path: Path, identity: Identity, birth: Callable[[], Birth]) -> Disk:
    """The disk that the directory is; a new identity for one that is used for the first time."""
    file = path / "identity.json"
    if not files.exists(file):
        if files.exists(path / "commitlog") and files.listdir(path / "commitlog"):
            raise IdentityMissing(str(path))
        born = birth()
        disk = Disk(born.disk_id, born.time_ms, DirectoryState.UNFORMED)
        try:
            _write_identity(files, path, identity, disk)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            raise StorageFull(str(path), _IDENTITY_BYTES, files.free_bytes(path)) from error
        return disk
    stored = read_sealed(files, file, is_needed=True)
    is_legacy = stored.get("format_version") == LEGACY_VERSION
    expected = {
        "format_version": LEGACY_VERSION if is_legacy else FORMAT_VERSION,
        **_whose(identity),
    }
    for field, value in expected.items():
        if stored.get(field) != value:
            raise WrongIdentity(str(path), field, stored.get(field), value)
    if is_legacy:
        born = birth()
        disk = Disk(born.disk_id, born.time_ms, DirectoryState.LEGACY)
        _write_identity(files, path, identity, disk)
        return disk
    return _stored_disk(file, stored)


def _stored_disk(file: Path, stored: dict[str, object]) -> Disk:
    disk_id, born_ms, state = (stored.get(key) for key in ("disk_id", "born_ms", "state"))
    try:
        disk = Disk(bytes.fromhex(str(disk_id)), int(str(born_ms)), DirectoryState(state))
    except ValueError as error:
        raise CorruptionFound(str(file), 0, "a disk id, a time and a state", error) from error
    if len(disk.disk_id) != DISK_ID_BYTES:
        raise CorruptionFound(str(file), 0, f"a disk id of {DISK_ID_BYTES} bytes", disk_id)
    return disk


def _whose(identity: Identity) -> dict[str, object]:
    # The key is `group`, older than the word for it; renamed, it would be another format.
    return {
        "group": identity.broker_group,
        "node_id": identity.node_id,
        "segment_size_bytes": identity.segment_size_bytes,
    }


def _identity_fields(identity: Identity, disk: Disk) -> dict[str, object]:
    return {
        "format_version": FORMAT_VERSION,
        **_whose(identity),
        "disk_id": disk.disk_id.hex(),
        "born_ms": disk.born_ms,
        "state": disk.state.value,
    }


def _write_identity(files: FileSystem, path: Path, identity: Identity, disk: Disk) -> None:
    write_sealed(files, path / "identity.json", _identity_fields(identity, disk))


def _says(files: FileSystem, file: Path, fields: dict[str, object]) -> bool:
    """Whether the file holds these fields, sealed."""
    try:
        return read_sealed(files, file) == fields
    except (CorruptionFound, NotARegularFile):
        return False
    except OSError as error:
        if error.errno not in LOST_ERRNOS:
            raise
        return False


def write_sealed(files: FileSystem, file: Path, fields: dict[str, object]) -> None:
    """The file holds `fields` as JSON with their seal, durably."""
    sealed = {**fields, "crc32c": seal_of(fields)}
    replace_file(files, file, json.dumps(sealed, indent=2).encode() + b"\n")


def read_sealed(files: FileSystem, file: Path, *, is_needed: bool = False) -> dict[str, object]:
    """What `write_sealed` wrote.

    Args:
        is_needed: nobody goes on without it, so a disk that can't give it has failed.

    Raises:
        CorruptionFound: it isn't that, or the disk can't give it any more.
        OSError: the same, of what is needed.
    """
    handle = files.open(file)
    try:
        if is_needed:
            content = files.pread(handle, _MAX_SEALED_BYTES, 0)
        else:
            content = read_upto(files, handle, _MAX_SEALED_BYTES, 0, str(file))
    finally:
        files.close(handle)
    try:
        return unsealed(content)
    except InvalidFrame as error:
        raise CorruptionFound(str(file), 0, error.expected, error.found) from error


def _name_holder(files: FileSystem, lock: Handle, holder: str) -> None:
    """For the message of the next one who tries; the lock itself is the kernel's. A full disk may
    keep an older name there: no reason not to start."""
    name = holder.encode()[:_MAX_HOLDER_BYTES]
    try:
        write_all(files, lock, [name], 0)
        files.truncate(lock, len(name))
    except OSError as error:
        if error.errno not in FULL_ERRNOS:
            raise


def _holder_of(files: FileSystem, path: Path) -> str:
    handle = files.open(path)
    try:
        named = files.pread(handle, _MAX_HOLDER_BYTES, 0).decode(errors="replace").strip()
    finally:
        files.close(handle)
    return named or "another process"
