"""Says when the front of the log is old enough, or too much: the leader's part of retention.

A leader that serves looks now and then at the oldest segments, and proposes that the group's log
begin behind those that nobody has to keep (`broker.log_start`, which carries it out on each
member). Whole segments go, the oldest first, never the one that is written to:

    older     than `age_ms` of lived time (`broker.state.lived_time`), its last entry: neither a
              clock that steps nor a month in which the group stood still makes a message old
    too much  the log with it is longer than `bytes`
    full      a voter's disk is used to `disk_percent`: the oldest one, and once that disk has got
              it back the next (`broker.leader.full_disks`); the last two stay

While this leader hasn't carried out what it proposed (a repair, its archive), nothing more is old
or too much. A full disk is full: whoever's it is can't wait for a repair of the leader's.

A topic that wishes its messages for longer holds all segments for as long, by age; what others
wish shorter goes without them (`broker.leader.topic_retention`). It must never propose more than
these say: what has gone is gone everywhere.

When an entry was appended is known by the log's time, and how much the group has lived by then for
the entry before the first, and for moments that this node was there at, or read of
(`broker.leader.lived_marks`). So what is taken for an entry's age is at most what it is. Where that
isn't old, and the entry could be, as the log's time stepped or the group rested in between, the log
is read from its beginning to that entry (`broker.lived_reader`), and its age is known.

A log's time that is behind catches up at twice the pace of time, and so do ages by it. While it is
behind by more than `BEHIND_MS`, and until what was stored meanwhile is older than anybody wishes,
ages count half: later is no harm, sooner would be. A leader that came later has seen nothing of it.

The log's time never goes back, and nothing in a log is older than the group has lived since what is
before it. An entry that would be is no reason for anything to go: what it, or the log's beginning,
says of the time is wrong, and that is told.

Source: the seeds (72 h, and the oldest regardless of age from 85 % of the disk on).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from operator import gt
from typing import Final, Protocol

import structlog

from broker.errors import BrokerError
from broker.leader.lived_marks import Lived, Mark
from dledger.core.types import NodeId

MAX_SEGMENTS: Final = 64  # that are looked at at once; the next look goes on from there
BEHIND_MS: Final = 60_000  # the log's time; less makes no age wrong that is counted in hours
KEPT_WHEN_FULL: Final = 2  # segments, the one that is written to among them

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Rules:
    """When a segment may go; 0: never for that reason."""

    age_ms: int = 0
    bytes: int = 0
    disk_percent: int = 0

    @property
    def ask_for_anything(self) -> bool:
        return bool(self.age_ms or self.bytes or self.disk_percent)


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """A segment that is full: its last entry, when that was appended by the log's time, and the
    physical offset behind the segment."""

    last_index: int
    append_time_ms: int
    end_offset: int

    def age_ms(self, measured: Measured) -> int:
        """Of its last entry: lived time, never more than it is."""
        return measured.lived.age_at_least(self.append_time_ms)

    def could_be_old(self, measured: Measured, age_ms: int) -> bool:
        """Whether it may be older, for all that is known, and needn't."""
        most_ms = measured.lived.age_at_most(self.append_time_ms)
        return self.age_ms(measured) <= age_ms < most_ms

    def can_be(self, measured: Measured) -> bool:
        """Whether it is as old as anything in this log can be."""
        return self.age_ms(measured) <= measured.lived_ms


@dataclass(frozen=True, slots=True)
class Measured:
    """What there is: the log's bounds, physical offsets, without what the group has let go of and
    this node hasn't yet; how long the group has lived since the entry before the first, and when
    that was appended by the log's time; for whose full disks the oldest segment is to go; and what
    is known of how long it had lived in between."""

    start_offset: int
    end_offset: int
    segment_size: int
    lived_ms: int
    begin_time_ms: int
    in_need: frozenset[NodeId] = frozenset()
    marks: tuple[Mark, ...] = ()

    @property
    def lived(self) -> Lived:
        """What is known of ages."""
        return Lived(self.lived_ms, self.begin_time_ms, self.marks)


