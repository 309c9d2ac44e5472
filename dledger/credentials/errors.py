"""The error of the credentials, raised before anything is dialed or served.

CredentialUnusable   a file of certificates, keys or secrets can't be used
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from dledger.outcome import ExitCode, Outcome


class CredentialUnusable(Exception):
    """A file of certificates, keys or secrets can't be used; the text names it and says why."""

    retriable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
