"""What a group's members did, judged: each anomaly alone, and what is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.checkers.deliveries import (
    SHOWN,
    Group,
    Handling,
    How,
    Place,
    Style,
    Told,
    Troubles,
    count,
    find_delivery_anomalies,
    takeover_us,
)

STORED = {f"q{queue}-{at}": Place(queue, at) for queue in range(2) for at in range(3)}
MS = 1_000
A_FAULT_ALL_ALONG = Troubles(nodes=((0, 100_000_000),))


def done(member: str, value: str, begun_ms: int, ended_ms: int | None = None) -> Handling:
    end = begun_ms + 1 if ended_ms is None else ended_ms
    return Handling(member, value, begun_ms * MS, end * MS, How.DONE)


def all_done(*but: str) -> list[Handling]:
    """Each message once, one after the other."""
    return [done("a#1", each, 10 * at) for at, each in enumerate(STORED) if each not in but]


def group(
    *handlings: Handling,
    told: tuple[Told, ...] = (),
    in_order: bool = True,
    style: Style | None = None,
    pauses: dict[str, list[tuple[int, int]]] | None = None,
    troubles: Troubles = A_FAULT_ALL_ALONG,
) -> Group:
    style = style or (Style.IN_ORDER if in_order else Style.ANY_ORDER)
    return Group("g", style, handlings, told, pauses or {}, troubles)


def names(judged: Group) -> list[str]:
    return [each.name for each in find_delivery_anomalies(judged, STORED)]


def test_each_message_done_once_is_no_anomaly() -> None:
    """In the order of the queues."""
    assert names(group(*all_done())) == []


def test_what_is_not_shown_is_counted() -> None:
    """One stands for the others, and says how many they are."""
    strange = [done("a#1", f"strange-{at}", at) for at in range(SHOWN + 7)]
    found = find_delivery_anomalies(group(*all_done(), *strange), STORED)
    unsent = [each for each in found if each.name == "handled-unsent"]
    assert [each.count for each in unsent] == [1] * SHOWN + [7]
    assert "the last of 7 more" in unsent[-1].detail


def test_message_that_nobody_is_done_with_is_forgotten() -> None:
    """Begun is not done, and neither is failed."""
    left = all_done("q1-2")
    assert names(group(*left)) == ["forgotten"]
    open_one = Handling("a#1", "q1-2", 90 * MS, 90 * MS, How.OPEN)
    assert names(group(*left, open_one)) == ["forgotten"]
    failed = Handling("a#1", "q1-2", 90 * MS, 91 * MS, How.FAILED)
    assert names(group(*left, failed)) == ["forgotten"]
    assert names(group(*left, failed, done("a#1", "q1-2", 95))) == []


def test_message_to_which_the_group_had_not_come_is_not_forgotten() -> None:
    """That it isn't through is told by who waited for it."""
    left = all_done("q1-1", "q1-2", "q0-2")
    assert names(group(*left, told=(Told(1, 1, 2),))) == ["forgotten", "forgotten"]
    assert names(group(*left, told=(Told(1, 1, 1), Told(2, 0, 2)))) == []


def test_message_that_is_not_in_the_log_was_never_to_be_handled() -> None:
    """Whoever was given it."""
    assert names(group(*all_done(), done("a#1", "ghost", 100))) == ["handled-unsent"]


@pytest.mark.parametrize("in_order", [True, False])
def test_done_twice_is_counted_unless_it_was_known_as_committed(*, in_order: bool) -> None:
    """A death before the commit makes the next member do it again."""
    again = done("b#1", "q0-2", 100)
    judged = group(*all_done(), again, in_order=in_order)
    assert names(judged) == []
    assert count(judged).again == 1
    late = group(*all_done(), again, told=(Told(101 * MS, 0, 3),), in_order=in_order)
    assert names(late) == [], "it was told after that had begun"
    known = group(*all_done(), again, told=(Told(99 * MS, 0, 3),), in_order=in_order)
    assert names(known) == ["handled-after-commit"]
    below = group(*all_done(), again, told=(Told(99 * MS, 0, 2),), in_order=in_order)
    assert names(below) == [], "committed up to it, and not with it"


