"""Which of the nodes that answer are the members of the group that is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from audit.backing.taking import take_backup
from audit.errors import UsageMistake
from audit.reading import live
from audit.reading.live import Over, replicas_of_group
from audit.reading.replica import Replica, check_replicas
from dledger.wire.cluster_pb2 import (
    GroupEpochName,
    MemberHealth,
    NodeHealth,
    NodeStatus,
    PeerStatus,
)
from tests.scale import examples

Places = Mapping[str, tuple[str, str]]  # a member's disk and address, by its id


@dataclass(frozen=True)
class Node:
    """One that runs: where it is found, and the members that its log names."""

    id: str
    disk: str
    address: str
    places: Places
    committed: int = 0
    epoch: int = 0
    group: str = "local"
    admin: str = ""
    tells_disks: bool = True

    @property
    def status(self) -> NodeStatus:
        members = [
            MemberHealth(node_id=each, disk_id=disk.encode(), address=address)
            for each, (disk, address) in self.places.items()
        ]
        health = NodeHealth(disk_id=self.disk.encode(), members=members)
        return NodeStatus(
            broker_group=self.group,
            node_id=self.id,
            data_directory=f"/srv/{self.disk}",
            commit_index=self.committed,
            committed_offset=100 * self.committed,
            peers=[
                PeerStatus(node_id=each, address=address)
                for each, (_, address) in self.places.items()
                if each != self.id
            ],
            epoch=GroupEpochName(number=self.epoch) if self.epoch else None,
            admin_address=self.admin,
            health=health if self.tells_disks else None,
        )


def found(
    monkeypatch: pytest.MonkeyPatch, nodes: Iterable[Node], asked: Iterable[str]
) -> dict[str, Replica]:
    """The replicas, by their names."""
    answers: dict[str, NodeStatus] = {}
    for node in nodes:
        answers[node.address] = node.status
        if node.admin:
            answers[node.admin] = node.status
    monkeypatch.setattr(live, "_ask", lambda at: answers.get(at, "UNAVAILABLE: nobody"))
    replicas = replicas_of_group(list(asked), on_hosts=False, over=Over.GRPC)
    check_replicas(replicas)
    return {each.id: each for each in replicas}


OLD = {"n1": ("a", "h1:1"), "n2": ("b", "h2:1"), "n3": ("c", "h3:1")}
NOW = OLD | {"n2": ("new", "h4:1")}
N1 = Node("n1", "a", "h1:1", NOW, 9)
N2 = Node("n2", "new", "h4:1", NOW, 8)
N3 = Node("n3", "c", "h3:1", NOW, 9)
OLD_N2 = Node("n2", "b", "h2:1", OLD, 5)


@pytest.mark.parametrize(
    "asked", [["h2:1", "h1:1"], ["h1:1", "h2:1"], ["h2:1"], ["h4:1", "h2:1"], ["h3:1", "h2:1"]]
)
def test_member_is_the_disk_that_the_log_names(
    monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    """An old process of a member whose disk was replaced goes on at its old address: it was taken
    for the member, which nobody asked then. It is told of, and nothing of it is read."""
    replicas = found(monkeypatch, [N1, N2, N3, OLD_N2], asked)
    assert set(replicas) == {"n1", "n2", "n3", "n2@h2:1"}
    assert [replicas[name].path for name in ("n1", "n2", "n3")] == ["/srv/a", "/srv/new", "/srv/c"]
    assert all(replicas[name].position for name in ("n1", "n2", "n3"))
    other = replicas["n2@h2:1"]
    assert (other.position, other.address, other.is_member) == (None, None, False)
    assert other.silence == (
        f"n2 on /srv/b is on disk {b'b'.hex()}, and the group's log names {b'new'.hex()}"
    )


def test_who_answers_in_a_members_place_is_not_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member gives no answer then, whoever else does: another disk's node, another group's."""
    wrong = [
        (
            Node("n2", "b", "h4:1", OLD),
            "h4:1 is answered by another one: n2 on /srv/b is on disk ",
        ),
        (Node("n2", "x", "h4:1", {"n2": ("x", "h4:1")}, 99), "h4:1 is answered by another one: n2"),
        (
            Node("n7", "x", "h4:1", {}, 99, group="billing"),
            "h4:1 is answered by n7 of broker group",
        ),
    ]
    for node, why in wrong:
        replicas = found(monkeypatch, [N1, N3, node], ["h1:1"])
        assert set(replicas) == {"n1", "n2", "n3"}
        assert replicas["n2"].silence.startswith(why)
        assert (replicas["n2"].is_member, replicas["n2"].position) == (True, None)
    assert found(monkeypatch, [N1, N3], ["h1:1"])["n2"].silence == "h4:1 gives no answer"


