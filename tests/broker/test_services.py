"""What a broker can be asked, asked without any door: plain values in, plain values out."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import Placed
from broker.reading.progress import QueueOffset
from broker.services.audit import SegmentClaim
from broker.services.messages import PullRequest
from broker.services.offsets import QueueBounds
from broker.services.services import Services
from broker.state.offsets import OffsetCommit
from broker.state.registration import Registration
from broker.state.topics import TopicRef
from dledger.records.record import decode_records, message_id
from store.errors import CorruptionFound
from tests.broker.asked import N1, SEGMENT, Asked, EndlessCall
from tests.broker.leader import HOST, PRODUCER, batch

ADDRESS = (socket.inet_ntoa(HOST[0]), HOST[1])
CLAIM = SegmentClaim("g", SEGMENT, 0)


async def asked(folder: Path) -> Asked:
    """A leader with topic t of two queues and three messages in t/0."""
    leader = Asked(folder)
    await leader.services.topics.create("t", 2, if_not_exists=False)
    await leader.services.sends.send(PRODUCER, [batch(0, b"a", b"b", b"c")])
    (folder / f"{0:020d}").write_bytes(b"".join(leader.bench.log.frames))
    return leader


def bodies(records: bytes) -> list[bytes]:
    return [record.body for record in decode_records(records)]


# --- every method ------------------------------------------------------------------------------

Ask = Callable[[Services], Awaitable[Any] | AsyncGenerator[Any, None]]

# Service and method -> how it is asked, and whether the answer is right.
QUESTIONS: dict[str, tuple[Ask, Callable[[Any], object]]] = {
    "sends.send": (
        lambda s: s.sends.send(PRODUCER, [batch(3, b"d"), batch(0, b"x", topic="nope")]),
        lambda a: (
            [getattr(a[0], "base_queue_offset", None), a[1].code] == [3, ErrorCode.TOPIC_NOT_FOUND]
        ),
    ),
    "producers.register": (
        lambda s: s.producers.register(Registration(b"number02", "name")),
        lambda a: (a.producer_id[8:], a.origin, a.next_sequences) == (b"number02", a.origin, ()),
    ),
    "pulls.pull": (
        lambda s: s.pulls.pull(PullRequest(TopicRef("t"), 0, 1), EndlessCall()),
        lambda a: (bodies(a.records), a.next_offset, a.max_offset) == ([b"b", b"c"], 3, 3),
    ),
    "lookups.by_position": (
        lambda s: s.lookups.by_position(TopicRef("t"), 0, 2),
        lambda a: bodies(a) == [b"c"],
    ),
    "offsets.bounds": (
        lambda s: s.offsets.bounds(TopicRef("t"), 0),
        lambda a: a == QueueBounds(0, 3),
    ),
    "offsets.by_time": (lambda s: s.offsets.by_time(TopicRef("t"), 0, 0), lambda a: a == 0),
    "offsets.commit": (
        lambda s: s.offsets.commit(OffsetCommit("g", "t", ((0, 2),), is_reset=False)),
        lambda a: a == (QueueOffset(0, 2),),
    ),
    "offsets.fetch": (lambda s: s.offsets.fetch("g", TopicRef("t")), lambda a: a == ()),
    "topics.create": (
        lambda s: s.topics.create("u", if_not_exists=False),
        lambda a: (a.name, a.queue_count) == ("u", 4),
    ),
    "topics.delete": (lambda s: s.topics.delete(TopicRef("t")), lambda a: a is None),
    "topics.list": (lambda s: s.topics.list(), lambda a: [each.name for each in a.topics] == ["t"]),
    "topics.describe": (
        lambda s: s.topics.describe(TopicRef("t")),
        lambda a: [each.max_offset for each in a.queues] == [3, 0],
    ),
    "cluster.status": (lambda s: s.cluster.status(), lambda a: a.leader == N1),
    "cluster.watch_leader": (lambda s: s.cluster.watch_leader("g"), lambda a: a[0].is_serving),
    "cluster.transfer_leadership": (
        lambda s: s.cluster.transfer_leadership("n1"),
        lambda a: a.leader == N1,
    ),
    "audit.survey": (
        lambda s: s.audit.survey(),
        lambda a: a.content.files[0].size_bytes == a.committed_offset > 0,
    ),
    "audit.digests": (
        lambda s: s.audit.digests(CLAIM, [0, 100, 200]),
        lambda a: a[-1].is_last and len(b"".join(each.hashed.digests for each in a)) == 16,
    ),
    "audit.read": (
        lambda s: s.audit.read(CLAIM, offset=0, size=8),
        lambda a: (len(a.content), a.problem) == (8, None),
    ),
}
# These are asked with what another answer gave: see below.
ELSEWHERE = {"lookups.by_id", "cluster.replace_disk"}
# These are the node's to call, and no questions.
NOT_ASKED = {"cluster.notify", "cluster.close"}


async def answer(question: Awaitable[Any] | AsyncGenerator[Any, None]) -> Any:
    """The answer; the first one, in a list, of a question that goes on being answered."""
    if isinstance(question, Awaitable):
        return await question
    async with aclosing(question):
        return [await anext(question)]


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_question_is_answered_without_a_door(name: str, tmp_path: Path) -> None:
    """No gRPC, no protobuf, no node: a door of any kind can ask this."""
    ask, is_right = QUESTIONS[name]

    async def scenario() -> None:
        found = await answer(ask((await asked(tmp_path)).services))
        assert is_right(found), found
        check_plain(found)

    asyncio.run(scenario())


def check_plain(value: object) -> None:
    """Values all the way down: a door, a log and a test can keep them."""
    if isinstance(value, list | tuple):
        for each in value:
            check_plain(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        assert value.__dataclass_params__.frozen, value  # type: ignore[attr-defined]
        for field in dataclasses.fields(value):
            check_plain(getattr(value, field.name))
    else:
        plain = (bytes, str, int, bool, Enum, Path, type(None))
        assert isinstance(value, plain), f"{type(value)} is no plain value"


def test_no_question_is_left_out() -> None:
    """A new method of a service gets a line in the table."""
    methods = {
        f"{field.name}.{name}"
        for field in dataclasses.fields(Services)
        for name, _ in inspect.getmembers(
            inspect.get_annotations(Services, eval_str=True)[field.name], inspect.isfunction
        )
        if not name.startswith("_")
    }
    assert methods == set(QUESTIONS) | ELSEWHERE | NOT_ASKED


def test_a_message_is_found_by_its_id(tmp_path: Path) -> None:
    """The id that its sender was told names the record's place in the log."""

    async def scenario() -> None:
        services = (await asked(tmp_path)).services
        (placed,) = await services.sends.send(PRODUCER, [batch(3, b"d")])
        assert isinstance(placed, Placed)
        found = await services.lookups.by_id(message_id(ADDRESS, placed.base_physical_offset))
        assert bodies(found) == [b"d"]
        nowhere = message_id(ADDRESS, 1 << 40)
        for unknown, code in (("zz", "INVALID_ARGUMENT"), (nowhere, "MESSAGE_NOT_FOUND")):
            with pytest.raises(BrokerError) as refused:
                await services.lookups.by_id(unknown)
            assert refused.value.code.name == code

    asyncio.run(scenario())


