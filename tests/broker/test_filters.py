"""Messages chosen by their tags: which ones, how far a pull looks, and what groups agree on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode
from broker.reading.queues import Found
from broker.reading.tags import UNITS_AT_ONCE, look_through, wanted_tags
from broker.services.messages import PullRequest, tags_of_pull
from broker.services.queue_pulls import Pulled, QueuesRequest, QueueWish
from broker.state.filters import MAX_TAGS, MAX_TAGS_BYTES
from broker.state.groups import Groups, Settings
from broker.state.refusals import GroupDiffers, Malformed, TopicNotTaken
from broker.state.topics import TopicRef
from dledger.level import DELIVERY_LEVEL
from dledger.records.layout import UNIT
from dledger.records.properties import tags_code
from dledger.records.record import decode_records
from dledger.wire.commands_pb2 import GroupSettings, TagFilter, TagFilters
from store.voiding import void_unit
from tests.broker.asked import EndlessCall
from tests.broker.attended import Member, Room
from tests.broker.consuming import Owners, wanted
from tests.broker.leader import Bench, batch
from tests.scale import examples

SOON_MS = 300
TAGS = ("a", "b", "Aa", "BB", "ü", "\0", "")  # `Aa` and `BB` have one hash; that of `\0` is 0
T = TopicRef("t")


def with_tags(tags: Sequence[str], cuts: set[int]) -> Bench:
    """A message for each tag, in batches of one tag that also end at the cuts."""
    bench = Bench()
    bench.topic()
    begin = 0
    for at in range(1, len(tags) + 1):
        if at == len(tags) or tags[at] != tags[begin] or at in cuts:
            bodies = [b"%d" % number for number in range(begin, at)]
            bench.send(batch(begin, *bodies, tag=tags[begin]))
            if at % 3 == 0:  # others lie between
                bench.send(batch(at, b"elsewhere", queue_id=1), producer=b"")
            begin = at
    bench.commit()
    return bench


def by_tags(bench: Bench, offset: int, messages: int, size: int, *tags: str) -> Found:
    steps = bench.reader.pull_by_tags_in_steps((T, 0, offset), messages, size, wanted_tags(tags))
    while True:
        try:
            next(steps)
        except StopIteration as found:
            answer: Found = found.value
            return answer


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.sampled_from(TAGS), min_size=1, max_size=90),
    st.sets(st.integers(0, 90)),
    st.sets(st.sampled_from(TAGS[:-1]), min_size=1),
    st.sampled_from((1, 2, 7, 0)),
    st.sampled_from((1, 250, 600, 0)),
)
def test_pulls_give_exactly_what_is_wanted(
    tags: list[str], cuts: set[int], want: set[str], messages: int, size: int
) -> None:
    """One pull after the other: every wanted message once, in order, and nothing else; each says
    how far it has looked, and goes on."""
    bench = with_tags(tags, cuts)
    given_out: list[int] = []
    at = 0
    while at < len(tags):
        found = by_tags(bench, at, messages, size, *sorted(want))
        records = decode_records(found.records)
        offsets = [record.queue_offset for record in records]
        assert found.count == len(records) <= (messages or 32)
        assert all(at <= offset < found.next_offset for offset in offsets)
        assert at + found.count + found.passed_over == found.next_offset > at
        assert (found.max_offset, found.void_count) == (len(tags), 0)
        given_out += offsets
        at = found.next_offset
    assert given_out == [offset for offset, tag in enumerate(tags) if tag in want]
    assert by_tags(bench, at, 1, 1, "a") == Found(b"", 0, at, 0, at, found.incarnation)


def test_tags_of_one_hash_are_told_apart_by_the_record() -> None:
    """The hash chooses, the record decides."""
    assert tags_code("Aa") == tags_code("BB")
    bench = with_tags(["Aa", "BB", "Aa", "b"], set())
    found = by_tags(bench, 0, 10, 0, "BB")
    assert [record.tags for record in decode_records(found.records)] == ["BB"]
    assert (found.next_offset, found.filtered_count) == (4, 3)
    found = by_tags(bench, 2, 10, 0, "BB")
    assert (found.count, found.next_offset, found.filtered_count) == (0, 4, 2)


def test_what_is_looked_through_at_once_is_bounded() -> None:
    """However long the rest is in which nothing is wanted."""
    bench = Bench()
    bench.topic()
    for number in range(3):
        bench.send(batch(20_000 * number, *[b""] * 20_000, tag="b"))
    bench.send(batch(60_000, b"", tag="a"))
    bench.commit()
    at, looks = 0, 0
    while not (found := by_tags(bench, at, 1, 0, "a")).count:
        assert found.next_offset == at + UNITS_AT_ONCE
        at, looks = found.next_offset, looks + 1
    assert (looks, found.next_offset) == (1, 60_001)


@pytest.mark.parametrize("bit", range(8 * UNIT.size))
def test_a_unit_that_is_none_hides_nothing(bit: int) -> None:
    """In its place, its size or its hash: the message and what lies behind it is given or refused
    for now, and not passed over; and the queue is mended."""
    bench = with_tags(["b", "a", "b", "a", "b", "a"], set())
    for position in range(6):
        bench.disk.flip(bench.queue_file(), 20 * position + bit // 8, bit % 8)
        at = 0
        offsets: list[int] = []
        for _ in range(40):
            try:
                found = by_tags(bench, at, 1, 0, "a")
            except BrokerError as error:
                assert error.code is ErrorCode.NOT_READY  # noqa: PT017 - it may be right, too
                bench.world.tick()
                continue
            offsets += [record.queue_offset for record in decode_records(found.records)]
            at = found.next_offset
            if at == 6:
                break
        assert offsets == [1, 3, 5]


def test_void_units_are_passed_over_and_counted() -> None:
    """Wherever they lie; a unit of zeros is none, and ends the look."""
    unit = UNIT.struct()
    units = [unit.pack(1_000 * n, 200, tags_code("a" if n % 2 else "b")) for n in range(8)]
    for offset in (3, 4):
        units[offset] = void_unit(100 + offset, 1_000 * offset)
    look = look_through(b"".join(units), 100, wanted_tags(("a",)), 8)
    assert (look.wanted.tolist(), look.voids.tolist(), look.end) == ([1, 5, 7], [3, 4], 8)
    look = look_through(b"".join(units), 101, wanted_tags(("a",)), 8)  # void ones of another place
    assert (look.wanted.tolist(), look.voids.tolist(), look.end) == ([1], [], 3)
    units[6] = bytes(20)
    look = look_through(b"".join(units), 100, wanted_tags(("a",)), 8)
    assert (look.wanted.tolist(), look.end) == ([1], 5)  # nor is the one before it in its place
    units[6] = unit.pack(6_000, 200, tags_code("b"))
    look = look_through(b"".join(units), 100, wanted_tags(("a",)), 2)
    assert look.wanted.tolist() == [1, 2, 5, 6, 7]  # of whose hash nothing is known


# --- pulls that wait ---------------------------------------------------------------------------


def send(room: Room, tag: str, count: int = 1, queue_id: int = 0) -> None:
    node = room.leader
    bodies = [b"x"] * count
    sent = node.replica.services.sends.send(b"", [batch(0, *bodies, queue_id=queue_id, tag=tag)])
    room.world.run(node, sent)


def test_a_pull_waits_for_a_message_that_it_wants() -> None:
    """Others don't wake it; with the first that does come how far it has looked."""
    room = Room()
    node = room.leader
    send(room, "b", 3)
    request = PullRequest(T, 0, 0, hold_ms=5_000, tags=tags_of_pull(["a"]))
    pulled = node.begin(node.replica.services.pulls.pull(request, EndlessCall()))
    for _ in range(4):
        send(room, "b")
        room.pass_ms(50)
        assert not pulled.done()
    send(room, "a")
    room.pass_ms(50)
    found = pulled.result()
    assert (found.count, found.next_offset, found.filtered_count) == (1, 8, 7)


