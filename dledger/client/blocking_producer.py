"""The producer for threads; see `dledger.client.blocking`.

Messages cross to the loop's thread in one go: sends made while the loop is busy wake it once. This
owns what is on its way there, in order, and the futures of the callers' kind.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from dledger.client.epochs import Registration
from dledger.client.errors import (
    BufferFull,
    ClientClosed,
    ClientError,
    ProducerClosed,
    SendsFailed,
    Subject,
)
from dledger.client.failed_sends import FailedSends
from dledger.client.faults import client_error
from dledger.client.loop_thread import LoopThread
from dledger.client.producer import Producer
from dledger.client.results import NewMessage, ProducerStatistics, SendResult

MAX_CROSSING: Final = 10_000  # sends on their way to the loop's thread; past it `send` waits
MAX_FAILED: Final = 100_000  # failed futures kept until somebody looks, or is told


class _Sent(Future[SendResult]):
    """A message's future, which knows whether somebody has asked what became of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False

    def result(self, timeout: float | None = None) -> SendResult:
        """See `Future.result`."""
        self.asked = True
        try:
            return super().result(timeout)
        finally:
            self.asked = self.done()  # it may be the timeout that is over

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See `Future.exception`."""
        self.asked = True
        try:
            return super().exception(timeout)
        finally:
            self.asked = self.done()


class _Crossing(NamedTuple):
    """A send on its way to the loop's thread."""

    topic: str
    body: bytes
    labels: dict[str, Any]
    future: _Sent


class BlockingProducer:
    """`Producer` for threads; sends of one thread keep their order."""

    def __init__(self, thread: LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer
        self._crossing: deque[_Crossing] = deque()
        self._moved = threading.Condition()
        self._mover: asyncio.Task[None] | None = None  # of the loop's thread
        self._moving = self._closed = False
        self._failed: FailedSends[_Sent] = FailedSends(
            lambda sent: sent.asked, _Sent.exception, MAX_FAILED
        )

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
            Forked: in a process that was forked since.
        """
        self._thread.check()
        labels = {"key": key, "tag": tag, "properties": properties, "queue_id": queue_id}
        crossing = _Crossing(topic, body, labels, _Sent())
        with self._moved:
            self._moved.wait_for(lambda: len(self._crossing) < MAX_CROSSING or self._closed)
            if self._closed:
                raise ProducerClosed("the producer was closed", subject=Subject.MESSAGE)
            self._crossing.append(crossing)
            if not self._moving:
                self._moving = True
                self._thread.loop.call_soon_threadsafe(self._start_moving)
        return crossing.future

    def send_all(self, messages: Iterable[NewMessage]) -> int:
        """See `Producer.send_all`."""
        bulk = _Bulk()
        try:
            for message in messages:
                if bulk.has_failed:
                    break
                topic, body, key, tag, properties, queue_id = message
                bulk.watch(
                    self.send(
                        topic, body, key=key, tag=tag, properties=properties, queue_id=queue_id
                    )
                )
            return bulk.end()
        finally:
            bulk.leave()

    def room(self) -> None:
        """Returns when there is room for more. `send` waits for it by itself."""
        self._thread.call(self._producer.room())

    def register(self) -> Registration:
        """See `Producer.register`."""
        return self._thread.call(self._producer.register())

    def flush(self) -> None:
        """See `Producer.flush`."""
        self._thread.call(self._flush())

    def close(self) -> None:
        """See `Producer.close`."""
        if self._thread.is_of_another_process:
            return  # nothing here is this process's
        self._refuse_sends()
        with suppress(ClientClosed):
            self._thread.call(self._close())

    def abort(self) -> None:
        """See `Producer.abort`."""
        if self._thread.is_of_another_process:
            return
        self._refuse_sends()
        with suppress(ClientClosed):
            self._thread.call(self._abort())

    def _refuse_sends(self) -> None:
        with self._moved:
            self._closed = True
            self._moved.notify_all()

    @property
    def is_closed(self) -> bool:
        """Whether `close` or `abort` was called."""
        return self._closed

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
        """Closes; who is interrupted does not wait for the flush. An error of the caller's stays
        the one that is raised."""
        if kind is not None and not issubclass(kind, Exception):
            self.abort()
            return
        try:
            self.close()
        except SendsFailed as failed:
            if error is None:
                raise
            error.add_note(str(failed))

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
                    self._fail(crossing.future, ClientClosed("the client was closed"))

    async def _hand_over(self, crossing: _Crossing) -> None:
        """The producer has it, or its future says why not."""
        while True:
            try:
                stored = self._producer.send(crossing.topic, crossing.body, **crossing.labels)
            except BufferFull:
                with suppress(ProducerClosed):  # the next attempt says so itself
                    await self._producer.room()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this message's
                self._fail(crossing.future, client_error("sending a message", error))
                return
            else:
                stored.add_done_callback(partial(self._on_settled, crossing.future))
                return

    def _on_settled(self, future: _Sent, stored: asyncio.Future[SendResult]) -> None:
        error = stored.exception()
        if error is not None:
            self._fail(future, error)
        elif future.set_running_or_notify_cancel():
            future.set_result(stored.result())

    def _fail(self, future: _Sent, error: BaseException) -> None:
        """Fails the future, unless its caller has cancelled it."""
        if not future.done() and future.set_running_or_notify_cancel():
            future.set_exception(error)
            self._failed.add(future)

    async def _flush(self) -> None:
        if self._mover is not None:
            await asyncio.wait([self._mover])
        await self._producer.flush()
        await self._failed.tell()

    async def _close(self) -> None:
        """What waits for room gets as long as what is buffered; then it fails."""
        try:
            if self._mover is not None:
                await asyncio.wait([self._mover], timeout=self._producer._close_timeout_s)
                if not self._mover.done():
                    await self._end()
            await self._producer.close()
            await self._failed.tell()
        finally:
            self._failed.forget()

    async def _abort(self) -> None:
        try:
            await self._end()
        finally:
            self._failed.forget()

    async def _end(self) -> None:
        await self._producer.abort()
        if self._mover is not None:
            await asyncio.wait([self._mover])  # it finds the producer closed


class _Bulk:
    """What becomes of the messages of one `send_all`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending = self._stored = self._failed = 0
        self._errors: list[ClientError] = []
        self._watching = True

    @property
    def has_failed(self) -> bool:
        """Whether any message has."""
        return bool(self._failed)

    def leave(self) -> None:
        """Looks at no future any more: what fails from now on is `flush`'s and `close`'s."""
        self._watching = False

    def watch(self, future: Future[SendResult]) -> None:
        """`future` is of one more message."""
        with self._changed:
            self._pending += 1
        future.add_done_callback(self._on_settled)

    def end(self) -> int:
        """How many were stored, once each has its answer.

        Raises:
            SendsFailed: not all were.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)
        if self._errors:
            raise SendsFailed.of(self._errors, self._failed)
        return self._stored

    def _on_settled(self, future: Future[SendResult]) -> None:
        if not self._watching:
            return
        error = None if future.cancelled() else future.exception()
        with self._changed:
            self._pending -= 1
            if isinstance(error, ClientError):
                self._failed += 1
                if len(self._errors) < SendsFailed.MAX_FAILURES:
                    self._errors.append(error)
            else:
                self._stored += 1
            self._changed.notify_all()
