"""Readers that are new: what they put into the history, and what they refuse to believe."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from chaos.checkers.history import History, Poll
from chaos.errors import TimeFarOff, TimesGoBack
from chaos.real.clocks import WrongClocks
from chaos.real.reading import Retained, read_everything, read_start
from chaos.real.workload import DELIVERY_TIMEOUT_MS
from dledger.client import Client, PullResult, QueueOffsets, RecordCorrupt
from dledger.records.record import DecodedRecord


def message(offset: int, *, physical: int, stored_ms: int, born_ms: int = 0) -> DecodedRecord:
    host = ("127.0.0.1", 1)
    body = b"p0-0-%d" % offset
    place = ("chaos", 0, offset, physical, born_ms, host, stored_ms, host)
    return DecodedRecord(*place, body, b"", 0, 0, 0, len(body))


class FakeClient:
    """Queue 0 holds `messages`, queue 1 can't be read."""

    def __init__(self, messages: list[DecodedRecord]) -> None:
        self.messages = messages

    async def pull(self, _: str, queue_id: int, offset: int, **__: object) -> PullResult:
        if queue_id == 1:
            raise RecordCorrupt("a bit has flipped")
        found = self.messages[offset : offset + 2]
        end = len(self.messages)
        return PullResult(found, offset + len(found), min_offset=0, max_offset=end)

    async def queue_offsets(self, _: str, __: int, **___: object) -> QueueOffsets:
        return QueueOffsets(min_offset=0, max_offset=len(self.messages))


def read(messages: list[DecodedRecord], end: int) -> tuple[str, History]:
    history = History()
    client = cast(Client, cast(Any, FakeClient(messages)))
    said = asyncio.run(
        read_start(client, history, lambda: 0, 2, end, "witness", retained=Retained.ALL)
    )
    return said, history


def test_witness_reads_up_to_a_place_in_the_log_and_tells_who_refused() -> None:
    """What it read is in the history, and is never taken for a reading of everything."""
    messages = [message(at, physical=at * 100, stored_ms=5) for at in range(9)]
    said, history = read(messages, end=300)
    assert said == "a reader was refused queue 1: RECORD_CORRUPT"
    polls = [each for each in history.operations if isinstance(each.action, Poll)]
    assert [each.result for each in polls] == [
        ((0, "p0-0-0"), (1, "p0-0-1")),
        ((2, "p0-0-2"), (3, "p0-0-3")),
    ]
    actions = [each.action for each in polls]
    assert [action.seek for action in actions if isinstance(action, Poll)] == [True, False]

    _, history = read(messages, end=10_000)
    actions = [each.action for each in history.operations]
    assert len(actions) == 5
    assert not any(action.final for action in actions if isinstance(action, Poll))


def test_stored_times_that_go_back_are_a_finding() -> None:
    """Whatever leaders' clocks did, also from one answer to the next."""
    times = [5, 6, 6, 5]
    messages = [message(at, physical=at, stored_ms=time) for at, time in enumerate(times)]
    with pytest.raises(TimesGoBack, match="queue 0: the message at 3"):
        read(messages, end=100)
    messages = [message(at, physical=at, stored_ms=time) for at, time in enumerate([5, 6, 5])]
    with pytest.raises(TimesGoBack, match="queue 0: the message at 2"):
        read(messages, end=100)


@pytest.mark.parametrize(
    ("stored_ms", "off_ms"),
    [
        (100_000, None),
        (100_000 - 1_000, None),
        (100_000 - 1_001, -1_001),
        (100_000 + DELIVERY_TIMEOUT_MS + 1_000, None),
        (100_000 + DELIVERY_TIMEOUT_MS + 1_001, 1_001),
    ],
)
def test_stored_times_that_no_majority_of_clocks_shows_are_a_finding(
    stored_ms: int, off_ms: int | None
) -> None:
    """Between sending and its last attempt, give or take what clocks may be off by."""
    messages = [message(0, physical=0, stored_ms=stored_ms, born_ms=100_000)]
    client = cast(Client, cast(Any, FakeClient(messages)))
    reading = read_everything(client, History(), lambda: 0, 1, 1_000, retained=Retained.ALL)
    if off_ms is None:
        asyncio.run(reading)
        return
    with pytest.raises(TimeFarOff) as caught:
        asyncio.run(reading)
    assert caught.value.off_ms == off_ms


def test_what_a_minority_of_clocks_was_ordered_excuses_nothing() -> None:
    """A day on one of three; two seconds on all; what overlaps adds up, and drift with time."""
    clocks = WrongClocks(("a", "b", "c"))
    clocks.begin("day", "clock-step", ("a",), {"offset_ms": -86_400_000}, 0)
    clocks.begin("paused", "pause", ("b",), {}, 0)
    assert clocks.worst_ms == 0
    clocks.begin("all", "clock-drift", ("a", "b", "c"), {"rate": 1.25}, 0)
    clocks.end("all", 8_000_000)
    assert clocks.worst_ms == 2_000
    clocks.begin("flip", "clock-strobe", ("b",), {"offset_ms": 5_000, "period_ms": 5}, 8_000_000)
    clocks.end("flip", 9_000_000)
    clocks.end("day", 9_000_000)
    clocks.end("unknown", 9_000_000)
    assert clocks.worst_ms == 5_000
    clocks.begin("hour", "clock-step", ("a",), {"offset_ms": 3_600_000}, 9_000_000)
    assert clocks.worst_ms == 5_000
