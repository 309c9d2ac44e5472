"""The family of errors of chaos: what is wrong with a request, a file or a run of our own tools.

    ChaosError
    ├── ScenarioInvalid   unknown scenario, node, nemesis or option; a file that can't be loaded
    ├── OutputInTheWay    the folder for the results holds something else, or can't be made
    ├── GroupNeverLed     no leader served in time, at the start (retriable)
    ├── RunBroken         a run's folder can't be read (`dledger chaos report`)
    ├── SearchTooLong     a history is too concurrent to be decided within the bound
    ├── ContradictionsLeft  one that contradicts itself so often that the rest wasn't searched
    ├── NothingStruck     a fault that hit nobody: its strike is skipped
    ├── TimesGoBack       a queue was read whose store times don't ascend
    ├── TimeFarOff        a message was stored at a time that no majority of clocks has shown
    ├── DemoFailed        the demonstration came to no settlement (retriable)
    ├── StaleMutant       the code that a mutant changes has changed
    ├── NothingTested     a mutant's tests can't be collected
    └── CallFailed        a simulated call that wasn't answered, or with an error

A run that was made and found anomalies is no error, and neither is what it found: a broken rule is
an assertion of ours (`chaos.invariants.InvariantBroken`, `Defect` and `Livelock` of the simulator),
so that no handler of errors takes it for weather. None of these changes what was tested: `outcome`
speaks of the request, and only a `CallFailed` may have happened all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from dledger.outcome import ExitCode, Outcome
from dledger.wire import errors_pb2 as epb


class ChaosError(Exception):
    """Root of the errors of chaos; its text is fit for the terminal as it is."""

    retriable: ClassVar[bool] = False
    outcome: Outcome = Outcome.DID_NOT_HAPPEN
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class ScenarioInvalid(ChaosError):
    """Found before anything was started. `scenario` is its name or file."""

    exit_code = ExitCode.USAGE

    def __init__(self, scenario: str, reason: str) -> None:
        super().__init__(f"scenario {scenario}: {reason}")
        self.scenario = scenario
        self.reason = reason


class OutputInTheWay(ChaosError):
    """Nothing is overwritten."""

    exit_code = ExitCode.USAGE

    def __init__(self, directory: Path, reason: str = "exists and isn't empty") -> None:
        super().__init__(f"{directory}: {reason}; name another folder with --out")
        self.directory = directory
        self.reason = reason


class GroupNeverLed(ChaosError):
    """The run was over before its first fault."""

    retriable = True
    exit_code = ExitCode.UNREACHABLE

    def __init__(self, reason: str) -> None:
        super().__init__(f"the group never came to a leader that serves: {reason}")
        self.reason = reason


class RunBroken(ChaosError):
    """`path` isn't what a finished run leaves."""

    exit_code = ExitCode.USAGE

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class SearchTooLong(ChaosError):
    """The history of `key` is too concurrent to be decided within `max_steps`."""

    def __init__(self, key: str, operations: int, max_steps: int) -> None:
        super().__init__(f"{key}: {operations} operations, more than {max_steps} steps")
        self.key = key
        self.operations = operations
        self.max_steps = max_steps


class ContradictionsLeft(ChaosError):
    """What the history says of `key` contradicts itself `found` times; whether it does so behind
    them wasn't searched."""

    def __init__(self, key: str, found: int) -> None:
        super().__init__(f"{key}: it contradicts itself {found} times, and maybe more often")
        self.key = key
        self.found = found


class NothingStruck(ChaosError):
    """There was nobody whom a fault could have hit, or it was refused."""

    retriable = True

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TimesGoBack(ChaosError):
    """A message was stored earlier than the one before it in its queue."""

    def __init__(self, queue_id: int, queue_offset: int) -> None:
        super().__init__(
            f"queue {queue_id}: the message at {queue_offset} was stored before its predecessor"
        )
        self.queue_id = queue_id
        self.queue_offset = queue_offset


class TimeFarOff(ChaosError):
    """A message was stored `off_ms` before or after the time at which it can have been."""

    def __init__(self, queue_id: int, queue_offset: int, off_ms: int) -> None:
        way = "before it was sent" if off_ms < 0 else "after its last attempt"
        super().__init__(
            f"queue {queue_id}: the message at {queue_offset} was stored {abs(off_ms)} ms {way}, "
            "by the log's time"
        )
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.off_ms = off_ms


class DemoFailed(ChaosError):
    """The run didn't come to a settlement, or shows less than it says."""

    retriable = True


class StaleMutant(ChaosError):
    """The text that a mutant changes is in its file `found` times, not exactly once."""

    def __init__(self, mutant: str, file: str, found: int) -> None:
        super().__init__(f"{mutant}: its text is in {file} {found} times")
        self.mutant = mutant
        self.file = file
        self.found = found


class NothingTested(ChaosError):
    """The tests that a mutant was to fail could not be collected: nothing is known of it."""

    def __init__(self, mutant: str, told: Sequence[str]) -> None:
        super().__init__(f"{mutant}: its tests can't be run: {' '.join(told) or 'no output'}")
        self.mutant = mutant


class CallFailed(ChaosError):
    """A call gave no answer, or an error. `may_have_happened` decides between fail and unknown."""

    def __init__(self, error: epb.Error | None, *, may_have_happened: bool) -> None:
        super().__init__(epb.ErrorCode.Name(error.code) if error else "no answer")
        self.error = error
        self.code = error.code if error else epb.ERROR_CODE_UNSPECIFIED
        self.may_have_happened = may_have_happened
        if may_have_happened:
            self.outcome = Outcome.MAY_HAVE_HAPPENED
