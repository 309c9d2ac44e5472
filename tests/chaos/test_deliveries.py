"""What a group's members did, judged: each anomaly alone, and what is none."""

from __future__ import annotations

import pytest

from chaos.checkers.deliveries import (
    Group,
    Handling,
    How,
    Place,
    Told,
    count,
    find_delivery_anomalies,
    takeover_us,
)

STORED = {f"q{queue}-{at}": Place(queue, at) for queue in range(2) for at in range(3)}
MS = 1_000


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
    pauses: dict[str, list[tuple[int, int]]] | None = None,
) -> Group:
    return Group("g", in_order, handlings, told, pauses or {})


def names(judged: Group) -> list[str]:
    return [each.name for each in find_delivery_anomalies(judged, STORED)]


def test_each_message_done_once_is_no_anomaly() -> None:
    """In the order of the queues."""
    assert names(group(*all_done())) == []


def test_message_that_nobody_is_done_with_is_forgotten() -> None:
    """Begun is not done, and neither is failed."""
    left = all_done("q1-2")
    assert names(group(*left)) == ["forgotten"]
    open_one = Handling("a#1", "q1-2", 90 * MS, 90 * MS, How.OPEN)
    assert names(group(*left, open_one)) == ["forgotten"]
    failed = Handling("a#1", "q1-2", 90 * MS, 91 * MS, How.FAILED)
    assert names(group(*left, failed)) == ["forgotten"]
    assert names(group(*left, failed, done("a#1", "q1-2", 95))) == []


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
