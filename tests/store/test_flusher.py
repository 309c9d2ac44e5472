"""Group commit, failures of the disk, full disks, and the weaker modes."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dledger.records.layout import file_name
from store.commitlog import CommitLog, CommitLogOptions, FlushMode
from store.errors import StorageFailed, StorageFull
from store.files import OsFiles
from tests.store.faulty_files import SimulatedDisk
from tests.store.logs import ASYNC, DATA, LOG, SEGMENT, SMALL, LogUnderTest, all_frames

FIRST = file_name(0)
SECOND = file_name(SEGMENT)


def test_nothing_is_announced_before_the_fdatasync() -> None:
    """What `on_durable` announces, a power cut at that very moment doesn't take."""
    made = LogUnderTest(SimulatedDisk())
    found: list[bytes] = []

    def look(_ticket: int) -> None:
        found.append(made.disk.durable_content(LOG / FIRST)[: made.log.end_offset])

    made.log.on_durable = look
    made.append(b"promise")
    made.flush()
    assert found == [all_frames(made.log)]


def test_many_submits_share_one_fdatasync() -> None:
    """Group commit: what was queued while nothing ran goes in one write and one fdatasync."""
    made = LogUnderTest(SimulatedDisk())
    for n in range(10):
        made.append(b"x" * n)
        made.submit()
    before = len(made.disk.calls)
    made.flusher.run_pending()
    done = [call for call in made.disk.calls[before:] if call[1] == FIRST]
    assert done == [("pwritev", FIRST), ("fdatasync", FIRST)]
    assert made.durable == [10]
    assert made.log.statistics().flush_count == 1


def test_submits_during_a_flush_share_the_next_one(tmp_path: Path) -> None:
    """The same with the real thread: it is held within its first fdatasync."""
    disk = SimulatedDisk()
    entered, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def hold(operation: str, name: str) -> None:
        if (operation, name) == ("fdatasync", FIRST):
            entered.set()
            go_on.wait()

    log = CommitLog.open(tmp_path, SMALL, disk)
    log.on_durable = lambda ticket: done.set() if ticket == 10 else None
    disk.before = hold
    for ticket in range(1, 11):
        log.append(3, ticket, 1, 0, 0, b"x")
        log.submit(ticket)
        if ticket == 1:
            assert entered.wait(60)
    go_on.set()
    assert done.wait(60)
    log.close()
    assert disk.count("fdatasync", FIRST) == 2


def test_prelude_is_done_before_the_writes_it_came_with() -> None:
    """A vote or a term is on disk before an entry of that term is."""
    made = LogUnderTest(SimulatedDisk())
    order: list[str] = []
    made.disk.before = lambda operation, name: order.append(f"{operation} {name}")
    made.append(b"x")
    made.log.submit(1, lambda: order.append("hard state"))
    made.flusher.run_pending()
    assert order.index("hard state") < order.index(f"pwritev {FIRST}")
    assert order.index(f"pwritev {FIRST}") < order.index(f"fdatasync {FIRST}")
    assert order.index(f"fdatasync {FIRST}") < order.index("pwritev checkpoint")


def test_submit_of_nothing_still_answers() -> None:
    """A follower that has only its hard state to save, or nothing, hears of its ticket too."""
    made = LogUnderTest(SimulatedDisk())
    made.flush()
    saved: list[bool] = []
    made.log.submit(2, lambda: saved.append(True))
    made.flusher.run_pending()
    assert (made.durable, saved) == ([1, 2], [True])


