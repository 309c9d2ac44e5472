"""The state machine: commands, and what it refuses to apply."""

from __future__ import annotations

import errno

import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from broker.state.level import COMMAND_LEVELS
from broker.state.machine import MachineOptions, StateMachine
from broker.state.offsets import Offsets
from broker.state.refusals import (
    LevelNotNext,
    Malformed,
    OffsetOutOfRange,
    Refusal,
    TooManyQueues,
    TooMuchProgress,
    TopicExists,
    TopicNotFound,
    TopicReplaced,
)
from broker.state.registration import Registration
from broker.state.sequences import StoredBatch
from dledger.applying import APPLY_RETRY_TICKS
from dledger.core.errors import InvariantViolation
from dledger.core.types import EntryKind
from dledger.errors import ApplyStopped
from dledger.level import FIRST_LEVEL, KNOWN_LEVEL
from dledger.outcome import Outcome
from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    CommittedOffset,
    CreateTopicCommand,
    DeleteTopicCommand,
    RaiseLevelCommand,
)
from store.dispatch import UNIT_SIZE
from tests.broker.leader import FIRST_TOPIC, PRODUCER, Bench, NoQueues, batch
from tests.broker.test_append import code, failure, placed


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
    machine = StateMachine(NoQueues())
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


def units_of_all(bench: Bench) -> int:
    """How many units there are, in the files of topics that exist."""
    paths = [path for path in bench.disk.paths() if "consumequeue" in path.parts]
    living = [path for path in paths if not path.parts[-3].startswith(".deleted")]
    return sum(len(bench.disk.content(path)) // UNIT_SIZE for path in living)


def test_the_state_knows_what_the_queues_hold() -> None:
    """The CRC of a queue is that of all its units, in its files; void batches have none."""
    bench = Bench()
    bench.topic("t", 2)
    for base, bodies in ((0, (b"a", b"b")), (2, (b"c",))):
        bench.send(batch(base, *bodies))
        bench.commit()
    topic = bench.machine.topics["t"]
    (path,) = [path for path in bench.disk.paths() if "consumequeue" in path.parts]
    units = bench.disk.content(path)[: 3 * UNIT_SIZE]
    assert topic.units_crcs == [crc32c(units), 0]
    assert bench.replay().topics["t"].units_crcs == topic.units_crcs


@pytest.mark.parametrize(
    ("queues", "sent_before", "expected"),
    [
        (None, 0, "TOPIC_NOT_FOUND"),
        (1, 0, "QUEUE_NOT_FOUND"),
        (2, 0, "NOT_READY"),
        (2, 1, "OUT_OF_SEQUENCE"),
    ],
)
@pytest.mark.parametrize("lies", [False, True], ids=["named", "named wrongly"])
def test_a_batch_for_an_earlier_topic_is_void(
    queues: int | None, sent_before: int, expected: str, *, lies: bool
) -> None:
    """A leader that broke the rule of ADR 20 would propose a batch of the old topic behind the new
    one. All replicas refuse it alike and go on; its producer is told by name. The entry says which
    topic it is for; should that be wrong as well, the place in it is."""
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
    if queues is not None and lies:
        present, (sender,) = bench.machine.topics["t"].incarnation, old.producers
        for place in list(sender.queues):
            sender.queues[present, place[1]] = sender.queues.pop(place)
        old.topics["t"].incarnation = present
    elif queues is not None:
        expected = "TOPIC_REPLACED"
    sequence = 2 if sent_before else 1
    late = bench.broken_rule(old, batch(sequence, b"late", queue_id=1))
    assert code(late) == expected
    assert failure(late).traits.outcome == Outcome.DID_NOT_HAPPEN
    again = bench.replay()
    assert (again.topics, again.producers) == (bench.machine.topics, bench.machine.producers)
    assert units_of_all(bench) == sent_before
    bench.topic("next", 1)
    assert "next" in bench.machine.topics, "the group goes on"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (EntryKind.COMMAND, b""),
        (EntryKind.COMMAND, b"\xff\xff"),
        (EntryKind.COMMAND, b"\xa2\x06\x00"),  # field 100 of the commands
        (EntryKind.DATA, b""),
        (EntryKind.DATA, bytes(32)),
        (EntryKind.DATA, bytes(32) + b"\x00\x00\x00\x5bno record" + bytes(80)),
        (5, b"of a later release"),
        (255, b""),
    ],
)
def test_what_nobody_understands_is_void_on_every_replica(kind: EntryKind, body: bytes) -> None:
    """A leader that is wrong once takes nobody down: the entry changes nothing, is counted and
    told, and the group goes on."""
    bench = Bench()
    bench.topic()
    bench.propose(kind, 1 if kind == EntryKind.DATA else 0, body, None)
    with capture_logs() as told:
        bench.topic("next", 1)
    assert list(bench.machine.topics) == ["t", "next"]
    assert bench.machine.statistics().entries_void == 1
    expected = "batch_voided" if kind == EntryKind.DATA else "entry_voided"
    assert [line["event"] for line in told] == [expected]
    assert bench.machine.applied_index == bench.log.last_index
    assert list(bench.replay().snapshot()) == list(bench.machine.snapshot())


