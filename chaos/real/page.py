"""A run's report as one HTML file that needs nothing else: no script, no font, no network.

It is written for somebody who wasn't there: first what was promised and whether it held, then the
picture, then each fault with what it cost, then what was found, and how to run it again. The layout
is `templates/report.html`, which escapes whatever comes from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.real.picture import family_of, timeline
from dledger.terminal.pages import rendered

WIDE: Final = 1160  # px of the picture on a screen, and on a phone
NARROW: Final = 358
SHOWN_FAULTS: Final = 12  # beyond these the table is folded
SHOWN_ANOMALIES: Final = 3  # of each kind
MEANINGS: Final = {
    "lost-write": "acknowledged, passed over by every reader, and never read",
    "unseen": "acknowledged, and not there when everything was read to the end",
    "duplicate": "one message at two places",
    "inconsistent-offsets": "one place that held two messages: what had been read there is gone",
    "nonmonotonic-poll": "a consumer went back",
    "poll-skip": "a consumer jumped over messages",
    "nonmonotonic-send": "a producer's later message lies before an earlier one",
    "phantom": "read, though it was never sent or was refused for good",
    "stale-read": "the end of a queue was read as lower than was known before",
    "forgotten": "stored, and done by nobody of a group that is through",
    "handled-unsent": "handled, and not in the log",
    "handled-after-commit": "handled again after the group was known to have committed it",
    "side-by-side": "two messages of a queue at work at once, in a group that works in order",
    "out-of-turn": "begun, in a group that works in order, before the one in front of it was done",
    "not-linearizable": "no order of the operations explains what everybody was told",
}


@dataclass(frozen=True, slots=True)
class _Anomalies:
    """One kind: what it means, the first ones, the others folded."""

    name: str
    count: int
    meaning: str
    shown: Sequence[Mapping[str, Any]]
    folded: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Faults:
    """One kind of fault, for where there are too many to read each."""

    name: str
    times: int
    failover_ms: float | None
    silence_ms: float | None


def page(facts: Mapping[str, Any]) -> str:
    """The whole file."""
    bands = facts["bands"]
    return rendered(
        "chaos.real",
        "report.html",
        facts=facts,
        family_of=family_of,
        other_anomalies=_other_anomalies(facts),
        kinds_of_anomalies=_anomalies(facts),
        kinds_of_faults=_kinds(bands) if len(bands) > SHOWN_FAULTS else (),
        keys=_keys(bands),
        wide=timeline(facts, WIDE),
        narrow=timeline(facts, NARROW),
    )


def _other_anomalies(facts: Mapping[str, Any]) -> int:
    """Those that have no tile of their own."""
    told = ("lost-write", "unseen", "duplicate", "nonmonotonic-send")
    counts = facts["anomaly_counts"]
    anomalies: int = facts["counts"]["anomalies"] - sum(counts.get(name, 0) for name in told)
    return anomalies


def _anomalies(facts: Mapping[str, Any]) -> list[_Anomalies]:
    if not facts["anomalies"]:
        return []
    found = []
    for name, count in facts["anomaly_counts"].items():
        listed = [each for each in facts["anomalies"] if each["name"] == name]
        meaning = MEANINGS.get(name.removeprefix("int-"), "")
        shown, folded = listed[:SHOWN_ANOMALIES], listed[SHOWN_ANOMALIES:]
        found.append(_Anomalies(name, count, meaning, shown, folded))
    return found


def _keys(bands: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The classes of the picture, and what they stand for."""
    families = dict.fromkeys(family_of(band["nemesis"]) for band in bands)
    return [
        ("leader", "leader"),
        ("follower", "follower"),
        ("candidate", "candidate"),
        ("silent", "silent: down, paused or not answering"),
        *((family, f"fault of a {family}") for family in families),
        ("area", "acknowledged"),
        ("p50", "median latency"),
        ("p99", "p99 latency"),
    ]


def _kinds(bands: Sequence[Mapping[str, Any]]) -> list[_Faults]:
    found = []
    for name in dict.fromkeys(band["nemesis"] for band in bands):
        of_kind = [band for band in bands if band["nemesis"] == name]
        failover = _worst(of_kind, "failover_ms")
        found.append(_Faults(name, len(of_kind), failover, _worst(of_kind, "silence_ms")))
    return found


def _worst(bands: Sequence[Mapping[str, Any]], field: str) -> float | None:
    return max((band[field] for band in bands if band[field] is not None), default=None)
