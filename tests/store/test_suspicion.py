"""What a process leaves behind of what it suspects: a note that says nothing says everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store.directory import write_sealed
from store.suspicion import NAME, UNKNOWN, Suspicion, SuspicionNote
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA

WRITTEN: dict[str, Any] = {"format_version": 1, "index": 7, "is_memory": False}


def note() -> tuple[SimulatedDisk, SuspicionNote]:
    disk = SimulatedDisk()
    disk.mkdir(DATA)
    return disk, SuspicionNote(disk, DATA)


def test_what_is_written_is_read_and_goes() -> None:
    _, kept = note()
    assert kept.read() is None
    for each in (Suspicion(7, is_memory=False), Suspicion(0, is_memory=True)):
        kept.write(each)
        assert kept.read() == each
    kept.write(None)
    assert kept.read() is None


@pytest.mark.parametrize(
    "wrong",
    [{"format_version": 2}, {"index": "7"}, {"is_memory": "no"}, {"index": None}],
)
def test_a_form_that_nobody_knows_is_a_suspicion_of_everything(wrong: dict[str, Any]) -> None:
    """Sealed as it was written, by whoever writes so."""
    disk, kept = note()
    write_sealed(disk, Path(DATA) / NAME, WRITTEN | wrong)
    assert kept.read() == UNKNOWN


@pytest.mark.parametrize("missing", WRITTEN)
def test_so_is_one_in_which_something_is_missing(missing: str) -> None:
    disk, kept = note()
    fields = {name: each for name, each in WRITTEN.items() if name != missing}
    write_sealed(disk, Path(DATA) / NAME, fields)
    assert kept.read() == UNKNOWN