def test_an_entry_version_of_a_later_release_is_void() -> None:
    """Its level isn't in use, so nobody may have written it."""
    bench = Bench()
    bench.topic()
    command = Command(create_topic=CreateTopicCommand(name="u", queue_count=1))
    machine = bench.replay()
    index = bench.propose(EntryKind.COMMAND, 0, command.SerializeToString(), None)
    frame = bytearray(bench.log.read(index, index))
    frame[9] = 3
    machine.apply(bytes(frame))
    assert (list(machine.topics), machine.statistics().entries_void) == (["t"], 1)


def raise_to(level: int) -> Command:
    return Command(raise_level=RaiseLevelCommand(level=level))


def test_levels_are_raised_one_by_one() -> None:
    """Any other step is refused, and changes nothing."""
    bench = Bench(known_level=3)
    wanted = [1, 0, 3, 2, 2, 3]
    found = bench.submit(*map(raise_to, wanted))
    assert found == [
        LevelNotNext(1, 1), LevelNotNext(0, 1), LevelNotNext(3, 1), None, LevelNotNext(2, 2), None,
    ]  # fmt: skip
    assert bench.machine.level.current == 3
    restored = StateMachine.restore(bench.machine.snapshot(), NoQueues(), known_level=3)
    assert restored.level == bench.machine.level


def test_applying_stops_in_front_of_a_level_that_the_program_does_not_know() -> None:
    """What came before is applied, nothing of the entry is, and asking again changes nothing; a
    newer program goes on with it."""
    bench = Bench(known_level=1)
    bench.topic()
    for command in (raise_to(2), Command(create_topic=CreateTopicCommand(name="u", queue_count=1))):
        bench.propose(EntryKind.COMMAND, 0, command.SerializeToString(), None)
    bench.commit()
    assert "raises the level" in bench.node.driver.statistics().apply_stopped
    last = bench.log.last_index
    with pytest.raises(ApplyStopped, match=r"raises the level .* to 2.* knows 1") as stopped:
        bench.machine.apply(bench.log.read(FIRST_TOPIC + 1, last))
    assert stopped.value.applied_index == bench.machine.applied_index == FIRST_TOPIC
    assert bench.node.failure is None
    assert (bench.machine.level.current, list(bench.machine.topics)) == (1, ["t"])
    newer = StateMachine(NoQueues(), known_level=2)
    newer.apply(bench.log.read(1, last))
    assert (newer.level.current, list(newer.topics)) == (2, ["t", "u"])


def test_every_command_is_of_a_level() -> None:
    """A command that is added says from which level on it may be in a log."""
    names = {field.name for field in Command.DESCRIPTOR.oneofs_by_name["body"].fields}
    assert set(COMMAND_LEVELS) == names
    assert set(COMMAND_LEVELS.values()) <= set(range(FIRST_LEVEL, KNOWN_LEVEL + 1))


FIRST_USED = {
    1: "create_topic delete_topic commit_offsets raise_level register_producer forget_producers",
    3: "move_log_start",
    4: "retain_topic move_queue_starts",
    5: "settle_units",
    6: "join_group end_sessions grant_leases commit_leases forget_groups",
    8: "move_group clone_group deliver send_back fire_delayed resend",
    9: "fail_message bury update_topic permit_topic make_topic",
}


