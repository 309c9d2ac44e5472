"""Why a group isn't formed. Why a node doesn't start as a member: `store.starting.errors`.

FormingError
├── FormationRefused    the members, or one of them, can't be formed like this
│   └── RefusedForNow   not now: somebody leads no more, or another change is under way (retriable)
├── NoLeader            nobody can change the configuration now (retriable)
└── MemberUnreachable   a member doesn't answer: all of them have to (retriable)
"""

from __future__ import annotations

from typing import ClassVar

from dledger.outcome import ExitCode, Outcome


class FormingError(Exception):
    """Root of them; the text says what to do."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class FormationRefused(FormingError):
    """Nothing has changed on who refuses."""


class RefusedForNow(FormationRefused):
    """Nothing has changed on who refuses, and it may be otherwise in a moment."""

    retriable = True


class NoLeader(FormingError):
    """Nobody can change the configuration now."""

    retriable = True
    exit_code = ExitCode.UNREACHABLE


class MemberUnreachable(FormingError):
    """What was asked for may have happened; asking again finishes it."""

    retriable = True
    outcome = Outcome.MAY_HAVE_HAPPENED
    exit_code = ExitCode.UNREACHABLE

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} doesn't answer ({reason}); all members have to")
        self.address = address
        self.reason = reason
