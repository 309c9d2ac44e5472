"""What `flush = "async"` permits: the tail that a power cut took, and nothing else."""

from __future__ import annotations

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


def test_inventions_are_never_permitted() -> None:
    """No lost tail explains a message that nobody sent, or an answer out of order in itself."""
    verdict = judge(history_of(read=((1, "never sent"), (0, "nor this"))), [CUT])
    names = {each.name for each in verdict.anomalies}
    assert names == {"phantom", "int-nonmonotonic-poll"}
