"""What topics wish for their messages: as replicated state, and what a leader makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode
from broker.leader import topic_retention
from broker.leader.batches import Batch
from broker.leader.commands import Commands
from broker.leader.flight import InFlight
from broker.leader.lived_marks import Lived
from broker.leader.topic_retention import (
    LOOK_S,
    QUEUES_A_LOOK,
    SLACK_MS,
    SLACK_SHARE,
    TopicRetention,
)
from broker.services.refused import refused
from broker.state.errors import SnapshotRefused
from broker.state.machine import StateMachine
from broker.state.refusals import Malformed, QueueStartNotMoved, RetentionOutOfRange, TopicReplaced
from broker.state.snapshot import Section, pack, seal, unseal
from broker.state.topic_retention import MAX_RETENTION_MS, SECTION, Keeping, TopicRetentions
from broker.state.topics import TopicRef
from dledger.core.errors import InvariantViolation
from dledger.level import KNOWN_LEVEL, LOG_START_LEVEL, TOPIC_RETENTION_LEVEL
from dledger.records.record import decode_records, message_id
from dledger.wire.commands_pb2 import (
    Command,
    DeleteTopicCommand,
    MoveLogStartCommand,
    MoveQueueStartsCommand,
    QueueStart,
    RaiseLevelCommand,
    RetainTopicCommand,
)
from tests.broker.asked import EndlessCall
from tests.broker.leader import Bench, NoQueues, batch
from tests.broker.test_append import placed
from tests.broker.test_services import ADDRESS
from tests.scale import examples

HOUR_MS = 3_600_000


def retain(name: str, ms: int, incarnation: int = 0) -> Command:
    return Command(
        retain_topic=RetainTopicCommand(name=name, incarnation=incarnation, retention_ms=ms)
    )


def move(name: str, *starts: tuple[int, int], incarnation: int = 0) -> Command:
    found = [QueueStart(queue_id=queue_id, offset=offset) for queue_id, offset in starts]
    return Command(
        move_queue_starts=MoveQueueStartsCommand(name=name, incarnation=incarnation, starts=found)
    )


def raised(bench: Bench, level: int = TOPIC_RETENTION_LEVEL) -> Bench:
    for wanted in range(bench.machine.level.current + 1, level + 1):
        bench.submit(Command(raise_level=RaiseLevelCommand(level=wanted)))
    return bench


def filled() -> Bench:
    """A topic `t` of two queues, with four messages in the first."""
    bench = raised(Bench(known_level=KNOWN_LEVEL))
    bench.topic("t")
    bench.send(batch(0, b"a", b"b", b"c", b"d"))
    bench.commit()
    return bench


def same_everywhere(bench: Bench) -> None:
    """Whoever applies the log, or restores the state, has the same."""
    chunks = list(bench.machine.snapshot())
    bench.machine.check_invariants()
    replayed = StateMachine(NoQueues())
    replayed.apply(bench.log.read(1, bench.log.last_index))
    assert list(replayed.snapshot()) == chunks
    assert replayed.topic_retention == bench.machine.topic_retention
    restored = StateMachine.restore(chunks, NoQueues())
    assert list(restored.snapshot()) == chunks
    assert restored.topic_retention == bench.machine.topic_retention


# --- the state ------------------------------------------------------------------------------------


def test_queues_begin_later_as_told_and_never_earlier_nor_behind_their_end() -> None:
    """All that a command names, or none."""
    bench = filled()
    wishes = bench.machine.topic_retention
    incarnation = bench.machine.topics["t"].incarnation
    assert bench.submit(move("t", (0, 2), (1, 0))) == [None]
    assert wishes.of(incarnation) == Keeping(0, (2, 0))
    for starts in (((0, 1),), ((0, 5),), ((2, 0),), ((0, 3), (1, 1)), ((0, 3), (0, 2))):
        (refusal,) = bench.submit(move("t", *starts))
        assert isinstance(refusal, QueueStartNotMoved)
        assert refused(refusal).code is ErrorCode.INTERNAL
        assert wishes.of(incarnation).starts == (2, 0)
    assert bench.reader.bounds(TopicRef("t"), 0) == (2, 4)
    with pytest.raises(BrokerError) as caught:
        bench.reader.pull(TopicRef("t"), 0, 1, 9, 1 << 20)
    assert caught.value.failure.valid == (2, 4)
    assert bench.reader.pull(TopicRef("t"), 0, 2, 9, 1 << 20).count == 2
    assert bench.submit(move("t", (0, 4))) == [None]
    assert bench.reader.bounds(TopicRef("t"), 0) == (4, 4)
    same_everywhere(bench)


def test_wish_is_given_changed_and_taken_back() -> None:
    """What began later for it stays so: the messages were let go of."""
    bench = filled()
    wishes, incarnation = bench.machine.topic_retention, bench.machine.topics["t"].incarnation
    assert bench.submit(retain("t", 5), retain("t", HOUR_MS)) == [None, None]
    assert wishes.wishes() == {incarnation: HOUR_MS}
    bench.submit(move("t", (0, 1)))
    assert bench.submit(retain("t", 0)) == [None]
    assert wishes.wishes() == {}
    assert wishes.of(incarnation) == Keeping(0, (1, 0))
    (refusal,) = bench.submit(retain("t", MAX_RETENTION_MS + 1))
    assert refusal == RetentionOutOfRange(MAX_RETENTION_MS + 1, MAX_RETENTION_MS)
    assert refused(refusal).code is ErrorCode.INVALID_ARGUMENT
    same_everywhere(bench)


def test_topic_of_the_same_name_knows_nothing_of_the_one_before() -> None:
    bench = filled()
    old = bench.machine.topics["t"].incarnation
    bench.submit(retain("t", 5), move("t", (0, 3)))
    bench.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    same_everywhere(bench)
    bench.topic("t")
    assert bench.machine.topic_retention == TopicRetentions()
    for command in (retain("t", 5, old), move("t", (0, 0), incarnation=old)):
        (refusal,) = bench.submit(command)
        assert isinstance(refusal, TopicReplaced)
    assert bench.machine.topic_retention == TopicRetentions()
    same_everywhere(bench)


def test_service_tells_what_is_wished_and_why_not() -> None:
    """No such topic, no such time, not yet."""
    bench = raised(Bench(known_level=KNOWN_LEVEL), LOG_START_LEVEL)
    bench.topic("t")
    topics = bench.node.replica.services.topics

    def refused_with(name: str, ms: int) -> ErrorCode:
        with pytest.raises(BrokerError) as caught:
            bench.world.run(bench.node, topics.retain(TopicRef(name), ms))
        return caught.value.code

    assert refused_with("nope", 5) is ErrorCode.TOPIC_NOT_FOUND
    assert refused_with("t", MAX_RETENTION_MS + 1) is ErrorCode.INVALID_ARGUMENT
    assert refused_with("t", 5) is ErrorCode.NOT_READY
    raised(bench)
    assert bench.world.run(bench.node, topics.retain(TopicRef("t"), 5)).retention_ms == 5
    assert bench.world.run(bench.node, topics.describe(TopicRef("t"))).topic.retention_ms == 5


def test_commands_are_void_before_their_level_is_in_use() -> None:
    """A program that doesn't know them would go on as if nothing had been said."""
    bench = raised(Bench(known_level=KNOWN_LEVEL), LOG_START_LEVEL)
    bench.topic("t")
    for command in (retain("t", 5), move("t", (0, 0))):
        (refusal,) = bench.submit(command)
        assert isinstance(refusal, Malformed)
    assert bench.machine.topic_retention == TopicRetentions()
    same_everywhere(bench)


