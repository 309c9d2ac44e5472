"""The pull consumer: hands a topic's messages over in queue order, and commits what is finished.

This owns who is given which message; what there is to give, and what a commit covers, is its
reading's: of queues that the application named (`dledger.client.topic_reading`), or of those that
it holds as a member of its group (`dledger.client.members.reading`). It must never hand a message
to two loops, skip one on its own, or commit one whose work may not be done.

`commit()` covers what is finished. `commit(message)` is the application's own word: everything of
its queue up to and with that message. What carries none of the wanted tags is passed over here and
not at the broker. Order holds within a queue, not between queues. Delivery is at least once.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from dledger.client.errors import ClientClosed, ConsumerInUse, InvalidArgument
from dledger.client.hooks import HookFailures, Surrounding
from dledger.client.options import ConsumerOptions, StartFrom
from dledger.client.owner import Owner
from dledger.client.results import Message

Item = TypeVar("Item")


class Reading(Protocol):
    """What a consumer has of its queues. What was given last is in hand until more is asked for."""

    topic: str
    crosses_threads: bool

    def next_message(self) -> Message | None:
        """One of those that are here; None: `fill` first."""

    def next_messages(self) -> list[Message] | None:
        """All of one queue's that are here; None: `fill` first."""

    def arrived(self) -> None:
        """The application has what was given last; it can't be taken back any more."""

    def take_back(self) -> None:
        """What is in hand never reached the application; it is given next."""

    async def fill(self) -> bool:
        """There are messages to hand over; false when the iteration is over."""

    @property
    def positions(self) -> dict[int, int]:
        """See `PullConsumer.positions`."""

    @property
    def skipped(self) -> dict[int, int]:
        """See `PullConsumer.skipped`."""

    async def commit(
        self, message: Message | None = None, *, deadline_s: float | None = None
    ) -> None:
        """See `PullConsumer.commit`."""

    async def lag(self, *, deadline_s: float | None = None) -> dict[int, int]:
        """See `PullConsumer.lag`."""

    async def seek(self, queue_id: int, to: int | StartFrom | datetime) -> None:
        """See `PullConsumer.seek`."""

    def pause(self, *queue_ids: int) -> None:
        """See `PullConsumer.pause`."""

    def resume(self, *queue_ids: int) -> None:
        """See `PullConsumer.resume`."""

    def stop(self) -> None:
        """Nothing more is given."""

    async def close(self) -> None:
        """Stops; no task is left behind."""


class Loop(Generic[Item]):
    """One loop over a consumer: what `async for` holds while it runs. The consumer knows it by a
    weak reference, so a loop that was left by `break` is over at once."""

    __slots__ = ("__weakref__", "_consumer", "_take")

    def __init__(self, consumer: PullConsumer, take: Callable[[], Awaitable[Item]]) -> None:
        self._consumer = consumer
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        return await self._consumer._within(self, self._take)


