"""Where a log begins that doesn't begin with entry 1, and what is known of what was before.

This owns `<data>/log_start`, the note that stands for everything before the first entry, and
`<data>/install`, the same as an intent: that log, ConsumeQueues and checkpoint are to begin anew
so. A log begins behind the last entry of a segment, hence with a segment file
(docs/adr/0043-a-log-that-begins-later.md). It must never say that files may go before it says so
durably, nor leave an intent undone: whoever opens a directory settles it first of all.

    installing   segments, journals gone ─▶ note ─▶ checkpoint at the start ─▶ intent gone

Both are atomic files (`store.files.AtomicFile`) with the bytes of
`dledger.records.layout.LOG_START`. The state as of the entry before the first is a snapshot
(`store.snapshot_files`), and kept by others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.records.layout import FILE_NAME, LOG_START, UNFINISHED_NAME, file_name
from store.checkpoint import Checkpoint
from store.errors import CorruptionFound, NotARegularFile
from store.files import LOST_ERRNOS, AtomicFile, FileSystem

NOTE: Final = "log_start"
INTENT: Final = "install"
_MAGIC: Final = LOG_START.constant("magic")
_VERSION: Final = LOG_START.constant("version")
_HEAD: Final = LOG_START.struct()


@dataclass(frozen=True, slots=True)
class LogStart:
    """What a log knows of what was before its first entry. All zeros: nothing was, it begins with
    entry 1.

    Attributes:
        index, term, digest, append_time_ms: of the last entry before the first.
        end_offset: the byte behind that one.
        configuration_index, configuration_term: of the configuration in force there; 0: none.
        configuration: the body of that entry.
    """

    index: int = 0
    term: int = 0
    digest: int = 0
    end_offset: int = 0
    append_time_ms: int = 0
    configuration_index: int = 0
    configuration_term: int = 0
    configuration: bytes = b""

    @property
    def first_index(self) -> int:
        """The first entry of the log."""
        return self.index + 1

    def offset(self, segment_size: int) -> int:
        """The physical offset at which the log begins: that of a segment."""
        return -(-self.end_offset // segment_size) * segment_size

    def encode(self) -> bytes:
        """The bytes that stand for it."""
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            self.index,
            self.term,
            self.digest,
            self.end_offset,
            self.append_time_ms,
            self.configuration_index,
            self.configuration_term,
            len(self.configuration),
        )
        return head + self.configuration


FROM_THE_FIRST: Final = LogStart()


def decode_start(content: bytes, file: str) -> LogStart:
    """The start that `content`, of `file`, stands for.

    Raises:
        CorruptionFound: it stands for none.
    """
    if len(content) < _HEAD.size:
        raise CorruptionFound(file, 0, f"{_HEAD.size} bytes", len(content))
    magic, version, *values, size = _HEAD.unpack_from(content)
    if (magic, version) != (_MAGIC, _VERSION):
        expected = f"magic {_MAGIC:08x} version {_VERSION}"
        raise CorruptionFound(file, 0, expected, f"{magic:08x} {version}")
    if len(content) != _HEAD.size + size:
        raise CorruptionFound(file, 0, f"{_HEAD.size + size} bytes", len(content))
    index, term, digest, end, time_ms, place, place_term = values
    body = content[_HEAD.size :]
    start = LogStart(index, term, digest, end, time_ms, place, place_term, body)
    if not (start.term > 0 and start.configuration_index <= start.index and start.end_offset):
        raise CorruptionFound(file, 0, "the end of an entry", start)
    return start


class StartNote:
    """The note of one data directory. Its methods block."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._path = directory / NOTE
        self._file = AtomicFile(files, self._path)

    def read(self) -> LogStart:
        """Where the log begins.

        Raises:
            CorruptionFound: the note isn't what was written.
        """
        content = self._file.read()
        return FROM_THE_FIRST if content is None else decode_start(content, str(self._path))

    def settle(self) -> LogStart:
        """`read`, of what the platter has: files that it gives up may be gone already.

        Raises:
            CorruptionFound: the note isn't what was written.
        """
        content = self._file.settle()
        return FROM_THE_FIRST if content is None else decode_start(content, str(self._path))

    def mend(self, start: LogStart) -> bool:
        """Whether the note of a log that begins at `start` was found to say nothing; then it is
        written again. One that says something else was written since.

        Raises:
            OSError: it can't be.
        """
        if start == FROM_THE_FIRST:
            return False
        try:
            self.read()
        except (CorruptionFound, NotARegularFile):
            pass
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
        else:
            return False
        self.replace(start)
        return True

    def replace(self, start: LogStart) -> None:
        """The log begins so, durably.

        Raises:
            OSError: it may or may not.
        """
        self._file.replace(start.encode())


class Install:
    """The intent of one data directory to begin its log anew. Its methods block."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._path = directory / INTENT
        self._file = AtomicFile(files, self._path)

    def intend(self, start: LogStart) -> None:
        """The next start begins with an empty log behind `start`; its base is there already.

        Raises:
            OSError: it may or may not.
        """
        self._file.replace(start.encode())

    def settle(self, segment_size: int) -> LogStart | None:
        """What was intended is done, durably; None if nothing was. A crash on the way leads here
        again. The directory's lock is held, and nothing of it is open.

        Raises:
            CorruptionFound: the intent isn't what was written.
        """
        content = self._file.settle()
        if content is None:
            return None
        start = decode_start(content, str(self._path))
        self._clear(file_name(start.index))
        StartNote(self._files, self._directory).replace(start)
        checkpoint = Checkpoint(self._files, self._directory / "checkpoint")
        try:
            checkpoint.begin_at(start.offset(segment_size), start.index, start.append_time_ms)
        finally:
            checkpoint.close()
        self._file.remove()
        return start

    def _clear(self, base: str) -> None:
        """Nothing of the log that was is left, but its base. What was derived from it lies before
        the units that come, or is cut off when the ConsumeQueues are settled."""
        directory = self._directory
        for name in ("truncation", "repair"):
            self._unlink(directory, [name])
        snapshots = directory / "snapshot"
        names = [n for n in self._listed(snapshots) if FILE_NAME.fullmatch(n.split(".")[0])]
        others = [name for name in names if name != base]
        self._unlink(snapshots, others)
        seals = directory / "seal"
        self._unlink(seals, [n for n in self._listed(seals) if FILE_NAME.fullmatch(n)])
        segments = directory / "commitlog"
        names = self._listed(segments)
        self._unlink(segments, [n for n in names if FILE_NAME.fullmatch(n)])
        self._unlink(segments, [n for n in names if UNFINISHED_NAME.fullmatch(n)])

    def _listed(self, folder: Path) -> list[str]:
        return sorted(self._files.listdir(folder)) if self._files.exists(folder) else []

    def _unlink(self, folder: Path, names: Iterable[str]) -> None:
        is_changed = False
        for name in names:
            if self._files.exists(folder / name):
                self._files.unlink(folder / name)
                is_changed = True
        if is_changed:
            self._files.fsync_directory(folder)