@pytest.mark.parametrize(("went_on_ms", "is_excused"), [(1_950, True), (1_000, False)])
def test_paused_member_is_excused_for_what_it_was_about_to_begin(
    went_on_ms: int, *, is_excused: bool
) -> None:
    """Within a moment of going on, and no later."""
    pauses = {"b#1": [(500 * MS, went_on_ms * MS)]}
    judged = group(
        *all_done(), done("b#1", "q0-2", 2_000), told=(Told(99 * MS, 0, 3),), pauses=pauses
    )
    assert names(judged) == ([] if is_excused else ["handled-after-commit"])


def test_failed_message_may_come_again_from_elsewhere() -> None:
    """Its place counts as finished once it has moved on."""
    failed = Handling("a#1", "q0-2", 15 * MS, 16 * MS, How.FAILED)
    told = (Told(50 * MS, 0, 3),)
    handlings = [*all_done(), failed, done("b#1", "q0-2", 100)]
    assert names(group(*handlings, told=told, in_order=False)) == []


def test_two_of_a_queue_at_once_break_the_order() -> None:
    """Of different queues they don't; and a group in any order may."""
    rest = all_done("q0-0", "q0-1")
    both = [done("a#1", "q0-0", 0, 5), done("a#1", "q0-1", 4, 6)]
    assert names(group(*rest, *both)) == ["side-by-side", "out-of-turn"]
    assert names(group(*rest, *both, in_order=False)) == []
    by_others = [done("a#1", "q0-0", 0, 5), done("b#1", "q0-0", 2, 3), done("b#1", "q0-1", 7)]
    assert names(group(*rest, *by_others)) == ["side-by-side"]
    assert names(group(*rest, *by_others, pauses={"a#1": [(1 * MS, 4 * MS)]})) == []


def test_begun_before_the_one_in_front_was_done_is_out_of_turn() -> None:
    """A handler that died with its process has not done it."""
    rest = all_done("q0-0", "q0-1")
    assert names(group(*rest, done("a#1", "q0-1", 0), done("a#1", "q0-0", 3))) == ["out-of-turn"]
    died = Handling("a#1", "q0-0", 0, 0, How.OPEN)
    assert names(group(*rest, died, done("b#1", "q0-0", 2), done("b#1", "q0-1", 4))) == []
    assert names(group(*rest, died, done("b#1", "q0-1", 2), done("b#1", "q0-0", 4))) == [
        "out-of-turn"
    ]


def test_takeover_lasts_until_every_queue_is_at_work_again() -> None:
    """Of those that the dead one had worked on."""
    handlings = [done("a#1", "q0-0", 10), done("a#1", "q1-0", 11), done("b#1", "q0-1", 120)]
    assert takeover_us(group(*handlings), STORED, "a#1", 20 * MS, 1_000 * MS) is None
    handlings.append(done("c#1", "q1-1", 150))
    assert takeover_us(group(*handlings), STORED, "a#1", 20 * MS, 1_000 * MS) == 130 * MS
    assert takeover_us(group(*handlings), STORED, "b#1", 5 * MS, 1_000 * MS) is None, "had none"


LATE_MS = 10_000


