"""A group whose majority is lost goes on from one survivor, or nothing has happened."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from audit.commands.log import app as log_commands
from broker.config import NodeConfig
from chaos.forming import form_disks
from dledger.codec import configuration_bytes
from dledger.core.group_epoch import MAX_RECOVERIES, GroupEpoch, Recovery
from dledger.core.types import (
    Configuration,
    DiskId,
    EntryKind,
    HardState,
    NodeId,
    Term,
)
from dledger.reading.backup import Backup
from dledger.reading.entry import EPOCH_TERM_GAP
from dledger_cli.recover import _tell_risk
from store.backup import write_backup
from store.commitlog import CommitLogOptions
from store.directory import DataDirectory, DirectoryState, Identity
from store.doubt import DoubtNote
from store.errors import DirectoryInUse, GapFound, RecoveryRefused, StorageFailed
from store.files import FileSystem, OsFiles
from store.out_of_service import Divergence, mark
from store.starting.errors import NotAMember, OutOfService
from store.starting.judging import judge
from store.starting.opening import Opened, Site, open_member
from store.starting.recovering import (
    Recovered,
    Survivor,
    examine,
    force,
    identity_at,
    same_up_to,
    survivor_of,
)
from store.starting.restoring import restore
from store.worker import InlineWorker
from tests.scale import stride
from tests.store.faulty_files import SimulatedDisk

SEGMENT = 16384
GROUP = "g1"
NAMES = ("n1", "n2", "n3")
ENTRIES = 40
RECOVERY_ID = bytes(range(16))
NOW_MS = 1_700_000_000_000


def config_of(name: str, root: Path) -> NodeConfig:
    config = NodeConfig.model_validate(
        {
            "broker_group": GROUP,
            "node_id": name,
            "data_directory": str(root / name),
            "listen": f"127.0.0.1:700{name[1]}",
            "peers": {each: f"127.0.0.1:700{each[1]}" for each in NAMES},
            "store": {"reserve_bytes": 0},
        }
    )
    store = config.store.model_copy(update={"segment_size_bytes": SEGMENT})
    return config.model_copy(update={"store": store})


def site_of(path: Path, files: FileSystem) -> Site:
    options = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0)
    identity = Identity(GROUP, path.name, SEGMENT)
    return Site(path, identity, files, options, workers=InlineWorker)


@contextlib.contextmanager
def opened_at(site: Site) -> Iterator[Opened]:
    opened = open_member(site)
    with contextlib.closing(opened.directory), contextlib.closing(opened.log):
        yield opened


def formed(root: Path, files: FileSystem, entries: int = ENTRIES) -> Site:
    """n3 of three, in whose log `entries` follow the founding, the last half of a second term."""
    if isinstance(files, SimulatedDisk):
        files.mkdir(root)
        files.fsync_directory(root.parent)
    form_disks([config_of(each, root) for each in NAMES], lambda _: files)
    site = site_of(root / "n3", files)
    fill(site, entries)
    return site


def fill(site: Site, entries: int, other: int | None = None) -> None:
    """Those entries follow; `other`: the number of one whose body is another."""
    with opened_at(site) as opened:
        opened.hard_state_store.save(HardState(Term(4), NodeId("n1")))
        for number in range(entries):
            index, term = opened.log.last_index + 1, Term(2 if number < entries // 2 else 3)
            body = bytes([number if number != other else 255]) * 900
            assert opened.log.has_room(1000)
            opened.log.append(EntryKind.NOOP, index, term, 1000 + number, 0, body)
        opened.log.submit(1)


def append(site: Site, configuration: Configuration, term: int = 4) -> None:
    """The log's last entry is that configuration."""
    with opened_at(site) as opened:
        index = opened.log.last_index + 1
        body = configuration_bytes(configuration)
        time_ms = max(5000, opened.log.last_append_time_ms)
        opened.log.append(EntryKind.CONFIGURATION, index, Term(term), time_ms, 0, body)
        opened.log.submit(1)


