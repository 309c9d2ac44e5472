"""Errors of the audits, and how a command that meets one ends.

    AuditError
    ├── UsageMistake        the request makes no sense: arguments, paths, replicas of other groups
    │   └── HistoryMistake  a client's history isn't one (`audit.history`)
    ├── Unreachable         a node or a group that was to be audited doesn't answer
    ├── LogDamaged          the log that was to be a witness can't be read to its end
    └── EngineUnavailable   the engine asked for can't run here: no pyspark, no Java, no cluster

What is wrong with a *replica* is no error but a finding (`audit.findings`): an audit that meets a
broken file has done its work.
"""

from __future__ import annotations

from typing import ClassVar


class AuditError(Exception):
    """Root of the audits' errors. Nothing was changed: audits only read."""

    exit_code: ClassVar[int] = 1


class UsageMistake(AuditError):
    """What was asked for can't be done; the text says what would."""

    exit_code: ClassVar[int] = 2


class Unreachable(AuditError):
    """`who` gave no answer."""

    exit_code: ClassVar[int] = 3

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(f"{who} can't be reached: {reason}")
        self.who = who
        self.reason = reason


class LogDamaged(AuditError):
    """The log can't be read to its end; the text says where it ends."""


class EngineUnavailable(AuditError):
    """The engine can't run on this machine; the text says what is missing and what to do."""

    exit_code: ClassVar[int] = 2
