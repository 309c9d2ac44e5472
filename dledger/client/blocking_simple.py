"""The simple consumer for callers without an event loop; see `dledger.client.blocking`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from dledger.client.delivery import Delivery
from dledger.client.errors import ClientClosed, Forked
from dledger.client.loop_thread import LoopThread
from dledger.client.results import Message
from dledger.client.simple_consumer import SimpleConsumer


class BlockingDelivery:
    """`Delivery`, with `with`. The message is kept hidden by the client's own thread."""

    def __init__(self, thread: LoopThread, delivery: Delivery) -> None:
        self._thread = thread
        self.delivery = delivery

    @property
    def message(self) -> Message:
        """As it was sent."""
        return self.delivery.message

    @property
    def attempt(self) -> int:
        """How often it was handed out, this time included."""
        return self.delivery.attempt

    def ack(self) -> None:
        """See `Delivery.ack`."""
        self._thread.call(self.delivery.ack())

    def retry(self, after_s: float = 0) -> None:
        """See `Delivery.retry`."""
        self._thread.call(self.delivery.retry(after_s))

    def extend(self, seconds: float) -> None:
        """See `Delivery.extend`."""
        self._thread.call(self.delivery.extend(seconds))

    def __enter__(self) -> Message:
        return self._thread.call(self.delivery.__aenter__())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.call(self.delivery.__aexit__(kind, error, trace))


class BlockingSimpleConsumer:
    """`SimpleConsumer` as an iterator. Several threads may receive at once."""

    def __init__(self, thread: LoopThread, consumer: SimpleConsumer) -> None:
        self._thread = thread
        self._consumer = consumer

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._consumer.topic

    @property
    def group(self) -> str:
        """The group's name."""
        return self._consumer.group

    def receive(
        self, count: int = 1, *, wait_s: float = 15, done: Sequence[BlockingDelivery] = ()
    ) -> list[BlockingDelivery]:
        """See `SimpleConsumer.receive`."""
        finished = [each.delivery for each in done]
        found: list[Delivery] = []

        async def receiving() -> None:
            found.extend(await self._consumer.receive(count, wait_s=wait_s, done=finished))

        try:
            self._thread.call(receiving())
        except BaseException:  # an interruption may come when the messages are here already
            with suppress(ClientClosed, Forked):
                self._thread.post(partial(self._consumer.keep, found))
            raise
        return [BlockingDelivery(self._thread, each) for each in found]

    def __iter__(self) -> Iterator[BlockingDelivery]:
        """Messages one by one, for ever: until the consumer is closed, by another thread."""
        with suppress(ClientClosed):
            while True:
                yield from self.receive()

    def close(self) -> None:
        """See `SimpleConsumer.close`."""
        if self._thread.is_of_another_process:
            return
        with suppress(ClientClosed):
            self._thread.call(self._consumer.close())

    def __enter__(self) -> Self:
        self._consumer._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
