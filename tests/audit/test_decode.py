"""The decoder of whole chunks against a plain one that goes record by record."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.reading.chunks import LogRange, read_chunks
from dledger.reading.columns import Cuts, PropertyTable
from dledger.reading.decode import COLUMNS, Wanted, read_records
from dledger.reading.entry import FILLER_HEADER, FILLER_MAGIC, EntryKind, build_frame, walk_frames
from dledger.reading.errors import EntryDamaged
from dledger.reading.files import opened
from dledger.records.compression import decompress
from dledger.records.errors import BodyUnreadable
from dledger.records.properties import decode_properties, find_property
from dledger.records.record import BATCH_PREAMBLE, RecordTemplate
from tests.scale import examples

Row = dict[str, Any]
BASE = 1 << 20
HOST = ("10.0.0.1", 5000)
# Everything that splitting can stumble over: separators, names that are looked for, broken UTF-8.
PIECES = [b"KEYS", b"TAGS", b"KEY", b"\x01", b"\x02", b"a", b"\x00", b"\x03", b"\xff", b"\xe2",
          "\u20ac".encode(), b"x y", b"KEYS\x01k\x02", b"KEYS\x01l\x02"]  # fmt: skip
PROPERTIES = st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)
RECORD = st.tuples(st.binary(max_size=40), PROPERTIES)
Entries = list[tuple[str, list[tuple[bytes, bytes]]]]
ENTRY: st.SearchStrategy[tuple[str, list[tuple[bytes, bytes]]]] = st.one_of(
    st.tuples(st.sampled_from(["orders", "e"]), st.lists(RECORD, min_size=1, max_size=5)),
    st.tuples(st.just("same"), st.integers(1, 4).map(lambda n: [(b"body", b"TAGS\x01t\x02")] * n)),
    st.tuples(st.just(""), st.just([])),  # a no-op
)
ENTRIES = st.lists(ENTRY, min_size=1, max_size=8)


def frames_of(entries: Entries) -> list[bytes]:
    """A frame for each entry, as they lie from byte 0 of the segment at `BASE` on."""
    frames: list[bytes] = []
    at = BASE
    for number, (topic, records) in enumerate(entries, start=1):
        body, kind = b"", EntryKind.NOOP
        if records:
            template, kind = RecordTemplate(topic, HOST), EntryKind.DATA
            encoded = [template.encode(number % 3, *record, 1000 + number) for record in records]
            body = BATCH_PREAMBLE.pack(bytes(16), 0, number % 5) + b"".join(encoded)
        head, _ = build_frame(kind, number, 1 + number // 3, at, 0, len(records), body, 0)
        frames.append(head + body)
        at += len(frames[-1])
    return frames


def with_version(frame: bytes, version: int) -> bytes:
    """The same frame in another version, its CRC made anew."""
    changed = frame[:9] + bytes([version]) + frame[10:]
    crc = crc32c(changed[16:], crc32c(changed[:12]))
    return changed[:12] + crc.to_bytes(4, "big") + changed[16:]


def plain_body(stored: bytes, sysflag: int) -> bytes | None:
    """None: it says that it is compressed, and can't be read."""
    try:
        return decompress(stored, sysflag)
    except BodyUnreadable:
        return None


def plain_rows(content: bytes) -> Iterator[Row]:
    """What the bytes of whole frames mean, by `docs/formats.md`, one field after the other.

    Raises:
        ValueError: the records don't add up.
    """
    at = 0
    for header in walk_frames(content):
        frame = content[at : at + header.total_size]
        at += header.total_size
        if header.kind != EntryKind.DATA or header.record_count == 0:
            continue
        # Version 1 has no incarnation.
        start, topic = (80 if frame[9] == 1 else 88), None
        incarnation = 0 if frame[9] == 1 else int.from_bytes(frame[80:88], "big")
        for _ in range(header.record_count):
            place = header.index, header.term, incarnation
            row, start = plain_record(frame, start, place, topic)
            topic = row["topic"]
            yield row
        if start != len(frame):
            raise ValueError("the records don't fill the entry")


