"""`make mutants`: hunts every mutant and prints what killed each.

Exit code 0 when every one was killed, 1 when one survived, 2 when a mutant no longer fits the code,
isn't known, or has tests that can't be run.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from chaos.errors import NothingTested, StaleMutant
from chaos.mutants.catalogue import MUTANTS
from chaos.mutants.hunt import Kill, hunt_one
from chaos.mutants.mutant import Mutant


def main(names: list[str]) -> int:
    """Hunts the mutants called `names`, or all; the exit code."""
    console = Console()
    unknown = sorted(set(names) - {mutant.name for mutant in MUTANTS})
    if unknown:
        console.print(f"unknown mutants: {', '.join(unknown)}")
        return 2
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    kills: list[Kill] = []
    for number, mutant in enumerate(chosen, start=1):
        console.print(f"[{number}/{len(chosen)}] {mutant.name}", end=" ", markup=False)
        try:
            kills.append(hunt_one(mutant))
        except (StaleMutant, NothingTested) as stale:
            console.print(str(stale), markup=False)
            return 2
        console.print(_verdict(kills[-1]), markup=False)
    console.print(_table(kills))
    survivors = [kill for kill in kills if not kill.is_killed]
    console.print(f"{len(kills) - len(survivors)} of {len(kills)} killed")
    return 1 if survivors else 0


def _verdict(kill: Kill) -> str:
    if not kill.is_killed:
        return "SURVIVED"
    where = "unit tests" if kill.seed is None else f"seed {kill.seed}"
    return f"killed by {kill.by}, {where}, {kill.seconds:.0f} s"


def _area(mutant: Mutant) -> str:
    return "/".join(mutant.file.split("/")[:2]).removesuffix(".py")


def _table(kills: list[Kill]) -> Table:
    table = Table("mutant", "in", "killed by", "seed", title="Mutants")
    for kill in kills:
        seed = "unit tests" if kill.is_killed and kill.seed is None else str(kill.seed or 0)
        by = f"{kill.by}: {kill.detail}"[:70] if kill.is_killed else "SURVIVED"
        table.add_row(kill.mutant.name, _area(kill.mutant), by, seed if kill.is_killed else "")
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
