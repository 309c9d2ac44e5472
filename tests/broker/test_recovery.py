"""What a start takes for committed on the word of the checkpoint."""

from __future__ import annotations

import pytest

from broker.recovery import trusted_note
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import LogUnderTest, make_log

BODIES = [b"an entry"] * 6


def noted(index: int, *, unsynced: int = 0) -> tuple[SimulatedDisk, int]:
    """A disk whose checkpoint notes `index` beside a log of six entries, after a kill; `unsynced`
    more were in memory only. And what the next start trusts."""
    made = make_log(BODIES)
    for _ in range(unsynced):
        made.append(b"in memory only")
    made.log.checkpoint.note_consume_queue(index, 1)
    again = LogUnderTest(made.disk)
    return made.disk, trusted_note(again.log)


@pytest.mark.parametrize("index", [0, 1, 5, 6])
def test_what_the_own_log_held_is_trusted(index: int) -> None:
    """Noted is durable: it was committed, and lies here."""
    assert noted(index)[1] == index


@pytest.mark.parametrize("index", [7, 8, 1 << 40])
def test_what_the_own_log_did_not_hold_is_not(index: int) -> None:
    """The entries in its places may never have been committed: nothing is known then, and the next
    start doesn't know it either."""
    disk, trusted = noted(index, unsynced=2)
    assert trusted == 0
    grown = LogUnderTest(disk)
    for _ in range(4):
        grown.append(b"from a deposed leader")
    grown.flush()
    assert trusted_note(LogUnderTest(disk).log) == 0
