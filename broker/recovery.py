"""From a data directory to everything a node needs to join its broker group.

Order matters: the lock first (two processes must never write one log), then whether the directory
is a member's at all, then the log (what was torn is cut, what is corrupt stops here), then term and
vote, then the number of this start, then the replay. A hard state that is older than the log cannot
be: term and vote are made durable before any entry of that term, so it was lost or put back from a
copy, and this node may have voted since. Nor does a node start on a disk that isn't the one its own
log names (docs/adr/0022-disk-identities.md).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from broker.config import NodeConfig
from broker.forming.errors import DiskReplaced, LogMissing, NotAMember
from broker.forming.founding import Founding
from broker.forming.member import Member
from broker.state.machine import USUAL, MachineOptions, StateMachine
from broker.state.replay import WrongQueue, replay_derived
from dledger.codec import decode_configuration
from dledger.core.types import (
    Configuration,
    HardState,
    Index,
    LogSummary,
    NodeId,
    Term,
    TermRun,
)
from dledger.errors import HardStateCorrupt
from dledger.hard_state import HardStateStore
from dledger.level import KNOWN_LEVEL
from dledger.records.layout import UNITS_PER_FILE
from dledger.wire import raft_pb2
from store.commitlog import CommitLog, CommitLogOptions, FlushMode
from store.consumequeue import OPEN_FILES, ConsumeQueues
from store.directory import Birth, DataDirectory, DirectoryState, Identity, born_now
from store.errors import StorageFull
from store.files import FULL_ERRNOS, AtomicFile, FileSystem, OsFiles, make_directory
from store.worker import ThreadWorker, WorkerFactory

HARD_STATE_SPARE_BYTES = 512  # a term and a vote, whatever the node's name

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


def recover(
    config: NodeConfig,
    files: FileSystem | None = None,
    machinery: StoreMachinery = REAL_MACHINERY,
    known_level: int = KNOWN_LEVEL,
) -> Recovered:
    """Opens and checks the node's data directory.

    Raises:
        NotAMember, LogMissing, DiskReplaced: the node must not take part with it.
        DirectoryInUse, WrongIdentity, CorruptionFound, StorageFull: from the store.
        HardStateCorrupt: term and vote can't be trusted.
        OSError: the directory can't be used.
    """
    files = files or OsFiles()
    path = config.data_directory
    opened = contextlib.ExitStack()
    directory = opened.enter_context(
        contextlib.closing(open_directory(config, files, machinery.birth))
    )
    try:
        options = machinery.log_options or log_options(config)
        member = Member(directory, files, options, config.peers)
        if not member.is_member:
            raise NotAMember(str(path), config.node_id, directory.disk.state.value)
        founding = member.founding
        commit_log = opened.enter_context(
            contextlib.closing(
                CommitLog.open(
                    path, options, files, workers=machinery.workers, clock=machinery.clock
                )
            )
        )
        log.info("log_recovered", **asdict(commit_log.recovery))
        make_directory(files, path / "raft")
        file = AtomicFile(files, path / "raft" / "hard_state", HARD_STATE_SPARE_BYTES)
        store = HardStateStore(file)
        hard_state = _settled_hard_state(path, files, file, store)
        if hard_state.term < commit_log.last_term:
            raise HardStateCorrupt(
                f"term {commit_log.last_term} or later, which the log holds", str(hard_state.term)
            )
        summary = summarize(commit_log)
        base = _base_configuration(config, founding)
        _check_own_disk(config, directory, summary, base, founding)
        boot_number = directory.next_boot()
        queues = ConsumeQueues(
            path,
            files,
            units_per_file=machinery.units_per_file,
            open_files=machinery.open_files,
        )
        replayed = replay_derived(
            commit_log, queues, trusted_note(commit_log), known_level, machinery.state
        )
    except BaseException:
        opened.close()
        raise
    return Recovered(
        directory,
        commit_log,
        queues,
        replayed.machine,
        replayed.wrong,
        store,
        hard_state,
        summary,
        base,
        boot_number,
        member,
    )


def open_directory(
    config: NodeConfig, files: FileSystem, birth: Callable[[], Birth] = born_now
) -> DataDirectory:
    """The node's data directory, made at the first start, and locked."""
    identity = Identity(config.broker_group, config.node_id, config.store.segment_size_bytes)
    return DataDirectory.open(config.data_directory, identity, files, birth=birth)


def _base_configuration(config: NodeConfig, founding: Founding | None) -> Configuration:
    """What is in force where the log holds no configuration."""
    if founding is not None:
        return founding.members
    # A disk that takes another's place: until its log says more it knows no disk, its own included.
    names = frozenset(map(NodeId, config.peers))
    own = frozenset({NodeId(config.node_id)})
    return Configuration(voters=names - own, learners=own)


def _check_own_disk(
    config: NodeConfig,
    directory: DataDirectory,
    summary: LogSummary,
    base: Configuration,
    founding: Founding | None,
) -> None:
    """A formed directory has its log, and the log names this disk."""
    path, node = str(directory.path), NodeId(config.node_id)
    if directory.disk.state is not DirectoryState.FORMED:
        return
    configurations = summary.configurations
    if not configurations and (founding is None or not founding.is_adopted):
        raise LogMissing(path, node)
    named = (configurations[-1][1] if configurations else base).disk_of(node)
    if named != directory.disk.disk_id:
        raise DiskReplaced(path, node, named, directory.disk.disk_id)


def _settled_hard_state(
    path: Path, files: FileSystem, file: AtomicFile, store: HardStateStore
) -> HardState:
    """Term and vote; nothing may be promised by a vote that only the page cache knows. From here on
    the next ones need no space: there is a file already, and one to exchange it with.

    Raises:
        StorageFull: there is no space for the next term.
        HardStateCorrupt, CorruptionFound: they can't be trusted.
    """
    try:
        if file.settle() is None:
            store.save(HardState())
            file.keep_space()
    except OSError as error:
        if error.errno not in FULL_ERRNOS:
            raise
        free = files.free_bytes(path)
        raise StorageFull(str(path / "raft"), HARD_STATE_SPARE_BYTES, free) from error
    return store.load()


def trusted_note(commit_log: CommitLog) -> int:
    """Through which entry the ConsumeQueues are known to be derived, all of it committed: what the
    checkpoint notes. 0, durably, if that is beyond what this log was known to hold when it was
    noted: then it speaks of entries that others had, those that lie in their places here may never
    have been committed, and everything is derived again as a leader says what is."""
    noted = commit_log.checkpoint.state.consume_queue_index
    durable = commit_log.ends_by(commit_log.recovery.watermark)
    if noted <= durable:
        return noted
    log.warning("checkpoint_ahead_of_its_log", noted_index=noted, durable_index=durable)
    commit_log.checkpoint.distrust_consume_queues()
    return 0


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


def summarize(commit_log: CommitLog) -> LogSummary:
    """The log as the core wants to know it."""
    return LogSummary(
        last_index=Index(commit_log.last_index),
        term_runs=tuple(
            TermRun(Index(first), Term(term)) for first, term in commit_log.term_runs()
        ),
        configurations=tuple(
            (Index(index), decode_configuration(raft_pb2.Configuration.FromString(body)))
            for index, body in commit_log.configuration_entries()
        ),
    )
