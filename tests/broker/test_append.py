"""The appender: what is stored once, what is refused, and what callers learn when."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import Batch, BatchAnswer, Placed, StoredBefore
from broker.state.machine import MachineOptions
from broker.state.refusals import TooManyProducers
from broker.state.registration import ProducerBounds
from broker.state.topics import TopicRef, Topics
from dledger.core.errors import NotLeader, TooMuchUncommitted, TransferInProgress
from dledger.core.types import EntryKind, NodeId
from dledger.driver import LogFull
from dledger.limits import MAX_SEND_BATCHES
from dledger.outcome import Outcome
from dledger.records.properties import (
    MAX_PROPERTIES_BYTES,
    MAX_SENT_PROPERTIES_BYTES,
    encode_properties,
)
from dledger.records.record import RecordTemplate, decode_records
from dledger.wire.commands_pb2 import (
    Command,
    CreateTopicCommand,
    DeleteTopicCommand,
    ForgetProducersCommand,
    RegisterProducerCommand,
)
from tests.broker.leader import FIRST_TOPIC, PRODUCER, Bench, batch
from tests.node.machine import SEGMENT
from tests.node.world import padded

Answer = asyncio.Future[list[BatchAnswer]]
DAY_MS = 24 * 3600 * 1000
UNUSED_MINUTES = 3  # after which a producer may be forgotten, in lived time
UNUSED_MS = UNUSED_MINUTES * 60_000


def failure(answer: Answer, position: int = 0) -> Failure:
    found = answer.result()[position]
    assert isinstance(found, Failure)
    return found


def placed(answer: Answer, position: int = 0) -> Placed:
    found = answer.result()[position]
    assert isinstance(found, Placed), found
    return found


def code(answer: Answer, position: int = 0) -> str:
    return failure(answer, position).code.name


def pulled(bench: Bench, queue_id: int = 0) -> list[bytes]:
    found = bench.reader.pull(TopicRef("t"), queue_id, 0, 1_000, 1 << 20)
    return [record.body for record in decode_records(found.records)]


def committed(bench: Bench, sent: Batch, producer: bytes = PRODUCER) -> Answer:
    answer = bench.send(sent, producer=producer)
    bench.commit()
    return answer


def registering(token: bytes, name: str = "") -> Command:
    return Command(register_producer=RegisterProducerCommand(token=token, name=name))


def crowded() -> Bench:
    """A group that has room for one producer."""
    return Bench(MachineOptions(producers=ProducerBounds(producers=1, unnamed_unused_ms=UNUSED_MS)))


def live(bench: Bench, minutes: int) -> None:
    """So many minutes of lived time: an entry each, which changes nothing."""
    for _ in range(minutes):
        bench.later(60_000)
        bench.appender.submit(Command(forget_producers=ForgetProducersCommand()))
        bench.commit()


def test_a_batch_is_answered_when_it_is_applied_and_not_before() -> None:
    """The answer waits for the commit and carries the batch's place."""
    bench = Bench()
    bench.topic()
    answer = bench.send(batch(0, b"a", b"b"))
    assert not answer.done()
    bench.commit()
    result = placed(answer)
    assert (result.base_queue_offset, result.is_duplicate) == (0, False)
    assert pulled(bench) == [b"a", b"b"]
    first = decode_records(bench.reader.pull(TopicRef("t"), 0, 0, 1, 1).records)[0]
    assert first.physical_offset == result.base_physical_offset


def test_queue_offsets_go_on_over_batches_in_flight() -> None:
    """Offsets are handed out before the commit, each once."""
    bench = Bench()
    bench.topic()
    answers = [bench.send(batch(n * 2, b"x", b"y")) for n in range(3)]
    bench.commit()
    assert [placed(a).base_queue_offset for a in answers] == [0, 2, 4]
    offsets = [
        r.queue_offset
        for r in decode_records(bench.reader.pull(TopicRef("t"), 0, 0, 99, 1 << 20).records)
    ]
    assert offsets == list(range(6))


def test_a_retry_after_the_commit_is_answered_as_the_first_time() -> None:
    """Stored once, the same offsets, nothing proposed."""
    bench = Bench()
    bench.topic()
    first = bench.send(batch(0, b"once"))
    bench.commit()
    before = bench.log.last_index
    again = bench.send(batch(0, b"once"))
    result = placed(again)
    assert result.is_duplicate
    original = placed(first)
    assert result.base_queue_offset == original.base_queue_offset
    assert result.base_physical_offset == original.base_physical_offset
    assert result.store_host == original.store_host
    assert bench.log.last_index == before
    assert pulled(bench) == [b"once"]


