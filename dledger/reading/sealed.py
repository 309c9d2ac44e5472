"""JSON with a seal: a CRC32C over its fields, in the field `crc32c` beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from crc32c import crc32c

from dledger.records.errors import InvalidFrame

_SEAL: Final = "crc32c"


def seal_of(fields: Mapping[str, object]) -> str:
    """CRC32C, in hex, over the fields as JSON with sorted keys and no blanks."""
    return f"{crc32c(json.dumps(fields, sort_keys=True, separators=(',', ':')).encode()):08x}"


def unsealed(content: bytes) -> dict[str, object]:
    """The fields that `content` holds, without their seal.

    Raises:
        InvalidFrame: it holds none, or others than were sealed.
    """
    try:
        stored = json.loads(content)
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict):
        raise InvalidFrame(0, "sealed", "a JSON object", content[:40])
    seal = stored.pop(_SEAL, None)
    if seal != seal_of(stored):
        raise InvalidFrame(0, "sealed", f"crc32c {seal_of(stored)}", seal)
    return stored
