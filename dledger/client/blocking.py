"""The blocking face for scripts: the same verbs, an event loop on a thread of its own.

    with BlockingClient.connect("127.0.0.1:7001") as client:
        with client.producer() as producer:
            stored = producer.send("topic", b"body").result()
        for message in client.consumer("topic", idle_timeout_s=1):
            ...

Everything happens on the loop's thread; the caller's threads only wait. Messages cross over in
one go: sends made while the loop is busy wake it once. Futures are `concurrent.futures.Future`s,
resolved on the loop's thread, so their callbacks must be short and must not block.

What departs from the asynchronous face: `send` waits for room instead of raising BufferFull, and
what it can't accept (MessageTooLarge, InvalidArgument, ...) comes in the future.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from dledger.client.client import Client
from dledger.client.consumer import Consumer
from dledger.client.epochs import Registration
from dledger.client.errors import (
    BufferFull,
    ClientClosed,
    InvalidArgument,
    ProducerClosed,
    Subject,
)
from dledger.client.faults import client_error
from dledger.client.options import ClientOptions, ConsumerOptions, ProducerOptions, StartFrom
from dledger.client.producer import Producer
from dledger.client.results import (
    LeaderInfo,
    Message,
    NodeState,
    ProducerStatistics,
    PullResult,
    QueueOffsets,
    SendResult,
    TopicDescription,
    TopicInfo,
)

__all__ = ["BlockingClient", "BlockingConsumer", "BlockingProducer"]

Answer = TypeVar("Answer")
MAX_CROSSING = 10_000  # sends on their way to the loop's thread; past it `send` waits


class LoopThread:
    """An event loop on its own thread. A daemon, so that a script that dies does not hang."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="dledger-client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """What `work` returns; an interrupted caller cancels it.

        Raises:
            ClientClosed: the thread has ended.
        """
        if not self._thread.is_alive():
            work.close()
            raise ClientClosed("the client was closed")
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidArgument("a blocking call from a future's callback would wait for itself")
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # the loop was closed since
            work.close()
            raise ClientClosed("the client was closed") from None
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed("the client was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends loop and thread; what is still to be done there is given up."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)  # calls of other threads
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left))
        finally:
            self.loop.close()


