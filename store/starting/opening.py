"""From a data directory to an open member's store: every check of a start that reads only files.

Order matters: the lock first (two processes must never write one log), then whether the directory
is out of service, as nothing in it may be touched then, whether it is a member's at all, then the
log (what was torn is cut, what is corrupt stops here), then term and vote, then whether the log
names this disk, then the number of this start. A hard state that is older than the log cannot be:
term and vote are made durable before any entry of that term, so it was lost or put back from a
copy, and this node may have voted since.

A node does this over its disk, a judgement over a rehearsal (`store.starting.judging`); neither has
a rule of its own. What it must never do is ask which of the two it is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from dledger.codec import configuration_bytes, decode_configuration
from dledger.core.group_epoch import Lineage
from dledger.core.types import (
    MAX_TERM,
    NO_BASE,
    NO_DISK,
    NO_TERM,
    Configuration,
    ConfigurationPlace,
    HardState,
    Index,
    LogBase,
    LogSummary,
    NodeId,
    Term,
    TermRun,
)
from dledger.errors import HardStateCorrupt, HardStateOlder
from dledger.hard_state import HardStateStore, decode_hard_state, encode_hard_state
from dledger.reading.log_start import LogStart
from dledger.records.layout import file_name
from dledger.wire import raft_pb2
from store.atomic_file import AtomicFile
from store.commitlog import CommitLog, CommitLogOptions, RecoveryReport
from store.directory import (
    Birth,
    DataDirectory,
    DirectoryState,
    Identity,
    born_now,
    stored_boot_number,
)
from store.doubt import DoubtNote
from store.errors import CorruptionFound, StorageFull
from store.files import FULL_ERRNOS, PASSING_ERRNOS, FileSystem, make_directory
from store.gap import Holes
from store.intact import NOTHING_KNOWN, Known
from store.log_start import Install
from store.out_of_service import mark_of
from store.seals import FOLDER as SEALS
from store.second_copy import SecondCopy
from store.snapshot_files import SnapshotFiles, SnapshotHead
from store.starting.errors import BaseMissing, DiskReplaced, LogMissing, NotAMember, OutOfService
from store.starting.founding import Founding, read_founding
from store.starting.snapshots import check_base, head_at
from store.starting.unformed import end_of_unformed
from store.suspicion import SuspicionNote
from store.worker import ThreadWorker, WorkerFactory

HARD_STATE_SPARE_BYTES: Final = 512  # a term and a vote, whatever the node's name


def _untold(report: RecoveryReport) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Site:
    """What is to be opened, for whom, and with what.

    Args:
        identity: whose the directory must be.
        peers: names of the group's members, as configured; all that is known of a group by one who
            takes a lost disk's place.
        holder: see `DataDirectory.open`.
        told: what opening the log found, before what follows may refuse.
        known: what was read of the log already; a node has read nothing.
    """

    path: Path
    identity: Identity
    files: FileSystem
    options: CommitLogOptions
    peers: frozenset[str] = frozenset()
    workers: WorkerFactory = ThreadWorker
    clock: Callable[[], float] = time.monotonic
    birth: Callable[[], Birth] = born_now
    holder: str | None = None
    told: Callable[[RecoveryReport], None] = _untold
    known: Known = NOTHING_KNOWN


@dataclass(frozen=True, slots=True)
class FoundHardState:
    """Term and vote, where they are kept, and whether the copy had to stand in for the file:
    `was_older`, which is whole, but was put back from before."""

    store: HardStateStore
    state: HardState
    copy: SecondCopy
    was_mended: bool = False
    was_older: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """A member's store, open. `base`: the configuration in force where the log holds none;
    `hard_state_was_mended`: its file had rotted, or was an older one, and a copy is as new."""

    directory: DataDirectory
    log: CommitLog
    hard_state_store: HardStateStore
    hard_state: HardState
    summary: LogSummary
    base: Configuration
    boot_number: int
    hard_state_was_mended: bool
    hard_state_was_older: bool


def open_member(site: Site) -> Opened:
    """The directory is a member's, this process's alone, and everything in it that a start reads
    is what it must be.

    Raises:
        StartRefused: the node must not take part with it; the subclass says why.
        StoreError: DirectoryInUse, WrongIdentity, IdentityMissing, CorruptionFound, StorageFull,
            NotARegularFile.
        HardStateCorrupt: term and vote can't be trusted.
        OSError: the directory can't be used.
    """
    opened = contextlib.ExitStack()
    directory = opened.enter_context(contextlib.closing(open_directory(site)))
    try:
        check_in_service(site)
        founding = settle_forming(site, directory)
        _take_in_anew(site, directory, founding)
        log = opened.enter_context(contextlib.closing(open_log(site)))
        site.told(log.recovery)
        hard_state = open_hard_state(site)
        summary = summarize(log, site.path)
        check_terms(summary, hard_state.state)
        base = base_configuration(site, founding)
        check_own_disk(directory, summary, base, founding)
        snapshots = SnapshotFiles(site.path, site.files)
        if log.start.index:
            _keep_base_twice(snapshots, head_at(log, directory.disk.disk_id, log.start.index))
        check_base(snapshots, log, directory.disk.disk_id)
        boot_number = directory.next_boot()
        keep_copy(hard_state, boot_number)
    except BaseException:
        opened.close()
        raise
    return Opened(
        directory,
        log,
        hard_state.store,
        hard_state.state,
        summary,
        base,
        boot_number,
        hard_state.was_mended,
        hard_state.was_older,
    )


def open_closely(site: Site, found: Opened, error: CorruptionFound) -> Opened:
    """The same again, after `error` was found in what the walk had passed over: this time it is
    walked, and what it was passed over by is gone.

    Raises:
        GapFound: as a rule; and what `open_member` raises. `error`, if it isn't of the log.
    """
    with contextlib.closing(found.directory):
        found.log.close(is_clean=False)
    file, files = Path(error.file), site.files
    if file.parent != site.path / "commitlog":
        raise error
    seal = site.path / SEALS / file.name
    if files.exists(seal):
        files.unlink(seal)
        files.fsync_directory(seal.parent)
    return open_member(site)


@dataclass(frozen=True, slots=True)
class Holed:
    """A member's directory, locked, whose log has gaps: it may ask peers for what is missing, in
    its own name, and promise nothing. `members`: names and addresses, as far as they are known;
    `recoveries`: the newest epoch of the group that is."""

    directory: DataDirectory
    hard_state_store: HardStateStore
    hard_state: HardState
    boot_number: int
    members: tuple[tuple[str, str], ...]
    recoveries: Lineage


def open_holed(site: Site, holes: Holes) -> Holed:
    """The directory is a member's, this process's alone, and its log is left as it is.

    Raises: see `open_member`.
    """
    opened = contextlib.ExitStack()
    directory = opened.enter_context(contextlib.closing(open_directory(site)))
    try:
        check_in_service(site)
        founding = settle_forming(site, directory)
        members = dict.fromkeys(site.peers, "")
        recoveries: Lineage = ()
        if founding is not None:
            members |= dict(founding.members.addresses)
            recoveries = founding.members.epoch.recoveries
        for _, body in holes.configurations:
            with contextlib.suppress(DecodeError):
                named = decode_configuration(raft_pb2.Configuration.FromString(body))
                members |= dict(named.addresses)
                recoveries = max(recoveries, named.epoch.recoveries, key=len)
        hard_state = open_hard_state(site)
        boot_number = directory.next_boot()
        keep_copy(hard_state, boot_number)
    except BaseException:
        opened.close()
        raise
    members.pop(site.identity.node_id, None)
    return Holed(
        directory,
        hard_state.store,
        hard_state.state,
        boot_number,
        tuple(sorted(members.items())),
        recoveries,
    )


def open_directory(site: Site) -> DataDirectory:
    """The data directory, made at the first start, and locked. Raises: see `DataDirectory.open`."""
    return DataDirectory.open(site.path, site.identity, site.files, site.holder, site.birth)


def check_in_service(site: Site) -> None:
    """The directory isn't kept for whoever looks into it.

    Raises:
        OutOfService: it is.
    """
    divergence = mark_of(site.files, site.path)
    if divergence is not None:
        raise OutOfService(str(site.path), site.identity.node_id, divergence)


def settle_forming(site: Site, directory: DataDirectory) -> Founding | None:
    """The directory is a member's; what it was formed as, if that is known here.

    Raises:
        NotAMember, RestoreUnfinished: it isn't.
        CorruptionFound: what it was prepared for, or the log that should begin with it, is damaged.
    """
    founding = read_founding(site.path, site.files)
    if not directory.disk.state.is_member:
        end_of_unformed(directory, founding, site.files, site.options)
    if not directory.disk.state.is_member:
        raise NotAMember(str(site.path), site.identity.node_id, directory.disk.state.value)
    return founding


def open_log(site: Site) -> CommitLog:
    """The log, recovered; begun anew, if that was intended.

    Raises: see `CommitLog.open`; and
        BaseMissing: what it is to begin with isn't there. The log that was is left as it is.
    """
    _intended(site)
    Install(site.files, site.path).settle(site.options.segment_size_bytes)
    _distrust_seals(site)
    return CommitLog.open(
        site.path,
        site.options,
        site.files,
        workers=site.workers,
        clock=site.clock,
        known=site.known,
    )


def _intended(site: Site) -> LogStart | None:
    """Where the log is to begin anew, and can; None: that isn't intended.

    Raises:
        BaseMissing: what it is to begin with isn't there.
    """
    intended, snapshots = (
        Install(site.files, site.path).read(),
        SnapshotFiles(site.path, site.files),
    )
    if intended is not None and not snapshots.is_whole(intended.index):
        file = str(snapshots.path(intended.index))
        why = "it isn't what was written; the log of before is left as far as it is there"
        raise BaseMissing(file, intended.first_index, why)
    return intended


def _take_in_anew(site: Site, directory: DataDirectory, founding: Founding | None) -> None:
    """A directory whose log is about to begin where the group doesn't name its disk is being taken
    in, durably: its member was taken out and is one again by an entry behind. As a formed one it
    would start no more, and what it had would be gone. It is formed again once its log names it."""
    if directory.disk.state is not DirectoryState.FORMED:
        return
    intended = _intended(site)
    if intended is None:
        return
    named = base_of(intended).configuration or base_configuration(site, founding)
    node, disk = NodeId(directory.identity.node_id), directory.disk.disk_id
    if named.disk_of(node) != disk:
        try:
            directory.mark(DirectoryState.JOINING)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            # What is about to go has far more space than this takes, and can't go before.
            Install(site.files, site.path).make_room(intended)
            directory.mark(DirectoryState.JOINING)


def _distrust_seals(site: Site) -> None:
    """Nothing of the log is passed over, where the memory that its seals were written from was
    found to be wrong, or where more has rotted than is known."""
    path, files = site.path, site.files
    suspicion = SuspicionNote(files, path).read()
    is_suspected = suspicion is not None and suspicion.is_memory
    if not is_suspected and DoubtNote(files, path).says_all():
        return
    if not files.exists(path / "abort"):
        files.close(files.create(path / "abort"))
        files.fsync_directory(path)
    folder = path / SEALS
    if files.exists(folder):
        for name in files.listdir(folder):
            files.unlink(folder / name)
        files.fsync_directory(folder)


def open_hard_state(site: Site) -> FoundHardState:
    """Term and vote; nothing may be promised by a vote that only the page cache knows. From here on
    the next ones need no space: there is a file already, and one to exchange it with.

    Raises:
        StorageFull: there is no space for the next term.
        HardStateCorrupt, CorruptionFound: they can't be trusted, nor is there a copy that is.
    """
    path, files = site.path, site.files
    make_directory(files, path / "raft")
    file = AtomicFile(files, path / "raft" / "hard_state", HARD_STATE_SPARE_BYTES)
    copy = SecondCopy(files, path / "raft" / "hard_state.copy")
    store = HardStateStore(file)
    was_older = False
    try:
        copied = _copied(site, copy)
        found = None
        try:
            if file.settle() is not None:
                found = store.load()
        except (CorruptionFound, HardStateCorrupt):
            if copied is None:
                raise
        if found is not None:
            was_older = copied is not None and _is_newer(copied, found)
            if not was_older:
                return FoundHardState(store, found, copy)
        state = copied or HardState()
        store.save(state)
        file.keep_space()
        return FoundHardState(store, state, copy, copied is not None, was_older)
    except OSError as error:
        if error.errno not in FULL_ERRNOS:
            raise
        free = files.free_bytes(path)
        raise StorageFull(str(path / "raft"), HARD_STATE_SPARE_BYTES, free) from error


def _keep_base_twice(snapshots: SnapshotFiles, own: SnapshotHead) -> None:
    """Without space for a second copy there is one."""
    try:
        snapshots.mend_base(own)
    except OSError as error:
        if error.errno not in PASSING_ERRNOS:
            raise


def _is_newer(one: HardState, other: HardState) -> bool:
    """Whether `one` promises what `other` has not promised yet. The copy is written after the file,
    so a file that is older was put back.

    Raises:
        HardStateCorrupt: each has voted for somebody else in the same term.
    """
    if one.term != other.term:
        return one.term > other.term
    if one.vote is not None and other.vote is not None and one.vote != other.vote:
        raise HardStateCorrupt(
            f"one vote in term {one.term}",
            f"one for {other.vote}, and one for {one.vote} in its copy",
        )
    return one.vote is not None and other.vote is None


def _copied(site: Site, copy: SecondCopy) -> HardState | None:
    """What the last start has left beside the file; None if that isn't known."""
    try:
        content = copy.content(stored_boot_number(site.files, site.path))
        return None if content is None else decode_hard_state(content)
    except (CorruptionFound, HardStateCorrupt):
        return None


