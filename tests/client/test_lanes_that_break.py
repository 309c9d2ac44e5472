"""A rule of a lane that breaks halfway, at whatever step: nobody waits for ever.

Each rule runs once for each call that it makes of the lane's other functions, and that one raises.
Afterwards every message is told or still held by its lane, so that `flush` doesn't say yes of what
was forgotten; at the end all are told, once, and their room is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dledger.client.dispatch import Dispatcher, Sender
from dledger.client.errors import (
    Busy,
    ClientError,
    InvalidArgument,
    LeadershipLost,
    ProducerClosed,
    QueuesChanged,
)
from dledger.client.lane import Batch, Lane
from dledger.client.options import ProducerOptions
from dledger.client.results import SendResult
from dledger.outcome import Outcome
from dledger.testing.refusals import wire_error
from dledger.wire import errors_pb2 as epb
from tests.client.breaking import Broken, Once, broken_function
from tests.client.loops import async_test
from tests.client.test_dispatch import ToldGroup
from tests.client.test_lane import ROOM, Known
from tests.client.test_producer import error_of, producing, refusing

STEPS = (
    "seal",
    "settle",
    "_settle",
    "_over",
    "_tell",
    "_free",
    "_break_off",
    "_take_numbers_back",
    "_begin_epoch",
    "_go_on_from",
)
MOST_CALLS = 40  # far above what a rule makes
SOON, LATE = 1.0, 100.0  # deadlines: the rules are asked at 10
NOW = 10.0


class Stage:
    """A lane of a dispatcher that sends nothing, and what its users see."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.complaints: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        self.futures: list[asyncio.Future[SendResult]] = []
        self.room = [0, 0]  # messages and bytes
        self.moved: list[Batch] = []
        sender = Sender(
            fail=lambda future, error: future.set_exception(error),
            on_sealed=lambda lane: None,
            on_over=self._on_over,
            on_place_gone=lambda lane: None,
            on_queues_changed=lambda lane: None,
        )
        group: Any = ToldGroup(None)
        self.dispatching = Dispatcher(group, ProducerOptions(), sender)
        self.lane = self.lane_of(0)

    def lane_of(self, queue_id: int) -> Lane:
        lane = Lane("t", queue_id, Known())
        self.dispatching._lanes["t", queue_id] = lane
        return lane

    def _on_over(self, count: int, size: int) -> None:
        self.room[0] -= count
        self.room[1] -= size

    def gather(self, deadline: float = LATE, limit: float = 0.0, lane: Lane | None = None) -> None:
        lane = lane or self.lane
        for _ in range(2):
            future: asyncio.Future[SendResult] = self.loop.create_future()
            self.dispatching.add(lane, b"twelve bytes", future)
            self.futures.append(future)
            self.room[0] += 1
            self.room[1] += 12
        lane.gather_deadline, lane.gather_limit = deadline, limit

    def ready(self, deadline: float = LATE, limit: float = 0.0) -> None:
        self.gather(deadline, limit)
        self.lane.seal()

    def fly(self, deadline: float = LATE, limit: float = 0.0) -> Batch:
        self.ready(deadline, limit)
        (batch,) = self.lane.take(ROOM)
        return batch

    def check_nothing_forgotten(self) -> None:
        """What `flush` would wait for, and what has gone to other lanes, is all that is pending."""
        held = [*self.dispatching.seal_all(), *self.moved]
        known = {future for batch in held for future in batch.futures}
        assert {future for future in self.futures if not future.done()} <= known

    async def end(self) -> None:
        for batch in self.moved:
            for position in range(batch.count):
                self.dispatching.fail_message(batch, position, ProducerClosed("x"))
        await self.dispatching.abort(ProducerClosed("x"))
        assert [future.done() for future in self.futures] == [True] * len(self.futures)
        assert self.room == [0, 0]
        for future in self.futures:
            assert isinstance(future.exception(), ClientError)
        for told in self.complaints:
            assert isinstance(told.get("exception"), Broken), told