def look(site: Site) -> Survivor:
    with opened_at(site) as opened:
        return survivor_of(site, opened)


def recovered(site: Site, shown: Survivor, seen_term: int = 0) -> Recovered:
    return force(
        site,
        shown,
        seen_term=seen_term,
        recovery_id=lambda: RECOVERY_ID,
        now_ms=lambda: NOW_MS,
    )


def check_done(site: Site, shown: Survivor, term: int) -> None:
    """A start finds the log that was there, and one entry that says what was done."""
    with opened_at(site) as opened:
        log, last = opened.log, opened.summary.configurations[-1]
        assert (log.last_index, log.last_term) == (shown.last_index + 1, term)
        assert opened.hard_state == HardState(Term(term))
        index, configuration = last
        assert index == shown.last_index + 1
        assert configuration.members() == configuration.voters == {NodeId("n3")}
        assert configuration.disk_of(NodeId("n3")) == shown.disk_id
        assert dict(configuration.addresses) == {NodeId("n3"): "127.0.0.1:7003"}
        assert configuration.epoch.recoveries[-1] == RECOVERY_ID
        assert configuration.epoch.last == Recovery(
            survivor="n3",
            time_ms=NOW_MS,
            term=term,
            index=index,
            committed_index=shown.committed_index,
            given_up=tuple((each.node_id, each.disk_id) for each in shown.others),
        )


def test_the_survivor_goes_on_alone(tmp_path: Path) -> None:
    site = formed(tmp_path, OsFiles())
    shown = examine(site.path, site.identity, site.files)
    assert [each.node_id for each in shown.others] == ["n1", "n2"]
    assert shown.end == (3, ENTRIES + 1)
    assert (shown.term, shown.committed_index) == (4, 0)
    done = recovered(site, shown)
    assert (done.index, done.term) == (ENTRIES + 2, 4 + EPOCH_TERM_GAP)
    assert judge(site.path).starts
    check_done(site, shown, done.term)


def test_looking_changes_nothing(tmp_path: Path) -> None:
    site = formed(tmp_path, OsFiles())
    before = {each: each.read_bytes() for each in site.path.rglob("*") if each.is_file()}
    examine(site.path, identity_at(site.path), site.files)
    after = {each: each.read_bytes() for each in site.path.rglob("*") if each.is_file()}
    assert {each for each in before if before[each] != after.get(each)} <= {site.path / "LOCK"}
    assert set(after) - set(before) <= {site.path / "LOCK"}


def test_the_term_is_above_all_that_anybody_was_seen_to_know(tmp_path: Path) -> None:
    site = formed(tmp_path, OsFiles())
    done = recovered(site, examine(site.path, site.identity, site.files), seen_term=77)
    assert done.term == 77 + EPOCH_TERM_GAP


def test_it_is_done_once(tmp_path: Path) -> None:
    """Who asks again is told that nothing is left to do, and nothing is written."""
    site = formed(tmp_path, OsFiles())
    recovered(site, examine(site.path, site.identity, site.files))
    again = examine(site.path, site.identity, site.files)
    assert again.is_alone
    with pytest.raises(RecoveryRefused, match="decides alone"):
        recovered(site, again)
    assert examine(site.path, site.identity, site.files).last_index == ENTRIES + 2


def test_what_changed_since_it_was_shown_is_shown_again(tmp_path: Path) -> None:
    site = formed(tmp_path, OsFiles())
    shown = examine(site.path, site.identity, site.files)
    with opened_at(site) as opened:
        opened.log.append(EntryKind.NOOP, opened.log.last_index + 1, Term(4), 9000, 0, b"")
        opened.log.submit(1)
    with pytest.raises(RecoveryRefused, match="has changed"):
        recovered(site, shown)


def count_of_calls() -> int:
    disk = SimulatedDisk()
    site = formed(Path("/data"), disk)
    shown = look(site)
    begin = len(disk.calls)
    recovered(site, shown)
    return len(disk.calls) - begin