def keep_copy(found: FoundHardState, boot_number: int) -> None:
    """From now on there are two of them; without space for the second there is one, as before, and
    none that a later start could take for a second: it would be older than what is promised."""
    try:
        found.copy.begin(boot_number, encode_hard_state(found.state))
    except OSError as error:
        if error.errno not in FULL_ERRNOS:
            raise
        found.copy.void()
        return
    found.store.keep_copy(found.copy, found.state)


def summarize(log: CommitLog, path: Path) -> LogSummary:
    """The log as the core wants to know it.

    Raises:
        CorruptionFound: no log of ours begins like this, or a configuration in it is none.
    """
    commitlog, runs = path / "commitlog", log.term_runs()
    if log.first_index != log.start.first_index:
        expected = f"entry {log.start.first_index}"
        raise CorruptionFound(str(commitlog), 0, expected, f"entry {log.first_index}")
    if runs and runs[0][1] == NO_TERM:
        raise CorruptionFound(str(commitlog / file_name(0)), 0, "a term from 1 on", NO_TERM)
    configurations: list[tuple[Index, Configuration]] = []
    for index, body in log.configuration_entries():
        try:
            configuration = decode_configuration(raft_pb2.Configuration.FromString(body))
        except DecodeError as error:
            raise CorruptionFound(
                str(commitlog), 0, f"a configuration in entry {index}", error
            ) from error
        configurations.append((Index(index), configuration))
    base = base_of(log.start)
    return LogSummary(
        last_index=Index(log.last_index),
        term_runs=tuple(TermRun(Index(first), Term(term)) for first, term in runs),
        configurations=tuple(each for each in configurations if each[0] > base.index),
        base=base,
    )


