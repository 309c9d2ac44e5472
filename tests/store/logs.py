"""Logs for the store's tests: small, on a simulated disk, their workers run by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dledger.reading.entry import EntryKind
from store.commitlog import CommitLog, CommitLogOptions
from store.flusher import FlushMode
from store.worker import ManualWorker, Step
from tests.store.faulty_files import SimulatedDisk

DATA = Path("/data")
LOG = DATA / "commitlog"
SEGMENT = 4096
SMALL = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0)


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class LogUnderTest:
    """An open log, what it announced, and its workers."""

    def __init__(self, disk: SimulatedDisk, options: CommitLogOptions = SMALL) -> None:
        self.disk = disk
        self.clock = Clock()
        self.workers: list[ManualWorker] = []
        self.durable: list[int] = []
        self.failures: list[BaseException] = []
        self.ticket = 0
        self.log = CommitLog.open(DATA, options, disk, workers=self._make, clock=self.clock)
        self.log.on_durable = self.durable.append
        self.log.on_failed = self.failures.append
        self.preallocate()

    def _make(self, name: str, step: Step) -> ManualWorker:
        worker = ManualWorker(name, step)
        self.workers.append(worker)
        return worker

    @property
    def flusher(self) -> ManualWorker:
        return self.workers[0]

    @property
    def allocator(self) -> ManualWorker:
        return self.workers[1]

    def preallocate(self) -> None:
        self.allocator.run_pending()

    def append(self, body: bytes, *, term: int = 1, kind: int = EntryKind.COMMAND) -> int:
        """The next entry holds `body`; returns its physical offset."""
        if not self.log.has_room(56 + len(body)):
            self.preallocate()
        index = self.log.last_index + 1
        return self.log.append(kind, index, term, 1000 + index, 0, body)

    def submit(self) -> None:
        self.ticket += 1
        self.log.submit(self.ticket)

    def flush(self) -> None:
        """All that was appended is durable, and has been announced."""
        self.submit()
        self.flusher.run_pending()


def make_log(bodies: Iterable[bytes], disk: SimulatedDisk | None = None) -> LogUnderTest:
    """A log of `bodies`, one entry and one flush each, left running."""
    made = LogUnderTest(disk or SimulatedDisk())
    for body in bodies:
        made.append(body)
        made.flush()
    return made


def all_frames(log: CommitLog) -> bytes:
    """Every frame the log holds, back to back."""
    return log.read(log.first_index, log.last_index) if log.last_index else b""


def segment_paths(disk: SimulatedDisk) -> list[Path]:
    return [path for path in disk.paths() if path.parent == LOG]


ASYNC = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0, flush=FlushMode.ASYNC)

# Three segments: fillers of different lengths, a last segment that is half full.
BODIES = [b"a" * 1500, b"b" * 700, b"c" * 1900, b"d" * 40, b"e" * 3000, b"f" * 300, b"g" * 1]


def stopped_log(*, clean: bool) -> SimulatedDisk:
    """A disk whose log holds BODIES, all durable."""
    made = make_log(BODIES)
    if clean:
        made.log.close()
    made.disk.kill()
    return made.disk


def assert_zeros_behind(disk: SimulatedDisk, end: int) -> None:
    for path in segment_paths(disk):
        assert not any(disk.bytes_of(path)[max(0, end - int(path.name)) :])
