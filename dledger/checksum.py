"""The checksum that every message between peers carries.

A bit that flips between two nodes, in a memory, a switch or a library, must not act: in the
previous index of an append, in a vote or in a digest it is a lie that nothing else would catch. So
a message carries a CRC32C over all its fields, and this owns which bytes that is taken of. They
are packed by hand instead of being protobuf's own bytes, because protobuf promises no one encoding
of a message. The frames of an append count by their length alone, as the message states it, and so
do those of an answer with entries: each has a CRC over all of itself (`dledger/reading/entry.py`),
and hashing the payload twice, or copying it out of the message to count it, would be the dearest
thing that a message costs. Whoever takes
the frames compares their length with the stated one.

    all messages   kind u8 (the field number of the body, 0 for none), term u64, then:
     2 hello                version u32, segment size u64, boot number u64, boot nonce u64,
                            configuration term u64, configuration index u64, then broker group,
                            speaker, addressee and disk, each as u32 length and (UTF-8) bytes,
                            then level u32, then begun term u64, begun index u64,
                            acknowledges unsynced u8, begun vote as u32 length and bytes
                            (its recoveries have a checksum of their own: each as u32 length
                            and bytes, behind kind, and speaker as u32 length and bytes)
     3 pre-vote request     last index u64, last term u64
     4 pre-vote response    granted u8
     5 vote request         last index u64, last term u64, reason i32
     6 vote response        granted u8, wall clock u64
     7 append request       previous index, previous term, commit index, size of frames: u64
     8 append response      accepted u8, then match index, rejected previous index, conflict
                            term, conflict first index, last index: u64
     9 heartbeat request    commit index, read context, digest index, digest: u64
    10 heartbeat response   read context u64, last index u64, short of space u8, wall clock u64
                            (its disk's bytes have a checksum of their own, over kind and term
                            and read context, free bytes, total bytes: u64)
    11 timeout now          nothing
    14 keep-alive           held index u64, settled index u64
    16 entries request      number, first index, last index, last term: u64
    17 entries response     number u64, status i32, size of frames u64
    18 digest request       number, index, entry's term, digest: u64
                            (that it only looks again has a checksum of its own: over these, and 1
                            as u8)
    19 digest response      number, index, entry's term, digest: u64
    22 snapshot offer       index, term of it, digest, end, append time, index and term of the
                            configuration: u64, then that as u32 length and bytes
    23 snapshot request     number, index, byte: u64
    24 snapshot response    number u64, status i32, size of the file u64, CRC of the piece u32
    25 log start request    number u64
    26 log start response   number u64, then the note's bytes

All integers are big-endian. A message without a body that is known here has no valid checksum.
It protects against accidents. Whoever can compute a CRC can forge one: that is for the transport's
authentication to prevent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from crc32c import crc32c
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from dledger.core.types import NodeId
from dledger.errors import InvalidMessage
from dledger.wire import raft_pb2 as pb

_HELLO: Final = struct.Struct(">BQIQQQQQ")
_LENGTH: Final = struct.Struct(">I")
_KIND: Final = struct.Struct(">B")
_LEVEL: Final = struct.Struct(">I")
_BEGUN: Final = struct.Struct(">QQ?")
_BARE: Final = struct.Struct(">BQ")
_GRANTED: Final = struct.Struct(">BQ?")
_VOTE_RESPONSE: Final = struct.Struct(">BQ?Q")
_LOG_END: Final = struct.Struct(">BQQQ")
_VOTE_REQUEST: Final = struct.Struct(">BQQQi")
_FOUR: Final = struct.Struct(">BQQQQQ")
_APPEND_RESPONSE: Final = struct.Struct(">BQ?QQQQQ")
_ENTRIES_RESPONSE: Final = struct.Struct(">BQQiQ")
_SNAPSHOT_OFFER: Final = struct.Struct(">BQQQQQQQQ")
_SNAPSHOT_REQUEST: Final = struct.Struct(">BQQQQ")
_SNAPSHOT_RESPONSE: Final = struct.Struct(">BQQiQI")
_NUMBERED: Final = struct.Struct(">BQQ")
_HEARTBEAT_RESPONSE: Final = struct.Struct(">BQQQ?Q")
_DISK: Final = struct.Struct(">BQQQQ")


def seal(message: pb.PeerMessage) -> pb.PeerMessage:
    """`message` itself, with the checksum of its fields as they are now: the last thing done to
    it before it is sent."""
    message.checksum = crc32c(control_bytes(message))
    body = message.WhichOneof("body")
    if body == "heartbeat_response":
        message.heartbeat_response.disk_checksum = _disk_checksum(message)
    elif body == "hello":
        message.hello.recoveries_checksum = _recoveries_checksum(message)
    elif body == "digest_request":
        message.digest_request.looks_again_checksum = _looks_again_checksum(message)
    return message


def is_intact(message: pb.PeerMessage) -> bool:
    """Whether `message` has a known body and the checksum of its fields.

    A bit that flips in a tag makes a field unknown, and what is read as its value with it, and one
    in a length moves fields to where nobody looks: a fact and its checksum, both at once, as if
    nothing had been said. So where nothing is said of them
    nothing may be there that isn't known; in a Hello, to which releases add, of this one's numbers.
    """
    control = control_bytes(message)
    if not control or message.checksum != crc32c(control):
        return False
    body = message.WhichOneof("body")
    if body == "heartbeat_response":
        answer = message.heartbeat_response
        if answer.disk_checksum != _disk_checksum(message):
            return False
        return bool(answer.disk_checksum) or not (
            len(UnknownFieldSet(answer)) or len(UnknownFieldSet(message))
        )
    if body == "hello":
        hello = message.hello
        if hello.recoveries_checksum != _recoveries_checksum(message):
            return False
        return bool(hello.recoveries_checksum) or not (_hides(hello) or _hides(message))
    if body == "digest_request":  # where its tag is lost, logs are taken to be compared
        return message.digest_request.looks_again_checksum == _looks_again_checksum(message)
    return True


def _hides(body: Message) -> bool:
    """Whether a field of this release is there in a form that it hasn't; fields of later releases
    have other numbers."""
    known, found = body.DESCRIPTOR.fields_by_number, UnknownFieldSet(body)
    return any(found[at].field_number in known for at in range(len(found)))


def _recoveries_checksum(message: pb.PeerMessage) -> int:
    """Over what a Hello says of its group's epoch; 0 where it says nothing, as releases do that
    know nothing of it."""
    body = message.hello
    if not body.recoveries:
        return 0
    parts = [_KIND.pack(2)]
    for each in (body.node_id.encode(), *body.recoveries):
        parts += (_LENGTH.pack(len(each)), each)
    return crc32c(b"".join(parts))


def _disk_checksum(message: pb.PeerMessage) -> int:
    """Over what a heartbeat response says of the disk; 0 where it says nothing, as releases do
    that know nothing of it."""
    body = message.heartbeat_response
    if not (body.disk_free_bytes or body.disk_total_bytes):
        return 0
    packed = _DISK.pack(
        10, message.term, body.read_context, body.disk_free_bytes, body.disk_total_bytes
    )
    return crc32c(packed)


def _looks_again_checksum(message: pb.PeerMessage) -> int:
    """Over what a digest request asks, where nothing is in question; 0 where something is, or may
    be, as releases ask that know nothing of it."""
    if not message.digest_request.only_looks_again:
        return 0
    return crc32c(_digest_request(message) + _KIND.pack(1))


def check_outside_terms(peer: NodeId, message: pb.PeerMessage) -> None:
    """`message`, of a kind that belongs to no term, is as `peer` sealed it.

    Raises:
        InvalidMessage: no working peer sends it.
    """
    if not is_intact(message) or message.term:
        raise InvalidMessage(f"a message of {peer} doesn't have the checksum of its fields")


def control_bytes(message: pb.PeerMessage) -> bytes:
    """What the checksum is taken of, see the table; nothing for a message without a known body."""
    pack = _PACKERS.get(message.WhichOneof("body"))
    return b"" if pack is None else pack(message)


def _hello(message: pb.PeerMessage) -> bytes:
    body = message.hello
    parts = [
        _HELLO.pack(
            2,
            message.term,
            body.protocol_version,
            body.segment_size_bytes,
            body.boot_number,
            body.boot_nonce,
            body.configuration_term,
            body.configuration_index,
        ),
    ]
    names = [name.encode() for name in (body.broker_group, body.node_id, body.to_node_id)]
    for encoded in (*names, body.disk_id):
        parts += (_LENGTH.pack(len(encoded)), encoded)
    vote = body.begun_vote.encode()
    parts += (
        _LEVEL.pack(body.level),
        _BEGUN.pack(body.begun_term, body.begun_index, body.acknowledges_unsynced),
        _LENGTH.pack(len(vote)),
        vote,
    )
    return b"".join(parts)


def _pre_vote_request(message: pb.PeerMessage) -> bytes:
    body = message.pre_vote_request
    return _LOG_END.pack(3, message.term, body.last_index, body.last_term)


def _pre_vote_response(message: pb.PeerMessage) -> bytes:
    return _GRANTED.pack(4, message.term, message.pre_vote_response.granted)


def _vote_request(message: pb.PeerMessage) -> bytes:
    body = message.vote_request
    return _VOTE_REQUEST.pack(5, message.term, body.last_index, body.last_term, body.reason)


def _vote_response(message: pb.PeerMessage) -> bytes:
    body = message.vote_response
    return _VOTE_RESPONSE.pack(6, message.term, body.granted, body.wall_ms)


def _append_request(message: pb.PeerMessage) -> bytes:
    body = message.append_request
    return _FOUR.pack(
        7, message.term, body.prev_index, body.prev_term, body.commit_index, body.frames_size
    )


def _append_response(message: pb.PeerMessage) -> bytes:
    body = message.append_response
    return _APPEND_RESPONSE.pack(
        8,
        message.term,
        body.accepted,
        body.match_index,
        body.rejected_prev_index,
        body.conflict_term,
        body.conflict_first_index,
        body.last_index,
    )


def _heartbeat_request(message: pb.PeerMessage) -> bytes:
    body = message.heartbeat_request
    return _FOUR.pack(
        9, message.term, body.commit_index, body.read_context, body.digest_index, body.digest
    )


def _heartbeat_response(message: pb.PeerMessage) -> bytes:
    body = message.heartbeat_response
    return _HEARTBEAT_RESPONSE.pack(
        10,
        message.term,
        body.read_context,
        body.last_index,
        body.is_short_of_space,
        body.wall_ms,
    )


def _timeout_now(message: pb.PeerMessage) -> bytes:
    return _BARE.pack(11, message.term)


def _keep_alive(message: pb.PeerMessage) -> bytes:
    body = message.keep_alive
    return _LOG_END.pack(14, message.term, body.held_index, body.settled_index)


def _entries_request(message: pb.PeerMessage) -> bytes:
    body = message.entries_request
    return _FOUR.pack(
        16, message.term, body.number, body.first_index, body.last_index, body.last_term
    )


def _entries_response(message: pb.PeerMessage) -> bytes:
    body = message.entries_response
    return _ENTRIES_RESPONSE.pack(17, message.term, body.number, body.status, body.frames_size)


def _digest_request(message: pb.PeerMessage) -> bytes:
    body = message.digest_request
    return _FOUR.pack(18, message.term, body.number, body.index, body.entry_term, body.digest)


def _digest_response(message: pb.PeerMessage) -> bytes:
    body = message.digest_response
    return _FOUR.pack(19, message.term, body.number, body.index, body.entry_term, body.digest)


def _snapshot_offer(message: pb.PeerMessage) -> bytes:
    body = message.snapshot_offer
    head = _SNAPSHOT_OFFER.pack(
        22,
        message.term,
        body.index,
        body.index_term,
        body.digest,
        body.end_offset,
        body.append_time_ms,
        body.configuration_index,
        body.configuration_term,
    )
    return b"".join((head, _LENGTH.pack(len(body.configuration)), body.configuration))


def _snapshot_request(message: pb.PeerMessage) -> bytes:
    body = message.snapshot_request
    return _SNAPSHOT_REQUEST.pack(23, message.term, body.number, body.index, body.at)


def _snapshot_response(message: pb.PeerMessage) -> bytes:
    body = message.snapshot_response
    return _SNAPSHOT_RESPONSE.pack(
        24, message.term, body.number, body.status, body.size_bytes, body.piece_crc
    )


def _log_start_request(message: pb.PeerMessage) -> bytes:
    return _NUMBERED.pack(25, message.term, message.log_start_request.number)


def _log_start_response(message: pb.PeerMessage) -> bytes:
    body = message.log_start_response
    return _NUMBERED.pack(26, message.term, body.number) + body.log_start


_PACKERS: Final[dict[str | None, Callable[[pb.PeerMessage], bytes]]] = {
    "hello": _hello,
    "pre_vote_request": _pre_vote_request,
    "pre_vote_response": _pre_vote_response,
    "vote_request": _vote_request,
    "vote_response": _vote_response,
    "append_request": _append_request,
    "append_response": _append_response,
    "heartbeat_request": _heartbeat_request,
    "heartbeat_response": _heartbeat_response,
    "timeout_now": _timeout_now,
    "keep_alive": _keep_alive,
    "entries_request": _entries_request,
    "entries_response": _entries_response,
    "digest_request": _digest_request,
    "digest_response": _digest_response,
    "snapshot_offer": _snapshot_offer,
    "snapshot_request": _snapshot_request,
    "snapshot_response": _snapshot_response,
    "log_start_request": _log_start_request,
    "log_start_response": _log_start_response,
}
