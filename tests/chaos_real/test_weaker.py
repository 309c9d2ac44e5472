"""What `flush = "async"` permits: the tail that a power cut took, and nothing else."""

from __future__ import annotations

import pytest

from chaos.checkers.history import (
    Action,
    Commit,
    Create,
    End,
    Exists,
    Fetch,
    History,
    Poll,
    Result,
    Send,
)
from chaos.real.verdict import judge
from chaos.real.weaker import HEARD_US, WINDOW_US, PowerCut
from dledger.history import Outcome

CUT = PowerCut(100_000_000, 100_500_000)


def history_of(
    *acknowledged_us: int, read: tuple[tuple[int, str], ...] = (), took_us: int = 1_000
) -> History:
    """Messages `m0`, `m1`, … acknowledged then, and what a last reading found."""
    history = History()
    for number, at_us in enumerate(acknowledged_us):
        send = history.invoke(at_us - took_us, "p0", Send("t", 0, number, (f"m{number}",)))
        history.complete(at_us, send, Outcome.OK, number)
    end_us = 200_000_000
    poll = history.invoke(end_us, "reader", Poll("t", 0, 0, seek=True, final=True))
    history.complete(end_us, poll, Outcome.OK, read)
    return history


def test_what_was_acknowledged_shortly_before_a_power_cut_may_be_gone() -> None:
    """It is told as permitted, and is no anomaly."""
    verdict = judge(history_of(CUT.start_us - WINDOW_US, CUT.struck_us), [CUT])
    assert verdict.anomalies == []
    assert [each.name for each in verdict.excused] == ["unseen", "unseen"]
    assert verdict.remarks == ["permitted, since flush is async and power was cut: 2 × unseen"]


def test_what_was_acknowledged_long_before_or_after_it_may_not() -> None:
    """It had been synced by then, or the power was back."""
    times = (CUT.start_us - WINDOW_US - 1, CUT.struck_us + 1_001)
    verdict = judge(history_of(*times), [CUT])
    assert [each.name for each in verdict.anomalies] == ["unseen", "unseen"]
    assert verdict.excused == []


def test_what_was_said_before_a_power_cut_may_be_heard_after_it() -> None:
    """Where the client has much to do; not where it was sent later, nor a long time after."""
    heard_us = CUT.struck_us + 190_000
    assert judge(history_of(heard_us, took_us=200_000), [CUT]).anomalies == []
    for at_us, took_us in ((heard_us, 180_000), (CUT.struck_us + HEARD_US + 1, HEARD_US + 2)):
        (found,) = judge(history_of(at_us, took_us=took_us), [CUT]).anomalies
        assert found.name == "unseen"


def test_without_a_power_cut_nothing_is_permitted() -> None:
    """The page cache survives a process: a loss is a loss."""
    verdict = judge(history_of(CUT.start_us), [])
    assert [each.name for each in verdict.anomalies] == ["unseen"]


def at_two_offsets(*times: tuple[int, int | None]) -> History:
    """One message, sent then (and answered, if it was, at offset 7), and read later at others."""
    history = History()
    (sent_us, answered_us), *reads = times
    send = history.invoke(sent_us, "p0", Send("t", 0, 0, ("m",)))
    if answered_us is not None:
        history.complete(answered_us, send, Outcome.OK, 7)
    for number, (asked_us, told_us) in enumerate(reads):
        poll = history.invoke(asked_us, f"c{number}", Poll("t", 0, 0, seek=True))
        history.complete(told_us or asked_us, poll, Outcome.OK, ((8 + number, "m"),))
    return history


AFTER = CUT.struck_us + 1
LONG_BEFORE = CUT.start_us - WINDOW_US - 1


@pytest.mark.parametrize(
    "times",
    [
        [(CUT.start_us - WINDOW_US, CUT.start_us - WINDOW_US), (AFTER, AFTER)],
        [(CUT.struck_us, CUT.struck_us + HEARD_US), (AFTER, AFTER)],
        # Nobody answered: what was read of it before the cut is gone, and it was sent again.
        [(1, None), (CUT.start_us, CUT.start_us), (AFTER, AFTER)],
    ],
)
def test_what_follows_from_a_lost_tail_is_permitted(times: list[tuple[int, int | None]]) -> None:
    """An offset was given twice: by a log before the cut, and by what is left of it."""
    verdict = judge(at_two_offsets(*times), [CUT])
    assert ([each.name for each in verdict.excused], verdict.anomalies) == (["duplicate"], [])


