"""Compressed bodies: read back as they were, whoever wrote them, and never more than a body may
be."""

from __future__ import annotations

import sys
import tracemalloc
import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dledger.limits import MAX_MESSAGE_BYTES
from dledger.records.compression import (
    LEVELS,
    USUAL_LEVELS,
    Codec,
    check_installed,
    codec_of,
    compress,
    decompress,
)
from dledger.records.errors import BodyUnreadable, CodecMissing
from dledger.records.record import (
    CompressedRecord,
    RecordTemplate,
    decode_records,
    validate_records,
)
from tests.codecs import EACH, HERE
from tests.scale import examples

HOST = ("127.0.0.1", 5)
LINE = b"the same line again and again, as logs have it\n"
SOME_MORE_BYTES = 12 << 20  # than the largest body: what finding out may take, all in all

bodies = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda piece, times: piece * times, st.binary(max_size=40), st.integers(0, 3_000)),
)
codecs = st.sampled_from(HERE)


def packed(body: bytes, codec: Codec) -> bytes:
    return compress(body, codec, USUAL_LEVELS[codec])


def unsized_zstd(body: bytes) -> bytes:
    """As Java's `ZstdOutputStream` writes it: the frame doesn't say how large its content is."""
    zstandard = pytest.importorskip("zstandard")
    made: bytes = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    return made


@given(bodies, codecs, st.data())
def test_what_was_compressed_is_read(body: bytes, codec: Codec, data: st.DataObject) -> None:
    """Any body, any codec, any of its levels."""
    level = data.draw(st.sampled_from(LEVELS[codec]))
    assert decompress(compress(body, codec, level), codec.sysflag) == body


@settings(max_examples=examples(300))
@given(bodies, codecs, st.data())
def test_damage_is_an_error_that_says_so(body: bytes, codec: Codec, data: st.DataObject) -> None:
    """Bytes that are missing, changed or too many: BodyUnreadable, and never another exception. LZ4
    and Zstandard have no checksum of their content here, as the record has one: a changed byte may
    change the content, but not beyond what a body may be."""
    stored = bytearray(packed(body, codec))
    at = data.draw(st.integers(0, len(stored) - 1))
    harm = data.draw(st.sampled_from(["cut", "changed", "longer"]))
    if harm == "cut":
        del stored[at:]
    elif harm == "longer":
        stored += b"more"
    else:
        stored[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decompress(bytes(stored), codec.sysflag)
    except BodyUnreadable as error:
        told = error.codec
        assert told == codec.name.lower()
    else:
        assert harm == "changed"
        assert len(found) <= MAX_MESSAGE_BYTES


@pytest.mark.parametrize("has_checksum", [False, True])
def test_zstandard_that_says_it_is_empty_is_looked_at(*, has_checksum: bool) -> None:
    """The library believes the header alone: a message whose frame said so falsely, or whose first
    frame was empty and its second not, was given to its reader as an empty one."""
    zstandard = pytest.importorskip("zstandard")
    make = zstandard.ZstdCompressor(write_checksum=has_checksum).compress
    empty, full = make(b""), make(b"a body")
    sysflag = Codec.ZSTD.sysflag
    assert decompress(empty, sysflag) == b""
    assert decompress(full, sysflag) == b"a body"
    said_falsely = full[:5] + b"\0" + full[6:]
    for wrong in (said_falsely, empty + full, empty + b"more", *(empty[:n] for n in range(9))):
        with pytest.raises(BodyUnreadable):
            decompress(wrong, sysflag)


@given(st.binary(max_size=200), codecs)
@example(b"", Codec.ZLIB)
def test_garbage_is_an_error_that_says_so(garbage: bytes, codec: Codec) -> None:
    """What a producer calls compressed need not be."""
    with pytest.raises(BodyUnreadable):
        decompress(b"\xff\xff" + garbage, codec.sysflag)


@pytest.mark.parametrize("codec", EACH)
def test_largest_body_is_read_and_a_larger_one_refused(codec: Codec) -> None:
    """The bound is the one that producers keep to."""
    largest = b"x" * MAX_MESSAGE_BYTES
    assert decompress(packed(largest, codec), codec.sysflag) == largest
    with pytest.raises(BodyUnreadable, match="larger"):
        decompress(packed(largest + b"x", codec), codec.sysflag)


@pytest.mark.parametrize("codec", EACH)
def test_bomb_takes_no_more_memory_than_a_body(codec: Codec) -> None:
    """A few KiB that would become 256 MiB."""
    bomb = packed(bytes(256 << 20), codec)
    tracemalloc.start()
    try:
        with pytest.raises(BodyUnreadable, match="larger"):
            decompress(bomb, codec.sysflag)
        assert tracemalloc.get_traced_memory()[1] < SOME_MORE_BYTES
    finally:
        tracemalloc.stop()


def test_zstandard_without_a_size_is_bounded_too() -> None:
    """As Java writes it, the largest body and one byte more."""
    largest = b"x" * MAX_MESSAGE_BYTES
    assert decompress(unsized_zstd(largest), Codec.ZSTD.sysflag) == largest
    assert decompress(unsized_zstd(b""), Codec.ZSTD.sysflag) == b""
    for size in (MAX_MESSAGE_BYTES + 1, 64 << 20):
        with pytest.raises(BodyUnreadable, match="larger"):
            decompress(unsized_zstd(b"x" * size), Codec.ZSTD.sysflag)


# --- what RocketMQ writes and reads ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("sysflag", "codec"),
    [
        (0, None),
        (0x1, Codec.ZLIB),
        (0x101, Codec.LZ4),
        (0x201, Codec.ZSTD),
        (0x301, Codec.ZLIB),
        (0x300, None),
        (0x1 | 0x2 | 0xC | 0x40, Codec.ZLIB),
    ],
)
def test_bits_are_rocketmqs(sysflag: int, codec: Codec | None) -> None:
    """Source: `MessageSysFlag`, and `CompressionType.findByValue`, for which 0 is zlib."""
    assert codec_of(sysflag) is codec
    if codec is not None and sysflag >> 8:
        assert codec.sysflag == sysflag


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_unknown_codec_is_named(number: int) -> None:
    """RocketMQ throws away what it can't name; here the message says what it would need."""
    with pytest.raises(BodyUnreadable, match=f"codec {number}"):
        decompress(b"x", 1 | number << 8)


