"""Term and vote on disk.

This owns the bytes of the hard-state file and nothing else: replacing a file atomically (write,
fsync, rename, fsync of the directory) is the `AtomicFile` port's matter, and what is in a second
copy the `Copy`'s. It must never guess: a file that is there and fails its check stops the node
where no copy is known to be as new, because a forgotten vote is a second vote (DLedger deletes the
old file first, never fsyncs, and swallows the exception). The bytes are
`dledger.records.layout.HARD_STATE`.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

from crc32c import crc32c

from dledger.core.types import HardState, NodeId, Term
from dledger.errors import HardStateCorrupt
from dledger.records.layout import HARD_STATE

_HEAD: Final = HARD_STATE.struct()
_CRC: Final = HARD_STATE.run("crc")
_MAGIC: Final = HARD_STATE.constant("magic")
_VERSION: Final = HARD_STATE.constant("version")


class AtomicFile(Protocol):
    """A small file that is replaced as a whole, durably."""

    def read(self) -> bytes | None:
        """The content; None when the file doesn't exist."""
        ...

    def replace(self, content: bytes) -> None:
        """The file holds `content` durably when this returns; the old content before that."""
        ...


def encode_hard_state(state: HardState) -> bytes:
    """The file's bytes for `state`."""
    vote = (state.vote or "").encode()
    body = _HEAD.pack(_MAGIC, _VERSION, len(vote), state.term) + vote
    return body + _CRC.pack(crc32c(body))


def decode_hard_state(content: bytes) -> HardState:
    """The state in `content`.

    Raises:
        HardStateCorrupt: the length, CRC, magic or version is not what it must be.
    """
    if len(content) < _HEAD.size + _CRC.size:
        raise HardStateCorrupt(f"at least {_HEAD.size + _CRC.size} bytes", f"{len(content)}")
    body, (stored,) = content[: -_CRC.size], _CRC.unpack(content[-_CRC.size :])
    computed = crc32c(body)
    if computed != stored:
        raise HardStateCorrupt(f"CRC {stored:08x}", f"{computed:08x}")
    magic, version, vote_size, term = _HEAD.unpack_from(body)
    if magic != _MAGIC or version != _VERSION or len(body) != _HEAD.size + vote_size:
        raise HardStateCorrupt(
            f"magic {_MAGIC:08x} version {_VERSION}", f"{magic:08x} version {version}"
        )
    try:
        vote = body[_HEAD.size :].decode()
    except UnicodeDecodeError:
        raise HardStateCorrupt("a node id in UTF-8", body[_HEAD.size :].hex()) from None
    return HardState(Term(term), NodeId(vote) if vote else None)


class Copy(Protocol):
    """Where the same is written once more, in case that the file rots."""

    def write(self, content: bytes) -> None:
        """It holds `content` durably when this returns."""
        ...

    def is_sound(self, content: bytes) -> bool:
        """Whether it holds `content`."""
        ...


class HardStateStore:
    """Loads the hard state once and saves it on request, on the flusher's thread; whether the files
    are what was saved may be looked at from another one."""

    def __init__(self, file: AtomicFile) -> None:
        self._file = file
        self._copy: Copy | None = None
        self._saved: bytes | None = None
        self._lock = threading.Lock()

    def load(self) -> HardState:
        """The saved state, or the initial one on a node that never saved any.

        Raises:
            HardStateCorrupt: see `decode_hard_state`.
        """
        content = self._file.read()
        return HardState() if content is None else decode_hard_state(content)

    def save(self, state: HardState) -> None:
        """`state` is durable when this returns, in both places; any OSError is fatal to the node
        (ADR 8). The file first: the copy is believed only where that can't be read."""
        with self._lock:
            self._saved = encode_hard_state(state)
            self._write()

    def keep_copy(self, copy: Copy, state: HardState) -> None:
        """What is saved from now on is written to `copy` as well, which holds `state` already, as
        does the file."""
        with self._lock:
            self._copy = copy
            self._saved = encode_hard_state(state)

    def mend(self) -> bool:
        """Whether a place was found to be something else than what was saved; then it is written
        again. Raises OSError: see `save`."""
        with self._lock:
            if self._saved is None or self._is_sound(self._saved):
                return False
            self._write()
            return True

    def _is_sound(self, saved: bytes) -> bool:
        if self._copy is not None and not self._copy.is_sound(saved):
            return False
        try:
            return self._file.read() == saved
        except Exception:  # noqa: BLE001  whatever keeps it from being read, it is written again
            return False

    def _write(self) -> None:
        if self._saved is not None:
            self._file.replace(self._saved)
            if self._copy is not None:
                self._copy.write(self._saved)
