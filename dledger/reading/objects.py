"""Folders and files that lie in an object store, `s3://bucket/backup/n1` and the like.

Objects have no descriptors, and everything that reads a log reads descriptors. So an object is
fetched whole into a temporary file without a name, and that is what is opened: one copy of code
reads logs, wherever they lie. The last few stay for whoever opens them again, as long as the store
says that they are the same. A log's segments are the largest files there are, 2 GiB at most.

Nothing here writes to a store. It is asked through fsspec, whose protocols are packages of their
own (`s3`: s3fs, the extra `s3`); addresses and credentials are the environment's, as for AWS's own
tools, and are never part of an address here, as addresses are printed.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from dledger.reading.errors import CredentialsShown, ObjectsUnreadable, StoreUnknown

KEPT_FILES: Final = 4
MAX_BYTES: Final = (2 << 30) + (64 << 20)  # A segment, and more than any other file of a node.
_CHUNK_BYTES: Final = 8 << 20
_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://")
_LOCAL: Final = "file://"
_SAME: Final = {"s3a": "s3", "s3n": "s3"}  # Hadoop's names for the same store
_SECRETS: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")

_kept: OrderedDict[str, tuple[object, int]] = OrderedDict()
_lock = threading.Lock()


def is_object(path: str) -> bool:
    """Whether the path leads into a store; `file://` doesn't."""
    return _URL.match(path) is not None and not path.startswith(_LOCAL)


def plain(path: str) -> str:
    """The path as everything here takes it: without `file://`, and with one name for a store.

    Raises:
        CredentialsShown: it holds credentials; they aren't repeated.
    """
    if (match := _URL.match(path)) is None:
        return path
    if "@" in urlsplit(path).netloc:
        raise CredentialsShown(match["scheme"])
    if path.startswith(_LOCAL):
        return path.removeprefix(_LOCAL)
    scheme = match["scheme"].lower()
    return f"{_SAME.get(scheme, scheme)}://{path[match.end() :].rstrip('/')}"


def sizes_in(path: str) -> dict[str, int | None]:
    """What lies in the folder: names, with the sizes of files and None for folders.

    Raises:
        OSError: there is no such folder, or the store doesn't say.
    """
    with _told(path):
        store, inner = _store(path)
        found: list[dict[str, Any]] = store.ls(inner, detail=True, refresh=True)
    entries = {each["name"].rstrip("/").rpartition("/")[2]: each for each in found}
    if list(entries) == [inner.rpartition("/")[2]] and _is_file(entries, inner):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return {
        name: None if each["type"] == "directory" else int(each["size"])
        for name, each in entries.items()
        if name
    }


def fetched(path: str) -> int:
    """A descriptor of a copy of the object; the caller closes it.

    Raises:
        OSError: it is gone, or can't be read; or it is larger than any file of a node.
    """
    with _told(path):
        store, inner = _store(path)
        info = store.info(inner, refresh=True)
        if info["type"] == "directory":
            raise OSError(errno.EINVAL, "not a file", path)
        if info["size"] > MAX_BYTES:
            raise OSError(errno.EFBIG, f"{info['size']} bytes are no file of a log", path)
        version = tuple(str(info.get(each)) for each in ("ETag", "LastModified", "created", "size"))
        with _lock:
            known = _kept.get(path)
            if known is None or known[0] != version:
                _keep(path, version, _copied(store, inner, path, info["size"]))
            _kept.move_to_end(path)
            return os.dup(_kept[path][1])


def _keep(path: str, version: object, descriptor: int) -> None:
    if old := _kept.pop(path, None):
        os.close(old[1])
    _kept[path] = version, descriptor
    if len(_kept) > KEPT_FILES:
        os.close(_kept.popitem(last=False)[1][1])


def _copied(store: Any, inner: str, path: str, size: int) -> int:
    """A descriptor of a file without a name that holds the object's bytes, all of them."""
    with tempfile.TemporaryFile(prefix="dledger-") as copy:
        for start in range(0, size, _CHUNK_BYTES):
            end = min(start + _CHUNK_BYTES, size)
            content = store.cat_file(inner, start=start, end=end)
            if len(content) != end - start:
                raise OSError(errno.EIO, "it changed while it was read", path)
            copy.write(content)
        copy.flush()
        return os.dup(copy.fileno())


def _is_file(entries: dict[str, dict[str, Any]], inner: str) -> bool:
    return any(each["type"] == "file" and each["name"] == inner for each in entries.values())


def _store(path: str) -> tuple[Any, str]:
    """The store that the path leads to, and the path within it."""
    scheme, _, inner = path.partition("://")
    try:
        import fsspec

        store = fsspec.filesystem(scheme)
    except (ImportError, ValueError) as error:
        raise StoreUnknown(
            f"{path} can't be read ({error}); s3:// needs the extra 's3': pip install 'dledger[s3]'"
        ) from error
    return store, inner


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Whatever a store's library raises is an `OSError` that names the path, and no secret."""
    try:
        yield
    except StoreUnknown:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except PermissionError as error:
        reason = "no permission: the store refuses these credentials"
        raise PermissionError(errno.EACCES, reason, path) from error
    except OSError as error:
        if error.filename == path or isinstance(error, ObjectsUnreadable):
            raise
        raise ObjectsUnreadable(path, first_line(error)) from error
    except Exception as error:  # Each store's library has errors of its own.
        if "Credentials" in type(error).__name__:  # botocore's: none, or a part of them
            raise PermissionError(errno.EACCES, first_line(error), path) from error
        raise ObjectsUnreadable(path, first_line(error)) from error


def first_line(error: BaseException) -> str:
    """What an error of a store's library says first, without secrets, colours and line ends."""
    lines = (
        "".join(each for each in line if each.isprintable()).strip()
        for line in str(error).splitlines()
    )
    text = next((line for line in lines if line), type(error).__name__)
    for name in _SECRETS:
        if secret := os.environ.get(name):
            text = text.replace(secret, "***")
    return text[:300]
