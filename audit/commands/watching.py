"""`dledger audit watch`: an audit every so often, a report of each, metrics of the last.

An audit that fails (nodes that don't answer, a directory that is gone) is counted and tried again
next time: a watch must outlive what it watches. Only the first one may end it, by a mistake of
whoever started it (exit code 2), which no waiting mends. Reports beyond `kept` are removed, oldest
first; only files that a watch names are ever touched. Audits never overlap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from audit.errors import AuditError
from audit.proof.findings import Verdict
from audit.proof.report import Audit, Report, report_as_json
from audit.showing.page import render_page
from dledger.outcome import ExitCode

_NAME: Final = re.compile(r"audit-\d{8}T\d{6}Z\.(json|html)")


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

    def finished(self, report: Report, time_s: float) -> None:
        """An audit came to an end."""
        self._runs.labels(report.verdict.value).inc()
        self._verdict.clear()
        self._compared.clear()
        for each in report.coverage:
            for verdict in Verdict:
                self._verdict.labels(each.replica, verdict.value).set(each.verdict is verdict)
            self._compared.labels(each.replica).set(each.compared_bytes)
        self._findings.set(len(report.findings))
        self._finished.set(time_s)
        self._seconds.set(report.timings.total_s)

    def failed(self) -> None:
        """An audit could not be made."""
        self._runs.labels("failed").inc()


class Watch:
    """Audits again and again.

    Args:
        audit: makes one audit.
        folder: of the reports.
        kept: how many reports stay.
        clock: seconds since the epoch.
        wait: waits so many seconds; true if the watch should end.
        told: gets a line an audit.
    """

    def __init__(
        self,
        audit: Callable[[], Audit],
        folder: Path,
        metrics: WatchMetrics,
        *,
        kept: int,
        clock: Callable[[], float],
        wait: Callable[[float], bool],
        told: Callable[[str], None],
    ) -> None:
        self._audit = audit
        self._folder = folder
        self._metrics = metrics
        self._kept = kept
        self._clock = clock
        self._wait = wait
        self._told = told
        self._is_first = True

    def run(self, every_s: float) -> None:
        """Audits at once and then every `every_s` seconds, counted from begin to begin; an audit
        that takes longer is followed by the next one at once. Returns when `wait` says so.

        Raises:
            AuditError: the first audit was asked for wrongly.
        """
        due = self._clock()
        while True:
            self.once()
            due = max(due + every_s, self._clock())
            if self._wait(due - self._clock()):
                return

    def once(self) -> None:
        """One audit, its report and its metrics.

        Raises:
            AuditError: as of `run`.
        """
        is_first, self._is_first = self._is_first, False
        try:
            audited = self._audit()
        except (AuditError, OSError) as error:
            if is_first and isinstance(error, AuditError) and error.exit_code == ExitCode.USAGE:
                raise
            self._metrics.failed()
            self._told(f"failed: {error}")
            return
        now = self._clock()
        self._metrics.finished(audited.report, now)
        name = f"audit-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%SZ}"
        try:
            self._write(f"{name}.json", json.dumps(report_as_json(audited.report), indent=1))
            self._write(f"{name}.html", render_page(audited))
            self._remove_old()
        except OSError as error:  # The metrics have the verdict, and the next report may be kept.
            self._told(f"{audited.report.verdict}: no report: {error}")
            return
        self._told(f"{audited.report.verdict}: {self._folder / name}.html")

    def _write(self, name: str, content: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = self._folder / f"{name}.new"
        fresh.write_text(content, encoding="utf-8", errors="backslashreplace")
        fresh.replace(self._folder / name)

    def _remove_old(self) -> None:
        named = sorted(path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))
        for path in named[: -2 * self._kept]:
            path.unlink()
