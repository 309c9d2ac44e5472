"""Forming a group: what members say decides, all prepare before any commits, and a crash anywhere
leaves what a repetition finishes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from broker.config import NodeConfig
from broker.forming.errors import FormationRefused, MemberUnreachable
from broker.forming.initiator import form
from broker.forming.member import Member
from broker.forming.planning import (
    FORMED,
    JOINING,
    LEGACY,
    UNFORMED,
    Description,
    founding_of,
    prepared_beside_joined,
)
from broker.local_group.disks import form_disks
from broker.recovery import StoreMachinery, open_directory, recover
from dledger.core.types import MAX_TIME_MS, NodeId
from dledger.wire import raft_pb2
from store.commitlog import CommitLogOptions
from store.directory import Birth, DirectoryState, write_sealed
from store.errors import StorageFailed
from store.files import FileSystem, OsFiles
from store.starting.errors import LogMissing, NotAMember
from store.starting.founding import Founding
from tests.node.members import make_configs
from tests.store.faulty_files import SimulatedDisk

SEGMENT = 8 << 20
OPTIONS = CommitLogOptions(segment_size_bytes=SEGMENT, reserve_bytes=0)
NAMES = ("n1", "n2", "n3")
PEERS = tuple((name, f"127.0.0.1:{7001 + at}") for at, name in enumerate(NAMES))


def described(name: str, **changes: object) -> Description:
    """A member of three that has never been formed."""
    at = int(name[1:]) - 1
    fresh = Description(
        broker_group="g1",
        node_id=name,
        segment_size_bytes=SEGMENT,
        disk_id=bytes([at]) * 16,
        born_ms=1_000 + at,
        state=UNFORMED,
        founding=None,
        last_index=0,
        last_term=0,
        peers=PEERS,
    )
    return replace(fresh, **changes)  # type: ignore[arg-type]


def fresh_founding(*, adopt: bool = False) -> Founding:
    state = LEGACY if adopt else UNFORMED
    found = founding_of([described(name, state=state) for name in NAMES], adopt=adopt)
    assert found is not None
    return found


def test_whoever_asks_computes_the_same_founding() -> None:
    """In any order; the time is the lower median of the disks' births."""
    members = [described(name) for name in NAMES]
    one, other = founding_of(members, adopt=False), founding_of(members[::-1], adopt=False)
    assert one is not None
    assert other is not None
    assert one.name == other.name
    assert one.time_ms == 1_001
    assert {one.members.disk_of(NodeId(name)) for name in NAMES} == {
        bytes([at]) * 16 for at in range(3)
    }


def test_a_group_that_is_formed_needs_nothing() -> None:
    assert founding_of([described(name, state=FORMED) for name in NAMES], adopt=False) is None


def test_what_was_begun_is_finished() -> None:
    """A lost initiator's founding is the one, whoever goes on."""
    begun = fresh_founding()
    members = [described("n1", founding=begun), described("n2"), described("n3")]
    assert founding_of(members, adopt=False) == begun
    members = [described(name, founding=begun) for name in NAMES]
    members[0] = replace(members[0], state=FORMED)
    assert founding_of(members, adopt=False) == begun


