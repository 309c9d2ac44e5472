"""Errors of the program itself; most that its commands meet are of the packages below.

    CommandError
    ├── InputUnreadable   the system can't read the input on: the lines before it were sent
    └── LineTooLong       a line of the input can't be a message: the lines before it were sent

None is `retriable`: the same input stays wrong.
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import ExitCode, Outcome
from dledger.terminal.outcome import in_words


class CommandError(Exception):
    """Root of the program's errors; its text is fit for the terminal as it is."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class InputUnreadable(CommandError):
    """The input can't be read on; what came before was read. The command did a part of its work:
    it failed."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, number: int, error: OSError) -> None:
        super().__init__(f"reading stopped behind line {number}: {in_words(error)}")


class LineTooLong(CommandError):
    """A line is longer than a message may be; what follows it was not read. The command was used
    rightly and did a part of its work: it failed."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, number: int, limit_bytes: int) -> None:
        super().__init__(f"line {number} is longer than {limit_bytes} bytes")
        self.number = number
        self.limit_bytes = limit_bytes
