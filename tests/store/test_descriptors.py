"""Opening files when there are no descriptors left: nothing is wrong with the disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.atomic_file import AtomicFile
from store.consumequeue import ConsumeQueues
from store.descriptors import PATIENCE_S, DescriptorReserve
from store.dispatch import UNIT
from store.errors import StorageFull
from store.files import Handle, OsFiles
from store.preallocation import AllocationPolicy, Preallocator


class Short:
    """A call that fails so many times with an errno, and then gives 7."""

    def __init__(self, code: int, times: int) -> None:
        self.code, self.left, self.calls = code, times, 0

    def __call__(self) -> int:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise OSError(self.code, os.strerror(self.code))
        return 7


class Slept:
    """Counts what was waited."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@contextlib.contextmanager
def no_descriptors_left() -> Iterator[None]:
    """This process has as many files open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_term_and_vote_are_saved_without_a_descriptor_to_be_had(tmp_path: Path) -> None:
    """Again and again: what is closed is held before anybody else gets it."""
    file = AtomicFile(OsFiles(reserved=8), tmp_path / "hard_state", spare_bytes=512)
    file.replace(b"term 1")
    with no_descriptors_left():
        taken: list[int] = []
        for term in range(2, 30):
            file.replace(b"term %d" % term)
            with contextlib.suppress(OSError):
                while True:  # a stranger's connection takes whatever is free
                    taken.append(os.open(os.devnull, os.O_RDONLY))
        for descriptor in taken:
            os.close(descriptor)
        assert file.read() == b"term 29"


def test_reserve_is_given_up_one_at_a_time_and_held_again() -> None:
    """As many as it takes, and no wait."""
    slept = Slept()
    reserve = DescriptorReserve(4, sleep=slept)
    assert reserve.obtain(Short(errno.EMFILE, 3)) == 7
    assert (reserve.held, slept.seconds) == (1, [])
    reserve.refill()
    assert reserve.held == 4


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_thread_waits_until_the_system_has_what_it_needs(code: int) -> None:
    """Longer and longer, and nothing is given up for what that doesn't help."""
    slept = Slept()
    reserve = DescriptorReserve(0, sleep=slept)
    assert reserve.obtain(Short(code, 6)) == 7
    assert slept.seconds == sorted(slept.seconds)
    assert len(slept.seconds) == 6


def test_a_wait_has_an_end() -> None:
    """A system that never recovers is told."""
    slept = Slept()
    with pytest.raises(OSError, match="Too many open files in system"):
        DescriptorReserve(4, sleep=slept).obtain(Short(errno.ENFILE, 1 << 30))
    assert PATIENCE_S <= sum(slept.seconds) < PATIENCE_S + 1


def test_an_event_loop_never_waits() -> None:
    """It is told at once, and comes back later."""
    slept, call = Slept(), Short(errno.ENFILE, 1)

    async def on_a_loop() -> None:
        with pytest.raises(OSError, match="Too many open files in system"):
            DescriptorReserve(4, sleep=slept).obtain(call)

    asyncio.run(on_a_loop())
    assert (call.calls, slept.seconds) == (1, [])


def test_other_errors_are_told_as_they_are() -> None:
    """A disk that fails is no shortage."""
    call = Short(errno.EIO, 1)
    with pytest.raises(OSError, match="Input/output error"):
        DescriptorReserve(4).obtain(call)
    assert call.calls == 1


class ShortFiles(OsFiles):
    """A disk whose files can't be opened for want of descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self.code: int | None = None

    def _fail(self) -> None:
        if self.code is not None:
            raise OSError(self.code, os.strerror(self.code))

    def create(self, path: Path) -> Handle:
        self._fail()
        return super().create(path)

    def open(self, path: Path) -> Handle:
        self._fail()
        return super().open(path)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_queue_that_cannot_be_opened_now_is_dispatched_again_later(
    tmp_path: Path, code: int
) -> None:
    """As with a full disk: applying pauses, and the node doesn't end."""
    files = ShortFiles()
    queues = ConsumeQueues(tmp_path, files, units_per_file=10)
    files.code = code
    with pytest.raises(StorageFull):
        queues.dispatch("t", 0, 0, UNIT.pack(0, 100, 0))
    files.code = None
    queues.dispatch("t", 0, 0, UNIT.pack(0, 100, 0))
    assert queues.max_offset("t", 0) == 1
    queues.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
def test_segment_that_cannot_be_made_now_is_made_later(tmp_path: Path, code: int) -> None:
    """Nothing failed: the preallocation comes back, and nobody hears of a broken disk."""
    files, failures = ShortFiles(), list[str]()

    def fail(operation: str, _: BaseException) -> None:
        failures.append(operation)

    policy = AllocationPolicy(1 << 16, reserve_bytes=0, warm_up=False, mlock=False)
    made = Preallocator(files, tmp_path, policy, 0, fail)
    files.code = code
    assert made.step() is not None
    assert made.is_full
    lacks = made.shortage(1)
    assert lacks.scarce == ("" if code == errno.ENOSPC else os.strerror(code))
    assert ("no space" in str(lacks)) is (code == errno.ENOSPC)
    files.code = None
    assert made.step() is None
    assert (made.ready > 0, failures) == (True, [])
    made.close()
