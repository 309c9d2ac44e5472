"""The producer: accepts single messages within bounds and gives a future for each.

This owns the bounds (messages, bytes), the topics' routes, and the end. It hands messages to the
`Dispatcher` and never talks to a node itself but to ask how many queues a topic has. `send` must
stay a few microseconds: no task, timer, event or lock per message (ADR 10).

A failure that nobody looks at is told by `flush` and `close` (`dledger.client.failed_sends`).
Cancelling a future does not take the message back. A message that was sent one way has a future
like any other that its caller has cancelled; they all have the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from time import time
from types import TracebackType
from typing import Final, Self

from dledger.client.arguments import USUAL, message_arguments, seconds
from dledger.client.broker_group import BrokerGroup
from dledger.client.dispatch import Dispatcher, Sender
from dledger.client.epochs import Registration
from dledger.client.errors import (
    BufferFull,
    ClientError,
    DeadlineExceeded,
    ProducerClosed,
    QueueNotFound,
    SendsFailed,
    Subject,
)
from dledger.client.failed_sends import Bulk, FailedSends, was_asked
from dledger.client.faults import contained
from dledger.client.holding import Holder, Holding
from dledger.client.lane import Lane
from dledger.client.leaving import is_hurried, tell
from dledger.client.options import ProducerOptions
from dledger.client.owner import Owner
from dledger.client.packing import Packed, Packer, check_size
from dledger.client.results import NewMessage, ProducerStatistics, SendResult
from dledger.client.routing import HeldMessage, Route, labels, labels_alone
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.outcome import Outcome

BULK_TURN: Final = 256  # messages of a bulk between turns of the loop
BULK_TURN_BYTES: Final = 4 << 20  # ... and of bodies, as they may have to be compressed


class Producer:
    """Sends messages to the topics of a broker group. From `Client.producer`; one event loop."""

    def __init__(
        self,
        broker_group: BrokerGroup,
        options: ProducerOptions,
        born_host: tuple[str, int],
        on_closed: Callable[[Producer], None],
    ) -> None:
        self._broker_group = broker_group
        self._on_closed = on_closed
        self._options = options
        self._born_host = born_host
        self._loop = asyncio.get_running_loop()
        self._dispatcher = Dispatcher(
            broker_group,
            options,
            Sender(
                self._fail,
                self._on_sealed,
                self._on_over,
                self._on_place_gone,
                self._on_queues_changed,
            ),
        )
        self._failed: FailedSends[asyncio.Future[SendResult]] = FailedSends(
            was_asked, asyncio.Future.exception, options.max_buffered_messages
        )
        self._owner = Owner()
        packer = Packer(options, self._loop.call_exception_handler)
        self._packer = None if packer.is_plain else packer
        self._nobody: asyncio.Future[SendResult] = self._loop.create_future()  # of one-way sends
        self._nobody.cancel()
        self._add = self._dispatcher.add
        self._routes: dict[str, Route] = {}
        self._room_waiters: dict[asyncio.Future[None], None] = {}
        self._refused_bytes = 0
        self._messages = self._bytes = 0  # accepted and not settled; bytes of records
        self._max_messages = options.max_buffered_messages
        self._max_bytes = options.max_buffered_bytes
        self._failed_unrouted = 0
        self._one_way_failed = 0
        self._closing = False
        self._ended = asyncio.Event()
        self._holding = Holding(
            broker_group,
            self._dispatcher,
            Holder(self._fail_one, self._forget),
            options.delivery_timeout_ms / 1000,
            # Producers should not all begin with queue 0.
            first_sticky=int.from_bytes(os.urandom(2), "big"),
        )

    # --- sending ------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        deadline_s: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Accepts a message; the future tells where it was stored, or why it wasn't.

        Args:
            body: up to 4 MiB; empty is fine.
            key: decides the queue and so the order: a key's messages are stored as they were sent.
                Bytes are UTF-8 without blanks and control characters, and are read back as text.
            tag: for filters.
            properties: more names and values.
            queue_id: overrides the choice by key.
            deadline_s: its own, in place of `ProducerOptions.delivery_timeout_ms`: it is settled by
                then, retries and changes of leader included.

        Raises:
            BufferFull: wait for `room()`.
            DeadlineExceeded: `deadline_s` is 0 or less.
            InvalidArgument: an argument is of a wrong kind, or can't be encoded.
            MessageTooLarge: the body is over 4 MiB.
            QueueNotFound: the topic is known to have no such queue.
            ProducerClosed: after `close`.
            WrongThread, Forked: called in another event loop, thread or process.
        """
        future: asyncio.Future[SendResult] = self._loop.create_future()
        self._send(topic, body, key, tag, properties, queue_id, deadline_s, future)
        return future

    def send_one_way(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Accepts a message of which nobody wants to know what becomes. It is sent, retried, stored
        once and in order as any other; a failure is counted (`ProducerStatistics.one_way_failed`)
        and told to nobody. Arguments and `Raises` are those of `send`."""
        self._send(topic, body, key, tag, properties, queue_id, deadline_s, self._nobody)

    def _send(
        self,
        topic: str,
        body: bytes,
        key: str | bytes | None,
        tag: str | None,
        properties: Mapping[str, str] | None,
        queue_id: int | None,
        deadline_s: float | None,
        future: asyncio.Future[SendResult],
        packed: Packed | None = None,
    ) -> None:
        """`send`, with the future that is told. `packed`: it was packed before, elsewhere."""
        # Which loop runs costs more to ask than the thread: messages behind others don't.
        if not self._messages or get_ident() != self._owner.thread:
            self._owner.check(Subject.MESSAGE)
        if (type(topic), type(body), type(key), type(tag), type(queue_id)) not in USUAL:
            topic, body, key, tag, queue_id = message_arguments(topic, body, key, tag, queue_id)
        assert not isinstance(key, bytes)  # the type checker's affair
        route = self._routes.get(topic)
        if route is None or self._closing:
            route = self._open_route(topic)
        body_size = len(body)
        if (
            self._messages >= self._max_messages
            or self._bytes + body_size > self._max_bytes
            or body_size > MAX_MESSAGE_BYTES
        ):
            self._refuse_size(body_size)
        if deadline_s is not None:
            deadline_s = time_left(deadline_s)
        if packed is None and self._packer is None:
            encoded, sysflag = b"", 0
            if properties is not None:
                encoded = labels(key, tag, properties)
            elif key is not None or tag is not None:
                encoded = labels_alone(key, tag)
        else:
            body, sysflag, encoded = packed or self._pack(body, key, tag, properties)
        if key is None and queue_id is None:
            lane = route.sticky
        else:
            lane = self._choose(route, key, queue_id)
        record = route.encode(
            lane.queue_id if lane else 0, body, encoded, int(time() * 1000), 0, sysflag
        )
        if lane is None:
            deadline = self._dispatcher.deadline(deadline_s)
            self._holding.hold(
                route, HeldMessage(record, key, queue_id, future, deadline, deadline_s)
            )
        else:
            self._add(lane, record, future, deadline_s)
            if queue_id is not None:
                lane.fixed.append(len(lane.parts) - 1)
        self._messages += 1
        self._bytes += len(record)

    def _pack(
        self, body: bytes, key: str | None, tag: str | None, properties: Mapping[str, str] | None
    ) -> Packed:
        if self._packer is None:
            raise AssertionError("only a producer with a packer packs")
        return self._packer.pack(body, key, tag, properties)

    async def send_all(self, messages: Iterable[NewMessage]) -> int:
        """Sends them in order, waiting for room; how many, once all are stored.

        Raises:
            SendsFailed: the first failure ended it. What was accepted until then is settled, what
                comes after was not taken from `messages`.
        """
        self._owner.check(Subject.MESSAGES)
        bulk = Bulk()
        try:
            size = 0
            for number, message in enumerate(messages, 1):
                if not await self._send_in_bulk(message, bulk):
                    break
                size += len(message.body)
                if number % BULK_TURN == 0 or size >= BULK_TURN_BYTES:
                    size = 0
                    await asyncio.sleep(0)
            await bulk.settled()
        finally:
            bulk.leave()
        if bulk.failed:
            raise SendsFailed.of(bulk.errors, bulk.failed)
        return bulk.stored

    async def _send_in_bulk(self, message: NewMessage, bulk: Bulk) -> bool:
        """Whether the bulk goes on: the message was accepted, and none has failed so far."""
        topic, body, key, tag, properties, queue_id, deadline_s = message
        while not bulk.failed:
            future: asyncio.Future[SendResult] = self._loop.create_future()
            try:
                self._send(topic, body, key, tag, properties, queue_id, deadline_s, future)
            except BufferFull:
                with contextlib.suppress(ProducerClosed):  # the next attempt says so itself
                    await self.room()
            except ClientError as error:
                bulk.on_error(error)
            else:
                bulk.watch(future)
                return True
        return False

    def _choose(self, route: Route, key: str | None, queue_id: int | None) -> Lane | None:
        """The message's lane; None while the topic isn't known."""
        if not route.lanes:
            return None
        try:
            return route.choose(key, queue_id)
        except QueueNotFound:
            # The topic may have been made anew with more queues: the next send asks again.
            self._routes.pop(route.topic, None)
            raise

    def _refuse_size(self, body_size: int) -> None:
        """Raises what forbids a body of this size now; an empty buffer accepts any one message."""
        check_size(body_size)
        if self._messages:
            self._refused_bytes = body_size
            raise BufferFull(
                f"{self._messages} messages and {self._bytes} bytes are buffered",
                subject=Subject.MESSAGE,
            )

    async def room(self) -> None:
        """Returns when there is room for more, and for what was refused last.

        Raises:
            ProducerClosed: no room will ever be.
        """
        self._owner.check()
        while not self._has_room():
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters[waiter] = None
            try:
                await waiter
            finally:
                self._room_waiters.pop(waiter, None)
        if self._closing:
            raise ProducerClosed("the producer was closed", subject=Subject.MESSAGE)

    def _has_room(self) -> bool:
        """A quarter of the bounds is free: waking callers for each message would cost more."""
        spare_bytes = max(self._max_bytes // 4, self._refused_bytes)
        return not self._messages or (
            self._messages <= self._max_messages * 3 // 4
            and self._bytes + spare_bytes <= self._max_bytes
        )

    async def register(self) -> Registration:
        """The producer is known to the brokers, as it is before its first message is sent. Of one
        with a name (`ProducerOptions.name`) the result says how many of its messages each queue
        holds, whoever sent them: a program that keeps its own position goes on from there, and
        what is below was stored.

        Raises:
            ProducerFenced: another producer has taken the name over since.
            LimitReached: the brokers hold as many producers as they may.
            ClientError: the brokers could not be asked.
        """
        self._owner.check()
        return await self._dispatcher.registrar.registered()

    # --- topics -------------------------------------------------------------------------------

    def _open_route(self, topic: str) -> Route:
        if self._closing:
            raise ProducerClosed("the producer was closed", subject=Subject.MESSAGE)
        route = self._routes[topic] = Route(topic, self._born_host)
        return route

    def _forget(self, route: Route) -> None:
        """Nothing is known of the route's topic: the next message asks again."""
        if self._routes.get(route.topic) is route:
            del self._routes[route.topic]

    def _fail_one(self, message: HeldMessage, error: ClientError) -> None:
        self._failed_unrouted += 1
        self._fail(message.future, error.about_message(Outcome.DID_NOT_HAPPEN))
        self._on_over(1, len(message.record))

    # --- what the dispatcher tells ------------------------------------------------------------

    def _fail(self, future: asyncio.Future[SendResult], error: ClientError) -> None:
        """The message failed; who cancelled its future has chosen not to know."""
        if not future.done():
            future.set_exception(error)
            self._failed.add(future)
        elif future is self._nobody:
            self._one_way_failed += 1

    def _on_sealed(self, lane: Lane) -> None:
        """A gather was closed: the next unkeyed messages go to another queue."""
        route = self._routes.get(lane.topic)
        if route is not None and route.sticky is lane:
            route.turn_sticky()

    def _on_over(self, count: int, size: int) -> None:
        """Messages are settled: their room is free."""
        self._messages -= count
        self._bytes -= size
        with contained("waking those who wait for room"):  # the messages are settled by now
            if self._room_waiters and self._has_room():
                self._refused_bytes = 0
                self._wake_room_waiters()

    def _on_place_gone(self, lane: Lane) -> None:
        """What is known of the topic is wrong: the next message asks again. A route that is
        being asked for holds messages and stays, and so does one that knows better already: late
        answers of an old topic's lanes say nothing of the new one."""
        route = self._routes.get(lane.topic)
        if route is not None and lane in route.lanes:
            del self._routes[lane.topic]

    def _on_queues_changed(self, lane: Lane) -> None:
        """The lane's topic takes messages in other queues. Also while the producer closes: what was
        accepted is sent."""
        route = self._routes.get(lane.topic)
        if route is None:
            route = self._routes[lane.topic] = Route(lane.topic, self._born_host)
        self._holding.move(route)

    def _wake_room_waiters(self) -> None:
        for waiter in self._room_waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- the end ------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Everything accepted before this call is stored, or its caller knows that it failed.

        Raises:
            SendsFailed: messages failed, and nobody has looked at their futures. Told once, and to
                every `flush` that is under way then; of a producer that was aborted to each
                `flush`, with all that had failed by then.
        """
        self._owner.check()
        async with self._failed.told():
            await self._settle()

    async def _settle(self) -> None:
        """Returns when everything accepted before this call is settled, well or badly."""
        moves = -1
        while moves != self._holding.moves:  # what is in other queues by now is in other batches
            await self._holding.searched()
            moves = self._holding.moves
            for batch in self._dispatcher.seal_all():
                if batch.is_over:
                    continue
                if batch.settled is None:
                    batch.settled = self._loop.create_future()
                await asyncio.wait([batch.settled])

    @property
    def _close_timeout_s(self) -> float:
        """How long `close` waits for what is buffered."""
        return self._options.close_timeout_ms / 1000

    async def close(self) -> None:
        """Flushes for `close_timeout_ms` at most; what is left then fails with ProducerClosed,
        saying whether it may have been stored. No task is left behind. Who closes meanwhile, too,
        waits for the same.

        Raises:
            SendsFailed: as `flush` does, when all is ended.
        """
        if self._owner.is_of_another_process:
            return  # nothing here is this process's
        if not self._ended.is_set():
            self._owner.check()
        if self._closing:
            is_told = not self._failed.is_given_up
            async with self._failed.told() if is_told else contextlib.nullcontext():
                await self._ended.wait()
            return
        self._closing = True
        try:
            async with self._failed.told():
                try:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._close_timeout_s):
                            await self._settle()
                finally:
                    await self._end()
        finally:
            await self._failed.forget()

    async def abort(self) -> None:
        """Closes without flushing. The messages' futures tell what became of them, and so does each
        `flush` that is under way, or comes later."""
        if self._owner.is_of_another_process:
            return
        if not self._ended.is_set():
            self._owner.check()
        self._failed.give_up()
        try:
            await self._end()
        finally:
            await self._failed.forget()

    async def _end(self) -> None:
        if self._ended.is_set():
            return
        self._closing = True
        try:
            await self._break_off()
        finally:
            if not self._ended.is_set():
                self._ended.set()
                self._on_closed(self)
            self._wake_room_waiters()

    async def _break_off(self) -> None:
        """Everything is settled before the first wait; then what still runs is ended."""
        error = ProducerClosed("the producer was closed before the message was acknowledged")
        searches = self._holding.fail_all(error)
        try:
            await self._dispatcher.abort(error)
        finally:
            if searches:
                await asyncio.wait(searches)

    async def __aenter__(self) -> Self:
        if self._closing:
            raise ProducerClosed("the producer was closed")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes; who is being cancelled or interrupted does not wait for the flush. An error
        of the caller's stays the one that is raised, and has a note of failed messages."""
        if is_hurried(kind):
            await self.abort()
            return
        try:
            await self.close()
        except SendsFailed as failed:
            tell(failed, error)

    def statistics(self) -> ProducerStatistics:
        """A frozen picture, as of now."""
        sent = self._dispatcher
        failed = sent.failed + self._failed_unrouted
        return ProducerStatistics(
            accepted=sent.stored + failed + sent.unknown + self._messages - sent.told_early,
            stored=sent.stored,
            failed=failed,
            unknown=sent.unknown,
            duplicates=sent.duplicates,
            buffered_messages=self._messages,
            buffered_bytes=self._bytes,
            requests=sent.requests,
            requests_in_flight=sent.requests_in_flight,
            batches_retried=sent.batches_retried,
            batches_busy=sent.batches_busy,
            one_way_failed=self._one_way_failed,
            hook_failures=0 if self._packer is None else self._packer.hook_failures,
        )


def time_left(deadline_s: object) -> float:
    """The message's own deadline, which isn't over.

    Raises:
        InvalidArgument: it is no number of seconds.
        DeadlineExceeded: it is 0 or less.
    """
    left_s = seconds("deadline_s", deadline_s)
    if left_s <= 0:
        raise DeadlineExceeded(f"the deadline is in {left_s:g} s", subject=Subject.MESSAGE)
    return left_s
