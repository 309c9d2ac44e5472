"""What is known of a batch that began before: late intents, and those that are kept no longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("pyspark", reason="pyspark isn't installed: pip install '.[audit]'")

from dledger.client.blocking import BlockingClient
from dledger.records.marks import mark_of
from dledger.spark import BadOption, sending
from dledger.spark.brokers import Access, Brokers
from dledger.spark.errors import WriteRefused
from dledger.spark.progress import QUEUE, Intent, Over, TopicIntent, decode
from dledger.spark.sink import Writing, commit_batch
from dledger.testing import BlockingFakeGroup
from dledger.wire import broker_pb2 as pb
from tests.spark.group import fill
from tests.spark.test_sink import BODIES, Killed, killing, write


@pytest.fixture
def group() -> Iterator[BlockingFakeGroup]:
    with BlockingFakeGroup() as made:
        yield made


@pytest.fixture
def writing(group: BlockingFakeGroup, monkeypatch: pytest.MonkeyPatch) -> Writing:
    """Of a new query into a new topic of one queue; sends are cut small."""
    monkeypatch.setattr(sending, "MAX_BATCH_RECORDS", 8)
    access = Access.of({"bootstrap": group.addresses, "timeoutSeconds": "20"})
    return Writing(access, group.topic(), f"q-{os.urandom(4).hex()}", 0, "rows")


def let_go(group: BlockingFakeGroup, writing: Writing, kept: int = 0) -> None:
    """Retention takes all intents but the last `kept`."""
    (queue,) = group._group.model.topics[writing.progress_topic]
    queue.min_offset = len(queue.records) - kept


def forget_groups(group: BlockingFakeGroup) -> None:
    """The brokers know no consumer group any more, as nobody has used one for long: those of the
    release before forgot marks, too."""
    group._group.model.offsets.clear()


def woken(partition: int, version: int = 2) -> bytes:
    """What an attempt of the first batch writes down late; the release before had version 1."""
    intent = Intent(0, partition, "", {"t": TopicIntent(1, {0: (0, 1)}, "", write_queues=1)})
    return intent.encode().replace(b'"version": 2', b'"version": %d' % version)


def begun(
    writing: Writing, bodies: list[bytes], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch's task is killed when a part of its rows is stored."""
    live = killing(monkeypatch, 3, before=False)
    with pytest.raises(Killed):
        write(writing, bodies, batch=batch)
    live()