OTHER_PEERS = (*PEERS[:2], ("n3", "127.0.0.1:9999"))
MOVED = tuple((name, f"10.0.0.{at}:7001") for at, name in enumerate(NAMES))
ANOTHER_FOUNDING = founding_of([described(name, peers=MOVED) for name in NAMES], adopt=False)
REFUSED: dict[str, tuple[list[Description], bool, str]] = {
    "another group": ([described("n1"), described("n2", broker_group="x")], False, "broker group"),
    "another size": ([described("n1"), described("n2", segment_size_bytes=1)], False, "segment"),
    "another table": ([described("n1"), described("n2", peers=OTHER_PEERS)], False, "peers"),
    "somebody missing": ([described("n1"), described("n2")], False, "n3"),
    "a copied directory": (
        [described("n1"), described("n2", disk_id=bytes(16)), described("n3")],
        False,
        "copy",
    ),
    "a wiped disk": (
        [
            described("n1", state=FORMED, founding=fresh_founding()),
            described("n2", state=FORMED, founding=fresh_founding()),
            described("n3", disk_id=b"x" * 16),
        ],
        False,
        "group replace n3",
    ),
    "formed in two groups": (
        [
            described("n1", state=FORMED, founding=fresh_founding()),
            described("n2", state=FORMED, founding=ANOTHER_FOUNDING),
            described("n3", state=JOINING),
        ],
        False,
        "n1 in .*; n2 in .*: they are of different groups",
    ),
    "nobody but those who join": (
        [described(name, state=JOINING) for name in NAMES],
        False,
        "n1, n2, n3 are being taken in.*empty their directories",
    ),
    "a wiped disk in an old group": (
        [described("n1", state=FORMED), described("n2", state=FORMED), described("n3")],
        False,
        "mounted",
    ),
    "a disk as it was before the group": (
        [
            described("n1", state=FORMED, founding=fresh_founding()),
            described("n2", state=FORMED, founding=fresh_founding()),
            described("n3"),
        ],
        False,
        "older copy.*group replace n3",
    ),
    "the same, in an adopted group": (
        [
            described("n1", state=FORMED, founding=fresh_founding(adopt=True)),
            described("n2", state=LEGACY, founding=fresh_founding(adopt=True), last_index=9),
            described("n3", state=LEGACY, last_index=9),
        ],
        True,
        "older copy.*group replace n3",
    ),
    "two foundings": (
        [
            described("n1", founding=fresh_founding()),
            described("n2", founding=replace(fresh_founding(), time_ms=7)),
            described("n3"),
        ],
        False,
        "different foundings",
    ),
    "the version before": ([described(n, state=LEGACY) for n in NAMES], False, "--adopt"),
    "nothing to adopt": ([described(n) for n in NAMES], True, "without --adopt"),
    "an empty one among full ones": (
        [
            described("n1", state=LEGACY, last_index=9),
            described("n2", state=LEGACY),
            described("n3", state=LEGACY, last_index=9),
        ],
        True,
        "n2 is empty",
    ),
}


def alone(**changes: object) -> Description:
    """n1, of which [peers] names nobody else."""
    return described("n1", peers=PEERS[:1], founding=fresh_founding(), **changes)


def moved(name: str, **changes: object) -> Description:
    """A member of three of which n3 is configured to be elsewhere than the founding has it."""
    return described(name, peers=OTHER_PEERS, **changes)


def grown(name: str, **changes: object) -> Description:
    """A member of four, of which the founding knows three."""
    return described(name, peers=(*PEERS, ("n4", "127.0.0.1:7004")), **changes)


REFUSED |= {
    "prepared with others that aren't asked any more": (
        [alone()],
        False,
        r"n1 was prepared for a group of n1 at 127.0.0.1:7001, n2 at .*, and \[peers\] has n1 at "
        "127.0.0.1:7001: if nobody ever was formed .* empty the directory of n1",
    ),
    "prepared for an address that was put right": (
        [
            moved("n1", founding=fresh_founding()),
            moved("n2", founding=fresh_founding()),
            moved("n3"),
        ],
        False,
        r"n1, n2 was prepared .* n3 at 127.0.0.1:7003, and \[peers\] .* n3 at 127.0.0.1:9999.*"
        "empty the directories of n1, n2",
    ),
    "an emptied disk in a group that has grown": (
        [
            grown("n1", state=FORMED, founding=fresh_founding()),
            grown("n2", state=FORMED, founding=fresh_founding()),
            grown("n3", disk_id=b"x" * 16),
            grown("n4", state=FORMED),
        ],
        False,
        "n3 is on disk .*group replace n3",
    ),
    "a disk as it was before, in a group that has grown": (
        [
            grown("n1", state=FORMED, founding=fresh_founding()),
            grown("n2", state=FORMED, founding=fresh_founding()),
            grown("n3"),
            grown("n4", state=JOINING),
        ],
        False,
        "older copy.*group replace n3",
    ),
    "formed, and configured with a new one": (
        [
            *(grown(name, state=FORMED, founding=fresh_founding()) for name in NAMES),
            grown("n4"),
        ],
        False,
        r"has n1, n2, n3, n4: .*member add.*; if one that was added .*group replace ID",
    ),
    "formed with others": (
        [
            described("n1", peers=PEERS[:2], state=FORMED, founding=fresh_founding()),
            described("n2", peers=PEERS[:2], founding=fresh_founding()),
        ],
        False,
        r"n1 was formed in a group of n1, n2, n3, and \[peers\] has n1, n2: .*member add",
    ),
}


