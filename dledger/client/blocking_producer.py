"""The producer for threads; see `dledger.client.blocking`.

Messages cross to the loop's thread in one go: sends made while the loop is busy wake it once. What
takes time or looks at its caller (compression, the hook `stamp`) is done before, in the caller's
thread, and what the caller may change is copied there (`dledger.client.crossing`). It owns what is
on its way there, in order, and the futures of the callers' kind. It must never keep the loop to
itself, however fast others send, nor leave a future whose message it doesn't hand on.

A signal's handler may raise in a caller's thread, between any two steps of Python's, or make a call
there that waits for the loop's thread, or for others. So there is no lock on the way across: it is
a deque, and each of its steps is one of the interpreter's own. Who waits for room has a lock of his
own that nobody else waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from time import monotonic
from types import TracebackType
from typing import Final, Self

from dledger.client.arguments import message_arguments
from dledger.client.crossing import Crossing, is_taken_back, owned
from dledger.client.epochs import Registration
from dledger.client.errors import (
    BufferFull,
    ClientClosed,
    ClientError,
    ProducerClosed,
    SendsFailed,
    Subject,
)
from dledger.client.failed_sends import FailedSends, Sender, here
from dledger.client.faults import client_error
from dledger.client.leaving import is_hurried, tell
from dledger.client.loop_thread import LoopThread, report_exit
from dledger.client.options import ProducerOptions
from dledger.client.overdue import Overdue, due_at, left_s, overdue
from dledger.client.packing import Packed, Packer
from dledger.client.producer import Producer, time_left
from dledger.client.results import NewMessage, ProducerStatistics, SendResult
from dledger.client.routing import check_topic
from dledger.client.sent import Bulk, Sent

MAX_CROSSING: Final = 10_000  # steps on their way to the producer; past it `send` waits
CROSSING_SHARE: Final = 4  # of the producer's bytes: one part in so many may be on its way
MAX_FAILED: Final = 100_000  # failed futures kept until somebody looks, or is told
HANDED_IN_ONE_TURN: Final = 256  # of the loop, which has answers to read and timers to keep


# What waits for everything sent before it crosses as well, and has its turn when that has. Behind a
# message stand as many blanks as its bytes take up of what may be on its way.
_Step = Crossing | asyncio.Future[None] | None


class BlockingProducer:
    """`Producer` for threads; sends of one thread keep their order.

    Args:
        producer: made with `on_loops_thread(options)`.
        options: as its user gave them.
    """

    def __init__(self, thread: LoopThread, producer: Producer, options: ProducerOptions) -> None:
        self._thread = thread
        self._check, self._check_outside = thread.check, thread.check_outside
        self._producer = producer
        self._packer = Packer(options, thread.report)
        # Appended by senders, and taken in order by the mover, which has one step in hand.
        self._crossing: deque[_Step] = deque()
        self._in_hand: _Step = None
        self._max_crossing = min(MAX_CROSSING, options.max_buffered_messages)
        share = options.max_buffered_bytes // CROSSING_SHARE
        self._step_bytes = max(share // self._max_crossing, 1)
        # Of senders that wait for room: each is locked, and its sender waits to lock it again.
        self._waiting: deque[threading.Lock] = deque()
        self._overdue = Overdue(thread, self._dated, self._fail)
        self._mover: asyncio.Task[None] | None = None  # of the loop's thread
        self._drained = 0  # by the mover, how often; of the loop's thread
        self._woken_after = -1  # the mover was woken since it had drained so often
        self._closed = False
        self._refused_one_way = 0  # of the loop's thread
        self._failed: FailedSends[Sent] = FailedSends(
            lambda sent: sent.asked, Sent.exception, MAX_FAILED, lambda sent: sent.sender
        )

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        deadline_s: float | None = None,
    ) -> Future[SendResult]:
        """Accepts a message, waiting for room if need be; see `Producer.send`.

        `deadline_s` runs from this call on: what is overdue before the producer had room for it is
        never sent. `ProducerOptions.delivery_timeout_ms` begins when the producer has room, and
        what was sent before has its place.

        Raises:
            BufferFull: there is no room, in a future's callback or a coroutine that the client
                runs: waiting there would be for itself.
            ProducerClosed: after `close`.
            Forked: in a process that was forked since.
        """
        return self._accept(NewMessage(topic, body, key, tag, properties, queue_id, deadline_s))

    def send_one_way(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | bytes | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue_id: int | None = None,
        deadline_s: float | None = None,
    ) -> None:
        """Accepts a message of which nobody wants to know what becomes, waiting for room if need
        be; see `Producer.send_one_way`.

        Raises:
            InvalidArgument: an argument is of a wrong kind, or can't be encoded.
            MessageTooLarge: the body is over 4 MiB.
            DeadlineExceeded: `deadline_s` is 0 or less.
            BufferFull: as `send` says.
            ProducerClosed: after `close`.
            Forked: in a process that was forked since.
        """
        due = None if deadline_s is None else due_at(time_left(deadline_s))
        message = owned(NewMessage(topic, body, key, tag, properties, queue_id, deadline_s))
        packed = self._pack(message)
        check_topic(topic)
        self._cross(Crossing(message, packed, None, due))

    def _accept(self, message: NewMessage) -> Sent:
        due = None if message[6] is None else due_at(message[6])
        packed: Packed | ClientError | None = None
        try:
            message = owned(message)
            if not self._packer.is_plain:
                packed = self._pack(message)
        except ClientError as error:
            packed = error
        sent = Sent(self._check, self._check_outside)
        self._cross(Crossing(message, packed, sent, due))
        return sent

    def _pack(self, message: NewMessage) -> Packed:
        topic, body, key, tag, properties, queue_id, _ = message
        arguments = message_arguments(topic, body, key, tag, queue_id)
        return self._packer.pack(*arguments[1:4], properties)

    def _cross(self, crossing: Crossing) -> None:
        """It is on its way, behind what was sent before; or was overdue before it could be."""
        self._thread.check()
        while (room := self._put(crossing)) is not None:
            if self._thread.is_inside:
                self._leave(room)
                text = "there is no room on the way to the producer, and its own thread can't wait"
                raise BufferFull(text, subject=Subject.MESSAGE)
            if crossing.due_at is None:
                room.acquire()
            elif not room.acquire(timeout=max(crossing.due_at - monotonic(), 0.0)):
                self._give_up(crossing, room)
                return

    def _leave(self, room: threading.Lock) -> None:
        """Its sender doesn't wait any more."""
        with suppress(ValueError):  # it was woken
            self._waiting.remove(room)

    def _give_up(self, crossing: Crossing, room: threading.Lock) -> None:
        """Its sender has waited for as long as it may."""
        self._leave(room)
        try:
            self._thread.post(partial(self._refuse, crossing.future, overdue()))
        except ClientClosed:
            raise ProducerClosed("the client was closed", subject=Subject.MESSAGE) from None

    def _put(self, crossing: Crossing) -> threading.Lock | None:
        """It is on its way; or what to wait for before it is tried again. What comes as the
        producer is closed is refused by the mover."""
        if self._closed:
            raise ProducerClosed("the producer was closed", subject=Subject.MESSAGE)
        if len(self._crossing) >= self._max_crossing:
            return self._queue_up()
        body = crossing[0][1]
        if type(body) is bytes and len(body) > self._step_bytes:
            blanks = min(len(body) // self._step_bytes, self._max_crossing)
            self._crossing.extend((crossing, *repeat(None, blanks)))
        else:
            self._crossing.append(crossing)
        if self.is_closed:  # since it was asked: who closes from here on waits for this one
            self._refuse_late(crossing)
        # After it is on its way: the mover looks for more after it has counted that it is done.
        drained = self._drained
        if self._woken_after != drained:
            self._wake_mover(crossing)
            self._woken_after = drained  # not before: who is interrupted leaves it to the next
        if crossing[3] is not None:
            self._overdue.note(crossing[3])
        return None

    def _refuse_late(self, crossing: Crossing) -> None:
        """Another thread closes, and may have been told already that all is stored: it is taken
        back, or, if the mover has it, may have been refused, which nobody else would hear of."""
        if is_taken_back(crossing, self._crossing):
            raise ProducerClosed("the producer was closed", subject=Subject.MESSAGE)
        sent = crossing.future
        if sent is None:
            return
        with suppress(ClientClosed):
            self._thread.call(self._all_crossed())
        error = sent._exception
        if not isinstance(error, ProducerClosed):
            return  # close waits for it, or knows of it
        sent.asked = True
        raise error.about_message(error.outcome) from None  # it may have been on the wire

    def _queue_up(self) -> threading.Lock:
        """What is let go when there is room: by the mover, or at once if there is by now."""
        room = threading.Lock()
        room.acquire()
        self._waiting.append(room)
        self._wake_mover()  # who is on the way may have been interrupted before that
        if self._closed or len(self._crossing) < self._max_crossing:
            self._wake_senders()
        return room

    def _wake_senders(self) -> None:
        """There is room, or none any more. Whom an interrupted call leaves out the mover wakes,
        which has something to move as long as anybody waits."""
        for room in tuple(self._waiting):
            with suppress(RuntimeError):  # somebody else has let go of it
                room.release()
            self._leave(room)

    def _wake_mover(self, crossing: Crossing | None = None) -> None:
        try:
            self._thread.post(self._start_moving)
        except ClientClosed:
            self._refuse_sends()
            if crossing is not None and not is_taken_back(crossing, self._crossing):
                return  # the mover, which ends, has refused it: its future says so
            raise ProducerClosed("the client was closed", subject=Subject.MESSAGE) from None

    def send_all(self, messages: Iterable[NewMessage]) -> int:
        """See `Producer.send_all`."""
        self._thread.check_outside()
        bulk = Bulk()
        try:
            for message in messages:
                if bulk.has_failed:
                    break
                bulk.watch(self._accept(message))
            return bulk.end()
        finally:
            bulk.leave()

    def room(self) -> None:
        """Returns when there is room for more. `send` waits for it by itself."""
        self._thread.call(self._producer.room())

    def register(self) -> Registration:
        """See `Producer.register`."""
        return self._thread.call(self._producer.register())

    def flush(self) -> None:
        """See `Producer.flush`. A failed message of this thread's own is told here, too, where
        another thread's `flush` has told of it before."""
        self._thread.call(self._flush(here.sender))

    def close(self) -> None:
        """See `Producer.close`. A failed message of this thread's own is told here, too, where
        another thread has closed the producer, or the client, and was told of it before."""
        if self._thread.is_of_another_process:
            return  # nothing here is this process's
        self._thread.check_outside()
        self._refuse_sends()
        try:
            self._thread.call(self._close(here.sender))
        except ClientClosed:
            self._tell_late()

    def _tell_late(self) -> None:
        """The client has ended under it, and whoever ended that was told of this thread's failures,
        if anybody was."""
        self._thread.wait_for_end()
        if self._failed.is_given_up:
            return
        if (failed := self._failed.owed(here.sender, lambda sent: sent._exception)) is not None:
            raise failed from None

    def abort(self) -> None:
        """See `Producer.abort`."""
        if self._thread.is_of_another_process:
            return
        self._thread.check_outside()
        self._refuse_sends()
        with suppress(ClientClosed):
            self._thread.call(self._abort())

    def _refuse_sends(self) -> None:
        self._closed = True
        self._wake_senders()

    @property
    def is_closed(self) -> bool:
        """Whether `close` or `abort` was called."""
        return self._closed

    def statistics(self) -> ProducerStatistics:
        """See `Producer.statistics`."""

        async def read() -> ProducerStatistics:
            counts = self._producer.statistics()
            return replace(
                counts,
                failed=counts.failed + self._refused_one_way,
                accepted=counts.accepted + self._refused_one_way,
                one_way_failed=counts.one_way_failed + self._refused_one_way,
                hook_failures=self._packer.hook_failures,
            )

        return self._thread.call(read())

    def __enter__(self) -> Self:
        if self._closed:
            raise ProducerClosed("the producer was closed")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes; who is interrupted does not wait for the flush. An error of the caller's stays
        the one that is raised."""
        if is_hurried(kind):
            self.abort()
            return
        try:
            self.close()
        except SendsFailed as failed:
            tell(failed, error)

    # --- on the loop's thread -----------------------------------------------------------------

    def _start_moving(self) -> None:
        if self._mover is None or self._mover.done():
            self._mover = self._thread.loop.create_task(self._move())
            self._mover.add_done_callback(self._on_mover_ended)

    async def _move(self) -> None:
        """Hands over what has crossed, in order, until there is nothing more."""
        handed = 0
        while self._take_step():
            if self._in_hand is not None:
                await self._hand_over(self._in_hand)
                self._in_hand = None
                handed += 1
                if handed % HANDED_IN_ONE_TURN == 0:
                    await asyncio.sleep(0)

    def _take_step(self) -> bool:
        """Whether there was one more. Senders wait until half of what may be on its way is gone:
        waking them for each message would cost more."""
        if not self._crossing:
            self._drained += 1  # whoever sends from here on wakes the mover
            if not self._crossing:
                return False
        try:
            self._in_hand = self._crossing.popleft()
        except IndexError:  # its sender has taken it back
            return self._take_step()
        if self._waiting and len(self._crossing) <= self._max_crossing // 2:
            self._wake_senders()
        return True

    def _on_mover_ended(self, mover: asyncio.Task[None]) -> None:
        """If it was cancelled, perhaps before it began, the thread is being ended: nothing that is
        still on its way arrives."""
        if not mover.cancelled() and mover.exception() is None:
            return
        self._refuse_sends()
        while self._in_hand is not None or self._take_step():
            step, self._in_hand = self._in_hand, None
            if isinstance(step, Crossing):
                self._refuse(step.future, ClientClosed("the client was closed"))
            elif step is not None:
                step.cancel()
        if not mover.cancelled():
            mover.result()  # the loop's handler is told

    async def _hand_over(self, crossing: Crossing | asyncio.Future[None]) -> None:
        """The producer has it, or its future says why not."""
        if not isinstance(crossing, Crossing):
            if not crossing.done():
                crossing.set_result(None)
            return
        while True:
            try:
                stored = self._send(crossing)
            except BufferFull:
                await self._room(crossing.due_at)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this message's
                self._refuse(crossing.future, client_error("sending a message", error))
                return
            else:
                if crossing.future is not None:
                    stored.add_done_callback(partial(self._on_settled, crossing.future))
                return

    async def _room(self, due: float | None) -> None:
        """There is room, or never will be, or the time is over: the next attempt says so itself."""
        with suppress(ProducerClosed, TimeoutError):
            async with asyncio.timeout(None if due is None else max(due - monotonic(), 0.0)):
                await self._producer.room()

    def _dated(self) -> Iterator[tuple[float, Sent | None]]:
        """What is on its way and has a deadline."""
        for step in (self._in_hand, *self._crossing):
            if isinstance(step, Crossing) and step.due_at is not None:
                yield step.due_at, step.future

    def _send(self, crossing: Crossing) -> asyncio.Future[SendResult]:
        """The producer's future of a message that it has accepted."""
        message, packed, future, due = crossing
        if isinstance(packed, ClientError):
            raise packed
        deadline_s = message[6] if due is None else left_s(due)
        stored = self._producer._nobody
        if future is not None:
            stored = self._thread.loop.create_future()
        self._producer._send(*message[:6], deadline_s, stored, packed)
        return stored

    def _refuse(self, future: Sent | None, error: BaseException) -> None:
        """A message that the producer never had."""
        if future is None:
            self._refused_one_way += 1
        else:
            self._fail(future, error)

    def _on_settled(self, future: Sent, stored: asyncio.Future[SendResult]) -> None:
        error = stored.exception()
        if error is not None:
            self._fail(future, error)
        elif future.may_settle():
            try:
                future.set_result(stored.result())
            except Exception:
                raise
            except BaseException as exit_:  # noqa: BLE001 - a callback's; it is set by then
                report_exit(self._thread.loop, exit_)

    def _fail(self, future: Sent, error: BaseException) -> None:
        """Fails the future, unless its caller has cancelled it."""
        if not future.may_settle():
            return
        try:
            future.set_exception(error)
        except Exception:
            raise
        except BaseException as exit_:  # noqa: BLE001 - a callback's; it is set by then
            report_exit(self._thread.loop, exit_)
        finally:
            self._failed.add(future)

    async def _all_crossed(self) -> None:
        """What was sent before this call has been handed over, whatever is sent meanwhile."""
        reached = self._thread.loop.create_future()
        self._crossing.append(reached)
        self._start_moving()
        await asyncio.wait([reached])

    async def _flush(self, sender: Sender) -> None:
        async with self._failed.told(sender):
            await self._all_crossed()
            await self._producer.flush()

    async def _close(self, sender: Sender) -> None:
        """What waits for room gets as long as what is buffered; then it fails. Who closes after an
        abort is told nothing."""
        is_told = not self._failed.is_given_up
        try:
            async with self._failed.told(sender) if is_told else nullcontext():
                try:
                    async with asyncio.timeout(self._producer._close_timeout_s):
                        await self._all_crossed()
                except TimeoutError:
                    await self._end()
                await self._producer.close()
        finally:
            self._overdue.stop()
            await self._failed.forget()

    async def _abort(self) -> None:
        self._failed.give_up()
        try:
            await self._end()
        finally:
            self._overdue.stop()
            await self._failed.forget()

    async def _end(self) -> None:
        await self._producer.abort()
        await self._all_crossed()  # the mover finds the producer closed


def on_loops_thread(options: ProducerOptions) -> ProducerOptions:
    """The options of the producer behind a blocking one: what is done in callers' threads is left
    out."""
    return replace(options, stamp=None, compression=None, compression_level=None)
