"""What a broker can be asked, asked without any door: plain values in, plain values out."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from broker.errors import TRAITS, BrokerError, ErrorCode, Failure
from broker.leader.batches import PART_WEIGHT, Placed
from broker.reading.progress import QueueOffset
from broker.reading.queues import Found
from broker.services.audit import SegmentClaim
from broker.services.gate import Gate
from broker.services.messages import PullRequest
from broker.services.offsets import QueueBounds
from broker.services.queue_pulls import QueuesRequest, QueueWish
from broker.services.services import Services
from broker.state.offsets import OffsetCommit
from broker.state.registration import Registration
from broker.state.topics import TopicRef
from broker.turns import LoopTurns
from dledger.core.types import NodeId
from dledger.outcome import Outcome
from dledger.reading.entry import HEADER_SIZE
from dledger.records.layout import file_name
from dledger.records.record import BATCH_PREAMBLE, decode_records, message_id
from dledger.wire.commands_pb2 import Command, CreateTopicCommand, DeleteTopicCommand
from store.errors import CorruptionFound
from tests.broker.asked import N1, Asked, EndlessCall
from tests.broker.leader import FIRST_TOPIC, PRODUCER, batch
from tests.node.machine import HOST, SEGMENT, machines_of_a_test

ADDRESS = (socket.inet_ntoa(HOST[0]), HOST[1])
CLAIM = SegmentClaim("g", SEGMENT, 0)


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
    "queue_pulls.pull": (
        lambda s: s.queue_pulls.pull(
            QueuesRequest((QueueWish(TopicRef("t"), 1, 0), QueueWish(TopicRef("t"), 0, 1))),
            EndlessCall(),
        ),
        lambda a: [(at, bodies(found.records)) for at, found in a] == [(1, [b"b", b"c"])],
    ),
    "lookups.by_position": (
        lambda s: s.lookups.by_position(TopicRef("t"), 0, 2, EndlessCall()),
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
    "consumers.list": (lambda s: s.consumers.list(), lambda a: (a.groups, a.following) == ((), "")),
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
    "cluster.members": (
        lambda s: s.cluster.members(),
        lambda a: [each.role for each in a.members] == ["voter"] and a.is_committed,
    ),
    "cluster.transfer_leadership": (
        lambda s: s.cluster.transfer_leadership("n1"),
        lambda a: a.leader == N1,
    ),
    "audit.survey": (
        lambda s: s.audit.survey(),
        lambda a: a.content.files[0].size_bytes == SEGMENT > a.committed_offset > 0,
    ),
    "audit.digests": (
        lambda s: s.audit.digests(CLAIM, [0, 100, 200]),
        lambda a: a[-1].is_last and len(b"".join(each.hashed.digests for each in a)) == 16,
    ),
    "audit.read": (
        lambda s: s.audit.read(CLAIM, offset=0, size=8),
        lambda a: (len(a.content), a.problem) == (8, None),
    ),
    "audit.base": (
        lambda s: s.audit.base(),  # of a log that begins with entry 1: nothing stands before it
        lambda a: (a.note, a.content, a.size_bytes, a.detail) == (b"", b"", 0, ""),
    ),
}
# These are asked with what another answer gave, or of a later level: see below,
# tests/broker/test_topic_retention.py, tests/broker/test_topic_permissions.py,
# tests/broker/test_keeper.py, tests/broker/test_consumers.py,
# tests/integration/test_deliveries.py and tests/integration/test_retries.py.
ELSEWHERE = {
    *("lookups.by_id", "cluster.replace_disk", "cluster.change_members"),
    *("topics.retain", "topics.update", "groups.attend", "groups.commit"),
    *("topics.retain", "topics.permit", "topics.make", "topic_figures.measure"),
    *("groups.attend", "groups.commit"),
    *("consumers.describe", "consumers.progress", "consumers.move", "consumers.clone"),
    *("deliveries.receive", "deliveries.settle"),
    *("retries.send_back", "retries.dead_letters", "retries.resend"),
}
# These are the node's to call, or another service's, and no questions.
NOT_ASKED = {
    *("cluster.heard_epoch", "cluster.check_group"),
    *("cluster.notify", "cluster.close", "groups.statistics", "deliveries.is_waited_for"),
    *(
        "topics.found",
        "pulls.read",
        "pulls.read_handed_out",
        "pulls.account",
        "pulls.account_handed_out",
        "pulls.give_back_at_end",
        "pulls.hold_s",
    ),
}


async def answer(question: Awaitable[Any] | AsyncGenerator[Any, None]) -> Any:
    """The answer; the first one, in a list, of a question that goes on being answered."""
    if isinstance(question, Awaitable):
        return await question
    async with aclosing(question):
        return [await anext(question)]


def folder_for(name: str, folder: Path) -> Path | None:
    """Where the files have to be that the question is about."""
    return folder if name.startswith("audit.") else None


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_question_is_answered_without_a_door(name: str, tmp_path: Path) -> None:
    """No gRPC, no protobuf, no node: a door of any kind can ask this."""
    ask, is_right = QUESTIONS[name]
    asked = Asked(folder=folder_for(name, tmp_path)).filled()
    found = asked.ask(answer(ask(asked.services)))
    assert is_right(found), found
    check_plain(found)


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
        plain = (bytes, str, int, float, bool, Enum, Path, type(None))
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


def test_a_message_is_found_by_its_id() -> None:
    """The id that its sender was told names the record's place in the log."""
    asked = Asked().filled()
    services = asked.services

    async def scenario() -> None:
        (placed,) = await services.sends.send(PRODUCER, [batch(3, b"d")])
        assert isinstance(placed, Placed)
        found = await services.lookups.by_id(
            message_id(ADDRESS, placed.base_physical_offset), EndlessCall()
        )
        assert bodies(found) == [b"d"]
        nowhere = message_id(ADDRESS, 1 << 40)
        for unknown, code in (("zz", "INVALID_ARGUMENT"), (nowhere, "MESSAGE_NOT_FOUND")):
            with pytest.raises(BrokerError) as refused:
                await services.lookups.by_id(unknown, EndlessCall())
            assert refused.value.code.name == code

    asked.ask(scenario())


