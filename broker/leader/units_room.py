"""How many units may wait for an entry, and how many bytes; whoever comes beyond that comes again.

Failed messages of clients are large, and four of them fill what waits. So parts are kept for the
brokers' own units, for who has one at a time, and for commands that go without messages: a commit
of some bytes and a message whose delay is over are refused for nobody's copies, and no desk for the
dead letters of another one. Whoever comes takes
of what all share, and of its own part only where that is full. A part that is not used up takes one
unit, however large: else the largest would never be taken while others come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from broker.errors import BrokerError, ErrorCode
from broker.state.compound import Key

MAX_WAITING: Final = 16_384  # units
MAX_WAITING_BYTES: Final = 16 << 20
MAX_OF_KEY: Final = 64  # one of them goes with an entry, and the others are looked at in vain
KEPT_WAITING: Final = 256  # of each kind that has a part of its own, besides
KEPT_WAITING_BYTES: Final = 2 << 20
READ_BYTES: Final = 4 << 20  # of a message that is yet to be read: as large as one may be


class Kind(Enum):
    """Whose units, and of what."""

    MESSAGES = auto()  # of clients: with copies of failed ones
    COMMANDS = auto()  # of clients: without
    SINGLE = auto()  # of who has one at a time, and isn't refused for what others have: without
    SINGLE_MESSAGES = auto()  # with
    BROKERS = auto()  # their own: without
    BROKERS_MESSAGES = auto()  # with


def kind_of(*, has_messages: bool, is_internal: bool, is_single: bool) -> Kind:
    """Of a unit; what is internal counts as that."""
    if is_internal:
        return Kind.BROKERS_MESSAGES if has_messages else Kind.BROKERS
    if is_single:
        return Kind.SINGLE_MESSAGES if has_messages else Kind.SINGLE
    return Kind.MESSAGES if has_messages else Kind.COMMANDS


@dataclass(slots=True)
class _Part:
    """So many units and bytes, and what of it is taken."""

    max_count: int
    max_bytes: int
    count: int = 0
    size: int = 0

    def takes(self, size: int) -> bool:
        return self.count < self.max_count and self.size + size <= self.max_bytes

    @property
    def is_used_up(self) -> bool:
        return self.count >= self.max_count or self.size >= self.max_bytes

    def add(self, size: int) -> None:
        self.count, self.size = self.count + 1, self.size + size

    def remove(self, size: int) -> None:
        self.count, self.size = self.count - 1, self.size - size


@dataclass(frozen=True, slots=True)
class Room:
    """What a unit has of the room."""

    part: _Part
    size: int
    keys: tuple[Key, ...]


def _kept() -> Mapping[Kind, _Part]:
    kinds = (kind for kind in Kind if kind is not Kind.MESSAGES)
    return {kind: _Part(KEPT_WAITING, KEPT_WAITING_BYTES) for kind in kinds}


@dataclass(slots=True)
class UnitsRoom:
    """What units that wait have of it; one leadership's."""

    _shared: _Part = field(default_factory=lambda: _Part(MAX_WAITING, MAX_WAITING_BYTES))
    _kept: Mapping[Kind, _Part] = field(default_factory=_kept)
    _waiting_of: Counter[Key] = field(default_factory=Counter)

    def take(self, kind: Kind, size: int, keys: Iterable[Key]) -> Room:
        """A place for a unit of so many bytes, which no other one shares these keys with.

        Raises:
            BrokerError: BUSY.
        """
        place = Room(self._part_for(kind, size), size, tuple(keys))
        for key in place.keys if kind in (Kind.MESSAGES, Kind.COMMANDS) else ():
            if self._waiting_of[key] >= MAX_OF_KEY:
                about = f"{key.what or 'all'} of topic {key.topic!r}"
                text = f"{MAX_OF_KEY} units about {about} wait already"
                raise BrokerError(ErrorCode.BUSY, text)
        place.part.add(size)
        self._waiting_of.update(place.keys)
        return place

    def _part_for(self, kind: Kind, size: int) -> _Part:
        if self._shared.takes(size):
            return self._shared
        kept = self._kept.get(kind)
        if kept is None or kept.is_used_up:
            raise self._busy()
        return kept

    def give_back(self, place: Room) -> None:
        """The unit waits no more."""
        place.part.remove(place.size)
        for key in place.keys:
            self._waiting_of[key] -= 1
            if not self._waiting_of[key]:
                del self._waiting_of[key]

    def check_readable(self) -> None:
        """There is room for a message of clients, as large as it may be: it is worth reading.

        Raises:
            BrokerError: BUSY.
        """
        if not self._shared.takes(READ_BYTES):
            raise self._busy()

    def _busy(self) -> BrokerError:
        count, size = self._shared.count, self._shared.size
        return BrokerError(ErrorCode.BUSY, f"{count} units of {size:,} bytes wait for their turn")