# --- who may answer ----------------------------------------------------------------------------

EVERY_NODES = {"cluster.status", "cluster.watch_leader", "audit.survey", "audit.digests",
               "audit.read"}  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
def test_only_a_serving_leader_answers(name: str, tmp_path: Path) -> None:
    """The others say whom to ask; what every node answers, every node answers."""
    ask, _ = QUESTIONS[name]

    async def scenario() -> None:
        leader = await asked(tmp_path)
        leader.leader.serves = False
        if name in EVERY_NODES:
            await answer(ask(leader.services))
            return
        proposed = leader.bench.proposed
        with pytest.raises(BrokerError) as refused:
            await answer(ask(leader.services))
        assert (refused.value.code, refused.value.failure.leader) == (ErrorCode.NOT_LEADER, N1)
        assert leader.bench.proposed == proposed, "nothing happened"

    asyncio.run(scenario())


LINEARIZABLE = ("lookups.by_position", "offsets.bounds", "offsets.by_time", "offsets.fetch",
                "topics.list", "topics.describe")  # fmt: skip


@pytest.mark.parametrize("confirms", [False, None])
@pytest.mark.parametrize("name", LINEARIZABLE)
def test_what_is_so_now_is_told_by_a_confirmed_leader(
    name: str, tmp_path: Path, confirms: bool | None
) -> None:
    """One that lost its leadership meanwhile, or reaches no majority, sends the caller on."""
    ask, _ = QUESTIONS[name]

    async def scenario() -> None:
        leader = await asked(tmp_path)
        leader.leader.confirms = confirms
        with pytest.raises(BrokerError) as refused:
            await answer(ask(leader.services))
        assert refused.value.code is ErrorCode.NOT_LEADER

    asyncio.run(scenario())


