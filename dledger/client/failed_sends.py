"""Failed sends, until somebody has looked at them.

A future that is dropped tells nobody, so `flush` and `close` do: they raise `SendsFailed` for each
failure whose future has not been asked. This keeps those futures. It must neither tell of a
failure twice nor of one that its caller knows of, and it must not grow without a bound.

Nobody may take a failure from a caller that is about to say that its messages are stored. So a
failure is told to every flush that is under way as it is found, and, where it is known who sent the
message, to that thread's next flush if it was told to others before.

Where a producer is aborted there is nobody to be told by the end, but there may be threads or tasks
that flush, or will: from then on every one of them is told, as any one may be about to say that its
messages are stored.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar, cast
from weakref import WeakKeyDictionary

from dledger.client.errors import ClientError, SendsFailed

MIN_SWEEP: Final = 1_024
_TURNS: Final = 3  # of the loop: until who awaits a future, by way of wait_for, has looked at it

Failed = TypeVar("Failed")


def was_asked(future: asyncio.Future[Any]) -> bool:
    """Whether somebody has asked this failed future for its exception. It is how asyncio itself
    decides whether to log one that was never retrieved; a subclass that knew would cost each
    message of a producer more than a failure costs here."""
    return not future._log_traceback


class Sender:
    """Who sends: a thread, for as long as it lives. Its number would be another one's after it."""

    __slots__ = ("__weakref__",)


class _Here(threading.local):
    """Of the thread that looks."""

    sender: Sender

    def __getattr__(self, name: str) -> Sender:
        # No `__init__`: a signal's handler in its midst would find nothing here.
        return cast(Sender, self.__dict__.setdefault(name, Sender()))


here: Final = _Here()


class _Share:
    """Some of the failures: how many, and the first errors."""

    def __init__(self, errors: Sequence[ClientError] = ()) -> None:
        self.count = 0
        self.errors = list(errors)

    def add(self, errors: Sequence[ClientError], count: int) -> None:
        self.count += count
        self.errors += errors[: SendsFailed.MAX_FAILURES - len(self.errors)]


class _Telling:
    """A flush under way: hears of what is counted past `since`, and of its sender's `own`."""

    def __init__(self, sender: Sender | None, since: int, errors: Sequence[ClientError]) -> None:
        self.sender = sender
        self.since = since
        self.heard = _Share(errors)
        self.own = _Share()


class FailedSends(Generic[Failed]):
    """Futures that have failed.

    Args:
        asked: whether a future has been asked for its exception.
        error_of: its exception; asking marks it as told.
        limit: how many may fail in one turn of the loop, before any caller can look. Of those
            that nobody has looked at so many are kept at least, twice as many at most; older
            ones are counted, and told without their errors.
        sender_of: who sent a future's message, if that is known.
    """

    def __init__(
        self,
        asked: Callable[[Failed], bool],
        error_of: Callable[[Failed], BaseException | None],
        limit: int,
        sender_of: Callable[[Failed], Sender | None] = lambda _: None,
    ) -> None:
        self._asked = asked
        self._error_of = error_of
        self._limit = limit
        self._sender_of = sender_of
        self._kept: list[Failed] = []
        self._sweep_at = MIN_SWEEP
        self._is_given_up = False
        self._counted = 0  # of those that are not kept, and that nobody had looked at
        self._told = 0  # of the counted: somebody was told of all so far
        self._untold: list[ClientError] = []  # of the others, the first errors
        self._under_way: list[_Telling] = []
        # By senders that had no flush under way: of what is untold, and of what others were told.
        self._untold_of: WeakKeyDictionary[Sender, _Share] = WeakKeyDictionary()
        self._owed: WeakKeyDictionary[Sender, _Share] = WeakKeyDictionary()

    def add(self, future: Failed) -> None:
        """`future` has just failed."""
        self._kept.append(future)
        if len(self._kept) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Forgets what was looked at, and counts the oldest of the others past the limit: the
        youngest have had no turn of the loop to be looked at."""
        kept = [future for future in self._kept if not self._asked(future)]
        excess = max(len(kept) - self._limit, 0)
        for future in kept[:excess]:
            self._note(future)
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
        kept, self._kept = self._kept, []
        for future in kept:
            if not self._asked(future):
                self._note(future)

    def _note(self, future: Failed) -> None:
        """Nobody knows that `future` has failed: everybody who flushes is to hear of it."""
        error = self._error_of(future)
        errors = [error] if isinstance(error, ClientError) else []
        self._counted += 1
        self._untold += errors[: SendsFailed.MAX_FAILURES - len(self._untold)]
        sender, hears = self._sender_of(future), False
        for telling in self._under_way:
            telling.heard.add(errors, 1)
            hears = hears or telling.sender is sender
        if sender is not None and not hears:
            self._untold_of.setdefault(sender, _Share()).add(errors, 1)

    async def _looked_at(self) -> None:
        """Who awaits a failed future has had the time to look at it."""
        if self._kept:
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    @asynccontextmanager
    async def told(self, sender: Sender | None = None) -> AsyncIterator[None]:
        """Every failure is known to its caller as the block ends. Each is told once, and to every
        block that is under way as it is; what another one was told of `sender`'s, or of any
        producer's that was aborted, once more.

        Raises:
            SendsFailed: otherwise.
        """
        telling = self._begin(sender)
        try:
            yield
            await self._looked_at()
            self._count()
        except BaseException:
            self._leave_untold(telling)
            raise
        finally:
            self._under_way.remove(telling)
        self._tell(telling)

    def _begin(self, sender: Sender | None) -> _Telling:
        telling = _Telling(sender, self._told, self._untold)
        if sender is not None:
            telling.own = self._owed.pop(sender, telling.own)
            self._untold_of.pop(sender, None)  # it hears of that, as nobody was told of it
        self._under_way.append(telling)
        return telling

    def _leave_untold(self, telling: _Telling) -> None:
        """It was interrupted: whatever it would have been told is the next one's to hear."""
        if telling.since < self._told:
            self._told, self._untold = telling.since, telling.heard.errors
        if telling.sender is not None and telling.own.count:
            owed = self._owed.setdefault(telling.sender, _Share())
            owed.add(telling.own.errors, telling.own.count)

    def _tell(self, telling: _Telling) -> None:
        if not self._is_given_up:
            self._told, self._untold = self._counted, []
            for sender, share in list(self._untold_of.items()):
                self._owed.setdefault(sender, _Share()).add(share.errors, share.count)
            self._untold_of.clear()
        told = telling.own
        told.add(telling.heard.errors, self._counted - telling.since)
        if told.count:
            raise SendsFailed.of(told.errors, told.count)


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
