"""The checksum of messages between peers: golden values, every field, every bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.checksum import control_bytes, is_intact, seal
from dledger.codec import decode_disk
from dledger.core.types import ConfigurationPlace, DiskId, Index, NodeId, Term
from dledger.disk_figures import DiskFigure
from dledger.greeting import Identity
from dledger.promises import Start
from dledger.wire import raft_pb2 as pb
from tests.scale import examples

NUMBERS = {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED64}


def every_message() -> list[pb.PeerMessage]:
    """One of each kind, each field with a value of its own."""
    messages = []
    for kind in pb.PeerMessage.DESCRIPTOR.oneofs_by_name["body"].fields:
        if kind.name in (
            "secret_proof",
            "certificate_proof",
        ):  # before the Hello, proofs themselves
            continue
        message = pb.PeerMessage(term=77)
        body = getattr(message, kind.name)
        body.SetInParent()
        for number, field in enumerate(body.DESCRIPTOR.fields, start=1):
            if field.name == "recoveries":
                body.recoveries.extend((b"one", b"two"))
            elif field.type in NUMBERS:
                setattr(body, field.name, 1000 + number)
            elif field.type == FieldDescriptor.TYPE_STRING:
                setattr(body, field.name, f"name-{number}")
            elif field.type == FieldDescriptor.TYPE_BOOL:
                setattr(body, field.name, True)
        messages.append(message)
    return messages


def changed(message: pb.PeerMessage) -> Iterator[tuple[str, pb.PeerMessage]]:
    """`message` with one field changed, for each field that the checksum has to cover."""
    kind = message.WhichOneof("body")
    assert kind is not None
    other = pb.PeerMessage()
    other.CopyFrom(message)
    other.term += 1
    yield "term", other
    for field in getattr(message, kind).DESCRIPTOR.fields:
        if field.name in ("frames", "piece"):
            continue  # each of them has a CRC of its own
        other = pb.PeerMessage()
        other.CopyFrom(message)
        body = getattr(other, kind)
        value = getattr(body, field.name)
        if field.name == "recoveries":
            body.recoveries[1] += b"x"
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(body, field.name, value + "x")
        elif field.type == FieldDescriptor.TYPE_BOOL:
            setattr(body, field.name, not value)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(body, field.name, value + b"x")
        else:
            setattr(body, field.name, value ^ 1)
        yield field.name, other


@pytest.mark.parametrize("message", every_message(), ids=lambda m: str(m.WhichOneof("body")))
def test_every_field_is_covered(message: pb.PeerMessage) -> None:
    """A field that is added to a message and forgotten here would fly unprotected."""
    seal(message)
    assert is_intact(message)
    names = [name for name, other in changed(message) if is_intact(other)]
    # Releases that don't know it compute the checksum of a Hello, too; see raft.proto.
    newer = ["gives_entries", "compares_digests", "tells_log_start"]
    assert names == (newer if message.HasField("hello") else [])


def test_kinds_are_told_apart() -> None:
    """The same numbers in another kind of message are another message."""
    assert len({bytes(control_bytes(message)[:1]) for message in every_message()}) == 20
    granted = seal(pb.PeerMessage(term=1, vote_response=pb.VoteResponse(granted=True)))
    other = pb.PeerMessage(
        term=1, pre_vote_response=pb.PreVoteResponse(granted=True), checksum=granted.checksum
    )
    assert is_intact(granted)
    assert not is_intact(other)


def test_golden_values() -> None:
    """The bytes are part of the protocol: another implementation must find the same."""
    beat = pb.PeerMessage(
        term=5,
        heartbeat_request=pb.HeartbeatRequest(
            commit_index=1, read_context=2, digest_index=1, digest=0xFEDCBA9876543210
        ),
    )
    assert control_bytes(beat).hex() == (
        "09" "0000000000000005" "0000000000000001" "0000000000000002"
        "0000000000000001" "fedcba9876543210"
    )  # fmt: skip
    assert seal(beat).checksum == 0x6FC3D635
    start = Start(3, 9, Term(5), NodeId("n3"), Index(6), is_synced=False)
    speaker = Identity("g", NodeId("n1"), 4096, DiskId(b"disk"), start, level=1)
    hello = speaker.hello(NodeId("n2"), ConfigurationPlace(Term(2), Index(7)))
    assert control_bytes(hello).hex() == (
        "02" "0000000000000000" "00000002" "0000000000001000"
        "0000000000000003" "0000000000000009" "0000000000000002" "0000000000000007"
        "00000001" "67" "00000002" "6e31" "00000002" "6e32" "00000004" "6469736b" "00000001"
        "0000000000000005" "0000000000000006" "01" "00000002" "6e33"
    )  # fmt: skip


def question(*, only_looks_again: bool) -> pb.PeerMessage:
    body = pb.DigestRequest(number=1, index=2, entry_term=3, digest=4)
    body.only_looks_again = only_looks_again
    return seal(pb.PeerMessage(digest_request=body))


def test_that_nothing_is_in_question_is_never_said_by_accident() -> None:
    """Releases before compute the checksum over all else, and are taken to compare logs; so is who
    says that he doesn't, where that got lost. It keeps logs from being dropped."""
    compared, settled = question(only_looks_again=False), question(only_looks_again=True)
    assert compared.checksum == settled.checksum
    assert not compared.digest_request.looks_again_checksum
    assert settled.digest_request.looks_again_checksum == 0x52C5B2D6
    compared.digest_request.only_looks_again = True
    assert not is_intact(compared)
    settled.digest_request.digest ^= 1
    settled.checksum = question(only_looks_again=True).checksum
    assert not is_intact(settled)


