"""The front of a log goes behind the flusher: a file that it has something to write to stays open.

A cut keeps the segment that it begins in, and what comes in the place of what was cut fills that
segment up once more: until the flusher has performed both, its descriptor must not be closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from broker.log_start import LogStartKeeper
from broker.log_start_parts import Front
from dledger.core.types import Index
from dledger.level import LOG_START_LEVEL
from dledger.reading.log_start import FROM_THE_FIRST, LogStart
from store.files import Handle
from store.segments import Segment
from tests.node.test_full_disk import RETIRES, retire_all
from tests.node.world import World, WorldNode

T = TypeVar("T")


def about_to_go() -> tuple[World, WorldNode, Front, LogStart]:
    """A member that may let the front of its log go, and waits for its flusher; where it could
    begin, and what it has for a front."""
    world = World(kind=RETIRES)
    leader = world.serving()
    while leader.replica.machine.level.current < LOG_START_LEVEL:
        world.tick()
    for number in range(40):
        leader.propose(f"t{number}", 128 << 10)
        world.settle()
    world.run_for(300)  # rounds of housekeeping
    node = world.others(leader.name)[0]
    keeper = node.replica.log_start
    front = keeper._front
    keeper._front = replace(front, durable=lambda: 0)
    retire_all(world, leader)
    world.run_for(1_000)
    assert leader.log.first_index > 1
    assert node.log.first_index == 1
    start = node.log.start_before(node.replica.machine.log_start.first_index)
    assert start is not None
    return world, node, front, start


@contextmanager
def durable_through(node: WorldNode, index: int) -> Iterator[None]:
    """What lies behind was cut, and has come anew: the flusher isn't through with it yet, and the
    watermark is still the one of what was cut."""
    log = node.driver.core._state.log
    before, log.durable_index = log.durable_index, Index(index)
    assert node.log.synced_index > index
    yield
    log.durable_index = before


def offered(keeper: LogStartKeeper) -> list[LogStart | None]:
    keeper._is_base_rotten = True  # a start behind it is looked for
    return [keeper.due(), next(keeper.past_rot(), None)]


def test_no_start_is_offered_that_the_flusher_is_not_beyond() -> None:
    """Whoever goes by the watermark alone is told of entries that the flusher has yet to cut."""
    _, node, front, start = about_to_go()
    keeper = node.replica.log_start
    keeper._front = front
    with node.running():
        with durable_through(node, start.index):
            assert start not in offered(keeper)
        with durable_through(node, start.index + 1):
            assert offered(keeper)[0] == start
        assert start in keeper.past_rot()


def test_front_whose_next_entry_is_cut_while_it_is_prepared_stays() -> None:
    """It was offered, and a peer's state and the archive have taken their time since."""
    world, node, front, start = about_to_go()
    keeper = node.replica.log_start
    machine = world.run(node, keeper._computed(start))
    assert world.run(node, keeper._is_ready(start, machine.snapshot))
    keeper._front = replace(front, durable=lambda: start.index)
    world.run(node, keeper._move(start, machine, lambda: False))
    assert front.note.read() == FROM_THE_FIRST
    assert node.log.first_index == 1


def test_front_whose_next_entry_is_cut_while_it_is_noted_waits_for_the_flusher() -> None:
    """The note says so by then, and a start would go by it; this process goes on with its files
    until nobody has anything to write there. Repairs aren't kept by that."""
    world, node, front, start = about_to_go()
    keeper = node.replica.log_start
    machine = world.run(node, keeper._computed(start))
    assert world.run(node, keeper._is_ready(start, machine.snapshot))
    durable = [start.index + 1]
    keeper._front = replace(front, durable=lambda: durable[0])
    replaced = front.note.replace

    def cut_meanwhile(start: LogStart) -> None:
        replaced(start)
        durable[0] = start.index

    front.note.replace = cut_meanwhile  # type: ignore[method-assign]
    moving = node.begin(keeper._move(start, machine, lambda: False))
    world.run_for(100)
    assert front.note.read() == start
    assert node.log.first_index == 1
    assert not moving.done()
    assert not node.replica.repairs.writing.locked()
    durable[0] = start.index + 1
    world.run_for(500)
    assert moving.done()
    assert node.log.first_index == start.first_index
    assert node.failure is None


class Queue:
    """A hand that has something else to do first; who is cancelled before its turn is forgotten."""

    def __init__(self) -> None:
        self.turn = asyncio.Event()

    async def run(self, step: Callable[[], T]) -> T:
        await self.turn.wait()
        return step()


def test_keeper_that_is_stopped_closes_what_it_has_dropped() -> None:
    """The disk's hand has something else to do first. Nobody else knows of the descriptors any
    more: each reopening of the replica would leave some."""
    world, node, front, start = about_to_go()
    keeper = node.replica.log_start
    machine = world.run(node, keeper._computed(start))
    assert world.run(node, keeper._is_ready(start, machine.snapshot))
    keeper._front = front
    hand, drop_before, close = Queue(), node.log.drop_before, node.disk.close
    dropped: list[Handle] = []
    closed: list[Handle] = []

    def drops(start: LogStart) -> list[Segment]:
        keeper._hand = hand
        segments = drop_before(start)
        dropped.extend(each.handle for each in segments)
        return segments

    def closes(handle: Handle) -> None:
        closed.append(handle)
        close(handle)

    node.log.drop_before = drops  # type: ignore[method-assign]
    node.disk.close = closes  # type: ignore[method-assign]
    moving = node.begin(keeper._move(start, machine, lambda: False))
    world.run_for(100)
    assert node.log.first_index > 1
    with node.running():
        moving.cancel()
    world.run_for(10)
    assert not set(dropped) & set(closed)
    with node.running():
        hand.turn.set()
    world.run_for(10)
    assert moving.cancelled()
    assert dropped
    assert set(dropped) <= set(closed)


def test_base_that_waits_for_another_file_is_no_news() -> None:
    """A snapshot is just being written: nothing stands in the way, and nothing is told."""
    world, node, _, start = about_to_go()
    keeper, snapshots = node.replica.log_start, node.replica.snapshots
    machine = world.run(node, keeper._computed(start))
    snapshots._is_writing = True
    ready = node.begin(keeper._is_ready(start, machine.snapshot))
    world.run_for(300)
    assert not ready.done()
    assert not keeper.held
    snapshots._is_writing = False
    world.run_for(300)
    assert ready.result()
