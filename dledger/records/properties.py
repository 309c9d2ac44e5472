"""Message properties: the `name \\x01 value \\x02` string at the end of a record.

This owns their encoding and the tag's hash. It must never fail on bytes that are already in the
log: reading is as forgiving as RocketMQ's `MessageDecoder.string2messageProperties`, so that no
stored message can poison a consumer. Writing is strict.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from dledger.records.errors import InvalidProperties

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"

MAX_PROPERTIES_BYTES: Final = 32_767  # PROPERTIESLENGTH is a signed 16-bit number in RocketMQ.
# What producers may send: a copy of a message that failed says where it came from, in the rest.
MAX_SENT_PROPERTIES_BYTES: Final = MAX_PROPERTIES_BYTES - 1_024

# Longer keys and tags are no part of a cache: those count what they remember, not its bytes.
REMEMBERED_CHARACTERS: Final = 256

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The properties string, in the mapping's order; empty for an empty mapping.

    Raises:
        InvalidProperties: a name is empty, a name or value holds a separator, or the whole is
            longer than `MAX_PROPERTIES_BYTES`.
    """
    if not properties:
        return b""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    # One count over the whole finds a separator in any name or value without looking at each.
    if text.count("\x01") + text.count("\x02") != 2 * len(properties) or "" in properties:
        raise _first_offender(properties)
    encoded = text.encode()
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise InvalidProperties(
            next(iter(properties)), f"{len(encoded)} bytes in all, {MAX_PROPERTIES_BYTES} at most"
        )
    return encoded


def decode_properties(encoded: bytes) -> dict[str, str]:
    """Name to value; a piece without a name-value separator is passed over, as RocketMQ does."""
    pieces = encoded.decode(errors="replace").split(PROPERTY_SEPARATOR)
    pairs = (piece.partition(NAME_VALUE_SEPARATOR) for piece in pieces)
    return {name: value for name, separator, value in pairs if separator}


def find_property(encoded: bytes, name: bytes) -> str | None:
    """The value of one property, without building the others; None when it is absent."""
    if not encoded:
        return None
    wanted = name + b"\x01"
    at = 0 if encoded.startswith(wanted) else encoded.find(b"\x02" + wanted) + 1
    if at == 0 and not encoded.startswith(wanted):
        return None
    start = at + len(wanted)
    end = encoded.find(b"\x02", start)
    return encoded[start : end if end >= 0 else len(encoded)].decode(errors="replace")


def tags_code(tags: str) -> int:
    """Java's `String.hashCode` of the tag, as a signed 32-bit number; 0 for no tag.

    ConsumeQueue units hold it in 8 bytes, sign-extended.

    Source: RocketMQ `MessageExtBrokerInner.tagsString2tagsCode`.
    """
    return _hash_code(tags) if len(tags) > REMEMBERED_CHARACTERS else _remembered_code(tags)


@lru_cache(maxsize=4096)
def _remembered_code(tags: str) -> int:
    return _hash_code(tags)


def _hash_code(tags: str) -> int:
    units = tags.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code


def _first_offender(properties: Mapping[str, str]) -> InvalidProperties:
    for name, value in properties.items():
        if not name:
            return InvalidProperties(name, "the name is empty")
        if any(separator in name + value for separator in ("\x01", "\x02")):
            return InvalidProperties(name, "byte 1 and byte 2 are separators")
    raise AssertionError("the count of separators was wrong, so some property must hold one")
