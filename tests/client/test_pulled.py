"""Answers that are wrong in one number: nothing counts as finished that nobody was given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from struct import pack_into, unpack_from
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.client import (
    ALL,
    Client,
    Delivery,
    Message,
    PullConsumer,
    RecordCorrupt,
    StartFrom,
)
from dledger.client.members import pulling
from dledger.client.members.pulling import Brought
from dledger.client.pulled import Asked, check_positions, handed_out, pulled
from dledger.outcome import Outcome
from dledger.records.layout import RECORD
from dledger.records.record import RecordTemplate, decode_records, record_starts
from dledger.testing.fake_nodes import FakeGroup
from dledger.wire import broker_pb2 as pb
from dledger.wire import deliveries_pb2 as dpb
from dledger.wire import groups_pb2 as gpb
from tests.client.loops import async_test
from tests.client.members.test_push import PUSH, running, stocked, until

NUMBERS: Final = ("count", "next_offset", "max_offset", "topic_incarnation", "void_count")
FIELDS: Final = (*NUMBERS, "filtered_count", "min_offset")
OFFSET_AT: Final = RECORD.at("queue_offset")
QUEUE_AT: Final = RECORD.at("queue_id")
TEMPLATE: Final = RecordTemplate("t", ("10.0.0.1", 1))

Change = Callable[[Any], None]


def records(*offsets: int) -> bytes:
    """Of topic `t`, queue 2."""
    found = bytearray()
    for offset in offsets:
        start = len(found)
        found += TEMPLATE.encode(2, b"body", b"", 1)
        pack_into(">Q", found, start + OFFSET_AT, offset)
    return bytes(found)


def answered(first: int, offsets: list[int], until: int, voids: int) -> gpb.PulledQueue:
    """Of a queue of 1,000, asked from `first` on; what is neither there nor void is left out."""
    return gpb.PulledQueue(
        records=records(*offsets),
        count=len(offsets),
        next_offset=until,
        max_offset=1_000,
        topic_incarnation=7,
        void_count=voids,
        filtered_count=until - first - len(offsets) - voids,
    )


def stamped(part: Any, at: int, place: int, change: Callable[[int], int], form: str) -> None:
    """The field at that place of a record is another one."""
    content = bytearray(part.records)
    count = len(decode_records(part.records))
    start = record_starts(content, 0, count)[at % count] + place
    (value,) = unpack_from(form, content, start)
    pack_into(form, content, start, change(value))
    part.records = bytes(content)


def fields_flipped(bit: int) -> dict[str, Change]:
    """One bit of each number."""

    def flip(field: str) -> Change:
        return lambda part: setattr(part, field, getattr(part, field) ^ 1 << bit)

    return {field: flip(field) for field in FIELDS}


def without(part: Any, at: int) -> None:
    """The records, but for one."""
    starts = [*record_starts(part.records, 0, len(decode_records(part.records)))]
    starts.append(len(part.records))
    at %= len(starts) - 1
    part.records = part.records[: starts[at]] + part.records[starts[at + 1] :]


def another_topic(part: Any) -> None:
    """The first record is of topic `u`."""
    (size,) = unpack_from(">I", part.records, RECORD.at("body_length"))
    at = RECORD.at("body") + size + 1
    part.records = part.records[:at] + b"u" + part.records[at + 1 :]


RECORDS: Final[dict[str, Change]] = {
    "one is missing": lambda part: without(part, 1),
    "none is there": lambda part: setattr(part, "records", b""),
    "one is there twice": lambda part: setattr(part, "records", part.records * 2),
    "another queue": lambda part: stamped(part, 1, QUEUE_AT, lambda queue: queue ^ 1, ">i"),
    "another topic": another_topic,
    "a later offset": lambda part: stamped(part, 1, OFFSET_AT, lambda at: at + 2, ">Q"),
    "an earlier offset": lambda part: stamped(part, 1, OFFSET_AT, lambda at: at ^ 1, ">Q"),
    "an offset far away": lambda part: stamped(part, -1, OFFSET_AT, lambda at: at + 50, ">Q"),
}
CHANGES: Final = fields_flipped(0) | fields_flipped(2) | RECORDS


# --- the judge ------------------------------------------------------------------------------------


@st.composite
def answers(draw: st.DrawFn) -> tuple[Asked, gpb.PulledQueue]:
    """As brokers give them: without tags voids come first."""
    first, by_tags = draw(st.integers(0, 100)), draw(st.booleans())
    if by_tags:
        until = first + draw(st.integers(1, 20))
        offsets = sorted(draw(st.sets(st.integers(first, until - 1))))
        voids = draw(st.integers(0, until - first - len(offsets)))
    else:
        voids, count = draw(st.integers(0, 5)), draw(st.integers(1, 10))
        until = first + voids + count
        offsets = [*range(until - count, until)]
    return Asked("t", 7, 2, first, by_tags), answered(first, offsets, until, voids)


@given(answers(), st.sampled_from(FIELDS), st.integers(0, 31))
def test_number_that_has_flipped_is_told_or_changes_nothing(
    made: tuple[Asked, gpb.PulledQueue], field: str, bit: int
) -> None:
    """Whichever bit of whichever number."""
    asked, part = made
    right = pulled(part, asked).messages(), part.next_offset
    setattr(part, field, getattr(part, field) ^ 1 << bit)
    try:
        found = pulled(part, asked).messages(), part.next_offset
    except RecordCorrupt:
        return
    assert field in ("min_offset", "max_offset")
    assert found == right


@given(answers(), st.integers(0, 20), st.integers(0, 62))
def test_offset_of_a_record_that_has_flipped_is_told(
    made: tuple[Asked, gpb.PulledQueue], at: int, bit: int
) -> None:
    """Where tags leave some out it may be that of a neighbour that was: nobody can tell. It is
    never one that another message has, nor outside of what was looked at."""
    asked, part = made
    if not part.count:
        return
    stamped(part, at, OFFSET_AT, lambda offset: offset ^ 1 << bit, ">Q")
    try:
        found = [each.queue_offset for each in pulled(part, asked).messages()]
    except RecordCorrupt:
        return
    assert asked.by_tags
    assert asked.offset <= found[0]
    assert found[-1] < part.next_offset
    assert all(before < after for before, after in pairwise(found))


@pytest.mark.parametrize("change", RECORDS.values(), ids=RECORDS)
@pytest.mark.parametrize("by_tags", [False, True])
def test_records_that_are_not_those_told_of_are_refused(change: Change, by_tags: bool) -> None:
    """By tags as well, as nothing is left out here."""
    part = answered(4, [4, 5, 6, 7], 8, 0)
    change(part)
    with pytest.raises(RecordCorrupt):
        pulled(part, Asked("t", 7, 2, 4, by_tags)).messages()


def test_record_cannot_be_at_an_offset_that_is_void() -> None:
    """Without tags the void ones come first."""
    part = answered(4, [7], 8, 3)
    assert pulled(part, Asked("t", 7, 2, 4, by_tags=False)).messages()
    part.records = records(5)
    with pytest.raises(RecordCorrupt, match="out of place"):
        pulled(part, Asked("t", 7, 2, 4, by_tags=False)).messages()


def test_broker_that_does_not_know_a_number_is_believed() -> None:
    """From before void offsets, filters and incarnations: it has none of them."""
    answer = pb.PullResponse(records=records(4, 5), count=2, next_offset=6, max_offset=6)
    found = pulled(answer, Asked("t", 7, 2, 4, by_tags=True)).messages()
    assert [each.queue_offset for each in found] == [4, 5]
    another = Asked("t", 0, 2, 4, by_tags=False)
    answer.topic_incarnation = 9
    assert len(pulled(answer, another).messages()) == 2


def test_parts_are_of_different_queues_that_were_asked_for() -> None:
    """What is told of one is nothing of another."""
    for positions, is_right in (([], True), ([1, 0], True), ([0, 0], False), ([2], False)):
        parts = [gpb.PulledQueue(position=each) for each in positions]
        answer = gpb.PullQueuesResponse(queues=parts)
        if is_right:
            check_positions(answer, 2)
        else:
            with pytest.raises(RecordCorrupt):
                check_positions(answer, 2)


def test_wrong_answer_is_no_end_of_a_queue() -> None:
    """A loop would end there, and what the answer was to have told of be read by nobody."""
    part = gpb.PulledQueue(next_offset=9, max_offset=9)
    nothing: Any = None
    assert Brought(nothing, nothing, part).is_at_its_end
    assert not Brought(nothing, nothing, part, error=RecordCorrupt("wrong")).is_at_its_end


def test_messages_that_were_handed_out_are_at_places_of_their_own() -> None:
    """Of two at one place the first to be done would have the other acknowledged. They come in any
    order: those that were due first come first."""

    def part(*offsets: int, attempt: int = 1) -> dpb.HandedOut:
        return dpb.HandedOut(
            queue_id=2, handout=9, attempt=attempt, count=len(offsets), records=records(*offsets)
        )

    (_, first), (_, second) = handed_out([part(8, 4), part(5, attempt=2)], "t")
    assert [each.queue_offset for each in (*first, *second)] == [8, 4, 5]
    for parts in ([part(4, 5, 4)], [part(4), part(4, attempt=2)]):
        with pytest.raises(RecordCorrupt, match="places"):
            handed_out(parts, "t")
    for field in ("count", "queue_id"):
        wrong = part(4, 5)
        setattr(wrong, field, getattr(wrong, field) + 1)
        with pytest.raises(RecordCorrupt):
            handed_out([wrong], "t")
    with pytest.raises(RecordCorrupt, match="0 are of topic"):
        handed_out([part(4)], "u")


# --- who reads ------------------------------------------------------------------------------------


def changing(group: FakeGroup, method: str, change: Callable[[Any], bool]) -> list[int]:
    """The first answers that `change` changes something of are wrong; a number for each."""
    plain: Callable[[Any, Any], Awaitable[Any]] = group.handler(method)
    changed: list[int] = []

    async def answer(node: Any, request: Any) -> Any:
        found = await plain(node, request)
        if len(changed) < 2 and change(found):
            changed.append(1)
        return found

    setattr(group, f"on_{method}", answer)
    return changed


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "REST_S", 0.01)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_member_is_given_all_however_wrong_an_answer_was(change: Change) -> None:
    """It pulls again; what is committed was handed out."""

    @async_test
    async def scenario() -> None:
        async with stocked(2, 9) as (group, client):
            seen: list[tuple[int, int]] = []

            def wrong(answer: gpb.PullQueuesResponse) -> bool:
                parts = [each for each in answer.queues if each.count > 3]
                for part in parts:
                    change(part)
                return bool(parts)

            changed = changing(group, "PullQueues", wrong)
            service = client.push_consumer("g", PUSH)

            @service.on("t")
            async def handle(message: Message) -> None:
                seen.append((message.queue_id, message.queue_offset))

            async with running(service):
                await until(lambda: [group.members.frontier("g", "t", q) for q in (0, 1)] == [9, 9])
            assert changed
            assert sorted(seen) == [(queue, offset) for queue in (0, 1) for offset in range(9)]

    scenario()


@pytest.mark.parametrize("other", [lambda at: at ^ 1, lambda at: 7, lambda at: 0])
def test_member_takes_what_is_of_one_queue_for_no_other(other: Callable[[int], int]) -> None:
    """Nor for one that it hasn't asked for."""

    @async_test
    async def scenario() -> None:
        async with stocked(2, 9) as (group, client):
            seen: list[tuple[int, int]] = []

            def wrong(answer: gpb.PullQueuesResponse) -> bool:
                for part in answer.queues:
                    part.position = other(part.position)
                return bool(answer.queues)

            changing(group, "PullQueues", wrong)
            service = client.push_consumer("g", PUSH)

            @service.on("t")
            async def handle(message: Message) -> None:
                seen.append((message.queue_id, message.queue_offset))

            async with running(service):
                await until(lambda: [group.members.frontier("g", "t", q) for q in (0, 1)] == [9, 9])
            assert sorted(seen) == [(queue, offset) for queue in (0, 1) for offset in range(9)]

    scenario()