DENIALS: dict[str, Ask] = {
    "pull": lambda s: s.pulls.pull(PullRequest(TopicRef("nope"), 0, 0), EndlessCall()),
    "delete": lambda s: s.topics.delete(TopicRef("nope")),
    "commit": lambda s: s.offsets.commit(OffsetCommit("g", "t", ((0, 9),), is_reset=False)),
    "id": lambda s: s.lookups.by_id(message_id(ADDRESS, 1 << 40)),
}


@pytest.mark.parametrize("name", DENIALS)
def test_what_does_not_exist_is_denied_by_a_confirmed_leader(name: str, tmp_path: Path) -> None:
    """A leader that was deposed without knowing it may lack what it denies."""

    async def scenario() -> None:
        leader = await asked(tmp_path)
        before = leader.leader.confirmed
        for confirms, expected in ((False, True), (True, False)):
            leader.leader.confirms = confirms
            with pytest.raises(BrokerError) as refused:
                await answer(DENIALS[name](leader.services))
            assert (refused.value.code is ErrorCode.NOT_LEADER) == expected
        assert leader.leader.confirmed == before + 2

    asyncio.run(scenario())


def test_a_batch_is_refused_for_good_by_a_confirmed_leader_only(tmp_path: Path) -> None:
    """In its place in the answer; what was stored beside it stays stored."""

    async def scenario() -> None:
        leader = await asked(tmp_path)
        leader.leader.confirms = False
        answers = await leader.services.sends.send(
            PRODUCER, [batch(0, b"x", topic="nope"), batch(3, b"d")]
        )
        assert isinstance(answers[0], Failure)
        assert answers[0].code is ErrorCode.NOT_LEADER
        assert isinstance(answers[1], Placed)

    asyncio.run(scenario())


# --- pulls -------------------------------------------------------------------------------------


def test_a_read_of_rotten_bytes_stops_the_replica(tmp_path: Path) -> None:
    """Never skipped, never served: the caller is sent on, the replica told why it must stop."""

    async def scenario() -> None:
        leader = await asked(tmp_path)
        services = leader.services

        def rotten(physical_offset: int, size: int) -> bytes:
            raise CorruptionFound("00000000000000000000", physical_offset, "CRC", "another")

        leader.bench.read_at = rotten  # type: ignore[method-assign]
        reads: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: services.pulls.pull(PullRequest(TopicRef("t"), 0, 0), EndlessCall()),
            lambda: services.lookups.by_position(TopicRef("t"), 0, 0),
            lambda: services.lookups.by_id(f"7F00000100001B59{400:016X}"),
            lambda: services.offsets.by_time(TopicRef("t"), 0, 1),
        )
        for count, read in enumerate(reads, start=1):
            with pytest.raises(BrokerError, match="0000 at byte") as refused:
                await read()
            assert refused.value.code is ErrorCode.NOT_READY
            assert len(leader.failures) == count

    asyncio.run(scenario())


def test_pulled_bytes_count_until_the_call_is_over(tmp_path: Path) -> None:
    """A client that doesn't read its answer keeps the bytes; a pull without messages has none."""

    async def scenario() -> None:
        pulls, call = (await asked(tmp_path)).services.pulls, EndlessCall()
        found = await pulls.pull(PullRequest(TopicRef("t"), 0, 0), call)
        assert pulls.budget.used_bytes == len(found.records) > 0
        call.end()
        assert pulls.budget.used_bytes == 0
        await pulls.pull(PullRequest(TopicRef("t"), 0, 3), EndlessCall())
        assert pulls.budget.used_bytes == 0

    asyncio.run(scenario())


def test_a_held_pull_is_answered_by_an_arrival(tmp_path: Path) -> None:
    """Nothing there: it waits, is woken, and looks again."""

    async def scenario() -> None:
        leader = await asked(tmp_path)
        request = PullRequest(TopicRef("t"), 0, 3, hold_ms=1_000)
        waiting = asyncio.ensure_future(leader.services.pulls.pull(request, EndlessCall()))
        while not leader.held.statistics().held:
            await asyncio.sleep(0)
        await leader.services.sends.send(PRODUCER, [batch(3, b"d")])
        leader.held.wake((1, 0))
        assert bodies((await waiting).records) == [b"d"]

    asyncio.run(scenario())


