"""Producers are registered before their first message, once, and again where they must (ADR 25)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dledger.client import (
    InvalidArgument,
    LimitReached,
    Outcome,
    ProducerClosed,
    ProducerFenced,
    ProducerOptions,
)
from dledger.client.epochs import Epochs, Registration
from dledger.testing.fake_nodes import FakeGroup, FakeNode
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test
from tests.client.test_producer import Gate, error_of, producing, refusing, refusing_queue

NAMED = ProducerOptions(name="billing")


def registrations(group: FakeGroup) -> int:
    """Calls, over all nodes."""
    return sum(node.calls["RegisterProducer"] for node in group.nodes)


@async_test
async def test_a_producer_registers_once_and_before_its_first_message() -> None:
    """No round trip more after that, whichever queues it sends to."""
    async with producing(queues=4) as (group, _, producer):
        assert registrations(group) == 0
        for queue_id in range(4):
            await asyncio.gather(*(producer.send("t", b"x", queue_id=queue_id) for _ in range(5)))
        assert registrations(group) == 1
        assert {request.producer_id for request in group.sends} == {
            each.producer_id for each in group.model.producers.values()
        }


@async_test
async def test_a_lost_answer_makes_no_second_registration() -> None:
    """The same token is asked for again."""
    async with producing() as (group, _, producer):
        group.after.append(refusing("RegisterProducer", wire_error(epb.LEADERSHIP_LOST)))
        assert (await producer.send("t", b"x")).queue_offset == 0
        assert (registrations(group), len(group.model.producers)) == (2, 1)


@async_test
async def test_a_forgotten_producer_registers_anew_where_nothing_is_in_doubt() -> None:
    """What was refused for that was not stored, and goes again under the new id."""
    async with producing() as (group, _, producer):
        await producer.send("t", b"a")
        group.model.forget()
        results = await asyncio.gather(*(producer.send("t", bytes((n,))) for n in range(3)))
        assert [result.queue_offset for result in results] == [1, 2, 3]
        assert registrations(group) == 2


@async_test
async def test_what_is_in_doubt_when_forgotten_may_have_been_stored() -> None:
    """It is not sent as if it were new: it is stored once, and its sender is told what is known."""
    async with producing() as (group, _, producer):
        await producer.send("t", b"warm up")

        async def lose(method: str, node: FakeNode, request: Any) -> None:
            if method == "Send":
                group.after.clear()
                group.model.forget()
                raise Refusal(wire_error(epb.LEADERSHIP_LOST))

        group.after.append(lose)
        error = await error_of(producer.send("t", b"once"))
        assert (error.code, error.outcome) == ("UNKNOWN_PRODUCER", Outcome.MAY_HAVE_HAPPENED)
        assert (await producer.send("t", b"next")).queue_offset == 2
        assert group.model.bodies("t", 0) == [b"warm up", b"once", b"next"]


@async_test
async def test_a_full_group_refuses_by_name_and_is_asked_again() -> None:
    """Nothing of what waited was stored."""
    async with producing() as (group, _, producer):
        group.model.max_producers = 0
        for _ in range(2):
            error = await error_of(producer.send("t", b"x"))
            assert isinstance(error, LimitReached)
            assert error.outcome is Outcome.DID_NOT_HAPPEN
        group.model.max_producers = 1
        assert (await producer.send("t", b"x")).queue_offset == 0


@async_test
async def test_refusals_without_doubt_need_no_registration() -> None:
    """Or an application that sends nonsense would use up the group's producers."""
    async with producing() as (group, _, producer):
        refusing_queue(group, 0, *[wire_error(epb.INVALID_ARGUMENT)] * 20)
        for _ in range(20):
            await error_of(producer.send("t", b"bad"))
        await producer.send("t", b"good")
        assert registrations(group) == 1


# --- names ------------------------------------------------------------------------------------


@async_test
async def test_a_name_goes_on_in_another_process() -> None:
    """Its successor is told how many of its messages each queue holds, and numbers on."""
    async with producing(NAMED, queues=2) as (group, client, first):
        await asyncio.gather(*(first.send("t", b"a", queue_id=1) for _ in range(3)))
        async with client.producer(NAMED) as second:
            registration = await second.register()
            assert registration.next_sequences == {("t", 1): 3}
            assert registration.origin == (await first.register()).origin
            await second.send("t", b"b", queue_id=1)
            assert group.sends[-1].batches[0].base_sequence == 3
            assert (await second.register()) is registration


@async_test
async def test_whoever_had_the_name_is_fenced_for_good() -> None:
    """It never takes the name back, and each of its messages is refused by name."""
    async with producing(NAMED) as (group, client, first):
        await first.send("t", b"a")
        async with client.producer(NAMED) as second:
            await second.send("t", b"b")
            for _ in range(2):
                error = await error_of(first.send("t", b"late"))
                assert isinstance(error, ProducerFenced)
                assert error.outcome is Outcome.DID_NOT_HAPPEN
            with pytest.raises(ProducerFenced):
                await first.register()
            await second.send("t", b"c")
        assert group.model.bodies("t", 0) == [b"a", b"b", b"c"]


