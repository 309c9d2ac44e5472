"""Core messages to wire messages and back.

This is the only place that knows both vocabularies. It keeps no state. What it encodes is sealed
(`dledger/checksum.py`) and must not be changed any more; what it decodes has been checked against
its checksum. Frames of an append are bytes on the wire and metas in the core: the caller parses
and reads them (ADR 4), so the two append functions take them as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import DecodeError

from dledger.checksum import seal
from dledger.core.group_epoch import FIRST_EPOCH, GroupEpoch, Recovery
from dledger.core.types import (
    MAX_TIME_MS,
    AppendRange,
    AppendRequest,
    AppendResponse,
    CampaignReason,
    Configuration,
    ConfigurationPlace,
    DiskId,
    EntryKind,
    EntryMeta,
    HeartbeatRequest,
    HeartbeatResponse,
    IncomingMessage,
    Index,
    LogBase,
    NodeId,
    OutgoingMessage,
    PreVoteRequest,
    PreVoteResponse,
    SnapshotOffer,
    Term,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.disk_figures import MAX_DISK_BYTES, DiskFigure
from dledger.limits import MAX_CONFIGURATION_TAKEN_BYTES
from dledger.ports import ConfigurationCodec, FrameHeader
from dledger.wire import raft_pb2 as pb

V = TypeVar("V", DiskId, str)

# Which way a message travels: requests on the stream that this node dialed, answers on the
# stream that the peer dialed.
ANSWERS = (PreVoteResponse, VoteResponse, AppendResponse, HeartbeatResponse)


def encode_append(message: AppendRange, frames: bytes) -> pb.PeerMessage:
    """The wire form of an append whose range was read as `frames`."""
    return seal(
        pb.PeerMessage(
            term=message.term,
            append_request=pb.AppendRequest(
                prev_index=message.prev_index,
                prev_term=message.prev_term,
                commit_index=message.commit_index,
                frames=frames,
                frames_size=len(frames),
            ),
        )
    )


def encode_heartbeat(message: HeartbeatRequest, digest_index: Index, digest: int) -> pb.PeerMessage:
    """The wire form of a heartbeat that tells the running digest at `digest_index`; 0: none."""
    return seal(
        pb.PeerMessage(
            term=message.term,
            heartbeat_request=pb.HeartbeatRequest(
                commit_index=message.commit_index,
                read_context=message.read_context,
                digest_index=digest_index,
                digest=digest,
            ),
        )
    )


def encode_message(
    message: OutgoingMessage, wall_ms: int, disk: DiskFigure | None = None
) -> pb.PeerMessage:
    """The wire form of every message but appends and heartbeats.

    Args:
        wall_ms: what this node's wall clock shows, for answers that tell it. One that is out of
            range tells the nearest time that isn't: its node goes on all the same.
        disk: how full this node's disk is, for heartbeat answers; None: it isn't known.
    """
    wire = pb.PeerMessage(term=message.term)
    told_ms = min(max(wall_ms, 0), MAX_TIME_MS)
    match message:
        case PreVoteRequest():
            wire.pre_vote_request.last_index = message.last_index
            wire.pre_vote_request.last_term = message.last_term
        case PreVoteResponse():
            wire.pre_vote_response.granted = message.granted
        case VoteRequest():
            wire.vote_request.last_index = message.last_index
            wire.vote_request.last_term = message.last_term
            if message.reason is CampaignReason.TRANSFER:
                wire.vote_request.reason = pb.CAMPAIGN_REASON_TRANSFER
        case VoteResponse():
            wire.vote_response.granted = message.granted
            wire.vote_response.wall_ms = told_ms
        case AppendResponse():
            wire.append_response.CopyFrom(_encode_append_response(message))
        case HeartbeatResponse():
            wire.heartbeat_response.read_context = message.read_context
            wire.heartbeat_response.last_index = message.last_index
            wire.heartbeat_response.is_short_of_space = message.is_short_of_space
            wire.heartbeat_response.wall_ms = told_ms
            if disk is not None:
                wire.heartbeat_response.disk_free_bytes = disk.free_bytes
                wire.heartbeat_response.disk_total_bytes = disk.total_bytes
        case TimeoutNow():
            wire.timeout_now.SetInParent()
        case SnapshotOffer():
            wire.snapshot_offer.CopyFrom(_encode_offer(message.base))
        case AppendRange() | HeartbeatRequest():
            raise TypeError(f"{type(message).__name__} has an encoder of its own")
    return seal(wire)


def _encode_append_response(message: AppendResponse) -> pb.AppendResponse:
    return pb.AppendResponse(
        accepted=message.accepted,
        match_index=message.match_index,
        rejected_prev_index=message.rejected_prev_index,
        conflict_term=message.conflict_term,
        conflict_first_index=message.conflict_first_index,
        last_index=message.last_index,
    )


_KINDS: Final = frozenset(EntryKind)
_WITHOUT_RECORDS: Final = _KINDS - {EntryKind.DATA}


def _kind_of(kind: int) -> EntryKind:
    """What the core takes an entry for: one of a later release's kinds is kept and copied like any
    that it needn't look into (ADR 23)."""
    return EntryKind(kind) if kind in _KINDS else EntryKind.COMMAND


