"""Which disks are members: what a leader changes in the configuration, and when.

Three things happen by themselves, under every leader: an adopted group's configuration is written
into its log, a learner that has caught up votes, and a joint configuration is left. Two are asked
for: a lost disk is replaced (ADR 22), and members come, go, and change what they are (ADR 41); one
at a time. What may follow what is the core's to decide (`dledger/core/membership.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from broker.errors import BrokerError, ErrorCode
from broker.leader.changes import Change, check_alone, check_enough, is_so, planned
from broker.leader.epochs import EpochName
from broker.leader.newcomers import GroupLog, HeldLog, check_held, check_not_given_up
from dledger.codec import configuration_bytes
from dledger.core import Raft
from dledger.core.errors import ProposalRefused
from dledger.core.membership import with_disk
from dledger.core.types import (
    DISK_ID_BYTES,
    Configuration,
    ConfigurationPlace,
    DiskId,
    Index,
    NodeId,
    Proposed,
    Role,
)
from dledger.driver import LogBehind, LogFull
from dledger.level import MEMBERS_CHANGE_LEVEL
from dledger.limits import MAX_CONFIGURATION_BYTES
from dledger.peers import PeerLink

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

    def __init__(
        self,
        replication: Replication,
        node: NodeId,
        level: Callable[[], int] = lambda: 0,
        links: Callable[[], Mapping[NodeId, PeerLink]] = dict,
        digest_at: Callable[[Index], int | None] = lambda _: None,
    ) -> None:
        """Args:
        level: of formats and commands in use.
        links: the connections to the other members.
        digest_at: the running digest of this node's log at an entry; None: it isn't held.
        """
        self._replication = replication
        self._node = node
        self._level = level
        self._links = links
        self._digest_at = digest_at

    def on_tick(self) -> None:
        """What is due by itself is proposed; a refusal is for now, the next tick asks again."""
        core = self._replication.core
        if core.role is not Role.LEADER:
            return
        if core.configuration_place.at == 0 and core.configuration.disks:
            wanted: Configuration | None = core.configuration
        else:
            wanted = core.due_change()
        if wanted is None:
            return
        with contextlib.suppress(ProposalRefused, LogFull, LogBehind):
            self._tell(self._replication.propose_configuration(wanted), wanted)

    @property
    def placed_at(self) -> Index:
        """The entry of the configuration in force; it grows with each that is proposed."""
        return self._replication.core.configuration_place.at

    async def change(self, change: Change) -> Configuration:
        """The members are as `change` wants them, committed, or on the way: a joint configuration
        is left, and learners are made voters, by whoever leads. The configuration in force then.

        Raises:
            BrokerError: INVALID_ARGUMENT (it names somebody wrongly), BUSY (another change is
                under way, a member runs an older program, or a majority of the voters to be
                doesn't answer), STORAGE_FULL, LEADERSHIP_LOST, TIMED_OUT.
        """
        core = self._replication.core
        present = core.configuration
        if self._level() < MEMBERS_CHANGE_LEVEL:
            raise BrokerError(
                ErrorCode.BUSY,
                f"level {self._level()} is in use, and members change from level "
                f"{MEMBERS_CHANGE_LEVEL} on: every member has to run a release that knows it, and "
                "to be connected",
            )
        wanted = present
        if not is_so(present, change):
            self._check_programs(present, change)
            is_committed = core.configuration_place.at <= core.commit_index
            check_alone(present, change, is_committed=is_committed)
            wanted = planned(present, change)
            _check_size(wanted)
            for each in change.add:
                if each.node not in present.members():
                    check_held(each.node, each.held, self._log())
        if wanted != present:
            check_enough(wanted, self._ready())
            self._tell(self._proposed(wanted), wanted)
        await self._committed(core.term)
        return core.configuration

    def _ready(self) -> set[NodeId]:
        """Who answers, and takes entries. A new leader, and one that has just taken a member in,
        grants it an election timeout in which it counts as active; nobody has heard it, so an entry
        that needs it could be in everybody's way for ever."""
        core = self._replication.core
        ready = {
            node
            for node, peer in core.statistics().peers.items()
            if peer.has_answered and peer.recently_active and not peer.is_short_of_space
        }
        # Nor does its own disk count while it lacks what it once had (ADR 39).
        return ready if core.is_in_doubt else {*ready, self._node}

    def _log(self) -> GroupLog:
        core = self._replication.core
        epoch = EpochName.of(core.configuration.epoch.recoveries)
        return GroupLog(core.commit_index, self._digest_at, epoch)

    def _check_programs(self, present: Configuration, change: Change) -> None:
        """A program that was put back below the level in use applies nothing, and one of level 1
        would read a joint configuration as a simple one and lead by the wrong majority. Members
        don't change beside it: whom they would need may be the one that can't serve. It may go.

        Raises:
            BrokerError: BUSY, and whose program it is.
        """
        said = {name: link.level for name, link in self._links().items()}  # 0: isn't connected
        level = self._level()
        staying = present.members() - set(change.remove)
        older = sorted(name for name in staying if 0 < said.get(name, 0) < level)
        if older:
            raise BrokerError(
                ErrorCode.BUSY,
                f"{', '.join(older)}: the program knows less than level {level}, which the group "
                "uses, and applies nothing; install the version of the others there, or stop it",
            )

    def _proposed(self, wanted: Configuration) -> Proposed:
        try:
            return self._replication.propose_configuration(wanted)
        except (LogFull, LogBehind) as error:
            raise BrokerError(ErrorCode.STORAGE_FULL, str(error)) from error
        except ProposalRefused as error:
            raise BrokerError(ErrorCode.BUSY, str(error)) from error

    def _tell(self, placed: Proposed, wanted: Configuration) -> None:
        facts = {
            name: ", ".join(sorted(nodes))
            for name, nodes in (
                ("voters", wanted.voters),
                ("until_left", wanted.voters_outgoing),
                ("learners", wanted.learners),
            )
            if nodes
        }
        log.info("configuration_changed", index=placed.index, **facts)

    async def replace(
        self, node_id: str, disk_id: bytes, held: HeldLog | None = None
    ) -> Configuration:
        """The group's log names `disk_id` as the disk of `node_id`, committed, and the lost one
        counts no more. The configuration in force then: whether the new one votes already.

        Args:
            held: the log that the disk comes with; None: none, for all that is said.

        Raises:
            BrokerError: INVALID_ARGUMENT (not this member, or not this disk), BUSY (a change is
                under way, or the lost disk was heard just now), STORAGE_FULL, LEADERSHIP_LOST,
                TIMED_OUT.
        """
        core = self._replication.core
        node, disk = NodeId(node_id), DiskId(disk_id)
        present = core.configuration
        if present.disk_of(node) != disk:
            self._check(node, disk)
            check_not_given_up(present, node, disk)
            check_held(node, held, self._log())
            placed = self._proposed(with_disk(present, node, disk))
            log.warning("disk_replaced", node=node, disk_id=disk.hex(), index=placed.index)
        await self._committed(core.term)
        return core.configuration

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
            # Also for an election timeout after it is gone.
            text = (
                f"{node} answers, or did just now, on the disk that the group knows: stop it first"
            )
            raise BrokerError(ErrorCode.BUSY, text)
        elif node not in present.learners and (
            others := sorted(present.learners - present.observers)
        ):
            # One after the other: an acknowledged entry is on a majority of all members' disks.
            # Who doesn't vote has acknowledged nothing: two that are lost while they are taken in
            # would wait for each other for ever.
            text = f"{', '.join(others)} is being taken in and doesn't vote yet: after that"
            raise BrokerError(ErrorCode.BUSY, text)
        if reason:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, reason)

    async def _committed(self, term: int) -> None:
        """The configuration in force is committed, and applied here."""
        core = self._replication.core
        place = core.configuration_place
        index = place.at
        try:
            async with asyncio.timeout(COMMIT_WAIT_S):
                while self._replication.applied_index < index:
                    await asyncio.sleep(POLL_S)
                    # At each look, the last one too: another leader's entries may lie there by now.
                    if core.role is not Role.LEADER or core.term != term:
                        if self._is_applied(place):
                            return  # it was what ended this leadership
                        text = "leadership was lost after the proposal: ask again"
                        raise BrokerError(ErrorCode.LEADERSHIP_LOST, text)
        except TimeoutError as error:
            text = f"entry {index} isn't committed: a majority without the lost disk has to answer"
            raise BrokerError(ErrorCode.TIMED_OUT, text) from error

    def _is_applied(self, place: ConfigurationPlace) -> bool:
        """Whether the entry that was proposed there is applied, and no other in its place."""
        core, applied = self._replication.core, self._replication.applied_index
        return place.at <= applied and core.term_at(place.at) == place.term


def _check_size(wanted: Configuration) -> None:
    """Raises BrokerError: INVALID_ARGUMENT, as no log may hold it."""
    size = len(configuration_bytes(wanted))
    if size > MAX_CONFIGURATION_BYTES:
        members = len(wanted.members())
        raise BrokerError(
            ErrorCode.INVALID_ARGUMENT,
            f"the configuration of {members} members would have {size:,} bytes, and "
            f"{MAX_CONFIGURATION_BYTES:,} is the limit: let members go first",
        )
