"""The catalogue of mutants fits the code, and one of them is hunted down."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from chaos.errors import NothingTested, StaleMutant
from chaos.mutants.catalogue import MUTANTS
from chaos.mutants.hunt import (
    COPIED,
    ROOT,
    Kill,
    copied,
    failing_when_sound,
    hunt_one,
    mutated,
    seeds_failing_when_sound,
    void_when_sound,
)
from chaos.mutants.mutant import Mutant
from chaos.mutants.rules.applications import SEEDS
from chaos.sim.plan import Fault


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """A copy; whoever changes it puts it right again."""
    with copied() as made:
        yield made


class Module:
    """A module's text by its statements."""

    def __init__(self, text: str) -> None:
        self._text = text
        lines = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        self._begins, self._ends = [0], [len(text)]
        for statement in ast.parse(text).body:
            first = min([statement.lineno, *(each.lineno for each in decorators_of(statement))])
            self._begins.append(lines[first - 1])
            self._ends.append(min(lines[statement.end_lineno or first], len(text)))

    def compile_with(self, mutant: Mutant) -> None:
        """What the mutant makes of the statements in which its text lies; around them all is as
        it was."""
        place = self._text.index(mutant.old)
        begin = max(each for each in self._begins if each <= place)
        end = min(each for each in self._ends if each >= place + len(mutant.old))
        compile(mutated(mutant, self._text[begin:end]), mutant.file, "exec")


def decorators_of(statement: ast.stmt) -> list[ast.expr]:
    """A statement is said to begin below them."""
    return getattr(statement, "decorator_list", [])


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_each_mutant_of_a_file_fits_it(file: str) -> None:
    """The text of each is there once, and what it makes of the file is Python, if that was: a page
    whose commands are tested can be broken as well."""
    text = (ROOT / file).read_text(encoding="utf-8")
    module = Module(text) if file.endswith(".py") else None
    unfit = []
    for mutant in (each for each in MUTANTS if each.file == file):
        try:
            assert mutated(mutant, text) != text, mutant.name
            if module is not None:
                module.compile_with(mutant)
        except (StaleMutant, AssertionError, SyntaxError) as error:
            unfit.append(f"{mutant.name}: {error}")
    assert not unfit


def test_there_are_enough_of_them() -> None:
    """At least forty, each with a name of its own."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40


def test_what_they_need_is_a_fault_that_there_is() -> None:
    """Else no seed would ever be tried."""
    assert {mutant.under for mutant in MUTANTS} <= {"", *(fault.value for fault in Fault)}


def test_tests_that_cannot_be_run_are_no_verdict(tree: Path) -> None:
    """Else a mutant whose tests have moved would survive for ever, or a broken import kill all."""
    mutant = replace(MUTANTS[0], masked="so that no seed is tried", tests=("nowhere",))
    with pytest.raises(NothingTested, match="nowhere"):
        hunt_one(mutant, tree)


def test_a_test_that_fails_without_a_defect_kills_nothing(tree: Path) -> None:
    """Else one that can't pass where the copy is would hide what nobody notices."""
    name = "test_nothing_of_ours.py"
    (tree / name).write_text(
        "import pytest\ndef test_sound(): pass\n"
        "@pytest.mark.long\n"
        "@pytest.mark.parametrize('x', ['a b', 'c - d'])\n"
        "def test_not(x): print('ERROR    a:b.py:3 told'); assert x == 'a b'\n"
    )
    kills = [
        Kill(MUTANTS[0], "unit test", None, f"{name}::{test}", 1.0)
        for test in ("test_sound", "test_not[c - d]")
    ]
    kills.append(Kill(MUTANTS[0], "vote before fsync", 3, "n1 voted", 1.0))
    assert failing_when_sound(kills, tree) == {f"{name}::test_not"}
    named = replace(MUTANTS[0], masked="so that no seed is tried", tests=(f"{name}::test_not",))
    assert hunt_one(named, tree).test == f"{name}::test_not"
    (tree / name).unlink()


# Seeds 3, 5 and 7 fail in three ways; of applications only seed 6 does.
_PREY = """
import time

def hunt(first, seeds, duration_ms, limit_s, under):
    for seed in range(first, first + seeds):
        print(seed, flush=True)
        if seed == 3:
            return seed, "lost-write", "m1 is gone"
        if seed == 5:
            raise RuntimeError("no such thing")
        if seed == 7:
            time.sleep(600)

def hunt_applications(first, seeds, duration_ms, limit_s):
    print(first, flush=True)
    return (first, "hang", "") if first == 6 else None
"""


@contextmanager
def put_in(file: Path, text: str) -> Iterator[None]:
    """The file says something else for a while."""
    sound, was = file.read_bytes(), file.stat()
    file.write_text(text)
    try:
        yield
    finally:
        file.write_bytes(sound)
        os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))


def test_a_seed_that_fails_without_a_defect_kills_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a check nor by a crash or a hang: the seed is named in which it came, and has its
    turn in a sound copy."""
    seen = replace(MUTANTS[0], masked="", under="", applications=False)
    library = replace(seen, applications=True)
    monkeypatch.setattr("chaos.mutants.hunt.HANG_FACTOR", 4)
    with put_in(tree / "chaos/mutants/prey.py", _PREY):
        kills = [
            hunt_one(replace(seen, seed=seed), tree, limit_s=1, last_resort=False)
            for seed in (0, 4, 6)
        ]
        assert [(kill.by, kill.seed) for kill in kills] == [
            ("lost-write", 3),
            ("crash", 5),
            ("hang", 7),
        ]
        assert kills[1].detail == "RuntimeError: no such thing"
        good = [Kill(seen, "lost-write", 6, "", 1.0), Kill(library, "hang", 3, "", 1.0)]
        bad = [*kills, Kill(library, "lost-write", 6, "", 1.0)]
        failing = seeds_failing_when_sound([*good, *bad], tree, 2, limit_s=1)
        assert failing == {(False, 3), (False, 5), (False, 7), (True, 6)}
        assert void_when_sound([*good, kills[0]], tree, 1) == kills[:1]


def test_seeds_of_applications_are_of_mutants_that_there_are() -> None:
    """Else a name that has changed would leave its mutant to the unit tests, unnoticed."""
    assert set(SEEDS) == {mutant.name for mutant in MUTANTS if mutant.applications}


def test_moved_text_is_noticed() -> None:
    """A mutant whose text is gone changes nothing silently."""
    with pytest.raises(StaleMutant):
        mutated(Mutant("m", "f", "not there", "x"), "text")


@pytest.mark.slow
def test_a_mutant_is_killed(tree: Path) -> None:
    """The whole way: copy, defect, simulator, verdict; and the copy is sound again."""
    mutant = next(each for each in MUTANTS if each.name == "vote-before-fsync")
    kill = hunt_one(mutant, tree, limit_s=30, last_resort=False)
    assert (tree / mutant.file).read_bytes() == (ROOT / mutant.file).read_bytes()
    assert kill.by == "vote before fsync"


def test_what_is_broken_is_in_the_copy() -> None:
    """A defect in a package that isn't copied could not be put back."""
    assert {mutant.file.partition("/")[0] for mutant in MUTANTS} <= set(COPIED)
