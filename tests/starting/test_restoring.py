"""A directory made of a backup: a member of a new group, or nothing that a node starts on."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.forming.member import Member
from dledger.codec import decode_configuration
from dledger.core.types import NodeId
from dledger.level import KNOWN_LEVEL
from dledger.reading.backup import Backup
from dledger.reading.entry import EPOCH_TERM_GAP, HEADER_SIZE
from dledger.records.layout import file_name
from dledger.wire import raft_pb2
from store.backup import read_backup, write_backup
from store.commitlog import CommitLog, CommitLogOptions
from store.directory import DataDirectory, DirectoryState, Identity
from store.errors import BackupUnusable, CorruptionFound, StorageFailed, StoreError
from store.files import FileSystem, OsFiles
from store.starting.errors import NotAMember, RestoreUnfinished
from store.starting.judgement import Kind
from store.starting.judging import judge
from store.starting.opening import Opened, Site, open_member
from store.starting.restoring import KEPT_FILES, Restored, restore
from store.starting.unformed import RESTORE
from store.worker import ManualWorker
from tests.audit.replicas import SEGMENT, build, flip_bit, usual_entries
from tests.audit.test_later_levels import LATER, begun_at, raise_to, raised_to
from tests.scale import examples, stride
from tests.store.faulty_files import SimulatedDisk

ENTRIES = 90
ADDRESS = "10.0.0.9:7001"


class Made:
    """A backup, and the log that it is of."""

    def __init__(self, root: Path) -> None:
        builder = build(root / "n1", usual_entries(ENTRIES))
        self.folder = root / "n1"
        self.headers = builder.headers
        self.backup = Backup(
            broker_group="g",
            node_id="n1",
            segment_size_bytes=SEGMENT,
            first_index=1,
            last_index=builder.log.last_index,
            last_term=builder.log.last_term,
            last_digest=builder.log.last_digest,
            end_offset=builder.log.end_offset,
            taken_ms=1,
        )
        write_backup(OsFiles(), self.folder, self.backup)
        assert self.backup.end_offset > 2 * SEGMENT

    def on(self, files: SimulatedDisk) -> None:
        """The backup lies on that disk, in the folder of the same name."""
        for path in (self.folder, self.folder / "commitlog"):
            make_folders(files, path)
        wanted = ["backup.json", *(f"commitlog/{file_name(base)}" for base in self.bases)]
        for name in wanted:
            handle = files.create(self.folder / name)
            files.pwritev(handle, [(self.folder / name).read_bytes()], 0)
            files.fsync(handle)
            files.close(handle)
            files.fsync_directory((self.folder / name).parent)

    @property
    def bases(self) -> range:
        return range(0, self.backup.end_offset, SEGMENT)


def make_folders(files: FileSystem, path: Path) -> None:
    for each in [*reversed(path.parents), path]:
        if not files.exists(each):
            files.mkdir(each)
            files.fsync_directory(each.parent)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("backup"))


def site_at(path: Path, files: FileSystem | None = None, segment_size: int = SEGMENT) -> Site:
    options = CommitLogOptions(segment_size_bytes=segment_size, reserve_bytes=0)
    identity = Identity("new", "m1", segment_size)
    return Site(path, identity, files or OsFiles(), options, workers=ManualWorker)


def state_of(path: Path, files: FileSystem) -> DirectoryState:
    with contextlib.closing(DataDirectory.open(path, Identity("new", "m1", SEGMENT), files)) as it:
        return it.disk.state


def check_member(made: Made, site: Site, done: Restored, last_index: int) -> None:
    """A node starts on it: the wanted entries, to the byte, and one that names it alone."""
    opened: Opened = open_member(site)
    with contextlib.closing(opened.directory), contextlib.closing(opened.log):
        log = opened.log
        assert done.last_index == last_index
        assert log.last_index == last_index + 1
        assert log.digest_at(last_index) == made.headers[last_index - 1].digest
        assert (log.last_term, opened.hard_state.term) == (done.term, done.term)
        assert done.term > made.headers[last_index - 1].term
        index, body = log.configuration_entries()[-1]
        named = decode_configuration(raft_pb2.Configuration.FromString(body))
        assert index == last_index + 1
        assert named.members() == named.voters == {NodeId("m1")}
        assert dict(named.disks) == {NodeId("m1"): opened.directory.disk.disk_id}
        assert dict(named.addresses) == {NodeId("m1"): ADDRESS}
        assert named.epoch == done.epoch
        began = done.epoch.last
        assert began is not None
        assert (began.index, began.term, began.committed_index) == (index, done.term, last_index)
        assert done.term - made.headers[last_index - 1].term >= EPOCH_TERM_GAP
        assert done.epoch.number == 1


def check_refused(site: Site, disk: SimulatedDisk) -> None:
    """No node starts on it, and it says why: not that the log is another one or damaged, where
    there is any, nor that it is a new disk, and nothing is changed in it."""
    begun = disk.exists(site.path / RESTORE)
    held = files_of(disk, site.path / "commitlog")
    with pytest.raises(RestoreUnfinished if begun else NotAMember) as refused:
        open_member(site)
    assert ("restored into it" in str(refused.value)) == begun
    with contextlib.closing(DataDirectory.open(site.path, site.identity, disk)) as directory:
        try:
            member = Member(directory, disk, site.options, {"m1": ADDRESS})
        except RestoreUnfinished:
            assert begun
        else:
            assert not begun
            assert member.describe().last_index == 0
    assert files_of(disk, site.path / "commitlog") == held
    assert begun or not held


def files_of(disk: SimulatedDisk, folder: Path) -> dict[str, bytes]:
    """What lies in it, which may not be there."""
    if not disk.exists(folder):
        return {}
    return {name: disk.content(folder / name) for name in disk.listdir(folder)}


def test_node_on_what_was_restored_in_part_says_so(made: Made, tmp_path: Path) -> None:
    """And so does whoever judges the directory. It is restored into again, or emptied."""
    site = site_at(tmp_path / "m1")
    folder = tmp_path / "rotten"
    shutil.copytree(made.folder, folder)
    flip_bit(folder / "commitlog" / file_name(0), SEGMENT // 2)
    with pytest.raises(BackupUnusable, match="isn't what it was"):
        restore(folder, site, ADDRESS)
    judged = judge(site.path)
    assert not judged.starts
    assert "a backup was being restored into it" in judged.refusal
    assert [each.kind for each in judged.findings][:1] == [Kind.RESTORE_UNFINISHED]
    with pytest.raises(RestoreUnfinished, match="group restore"):
        open_member(site)
    check_member(made, site, restore(made.folder, site, ADDRESS), made.backup.last_index)


def test_what_was_restored_starts(made: Made, tmp_path: Path) -> None:
    site = site_at(tmp_path / "m1")
    done = restore(made.folder, site, ADDRESS)
    judged = judge(site.path)
    assert judged.starts, judged
    assert not (site.path / RESTORE).exists()
    check_member(made, site, done, made.backup.last_index)


@pytest.mark.parametrize("through", [1, 2, 30, ENTRIES // 2, ENTRIES - 1, ENTRIES])
def test_log_ends_with_the_entry_that_was_wanted(made: Made, tmp_path: Path, through: int) -> None:
    site = site_at(tmp_path / "m1")
    done = restore(made.folder, site, ADDRESS, through)
    assert judge(site.path).starts
    check_member(made, site, done, through)


def test_log_ends_where_its_last_segment_is_full(made: Made, tmp_path: Path) -> None:
    """What founds the group has no room in the segment of the entry before: there is a next one."""
    last = [
        one.index
        for one, other in pairwise(made.headers)
        if one.physical_offset // SEGMENT != other.physical_offset // SEGMENT
    ]
    ends = {each: made.headers[each - 1] for each in last}
    left = [SEGMENT - (each.physical_offset + each.total_size) % SEGMENT for each in ends.values()]
    assert min(left) < 2 * HEADER_SIZE  # and an address, an identity of a disk, an epoch
    for through in last:
        site = site_at(tmp_path / f"m{through}")
        check_member(made, site, restore(made.folder, site, ADDRESS, through), through)


@pytest.mark.parametrize("through", [0, -1, ENTRIES + 1, 1 << 70])
def test_entry_that_no_backup_has_is_refused(made: Made, tmp_path: Path, through: int) -> None:
    with pytest.raises(BackupUnusable, match=f"{through} was asked for"):
        restore(made.folder, site_at(tmp_path / "m1"), ADDRESS, through)
    assert not (tmp_path / "m1").exists()


@pytest.mark.parametrize("fatal", range(0, 150, stride(2)))
def test_power_that_fails_leaves_a_member_or_nothing(made: Made, fatal: int) -> None:
    """At each call of the file system, every second in make test. What isn't a member's is restored
    into again."""
    disk = SimulatedDisk()
    made.on(disk)
    site = site_at(Path("/data/m1"), disk)
    make_folders(disk, Path("/data"))
    begin = len(disk.calls)

    def stop(_operation: str, _name: str) -> None:
        if len(disk.calls) > begin + fatal:
            raise InterruptedError

    disk.before = stop
    with contextlib.suppress(InterruptedError, StorageFailed):
        restore(made.folder, site, ADDRESS)
        assert fatal > 80, "so many calls there are not"
    disk.before = lambda _operation, _name: None
    disk.power_cut(Random(fatal))
    if state_of(site.path, disk) is not DirectoryState.FORMED:
        check_refused(site, disk)
        done = restore(made.folder, site, ADDRESS)
        check_member(made, site, done, made.backup.last_index)
        return
    backup = made.backup
    opened = open_member(site)
    term, disk_id = opened.log.last_term, opened.directory.disk.disk_id
    body = opened.log.configuration_entries()[-1][1]
    epoch = decode_configuration(raft_pb2.Configuration.FromString(body)).epoch
    opened.log.close()
    opened.directory.close()
    done = Restored(backup, backup.last_index, term, disk_id, epoch)
    check_member(made, site, done, backup.last_index)


def test_disk_that_fails_once_is_told(made: Made) -> None:
    """At each call behind the copying one write or sync fails: whoever is told that it is done has
    a member, after a loss of power as well."""
    told = 0
    for fatal in range(80, 150):
        disk = SimulatedDisk()
        made.on(disk)
        site = site_at(Path("/data/m1"), disk)
        make_folders(disk, Path("/data"))
        end = len(disk.calls) + fatal

        def fail(operation: str, name: str, disk: SimulatedDisk = disk, end: int = end) -> None:
            if operation != "pread" and len(disk.calls) == end:
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)

        disk.before = fail
        done = None
        try:
            done = restore(made.folder, site, ADDRESS)
        except (OSError, StoreError):
            told += 1
        disk.before = lambda _operation, _name: None
        disk.power_cut()
        if done is not None:
            check_member(made, site, done, made.backup.last_index)
    assert told > 20


def test_so_many_calls_are_all_of_them(made: Made) -> None:
    """The test above stops at each."""
    disk = SimulatedDisk()
    made.on(disk)
    make_folders(disk, Path("/data"))
    begin = len(disk.calls)
    restore(made.folder, site_at(Path("/data/m1"), disk), ADDRESS)
    assert 100 < len(disk.calls) - begin < 150


# --- levels of formats and commands (docs/adr/0023-levels.md) -------------------------------------


def backup_of(folder: Path, first_index: int = 1) -> Backup:
    """What lies in the folder is a backup."""
    log = CommitLog.open(folder, CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0))
    last = log.last_index, log.last_term, log.last_digest, log.end_offset
    log.close()
    made = Backup("g", "n1", SEGMENT, first_index, *last, taken_ms=1)
    write_backup(OsFiles(), folder, made)
    return made


def test_backup_of_a_later_level_is_refused(tmp_path: Path) -> None:
    """Its group's only member would apply nothing behind the raise, and there is none to hand over
    to. Up to there it is restored, and so is one of the level that is known, whatever it holds of
    raises that took no effect."""
    folder = tmp_path / "later"
    build(folder, raised_to(LATER))
    last = backup_of(folder).last_index
    site = site_at(tmp_path / "m1")
    with pytest.raises(BackupUnusable, match=f"used level {LATER} .* knows level {KNOWN_LEVEL}"):
        restore(folder, site, ADDRESS)
    assert state_of(site.path, site.files) is DirectoryState.UNFORMED
    with pytest.raises(RestoreUnfinished):
        open_member(site)
    assert restore(folder, site, ADDRESS, last - 2).last_index == last - 2
    build(tmp_path / "known", [*raised_to(KNOWN_LEVEL), raise_to(LATER + 1), raise_to(1)])
    last = backup_of(tmp_path / "known").last_index
    assert restore(tmp_path / "known", site_at(tmp_path / "m2"), ADDRESS).last_index == last


@pytest.mark.parametrize("is_later", [True, False])
def test_backup_that_begins_behind_the_raise_is_refused(tmp_path: Path, is_later: bool) -> None:
    """The state that it begins with says so, and the directory isn't touched; a raise behind a
    state of a level that is known counts as ever."""
    folder, site = tmp_path / "n1", site_at(tmp_path / "m1")
    log = begun_at(folder, LATER) if is_later else begun_at(folder, KNOWN_LEVEL, raise_to(LATER))
    assert log.start is not None
    backup_of(folder, log.start.first_index)
    with pytest.raises(BackupUnusable, match=f"used level {LATER} .* knows level {KNOWN_LEVEL}"):
        restore(folder, site, ADDRESS)
    assert site.path.exists() != is_later
    known = begun_at(tmp_path / "n2", KNOWN_LEVEL, raise_to(LATER + 1))
    assert known.start is not None
    last = backup_of(tmp_path / "n2", known.start.first_index).last_index
    assert restore(tmp_path / "n2", site_at(tmp_path / "m2"), ADDRESS).last_index == last


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(at=-1, bit=0, cut=False, through=ENTRIES - 1)  # nothing behind it tells rot from a tail
@given(
    at=st.integers(0, 10**9),
    bit=st.integers(0, 7),
    cut=st.booleans(),
    through=st.sampled_from([None, ENTRIES // 3, ENTRIES - 1]),
)
def test_backup_with_any_other_byte_is_refused(
    made: Made,
    tmp_path_factory: pytest.TempPathFactory,
    at: int,
    bit: int,
    cut: bool,
    through: int | None,
) -> None:
    """A bit of its log is another, or a segment ends there: no member comes of that, whatever the
    change is; and of what lies behind the backup's end nothing matters."""
    root = tmp_path_factory.mktemp("changed")
    last = made.headers[(through or ENTRIES) - 1]
    at %= last.physical_offset + last.total_size
    base = at - at % SEGMENT
    folder = root / "backup"
    (folder / "commitlog").mkdir(parents=True)
    (folder / "backup.json").write_bytes((made.folder / "backup.json").read_bytes())
    for each in made.bases:
        content = bytearray((made.folder / "commitlog" / file_name(each)).read_bytes())
        if each == base and cut:
            content = content[: at - base]
        elif each == base:
            content[at - base] ^= 1 << bit
        (folder / "commitlog" / file_name(each)).write_bytes(content)
    site = site_at(root / "m1")
    with pytest.raises((BackupUnusable, CorruptionFound)):
        restore(folder, site, ADDRESS, through)
    assert state_of(site.path, site.files) is DirectoryState.UNFORMED
    done = restore(made.folder, site, ADDRESS)  # the very directory takes one that is right
    check_member(made, site, done, made.backup.last_index)


