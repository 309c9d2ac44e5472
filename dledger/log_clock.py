"""The log's own clock: what time it is, as a majority of the members' clocks have it.

This owns two things. The *estimate*: the latest moment that a majority of the voters' wall clocks
have certainly reached, from what they show in their answers; a minority of fast clocks can't move
it. And the *log's time*, from which append times are taken: it follows the estimate, never falls,
and runs between half and twice as fast as this node's monotonic clock, but for one case: a new
leader, in its first second, may go forward to the estimate at once.

Pure: whoever calls says what time it is by its monotonic clock, and nothing happens by itself. It
must never look at a clock, nor believe this node's own more than another member's.

    state      on                                     the log's time
    follower   an entry of the leader is taken        is at least that entry's
    new        a reading                              the estimate, at least half the time since
    leading    a reading                              as near to the estimate as the pace allows
    any        no majority heard: no estimate         half the time since, as if all were behind

A clock that is shown in an answer shows at least as much when the answer arrives, however long it
travelled: a lower bound. The newest one counts, aged by this node's monotonic clock.

Times are microseconds unless they say otherwise. Bounds: one record for each member heard.

Source: docs/adr/0026-the-logs-own-clock.md; the agreement is Raft's on a commit index (Raft paper
§5.3), taken of clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dledger.core.quorum import agreed
from dledger.core.types import (
    MAX_TIME_MS,
    ClockOff,
    Configuration,
    Event,
    LogTimeStepped,
    NodeId,
)

SILENT_US: Final = 10_000_000  # without an answer for so long, a clock shows nothing
NEW_US: Final = 1_000_000  # of a leadership: time may step; before it: answers that count for that
OFF_US: Final = 1_000_000  # from the estimate: a clock is named
NAMED_EVERY_US: Final = 60_000_000  # and each at most so often


class _Shown(NamedTuple):
    """One member's clock: how far it was at least ahead of this node's monotonic clock, and when
    that was heard."""

    ahead_us: int
    heard_at_us: int


@dataclass(frozen=True, slots=True)
class ClockStatistics:
    """A frozen picture, of a leader; a node that doesn't lead has nothing to compare with.

    Attributes:
        behind_ms: how far the log's time is behind the estimate; negative: ahead.
        off_ms: how far each voter's clock is ahead of the estimate; negative: behind.
    """

    behind_ms: float = 0.0
    off_ms: Mapping[NodeId, float] = field(default_factory=dict)


class LogClock:
    """One node's part of the log's clock."""

    def __init__(self, node: NodeId, last_append_time_ms: int, now_us: int) -> None:
        """The log ends at `last_append_time_ms`, 0 for an empty one; when that was, in this node's
        monotonic time, isn't known: it counts as now."""
        self._node = node
        self._reading_us = last_append_time_ms * 1000
        self._least_us = 0  # as this leadership has shown
        self._read_at_us = now_us
        self._new_until_us = now_us
        # The estimate, as its distance from the monotonic clock; None: no majority is heard.
        self._ahead_us: int | None = None
        self._shown: dict[NodeId, _Shown] = {}
        self._off_us: dict[NodeId, int] = {}
        self._named_us: dict[NodeId, int] = {}
        self._stepped: LogTimeStepped | None = None

    # --- what is heard ------------------------------------------------------------------------

    def on_heard(self, peer: NodeId, wall_ms: int, now_us: int) -> None:
        """An answer of `peer` has come, which left when its wall clock showed `wall_ms`."""
        self._shown[peer] = _Shown(wall_ms * 1000 - now_us, now_us)

    def on_taken(self, append_time_ms: int, now_us: int) -> None:
        """The log ends with an entry of another leader's now."""
        if append_time_ms * 1000 > self._reading_us:
            self._reading_us, self._read_at_us = append_time_ms * 1000, now_us

    # --- what a leader does -------------------------------------------------------------------

    def begin_leading(self, now_us: int) -> None:
        """This node has been elected: time may step, for a while, and not by what was heard long
        before."""
        self._new_until_us = now_us + NEW_US
        self._least_us = 0
        self._shown = {
            peer: shown
            for peer, shown in self._shown.items()
            if now_us - shown.heard_at_us <= NEW_US
        }

    def estimate(self, voters: Configuration, wall_ms: int, now_us: int) -> list[Event]:
        """What a majority's clocks have reached is made up anew; what is worth telling.

        Args:
            voters: whose clocks count.
            wall_ms: what this node's own shows.
        """

        def shows_us(node: NodeId) -> int:
            if node == self._node:
                return wall_ms * 1000
            shown = self._shown.get(node)
            if shown is None or now_us - shown.heard_at_us > SILENT_US:
                return 0  # as if it were behind: only who is heard can move time
            return max(0, shown.ahead_us + now_us)

        counting = voters.voters
        if voters.voters_outgoing:
            counting |= voters.voters_outgoing
        shown = {voter: shows_us(voter) for voter in sorted(counting)}
        reached_us = agreed(voters, shown.__getitem__)
        self._ahead_us = reached_us - now_us if reached_us else None
        self._off_us = {
            voter: shown_us - reached_us
            for voter, shown_us in shown.items()
            if reached_us and shown_us
        }
        return self._worth_telling(now_us)

    def read_ms(self, now_us: int) -> int:
        """The log's time now, milliseconds since the epoch: an append time."""
        time_us, fast_us = self._time_us(now_us), self._fast_us(now_us)
        if self._reading_us and time_us > fast_us + OFF_US:
            self._stepped = LogTimeStepped(time_us // 1000, (time_us - fast_us) // 1000)
        self._reading_us, self._read_at_us = time_us, now_us
        return time_us // 1000

    def shown_ms(self, now_us: int) -> int:
        """What `read_ms` would give, and no less than that from now on: who was shown it has chosen
        what is due. The pace isn't counted anew by it."""
        self._least_us = self._time_us(now_us)
        return self._least_us // 1000

    def statistics(self, now_us: int) -> ClockStatistics:
        """A frozen picture; to be asked of a leader."""
        if self._ahead_us is None:
            return ClockStatistics()
        behind_us = self._ahead_us + now_us - self._time_us(now_us)
        off_ms = {node: off_us / 1000 for node, off_us in self._off_us.items()}
        return ClockStatistics(behind_us / 1000, off_ms)

    def _time_us(self, now_us: int) -> int:
        slow_us = self._reading_us + (max(0, now_us - self._read_at_us) + 1) // 2
        reached_us = slow_us if self._ahead_us is None else self._ahead_us + now_us
        if now_us >= self._new_until_us:
            reached_us = min(reached_us, self._fast_us(now_us))
        return min(max(slow_us, reached_us, self._least_us), MAX_TIME_MS * 1000)

    def _fast_us(self, now_us: int) -> int:
        return self._reading_us + 2 * max(0, now_us - self._read_at_us)

    def _worth_telling(self, now_us: int) -> list[Event]:
        told: list[Event] = []
        if self._stepped is not None:
            told.append(self._stepped)
            self._stepped = None
        for node in [node for node, us in self._off_us.items() if abs(us) > OFF_US]:
            named_us = self._named_us.get(node)
            if named_us is None or now_us - named_us >= NAMED_EVERY_US:
                self._named_us[node] = now_us
                told.append(ClockOff(node, self._off_us[node] // 1000))
        return told
