"""How full is what has a bound, as the state machine says it."""

from __future__ import annotations

from dataclasses import fields

from broker.fullness import LIMITS, fills_of
from broker.state.machine import MachineStatistics

COUNTED = {
    "queues of topics": "queues",
    "consumer groups that were joined": "joined_groups",
    "members of consumer groups": "members",
    "pairs of a group and a topic": "progress",
    "queues in which groups have an offset": "offsets",
    "finished ranges beyond groups' offsets": "finished_ranges",
    "messages handed out one by one": "unfinished",
    "rows of messages handed out one by one": "handouts",
    "ranges of dead letters sent again": "resent_ranges",
}
# What makes room for itself, has no bound of its own, or is no count of anything kept.
UNBOUNDED = {
    *("topics", "producers", "sequences", "groups", "leases", "messages_applied"),
    *("entries_applied", "entries_void", "level", "known_level"),
}


def test_each_is_told_with_its_own_count() -> None:
    numbers = {each.name: at for at, each in enumerate(fields(MachineStatistics), 1)}
    fills = {each.what: each for each in fills_of(MachineStatistics(**numbers), 77)}
    assert list(fills) == list(LIMITS)
    assert {each.what: each.limit for each in fills.values()} == LIMITS
    assert fills.pop("bytes of a snapshot of state").used == 77
    assert {what: each.used for what, each in fills.items()} == {
        what: numbers[name] for what, name in COUNTED.items()
    }


def test_nothing_that_is_counted_is_forgotten_here() -> None:
    """A new figure of the state is told here, or said to have no bound."""
    assert {*COUNTED.values()} | UNBOUNDED == {each.name for each in fields(MachineStatistics)}
