"""Defects of programs that meet a level of formats and commands which they don't know
(docs/adr/0023-levels.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_READERS = ("tests/audit/test_later_levels.py",)
_NO_READERS = "no run is read without a node"

LEVELS = (
    Mutant(
        "log-of-a-later-level-read",
        "dledger/reading/lifetimes.py",
        "        if self._level is not None and self._level > KNOWN_LEVEL:\n",
        "        if False:\n",
        masked=_NO_READERS,
        tests=_READERS,
    ),
    Mutant(
        "raise-of-the-level-passed-over",
        "dledger/reading/lifetimes.py",
        "                self._level = level_behind(self._level, command.raise_level.level)\n",
        "                pass\n",
        masked=_NO_READERS,
        tests=_READERS,
    ),
    Mutant(
        "level-where-a-log-begins-unasked",
        "dledger/reading/lifetimes.py",
        "            self._level = level_at_start(log)\n",
        "            self._level = 1\n",
        masked=_NO_READERS,
        tests=_READERS,
    ),
    Mutant(
        "level-of-another-logs-base",
        "dledger/reading/levels.py",
        "    if place != wanted:\n",
        "    if False:\n",
        masked=_NO_READERS,
        tests=_READERS,
    ),
    Mutant(
        "void-raise-of-the-level-believed",
        "dledger/reading/levels.py",
        "    return wanted if wanted == level + 1 else level\n",
        "    return wanted\n",
        masked=_NO_READERS,
        tests=_READERS,
    ),
)
