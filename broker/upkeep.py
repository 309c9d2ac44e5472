"""Looks, pass after pass, at what lies beside the log, and puts right what has rotted there.

A scrub's pass over the log (`broker.scrubbing`) ends with these: the small files that a start
needs, seals, snapshots of state, the base of a log that begins later, and the ConsumeQueues. Of
each this process knows what it must hold, or can make it anew; only a base is known to nobody here,
and kept twice for that. What is found is told, with what became of it. It must never end a member
over what isn't the log's, nor drop what it only couldn't read for want of something: that is tried
again in the next pass. Only a disk that fails ends it (ADR 8).

    looked at ─▶ sound
        └─▶ something else ─▶ written again from memory, or dropped and made anew when it is due
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog

from broker.ending import DISK_ERRNOS
from broker.mending import Mender
from broker.snapshots import SnapshotKeeper
from broker.state.machine import StateMachine
from broker.state.replay import FolderKey, QueueStarts
from broker.state.topics import TopicState
from dledger.records.layout import UNIT
from store.files import FileSystem
from store.keepsakes import Keepsake
from store.queue_look import STEP_BYTES, QueueLook
from store.seals import SealLook, Seals
from store.snapshot_files import BaseFound, SnapshotFiles, SnapshotHead

QUEUES_A_STEP: Final = 64

T = TypeVar("T")

log = structlog.get_logger(__name__)


class Hand(Protocol):
    """`broker.ports.DiskHand`, as far as it is used here."""

    async def run(self, step: Callable[[], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class KeptQueues:
    """The ConsumeQueues, and what says what they must hold.

    Attributes:
        files, root, units_per_file: where they lie.
        machine: whose units they are: it knows how many each has, and their CRC32C.
        starts: where queues begin whose first units are of entries that are gone.
        mender: derives them again.
    """

    files: FileSystem
    root: Path
    units_per_file: int
    machine: StateMachine
    starts: Callable[[], QueueStarts]
    mender: Mender


@dataclass(frozen=True, slots=True)
class KeptBase:
    """What the log begins with.

    Attributes:
        head: what it says of itself; as of entry 0: there is none.
        rotted: is told that neither of its copies is what was written.
    """

    head: Callable[[], SnapshotHead]
    rotted: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What one queue must hold, as of the moment at which that was asked."""

    topic: TopicState
    queue_id: int
    start: tuple[int, int]
    crc: int
    look: QueueLook

    @property
    def key(self) -> FolderKey:
        return self.topic.folder, self.queue_id