def test_record_of_rocketmqs_zlib_is_read() -> None:
    """Its older clients set bit 0 alone; `Deflater` at level 5 makes the stream."""
    stored = bytes.fromhex("785e2bc9485548cecf2d284a2d2e4e4d5148ca4fa9040049a80765")
    assert zlib.decompress(stored) == b"the compressed body"
    assert decompress(stored, 0x1) == b"the compressed body"


@pytest.mark.parametrize("codec", [EACH[0]])
def test_lz4_frames_are_those_that_java_reads(codec: Codec) -> None:
    """`LZ4FrameInputStream` refuses frames whose blocks depend on each other, and any dictionary;
    what `LZ4FrameOutputStream` writes (blocks of 4 MiB, no checksum) is read."""
    made = packed(LINE * 100_000, codec)  # more than one block of any size
    assert made[:4] == bytes.fromhex("04224d18")
    assert made[4] & 0b1110_0001 == 0b0110_0000, "version 1, independent blocks, no dictionary"
    raw = bytes.fromhex("04224d18 6070 73") + (0x8000_0005).to_bytes(4, "little") + b"plain"
    assert decompress(raw + bytes(4), codec.sysflag) == b"plain"


# --- records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", EACH)
def test_record_gives_its_body_and_tells_how_it_is_stored(codec: Codec) -> None:
    """The brokers' checks pass; BODYCRC is over what is stored."""
    body, stored = LINE * 100, packed(LINE * 100, codec)
    record = RecordTemplate("t", HOST).encode(3, stored, b"", 5, 7, codec.sysflag)
    limit = len(record)
    assert validate_records(record, topic="t", queue_id=3, max_record_size=limit) == [0]
    (found,) = decode_records(record)
    assert (found.body, found.stored_body, found.sysflag) == (body, stored, codec.sysflag)
    assert found.body is found.body, "decompressed once"


def test_bad_body_fails_who_asks_for_it_and_nobody_else() -> None:
    """It is decompressed when it is asked for, so that those around it are read."""
    template = RecordTemplate("t", HOST)
    bad = template.encode(0, b"garbage", b"KEYS\x01k\x02", 1, 0, Codec.ZLIB.sysflag)
    good = template.encode(0, b"good", b"", 1)
    before, between, behind = decode_records(good + bad + good)
    assert before.body == behind.body == b"good"
    assert isinstance(between, CompressedRecord)
    assert (between.keys, between.stored_body) == ("k", b"garbage")
    for _ in range(2):  # the second time, too
        with pytest.raises(BodyUnreadable, match="zlib"):
            _ = between.body


@pytest.mark.parametrize(("codec", "module"), [(Codec.LZ4, "lz4.frame"), (Codec.ZSTD, "zstandard")])
def test_missing_library_is_named(
    codec: Codec, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do about it; writing and reading alike."""
    monkeypatch.setitem(sys.modules, module, None)
    for attempt in (
        lambda: check_installed(codec),
        lambda: compress(b"x", codec, 1),
        lambda: decompress(b"x", codec.sysflag),
    ):
        with pytest.raises(CodecMissing, match="pip install"):
            attempt()