class BlockingClient:
    """`Client` for callers without an event loop; may be used from several threads."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        broker_group: str | None,
        options: ClientOptions | None,
    ) -> None:
        self._client = Client.connect(bootstrap, broker_group, options)
        self._thread: LoopThread | None = None
        self._producers: list[BlockingProducer] = []

    @classmethod
    def connect(
        cls,
        bootstrap: str | Sequence[str],
        broker_group: str | None = None,
        options: ClientOptions | None = None,
    ) -> Self:
        """See `Client.connect`; enter it as a context manager."""
        return cls(bootstrap, broker_group, options)

    def __enter__(self) -> Self:
        self._thread = LoopThread()
        self._call(self._client.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread = self._thread
        if thread is None:
            return
        try:
            for producer in self._producers:
                producer.__exit__(kind, error, trace)
            thread.call(self._client.__aexit__(kind, error, trace))
        finally:
            self._thread = None
            thread.stop()

    def close(self) -> None:
        """See `Client.close`."""
        self.__exit__(None, None, None)

    def _call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        if self._thread is None:
            work.close()
            raise ClientClosed("the client is not open: use it as a context manager")
        return self._thread.call(work)

    # --- the verbs of `Client` ----------------------------------------------------------------

    def create_topic(self, name: str, *, queues: int = 4, if_not_exists: bool = False) -> TopicInfo:
        return self._call(
            self._client.create_topic(name, queues=queues, if_not_exists=if_not_exists)
        )

    def delete_topic(self, name: str, *, incarnation: int = 0) -> None:
        self._call(self._client.delete_topic(name, incarnation=incarnation))

    def topics(self) -> list[TopicInfo]:
        return self._call(self._client.topics())

    def describe_topic(self, name: str) -> TopicDescription:
        return self._call(self._client.describe_topic(name))

    def queue_offsets(self, topic: str, queue_id: int) -> QueueOffsets:
        return self._call(self._client.queue_offsets(topic, queue_id))

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        return self._call(self._client.offset_by_time(topic, queue_id, time_ms))

    def commit_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        reset: bool = False,
        incarnation: int = 0,
    ) -> dict[int, int]:
        committing = self._client.commit_offsets(
            group, topic, offsets, reset=reset, incarnation=incarnation
        )
        return self._call(committing)

    def fetch_offsets(self, group: str, topic: str, *, incarnation: int = 0) -> dict[int, int]:
        return self._call(self._client.fetch_offsets(group, topic, incarnation=incarnation))

    def get_message(
        self,
        *,
        message_id: str | None = None,
        topic: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
    ) -> Message:
        return self._call(
            self._client.get_message(
                message_id=message_id, topic=topic, queue_id=queue_id, offset=offset
            )
        )

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 256 << 10,
        hold_ms: int = 0,
    ) -> PullResult:
        return self._call(
            self._client.pull(
                topic,
                queue_id,
                offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                hold_ms=hold_ms,
            )
        )

    def leader(self) -> LeaderInfo:
        return self._call(self._client.leader())

    def status(self) -> list[NodeState]:
        return self._call(self._client.status())

    def transfer_leadership(self, target: str | None = None) -> LeaderInfo:
        return self._call(self._client.transfer_leadership(target))

    # --- producers and consumers --------------------------------------------------------------

    def producer(self, options: ProducerOptions | None = None) -> BlockingProducer:
        """See `Client.producer`."""

        async def make() -> Producer:
            return self._client.producer(options)

        producer = self._call(make())
        if self._thread is None:
            raise ClientClosed("the client was closed")
        blocking = BlockingProducer(self._thread, producer)
        self._producers.append(blocking)
        return blocking

    def consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        start: StartFrom = StartFrom.FIRST,
        queues: Sequence[int] | None = None,
        idle_timeout_s: float | None = None,
        options: ConsumerOptions | None = None,
    ) -> BlockingConsumer:
        """See `Client.consumer`."""

        async def make() -> Consumer:
            return self._client.consumer(
                topic,
                group=group,
                start=start,
                queues=queues,
                idle_timeout_s=idle_timeout_s,
                options=options,
            )

        return BlockingConsumer(self._call, self._call(make()))


class _Crossing(NamedTuple):
    """A send on its way to the loop's thread."""

    topic: str
    body: bytes
    labels: dict[str, Any]
    future: Future[SendResult]