def first_kept(ends: Iterable[SegmentEnd], measured: Measured, rules: Rules) -> int | None:
    """The first entry that has to be kept; None: nothing has to go.

    Args:
        ends: full segments from the oldest on, without a gap.
    """
    kept, start = None, measured.start_offset
    for end in ends:
        is_aged = bool(rules.age_ms) and end.age_ms(measured) > rules.age_ms
        is_old = is_aged and end.can_be(measured)
        is_much = bool(rules.bytes) and measured.end_offset - start > rules.bytes
        left = measured.end_offset - end.end_offset
        can_be_spared = left > (KEPT_WHEN_FULL - 1) * measured.segment_size
        is_in_the_way = bool(measured.in_need) and kept is None and can_be_spared
        if not (is_old or is_much or is_in_the_way):
            break
        kept, start = end.last_index + 1, end.end_offset
    return kept


class Front(Protocol):
    """What a replica knows of its log's front."""

    async def measured(self) -> Measured:
        """As of now.

        Raises:
            CorruptionFound: an entry that tells of it has rotted.
        """
        ...

    def full_segments(self, most: int) -> Iterable[SegmentEnd]:
        """The oldest ones that the group hasn't let go of.

        Raises:
            CorruptionFound: an entry that tells of one has rotted.
        """
        ...

    def note_lived(self) -> None:
        """So long the group has lived by now; to be known later."""
        ...

    async def read_on(self, last_index: int) -> None:
        """More is known of how long the group had lived at that entry, the last of a segment.

        Raises:
            CorruptionFound: an entry before it has rotted.
        """
        ...

    def on_decided(self, measured: Measured) -> None:
        """What was measured has been acted on."""
        ...

    def on_led_no_more(self) -> None:
        """Somebody else decides."""
        ...

    def is_behind(self) -> bool:
        """Whether what was proposed before hasn't gone here yet."""
        ...

    def is_mended(self, error: BaseException) -> bool:
        """Whether rot in the log is being repaired."""
        ...


class Wishes(Protocol):
    """`broker.leader.topic_retention.TopicRetention`, as far as it is used here."""

    def longest_ms(self) -> int: ...
    def are_changing(self) -> bool: ...
    async def look(self, now: Callable[[], Awaitable[Lived]], /) -> None: ...


