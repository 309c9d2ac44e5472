"""The tags codes of many records, where their tags lie alike. Pure functions over bytes.

Messages of one producer have the same properties in the same order, so most tags begin as far into
their properties as the first one's. Those are hashed all at once here. What lies otherwise is left
to `store.tagging`, whose answer this must give wherever it gives one.

Source: Java's `String.hashCode`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dledger.reading.chunks import gathered
from dledger.reading.columns import Integers
from store.tagging import TAGS, codes_between

MAX_LETTERS: Final = 24  # A longer tag is left to the exact way.
MAX_AHEAD: Final = 512  # Bytes of properties before the tag.
_END: Final = 2  # the byte behind a property
_LATER: Final = bytes((_END,)) + TAGS
_TAGS: Final = np.frombuffer(TAGS, dtype=np.uint8)

Letters = npt.NDArray[np.uint8]


def tags_codes(content: bytes, starts: Integers, properties: Integers, ends: Integers) -> Integers:
    """The tags code of each record.

    Args:
        starts, properties, ends: of each record its first byte, where its properties begin, and
            the byte behind it; ascending.
    """
    ahead = _ahead(content, int(properties[0]), int(ends[0]))
    if ahead is None and TAGS not in content:
        return np.zeros(len(starts), dtype=np.int64)
    known, codes = np.zeros(len(starts), dtype=bool), np.zeros(len(starts), dtype=np.int64)
    if ahead is not None and ahead <= MAX_AHEAD:
        known, codes = _alike(content, properties, ends, ahead)
    if not known.all():
        rest = np.flatnonzero(~known)
        codes[rest] = codes_between(content, starts[rest], ends[rest])
    return codes


def _ahead(content: bytes, first: int, end: int) -> int | None:
    """How many bytes of properties lie before the tag; None without one."""
    if content.startswith(TAGS, first, end):
        return 0
    found = content.find(_LATER, first, end)
    return None if found < 0 else found + 1 - first


def _alike(
    content: bytes, properties: Integers, ends: Integers, ahead: int
) -> tuple[npt.NDArray[np.bool_], Integers]:
    """Of which records the first tag begins behind `ahead` bytes of properties and is short and
    ASCII, and the codes of those."""
    head = ahead + len(TAGS)
    width = head + MAX_LETTERS
    known = (properties + head <= ends) & (properties + width <= len(content))
    codes = np.zeros(len(properties), dtype=np.int64)
    places = properties[known]
    rows = gathered(content, places, f"V{width}").view(np.uint8).reshape(-1, width)
    if TAGS in rows[:, :ahead].tobytes():  # Some have an earlier one, or seem to.
        return np.zeros(len(properties), dtype=bool), codes
    good = (rows[:, ahead:head] == _TAGS).all(axis=1)
    if ahead:
        good &= rows[:, ahead - 1] == _END
    letters = rows[:, head:]
    is_end = letters == _END
    lengths = np.where(is_end.any(axis=1), is_end.argmax(axis=1), MAX_LETTERS)
    lengths = np.minimum(lengths, ends[known] - places - head)
    good &= lengths < MAX_LETTERS
    good &= ((letters < 0x80) | (np.arange(MAX_LETTERS) >= lengths[:, None])).all(axis=1)
    hashes = _hashes(letters, lengths, int(lengths[good].max(initial=0)))
    codes[known] = hashes.view(np.int32)
    known[known] = good
    return known, codes


def _hashes(letters: Letters, lengths: Integers, longest: int) -> npt.NDArray[np.uint32]:
    """Java's hash of the first `lengths` letters of each row."""
    hashes = np.zeros(len(letters), dtype=np.uint32)
    for at in range(longest):
        longer = hashes * np.uint32(31) + letters[:, at]
        hashes = np.where(lengths > at, longer, hashes)
    return hashes
