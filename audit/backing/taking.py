"""Taking a backup: the committed log of a group that runs, copied, verified, and only then named.

    members answer ─▶ source chosen ─▶ copied behind what is there ─▶ synced ─▶ verified whole ─▶
    what is wrong taken from other members ─▶ `backup.json`

What a node has committed never changes, so a copy of it is the group's state as of its last entry,
whatever the group does meanwhile; and a later backup into the same folder copies what came since.
The folder counts up to where `backup.json` says: whatever fails before that is written leaves the
backup that there was. Nothing that a node gives is believed: the whole copy is read back and
verified, entry by entry, by the code of `dledger log verify`, and what has rotted at one member is
taken from another by that of `dledger log repair`.

What was acknowledged before this began is in it if every member answered, and one of them led and
was ready: only a leader knows what was acknowledged to be committed, and the members know less
after it has died (`audit.reading.leading`). So an election is waited for; members that give no
answer are told, and so is that nobody leads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from audit.backing.behind import begins_behind, check_note, fill
from audit.backing.members import check_members, members_of, remarks_on
from audit.engines.engine import PassStarted
from audit.errors import BackupRefused, NodeRefused, SegmentGone, Unreachable
from audit.proof.log import OpenedLog, SegmentVerified, open_log, verify_log, weight_of
from audit.proof.soundness import Soundness
from audit.reading.leading import leader_among
from audit.reading.live import Over, replicas_of_group
from audit.reading.remote import NodeLog, node_log
from audit.reading.replica import Replica
from audit.repairing.refilling import LogRepair, Outcome
from audit.repairing.sources import node_sources
from dledger.reading.backup import FILE, Backup
from dledger.reading.checkpoint import CheckpointState, encode_checkpoint
from dledger.reading.entry import HEADER_SIZE, EntryHeader, parse_header, verify_frame
from dledger.reading.files import opened, read_at
from dledger.reading.headers import walk_headers
from dledger.reading.log_start import FROM_THE_FIRST, NOTE, LogStart
from dledger.records.errors import InvalidFrame
from dledger.records.layout import FILE_NAME, file_name
from dledger.wire import audit_pb2 as apb
from store.atomic_file import replace_file
from store.backup import COMMITLOG, read_backup, write_backup
from store.directory import lock_directory
from store.errors import CorruptionFound
from store.files import UNSYNCED_ERRNOS, FileSystem, OsFiles, make_directory, write_all
from store.log_start import StartNote, decode_start
from store.repair_journal import NAME as JOURNAL
from store.repair_journal import RepairJournal
from store.snapshot_files import FOLDER as SNAPSHOTS
from store.snapshot_files import SnapshotFiles

CHUNK_BYTES: Final = 4 << 20
JOINT_BYTES: Final = 64 << 10
CATCH_UP_S: Final = 10.0  # how long a follower may lack what is known to be committed
ELECTION_S: Final = 10.0  # how long nobody may lead
_NAP_S: Final = 0.1
_BACKUPS_FILES: Final = frozenset(
    each + ending
    for each in ("LOCK", COMMITLOG, "checkpoint", FILE, JOURNAL, NOTE, SNAPSHOTS)
    for ending in ("", ".tmp")
)


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of it.

    Attributes:
        copied_bytes: of the log, now; the rest was there.
        mended: places that had rotted at the source.
        silent: members that gave no answer: what only they knew to be committed isn't in it.
        leader: who led when they were asked, with a majority of those that vote; empty: nobody, and
            what only the last leader knew to be committed may be missing.
        remarks: why the silent ones are that, where another one answers in their place, or they are
            out of service or refill their logs; and who answered and is no member, so that nothing
            of it counts.
    """

    backup: Backup
    copied_bytes: int
    mended: tuple[Outcome, ...]
    silent: tuple[str, ...]
    leader: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Source:
    """A member's log: what it is, and up to where it is committed there, and durable."""

    replica: Replica
    log: NodeLog
    survey: apb.LogSurvey

    @property
    def end(self) -> int:
        return int(self.survey.committed_offset)


