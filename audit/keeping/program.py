"""Which program proved something: a digest of all sources that a proof is made with.

A number that somebody raises when the rules change is forgotten once, and then a proof of the old
rules passes for one of the new. What tasks stand on is known: it is what executors are given.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from xxhash import xxh3_64

from audit.engines.package import TASKS

_ROOT: Final = Path(__file__).parents[2]


@cache
def program_digest() -> str:
    """The same for the same sources; empty if they can't be read, so that nothing is believed."""
    state = xxh3_64()
    parts = [_ROOT / part for part in TASKS]
    files = sorted(
        {each for part in parts for each in ([part] if part.is_file() else part.rglob("*.py"))}
    )
    for path in files:
        content = path.read_bytes()
        state.update(f"{path.relative_to(_ROOT)}\0{len(content)}\0".encode())
        state.update(content)
    return str(state.hexdigest()) if files else ""
