"""Who counts as gone, and when: by a model that looks at everybody on every tick."""

from __future__ import annotations

import random

import pytest

from broker.leader.groups.presence import SETTLE_TICKS, Presence

SESSION, AWAY = 8, 2
SESSIONS = range(1, 5)


class Model:
    """Each session by itself, and when its time is over."""

    def __init__(self) -> None:
        self.until: dict[int, int] = {}
        self.now = self.settled_at = self.back_at = 0

    def due(self) -> set[int]:
        if self.now < self.settled_at:
            return set()
        return {session for session, until in self.until.items() if until <= self.now}


STEPS = ("tick", "tick", "tick", "late", "heard", "broken", "forget", "begin")


@pytest.mark.parametrize("seed", range(20))
def test_each_is_due_at_its_own_time(seed: int) -> None:
    """Whatever was heard of it, and broke off, in whatever order."""
    chance = random.Random(seed)
    presence, model = Presence(SESSION, AWAY), Model()
    for _ in range(500):
        what, session = chance.choice(STEPS), chance.choice(SESSIONS)
        if what in ("tick", "late"):
            presence.on_tick(is_late=what == "late")
            model.now += 1
            if what == "late":
                model.settled_at = model.now + SETTLE_TICKS
        elif what == "heard":
            presence.heard(session)
            model.until[session] = model.now + SESSION
        elif what == "broken":
            presence.broken_off(session)
            if session in model.until:
                until = max(model.now + AWAY, model.back_at)
                model.until[session] = min(model.until[session], until)
        elif what == "forget":
            presence.forget(session)
            model.until.pop(session, None)
        else:
            presence.begin([session], SESSION)
            model.until = {session: model.now + SESSION}
            model.back_at = model.now + SESSION
        due = presence.due()
        assert set(due) == model.due()
        assert len(due) == len(set(due))
        assert due == sorted(due, key=model.until.__getitem__)


def test_a_member_whose_streams_break_again_and_again_costs_what_one_costs() -> None:
    """It is always back in time, for ever."""
    presence = Presence(SESSION, AWAY)
    presence.begin([7], SESSION)
    for _ in range(10_000):
        presence.on_tick(is_late=False)
        presence.broken_off(7)
        presence.heard(7)
        assert presence.due() == []
        assert len(presence._heap) <= 1 + SESSION // AWAY
    presence.forget(7)
    for _ in range(SESSION):
        presence.on_tick(is_late=False)
        presence.due()
    assert not presence._heap
