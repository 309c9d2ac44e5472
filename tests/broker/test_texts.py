"""Texts of the state at their bounds: whatever is taken into it, a snapshot has to write. One that
it doesn't ends every member, and again after each start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ErrorCode
from broker.state.filters import MAX_TAG_BYTES, MAX_TAGS, MAX_TAGS_BYTES
from broker.state.groups import (
    MAX_CHOICES,
    MAX_GROUP_BYTES,
    MAX_MEMBER_BYTES,
    MAX_STRATEGY_BYTES,
    MAX_TOPIC_BYTES,
    MAX_TOPICS,
    Settings,
)
from broker.state.producers import Producers
from broker.state.refusals import Malformed
from broker.state.registration import MAX_NAME_BYTES, Registration
from broker.state.snapshot import MAX_PAYLOAD_BYTES, MAX_TEXT_BYTES
from dledger.wire.commands_pb2 import QueueChoice, TagFilter, TagFilters
from tests.broker.attended import Room
from tests.broker.consuming import Owners, wanted


def near(bound: int) -> st.SearchStrategy[int]:
    """Sizes at both sides of the bound."""
    return st.sampled_from((1, bound - 1, bound, bound + 1))


TAG_SIZES = st.lists(near(MAX_TEXT_BYTES) | near(MAX_TAGS_BYTES), max_size=4) | st.sampled_from(
    ([MAX_TAGS_BYTES // MAX_TAGS] * MAX_TAGS, [MAX_TAGS_BYTES // 2] * 2)
)


def texts(sizes: list[int]) -> list[str]:
    """Different ones of these sizes, ascending."""
    return sorted({f"{at:04}"[-size:].rjust(size, "x") for at, size in enumerate(sizes)})


@given(
    near(MAX_GROUP_BYTES),
    near(MAX_MEMBER_BYTES),
    near(MAX_STRATEGY_BYTES),
    st.lists(near(MAX_TOPIC_BYTES), min_size=1, max_size=3)
    | st.just([MAX_TOPIC_BYTES] * MAX_TOPICS),
    TAG_SIZES,
)
def test_whatever_joins_is_in_the_next_snapshot(
    group: int, member: int, strategy: int, topics: list[int], tags: list[int]
) -> None:
    """Any texts of a join, at both sides of each bound."""
    owners, names = Owners(), texts(topics)
    filters = TagFilters(topics=[TagFilter(topic=names[0], tags=texts(tags))] if tags else [])
    settings = wanted(*names, strategy="s" * strategy, filters=filters)
    choices = [QueueChoice(topic=names[0], queue_ids=range(MAX_CHOICES))]
    name = "g" * group
    joined = owners.join("m" * member, group=name, settings=settings, choices=choices)
    assert isinstance(joined, int | Malformed)
    sections = [list(each.payloads) for each in owners.sections()]
    assert all(len(payload) <= MAX_PAYLOAD_BYTES for each in sections for payload in each)
    owners.check()


@pytest.mark.parametrize("size", [MAX_TEXT_BYTES + 1, MAX_TAGS_BYTES])
def test_one_long_tag_is_in_the_next_snapshot(size: int) -> None:
    """No leader proposes it any more; what is in the log holds."""
    owners = Owners()
    filters = TagFilters(topics=[TagFilter(topic="t", tags=["a" * size])])
    assert isinstance(owners.join(settings=wanted("t", filters=filters)), int)
    owners.check()


@given(near(MAX_NAME_BYTES))
def test_whoever_registers_is_in_the_next_snapshot(size: int) -> None:
    """A producer of any name."""
    producers, restored = Producers(), Producers()
    producers.register(Registration(b"token--1", "n" * size), 1, 0)
    section = producers.snapshot()
    restored.restore(section.version, section.payloads)
    assert restored == producers
    assert len(restored) == (size <= MAX_NAME_BYTES)


@pytest.mark.parametrize("size", [MAX_TAG_BYTES, MAX_TAG_BYTES + 1])
def test_a_leader_lets_a_group_want_no_longer_tag(size: int) -> None:
    """A member that is older than the bound would end at its next snapshot."""
    room = Room()
    seat = room.seat()
    member = seat.join(settings=Settings(topics=("t",), tags=(("t", ("a" * size,)),)))
    room.pass_ms(300, seat)
    is_long = size > MAX_TAG_BYTES
    assert member.code is (ErrorCode.INVALID_ARGUMENT if is_long else None)
    assert (room.machine.groups.joined("g") is None) == is_long