CALLS = count_of_calls()


# At each call with one or two sorts of luck in make test, and with all three in make test-long.
CUTS = [*product(range(CALLS + 1), [None, 1, 2])][:: stride(2)]


@pytest.mark.parametrize(("fatal", "luck"), CUTS, ids=str)
def test_power_that_fails_leaves_it_done_or_not_done(fatal: int, luck: int | None) -> None:
    """At each call of the file system: a start finds the old configuration, or the new one, whole;
    what was in the log before is there in any case."""
    disk = SimulatedDisk()
    site = formed(Path("/data"), disk)
    shown = look(site)
    digest = _digest(site, shown.last_index)
    begin = len(disk.calls)

    def stop(_operation: str, _name: str) -> None:
        if len(disk.calls) > begin + fatal:
            raise InterruptedError

    disk.before = stop
    is_done = False
    with contextlib.suppress(InterruptedError, StorageFailed):
        recovered(site, shown)
        is_done = True
    disk.before = lambda _operation, _name: None
    disk.power_cut(None if luck is None else Random(fatal * 7 + luck))
    assert _digest(site, shown.last_index) == digest
    found = look(site)
    if found.last_index > shown.last_index:
        check_done(site, shown, found.last_term)
        return
    assert not is_done, "it was told that it is done"
    assert found.configuration == shown.configuration
    again = recovered(site, found)  # the term may have been written already
    check_done(site, replace(found, committed_index=shown.committed_index), again.term)


def _digest(site: Site, index: int) -> int:
    with opened_at(site) as opened:
        return opened.log.digest_at(index)


def test_all_of_the_calls_are_cut_at() -> None:
    """The test above stops at each, and the entry's own sync is among them."""
    assert CALLS > 20


# --- who can't -----------------------------------------------------------------------------------


def members_of(site: Site) -> Configuration:
    return look(site).configuration


def put_down(known: Configuration, node: NodeId) -> Configuration:
    return replace(known, voters=known.voters - {node}, learners=frozenset({node}))


def taken_out(known: Configuration, node: NodeId) -> Configuration:
    return replace(
        known,
        voters=known.voters - {node},
        disks=tuple(pair for pair in known.disks if pair[0] != node),
        addresses=tuple(pair for pair in known.addresses if pair[0] != node),
    )


NO_VOTER = [(put_down, "learns and doesn't vote"), (taken_out, "as a member no more")]


@pytest.mark.parametrize(("change", "why"), NO_VOTER)
def test_who_votes_no_more_is_refused(
    tmp_path: Path, change: Callable[[Configuration, NodeId], Configuration], why: str
) -> None:
    """It may lack what was acknowledged since, and it is known that it does vote no more: by an
    entry that is known to be committed, or by two that follow each other."""
    once, twice = formed(tmp_path / "1", OsFiles()), formed(tmp_path / "2", OsFiles())
    append(once, change(members_of(once), NodeId("n3")))
    with opened_at(once) as opened:
        opened.log.checkpoint.note_consume_queue(opened.log.last_index, 0)
    gone = change(members_of(twice), NodeId("n3"))
    append(twice, gone)
    append(twice, replace(gone, preferred=NodeId("n1")))
    for site in (once, twice):
        with pytest.raises(RecoveryRefused, match=why):
            examine(site.path, site.identity, site.files)


@pytest.mark.parametrize("change", [change for change, _ in NO_VOTER])
def test_who_votes_until_it_is_known_that_it_does_not_can(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Configuration, NodeId], Configuration],
) -> None:
    """It has the only copy, and the entry by which it votes no more may never have been committed:
    elections count on it until then, too."""
    site = formed(tmp_path, OsFiles())
    known = members_of(site)
    without_n2 = replace(known, voters=known.voters - {NodeId("n2")})
    append(site, change(without_n2, NodeId("n3")))
    shown = examine(site.path, site.identity, site.files)
    assert not shown.is_voter
    assert shown.address == "127.0.0.1:7003"
    assert [(each.node_id, each.is_voter) for each in shown.others] == [("n1", True), ("n2", True)]
    _tell_risk(shown)
    said = " ".join(capsys.readouterr().out.split())
    assert f"by entry {ENTRIES + 2} n3 votes no more, and that isn't known here" in said
    check_done(site, shown, recovered(site, shown).term)
    assert look(site).is_voter