@pytest.mark.parametrize(
    ("operation", "name", "code"),
    [
        ("fdatasync", FIRST, errno.EIO),
        ("pwritev", FIRST, errno.EIO),
        ("pwritev", FIRST, errno.ENOSPC),
        ("pwritev", "checkpoint", errno.EIO),
    ],
)
def test_failure_of_a_write_or_fsync_is_fatal_and_never_retried(
    operation: str, name: str, code: int
) -> None:
    """ADR 8: one notice, no announcement, no further call to the disk, readable all the same."""
    made = LogUnderTest(SimulatedDisk())
    made.append(b"kept")
    made.flush()
    made.append(b"lost")
    made.disk.fail_next(operation, code, name)
    made.flush()
    assert [type(each) for each in made.failures] == [StorageFailed]
    assert made.durable == [1]
    before = list(made.disk.calls)
    made.clock.now += 60  # Whatever timer there is has run out.
    made.flusher.run_pending()
    refused: list[Callable[[], object]] = [
        lambda: made.append(b"more"),
        lambda: made.log.submit(3),
        lambda: made.log.truncate_from(1),
    ]
    for call in refused:
        with pytest.raises(StorageFailed):
            call()
    assert made.disk.calls == before
    assert made.durable == [1]
    assert len(made.failures) == 1
    assert made.log.read(1, 2).endswith(b"lost")
    with pytest.raises(StorageFailed):  # whoever stopped listening before is told at the end
        made.log.close()
    assert DATA / "abort" in made.disk.paths(), "no clean stop after a failure"


def test_failing_prelude_is_fatal_too() -> None:
    """A vote that could not be saved must not be sent, nor anything after it."""
    made = LogUnderTest(SimulatedDisk())
    made.append(b"x")

    def fail() -> None:
        raise OSError(errno.EIO, "hard state")

    made.log.submit(1, fail)
    made.flusher.run_pending()
    assert made.durable == []
    assert len(made.failures) == 1
    assert made.disk.count("pwritev", FIRST) == 0


def test_failure_of_the_last_flush_is_told_by_close() -> None:
    made = LogUnderTest(SimulatedDisk())
    made.append(b"x")
    made.submit()
    made.disk.fail_next("fdatasync", errno.EIO, FIRST)
    with pytest.raises(StorageFailed):
        made.log.close()
    assert DATA / "abort" in made.disk.paths()


# --- segments made ahead ----------------------------------------------------------------------


def test_segment_is_used_only_when_its_name_and_size_are_durable() -> None:
    """fallocate, fsync, rename, fsync of the directory, and then the first write."""
    made = LogUnderTest(SimulatedDisk())
    made.append(b"x" * 3000)
    made.append(b"y" * 3000)
    made.flush()
    calls = made.disk.calls
    created = calls.index(("create", f"{SECOND}.tmp"))
    assert calls[created : created + 6] == [
        ("create", f"{SECOND}.tmp"),
        ("fallocate", f"{SECOND}.tmp"),
        ("fsync", f"{SECOND}.tmp"),
        ("rename", SECOND),
        ("fsync_directory", "commitlog"),
        ("pwritev", FIRST),
    ]
    assert calls.index(("pwritev", SECOND)) > created
    expected = all_frames(made.log)
    made.disk.power_cut()
    assert all_frames(LogUnderTest(made.disk).log) == expected


@pytest.mark.parametrize("cause", ["fallocate", "free space"])
def test_full_disk_refuses_and_recovers_when_space_returns(cause: str) -> None:
    """ENOSPC is found ahead, costs `has_room`, and is tried again each second."""
    disk = SimulatedDisk()
    made = LogUnderTest(disk, CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=100_000))
    made.append(b"x" * 3000)
    if cause == "fallocate":
        disk.fail_next("fallocate", errno.ENOSPC)
    else:
        disk.capacity_bytes = 50_000
    made.append(b"y" * 3000)
    made.flush()
    made.preallocate()
    assert not made.log.has_room(3000)
    assert made.log.has_room(500)
    assert made.log.statistics().is_full
    assert made.allocator.due_in == 1.0
    with pytest.raises(StorageFull) as full:
        made.log.append(3, 3, 1, 0, 0, b"z" * 3000)
    assert full.value.retriable
    assert made.log.last_index == 2
    assert made.log.read(1, 2)
    assert not [path for path in disk.paths() if path.suffix == ".tmp"]
    assert made.failures == []
    disk.capacity_bytes = 1 << 30
    made.preallocate()
    assert made.log.has_room(3000)
    assert not made.log.statistics().is_full
    made.append(b"z" * 3000)
    made.flush()
    assert made.durable == [1, 2]


