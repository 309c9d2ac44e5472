"""What a leader lets go of: never more than its rules say, whatever the log looks like."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode
from broker.leader.lived_marks import Lived, Mark
from broker.leader.retention import Measured, Retention, Rules, SegmentEnd, first_kept
from dledger.core.types import NodeId

SIZE = 1000
LOOKS = 8
NOBODY: frozenset[NodeId] = frozenset()
N2 = frozenset({NodeId("n2")})
RULES = st.builds(
    Rules,
    age_ms=st.sampled_from([0, 1, 50, 500]),
    bytes=st.sampled_from([0, 1, SIZE, 3 * SIZE + 7, 50 * SIZE]),
    disk_percent=st.sampled_from([0, 85]),
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[SegmentEnd], list[int], Measured]:
    """Full segments from the oldest on, how long ago (in lived time) the last entry of each was
    appended, and a part of one more. The group may have stood still at any time."""
    start = draw(st.integers(0, 9)) * SIZE
    count = draw(st.integers(0, 5))
    index, begin, lived = start, draw(st.integers(0, 100)), 0
    time_ms, ends, lived_at = begin, [], []
    for number in range(count):
        index += draw(st.integers(1, 40))
        passed = draw(st.integers(0, 300))
        time_ms += passed
        lived += draw(st.sampled_from([passed, passed, passed // 3, 0]))
        ends.append(SegmentEnd(index, time_ms, start + (number + 1) * SIZE))
        lived_at.append(lived)
    end = start + count * SIZE + draw(st.integers(0, SIZE - 1))
    lived += draw(st.integers(0, 1000))
    need = draw(st.sampled_from([NOBODY, N2]))
    measured = Measured(start, end, SIZE, lived, begin, need)
    return ends, [lived - at for at in lived_at], measured


@given(logs(), RULES)
def test_nothing_goes_that_a_rule_does_not_name(
    log: tuple[list[SegmentEnd], list[int], Measured], rules: Rules
) -> None:
    """Each segment that goes is old enough, by what the group has lived, or too much, or the oldest
    one of a full disk."""
    ends, ages, measured = log
    kept = first_kept(ends, measured, rules)
    gone = [end for end in ends if kept is not None and end.last_index < kept]
    if kept is not None:
        assert gone
        assert kept == gone[-1].last_index + 1, "whole segments"
    for number, end in enumerate(gone):
        start = end.end_offset - SIZE
        is_old = rules.age_ms > 0 and ages[number] > rules.age_ms
        is_much = rules.bytes > 0 and measured.end_offset - start > rules.bytes
        is_first = bool(measured.in_need) and number == 0
        assert is_old or is_much or is_first
        if not (is_old or is_much):
            assert measured.end_offset - end.end_offset > SIZE, "the last two stay"
    left = ends[len(gone) :]
    if left:
        assert not rules.bytes or measured.end_offset - left[0].end_offset + SIZE <= rules.bytes


@given(logs(), st.sampled_from([1, 50, 500]))
def test_what_is_old_goes_where_the_group_has_never_stood_still(
    log: tuple[list[SegmentEnd], list[int], Measured], age_ms: int
) -> None:
    ends, _, measured = log
    now = measured.begin_time_ms + measured.lived_ms
    kept = first_kept(ends, measured, Rules(age_ms=age_ms))
    left = [end for end in ends if kept is None or end.last_index >= kept]
    assert not left or now - left[0].append_time_ms <= age_ms or bool(measured.in_need)


@given(logs())
def test_full_disk_costs_one_segment_at_a_time_and_never_the_last_two(
    log: tuple[list[SegmentEnd], list[int], Measured],
) -> None:
    ends, _, measured = log
    full = replace(measured, in_need=N2)
    kept = first_kept(ends, full, Rules(disk_percent=85))
    can_be_spared = bool(ends) and full.end_offset - ends[0].end_offset > SIZE
    assert kept == (ends[0].last_index + 1 if can_be_spared else None)


def test_months_of_standstill_make_nothing_old() -> None:
    """As of a group that was restored from a backup of last year, or switched off over a holiday:
    what it held is kept for as long as it would have been."""
    hour, year = 3_600_000, 8_766 * 3_600_000
    ends = [SegmentEnd(10 * n, n * hour, SIZE * n) for n in range(1, 6)]
    ends += [SegmentEnd(10 * n, year + n * hour, SIZE * n) for n in range(6, 9)]
    rules = Rules(age_ms=72 * hour)
    end = 8 * SIZE + 5
    for lived_h, first in ((9, None), (72, None), (75, 21), (77, 41), (80, 51)):
        measured = Measured(0, end, SIZE, lived_h * hour, 0)
        assert first_kept(ends, measured, rules) == first
    later = Measured(5 * SIZE, end, SIZE, (72 + 2) * hour, year + 5 * hour)
    assert first_kept(ends[5:], later, rules) == 61


@given(logs(), st.integers(1, 1 << 42))
def test_nothing_is_older_than_the_group_has_lived(
    log: tuple[list[SegmentEnd], list[int], Measured], years_ms: int
) -> None:
    """Whether an entry's time or that of the log's beginning is one that can't be: no age is a
    reason, and the log isn't longer than it may be for that."""
    ends, measured = log[0], replace(log[2], in_need=NOBODY)
    wrong = [replace(end, append_time_ms=measured.begin_time_ms - years_ms) for end in ends]
    assert first_kept(wrong, measured, Rules(age_ms=1)) is None
    late = replace(measured, begin_time_ms=measured.begin_time_ms + (1 << 43))
    assert first_kept(ends, late, Rules(age_ms=1)) is None
    much = Rules(age_ms=1, bytes=SIZE)
    assert first_kept(wrong, measured, much) == first_kept(wrong, measured, Rules(bytes=SIZE))


