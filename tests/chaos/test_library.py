"""The client library under faults, in the simulator: what it promises its users is kept."""

from __future__ import annotations

import functools
import os
from random import Random

import pytest

from chaos.sim.applications.books import Held, SentBook, WorkBook
from chaos.sim.applications.process import ClientProcess
from chaos.sim.applications.run import LibraryRun, Outcome, library_plan, run_library
from chaos.sim.defect import Defect
from chaos.sim.timeline import Timeline
from dledger.client import ClientError, SendResult
from dledger.outcome import Outcome as Fate
from dledger.records.record import DecodedRecord, RecordTemplate, decode_records
from dledger.records.reserved import EXHAUSTED, REJECTED

SEEDS = int(os.environ.get("LIBRARY_SEEDS", "12"))
REACHED = 4  # seeds, which reach together what this is about
LONG = pytest.mark.long
SHORT_MS = 6_000


@functools.cache
def outcome_of(seed: int) -> Outcome:
    """Of a run that several tests look at."""
    return run_library(seed, SHORT_MS)


@pytest.mark.parametrize(
    "seed", [pytest.param(each, marks=LONG if each >= REACHED else ()) for each in range(SEEDS)]
)
def test_what_the_library_promises_is_kept(seed: int) -> None:
    """Each accepted send is settled as it is; groups forget nothing, and begin nothing again that
    was finished; every program ends when it is told to."""
    outcome = outcome_of(seed)
    assert outcome.failure is None
    assert outcome.accepted


def test_log_that_nobody_gives_is_no_empty_one() -> None:
    """Else everything would be worked off, and nothing lost, while no member can be read."""
    run = LibraryRun(library_plan(0, SHORT_MS))  # nobody has started
    assert not run._is_given()
    with pytest.raises(Defect, match="no member gives"):
        run._all_stored()
    with pytest.raises(Defect, match="no member gives"):
        run._held()
    assert run._dead("group") == set()


def letter(reason: str) -> list[DecodedRecord]:
    """A dead letter of the message `a`."""
    properties = f"DLQ_REASON\1{reason}\2".encode()
    template = RecordTemplate("%DLQ%g", ("127.0.0.1", 5555))
    return decode_records(template.encode(0, b"a", properties, 1_000))


@pytest.mark.parametrize(
    ("reason", "begun", "uncounted", "is_so"),
    [
        (EXHAUSTED, 3, 0, True),
        (EXHAUSTED, 2, 0, False),
        (EXHAUSTED, 2, 1, True),
        (REJECTED, 1, 0, False),
        (REJECTED, 1, 2, False),
        (REJECTED, 3, 0, True),
    ],
)
def test_dead_letter_has_had_its_attempts(
    reason: str, begun: int, uncounted: int, is_so: bool
) -> None:
    """Or was rejected: by a handler, and by nobody who vanished."""
    book = WorkBook("g", lambda _: 0, is_exclusive=True)
    book.begun[b"a"] = begun
    if not is_so:
        with pytest.raises(Defect, match="is a dead letter"):
            book.check_dead(letter(reason), 3, uncounted)
        book.rejected.add(b"a")
        reason = REJECTED
    book.check_dead(letter(reason), 3, uncounted)


@LONG
def test_seed_that_found_a_lie_of_the_library() -> None:
    """A message with a deadline of its own did not happen, its sender was told, and was stored ten
    seconds later: what was before it had failed, and all behind was sent under other numbers."""
    assert run_library(2).failure is None


def test_the_schedule_reaches_what_it_is_about() -> None:
    """Groups of every style; messages that come again; processes that die, and others after."""
    outcomes = [outcome_of(seed) for seed in range(REACHED)]
    groups = {group for each in outcomes for group in each.handled}
    assert groups == {"workers", "in-order", "poppers", "loopers"}
    assert any(any(each.again.values()) for each in outcomes)
    assert any(each.accepted > each.stored for each in outcomes)
    assert sum("killed" in line.what for each in outcomes for line in each.transcript) > REACHED


def test_same_seed_same_run() -> None:
    again = run_library(1, SHORT_MS)
    assert (again.trace, again.handled) == (outcome_of(1).trace, outcome_of(1).handled)


def book_of(*told: tuple[bytes, SendResult | None, Fate | None]) -> SentBook:
    """What one sender was told of messages of one key."""
    book = SentBook()
    for body, result, fate in told:
        book.accept(body, "s", "k")
        if result is not None or fate is not None:
            error = None if fate is None else ClientError("no", outcome=fate)
            book.settle(body, result, error)
    return book


def at(offset: int) -> SendResult:
    return SendResult("t", 0, offset, 0, 0, b"", duplicate=False)


NO, PERHAPS = Fate.DID_NOT_HAPPEN, Fate.MAY_HAVE_HAPPENED


@pytest.mark.parametrize(
    ("book", "stored", "check"),
    [
        (book_of((b"a", None, None)), {}, "unsettled"),
        (book_of((b"a", at(0), None)), {}, "lost"),
        (book_of((b"a", at(0), None)), {(0, 1): b"a"}, "lost"),
        (book_of((b"a", None, NO)), {(0, 0): b"a"}, "phantom"),
        (book_of((b"a", None, PERHAPS)), {(0, 0): b"a", (0, 1): b"a"}, "duplicate"),
        (book_of(), {(0, 0): b"a"}, "phantom"),
        (book_of((b"a", at(1), None), (b"b", at(0), None)), {(0, 0): b"b", (0, 1): b"a"}, "out of"),
    ],
)
def test_book_knows_a_broken_promise(
    book: SentBook, stored: dict[tuple[int, int], bytes], check: str
) -> None:
    with pytest.raises(Defect, match=check):
        book.check(Held(stored, {0: 0}))


def test_what_went_with_its_queue_is_not_lost() -> None:
    """Where the queue has come again since; and what had no place may have been there."""
    before = SendResult("t", 0, -1, 0, 0, b"", duplicate=True)
    book = book_of((b"a", at(0), None), (b"b", before, None), (b"c", at(2), None))
    held = Held({(0, 2): b"c"}, {0: 2})
    book.check(held, has_moved=True)
    assert book.gone(held) == {b"a", b"b"}
    with pytest.raises(Defect, match="lost"):
        book.check(Held({(0, 2): b"c"}, {0: 0}))
    with pytest.raises(Defect, match="nobody changed the queues"):
        book.check(held)


def test_a_doubt_is_neither_one_nor_the_other() -> None:
    book = book_of((b"a", None, PERHAPS), (b"b", None, PERHAPS), (b"c", at(1), None))
    book.check(Held({(0, 0): b"b", (0, 1): b"c"}, {0: 0}))


def test_a_killed_process_does_nothing_more() -> None:
    """Not even what its coroutines would do as they are closed."""
    timeline = Timeline()
    process = ClientProcess(timeline, "p", 0, Random(0))
    seen: list[str] = []

    async def program() -> None:
        try:
            await process.create_future()
        finally:
            process.call_soon(seen.append, "after")

    timeline.after(0, process, lambda: process.create_task(program()))
    timeline.run(1_000)
    process.die()
    timeline.run(2_000)
    assert not seen
