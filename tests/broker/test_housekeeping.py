"""Housekeeping: take, sync, note, in this order, and what becomes of each failure."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from broker.housekeeping import Housekeeping, Notes

T = TypeVar("T")


class Store:
    """ConsumeQueues, state machine, checkpoint and hand in one: `done` lists what happened."""

    def __init__(self) -> None:
        self.applied_index = 7
        self.has_news = self.has_deleted = False
        self.done: list[str] = []
        self.sync_errors: list[OSError] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: list[Exception] = []
        self.kept = Housekeeping(
            Notes(lambda: self.applied_index, self._note, self._remember),
            self,
            self,
            self.failures.append,
        )

    def take(self) -> Store:
        self.done.append(f"take at {self.applied_index}")
        return self

    def stages(self) -> list[list[Callable[[], None]]]:
        return [[self._sync], [self._remove]] if self.has_deleted else [[self._sync]]

    def _sync(self) -> None:
        if self.sync_errors:
            raise self.sync_errors.pop(0)
        self.done.append("sync")

    def _remove(self) -> None:
        self.done.append("remove")

    def _note(self, applied_index: int) -> None:
        self.done.append(f"note {applied_index}")

    def _remember(self) -> Callable[[], None] | None:
        return (lambda: self.done.append("remember")) if self.has_news else None

    async def run(self, step: Callable[[], T]) -> T:
        await self.gate.wait()
        return step()

    async def run_all(self, steps: Sequence[Callable[[], None]]) -> None:
        for step in steps:
            await self.run(step)


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_was_taken_is_synced_and_then_noted() -> None:
    """What is applied meanwhile is the next round's."""

    async def play() -> None:
        store = Store()
        store.gate.clear()
        made = asyncio.create_task(store.kept.make_round())
        await asyncio.sleep(0)
        store.applied_index = 9
        store.gate.set()
        await made
        assert store.done == ["take at 7", "sync", "note 7"]

    asyncio.run(play())


def test_full_disk_holds_the_checkpoint_for_good() -> None:
    """A sync that succeeds later tells nothing of the one before (ADR 8)."""

    async def play() -> None:
        store = Store()
        store.sync_errors.append(no_space())
        await store.kept.make_round()
        await store.kept.make_round()
        assert store.done == ["take at 7", "take at 7", "sync"]
        assert store.kept.is_checkpoint_held

    asyncio.run(play())


def test_full_disk_gets_back_what_deleted_topics_left() -> None:
    """Somebody has deleted a topic to make room: a sync that finds none keeps it from nothing, in
    this round or a later one."""

    async def play() -> None:
        store = Store()
        store.has_deleted = True
        store.sync_errors.append(no_space())
        await store.kept.make_round()
        await store.kept.make_round()
        assert store.done == ["take at 7", "remove", "take at 7", "sync", "remove"]
        assert store.kept.is_checkpoint_held

    asyncio.run(play())


def test_failed_disk_is_told_once_and_ends_the_rounds() -> None:
    """Nothing is noted, and no round follows."""

    async def play() -> None:
        store = Store()
        store.sync_errors.append(OSError(errno.EIO, "broken"))
        store.kept.start(0.001)
        while not store.failures:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert [str(error) for error in store.failures] == ["[Errno 5] broken"]
        assert store.done == ["take at 7"]

    asyncio.run(play())


def test_round_fails_where_it_is_asked_for() -> None:
    """A close must know that it wasn't clean."""

    async def play() -> None:
        store = Store()
        store.sync_errors.append(OSError(errno.EIO, "broken"))
        with pytest.raises(OSError, match="broken"):
            await store.kept.make_round()

    asyncio.run(play())


def test_stop_waits_for_the_round_and_no_other_begins() -> None:
    """What a round has taken nobody else would sync."""

    async def play() -> None:
        store = Store()
        store.gate.clear()
        store.kept.start(0.001)
        while not store.done:
            await asyncio.sleep(0.001)
        stopped = asyncio.create_task(store.kept.stop())
        await asyncio.sleep(0.005)
        assert not stopped.done()
        store.gate.set()
        await stopped
        await asyncio.sleep(0.01)
        assert store.done == ["take at 7", "sync", "note 7"]

    asyncio.run(play())
