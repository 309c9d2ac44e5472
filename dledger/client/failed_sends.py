"""Failed sends, until somebody has looked at them.

A future that is dropped tells nobody, so `flush` and `close` do: they raise `SendsFailed` for each
failure whose future has not been asked. This keeps those futures. It must neither tell of a
failure twice nor of one that its caller knows of, and it must not grow without a bound.

Where a producer is aborted there is nobody to be told by the end, but there may be threads or tasks
that flush, or will: from then on every one of them is told, as any one may be about to say that its
messages are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar

from dledger.client.errors import ClientError, SendsFailed

MIN_SWEEP: Final = 1_024
_TURNS: Final = 3  # of the loop: until who awaits a future, by way of wait_for, has looked at it

Failed = TypeVar("Failed")


def was_asked(future: asyncio.Future[Any]) -> bool:
    """Whether somebody has asked this failed future for its exception. It is how asyncio itself
    decides whether to log one that was never retrieved; a subclass that knew would cost each
    message of a producer more than a failure costs here."""
    return not future._log_traceback


class FailedSends(Generic[Failed]):
    """Futures that have failed.

    Args:
        asked: whether a future has been asked for its exception.
        error_of: its exception; asking marks it as told.
        limit: how many may fail in one turn of the loop, before any caller can look. Of those
            that nobody has looked at so many are kept at least, twice as many at most; older
            ones are counted, and told without their errors.
    """

    def __init__(
        self,
        asked: Callable[[Failed], bool],
        error_of: Callable[[Failed], BaseException | None],
        limit: int,
    ) -> None:
        self._asked = asked
        self._error_of = error_of
        self._limit = limit
        self._kept: list[Failed] = []
        self._sweep_at = MIN_SWEEP
        self._beyond = 0
        self._is_given_up = False
        self._untold = 0  # that are not kept, and that nobody knows of
        self._first_untold: list[ClientError] = []  # of those, what they failed with

    def add(self, future: Failed) -> None:
        """`future` has just failed."""
        self._kept.append(future)
        if len(self._kept) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Forgets what was looked at, and gives up the oldest of the others past the limit: the
        youngest have had no turn of the loop to be looked at."""
        kept = [future for future in self._kept if not self._asked(future)]
        excess = max(len(kept) - self._limit, 0)
        for future in kept[:excess]:
            self._error_of(future)
        self._beyond += excess
        self._kept = kept[excess:]
        self._sweep_at = max(MIN_SWEEP, 2 * len(self._kept))

    @property
    def is_given_up(self) -> bool:
        """Whether `give_up` was called."""
        return self._is_given_up

    def give_up(self) -> None:
        """The producer is about to be aborted: what fails, or has failed, is told to everybody who
        asks from now on, each time."""
        self._is_given_up = True

    async def forget(self) -> None:
        """Nothing more will fail, and who awaits a failed future has looked at it: of what nobody
        knows of by now only the number is kept, and the first errors."""
        try:
            await self._looked_at()
        finally:
            self._count()

    def _count(self) -> None:
        errors = [self._error_of(future) for future in self._kept if not self._asked(future)]
        self._untold += len(errors) + self._beyond
        room = SendsFailed.MAX_FAILURES - len(self._first_untold)
        self._first_untold += [error for error in errors if isinstance(error, ClientError)][:room]
        self._kept, self._beyond = [], 0

    async def _looked_at(self) -> None:
        """Who awaits a failed future has had the time to look at it."""
        if self._kept:
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    async def tell(self) -> None:
        """Returns if every failure is known to its caller; each is told once, but for those of a
        producer that was aborted.

        Raises:
            SendsFailed: otherwise.
        """
        await self._looked_at()
        self._count()
        errors, count = self._first_untold, self._untold
        if not self._is_given_up:
            self._first_untold, self._untold = [], 0
        if count:
            raise SendsFailed.of(errors, count)


async def closed_together(closes: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All are over; they run at the same time, so that together they take no longer than the
    longest one.

    Raises:
        SendsFailed: what failed in any of them, told together.
    """
    ended = await asyncio.gather(*closes, return_exceptions=True)
    failed = [error for error in ended if isinstance(error, SendsFailed)]
    for error in ended:
        if error is not None and not isinstance(error, SendsFailed):
            raise error
    if failed:
        failures = [failure for error in failed for failure in error.failures]
        raise SendsFailed.of(failures, sum(error.count for error in failed))


class Bulk:
    """What becomes of the messages of one `send_all`: counts and the first errors."""

    def __init__(self) -> None:
        self.stored = self.pending = self.failed = 0
        self.errors: list[ClientError] = []
        self._watching = True
        self._none_pending: asyncio.Future[None] | None = None

    def watch(self, future: asyncio.Future[Any]) -> None:
        """`future` is of a message that was accepted."""
        self.pending += 1
        future.add_done_callback(self._on_settled)

    def on_error(self, error: ClientError) -> None:
        """One more message has failed."""
        self.failed += 1
        if len(self.errors) < SendsFailed.MAX_FAILURES:
            self.errors.append(error)

    async def settled(self) -> None:
        """Returns when every message watched has its answer."""
        if self.pending:
            self._none_pending = asyncio.get_running_loop().create_future()
            await self._none_pending

    def leave(self) -> None:
        """Looks at no future any more: what fails from now on is `flush`'s and `close`'s."""
        self._watching = False

    def _on_settled(self, future: asyncio.Future[Any]) -> None:
        self.pending -= 1
        if self._watching:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, ClientError):
                self.on_error(error)
            else:
                self.stored += 1
        waiter = self._none_pending
        if not self.pending and waiter is not None and not waiter.done():
            waiter.set_result(None)