def test_a_retry_while_in_flight_waits_for_the_same_entry() -> None:
    """Two sends of one batch: one entry, both answered by its commit."""
    bench = Bench()
    bench.topic()
    first, second = bench.send(batch(0, b"once")), bench.send(batch(0, b"once"))
    assert not second.done()
    bench.commit()
    assert placed(first).base_queue_offset == 0
    assert placed(second).is_duplicate
    assert pulled(bench) == [b"once"]


def test_a_retry_at_the_next_leader_is_stored_once() -> None:
    """Sequences are in the log: another leader that applied it knows the batch."""
    bench = Bench()
    bench.topic()
    answer = bench.send(batch(0, b"once"))
    bench.node.turn()
    bench.node.sync()  # on disk, and this leader never hears of it
    bench.node.replica.fail(RuntimeError("a defect"))
    assert code(answer) == "LEADERSHIP_LOST"
    assert failure(answer).traits.outcome == Outcome.MAY_HAVE_HAPPENED
    bench.reboot()
    again = bench.send(batch(0, b"once"))
    assert placed(again).is_duplicate
    assert pulled(bench) == [b"once"]


def test_a_gap_is_refused_and_did_not_happen() -> None:
    """Order survives: a later batch can't overtake a missing one."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"a"))
    answer = bench.send(batch(5, b"f"))
    assert code(answer) == "OUT_OF_SEQUENCE"
    error = failure(answer)
    assert (error.traits.outcome, error.traits.is_retriable) == (Outcome.DID_NOT_HAPPEN, True)


@pytest.mark.parametrize("sequence", [0, 1])
def test_a_forgotten_producer_is_told_so(sequence: int) -> None:
    """Whatever it sends may have been stored before: nothing of it is taken for new, sequence 0
    least of all."""
    bench = crowded()
    bench.topic()
    bench.send(batch(0, b"a"))
    bench.commit()
    live(bench, UNUSED_MINUTES)
    other = bench.register(b"newcomer")
    assert placed(committed(bench, batch(0, b"b"), producer=other)).base_queue_offset == 1
    answer = bench.send(batch(sequence, b"a"))
    assert code(answer) == "UNKNOWN_PRODUCER"
    assert failure(answer).traits.outcome == Outcome.MAY_HAVE_HAPPENED
    assert pulled(bench) == [b"a", b"b"]


def test_neither_others_nor_a_step_of_eight_days_make_a_retry_new() -> None:
    """Both did: batch 0, sent again behind as many others as are remembered, or behind such a
    step, was stored twice."""
    bench = Bench(MachineOptions(producers=ProducerBounds(producers=60, pairs=120)))
    bench.topic()
    first = committed(bench, batch(0, b"once"))
    for number in range(1, 60):
        producer = bench.register(number.to_bytes(8, "big"))
        for queue_id in range(2):
            bench.send(batch(0, b"x", queue_id=queue_id), producer=producer)
    bench.later(8 * DAY_MS)
    committed(bench, batch(0, b"x"), producer=bench.register(b"after it"))
    again = bench.send(batch(0, b"once"))
    assert placed(again) == replace(placed(first), is_duplicate=True)


def test_whatever_is_below_the_next_was_stored_before() -> None:
    """With its place while it is among the last five, without one after that; and a batch that is
    partly below was cut differently."""
    bench = Bench()
    bench.topic()
    for sequence in range(0, 20, 2):
        committed(bench, batch(sequence, b"x", b"y"))
    assert placed(bench.send(batch(10, b"x", b"y"))).base_queue_offset == 10
    for sequence, count in ((0, 2), (8, 2), (11, 1), (3, 17)):
        answer = bench.send(batch(sequence, *[b"x"] * count))
        assert answer.result() == [StoredBefore()]
    assert code(bench.send(batch(19, b"y", b"z"))) == "INVALID_ARGUMENT"
    assert bench.appender.statistics().duplicates == 5


def test_a_batch_on_its_way_is_not_stored_before() -> None:
    """Cut differently it is refused: nobody knows yet what becomes of it."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"x", b"y"))
    assert code(bench.send(batch(0, b"x"))) == "INVALID_ARGUMENT"
    bench.commit()
    assert bench.send(batch(0, b"x")).result() == [StoredBefore()]


