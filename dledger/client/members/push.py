"""The push consumer: handlers for topics, and `run`, which works as a group's member until the end.

This owns a member's life as its user sees it: what is worked on by whom, how it ends, what it
tells. What a message's handler returns doesn't matter: returning is *done*, raising is *again*. A
message is finished when its handler has returned, and committed after that and never before.

    made       `run`               running
    running    `stop`, a signal    draining: nothing new is begun, handlers have `drain_s`
    draining   a second signal     aborted: coroutines are cancelled; unfinished messages come again
    running    an error that trying again can't change: as by `stop`, and raised by `run`
    any        `run` is cancelled  aborted
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypedDict, TypeVar

from dledger.client.arguments import queue_ids, text, wanted_tags
from dledger.client.broker_group import BrokerGroup
from dledger.client.errors import ClientClosed, ClientError, ConsumerInUse, InvalidArgument
from dledger.client.hooks import HookFailures, checked_on_revoke
from dledger.client.leaving import is_hurried
from dledger.client.members.attendance import Attendance
from dledger.client.members.clock import clock
from dledger.client.members.kept_offsets import KeptOffsets
from dledger.client.members.member import Line, Member, Rules
from dledger.client.members.membership import Identity, Membership
from dledger.client.members.process_queue import Bounds, Order, ProcessQueue
from dledger.client.members.pulling import Pace
from dledger.client.members.revoking import OnRevoke, lag_of, revoke
from dledger.client.members.settings import (
    fresh_token,
    group_name,
    group_settings,
    member_name,
    queue_choices,
)
from dledger.client.members.signals import heeding_signals
from dledger.client.members.workers import (
    CoroutineWorkers,
    Pool,
    Surround,
    ThreadWorkers,
    surrounding,
)
from dledger.client.options import PushOptions
from dledger.client.owner import Owner
from dledger.client.results import Message, PushStatistics
from dledger.records.reserved import retry_topic

Handler = TypeVar("Handler", bound=Callable[[Message], Any])
# Between looks at handlers that may have taken too long: a hundredth of that, within these bounds.
LOOK_MIN_S: Final = 0.25
LOOK_MAX_S: Final = 5.0


@dataclass(slots=True)
class Subscription:
    """Who handles a topic, and what of it is wanted."""

    handler: Callable[[Message], Any]
    tags: frozenset[str] | None
    queues: list[int] | None


class _Terms(TypedDict):
    """Both kinds' workers have the same."""

    count: int
    timeout_s: float
    surround: Surround
    on_exit: Callable[[BaseException], None]


