"""`make mutants`: hunts every mutant and prints what killed each.

Exit code 0 when every one was killed, 1 when one survived, 2 when a mutant no longer fits the code,
isn't known, or has tests that can't be run.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from chaos.errors import NothingTested, StaleMutant
from chaos.mutants.catalogue import MUTANTS
from chaos.mutants.hunt import Kill, copied, hunt_all, void_when_sound
from chaos.mutants.mutant import Mutant


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunts the mutants that are named, or all; the exit code."""
    told = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # copies go with it
    console = Console()
    if unknown := sorted(set(told.names) - {mutant.name for mutant in MUTANTS}):
        console.print(f"unknown mutants: {', '.join(unknown)}")
        return 2
    chosen = [mutant for mutant in MUTANTS if not told.names or mutant.name in told.names]
    try:
        kills = _hunted(console, chosen, told.jobs)
        with copied() as tree:
            void = void_when_sound(kills, tree, told.jobs)
    except (StaleMutant, NothingTested) as stale:
        console.print(str(stale), markup=False)
        return 2
    for where in sorted({kill.where for kill in void}):
        console.print(f"no verdict, it fails without a defect too: {where}", markup=False)
    kills = [replace(kill, by="") if kill in void else kill for kill in kills]
    console.print(_table(sorted(kills, key=lambda kill: chosen.index(kill.mutant))))
    survivors = [kill for kill in kills if not kill.is_killed]
    console.print(f"{len(kills) - len(survivors)} of {len(kills)} killed")
    return 1 if survivors else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m chaos.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which mutants; default: all")
    parser.add_argument(
        "--jobs",
        type=int,
        choices=range(1, 65),
        default=1,
        metavar="N",
        help="hunts at a time, 1 to 64; default: 1",
    )
    return parser


def _hunted(console: Console, chosen: Sequence[Mutant], jobs: int) -> list[Kill]:
    kills: list[Kill] = []
    for kill in hunt_all(chosen, jobs):
        kills.append(kill)
        line = f"[{len(kills)}/{len(chosen)}] {kill.mutant.name} {_verdict(kill)}"
        console.print(line, markup=False, soft_wrap=True)
    return kills


def _verdict(kill: Kill) -> str:
    if not kill.is_killed:
        return "SURVIVED"
    return f"killed by {kill.by}, {kill.where}, {kill.seconds:.0f} s"


def _area(mutant: Mutant) -> str:
    return "/".join(mutant.file.split("/")[:2]).removesuffix(".py")


def _table(kills: Sequence[Kill]) -> Table:
    table = Table("mutant", "in", "killed by", "seed", title="Mutants")
    for kill in kills:
        seed = "unit tests" if kill.is_killed and kill.seed is None else str(kill.seed or 0)
        by = f"{kill.by}: {kill.detail}"[:70] if kill.is_killed else "SURVIVED"
        table.add_row(kill.mutant.name, _area(kill.mutant), by, seed if kill.is_killed else "")
    return table


if __name__ == "__main__":
    sys.exit(main())
