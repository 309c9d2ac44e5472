"""The log as a Spark table: `spark.read.format("commitlog").load("run/n1/data")`.

    from dledger.spark import register, start_session

    spark = start_session("local[2]")   # or a session of your own
    register(spark)

This owns the data source (`source`), a session that starts quickly (`session`, `java`) and the zip
that executors on other machines import (`package`). It needs the extra `audit`, is read-only, and
stands on `dledger.reading` alone: neither nodes nor audits are imported, here or on executors.
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
    """The session knows the format `commitlog` and pushes filters down to it."""
    from dledger.spark.source import CommitLogSource  # Whoever has a session has pyspark.

    session.dataSource.register(CommitLogSource)
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
