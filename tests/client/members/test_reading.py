"""Pull consumers as members of a group, against fake nodes."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest

from dledger.client import (
    ALL,
    Client,
    ClientError,
    ConsumerOptions,
    DeadlineExceeded,
    GroupHasMembers,
    InvalidArgument,
    LeaseLost,
    LimitReached,
    Message,
    Outcome,
    Permission,
    PullConsumer,
    RevokedQueues,
    StartFrom,
)
from dledger.client.connection import COMMIT_LEASES
from dledger.client.members import membership, pulling
from dledger.testing.fake_nodes import FakeNode
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test
from tests.client.members.test_push import QUICK, fill, stocked, until

OWN_WORD = ConsumerOptions(hold_ms=100)
BY_ITSELF = ConsumerOptions(hold_ms=100, commit_every_s=0.02)


async def drain(consumer: PullConsumer) -> dict[int, list[int]]:
    """Offsets by queue, in the order in which they came."""
    offsets: dict[int, list[int]] = {}
    async for message in consumer:
        offsets.setdefault(message.queue_id, []).append(message.queue_offset)
    return offsets


@async_test
async def test_member_reads_all_in_order_and_commits_nothing_unless_told() -> None:
    """Closing gives the queues back as they were."""
    async with stocked(3, 50) as (group, client):
        consumer = client.pull_consumer("t", group="g", idle_timeout_s=0.05, options=OWN_WORD)
        async with consumer:
            assert await drain(consumer) == {queue: list(range(50)) for queue in range(3)}
            assert group.members.frontier("g", "t") == 0
            assert await consumer.lag() == {0: 0, 1: 0, 2: 0}
        assert not group.members.has_sessions("g")
        assert [group.members.frontier("g", "t", queue) for queue in range(3)] == [0, 0, 0]


@async_test
async def test_commit_covers_what_is_finished_and_not_what_is_in_hand() -> None:
    """As without sessions."""
    async with (
        stocked(1, 10) as (group, client),
        client.pull_consumer("t", group="g", options=OWN_WORD) as consumer,
    ):
        for _ in range(3):
            message = await anext(consumer)
        await consumer.commit()
        assert group.members.frontier("g", "t") == 2
        await consumer.commit(message)
        assert group.members.frontier("g", "t") == 3
        assert consumer.positions == {0: 3}


@async_test
async def test_batches_of_one_queue_are_committed_by_their_last() -> None:
    """The usual way with a database."""
    async with (
        stocked(2, 300) as (group, client),
        client.pull_consumer("t", group="g", idle_timeout_s=0.05, options=OWN_WORD) as consumer,
    ):
        async for batch in consumer.batches():
            assert len({message.queue_id for message in batch}) == 1
            await consumer.commit(batch[-1])
        assert [group.members.frontier("g", "t", queue) for queue in range(2)] == [300, 300]


@async_test
async def test_commit_every_commits_what_the_loop_has_finished() -> None:
    """And at the end, but for what is in hand."""
    async with stocked(1, 10) as (group, client):
        async with client.pull_consumer("t", group="g", options=BY_ITSELF) as consumer:
            for _ in range(4):
                await anext(consumer)
            await until(lambda: group.members.frontier("g", "t") == 3)
        assert group.members.frontier("g", "t") == 3


@async_test
async def test_two_members_share_the_queues() -> None:
    """Whoever leaves, the other one goes on where the group is."""
    async with (
        stocked(4, 20) as (group, client),
        Client.connect(group.bootstrap, options=QUICK) as other,
    ):
        first = client.pull_consumer("t", group="g", options=BY_ITSELF)
        second = other.pull_consumer("t", group="g", idle_timeout_s=0.3, options=BY_ITSELF)
        await anext(first)
        reading = asyncio.create_task(drain(second))
        await until(lambda: sorted(group.members.holders("g").values()).count(_name(first)) == 2)
        rest = [(m.queue_id, m.queue_offset) for m in [await anext(first) for _ in range(20)]]
        await first.close()
        seen = await reading
        await second.close()
        assert [group.members.frontier("g", "t", queue) for queue in range(4)] == [20] * 4
        assert {queue for queue, _ in rest} | seen.keys() == set(range(4))


def _name(consumer: PullConsumer) -> str:
    return consumer._reading._identity.name  # type: ignore[attr-defined, no-any-return]


@async_test
async def test_asked_for_queue_waits_for_the_loop() -> None:
    """What is in hand is finished first; then nothing more of that queue is given."""
    told: list[RevokedQueues] = []
    options = ConsumerOptions(hold_ms=100, commit_every_s=0.02, on_revoke=told.append)
    async with (
        stocked(1, 5) as (group, client),
        client.pull_consumer("t", group="g", idle_timeout_s=0.2, options=options) as consumer,
    ):
        group.members.release_ms = 20_000
        message = await anext(consumer)
        group.members.ask_for("g", "t", 0)
        await asyncio.sleep(0.1)
        assert group.members.holders("g"), "a message is in hand"
        assert await drain(consumer) == {}
        assert not group.members.holders("g")
        assert group.members.frontier("g", "t") == message.queue_offset + 1
        assert told[-1] == RevokedQueues("t", [0], lost=False)


@async_test
async def test_commit_of_a_queue_that_went_is_refused_by_name() -> None:
    """What was in hand is somebody else's now."""
    async with (
        stocked(1, 5) as (group, client),
        client.pull_consumer("t", group="g", options=OWN_WORD) as consumer,
    ):
        message = await anext(consumer)
        group.members.take_away("g", "t", 0)
        with pytest.raises(LeaseLost):
            await consumer.commit(message)
        await until(lambda: consumer.positions == {})
        with pytest.raises(LeaseLost):
            await consumer.commit(message)
        group.members.give_back("g")
        assert (await anext(consumer)).queue_offset == 0, "it comes again"
        await consumer.commit()
        assert group.members.frontier("g", "t") == 0, "what was refused isn't done later"


