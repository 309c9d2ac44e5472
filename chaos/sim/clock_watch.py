"""Append times beside all clocks: what leaders write into the log, and what clocks have shown.

Four things must hold, whatever the clocks of nodes do (docs/adr/0026-the-logs-own-clock.md). No
entry is older than the one before. None is later than a majority of the clocks has been, but for
the half speed at which the log's time waits. Between two entries of one leader lies half to twice
the time that has passed there, but for its first second, in which it may step forward. And a new
leader's first entry is no older than the clock that is furthest behind.

This reads and changes nothing. It knows every node's clock, which no node does; a member that lies
may have said that its clock shows anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from chaos.sim.defect import Defect
from chaos.sim.loop import WALL_START_MS
from chaos.sim.machine import Life, Machine
from dledger.core.types import Index, NodeId, Role
from dledger.reading.entry import EntryHeader

BELIEVED_US = 2_500_000  # for so long a new leader believes what a clock has shown
FASTEST, SLOWEST = 1.25, 0.8  # what a node's own clock may make of a second; see `clock-drift`
STEPS_US = 1_000_000  # of a leadership, in which time may step forward
ROUNDING_MS = 1.001
# A leader believes a silent clock for ten seconds, and may run at twice the speed towards it; drift
# and the time that an answer travels come to less. Leaps are twenty times as far at least.
SLACK_MS = 15_000
LIES_MS = 1 << 45  # what a liar's clock may show at most


class _Place(NamedTuple):
    """Where a leader was in its log's time at its last entry; `since_s`, `clock_s` by its own
    monotonic clock."""

    term: int
    last_index: int
    since_s: float
    clock_s: float
    append_time_ms: int


class ClockWatch:
    """The clocks of one run."""

    def __init__(self, nodes: Sequence[Machine]) -> None:
        self._nodes = nodes
        self._liars: set[NodeId] = set()
        # Of each node: how far its clock was ahead of true time, and when that was seen.
        self._seen: dict[str, deque[tuple[int, int]]] = {node.name: deque() for node in nodes}
        self._led: dict[str, _Place] = {}
        self._reached_ms = 0.0  # the latest time that an append may have now
        self._at_us = 0

    def distrust(self, name: NodeId) -> None:
        """That node may say from now on that its clock shows anything, and be believed for long."""
        self._liars.add(name)

    def look(self, now_us: int) -> None:
        """Takes down what every clock shows. To be called around each change of one."""
        for node in self._nodes:
            seen = self._seen[node.name]
            seen.append((now_us, LIES_MS if node.name in self._liars else _ahead_ms(node, now_us)))
            while len(seen) > 1 and seen[1][0] < now_us - BELIEVED_US:
                seen.popleft()
            if len(seen) > 2 and seen[-2][1] == seen[-3][1] == seen[-1][1]:
                del seen[-2]
        latest = sorted(max(ahead for _, ahead in seen) for seen in self._seen.values())
        true_ms = WALL_START_MS + now_us / 1000
        agreed_ms = true_ms + latest[(len(latest) - 1) // 2]
        waited_ms = (now_us - self._at_us) / 1000 * FASTEST / 2
        self._reached_ms = max(agreed_ms, self._reached_ms + waited_ms)
        self._at_us = now_us

    def after_event(self, node: Machine, life: Life) -> None:
        """Looks at what `node` has appended as a leader.

        Raises:
            Defect: an append time is none that may be.
        """
        core = life.core
        if core.role is not Role.LEADER:
            self._led.pop(node.name, None)
            return
        place = self._led.get(node.name)
        if place is None or place.term != core.term:
            place, first = None, core.last_index
            while first - 1 > core.base.index and core.term_at(Index(first - 1)) == core.term:
                first = Index(first - 1)
        else:
            first = Index(place.last_index + 1)
        if first > core.last_index:
            return
        self.look(life.loop.now_us)
        for index in range(first, core.last_index + 1):
            place = self._check(node, life, life.replica.log.header_at(index), place)
        if place is not None:
            self._led[node.name] = place

    def _check(
        self, node: Machine, life: Life, header: EntryHeader, before: _Place | None
    ) -> _Place:
        now_s, time_ms = life.loop.time(), header.append_time_ms
        what = f"entry {header.index} of {node.name} at {time_ms} ms"
        if time_ms > self._reached_ms + SLACK_MS:
            ahead = time_ms - self._reached_ms
            raise Defect("later than a majority's clocks", f"{what}, {ahead:.0f} ms ahead")
        if before is None:
            self._check_first(life, header, what)
            return _Place(header.term, header.index, now_s, now_s, time_ms)
        passed_ms = (now_s - before.clock_s) * 1000
        moved_ms = time_ms - before.append_time_ms
        is_new = now_s - before.since_s <= STEPS_US / 1e6
        if moved_ms < passed_ms / 2 - ROUNDING_MS:
            raise Defect("the log's time is slow", f"{what}: {moved_ms} in {passed_ms:.1f} ms")
        if moved_ms > passed_ms * 2 + ROUNDING_MS and not is_new:
            raise Defect("the log's time jumps", f"{what}: {moved_ms} in {passed_ms:.1f} ms")
        return before._replace(last_index=header.index, clock_s=now_s, append_time_ms=time_ms)

    def _check_first(self, life: Life, header: EntryHeader, what: str) -> None:
        log = life.replica.log
        if (
            header.index > 1
            and header.append_time_ms < log.header_at(header.index - 1).append_time_ms
        ):
            raise Defect("time runs backwards", f"{what} is older than the one before")
        if self._liars:
            return  # it may have said that its clock is behind, with no third to be heard
        earliest = min(ahead for seen in self._seen.values() for _, ahead in seen)
        least_ms = WALL_START_MS + life.loop.now_us / 1000 + earliest
        if header.append_time_ms < least_ms - SLACK_MS:
            behind = least_ms - header.append_time_ms
            raise Defect("the log's time is behind", f"{what}, {behind:.0f} ms behind all clocks")


def _ahead_ms(node: Machine, now_us: int) -> int:
    """How far the node's clock is ahead of true time; of one that is down, how far it will be."""
    if node.life is None:
        return node.wall_offset_ms
    return node.life.loop.wall_ms() - WALL_START_MS - now_us // 1000
