"""Looks at groups that take many turns (ADR 64): what they find, and what becomes of it if anything
changes before they are over."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.leader.groups.assigning import DROPPED
from broker.leader.groups.pace import USUAL_PACE
from broker.leader.groups.planning import (
    Grant,
    HandOver,
    Plan,
    is_of_now,
    plan,
    still_holds,
)
from broker.leader.groups.steps import Steps, at_once
from broker.leader.groups.strategies import BUILT_IN, strategy_of
from broker.leader.groups.targets import Facts, When
from broker.services.attendance import CHANGES_AT_ONCE
from broker.state.groups import Group, Settings
from broker.state.leases import Place
from dledger.wire.commands_pb2 import GrantLeasesCommand, QueueGrant, TopicGrants
from tests.broker.attended import QUEUES, Room, share
from tests.broker.consuming import END, Owners, wanted

TOPICS = ("t", "u")
MEMBERS = "abcd"
SOON_MS = 300


def look(
    owners: Owners, hand_over: HandOver, strategy: str = "", now: int = 5
) -> tuple[Facts, Steps[Plan]]:
    group = owners.groups.joined("g")
    assert isinstance(group, Group)
    return plan(owners, group, hand_over, strategy_of(strategy), When(now, may_move=True), 3)


def granted(owners: Owners, grant: Grant) -> bool:
    """Whether the grant, which is applied now, takes effect."""
    count = len(owners.topics[grant.topic].next_offsets) if grant.topic in owners.topics else 1
    told = TopicGrants(
        topic=grant.topic,
        incarnation=grant.incarnation,
        starts=[0] * count,
        grants=[
            QueueGrant(queue_id=grant.queue_id, session=grant.session, former_epoch=grant.former)
        ],
    )
    command = GrantLeasesCommand(group="g", topics=[told])
    return owners.consuming.grant(command, owners.at()) is None


# --- what happens meanwhile -------------------------------------------------------------------

Change = tuple[str, int, int]  # what, of which member or topic, and a number
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "end", "hold", "hold", "release", "topic", "settings"]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=12,
)


def change(owners: Owners, what: Change) -> None:
    kind, which, number = what
    group = owners.groups.joined("g")
    version = 0 if group is None else group.version
    member = owners.groups.members("g").get(MEMBERS[which])
    if kind == "join":
        owners.join(
            MEMBERS[which], b"token--%d" % number, settings=wanted(*TOPICS, version=version)
        )
    elif kind == "settings":
        topics = TOPICS[: 1 + number % 2]
        owners.join(MEMBERS[which], b"another%d" % which, settings=wanted(*topics, version=number))
    elif kind == "end" and member is not None:
        owners.end(member.session)
    elif kind == "topic":
        name = TOPICS[which % 2]
        if name in owners.topics:
            owners.delete(name)
        else:
            owners.topic(name, 1 + number)
    elif kind == "hold" and member is not None:
        for topic in list(owners.topics.values()):
            place = Place("g", topic.incarnation, number)
            if number < len(topic.next_offsets):
                former = owners.leases.of(place).epoch
                granted(
                    owners, Grant(topic.name, topic.incarnation, number, member.session, former)
                )
    elif kind == "release" and member is not None:
        for place in owners.leases.held_by(member.session)[number:]:
            owners.leases.release(place)


def shape(found: Plan, facts: Facts) -> tuple[list[Grant], dict[int, list[Place]], object]:
    """What a plan says of queues that the group wants."""
    known = {each.incarnation for each in facts.seats}
    asked = {
        session: [place for place in places if place.incarnation in known]
        for session, places in found.asked.items()
    }
    return (
        [each for each in found.grants if each.incarnation in known],
        {session: places for session, places in asked.items() if places},
        {
            incarnation: {queue_id: each.epoch for queue_id, each in queues.items()}
            for incarnation, queues in found.hand_over.asked.items()
            if incarnation in known
        },
    )


@given(CHANGES, CHANGES, st.sampled_from(sorted(BUILT_IN)), st.randoms())
def test_a_look_in_steps_finds_what_one_in_a_turn_would_have(
    before: list[Change], meanwhile: list[Change], strategy: str, chance: Random
) -> None:
    """Of the state at its beginning, whatever is applied between two steps; and of its grants
    exactly those still hold that would take effect."""
    owners = Owners()
    owners.topic("t", 3)
    owners.topic("u", 2)
    owners.join("a", settings=wanted(*TOPICS))
    for each in before:
        change(owners, each)
    if owners.groups.joined("g") is None:
        return
    first = at_once(look(owners, HandOver())[1])
    first.begin(4)
    facts, steps = look(owners, first.hand_over, strategy)
    expected = shape(at_once(look(owners, first.hand_over, strategy)[1]), facts)
    left = list(meanwhile)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Plan = end.value
            break
        if left and chance.random() < 0.5:
            change(owners, left.pop(0))
    assert shape(found, facts) == expected
    for grant in found.grants:
        assert still_holds(grant, owners, "g") == granted(owners, grant), grant


def hold(owners: Owners, member: str) -> None:
    """The member has the queue that the plan found free."""
    session = owners.groups.members("g")[member].session
    assert granted(owners, Grant("t", owners.topics["t"].incarnation, 0, session, 0))


@pytest.mark.parametrize(
    "happens",
    [
        lambda owners: hold(owners, "a"),
        lambda owners: hold(owners, "b"),
        lambda owners: owners.end(owners.groups.members("g")["a"].session),
        lambda owners: owners.join("b", b"another1", settings=wanted("u", version=1)),
        lambda owners: owners.delete("t"),
        lambda owners: (owners.delete("t"), owners.topic("t")),
    ],
)
def test_what_would_be_refused_is_not_proposed(happens: Callable[[Owners], object]) -> None:
    """Somebody has the queue by now; its member has gone, or may not have it any more; the queue
    has gone, or is another one."""
    owners = Owners()
    owners.topic("t", 1)
    owners.join("a", settings=wanted("t"))
    (grant,) = at_once(look(owners, HandOver())[1]).grants
    owners.join("b", settings=wanted("t"))
    assert still_holds(grant, owners, "g")
    happens(owners)
    assert not still_holds(grant, owners, "g")
    assert not granted(owners, grant)


@pytest.mark.parametrize(
    ("happens", "is_same"),
    [
        (lambda owners: None, True),
        (lambda owners: owners.topics.advance(owners.topics["t"], 0, END + 9), True),
        (lambda owners: owners.leases.release(Place("g", 1, 0)), True),
        (lambda owners: owners.join("b", settings=wanted("t", "u")), False),
        (lambda owners: owners.end(owners.groups.members("g")["a"].session), False),
        (lambda owners: owners.join("a", b"another1", settings=wanted("t", "u")), False),
        (lambda owners: owners.topic("u"), False),
        (lambda owners: owners.delete("t"), False),
        (lambda owners: owners.join("b", settings=wanted("t", version=2)), False),
    ],
)
def test_a_plan_is_of_now_while_nobody_comes_or_goes(
    happens: Callable[[Owners], object], is_same: bool
) -> None:
    """Neither members nor queues; messages may come, and queues be given back."""
    owners = Owners()
    owners.topic("t")
    session = owners.join("a", settings=wanted("t", "u"))
    assert isinstance(session, int)
    owners.grant(session, 0, starts=(0, 0, 0))
    facts, _ = look(owners, HandOver())
    happens(owners)
    assert is_of_now(facts, owners, "g") == is_same


# --- on a leader ------------------------------------------------------------------------------


def one_step_a_turn(room: Room) -> None:
    """Whatever is long takes many turns."""
    room.leader.hand.begin = lambda: lambda: True


def test_who_joins_in_the_middle_of_a_look_is_counted() -> None:
    """What was planned for one alone is proposed to nobody: of two each gets half at once, and
    nothing is asked back."""
    room = Room()
    one, other = room.seat(), room.seat()
    one_step_a_turn(room)
    first = one.join("a")
    room.pass_ms(30, one, other)
    assert not first.held
    second = other.join("b")
    room.pass_ms(3 * SOON_MS, one, other)
    assert share([first, second]) == [QUEUES // 2, QUEUES // 2]
    keeper = room.leader.replica.groups.statistics()
    assert (keeper.granted, keeper.taken) == (QUEUES, 0)
    assert keeper.dropped


def test_where_somebody_comes_or_goes_all_the_time_queues_are_given_out_all_the_same() -> None:
    """After so many plans that were old when they were made, what still holds of one is used."""
    room = Room()
    seat = room.seat()
    one_step_a_turn(room)
    member = seat.join("a")
    for number in range(12 * DROPPED):  # a process that is started, and another one in its place
        room.seat().join("b", token=b"token-%02d" % number)
        room.pass_ms(60, seat)
        if member.held:
            break
    assert member.held
    assert room.leader.replica.groups.statistics().dropped >= DROPPED


def test_who_is_asked_has_its_time_from_the_end_of_the_look_on() -> None:
    """However long that took: it is told then."""
    room = Room()
    one, other = room.seat(), room.seat()
    first = one.join("a")
    room.pass_ms(SOON_MS, one)
    one_step_a_turn(room)
    other.join("b")
    for _ in range(200):
        room.pass_ms(10, one, other)
        if first.asked:
            break
    assert first.asked
    room.pass_ms(USUAL_PACE.release_ms + 50, one, other)
    assert len(first.held) == QUEUES
    room.pass_ms(3 * SOON_MS, one, other)
    assert len(first.held) == QUEUES // 2


def test_who_goes_in_the_middle_of_a_look_is_given_nothing() -> None:
    """Its stream breaks: what was planned for it waits until it is back."""
    room = Room()
    seat = room.seat()
    one_step_a_turn(room)
    settings = Settings(is_orderly=True, topics=("t",))
    member = seat.join("a", settings=settings)
    keeper = room.leader.replica.groups
    for _ in range(200):  # the first look may be of before it was attached
        room.pass_ms(10, seat)
        if keeper.looks_under_way:
            break
    seat.break_off()
    room.pass_ms(USUAL_PACE.keep_ms)
    assert not keeper.statistics().granted
    back = room.seat()
    again = back.join("a", session=member.session, settings=settings)
    room.pass_ms(3 * SOON_MS, back)
    assert len(again.held) == QUEUES


def test_a_change_of_leader_in_the_middle_of_a_look_leaves_nothing_of_it() -> None:
    """The next leader looks for itself."""
    room = Room(3)
    seat = room.seat()
    one_step_a_turn(room)
    member = seat.join("a")
    room.pass_ms(30, seat)
    before = room.leader
    assert before.replica.groups.looks_under_way
    room.lead(next(name for name in room.world.members if name != before.name))
    back = room.seat()
    again = back.join("a", session=member.session)
    room.pass_ms(SOON_MS, back)
    assert len(again.held) == QUEUES
    assert not before.replica.groups.looks_under_way


# --- what a member is told --------------------------------------------------------------------


def test_of_many_queues_only_those_are_looked_at_that_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member of which one queue is wanted back is told so for the price of one."""
    room = Room()
    room.topic("wide", 2 * CHANGES_AT_ONCE)
    one, other = room.seat(), room.seat()
    settings = Settings(topics=("t", "wide"))
    first = one.join("a", settings=settings)
    room.pass_ms(2 * SOON_MS, one)
    assert (len(first.held), first.is_whole) == (2 * CHANGES_AT_ONCE + QUEUES, True)
    looked_at: list[Place] = []
    compare = one.attendance._compare

    def noted(session: object, mine: object, place: Place, found: object) -> None:
        looked_at.append(place)
        compare(session, mine, place, found)  # type: ignore[arg-type]

    monkeypatch.setattr(one.attendance, "_compare", noted)
    assert room.commit(first, 0, 0, release=True) == ()
    room.pass_ms(50, one, other)
    assert len(looked_at) <= 2 * QUEUES
    room.pass_ms(SOON_MS, one, other)
    assert len(first.held) == 2 * CHANGES_AT_ONCE + QUEUES