def test_log_is_short_of_space_only_when_the_disk_has_refused_it() -> None:
    """A segment that is being made counts as room; asking for this wants no segment."""
    disk = SimulatedDisk()
    made = LogUnderTest(disk)
    made.append(b"x" * 3000)
    disk.fail_next("fallocate", errno.ENOSPC)
    made.append(b"y" * 3000)
    assert not made.log.has_room(3000)
    assert not made.log.is_short_of_space(3000), "nobody has tried yet"
    made.preallocate()
    assert made.log.is_short_of_space(3000)
    assert not made.log.is_short_of_space(500), "what is left of the segment"
    assert not made.allocator.woken
    made.preallocate()
    assert not made.log.is_short_of_space(3000)


def test_no_segment_is_made_whose_consume_queue_units_would_not_fit() -> None:
    """The smallest records need 20 bytes of ConsumeQueue for 91 of log; that space stays free."""
    disk = SimulatedDisk()
    made = LogUnderTest(disk)
    used = disk.capacity_bytes - disk.free_bytes(LOG)
    units = 2 * SEGMENT * 20 // 91  # of the segment that will be written to, and a new one
    disk.capacity_bytes = used + SEGMENT + units - 1
    made.append(b"x" * 3000)
    made.append(b"y" * 3000)
    made.preallocate()
    assert made.log.statistics().is_full
    disk.capacity_bytes += 1
    made.preallocate()
    assert not made.log.statistics().is_full


@pytest.mark.parametrize("capacity", [0, 3000, 4096 + 100])
def test_first_segment_that_does_not_fit_is_an_error_of_open(capacity: int) -> None:
    """So is a checkpoint that doesn't; with space back, the same directory opens."""
    disk = SimulatedDisk(capacity_bytes=capacity)
    with pytest.raises(StorageFull):
        LogUnderTest(disk)
    disk.capacity_bytes = 1 << 20
    assert LogUnderTest(disk).log.last_index == 0


def test_failing_fsync_of_a_new_segment_is_fatal() -> None:
    """A disk that can't keep a new file won't keep an old one."""
    made = LogUnderTest(SimulatedDisk())
    made.append(b"x" * 3000)
    made.append(b"x" * 3000)
    made.disk.fail_next("fsync", errno.EIO)
    made.preallocate()
    assert len(made.failures) == 1


def test_warm_up_writes_every_page_of_the_next_segment() -> None:
    options = CommitLogOptions(segment_size_bytes=2 << 20, reserve_bytes=0, warm_up=True)
    made = LogUnderTest(SimulatedDisk(), options)
    written = made.disk.count("pwritev", f"{file_name(2 << 20)}.tmp")
    assert written == 2


def test_refused_mlock_is_a_warning() -> None:
    """And pages are let go when their segment is full, or all of the log would be pinned."""
    disk = SimulatedDisk()
    disk.pin_refusal = "mlock: Cannot allocate memory"
    options = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0, mlock=True)
    made = LogUnderTest(disk, options)
    assert made.log.statistics().pin_failure == "mlock: Cannot allocate memory"
    made.append(b"x" * 3000)
    made.append(b"y" * 3000)
    made.preallocate()
    assert made.disk.count("unpin", FIRST) == 1
    made.flush()
    assert made.durable == [1]


def test_real_files_can_be_warmed_up_and_pinned(tmp_path: Path) -> None:
    """On this machine's disk; a limit on locked memory is reported, not raised."""
    options = CommitLogOptions(
        segment_size_bytes=1 << 16, reserve_bytes=0, warm_up=True, mlock=True
    )
    log = CommitLog.open(tmp_path, options, OsFiles())
    log.append(3, 1, 1, 0, 0, b"x")
    log.submit(1)
    failure = log.statistics().pin_failure
    log.close()
    assert failure is None or failure.startswith("mlock")
    again = CommitLog.open(tmp_path, options)
    assert again.recovery.clean_shutdown
    assert again.last_index == 1
    again.close()


