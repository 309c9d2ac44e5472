"""What is measured of a run, and the three ways in which it is shown."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner

from chaos.checkers.anomalies import Anomaly
from chaos.checkers.history import Create, Delete, Exists, Poll
from chaos.checkers.linearizability import Explained
from chaos.cli import app
from chaos.errors import SearchTooLong
from chaos.real.finished import Band, check
from chaos.real.measure import Spread, report_facts, silence_ms, slices
from chaos.real.page import page
from chaos.real.picture import timeline
from chaos.real.scenario import Strike, Wait
from chaos.real.terminal import print_report, verdict
from chaos.real.verdict import unanswered, untested
from chaos.real.workload import Acknowledgements
from dledger.history import Outcome
from dledger.outcome import ExitCode
from dledger.terminal.figures import percentile
from tests.chaos_real.finished_run import SECOND, finished_run

SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)


@pytest.fixture
def facts() -> dict[str, Any]:
    finished = finished_run()
    check(finished)
    return report_facts(finished)


def shown(facts: dict[str, Any]) -> str:
    out = io.StringIO()
    print_report(facts, Console(file=out, width=200))
    return out.getvalue()


def acknowledged_at(*moments_ms: float) -> Acknowledgements:
    acks = Acknowledgements()
    for moment in moments_ms:
        acks.add(int(moment * 1000), 1_000, b"host")
    return acks


# --- measuring --------------------------------------------------------------------------------


def test_failover_ends_with_the_first_acknowledgement_of_another_node(
    facts: dict[str, Any],
) -> None:
    """The dead leader's last answer, which came 4 ms after its death, doesn't count."""
    assert facts["bands"][0]["failover_ms"] == pytest.approx(154.0)
    assert facts["bands"][1]["failover_ms"] is None
    assert facts["failover_ms"]["count"] == 1


def test_failover_under_another_fault_is_not_measured() -> None:
    """It would tell of both; one that began after the next leader served does no harm."""
    finished = finished_run()
    meanwhile = Band("slow", "slow-disk", ("n2",), 2_100_000, 2_100_000, 2_120_000)
    finished.bands.append(meanwhile)
    assert report_facts(finished)["bands"][0]["failover_ms"] is None
    meanwhile.start_us, meanwhile.end_us = 2_200_000, 2_300_000
    assert report_facts(finished)["bands"][0]["failover_ms"] == pytest.approx(154.0)


def test_silence_is_the_longest_gap_that_touches_the_fault() -> None:
    """Gaps before and after it are not its doing."""
    acks = acknowledged_at(0, 500, 510, 600, 610, 1_900)
    assert silence_ms(acks, 505_000, 605_000) == 90
    assert silence_ms(acks, 590_000, 1_000_000) == 1_290
    assert silence_ms(acks, 100_000, 200_000) == 500
    assert silence_ms(Acknowledgements(), 0, SECOND) is None


def test_percentile_is_a_value_that_was_measured() -> None:
    """Nothing is made up between two values."""
    assert percentile([1.0, 2.0, 3.0, 100.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0, 100.0], 0.99) == 100.0
    assert Spread.of([]) is None
    assert Spread.of([3.0, 1.0]) == Spread(2, 1.0, 1.0, 3.0, 3.0)


def test_slices_hold_every_acknowledgement_and_show_where_there_was_none() -> None:
    """A long run has wider ones, so that the page stays small."""
    acks = acknowledged_at(10, 20, 250, 999)
    found = slices(acks, SECOND)
    assert (found.slice_ms, found.acknowledged) == (100, [2, 0, 1, 0, 0, 0, 0, 0, 0, 1])
    assert found.p50_ms[:3] == [1.0, None, 1.0]
    long = slices(acks, 1800 * SECOND)
    assert len(long.acknowledged) <= 600
    assert sum(long.acknowledged) == 4


def test_counts_say_what_became_of_the_messages(facts: dict[str, Any]) -> None:
    """A clean history has none of the others."""
    assert facts["sends"] == {"sent": 386, "acknowledged": 386, "failed": 0, "unknown": 0}
    assert facts["counts"]["lost"] == facts["counts"]["anomalies"] == 0
    assert facts["holds"]
    assert json.loads(json.dumps(facts)) == facts


def test_a_problem_or_an_anomaly_makes_the_run_not_hold() -> None:
    """Whatever the rest says."""
    finished = finished_run()
    finished.problems = ["n2 ended by itself"]
    assert not report_facts(finished)["holds"]
    finished = finished_run()
    finished.anomalies = [Anomaly("lost-write", "chaos/0", "p0-0-1")]
    facts = report_facts(finished)
    assert not facts["holds"]
    assert facts["counts"]["lost"] == 1


def test_what_the_last_reading_misses_is_lost_though_a_consumer_had_seen_it() -> None:
    """No poll of the whole history misses it, so no anomaly of the vocabulary speaks of it."""
    finished = finished_run()
    *_, last = finished.history.operations
    seen = finished.history.invoke(4 * SECOND, "c0", Poll("chaos", 0, 385))
    finished.history.complete(4 * SECOND, seen, Outcome.OK, ((385, "p0-0-399"),))
    assert isinstance(last.result, tuple)
    last.result = last.result[:-1]
    check(finished)
    assert finished.anomalies == []
    assert (finished.lost, finished.holds) == (1, False)
    assert "1 acknowledged messages are not there in the end: p0-0-399" in finished.problems[0]


def test_run_that_came_to_nothing_does_not_hold() -> None:
    """Without a message, a fault, or a message for its groups it holds for nothing."""
    finished = finished_run()
    finished.acknowledged = Acknowledgements()
    check(finished)
    assert finished.problems == ["no message was acknowledged: nothing was tested"]
    assert not finished.holds
    assert untested(acknowledged=1, planned=2, struck=1, members=0, handled={}) == []
    (found,) = untested(acknowledged=1, planned=2, struck=0, members=0, handled={})
    assert "no fault hit anybody" in found
    (found,) = untested(acknowledged=1, planned=0, struck=0, members=2, handled={})
    assert "isn't known" in found
    handled = {"any-order": 7, "in-order": 0}
    (found,) = untested(acknowledged=1, planned=0, struck=0, members=2, handled=handled)
    assert "group in-order handled no message" in found


def test_run_after_which_nothing_works_does_not_hold() -> None:
    """Everything was right until the faults, and nobody was told anything any more."""
    finished = finished_run()
    finished.healed_us = 5 * SECOND
    check(finished)
    assert finished.problems == [
        "no message was acknowledged that was sent when all was well again"
    ]
    history = finished.history
    for number in range(5):
        history.invoke(number, "k0", Exists("t"))
        refused = history.invoke(number, "k0", Create("t", 1))
        history.refuse(number, refused, "TOPIC_EXISTS")
        history.refuse(number, history.invoke(number, "k0", Delete("t")), "NOT_READY")
    assert unanswered(history, 0) == [
        "none of 5 calls was answered: exists",
        "none of 5 calls was answered: delete",
    ]


def test_strikes_that_hit_nobody_are_told_and_none_counts_as_a_fault() -> None:
    """A schedule of which nothing was carried out shows nothing; one of which some was says what
    wasn't."""
    finished = finished_run()
    struck = Strike("pause", ("leader",), {}, "pause")
    finished.options = replace(finished.options, steps=(struck, Wait(1), struck))
    finished.skipped = [("pause", "nobody leads"), ("pause", "nobody leads")]
    bands, finished.bands = finished.bands, []
    check(finished)
    assert finished.problems == ["no fault hit anybody: nothing was tested"]
    assert "skipped: 2 × pause, nobody leads" in shown(report_facts(finished))
    assert report_facts(finished)["skipped"] == {"pause": 2}
    finished.bands, finished.problems = bands, []
    check(finished)
    assert finished.problems == []


