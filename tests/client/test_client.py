"""The client's verbs against a group of fake nodes: answers, errors, what is repeated."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from tenacity import RetryCallState

from dledger.client import (
    BrokerGroupUnreachable,
    Busy,
    Client,
    ClientClosed,
    ClientError,
    ClientOptions,
    DeadlineExceeded,
    InvalidArgument,
    LeadershipLost,
    MessageNotFound,
    OffsetOutOfRange,
    Outcome,
    Permission,
    QueueNotFound,
    QueueOffsets,
    QueueStats,
    RecordCorrupt,
    ServerError,
    TopicExists,
    TopicNotFound,
    TopicNotReadable,
    TopicNotWritable,
    TopicReplaced,
    Unavailable,
    WrongBrokerGroup,
    broker_group,
)
from dledger.testing.fake_nodes import FakeGroup, FakeNode
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2 as epb
from tests.client.hearing import leaderless
from tests.client.loops import async_test

QUICK = ClientOptions(presume_after_s=0.02, status_timeout_s=0.5)


@asynccontextmanager
async def connected(nodes: int = 3) -> AsyncIterator[tuple[FakeGroup, Client]]:
    """A group and a client that knows all its nodes."""
    async with (
        FakeGroup(nodes) as group,
        Client.connect(group.bootstrap, options=QUICK) as client,
    ):
        yield group, client


@contextmanager
def closed_port() -> Iterator[str]:
    """An address that refuses connections: bound, so nobody else gets it, and not listening."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


class LosingAnswers:
    """Answers of the first calls of a method are lost after the call took effect."""

    def __init__(self, method: str, count: int = 1) -> None:
        self.method = method
        self.left = count

    async def __call__(self, method: str, node: FakeNode, request: Any) -> None:
        if method == self.method and self.left:
            self.left -= 1
            raise Refusal(wire_error(epb.LEADERSHIP_LOST))


# --- verbs ----------------------------------------------------------------------------------------


@async_test
async def test_topics_are_created_listed_described_and_deleted() -> None:
    """The whole life of a topic."""
    async with connected() as (_, client):
        created = await client.create_topic("t", queues=3)
        assert (created.name, created.queue_count) == ("t", 3)
        assert [topic.name for topic in await client.topics()] == ["t"]
        await client.commit_offsets("g", "t", {1: 0})
        described = await client.describe_topic("t")
        assert [queue.queue_id for queue in described.queues] == [0, 1, 2]
        assert described.groups == {"g": {1: 0}}
        await client.delete_topic("t")
        assert await client.topics() == []
        with pytest.raises(TopicNotFound):
            await client.describe_topic("t")


@async_test
async def test_topics_and_groups_that_fill_pages_are_all_told() -> None:
    """Nobody who asks sees the pages."""
    async with connected() as (group, client):
        names = await paged(group, client)
        assert [topic.name for topic in await client.topics()] == names
        described = await client.describe_topic("t0")
        assert list(described.groups) == [f"g-{name}" for name in names]


async def paged(group: FakeGroup, client: Client) -> list[str]:
    """Topics, and of the first one as many groups, in pages of two."""
    group.page_size = 2
    names = [f"t{number}" for number in range(5)]
    for name in names:
        await client.create_topic(name, queues=1)
        await client.commit_offsets(f"g-{name}", "t0", {0: 0})
    return names


def altering_pages(group: FakeGroup, alter: Callable[[pb.Topic, int], None]) -> list[str]:
    """What topics are told to be is altered, by the number of the page; the pages' tokens."""
    plain, tokens = group.topics.on_DescribeTopic, list[str]()

    async def describe(node: object, request: pb.DescribeTopicRequest) -> pb.DescribeTopicResponse:
        answer = await plain(node, request)
        alter(answer.topic, len(tokens))
        tokens.append(request.page_token)
        return answer

    group.topics.on_DescribeTopic = describe  # type: ignore[method-assign]
    return tokens


@async_test
async def test_groups_of_a_topic_that_changes_between_two_pages_are_all_told() -> None:
    """It is the same topic, whatever is wished of it by then."""
    async with connected() as (group, client):
        names = await paged(group, client)
        altering_pages(group, lambda topic, page: setattr(topic, "retention_ms", 3_600_000 * page))
        described = await client.describe_topic("t0")
        assert list(described.groups) == [f"g-{name}" for name in names]
        assert described.topic.retention_hours == 2  # as it was in the end


