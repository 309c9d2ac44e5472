"""What is said of one log or one copy by itself: is it sound?

Both `dledger log verify` and `dledger audit copy` say it; when each does stands in their modules.
"""

from __future__ import annotations

from enum import StrEnum

from dledger.outcome import ExitCode


class Soundness(StrEnum):
    """Nothing is wrong; something is missing; something that is there is wrong. The gravest is
    last."""

    SOUND = "sound"
    INCOMPLETE = "incomplete"
    DAMAGED = "damaged"

    @property
    def exit_code(self) -> ExitCode:
        """What a command that found it ends with."""
        match self:
            case Soundness.SOUND:
                return ExitCode.CONSISTENT
            case Soundness.INCOMPLETE:
                return ExitCode.INCOMPLETE
            case Soundness.DAMAGED:
                return ExitCode.INCONSISTENT