@pytest.fixture(scope="module")
def _three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with machines_of_a_test():
        yield Asked(3, folder=tmp_path_factory.mktemp("three")).filled()


@pytest.fixture
def three(_three: Asked) -> Asked:
    """A group of three, led by n1, of whom some tests ask what changes nothing."""
    _three.world.cut.clear()
    _three.world.lead(_three.leader.name)
    return _three


# --- who may answer ----------------------------------------------------------------------------

EVERY_NODES = {"cluster.status", "cluster.members", "cluster.watch_leader", "audit.survey",
               "audit.digests", "audit.read", "audit.base"}  # fmt: skip


@pytest.mark.parametrize("name", QUESTIONS)
def test_only_a_serving_leader_answers(name: str, three: Asked) -> None:
    """The others say whom to ask; what every node answers, every node answers."""
    ask, _ = QUESTIONS[name]
    follower = three.world.others(three.leader.name)[0]
    question = answer(ask(follower.replica.services))
    if name in EVERY_NODES:
        three.ask(question, follower)
        return
    held = follower.log.last_index
    with pytest.raises(BrokerError) as refused:
        three.ask(question, follower)
    assert (refused.value.code, refused.value.failure.leader) == (ErrorCode.NOT_LEADER, N1)
    assert follower.log.last_index == held, "nothing happened"


LINEARIZABLE = ("lookups.by_position", "offsets.bounds", "offsets.by_time", "offsets.fetch",
                "topics.list", "topics.describe")  # fmt: skip


def cut_off(asked: Asked) -> None:
    """The leader reaches nobody, and doesn't know it yet."""
    asked.world.isolate(asked.leader.name)


def depose(asked: Asked) -> None:
    """Nobody hears the leader any more, and the others elect: it is going to hear of that."""
    world, name = asked.world, asked.leader.name
    world.cut = {(name, other.name) for other in world.others(name)}


@pytest.mark.parametrize("lose", [cut_off, depose])
@pytest.mark.parametrize("name", LINEARIZABLE)
def test_what_is_so_now_is_told_by_a_confirmed_leader(
    name: str, lose: Callable[[Asked], None], three: Asked
) -> None:
    """One that lost its leadership meanwhile, or reaches no majority, sends the caller on."""
    ask, _ = QUESTIONS[name]
    lose(three)
    assert three.leader.replica.leadership.serving
    with pytest.raises(BrokerError) as refused:
        three.ask(answer(ask(three.services)))
    assert refused.value.code is ErrorCode.NOT_LEADER


DENIALS: dict[str, Ask] = {
    "pull": lambda s: s.pulls.pull(PullRequest(TopicRef("nope"), 0, 0), EndlessCall()),
    "delete": lambda s: s.topics.delete(TopicRef("nope")),
    "commit": lambda s: s.offsets.commit(OffsetCommit("g", "t", ((0, 9),), is_reset=False)),
    "id": lambda s: s.lookups.by_id(message_id(ADDRESS, 1 << 40), EndlessCall()),
}


