"""Power cuts: at random moments, and before every call that a truncation makes to the disk."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from random import Random

import pytest

from dledger.reading.entry import walk_frames
from dledger.records.layout import file_name
from store.errors import CorruptionFound
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import (
    BODIES,
    DATA,
    SEGMENT,
    LogUnderTest,
    all_frames,
    assert_zeros_behind,
    make_log,
    stopped_log,
)


def test_everything_announced_survives_a_power_cut() -> None:
    """Nothing acknowledged is lost, with nothing kept that was not synced."""
    made = make_log(BODIES)
    expected = all_frames(made.log)
    made.disk.power_cut()
    assert all_frames(LogUnderTest(made.disk).log) == expected


@pytest.mark.parametrize("seed", range(60))
def test_power_cuts_at_random_moments_lose_nothing_announced(seed: int) -> None:
    """Appends, truncations and cuts of power; unsynced writes are lost, kept or torn."""
    chance = Random(seed)
    disk = SimulatedDisk()
    announced: list[bytes] = []
    for life in range(6):
        made = LogUnderTest(disk)
        log = made.log
        held = [log.read(index, index) for index in range(1, log.last_index + 1)]
        assert held[: len(announced)] == announced
        walk_frames(b"".join(held))
        announced = held  # Recovery made all of it durable.
        for _ in range(chance.randrange(12)):
            if chance.random() < 0.25 and log.last_index:
                index = chance.randrange(1, log.last_index + 1)
                log.truncate_from(index)
                announced = announced[: index - 1]
            else:
                made.append(chance.randbytes(chance.randrange(1800)), term=life + 1)
            if chance.random() < 0.6:
                made.flush()
                announced = [log.read(index, index) for index in range(1, log.last_index + 1)]
        made.submit()
        cut_power_in_the_middle(made, chance)


def cut_power_in_the_middle(made: LogUnderTest, chance: Random) -> None:
    """The power fails before one of the flusher's next calls to the disk."""
    fatal = len(made.disk.calls) + chance.randrange(12)

    def stop(_operation: str, _name: str) -> None:
        if len(made.disk.calls) > fatal:
            raise PowerCut

    made.disk.before = stop
    if chance.random() < 0.7:
        made.flusher.run_pending()
    made.disk.before = lambda _operation, _name: None
    made.disk.power_cut(chance)


class PowerCut(Exception):
    """Raised from within the disk: nothing of the process runs on."""


def count_steps_of_a_cut() -> int:
    made = make_log(BODIES)
    made.log.truncate_from(2)
    before = len(made.disk.calls)
    made.flush()
    return len(made.disk.calls) - before


@pytest.mark.parametrize("keep_some", [False, True])
def test_truncated_entries_never_come_back_wherever_the_power_fails(*, keep_some: bool) -> None:
    """The cut is wholly done or wholly undone, and done once anything of it was durable."""
    outcomes = set()
    for step in range(count_steps_of_a_cut() + 1):
        for seed in range(8 if keep_some else 1):
            made = make_log(BODIES)
            made.log.truncate_from(2)
            made.submit()
            fatal = len(made.disk.calls) + step

            def stop(
                _operation: str, _name: str, made: LogUnderTest = made, at: int = fatal
            ) -> None:
                if len(made.disk.calls) > at:
                    raise PowerCut

            made.disk.before = stop
            made.flusher.run_pending()
            made.disk.before = lambda _operation, _name: None
            announced = bool(made.durable and made.durable[-1] == made.ticket)
            made.disk.power_cut(Random(seed) if keep_some else None)
            again = LogUnderTest(made.disk)
            assert again.log.last_index in ((1,) if announced else (1, 7))
            outcomes.add(again.log.last_index)
            if again.log.last_index == 1:
                assert_zeros_behind(made.disk, again.log.end_offset)
    assert outcomes == {1, 7}


