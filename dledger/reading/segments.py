"""The names of segment files. A name is the physical offset of the segment's first byte, in 20
digits, so that names sort as offsets do. RocketMQ names its files the same way."""

from __future__ import annotations

import re
from typing import Final

SEGMENT_NAME: Final = re.compile(r"[0-9]{20}")
UNFINISHED_NAME: Final = re.compile(r"[0-9]{20}\.tmp")  # A preallocation that was cut short.


def segment_name(base: int) -> str:
    """The file name of the segment whose first byte has physical offset `base`."""
    return f"{base:020d}"
