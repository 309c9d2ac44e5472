"""Which mutants of the client library a seed shows of the schedule in which applications use it.

They stand with their rules in the other rooms; here is where the hunt for each begins. All others
of the library are given to the tests that they name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from chaos.mutants.mutant import Mutant

SEEDS: Final = {
    "cancelled-receives-pile-up": 12,
    "given-up-taken-for-not-stored": 9,
    "overdue-in-flight-called-not-stored": 1,
    "told-not-stored-and-sent-again": 19,
    "whatever-fails-is-rejected": 1,
}


def seen_by_applications(mutants: Sequence[Mutant]) -> Iterator[Mutant]:
    """The same, with seeds where there are some."""
    for mutant in mutants:
        seed = SEEDS.get(mutant.name)
        yield (mutant if seed is None else replace(mutant, seed=seed, masked="", applications=True))
