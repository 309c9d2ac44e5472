"""A directory made of a backup: that of a new group, which has one member and the old one's log.

    empty ─▶ unformed, locked ─▶ marked as unfinished ─▶ (state as of before the first entry,
    start note) ─▶ segments copied, synced ─▶ term ─▶
    walked whole, and it is the backup's log ─▶ configuration: this member, on this disk ─▶
    formed ─▶ mark gone

The entry that names the new configuration follows the last one that is wanted: whoever is taken in
later gets it like all others, and no member of the old group is one of the new, as none of their
disks is named (docs/adr/0022-disk-identities.md). It begins another epoch of the group, as one that
a recovery by force writes does (`store.starting.recovering`): here, too, the log ends before what
clients and members of consumer groups were given, and their sessions are over.
A log that uses a level of formats and commands above the one that this program knows founds no
group: its only member would apply nothing behind that (docs/adr/0023-levels.md).
Until it is formed the directory is no member's and no node starts on it: where it isn't done, the
mark says so (`store.starting.unformed`). Done again after a crash, all is begun anew.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from dledger.codec import configuration_bytes, decode_configuration
from dledger.core.group_epoch import (
    FIRST_EPOCH,
    MAX_RECOVERIES,
    RECOVERY_ID_BYTES,
    GroupEpoch,
    Recovery,
)
from dledger.core.types import Configuration, DiskId, EntryKind, HardState, NodeId, Term
from dledger.hard_state import HardStateStore
from dledger.reading.backup import Backup
from dledger.reading.entry import EPOCH_TERM_GAP
from dledger.reading.files import opened
from dledger.reading.headers import walk_headers
from dledger.reading.log_start import FROM_THE_FIRST, NOTE, LogStart
from dledger.records.layout import file_name
from dledger.wire import raft_pb2
from store.atomic_file import AtomicFile
from store.backup import COMMITLOG, read_backup
from store.commitlog import CommitLog
from store.directory import DataDirectory, DirectoryState, read_sealed, write_sealed
from store.errors import BackupUnusable, CorruptionFound, StorageFailed
from store.files import FileSystem, OsFiles, make_directory, read_exactly, write_all
from store.log_start import INTENT, Install, StartNote
from store.snapshot_files import SnapshotFiles, SnapshotHead
from store.starting.founding import FILE as FOUNDING
from store.starting.levels import check_known, level_at_end, level_of_backup
from store.starting.opening import Site, open_directory
from store.starting.unformed import RESTORE
from store.worker import InlineWorker

# Of a backup: it is only read, and may well lie where nobody can write.
KEPT_FILES: Final = OsFiles(access=os.O_RDONLY)
CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Restored:
    """`last_index`: the last entry of the backup that is in the new group's log; behind it lies the
    entry that founds the new group, in `term`."""

    backup: Backup
    last_index: int
    term: int
    disk_id: bytes
    epoch: GroupEpoch


def restore(
    folder: Path,
    site: Site,
    address: str,
    through: int | None = None,
    progress: Callable[[int], None] = lambda size: None,
    *,
    kept: FileSystem | None = None,
    epoch_id: Callable[[], bytes] = lambda: os.urandom(RECOVERY_ID_BYTES),
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
) -> Restored:
    """The directory of `site` is a formed member's, and its group has no other.

    Args:
        address: where the member will listen.
        through: the last entry that is wanted; None: all that the backup holds.
        progress: told bytes as they are copied.
        kept: the file system of the backup; None: that of `site`.
        epoch_id: gives the 16 bytes that name the epoch; random ones.

    Raises:
        BackupUnusable: there is no backup in the folder, or not of that; it isn't right; or the
            directory holds something already.
        StoreError, OSError: see `DataDirectory.open`.
    """
    files = site.files
    kept = kept or files
    backup = read_backup(kept, folder)
    if backup is None:
        raise BackupUnusable(f"{folder} is no backup: it has no backup.json")
    if backup.segment_size_bytes != site.identity.segment_size_bytes:
        raise BackupUnusable(
            f"{folder} has segments of {backup.segment_size_bytes} bytes, and the node is "
            f"configured for {site.identity.segment_size_bytes}"
        )
    start = _start_of(kept, folder, backup)
    end, last_index = _wanted(folder, backup, through)
    level = level_of_backup(kept, folder, start)
    with contextlib.closing(open_directory(site)) as directory:
        _begin(files, directory, backup, last_index)
        _copy_base(files, kept, folder, directory, start)
        begin = start.offset(backup.segment_size_bytes)
        source = _Source(kept, folder, backup.segment_size_bytes)
        _copy(files, source, site.path, (begin, end), progress)
        named = _Named(address, epoch_id(), now_ms())
        wanted = _Wanted(folder, end, last_index, level)
        term, epoch = _found(site, directory, backup, wanted, named)
        directory.mark(DirectoryState.FORMED)
        # The group is there from here on, whatever becomes of the mark: it says nothing any more.
        with contextlib.suppress(OSError):
            files.unlink(site.path / RESTORE)
            files.fsync_directory(site.path)
        return Restored(backup, last_index, term, directory.disk.disk_id, epoch)


def _wanted(folder: Path, backup: Backup, through: int | None) -> tuple[int, int]:
    """The physical offset behind the last entry that is wanted, and its index.

    Raises:
        BackupUnusable: the backup doesn't hold it.
    """
    if through is None or through == backup.last_index:
        return backup.end_offset, backup.last_index
    if not backup.first_index <= through < backup.last_index:
        held = f"{backup.first_index} to {backup.last_index}"
        raise BackupUnusable(f"{folder} holds entries {held}, and {through} was asked for")
    size = backup.segment_size_bytes
    for base in range((backup.end_offset - 1) // size * size, -1, -size):
        if not (folder / COMMITLOG / file_name(base)).exists():
            break
        with opened(str(folder / COMMITLOG / file_name(base))) as descriptor:
            _, first, _ = walk_headers(descriptor, base, size, 0)
            if first is None or first.index > through:
                continue
            at, last, _ = walk_headers(descriptor, base, size, through)
            if last is not None and last.index == through:
                return base + at, through
        break
    raise BackupUnusable(f"entry {through} isn't where the entries of {folder} lead to")


def _start_of(files: FileSystem, folder: Path, backup: Backup) -> LogStart:
    """Where the backup's log begins.

    Raises:
        BackupUnusable: elsewhere than it says of itself.
    """
    try:
        start = StartNote(files, folder).read()
    except CorruptionFound as error:
        raise BackupUnusable(f"{folder}: {error}") from error
    if start.first_index != backup.first_index:
        raise BackupUnusable(
            f"{folder} holds entries from {backup.first_index} on, and what stands for those "
            f"before is as of entry {start.index}"
        )
    return start


# --- the directory ------------------------------------------------------------------------------


def _begin(files: FileSystem, directory: DataDirectory, backup: Backup, last_index: int) -> None:
    """The directory holds nothing but the mark of this being unfinished.

    Raises:
        BackupUnusable: it holds more, that no unfinished restoring left there.
    """
    path = directory.path
    mark, commitlog = path / RESTORE, path / COMMITLOG
    fields: dict[str, object] = {"digest": f"{backup.last_digest:016x}", "last_index": last_index}
    is_unfinished = files.exists(mark)
    if is_unfinished:
        with contextlib.suppress(CorruptionFound):  # then it died while it wrote just that
            read_sealed(files, mark)
    held = files.listdir(commitlog) if files.exists(commitlog) else []
    is_empty = not held and not files.exists(path / FOUNDING)
    if directory.disk.state is not DirectoryState.UNFORMED or not (is_unfinished or is_empty):
        raise BackupUnusable(
            f"{path} is not empty: it is {directory.disk.state.value}, with {len(held)} files of a "
            "log. A backup is restored into a directory that was never used"
        )
    write_sealed(files, mark, fields)
    make_directory(files, commitlog)
    for name in held:
        files.unlink(commitlog / name)
    for name in ("checkpoint", "abort", "truncation", NOTE, INTENT):
        if files.exists(path / name):
            files.unlink(path / name)
    SnapshotFiles(path, files).remove_all_but(())
    files.fsync_directory(commitlog)
    files.fsync_directory(path)


def _copy_base(
    files: FileSystem, kept: FileSystem, folder: Path, directory: DataDirectory, start: LogStart
) -> None:
    """The directory's log begins so, with the state as of there as this disk's own.

    Raises:
        BackupUnusable: that state isn't there, or isn't whole.
    """
    if start == FROM_THE_FIRST:
        return
    path = directory.path
    own = SnapshotFiles(path, files)
    wanted = SnapshotHead(
        directory.disk.disk_id, start.index, start.term, start.digest, start.end_offset
    )
    try:
        with SnapshotFiles(folder, kept).opened(start.index) as (head, chunks):
            if replace(head, disk_id=wanted.disk_id) != wanted:
                raise BackupUnusable(f"{folder}: the snapshot as of {start.index} is another log's")
            unfinished = own.begin(wanted)
            try:
                for chunk in chunks:
                    unfinished.add([chunk])
                unfinished.finish()
            except BaseException:
                unfinished.drop()
                raise
    except (CorruptionFound, FileNotFoundError) as error:
        raise BackupUnusable(f"{folder}: the snapshot as of {start.index}: {error}") from error
    own.publish(unfinished)
    install = Install(files, path)  # an empty log that begins there, as an install makes it
    install.intend(start)
    install.settle(directory.identity.segment_size_bytes)


@dataclass(frozen=True, slots=True)
class _Source:
    """The segments of a backup, and where they are read."""

    files: FileSystem
    folder: Path
    segment_size: int


def _copy(
    files: FileSystem,
    kept: _Source,
    path: Path,
    bounds: tuple[int, int],
    progress: Callable[[int], None],
) -> None:
    begin, end = bounds
    folder, segment_size = kept.folder, kept.segment_size
    for base in range(begin, end, segment_size):
        wanted = min(end - base, segment_size)
        source = kept.files.open(folder / COMMITLOG / file_name(base))
        try:
            target = files.create(path / COMMITLOG / file_name(base))
            try:
                files.fallocate(target, segment_size)
                for at in range(0, wanted, CHUNK_BYTES):
                    size = min(CHUNK_BYTES, wanted - at)
                    content = read_exactly(kept.files, source, size, at, str(folder))
                    write_all(files, target, [content], at)
                    progress(size)
                files.fsync(target)
            finally:
                files.close(target)
        finally:
            kept.files.close(source)
    files.fsync_directory(path / COMMITLOG)


# --- the log ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Named:
    """What the entry that founds the group says and neither log nor directory knows."""

    address: str
    epoch_id: bytes
    time_ms: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Where the backup in `folder` is to end: behind byte `end` and entry `last_index`; `level`: in
    use where its log begins."""

    folder: Path
    end: int
    last_index: int
    level: int


