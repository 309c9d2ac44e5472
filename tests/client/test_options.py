"""Impossible options fail where they are written."""

from __future__ import annotations

from typing import Any

import pytest

from dledger.client import Client, ClientOptions, ConsumerOptions, InvalidArgument, ProducerOptions
from dledger.testing.fake_nodes import FakeGroup
from tests.client.loops import async_test


@pytest.mark.parametrize(
    "wrong",
    [
        {"linger_ms": -1},
        {"batch_bytes": 1_000},
        {"batch_bytes": 4 << 20},
        {"max_inflight_requests": 0},
        {"max_buffered_messages": 0},
        {"delivery_timeout_ms": 0},
        {"delivery_timeout_ms": "3"},
        {"linger_ms": float("nan")},
        {"linger_ms": None},
        {"batch_bytes": 2048.0},
        {"max_inflight_requests": True},
    ],
)
def test_producer_options_are_checked(wrong: dict[str, object]) -> None:
    """The error names the option."""
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        ProducerOptions(**wrong)  # type: ignore[arg-type]


def test_client_and_consumer_options_are_checked() -> None:
    """NaN is no time either."""
    with pytest.raises(InvalidArgument, match="deadline_s"):
        ClientOptions(deadline_s=float("nan"))
    with pytest.raises(InvalidArgument, match="hold_ms"):
        ConsumerOptions(hold_ms=20_001)
    with pytest.raises(InvalidArgument, match="hold_ms"):
        ConsumerOptions(hold_ms=True)
    with pytest.raises(InvalidArgument, match="producer name"):
        ProducerOptions(name=b"bytes")  # type: ignore[arg-type]


@async_test
async def test_times_of_single_calls_are_checked() -> None:
    """By name, before anything is asked."""
    async with FakeGroup() as group, Client.connect(group.bootstrap) as client:
        for wrong in (float("nan"), "5", True):
            told: Any = wrong
            with pytest.raises(InvalidArgument, match="deadline_s"):
                await client.topics(deadline_s=told)
            with pytest.raises(InvalidArgument, match="deadline_s"):
                await client.leader(deadline_s=told)
            with pytest.raises(InvalidArgument, match="deadline_s"):
                await client.pull("t", 0, 0, deadline_s=told)
            with pytest.raises(InvalidArgument, match="idle_timeout_s"):
                client.pull_consumer("t", idle_timeout_s=told)
