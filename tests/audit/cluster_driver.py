"""Tables and streams on a cluster, in a process of its own as a user's program is.

    python -m tests.audit.cluster_driver MASTER LOG BOOTSTRAP SOURCE TARGET FOLDER

Exports a replica's log as Parquet, follows it as a stream, reads a topic over the network and
streams it into another one. Everything but the plans happens on executors. Says as a line of JSON
what it saw.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from dledger.spark import register, start_session
from tests.spark.stream_driver import finished

KEY = ("topic", "incarnation", "queue_id", "queue_offset")


def export(spark: SparkSession, log: str, folder: str) -> None:
    """Every message of the log, as Parquet by topic."""
    table = spark.read.format("commitlog").load(log)
    table.write.partitionBy("topic").parquet(f"{folder}/exported")


def stream(spark: SparkSession, log: str, folder: str) -> None:
    """The same as a stream, in many batches."""

    def begin() -> Any:
        return (
            spark.readStream.format("commitlog")
            .options(columns="topic,incarnation,queue_id,queue_offset,body", bytesPerBatch="20000")
            .load(log)
            .writeStream.format("parquet")
            .option("path", f"{folder}/streamed")
            .option("checkpointLocation", f"{folder}/streamed-checkpoint")
            .trigger(availableNow=True)
            .start()
        )

    finished(begin)


def transfer(spark: SparkSession, options: dict[str, str], ends: tuple[str, str, str]) -> None:
    """From topic to topic, a row's queue kept."""
    source, target, folder = ends

    def begin() -> Any:
        return (
            spark.readStream.format("dledger")
            .options(**options, topics=source, startingOffsets="earliest")
            .options(columns="queue_id,keys,body", maxOffsetsPerTrigger="40")
            .load()
            .writeStream.format("dledger")
            .options(**options, topic=target)
            .option("checkpointLocation", f"{folder}/transfer-checkpoint")
            .trigger(availableNow=True)
            .start()
        )

    finished(begin)


def main(master: str, log: str, bootstrap: str, source: str, target: str, folder: str) -> None:
    """All of it, once."""
    spark = start_session(master)
    register(spark)
    options = {"bootstrap": bootstrap, "timeoutSeconds": "120"}
    export(spark, log, folder)
    stream(spark, log, folder)
    table = spark.read.format("dledger").options(**options, topics=source).load()
    counts = table.groupBy("queue_id").count().collect()
    transfer(spark, options, (source, target, folder))
    exported = spark.read.parquet(f"{folder}/exported")
    streamed = spark.read.parquet(f"{folder}/streamed")
    told = {
        "exported": sorted([list(row) for row in exported.select(*KEY).collect()]),
        "streamed": sorted([list(row) for row in streamed.select(*KEY).collect()]),
        "read": {row["queue_id"]: row["count"] for row in counts},
        "executors": spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1,
    }
    sys.stdout.write(json.dumps(told) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
