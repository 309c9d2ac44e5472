"""What fake nodes answer is what real ones answer: each test asks one of both.

Most of them speak the protocol as it is, since the client refuses some of this by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

import grpc
import pytest

from dledger.client import (
    GroupStyled,
    InvalidArgument,
    Message,
    Permission,
    PushOptions,
    ReceiptExpired,
    StartFrom,
    TopicReplaced,
)
from dledger.client.blocking import BlockingClient
from dledger.testing import BlockingFakeGroup
from dledger.testing.fixtures import dledger_group
from dledger.wire import broker_pb2 as pb
from dledger.wire import consumers_pb2 as upb
from dledger.wire import deliveries_pb2 as dpb
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as gpb

__all__ = ["dledger_group"]

MODULES: Final = {"Broker": pb, "Consumers": upb, "Deliveries": dpb, "Groups": gpb}
NUMBERS: Final = count(1)
PATIENCE_S: Final = 30.0
SETTLED: Final = [dpb.Settlement(queue_id=0, base=0, mask=1, handout=1)]
LATER: Final = datetime(2090, 1, 1, tzinfo=UTC)
OWN: Final = ("%RETRY%g", "%DLQ%g")

Ask = Callable[[Any], Any]


@pytest.fixture(params=["fake", "real"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a node."""
    if request.param == "real":
        yield request.getfixturevalue("dledger_group").addresses
    else:
        with BlockingFakeGroup() as group:
            yield group.addresses


@pytest.fixture
def client(address: str) -> Iterator[BlockingClient]:
    with BlockingClient.connect(address) as client:
        yield client


@pytest.fixture
def ask(address: str) -> Iterator[Ask]:
    """Of a request the answer, or the name of the error; a new node isn't ready for all at once."""
    with grpc.insecure_channel(address) as channel:

        def ask(request: Any) -> Any:
            method = type(request).__name__.removesuffix("Request")
            service = next(
                name
                for name, module in MODULES.items()
                if method in module.DESCRIPTOR.services_by_name[name].methods_by_name
            )
            answer = vars(MODULES[service])[f"{method}Response"]
            call = channel.unary_unary(
                f"/dledger.v1.{service}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            deadline = time.monotonic() + PATIENCE_S
            while True:
                try:
                    return call(request, timeout=PATIENCE_S)
                except grpc.RpcError as error:
                    name = _name(error)
                    if name != "NOT_READY" or time.monotonic() > deadline:
                        return name
                time.sleep(0.02)

        yield ask


def _name(error: Any) -> str:
    found = dict(error.trailing_metadata() or ())
    assert "dledger-error-bin" in found, error
    return epb.ErrorCode.Name(epb.Error.FromString(found["dledger-error-bin"]).code)


def named(kind: str) -> str:
    """A name that nothing has yet."""
    return f"{kind}-{next(NUMBERS)}"


def fill(client: BlockingClient, topic: str, *bodies: bytes) -> None:
    with client.producer() as producer:
        for body in bodies:
            producer.send(topic, body, queue_id=0)


@contextmanager
def replaced(client: BlockingClient, topic: str, queues: int = 1) -> Iterator[None]:
    """The topic is deleted; within the block nothing has its name; afterwards it is made anew."""
    client.delete_topic(topic)
    yield
    client.create_topic(topic, queues=queues)


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "queues"), [("", 1), ("a b", 1), ("a.b", 1), ("x" * 128, 1), ("ok", 1_025)]
)
def test_topics_have_names_and_numbers_of_queues(ask: Ask, name: str, queues: int) -> None:
    """1 to 127 characters, 1 to 1,024 queues; nothing is made of others."""
    wish = pb.CreateTopicRequest(name=name, queue_count=queues, if_not_exists=True)
    assert ask(wish) == "INVALID_ARGUMENT"
    assert ask(pb.DescribeTopicRequest(name=name)) == "TOPIC_NOT_FOUND"


def test_widest_topic_is_made(ask: Ask) -> None:
    """With as many queues and as long a name as there may be."""
    name = named("x" * 120)[:127]
    answer = ask(pb.CreateTopicRequest(name=name, queue_count=1_024))
    assert (answer.topic.name, answer.topic.queue_count) == (name, 1_024)


