"""The leader's way of units: sharing, keys, conditions, results, and what is settled."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from broker.assembly import committed_log
from broker.errors import BrokerError, ErrorCode
from broker.leader.batches import Batch, Placed
from broker.leader.units import (
    LOOKED_AT,
    SHARED_BYTES,
    SHARED_UNITS,
    ProposedUnit,
    UnitResult,
    shared_bytes,
)
from broker.leader.units_room import (
    KEPT_WAITING,
    MAX_OF_KEY,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    Kind,
    UnitsRoom,
)
from broker.state.outcomes import Outcomes
from broker.state.refusals import OffsetOutOfRange, OutcomesDiffer, Refusal, TopicNotFound
from broker.state.topics import TopicRef
from dledger.core.types import EntryKind
from dledger.level import COMPOUND_LEVEL
from dledger.reading.compound import UnitBody, build_body, unit_spans
from dledger.reading.entry import HEADER_SIZE, parse_header, position_after
from dledger.records.record import decode_records
from dledger.wire.commands_pb2 import Command, RaiseLevelCommand, SettleUnitsCommand
from tests.broker.leader import Bench, batch
from tests.broker.test_compound import commit, delete

LOST = BrokerError(ErrorCode.LEADERSHIP_LOST, "voted out")


def raised(level: int = COMPOUND_LEVEL) -> Bench:
    """A leader whose group uses units, with topic t."""
    bench = Bench(known_level=COMPOUND_LEVEL)
    for each in range(bench.machine.level.current + 1, level + 1):
        bench.submit(Command(raise_level=RaiseLevelCommand(level=each)))
    assert bench.machine.level.current == level
    bench.topic()
    return bench


def incarnation(bench: Bench, topic: str = "t") -> int:
    return bench.machine.topics[topic].incarnation


def unnumbered(*bodies: bytes, queue_id: int = 0, topic: str = "t") -> Batch:
    return batch(0, *bodies, queue_id=queue_id, topic=topic)


def put(bench: Bench, *units: ProposedUnit) -> list[asyncio.Future[UnitResult]]:
    return [bench.appender.units.propose(each) for each in units]


def unit(*batches: Batch, commands: tuple[Command, ...] = ()) -> ProposedUnit:
    return ProposedUnit(batches, commands)


def entries(bench: Bench, after: int) -> list[int]:
    """How many units each compound entry behind entry `after` holds; settlements aside."""
    counts = []
    for index in range(after + 1, bench.log.last_index + 1):
        frame = bench.log.read(index, index)
        header = parse_header(frame, 0)
        if header.is_compound:
            spans = unit_spans(header, frame)
            own = [s for s in spans if not any(_settles(c) for c in s.commands)]
            counts.append(len(own))
    return [count for count in counts if count]


def _settles(command: bytes) -> bool:
    return Command.FromString(command).HasField("settle_units")


def pulled(bench: Bench, queue_id: int = 0) -> list[tuple[int, bytes]]:
    """All that a reader gets of the queue."""
    at = 0
    found: list[tuple[int, bytes]] = []
    while True:
        answer = bench.reader.pull(TopicRef("t"), queue_id, at, 1_000, 1 << 20)
        if answer.next_offset == at:
            return found
        records = decode_records(answer.records)
        first = at + answer.void_count
        assert [r.queue_offset for r in records] == list(range(first, first + answer.count))
        assert answer.next_offset == first + answer.count
        found += [(r.queue_offset, r.body) for r in records]
        at = answer.next_offset


def test_units_share_an_entry_while_one_is_under_way() -> None:
    """Each has its own result; one that is stale harms none."""
    bench = raised()
    t, before = incarnation(bench), bench.log.last_index
    futures = put(
        bench,
        unit(commands=(commit("first", 0, t),)),
        *(unit(commands=(commit(f"g{n}", 9 if n == 3 else 0, t),)) for n in range(6)),
    )
    assert not any(future.done() for future in futures)
    bench.commit()
    assert entries(bench, before) == [1, 6]
    refusals = [future.result().refusal for future in futures]
    assert refusals == [None] * 4 + [OffsetOutOfRange("t", 0, 9)] + [None] * 2
    assert bench.appender.idle


def test_messages_and_commands_take_effect_together() -> None:
    """Or neither: what was refused is in no answer, and its neighbours follow it."""
    bench = raised()
    t = incarnation(bench)
    bench.send(batch(0, b"plain"))
    bench.commit()
    futures = put(
        bench,
        unit(unnumbered(b"a", b"b"), commands=(commit("g", 1, t),)),
        unit(unnumbered(b"never"), commands=(commit("h", 99, t),)),
        unit(unnumbered(b"c"), unnumbered(b"d", queue_id=1), commands=(commit("i", 1, t),)),
    )
    sent = bench.send(batch(1, b"behind"))
    bench.commit()
    results = [future.result() for future in futures]
    assert [r.refusal for r in results] == [None, OffsetOutOfRange("t", 0, 99), None]
    assert [[p.base_queue_offset for p in r.placed] for r in results] == [[1], [], [5, 0]]
    (answer,) = sent.result()
    assert isinstance(answer, Placed)
    assert pulled(bench) == [(0, b"plain"), (1, b"a"), (2, b"b"), (3, b"behind"), (5, b"c")]
    assert pulled(bench, 1) == [(0, b"d")]
    assert set(bench.machine.offsets.groups("t")) == {"g", "i"}
    for result in results:
        for placed in result.placed:
            record = bench.log.read_at(placed.base_physical_offset, 100)
            assert int.from_bytes(record[20:28], "big") == placed.base_queue_offset


def test_a_wide_command_waits_for_its_keys_and_holds_them_back() -> None:
    """What came before it is done before it, what came after it isn't done before it."""
    bench = raised()
    bench.topic("u")
    t, u, before = incarnation(bench), incarnation(bench, "u"), bench.log.last_index
    futures = put(
        bench,
        unit(commands=(commit("first", 0, u, "u"),)),
        unit(commands=(commit("g", 0, t),)),
        unit(commands=(commit("g", 0, t),)),
        unit(commands=(delete(t),)),
        unit(commands=(commit("h", 0, t),)),
        unit(commands=(commit("other", 0, u, "u"),)),
    )
    bench.commit()
    assert entries(bench, before) == [1, 2, 1, 1, 1]
    refusals = [future.result().refusal for future in futures]
    assert refusals == [None, None, None, None, TopicNotFound("t"), None]


