"""A producer whose topic takes messages in other queues than it knew (ADR 60, rule 8 of
`dledger.client.lane`): nothing is lost, nothing comes twice, each key's messages stay in order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.client import (
    DeadlineExceeded,
    ProducerClosed,
    ProducerOptions,
    QueueClosed,
    QueueNotFound,
    SendResult,
)
from dledger.client.connection import DESCRIBE_TOPIC
from dledger.client.dispatch import Dispatcher
from dledger.client.errors import ClientError, LeadershipLost, QueuesChanged
from dledger.client.holding import Holding
from dledger.client.lane import Batch, BatchState, Lane
from dledger.client.routing import HeldMessage, Route
from dledger.outcome import Outcome
from dledger.records.record import decode_records
from dledger.testing.fake_nodes import FakeGroup, FakeNode
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test
from tests.client.test_lane import Bench, loop
from tests.client.test_producer import Gate, batches, error_of, producing, refusing
from tests.scale import examples

__all__ = ["loop"]  # a fixture


@pytest.fixture
def bench(loop: asyncio.AbstractEventLoop) -> Bench:
    return Bench(loop)


def changed() -> ClientError:
    return QueuesChanged("other queues", outcome=Outcome.DID_NOT_HAPPEN, retriable=True)


def lost() -> ClientError:
    return LeadershipLost("gone", outcome=Outcome.MAY_HAVE_HAPPENED, retriable=True)


def records(left: list[Batch]) -> list[bytes]:
    return [batch.records for batch in left]


# --- the lane -------------------------------------------------------------------------------------


def test_what_is_withdrawn_is_in_order_and_its_numbers_are_given_again(bench: Bench) -> None:
    """Rule 8: it is not stored, and never will be under them."""
    first, second, third = bench.fly("a", "b", "c")
    bench.gather("d")
    bench.lane.on_stored(first)
    for batch in (second, third):
        assert bench.lane.on_error(batch, changed())
    assert bench.lane.settle() == []
    bench.lane.freeze()
    assert bench.lane.is_quiet
    assert bench.take() == []
    left, failures = bench.lane.withdraw()
    assert records(left) == [b"b", b"c", b"d"]
    assert failures == []
    assert bench.lane.is_empty
    (again,) = bench.fly("e")
    assert again.base_sequence == second.base_sequence


def test_what_is_in_doubt_is_sent_again_before_anything_goes_elsewhere(bench: Bench) -> None:
    """It may be stored where it was; then it must not be stored anywhere else."""
    first, second = bench.fly("a", "b")
    bench.gather("c")
    bench.lane.on_error(first, lost())
    bench.lane.on_error(second, changed())
    bench.lane.settle()
    bench.lane.freeze()
    quiet = [bench.lane.is_quiet]
    assert bench.take() == [first], "and nothing that has no number yet"
    quiet.append(bench.lane.is_quiet)
    bench.lane.on_stored(first)
    bench.lane.settle()
    quiet.append(bench.lane.is_quiet)
    assert quiet == [False, False, True]
    assert records(bench.lane.withdraw()[0]) == [b"b", b"c"]


def test_nothing_goes_elsewhere_while_an_answer_is_on_its_way(bench: Bench) -> None:
    """It may say that the batch is stored; and what is new waits for all of them."""
    first, _ = bench.fly("a", "b")
    bench.lane.on_error(first, changed())
    bench.lane.settle()
    bench.lane.freeze()
    assert not bench.lane.is_quiet


def test_lanes_that_were_refused_nothing_send_nothing_new_either(bench: Bench) -> None:
    """Another lane of the topic was told: what has no number yet is chosen anew."""
    bench.gather("a")
    bench.lane.freeze()
    assert bench.take() == []
    assert records(bench.lane.withdraw()[0]) == [b"a"]


def test_what_is_behind_a_batch_that_was_not_stored_was_not_stored_either(bench: Bench) -> None:
    first, second = bench.fly("a", "b")
    bench.lane.on_error(second, lost())
    bench.lane.on_error(first, changed())
    bench.lane.settle()
    bench.lane.freeze()
    assert bench.lane.is_quiet
    assert bench.take() == []
    assert records(bench.lane.withdraw()[0]) == [b"a", b"b"]


def test_who_was_in_doubt_and_is_refused_by_a_change_is_in_doubt_no_more(bench: Bench) -> None:
    """Whoever says so would know if it were stored."""
    (first,) = bench.fly("a")
    bench.lane.on_error(first, lost())
    assert bench.take() == [first]
    bench.lane.on_error(first, changed())
    (failure,) = bench.lane.expire(1_000.0)
    assert failure.outcome is Outcome.DID_NOT_HAPPEN


def test_deadlines_go_on_while_it_is_not_known_where_to(bench: Bench) -> None:
    """What is over by then isn't sent anywhere."""
    (first,) = bench.fly("a")
    bench.gather("b", deadline=5.0, limit=100.0)
    bench.lane.on_error(first, changed())
    bench.lane.freeze()
    (failure,) = bench.lane.expire(6.0)
    assert (failure.batch.records, failure.outcome) == (b"b", Outcome.DID_NOT_HAPPEN)
    assert first.state is BatchState.MOVED
    assert records(bench.lane.withdraw()[0]) == [b"a"]


