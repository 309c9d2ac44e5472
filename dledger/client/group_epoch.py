"""The epoch of a broker group as a client knows it: pure values (ADR 52).

A group whose majority was lost for ever may have been recovered from one survivor; what its other
members know is the past then, whatever their term. So a client keeps the newest epoch that a node
told it of, tells it with every call, and believes nobody of an older one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dledger.limits import EARLIER_METADATA_KEY, EPOCH_METADATA_KEY

_NAME: Final = struct.Struct(">I16s")
RECOVERY_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class EpochName:
    """How many recoveries led to it, and the id of the last one; neither in the first epoch.
    `earlier`: the ids of those before, if they were told; they make it no other epoch."""

    number: int = 0
    recovery_id: bytes = b""
    earlier: tuple[bytes, ...] = field(default=(), compare=False)

    @property
    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        """What each call says of it; nothing before a group was ever recovered."""
        if not self.number:
            return ()
        name = (EPOCH_METADATA_KEY, _NAME.pack(self.number, self.recovery_id))
        return (name, (EARLIER_METADATA_KEY, b"".join(self.earlier))) if self.earlier else (name,)


FIRST_EPOCH: Final = EpochName()


def epoch_in(metadata: Iterable[tuple[str, str | bytes]]) -> EpochName:
    """What an answer says of the epoch that it was given in; the first one where it says nothing,
    as to who knows it already."""
    said = dict(metadata)
    name, before = said.get(EPOCH_METADATA_KEY), said.get(EARLIER_METADATA_KEY, b"")
    if not isinstance(name, bytes) or len(name) != _NAME.size:
        return FIRST_EPOCH
    number, recovery_id = _NAME.unpack(name)
    return EpochName(number, recovery_id, _earlier(number, before))


def _earlier(number: int, before: str | bytes) -> tuple[bytes, ...]:
    """The ids of the recoveries before the last of so many; none, if these can't be they."""
    size = RECOVERY_ID_BYTES
    if not isinstance(before, bytes) or len(before) != (number - 1) * size:
        return ()
    return tuple(before[at : at + size] for at in range(0, len(before), size))