def test_a_name_goes_on_with_its_numbers_and_fences_who_had_it() -> None:
    """Another process under the same name sends again what it isn't sure of, and goes on; the first
    one is told who it is not."""
    bench = Bench()
    bench.topic()
    first = bench.register(b"process1", "billing")
    committed(bench, batch(0, b"a"), producer=first)
    second = bench.register(b"process2", "billing")
    assert placed(bench.send(batch(0, b"a"), producer=second)).is_duplicate
    answer = bench.send(batch(1, b"b"), producer=first)
    assert code(answer) == "PRODUCER_FENCED"
    assert "'billing'" in failure(answer).message
    assert failure(answer).traits.outcome == Outcome.DID_NOT_HAPPEN
    committed(bench, batch(1, b"b"), producer=second)
    assert pulled(bench) == [b"a", b"b"]
    assert bench.replay().producers == bench.machine.producers


def test_a_registration_on_its_way_closes_its_name() -> None:
    """A batch proposed behind it would be void, and what follows in its queue with it."""
    bench = Bench()
    bench.topic()
    first = bench.register(b"process1", "billing")
    bench.appender.submit(registering(b"process2", "billing"))
    answer = bench.send(batch(0, b"a"), producer=first)
    assert code(answer) == "NOT_READY"
    bench.commit()
    assert code(bench.send(batch(0, b"a"), producer=first)) == "PRODUCER_FENCED"


def test_whoever_is_being_forgotten_is_closed() -> None:
    """And has its numbers again if the forgetting has passed it by."""
    bench = crowded()
    bench.topic()
    committed(bench, batch(0, b"a"))
    live(bench, UNUSED_MINUTES)
    on_its_way = bench.send(batch(1, b"b"))
    bench.appender.submit(registering(b"newcomer"))
    assert code(bench.send(batch(2, b"c"))) == "NOT_READY"
    bench.commit()
    assert placed(on_its_way).base_queue_offset == 1
    assert placed(committed(bench, batch(2, b"c"))).base_queue_offset == 2


def test_a_full_group_refuses_newcomers_and_forgets_nobody_alive() -> None:
    """By name, and for as long as nobody has been unused for long."""
    bench = crowded()
    refused = bench.appender.submit(registering(b"newcomer"))
    bench.commit()
    assert refused.result() == TooManyProducers(1)


def test_a_full_group_that_is_silent_lives_on() -> None:
    """Lived time moves on by entries alone: the refusal of one queue too many makes some."""
    bench = Bench(MachineOptions(producers=ProducerBounds(pairs=1)))
    bench.topic("t", 2)
    committed(bench, batch(0, b"x"))
    other, before = bench.register(b"another1"), bench.machine.lived_time.lived_ms
    for expected in ("LIMIT_REACHED", "LIMIT_REACHED"):
        bench.later(40_000)
        assert code(bench.send(batch(0, b"x"), producer=other)) == expected
        bench.commit()
    assert bench.machine.lived_time.lived_ms == before + 80_000


def test_a_producer_sends_to_so_many_queues_and_no_more() -> None:
    """Its own bound is LIMIT_REACHED; that of all is BUSY while others give way."""
    bounds = ProducerBounds(queues_each=2, pairs=3, unnamed_unused_ms=UNUSED_MS)
    bench = Bench(MachineOptions(producers=bounds))
    bench.topic("t", 4)
    bench.send(batch(0, b"x", queue_id=0))
    bench.send(batch(0, b"x", queue_id=1))
    assert code(bench.send(batch(0, b"x", queue_id=2))) == "LIMIT_REACHED"
    bench.commit()
    assert code(bench.send(batch(0, b"x", queue_id=2))) == "LIMIT_REACHED"
    other = bench.register(b"another1")
    bench.send(batch(0, b"x", queue_id=0), producer=other)
    assert code(bench.send(batch(0, b"x", queue_id=1), producer=other)) == "LIMIT_REACHED"
    live(bench, UNUSED_MINUTES)
    assert code(bench.send(batch(0, b"x", queue_id=1), producer=other)) == "BUSY"
    bench.commit()
    third = bench.register(b"another2")
    assert placed(committed(bench, batch(0, b"x"), producer=third)).base_queue_offset == 2