def answer_of_a_disk(free: int, total: int) -> pb.PeerMessage:
    body = pb.HeartbeatResponse(read_context=3, disk_free_bytes=free, disk_total_bytes=total)
    return seal(pb.PeerMessage(term=5, heartbeat_response=body))


def test_what_is_said_of_a_disk_is_nothing_to_who_does_not_know_it() -> None:
    """Releases before compute the checksum over all else, and say nothing of a disk themselves."""
    silent, told = answer_of_a_disk(0, 0), answer_of_a_disk(7, 9)
    assert silent.checksum == told.checksum
    assert not silent.heartbeat_response.disk_checksum
    assert told.heartbeat_response.disk_checksum == 0x3C2529E3
    assert is_intact(silent)
    assert decode_disk(silent) is None
    assert decode_disk(told) == DiskFigure(7, 9)
    older = pb.PeerMessage(term=5, heartbeat_response=pb.HeartbeatResponse(read_context=3))
    older.checksum = silent.checksum
    assert is_intact(older)


def test_a_tag_that_flips_hides_no_fact_with_its_checksum() -> None:
    """A full disk's free bytes are nothing on the wire, and the tag of its size, as one of a fixed
    size, takes the size and the checksum for its value: nothing seems to be said (seed 620208)."""
    body = pb.HeartbeatResponse(
        read_context=230,
        last_index=1084,
        is_short_of_space=True,
        wall_ms=1700000014338,
        disk_total_bytes=404869,
    )
    content = seal(pb.PeerMessage(term=13, heartbeat_response=body)).SerializeToString()
    at = content.index(b"\x30\x85\xdb\x18")  # its tag and its value
    flipped = bytearray(content)
    flipped[at] ^= 1
    message = pb.PeerMessage.FromString(bytes(flipped))
    assert not message.heartbeat_response.disk_total_bytes
    assert not message.heartbeat_response.disk_checksum
    assert not is_intact(message)


@given(
    numbers=st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 300), min_size=5, max_size=5),
    is_short=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_no_flipped_bit_of_a_heartbeat_s_answer_is_taken_for_less(
    numbers: list[int], is_short: bool
) -> None:
    """Whatever bit it is: what is believed is what was said."""
    context, last, wall, free, total = numbers
    body = pb.HeartbeatResponse(
        read_context=context,
        last_index=last,
        is_short_of_space=is_short,
        wall_ms=wall,
        disk_free_bytes=free,
        disk_total_bytes=total,
    )
    message = seal(pb.PeerMessage(term=13, heartbeat_response=body))
    content = message.SerializeToString()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            other = pb.PeerMessage.FromString(bytes(flipped))
        except DecodeError:
            continue
        if is_intact(other):
            other.DiscardUnknownFields()
            assert other == message


@pytest.mark.parametrize(
    ("free", "total"), [(10, 9), (1, 0), (0, (1 << 62) + 1), ((1 << 64) - 1, (1 << 64) - 1)]
)
def test_no_disk_is_like_that(free: int, total: int) -> None:
    with pytest.raises(ValueError, match="of a disk"):
        decode_disk(answer_of_a_disk(free, total))


def test_message_without_a_body_has_no_valid_checksum() -> None:
    """A kind that is not known here is not taken on trust."""
    assert not is_intact(pb.PeerMessage(term=5))
    assert not is_intact(pb.PeerMessage(term=5, checksum=12345))
    assert not is_intact(seal(pb.PeerMessage(term=5)))


@settings(deadline=None, max_examples=examples(300))
@given(
    message=st.sampled_from([seal(message) for message in every_message()]),
    at=st.integers(0, 1 << 12),
)
def test_flipped_bit_is_noticed(message: pb.PeerMessage, at: int) -> None:
    """Anywhere in the bytes that travel: they are no message, or one that isn't intact, or the
    very same one (a boolean may be written as another number than 1)."""
    data = bytearray(message.SerializeToString())
    at %= 8 * len(data)
    data[at // 8] ^= 1 << at % 8
    try:
        arrived = pb.PeerMessage.FromString(bytes(data))
    except DecodeError:
        return
    if is_intact(arrived):
        assert control_bytes(arrived) == control_bytes(message)