def base_of(start: LogStart) -> LogBase:
    """What was before a log's first entry, as the core wants to know it.

    Raises:
        DecodeError: its configuration is none.
    """
    if not start.index:
        return NO_BASE
    configuration = None
    if start.configuration_index:
        body = raft_pb2.Configuration.FromString(start.configuration)
        configuration = decode_configuration(body)
    return LogBase(
        index=Index(start.index),
        term=Term(start.term),
        digest=start.digest,
        append_time_ms=start.append_time_ms,
        end_offset=start.end_offset,
        place=ConfigurationPlace(Term(start.configuration_term), Index(start.configuration_index)),
        configuration=configuration,
    )


def start_of(base: LogBase) -> LogStart:
    """The inverse of `base_of`."""
    body = b"" if base.configuration is None else configuration_bytes(base.configuration)
    return LogStart(
        base.index,
        base.term,
        base.digest,
        base.end_offset,
        base.append_time_ms,
        base.place.at,
        base.place.term,
        body,
    )


def check_terms(summary: LogSummary, hard_state: HardState) -> None:
    """Term and vote are as new as the log, and of a term that a group can reach.

    Raises:
        HardStateCorrupt: they aren't.
    """
    last_term = summary.term_runs[-1].term if summary.term_runs else NO_TERM
    if hard_state.term < last_term:
        raise HardStateOlder(
            f"term {last_term} or later, which the log holds", str(hard_state.term)
        )
    if hard_state.term > MAX_TERM:
        raise HardStateCorrupt(f"a term up to {MAX_TERM}", str(hard_state.term))


