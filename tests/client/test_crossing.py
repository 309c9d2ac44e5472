"""Messages on their way from a sender's thread to the loop's: what was sent is what is stored, and
whoever waits for one of them is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import pytest

from dledger.client import (
    Client,
    InvalidArgument,
    NewMessage,
    Producer,
    ProducerOptions,
    SendsFailed,
)
from dledger.client.blocking import BlockingClient, BlockingProducer
from dledger.testing import BlockingFakeGroup
from tests.client.loops import async_test

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def group() -> Iterator[BlockingFakeGroup]:
    with BlockingFakeGroup() as group:
        yield group


@contextmanager
def busy_loop(client: BlockingClient) -> Iterator[None]:
    """The loop's thread comes to nothing that is sent meanwhile."""
    ready = threading.Event()
    client._open_thread().post(lambda: ready.wait(PATIENCE_S))
    try:
        yield
    finally:
        ready.set()


# --- what is sent ---------------------------------------------------------------------------------

Labelled = tuple[bytes, Mapping[str, str]]
WAYS = ("send", "send_one_way", "send_all")
SENT: list[Labelled] = [(b"message-%02d" % at, {"number": str(at)}) for at in range(50)]


def reused() -> Iterator[tuple[Any, dict[str, str]]]:
    """What `SENT` has, in one buffer and one dict, which are used for something else at the end."""
    buffer, properties = bytearray(10), {"number": ""}
    for at, (body, labels) in enumerate(SENT):
        buffer[:] = body
        properties.update(labels)
        yield (memoryview(buffer) if at % 2 else buffer), properties
    buffer[:] = b"other-data"
    properties["number"] = "another"


def fire(producer: Producer | BlockingProducer, way: str, topic: str) -> None:
    for body, properties in reused():
        send = producer.send_one_way if way == "send_one_way" else producer.send
        send(topic, body, properties=properties, queue_id=0)


def bulk(topic: str) -> Iterator[NewMessage]:
    return (NewMessage(topic, b, properties=p, queue_id=0) for b, p in reused())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_what_threads_send_is_what_is_stored(
    group: BlockingFakeGroup, way: str, compression: Any
) -> None:
    """Whatever a sender's buffer and dict hold when the loop comes to it."""
    topic, options = group.topic(), ProducerOptions(compression=compression)
    with BlockingClient.connect(group.addresses) as client, client.producer(options) as producer:
        if way == "send_all":
            assert producer.send_all(bulk(topic)) == len(SENT)
        else:
            with busy_loop(client):
                fire(producer, way, topic)
            producer.flush()
        read = client.pull_consumer(topic, idle_timeout_s=0.05)
        assert [(m.body, {"number": m.properties["number"]}) for m in read] == SENT


@pytest.mark.parametrize("way", WAYS)
def test_what_is_sent_on_a_loop_is_what_is_stored(group: BlockingFakeGroup, way: str) -> None:
    """Also while the topic is still looked for."""
    topic = group.topic()

    @async_test
    async def sent() -> None:
        async with Client.connect(group.addresses) as client:
            async with client.producer() as producer:
                if way == "send_all":
                    assert await producer.send_all(bulk(topic)) == len(SENT)
                else:
                    fire(producer, way, topic)
            read = client.pull_consumer(topic, idle_timeout_s=0.05)
            assert [(m.body, {"number": m.properties["number"]}) async for m in read] == SENT

    sent()


class Broken(dict[str, str]):
    """A mapping that can't be read."""

    def items(self) -> Any:
        raise RuntimeError("changed size during iteration")


def test_what_cannot_be_copied_fails_its_message_alone(group: BlockingFakeGroup) -> None:
    """As whatever else `send` can't accept; one way there is no future to tell."""
    gone = memoryview(b"gone")
    gone.release()
    topic = group.topic()
    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        for body, properties in ((gone, None), (b"x", Broken())):
            future = producer.send(topic, body, properties=properties)  # type: ignore[arg-type]
            assert isinstance(future.exception(PATIENCE_S), InvalidArgument)
            with pytest.raises(InvalidArgument):
                producer.send_one_way(topic, body, properties=properties)  # type: ignore[arg-type]
        assert producer.send(topic, b"fine").result(PATIENCE_S).queue_offset == 0


# --- who waits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["absent", "a b"])
def test_whoever_waits_for_a_cancelled_message_is_told(
    group: BlockingFakeGroup, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Once what became of it is known, well or badly: one that failed used to be waited for, for
    ever."""
    with BlockingClient.connect(group.addresses) as client, client.producer() as producer:
        topic = group.topic()
        with busy_loop(client):
            sent = [producer.send(each, b"x") for each in (topic, where, topic, where)]
            assert [future.cancel() for future in sent[:2]] == [True, True]
        done, pending = futures.wait(sent, PATIENCE_S)
        assert (len(done), pending) == (4, set())
        assert set(futures.as_completed(sent[:2], PATIENCE_S)) == set(sent[:2])
        with pytest.raises(SendsFailed, match="1 message failed"):
            producer.flush()
    assert not caplog.records