def test_interrupted_cut_is_finished_before_anything_else() -> None:
    """The intent file alone decides, though every frame behind it is still intact."""
    made = make_log(BODIES)
    made.log.truncate_from(3)
    made.submit()
    made.disk.fail_next("pwritev", 5, file_name(2 * SEGMENT))
    made.flusher.run_pending()
    assert DATA / "truncation" in made.disk.paths()
    made.disk.power_cut()
    again = LogUnderTest(made.disk)
    assert again.log.last_index == 2
    assert again.log.recovery.redone_cut == again.log.end_offset
    assert DATA / "truncation" not in made.disk.paths()


def syncs_of_a_cut() -> int:
    made = make_log(BODIES)
    made.log.truncate_from(2)
    before = len(made.disk.calls)
    made.flush()
    return sum("sync" in operation for operation, _ in made.disk.calls[before:])


def test_zeros_that_a_failed_sync_left_in_the_cache_are_written_again() -> None:
    """Whichever sync of a cut fails: the next process's zeros are on the platter, and not only in
    a cache that calls them clean."""
    steps = syncs_of_a_cut()
    assert steps >= 5
    outcomes = set()
    for step in range(steps):
        made = make_log(BODIES)
        made.log.truncate_from(2)
        made.submit()
        left = iter(range(step))

        def fail(
            operation: str, name: str, disk: SimulatedDisk = made.disk, left: Iterator[int] = left
        ) -> None:
            if "sync" in operation and next(left, None) is None:
                disk.before = lambda _operation, _name: None
                disk.fail_next(operation, errno.EIO, name)

        made.disk.before = fail
        made.flusher.run_pending()
        made.disk.kill()
        again = LogUnderTest(made.disk)
        made.disk.power_cut()
        if again.log.last_index == 1:
            assert_zeros_behind(made.disk, again.log.end_offset)
        outcomes.add(again.log.last_index)
        assert LogUnderTest(made.disk).log.last_index == again.log.last_index
    assert outcomes == {1, 7}


def test_spoiled_intent_stops_the_node() -> None:
    """It is renamed into place when complete: only rot explains it."""
    disk = stopped_log(clean=False)
    handle = disk.create(DATA / "truncation")
    disk.pwritev(handle, [b"\xda\xa3\x20\xc3 not an intent"], 0)
    disk.kill()
    with pytest.raises(CorruptionFound) as found:
        LogUnderTest(disk)
    assert found.value.file == str(DATA / "truncation")


def failed_cut(step: int) -> SimulatedDisk:
    """What a process leaves that ended as the `step`-th sync of its cut failed."""
    made = make_log(BODIES)
    made.log.truncate_from(2)
    made.submit()
    left = iter(range(step))

    def fail(operation: str, name: str) -> None:
        if "sync" in operation and next(left, None) is None:
            made.disk.before = lambda _operation, _name: None
            made.disk.fail_next(operation, errno.EIO, name)

    made.disk.before = fail
    made.flusher.run_pending()
    made.disk.before = lambda _operation, _name: None
    made.disk.kill()
    return made.disk


@pytest.mark.parametrize("step", range(syncs_of_a_cut()))
def test_power_may_fail_wherever_a_cut_is_made_again_after_a_failed_sync(step: int) -> None:
    """What the page cache calls clean is on the platter before the intent goes: the next start
    finds the log as it was or cut, and no corruption on a sound disk."""
    left = failed_cut(step)
    rehearsed = left.clone()
    LogUnderTest(rehearsed)
    for at in range(len(rehearsed.calls)):
        disk = left.clone()

        def stop(_operation: str, _name: str, disk: SimulatedDisk = disk, at: int = at) -> None:
            if len(disk.calls) > at:
                raise PowerCut

        disk.before = stop
        with contextlib.suppress(PowerCut):
            LogUnderTest(disk)
        disk.before = lambda _operation, _name: None
        disk.power_cut()
        assert LogUnderTest(disk).log.last_index in (1, 7)
