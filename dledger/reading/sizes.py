"""What the sizes and offsets of a log can be. Beyond that, names and pages are damage, and lead
whoever counts astray."""

from __future__ import annotations

from typing import Final

MAX_OFFSET: Final = (1 << 63) - 1
SEGMENT_SIZES: Final = range(4096, (2 << 30) + 1)


def possible_size(size: int) -> int | None:
    """The size, which a log's segments can have; else None."""
    return size if size in SEGMENT_SIZES else None
