"""Compressed bodies in the log as data: decompressed where they are shown, counted as stored."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.contents.export import ExportTask, export_range
from audit.contents.stats import LogSum, _count
from audit.delivery.judged import payload_of, value_of
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.reading.chunks import LogRange
from dledger.reading.decode import COLUMNS, Pulled, Wanted, decode_pulled, read_records
from dledger.reading.entry import EntryKind, build_frame
from dledger.records.compression import USUAL_LEVELS, Codec, compress
from dledger.records.errors import CodecMissing
from dledger.records.record import BATCH_PREAMBLE, RecordTemplate
from tests.codecs import HERE
from tests.scale import examples

HOST = ("10.0.0.1", 5000)
BASE = 1 << 20
GARBAGE = b"what no codec reads"
Row = tuple[bytes, int]  # the body as stored, SYSFLAG

plain = st.binary(max_size=60).map(lambda body: (body, 0, body))
packed = st.tuples(st.binary(max_size=60), st.integers(1, 50), st.sampled_from(HERE)).map(
    lambda drawn: (
        compress(drawn[0] * drawn[1], drawn[2], USUAL_LEVELS[drawn[2]]),
        drawn[2].sysflag,
        drawn[0] * drawn[1],
    )
)
broken = st.sampled_from([Codec.ZLIB.sysflag, 1 | 5 << 8]).map(lambda flag: (GARBAGE, flag, None))
ROWS = st.lists(st.one_of(plain, packed, broken), min_size=1, max_size=30)


def log_of(folder: str, rows: Sequence[Row], per_entry: int = 4) -> LogRange:
    """A segment with these records, `per_entry` an entry, in queue 0 of `t`."""
    content, template = b"", RecordTemplate("t", HOST)
    for number, first in enumerate(range(0, len(rows), per_entry), 1):
        batch = rows[first : first + per_entry]
        records = [template.encode(0, body, b"", 1_000, 0, flag) for body, flag in batch]
        body = BATCH_PREAMBLE.pack(bytes(16), first, 1) + b"".join(records)
        at = BASE + len(content)
        head, _ = build_frame(EntryKind.DATA, number, 1, at, 0, len(batch), body, 0)
        content += head + body
    part = LogRange(folder, BASE, BASE, BASE + len(content))
    Path(part.path).write_bytes(content)
    return part


def shown(part: LogRange, columns: tuple[str, ...] = COLUMNS) -> list[dict[str, Any]]:
    """The rows as Arrow has them."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    from dledger.reading.arrow import to_arrow

    rows: list[dict[str, Any]] = []
    for records in read_records(part, Wanted(columns)):
        for batch in to_arrow(records):
            batch.validate(full=True)
            assert batch.schema.names == list(columns)
            rows += batch.to_pylist()
    return rows


@settings(max_examples=examples(60), deadline=None)
@given(ROWS, st.sampled_from([COLUMNS, ("body",), ("index", "body", "queue_id")]))
def test_rows_show_what_was_sent(
    rows: list[tuple[bytes, int, bytes | None]], columns: tuple[str, ...]
) -> None:
    """Compressed or not, side by side; null is a body that can't be read, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        part = log_of(folder, [row[:2] for row in rows])
        assert [row["body"] for row in shown(part, columns)] == [body for _, _, body in rows]
        found = [
            body for records in read_records(part, Wanted()) for body in records.columns["body"]
        ]
        assert found == [body for _, _, body in rows]


def test_batches_are_cut_where_bodies_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some KiB of the log may become gigabytes: no batch holds much more than the bound, and every
    column is cut at the same rows."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    from dledger.reading import arrow

    largest = compress(bytes(MAX_MESSAGE_BYTES), Codec.ZLIB, 9)
    part = log_of(str(tmp_path), [(largest, Codec.ZLIB.sysflag), (b"small", 0)] * 20)
    monkeypatch.setattr(arrow, "PIECE_BYTES", 8 << 20)
    sizes, rows = [], 0
    for records in read_records(part, Wanted()):
        for batch in arrow.to_arrow(records):
            sizes.append(batch.nbytes)
            bodies = batch.column(COLUMNS.index("body")).to_pylist()
            assert batch.column(COLUMNS.index("index")).to_pylist() == [
                1 + (rows + at) // 4 for at in range(batch.num_rows)
            ]
            assert [len(body) for body in bodies] == [
                5 if (rows + at) % 2 else MAX_MESSAGE_BYTES for at in range(batch.num_rows)
            ]
            rows += batch.num_rows
    assert rows == 40
    assert max(sizes) < 13 << 20


def test_exported_rows_are_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Parquet, over the edges of batches too: every row once, in order."""
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow isn't installed")
    from dledger.reading import arrow

    body = b"a line that is stored compressed\n" * 50
    rows: list[Row] = [(compress(body, Codec.ZLIB, 6), Codec.ZLIB.sysflag), (b"plain", 0)] * 5
    part = log_of(str(tmp_path), [*rows, (GARBAGE, Codec.ZLIB.sysflag)])
    monkeypatch.setattr(arrow, "PIECE_BYTES", 2_000)
    (tmp_path / "out").mkdir()
    written = export_range(ExportTask(part, str(tmp_path / "out"), None, "host"))
    assert written.messages == 11
    (file,) = (tmp_path / "out").rglob("*.parquet")
    assert pq.read_table(file).column("body").to_pylist() == [body, b"plain"] * 5 + [None]