def test_a_pull_tells_at_its_end_how_far_it_has_looked() -> None:
    """So that whoever asked is behind by nothing that it doesn't want."""
    room = Room()
    node = room.leader
    request = PullRequest(T, 0, 0, hold_ms=400, tags=tags_of_pull(["a"]))
    pulled = node.begin(node.replica.services.pulls.pull(request, EndlessCall()))
    room.pass_ms(50)
    send(room, "b", 5)
    room.pass_ms(600)
    found = pulled.result()
    assert (found.count, found.next_offset, found.filtered_count) == (0, 5, 5)


def test_a_pull_that_has_passed_over_much_says_so_at_once() -> None:
    """Its work is bounded, and what it found isn't lost with the connection."""
    room = Room()
    node = room.leader
    for _ in range(2):
        send(room, "b", 20_000)
    request = PullRequest(T, 0, 0, hold_ms=5_000, tags=tags_of_pull(["a"]))
    found = room.world.run(node, node.replica.services.pulls.pull(request, EndlessCall()))
    assert (found.count, found.next_offset) == (0, UNITS_AT_ONCE)


@pytest.mark.parametrize(
    "tags", [[""], ["a"] * (MAX_TAGS + 1), ["a" * (MAX_TAGS_BYTES + 1)]], ids=["no", "many", "long"]
)
def test_a_pull_names_so_many_tags(tags: list[str]) -> None:
    """And none that no message can have."""
    with pytest.raises(BrokerError) as refused:
        tags_of_pull(tags)
    assert refused.value.code is ErrorCode.INVALID_ARGUMENT