@pytest.mark.parametrize(
    "times",
    [
        [(AFTER, AFTER), (AFTER, AFTER)],
        [(AFTER, None), (AFTER, AFTER), (AFTER, AFTER)],
        [(LONG_BEFORE, LONG_BEFORE), (AFTER, AFTER)],
        [(LONG_BEFORE, LONG_BEFORE), (LONG_BEFORE, LONG_BEFORE)],
        [(CUT.start_us - 2, CUT.start_us - 2), (CUT.start_us - 1, CUT.start_us - 1)],
    ],
)
def test_what_no_lost_tail_explains_is_an_anomaly(times: list[tuple[int, int | None]]) -> None:
    """Though power was cut in the run: all of it came later, or was synced, or was seen before."""
    verdict = judge(at_two_offsets(*times), [CUT])
    assert ([each.name for each in verdict.anomalies], verdict.excused) == (["duplicate"], [])


def test_inventions_are_never_permitted() -> None:
    """No lost tail explains a message that nobody sent, or an answer out of order in itself."""
    verdict = judge(history_of(read=((1, "never sent"), (0, "nor this"))), [CUT])
    names = {each.name for each in verdict.anomalies}
    assert names == {"phantom", "int-nonmonotonic-poll"}


# --- what is permitted hides nothing -----------------------------------------------------------

Said = tuple[int, Action, Result]
OFFSET = ("t", "g", 0)
IN_THE_TAIL = CUT.start_us - 1_000


def told_of(*said: Said) -> History:
    """What was asked then, a microsecond each, and answered at once."""
    history = History()
    for at_us, action, result in said:
        history.complete(at_us + 1, history.invoke(at_us, "c", action), Outcome.OK, result)
    return history


def read_end(at_us: int, end: int) -> Said:
    return at_us, End("t", 0), end


def fetch(at_us: int, offset: int) -> Said:
    return at_us, Fetch(*OFFSET), offset


def polled(at_us: int, offset: int, value: str) -> Said:
    return at_us, Poll("t", 0, offset, seek=True), ((offset, value),)


GONE: dict[str, list[Said]] = {
    "ends": [read_end(IN_THE_TAIL, 10), read_end(AFTER, 5)],
    "offsets": [(IN_THE_TAIL, Commit(*OFFSET, 10), 10), fetch(AFTER, 5)],
    "topics": [(IN_THE_TAIL, Create("t", 1), None), (AFTER, Exists("t"), False)],
    "values": [polled(IN_THE_TAIL, 5, "m"), polled(AFTER, 7, "m")],
    "places": [polled(IN_THE_TAIL, 5, "m"), polled(AFTER, 5, "n")],
}


@pytest.mark.parametrize(
    ("what", "later"),
    [
        ("ends", [read_end(AFTER + 10, 20), read_end(AFTER + 20, 15)]),
        # Before the power was cut: what has the place now is excused, and this is not.
        ("ends", [read_end(IN_THE_TAIL + 10, 7)]),
        ("offsets", [fetch(AFTER + 10, 7), fetch(AFTER + 20, 6)]),
        ("offsets", [(AFTER + 10, Commit(*OFFSET, 8), 8), fetch(AFTER + 20, 6)]),
        ("topics", [(AFTER + 10, Create("t", 1), None), (AFTER + 20, Exists("t"), False)]),
        ("values", [polled(AFTER + 10, 8, "m")]),
        ("values", [polled(IN_THE_TAIL + 10, 6, "m")]),
        ("places", [polled(AFTER + 10, 5, "o")]),
        ("places", [polled(AFTER + 10, 5, "m")]),
    ],
)
def test_what_is_permitted_hides_nothing_that_is_not(what: str, later: list[Said]) -> None:
    """Of the same queue, or key: the later one is told in its stead."""
    rules = {"values": "duplicate", "places": "inconsistent-offsets"}
    rule = rules.get(what, "not-linearizable")
    alone = judge(told_of(*GONE[what]), [CUT])
    assert rule in {each.name for each in alone.excused}
    assert rule not in {each.name for each in alone.anomalies}
    assert alone.undecided == []
    both = judge(told_of(*sorted([*GONE[what], *later], key=lambda each: each[0])), [CUT])
    assert [each.name for each in both.anomalies].count(rule) == 1


def test_an_end_that_was_known_after_the_cut_makes_a_read_stale() -> None:
    """Though a higher one was known before it, which may be gone."""
    said = [read_end(IN_THE_TAIL, 20), read_end(AFTER, 10), read_end(AFTER + 10, 7)]
    names = [each.name for each in judge(told_of(*said), [CUT]).anomalies]
    assert names == ["stale-read", "not-linearizable"]
    verdict = judge(told_of(*said[:2]), [CUT])
    assert verdict.anomalies == []


def test_what_nobody_searched_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind so many contradictions that are permitted: a run of which that is so doesn't hold."""
    monkeypatch.setattr("chaos.checkers.linearizability.MAX_CONTRADICTIONS", 1)
    verdict = judge(told_of(*GONE["offsets"]), [CUT])
    assert verdict.anomalies == []
    assert "offset of g in t/0: it contradicts itself 1 times" in verdict.undecided[0]
