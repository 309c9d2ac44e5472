"""Where a log begins that doesn't begin with entry 1, and what is known of what was before.

This owns `<data>/log_start`, the note that stands for everything before the first entry, and
`<data>/install`, the same as an intent: that log, ConsumeQueues and checkpoint are to begin anew
so. A log begins behind the last entry of a segment, hence with a segment file
(docs/adr/0043-a-log-that-begins-later.md). It must never say that files may go before it says so
durably, nor leave an intent undone: whoever opens a directory settles it first of all.

    installing   segments, journals gone ─▶ checkpoint at the start ─▶ the intent becomes the note

Both are atomic files (`store.atomic_file.AtomicFile`) with the bytes of a
`dledger.reading.log_start.LogStart`. The state as of the entry before the first is a snapshot
(`store.snapshot_files`), and kept by others: for as long as either of the two may name it, be it
only in the page cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dledger.reading.log_start import FROM_THE_FIRST, NOTE, LogStart
from dledger.reading.log_start import decode_start as decoded
from dledger.records.errors import InvalidFrame
from dledger.records.layout import FILE_NAME, UNFINISHED_NAME, file_name
from store.atomic_file import AtomicFile
from store.checkpoint import Checkpoint
from store.errors import CorruptionFound, NotARegularFile, StorageFailed, StoreError
from store.files import LOST_ERRNOS, FileSystem, zero_range
from store.snapshot_files import FOLDER, RECEIVED

INTENT: Final = "install"


def decode_start(content: bytes, file: str) -> LogStart:
    """The start that `content`, of `file`, stands for.

    Raises:
        CorruptionFound: it stands for none.
    """
    try:
        return decoded(content)
    except InvalidFrame as error:
        raise CorruptionFound(file, 0, str(error.expected), error.found) from None


def _put(file: AtomicFile, path: Path, start: LogStart) -> None:
    """The file holds `start`, durably.

    A disk without space refuses before the file has its name, or only when the directory is synced.
    Then the next start may read the one or the other, nothing that this process does can tell
    which, and whoever went on might remove what the new one names (ADR 8).

    Raises:
        StorageFailed: it may hold it from now on, or not.
        OSError: it doesn't.
    """
    content = start.encode()
    try:
        file.replace(content)
    except OSError as error:
        if _may_hold(file, content):
            raise StorageFailed(f"the replacement of {path}", error) from error
        raise


def _may_hold(file: AtomicFile, content: bytes) -> bool:
    """Whether the file can't be told not to hold that: one that has rotted, and was to be mended,
    can."""
    try:
        return file.read() == content
    except StoreError:
        return False
    except OSError as error:
        return error.errno not in LOST_ERRNOS


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
        """Whether the note of a log that begins at `start` was found to be gone, or to say nothing;
        then it is written again. One that says more was written since: notes only go forward.

        Raises:
            OSError: it can't be.
        """
        if start == FROM_THE_FIRST:
            return False
        try:
            if self.read().index >= start.index:
                return False
        except (CorruptionFound, NotARegularFile):
            pass
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
        self.replace(start)
        return True

    def replace(self, start: LogStart) -> None:
        """The log begins so, durably.

        Raises:
            StorageFailed: the note may say so from now on, or not.
            OSError: it doesn't; it says what it said.
        """
        _put(self._file, self._path, start)


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
            StorageFailed: it may, or not.
            OSError: it doesn't.
        """
        _put(self._file, self._path, start)

    def read(self) -> LogStart | None:
        """What is intended; None: nothing is.

        Raises:
            CorruptionFound: the intent isn't what was written.
        """
        content = self._file.read()
        return None if content is None else decode_start(content, str(self._path))

    def make_room(self, start: LogStart) -> None:
        """Of what goes with the log that was, what a start of it can do without is gone: for what
        has to be written before the rest may go. `start` is what is intended, and its base whole.

        Raises:
            OSError: the disk failed.
        """
        self._clear_snapshots(file_name(start.index))

    def settle(self, segment_size: int) -> LogStart | None:
        """What was intended is done, durably; None if nothing was. A crash on the way leads here
        again. The directory's lock is held, and nothing of it is open.

        Raises:
            CorruptionFound: the intent isn't what was written.
        """
        content = self._file.settle()
        # What came of a base that was never installed, or was: it is a snapshot of its own by now.
        self._unlink(self._directory / FOLDER, [RECEIVED])
        if content is None:
            return None
        start = decode_start(content, str(self._path))
        self._clear(file_name(start.index))
        self._clear_segments(start.offset(segment_size), segment_size)
        checkpoint = Checkpoint(self._files, self._directory / "checkpoint")
        try:
            checkpoint.begin_at(start.offset(segment_size), start.index, start.append_time_ms)
        finally:
            checkpoint.close()
        # The intent becomes the note: both hold the same bytes, and a full disk takes no new file.
        self._files.rename(self._path, self._directory / NOTE)
        self._files.fsync_directory(self._directory)
        return start

    def _clear(self, base: str) -> None:
        """Nothing that goes with the log that was is left, but its base. What was derived from it
        lies before the units that come, or is cut off when the ConsumeQueues are settled."""
        directory = self._directory
        for name in ("truncation", "repair", "doubt.json", "suspected.json", "scrub.json"):
            self._unlink(directory, [name])
        self._clear_snapshots(base)
        seals = directory / "seal"
        self._unlink(seals, [n for n in self._listed(seals) if FILE_NAME.fullmatch(n)])

    def _clear_snapshots(self, base: str) -> None:
        snapshots = self._directory / FOLDER
        names = [n for n in self._listed(snapshots) if FILE_NAME.fullmatch(n.split(".")[0])]
        self._unlink(snapshots, [RECEIVED, *(name for name in names if name != base)])

    def _clear_segments(self, first: int, segment_size: int) -> None:
        """No segment is left; but one of zeros, the first of the log that comes, where the disk has
        no room for a new one: others may take at once what is set free."""
        segments = self._directory / "commitlog"
        names = self._listed(segments)
        self._unlink(segments, [n for n in names if UNFINISHED_NAME.fullmatch(n)])
        named = [n for n in names if FILE_NAME.fullmatch(n)]
        kept = [n for n in named if self._size(segments / n) == segment_size][-1:]
        self._unlink(segments, [n for n in named if n not in kept])
        if not kept or self._files.free_bytes(segments) >= segment_size:
            self._unlink(segments, kept)
            return
        handle = self._files.open(segments / kept[0])
        try:
            zero_range(self._files, handle, 0, segment_size, again=True)
            self._files.fsync(handle)
        finally:
            self._files.close(handle)
        self._files.rename(segments / kept[0], segments / file_name(first))
        self._files.fsync_directory(segments)

    def _size(self, path: Path) -> int:
        handle = self._files.open(path)
        try:
            return self._files.size(handle)
        finally:
            self._files.close(handle)

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