# --- pulls of groups ---------------------------------------------------------------------------


def tagged(*tags: str, version: int = 0) -> Settings:
    return Settings(version=version, topics=("t",), tags=(("t", tags),) if tags else ())


def pull(
    room: Room,
    member: Member,
    *queues: int,
    hold_ms: int = 0,
    is_by_filter: bool = True,
    offset: int = 0,
) -> list[Pulled]:
    node = room.leader
    wishes = tuple(QueueWish(T, each, offset, member.held["t", each]) for each in queues)
    request = QueuesRequest(wishes, "g", is_by_filter=is_by_filter, hold_ms=hold_ms)
    return room.world.run(node, node.replica.services.queue_pulls.pull(request, EndlessCall()))


def counts(pulled: list[Pulled]) -> dict[int, tuple[int, int]]:
    """Messages, and what was passed over, by position."""
    return {
        at: (found.count, found.filtered_count) for at, found in pulled if isinstance(found, Found)
    }


def test_a_member_is_given_what_its_group_wants() -> None:
    """If it asks for that: one from before filters chooses by itself, and is given everything."""
    room = Room()
    seat = room.seat()
    member = seat.join(settings=tagged("a"))
    room.pass_ms(SOON_MS, seat)
    send(room, "b", 2)
    send(room, "a")
    assert counts(pull(room, member, 0)) == {0: (1, 2)}
    assert counts(pull(room, member, 0, is_by_filter=False)) == {0: (3, 0)}