def test_who_is_formed_already_holds_nobody_up_that_has_moved_since() -> None:
    """All were prepared, however they are configured now: the group's log puts it right."""
    begun = fresh_founding()
    members = [moved(name, founding=begun) for name in NAMES]
    assert founding_of([replace(members[0], state=FORMED), *members[1:]], adopt=False) == begun


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_formed_is_refused_by_name(case: str) -> None:
    members, adopt, text = REFUSED[case]
    with pytest.raises(FormationRefused, match=text):
        founding_of(members, adopt=adopt)


# --- members on disks -------------------------------------------------------------------------


class Site:
    """A node's disk, and what runs on it: `boot` is a start of its program."""

    def __init__(self, config: NodeConfig, files: FileSystem) -> None:
        self.config = config
        self.files = files
        self.births = 0

    def birth(self) -> Birth:
        self.births += 1
        return Birth(f"{self.config.node_id}{self.births}".encode().ljust(16), 5)

    @contextlib.contextmanager
    def boot(self) -> Iterator[Member]:
        machinery = StoreMachinery(birth=self.birth)
        with contextlib.closing(open_directory(self.config, self.files, machinery)) as directory:
            yield Member(directory, self.files, OPTIONS, self.config.peers)


class Sites:
    """`FormingCalls` on disks at hand; `before` is called before each call with its name."""

    def __init__(self, sites: list[Site]) -> None:
        self.by_address = {site.config.listen: site for site in sites}
        self.before: Callable[[str, str], None] = lambda _call, _address: None

    async def describe(self, address: str) -> Description:
        self.before("describe", address)
        with self.by_address[address].boot() as member:
            return member.describe()

    async def prepare(self, address: str, founding: Founding) -> None:
        self.before("prepare", address)
        with self.by_address[address].boot() as member:
            member.prepare(founding)

    async def commit(self, address: str, name: str) -> None:
        self.before("commit", address)
        with self.by_address[address].boot() as member:
            member.commit(name)


def sites_in(folder: Path) -> Sites:
    return Sites([Site(config, OsFiles()) for config in make_configs(folder, 3)])


def test_a_formed_group_has_the_same_first_entry_everywhere(tmp_path: Path) -> None:
    """And nobody could start before."""
    sites = sites_in(tmp_path)
    for site in sites.by_address.values():
        with pytest.raises(NotAMember, match="group init"):
            recover(site.config, site.files)
    formed = asyncio.run(form(sites, [next(iter(sites.by_address))]))
    assert formed.members == NAMES
    assert asyncio.run(form(sites, list(sites.by_address))).was_before
    logs = set()
    for site in sites.by_address.values():
        found = recover(site.config, site.files)
        logs.add(found.log.read(1, 1))
        assert found.hard_state.term == 1
        assert found.summary.configurations[0][1].voters == set(NAMES)
        assert found.boot_number == 1
        found.log.close()
        found.directory.close()
    assert len(logs) == 1


