"""A majority is lost, a survivor recovered by force, and the others come back: simulated."""

from __future__ import annotations

import functools
import os

import pytest

from chaos.sim.last_resort import Outcome, run_last_resort

SEEDS = int(os.environ.get("LAST_RESORT_SEEDS", "24"))
REACHED = 12  # seeds, which reach together what this is about, but for one thing
SERVED_BY_OLD = 14  # one that reaches that


@functools.cache
def outcome_of(seed: int) -> Outcome:
    """Of a run that several tests look at."""
    return run_last_resort(seed)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(each, marks=pytest.mark.long if each >= REACHED else ())
        for each in range(SEEDS)
    ],
)
def test_an_epoch_keeps_what_it_acknowledged_and_serves_alone(seed: int) -> None:
    outcome = outcome_of(seed)
    assert outcome.failure is None
    assert outcome.out >= 1
    assert outcome.acknowledged[1] >= 5


def test_the_schedule_reaches_what_it_is_about() -> None:
    """Power fails while the survivor is recovered; and those of before find each other, elect a
    leader, and serve clients that haven't heard of the recovery."""
    outcomes = [outcome_of(seed) for seed in range(REACHED)]
    assert any(each.tries > 2 for each in outcomes)
    assert outcome_of(SERVED_BY_OLD).served_by_old
    assert {each.out for each in outcomes} >= {1, 2, 4}
    assert any(each.sessions for each in outcomes)


def test_same_seed_same_run() -> None:
    assert run_last_resort(3) == outcome_of(3)