@pytest.mark.parametrize("field", ["incarnation", "created_time_ms"])
def test_topic_that_is_made_anew_between_two_pages_is_described_from_the_first(field: str) -> None:
    """Groups of the former one are no groups of it, and its own may have names before those. Made
    anew during each look it isn't described for ever."""

    @async_test
    async def scenario() -> None:
        async with connected() as (group, client):
            names = await paged(group, client)
            tokens = altering_pages(group, lambda topic, page: setattr(topic, field, min(page, 1)))
            described = await client.describe_topic("t0")
            assert list(described.groups) == [f"g-{name}" for name in names]
            assert tokens == ["", "g-t1", "", "g-t1", "g-t3"]
            altering_pages(group, lambda topic, page: setattr(topic, field, page))
            with pytest.raises(TopicReplaced, match="at each look"):
                await client.describe_topic("t0")

    scenario()


@async_test
async def test_topic_that_exists_is_an_error_unless_said_otherwise() -> None:
    """And even then only with as many queues."""
    async with connected() as (_, client):
        await client.create_topic("t", queues=3)
        with pytest.raises(TopicExists) as caught:
            await client.create_topic("t", queues=3)
        assert (caught.value.retriable, caught.value.outcome) == (False, Outcome.DID_NOT_HAPPEN)
        assert (await client.create_topic("t", queues=3, if_not_exists=True)).queue_count == 3
        with pytest.raises(TopicExists):
            await client.create_topic("t", queues=4, if_not_exists=True)


@async_test
async def test_offsets_of_queues_and_groups() -> None:
    """Bounds, by time, committed, reset."""
    async with connected() as (_, client):
        await client.create_topic("t", queues=1)
        async with client.producer() as producer:
            stored = [await producer.send("t", b"x") for _ in range(3)]
        assert await client.queue_offsets("t", 0) == QueueOffsets(0, 3)
        assert await client.offset_by_time("t", 0, stored[1].store_time_ms) == 1
        assert await client.offset_by_time("t", 0, stored[2].store_time_ms + 1) == 3
        assert await client.fetch_offsets("g", "t") == {}
        assert await client.commit_offsets("g", "t", {0: 2}) == {0: 2}
        assert await client.commit_offsets("g", "t", {0: 1}) == {0: 2}
        assert await client.commit_offsets("g", "t", {0: 1}, reset=True) == {0: 1}
        assert await client.fetch_offsets("g", "t") == {0: 1}
        with pytest.raises(QueueNotFound):
            await client.queue_offsets("t", 1)


@async_test
async def test_pull_gives_messages_within_its_bounds() -> None:
    """By count, by bytes, from the middle, from outside."""
    async with connected() as (_, client):
        await client.create_topic("t", queues=1)
        async with client.producer() as producer:
            await asyncio.gather(*(producer.send("t", b"%d" % n) for n in range(5)))
        pulled = await client.pull("t", 0, 1, max_messages=2)
        assert [message.body for message in pulled.messages] == [b"1", b"2"]
        assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (3, 0, 5)
        assert len((await client.pull("t", 0, 0, max_bytes=1)).messages) == 1
        assert (await client.pull("t", 0, 5)).messages == []
        for outside in (-1, 6):
            with pytest.raises(OffsetOutOfRange):
                await client.pull("t", 0, outside)


@async_test
async def test_held_pull_wakes_on_arrival() -> None:
    """Long polling: the answer comes with the message."""
    async with connected() as (group, client):
        await client.create_topic("t", queues=1)
        held = asyncio.ensure_future(client.pull("t", 0, 0, hold_ms=20_000))
        await group.nodes[0].called("Pull", 1)
        async with client.producer() as producer:
            await producer.send("t", b"x")
        assert [message.body for message in (await held).messages] == [b"x"]


@async_test
async def test_message_that_is_not_there() -> None:
    """By id, by place, by half a place."""
    async with connected() as (_, client):
        await client.create_topic("t", queues=1)
        with pytest.raises(MessageNotFound):
            await client.get_message(message_id="0" * 32)
        with pytest.raises(MessageNotFound):
            await client.get_message(topic="t", queue_id=0, offset=0)
        for half in ({}, {"topic": "t"}, {"message_id": "0" * 32, "topic": "t"}):
            with pytest.raises(InvalidArgument):
                await client.get_message(**half)  # type: ignore[arg-type]


