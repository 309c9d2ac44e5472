# %% [markdown]
# A topic into a Delta table, and out of the table into another topic: each message once, however
# often this program is killed and run again. With a group that `make up` started:
#
#     .venv/bin/python examples/produce_and_consume.py run
#     .venv/bin/pip install '.[audit,delta]'
#     .venv/bin/python examples/topic_to_table_and_back.py run greetings again lake
#
# Keep the folder (`lake`): in it are the table and how far the stream is.
"""A stream from a topic into a Delta table, and the table's rows into another topic."""

# %%
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from dledger.client.blocking import BlockingClient
from dledger.spark import register, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

directory, source, target, lake = (*sys.argv[1:], "run", "greetings", "again", "lake")[:4]
if (Path(directory) / "group.json").exists():
    nodes = json.loads((Path(directory) / "group.json").read_text())["nodes"]
    bootstrap = ",".join(node["address"] for node in nodes)
else:
    bootstrap = directory  # HOST:PORT,... of nodes anywhere
with BlockingClient.connect(bootstrap) as client:
    client.create_topic(target, queues=4, if_not_exists=True)

spark = start_session("local[2]")
register(spark)
brokers = {"bootstrap": bootstrap, "timeoutSeconds": "120"}
table, checkpoint = f"{lake}/messages", f"{lake}/checkpoint"

# %% [markdown]
# Spark may give a batch again, after a kill between the table's commit and its own. So the batch's
# number is said in the table's commit, and a batch that the table has is passed over. (A checkpoint
# that is deleted begins at batch 0 again: delete table and checkpoint together.)


# %%
def append(frame: DataFrame, batch: int) -> None:
    """The batch's rows are in the table, with its number in the same commit."""
    try:
        done = DeltaTable(table).transaction_version("greetings")
    except TableNotFoundError:
        done = None
    if done is None or done < batch:
        mark = CommitProperties(app_transactions=[Transaction("greetings", batch)])
        write_deltalake(table, frame.toArrow(), mode="append", commit_properties=mark)


(
    spark.readStream.format("dledger")
    .options(**brokers, topics=source, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    .options(columns="queue_id,queue_offset,incarnation,keys,body")
    .load()
    .writeStream.foreachBatch(append)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)

# %% [markdown]
# And back: the rows of one version of the table, in the order of their queues. `producer` and
# `batchId` name what is written, so that a run that is killed in the midst of it is gone on with,
# and one that was over writes nothing; the version is the batch's number, kept in a file before
# anything is sent, so that a run after a kill writes the same rows.

# %%
chosen = Path(lake) / "written-version"
if not chosen.exists():
    fresh = chosen.with_suffix(".tmp")
    fresh.write_text(str(DeltaTable(table).version()))
    fresh.replace(chosen)
version = int(chosen.read_text())
rows = DeltaTable(table, version=version).to_pyarrow_table()
(
    spark.createDataFrame(pa.table(rows))
    .repartition(4, "queue_id")
    .sortWithinPartitions("incarnation", "queue_id", "queue_offset")
    .select("queue_id", "keys", "body")
    .write.format("dledger")
    .mode("append")
    .options(**brokers, topic=target, producer="lake", batchId=str(version))
    .save()
)
print(f"{rows.num_rows} messages in {table}, and in {target}")
spark.stop()