@async_test
async def test_commit_of_a_message_of_an_earlier_lease_is_refused_by_name() -> None:
    """The queue is back by then, perhaps as somebody has set the group's offsets back: the commit
    would undo that."""
    async with (
        stocked(1, 5) as (group, client),
        client.pull_consumer("t", group="g", options=OWN_WORD) as consumer,
    ):
        messages = [await anext(consumer) for _ in range(3)]
        group.members.take_away("g", "t", 0)
        await until(lambda: consumer.positions == {})
        group.members.give_back("g")
        assert (await anext(consumer)).queue_offset == 0
        with pytest.raises(LeaseLost):
            await consumer.commit(messages[2])
        await consumer.commit(messages[0])
        assert group.members.frontier("g", "t") == 1


@async_test
async def test_commit_of_all_tells_of_what_went_uncommitted() -> None:
    """Once: the loop had done it, and it comes again."""
    async with (
        stocked(2, 1) as (group, client),
        client.pull_consumer("t", group="g", options=OWN_WORD) as consumer,
    ):
        done, _ = [(await anext(consumer)).queue_id for _ in range(2)]
        group.members.take_away("g", "t", done)
        await until(lambda: done not in consumer.positions)
        with pytest.raises(LeaseLost, match=f"queue {done} "):
            await consumer.commit()
        await consumer.commit()
        assert group.members.frontier("g", "t", done) == 0


