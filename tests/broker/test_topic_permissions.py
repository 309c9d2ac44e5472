"""What may be done with topics: as replicated state, for who proposes, and for who reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import BatchAnswer, Placed
from broker.leader.units import ProposedUnit
from broker.services.messages import PullRequest
from broker.services.refused import refused
from broker.services.topics import Topic, Wishes
from broker.state.errors import SnapshotRefused
from broker.state.machine import StateMachine
from broker.state.refusals import (
    Malformed,
    PermissionUnknown,
    RetentionOutOfRange,
    TopicExists,
    TopicNotWritable,
    TopicReplaced,
)
from broker.state.snapshot import Section, pack, seal, unseal
from broker.state.topic_permissions import SECTION, USUAL, Permission, TopicPermissions
from broker.state.topic_retention import MAX_RETENTION_MS
from broker.state.topics import TopicRef
from dledger.core.errors import InvariantViolation
from dledger.core.types import EntryKind
from dledger.level import DELIVERY_LEVEL, KNOWN_LEVEL, LOG_START_LEVEL, TOPIC_RULES_LEVEL
from dledger.reading.entry import HEADER_SIZE
from dledger.records.record import decode_records
from dledger.records.reserved import SCHEDULE_TOPIC
from dledger.wire.commands_pb2 import (
    Command,
    DeleteTopicCommand,
    MakeTopicCommand,
    PermitTopicCommand,
)
from tests.broker.asked import EndlessCall
from tests.broker.leader import Bench, NoQueues, batch
from tests.broker.test_topic_retention import raised
from tests.broker.test_units import unnumbered
from tests.scale import examples

READ, WRITE = Permission.READ, Permission.WRITE


def permit(name: str, permission: int, incarnation: int = 0) -> Command:
    wanted = PermitTopicCommand(name=name, incarnation=incarnation, permission=permission)
    return Command(permit_topic=wanted)


def make(name: str, *, retention_ms: int = 0, permission: int = int(USUAL)) -> Command:
    wanted = MakeTopicCommand(
        name=name, queue_count=2, retention_ms=retention_ms, permission=permission
    )
    return Command(make_topic=wanted)


def with_topic(level: int = TOPIC_RULES_LEVEL) -> Bench:
    bench = raised(Bench(known_level=KNOWN_LEVEL), level)
    bench.topic("t")
    return bench


def sent(bench: Bench, *answers: asyncio.Future[list[BatchAnswer]]) -> list[BatchAnswer]:
    bench.commit()
    return [each.result()[0] for each in answers]


def code_of(answer: BatchAnswer) -> ErrorCode | None:
    return answer.code if isinstance(answer, Failure) else None


def same_everywhere(bench: Bench) -> None:
    """Whoever applies the log, or restores the state, has the same."""
    chunks = list(bench.machine.snapshot())
    bench.machine.check_invariants()
    replayed = StateMachine(NoQueues())
    replayed.apply(bench.log.read(1, bench.log.last_index))
    restored = StateMachine.restore(chunks, NoQueues())
    for machine in (replayed, restored):
        assert list(machine.snapshot()) == chunks
        assert machine.topic_permissions == bench.machine.topic_permissions


# --- the state ------------------------------------------------------------------------------------


def test_a_permission_is_given_changed_and_taken_back() -> None:
    """As usual again, nothing is left of it."""
    bench = with_topic()
    held, t = bench.machine.topic_permissions, bench.machine.topics["t"].incarnation
    assert held.of(t) is USUAL
    assert bench.submit(permit("t", 4), permit("t", 2, t)) == [None, None]
    assert (held.of(t), held.is_writable(t), held.is_readable(t)) == (WRITE, True, False)
    for unknown in (0, 1, 3, 5, 7, 8, 1 << 31):
        (refusal,) = bench.submit(permit("t", unknown))
        assert refusal == PermissionUnknown(unknown)
        assert refused(refusal).code is ErrorCode.INVALID_ARGUMENT
    assert held.of(t) is WRITE
    same_everywhere(bench)
    assert bench.submit(permit("t", 6)) == [None]
    assert held == TopicPermissions()
    same_everywhere(bench)


def test_a_topic_of_the_same_name_knows_nothing_of_the_one_before() -> None:
    bench = with_topic()
    old = bench.machine.topics["t"].incarnation
    bench.submit(permit("t", 4), Command(delete_topic=DeleteTopicCommand(name="t")))
    assert bench.machine.topic_permissions == TopicPermissions()
    same_everywhere(bench)
    bench.topic("t")
    (refusal,) = bench.submit(permit("t", 4, old))
    assert isinstance(refusal, TopicReplaced)
    assert isinstance(sent(bench, bench.send(batch(0, b"new")))[0], Placed)
    same_everywhere(bench)


def test_the_brokers_own_topics_are_written_whoever_asks_for_what() -> None:
    """What failed must always find its place."""
    bench = with_topic()
    bench.topic(SCHEDULE_TOPIC)
    (refusal,) = bench.submit(permit(SCHEDULE_TOPIC, 4))
    assert isinstance(refusal, Malformed)
    assert bench.machine.topic_permissions == TopicPermissions()


def test_a_topic_is_made_with_all_that_is_wished_or_not_at_all() -> None:
    bench = with_topic()
    assert bench.submit(make("u", retention_ms=5, permission=4)) == [None]
    u = bench.machine.topics["u"]
    assert bench.machine.topic_permissions.of(u.incarnation) is READ
    assert bench.machine.topic_retention.wishes() == {u.incarnation: 5}
    refusals = bench.submit(
        make("u"), make("v", permission=3), make("v", retention_ms=MAX_RETENTION_MS + 1)
    )
    assert refusals == [
        TopicExists("u", 2),
        PermissionUnknown(3),
        RetentionOutOfRange(MAX_RETENTION_MS + 1, MAX_RETENTION_MS),
    ]
    assert "v" not in bench.machine.topics
    assert bench.machine.topic_permissions.of(u.incarnation) is READ
    same_everywhere(bench)


def test_commands_are_void_before_their_level_is_in_use() -> None:
    """A program that doesn't know them would go on as if nothing had been said."""
    bench = with_topic(DELIVERY_LEVEL)
    for command in (permit("t", 4), make("u", permission=4)):
        (refusal,) = bench.submit(command)
        assert isinstance(refusal, Malformed)
    assert bench.machine.topic_permissions == TopicPermissions()
    assert "u" not in bench.machine.topics
    same_everywhere(bench)


