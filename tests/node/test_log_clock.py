"""The log's own clock, fed by hand: ADR 26, state by state."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.core.types import MAX_TIME_MS, ClockOff, Configuration, Event, LogTimeStepped, NodeId
from dledger.log_clock import NAMED_EVERY_US, NEW_US, SILENT_US, LogClock
from tests.scale import examples

TRUE_MS = 1_700_000_000_000  # at monotonic time 0
SECOND_US = 1_000_000
DAY_MS = 24 * 3600 * 1000
OWN = NodeId("n1")


@dataclass
class Desk:
    """One node's log clock and the true time; `off_ms` is how wrong each voter's clock is."""

    off_ms: list[int]
    last_ms: int = TRUE_MS
    now_us: int = 0

    def __post_init__(self) -> None:
        self.nodes = [NodeId(f"n{i + 1}") for i in range(len(self.off_ms))]
        self.voters = Configuration(voters=frozenset(self.nodes))
        self.clock = LogClock(OWN, self.last_ms, self.now_us)
        self.told: list[Event] = []

    def shows_ms(self, at: int) -> int:
        return TRUE_MS + self.now_us // 1000 + self.off_ms[at]

    def hear(self, *those: int) -> None:
        """The answers of these voters come at once; none: of all."""
        for at in those or range(1, len(self.nodes)):
            self.clock.on_heard(self.nodes[at], self.shows_ms(at), self.now_us)

    def lead(self, *heard: int) -> int:
        """Elected by these voters' answers; the first append time, as ahead of true time."""
        self.hear(*heard)
        self.clock.begin_leading(self.now_us)
        return self.read()

    def read(self) -> int:
        """An append time, as ahead of true time."""
        self.told += self.clock.estimate(self.voters, self.shows_ms(0), self.now_us)
        return self.clock.read_ms(self.now_us) - TRUE_MS - self.now_us // 1000

    def pass_by(self, us: int, *those: int) -> None:
        """Time passes; in each tenth of a second these voters answer."""
        until_us = self.now_us + us
        while self.now_us < until_us:
            self.now_us = min(until_us, self.now_us + SECOND_US // 10)
            self.hear(*those)


# --- the estimate -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off_ms", "heard", "expected_ms"),
    [
        ([0], (), 0),
        ([0, DAY_MS], (1,), 0),
        ([DAY_MS, 0], (1,), 0),
        ([DAY_MS, 0, 3], (1, 2), 3),
        ([DAY_MS, 0, 3], (1,), 0),
        ([-DAY_MS, 0, 3], (1, 2), 0),
        ([0, DAY_MS, 3], (1, 2), 3),
        ([5, 1, 2, 3, 4], (1, 2, 3, 4), 3),
        ([5, DAY_MS, 2, DAY_MS, 4], (1, 2, 3, 4), 5),
        ([5, DAY_MS, 2, DAY_MS, 4], (1, 3), 5),
        ([DAY_MS, DAY_MS, 2, 3, 4], (1, 2), 2),
        ([1, 2, 3, DAY_MS], (1, 2, 3), 2),
    ],
)
def test_a_new_leader_goes_to_what_a_majority_shows(
    off_ms: list[int], heard: tuple[int, ...], expected_ms: int
) -> None:
    """The latest moment that so many clocks have reached; who isn't heard counts as behind, so that
    two fast clocks of five don't decide because the other two are silent."""
    desk = Desk(off_ms, last_ms=TRUE_MS - 10 * DAY_MS)
    assert desk.lead(*heard) == expected_ms if heard else desk.read() <= expected_ms


def test_alone_a_clock_is_the_majority() -> None:
    """A group of one has nobody to ask."""
    desk = Desk([7], last_ms=TRUE_MS - DAY_MS)
    assert desk.lead() == 7


def test_without_a_majority_time_waits_at_half_speed() -> None:
    """Also for a new leader: one clock is no majority, however far it is ahead."""
    desk = Desk([DAY_MS, 0, 0])
    desk.clock.begin_leading(0)
    desk.now_us = SECOND_US
    assert desk.read() == -500


def test_both_halves_of_a_joint_configuration_decide() -> None:
    """As in everything that needs a majority (dissertation §4.3)."""
    clock = LogClock(OWN, 0, 0)
    a, b, c = (NodeId(name) for name in "abc")
    joint = Configuration(voters=frozenset({OWN, a}), voters_outgoing=frozenset({b, c}))
    for peer, wall_ms in ((a, 500), (b, 400), (c, 300)):
        clock.on_heard(peer, wall_ms, 0)
    clock.begin_leading(0)
    clock.estimate(joint, 600, 0)
    assert clock.read_ms(0) == 300


def test_who_has_not_answered_for_long_shows_nothing() -> None:
    """It counts as behind, and time waits at half speed."""
    desk = Desk([0, 0, 0])
    desk.lead(1, 2)
    desk.now_us = SILENT_US
    assert desk.read() == 0
    desk.now_us = SILENT_US + 1_000_000
    assert desk.read() == -500


