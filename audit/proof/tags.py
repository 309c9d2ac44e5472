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

MAX_WORDS: Final = 3  # of eight letters; a longer tag is left to the exact way.
MAX_AHEAD: Final = 512  # Bytes of properties before the tag.
_LETTERS: Final = 8  # of a word
_END: Final = 2  # the byte behind a property
_LATER: Final = bytes((_END,)) + TAGS

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.uint8]

_WORD: Final = np.dtype("<u8")  # The first letter is its lowest byte.
_LOW_BITS: Final = np.uint64(0x0101010101010101)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_ENDS: Final = np.uint64(0x0202020202020202)
_BYTES: Final = np.uint64(0x00FF00FF00FF00FF)
_PAIRS: Final = np.uint64(0x0000FFFF0000FFFF)
_FOURS: Final = np.uint64(0x00000000FFFFFFFF)
# Of n letters: the bits that a word keeps; what the hash before them is multiplied with; and what
# takes back that zeros were hashed for letters that there aren't: 31 is odd, so it has an inverse.
_KEPT: Final = np.array([(1 << 8 * n) - 1 for n in range(_LETTERS + 1)], dtype=np.uint64)
_POWER: Final = np.array([pow(31, n, 1 << 32) for n in range(_LETTERS + 1)], dtype=np.uint64)
_SHORTER: Final = np.array(
    [pow(31, n - _LETTERS, 1 << 32) for n in range(_LETTERS + 1)], dtype=np.uint64
)


def tags_codes(content: bytes, starts: Integers, properties: Integers, ends: Integers) -> Integers:
    """The tags code of each record.

    Args:
        starts, properties, ends: of each record its first byte, where its properties begin, and
            the byte behind it; ascending.
    """
    codes = np.zeros(len(starts), dtype=np.int64)
    ahead = _ahead(content, int(properties[0]), int(ends[0]))
    if ahead is None and TAGS not in content:
        return codes
    known = np.zeros(len(starts), dtype=bool)
    if ahead is not None and ahead <= MAX_AHEAD:
        # All that is read of a tag must lie within the content, that of the last ones doesn't.
        room = len(content) - ahead - len(TAGS) - MAX_WORDS * _LETTERS
        count = int(np.searchsorted(properties, room, side="right"))
        known[:count], codes[:count] = _alike(content, properties[:count], ends[:count], ahead)
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
) -> tuple[Flags, Integers]:
    """Of which records the first tag begins behind `ahead` bytes of properties and is short and
    ASCII, and the codes of those."""
    if ahead and TAGS in gathered(content, properties, f"V{ahead}").tobytes():
        # Some have an earlier one, or seem to.
        return np.zeros(len(properties), dtype=bool), np.zeros(len(properties), dtype=np.int64)
    tags, opening = properties + (ahead + len(TAGS)), _LATER if ahead else TAGS
    words = gathered(content, tags - len(opening), _WORD) & _KEPT[len(opening)]
    room = ends - tags
    known = (words == int.from_bytes(opening, "little")) & (room >= 0)
    is_short, codes = _codes_of(content, tags, room)
    return known & is_short, codes


def _codes_of(content: bytes, tags: Integers, room: Integers) -> tuple[Flags, Integers]:
    """Which tags are ASCII and of `MAX_WORDS` at most, and the codes of those.

    Args:
        tags: where each begins; so many words can be read there.
        room: how many bytes of the record follow, where the tag ends at the latest.
    """
    is_short, hashes, counts = _letters(content, tags, room)
    longer = np.flatnonzero(counts == _LETTERS)
    for number in range(1, MAX_WORDS):
        if not len(longer):
            break
        at = number * _LETTERS
        is_ascii, more, counts = _letters(content, tags[longer] + at, room[longer] - at)
        is_short[longer] &= is_ascii
        hashes[longer] = hashes[longer] * _POWER[counts] + more
        longer = longer[counts == _LETTERS]
    is_short[longer] = False
    return is_short, hashes.astype(np.uint32).view(np.int32).astype(np.int64)


def _letters(content: bytes, tags: Integers, room: Integers) -> tuple[Flags, Words, Counts]:
    """Whether the next letters of each tag are ASCII, their hash, and how many they are: those of
    the word at `tags` before an end, and within `room`."""
    words = gathered(content, tags, _WORD).astype(np.uint64)
    letters = _upto_end(words) & _KEPT[np.clip(room, 0, _LETTERS)]
    words &= letters
    counts = np.bitwise_count(letters) >> 3
    return (words & _HIGH_BITS) == 0, _hash_of_word(words) * _SHORTER[counts], counts


def _upto_end(words: Words) -> Words:
    """The bits of the letters before the first end; all of them if there is none."""
    differing = words ^ _ENDS
    zeros = (differing - _LOW_BITS) & ~differing & _HIGH_BITS  # Its lowest bit is of the first end.
    return ((zeros & -zeros) >> np.uint64(7)) - np.uint64(1)


def _hash_of_word(words: Words) -> Words:
    """Java's hash of eight letters, the lowest 32 bits of it; each letter is ASCII, so pairs and
    fours of them have room."""
    pairs = (words & _BYTES) * np.uint64(31) + (words >> np.uint64(8) & _BYTES)
    fours = (pairs & _PAIRS) * np.uint64(31**2) + (pairs >> np.uint64(16) & _PAIRS)
    return (fours & _FOURS) * np.uint64(31**4) + (fours >> np.uint64(32))