def test_snapshots_are_those_of_the_releases_before_where_all_is_as_usual() -> None:
    bench = with_topic()
    bench.submit(make("u"))
    assert SECTION not in [each.section for each in unseal(bench.machine.snapshot())]
    bench.submit(permit("t", 2))
    assert SECTION in [each.section for each in unseal(bench.machine.snapshot())]
    bench.submit(permit("t", 6))
    assert SECTION not in [each.section for each in unseal(bench.machine.snapshot())]


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0, 2, 4, 5, 6])), max_size=4),
    st.integers(1, 2),
)
def test_no_state_that_no_log_gives_is_restored(held: list[tuple[int, int]], version: int) -> None:
    """Whatever is in the section, with right sums: the state, or a refusal."""
    bench = with_topic()
    t = bench.machine.topics["t"].incarnation
    sections = [
        Section(each.section, each.version, pack((each.payload,)))
        for each in unseal(bench.machine.snapshot())
    ]
    payloads = [n.to_bytes(8, "big") + bytes((p,)) for n, p in held]
    sections.append(Section(SECTION, version, pack(payloads or [b""])))
    try:
        machine = StateMachine.restore(seal(bench.machine.applied_index, sections), NoQueues())
    except SnapshotRefused:
        assert version != 1 or held not in ([], [(t, 2)], [(t, 4)])
        return
    assert version == 1
    assert held in ([], [(t, 2)], [(t, 4)])
    machine.check_invariants()


@pytest.mark.parametrize("permission", [USUAL, Permission(0), Permission(1)])
def test_what_cannot_be_is_an_invariant_broken(permission: Permission) -> None:
    permissions = TopicPermissions()
    permissions._topics[7] = permission
    with pytest.raises(InvariantViolation):
        permissions.check_invariants({7})
    permissions._topics[7] = READ
    permissions.check_invariants({7})
    with pytest.raises(InvariantViolation):
        permissions.check_invariants({8})


# --- who sends ------------------------------------------------------------------------------------


