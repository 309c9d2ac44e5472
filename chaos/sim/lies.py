"""What goes wrong with a message on its way: a bit flips, or its sender lies.

`garble` flips one bit of the bytes that travel. `lie` changes what a member says and seals it
again, so that nothing but the ranges and the rules of admission can notice: absurd numbers, claims
that contradict what everybody holds, messages that have no business where they arrive.

It lies about itself, too, in range: what its clock shows, which disk and which start it is, what it
began with and what it holds, where its log ends. That shuts it out or costs time, and is no excuse
for anything else.

Lies that are in range and false are left out where Raft builds on the truth: an acknowledgement of
what isn't there, a vote given twice, a candidate's log that is made up, the leadership of a later
term. Raft believes its members so far, and no check of a message could tell
(docs/adr/0019-what-a-peer-may-say.md). So is a level of formats above the true one: whoever says so
is the one who stops applying.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from google.protobuf.message import DecodeError

from dledger.checksum import seal
from dledger.core.types import MAX_TIME_MS
from dledger.reading.entry import HEADER_SIZE, build_frame, parse_header
from dledger.reading.log_start import decode_start
from dledger.wire import raft_pb2 as pb

ABSURD = (1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
LATE_MS = 1 << 60  # a time of appending that no clock shows
BEYOND = 1 << 40
MODEST_TERMS = 5_000  # so far a term may be ahead and be believed

# Numbers that have a range, by message. Of terms of campaigns and of answers see `_ahead`.
FIELDS = {
    "pre_vote_request": ("last_index", "last_term"),
    "vote_request": ("last_index", "last_term"),
    "append_request": ("prev_index", "prev_term", "commit_index", "frames_size"),
    "append_response": ("match_index", "rejected_prev_index", "conflict_term",
                        "conflict_first_index", "last_index"),
    "heartbeat_request": ("commit_index", "read_context", "digest_index", "digest"),
    "heartbeat_response": ("read_context", "last_index", "wall_ms", "disk_free_bytes",
                           "disk_total_bytes"),
    "vote_response": ("wall_ms",),
    "hello": ("configuration_term", "configuration_index", "begun_term", "begun_index"),
    "keep_alive": ("held_index", "settled_index"),
    "entries_request": ("first_index", "last_index", "last_term"),
    "entries_response": ("number", "frames_size"),
    "digest_request": ("number", "index", "entry_term", "digest"),
    "digest_response": ("number", "index", "entry_term", "digest"),
    "snapshot_offer": ("index", "index_term", "end_offset", "append_time_ms",
                       "configuration_index", "configuration_term"),
    "snapshot_request": ("number", "index", "at"),
    "snapshot_response": ("number", "size_bytes"),
    "log_start_request": ("number",),
    "log_start_response": ("number",),
}  # fmt: skip

STARTS_FIELDS = ("index", "term", "end_offset", "append_time_ms", "configuration_index",
                 "configuration_term")  # fmt: skip


def garble(message: pb.PeerMessage, chance: Random) -> pb.PeerMessage | None:
    """What arrives when one bit has flipped; None: bytes that are no message."""
    data = bytearray(message.SerializeToString())
    at = chance.randrange(8 * len(data))
    data[at // 8] ^= 1 << at % 8
    try:
        return pb.PeerMessage.FromString(bytes(data))
    except DecodeError:
        return None


def lie(message: pb.PeerMessage, chance: Random) -> pb.PeerMessage:
    """What a lying member says instead of `message`; sealed."""
    told = pb.PeerMessage()
    told.CopyFrom(message)
    ways: list[Callable[[pb.PeerMessage, Random], None]] = [_absurd_term, _foreign]
    if told.WhichOneof("body") in OF_ITSELF:
        ways = [OF_ITSELF[str(told.WhichOneof("body"))]] * 4
    if told.WhichOneof("body") in FIELDS:
        ways += [_absurd_field] * 3
    if told.WhichOneof("body") in ("vote_response", "heartbeat_response"):
        ways += [_other_clock] * 2
    if told.HasField("heartbeat_response"):
        ways.append(_other_disk)
    if told.WhichOneof("body") in ("vote_request", "vote_response", "heartbeat_response"):
        ways.append(_ahead)
    if told.heartbeat_request.digest_index:
        ways.append(_other_digest)
    if told.append_request.frames_size:
        ways += [_other_frames] * 3
    if told.WhichOneof("body") in ("digest_request", "digest_response"):
        ways += [_other_compared] * 3
    if told.log_start_response.log_start:
        ways += [_other_start] * 4
    if told.HasField("entries_response"):
        ways += [_other_entries] * 4
    if told.append_response.accepted or told.WhichOneof("body") == "heartbeat_response":
        ways += [_beyond] * 2
    chance.choice(ways)(told, chance)
    return seal(told)


def _absurd_term(told: pb.PeerMessage, chance: Random) -> None:
    told.term = chance.choice(ABSURD)


def _absurd_field(told: pb.PeerMessage, chance: Random) -> None:
    kind = told.WhichOneof("body")
    if kind is None:
        return
    setattr(getattr(told, kind), chance.choice(FIELDS[kind]), chance.choice(ABSURD))


def _beyond(told: pb.PeerMessage, chance: Random) -> None:
    """A number that could be, and not here: more than any leader has sent in a run."""
    if told.append_response.accepted:
        told.append_response.match_index = BEYOND + chance.randrange(9)
    else:
        told.heartbeat_response.read_context = BEYOND + chance.randrange(9)


def _ahead(told: pb.PeerMessage, chance: Random) -> None:
    """A later term, in what can only disturb: it makes others campaign, and gives nobody a vote,
    an entry or an acknowledgement that isn't there."""
    told.term += chance.randrange(1, MODEST_TERMS)


