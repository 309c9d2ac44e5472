"""Segments made ahead: a disk that is full at any step of it costs a wait, and no node."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dledger.records.layout import file_name
from store.preallocation import AllocationPolicy, Preallocator
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import DATA, LOG, SEGMENT

STEPS = ("create", "fallocate", "fsync", "rename", "fsync_directory")
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE)
SPARE = LOG / file_name(0)


class Made:
    """A preallocator of an empty log, and of what it has told the node."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        for folder in (DATA, LOG):
            self.disk.mkdir(folder)
            self.disk.fsync_directory(folder.parent)
        self.failures: list[str] = []
        policy = AllocationPolicy(SEGMENT, reserve_bytes=0, warm_up=False, mlock=False)
        self.preallocator = Preallocator(self.disk, LOG, policy, 0, self._fail)

    def _fail(self, operation: str, _: BaseException) -> None:
        self.failures.append(operation)

    def paths(self) -> list[Path]:
        return [path for path in self.disk.paths() if path.parent == LOG]


@pytest.mark.parametrize("code", PASSING, ids=errno.errorcode.get)
@pytest.mark.parametrize("step", STEPS)
def test_disk_that_is_full_at_a_step_is_waited_for(step: str, code: int) -> None:
    """ADR 28: a full disk ends no node. The names need blocks, too, wherever a directory grows."""
    made = Made()
    made.disk.fail_next(step, code)
    assert made.preallocator.step() is not None
    assert (made.preallocator.is_full, made.failures, made.paths()) == (True, [], [])
    assert made.preallocator.step() is None
    assert (made.preallocator.ready, made.preallocator.is_full) == (1, False)
    assert made.paths() == [SPARE]
    assert made.disk.durable(SPARE) is not None


@pytest.mark.parametrize("step", STEPS[1:])
def test_what_a_full_disk_would_not_let_go_is_no_obstacle(step: str) -> None:
    """Where it takes a block to remove a name, an attempt leaves what it has made; the next one
    has to do with it."""
    made = Made()
    made.disk.fail_next(step, errno.ENOSPC)
    made.disk.fail_next("unlink", errno.ENOSPC)
    assert made.preallocator.step() is not None
    assert len(made.paths()) == 1
    assert made.preallocator.step() is None
    assert (made.preallocator.ready, made.failures) == (1, [])
    assert made.paths() == [SPARE]
    assert made.disk.durable(SPARE) is not None


@pytest.mark.parametrize("step", STEPS)
def test_disk_that_fails_at_a_step_is_told(step: str) -> None:
    """An error that doesn't pass is the node's matter (ADR 8)."""
    made = Made()
    made.disk.fail_next(step, errno.EIO)
    assert made.preallocator.step() is None
    assert (made.failures, made.preallocator.ready) == (["preallocation"], 0)
