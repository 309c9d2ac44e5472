"""The data directory of one node: who owns it, and for what it was made.

This owns `<data>/LOCK` and `<data>/identity.json`. It must never let two processes write one log,
nor let a node open the files of another broker group, node or segment size: positions are
a function of the segment size, so replicas that differ in it can't be byte-identical.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from store.errors import CorruptionFound, DirectoryInUse, WrongIdentity
from store.files import (
    FULL_ERRNOS,
    FileSystem,
    Handle,
    OsFiles,
    make_directory,
    replace_file,
    write_all,
)

FORMAT_VERSION: Final = 1
_MAX_HOLDER_BYTES: Final = 64
_MAX_IDENTITY_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """What the directory holds: one node's part of one broker group."""

    broker_group: str
    node_id: str
    segment_size_bytes: int


class DataDirectory:
    """An open, locked data directory. Closing it, or the death of the process, frees it."""

    def __init__(self, path: Path, identity: Identity, files: FileSystem, lock: Handle) -> None:
        self.path = path
        self.identity = identity
        self._files = files
        self._lock: Handle | None = lock

    @classmethod
    def open(
        cls,
        path: Path,
        identity: Identity,
        files: FileSystem | None = None,
        holder: str | None = None,
    ) -> DataDirectory:
        """The directory exists, is this process's alone, and is `identity`'s.

        Args:
            holder: how this process names itself to one that comes later; its id by default.

        Raises:
            DirectoryInUse: another process holds it.
            WrongIdentity: it was made for something else; the error names both values.
            CorruptionFound: `identity.json` can't be read.
        """
        files = files or OsFiles()
        make_directory(files, path)
        lock = files.lock(path / "LOCK")
        if lock is None:
            raise DirectoryInUse(str(path), _holder_of(files, path / "LOCK"))
        try:
            _name_holder(files, lock, holder or f"process {os.getpid()}")
            _check_identity(files, path, identity)
        except BaseException:
            files.close(lock)
            raise
        return cls(path, identity, files, lock)

    def close(self) -> None:
        """Another process may open the directory. Closing twice is harmless."""
        if self._lock is not None:
            self._files.close(self._lock)
            self._lock = None


def _check_identity(files: FileSystem, path: Path, identity: Identity) -> None:
    file = path / "identity.json"
    # The key is `group`, older than the word for it; renamed, it would be another format.
    configured = {
        "format_version": FORMAT_VERSION,
        "group": identity.broker_group,
        "node_id": identity.node_id,
        "segment_size_bytes": identity.segment_size_bytes,
    }
    if not files.exists(file):
        sealed = {**configured, "crc32c": _seal(configured)}
        replace_file(files, file, json.dumps(sealed, indent=2).encode() + b"\n")
        return
    stored = _read_identity(files, file)
    for field, value in configured.items():
        if stored.get(field) != value:
            raise WrongIdentity(str(path), field, stored.get(field), value)


def _read_identity(files: FileSystem, file: Path) -> dict[str, object]:
    handle = files.open(file)
    try:
        content = files.pread(handle, _MAX_IDENTITY_BYTES, 0)
    finally:
        files.close(handle)
    try:
        stored = json.loads(content)
    except ValueError:
        stored = None
    if not isinstance(stored, dict):
        raise CorruptionFound(str(file), 0, "a JSON object", content[:40])
    seal = stored.pop("crc32c", None)
    if seal != _seal(stored):
        raise CorruptionFound(str(file), 0, f"crc32c {_seal(stored)}", seal)
    return stored


def _seal(fields: dict[str, object]) -> str:
    """CRC32C, in hex, over the fields as JSON with sorted keys and no blanks."""
    return f"{crc32c(json.dumps(fields, sort_keys=True, separators=(',', ':')).encode()):08x}"


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
