"""`dledger.v1.Cluster` translated; see `broker/doors/grpc/broker.py`."""

from __future__ import annotations

from contextlib import aclosing
from typing import Protocol

from broker.doors.grpc.errors import wire_address
from broker.leader.changes import Change, NewMember
from broker.leader.epochs import EpochName
from broker.leader.leadership import LeaderView
from broker.leader.newcomers import HeldLog
from broker.services.cluster import (
    Cluster,
    MemberHealth,
    Members,
    NodeHealth,
    NodeStatus,
    PeerStatus,
)
from dledger.core.types import DiskId, Index, NodeId
from dledger.reading.files import in_unicode
from dledger.wire import cluster_pb2 as cpb
from dledger.wire import errors_pb2 as epb


class ViewContext(Protocol):
    """`grpc.aio.ServicerContext`, as far as a watch uses it."""

    async def write(self, message: cpb.LeaderView, /) -> None: ...


class ClusterDoor:
    """Handlers of `dledger.v1.Cluster`."""

    def __init__(self, cluster: Cluster, admin_address: str = "") -> None:
        """Args:
        admin_address: told to who asks; see `Entrance`.
        """
        self._cluster = cluster
        self._admin_address = admin_address
        self._view: tuple[LeaderView, cpb.LeaderView] | None = None  # the last one, and as told

    async def get_status(self, request: cpb.GetStatusRequest, context: object) -> cpb.NodeStatus:
        status = wire_status(await self._cluster.status())
        status.admin_address = self._admin_address
        return status

    async def watch_leader(self, request: cpb.WatchLeaderRequest, context: ViewContext) -> None:
        async with aclosing(self._cluster.watch_leader(request.broker_group)) as views:
            async for view in views:
                await context.write(self._wire_view(view))

    def _wire_view(self, view: LeaderView) -> cpb.LeaderView:
        """Made once for all who watch."""
        if self._view is None or self._view[0] != view:
            self._view = (view, wire_view(view))
        return self._view[1]

    async def transfer_leadership(
        self, request: cpb.TransferLeadershipRequest, context: object
    ) -> cpb.TransferLeadershipResponse:
        view = await self._cluster.transfer_leadership(request.target)
        return cpb.TransferLeadershipResponse(leader=wire_address(view.leader))

    async def replace_disk(
        self, request: cpb.ReplaceDiskRequest, context: object
    ) -> cpb.ReplaceDiskResponse:
        held = plain_held(request)
        found = await self._cluster.replace_disk(request.node_id, request.disk_id, held)
        node = request.node_id
        return cpb.ReplaceDiskResponse(votes=node in found.voters, observes=node in found.observers)

    async def change_members(
        self, request: cpb.ChangeMembersRequest, context: object
    ) -> cpb.Members:
        change = Change(
            add=tuple(
                NewMember(
                    NodeId(each.node_id),
                    DiskId(each.disk_id),
                    each.address,
                    each.observes,
                    plain_held(each),
                )
                for each in request.add
            ),
            remove=frozenset(map(NodeId, request.remove)),
            promote=frozenset(map(NodeId, request.promote)),
            demote=frozenset(map(NodeId, request.demote)),
            prefer=request.prefer if request.HasField("prefer") else None,
        )
        return wire_members(await self._cluster.change_members(change))

    async def list_members(self, request: cpb.ListMembersRequest, context: object) -> cpb.Members:
        return wire_members(await self._cluster.members())


def plain_held(said: cpb.NewMember | cpb.ReplaceDiskRequest) -> HeldLog | None:
    """The log that a newcomer comes with, as far as who asks says so."""
    if not said.HasField("held"):
        return None
    held, epoch = said.held, None
    if held.HasField("epoch"):
        epoch = EpochName(held.epoch.number, held.epoch.recovery_id)
    return HeldLog(Index(held.index), held.digest, epoch)


