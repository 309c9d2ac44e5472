"""Errors of reading the log with Spark, before and beside what the log itself says.

    SparkError
    ├── BadOption           an option, a master or a setting makes no sense; nothing was started
    ├── SparkUnavailable    Spark can't run here: no pyspark, no Java, no session
    └── ClusterUnreachable  the master doesn't answer, or gives no executor (retriable)

What is wrong with the log is in `dledger.reading.errors`.
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import ExitCode, Outcome


class SparkError(Exception):
    """Root of these errors. Nothing was changed: the log is only read."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class BadOption(SparkError):
    """What was asked for can't be done; the text says what would."""


class SparkUnavailable(SparkError):
    """The text says what is missing, and what to do."""


class ClusterUnreachable(SparkError):
    """`master` gave no answer, or nobody to run a task."""

    retriable: ClassVar[bool] = True
    exit_code = ExitCode.UNREACHABLE

    def __init__(self, master: str, reason: str) -> None:
        super().__init__(f"{master} can't be reached: {reason}")
        self.master = master
        self.reason = reason
