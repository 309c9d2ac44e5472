"""The account of numbered messages: what was promised of each, and what was found.

Each message's body begins with its number, so that what is read back can be held against what
its future had said. This decides what *lost*, *duplicated* and *wrongly refused* mean; it never
looks at the group, only at bodies. One byte a message sent, one a message found.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum

NUMBER = struct.Struct(">Q")  # at byte 0 of a body: the message's number, from 0
assert NUMBER.size == 8
COUNTED_UP_TO = 255  # a byte a message: more copies than that count as that many


class Fate(IntEnum):
    """What a message's future said."""

    PENDING = 0  # nothing yet: as good as UNKNOWN
    ACKNOWLEDGED = 1
    REFUSED = 2  # was not stored
    UNKNOWN = 3  # may have been stored


@dataclass(frozen=True, slots=True)
class Audit:
    """The account at the end. `lost` and `refused_but_stored` break a promise."""

    sent: int
    acknowledged: int
    refused: int
    unknown: int
    unknown_but_stored: int  # as one may expect of some of them
    lost: int  # acknowledged, and not there
    refused_but_stored: int
    duplicated: int  # more than once there: copies beyond the first
    foreign: int  # bodies that no message of this account has


class Ledger:
    """Numbers messages, takes down their fates and what was found."""

    def __init__(self) -> None:
        self._fates = bytearray()
        self._found = bytearray()
        self._foreign = 0
        self.acknowledged = 0

    @property
    def sent(self) -> int:
        """How many numbers were given out."""
        return len(self._fates)

    def open(self) -> int:
        """The next message's number."""
        self._fates.append(Fate.PENDING)
        self._found.append(0)
        return len(self._fates) - 1

    def close(self, number: int, fate: Fate) -> None:
        """Takes down what the message's future said."""
        self._fates[number] = fate
        self.acknowledged += fate is Fate.ACKNOWLEDGED

    def find(self, body: bytes) -> None:
        """Takes down a body that was read back."""
        number = NUMBER.unpack_from(body)[0] if len(body) >= NUMBER.size else self.sent
        if number >= self.sent:
            self._foreign += 1
        elif self._found[number] < COUNTED_UP_TO:
            self._found[number] += 1

    def audit(self) -> Audit:
        """Holds what was found against what was said."""
        cases = Counter(zip(self._fates, map(bool, self._found), strict=True))
        unknown_but_stored = cases[Fate.UNKNOWN, True] + cases[Fate.PENDING, True]
        return Audit(
            sent=self.sent,
            acknowledged=cases[Fate.ACKNOWLEDGED, True] + cases[Fate.ACKNOWLEDGED, False],
            refused=cases[Fate.REFUSED, True] + cases[Fate.REFUSED, False],
            unknown=unknown_but_stored + cases[Fate.UNKNOWN, False] + cases[Fate.PENDING, False],
            unknown_but_stored=unknown_but_stored,
            lost=cases[Fate.ACKNOWLEDGED, False],
            refused_but_stored=cases[Fate.REFUSED, True],
            duplicated=sum(self._found) - sum(map(bool, self._found)),
            foreign=self._foreign,
        )
