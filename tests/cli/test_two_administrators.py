"""Two administrators at once, on real processes: what they ask for is done one after the other,
each is told what became of it, and the members are in the end what one of the two asked for."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dledger.terminal.outcome import ExitCode
from tests.cli.test_members import PATIENCE_S, PROGRAM, Growing

pytestmark = pytest.mark.slow

SEEDS = (pytest.param(0, marks=pytest.mark.long), 1)
PAIRS = 3  # of each seed
# What is wanted of n2 and n3, which are members and up: a command, and what makes it so.
WISHES: dict[tuple[str, ...], Mapping[str, str]] = {
    ("promote", "n2"): {"n2": "voter"},
    ("promote", "n2", "n3"): {"n2": "voter", "n3": "voter"},
    ("demote", "n2"): {"n2": "observer"},
    ("demote", "n2", "n3"): {"n2": "observer", "n3": "observer"},
    ("promote", "n3"): {"n3": "voter"},
    ("demote", "n3"): {"n3": "observer"},
}
# A clear refusal names what is in the way; one that came too late says what is so now.
REFUSALS = ("is under way", "is being taken in", "another administrator", "hasn't caught up")


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    group = Growing(tmp_path / "run")
    yield group
    group.close()


def settled(growing: Growing) -> dict[str, str]:
    """The members' roles, once nothing is under way."""
    until = time.monotonic() + PATIENCE_S
    while True:
        listed = growing.member("list", "--json")
        if listed.returncode == 0:
            facts = json.loads(listed.stdout)
            roles = {each["id"]: each["role"] for each in facts["members"]}
            if facts["committed"] and not facts["joint"] and "learner" not in roles.values():
                return roles
        assert time.monotonic() < until, (listed, growing.said("n2"))
        time.sleep(0.1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.long
def test_two_administrators_are_served_one_after_the_other(growing: Growing, seed: int) -> None:
    assert growing.member("add", *growing.install("n2", "n3"), "--observe").returncode == 0
    chance = random.Random(seed)
    bootstrap = ",".join(growing.addresses.values())
    for _ in range(PAIRS):
        before = settled(growing)
        both = [chance.choice(sorted(WISHES)) for _ in range(2)]
        running = [
            subprocess.Popen(
                [*PROGRAM, "member", *words, "--bootstrap", bootstrap],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for words in both
        ]
        told = [(*each.communicate(timeout=PATIENCE_S), each.returncode) for each in running]
        after = settled(growing)
        story = (before, both, told, after)
        codes = [code for _, _, code in told]
        assert ExitCode.DONE in codes, story
        for _, errors, code in told:
            if code != ExitCode.DONE:
                assert code == ExitCode.FAILED, story
                assert any(each in errors for each in REFUSALS), story
            assert "Traceback" not in errors, story
        # All that was done, in one order or the other, and nothing else.
        done = [WISHES[words] for words, code in zip(both, codes, strict=True) if code == 0]
        possible = [{**before, **dict(done[0]), **dict(done[-1])}]
        possible.append({**before, **dict(done[-1]), **dict(done[0])})
        undone = [WISHES[words] for words, code in zip(both, codes, strict=True) if code]
        possible += [{**before, **dict(undone[0]), **dict(each)} for each in done if undone]
        assert after in possible, story
    assert growing.command("group", "status", "--bootstrap", bootstrap).returncode == 0
