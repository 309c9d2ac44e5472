"""Compound entries: golden bytes, flips and cuts, bounds, and batches that are read like any."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.reading.compound import (
    MAX_PARTS,
    MAX_UNITS,
    RECORDS_AT,
    UnitBody,
    batches_in,
    build_body,
    commands_in,
    data_in,
    exceeds,
    unit_spans,
)
from dledger.reading.entry import (
    COMPOUND_VERSION,
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    build_frame,
    parse_header,
    preamble_of,
    verify_frame,
)
from dledger.records.errors import InvalidFrame
from dledger.records.record import BATCH_PREAMBLE, RecordTemplate, decode_records, record_starts
from store.dispatch import units_for_entry
from store.stamping import stamp_records
from store.voiding import is_void, leading_voids, void_unit, voided
from tests.scale import examples

NOBODY = bytes(16)
AT = 0x4000


def records(queue_id: int, *bodies: bytes, topic: str = "t") -> bytes:
    template = RecordTemplate(topic, ("127.0.0.1", 5555))
    return b"".join(template.encode(queue_id, body, b"", 1_000) for body in bodies)


def batch(queue_id: int, *bodies: bytes, incarnation: int = 4) -> tuple[bytes, int]:
    """A batch as a unit holds it, and how many records are in it."""
    preamble = BATCH_PREAMBLE.pack(NOBODY, 0, incarnation)
    return preamble + records(queue_id, *bodies), len(bodies)


def entry(units: list[UnitBody], bases: tuple[int, ...] = ()) -> tuple[EntryHeader, bytes]:
    """The frame of an entry with these units at `AT`; its batches begin at queue offsets `bases`,
    0 each by default."""
    body, firsts = build_body(units)
    counts = [count for unit in units for _, count in unit.batches]
    for first, count, base in zip(firsts, counts, bases or [0] * len(counts), strict=True):
        starts = [each - first for each in record_starts(bytes(body), first, count)]
        stamp_records(
            body,
            starts,
            at=first,
            base_queue_offset=base,
            base_physical_offset=AT + HEADER_SIZE + first,
            store_time_ms=77,
            store_host=(bytes((10, 0, 0, 9)), 9000),
        )
    count = sum(counts)
    head, _ = build_frame(EntryKind.DATA, 9, 2, AT, 77, count, body, 0, COMPOUND_VERSION)
    frame = head + body
    return parse_header(frame, 0), bytes(frame)


def test_a_compound_entry_has_the_documented_bytes() -> None:
    """Golden: a unit of one batch and a command, and a unit of a command alone."""
    body, firsts = build_body(
        [UnitBody([(b"B" * 32 + b"RECS", 1)], [b"cmd"]), UnitBody([], [b"c2"])]
    )
    assert body.hex() == (
        "0002"  # units
        "00000039" "0001" "0001"  # 57 bytes, a batch, a command
        "0000002a" "0001" + "42" * 32 + "52454353"
        "00000007" "636d64"
        "0000000e" "0000" "0001"
        "00000006" "6332"
    )  # fmt: skip
    assert firsts == [2 + 8 + RECORDS_AT] == [48]
    assert body[48:52] == b"RECS"


def test_the_header_says_that_it_is_data_of_version_3() -> None:
    """A kind that no release before knows would keep the entry from its members for ever."""
    header, frame = entry([UnitBody([batch(0, b"a")], [])])
    assert (header.kind, header.version, header.record_count) == (EntryKind.DATA, 3, 1)
    assert header.is_known
    assert header.is_compound
    assert not header.is_batch
    assert verify_frame(frame, 0, 0) == header


def test_each_batch_is_read_as_a_data_entry() -> None:
    """Its records lie where they lie, and so says each of them."""
    units = [
        UnitBody([batch(0, b"a", b"b"), batch(1, b"c")], [b"first"]),
        UnitBody([], [b"second", b"third"]),
        UnitBody([batch(0, b"d", incarnation=5)], []),
    ]
    header, frame = entry(units, (7, 3, 9))
    found = list(batches_in(header, frame))
    assert [each.unit for each in found] == [0, 0, 2]
    derived = [units_for_entry(each.header, each.frame) for each in found]
    assert [each[:3] for each in derived] == [("t", 0, 7), ("t", 1, 3), ("t", 0, 9)]
    assert [preamble_of(*each[1:]).incarnation for each in found] == [4, 4, 5]
    for each, (_, _, _, derived_units) in zip(found, derived, strict=True):
        physical = int.from_bytes(derived_units[:8], "big")
        (record, *_) = decode_records(each.frame[each.header.first_record_at :])
        assert record.physical_offset == physical
        assert frame[physical - AT :].startswith(each.frame[each.header.first_record_at :][:4])
    assert list(data_in(header, frame)) == [each[1:] for each in found]
    assert list(commands_in(header, frame)) == [b"first", b"second", b"third"]


UNITS = st.lists(
    st.builds(
        UnitBody,
        st.lists(
            st.builds(
                lambda queue, bodies: batch(queue, *bodies),
                st.integers(0, 3),
                st.lists(st.binary(max_size=20), min_size=1, max_size=3),
            ),
            max_size=3,
        ),
        st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


@given(UNITS)
def test_what_was_built_is_read(units: list[UnitBody]) -> None:
    """Round trip; and the sizes are what `exceeds` judges by."""
    header, frame = entry(units)
    spans = unit_spans(header, frame)
    assert [list(each.commands) for each in spans] == [list(each.commands) for each in units]
    found = [[frame[b.first - 32 : b.end] for b in each.batches] for each in spans]
    counts = [[b.record_count for b in each.batches] for each in spans]
    assert counts == [[count for _, count in each.batches] for each in units]
    lengths = [[len(b) for b in each] for each in found]
    assert lengths == [[len(body) for body, _ in each.batches] for each in units]
    assert header.total_size == HEADER_SIZE + 2 + sum(each.size for each in units)
    assert exceeds(units) is None


@given(UNITS, st.data())
@settings(max_examples=examples(60))
def test_every_flipped_bit_and_every_cut_is_refused(
    units: list[UnitBody], data: st.DataObject
) -> None:
    """By the frame's checksum; the sizes alone refuse every cut."""
    header, frame = entry(units)
    at = data.draw(st.integers(0, len(frame) - 1))
    spoiled = bytearray(frame)
    spoiled[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(InvalidFrame):
        verify_frame(spoiled, 0, 0)
    for end in range(HEADER_SIZE, len(frame)):
        with pytest.raises(InvalidFrame):
            unit_spans(header._replace(total_size=end), frame[:end])


@given(UNITS, st.data())
def test_a_forged_body_is_refused_or_tiles_its_frame(
    units: list[UnitBody], data: st.DataObject
) -> None:
    """Whoever forges a checksum as well gives bytes that are units, or none: no part reaches out of
    another."""
    header, frame = entry(units)
    forged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        forged[data.draw(st.integers(HEADER_SIZE, len(frame) - 1))] = data.draw(st.integers(0, 255))
    forged[12:16] = crc32c(forged[:12] + forged[16:]).to_bytes(4, "big")
    verify_frame(forged, 0, None)
    try:
        spans = unit_spans(header, bytes(forged))
    except InvalidFrame:
        return
    size = 2
    for unit in spans:
        size += 8 + sum(4 + len(command) for command in unit.commands)
        size += sum(RECORDS_AT + each.end - each.first for each in unit.batches)
    assert HEADER_SIZE + size == len(frame)
    assert sum(b.record_count for unit in spans for b in unit.batches) == header.record_count


def _unit(size: int, batches: int, commands: int) -> bytes:
    return size.to_bytes(4, "big") + batches.to_bytes(2, "big") + commands.to_bytes(2, "big")


ONE = _unit(13, 0, 1) + (5).to_bytes(4, "big") + b"c"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"\0\0", "count of units"),
        ((MAX_UNITS + 1).to_bytes(2, "big") + ONE * (MAX_UNITS + 1), "count of units"),
        (b"\0\1" + _unit(8, 0, 0), "batches and commands"),
        (b"\0\1" + _unit(333, 0, 65) + ONE[8:] * 65, "batches and commands"),
        (b"\0\1" + ONE + b"\0", "end of the parts"),
        (b"\0\2" + ONE, "remaining size"),
        (b"\0\1" + _unit(14, 0, 1) + (5).to_bytes(4, "big") + b"c", "size of a part"),
        (b"\0\1" + _unit(14, 0, 1) + (5).to_bytes(4, "big") + b"cc", "end of the parts"),
        (b"\0\1" + _unit(12, 0, 1) + (4).to_bytes(4, "big"), "size of a part"),
        (b"\0\1" + _unit(7, 0, 1) + b"c" * 8, "size of a part"),
        (b"\0\1" + _unit(14, 1, 0) + (6).to_bytes(4, "big") + b"\0\1", "size of a part"),
    ],
)
def test_bounds_and_sizes_are_looked_at_on_reading(body: bytes, field: str) -> None:
    head, _ = build_frame(EntryKind.DATA, 9, 2, AT, 77, 0, body, 0, COMPOUND_VERSION)
    frame = head + body
    with pytest.raises(InvalidFrame, match=field):
        unit_spans(parse_header(frame, 0), frame)


