"""Snapshots of the replicated state on this member's disk: when one is due, written, named, used.

This owns the order in which one comes to be, and the judgement by which a start takes it for the
state or doesn't (docs/adr/0038-snapshots-of-state-on-disk.md). A snapshot speaks of entries that
are committed, applied and this disk's own: it is written only when the checkpoint notes so, and a
start believes it only as far as it believes the checkpoint.

    none ─ due ─▶ taken ─ noted ─▶ unfinished ─▶ whole ─▶ named ─▶ newest ─▶ older ─▶ removed

It must never be needed: what can't be written or read is told, and the member has its log. Nor may
it hold the event loop: only copying what changes is one turn, the rest goes in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Final, Protocol

import structlog

from broker.ending import DISK_ERRNOS
from broker.state.errors import SnapshotDamaged, SnapshotRefused, SnapshotUnknown
from broker.state.layout import EARLIEST_BASE
from broker.state.machine import MachineOptions, StateMachine
from broker.state.queue_files import QueueFiles
from store.commitlog import CommitLog
from store.errors import (
    CorruptionFound,
    NotARegularFile,
    OutOfRange,
    SnapshotOfAnother,
    StorageFailed,
)
from store.files import FULL_ERRNOS
from store.snapshot_files import SnapshotFiles, SnapshotHead, Unfinished
from store.starting.errors import BaseMissing, BaseUnknown
from store.starting.snapshots import head_at, opened_own

TRIED: Final = 4  # of the newest; two are kept
# Why a snapshot is none; never why a member doesn't start.
REFUSALS: Final = (SnapshotRefused, SnapshotOfAnother, CorruptionFound, NotARegularFile, OSError)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotPace:
    """When the next snapshot is due: as soon as the log has begun another segment, or so many
    entries or bytes follow the last one. But all of them together take a share of the time at most.

    Attributes:
        entries, bytes: what is applied again in about a second.
        share: writing one may take the `share`-th part of the time until the next,
        longest_s: and no more than this is waited for it: a write that was held up, by the disk or
            with the process, has worked for none of that time.
        retry_s: from one that couldn't be written to the next.
    """

    entries: int = 25_000
    bytes: int = 128 << 20
    share: int = 10
    longest_s: float = 300.0
    retry_s: float = 30.0


USUAL_PACE: Final = SnapshotPace()


@dataclass(frozen=True, slots=True)
class SnapshotStatistics:
    """`index`, `size_bytes`: of the newest that is known to be good, 0 if there is none; the size
    is known of those that this process wrote. Counts since the process started."""

    index: int
    size_bytes: int
    written: int
    failed: int
    last_seconds: float


class Hand(Protocol):
    """`broker.ports.DiskHand`, as far as it is used here."""

    async def run(self, step: Callable[[], object]) -> object: ...


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """What is written, and what it must wait for.

    Attributes:
        machine: whose state it is.
        log: what the state was made of; its checkpoint notes what is durable.
        disk_id: of the data directory.
    """

    machine: StateMachine
    log: CommitLog
    disk_id: bytes

    def head(self) -> SnapshotHead:
        """Of a snapshot that is taken now. Raises CorruptionFound: the log has rotted there."""
        return head_at(self.log, self.disk_id, self.machine.applied_index)

    def noted(self) -> int:
        """Through which entry everything is derived and durable."""
        return self.log.checkpoint.state.consume_queue_index


class BaseOf(Enum):
    """Whose state it is that a log is to begin with."""

    OWN = auto()  # computed from the log that there is
    PEER = auto()  # got for the log that is to be begun anew


class SnapshotKeeper:
    """Writes snapshots, one at a time, in a step after each round of housekeeping.

    Args:
        source: of what.
        files: where to.
        hand: runs the blocking steps.
        share: begins a piece of work; see `dledger.ports.Turns`.
        restored: the one that this start began with.
    """

    def __init__(
        self,
        source: SnapshotSource,
        files: SnapshotFiles,
        hand: Hand,
        share: Callable[[], Callable[[], bool]],
        restored: SnapshotHead | None,
        pace: SnapshotPace = USUAL_PACE,
    ) -> None:
        self.source = source
        self._files = files
        self._hand = hand
        self._share = share
        self._pace = pace
        self._newest = restored
        self._before: SnapshotHead | None = None  # the one that is kept besides
        self._bases: dict[BaseOf, int] = {}  # kept for what a log begins with, or is to
        self._taken: tuple[SnapshotHead, Iterator[bytes]] | None = None  # waits for the note
        self._coming = 0  # gets its name, and counts from then on; 0: none does
        self._is_for_want_of_space = False
        self._is_writing = False  # one file is on its way at a time, whoever asks
        self._refusal = ""  # why the last one couldn't be written
        self._waits = False  # what this log is to begin with isn't written yet
        self._not_before_s = 0.0
        self._size_bytes = self._written = self._failed = 0
        self._last_s = 0.0

    def statistics(self) -> SnapshotStatistics:
        """A frozen picture, as of now."""
        index = 0 if self._newest is None else self._newest.applied_index
        return SnapshotStatistics(
            index, self._size_bytes, self._written, self._failed, self._last_s
        )

    def kept(self) -> list[int]:
        """Of which entries there are snapshots that are known to be good, the newest first; but for
        the one that the log begins with, which is more than that."""
        both = (self._newest, self._before)
        indexes = [each.applied_index for each in both if each is not None]
        return [index for index in indexes if index != self.source.log.start.index]

    def bases(self) -> set[int]:
        """Of which entries there are, or are going to be, snapshots that a log begins with."""
        return {self.source.log.start.index, *self._bases.values()}

    def forget(self, index: int) -> None:
        """The snapshot as of entry `index` isn't what was written: it counts no more."""
        if self._newest is not None and self._newest.applied_index == index:
            self._newest = self._before
            self._before = None
        elif self._before is not None and self._before.applied_index == index:
            self._before = None

    async def write_base(self, head: SnapshotHead, chunks: Iterator[bytes], whose: BaseOf) -> bool:
        """Another state is kept besides: the one that the log is to begin with (ADR 43), until
        there is another of the same kind. False if it isn't there; why was told. It frees more than
        it takes: on a full disk all other snapshots make room for it, which a start can do without,
        and none is begun before it.

        Raises:
            OSError, StorageFailed: the disk failed.
        """
        if self._is_writing:
            return False
        self._is_writing = True
        self._bases[whose] = head.applied_index
        try:
            is_written = await self._write(head, chunks, takes_reserve=True) is not None
            if not is_written and self._is_for_want_of_space:
                await self._give_up()
            if whose is BaseOf.OWN:
                self._waits = not is_written
            return is_written
        finally:
            self._is_writing = False

    async def begin_at(self, base: SnapshotHead) -> None:
        """The log begins with that state: those before it are of no use any more.

        Raises:
            OSError: the disk failed.
        """
        index = base.applied_index
        if self._taken is not None and self._taken[0].applied_index < index:
            self._taken = None
        if self._newest is None or self._newest.applied_index < index:
            self._newest, self._before = base, None
        elif self._before is not None and self._before.applied_index < index:
            self._before = base
        await self._remove_others()

    @property
    def base_waits(self) -> str:
        """Why what this log is to begin with isn't written yet; empty: nothing waits."""
        return self._refusal if self._waits else ""

    async def _give_up(self) -> None:
        """All are gone but what the log begins with, or is to: a start has that, and the log."""
        self._newest = self._before = self._taken = None
        await self._remove_others()
        try:
            await self._hand.run(self._files.remove_copies)
        except OSError as error:
            if error.errno in DISK_ERRNOS:
                raise
            log.warning("snapshot_not_removed", reason=str(error))

    async def step(self) -> None:
        """One is taken if it is due, and written and named if it may be.

        Raises:
            OSError, StorageFailed: the disk failed.
            CorruptionFound: the log has rotted.
        """
        if self._is_writing:
            return
        if self._taken is None and not self._waits and self._is_due():
            self._taken = self.source.head(), self.source.machine.snapshot()
        if self._taken is not None and self.source.noted() >= self._taken[0].applied_index:
            taken, self._taken = self._taken, None
            self._is_writing, self._coming = True, taken[0].applied_index
            try:
                written = await self._write(*taken)
                if written is not None:
                    await self._count(written)
            finally:
                self._is_writing, self._coming = False, 0

    def _is_due(self) -> bool:
        applied = self.source.machine.applied_index
        before = self._newest
        index, end = (0, 0) if before is None else (before.applied_index, before.end_offset)
        # What the log begins with is there, also where it counts as no snapshot, as one by earlier
        # rules doesn't: it is what others hold, and stays as it is.
        if applied <= max(index, self.source.log.start.index):
            return False
        if asyncio.get_running_loop().time() < self._not_before_s:
            return False
        if applied - index >= self._pace.entries:
            return True
        header = self.source.log.header_at(applied)
        now_end = header.physical_offset + header.total_size
        size = self.source.log.options.segment_size_bytes
        return now_end - end >= self._pace.bytes or now_end // size > end // size

    async def _write(
        self, head: SnapshotHead, chunks: Iterator[bytes], *, takes_reserve: bool = False
    ) -> Unfinished | None:
        """What was taken is in a file that has its name; None if it isn't, which is told."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        unfinished: Unfinished | None = None

        def begin() -> None:
            nonlocal unfinished
            unfinished = self._files.begin(head, takes_reserve=takes_reserve)

        try:
            await self._hand.run(begin)
            if unfinished is not None:
                await self._fill(unfinished, chunks)
                # What it speaks of must be noted on the platter by the time that its name is.
                await self._hand.run(self._sync_note)
                await self._hand.run(partial(self._files.publish, unfinished))
        except (OSError, NotARegularFile) as error:
            if unfinished is not None:
                await self._hand.run(unfinished.drop)
            self._not_written(error)
            return None
        self._last_s = loop.time() - began_s
        rest_s = min(self._pace.share * self._last_s, self._pace.longest_s)
        self._not_before_s = loop.time() + rest_s
        return unfinished

    def _sync_note(self) -> None:
        """The checkpoint is synced. That is the log's, and nothing about it may be lenient.

        Raises:
            StorageFailed: it wasn't, for whatever reason; a full disk is none better.
        """
        try:
            self.source.log.checkpoint.sync()
        except OSError as error:
            raise StorageFailed("the checkpoint's sync", error) from error

    async def _fill(self, unfinished: Unfinished, chunks: Iterator[bytes]) -> None:
        """Chunks are made on the loop, a piece a turn, and written beside it."""
        gathered: list[bytes] = []
        is_enough = self._share()
        for chunk in chunks:
            gathered.append(chunk)
            if is_enough():
                await self._hand.run(partial(unfinished.add, gathered))
                gathered, is_enough = [], self._share()
        await self._hand.run(partial(unfinished.add, gathered))
        await self._hand.run(unfinished.finish)

    async def _count(self, named: Unfinished) -> None:
        """It is the newest, and of the others only the one before is kept; unless the log begins
        behind it by now."""
        if self._newest is None or self._newest.applied_index < named.head.applied_index:
            self._before, self._newest = self._newest, named.head
        self._coming, self._size_bytes = 0, named.size_bytes
        self._written += 1
        index = named.head.applied_index
        log.info("snapshot_written", index=index, size_bytes=named.size_bytes, took_s=self._last_s)
        await self._remove_others()

    async def _remove_others(self) -> None:
        """Only the newest two are left, and what the log begins with, or is to. What is asked for
        while another one gets its name is done behind that: that one stays, too."""
        two = {each.applied_index for each in (self._newest, self._before) if each is not None}
        kept = {*two, *self.bases(), self._coming}
        await self._hand.run(partial(self._remove_all_but, kept))

    def _remove_all_but(self, kept: set[int]) -> None:
        try:
            failed = self._files.remove_all_but(kept)
        except OSError as error:
            failed = [str(error)]
        for reason in failed:
            log.warning("snapshot_not_removed", reason=reason)

    def _not_written(self, error: OSError | NotARegularFile) -> None:
        """Told, and tried again later; unless the disk itself has failed (ADR 8).

        Raises:
            OSError: it has.
        """
        if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
            raise error
        self._failed += 1
        is_news = not self._waits or self._refusal != str(error)
        self._refusal = str(error)
        self._is_for_want_of_space = isinstance(error, OSError) and error.errno in FULL_ERRNOS
        self._not_before_s = asyncio.get_running_loop().time() + self._pace.retry_s
        if is_news:  # what a log is to begin with is tried again and again
            log.warning("snapshot_not_written", reason=str(error), retry_s=self._pace.retry_s)


# --- the state that a log begins with ---------------------------------------------------------


class NoFiles:
    """`QueueFiles` that keep nothing: for a machine that only reads the log."""

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        return None

    def delete_topic(self, topic: str) -> None:
        return None


_NO_FILES: Final = NoFiles()


@dataclass(frozen=True, slots=True)
class Base:
    """What a log begins with: an empty state, or the one as of the entry before its first, which is
    kept for as long as the log begins there (ADR 43).

    Attributes:
        files: where that is.
        log, disk_id: whose.
        options, known_level: of the machines made of it.
    """

    files: SnapshotFiles
    log: CommitLog
    disk_id: bytes
    options: MachineOptions
    known_level: int

    def machine(self, queues: QueueFiles) -> StateMachine:
        """A machine in that state. Reads a file, but for the empty one.

        Raises:
            BaseMissing: there is no such state, or it isn't what was written.
            BaseUnknown: it is another program's.
        """
        index, options, level = self.log.start.index, self.options, self.known_level
        if not index:
            return StateMachine(queues, options=options, known_level=level)
        try:
            with opened_own(self.files, self.log, self.disk_id, index) as (_, chunks):
                return base_restored(chunks, options, level, queues)
        except (OutOfRange, *REFUSALS) as error:
            if self.log.start.index != index:
                return self.machine(queues)  # it begins later by now: this runs beside that
            if isinstance(error, OutOfRange):
                raise
            refused = BaseUnknown if isinstance(error, SnapshotUnknown) else BaseMissing
            file = str(self.files.path(index))
            raise refused(file, self.log.first_index, str(error)) from error

    def restored(self, chunks: Iterable[bytes]) -> StateMachine:
        """A machine with the state that these are, which was checked before."""
        return base_restored(chunks, self.options, self.known_level)

    def refusal_of(self, head: SnapshotHead) -> str | None:
        """See `refusal_of`."""
        return refusal_of(self.files, head, self.options, self.known_level)


def base_restored(
    chunks: Iterable[bytes],
    options: MachineOptions,
    known_level: int,
    queues: QueueFiles = _NO_FILES,
) -> StateMachine:
    """A machine in a state that a log begins with. Nobody has what that state was made of: so one
    that an earlier release made is taken, too (ADR 38). Raises SnapshotRefused: it is none."""
    return StateMachine.restore(
        chunks, queues, options=options, known_level=known_level, earliest_rules=EARLIEST_BASE
    )


def refusal_of(
    files: SnapshotFiles, head: SnapshotHead, options: MachineOptions, known_level: int
) -> str | None:
    """Why the state that was written as of that entry isn't one that a log can begin with; None if
    it is. Reads the file, as a start does."""
    try:
        with files.opened(head.applied_index) as (found, chunks):
            if found != head:
                return f"its head is {found}"
            base_restored(chunks, options, known_level)
    except REFUSALS as error:
        return str(error)
    return None


# --- at a start -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restored:
    """The state as of a snapshot, and whose that is."""

    head: SnapshotHead
    machine: StateMachine


def restore_newest(
    files: SnapshotFiles,
    source: CommitLog,
    disk_id: bytes,
    through: int,
    make: Callable[[Iterable[bytes]], StateMachine],
) -> Restored | None:
    """The state as of the newest snapshot that is this disk's, of this log, whole, and of nothing
    that this start doesn't take for committed; None if there is none. The others are told.

    Args:
        through: the entry up to which everything is committed, for all that this start knows.
        make: `StateMachine.restore`.
    """
    try:
        found = files.indexes()
    except OSError as error:
        log.warning("snapshots_unreadable", reason=str(error))
        return None
    found = [index for index in found if index >= source.start.index]  # the log tells of no other
    beyond = [index for index in found if index > through]
    if beyond:
        log.warning("snapshots_beyond_the_note", noted_index=through, newest_index=beyond[0])
    for index in [index for index in found if 0 < index <= through][:TRIED]:
        try:
            with opened_own(files, source, disk_id, index) as (head, chunks):
                return _restored(head, make(chunks))
        except REFUSALS as error:
            log.warning("snapshot_refused", file=str(files.path(index)), reason=str(error))
    return None


def _restored(head: SnapshotHead, machine: StateMachine) -> Restored:
    """Raises SnapshotDamaged: the state isn't of the entry that the file says."""
    if machine.applied_index != head.applied_index:
        expected = f"that of entry {head.applied_index}"
        raise SnapshotDamaged("state", expected, machine.applied_index)
    return Restored(head, machine)
