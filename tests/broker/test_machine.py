"""The state machine: commands, and what it refuses to apply."""

from __future__ import annotations

import pytest

from broker.state.machine import MachineOptions, StateMachine
from broker.state.offsets import Offsets
from broker.state.refusals import (
    OffsetOutOfRange,
    Refusal,
    TooManyQueues,
    TooMuchProgress,
    TopicExists,
    TopicNotFound,
)
from broker.state.registration import Registration
from broker.state.sequences import StoredBatch
from dledger.core.errors import InvariantViolation
from dledger.core.types import EntryKind
from dledger.errors import ApplyPaused
from dledger.outcome import Outcome
from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    CommittedOffset,
    CreateTopicCommand,
    DeleteTopicCommand,
)
from tests.broker.leader import PRODUCER, Bench, MemoryQueues, batch
from tests.broker.test_append import code, failure, placed

pytestmark = pytest.mark.usefixtures("running_loop")


def commit_offset(
    bench: Bench, offset: int, *, reset: bool = False, topic: str = "t"
) -> Refusal | None:
    command = CommitOffsetsCommand(
        group="g", topic=topic, reset=reset, offsets=[CommittedOffset(queue_id=0, offset=offset)]
    )
    done = bench.appender.submit(Command(commit_offsets=command))
    bench.commit()
    return done.result()


def test_committed_offsets_never_move_back_unless_reset() -> None:
    """An older commit that arrives late changes nothing (RocketMQ #7790)."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, *[b"x"] * 5))
    for offset, reset, expected in [(5, False, 5), (3, False, 5), (2, True, 2), (4, False, 4)]:
        commit_offset(bench, offset, reset=reset)
        assert bench.machine.offsets.of("g", "t") == {0: expected}


def test_offset_zero_can_be_committed() -> None:
    """Zero is an offset, not the absence of one."""
    bench = Bench()
    bench.topic()
    commit_offset(bench, 0)
    assert bench.machine.offsets.of("g", "t") == {0: 0}


def test_offsets_of_an_unknown_topic_are_refused() -> None:
    """The proposer learns it; nothing is stored."""
    bench = Bench()
    assert commit_offset(bench, 1, topic="nope") == TopicNotFound("nope")
    assert bench.machine.offsets == Offsets()


def test_offsets_beyond_the_end_are_refused_when_applied() -> None:
    """The topic may be another one by then: its queues and ends decide, on every replica."""
    bench = Bench()
    bench.topic("t", 4)
    bench.send(batch(0, b"a", b"b", queue_id=3))
    bench.commit()
    offsets = [CommittedOffset(queue_id=3, offset=2)]
    command = CommitOffsetsCommand(group="g", topic="t", offsets=offsets)
    bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    bench.appender.submit(Command(create_topic=CreateTopicCommand(name="t", queue_count=1)))
    done = bench.appender.submit(Command(commit_offsets=command))
    bench.commit()
    assert done.result() == OffsetOutOfRange("t", 3, 2)
    assert bench.machine.offsets == Offsets()


def test_replicated_state_is_bounded() -> None:
    """Queues and group progress have bounds that the log alone decides on."""
    bench = Bench(MachineOptions(max_queues=5, max_progress=1))
    bench.topic("t", 4)
    refused = bench.appender.submit(
        Command(create_topic=CreateTopicCommand(name="u", queue_count=2))
    )
    bench.commit()
    assert refused.result() == TooManyQueues(wanted=2, limit=5)
    results = []
    for group in ("g", "h", "g"):
        offsets = [CommittedOffset(queue_id=0, offset=0)]
        command = CommitOffsetsCommand(group=group, topic="t", offsets=offsets)
        results.append(bench.appender.submit(Command(commit_offsets=command)))
        bench.commit()
    assert [result.result() for result in results] == [None, TooMuchProgress(1), None]


def test_a_topic_is_created_once() -> None:
    """The second creation is told that it exists and changes nothing."""
    bench = Bench()
    bench.topic("t", 2)
    command = Command(create_topic=CreateTopicCommand(name="t", queue_count=8))
    refused = bench.appender.submit(command)
    bench.commit()
    assert refused.result() == TopicExists("t", 2)
    assert len(bench.machine.topics["t"].next_offsets) == 2


def test_entries_must_follow_each_other() -> None:
    """A gap in what is applied stops the node instead of going on."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"x"))
    machine = StateMachine(MemoryQueues())
    with pytest.raises(InvariantViolation, match="entry 2 can't be applied after 0"):
        machine.apply(bench.log.read(2, 2))