def base_configuration(site: Site, founding: Founding | None) -> Configuration:
    """What is in force where the log holds no configuration."""
    if founding is not None:
        return founding.members
    # A disk that takes another's place: until its log says more it knows no disk, its own included.
    own = frozenset({NodeId(site.identity.node_id)})
    return Configuration(voters=frozenset(map(NodeId, site.peers)) - own, learners=own)


def check_own_disk(
    directory: DataDirectory,
    summary: LogSummary,
    base: Configuration,
    founding: Founding | None,
) -> None:
    """A formed directory has its log, and the log names this disk. One that it names no more, and
    no other in its place, starts: the entry that took its member out may be cut off yet, and the
    group may need it until then (ADR 41).

    Raises:
        LogMissing, DiskReplaced: it hasn't, or names another.
    """
    path, node = str(directory.path), NodeId(directory.identity.node_id)
    if directory.disk.state is not DirectoryState.FORMED:
        return
    configurations = [configuration for _, configuration in summary.configurations]
    if summary.base.configuration is not None:
        configurations.insert(0, summary.base.configuration)
    if not configurations and (founding is None or not founding.is_adopted):
        raise LogMissing(path, node)
    known = [base, *configurations]
    named = known[-1].disk_of(node)
    if named == NO_DISK and any(each.disk_of(node) == directory.disk.disk_id for each in known):
        return
    if named != directory.disk.disk_id:
        raise DiskReplaced(path, node, named, directory.disk.disk_id)