def test_what_was_on_its_way_is_stored_and_what_comes_behind_is_refused() -> None:
    """While that is decided a sender is asked to wait: the entry may never be in the log."""
    bench = with_topic()
    before = bench.send(batch(0, b"before"))
    done = bench.appender.submit(permit("t", 4))
    meanwhile = bench.send(batch(1, b"meanwhile"))
    unit = bench.appender.units.propose(ProposedUnit((unnumbered(b"unit"),)))
    answers = sent(bench, before, meanwhile)
    assert isinstance(answers[0], Placed)
    assert code_of(answers[1]) is ErrorCode.NOT_READY
    assert isinstance(unit.exception(), BrokerError)
    assert done.result() is None
    assert code_of(sent(bench, bench.send(batch(1, b"behind")))[0]) is ErrorCode.TOPIC_NOT_WRITABLE
    again = sent(bench, bench.send(batch(0, b"before")))[0]
    assert isinstance(again, Placed)
    assert again.is_duplicate, "its fate is known, whatever may be sent now"
    bench.submit(permit("t", 6))
    assert isinstance(sent(bench, bench.send(batch(1, b"behind")))[0], Placed)
    same_everywhere(bench)


def test_a_unit_with_messages_for_a_topic_that_takes_none_is_refused() -> None:
    bench = with_topic()
    bench.submit(permit("t", 4))
    future = bench.appender.units.propose(ProposedUnit((unnumbered(b"x"),)))
    bench.commit()
    error = future.exception()
    assert isinstance(error, BrokerError)
    assert error.code is ErrorCode.TOPIC_NOT_WRITABLE


def test_records_behind_the_permission_are_void_whoever_proposed_them() -> None:
    """A leader that broke the rule stores nothing; its queue goes on where it was."""
    bench = with_topic()
    bench.submit(permit("t", 4))
    with (
        patch("broker.leader.append.check_open"),
        patch("broker.leader.units.check_open"),
    ):
        answer = bench.send(batch(0, b"x"))
        other = unnumbered(b"y", queue_id=1)
        unit = bench.appender.units.propose(ProposedUnit((other,)))
        bench.commit()
    assert code_of(answer.result()[0]) is ErrorCode.TOPIC_NOT_WRITABLE
    assert unit.result().refusal == TopicNotWritable("t")
    assert bench.reader.pull(TopicRef("t"), 0, 0, 9, 1 << 20).count == 0
    bench.submit(permit("t", 6))
    assert isinstance(sent(bench, bench.send(batch(0, b"z")))[0], Placed)
    same_everywhere(bench)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1)),
        st.tuples(st.just("unit"), st.integers(0, 1)),
        st.tuples(st.just("permit"), st.sampled_from([2, 4, 6])),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("reboot"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=examples(25), deadline=None)
@given(STEPS)
def test_nothing_is_acknowledged_behind_the_entry_that_forbids_it(
    steps: list[tuple[str, int]],
) -> None:
    """Sends, units, permissions and restarts in any order: what is stored is what was told, and
    none of it lies behind a permission without writing."""
    bench = with_topic()
    told: list[tuple[bytes, asyncio.Future[list[BatchAnswer]]]] = []
    for number, (what, value) in enumerate(steps):
        body = f"{number}".encode()
        match what:
            case "send":
                told.append((body, bench.send(batch(0, body, queue_id=value), producer=b"")))
            case "unit":
                wanted = ProposedUnit((unnumbered(body, queue_id=value),))
                bench.appender.units.propose(wanted).add_done_callback(lambda f: f.exception())
            case "permit":
                bench.appender.submit(permit("t", value))
            case "commit":
                bench.commit()
            case "reboot":
                bench.commit()
                bench.reboot()
                told.clear()  # nobody waits for a process that was killed
    bench.commit()
    assert not bench.machine.statistics().entries_void, "a leader proposes what takes effect"
    ref = TopicRef("t")
    found = [
        record
        for queue_id in range(2)
        for record in decode_records(bench.reader.pull(ref, queue_id, 0, 99, 1 << 20).records)
    ]
    stored = {record.body for record in found}
    for body, answer in told:
        assert (body in stored) == isinstance(answer.result()[0], Placed)
    closed = _closed_stretches(bench)
    for record in found:
        at = record.physical_offset
        assert not any(first <= at < last for first, last in closed), record.body
    same_everywhere(bench)


def _closed_stretches(bench: Bench) -> list[tuple[int, int]]:
    """Byte ranges of the log that lie behind a permission without writing, and before the next."""
    found: list[tuple[int, int]] = []
    since: int | None = None
    for index in range(1, bench.log.last_index + 1):
        header = bench.log.header_at(index)
        body = bench.log.read(index, index)[HEADER_SIZE:]
        if header.kind != EntryKind.COMMAND or not Command.FromString(body).HasField(
            "permit_topic"
        ):
            continue
        if since is not None:
            found.append((since, header.physical_offset))
        since = None
        if not Command.FromString(body).permit_topic.permission & WRITE:
            since = header.physical_offset
    return found if since is None else [*found, (since, 1 << 62)]


