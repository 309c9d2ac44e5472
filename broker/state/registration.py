"""What a producer registers with, the id that it gets, and how many there may be: values.

The bounds decide what is refused and forgotten, so they are constants of the format: replicas with
different ones would differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

TOKEN_SIZE: Final = 8
EPOCH_SIZE: Final = 8
MAX_NAME_BYTES: Final = 255
_DAY_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class ProducerBounds:
    """How many there may be, and for how long of lived time one is unused before it may be
    forgotten to make room. An unnamed producer's id ends with its process; a name is its user's."""

    producers: int = 50_000
    queues_each: int = 4_096
    pairs: int = 100_000  # of producer and queue
    named_unused_ms: int = 7 * _DAY_MS
    unnamed_unused_ms: int = _DAY_MS


class Registration(NamedTuple):
    """What a producer registers with. `previous`: the id that it had, under the name if it has
    one; empty: it had none, and takes the name over from whoever holds it."""

    token: bytes
    name: str = ""
    previous: bytes = b""


def producer_id(epoch: int, token: bytes) -> bytes:
    """The 16 bytes that name whoever entry `epoch` registered."""
    return epoch.to_bytes(EPOCH_SIZE, "big") + token


def could_be_given(identity: bytes, index: int) -> bool:
    """Whether the log can have given the id before entry `index`. Producers of the format before
    drew all 16 bytes: no leader takes such an id now, but it stands in older entries."""
    return 0 < int.from_bytes(identity[:EPOCH_SIZE], "big") < index


STANDARD: Final = ProducerBounds()
