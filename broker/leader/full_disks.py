"""Whether a voter's disk that is full is a reason to let the oldest segment go.

This owns what was let go of for whose disk. The fullest disk decides, and what a member says of its
own is believed; but a figure that nothing changes (another program's file, a quota, a lie) must not
take one segment after the other. So the next one goes for a disk when that has got back what went
for it, counted against what has come into the log meanwhile; or else after `PATIENCE_S`.

    state       on                                               becomes
    unburdened  is full: a segment goes                          burdened (free, log's end, gone)
    burdened    is full, has got it back: the next one goes      burdened (the sum of what went)
    burdened    is full, hasn't: nothing, before PATIENCE_S      burdened
    burdened    isn't full, or PATIENCE_S are over               unburdened

A leader begins without burdens: what was decided by others is not known to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dledger.core.types import NodeId
from dledger.disk_figures import DiskFigure

PATIENCE_S: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class _Burden:
    """What went for a disk since it was `free_bytes` free, with the log ending at `end_offset`."""

    free_bytes: int
    end_offset: int
    gone_bytes: int
    last_s: float

    def is_back(self, figure: DiskFigure, end_offset: int, segment_size: int) -> bool:
        """Whether the disk has got back what went, but for what has come and half a segment."""
        come = max(0, end_offset - self.end_offset)
        wanted = self.free_bytes + self.gone_bytes - come - segment_size // 2
        return figure.free_bytes >= wanted


class FullDisks:
    """One leadership's."""

    def __init__(self) -> None:
        self._burdens: dict[NodeId, _Burden] = {}

    def in_need(
        self,
        figures: Mapping[NodeId, DiskFigure],
        percent: int,
        *,
        end_offset: int,
        segment_size: int,
        now_s: float,
    ) -> frozenset[NodeId]:
        """For whose disks the oldest segment is to go.

        Args:
            figures: of the voters, as far as they are known by now.
            percent: a disk is full that is used to that; 0: none ever is.
        """
        full = {
            node: figure
            for node, figure in figures.items()
            if percent and figure.is_used_to(percent)
        }
        for node in figures.keys() - full.keys():
            self._burdens.pop(node, None)
        for node, burden in list(self._burdens.items()):
            if now_s - burden.last_s >= PATIENCE_S:
                del self._burdens[node]
        return frozenset(
            node
            for node, figure in full.items()
            if node not in self._burdens
            or self._burdens[node].is_back(figure, end_offset, segment_size)
        )

    def on_gone(
        self,
        whose: frozenset[NodeId],
        figures: Mapping[NodeId, DiskFigure],
        gone_bytes: int,
        *,
        end_offset: int,
        now_s: float,
    ) -> None:
        """It was decided that so much goes, for the disks of these."""
        for node in whose:
            before = self._burdens.get(node)
            if before is None:
                if node not in figures:  # it has fallen silent meanwhile
                    continue
                before = _Burden(figures[node].free_bytes, end_offset, 0, now_s)
            self._burdens[node] = _Burden(
                before.free_bytes, before.end_offset, before.gone_bytes + gone_bytes, now_s
            )

    def end(self) -> None:
        """Leadership is lost."""
        self._burdens.clear()
