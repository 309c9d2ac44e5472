"""Which disks are members: what a leader changes in the configuration, and when.

Two things happen by themselves, under every leader: an adopted group's configuration is written
into its log, and a learner that has caught up votes again. One is asked for: a lost disk is
replaced. What may follow what is the core's to decide (`dledger/core/membership.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol

import structlog

from broker.errors import BrokerError, ErrorCode
from dledger.core import Raft
from dledger.core.errors import ProposalRefused
from dledger.core.membership import with_disk
from dledger.core.types import DISK_ID_BYTES, Configuration, DiskId, Index, NodeId, Proposed, Role
from dledger.driver import LogBehind, LogFull

COMMIT_WAIT_S: Final = 10.0
POLL_S: Final = 0.01

log = structlog.get_logger(__name__)


class Replication(Protocol):
    """The driver, as far as membership goes."""

    @property
    def core(self) -> Raft: ...
    @property
    def applied_index(self) -> Index: ...
    def propose_configuration(self, wanted: Configuration) -> Proposed: ...


class Membership:
    """Changes the configuration while this node leads."""

    def __init__(self, replication: Replication, node: NodeId) -> None:
        self._replication = replication
        self._node = node

    def on_tick(self) -> None:
        """What is due by itself is proposed; a refusal is for now, the next tick asks again."""
        core = self._replication.core
        if core.role is not Role.LEADER:
            return
        wanted = None
        if core.configuration_place.at == 0 and core.configuration.disks:
            wanted = core.configuration
        elif core.configuration.learners:
            wanted = core.promotion()
        if wanted is None:
            return
        with contextlib.suppress(ProposalRefused, LogFull, LogBehind):
            placed = self._replication.propose_configuration(wanted)
            voters = ", ".join(sorted(wanted.voters))
            log.info("configuration_changed", index=placed.index, voters=voters)

    async def replace(self, node_id: str, disk_id: bytes) -> bool:
        """The group's log names `disk_id` as the disk of `node_id`, committed, and the lost one
        counts no more; whether the new one votes already.

        Raises:
            BrokerError: INVALID_ARGUMENT (not this member, or not this disk), BUSY (a change is
                under way), STORAGE_FULL, LEADERSHIP_LOST, TIMED_OUT.
        """
        core = self._replication.core
        node, disk = NodeId(node_id), DiskId(disk_id)
        present = core.configuration
        if present.disk_of(node) != disk:
            self._check(node, disk)
            try:
                placed = self._replication.propose_configuration(with_disk(present, node, disk))
            except (LogFull, LogBehind) as error:
                raise BrokerError(ErrorCode.STORAGE_FULL, str(error)) from error
            except ProposalRefused as error:
                raise BrokerError(ErrorCode.BUSY, str(error)) from error
            log.warning("disk_replaced", node=node, disk_id=disk.hex(), index=placed.index)
        await self._committed(core.term)
        return node in core.configuration.voters

    def _check(self, node: NodeId, disk: DiskId) -> None:
        core = self._replication.core
        present, peer = core.configuration, core.statistics().peers.get(node)
        reason = ""
        if node not in present.members():
            reason = f"{node} is no member: {', '.join(sorted(present.members()))} are"
        elif node == self._node:
            reason = f"{node} leads: `dledger group transfer` first"
        elif len(disk) != DISK_ID_BYTES or disk in dict(present.disks).values():
            reason = f"disk {disk.hex() or 'nothing'} is none that {node} could be given"
        elif peer is not None and peer.recently_active and peer.match_index:
            reason = f"{node} answers on the disk that the group knows: stop it first"
        elif others := sorted(present.learners - {node}):
            # One after the other: an acknowledged entry is on a majority of all members' disks.
            text = f"{', '.join(others)} is being taken in and doesn't vote yet: after that"
            raise BrokerError(ErrorCode.BUSY, text)
        if reason:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, reason)

    async def _committed(self, term: int) -> None:
        """The configuration in force is committed, and applied here."""
        core = self._replication.core
        index = core.configuration_place.at
        try:
            async with asyncio.timeout(COMMIT_WAIT_S):
                while self._replication.applied_index < index:
                    await asyncio.sleep(POLL_S)
                    # At each look, the last one too: another leader's entries may lie there by now.
                    if core.role is not Role.LEADER or core.term != term:
                        text = "leadership was lost after the proposal: ask again"
                        raise BrokerError(ErrorCode.LEADERSHIP_LOST, text)
        except TimeoutError as error:
            text = f"entry {index} isn't committed: a majority without the lost disk has to answer"
            raise BrokerError(ErrorCode.TIMED_OUT, text) from error
