"""One defect: where, and what is changed into what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect. `seed` is where the hunt begins; any later one will do. `masked` says why no
    run shows it: something behind it holds, or it costs time and no truth. Then the unit tests
    have to find it; `tests` names those that are its own. `under` is the kind of fault without
    which it can't show (a value of `chaos.sim.plan.Fault`): seeds that have none of it are passed
    over. `applications`: the seeds are of the schedule in which applications use the library."""

    name: str
    file: str
    old: str
    new: str
    seed: int = 0
    masked: str = ""
    under: str = ""
    tests: tuple[str, ...] = ()
    applications: bool = False
