"""The dispatcher alone, with links that answer when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvloop

from dledger.client.broker_group import BrokerGroup
from dledger.client.connection import NodeLink
from dledger.client.dispatch import Dispatcher, Sender
from dledger.client.errors import ClientError, ClientFault, DeadlineExceeded, LeadershipLost
from dledger.client.lane import Failure
from dledger.client.options import ProducerOptions
from dledger.client.results import SendResult
from dledger.outcome import Outcome
from dledger.wire import broker_pb2 as pb
from tests.client.loops import async_test


class ToldLink:
    """A link whose calls end when the test says how."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.calls: list[tuple[pb.SendRequest, asyncio.Future[pb.SendResponse]]] = []

    async def call(self, method: object, request: pb.SendRequest, timeout_s: float) -> Any:
        answer: asyncio.Future[pb.SendResponse] = asyncio.get_running_loop().create_future()
        self.calls.append((request, answer))
        return await answer

    def sequences(self) -> list[int]:
        """Of every batch that was sent here, in order."""
        return [batch.base_sequence for request, _ in self.calls for batch in request.batches]


class ToldGroup:
    """A group whose leader the test names."""

    def __init__(self, target: ToldLink | None) -> None:
        self.target = target
        self.listeners: list[Callable[[], None]] = []
        self.refusals: list[ClientError] = []
        self.registered: list[pb.RegisterProducerRequest] = []

    def listen(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        self.listeners.remove(listener)

    def judge(self, link: NodeLink, error: ClientError) -> None:
        """Leaves it as it is."""

    def on_refused(self, link: NodeLink, error: ClientError) -> None:
        self.refusals.append(error)

    async def call(self, method: object, request: Any, *_: object, **__: object) -> Any:
        """Registers at once."""
        identity = bytes(7) + bytes((len(self.registered) + 1,)) + request.token
        self.registered.append(request)
        return pb.RegisterProducerResponse(producer_id=identity, origin=identity)

    def aim(self, target: ToldLink | None) -> None:
        self.target = target
        for listener in self.listeners:
            listener()


# A producer that is told of batches and does nothing about it.
BYSTANDER = Sender(
    fail=lambda future, error: future.set_exception(error),
    on_sealed=lambda lane: None,
    on_over=lambda count, size: None,
    on_place_gone=lambda lane: None,
    on_queues_changed=lambda lane: None,
)


def dispatcher(group: ToldGroup, **options: float) -> Dispatcher:
    return Dispatcher(cast(BrokerGroup, group), ProducerOptions(**options), BYSTANDER)  # type: ignore[arg-type]


def add(dispatching: Dispatcher, body: bytes) -> asyncio.Future[SendResult]:
    future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
    dispatching.add(dispatching.lane("t", 0), body, future)
    return future


async def turns(count: int = 5) -> None:
    """Lets the loop do what is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


def stored(request: pb.SendRequest) -> pb.SendResponse:
    return pb.SendResponse(results=[pb.SendResult() for _ in request.batches])


@async_test
async def test_no_two_nodes_are_sent_to_at_a_time() -> None:
    """The last leader may still answer: what is newer waits for that, and follows in order."""
    first, second = ToldLink("h1:1"), ToldLink("h2:1")
    group = ToldGroup(first)
    dispatching = dispatcher(group)
    older = add(dispatching, b"older")
    await turns()
    group.aim(second)
    newer = add(dispatching, b"newer")
    dispatching.seal_all()
    await turns()
    assert (first.sequences(), second.sequences()) == ([0], [])
    first.calls[0][1].set_exception(LeadershipLost("x", outcome=Outcome.MAY_HAVE_HAPPENED))
    await turns()
    group.aim(second)  # word of another leader ends the pause
    await turns()
    assert second.sequences() == [0, 1]
    request, answer = second.calls[0]
    answer.set_result(stored(request))
    await asyncio.gather(older, newer)
    await dispatching.abort(ClientError("over"))


@async_test
async def test_failure_pauses_until_word_of_another_leader() -> None:
    """The node that refused would refuse again; the next one need not be kept waiting."""
    first, second = ToldLink("h1:1"), ToldLink("h2:1")
    group = ToldGroup(first)
    dispatching = dispatcher(group)
    future = add(dispatching, b"x")
    await turns()
    first.calls[0][1].set_exception(LeadershipLost("x", outcome=Outcome.MAY_HAVE_HAPPENED))
    await turns()
    group.aim(first)
    await turns()
    assert len(first.calls) == 1, "still pausing: it is the node that failed"
    group.aim(second)
    await turns()
    request, answer = second.calls[0]
    answer.set_result(stored(request))
    await future
    assert [type(error) for error in group.refusals] == [LeadershipLost]
    await dispatching.abort(ClientError("over"))


@async_test
async def test_answer_to_a_batch_that_is_over_changes_nothing() -> None:
    """Its futures were told that it may have been stored; the lane has gone on."""
    link = ToldLink("h1:1")
    dispatching = dispatcher(ToldGroup(link))
    over = add(dispatching, b"a")
    await turns()
    dispatching._fail(dispatching.lane("t", 0).break_off(DeadlineExceeded("over")))
    later = add(dispatching, b"b")
    dispatching.seal_all()
    await turns()
    for request, answer in link.calls:
        answer.set_result(stored(request))
    await later
    assert isinstance(over.exception(), DeadlineExceeded)
    assert link.calls[0][0].producer_id != link.calls[1][0].producer_id
    assert (dispatching.unknown, dispatching.stored) == (1, 1)
    await dispatching.abort(ClientError("over"))


@async_test
async def test_message_that_waited_elsewhere_keeps_its_deadline() -> None:
    """Until its topic was known, say: nothing is pending past its delivery timeout."""
    dispatching = dispatcher(ToldGroup(None), delivery_timeout_ms=3_600_000)
    lane, loop = dispatching.lane("t", 0), asyncio.get_running_loop()
    later = add(dispatching, b"later")
    waited: asyncio.Future[SendResult] = loop.create_future()
    dispatching.add_waited(dispatching.lane("t", 1), b"waited", waited, loop.time() + 0.01)
    with pytest.raises(DeadlineExceeded):
        await waited
    assert not later.done()
    assert not lane.is_empty
    await dispatching.abort(ClientError("over"))


@async_test
async def test_request_that_is_cancelled_from_outside_is_made_again() -> None:
    """Somebody ends every task that there is; the messages are none the worse for it."""
    link = ToldLink("h1:1")
    dispatching = dispatcher(ToldGroup(link))
    future = add(dispatching, b"x")
    await turns()
    (request,) = dispatching._requests
    request.cancel()
    while len(link.calls) < 2:
        await turns()
    first, second = link.sequences()
    assert first == second
    link.calls[1][1].set_result(stored(link.calls[1][0]))
    await future
    await dispatching.abort(ClientError("over"))


@async_test
async def test_lane_whose_rules_fail_gives_up_honestly() -> None:
    """What was sent may have been stored, what wasn't was not; the next message has a new id."""
    link = ToldLink("h1:1")
    dispatching = dispatcher(ToldGroup(link), max_inflight_requests=1)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    told: list[dict[str, Any]] = []
    sent = add(dispatching, b"sent")
    await turns()
    unsent = add(dispatching, b"unsent")

    def broken() -> list[Failure]:
        raise ZeroDivisionError

    dispatching._judge(dispatching.lane("t", 0), broken)
    outcomes = [future.exception() for future in (sent, unsent)]
    assert all(isinstance(error, ClientFault) for error in outcomes)
    assert [error.outcome for error in outcomes if isinstance(error, ClientError)] == [
        Outcome.MAY_HAVE_HAPPENED,
        Outcome.DID_NOT_HAPPEN,
    ]
    assert [type(context["exception"]) for context in told] == [ZeroDivisionError]
    later = add(dispatching, b"later")
    link.calls[0][1].set_result(stored(link.calls[0][0]))
    while len(link.calls) < 2:
        await turns()
    assert link.calls[0][0].producer_id != link.calls[1][0].producer_id
    link.calls[1][1].set_result(stored(link.calls[1][0]))
    await later
    await dispatching.abort(ClientError("over"))


@async_test
async def test_request_goes_under_the_id_that_its_batches_were_numbered_for() -> None:
    """Though a lane in it begins another epoch before the call is made. Under the new id, numbers
    would be taken that later messages get: those would pass for stored and be lost."""
    link = ToldLink("h1:1")
    dispatching = dispatcher(ToldGroup(link))
    await dispatching.registrar.registered()
    doomed = add(dispatching, b"doomed")
    other: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
    dispatching.add(dispatching.lane("t", 1), b"other", other)
    dispatching.seal_all()
    assert dispatching._requests, "no request is on its way to its first turn"
    assert not link.calls
    dispatching._fail(dispatching.lane("t", 0).break_off(DeadlineExceeded("over")))
    assert dispatching._epochs.newest == 1, "no other epoch has begun"
    await turns()
    assert isinstance(doomed.exception(), DeadlineExceeded)
    request, answer = link.calls[0]
    assert request.producer_id == dispatching._epochs.producer_id(0)
    answer.set_result(stored(request))
    await other
    await dispatching.abort(ClientError("over"))


@async_test
async def test_call_that_breaks_costs_one_attempt() -> None:
    """Not the whole delivery timeout, though nobody foresaw what it raised."""
    link = ToldLink("h1:1")
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    dispatching = dispatcher(ToldGroup(link))
    future = add(dispatching, b"x")
    await turns()
    link.calls[0][1].set_exception(ZeroDivisionError())
    while len(link.calls) < 2:
        await turns()
    first, second = link.sequences()
    assert first == second
    link.calls[1][1].set_result(stored(link.calls[1][0]))
    await future
    assert [type(context["exception"]) for context in told] == [ZeroDivisionError]
    await dispatching.abort(ClientError("over"))


def test_timer_that_is_due_at_once_is_a_timer_on_every_loop() -> None:
    """A stall of some milliseconds makes the next look at deadlines due at once, and uvloop has
    another handle for what is due: `send` raised AttributeError until that look."""

    async def scenario() -> None:
        dispatching = dispatcher(ToldGroup(None))
        waiting: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        overdue = asyncio.get_running_loop().time() - 1.0
        dispatching.add_waited(dispatching.lane("t", 1), b"overdue", waiting, overdue)
        later = add(dispatching, b"later")
        with pytest.raises(DeadlineExceeded):
            await waiting
        assert not later.done()
        await dispatching.abort(ClientError("over"))
        assert isinstance(later.exception(), ClientError)

    for make_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(asyncio.wait_for(scenario(), 10))
