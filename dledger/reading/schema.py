"""The columns that messages have as data: their names and kinds, in order.

One list for whoever shows the log as a table: the decoder, Arrow, Spark, exports. Numbers take
their width from the field they are read from (`dledger.records.layout`), so that a column can't
be narrower than its bytes.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from dledger.records.layout import BATCH, ENTRY, RECORD, Field


class Kind(Enum):
    """What a column's values are."""

    INT32 = "int32"
    INT64 = "int64"
    TIME = "time"  # ms since the epoch in the log
    TEXT = "text"
    PROPERTIES = "properties"  # name to value
    BYTES = "bytes"


def _kind_of(field: Field) -> Kind:
    if field.name.endswith("_ms"):
        return Kind.TIME
    return {4: Kind.INT32, 8: Kind.INT64}[field.size]


KINDS: Final[dict[str, Kind]] = {
    "topic": Kind.TEXT,
    "queue_id": _kind_of(RECORD["queue_id"]),
    "queue_offset": _kind_of(RECORD["queue_offset"]),
    "physical_offset": _kind_of(RECORD["physical_offset"]),
    "index": _kind_of(ENTRY["index"]),
    "term": _kind_of(ENTRY["term"]),
    "incarnation": _kind_of(BATCH["incarnation"]),
    "born_time": _kind_of(RECORD["born_time_ms"]),
    "store_time": _kind_of(RECORD["store_time_ms"]),
    "keys": Kind.TEXT,
    "tags": Kind.TEXT,
    "properties": Kind.PROPERTIES,
    "body": Kind.BYTES,
}
COLUMNS: Final = tuple(KINDS)
