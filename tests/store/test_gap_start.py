"""What a log with gaps is to one that begins later: whatever is in doubt drops nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.reading.entry import EntryKind, build_frame, parse_header, position_after
from dledger.reading.log_start import LogStart
from store.gap import Gap, Holes
from store.gap_start import Fit, fit_of

SEGMENT = 1024
SIZES = (100, 300, 500)


@dataclass(frozen=True)
class Entry:
    """What is appended; `salt`: one of the same term and another one differ in it."""

    term: int
    size: int
    salt: int = 0


class Written:
    """A log, by index: each entry's place and frame, and the digest there."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.frames: dict[int, tuple[int, bytes]] = {}
        end, digest = 0, 0
        for index, entry in enumerate(entries, 1):
            body = bytes([entry.salt]) * entry.size
            probe, _ = build_frame(EntryKind.DATA, index, entry.term, 0, 1, 0, body, digest)
            place = position_after(end, len(probe) + len(body), SEGMENT)
            head, digest = build_frame(EntryKind.DATA, index, entry.term, place, 1, 0, body, digest)
            self.frames[index] = place, head + body
            end = place + len(head) + len(body)
        self.last = len(entries)

    def starts(self) -> list[LogStart]:
        """Behind each entry that is the last one of its segment."""
        found = []
        for index in range(1, self.last):
            place, frame = self.frames[index]
            header = parse_header(frame, 0)
            if self.frames[index + 1][0] // SEGMENT != place // SEGMENT:
                end = place + len(frame)
                found.append(
                    LogStart(index, header.term, header.digest, end, 1, 1, 1, b"who is a member")
                )
        return found

    def holes(self, first: int, last: int) -> Holes:
        """Those entries can't be read."""
        place, frame = self.frames[first - 1]
        before, behind = parse_header(frame, 0), parse_header(self.frames[last + 1][1], 0)
        gap = Gap(place + len(frame), first, before.term, before.digest, behind)
        terms = []
        for start, end in ((1, first), (last + 1, self.last + 1)):
            for index in range(start, end):
                term = self.entries[index - 1].term
                if index == start or self.entries[index - 2].term != term:
                    terms.append((index, term))
        return Holes((gap,), self.last, (), tuple(terms))

    def reading(self, holes: Holes) -> Callable[[int], bytes]:
        """What lies at a place: nothing of what is missing."""
        by_place = dict(self.frames.values())
        gone = {
            self.frames[index][0]
            for gap in holes.gaps
            for index in range(gap.first_index, gap.last_index + 1)
        }
        return lambda place: b"" if place in gone else by_place.get(place, b"")


@st.composite
def logs(draw: st.DrawFn) -> tuple[Written, Written, int]:
    """Two logs, and how many of their first entries are the same."""
    shared = [Entry(1, draw(st.sampled_from(SIZES))) for _ in range(draw(st.integers(2, 12)))]

    def rest(term: int, salt: int) -> list[Entry]:
        sizes = draw(st.lists(st.sampled_from(SIZES), max_size=12))
        return [Entry(term, size, salt) for size in sizes]

    own_term, their_term = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 3), (3, 2)]))
    own, theirs = rest(own_term, 1), rest(their_term, 2)
    return Written(shared + own), Written(shared + theirs), len(shared)


@given(logs(), st.data())
def test_only_what_was_never_counted_is_dropped(
    both: tuple[Written, Written, int], data: st.DataObject
) -> None:
    """Of a log that begins anew no entry is in the place of a committed one in the same term, nor
    behind the start and the same; one that goes on from there has that entry, and the next."""
    own, theirs, shared = both
    if own.last < 4 or not theirs.starts():
        return
    first = data.draw(st.integers(2, own.last - 2))
    last = data.draw(st.integers(first, own.last - 2))
    start = data.draw(st.sampled_from(theirs.starts()))
    holes = own.holes(first, last)
    read = own.reading(holes)
    fit = fit_of(holes, holes.gaps, start, SEGMENT, read)
    index = start.index
    is_missing = first <= index + 1 <= last
    if fit is Fit.BEHIND:
        newest = own.entries[-1].term
        assert own.last <= index or own.entries[index - 1].term != start.term
        assert start.term >= newest
    if fit is Fit.CONTINUED:
        assert own.frames[index + 1][0] == start.offset(SEGMENT)
        assert not is_missing
        assert index <= shared or own.frames[index] == theirs.frames[index]
    if isinstance(fit, Gap):
        assert (fit.first_index, fit.behind) == (index + 1, holes.gaps[0].behind)
        assert is_missing
    if index < first:
        assert fit is Fit.EARLIER
    elif index + 1 <= min(shared, own.last - 1):
        assert isinstance(fit, Gap) if is_missing else fit is Fit.CONTINUED
    elif own.last <= index and start.term >= own.entries[-1].term:
        assert fit is Fit.BEHIND


def test_same_term_and_other_bytes_is_another_log() -> None:
    """Two logs that differ: which of them is right isn't for a start to say."""
    shared = [Entry(1, 300)] * 3
    own = Written([*shared, *[Entry(1, 300, 1)] * 9])
    theirs = Written([*shared, *[Entry(1, 300, 2)] * 9])
    holes = own.holes(2, 2)
    start = theirs.starts()[-1]
    assert fit_of(holes, holes.gaps, start, SEGMENT, own.reading(holes)) is Fit.OTHER


def test_start_without_members_is_none() -> None:
    own = Written([Entry(1, 300)] * 12)
    holes = own.holes(2, 2)
    start = replace(own.starts()[-1], configuration_index=0)
    assert fit_of(holes, holes.gaps, start, SEGMENT, own.reading(holes)) is Fit.UNNAMED


def test_a_start_of_a_later_term_than_its_next_entry_is_none() -> None:
    """No log goes on from there with a term that goes back, and nothing is dropped for its sake."""
    own = Written([Entry(3, 300)] * 12)
    holes = own.holes(2, 2)
    start = own.starts()[-1]
    read = own.reading(holes)
    assert fit_of(holes, holes.gaps, start, SEGMENT, read) is Fit.CONTINUED
    for term, expected in ((2, Fit.CONTINUED), (4, Fit.OTHER)):
        told = replace(start, term=term)
        assert fit_of(holes, holes.gaps, told, SEGMENT, read) is expected


@pytest.mark.parametrize(("own_term", "expected"), [(1, Fit.BEHIND), (3, Fit.TOO_OLD)])
def test_an_older_start_than_the_last_term_is_no_end_of_it(own_term: int, expected: Fit) -> None:
    """A later life of the group has later terms, and who is of the one before doesn't know it."""
    own = Written([Entry(1, 300), Entry(1, 300), Entry(1, 300), Entry(own_term, 300)])
    theirs = Written([Entry(1, 300)] * 3 + [Entry(2, 300)] * 9)
    holes = own.holes(2, 2)
    start = theirs.starts()[-1]
    assert fit_of(holes, holes.gaps, start, SEGMENT, own.reading(holes)) is expected


def test_one_entry_behind_the_start_is_kept() -> None:
    """Of a log that holds just one, in a segment that it has begun."""
    logs = [Written([Entry(1, 300)] * count) for count in range(5, 12)]
    seen = 0
    for own in logs:
        for start in own.starts():
            if start.index == own.last - 1:
                holes = own.holes(2, 2)
                fit = fit_of(holes, holes.gaps, start, SEGMENT, own.reading(holes))
                assert fit is Fit.CONTINUED
                seen += 1
    assert seen
