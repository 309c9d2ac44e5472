"""Who is to have which queue (ADR 55): strategies by themselves, and what they make happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.leader.groups import strategies
from broker.leader.groups.planning import HandOver, Plan, plan
from broker.leader.groups.presence import SETTLE_TICKS, Presence
from broker.leader.groups.steps import STEP, at_once
from broker.leader.groups.strategies import (
    BUILT_IN,
    Installed,
    Member,
    QueueName,
    Share,
    StrategyUnknown,
    share_out,
    sticky,
    strategy_of,
)
from broker.leader.groups.targets import When
from broker.state.groups import Group
from broker.state.leases import Place
from dledger.wire.commands_pb2 import QueueChoice
from tests.broker.consuming import Owners, wanted


def members(count: int, *topics: str) -> list[Member]:
    return [Member(n + 1, f"m{n:03}", frozenset(topics or ("t",))) for n in range(count)]


def queues(count: int, topic: str = "t") -> list[QueueName]:
    return [QueueName(topic, number) for number in range(count)]


def shared(name: str, share: Share) -> Mapping[QueueName, int]:
    """What the strategy says, in one turn."""
    given = BUILT_IN[name](share)
    return given if isinstance(given, Mapping) else at_once(given)


SHARES = st.builds(
    lambda count, number, held, salt: Share(
        members(count),
        queues(number),
        {
            QueueName("t", queue): session % (count + 2) + 1
            for queue, session in held.items()
            if queue < number
        },
        salt,
    ),
    st.integers(1, 7),
    st.integers(0, 30),
    st.dictionaries(st.integers(0, 29), st.integers(0, 9)),
    st.integers(0, 1 << 32),
)


@given(SHARES, st.sampled_from(["STICKY", "AVG", "AVG_BY_CIRCLE"]))
def test_even_strategies_are_even(share: Share, name: str) -> None:
    """Each queue has a holder, and nobody two more than another."""
    found = at_once(share_out(BUILT_IN[name], share))
    assert set(found) == set(share.queues)
    counts = Counter(found.values())
    sizes = [counts[member.session] for member in share.members]
    assert max(sizes) - min(sizes) <= 1


@given(SHARES)
def test_sticky_moves_as_few_as_being_even_takes(share: Share) -> None:
    """What is over each one's share, and nothing else."""
    found = shared("STICKY", share)
    sessions = {member.session for member in share.members}
    held = Counter(session for session in share.held.values() if session in sessions)
    least, more = divmod(len(share.queues), len(share.members))
    sizes = sorted((held[each] for each in sessions), reverse=True)
    needed = sum(max(0, size - least - (at < more)) for at, size in enumerate(sizes))
    moved = sum(found[q] != session for q, session in share.held.items() if session in sessions)
    assert moved == needed
    kept = Share(share.members, share.queues, found, share.salt + 1)
    assert shared("STICKY", kept) == found  # nothing moves that doesn't have to


def test_one_joining_a_hundred_moves_little() -> None:
    """Their hundredth part, and one."""
    share = Share(members(100), queues(1_000), {})
    before = shared("STICKY", share)
    after = shared("STICKY", Share(members(101), queues(1_000), before))
    assert sum(before[each] != after[each] for each in before) <= 11


def test_the_remainder_goes_to_another_one_by_the_salt() -> None:
    """So that of many small groups not always the same member has most."""
    for name in ("STICKY", "AVG", "AVG_BY_CIRCLE"):
        chosen = {
            next(iter(shared(name, Share(members(4), queues(1), {}, salt)).values()))
            for salt in range(4)
        }
        assert chosen == {1, 2, 3, 4}


def test_averagely_gives_neighbours_and_the_circle_deals_out() -> None:
    """As RocketMQ's do, but for who is first."""
    share = Share(members(2), queues(5), {})
    by_member: dict[int, list[int]] = {}
    for queue, session in shared("AVG", share).items():
        by_member.setdefault(session, []).append(queue.queue_id)
    assert sorted(by_member.values()) == [[0, 1, 2], [3, 4]]
    circle = shared("AVG_BY_CIRCLE", share)
    assert [circle[each] == circle[queues(5)[0]] for each in queues(5)] == [
        True,
        False,
        True,
        False,
        True,
    ]