def test_wishes_have_bounds(ask: Ask, client: BlockingClient) -> None:
    """Whether a topic is made with them or changed; it stays as it is."""
    name = named("t")
    before = client.create_topic(name, queues=2)
    too_long = 36_501 * 24 * 3_600_000
    for wish in (
        pb.CreateTopicRequest(name=named("t"), permission=1),
        pb.CreateTopicRequest(name=named("t"), retention_ms=too_long),
        pb.PermitTopicRequest(name=name, permission=0),
        pb.RetainTopicRequest(name=name, retention_ms=too_long),
        pb.UpdateTopicRequest(name=name, read_queues=1_025),
        pb.UpdateTopicRequest(name=name, read_queues=2, write_queues=3),
    ):
        assert ask(wish) == "INVALID_ARGUMENT", wish
    assert client.describe_topic(name).topic == before


def test_groups_have_names(ask: Ask, client: BlockingClient) -> None:
    """Whoever names one is told; a commit commits something, and nothing that isn't there."""
    topic = named("t")
    client.create_topic(topic, queues=1)
    one = [pb.QueueOffset(queue_id=0, offset=0)]
    for group in ("", "a b", "x" * 256):
        commit = pb.CommitOffsetsRequest(group=group, topic=topic, offsets=one)
        assert ask(commit) == "INVALID_ARGUMENT"
        assert ask(pb.FetchOffsetsRequest(group=group, topic=topic)) == "INVALID_ARGUMENT"
        assert (
            ask(dpb.SettleRequest(group=group, topic=topic, settled=SETTLED)) == "INVALID_ARGUMENT"
        )
    assert ask(pb.CommitOffsetsRequest(group="g", topic=topic)) == "INVALID_ARGUMENT"
    assert ask(dpb.SettleRequest(group="g", topic=topic)) == "INVALID_ARGUMENT"


# --- the brokers' own -----------------------------------------------------------------------------


@pytest.mark.parametrize("topic", OWN)
def test_brokers_own_topics_are_only_read(ask: Ask, client: BlockingClient, topic: str) -> None:
    """Nobody makes or changes them, or sends to them."""
    for wish in (
        pb.CreateTopicRequest(name=topic, queue_count=1),
        pb.RetainTopicRequest(name=topic, retention_ms=60_000),
        pb.PermitTopicRequest(name=topic, permission=4),
        pb.UpdateTopicRequest(name=topic, read_queues=2),
    ):
        assert ask(wish) == "INVALID_ARGUMENT", wish
    # What is there for a group that isn't known can go.
    assert ask(pb.DeleteTopicRequest(name=topic)) == "TOPIC_NOT_FOUND"
    id_ = ask(pb.RegisterProducerRequest(token=b"0123456" + topic.encode()[-1:])).producer_id
    batch = pb.SendBatch(topic=topic, queue_id=0, count=1, records=b"x")
    (result,) = ask(pb.SendRequest(producer_id=id_, batches=[batch])).results
    assert result.error.code == epb.INVALID_ARGUMENT
    assert topic not in {each.name for each in client.topics()}


def test_topic_of_a_group_that_is_known_stays(ask: Ask, client: BlockingClient) -> None:
    """One that is there for its dead letters, say."""
    topic, group = named("t"), named("g")
    own = f"%DLQ%{group}"
    client.create_topic(topic, queues=1)
    fill(client, topic, b"1")
    with client.simple_consumer(topic, group=group, max_attempts=1, invisible_s=1) as worker:
        for _ in range(50):
            worker.receive(1, wait_s=0.3)
            if own in {each.name for each in client.topics()}:
                break
    assert ask(pb.DeleteTopicRequest(name=own)) == "GROUP_EXISTS"
    assert own in {each.name for each in client.topics()}


@pytest.mark.parametrize("topic", OWN)
def test_client_is_told_of_brokers_own_topics(client: BlockingClient, topic: str) -> None:
    """By the error of whoever does it."""
    with pytest.raises(InvalidArgument, match="own"):
        client.create_topic(topic, queues=1)


# --- committed offsets ----------------------------------------------------------------------------


