"""`dledger bench`: what the commands take, what they print, how they end, what they leave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from broker.local_group import LocalNode
from dledger_cli.bench import cli, failover, produce
from dledger_cli.bench.arena import Arena
from dledger_cli.bench.figures import Comparison, Figure, Report, Spread, Target
from dledger_cli.bench.produce import PROMISES, Case

runner = CliRunner()


def report_of(value: float, *, must: bool) -> Report:
    target = Target(Comparison.AT_MOST, 0, must=must)
    return Report("fake", {}, (), (Figure("lost", "msgs", Spread.of([value]), target=target),))


def fake_benchmark(
    monkeypatch: pytest.MonkeyPatch, report: Report
) -> list[tuple[Arena, dict[str, object]]]:
    """Puts a benchmark that starts nothing in the place of each; what it was called with."""
    called: list[tuple[Arena, dict[str, object]]] = []

    def fake(
        place: Arena, _echo: str, *more: object, **options: object
    ) -> Coroutine[None, None, Report]:
        called.append((place, {**options, "more": more}))

        async def measured() -> Report:
            return report

        return measured()

    names = ("measure_produce", "measure_consume", "end_to_end", "measure_failover")
    for name in (*names, "measure_steady"):
        monkeypatch.setattr(cli, name, fake)
    return called


@pytest.mark.parametrize(
    ("report", "arguments", "code"),
    [
        (report_of(0, must=True), [], 0),
        (report_of(1, must=False), [], 0),
        (report_of(1, must=False), ["--strict"], 1),
        (report_of(1, must=True), [], 1),
    ],
)
def test_exit_code_tells_what_must_hold(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    report: Report,
    arguments: list[str],
    code: int,
) -> None:
    """A lost message fails; a missed target only if asked for."""
    fake_benchmark(monkeypatch, report)
    result = runner.invoke(cli.app, ["e2e", "--dir", str(tmp_path / "run"), *arguments])
    assert result.exit_code == code, result.output
    assert "lost" in result.output


def test_json_is_one_object(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the machine that it was taken on, and nothing beside it on standard output."""
    fake_benchmark(monkeypatch, report_of(0, must=True))
    result = runner.invoke(cli.app, ["consume", "--json", "--dir", str(tmp_path / "run")])
    facts = json.loads(result.stdout)
    assert (facts["format"], facts["benchmark"], facts["holds"]) == (
        "dledger-bench/1",
        "fake",
        True,
    )
    assert facts["machine"]["cpus"] >= 1


def test_all_runs_every_benchmark_on_a_group_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Six reports, and each group is gone when the next begins."""
    called = fake_benchmark(monkeypatch, report_of(0, must=True))
    result = runner.invoke(cli.app, ["all", "--json", "--dir", str(tmp_path / "run")])
    assert len(json.loads(result.stdout)["reports"]) == 6
    assert len({place.directory for place, _ in called}) == 6
    faults = [options["number"] for _, options in called if "number" in options]
    assert faults == [signal.SIGKILL, signal.SIGSTOP]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "cases"),
    [
        ([], list(PROMISES)),
        (["--size", "128"], [Case(128, 512)]),
        (["--in-flight", "1"], [Case(1024, 1)]),
        (["--size", "64", "--in-flight", "7"], [Case(64, 7)]),
    ],
)
def test_produce_takes_the_promised_cases_or_the_one_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], cases: list[Case]
) -> None:
    """What isn't said is as in the promise."""
    called = fake_benchmark(monkeypatch, report_of(0, must=True))
    runner.invoke(cli.app, ["produce", "--dir", str(tmp_path / "run"), *arguments])
    assert called[0][1]["more"] == (cases,)


@pytest.mark.parametrize(
    "arguments",
    [
        ["failover", "--signal", "TERM"],
        ["produce", "--size", "0"],
        ["e2e", "--size", "7"],
        ["steady", "--bytes", "much"],
        ["consume", "--bootstrap", "nowhere"],
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: list[str]) -> None:
    """Before anything is started."""
    assert runner.invoke(cli.app, arguments).exit_code == 2


@pytest.mark.slow
@pytest.mark.long
def test_figures_of_a_real_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The shape of what a short run gives. No figure is judged but what must hold."""
    monkeypatch.setattr(produce, "WARM_UP_SECONDS", 0.1)
    arguments = ["produce", "--seconds", "0.2", "--rounds", "1", "--json"]
    result = runner.invoke(cli.app, [*arguments, "--dir", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    figures = {figure["name"]: figure for figure in facts["figures"]}
    for name in ("1024B_x512_rate", "128B_x512_rate", "1024B_x1_p50"):
        assert figures[name]["median"] > 0
        assert figures[name]["ratio"]["median"] > 0
        assert figures[name]["target"] is not None
    assert figures["1024B_x512_cpu_leader"]["median"] > 0
    assert {figure["name"] for figure in facts["yardsticks"]} >= {"echo_rate", "disk_rate"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["KILL", pytest.param("STOP", marks=pytest.mark.long)])
def test_a_fault_of_a_real_leader_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    """One fault under load: the next leader acknowledges, and the account is even."""
    monkeypatch.setattr(failover, "SETTLE_S", 0.3)
    arguments = ["failover", "--kills", "1", "--in-flight", "64", "--signal", fault, "--json"]
    result = runner.invoke(cli.app, [*arguments, "--dir", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    figures = {figure["name"]: figure["median"] for figure in facts["figures"]}
    assert figures["sent"] == figures["acknowledged"] + figures["refused"] + figures["unknown"]
    assert figures["acknowledged"] > 64
    assert (figures["lost"], figures["duplicated"], figures["refused_but_stored"]) == (0, 0, 0)
    assert figures["signal_to_next_ack"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_members_handle_and_commit_what_was_sent(tmp_path: Path) -> None:
    """Two processes as members, one short round: everything is handled once, and committed."""
    arguments = ["push", "--seconds", "0.3", "--rounds", "1", "--nodes", "1", "--json"]
    result = runner.invoke(cli.app, [*arguments, "--dir", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    figures = {figure["name"]: figure["median"] for figure in facts["figures"]}
    assert (figures["failed"], figures["handled_again"], figures["not_handled"]) == (0, 0, 0)
    assert figures["worked_rate"] > 0
    assert figures["worked_cpu_members"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_interrupted_benchmark_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C while the group runs: exit code 130, no process, no file."""
    nodes: list[LocalNode] = []

    async def interrupted(place: Arena, _echo: str, **_options: object) -> NoReturn:
        group = place.local_group()
        await group.up()
        nodes.extend(group.nodes)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        raise AssertionError("never gets here")

    monkeypatch.setattr(cli, "measure_steady", interrupted)
    result = runner.invoke(cli.app, ["steady", "--nodes", "1", "--dir", str(tmp_path / "run")])
    assert result.exit_code == 130, result.output
    assert len(nodes) == 1
    assert not nodes[0].is_running()
    assert list(tmp_path.iterdir()) == []
