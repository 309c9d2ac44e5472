"""Why a chaos run could not be made. A run that was made and found anomalies is no error.

ChaosError
├── ScenarioInvalid   unknown scenario, node, nemesis or option; a file that can't be loaded
├── OutputInTheWay    the folder for the results holds something else, or can't be made
├── GroupNeverLed     no leader served in time, at the start
└── RunBroken         a run's folder can't be read (`dledger chaos report`)
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from dledger.outcome import ExitCode


class ChaosError(Exception):
    """Root of the errors of chaos runs; its text is fit for the terminal as it is."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class ScenarioInvalid(ChaosError):
    """Found before anything was started. `scenario` is its name or file."""

    def __init__(self, scenario: str, reason: str) -> None:
        super().__init__(f"scenario {scenario}: {reason}")
        self.scenario = scenario
        self.reason = reason


class OutputInTheWay(ChaosError):
    def __init__(self, directory: Path, reason: str = "exists and isn't empty") -> None:
        super().__init__(f"{directory}: {reason}; name another folder with --out")
        self.directory = directory
        self.reason = reason


class GroupNeverLed(ChaosError):
    exit_code = ExitCode.UNREACHABLE

    def __init__(self, reason: str) -> None:
        super().__init__(f"the group never came to a leader that serves: {reason}")
        self.reason = reason


class RunBroken(ChaosError):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
