"""Why a group isn't formed. Why a node doesn't start as a member: `store.starting.errors`.

FormingError
├── FormationRefused    the members, or one of them, can't be formed like this
│   ├── RefusedForNow   not now: somebody leads no more, or another change is under way (retriable)
│   └── Superseded      it was so, or on the way, and another administrator has undone it
├── NoLeader            nobody can change the configuration now (retriable)
├── NotNewcomers        what was typed names no new members
├── SeveralGroups       the addresses that were named are of more than one group
└── MemberUnreachable   a member doesn't answer: all of them have to (retriable)
"""

from __future__ import annotations

from collections.abc import Mapping
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


class Superseded(FormationRefused):
    """What was asked for won't come any more by itself: somebody has asked for something else."""


class NoLeader(FormingError):
    """Nobody can change the configuration now."""

    retriable = True
    exit_code = ExitCode.UNREACHABLE


class NotNewcomers(FormingError):
    """Nobody was asked anything."""

    exit_code = ExitCode.USAGE


class SeveralGroups(FormingError):
    """What is asked of one group would be asked of another one."""

    exit_code = ExitCode.USAGE

    def __init__(self, groups: Mapping[str, str]) -> None:
        """Args:
        groups: by address.
        """
        found = ", ".join(f"{address} of {group}" for address, group in groups.items())
        super().__init__(f"nodes of several broker groups are named, {found}: name those of one")


class MemberUnreachable(FormingError):
    """What was asked for may have happened; asking again finishes it."""

    retriable = True
    outcome = Outcome.MAY_HAVE_HAPPENED
    exit_code = ExitCode.UNREACHABLE

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} doesn't answer, and has to ({reason})")
        self.address = address
        self.reason = reason
