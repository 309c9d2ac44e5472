"""Backups of a group whose nodes run, on real ports: whole, right, and going on from each other."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audit.backing import taking
from audit.backing.taking import Taken, take_backup
from audit.commands.app import app
from audit.errors import BackupRefused, NodeRefused, SegmentGone, Unreachable
from audit.proof.log import open_log, verify_log
from audit.proof.soundness import Soundness
from audit.reading import live as live_members
from audit.reading.remote import NodeLog
from audit.reading.replica import Replica, Seat
from dledger.reading.entry import EntryHeader
from dledger.reading.log_start import LogStart
from dledger.reading.survey import Position
from dledger.records.layout import file_name
from dledger.wire import audit_pb2 as apb
from store.backup import read_backup, write_backup
from store.files import OsFiles
from tests.audit.replicas import flip_bit
from tests.integration.group import Group, make_configs

SEGMENT = 2 << 20
MESSAGE = 30_000
AT_ONCE = 10
FIRST = 2 * SEGMENT // MESSAGE + 20


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with asyncio.Runner() as runner:
        yield runner.get_loop()


class Live:
    """Three nodes with two full segments and a part of a third; backups are taken in a thread."""

    def __init__(self, group: Group, loop: asyncio.AbstractEventLoop) -> None:
        self.group = group
        self._loop = loop
        self.sent = 0

    @property
    def addresses(self) -> list[str]:
        return [config.listen for config in self.group.configs.values()]

    def data(self, node: str) -> Path:
        return next(c.data_directory for c in self.group.configs.values() if c.node_id == node)

    def send(self, count: int) -> None:
        async def run() -> None:
            for _ in range(count):
                await self.group.send(self.sent, bytes((self.sent % 251,)) * MESSAGE)
                self.sent += 1
            await self.group.applied_everywhere()

        self._loop.run_until_complete(run())

    def take(self, folder: Path, node: str | None = None) -> Taken:
        work = functools.partial(take_backup, folder, self.addresses, node, lambda *_: print)

        async def run() -> Taken:
            return await asyncio.to_thread(work)

        return self._loop.run_until_complete(run())

    def in_thread(self, work: Callable[[], object]) -> None:
        async def run() -> None:
            await asyncio.to_thread(work)

        self._loop.run_until_complete(run())


@pytest.fixture(scope="module")
def live(
    loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    group = Group(
        make_configs(
            tmp_path_factory.mktemp("live"),
            store={"segment_size_bytes": SEGMENT, "reserve_bytes": 0, "scrub_percent": 0.0},
            broker={"max_message_bytes": 1 << 20, "audit_bytes_per_s": 100 << 30},
        )
    )

    async def start() -> None:
        await group.start()
        await group.create_topic()

    try:
        loop.run_until_complete(start())
        made = Live(group, loop)
        made.send(FIRST)
        yield made
    finally:
        loop.run_until_complete(group.close())


def same_bytes(folder: Path, data: Path, end: int) -> bool:
    """The backup's log is the member's, up to that offset, and nothing is behind."""
    for base in range(0, end, SEGMENT):
        own = (folder / "commitlog" / file_name(base)).read_bytes()
        wanted = (data / "commitlog" / file_name(base)).read_bytes()[: min(end - base, SEGMENT)]
        if own != wanted + bytes(SEGMENT - len(wanted)):
            return False
    return len(list((folder / "commitlog").iterdir())) == -(-end // SEGMENT)


def check(folder: Path, live: Live, taken: Taken) -> None:
    """What the folder says of itself is so."""
    assert read_backup(OsFiles(), folder) == taken.backup
    log = open_log(folder)
    total = verify_log(log)
    assert (total.verdict, total.places, total.tail) == (Soundness.SOUND, 0, None)
    assert (total.first_index, total.last_index) == (1, taken.backup.last_index)
    assert same_bytes(folder, live.data("n1"), taken.backup.end_offset)


def test_backup_holds_what_was_committed(live: Live, tmp_path: Path) -> None:
    taken = live.take(tmp_path / "new" / "folder")
    check(tmp_path / "new" / "folder", live, taken)
    assert taken.copied_bytes == taken.backup.end_offset > 2 * SEGMENT
    assert (taken.mended, taken.silent) == ((), ())


def test_messages_of_a_backup_are_the_groups(live: Live, tmp_path: Path) -> None:
    """Exported and counted without any node, by the program's commands; and what came since is
    exported by the next backup into the same folder."""
    pytest.importorskip("pyarrow", reason="pyarrow isn't installed: pip install '.[audit]'")
    folder, target, exported = tmp_path / "b", str(tmp_path / "out"), 0
    for count in (0, 3):
        live.send(count)
        live.take(folder)
        named = ("--replica", f"b={folder}", "--json")
        done = CliRunner().invoke(app, ["export", target, *named])
        assert done.exit_code == 0, done.output
        exported += json.loads(done.stdout)["messages"]
        assert exported == live.sent
        done = CliRunner().invoke(app, ["stats", *named])
        assert done.exit_code == 0, done.output
        topics = json.loads(done.stdout)["topics"]
        assert sum(each["messages"] for each in topics) == live.sent


def test_later_backup_copies_what_came_since(live: Live, tmp_path: Path) -> None:
    """Within a segment, and over the end of one; where nothing came, nothing is copied."""
    folder = tmp_path / "b"
    before = live.take(folder, "n1")
    for count, node in ((3, "n2"), (0, "n3"), (SEGMENT // MESSAGE + 5, "n1")):
        live.send(count)
        taken = live.take(folder, node)
        check(folder, live, taken)
        assert taken.backup.node_id == node
        assert taken.copied_bytes == taken.backup.end_offset - before.backup.end_offset
        assert (taken.copied_bytes > 0) == (count > 0)
        before = taken


def cut_to_a_segment(folder: Path, taken: Taken, *, with_filler: bool) -> EntryHeader:
    """The backup is one that was taken when the first segment had its last entry; which one that
    is. The log ended there, or behind the filler that the next entry brought."""
    last = taking.last_entry(folder / "commitlog", SEGMENT, SEGMENT)
    end = last.physical_offset + last.total_size
    assert end < SEGMENT
    known = (last.index, last.term, last.digest, SEGMENT if with_filler else end)
    fields = dict(zip(("last_index", "last_term", "last_digest", "end_offset"), known, strict=True))
    write_backup(OsFiles(), folder, replace(taken.backup, **fields))  # type: ignore[arg-type]
    return last


def begin_behind_the_folder(patched: pytest.MonkeyPatch, last: EntryHeader, *nodes: str) -> None:
    """Those nodes have let go of what follows the folder's last entry, too; the others lack an
    entry when they are asked first."""
    survey, asked = NodeLog.survey, set(nodes)

    def surveyed(self: NodeLog) -> apb.LogSurvey:
        found = survey(self)
        if found.node_id in nodes:
            found.first_index = last.index + 2
        found.committed_offset -= found.node_id not in asked
        asked.add(found.node_id)
        return found

    patched.setattr(NodeLog, "survey", surveyed)


@pytest.mark.parametrize("kept_by", ["n1", "n2", "n3"])
def test_backup_goes_on_from_the_member_that_has_what_follows(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_by: str
) -> None:
    """A log's front goes on each disk in its own time: it is refused only where nobody has it, and
    says where each log begins."""
    folder = tmp_path / "b"
    last = cut_to_a_segment(folder, live.take(folder), with_filler=False)
    others = sorted({"n1", "n2", "n3"} - {kept_by})
    begin_behind_the_folder(monkeypatch, last, *others)
    with pytest.raises(BackupRefused, match=f"what lay between is gone .*{others[0]}'s begins at"):
        live.take(folder, others[0])
    taken = live.take(folder)
    assert taken.backup.node_id == kept_by
    check(folder, live, taken)


def test_backup_is_refused_where_nobody_has_what_follows(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once; what is there stays."""
    folder = tmp_path / "b"
    last = cut_to_a_segment(folder, live.take(folder), with_filler=False)
    before = read_backup(OsFiles(), folder)
    begin_behind_the_folder(monkeypatch, last, "n1", "n2", "n3")
    monkeypatch.setattr(taking, "CATCH_UP_S", 3_600.0)
    with pytest.raises(BackupRefused, match=r"n1's begins at .* into an empty folder"):
        live.take(folder)
    assert read_backup(OsFiles(), folder) == before