def test_condition_about_what_has_gone_meanwhile_harms_nobody_else() -> None:
    """It looks its topic up, which is deleted by the entry in front of it: its unit fails, and so
    does one that is proposed then; those behind them go on."""
    bench = raised()
    bench.topic("other")
    t, other = incarnation(bench), incarnation(bench, "other")

    def condition() -> Refusal | None:
        bench.reader.topic(TopicRef("t", t))
        return None

    about_t = ProposedUnit((), (commit("g", 0, t),), condition)
    deleting, failing, behind = put(
        bench,
        unit(commands=(delete(t, "t"),)),
        about_t,
        unit(commands=(commit("h", 0, other, "other"),)),
    )
    bench.commit()
    assert deleting.result().refusal is None
    later = bench.appender.units.propose(about_t)
    for future in (failing, later):
        error = future.exception()
        assert isinstance(error, BrokerError)
        assert error.code is ErrorCode.TOPIC_NOT_FOUND
    bench.commit()
    assert behind.result().refusal is None
    assert bench.appender.idle


def test_conditions_are_asked_when_nothing_under_way_has_the_keys() -> None:
    """Over what is applied; one that fails is answered without an entry."""
    bench = raised()
    t, before = incarnation(bench), bench.log.last_index
    seen: list[dict[int, int]] = []

    def condition() -> Refusal | None:
        seen.append(dict(bench.machine.offsets.of("g", "t")))
        return None if len(seen) < 3 else OffsetOutOfRange("t", 0, 77)

    futures = put(
        bench,
        *(ProposedUnit((), (commit("g", 0, t),), condition) for _ in range(3)),
        *(ProposedUnit((), (commit("h", 0, t),)) for _ in range(1)),
    )
    bench.commit()
    assert seen == [{}, {0: 0}, {0: 0}]
    assert entries(bench, before) == [1, 2]
    assert [f.result().refusal for f in futures] == [None, None, OffsetOutOfRange("t", 0, 77), None]


