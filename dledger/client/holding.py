"""Messages whose topic isn't known yet, and the search for it.

This owns the searches of one producer: one a route, begun by the first message that it holds. It
must never leave a message behind: a search that ends, however it does, lets go of all that the
route holds, and a message with a deadline of its own doesn't wait beyond that. The others' deadline
is the search's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import DESCRIBE_TOPIC
from dledger.client.dispatch import Dispatcher
from dledger.client.errors import ClientError, DeadlineExceeded, ProducerClosed, QueueNotFound
from dledger.client.faults import contained, fault
from dledger.client.pause import PAUSE_MIN_S
from dledger.client.routing import HeldMessage, Route, for_queue
from dledger.wire import broker_pb2 as pb


@dataclass(frozen=True, slots=True)
class Holder:
    """How the producer is told.

    Attributes:
        fail: a held message has failed.
        forget: nothing is known of the route's topic: the next message asks again.
    """

    fail: Callable[[HeldMessage, ClientError], None]
    forget: Callable[[Route], None]


class Holding:
    """What one producer's routes hold.

    Args:
        timeout_s: how long a topic is looked for.
        first_sticky: see `Route.resolve`.
    """

    def __init__(
        self,
        broker_group: BrokerGroup,
        dispatcher: Dispatcher,
        holder: Holder,
        timeout_s: float,
        first_sticky: int,
    ) -> None:
        self._broker_group = broker_group
        self._dispatcher = dispatcher
        self._holder = holder
        self._timeout_s = timeout_s
        self._first_sticky = first_sticky
        self._loop = asyncio.get_running_loop()
        self._searches: dict[Route, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # of the timer, which doesn't know it on every event loop

    def hold(self, route: Route, message: HeldMessage) -> None:
        """Keeps a message until the topic's queues are known; the first one asks for them."""
        if route not in self._searches:
            task = self._loop.create_task(self._search(route))
            self._searches[route] = task
            task.add_done_callback(lambda _: self._searches.pop(route, None))
        route.held.append(message)
        if message.timeout_s is not None:
            self._arm(message.deadline)

    async def searched(self) -> None:
        """Returns when every search that is under way has ended."""
        if self._searches:
            await asyncio.wait(list(self._searches.values()))

    def fail_all(self, error: ClientError) -> list[asyncio.Task[None]]:
        """Fails what is held, and ends the searches; they are given back, to be waited for."""
        if self._timer is not None:
            self._timer.cancel()
        searches = dict(self._searches)
        for route, task in searches.items():
            self._fail(route, error)
            task.cancel()
        return list(searches.values())

    # --- the search ---------------------------------------------------------------------------

    async def _search(self, route: Route) -> None:
        """Asks for the topic's queues, then lets go of what waited for them."""
        try:
            await self._find_lanes(route)
        except ClientError as error:
            self._fail(route, error)
        except asyncio.CancelledError:
            self._fail(route, ProducerClosed("the wait for the topic was cancelled"))
            raise
        except Exception as error:  # noqa: BLE001 - those who wait must hear of it
            self._fail(route, fault("looking for a topic", error))
        else:
            held, route.held = route.held, []
            for message in held:
                with contained("placing a message", partial(self._holder.fail, message)):
                    self._release(route, message)

    async def _find_lanes(self, route: Route) -> None:
        request = pb.DescribeTopicRequest(name=route.topic)
        answer = await self._broker_group.call(
            DESCRIBE_TOPIC, request, Effect.NONE, deadline_s=self._timeout_s
        )
        lanes = [
            self._dispatcher.lane(route.topic, queue_id, answer.topic.incarnation)
            for queue_id in range(answer.topic.queue_count)
        ]
        route.resolve(lanes, self._first_sticky)

    def _release(self, route: Route, message: HeldMessage) -> None:
        try:
            lane = route.choose(message.key, message.queue_id)
        except QueueNotFound as error:
            self._holder.fail(message, error)
            return
        record = for_queue(message.record, lane.queue_id)
        self._dispatcher.add_waited(
            lane, record, message.future, message.deadline, message.timeout_s
        )

    def _fail(self, route: Route, error: ClientError) -> None:
        """None of those who wait for the topic is stored; the next message asks for it again."""
        self._holder.forget(route)
        held, route.held = route.held, []
        for message in held:
            self._holder.fail(message, error)

    # --- deadlines ----------------------------------------------------------------------------

    def _arm(self, deadline: float) -> None:
        """One timer for all that have deadlines of their own."""
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        with contained("ending what is overdue"):
            for route in self._searches:
                self._expire_route(route, now)
        waiting = [
            each.deadline
            for route in self._searches
            for each in route.held
            if each.timeout_s is not None
        ]
        if waiting:
            self._arm(max(min(waiting), now + PAUSE_MIN_S))

    def _expire_route(self, route: Route, now: float) -> None:
        held, route.held = route.held, []
        for message in held:
            if message.timeout_s is None or message.deadline > now:
                route.held.append(message)
            else:
                told = f"the deadline is over, and topic {route.topic!r} was still looked for"
                self._holder.fail(message, DeadlineExceeded(told))
