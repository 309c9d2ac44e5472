"""Read and write queues (ADR 60): the numbers as replicated state, what a leader takes while they
change, and what is held back from groups that read in order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import Batch, Placed
from broker.leader.units import ProposedUnit
from broker.services.refused import refused
from broker.services.topics import QueueWish
from broker.state.errors import SnapshotRefused
from broker.state.machine import MachineOptions, StateMachine
from broker.state.queue_numbers import (
    CHANGES_SECTION,
    MAX_CHANGES,
    SECTION,
    Change,
    Numbers,
    QueueNumbers,
    held_from,
)
from broker.state.refusals import (
    Malformed,
    QueueClosed,
    QueueNumbersWrong,
    QueuesUnread,
    TooManyChanges,
    TooManyQueues,
    TopicReplaced,
)
from broker.state.snapshot import Section, seal, unseal
from broker.state.topics import TopicRef
from dledger.core.errors import InvariantViolation
from dledger.level import KNOWN_LEVEL, TOPIC_RULES_LEVEL
from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    CommittedOffset,
    DeleteTopicCommand,
    ForgetGroupsCommand,
    MoveLogStartCommand,
    UpdateTopicCommand,
)
from tests.broker.leader import Bench, NoQueues, batch
from tests.broker.test_append import placed
from tests.broker.test_topic_retention import move, raised, retain
from tests.scale import examples


def update(
    read: int = 0, write: int = 0, *, drop: bool = False, name: str = "t", incarnation: int = 0
) -> Command:
    return Command(
        update_topic=UpdateTopicCommand(
            name=name, incarnation=incarnation, read_queues=read, write_queues=write, drop=drop
        )
    )


def committed(group: str, *offsets: tuple[int, int]) -> Command:
    wanted = [CommittedOffset(queue_id=queue_id, offset=offset) for queue_id, offset in offsets]
    return Command(commit_offsets=CommitOffsetsCommand(group=group, topic="t", offsets=wanted))


def bench_of(queues: int = 2, options: MachineOptions | None = None) -> Bench:
    """A topic `t`, at the newest level."""
    bench = raised(Bench(options, known_level=KNOWN_LEVEL), KNOWN_LEVEL)
    bench.topic("t", queues)
    return bench


def numbers_of(bench: Bench) -> Numbers:
    topic = bench.machine.topics["t"]
    return bench.machine.queue_numbers.of(topic.incarnation, len(topic.next_offsets))


def same_everywhere(bench: Bench) -> None:
    """Whoever applies the log, or restores the state, has the same."""
    chunks = list(bench.machine.snapshot())
    bench.machine.check_invariants()
    assert list(bench.replay(KNOWN_LEVEL).snapshot()) == chunks
    restored = StateMachine.restore(chunks, NoQueues())
    assert list(restored.snapshot()) == chunks
    assert restored.queue_numbers == bench.machine.queue_numbers


def chosen_by(changed: int | None, *args: object, queue_id: int = 0) -> Batch:
    return replace(batch(*args, queue_id=queue_id), queues_changed=changed)  # type: ignore[arg-type]


def codes(bench: Bench, *batches: Batch) -> list[ErrorCode | None]:
    """What the batches get, when all is applied."""
    answer = bench.send(*batches)
    bench.commit()
    return [each.code if isinstance(each, Failure) else None for each in answer.result()]


# --- the state ------------------------------------------------------------------------------------


def test_a_topic_grows_and_closes_queues_and_knows_where_they_ended() -> None:
    """New queues begin at 0; the change stands at its entry, with all ends."""
    bench = bench_of()
    bench.send(batch(0, b"a", b"b"), batch(0, b"c", queue_id=1))
    bench.commit()
    assert numbers_of(bench) == Numbers(2, 2)
    assert bench.submit(update(4, 4)) == [None]
    grown = Change(bench.machine.applied_index, 2, (2, 1))
    assert numbers_of(bench) == Numbers(4, 4, (grown,))
    assert bench.machine.topics["t"].next_offsets == [2, 1, 0, 0]
    assert bench.machine.topics.queue_count == 4
    assert bench.submit(update(0, 1)) == [None]
    shrunk = Change(bench.machine.applied_index, 4, (2, 1, 0, 0))
    assert numbers_of(bench) == Numbers(4, 1, (grown, shrunk))
    assert bench.submit(update(4, 1), update(0, 0), update(5, 0)) == [None, None, None]
    assert numbers_of(bench) == Numbers(5, 1, (grown, shrunk))
    same_everywhere(bench)


@pytest.mark.parametrize(("read", "write"), [(1, 2), (1, 0), (0, 3), (1_025, 0), (1_025, 1_025)])
def test_numbers_that_cannot_be_change_nothing(read: int, write: int) -> None:
    bench = bench_of()
    (refusal,) = bench.submit(update(read, write))
    assert isinstance(refusal, QueueNumbersWrong)
    assert refused(refusal).code is ErrorCode.INVALID_ARGUMENT
    assert numbers_of(bench) == Numbers(2, 2)
    assert not list(bench.machine.queue_numbers.snapshot())


def test_more_queues_than_a_broker_group_may_have_are_refused() -> None:
    bench = bench_of(2, MachineOptions(max_queues=5))
    assert bench.submit(update(6, 6)) == [TooManyQueues(4, 5)]
    assert bench.machine.topics["t"].next_offsets == [0, 0]
    assert bench.submit(update(5, 5), update(5, 5)) == [None, None]
    same_everywhere(bench)


def test_queues_go_when_every_group_has_read_them_and_come_back_where_they_ended() -> None:
    """Those that have committed anything wait for nobody's word but the log's; a queue is never
    made anew."""
    bench = bench_of(4)
    bench.send(batch(0, b"a", b"b", queue_id=3), batch(0, b"c"))
    bench.submit(update(0, 2), committed("g", (0, 1)))
    (refusal,) = bench.submit(update(2))
    assert refusal == QueuesUnread("t", "g", 3, -1, 2)
    assert refused(refusal).code is ErrorCode.QUEUES_UNREAD
    bench.submit(committed("g", (3, 1)))
    assert bench.submit(update(2)) == [QueuesUnread("t", "g", 3, 1, 2)]
    assert bench.submit(update(3)) == [QueuesUnread("t", "g", 3, 1, 2)]
    bench.submit(committed("g", (3, 2)), committed("a", (0, 0)))
    assert bench.submit(update(2)) == [QueuesUnread("t", "a", 3, -1, 2)]
    bench.submit(committed("a", (3, 2)))
    assert bench.submit(update(2)) == [None]
    assert numbers_of(bench).read_queues == 2
    same_everywhere(bench)
    assert bench.reader.bounds(TopicRef("t"), 3) == (2, 2)
    assert bench.submit(update(4, 4)) == [None]
    assert bench.reader.bounds(TopicRef("t"), 3) == (2, 2)
    assert bench.machine.topics["t"].next_offsets == [1, 0, 0, 2]
    assert codes(bench, batch(0, b"a", b"b", queue_id=3), batch(2, b"d", queue_id=3)) == [None] * 2
    assert bench.reader.bounds(TopicRef("t"), 3) == (2, 3)
    same_everywhere(bench)


def test_a_closed_queue_says_since_when() -> None:
    """The last time; what was forgotten is older than all that is kept."""
    numbers, ends = QueueNumbers(), (3, 3, 3, 3)

    def changed(index: int, write: int, first_index: int = 1) -> None:
        wanted = numbers.wanted(7, 4, 4, write)
        assert isinstance(wanted, Numbers)
        numbers.update(7, wanted, ends, index=index, first_index=first_index)

    for index, write in ((10, 2), (20, 4), (30, 3), (40, 1)):
        changed(index, write)
    assert [numbers.closed(7, queue) for queue in range(4)] == [None, 40, 40, 30]
    changed(50, 2, first_index=41)
    assert [numbers.closed(7, queue) for queue in range(4)] == [None, None, 0, 0]
    assert numbers.closed(8, 3) is None


def test_queues_go_with_what_they_hold_if_that_is_said() -> None:
    bench = bench_of()
    bench.send(batch(0, b"a", queue_id=1))
    bench.submit(committed("g", (0, 0)))
    assert isinstance(bench.submit(update(1, 1))[0], QueuesUnread)
    assert numbers_of(bench) == Numbers(2, 2)
    assert bench.submit(update(1, 1, drop=True)) == [None]
    assert bench.reader.bounds(TopicRef("t"), 1) == (1, 1)
    same_everywhere(bench)


@pytest.mark.parametrize("drop", [False, True])
def test_a_leader_takes_no_messages_away_that_nobody_is_known_to_want(*, drop: bool) -> None:
    """A topic that was filled before its readers began, or has only loops without a group, lost
    them without a word. A group that has read them, an empty queue, or saying so is enough."""
    bench = bench_of(3)
    bench.send(batch(0, b"a", queue_id=1))
    topics = bench.node.replica.services.topics

    def read_in(read: int, write: int, *, drop: bool = False) -> int:
        wish = QueueWish(read, write, drop)
        return bench.world.run(bench.node, topics.update(TopicRef("t"), wish)).queue_count

    def refused_with(read: int, write: int) -> ErrorCode:
        with pytest.raises(BrokerError) as caught:
            read_in(read, write)
        return caught.value.code

    assert read_in(2, 2) == 2, "the third is empty"
    assert refused_with(1, 1) is ErrorCode.QUEUES_UNREAD
    assert refused_with(1, 2) is ErrorCode.INVALID_ARGUMENT
    assert numbers_of(bench).read_queues == 2
    assert read_in(0, 1) == 2, "it goes on being read"
    if not drop:
        bench.submit(committed("g", (1, 1)))
    assert read_in(1, 0, drop=drop) == 1
    same_everywhere(bench)


def test_an_update_takes_no_messages_that_are_on_their_way() -> None:
    """They are stored before it is applied, and their sender is told so."""
    bench = bench_of()
    sent = bench.send(batch(0, b"a", queue_id=1))
    topics = bench.node.replica.services.topics
    with pytest.raises(BrokerError) as caught:
        bench.world.run(bench.node, topics.update(TopicRef("t"), QueueWish(1, 1)))
    assert caught.value.code is ErrorCode.QUEUES_UNREAD
    assert "messages are on their way into t/1" in caught.value.message
    bench.commit()
    assert sent.done()
    assert bench.reader.bounds(TopicRef("t"), 1) == (0, 1)
    same_everywhere(bench)


def test_an_update_takes_no_messages_from_a_group_that_is_just_forgotten() -> None:
    """It is the only one that is known to read the topic, and the update would come behind it: what
    it has read is no reason then. An empty queue goes, and so does any if that is said."""
    bench = bench_of(3)
    bench.send(batch(0, b"a", queue_id=1))
    bench.submit(committed("g", (1, 1)))
    topics = bench.node.replica.services.topics

    def read_in(count: int, *, drop: bool = False) -> int:
        forgets = ForgetGroupsCommand(groups=["g"], unused_ms=1_000_000)  # it is used
        with bench.node.running():
            bench.appender.submit(Command(forget_groups=forgets))
        wish = QueueWish(count, count, drop)
        return bench.world.run(bench.node, topics.update(TopicRef("t"), wish)).queue_count

    assert read_in(2) == 2
    with pytest.raises(BrokerError, match="just about to be forgotten") as caught:
        read_in(1)
    assert caught.value.code is ErrorCode.BUSY
    bench.commit()
    with bench.node.running():  # as the log's time is moved: nobody is named
        bench.appender.submit(Command(forget_groups=ForgetGroupsCommand(unused_ms=1)))
    wish = QueueWish(1, 1, drop=False)
    assert bench.world.run(bench.node, topics.update(TopicRef("t"), wish)).queue_count == 1
    assert read_in(3) == 3
    bench.send(batch(0, b"b", queue_id=2))
    bench.commit()
    assert read_in(1, drop=True) == 1


def test_what_a_topics_retention_took_counts_as_read() -> None:
    """Nobody could read it any more."""
    bench = bench_of()
    bench.send(batch(0, b"a", queue_id=1))
    bench.submit(committed("g", (0, 0)), move("t", (1, 1)))
    assert bench.submit(update(1, 1)) == [None]
    same_everywhere(bench)


def test_topics_with_wishes_grow_as_others() -> None:
    """Where queues begin is known for each of them, or for none."""
    bench = bench_of()
    bench.send(batch(0, b"a", b"b"))
    bench.submit(retain("t", 5), move("t", (0, 1)), update(3, 3))
    incarnation = bench.machine.topics["t"].incarnation
    assert bench.machine.topic_retention.of(incarnation).starts == (1, 0, 0)
    same_everywhere(bench)


def test_changes_are_kept_as_long_as_anything_from_before_them() -> None:
    """As many as that at most; then one waits for retention."""
    bench = bench_of()
    for number in range(MAX_CHANGES):
        assert bench.submit(update(2, 1 + number % 2 if number % 2 else 1)) == [None]
    kept = numbers_of(bench).changes
    assert len(kept) == MAX_CHANGES
    (refusal,) = bench.submit(update(2, 1))
    assert refusal == TooManyChanges(MAX_CHANGES)
    assert refused(refusal).code is ErrorCode.LIMIT_REACHED
    assert bench.submit(update(3)) == [None], "this one changes no write queues"
    bench.submit(Command(move_log_start=MoveLogStartCommand(first_index=kept[1].entry)))
    assert bench.submit(update(2, 1)) == [None]
    assert numbers_of(bench).changes[:-1] == kept[1:]
    same_everywhere(bench)


def test_topic_of_the_same_name_knows_nothing_of_the_one_before() -> None:
    bench = bench_of()
    old = bench.machine.topics["t"].incarnation
    bench.submit(update(3, 1), Command(delete_topic=DeleteTopicCommand(name="t")))
    same_everywhere(bench)
    assert bench.machine.queue_numbers == QueueNumbers()
    bench.topic("t")
    (refusal,) = bench.submit(update(3, 3, incarnation=old))
    assert isinstance(refusal, TopicReplaced)
    assert numbers_of(bench) == Numbers(2, 2)


def test_a_member_that_does_not_know_it_is_told_nothing_of_it() -> None:
    """Below its level the command is void, and no snapshot shows it."""
    bench = raised(Bench(known_level=KNOWN_LEVEL), TOPIC_RULES_LEVEL - 1)
    bench.topic("t")
    (refusal,) = bench.submit(update(4, 4))
    assert isinstance(refusal, Malformed)
    assert {chunk.section for chunk in unseal(bench.machine.snapshot())} & {
        SECTION,
        CHANGES_SECTION,
    } == set()


UPDATES = st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans())


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(UPDATES, st.integers(0, 5), st.integers(0, 7)), max_size=12))
def test_whatever_is_updated_the_state_is_one_that_can_be(
    steps: list[tuple[tuple[int, int, bool], int, int]],
) -> None:
    """And the same on whoever applies the log or restores the state; queues only ever grow."""
    bench = bench_of(3)
    sent: dict[int, int] = defaultdict(int)
    for (read, write, drop), queue_id, offset in steps:
        ends = bench.machine.topics["t"].next_offsets
        if queue_id < len(ends):
            (code,) = codes(bench, batch(sent[queue_id], b"x", queue_id=queue_id))
            assert (code is None) == (queue_id < numbers_of(bench).write_queues)
            sent[queue_id] += code is None
            if offset <= ends[queue_id]:
                bench.submit(committed("g", (queue_id, offset)))
        before, ends = numbers_of(bench), list(bench.machine.topics["t"].next_offsets)
        (refusal,) = bench.submit(update(read, write, drop=drop))
        after = numbers_of(bench)
        if refusal is None:
            assert after.read_queues == (read or before.read_queues)
            assert after.write_queues == (write or before.write_queues)
        else:
            assert after == before
        assert bench.machine.topics["t"].next_offsets[: len(ends)] == ends
    same_everywhere(bench)


@settings(max_examples=examples(60))
@given(st.integers(0, 200), st.integers(1, 255), st.booleans())
def test_no_state_that_no_log_gives_is_restored(at: int, flip: int, is_twice: bool) -> None:
    """Whatever is in the sections, with right sums: a state that can be, or a refusal."""
    bench = bench_of()
    bench.send(batch(0, b"a", b"b"))
    bench.submit(update(4, 4), update(0, 1), update(0, 2))
    sections: list[Section] = []
    for chunk in unseal(bench.machine.snapshot()):
        payload = bytearray(chunk.payload)
        if chunk.section in (SECTION, CHANGES_SECTION):
            payload[at % len(payload)] ^= flip
        sections.append(Section(chunk.section, chunk.version, iter((bytes(payload),))))
        if is_twice and chunk.section == CHANGES_SECTION:
            sections.append(Section(chunk.section, chunk.version, iter((bytes(payload),))))
    try:
        machine = StateMachine.restore(
            list(seal(bench.machine.applied_index, sections)), NoQueues()
        )
    except SnapshotRefused:
        return
    machine.check_invariants()


@pytest.mark.parametrize(
    "numbers",
    [
        Numbers(3, 1),
        Numbers(1, 2),
        Numbers(2, 0),
        Numbers(2, 1, (Change(9, 1, (0, 4)),)),
        Numbers(2, 1, (Change(9, 2, (5, 4)),)),
        Numbers(2, 1, (Change(9, 2, (4, 3)),)),
        Numbers(2, 1, (Change(9, 2, (4,)),)),
        Numbers(2, 1, (Change(7, 2, (0, 4)),)),
        Numbers(2, 1, (Change(21, 2, (0, 4)),)),
        Numbers(2, 2, (Change(9, 2, (0, 4)), Change(8, 1, (0, 4)))),
        Numbers(2, 2, (Change(9, 2, (3, 4)), Change(10, 1, (2, 4)))),
    ],
)
def test_what_cannot_be_is_an_invariant_broken(numbers: Numbers) -> None:
    owner = QueueNumbers()
    owner._topics[7] = numbers
    with pytest.raises(InvariantViolation):
        owner.check_invariants({7: [4, 4]}, 20)
    with pytest.raises(InvariantViolation):
        owner.check_invariants({}, 20)


# --- what a leader takes --------------------------------------------------------------------------


def test_a_batch_that_was_chosen_before_a_change_is_not_stored_behind_it() -> None:
    """Its producer is told to choose again; who says nothing is taken by who is open."""
    bench = bench_of()
    assert codes(bench, chosen_by(0, 0, b"a"), chosen_by(None, 1, b"b")) == [None, None]
    bench.submit(update(4, 4))
    changed = numbers_of(bench).changed
    assert codes(bench, chosen_by(0, 2, b"c")) == [ErrorCode.QUEUES_CHANGED]
    assert codes(bench, chosen_by(0, 0, b"x", queue_id=3)) == [ErrorCode.QUEUES_CHANGED]
    assert codes(bench, chosen_by(changed, 2, b"c"), chosen_by(None, 3, b"d")) == [None, None]
    assert codes(bench, chosen_by(changed, 0, b"x", queue_id=3)) == [None]
    bench.submit(update(0, 1))
    later = numbers_of(bench).changed
    assert codes(bench, batch(1, b"y", queue_id=3)) == [ErrorCode.QUEUE_CLOSED]
    assert codes(bench, chosen_by(later, 1, b"y", queue_id=3)) == [ErrorCode.QUEUE_CLOSED]
    assert bench.machine.topics["t"].next_offsets == [4, 0, 0, 1]
    assert bench.machine.statistics().entries_void == 0
    same_everywhere(bench)


def test_nothing_goes_into_a_topic_while_its_update_is_on_its_way() -> None:
    """What it makes of the topic isn't known: the batch would lie behind it."""
    bench = bench_of()
    applied = bench.machine.applied_index
    answer = bench.appender.submit(update(4, 4))
    late, other = bench.send(chosen_by(0, 0, b"a")), bench.appender.submit(update(0, 1))
    assert late.done() or bench.machine.applied_index == applied
    bench.commit()
    assert (answer.result(), other.result()) == (None, None)
    (failure,) = late.result()
    assert isinstance(failure, Failure)
    assert failure.code is ErrorCode.BUSY
    changed = numbers_of(bench).changed
    assert codes(bench, chosen_by(changed, 0, b"a")) == [None]


