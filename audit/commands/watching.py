"""`dledger audit watch`: an audit every so often, a report of each, metrics of the last, a history.

An audit that fails (nodes that don't answer, a directory that is gone, an error that nobody
foresaw, which leaves its traceback) is counted and tried again next time: a watch must outlive what
it watches, and a round that can't be shown or kept, of which its line and the metrics tell all the
same. Only the first audit may end it, by a mistake of whoever started it (exit code 2), which no
waiting mends. Of the reports of each exit code the last `kept` stay: a round displaces none that is
graver. Only files that a watch names are ever touched. Audits
never overlap.
"""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from audit.keeping.history import (
    FAILED,
    Round,
    failed_round,
    round_as_json,
    round_of,
    settled_by,
    worst_exit,
)
from audit.proof.findings import Verdict
from audit.proof.report import Audit, Report, report_as_json
from audit.showing.page import render_page
from audit.showing.words import belief_in_words
from dledger.outcome import ExitCode
from dledger.terminal.outcome import exit_code_of

_NAME: Final = re.compile(r"audit-\d{8}T\d{6}Z(-\d+)?\.(json|html)")


class WatchMetrics:
    """What Prometheus is told; `docs/operations.md` says what to alarm on."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._runs = Counter(
            "dledger_audit_runs", "Audits, by their verdict or 'failed'.", ["outcome"],
            registry=self.registry,
        )  # fmt: skip
        self._verdict = Gauge(
            "dledger_audit_verdict", "1 for each replica's verdict in the last audit.",
            ["replica", "verdict"], registry=self.registry,
        )  # fmt: skip
        self._compared = Gauge(
            "dledger_audit_compared_bytes", "Bytes compared with another replica's.", ["replica"],
            registry=self.registry,
        )  # fmt: skip
        self._findings = Gauge(
            "dledger_audit_findings", "Findings of the last audit.", registry=self.registry
        )
        self._finished = Gauge(
            "dledger_audit_last_finished_timestamp_seconds", "When the last audit finished.",
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Gauge(
            "dledger_audit_duration_seconds", "How long the last audit took.",
            registry=self.registry,
        )  # fmt: skip
        self._lag = Gauge(
            "dledger_audit_lag_bytes",
            "Committed log that a replica lacked in the last audit, by what it last said.",
            ["replica"], registry=self.registry,
        )  # fmt: skip
        self._bytes = Gauge(
            "dledger_audit_log_bytes", "Log that the last audit read, or believed.",
            ["how"], registry=self.registry,
        )  # fmt: skip
        self._since = Gauge(
            "dledger_audit_oldest_proof_timestamp_seconds",
            "When the oldest of what the last audit spoke of was read.", registry=self.registry,
        )  # fmt: skip
        self._exit = Gauge(
            "dledger_audit_exit_code", "Of the last round: 0, 1 or 3.", registry=self.registry
        )

        self._settled: dict[str, int] = {}  # as each was last heard of
        self._told: dict[str, int] = {}  # how much each lacked by then

    def round(self, each: Round) -> None:
        """A round is over, with an audit or without."""
        self._exit.set(each.exit_code)
        if each.outcome == FAILED:
            return
        self._bytes.labels("read").set(each.read)
        self._bytes.labels("believed").set(each.believed)
        self._since.set(each.begun if each.since is None else each.since)

    def finished(self, report: Report, time_s: float) -> None:
        """An audit came to an end."""
        self._runs.labels(report.verdict.value).inc()
        self._verdict.clear()
        self._compared.clear()
        for each in report.coverage:
            for verdict in Verdict:
                self._verdict.labels(each.replica, verdict.value).set(each.verdict is verdict)
            self._compared.labels(each.replica).set(each.compared_bytes)
        self._lags(report)
        self._findings.set(len(report.findings))
        self._finished.set(time_s)
        self._seconds.set(report.timings.total_s)

    def _lags(self, report: Report) -> None:
        """A replica that says nothing lacks what came since it did: without a series nobody's rule
        would see that its node is down. What it never said nobody knows. Nobody lags behind one
        that says nothing: it may have been asked a moment after the others, and then gone. But what
        was lacked is still lacked, less what was got since: that those who were ahead are gone is
        no reason to say that all is well."""
        answering, before = settled_by(report), self._settled
        known = {**before, **answering}
        self._settled = {c.replica: known[c.replica] for c in report.coverage if c.replica in known}
        furthest = max(answering.values(), default=0)
        self._lag.clear()
        lacked, self._told = self._told, {}
        for name, settled in self._settled.items():
            still = lacked.get(name, 0) - max(settled - before.get(name, settled), 0)
            self._told[name] = max(furthest - settled, still, 0)
            self._lag.labels(name).set(self._told[name])

    def failed(self) -> None:
        """An audit could not be made."""
        self._runs.labels("failed").inc()


class History(Protocol):
    """Where rounds are told."""

    def add(self, each: Round) -> list[str]:
        """Keeps the round; what went wrong with that, or with what is kept."""
        ...


class NoHistory:
    """Keeps nothing."""

    def add(self, each: Round) -> list[str]:
        """Forgets it."""
        return []


@dataclass(frozen=True, slots=True)
class Bounds:
    """When a watch ends by itself: after so many rounds, so many seconds; 0: never."""

    rounds: int = 0
    seconds: float = 0


def in_words(error: Exception) -> str:
    """What a round's line says of it; one that nobody foresaw leaves its traceback."""
    if exit_code_of(error) is not None:
        return str(error)
    traceback.print_exception(error)
    return repr(error)


