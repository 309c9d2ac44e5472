"""How full the members' disks are, as each says of its own in its heartbeat answers.

This owns what was heard, and for how long it counts. It decides nothing: what a full disk is a
reason for is its readers' matter. It is believed of a member as its clock is; a figure that is old
is none, and neither is that of a member which says nothing, as releases before this one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from dledger.core.types import NodeId

SILENT_US: Final = 10_000_000  # without an answer for so long, nothing is known of a disk
MAX_DISK_BYTES: Final = 1 << 62
_WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class DiskFigure:
    """The file system of a data directory: `free_bytes` are what the node may still write, at most
    `total_bytes`, which are above 0."""

    free_bytes: int
    total_bytes: int

    def is_used_to(self, percent: int) -> bool:
        """Whether that much of it, or more, is used."""
        used = self.total_bytes - self.free_bytes
        return used * _WHOLE >= percent * self.total_bytes


class _Heard(NamedTuple):
    figure: DiskFigure
    at_us: int


class DiskFigures:
    """What one node has heard of the others."""

    def __init__(self) -> None:
        self._heard: dict[NodeId, _Heard] = {}

    def on_heard(self, peer: NodeId, figure: DiskFigure | None, now_us: int) -> None:
        """An answer of `peer` has come; None: it doesn't say."""
        if figure is None:
            self._heard.pop(peer, None)
        else:
            self._heard[peer] = _Heard(figure, now_us)

    def fresh(self, whose: Collection[NodeId], now_us: int) -> dict[NodeId, DiskFigure]:
        """What is known of these by now; of others nothing is kept."""
        self._heard = {peer: each for peer, each in self._heard.items() if peer in whose}
        return {
            peer: each.figure
            for peer, each in self._heard.items()
            if now_us - each.at_us <= SILENT_US
        }