def test_snapshots_are_those_of_the_releases_before_where_no_topic_wishes_anything() -> None:
    bench = filled()
    sections = [each.section for each in unseal(bench.machine.snapshot())]
    assert SECTION not in sections
    bench.submit(retain("t", 5))
    assert [each.section for each in unseal(bench.machine.snapshot())][-1] == SECTION
    bench.submit(Command(move_log_start=MoveLogStartCommand(first_index=2)))
    sections = [each.section for each in unseal(bench.machine.snapshot())]
    assert sections[-2:] == ["log-start", SECTION]
    same_everywhere(bench)
    bench.submit(retain("t", 0))
    assert SECTION not in [each.section for each in unseal(bench.machine.snapshot())]


def test_many_queues_take_many_records() -> None:
    retentions = TopicRetentions()
    ends = [7] * 3_000
    retentions.move(5, [(queue_id, queue_id % 8 % 7) for queue_id in range(3_000)], ends)
    retentions.wish(5, 9)
    retentions.wish(3, 1)
    (section,) = retentions.snapshot()
    payloads = list(section.payloads)
    restored = TopicRetentions()
    restored.restore(section.version, payloads)
    assert restored == retentions
    restored.check_invariants({3: [1], 5: ends})


KEEPING = st.builds(
    Keeping, st.integers(0, MAX_RETENTION_MS), st.lists(st.integers(0, 9), max_size=4).map(tuple)
)


