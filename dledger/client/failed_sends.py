"""Failed sends, until somebody has looked at them.

A future that is dropped tells nobody, so `flush` and `close` do: they raise `SendsFailed` for each
failure whose future has not been asked. This keeps those futures. It must neither tell of a
failure twice nor of one that its caller knows of, and it must not grow without a bound.

Nobody may take a failure from a caller that is about to say that its messages are stored. So each
has its *audience*, who is still to hear of it: anybody, whoever comes first; every flush that is
under way as it is found, and that one's thread; and, where it is known, the thread that sent the
message. A flush hears of what has anybody or its thread in the audience, and takes them out as it
is told. One that is interrupted leaves its thread in, or, where threads aren't known, whoever
begins to flush after that. What has nobody left is forgotten. Failures of one audience are one
row: their number, and the first errors.

Where a producer is aborted there is nobody to be told by the end, but there may be threads or tasks
that flush, or will: from then on every one of them is told, as any one may be about to say that its
messages are stored.

A loop may end under a producer, with its client. Then who closes it has nobody to ask, and looks
himself at what he is owed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar, cast
from weakref import ref

from dledger.client.errors import ClientError, SendsFailed

MIN_SWEEP: Final = 1_024
MIN_ROWS: Final = 64  # past which those of threads that have ended are looked for
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


class _Anybody:
    """Whoever flushes next."""


class _Telling:
    """A flush under way. `takes` is whom it takes out of an audience that it was among."""

    def __init__(self, sender: Sender | None, anybody: Iterable[_Anybody]) -> None:
        own: Audience = frozenset((self,) if sender is None else (self, ref(sender)))
        self.own = own
        self.has_sender = sender is not None
        self.takes: Audience = own.union(anybody)


Audience = frozenset[_Anybody | _Telling | ref[Sender]]


class _Share:
    """Some of the failures: how many, and the first errors, numbered as they came."""

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[tuple[int, ClientError]] = []

    def add(self, number: int, error: BaseException | None) -> None:
        """One more, the last so far."""
        self.count += 1
        if isinstance(error, ClientError) and len(self.errors) < SendsFailed.MAX_FAILURES:
            self.errors.append((number, error))

    def join(self, other: _Share) -> None:
        """Those of `other` are in it, too."""
        self.count += other.count
        errors = sorted(self.errors + other.errors, key=itemgetter(0))
        self.errors = errors[: SendsFailed.MAX_FAILURES]


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
        self._added = 0
        self._kept: list[tuple[int, Failed]] = []  # which one so far, in order
        # Of those of the kept up to a number: who was interrupted as they had failed.
        self._left: list[tuple[int, Audience]] = []
        self._sweep_at = MIN_SWEEP
        self._is_given_up = False
        # Of those that aren't kept, as nobody had looked at them: what somebody is still to hear.
        self._rows: dict[Audience, _Share] = {}
        self._tidy_at = MIN_ROWS
        self._first = (
            _Anybody()
        )  # in every audience, and then for each flush that is interrupted one more
        self._anybody: set[_Anybody] = {self._first}
        self._under_way: list[_Telling] = []
        self._told_late: set[ref[Sender]] = set()  # since the loop is over

    def add(self, future: Failed) -> None:
        """`future` has just failed."""
        self._added += 1
        self._kept.append((self._added, future))
        if len(self._kept) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Forgets what was looked at, and counts the oldest of the others past the limit: the
        youngest have had no turn of the loop to be looked at."""
        kept = [each for each in self._kept if not self._asked(each[1])]
        excess = max(len(kept) - self._limit, 0)
        for number, future in kept[:excess]:
            self._note(number, future)
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
        for number, future in kept:
            if not self._asked(future):
                self._note(number, future)
        self._left = []

    def _note(self, number: int, future: Failed) -> None:
        """Nobody knows that `future` has failed: everybody who flushes is to hear of it."""
        audience = self._audience(number, future)
        self._rows.setdefault(audience, _Share()).add(number, self._error_of(future))
        if len(self._rows) > self._tidy_at:
            self._regroup(lambda audience: audience)
            self._tidy_at = max(MIN_ROWS, 2 * len(self._rows))

    def _audience(self, number: int, future: Failed) -> Audience:
        sender = self._sender_of(future)
        audience: Audience = frozenset(
            (self._first,) if sender is None else (self._first, ref(sender))
        )
        return audience.union(
            *(telling.own for telling in self._under_way),
            *(left for up_to, left in self._left if number <= up_to),
        )

    def _regroup(self, change: Callable[[Audience], Audience]) -> None:
        """Each row has its audience as changed, without threads that have ended."""
        rows, self._rows = self._rows, {}
        for audience, share in rows.items():
            left = frozenset(
                each for each in change(audience) if not isinstance(each, ref) or each() is not None
            )
            if left:
                self._rows.setdefault(left, _Share()).join(share)
        known = (*self._rows, *(left for _, left in self._left))
        self._anybody = {self._first}.union(
            each for audience in known for each in audience if isinstance(each, _Anybody)
        )

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
        telling = _Telling(sender, self._anybody)
        takes, own = telling.takes, telling.own
        self._regroup(lambda audience: audience | own if audience & takes else audience)
        self._under_way.append(telling)
        return telling

    def _leave_untold(self, telling: _Telling) -> None:
        """It was interrupted: whatever it would have been told its thread's next one is to hear;
        or the next of all, and not of those that are under way, who may be others."""
        if telling.has_sender:  # its thread is among all that it has heard of, unless told since
            out, to = Audience((telling,)), Audience()
            of_kept = telling.own - out
        else:
            out, to = telling.takes, Audience((_Anybody(),))
            of_kept = to
        left = ((up_to, audience - out - of_kept) for up_to, audience in self._left)
        self._left = [each for each in left if each[1]]
        if self._kept:
            self._left.append((self._added, of_kept))
        self._regroup(lambda audience: audience - out | to if telling in audience else audience)

    def owed(
        self, sender: Sender, error_of: Callable[[Failed], BaseException | None]
    ) -> SendsFailed | None:
        """What a flush of the sender's that begins now would be told: once. For when the loop is
        over and nobody flushes any more: several threads may ask at once, so that all stays as it
        is but for who has asked. `error_of` marks nothing as told."""
        asker = ref(sender)
        if asker in self._told_late:
            return None
        takes, told = Audience((asker, *self._anybody)), _Share()
        for audience, share in self._rows.items():
            if audience & takes:
                told.join(share)
        for number, future in self._kept:
            if not self._asked(future) and self._audience(number, future) & takes:
                told.add(number, error_of(future))
        if not told.count:
            return None
        self._told_late.add(asker)
        return SendsFailed.of([error for _, error in told.errors], told.count)

    def _tell(self, telling: _Telling) -> None:
        told = _Share()
        for audience, share in self._rows.items():
            if telling in audience:
                told.join(share)
        takes: Audience = frozenset((telling,)) if self._is_given_up else telling.takes
        self._regroup(lambda audience: audience - takes if telling in audience else audience)
        if told.count:
            raise SendsFailed.of([error for _, error in told.errors], told.count)


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