def test_what_was_stored_before_a_change_is_answered_as_the_first_time() -> None:
    """Known comes before place: its producer would send it to another queue, a second time."""
    bench = bench_of()
    sent = bench.send(chosen_by(0, 0, b"a", queue_id=1))
    bench.commit()
    first = placed(sent)
    in_flight = bench.send(chosen_by(0, 1, b"b", queue_id=1))
    updated = bench.appender.submit(update(2, 1))
    again = bench.send(chosen_by(0, 0, b"a", queue_id=1), chosen_by(0, 1, b"b", queue_id=1))
    bench.commit()
    assert updated.result() is None
    (stored,) = in_flight.result()
    assert isinstance(stored, Placed)
    assert [each.base_queue_offset for each in again.result() if isinstance(each, Placed)] == [0, 1]
    late = bench.send(chosen_by(0, 0, b"a", queue_id=1), chosen_by(0, 2, b"c", queue_id=1))
    bench.commit()
    before, refusal = late.result()
    assert isinstance(before, Placed)
    assert (before.base_queue_offset, before.is_duplicate) == (first.base_queue_offset, True)
    assert isinstance(refusal, Failure)
    assert refusal.code is ErrorCode.QUEUES_CHANGED


def test_a_leader_that_knows_less_than_a_producer_says_nothing_for_good() -> None:
    """It is none any more, or the change was of a topic that is another one's: asked again, who
    leads says what is so."""
    bench = bench_of()
    assert codes(bench, chosen_by(1 << 40, 0, b"a")) == [ErrorCode.NOT_READY]