# --- the producer ---------------------------------------------------------------------------------


def stored(group: FakeGroup) -> dict[str, list[int]]:
    """By key the numbers of its messages, as they lie in the log."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for queue in group.model.topics["t"]:
        for raw in queue.records:
            record = decode_records(raw)[0]
            place = record.physical_offset
            found[record.properties.get("KEYS", "")].append((place, int(record.body)))
    return {key: [number for _, number in sorted(each)] for key, each in found.items()}


@async_test
async def test_keys_move_with_what_was_not_stored_yet() -> None:
    """The first refusal stops the topic; all goes on in the order of sending."""
    async with producing(queues=2) as (group, client, producer):
        await producer.send("t", b"0", key="k")
        group.model.update("t", 5, 5)
        futures = [producer.send("t", b"%d" % n, key="k") for n in range(1, 4)]
        futures.append(producer.send("t", b"0", key="other"))
        results = await asyncio.gather(*futures)
        assert stored(group) == {"k": [0, 1, 2, 3], "other": [0]}
        assert {each.queue_id for each in results[:3]} == {ord("k") % 5}
        assert [each.write_queues for each in await client.topics()] == [5]
        assert group.leader is not None
        asked = group.leader.calls["DescribeTopic"]
        await producer.send("t", b"4", key="k")
        assert group.leader.calls["DescribeTopic"] == asked, "it was asked once"


@async_test
async def test_a_message_that_names_its_queue_stays_there_or_fails() -> None:
    """Its caller chose; nobody else does."""
    async with producing(queues=4) as (group, _, producer):
        await asyncio.gather(*(producer.send("t", b"0", queue_id=n) for n in range(4)))
        group.model.update("t", 0, 2)
        open_one = producer.send("t", b"1", key="k", queue_id=1)
        closed = producer.send("t", b"1", queue_id=3)
        keyed = producer.send("t", b"1", key="k")
        assert (await open_one).queue_id == 1
        assert (await keyed).queue_id == ord("k") % 2
        error = await error_of(closed)
        assert isinstance(error, QueueClosed)
        assert error.outcome is Outcome.DID_NOT_HAPPEN
        with pytest.raises(QueueNotFound):
            producer.send("t", b"2", queue_id=3)
        assert producer.statistics().buffered_messages == 0
        assert producer.statistics().buffered_bytes == 0
        figures = producer.statistics()
        assert (figures.accepted, figures.stored, figures.failed) == (7, 6, 1)


@pytest.mark.parametrize("queues", [(8, 8), (0, 2)])
@pytest.mark.parametrize("deadline_s", [None, 20.0])
def test_a_message_that_waited_for_its_topic_stays_in_its_queue_or_fails(
    queues: tuple[int, int], deadline_s: float | None
) -> None:
    """The topic was changed between its being read and the first batch."""

    @async_test
    async def changed_in_between() -> None:
        async with producing(nodes=1, queues=4) as (group, _, producer):
            sent = False

            async def change(method: str, node: FakeNode, request: Any) -> None:
                nonlocal sent
                if method == "Send" and not sent:
                    sent = True
                    group.model.update("t", *queues)

            group.before.append(change)
            named = [
                producer.send("t", b"%d" % n, key="a", queue_id=3, deadline_s=deadline_s)
                for n in range(3)
            ]
            free = producer.send("t", b"x", key="a", deadline_s=deadline_s)
            if queues == (8, 8):
                assert [(await future).queue_id for future in named] == [3] * 3
            else:
                assert [type(await error_of(future)) for future in named] == [QueueClosed] * 3
            assert (await free).queue_id == ord("a") % queues[1]

    changed_in_between()


@async_test
async def test_what_was_in_doubt_is_not_stored_a_second_time_elsewhere() -> None:
    """Its answer was lost, and the topic changed: where it was is asked first."""
    async with producing(queues=2) as (group, _, producer):
        await producer.send("t", b"0", key="k")
        losing = 1

        async def lose(method: str, node: FakeNode, request: Any) -> None:
            nonlocal losing
            if method == "Send" and losing:
                losing -= 1
                group.model.update("t", 5, 5)
                raise Refusal(wire_error(epb.LEADERSHIP_LOST))

        group.after.append(lose)
        first = producer.send("t", b"1", key="k")
        await asyncio.sleep(0)
        second = producer.send("t", b"2", key="k")
        assert (await first).duplicate
        assert (await second).queue_id == ord("k") % 5
        assert stored(group) == {"k": [0, 1, 2]}


@async_test
async def test_flush_and_close_wait_for_what_goes_another_way() -> None:
    """What was accepted before is stored when they return."""
    async with producing(queues=2) as (group, _, producer):
        await producer.send("t", b"0", key="k")
        group.model.update("t", 3, 3)
        future = producer.send("t", b"1", key="k")
        await producer.flush()
        assert future.done()
        group.model.update("t", 0, 1)
        last = producer.send("t", b"2", key="k")
        await producer.close()
        assert (await last).queue_id == 0
        assert stored(group) == {"k": [0, 1, 2]}


@async_test
async def test_flush_waits_for_what_another_look_at_the_topic_sends_another_way() -> None:
    """No answer has told of the change: a search for another message found it."""
    async with producing(nodes=1, queues=2) as (group, _, producer):
        gate = Gate("RegisterProducer")
        group.before.append(gate)
        first = producer.send("t", b"1", key="k")
        await gate.arrived.get()
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0)
        with pytest.raises(QueueNotFound):
            producer.send("t", b"x", queue_id=99)
        group.model.update("t", 3, 3)
        second = producer.send("t", b"2", key="k")  # asks for the topic
        await producer._holding.searched()
        await asyncio.sleep(0.02)
        was_early = flushing.done()
        gate.opened.set()
        await flushing
        assert not was_early
        assert first.done()
        await second
        assert stored(group) == {"k": [1, 2]}


@async_test
async def test_who_cannot_ask_where_to_tells_its_messages() -> None:
    """The topic is gone when it is looked for: nothing is left behind."""
    async with producing(queues=2) as (group, _, producer):
        await producer.send("t", b"0", key="k")
        group.model.update("t", 3, 3)
        gate = Gate("DescribeTopic")
        group.before.append(gate)
        moving = producer.send("t", b"1", key="k")
        await gate.arrived.get()
        later = producer.send("t", b"2", key="k")
        group.model.delete("t")
        gate.opened.set()
        for future in (moving, later):
            error = await error_of(future)
            assert (error.code, error.outcome) == ("TOPIC_NOT_FOUND", Outcome.DID_NOT_HAPPEN)
        assert producer.statistics().buffered_messages == 0


@pytest.mark.parametrize("made_anew", [False, True])
@async_test
async def test_what_is_frozen_while_a_topic_that_is_gone_is_asked_for_is_told_too(
    *, made_anew: bool
) -> None:
    """The search began for another message, before an answer told of other queues. What was sent to
    no topic yet goes to the one that is there by then."""
    async with producing(nodes=1, queues=2) as (group, _, producer), asyncio.timeout(10.0):
        await producer.send("t", b"0", key="k")
        gate = Gate("DescribeTopic")
        group.before.append(gate)
        futures = [producer.send("t", b"1", key="k")]
        with pytest.raises(QueueNotFound):
            producer.send("t", b"x", queue_id=99)
        group.model.update("t", 3, 3)
        futures.append(producer.send("t", b"2", key="k"))
        await gate.arrived.get()
        while not any(each.is_frozen for each in producer._dispatcher.lanes_of("t")):
            await asyncio.sleep(0)
        group.model.delete("t")
        if made_anew:
            group.model.create("t", 2)
        gate.opened.set()
        sent, held = futures
        error = await error_of(sent)
        code = "TOPIC_REPLACED" if made_anew else "TOPIC_NOT_FOUND"
        assert (error.code, error.outcome) == (code, Outcome.DID_NOT_HAPPEN)
        if made_anew:
            assert (await held).queue_offset == 0
        else:
            assert (await error_of(held)).code == code
        assert producer.statistics().buffered_messages == 0


@async_test
async def test_word_of_other_queues_that_comes_late_is_of_a_topic_that_is_gone() -> None:
    """The topic was made anew since, and that is known: what it is about isn't sent anywhere, and
    nobody has to wait for his deadline to hear so."""
    async with producing(nodes=1, queues=2) as (group, _, producer), asyncio.timeout(30.0):
        await producer.send("t", b"0", key="k")
        come, go = asyncio.Event(), asyncio.Event()

        async def late(method: str, node: FakeNode, request: Any) -> None:
            if method == "Send" and not come.is_set():
                come.set()
                await go.wait()
                raise Refusal(wire_error(epb.QUEUES_CHANGED))

        group.before.append(late)
        first = producer.send("t", b"1", key="k")
        await come.wait()
        group.model.create("t", 2)
        with pytest.raises(QueueNotFound):
            producer.send("t", b"x", queue_id=99)
        second = producer.send("t", b"2", key="k")
        while producer._dispatcher.lanes_of("t")[0].incarnation < 2:
            await asyncio.sleep(0)
        go.set()
        error = await error_of(first)
        assert (error.code, error.outcome) == ("TOPIC_REPLACED", Outcome.DID_NOT_HAPPEN)
        assert (await second).queue_offset == 0


@async_test
async def test_who_gets_nowhere_looks_at_the_topic_again() -> None:
    """A leader that knows of no such change says so for ever, after a recovery by force."""
    async with producing(ProducerOptions(delivery_timeout_ms=800), queues=2) as (
        group,
        _,
        producer,
    ):
        await producer.send("t", b"0", key="k")
        refusals = [wire_error(epb.NOT_READY)] * 400
        group.before.append(refusing("Send", *refusals))
        with pytest.raises(DeadlineExceeded):
            await producer.send("t", b"1", key="k")
        group.before.clear()
        assert group.leader is not None
        asked = group.leader.calls["DescribeTopic"]
        await producer.send("t", b"2", key="k")  # nobody refuses it
        assert group.leader.calls["DescribeTopic"] == asked + 1
        group.model.update("t", 3, 3)
        assert (await producer.send("t", b"3", key="k")).queue_id == ord("k") % 3


@async_test
async def test_what_is_frozen_while_the_topic_is_asked_for_is_waited_for_too() -> None:
    """A search began, for another message, before anybody knew that there are other queues; what
    was sent is answered while it asks, or after: nothing of it goes elsewhere before."""
    async with producing(queues=2) as (group, _, producer):
        for queue_id in (0, 1):
            await producer.send("t", b"0", queue_id=queue_id)
        stored_late, asked, told, answered = (asyncio.Event() for _ in range(4))

        async def answer_late(method: str, node: FakeNode, request: Any) -> None:
            if method == "Send" and not stored_late.is_set():
                stored_late.set()
                await answered.wait()

        async def ask_long(method: str, node: FakeNode, request: Any) -> None:
            if method == "DescribeTopic":
                asked.set()
                await told.wait()

        group.after.append(answer_late)
        group.before.append(ask_long)
        sent = [producer.send("t", b"1", key="k")]
        await stored_late.wait()
        sent.append(producer.send("t", b"2", key="l"))
        with pytest.raises(QueueNotFound):
            producer.send("t", b"x", queue_id=99)
        group.model.update("t", 5, 5)
        sent.append(producer.send("t", b"3", key="k"))
        await asked.wait()
        lanes = producer._dispatcher.lanes_of("t")
        while not any(each.is_frozen for each in lanes):
            await asyncio.sleep(0)
        told.set()
        await asyncio.sleep(0.05)
        answered.set()
        results = await asyncio.gather(*sent)
        bodies = [body for queue_id in range(5) for body in group.model.bodies("t", queue_id)]
        assert sorted(bodies) == [b"0", b"0", b"1", b"2", b"3"]
        assert results[0].queue_id == ord("k") % 2
        assert stored(group)["k"] == [1, 3]


@async_test
async def test_what_is_held_in_the_turn_in_which_a_search_ended_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That search has let go of what it knew of, and looks for nothing more; the answer that tells
    of other queues, and the next message, come before the loop has told of its end."""
    async with producing(nodes=1, queues=2) as (group, _, producer):
        release = Holding._release
        later: list[asyncio.Future[SendResult]] = []

        def change() -> None:
            group.model.update("t", 3, 3)
            producer._on_queues_changed(producer._dispatcher.lanes_of("t")[0])
            later.append(producer.send("t", b"1", key="k"))

        def release_first(self: Holding, route: Route, message: HeldMessage) -> None:
            release(self, route, message)
            if not later:
                asyncio.get_running_loop().call_soon(change)

        monkeypatch.setattr(Holding, "_release", release_first)
        first = producer.send("t", b"0", key="k")
        async with asyncio.timeout(10.0):
            await first
            await producer.flush()
        assert [future.done() for future in later] == [True]
        assert stored(group) == {"k": [0, 1]}