def test_a_producer_without_an_id_is_not_deduplicated() -> None:
    """No id, no memory: at-least-once for whoever wants it."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"x"), producer=b"")
    bench.send(batch(0, b"x"), producer=b"")
    bench.commit()
    assert pulled(bench) == [b"x", b"x"]
    assert bench.machine.producers.pairs == 0


def test_batches_of_one_send_are_stored_independently() -> None:
    """One bad batch doesn't take the others with it, and each answer is in its place."""
    bench = Bench()
    bench.topic()
    answer = bench.send(batch(0, b"a"), batch(0, b"b", topic="nope"), batch(0, b"c", queue_id=1))
    bench.commit()
    assert [isinstance(each, Placed) for each in answer.result()] == [True, False, True]
    assert code(answer, 1) == "TOPIC_NOT_FOUND"
    assert (pulled(bench, 0), pulled(bench, 1)) == ([b"a"], [b"c"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda b: replace(b, queue_id=2), "QUEUE_NOT_FOUND"),
        (lambda b: replace(b, count=0), "INVALID_ARGUMENT"),
        (lambda b: replace(b, count=2), "RECORD_CORRUPT"),
        (lambda b: replace(b, count=70_000), "INVALID_ARGUMENT"),
        (lambda b: replace(b, records=b.records[:-1]), "RECORD_CORRUPT"),
        (lambda b: replace(b, records=b.records[:90] + b"!" + b.records[91:]), "RECORD_CORRUPT"),
        (lambda b: replace(b, records=b"\xff\xff\xff\xff" + b.records[4:]), "RECORD_CORRUPT"),
        (lambda b: replace(b, records=b""), "RECORD_CORRUPT"),
        (lambda b: replace(b, records=bytes(5 << 20)), "MESSAGE_TOO_LARGE"),
    ],
)
def test_bad_batches_are_refused_and_nothing_is_proposed(
    change: Callable[[Batch], Batch], expected: str
) -> None:
    """Lengths, counts and CRCs that lie, queues out of range, too many bytes."""
    bench = Bench()
    bench.topic()
    before = bench.log.last_index
    answer = bench.send(change(batch(0, b"hello world")))
    assert code(answer) == expected
    assert failure(answer).traits.outcome == Outcome.DID_NOT_HAPPEN
    assert bench.log.last_index == before


def test_a_message_at_the_limit_is_stored_and_one_byte_more_is_not() -> None:
    """4 MiB of body are allowed, headers come on top."""
    bench = Bench()
    bench.topic()
    largest = bytes(4 << 20)
    assert code(bench.send(batch(0, largest + b"!"))) == "MESSAGE_TOO_LARGE"
    assert bench.log.last_index == FIRST_TOPIC
    fits = bench.send(batch(0, largest))
    bench.commit()
    assert placed(fits)


def test_an_empty_body_is_a_message_like_any_other() -> None:
    """Zero bytes are stored and come back."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"", b"x", b""))
    bench.commit()
    assert pulled(bench) == [b"", b"x", b""]


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (TooMuchUncommitted(100, 50), "BUSY"),
        (NotLeader(NodeId("n2")), "NOT_LEADER"),
        (TransferInProgress(NodeId("n2")), "NOT_READY"),
    ],
)
def test_refused_proposals_are_retriable_and_hand_out_no_offset(
    refusal: Exception, expected: str
) -> None:
    """A refusal leaves no trace: the retry gets the offset and the sequence it would have had."""
    bench = Bench()
    bench.topic()
    with patch.object(bench.node.driver, "propose", side_effect=refusal):
        answer = bench.send(batch(0, b"a"))
    check_left_no_trace(bench, answer, batch(0, b"a"), expected)


def check_left_no_trace(bench: Bench, answer: Answer, refused: Batch, expected: str) -> None:
    error = failure(answer)
    assert error.code.name == expected
    assert (error.traits.is_retriable, error.traits.outcome) == (True, Outcome.DID_NOT_HAPPEN)
    again = committed(bench, refused)
    result = placed(again)
    assert (result.base_queue_offset, result.is_duplicate) == (0, False)


MIB = 1 << 20


def fill(bench: Bench) -> None:
    """The log has no place for another mebibyte, for now."""
    nothing = Command(forget_producers=ForgetProducersCommand()).SerializeToString()
    for _ in range(2 * SEGMENT // MIB):
        try:
            bench.propose(EntryKind.COMMAND, 0, padded(nothing, MIB), None)
        except LogFull:
            return
    raise AssertionError("two segments take more than they can hold")


def test_a_full_disk_is_told_until_space_is_back() -> None:
    """As what it is: it doesn't pass by itself."""
    bench = Bench()
    bench.topic()
    bench.disk.capacity_bytes = bench.disk.used_bytes()
    fill(bench)
    bench.commit()
    large = batch(0, bytes(MIB))
    answer = bench.send(large)
    bench.disk.make_room()
    bench.later(1_000)
    check_left_no_trace(bench, answer, large, "STORAGE_FULL")


