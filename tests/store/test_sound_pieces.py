"""What a scrub remembers is what was found, in numbers that cost little and that nobody walks."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import scrubbing
from store.commitlog import CommitLogOptions
from store.sound_pieces import Piece, Place, SoundPieces
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import LogUnderTest
from tests.store.test_damage import scrubbed

U64 = st.integers(0, 2**64 - 1)


@st.composite
def in_a_row(draw: st.DrawFn) -> list[Piece]:
    """Pieces of one segment, each of which begins where the one before ends."""
    digest = draw(st.none() | U64)
    place = Place(draw(st.integers(0, 2**30)), draw(st.integers(1, 2**62)), 0, digest)
    pieces = []
    for _ in range(draw(st.integers(1, 12))):
        at, index = place.at + draw(st.integers(1, 2**24)), place.index + draw(st.integers(1, 512))
        end = Place(at, index, place.term + draw(st.integers(0, 2)), draw(U64))
        pieces.append(Piece(place, end, draw(U64)))
        place = end
    return pieces


def made(pieces: list[Piece]) -> SoundPieces:
    known = SoundPieces()
    for piece in pieces:
        known.add(piece)
    return known


def assert_holds(known: SoundPieces, pieces: list[Piece]) -> None:
    assert [known.piece(number) for number in range(len(known))] == pieces
    assert known.extents() == [(each.start.at, each.end.at, each.digest) for each in pieces]
    assert known.end == pieces[-1].end


@given(in_a_row(), st.data())
def test_pieces_are_remembered_as_they_were_added(pieces: list[Piece], data: st.DataObject) -> None:
    """All of them, some of them as a step takes them, and by the byte that they begin at."""
    known = made(pieces)
    assert_holds(known, pieces)
    first = data.draw(st.integers(0, len(pieces) - 1))
    count, size = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 2**26))
    at = pieces[first].start.at
    close = [each for each in pieces[first:] if each.start.at - at < size]
    assert_holds(known.some(first, count, size), close[:count])
    assert (known.number_at(at), known.number_at(at + 1)) == (first, first + 1)
    assert known.start_of(first) == at


@given(in_a_row(), st.data())
def test_pieces_that_are_cut_are_added_again(pieces: list[Piece], data: st.DataObject) -> None:
    """What was cut leaves the place at which it began, of which the next one is walked from."""
    known = made(pieces)
    first = data.draw(st.integers(0, len(pieces) - 1))
    known.cut(first)
    assert known.end == pieces[first].start
    assert len(known) == first
    for piece in pieces[first:]:
        known.add(piece)
    assert_holds(known, pieces)


def test_a_piece_costs_less_than_forty_bytes() -> None:
    """A terabyte of large entries has four million of them, one of small ones many more."""
    count, known = 20_000, SoundPieces()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            start = Place(number * 1000, number + 2**40, 2**33, number + 2**63)
            known.add(Piece(start, start, number + 2**62))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / count < 40


def test_a_log_that_was_looked_at_leaves_nothing_for_the_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full collection walks what it knows of: of years of log, that took a leader its office."""
    monkeypatch.setattr(scrubbing, "PIECE_FRAMES", 1)
    log = LogUnderTest(SimulatedDisk(), CommitLogOptions(segment_size_bytes=1 << 20))
    for number in range(2_000):
        log.append(b"%d" % number)
    log.flush()
    gc.collect()
    before = len(gc.get_objects())
    assert scrubbed(log.log) == []
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert log.log.scrub.checked_bytes > 0
