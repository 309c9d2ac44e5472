"""The stream of all members, against fake nodes: slots, heartbeats, and when they count from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dledger.client import Client, ClientError, GroupDiffers, InvalidArgument
from dledger.client.connection import NodeLink
from dledger.client.members import attendance as attending
from dledger.client.members.attendance import SELDOM_SHARE, Attendance
from dledger.client.members.clock import clock
from dledger.client.members.member import Times
from dledger.client.members.settings import fresh_token, group_settings
from dledger.testing.fake_nodes import FakeGroup
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as gpb
from tests.client.loops import async_test
from tests.client.members.test_push import QUICK, stocked, until


class Listener:
    """A member that only listens."""

    def __init__(self, group: str, member: str, topic: str = "t") -> None:
        self.group, self.member, self.topic = group, member, topic
        self.token = fresh_token()
        self.session = 0
        self.joins: list[float] = []
        self.answered: list[tuple[float, float]] = []  # when sent, when answered
        self.assignments: list[gpb.Assignment] = []
        self.ended: list[ClientError | None] = []
        self.broken = 0

    def on_stream(self) -> None:
        pass

    def join(self, slot: int) -> gpb.Join:
        return gpb.Join(
            slot=slot,
            group=self.group,
            member=self.member,
            token=self.token,
            session=self.session,
            settings=group_settings([self.topic]),
        )

    def on_joined(self, session: int, times: Times, sent_at: float) -> None:
        self.session = session
        self.joins.append(sent_at)

    def on_answered(self, sent_at: float) -> None:
        self.answered.append((sent_at, clock()))

    def on_assignment(self, assignment: gpb.Assignment) -> None:
        self.assignments.append(assignment)

    def on_ended(self, error: ClientError | None) -> None:
        self.ended.append(error)

    def on_broken(self) -> None:
        self.broken += 1


def attendance_of(client: Client) -> Attendance:
    return client._attending()


def streams(group: FakeGroup) -> int:
    return sum(node.calls["Attend"] for node in group.nodes)


def joined(*listeners: Listener) -> Callable[[], bool]:
    return lambda: all(each.session for each in listeners)


@async_test
async def test_all_members_share_one_stream_and_its_heartbeats() -> None:
    """Whenever they come; the last one to go ends it."""
    async with stocked(2) as (group, client):
        attendance = attendance_of(client)
        one, other = Listener("g", "a"), Listener("h", "b")
        first = attendance.attend(one)
        await until(joined(one))
        second = attendance.attend(other)
        await until(joined(other))
        await until(lambda: len(one.answered) > 2 and len(other.answered) > 2)
        assert streams(group) == 1
        await attendance.leave(first, 5.0)
        assert not group.members.has_sessions("g")
        assert group.members.has_sessions("h")
        await attendance.leave(second, 5.0)
        await until(lambda: not group.members.streams)


@async_test
async def test_heartbeats_come_as_often_as_the_leader_wants_now() -> None:
    """Told with each answer; never so seldom that a session is missed by it."""
    async with stocked(1) as (group, client):
        attendance, listener = attendance_of(client), Listener("g", "a")
        slot = attendance.attend(listener)
        await until(joined(listener))
        stream = attendance._stream
        assert stream is not None
        group.members.heartbeat_ms = 70
        await until(lambda: stream.times.heartbeat_s == 0.07)
        group.members.heartbeat_ms = 3_600_000
        await until(lambda: stream.times.heartbeat_s == SELDOM_SHARE * stream.times.session_s)
        answered = len(listener.answered)
        await until(lambda: len(listener.answered) > answered)
        assert listener.broken == 0
        await attendance.forget(slot)


@async_test
async def test_heartbeats_count_from_when_they_were_sent() -> None:
    """An answer that took its time says nothing about now; neither does that to a join."""
    async with stocked(1) as (group, client):
        slow = [0.0]

        async def dawdle(method: str, node: object, request: object) -> None:
            if method in ("Join", "Heartbeat"):
                await asyncio.sleep(slow[0])

        group.before.append(dawdle)
        slow[0] = 0.15
        listener = Listener("g", "a")
        began = clock()
        slot = attendance_of(client).attend(listener)
        await until(joined(listener))
        assert listener.joins[0] - began < 0.1 < clock() - listener.joins[0]
        await until(lambda: len(listener.answered) > 2)
        assert all(answered - sent > 0.1 for sent, answered in listener.answered)
        await attendance_of(client).forget(slot)


@async_test
async def test_silent_leader_is_given_up_after_a_session() -> None:
    """Nobody else says so where there is one node; the next stream goes on with the session."""
    async with (
        FakeGroup(1) as group,
        Client.connect(group.bootstrap, options=QUICK) as client,
    ):
        group.members.session_ms = 400
        group.model.create("t", 1)
        listener = Listener("g", "a")
        slot = attendance_of(client).attend(listener)
        await until(joined(listener))
        session = listener.session
        group.nodes[0].running.clear()
        await until(lambda: listener.broken)
        group.nodes[0].running.set()
        await until(lambda: len(listener.joins) == 2)
        assert listener.session == session
        await attendance_of(client).forget(slot)


@async_test
async def test_busy_leader_is_asked_again_and_a_refusal_is_final() -> None:
    """What trying again can't change is told to that member alone."""
    async with stocked(1) as (group, client):
        left = [2]

        async def refuse(method: str, node: object, request: object) -> None:
            if method == "Join" and left[0]:
                left[0] -= 1
                raise Refusal(wire_error(epb.BUSY))

        group.before.append(refuse)
        attendance = attendance_of(client)
        one, other = Listener("g", "a"), Listener("g", "b", topic="u")
        slot = attendance.attend(one)
        await until(joined(one))
        attendance.attend(other)
        await until(lambda: other.ended)
        assert isinstance(other.ended[0], GroupDiffers)
        assert not one.ended
        assert streams(group) == 1
        await attendance.leave(slot, 5.0)