# --- showing ----------------------------------------------------------------------------------


def test_terminal_names_the_verdict_and_the_figures(facts: dict[str, Any]) -> None:
    """The last line is what to look at."""
    text = shown(facts)
    assert "min / median / p99 / max of 1" in text
    assert "154.0 / 154.0 / 154.0 / 154.0" in text
    assert text.strip().splitlines()[-1] == "holds: no anomaly, and nothing else went wrong"


def test_terminal_tells_anomalies_and_problems_in_full() -> None:
    """With how many of each kind there are in the end."""
    finished = finished_run()
    finished.anomalies = [Anomaly("unseen", "chaos/1", f"p1-1-{n} is gone") for n in range(25)]
    finished.problems = ["digests differ: [n1] a, n2 b"]
    text = shown(report_facts(finished))
    assert "ANOMALY unseen in chaos/1: p1-1-0 is gone" in text
    assert "and 5 more anomalies" in text
    assert "PROBLEM: digests differ: [n1] a, n2 b" in text
    assert verdict(report_facts(finished)) == "DOES NOT HOLD: 25 × unseen; 1 problem"


def test_an_anomaly_that_stands_for_others_counts_as_so_many() -> None:
    """In the last line, and in what is counted."""
    finished = finished_run()
    finished.anomalies = [Anomaly("forgotten", "g", "a"), Anomaly("forgotten", "g", "b", count=9)]
    facts = report_facts(finished)
    assert (facts["anomaly_counts"], facts["counts"]["anomalies"]) == ({"forgotten": 10}, 10)


