"""A message that was handed out: in somebody's hand until it is acknowledged, or its time is over.

This owns one message's state, from its receipt to its end. It must never end one that somebody else
has by then: the brokers say so, and it is told as `ReceiptExpired`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Final, NamedTuple, Protocol

from dledger.client.arguments import seconds
from dledger.client.errors import ClientError, InvalidArgument, ReceiptExpired
from dledger.client.faults import client_error
from dledger.client.members.clock import clock
from dledger.client.results import Message
from dledger.wire import commands_pb2 as kpb

RENEWED_S: Final = 3_600.0  # for so long a message is kept hidden while it is worked on
FRESH_SHARE: Final = 2 / 3  # of `invisible_s`: with more left it isn't extended
LATE_SHARE: Final = 1 / 3  # with less left work doesn't begin before it is extended
REST_SHARE: Final = 1 / 10  # until it is extended anew, where that has failed
MAX_HIDDEN_S: Final = 12 * 3_600.0
_log = logging.getLogger("dledger.client")


class Settled(Enum):
    """How a message left the hand that it was in. Only what is finished never comes again."""

    FINISHED = "finished"
    RETURNED = "returned"  # by who had it
    WITHDRAWN = "withdrawn"  # as its consumer was closed


class Receipt(NamedTuple):
    """What names a message in somebody's hand."""

    incarnation: int
    queue_id: int
    handout: int
    offset: int


class Settles(Protocol):
    """The consumer, as far as its deliveries use it."""

    topic: str
    group: str
    invisible_s: float

    def settle(self, delivery: Delivery, what: kpb.Settling, hidden_s: float) -> Awaitable[None]:
        """Returns once the brokers have it; raises ReceiptExpired."""
        ...


