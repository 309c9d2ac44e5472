"""Looks at the log again and again for what has rotted, in the background and within bounds.

A pass reads everything that is committed and on this disk, from the first entry on, in steps on the
disk's hand (`store.scrubbing`); between any two steps is a pause, so long that all of it takes a
share of one processor at most, and between two passes another one. What is found goes where every
reader's finds go (`broker.repairs`); the pass waits for a while until that has been put right, and
looks there again, or goes on behind it: then it was no full pass, and none is told of. Then comes
what lies beside the log (`broker.upkeep`). It must never hold the event loop for longer than asking
for a step takes, nor decide what becomes of a find.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeVar

import structlog

from broker.ending import DISK_ERRNOS
from dledger.resting import LONGEST_REST_S
from store.commitlog import CommitLog
from store.damage import Extent
from store.errors import CorruptionFound, DirectoryReplaced
from store.scrub_note import NOTHING, ScrubNote, ScrubPlace
from store.scrubbing import ScrubStatistics

T = TypeVar("T")

log = structlog.get_logger(__name__)

SHORTEST_PAUSE_S: Final = 0.001
REPAIR_LOOK_S: Final = 0.05  # between two looks whether a find has been put right


@dataclass(frozen=True, slots=True)
class ScrubPace:
    """How fast passes are, and how far apart.

    Attributes:
        share: of a processor, that steps take at most; 0: there are none.
        shortest_pause_s: between two steps.
        longest_pause_s: the same, after one that was held up: it may have waited for the disk, or
            for the process to be woken, and worked for none of that time. For as long a find is
            waited for to be put right.
        between_s: from the end of a pass to the next.
        beside_every: what lies beside the log is looked at in each so-manieth pass.
        note_s: how often a pass that is under way is written down for the next process.
    """

    share: float = 0.03
    shortest_pause_s: float = SHORTEST_PAUSE_S
    longest_pause_s: float = LONGEST_REST_S
    between_s: float = 10.0
    beside_every: int = 1
    note_s: float = 60.0


USUAL_SCRUB: Final = ScrubPace()


class Hand(Protocol):
    """`broker.ports.DiskHand`, as far as it is used here."""

    async def run(self, step: Callable[[], T]) -> T: ...


class Rotten(Protocol):
    """`broker.repairs.Repairs`, as far as finding goes."""

    def takes(self, error: BaseException) -> bool: ...
    def covering(self, error: CorruptionFound) -> Extent | None: ...


class Scrubber:
    """Passes over one log, from `start` to `stop`.

    Args:
        source: what is read.
        through: the last entry that is committed, and on this disk.
        repairs: is told of what is found.
        failed: is told of an error that ends the passes, and the replica.
        now_ms: the wall clock, to say when a pass has ended.
        others: looks at what lies beside the log, a step at a time; gives how much was found.
        note: where passes are written down; None: nowhere.
    """

    def __init__(
        self,
        source: CommitLog,
        through: Callable[[], int],
        hand: Hand,
        repairs: Rotten,
        failed: Callable[[BaseException], None],
        now_ms: Callable[[], int],
        pace: ScrubPace,
        others: Callable[[], AsyncIterator[int]] | None = None,
        note: ScrubNote | None = None,
    ) -> None:
        self._log = source
        self._through = through
        self._hand = hand
        self._repairs = repairs
        self._failed = failed
        self._now_ms = now_ms
        self._pace = pace
        self._others = others
        self._note = note
        self._began_s: float | None = None  # of the pass under way, by the loop's clock
        self._noted_s = 0.0
        self._looked = 0  # passes that came to their end, full ones or not
        self._task: asyncio.Task[None] | None = None
        self._told = ScrubStatistics(0, 0, 0, 0)

    def start(self) -> None:
        """Passes begin."""
        if self._pace.share > 0:
            self._task = asyncio.get_running_loop().create_task(self._work(), name="scrubbing")

    async def stop(self) -> None:
        """No step is asked for any more; one that has begun is done before whatever the hand is
        asked for next."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            with contextlib.suppress(
                OSError, DirectoryReplaced
            ):  # it orders work, and the disk is told of elsewhere
                await self._keep_note()

    def statistics(self) -> ScrubStatistics:
        """A frozen picture, as of now."""
        scrub = self._log.scrub
        return replace(
            self._told,
            checked_bytes=scrub.checked_bytes,
            pass_bytes=scrub.pass_bytes,
            pass_total_bytes=scrub.pass_total_bytes,
        )

    async def _work(self) -> None:
        try:
            noted = await self._recall()
            while True:
                await self._pass(noted)
                noted = NOTHING
                await asyncio.sleep(self._pace.between_s)
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._failed(error)

    async def _recall(self) -> ScrubPlace:
        """What a process before has left; what it tells of the last full pass is told on."""
        if self._note is None:
            return NOTHING
        try:
            noted = await self._hand.run(partial(self._note.read, self._now_ms()))
        except OSError as error:
            _check_disk(error)
            log.warning("scrub_not_recalled", reason=str(error))
            return NOTHING
        self._told = replace(
            self._told, last_pass_s=noted.took_ms / 1000, last_pass_ended_ms=noted.ended_ms
        )
        return noted

    async def _keep_note(self) -> None:
        """How far the pass has come is on the disk. Raises OSError: it isn't."""
        if self._note is None:
            return
        self._noted_s = now_s = asyncio.get_running_loop().time()
        place, worked_ms = 0, 0
        if self._began_s is not None and self._log.scrub.is_whole:  # else the next begins anew
            place, worked_ms = self._log.scrub.place, int((now_s - self._began_s) * 1000)
        took_ms = int(self._told.last_pass_s * 1000)
        noted = ScrubPlace(place, worked_ms, self._told.last_pass_ended_ms, took_ms)
        await self._hand.run(partial(self._note.write, noted))

    async def _note_now(self) -> None:
        """Where it can't be written there is none, and the next process begins anew."""
        try:
            await self._keep_note()
        except OSError as error:
            _check_disk(error)
            log.warning("scrub_not_noted", reason=str(error))

    async def _pass(self, noted: ScrubPlace) -> None:
        """All of the log is looked at, or what a process before has left of it."""
        scrub, loop = self._log.scrub, asyncio.get_running_loop()
        scrub.begin(self._through(), noted.place)
        is_going_on = scrub.pass_bytes > 0
        self._began_s = loop.time() - (noted.worked_ms / 1000 if is_going_on else 0)
        while not scrub.is_over:
            await asyncio.sleep(self._pause_after(await self._step()))
            if loop.time() > self._noted_s + self._pace.note_s:
                await self._note_now()
        is_whole = scrub.is_whole
        await self._look_at_others()
        if is_whole:  # nobody is told of a full one where a part of the log was passed over
            self._told = replace(
                self._told,
                passes=self._told.passes + 1,
                last_pass_s=loop.time() - self._began_s,
                last_pass_ended_ms=self._now_ms(),
            )
        self._began_s = None
        if loop.time() > self._noted_s + self._pace.note_s:
            await self._note_now()

    async def _look_at_others(self) -> None:
        self._looked += 1
        if self._others is None or (self._looked - 1) % self._pace.beside_every:
            return
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async for found in self._others():
            took_s = loop.time() - began_s
            self._told = replace(self._told, found=self._told.found + found)
            await asyncio.sleep(self._pause_after(took_s))
            began_s = loop.time()

    async def _step(self) -> float:
        """The next step is done; how many seconds it took."""
        scrub, loop = self._log.scrub, asyncio.get_running_loop()
        began_s = loop.time()
        try:
            done = await self._hand.run(scrub.step())
        except CorruptionFound as error:
            took_s = loop.time() - began_s  # what follows is waiting, which costs nobody anything
            await self._on_find(error)
            return took_s
        scrub.finish(done)
        return loop.time() - began_s

    async def _on_find(self, error: CorruptionFound) -> None:
        """The pass looks there again once it has been put right: what lies close to it may have
        rotted, too. Where that takes its time, the pass goes on behind it.

        Raises:
            CorruptionFound: it can't be put right.
        """
        if self._repairs.covering(error) is None:
            self._told = replace(self._told, found=self._told.found + 1)
        if not self._repairs.takes(error):
            raise error
        loop = asyncio.get_running_loop()
        late_s = loop.time() + self._pace.longest_pause_s
        while (extent := self._repairs.covering(error)) is not None and loop.time() < late_s:  # noqa: ASYNC110
            await asyncio.sleep(REPAIR_LOOK_S)
        if extent is None:
            self._log.scrub.look_again()
        else:
            self._log.scrub.pass_over(extent.end)

    def _pause_after(self, took_s: float) -> float:
        due_s = max(self._pace.shortest_pause_s, took_s * (1 / self._pace.share - 1))
        return min(due_s, self._pace.longest_pause_s)


def _check_disk(error: OSError) -> None:
    """What keeps the note from being had is no reason to end, unless the disk has failed (ADR 8).

    Raises:
        OSError: it has.
    """
    if error.errno in DISK_ERRNOS:
        raise error