def take_backup(
    folder: Path, addresses: Sequence[str], node: str | None, started: PassStarted
) -> Taken:
    """The folder is a backup of the group at `addresses`.

    Args:
        node: whose log is copied; None: a follower's, where one is as far as any member.

    Raises:
        Unreachable, NodeRefused: a member that is needed doesn't answer.
        BackupRefused: the folder, or the group's log, can't be that; what is there stays.
        UsageMistake: the addresses are of several groups.
        StoreError, OSError: the folder can't be used.
    """
    files = OsFiles()
    found, leader = _asked(addresses)
    answering, silent = members_of(found)
    if not answering:
        raise Unreachable(", ".join(addresses), "no member's log can be read")
    make_directory(files, folder)
    if not files.exists(folder / FILE):
        # One that died as it made the folder may have left its name in the page cache only. Where
        # the folder around it can't be synced, it wasn't made there, or needs no sync.
        try:
            files.fsync_directory(folder.parent)
        except OSError as error:
            if error.errno not in UNSYNCED_ERRNOS:
                raise
    lock = lock_directory(files, folder, "dledger group backup")
    try:
        before = read_backup(files, folder)
        _check_folder(files, folder, before)
        behind = None if before is None else before.last_index
        with _source(answering, node, behind) as source:
            _check(folder, source, before)
            # What was judged may be in no member's log any more, and the next mending's journal
            # would take its place.
            size = int(source.survey.segment_size_bytes)
            RepairJournal(files, folder).redo(folder / COMMITLOG, size)
            copied = _copy(files, folder, source, before, started)
        others = [each.address for each in answering if each.address is not None]
        mended = _verified(folder, source.end, others, files, started)
        _check_base(files, folder, size)
        check_members(folder, size, answering)
        backup = _described(folder, source)
        write_backup(files, folder, backup)
    finally:
        files.close(lock)
    return Taken(backup, copied, mended, silent, leader, remarks_on(found))


# --- from whom ----------------------------------------------------------------------------------


def _asked(addresses: Sequence[str]) -> tuple[list[Replica], str]:
    """What the group's nodes say, and who leads: asked again while nobody does, as in an election;
    empty: nobody, still.

    Raises:
        Unreachable, UsageMistake: as `replicas_of_group`.
    """
    until = time.monotonic() + ELECTION_S
    while True:
        found = replicas_of_group(addresses, on_hosts=False, over=Over.GRPC)
        leader = leader_among(found)
        if leader is not None or time.monotonic() >= until:
            return found, "" if leader is None else leader.id
        time.sleep(_NAP_S)


@contextmanager
def _source(members: Sequence[Replica], node: str | None, behind: int | None) -> Iterator[_Source]:
    """The member whose log is copied: with all that any of them knew to be committed when they
    were asked. A follower, so that the leader has no more to do, unless none gets there.

    Args:
        behind: the entry that the folder ends with; None: it holds none. The front of a log goes
            on each disk in its own time: one that hasn't the next entry any more is passed over.

    Raises:
        BackupRefused: there is none, or none has the next entry any more.
        Unreachable: none has all that is committed, after a while.
    """
    wanted = max(each.position.committed for each in members if each.position is not None)
    named = [each for each in members if node in (None, each.id)]
    if not named:
        known = ", ".join(each.id for each in members)
        raise BackupRefused(f"{node} is no member that answers; these do: {known}")
    until = time.monotonic() + CATCH_UP_S
    reason = f"behind what is committed after {CATCH_UP_S:g} s"
    while True:
        begins: dict[str, int] = {}  # by whom the next entry is gone
        for replica in _followers_first(named):
            assert replica.address is not None
            with node_log(replica.address) as log:
                try:
                    survey = log.survey()
                except NodeRefused as error:
                    reason = error.strerror or ""  # it stands by, say, and is no member
                    continue
                if behind is not None and behind < survey.first_index - 1:
                    begins[replica.id] = int(survey.first_index)
                elif survey.committed_offset >= wanted:
                    yield _Source(replica, log, survey)
                    return
        left = [each.id for each in named if each.id not in begins]
        if not left:
            raise BackupRefused(_gone(behind, begins))
        if time.monotonic() >= until:
            raise Unreachable(", ".join(left), reason)
        time.sleep(_NAP_S)


