"""Which engine an audit gets. Spark is imported only when it is asked for, so that the local
engine needs neither pyspark nor a JVM."""

from __future__ import annotations

from enum import StrEnum

from audit.engines.engine import Engine, LocalEngine
from audit.errors import UsageMistake


class EngineName(StrEnum):
    """The engines there are."""

    LOCAL = "local"
    SPARK = "spark"


def make_engine(name: EngineName, master: str | None, processes: int | None) -> Engine:
    """The engine, ready to run; the caller closes it.

    Args:
        master: of the Spark engine: `local[2]`, `spark://host:port`, `yarn`, `k8s://...`.
        processes: of the local engine.

    Raises:
        UsageMistake: a master without Spark.
        EngineUnavailable: it can't run here.
    """
    match name:
        case EngineName.LOCAL:
            if master is not None:
                raise UsageMistake(f"--master {master} is Spark's: add --engine spark")
            return LocalEngine(processes)
        case EngineName.SPARK:
            from audit.engines.spark import SparkEngine

            return SparkEngine.start(master)
