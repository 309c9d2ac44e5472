"""The format `dledger`: topics of a running broker group, read and written over the network.

    spark.read.format("dledger").option("bootstrap", "h1:7001,h2:7001").option("topics", "orders")
    frame.write.format("dledger").mode("append").option("bootstrap", ...).option("topic", "totals")

Reading is `dledger.spark.topics` and `dledger.spark.following`, writing `dledger.spark.sink`; this
turns options into what they take, and nothing else. Every option is in docs/spark.md. A group's
files stay readable beside it (`dledger.spark.source`), which needs no broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from dledger.reading.schema import COLUMNS
from dledger.spark import options as opt
from dledger.spark.brokers import ACCESS_OPTIONS, Access
from dledger.spark.catalog import schema_of, with_remembered
from dledger.spark.edges import EARLIEST, EDGE_OPTIONS, LATEST, edge_of
from dledger.spark.errors import BadOption
from dledger.spark.following import TopicsStream
from dledger.spark.rows import check_columns
from dledger.spark.sink import WRITE_OPTIONS, TopicsStreamWriter, TopicsWriter, Writing
from dledger.spark.topics import DEFAULT_RANGE, Reading, TopicsReader

# What a message over the network says of itself: entries, with index and term, stay inside.
NETWORK_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("index", "term"))
READ_OPTIONS: Final = (
    *("topics", "columns", "maxOffsetsPerPartition", "maxOffsetsPerTrigger", "failOnDataLoss"),
    *EDGE_OPTIONS,
)
KNOWN: Final = (*ACCESS_OPTIONS, *READ_OPTIONS, *WRITE_OPTIONS)


class TopicsSource(DataSource):
    """Topics of a broker group. Options for both, reading and writing, may be in one list: each
    passes over the other's."""

    @classmethod
    def name(cls) -> str:
        return "dledger"

    def schema(self) -> StructType:
        opt.check_names(self.options, KNOWN)
        return schema_of(opt.columns(self.options, NETWORK_COLUMNS), self.options)

    def reader(self, schema: Any) -> TopicsReader:
        options = with_remembered(self.options, schema)
        reading = _reading(options)
        starting = edge_of(options, "starting", EARLIEST, reading.topics)
        ending = edge_of(options, "ending", LATEST, reading.topics)
        if "maxOffsetsPerTrigger" in options:
            raise BadOption("maxOffsetsPerTrigger is a stream's; a batch has no trigger")
        return TopicsReader(reading, starting, ending)

    def streamReader(self, schema: Any) -> TopicsStream:
        options = with_remembered(self.options, schema)
        reading = _reading(options)
        for name in EDGE_OPTIONS:
            if name.startswith("ending") and options.get(name):
                raise BadOption(f"{name} is a batch's; a stream has no end")
        starting = edge_of(options, "starting", LATEST, reading.topics)
        most = 0
        if "maxOffsetsPerTrigger" in options:
            most = opt.count(options, "maxOffsetsPerTrigger", 0)
        return TopicsStream(reading, starting, most)

    def writer(self, schema: Any, overwrite: bool) -> TopicsWriter:  # noqa: FBT001 - Spark's
        return TopicsWriter(self._writing(schema, is_anew=overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> TopicsStreamWriter:  # noqa: FBT001 - Spark's
        writing = self._writing(schema, is_anew=overwrite)
        if "batchId" in self.options:
            raise BadOption("batchId: a stream numbers its batches itself")
        return TopicsStreamWriter(writing)

    def _writing(self, schema: Any, *, is_anew: bool) -> Writing:
        opt.check_names(self.options, KNOWN)
        if is_anew:
            raise BadOption("a topic is never overwritten: mode append, or output mode append")
        writing = Writing.of(self.options)
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_columns(types, writing.topic)
        return writing


def _reading(options: Mapping[str, str]) -> Reading:
    """What the options say is to be read.

    Raises:
        BadOption: they make no sense.
    """
    opt.check_names(options, KNOWN)
    topics = opt.names(options, "topics")
    if not topics:
        raise BadOption("topics: which ones are to be read isn't said")
    return Reading(
        Access.of(options),
        topics,
        opt.columns(options, NETWORK_COLUMNS),
        opt.count(options, "maxOffsetsPerPartition", DEFAULT_RANGE),
        opt.is_true(options, "failOnDataLoss"),
    )
