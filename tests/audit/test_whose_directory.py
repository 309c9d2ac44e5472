"""What lies here at the path that a node names is read only if it is that node's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from audit.delivery.check import audit_delivery
from audit.engines.engine import LocalEngine
from audit.errors import NotTheGroups
from audit.reading import live
from audit.reading.live import Over, replicas_of_group
from audit.reading.replica import Replica
from dledger.reading.errors import NoAnswer
from dledger.wire.cluster_pb2 import MemberHealth, NodeHealth, NodeStatus
from tests.audit.replicas import LogBuilder, build
from tests.audit.test_delivery import told, written
from tests.audit.test_lifetimes import LIVES
from tests.audit.test_whose_log import member
from tests.chaos.histories import Story

HERE, ELSEWHERE = "127.0.0.1:7001", "192.0.2.1:7001"  # the latter is nobody's


@dataclass(frozen=True)
class Node:
    """One that runs, and says that its directory is at `path`."""

    built: LogBuilder
    path: Path

    @property
    def disk(self) -> str:
        return str(json.loads((self.path / "identity.json").read_text())["disk_id"])

    def status(self, disk: str | None = None, group: str = "g") -> NodeStatus:
        last = self.built.headers[-1]
        return NodeStatus(
            broker_group=group,
            node_id="n1",
            data_directory=str(self.path),
            committed_offset=self.built.log.end_offset,
            committed_digest=last.digest,
            commit_index=last.index,
            health=NodeHealth(disk_id=bytes.fromhex(self.disk if disk is None else disk)),
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(build(tmp_path / "n1", LIVES), tmp_path / "n1")


Asking = Callable[..., Replica]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asking:
    def ask(address: str, status: NodeStatus, over: Over) -> Replica:
        monkeypatch.setattr(live, "_ask", lambda at: status)
        (found,) = replicas_of_group([address], on_hosts=False, over=over)
        return found

    return ask


@pytest.mark.parametrize("over", [Over.AUTO, Over.FILES])
def test_a_directory_on_this_machine_is_the_nodes(node: Node, asked: Asking, over: Over) -> None:
    """By its disk; a node of an older release says none, and its name has to do."""
    for disk in (None, ""):
        found = asked(HERE, node.status(disk), over)
        assert (found.address, found.silence) == (None, "")
        assert found.position is not None


@pytest.mark.parametrize("way", ["old disk", "moved", "other group", "nothing"])
def test_what_a_node_left_behind_is_not_read_for_it(node: Node, asked: Asking, way: str) -> None:
    """It was replaced on another host, or its files were carried there: what is here has its id,
    its group and its path. It is asked itself; where only files are read, nothing of it is."""
    address, status = HERE, node.status()
    match way:
        case "old disk":
            status = node.status("0f" * 16)
        case "moved":
            address = ELSEWHERE
        case "other group":
            status = node.status(group="other")
        case "nothing":
            status.data_directory = "/nowhere/n1"
    found = asked(address, status, Over.AUTO)
    assert (found.address, found.silence) == (address, "")
    found = asked(address, status, Over.FILES)
    assert found.position is not None  # which is its word, whoever reads it
    assert found.silence
    history = written(node.path.parent, Story())
    with pytest.raises(NoAnswer, match="its files are read where they lie"):
        audit_delivery([found], [history], LocalEngine())


VOTERS = ("n1", "n2", "n3")
ADDRESSES = dict(zip(VOTERS, (HERE, ELSEWHERE, "192.0.2.2:7001"), strict=True))


def said(replica: Replica, path: Path, *, serves: bool = False) -> NodeStatus:
    """What the node says of itself: it has the replica's log, at this path."""
    assert replica.position is not None
    members = [MemberHealth(node_id=name, votes=True, disk_id=name.encode() * 8) for name in VOTERS]
    return NodeStatus(
        broker_group="g",
        node_id=replica.id,
        data_directory=str(path),
        term=2,
        serving=serves,
        committed_offset=replica.position.committed,
        committed_digest=replica.position.digest,
        commit_index=replica.position.index,
        health=NodeHealth(members=members, disk_id=replica.id.encode() * 8),
    )


@pytest.mark.parametrize("way", ["same", "ahead", "parted"])
def test_a_leader_on_another_machine_says_where_the_log_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Three machines, and only n1's files are on this one. What n2 knows, which leads, tells what
    is lost from what is undecided, and whose log n1's is."""
    values = {"same": ("a",), "ahead": ("a", "b"), "parted": ("x",)}[way]
    here = member(tmp_path, "n1", "a")
    file = tmp_path / "n1" / "identity.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"disk_id": (b"n1" * 8).hex()}))
    heard = {HERE: said(here, tmp_path / "n1")}
    for name in ("n2", "n3"):
        told_by = member(tmp_path / "away", name, *values)
        heard[ADDRESSES[name]] = said(told_by, Path("/data"), serves=name == "n2")
    monkeypatch.setattr(live, "_ask", heard.__getitem__)
    replicas = replicas_of_group(list(heard), on_hosts=False, over=Over.FILES)
    assert [bool(each.silence) for each in replicas] == [False, True, True]
    story = Story()
    story.send("a", "b", at=0)
    history = written(tmp_path, story)
    if way == "parted":
        with pytest.raises(NotTheGroups, match="n1 holds another log than n2, which leads"):
            audit_delivery(replicas, [history], LocalEngine())
        return
    report = audit_delivery(replicas, [history], LocalEngine())
    assert report.tail_is_known == (way == "same")
    assert told(report) == [("lost" if way == "same" else "undecided", 1, "b")]