def test_batches_of_units_and_sends_never_share_an_offset() -> None:
    """Whichever comes first, while both are in flight."""
    bench = raised()
    for round_ in range(3):
        base = round_ * 4
        units = put(bench, unit(unnumbered(b"u%d" % base)), unit(unnumbered(b"v%d" % base)))
        sent = [bench.send(batch(round_ * 2 + n, b"s%d" % (base + n))) for n in range(2)]
        bench.commit()
        assert all(isinstance(each.result()[0], Placed) for each in sent)
        assert all(each.result().refusal is None for each in units)
    offsets = [offset for offset, _ in pulled(bench)]
    assert offsets == list(range(12))


def test_a_topic_that_is_being_deleted_takes_no_unit_with_messages() -> None:
    """As it takes no batch (ADR 20); it holds its own keys as a unit, and as a plain command."""
    bench = raised()
    t = incarnation(bench)
    wide, behind = put(bench, unit(commands=(delete(t),)), unit(unnumbered(b"late")))
    sent = bench.send(batch(0, b"late"))
    bench.commit()
    assert wide.result().refusal is None
    (failed,) = sent.result()
    assert getattr(failed, "code", None) is ErrorCode.TOPIC_NOT_FOUND
    with pytest.raises(BrokerError, match="does not exist"):
        behind.result()
    bench.topic()
    bench.appender.submit(delete(incarnation(bench)))
    (late,) = put(bench, unit(unnumbered(b"late")))
    bench.commit()
    with pytest.raises(BrokerError, match="does not exist"):
        late.result()


def test_below_the_level_no_unit_is_taken_and_commands_go_alone() -> None:
    """And commands that share entries from then on do so by themselves."""
    bench = raised(COMPOUND_LEVEL - 1)
    units = bench.appender.units
    assert not units.are_taken
    with pytest.raises(BrokerError) as refused:
        units.propose(unit(commands=(commit("g", 0, incarnation(bench)),)))
    assert refused.value.failure.code is ErrorCode.NOT_READY


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (unit(), "nothing"),
        (unit(commands=(Command(raise_level=RaiseLevelCommand(level=9)),)), "no unit holds"),
        (unit(commands=(commit("g", 0, 4), commit("g", 0, 4))), "about the same"),
        (unit(unnumbered(b"a"), commands=(delete(4),)), "about the same"),
        (unit(*(unnumbered(b"a" * (3 << 20)) for _ in range(2))), "bytes"),
    ],
    ids=["nothing", "no-unit", "twice", "records-and-wide", "too-large"],
)
def test_what_is_no_unit_is_refused_at_once(wanted: ProposedUnit, text: str) -> None:
    bench = raised()
    with pytest.raises(BrokerError, match=text) as refused:
        bench.appender.units.propose(wanted)
    assert refused.value.failure.code is ErrorCode.INVALID_ARGUMENT
    assert bench.appender.idle


def test_entries_are_bounded_and_so_is_what_waits() -> None:
    """A unit larger than what is shared goes alone; who comes when too many wait comes again."""
    bench = raised()
    t, before = incarnation(bench), bench.log.last_index
    large = SHARED_BYTES // 2 + 1
    futures = put(bench, *(unit(unnumbered(b"x" * large)) for _ in range(4)))
    bench.commit()
    assert entries(bench, before) == [1, 1, 1, 1]
    assert all(future.result().refusal is None for future in futures)
    put(bench, unit(commands=(commit("one under way", 0, t),)))
    many = [unit(commands=(commit(f"g{n}", 0, t),)) for n in range(MAX_WAITING + KEPT_WAITING)]
    put(bench, *many)
    with pytest.raises(BrokerError) as refused:
        put(bench, unit(commands=(commit("more", 0, t),)))
    assert refused.value.failure.code is ErrorCode.BUSY
    bench.commit()
    assert max(entries(bench, before)) == SHARED_UNITS
    assert bench.appender.idle