def test_the_level_of_a_command_never_changes() -> None:
    """It is a matter of the format: where members hold another one to be the first, one of them
    takes a command that is void to the other, and their states part."""
    told = {name: level for level, names in FIRST_USED.items() for name in names.split()}
    assert {name: COMMAND_LEVELS[name] for name in told} == told


def test_a_command_above_the_level_in_use_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the program knows it: those that don't must come to the same state."""
    monkeypatch.setitem(COMMAND_LEVELS, "create_topic", 2)
    bench = Bench()
    (refusal,) = bench.submit(Command(create_topic=CreateTopicCommand(name="u", queue_count=1)))
    assert refusal == Malformed("create_topic is of a level above the one in use")
    assert not len(bench.machine.topics)


@pytest.mark.parametrize("named", [FIRST_TOPIC, FIRST_TOPIC + 3, 1 << 40])
def test_commands_for_another_topic_of_the_name_are_refused(named: int) -> None:
    """A delete or a commit that was sent late, or again, is none of the topic made anew."""
    bench = Bench()
    bench.topic("t", 2)
    delete = DeleteTopicCommand(name="t", incarnation=FIRST_TOPIC)
    bench.appender.submit(Command(delete_topic=delete))
    bench.topic("t", 1)
    present = bench.machine.topics["t"].incarnation
    assert present == FIRST_TOPIC + 2
    before = bench.replay()
    delete = DeleteTopicCommand(name="t", incarnation=named)
    commit = CommitOffsetsCommand(group="g", topic="t", topic_incarnation=named)
    commit.offsets.add(queue_id=0, offset=0)
    answers = bench.submit(Command(delete_topic=delete), Command(commit_offsets=commit))
    assert answers == [TopicReplaced("t", named, present)] * 2
    assert (bench.machine.topics, bench.machine.offsets) == (before.topics, before.offsets)
    commit.topic_incarnation = 0
    delete.incarnation = present
    right = bench.submit(Command(commit_offsets=commit), Command(delete_topic=delete))
    assert right == [None, None]


class Dispatched(NoQueues):
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.units: list[tuple[str, int, int, bytes]] = []

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        self.units.append((topic, queue_id, base_queue_offset, units))


def test_replaying_derived_entries_writes_no_units() -> None:
    """Entries whose units an earlier life made durable rebuild the state only."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"a"))
    bench.send(batch(1, b"b"))
    bench.commit()
    queues = Dispatched()
    machine = StateMachine(queues, derived_through=FIRST_TOPIC + 1)
    machine.apply(bench.log.read(1, bench.log.last_index))
    assert machine.topics == bench.machine.topics
    folder = bench.machine.topics["t"].folder
    assert queues.units == [(folder, 0, 1, bench.units()[UNIT_SIZE:])]


def test_full_disk_stops_before_an_entry_and_changes_nothing_of_it() -> None:
    """The entries before it count; with space back the same frames from there on are applied to
    the same state as on a replica that was never full."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"x"))
    bench.commit()
    bench.topic("other")
    applied = bench.machine.applied_index
    bench.send(batch(1, b"y"))
    bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    bench.disk.fill_up(0)
    for stuck_at in (applied + 1, applied + 2):
        if stuck_at == applied + 2:  # the unit has found space, and then the rename doesn't
            bench.disk.make_room()
            bench.disk.fail_next("rename", errno.ENOSPC, "consumequeue")
            bench.world.run_for(APPLY_RETRY_TICKS)
        before = list(bench.machine.snapshot())
        bench.commit()
        assert bench.node.driver.statistics().is_apply_paused
        assert bench.machine.applied_index == stuck_at - 1
        assert list(bench.machine.snapshot()) == before
        assert bench.machine.topics["t"].next_offsets == [stuck_at - applied, 0]
    bench.world.run_for(APPLY_RETRY_TICKS)
    assert bench.machine.applied_index == bench.log.last_index
    assert "t" not in bench.machine.topics
    assert list(bench.machine.snapshot()) == list(bench.replay().snapshot())


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
