"""Following entries by their sizes, in one segment: where that leads, and where on from there.

Headers are believed as they look, so this is cheap and proves nothing. What it must never do is to
take damage for an end: where headers stop leading, an intact entry may still lie behind.
"""

from __future__ import annotations

from typing import Final

from dledger.reading.entry import (
    FILLER_HEADER,
    FILLER_HEADER_SIZE,
    FILLER_MAGIC,
    HEADER_SIZE,
    OPENING_SIZE,
    EntryHeader,
    parse_header,
    possible_starts,
    verify_frame,
)
from dledger.reading.files import read_at
from dledger.records.errors import InvalidFrame

_WINDOW_BYTES: Final = 64 << 10
_LARGE_BYTES: Final = 16 << 10
_SEARCHED_BYTES: Final = 1 << 20


def walk_headers(
    descriptor: int, base: int, size: int, stop_index: int | None = None, start: int = 0
) -> tuple[int, EntryHeader | None, str]:
    """Follows entry sizes from byte `start` of the segment, trusting headers that look right.

    Args:
        stop_index: stop behind this entry.

    Returns:
        The offset in the file where it ended, the last entry's header, and why it ended there:
        `"index"`, `"filler"`, `"zeros"`, `"end"` of the file, or `"invalid"`.
    """
    at, last = start, None
    window, window_at = b"", 0
    while True:
        if at + HEADER_SIZE > window_at + len(window):
            # Of large entries there is one header in a window at most.
            is_large = last is not None and last.total_size >= _LARGE_BYTES
            window = read_at(descriptor, HEADER_SIZE if is_large else _WINDOW_BYTES, at)
            window_at = at
        near = at - window_at
        if len(window) - near < FILLER_HEADER_SIZE:
            return at, last, "end"
        filler_size, magic = FILLER_HEADER.unpack_from(window, near)
        if magic == FILLER_MAGIC:
            return at, last, "filler"
        if filler_size == 0 and magic == 0:
            return at, last, "zeros"
        try:
            header = parse_header(window, near)
        except InvalidFrame:
            return at, last, "invalid"
        if header.physical_offset != base + at or at + header.total_size > size:
            return at, last, "invalid"
        at, last = at + header.total_size, header
        if stop_index is not None and header.index >= stop_index:
            return at, last, "index"


def place_within(
    descriptor: int, base: int, size: int, index: int
) -> tuple[int | None, tuple[int, int]]:
    """The physical offset behind entry `index`, None if it isn't in the segment; and where headers
    stop leading from the segment's start, with the entry before."""
    at, last, reason = walk_headers(descriptor, base, size, index)
    stopped = base + at, last.index if last else 0
    while last is None or (reason, last.index) != ("index", index):
        if reason == "filler":
            return None, stopped
        if last is not None and reason == "index":  # It calls itself a later one than can be here.
            at -= last.total_size
        found = next_intact(descriptor, base, size, at + 1)
        if found is None:
            return None, stopped
        at = found.physical_offset - base
        if found.index > index:
            break
        at, last, reason = walk_headers(descriptor, base, size, index, at)
    return base + at, stopped


def next_intact(descriptor: int, base: int, size: int, start: int) -> EntryHeader | None:
    """The first intact entry that begins at byte `start` of the segment or behind it, and says that
    it lies there."""
    at = start
    while len(content := read_at(descriptor, min(_SEARCHED_BYTES, size - at), at)) >= OPENING_SIZE:
        for near in possible_starts(content):
            try:
                header = parse_header(read_at(descriptor, HEADER_SIZE, at + near), 0)
                if header.physical_offset != base + at + near:
                    continue
                frame = read_at(descriptor, min(header.total_size, size - at - near), at + near)
                return verify_frame(frame, 0, None)
            except InvalidFrame:
                continue
        if at + len(content) >= size:
            return None
        at += len(content) - (OPENING_SIZE - 1)  # so that no size and magic are cut in two
    return None


def is_blank(descriptor: int, at: int) -> bool:
    """Whether there are only zeros from byte `at` of the file on."""
    while content := read_at(descriptor, _SEARCHED_BYTES, at):
        if content.count(0) < len(content):
            return False
        at += len(content)
    return True
