"""The benchmarks of delivery: small ones of real groups, of which no figure is judged but what must
hold; and what is reckoned from what processes say."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dledger_cli.bench import cli, members
from dledger_cli.bench.crew import Worker, crew
from dledger_cli.bench.rebalance import Seen

runner = CliRunner()


def figures_of(folder: Path, *arguments: str) -> dict[str, float]:
    """Each figure's median; nothing is left behind."""
    words = [*arguments, "--rounds", "1", "--json", "--dir", str(folder / "run")]
    result = runner.invoke(cli.app, words)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["benchmark"] == arguments[0]
    assert list(folder.iterdir()) == []
    return {figure["name"]: figure["median"] for figure in facts["figures"]}


@pytest.mark.slow
@pytest.mark.long
def test_idle_members_are_counted_and_come_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two processes with two each; the leader dies once."""
    monkeypatch.setattr(members, "CALM_S", 0.1)
    small = ["--members", "4", "--groups", "2", "--processes", "2", "--seconds", "0.2"]
    found = figures_of(tmp_path, "members", *small)
    assert found["kill_to_all_back"] > 0
    assert found["all_joined"] > 0


@pytest.mark.slow
@pytest.mark.long
def test_workers_acknowledge_everything_once(tmp_path: Path) -> None:
    """From a filled topic, and beside a producer."""
    small = [
        "--messages",
        "500",
        "--seconds",
        "0.3",
        "--under-way",
        "4",
        "--nodes",
        "1",
        "--workers",
        "2",
    ]
    found = figures_of(tmp_path, "pop", *small)
    assert (found["failed"], found["acknowledged_again"]) == (0, 0)
    assert found["from_a_filled_topic"] > 0
    assert found["beside_producers"] > 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("_nodes_are_started")
def test_topics_are_made_filled_and_started_with(tmp_path: Path) -> None:
    """A few of them."""
    found = figures_of(tmp_path, "topics", "--topics", "20", "--queues", "2", "--nodes", "2")
    assert found["creations"] > 0
    assert found["start"] > 0
    assert found["memory_started"] > 0


@pytest.mark.slow
@pytest.mark.long
def test_queues_are_at_work_again_when_a_member_dies(tmp_path: Path) -> None:
    """Two members and a third one; and one that joins two."""
    small = ["--members", "2", "--queues", "4", "--many", "2", "--many-queues", "6", "--nodes", "1"]
    found = figures_of(tmp_path, "rebalance", *small)
    assert found["death_to_all_at_work"] > 0
    assert found["join_to_work"] > 0
    assert 0 < found["moved_by_1_joining_2"] <= 6 + 8


def test_arguments_that_make_no_sense_are_usage_errors() -> None:
    """Before anything is started."""
    wrong = ["pop", "--under-way", "1", "--workers", "2"], ["rebalance", "--members", "1"]
    for arguments in wrong:
        assert runner.invoke(cli.app, arguments).exit_code == 2


def test_who_took_a_queue_over_and_how_long_somebody_was_idle() -> None:
    """By what the workers say, in whichever order it is heard."""
    seen = Seen()
    for who, line in [(1, "at work 1.0"), (1, "0 2.0"), (2, "1 2.5"), (1, "0 3.0"), (2, "0 4.5")]:
        seen.hear(who, line)
    assert seen.began == {1: 1.0}
    assert [seen.holder(queue_id) for queue_id in (0, 1)] == [2, 2]
    assert seen.taken_over(0, 2.5, 1) == 4.5
    assert seen.taken_over(1, 2.5, 1) is None
    assert seen.longest_pause(2, 1.0, 5.0) == 2.0


def test_a_process_that_fails_is_told_and_none_is_left() -> None:
    """One that has no group to go to."""

    async def failing() -> Worker:
        words = ("nowhere", "g", "t", "1", "1", "1")
        async with crew("pop_worker", [words]) as (worker,):
            with pytest.raises(RuntimeError, match="ended with"):
                await worker.until_it_says(1)
            return worker

    assert asyncio.run(failing()).process.poll() is not None