def test_a_late_answer_slows_time_down_until_the_next() -> None:
    """It was under way for four seconds, and the clock looks late for so long: nothing goes back,
    and the next answer puts it right."""
    desk = Desk([0, 0, 0])
    desk.lead(1, 2)
    desk.pass_by(NEW_US)
    assert desk.read() == 0
    for peer in desk.nodes[1:]:
        desk.clock.on_heard(peer, TRUE_MS + desk.now_us // 1000 - 4_000, desk.now_us)
    desk.now_us += 50_000
    assert desk.read() == -25
    desk.hear()
    desk.now_us += 50_000
    assert desk.read() == 0


def test_a_clock_that_was_put_back_is_believed_at_once() -> None:
    """Else a clock that errs while another still counts as wrong would find its majority."""
    desk = Desk([0, DAY_MS, 0])
    desk.lead(1, 2)
    desk.off_ms = [DAY_MS, 0, 0]
    desk.hear()
    assert desk.read() == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 2 * SECOND_US), st.integers(-5_000, 5_000), st.booleans()),
        min_size=2,
        max_size=20,
    )
)
def test_no_append_time_is_below_what_was_shown(steps: list[tuple[int, int, bool]]) -> None:
    """Whatever clocks are put back meanwhile: what was due stays due until its entry."""
    desk = Desk([0, 0, 0])
    desk.lead(1, 2)
    last_ms = 0
    for after_us, off_ms, is_read in steps:
        desk.now_us += after_us
        desk.off_ms = [off_ms, off_ms, 0]
        desk.hear()
        desk.clock.estimate(desk.voters, desk.shows_ms(0), desk.now_us)
        time_ms = (desk.clock.read_ms if is_read else desk.clock.shown_ms)(desk.now_us)
        assert time_ms >= last_ms
        last_ms = time_ms


def test_what_was_shown_is_no_bound_of_the_next_leadership() -> None:
    """That may have heard of nothing as late."""
    desk = Desk([DAY_MS, DAY_MS, 0], last_ms=TRUE_MS - DAY_MS)
    desk.hear()
    desk.clock.begin_leading(0)
    desk.clock.estimate(desk.voters, desk.shows_ms(0), 0)
    assert desk.clock.shown_ms(0) == TRUE_MS + DAY_MS
    desk.off_ms = [0, 0, 0]
    assert desk.lead(1, 2) == 0


def test_a_new_leader_does_not_step_by_what_was_heard_before_its_election() -> None:
    """Clocks may have been put right since."""
    desk = Desk([DAY_MS, 0, DAY_MS])
    desk.hear(2)
    desk.off_ms[2] = 0
    desk.now_us = NEW_US + 1
    assert desk.lead(1) <= 0


# --- the pace ---------------------------------------------------------------------------------


def test_a_leader_does_not_step_in_mid_term() -> None:
    """A majority's clocks that go forward by a day are followed at twice real speed."""
    desk = Desk([0, 0, 0])
    desk.lead(1, 2)
    desk.pass_by(NEW_US)
    assert desk.read() == 0
    desk.off_ms = [DAY_MS] * 3
    desk.pass_by(10 * SECOND_US)
    assert desk.read() == 10_000


def test_a_leader_goes_at_half_speed_when_clocks_are_put_back() -> None:
    """Until they have caught up: never back, and never still."""
    desk = Desk([4_000, 4_000, 4_000], last_ms=TRUE_MS)
    assert desk.lead(1, 2) == 4_000
    desk.off_ms = [0] * 3
    ahead = []
    for _ in range(20):
        desk.pass_by(SECOND_US)
        ahead.append(desk.read())
    assert ahead[-1] == 0
    for before, after in zip([4_000, *ahead], ahead, strict=False):
        assert -501 <= after - before <= 1


def test_a_new_leader_goes_on_where_the_last_one_was() -> None:
    """A follower knows when it took the last entry; the log is ahead of clocks put right."""
    desk = Desk([0, 0, 0])
    desk.clock.on_taken(TRUE_MS + DAY_MS, 0)
    desk.now_us = 6 * SECOND_US
    assert desk.lead(1, 2) == DAY_MS - 3_000


def test_an_older_entry_that_is_taken_moves_nothing_back() -> None:
    """A leader that was deposed has its own entries replaced by those of the next."""
    desk = Desk([0, 0, 0], last_ms=TRUE_MS + 500)
    desk.clock.on_taken(TRUE_MS, 0)
    assert desk.clock.read_ms(0) == TRUE_MS + 500


def test_time_ends_where_no_follower_would_take_it() -> None:
    """Beyond the year 9999 every append would be refused (ADR 19)."""
    clock = LogClock(OWN, MAX_TIME_MS - 1, 0)
    assert clock.read_ms(10 * SECOND_US) == MAX_TIME_MS


