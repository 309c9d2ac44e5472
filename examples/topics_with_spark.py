# %% [markdown]
# Topics as Spark tables: read over the network, counted, and written to another topic, each row
# once. Run the cells in an editor that knows `# %%`, or the whole file:
#
#     make up
#     .venv/bin/python examples/produce_and_consume.py run
#     .venv/bin/pip install '.[audit]'
#     .venv/bin/python examples/topics_with_spark.py run greetings shouted
"""Reads a topic as a table, and follows it as a stream that writes what comes of it to another."""

# %%
from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from dledger.client.blocking import BlockingClient
from dledger.spark import register, start_session

directory, source, target = (*sys.argv[1:], "run", "greetings", "shouted")[:3]
nodes = json.loads((Path(directory) / "group.json").read_text())["nodes"]
bootstrap = ",".join(node["address"] for node in nodes)
with BlockingClient.connect(bootstrap) as client:
    client.create_topic(target, queues=4, if_not_exists=True)

spark = start_session("local[2]")
register(spark)

# %% [markdown]
# A row a message, from the earliest to the latest that there is when the query is planned. A
# condition on queue, offset or store time leaves fewer of them to be read.

# %%
messages = (
    spark.read.format("dledger")
    .options(bootstrap=bootstrap, topics=source, columns="queue_id,queue_offset,keys,body")
    .load()
)
messages.groupBy("queue_id").count().orderBy("queue_id").show()

# %% [markdown]
# From topic to topic as a stream, at most 1,000 messages a batch. The checkpoint keeps how far it
# has read and the name under which it writes: killed at any moment and run again, it goes on, and
# each row is in the target once. Keep the checkpoint where it lasts; this one is for show, so each
# run of this file writes everything again.

# %%
with tempfile.TemporaryDirectory() as checkpoint:
    rows = (
        spark.readStream.format("dledger")
        .options(bootstrap=bootstrap, topics=source, startingOffsets="earliest")
        .options(columns="keys,body", maxOffsetsPerTrigger="1000")
        .load()
        .selectExpr("keys", "upper(cast(body as string)) as body")
    )
    query = (
        rows.writeStream.format("dledger")
        .options(bootstrap=bootstrap, topic=target, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

# %%
written = spark.read.format("dledger").options(bootstrap=bootstrap, topics=target).load()
print("in", target + ":", written.count())
spark.stop()
