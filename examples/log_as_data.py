# %% [markdown]
# The log as data: what a group stores, read with Spark from one replica's files. The group may
# run; nothing asks it anything. Run the cells in an editor that knows `# %%`, or the whole file:
#
#     make up
#     .venv/bin/python examples/produce_and_consume.py run
#     .venv/bin/pip install '.[audit]'
#     .venv/bin/python examples/log_as_data.py run/n1/data
"""Reads a replica's messages as a Spark table, and follows them as a stream."""

# %%
from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dledger.spark import register, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

data = sys.argv[1] if len(sys.argv) > 1 else "run/n1/data"
spark = start_session("local[2]")
register(spark)

# %% [markdown]
# A row a message. Spark tells a Python source nothing of the columns that it needs, so `columns`
# asks for them: without `properties` and `body` decoding is about twice as fast.

# %%
messages = (
    spark.read.format("commitlog")
    .option("columns", "topic,queue_id,queue_offset,born_time,store_time,keys")
    .load(data)
)
messages.printSchema()

# %% [markdown]
# How much is where, and for how long a message is on its way to the leader's log. A condition on
# `topic` or `store_time` is pushed down to whole entries.

# %%
messages.createOrReplaceTempView("messages")
spark.sql(
    """
    select topic, queue_id, count(*) as messages,
           max(queue_offset) - min(queue_offset) + 1 as offsets,
           percentile(unix_millis(store_time) - unix_millis(born_time), 0.99) as delay_p99_ms
    from messages group by topic, queue_id order by topic, queue_id
    """
).show()

# %% [markdown]
# A consumer without a group: the stream's offset is one byte position in the log, kept in the
# checkpoint, so a restart goes on exactly where the last committed batch ended. It ends here once
# it has what is committed now; `query.awaitTermination()` instead would follow the log.

# %%
with tempfile.TemporaryDirectory() as checkpoint:

    def show(batch: DataFrame, number: int) -> None:
        """One batch: replace what `number` wrote before, and a repeated batch does no harm."""
        print(f"batch {number}: {batch.count()} messages")

    stream = spark.readStream.format("commitlog").option("columns", "topic,body").load(data)
    query = (
        stream.writeStream.foreachBatch(show)
        .option("checkpointLocation", str(Path(checkpoint) / "stream"))
        .start()
    )
    query.processAllAvailable()
    query.stop()

# %%
spark.stop()