def wire_members(members: Members) -> cpb.Members:
    """Who is a member, as administrators are told."""
    return cpb.Members(
        members=[
            cpb.MemberStatus(
                node_id=each.node_id,
                role=each.role,
                disk_id=each.disk_id,
                address=each.address,
                connected=each.is_connected,
                match_index=each.match_index,
            )
            for each in members.members
        ],
        joint=members.is_joint,
        configuration_index=members.index,
        committed=members.is_committed,
        last_index=members.last_index,
        preferred=members.preferred,
    )


def wire_view(view: LeaderView) -> cpb.LeaderView:
    """Who leads, as watchers are told."""
    return cpb.LeaderView(
        broker_group=view.broker_group,
        node_id=view.node_id,
        leader=wire_address(view.leader),
        term=view.term,
        serving=view.is_serving,
        members=[epb.NodeAddress(node_id=m.node_id, address=m.address) for m in view.members],
        epoch=_wire_epoch(view.epoch),
    )


def wire_status(status: NodeStatus) -> cpb.NodeStatus:
    """A node's status, as tools are told."""
    return cpb.NodeStatus(
        broker_group=status.broker_group,
        node_id=status.node_id,
        role=status.role,
        term=status.term,
        leader=wire_address(status.leader),
        last_index=status.last_index,
        durable_index=status.durable_index,
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        end_offset=status.end_offset,
        committed_offset=status.committed_offset,
        committed_digest=status.committed_digest,
        peers=[_peer(each) for each in status.peers],
        version=status.version,
        segment_size_bytes=status.segment_size_bytes,
        data_directory=in_unicode(status.data_directory),
        serving=status.is_serving,
        first_index=status.first_index,
        apply_stopped=in_unicode(status.apply_stopped),
        level=status.level,
        known_level=status.known_level,
        health=_health(status.health),
        log_damages=status.log_damages,
        preferred=status.preferred,
        scrub_ended_ms=max(0, status.scrub_ended_ms),
        epoch=_wire_epoch(status.epoch),
        last_term=status.last_term,
        newer_epoch=status.newer_epoch,
    )


def _wire_epoch(epoch: EpochName) -> cpb.GroupEpochName | None:
    """Nothing for a group that was never recovered."""
    if not epoch.number:
        return None
    return cpb.GroupEpochName(
        number=epoch.number, recovery_id=epoch.recovery_id, earlier=epoch.earlier
    )


def _health(health: NodeHealth) -> cpb.NodeHealth:
    told = cpb.NodeHealth(
        disk_id=health.disk_id,
        members=[_member(each) for each in health.members],
        log_full=health.is_log_full,
        apply_paused=health.is_apply_paused,
        short_of_space=health.is_short_of_space,
        queues_wrong=health.queues_wrong,
        contradictions=health.contradictions,
        last_fsync_ms=health.last_fsync_ms,
        certificate_expires_ms=max(0, health.certificate_expires_ms),
        suspected_index=health.suspected_index,
        differing=health.differing,
        front_held=in_unicode(health.front_held),
        log_behind_ms=health.log_behind_ms,
        fills=[cpb.Fill(what=each.what, used=each.used, limit=each.limit) for each in health.fills],
        certificate_begins_ms=max(0, health.certificate_begins_ms),
        next_certificate_ms=max(0, health.next_certificate_ms),
        now_ms=max(0, health.now_ms),
    )
    if health.free_bytes is not None:
        told.space.free_bytes = health.free_bytes
        told.space.reserve_bytes = health.reserve_bytes
    return told


def _member(member: MemberHealth) -> cpb.MemberHealth:
    return cpb.MemberHealth(
        node_id=member.node_id,
        votes=member.is_voter,
        votes_until_left=member.is_leaving_voter,
        observes=member.is_observer,
        disk_id=member.disk_id,
        address=member.address,
        clock_off_ms=member.clock_off_ms or 0.0,
        has_clock=member.clock_off_ms is not None,
    )


def _peer(peer: PeerStatus) -> cpb.PeerStatus:
    return cpb.PeerStatus(
        node_id=peer.node_id,
        address=peer.address,
        connected=peer.is_connected,
        state=peer.state,
        match_index=peer.match_index,
        recently_active=peer.is_recently_active,
        older_copy=peer.is_older_copy,
    )