async def read_on(consumer: PullConsumer, seen: list[int], committed: Callable[[], int]) -> None:
    """Reads nine messages; where it can't, it commits, and goes on behind what it was given."""
    while len(seen) < 9:
        try:
            async for message in consumer:
                seen.append(message.queue_offset)
                if len(seen) == 9:
                    return
        except RecordCorrupt:
            await consumer.commit()
            assert committed() <= len(seen)
            await consumer.seek(0, consumer.positions.get(0, 0))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_reader_is_told_of_a_wrong_answer_and_commits_nothing_of_it(change: Change) -> None:
    """Outside of members, where the application goes on by itself."""

    @async_test
    async def scenario() -> None:
        async with stocked(1, 9) as (group, client):

            def wrong(answer: pb.PullResponse) -> bool:
                if answer.count > 3:
                    change(answer)
                return answer.count > 3

            changed = changing(group, "Pull", wrong)
            consumer = client.pull_consumer("t", group="g", queues=ALL)
            seen: list[int] = []

            def committed() -> int:
                return group.model.offsets.get(("g", "t"), {}).get(0, 0)

            async with consumer:
                await read_on(consumer, seen, committed)
                await consumer.commit()
            assert changed
            assert seen == [*range(9)]

    scenario()


@async_test
async def test_single_pull_gives_nothing_of_a_wrong_answer() -> None:
    """Its caller would go on at `next_offset`."""
    async with stocked(1, 9) as (group, client):

        def wrong(answer: pb.PullResponse) -> bool:
            answer.next_offset += 1
            return True

        changing(group, "Pull", wrong)
        for _ in range(2):
            with pytest.raises(RecordCorrupt, match="contradicts itself"):
                await client.pull("t", 0, 2)
        assert (await client.pull("t", 0, 2)).next_offset == 9


