"""Waiting for the group ends when it stands still, and in any case at last."""

from __future__ import annotations

from chaos.real.patience import Patience


def test_patience_lasts_while_things_get_on() -> None:
    """However slowly; and it ends `still_s` after the last step."""
    now = 0.0
    patience = Patience(10, 100, clock=lambda: now)
    for reached in range(5):
        assert not patience.is_over(reached)
        now += 9
    assert not patience.is_over(4)  # nothing new
    now += 1
    assert patience.is_over(4)


def test_patience_ends_at_last() -> None:
    now = 0.0
    patience = Patience(10, 25, clock=lambda: now)
    over = []
    for reached in range(4):
        over.append(patience.is_over(reached))
        now += 9
    assert over == [False, False, False, True]