def _gone(behind: int | None, begins: Mapping[str, int]) -> str:
    each = ", ".join(f"{node}'s begins at entry {first}" for node, first in begins.items())
    return (
        f"the backup ends at entry {behind}, and what lay between is gone from every log that was "
        f"looked at ({each}). Take a new backup into an empty folder"
    )


def _followers_first(members: Sequence[Replica]) -> list[Replica]:
    """Whoever knew of most as committed when it was asked leads, or is as good."""

    def known(member: Replica) -> int:
        return member.position.index if member.position is not None else 0

    return sorted(members, key=known)


def _check_folder(files: FileSystem, folder: Path, before: Backup | None) -> None:
    """What lies there is a backup's, or an interrupted first one's.

    Raises:
        BackupRefused: it isn't.
    """
    others = set(files.listdir(folder)) - _BACKUPS_FILES
    if others:
        raise BackupRefused(
            f"{folder} holds something else ({', '.join(sorted(others)[:3])}): a backup is kept in "
            "a folder of its own"
        )


def _check(folder: Path, source: _Source, before: Backup | None) -> None:
    """The source's log goes on from what is in the folder.

    Raises:
        BackupRefused: it doesn't.
    """
    survey = source.survey
    if not source.end:
        raise BackupRefused(f"{source.replica.id} has nothing committed")
    if before is None:
        return
    theirs = (survey.broker_group, survey.segment_size_bytes)
    if theirs != (before.broker_group, before.segment_size_bytes):
        raise BackupRefused(
            f"{folder} is a backup of broker group {before.broker_group!r} with segments of "
            f"{before.segment_size_bytes} bytes, and this is {theirs[0]!r} with {theirs[1]}"
        )
    if source.end < before.end_offset:
        raise BackupRefused(
            f"{folder} holds entries up to {before.last_index}, and the group has committed less: "
            "it isn't that group any more"
        )


# --- copying ------------------------------------------------------------------------------------


def _copy(
    files: FileSystem,
    folder: Path,
    source: _Source,
    before: Backup | None,
    started: PassStarted,
) -> int:
    """What lies behind the backup that there was is in the folder, durably; how much that is."""
    commitlog = folder / COMMITLOG
    make_directory(files, commitlog)
    size = int(source.survey.segment_size_bytes)
    if before is None:
        _cut(files, commitlog, size, 0)
        start = _copy_base(files, folder, source)
        at = start.offset(size)
    else:
        start, at = StartNote(files, folder).read(), before.end_offset
    progress, begin = started("copy", source.end - at), at
    if before is not None:
        filled = _check_goes_on(folder, source, before)
    _cut(files, commitlog, size, at)
    if before is not None and filled and source.end > at:
        at = fill(files, folder, filled, size)
        progress(at - begin)
    while at < source.end:
        base = at - at % size
        path = commitlog / file_name(base)
        handle = files.open(path) if files.exists(path) else files.create(path)
        try:
            files.truncate(handle, size)
            while at < min(source.end, base + size):
                content = _read(source, base, at, min(source.end, base + size) - at)
                write_all(files, handle, [content], at - base)
                at += len(content)
                progress(len(content))
            files.fsync(handle)
        finally:
            files.close(handle)
    files.fsync_directory(commitlog)
    state = CheckpointState(watermark=source.end, first_offset=start.offset(size))
    page = encode_checkpoint(state)
    replace_file(files, folder / "checkpoint", page)
    return source.end - begin


