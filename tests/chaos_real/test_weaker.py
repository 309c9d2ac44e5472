"""What `flush = "async"` permits: the tail that a power cut took, and nothing else."""

from __future__ import annotations

import pytest

from chaos.checkers.history import History, Poll, Send
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