@async_test
async def test_arguments_that_the_wire_cannot_carry_are_named() -> None:
    """Instead of protobuf's own ValueError."""
    async with connected() as (_, client):
        for call in (
            client.pull("t", -1, 0),
            client.pull("t", 0, 1 << 63),
            client.pull("t", 0, 0, max_bytes=1 << 32),
            client.describe_topic("\ud800"),
            client.commit_offsets("g", "t", {0: -1}),
            client.create_topic("t", queues=0),
        ):
            with pytest.raises(InvalidArgument):
                await call


@async_test
async def test_record_bytes_that_lie_are_an_error() -> None:
    """A flipped bit on the way: the CRC tells."""
    async with connected() as (group, client):
        await client.create_topic("t", queues=1)
        async with client.producer() as producer:
            await producer.send("t", b"x" * 100)
        record = bytearray(group.model.topics["t"][0].records[0])
        record[100] ^= 1
        group.model.topics["t"][0].records[0] = bytes(record)
        with pytest.raises(RecordCorrupt):
            await client.pull("t", 0, 0)


# --- retries --------------------------------------------------------------------------------------


@async_test
async def test_reads_are_repeated_until_they_succeed() -> None:
    """Whatever became of the first attempts: a read has no effect."""
    async with connected() as (group, client):
        group.after.append(LosingAnswers("ListTopics", 3))
        assert await client.topics() == []
        assert group.nodes[0].calls["ListTopics"] == 4


@async_test
async def test_creation_in_doubt_is_told_not_repeated() -> None:
    """Repeated, it would say that the topic exists: a lie about who made it."""
    async with connected() as (group, client):
        group.after.append(LosingAnswers("CreateTopic"))
        with pytest.raises(LeadershipLost) as caught:
            await client.create_topic("t", queues=2)
        assert caught.value.outcome is Outcome.MAY_HAVE_HAPPENED
        assert "may have been carried out" in str(caught.value)
        assert group.nodes[0].calls["CreateTopic"] == 1


@async_test
async def test_creation_that_did_not_happen_is_repeated() -> None:
    """A refusal leaves no doubt."""
    async with connected() as (group, client):
        refusals = [wire_error(epb.BUSY), wire_error(epb.NOT_READY)]

        async def refuse(method: str, node: FakeNode, request: Any) -> None:
            if method == "CreateTopic" and refusals:
                raise Refusal(refusals.pop())

        group.before.append(refuse)
        assert (await client.create_topic("t", queues=2)).queue_count == 2


@async_test
async def test_idempotent_calls_in_doubt_are_repeated() -> None:
    """Creating what may exist, committing what is committed."""
    async with connected() as (group, client):
        group.after += [LosingAnswers("CreateTopic", 2), LosingAnswers("CommitOffsets", 2)]
        await client.create_topic("t", queues=2, if_not_exists=True)
        assert await client.commit_offsets("g", "t", {0: 0}) == {0: 0}


@async_test
async def test_a_drop_of_queues_in_doubt_is_told_not_repeated() -> None:
    """Others may have grown the topic again, and sent to what the second one would drop."""
    async with connected() as (group, client):
        await client.create_topic("t", queues=4)
        group.after.append(LosingAnswers("UpdateTopic"))
        with pytest.raises(LeadershipLost) as caught:
            await client.update_topic("t", read_queues=2, write_queues=2, drop=True)
        assert caught.value.outcome is Outcome.MAY_HAVE_HAPPENED
        assert group.nodes[0].calls["UpdateTopic"] == 1
        group.after.append(LosingAnswers("UpdateTopic"))
        assert (await client.update_topic("t", write_queues=1)).write_queues == 1


@async_test
async def test_deletion_and_transfer_in_doubt_are_told() -> None:
    """The second time they would mean something else."""
    async with connected() as (group, client):
        await client.create_topic("t")
        group.after += [LosingAnswers("DeleteTopic"), LosingAnswers("TransferLeadership")]
        with pytest.raises(LeadershipLost) as caught:
            await client.delete_topic("t")
        assert caught.value.outcome is Outcome.MAY_HAVE_HAPPENED
        with pytest.raises(LeadershipLost):
            await client.transfer_leadership("n2")