def test_who_was_given_up_does_not_vote_by_what_was_before(tmp_path: Path) -> None:
    """A recovery is decided as soon as it is written."""
    site = formed(tmp_path, OsFiles())
    forced = GroupEpoch((b"e" * 16,), Recovery("n1", 1, 4, 2, 1, (("n3", b"d" * 16),)))
    append(site, replace(taken_out(members_of(site), NodeId("n3")), epoch=forced))
    with pytest.raises(RecoveryRefused, match="as a member no more"):
        examine(site.path, site.identity, site.files)


def test_who_votes_only_until_a_joint_configuration_is_left_can(tmp_path: Path) -> None:
    """It may have the only copy of what was acknowledged."""
    site = formed(tmp_path, OsFiles())
    known, node = members_of(site), NodeId("n3")
    others = known.voters - {node}
    append(site, replace(known, voters=others, voters_outgoing=known.voters))
    shown = examine(site.path, site.identity, site.files)
    check_done(site, shown, recovered(site, shown).term)


def test_one_that_is_in_use_is_refused(tmp_path: Path) -> None:
    site = formed(tmp_path, OsFiles())
    with opened_at(site), pytest.raises(DirectoryInUse):
        examine(site.path, site.identity, site.files)


def test_what_is_no_members_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecoveryRefused, match="isn't a member's"):
        identity_at(tmp_path / "nowhere")
    (tmp_path / "n9").mkdir()
    with pytest.raises(RecoveryRefused, match="isn't a member's"):
        identity_at(tmp_path / "n9")
    identity = Identity(GROUP, "n9", SEGMENT)
    with contextlib.closing(DataDirectory.open(tmp_path / "n9", identity)) as directory:
        assert directory.disk.state is DirectoryState.UNFORMED
    with pytest.raises(NotAMember):
        examine(tmp_path / "n9", identity_at(tmp_path / "n9"), OsFiles())


def test_a_disk_that_was_joining_is_refused(tmp_path: Path) -> None:
    site = formed(tmp_path, OsFiles())
    with contextlib.closing(DataDirectory.open(site.path, site.identity)) as directory:
        directory.mark(DirectoryState.JOINING)
    assert refusal(site) == (
        "it is joining: entry 1 of its log says that n3 votes on this disk, which it doesn't know "
        "to be committed: it may have become a member just before, or not, and then it lacks what "
        "voters had acknowledged"
    )


def refusal(site: Site) -> str:
    """Why it is none to recover from; what is said of it first, aside."""
    with pytest.raises(RecoveryRefused) as refused:
        examine(site.path, site.identity, site.files)
    return str(refused.value).partition(": ")[2]


def test_a_disk_that_was_taken_in_and_had_not_noted_it_is_told_so(tmp_path: Path) -> None:
    """It votes, and its log knows so: it isn't said to be no member."""
    site = formed(tmp_path, OsFiles())
    with contextlib.closing(DataDirectory.open(site.path, site.identity)) as directory:
        directory.mark(DirectoryState.JOINING)
    with opened_at(site) as opened:
        opened.log.checkpoint.note_consume_queue(ENTRIES, 0)
    assert refusal(site) == (
        "it is joining: entry 1 of its log says that n3 votes on this disk, which it hadn't noted "
        "when it ended: start it, so that it does, and ask again"
    )


