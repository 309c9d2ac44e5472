"""A run's report for the terminal: one table, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

SHOWN_ANOMALIES: Final = 20


def print_report(facts: Mapping[str, Any], console: Console) -> None:
    """The report whose facts are `facts`."""
    console.print(_account(facts))
    if facts["bands"]:
        console.print(_faults(facts))
    for remark in facts["remarks"]:
        console.print(f"remark: {remark}", markup=False, soft_wrap=True)
    for each in facts["undecided"]:
        console.print(f"UNDECIDED: {each}", markup=False, soft_wrap=True)
    for problem in facts["problems"]:
        console.print(f"PROBLEM: {problem}", markup=False, soft_wrap=True)
    for anomaly in facts["anomalies"][:SHOWN_ANOMALIES]:
        console.print(f"ANOMALY {_in_words(anomaly)}", markup=False, soft_wrap=True)
    if (more := facts["counts"]["anomalies"] - SHOWN_ANOMALIES) > 0:
        console.print(f"and {more:,} more anomalies")
    console.print(verdict(facts), markup=False, soft_wrap=True)


def verdict(facts: Mapping[str, Any]) -> str:
    """The last line."""
    if facts["holds"]:
        return "holds: no anomaly, and nothing else went wrong"
    names = ", ".join(f"{count:,} × {name}" for name, count in facts["anomaly_counts"].items())
    problems = facts["counts"]["problems"]
    found = [names] if names else []
    if problems:
        found.append(f"{problems} problem{'s' if problems > 1 else ''}")
    if not found:
        return "UNDECIDED: no anomaly, and nothing else went wrong, as far as it was judged"
    return f"DOES NOT HOLD: {'; '.join(found)}"


def _in_words(anomaly: Mapping[str, str]) -> str:
    return f"{anomaly['name']} in {anomaly['where']}: {anomaly['detail']}"


def _account(facts: Mapping[str, Any]) -> Table:
    table = Table(
        show_header=False,
        title=f"{escape(facts['scenario'])}, {facts['nodes']} nodes, seed {facts['seed']}",
    )
    table.add_column()
    table.add_column(justify="right")
    for name, count in (*facts["sends"].items(), *facts["counts"].items()):
        table.add_row(name.replace("_", " "), f"{count:,}")
    for name, title in (
        ("latency_ms", "send to acknowledgement"),
        ("failover_ms", "strike to the next leader's acknowledgement"),
        ("planned_silence_ms", "silence around a planned change"),
    ):
        spread = facts[name]
        if spread is not None:
            figures = f"min / median / p99 / max of {spread['count']:,}"
            table.add_row(f"{title}, ms:\n{figures}", _of(spread))
    for group in (facts.get("deliveries") or {}).get("groups", ()):
        words = f"{group['done']:,} / {group['failed']:,} / {group['again']:,}"
        name = f"group {group['name']}"
        table.add_row(f"{name}:\nmessages done / failures / begun again", words)
        causes = ("again_after_ends", "again_after_pauses", "again_beside_faults")
        if group["again"] and causes[0] in group:
            of = "again after ends / after pauses / beside faults"
            table.add_row(f"{name}:\n{of}", " / ".join(f"{group[each]:,}" for each in causes))
        spread = group["takeover_ms"]
        if spread is not None:
            figures = f"min / median / p99 / max of {spread['count']:,}"
            title = f"{name}, a death to all queues at work"
            table.add_row(f"{title}, ms:\n{figures}", _of(spread))
    table.add_row("duration", f"{facts['duration_s']:.1f} s")
    return table


def _of(spread: Mapping[str, float]) -> str:
    return " / ".join(f"{spread[name]:.1f}" for name in ("min", "median", "p99", "max"))


def _faults(facts: Mapping[str, Any]) -> Table:
    """One line a kind of fault: how often, and the worst silence."""
    table = Table("fault", "times", "longest silence", "worst failover", title="faults")
    for name in dict.fromkeys(band["nemesis"] for band in facts["bands"]):
        bands = [band for band in facts["bands"] if band["nemesis"] == name]
        table.add_row(
            name,
            f"{len(bands)}",
            _worst([band["silence_ms"] for band in bands]),
            _worst([band["failover_ms"] for band in bands]),
        )
    return table


def _worst(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):,.0f} ms" if known else "-"