def test_two_groups_of_one_name_are_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever has the longer log: nodes of the one were dropped, and a backup took what was the
    longest. A group is refused by its own name as well."""
    other = {name: (f"{disk}2", f"x{address}") for name, (disk, address) in OLD.items()}
    theirs = [Node(each, disk, at, other, 99) for each, (disk, at) in other.items()]
    for asked in (["h1:1", "xh1:1"], ["xh2:1", "h1:1", "h3:1"], ["xh3:1", "h3:1"]):
        with pytest.raises(UsageMistake, match="2 groups that have one name"):
            found(monkeypatch, [N1, N2, N3, *theirs], asked)
    billing = [replace(each, group="billing") for each in theirs]
    with pytest.raises(UsageMistake, match="several broker groups: h1:1 is of 'local'"):
        found(monkeypatch, [N1, N2, N3, *billing], ["h1:1", "xh1:1"])
    assert set(found(monkeypatch, [N1, N2, N3, *theirs], ["xh1:1"])) == {"n1", "n2", "n3"}


def test_node_that_no_log_names_is_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was removed, or waits to be taken in: it is read where it was named, and nobody
    waits for it."""
    removed = Node("n4", "d", "h5:1", {**OLD, "n4": ("d", "h5:1")}, 7)
    waiting = replace(removed, id="n5", disk="e", address="h6:1", places={})
    replicas = found(monkeypatch, [N1, N2, N3, removed, waiting], ["h1:1", "h5:1", "h6:1"])
    assert set(replicas) == {"n1", "n2", "n3", "n4", "n5"}
    assert {name for name, each in replicas.items() if not each.is_member} == {"n4", "n5"}
    assert replicas["n4"].position
    assert set(found(monkeypatch, [N1, N2, N3], ["h1:1", "h5:1"])) == {"n1", "n2", "n3"}


def test_a_node_is_one_at_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients' and administration's; and a copy of its disk is another one, where the log doesn't
    say that the member is."""
    one = replace(N1, admin="h1:9")
    assert set(found(monkeypatch, [one, N2, N3], ["h1:9", "h1:1", "h4:1"])) == {"n1", "n2", "n3"}

    def status(directory: str) -> NodeStatus:
        told = N1.status
        told.data_directory = directory
        return told

    answers = {"h1:1": status("/srv/a"), "h9:1": status("/copy"), "h4:1": N2.status}
    monkeypatch.setattr(live, "_ask", lambda at: answers.get(at, "UNAVAILABLE: nobody"))
    for asked in (["h9:1", "h1:1"], ["h1:1", "h9:1"], ["h9:1", "h4:1", "h1:1"]):
        replicas = replicas_of_group(asked, on_hosts=False, over=Over.GRPC)
        told = {each.id: each.path for each in replicas if not each.silence}
        assert told == {"n1": "/srv/a", "n2": "/srv/new"}
        assert {each.id for each in replicas if each.silence} == {"n1@h9:1", "n3"}


def test_nodes_that_tell_nothing_of_disks_are_known_by_their_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are of an older release."""
    older = [replace(each, tells_disks=False) for each in (N1, N2, N3)]
    assert set(found(monkeypatch, older, ["h1:1"])) == {"n1", "n2", "n3"}
    assert all(each.is_member for each in found(monkeypatch, older, ["h1:1"]).values())
    assert found(monkeypatch, older[:2], ["h1:1"])["n3"].silence == "h3:1 gives no answer"
    mixed = [older[0], N2, N3]
    assert all(each.position for each in found(monkeypatch, mixed, ["h1:1"]).values())


