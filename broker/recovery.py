"""From a data directory to everything a node needs to join its broker group.

What a start refuses for the sake of its files alone stands in `store.starting.opening`, which the
audit rehearses; here it is given this node's configuration, and the state machine is replayed on
what it opened. A node starts on nothing that was not checked there
(docs/adr/0031-one-reader-of-a-directory.md).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import structlog

from broker.config import NodeConfig
from broker.forming.member import Member
from broker.snapshots import Base, NoFiles, restore_newest
from broker.state.machine import USUAL, MachineOptions, StateMachine
from broker.state.queue_files import QueueFiles
from broker.state.replay import (
    NO_STARTS,
    QueueStarts,
    WrongQueue,
    replay_derived,
    starts_of,
)
from dledger.core.types import Configuration, HardState, LogSummary
from dledger.hard_state import HardStateStore
from dledger.level import KNOWN_LEVEL
from dledger.records.layout import UNITS_PER_FILE
from store.commitlog import CommitLog, CommitLogOptions, FlushMode, RecoveryReport
from store.consumequeue import OPEN_FILES, ConsumeQueues
from store.directory import Birth, DataDirectory, Identity, born_now
from store.errors import CorruptionFound, StorageFailed
from store.files import FileSystem, OsFiles
from store.snapshot_files import SnapshotFiles, SnapshotHead
from store.starting import opening
from store.starting.derived import read_replayed, trusted_index
from store.starting.opening import Opened, Site, open_member
from store.worker import ThreadWorker, WorkerFactory

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoreMachinery:
    """What runs the store, and how small its parts are; a simulator's are its own. `log_options`
    None: as the node is configured."""

    workers: WorkerFactory = ThreadWorker
    clock: Callable[[], float] = time.monotonic
    log_options: CommitLogOptions | None = None
    units_per_file: int = UNITS_PER_FILE
    state: MachineOptions = USUAL
    open_files: int = OPEN_FILES  # of ConsumeQueues
    birth: Callable[[], Birth] = born_now
    holder: str | None = None  # how the process names itself in its lock; by its id


REAL_MACHINERY = StoreMachinery()


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found on disk, opened."""

    directory: DataDirectory
    log: CommitLog
    queues: ConsumeQueues
    machine: StateMachine
    wrong_queues: tuple[WrongQueue, ...]
    hard_state_store: HardStateStore
    hard_state: HardState
    summary: LogSummary
    base: Configuration  # in force where the log holds none
    boot_number: int
    member: Member
    snapshot: SnapshotHead | None  # which the state was restored from
    queue_starts: QueueStarts


def recover(
    config: NodeConfig,
    files: FileSystem | None = None,
    machinery: StoreMachinery = REAL_MACHINERY,
    known_level: int = KNOWN_LEVEL,
) -> Recovered:
    """Opens and checks the node's data directory.

    Raises:
        StartRefused: the node must not take part with it.
        DirectoryInUse, WrongIdentity, CorruptionFound, StorageFull: from the store.
        HardStateCorrupt: term and vote can't be trusted.
        OSError: the directory can't be used.
    """
    site = site_of(config, files or OsFiles(), machinery)
    found = open_member(site)
    try:
        return _replayed(config, site, found, machinery, known_level)
    except CorruptionFound as error:
        found = opening.open_closely(site, found, error)
    except BaseException:
        _close(found)
        raise
    try:
        return _replayed(config, site, found, machinery, known_level)
    except BaseException:
        _close(found)
        raise


def _close(found: Opened) -> None:
    """The log is closed. That a flush has failed as well is no reason: another one is told."""
    with contextlib.closing(found.directory), contextlib.suppress(StorageFailed):
        found.log.close()


def _replayed(
    config: NodeConfig,
    site: Site,
    found: Opened,
    machinery: StoreMachinery,
    known_level: int,
) -> Recovered:
    """The state as of what was derived, on what was opened."""
    if found.hard_state_was_mended:
        older = found.hard_state_was_older
        log.error("hard_state_mended", term=found.hard_state.term, was_older=older)
    # Whoever is no member has been refused by now: it only remembers what it was formed as.
    member = Member(found.directory, site.files, site.options, config.peers)
    queues = ConsumeQueues(
        site.path,
        site.files,
        units_per_file=machinery.units_per_file,
        open_files=machinery.open_files,
    )
    try:
        through = trusted_note(found.log)
        beginning = _Beginning(found, site, through, machinery.state, known_level)
        starts = beginning.queue_starts()
        replayed = replay_derived(found.log, queues, through, beginning.machine, starts)
    except BaseException:
        queues.close()  # the process may go on, as one that asks its peers for what has rotted
        raise
    return Recovered(
        found.directory,
        found.log,
        queues,
        replayed.machine,
        replayed.wrong,
        found.hard_state_store,
        found.hard_state,
        found.summary,
        found.base,
        found.boot_number,
        member,
        beginning.snapshot,
        starts,
    )