@async_test
async def test_a_search_has_one_deadline_however_often_it_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first answer tells of other queues, and lanes are frozen for that; the second call has
    what is left."""
    async with producing(nodes=1, queues=2) as (group, client, producer):
        await producer.send("t", b"0", key="k")
        with pytest.raises(QueueNotFound):
            producer.send("t", b"x", queue_id=99)
        group.model.update("t", 3, 3)
        given: list[float] = []
        call = client._broker_group.call

        async def record(method: Any, *arguments: Any, **named: Any) -> Any:
            if method is DESCRIBE_TOPIC:
                given.append(named["deadline_s"])
                await asyncio.sleep(0.2)
            return await call(method, *arguments, **named)

        monkeypatch.setattr(client._broker_group, "call", record)
        await producer.send("t", b"1", key="k")
        first, second = given
        assert second < first - 0.1


@async_test
async def test_who_cancels_a_search_may_ask_for_the_topic_at_once() -> None:
    """Who waited is told; the next message has a search of its own, which ends as it should."""
    async with producing(nodes=1, queues=2) as (group, _, producer):
        gate = Gate("DescribeTopic")
        group.before.append(gate)
        first = producer.send("t", b"0", key="k")
        again: list[asyncio.Future[SendResult]] = []
        first.add_done_callback(lambda _: again.append(producer.send("t", b"1", key="k")))
        await gate.arrived.get()
        (search,) = producer._holding._searches.values()
        search.cancel()
        async with asyncio.timeout(10.0):
            assert isinstance(await error_of(first), ProducerClosed)
            gate.opened.set()
            await again[0]
        assert stored(group) == {"k": [1]}


@async_test
async def test_message_that_is_in_its_lane_is_not_said_to_have_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for its topic, with a deadline of its own, and a fault of ours comes right behind:
    it is sent (seeds 2615029, 2615064, 2615158 of the library's simulation)."""
    async with producing(queues=2) as (group, _, producer):
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        seal, calls = Lane.seal, 0

        def break_behind(self: Lane) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise RuntimeError("behind it")
            seal(self)

        monkeypatch.setattr(Lane, "seal", break_behind)
        result = await producer.send("t", b"1", key="k", deadline_s=20.0)
        assert calls > 2
        assert group.model.bodies("t", result.queue_id) == [b"1"]


