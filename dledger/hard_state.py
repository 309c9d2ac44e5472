"""Term and vote on disk.

This owns the bytes of the hard-state file and nothing else: replacing a file atomically (write,
fsync, rename, fsync of the directory) is the `AtomicFile` port's matter. It must never guess: a
file that is there and fails its check stops the node, because a forgotten vote is a second vote
(DLedger deletes the old file first, never fsyncs, and swallows the exception). The bytes are
`dledger.records.layout.HARD_STATE`.
"""

from __future__ import annotations

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


class HardStateStore:
    """Loads the hard state once and saves it on request; used on the flusher's thread."""

    def __init__(self, file: AtomicFile) -> None:
        self._file = file

    def load(self) -> HardState:
        """The saved state, or the initial one on a node that never saved any.

        Raises:
            HardStateCorrupt: see `decode_hard_state`.
        """
        content = self._file.read()
        return HardState() if content is None else decode_hard_state(content)

    def save(self, state: HardState) -> None:
        """`state` is durable when this returns; any OSError is fatal to the node (ADR 8)."""
        self._file.replace(encode_hard_state(state))