@pytest.mark.parametrize("count", [0, MAX_SEND_BATCHES + 1])
def test_a_send_has_a_bounded_number_of_batches(count: int) -> None:
    """None and too many are refused as a whole."""
    bench = Bench()
    with pytest.raises(BrokerError) as refused:
        bench.send(*[batch(0, b"x")] * count)
    assert refused.value.code == ErrorCode.INVALID_ARGUMENT


def test_a_producer_id_of_the_wrong_length_is_refused() -> None:
    """16 bytes or none."""
    with pytest.raises(BrokerError, match="3 bytes"):
        Bench().send(batch(0, b"x"), producer=b"abc")


def test_a_topic_being_deleted_takes_no_messages() -> None:
    """A send behind a pending delete must not reach a topic that will be gone."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"old"))
    bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    assert code(bench.send(batch(1, b"late"))) == "TOPIC_NOT_FOUND"
    bench.commit()
    bench.topic()
    answer = bench.send(batch(0, b"new"))
    bench.commit()
    assert placed(answer).base_queue_offset == 0
    assert pulled(bench) == [b"new"]


@pytest.mark.parametrize("queues", [1, 2, 3])
def test_a_topic_is_made_anew_while_its_batches_are_in_flight(queues: int) -> None:
    """Batch, delete and creation are applied in one go: the batch was stored in the topic that is
    gone, and nothing of it is held against the new one."""
    bench = Bench()
    bench.topic("t", 2)
    old = bench.send(batch(0, b"old", b"old", queue_id=1))
    bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    bench.appender.submit(Command(create_topic=CreateTopicCommand(name="t", queue_count=queues)))
    bench.commit()
    assert placed(old).base_queue_offset == 0
    for queue_id in range(queues):
        answer = bench.send(batch(0, b"new", queue_id=queue_id))
        bench.commit()
        result = placed(answer)
        assert (result.base_queue_offset, result.is_duplicate) == (0, False)
        assert pulled(bench, queue_id) == [b"new"]
    assert bench.replay().topics == bench.machine.topics


def test_a_new_topic_is_sent_to_while_what_came_with_it_is_applied() -> None:
    """Batch, delete and creation were applied in one piece, and what came behind them waits for
    another turn: the new topic's queue and sequence start afresh, and nothing takes them away."""
    bench = Bench()
    bench.topic("t", 1)
    old = bench.send(batch(0, b"old"))
    bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    bench.appender.submit(Command(create_topic=CreateTopicCommand(name="t", queue_count=1)))
    through = bench.log.last_index
    behind = bench.appender.submit(Command(forget_producers=ForgetProducersCommand()))
    bench.commit(through)
    assert not behind.done()
    assert placed(old).base_queue_offset == 0
    new = [bench.send(batch(0, b"new"))]
    bench.commit(through + 1)
    new.append(bench.send(batch(1, b"new")))
    bench.commit()
    assert [placed(answer).base_queue_offset for answer in new] == [0, 1]


def test_a_retry_is_answered_though_its_topic_is_being_deleted() -> None:
    """What is known of a batch comes before its place: told that there is no such topic, its
    producer would send it somewhere else, and it would be stored twice."""
    bench = Bench()
    bench.topic()
    before = bench.send(batch(0, b"stored"))
    bench.commit()
    bench.send(batch(1, b"in flight"))
    bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
    stored, in_flight = bench.send(batch(0, b"stored")), bench.send(batch(1, b"in flight"))
    assert placed(stored) == replace(placed(before), is_duplicate=True)
    assert not in_flight.done()
    assert code(bench.send(batch(2, b"new"))) == "TOPIC_NOT_FOUND"
    assert code(bench.send(batch(7, b"gap"))) == "TOPIC_NOT_FOUND"
    bench.commit()
    assert placed(in_flight).is_duplicate
    assert placed(in_flight).base_queue_offset == 1


def test_two_deletes_under_way_keep_the_topic_closed() -> None:
    """Delete, create, delete: while any delete is under way nothing is taken for the topic."""
    bench = Bench()
    bench.topic()
    delete = Command(delete_topic=DeleteTopicCommand(name="t"))
    bench.appender.submit(delete)
    bench.appender.submit(Command(create_topic=CreateTopicCommand(name="t", queue_count=1)))
    bench.appender.submit(delete)
    bench.commit(through=FIRST_TOPIC + 2)  # all but the second delete, which is still under way
    assert code(bench.send(batch(0, b"too early"))) == "TOPIC_NOT_FOUND"
    bench.commit()
    assert bench.replay().topics == bench.machine.topics == Topics()