@async_test
async def test_members_of_a_client_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a stream are."""
    monkeypatch.setattr(attending, "MAX_MEMBERS", 1)
    async with stocked(1) as (_, client):
        slot = attendance_of(client).attend(Listener("g", "a"))
        with pytest.raises(InvalidArgument, match="at most"):
            attendance_of(client).attend(Listener("g", "b"))
        await attendance_of(client).forget(slot)


@async_test
async def test_who_comes_as_the_last_one_goes_has_a_stream() -> None:
    """However far the end of the former stream has come by then."""
    async with stocked(1) as (_, client):
        attendance = attendance_of(client)
        former = Listener("g", "m0")
        slot = attendance.attend(former)
        await until(joined(former))
        for number in range(1, 12):
            going = asyncio.create_task(attendance.forget(slot))
            for _ in range(number):
                await asyncio.sleep(0)
            listener = Listener("g", f"m{number}")
            slot = attendance.attend(listener)
            await going
            await until(joined(listener))
            assert not listener.ended
        await attendance.leave(slot, 5.0)


class CutOff:
    """A stream whose next write finds it cancelled, as grpc says it."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> Any:
        return await self._call.read()

    async def write(self, _request: object) -> None:
        await asyncio.sleep(0)
        raise asyncio.CancelledError


@async_test
async def test_who_comes_in_the_turn_in_which_all_others_were_ended_has_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The application is woken by the error that ended them, before the loop tells of the end of
    what held their stream."""
    async with stocked(1) as (_, client):
        attendance, ended = attendance_of(client), asyncio.Event()

        class Former(Listener):
            def on_ended(self, error: ClientError | None) -> None:
                super().on_ended(error)
                ended.set()

        async def refuse(_attendance: Attendance, _link: NodeLink) -> None:
            raise InvalidArgument("for good")

        former, listener = Former("g", "a"), Listener("g", "b")
        with monkeypatch.context() as patched:
            patched.setattr(Attendance, "_attend", refuse)
            attendance.attend(former)
            await ended.wait()
        slot = attendance.attend(listener)
        await until(joined(listener))
        assert not listener.ended
        await attendance.leave(slot, 5.0)


@async_test
async def test_a_stream_that_is_cancelled_on_the_way_is_a_broken_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the end of all members: they are on the next one, which is as good."""
    async with stocked(1) as (group, client):
        real, cut = NodeLink.attending, [3]

        @contextmanager
        def attending_of(link: NodeLink) -> Iterator[Any]:
            with real(link) as call:
                cut[0] -= 1
                yield CutOff(call) if cut[0] >= 0 else call

        monkeypatch.setattr(NodeLink, "attending", attending_of)
        monkeypatch.setattr(attending, "LAST_WORD_S", 0.01)
        listener = Listener("g", "a")
        slot = attendance_of(client).attend(listener)
        await until(lambda: bool(listener.session or listener.ended))
        assert (listener.ended, listener.broken, streams(group)) == ([], 3, 4)
        await attendance_of(client).forget(slot)


@async_test
async def test_who_cannot_be_joined_ends_nobody_else() -> None:
    """What is wrong with one member's words is its own."""
    async with stocked(1) as (_, client):
        attendance = attendance_of(client)

        class Unspeakable(Listener):
            def join(self, slot: int) -> gpb.Join:
                raise InvalidArgument("what can't be said")

        sound, unspeakable, later = Listener("g", "a"), Unspeakable("g", "b"), Listener("g", "c")
        slots = [attendance.attend(each) for each in (sound, unspeakable, later)]
        await until(joined(sound, later))
        await until(lambda: bool(unspeakable.ended))
        assert not sound.ended
        assert not later.ended
        for slot in (slots[0], slots[2]):
            await attendance.leave(slot, 5.0)