def test_large_messages_that_wait_keep_no_small_thing_from_waiting() -> None:
    """Copies of failed messages fill the queue; commits, desks and the brokers' own units have room
    of their own in it, of which one large unit may be more than is left."""
    bench = raised()
    t, units, large = incarnation(bench), bench.appender.units, (3 << 20) + 1
    put(bench, unit(commands=(commit("under way", 0, t),)))
    copies = put(bench, *(unit(unnumbered(b"x" * large)) for _ in range(5)))
    with pytest.raises(BrokerError) as refused:
        put(bench, unit(unnumbered(b"x" * large)))
    assert refused.value.code is ErrorCode.BUSY
    with pytest.raises(BrokerError):
        units.check_readable()
    small = put(bench, *(unit(commands=(commit(f"g{n}", 0, t),)) for n in range(4)))
    own = [units.propose(unit(unnumbered(b"x" * large)), is_internal=True)]
    one = [units.propose(unit(unnumbered(b"x" * large)), is_single=True)]
    for whose in ({"is_internal": True}, {"is_single": True}):
        with pytest.raises(BrokerError):
            units.propose(unit(unnumbered(b"x" * large)), **whose)
    # A burial fills its part, and no desk is refused for it; nor is the settling of units.
    rest = units._room.take(Kind.MESSAGES, MAX_WAITING_BYTES - units._room._shared.size, ())
    own += [units.propose(unit(commands=(commit("own", 0, t),)), is_internal=True)]
    one += [units.propose(unit(commands=(commit("one", 0, t),)), is_single=True)]
    units._room.give_back(rest)
    bench.commit()
    assert all(each.result().refusal is None for each in (*copies, *small, *own, *one))
    assert len(put(bench, *(unit(unnumbered(b"x" * large)) for _ in range(5)))) == 5


def test_a_part_of_what_may_wait_is_bounded_as_well() -> None:
    """By a count too, and given back with the unit that had it."""
    room = UnitsRoom()
    shared = [room.take(Kind.MESSAGES, 1, ()) for _ in range(MAX_WAITING)]
    with pytest.raises(BrokerError):
        room.take(Kind.MESSAGES, 1, ())
    kept = [room.take(Kind.COMMANDS, 1, ()) for _ in range(KEPT_WAITING)]
    with pytest.raises(BrokerError):
        room.take(Kind.COMMANDS, 1, ())
    room.take(Kind.BROKERS, 1, ())
    room.give_back(kept.pop())
    room.take(Kind.COMMANDS, 1, ())
    room.give_back(shared.pop())
    room.take(Kind.MESSAGES, 1, ())


