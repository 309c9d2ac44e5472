"""Files that hold what proves something: certificates, keys, secrets.

This owns reading them with suspicion: a device or a pipe is not waited for, a file of any size is
not taken in, and what is private may be read by its owner alone. What they hold is never told. New
ones are there as a whole or not at all, and none is ever overwritten.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dledger.credentials.errors import CredentialUnusable

MAX_FILE_BYTES: Final = 1 << 20
_UNFINISHED: Final = ".new"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})


def read_credential(path: Path, *, is_private: bool = False) -> bytes:
    """The content of the file.

    Raises:
        CredentialUnusable: it can't be read, is no regular file, is too large, or is private and
            others than its owner may use it.
    """
    try:
        # O_NONBLOCK: opening a pipe would wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise CredentialUnusable(path, "isn't a regular file")
            content: bytes = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        raise CredentialUnusable(path, getattr(error, "strerror", "") or str(error)) from error
    if len(content) > MAX_FILE_BYTES:
        raise CredentialUnusable(path, f"is larger than {MAX_FILE_BYTES} bytes")
    if is_private and mode & (stat.S_IRWXG | stat.S_IRWXO):
        told = f"others than its owner may use it (mode {mode & 0o777:04o}): chmod 600"
        raise CredentialUnusable(path, told)
    return content


def write_private(path: Path, content: bytes) -> None:
    """A new file of mode 0600, durable; one that exists is left alone.

    Raises:
        CredentialUnusable: it can't be written, or is there.
    """
    _write_new(path, content, 0o600)


def write_public(path: Path, content: bytes) -> None:
    """A new file that anybody may read whom the umask lets; else as `write_private`."""
    _write_new(path, content, 0o666)


def unfinished(path: Path) -> Iterator[Path]:
    """What was left by who was killed as it wrote the file."""
    return path.parent.glob(f"{glob.escape(path.name)}.*{_UNFINISHED}")


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """The file is there as a whole, or not at all: half of a secret would be in everybody's way for
    ever. A name is linked to once, unlike one that a rename replaces; a file system without links
    has to do without the first."""
    try:
        fresh = path.with_name(f"{path.name}.{os.urandom(8).hex()}{_UNFINISHED}")
        try:
            _write_through(fresh, content, mode)
            try:
                os.link(fresh, path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _write_through(path, content, mode)
        finally:
            fresh.unlink(missing_ok=True)
        _sync_names(path.parent)
    except (OSError, ValueError) as error:
        raise CredentialUnusable(path, getattr(error, "strerror", "") or str(error)) from error


def _write_through(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _sync_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not every file system syncs folders
            raise
    finally:
        os.close(descriptor)