@async_test
async def test_nobody_waits_when_choosing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours: the messages are told, and the next ones go on."""
    async with producing(queues=2) as (group, _, producer):
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        await producer.send("t", b"0", key="k")
        group.model.update("t", 3, 3)
        with monkeypatch.context() as patched:
            patched.setattr(Dispatcher, "put", None)
            error = await error_of(producer.send("t", b"1", key="k"))
        assert error.code == "CLIENT_FAULT"
        assert [type(context["exception"]) for context in told] == [TypeError]
        await producer.send("t", b"2", key="k")
        assert producer.statistics().buffered_messages == 0


@async_test
async def test_what_may_go_on_when_choosing_fails_midway_is_not_said_to_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some messages are in other batches by then, and stored: they are told so, the others fail,
    and none is counted twice."""
    async with producing(queues=2) as (group, _, producer):
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        await producer.send("t", b"0", key="k")
        group.model.update("t", 3, 3)
        put, calls = Dispatcher.put, 0

        def break_midway(self: Dispatcher, lane: Lane, batch: Batch) -> None:
            nonlocal calls
            calls += 1
            if calls == 3:  # of the second queue, whose keys go to two
                raise RuntimeError("midway")
            put(self, lane, batch)

        with monkeypatch.context() as patched:
            patched.setattr(Dispatcher, "put", break_midway)
            keys = ["k", "l", "m", "k", "l", "m"]
            futures = [producer.send("t", b"%d" % n, key=key) for n, key in enumerate(keys, 1)]
            found = await asyncio.gather(*futures, return_exceptions=True)
            await producer.flush()
        there = {number for numbers in stored(group).values() for number in numbers}
        assert there > {0}, "something went on"
        for number, each in enumerate(found, 1):
            if isinstance(each, ClientError):
                assert (each.code, each.outcome) == ("CLIENT_FAULT", Outcome.DID_NOT_HAPPEN)
            assert isinstance(each, SendResult) == (number in there)
        figures = producer.statistics()
        assert figures.buffered_messages == figures.buffered_bytes == 0
        assert figures.stored + figures.failed == figures.accepted
        assert (await producer.send("t", b"9", key="k")).queue_id == ord("k") % 3