def plain_record(
    frame: bytes, start: int, place: tuple[int, int, int], topic: str | None
) -> tuple[Row, int]:
    """One record and where the next begins; the topic is that of the entry's first record."""

    def number(at: int, size: int) -> int:
        if start + at + size > len(frame):
            raise ValueError("beyond the entry")
        return int.from_bytes(frame[start + at : start + at + size], "big")

    size, body_size = number(0, 4), number(84, 4)
    topic_size = number(88 + body_size, 1)
    properties_at = 88 + body_size + 1 + topic_size + 2
    properties_size = number(properties_at - 2, 2)
    if properties_at + properties_size != size or start + size > len(frame):
        raise ValueError("the lengths don't add up")
    if number(4, 4) != 0xDAA320A7:
        raise ValueError("no record")
    topic_at = start + 89 + body_size
    properties = frame[start + properties_at : start + size]
    row = {
        "topic": topic or frame[topic_at : topic_at + topic_size].decode("ascii", "replace"),
        "queue_id": number(12, 4) - (number(12, 1) >> 7 << 32),
        "queue_offset": number(20, 8) - (number(20, 1) >> 7 << 64),
        "physical_offset": number(28, 8) - (number(28, 1) >> 7 << 64),
        "index": place[0],
        "term": place[1],
        "incarnation": place[2],
        "born_time": number(40, 8) - (number(40, 1) >> 7 << 64),
        "store_time": number(56, 8) - (number(56, 1) >> 7 << 64),
        "keys": find_property(properties, b"KEYS"),
        "tags": find_property(properties, b"TAGS"),
        "properties": decode_properties(properties),
        "body": plain_body(frame[start + 88 : start + 88 + body_size], number(36, 4)),
    }
    return row, start + size