def test_a_batch_without_records_and_another_count_are_refused() -> None:
    header, frame = entry([UnitBody([batch(0, b"a", b"b")], [])])
    at = HEADER_SIZE + 2 + 8 + 4
    for count, field in ((0, "count of records"), (1, "record count")):
        forged = frame[:at] + count.to_bytes(2, "big") + frame[at + 2 :]
        with pytest.raises(InvalidFrame, match=field):
            unit_spans(header, forged)


def test_what_is_written_keeps_to_the_bounds() -> None:
    """The same bounds, before anything is proposed."""
    one = UnitBody([], [b"c"])
    assert exceeds([one] * MAX_UNITS) is None
    assert exceeds([one] * (MAX_UNITS + 1))
    assert exceeds([])
    assert exceeds([UnitBody([], [])])
    assert exceeds([UnitBody([], [b"c"] * (MAX_PARTS + 1))])
    assert exceeds([UnitBody([], [bytes(6 << 20)])])
    assert exceeds([UnitBody([(b"", 40_000)], []), UnitBody([(b"", 40_000)], [])])


# --- void units -------------------------------------------------------------------------------


def test_a_void_unit_has_the_documented_bytes() -> None:
    """Golden."""
    assert void_unit(7, 0x1234).hex() == "0000000000001234000000008c03db0bc5045525"


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 159))
def test_no_flipped_bit_makes_or_hides_a_void_unit(offset: int, physical: int, bit: int) -> None:
    """Nor does its neighbour's."""
    unit = void_unit(offset, physical)
    assert is_void(unit, offset)
    assert not is_void(unit, offset + 1)
    flipped = int.from_bytes(unit, "big") ^ 1 << bit
    assert not is_void(flipped.to_bytes(20, "big"), offset)
    assert not is_void(bytes(20), offset)


def test_void_units_are_those_of_the_same_records() -> None:
    header, frame = entry([UnitBody([batch(0, b"a", b"b", b"c")], [])], (5,))
    (found,) = batches_in(header, frame)
    _, _, base, units = units_for_entry(found.header, found.frame)
    void = voided(units, base)
    assert [void[at : at + 8] for at in (0, 20, 40)] == [units[at : at + 8] for at in (0, 20, 40)]
    assert leading_voids(void + units, 5) == 3
    assert leading_voids(units + void, 5) == 0
    assert leading_voids(b"", 5) == 0