def test_configuration_gives_what_is_named() -> None:
    """The first by name of two that name the same; what nobody names nobody has."""
    some = [
        Member(1, "a", frozenset("t"), frozenset({QueueName("t", 0), QueueName("t", 1)})),
        Member(2, "b", frozenset("t"), frozenset({QueueName("t", 1), QueueName("t", 2)})),
    ]
    found = shared("CONFIG", Share(some, queues(4), {}))
    assert found == {QueueName("t", 0): 1, QueueName("t", 1): 1, QueueName("t", 2): 2}


def test_a_ring_moves_only_what_the_newcomer_gets() -> None:
    """And when it goes, only that again."""
    before = shared("CONSISTENT_HASH", Share(members(5), queues(200), {}))
    after = shared("CONSISTENT_HASH", Share(members(6), queues(200), {}))
    assert {after[each] for each in before if before[each] != after[each]} == {6}
    assert len(set(before.values())) == 5


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_small_group_takes_few_steps_and_a_large_one_many(name: str) -> None:
    """A turn may have one step only: a look that takes hundreds of them rests as long again."""
    taken: list[int] = []
    for some in (Share(members(3), queues(4), {}), Share(members(2_000), queues(8_000), {})):
        steps = share_out(BUILT_IN[name], some)
        taken.append(sum(1 for _ in steps))
    assert taken[0] <= 8
    assert taken[1] >= 8_000 // STEP


def test_members_get_queues_of_topics_that_they_want() -> None:
    """Of others they get none, whatever the strategy."""
    some = [Member(1, "a", frozenset({"t"})), Member(2, "b", frozenset({"t", "u"}))]
    everything = queues(4) + queues(3, "u") + queues(2, "v")
    found = at_once(share_out(sticky, Share(some, everything, {})))
    assert {found[each] for each in queues(3, "u")} == {2}
    assert not found.keys() & set(queues(2, "v"))
    assert Counter(found[each] for each in queues(4)) == {1: 2, 2: 2}


def test_a_strategy_may_come_from_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an entry point; one that can't be loaded is unknown."""
    module = "tests.broker.test_strategies"
    found = {
        "MINE": EntryPoint("MINE", f"{module}:everything_to_the_first", strategies.ENTRY_POINTS),
        "GONE": EntryPoint("GONE", "no.such.module:x", strategies.ENTRY_POINTS),
    }

    def entry_points(*, group: str) -> Sequence[EntryPoint]:
        assert group == strategies.ENTRY_POINTS
        return tuple(found.values())

    monkeypatch.setattr(strategies, "entry_points", entry_points)
    monkeypatch.setattr(strategies, "INSTALLED", Installed())
    assert at_once(share_out(strategy_of("MINE"), Share(members(2), queues(2), {}))) == {
        QueueName("t", 0): 1,
        QueueName("t", 1): 1,
    }
    for name in ("GONE", "NOBODYS"):
        with pytest.raises(StrategyUnknown):
            strategy_of(name)
    assert strategy_of("") is sticky


def test_what_is_installed_is_looked_at_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may join naming anything, and a look takes milliseconds of the event loop. What is
    installed since, and what couldn't be loaded, is found by the next one."""
    now, looks, loads = [5.0], [0], [0]
    found: list[EntryPoint] = []

    class Faulty(EntryPoint):
        def load(self) -> object:
            loads[0] += 1
            raise ImportError

    def entry_points(*, group: str) -> Sequence[EntryPoint]:
        looks[0] += 1
        return tuple(found)

    def of(name: str) -> object:
        try:
            return installed.of(name)
        except StrategyUnknown:
            return None

    monkeypatch.setattr(strategies, "entry_points", entry_points)
    installed = Installed(lambda: now[0])
    assert [of(f"S{number}") for number in range(100)] == [None] * 100
    mine = "tests.broker.test_strategies:everything_to_the_first"
    found += [
        EntryPoint("MINE", mine, strategies.ENTRY_POINTS),
        Faulty("GONE", "no.such.module:x", strategies.ENTRY_POINTS),
        EntryPoint("TWICE", mine, strategies.ENTRY_POINTS),
        EntryPoint("TWICE", "other:x", strategies.ENTRY_POINTS),
    ]
    assert (of("MINE"), looks[0]) == (None, 1)
    now[0] += strategies.LOOK_AGAIN_S
    names = ("MINE", "GONE", "GONE", "TWICE", "MINE")
    assert [of(name) for name in names] == [everything_to_the_first, *[None] * 3, of("MINE")]
    assert (looks[0], loads[0]) == (2, 1)
    now[0] += strategies.LOOK_AGAIN_S
    assert (of("GONE"), looks[0], loads[0]) == (None, 3, 2)