class Upkeep:
    """One replica's: `round`, once a pass.

    Args:
        keepsakes: the small files.
        snapshots, files: those of state.
        base: of the log.
    """

    def __init__(
        self,
        hand: Hand,
        keepsakes: Sequence[Keepsake],
        seals: Seals,
        snapshots: SnapshotKeeper,
        files: SnapshotFiles,
        base: KeptBase,
        queues: KeptQueues,
    ) -> None:
        self._hand = hand
        self._keepsakes = keepsakes
        self._seals = seals
        self._snapshots = snapshots
        self._files = files
        self._base = base
        self._queues = queues

    async def round(self) -> AsyncIterator[int]:
        """Everything is looked at once, a step of the disk's hand at a time; after each, how many
        were found to be something else.

        Raises:
            OSError: the disk failed.
        """
        for each in self._keepsakes:
            yield await self._small_file(each)
        for look in self._seals.looks():
            yield await self._look_at_seals(look)
        for index in await self._listed():
            yield await self._snapshot(index)
        base = self._base.head()
        if base.applied_index:
            yield await self._look_at_base(base)
        async for found in self._look_at_queues():
            yield found

    async def _small_file(self, keepsake: Keepsake) -> int:
        try:
            was_mended = await self._hand.run(keepsake.mend)
        except OSError as error:
            return _not_now(keepsake.file, error)
        if was_mended:
            log.error("file_rotted", file=keepsake.file, became="written again")
        return int(was_mended)

    async def _look_at_seals(self, look: SealLook) -> int:
        try:
            wrong = self._seals.wrong(await self._hand.run(look.run))
        except OSError as error:
            return _not_now(self._seals.folder, error)
        self._seals.forget(wrong)
        for base in wrong:
            log.error("file_rotted", file=self._seals.path(base), became="made anew")
        return len(wrong)

    async def _listed(self) -> list[int]:
        try:
            return await self._hand.run(self._indexes)
        except OSError as error:
            _not_now(str(self._files.path(0).parent), error)
            return []

    def _indexes(self) -> list[int]:
        """Of which entries there are, or should be, snapshots. Blocks. Raises OSError: not now."""
        return sorted({*self._files.indexes(), *self._snapshots.kept()})

    async def _snapshot(self, index: int) -> int:
        """One that isn't what was written counts no more, and the next is due."""
        if index in self._snapshots.bases():
            return 0
        file = str(self._files.path(index))
        try:
            is_whole = await self._hand.run(partial(self._files.is_whole, index))
            is_there = index in await self._hand.run(self._indexes)
        except OSError as error:
            return _not_now(file, error)
        if is_whole or not is_there:
            return 0
        self._snapshots.forget(index)
        try:
            await self._hand.run(partial(self._files.remove, index))
        except OSError as error:
            _not_now(file, error)
        log.error("file_rotted", file=file, became="made anew")
        return 1

    async def _look_at_base(self, own: SnapshotHead) -> int:
        index = own.applied_index
        file = str(self._files.path(index))
        try:
            found = await self._hand.run(partial(self._files.mend_base, own))
        except OSError as error:
            return _not_now(file, error)
        if found is BaseFound.SOUND or own != self._base.head():
            return 0
        if found is BaseFound.LOST:
            log.critical("base_rotted", file=file, index=index)
            self._base.rotted()
        else:
            log.error("file_rotted", file=file, became="written again")
        return 1

    # --- ConsumeQueues ------------------------------------------------------------------------

    async def _look_at_queues(self) -> AsyncIterator[int]:
        for topic in list(self._queues.machine.topics.values()):
            for first in range(0, len(topic.next_offsets), QUEUES_A_STEP):
                queue_ids = range(first, min(first + QUEUES_A_STEP, len(topic.next_offsets)))
                left = self._wanted(topic, queue_ids)
                while left:
                    try:
                        left = await self._hand.run(partial(_further, left))
                    except OSError as error:
                        yield _not_now(str(left[0].look.directory), error)
                        break
                    yield self._judge([each for each in left if each.look.is_over])
                    left = [each for each in left if not each.look.is_over]

    def _wanted(self, topic: TopicState, queue_ids: Iterable[int]) -> list[_Wanted]:
        """What the topic's queues must hold now; nothing of those that are being mended."""
        queues = self._queues
        if queues.mender.is_at_work or queues.machine.topics.get(topic.name) is not topic:
            return []
        starts: Mapping[FolderKey, tuple[int, int]] = queues.starts()
        wanted: list[_Wanted] = []
        for queue_id in queue_ids:
            start = starts.get((topic.folder, queue_id), (0, 0))
            end, crc = topic.next_offsets[queue_id], topic.units_crcs[queue_id]
            if start[0] < end:
                folder = queues.root / topic.folder / str(queue_id)
                size = queues.units_per_file * UNIT.size
                look = QueueLook(queues.files, folder, size, start[0], end, start[1])
                wanted.append(_Wanted(topic, queue_id, start, crc, look))
        return wanted

    def _judge(self, looked_at: Iterable[_Wanted]) -> int:
        """Those that hold something else are mended; unless they were replaced meanwhile."""
        queues, found = self._queues, 0
        for each in looked_at:
            is_there = queues.machine.topics.get(each.topic.name) is each.topic
            is_same = queues.starts().get(each.key, (0, 0)) == each.start
            if each.look.crc != each.crc and is_there and is_same:
                queues.mender.suspect(each.topic, each.queue_id)
                found += 1
        return found


def _further(left: Sequence[_Wanted]) -> list[_Wanted]:
    """The next units of these queues have been read: so many as make a step. Blocks."""
    done: list[_Wanted] = []
    size = 0
    for number, each in enumerate(left):
        if size >= STEP_BYTES:
            return [*done, *left[number:]]
        look = each.look.step()
        size += (look.first - each.look.first) * UNIT.size
        done.append(_Wanted(each.topic, each.queue_id, each.start, each.crc, look))
    return done


def _not_now(file: str, error: OSError) -> int:
    """Told, and looked at again in the next pass: a full disk, or a process short of something.

    Raises:
        OSError: the disk has failed.
    """
    if error.errno in DISK_ERRNOS:
        raise error
    log.warning("file_not_mended", file=file, reason=str(error))
    return 0
