"""Snapshots of the whole state: what they keep, what they cost, and what is refused."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from broker.state.errors import (
    SnapshotDamaged,
    SnapshotIncomplete,
    SnapshotOfLaterLevel,
    SnapshotRefused,
    SnapshotUnknown,
)
from broker.state.machine import MachineOptions, StateMachine
from broker.state.offsets import OffsetCommit
from broker.state.producers import Producer
from broker.state.registration import ProducerBounds, Registration, producer_id
from broker.state.sequences import StoredBatch, next_sequence
from broker.state.snapshot import (
    MAX_CHUNK_BYTES,
    MAX_PAYLOAD_BYTES,
    PayloadReader,
    Section,
    pack,
    seal,
    unseal,
)
from dledger.core.errors import InvariantViolation
from dledger.level import KNOWN_LEVEL
from dledger.records.state_layout import SNAPSHOT_CHUNK
from dledger.wire.commands_pb2 import (
    Command,
    CommitOffsetsCommand,
    CommittedOffset,
    CreateTopicCommand,
    DeleteTopicCommand,
)
from tests.broker.leader import Bench, NoQueues, batch


def do_something(bench: Bench, rng: random.Random) -> None:
    """One operation of a leader, whatever `rng` draws."""
    topic = rng.choice("abc")
    queue_id = rng.randrange(2)
    match rng.randrange(8):
        case 0:
            create = CreateTopicCommand(name=topic, queue_count=2)
            bench.appender.submit(Command(create_topic=create))
        case 1 if rng.random() < 0.3:
            bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name=topic)))
        case 2 | 3:
            command = CommitOffsetsCommand(
                group=rng.choice("gh"),
                topic=topic,
                offsets=[CommittedOffset(queue_id=queue_id, offset=rng.randrange(8))],
                reset=rng.random() < 0.2,
            )
            bench.appender.submit(Command(commit_offsets=command))
        case 4:
            bench.register(rng.randbytes(8), rng.choice(("", "n", "m")))
        case _:
            producer = rng.choice([b"", *bench.registered[-3:]])
            sequence = next_of(bench, producer, topic, queue_id)
            bodies = [b"x"] * rng.randint(1, 3)
            bench.send(batch(sequence, *bodies, topic=topic, queue_id=queue_id), producer=producer)
    bench.later(rng.randrange(200))
    bench.commit()


def next_of(bench: Bench, producer: bytes, topic: str, queue_id: int) -> int:
    """Where the producer's numbers go on."""
    state, known = bench.machine.topics.get(topic), bench.machine.producers.find(producer)
    if state is None or not isinstance(known, Producer):
        return 0
    return next_sequence(known.queues.get((state.incarnation, queue_id)))


