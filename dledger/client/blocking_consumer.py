"""The consumer for callers without an event loop; see `dledger.client.blocking`."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from dledger.client.consumer import PullConsumer
from dledger.client.errors import ClientClosed, ConsumerInUse
from dledger.client.hooks import HookFailures, Surrounding
from dledger.client.loop_thread import LoopThread
from dledger.client.options import ConsumerOptions, StartFrom
from dledger.client.results import Message

Item = TypeVar("Item")


class _BlockingLoop(Generic[Item]):
    """What `for` holds while it runs. The consumer knows it as it knows an asynchronous loop."""

    __slots__ = ("__weakref__", "_consumer", "_take")

    def __init__(self, consumer: BlockingConsumer, take: Callable[[], Item | None]) -> None:
        self._consumer = consumer
        self._take = take

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        return self._consumer._step(self._take, self)


class _Turn:
    """One call for a message; its owner says that it is over by a single store, which nothing can
    come between."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class BlockingConsumer:
    """`PullConsumer` as an iterator, for one thread at a time.

    Messages cross to the caller's thread in batches; what an interrupted call had fetched is
    given by the next one.

    Args:
        consumer: made without the hook `around`, which runs in the caller's thread.
        options: as its user gave them.
    """

    def __init__(
        self, thread: LoopThread, consumer: PullConsumer, options: ConsumerOptions
    ) -> None:
        self._thread = thread
        self._consumer = consumer
        self._entry = threading.RLock()  # of `_turn`
        self._turn = _Turn()
        self._turn.is_over = True
        self._has_arrived = True  # what was taken last is its loop's, or nothing was
        around = options.around
        failures = HookFailures("around", thread.report)
        self._surrounding = None if around is None else Surrounding(around, failures)

    # --- loops --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message]:
        return _BlockingLoop(self, self._next_message)

    def batches(self) -> Iterator[list[Message]]:
        """See `PullConsumer.batches`."""
        return _BlockingLoop(self, self._next_messages)

    def __next__(self) -> Message:
        """The next message, outside of any loop.

        Raises:
            ConsumerInUse: a loop over this consumer has not ended.
            ClientError: a queue can't be read any more; nothing was skipped.
        """
        return self._step(self._next_message, None)

    def _next_message(self) -> Message | None:
        message = self._taken(self._consumer._next_message)
        if message is not None and self._surrounding is not None:
            self._surrounding.enter(message)
        return message

    def _next_messages(self) -> list[Message] | None:
        return self._taken(self._consumer._next_messages)

    def _taken(self, take: Callable[[], Item]) -> Item:
        """What `take` gives: of a member, whose queues may go at any time, on the loop's thread."""
        if self._consumer._reading.crosses_threads:
            return self._took(take)

        async def taking() -> Item:
            return self._took(take)

        return self._thread.call(taking())

    def _took(self, take: Callable[[], Item]) -> Item:
        """What `take` gives. A call that was interrupted on its way back had taken something that
        nobody was given: counted as finished now it would be forgotten."""
        if not self._has_arrived:
            self._consumer._reading.take_back()
        else:
            self._consumer._reading.arrived()
        self._has_arrived = False
        item = take()
        self._has_arrived = item is None
        return item

    def _step(self, take: Callable[[], Item | None], loop: object | None) -> Item:
        """What `take` gives; crosses to the loop's thread when nothing is here."""
        self._thread.check()
        turn = _Turn()
        try:
            self._begin(turn)
            item = self._stepped(take, loop)
            self._has_arrived = True  # nothing is called from here on: nobody can interrupt
            return item
        finally:
            turn.is_over = True

    def _begin(self, turn: _Turn) -> None:
        """It is `turn`'s, unless another one isn't over."""
        with self._entry:
            if not self._turn.is_over:
                raise ConsumerInUse(f"another thread reads this consumer of {self.topic!r}")
            self._turn = turn

    def _stepped(self, take: Callable[[], Item | None], loop: object | None) -> Item:
        self._consumer._refuse_beside(loop)
        try:
            self._consumer._loop = None if loop is None else weakref.ref(loop)
            self._leave(None, None, None)
            while (item := take()) is None:
                if not self._thread.call(self._consumer._fill()):
                    raise StopIteration
            return item
        except BaseException:  # its traceback would keep the loop alive, which is over
            self._consumer._loop = None
            raise

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The work on the message in hand is over."""
        if self._surrounding is not None:
            self._surrounding.leave(kind, error, trace)

    # --- the verbs of `PullConsumer` ----------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._consumer.topic

    @property
    def positions(self) -> dict[int, int]:
        """See `PullConsumer.positions`."""
        return self._consumer.positions

    @property
    def skipped(self) -> dict[int, int]:
        """See `PullConsumer.skipped`."""
        return self._consumer.skipped

    def commit(self, message: Message | None = None, *, deadline_s: float | None = None) -> None:
        """See `PullConsumer.commit`."""
        self._thread.call(self._consumer.commit(message, deadline_s=deadline_s))

    def lag(self, *, deadline_s: float | None = None) -> dict[int, int]:
        """See `PullConsumer.lag`."""
        return self._thread.call(self._consumer.lag(deadline_s=deadline_s))

    def seek(self, queue_id: int, to: int | StartFrom | datetime) -> None:
        """See `PullConsumer.seek`."""
        self._thread.call(self._consumer.seek(queue_id, to))

    def pause(self, *queue_ids: int) -> None:
        """See `PullConsumer.pause`."""
        self._thread.run(partial(self._consumer.pause, *queue_ids))

    def resume(self, *queue_ids: int) -> None:
        """See `PullConsumer.resume`."""
        self._thread.run(partial(self._consumer.resume, *queue_ids))

    def stop(self) -> None:
        """See `PullConsumer.stop`; from any thread."""
        self._thread.run(self._consumer.stop)

    def close(self) -> None:
        """See `PullConsumer.close`."""
        self._leave(None, None, None)
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
        self._leave(kind, error, trace)
        self.close()
