"""A backup that breaks off, before or within each call that changes anything: the folder is the
backup that it was, to all who read it, and goes on."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from audit.backing import taking
from audit.backing.taking import Taken, take_backup
from audit.contents.export import export_messages
from audit.engines.engine import LocalEngine
from audit.errors import BackupRefused
from audit.proof.log import open_log, verify_log
from audit.proof.soundness import Soundness
from audit.reading.replica import Replica, Seat
from audit.repairing.sources import Source, folder_fetch
from dledger.reading.backup import FILE
from dledger.reading.entry import EntryHeader
from dledger.reading.survey import Position
from dledger.records.layout import file_name
from dledger.wire import audit_pb2 as apb
from store.backup import read_backup
from store.commitlog import CommitLogOptions
from store.directory import Identity
from store.files import Buffer, Handle, OsFiles
from store.repair_journal import NAME as JOURNAL
from store.starting.opening import Site, open_member
from store.starting.restoring import restore
from store.worker import ManualWorker
from tests.audit.replicas import SEGMENT, ReplicaSet, flip_bit
from tests.audit.test_backup_read import exported, offsets


class Died(BaseException):
    """The process did, in the midst of what it was at."""


class Dying(OsFiles):
    """Calls that change something are counted, and before the last of them it dies; of a write,
    and of what is changed first, half is done by then."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def _count(self) -> bool:
        """Whether this call is the last."""
        self.left -= 1
        if self.left < 0:
            raise Died  # nothing is done any more by who cleans up
        return self.left == 0

    def create(self, path: Path) -> Handle:
        self._die(self._count())
        return super().create(path)

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
        is_last = self._count()
        if is_last:
            content = b"".join(bytes(each) for each in buffers)
            super().pwritev(handle, [content[: len(content) // 2]], offset)
        self._die(is_last)
        return super().pwritev(handle, buffers, offset)

    def truncate(self, handle: Handle, size: int) -> None:
        self._die(self._count())
        super().truncate(handle, size)

    def fallocate(self, handle: Handle, size: int) -> None:
        self._die(self._count())
        super().fallocate(handle, size)

    def fsync(self, handle: Handle) -> None:
        self._die(self._count())
        super().fsync(handle)

    def fdatasync(self, handle: Handle) -> None:
        self._die(self._count())
        super().fdatasync(handle)

    def rename(self, old: Path, new: Path) -> None:
        self._die(self._count())
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._die(self._count())
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._die(self._count())
        super().mkdir(path)

    def fsync_directory(self, path: Path) -> None:
        self._die(self._count())
        super().fsync_directory(path)

    def _die(self, is_last: bool) -> None:
        if is_last:
            raise Died


@dataclass
class Group:
    """A group of which a member's log is `path`, committed up to `last`; others have `better`."""

    path: Path
    last: EntryHeader
    better: Path
    rotten: list[int] = field(default_factory=list)  # physical offsets

    @property
    def end(self) -> int:
        return self.last.physical_offset + self.last.total_size

    def read(self, segment: tuple[int, int], offset: int, size: int) -> bytes:
        content = bytearray(folder_fetch(str(self.path / "commitlog"))(segment[0], 0, SEGMENT))
        for at in self.rotten:
            if segment[0] <= at < segment[0] + SEGMENT:
                content[at - segment[0]] ^= 1
        start = offset - segment[0]
        return bytes(content[start : min(start + size, self.end - segment[0])])

    def survey(self) -> apb.LogSurvey:
        return apb.LogSurvey(
            broker_group="g",
            node_id="n1",
            segment_size_bytes=SEGMENT,
            first_index=1,
            committed_offset=self.end,
        )

    def base(self, at: int = 0) -> apb.ReadBaseResponse:
        return apb.ReadBaseResponse()

    def found(self) -> tuple[list[Replica], str]:
        at = Position(self.end, self.last.digest, self.last.index, 1)
        seat = Seat(1, serves=True, voters=(frozenset({"n1"}),))
        return [Replica("n1", "", position=at, address="n1:1", seat=seat)], "n1"

    def take(self, folder: Path) -> Taken:
        return take_backup(folder, ["n1:1"], None, lambda *_: lambda _: None)


@pytest.fixture
def group(three: ReplicaSet, monkeypatch: pytest.MonkeyPatch) -> Group:
    middle = three.headers[len(three.headers) // 2]
    made = Group(three.paths["n1"], middle, three.paths["n2"])

    @contextmanager
    def log_of(_: str) -> Iterator[Group]:
        yield made

    @contextmanager
    def sources(*_: object) -> Iterator[list[Source]]:
        yield [Source("n2", folder_fetch(str(made.better / "commitlog")))]

    monkeypatch.setattr(taking, "_asked", lambda _: made.found())
    monkeypatch.setattr(taking, "node_log", log_of)
    monkeypatch.setattr(taking, "node_sources", sources)
    return made


def check(folder: Path, three: ReplicaSet, last: EntryHeader, beside: Path) -> None:
    """Whoever reads the folder finds the backup that ends with that entry."""
    total = verify_log(open_log(folder))
    assert (total.verdict, total.places, total.last_index) == (Soundness.SOUND, 0, last.index)
    shutil.rmtree(beside, ignore_errors=True)
    export_messages(Replica("b", str(folder)), beside / "out", LocalEngine(processes=1))
    assert exported(beside / "out") == offsets(three, last.index)
    options = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0)
    identity = Identity("new", "m1", SEGMENT)
    site = Site(beside / "data", identity, OsFiles(), options, workers=ManualWorker)
    assert restore(folder, site, "10.0.0.9:7001").last_index == last.index
    opened = open_member(site)
    with closing(opened.directory), closing(opened.log):
        assert opened.log.digest_at(last.index) == last.digest


def breaking_off(
    folder: Path, group: Group, monkeypatch: pytest.MonkeyPatch, checked: Callable[[int], None]
) -> int:
    """The backup breaks off at each of its calls, each time from what `folder` is, and `checked` is
    called; how many there are. At last it is done."""
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    for calls in range(1, 500):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        with monkeypatch.context() as patched, contextlib.suppress(Died):
            files = Dying(calls)
            patched.setattr(taking, "OsFiles", lambda files=files: files)
            group.take(folder)
            return calls
        checked(calls)
    raise AssertionError("it has no end")


def test_wherever_a_later_backup_breaks_off_the_one_before_is_there(
    three: ReplicaSet, group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before `backup.json` is replaced it is the one that it was; from then on the new one."""
    folder, first = tmp_path / "b", group.last
    group.take(folder)
    check(folder, three, first, tmp_path / "beside")
    group.last = three.headers[-1]
    ends = []

    def checked(calls: int) -> None:
        said = read_backup(OsFiles(), folder)
        assert said is not None
        ends.append(said.last_index)
        check(folder, three, three.headers[said.last_index - 1], tmp_path / "beside")
        group.take(folder)  # and it goes on
        assert verify_log(open_log(folder)).last_index == group.last.index

    calls = breaking_off(folder, group, monkeypatch, checked)
    assert calls > 10
    assert set(ends) == {first.index, group.last.index}
    check(folder, three, group.last, tmp_path / "beside")


def test_folders_own_name_is_on_the_disk_before_it_is_a_backup(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made the folder, and died before its name was there."""
    folder = tmp_path / "b"
    folder.mkdir()
    synced = []

    class Noting(OsFiles):
        def fsync_directory(self, path: Path) -> None:
            super().fsync_directory(path)
            synced.append((path, (folder / FILE).exists()))

    monkeypatch.setattr(taking, "OsFiles", Noting)
    group.take(folder)
    assert (tmp_path, False) in synced


def test_backup_that_is_refused_leaves_the_one_before(
    three: ReplicaSet, group: Group, tmp_path: Path
) -> None:
    """What it copied isn't right, and nobody has better."""
    folder, first = tmp_path / "b", group.last
    group.take(folder)
    group.last, group.better = three.headers[-1], tmp_path / "nowhere"
    group.rotten = [three.headers[-3].physical_offset + 100]
    with pytest.raises(BackupRefused, match="no member has better"):
        group.take(folder)
    check(folder, three, first, tmp_path / "beside")


def test_mending_that_broke_off_is_finished(
    three: ReplicaSet, group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was judged lies in the journal, while its place is half written: the members may have it
    no more when the next backup comes."""
    folder, better = tmp_path / "b", group.better
    group.take(folder)
    rotten = three.headers[2]
    flip_bit(folder / "commitlog" / file_name(0), rotten.physical_offset + rotten.total_size - 1)
    group.last = three.headers[-1]
    judged = []

    def checked(calls: int) -> None:
        if not (folder / JOURNAL).exists():
            return
        judged.append(calls)
        group.better = tmp_path / "nowhere"  # what was there is there no more
        group.take(folder)
        assert not (folder / JOURNAL).exists()
        check(folder, three, group.last, tmp_path / "beside")
        group.better = better

    breaking_off(folder, group, monkeypatch, checked)
    assert len(judged) > 3
