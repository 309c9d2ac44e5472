"""The push consumer for callers without an event loop; see `dledger.client.blocking`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from dledger.client.errors import ClientClosed
from dledger.client.hooks import checked_on_revoke
from dledger.client.leaving import is_hurried
from dledger.client.loop_thread import LoopThread
from dledger.client.members.push import Handler, PushConsumer
from dledger.client.members.revoking import on_a_thread
from dledger.client.results import PushStatistics, RevokedQueues

_USUAL: Final = (signal.SIG_DFL, signal.default_int_handler)


class BlockingPushConsumer:
    """`PushConsumer`, whose `run` blocks. Handlers are plain functions, each on a thread of the
    pool; an `async def` runs on the client's own thread, and must not block it."""

    def __init__(self, thread: LoopThread, consumer: PushConsumer) -> None:
        self._thread = thread
        self._consumer = consumer
        self._is_stopped = False

    @property
    def group(self) -> str:
        """The group's name."""
        return self._consumer.group

    @property
    def member(self) -> str:
        """This member's name in the group."""
        return self._consumer.member

    def on(
        self,
        topic: str,
        *,
        tags: Collection[str] | None = None,
        queues: Sequence[int] | None = None,
    ) -> Callable[[Handler], Handler]:
        """See `PushConsumer.on`."""

        async def prepare() -> Callable[[Handler], Handler]:
            return self._consumer.on(topic, tags=tags, queues=queues)

        decorate = self._thread.call(prepare())

        def decorated(handler: Handler) -> Handler:
            self._do(partial(decorate, handler))
            return handler

        return decorated

    def on_revoke(self, call: Callable[[RevokedQueues], object]) -> Callable[..., object]:
        """See `PushConsumer.on_revoke`; `call` runs on a thread of its own, unless it is an
        `async def`."""
        checked_on_revoke(call)
        self._do(partial(self._consumer.on_revoke, on_a_thread(call)))
        return call

    def _do(self, act: Callable[[], object]) -> None:
        async def acting() -> None:
            act()

        self._thread.call(acting())

    def run(self) -> None:
        """See `PushConsumer.run`."""
        with self._signals():
            exit_of_handler = self._thread.call(self._run())
        if exit_of_handler is not None:
            raise exit_of_handler

    async def _run(self) -> BaseException | None:
        """What a handler wants to end the program with: for the caller, not for the loop."""
        try:
            await self._consumer.run()
        except (SystemExit, KeyboardInterrupt) as error:
            return error
        return None

    def stop(self) -> None:
        """See `PushConsumer.stop`; from any thread, and from handlers."""
        with suppress(ClientClosed):
            self._thread.post(self._consumer.stop)

    def close(self) -> None:
        """See `PushConsumer.close`."""
        if self._thread.is_of_another_process:
            return
        with suppress(ClientClosed):
            if self._consumer._is_here:
                self._thread.post(self._consumer._close_soon)
                return
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
        """Closes; who is interrupted waits for no handler."""
        if is_hurried(kind):
            self.abort()
        else:
            self.close()

    def abort(self) -> None:
        """See `PushConsumer.abort`."""
        if self._thread.is_of_another_process:
            return
        with suppress(ClientClosed):
            self._thread.call(self._consumer.abort())

    def statistics(self) -> PushStatistics:
        """See `PushConsumer.statistics`."""

        async def ask() -> PushStatistics:
            return self._consumer.statistics()

        return self._thread.call(ask())

    def lag(self, *, deadline_s: float | None = None) -> dict[tuple[str, int], int]:
        """See `PushConsumer.lag`."""
        return self._thread.call(self._consumer.lag(deadline_s=deadline_s))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM stop; a second one aborts. Where somebody else handles them already,
        or in another thread than the main one, they are left alone; and so is a handler that the
        program has installed meanwhile."""
        former: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) in _USUAL:
                    former[number] = signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, known in former.items():
                if signal.getsignal(number) == self._on_signal:
                    signal.signal(number, known)

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        if self._is_stopped:
            raise KeyboardInterrupt
        self._is_stopped = True
        self.stop()