def test_offsets_are_committed_where_messages_are(ask: Ask, client: BlockingClient) -> None:
    """In a topic and a queue that are there, to the end of it at most: all of them, or none."""
    topic, group = named("t"), named("g")
    client.create_topic(topic, queues=2)
    fill(client, topic, b"1", b"2")

    def commit(at: str, **offsets: int) -> Any:
        wanted = [pb.QueueOffset(queue_id=int(q[1:]), offset=o) for q, o in offsets.items()]
        return ask(pb.CommitOffsetsRequest(group=group, topic=at, offsets=wanted))

    assert commit(topic, q0=3) == "OFFSET_OUT_OF_RANGE"
    assert commit(topic, q0=1, q1=1) == "OFFSET_OUT_OF_RANGE"
    assert commit(topic, q0=1, q2=0) == "QUEUE_NOT_FOUND"
    assert client.fetch_offsets(group, topic) == {}
    nowhere = named("t")
    assert commit(nowhere, q0=0) == "TOPIC_NOT_FOUND"
    assert ask(pb.FetchOffsetsRequest(group=group, topic=nowhere)) == "TOPIC_NOT_FOUND"
    assert [tuple((e.queue_id, e.offset) for e in commit(topic, q0=2, q1=0).offsets)] == [
        ((0, 2), (1, 0))
    ]


def test_single_messages_are_where_they_are(ask: Ask, client: BlockingClient) -> None:
    """At the end there is none; beyond it there is no place; an id has its form."""
    topic = named("t")
    client.create_topic(topic, queues=1)
    fill(client, topic, b"1")

    def at(offset: int) -> Any:
        position = pb.QueuePosition(topic=topic, queue_id=0, offset=offset)
        return ask(pb.GetMessageRequest(position=position))

    assert b"1" in at(0).record
    assert (at(1), at(2), at(-1)) == ("MESSAGE_NOT_FOUND", *["OFFSET_OUT_OF_RANGE"] * 2)
    assert ask(pb.GetMessageRequest(message_id="none")) == "INVALID_ARGUMENT"
    assert ask(pb.GetMessageRequest(message_id="0" * 32)) == "MESSAGE_NOT_FOUND"


@pytest.mark.parametrize("in_order", [False, True])
def test_groups_of_single_messages_are_told_of(client: BlockingClient, in_order: bool) -> None:
    """Their style, what is in hand, and what is finished above a message that isn't; they aren't
    moved yet."""
    topic, group = named("t"), named("g")
    client.create_topic(topic, queues=2)
    fill(client, topic, b"1", b"2", b"3", b"4")
    with client.simple_consumer(topic, group, start=StartFrom.FIRST, in_order=in_order) as consumer:
        jobs = consumer.receive(3)
        for job in jobs[1:] if not in_order else jobs[:1]:
            job.ack()
        found = client.consumer_groups.describe(group)
        assert (found.group.singles, found.group.in_order) == (True, in_order)
        assert not found.group.joined
        (queue,) = (each for each in found.queues if each.queue_id == 0)
        told = (queue.committed or 0, queue.finished, queue.lag, queue.in_hand)
        assert told == ((1, 0, 3, 2) if in_order else (0, 2, 2, 1))
        assert queue.oldest_unfinished_ms
        assert group in [each.name for each in client.consumer_groups.list() if each.singles]
        with pytest.raises(GroupStyled):
            client.consumer_groups.skip(group, topic)


# --- topics of the same name ----------------------------------------------------------------------


