"""Hunts mutants: a copy of the tree, one defect in it, and the simulator until it notices.

Each mutant gets a process of its own that runs seeds in the copy and says which one found it and
which check. The working tree is never touched. A copy takes one mutant after the other, is compiled
once, and is gone when the last of its hunts is over. What no seed finds within the limit is a gap
in the simulator; then the unit tests get a try, and the table says so. What has killed is run once
more where nothing is broken: a test or a seed that fails there too, in whatever way, kills nothing.
"""

from __future__ import annotations

import compileall
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from queue import Queue
from typing import Final

from chaos.errors import NothingTested, StaleMutant
from chaos.mutants.mutant import Mutant

ROOT = Path(__file__).parent.parent.parent
COPIED = (
    *("dledger", "dledger_cli", "store", "broker", "audit", "chaos", "tests"),
    *("docs", "pyproject.toml"),
)
# Of what is being compiled just now there are files that are gone in a moment.
NOT_COPIED = shutil.ignore_patterns("*-pytest-*", "*.pyc.*")
UNIT_TESTS = tuple(
    f"tests/{folder}" for folder in ("core", "links", "node", "store", "broker", "client")
)
DURATION_MS = 6_000
APPLICATIONS_MS = 12_000
MAX_SEEDS = 400
TIME_LIMIT_S = 90.0  # of processor time
HANG_FACTOR = 8  # real time by processor time: beyond it a run hangs, however busy the machine
UNIT_TESTS_S = 900.0
UNIT_TEST_S = 5.0  # more for each that is run for a second time
UNIT_TEST = "unit test"  # what `Kill.by` says of one
NAMED = ("-m", "")  # pytest runs those that are named, long ones too
ALL_CASES = {"DLEDGER_TEST_ALL": "1"}  # and with all that they draw (`tests.scale`)
PYTEST_RAN = (0, 1)  # its exit codes when all passed, and when some failed

_HUNTER = """
import json, sys
from chaos.mutants.prey import hunt, hunt_applications
first, seeds, duration_ms = map(int, sys.argv[1:4])
limit_s, under, of_applications = float(sys.argv[4]), sys.argv[5], sys.argv[6]
if of_applications:
    found = hunt_applications(first, seeds, duration_ms, limit_s)
else:
    found = hunt(first, seeds, duration_ms, limit_s, under)
print(json.dumps(found))
"""


_running: set[subprocess.Popen[str]] = set()
REST_S: Final = 5.0  # for the pipes of a process that was killed
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+\.py\b.*)$", re.MULTILINE)


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

    @property
    def where(self) -> str:
        """What killed it: a test, or a seed."""
        return self.test or f"seed {self.seed}"

    @property
    def test(self) -> str:
        """The test that killed it, without its parameters, as pytest takes it; empty if none."""
        return _test_of(self.detail) if self.by == UNIT_TEST else ""


def mutated(mutant: Mutant, text: str) -> str:
    """`text` with the defect in it.

    Raises:
        StaleMutant: see there.
    """
    found = text.count(mutant.old)
    if found != 1:
        raise StaleMutant(mutant.name, mutant.file, found)
    return text.replace(mutant.old, mutant.new)


def hunt_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[Kill]:
    """The end of each, as they come, `jobs` hunts at a time, each in a copy of its own.

    Raises:
        StaleMutant, NothingTested: as soon as one is; no further hunt begins.
    """
    with ExitStack() as copies, ThreadPoolExecutor(jobs) as pool:
        free: Queue[Path] = Queue()
        for _ in range(min(jobs, len(mutants))):
            free.put(copies.enter_context(copied()))

        def hunted(mutant: Mutant) -> Kill:
            tree = free.get()
            try:
                return hunt_one(mutant, tree)
            finally:
                free.put(tree)

        hunts = [pool.submit(hunted, mutant) for mutant in mutants]
        try:
            for each in as_completed(hunts):
                yield each.result()
        finally:  # also of who is interrupted: nobody wants the others' ends any more
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_running):
                process.kill()