class PushConsumer:
    """A member of a consumer group that hands messages to functions; made by
    `Client.push_consumer`."""

    def __init__(
        self,
        broker_group: BrokerGroup,
        attendance: Callable[[], Attendance],
        group: str,
        options: PushOptions,
        on_closed: Callable[[PushConsumer], None],
    ) -> None:
        self.group = group_name(group)
        self.member = member_name(options.member)
        self._broker_group = broker_group
        self._attendance = attendance
        self._options = options
        self._on_closed = on_closed
        self._owner = Owner()
        self._subscriptions: dict[str, Subscription] = {}
        self._on_revoke: OnRevoke | None = None
        self._membership: Membership | None = None
        self._pools: list[Pool] = []
        self._stopped = asyncio.Event()
        self._was_signalled = False
        self._is_closed = False
        self._error: BaseException | None = None
        self._running: asyncio.Task[Any] | None = None
        self._ended = asyncio.Event()
        self._hook_failures = HookFailures("around", _teller(asyncio.get_running_loop()))

    # --- what to work on ----------------------------------------------------------------------

    def on(
        self,
        topic: str,
        *,
        tags: Collection[str] | None = None,
        queues: Sequence[int] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Decorates the handler of a topic: `async def`, or a plain function, which runs on a
        thread. It is given one message at a time; returning means done, raising that it is to be
        tried again, raising `Reject` that it is a dead letter (in a broadcast group: finished).

        Args:
            tags: only messages with one of these; None: all. The brokers choose them. All members
                name the same ones, unless with a higher `PushOptions.version`.
            queues: those that this member is to have; with the strategy CONFIG, and only there.

        Raises:
            InvalidArgument: the topic has a handler, or the arguments make no sense together.
        """
        self._owner.check()
        self._check_unbegun()
        name = text("topic name", topic)
        if (queues is not None) != (self._options.strategy == "CONFIG"):
            raise InvalidArgument(
                "queues= is for the strategy CONFIG, which needs it; other strategies share out "
                "all queues of a topic"
            )
        chosen = None if queues is None else queue_ids(queues)
        wanted = None if tags is None else wanted_tags(tags)

        def decorate(handler: Handler) -> Handler:
            self._check_unbegun()  # nobody would call it
            if not callable(handler):
                raise InvalidArgument(f"{handler!r} can't be called: no handler of {name!r}")
            if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
                raise InvalidArgument(
                    f"{handler!r} has a `yield`: calling it does nothing yet, so it is no handler "
                    f"of {name!r}"
                )
            if name in self._subscriptions:
                raise InvalidArgument(f"topic {name!r} has a handler already")
            self._subscriptions[name] = Subscription(handler, wanted, chosen)
            return handler

        return decorate

    def on_revoke(self, call: OnRevoke) -> OnRevoke:
        """`call` is awaited before queues go to another member, and before the end, when their
        handlers have done, or 2.4 seconds (24 in order) after they were asked for: what is at work
        then goes on, and others are given it. It has what is left of that, 0.3 (3) at least. Of
        queues that were lost it is told afterwards. Usable as a decorator."""
        self._check_unbegun()
        checked_on_revoke(call)
        self._on_revoke = call
        return call

    def _check_unbegun(self) -> None:
        if self._running is not None or self._ended.is_set():
            raise InvalidArgument("the consumer is running, or has run: say it before `run`")

    # --- work ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until `stop`, SIGINT or SIGTERM (in the main thread, where they are free); then
        waits `drain_s` for handlers that are at work, commits, and says goodbye. A second signal
        doesn't wait.

        Raises:
            ClientError: the group refuses this member, or messages have gone that it was to read:
                it has ended as by `stop`, and everything that was finished is committed. Or another
                one has replaced it: what wasn't committed by then comes again there.
            InvalidArgument: no topic has a handler.
            ConsumerInUse: it runs, or has run.
        """
        self._owner.check()
        if self._running is not None or self._ended.is_set():
            raise ConsumerInUse(f"this consumer of group {self.group!r} runs, or has run")
        if not self._subscriptions:
            raise InvalidArgument("no topic has a handler: decorate one with `on`")
        self._running = asyncio.current_task()
        try:
            with heeding_signals(self._on_signal):
                membership = self._begin()
                await self._until_stopped()
                await membership.leave(self._options.drain_s)
        finally:
            try:
                await self._end()
            finally:
                self._ended.set()
                self._running = None
                self._on_closed(self)
        if self._error is not None:
            raise self._error

    def _begin(self) -> Membership:
        options = self._options
        lines = {kind: Line() for kind in (True, False)}
        line_of = {
            topic: lines[_is_coroutine(each.handler)] for topic, each in self._subscriptions.items()
        }
        is_mixed = _is_any_coroutine(self._subscriptions)
        line_of[retry_topic(self.group)] = lines[is_mixed]
        rules = Rules(
            order=Order.QUEUE if options.in_order else Order.KEYS,
            broadcast=options.broadcast,
            tags=self._tags(),
            bounds=Bounds(options.queue_messages, options.queue_bytes, options.queue_span),
            delays_s=options.retry_delays_s,
            suspend_s=options.suspend_s,
            max_attempts=options.max_attempts,
        )
        attendance = self._attendance()
        keeper = self._keeper()
        membership = Membership(
            self._broker_group,
            attendance,
            self._identity(),
            Member(rules, fresh_token, line_of),
            Pace(options.pull_bytes, options.hold_ms, options.commit_every_s, options.when_gone),
            _Employer(self),
            keeper,
        )
        self._membership = membership
        self._pools = self._make_pools(membership, lines)
        membership.begin()
        return membership

    def _identity(self) -> Identity:
        options = self._options
        chosen = {t: each.queues for t, each in self._subscriptions.items() if each.queues}
        return Identity(
            self.group,
            self.member,
            group_settings(
                self._subscriptions,
                version=options.version,
                broadcast=options.broadcast,
                in_order=options.in_order,
                strategy=options.strategy,
                start=options.start,
                max_attempts=options.max_attempts,
                tags=self._tags(),
            ),
            queue_choices(chosen),
        )

    def _tags(self) -> dict[str, frozenset[str]]:
        return {t: each.tags for t, each in self._subscriptions.items() if each.tags is not None}

    def _keeper(self) -> KeptOffsets | None:
        options = self._options
        if options.offsets_file is None:
            return None
        return KeptOffsets(options.offsets_file, self.group, self._broker_group, options.start)

    def _make_pools(self, membership: Membership, lines: dict[bool, Line]) -> list[Pool]:
        """Coroutines' workers, and those of functions, where there are handlers of the kind."""
        options = self._options
        terms = _Terms(
            count=options.handlers,
            timeout_s=options.handler_timeout_s,
            surround=surrounding(options.around, self._hook_failures),
            on_exit=self._on_exit,
        )
        functions, coroutines = (self._handlers(is_coroutine=kind) for kind in (False, True))
        threads = ThreadWorkers(membership, lines[False], functions, **terms) if functions else None
        if not coroutines:
            return [threads] if threads is not None else []
        tasks = CoroutineWorkers(membership, lines[True], coroutines, **terms, threads=threads)
        if threads is None:
            return [tasks]
        threads.handed_on_by = tasks
        return [tasks, threads]

    def _handlers(self, *, is_coroutine: bool) -> dict[str, Callable[[Message], Any]]:
        """Those of one kind, by topic."""
        handlers = {topic: each.handler for topic, each in self._subscriptions.items()}
        return {t: each for t, each in handlers.items() if _is_coroutine(each) is is_coroutine}

    async def _until_stopped(self) -> None:
        look_s = min(max(self._options.handler_timeout_s / 100, LOOK_MIN_S), LOOK_MAX_S)
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(look_s):
                    await self._stopped.wait()
            now = clock()
            for pool in self._pools:
                pool.expire(now)

    def stop(self) -> None:
        """`run` takes no more, and returns when what is at work is done. Safe to call at any time,
        from the event loop's thread."""
        self._stopped.set()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed("the consumer is closed")

    @property
    def _is_here(self) -> bool:
        """Whether the caller is one of its handlers: `run` waits for those."""
        return any(pool.is_here for pool in self._pools)

    async def close(self) -> None:
        """Stops, and returns when `run` has; no task is left behind. In a handler it only stops, as
        `run` waits for that."""
        self._owner.check()
        self._close_soon()
        if self._running is None or self._running is asyncio.current_task():
            self._on_closed(self)
        elif not self._is_here:
            await self._ended.wait()

    def _close_soon(self) -> None:
        self._is_closed = True
        self.stop()

    async def abort(self) -> None:
        """As `close`, without waiting for handlers: `run` is cancelled."""
        running = self._running
        if running is not None and running is not asyncio.current_task():
            running.cancel()
        await self.close()

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes; who is being cancelled or interrupted waits for no handler."""
        await (self.abort() if is_hurried(kind) else self.close())

    async def _end(self) -> None:
        """No task is left, whatever became of the member. A thread that is at work goes on."""
        membership = self._membership
        try:
            for pool in self._pools:
                await pool.close()
        finally:  # cancelled once more, it is no member either
            if membership is not None:
                try:
                    await membership.abandon()
                finally:
                    if membership.keeper is not None:
                        membership.keeper.close()

    def _on_exit(self, error: BaseException) -> None:
        """A handler wants the program to end: in an orderly way."""
        self._error = self._error or error
        self._stopped.set()

    def _on_signal(self) -> None:
        """SIGINT or SIGTERM: stops; the second one aborts. Who hears the first one while it drains
        already, after an error or `stop`, goes on with that: nobody has asked it to hurry."""
        if self._was_signalled and self._running is not None:
            self._running.cancel()
        self._was_signalled = True
        self._stopped.set()

    # --- what it tells ------------------------------------------------------------------------

    def statistics(self) -> PushStatistics:
        """Counts since it began, and what it holds now."""
        membership = self._membership
        if membership is None:
            return PushStatistics()
        counts, member = membership.counts, membership.member
        queues = member.queues.values()
        return PushStatistics(
            handled=counts.handled,
            failed=counts.failed,
            overdue=sum(pool.overdue for pool in self._pools),
            queues=len(queues),
            waiting=sum(queue.waiting_messages for queue in queues),
            running=member.running,
            retrying=member.retrying,
            full=sum(not queue.room for queue in queues),
            commits=counts.commits,
            refused=counts.refused,
            lost=member.lost,
            skipped=dict(counts.skipped),
            hook_failures=self._hook_failures.count,
        )

    async def lag(self, *, deadline_s: float | None = None) -> dict[tuple[str, int], int]:
        """By topic and queue that this member holds: how many messages aren't finished.

        Raises:
            ClientError: the brokers couldn't be asked.
        """
        membership = self._membership
        return (
            {}
            if membership is None
            else await lag_of(self._broker_group, membership.member, deadline_s)
        )


class _Employer:
    """What a membership asks of its push consumer."""

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer

    def on_work(self) -> None:
        for pool in self._consumer._pools:
            pool.wake()

    def on_withdrawn(self) -> None:
        for pool in self._consumer._pools:
            pool.withdraw()

    def on_over(self, error: ClientError | None) -> None:
        consumer = self._consumer
        consumer._error = consumer._error or error
        consumer._stopped.set()

    async def on_revoke(self, queues: Sequence[ProcessQueue], *, lost: bool) -> None:
        call = self._consumer._on_revoke
        if call is not None:
            try:
                await revoke(call, queues, lost=lost)
            except (SystemExit, KeyboardInterrupt) as error:  # as of a handler: in an orderly way
                self._consumer._on_exit(error)


def _is_any_coroutine(subscriptions: Mapping[str, Subscription]) -> bool:
    return any(_is_coroutine(each.handler) for each in subscriptions.values())


def _is_coroutine(handler: Callable[[Message], Any]) -> bool:
    while isinstance(handler, partial):
        handler = handler.func
    call = getattr(handler, "__call__", None)  # noqa: B004 - an object's own
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _teller(loop: asyncio.AbstractEventLoop) -> Callable[[dict[str, Any]], None]:
    """Tells the loop's exception handler, from any thread."""

    def tell(context: dict[str, Any]) -> None:
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(loop.call_exception_handler, context)

    return tell
