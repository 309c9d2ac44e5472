"""Arguments that protobuf would refuse with a text that names no argument.

What is merely wrong (a topic name with a blank, an offset out of range) is the group's to judge:
one judge, one wording.
"""

from __future__ import annotations

from dledger.client.errors import InvalidArgument


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


def i64(name: str, value: int) -> int:
    """`value`, which fits a signed 64-bit field."""
    return _in_range(name, value, -(1 << 63), (1 << 63) - 1)


def _in_range(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidArgument(f"{name} is {value}, outside of {low} to {high}")
    return value