def test_a_member_waits_for_a_message_that_its_group_wants() -> None:
    """In whichever queue; what was passed over in the others comes with it, or at the end."""
    room = Room()
    node = room.leader
    seat = room.seat()
    member = seat.join(settings=tagged("a"))
    room.pass_ms(SOON_MS, seat)
    wishes = tuple(QueueWish(T, each, 0, member.held["t", each]) for each in range(3))
    request = QueuesRequest(wishes, "g", is_by_filter=True, hold_ms=4_000)
    held = node.begin(node.replica.services.queue_pulls.pull(request, EndlessCall()))
    for queue_id in (0, 1, 0):
        send(room, "b", queue_id=queue_id)
        room.pass_ms(50, seat)
        assert not held.done()
    send(room, "a", queue_id=1)
    room.pass_ms(50, seat)
    assert counts(held.result()) == {0: (0, 2), 1: (1, 1)}
    assert counts(pull(room, member, 1, hold_ms=200, offset=2)) == {}
    assert counts(pull(room, member, 0, hold_ms=200)) == {0: (0, 2)}


def test_what_is_looked_through_at_once_is_bounded_over_all_queues() -> None:
    """Those that weren't come with the next pull, whose sender names them first."""
    room = Room()
    seat = room.seat()
    member = seat.join(settings=tagged("a"))
    room.pass_ms(SOON_MS, seat)
    for queue_id in (0, 1):
        for _ in range(2):
            send(room, "b", 20_000, queue_id)
    assert counts(pull(room, member, 0, 1, hold_ms=2_000)) == {0: (0, UNITS_AT_ONCE)}
    assert counts(pull(room, member, 1, 0, hold_ms=2_000)) == {0: (0, UNITS_AT_ONCE)}


def test_who_wants_other_tags_is_refused_by_name() -> None:
    """Until it comes with a higher version."""
    room = Room()
    seat, other = room.seat(), room.seat()
    seat.join("a", settings=tagged("a"))
    room.pass_ms(SOON_MS, seat)
    refused = other.join("b", settings=tagged("b"))
    room.pass_ms(SOON_MS, seat, other)
    assert refused.code is ErrorCode.GROUP_DIFFERS
    assert refused.ended is not None
    assert refused.ended.failure is not None
    assert "in tags" in refused.ended.failure.message
    third = other.join("c", settings=tagged("b", version=1))
    room.pass_ms(SOON_MS, seat, other)
    assert third.ended is None


def test_queues_go_to_who_wants_what_the_group_wants() -> None:
    """A member of an older version would pass over what is wanted now, and call it finished."""
    room = Room()
    old_seat, seat = room.seat(), room.seat()
    old = old_seat.join("a", settings=tagged("a"))
    room.pass_ms(SOON_MS, old_seat)
    new = seat.join("b", settings=tagged("a", "b", version=1))
    room.pass_ms(8_000, old_seat, seat)
    assert (old.queues, new.queues) == ([], [0, 1, 2, 3])
    send(room, "b")
    assert counts(pull(room, new, 0)) == {0: (1, 0)}  # by its own version, whoever is there yet


def test_a_lease_is_read_by_no_tags_of_its_holders() -> None:
    """Two members of one group could not be told apart from a mistake."""
    room = Room()
    seat = room.seat()
    member = seat.join(settings=tagged("a"))
    room.pass_ms(SOON_MS, seat)
    node = room.leader
    wish = QueueWish(T, 0, 0, member.held["t", 0], tags=tags_of_pull(["b"]))
    for epoch, is_refused in ((wish.epoch, True), (0, False)):
        request = QueuesRequest((QueueWish(T, 0, 0, epoch, tags=wish.tags),), "g")
        asked = node.replica.services.queue_pulls.pull(request, EndlessCall())
        if is_refused:
            with pytest.raises(BrokerError) as refused:
                room.world.run(node, asked)
            assert refused.value.code is ErrorCode.INVALID_ARGUMENT
        else:
            assert room.world.run(node, asked) == []


# --- the state ---------------------------------------------------------------------------------


def said(*tags: str, version: int = 0) -> GroupSettings:
    """Settings that say something of tags."""
    topics = [TagFilter(topic="t", tags=tags)] if tags else []
    return wanted("t", version=version, filters=TagFilters(topics=topics))


