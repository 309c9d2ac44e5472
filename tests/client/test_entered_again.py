"""What was closed says so when it is entered again; a client opens again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dledger.client import ClientClosed, InvalidArgument, ProducerClosed
from dledger.client.blocking import BlockingClient
from dledger.client.client import Client
from dledger.testing import BlockingFakeGroup
from tests.client.loops import async_test


@pytest.fixture
def group() -> Iterator[BlockingFakeGroup]:
    with BlockingFakeGroup() as fake:
        yield fake


@pytest.fixture
def topic(group: BlockingFakeGroup) -> str:
    return group.topic()


def test_client_that_opens_again_has_nothing_of_before(
    group: BlockingFakeGroup, topic: str
) -> None:
    """Its producers ended with the thread that they were on."""
    client = BlockingClient.connect(group.addresses)
    for _ in range(2):
        with client:
            client.producer().send(topic, b"x")
    with client:
        assert [info.name for info in client.topics()] == [topic]
    assert group.bodies(topic) == [b"x", b"x"]


def test_closed_is_not_entered(group: BlockingFakeGroup, topic: str) -> None:
    """A loop over it would just end, as if there were no messages."""
    with BlockingClient.connect(group.addresses) as client:
        producer = client.producer()
        loop = client.pull_consumer(topic)
        service = client.push_consumer("g")
        worker = client.simple_consumer(topic, "h")
        with producer, loop, service, worker:
            pass
        with pytest.raises(ProducerClosed), producer:
            raise AssertionError("entered")
        for closed in (loop, service, worker):
            with pytest.raises(ClientClosed, match="the consumer is closed"), closed:
                raise AssertionError("entered")


@async_test
async def test_closed_is_not_entered_by_coroutines() -> None:
    """The same."""
    with BlockingFakeGroup() as group:
        topic = group.topic()
        async with Client.connect(group.addresses) as client:
            producer = client.producer()
            loop = client.pull_consumer(topic)
            service = client.push_consumer("g")
            worker = client.simple_consumer(topic, "h")
            async with producer, loop, service, worker:
                pass
            with pytest.raises(ProducerClosed):
                await producer.__aenter__()
            for closed in (loop, service, worker):
                with pytest.raises(ClientClosed, match="the consumer is closed"):
                    await closed.__aenter__()


def test_what_the_client_closed_is_not_entered(group: BlockingFakeGroup, topic: str) -> None:
    """Nor when that has opened again."""
    client = BlockingClient.connect(group.addresses)
    with client:
        producer = client.producer()
        loop = client.pull_consumer(topic)
        service = client.push_consumer("g")
    with client:
        with pytest.raises(ProducerClosed), producer:
            raise AssertionError("entered")
        for closed in (loop, service):
            with pytest.raises(ClientClosed), closed:
                raise AssertionError("entered")


def test_delivery_that_was_left_is_not_worked_on_again(
    group: BlockingFakeGroup, topic: str
) -> None:
    """It is done, or somebody else's."""
    with BlockingClient.connect(group.addresses) as client:
        with client.producer() as producer:
            producer.send(topic, b"x")
            producer.send(topic, b"y")
        with client.simple_consumer(topic, "h") as worker:
            first, second = worker.receive(2)
            with first:
                pass
            with pytest.raises(ZeroDivisionError), second:
                raise ZeroDivisionError
            for left in (first, second):
                with pytest.raises(InvalidArgument, match="acknowledged or given back"), left:
                    raise AssertionError("entered")