def begin_later(patched: pytest.MonkeyPatch, last: EntryHeader, **other: int) -> None:
    """Every node's log begins with its second segment: retention has taken the first one."""
    survey, read = NodeLog.survey, NodeLog.read
    end = last.physical_offset + last.total_size
    note = LogStart(last.index, last.term, last.digest, end, 1, 0, 0, b"")
    note = replace(note, **other)  # type: ignore[arg-type]

    def surveyed(self: NodeLog) -> apb.LogSurvey:
        found = survey(self)
        found.first_index = last.index + 1
        return found

    def reads(self: NodeLog, segment: tuple[int, int], offset: int, size: int) -> bytes:
        if segment[0] < SEGMENT:
            raise SegmentGone("retention has taken it")
        return read(self, segment, offset, size)

    def base(self: NodeLog, at: int = 0) -> apb.ReadBaseResponse:
        return apb.ReadBaseResponse(log_start=note.encode())

    for name, method in (("survey", surveyed), ("read", reads), ("base", base)):
        patched.setattr(NodeLog, name, method)


@pytest.mark.parametrize("with_filler", [False, True])
def test_backup_goes_on_where_retention_has_come_to(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_filler: bool
) -> None:
    """Nothing is left at the source of what is in the folder, and nothing is missing, so nothing
    has to be put right."""

    def mends(*_: object) -> None:
        raise AssertionError("something is wrong in the copy")

    folder = tmp_path / "b"
    last = cut_to_a_segment(folder, live.take(folder), with_filler=with_filler)
    with monkeypatch.context() as patched:
        begin_later(patched, last)
        patched.setattr(taking, "LogRepair", mends)
        taken = live.take(folder)
    check(folder, live, taken)
    assert taken.copied_bytes > 0


