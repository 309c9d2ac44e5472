"""For whose full disk a segment goes, and that a figure which nothing changes takes few."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from broker.leader.full_disks import PATIENCE_S, FullDisks
from dledger.core.types import NodeId
from dledger.disk_figures import SILENT_US, DiskFigure, DiskFigures

SEGMENT = 1000
PERCENT = 85
LOOK_S = 10.0
A, B = NodeId("a"), NodeId("b")


@dataclass
class Group:
    """A log of full segments, and what one look after the other lets go of, one at most each."""

    segments: int = 60
    free: int = 0
    total: int = 100 * SEGMENT
    now_s: float = 0.0
    end_offset: int = 60 * SEGMENT

    def __post_init__(self) -> None:
        self.disks = FullDisks()

    def look(self, *, honest: bool) -> bool:
        """Whether a segment went; an honest disk has got it back by the next look."""
        figures = {B: DiskFigure(self.free, self.total), A: DiskFigure(self.total, self.total)}
        whose = self.disks.in_need(
            figures,
            PERCENT,
            end_offset=self.end_offset,
            segment_size=SEGMENT,
            now_s=self.now_s,
        )
        if whose:
            assert whose == {B}
            self.disks.on_gone(
                whose, figures, SEGMENT, end_offset=self.end_offset, now_s=self.now_s
            )
            self.segments -= 1
            self.free += SEGMENT * honest
        self.now_s += LOOK_S
        return bool(whose)


def test_full_disk_gets_as_much_as_makes_it_less_full_and_no_more() -> None:
    group = Group(free=3 * SEGMENT)
    gone = sum(group.look(honest=True) for _ in range(40))
    assert group.free == 16 * SEGMENT, "used to 84 %"
    assert gone == 13


def test_disk_that_stays_full_whatever_goes_gets_one_segment_an_hour() -> None:
    """Another program's file, a quota, a member that says so for ever."""
    group = Group(free=0)
    day = int(24 * 3600 / LOOK_S)
    gone = sum(group.look(honest=False) for _ in range(day))
    assert gone == 24 * 3600 / PATIENCE_S


@given(st.lists(st.integers(0, SEGMENT), max_size=300))
def test_disk_that_stays_full_never_takes_more_than_comes_and_one_an_hour(come: list[int]) -> None:
    """However fast the log grows."""
    group, gone = Group(free=0), 0
    for size in come:
        gone += group.look(honest=False)
        group.end_offset += size
        hours = group.now_s // PATIENCE_S + 1
        # Half a segment of what came is allowed for, and as much again after each hour.
        assert gone * SEGMENT <= sum(come) + 2 * hours * SEGMENT


@given(st.lists(st.integers(0, SEGMENT), min_size=200, max_size=200))
def test_a_log_that_fills_the_disk_itself_is_let_go_of_as_fast_as_it_grows(come: list[int]) -> None:
    """What comes in takes what was freed: that is no disk that stays full for another reason."""
    group = Group(free=10 * SEGMENT)
    for size in come:
        group.look(honest=True)
        group.end_offset += size
        group.free -= size
        assert group.free >= 7 * SEGMENT


def test_each_full_disk_counts_for_itself() -> None:
    """One that stays full doesn't keep another from getting room, nor the other way round."""
    disks = FullDisks()
    stuck, well = DiskFigure(0, 100 * SEGMENT), DiskFigure(5 * SEGMENT, 100 * SEGMENT)
    for number in range(5):
        figures = {A: stuck, B: DiskFigure(well.free_bytes + number * SEGMENT, well.total_bytes)}
        whose = disks.in_need(
            figures, PERCENT, end_offset=0, segment_size=SEGMENT, now_s=10.0 * number
        )
        assert whose == ({A, B} if number == 0 else {B})
        disks.on_gone(whose, figures, SEGMENT, end_offset=0, now_s=10.0 * number)
    assert disks.in_need(figures, 0, end_offset=0, segment_size=SEGMENT, now_s=99.0) == set()


def test_who_has_never_led_owes_nothing() -> None:
    group = Group(free=0)
    assert group.look(honest=False)
    assert not group.look(honest=False)
    group.disks.end()
    assert group.look(honest=False)


def test_a_disk_that_was_less_full_in_between_begins_anew() -> None:
    group = Group(free=0)
    assert group.look(honest=False)
    group.free = 50 * SEGMENT
    assert not group.look(honest=False)
    group.free = 0
    assert group.look(honest=False)


def test_old_figures_are_none() -> None:
    """Of who is silent, who says nothing any more, and who is no voter."""
    figure, heard = DiskFigure(1, 2), DiskFigures()
    heard.on_heard(A, figure, 0)
    heard.on_heard(B, figure, 5)
    assert heard.fresh({A, B}, SILENT_US) == {A: figure, B: figure}
    assert heard.fresh({A, B}, SILENT_US + 3) == {B: figure}
    heard.on_heard(B, None, 6)
    assert heard.fresh({A, B}, 7) == {A: figure}
    assert heard.fresh({B}, 7) == {}
    assert heard.fresh({A, B}, 7) == {}, "nothing is kept of who is none"


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 100))
def test_percents_are_of_what_a_node_may_use(free: int, total: int, percent: int) -> None:
    figure = DiskFigure(min(free, total), total)
    share = 100 * (total - figure.free_bytes) / total
    assert figure.is_used_to(percent) == (share >= percent)