@pytest.mark.parametrize("name", DENIALS)
def test_what_does_not_exist_is_denied_by_a_confirmed_leader(name: str, three: Asked) -> None:
    """A leader that was deposed without knowing it may lack what it denies."""
    for lose in (lambda _: None, cut_off):
        lose(three)
        with pytest.raises(BrokerError) as refused:
            three.ask(answer(DENIALS[name](three.services)))
        assert (refused.value.code is ErrorCode.NOT_LEADER) == (lose is cut_off)


def test_a_batch_is_refused_for_good_by_a_confirmed_leader_only() -> None:
    """In its place in the answer; what was stored beside it stays stored."""
    asked = Asked(3).filled()
    world, leader = asked.world, asked.leader
    batches = [batch(0, b"x", topic="nope"), batch(3, b"d")]
    sent = leader.begin(asked.services.sends.send(PRODUCER, batches))
    while asked.machine.topics["t"].next_offsets[0] == 3:
        world.turn()
        for node in world.nodes.values():
            node.sync()
        if world.wires:
            world.deliver()
    assert not sent.done()
    cut_off(asked)
    answers = world.outcome(sent)
    assert isinstance(answers[0], Failure)
    assert answers[0].code is ErrorCode.NOT_LEADER
    assert isinstance(answers[1], Placed)


class Held(LoopTurns):
    """`Turns` whose pauses last until `over` is set."""

    def __init__(self) -> None:
        self.over: asyncio.Future[None] | None = None

    async def pause(self) -> None:
        if self.over is not None:
            await self.over


def test_a_denial_of_one_leadership_is_not_confirmed_by_the_next() -> None:
    """Another leader may have made the topic between the two; what was let in by the first one is
    taken by the next as everything is."""
    turns = Held()
    asked = Asked(3, turns=turns).filled()
    world, leader = asked.world, asked.leader
    turns.over = leader.loop.create_future()
    many = batch(3, *(b"" for _ in range(PART_WEIGHT)))
    sent = leader.begin(asked.services.sends.send(PRODUCER, [batch(0, b"x", topic="new"), many]))
    world.settle()
    other = world.lead(NodeId("n2"))
    asked.ask(other.replica.services.topics.create("new", 1, if_not_exists=False), other)
    world.lead(leader.name)
    with leader.running():
        turns.over.set_result(None)
    turns.over = None
    denied, stored = world.outcome(sent)
    assert isinstance(denied, Failure)
    assert denied.code is ErrorCode.NOT_READY
    assert isinstance(stored, Placed)


def test_a_send_in_line_is_refused_when_the_node_is_being_stopped() -> None:
    """One that was let in before has its turn only after those in front of it."""
    turns = Held()
    asked = Asked(turns=turns).filled()
    leader, sends = asked.leader, asked.services.sends
    turns.over = leader.loop.create_future()
    many = batch(4, *(b"" for _ in range(PART_WEIGHT)))
    first = leader.begin(sends.send(PRODUCER, [batch(3, b"d"), many]))
    second = leader.begin(sends.send(b"", [batch(0, b"late")]))
    asked.world.settle()
    leader.replica.leadership.draining = True
    with leader.running():
        turns.over.set_result(None)
    turns.over = None
    assert [type(each) for each in asked.world.outcome(first)] == [Placed, Placed]
    with pytest.raises(BrokerError) as refused:
        asked.world.outcome(second)
    assert refused.value.code is ErrorCode.SHUTTING_DOWN
    assert sends.budget.used_bytes == 0


# --- pulls -------------------------------------------------------------------------------------

READS: dict[str, Ask] = {
    "pull": lambda s: s.pulls.pull(PullRequest(TopicRef("t"), 0, 0), EndlessCall()),
    "position": lambda s: s.lookups.by_position(TopicRef("t"), 0, 0, EndlessCall()),
    "time": lambda s: s.offsets.by_time(TopicRef("t"), 0, 1),
}


