"""Defects in what is entered, and entered again: clients open anew, and nothing else does."""

from __future__ import annotations

from typing import Final

from chaos.mutants.mutant import Mutant

_AGAIN: Final = "tests/client/test_entered_again.py::"


def _mutant(name: str, file: str, old: str, new: str, test: str) -> Mutant:
    masked = "the simulator's clients are entered once"
    return Mutant(f"enters-{name}", file, old, new, masked=masked, tests=(test,))


ENTERING = (
    _mutant(
        "with-producers-of-before",
        "dledger/client/blocking.py",
        "        self._producers = []  # those of before ended with their thread\n",
        "",
        f"{_AGAIN}test_client_that_opens_again_has_nothing_of_before",
    ),
)