def test_the_first_to_say_something_says_it_for_all() -> None:
    """Members from before filters say nothing, and are no others than who does."""
    owners = Owners()
    owners.topic()
    assert isinstance(owners.join("old"), int)
    assert isinstance(owners.join("new", settings=said("a")), int)
    assert owners.join("other", settings=said("b")) == GroupDiffers("g", ("tags",), 0)
    assert owners.join("other", settings=said()) == GroupDiffers("g", ("tags",), 0)
    assert isinstance(owners.join("older"), int)
    group = owners.groups.joined("g")
    assert group is not None
    assert group.settings.tags == (("t", ("a",)),)
    owners.check()


def test_a_session_of_other_tags_is_granted_nothing() -> None:
    """Whoever leads may still think that it could be."""
    owners = Owners()
    owners.topic()
    old = owners.join("old", settings=said("a"))
    new = owners.join("new", settings=said("b", version=1))
    assert isinstance(old, int)
    assert isinstance(new, int)
    refusal = owners.grant(old, starts=[0, 0, 0])
    assert [each.why for each in refusal.queues] == [TopicNotTaken("t")]  # type: ignore[union-attr]
    assert owners.grant(new, 1) is None
    owners.check()


@pytest.mark.parametrize(
    "filters",
    [
        [("u", ["a"])],
        [("t", [])],
        [("t", ["b", "a"])],
        [("t", ["a", "a"])],
        [("t", [""])],
        [("t", ["a"]), ("t", ["b"])],
        [("t", ["a" * (MAX_TAGS_BYTES + 1)])],
        [("t", [f"{number:05}" for number in range(MAX_TAGS + 1)])],
    ],
)
def test_filters_that_are_none_join_nothing(filters: list[tuple[str, list[str]]]) -> None:
    """Whatever a leader has let through."""
    owners = Owners()
    owners.topic()
    topics = [TagFilter(topic=topic, tags=tags) for topic, tags in filters]
    asked = wanted("t", filters=TagFilters(topics=topics))
    assert isinstance(owners.join(settings=asked), Malformed)


def test_a_level_before_filters_has_none() -> None:
    """Members that know no more of the bytes do the same with them."""
    for level in (DELIVERY_LEVEL - 1, DELIVERY_LEVEL):
        owners = Owners()
        owners.level.current = level
        owners.topic()
        assert isinstance(owners.join(settings=said("a")), int)
        group = owners.groups.joined("g")
        assert group is not None
        assert (group.settings.tags is None) == (level < DELIVERY_LEVEL)
        assert ("group-filters" in [each.name for each in owners.sections()]) == (
            level == DELIVERY_LEVEL
        )
        owners.check()


TAG_SETS = st.lists(st.sampled_from("abcü"), max_size=3, unique=True).map(sorted)


@given(
    st.lists(
        st.tuples(st.sampled_from("mno"), st.integers(0, 3), st.none() | TAG_SETS, st.booleans()),
        max_size=12,
    )
)
def test_members_want_the_same_whoever_comes_and_goes(
    joins: list[tuple[str, int, list[str] | None, bool]],
) -> None:
    """Any joins and ends in any order: what the group wants changes with a higher version alone,
    unless nobody had said anything; and a snapshot gives the same again."""
    owners = Owners()
    owners.topic()
    for number, (member, version, tags, ends) in enumerate(joins):
        before = owners.groups.joined("g")
        held = None if before is None else (before.version, before.settings.tags)
        asked = wanted("t", version=version) if tags is None else said(*tags, version=version)
        session = owners.join(member, b"token%03d" % number, settings=asked)
        after = owners.groups.joined("g")
        assert after is not None
        if held is not None and held != (after.version, after.settings.tags):
            assert after.version > held[0] or held[1] is None
        if isinstance(session, int) and tags is not None:
            assert after.settings.tags == ((("t", tuple(tags)),) if tags else ())
        if isinstance(session, int) and ends:
            owners.end(session)
        owners.check()
    assert isinstance(owners.groups, Groups)
