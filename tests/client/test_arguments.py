"""What `send` takes and what it refuses, by name, before anything else happens."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from dledger.client import InvalidArgument
from tests.client.loops import async_test
from tests.client.test_producer import producing


class Colour(str, Enum):  # noqa: UP042 - these format as their own names
    """A key that is a text and more."""

    RED = "red"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("key", 7),
        ("key", ["k"]),
        ("key", b"\xff"),
        ("key", b"two words"),
        ("key", b"line\n"),
        ("key", "no \x00b\x02"),
        ("key", "\ud800"),
        ("tag", b"t"),
        ("tag", {}),
        ("topic", b"t"),
        ("topic", None),
        ("topic", ["t"]),
        ("body", "text"),
        ("body", None),
        ("body", 3),
        ("queue_id", "0"),
        ("queue_id", 0.0),
        ("queue_id", True),
        ("properties", ["a"]),
        ("properties", {"a": 1}),
        ("properties", {1: "a"}),
        ("properties", {"a": b"b"}),
    ],
)
def test_argument_of_a_wrong_kind_harms_nobody(argument: str, value: object) -> None:
    """It is refused by name, and those before and behind it in the first burst are stored."""

    @async_test
    async def check() -> None:
        async with producing() as (group, _, producer):
            wrong: Mapping[str, Any] = {"topic": "t", "body": b"x", argument: value}
            before = producer.send("t", b"before", key="k")
            with pytest.raises(InvalidArgument, match=argument.split("_")[0]) as told:
                producer.send(**wrong)
            assert "was not stored" in str(told.value)
            behind = producer.send("t", b"behind", key="k")
            await producer.flush()
            assert (before.done(), behind.done()) == (True, True)
            assert group.model.bodies("t", 0) == [b"before", b"behind"]
            assert producer.statistics().accepted == 2

    check()


@async_test
async def test_keys_of_other_clients_are_taken_as_text() -> None:
    """Bytes in UTF-8 without blanks; the same key, the same queue, and read back as text."""
    async with producing(queues=4) as (_, client, producer):
        first = await producer.send("t", b"1", key="schlüssel")
        again = await producer.send("t", b"2", key="schlüssel".encode())
        red = await producer.send("t", b"3", key=Colour.RED)
        assert first.queue_id == again.queue_id
        for result, key in ((again, "schlüssel"), (red, "red")):
            assert (await client.get_message(message_id=result.message_id)).keys == key


@async_test
async def test_bodies_may_be_anything_of_bytes() -> None:
    """They are copied in `send`: what becomes of the buffer later is its owner's affair."""
    async with producing() as (group, _, producer):
        buffer = bytearray(b"abc")
        bodies: list[Any] = [buffer, memoryview(b"abcdef")[::2]]
        sent = [producer.send("t", body) for body in bodies]
        buffer[:] = b"xyz"
        for future in sent:
            await future
        assert group.model.bodies("t", 0) == [b"abc", b"ace"]