def _other_clock(told: pb.PeerMessage, chance: Random) -> None:
    """Any time between 1970 and the year 9999; or another end of the log, which is looked at for
    what got lost on the way."""
    if told.WhichOneof("body") == "heartbeat_response":
        if chance.random() < 0.3:
            told.heartbeat_response.last_index = chance.randrange(BEYOND)
        else:
            told.heartbeat_response.wall_ms = chance.randrange(MAX_TIME_MS + 1)
    else:
        told.vote_response.wall_ms = chance.randrange(MAX_TIME_MS + 1)


def _other_disk(told: pb.PeerMessage, chance: Random) -> None:
    """A disk that could be: full, empty, or none that anything is said of."""
    answer = told.heartbeat_response
    answer.disk_total_bytes = chance.choice((0, 1, 1 << 20, 1 << 62))
    answer.disk_free_bytes = chance.choice((0, answer.disk_total_bytes))


def _other_self(told: pb.PeerMessage, chance: Random) -> None:
    """Another disk, start, level or past than its own, or another one's name."""
    hello = told.hello
    match chance.randrange(8):
        case 0:
            hello.disk_id = chance.choice((b"", b"short", chance.randbytes(16)))
        case 1:
            hello.boot_number = max(0, hello.boot_number + chance.choice((-1, 1, 7, BEYOND)))
        case 2:
            hello.boot_nonce = chance.getrandbits(64)
        case 3:
            hello.level = chance.choice((0, 1))
        case 4:
            hello.begun_term += chance.randrange(1, MODEST_TERMS)
            hello.begun_vote = chance.choice(("", "n1", "n9", "n" * 300))
        case 5:
            hello.begun_index = chance.choice((0, hello.begun_index + BEYOND))
        case 6:
            hello.configuration_term += 1
            hello.disk_id = chance.randbytes(16)
        case _:
            hello.node_id = chance.choice(("", "n1", "n2", "n3", "nobody"))