# --- weaker modes -----------------------------------------------------------------------------


def test_async_announces_after_the_write_and_syncs_by_time_and_pages() -> None:
    """Named weaker: a kill loses nothing, a power cut what the last interval brought."""
    made = LogUnderTest(SimulatedDisk(), ASYNC)
    made.append(b"x" * 100)
    made.flush()
    assert made.durable == [1]
    assert made.disk.count("fdatasync", FIRST) == 0
    killed = made.disk.clone()
    assert LogUnderTest(killed).log.last_index == 1
    cut = made.disk.clone()
    cut.power_cut()
    assert LogUnderTest(cut).log.last_index == 0
    made.clock.now += 0.5
    made.flusher.run_pending()
    assert made.disk.count("fdatasync", FIRST) == 0, "fewer than four pages are dirty"
    for _ in range(6):
        made.append(b"x" * 2900)
        made.flush()
    assert made.disk.count("fdatasync", FIRST) == 1
    made.clock.now += 0.5
    made.flusher.run_pending()
    made.disk.power_cut()
    assert LogUnderTest(made.disk).log.last_index == 7


def test_async_syncs_little_by_the_thorough_flush() -> None:
    made = LogUnderTest(SimulatedDisk(), ASYNC)
    made.append(b"x")
    made.flush()
    assert made.flusher.due_in == pytest.approx(10.0)
    made.clock.now += 10.0
    made.flusher.run_pending()
    assert made.disk.count("fdatasync", FIRST) == 1


def test_write_buffer_keeps_bytes_in_memory_for_200_ms() -> None:
    """TransientStorePool's part: even a kill loses what waits there, though it can be read."""
    options = CommitLogOptions(
        segment_size_bytes=SEGMENT,
        reserve_bytes=0,
        flush=FlushMode.ASYNC,
        write_buffer_bytes=1000,
        cache_bytes=0,
    )
    made = LogUnderTest(SimulatedDisk(), options)
    made.append(b"x" * 100)
    made.flush()
    assert made.durable == [1]
    assert made.disk.count("pwritev", FIRST) == 0
    assert made.flusher.due_in == pytest.approx(0.2)
    made.append(b"y")
    assert made.log.read(1, 1).endswith(b"x" * 100)
    assert LogUnderTest(made.disk.clone()).log.last_index == 0
    made.clock.now += 0.2
    made.flusher.run_pending()
    assert made.disk.count("pwritev", FIRST) == 1
    assert LogUnderTest(made.disk.clone()).log.last_index == 1
    made.append(b"z" * 1000)
    made.flush()
    assert made.disk.count("pwritev", FIRST) == 2, "more than the buffer holds"
    assert LogUnderTest(made.disk.clone()).log.last_index == 3
    made.log.close()
    made.disk.power_cut()
    assert LogUnderTest(made.disk).log.recovery.clean_shutdown


def test_write_buffer_is_written_before_a_cut() -> None:
    options = CommitLogOptions(
        segment_size_bytes=SEGMENT,
        reserve_bytes=0,
        flush=FlushMode.ASYNC,
        write_buffer_bytes=10_000,
    )
    made = LogUnderTest(SimulatedDisk(), options)
    made.append(b"x")
    made.append(b"y")
    made.flush()
    made.log.truncate_from(2)
    made.append(b"z", term=2)
    made.flush()
    made.log.close()
    again = LogUnderTest(made.disk)
    assert again.log.read(1, 2)[57 + 56 :] == b"z"


@pytest.mark.parametrize(
    "wrong",
    [
        {"segment_size_bytes": 4095},
        {"segment_size_bytes": 0},
        {"segment_size_bytes": 1 << 32},
        {"write_buffer_bytes": 1},
        {"reserve_bytes": -1},
        {"async_flush_interval_ms": 0},
    ],
)
def test_options_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CommitLogOptions(**wrong)  # type: ignore[arg-type]
