"""Which messages carry a wanted tag: by the hash in the ConsumeQueue, then by the record itself.

A unit holds the hash of its message's tag, so that what isn't wanted is passed over without a look
at the log. Two tags may have one hash (`Aa` and `BB` have): what is left is compared with the tag
that its record carries. A unit is no witness (ADR 28), and no record bears out those that are
passed over. So only units that are known to be what was derived are passed over by their hash
(`store.unit_marks`); of others the record is looked at, whatever the hash says: a bit of it that
has flipped would hide a message for good. And each has to be what a unit can be: a size that a
record can have, or the mark of a void one, a hash of 32 bits, and a place behind that of the unit
before it. Looking ends in front of the first that isn't.

Pure functions over bytes: nothing is read here, and nothing raises for bytes that are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from broker.reading.proof import MAX_RECORD_SIZE
from dledger.records.layout import RECORD
from dledger.records.properties import TAGS, find_property, tags_code
from dledger.records.record import MIN_RECORD_SIZE
from store.dispatch import UNIT_DTYPE, UNIT_SIZE
from store.voiding import is_void

UNITS_AT_ONCE: Final = 32_768  # units, in one turn: a millisecond

_BODY_LENGTH: Final = RECORD.run("body_length")
_BODY_LENGTH_AT: Final = RECORD.at("body_length")
_BODY_AT: Final = RECORD.at("body")
# The topic's length, and behind the topic that of the properties.
_BESIDE_TOPIC: Final = RECORD.at("properties") - RECORD.at("body")
_TAGS: Final = TAGS.encode()

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WantedTags:
    """Some tags, and their hashes."""

    tags: frozenset[str]
    codes: Numbers


@dataclass(frozen=True, slots=True)
class Look:
    """What looking through units has shown; all numbers count from the first unit.

    Attributes:
        wanted: those whose hash is that of a wanted tag, or isn't known to be its own, ascending.
        voids: those that nobody may read, ascending.
        end: how many were looked through; the next one is wrong, if there is one.
    """

    wanted: Numbers
    voids: Numbers
    end: int


@lru_cache(maxsize=256)
def wanted_tags(tags: tuple[str, ...]) -> WantedTags:
    """The tags, ready to be looked for."""
    return WantedTags(frozenset(tags), np.array([tags_code(each) for each in tags], np.int64))


def look_through(units: bytes, base: int, tags: WantedTags, sure: int) -> Look:
    """Which of the units are wanted.

    Args:
        base: queue offset of the first.
        sure: so many of them, from the first on, are known to be what was derived.
    """
    claimed = np.frombuffer(units, dtype=UNIT_DTYPE)
    sizes = claimed["size"].astype(np.int64)
    codes = claimed["tags_code"].astype(np.int64)
    good = (sizes >= MIN_RECORD_SIZE) & (sizes <= MAX_RECORD_SIZE)
    good &= codes == codes.astype(np.int32)
    voids = _voids(units, base, np.flatnonzero(sizes == 0))
    good[voids] = True
    good[:-1] &= _ascend(claimed, sizes)
    end = len(good) if good.all() else int(np.argmin(good))
    is_wanted = np.isin(codes[:end], tags.codes)
    is_wanted[sure:] = True
    voids = voids[voids < end]
    is_wanted[voids] = False
    return Look(np.flatnonzero(is_wanted), voids, end)


def _voids(units: bytes, base: int, empty: Numbers) -> Numbers:
    """Those of the units without a size that are void ones, up to the first that isn't."""
    for count, number in enumerate(empty.tolist()):
        if not is_void(units[number * UNIT_SIZE : (number + 1) * UNIT_SIZE], base + number):
            return empty[:count]
    return empty


def _ascend(claimed: npt.NDArray[np.void], sizes: Numbers) -> npt.NDArray[np.bool_]:
    """Of all units but the last, whether the next one's record lies behind its own: a queue's
    records lie in the log in the queue's order."""
    physical = claimed["physical_offset"].astype(np.uint64)
    ends = physical[:-1] + sizes[:-1].astype(np.uint64)
    found: npt.NDArray[np.bool_] = (physical[1:] >= ends) & (physical[1:] > physical[:-1])
    return found & (ends >= physical[:-1])  # a sum that ran over is none


def chosen(units: bytes, numbers: Numbers) -> bytes:
    """Those units, back to back."""
    return np.frombuffer(units, dtype=UNIT_DTYPE)[numbers].tobytes()


def carries(records: bytes, start: int, end: int, tags: WantedTags) -> bool:
    """Whether the record in `[start, end)` carries one of the tags; false if its lengths lie."""
    (body_size,) = _BODY_LENGTH.unpack_from(records, start + _BODY_LENGTH_AT)
    topic_at = start + _BODY_AT + body_size
    if topic_at >= end:
        return False
    properties_at = topic_at + _BESIDE_TOPIC + records[topic_at]
    return find_property(records[properties_at:end], _TAGS) in tags.tags