@pytest.mark.parametrize("is_committed", [True, False])
def test_late_intent_of_an_earlier_batch_hides_nothing(
    group: BlockingFakeGroup,
    writing: Writing,
    is_committed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An attempt that outlived its batch, of a partition that there is no longer, writes it behind
    those of the batch at hand; which is repeated, and stored once."""
    done = write(writing, BODIES[:3])
    if is_committed:
        commit_batch([done])
    begun(writing, BODIES[3:], 1, monkeypatch)
    late = Intent(0, 7, "", {}).encode()
    fill(group.addresses, writing.progress_topic, QUEUE, [late])
    done = write(writing, BODIES[3:], batch=1)
    assert done.stored_before == 16
    commit_batch([done])
    assert group.bodies(writing.topic, 0) == BODIES


def test_late_attempt_of_a_batch_that_is_over_stores_nothing(
    group: BlockingFakeGroup, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition is there no longer, so that nobody takes its name over. It hears of the end of
    its batch when its intent is written, before its first row is sent."""
    send, others = Brokers.send, [BODIES]

    def sent(self: Brokers, producer: bytes, parts: list[pb.SendBatch]) -> list[pb.SendResult]:
        if others:
            commit_batch([write(writing, others.pop())])
        return send(self, producer, parts)

    monkeypatch.setattr(Brokers, "send", sent)
    with pytest.raises(WriteRefused, match="batch 0 was committed without this attempt"):
        write(writing, BODIES, partition=7)
    assert group.bodies(writing.topic, 0) == BODIES


def test_intent_that_is_written_while_its_batch_is_committed_is_told_of(
    group: BlockingFakeGroup, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the first look of the commit, and before the word that the batch is over."""
    done = write(writing, BODIES)
    send, late = Brokers.send, [Intent(0, 7, "", {}).encode()]

    def sent(self: Brokers, producer: bytes, parts: list[pb.SendBatch]) -> list[pb.SendResult]:
        if late:
            fill(group.addresses, writing.progress_topic, QUEUE, [late.pop()])
        return send(self, producer, parts)

    monkeypatch.setattr(Brokers, "send", sent)
    with pytest.raises(WriteRefused, match=r"partitions \[7\], which this one doesn't have"):
        commit_batch([done])


def test_partition_that_had_no_rows_in_a_committed_batch_gets_none(
    group: BlockingFakeGroup, writing: Writing
) -> None:
    """A batch that is written again has the partitions that it had."""
    commit_batch([write(writing, BODIES)])
    with pytest.raises(WriteRefused, match="partition 1 had no rows then"):
        write(writing, BODIES, partition=1)
    commit_batch([write(writing, BODIES), write(writing, [], partition=1)])
    assert group.bodies(writing.topic, 0) == BODIES


def test_commit_of_a_batch_that_is_over_is_refused(writing: Writing) -> None:
    """A driver that outlived its query says nothing that others would believe."""
    first = write(writing, BODIES[:3])
    write(writing, BODIES[3:], batch=1)
    with pytest.raises(WriteRefused, match="batch 0 is over: batch 1 has begun"):
        commit_batch([first])


def test_commit_of_rows_whose_intents_are_gone_is_refused(
    group: BlockingFakeGroup, writing: Writing
) -> None:
    """Somebody deleted their topic: partitions that began and were given up might be forgotten. A
    batch without any row has none, and never had."""
    commit_batch([write(writing, []), write(writing, [], partition=1)])
    both = [write(writing, BODIES), write(writing, [], partition=1)]
    with BlockingClient.connect(group.addresses) as client:
        client.delete_topic(writing.progress_topic)
    with pytest.raises(WriteRefused, match="nothing tells whether other partitions had begun"):
        commit_batch(both)


def test_commit_of_rows_whose_intents_are_gone_is_refused_though_others_have_theirs(
    group: BlockingFakeGroup, writing: Writing
) -> None:
    """A task that began behind the deletion made the topic anew."""
    commit_batch([write(writing, []), write(writing, [], partition=1)])
    first = write(writing, BODIES)
    with BlockingClient.connect(group.addresses) as client:
        client.delete_topic(writing.progress_topic)
    second = write(writing, BODIES, partition=1)
    with pytest.raises(WriteRefused, match=r"intents of partitions \[0\] of batch 0 are gone"):
        commit_batch([first, second])


@pytest.mark.parametrize("earlier", [0, 1])
def test_batch_whose_intent_is_kept_no_longer_isnt_written_again(
    group: BlockingFakeGroup, writing: Writing, earlier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of it is stored, and nothing says how much; whoever knows better says so."""
    for batch in range(earlier):
        commit_batch([write(writing, BODIES[:3], batch=batch)])
    begun(writing, BODIES[3:], earlier, monkeypatch)
    there = group.bodies(writing.topic, 0)
    let_go(group, writing)
    with pytest.raises(WriteRefused, match="nobody knows whether its rows are stored"):
        write(writing, BODIES[3:], batch=earlier)
    assert group.bodies(writing.topic, 0) == there
    lenient = replace(writing, fails_on_lost=False)
    assert write(lenient, BODIES[3:], batch=earlier).stored_before == 0


def test_batch_that_is_written_again_after_its_intents_have_gone_is_refused(
    group: BlockingFakeGroup, writing: Writing
) -> None:
    """A program that is run again a month later: it was all stored, and would be twice."""
    for batch in (5, 7):
        commit_batch([write(writing, BODIES[:3], batch=batch)])
    let_go(group, writing)
    with pytest.raises(WriteRefused, match="of batch 7 may lie before"):
        write(writing, BODIES[:3], batch=7)


@pytest.mark.parametrize("step", [1, 7, 100, 3600, 86_400, 604_800])
def test_query_that_rested_goes_on(group: BlockingFakeGroup, writing: Writing, step: int) -> None:
    """All intents have gone, and all of them were of batches that are over; however a user numbers
    them, and in partitions that had no rows for long."""
    for batch in range(4):
        commit_batch([write(writing, BODIES[:3], partition=batch % 2, batch=step * batch)])
        let_go(group, writing)
    commit_batch([write(writing, [], batch=step * 4)])
    let_go(group, writing)
    commit_batch([write(writing, BODIES[:3], partition=2, batch=step * 5)])
    assert group.bodies(writing.topic, 0) == BODIES[:3] * 5


def test_task_that_never_began_isnt_held_up_by_what_others_intents_were(
    group: BlockingFakeGroup, writing: Writing
) -> None:
    """The first batch is long, and retention takes its intents while it runs. A partition whose
    producer has never stored an intent has none there; one that did may."""
    write(writing, BODIES[:3])
    let_go(group, writing)
    write(writing, BODIES[3:5], partition=1)
    let_go(group, writing)
    with pytest.raises(WriteRefused, match="nobody knows whether its rows are stored"):
        write(writing, BODIES[:3])
    assert group.bodies(writing.topic, 0) == BODIES[:5]


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_batch_that_was_committed_is_given_no_new_partition_when_its_intents_have_gone(
    group: BlockingFakeGroup, writing: Writing, *, is_forgotten: bool
) -> None:
    """The program is run again a month later, and its rows are cut otherwise; or the brokers know
    none of its producers any more. Who has no numbers may be new, or not."""
    commit_batch([write(writing, BODIES[:3]), write(writing, BODIES[3:5], partition=1)])
    let_go(group, writing)
    if is_forgotten:
        group._group.model.forget()
    with pytest.raises(WriteRefused, match="nobody knows whether its rows are stored"):
        write(writing, BODIES[4:5], partition=1 if is_forgotten else 2)
    assert group.bodies(writing.topic, 0) == BODIES[:5]


@pytest.mark.parametrize("strict", [True, False])
def test_stream_hears_that_its_batch_was_committed_whose_intents_have_gone(
    group: BlockingFakeGroup, writing: Writing, strict: bool
) -> None:
    """Its driver died before Spark knew, and was away for long. The batch's own mark says so; in
    batches without rows it stays where it is, and says nothing."""
    stream = replace(writing, is_stream=True, fails_on_lost=strict)
    for batch in range(14):
        commit_batch([write(stream, BODIES[batch : batch + 1], batch=batch)])
    let_go(group, writing)
    with pytest.raises(WriteRefused, match="batch 13 is committed, and its rows are stored"):
        write(stream, BODIES[13:14], batch=13)
    for batch in range(14, 27):
        commit_batch([write(stream, [], batch=batch)])
    commit_batch([write(stream, BODIES[14:15], batch=27)])
    assert group.bodies(writing.topic, 0) == BODIES[:15]


@pytest.mark.parametrize("strict", [True, False])
def test_committed_batch_of_which_only_the_end_is_kept_is_said_to_be_committed(
    group: BlockingFakeGroup, writing: Writing, strict: bool
) -> None:
    """The partition had rows, and retention took its intent: nobody says that it had none."""
    commit_batch([write(writing, BODIES)])
    let_go(group, writing, kept=1)
    with pytest.raises(WriteRefused, match="batch 0 is committed, and its rows are stored"):
        write(replace(writing, fails_on_lost=strict), BODIES)
    assert group.bodies(writing.topic, 0) == BODIES


def test_others_late_intent_doesnt_say_that_ones_own_are_kept(
    group: BlockingFakeGroup, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a partition that there is no longer, behind what retention took."""
    commit_batch([write(writing, BODIES[:3])])
    begun(writing, BODIES[3:], 1, monkeypatch)
    fill(group.addresses, writing.progress_topic, QUEUE, [Intent(0, 7, "", {}).encode()])
    let_go(group, writing, kept=1)
    with pytest.raises(WriteRefused, match="nobody knows whether its rows are stored"):
        write(writing, BODIES[3:], batch=1)


@pytest.mark.parametrize("version", [1, 2])
def test_late_intent_of_an_own_partition_hides_none_that_is_lost(
    group: BlockingFakeGroup, writing: Writing, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt of a batch began with a partition that the second lacks; between them an
    attempt of the batch before wakes up, whose partition nobody had registered since."""
    commit_batch([write(writing, BODIES[:3], partition=3)])
    live = killing(monkeypatch, 3, before=False)
    with pytest.raises(Killed):
        write(writing, BODIES[3:], partition=7, batch=1)
    live()
    fill(group.addresses, writing.progress_topic, QUEUE, [woken(3, version)])
    with pytest.raises(WriteRefused, match=r"partitions \[7\], which this one doesn't have"):
        commit_batch([write(writing, BODIES[3:], partition=3, batch=1)])


def test_late_intent_of_an_own_partition_hides_no_later_batch(
    group: BlockingFakeGroup, writing: Writing
) -> None:
    """Two attempts have outlived their batches; the second finds the first's intent in front."""
    for batch in range(3):
        commit_batch([write(writing, BODIES[batch : batch + 1], batch=batch)])
    fill(group.addresses, writing.progress_topic, QUEUE, [woken(4)])
    with pytest.raises(WriteRefused, match="batch 1 is over: batch 2 has begun"):
        write(writing, BODIES, partition=4, batch=1)
    assert group.bodies(writing.topic, 0) == BODIES[:3]


def test_query_of_the_release_before_goes_on(group: BlockingFakeGroup, writing: Writing) -> None:
    """Nothing says that its batches are over, and its oldest intents have gone."""
    for batch in range(3):
        write(writing, BODIES[:3], batch=batch)
    fill(group.addresses, writing.progress_topic, QUEUE, [woken(0, version=1)])
    let_go(group, writing, kept=1)
    forget_groups(group)
    write(writing, BODIES[:3], partition=1, batch=3)
    assert group.bodies(writing.topic, 0) == BODIES[:3] * 4


@pytest.mark.parametrize("are_forgotten", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_stream_whose_marks_have_gone_takes_no_batch_for_new(
    group: BlockingFakeGroup, writing: Writing, *, strict: bool, are_forgotten: bool
) -> None:
    """Its driver died before Spark knew that the batch was committed, and was away for so long that
    intents, groups and perhaps producers have gone: nothing says anything of the batch."""
    stream = replace(writing, is_stream=True, fails_on_lost=strict)
    for batch in range(3):
        commit_batch([write(stream, BODIES[batch : batch + 1], batch=batch)])
    let_go(group, writing)
    forget_groups(group)
    if are_forgotten:
        group._group.model.forget()
    with pytest.raises(WriteRefused, match="which say what batches are over, are gone"):
        write(stream, BODIES[2:3], batch=2)
    assert group.bodies(writing.topic, 0) == BODIES[:3]
    knows = replace(stream, fails_on_lost_marks=False)
    for batch in (3, 4):  # That the third one was committed, Spark has noted by now.
        commit_batch([write(knows, BODIES[batch : batch + 1], batch=batch)])
        knows = stream
        let_go(group, writing)
    assert group.bodies(writing.topic, 0) == BODIES[:5]


def test_late_intent_is_no_mark(group: BlockingFakeGroup, writing: Writing) -> None:
    """An attempt that outlived its batch says nothing of what groups said that are gone."""
    commit_batch([write(writing, BODIES[:3])])
    commit_batch([write(writing, BODIES[3:], batch=1)])
    fill(group.addresses, writing.progress_topic, QUEUE, [woken(7)])
    let_go(group, writing, kept=1)
    forget_groups(group)
    with pytest.raises(WriteRefused, match="nobody knows whether batch 1 is stored"):
        write(writing, BODIES[3:], batch=1)
    assert group.bodies(writing.topic, 0) == BODIES


def test_mark_is_set_before_the_first_intent(
    group: BlockingFakeGroup, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a first batch that is long looked like one whose marks have gone."""
    seen: list[bool] = []
    send = Brokers.send

    def sent(self: Brokers, producer: bytes, parts: list[pb.SendBatch]) -> list[pb.SendResult]:
        mark = mark_of(writing.progress_topic, 0)
        seen.append((mark, writing.progress_topic) in group._group.model.offsets)
        return send(self, producer, parts)

    monkeypatch.setattr(Brokers, "send", sent)
    write(writing, BODIES[:3])
    assert seen
    assert all(seen)


def test_look_back_ends_at_the_batch_before(
    group: BlockingFakeGroup, writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new partition has no intent to meet; it doesn't read the topic to its start."""
    for batch in range(5):
        commit_batch([write(writing, BODIES[:1], batch=batch)])
    asked: list[int] = []
    pull = Brokers.pull

    def pulled(
        self: Brokers, topic: str, incarnation: int, queue_id: int, offset: int, limit: int
    ) -> pb.PullResponse:
        asked.append(offset)
        return pull(self, topic, incarnation, queue_id, offset, limit)

    monkeypatch.setattr(Brokers, "pull", pulled)
    monkeypatch.setattr("dledger.spark.progress._PAGE", 1)
    write(writing, BODIES[:1], partition=1, batch=5)
    assert min(asked) >= 8


def test_what_is_written_down_is_read_back() -> None:
    """And nothing else is taken for it."""
    over = Over(3, 17)
    assert decode(over.encode(), "p/0 at 1") == over
    for body in (b"", b"[]", b'{"version": 2, "over": "x", "through": 1}', b'{"version": 3}'):
        with pytest.raises(WriteRefused, match="p/0 at 1 is no intent of a sink"):
            decode(body, "p/0 at 1")
    assert mark_of("q-progress", 12) == "q-progress-1"


def test_option_is_true_or_false() -> None:
    """Refused by name."""
    options = {"bootstrap": "127.0.0.1:1", "topic": "a"}
    assert Writing.of(options).fails_on_lost
    assert not Writing.of(options | {"failOnLostIntents": "false"}).fails_on_lost
    assert Writing.of(options).fails_on_lost_marks
    assert not Writing.of(options | {"failOnLostMarks": "false"}).fails_on_lost_marks
    with pytest.raises(BadOption, match="failOnLostIntents is 'maybe'"):
        Writing.of(options | {"failOnLostIntents": "maybe"})
