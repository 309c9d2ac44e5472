"""The stream to the leader, one for all members of a client: who is there, and what each holds.

    no stream    somebody attends      find the leader, wait a random part of what it said, open
    stream       it breaks, NOT_LEADER, another leads, nothing heard for a session: no stream
    stream       nobody attends        closed

This owns the stream and the slots on it, heartbeats included. What a member makes of what it is
told is its own (`dledger.client.members.member`). It must never pass on what comes from a former
stream, and never call a heartbeat sent later than it was.

The stream has one writer and no queue of requests worth the name: a Join or Leave of each member,
and a heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

import grpc

from dledger.client.broker_group import BrokerGroup
from dledger.client.connection import AttendCall, NodeLink
from dledger.client.errors import (
    ClientClosed,
    ClientError,
    InvalidArgument,
    LeadershipLost,
    NotLeader,
    NotOffered,
    SessionEnded,
    Unavailable,
    WrongBrokerGroup,
    from_rpc,
    from_wire,
)
from dledger.client.faults import client_error, fault
from dledger.client.members.clock import clock
from dledger.client.members.member import Times
from dledger.outcome import Outcome
from dledger.wire import groups_pb2 as gpb

MAX_MEMBERS: Final = 1_024  # on one stream, as the brokers allow
SELDOM_SHARE: Final = 0.6  # of a session: heartbeats are never further apart
LAST_WORD_S: Final = 1.0  # until a stream that can't be written to says why
PATIENCE_S: Final = 10.0  # for a leader, before the next word about there being none
BACKOFF_MIN_S: Final = 0.02
BACKOFF_MAX_S: Final = 1.0

_log = logging.getLogger("dledger.client")


class Attendee(Protocol):
    """A member, as the stream knows it."""

    def on_stream(self) -> None: ...
    def join(self, slot: int) -> gpb.Join: ...
    def on_joined(self, session: int, times: Times, sent_at: float) -> None: ...
    def on_answered(self, sent_at: float) -> None: ...
    def on_assignment(self, assignment: gpb.Assignment) -> None: ...
    def on_ended(self, error: ClientError | None) -> None: ...
    def on_broken(self) -> None: ...


class Stream:
    """One stream: what is to be written, and when what was."""

    def __init__(self, link: NodeLink) -> None:
        self.link = link
        self.outgoing: deque[Callable[[], gpb.AttendRequest]] = deque()
        self.changed = asyncio.Event()
        self.join_sent_at: dict[int, float] = {}  # by slot
        self.heartbeats: dict[int, float] = {}  # when sent, by number; until they are answered
        self.numbers = 0
        self.heard_at = clock()
        self.times = Times()
        self.heartbeat_at: float | None = None  # the next one; None: nobody has joined
        self.broken: ClientError | None = None

    def put(self, make: Callable[[], gpb.AttendRequest]) -> None:
        """What `make` makes is written soon; it is called right before."""
        self.outgoing.append(make)
        self.changed.set()


class Attendance:
    """All members of one client in one broker group."""

    def __init__(self, broker_group: BrokerGroup) -> None:
        self._broker_group = broker_group
        self._loop = asyncio.get_running_loop()
        self._attendees: dict[int, Attendee] = {}  # by slot
        self._leaving: dict[int, asyncio.Future[None]] = {}
        self._next_slot = 1
        self._task: asyncio.Task[None] | None = None
        self._stream: Stream | None = None
        self._reading: asyncio.Task[None] | None = None
        self._return_within_s = 0.0
        self._was_joined = False
        self._backoff_s = BACKOFF_MIN_S

    # --- members ------------------------------------------------------------------------------

    def attend(self, attendee: Attendee) -> int:
        """It joins as soon as there is a leader, and again whenever that changes; its slot.

        Raises:
            InvalidArgument: the client has as many members as it may.
        """
        if len(self._attendees) >= MAX_MEMBERS:
            raise InvalidArgument(f"a client has {MAX_MEMBERS:,} members of groups at most")
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        self._attendees[slot] = attendee
        if self._stream is not None:
            attendee.on_stream()
            self._put_join(slot)
        if self._task is None:
            self._begin()
        return slot

    def _begin(self) -> None:
        self._broker_group.listen(self._on_target_changed)
        self._task = self._loop.create_task(self._run(), name="attend")
        self._task.add_done_callback(self._on_done)

    async def leave(self, slot: int, timeout_s: float) -> None:
        """The member has said goodbye, or its session ends by itself: there was no leader to hear
        it, or it didn't answer in time."""
        try:
            if slot in self._attendees and self._stream is not None:
                told = self._leaving[slot] = self._loop.create_future()
                self._put_leave(self._stream, slot)
                await asyncio.wait([told], timeout=timeout_s)
        finally:  # also where who leaves is cancelled: a member that nobody has would join again
            if self._leaving.pop(slot, None) is not None:
                self._attendees.pop(slot, None)
            await self.forget(slot)

    def _put_leave(self, stream: Stream, slot: int) -> None:
        leave = gpb.AttendRequest(leave=gpb.Leave(slot=slot))
        stream.put(lambda: leave)

    async def forget(self, slot: int) -> None:
        """The member is gone, and nothing is waited for. With the last one the stream goes."""
        self.drop(slot)
        if not self._attendees and self._task is not None:
            # Whoever comes meanwhile has a stream of its own.
            task, self._task = self._task, None
            self._stream = self._reading = None
            self._broker_group.unlisten(self._on_target_changed)
            task.cancel()
            await asyncio.wait([task])

    def drop(self, slot: int) -> None:
        """It joins no more, and is told nothing: it is no member any more, or is gone. While the
        stream is there, its heartbeats would keep the member's queues for ever."""
        if self._attendees.pop(slot, None) is not None and self._stream is not None:
            self._put_leave(self._stream, slot)

    async def close(self) -> None:
        """Everybody is gone."""
        for slot in list(self._attendees):
            await self.forget(slot)

    def renew(self) -> None:
        """The stream is to be another one: what it says can't be right."""
        if self._stream is not None:
            self._break(self._stream, Unavailable("the stream was given up"))

    # --- streams ------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self._attendees:
            try:
                link = await self._broker_group.serving_link(self._loop.time() + PATIENCE_S)
                if self._was_joined:
                    await asyncio.sleep(random.random() * self._return_within_s)
                await self._attend(link)
            except ClientError as error:
                if is_final(error) or self._is_never_offered(error):
                    self._end_all(error)
                    return
                _log.warning("consumer groups: not attending: %s", error.message)
            except Exception as error:  # noqa: BLE001 - members would wait for ever
                fault("attending", error)
            await asyncio.sleep(self._backoff_s * random.uniform(0.5, 1.0))
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if self._task is not task:
            return
        self._task = None
        self._broker_group.unlisten(self._on_target_changed)
        if self._attendees and task.cancelled():  # by who cancels every task that there is
            self._end_all(ClientClosed("attending was cancelled"))
        elif self._attendees:  # who came in the turn in which all others were ended
            self._begin()

    def _is_never_offered(self, error: ClientError) -> bool:
        """Whether who leads has no consumer groups; but once members were joined it is the leader
        of a moment, as while members of the broker group are of two releases."""
        return isinstance(error, NotOffered) and not (error.retriable or self._was_joined)

    def _end_all(self, error: ClientError) -> None:
        attendees, self._attendees = self._attendees, {}
        for attendee in attendees.values():
            attendee.on_ended(error)

    async def _attend(self, link: NodeLink) -> None:
        """Keeps one stream to that node until it breaks.

        Raises:
            ClientError: why it did.
        """
        with link.attending() as call:
            stream = self._stream = Stream(link)
            for slot, attendee in list(self._attendees.items()):
                attendee.on_stream()
                self._put_join(slot)
            reading = self._reading = self._loop.create_task(self._read(stream, call))
            writing = self._loop.create_task(self._write(stream, call))
            try:
                await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
                if not reading.done() and not writing.exception():
                    await asyncio.wait([reading], timeout=LAST_WORD_S)
            finally:
                is_current = self._stream is stream
                if is_current:
                    self._stream = self._reading = None
                for task in (reading, writing):
                    task.cancel()
                await asyncio.wait([reading, writing])
                if is_current:
                    self._on_broken()
            for task in (reading, writing):
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise self._explained(stream, error)
            raise stream.broken or Unavailable(f"{link.address} ended the stream")

    def _explained(self, stream: Stream, error: BaseException) -> ClientError:
        if isinstance(error, grpc.aio.AioRpcError):
            error = from_rpc(error, stream.link.address)
        if isinstance(error, ClientError):
            self._broker_group.on_refused(stream.link, error)
            return error
        if isinstance(error, Exception):
            return fault("attending", error)
        raise error

    def _on_broken(self) -> None:
        for future in self._leaving.values():
            if not future.done():
                future.set_result(None)
        for attendee in list(self._attendees.values()):
            attendee.on_broken()

    def _break(self, stream: Stream, error: ClientError) -> None:
        if self._stream is stream and self._reading is not None:
            stream.broken = stream.broken or error
            self._reading.cancel()

    def _on_target_changed(self) -> None:
        target = self._broker_group.target
        if self._stream is not None and target not in (None, self._stream.link):
            self._break(self._stream, LeadershipLost("another node leads"))

    # --- what is said -------------------------------------------------------------------------

    def _put_join(self, slot: int) -> None:
        stream = self._stream
        if stream is None:
            return

        def make() -> gpb.AttendRequest:
            stream.join_sent_at[slot] = clock()
            attendee = self._attendees.get(slot)
            if attendee is None:
                return gpb.AttendRequest(leave=gpb.Leave(slot=slot))
            try:
                return gpb.AttendRequest(join=attendee.join(slot))
            except Exception as error:  # noqa: BLE001  its own, and no other member's
                del self._attendees[slot]
                attendee.on_ended(client_error("joining", error))
                return gpb.AttendRequest(leave=gpb.Leave(slot=slot))

        stream.put(make)

    def _make_heartbeat(self, stream: Stream) -> gpb.AttendRequest:
        stream.numbers += 1
        stream.heartbeats[stream.numbers] = clock()
        return gpb.AttendRequest(heartbeat=gpb.Heartbeat(number=stream.numbers))

    async def _write(self, stream: Stream, call: AttendCall) -> None:
        """Returns when the stream has ended, which its reader tells of."""
        try:
            with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                await self._write_on(stream, call)
        except asyncio.CancelledError:
            # So a write ends, too, on a stream that the other side or the transport has cancelled;
            # taken for a cancellation of this task it would end all members for good.
            if _is_cancelled():
                raise

    async def _write_on(self, stream: Stream, call: AttendCall) -> None:
        """The only writer; ends with an error when the leader has been silent for a session."""
        while True:
            stream.changed.clear()
            while stream.outgoing:
                await call.write(stream.outgoing.popleft()())
            now = clock()
            if stream.heartbeat_at is not None and now >= stream.heartbeat_at:
                stream.heartbeat_at = now + stream.times.heartbeat_s
                await call.write(self._make_heartbeat(stream))
                continue
            if now - stream.heard_at > stream.times.session_s:
                raise Unavailable(f"{stream.link.address} has been silent for a session")
            wake_at = stream.heard_at + stream.times.session_s
            if stream.heartbeat_at is not None:
                wake_at = min(wake_at, stream.heartbeat_at)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(wake_at - now, 0.0) + 0.001):
                    await stream.changed.wait()

    async def _read(self, stream: Stream, call: AttendCall) -> None:
        try:
            while (answer := await call.read()) is not None:
                stream.heard_at = clock()
                self._on_answer(stream, answer)
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise LeadershipLost(
                f"{stream.link.address} leads no longer", outcome=Outcome.MAY_HAVE_HAPPENED
            ) from None

    # --- what is heard ------------------------------------------------------------------------

    def _on_answer(self, stream: Stream, answer: gpb.AttendResponse) -> None:
        match answer.WhichOneof("body"):
            case "joined":
                self._on_joined(stream, answer.joined)
            case "heartbeat_answered":
                self._on_answered(stream, answer.heartbeat_answered)
            case "assignment":
                attendee = self._attendees.get(answer.assignment.slot)
                if attendee is not None:
                    attendee.on_assignment(answer.assignment)
            case "ended":
                self._on_ended(stream, answer.ended)

    def _on_joined(self, stream: Stream, joined: gpb.Joined) -> None:
        attendee = self._attendees.get(joined.slot)
        self._return_within_s = joined.return_within_ms / 1000
        if attendee is None:
            return
        self._was_joined = True
        self._backoff_s = BACKOFF_MIN_S
        times = Times(
            heartbeat_s=joined.heartbeat_ms / 1000,
            session_s=joined.session_ms / 1000,
            release_s=joined.release_ms / 1000,
        )
        stream.times = times
        if stream.heartbeat_at is None:
            stream.heartbeat_at = clock() + times.heartbeat_s
        stream.changed.set()
        attendee.on_joined(joined.session, times, stream.join_sent_at[joined.slot])

    def _on_answered(self, stream: Stream, answered: gpb.HeartbeatAnswered) -> None:
        self._return_within_s = answered.return_within_ms / 1000
        sent_at = stream.heartbeats.get(answered.number)
        for number in [known for known in stream.heartbeats if known <= answered.number]:
            del stream.heartbeats[number]
        if answered.heartbeat_ms:
            often_s = min(answered.heartbeat_ms / 1000, SELDOM_SHARE * stream.times.session_s)
            stream.times = replace(stream.times, heartbeat_s=often_s)
        if sent_at is not None:
            for attendee in list(self._attendees.values()):
                attendee.on_answered(sent_at)

    def _on_ended(self, stream: Stream, ended: gpb.Ended) -> None:
        slot = ended.slot
        if slot in self._leaving:
            if not self._leaving[slot].done():
                self._leaving[slot].set_result(None)
            return
        attendee = self._attendees.get(slot)
        if attendee is None:
            return
        error = from_wire(ended.error) if ended.HasField("error") else None
        if isinstance(error, NotLeader):
            raise error
        if isinstance(error, SessionEnded):
            attendee.on_ended(error)
            self._put_join(slot)
        elif error is not None and error.retriable:
            self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)
            delay_s = self._backoff_s * random.uniform(0.5, 1.0)
            self._loop.call_later(delay_s, self._join_again, stream, slot)
        else:
            del self._attendees[slot]
            attendee.on_ended(error)

    def _join_again(self, stream: Stream, slot: int) -> None:
        if self._stream is stream and slot in self._attendees:
            self._put_join(slot)


def _is_cancelled() -> bool:
    """Whether somebody wants the running task to end. Asked here, as a task that is in a frame of
    the error by which it ends keeps itself, and all that the frame knows, until it is collected."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_final(error: ClientError) -> bool:
    """Whether the same can't succeed later: what nobody refused for good may, and so may what one
    program hasn't got, at a leader of another."""
    if isinstance(error, ClientClosed | WrongBrokerGroup):
        return True
    if isinstance(error, NotOffered):
        return False
    return not error.retriable and error.outcome is Outcome.DID_NOT_HAPPEN
