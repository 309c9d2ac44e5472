"""Sizes as people write them: `64MiB`. One grammar for every option of every command."""

from __future__ import annotations

import re
from typing import Final

MAX_SIZE: Final = (1 << 63) - 1  # what travels to nodes is an int64
_POWERS: Final = {"": 0, "k": 10, "m": 20, "g": 30}
# 19 digits hold MAX_SIZE; the bound keeps a number of a million digits from being computed.
_SIZE: Final = re.compile(r"([0-9]{1,19}) *(?:([kmg])i?)?b?", re.IGNORECASE)


def size_in_bytes(text: str) -> int:
    """`64MiB`, `64MB`, `64M` or `67108864` in bytes; all units are powers of two.

    Raises:
        ValueError: it is none of these, or more than `MAX_SIZE`.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(match[1]) << _POWERS[(match[2] or "").lower()] if match else MAX_SIZE + 1
    if size > MAX_SIZE:
        raise ValueError(f"{text!r} is not a size like 64MiB or 67108864")
    return size
