"""docs/formats.md and the layouts (`dledger.records.layout`, `dledger.records.state_layout`,
`broker.state.layout`) are one description: what either says, both say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from broker.state.layout import STATE_LAYOUTS
from dledger.core.types import RaftOptions
from dledger.reading.dtypes import dtype_of
from dledger.records.layout import (
    CHECKPOINT,
    ENTRY,
    FIRST_RECORD_AT,
    LAYOUTS,
    RECORD,
    UNIT,
    UNITS_PER_FILE,
    Field,
    Layout,
)
from store.stamping import STAMPED_OFFSETS, STAMPED_STORED

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
SHOWN = (*LAYOUTS, *STATE_LAYOUTS)
Row = tuple[str, ...]


def tables(page: str) -> dict[str, list[Row]]:
    """Heading -> the rows of the byte table below it, its head left out."""
    found: dict[str, list[Row]] = {}
    heading = ""
    for line in page.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").strip()
        elif line.startswith("|"):
            row = tuple(cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(heading, []).append(row)
    return {heading: rows[2:] for heading, rows in found.items() if rows[0][0].startswith("byte")}


def differences(page: str) -> list[str]:
    """Where the page's tables and the layouts aren't the same, in words."""
    shown = {heading: [row[:3] for row in rows] for heading, rows in tables(page).items()}
    stated = {layout.title: [field.row for field in layout] for layout in SHOWN}
    return [
        f"{title}: {row} is in one of the two only"
        for title in sorted(shown.keys() | stated.keys())
        for row in sorted(set(shown.get(title, [])) ^ set(stated.get(title, [])))
    ]


def test_the_page_shows_the_layouts_byte_for_byte() -> None:
    """Every table of the page is a layout's, every layout has its table, row by row."""
    assert differences(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("layout", SHOWN, ids=lambda layout: layout.title)
def test_a_wrong_offset_on_the_page_is_noticed(layout: Layout) -> None:
    """The comparison can fail: any row with another offset, size or meaning makes it."""
    page = PAGE.read_text(encoding="utf-8")
    for place, size, meaning in (field.row for field in layout):
        right = f"| {place} | {size} | {meaning} |"
        assert right in page
        for wrong in (
            f"| 1{place} | {size} | {meaning} |",
            f"| {place} | 1{size} | {meaning} |",
            f"| {place} | {size} | {meaning}, or so |",
        ):
            assert differences(page.replace(right, wrong))


@pytest.mark.parametrize(
    ("size", "second"), [(8, 3), (8, 5), (7, 4), (9, 4)], ids=["overlap", "gap", "less", "more"]
)
def test_a_layout_without_gaps_and_overlaps_only(size: int, second: int) -> None:
    """A slip in an offset, a code or a size is an error when the program starts."""
    with pytest.raises(AssertionError, match="slip"):
        Layout("slip", size, (Field(0, "I", "first", ""), Field(second, "I", "second", "")))


def test_the_page_names_the_fields_that_the_leader_stamps() -> None:
    """*Set by* is true: the leader's rows are those that stamping writes, no other."""
    rows = tables(PAGE.read_text(encoding="utf-8"))["Record"]
    stamped = [RECORD[name].row for name in (*STAMPED_OFFSETS, *STAMPED_STORED)]
    assert [row[:3] for row in rows if row[3] == "leader"] == stamped


def test_sizes_that_the_page_and_the_core_state_in_words() -> None:
    """Numbers in sentences: header, first record, units a file, a no-op's frame, the sector."""
    page = PAGE.read_text(encoding="utf-8")
    assert f"Header of {ENTRY.size} bytes" in page
    assert f"The first record lies at P + {FIRST_RECORD_AT}." in page
    assert f"{UNITS_PER_FILE:,} units of {UNIT.size} bytes" in page
    assert f"{UNITS_PER_FILE * UNIT.size:,} bytes a file" in page
    assert f"{RECORD.at('properties')} bytes besides topic, body and properties" in page
    assert RaftOptions().noop_size == ENTRY.size
    assert CHECKPOINT.end("consume_queue_index") <= 512


@pytest.mark.parametrize("layout", SHOWN, ids=lambda layout: layout.title)
def test_numpy_reads_what_struct_writes(layout: Layout) -> None:
    """A dtype is derived from the same table: each fixed field has the same bytes in both."""
    if not layout.fixed:
        return
    values = [
        number.to_bytes(field.size, "big") if field.code.endswith("s") else number
        for number, field in enumerate(layout.fixed, 1)
    ]
    packed = layout.struct().pack(*values)
    item = np.frombuffer(packed, dtype_of(layout))[0]
    for field, value in zip(layout.fixed, values, strict=True):
        found = item[field.name]
        assert (bytes(found) if isinstance(value, bytes) else int(found)) == value
