"""What was closed says so when it is entered again; a client opens again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dledger.client.blocking import BlockingClient
from dledger.testing import BlockingFakeGroup


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
