"""What a request may hold: asked of its bytes, then of its lists, before anything is made of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from broker.doors.grpc import methods as door_methods
from broker.doors.grpc import sizes
from broker.doors.grpc.groups import _listen, _queue_wishes
from broker.doors.grpc.methods import Malformed, service_handler
from broker.doors.grpc.offered import OFFERED, For
from broker.doors.grpc.sizes import (
    MAX_COUNTS,
    MAX_FIELDS,
    MAX_LENGTH,
    MAX_LENGTHS,
    name_of,
    not_worth_parsing,
    repeated,
    too_many,
)
from broker.services.attendance import Attendance
from broker.services.queue_pulls import MAX_TAGS_IN_ALL
from dledger.client.members.member import MAX_QUEUES_A_CALL, MAX_RUNS_A_CALL
from dledger.limits import MAX_SEND_BATCHES, RPC_LIMIT_BYTES
from dledger.wire import broker_pb2, commands_pb2, groups_pb2

CALLED = [
    method
    for each in OFFERED
    if each.offers & (For.CLIENTS | For.ADMINISTRATION)
    for method in each.service.methods
]
BY_NAME = {name_of(method): method for method in CALLED}
LISTS = [(name_of(method), path) for method in CALLED for path in repeated(method.input_type)]


def test_each_list_of_each_request_has_a_bound() -> None:
    """None that there is, or will be, is missing; and none is bounded that isn't there."""
    assert set(LISTS) == {(name, path) for name, paths in MAX_COUNTS.items() for path in paths}
    assert len(LISTS) > 20
    known = {*BY_NAME, "RaftPeer.Replicate"}
    assert known >= {*MAX_LENGTHS, *MAX_FIELDS}


def holding(method: MethodDescriptor, path: str, count: int) -> Message:
    """A request with so many of these, in one holder."""
    request: Message = GetMessageClass(method.input_type)()
    holder: Any = request
    *outer, last = path.split(".")
    for name in outer:
        inner: Any = getattr(holder, name)
        holder = inner.add() if hasattr(inner, "add") else inner
        if hasattr(holder, "SetInParent"):
            holder.SetInParent()
    field = holder.DESCRIPTOR.fields_by_name[last]
    found = getattr(holder, last)
    if field.message_type is not None:
        for _ in range(count):
            found.add()
    else:
        sorts = {field.CPPTYPE_STRING: b"" if field.type == field.TYPE_BYTES else ""}
        found.extend([sorts.get(field.cpp_type, 0)] * count)
    return request


@pytest.mark.parametrize(("name", "path"), LISTS)
def test_one_too_many_is_told_before_it_is_looked_at(name: str, path: str) -> None:
    """As many as there may be are nobody's matter here, and fit the bytes that there may be."""
    method, most = BY_NAME[name], MAX_COUNTS[name][path]
    excess = too_many(method)
    fitting = holding(method, path, most)
    assert excess(fitting) == ""
    assert not_worth_parsing(method)(fitting.SerializeToString()) == ""
    assert f"of {path}" in excess(holding(method, path, most + 1))


