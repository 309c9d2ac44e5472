"""A node's disk work on a real file system that somebody else fills to the last byte.

Run as a program it makes a small tmpfs for itself alone (in a mount namespace of its own, so it
needs root), and fills it before each step of the protocol in turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from broker.config import NodeConfig
from broker.recovery import Recovered, StoreMachinery, recover
from chaos.forming import form_disks
from dledger.core.types import EntryKind, HardState, NodeId, Term
from store.commitlog import CommitLogOptions
from store.errors import StorageFull
from store.files import Buffer, FileSystem, Handle, OsFiles

SEGMENT_BYTES = 64 << 10
DISK_BYTES = 2 << 20
NAME = NodeId("n1")
WAIT_S = 60.0


class CrowdedFiles(OsFiles):
    """The real disk. From the `crowded_from`-th operation on, somebody writes until nothing more
    fits, before each of them: what is set free is gone."""

    def __init__(self, filler: Path, crowded_from: int) -> None:
        super().__init__()
        self.operations = 0
        self._filler = filler
        self._crowded_from = crowded_from
        self._lock = threading.Lock()

    def _crowd(self) -> None:
        with self._lock:
            self.operations += 1
            if self.operations > self._crowded_from:
                fill(self._filler)

    def create(self, path: Path) -> Handle:
        self._crowd()
        return super().create(path)

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
        self._crowd()
        return super().pwritev(handle, buffers, offset)

    def fallocate(self, handle: Handle, size: int) -> None:
        self._crowd()
        super().fallocate(handle, size)

    def truncate(self, handle: Handle, size: int) -> None:
        self._crowd()
        super().truncate(handle, size)

    def rename(self, old: Path, new: Path) -> None:
        self._crowd()
        super().rename(old, new)

    def exchange(self, one: Path, other: Path) -> bool:
        self._crowd()
        return super().exchange(one, other)

    def unlink(self, path: Path) -> None:
        self._crowd()
        super().unlink(path)

    def fsync_directory(self, path: Path) -> None:
        self._crowd()
        super().fsync_directory(path)


def fill(filler: Path) -> None:
    """Nothing more fits on the disk."""
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


def config_of(directory: Path) -> NodeConfig:
    return NodeConfig(
        broker_group="g",
        node_id=NAME,
        data_directory=directory,
        listen="127.0.0.1:1",
        peers={NAME: "127.0.0.1:1"},
    )


def opened(files: FileSystem, directory: Path) -> Recovered:
    config = config_of(directory)
    options = CommitLogOptions(segment_size_bytes=SEGMENT_BYTES, reserve_bytes=0)
    return recover(config, files, StoreMachinery(log_options=options))


def formed(files: FileSystem, directory: Path) -> None:
    """The directory is that of a group of one, which has not been started."""
    options = CommitLogOptions(segment_size_bytes=SEGMENT_BYTES, reserve_bytes=0)
    machinery = StoreMachinery(log_options=options)
    form_disks([config_of(directory)], lambda _: files, lambda _: machinery)


def persist(recovered: Recovered, ticket: int, term: int) -> None:
    """What was done to the log is durable, after a new term.

    Raises:
        BaseException: what failed.
    """
    log, done = recovered.log, threading.Event()
    failed: list[BaseException] = []

    def on_failed(error: BaseException) -> None:
        failed.append(error)
        done.set()

    log.on_durable = lambda upto: done.set() if upto >= ticket else None
    log.on_failed = on_failed
    log.submit(ticket, lambda: recovered.hard_state_store.save(HardState(Term(term), NAME)))
    if not done.wait(WAIT_S):
        raise TimeoutError(f"ticket {ticket}")
    if failed:
        raise failed[0]


def append(recovered: Recovered, term: int) -> None:
    log = recovered.log
    log.append(EntryKind.NOOP, log.last_index + 1, term, 1, 0, b"")


def protocol(files: FileSystem, directory: Path) -> None:
    """A life: terms, entries, a cut, the checkpoint; and another that finds them."""
    recovered = opened(files, directory)
    term = recovered.hard_state.term
    kept = recovered.log.last_index + 1
    for step in range(3):  # of one term: its file is replaced more than once
        append(recovered, term + step + 1)
        persist(recovered, step + 1, term + step + 1)
    recovered.log.truncate_from(kept + 1)
    append(recovered, term + 4)
    persist(recovered, 4, term + 4)
    recovered.log.checkpoint.note_consume_queue(kept, 1)
    recovered.log.checkpoint.sync()
    recovered.queues.close()
    recovered.log.close()
    recovered.directory.close()
    again = opened(files, directory)
    found = (again.hard_state, again.log.last_index, again.log.last_term)
    again.queues.close()
    again.log.close()
    again.directory.close()
    expected = (HardState(Term(term + 4), NAME), kept + 1, term + 4)
    if found != expected:
        raise AssertionError(f"found {found}, expected {expected}")


def every_step(root: Path) -> tuple[int, int]:
    """The protocol with the disk filling at each of its steps, on a directory that has been used
    before, and on a new one; how many steps there were, and how many first starts were refused."""
    crowd, refused = 0, 0
    used, filler = root / "used", root / "filler"
    formed(OsFiles(), used)
    protocol(OsFiles(), used)
    while True:
        files = CrowdedFiles(filler, crowd)
        protocol(files, used)
        filler.unlink(missing_ok=True)
        new = root / "new"
        formed(OsFiles(), new)
        try:
            protocol(CrowdedFiles(filler, crowd), new)
        except StorageFull:
            refused += 1
        except OSError as error:
            if (new / "commitlog").exists():
                raise AssertionError("an error that isn't told as what it is") from error
            refused += 1
        filler.unlink(missing_ok=True)
        subprocess.run(["rm", "-rf", str(new)], check=True)
        if files.operations <= crowd:
            return crowd, refused
        crowd += 1


def main() -> None:
    root = Path(sys.argv[1])
    options = f"size={DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(root)], check=True)
    steps, refused = every_step(root)
    sys.stdout.write(f"{steps} steps, {refused} first starts refused\n")


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("needs root")
    main()