@settings(max_examples=examples(80))
@given(st.dictionaries(st.integers(1, 40), KEEPING, max_size=4), st.data())
def test_no_state_that_no_log_gives_is_restored(
    topics: dict[int, Keeping], data: st.DataObject
) -> None:
    """Whatever is in the section, with right sums: the state, or a refusal."""
    bench = filled()
    sections = [
        Section(each.section, each.version, iter((each.payload,)))
        for each in unseal(bench.machine.snapshot())
    ]
    retentions = TopicRetentions()
    retentions._topics.update(topics)
    found = retentions.snapshot()
    payloads = list(found[0].payloads) if found else [b""]
    if data.draw(st.booleans()):
        payload = bytearray(payloads[0])
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
        payloads[0] = bytes(payload)
    sections.append(Section(SECTION, 1, iter(payloads)))
    if data.draw(st.booleans()):
        sections.append(Section(SECTION, 1, iter(payloads)))
    chunks = list(seal(bench.machine.applied_index, sections))
    try:
        machine = StateMachine.restore(chunks, NoQueues())
    except SnapshotRefused:
        return
    assert list(machine.topic_retention.snapshot()) or machine.topic_retention == TopicRetentions()
    machine.check_invariants()


def test_sections_have_their_order() -> None:
    bench = filled()
    bench.submit(retain("t", 5), Command(move_log_start=MoveLogStartCommand(first_index=2)))
    sections = [
        Section(each.section, each.version, pack((each.payload,)))
        for each in unseal(bench.machine.snapshot())
    ]
    swapped = [*sections[:-2], sections[-1], sections[-2]]
    with pytest.raises(SnapshotRefused, match="order"):
        StateMachine.restore(seal(bench.machine.applied_index, swapped), NoQueues())


@pytest.mark.parametrize(
    "keeping", [Keeping(), Keeping(-1), Keeping(5, (0, 0)), Keeping(0, (1,)), Keeping(0, (5, 0))]
)
def test_what_cannot_be_is_an_invariant_broken(keeping: Keeping) -> None:
    retentions = TopicRetentions()
    retentions._topics[7] = keeping
    with pytest.raises(InvariantViolation):
        retentions.check_invariants({7: [4, 4]})
    with pytest.raises(InvariantViolation):
        retentions.check_invariants({})


def test_clock_of_who_formed_the_group_makes_nothing_young() -> None:
    """One that was years behind would keep all messages for as many years."""
    bench = filled()
    assert bench.log.header_at(1).append_time_ms < 1_000 < bench.log.header_at(2).append_time_ms

    async def asked() -> Lived:
        return await measured(bench)()

    now = bench.world.run(bench.node, asked())
    assert now.begin_time_ms == bench.log.header_at(2).append_time_ms
    assert 0 <= now.lived_ms <= bench.machine.lived_time.lived_ms


# --- the leader -----------------------------------------------------------------------------------