@given(logs())
def test_without_rules_nothing_goes(
    log: tuple[list[SegmentEnd], list[int], Measured],
) -> None:
    ends, _, measured = log
    idle = replace(measured, lived_ms=1 << 50, in_need=NOBODY)
    assert first_kept(ends, idle, Rules()) is None


class Front:
    """A log of ten full segments, one an hour, that nothing has gone from."""

    def __init__(self) -> None:
        self.behind = False
        self.decided: list[Measured] = []
        self.led_no_more = 0
        self.notes = 0
        self.read: list[int] = []
        self.marks: tuple[Mark, ...] = ()
        self.begin_time_ms = 0
        self.error: Exception | None = None
        self.behind_error: Exception | None = None
        self.in_need = NOBODY

    async def measured(self) -> Measured:
        begin_ms = self.begin_time_ms
        return Measured(0, 10 * SIZE + 5, SIZE, 10_000, begin_ms, self.in_need, self.marks)

    def full_segments(self, most: int) -> list[SegmentEnd]:
        if self.error is not None:
            raise self.error
        return [SegmentEnd(10 * n, 1_000 * n, SIZE * n) for n in range(1, 11)][:most]

    def is_behind(self) -> bool:
        if self.behind_error is not None:
            raise self.behind_error
        return self.behind

    def note_lived(self) -> None:
        self.notes += 1

    async def read_on(self, last_index: int) -> None:
        self.read.append(last_index)

    def on_decided(self, measured: Measured) -> None:
        self.decided.append(measured)

    def on_led_no_more(self) -> None:
        self.led_no_more += 1

    def is_mended(self, error: BaseException) -> bool:
        return isinstance(error, OSError)


HOUR_MS = 3_600_000


class Hourly(Front):
    """The same, an hour each, but for the first: by the log's time it took weeks."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = (Mark(10 * HOUR_MS, 10 * HOUR_MS),)

    async def measured(self) -> Measured:
        honest = await super().measured()
        return replace(honest, lived_ms=10 * HOUR_MS, begin_time_ms=-1_000 * HOUR_MS)

    def full_segments(self, most: int) -> list[SegmentEnd]:
        ends = super().full_segments(most)
        return [replace(end, append_time_ms=n * HOUR_MS) for n, end in enumerate(ends, 1)]


def test_age_that_nobody_knows_is_read_and_told_once() -> None:
    """Nothing goes before its age is known; nothing is read where it is, where it is too young
    whatever the log's time stepped over, or where nothing goes by its age."""
    front, rules = Hourly(), Rules(age_ms=8_500 * 3_600)
    with structlog.testing.capture_logs() as told:
        assert looks(front, rules) == ([], [])
    assert len(front.read) > 1
    assert set(front.read) == {10}
    assert [each["index"] for each in told if each["event"] == "retention_age_unsure"] == [10]
    front.read.clear()
    for others in (Rules(age_ms=9 * HOUR_MS), Rules(bytes=SIZE), replace(rules, bytes=SIZE)):
        looks(front, others)
    assert not front.read
    front.marks = (Mark(HOUR_MS, HOUR_MS), *front.marks)
    assert set(looks(front, rules)[0]) == {11}
    assert not front.read