# --- who reads ------------------------------------------------------------------------------------


def test_readers_are_refused_by_name_and_go_on_when_it_is_read_again() -> None:
    """One that waited for messages is told at once."""
    bench = with_topic()
    bench.send(batch(0, b"a"))
    bench.commit()
    pulls = bench.node.replica.services.pulls

    def wanted(offset: int) -> PullRequest:
        return PullRequest(TopicRef("t"), 0, offset, hold_ms=15_000)

    waiting = bench.node.begin(pulls.pull(wanted(1), EndlessCall()))
    bench.commit()
    assert not waiting.done()
    bench.submit(permit("t", 2))
    assert waiting.done(), "no time has passed"
    for asked in (waiting, bench.node.begin(pulls.pull(wanted(0), EndlessCall()))):
        with pytest.raises(BrokerError) as caught:
            bench.world.outcome(asked)
        assert caught.value.code is ErrorCode.TOPIC_NOT_READABLE
    assert isinstance(sent(bench, bench.send(batch(1, b"b")))[0], Placed)
    bench.submit(permit("t", 6))
    found = bench.world.run(bench.node, pulls.pull(wanted(0), EndlessCall()))
    assert [each.body for each in decode_records(found.records)] == [b"a", b"b"]


# --- the services ---------------------------------------------------------------------------------


def test_service_tells_what_may_be_done_and_why_not() -> None:
    """No such topic, no such permission, not yet."""
    bench = with_topic(DELIVERY_LEVEL)
    bench.topic(SCHEDULE_TOPIC)
    topics = bench.node.replica.services.topics

    def refused_with(name: str, permission: int) -> ErrorCode:
        with pytest.raises(BrokerError) as caught:
            bench.world.run(bench.node, topics.permit(TopicRef(name), permission))
        return caught.value.code

    assert refused_with("nope", 4) is ErrorCode.TOPIC_NOT_FOUND
    assert refused_with("t", 3) is ErrorCode.INVALID_ARGUMENT
    assert refused_with(SCHEDULE_TOPIC, 4) is ErrorCode.INVALID_ARGUMENT
    assert refused_with("t", 4) is ErrorCode.NOT_READY
    raised(bench, TOPIC_RULES_LEVEL)
    assert bench.world.run(bench.node, topics.permit(TopicRef("t"), 4)).permission == READ
    assert bench.world.run(bench.node, topics.describe(TopicRef("t"))).topic.permission == READ


def test_service_makes_topics_with_their_wishes() -> None:
    """One that is there is changed, if that is a success at all."""
    bench = with_topic(DELIVERY_LEVEL)
    topics = bench.node.replica.services.topics

    def made(name: str, wishes: Wishes, *, if_not_exists: bool = False) -> Topic:
        work = topics.make(name, 2, wishes, if_not_exists=if_not_exists)
        return bench.world.run(bench.node, work)

    with pytest.raises(BrokerError) as caught:
        made("u", Wishes(5, 4))
    assert caught.value.code is ErrorCode.NOT_READY
    assert "u" not in bench.machine.topics
    raised(bench, TOPIC_RULES_LEVEL)
    before = bench.log.last_index
    topic = made("u", Wishes(5, 4))
    assert (topic.retention_ms, topic.permission) == (5, READ)
    assert bench.log.last_index == before + 1, "one entry"
    with pytest.raises(BrokerError) as caught:
        made("u", Wishes(6, 2))
    assert caught.value.code is ErrorCode.TOPIC_EXISTS
    topic = made("u", Wishes(permission=2), if_not_exists=True)
    assert (topic.retention_ms, topic.permission) == (5, WRITE), "nothing was said of the other"
    topic = made("u", Wishes(7, 6), if_not_exists=True)
    assert (topic.retention_ms, topic.permission) == (7, USUAL)
    with pytest.raises(BrokerError) as caught:
        made("v", Wishes(permission=0))
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


