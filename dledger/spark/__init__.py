"""The log as a Spark table, from a replica's files or over the network, and topics to write to.

    from dledger.spark import register, start_session

    spark = start_session("local[2]")   # or a session of your own
    register(spark)
    spark.read.format("commitlog").load("run/n1/data")
    spark.read.format("dledger").option("bootstrap", "127.0.0.1:7001").option("topics", "orders")

This owns the data sources (`source` over files; `network` over brokers, with `topics` to read and
`sink` to write), a session that starts quickly (`session`, `java`) and the zip that executors on
other machines import (`package`). It needs the extra `audit`. Files are only read, and need
`dledger.reading` alone; brokers are asked by the client, which needs gRPC. Neither nodes nor audits
are imported, here or on executors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dledger.spark.errors import BadOption, ClusterUnreachable, SparkError, SparkUnavailable
from dledger.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "BadOption",
    "ClusterUnreachable",
    "SparkError",
    "SparkUnavailable",
    "register",
    "start_session",
]


def register(session: SparkSession) -> None:
    """The session knows the formats `commitlog` (a replica's files) and `dledger` (a running broker
    group), and pushes filters down to them."""
    # Whoever has a session has pyspark.
    from dledger.spark.network import TopicsSource
    from dledger.spark.source import CommitLogSource

    session.dataSource.register(CommitLogSource)
    session.dataSource.register(TopicsSource)
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
