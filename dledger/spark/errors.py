"""Errors of the log as a Spark table, before and beside what the log or the brokers say.

    SparkError
    ├── BadOption           an option, a master or a setting makes no sense; nothing was started
    ├── SparkUnavailable    Spark can't run here: no pyspark, no Java, no session
    ├── ClusterUnreachable  the master doesn't answer, or gives no executor (retriable)
    ├── DataLost            messages that were to be read are there no longer
    ├── RowRefused          a row can't be a message; nothing of its task was written
    └── WriteRefused        a task isn't what it was when it began to write

What is wrong with the log is in `dledger.reading.errors`, what brokers refuse in
`dledger.client.errors`.
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import ExitCode, Outcome


class SparkError(Exception):
    """Root of these errors. Nothing was changed, but for `WriteRefused`."""

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


class DataLost(SparkError):
    """Messages that were to be read are there no longer: their topic was deleted, or they are kept
    no longer. `failOnDataLoss` false goes on without them."""

    exit_code = ExitCode.FAILED

    def __init__(self, lost: str) -> None:
        super().__init__(f"{lost}; failOnDataLoss=false goes on without them")
        self.lost = lost

    def __reduce__(self) -> tuple[type[DataLost], tuple[str]]:
        """Workers hand it to drivers."""
        return DataLost, (self.lost,)


class RowRefused(SparkError):
    """A row can't be a message; the text says which column."""

    exit_code = ExitCode.FAILED


class WriteRefused(SparkError):
    """A task that is repeated isn't the one that began: going on would store messages twice. What
    the first attempt stored is there."""

    outcome = Outcome.MAY_HAVE_HAPPENED
    exit_code = ExitCode.FAILED
