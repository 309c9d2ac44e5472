"""Lets the front of the log go: the group decides where it begins, each member when it follows.

The group's decision is an entry (`broker.state.log_start`); this proposes it where somebody wants
it, and carries it out here, as far as that can be done by now (ADR 43). The state as of the entry
before the new start is computed from the one before the old start and what lies between, by a
second state machine, a slice at a time; it is on disk, and the log's note says so, before anything
is forgotten. It must never give up an entry that a start may need, nor one that the group keeps.

    moved ─ applied ─▶ due ─ given to the archive ─▶ second machine ─▶ base written, read ─▶ note
                                                            files gone ◀─ forgotten ◀─────────┘
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog

from broker.ending import DISK_ERRNOS
from broker.errors import BrokerError, ErrorCode
from broker.leader.commands import Commands
from broker.log_start_parts import Front, Hand, Holder
from broker.services.refused import refused
from broker.snapshots import BaseOf, NoFiles
from broker.state.machine import StateMachine
from broker.state.replay import FolderKey, QueueStarts, each_start
from dledger.level import LOG_START_LEVEL
from dledger.reading.log_start import LogStart
from dledger.resting import rest_after
from store.errors import CorruptionFound
from store.files import FULL_ERRNOS, PASSING_ERRNOS, FileSystem
from store.segments import Segment
from store.snapshot_files import SnapshotHead
from store.starting.errors import BaseMissing
from store.starting.opening import base_of

SLICE_BYTES: Final = 256 << 10
SHORTEST_PAUSE_S: Final = 0.001

T = TypeVar("T")

log = structlog.get_logger(__name__)


class LogStartKeeper:
    """One replica's, from `start` to `stop`.

    Args:
        look_s: from one look at whether something can go to the next.
        holders: who points into the log; they may be added to.
        failed: is told of an error that ends this, and the replica.
    """

    def __init__(
        self,
        front: Front,
        hand: Hand,
        commands: Commands,
        failed: Callable[[BaseException], None],
        look_s: float,
    ) -> None:
        self.holders: list[Holder] = []
        self.held = ""  # why what may go hasn't gone yet; empty: nothing stands in its way
        self._front = front
        self._hand = hand
        self._commands = commands
        self._failed = failed
        self._look_s = look_s
        self._task: asyncio.Task[None] | None = None
        self._is_base_rotten = False

    # --- deciding -----------------------------------------------------------------------------

    async def propose(self, index: int) -> None:
        """The group may let everything before entry `index` go; each member does as it can, in
        whole segments.

        Raises:
            BrokerError: it may not: not yet, not so far, or not at all while somebody needs it.
        """
        machine = self._front.machine
        if machine.level.current < LOG_START_LEVEL:
            text = f"level {machine.level.current} is in use: not every member knows how yet"
            raise BrokerError(ErrorCode.NOT_READY, text)
        needing = [each.name for each in self.holders if _needs(each, index)]
        if needing:
            text = f"entries before {index} are needed by {', '.join(needing)}"
            raise BrokerError(ErrorCode.NOT_READY, text)
        if not machine.log_start.first_index < index <= machine.applied_index:
            text = (
                f"the log begins with entry {machine.log_start.first_index} and is applied through "
                f"{machine.applied_index}: it can't begin with {index}"
            )
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, text)
        refusal = await self._commands.move_log_start(index)
        if refusal is not None:
            raise refused(refusal)

    def first_needed(self) -> int | None:
        """The first entry that somebody needs; None: nobody needs any."""
        found = (each.first_needed() for each in self.holders)
        return min((index for index in found if index is not None), default=None)

    # --- carrying out -------------------------------------------------------------------------

    def start(self) -> None:
        """What may go goes, from now on."""
        self._task = asyncio.get_running_loop().create_task(self._work(), name="log-start")

    async def stop(self) -> None:
        """Nothing goes any more; what a step of the disk has begun is done before it is asked for
        anything else."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def on_base_rotted(self) -> None:
        """What the log begins with can't be used: no start, and no later front, could begin with
        it. It is mended from its other copy; if neither is what was written, a peer gives it."""
        self._is_base_rotten = True

    def takes(self, error: BaseException) -> bool:
        """Whether what failed has rotted and is being got back: it works later."""
        if isinstance(error, BaseMissing):
            self.on_base_rotted()
            return True
        return self._front.repairs.takes(error)

    def due(self) -> LogStart | None:
        """Where the log can begin by now; None: no later than it does.

        Raises:
            CorruptionFound: the entry there has rotted.
        """
        return None if self._front.is_hindered() else self._latest()

    def past_rot(self) -> Iterator[LogStart]:
        """Where the log could begin so that something goes that has rotted, be it what it begins
        with now, the latest first: nobody who has dropped it can give it back, and without it no
        state can be computed. A peer's will do (ADR 43). As far as is applied, and not only as far
        as the group's decisions are known here: who is in doubt acknowledges nothing, and a new
        leader sends it no more.
        """
        front = self._front
        # Queues that are mended from the same rot keep anything new from being noted. What lies
        # before a start needs no note: a start there derives what is behind it.
        through = max(self._noted(), front.machine.applied_index)
        size, behind = front.log.options.segment_size_bytes, through + 1
        rotten = front.repairs.first_rotten
        if self._is_base_rotten:
            rotten = front.log.start.offset(size)
        if rotten is None or front.is_disputed():
            return
        while (end := front.log.end_before(behind)) is not None:
            behind, start = end, self._start_behind(end)
            if start is None:
                continue
            if start.offset(size) <= rotten:
                return
            if start.configuration_index and self._is_flushed_behind(start):
                yield start

    def _start_behind(self, end: int) -> LogStart | None:
        """The start behind a segment's last entry; None: that one has rotted, too, and is being
        got back. It stands for itself only: those before it may be what a peer gives.

        Raises:
            CorruptionFound: nobody gets it back.
        """
        try:
            return self._front.log.start_before(end + 1)
        except CorruptionFound as error:
            if not self.takes(error):
                raise
            return None

    def _noted(self) -> int:
        return self._front.log.checkpoint.state.consume_queue_index

    def _latest(self) -> LogStart | None:
        front = self._front
        wanted = front.machine.log_start.first_index
        noted = self._noted()
        if front.is_mending_without_space():  # see `past_rot`: it would wait for what it gives
            noted = max(noted, front.machine.applied_index)
        last = min(wanted - 1, noted)
        if last < front.log.first_index:
            return None
        start = front.log.start_before(last + 1)
        if start is None or not self._is_flushed_behind(start):
            return None
        # Without a configuration, as of a group that was adopted lately, nobody would believe it.
        return start if start.configuration_index else None

    def _is_flushed_behind(self, start: LogStart) -> bool:
        """Whether the flusher needs no file before `start` any more. It may still have what fills
        up a segment whose last entry it has flushed long ago, until it has flushed the first one
        behind; and that one may be cut and come anew, which writes to the file before once more. So
        it is asked again after each wait: a file must not be closed before."""
        return self._front.durable() > start.index

    async def _work(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._look_s)
                try:
                    await self._step()
                except (CorruptionFound, BaseMissing) as error:
                    if not self.takes(error):
                        raise
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._failed(error)

    async def _step(self) -> None:
        front = self._front
        if self._is_base_rotten:
            await self._get_base_back()
            return
        if (start := self.due()) is not None:
            if (start := await self._archived(start)) is None:
                return
            machine = await self._computed(start)
            if await self._is_ready(start, machine.snapshot) and not front.is_hindered():
                await self._move(start, machine, front.is_hindered)
            return
        self._tell_of_what_is_never_noted()
        await self._step_past_rot()
        self._tell_of_what_hinders()

    def _tell_of_what_hinders(self) -> None:
        """What may go waits for a repair, which may take hours."""
        front = self._front
        if not front.is_hindered():
            return
        start = front.log.start_before(front.machine.log_start.first_index)
        if start is not None:
            self._hold(
                f"the log could begin with entry {start.first_index}, but what is before may be "
                "needed here: to repair the log, to mend ConsumeQueues, to tell whose log is "
                "right, or by a member that pulls the state that it begins with"
            )

    def _tell_of_what_is_never_noted(self) -> None:
        """What may go lies behind the end of what this process will note as derived: it stays until
        the node is started again, and nobody else would say so."""
        front = self._front
        if not front.is_checkpoint_held() or front.is_hindered():
            return
        start = front.log.start_before(front.machine.log_start.first_index)
        if start is not None and start.index > self._noted():
            self._hold(
                f"the log could begin with entry {start.first_index}, but a full disk once kept "
                "ConsumeQueues from being synced, and nothing is noted since: once there is space, "
                "start this node again"
            )

    async def _pass_rot(self, start: LogStart, chunks: Sequence[bytes]) -> None:
        """The log begins behind what has rotted there, with a peer's state as of then."""
        front = self._front
        machine = await self._hand.run(partial(front.base.restored, chunks))
        if not await self._are_all_archived(start):
            return
        if not await self._is_ready(start, machine.snapshot):
            return
        log.warning("log_begins_behind_rot", index=start.index)
        await self._move(start, machine, front.is_disputed)

    async def _get_base_back(self) -> None:
        """The state as of the log's start is there again: from its other copy, or as a peer has it
        whose log begins with the same entry; or the log begins later, with that of one that does.
        Else why not is told."""
        front, start = self._front, self._front.log.start
        try:
            await self._hand.run(partial(front.base.files.mend_base, self._head(start)))
            failure = ""
        except OSError as error:  # what can't be looked at, or written again, needn't be lost
            if error.errno in DISK_ERRNOS:
                raise
            failure = str(error)
        if await self._hand.run(partial(front.base.refusal_of, self._head(start))) is None:
            log.warning("base_mended", index=start.index)
            self._is_base_rotten, self.held = False, ""
            return
        if failure:
            self._hold(f"the state as of entry {start.index} can't be mended now: {failure}")
            return
        self._hold(
            f"the state as of entry {start.index}, with which the log begins, has rotted here, and "
            "no peer has given it yet: don't stop this node before. In a group of one nobody has "
            "it: consume what is there, or go on with a backup that there is"
        )
        if front.is_disputed():
            return
        if (chunks := await front.fetched(base_of(start))) is None:
            await self._step_past_rot()
            return
        machine = await self._hand.run(partial(front.base.restored, chunks))
        if await self._is_ready(start, machine.snapshot):
            log.warning("base_got_back", index=start.index)
            self._is_base_rotten, self.held = False, ""

    async def _step_past_rot(self) -> None:
        """The log begins behind what has rotted, if a peer gives the state as of there."""
        for start in self.past_rot():
            if (chunks := await self._front.fetched(base_of(start))) is not None:
                await self._pass_rot(start, chunks)
                return

    async def _archived(self, start: LogStart) -> LogStart | None:
        """The latest start up to that one before which the archive holds nothing: what is due
        behind doesn't keep what is in front of it. None: there is none yet."""
        log = self._front.log
        paths = self._for_the_archive(start)
        released = await self._front.archiver.release(paths)
        if not released.held:
            return start
        self._hold(released.held)
        earlier = log.start_before(log.ends_by(int(paths[released.count].name)) + 1)
        # Without a configuration it is none, as in `_latest`.
        return earlier if earlier is not None and earlier.configuration_index else None

    async def _are_all_archived(self, start: LogStart) -> bool:
        """Whether the archive holds nothing before a start that no earlier one stands for."""
        released = await self._front.archiver.release_together(self._for_the_archive(start))
        if released.held:
            self._hold(released.held)
        return not released.held

    def _for_the_archive(self, start: LogStart) -> list[Path]:
        """What is about to go; what has rotted here is not for it."""
        front = self._front
        paths = front.log.paths_before(start)
        return [path for path in paths if not front.repairs.is_rotten(path)]

    async def _computed(self, start: LogStart) -> StateMachine:
        """A machine with the state as of there."""
        machine = await self._hand.run(partial(self._front.base.machine, NoFiles()))
        while machine.applied_index < start.index:  # noqa: ASYNC110  it works, a slice at a time
            await asyncio.sleep(self._apply_slice(machine, start.index))
        return machine

    async def _is_ready(self, start: LogStart, chunks: Callable[[], Iterator[bytes]]) -> bool:
        """Whether the state as of there is on the disk, and a start could begin with it."""
        front, head = self._front, self._head(start)
        while not await front.snapshots.write_base(head, chunks(), BaseOf.OWN):
            if waits := front.snapshots.base_waits:  # not just for another
                self._hold(f"the state as of entry {start.index} waits: {waits}")
            await asyncio.sleep(self._look_s)
        # Every start from here on needs this file, so one is rehearsed while the log could do
        # without: what can't be read back is written again.
        refusal = await self._hand.run(partial(front.base.refusal_of, head))
        if refusal is not None:
            self._hold(f"the state as of entry {start.index} isn't what was written: {refusal}")
            return False
        try:
            await self._hand.run(partial(front.base.files.mend_base, head))
        except OSError as error:  # without space for a second one there is one; the scrub tries on
            if error.errno not in PASSING_ERRNOS:
                raise
        return True

    async def _move(
        self, start: LogStart, machine: StateMachine, is_held: Callable[[], bool]
    ) -> None:
        """The log begins there, unless `is_held`, or the flusher has something to do there."""
        front = self._front
        async with front.repairs.writing:
            if is_held() or not self._is_flushed_behind(start):
                return
            try:
                await self._hand.run(partial(front.note.replace, start))
            except OSError as error:
                if error.errno not in FULL_ERRNOS:
                    raise
                self._hold(f"the note can't be written: {error}")
                return
        shorter, starts = await self._shortened(machine)
        dropped = await self._forgotten(start, starts)
        await self._whole(partial(_remove, front.files, dropped))
        await front.snapshots.begin_at(self._head(start))
        async for key in self._in_turns(shorter):
            while front.queues.drop_unneeded(*key):  # noqa: ASYNC110  it works, some files a turn
                await asyncio.sleep(SHORTEST_PAUSE_S)

    async def _shortened(self, base: StateMachine) -> tuple[list[FolderKey], QueueStarts]:
        """Queues begin where the log is going to, as the note says by now: whoever reads them is
        told of nothing that is about to go. Those with files to be removed, and where all begin."""
        shorter: list[FolderKey] = []
        starts: dict[FolderKey, tuple[int, int]] = {}
        async for key, begin in self._in_turns(each_start(base)):
            starts[key] = begin
            if self._front.queues.begin_at(*key, begin[0]):
                shorter.append(key)
        return shorter, starts

    async def _in_turns(self, things: Iterable[T]) -> AsyncIterator[T]:
        """The same, in shares of the loop's turns: of queues there may be 100,000."""
        is_enough = self._front.share()
        for thing in things:
            yield thing
            if is_enough():
                await asyncio.sleep(SHORTEST_PAUSE_S)
                is_enough = self._front.share()

    async def _whole(self, step: Callable[[], None]) -> None:
        """It is done, also by who is stopped meanwhile: nobody else knows these descriptors."""
        doing = asyncio.get_running_loop().create_task(self._hand.run(step))
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            await doing
            raise

    def _head(self, start: LogStart) -> SnapshotHead:
        disk_id = self._front.base.disk_id
        return SnapshotHead(disk_id, start.index, start.term, start.digest, start.end_offset)

    def _hold(self, reason: str) -> None:
        """What may go stays for now; the same is not said again at each look."""
        if reason != self.held:
            self.held = reason
            log.warning("log_start_not_moved", reason=reason)

    def _apply_slice(self, machine: StateMachine, through: int) -> float:
        """The next entries are applied, as many as are a share of a turn: an entry of few bytes may
        be much work; how many seconds to pause."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        first = machine.applied_index + 1
        last = self._front.log.last_that_fits(first, through, SLICE_BYTES)
        machine.apply(self._front.log.read(first, last), self._front.share())
        return max(SHORTEST_PAUSE_S, rest_after(loop.time() - began))

    async def _forgotten(self, start: LogStart, starts: QueueStarts) -> list[Segment]:
        """`_forget`, between two repairs and as soon as the flusher lets go: the first entry behind
        may have been cut while the note was written."""
        while True:
            async with self._front.repairs.writing:
                if self._is_flushed_behind(start):
                    self._is_base_rotten, self.held = False, ""
                    return self._forget(start, starts)
            await asyncio.sleep(self._look_s)

    def _forget(self, start: LogStart, starts: QueueStarts) -> list[Segment]:
        """What is before `start` is gone from memory; what has to go from the disk."""
        front = self._front
        dropped = front.log.drop_before(start)
        front.forget(base_of(start))
        front.queue_starts(starts)
        front.log.checkpoint.note_first(start.offset(front.log.options.segment_size_bytes))
        log.info("log_begins_later", first_index=start.first_index, segments=len(dropped))
        return dropped


def _remove(files: FileSystem, dropped: Sequence[Segment]) -> None:
    """Their files are gone, the oldest first. One that stays is removed by the next start."""
    for segment in dropped:
        files.close(segment.handle)
    try:
        for segment in dropped:
            files.unlink(segment.path)
        if dropped:
            files.fsync_directory(dropped[0].path.parent)
    except OSError as error:
        if error.errno not in FULL_ERRNOS:
            raise
        log.warning("segments_not_removed", reason=str(error))


def _needs(holder: Holder, index: int) -> bool:
    first = holder.first_needed()
    return first is not None and first < index
