"""Hunts mutants: a copy of the tree, one defect in it, and the simulator until it notices.

Each mutant gets a process of its own that runs seeds in the copy and says which one found it and
which check. The working tree is never touched, and the copy is gone when the hunt is over. What no
seed finds within the limit is a gap in the simulator; then the unit tests get a try, and the table
says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos.errors import NothingTested, StaleMutant
from chaos.mutants.mutant import Mutant

ROOT = Path(__file__).parent.parent.parent
COPIED = (
    *("dledger", "dledger_cli", "store", "broker", "audit", "chaos", "tests"),
    *("docs", "pyproject.toml"),
)
UNIT_TESTS = tuple(
    f"tests/{folder}" for folder in ("core", "links", "node", "store", "broker", "client")
)
DURATION_MS = 6_000
MAX_SEEDS = 400
TIME_LIMIT_S = 90.0  # of processor time
HANG_FACTOR = 8  # real time by processor time: beyond it a run hangs, however busy the machine
UNIT_TESTS_S = 900.0
PYTEST_RAN = (0, 1)  # its exit codes when all passed, and when some failed

_HUNTER = """
import json, sys
from chaos.mutants.prey import hunt
first, seeds, duration_ms = map(int, sys.argv[1:4])
print(json.dumps(hunt(first, seeds, duration_ms, float(sys.argv[4]), sys.argv[5])))
"""


_WORSE = ("FAILED", "ERROR")  # of a line of pytest's summary


@dataclass(frozen=True, slots=True)
class Kill:
    """How a mutant ended. `by` is the check that noticed, empty for a survivor; `seed` None: the
    unit tests did."""

    mutant: Mutant
    by: str
    seed: int | None
    detail: str
    seconds: float

    @property
    def is_killed(self) -> bool:
        return bool(self.by)


def mutated(mutant: Mutant, text: str) -> str:
    """`text` with the defect in it.

    Raises:
        StaleMutant: see there.
    """
    found = text.count(mutant.old)
    if found != 1:
        raise StaleMutant(mutant.name, mutant.file, found)
    return text.replace(mutant.old, mutant.new)


def hunt_one(mutant: Mutant, *, limit_s: float = TIME_LIMIT_S, last_resort: bool = True) -> Kill:
    """Runs seeds from the mutant's own on, until one notices; `last_resort`: then unit tests."""
    started = time.perf_counter()
    with _copy_with(mutant) as tree:
        if mutant.masked:
            name = _failing_test(tree, mutant) if last_resort else ""
            return Kill(mutant, "unit test" if name else "", None, name, _since(started))
        numbers = (mutant.seed, MAX_SEEDS, DURATION_MS, limit_s)
        arguments = [*map(str, numbers), mutant.under]
        done = _python(tree, "-c", _HUNTER, *arguments, timeout_s=HANG_FACTOR * limit_s)
        if done is None:
            return Kill(mutant, "hang", mutant.seed, "a run doesn't end", _since(started))
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()[-1:] or ["no output"]
            return Kill(mutant, "crash", mutant.seed, last[0], _since(started))
        found = json.loads(done.stdout.splitlines()[-1])
        if found is not None:
            seed, check, detail = found
            return Kill(mutant, check, seed, detail, _since(started))
        name = _failing_test(tree, mutant) if last_resort else ""
    return Kill(mutant, "unit test" if name else "", None, name, _since(started))


def _failing_test(tree: Path, mutant: Mutant) -> str:
    """The first unit test that fails in `tree`; empty if none does, or if they don't end: a slow
    machine looks the same as a test that hangs, and is no kill.

    Raises:
        NothingTested: they can't even be collected, which says nothing of the mutant.
    """
    tests = mutant.tests or UNIT_TESTS
    arguments = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    done = _python(tree, *arguments, timeout_s=UNIT_TESTS_S)
    if done is None:
        return ""
    if done.returncode not in PYTEST_RAN:
        told = done.stderr.strip() or done.stdout.strip()
        raise NothingTested(mutant.name, told.splitlines()[-1:])
    failed = [line for line in done.stdout.splitlines() if line.startswith(_WORSE)]
    return failed[0].partition(" ")[2].split(" - ")[0] if failed else ""


def _python(
    tree: Path, *arguments: str, timeout_s: float
) -> subprocess.CompletedProcess[str] | None:
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


@contextmanager
def _copy_with(mutant: Mutant) -> Iterator[Path]:
    """A copy of what has to run, with the defect in it; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, tree / name)
        victim = tree / mutant.file
        victim.write_text(mutated(mutant, victim.read_text(encoding="utf-8")), encoding="utf-8")
        yield tree


def _since(started: float) -> float:
    return time.perf_counter() - started