class Delivery:
    """A message, and what becomes of it. `async with delivery as message`: hidden while inside;
    leaving acknowledges, an exception gives it back. Who enters late, with less than a third of
    `invisible_s` left, is first given more: by then others may have it (`ReceiptExpired`).

    Attributes:
        message: as it was sent.
        attempt: how often it was handed out, this time included.
    """

    __slots__ = (
        "_consumer",
        "_extended",
        "_extending",
        "_is_left",
        "_renewing",
        "attempt",
        "hidden_until_s",
        "message",
        "receipt",
        "settled",
    )

    def __init__(self, consumer: Settles, message: Message, attempt: int, receipt: Receipt) -> None:
        self.message = message
        self.attempt = attempt
        self.receipt = receipt
        # Then others may have it, unless it is extended: whoever keeps it must not begin anew.
        self.hidden_until_s = clock() + consumer.invisible_s
        self._consumer = consumer
        self._renewing: asyncio.Task[None] | None = None
        self._extended = asyncio.Event()  # looked at by the renewal, which sleeps until it is due
        self._extending = asyncio.Lock()  # one at a time: the brokers keep to the last word
        self._is_left = False  # by who was in it; closing settles what is in hand, too
        self.settled: Settled | None = None

    def __repr__(self) -> str:
        place = f"{self.message.topic}/{self.receipt.queue_id}@{self.receipt.offset}"
        return f"<Delivery {place}, attempt {self.attempt}>"

    def is_of(self, topic: str, group: str) -> bool:
        """Whether that group was handed it, out of that topic."""
        return (self._consumer.topic, self._consumer.group) == (topic, group)

    @property
    def is_settled(self) -> bool:
        """Whether it isn't in this hand any more, by its own word."""
        return self.settled is not None

    def on_settled(self, how: Settled) -> None:
        """The brokers have it. What is finished stays so, whatever else is told of it."""
        if self.settled is not Settled.FINISHED:
            self.settled = how

    def given_back(self) -> ReceiptExpired | None:
        """What to tell whoever takes it for his own, if it was given back: by who had it, or as
        the consumer was closed."""
        if self.settled in (None, Settled.FINISHED):
            return None
        closed = " as its consumer was closed" if self.settled is Settled.WITHDRAWN else ""
        return ReceiptExpired(f"{self!r} was given back{closed}: it is done once more")

    def _check_kept(self) -> None:
        if (expired := self.given_back()) is not None:
            raise expired

    async def ack(self) -> None:
        """It is done, and never handed out again. Acknowledging twice is all right. That is no
        fence: where its time was over and somebody else has done it since, or it is a dead letter,
        this returns as well.

        Raises:
            ReceiptExpired: somebody else has it now, or it was given back: by `retry`, or by
                closing the consumer. It is done once more.
        """
        if self.settled is Settled.FINISHED:
            return
        self._check_kept()
        await self._consumer.settle(self, kpb.SETTLING_FINISHED, 0)
        self.on_settled(Settled.FINISHED)

    async def retry(self, after_s: float = 0) -> None:
        """It may be handed out again, to anybody, after so many seconds."""
        await self._give_back(hidden_s("after_s", after_s), Settled.RETURNED)

    async def withdraw(self) -> None:
        """For the consumer, which is being closed: it may be handed out again, at once."""
        await self._give_back(0, Settled.WITHDRAWN)

    async def _give_back(self, after_s: float, how: Settled) -> None:
        if self.is_settled:
            return
        with suppress(ReceiptExpired):  # it was handed out again already
            await self._consumer.settle(self, kpb.SETTLING_RETURNED, after_s)
        self.on_settled(how)

    async def extend(self, seconds: float) -> None:
        """It stays hidden for so long, from now on; within `async with` for longer, if need be.

        Raises:
            ReceiptExpired: as `ack`.
        """
        wanted = hidden_s("seconds", seconds)
        self._check_extendable()
        async with self._extending:
            self._check_extendable()
            await self._extend(wanted)

    def _check_extendable(self) -> None:
        self._check_kept()
        if self.is_settled:
            raise InvalidArgument("the message was acknowledged")

    async def _extend(self, wanted_s: float) -> None:
        until_s = clock() + wanted_s  # the brokers count from when they hear of it
        self._note_hidden(min(until_s, self.hidden_until_s))  # they hear before they answer
        await self._consumer.settle(self, kpb.SETTLING_EXTENDED, wanted_s)
        self._note_hidden(until_s)

    def _note_hidden(self, until_s: float) -> None:
        self.hidden_until_s = until_s
        self._extended.set()

    def _left_s(self) -> float:
        return self.hidden_until_s - clock()

    # --- at work ------------------------------------------------------------------------------

    async def __aenter__(self) -> Message:
        self._check_enterable()
        invisible_s = self._consumer.invisible_s
        if self._left_s() < LATE_SHARE * invisible_s:
            await self.extend(invisible_s)
            self._check_enterable()
        loop = asyncio.get_running_loop()
        self._renewing = loop.create_task(self._renew(), name="delivery-renewal")
        return self.message

    def _check_enterable(self) -> None:
        if self._renewing is not None:
            raise InvalidArgument("the delivery is being worked on already")
        if self._is_left and self.is_settled:
            raise InvalidArgument("the message was acknowledged or given back")
        self._check_kept()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_left = True
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
        if kind is None:
            if self.settled is not Settled.RETURNED:  # that was said inside
                await self.ack()
            return
        try:
            await self.retry()
        except ClientError as failure:  # what the work raised is what its caller is told
            _log.warning("%r could not be given back: %s", self, failure)

    async def _renew(self) -> None:
        """Extends in time, again and again; for an hour at most. What the worker has extended by
        himself is left as it is for as long as it lasts."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + RENEWED_S
        invisible_s = self._consumer.invisible_s
        fresh_s = FRESH_SHARE * invisible_s
        while loop.time() < until_s:
            await self._until_stale(fresh_s)
            try:
                async with self._extending:  # the worker's own may be under way, and is left
                    if self.is_settled:  # whoever works on it knows, or is told as he leaves it
                        return
                    if self._left_s() <= fresh_s:
                        await self._extend(invisible_s)
            except ReceiptExpired:
                _log.warning("%r was handed out again while it was worked on", self)
                return
            except Exception as error:  # noqa: BLE001  ours, too: nobody waits for this task
                failure = client_error("keeping a message hidden", error)
                _log.warning("%r could not be kept hidden: %s", self, failure)
                await asyncio.sleep(REST_SHARE * invisible_s)

    async def _until_stale(self, fresh_s: float) -> None:
        """Returns when no more than that is left of its time, also where that is shorter than it
        was."""
        while (spare_s := self._left_s() - fresh_s) > 0:
            self._extended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(spare_s):
                    await self._extended.wait()


def hidden_s(name: str, value: float) -> float:
    """`value`, for how long a message is hidden.

    Raises:
        InvalidArgument: it is no number of seconds from 0 to 12 hours.
    """
    wanted = seconds(name, value)
    if not 0 <= wanted <= MAX_HIDDEN_S:
        raise InvalidArgument(f"{name} is {value!r}; wanted: 0 to {MAX_HIDDEN_S:.0f} seconds")
    return wanted