# --- the broker group --------------------------------------------------------------------------


def test_a_watch_tells_each_change_and_ends_with_the_node(tmp_path: Path) -> None:
    """The present view at once, another after each change, no more when the node closes."""

    async def scenario() -> None:
        leader = await asked(tmp_path)
        cluster = leader.services.cluster
        told = []
        async with aclosing(cluster.watch_leader()) as views:
            async for view in views:
                told.append(view.is_serving)
                if len(told) == 1:
                    leader.leader.serves = False
                    cluster.notify()
                else:
                    cluster.close()
        assert told == [True, False]

    asyncio.run(scenario())


def test_watchers_are_bounded_and_leave_their_place(tmp_path: Path) -> None:
    """Two may watch here; a third is BUSY until one has gone; another group's is told so."""

    async def scenario() -> None:
        cluster = (await asked(tmp_path)).services.cluster
        first, second = cluster.watch_leader(), cluster.watch_leader()
        await anext(first)
        await anext(second)
        with pytest.raises(BrokerError) as refused:
            await anext(cluster.watch_leader())
        assert refused.value.code is ErrorCode.BUSY
        await first.aclose()
        async with aclosing(cluster.watch_leader()) as third:
            assert (await anext(third)).broker_group == "g"
        await second.aclose()
        with pytest.raises(BrokerError) as refused:
            await anext(cluster.watch_leader("other"))
        assert refused.value.code is ErrorCode.WRONG_BROKER_GROUP

    asyncio.run(scenario())


def test_a_held_pull_is_told_nothing_of_a_later_topic(tmp_path: Path) -> None:
    """The topic that it waited for is deleted and made anew: it learns that, and not what is in
    the new one."""

    async def scenario() -> None:
        leader = await asked(tmp_path)
        request = PullRequest(TopicRef("t"), 0, 3, hold_ms=20_000)
        waiting = asyncio.ensure_future(leader.services.pulls.pull(request, EndlessCall()))
        while not leader.held.statistics().held:
            await asyncio.sleep(0)
        await leader.services.topics.delete(TopicRef("t", 2))
        made = await leader.services.topics.create("t", 1, if_not_exists=False)
        await leader.services.sends.send(b"", [batch(0, *[b"new"] * 4)])
        leader.held.wake_all()
        with pytest.raises(BrokerError) as refused:
            await waiting
        assert refused.value.code is ErrorCode.TOPIC_REPLACED
        assert made.incarnation > 2

    asyncio.run(scenario())


REPLACED: dict[str, Ask] = {
    "send": lambda s: s.sends.send(PRODUCER, [dataclasses.replace(batch(0, b"x"), incarnation=2)]),
    "pull": lambda s: s.pulls.pull(PullRequest(TopicRef("t", 2), 0, 0), EndlessCall()),
    "position": lambda s: s.lookups.by_position(TopicRef("t", 2), 0, 0),
    "bounds": lambda s: s.offsets.bounds(TopicRef("t", 2), 0),
    "time": lambda s: s.offsets.by_time(TopicRef("t", 2), 0, 0),
    "fetch": lambda s: s.offsets.fetch("g", TopicRef("t", 2)),
    "commit": lambda s: s.offsets.commit(
        OffsetCommit("g", "t", ((0, 0),), is_reset=False, incarnation=2)
    ),
    "delete": lambda s: s.topics.delete(TopicRef("t", 2)),
    "describe": lambda s: s.topics.describe(TopicRef("t", 2)),
}


@pytest.mark.parametrize("what", REPLACED)
def test_nothing_is_done_to_a_later_topic_of_the_name(tmp_path: Path, what: str) -> None:
    """Whoever names the topic that was deleted is refused by name, whatever is asked for."""

    async def scenario() -> None:
        leader = await asked(tmp_path)
        await leader.services.topics.delete(TopicRef("t", 2))
        await leader.services.topics.create("t", 2, if_not_exists=False)
        confirmed = leader.leader.confirmed
        try:
            told = await answer(REPLACED[what](leader.services))
        except BrokerError as error:
            code = error.code
        else:
            code = told[0].code
        assert code is ErrorCode.TOPIC_REPLACED
        assert leader.leader.confirmed > confirmed, "only a confirmed leader says so"

    asyncio.run(scenario())
