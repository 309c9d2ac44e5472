"""The members of a group that is being formed, over gRPC; see `broker.forming.initiator`."""

from __future__ import annotations

import contextlib
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from broker.forming.errors import FormationRefused, MemberUnreachable, RefusedForNow
from broker.forming.planning import Description
from broker.forming.wire import plain_description, wire_founding
from dledger.credentials.tls import TlsMaterial, open_channel
from dledger.limits import ERROR_METADATA_KEY
from dledger.wire import cluster_pb2 as cpb
from dledger.wire import errors_pb2 as epb
from dledger.wire import formation_pb2 as fpb
from store.starting.founding import Founding

CALL_TIMEOUT_S = 20.0  # a commit makes the log's first segment
SILENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    }
)
# Channels share their connections, and with them a dead node's back-off; a call must look anew.
_CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


def _only_there(address: str, node_id: str) -> str:
    """What is told of a node that doesn't say where administration is taken. Only its own machine
    reaches that: it isn't had at the clients' address instead, of a node that nobody has formed
    either, as whoever reaches that could make a group of it under this one's name."""
    return (
        f"{address} takes no administration: admin_listen of {node_id} is on loopback (if its "
        "program isn't older than this command). Run the command on that machine, with that "
        f"address; to form a group of several machines with {node_id}, or to take it in, set an "
        "address that others reach, or none until it is a member"
    )


def _nowhere(address: str, named: str) -> str:
    """What is told of a node that names an address which takes no administration."""
    return (
        f"{address} takes no administration, and {named}, which it names, doesn't either: give the "
        "addresses of admin_listen"
    )


class GrpcCalls:
    """`FormingCalls`, and what replacing a disk takes beside.

    Members know each other by where clients find them. Where administration has an address of its
    own, a node says which, and is asked again there.

    Args:
        tls: None: in the clear.
    """

    def __init__(self, tls: TlsMaterial | None = None) -> None:
        self._tls = tls
        self._elsewhere: dict[str, str] = {}  # where administration is, for an address without it

    async def describe(self, address: str) -> Description:
        answer = await self._call(
            address, "Formation/Describe", fpb.DescribeRequest(), fpb.MemberDescription
        )
        return plain_description(answer)

    async def prepare(self, address: str, founding: Founding) -> None:
        request = fpb.PrepareRequest(founding=wire_founding(founding))
        await self._call(address, "Formation/Prepare", request, fpb.PrepareResponse)

    async def commit(self, address: str, name: str) -> None:
        request = fpb.CommitRequest(founding=name)
        await self._call(address, "Formation/Commit", request, fpb.CommitResponse)

    async def join(self, address: str, disk_id: bytes) -> None:
        """The node there takes entries as that disk from now on."""
        request = fpb.JoinRequest(disk_id=disk_id)
        await self._call(address, "Formation/Join", request, fpb.JoinResponse)

    async def held_log(self, address: str) -> cpb.HeldLog | None:
        """The log that the node there comes with; None: it has no entry."""
        status = await self._call(
            address, "Cluster/GetStatus", cpb.GetStatusRequest(), cpb.NodeStatus
        )
        if not status.last_index:
            return None
        # Set even if it is the first: absent it is what an older release says of any.
        epoch = cpb.GroupEpochName()
        epoch.CopyFrom(status.epoch)
        index, digest = status.commit_index, status.committed_digest
        return cpb.HeldLog(index=index, digest=digest, epoch=epoch)

    async def level(self, address: str) -> int:
        """The level of formats and commands that the group of the node there uses."""
        request = cpb.GetStatusRequest()
        status = await self._call(address, "Cluster/GetStatus", request, cpb.NodeStatus)
        return int(status.level)

    async def replace_disk(
        self, address: str, node_id: str, disk_id: bytes, held: cpb.HeldLog | None = None
    ) -> cpb.ReplaceDiskResponse:
        """The group that the node at `address` leads knows `node_id` on `disk_id`, which holds
        `held`; whether that votes already, or observes."""
        request = cpb.ReplaceDiskRequest(node_id=node_id, disk_id=disk_id, held=held)
        answer: cpb.ReplaceDiskResponse = await self._call(
            address, "Cluster/ReplaceDisk", request, cpb.ReplaceDiskResponse
        )
        return answer

    async def change_members(self, address: str, request: cpb.ChangeMembersRequest) -> cpb.Members:
        """The members of the group that the node at `address` leads are as asked for."""
        answer: cpb.Members = await self._call(
            address, "Cluster/ChangeMembers", request, cpb.Members
        )
        return answer

    async def list_members(self, address: str) -> cpb.Members:
        """The members as the node at `address` knows them."""
        request = cpb.ListMembersRequest()
        answer: cpb.Members = await self._call(address, "Cluster/ListMembers", request, cpb.Members)
        return answer

    async def transfer_leadership(self, address: str, target: str) -> str:
        """The next leader of the group that the node at `address` leads: `target`, unless empty."""
        request = cpb.TransferLeadershipRequest(target=target)
        path = "Cluster/TransferLeadership"
        answer = await self._call(address, path, request, cpb.TransferLeadershipResponse)
        return str(answer.leader.node_id)

    async def _call(
        self, address: str, method: str, request: Message, answer: type[Message]
    ) -> Any:
        try:
            return await self._ask(self._elsewhere.get(address, address), method, request, answer)
        except _NotOffered as error:
            named = await self._administration_of(address, error)
        self._elsewhere[address] = named
        try:
            return await self._ask(named, method, request, answer)
        except _NotOffered as error:
            raise FormationRefused(_nowhere(address, named)) from error

    async def _administration_of(self, address: str, refusal: _NotOffered) -> str:
        """Where the node there takes what it doesn't take at that address.

        Raises:
            FormationRefused: it doesn't say so, or what it says is no better.
            MemberUnreachable: it isn't reached.
        """
        request = cpb.GetStatusRequest()
        try:
            status = await self._ask(address, "Cluster/GetStatus", request, cpb.NodeStatus)
        except _NotOffered as error:  # for peers only, perhaps
            raise FormationRefused(
                f"{address} takes no administration, and doesn't say where the node does: give the "
                "address of listen or admin_listen"
            ) from error
        if not status.admin_address:
            raise FormationRefused(_only_there(address, status.node_id)) from refusal
        if status.admin_address in (address, self._elsewhere.get(address)):
            raise FormationRefused(_nowhere(address, status.admin_address)) from refusal
        return str(status.admin_address)

    async def _ask(self, address: str, method: str, request: Message, answer: type[Message]) -> Any:
        async with open_channel(address, _CHANNEL_OPTIONS, self._tls) as channel:
            stub: Any = channel.unary_unary(
                f"/dledger.v1.{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            try:
                return await stub(request, timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                details = error.details() or error.code().name
                if error.code() in SILENT:
                    raise MemberUnreachable(address, details) from error
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise _NotOffered from error
                refused = RefusedForNow if _passes(error) else FormationRefused
                raise refused(details) from error


def _passes(error: grpc.aio.AioRpcError) -> bool:
    """Whether the node says that the same may be done later."""
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == ERROR_METADATA_KEY and isinstance(value, bytes):
            with contextlib.suppress(DecodeError):
                return epb.Error.FromString(value).retriable
    return False


class _NotOffered(FormationRefused):
    """The address is for something else."""