def test_what_an_interrupted_backup_left_means_nothing(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    (folder / "commitlog").mkdir(parents=True)
    earlier = next(each for each in made.headers if each.index == ENTRIES - 10)
    end = earlier.physical_offset + earlier.total_size
    for base in made.bases:
        content = bytearray((made.folder / "commitlog" / file_name(base)).read_bytes())
        if base == end - end % SEGMENT:
            content[end - base :] = b"\x5a" * (SEGMENT - (end - base))
        (folder / "commitlog" / file_name(base)).write_bytes(content)
    write_backup(
        OsFiles(),
        folder,
        replace(
            made.backup,
            last_index=earlier.index,
            last_term=earlier.term,
            last_digest=earlier.digest,
            end_offset=end,
        ),
    )
    site = site_at(tmp_path / "m1")
    check_member(made, site, restore(folder, site, ADDRESS), earlier.index)


def test_log_of_other_bytes_than_the_backup_says_is_refused(made: Made, tmp_path: Path) -> None:
    """A log that is right in itself, and not the one that was verified."""
    folder = tmp_path / "backup"
    builder = build(folder, list(usual_entries(ENTRIES + 20)), "n7")
    assert builder.log.end_offset > made.backup.end_offset
    write_backup(OsFiles(), folder, replace(made.backup, last_digest=made.backup.last_digest ^ 1))
    with pytest.raises(BackupUnusable, match="isn't what it was"):
        restore(folder, site_at(tmp_path / "m1"), ADDRESS)


def test_directories_that_hold_something_are_left_alone(made: Made, tmp_path: Path) -> None:
    site = site_at(tmp_path / "m1")
    restore(made.folder, site, ADDRESS)
    before = {each: each.read_bytes() for each in (site.path / "commitlog").iterdir()}
    with pytest.raises(BackupUnusable, match="not empty: it is formed"):
        restore(made.folder, site, ADDRESS)
    assert {each: each.read_bytes() for each in (site.path / "commitlog").iterdir()} == before
    stray = site_at(tmp_path / "m2")
    with contextlib.closing(DataDirectory.open(stray.path, stray.identity)):
        pass
    (stray.path / "commitlog").mkdir()
    (stray.path / "commitlog" / file_name(0)).write_bytes(b"somebody's")
    with pytest.raises(BackupUnusable, match="not empty: it is unformed, with 1 file"):
        restore(made.folder, stray, ADDRESS)
    assert (stray.path / "commitlog" / file_name(0)).read_bytes() == b"somebody's"


def test_other_segments_and_no_backup_are_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(BackupUnusable, match="configured for"):
        restore(made.folder, site_at(tmp_path / "m1", None, 2 * SEGMENT), ADDRESS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BackupUnusable, match="no backup"):
        restore(tmp_path / "empty", site_at(tmp_path / "m1"), ADDRESS)
    assert not (tmp_path / "m1").exists()


@settings(max_examples=examples(200), deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*Backup.__slots__, "format", "more"]),
        st.one_of(st.integers(-2, 1 << 70), st.text(max_size=5), st.none(), st.booleans()),
        max_size=4,
    )
)
def test_page_that_no_backup_wrote_is_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, object]
) -> None:
    """With its seal repaired: a value that no backup has is named, and ends in no traceback."""
    from store.directory import read_sealed, write_sealed

    folder = tmp_path_factory.mktemp("page")
    backup = Backup("g", "n1", SEGMENT, 1, 5, 1, 77, 900, 1)
    write_backup(OsFiles(), folder, backup)
    file = folder / "backup.json"
    fields = {**read_sealed(OsFiles(), file), **changes}
    write_sealed(OsFiles(), file, fields)
    try:
        found = read_backup(OsFiles(), folder)
    except CorruptionFound:
        return
    assert found is not None
    assert 0 < found.last_index < 1 << 63
    assert 0 < found.end_offset < 1 << 63
    assert 0 <= found.last_digest < 1 << 64
    assert isinstance(found.broker_group, str)


def test_backup_that_nobody_may_write_to_is_restored(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies on a file system that is mounted to be read, as backups should."""
    system_open = os.open

    def read_only(path: object, flags: int, *rest: int, **named: int) -> int:
        is_kept = str(path).startswith(str(made.folder))
        if is_kept and flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return system_open(path, flags, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    site = site_at(tmp_path / "m1")
    done = restore(made.folder, site, ADDRESS, kept=KEPT_FILES)
    check_member(made, site, done, made.backup.last_index)


def test_group_that_is_formed_is_told_of_though_its_mark_stays(made: Made) -> None:
    """Its directory is a member's from then on, and nothing is restored into it again: whoever was
    told that it failed had a group, and was refused when he tried again."""
    disk = SimulatedDisk()
    made.on(disk)
    site = site_at(Path("/data/m1"), disk)
    make_folders(disk, Path("/data"))

    def fail(operation: str, name: str) -> None:
        if operation == "unlink" and Path(name).name == RESTORE:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    disk.before = fail
    done = restore(made.folder, site, ADDRESS)
    assert disk.exists(site.path / RESTORE)
    check_member(made, site, done, made.backup.last_index)