def refused_one(stage: Stage) -> Callable[[], None]:
    """The first is refused, one behind it was told and only keeps its place, another goes again."""
    first, told, again = stage.fly(), stage.fly(SOON, LATE), stage.fly()
    stage.dispatching._judge(stage.lane, partial(stage.lane.expire, NOW))
    stage.lane.on_error(first, InvalidArgument("wrong"))
    stage.lane.on_error(told, InvalidArgument("wrong"))
    stage.lane.on_error(again, Busy("no room"))
    stage.gather()
    return lambda: stage.dispatching._settle([stage.lane])


def refused_in_doubt(stage: Stage) -> Callable[[], None]:
    """The first may have been stored: all behind it fails."""
    first, second = stage.fly(), stage.fly()
    stage.lane.on_error(first, LeadershipLost("gone", outcome=Outcome.MAY_HAVE_HAPPENED))
    stage.lane.on_error(second, Busy("no room"))
    stage.lane.settle()
    assert first in stage.lane.take(ROOM)
    stage.lane.on_error(first, InvalidArgument("wrong"))
    stage.lane.on_error(second, Busy("no room"))
    stage.ready()
    stage.gather()
    return lambda: stage.dispatching._settle([stage.lane])


def overdue(stage: Stage) -> Callable[[], None]:
    """Past their limit, past their deadline with a number and without, and in the gather."""
    limits = ((SOON, 0.0), (SOON, 0.0), (SOON, LATE), (LATE, 0.0))
    for batch in [stage.fly(*each) for each in limits]:
        stage.lane.on_error(batch, Busy("no room"))
    stage.ready(SOON)
    stage.ready(SOON)
    stage.ready(LATE)
    stage.gather(SOON)
    return lambda: stage.dispatching._judge(stage.lane, partial(stage.lane.expire, NOW))


def overdue_in_flight(stage: Stage) -> Callable[[], None]:
    """A batch that was refused is past its limit, and so is one behind it that may be stored."""
    stage.lane.on_error(stage.fly(SOON), Busy("no room"))
    first = stage.lane.window[0]
    stage.lane.take(ROOM)
    stage.ready(SOON)
    stage.lane.take(ROOM)
    stage.lane.on_error(first, InvalidArgument("wrong"))
    stage.ready()
    stage.gather()
    return lambda: stage.dispatching._judge(stage.lane, partial(stage.lane.expire, NOW))


def broken_off(stage: Stage) -> Callable[[], None]:
    """In flight, to be sent again, sealed and gathered."""
    stage.fly()
    stage.lane.on_error(stage.fly(), Busy("no room"))
    stage.ready()
    stage.gather()
    return lambda: stage.dispatching.break_off([stage.lane], ProducerClosed("x"))


def withdrawn(stage: Stage) -> Callable[[], None]:
    """The queues have changed; one of those behind was told and fails."""
    first, told = stage.fly(), stage.fly(SOON, LATE)
    stage.dispatching._judge(stage.lane, partial(stage.lane.expire, NOW))
    stage.lane.on_error(first, QueuesChanged("other queues"))
    stage.lane.on_error(told, QueuesChanged("other queues"))
    stage.ready()
    stage.gather()
    return lambda: stage.moved.extend(stage.dispatching.withdraw(stage.lane))


def name_forgotten(stage: Stage) -> Callable[[], None]:
    """What is in the window goes again, but for what was told."""
    first, told = stage.fly(), stage.fly(SOON, LATE)
    stage.dispatching._judge(stage.lane, partial(stage.lane.expire, NOW))
    stage.lane.on_error(first, Busy("no room"))
    stage.lane.on_error(told, InvalidArgument("wrong"))
    stage.gather()
    return lambda: stage.dispatching._on_name_forgotten(ClientError("forgotten"))