@async_test
async def test_queues_of_a_name_move_together() -> None:
    """One queue's doubt makes a new registration; another queue's batch that is under way, and is
    fenced by that, is sent again under the new id with the number that it has."""
    async with producing(NAMED, queues=2) as (group, _, producer):
        await producer.send("t", b"0", queue_id=1)
        refusing_queue(group, 0, wire_error(epb.INTERNAL))
        refusing_queue(group, 1, *[wire_error(epb.BUSY)] * 3)
        bad, busy = producer.send("t", b"x", queue_id=0), producer.send("t", b"1", queue_id=1)
        assert (await error_of(bad)).outcome is Outcome.MAY_HAVE_HAPPENED
        assert (await busy).queue_offset == 1
        assert (await producer.send("t", b"y", queue_id=0)).queue_offset == 0
        assert registrations(group) == 2
        assert len({request.producer_id for request in group.sends}) == 2
        assert group.model.bodies("t", 1) == [b"0", b"1"]


@async_test
async def test_what_is_in_doubt_when_a_name_is_forgotten_may_have_been_stored() -> None:
    """Another queue's refusal makes the new registration; under its numbers, which begin anew, the
    batch would be stored again."""
    async with producing(NAMED, queues=2) as (group, _, producer):
        await producer.register()

        async def lose(method: str, node: FakeNode, request: Any) -> None:
            if method == "Send":
                group.after.clear()
                group.model.forget()
                refusing_queue(group, 1, *[wire_error(epb.BUSY)] * 20)
                raise Refusal(wire_error(epb.LEADERSHIP_LOST))

        group.after.append(lose)
        once = producer.send("t", b"once", queue_id=1)
        while group.after:
            await asyncio.sleep(0)
        other = producer.send("t", b"other", queue_id=0)
        error = await error_of(once)
        assert (error.code, error.outcome) == ("UNKNOWN_PRODUCER", Outcome.MAY_HAVE_HAPPENED)
        assert (await other).queue_offset == 0
        assert group.model.bodies("t", 1) == [b"once"]


@async_test
async def test_what_was_stored_long_ago_has_no_place() -> None:
    """A duplicate all the same; offsets that nobody remembers are not made up."""
    async with producing(NAMED) as (group, _, producer):
        await asyncio.gather(*(producer.send("t", b"x") for _ in range(3)))
        lane = producer._dispatcher.lane("t", 0)
        lane._next_sequence = 0  # as a program whose first answers were lost
        for state in group.model.sequences.values():
            state.recent.clear()
        result = await producer.send("t", b"x")
        assert (result.duplicate, result.has_place, result.queue_offset) == (True, False, -1)
        assert result.message_id == ""
        assert producer.statistics().duplicates == 1
        assert len(group.model.bodies("t", 0)) == 3


@async_test
async def test_closing_ends_a_registration_that_is_under_way() -> None:
    """Whoever waits for it is told; nothing of the messages behind it was stored."""
    async with producing() as (group, _, producer):
        gate = Gate("RegisterProducer")
        group.before.append(gate)
        waiting = asyncio.create_task(producer.register())
        sent = producer.send("t", b"x")
        await gate.arrived.get()
        await producer.abort()
        with pytest.raises(ProducerClosed):
            await waiting
        error = await error_of(sent)
        assert (type(error), error.outcome) == (ProducerClosed, Outcome.DID_NOT_HAPPEN)
        with pytest.raises(ProducerClosed):
            await producer.register()
        gate.opened.set()


@async_test
async def test_a_registration_that_is_refused_for_now_is_tried_again() -> None:
    """NOT_READY, BUSY: the messages behind it wait."""
    async with producing() as (group, _, producer):
        errors = [wire_error(epb.BUSY), wire_error(epb.NOT_READY)]
        group.before.append(refusing("RegisterProducer", *errors))
        assert (await producer.send("t", b"x")).queue_offset == 0


@pytest.mark.parametrize("name", ["a b", "ä", "x" * 256, "a\n"])
def test_a_name_that_no_broker_takes_is_refused_where_it_is_written(name: str) -> None:
    """Not at the first message."""
    with pytest.raises(InvalidArgument, match="producer name"):
        ProducerOptions(name=name)


def test_numbers_of_a_name_are_kept_of_its_newest_registration_only() -> None:
    """A name's queues may be thousands, and each doubt is another registration."""
    epochs = Epochs("billing")
    for number in range(100):
        numbers = {("t", queue_id): number for queue_id in range(64)}
        epochs.on_registered(Registration(bytes([number]), b"origin", numbers))
        assert epochs.first_sequence(epochs.newest, "t", 63) == number
        epochs.after(epochs.newest)
    assert sum(bool(epochs.registration(each).next_sequences) for each in range(100)) == 1
    assert [epochs.producer_id(each)[0] for each in range(100)] == [*range(100)]
    with pytest.raises(AssertionError):
        epochs.first_sequence(98, "t", 63)
