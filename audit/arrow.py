"""Columns of messages as Arrow: types, and batches of them."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from audit.decode import Records

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
    """The batch; a column of maps is made of its pairs."""
    arrays = []
    for name, values in records.columns.items():
        if name == "properties":
            pairs = [list(each.items()) for each in values]  # type: ignore[union-attr]
            arrays.append(pa.array(pairs, TYPES[name]))
        else:
            arrays.append(_array(name, values))
    return pa.record_batch(arrays, names=list(records.columns))


def _array(name: str, values: object) -> pa.Array:
    if name in ("born_time", "store_time"):
        return pa.array(np.asarray(values, dtype=np.int64) * 1000, pa.int64()).cast(_TIME)
    if name == "queue_id":
        return pa.array(values, pa.int64()).cast(pa.int32())
    return pa.array(values, TYPES[name])
