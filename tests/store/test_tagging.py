"""Tags codes, all at once: what each record alone would have."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dledger.records.errors import InvalidRecord
from dledger.records.layout import RECORD
from dledger.records.properties import find_property, tags_code
from dledger.records.record import RecordTemplate
from store.tagging import (
    FEW_RECORDS,
    LONG_TAG,
    code_of_record,
    codes_of_records,
    codes_of_tags,
    has_properties,
)

PIECES = st.sampled_from(
    [
        b"TAGS\x01",
        b"TAGS",
        b"\x01",
        b"\x02",
        b"KEYS\x01k",
        b"a",
        b"blue",
        b"\xe2\x82",
        "ä€😀".encode(),
    ]
)


def frame_of(parts: list[tuple[bytes, bytes]]) -> tuple[bytes, list[int]]:
    """Records of those bodies and properties behind something else, and where each begins."""
    template = RecordTemplate("t", ("127.0.0.1", 1))
    frame, starts = b"TAGS\x01head\x02", []
    for body, properties in parts:
        starts.append(len(frame))
        frame += template.encode(0, body, properties, 1)
    return frame, starts


@given(
    st.lists(
        st.tuples(*[st.lists(PIECES, max_size=6).map(b"".join) for _ in range(2)]),
        min_size=1,
        max_size=8,
    )
)
@example([(b"", b""), (b"", b"TA"), (b"GS\x01", b"")])
@example([(b"", b"x\x02TAGS\x01one\x02TAGS\x01two\x02"), (b"TAGS\x01", b"TAGS\x01")])
def test_codes_are_those_of_each_record_alone(parts: list[tuple[bytes, bytes]]) -> None:
    """Wherever something that looks like a tag stands, in bodies, names, values or cut in two."""
    frame, starts = frame_of(parts)
    expected = [tags_code(find_property(properties, b"TAGS") or "") for _, properties in parts]
    for few in (0, FEW_RECORDS):
        with patch("store.tagging.FEW_RECORDS", few):
            assert codes_of_records(frame, np.array(starts)).tolist() == expected
    ends = [*starts[1:], len(frame)]
    alone = [code_of_record(frame, *each) for each in zip(starts, ends, strict=True)]
    assert alone == expected
    assert has_properties(frame, np.array(starts)) is any(properties for _, properties in parts)


@given(st.lists(st.binary(max_size=12).map(lambda tag: tag.replace(b"\x02", b"")), min_size=1))
@example([b"", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"x" * 40_000, "ä".encode() * LONG_TAG, b""])
def test_hashes_of_many_tags_are_those_of_each(tags: list[bytes]) -> None:
    """Java's, whatever bytes they are and however long."""
    expected = [tags_code(each.decode(errors="replace")) for each in tags]
    assert codes_of_tags(tags).tolist() == expected


@pytest.mark.parametrize("tag", ["b" * (LONG_TAG + 1), "€" * 10_000])
def test_long_tag_of_one_record_has_javas_hash(tag: str) -> None:
    frame, starts = frame_of([(b"", b"TAGS\x01" + tag.encode() + b"\x02")])
    assert code_of_record(frame, starts[0], len(frame)) == tags_code(tag)


@pytest.mark.parametrize("size", [9, 1 << 31, (1 << 32) - 1])
def test_lengths_that_lead_out_of_a_record_are_refused(size: int) -> None:
    """In one record or in many, by the place of the first of them."""
    frame, starts = frame_of([(b"", b"TAGS\x01a")] * 3)
    at = starts[1] + RECORD.at("body_length")
    broken = frame[:at] + size.to_bytes(4, "big") + frame[at + 4 :]
    with pytest.raises(InvalidRecord) as many:
        codes_of_records(broken, np.array(starts))
    with pytest.raises(InvalidRecord) as one:
        code_of_record(broken, starts[1], starts[2])
    assert many.value.position == one.value.position == starts[1]
    assert has_properties(broken, np.array(starts))
