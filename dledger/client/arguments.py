"""Arguments that are of a wrong kind, or that protobuf would refuse with a text naming none.

What is merely wrong (a topic name with a blank, an offset out of range) is the brokers' to judge:
one judge, one wording. What is checked here is refused before anything else has happened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from operator import index
from types import NoneType
from typing import Final

from dledger.client.errors import InvalidArgument, Subject

Labels = tuple[str, bytes, str | None, str | None, int | None]

# The types of (topic, body, key, tag, queue_id) that need no second look: one test a message.
USUAL: Final = frozenset(
    product((str,), (bytes,), (str, NoneType), (str, NoneType), (int, NoneType))
)
# Blanks separate keys in RocketMQ's KEYS; control characters separate properties, or lines.
_NOT_IN_A_KEY: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


def text(name: str, value: str) -> str:
    """`value`, which the wire can carry; protobuf's own error would name no argument."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} {value!r} is not valid Unicode") from error
    return value


def u32(name: str, value: int) -> int:
    """`value`, which fits an unsigned 32-bit field."""
    return _in_range(name, value, 0, (1 << 32) - 1)


def u64(name: str, value: int) -> int:
    """`value`, which fits an unsigned 64-bit field."""
    return _in_range(name, value, 0, (1 << 64) - 1)


def i64(name: str, value: int) -> int:
    """`value`, which fits a signed 64-bit field."""
    return _in_range(name, value, -(1 << 63), (1 << 63) - 1)


def message_arguments(
    topic: object, body: object, key: object, tag: object, queue_id: object
) -> Labels:
    """The arguments of a message in the types that are stored, for those not `USUAL`.

    Raises:
        InvalidArgument: one of them can't be taken for what it should be; it is named.
    """
    return (
        _plain("topic", topic),
        _body(body),
        None if key is None else _key(key),
        None if tag is None else _plain("tag", tag),
        None if queue_id is None else _number("queue_id", queue_id),
    )


def property_texts(properties: object) -> dict[str, str]:
    """The properties as a mapping of one's own.

    Raises:
        InvalidArgument: it is no mapping, or not of texts to texts.
    """
    if not isinstance(properties, Mapping):
        raise _refused("properties", properties, "a mapping of str to str")
    return {
        _plain("properties: a name", name): _plain(f"properties: the value of {name!r}", value)
        for name, value in properties.items()
    }


def _key(key: object) -> str:
    if not isinstance(key, bytes):
        return _plain("key", key, "a str, or bytes in UTF-8")
    try:
        decoded = key.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"key {key[:80]!r} is not UTF-8: {error.reason}", subject=Subject.MESSAGE
        ) from error
    if _NOT_IN_A_KEY.search(decoded):
        raise InvalidArgument(
            f"key {key[:80]!r} has a blank or a control character", subject=Subject.MESSAGE
        )
    return decoded


def _body(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise _refused("body", body, "bytes")


def _plain(name: str, value: object, wanted: str = "a str") -> str:
    """Without what a subclass makes of it: an enum's member formats as its own name."""
    if isinstance(value, str):
        return str.__str__(value)
    raise _refused(name, value, wanted)


def _number(name: str, value: object) -> int:
    if not isinstance(value, bool):
        try:
            return index(value)  # type: ignore[arg-type]  # it is asked whether it can
        except TypeError:
            pass
    raise _refused(name, value, "an int")


def _refused(name: str, value: object, wanted: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name} is of type {type(value).__name__}; wanted: {wanted}", subject=Subject.MESSAGE
    )


def _in_range(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidArgument(f"{name} is {value}, outside of {low} to {high}")
    return value