def same(one: StateMachine, other: StateMachine) -> bool:
    """Whether two machines hold the same state."""
    return (
        one.topics == other.topics
        and one.offsets == other.offsets
        and one.producers == other.producers
        and one.statistics() == other.statistics()
        and one.append_time_ms == other.append_time_ms
        and one.lived_time == other.lived_time
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_restored_machine_goes_on_as_the_first(seed: int) -> None:
    """Snapshot and restore at any point; both apply what follows and stay equal, to the byte."""
    rng = random.Random(seed)
    bounds = ProducerBounds(4, 3, 5, named_unused_ms=3_000, unnamed_unused_ms=1_000)
    options = MachineOptions(producers=bounds, max_queues=5)
    bench = Bench(options, known_level=KNOWN_LEVEL)
    second = StateMachine(NoQueues(), options=options)
    for _ in range(60):
        do_something(bench, rng)
        if rng.random() < 0.2:
            chunks = list(bench.machine.snapshot())
            second = StateMachine.restore(chunks, NoQueues(), options=options)
            assert list(second.snapshot()) == chunks
        if bench.log.last_index > second.applied_index:
            second.apply(bench.log.read(second.applied_index + 1, bench.log.last_index))
        assert same(second, bench.machine)
    assert list(second.snapshot()) == list(bench.machine.snapshot())
    second.check_invariants()


def some_state() -> Bench:
    """A topic, a committed offset, a producer: every section has a record."""
    bench = Bench()
    bench.topic("t", 2)
    bench.send(batch(0, b"a", b"b"))
    bench.commit()
    offsets = [CommittedOffset(queue_id=0, offset=2)]
    commit = CommitOffsetsCommand(group="g", topic="t", offsets=offsets)
    bench.appender.submit(Command(commit_offsets=commit))
    bench.commit()
    return bench


def test_a_snapshot_shows_the_moment_at_which_it_was_asked_for() -> None:
    """Chunks that are taken later don't show what was applied meanwhile."""
    bench = some_state()
    before = list(bench.machine.snapshot())
    lazily = bench.machine.snapshot()
    first = next(lazily)
    bench.send(batch(2, b"c"))
    bench.commit()
    offsets = [CommittedOffset(queue_id=0, offset=1)]
    reset = CommitOffsetsCommand(group="g", topic="t", offsets=offsets, reset=True)
    bench.appender.submit(Command(commit_offsets=reset))
    bench.topic("u", 1)
    bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    bench.commit()
    assert [first, *lazily] == before


def test_the_layout_of_a_snapshot() -> None:
    """Golden bytes: what is written today must be readable for as long as version 1 is."""
    machine = StateMachine(NoQueues())
    state = machine.state
    state.applied_index, state.append_time_ms, state.messages_applied = 9, 1_000, 2
    machine.lived_time.advance(945, 1_000)
    machine.topics.create("t", 2, incarnation=4, created_time_ms=500)
    machine.topics.advance(machine.topics["t"], 1, 2)
    machine.topics.derive(machine.topics["t"], 1, bytes(20))
    machine.topics.derive(machine.topics["t"], 1, bytes(20))
    machine.offsets.commit(OffsetCommit("g", "t", ((1, 2),), is_reset=False), [0, 2])
    machine.producers.register(Registration(b"token--1"), 5, 66)
    machine.producers.register(Registration(b"token--2", "name"), 6, 67)
    machine.producers.register(Registration(b"token--3", "name"), 7, 68)
    producer = producer_id(7, b"token--3")
    machine.producers.remember(producer, (4, 1), StoredBatch(0, 2, 0, 80, 1_000), 70)
    payloads = [chunk.payload.hex() for chunk in unseal(machine.snapshot())]
    assert payloads == [
        "00000000000003e80000000000000002",
        "00000001",
        "0000000000000037",
        "0001740000000000000004"
        "00000000000001f4000000020000000000000002"
        "000000000000000000000000"
        "0000000000000002595fb7dd",
        "0001740001670000000000000001000000010000000000000002",
        "0000000000000005746f6b656e2d2d31" * 2 + "0000000000000042"
        "00000000000000000000"
        "00"
        "0000000000000007746f6b656e2d2d33"
        "0000000000000006746f6b656e2d2d32"
        "0000000000000046"
        "01"
        "0000000000000006746f6b656e2d2d32"
        "00046e616d65"
        "0000000000000001"
        "00000000000000040000000101"
        "00000000000000000000000200000000000000000000000000000050"
        "00000000000003e8",
    ]
    head = "daa320f10107000100000000000000090000000000000010"
    assert next(machine.snapshot()).hex().startswith(head + b"machine".hex() + payloads[0])


@pytest.mark.parametrize("kept", range(7))
def test_chunks_that_break_off_are_no_state(kept: int) -> None:
    """After any chunk but the end, nothing is restored."""
    chunks = list(some_state().machine.snapshot())
    assert len(chunks) == 7
    with pytest.raises(SnapshotRefused):
        StateMachine.restore(chunks[:kept], NoQueues())
    with pytest.raises(SnapshotIncomplete):
        list(unseal(chunks[:kept]))


def test_a_chunk_that_changed_is_found() -> None:
    """Any byte of any chunk, and any chunk that is shorter or longer."""
    chunks = list(some_state().machine.snapshot())
    for position, chunk in enumerate(chunks):
        for at in range(len(chunk)):
            wrong = bytes((*chunk[:at], chunk[at] ^ 1, *chunk[at + 1 :]))
            changed = [*chunks[:position], wrong, *chunks[position + 1 :]]
            with pytest.raises(SnapshotRefused):
                StateMachine.restore(changed, NoQueues())
        for wrong in (b"", chunk[:-1], chunk + b"\0"):
            with pytest.raises(SnapshotDamaged):
                list(unseal([*chunks[:position], wrong]))


def test_chunks_out_of_place_are_found() -> None:
    """Swapped, repeated, left out, from another snapshot, or behind the end."""
    bench = some_state()
    chunks = list(bench.machine.snapshot())
    bench.send(batch(2, b"c"))
    bench.commit()
    later = list(bench.machine.snapshot())
    for wrong in (
        [chunks[1], chunks[0], *chunks[2:]],
        [chunks[0], *chunks],
        [*chunks[:2], *chunks[3:]],
        [*chunks[:4], later[4], chunks[5]],
        [*chunks, chunks[5]],
    ):
        with pytest.raises(SnapshotDamaged):
            StateMachine.restore(wrong, NoQueues())


def sections(*names: tuple[str, int]) -> list[Section]:
    """Sections of these names and versions, empty but those that always have one record."""
    own = {"machine": [bytes(16)], "level": [b"\x00\x00\x00\x01"], "lived-time": [bytes(8)]}
    return [Section(name, version, pack(own.get(name, []))) for name, version in names]


@pytest.mark.parametrize(
    "unknown",
    [("machine", 2), ("level", 2), ("topics", 2), ("timers", 3)],
)
def test_sections_that_are_not_known_are_refused_by_name(unknown: tuple[str, int]) -> None:
    """What a later version adds must not be left out in silence."""
    before = {"machine": [], "level": [("machine", 1)]}
    known = before.get(unknown[0], [("machine", 1), ("level", 1), ("lived-time", 1)])
    chunks = seal(1, sections(*known, unknown))
    with pytest.raises(SnapshotUnknown, match="{!r} of version {}".format(*unknown)):
        StateMachine.restore(chunks, NoQueues())


def test_a_level_that_is_not_known_is_told_before_what_belongs_to_it() -> None:
    """The level says what to install; a section's name says nothing to an operator."""
    chunks = seal(1, sections(("machine", 1), ("level", 1), ("lived-time", 1), ("topics", 2)))
    with pytest.raises(SnapshotOfLaterLevel, match="uses level 1, and this program knows level 0"):
        StateMachine.restore(chunks, NoQueues(), known_level=0)


OWNERS = ("machine", "level", "lived-time", "topics", "offsets", "producers")


@pytest.mark.parametrize("missing", OWNERS)
def test_a_section_that_is_missing_is_missed(missing: str) -> None:
    """A whole envelope without one of the owners is no state."""
    names = [(name, 1) for name in OWNERS]
    StateMachine.restore(seal(1, sections(*names)), NoQueues())
    with pytest.raises(SnapshotDamaged, match="section"):
        StateMachine.restore(seal(1, sections(*(n for n in names if n[0] != missing))), NoQueues())


def test_a_state_that_cannot_be_is_refused() -> None:
    """Intact chunks of a state that breaks an invariant, or a bound of this group, give nothing."""
    bench = some_state()
    chunks = list(bench.machine.snapshot())
    with pytest.raises(SnapshotDamaged, match="limit is 1"):
        StateMachine.restore(chunks, NoQueues(), options=MachineOptions(max_queues=1))
    bench.machine.topics.delete("t")
    with pytest.raises(InvariantViolation, match="doesn't exist"):
        bench.machine.check_invariants()
    with pytest.raises(SnapshotDamaged, match="doesn't exist"):
        StateMachine.restore(bench.machine.snapshot(), NoQueues())


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_snapshot_of_right_sums_says_it_is_a_state_or_refused(seed: int) -> None:
    """A defect or another release made it: nothing but a refusal may come out, or the start that
    reads it would end, again and again."""
    rng = random.Random(seed)
    bench = some_state()
    for _ in range(60):
        do_something(bench, rng)
    chunks = list(bench.machine.snapshot())[:-1]
    refused = 0
    for _ in range(300):
        number = rng.randrange(len(chunks))
        changed = [*chunks[:number], spoilt(chunks[number], rng), *chunks[number + 1 :]]
        end = list(bench.machine.snapshot())[-1]
        try:
            machine = StateMachine.restore([*changed, end], NoQueues())
        except SnapshotRefused:
            refused += 1
        else:
            machine.check_invariants()
            assert list(machine.snapshot()) == [*changed, end]
    assert refused > 100


def spoilt(chunk: bytes, rng: random.Random) -> bytes:
    """The chunk with another byte in its payload, or eight, and the sum of that."""
    changed = bytearray(chunk)
    at = rng.randrange(SNAPSHOT_CHUNK.struct().size + chunk[5], len(chunk) - 4)
    if rng.random() < 0.3:
        value = rng.choice((0, (1 << 64) - 1, 1 << 63, 1 << 40, rng.getrandbits(64)))
        wide = value.to_bytes(8, "big")
        changed[at : min(at + 8, len(chunk) - 4)] = wide[: len(chunk) - 4 - at]
    else:
        changed[at] = rng.choice((0, 255, changed[at] ^ 1 << rng.randrange(8)))
    changed[-4:] = crc32c(bytes(changed[:-4])).to_bytes(4, "big")
    return bytes(changed)


def test_queues_hold_no_more_than_was_applied() -> None:
    """A start compares a queue's units up to where it ends, however far that is."""
    bench = some_state()
    topic = bench.machine.topics["t"]
    bench.machine.topics.advance(topic, 1, 1 << 40)
    with pytest.raises(SnapshotDamaged, match="were applied"):
        StateMachine.restore(bench.machine.snapshot(), NoQueues())


def test_payloads_are_bounded_and_whole() -> None:
    """Records are never torn; one that can't fit is our own fault."""
    records = [bytes([n % 256]) * (n * 37 % 5_000 + 1) for n in range(200)]
    payloads = list(pack(records))
    assert b"".join(payloads) == b"".join(records)
    assert all(len(payload) <= MAX_PAYLOAD_BYTES for payload in payloads)
    assert list(pack([])) == [b""]
    too_long = Section("machine", 1, pack([bytes(MAX_PAYLOAD_BYTES + 1)]))
    with pytest.raises(InvariantViolation, match="the limit is"):
        list(seal(0, [too_long]))


def test_a_payload_reader_reads_no_further_than_its_payload() -> None:
    """A length that lies is damage, not an index error."""
    for payload in (b"\x00", b"\x00\x05abcd", b"\x00\x01\xff"):
        with pytest.raises(SnapshotDamaged):
            PayloadReader("topics", payload).take_text()


@pytest.mark.slow
def test_a_snapshot_at_the_bounds_comes_in_small_chunks() -> None:
    """50,000 producers, 10,000 topics, 100,000 offsets: no chunk is longer than it may be, and all
    of it comes back."""
    machine = StateMachine(NoQueues())
    machine.state.applied_index, machine.state.append_time_ms = 1_000_000, 1 << 40
    machine.state.messages_applied = 100_000_000
    names = [f"topic-{n:05d}" for n in range(10_000)]
    for n, name in enumerate(names):
        machine.topics.create(name, 4, incarnation=n + 1, created_time_ms=n)
        machine.topics.advance(machine.topics[name], n % 4, n + 5)
    for n in range(100_000):
        name = names[n % 10_000]
        ends = machine.topics[name].next_offsets
        wanted = ((n % 10_000 % 4, n % 10_000),)
        commit = OffsetCommit(f"group-{n // 10_000}", name, wanted, is_reset=False)
        assert machine.offsets.commit(commit, ends) is None
    for n in range(50_000):
        token = n.to_bytes(8, "big")
        machine.producers.register(Registration(token, f"name-{n}" if n % 2 else ""), n + 1, 0)
        stored = StoredBatch(0, 5, n % 10_000, 100 * n, n)
        place = (n % 10_000 + 1, n % 4)
        machine.producers.remember(producer_id(n + 1, token), place, stored, 0)
    chunks = list(machine.snapshot())
    assert max(map(len, chunks)) <= MAX_CHUNK_BYTES
    restored = StateMachine.restore(chunks, NoQueues())
    assert same(restored, machine)
    assert list(restored.snapshot()) == chunks