def looks(bench: Bench, retention: TopicRetention, now: Callable[[], Awaitable[Lived]]) -> None:
    """A look, with all that it takes."""
    bench.world.outcome(bench.node.begin(retention.look(now)))


def measured(bench: Bench) -> Callable[[], Awaitable[Lived]]:
    return bench.node.replica.retention._now


def retention_of(bench: Bench, look_s: float = LOOK_S) -> TopicRetention:
    commands = Commands(bench.appender)
    return TopicRetention(bench.machine, bench.reader, commands, lambda _: False, SLACK_MS, look_s)


@settings(max_examples=15)
@example([20_000, 20_000, 0], 30_000)  # the first is old enough as the second isn't
@given(
    st.lists(st.integers(0, 50_000), min_size=3, max_size=25),
    st.sampled_from([1, 30_000, 200_000, 100 * SLACK_MS]),
)
def test_messages_go_when_they_are_older_than_wished_and_not_before(
    gaps: list[int], wish_ms: int
) -> None:
    """What goes is never younger than the wish; what stays never older than that and the slack, and
    what the log's time went on while the group didn't live."""
    bench = raised(Bench(known_level=KNOWN_LEVEL))
    bench.topic("t")
    bench.submit(retain("t", wish_ms))
    retention, born = retention_of(bench), []
    for number, gap in enumerate(gaps):
        bench.send(batch(number, b"x"))
        bench.commit()
        born.append(bench.machine.lived_time.lived_ms)
        bench.later(gap)
        bench.submit(retain("t", wish_ms))  # time goes on by entries
        looks(bench, retention, measured(bench))
        low, high = bench.reader.bounds(TopicRef("t"), 0)
        lived_ms = bench.machine.lived_time.lived_ms
        slack_ms = max(SLACK_MS, wish_ms // SLACK_SHARE)
        assert high == len(born)
        assert all(lived_ms - each > wish_ms for each in born[:low])
        passed_ms = bench.machine.append_time_ms - bench.log.header_at(2).append_time_ms
        slack_ms += max(0, passed_ms - lived_ms)
        assert all(lived_ms - each <= wish_ms + slack_ms for each in born[low:])


def test_what_follows_a_step_goes_when_it_is_older_than_wished() -> None:
    """Two hours in which the group rested keep nothing for two hours more. Nobody looks by itself
    here, as time passes in steps: it is looked before and behind."""
    bench, wish_ms = raised(Bench(known_level=KNOWN_LEVEL)), 100_000
    front = bench.node.replica.retention._front
    bench.topic("t")
    bench.submit(retain("t", wish_ms))
    bench.send(batch(0, b"before"))
    bench.commit()
    front.note_lived()
    bench.later(2 * HOUR_MS)
    bench.send(batch(1, b"behind"))
    bench.commit()
    front.note_lived()
    for _ in range(5):
        bench.later(50_000)
        bench.submit(retain("t", wish_ms))
    looks(bench, retention_of(bench), measured(bench))
    assert bench.reader.bounds(TopicRef("t"), 0) == (2, 2)


def test_topics_that_wish_nothing_or_for_longer_keep_what_they_have() -> None:
    bench = raised(Bench(known_level=KNOWN_LEVEL))
    for name in ("none", "long", "short"):
        bench.topic(name)
        bench.send(batch(0, b"x", topic=name))
        bench.commit()
    bench.submit(retain("short", 1), retain("long", 100 * HOUR_MS))
    for _ in range(4):
        bench.later(50_000)
        bench.submit(retain("short", 1))
    retention = retention_of(bench)
    assert retention.longest_ms() == 100 * HOUR_MS
    looks(bench, retention, measured(bench))
    begin = {name: bench.reader.bounds(TopicRef(name), 0)[0] for name in ("none", "long", "short")}
    assert begin == {"none": 0, "long": 0, "short": 1}


@pytest.mark.parametrize("is_applied", [True, False])
def test_what_is_wished_for_longer_during_a_look_stays(
    monkeypatch: pytest.MonkeyPatch, *, is_applied: bool
) -> None:
    """It takes seconds, and whoever wishes meanwhile is told that it is so: by a command that is
    applied, or that lies in the log before the move would."""
    bench = filled()
    bench.submit(retain("t", 1))
    for _ in range(4):
        bench.later(50_000)
        bench.submit(retain("t", 1))
    incarnation, seen = bench.machine.topics["t"].incarnation, list[int]()
    bounds = bench.reader.bounds

    def wishing(topic: TopicRef, queue_id: int) -> tuple[int, int]:
        if queue_id not in seen:
            seen.append(queue_id)
            if queue_id == 1 and is_applied:  # the first one's messages were too old
                bench.machine.topic_retention.wish(incarnation, 1_000 * HOUR_MS)
            elif queue_id == 1:
                bench.appender.submit(retain("t", 1_000 * HOUR_MS))
        return bounds(topic, queue_id)

    async def at_once(seconds: float) -> None: ...

    around = SimpleNamespace(get_running_loop=asyncio.get_running_loop, sleep=at_once)
    monkeypatch.setattr(topic_retention, "asyncio", around)
    monkeypatch.setattr(bench.reader, "bounds", wishing)
    looks(bench, retention_of(bench), measured(bench))
    bench.commit()
    assert seen == [0, 1]
    assert bounds(TopicRef("t"), 0) == (0, 4)
    assert bench.machine.topic_retention.wishes() == {incarnation: 1_000 * HOUR_MS}
    assert not retention_of(bench).are_changing()


def test_every_queue_is_looked_at_in_the_end() -> None:
    """A look takes some of them, and the next goes on from there; one after the other."""
    bench = raised(Bench(known_level=KNOWN_LEVEL))
    sizes = {"a": 3, "b": QUEUES_A_LOOK + 7, "c": 2 * QUEUES_A_LOOK, "d": 1}
    for name, queues in sizes.items():
        bench.topic(name, queues)
        bench.submit(retain(name, 1))
    retention, seen = retention_of(bench, look_s=1.0), []
    bounds = bench.reader.bounds

    def noting(topic: TopicRef, queue_id: int) -> tuple[int, int]:
        seen.append((topic.name, queue_id))
        return bounds(topic, queue_id)

    bench.reader.bounds = noting  # type: ignore[method-assign]
    wanted = {place for name, queues in sizes.items() for place in product([name], range(queues))}
    for _ in range(20):
        before = len(seen)
        looks(bench, retention, measured(bench))
        assert len({*seen[before:]}) <= QUEUES_A_LOOK
        if {*seen} == wanted:
            break
    assert {*seen} == wanted
    seen.clear()
    for _ in range(20):
        looks(bench, retention, measured(bench))
    assert {*seen} == wanted, "and again"


@pytest.mark.parametrize(("queues", "wish_ms"), [(100, 1), (2_000, 1), (2_000, 2_400_000)])
def test_however_many_queues_there_are_all_are_looked_at_in_time(queues: int, wish_ms: int) -> None:
    """Half of the slack passes before something is moved, and the other half before it is seen."""
    bench = raised(Bench(known_level=KNOWN_LEVEL))
    topics = -(-queues // 1_000)
    for number in range(topics):
        bench.topic(f"t{number}", queues // topics)
        bench.submit(retain(f"t{number}", wish_ms))
    retention, seen = retention_of(bench), set[tuple[str, int]]()

    def noting(topic: TopicRef, queue_id: int) -> tuple[int, int]:
        seen.add((topic.name, queue_id))
        return 0, 0

    bench.reader.bounds = noting  # type: ignore[method-assign]
    # The longest look, and the pause behind it.
    looks_in_time = int(max(SLACK_MS, wish_ms // SLACK_SHARE) / 2_000 / (2 * LOOK_S))
    for _ in range(looks_in_time):
        before = len(seen)
        looks(bench, retention, measured(bench))
        assert len(seen) - before <= max(QUEUES_A_LOOK, queues // looks_in_time + 1)
    assert len(seen) == queues


def test_a_look_ends_in_time_whatever_the_disk_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old segments are looked at between two of them; it is gone on from where it ended."""
    bench = raised(Bench(known_level=KNOWN_LEVEL))
    bench.topic("t", 500)
    bench.submit(retain("t", 1))
    retention, seen = retention_of(bench), list[int]()
    lived = bench.world.run(bench.node, bench.node.replica.retention._now())

    def noting(topic: TopicRef, queue_id: int) -> tuple[int, int]:
        seen.append(queue_id)
        return 0, 0

    async def now() -> Lived:
        return lived

    async def at_once(seconds: float) -> None: ...

    bench.reader.bounds = noting  # type: ignore[method-assign]
    clock = SimpleNamespace(time=lambda: float(len({*seen})))  # a second for each queue
    around = SimpleNamespace(get_running_loop=lambda: clock, sleep=at_once)
    monkeypatch.setattr(topic_retention, "asyncio", around)
    for _ in range(2):
        with pytest.raises(StopIteration):
            retention.look(now).send(None)  # it waits for nothing here
    assert [*dict.fromkeys(seen)] == [*range(2 * int(LOOK_S))]


def test_refusal_is_told_and_no_end() -> None:
    """As of a disk without room, or a leader that leads no more; and rot is left to its repair."""

    class Refusing:
        units, room = filled().appender.units, filled().appender.room

        def submit(self, command: Command) -> Awaitable[None]:
            raise BrokerError(ErrorCode.STORAGE_FULL, "no room")

        def is_coming(self, incarnation: int, queue_id: int) -> bool:
            return False

        coming = InFlight()

    bench = filled()
    bench.submit(retain("t", 1))
    for _ in range(4):
        bench.later(50_000)
        bench.submit(retain("t", 1))
    refusing = TopicRetention(bench.machine, bench.reader, Commands(Refusing()), lambda _: False)
    looks(bench, refusing, measured(bench))
    assert bench.reader.bounds(TopicRef("t"), 0)[0] == 0

    def rotten(topic: TopicRef, queue_id: int, time_ms: int) -> int:
        raise OSError("rot")

    bench.reader.offset_by_time = rotten  # type: ignore[method-assign]
    with pytest.raises(OSError, match="rot"):
        looks(bench, retention_of(bench), measured(bench))
    mended = TopicRetention(bench.machine, bench.reader, Commands(bench.appender), lambda _: True)
    looks(bench, mended, measured(bench))


def test_without_wishes_nothing_is_measured() -> None:
    async def now() -> Lived:
        raise AssertionError("for nobody")

    bench = filled()
    looks(bench, retention_of(bench), now)


# --- by id --------------------------------------------------------------------------------------


def test_an_id_finds_what_can_be_read_at_its_offset_and_nothing_else() -> None:
    """What the topic has let go of is told so, though the log holds it yet; one made anew in its
    name has let go of nothing."""
    bench = filled()
    more = where(bench, batch(4, b"e"))
    first = where(bench, batch(0, b"f", queue_id=1))

    def by_id(physical_offset: int) -> bytes:
        lookups = bench.node.replica.services.lookups
        found = bench.world.run(
            bench.node, lookups.by_id(message_id(ADDRESS, physical_offset), EndlessCall())
        )
        return decode_records(found)[0].body

    assert by_id(more) == b"e"
    bench.submit(move("t", (0, 4)))
    assert (by_id(more), by_id(first)) == (b"e", b"f")
    bench.submit(move("t", (0, 5)))
    with pytest.raises(BrokerError, match="was offset 4 of t/0, which begins at 5 now") as refused:
        by_id(more)
    assert refused.value.code is ErrorCode.MESSAGE_NOT_FOUND
    assert by_id(first) == b"f"
    bench.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    bench.topic("t")
    bench.send(batch(0, *[b"new"] * 6))
    bench.commit()
    bench.submit(move("t", (0, 6)))
    assert by_id(more) == b"e", "of the topic before, which is in the log as long as that is"


def where(bench: Bench, sent: Batch) -> int:
    """Where the batch begins in the log."""
    answer = bench.send(sent)
    bench.commit()
    return placed(answer).base_physical_offset