def decode_append(
    wire: pb.PeerMessage,
    sender: NodeId,
    to: NodeId,
    headers: Sequence[FrameHeader],
    configuration_of: ConfigurationCodec,
) -> AppendRequest:
    """The core's form of an append whose frames were parsed into `headers`.

    Raises:
        ValueError: a header says what no leader stamps, or a configuration can't be read.
    """
    body = wire.append_request
    entries: list[EntryMeta] = []
    at = 0
    time_ms = 0
    for header in headers:
        kind = _kind_of(header.kind)
        configuration = None
        if kind is EntryKind.CONFIGURATION:
            check_configuration_size(header.total_size)
            configuration = configuration_of(body.frames[at : at + header.total_size])
        if not time_ms <= header.append_time_ms <= MAX_TIME_MS:
            raise ValueError(f"entry {header.index} was appended at {header.append_time_ms} ms")
        if header.record_count and header.kind in _WITHOUT_RECORDS:
            raise ValueError(f"entry {header.index} of kind {kind.name} has records")
        time_ms = header.append_time_ms
        entries.append(
            EntryMeta(
                Index(header.index), Term(header.term), header.total_size, kind, configuration
            )
        )
        at += header.total_size
    return AppendRequest(
        sender=sender,
        to=to,
        term=Term(wire.term),
        prev_index=Index(body.prev_index),
        prev_term=Term(body.prev_term),
        entries=tuple(entries),
        commit_index=Index(body.commit_index),
    )


def decode_message(wire: pb.PeerMessage, sender: NodeId, to: NodeId) -> IncomingMessage:
    """The core's form of every message but an append.

    Raises:
        ValueError: it is none that may come here, or a field of it means nothing.
    """
    term = Term(wire.term)
    match wire.WhichOneof("body"):
        case "pre_vote_request":
            pre_vote = wire.pre_vote_request
            return PreVoteRequest(
                sender, to, term, Index(pre_vote.last_index), Term(pre_vote.last_term)
            )
        case "pre_vote_response":
            return PreVoteResponse(sender, to, term, wire.pre_vote_response.granted)
        case "vote_request":
            return _decode_vote_request(wire, sender, to)
        case "vote_response":
            return VoteResponse(sender, to, term, wire.vote_response.granted)
        case "append_response":
            return _decode_append_response(wire, sender, to)
        case "heartbeat_request":
            beat = wire.heartbeat_request
            return HeartbeatRequest(sender, to, term, Index(beat.commit_index), beat.read_context)
        case "heartbeat_response":
            answer = wire.heartbeat_response
            return HeartbeatResponse(
                sender,
                to,
                term,
                answer.read_context,
                Index(answer.last_index),
                answer.is_short_of_space,
            )
        case "timeout_now":
            return TimeoutNow(sender, to, term)
        case "snapshot_offer":
            return SnapshotOffer(sender, to, term, _decode_offer(wire.snapshot_offer))
        case body:
            raise ValueError(f"{body or 'nothing'} is no message of a stream that is open")


def decode_digest(wire: pb.PeerMessage) -> tuple[Index, int] | None:
    """The index and the running digest that a heartbeat tells; None: it tells none.

    Raises:
        ValueError: it tells one of what it doesn't call committed.
    """
    beat = wire.heartbeat_request
    if beat.digest_index > beat.commit_index or (beat.digest and not beat.digest_index):
        raise ValueError(f"a digest at {beat.digest_index} with commit index {beat.commit_index}")
    return (Index(beat.digest_index), beat.digest) if beat.digest_index else None


def decode_wall_clock(wire: pb.PeerMessage) -> int | None:
    """What the sender's wall clock showed, milliseconds since the epoch; None: it doesn't say.

    Raises:
        ValueError: no clock that is told shows that.
    """
    match wire.WhichOneof("body"):
        case "vote_response":
            wall_ms = wire.vote_response.wall_ms
        case "heartbeat_response":
            wall_ms = wire.heartbeat_response.wall_ms
        case _:
            return None
    if wall_ms > MAX_TIME_MS:
        raise ValueError(f"a wall clock at {wall_ms} ms")
    return wall_ms


def decode_disk(wire: pb.PeerMessage) -> DiskFigure | None:
    """What a heartbeat answer says of its sender's disk; None: nothing.

    Raises:
        ValueError: there is no such disk.
    """
    body = wire.heartbeat_response
    if not body.disk_total_bytes and not body.disk_free_bytes:
        return None
    if not body.disk_free_bytes <= body.disk_total_bytes <= MAX_DISK_BYTES:
        raise ValueError(f"{body.disk_free_bytes} of {body.disk_total_bytes} bytes of a disk free")
    return DiskFigure(body.disk_free_bytes, body.disk_total_bytes)