def test_a_closed_queue_takes_nothing_whoever_proposed_it() -> None:
    """A leader proposes no such batch: all replicas refuse it alike."""
    bench = bench_of()
    bench.submit(update(0, 1))
    known = bench.machine.queue_numbers
    bench.machine.queue_numbers = QueueNumbers()
    answer = bench.send(batch(0, b"a", queue_id=1))
    bench.machine.queue_numbers = known
    bench.commit()
    (failure,) = answer.result()
    assert isinstance(failure, Failure)
    assert failure.code is ErrorCode.QUEUE_CLOSED
    assert bench.machine.topics["t"].next_offsets == [0, 0]
    assert bench.machine.statistics().entries_void == 1
    same_everywhere(bench)


def test_units_are_for_queues_that_take_messages() -> None:
    """As batches are; also those that wait while it changes."""
    bench = bench_of()
    bench.submit(update(0, 1))
    unit = ProposedUnit(batches=(batch(0, b"a", queue_id=1),))
    found = bench.node.begin(_proposed(bench, unit))
    bench.commit()
    with pytest.raises(BrokerError, match="takes no messages any more"):
        bench.world.outcome(found)
    known = bench.machine.queue_numbers
    bench.machine.queue_numbers = QueueNumbers()
    late = bench.appender.units.propose(unit)
    bench.machine.queue_numbers = known
    bench.commit()
    result = late.result()
    assert isinstance(result.refusal, QueueClosed)
    same_everywhere(bench)


