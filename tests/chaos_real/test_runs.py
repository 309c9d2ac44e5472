"""Real runs, short: one that holds, one that can't, and the ends that a run may come to."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from broker.local_group import LocalGroup
from chaos.cli import app
from chaos.errors import GroupNeverLed
from chaos.real import runner, workload
from chaos.real.finished import RunOptions, check
from chaos.real.nemeses import NEMESES
from chaos.real.network import Network, Quality
from chaos.real.runner import run_chaos
from chaos.real.scenario import Load, load_file, plan_steps
from tests.warm import program

TIMEOUT_S = 600.0  # a bound for what hangs, however busy the machine
POWER_CUT_OF_ALL = '''"""Everybody loses power at once."""
from chaos.real.scenario import Plan, Steps, spell, wait, whole


def schedule(plan: Plan) -> Steps:
    yield wait(0.5)
    yield from spell("power-cut", "all", seconds=0.1)
    yield whole()
'''


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dledger_cli", "chaos", *arguments]


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program's outputs and exit code."""
    return program("chaos", *arguments, timeout_s=TIMEOUT_S)


class Told(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def told(*arguments: str) -> Told:
    """The same within this process, for what starts none."""
    ended = CliRunner().invoke(app, list(arguments))
    return Told(ended.exit_code, ended.stdout, ended.stderr)


def nodes_below(directory: Path) -> list[int]:
    """Processes whose standard output is a file below `directory`, as a node's is."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                output = (entry / "fd" / "1").readlink()
            except OSError:
                continue
            if output.is_relative_to(directory):
                found.append(int(entry.name))
    return found


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Whatever a test did, no node runs afterwards."""
    yield
    assert nodes_below(tmp_path) == []


def options_of(folder: Path, text: str, *, seconds: float, **others: Any) -> RunOptions:
    file = folder / "my_scenario.py"
    file.write_text(text, encoding="utf-8")
    scenario = load_file(file)
    known = {name: nemesis.options for name, nemesis in NEMESES.items()}
    steps = plan_steps(scenario, nodes=3, seconds=seconds, seed=1, known=known)
    directory = folder / "run"
    directory.mkdir()
    load = Load(rate=200, callers=1, consumers=1)
    return RunOptions(scenario, tuple(steps), 3, seconds, 1, load, directory, **others)


@pytest.mark.long
def test_killed_leader_costs_nothing_and_the_report_says_so(
    tmp_path: Path, nothing_left: None
) -> None:
    """The packaged scenario, as a user runs it; the same folder isn't used twice."""
    out = tmp_path / "out"
    ran = chaos("run", "kill-leader", "--seconds", "4", "--seed", "1", "--out", str(out), "--json")
    assert ran.returncode == 0, ran.stderr
    facts = json.loads(ran.stdout)
    assert facts["holds"]
    assert facts["sends"]["acknowledged"] > 100
    assert [band["nemesis"] for band in facts["bands"]] == ["kill"]
    assert facts["bands"][0]["failover_ms"] > 0
    assert {path.name for path in out.iterdir()} == {
        "history.jsonl",
        "logs",
        "report.html",
        "report.json",
    }
    again = told("report", str(out))
    assert again.exit_code == 0, again.stderr
    assert "holds: no anomaly" in again.stdout
    refused = told("run", "kill-leader", "--out", str(out))
    assert refused.exit_code == 2
    assert "exists and isn't empty" in refused.stderr
    with (out / "history.jsonl").open("r+b") as history:
        history.truncate(history.seek(0, os.SEEK_END) - 5)
    cut = told("report", str(out))
    assert cut.exit_code == 2
    assert "history.jsonl, line" in cut.stderr


MEMBERS_AT_WORK = '''"""Members of two groups are killed, sent away and paused."""
from chaos.real.scenario import Load, Plan, Steps, spell, wait

MEMBERS = 2
LOAD = Load(rate=100, producers=1, consumers=0, callers=0, queues=4)


def schedule(plan: Plan) -> Steps:
    yield wait(2)
    yield from spell("kill-member", seconds=1)
    yield from spell("dismiss-member", seconds=0.5)
    yield from spell("pause-member", seconds=0.5)
    yield wait(0.5)
'''


def test_what_members_did_is_judged_and_judged_again(tmp_path: Path, nothing_left: None) -> None:
    """Every message is done by each group, whatever happens to members; a book in which a word is
    missing is found out by the report that is drawn anew."""
    scenario, out = tmp_path / "members.py", tmp_path / "out"
    scenario.write_text(MEMBERS_AT_WORK, encoding="utf-8")
    ran = chaos("run", str(scenario), "--seconds", "9", "--seed", "1", "--out", str(out), "--json")
    assert ran.returncode == 0, ran.stderr
    facts = json.loads(ran.stdout)
    groups = facts["deliveries"]["groups"]
    assert [group["done"] for group in groups] == 3 * [facts["sends"]["acknowledged"]]
    assert {band["nemesis"] for band in facts["bands"]} == {
        "kill-member",
        "dismiss-member",
        "pause-member",
    }
    assert told("report", str(out)).exit_code == 0
    crew = out / "members" / "crew.json"
    account = json.loads(crew.read_text())
    lives = [life for group in account["groups"] for life in group["processes"]]
    for book in (out / "members").glob("any-order-*.jsonl"):
        lines = book.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if b'"p0-0-7"' not in line]
        book.write_bytes(b"".join(kept))
        (one,) = (each for each in lives if each["book"] == book.name)
        one["lines"] = len(kept)
    crew.write_text(json.dumps(account))
    again = told("report", str(out), "--json")
    assert again.exit_code == 1
    assert [each["name"] for each in json.loads(again.stdout)["anomalies"]] == ["forgotten"]


