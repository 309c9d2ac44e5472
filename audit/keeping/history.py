"""Rounds of a watch, as values: what each found, how much it read, how far behind replicas were.

A round is made of a report, or of an error where no audit could be made. Its JSON is what the store
holds and what `dledger audit history --json` prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from audit.proof.findings import Cause
from audit.proof.report import Coverage, Report
from dledger.outcome import ExitCode

MAX_FINDINGS: Final = 20  # The gravest; more are only counted.
FAILED: Final = "failed"
_ABSENT: Final = frozenset({Cause.UNREACHABLE_NODE, Cause.UNREADABLE_REPLICA, Cause.EMPTY_REPLICA})


@dataclass(frozen=True, slots=True)
class ReplicaRound:
    """One replica in a round. `lag`: bytes of committed log that it lacks, or doesn't know to have
    committed; None if nothing is known of it."""

    replica: str
    verdict: str
    end: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class Round:
    """One round; times are seconds since the epoch, sizes bytes.

    `outcome`: the verdict, or `failed`, and `why` then. `end`: where the scope ends. `read` bytes
    of log were read, `believed` were not; `since`: when the oldest of those were; None if there
    are none. `findings`: how many, and the gravest of them in words.
    """

    begun: float
    finished: float
    outcome: str
    exit_code: int
    why: str = ""
    end: int = 0
    read: int = 0
    believed: int = 0
    since: float | None = None
    replicas: tuple[ReplicaRound, ...] = ()
    finding_count: int = 0
    findings: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took, by a clock that may have been set meanwhile."""
        return max(self.finished - self.begun, 0.0)


def round_of(report: Report, begun: float, finished: float) -> Round:
    """The round that came to this report."""
    believed = report.scope.believed
    claimed = sum(each.end - each.start for each in report.coverage)
    known = settled_by(report)
    furthest = max((each.settled for each in report.coverage), default=0)
    return Round(
        begun=begun,
        finished=finished,
        outcome=report.verdict.value,
        exit_code=int(report.exit_code),
        end=report.scope.end,
        read=claimed if believed is None else believed.read,
        believed=0 if believed is None else believed.size,
        since=None if believed is None else believed.since,
        replicas=tuple(_replica(each, furthest, known) for each in report.coverage),
        finding_count=len(report.findings),
        findings=tuple(
            f"{each.verdict} on {' and '.join(each.replicas)}: {each.cause}"
            for each in report.findings[:MAX_FINDINGS]
        ),
    )


def failed_round(begun: float, finished: float, why: str, code: ExitCode) -> Round:
    """The round that came to no report."""
    return Round(begun, finished, FAILED, int(code), why)


def round_as_json(each: Round) -> dict[str, Any]:
    """Its facts."""
    return asdict(each)


def round_from_json(fields: Any) -> Round:
    """What `round_as_json` was given.

    Raises:
        ValueError: it's something else.
    """
    try:
        replicas = tuple(ReplicaRound(**each) for each in fields["replicas"])
        findings = tuple(fields["findings"])
        return Round(**{**fields, "replicas": replicas, "findings": findings})
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from error


def worst_exit(codes: Iterable[int]) -> ExitCode:
    """What several rounds end with: inconsistent before incomplete before consistent."""
    seen = set(codes) - {int(ExitCode.CONSISTENT)}
    if not seen:
        return ExitCode.CONSISTENT
    return ExitCode.INCOMPLETE if seen == {int(ExitCode.INCOMPLETE)} else ExitCode.INCONSISTENT


def growth(rounds: Sequence[Round]) -> list[float | None]:
    """How fast the log grew before each round, bytes a second; None where that isn't known."""
    rates: list[float | None] = []
    last: Round | None = None
    for each in rounds:
        known = last is not None and each.end >= last.end and each.begun > last.begun
        if each.outcome == FAILED:
            rates.append(None)
            continue
        rates.append((each.end - last.end) / (each.begun - last.begun) if known and last else None)
        last = each
    return rates


def settled_by(report: Report) -> dict[str, int]:
    """Up to which physical offset each replica knows its log to be committed; nothing of those of
    which nothing is known, as of one whose node gives no answer."""
    absent = {name for f in report.findings if f.cause in _ABSENT for name in f.replicas}
    return {each.replica: each.settled for each in report.coverage if each.replica not in absent}


def _replica(each: Coverage, furthest: int, known: Mapping[str, int]) -> ReplicaRound:
    lag = furthest - each.settled if each.replica in known else None
    return ReplicaRound(each.replica, each.verdict.value, each.end, lag)