def decoded_rows(content: bytes, chunk_bytes: int, wanted: Wanted | None = None) -> list[Row]:
    """What the decoder makes of a segment with this content."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{BASE:020d}").write_bytes(content)
        part = LogRange(folder, BASE, BASE, BASE + len(content))
        for records in read_records(part, wanted or Wanted(), chunk_bytes):
            columns = [list(column) for column in records.columns.values()]
            rows += [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]
            assert len(columns[0]) == records.count
    return rows


def cuts_of(rows: list[bytes]) -> Cuts:
    """The rows in one buffer, with other bytes between them."""
    edges = np.cumsum([0] + [len(row) + 3 for row in rows])
    sizes = np.array([len(row) for row in rows], dtype=np.int64)
    return Cuts(
        b"".join(b"\x01K\x02" + row for row in rows), edges[:-1] + 3, edges[:-1] + 3 + sizes
    )


@settings(max_examples=examples(200), deadline=None)
@given(ENTRIES, st.integers(1, 600))
def test_chunks_decode_to_what_one_record_after_the_other_does(
    entries: Entries, chunk_bytes: int
) -> None:
    """Every column, whatever the sizes of records and of chunks."""
    content = b"".join(frames_of(entries))
    assert decoded_rows(content, chunk_bytes) == list(plain_rows(content))


@settings(max_examples=examples(100), deadline=None)
@given(ENTRIES, ENTRIES, st.integers(1, 600))
def test_entries_of_version_1_are_read_beside_newer_ones(
    older: Entries, newer: Entries, chunk_bytes: int
) -> None:
    """A log that an older release began: the preamble was shorter, and said no incarnation."""
    frames = frames_of([*older, *newer])
    at, content = BASE, b""
    for number, whole in enumerate(frames):
        (header,) = walk_frames(whole)
        body, is_old = whole[56:], number < len(older)
        if is_old and body:
            body = body[:24] + body[32:]
        head, _ = build_frame(
            header.kind, header.index, header.term, at, 0, header.record_count, body, 0
        )
        content += with_version(head + body, 1 if is_old else 2)
        at += len(head) + len(body)
    assert decoded_rows(content, chunk_bytes) == list(plain_rows(content))


@pytest.mark.parametrize(("kind", "version"), [(5, 2), (2, 4), (1, 3), (255, 1)])
def test_an_entry_of_a_later_release_ends_the_reading_by_name(kind: int, version: int) -> None:
    """There may be messages in it: data must not have holes that nobody sees."""
    head, _ = build_frame(kind, 1, 1, BASE, 0, 0, b"what it means is unknown", 0)
    content = with_version(head + b"what it means is unknown", version)
    with pytest.raises(EntryDamaged, match="a later release wrote it"):
        decoded_rows(content, 600)


@settings(max_examples=examples(150), deadline=None)
@given(ENTRIES, st.data())
def test_records_that_lie_behind_a_good_crc_are_refused(
    entries: Entries, data: st.DataObject
) -> None:
    """A byte of an entry is changed and its CRC made anew: both decoders read the same, or both
    refuse. No other error escapes."""
    frames = frames_of(entries)
    number = data.draw(st.integers(0, len(frames) - 1))
    (header,) = walk_frames(frames[number])
    body, count = bytearray(frames[number][56:]), header.record_count
    if len(body) > 32:
        at = data.draw(
            st.integers(32, len(body) - 1) | st.sampled_from([35, 32 + 4, 32 + 28, 32 + 87])
        )
        body[at] = data.draw(st.integers(0, 255))
        count += data.draw(st.sampled_from([0, 0, 0, 1, -1]))
    head, _ = build_frame(
        header.kind, header.index, header.term, header.physical_offset, 0, count, body, 0
    )
    frames[number] = head + bytes(body)
    content = b"".join(frames)
    try:
        expected: list[Row] | None = list(plain_rows(content))
    except ValueError:
        expected = None
    if expected is None:
        with pytest.raises(EntryDamaged):
            decoded_rows(content, 600)
    else:
        assert decoded_rows(content, 600) == expected


@pytest.mark.parametrize(
    ("count", "body"),
    [
        (1, bytes(32)),
        (1, bytes(32) + b"\x00\x00\x00\x5a" + bytes(86)),
        (5, bytes(32) + b"\x00\x00\x00\x2c" * 55),
    ],
    ids=["no record", "a record below the least size", "five of 44 bytes"],
)
def test_entry_without_room_for_its_records_is_refused(count: int, body: bytes) -> None:
    """Sizes that add up to the entry's don't make records of what is too small for one."""
    head, _ = build_frame(EntryKind.DATA, 1, 1, BASE, 0, count, body, 0)
    with pytest.raises(EntryDamaged):
        decoded_rows(head + body, 600)


@pytest.mark.parametrize("claimed", [(1 << 32) - 1, 1 << 31, 5, 3, 2])
def test_body_that_claims_to_end_behind_its_record_is_refused(claimed: int) -> None:
    """Of a record that isn't its entry's first: by a lot, and by so little that only the topic's
    or the properties' length has no room any more."""
    records = [(b"", b""), (b"", b"")]
    (frame,) = frames_of([("e", records)])
    (header,) = walk_frames(frame)
    body = bytearray(frame[56:])
    at = 32 + (len(body) - 32) // 2 + 84
    assert body[at : at + 4] == bytes(4)
    body[at : at + 4] = claimed.to_bytes(4, "big")
    head, _ = build_frame(
        header.kind, header.index, header.term, BASE, 0, len(records), bytes(body), 0
    )
    with pytest.raises(EntryDamaged, match="lengths"):
        decoded_rows(head + bytes(body), 600)


@settings(max_examples=examples(200), deadline=None)
@given(ENTRIES, st.integers(1, 600), st.data())
def test_a_flipped_bit_ends_the_reading_at_its_entry(
    entries: Entries, chunk_bytes: int, data: st.DataObject
) -> None:
    """What comes before is read or not; the place named is the damaged entry's."""
    frames = frames_of(entries)
    content = bytearray(b"".join(frames))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    start = 0
    for frame in frames:
        if start + len(frame) > at:
            break
        start += len(frame)
    with pytest.raises(EntryDamaged) as caught:
        decoded_rows(bytes(content), chunk_bytes)
    assert caught.value.offset == start