@pytest.mark.long
def test_power_cut_of_all_nodes_loses_what_async_flush_acknowledged(
    tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weaker mode is told apart from the default: this machine finds data loss."""
    monkeypatch.setattr(workload, "DELIVERY_TIMEOUT_MS", 3_000)
    monkeypatch.setattr(runner, "AFTERMATH_S", 0.1)
    lost = {"lost-write", "unseen", "inconsistent-offsets", "stale-read"}
    for attempt in range(4):  # on a machine that has much to do a cut may meet nothing on its way
        folder = tmp_path / str(attempt)
        folder.mkdir()
        options = options_of(folder, POWER_CUT_OF_ALL, seconds=3, flush="async")
        finished = asyncio.run(run_chaos(options, lambda _: None))
        found = {each.name for each in finished.excused}
        if found & lost:
            break
    assert found & lost, finished.problems
    assert finished.holds, (finished.problems, finished.anomalies)
    options = replace(options, flush="sync")  # the same history, had it been promised more
    strict = replace(finished, options=options, problems=[], excused=[], anomalies=[])
    check(strict)
    assert not strict.holds
    assert {each.name for each in strict.anomalies} >= found


def test_interrupted_run_leaves_neither_process_nor_file(
    tmp_path: Path, nothing_left: None
) -> None:
    """Ctrl-C in the middle of it: exit code 130."""
    out = tmp_path / "out"
    running = subprocess.Popen(
        command("run", "kill-leader", "--seconds", "60", "--out", str(out)),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    for line in running.stderr:
        if "kill n" in line:
            break
    assert len(nodes_below(tmp_path)) >= 2
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 130
    assert not out.exists()


@pytest.fixture
def no_peer_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """All links between nodes are cut from the beginning, and nobody waits long for a leader."""
    monkeypatch.setattr(runner, "START_TIMEOUT_S", 3.0)
    opened = Network.open

    async def open_and_cut(network: Network) -> None:
        await opened(network)
        pairs = [(a, b) for a in ("n1", "n2", "n3") for b in ("n1", "n2", "n3") if a != b]
        network.set_fault("always", pairs, Quality(cut=True))

    monkeypatch.setattr(Network, "open", open_and_cut)


def test_group_that_never_elects_a_leader_is_told_and_stopped(
    tmp_path: Path, nothing_left: None, no_peer_reached: None
) -> None:
    """As an error of its own, which is no finding."""
    options = options_of(tmp_path, POWER_CUT_OF_ALL, seconds=3)
    with pytest.raises(GroupNeverLed, match=r"no serving leader|no answer"):
        asyncio.run(run_chaos(options, lambda _: None))
    assert not any(node.is_running() for node in LocalGroup.open(options.directory / "group").nodes)


def test_group_that_never_elects_a_leader_ends_the_command_with_exit_code_3(
    tmp_path: Path, nothing_left: None, no_peer_reached: None
) -> None:
    """One line says so, and what was made is gone."""
    out = tmp_path / "out"
    ended = told("run", "kill-leader", "--seconds", "3", "--seed", "1", "--out", str(out))
    assert ended.exit_code == 3
    assert re.search("never came to a leader that serves: no (serving leader|answer)", ended.stderr)
    assert not out.exists()


def test_port_in_use_is_told_with_exit_code_2(tmp_path: Path, nothing_left: None) -> None:
    """Nothing was started, nothing is left."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        out = tmp_path / "out"
        ran = chaos("run", "kill-leader", "--base-port", port, "--out", str(out))
    assert ran.returncode == 2
    assert "the port is in use" in ran.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("run", "kill-leadr"), "did you mean 'kill-leader'"),
        (("run", "no_such_file.py"), "there is no such file"),
        (("report", "no-such-folder"), "there is no such file"),
        (("run", "kill-leader", "--out", "/proc/1/no"), "name another folder with --out"),
        (("run", "kill-leader", "--out", __file__), "exists and isn't empty"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: tuple[str, ...], reason: str) -> None:
    """With exit code 2."""
    ran = told(*arguments)
    assert ran.exit_code == 2
    assert reason in ran.stderr
    assert len([line for line in ran.stderr.splitlines() if line.startswith("dledger: ")]) == 1


