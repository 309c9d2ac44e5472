"""What `send` takes and what it refuses, by name, before anything else happens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from math import nan
from typing import Any

import pytest

from dledger.client import Client, ClientError, DeadlineExceeded, InvalidArgument
from dledger.client.blocking import BlockingClient
from dledger.testing import BlockingFakeGroup
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


@pytest.mark.parametrize(
    ("argument", "value", "refusal"),
    [
        ("deadline_s", "2", InvalidArgument),
        ("deadline_s", nan, InvalidArgument),
        ("deadline_s", 0, DeadlineExceeded),
        ("topic", "no such name", InvalidArgument),
        ("topic", "", InvalidArgument),
        ("topic", None, InvalidArgument),
        ("key", "two words", InvalidArgument),
        ("queue_id", "0", InvalidArgument),
    ],
)
def test_message_that_nobody_asks_about_is_refused_by_both_faces(
    argument: str, value: object, refusal: type[ClientError]
) -> None:
    """The blocking one counted some of these as failures of which nobody is told."""
    with BlockingFakeGroup() as group, BlockingClient.connect(group.addresses) as client:
        topic = group.topic()
        wrong: dict[str, Any] = {"topic": topic, "body": b"x", argument: value}
        with client.producer() as producer:
            with pytest.raises(refusal):
                producer.send_one_way(**wrong)
            producer.send_one_way(topic, b"right", deadline_s=60)
            producer.flush()
            assert producer.statistics().one_way_failed == 0
        assert group.bodies(topic) == [b"right"]

        async def alike() -> None:
            async with Client.connect(group.addresses) as other, other.producer() as producer:
                with pytest.raises(refusal):
                    producer.send_one_way(**wrong)

        asyncio.run(alike())


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
