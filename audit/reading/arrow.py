"""Columns of messages as Arrow: types, and batches of them. No value becomes a Python object on
the way. A property that stands twice in a message stands twice in its map."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from audit.reading.columns import Column, Cuts, Integers, PropertyTable, PropertyValues, Words
from audit.reading.decode import Records

_TIME: Final = pa.timestamp("us", tz="UTC")  # The only unit that Spark takes.
TYPES: Final = {
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "physical_offset": pa.int64(),
    "index": pa.int64(),
    "term": pa.int64(),
    "born_time": _TIME,
    "store_time": _TIME,
    "keys": pa.string(),
    "tags": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "body": pa.binary(),
}
SQL_TYPES: Final = {
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "physical_offset": "bigint",
    "index": "bigint",
    "term": "bigint",
    "born_time": "timestamp",
    "store_time": "timestamp",
    "keys": "string",
    "tags": "string",
    "properties": "map<string,string>",
    "body": "binary",
}


def to_arrow(records: Records) -> pa.RecordBatch:
    """The batch, its columns in the order they were wanted in."""
    arrays = [_array(name, column) for name, column in records.columns.items()]
    return pa.record_batch(arrays, names=list(records.columns))


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
    if name in ("born_time", "store_time"):
        return pa.array(values * 1000, pa.int64()).cast(_TIME)
    if name == "queue_id":
        return pa.array(values.astype(np.int32))
    return pa.array(values)