@pytest.mark.parametrize("permission", [None, int(USUAL)])
def test_service_makes_topics_with_their_retention_before_permissions_are_known(
    permission: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two entries, as a topic is made and changed by itself; where nobody knows of topics'
    retention either nothing is made."""
    bench = with_topic(DELIVERY_LEVEL)
    topics = bench.node.replica.services.topics

    def made(retention_ms: int | None, *, if_not_exists: bool = False) -> Topic:
        wishes = Wishes(retention_ms, permission)
        work = topics.make("u", 2, wishes, if_not_exists=if_not_exists)
        return bench.world.run(bench.node, work)

    before = bench.log.last_index
    topic = made(5)
    assert (topic.name, topic.retention_ms, topic.permission) == ("u", 5, USUAL)
    assert bench.log.last_index == before + 2
    with pytest.raises(BrokerError) as caught:
        made(6)
    assert caught.value.code is ErrorCode.TOPIC_EXISTS
    assert made(7, if_not_exists=True).retention_ms == 7
    assert made(None, if_not_exists=True).retention_ms == 7, "nothing was said of it"

    async def deposed(*_: object) -> Topic:
        raise BrokerError(ErrorCode.NOT_LEADER, "another leads")

    with monkeypatch.context() as patch:
        patch.setattr(type(topics), "retain", deposed)
        with pytest.raises(BrokerError, match="the topic is there, and then") as caught:
            made(8, if_not_exists=True)
    assert caught.value.code is ErrorCode.LEADERSHIP_LOST  # it may have happened
    early = raised(Bench(known_level=KNOWN_LEVEL), LOG_START_LEVEL)
    work = early.node.replica.services.topics.make(
        "u", 2, Wishes(5, permission), if_not_exists=False
    )
    with pytest.raises(BrokerError) as caught:
        early.world.run(early.node, work)
    assert caught.value.code is ErrorCode.NOT_READY
    assert "u" not in early.machine.topics


def failing(code: ErrorCode) -> Callable[..., Awaitable[Topic]]:
    """A step of a service that is refused so."""

    async def step(*_: object) -> Topic:
        raise BrokerError(code, "no more")

    return step


def test_wishes_of_which_one_was_granted_may_have_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the next one meets; and where none was, nothing has."""
    bench = with_topic()
    topics = bench.node.replica.services.topics
    monkeypatch.setattr(type(topics), "permit", failing(ErrorCode.NOT_LEADER))

    def code_of(wishes: Wishes) -> ErrorCode:
        work = topics.make("t", 2, wishes, if_not_exists=True)
        with pytest.raises(BrokerError) as caught:
            bench.world.run(bench.node, work)
        return caught.value.code

    assert code_of(Wishes(5, 4)) is ErrorCode.LEADERSHIP_LOST
    assert topics.found(TopicRef("t")).retention_ms == 5
    assert code_of(Wishes(5, 4)) is ErrorCode.NOT_LEADER


def test_creation_that_took_effect_is_not_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody deletes the topic before its retention is asked for; or an equal one that was in the
    way: then it is asked for again."""
    bench = with_topic(DELIVERY_LEVEL)
    topics = bench.node.replica.services.topics
    with monkeypatch.context() as patch:
        patch.setattr(type(topics), "retain", failing(ErrorCode.TOPIC_NOT_FOUND))
        with pytest.raises(BrokerError) as caught:
            bench.world.run(bench.node, topics.make("u", 2, Wishes(5), if_not_exists=False))
    assert caught.value.code is ErrorCode.LEADERSHIP_LOST

    async def in_the_way(*_: object) -> TopicExists:
        return TopicExists("gone", 2)

    monkeypatch.setattr(type(topics._commands), "create_topic", in_the_way)
    with pytest.raises(BrokerError) as caught:
        bench.world.run(bench.node, topics.create("gone", 2, if_not_exists=True))
    assert caught.value.code is ErrorCode.NOT_READY


def test_a_topic_is_measured_a_page_at_a_time() -> None:
    bench = with_topic()
    bench.topic("wide", 200)
    bench.send(batch(0, b"a", b"b", topic="wide", queue_id=130))
    bench.commit()
    figures = bench.node.replica.services.topic_figures
    first = bench.world.run(bench.node, figures.measure(TopicRef("wide")))
    assert (len(first.queues), first.next_queue) == (128, 128)
    assert {(each.max_offset, each.last_stored_ms) for each in first.queues} == {(0, None)}
    last = bench.world.run(bench.node, figures.measure(TopicRef("wide"), first.next_queue))
    assert ([each.queue_id for each in last.queues], last.next_queue) == (list(range(128, 200)), 0)
    (filled,) = (each for each in last.queues if each.max_offset)
    assert (filled.queue_id, filled.min_offset, filled.max_offset) == (130, 0, 2)
    record = bench.reader.pull(TopicRef("wide"), 130, 1, 1, 1 << 20).records
    assert filled.last_stored_ms == decode_records(record)[0].store_time_ms
    with pytest.raises(BrokerError) as caught:
        bench.world.run(bench.node, figures.measure(TopicRef("wide"), 200))
    assert caught.value.code is ErrorCode.QUEUE_NOT_FOUND