def test_who_does_not_lead_sees_how_long_the_group_lives() -> None:
    """Whoever leads next knows what the log's time stepped over."""
    front = Front()
    looks(front, Rules(age_ms=5_000), serves=False)
    assert front.notes == front.led_no_more > 1


class NoWishes:
    """Topics that want what the group does."""

    def __init__(self, longest_ms: int = 0) -> None:
        self._longest_ms = longest_ms
        self.looks = 0
        self.paces: list[int] = []

    def longest_ms(self) -> int:
        return self._longest_ms

    def are_changing(self) -> bool:
        return False

    async def look(self, now: Callable[[], Awaitable[Lived]]) -> None:
        self.looks += 1
        self.paces.append((await now()).pace)


def looks(
    front: Front,
    rules: Rules,
    wishes: NoWishes | None = None,
    *,
    serves: bool = True,
    needed: int | None = None,
    behind_ms: Sequence[float] = (),
) -> tuple[list[int], list[object]]:
    """What is proposed in `LOOKS` looks or more, and what ended it. `behind_ms`: the log's time, in
    the first of them."""
    behind = iter(behind_ms)
    proposed: list[int] = []
    ends: list[object] = []

    async def propose(index: int) -> None:
        proposed.append(index)
        if len(proposed) == 1:
            raise BrokerError(ErrorCode.NOT_READY, "not yet")

    async def run() -> None:
        retention = Retention(
            front,
            rules,
            wishes or NoWishes(),
            propose,
            lambda: needed,
            lambda: serves,
            ends.append,
            0.001,
            lambda: next(behind, 0.0),
        )
        looked, deadline = front.notes + LOOKS, time.monotonic() + 60
        retention.start()
        await asyncio.sleep(0.05)
        while front.notes <= looked and not ends and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        await retention.stop()

    asyncio.run(run())
    return proposed, ends


def test_refusal_is_no_end_and_is_asked_again() -> None:
    proposed, ends = looks(Front(), Rules(age_ms=5_000))
    assert len(proposed) > 1
    assert set(proposed) == {41}
    assert not ends


def test_ages_count_half_where_the_logs_time_catches_up() -> None:
    """It runs at twice the pace then, and ages by it; what was stored meanwhile stays as old as it
    looks for as long as it is there. A minute is no matter, nor is anything else than an age."""
    wishes = NoWishes()
    assert looks(Front(), Rules(age_ms=5_000), wishes, behind_ms=[60_001])[0] == []
    assert set(wishes.paces) == {2}
    assert set(looks(Front(), Rules(age_ms=2_000), behind_ms=[60_001])[0]) == {51}
    assert set(looks(Front(), Rules(age_ms=2_000), behind_ms=[60_000, -1e9])[0]) == {71}
    assert set(looks(Front(), Rules(bytes=5 * SIZE), behind_ms=[60_001])[0]) == {61}


def test_ages_count_whole_again_when_all_is_older_that_was_stored_meanwhile() -> None:
    """As old as the longest wish, in time that has passed."""

    class Young(Front):
        def full_segments(self, most: int) -> list[SegmentEnd]:
            return [SegmentEnd(10, 10_000 - 30, SIZE)]

    wishes = NoWishes(longest_ms=20)
    assert set(looks(Young(), Rules(age_ms=1), wishes, behind_ms=[60_001])[0]) == {11}
    assert wishes.paces[0] == 2
    assert wishes.paces[-1] == 1


@pytest.mark.parametrize(
    ("needed", "kept"), [(45, 41), (41, 41), (40, 31), (11, 11), (10, 41), (0, 41)]
)
def test_what_nobody_needs_goes_before_what_somebody_does(needed: int, kept: int) -> None:
    """Whole segments in front of it; where there is none, who needs it is heard, and told of."""
    proposed, _ = looks(Front(), Rules(age_ms=5_000), needed=needed)
    assert set(proposed) == {kept}


@pytest.mark.parametrize("needed", [None, 45])
def test_segments_are_looked_at_one_a_turn_and_once(needed: int | None) -> None:
    """The last entry of each is read whole, to be believed: 64 of them together would hold the
    event loop for as long as the disk takes, and a leader that is so long away is replaced."""
    reads: list[tuple[int, bool]] = []

    class Reading(Front):
        is_same_turn = False

        def full_segments(self, most: int) -> Iterator[SegmentEnd]:  # type: ignore[override]
            for end in super().full_segments(most):
                reads.append((end.last_index, self.is_same_turn))
                self.is_same_turn = True
                asyncio.get_running_loop().call_soon(setattr, self, "is_same_turn", False)
                yield end

    proposed, _ = looks(Reading(), Rules(age_ms=5_000), needed=needed)
    assert set(proposed) == {41}
    assert [each for each in reads if each[1]] == []
    assert [last for last, _ in reads[:6]] == [10, 20, 30, 40, 50, 10]


