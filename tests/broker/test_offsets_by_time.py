"""Offsets by time: each probe reads an entry of the log, and no turn makes many of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.groups.steps import at_once
from broker.reading.queues import QueueReader
from broker.services.consumers import MoveWish, To
from broker.services.deliveries import Receive
from broker.services.topics import QueueWish
from broker.state.groups import Start
from broker.state.offsets import OffsetCommit
from broker.state.topics import TopicRef, TopicState
from tests.broker.asked import EndlessCall
from tests.broker.attended import QUEUES, Room
from tests.broker.leader import batch
from tests.broker.test_turns import Interrupted

T = TopicRef("t")
MESSAGES: Final = 9
LATE_MS: Final = 1 << 50  # behind everything


class Probed(Interrupted):
    """`Turns` of one step each, that knows how many probes were in one at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.probes = self.probes_here = self.most = 0
        stored_at = QueueReader._stored_at

        def counted(reader: QueueReader, topic: TopicState, queue_id: int, offset: int) -> int:
            self.probes += 1
            self.probes_here += 1
            self.most = max(self.most, self.probes_here)
            return stored_at(reader, topic, queue_id, offset)

        monkeypatch.setattr(QueueReader, "_stored_at", counted)

    async def pause(self) -> None:
        self.probes_here = 0
        await super().pause()
        self.probes_here = 0


def filled(turns: Probed) -> Room:
    """With topic t, and some messages in each of its queues; calls share its leader's loop so."""
    room = Room()
    fill(room)
    services = room.leader.replica.services
    for each in (services.offsets._times, services.deliveries._times, services.consumers._times):
        each._turns = turns
    services.deliveries._turns = services.consumers._turns = turns
    return room


def fill(room: Room) -> None:
    sends = room.leader.replica.services.sends
    for queue_id in range(QUEUES):
        for _ in range(MESSAGES):
            room.world.run(room.leader, sends.send(b"", [batch(0, b"x", queue_id=queue_id)]))


def receive_of(start_time_ms: int) -> Receive:
    """By a group that begins at that time."""
    return Receive(
        "g", T, False, bytes(7) + b"\1", False, 1, 0, 0, 1_000, Start.TIME, start_time_ms
    )


async def one(room: Room) -> object:
    return await room.leader.replica.services.offsets.by_time(T, 0, LATE_MS)


async def start(room: Room) -> object:
    await room.leader.replica.services.deliveries.receive(receive_of(LATE_MS), EndlessCall())
    return room.machine.offsets.of("g", "t")[QUEUES - 1]


async def move(room: Room) -> object:
    moved = await room.leader.replica.services.consumers.move(
        MoveWish("g", T, (), To.TIME, LATE_MS)
    )
    assert moved is not None
    return room.machine.offsets.of("g", "t")[QUEUES - 1]


@pytest.mark.parametrize("look", [one, start, move])
def test_no_turn_looks_at_more_than_a_step_of_it(
    look: Callable[[Room], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks: for one queue, for the start of a group, to move one."""
    turns = Probed(monkeypatch)
    room = filled(turns)

    async def test() -> None:
        if look is move:
            commit = OffsetCommit("g", "t", tuple((n, 0) for n in range(QUEUES)), is_reset=False)
            await room.leader.replica.services.offsets.commit(commit)
        assert await look(room) == MESSAGES
        assert turns.probes >= 3
        assert turns.most == 1

    play(room, test)


@pytest.mark.parametrize("look", [one, start])
def test_a_topic_that_is_deleted_while_it_is_looked_at_is_gone(
    look: Callable[[Room], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks is told, and no group begins in it."""
    turns = Probed(monkeypatch)
    room = filled(turns)

    async def delete() -> None:
        if turns.probes == 2:
            await room.leader.replica.services.topics.delete(T)

    async def test() -> None:
        turns.between = delete
        with pytest.raises(BrokerError) as refused:
            await look(room)
        assert refused.value.code is ErrorCode.TOPIC_NOT_FOUND
        assert not room.machine.offsets.of("g", "t")

    play(room, test)


def play(room: Room, scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    """The leader's process runs it."""
    room.world.run(room.leader, scenario())


def test_a_group_begins_in_queues_that_are_new_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their first message: they were born later."""
    turns = Probed(monkeypatch)
    room = filled(turns)

    async def grow() -> None:
        if turns.probes == 2:
            wish = QueueWish(QUEUES + 2, QUEUES + 2)
            await room.leader.replica.services.topics.update(T, wish)

    async def test() -> None:
        turns.between = grow
        services = room.leader.replica.services
        await services.deliveries.receive(receive_of(LATE_MS), EndlessCall())
        incarnation = room.machine.topics["t"].incarnation
        begun = room.machine.deliveries.in_topic("g", incarnation)
        assert [record.next for record in begun.values()] == [MESSAGES] * QUEUES + [0, 0]

    play(room, test)


def test_what_came_and_went_meanwhile_is_not_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset in front of the queue is none, and messages that came are not looked at."""
    turns = Probed(monkeypatch)
    room = filled(turns)
    reader = room.leader.replica.parts.reader

    async def test() -> None:
        steps = reader.offset_by_time_in_steps(T, 0, LATE_MS)
        next(steps)
        await room.leader.replica.services.sends.send(b"", [batch(0, b"x")])
        assert at_once(steps) == MESSAGES
        steps = reader.offset_by_time_in_steps(T, 0, 1)
        next(steps)
        bounds = reader.bounds
        monkeypatch.setattr(reader, "bounds", lambda *asked: (4, bounds(*asked)[1]))
        assert at_once(steps) == 4

    play(room, test)
