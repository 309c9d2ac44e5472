"""The watch over the event loop: what it measures, and what it says of a turn that was too long."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from types import FrameType

import pytest
from structlog.testing import capture_logs

from broker.loop_watch import LONG_S, LoopWatch, frame_of
from broker.ticker import Ticker
from dledger.records.record import RecordTemplate, validate_records


class Kept:
    """A histogram that keeps what it is told."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def observe(self, amount: float) -> None:
        self.seconds.append(amount)


def test_a_turn_that_holds_the_loop_is_measured_and_named_once() -> None:
    """In processor time; waiting counts for nothing, and a second one soon after isn't told."""
    lateness, turns = Kept(), Kept()
    watch = LoopWatch(lateness, turns)

    records = RecordTemplate("t", ("127.0.0.1", 1)).encode(0, b"", b"", 1) * 20_000

    def hold() -> None:
        """Long enough for the watching thread to get a turn, whatever else the machine does."""
        end = time.thread_time() + 10 * LONG_S
        while time.thread_time() < end:
            validate_records(records, topic="t", queue_id=0, max_record_size=1_000)

    async def play() -> None:
        ticker = Ticker(0.01, lambda: None, watch)
        ticker.start()
        watch.start()
        await asyncio.sleep(0.05)
        time.sleep(2 * LONG_S)  # noqa: ASYNC251  the loop is late, and nothing was used
        await asyncio.sleep(0.03)
        assert max(turns.seconds) < LONG_S <= max(lateness.seconds)
        for _ in range(2):
            hold()
            await asyncio.sleep(0.03)
        ticker.stop()
        watch.close()

    with capture_logs() as logs:
        asyncio.run(play())
    assert max(turns.seconds) >= 10 * LONG_S
    told = [entry for entry in logs if entry["event"] == "event_loop_held"]
    assert [entry["turns"] for entry in told] == [1]
    assert told[0]["longest_ms"] >= 499  # rounded
    assert "validate_records" in told[0]["doing"]


@pytest.mark.parametrize("is_on", [True, False])
def test_nothing_is_collected_while_the_threads_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, *, is_on: bool
) -> None:
    """The interpreter holds its list of threads then, and a collection may wait for it for ever."""
    looked = sys._current_frames
    seen: list[bool] = []

    def look() -> dict[int, FrameType]:
        seen.append(gc.isenabled())
        return looked()

    monkeypatch.setattr(sys, "_current_frames", look)
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        frame = frame_of(threading.get_ident())
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()
    assert frame is not None
    assert seen == [False]
