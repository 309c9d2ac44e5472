"""Defects in what a start passes over (docs/adr/0037-a-start-reads-what-is-new.md)."""

from __future__ import annotations

from chaos.mutants.mutant import Mutant

_STORE = ("tests/store/test_seals.py",)

SEALS = (
    Mutant(
        "sealed-beyond-the-snapshot",
        "store/seals.py",
        "            wanted = min(through, segment.first_index + segment.count - 1)\n",
        "            wanted = segment.first_index + segment.count - 1\n",
        masked="the header of the last entry is looked at",
        tests=("tests/broker/test_sealing.py",),
    ),
    Mutant(
        "seal-believed-beyond-the-watermark",
        "store/seals.py",
        "if run.base == int(name) and run.base + run.size <= checkpoint.state.watermark:",
        "if run.base == int(name):",
        masked="what was sealed is durable, and noted as that, unless somebody puts a note back",
        tests=_STORE,
    ),
    Mutant(
        "sealed-segment-not-looked-at-where-it-ends",
        "store/walking.py",
        "if run is None or run.first != first or not self._ends_with(run, window):",
        "if run is None or run.first != first:",
        masked="what is sealed is never cut",
        tests=_STORE,
    ),
    Mutant(
        "seals-of-the-log-before-an-install",
        "store/log_start.py",
        "        self._unlink(seals, [n for n in self._listed(seals) if FILE_NAME.fullmatch(n)])\n",
        "",
        masked="their headers are looked at",
        tests=_STORE,
    ),
    Mutant(
        "marks-lost-in-a-seal",
        "store/starts.py",
        "        if marks is None:\n",
        "        if marks is not None:\n            marks = None\n        if marks is None:\n",
        masked="damage is only placed more coarsely",
        tests=("tests/store/test_starts.py",),
    ),
    Mutant(
        "seal-unwritten-counts-as-written",
        "store/seals.py",
        "                return SealStep(self._writing(segment, wanted), segment.base, wanted)\n",
        "                self._sealed[segment.base] = wanted\n"
        "                return SealStep(self._writing(segment, wanted), segment.base, wanted)\n",
        masked="a start without seals only reads more",
        tests=_STORE,
    ),
)