def void_when_sound(kills: Sequence[Kill], tree: Path, jobs: int) -> list[Kill]:
    """The kills that are none: what noticed fails in `tree`, a sound copy, too.

    Raises:
        NothingTested: the tests don't end, or can't be collected.
    """
    tests = failing_when_sound(kills, tree)
    seeds = seeds_failing_when_sound(kills, tree, jobs)
    return [
        kill
        for kill in kills
        if kill.test in tests or (kill.mutant.applications, kill.seed) in seeds
    ]


def seeds_failing_when_sound(
    kills: Sequence[Kill], tree: Path, jobs: int, *, limit_s: float = TIME_LIMIT_S
) -> frozenset[tuple[bool, int]]:
    """Of the seeds that killed, those that fail, crash or don't end in `tree`, a sound copy, too;
    each with whether it is one of applications."""
    found = {
        (kill.mutant.applications, kill.seed)
        for kill in kills
        if kill.is_killed and kill.seed is not None
    }

    def fails(trial: tuple[bool, int]) -> bool:
        applications, seed = trial
        return not _hunted(tree, seed, 1, limit_s, applications=applications).is_quiet

    trials = sorted(found)
    with ThreadPoolExecutor(jobs) as pool:
        failing = pool.map(fails, trials)
        return frozenset(trial for trial, fails in zip(trials, failing, strict=True) if fails)


def failing_when_sound(kills: Sequence[Kill], tree: Path) -> frozenset[str]:
    """Of the tests that killed, those that fail in `tree`, a sound copy, too: what they said of a
    mutant is no verdict.

    Raises:
        NothingTested: they don't end, or can't be collected.
    """
    tests = sorted({kill.test for kill in kills} - {""})
    if not tests:
        return frozenset()
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *NAMED, *tests)
    done = _python(tree, *arguments, timeout_s=UNIT_TESTS_S + UNIT_TEST_S * len(tests))
    if done.code not in PYTEST_RAN:
        told = (done.stderr.strip() or done.stdout.strip()).splitlines() if done.has_ended else []
        raise NothingTested("(none: a sound copy)", told[-1:])
    return frozenset(_test_of(name) for name in _failures(done.stdout))


def hunt_one(
    mutant: Mutant, tree: Path, *, limit_s: float = TIME_LIMIT_S, last_resort: bool = True
) -> Kill:
    """Runs seeds from the mutant's own on in `tree`, a copy, until one notices; `last_resort`: then
    unit tests. The copy is as it was before, afterwards.

    Raises:
        StaleMutant: its text isn't there once.
        NothingTested: its tests can't be run.
    """
    started = time.perf_counter()
    with _broken(tree, mutant):
        if mutant.masked:
            name = _failing_test(tree, mutant) if last_resort else ""
            return Kill(mutant, UNIT_TEST if name else "", None, name, _since(started))
        found = _hunted(
            tree,
            mutant.seed,
            MAX_SEEDS,
            limit_s,
            under=mutant.under,
            applications=mutant.applications,
        )
        if not found.is_quiet:
            return Kill(mutant, found.by, found.seed, found.detail, _since(started))
        name = _failing_test(tree, mutant) if last_resort else ""
    return Kill(mutant, UNIT_TEST if name else "", None, name, _since(started))


@dataclass(frozen=True, slots=True)
class _Noticed:
    """What seeds have noticed; `by` is empty if none of them has anything."""

    by: str = ""
    seed: int = 0
    detail: str = ""

    @property
    def is_quiet(self) -> bool:
        return not self.by


