"""The entry frame: golden bytes, flips, the digest, positions."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from dledger.reading.entry import (
    HEADER_SIZE,
    EntryKind,
    blank_filler,
    build_frame,
    digest_of,
    parse_header,
    position_after,
    preamble_of,
    verify_frame,
    walk_frames,
)
from dledger.records.errors import AppendRefused, InvalidFrame


def frame(index: int, body: bytes, previous: int = 0, *, at: int = 0, term: int = 1) -> bytes:
    head, _ = build_frame(EntryKind.COMMAND, index, term, at, 5, 0, body, previous)
    return head + body


def chain(*bodies: bytes) -> bytes:
    frames, digest, at = b"", 0, 0
    for n, body in enumerate(bodies):
        head, digest = build_frame(EntryKind.COMMAND, n + 1, 1, at, 5, 0, body, digest)
        frames += head + body
        at = len(frames)
    return frames


def test_frame_has_the_documented_bytes() -> None:
    """Golden: every field where `docs/formats.md` says; CRC and digest by their definitions."""
    head, digest = build_frame(EntryKind.DATA, 7, 3, 0x1000, 0x18BCFE56800, 2, b"body", 0xABCD)
    whole = head + b"body"
    assert head.hex() == (
        "0000003c" "daa320d1" "02" "02" "0002" "a443d76f"
        "0000000000000007" "0000000000000003" "0000000000001000" "0000018bcfe56800"
        "c5803de739c5b388"
    )  # fmt: skip
    assert int.from_bytes(head[12:16], "big") == crc32c(whole[:12] + whole[16:])
    assert digest == xxh3_64_intdigest(whole[16:48] + whole[:12] + b"body", 0xABCD)


@given(st.binary(max_size=9000), st.integers(0, (1 << 64) - 1))
def test_what_was_built_verifies(body: bytes, previous: int) -> None:
    head, digest = build_frame(EntryKind.DATA, 9, 2, 4096, 77, 3, body, previous)
    for buf in (head + body, bytearray(b"xyz" + head + body), memoryview(head + body)):
        at = len(buf) - HEADER_SIZE - len(body)
        header = verify_frame(buf, at, previous)
        assert header == parse_header(buf, at)
        assert digest_of(buf, at, header.total_size, previous) == digest
    assert header.total_size == HEADER_SIZE + len(body)
    assert (header.kind, header.record_count, header.index, header.term) == (2, 3, 9, 2)
    assert (header.physical_offset, header.append_time_ms) == (4096, 77)
    assert header.digest == digest


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_is_found(bit: int) -> None:
    whole = frame(1, b"some body")
    for at in range(len(whole)):
        spoiled = bytearray(whole)
        spoiled[at] ^= 1 << bit
        with pytest.raises(InvalidFrame):
            verify_frame(spoiled, 0, 0)


def test_digest_tells_histories_of_equal_shape_apart() -> None:
    """Same index, term and size, another past: only the digest knows (ADR 6)."""
    one, other = chain(b"aaaa", b"same"), chain(b"bbbb", b"same")
    half = len(one) // 2
    first = parse_header(one, 0).digest
    verify_frame(one, half, first)
    verify_frame(other, half, None)
    with pytest.raises(InvalidFrame, match="digest"):
        verify_frame(other, half, first)


def test_walk_returns_the_headers_of_a_blob() -> None:
    blob = chain(b"a", b"", b"c" * 5000)
    assert [header.index for header in walk_frames(blob)] == [1, 2, 3]
    assert walk_frames(b"") == []
    for cut in (1, 55, 56, len(blob) - 1):
        with pytest.raises(InvalidFrame):
            walk_frames(memoryview(blob)[:-cut] if cut != 56 else blob[:-5056] + blob[-5000:])


@pytest.mark.parametrize(
    ("second", "field"),
    [
        (frame(3, b"x", at=100), "index"),
        (frame(2, b"x", at=100, term=0), "term"),
        (frame(2, b"x", at=10), "physical offset"),
    ],
)
def test_walk_refuses_frames_that_do_not_follow_each_other(second: bytes, field: str) -> None:
    with pytest.raises(InvalidFrame) as refused:
        walk_frames(frame(1, b"x") + second)
    assert (refused.value.field, refused.value.position) == (field, HEADER_SIZE + 1)


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_invalid_frame(noise: bytes) -> None:
    for blob in (noise, chain(b"x") + noise, bytes.fromhex("00000038daa320d101010000") + noise):
        if blob == chain(b"x") or not blob:
            continue
        with pytest.raises(InvalidFrame):
            walk_frames(blob)


@pytest.mark.parametrize(("at", "field"), [(8, "kind"), (9, "version")])
def test_no_entry_is_of_kind_or_version_zero(at: int, field: str) -> None:
    head, _ = build_frame(EntryKind.NOOP, 1, 1, 0, 0, 0, b"", 0)
    with pytest.raises(InvalidFrame, match=field):
        parse_header(head[:at] + bytes(1) + head[at + 1 :], 0)


@pytest.mark.parametrize(
    ("kind", "version", "is_known"),
    [
        (1, 1, True),
        (4, 2, True),
        (5, 2, False),
        (255, 2, False),
        (2, 3, True),
        (2, 4, False),
        (3, 3, False),
        (1, 255, False),
    ],
)
def test_entries_of_later_releases_are_kept_and_not_understood(
    kind: int, version: int, is_known: bool
) -> None:
    """They are no damage: a log that holds them is served to others as it is."""
    head, _ = build_frame(kind, 1, 1, 0, 0, 0, b"", 0)
    header = parse_header(head[:9] + bytes([version]) + head[10:], 0)
    assert (header.kind, header.version, header.is_known) == (kind, version, is_known)


def test_preambles_of_both_versions_are_read() -> None:
    """An entry of version 1 doesn't say which topic of its name it is for."""
    producer, sequence = b"producer-number1", (7).to_bytes(8, "big")
    head, _ = build_frame(EntryKind.DATA, 1, 1, 0, 0, 1, producer + sequence, 0)
    frame = head + producer + sequence + (9).to_bytes(8, "big")
    header = parse_header(frame, 0)
    assert preamble_of(header, frame) == (producer, 7, 9)
    assert header.first_record_at == 56 + 32
    old = header._replace(version=1)
    assert preamble_of(old, frame) == (producer, 7, 0)
    assert old.first_record_at == 56 + 24
    with pytest.raises(InvalidFrame, match="total size"):
        preamble_of(header, frame[:-1])


def test_more_records_than_the_field_holds_are_refused() -> None:
    with pytest.raises(AppendRefused, match="record count"):
        build_frame(EntryKind.DATA, 1, 1, 0, 0, 65_536, b"", 0)


def test_filler_has_rocketmqs_bytes() -> None:
    assert blank_filler(4000).hex() == "00000fa0cbd43194"


@given(st.integers(0, 1 << 40), st.integers(HEADER_SIZE, 4096 - 8))
def test_position_leaves_room_for_a_filler(end: int, size: int) -> None:
    """An entry never spans two segments, and there are eight bytes behind it."""
    position = position_after(end, size, 4096)
    assert position // 4096 == (position + size + 8 - 1) // 4096
    if position != end:
        assert position % 4096 == 0
        assert 0 < position - end <= 4096
        assert size + 8 > position - end


def test_frame_that_no_segment_holds_is_refused() -> None:
    assert position_after(10, 4088, 4096) == 4096
    with pytest.raises(AppendRefused, match="frame size should be at most 4088, is 4089"):
        position_after(0, 4089, 4096)
