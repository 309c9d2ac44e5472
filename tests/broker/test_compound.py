"""Units applied: whole or not at all, each by itself, and void offsets that nobody reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broker.state.compound import Judged, UnitRefusal
from broker.state.listening import Nobody
from broker.state.machine import MachineOptions, StateMachine
from broker.state.outcomes import RefusedUnit, Settlement
from broker.state.refusals import (
    KeyTaken,
    Malformed,
    OffsetOutOfRange,
    OffsetTaken,
    OutcomesDiffer,
    QueueNotFound,
    TooMuchProgress,
    TopicNotFound,
    TopicReplaced,
)
from broker.state.refusals import Malformed as VoidEntry
from dledger.core.types import EntryKind
from dledger.errors import ApplyPaused
from dledger.level import COMPOUND_LEVEL, KNOWN_LEVEL
from dledger.reading.compound import UnitBody, build_body
from dledger.reading.entry import COMPOUND_VERSION, HEADER_SIZE, build_frame, parse_header
from dledger.records.record import BATCH_PREAMBLE, RecordTemplate, record_starts
from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    CommittedOffset,
    CreateTopicCommand,
    DeleteTopicCommand,
    RaiseLevelCommand,
    SettleUnitsCommand,
)
from dledger.wire.commands_pb2 import RefusedUnit as WireUnit
from store.dispatch import UNIT_SIZE
from store.errors import StorageFull
from store.stamping import stamp_records
from store.voiding import is_void

NOBODY = bytes(16)
HOST = (bytes((10, 0, 0, 9)), 9000)


class Files:
    """`QueueFiles` in memory, which may be full at the nth call from now on."""

    def __init__(self) -> None:
        self.units: dict[tuple[str, int], bytes] = {}
        self.told: list[str] = []
        self.full_in: int | None = None

    def _take(self, what: str) -> None:
        if self.full_in is not None:
            self.full_in -= 1
            if self.full_in < 0:
                raise StorageFull("consumequeue", 20, 0)
        self.told.append(what)

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        self._take("dispatch")
        held = self.units.get((topic, queue_id), b"")
        at = base_queue_offset * UNIT_SIZE
        assert at <= len(held), "a gap"
        overlap = held[at : at + len(units)]
        assert units.startswith(overlap), "another unit than is held"
        self.units[topic, queue_id] = held[:at] + units + held[at + len(units) :]

    def delete_topic(self, topic: str) -> None:
        self._take("delete")
        self.units = {key: units for key, units in self.units.items() if key[0] != topic}


class Told(Nobody):
    def __init__(self) -> None:
        self.units: list[tuple[int, list[UnitRefusal | None]]] = []
        self.void: list[tuple[int, VoidEntry]] = []
        self.arrived_in: list[tuple[int, int]] = []

    def arrived(self, queue: tuple[int, int]) -> None:
        self.arrived_in.append(queue)

    def units_applied(self, index: int, units: Sequence[Judged]) -> None:
        self.units.append((index, [each.refusal for each in units]))

    def entry_voided(self, index: int, refusal: VoidEntry) -> None:
        self.void.append((index, refusal))


class Log:
    """A log by hand, and the machine that applies it."""

    def __init__(self, level: int = COMPOUND_LEVEL, options: MachineOptions | None = None) -> None:
        self.files = Files()
        self.options = options or MachineOptions()
        self.machine = StateMachine(self.files, options=self.options)
        self.told = Told()
        self.machine.listen(self.told)
        self.frames: list[bytes] = []
        self._end = 0
        for each in range(2, level + 1):
            self.command(Command(raise_level=RaiseLevelCommand(level=each)))

    def add(self, kind: int, body: bytes | bytearray, count: int = 0, version: int = 2) -> int:
        index = len(self.frames) + 1
        head, _ = build_frame(kind, index, 1, self._end, 1_000 + index, count, body, 0, version)
        self.frames.append(bytes(head + body))
        self._end += len(self.frames[-1])
        self.machine.apply(self.frames[-1])
        self.check()
        return index

    def check(self) -> None:
        """After each entry."""
        self.machine.check_invariants()

    def command(self, command: Command) -> int:
        return self.add(EntryKind.COMMAND, command.SerializeToString())

    def topic(self, name: str = "t", queues: int = 2) -> int:
        create = CreateTopicCommand(name=name, queue_count=queues)
        return self.command(Command(create_topic=create))

    def units(self, *units: tuple[Sequence[Placed], Sequence[Command]]) -> list[UnitRefusal | None]:
        """An entry of units; why each was refused, or None."""
        bodies = [
            UnitBody([each.body() for each in batches], [c.SerializeToString() for c in commands])
            for batches, commands in units
        ]
        body, firsts = build_body(bodies)
        for each, first in zip((b for batches, _ in units for b in batches), firsts, strict=True):
            starts = [at - first for at in record_starts(bytes(body), first, len(each.bodies))]
            stamp_records(
                body,
                starts,
                at=first,
                base_queue_offset=each.base,
                base_physical_offset=self._end + HEADER_SIZE + first,
                store_time_ms=1_000,
                store_host=HOST,
            )
        count = sum(each.record_count for each in bodies)
        index = self.add(EntryKind.DATA, body, count, COMPOUND_VERSION)
        assert self.told.units[-1][0] == index
        return self.told.units[-1][1]

    def voids(self, queue_id: int = 0, topic: str = "t") -> list[bool]:
        """Which of the queue's offsets are void."""
        units = self.files.units.get((self.machine.topics[topic].folder, queue_id), b"")
        return [
            is_void(units[at : at + UNIT_SIZE], at // UNIT_SIZE)
            for at in range(0, len(units), UNIT_SIZE)
        ]


class Placed:
    """A batch at its place."""

    def __init__(
        self,
        base: int,
        *bodies: bytes,
        topic: str = "t",
        queue_id: int = 0,
        incarnation: int,
        producer: bytes = NOBODY,
    ) -> None:
        self.base, self.bodies = base, bodies
        self.queue_id, self.incarnation = queue_id, incarnation
        self._topic = topic
        self._preamble = BATCH_PREAMBLE.pack(producer, 0, incarnation)

    def body(self) -> tuple[bytes, int]:
        template = RecordTemplate(self._topic, ("127.0.0.1", 5555))
        records = [template.encode(self.queue_id, each, b"", 1_000) for each in self.bodies]
        return self._preamble + b"".join(records), len(records)


def commit(
    group: str, offset: int, incarnation: int, topic: str = "t", queue_id: int = 0
) -> Command:
    return Command(
        commit_offsets=CommitOffsetsCommand(
            group=group,
            topic=topic,
            offsets=[CommittedOffset(queue_id=queue_id, offset=offset)],
            topic_incarnation=incarnation,
        )
    )


def delete(incarnation: int, topic: str = "t") -> Command:
    return Command(delete_topic=DeleteTopicCommand(name=topic, incarnation=incarnation))


def settle(through: int, *refused: tuple[int, int]) -> Command:
    named = [WireUnit(index=index, unit=unit) for index, unit in refused]
    return Command(settle_units=SettleUnitsCommand(through=through, refused=named))


def test_a_unit_takes_effect_whole() -> None:
    """Messages and command: both are there."""
    log = Log()
    t = log.topic()
    assert log.units(([Placed(0, b"a", b"b", incarnation=t)], [])) == [None]
    assert log.units(([Placed(2, b"c", incarnation=t)], [commit("g", 2, t)])) == [None]
    assert log.machine.offsets.of("g", "t") == {0: 2}
    assert log.machine.topics["t"].next_offsets == [3, 0]
    assert log.voids() == [False] * 3
    assert log.machine.messages_applied == 3
    assert log.told.arrived_in == [(t, 0)] * 2


def test_a_refused_unit_changes_nothing_and_keeps_its_offsets() -> None:
    """What comes behind it in its queue counts on them; its neighbours are not harmed."""
    log = Log()
    t = log.topic()
    refusals = log.units(
        ([Placed(0, b"a", incarnation=t)], [commit("one", 0, t)]),
        ([Placed(1, b"b", b"c", incarnation=t)], [commit("two", 99, t)]),
        ([Placed(3, b"d", incarnation=t)], [commit("three", 0, t)]),
    )
    assert refusals == [None, OffsetOutOfRange("t", 0, 99), None]
    assert log.voids() == [False, True, True, False]
    assert log.machine.topics["t"].next_offsets == [4, 0]
    assert set(log.machine.offsets.groups("t")) == {"one", "three"}
    assert log.units(([Placed(4, b"e", incarnation=t)], [])) == [None]
    assert log.voids() == [False, True, True, False, False]


@pytest.mark.parametrize("second_queue", [0, 1])
def test_all_batches_of_a_refused_unit_are_void(second_queue: int) -> None:
    log = Log()
    t = log.topic()
    base = 1 if second_queue == 0 else 0
    batches = [
        Placed(0, b"a", incarnation=t),
        Placed(base, b"b", queue_id=second_queue, incarnation=t),
    ]
    assert log.units((batches, [commit("g", 1, 99)])) == [TopicReplaced("t", 99, t)]
    assert log.voids(0) + (log.voids(1) if second_queue else []) == [True, True]


def test_each_condition_is_asked_of_the_state_before_the_entry() -> None:
    """So that no unit's outcome is another's condition: offsets that a unit writes are beyond the
    end for its neighbour."""
    log = Log()
    t = log.topic()
    refusals = log.units(
        ([Placed(0, b"a", incarnation=t)], []),
        ([], [commit("g", 1, t)]),
    )
    assert refusals == [None, OffsetOutOfRange("t", 0, 1)]


def test_one_command_of_a_key_in_an_entry() -> None:
    """And a wide one excludes all of its topic, records included, in either order; one that was
    refused holds nothing."""
    log = Log()
    t, u = log.topic(), log.topic("u")
    refusals = log.units(
        ([], [commit("g", 99, t)]),
        ([], [commit("g", 0, t)]),
        ([], [commit("g", 0, t)]),
        ([], [commit("h", 0, t)]),
        ([], [delete(t)]),
        ([], [delete(u, "u")]),
        ([], [commit("g", 0, u, "u")]),
        ([Placed(0, b"a", topic="u", incarnation=u)], []),
    )
    assert refusals == [
        OffsetOutOfRange("t", 0, 99),
        None,
        KeyTaken("t", "offsets of g"),
        None,
        KeyTaken("t", ""),
        None,
        KeyTaken("u", "offsets of g"),
        KeyTaken("u", "records"),
    ]
    assert "u" not in log.machine.topics
    assert log.machine.topics["t"].next_offsets == [0, 0]


def test_a_unit_is_refused_where_its_own_parts_meet() -> None:
    log = Log()
    t = log.topic()
    assert log.units(([Placed(0, b"a", incarnation=t)], [delete(t)])) == [KeyTaken("t", "")]
    assert log.units(([], [commit("g", 0, t), commit("g", 0, t)])) == [
        KeyTaken("t", "offsets of g")
    ]
    assert log.voids() == [True]


def test_bounds_over_all_keys_are_counted_on() -> None:
    """Units share them; a refused one takes nothing of them."""
    log = Log(options=MachineOptions(max_progress=2))
    t = log.topic()
    refusals = log.units(
        ([], [commit("a", 0, t), commit("b", 9, t)]),
        ([], [commit("c", 0, t)]),
        ([], [commit("d", 0, t)]),
        ([], [commit("e", 0, t)]),
    )
    assert refusals == [OffsetOutOfRange("t", 0, 9), None, None, TooMuchProgress(2)]
    assert log.units(([], [commit("c", 0, t), commit("d", 0, t)])) == [None]


@pytest.mark.parametrize("command", [commit, delete], ids=["commit", "delete"])
def test_topics_are_named_by_incarnation(command: object) -> None:
    """A topic that was made anew is another one, and none of a name is no answer in a unit."""
    log = Log()
    t = log.topic()
    log.command(delete(t))
    u = log.topic()
    make = (lambda inc: commit("g", 0, inc)) if command is commit else delete
    assert log.units(([], [make(t)])) == [TopicReplaced("t", t, u)]
    assert log.units(([], [make(0)])) == [TopicReplaced("t", 0, u)]
    assert log.units(([], [make(u)])) == [None]


def test_batches_that_continue_nothing_keep_no_offsets() -> None:
    """Of a topic that is another one, a queue that isn't there, or an offset that is taken; the
    rest of such a unit is void."""
    log = Log()
    t = log.topic()
    ok = Placed(0, b"x", queue_id=1, incarnation=t)
    assert log.units(
        ([Placed(0, b"a", incarnation=t - 1), ok], []),
        ([Placed(0, b"a", topic="none", incarnation=t)], []),
        ([Placed(0, b"a", queue_id=7, incarnation=t)], []),
        ([Placed(5, b"a", incarnation=t)], []),
        ([Placed(0, b"a", incarnation=t)], []),
    ) == [
        TopicReplaced("t", t - 1, t),
        TopicNotFound("none"),
        QueueNotFound("t", 7, 2),
        OffsetTaken("t", 0, 5, 0),
        None,
    ]
    assert (log.voids(0), log.voids(1)) == ([False], [True])


@pytest.mark.parametrize(
    "command",
    [
        Command(raise_level=RaiseLevelCommand(level=KNOWN_LEVEL + 1)),
        Command(create_topic=CreateTopicCommand(name="new", queue_count=1)),
    ],
)
def test_commands_that_no_unit_holds(command: Command) -> None:
    log = Log()
    log.topic()
    (refusal,) = log.units(([], [command]))
    assert isinstance(refusal, Malformed)
    assert "new" not in log.machine.topics


def test_a_batch_with_a_producer_is_refused() -> None:
    """Who numbers batches is remembered batch by batch: units have conditions for that."""
    log = Log()
    t = log.topic()
    batch = Placed(0, b"a", incarnation=t, producer=b"p" * 16)
    (refusal,) = log.units(([batch], []))
    assert isinstance(refusal, Malformed)


def test_units_below_their_level_are_void() -> None:
    """Whatever they hold (ADR 23)."""
    log = Log(level=COMPOUND_LEVEL - 1)
    t = log.topic()
    body, _ = build_body([UnitBody([], [delete(t).SerializeToString()])])
    index = log.add(EntryKind.DATA, body, 0, COMPOUND_VERSION)
    assert [each for each, _ in log.told.void] == [index]
    assert "t" in log.machine.topics


def test_what_is_no_units_is_void() -> None:
    log = Log()
    log.topic()
    index = log.add(EntryKind.DATA, b"\0\1nothing", 0, COMPOUND_VERSION)
    assert [each for each, _ in log.told.void] == [index]


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", range(5))
def test_files_come_before_any_state(calls: int) -> None:
    """Wherever the disk is full, nothing of the entry has happened; afterwards all of it has."""
    log = Log()
    t, u = log.topic(), log.topic("u")
    log.units(([Placed(0, b"0", topic="u", incarnation=u)], []))
    before = list(log.machine.snapshot())
    log.files.full_in = calls
    units: tuple[tuple[list[Placed], list[Command]], ...] = (
        ([Placed(0, b"a", incarnation=t)], [commit("g", 0, t)]),
        ([Placed(1, b"b", incarnation=t)], [commit("h", 99, t)]),
        ([Placed(0, b"c", queue_id=1, incarnation=t)], []),
        ([], [delete(u, "u")]),
    )
    if calls < 4:
        with pytest.raises(ApplyPaused):
            log.units(*units)
        assert list(log.machine.snapshot()) == before
        log.files.full_in = None
        log.machine.apply(log.frames[-1])
    else:
        log.units(*units)
    assert log.voids() == [False, True]
    assert log.machine.topics["t"].next_offsets == [2, 1]
    assert "u" not in log.machine.topics
    assert log.files.told[-4:] == ["dispatch", "dispatch", "dispatch", "delete"]


# --- outcomes ---------------------------------------------------------------------------------


def test_the_log_says_which_units_were_refused() -> None:
    """Only what is so is taken, once; entries without records have nothing to settle."""
    log = Log()
    t = log.topic()
    assert log.machine.outcomes.to_settle() is None
    log.units(([], [commit("g", 0, t)]))
    assert log.machine.outcomes.to_settle() is None
    log.units(
        ([Placed(0, b"a", incarnation=t)], []),
        ([Placed(1, b"b", incarnation=t)], [commit("g", 99, t)]),
        ([], [commit("h", 99, t)]),
    )
    at = len(log.frames)
    assert log.machine.outcomes.to_settle() == Settlement(at, (RefusedUnit(at, 1),))
    for wrong in (settle(at), settle(at, (at, 0)), settle(at + 1, (at, 1)), settle(0)):
        assert isinstance(log.units(([], [wrong]))[0], OutcomesDiffer)
    right = settle(at, (at, 1))
    assert log.units(([], [right]), ([], [right])) == [None, KeyTaken("settling", "settling")]
    assert log.machine.outcomes.to_settle() is None
    assert isinstance(log.units(([], [right]))[0], OutcomesDiffer)


def test_settlement_is_no_entry_of_its_own() -> None:
    log = Log()
    t = log.topic()
    log.units(([Placed(0, b"a", incarnation=t)], []))
    index = log.command(settle(len(log.frames)))
    assert [each for each, _ in log.told.void] == [index]


def test_many_refused_units_are_settled_in_parts() -> None:
    """None of which is longer than one command may be."""
    log = Log()
    t = log.topic()
    base = 0
    for _ in range(2):
        units: list[tuple[list[Placed], list[Command]]] = []
        for _ in range(700):
            units.append(([Placed(base, b"a", incarnation=t)], [commit("g", 9_999, t)]))
            base += 1
        log.units(*units)
    first = log.machine.outcomes.to_settle()
    assert first is not None
    assert (first.through, len(first.refused)) == (len(log.frames) - 1, 700)
    assert log.units(([], [settle(*first[:1], *first.refused)])) == [None]
    second = log.machine.outcomes.to_settle()
    assert second is not None
    assert len(second.refused) == 700
    assert log.voids() == [True] * 1_400


def test_a_snapshot_holds_what_is_not_settled() -> None:
    """And replay gives the same state, field by field."""
    log = Log()
    t = log.topic()
    units = [([Placed(n, b"a", incarnation=t)], [commit("g", 9_999, t)]) for n in range(1_024)]
    log.units(*units)
    for _ in range(2):
        restored = StateMachine.restore(log.machine.snapshot(), Files(), options=log.options)
        assert restored.outcomes == log.machine.outcomes
        assert list(restored.snapshot()) == list(log.machine.snapshot())
        replayed = StateMachine(Files(), options=log.options)
        replayed.apply(b"".join(log.frames))
        assert list(replayed.snapshot()) == list(log.machine.snapshot())
        settlement = log.machine.outcomes.to_settle()
        if settlement is not None:
            log.units(([], [settle(settlement.through, *settlement.refused)]))


def test_headers_know_what_they_hold() -> None:
    log = Log()
    t = log.topic()
    log.units(([Placed(0, b"a", incarnation=t)], []))
    header = parse_header(log.frames[-1], 0)
    assert (header.is_compound, header.is_batch, header.is_known) == (True, False, True)
