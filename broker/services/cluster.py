"""The broker group itself: how this node is, who leads, and handing leadership over.

Every node answers, leader or not: this is how callers find the leader. An election changes what a
node sees of it several times within some milliseconds, and thousands may watch; so what nobody can
act upon, a view without anybody who serves or is believed to, is told only if it lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from broker.errors import BrokerError, ErrorCode, NodeAddress
from broker.leader.changes import Change
from broker.leader.epochs import FIRST, EpochFence, EpochName
from broker.leader.leadership import LeaderView
from broker.leader.newcomers import HeldLog
from broker.services.gate import Gate
from dledger.core.types import Configuration, Index, NodeId

UNDECIDED_S: Final = 0.1  # for which watchers aren't told that nobody leads yet


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One peer, as this node sees it. `state` is empty unless this node leads."""

    node_id: str
    address: str
    is_connected: bool
    state: str = ""
    match_index: int = 0
    is_recently_active: bool = False
    is_older_copy: bool = False  # refused: its disk was put back as it once was


@dataclass(frozen=True, slots=True)
class MemberHealth:
    """One member that the log names.

    Attributes:
        is_voter: if the configuration is joint: of those that it leads to.
        is_leaving_voter: of those that a joint configuration comes from.
        clock_off_ms: how far its clock is ahead of a majority's; None unless this node leads and
            knows.
        is_observer: it learns, and isn't to vote.
        address: where the log says that it is found; empty: it doesn't.
    """

    node_id: str
    is_voter: bool
    disk_id: bytes
    clock_off_ms: float | None = None
    is_observer: bool = False
    is_leaving_voter: bool = False
    address: str = ""


@dataclass(frozen=True, slots=True)
class Fill:
    """Of `what`, in words, so many of `limit` are in use."""

    what: str
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """What a node knows of its own state of health, and of its group's. Nothing is judged.

    Attributes:
        disk_id: the disk that it is on.
        free_bytes: of the disk; None: it can't be told. No segment leaves less than
            `reserve_bytes`.
        queues_wrong: ConsumeQueues that aren't mended yet.
        contradictions: of peers' messages with what is settled here, since the start.
        certificate_expires_ms: the first of those that it shows or believes; 0: it has none.
        suspected_index: an entry that differs on a peer, and nobody knows whose is wrong; 0: none.
        differing: members whose logs differ from what a majority holds.
        front_held: why what the group let go of is still here; empty: nothing holds it.
        log_behind_ms: how far the log's time is behind a majority's clocks, by a leader.
        fills: of what has a bound, how much is in use.
        certificate_begins_ms, next_certificate_ms, now_ms: see `broker.premises.Premises`; 0: it
            can't be told.
    """

    disk_id: bytes
    members: tuple[MemberHealth, ...]
    is_log_full: bool
    is_apply_paused: bool
    is_short_of_space: bool
    free_bytes: int | None
    reserve_bytes: int
    queues_wrong: int
    contradictions: int
    last_fsync_ms: float
    certificate_expires_ms: int
    suspected_index: int = 0
    differing: tuple[str, ...] = ()
    front_held: str = ""
    log_behind_ms: float = 0.0
    fills: tuple[Fill, ...] = ()
    certificate_begins_ms: int = 0
    next_certificate_ms: int = 0
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node, as it sees itself.

    Attributes:
        end_offset: bytes of log, uncommitted included.
        committed_offset: bytes of log up to the commit index.
        is_serving: it leads, and answers sends and pulls.
        apply_stopped: why what is committed isn't applied any more; empty while it is.
        level: of formats and commands in use; `known_level` is what the program understands.
        log_damages: places in the log that have rotted and aren't repaired yet.
        scrub_ended_ms: when all of the log had been read again, since the epoch; 0: not yet.
        preferred: the member that is to lead, by its log; empty: none.
        epoch: of the group, as its log has it.
        last_term: of the last entry.
        newer_epoch: of the group, in which a client was served: nobody is served here; 0: none.
    """

    broker_group: str
    node_id: str
    role: str
    term: int
    leader: NodeAddress | None
    first_index: int
    last_index: int
    durable_index: int
    commit_index: int
    applied_index: int
    end_offset: int
    committed_offset: int
    committed_digest: int
    peers: tuple[PeerStatus, ...]
    version: str
    segment_size_bytes: int
    data_directory: str
    is_serving: bool
    apply_stopped: str
    level: int
    known_level: int
    health: NodeHealth
    log_damages: int = 0
    scrub_ended_ms: int = 0
    preferred: str = ""
    epoch: EpochName = FIRST
    last_term: int = 0
    newer_epoch: int = 0


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member, as a node's log has it.

    Attributes:
        role: voter, learner (a voter once it has caught up), observer (a learner that stays one),
            leaving (votes only until the joint configuration is left).
        is_connected: to who tells; always, of itself.
        match_index: on its disk, as far as a leader knows; 0 of others.
    """

    node_id: str
    role: str
    disk_id: bytes
    address: str
    is_connected: bool
    match_index: int


@dataclass(frozen=True, slots=True)
class Members:
    """The members as a node's log has them, in entry `index`. `preferred`: who is to lead while it
    is well; empty: nobody."""

    members: tuple[MemberStatus, ...]
    is_joint: bool
    index: int
    is_committed: bool
    last_index: int
    preferred: str = ""


class LeadershipView(Protocol):
    """`broker.leader.leadership.Leadership`, as far as the group is told of it."""

    @property
    def fence(self) -> EpochFence: ...
    def check_serving(self) -> None: ...
    def view(self) -> LeaderView: ...
    def hand_over(self, target: NodeId | None) -> Awaitable[LeaderView]: ...