def everything_to_the_first(share: Share) -> dict[QueueName, int]:
    """What a user might bring along."""
    return dict.fromkeys(share.queues, share.members[0].session)


def test_what_a_strategy_may_not_say_is_found() -> None:
    """A session that isn't there, a queue that isn't."""
    share = Share(members(1), queues(1), {})
    with pytest.raises(ValueError, match="session 9"):
        at_once(share_out(lambda _: {QueueName("t", 0): 9}, share))
    with pytest.raises(ValueError, match="nowhere"):
        at_once(share_out(lambda _: {QueueName("nowhere", 0): 1}, share))


# --- presence ---------------------------------------------------------------------------------


def test_presence_counts_ticks_that_were_run() -> None:
    """Heard: there for a session. Broken off: for a little while, and never longer than before."""
    presence = Presence(session_ticks=10, away_ticks=3)
    presence.heard(1)
    presence.heard(2)
    for _ in range(8):
        presence.on_tick(is_late=False)
    presence.heard(2)
    presence.broken_off(1)  # has 2 left, which is less than 3
    for _ in range(2):
        assert presence.due() == []
        presence.on_tick(is_late=False)
    assert presence.due() == [1]
    assert presence.due() == [1]  # until it is forgotten, or heard
    presence.forget(1)
    presence.broken_off(2)
    for _ in range(3):
        assert presence.due() == []
        presence.on_tick(is_late=False)
    assert presence.due() == [2]
    presence.heard(2)
    assert presence.due() == []


def test_after_a_late_tick_nobody_is_due_at_once() -> None:
    """What was said meanwhile is still to be read."""
    presence = Presence(session_ticks=2, away_ticks=1)
    presence.heard(1)
    presence.on_tick(is_late=False)
    presence.on_tick(is_late=True)
    for _ in range(SETTLE_TICKS):
        assert presence.due() == []
        presence.on_tick(is_late=False)
    assert presence.due() == [1]


@given(st.lists(st.tuples(st.sampled_from("hbft"), st.integers(1, 4)), max_size=60))
def test_presence_is_what_a_simple_table_says(steps: list[tuple[str, int]]) -> None:
    """Whatever is heard, broken off and forgotten, in whichever order."""
    presence, until, now = Presence(5, 2), dict[int, int](), 0
    for what, session in steps:
        if what == "h":
            presence.heard(session)
            until[session] = now + 5
        elif what == "b":
            presence.broken_off(session)
            if session in until:
                until[session] = min(until[session], now + 2)
        elif what == "f":
            presence.forget(session)
            until.pop(session, None)
        else:
            presence.on_tick(is_late=False)
            now += 1
        assert sorted(presence.due()) == sorted(s for s, tick in until.items() if tick <= now)
        assert len(presence) == len(until)


# --- plans ------------------------------------------------------------------------------------


RELEASE = 30  # ticks


class Looks:
    """One look after the other at group g, each in one turn."""

    def __init__(self, owners: Owners) -> None:
        self.owners = owners
        self.hand_over = HandOver()

    def at(
        self,
        now: int,
        *,
        may_move: bool = True,
        without_retries: Collection[int] = (),
        awaited: Mapping[int, int] | None = None,
        strategy: str = "",
    ) -> Plan:
        group = self.owners.groups.joined("g")
        assert isinstance(group, Group)
        when = When(now, may_move, frozenset(without_retries), awaited or {})
        _, steps = plan(self.owners, group, self.hand_over, strategy_of(strategy), when, 0)
        found = at_once(steps)
        found.begin(now + RELEASE)
        self.hand_over = found.hand_over
        return found