@pytest.mark.parametrize("command_bytes", [1, 40, 300, 1_000])
@pytest.mark.parametrize("segment_bytes", [8 << 10, 2 << 20, 64 << 20])
def test_units_that_share_an_entry_fit_a_segment(segment_bytes: int, command_bytes: int) -> None:
    """However small that is: a leader whose entry doesn't would stop."""
    each = UnitBody([], [bytes(command_bytes)])
    count = min(SHARED_UNITS, shared_bytes(segment_bytes) // each.size)
    body, _ = build_body([each] * count)
    assert count > 1
    assert position_after(0, HEADER_SIZE + len(body), segment_bytes) == 0


def test_many_of_one_key_hold_up_only_those_behind_what_is_looked_at() -> None:
    """One of them an entry, in their order; each entry costs so much looking and no more."""
    bench = raised()
    t, before = incarnation(bench), bench.log.last_index
    asked: list[tuple[int, int]] = []

    def condition(number: int, group: int) -> Refusal | None:
        asked.append((number, group))
        return OffsetOutOfRange("t", 0, number) if number > 3 else None

    groups = LOOKED_AT // MAX_OF_KEY + 1
    many = [(number, group) for group in range(groups) for number in range(MAX_OF_KEY)]
    put(
        bench,
        unit(commands=(commit("one under way", 0, t),)),
        *(
            ProposedUnit((), (commit(f"g{group}", 0, t),), partial(condition, number, group))
            for number, group in many
        ),
        unit(commands=(commit("other", 0, t),)),
    )
    bench.commit()
    assert sorted(asked) == sorted(many)
    for group in range(groups):
        assert [number for number, of in asked if of == group] == [*range(MAX_OF_KEY)]
    assert entries(bench, before)[:3] == [1, groups - 1, groups]
    assert bench.appender.idle


def test_who_says_much_about_one_thing_at_once_is_told_to_come_again() -> None:
    """One of it goes with an entry: thousands of it would keep everybody else's from being looked
    at. Who only stores messages isn't counted."""
    bench = raised()
    t, before = incarnation(bench), bench.log.last_index
    of_one, of_another = (unit(commands=(commit(group, 0, t),)) for group in "gh")
    for _ in range(2):
        put(bench, *[of_one] * (1 + MAX_OF_KEY))  # the first one is under way
        with pytest.raises(BrokerError) as refused:
            put(bench, of_one)
        assert refused.value.failure.code is ErrorCode.BUSY
        # Who has one at a time waits for its turn: many wait behind it.
        bench.appender.units.propose(of_one, is_single=True)
        put(bench, of_another, *[unit(unnumbered(b"x"))] * (2 * MAX_OF_KEY))
        bench.commit()
        assert entries(bench, before)[:2] == [1, 2 + 2 * MAX_OF_KEY]
        assert bench.appender.idle
        before = bench.log.last_index
    put(bench, *[of_one] * (1 + MAX_OF_KEY))
    bench.appender.units.end(LOST)
    bench.appender.units.begin()
    put(bench, *[of_one] * (1 + MAX_OF_KEY))


def test_who_waits_for_a_leader_that_is_voted_out_is_told() -> None:
    """The entry under way may have happened; what waited for its turn has not."""
    bench = raised()
    t = incarnation(bench)
    under_way, waiting = put(
        bench, unit(commands=(commit("g", 0, t),)), unit(commands=(commit("h", 0, t),))
    )
    bench.appender.end(LOST)
    failed = [future.exception() for future in (under_way, waiting)]
    assert [each.failure.code for each in failed if isinstance(each, BrokerError)] == [
        ErrorCode.LEADERSHIP_LOST,
        ErrorCode.NOT_LEADER,
    ]
    with pytest.raises(BrokerError):
        put(bench, unit(commands=(commit("h", 0, t),)))


def test_what_was_refused_is_written_down_and_a_new_leader_goes_on() -> None:
    """One settlement is under way at a time; the state knows what is left."""
    bench = raised()
    t = incarnation(bench)
    put(
        bench,
        unit(unnumbered(b"a")),
        unit(unnumbered(b"b"), commands=(commit("g", 99, t),)),
    )
    bench.commit()
    assert bench.machine.outcomes.to_settle() is None
    said = [
        Command.FromString(command).settle_units
        for index in range(1, bench.log.last_index + 1)
        if (header := parse_header(frame := bench.log.read(index, index), 0)).is_compound
        for span in unit_spans(header, frame)
        for command in span.commands
        if _settles(command)
    ]
    assert sum(len(each.refused) for each in said) == 1
    assert said[-1] != SettleUnitsCommand()
    put(bench, unit(unnumbered(b"c")))
    bench.commit(bench.log.last_index)
    assert bench.machine.outcomes.to_settle() is not None
    bench.reboot()
    bench.commit()
    assert bench.machine.outcomes.to_settle() is None
    assert [body for _, body in pulled(bench)] == [b"a", b"c"]


def test_a_settlement_that_is_refused_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that takes none, as no program's should, would have its log filled with them."""
    bench = raised()
    refusal = OutcomesDiffer(1, 0, 0)
    monkeypatch.setattr(Outcomes, "refusal_of", lambda outcomes, said: refusal)
    put(bench, unit(unnumbered(b"a")))
    bench.commit()
    last = bench.log.last_index
    for _ in range(3):
        bench.later(1_000)
        bench.commit()
    assert bench.log.last_index == last
    monkeypatch.undo()
    put(bench, unit(unnumbered(b"b")))  # says more than what was refused
    bench.commit()
    assert bench.machine.outcomes.to_settle() is None


def test_readers_pass_over_what_is_void() -> None:
    """Pulls, by time, by id: at the front, in the middle, at the end, and for a whole queue."""
    bench = raised()
    t = incarnation(bench)
    refused = (commit("g", 1 << 30, t),)
    kinds = "vvmmvmmmvv"
    for number, kind in enumerate(kinds):
        bench.later(1_000)
        wanted = unit(unnumbered(b"%d" % number), commands=refused if kind == "v" else ())
        put(bench, wanted)
        put(bench, unit(unnumbered(b"x", queue_id=1), commands=refused))
        bench.commit()
    messages = [n for n, kind in enumerate(kinds) if kind == "m"]
    assert [offset for offset, _ in pulled(bench)] == messages
    assert pulled(bench, 1) == []
    reader, topic = bench.reader, TopicRef("t")
    for offset in range(len(kinds) + 1):
        for limit in (1, 2, 3, 100):
            found = reader.pull(topic, 0, offset, limit, 1 << 20)
            bodies = [record.body for record in decode_records(found.records)]
            start = offset + found.void_count
            assert bodies == [b"%d" % n for n in range(start, start + found.count)]
            assert set(kinds[offset:start]) <= {"v"}
            assert found.void_count + found.count <= limit
            assert found.next_offset == start + found.count
            left = len(kinds) - offset
            assert found.next_offset > offset or not left
    times = [
        int(decode_records(reader.pull(topic, 0, n, 1, 1).records)[0].store_time_ms)
        for n in messages
    ]
    assert [reader.offset_by_time(topic, 0, each) for each in times] == messages
    assert reader.offset_by_time(topic, 0, 0) == 0
    assert reader.offset_by_time(topic, 0, times[-1] + 10_000_000) == len(kinds)


def test_what_is_void_is_found_by_no_id() -> None:
    """Its record lies in the log, and is nobody's message; nor is one of a topic that has gone."""
    bench = raised()
    refused = (commit("g", 99, incarnation(bench)),)
    put(bench, unit(unnumbered(b"a"), commands=refused))
    (taken,) = put(bench, unit(unnumbered(b"b", b"c")))
    bench.commit()
    log = committed_log(bench.node.replica.parts)
    (placed,) = taken.result().placed
    record = log.record_at(placed.base_physical_offset)
    assert record is not None
    assert decode_records(record)[0].body == b"b"
    second = log.record_at(placed.base_physical_offset + len(record))
    assert second is not None
    assert decode_records(second)[0].body == b"c"
    assert log.record_at(placed.base_physical_offset + 1) is None
    void = int.from_bytes(bench.units()[:8], "big")
    assert bench.log.read_at(void, 100)
    assert log.record_at(void) is None
    put(bench, unit(commands=(delete(incarnation(bench)),)))
    bench.commit()
    assert log.record_at(placed.base_physical_offset) is None


def test_what_is_not_applied_is_found_by_no_id() -> None:
    """It may be overwritten: by a leader that has never heard of it."""
    bench = raised()
    log, begin = committed_log(bench.node.replica.parts), bench.log.end_offset
    bench.send(batch(0, b"alone"))
    put(bench, unit(unnumbered(b"of a unit")))
    proposed = range(begin, bench.log.end_offset)
    assert not any(log.record_at(at) for at in proposed)
    bench.commit()
    there = range(begin, bench.log.end_offset)
    found = [decode_records(record)[0].body for record in map(log.record_at, there) if record]
    assert found == [b"alone", b"of a unit"]


def test_rot_in_a_void_unit_is_told_and_mended() -> None:
    """A queue whose void unit is another one is no witness of anything."""
    bench = raised()
    put(bench, unit(unnumbered(b"a"), commands=(commit("g", 99, incarnation(bench)),)))
    put(bench, unit(unnumbered(b"b")))
    bench.commit()
    bench.node.disk.spoil(bench.queue_file(), 15, b"\xff")
    with pytest.raises(BrokerError) as refused:
        pulled(bench)
    assert refused.value.failure.code is ErrorCode.NOT_READY
    bench.commit()
    bench.later(5_000)
    bench.commit()
    assert pulled(bench) == [(1, b"b")]


def test_a_start_derives_void_units_again() -> None:
    """From the log alone, to the same bytes."""
    bench = raised()
    refused = (commit("g", 1 << 30, incarnation(bench)),)
    for number in range(6):
        put(bench, unit(unnumbered(b"%d" % number), commands=refused if number % 2 else ()))
    bench.commit()
    before, found = bench.units(), pulled(bench)
    bench.reboot()
    bench.commit()
    assert bench.units() == before
    assert pulled(bench) == found


def test_an_entry_of_units_by_another_leader_answers_nobody() -> None:
    """What this leader waits for is its own entry."""
    bench = raised()
    (mine,) = put(bench, unit(commands=(commit("g", 0, incarnation(bench)),)))
    assert bench.appender.units.futures() == [mine]
    bench.appender.units.on_applied(bench.log.last_index + 5, [])
    assert not mine.done()
    bench.commit()
    assert mine.result().refusal is None
    assert bench.node.driver.propose(EntryKind.NOOP, 0, b"", None)
