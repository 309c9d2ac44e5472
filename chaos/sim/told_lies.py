"""Which messages are lies, and whom they may have led astray: for how long that excuses anything.

A lie is refused, or it is believed and something comes of it, soon. So a message that is true may
be refused, or rot be called beyond repair, by whoever has lately lied or been lied to, or because
it was said by such a one; by nobody else, and not for the rest of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger.core.types import NodeId
from dledger.wire.raft_pb2 import PeerMessage

LATELY_US: Final = 3_000_000  # in which what comes of a lie has come


class ToldLies:
    """Of one network.

    Args:
        now_us: the time.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._told: dict[int, PeerMessage] = {}  # by identity: messages travel as the objects
        self._touched: dict[NodeId, int] = {}  # who lied or was lied to, and when last

    def __len__(self) -> int:
        return len(self._told)

    def on_told(self, liar: NodeId, message: PeerMessage) -> None:
        """`liar` says it."""
        self._told[id(message)] = message
        self._touched[liar] = self._now_us()

    def on_delivered(self, liar: NodeId, victim: NodeId, message: PeerMessage) -> None:
        """It is about to be heard, if it is one."""
        if self.is_lie(message):
            self._touched[liar] = self._touched[victim] = self._now_us()

    def is_lie(self, message: PeerMessage) -> bool:
        """Whether it was told as one."""
        return id(message) in self._told

    def have_touched(self, name: NodeId) -> bool:
        """Whether it has lied, or heard a lie, lately."""
        last = self._touched.get(name)
        return last is not None and self._now_us() - last < LATELY_US