def test_whoever_means_a_former_topic_is_told(ask: Ask, client: BlockingClient) -> None:
    """Whatever is asked of it. Whoever means none in particular is given the present one."""
    topic, group = named("t"), named("g")
    client.create_topic(topic, queues=1)
    fill(client, topic, b"old", b"old")
    former = ask(pb.DescribeTopicRequest(name=topic)).topic.incarnation
    with replaced(client, topic):
        pass
    now = ask(pb.DescribeTopicRequest(name=topic)).topic.incarnation
    assert 0 < former < now
    offsets = [pb.QueueOffset(queue_id=0, offset=0)]
    of_topic: dict[str, Any] = {"name": topic, "incarnation": former}
    in_queue: dict[str, Any] = {"topic": topic, "queue_id": 0, "topic_incarnation": former}
    of_group: dict[str, Any] = {"group": group, "topic": topic, "topic_incarnation": former}
    receive: dict[str, Any] = {"attempt_id": b"1" * 8, "hidden_ms": 1_000}
    for request in (
        pb.DescribeTopicRequest(**of_topic),
        pb.MeasureTopicRequest(**of_topic),
        pb.RetainTopicRequest(**of_topic, retention_ms=60_000),
        pb.PermitTopicRequest(**of_topic, permission=4),
        pb.UpdateTopicRequest(**of_topic, read_queues=2),
        pb.DeleteTopicRequest(**of_topic),
        pb.PullRequest(**in_queue, offset=0, hold_ms=0),
        pb.GetQueueOffsetsRequest(**in_queue),
        pb.GetOffsetByTimeRequest(**in_queue),
        pb.GetMessageRequest(position=pb.QueuePosition(**in_queue, offset=0)),
        pb.CommitOffsetsRequest(**of_group, offsets=offsets),
        pb.FetchOffsetsRequest(**of_group),
        dpb.ReceiveRequest(**of_group, **receive),
        dpb.SettleRequest(**of_group, settled=SETTLED),
    ):
        assert ask(request) == "TOPIC_REPLACED", request
    in_queue["topic_incarnation"] = now
    assert ask(pb.PullRequest(**in_queue, offset=0, hold_ms=0)).topic_incarnation == now
    anybody = gpb.QueuePull(**in_queue | {"topic_incarnation": 0})
    several = gpb.PullQueuesRequest(queues=[anybody], hold_ms=0)
    assert list(ask(several).queues) == []
    several.queues[0].topic_incarnation = former
    assert ask(several).queues[0].error.code == epb.TOPIC_REPLACED


def test_batch_for_a_former_topic_is_not_stored(client: BlockingClient) -> None:
    """Its sender had read which topic it means."""
    topic = named("t")
    client.create_topic(topic, queues=1)
    with client.producer() as producer:
        producer.send(topic, b"old", queue_id=0).result()
        with replaced(client, topic):
            pass
        with pytest.raises(TopicReplaced):
            producer.send(topic, b"late", queue_id=0).result()
        producer.send(topic, b"new", queue_id=0).result()
    assert [each.body for each in client.pull(topic, 0, 0).messages] == [b"new"]


def test_topic_leaves_nothing_to_its_successor(client: BlockingClient) -> None:
    """No permission, no retention, no queues that are closed, no offsets."""
    topic, group = named("t"), named("g")
    client.create_topic(topic, queues=2, retention_hours=3)
    fill(client, topic, b"1")
    client.commit_offsets(group, topic, {0: 1})
    client.update_topic(topic, write_queues=1)
    client.permit_topic(topic, Permission.READ)
    with replaced(client, topic, queues=2):
        pass
    assert client.fetch_offsets(group, topic) == {}
    found = client.describe_topic(topic)
    assert not found.groups
    assert (found.topic.retention_hours, found.topic.permission) == (0, Permission.READ_WRITE)
    assert found.topic.write_queues == 2
    with client.producer() as producer:
        assert producer.send(topic, b"x", queue_id=1).result().queue_offset == 0


def test_groups_begin_anew_in_a_topic_made_anew(client: BlockingClient) -> None:
    """They were at offset 3 of the former one."""
    topic, group = named("t"), named("g")
    client.create_topic(topic, queues=1)
    fill(client, topic, b"1", b"2", b"3")

    def read() -> list[bytes]:
        with client.pull_consumer(topic, group=group, idle_timeout_s=0.5) as consumer:
            return [each.body for each in consumer]

    assert read() == [b"1", b"2", b"3"]
    with replaced(client, topic):
        pass
    fill(client, topic, b"4", b"5", b"6", b"7")
    assert read() == [b"4", b"5", b"6", b"7"]


def test_workers_begin_anew_in_a_topic_made_anew(client: BlockingClient) -> None:
    """What they have in hand of the former one is nothing here."""
    topic, group = named("t"), named("g")
    client.create_topic(topic, queues=1)
    fill(client, topic, b"1", b"2")
    worker = client.simple_consumer(topic, group)
    (delivery,) = worker.receive()
    with replaced(client, topic):
        pass
    fill(client, topic, b"3")
    with pytest.raises((ReceiptExpired, TopicReplaced)):
        delivery.ack()
    assert [each.message.body for each in worker.receive()] == [b"3"]
    worker.close()