class Retention:
    """One replica's, from `start` to `stop`.

    Args:
        propose: the group's log may begin with that entry. Raises: BrokerError.
        needed: the first entry that somebody needs; None: nobody needs any.
        serves: whether this node is a leader that serves.
        failed: is told of an error that ends this, and the replica.
        look_s: from one look to the next.
        wishes: of topics.
        behind_ms: how far the log's time is, to be asked of a leader.
    """

    def __init__(
        self,
        front: Front,
        rules: Rules,
        wishes: Wishes,
        propose: Callable[[int], Awaitable[None]],
        needed: Callable[[], int | None],
        serves: Callable[[], bool],
        failed: Callable[[BaseException], None],
        look_s: float,
        behind_ms: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._behind_ms = behind_ms
        self._fast_until_s = 0.0  # by the loop's clock: ages may be twice what they are
        self._front = front
        self._rules = rules
        self._wishes = wishes
        self._propose = propose
        self._needed = needed
        self._serves = serves
        self._failed = failed
        self._look_s = look_s
        self._refused = ""
        self._impossible = 0  # the last entry that was told of
        self._unsure = 0  # the same, of those whose age is read
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """From now on."""
        self._task = asyncio.get_running_loop().create_task(self._work(), name="retention")

    async def stop(self) -> None:
        """Nothing is proposed any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._look_s)
                self._front.note_lived()
                if self._serves():
                    await self._look()
                else:
                    self._front.on_led_no_more()
        except Exception as error:  # noqa: BLE001  nobody else would hear of it
            self._failed(error)

    async def _look(self) -> None:
        if self._behind_ms() > BEHIND_MS:
            longest_ms = max(self._rules.age_ms, self._wishes.longest_ms())
            self._fast_until_s = asyncio.get_running_loop().time() + longest_ms / 1000
        if self._rules.ask_for_anything:
            await self._look_at_segments()
        try:
            await self._wishes.look(self._now)
        except Exception as error:
            if not self._front.is_mended(error):
                raise

    async def _now(self) -> Lived:
        return replace((await self._front.measured()).lived, pace=self._pace())

    def _pace(self) -> int:
        """How much an age may be that is 1 in truth."""
        return 2 if asyncio.get_running_loop().time() < self._fast_until_s else 1

    def _rules_now(self) -> Rules:
        """A topic that wishes its messages for longer holds all segments for as long, by age; none
        goes by its age while a wish is on its way."""
        age_ms = 0 if self._wishes.are_changing() else self._rules.age_ms
        if age_ms:
            age_ms = max(age_ms, self._wishes.longest_ms()) * self._pace()
        return replace(self._rules, age_ms=age_ms)

    async def _look_at_segments(self) -> None:
        front = self._front
        try:
            is_behind = front.is_behind()
            measured = await front.measured()
            if is_behind and not measured.in_need:
                return
            rules = Rules() if is_behind else self._rules_now()
            ends = await self._looked_at(measured, rules)
            if not is_behind:  # a look takes long, and wishes are heard until it is proposed
                rules = self._rules_now()
            kept = first_kept(ends, measured, rules)
            if kept is None:
                await self._look_closer(ends, measured, rules.age_ms)
            needed = None if kept is None else self._needed()
            if kept is not None and needed is not None:
                # What nobody needs goes; and if that is nothing, who needs it is told.
                lasts = (end.last_index for end in ends)
                spared = takewhile(partial(gt, min(needed, kept)), lasts)
                kept = max((last + 1 for last in spared), default=kept)
        except Exception as error:
            if not front.is_mended(error):
                raise
            return
        if kept is not None:
            await self._decide(kept, measured)

    async def _look_closer(
        self, ends: Iterable[SegmentEnd], measured: Measured, age_ms: int
    ) -> None:
        """The oldest segment stays: if only because nobody knows its age, that is read."""
        for end in islice(ends, 1 if age_ms else 0):
            if not end.could_be_old(measured, age_ms):
                return
            if self._unsure != end.last_index:
                self._unsure = end.last_index
                log.info("retention_age_unsure", index=end.last_index, age_ms=end.age_ms(measured))
            await self._front.read_on(end.last_index)

    async def _decide(self, kept: int, measured: Measured) -> None:
        """The group may let go of what is before; or why it may not is told."""
        try:
            await self._propose(kept)
        except BrokerError as error:
            if self._refused != str(error):  # the same is not said again at each look
                self._refused = str(error)
                log.info("retention_waits", first_kept=kept, reason=str(error))
            return
        self._refused = ""
        self._front.on_decided(measured)
        log.info("retention", first_kept=kept, full_disks=sorted(measured.in_need))

    async def _looked_at(self, measured: Measured, rules: Rules) -> list[SegmentEnd]:
        """Full segments as far as they go, mostly none, and the next one. Each takes a turn of the
        loop: its last entry is read whole, however large it is."""
        looked_at: list[SegmentEnd] = []
        for end in self._watched(self._front.full_segments(MAX_SEGMENTS), measured):
            looked_at.append(end)
            if first_kept(looked_at, measured, rules) != end.last_index + 1:
                break
            await asyncio.sleep(0)
        return looked_at

    def _watched(self, ends: Iterable[SegmentEnd], measured: Measured) -> Iterator[SegmentEnd]:
        """The same; one that is older than can be is told once."""
        for end in ends:
            if not end.can_be(measured) and self._impossible != end.last_index:
                self._impossible = end.last_index
                log.error(
                    "retention_age_impossible",
                    index=end.last_index,
                    age_ms=end.age_ms(measured),
                    lived_ms=measured.lived_ms,
                )
            yield end
