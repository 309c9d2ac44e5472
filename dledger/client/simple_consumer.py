"""The simple consumer: any worker of a group, any message, one by one.

This owns the messages that its application has in hand, and whoever waits for some; the calls are
`Receives`'. What a receive that is cancelled brings all the same is kept for the next.
Acknowledgements of one moment share a call. Bounds: `MAX_…`; what is handed over is the
application's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Self

from dledger.client.arguments import flag, seconds, text, u32
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import SETTLE
from dledger.client.delivery import Delivery, Receipt, hidden_s
from dledger.client.errors import ClientClosed, ClientError, InvalidArgument, from_wire
from dledger.client.faults import fault
from dledger.client.members.clock import clock
from dledger.client.options import StartFrom
from dledger.client.receives import Receives, settlement
from dledger.client.results import Message
from dledger.outcome import Outcome
from dledger.records.reserved import MOST_ATTEMPTS
from dledger.wire import commands_pb2 as kpb
from dledger.wire import deliveries_pb2 as pb

MAX_RECEIVED: Final = 1_024
MAX_TOGETHER: Final = 1_024  # settlements of one call
MAX_TRACKED: Final = 20_000  # in hand, to be given back at the end; older ones time out


class _Settling(NamedTuple):
    """A message whose fate is on its way to the brokers."""

    incarnation: int
    wish: pb.Settlement
    done: asyncio.Future[None]


class SimpleConsumer:
    """Receives single messages for a group; closed with the client at the latest: what is in hand
    then is given back.

    Args:
        broker_group: the client's, for what is in hand.
        lasting_group: the same until the client begins to close, for what is new.
        start: where a group that is new in the topic begins.
        forget: is told once this is closed.
    """

    def __init__(
        self,
        broker_group: Callable[[], BrokerGroup],
        lasting_group: Callable[[], BrokerGroup],
        topic: str,
        group: str,
        *,
        invisible_s: float,
        in_order: bool,
        start: StartFrom | datetime | None,
        max_attempts: int | None,
        forget: Callable[[SimpleConsumer], None],
    ) -> None:
        self.topic = text("topic name", topic)
        self.group = text("group", group)
        self.invisible_s = hidden_s("invisible_s", invisible_s)
        if self.invisible_s < 0.001:
            raise InvalidArgument("invisible_s is too short for any work: 0.001 at least")
        if max_attempts is not None and not 0 < u32("max_attempts", max_attempts) <= MOST_ATTEMPTS:
            raise InvalidArgument(f"max_attempts is {max_attempts}; wanted: 1 to {MOST_ATTEMPTS}")
        self._broker_group = broker_group
        first, time_ms = _start_of(start)
        wish = pb.ReceiveRequest(
            group=self.group,
            topic=self.topic,
            fifo=flag("in_order", in_order),
            start=first,
            start_time_ms=time_ms,
            max_attempts=max_attempts or 0,
        )
        self._lasting_group = lasting_group
        self._receives = Receives(lasting_group, self, wish)
        self._forget = forget
        self._kept: deque[Delivery] = deque()  # of receives that were cancelled
        self._waiters: dict[asyncio.Future[None], None] = {}  # of receives that would take those
        self._in_hand: dict[Delivery, None] = {}
        self._receiving: dict[asyncio.Future[list[Delivery]], None] = {}
        self._settling: list[_Settling] = []
        self._sender: asyncio.Task[None] | None = None
        self._is_closing = self._is_closed = False
        self._closing = asyncio.Lock()

    # --- receiving ----------------------------------------------------------------------------

    async def receive(
        self, count: int = 1, *, wait_s: float = 15, done: Sequence[Delivery] = ()
    ) -> list[Delivery]:
        """Up to `count` messages, or [] if none came in time.

        Args:
            count: 1 to 1,024.
            wait_s: for the first one.
            done: deliveries that are acknowledged by the same call; it costs them nothing.

        Raises:
            ReceiptExpired: one of `done` was handed out again before, or given back; what came is
                the next call's.
            ClientClosed: the consumer was closed, meanwhile too: then `done` is acknowledged all
                the same, if it can be.
            ClientError: the brokers can't be asked: never [] instead.
        """
        if not 0 < u32("count", count) <= MAX_RECEIVED:
            raise InvalidArgument(f"count is {count}; wanted: 1 to {MAX_RECEIVED}")
        wait_s = max(0.0, seconds("wait_s", wait_s))
        if not isinstance(done, Iterable):
            raise InvalidArgument(f"done is of type {type(done).__name__}; wanted: deliveries")
        done = tuple(done)  # of what can be gone over only once, too
        for each in done:
            # Its numbers may be those of a message that somebody has here.
            if not isinstance(each, Delivery) or not each.is_of(self.topic, self.group):
                raise InvalidArgument(
                    f"{each!r} isn't of topic {self.topic!r}, group {self.group!r}"
                )
        self._check_open()
        if self._is_closing:
            raise ClientClosed("the consumer is being closed")
        if done:
            await self._settle_if_closing(done)
        kept = self._of_kept(count)
        if kept and not done:
            return kept
        # Who has something already waits for his acknowledgements, and for nothing else.
        left, wait_s = max(1, count - len(kept)), 0.0 if kept else min(wait_s, 3_600.0)
        task = asyncio.ensure_future(self._receive(left, wait_s, done))
        self._receiving[task] = None
        task.add_done_callback(self._receiving.pop)
        try:
            # Acknowledgements have to be heard of; what others have left may be taken instead.
            found = await (self._first_of(task, count) if not done else asyncio.shield(task))
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            self._put_back(kept)
            if task.cancelled() and (caller is None or not caller.cancelling()):
                # Brokers settle first, and then hold the call; and closing acknowledges the rest.
                outcome = Outcome.MAY_HAVE_HAPPENED if done else Outcome.DID_NOT_HAPPEN
                raise ClientClosed("the consumer was closed", outcome=outcome) from None
            self._give_up(task)
            raise
        except BaseException:
            self._put_back(kept)
            raise
        found = [*self._still_hidden(kept), *found]
        self.keep(found[count:])
        return found[:count]

    async def _settle_if_closing(self, done: Sequence[Delivery]) -> None:
        """Returns if the client isn't being closed. Else no receive is made any more for these to
        ride on: they are acknowledged by themselves.

        Raises:
            ClientClosed: it is.
            ClientError: one of them couldn't be acknowledged.
        """
        try:
            self._lasting_group()
        except ClientClosed as closed:
            ends = await asyncio.gather(*(each.ack() for each in done), return_exceptions=True)
            for end in ends:
                if end is not None:
                    raise end from None
            raise closed.in_doubt() from None  # these are acknowledged

    async def _first_of(self, task: asyncio.Future[list[Delivery]], count: int) -> list[Delivery]:
        """What the receive brings, or, if that comes first, what one brings that was cancelled: it
        has asked before, and is given what there is."""
        while True:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                await asyncio.wait((task, waiter), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._waiters.pop(waiter, None)
            if task.done():
                return await task
            if kept := self._of_kept(count):
                self._give_up(task)
                return kept

    def _give_up(self, task: asyncio.Future[list[Delivery]]) -> None:
        """Nobody waits for the receive: it is the last one of its kind, and what it still brings
        the next one has."""
        task.add_done_callback(self._keep)
        self._receives.give_up(task)

    def _keep(self, task: asyncio.Future[list[Delivery]]) -> None:
        """Nobody waits for what the receive brings: the next one has it."""
        if not task.cancelled() and task.exception() is None:
            self.keep(task.result())

    def keep(self, deliveries: Sequence[Delivery]) -> None:
        """Nobody was given these: whoever receives has them, while they are hidden from others."""
        if not self._is_closing:
            self._kept.extend(deliveries)
            self._wake_if_kept()

    def _put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Who was to have these goes without: they are the next one's, before what came later."""
        if not self._is_closing:
            self._kept.extendleft(reversed(deliveries))
            self._wake_if_kept()

    def _wake_if_kept(self) -> None:
        for waiter in self._waiters if self._kept else ():
            if not waiter.done():
                waiter.set_result(None)

    def _of_kept(self, count: int) -> list[Delivery]:
        """Up to so many of those that nobody was given, and that nobody else may have by now."""
        found: list[Delivery] = []
        while self._kept and len(found) < count:
            found += self._still_hidden([self._kept.popleft()])
        return found

    def _still_hidden(self, kept: Sequence[Delivery]) -> list[Delivery]:
        """Those that nobody else may have by now; the others aren't in hand any more."""
        found, now_s = [], clock()
        for each in kept:
            if now_s < each.hidden_until_s:
                found.append(each)
            else:
                self._in_hand.pop(each, None)
        return found

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Messages one by one, for ever: until the consumer is closed."""
        with suppress(ClientClosed):
            while True:
                for delivery in await self.receive():
                    yield delivery

    def _receive(
        self, count: int, wait_s: float, done: Sequence[Delivery]
    ) -> Awaitable[list[Delivery]]:
        return self._receives.ask(count, wait_s, done)

    def made(self, message: Message, attempt: int, receipt: Receipt) -> Delivery:
        """For `Receives`: a message that was handed out."""
        return Delivery(self, message, attempt, receipt)

    def on_settled(self, deliveries: Sequence[Delivery]) -> None:
        """For `Receives`: they aren't in hand any more."""
        for each in deliveries:
            self._in_hand.pop(each, None)

    def track(self, deliveries: Sequence[Delivery]) -> None:
        """For `Receives`: they are in hand."""
        self._in_hand.update(dict.fromkeys(deliveries))
        while len(self._in_hand) > MAX_TRACKED:
            del self._in_hand[next(iter(self._in_hand))]

    # --- settling -----------------------------------------------------------------------------

    async def settle(self, delivery: Delivery, what: kpb.Settling, hidden_s: float) -> None:
        """For deliveries: returns once the brokers have it.

        Raises:
            ReceiptExpired: the message is in another hand.
        """
        self._check_open()
        if what != kpb.SETTLING_EXTENDED:
            self._in_hand.pop(delivery, None)
        loop = asyncio.get_running_loop()
        receipt = delivery.receipt
        wish = settlement(receipt, what, hidden_s)
        settling = _Settling(receipt.incarnation, wish, loop.create_future())
        self._settling.append(settling)
        if self._sender is None:
            self._sender = loop.create_task(self._send_settled(), name="settling")
            self._sender.add_done_callback(self._on_sender_ended)
        await settling.done

    async def _send_settled(self) -> None:
        """Until nothing waits: what came while one call was under way shares the next. Whatever
        ends it is told to all who wait, those whose turn had not come among them."""
        try:
            while self._settling:
                incarnation = self._settling[0].incarnation
                same = [each for each in self._settling if each.incarnation == incarnation]
                together = same[:MAX_TOGETHER]
                chosen = set(map(id, together))
                self._settling = [each for each in self._settling if id(each) not in chosen]
                await self._settle(incarnation, together)
        except BaseException as error:
            self._fail_settling(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._sender = None

    def _on_sender_ended(self, sender: asyncio.Task[None]) -> None:
        """Of one that was cancelled before it began nobody was told."""
        if self._sender is sender:
            self._sender = None
            self._fail_settling(ClientClosed("settling was cancelled"))

    def _fail_settling(self, error: BaseException) -> None:
        left, self._settling = self._settling, []
        told = _told(error, Outcome.DID_NOT_HAPPEN)
        for each in left:
            _fail(each.done, told)

    async def _settle(self, incarnation: int, together: Sequence[_Settling]) -> None:
        request = pb.SettleRequest(
            group=self.group,
            topic=self.topic,
            topic_incarnation=incarnation,
            settled=[each.wish for each in together],
        )
        lost: list[None] = []  # for each attempt that may have happened
        doubt = partial(lost.append, None)
        try:
            answer = await self._broker_group().call(
                SETTLE, request, Effect.IDEMPOTENT, on_doubt=doubt
            )
        except BaseException as error:
            told = _told(error, Outcome.MAY_HAVE_HAPPENED)
            for each in together:
                _fail(each.done, told)
            if not isinstance(error, ClientError):
                raise
            return
        late = {each.position: each.error for each in answer.unsettled}
        for position, each in enumerate(together):
            if position in late:
                refused = from_wire(late[position])
                _fail(each.done, refused.in_doubt() if lost else refused)
            elif not each.done.done():
                each.done.set_result(None)

    # --- the end ------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the consumer is closed")

    async def close(self) -> None:
        """Receives end, what was to be acknowledged by one is, and what else is in hand is given
        back at once. What can't be within `deadline_s`, or what a receive that was under way was
        given, comes back when its time is over. Who closes second, as the client does, returns no
        sooner: hanging up, it would cut off what is being given back."""
        async with self._closing:
            if not self._is_closed:
                await self._close()

    async def _close(self) -> None:
        self._is_closing = True
        for task in list(self._receiving):
            task.cancel()
        done = self._receives.close()
        self._kept.clear()
        for each in done:
            self._in_hand.pop(each, None)
        await self._settle_all(done, [each for each in self._in_hand if not each.is_settled])
        self._is_closed = True
        self._in_hand.clear()
        self._forget(self)

    async def _settle_all(self, done: Sequence[Delivery], in_hand: Sequence[Delivery]) -> None:
        """Whatever becomes of one call, the others are made; within the time of one. So is what
        others have begun with, such as a close that was cancelled."""
        if not (done or in_hand or self._sender):
            return
        try:
            deadline_s = self._broker_group().options.deadline_s
        except ClientClosed:  # they come back by themselves
            return
        try:
            async with asyncio.timeout(deadline_s):
                settled = (*(each.ack() for each in done), *(each.withdraw() for each in in_hand))
                ends = await asyncio.gather(*settled, return_exceptions=True)
                if self._sender is not None:
                    await asyncio.wait([self._sender])
        except TimeoutError:  # they come back by themselves
            if self._sender is not None:
                self._sender.cancel()
                await asyncio.wait([self._sender])
            return
        ours = (e for e in ends if isinstance(e, Exception) and not isinstance(e, ClientError))
        if (error := next(ours, None)) is not None:
            fault("settling what was in hand", error)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _told(error: BaseException, outcome: Outcome) -> BaseException:
    """What whoever waits is told: it was our task that was cancelled, and not his."""
    if isinstance(error, asyncio.CancelledError):
        return ClientClosed("settling was cancelled", outcome=outcome)
    return error


def _fail(done: asyncio.Future[None], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # whoever awaited it may be gone


def _start_of(start: StartFrom | datetime | None) -> tuple[kpb.StartFrom, int]:
    """Where a group that is new begins, as the wire says it.

    Raises:
        InvalidArgument: a time without a time zone, or a start that groups haven't.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidArgument("start is a time without a time zone")
        return kpb.START_TIME, int(start.timestamp() * 1_000)
    if start not in (None, StartFrom.FIRST, StartFrom.LAST):
        raise InvalidArgument("a group starts at the first message, at the last, or at a time")
    return (kpb.START_LAST if start is StartFrom.LAST else kpb.START_FIRST), 0
