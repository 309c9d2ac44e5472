"""Scenarios: what a file may say, and how a mistake in it is told before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.errors import ScenarioInvalid
from chaos.real.nemeses import NEMESES
from chaos.real.scenario import (
    Load,
    Scenario,
    Step,
    Strike,
    Wait,
    find,
    load_file,
    packaged,
    plan_steps,
)

KNOWN = {name: nemesis.options for name, nemesis in NEMESES.items()}
HEAD = '"""What it does."""\nfrom chaos.real.scenario import *\n'


def written(folder: Path, body: str) -> Scenario:
    file = folder / "my_scenario.py"
    file.write_text(HEAD + body, encoding="utf-8")
    return load_file(file)


def planned(scenario: Scenario, seconds: float = 30, seed: int = 1, nodes: int = 3) -> list[Step]:
    return plan_steps(scenario, nodes=nodes, seconds=seconds, seed=seed, known=KNOWN)


@pytest.mark.parametrize("scenario", packaged(), ids=lambda each: each.name)
@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("seconds", [20.0, 600.0])
def test_packaged_scenarios_fit_groups_of_three_and_five(
    scenario: Scenario, nodes: int, seconds: float
) -> None:
    """Each has a summary, and its steps fill a short run and a long one."""
    steps = planned(scenario, seconds, nodes=nodes)
    waits = sum(step.seconds for step in steps if isinstance(step, Wait))
    assert scenario.summary
    assert seconds / 3 < waits <= seconds
    assert not isinstance(steps[-1], Strike)


def test_packaged_scenarios_are_those_that_are_promised() -> None:
    """By name; together they use every nemesis."""
    names = {each.name for each in packaged()}
    assert names == {
        "kill-leader",
        "rolling-restart",
        "partitions",
        "pauses",
        "power",
        "disk",
        "everything",
        "killer",
        "clocks",
        "networks",
        "years",
        "delivery",
    }
    steps = [step for each in packaged() for step in planned(each, 3600)]
    assert {step.nemesis for step in steps if isinstance(step, Strike)} == set(NEMESES)


def test_same_seed_gives_the_same_steps_and_another_one_others() -> None:
    """Everything that is drawn is drawn from the seed."""
    everything = find("everything")
    assert planned(everything, 120, seed=7) == planned(everything, 120, seed=7)
    assert planned(everything, 120, seed=7) != planned(everything, 120, seed=8)


def test_file_names_nodes_and_load(tmp_path: Path) -> None:
    """The rest is as the defaults say."""
    scenario = written(
        tmp_path,
        "NODES = 5\nLOAD = Load(rate=10)\n"
        "def schedule(plan):\n    yield from spell('kill', 'n5', seconds=1)\n",
    )
    assert (scenario.name, scenario.summary) == ("my-scenario", "What it does")
    assert (scenario.nodes, scenario.load) == (5, Load(rate=10))
    assert len(planned(scenario, nodes=5)) == 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("yield from spell('kil', 'leader', seconds=1)", "no nemesis 'kil'; did you mean 'kill'"),
        ("yield strike('kill', 'n9'); yield wait(1)", "no node 'n9'; there are n1, n2, n3"),
        ("yield strike('kill', 'king'); yield wait(1)", "no node 'king'; there are n1, n2, n3"),
        ("yield strike('kill', 'n1', hard=1)", "nemesis kill: no option 'hard'"),
        ("yield strike('slow-disk', 'n1', delay_ms='x')", "delay_ms must be a number"),
        ("yield strike('failing-disk', 'n1', errno=1)", "errno must be a text"),
        ("yield strike('rot', 'n1', how='flop')", "no how 'flop'; did you mean 'flip'?"),
        ("yield strike('old-copy', 'n1', file=1)", "no file '1'; there are checkpoint"),
        ("yield strike('slow-disk', 'n1', delay_ms=-5)", "delay_ms can't be -5"),
        ("yield strike('slow-disk', 'n1', delay_ms=None)", "delay_ms must be a number"),
        ("yield strike('clock-drift', 'n1', rate=float('nan'))", "rate must be a number"),
        ("yield strike('failing-disk', 'n1', errno='EI0')", "no errno 'EI0'; did you mean 'EIO'?"),
        ("yield strike('failing-disk', operation='write')", "no operation 'write'; did you mean"),
        ("yield strike('kill'); yield wait(1); yield heal('kll')", "no fault 'kll'; did you mean"),
        ("yield heal('kill')", "no fault 'kill'; there are none so far"),
        ("yield wait(float('nan'))", "can't wait for nan s"),
        ("yield wait('1')", "can't wait for '1' s"),
        ("yield whole(0)", "can't wait for 0 s to be whole"),
        ("raise SystemExit(0)", "its schedule fails: SystemExit"),
        ("yield 'kill'", "yields 'kill', which is no step"),
        ("yield wait(-1)", "can't wait for -1 s"),
        ("yield wait(5); yield undefined_thing", "its schedule fails: NameError"),
        ("yield wait(1000); yield strike('kill')", "no fault fits into 30 s"),
        ("yield strike('kill')\n    while True: yield wait(0)", "100000 steps take only 0 s"),
    ],
)
def test_mistake_in_a_schedule_is_told_before_anything_starts(
    tmp_path: Path, body: str, reason: str
) -> None:
    """With the name of the scenario, what is wrong, and what was likely meant."""
    scenario = written(tmp_path, f"def schedule(plan):\n    {body}\n")
    with pytest.raises(ScenarioInvalid, match="my-scenario") as caught:
        planned(scenario)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("def other(plan): pass", "no function `schedule"),
        ("def schedule(plan:", "SyntaxError"),
        ("raise RuntimeError('sorry')", "RuntimeError: sorry"),
        ("NODES = 'many'\ndef schedule(plan): pass", "NODES must be a number"),
        ("NODES = 0\ndef schedule(plan): pass", "NODES must be 1 to 9, not 0"),
        ("LOAD = Load(rate=0)\ndef schedule(plan): pass", "LOAD's rate must be 1 to 100000"),
        ("LOAD = Load(queues=0)\ndef schedule(plan): pass", "LOAD's queues must be 1 to 64"),
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
    ],
)
def test_file_that_is_no_scenario_is_refused(tmp_path: Path, body: str, reason: str) -> None:
    """Whatever is wrong with someone's file is told in one line."""
    with pytest.raises(ScenarioInvalid, match=r"my_scenario\.py") as caught:
        written(tmp_path, body)
    assert reason in caught.value.reason


def test_unknown_scenario_and_file_are_told() -> None:
    """A name that is nearly right is put right; a file has to exist."""
    with pytest.raises(ScenarioInvalid, match="did you mean 'kill-leader'"):
        find("kill-leaders")
    with pytest.raises(ScenarioInvalid, match="no such file"):
        find("nowhere/my.py")


def test_loading_a_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    """No __pycache__ in somebody's folder."""
    written(tmp_path, "def schedule(plan):\n    yield wait(1)\n")
    assert [path.name for path in tmp_path.iterdir()] == ["my_scenario.py"]
