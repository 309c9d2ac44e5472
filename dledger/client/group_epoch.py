"""The epoch of a broker group as a client knows it: pure values (ADR 52).

A group whose majority was lost for ever may have been recovered from one survivor; what its other
members know is the past then, whatever their term. So a client keeps the newest epoch that a node
told it of, tells it with every call, and believes nobody of an older one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dledger.limits import EPOCH_METADATA_KEY

_NAME: Final = struct.Struct(">I16s")
RECOVERY_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class EpochName:
    """How many recoveries led to it, and the id of the last one; neither in the first epoch."""

    number: int = 0
    recovery_id: bytes = b""

    @property
    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        """What each call says of it; nothing before a group was ever recovered."""
        if not self.number:
            return ()
        return ((EPOCH_METADATA_KEY, _NAME.pack(self.number, self.recovery_id)),)


FIRST_EPOCH: Final = EpochName()


def epoch_in(metadata: Iterable[tuple[str, str | bytes]]) -> EpochName:
    """What an answer says of the epoch that it was given in; the first one where it says nothing,
    as to who knows it already."""
    for key, value in metadata:
        if key == EPOCH_METADATA_KEY and isinstance(value, bytes) and len(value) == _NAME.size:
            return EpochName(*_NAME.unpack(value))
    return FIRST_EPOCH
