"""What a client has made and closes at the latest with itself: producers and consumers.

This owns who there is, and the order in which they end: what runs handlers first, which may need
producers for what they are at, then the producers, all at the same time. Whatever happens to one,
each of the others is ended.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TypeVar

from dledger.client.consumer import PullConsumer
from dledger.client.errors import InvalidArgument
from dledger.client.failed_sends import closed_together
from dledger.client.members.push import PushConsumer
from dledger.client.producer import Producer
from dledger.client.simple_consumer import SimpleConsumer

W = TypeVar("W")


class Workers:
    """Producers and consumers that aren't closed yet."""

    def __init__(self) -> None:
        self.producers: list[Producer] = []
        self.consumers: list[PullConsumer] = []
        self.push_consumers: list[PushConsumer] = []
        self.simple_consumers: list[SimpleConsumer] = []

    def end_with(self, closing: AsyncExitStack) -> None:
        """Each of those that there are now is ended when `closing` is left, producers first."""
        for worker in list(self.push_consumers):
            closing.push_async_callback(worker.abort)
        for consumer in list(self.consumers):
            closing.push_async_callback(consumer.close)
        for simple in list(self.simple_consumers):
            closing.push_async_callback(simple.close)
        for producer in list(self.producers):
            closing.push_async_callback(producer.abort)

    def check_outside(self) -> None:
        """Returns where one may wait for the end of all.

        Raises:
            InvalidArgument: in a handler of one of them, which would be waited for, too.
        """
        if any(worker._is_here for worker in tuple(self.push_consumers)):
            raise InvalidArgument(
                "closing the client within a handler would wait for that handler: stop the "
                "consumer, and close the client when `run` has returned"
            )

    async def stop_work(self) -> None:
        """Handlers have done what they were at; they may need producers for that."""
        await asyncio.gather(*(worker.close() for worker in list(self.push_consumers)))

    async def flush(self) -> None:
        """Producers are closed, with nothing left to send.

        Raises:
            SendsFailed: messages failed, and nobody has looked at their futures.
        """
        await closed_together([producer.close() for producer in self.producers])


def forget(workers: list[W], worker: W) -> None:
    """`worker` is closed: it isn't among them any more, if it was."""
    if worker in workers:
        workers.remove(worker)