@pytest.mark.parametrize("knows", [False, True])
def test_a_disk_that_its_log_does_not_let_vote_is_told_that(tmp_path: Path, *, knows: bool) -> None:
    """Whether or not it is joining: a learner's log, and one of somebody else's disk."""
    site = formed(tmp_path, OsFiles())
    with contextlib.closing(DataDirectory.open(site.path, site.identity)) as directory:
        directory.mark(DirectoryState.JOINING)
        disk = directory.disk.disk_id if knows else bytes(16)
    voters = frozenset({NodeId("n1"), NodeId("n2")})
    disks = ((NodeId("n3"), DiskId(disk)),)
    append(site, Configuration(voters=voters, learners=frozenset({NodeId("n3")}), disks=disks))
    said = "n3 learns and doesn't vote" if knows else "its log doesn't name its disk yet"
    assert said in refusal(site)


def test_one_out_of_service_is_refused(tmp_path: Path) -> None:
    site = formed(tmp_path, OsFiles())
    mark(site.files, site.path, Divergence(peers=("n1",), compared_index=3))
    with pytest.raises(OutOfService):
        examine(site.path, site.identity, site.files)


def test_one_that_was_given_up_is_refused(tmp_path: Path) -> None:
    """And its mark says by whom, after it was read back."""
    site = formed(tmp_path, OsFiles())
    mark(site.files, site.path, Divergence(peers=("n1",), recoveries=(RECOVERY_ID.hex(),)))
    with pytest.raises(OutOfService, match=r"given up.*as n1 says.*member add n3") as refused:
        examine(site.path, site.identity, site.files)
    assert refused.value.divergence.recoveries == (RECOVERY_ID.hex(),)


@pytest.mark.parametrize("is_there", [False, True])
def test_rot_that_is_known_is_repaired_before(tmp_path: Path, *, is_there: bool) -> None:
    """Nobody would be left to give the bytes back. With them back, as the refusal asks for, it can
    be gone on with: what is left of another one's directory is enough."""
    site = formed(tmp_path, OsFiles(), entries=0)
    for _ in range(9):
        append(site, members_of(site))
    path, at = site.path / "commitlog" / f"{0:020d}", 700
    shutil.copytree(site.path, tmp_path / "left")
    DoubtNote(site.files, site.path).write([(path.name, at)])
    with pytest.raises(RecoveryRefused, match="log repair"):
        examine(site.path, site.identity, site.files)
    if is_there:
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)
        with pytest.raises(GapFound):
            examine(site.path, site.identity, site.files)
    words = ["repair", "--data", str(site.path), "--from", str(tmp_path / "left")]
    repaired = CliRunner().invoke(log_commands, words)
    assert repaired.exit_code == 0, repaired.stderr
    assert examine(site.path, site.identity, site.files).last_index == 10


def test_a_group_is_recovered_only_so_often(tmp_path: Path) -> None:
    site = formed(tmp_path, OsFiles())
    ids = tuple(bytes([number]) * 16 for number in range(MAX_RECOVERIES))
    last = Recovery("n3", 1, 4, 2, 1)
    append(site, replace(members_of(site), epoch=GroupEpoch(ids, last)))
    with pytest.raises(RecoveryRefused, match="can't be any more"):
        examine(site.path, site.identity, site.files)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("known", [0, 9, 30])
def test_logs_are_compared_as_far_as_both_know_them_to_be_committed(
    tmp_path: Path, known: int, *, behind: bool
) -> None:
    """Behind that anything may stand; at or before it the same, or one of them has gone wrong. The
    longer log is no proof that it is the right one."""
    n3 = formed(tmp_path, OsFiles())
    n2 = site_of(tmp_path / "n2", n3.files)
    fill(n2, ENTRIES - 5, other=12)  # entry 14
    marks = (known, 25) if behind else (25, known)
    for site, index in zip((n3, n2), marks, strict=True):
        with opened_at(site) as opened:
            opened.log.checkpoint.note_consume_queue(index, 0)
    one, other = (examine(each.path, each.identity, each.files) for each in (n3, n2))
    if known == 30:
        with pytest.raises(RecoveryRefused, match=r"n2 holds other entries at or before entry 25"):
            same_up_to(one, other, n3.files)
        with pytest.raises(RecoveryRefused, match=r"n3 holds other entries at or before entry 25"):
            same_up_to(other, one, n3.files)
    else:
        assert (
            same_up_to(one, other, n3.files) == same_up_to(other, one, n3.files) == (known or None)
        )