def test_page_needs_nothing_but_itself(facts: dict[str, Any]) -> None:
    """No script, no file, no network."""
    text = page(facts)
    assert not re.search(r"<script|<link|<img|src=|url\(|@import|https?://", text)


def test_page_has_the_shortest_failover_and_the_longest() -> None:
    """Of two kills: each of the figures that the summary in the terminal has."""
    facts = report_facts(finished_run())
    facts["failover_ms"] = {"count": 2, "min": 120.0, "median": 154.0, "p99": 200.0, "max": 210.0}
    assert "median of 2; min 120, p99 200, max 210" in page(facts)


def test_page_escapes_what_comes_from_elsewhere(facts: dict[str, Any]) -> None:
    """A scenario's name, a detail: text, never markup."""
    facts["problems"] = ["<i>broken</i>"]
    text = page(facts)
    assert "kill-&lt;leader&gt;" in text
    assert "kill-<leader>" not in text
    assert "<b>detail" not in text
    assert "<i>broken" not in text


def test_page_says_what_did_not_hold() -> None:
    """In the title, beside the name, and in words."""
    finished = finished_run()
    finished.anomalies = [Anomaly("lost-write", "chaos/0", "p0-0-1 is gone")]
    text = page(report_facts(finished))
    assert "does not hold</title>" in text
    assert '<span class="verdict bad">does not hold</span>' in text
    assert "<b>1 × lost-write</b>: acknowledged, passed over" in text
    assert "chaos/0: p0-0-1 is gone" in text


@pytest.mark.parametrize("width", [1160, 358])
def test_picture_is_well_formed_and_stays_within_its_frame(
    facts: dict[str, Any], width: int
) -> None:
    """Every bar lies between the left names and the right edge."""
    picture = ElementTree.fromstring(timeline(facts, width))
    bars = [each for each in picture.iter() if each.tag.endswith("rect")]
    roles = [each for each in bars if each.attrib["class"].startswith("role")]
    assert len(roles) == 7
    assert {each.attrib["class"].split()[1] for each in roles} == {
        "leader",
        "follower",
        "candidate",
        "silent",
    }
    for bar in bars:
        left = float(bar.attrib["x"])
        assert left >= 60
        assert left + float(bar.attrib["width"]) <= width


def test_picture_of_a_run_without_a_single_acknowledgement(facts: dict[str, Any]) -> None:
    """It is drawn all the same: that is when one looks."""
    finished = finished_run()
    finished.acknowledged = Acknowledgements()
    finished.bands = []
    picture = page(report_facts(finished))
    assert len(SVG.findall(picture)) == 2
    for each in SVG.findall(picture):
        ElementTree.fromstring(each)


def test_many_faults_are_summed_up_and_folded(facts: dict[str, Any]) -> None:
    """A run of half an hour has hundreds."""
    finished = finished_run()
    finished.bands *= 20
    text = page(report_facts(finished))
    assert "<summary>All 40 faults</summary>" in text
    assert text.index("<summary>") > text.index("worst failover")