class PullConsumer:
    """Messages of a topic, as an async iterator; made by `Client.pull_consumer`.

    Use it as a context manager, or call `close`; the client closes it at the latest. One loop at
    a time: a second one is refused. To work in parallel, hand messages on from one loop.
    """

    def __init__(
        self,
        reading: Reading,
        options: ConsumerOptions,
        on_closed: Callable[[PullConsumer], None],
    ) -> None:
        self.topic = reading.topic
        self._reading = reading
        self._on_closed = on_closed
        self._owner = Owner()
        self._loop: weakref.ref[object] | None = None  # the loop over this consumer, if any lives
        self._taking = self._is_closed = False
        told = asyncio.get_running_loop().call_exception_handler
        around = options.around
        failures = HookFailures("around", told)
        self._surrounding = None if around is None else Surrounding(around, failures)

    # --- loops --------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return Loop(self, self._one)

    def batches(self) -> AsyncIterator[list[Message]]:
        """The messages in lists, as they were fetched: one queue's each, in order."""
        return Loop(self, self._batch)

    async def __anext__(self) -> Message:
        """The next message, outside of any loop.

        Raises:
            ConsumerInUse: a loop over this consumer has not ended.
            ClientError: a queue can't be read any more; nothing was skipped.
        """
        return await self._within(None, self._one)

    async def _within(self, loop: Loop[Item] | None, take: Callable[[], Awaitable[Item]]) -> Item:
        """What `take` gives, to the only loop there is."""
        self._owner.check()
        self._enter(loop)
        try:
            if self._surrounding is not None:
                self._surrounding.leave()
            return await take()
        except BaseException:  # its traceback would keep the loop alive, which is over
            self._loop = None
            raise
        finally:
            self._taking = False

    def _enter(self, loop: object | None) -> None:
        """`loop` is the one that reads; None: nobody's, for one message."""
        self._refuse_beside(loop)
        self._loop = None if loop is None else weakref.ref(loop)
        self._taking = True

    def _refuse_beside(self, loop: object | None) -> None:
        """Returns if no other loop reads.

        Raises:
            ConsumerInUse: one does.
        """
        other = None if self._loop is None else self._loop()
        if self._taking or (other is not None and other is not loop):
            raise ConsumerInUse(
                f"another loop reads this consumer of {self.topic!r}; each loop needs a consumer "
                "of its own, or hands its messages on"
            )

    async def _one(self) -> Message:
        while (message := self._next_message()) is None:
            if not await self._fill():
                raise StopAsyncIteration
        if self._surrounding is not None:
            try:
                self._surrounding.enter(message)
            except BaseException:  # nobody is given it now: counted as finished it were forgotten
                self._reading.take_back()
                raise
        return message

    async def _batch(self) -> list[Message]:
        while (batch := self._next_messages()) is None:
            if not await self._fill():
                raise StopAsyncIteration
        return batch

    def _next_message(self) -> Message | None:
        return self._reading.next_message()

    def _next_messages(self) -> list[Message] | None:
        return self._reading.next_messages()

    async def _fill(self) -> bool:
        return await self._reading.fill()

    # --- what is in hand, and what is finished ------------------------------------------------

    @property
    def positions(self) -> dict[int, int]:
        """By queue: one past the last message handed over, for queues that gave any. Finished or
        not: `commit` knows the difference."""
        return self._reading.positions

    @property
    def skipped(self) -> dict[int, int]:
        """By queue: how many messages were passed over because the next one had gone; see
        `ConsumerOptions.when_gone`. Queues without any aren't there."""
        return self._reading.skipped

    async def commit(
        self, message: Message | None = None, *, deadline_s: float | None = None
    ) -> None:
        """The consumer group's offsets cover what is finished.

        Args:
            message: one that this consumer gave, and whose work is done: its queue is committed
                up to and with it. None: every message but the one (or the batch) in hand.

        Raises:
            InvalidArgument: the consumer is of no consumer group, or never gave this message.
            LeaseLost, SessionEnded: a queue isn't this member's any more, and what was finished
                there wasn't committed before: it comes again, to whoever has it. The others are
                committed. Told once.
        """
        await self._reading.commit(message, deadline_s=deadline_s)

    async def lag(self, *, deadline_s: float | None = None) -> dict[int, int]:
        """By queue that is read here: how many messages are not finished, wanted or not."""
        return await self._reading.lag(deadline_s=deadline_s)

    # --- other places -------------------------------------------------------------------------

    async def seek(self, queue_id: int, to: int | StartFrom | datetime) -> None:
        """The queue's next message is the one at `to`; what was fetched of it is dropped. Works
        after a queue failed, too. Committed offsets stay: they only go forward, and what was
        finished and not committed before is not committed by a later `commit()`.

        Args:
            to: an offset, an end of the queue, or the first message stored at or after a time.

        Raises:
            QueueNotFound: the consumer doesn't read this queue.
        """
        await self._reading.seek(queue_id, to)

    def pause(self, *queue_ids: int) -> None:
        """Withholds these queues' messages, from now on; what is fetched waits, within bounds.
        A queue that has messages waiting is not idle."""
        self._reading.pause(*queue_ids)

    def resume(self, *queue_ids: int) -> None:
        """Hands these queues' messages over again, from where they were."""
        self._reading.resume(*queue_ids)

    # --- the end ------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the consumer is closed")

    def stop(self) -> None:
        """Ends the iteration; what was fetched and not handed over is dropped."""
        self._reading.stop()

    async def close(self) -> None:
        """Stops; no task is left behind. Commits nothing, unless `commit_every_s` says so: then
        once more, and if that fails what it was to cover comes again, and the log is told.
        `commit`, called before, raises."""
        await self._close(None, None, None)

    async def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes; what is around the message in hand is left with the error that ended its loop."""
        self._is_closed = True
        if self._surrounding is not None:
            self._surrounding.leave(kind, error, trace)
        self.stop()
        try:
            await self._reading.close()
        finally:
            self._on_closed(self)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close(kind, error, trace)


def check_group(
    group: str | None,
    start: StartFrom | datetime | None,
) -> None:
    """Refuses what makes no sense."""
    if start is not None and not isinstance(start, StartFrom | datetime):
        raise InvalidArgument(f"start is {start!r}; wanted: FIRST, LAST, COMMITTED or a time")
    if group == "":
        raise InvalidArgument("the consumer group's name is empty")
    if start is StartFrom.COMMITTED and group is None:
        raise InvalidArgument("starting at committed offsets needs a consumer group")
