"""Core messages to wire messages and back.

This is the only place that knows both vocabularies. It keeps no state. Frames of an append are
bytes on the wire and metas in the core: the caller parses and reads them (D4), so the two
append functions take them as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger.core.types import (
    AppendRange,
    AppendRequest,
    AppendResponse,
    CampaignReason,
    Configuration,
    EntryKind,
    EntryMeta,
    HeartbeatRequest,
    HeartbeatResponse,
    IncomingMessage,
    Index,
    NodeId,
    OutgoingMessage,
    PreVoteRequest,
    PreVoteResponse,
    Term,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.ports import ConfigurationCodec, FrameHeader
from dledger.wire import raft_pb2 as pb

# Which way a message travels: requests on the stream that this node dialed, answers on the
# stream that the peer dialed.
ANSWERS = (PreVoteResponse, VoteResponse, AppendResponse, HeartbeatResponse)


def encode_append(message: AppendRange, frames: bytes) -> pb.PeerMessage:
    """The wire form of an append whose range was read as `frames`."""
    return pb.PeerMessage(
        term=message.term,
        append_request=pb.AppendRequest(
            prev_index=message.prev_index,
            prev_term=message.prev_term,
            commit_index=message.commit_index,
            frames=frames,
        ),
    )


def encode_message(message: OutgoingMessage) -> pb.PeerMessage:
    """The wire form of every message but an append."""
    wire = pb.PeerMessage(term=message.term)
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
        case AppendResponse():
            wire.append_response.CopyFrom(_encode_append_response(message))
        case HeartbeatRequest():
            wire.heartbeat_request.commit_index = message.commit_index
            wire.heartbeat_request.read_context = message.read_context
        case HeartbeatResponse():
            wire.heartbeat_response.read_context = message.read_context
            wire.heartbeat_response.last_index = message.last_index
            wire.heartbeat_response.is_short_of_space = message.is_short_of_space
        case TimeoutNow():
            wire.timeout_now.SetInParent()
        case AppendRange():
            raise TypeError("an AppendRange is encoded with its frames: encode_append")
    return wire


def _encode_append_response(message: AppendResponse) -> pb.AppendResponse:
    return pb.AppendResponse(
        accepted=message.accepted,
        match_index=message.match_index,
        rejected_prev_index=message.rejected_prev_index,
        conflict_term=message.conflict_term,
        conflict_first_index=message.conflict_first_index,
        last_index=message.last_index,
    )


def decode_append(
    wire: pb.PeerMessage,
    sender: NodeId,
    to: NodeId,
    headers: Sequence[FrameHeader],
    configuration_of: ConfigurationCodec,
) -> AppendRequest:
    """The core's form of an append whose frames were parsed into `headers`."""
    body = wire.append_request
    entries: list[EntryMeta] = []
    at = 0
    for header in headers:
        kind = EntryKind(header.kind)
        configuration = None
        if kind is EntryKind.CONFIGURATION:
            configuration = configuration_of(body.frames[at : at + header.total_size])
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


def decode_message(wire: pb.PeerMessage, sender: NodeId, to: NodeId) -> IncomingMessage | None:
    """The core's form of every message but an append; None for one that this version doesn't
    know (a newer peer's: to be ignored) and for a Hello."""
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
        case _:
            return None


def _decode_vote_request(wire: pb.PeerMessage, sender: NodeId, to: NodeId) -> VoteRequest:
    body = wire.vote_request
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


def encode_configuration(configuration: Configuration) -> pb.Configuration:
    """Sorted, so that equal configurations are equal bytes."""
    return pb.Configuration(
        voters=sorted(configuration.voters),
        voters_outgoing=sorted(configuration.voters_outgoing),
        learners=sorted(configuration.learners),
    )


def decode_configuration(wire: pb.Configuration) -> Configuration:
    """The inverse of `encode_configuration`."""
    return Configuration(
        voters=frozenset(NodeId(n) for n in wire.voters),
        voters_outgoing=frozenset(NodeId(n) for n in wire.voters_outgoing),
        learners=frozenset(NodeId(n) for n in wire.learners),
    )