def test_ports_that_do_not_exist_are_told_with_exit_code_2() -> None:
    """Nodes and their metrics need a thousand and some from the first one on."""
    for port in ("0", "65000"):
        assert told("run", "kill-leader", "--base-port", port).exit_code == 2


def test_list_shows_scenarios_and_nemeses() -> None:
    """Everything that a scenario may use."""
    facts = json.loads(told("list", "--json").stdout)
    assert set(facts["nemeses"]) == set(NEMESES)
    assert facts["scenarios"]["kill-leader"]


FILES_AND_CLIENTS = '''"""Old copies, rot, and clients that are cut off."""
from chaos.real.scenario import Load, Plan, Steps, heal, spell, strike, wait, whole

LOAD = Load(rate=400, size_bytes=4096, consumers=1, callers=1)


def schedule(plan: Plan) -> Steps:
    yield from spell("client-cut", "leader", seconds=1)
    yield strike("old-copy", "follower", file="consume-queue")
    yield wait(1)
    yield heal("old-copy")
    yield whole(60)
    yield from spell("live-rot", "leader", seconds=0.1)
    yield whole(60)
'''


@pytest.mark.long
def test_run_with_old_files_rot_and_cut_clients_is_kept_and_audited(
    tmp_path: Path, nothing_left: None
) -> None:
    """Nothing is lost or wrong: an old ConsumeQueue is made anew, a bit of a segment that has
    rotted is got back, and the audits that the run names find the replicas the same and all
    delivered."""
    file = tmp_path / "files.py"
    file.write_text(FILES_AND_CLIENTS, encoding="utf-8")
    out = tmp_path / "out"
    ran = chaos("run", str(file), "--seconds", "99", "--seed", "1", "--keep", "--out", str(out))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    bands = json.loads((out / "report.json").read_text())["bands"]
    cut, copied, rotten = bands
    assert [each["nemesis"] for each in bands] == ["client-cut", "old-copy", "live-rot"]
    assert cut["silence_ms"] >= 900
    assert re.search("older copy put back; n. started", copied["detail"])
    assert re.search("n. has got it back", rotten["detail"])
    audits = [line.split()[1:] for line in ran.stdout.splitlines() if "dledger audit" in line]
    assert [audit[1] for audit in audits] == ["replicas", "delivery"]
    for audit in audits:
        audited = program(*audit, "--json", timeout_s=TIMEOUT_S)
        assert audited.returncode == 0, audited.stdout + audited.stderr
    assert json.loads(audited.stdout)["verdict"] == "delivered"
