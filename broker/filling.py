"""Keeps the log's front for members that are being filled, for a while.

A member that copies slower than the log's start moves would begin anew again and again (ADR 43).
So whoever decides that entries may go asks this: what a peer that is there still needs of them. It
must never hold the front for one that isn't there, nor for long: a peer holds for `HOLD_S` from
when it was first found behind until it is near the end, once; and nobody does while this node's
disk is full, which would be the end of more than one.

A leader asks that of what the group may let go. A start that gets back what has rotted (ADR 53) is
nobody's follower, and pulls a state of whichever member gives it: so that member keeps the state
itself, which is that of its log's front, by the same rules (`Giving`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from dledger.core.types import NodeId, PeerStatistics

HOLD_S: Final = 3600.0
AWAY_S: Final = 60.0  # who was there begins anew, or changes its stream
NEAR_ENTRIES: Final = 10_000  # behind what is committed: as good as filled,
NEAR_SEGMENTS: Final = 2  # if they lie in no more than these, as a batch may have megabytes,
NEAR_BYTES: Final = 64 << 20  # or are that little: copied in seconds
OFFERED: Final = "snapshot"  # the state of a peer that needs what is gone

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Missing:
    """What a member lacks of what is committed: entries, segments that hold any of them, and how
    many bytes those have at most."""

    entries: int
    segments: int
    size: int

    @property
    def is_little(self) -> bool:
        """Whether who lacks that is as good as filled: however far the front moves by what is being
        written, it doesn't get there first."""
        are_few = self.segments <= NEAR_SEGMENTS or self.size <= NEAR_BYTES
        return self.entries <= NEAR_ENTRIES and are_few


@dataclass(slots=True)
class _Held:
    """A peer that is behind: since when, when it was there last, what it needs first, and whether
    its time is over. Seconds of the loop's clock."""

    since_s: float
    seen_s: float
    first_needed: int
    is_over: bool = False


class Filling:
    """A `broker.log_start.Holder`, of a leader.

    Args:
        peers: as the core knows them.
        first_index: the first entry that is held here.
        missing: what who has the log up to that entry lacks.
        is_short: whether this node's disk is full.
        clock: seconds.
    """

    name = "a member that is being filled"

    def __init__(
        self,
        peers: Callable[[], Mapping[NodeId, PeerStatistics]],
        first_index: Callable[[], int],
        missing: Callable[[int], Missing],
        is_short: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._peers = peers
        self._first_index = first_index
        self._missing = missing
        self._is_short = is_short
        self._clock = clock
        self._held: dict[NodeId, _Held] = {}  # one a member

    def first_needed(self) -> int | None:
        """See `Holder`."""
        now, peers = self._clock(), self._peers()
        for peer in self._held.keys() - peers.keys():
            del self._held[peer]
        for peer, each in peers.items():
            self._look(peer, each, now)
        if self._is_short():
            return None
        return min((h.first_needed for h in self._held.values() if not h.is_over), default=None)

    def _look(self, peer: NodeId, told: PeerStatistics, now: float) -> None:
        held = self._held.get(peer)
        is_filled = told.state != OFFERED and self._missing(told.match_index).is_little
        is_gone = not told.recently_active and (held is None or now > held.seen_s + AWAY_S)
        if is_filled or is_gone:
            self._held.pop(peer, None)
            return
        needed = self._first_index()
        if told.state != OFFERED:
            needed = max(needed, told.match_index + 1)
        if held is None:
            self._held[peer] = _Held(now, now, needed)
            log.info("log_start_held", peer=peer, first_needed=needed, seconds=HOLD_S)
            return
        held.first_needed = needed
        if told.recently_active:
            held.seen_s = now
        if not held.is_over and now > held.since_s + HOLD_S:
            held.is_over = True
            log.warning("log_start_held_no_longer", peer=peer, first_needed=needed)


@dataclass(slots=True)
class _Given:
    """To whom a state is given: which, since when, when it last got any further, when it last asked
    for any, and whether it has got beyond the first piece."""

    index: int
    since_s: float
    last_s: float
    asked_s: float
    is_pulled: bool = False


class Giving:
    """The state that this member's log begins with, given to others piece by piece."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Args:
        clock: seconds.
        """
        self._clock = clock
        self._given: dict[NodeId, _Given] = {}  # one a peer that was given anything lately

    def gave(self, peer: NodeId, index: int, *, is_first: bool, is_last: bool) -> None:
        """A piece of the state as of that entry has gone to it. The first one is no further than it
        was: who has no room asks for that again and again. With the last one it has all: should
        that get lost, it asks again in a second, and the front seldom moves just then."""
        now = self._clock()
        for name in [name for name, each in self._given.items() if now > each.asked_s + AWAY_S]:
            del self._given[name]
        given = self._given.get(peer)
        if is_last:
            self._given.pop(peer, None)
        elif given is None or given.index != index:
            self._given[peer] = _Given(index, now, now, now, not is_first)
        else:
            given.asked_s = now
            if not is_first:
                given.since_s = given.since_s if given.is_pulled else now
                given.last_s, given.is_pulled = now, True

    def is_awaited(self, members: Collection[NodeId]) -> bool:
        """Whether one of the members is likely to ask for the next piece. A stranger is nobody that
        anything is kept for: anybody can be one."""
        now = self._clock()
        return any(
            name in members and now <= min(each.last_s + AWAY_S, each.since_s + HOLD_S)
            for name, each in self._given.items()
        )
