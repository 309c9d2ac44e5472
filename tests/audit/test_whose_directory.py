"""What lies here at the path that a node names is read only if it is that node's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from audit.delivery.check import audit_delivery
from audit.engines.engine import LocalEngine
from audit.reading import live
from audit.reading.live import Over, replicas_of_group
from audit.reading.replica import Replica
from dledger.reading.errors import NoAnswer
from dledger.wire.cluster_pb2 import NodeHealth, NodeStatus
from tests.audit.replicas import LogBuilder, build
from tests.audit.test_delivery import written
from tests.audit.test_lifetimes import LIVES
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
    assert found.position is None
    assert found.silence
    history = written(node.path.parent, Story())
    with pytest.raises(NoAnswer, match="its files are read where they lie"):
        audit_delivery([found], [history], LocalEngine())