def test_a_batch_for_a_topic_that_is_gone_is_void_and_stops_nobody() -> None:
    """Should such an entry ever be in the log, each replica skips it and its producer is told."""
    bench = Bench()
    bench.topic()
    answer = bench.send(batch(0, b"late"))
    bench.machine.topics.delete("t")
    bench.commit()
    assert code(answer) == "TOPIC_NOT_FOUND"
    assert failure(answer).traits.outcome == Outcome.DID_NOT_HAPPEN


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_topics_and_batches_replays_alike(seed: int) -> None:
    """Random creates, deletes, sends and partial commits: no violation, replicas agree, and what
    was acknowledged is where the answer said unless its topic was deleted."""
    rng = random.Random(seed)
    bench = Bench()
    for number in range(40):
        bench.register(number.to_bytes(8, "big"))
    sequence = 0
    for _ in range(60):
        roll = rng.random()
        if roll < 0.2:
            create = CreateTopicCommand(name="t", queue_count=1)
            bench.appender.submit(Command(create_topic=create))
        elif roll < 0.4:
            bench.appender.submit(Command(delete_topic=DeleteTopicCommand(name="t")))
        elif roll < 0.8:
            producer = bench.registered[sequence % len(bench.registered)]
            bench.send(batch(0, b"%d" % sequence), producer=producer)
            sequence += 1
        elif bench.log.last_index > bench.machine.applied_index:
            bench.commit(rng.randint(bench.machine.applied_index + 1, bench.log.last_index))
    if bench.log.last_index > bench.machine.applied_index:
        bench.commit()
    replica = bench.replay()
    assert replica.topics == bench.machine.topics
    assert replica.producers == bench.machine.producers
    assert bench.appender.idle


def test_a_log_that_fails_leaves_the_outcome_open() -> None:
    """The next leader knows what became of the batch: retriable, may have happened."""
    bench = Bench()
    bench.topic()
    bench.send(batch(0, b"x"))
    bench.node.turn()
    bench.disk.fail_next("fdatasync", errno.EIO)
    bench.node.sync()  # it fails, and nobody has heard of it yet
    error = failure(bench.send(batch(1, b"y")))
    assert error.code.name == "LEADERSHIP_LOST"
    assert (error.traits.is_retriable, error.traits.outcome) == (True, Outcome.MAY_HAVE_HAPPENED)


def test_a_segment_that_is_being_prepared_is_no_full_disk() -> None:
    """No room for a moment is BUSY; STORAGE_FULL is said only of a full disk."""
    bench = Bench()
    bench.topic()
    fill(bench)
    large = batch(0, bytes(MIB))
    answer = bench.send(large)
    bench.commit()
    check_left_no_trace(bench, answer, large, "BUSY")


def test_a_follower_that_rejoins_walks_no_entries() -> None:
    """Nobody waits, so a jump of the applied index costs nothing, however long the log."""
    bench = Bench()
    bench.appender.on_applied(10**15)
    assert bench.appender.idle


def test_a_replica_that_replays_the_log_holds_the_same_state() -> None:
    """Topics, offsets and sequences are a function of the log alone."""
    bench = Bench()
    bench.topic("t", 3)
    for number in range(30):
        bench.send(batch(number // 3, b"%d" % number, queue_id=number % 3))
    bench.commit()
    replica = bench.replay()
    assert replica.topics == bench.machine.topics
    assert replica.producers == bench.machine.producers
    assert replica.offsets == bench.machine.offsets


def test_properties_leave_room_for_what_a_copy_says() -> None:
    """As many as fit into a record are too many."""
    bench = Bench()
    bench.topic()

    def of_size(size: int) -> Batch:
        properties = encode_properties({"a": "v" * (size - 3)})
        record = RecordTemplate("t", ("127.0.0.1", 5555)).encode(0, b"x", properties, 1_000)
        return replace(batch(0, b"x"), records=record)

    assert code(bench.send(of_size(MAX_PROPERTIES_BYTES))) == "MESSAGE_TOO_LARGE"
    assert placed(committed(bench, of_size(MAX_SENT_PROPERTIES_BYTES)))
