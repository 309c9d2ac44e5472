"""The producer: accepts single messages within bounds and gives a future for each.

This owns the bounds (messages, bytes), the topics' routes, and the end. It hands messages to the
`Dispatcher` and never talks to a node itself but to ask how many queues a topic has. `send` must
stay a few microseconds: no task, timer, event or lock per message (ADR 10).

A failure that nobody looks at is told by `flush` and `close` (`dledger.client.failed_sends`).
Cancelling a future does not take the message back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import get_ident
from time import time
from types import TracebackType
from typing import Final, Self

from dledger.client.arguments import USUAL, message_arguments
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import DESCRIBE_TOPIC
from dledger.client.dispatch import Dispatcher, Sender
from dledger.client.epochs import Registration
from dledger.client.errors import (
    BufferFull,
    ClientError,
    MessageTooLarge,
    ProducerClosed,
    QueueNotFound,
    SendsFailed,
    Subject,
)
from dledger.client.failed_sends import Bulk, FailedSends, was_asked
from dledger.client.faults import contained, fault
from dledger.client.lane import Lane
from dledger.client.options import ProducerOptions
from dledger.client.owner import Owner
from dledger.client.results import NewMessage, ProducerStatistics, SendResult
from dledger.client.routing import HeldMessage, Route, for_queue, labels
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.outcome import Outcome
from dledger.wire import broker_pb2 as pb

BULK_TURN: Final = 256  # messages of a bulk between turns of the loop


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
            Sender(self._fail, self._on_sealed, self._on_over, self._on_place_gone),
        )
        self._failed: FailedSends[asyncio.Future[SendResult]] = FailedSends(
            was_asked, asyncio.Future.exception, options.max_buffered_messages
        )
        self._owner = Owner()
        self._add = self._dispatcher.add
        self._routes: dict[str, Route] = {}
        self._resolving: set[asyncio.Task[None]] = set()
        self._room_waiters: set[asyncio.Future[None]] = set()
        self._refused_bytes = 0
        self._messages = self._bytes = 0  # accepted and not settled; bytes of records
        self._max_messages = options.max_buffered_messages
        self._max_bytes = options.max_buffered_bytes
        self._failed_unrouted = 0
        self._closing = False
        self._ended = asyncio.Event()
        # Producers should not all begin with queue 0.
        self._first_sticky = int.from_bytes(os.urandom(2), "big")

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
    ) -> asyncio.Future[SendResult]:
        """Accepts a message; the future tells where it was stored, or why it wasn't.

        Args:
            body: up to 4 MiB; empty is fine.
            key: decides the queue and so the order: a key's messages are stored as they were sent.
                Bytes are UTF-8 without blanks and control characters, and are read back as text.
            tag: for filters.
            properties: more names and values.
            queue_id: overrides the choice by key.

        Raises:
            BufferFull: wait for `room()`.
            InvalidArgument: an argument is of a wrong kind, or can't be encoded.
            MessageTooLarge: the body is over 4 MiB.
            QueueNotFound: the topic is known to have no such queue.
            ProducerClosed: after `close`.
            WrongThread, Forked: called in another thread or process than the event loop's.
        """
        if get_ident() != self._owner.thread:
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
        labelled = key is not None or tag is not None or properties is not None
        encoded = labels(key, tag, properties) if labelled else b""
        lane = self._choose(route, key, queue_id)
        record = route.encode(lane.queue_id if lane else 0, body, encoded, int(time() * 1000))
        future: asyncio.Future[SendResult] = self._loop.create_future()
        if lane is None:
            deadline = self._dispatcher.deadline()
            self._hold(route, HeldMessage(record, key, queue_id, future, deadline))
        else:
            self._add(lane, record, future)
        self._messages += 1
        self._bytes += len(record)
        return future

    async def send_all(self, messages: Iterable[NewMessage]) -> int:
        """Sends them in order, waiting for room; how many, once all are stored.

        Raises:
            SendsFailed: the first failure ended it. What was accepted until then is settled, what
                comes after was not taken from `messages`.
        """
        bulk = Bulk()
        try:
            for number, message in enumerate(messages, 1):
                if not await self._send_in_bulk(message, bulk):
                    break
                if number % BULK_TURN == 0:
                    await asyncio.sleep(0)
            await bulk.settled()
        finally:
            bulk.leave()
        if bulk.failed:
            raise SendsFailed.of(bulk.errors, bulk.failed)
        return bulk.stored

    async def _send_in_bulk(self, message: NewMessage, bulk: Bulk) -> bool:
        """Whether the bulk goes on: the message was accepted, and none has failed so far."""
        topic, body, key, tag, properties, queue_id = message
        while not bulk.failed:
            try:
                future = self.send(
                    topic, body, key=key, tag=tag, properties=properties, queue_id=queue_id
                )
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
        if key is None and queue_id is None:
            return route.sticky
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
        if body_size > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(
                f"the body has {body_size} bytes, the limit is {MAX_MESSAGE_BYTES}",
                subject=Subject.MESSAGE,
            )
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
        while not self._has_room():
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters.add(waiter)
            try:
                await waiter
            finally:
                self._room_waiters.discard(waiter)
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
        return await self._dispatcher.registrar.registered()

    # --- topics -------------------------------------------------------------------------------

    def _open_route(self, topic: str) -> Route:
        if self._closing:
            raise ProducerClosed("the producer was closed", subject=Subject.MESSAGE)
        route = self._routes[topic] = Route(topic, self._born_host)
        return route

    def _hold(self, route: Route, message: HeldMessage) -> None:
        """Keeps a message until the topic's queues are known; the first one asks for them."""
        if not route.held:
            task = self._loop.create_task(self._resolve(route))
            self._resolving.add(task)
            task.add_done_callback(self._resolving.discard)
        route.held.append(message)

    async def _resolve(self, route: Route) -> None:
        """Asks for the topic's queues, then lets go of what waited for them."""
        try:
            await self._find_lanes(route)
        except ClientError as error:
            self._fail_held(route, error)
        except asyncio.CancelledError:
            self._fail_held(route, ProducerClosed("the wait for the topic was cancelled"))
            raise
        except Exception as error:  # noqa: BLE001 - those who wait must hear of it
            self._fail_held(route, fault("looking for a topic", error))
        else:
            held, route.held = route.held, []
            for message in held:
                with contained("placing a message", partial(self._fail_one, message)):
                    self._release(route, message)

    async def _find_lanes(self, route: Route) -> None:
        request = pb.DescribeTopicRequest(name=route.topic)
        timeout_s = self._options.delivery_timeout_ms / 1000
        answer = await self._broker_group.call(
            DESCRIBE_TOPIC, request, Effect.NONE, deadline_s=timeout_s
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
            self._fail_one(message, error)
            return
        record = for_queue(message.record, lane.queue_id)
        self._dispatcher.add_waited(lane, record, message.future, message.deadline)

    def _fail_held(self, route: Route, error: ClientError) -> None:
        """None of those who wait for the topic is stored; the next message asks for it again."""
        if self._routes.get(route.topic) is route:
            del self._routes[route.topic]
        held, route.held = route.held, []
        for message in held:
            self._fail_one(message, error)

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

    def _wake_room_waiters(self) -> None:
        for waiter in self._room_waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- the end ------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Everything accepted before this call is stored, or its caller knows that it failed.

        Raises:
            SendsFailed: messages failed, and nobody has looked at their futures. Told once.
        """
        self._owner.check()
        await self._settle()
        await self._failed.tell()

    async def _settle(self) -> None:
        """Returns when everything accepted before this call is settled, well or badly."""
        if self._resolving:
            await asyncio.wait(list(self._resolving))
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
        saying whether it may have been stored. No task is left behind.

        Raises:
            SendsFailed: as `flush` does, when all is ended.
        """
        if self._owner.is_of_another_process:
            return  # nothing here is this process's
        if self._closing:
            await self._ended.wait()
            return
        self._closing = True
        try:
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._close_timeout_s):
                        await self._settle()
            finally:
                await self._end()
            await self._failed.tell()
        finally:
            self._failed.forget()

    async def abort(self) -> None:
        """Closes without flushing. The messages' futures tell what became of them."""
        if self._owner.is_of_another_process:
            return
        try:
            await self._end()
        finally:
            self._failed.forget()

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
        for route in list(self._routes.values()):
            self._fail_held(route, error)
        resolving = list(self._resolving)
        for task in resolving:
            task.cancel()
        try:
            await self._dispatcher.abort(error)
        finally:
            if resolving:
                await asyncio.wait(resolving)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes; who is being cancelled or interrupted does not wait for the flush. An error
        of the caller's stays the one that is raised, and has a note of failed messages."""
        if kind is not None and not issubclass(kind, Exception):
            await self.abort()
            return
        try:
            await self.close()
        except SendsFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))

    def statistics(self) -> ProducerStatistics:
        """A frozen picture, as of now."""
        sent = self._dispatcher
        failed = sent.failed + self._failed_unrouted
        return ProducerStatistics(
            accepted=sent.stored + failed + sent.unknown + self._messages,
            stored=sent.stored,
            failed=failed,
            unknown=sent.unknown,
            duplicates=sent.duplicates,
            buffered_messages=self._messages,
            buffered_bytes=self._bytes,
            requests=sent.requests,
            requests_in_flight=sent.requests_in_flight,
            batches_retried=sent.batches_retried,
        )