@pytest.mark.parametrize("fatal", range(9))
def test_a_lost_initiator_is_replaced_by_whoever_repeats(tmp_path: Path, fatal: int) -> None:
    """Lost before any call; nobody commits before all have prepared."""
    sites = sites_in(tmp_path)
    calls: list[str] = []

    def lose(call: str, address: str) -> None:
        if len(calls) == fatal:
            calls.clear()
            sites.before = lambda *_: None
            raise MemberUnreachable(address, "lost")
        calls.append(call)

    sites.before = lose
    with pytest.raises(MemberUnreachable):
        asyncio.run(form(sites, list(sites.by_address)))
    sites.before = lambda call, _: calls.append(call)
    asyncio.run(form(sites, list(sites.by_address)[::-1]))
    assert calls == sorted(calls, key=["describe", "prepare", "commit"].index)
    for site in sites.by_address.values():
        with site.boot() as member:
            assert member.is_member


@pytest.mark.parametrize("lost", NAMES)
@pytest.mark.parametrize("is_wiped", [True, False])
@pytest.mark.parametrize("fatal", range(9))
def test_a_member_lost_while_a_group_is_formed_holds_nobody_else_up(
    fatal: int, is_wiped: bool, lost: str
) -> None:
    """The initiator dies at any call, and then a member: repeating forms all others, so that a
    majority of what is left elects, or nobody who is left is formed, and nothing is lost."""
    sites = Sites([Site(config, SimulatedDisk()) for config in make_configs(Path("/disk"), 3)])
    count = 0

    def lose(_call: str, address: str) -> None:
        nonlocal count
        count += 1
        if count > fatal:
            raise MemberUnreachable(address, "lost")

    sites.before = lose
    with pytest.raises(MemberUnreachable):
        asyncio.run(form(sites, list(sites.by_address)))
    gone = next(s for s in sites.by_address.values() if s.config.node_id == lost)
    if is_wiped:
        gone.files = SimulatedDisk()

    def is_silent(_call: str, address: str) -> None:
        if not is_wiped and address == gone.config.listen:
            raise MemberUnreachable(address, "lost")

    sites.before = is_silent
    others = [at for at in sites.by_address if at != gone.config.listen]
    told = ""
    try:
        asyncio.run(form(sites, others))
    except (FormationRefused, MemberUnreachable) as error:
        told = str(error)
    formed = set()
    for site in sites.by_address.values():
        with site.boot() as member:
            if member.is_member:
                formed.add(site.config.node_id)
    assert formed <= {lost} or formed | {lost} == set(NAMES), told
    if "is its disk mounted" in told:
        assert ("group replace" in told) is bool(formed), told
        assert ("empty the directories of all" in told) is not bool(formed), told


@pytest.mark.parametrize("is_formed", [False, True])
@pytest.mark.parametrize("way", ["initiator", "disks"])
def test_who_was_prepared_is_formed_though_another_disk_came_in_since(
    way: str, *, is_formed: bool
) -> None:
    """n2 was silent when the others were formed, and n3's disk was replaced since, which no
    founding knows: it can't be prepared, nor need it be. `is_formed`: it has caught up."""
    sites = Sites([Site(config, SimulatedDisk()) for config in make_configs(Path("/disk"), 3)])
    _, second, third = sites.by_address.values()

    def is_silent(call: str, address: str) -> None:
        if call == "commit" and address == second.config.listen:
            raise MemberUnreachable(address, "silent")

    sites.before = is_silent
    with pytest.raises(MemberUnreachable):
        asyncio.run(form(sites, list(sites.by_address)))
    third.files, third.births = SimulatedDisk(), 7
    with third.boot() as member:
        member.join(member.describe().disk_id)
        if is_formed:
            member._directory.mark(DirectoryState.FORMED)
    sites.before = lambda *_: None
    if way == "initiator":
        assert not asyncio.run(form(sites, list(sites.by_address))).was_before
    else:
        files = {site.config.node_id: site.files for site in sites.by_address.values()}
        machinery = {
            site.config.node_id: StoreMachinery(birth=site.birth, log_options=OPTIONS)
            for site in sites.by_address.values()
        }
        configs = [site.config for site in sites.by_address.values()]
        form_disks(configs, files.__getitem__, machinery.__getitem__)
    with second.boot() as member:
        assert member.state == FORMED
    found = recover(second.config, second.files)
    assert (found.log.last_index, found.hard_state.term) == (1, 1)
    found.log.close()
    found.directory.close()
    assert asyncio.run(form(sites, list(sites.by_address))).was_before


