"""A rule that had nothing to go by is told: that it found nothing proves nothing."""

from __future__ import annotations

import pytest

from chaos.checkers.deliveries import Group, Handling, How, Style, Told, without_evidence
from chaos.checkers.history import History, Poll
from chaos.real.crew import Deliveries
from chaos.real.deliveries import Fault, check_deliveries
from chaos.real.retired import READER
from dledger.history import Outcome

COMMIT = "handled-after-commit: nobody was told of a commit while members were at work"
ACK = "handled-after-ack: no acknowledgement was answered"
CLOCK = "given-while-hidden: clocks were changed"


def group(*told: Told, style: Style = Style.ANY_ORDER, settled_us: int | None = None) -> Group:
    """Two messages, done one after the other."""
    handlings = [
        Handling("a#1", f"v{at}", 1_000 * at, 1_000 * at + 10, How.DONE, 1_000 * at, settled_us)
        for at in range(2)
    ]
    return Group("g", style, handlings, told)


def history() -> History:
    """Both were there in the end."""
    made = History()
    reading = made.invoke(0, READER, Poll("chaos", 0, 0, seek=True, final=True))
    made.complete(1, reading, Outcome.OK, ((0, "v0"), (1, "v1")))
    return made


def remarks(judged: Group, *nemeses: str) -> list[str]:
    faults = [Fault(each, 0, 1) for each in nemeses]
    found = check_deliveries(Deliveries([judged], [], 0), history(), 1, faults, may_lose=False)
    assert (found.anomalies, found.undecided) == ([], [])
    return [each.removeprefix("not checked in g: ") for each in found.remarks]


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ((), [COMMIT]),  # each question how far the group is was refused
        ((Told(500, 0, 0),), [COMMIT]),
        ((Told(5_000, 0, 2),), [COMMIT]),  # at the end, when nobody was at work any more
        ((Told(500, 0, 1),), []),
    ],
)
def test_commits_that_nobody_was_told_of_are_no_evidence(
    told: tuple[Told, ...], wanted: list[str]
) -> None:
    assert remarks(group(*told)) == wanted


def test_single_messages_want_acknowledgements_and_clocks() -> None:
    """Hidden for how long, only they say."""
    told = Told(500, 0, 1)
    assert remarks(group(told, style=Style.SINGLY, settled_us=1_500), "kill") == []
    assert remarks(group(told, style=Style.SINGLY)) == [ACK]
    changed = group(told, style=Style.SINGLY, settled_us=1_500)
    assert remarks(changed, "clock-step") == [CLOCK]


def test_a_group_that_did_nothing_is_told_elsewhere() -> None:
    """As one of which nothing was tested."""
    assert without_evidence(Group("g", Style.SINGLY, [], [])) == []
