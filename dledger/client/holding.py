"""Messages whose topic isn't known yet, and the search for it.

This owns the searches of one producer: one a route, begun by the first message that it holds. It
must never leave a message behind: a search that ends, however it does, lets go of all that the
route holds, and no message waits beyond its deadline. It ends none before that, either, unless the
topic is refused: who came late, or has more time, is searched for on.

A topic that takes messages in other queues than were known is looked for anew (`move`), and with it
goes what its lanes hold, once they are quiet (rule 8 of `dledger.client.lane`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import DESCRIBE_TOPIC
from dledger.client.dispatch import Dispatcher
from dledger.client.errors import (
    BrokerGroupUnreachable,
    ClientError,
    ClientFault,
    DeadlineExceeded,
    ProducerClosed,
    QueueNotFound,
    TopicReplaced,
)
from dledger.client.faults import contained, fault
from dledger.client.lane import Batch, Lane
from dledger.client.pause import PAUSE_MIN_S
from dledger.client.rerouting import Refused, rerouted
from dledger.client.results import SendResult
from dledger.client.routing import HeldMessage, Route, for_queue
from dledger.wire import broker_pb2 as pb

# What one look for a topic has found when its time was over: nobody has refused anything.
TIME_IS_OVER: Final = (DeadlineExceeded, BrokerGroupUnreachable)
# Of the delivery timeout: who is due within so much goes together. With 100,000 messages held and
# each due by itself, nothing else would be done.
TOGETHER_SHARE: Final = 1 / 128
MIN_LOOK_S: Final = 1.0  # of any look but the first: each begins with a call at once


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
        timeout_s: how long messages wait that have no deadline of their own.
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
        self._together_s = TOGETHER_SHARE * timeout_s
        self._first_sticky = first_sticky
        self._loop = asyncio.get_running_loop()
        self._searches: dict[Route, asyncio.Task[None]] = {}
        self._found_out: dict[Route, ClientError] = {}  # by searches that go on, so far
        self.moves = 0  # how often messages went from their batches into others
        self._timer: asyncio.TimerHandle | None = None
        self._expired: asyncio.Future[None] | None = None  # made by who waits (`searched`)
        self._timer_at = 0.0  # of the timer, which doesn't know it on every event loop

    def hold(self, route: Route, message: HeldMessage) -> None:
        """Keeps a message until the topic's queues are known; the first one asks for them."""
        self._begin(route)
        route.held.append(message)
        self._arm(message.deadline)

    def move(self, route: Route) -> None:
        """The topic takes messages in other queues: nothing new is sent until these are known, and
        what was chosen before is chosen anew."""
        route.forget()
        for lane in self._dispatcher.lanes_of(route.topic):
            lane.freeze()
        self._begin(route)

    def _begin(self, route: Route) -> None:
        if route not in self._searches:
            task = self._loop.create_task(self._search(route))
            self._searches[route] = task
            task.add_done_callback(partial(self._on_searched, route))

    def _on_searched(self, route: Route, search: asyncio.Task[None]) -> None:
        """Of one that was cancelled before it began nobody was told."""
        if self._searches.get(route) is search:
            del self._searches[route]
            self._fail(route, ProducerClosed("the wait for the topic was cancelled"))

    async def searched(self) -> None:
        """Returns when what is held now is held no more. A search may go on, for those who came
        later, and they may come for as long as there is no leader."""
        held = [(route, search, list(route.held)) for route, search in self._searches.items()]
        for route, search, messages in held:
            meant = set(map(id, messages))
            while not search.done() and any(id(each) in meant for each in route.held):
                if self._expired is None:
                    self._expired = self._loop.create_future()
                await asyncio.wait([search, self._expired], return_when=asyncio.FIRST_COMPLETED)

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
        """Asks for the topic's queues, then lets go of what waited for them. With its last step it
        is none any more: what is held in the same turn of the loop needs another one."""
        try:
            await self._look_on(route)
        except asyncio.CancelledError:
            self._fail(route, ProducerClosed("the wait for the topic was cancelled"))
            raise
        except ClientError as error:
            self._fail(route, error)
        except Exception as error:  # noqa: BLE001 - those who wait must hear of it
            self._fail(route, fault("looking for a topic", error))
        else:
            held, route.held = route.held, []
            for message in held:
                with contained("placing a message", partial(self._holder.fail, message)):
                    self._release(route, message)
        finally:
            self._searches.pop(route, None)
            self._found_out.pop(route, None)

    async def _look_on(self, route: Route) -> None:
        """Looks, and looks again while anybody waits who has time left. The first look ends a
        little before the message is due that it began with, to be able to tell it why."""
        look_s = self._timeout_s - self._together_s
        while True:
            deadline = self._loop.time() + look_s
            try:
                while not await self._find_lanes(route, deadline):
                    pass  # it was frozen for what is so now: once, unless it is changed again
                return
            except TIME_IS_OVER as error:
                due = deadline + self._together_s
                self._found_out[route] = error
                self._expire_route(route, self._loop.time(), due, error)
                frozen = self._frozen(route)
                if not route.held and not any(_has_time(lane, due) for lane in frozen):
                    self._dispatcher.break_off(frozen, error)
                    raise
            look_s = max(self._timeout_s, MIN_LOOK_S)

    async def _find_lanes(self, route: Route, deadline: float) -> bool:
        """Whether the route knows the topic's queues; false: lanes were frozen first, as what they
        hold was chosen by what isn't so any more."""
        frozen = self._frozen(route)
        await self._dispatcher.quieted(frozen)
        left_s = max(PAUSE_MIN_S, deadline - self._loop.time())
        request = pb.DescribeTopicRequest(name=route.topic)
        try:
            answer = await self._broker_group.call(
                DESCRIBE_TOPIC, request, Effect.NONE, deadline_s=left_s
            )
        except ClientError as error:
            if len(self._frozen(route)) > len(frozen):
                return False  # by an answer that came meanwhile: what they sent is out yet
            if not isinstance(error, TIME_IS_OVER):
                self._dispatcher.break_off(frozen, error)
            raise
        topic = answer.topic
        before = [each for each in self._dispatcher.lanes_of(route.topic) if _is_of(each, topic)]
        gone = [each for each in self._frozen(route) if not _is_of(each, topic)]  # as of now
        self._dispatcher.break_off(gone, TopicReplaced(f"topic {route.topic!r} was made anew"))
        is_other = any(each.queues_changed != topic.queues_changed for each in before)
        if is_other and not all(each.is_frozen for each in before):
            for each in before:
                each.freeze()
            return False
        if any(each.is_frozen and not each.is_quiet for each in before):
            return False  # others froze it while the topic was asked for: what it sent is out yet
        self._resolve(route, topic, before)
        return True

    def _frozen(self, route: Route) -> list[Lane]:
        return [each for each in self._dispatcher.lanes_of(route.topic) if each.is_frozen]

    def _resolve(self, route: Route, topic: pb.Topic, before: Sequence[Lane]) -> None:
        """The route goes by what the topic is now, and so does what its lanes held."""
        lanes = [
            self._dispatcher.lane(route.topic, queue_id, topic.incarnation)
            for queue_id in range(topic.write_queues or topic.queue_count)
        ]
        frozen = [each for each in before if each.is_frozen]
        held = [(each, self._dispatcher.withdraw(each)) for each in frozen]
        for each in (*before, *lanes):
            each.queues_changed = topic.queues_changed
        route.resolve(lanes, self._first_sticky)
        self.moves += bool(held)
        for lane, batches in held:
            moved: set[asyncio.Future[SendResult]] = set()
            with contained("choosing queues anew", partial(self._give_up, batches, moved)):
                self._reroute(route, lane, batches, moved)
        if held:
            self._dispatcher.go_on()

    def _reroute(
        self,
        route: Route,
        lane: Lane,
        batches: list[Batch],
        moved: set[asyncio.Future[SendResult]],
    ) -> None:
        """`moved` is told who is done with here: in another batch, or refused."""
        for each in rerouted(route, lane, batches):
            if isinstance(each, Refused):
                self._dispatcher.fail_message(*each)
                moved.add(each.batch.futures[each.position])
            else:
                self._dispatcher.put(*each)
                moved.update(each[1].futures)
        for batch in batches:
            self._dispatcher.end(batch)

    def _give_up(
        self,
        batches: list[Batch],
        moved: set[asyncio.Future[SendResult]],
        error: ClientFault,
    ) -> None:
        """Whatever of these batches isn't in others fails: it is stored nowhere, and what is goes
        its way."""
        for batch in batches:
            for position, future in enumerate(batch.futures):
                if future not in moved:
                    self._dispatcher.fail_message(batch, position, error)
            self._dispatcher.end(batch)

    def _release(self, route: Route, message: HeldMessage) -> None:
        try:
            lane = route.choose(message.key, message.queue_id)
        except QueueNotFound as error:
            self._holder.fail(message, error)
            return
        record = for_queue(message.record, lane.queue_id)
        self._dispatcher.add_waited(
            *(lane, record, message.future, message.deadline, message.timeout_s),
            is_fixed=message.queue_id is not None,
        )

    def _fail(self, route: Route, error: ClientError) -> None:
        """None of those who wait for the topic is stored; the next message asks for it again."""
        self._holder.forget(route)
        held, route.held = route.held, []
        for message in held:
            self._holder.fail(message, error)

    # --- deadlines ----------------------------------------------------------------------------

    def _arm(self, deadline: float) -> None:
        """One timer for all."""
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
                self._expire_route(route, now, now + self._together_s)
        waiting = [each.deadline for route in self._searches for each in route.held]
        if waiting:
            self._arm(max(min(waiting), now + PAUSE_MIN_S))

    def _expire_route(
        self, route: Route, now: float, due: float, error: ClientError | None = None
    ) -> None:
        """Fails who is due by then, or has a deadline of its own and that is over."""
        held, route.held = route.held, []
        for message in held:
            if message.deadline > (due if message.timeout_s is None else now):
                route.held.append(message)
            else:
                self._holder.fail(message, error or self._overdue(route))
        if self._expired is not None and len(route.held) < len(held):
            self._expired.set_result(None)
            self._expired = None

    def _overdue(self, route: Route) -> DeadlineExceeded:
        text = f"the deadline is over, and topic {route.topic!r} was still looked for"
        known = self._found_out.get(route)
        error = DeadlineExceeded(text if known is None else f"{text}; before: {known.message}")
        error.__cause__ = known
        return error


def _has_time(lane: Lane, due: float) -> bool:
    """Whether it holds a message that isn't due by then."""
    deadlines = [batch.deadline for batch in lane.batches() if not batch.is_over]
    if lane.parts:
        deadlines.append(lane.gather_deadline)
    return any(deadline > due for deadline in deadlines)


def _is_of(lane: Lane, topic: pb.Topic) -> bool:
    """Whether it leads to that very topic, not to one before of the name."""
    return lane.incarnation == topic.incarnation
