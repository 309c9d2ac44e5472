"""What this node may do now, as leadership comes and goes.

Between the driver's events and the services: it says when the node serves (it leads, an entry
of its term is committed, and everything in its log is applied, so that nothing that a producer
or consumer was ever told is missing), tells waiting callers when that ends, and lets a
hand-over be awaited. It decides nothing about leadership itself; that is the core's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, assert_never

import structlog

from broker.errors import BrokerError, ErrorCode, NodeAddress
from broker.leader.append import Appender
from broker.leader.epochs import FIRST, EpochFence, EpochName
from broker.leader.old_sessions import OldSessions
from broker.reading.held import HeldPulls
from dledger.core import Raft
from dledger.core.errors import CoreError, NotLeader, TargetUnfit, TransferInProgress
from dledger.core.types import (
    ClockOff,
    Event,
    HandOverBegun,
    Index,
    LeaderChanged,
    LogTimeStepped,
    LogTruncated,
    NodeId,
    OwnLogVerified,
    PeerContradicted,
    PeerMessageRefused,
    PeerStateChanged,
    Role,
    RoleChanged,
    StorageFailed,
    TransferEnded,
)

TRANSFER_WAIT_S = 2.0

log = structlog.get_logger(__name__)


class Replication(Protocol):
    """The driver, as far as leadership looks at it."""

    @property
    def core(self) -> Raft: ...
    @property
    def applied_index(self) -> Index: ...
    def transfer_leadership(self, target: NodeId | None) -> None: ...


@dataclass(frozen=True, slots=True)
class LeaderView:
    """Who leads, as one node knows it. `is_serving` is true only of the leader itself, once it
    answers sends and pulls. `epoch`: of the group, as its log has it."""

    broker_group: str
    node_id: str
    leader: NodeAddress | None
    term: int
    is_serving: bool
    members: tuple[NodeAddress, ...]
    epoch: EpochName = FIRST


@dataclass(frozen=True, slots=True)
class LeadershipStatistics:
    is_serving: bool
    leader: NodeAddress | None
    elections: int
    leader_changes: int
    epoch: int = 0
    newer_epoch: int = 0  # that was heard of; 0: none


class Leadership:
    """The driver's observer; owns whether this node serves. `members` tells who belongs to the
    group now, and where each is found."""

    def __init__(
        self,
        broker_group: str,
        node: NodeId,
        members: Callable[[], Mapping[NodeId, str]],
        appender: Appender,
        held: HeldPulls,
        old_sessions: OldSessions,
    ) -> None:
        self._broker_group = broker_group
        self._node = node
        self.members = members
        self._appender = appender
        self._held = held
        self._transfers: list[asyncio.Future[str]] = []
        self._replication: Replication | None = None
        self._changed: Callable[[], None] = lambda: None
        self.fence = EpochFence(
            lambda: self._core.configuration.epoch.recoveries,
            lambda: self.end_serving("the group was recovered by force without this node"),
        )
        self._old_sessions = old_sessions
        self.serving = False
        self.times_served = 0
        self._is_over = False  # it failed: what was under way is still applied, and begins nothing
        self._is_held_up = False  # sessions of another epoch are to end first
        self.draining = False
        self.elections = 0
        self.leader_changes = 0

    def attach(self, replication: Replication, changed: Callable[[], None]) -> None:
        """Connects the driver; `changed` is called whenever the leader, `serving` or the members
        changed."""
        self._replication = replication
        self._changed = changed

    @property
    def _core(self) -> Raft:
        if self._replication is None:
            raise RuntimeError("attach() comes first")
        return self._replication.core

    # --- Observer -----------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Logs the event and follows what it means for callers."""
        match event:
            case RoleChanged(role=role, term=term, reason=reason):
                log.info("role_changed", role=role.value, term=term, reason=reason)
                self._on_role(role)
            case LeaderChanged(leader=leader, term=term):
                log.info("leader_changed", leader=leader, term=term)
                self._on_leader(leader)
            case LogTruncated(from_index=index, term=term):
                log.warning("log_truncated", from_index=index, term=term)
            case PeerStateChanged(peer=peer, state=state):
                log.info("peer_state_changed", peer=peer, state=state)
            case PeerMessageRefused(peer=peer, reason=reason, unreported=unreported):
                log.error("peer_message_refused", peer=peer, reason=reason, unreported=unreported)
            case PeerContradicted(peer=peer, reason=reason, unreported=unreported):
                log.error("replicas_differ", peer=peer, reason=reason, unreported=unreported)
            case OwnLogVerified(index=index, digest=digest):
                log.warning("own_log_verified", index=index, digest=f"{digest:016x}")
            case ClockOff(node=node, off_ms=off_ms):
                log.warning("clock_off", node=node, off_ms=off_ms)
            case LogTimeStepped(time_ms=time_ms, by_ms=by_ms):
                log.warning("log_time_stepped", time_ms=time_ms, by_ms=by_ms)
            case StorageFailed(term=term):
                log.error("storage_failed", term=term)
            case HandOverBegun(target=target, reason=reason):
                log.warning("leadership_given_up", target=target, reason=reason)
            case TransferEnded(target=target, outcome=outcome):
                log.info("leadership_transfer_ended", target=target, outcome=outcome)
                if outcome != "done":
                    self._finish_transfers(f"the transfer to {target} was {outcome}")
            case _:
                assert_never(event)

    def on_applied(self, index: Index) -> None:
        """Answers who waited for entries up to `index`; starts serving when all is applied."""
        self._appender.on_applied(index)
        self._begin_serving(index)

    def on_tick(self) -> None:
        """What holds this leader up may be over: a full disk may have room again."""
        if self._is_held_up and self._replication is not None:
            self._begin_serving(self._replication.applied_index)

    def _begin_serving(self, index: Index) -> None:
        core = self._core
        is_ready = core.is_ready_leader and index == core.last_index
        if self.serving or self._is_over or not is_ready or self.fence.is_shut:
            return
        self._appender.begin(index)
        self._is_held_up = not self._old_sessions.are_over()
        if self._is_held_up:
            return
        self.serving = True
        self.times_served += 1
        log.info("serving_started", term=core.term, applied_index=index)
        self._changed()

    def on_configuration(self) -> None:
        """Watchers are told who belongs to the group now: a client that learned of new members only
        with a new leader would lose the group with the last of the old ones."""
        self._changed()

    def _on_role(self, role: Role) -> None:
        if role is Role.CANDIDATE:
            self.elections += 1
        if role is not Role.LEADER:
            self.end_serving("leadership was lost")

    def end_for_good(self, reason: str) -> None:
        """As `end_serving`; and this one never serves again, whatever is applied until it stops."""
        self._is_over = True
        self.end_serving(reason)

    def end_serving(self, reason: str) -> None:
        """Nobody is served any more; who waits for a commit is told that it may have happened. Also
        if nobody was served yet: an index that somebody waits for may be another entry's next."""
        text = f"{reason} after the proposal: it may have been stored"
        self._appender.end(BrokerError(ErrorCode.LEADERSHIP_LOST, text))
        if not self.serving and not self._is_held_up:
            return
        self.serving = self._is_held_up = False
        self._held.wake_all()
        log.info("serving_ended", term=self._core.term, reason=reason)
        self._changed()

    def _on_leader(self, leader: NodeId | None) -> None:
        self.leader_changes += 1
        if leader is not None and leader != self._node:
            self._finish_transfers("")
        self._changed()

    # --- hand-over ----------------------------------------------------------------------------

    async def hand_over(self, target: NodeId | None) -> LeaderView:
        """Hands leadership to `target`, or to the best caught-up voter; the view afterwards.

        Raises:
            BrokerError: INVALID_ARGUMENT (the target can't lead), TRANSFER_FAILED (it
                can't now), TIMED_OUT (it hasn't, and may yet), NOT_LEADER, BUSY.
        """
        if self._replication is None:
            raise RuntimeError("attach() comes first")
        if target == self._node and self.serving:
            return self.view()  # it holds already
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._transfers.append(ended)
        try:
            self._replication.transfer_leadership(target)
            async with asyncio.timeout(TRANSFER_WAIT_S):
                failure = await ended
        except NotLeader as error:
            raise self.not_leader("") from error
        except TransferInProgress as error:
            raise self._error(ErrorCode.BUSY, str(error)) from error
        except TargetUnfit as error:
            raise BrokerError(ErrorCode.TRANSFER_FAILED, str(error)) from error
        except CoreError as error:
            raise BrokerError(ErrorCode.INVALID_ARGUMENT, str(error)) from error
        except TimeoutError as error:
            raise BrokerError(ErrorCode.TIMED_OUT, "no new leader showed itself in time") from error
        finally:
            if ended in self._transfers:
                self._transfers.remove(ended)
        if failure:  # whoever was told to stand for election may win it yet
            raise BrokerError(ErrorCode.TIMED_OUT, failure)
        return self.view()

    def _finish_transfers(self, failure: str) -> None:
        for future in self._transfers:
            if not future.done():
                future.set_result(failure)

    # --- what callers are told ----------------------------------------------------------------

    def check_serving(self) -> None:
        """Returns when this node serves.

        Raises:
            BrokerError: NOT_LEADER with whom to ask, NOT_READY or SHUTTING_DOWN.
        """
        if not self.serving:
            raise self.not_leader("")

    def check_writable(self) -> None:
        """Returns unless the node is being stopped.

        Raises:
            BrokerError: SHUTTING_DOWN.
        """
        if self.draining:
            raise self._error(ErrorCode.SHUTTING_DOWN, "this node is being stopped")

    def not_leader(self, reason: str) -> BrokerError:
        """The error for a call that only a serving leader answers."""
        core = self._core
        if self.fence.is_shut:
            text = (
                f"{self._node} is of epoch {self.fence.name.number} of broker group "
                f"{self._broker_group}, and a client was served in epoch {self.fence.told_number}: "
                "the group was recovered by force without this node"
            )
            return BrokerError(ErrorCode.NOT_LEADER, text)
        if core.role is Role.LEADER and self.draining:
            return self._error(ErrorCode.SHUTTING_DOWN, "this node is being stopped")
        if core.role is Role.LEADER:
            text = reason or f"{self._node} is elected, not yet serving"
            return self._error(ErrorCode.NOT_READY, text)
        leader = core.leader or "unknown"
        text = (
            f"{self._node} does not lead broker group {self._broker_group}; the leader is {leader}"
        )
        return self._error(ErrorCode.NOT_LEADER, f"{text}: {reason}" if reason else text)

    def _error(self, code: ErrorCode, message: str) -> BrokerError:
        """An error that says whom to ask instead."""
        return BrokerError(code, message, leader=self.leader(), term=self._core.term)

    def leader(self) -> NodeAddress | None:
        """The leader this node knows of."""
        leader = self._core.leader
        members = self.members()
        if leader is None or leader not in members:
            return None
        return NodeAddress(leader, members[leader])

    def view(self) -> LeaderView:
        """What watchers are told."""
        return LeaderView(
            broker_group=self._broker_group,
            node_id=self._node,
            leader=self.leader(),
            term=self._core.term,
            is_serving=self.serving,
            members=tuple(
                NodeAddress(node, address) for node, address in sorted(self.members().items())
            ),
            epoch=self.fence.name,
        )

    def statistics(self) -> LeadershipStatistics:
        """A frozen picture, as of now."""
        return LeadershipStatistics(
            is_serving=self.serving,
            leader=self.leader(),
            elections=self.elections,
            leader_changes=self.leader_changes,
            epoch=self.fence.name.number,
            newer_epoch=self.fence.told_number if self.fence.is_shut else 0,
        )