class Watch:
    """Audits again and again.

    Args:
        audit: makes one audit.
        folder: of the reports.
        kept: how many reports stay.
        clock: seconds since the epoch, as rounds and reports are stamped; it may be set.
        steady: seconds of a clock that nobody sets: when rounds are due, and the watch over.
        wait: waits so many seconds; true if the watch should end.
        told: gets a line an audit.
        history: of the rounds.
        as_json: a line is the round's facts.
    """

    def __init__(
        self,
        audit: Callable[[], Audit],
        folder: Path,
        metrics: WatchMetrics,
        *,
        kept: int,
        clock: Callable[[], float],
        steady: Callable[[], float],
        wait: Callable[[float], bool],
        told: Callable[[str], None],
        history: History | None = None,
        as_json: bool = False,
    ) -> None:
        self._audit = audit
        self._folder = folder
        self._metrics = metrics
        self._kept = kept
        self._clock = clock
        self._steady = steady
        self._wait = wait
        self._told = told
        self._history = history or NoHistory()
        self._as_json = as_json
        self._is_first = True
        self._codes: set[int] = set()

    @property
    def exit_code(self) -> ExitCode:
        """The worst of the rounds so far; without one, nothing is known of anything."""
        return worst_exit(self._codes) if self._codes else ExitCode.INCOMPLETE

    def run(self, every_s: float, bounds: Bounds | None = None) -> None:
        """Audits at once and then every `every_s` seconds, counted from begin to begin; an audit
        that takes longer is followed by the next one at once. Returns when `wait` or `bounds` say
        so; a round that has begun is ended by neither.

        Raises:
            Whatever ends a command as used wrongly: the first audit was asked for so.
        """
        bounds = bounds or Bounds()
        begun = due = self._steady()
        rounds = 0
        while True:
            self.once()
            rounds += 1
            due = max(due + every_s, self._steady())
            if rounds == bounds.rounds or 0 < bounds.seconds <= due - begun:
                return
            if self._wait(due - self._steady()):
                return

    def once(self) -> None:
        """One audit, its report and its metrics.

        Raises:
            Whatever `run` does.
        """
        is_first, self._is_first = self._is_first, False
        begun = self._clock()
        try:
            audited = self._audit()
        except Exception as error:
            if is_first and exit_code_of(error, ExitCode.INCOMPLETE) == ExitCode.USAGE:
                raise
            why = in_words(error)
            self._metrics.failed()
            # Nothing was found, and nothing is known either: as when nobody answers.
            each = failed_round(begun, self._clock(), why, ExitCode.INCOMPLETE)
            self._end(each, f"failed: {why}")
            return
        now = self._clock()
        self._metrics.finished(audited.report, now)
        said = self._reported(audited, now)
        scope = audited.report.scope
        said += f" ({belief_in_words(scope.believed)})" if scope.believed else ""
        self._end(round_of(audited.report, begun, now), said)

    def _reported(self, audited: Audit, now: float) -> str:
        """The report is in the folder; the round's line."""
        name = f"audit-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}"
        try:
            name = self._unused(name)
            self._write(f"{name}.json", json.dumps(report_as_json(audited.report), indent=1))
            self._write(f"{name}.html", render_page(audited))
            said = f"{self._folder / name}.html"
        except Exception as error:  # noqa: BLE001 - The metrics have the verdict.
            said = f"no report: {in_words(error)}"
        try:
            self._remove_old(name)
        except Exception as error:  # noqa: BLE001 - As above; the next round tries again.
            said += f"; old ones are still there: {in_words(error)}"
        return f"{audited.report.verdict}: {said}"

    def _end(self, each: Round, said: str) -> None:
        """The round is told, everywhere."""
        self._codes.add(each.exit_code)
        self._metrics.round(each)
        try:
            problems = self._history.add(each)
        except Exception as error:  # noqa: BLE001 - The line tells of the round.
            problems = [f"the round isn't kept: {in_words(error)}"]
        if self._as_json:
            self._told(json.dumps({**round_as_json(each), "problems": problems}))
            return
        self._told(said)
        for problem in problems:
            self._told(f"note: {problem}")

    def _write(self, name: str, content: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = self._folder / f"{name}.new"
        with fresh.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else the name may outlive a power cut, and the report not
        fresh.replace(self._folder / name)

    def _unused(self, second: str) -> str:
        """A name for a report of that second, later than those of others: rounds may be shorter, or
        the clock has been set back to it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        named = [_order(stem) for stem in self._stems()]
        last = max((number for each, number in named if each == second), default=0)
        return f"{second}-{last + 1}" if last else second

    def _stems(self) -> set[str]:
        """What the reports are named that are there, without what their files end in."""
        return {path.stem for path in self._folder.iterdir() if _NAME.fullmatch(path.name)}

    def _remove_old(self, newest: str) -> None:
        """Those with a name from the time before the clock was set back are older than `newest`,
        whatever they say."""
        last = _order(newest)
        named = sorted(self._stems(), key=lambda stem: (_order(stem) <= last, _order(stem)))
        codes = {stem: self._exit_code_of(stem) for stem in named}
        for which in set(codes.values()):
            for stem in [stem for stem, code in codes.items() if code == which][: -self._kept]:
                for suffix in (".html", ".json"):
                    (self._folder / f"{stem}{suffix}").unlink(missing_ok=True)

    def _exit_code_of(self, stem: str) -> int:
        """Of the report of that name; one that can't be read may tell of the worst."""
        try:
            report = json.loads((self._folder / f"{stem}.json").read_text(encoding="utf-8"))
            return ExitCode(report["exit_code"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ExitCode.INCONSISTENT


def _order(stem: str) -> tuple[str, int]:
    """The second of a report's name, and which of that second it is."""
    second, _, number = stem.partition("Z-")
    return (f"{second}Z", int(number)) if number else (stem, 1)