@pytest.mark.parametrize("founded", [False, True])
def test_nobody_is_formed_by_a_founding_that_no_member_was_formed_by(*, founded: bool) -> None:
    """It would be another group's first entry."""
    members = [described(name, founding=fresh_founding()) for name in NAMES]
    formed_by = fresh_founding() if founded else None
    members[0] = replace(members[0], state=FORMED, founding=formed_by)
    members[2] = replace(members[2], state=JOINING, founding=None)
    assert bool(prepared_beside_joined(members)) is founded
    assert not prepared_beside_joined([members[0], replace(members[1], founding=None), members[2]])


def test_two_names_of_one_member_are_one(tmp_path: Path) -> None:
    """As `localhost` and its address are."""
    sites = sites_in(tmp_path)
    first, *_ = addresses = list(sites.by_address)
    sites.by_address["another-name:7001"] = sites.by_address[first]
    formed = asyncio.run(form(sites, ["another-name:7001", *addresses]))
    assert formed.members == NAMES


def test_a_prepared_member_takes_no_other_founding(tmp_path: Path) -> None:
    """Two foundings exclude each other; the same one may come again, before and after."""
    (site, *_) = sites_in(tmp_path).by_address.values()
    with site.boot() as member:
        itself = member.describe()
        others = [described(n, peers=itself.peers) for n in NAMES[1:]]
        first = founding_of([itself, *others], adopt=False)
        assert first is not None
        member.prepare(first)
        member.prepare(first)
        with pytest.raises(FormationRefused, match="not by the founding"):
            member.prepare(replace(first, time_ms=9))
        with pytest.raises(FormationRefused, match="not prepared"):
            member.commit("another")
        with pytest.raises(FormationRefused, match="prepared"):
            member.join(itself.disk_id)
        member.commit(first.name)
        member.commit(first.name)
        member.prepare(first)


def test_a_member_is_prepared_only_with_those_of_its_own_table(tmp_path: Path) -> None:
    """It was put right and started again since somebody asked."""
    (site, *_) = sites_in(tmp_path).by_address.values()
    with site.boot() as member:
        itself = member.describe()
        for peers in (itself.peers[:1], (*itself.peers[:2], ("n3", "127.0.0.1:9999"))):
            names = [name for name, _ in peers]
            others = [described(name, peers=peers) for name in names[1:]]
            other = founding_of([replace(itself, peers=peers), *others], adopt=False)
            assert other is not None
            with pytest.raises(
                FormationRefused, match=r"n1 has n1 at .* in its \[peers\], and the"
            ):
                member.prepare(other)
        assert member.founding is None