def test_who_decides_is_told_of_what_was_and_forgets_when_it_leads_no_more() -> None:
    """What is refused was not decided."""
    front = Front()
    proposed, _ = looks(front, Rules(age_ms=5_000))
    assert len(front.decided) == len(proposed) - 1
    assert not front.led_no_more
    looks(front, Rules(age_ms=5_000), serves=False)
    assert front.led_no_more


def test_only_a_leader_that_serves_proposes_and_one_step_at_a_time() -> None:
    assert looks(Front(), Rules(age_ms=5_000), serves=False) == ([], [])
    front = Front()
    front.behind = True
    assert looks(front, Rules(age_ms=5_000)) == ([], [])
    assert looks(Front(), Rules()) == ([], [])


def test_full_disk_is_looked_after_whatever_the_leader_has_not_carried_out() -> None:
    """What it mends may take hours, and the disk may be another's. Only what that disk asks for."""
    front = Front()
    front.behind, front.in_need = True, N2
    proposed, ends = looks(front, Rules(age_ms=5_000, bytes=SIZE, disk_percent=85))
    assert set(proposed) == {11}
    assert not ends


def test_rot_is_left_to_its_repair_and_any_other_error_ends_the_replica() -> None:
    front = Front()
    front.error = OSError("rot")
    assert looks(front, Rules(age_ms=1)) == ([], [])
    front.error, front.behind_error = None, OSError("rot, where the log is to begin")
    assert looks(front, Rules(age_ms=1)) == ([], [])
    front.error, front.behind_error = RuntimeError("a bug"), None
    assert looks(front, Rules(age_ms=1)) == ([], [front.error])


def test_topic_that_wishes_for_longer_holds_all_segments_by_age_and_by_nothing_else() -> None:
    """The group's bounds in bytes stay what they are; where nothing goes by age, nothing does."""
    assert set(looks(Front(), Rules(age_ms=5_000), NoWishes(8_000))[0]) == {11}
    assert looks(Front(), Rules(age_ms=5_000), NoWishes(10_000)) == ([], [])
    assert set(looks(Front(), Rules(age_ms=5_000), NoWishes(1_000))[0]) == {41}
    much = Rules(age_ms=5_000, bytes=3 * SIZE + 5)
    assert set(looks(Front(), much, NoWishes(10_000))[0]) == {71}
    assert looks(Front(), Rules(), NoWishes(1)) == ([], [])


def test_what_a_topic_wishes_for_longer_during_a_look_stays() -> None:
    """A segment takes a turn, and whoever wishes meanwhile is told that it is so."""

    class Wishing(NoWishes):
        def longest_ms(self) -> int:
            return 10_000 if front.seen > 3 else 0

    class Reading(Front):
        seen = 0

        def full_segments(self, most: int) -> Iterator[SegmentEnd]:  # type: ignore[override]
            for each in super().full_segments(most):
                self.seen += 1
                yield each

    front = Reading()
    assert looks(front, Rules(age_ms=5_000), Wishing()) == ([], [])
    assert front.seen > 3


def test_nothing_goes_by_its_age_while_a_wish_is_on_its_way() -> None:
    """It lies in the log before what would be proposed; what is too much goes all the same."""

    class Changing(NoWishes):
        def are_changing(self) -> bool:
            return True

    assert looks(Front(), Rules(age_ms=5_000), Changing()) == ([], [])
    much = Rules(age_ms=5_000, bytes=8 * SIZE + 5)
    assert set(looks(Front(), much, Changing())[0]) == {21}


def test_topics_wishes_are_looked_at_whatever_the_group_keeps() -> None:
    wishes = NoWishes()
    looks(Front(), Rules(), wishes)
    assert wishes.looks
    behind = NoWishes()
    looks(Front(), Rules(), behind, serves=False)
    assert not behind.looks


def test_age_that_cannot_be_is_told_once_and_nothing_goes() -> None:
    """As if the log's beginning had rotted: everything before would be decades old."""
    front = Front()
    front.begin_time_ms = 1 << 41
    with structlog.testing.capture_logs() as told:
        assert looks(front, Rules(age_ms=5_000)) == ([], [])
    impossible = [each for each in told if each["event"] == "retention_age_impossible"]
    assert [each["index"] for each in impossible] == [10]
    assert impossible[0]["lived_ms"] == 10_000