def test_largest_commit_that_the_library_makes_is_taken() -> None:
    """As many queues as a call holds, each of a topic of its own with the longest name, and as many
    runs, of the longest numbers. Brokers take more numbers than that, if they are shorter."""
    method = BY_NAME["Groups.CommitLeases"]
    longest = (1 << 64) - 1
    runs = [longest] * (2 * MAX_RUNS_A_CALL // MAX_QUEUES_A_CALL)
    queue = commands_pb2.QueueProgress(
        queue_id=(1 << 32) - 1, epoch=longest, frontier=longest, finished=runs, release=True
    )
    topic = commands_pb2.TopicProgress(topic="t" * 127, incarnation=longest, queues=[queue])
    request = groups_pb2.CommitLeasesRequest(
        group="g" * 127, member="m" * 255, session=longest, topics=[topic] * MAX_QUEUES_A_CALL
    )
    assert too_many(method)(request) == ""
    assert not_worth_parsing(method)(request.SerializeToString()) == ""


def test_lists_of_all_holders_count_together() -> None:
    """Tags of a thousand queues are as much work as so many of one."""
    excess = too_many(BY_NAME["Groups.PullQueues"])
    share = MAX_TAGS_IN_ALL // 16
    request = groups_pb2.PullQueuesRequest(
        queues=[groups_pb2.QueuePull(tags=["t"] * share) for _ in range(16)]
    )
    assert excess(request) == ""
    request.queues[3].tags.append("t")
    assert "of queues.tags" in excess(request)


class Handlers:
    """Handlers of any service: each keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[object] = []

    def __getattr__(self, name: str) -> Any:
        async def handle(request: Any, context: Any) -> None:
            self.shown.append(request)

        return handle


class Context:
    """A call that notes how it ended."""

    ended: str = ""

    async def abort(self, code: Any, text: str, metadata: Any) -> None:
        self.ended = text
        raise grpc.aio.AbortError


def answered(method: MethodDescriptor, data: bytes) -> tuple[list[object], str]:
    """What a handler was shown of these bytes, and what the caller was told."""
    handlers, context = Handlers(), Context()
    found: Any = service_handler(method.containing_service, handlers).service(
        cast(Any, SimpleNamespace(method=f"/{method.containing_service.full_name}/{method.name}"))
    )
    act = found.unary_unary or found.unary_stream

    async def call() -> None:
        await act(found.request_deserializer(data), context)

    with suppress(grpc.aio.AbortError):
        asyncio.run(call())
    return handlers.shown, context.ended


@pytest.mark.parametrize(
    "method", [each for each in CALLED if not each.client_streaming], ids=name_of
)
def test_what_is_too_long_is_not_even_parsed(
    method: MethodDescriptor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the bytes say: the length of the longest is the method's own."""
    most = MAX_LENGTHS.get(name_of(method), MAX_LENGTH)

    class Unparsed:
        @staticmethod
        def FromString(data: bytes) -> object:
            raise AssertionError("parsed")

    monkeypatch.setattr(door_methods, "GetMessageClass", lambda _: Unparsed)
    shown, told = answered(method, b"\x0a\x00" * (most // 2 + 1))
    assert shown == []
    assert "bytes at most" in told or "fields at most" in told


@pytest.mark.parametrize(("name", "path"), [each for each in LISTS if each[0] != "Groups.Attend"])
def test_a_handler_is_shown_no_list_that_is_too_long(name: str, path: str) -> None:
    """It makes values of all that it is shown."""
    method, most = BY_NAME[name], MAX_COUNTS[name][path]
    shown, told = answered(method, holding(method, path, most + 1).SerializeToString())
    assert shown == []
    assert "at most" in told
    shown, told = answered(method, holding(method, path, most).SerializeToString())
    assert (len(shown), told) == (1, "")


def test_a_long_send_of_batches_of_nothing_is_not_parsed() -> None:
    """Sixteen MiB hold eight million of them, which are a gigabyte of objects."""
    why = not_worth_parsing(BY_NAME["Broker.Send"])
    assert why(b"\x12\x00" * (RPC_LIMIT_BYTES // 2)) != ""
    bodies = broker_pb2.SendRequest(
        producer_id=bytes(16),
        batches=[broker_pb2.SendBatch(topic="t", records=bytes(8_000))] * MAX_SEND_BATCHES,
    ).SerializeToString()
    assert len(bodies) > MAX_LENGTH
    assert why(bodies) == ""


@given(st.binary(max_size=64), st.integers(1, 4))
def test_bytes_that_are_looked_through_are_what_the_parser_finds(data: bytes, most: int) -> None:
    """What it takes has no more fields than were counted, and what it doesn't is never shown."""
    try:
        request = broker_pb2.SendRequest.FromString(data)
    except Exception:  # noqa: BLE001 - any: it isn't shown to anybody
        return
    if not sizes._has_more(data, most, len(data)):
        assert len(request.batches) <= most


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(0, 40))
def test_batches_are_counted(sizes_of: list[int], most: int) -> None:
    """Whatever is in them."""
    request = broker_pb2.SendRequest(
        batches=[broker_pb2.SendBatch(topic="x" * size, count=size) for size in sizes_of]
    )
    data = request.SerializeToString()
    assert sizes._has_more(data, most, len(data)) == (len(sizes_of) > most)


def test_a_join_that_says_too_much_ends_nobody_else() -> None:
    """All members of a client are on one stream."""
    said: list[tuple[str, int]] = []

    class Listening:
        async def join(self, slot: int, *_: object, **__: object) -> None:
            said.append(("join", slot))

        def refuse(self, slot: int, why: str) -> None:
            assert "join.queues.queue_ids" in why
            said.append(("refuse", slot))

    async def requests() -> AsyncIterator[groups_pb2.AttendRequest | Malformed]:
        for slot, count in ((1, 1), (2, 1_025), (3, 1_024)):
            queues = [commands_pb2.QueueChoice(topic="t", queue_ids=range(count))]
            yield groups_pb2.AttendRequest(join=groups_pb2.Join(slot=slot, queues=queues))

    asyncio.run(_listen(requests(), cast(Attendance, Listening())))
    assert said == [("join", 1), ("refuse", 2), ("join", 3)]


def test_a_join_of_a_later_program_ends_nobody_else() -> None:
    """Where its group is to start is told by a number that this program doesn't know."""
    said: list[tuple[str, int]] = []

    class Listening:
        async def join(self, slot: int, *_: object, **__: object) -> None:
            said.append(("join", slot))

        def refuse(self, slot: int, why: str) -> None:
            assert why == "a group can't start at 77"
            said.append(("refuse", slot))

    async def requests() -> AsyncIterator[groups_pb2.AttendRequest | Malformed]:
        for slot, start in ((1, 1), (2, 77), (3, 2)):
            settings = commands_pb2.GroupSettings(start=cast(Any, start))
            yield groups_pb2.AttendRequest(join=groups_pb2.Join(slot=slot, settings=settings))

    asyncio.run(_listen(requests(), cast(Attendance, Listening())))
    assert said == [("join", 1), ("refuse", 2), ("join", 3)]


def test_queues_that_name_the_same_tags_share_them() -> None:
    """They are looked up once."""
    tags = [f"tag{number}" for number in range(100)]
    wire = [groups_pb2.QueuePull(topic="t", queue_id=each, tags=tags) for each in range(3)]
    one, two, three = _queue_wishes([*wire[:2], groups_pb2.QueuePull(topic="t", queue_id=2)])
    assert one.tags is not None
    assert one.tags is two.tags
    assert three.tags is None
