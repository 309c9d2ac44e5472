"""The trend page: each span's worst, gaps that are no zeros, and nothing that a name can break."""

from __future__ import annotations

import re
from dataclasses import replace

from audit.keeping.history import ReplicaRound, Round, failed_round
from audit.showing.trend_page import MAX_SPANS, SHOWN_BAD, render_trend
from dledger.outcome import ExitCode

NAME = "<b>n1</b>"
GOOD = Round(
    1_800_000_000.0, 1_800_000_010.0, "identical", 0, end=1000, read=500, believed=4000,
    since=1_799_999_000.0, replicas=(ReplicaRound(NAME, "identical", 1000, 0),),
)  # fmt: skip


def many(count: int) -> list[Round]:
    return [
        replace(GOOD, begun=GOOD.begun + 60 * n, finished=GOOD.finished + 60 * n)
        for n in range(count)
    ]


def titles(page: str) -> list[str]:
    return re.findall(r"<title>[^<]*: ([^<]*)</title>", page)


def test_one_bad_round_among_thousands_is_drawn() -> None:
    """It is the worst of its span, whatever comes behind it; so are its findings and its lag."""
    rounds = many(2000)
    lag = (ReplicaRound(NAME, "bit rot", 1000, 777),)
    rounds[900] = replace(
        rounds[900], outcome="bit rot", exit_code=1, finding_count=3, findings=("x", "y"),
        replicas=lag,
    )  # fmt: skip
    page = render_trend(rounds, "audits")
    assert titles(page).count("bit rot") == 1
    assert titles(page).count("identical") == MAX_SPANS - 1
    assert "777 B" in titles(page)
    assert "2,000 rounds, 1 of them not identical; the worst ended with exit code 1" in page
    assert "and 1 more" in page


def test_damage_is_shown_before_what_was_incomplete() -> None:
    """However many rounds of that came after it."""
    rounds = many(2 * SHOWN_BAD)
    rounds[1:] = [replace(each, outcome="incomplete", exit_code=3) for each in rounds[1:]]
    rounds[0] = replace(rounds[0], outcome="bit rot", exit_code=1, findings=("n2 has rotted",))
    page = render_trend(rounds, "audits")
    assert "n2 has rotted" in page


def test_time_without_rounds_is_a_gap_and_zero_is_a_mark() -> None:
    """Not to know is not to know that there is none."""
    rounds = many(10)
    rounds = [*rounds[:3], *rounds[7:]]
    page = render_trend(rounds, "audits")
    verdicts = page.partition("Findings; highest")[0]
    assert len(titles(verdicts)) < len(rounds)
    assert titles(page).count("0") == len(titles(verdicts))


def test_failed_round_is_told_and_counts_as_no_zero() -> None:
    """Its reason stands on the page; nothing was read, and nothing was known."""
    failed = failed_round(GOOD.begun + 90, GOOD.begun + 91, "no <answer>", ExitCode.INCOMPLETE)
    page = render_trend([GOOD, failed], "audits")
    assert "no &lt;answer&gt;" in page
    assert titles(page).count("failed") == 1
    assert titles(page).count("0") == 1


def test_names_are_text_and_an_empty_history_is_a_page() -> None:
    """Nobody's name is a tag."""
    assert NAME not in render_trend([GOOD], "audits")
    assert "&lt;b&gt;n1&lt;/b&gt;" in render_trend([GOOD], "audits")
    assert "no round yet" in render_trend([], "audits")


def test_clock_that_was_set_far_away_breaks_no_page() -> None:
    """Times that no calendar has, and a history whose end lies before its begin."""
    far = replace(GOOD, begun=1e18, finished=1e18, since=-1e18)
    early = replace(GOOD, begun=5.0, finished=4.0)
    assert "1e+18 s" in render_trend([GOOD, far, early], "audits")