class MembershipChange(Protocol):
    """`broker.leader.membership.Membership`, as far as it is asked for something."""

    def replace(
        self, node_id: str, disk_id: bytes, held: HeldLog | None = None
    ) -> Awaitable[Configuration]: ...
    def change(self, change: Change) -> Awaitable[Configuration]: ...
    @property
    def placed_at(self) -> Index: ...


class Cluster:
    """Tells of the broker group; owns the list of who watches its leader."""

    def __init__(
        self,
        broker_group: str,
        leadership: LeadershipView,
        membership: MembershipChange,
        gate: Gate,
        status: Callable[[], NodeStatus],
        members: Callable[[], Members],
        max_watchers: int,
    ) -> None:
        self._broker_group = broker_group
        self._leadership = leadership
        self._membership = membership
        self._gate = gate
        self._status = status
        self._members = members
        self._max_watchers = max_watchers
        self._watchers: dict[asyncio.Event, None] = {}
        self._told: LeaderView | None = None  # to watchers, last
        self._undecided: asyncio.TimerHandle | None = None
        self._is_closed = False

    def notify(self) -> None:
        """The leader, its readiness or the members changed."""
        if not self._watchers:
            return
        now = self._leadership.view()
        if self._told is not None and is_undecided(now) and not self._told.is_serving:
            if self._undecided is None:
                loop = asyncio.get_running_loop()
                self._undecided = loop.call_later(UNDECIDED_S, self._tell)
            return
        self._tell()

    def _tell(self) -> None:
        if self._undecided is not None:
            self._undecided.cancel()
            self._undecided = None
        for watcher in self._watchers:
            watcher.set()

    @property
    def epoch(self) -> EpochName:
        """Of the group, as this node's log has it."""
        return self._leadership.fence.name

    def heard_epoch(self, told: EpochName) -> None:
        """A caller was served by the group in that epoch.

        Raises:
            BrokerError: WRONG_BROKER_GROUP, INVALID_ARGUMENT.
        """
        self._leadership.fence.heard(told)

    def check_group(self, broker_group: str) -> None:
        """The caller means this group, or any.

        Raises:
            BrokerError: WRONG_BROKER_GROUP.
        """
        if broker_group and broker_group != self._broker_group:
            raise BrokerError(
                ErrorCode.WRONG_BROKER_GROUP,
                f"this node is of broker group {self._broker_group!r}, not {broker_group!r}",
            )

    def close(self) -> None:
        """Every watch ends."""
        self._is_closed = True
        self._tell()

    async def status(self) -> NodeStatus:
        """This node, as of now."""
        return self._status()

    async def watch_leader(self, broker_group: str = "") -> AsyncGenerator[LeaderView, None]:
        """The present view at once, then the view after each change that lasts or that somebody can
        act upon; a slow reader misses some, never the last one.

        Args:
            broker_group: empty: any.

        Raises:
            BrokerError: WRONG_BROKER_GROUP, BUSY.
        """
        self.check_group(broker_group)
        if len(self._watchers) >= self._max_watchers:
            raise BrokerError(ErrorCode.BUSY, f"{len(self._watchers)} watchers, the limit")
        changed = asyncio.Event()
        self._watchers[changed] = None
        try:
            while not self._is_closed:
                changed.clear()
                self._told = self._leadership.view()
                yield self._told
                await changed.wait()
        finally:
            self._watchers.pop(changed, None)

    async def transfer_leadership(self, target: str = "") -> LeaderView:
        """The view after leadership was handed over.

        Args:
            target: a node; empty: the best caught-up voter.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY, INVALID_ARGUMENT, BUSY, TRANSFER_FAILED, TIMED_OUT.
        """
        self._leadership.check_serving()
        wish = NodeId(target) if target else None
        return await self._gate.denying_surely(self._leadership.hand_over(wish))

    async def replace_disk(
        self, node_id: str, disk_id: bytes, held: HeldLog | None = None
    ) -> Configuration:
        """The group knows `node_id` on that disk from now on. The configuration in force then:
        whether it votes already.

        Args:
            held: the log that the disk comes with, if any.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY, INVALID_ARGUMENT, BUSY, STORAGE_FULL,
                LEADERSHIP_LOST, TIMED_OUT.
        """
        self._leadership.check_serving()
        return await self._surely(self._membership.replace(node_id, disk_id, held))

    async def members(self) -> Members:
        """Who is a member, as this node's log has it."""
        return self._members()

    async def change_members(self, change: Change) -> Members:
        """The members are as `change` wants them; those that are to vote may have to catch up
        first.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY, INVALID_ARGUMENT, BUSY, STORAGE_FULL,
                LEADERSHIP_LOST, TIMED_OUT.
        """
        self._leadership.check_serving()
        await self._surely(self._membership.change(change))
        return self._members()

    async def _surely(self, changing: Awaitable[Configuration]) -> Configuration:
        """What `changing` gives, or its refusal, once it is sure that this node has led: a leader
        of before doesn't know who has gone. What it had to propose shows that, being committed;
        where all is as it is wanted to be, nothing was."""
        before = self._membership.placed_at
        found = await self._gate.denying_surely(changing)
        if self._membership.placed_at == before:
            await self._gate.confirm()
        return found


def is_undecided(view: LeaderView) -> bool:
    """Whether the view names nobody whom anything can be asked of: nobody leads, as far as that
    node knows, or it leads itself and doesn't serve yet."""
    if view.leader is None:
        return True
    return view.leader.node_id == view.node_id and not view.is_serving
