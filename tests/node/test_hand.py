"""The threads that do a node's blocking steps."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from broker.node import HAND_WIDTH, ThreadHand


def failing(number: int) -> Callable[[], None]:
    def step() -> None:
        raise OSError(number, "it fails")

    return step


@pytest.mark.parametrize("at", range(HAND_WIDTH))
def test_a_disk_that_has_failed_isnt_taken_for_a_full_one(at: int) -> None:
    """Of several steps that fail at once the worst is told: a node gets over a full disk, and must
    not go on after a sync that has failed otherwise (ADR 8)."""

    async def scenario() -> None:
        hand = ThreadHand()
        steps = [failing(errno.ENOSPC) for _ in range(HAND_WIDTH)]
        steps[at] = failing(errno.EIO)
        try:
            with pytest.raises(OSError, match="it fails") as failed:
                await hand.run_all(steps)
        finally:
            hand.close()
        assert failed.value.errno == errno.EIO

    asyncio.run(scenario())