@pytest.mark.parametrize(
    ("victims", "count"), [(("n1",), 1), (("n1", "n2"), None), (("n1", "n2", "n3"), None)]
)
def test_planned_change_needs_a_majority_that_stays(
    victims: tuple[str, ...], count: int | None
) -> None:
    """Silence after all were asked to stop says nothing of handing over."""
    finished = finished_run()
    finished.bands = [Band("terminate", "terminate", victims, 2 * SECOND, 2_010_000, 3 * SECOND)]
    spread = report_facts(finished)["planned_silence_ms"]
    assert (spread and spread["count"]) == count


# --- checking again ---------------------------------------------------------------------------


def left_behind(folder: Path) -> Path:
    """The folder of a run that holds."""
    finished = finished_run()
    check(finished)
    lines = "".join(f"{line}\n" for line in finished.history.lines())
    (folder / "history.jsonl").write_text(lines, encoding="utf-8")
    facts = json.dumps(report_facts(finished))
    (folder / "report.json").write_text(facts, encoding="utf-8")
    return folder


def checked_again(folder: Path) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["report", str(folder)])
    return ended.exit_code, ended.stderr


@pytest.mark.parametrize("kept", [0, 1, -2, -1])
def test_history_that_was_cut_between_two_lines_is_not_judged(tmp_path: Path, kept: int) -> None:
    """What is left is a good history: one that lacks the last reading, and so shows nothing."""
    folder = left_behind(tmp_path)
    assert checked_again(folder) == (0, "")
    history = folder / "history.jsonl"
    lines = history.read_text(encoding="utf-8").splitlines(keepends=True)
    history.write_text("".join(lines[:kept]), encoding="utf-8")
    exit_code, told = checked_again(folder)
    assert exit_code == 2
    assert f"cut short: it has {len(lines[:kept]):,} events, the run wrote {len(lines):,}" in told


def test_anomaly_that_a_changed_history_shows_is_found_again(tmp_path: Path) -> None:
    """The verdict is that of the history as it is, not the one that was written down."""
    history = left_behind(tmp_path) / "history.jsonl"
    text = history.read_text(encoding="utf-8")
    history.write_text(text.replace('[7,"p0-0-7"]', '[7,"p0-0-6"]'), encoding="utf-8")
    assert checked_again(tmp_path)[0] == 1
    facts = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert not facts["holds"]
    assert set(facts["anomaly_counts"]) == {"inconsistent-offsets", "duplicate", "lost-write"}


def test_history_too_concurrent_to_decide_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the run nor in a look at it later: no verdict that wasn't reached, and what was
    found beside it counts."""
    error = SearchTooLong("topic t", 70, 2)
    left_behind(tmp_path)
    monkeypatch.setattr(
        "chaos.real.verdict.check_linearizability", lambda _: Explained(undecided=[error])
    )
    finished = finished_run()
    check(finished)
    assert (finished.holds, finished.ending) == (False, ExitCode.INCOMPLETE)
    facts = report_facts(finished)
    assert "topic t: 70 operations" in facts["undecided"][0]
    assert shown(facts).splitlines()[-1].startswith("UNDECIDED")
    assert "undecided</title>" in page(facts)
    assert checked_again(tmp_path) == (3, "")
    assert checked_again(tmp_path) == (3, "")
    again = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (again["undecided"], again["holds"]) == (facts["undecided"], False)
    finished.problems = ["n2 ended by itself"]
    assert finished.ending is ExitCode.FAILED
    assert "DOES NOT HOLD: 1 problem" in shown(report_facts(finished))


def test_report_of_another_kind_and_a_missing_history_are_told(tmp_path: Path) -> None:
    """In one line, with exit code 2."""
    folder = left_behind(tmp_path)
    (folder / "history.jsonl").unlink()
    assert checked_again(folder)[0] == 2
    facts = {"format": "dledger-chaos-report/1", "problems": []}
    (folder / "report.json").write_text(json.dumps(facts), encoding="utf-8")
    exit_code, told = checked_again(folder)
    assert exit_code == 2
    assert "lacks counts, history_events, remarks" in told