def granted(found: Plan) -> set[tuple[str, int]]:
    """Of which topics queues are granted, and to whom."""
    return {(each.topic, each.session) for each in found.grants}


def test_a_plan_grants_what_is_free_and_asks_for_what_is_not() -> None:
    """Once; when the time is over it is granted over the holder's head."""
    owners = Owners()
    looks, incarnation = Looks(owners), owners.topic(queues=2)
    first = owners.session("a")
    found = looks.at(1)
    assert [(each.queue_id, each.session, each.former) for each in found.grants] == [
        (0, first, 0),
        (1, first, 0),
    ]
    for queue_id in range(2):
        owners.grant(first, queue_id, starts=(0, 0))
    second = owners.session("b")
    still = looks.at(2, may_move=False)
    assert (still.grants, still.asked) == ([], {})
    found = looks.at(2)
    ((queue_id, asked),) = looks.hand_over.asked[incarnation].items()
    place = Place("g", incarnation, queue_id)
    assert (found.grants, found.asked, found.wake) == ([], {first: [place]}, 32)
    again = looks.at(31)
    assert (again.grants, again.asked, again.wake) == ([], {}, 32)
    assert looks.hand_over.asked == {incarnation: {queue_id: asked}}
    (grant,) = looks.at(32).grants
    epoch = owners.leases.of(place).epoch
    assert (grant.queue_id, grant.session, grant.former) == (place.queue_id, second, epoch)
    owners.end(second)
    found = looks.at(33)
    assert (found.grants, found.asked, looks.hand_over.asked) == ([], {first: [place]}, {})


def of_session(found: Plan, session: int) -> list[int]:
    return [each.queue_id for each in found.grants if each.session == session]


@pytest.mark.parametrize("strategy", sorted(BUILT_IN.keys() - {"CONFIG"}))
def test_who_is_not_here_is_given_nothing_and_waited_for(strategy: str) -> None:
    """What would be its own is free until then, and goes to whoever is here afterwards."""
    owners = Owners()
    looks = Looks(owners)
    owners.topic(queues=8)
    here, away = owners.session("a"), owners.session("b")
    theirs = of_session(looks.at(1, strategy=strategy), away)
    assert theirs
    found = looks.at(2, awaited={away: 9}, strategy=strategy)
    assert sorted([*of_session(found, here), *theirs]) == list(range(8))
    assert (of_session(found, away), found.wake) == ([], 9)
    found = looks.at(9, awaited={away: 9}, strategy=strategy)
    assert (len(of_session(found, here)), found.wake) == (8, 0)
    assert not looks.at(9, awaited={away: 9, here: 9}, strategy=strategy).grants


def test_what_is_named_by_who_is_not_here_is_for_nobody_else() -> None:
    """Unless another one names it as well."""
    owners = Owners()
    looks = Looks(owners)
    owners.topic(queues=3)
    chosen = wanted("t", strategy="CONFIG")
    away = owners.join("a", settings=chosen, choices=[QueueChoice(topic="t", queue_ids=[0, 1])])
    here = owners.join("b", settings=chosen, choices=[QueueChoice(topic="t", queue_ids=[1, 2])])
    assert isinstance(away, int)
    assert isinstance(here, int)
    assert of_session(looks.at(1, strategy="CONFIG"), away) == [0, 1]
    found = looks.at(9, awaited={away: 9}, strategy="CONFIG")
    assert (of_session(found, here), of_session(found, away)) == ([1, 2], [])