async def _proposed(bench: Bench, unit: ProposedUnit) -> object:
    return await bench.appender.units.propose(unit)


# --- what is held back ----------------------------------------------------------------------------


def test_a_queue_waits_for_those_that_it_has_keys_of() -> None:
    """4 -> 8: each new one for one old one, old ones for nobody. 4 -> 5: each for all four."""
    grown = Numbers(8, 8, (Change(9, 4, (3, 5, 0, 2)),))
    assert held_from(grown, 8, lambda _: 0) == {4: 0, 5: 0, 7: 0}
    assert held_from(grown, 8, lambda queue: 5 if queue == 1 else 2) == {4: 0}
    assert held_from(grown, 8, lambda _: 5) == {}
    odd = Numbers(5, 5, (Change(9, 4, (3, 5, 0, 2)),))
    assert held_from(odd, 5, lambda _: 0) == {0: 3, 1: 5, 2: 0, 3: 2, 4: 0}
    assert held_from(odd, 5, lambda queue: 5 if queue else 0) == {1: 5, 2: 0, 3: 2, 4: 0}
    shrunk = Numbers(4, 2, (Change(9, 4, (3, 5, 1, 2)),))
    assert held_from(shrunk, 4, lambda _: 0) == {0: 3, 1: 5}
    assert held_from(shrunk, 4, lambda queue: 1) == {1: 5}