def _found(
    site: Site, directory: DataDirectory, backup: Backup, wanted: _Wanted, named: _Named
) -> tuple[Term, GroupEpoch]:
    """The log is that of the backup, entry by entry, and goes on with the new configuration; the
    term of that, and the epoch that it begins.

    Raises:
        BackupUnusable: the log isn't the backup's, or uses a level that this program doesn't know.
    """
    end, last_index = wanted.end, wanted.last_index
    path, files = site.path, site.files
    # Nothing runs beside this: what is submitted is done when that returns, and as it opens it has
    # a segment made for what founds the group, should the last one be full.
    try:
        log = CommitLog.open(path, site.options, files, workers=InlineWorker)
    except CorruptionFound as error:
        raise BackupUnusable(f"the backup isn't what it was: {error}") from error
    is_founded = False
    try:
        # No watermark says what must be there, so the walk has cut off what isn't right.
        found = (log.last_index, log.end_offset)
        if found != (last_index, end) or (
            last_index == backup.last_index and log.last_digest != backup.last_digest
        ):
            raise BackupUnusable(
                f"the backup isn't what it was: entries 1 to {found[0]} of {last_index} are right, "
                f"up to byte {found[1]} of {end}. Another one, or `dledger log repair` with what "
                "members still have, may help"
            )
        check_known(wanted.folder, level_at_end(log, wanted.level))
        disk_id = DiskId(directory.disk.disk_id)
        founding = _founding(log, NodeId(site.identity.node_id), disk_id, named)
        term = Term(log.last_term + EPOCH_TERM_GAP)
        make_directory(files, path / "raft")
        file = AtomicFile(files, path / "raft" / "hard_state")
        file.settle()
        HardStateStore(file).save(HardState(term))  # before the entry: no log is ahead of its term
        body = configuration_bytes(founding)
        time_ms = log.last_append_time_ms
        log.append(EntryKind.CONFIGURATION, last_index + 1, term, time_ms, 0, body)
        log.submit(1)
        if log.synced_index != last_index + 1:
            raise StorageFailed("the entry that founds the group", OSError("it isn't durable"))
        is_founded = True
    finally:
        log.close(is_clean=is_founded)
    return term, founding.epoch


def _founding(log: CommitLog, node: NodeId, disk: DiskId, named: _Named) -> Configuration:
    """The group's only member, in an epoch that comes from the one that the log ends in.

    Raises:
        BackupUnusable: what the log says of its members can't be read.
    """
    before = Configuration(frozenset())
    if entries := log.configuration_entries():
        try:
            before = decode_configuration(raft_pb2.Configuration.FromString(entries[-1][1]))
        except (DecodeError, ValueError) as error:
            raise BackupUnusable(f"the configuration of entry {entries[-1][0]}: {error}") from error
    recoveries = before.epoch.recoveries
    if len(recoveries) >= MAX_RECOVERIES:
        recoveries = FIRST_EPOCH.recoveries  # a lineage of its own, as another group's
    began = Recovery(
        survivor=node,
        time_ms=max(0, named.time_ms),
        term=log.last_term + EPOCH_TERM_GAP,
        index=log.last_index + 1,
        committed_index=log.last_index,
        given_up=tuple((each, before.disk_of(each)) for each in sorted(before.members())),
    )
    return Configuration(
        voters=frozenset({node}),
        disks=((node, disk),),
        addresses=((node, named.address),),
        epoch=GroupEpoch((*recoveries, named.epoch_id), began),
    )
