"""Threads have messages ahead: of a lease that has ended, or of a stream that broke, none of them
is begun any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from dledger.client import Message
from dledger.client.members.clock import clock
from dledger.client.members.member import Line, Member, Rules, Times
from dledger.client.members.membership import Identity, Membership
from dledger.client.members.process_queue import Order, Place, ProcessQueue
from dledger.client.members.pulling import Pace
from dledger.client.members.settings import group_settings
from dledger.client.members.workers import ThreadWorkers
from dledger.testing import make_message
from dledger.wire import groups_pb2 as gpb
from tests.client.loops import LIMIT_S, async_test


class Crew:
    """A member of a group in order with one thread, whose handler ends when it may."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.told: list[tuple[int, bool]] = []
        self.first, self.may_end = asyncio.Event(), threading.Event()
        line, loop = Line(), asyncio.get_running_loop()
        self.member = Member(Rules(order=Order.QUEUE), lambda: bytes(8), {"t": line})
        self.membership = Membership(
            *(cast(Any, self), cast(Any, self), Identity("g", "m", group_settings(["t"]))),
            *(self.member, Pace(1 << 20, 100, None), self),
        )

        def handle(message: Message) -> None:
            self.begun.append((message.queue_id, message.queue_offset))
            loop.call_soon_threadsafe(self.first.set)
            assert self.may_end.wait(LIMIT_S)

        def on_exit(error: BaseException) -> None:
            raise AssertionError from error

        self.threads = ThreadWorkers(
            *(self.membership, line, {"t": handle}),
            count=1,
            timeout_s=LIMIT_S,
            surround=lambda: None,
            on_exit=on_exit,
        )

    # --- the member's owner -------------------------------------------------------------------

    def on_work(self) -> None:
        self.threads.wake()

    def on_withdrawn(self) -> None:
        self.threads.withdraw()

    def on_over(self, error: object) -> None:
        raise AssertionError(error)

    async def on_revoke(self, queues: Sequence[ProcessQueue], *, lost: bool) -> None:
        self.told += [(queue.place.queue_id, lost) for queue in queues]

    # --- what it is told ----------------------------------------------------------------------

    def join(self) -> None:
        self.membership.on_stream()
        self.membership.on_joined(7, Times(), clock())

    def lease(self, *leases: tuple[int, int, int]) -> None:
        """Queue, epoch, frontier of each; this is all that it holds."""
        told = [gpb.QueueLease(queue_id=q, epoch=e, frontier=f) for q, e, f in leases]
        gained = gpb.TopicLeases(topic="t", incarnation=1, leases=told)
        self.membership.on_assignment(gpb.Assignment(slot=1, whole=True, gained=[gained]))

    def fetch(self, queue_id: int, *offsets: int) -> None:
        queue = self.member.queues[Place("t", 1, queue_id)]
        message = make_message("t", b"x")
        found = [message._replace(queue_id=queue_id, queue_offset=each) for each in offsets]
        queue.on_fetched(found, offsets[-1] + 1, offsets[-1] + 1)
        self.member.on_pulled(queue)
        self.on_work()

    async def until_idle(self) -> None:
        """Whatever may be begun has been, and has ended."""
        self.may_end.set()
        async with asyncio.timeout(LIMIT_S):
            while self.threads._given or self.membership._tasks:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def at_work() -> AsyncIterator[Crew]:
    """It has begun the first message of queue 0; the first one of queue 1 is its thread's next."""
    crew = Crew()
    crew.join()
    crew.lease((0, 5, 0), (1, 5, 0))
    crew.fetch(0, 0, 1)
    crew.fetch(1, 0, 1)
    await crew.first.wait()
    try:
        yield crew
    finally:
        crew.may_end.set()
        await crew.threads.close()
        while any(thread.is_alive() for thread in crew.threads._threads):
            await asyncio.sleep(0.001)


@async_test
async def test_lease_that_a_newer_one_replaces_is_lost() -> None:
    """As where the group was sent elsewhere while its leader changed: nothing of the ended lease is
    begun, the application hears of it, and the queue is worked on by the new one."""
    async with at_work() as crew:
        crew.lease((0, 5, 0), (1, 9, 10))
        crew.fetch(1, 10, 11)
        await crew.until_idle()
        assert sorted(crew.begun) == [(0, 0), (0, 1), (1, 10), (1, 11)]
        assert crew.told == [(1, True)]
        assert crew.member.lost == 1
        assert set(crew.member.queues) == {Place("t", 1, 0), Place("t", 1, 1)}


@async_test
async def test_threads_begin_nothing_while_there_is_no_stream() -> None:
    """What is held may be somebody else's by the time there is one. If not, it goes on then."""
    async with at_work() as crew:
        crew.membership.on_broken()
        await crew.until_idle()
        assert crew.begun == [(0, 0)]
        crew.join()
        crew.lease((0, 5, 0), (1, 5, 0))
        await crew.until_idle()
        assert sorted(crew.begun) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert crew.told == []