def test_who_is_not_here_keeps_what_it_holds() -> None:
    """And nothing is asked of others for it, nor taken."""
    owners = Owners()
    looks, incarnation = Looks(owners), owners.topic(queues=4)
    here = owners.session("a")
    for queue_id in range(3):
        owners.grant(here, queue_id, starts=(0, 0, 0, 0) if not queue_id else ())
    away = owners.session("b")
    owners.grant(away, 3)
    looks.at(1)
    ((queue_id, _),) = looks.hand_over.asked[incarnation].items()
    place = Place("g", incarnation, queue_id)
    found = looks.at(1 + RELEASE, awaited={away: 0})
    assert (found.grants, found.asked, looks.hand_over.asked) == ([], {here: [place]}, {})
    found = looks.at(2 + RELEASE, awaited={away: 0})
    assert (found.grants, found.asked) == ([], {})
    owners.leases.release(place)
    (grant,) = looks.at(3 + RELEASE, awaited={away: 0}).grants
    assert (grant.queue_id, grant.session) == (queue_id, here)


def test_what_failed_goes_to_an_older_version_while_the_newest_is_not_here() -> None:
    """Whether its member has use for it only that can tell."""
    owners = Owners()
    looks = Looks(owners)
    owners.topic("%RETRY%g", 1)
    owners.topic("a")
    owners.topic("b")
    older = owners.join("m", settings=wanted("a", version=1))
    newer = owners.join("n", settings=wanted("a", "b", version=2))
    assert isinstance(older, int)
    assert isinstance(newer, int)
    assert ("%RETRY%g", newer) in granted(looks.at(0))
    assert "%RETRY%g" not in {topic for topic, _ in granted(looks.at(1, awaited={newer: 9}))}
    assert ("%RETRY%g", older) in granted(looks.at(9, awaited={newer: 9}))


def test_a_plan_takes_back_what_is_wanted_no_more() -> None:
    """For nobody."""
    owners = Owners()
    looks = Looks(owners)
    owners.topic()
    owners.topic("u", 1)
    owners.join(settings=wanted("t", "u"))
    session = owners.groups.members("g")["m"].session
    owners.grant(session, 0, topic="u", starts=(0,))
    epoch = owners.index
    owners.join("n", settings=wanted("t", version=1))
    looks.at(0)
    incarnation = owners.topics["u"].incarnation
    assert looks.hand_over.is_asked(Place("g", incarnation, 0), epoch)
    taken = [each for each in looks.at(99).grants if each.former]
    assert [(each.topic, each.session) for each in taken] == [("u", 0)]


def test_what_failed_is_for_members_of_the_newest_version_that_takes_it() -> None:
    """One of an older version may have no handler for it. It has it while nobody else does."""
    owners = Owners()
    looks = Looks(owners)
    owners.topic("%RETRY%g", 1)
    owners.topic("a")
    owners.topic("b")
    older = owners.join("m", settings=wanted("a", version=1))
    assert isinstance(older, int)
    failed = Place("g", owners.topics["%RETRY%g"].incarnation, 0)
    assert ("%RETRY%g", older) in granted(looks.at(0))
    owners.grant(older, topic="%RETRY%g", starts=(0,))
    newer = owners.join("n", settings=wanted("a", "b", version=2))
    assert isinstance(newer, int)
    looks.at(1, without_retries={newer})
    assert failed not in looks.at(1, without_retries={newer}).asked.get(older, [])
    assert failed in looks.at(1).asked[older]
    assert ("%RETRY%g", newer) in granted(looks.at(99))
    owners.grant(newer, topic="%RETRY%g", former=owners.leases.of(failed).epoch)
    looks.at(100)
    assert not looks.hand_over.asked
    owners.end(newer)
    assert ("%RETRY%g", older) in granted(looks.at(101))


def test_what_failed_stays_where_a_newer_version_takes_the_same() -> None:
    """All are as good for it: one that tries other bounds first isn't given all that failed."""
    owners = Owners()
    looks = Looks(owners)
    owners.topic("%RETRY%g", 1)
    owners.topic("a")
    older = owners.join("m", settings=wanted("a", version=1))
    assert isinstance(older, int)
    failed = Place("g", owners.topics["%RETRY%g"].incarnation, 0)
    owners.grant(older, topic="%RETRY%g", starts=(0,))
    canary = wanted("a", version=2, max_attempts=7)
    assert isinstance(owners.join("n", settings=canary), int)
    assert failed not in looks.at(1).asked.get(older, [])
