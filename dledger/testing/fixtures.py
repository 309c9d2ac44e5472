"""The groups as pytest fixtures: no plugin, no event loop. In a `conftest.py`:

from dledger.testing.fixtures import dledger_fake, dledger_group, dledger_three

__all__ = ["dledger_fake", "dledger_group", "dledger_three"]
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dledger.testing.broker_group import BrokerGroup
from dledger.testing.fake import BlockingFakeGroup


@pytest.fixture(scope="session")
def dledger_group() -> Iterator[BrokerGroup]:
    """One real node, shared by the session's tests: take a topic of your own."""
    with BrokerGroup(nodes=1) as group:
        yield group


@pytest.fixture
def dledger_three() -> Iterator[BrokerGroup]:
    """Three real nodes, to break."""
    with BrokerGroup(nodes=3) as group:
        yield group


@pytest.fixture
def dledger_fake() -> Iterator[BlockingFakeGroup]:
    """A fake node, which can lose answers and refuse calls."""
    with BlockingFakeGroup() as group:
        yield group