def pausing_for_ever_after_attempt(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause behind that attempt is longer than any deadline; so it is the attempt's answer that
    ends the call, and not the node's slowness, however slow it is."""

    def pause(state: RetryCallState) -> float:
        return 0.0 if state.attempt_number < last else 1e9

    monkeypatch.setattr(broker_group, "_backoff", pause)


@async_test
async def test_deadline_covers_all_attempts_and_tells_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the last failure as its cause."""
    pausing_for_ever_after_attempt(3, monkeypatch)
    async with connected() as (group, client):
        await client.topics()

        async def refuse(method: str, node: FakeNode, request: Any) -> None:
            raise Refusal(wire_error(epb.BUSY, "so many callers"))

        group.before.append(refuse)
        with pytest.raises(DeadlineExceeded, match="attempt 3 failed: so many callers") as caught:
            await client.commit_offsets("g", "t", {0: 0}, deadline_s=3_600)
        assert caught.value.outcome is Outcome.DID_NOT_HAPPEN
        assert isinstance(caught.value.__cause__, Busy)
        assert group.nodes[0].calls["CommitOffsets"] == 3


@async_test
async def test_attempt_that_had_no_time_to_be_answered_hides_no_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last one has what is left of the deadline, as a rule too little for an answer, and all
    that was told was that there was none."""
    pausing_for_ever_after_attempt(3, monkeypatch)
    async with connected() as (group, client):
        await client.topics()

        async def refuse(method: str, node: FakeNode, request: Any) -> None:
            if node.calls[method] < 3:
                raise Refusal(wire_error(epb.BUSY, "so many callers"))
            raise Refusal(wire_error(epb.TIMED_OUT, "no answer"))

        group.before.append(refuse)
        with pytest.raises(DeadlineExceeded) as caught:
            await client.commit_offsets("g", "t", {0: 0}, deadline_s=3_600)
        assert "attempt 3 failed: no answer" in caught.value.message
        assert "before that: so many callers" in caught.value.message


@async_test
async def test_deadline_at_a_silent_node_leaves_the_outcome_open() -> None:
    """For what has an effect; a read has none."""
    async with connected() as (group, client):
        await client.create_topic("t")
        group.nodes[0].running.clear()
        with pytest.raises(DeadlineExceeded) as caught:
            await client.delete_topic("t", deadline_s=0.1)
        assert caught.value.outcome is Outcome.MAY_HAVE_HAPPENED
        with pytest.raises(DeadlineExceeded) as caught:
            await client.topics(deadline_s=0.1)
        assert caught.value.outcome is Outcome.DID_NOT_HAPPEN


@async_test
async def test_bare_status_of_a_node_is_a_server_error() -> None:
    """Its log says why."""
    async with connected() as (group, client):

        async def crash(method: str, node: FakeNode, request: Any) -> None:
            raise ValueError("a bug")

        group.before.append(crash)
        with pytest.raises(ServerError):
            await client.topics()


@async_test
async def test_error_of_a_later_version_is_taken_for_the_worse() -> None:
    """A code and an outcome that this client does not know."""
    async with connected() as (group, client):

        async def refuse(method: str, node: FakeNode, request: Any) -> None:
            error = epb.Error(message="from the future")
            error.MergeFromString(b"\x08\xe7\x07\x20\x63")  # code 999, outcome 99
            raise Refusal(error)

        group.before.append(refuse)
        with pytest.raises(ServerError, match="from the future") as caught:
            await client.create_topic("t")
        assert caught.value.outcome is Outcome.MAY_HAVE_HAPPENED


# --- finding the leader ---------------------------------------------------------------------------


@async_test
async def test_any_one_node_leads_to_all() -> None:
    """Members are learnt from what a follower tells."""
    async with (
        FakeGroup() as group,
        Client.connect([group.nodes[1].address], options=QUICK) as client,
    ):
        assert (await client.leader()).node_id == "n1"
        await group.nodes[1].kill()
        group.elect(group.nodes[2])
        await client.create_topic("t")  # refused by n1, or sent to n3 at once
        assert list(group.model.topics) == ["t"]
        assert (await client.leader()).node_id == "n3"


@async_test
async def test_dead_bootstrap_address_does_no_harm() -> None:
    """As long as another one lives."""
    async with FakeGroup(1) as group:
        with closed_port() as dead:
            bootstrap = f"{dead},{group.nodes[0].address}"
            async with Client.connect(bootstrap, options=QUICK) as client:
                assert (await client.leader()).address == group.nodes[0].address


@async_test
async def test_unreachable_group_is_told_as_such() -> None:
    """With what was tried."""
    with closed_port() as dead:
        async with Client.connect(dead, options=QUICK) as client:
            with pytest.raises(BrokerGroupUnreachable, match=dead) as caught:
                await client.create_topic("t", deadline_s=1.0)
            assert caught.value.outcome is Outcome.DID_NOT_HAPPEN


@async_test
async def test_group_without_a_leader_is_told_as_such() -> None:
    """Reachable, and nobody serves."""
    async with connected() as (group, client):
        await client.topics()
        group.elect(None)
        await leaderless(client)
        with pytest.raises(DeadlineExceeded, match="no leader serves"):
            await client.create_topic("t", deadline_s=0.2)


@async_test
async def test_wrong_group_is_told_at_once() -> None:
    """A mix-up of addresses must not end as a timeout."""
    async with (
        FakeGroup(2, name="theirs") as group,
        Client.connect(group.bootstrap, broker_group="ours") as client,
    ):
        with pytest.raises(WrongBrokerGroup):
            await client.topics(deadline_s=60.0)


@async_test
async def test_call_at_a_dying_leader_goes_on_at_the_next() -> None:
    """A pull that is held when its leader is killed."""
    async with connected() as (group, client):
        group.model.create("t", 1)
        held = asyncio.ensure_future(client.pull("t", 0, 0, hold_ms=20_000))
        await group.nodes[0].called("Pull", 1)
        await group.nodes[0].kill()
        group.elect(group.nodes[1])
        await group.nodes[1].called("Pull", 1)
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held


@async_test
async def test_call_at_a_hanging_leader_goes_on_at_the_next() -> None:
    """No connection breaks: only the news of the next leader ends the wait."""
    async with connected() as (group, client):
        await client.topics()
        group.nodes[0].running.clear()
        asked = asyncio.ensure_future(client.topics(deadline_s=25.0))
        await group.nodes[0].called("ListTopics", 2)
        group.elect(group.nodes[1])
        assert await asked == []
        assert group.nodes[1].calls["ListTopics"] == 1


@async_test
async def test_act_at_a_hanging_leader_is_given_up_after_a_grace() -> None:
    """It can't be repeated; the caller learns that it may have happened, before the deadline."""
    async with connected() as (group, client):
        await client.create_topic("t")
        group.nodes[0].running.clear()
        asked = asyncio.ensure_future(client.delete_topic("t", deadline_s=3_600.0))
        await group.nodes[0].called("DeleteTopic", 1)
        group.elect(group.nodes[1])
        with pytest.raises(LeadershipLost) as caught:
            await asked
        assert caught.value.outcome is Outcome.MAY_HAVE_HAPPENED


@async_test
async def test_cancelled_call_is_cancelled_not_retried() -> None:
    """Our own abandoning of calls must not be mistaken for the caller's, or the other way."""
    async with connected() as (group, client):
        await client.topics()
        group.nodes[0].running.clear()
        asked = asyncio.ensure_future(client.topics())
        await group.nodes[0].called("ListTopics", 2)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked


# --- administration -------------------------------------------------------------------------------


@async_test
async def test_status_shows_every_member_dead_or_alive() -> None:
    """Also those that were not in the bootstrap addresses."""
    async with FakeGroup() as group:
        await group.nodes[2].kill()
        async with Client.connect(group.nodes[0].address, options=QUICK) as client:
            await client.leader()
            states = await client.status()
        assert [(s.node_id, s.alive, s.role) for s in states] == [
            ("n1", True, "leader"),
            ("n2", True, "follower"),
            ("n3", False, ""),
        ]
        assert states[2].address == group.nodes[2].address


@async_test
async def test_status_of_a_group_that_is_down() -> None:
    """No error: being dead is the answer."""
    with closed_port() as dead:
        async with Client.connect(dead, options=QUICK) as client:
            (state,) = await client.status()
            assert (state.address, state.alive) == (dead, False)


@async_test
async def test_leadership_is_handed_over() -> None:
    """The call is answered by a node that leads no longer: that must not end it."""
    async with connected() as (_, client):
        assert (await client.leader()).node_id == "n1"
        assert (await client.transfer_leadership("n3")).node_id == "n3"
        assert (await client.create_topic("t")).name == "t"
        assert (await client.leader()).node_id == "n3"
        with pytest.raises(InvalidArgument, match="n9"):
            await client.transfer_leadership("n9")


# --- the client's own life ------------------------------------------------------------------------


@pytest.mark.parametrize("bootstrap", ["", "localhost", "localhost:x", ":1", "h:0", "h:70000", []])
def test_bootstrap_addresses_are_checked(bootstrap: str | list[str]) -> None:
    """Before anything is dialed."""
    with pytest.raises(InvalidArgument, match="bootstrap"):
        Client.connect(bootstrap)


@async_test
async def test_closed_client_says_so() -> None:
    """Before it is entered as well as after it is left."""
    async with FakeGroup(1) as group:
        client = Client.connect(group.bootstrap)
        with pytest.raises(ClientClosed):
            await client.topics()
        async with client:
            await client.topics()
        with pytest.raises(ClientClosed):
            await client.topics()
        await client.close()


@async_test
async def test_closing_ends_waiting_calls() -> None:
    """Those that look for a leader and those that wait for an answer."""
    async with FakeGroup(2) as group:
        client = Client.connect(group.bootstrap, options=QUICK)
        await client.__aenter__()
        await client.topics()
        group.nodes[0].running.clear()
        answered = asyncio.ensure_future(client.topics())
        await group.nodes[0].called("ListTopics", 2)
        await client.close()
        with pytest.raises(ClientError) as caught:
            await answered
        assert isinstance(caught.value, ClientClosed | Unavailable)


@async_test
async def test_leaving_the_client_flushes_its_producers() -> None:
    """A producer need not be a block of its own."""
    async with FakeGroup(1) as group:
        group.model.create("t", 1)
        async with Client.connect(group.bootstrap) as client:
            future = client.producer().send("t", b"x")
        assert future.result().queue_offset == 0


@async_test
async def test_unknown_fields_in_answers_are_ignored() -> None:
    """A newer node may say more."""
    async with connected() as (group, client):

        async def more(node: object, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
            answer = pb.ListTopicsResponse()
            answer.MergeFromString(b"\xfa\x3f\x03abc")  # field 1023
            return answer

        group.topics.on_ListTopics = more  # type: ignore[method-assign]
        assert await client.topics() == []


@async_test
async def test_topic_that_was_made_is_not_denied_by_what_is_wished_of_it() -> None:
    """Brokers of before make it and pass over the rest, which is asked for alone, and refused."""
    async with connected() as (group, client):
        group.model.knows_wishes = False

        async def refuse(method: str, node: FakeNode, request: Any) -> None:
            if method == "RetainTopic":
                raise Refusal(wire_error(epb.TOPIC_NOT_FOUND))

        group.before.append(refuse)
        with pytest.raises(TopicNotFound) as caught:
            await client.create_topic("t", retention_hours=6)
        assert caught.value.outcome is Outcome.MAY_HAVE_HAPPENED
        assert [topic.name for topic in await client.topics()] == ["t"]


@pytest.mark.parametrize("knows_wishes", [True, False])
@async_test
async def test_a_topic_is_made_as_it_is_wished_by_whichever_broker(knows_wishes: bool) -> None:
    """One of a release before makes it without: the rest is asked for."""
    async with connected() as (group, client):
        group.model.knows_wishes = knows_wishes
        made = await client.create_topic("t", retention_hours=6, permission=Permission.READ)
        assert (made.retention_hours, made.permission) == (6, Permission.READ)
        for method in ("RetainTopic", "PermitTopic"):
            assert sum(node.calls[method] for node in group.nodes) == (not knows_wishes)
        assert (await client.describe_topic("t")).topic == made
        with pytest.raises(InvalidArgument):
            await client.permit_topic("t", "r")  # type: ignore[arg-type]


@async_test
async def test_a_closed_topic_is_told_by_name_and_measured() -> None:
    async with connected() as (_, client), client.producer() as producer:
        await client.create_topic("t", queues=2)
        stored = await producer.send("t", b"x", queue_id=1)
        await client.permit_topic("t", Permission.WRITE)
        with pytest.raises(TopicNotReadable):
            await client.pull("t", 1, 0)
        await client.permit_topic("t", Permission.READ)
        with pytest.raises(TopicNotWritable) as refused:
            await producer.send("t", b"y", queue_id=1)
        assert refused.value.outcome is Outcome.DID_NOT_HAPPEN
        stats = await client.topic_stats("t")
        assert stats.topic.permission is Permission.READ
        assert stats.queues == [
            QueueStats(0, 0, 0, None),
            QueueStats(1, 0, 1, stored.store_time_ms),
        ]
        assert [each.held for each in stats.queues] == [0, 1]
