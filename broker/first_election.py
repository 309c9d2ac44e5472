"""The first election of a group, for which nobody need wait.

A timeout tells a leader that is silent from one that is gone. Where nobody has ever led there is
none to be told from, and a node that is the only voter has nobody to wait for at all. So of those
that formed the group the first by name campaigns as soon as it can ask a majority, and a lone voter
at its first tick. All others wait as ever, so that votes aren't split.

This shortens a wait, once in a process's life, and nothing else: pre-votes and votes are asked for,
granted and counted as in any election, and whoever knows a leader refuses.

Source: etcd, whose member that is alone skips its election timeout at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dledger.core.quorum import has_quorum
from dledger.core.raft import Raft
from dledger.core.types import NodeId
from dledger.driver import RaftDriver
from dledger.peers import PeerLink
from dledger.reading.entry import EntryHeader

FOUNDING: Final = (1, 1)  # term and last index of whoever knows of no election (ADR 22)


class FirstElection:
    """`on_tick` before each tick of the core's clock.

    Args:
        node: this one.
        driver: its core's.
        links: to the peers.
    """

    def __init__(
        self,
        node: NodeId,
        driver: RaftDriver[EntryHeader],
        links: Callable[[], Mapping[NodeId, PeerLink]],
    ) -> None:
        self._node = node
        self._driver = driver
        self._links = links
        self._is_over = False

    def on_tick(self) -> None:
        """The election begins, if it is this node's to begin and a majority can be asked."""
        if self._is_over:
            return
        core = self._driver.core
        if core.leader is not None or not is_first(self._node, core):
            self._is_over = True
            return
        heard = {peer for peer, link in self._links().items() if link.connected}
        if has_quorum(core.configuration, heard | {self._node}):
            self._is_over = True
            self._driver.hasten_election()


def is_first(node: NodeId, core: Raft) -> bool:
    """Whether `node` is the one that need not wait."""
    configuration = core.configuration
    if configuration.voters_outgoing or node not in configuration.voters:
        return False
    if len(configuration.voters) == 1:
        return True
    return (core.term, core.last_index) == FOUNDING and node == min(configuration.voters)
