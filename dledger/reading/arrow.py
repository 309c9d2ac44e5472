"""Columns of messages as Arrow: types, and batches of them. No value becomes a Python object on
the way, but for bodies that have to be decompressed. A property that stands twice in a message
stands twice in its map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from dledger.reading.columns import (
    Bodies,
    Column,
    Cuts,
    Integers,
    PropertyTable,
    PropertyValues,
    Words,
)
from dledger.reading.decode import Records
from dledger.reading.schema import KINDS, Kind

_TIMES_MS: Final = (-62_135_596_800_000, 253_402_300_799_999)  # the years 1 to 9999
_TIME: Final = pa.timestamp("us", tz="UTC")  # The only unit that Spark takes.
_KINDS: Final = {  # In Arrow, and in Spark's SQL.
    Kind.INT32: (pa.int32(), "int"),
    Kind.INT64: (pa.int64(), "bigint"),
    Kind.TIME: (_TIME, "timestamp"),
    Kind.TEXT: (pa.string(), "string"),
    Kind.PROPERTIES: (pa.map_(pa.string(), pa.string()), "map<string,string>"),
    Kind.BYTES: (pa.binary(), "binary"),
}
TYPES: Final = {name: _KINDS[kind][0] for name, kind in KINDS.items()}
SQL_TYPES: Final = {name: _KINDS[kind][1] for name, kind in KINDS.items()}


# Of decompressed bodies in one batch: nothing else bounds what a chunk of the log becomes.
PIECE_BYTES: Final = 32 << 20


def to_arrow(records: Records) -> Iterator[pa.RecordBatch]:
    """The rows in batches, their columns in the order they were wanted in: one batch, or several
    if bodies are compressed.

    Raises:
        CodecMissing: the library that decompresses a body isn't installed.
    """
    names = list(records.columns)
    bodies = records.columns.get("body")
    arrays = {
        name: _array(name, column)
        for name, column in records.columns.items()
        if not isinstance(column, Bodies)
    }
    if not isinstance(bodies, Bodies):
        yield pa.record_batch([arrays[name] for name in names], names=names)
        return
    at = 0
    for piece in bodies.pieces(PIECE_BYTES):
        cut = {name: array.slice(at, len(piece)) for name, array in arrays.items()}
        cut["body"] = pa.array(piece, pa.binary())
        yield pa.record_batch([cut[name] for name in names], names=names)
        at += len(piece)


def _array(name: str, column: Column) -> pa.Array:
    match column:
        case Words():
            return pa.array(column.words, pa.string()).take(pa.array(column.codes))
        case Cuts():
            return _cut(pa.binary(), column.buffer, column.starts, column.ends)
        case PropertyTable():
            names, values = _names(column), _values(column)
            return pa.MapArray.from_arrays(pa.array(column.first, pa.int32()), names, values)
        case PropertyValues():
            places = pa.array(column.pairs, mask=column.pairs < 0)
            return _values(column.table).take(places)
        case Bodies():
            raise AssertionError("compressed bodies become several batches")
        case _:
            return _integers(name, column)


def _names(table: PropertyTable) -> pa.Array:
    return _cut(pa.string(), table.text, table.names, table.equals)


def _values(table: PropertyTable) -> pa.Array:
    return _cut(pa.string(), table.text, table.equals + 1, table.ends)


def _cut(kind: pa.DataType, buffer: bytes, starts: Integers, ends: Integers) -> pa.Array:
    """The strings `buffer[starts[i]:ends[i]]`, gathered by Arrow.

    An Arrow string begins where the one before ends, so the buffer is seen as an array in which
    each wanted string is followed by the gap behind it; then every second one is taken.
    """
    if not len(starts):
        return pa.array([], kind)
    edges = np.empty(2 * len(starts), dtype=np.int32)
    edges[0::2] = starts
    edges[1::2] = ends
    buffers = [None, pa.py_buffer(edges), pa.py_buffer(buffer)]
    both = pa.Array.from_buffers(kind, len(edges) - 1, buffers)
    return both.take(pa.array(np.arange(0, len(edges) - 1, 2)))


def _integers(name: str, values: Integers) -> pa.Array:
    if KINDS[name] is Kind.TIME:
        # What a producer says is any number of 64 bits: in microseconds it would be another time,
        # or one that readers in Python, for one, have no value for and end at.
        told = np.clip(values, *_TIMES_MS)
        return pa.array(told * 1000, pa.int64()).cast(_TIME)
    return pa.array(values, pa.int64()).cast(TYPES[name])