def test_a_member_is_told_in_the_end_of_what_nobody_said() -> None:
    """Who gives a queue back, and goes away from the call before it is answered."""
    room = Room()
    seat = room.seat()
    member = seat.join()
    room.pass_ms(SOON_MS, seat)
    place = Place("g", room.machine.topics["t"].incarnation, 1)
    room.machine.leases.release(place)
    epoch = member.held["t", 1]
    room.pass_ms(2_000, seat)
    assert member.held.get(("t", 1)) != epoch


def test_everything_of_a_broadcast_group_is_told_in_parts() -> None:
    """And what a new topic brings, to each."""
    room = Room()
    room.topic("wide", 3 * CHANGES_AT_ONCE)
    seat = room.seat()
    settings = Settings(is_broadcast=True, topics=("later", "wide"))
    members = [seat.join(name, settings=settings) for name in "ab"]
    room.pass_ms(SOON_MS, seat)
    assert share(members) == [3 * CHANGES_AT_ONCE] * 2
    assert all(each.is_whole for each in members)
    room.topic("later", 2)
    room.pass_ms(SOON_MS, seat)
    assert share(members) == [3 * CHANGES_AT_ONCE + 2] * 2
    room.delete("wide")
    room.pass_ms(SOON_MS, seat)
    assert share(members) == [2, 2]