def flushed(stage: Stage) -> Callable[[], None]:
    """`flush` makes batches of what was gathered, in two lanes."""
    stage.gather()
    stage.gather(lane=stage.lane_of(1))
    return lambda: stage.moved.extend(stage.dispatching.seal_all()[:0])


SCENES = (
    refused_one,
    refused_in_doubt,
    overdue,
    overdue_in_flight,
    broken_off,
    withdrawn,
    name_forgotten,
    flushed,
)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("scene", SCENES)
@async_test
async def test_rule_that_breaks_halfway_forgets_nobody(
    scene: Callable[[Stage], Callable[[], None]], step: str
) -> None:
    """Whichever of its steps fails, once."""
    for at in range(1, MOST_CALLS):
        once = Once(at)
        stage = Stage()
        rule = scene(stage)
        with broken_function(Lane, step, once):
            rule()
        stage.check_nothing_forgotten()
        await stage.end()
        if not once.was_reached:
            return
    raise AssertionError("a rule has no end")


@pytest.mark.parametrize("step", STEPS)
@async_test
async def test_lane_that_stays_broken_keeps_no_other_from_its_end(step: str) -> None:
    """`flush` and `abort` go on with the others, and its own messages are told as well."""
    stage = Stage()
    bad = stage.lane
    others = [stage.lane_of(queue_id) for queue_id in (1, 2)]
    for lane in (bad, *others):
        stage.gather(lane=lane)
    whole = getattr(Lane, step)

    def breaking(lane: Lane, *args: Any) -> Any:
        if lane is bad:
            raise Broken(step)
        return whole(lane, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lane, step, breaking)
        held = stage.dispatching.seal_all()
        assert {f for batch in held for f in batch.futures} >= set(stage.futures[2:])
        await stage.dispatching.abort(ProducerClosed("x"))
    assert all(future.done() for future in stage.futures)
    assert all(isinstance(future.exception(), ClientError) for future in stage.futures)


@async_test
async def test_lane_that_is_given_up_is_used_again() -> None:
    """Whoever had stopped it to look for other queues may be who has failed."""
    stage = Stage()
    stage.gather()
    stage.lane.is_frozen = True

    def broken(_: Lane) -> None:
        raise Broken("here, too")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lane, "_begin_epoch", broken)
        with pytest.raises(Broken):
            stage.lane.give_up(ClientError("it broke"))
    assert not stage.lane.is_frozen


@async_test
async def test_lane_that_cannot_be_made_a_batch_holds_up_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is gathered goes out by itself, whatever is wrong with the one before."""
    stage = Stage()
    other = stage.lane_of(1)
    stage.gather()
    stage.gather(lane=other)
    whole = Lane.seal

    def seal(lane: Lane) -> None:
        if lane is stage.lane:
            raise Broken("it can't be sealed")
        whole(lane)

    pumped: list[bool] = []
    monkeypatch.setattr(Lane, "seal", seal)
    dispatching = stage.dispatching
    monkeypatch.setattr(dispatching, "_pump", lambda: pumped.append(dispatching._pause.lasts))
    dispatching._flush_gathers()
    assert not other.parts
    assert stage.lane.parts
    assert pumped == [False], "in a pause nothing is sent"
    assert dispatching._pause.lasts


@async_test
async def test_lane_that_cannot_take_an_error_leaves_no_other_in_flight() -> None:
    """A Send of two queues fails, and the first one's rule breaks: the other is told all the same,
    and sent again, where it would be in flight until its deadline with nothing on its way."""
    async with producing(queues=2) as (group, _, producer), asyncio.timeout(30.0):
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await producer.send("t", b"warm up", queue_id=0)
        group.before.append(refusing("Send", wire_error(epb.NOT_READY)))
        with broken_function(Lane, "on_error", Once(1)):
            first = producer.send("t", b"0", queue_id=0)
            second = producer.send("t", b"1", queue_id=1)
            assert (await second).queue_id == 1
            await error_of(first)
