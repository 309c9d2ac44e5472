"""Segments made before they are needed.

This owns the making of segment files, and the spare that waits to be written to. A file gets its
20-digit name only when it has its full size, durably, and it may be used only when that name is
durable too; so a crash leaves a whole segment or a `.tmp` that is thrown away. A full disk is
found here, ahead of any message, and costs nothing but `has_room` saying no until space is back.

Source: RocketMQ `AllocateMappedFileService`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.records.layout import file_name
from dledger.records.record import MIN_RECORD_SIZE
from store.dispatch import UNIT_SIZE
from store.errors import StorageFull
from store.files import CHUNK_BYTES, FULL_ERRNOS, PASSING_ERRNOS, FileSystem, Handle, write_all
from store.segments import Segment

RETRY_S: Final = 1.0
SPARES: Final = 1


@dataclass(frozen=True, slots=True)
class AllocationPolicy:
    """See `CommitLogOptions`, where these come from."""

    segment_size: int
    reserve_bytes: int
    warm_up: bool
    mlock: bool


class Preallocator:
    """Keeps `SPARES` segments ready. `take` and `give_back` are the owner thread's, `step` a
    worker's; the deque between them is safe for one thread at each end."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        policy: AllocationPolicy,
        next_base: int,
        on_failed: Callable[[str, BaseException], None],
    ) -> None:
        self.is_full = False
        self.pin_failure: str | None = None
        self._files = files
        self._directory = directory
        self._policy = policy
        self._next_base = next_base
        self._on_failed = on_failed
        self._spares: deque[Segment] = deque()
        self._retired: deque[Segment] = deque()
        self._wanted = SPARES
        self._scarce = ""  # what else than space the last attempt lacked, as the system calls it

    @property
    def ready(self) -> int:
        """How many segments can be taken without waiting."""
        return len(self._spares)

    def take(self) -> Segment | None:
        """The next segment; None while there is none."""
        return self._spares.popleft() if self._spares else None

    def give_back(self, segments: Iterable[Segment]) -> None:
        """Segments that a truncation emptied, in log order, are the next ones to be taken."""
        self._spares.extendleft(reversed(list(segments)))

    def want(self, count: int) -> bool:
        """At least `count` spares are made from now on; False if that many were wanted already."""
        is_news = count > self._wanted
        self._wanted = max(self._wanted, count)
        return is_news or not self.is_full

    def retire(self, segment: Segment) -> None:
        """`segment` is full; its pages need no longer be pinned."""
        if self._policy.mlock:
            self._retired.append(segment)

    def shortage(self, count: int) -> StorageFull:
        """The error for `count` segments being needed and not ready."""
        free = self._files.free_bytes(self._directory)
        needed = count * self._policy.segment_size
        return StorageFull(str(self._directory), needed, free, self._scarce)

    def step(self) -> float | None:
        """The spares are complete, or the disk is full; see `store.worker.Step`."""
        try:
            while self._retired:
                self._files.unpin(self._retired.popleft().handle)
            while len(self._spares) < self._wanted:
                self._spares.append(self.create())
        except StorageFull as error:
            self._scarce = error.scarce
            self.is_full = True
            return RETRY_S
        except Exception as error:  # noqa: BLE001 - the thread's boundary: the node must hear of it
            self._on_failed("preallocation", error)
            return None
        self.is_full, self._scarce = False, ""
        self._wanted = SPARES
        return None

    def create(self) -> Segment:
        """The segment behind the last one made, durable, name and all.

        Raises:
            StorageFull: it would leave less than the reserve and the units to come, or doesn't
                fit at all.
        """
        return self._create(self._policy.reserve_bytes + self._units_to_come())

    def create_first(self) -> Segment:
        """The first segment of a log that has none, durable, name and all. One that begins anew
        behind a base takes it from what is kept free, if it must: the segments that it had were
        room enough a moment ago, and on a full disk no process of this member's would begin again.

        Raises:
            StorageFull: it doesn't fit.
        """
        return self.create() if self._next_base == 0 else self._create(0)

    def _create(self, kept_free: int) -> Segment:
        free = self._files.free_bytes(self._directory)
        needed = self._policy.segment_size + kept_free
        if free < needed:
            raise StorageFull(str(self._directory), needed, free)
        path = self._directory / file_name(self._next_base)
        segment = Segment(self._next_base, path, self._make_file(path))
        self._next_base += self._policy.segment_size
        if self._policy.mlock:
            self.pin_failure = self._files.pin(segment.handle)
        return segment

    def close(self) -> None:
        """The spares' files are closed; they stay where they are for the next start."""
        for segment in self._spares:
            self._files.close(segment.handle)
        self._spares.clear()

    def _units_to_come(self) -> int:
        """Bytes of ConsumeQueues that records may still need: those of the segment being written,
        the spares and a new one, were they full of the smallest records. Space that is promised
        to a log must do for what is derived from it as well."""
        unfilled = min(len(self._spares) + 2, self._next_base // self._policy.segment_size + 1)
        return unfilled * self._policy.segment_size * UNIT_SIZE // MIN_RECORD_SIZE

    def _make_file(self, path: Path) -> Handle:
        """The segment's file, of full size and under its name, durably. An attempt that fails takes
        away what it has made, as the next one begins anew; its name, too, unless it is durable."""
        files = self._files
        made = path.with_name(path.name + ".tmp")
        try:
            handle = self._create_file(made)
        except OSError as error:
            raise self._told(error) from error
        try:
            files.fallocate(handle, self._policy.segment_size)
            if self._policy.warm_up:
                self._write_zeros(handle)
            files.fsync(handle)
            files.rename(made, path)
            made = path
            files.fsync_directory(self._directory)
        except OSError as error:
            files.close(handle)
            with contextlib.suppress(OSError):  # the first error says what is wrong
                files.unlink(made)
            raise self._told(error) from error
        return handle

    def _create_file(self, temporary: Path) -> Handle:
        """A new file. An attempt that could not even take away what it had made has left one; what
        has got the segment's name already is replaced by the rename."""
        try:
            return self._files.create(temporary)
        except FileExistsError:
            self._files.unlink(temporary)
            return self._files.create(temporary)

    def _told(self, error: OSError) -> Exception:
        """StorageFull where that is what `error` means: the next attempt may succeed."""
        if error.errno not in PASSING_ERRNOS:
            return error
        scarce = "" if error.errno in FULL_ERRNOS else str(error.strerror)
        free = self._files.free_bytes(self._directory)
        return StorageFull(str(self._directory), self._policy.segment_size, free, scarce)

    def _write_zeros(self, handle: Handle) -> None:
        """Each page is in the page cache and its block written, so that a later fdatasync needn't
        turn unwritten extents into written ones."""
        zeros = bytes(min(CHUNK_BYTES, self._policy.segment_size))
        for at in range(0, self._policy.segment_size, len(zeros)):
            size = min(len(zeros), self._policy.segment_size - at)
            write_all(self._files, handle, [memoryview(zeros)[:size]], at)
