"""A majority is lost, a survivor recovered by force, and the others come back: simulated."""

from __future__ import annotations

import os

import pytest

from chaos.sim.last_resort import run_last_resort

SEEDS = int(os.environ.get("LAST_RESORT_SEEDS", "24"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_epoch_keeps_what_it_acknowledged_and_serves_alone(seed: int) -> None:
    outcome = run_last_resort(seed)
    assert outcome.failure is None
    assert outcome.out >= 1
    assert outcome.acknowledged[1] >= 5


def test_the_schedule_reaches_what_it_is_about() -> None:
    """Power fails while the survivor is recovered; and those of before find each other, elect a
    leader, and serve clients that haven't heard of the recovery."""
    outcomes = [run_last_resort(seed) for seed in range(40, 64)]
    assert any(each.tries > 2 for each in outcomes)
    assert any(each.served_by_old for each in outcomes)
    assert {each.out for each in outcomes} >= {1, 2, 4}


def test_same_seed_same_run() -> None:
    assert run_last_resort(3) == run_last_resort(3)
