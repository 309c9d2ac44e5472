"""What the broker's tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture
def running_loop() -> Iterator[None]:
    """A loop that futures can be made in, without anything running: tests drive it all."""
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    yield
    asyncio._set_running_loop(None)
    loop.close()