def _copy_base(files: FileSystem, folder: Path, source: _Source) -> LogStart:
    """The folder has what stands for the entries before the source's first, durably.

    Raises:
        NodeRefused: it isn't given whole.
    """
    answer = source.log.base()
    note, total = answer.log_start, answer.size_bytes
    snapshots = SnapshotFiles(folder, files)
    snapshots.remove_all_but(())
    if files.exists(folder / NOTE):
        files.unlink(folder / NOTE)
    if not note:
        return FROM_THE_FIRST
    content = bytes(answer.piece)
    while len(content) < total:
        answer = source.log.base(len(content))
        if (answer.log_start, answer.size_bytes) != (note, total) or not answer.piece:
            raise NodeRefused(str(source.replica.address), "its log begins elsewhere by now")
        content += answer.piece
    start = decode_start(note, f"{NOTE} of {source.replica.id}")
    make_directory(files, folder / SNAPSHOTS)
    replace_file(files, snapshots.path(start.index), content)
    StartNote(files, folder).replace(start)
    return start


def _check_base(files: FileSystem, folder: Path, segment_size: int) -> None:
    """What stands for the entries before the first is whole, and the first goes on from it.

    Raises:
        BackupRefused: it isn't.
    """
    start = StartNote(files, folder).read()
    if start == FROM_THE_FIRST:
        return
    wanted = (start.index, start.term, start.digest, start.end_offset)
    at = start.offset(segment_size)
    try:
        with SnapshotFiles(folder, files).opened(start.index) as (head, chunks):
            found = (head.applied_index, head.term, head.digest, head.end_offset)
            for _ in chunks:
                pass
        with opened(str(folder / COMMITLOG / file_name(at))) as descriptor:
            size = parse_header(read_at(descriptor, HEADER_SIZE, 0), 0).total_size
            first = verify_frame(read_at(descriptor, size, 0), 0, start.digest)
    except (CorruptionFound, InvalidFrame, OSError) as error:
        raise BackupRefused(f"what stands for entries 1 to {start.index}: {error}") from error
    if found != wanted or (first.index, first.physical_offset) != (start.first_index, at):
        raise BackupRefused(f"what stands for entries 1 to {start.index} is of another log")


def _cut(files: FileSystem, commitlog: Path, size: int, end: int) -> None:
    """What an interrupted backup left behind `end` is gone, durably: zeros end a log."""
    for name in files.listdir(commitlog):
        if not FILE_NAME.fullmatch(name):
            continue
        if int(name) >= end:
            files.unlink(commitlog / name)
        elif int(name) + size > end:
            handle = files.open(commitlog / name)
            try:
                files.truncate(handle, end - int(name))
                files.truncate(handle, size)
                files.fsync(handle)
            finally:
                files.close(handle)


def _check_goes_on(folder: Path, source: _Source, before: Backup) -> int:
    """The source has the same bytes as the backup that there was, where that ends: the last of
    them carry a digest of all before. If its log begins there it has none of them any more; then
    its start note tells, and the answer is the byte behind which a filler belongs. Else 0.

    Raises:
        BackupRefused: it hasn't.
    """
    if begins_behind(source.survey, before):
        return check_note(folder, source.replica.id, source.log, before)
    end, size = before.end_offset, before.segment_size_bytes
    base = (end - 1) - (end - 1) % size
    at = max(base, end - JOINT_BYTES)
    with opened(str(folder / COMMITLOG / file_name(base))) as descriptor:
        own = read_at(descriptor, end - at, at - base)
    if own != _read_range(source, base, at, end - at):
        raise BackupRefused(
            f"bytes {at} to {end} of the log of {source.replica.id} aren't those of {folder}: "
            "another log, or what one of them has there has rotted. Take a new backup into an "
            "empty folder"
        )
    return 0