def test_a_queue_waits_for_what_its_old_queues_waited_for() -> None:
    """8 -> 4 -> 6: a key went from 5 to 1 to 3. It had nothing in 1."""
    ends = (0, 0, 0, 0, 0, 9, 0, 0)
    numbers = Numbers(8, 6, (Change(9, 8, ends), Change(10, 4, ends)))
    assert held_from(numbers, 8, lambda _: 0) == {1: 0, 3: 0, 5: 9}
    assert held_from(numbers, 8, lambda queue: 9 if queue == 5 else 0) == {}


WRITES = st.integers(1, 7)
STEPS = st.one_of(
    st.tuples(st.just("write"), WRITES), st.tuples(st.just("send"), st.integers(0, 40))
)


@settings(max_examples=examples(300))
@given(WRITES, st.lists(STEPS, max_size=40), st.randoms(use_true_random=False))
def test_keys_come_in_order_however_often_they_move_and_nothing_waits_for_ever(
    first: int, steps: list[tuple[str, int]], random: object
) -> None:
    """A group that reads whatever it may, in any order of queues, at any time."""
    numbers = Numbers(first, first)
    queues: list[list[tuple[int, int]]] = [[] for _ in range(first)]
    done = [0] * 7
    sent: dict[int, int] = defaultdict(int)
    seen: dict[int, int] = defaultdict(int)
    left = 0

    def read(most: int) -> None:
        nonlocal left
        for _ in range(most):
            held = held_from(numbers, len(queues), done.__getitem__)
            ready = [
                queue
                for queue, messages in enumerate(queues)
                if done[queue] < min(len(messages), held.get(queue, len(messages)))
            ]
            if not ready:
                break
            queue = random.choice(ready)  # type: ignore[attr-defined]
            key, number = queues[queue][done[queue]]
            assert number == seen[key], "a later message of the key came before an earlier one"
            seen[key] += 1
            done[queue] += 1
            left -= 1

    for index, (what, value) in enumerate(steps, 1):
        if what == "send":
            queues[value % numbers.write_queues].append((value, sent[value]))
            sent[value] += 1
            left += 1
        elif value != numbers.write_queues:
            change = Change(index, numbers.write_queues, tuple(map(len, queues)))
            queues.extend([] for _ in range(value - len(queues)))
            numbers = Numbers(len(queues), value, (*numbers.changes, change))
        read(random.randint(0, 2))  # type: ignore[attr-defined]
    read(len(steps))
    assert not left, "something is held back for ever"