ACTS = st.one_of(
    st.tuples(st.just("update"), st.integers(1, 6)),
    st.tuples(st.just("send"), st.integers(0, 4)),
    st.tuples(st.just("lose"), st.integers(1, 2)),
    st.tuples(st.just("turns"), st.integers(1, 20)),
)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 4), st.lists(ACTS, min_size=5, max_size=30), st.integers(0, 1 << 16))
def test_whatever_changes_while_it_sends_each_key_is_in_order(
    queues: int, acts: list[tuple[str, int]], seed: int
) -> None:
    """With answers lost in between; everything is stored, once."""

    @async_test
    async def played() -> None:
        chance = random.Random(seed)
        options = ProducerOptions(batch_bytes=1_024)
        async with producing(options, nodes=1, queues=queues) as setting:
            group, _, producer = setting
            sent: dict[str, int] = defaultdict(int)
            futures: list[asyncio.Future[SendResult]] = []
            left = 0

            async def lose(method: str, node: FakeNode, request: Any) -> None:
                nonlocal left
                if method == "Send" and left:
                    left -= 1
                    raise Refusal(wire_error(epb.LEADERSHIP_LOST))

            group.after.append(lose)
            for what, value in acts:
                if what == "update":
                    group.model.update("t", value, value)
                elif what == "lose":
                    left = value
                elif what == "turns":
                    for _ in range(value):
                        await asyncio.sleep(0)
                else:
                    for _ in range(chance.randint(1, 6)):
                        key = f"key{value}"
                        futures.append(producer.send("t", b"%d" % sent[key], key=key))
                        sent[key] += 1
            await producer.flush()
            results = await asyncio.gather(*futures)
            assert stored(group) == {key: list(range(count)) for key, count in sent.items()}
            assert len(batches(group)) >= bool(results)

    played()