def _read(source: _Source, base: int, at: int, wanted: int) -> bytes:
    """Bytes of the source's log from `at` on, at least one.

    Raises:
        NodeRefused: it gives none.
    """
    content = _read_range(source, base, at, min(wanted, CHUNK_BYTES))
    if not content:
        raise NodeRefused(str(source.replica.address), f"it gives no byte at {at} of its log")
    return content[:wanted]


def _read_range(source: _Source, base: int, at: int, size: int) -> bytes:
    """Raises:
    NodeRefused: it gives no answer.
    BackupRefused: it has no such segment any more.
    """
    try:
        return source.log.read((base, int(source.survey.segment_size_bytes)), at, size)
    except SegmentGone as error:
        raise BackupRefused(f"{source.replica.id} has no such segment any more: {error}") from error


# --- proving ------------------------------------------------------------------------------------


def _verified(
    folder: Path, end: int, addresses: Sequence[str], files: FileSystem, started: PassStarted
) -> tuple[Outcome, ...]:
    """All that the folder holds up to byte `end` is right, now; what was put right.

    Raises:
        BackupRefused: it isn't.
    """
    wrong, first = _wrong(folder, end, started)
    if not first:
        return ()
    told: list[Outcome] = []
    log = _opened(folder, end)
    with node_sources(addresses, log.segment_size) as sources:
        work = LogRepair(log, sources, files)
        for base in wrong:
            work.mend(base, told.append)
    _, first = _wrong(folder, end, started)
    if first:
        reasons = "; ".join(reason for each in told for reason in each.reasons)
        raise BackupRefused(f"the copy isn't right, and no member has better: {first}. {reasons}")
    return tuple(each for each in told if each.source)


def _opened(folder: Path, end: int) -> OpenedLog:
    """The log that is to be there: the folder says as yet that it is the backup that it was."""
    return replace(open_log(folder, is_ours=True), end=end, read_end=end)


def _wrong(folder: Path, end: int, started: PassStarted) -> tuple[list[int], str]:
    """The segments in which something is wrong, and the first of it in words."""
    log = _opened(folder, end)
    wrong: list[int] = []

    def tell(segment: SegmentVerified) -> None:
        if segment.left_out or segment.places:
            wrong.append(segment.base)

    total = verify_log(log, tell=tell, progress=started("verify", weight_of(log)))
    if total.verdict is Soundness.SOUND and not wrong:
        return [], ""
    place = total.first or total.tail
    if place is None:
        return wrong, f"{total.verdict.value}"
    return wrong, f"byte {place.offset} of {place.file}: {place.detail or place.cause}"


def _described(folder: Path, source: _Source) -> Backup:
    """What the folder holds, which was verified."""
    survey = source.survey
    last = last_entry(folder / COMMITLOG, int(survey.segment_size_bytes), source.end)
    return Backup(
        first_index=StartNote(OsFiles(), folder).read().first_index,
        broker_group=survey.broker_group,
        node_id=survey.node_id,
        segment_size_bytes=int(survey.segment_size_bytes),
        last_index=last.index,
        last_term=last.term,
        last_digest=last.digest,
        end_offset=source.end,
        taken_ms=int(time.time() * 1000),
    )


def last_entry(commitlog: Path, segment_size: int, end: int) -> EntryHeader:
    """The entry that ends there, or is the last before a filler that does.

    Raises:
        BackupRefused: no entry does: an end in the midst of one.
    """
    base = (end - 1) - (end - 1) % segment_size
    while (commitlog / file_name(base)).exists():
        with opened(str(commitlog / file_name(base))) as descriptor:
            at, last, reason = walk_headers(descriptor, base, segment_size)
        if last is not None:
            if base + at != end and reason != "filler":
                break
            return last
        base -= segment_size
    raise BackupRefused(f"{commitlog} holds no entry that ends at byte {end}")