OFFS = st.integers(-40 * 365 * DAY_MS, 40 * 365 * DAY_MS)
STEPS = st.lists(
    st.tuples(
        st.integers(1, 3 * SECOND_US),  # passes
        st.sets(st.integers(1, 4)),  # who is heard then
        st.integers(0, 300_000),  # for how long their answers were under way
        st.tuples(OFFS, OFFS),  # what the two wrong clocks have come to
        st.booleans(),  # whether a leadership begins
    ),
    max_size=40,
)


@settings(max_examples=examples(300))
@given(STEPS, st.tuples(*[st.integers(-50, 50)] * 3), st.permutations(range(5)))
def test_two_wrong_clocks_of_five_decide_nothing(
    steps: list[tuple[int, set[int], int, tuple[int, int], bool]],
    right: tuple[int, int, int],
    places: list[int],
) -> None:
    """Whichever two, however wrong and however often they step, whoever is silent: the log's time
    never falls, keeps its pace, and is never later than the right clocks."""
    desk = Desk([0] * 5)
    for place, off in zip(places[2:], right, strict=True):
        desk.off_ms[place] = off
    newest_us = read_at_us = 0
    before_ms = TRUE_MS
    for passes_us, heard, delay_us, wrong, begins in steps:
        desk.off_ms[places[0]], desk.off_ms[places[1]] = wrong
        desk.now_us += passes_us
        for at in heard:
            left_ms = max(0, desk.shows_ms(at) - delay_us // 1000)
            desk.clock.on_heard(desk.nodes[at], left_ms, desk.now_us)
        if begins:
            newest_us = desk.now_us
            desk.clock.begin_leading(desk.now_us)
        ahead_ms = desk.read()
        assert ahead_ms <= 51
        time_ms, passed_ms = ahead_ms + desk.now_us // 1000 + TRUE_MS, desk.now_us - read_at_us
        moved_ms = time_ms - before_ms
        assert moved_ms >= passed_ms / 2000 - 1
        if desk.now_us >= newest_us + NEW_US:
            assert moved_ms <= passed_ms / 500 + 1
        before_ms, read_at_us = time_ms, desk.now_us


@given(
    st.lists(st.tuples(OFFS, OFFS), max_size=30),
    st.tuples(*[st.integers(-50, 50)] * 3),
    st.permutations(range(5)),
)
def test_while_all_answer_a_minority_moves_nothing(
    leaps: list[tuple[int, int]], right: tuple[int, int, int], places: list[int]
) -> None:
    """In neither direction: time stays between the right clocks."""
    desk = Desk([0] * 5)
    for place, off in zip(places[2:], right, strict=True):
        desk.off_ms[place] = off
    desk.lead(1, 2, 3, 4)
    for wrong in leaps:
        desk.off_ms[places[0]], desk.off_ms[places[1]] = wrong
        desk.pass_by(SECOND_US)
        assert min(right) - 1 <= desk.read() <= max(right) + 1


# --- what is told -----------------------------------------------------------------------------


def test_a_wrong_clock_is_named_once_a_minute() -> None:
    """The leader's own like any other."""
    desk = Desk([-5_000, 0, 2_000])
    desk.lead(1, 2)
    off = [ClockOff(NodeId("n1"), -5_000), ClockOff(NodeId("n3"), 2_000)]
    assert desk.told == off
    desk.pass_by(NAMED_EVERY_US - SECOND_US)
    desk.read()
    assert desk.told == off
    desk.pass_by(SECOND_US)
    desk.read()
    assert desk.told == off + off


def test_a_step_is_told() -> None:
    """Once, with how far it went beyond what could have run."""
    desk = Desk([0, 0, 0], last_ms=TRUE_MS - DAY_MS)
    desk.lead(1, 2)
    desk.read()
    assert desk.told == [LogTimeStepped(TRUE_MS, DAY_MS)]


def test_the_first_entry_of_a_log_is_no_step() -> None:
    """There was no time before it."""
    desk = Desk([0, 0, 0], last_ms=0)
    assert desk.lead(1, 2) == 0
    assert desk.read() == 0
    assert desk.told == []


def test_statistics_show_how_far_time_is_off() -> None:
    """Without reading it: an idle leader's time goes on."""
    desk = Desk([0, 0, 0])
    desk.lead(1, 2)
    desk.off_ms = [DAY_MS] * 3
    desk.pass_by(2 * NEW_US)
    desk.read()
    statistics = desk.clock.statistics(desk.now_us)
    assert statistics.behind_ms == pytest.approx(DAY_MS - 2_000, abs=1)
    assert statistics.off_ms == dict.fromkeys(desk.nodes, 0.0)
    desk.now_us += SECOND_US
    behind_ms = desk.clock.statistics(desk.now_us).behind_ms
    assert behind_ms == pytest.approx(DAY_MS - 3_000, abs=1)