class _Beginning:
    """The state that a start goes on from: that of a snapshot, or none."""

    def __init__(
        self,
        found: Opened,
        site: Site,
        through: int,
        options: MachineOptions,
        known_level: int,
    ) -> None:
        self.snapshot: SnapshotHead | None = None
        self._found = found
        self._files = SnapshotFiles(site.path, site.files)
        self._through = through
        self._options = options
        self._known_level = known_level

    def queue_starts(self) -> QueueStarts:
        """Where the ConsumeQueues begin.

        Raises:
            BaseMissing, BaseUnknown: see `Base`.
        """
        if not self._found.log.start.index:
            return NO_STARTS
        return starts_of(self._base().machine(NoFiles()))

    def _base(self) -> Base:
        found = self._found
        disk_id = found.directory.disk.disk_id
        return Base(self._files, found.log, disk_id, self._options, self._known_level)

    def machine(self, queues: QueueFiles) -> StateMachine:
        """A machine that writes to `queues`, as far as a snapshot brings it.

        Raises:
            CorruptionFound: an entry that needn't be applied again has rotted.
        """
        found, options, level = self._found, self._options, self._known_level
        restored = restore_newest(
            self._files,
            found.log,
            found.directory.disk.disk_id,
            self._through,
            lambda chunks: StateMachine.restore(chunks, queues, options=options, known_level=level),
        )
        if restored is None:
            return self._base().machine(queues)
        self.snapshot = restored.head
        index = restored.head.applied_index
        log.info("state_restored", index=index, applied_again=self._through - index)
        if found.log.recovery.clean_shutdown:  # else the walk has read every byte
            read_replayed(found.log, index)
        return restored.machine


def site_of(config: NodeConfig, files: FileSystem, machinery: StoreMachinery) -> Site:
    """What `store.starting` needs to know of a node's configuration."""
    return Site(
        path=config.data_directory,
        identity=Identity(config.broker_group, config.node_id, config.store.segment_size_bytes),
        files=files,
        options=machinery.log_options or log_options(config),
        peers=frozenset(config.peers),
        workers=machinery.workers,
        clock=machinery.clock,
        birth=machinery.birth,
        holder=machinery.holder,
        told=_tell_recovery,
    )


def _tell_recovery(report: RecoveryReport) -> None:
    log.info("log_recovered", **asdict(report))


def open_directory(
    config: NodeConfig, files: FileSystem, machinery: StoreMachinery = REAL_MACHINERY
) -> DataDirectory:
    """The node's data directory, made at the first start, and locked."""
    return opening.open_directory(site_of(config, files, machinery))


def trusted_note(commit_log: CommitLog) -> int:
    """`trusted_index`; where the checkpoint notes more, it is told so, durably."""
    noted, trusted = commit_log.checkpoint.state.consume_queue_index, trusted_index(commit_log)
    if trusted < noted:
        durable = commit_log.ends_by(commit_log.recovery.watermark)
        log.warning("checkpoint_ahead_of_its_log", noted_index=noted, durable_index=durable)
        commit_log.checkpoint.distrust_consume_queues()
    return trusted


def log_options(config: NodeConfig) -> CommitLogOptions:
    """The store's options for a node's configuration."""
    store = config.store
    return CommitLogOptions(
        segment_size_bytes=store.segment_size_bytes,
        flush=FlushMode.SYNC if store.flush == "sync" else FlushMode.ASYNC,
        async_flush_interval_ms=store.async_flush_interval_ms,
        async_flush_pages=store.async_flush_pages,
        warm_up=store.warm_up,
        mlock=store.mlock,
        write_buffer_bytes=store.write_buffer_bytes,
        reserve_bytes=store.reserve_bytes,
    )