@pytest.mark.parametrize("chunk_bytes", [64, 300, 1 << 20])
def test_file_that_ends_early_is_damage(chunk_bytes: int) -> None:
    """At every byte within the last entry; the reading ends."""
    frames = frames_of([("orders", [(b"body", b"")] * 2), ("e", [(b"x" * 200, b"A\x01b\x02")])])
    content, start = b"".join(frames), len(frames[0])
    with tempfile.TemporaryDirectory() as folder:
        part = LogRange(folder, BASE, BASE, BASE + len(content))
        for size in range(start, len(content)):
            Path(part.path).write_bytes(content[:size])
            with pytest.raises(EntryDamaged) as caught:
                list(read_records(part, Wanted(), chunk_bytes))
            assert caught.value.offset == start


@pytest.mark.parametrize("chunk_bytes", [64, 300, 1 << 20])
@pytest.mark.parametrize("size", [8, 15, 16, 500])
def test_filler_ends_a_segment(chunk_bytes: int, size: int) -> None:
    """Nothing behind it is read, wherever a chunk ends; a filler may be its eight bytes only."""
    content = b"".join(frames_of([("orders", [(b"body", b"")] * 3)] * 2))
    whole = content + FILLER_HEADER.pack(size, FILLER_MAGIC) + b"\xff" * (size - 8)
    assert decoded_rows(whole, chunk_bytes) == list(plain_rows(content))


def test_intact_entry_of_another_place_is_no_part_of_the_log() -> None:
    """A file that was moved: its CRCs are good and its offsets aren't."""
    content = b"".join(frames_of([("orders", [(b"body", b"")])]))
    with tempfile.TemporaryDirectory() as folder:
        part = LogRange(folder, 0, 0, len(content))
        Path(part.path).write_bytes(content)
        with (
            pytest.raises(EntryDamaged, match="the entry of offset 0"),
            opened(part.path) as descriptor,
        ):
            list(read_chunks(descriptor, part))


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(PROPERTIES, max_size=6))
def test_properties_of_many_messages_are_split_as_one_by_one(rows: list[bytes]) -> None:
    """Names twice, names missing, bytes that are no text: each row as the record codec has it."""
    table = PropertyTable.of(cuts_of(rows))
    assert list(table) == [decode_properties(row) for row in rows]
    for name in (b"KEYS", b"TAGS", b"", b"absent"):
        found = list(table.values_of(name))
        assert found == [find_property(row, name) for row in rows]


@settings(max_examples=examples(100), deadline=None)
@given(ENTRIES)
def test_arrow_has_the_same_values(entries: Entries) -> None:
    """Every column but times, as a Python value; a map's last equal name wins."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    from dledger.reading.arrow import TYPES, to_arrow

    content = b"".join(frames_of(entries))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        part = LogRange(folder, BASE, BASE, BASE + len(content))
        Path(part.path).write_bytes(content)
        for records in read_records(part, Wanted()):
            (batch,) = to_arrow(records)
            batch.validate(full=True)
            assert {field.name: field.type for field in batch.schema} == TYPES
            rows += batch.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"])
        for name in ("born_time", "store_time"):
            row[name] = round(row[name].timestamp() * 1000)
    assert rows == list(plain_rows(content))


def test_damage_comes_back_from_other_processes_with_its_facts() -> None:
    """Engines pickle what a task raised: an error that can't be put together again would end the
    pool, and nobody would learn where the damage is."""
    damage = EntryDamaged("/data/n1/00000000000000000000", 512, "an entry", "zeros")
    again = pickle.loads(pickle.dumps(damage))
    assert isinstance(again, EntryDamaged)
    assert (again.file, again.offset, again.expected, again.found) == (
        damage.file, damage.offset, "an entry", "zeros"
    )  # fmt: skip
    assert str(again) == str(damage)