def _hunted(
    tree: Path, first: int, seeds: int, limit_s: float, *, under: str = "", applications: bool
) -> _Noticed:
    """What the seeds from `first` on notice in `tree`, one that crashes or hangs among them."""
    lasts_ms = APPLICATIONS_MS if applications else DURATION_MS
    numbers = map(str, (first, seeds, lasts_ms, limit_s))
    arguments = ("-c", _HUNTER, *numbers, under, "yes" if applications else "")
    done = _python(tree, *arguments, timeout_s=HANG_FACTOR * limit_s)
    if done.code == 0:
        found = json.loads(done.stdout.splitlines()[-1])
        return _Noticed() if found is None else _Noticed(found[1], found[0], found[2])
    at = next((int(line) for line in reversed(done.stdout.split()) if line.isdecimal()), first)
    if not done.has_ended:
        return _Noticed("hang", at, "a run doesn't end")
    last = done.stderr.strip().splitlines()[-1:] or ["no output"]
    return _Noticed("crash", at, last[0])


def _failing_test(tree: Path, mutant: Mutant) -> str:
    """The first unit test that fails in `tree`; empty if none does, or if they don't end: a slow
    machine looks the same as a test that hangs, and is no kill.

    Raises:
        NothingTested: they can't even be collected, which says nothing of the mutant.
    """
    tests = (*NAMED, *mutant.tests) if mutant.tests else UNIT_TESTS
    arguments = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests)
    done = _python(tree, *arguments, timeout_s=UNIT_TESTS_S)
    if not done.has_ended:
        return ""
    if done.code not in PYTEST_RAN:
        told = done.stderr.strip() or done.stdout.strip()
        raise NothingTested(mutant.name, told.splitlines()[-1:])
    return next(iter(_failures(done.stdout)), "")


def _failures(output: str) -> list[str]:
    """The tests that a summary of pytest's names as failed; lines of a log begin alike."""
    return [name.split(" - ")[0] for name in _FAILED.findall(output)]


def _test_of(name: str) -> str:
    return name.partition("[")[0].strip()


@dataclass(frozen=True, slots=True)
class _Done:
    """What a process has said, and its exit code; None: it didn't end, and was killed."""

    code: int | None
    stdout: str
    stderr: str

    @property
    def has_ended(self) -> bool:
        return self.code is not None


def _python(tree: Path, *arguments: str, timeout_s: float) -> _Done:
    """What Python did in `tree`, in a process of its own."""
    environment = {
        **os.environ,
        **ALL_CASES,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        _running.add(process)
        try:
            told, complained = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return _Done(None, *_said(process))
        finally:
            process.kill()  # if it still runs
            _running.discard(process)
    return _Done(process.returncode, told, complained)


def _said(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it had said when it was killed; nothing, where a child of its own outlives it and keeps
    the pipes open."""
    process.kill()
    try:
        return process.communicate(timeout=REST_S)
    except subprocess.TimeoutExpired:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        return "", ""


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of what has to run, compiled; gone afterwards. What is compiled already is copied: it
    stays valid, as files keep their times. But for what pytest has compiled: a defect is never in
    another form there too."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=NOT_COPIED)
            elif source.exists():
                shutil.copy2(source, tree / name)
        compileall.compile_dir(tree, quiet=2)
        yield tree


@contextmanager
def _broken(tree: Path, mutant: Mutant) -> Iterator[None]:
    """`tree` with the defect in it.

    Raises:
        StaleMutant: its text isn't there once.
    """
    victim = tree / mutant.file
    sound, was = victim.read_bytes(), victim.stat()
    broken = mutated(mutant, sound.decode())
    compiled = Path(cache_from_source(str(victim)))
    compiled.unlink(missing_ok=True)  # else a defect of as many letters might not be noticed
    victim.write_text(broken, encoding="utf-8")
    try:
        yield
    finally:
        victim.write_bytes(sound)
        os.utime(victim, ns=(was.st_atime_ns, was.st_mtime_ns))
        compileall.compile_file(victim, quiet=2)


def _since(started: float) -> float:
    return time.perf_counter() - started
