"""Consumer groups that are moved while answers are lost: what is told, and of which topic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dledger.client import ClientError, LeadershipLost, StartFrom, TopicReplaced
from dledger.outcome import Outcome
from dledger.testing import FakeGroup
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from tests.client.loops import async_test
from tests.testing.test_fakes import nodes


def loses(group: FakeGroup, then: Callable[[], None] = lambda: None) -> None:
    """The next move takes effect, then that happens, and its answer is lost."""
    left = ["one"]

    async def lose(method: str, node: object, request: object) -> None:
        if method == "MoveGroup" and left:
            left.clear()
            then()
            raise Refusal(wire_error(epb.LEADERSHIP_LOST, "the answer was lost by the test"))

    group.after.append(lose)


@async_test
async def test_reset_that_is_asked_for_again_tells_where_the_group_was() -> None:
    """And not what the first attempt has set."""
    async with nodes(2, 5) as (group, client):
        await client.commit_offsets("g", "t", {1: 3})
        loses(group)
        moved = await client.consumer_groups.reset("g", "t", StartFrom.LAST)
        assert [tuple(each) for each in moved] == [(0, None, 5), (1, 3, 5)]
        again = await client.consumer_groups.reset("g", "t", 4)
        assert [tuple(each) for each in again] == [(0, 5, 4), (1, 5, 4)]


@async_test
async def test_reset_that_is_asked_for_again_is_of_the_same_topic() -> None:
    """One of the name that was made meanwhile is another: the group stays as it is there."""
    async with nodes(1, 5) as (group, client):
        group.model.create("other", 1)  # by which the group stays known
        await client.commit_offsets("g", "other", {0: 0})
        await client.commit_offsets("g", "t", {0: 3})

        def make_anew() -> None:
            group.model.delete("t")
            group.model.create("t", 1)

        loses(group, make_anew)
        with pytest.raises(TopicReplaced) as told:
            await client.consumer_groups.reset("g", "t", StartFrom.FIRST)
        assert told.value.outcome is Outcome.MAY_HAVE_HAPPENED
        assert await client.fetch_offsets("g", "t") == {}


@async_test
async def test_skip_is_asked_for_once() -> None:
    """Twice would pass over twice as many: whoever lost the answer looks, and decides."""
    async with nodes(1, 5) as (group, client):
        await client.commit_offsets("g", "t", {0: 1})
        loses(group)
        with pytest.raises(LeadershipLost) as told:
            await client.consumer_groups.skip("g", "t", 2)
        assert told.value.outcome is Outcome.MAY_HAVE_HAPPENED
        assert await client.fetch_offsets("g", "t") == {0: 3}


@async_test
async def test_what_did_not_happen_is_told_as_such() -> None:
    """As before: nobody knows the group, or the topic."""
    async with nodes(1, 5) as (_, client):
        for group, topic in (("nobody", "t"), ("g", "none")):
            with pytest.raises(ClientError) as told:
                await client.consumer_groups.reset(group, topic, StartFrom.FIRST)
            assert told.value.outcome is Outcome.DID_NOT_HAPPEN