def test_the_next_recovery_goes_on_from_the_last(tmp_path: Path) -> None:
    """An epoch's past is in its name."""
    site = formed(tmp_path, OsFiles())
    earlier = GroupEpoch((b"e" * 16,), Recovery("n1", 1, 4, 2, 1, (("n9", b"d" * 16),)))
    append(site, replace(members_of(site), epoch=earlier))
    shown = examine(site.path, site.identity, site.files)
    done = recovered(site, shown)
    assert done.epoch.recoveries == (b"e" * 16, RECOVERY_ID)
    check_done(site, shown, done.term)
    assert DiskId(shown.disk_id) == members_of(site).disk_of(NodeId("n3"))


# --- a recovered group's backup ------------------------------------------------------------------


def backup_of(site: Site, folder: Path) -> Backup:
    """The directory's log as a backup has it, of the bytes that lie there."""
    shutil.copytree(site.path / "commitlog", folder / "commitlog")
    with opened_at(site) as opened:
        log = opened.log
        backup = Backup(
            broker_group=GROUP,
            node_id=site.identity.node_id,
            segment_size_bytes=SEGMENT,
            first_index=log.first_index,
            last_index=log.last_index,
            last_term=log.last_term,
            last_digest=log.last_digest,
            end_offset=log.end_offset,
            taken_ms=NOW_MS,
        )
    write_backup(OsFiles(), folder, backup)
    return backup


@pytest.mark.parametrize("with_it", [True, False], ids=["all of it", "before the recovery"])
def test_a_recovered_groups_backup_is_restored(tmp_path: Path, with_it: bool) -> None:
    """To the byte, with the forced entry in it or without; what is made of it is another group, in
    an epoch of its own behind those of the backup, which can be recovered in its turn."""
    site = formed(tmp_path, OsFiles())
    done = recovered(site, examine(site.path, site.identity, site.files))
    backup = backup_of(site, tmp_path / "backup")
    assert (backup.last_index, backup.last_term) == (done.index, done.term)
    through = done.index if with_it else done.index - 1
    new = Site(
        tmp_path / "m1",
        Identity("new", "m1", SEGMENT),
        OsFiles(),
        site.options,
        workers=InlineWorker,
    )
    restored = restore(tmp_path / "backup", new, "127.0.0.1:7009", through)
    assert restored.last_index == through
    assert judge(new.path).starts
    with opened_at(site) as old, opened_at(new) as opened:
        log = opened.log
        assert log.last_index == through + 1
        assert log.read(1, through) == old.log.read(1, through)
        assert log.last_term == old.log.header_at(through).term + EPOCH_TERM_GAP
        *before, (index, made) = opened.summary.configurations
        assert (done.epoch in [each.epoch for _, each in before]) is with_it
        assert index == through + 1
        of_backup = done.epoch.recoveries if with_it else ()
        assert made.epoch.recoveries[:-1] == of_backup
        own = made.epoch.recoveries[-1]
        assert own not in of_backup
        assert made.members() == {NodeId("m1")}
        two = replace(
            made,
            voters=frozenset({NodeId("m1"), NodeId("m2")}),
            disks=(*made.disks, (NodeId("m2"), DiskId(b"2" * 16))),
        )
    append(new, two, restored.term)
    shown = examine(new.path, new.identity, new.files)
    again = recovered(new, shown)
    assert again.epoch.recoveries == (*of_backup, own, RECOVERY_ID)
    assert again.term == shown.term + EPOCH_TERM_GAP
