"""A member that can be called and can't call: the round of it that some seeds go through."""

from dataclasses import replace

import pytest

from chaos.sim.drawing.plans import draw_plan
from chaos.sim.one_way import OneWay
from chaos.sim.run import Run


def test_preferred_member_that_cannot_call_takes_nobody_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everybody is whole, an operator prefers it, and its calls reach nobody for 100 s."""
    rounds: list[OneWay] = []
    go_through = OneWay.go_through

    def noted(self: OneWay) -> bool:
        rounds.append(self)
        return go_through(self)

    monkeypatch.setattr(OneWay, "go_through", noted)
    plan = replace(draw_plan(502, duration_ms=1_000), one_way=True, one_away=False, faults=())
    assert Run(plan).to_the_end() is None
    assert [each.was_preferred for each in rounds] == [True]
    assert rounds[0].moves > 1  # it was tried