def test_held_calls_end_with_the_topic(ask: Ask, client: BlockingClient) -> None:
    """Whoever waits for messages of it is told that it is gone; or that it is another one by then,
    of which nobody who waited is given anything."""
    topic = named("t")
    client.create_topic(topic, queues=1)
    held_ms = 15_000
    calls = [
        pb.PullRequest(topic=topic, queue_id=0, offset=0, hold_ms=held_ms),
        dpb.ReceiveRequest(
            group=named("g"), topic=topic, attempt_id=b"1" * 8, hidden_ms=1_000, hold_ms=held_ms
        ),
    ]
    started = time.monotonic()
    with ThreadPoolExecutor(len(calls)) as threads:
        told = [threads.submit(ask, call) for call in calls]
        time.sleep(0.3)
        with replaced(client, topic):
            pass
        fill(client, topic, b"new")
        assert {each.result() for each in told} <= {"TOPIC_NOT_FOUND", "TOPIC_REPLACED"}
    assert time.monotonic() - started < held_ms / 1_000


def test_members_at_work_go_on_in_a_topic_made_anew(client: BlockingClient) -> None:
    """From its first message on; what was committed in the former one isn't taken for theirs."""
    topic, group, bodies = named("t"), named("g"), [b"1", b"2", b"3"]
    client.create_topic(topic, queues=1)
    fill(client, topic, *bodies)
    service = client.push_consumer(group)
    seen: list[bytes] = []
    former, latter = threading.Event(), threading.Event()

    @service.on(topic)
    def handle(message: Message) -> None:
        seen.append(message.body)
        if event := {3: former, 7: latter}.get(len(seen)):
            event.set()

    running = threading.Thread(target=service.run)
    running.start()
    try:
        assert former.wait(PATIENCE_S)
        with replaced(client, topic):
            pass
        fill(client, topic, b"4", b"5", b"6", b"7")
        assert latter.wait(PATIENCE_S)
    finally:
        service.stop()
        running.join()
    assert sorted(seen) == [b"%d" % number for number in range(1, 8)]
    assert client.fetch_offsets(group, topic) == {0: 4}


@pytest.mark.parametrize("start", [StartFrom.LAST, LATER])
def test_groups_miss_nothing_of_a_topic_made_after_them(
    client: BlockingClient, start: StartFrom | datetime
) -> None:
    """Where they wish to start is of topics that are older than they are."""
    old, made_anew, group = named("t"), named("t"), named("g")
    for topic in (old, made_anew):
        client.create_topic(topic, queues=1)
        fill(client, topic, b"before")

    def work(bodies: set[bytes], began: Callable[[], None]) -> None:
        """Until all of them were handled, and nothing else was."""
        service = client.push_consumer(group, PushOptions(start=start))
        seen: list[bytes] = []
        done = threading.Event()

        @service.on(old)
        @service.on(made_anew)
        def handle(message: Message) -> None:
            seen.append(message.body)
            if bodies <= set(seen):
                done.set()

        running = threading.Thread(target=service.run)
        running.start()
        try:
            began()
            assert done.wait(PATIENCE_S), seen
        finally:
            service.stop()
            running.join()
        assert set(seen) == bodies

    def began() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not all(client.fetch_offsets(group, topic) for topic in (old, made_anew)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        fill(client, old, b"1")

    work({b"1"}, began)
    with replaced(client, made_anew):
        pass
    fill(client, made_anew, b"2", b"3")
    work({b"2", b"3"}, lambda: None)


def test_style_of_a_group_goes_with_its_only_topic(client: BlockingClient) -> None:
    """It may read queues of another one then."""
    topic, other, group = named("t"), named("t"), named("g")
    for name in (topic, other):
        client.create_topic(name, queues=1)
        fill(client, name, b"1")
    with client.simple_consumer(topic, group) as worker:
        (delivery,) = worker.receive()
        delivery.ack()
    with pytest.raises(GroupStyled):
        client.commit_offsets(group, other, {0: 1})
    client.delete_topic(topic)
    assert client.commit_offsets(group, other, {0: 1}) == {0: 1}
