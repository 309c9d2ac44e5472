"""What a table of Spark's catalog was made with, kept where Spark gives it back.

`create table … using dledger options (…)` asks a Python source for its columns once, with the
options, and later for its rows, without them: Spark 4.3 keeps no options of such a table. What it
keeps is the columns with their metadata. So the first column carries the options as JSON, and
options that are given come before those that are remembered. They travel into whatever keeps the
column's metadata, Parquet files too: addresses and paths, and no secret.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dledger.reading.arrow import SQL_TYPES

METADATA: Final = "dledger.options"
_TYPES: Final[dict[str, DataType]] = {
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "string": StringType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "binary": BinaryType(),
}


def schema_of(columns: Iterable[str], options: Mapping[str, str]) -> StructType:
    """These columns; the first one remembers the options."""
    kept = {METADATA: json.dumps(dict(sorted(options.items())))}
    return StructType(
        [
            StructField(name, _TYPES[SQL_TYPES[name]], nullable=True, metadata={} if at else kept)
            for at, name in enumerate(columns)
        ]
    )


def with_remembered(options: Mapping[str, str], schema: Any) -> Mapping[str, str]:
    """The options, and of those that are missing what the schema remembers."""
    found: MutableMapping[str, str] = CaseInsensitiveDict()
    for field in schema.fields if schema is not None else ():
        found.update(json.loads(field.metadata.get(METADATA, "{}")))
    found.update(options)
    return found