@pytest.mark.parametrize(
    ("what", "why"), [("time", "its time is"), ("disks", "a disk of its own"), ("size", "bytes")]
)
def test_a_member_is_not_prepared_for_what_its_peers_would_refuse(
    tmp_path: Path, what: str, why: str
) -> None:
    """Each would begin its log with it, and the group would commit nothing for ever."""
    (site, *_) = sites_in(tmp_path).by_address.values()
    with site.boot() as member:
        itself = member.describe()
        others = [described(name, peers=itself.peers) for name, _ in itself.peers[1:]]
        founding = founding_of([itself, *others], adopt=False)
        assert founding is not None
        wire = raft_pb2.Configuration.FromString(founding.configuration)
        if what == "time":
            founding = replace(founding, time_ms=MAX_TIME_MS + 1)
        elif what == "disks":
            wire.members[2].disk_id = wire.members[1].disk_id
        else:  # as a later program's field would be
            wire.MergeFromString(b"\xfa\x07" + b"\x80\x80\x40" + bytes(1 << 20))
        wrong = replace(founding, configuration=wire.SerializeToString())
        with pytest.raises(FormationRefused, match=why):
            member.prepare(wrong)
        assert member.founding is None


@pytest.mark.parametrize("fatal", range(0, 90, 2))
def test_a_commit_is_finished_wherever_the_power_fails(fatal: int) -> None:
    """Formed only with term 1 and entry 1 on the platter; what was begun goes on from there."""
    config = make_configs(Path("/disk"), 1)[0]
    disk = SimulatedDisk()
    site = Site(config, disk)
    with site.boot() as member:
        founding = founding_of([member.describe()], adopt=False)
        assert founding is not None
        member.prepare(founding)

    begin = len(disk.calls)

    def stop(_operation: str, _name: str) -> None:
        if len(disk.calls) > begin + fatal:
            raise InterruptedError

    disk.before = stop
    with contextlib.suppress(InterruptedError, StorageFailed), site.boot() as member:
        member.commit(founding.name)
    disk.before = lambda _operation, _name: None
    disk.power_cut(Random(fatal))
    with site.boot() as member:
        if not member.is_member:
            member.commit(founding.name)
    found = recover(config, disk)
    assert found.log.configuration_entries()[0] == (1, founding.configuration)
    assert found.hard_state.term == 1
    found.log.close()


def test_a_member_without_its_log_does_not_start(tmp_path: Path) -> None:
    """The identity alone promises nothing."""
    sites = sites_in(tmp_path)
    asyncio.run(form(sites, list(sites.by_address)))
    (site, *_) = sites.by_address.values()
    for file in (site.config.data_directory / "commitlog").iterdir():
        file.unlink()
    (site.config.data_directory / "checkpoint").unlink(missing_ok=True)
    with pytest.raises(LogMissing, match="group replace n1"):
        recover(site.config, site.files)


def test_a_directory_of_the_version_before_is_adopted_with_its_log(tmp_path: Path) -> None:
    """On demand only; the founding is in force until the log holds a configuration."""
    sites = sites_in(tmp_path)
    for site in sites.by_address.values():
        config = site.config
        config.data_directory.mkdir(parents=True)
        fields = {"format_version": 1, "group": "g1", "node_id": config.node_id}
        file = config.data_directory / "identity.json"
        write_sealed(OsFiles(), file, {**fields, "segment_size_bytes": SEGMENT})
    addresses = list(sites.by_address)
    with pytest.raises(FormationRefused, match="--adopt"):
        asyncio.run(form(sites, addresses))
    with pytest.raises(NotAMember, match="--adopt"):
        recover(site.config, site.files)
    asyncio.run(form(sites, addresses, adopt=True))
    found = recover(site.config, site.files)
    assert found.summary.last_index == 0
    assert found.base.voters == set(NAMES)
    found.log.close()
    found.directory.close()


def test_a_new_disk_joins_once_and_under_its_own_name(tmp_path: Path) -> None:
    (site, *_) = sites_in(tmp_path).by_address.values()
    with site.boot() as member:
        itself = member.describe()
        with pytest.raises(FormationRefused, match="disk"):
            member.join(b"x" * 16)
        member.join(itself.disk_id)
        member.join(itself.disk_id)
        assert member.state == "joining"
    found = recover(site.config, site.files)
    assert found.base.disk_of(NodeId("n1")) == b""
    found.log.close()
    found.directory.close()
