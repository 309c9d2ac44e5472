"""Cutting the log's tail off, so that it can never come back.

Raft truncates a follower's conflicting tail, and recovery cuts what a crash tore. In both cases a
frame that was cut must not be found valid by a later recovery, not even when the power fails in
the middle. So: an intent file says durably where the cut is; the tail is overwritten with zeros,
from its end backwards, and synced; the watermark is lowered, synced; then the intent goes. A
crash between any two of these leaves the intent, and opening the log does all of it again, also
where zeros are read: the sync may be what ended the process, and then they are in the page cache
and nowhere else.

The intent file `<data>/truncation` is an `AtomicFile`: `dledger.records.layout.TRUNCATION_INTENT`.

Source: FAST'18, "Protocol-Aware Recovery for Consensus-Based Storage", on truncating safely.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dledger.records.layout import TRUNCATION_INTENT
from store.atomic_file import AtomicFile
from store.checkpoint import Checkpoint
from store.errors import CorruptionFound
from store.files import FileSystem, Handle, zero_range

_MAGIC: Final = TRUNCATION_INTENT.constant("magic")
_VERSION: Final = TRUNCATION_INTENT.constant("version")
_INTENT: Final = TRUNCATION_INTENT.struct()

SPARE_BYTES: Final = 512  # of a block, which any file system gives whole


class ZeroRange(NamedTuple):
    """Bytes `[start, end)` of one segment file that are to read as zeros."""

    handle: Handle
    start: int
    end: int


class TruncationIntent:
    """The intent file: present exactly while a cut is being made. Between cuts its space waits
    beside it under another name, so that a full disk never keeps a follower from its leader's log
    (ADR 28)."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._file = AtomicFile(files, path, SPARE_BYTES)
        self._files = files
        self._path = path

    def settle(self) -> None:
        """What a former process left is what the platter has, and a cut needs no space.

        Raises:
            OSError: ENOSPC, where there is no space for the next one.
        """
        # The name comes first: written to while the platter takes it for an intent, a spare could
        # be found torn.
        self._files.fsync_directory(self._path.parent)
        if not self._files.exists(self._path):
            self._file.keep_space()

    def read(self) -> int | None:
        """The physical offset of an unfinished cut; None if there is none.

        Raises:
            CorruptionFound: the file is there but not intact. It is renamed into place only when
                complete, so no crash explains that.
        """
        content = self._file.read()
        if content is None:
            return None
        if len(content) != _INTENT.size:
            raise CorruptionFound(str(self._path), 0, f"{_INTENT.size} bytes", len(content))
        magic, version, cut = _INTENT.unpack(content)
        if magic != _MAGIC or version != _VERSION:
            expected = f"magic {_MAGIC:08x} version {_VERSION}"
            raise CorruptionFound(str(self._path), 0, expected, f"{magic:08x} {version}")
        return int(cut)

    def write(self, cut: int) -> None:
        """A crash from here on leads to the cut at `cut` being made again."""
        if self._files.exists(self._path) and self.read() == cut:
            return  # a crash has led to it, and `settle` has made sure that it stays
        self._file.replace(_INTENT.pack(_MAGIC, _VERSION, cut))

    def remove(self) -> None:
        """The cut is done."""
        self._file.remove()


def cut_tail(
    files: FileSystem,
    intent: TruncationIntent,
    checkpoint: Checkpoint,
    cut: int,
    ranges: Sequence[ZeroRange],
    *,
    again: bool = False,
) -> int:
    """Everything of the log from physical offset `cut` on is gone, durably.

    Args:
        ranges: what may hold bytes beyond the cut, in log order.
        again: the process that began it has died.

    Returns:
        How many bytes were overwritten.
    """
    intent.write(cut)
    zeroed = 0
    for each in reversed(ranges):
        zeroed += zero_range(files, each.handle, each.start, each.end, again=again)
    for each in ranges:
        files.fdatasync(each.handle)
    checkpoint.lower(cut)
    checkpoint.sync()
    intent.remove()
    return zeroed
