"""What a run's consumer groups did with what the log holds: checked, and in figures.

What must not be is `chaos.checkers.deliveries`' matter; this brings together a run's last reading,
its members' books and the strikes at them. A log that was not read to its end, or that lost what a
weaker mode may lose, proves nothing here: then the run is undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

from chaos.checkers.anomalies import Anomaly, polled_by
from chaos.checkers.deliveries import (
    Group,
    Place,
    Style,
    count,
    find_delivery_anomalies,
    takeover_us,
    without_evidence,
)
from chaos.checkers.history import History, Poll
from chaos.real.crew import Death, Deliveries
from chaos.real.member import HIDDEN_S
from chaos.real.retired import READER
from chaos.real.scenario import OF_MEMBERS
from dledger.terminal.figures import percentile

TAKEOVER_WITHIN_US: Final = 30_000_000


@dataclass(slots=True)
class Delivered:
    """What was found."""

    anomalies: list[Anomaly] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


class Fault(NamedTuple):
    """A strike, from its beginning to the end of its healing, in ms of the run's clock, as reports
    have them: a run and a later look at its report come to the same verdict."""

    nemesis: str
    start_ms: int
    end_ms: int


def faults_of(facts: Mapping[str, Any]) -> list[Fault]:
    """Those of a report."""
    return [Fault(each["nemesis"], each["start_ms"], each["end_ms"]) for each in facts["bands"]]


def check_deliveries(
    deliveries: Deliveries,
    history: History,
    queues: int,
    faults: Iterable[Fault],
    *,
    may_lose: bool,
) -> Delivered:
    """What the members' books show, beside the history's last reading.

    Args:
        faults: all of the run; those at members are known by the members' own ends and pauses.
        may_lose: whether the log may have lost messages that had been handled.
    """
    deliveries = _beside(deliveries, list(faults))
    stored, is_whole = stored_by_value(history, queues)
    found = Delivered()
    if may_lose or not is_whole:
        why = "the log may have lost some" if may_lose else "the log wasn't read to its end"
        found.undecided.append(f"deliveries weren't checked: {why}")
    else:
        for group in deliveries.groups:
            found.anomalies += find_delivery_anomalies(group, stored)
            found.remarks += [f"not checked in {group.name}: {x}" for x in without_evidence(group)]
    found.facts = {
        "groups": [_facts(group, deliveries.deaths, stored) for group in deliveries.groups]
    }
    return found


def _beside(deliveries: Deliveries, faults: Sequence[Fault]) -> Deliveries:
    """The same, with what came in between."""
    zero_us = deliveries.zero_us
    nodes = [
        (zero_us + each.start_ms * 1000, zero_us + each.end_ms * 1000 + 999)
        for each in faults
        if each.nemesis not in OF_MEMBERS
    ]
    # Log time goes at half the speed while clocks differ and one of them is away; a clock that
    # leaps, leaps with it.
    has_wrong_clocks = any(each.nemesis.startswith("clock") for each in faults)
    hidden_us = 0 if has_wrong_clocks else int(HIDDEN_S * 1e6 / 2)
    groups = [
        replace(group, troubles=replace(group.troubles, nodes=nodes, hidden_us=hidden_us))
        for group in deliveries.groups
    ]
    return replace(deliveries, groups=groups)


def _facts(group: Group, deaths: Sequence[Death], stored: Mapping[str, Place]) -> dict[str, Any]:
    """In numbers. `takeover_ms`: from a member's death until all its queues were at work again."""
    mine = [death for death in deaths if death.group == group.name]
    if group.style is Style.SINGLY:
        mine = []  # nobody has a queue
    found = (
        takeover_us(group, stored, death.process, death.at_us, TAKEOVER_WITHIN_US) for death in mine
    )
    takeovers = [after_us / 1000 for after_us in found if after_us is not None]
    return {
        "name": group.name,
        "style": group.style,
        **asdict(count(group)),
        "takeover_ms": _spread(takeovers),
    }


def stored_by_value(history: History, queues: int) -> tuple[dict[str, Place], bool]:
    """Where the last reading found each message, and whether it came to the end of all queues."""
    stored: dict[str, Place] = {}
    read: set[int] = set()
    for operation in history.operations:
        action = operation.action
        if operation.process == READER and isinstance(action, Poll):
            for offset, value in polled_by(operation):
                stored[value] = Place(action.queue_id, offset)
            if action.final:
                read.add(action.queue_id)
    return stored, len(read) == queues


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "min": round(ordered[0], 1),
        "median": round(percentile(ordered, 0.5), 1),
        "p99": round(percentile(ordered, 0.99), 1),
        "max": round(ordered[-1], 1),
    }
