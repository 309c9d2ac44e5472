"""What is told of an age is a bound that holds, and is the age itself where enough is known."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from broker.leader.lived_marks import MAX_MARKS, Lived, LivedMarks, Mark
from broker.state.lived_time import MAX_GAP_MS, LivedTime

BEGAN = Mark(1_700_000_000_000, 77_000)
DAY_MS = 24 * 3_600_000
GAPS_MS = st.sampled_from([0, 1, 5_000, MAX_GAP_MS, MAX_GAP_MS + 1, DAY_MS, 365 * DAY_MS])
HISTORIES = st.lists(GAPS_MS, min_size=1, max_size=40)


def history(gaps_ms: list[int]) -> list[Mark]:
    """Each entry of a log, from the one before its first on."""
    lived, time_ms, entries = LivedTime(BEGAN.lived_ms), BEGAN.time_ms, [BEGAN]
    for gap_ms in gaps_ms:
        lived.advance(time_ms, time_ms + gap_ms)
        time_ms += gap_ms
        entries.append(Mark(time_ms, lived.lived_ms))
    return entries


def check(entries: list[Mark], known: Lived) -> None:
    """No age is taken for more or less than it can be; nothing that is younger goes by a moment."""
    for entry in entries:
        age_ms = entries[-1].lived_ms - entry.lived_ms
        assert known.age_at_least(entry.time_ms) <= age_ms <= known.age_at_most(entry.time_ms)
        for wish_ms in (0, 1, 30_000, 100_000, age_ms, age_ms + 1, age_ms - 1):
            assert not entry.time_ms < known.older_before(wish_ms) or age_ms > wish_ms


@given(HISTORIES, st.data())
def test_no_entry_is_taken_for_older_or_younger_than_it_is(
    gaps_ms: list[int], data: st.DataObject
) -> None:
    """Whichever entries somebody was there at, and in whatever order it is told."""
    entries = history(gaps_ms)
    marks = LivedMarks()
    for mark in data.draw(st.lists(st.sampled_from(entries), max_size=8)):
        marks.add(mark)
    for seen in sorted(data.draw(st.lists(st.sampled_from(entries), max_size=8))):
        marks.note(seen)
    check(entries, marks.since(BEGAN, entries[-1]))


@given(HISTORIES)
def test_who_was_there_knows_every_age(gaps_ms: list[int]) -> None:
    """However far the log's time stepped, and however often."""
    entries = history(gaps_ms)
    marks = LivedMarks()
    for entry in entries:
        marks.note(entry)
    known = marks.since(BEGAN, entries[-1])
    for entry in entries:
        age_ms = entries[-1].lived_ms - entry.lived_ms
        assert known.age_at_least(entry.time_ms) == age_ms == known.age_at_most(entry.time_ms)
    check(entries, known)


def test_a_step_is_forgotten_by_nobody_who_looked_behind_it() -> None:
    """Ten days of work, a year's step, and ten days again: as old as what it was, and what a topic
    wishes goes by that, too."""
    marks, hour_ms, year_ms = LivedMarks(), 3_600_000, 365 * DAY_MS
    for hour in range(480):
        stepped_ms = year_ms if hour >= 240 else 0
        lived_ms = hour * hour_ms - (hour_ms - MAX_GAP_MS if stepped_ms else 0)
        marks.note(Mark(BEGAN.time_ms + hour * hour_ms + stepped_ms, BEGAN.lived_ms + lived_ms))
    now = Mark(BEGAN.time_ms + 479 * hour_ms + year_ms, BEGAN.lived_ms + 478 * hour_ms + MAX_GAP_MS)
    known = marks.since(BEGAN, now)
    blind = LivedMarks().since(BEGAN, now)
    asked = BEGAN.time_ms + 300 * hour_ms + year_ms
    assert known.age_at_least(asked) == 179 * hour_ms
    assert blind.age_at_least(asked) == MAX_GAP_MS
    assert known.older_before(72 * hour_ms) == now.time_ms - 72 * hour_ms
    assert replace(known, pace=2).older_before(36 * hour_ms) == now.time_ms - 72 * hour_ms
    assert known.older_before(300 * hour_ms) < BEGAN.time_ms + 240 * hour_ms


def test_marks_are_bounded_and_bound_whatever_has_gone() -> None:
    """Of a group that rests for days after each entry, or a minute."""
    chance = Random(1)
    gaps_ms = [MAX_GAP_MS + chance.choice((1, DAY_MS)) for _ in range(3 * MAX_MARKS)]
    entries = history(gaps_ms)
    marks = LivedMarks()
    for entry in entries:
        marks.note(entry)
        assert len(marks._marks) <= MAX_MARKS
    known = marks.since(BEGAN, entries[-1])
    for entry in entries[::16]:
        age_ms = entries[-1].lived_ms - entry.lived_ms
        assert known.age_at_least(entry.time_ms) <= age_ms <= known.age_at_most(entry.time_ms)
    later = entries[len(entries) // 2]
    marks.since(later, entries[-1])
    assert marks._marks[0] >= later, "what is before the log is of no use any more"