@pytest.mark.parametrize("name", [*READS, "id"])
def test_a_read_of_rotten_bytes_stops_the_replica(name: str) -> None:
    """Never skipped, never served: the caller is sent on, the replica told why it must stop."""
    asked = Asked().filled()
    leader, services = asked.leader, asked.services
    asked.ask(services.topics.create("u", 1, if_not_exists=False))  # t's entry leaves the memory
    entry = leader.log.position_of(FIRST_TOPIC + 1)
    segment = leader.config.data_directory / "commitlog" / file_name(0)
    leader.disk.flip(segment, entry + HEADER_SIZE + BATCH_PREAMBLE.size + 90, 3)
    first = message_id(ADDRESS, entry + HEADER_SIZE + BATCH_PREAMBLE.size)
    question = (
        READS[name](services) if name in READS else services.lookups.by_id(first, EndlessCall())
    )
    with pytest.raises(BrokerError, match="0000 at byte") as refused:
        asked.ask(answer(question))
    assert refused.value.code is ErrorCode.NOT_READY
    assert isinstance(leader.failure, CorruptionFound)
    assert not leader.replica.leadership.serving


def test_pulled_bytes_count_until_the_call_is_over() -> None:
    """A client that doesn't read its answer keeps the bytes; a pull without messages has none."""
    asked = Asked().filled()
    pulls, call = asked.services.pulls, EndlessCall()
    found = asked.ask(pulls.pull(PullRequest(TopicRef("t"), 0, 0), call))
    assert pulls.budget.used_bytes == len(found.records) > 0
    call.end()
    assert pulls.budget.used_bytes == 0
    asked.ask(pulls.pull(PullRequest(TopicRef("t"), 0, 3), EndlessCall()))
    assert pulls.budget.used_bytes == 0


async def held(asked: Asked, request: PullRequest) -> asyncio.Task[Found]:
    """A pull that finds nothing, and is held."""
    pull = asked.services.pulls.pull(request, EndlessCall())
    waiting = asyncio.get_running_loop().create_task(pull)
    while not asked.leader.replica.held.statistics().held:
        await asyncio.sleep(0)
    return waiting


def test_a_held_pull_is_answered_by_an_arrival() -> None:
    """Nothing there: it waits, is woken, and looks again, long before its time is over."""
    asked = Asked().filled()

    async def scenario() -> None:
        waiting = await held(asked, PullRequest(TopicRef("t"), 0, 3, hold_ms=1_000))
        began = asyncio.get_running_loop().time()
        await asked.services.sends.send(PRODUCER, [batch(3, b"d")])
        assert bodies((await waiting).records) == [b"d"]
        assert asyncio.get_running_loop().time() - began < 0.1

    asked.ask(scenario())


# --- the broker group --------------------------------------------------------------------------


def test_a_watch_tells_each_change_and_ends_with_the_node() -> None:
    """The present view at once, another after each change, no more when the node closes."""
    asked = Asked(3).filled()
    cluster = asked.services.cluster
    told = []

    async def scenario() -> None:
        async with aclosing(cluster.watch_leader()) as views:
            async for view in views:
                told.append((view.is_serving, view.leader))
                if len(told) == 1:
                    asked.leader.driver.transfer_leadership(None)
                elif view.leader not in (None, N1):
                    cluster.close()

    asked.ask(scenario())
    assert told[0] == (True, N1)
    assert [is_serving for is_serving, _ in told[1:]] == [False] * len(told[1:])
    assert told[-1][1] is not None


def test_a_hand_over_to_who_cannot_take_it_is_tried_once() -> None:
    """It fails at its end where that wasn't known, and at once where it is; and no client asks
    again by itself: each try takes the messages' leader away for a while."""
    asked = Asked(3).filled()
    target = asked.world.others(asked.leader.name)[0].name
    asked.world.crash(target)

    def failure() -> BrokerError:
        with pytest.raises(BrokerError) as refused:
            asked.ask(asked.services.cluster.transfer_leadership(target))
        return refused.value

    unknown = failure()
    assert unknown.message == f"the transfer to {target} was aborted"
    asked.world.run_for(60)
    known = failure()
    assert known.message == f"{target} wasn't heard for an election timeout"
    assert (unknown.code, known.code) == (ErrorCode.TIMED_OUT, ErrorCode.TRANSFER_FAILED)
    assert not TRAITS[known.code].is_retriable
    assert TRAITS[unknown.code].outcome is Outcome.MAY_HAVE_HAPPENED


def test_watchers_are_bounded_and_leave_their_place() -> None:
    """Two may watch here; a third is BUSY until one has gone; another group's is told so."""
    asked = Asked().filled()
    cluster = asked.services.cluster

    async def scenario() -> None:
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

    asked.ask(scenario())