def test_epoch_goes_before_the_longer_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members that were given up committed more, perhaps, and their logs name each other."""
    survivor: Places = {"n1": ("a", "h1:1"), "n2": ("new", "h4:1")}
    nodes = [
        Node("n1", "a", "h1:1", survivor, 6, epoch=1),
        Node("n2", "new", "h4:1", survivor, 6, epoch=1),
        replace(OLD_N2, committed=50),
        Node("n3", "c", "h3:1", OLD, 50),
    ]
    replicas = found(monkeypatch, nodes, ["h2:1", "h3:1", "h1:1"])
    assert {name for name, each in replicas.items() if each.is_member} == {"n1", "n2"}
    assert replicas["n2"].path == "/srv/new"


def test_backup_of_two_groups_makes_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is refused before anything is made."""
    folder = tmp_path / "b"
    other = Node("n1", "z", "x:1", {"n1": ("z", "x:1")}, 99)
    answers = {"h1:1": N1.status, "x:1": other.status}
    monkeypatch.setattr(live, "_ask", lambda at: answers.get(at, "UNAVAILABLE: nobody"))
    with pytest.raises(UsageMistake, match="one name"):
        take_backup(folder, ["h1:1", "x:1"], None, lambda *_: print)
    assert not folder.exists()


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Node], Places, list[str]]:
    """A group whose disks were replaced one after the other, some of their old processes running
    on; the members now; and who is asked, a member that knows of now among them."""
    places: dict[str, tuple[str, str]] = {
        f"n{at}": (f"disk{at}", f"h{at}:1") for at in range(draw(st.integers(2, 5)))
    }
    old: list[Node] = []
    for change in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(sorted(places)))
        disk, address = places[name]
        if draw(st.booleans()):
            old.append(Node(name, disk, address, dict(places), change))
        moved = address if draw(st.booleans()) and not old else f"g{change}:1"
        places[name] = (f"new{change}", moved)
    taken = {each.address for each in old}
    running = [
        Node(name, disk, address, dict(places), draw(st.integers(10, 12)))
        for name, (disk, address) in places.items()
        if address not in taken and draw(st.integers(0, 4))
    ]
    assume(running)
    first = draw(st.sampled_from(running)).address
    more = draw(st.lists(st.sampled_from([each.address for each in [*running, *old]]), unique=True))
    return [*running, *old], places, draw(st.permutations([first, *{*more} - {first}]))


@settings(
    max_examples=examples(300),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(histories())
def test_each_member_is_read_or_told_to_be_silent(
    monkeypatch: pytest.MonkeyPatch, history: tuple[list[Node], Places, list[str]]
) -> None:
    """Of every member that runs, its own disk is read; of nobody else is anything under its id."""
    nodes, places, asked = history
    disks_in_common = [{disk for disk, _ in each.places.values()} for each in nodes]
    now = {disk for disk, _ in places.values()}
    assume(all(now & each for each in disks_in_common))  # else nothing shows that they are one
    replicas = found(monkeypatch, nodes, asked)
    running = {each.disk: each for each in nodes}
    for name, (disk, address) in places.items():
        replica = replicas[name]
        assert replica.is_member
        if disk in running:
            assert (replica.path, replica.address, replica.silence) == (f"/srv/{disk}", address, "")
        else:
            assert replica.silence
            assert replica.position is None
    assert all(each.silence for name, each in replicas.items() if name not in places)


def test_node_is_audited_where_its_own_disk_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where an old process of its id does."""
    answers = {"h4:1": replace(N2, admin="h4:9").status, "h4:9": OLD_N2.status}
    monkeypatch.setattr(live, "_ask", lambda at: answers.get(at, "UNAVAILABLE: nobody"))
    replicas = replicas_of_group(["h4:1"], on_hosts=False, over=Over.GRPC)
    (member,) = [each for each in replicas if each.id == "n2"]
    assert "h4:9, where n2 is audited, leads to n2 of broker group local" in member.silence