class BlockingProducer:
    """`Producer` for threads; sends of one thread keep their order."""

    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer
        self._crossing: deque[_Crossing] = deque()
        self._moved = threading.Condition()
        self._mover: asyncio.Task[None] | None = None  # of the loop's thread
        self._moving = self._closed = False

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
    ) -> Future[SendResult]:
        """Accepts a message, waiting for room if need be; see `Producer.send`.

        Raises:
            ProducerClosed: after `close`.
        """
        labels = {"key": key, "tag": tag, "properties": properties, "queue_id": queue_id}
        crossing = _Crossing(topic, body, labels, Future())
        with self._moved:
            self._moved.wait_for(lambda: len(self._crossing) < MAX_CROSSING or self._closed)
            if self._closed:
                raise ProducerClosed("the producer was closed", subject=Subject.MESSAGE)
            self._crossing.append(crossing)
            if not self._moving:
                self._moving = True
                self._thread.loop.call_soon_threadsafe(self._start_moving)
        return crossing.future

    def register(self) -> Registration:
        """See `Producer.register`."""
        return self._thread.call(self._producer.register())

    def flush(self) -> None:
        """See `Producer.flush`."""
        self._thread.call(self._flush())

    def close(self) -> None:
        """See `Producer.close`."""
        self._refuse_sends()
        with suppress(ClientClosed):
            self._thread.call(self._close())

    def abort(self) -> None:
        """See `Producer.abort`."""
        self._refuse_sends()
        with suppress(ClientClosed):
            self._thread.call(self._abort())

    def _refuse_sends(self) -> None:
        with self._moved:
            self._closed = True
            self._moved.notify_all()

    def statistics(self) -> ProducerStatistics:
        """See `Producer.statistics`."""

        async def read() -> ProducerStatistics:
            return self._producer.statistics()

        return self._thread.call(read())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes; who is interrupted does not wait for the flush."""
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:
            self.abort()

    # --- on the loop's thread -----------------------------------------------------------------

    def _start_moving(self) -> None:
        self._mover = self._thread.loop.create_task(self._move())

    async def _move(self) -> None:
        """Hands over what has crossed, in order, until there is nothing more."""
        while True:
            with self._moved:
                if not self._crossing:
                    self._moving = False
                    return
                crossed = deque(self._crossing)
                self._crossing.clear()
                self._moved.notify_all()
            try:
                while crossed:
                    await self._hand_over(crossed[0])
                    crossed.popleft()
            finally:  # empty, unless this task was cancelled: the thread is being ended
                for crossing in crossed:
                    _settle(crossing.future, ClientClosed("the client was closed"))

    async def _hand_over(self, crossing: _Crossing) -> None:
        """The producer has it, or its future says why not."""
        while True:
            try:
                stored = self._producer.send(crossing.topic, crossing.body, **crossing.labels)
            except BufferFull:
                with suppress(ProducerClosed):  # the next attempt says so itself
                    await self._producer.room()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this message's
                _settle(crossing.future, client_error("sending a message", error))
                return
            else:
                stored.add_done_callback(_resolver(crossing.future))
                return

    async def _flush(self) -> None:
        if self._mover is not None:
            await asyncio.wait([self._mover])
        await self._producer.flush()

    async def _close(self) -> None:
        """What waits for room gets as long as what is buffered; then it fails."""
        if self._mover is not None:
            await asyncio.wait([self._mover], timeout=self._producer._close_timeout_s)
            if not self._mover.done():
                await self._abort()
        await self._producer.close()

    async def _abort(self) -> None:
        await self._producer.abort()
        if self._mover is not None:
            await asyncio.wait([self._mover])  # it finds the producer closed


def _resolver(future: Future[SendResult]) -> Callable[[asyncio.Future[SendResult]], None]:
    def resolve(stored: asyncio.Future[SendResult]) -> None:
        error = stored.exception()
        if error is not None:
            _settle(future, error)
        elif future.set_running_or_notify_cancel():
            future.set_result(stored.result())

    return resolve


def _settle(future: Future[SendResult], error: BaseException) -> None:
    """Fails the future, unless its caller has cancelled it."""
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)


class BlockingConsumer:
    """`Consumer` as an iterator."""

    def __init__(self, call: Callable[[Coroutine[Any, Any, Any]], Any], consumer: Consumer) -> None:
        self._call = call
        self._consumer = consumer
        self._current: Iterator[Message] = iter(())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        """The next message; crosses to the loop's thread once per batch.

        Raises:
            ClientError: a queue can't be read any more; nothing was skipped.
        """
        message = next(self._current, None)
        while message is None:
            self._current = iter(self._next_batch())
            message = next(self._current, None)
        self._consumer._hand_over(message)
        return message

    def _next_batch(self) -> list[Message]:
        batch: list[Message] = self._call(self._consumer._next_batch())
        if not batch:
            raise StopIteration
        return batch

    def commit(self) -> None:
        """See `Consumer.commit`."""
        self._call(self._consumer.commit())

    def close(self) -> None:
        """See `Consumer.close`."""
        self._call(self._consumer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