@pytest.mark.parametrize(
    "other", [{"digest": 7}, {"term": 999}, {"index": 9_999}, {"end_offset": 4_711}]
)
def test_backup_does_not_go_on_where_another_log_begins(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, int]
) -> None:
    """Or the same one that begins later by now."""
    folder = tmp_path / "b"
    last = cut_to_a_segment(folder, live.take(folder), with_filler=False)
    before = read_backup(OsFiles(), folder)
    with monkeypatch.context() as patched:
        begin_later(patched, last, **other)
        with pytest.raises(BackupRefused, match=r"isn't the one with which .* empty folder"):
            live.take(folder)
    assert read_backup(OsFiles(), folder) == before


def test_what_rotted_at_the_source_is_taken_from_another(live: Live, tmp_path: Path) -> None:
    """The node doesn't know of it yet; its disk gives other bytes than were written."""
    path = live.data("n2") / "commitlog" / file_name(0)
    places = (SEGMENT // 3, SEGMENT // 2)
    for at in places:
        flip_bit(path, at)
    try:
        taken = live.take(tmp_path / "b", "n2")
    finally:
        for at in places:
            flip_bit(path, at)
    check(tmp_path / "b", live, taken)
    assert taken.backup.node_id == "n2"
    assert len(taken.mended) == 2
    assert {each.source for each in taken.mended} <= {"n1", "n3"}


def test_what_rotted_everywhere_is_no_backup(live: Live, tmp_path: Path) -> None:
    """The one that there was stays, and can be gone on with."""
    folder = tmp_path / "b"
    before = live.take(folder)
    live.send(4)
    base = before.backup.end_offset - before.backup.end_offset % SEGMENT
    at = before.backup.end_offset - base + MESSAGE
    paths = [live.data(node) / "commitlog" / file_name(base) for node in ("n1", "n2", "n3")]
    for path in paths:
        flip_bit(path, at)
    try:
        with pytest.raises(BackupRefused, match="no member has better"):
            live.take(folder)
    finally:
        for path in paths:
            flip_bit(path, at)
    assert read_backup(OsFiles(), folder) == before.backup
    taken = live.take(folder)
    check(folder, live, taken)
    assert taken.backup.last_index > before.backup.last_index


@pytest.mark.parametrize("after", [0, 1])
def test_backup_that_breaks_off_leaves_the_one_before(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Whenever the source dies. What was copied counts for nothing until it is copied again."""
    folder = tmp_path / "b"
    before = live.take(folder)
    live.send(SEGMENT // MESSAGE + 5)
    read, calls = NodeLog.read, 0

    def breaks(self: NodeLog, segment: tuple[int, int], offset: int, size: int) -> bytes:
        nonlocal calls
        calls += 1
        if calls > after + 1:  # the first asks whether the source goes on from what there is
            raise NodeRefused("n1", "it died")
        return read(self, segment, offset, size)

    with monkeypatch.context() as patched:
        patched.setattr(NodeLog, "read", breaks)
        with pytest.raises(NodeRefused, match="it died"):
            live.take(folder)
    assert read_backup(OsFiles(), folder) == before.backup
    check(folder, live, live.take(folder))


@pytest.mark.parametrize("count", [0, 2])
def test_what_an_interrupted_backup_left_is_gone(live: Live, tmp_path: Path, count: int) -> None:
    """Whether or not anything came since: it would be a log's tail that nobody was promised."""
    folder = tmp_path / "b"
    before = live.take(folder)
    end = before.backup.end_offset
    base = end - end % SEGMENT
    with (folder / "commitlog" / file_name(base)).open("r+b") as file:
        file.seek(end - base)
        file.write(b"\x5a" * 100_000)
    (folder / "commitlog" / file_name(base + SEGMENT)).write_bytes(b"\x5a" * 100)
    live.send(count)
    check(folder, live, live.take(folder))


def test_source_that_sends_other_bytes_is_not_believed(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wire or a memory that flips bits would, for good: no backup comes of it."""
    read = NodeLog.read

    def flips(self: NodeLog, segment: tuple[int, int], offset: int, size: int) -> bytes:
        content = bytearray(read(self, segment, offset, size))
        if segment[0] == SEGMENT and offset - SEGMENT <= 4_321 < offset - SEGMENT + len(content):
            content[4_321 - (offset - SEGMENT)] ^= 4
        return bytes(content)

    with monkeypatch.context() as patched:
        patched.setattr(NodeLog, "read", flips)
        with pytest.raises(BackupRefused, match="isn't right"):
            live.take(tmp_path / "b")
    assert read_backup(OsFiles(), tmp_path / "b") is None


def test_backups_of_other_logs_are_left_alone(
    live: Live, loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    """A group of the same name and the same size of segments, with entries of its own."""
    folder = tmp_path / "b"
    before = live.take(folder)
    size = {"segment_size_bytes": SEGMENT, "reserve_bytes": 0}
    limits = {"max_message_bytes": 1 << 20}
    other = Group(make_configs(tmp_path / "other", store=size, broker=limits))

    async def start() -> None:
        await other.start()
        await other.create_topic()
        for sequence in range(0, live.sent + AT_ONCE, AT_ONCE):
            await other.send(sequence, *[b"z" * MESSAGE] * AT_ONCE)
        await other.applied_everywhere()

    loop.run_until_complete(start())
    try:
        with pytest.raises(BackupRefused, match="another log"):
            Live(other, loop).take(folder)
    finally:
        loop.run_until_complete(other.close())
    assert read_backup(OsFiles(), folder) == before.backup
    check(folder, live, live.take(folder))


def test_members_that_are_not_there_are_named(live: Live, tmp_path: Path) -> None:
    with pytest.raises(BackupRefused, match="n9 is no member that answers; these do: n1, n2, n3"):
        live.take(tmp_path / "b", "n9")
    with pytest.raises(Unreachable):
        take_backup(tmp_path / "b", ["127.0.0.1:1"], None, lambda *_: print)


def test_member_that_stays_behind_is_no_source(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged before a backup began is in it: a member that lacks of that isn't
    copied, however long it was waited for."""
    survey = NodeLog.survey

    def lags(self: NodeLog) -> object:
        answer = survey(self)
        if answer.node_id == "n3":
            answer.committed_offset -= 1
        return answer

    monkeypatch.setattr(taking, "CATCH_UP_S", 0.3)
    monkeypatch.setattr(NodeLog, "survey", lags)
    with pytest.raises(Unreachable, match="behind what is committed"):
        live.take(tmp_path / "b", "n3")
    assert live.take(tmp_path / "b").backup.node_id in ("n1", "n2")


def test_member_out_of_service_is_no_source(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is sound in itself, and not the group's: it is named, and neither copied nor asked
    for what has rotted elsewhere."""
    found = live_members.replicas_of_group

    def one_is_aside(*given: Any, **named: Any) -> list[Replica]:
        return [
            replace(each, standing="out of service") if each.id == "n2" else each
            for each in found(*given, **named)
        ]

    monkeypatch.setattr(taking, "ELECTION_S", 0.3)  # it may be the one that led
    monkeypatch.setattr(taking, "replicas_of_group", one_is_aside)
    taken = live.take(tmp_path / "b")
    assert taken.silent == ("n2",)
    assert taken.backup.node_id in ("n1", "n3")
    with pytest.raises(BackupRefused, match="n2 is no member that answers; these do: n1, n3"):
        live.take(tmp_path / "b", "n2")


@pytest.mark.parametrize("rounds", [1, 1_000])
def test_that_nobody_leads_is_told(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """All of them answer, and none need know what the last leader acknowledged: it is asked again,
    as in an election, and what is copied counts as whole only if somebody leads."""
    found, asked = live_members.replicas_of_group, 0

    def elects(*given: Any, **named: Any) -> list[Replica]:
        nonlocal asked
        asked += 1
        replicas = found(*given, **named)
        if asked > rounds:
            return replicas
        return [replace(each, seat=replace(seat_of(each), serves=False)) for each in replicas]

    monkeypatch.setattr(taking, "ELECTION_S", 0.5 if rounds > 1 else 60.0)
    monkeypatch.setattr(taking, "replicas_of_group", elects)
    taken = live.take(tmp_path / "b")
    check(tmp_path / "b", live, taken)
    assert (taken.leader in ("n1", "n2", "n3")) == (rounds == 1)
    assert (taken.leader == "") == (rounds > 1)
    assert (asked > 2) == (rounds > 1)
    assert (taken.silent, taken.remarks) == ((), ())


def seat_of(replica: Replica) -> Seat:
    assert replica.seat is not None
    return replica.seat


def test_member_that_refills_its_log_is_no_answer(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, and says nothing of its log: perhaps it was the leader, and nobody else knows."""
    found = live_members.replicas_of_group

    def one_refills(*given: Any, **named: Any) -> list[Replica]:
        return [
            replace(each, position=Position(0, 0, 0, 0), seat=Seat(seat_of(each).term))
            if each.id == "n2"
            else each
            for each in found(*given, **named)
        ]

    monkeypatch.setattr(taking, "ELECTION_S", 0.3)
    monkeypatch.setattr(taking, "replicas_of_group", one_refills)
    taken = live.take(tmp_path / "b")
    assert taken.silent == ("n2",)
    assert taken.remarks == ("n2 says nothing of its log, as one that refills it",)
    assert taken.backup.node_id in ("n1", "n3")
    with pytest.raises(BackupRefused, match="n2 is no member that answers; these do: n1, n3"):
        live.take(tmp_path / "b", "n2")


@pytest.mark.parametrize(("offset", "digest"), [(0, 1), (-8, 0)], ids=["digest", "place"])
def test_member_with_another_log_is_told(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, digest: int
) -> None:
    """Its digest isn't the copy's, at the entry that it knows to be committed: nobody here knows
    whose log is the group's. The backup that there was stays."""
    folder = tmp_path / "b"
    before = live.take(folder)
    live.send(1)
    found = live_members.replicas_of_group

    def one_differs(*given: Any, **named: Any) -> list[Replica]:
        replicas = found(*given, **named)
        for at, each in enumerate(replicas):
            if each.id == "n3" and each.position is not None:
                committed = each.position.committed + offset
                other = replace(
                    each.position, committed=committed, digest=each.position.digest ^ digest
                )
                replicas[at] = replace(each, position=other)
        return replicas

    with monkeypatch.context() as patched:
        patched.setattr(taking, "replicas_of_group", one_differs)
        with pytest.raises(BackupRefused, match=r"n3 .* entry \d+ .* another log"):
            live.take(folder, "n1")
    assert read_backup(OsFiles(), folder) == before.backup
    check(folder, live, live.take(folder))


def test_who_is_no_member_is_no_source(
    live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is as long as it likes, and is neither wanted nor copied nor an answer of a member's:
    it is told of. A member in whose place another one answers is silent, and that is told."""
    found = live_members.replicas_of_group
    why = "n2 is another one"

    def with_strangers(*given: Any, **named: Any) -> list[Replica]:
        n1, n2, n3 = found(*given, **named)
        assert n2.position is not None
        ahead = replace(n2.position, committed=n2.position.committed + 1, digest=1)
        n4 = replace(n2, id="n4", position=ahead, is_member=False)
        return [n1, replace(n2, silence=why, address=None, position=None), n3, n4]

    with monkeypatch.context() as patched:
        patched.setattr(taking, "CATCH_UP_S", 0.3)
        patched.setattr(taking, "ELECTION_S", 0.3)
        patched.setattr(taking, "replicas_of_group", with_strangers)
        taken = live.take(tmp_path / "b")
        with pytest.raises(BackupRefused, match="n4 is no member that answers; these do: n1, n3"):
            live.take(tmp_path / "b", "n4")
    assert (taken.silent, taken.backup.node_id in ("n1", "n3")) == (("n2",), True)
    told = "n4 is no member by the group's log: nothing of it was asked"
    assert taken.remarks == (why, told)


def test_two_backups_into_one_folder_exclude_each_other(live: Live, tmp_path: Path) -> None:
    from store.directory import lock_directory
    from store.errors import DirectoryInUse

    folder = tmp_path / "b"
    live.take(folder)
    files = OsFiles()
    lock = lock_directory(files, folder, "another backup")
    try:
        with pytest.raises(DirectoryInUse, match="another backup"):
            live.take(folder)
    finally:
        files.close(lock)


def test_folder_of_a_member_is_no_place_for_a_backup(live: Live, tmp_path: Path) -> None:
    """Its log would be overwritten."""
    folder = tmp_path / "member"
    shutil.copytree(live.data("n1"), folder)
    before = {each.name: each.read_bytes() for each in (folder / "commitlog").iterdir()}
    with pytest.raises(BackupRefused, match="holds something else"):
        live.take(folder)
    assert {each.name: each.read_bytes() for each in (folder / "commitlog").iterdir()} == before