@asynccontextmanager
async def handing_out(change: Change) -> AsyncIterator[tuple[FakeGroup, Client]]:
    """The first receives are answered wrongly."""
    async with stocked(1, 4) as (group, client):

        def wrong(answer: dpb.ReceiveResponse) -> bool:
            for part in answer.handed:
                change(part)
            return bool(answer.handed)

        changing(group, "Receive", wrong)
        yield group, client


@pytest.mark.parametrize("name", [each for each in RECORDS if each != "an offset far away"])
def test_nobody_is_handed_a_message_as_another(name: str) -> None:
    """It comes again when its time is over. An offset that nobody has is refused by brokers."""

    @async_test
    async def scenario() -> None:
        async with handing_out(RECORDS[name]) as (_, client):
            consumer = client.simple_consumer(
                "t", group="g", invisible_s=0.05, start=StartFrom.FIRST, max_attempts=100
            )
            done: list[int] = []
            told: list[Outcome] = []
            async with consumer, asyncio.timeout(60):
                while sorted({*done}) != [0, 1, 2, 3]:
                    try:
                        found: list[Delivery] = await consumer.receive(10, wait_s=1)
                    except RecordCorrupt as error:
                        told.append(error.outcome)
                        continue
                    for each in found:
                        assert each.receipt.offset == int(each.message.body)
                        await each.ack()
                        done.append(each.receipt.offset)
            assert {*told} == {Outcome.MAY_HAVE_HAPPENED}  # it is hidden

    scenario()
