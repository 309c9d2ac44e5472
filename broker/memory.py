"""What this node remembers of the other members' disks, across its own restarts.

This owns `<data>/raft/promises.json`. What peers have promised (`dledger.promises`) is written in
a round of housekeeping if something is new, so at most a second of it is lost with a process. It is
a witness and no promise of this node's own: a file that is missing, old or has rotted means that
less is noticed (docs/adr/0030-what-disks-have-promised.md), so it must never keep a node from
starting. One that the node may not read, or a disk that fails, does, as with any file of its own:
what it was a witness of is still there.

Bound: one record for each member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from dledger.core.types import DiskId, Index, NodeId, Term
from dledger.promises import Promises, Start
from store.directory import read_sealed, write_sealed
from store.errors import CorruptionFound, NotARegularFile
from store.files import FULL_ERRNOS, LOST_ERRNOS, FileSystem

FORMAT_VERSION: Final = 1
FILE_NAME: Final = "promises.json"

log = structlog.get_logger(__name__)


class Memory:
    """The file, and what it says.

    Args:
        files: the disk.
        folder: where the file is; it exists.
    """

    def __init__(self, files: FileSystem, folder: Path) -> None:
        self._files = files
        self._path = folder / FILE_NAME
        self._written: dict[NodeId, Promises] = {}

    def read(self) -> dict[NodeId, Promises]:
        """What the file says; nothing if there is none that can be read."""
        try:
            if self._files.exists(self._path):
                self._written = promises_in(read_sealed(self._files, self._path))
        except (CorruptionFound, NotARegularFile, ValueError) as error:
            log.warning("promises_not_remembered", file=str(self._path), reason=str(error))
        return self._written

    def step(self, promises: Mapping[NodeId, Promises]) -> Callable[[], None] | None:
        """What writes `promises`, to be run by whoever does blocking work; None if the file says
        the same."""
        if promises == self._written:
            return None
        return lambda: self._write(dict(promises))

    def mend(self) -> bool:
        """Whether the file was found to say something else than what was written; then it is
        written again. Blocks.

        Raises:
            OSError: it can't be.
        """
        if not self._written:
            return False
        try:
            if promises_in(read_sealed(self._files, self._path)) == self._written:
                return False
        except (CorruptionFound, NotARegularFile, ValueError):
            pass
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
        self._write(dict(self._written))
        return True

    def _write(self, promises: dict[NodeId, Promises]) -> None:
        """Raises OSError if the disk failed. One that is full keeps the older file."""
        fields = {
            "format_version": FORMAT_VERSION,
            "disks": {node: _fields(each) for node, each in sorted(promises.items())},
        }
        try:
            write_sealed(self._files, self._path, fields)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            return
        self._written = promises


def promises_in(stored: Mapping[str, object]) -> dict[NodeId, Promises]:
    """The records of a file that has been unsealed.

    Raises:
        ValueError: it holds something else.
    """
    disks = stored.get("disks")
    if stored.get("format_version") != FORMAT_VERSION or not isinstance(disks, dict):
        raise ValueError(f"no promises of format {FORMAT_VERSION}")
    if not all(isinstance(fields, dict) for fields in disks.values()):
        raise ValueError("promises without names")
    return {NodeId(node): _promises(fields) for node, fields in disks.items()}


def _fields(each: Promises) -> dict[str, object]:
    start = each.start
    return {
        "disk_id": each.disk.hex(),
        "start": start.number,
        "nonce": start.nonce,
        "begun_term": start.term,
        "begun_vote": start.vote,
        "begun_index": start.last_index,
        "synced": start.is_synced,
        "term": each.term,
        "vote": each.vote,
        "held_term": each.held_term,
        "held_index": each.held_index,
        "settled_index": each.settled_index,
    }


def _promises(fields: Mapping[str, object]) -> Promises:
    def number(key: str) -> int:
        return int(str(fields.get(key)))

    start = Start(
        number("start"),
        number("nonce"),
        Term(number("begun_term")),
        NodeId(str(fields.get("begun_vote"))),
        Index(number("begun_index")),
        is_synced=bool(fields.get("synced")),
    )
    return Promises(
        DiskId(bytes.fromhex(str(fields.get("disk_id")))),
        start,
        Term(number("term")),
        NodeId(str(fields.get("vote"))),
        Term(number("held_term")),
        Index(number("held_index")),
        Index(number("settled_index")),
    )
