"""A streaming query from topic to topic, in a process of its own for tests that kill it.

    python -m tests.spark.stream_driver BOOTSTRAP SOURCE TARGET CHECKPOINT

Reads what there is, a few messages a batch. A row keeps its queue, so that queues can be compared.
Spark gives a stream's Python process ten seconds to come up, and no option; a busy machine may need
longer, so a query that ends for that alone is begun again, as a supervisor would begin it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dledger.spark import register, start_session

BATCH: Final = 40  # messages
_STARTS: Final = 20
_TOO_SLOW: Final = "failed to connect back"


class Places(NamedTuple):
    """Where it reads and writes, and keeps how far it is."""

    bootstrap: str
    source: str
    target: str
    checkpoint: str


def start(spark: SparkSession, places: Places) -> Any:
    """The query, which ends where the source ended when it began."""
    return (
        spark.readStream.format("dledger")
        .options(bootstrap=places.bootstrap, topics=places.source, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=str(BATCH), timeoutSeconds="120")
        .options(columns="queue_id,keys,body")
        .load()
        .writeStream.format("dledger")
        .options(bootstrap=places.bootstrap, topic=places.target, timeoutSeconds="120")
        .option("checkpointLocation", places.checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def finished(begin: Callable[[], Any], query: Any = None) -> None:
    """The query has ended, and had no other fault than a slow start; `begin` makes it anew."""
    for left in reversed(range(_STARTS)):
        try:
            (query or begin()).awaitTermination()
        except StreamingQueryException as error:
            if _TOO_SLOW not in str(error) or not left:
                raise
            query = None
        else:
            return


def main(*places: str) -> None:
    """All batches up to what is stored at the start."""
    spark = start_session("local[2]")
    register(spark)
    finished(lambda: start(spark, Places(*places)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
