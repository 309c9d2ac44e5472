"""How long a watch that broke rests: by who else is heard."""

from __future__ import annotations

import pytest

from dledger.client.patience import ALONE, HEARD, REST_MIN_S, SERVED, Patience, Rests


@pytest.mark.parametrize(
    ("patience", "bounds"),
    [
        (ALONE, [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1]),
        (HEARD, [0.02, 1, 1, 1]),
        (SERVED, [0.02, 1, 5, 5]),
    ],
)
def test_rests_grow_up_to_their_bound(patience: Patience, bounds: list[float]) -> None:
    """Each is at least half of what it may be: those who lost a node together come apart."""
    rests = Rests()
    for bound in bounds:
        assert bound / 2 <= rests.next_s(patience) <= bound


def test_the_first_rest_is_short_again_once_the_node_was_heard() -> None:
    """A connection that is cut now and then is back at once each time."""
    rests = Rests()
    for _ in range(3):
        rests.next_s(SERVED)
    rests.forget()
    assert rests.next_s(SERVED) <= REST_MIN_S


def test_a_rest_is_no_longer_than_what_holds_now() -> None:
    """Somebody served when the last one began, and nobody does any more."""
    rests = Rests()
    for _ in range(3):
        rests.next_s(SERVED)
    assert rests.next_s(HEARD) <= HEARD.most_s