def test_files_are_written_where_bodies_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held of a range is bounded by what its bodies become, not by what is stored: some KiB
    may be gigabytes. No file is open meanwhile, as there may be thousands, and of a range that
    can't be read to its end none is left."""
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow isn't installed")
    from audit.contents import parquet
    from dledger.reading import arrow

    packed: Row = (compress(bytes(MAX_MESSAGE_BYTES), Codec.ZLIB, 9), Codec.ZLIB.sysflag)
    part = log_of(str(tmp_path), [packed, (b"small", 0)] * 10)
    monkeypatch.setattr(arrow, "PIECE_BYTES", MAX_MESSAGE_BYTES)
    monkeypatch.setattr(parquet, "GATHERED_BYTES", 2 * MAX_MESSAGE_BYTES)
    out, opened = tmp_path / "out", len(os.listdir("/proc/self/fd"))
    out.mkdir()
    with parquet.RangeFiles(out, "range.parquet") as made:
        for records in read_records(part, Wanted()):
            made.take(records)
        assert len(os.listdir("/proc/self/fd")) == opened
        assert len(list(out.rglob("_range.parquet.*.new"))) == 1
    assert not list(out.rglob("*.*"))
    assert export_range(ExportTask(part, str(out), None, "host")).messages == 20
    (file,) = out.rglob("*.parquet")
    found = pq.ParquetFile(file)
    groups = [found.metadata.row_group(at).num_rows for at in range(found.num_row_groups)]
    assert (sum(groups), max(groups)) == (20, 4)
    bodies = found.read(["body"]).column("body").to_pylist()
    assert [len(body) for body in bodies] == [MAX_MESSAGE_BYTES, 5] * 10


def test_statistics_count_what_is_stored(tmp_path: Path) -> None:
    """Nothing is decompressed for a sum."""
    stored = compress(b"x" * 10_000, Codec.ZLIB, 9)
    part = log_of(str(tmp_path), [(stored, Codec.ZLIB.sysflag), (GARBAGE, 1 | 7 << 8)])
    sums = LogSum()
    for records in read_records(part, Wanted()):
        _count(sums, records)
    (queue,) = sums.queues.values()
    assert queue.body_bytes == len(stored) + len(GARBAGE)


def test_answers_of_nodes_are_checked_as_stored_and_shown_as_sent() -> None:
    """What a Spark source pulls: the CRC is over the stored bytes."""
    stored = compress(b"sent", Codec.ZLIB, 6)
    record = RecordTemplate("t", HOST).encode(0, stored, b"", 1, 0, Codec.ZLIB.sysflag)
    found = decode_pulled(record, 1, Pulled("t", 1, 0, 0), ("body", "queue_id"))
    assert list(found.columns["body"]) == [b"sent"]


def test_missing_library_is_no_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing it mends that: a table of nulls would be believed."""
    part = log_of(str(tmp_path), [(b"x", Codec.ZSTD.sysflag)])
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(CodecMissing, match="pip install zstandard"):
        shown(part)


def test_body_that_cannot_be_read_is_no_value_that_was_sent() -> None:
    """A delivery audit calls it what it would call any other body that nobody has sent."""
    assert value_of(payload_of(None)) == "\ufffd"
    assert payload_of(b"v1") == b"v1"