def test_a_batch_that_does_not_continue_its_queue_is_void() -> None:
    """A stamped queue offset that isn't the next is refused alike by whoever applies it; what
    follows it in the queue is void too, and the batch after those is stored."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"x"))
    bench.commit()
    bench.machine.topics["t"].next_offsets[0] = 7
    lost = [bench.send(batch(n, b"y"), producer=b"") for n in range(2)]
    bench.machine.topics["t"].next_offsets[0] = 1
    bench.commit(through=bench.log.last_index - 1)
    answer = bench.send(batch(1, b"z"))
    bench.commit()
    assert [code(answer) for answer in lost] == ["NOT_READY", "NOT_READY"]
    assert bench.machine.topics == bench.replay().topics
    assert placed(answer).base_queue_offset == 1
    assert bench.machine.topics["t"].next_offsets == [2, 0]


@pytest.mark.parametrize(
    ("queues", "sent_before", "expected"),
    [
        (None, 0, "TOPIC_NOT_FOUND"),
        (1, 0, "QUEUE_NOT_FOUND"),
        (2, 0, "NOT_READY"),
        (2, 1, "OUT_OF_SEQUENCE"),
    ],
)
def test_a_batch_for_an_earlier_topic_is_void(
    queues: int | None, sent_before: int, expected: str
) -> None:
    """A leader that broke the rule of ADR 20 would propose a batch of the old topic behind the new
    one. All replicas refuse it alike and go on; its producer is told by name."""
    bench = Bench()
    bench.topic("t", 2)
    bench.send(batch(0, b"old", queue_id=1))
    bench.commit()
    old = bench.replay()
    bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    if queues is not None:
        create = CreateTopicCommand(name="t", queue_count=queues)
        bench.appender.submit(Command(create_topic=create))
    bench.commit()
    for _ in range(sent_before):
        bench.send(batch(0, b"new", queue_id=1))
        bench.commit()
        old.topics["t"].next_offsets[1] = 1
        place = (old.topics["t"].incarnation, 1)
        old.producers.remember(PRODUCER, place, StoredBatch(1, 1, 1, 900, bench.now_ms), 0)
    sequence = 2 if sent_before else 1
    late = bench.broken_rule(old, batch(sequence, b"late", queue_id=1))
    assert code(late) == expected
    assert failure(late).traits.outcome == Outcome.DID_NOT_HAPPEN
    again = bench.replay()
    assert (again.topics, again.producers) == (bench.machine.topics, bench.machine.producers)
    held = {key: len(units) // 20 for key, units in bench.queues.held.items()}
    assert sum(held.values()) == sent_before
    bench.topic("next", 1)
    assert "next" in bench.machine.topics, "the group goes on"


def test_an_unknown_command_stops_the_node() -> None:
    """Skipping what isn't understood would let replicas differ."""
    bench = Bench()
    bench.propose(EntryKind.COMMAND, 0, b"", None)
    with pytest.raises(InvariantViolation, match="unknown command"):
        bench.commit()
    bench = Bench()
    bench.propose(EntryKind.COMMAND, 0, b"\xff\xff", None)
    with pytest.raises(InvariantViolation, match="no command"):
        bench.commit()


def test_replaying_derived_entries_writes_no_units() -> None:
    """Entries whose units an earlier life made durable rebuild the state only."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"a"))
    bench.send(batch(1, b"b"))
    bench.commit()
    queues = MemoryQueues()
    queues.held["t", 0] += bench.queues.held["t", 0][:20]
    machine = StateMachine(queues, derived_through=3)
    machine.apply(bench.log.read(1, 4))
    assert machine.topics == bench.machine.topics
    assert queues.held == bench.queues.held


def test_full_disk_stops_before_an_entry_and_changes_nothing_of_it() -> None:
    """The entries before it count; with space back the same frames from there on are applied to
    the same state as on a replica that was never full."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"x"))
    bench.commit()
    bench.topic("other")
    bench.send(batch(1, b"y"))
    bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    machine, queues, log = bench.machine, bench.queues, bench.log
    for stuck_at in (log.last_index - 1, log.last_index):
        queues.is_full = True
        before = (machine.append_time_ms, list(machine.topics), list(machine.producers))
        with pytest.raises(ApplyPaused) as paused:
            machine.apply(log.read(machine.applied_index + 1, log.last_index))
        assert paused.value.applied_index == machine.applied_index == stuck_at - 1
        assert (machine.append_time_ms, list(machine.topics), list(machine.producers)) == before
        assert stuck_at == log.last_index or machine.topics["t"].next_offsets == [1, 0]
        queues.is_full = False
        machine.apply(log.read(stuck_at, stuck_at))
    assert machine.topics == bench.replay().topics
    assert machine.producers == bench.replay().producers


def test_batches_of_the_format_before_are_applied_without_a_producer() -> None:
    """Its producers drew their ids: what they stored stays stored, whatever sequence it has, and
    nobody is remembered for it."""
    bench = Bench()
    bench.topic()
    drawn = b"\x93rawn by a clien"
    bench.machine.producers.register(Registration(drawn[8:]), int.from_bytes(drawn[:8], "big"), 0)
    answers = [
        bench.send(batch(0, b"a"), producer=drawn),
        bench.send(batch(1, b"b"), producer=drawn),
    ]
    bench.machine.producers.forget([drawn], bench.machine.producers.bounds.unnamed_unused_ms)
    bench.commit()
    assert [placed(answer).base_queue_offset for answer in answers] == [0, 1]
    assert bench.machine.producers.pairs == 0
    assert code(bench.send(batch(2, b"c"), producer=drawn)) == "UNKNOWN_PRODUCER"