@pytest.mark.parametrize("style", [Style.ANY_ORDER, Style.IN_ORDER])
@pytest.mark.parametrize(
    ("troubles", "pauses", "cause"),
    [
        (Troubles(), {}, ""),
        (Troubles(ends={"a#1": 51 * MS + 2_999 * MS}), {}, "again_after_ends"),
        (Troubles(ends={"a#1": 51 * MS + 3_001 * MS}), {}, ""),
        (Troubles(ends={"b#1": 54 * MS}), {}, ""),
        (Troubles(), {"a#1": [(2_000 * MS, 9_000 * MS)]}, "again_after_pauses"),
        (Troubles(), {"a#1": [(4_000 * MS, 9_000 * MS)]}, ""),
        (Troubles(), {"b#1": [(54 * MS, 9_000 * MS)]}, ""),
        (Troubles(nodes=((2_000 * MS, 2_500 * MS),)), {}, "again_beside_faults"),
        (Troubles(nodes=((4_000 * MS, 9_000 * MS),)), {}, ""),
    ],
)
def test_done_again_is_an_anomaly_where_nothing_was_the_matter(
    style: Style, troubles: Troubles, pauses: dict[str, list[tuple[int, int]]], cause: str
) -> None:
    """What a member has done is committed within three seconds, if it lives, runs, and the nodes
    are well; another's death is no excuse."""
    judged = group(
        *all_done(), done("b#1", "q1-2", LATE_MS), style=style, troubles=troubles, pauses=pauses
    )
    assert names(judged) == ([] if cause else ["handled-again"])
    found = count(judged)
    assert found.again == 1
    counted = {
        "again_after_ends": found.again_after_ends,
        "again_after_pauses": found.again_after_pauses,
        "again_beside_faults": found.again_beside_faults,
    }
    assert {name for name, number in counted.items() if number} == ({cause} if cause else set())


def test_fault_that_was_over_long_before_provokes_nothing() -> None:
    """Three seconds after it the group commits again."""
    late = [replace(each, ended_us=each.ended_us + 20_000 * MS) for each in all_done()]
    again = done("b#1", "q1-2", 40_000)
    for healed_ms, found in ((17_060, []), (17_040, ["handled-again"])):
        troubles = Troubles(nodes=((0, healed_ms * MS),))
        assert names(group(*late, again, in_order=False, troubles=troubles)) == found


def test_what_failed_before_may_come_again_whenever() -> None:
    """Its way to the retries may have been in doubt."""
    failed = Handling("a#1", "q1-2", 51 * MS, 52 * MS, How.FAILED)
    judged = group(
        *all_done(), failed, done("b#1", "q1-2", LATE_MS), in_order=False, troubles=Troubles()
    )
    assert names(judged) == []


def singly(
    member: str,
    value: str,
    asked_ms: int,
    begun_ms: int,
    settled_ms: int | None = None,
    how: How = How.DONE,
) -> Handling:
    settled_us = None if settled_ms is None else settled_ms * MS
    end_us = begun_ms * MS + 500
    return Handling(member, value, begun_ms * MS, end_us, how, asked_ms * MS, settled_us)


def one_by_one(*handlings: Handling, hidden_ms: int = 0) -> list[str]:
    troubles = Troubles(hidden_us=hidden_ms * MS)
    return names(
        group(*all_done("q1-2"), *handlings, style=Style.SINGLY, troubles=troubles),
    )


def test_nobody_is_given_what_was_acknowledged_before_he_asked() -> None:
    """Whoever had asked before may be; and whoever didn't acknowledge has to expect it."""
    first = singly("a#1", "q1-2", 60, 61, 70)
    assert one_by_one(first, singly("b#1", "q1-2", 70, 80)) == []
    assert one_by_one(first, singly("b#1", "q1-2", 71, 80)) == ["handled-after-ack"]
    assert one_by_one(singly("a#1", "q1-2", 60, 61), singly("b#1", "q1-2", 9_000, 9_100)) == []


def test_a_hidden_message_is_in_one_hand() -> None:
    """Until its time is over, or its worker gives it back."""
    first, returned = (singly("a#1", "q1-2", 60, 61, how=how) for how in (How.DONE, How.FAILED))
    soon, late = singly("b#1", "q1-2", 62, 159), singly("b#1", "q1-2", 62, 160)
    assert one_by_one(first, soon, hidden_ms=100) == ["given-while-hidden"]
    assert one_by_one(first, late, hidden_ms=100) == []
    assert one_by_one(returned, soon, hidden_ms=100) == []
    assert one_by_one(first, soon) == [], "clocks were changed"