def _decode_vote_request(wire: pb.PeerMessage, sender: NodeId, to: NodeId) -> VoteRequest:
    body = wire.vote_request
    if body.reason not in (pb.CAMPAIGN_REASON_TIMEOUT, pb.CAMPAIGN_REASON_TRANSFER):
        raise ValueError(f"a campaign for reason {body.reason}")
    transfer = body.reason == pb.CAMPAIGN_REASON_TRANSFER
    return VoteRequest(
        sender,
        to,
        Term(wire.term),
        Index(body.last_index),
        Term(body.last_term),
        CampaignReason.TRANSFER if transfer else CampaignReason.TIMEOUT,
    )


def _decode_append_response(wire: pb.PeerMessage, sender: NodeId, to: NodeId) -> AppendResponse:
    body = wire.append_response
    return AppendResponse(
        sender,
        to,
        Term(wire.term),
        body.accepted,
        Index(body.match_index),
        Index(body.rejected_prev_index),
        Term(body.conflict_term),
        Index(body.conflict_first_index),
        Index(body.last_index),
    )


def _encode_offer(base: LogBase) -> pb.SnapshotOffer:
    configuration = b"" if base.configuration is None else configuration_bytes(base.configuration)
    return pb.SnapshotOffer(
        index=base.index,
        index_term=base.term,
        digest=base.digest,
        end_offset=base.end_offset,
        append_time_ms=base.append_time_ms,
        configuration_index=base.place.at,
        configuration_term=base.place.term,
        configuration=configuration,
    )


def _decode_offer(body: pb.SnapshotOffer) -> LogBase:
    """Raises ValueError: its configuration can't be read, or is none that a log holds."""
    check_configuration_size(len(body.configuration))
    try:
        configuration = decode_configuration(pb.Configuration.FromString(body.configuration))
    except DecodeError as error:
        raise ValueError(f"the configuration of a snapshot's offer: {error}") from error
    return LogBase(
        index=Index(body.index),
        term=Term(body.index_term),
        digest=body.digest,
        append_time_ms=body.append_time_ms,
        end_offset=body.end_offset,
        place=ConfigurationPlace(Term(body.configuration_term), Index(body.configuration_index)),
        configuration=configuration,
    )


def check_configuration_size(size: int) -> None:
    """Returns if a configuration, or an entry with one, of so many bytes may be taken from a peer.

    Raises:
        ValueError: where it would be noted, nobody could read it again.
    """
    if size > MAX_CONFIGURATION_TAKEN_BYTES:
        raise ValueError(f"a configuration of {size} bytes, beyond {MAX_CONFIGURATION_TAKEN_BYTES}")


def configuration_bytes(configuration: Configuration) -> bytes:
    """The body of a configuration entry."""
    return encode_configuration(configuration).SerializeToString(deterministic=True)


def encode_configuration(configuration: Configuration) -> pb.Configuration:
    """Sorted, so that equal configurations are equal bytes."""
    return pb.Configuration(
        voters=sorted(configuration.voters),
        voters_outgoing=sorted(configuration.voters_outgoing),
        learners=sorted(configuration.learners),
        observers=sorted(configuration.observers),
        members=[
            pb.Member(
                node_id=node,
                disk_id=configuration.disk_of(node),
                address=dict(configuration.addresses).get(node, ""),
            )
            for node in sorted(configuration.members())
        ],
        preferred=configuration.preferred or "",
        epoch=_encode_epoch(configuration.epoch),
    )


def decode_configuration(wire: pb.Configuration) -> Configuration:
    """The inverse of `encode_configuration`."""
    return Configuration(
        voters=frozenset(NodeId(n) for n in wire.voters),
        voters_outgoing=frozenset(NodeId(n) for n in wire.voters_outgoing),
        learners=frozenset(NodeId(n) for n in wire.learners),
        observers=frozenset(NodeId(n) for n in wire.observers),
        disks=_named((NodeId(each.node_id), DiskId(each.disk_id)) for each in wire.members),
        addresses=_named((NodeId(each.node_id), each.address) for each in wire.members),
        preferred=NodeId(wire.preferred) if wire.preferred else None,
        epoch=_decode_epoch(wire.epoch),
    )


def _encode_epoch(epoch: GroupEpoch) -> pb.GroupEpoch | None:
    """Nothing for the first one: a group that was never recovered has the bytes that it had."""
    if epoch.last is None:
        return None
    last = epoch.last
    return pb.GroupEpoch(
        recoveries=epoch.recoveries,
        last=pb.Recovery(
            survivor=last.survivor,
            time_ms=last.time_ms,
            term=last.term,
            index=last.index,
            committed_index=last.committed_index,
            given_up=[pb.Member(node_id=node, disk_id=disk) for node, disk in last.given_up],
        ),
    )


def _decode_epoch(wire: pb.GroupEpoch) -> GroupEpoch:
    if not wire.recoveries:
        return FIRST_EPOCH
    last = wire.last
    return GroupEpoch(
        recoveries=tuple(wire.recoveries),
        last=Recovery(
            survivor=last.survivor,
            time_ms=last.time_ms,
            term=last.term,
            index=last.index,
            committed_index=last.committed_index,
            given_up=tuple((each.node_id, each.disk_id) for each in last.given_up),
        ),
    )


def _named(pairs: Iterable[tuple[NodeId, V]]) -> tuple[tuple[NodeId, V], ...]:
    return tuple(sorted((node, value) for node, value in pairs if value))
