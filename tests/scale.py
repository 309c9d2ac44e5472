"""How much the tests look at that draw their cases: a share in `make test`, all of it in
`make test-long`, which sets `DLEDGER_TEST_ALL`."""

from __future__ import annotations

import os
from typing import Final

ALL: Final = bool(os.environ.get("DLEDGER_TEST_ALL"))
LEAST: Final = 20  # examples of a property, if there are as many


def examples(count: int) -> int:
    """Of `count` examples of a property, how many are drawn now."""
    return count if ALL else min(count, max(LEAST, count // 5))


def stride(step: int) -> int:
    """From one of many like cases to the next that is looked at now."""
    return 1 if ALL else step
