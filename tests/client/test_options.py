"""Impossible options fail where they are written."""

from __future__ import annotations

import pytest

from dledger.client import ClientOptions, ConsumerOptions, InvalidArgument, ProducerOptions


@pytest.mark.parametrize(
    "wrong",
    [
        {"linger_ms": -1},
        {"batch_bytes": 1_000},
        {"batch_bytes": 4 << 20},
        {"max_inflight_requests": 0},
        {"max_buffered_messages": 0},
        {"delivery_timeout_ms": 0},
    ],
)
def test_producer_options_are_checked(wrong: dict[str, int]) -> None:
    """The error names the option."""
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        ProducerOptions(**wrong)  # type: ignore[arg-type]


def test_client_and_consumer_options_are_checked() -> None:
    """NaN is no time either."""
    with pytest.raises(InvalidArgument, match="deadline_s"):
        ClientOptions(deadline_s=float("nan"))
    with pytest.raises(InvalidArgument, match="hold_ms"):
        ConsumerOptions(hold_ms=20_001)
