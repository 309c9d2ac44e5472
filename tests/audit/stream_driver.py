"""A streaming query in a process of its own, for tests that kill it.

    python -m tests.audit.stream_driver LOG OUT CHECKPOINT

Reads everything that is committed, a few entries a batch, and writes each batch to a file named
after its id, which a batch that is repeated replaces. Says on standard output when a batch
`begins` and when it is `written`, and waits for a line on standard input each time: whoever
listens decides whether it goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dledger.spark import register, start_session

BATCH_BYTES = 8000


def say(what: str, batch: int) -> None:
    """Told and answered."""
    sys.stdout.write(f"{what} {batch}\n")
    sys.stdout.flush()
    sys.stdin.readline()


def main(log: str, out: str, checkpoint: str) -> None:
    """All batches up to what is committed at the start."""
    Path(out).mkdir(exist_ok=True)
    spark = start_session("local[2]")
    register(spark)

    def write(frame: Any, batch: int) -> None:
        say("begins", batch)
        pq.write_table(frame.toArrow(), f"{out}/fresh")
        Path(out, "fresh").replace(Path(out, f"{batch}.parquet"))
        say("written", batch)

    stream = spark.readStream.format("commitlog").option("bytesPerBatch", str(BATCH_BYTES))
    query = (
        stream.option("columns", "physical_offset,body")
        .load(log)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
