"""Registers a producer with the brokers when it has something to send, and again when it must.

One registration is under way at a time; whoever needs it waits for its end. A lost answer is asked
for with the same token, so that one registration is what comes of it. A producer whose name another
one has taken over is told so and never asks again: it would take the name back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import REGISTER_PRODUCER
from dledger.client.epochs import PRODUCER_ID_SIZE, Epochs, Registration
from dledger.client.errors import (
    ClientError,
    ProducerClosed,
    ProducerFenced,
    ServerError,
    UnknownProducer,
)
from dledger.client.faults import client_error, contained
from dledger.wire import broker_pb2 as pb


@dataclass(frozen=True, slots=True)
class Applicant:
    """Who is told how a registration ended.

    Attributes:
        on_name_forgotten: before `on_end`: the name's numbers begin anew.
        on_end: the error of one that failed; None: the newest epoch is registered.
    """

    on_name_forgotten: Callable[[ClientError], None]
    on_end: Callable[[ClientError | None], None]


class Registrar:
    """Registers the newest epoch of one producer.

    Args:
        timeout_s: how long one registration is tried for.
    """

    def __init__(
        self, broker_group: BrokerGroup, epochs: Epochs, timeout_s: float, applicant: Applicant
    ) -> None:
        self._broker_group = broker_group
        self._epochs = epochs
        self._timeout_s = timeout_s
        self._applicant = applicant
        self._task: asyncio.Task[None] | None = None
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._is_closed = False
        self._fenced: ProducerFenced | None = None

    def begin(self) -> None:
        """The newest epoch, which isn't registered, is going to be, or its applicant hears why
        not; never within this call."""
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._register())
            self._task.add_done_callback(self._on_ended)

    async def registered(self) -> Registration:
        """The newest registration, which is made if there is none.

        Raises:
            ClientError: there is none.
        """
        while not self._epochs.is_registered(self._epochs.newest):
            if self._is_closed:
                raise ProducerClosed("the producer was closed")
            self.begin()
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                self._waiters.pop(waiter, None)
        return self._epochs.registration(self._epochs.newest)

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        """Of one that was cancelled before it began nobody was told."""
        if self._task is task:
            self._task = None
            self._tell(ProducerClosed("the registration was cancelled"))

    async def _register(self) -> None:
        error: ClientError | None = None
        try:
            if self._fenced is not None:
                raise self._fenced.about_message(self._fenced.outcome)
            self._take(await self._ask())
        except asyncio.CancelledError:
            error = ProducerClosed("the registration was cancelled")
            raise
        except Exception as caught:  # noqa: BLE001 - those who wait must hear of it
            error = client_error("registering the producer", caught)
            if isinstance(error, ProducerFenced):
                self._fenced = error
        finally:
            self._task = None
            self._tell(error)

    def _tell(self, error: ClientError | None) -> None:
        for waiter in self._waiters:
            if not waiter.done() and error is None:
                waiter.set_result(None)
            elif not waiter.done() and error is not None:
                waiter.set_exception(error)
        if not self._is_closed:
            with contained("going on after a registration"):
                self._applicant.on_end(error)

    async def _ask(self) -> pb.RegisterProducerResponse:
        request = pb.RegisterProducerRequest(
            token=self._epochs.token, name=self._epochs.name, previous=self._epochs.previous_id
        )
        return await self._broker_group.call(
            REGISTER_PRODUCER, request, Effect.IDEMPOTENT, deadline_s=self._timeout_s
        )

    def _take(self, answer: pb.RegisterProducerResponse) -> None:
        if len(answer.producer_id) != PRODUCER_ID_SIZE:
            raise ServerError(f"a producer id of {len(answer.producer_id)} bytes was given")
        numbers = {(each.topic, each.queue_id): each.sequence for each in answer.next_sequences}
        topics = {each.topic: each.topic_incarnation for each in answer.next_sequences}
        before = self._epochs.newest - 1
        origin = self._epochs.registration(before).origin if before >= 0 else answer.origin
        self._epochs.on_registered(Registration(answer.producer_id, answer.origin, numbers, topics))
        if self._epochs.name and answer.origin != origin:
            text = f"the brokers had forgotten the producer {self._epochs.name!r}"
            self._applicant.on_name_forgotten(UnknownProducer(text))

    async def abort(self) -> None:
        """Ends what is under way, and whoever waits for it."""
        self._is_closed = True
        if self._task is not None:
            task = self._task
            task.cancel()
            await asyncio.wait([task])
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(ProducerClosed("the producer was closed"))