def test_a_held_pull_is_told_nothing_of_a_later_topic() -> None:
    """The topic that it waited for is deleted and made anew: it learns that, and not what is in
    the new one."""
    asked = Asked().filled()

    async def scenario() -> None:
        waiting = await held(asked, PullRequest(TopicRef("t"), 0, 3, hold_ms=20_000))
        submit = asked.leader.replica.appender.submit  # both in one turn: it wakes behind them
        submit(Command(delete_topic=DeleteTopicCommand(name="t")))
        await submit(Command(create_topic=CreateTopicCommand(name="t", queue_count=1)))
        await asked.services.sends.send(b"", [batch(0, *[b"new"] * 4)])
        with pytest.raises(BrokerError) as refused:
            await waiting
        assert refused.value.code is ErrorCode.TOPIC_REPLACED

    asked.ask(scenario())


def test_a_held_pull_of_many_queues_is_told_nothing_of_a_later_topic() -> None:
    """Nor of that one's queue which has the number of the one that it waited for."""
    asked = Asked().filled()

    async def scenario() -> None:
        wish = QueueWish(TopicRef("t"), 0, 3)
        pull = asked.services.queue_pulls.pull(
            QueuesRequest((wish,), hold_ms=20_000), EndlessCall()
        )
        waiting = asyncio.ensure_future(pull)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        submit = asked.leader.replica.appender.submit  # both in one turn: it wakes behind them
        submit(Command(delete_topic=DeleteTopicCommand(name="t")))
        await submit(Command(create_topic=CreateTopicCommand(name="t", queue_count=1)))
        await asked.services.sends.send(b"", [batch(0, *[b"new"] * 4)])
        ((at, told),) = await waiting
        assert isinstance(told, Failure)
        assert (at, told.code) == (0, ErrorCode.TOPIC_REPLACED)

    asked.ask(scenario())


REPLACED: dict[str, Ask] = {
    "send": lambda s: s.sends.send(
        PRODUCER, [dataclasses.replace(batch(0, b"x"), incarnation=FIRST_TOPIC)]
    ),
    "pull": lambda s: s.pulls.pull(PullRequest(TopicRef("t", FIRST_TOPIC), 0, 0), EndlessCall()),
    "position": lambda s: s.lookups.by_position(TopicRef("t", FIRST_TOPIC), 0, 0, EndlessCall()),
    "bounds": lambda s: s.offsets.bounds(TopicRef("t", FIRST_TOPIC), 0),
    "time": lambda s: s.offsets.by_time(TopicRef("t", FIRST_TOPIC), 0, 0),
    "fetch": lambda s: s.offsets.fetch("g", TopicRef("t", FIRST_TOPIC)),
    "commit": lambda s: s.offsets.commit(
        OffsetCommit("g", "t", ((0, 0),), is_reset=False, incarnation=FIRST_TOPIC)
    ),
    "delete": lambda s: s.topics.delete(TopicRef("t", FIRST_TOPIC)),
    "describe": lambda s: s.topics.describe(TopicRef("t", FIRST_TOPIC)),
}


@pytest.mark.parametrize("what", REPLACED)
def test_nothing_is_done_to_a_later_topic_of_the_name(what: str) -> None:
    """Whoever names the topic that was deleted is refused by name, whatever is asked for, and by
    a confirmed leader only."""
    asked = Asked(3).filled()
    asked.ask(asked.services.topics.delete(TopicRef("t", FIRST_TOPIC)))
    asked.ask(asked.services.topics.create("t", 2, if_not_exists=False))

    async def scenario() -> ErrorCode:
        try:
            told = await answer(REPLACED[what](asked.services))
        except BrokerError as error:
            return error.code
        code: ErrorCode = told[0].code
        return code

    assert asked.ask(scenario()) is ErrorCode.TOPIC_REPLACED
    cut_off(asked)
    assert asked.ask(scenario()) is ErrorCode.NOT_LEADER


def test_a_transfer_is_refused_by_who_surely_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader of before has heard nobody for long, and whom it refuses may lead by then."""
    asked = Asked(3).filled()
    target = asked.world.others(asked.leader.name)[0].name
    asked.world.crash(target)
    asked.world.run_for(60)
    confirmed: list[None] = []

    async def confirm(_: Gate) -> None:
        confirmed.append(None)
        raise BrokerError(ErrorCode.NOT_LEADER, "another one leads")

    monkeypatch.setattr(Gate, "confirm", confirm)
    with pytest.raises(BrokerError) as refused:
        asked.ask(asked.services.cluster.transfer_leadership(target))
    assert refused.value.code is ErrorCode.NOT_LEADER
    assert confirmed