@pytest.mark.parametrize("is_silent", [True, False])
@async_test
async def test_commit_after_the_end_tells_of_what_was_finished_and_is_not_committed(
    monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """Once; where the leader had stood still as the member said goodbye, it said yes."""
    monkeypatch.setattr(membership, "GOODBYE_S", 0.05 if is_silent else 5.0)
    async with stocked(1, 5) as (group, client):
        consumer = client.pull_consumer("t", group="g", options=OWN_WORD)
        async with consumer:
            for _ in range(4):
                message = await anext(consumer)
                if message.queue_offset == 1:
                    await consumer.commit(message)
            if is_silent:
                group.nodes[0].running.clear()
        group.nodes[0].running.set()
        with pytest.raises(LeaseLost):
            await consumer.commit()
        await consumer.commit()
        assert group.members.frontier("g", "t") == 2


@async_test
async def test_commit_after_the_end_says_yes_where_all_is_committed() -> None:
    """By itself, as the queue was given back."""
    async with stocked(1, 5) as (group, client):
        consumer = client.pull_consumer("t", group="g", options=BY_ITSELF)
        async with consumer:
            for _ in range(4):
                await anext(consumer)
        await consumer.commit()
        assert group.members.frontier("g", "t") == 3


@pytest.mark.parametrize("by_message", [True, False])
@async_test
async def test_commit_that_was_cancelled_may_have_happened(by_message: bool) -> None:
    """It was on the wire: who is told later that the queue has gone hears so."""
    async with (
        stocked(1, 5) as (group, client),
        client.pull_consumer("t", group="g", options=OWN_WORD) as consumer,
    ):
        sent, answered = asyncio.Event(), asyncio.Event()

        async def hold(method: str, node: FakeNode, request: Any) -> None:
            if method == "CommitLeases":
                sent.set()
                await answered.wait()

        message = await anext(consumer)
        going_on = asyncio.ensure_future(anext(consumer))
        await going_on
        group.after.append(hold)
        committing = asyncio.ensure_future(consumer.commit(message if by_message else None))
        await sent.wait()
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        answered.set()
        assert group.members.frontier("g", "t") == 1
        group.members.take_away("g", "t", 0)
        if not by_message:
            await until(lambda: consumer.positions == {})
        with pytest.raises(LeaseLost) as told:
            await consumer.commit(message if by_message else None)
        assert told.value.outcome is Outcome.MAY_HAVE_HAPPENED


@pytest.mark.parametrize("deadline_s", [0, 0.05, None])
@async_test
async def test_commit_has_the_deadline_that_it_is_given(deadline_s: float | None) -> None:
    """0 is one, as with other calls; without one it is the client's."""
    async with (
        stocked(1, 5) as (group, _),
        Client.connect(group.bootstrap, options=replace(QUICK, deadline_s=0.07)) as client,
        client.pull_consumer("t", group="g", options=OWN_WORD) as consumer,
    ):
        message = await anext(consumer)
        commits: list[float | None] = []
        call = client._broker_group.call

        async def noting(method: Any, *args: Any, deadline_s: Any = None, **kwargs: Any) -> Any:
            if method is COMMIT_LEASES:
                commits.append(deadline_s)
            return await call(method, *args, deadline_s=deadline_s, **kwargs)

        client._broker_group.call = noting  # type: ignore[method-assign]
        with nullcontext() if deadline_s is None else suppress(DeadlineExceeded):
            await consumer.commit(message, deadline_s=deadline_s)
        assert commits == [0.07 if deadline_s is None else deadline_s]
        with pytest.raises(InvalidArgument, match="deadline_s"):
            await consumer.commit(message, deadline_s="soon")  # type: ignore[arg-type]


@async_test
async def test_queue_that_is_heard_to_be_gone_before_its_commit_is_answered_was_committed() -> None:
    """It was handed over with all that was finished: the two come by different ways."""
    options = ConsumerOptions(commit_every_s=0.02)
    async with (
        stocked(1, 3) as (group, client),
        client.pull_consumer("t", group="g", idle_timeout_s=5.0, options=options) as consumer,
    ):
        answered = asyncio.Event()

        async def hold(method: str, node: FakeNode, request: Any) -> None:
            if method == "CommitLeases" and any(
                queue.release for topic in request.topics for queue in topic.queues
            ):
                await answered.wait()

        group.after.append(hold)
        for _ in range(3):
            await anext(consumer)
        going_on = asyncio.ensure_future(anext(consumer))
        group.members.ask_for("g", "t", 0)
        await until(lambda: consumer.positions == {})
        committing = asyncio.create_task(consumer.commit())
        await asyncio.sleep(0.05)
        assert not committing.done()
        answered.set()
        await committing
        going_on.cancel()
        assert group.members.frontier("g", "t") == 3


@async_test
async def test_commit_does_not_say_yes_where_the_queue_goes_meanwhile() -> None:
    """It waits for another one that is under way, and what it is to cover is gone by then."""
    async with (
        stocked(1, 5) as (group, client),
        client.pull_consumer("t", group="g", options=OWN_WORD) as consumer,
    ):
        message = await anext(consumer)
        joined = consumer._reading._membership  # type: ignore[attr-defined]
        async with joined._committing:
            committing = asyncio.create_task(consumer.commit(message))
            await asyncio.sleep(0)
            group.members.take_away("g", "t", 0)
            await until(lambda: consumer.positions == {})
        with pytest.raises(LeaseLost):
            await committing
        assert group.members.frontier("g", "t") == 0


@async_test
async def test_offsets_without_a_lease_are_refused_while_there_are_members() -> None:
    """By name; afterwards they are taken."""
    async with stocked(1, 5) as (_, client):
        async with client.pull_consumer("t", group="g", options=OWN_WORD) as consumer:
            await anext(consumer)
            with pytest.raises(GroupHasMembers):
                await client.commit_offsets("g", "t", {0: 3})
        await client.commit_offsets("g", "t", {0: 3})
        async with client.pull_consumer("t", group="g", queues=ALL) as consumer:
            assert (await anext(consumer)).queue_offset == 3


@async_test
async def test_queue_that_comes_while_all_others_are_empty_is_looked_into_first() -> None:
    """The iteration isn't over because those were empty for so long."""
    async with stocked(2, 5) as (group, client):
        consumer = client.pull_consumer("t", group="g", idle_timeout_s=0.2, options=OWN_WORD)
        async with consumer:
            await anext(consumer)
            group.members.take_away("g", "t", 0)
            await until(lambda: 0 not in consumer.positions)
            await drain(consumer)
            go_on = asyncio.Event()

            async def hold(method: str, _node: FakeNode, _request: Any) -> None:
                if method == "PullQueues":
                    await go_on.wait()

            group.before.append(hold)
            group.members.give_back("g")
            member = consumer._reading._member  # type: ignore[attr-defined]
            await until(lambda: len(member.queues) == 2)
            draining = asyncio.create_task(drain(consumer))
            await asyncio.sleep(0.05)
            assert not draining.done(), "nobody has asked what is in it"
            go_on.set()
            assert await draining == {0: list(range(5))}


@async_test
async def test_seek_pause_and_tags_of_a_member() -> None:
    """As without a group; what was sought is not committed by itself."""
    async with stocked(2, 10) as (group, client):
        async with client.producer() as producer:
            for tag in ("a", "b", "a", "b"):
                producer.send("t", tag.encode(), tag=tag, queue_id=1)
        consumer = client.pull_consumer(
            "t", group="g", tags=["b"], idle_timeout_s=0.1, options=BY_ITSELF
        )
        async with consumer:
            assert await drain(consumer) == {1: [11, 13]}
            await until(lambda: group.members.frontier("g", "t", 1) == 14)
            await consumer.seek(1, 12)
            consumer.pause(1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(consumer)
            consumer.resume(1)
            assert await drain(consumer) == {1: [13]}
            await consumer.seek(1, StartFrom.FIRST)
            assert await drain(consumer) == {1: [11, 13]}
            assert group.members.frontier("g", "t", 1) == 14


@async_test
async def test_what_was_sought_back_from_is_not_committed() -> None:
    """Unless it was committed before: a member that dies then gives it to whoever is next."""

    async def refuse(method: str, _node: object, _request: object) -> None:
        if method == "CommitLeases":
            raise Refusal(wire_error(epb.LIMIT_REACHED))

    async with stocked(1, 10) as (group, client):
        consumer = client.pull_consumer("t", group="g", options=OWN_WORD)
        async with consumer:
            for _ in range(8):
                message = await anext(consumer)
            group.before.append(refuse)
            with pytest.raises(LimitReached):
                await consumer.commit(message)
            group.before.clear()
            await consumer.seek(0, 3)
            assert (await anext(consumer)).queue_offset == 3
            assert (await anext(consumer)).queue_offset == 4
            await consumer.commit()
            assert group.members.frontier("g", "t") == 4


@async_test
async def test_seeking_takes_no_commit_back_that_is_under_way() -> None:
    """Who asked for it is told that it is committed, and it is."""
    async with stocked(1, 10) as (group, client):
        consumer = client.pull_consumer("t", group="g", options=OWN_WORD)
        async with consumer:
            message = await anext(consumer)
            membership = consumer._reading._membership  # type: ignore[attr-defined]
            async with membership._committing:
                committing = asyncio.ensure_future(consumer.commit(message))
                await asyncio.sleep(0)
                await consumer.seek(0, 0)
            await committing
            assert group.members.frontier("g", "t") == 1


@async_test
async def test_group_starts_where_its_first_member_says() -> None:
    """In topics that it never read; later ones begin where it is."""
    async with stocked(1, 5) as (_, client):
        last = client.pull_consumer("t", group="g", start=StartFrom.LAST, options=BY_ITSELF)
        async with last:
            reading = asyncio.create_task(anext(last))
            await until(lambda: last._reading._member.queues)  # type: ignore[attr-defined]
            await fill(client, 1, 1)
            assert (await reading).queue_offset == 5


@async_test
async def test_nobody_leads_for_too_long() -> None:
    """An error, and not the end of the messages."""
    options = ConsumerOptions(hold_ms=50, deadline_s=0.3)
    async with (
        stocked(1, 1) as (group, client),
        client.pull_consumer("t", group="g", idle_timeout_s=0.1, options=options) as consumer,
    ):
        await anext(consumer)
        group.elect(None)
        with pytest.raises(DeadlineExceeded):
            await anext(consumer)
        group.elect(group.nodes[1])
        assert await drain(consumer) == {}


@pytest.mark.parametrize("how", ["told", "refused", "rotten"])
@async_test
async def test_queue_that_cannot_be_read_ends_the_iteration(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own error, and whatever the other one brings; who goes on is given all of it then."""
    options = ConsumerOptions(hold_ms=50, deadline_s=0.6)
    async with (
        stocked(2, 1) as (group, client),
        client.pull_consumer("t", group="g", idle_timeout_s=1.0, options=options) as consumer,
    ):
        is_ill = True
        of, error = group.members._records_of, wire_error(epb.BUSY, "no time for this one")

        def records_of(request: Any, wanted: Any, *others: Any) -> tuple[list[bytes], int]:
            found = of(request, wanted, *others)
            if is_ill and wanted.queue_id == 1:
                if how == "told":
                    raise Refusal(error)
                return ([b"no record"], found[1]) if how == "rotten" else found
            return found

        async def refuse(method: str, _node: FakeNode, _request: Any) -> None:
            if is_ill and how == "refused" and method == "PullQueues":
                raise Refusal(error)

        monkeypatch.setattr(pulling, "CALL_S", 0.1)
        monkeypatch.setattr(group.members, "_records_of", records_of)
        group.before.append(refuse)
        found: list[int] = []

        async def read() -> None:
            async with client.producer() as producer:
                async for message in consumer:
                    found.append(message.queue_id)
                    await asyncio.sleep(0.02)
                    await producer.send("t", b"more", queue_id=0)

        with pytest.raises(ClientError) as told:
            await read()
        assert told.value.code in (["RECORD_CORRUPT"] if how == "rotten" else ["BUSY", "TIMED_OUT"])
        assert 1 not in found
        is_ill = False
        assert (await drain(consumer))[1] == [0]


@async_test
async def test_topic_that_is_not_to_be_read_is_waited_for() -> None:
    """However long."""
    options = ConsumerOptions(hold_ms=50, deadline_s=0.1)
    async with (
        stocked(1, 1) as (_, client),
        client.pull_consumer("t", group="g", options=options) as consumer,
    ):
        await client.permit_topic("t", Permission.WRITE)
        reading = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(1.5)
        assert not reading.done()
        await client.permit_topic("t", Permission.READ_WRITE)
        assert (await reading).queue_offset == 0


@async_test
async def test_silent_leader_does_not_look_like_the_end() -> None:
    """What can't be asked isn't empty, though it was a moment ago."""
    async with (
        stocked(1, 1) as (group, client),
        client.pull_consumer("t", group="g", idle_timeout_s=1.0, options=OWN_WORD) as consumer,
    ):
        await anext(consumer)
        reading = asyncio.create_task(drain(consumer))
        pulls = len(group.members.pulls)
        await until(lambda: len(group.members.pulls) > pulls + 1)
        group.nodes[0].running.clear()
        await asyncio.sleep(1.2)
        assert not reading.done()
        group.nodes[0].running.set()
        assert await reading == {}


@async_test
async def test_what_a_member_cannot_be_asked() -> None:
    """By name, and at once."""
    async with stocked(1, 1) as (_, client):
        with pytest.raises(InvalidArgument, match="119"):
            client.pull_consumer("t", group="g h")
        for options in (BY_ITSELF, ConsumerOptions(on_revoke=lambda _: None)):
            for who in ({"group": "g", "queues": ALL}, {}):
                with pytest.raises(InvalidArgument, match="for members"):
                    client.pull_consumer("t", options=options, **who)  # type: ignore[arg-type]
        consumer = client.pull_consumer("t", group="g", options=OWN_WORD)
        message = await anext(client.pull_consumer("t", group="other", options=OWN_WORD))
        with pytest.raises(InvalidArgument, match="never gave"):
            await consumer.commit(message)


@pytest.mark.parametrize("group_name", [None, "g"])
@async_test
async def test_seeking_where_no_message_can_be_is_refused(group_name: str | None) -> None:
    """A member that was sent below the first offset used to wait there for ever."""
    async with (
        stocked(1, 3) as (_, client),
        client.pull_consumer("t", group=group_name, idle_timeout_s=0.1) as consumer,
    ):
        await anext(consumer)
        for nowhere in (-1, -(1 << 63), 1 << 63, 1.5, "1"):
            with pytest.raises(InvalidArgument, match="to is"):
                await consumer.seek(0, nowhere)  # type: ignore[arg-type]  # some are
        assert await drain(consumer) == {0: [1, 2]}


@pytest.mark.parametrize("group_name", [None, "g"])
@async_test
async def test_queue_that_is_paused_and_empty_holds_up_no_end(group_name: str | None) -> None:
    """One that has messages waiting does, until it is resumed."""
    async with (
        stocked(2, 3) as (_, client),
        client.pull_consumer("t", group=group_name, idle_timeout_s=0.2) as consumer,
    ):
        assert sum(map(len, (await drain(consumer)).values())) == 6
        consumer.pause(0)
        assert await drain(consumer) == {}
        await fill(client, 1, 1)
        await asyncio.sleep(0.3)  # it is fetched
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6):
                await anext(consumer)
        consumer.resume(0)
        assert await drain(consumer) == {0: [3]}


class Leaves(BaseException):
    """As what a signal's handler raises."""


@pytest.mark.parametrize("group_name", [None, "g"])
@async_test
async def test_message_whose_hook_is_interrupted_is_given_next(group_name: str | None) -> None:
    """Nobody was given it: counted as finished as more is asked for, it would be forgotten."""

    def around(message: Message) -> AbstractContextManager[None]:
        if message.queue_offset == 1 and not interrupted:
            interrupted.append(message.queue_offset)
            raise Leaves
        return nullcontext()

    interrupted: list[int] = []
    options = ConsumerOptions(hold_ms=50, around=around)
    async with (
        stocked(1, 3) as (_, client),
        client.pull_consumer(
            "t", group=group_name, idle_timeout_s=0.1, options=options
        ) as consumer,
    ):
        assert (await anext(consumer)).queue_offset == 0
        with pytest.raises(Leaves):
            await anext(consumer)
        assert await drain(consumer) == {0: [1, 2]}