def _other_holding(told: pb.PeerMessage, chance: Random) -> None:
    """More than it holds, in its term or in a later one, or less; or what no log can be like."""
    body = told.keep_alive
    told.term += chance.choice((0, 0, 1, MODEST_TERMS))
    body.held_index = chance.choice((0, body.held_index + 1, BEYOND))
    body.settled_index = chance.choice((0, body.held_index, body.held_index + 1))


OF_ITSELF: dict[str, Callable[[pb.PeerMessage, Random], None]] = {
    "hello": _other_self,
    "keep_alive": _other_holding,
}


def _foreign(told: pb.PeerMessage, chance: Random) -> None:
    """Another message in the place of this one: one that only the leader may send, a second Hello,
    or none."""
    term = told.term
    told.Clear()
    told.term = term
    match chance.randrange(3):
        case 0:
            told.timeout_now.SetInParent()
        case 1:
            told.hello.node_id = "n1"
        case _:
            pass


def _other_digest(told: pb.PeerMessage, chance: Random) -> None:
    told.heartbeat_request.digest ^= 1 << chance.randrange(64)


def _other_compared(told: pb.PeerMessage, chance: Random) -> None:
    """Another digest at that entry, or the same of another entry."""
    body = told.digest_request if told.HasField("digest_request") else told.digest_response
    if chance.random() < 0.7:
        body.digest ^= 1 << chance.randrange(64)
    else:
        body.index = max(0, body.index - chance.choice((-1, 1, 5)))


def _other_entries(told: pb.PeerMessage, chance: Random) -> None:
    """In answer to who has lost entries: others, whole and with their CRCs; only some; none; or
    that they are gone here, too."""
    body = told.entries_response
    match chance.randrange(4):
        case 0:
            body.status = pb.ENTRIES_STATUS_ROTTEN
            body.frames = b""
        case 1:
            body.status = pb.ENTRIES_STATUS_NOT_YET
            body.frames = b""
        case 2 if body.frames:
            header = parse_header(body.frames, 0)
            content = bytearray(body.frames[HEADER_SIZE : header.total_size])
            if content:
                content[chance.randrange(len(content))] ^= 1
            head, _ = build_frame(
                header.kind,
                header.index,
                header.term,
                header.physical_offset,
                header.append_time_ms,
                header.record_count,
                bytes(content),
                chance.choice((0, header.digest)),
            )
            body.frames = head + bytes(content) + body.frames[header.total_size :]
        case _ if body.frames:
            body.frames = body.frames[: parse_header(body.frames, 0).total_size]
        case _:
            body.number += 1
    body.frames_size = len(body.frames)


def _other_start(told: pb.PeerMessage, chance: Random) -> None:
    """Where its log begins is where none can; bytes that are no note; or those of another one."""
    body = told.log_start_response
    start = decode_start(body.log_start)
    absurd: dict[str, Any] = {chance.choice(STARTS_FIELDS): chance.choice(ABSURD)}
    match chance.randrange(6):
        case 0:
            body.log_start = body.log_start[: chance.randrange(len(body.log_start))]
        case 1:
            body.log_start = replace(start, configuration=chance.randbytes(9)).encode()
        case 2:
            body.log_start = replace(
                start, digest=start.digest ^ 1 << chance.randrange(64)
            ).encode()
        case _:
            body.log_start = replace(start, **absurd).encode()


def _other_frames(told: pb.PeerMessage, chance: Random) -> None:
    """Frames whose CRC fits and which continue no log, or are of a time that never comes, or
    bytes that are no frames."""
    body = told.append_request
    frames = body.frames
    header = parse_header(frames, 0)
    if chance.random() < 0.2:
        body.frames = bytes(len(frames))
        return
    is_late = chance.random() < 0.3
    head, _ = build_frame(
        header.kind,
        header.index,
        header.term,
        header.physical_offset,
        LATE_MS if is_late else header.append_time_ms,
        header.record_count,
        frames[HEADER_SIZE : header.total_size],
        chance.getrandbits(64),
    )
    body.frames = head + frames[HEADER_SIZE:]
