"""The arena without processes: files put back, disks replaced, timers, variables."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from broker.config import RaftConfig, load_config
from broker.local_group import GroupStatus, LocalGroup, LocalGroupError, LocalNode, NodeView
from broker.local_group.process import ProcessIdentity
from chaos.real import arena as arenas
from chaos.real.arena import Arena, ArenaOptions, arena, environment
from chaos.real.patience import Patience
from chaos.real.replicas import compare_replicas, hash_of_queues
from dledger.wire.cluster_pb2 import NodeStatus


def within_arena(folder: Path, act: Callable[[Arena], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with arena(folder / "group", ArenaOptions(nodes=3, seed=1)) as made:
            await act(made)

    asyncio.run(scenario())


def test_nodes_are_told_to_clients_by_a_name_that_leads_through_the_gateway(
    tmp_path: Path,
) -> None:
    """And dial each other, and are looked at, round it."""

    async def act(made: Arena) -> None:
        variables = made.network.client_environment()
        assert variables.items() <= os.environ.items()
        excepted = variables["no_grpc_proxy"]
        for node in made.group.nodes:
            config = load_config(Path(node.config))
            assert config.listen == config.peers[node.id]
            assert set(config.peers.values()) == set(made.client_addresses)
            assert not any(address.startswith(excepted) for address in config.peers.values())
            assert len(config.dial) == 2
            assert all(address.startswith(excepted) for address in config.dial.values())
            assert made.addresses[node.id].startswith(excepted)

    before = dict(os.environ)
    within_arena(tmp_path, act)
    assert dict(os.environ) == before


def test_environment_is_as_before_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that was there has its value again, one that wasn't is gone."""
    monkeypatch.setenv("CHAOS_OLD", "old")

    def fail() -> None:
        with environment({"CHAOS_OLD": "new", "CHAOS_NEW": "new"}):
            assert (os.environ["CHAOS_OLD"], os.environ["CHAOS_NEW"]) == ("new", "new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert os.environ["CHAOS_OLD"] == "old"
    assert "CHAOS_NEW" not in os.environ


def test_old_copy_is_put_back_once(tmp_path: Path) -> None:
    """A file that is the same still, or gone, is left alone."""

    async def act(made: Arena) -> None:
        raft = made.data_directory("n1") / "raft"
        raft.mkdir(parents=True)
        kept, gone = raft / "hard_state", raft / "gone"
        kept.write_bytes(b"old")
        gone.write_bytes(b"old")
        made.set_aside("n1", "copy", kept)
        made.set_aside("n1", "copy", gone)
        kept.write_bytes(b"newer")
        gone.unlink()
        assert made.put_back("n1", "copy")
        assert kept.read_bytes() == b"old"
        assert not gone.exists()
        assert not made.put_back("n1", "copy")
        made.set_aside("n1", "copy", kept)
        assert not made.put_back("n1", "copy")

    within_arena(tmp_path, act)


def test_timers_of_another_pace_have_as_many_ticks(tmp_path: Path) -> None:
    """Only their length differs, and comes back."""

    async def act(made: Arena) -> None:
        file = Path(made.group.node("n2").config)
        before = load_config(file)
        assert made.retime("n2", 8) == 1.25
        raft = load_config(file).raft
        assert (raft.tick_ms, raft.election_timeout_ms, raft.heartbeat_ms) == (8, (120, 240), 40)
        assert (raft.suspicion_delay_ms, raft.transfer_timeout_ms) == ((8, 32), 240)
        assert raft.max_append_bytes == RaftConfig().max_append_bytes
        assert made.retime("n2", None) == 1.0
        assert load_config(file) == before

    within_arena(tmp_path, act)


def test_node_that_was_gone_before_it_was_hit_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, whether or not somebody has looked before the strike."""

    async def act(made: Arena) -> None:
        gone = {"n1", "n2"}
        monkeypatch.setattr(Arena, "is_running", lambda _, node_id: node_id not in gone)
        made.meant_to_be_down.add("n2")
        for node_id in ("n1", "n2"):
            made.kill(node_id)
            made.terminate(node_id)
        assert made.ended_by_themselves() == ["n1"]
        assert made.ended_by_themselves() == []
        gone.add("n3")
        assert made.ended_by_themselves() == ["n3"]
        assert made.ended_by_themselves() == []

    within_arena(tmp_path, act)


@pytest.mark.parametrize(
    ("code", "told", "is_told"),
    [(0, "stopped", False), (4, "", True), (-11, "", True), (None, arenas.TRACEBACK, True)],
)
def test_node_that_ends_badly_when_asked_to_stop_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, told: str, *, is_told: bool
) -> None:
    """What it said before it was asked is another matter, and a disk that is to fail may."""

    async def act(made: Arena) -> None:
        node = made.group.node("n1")
        process = ProcessIdentity(1, "never")
        monkeypatch.setattr(LocalNode, "process", process)
        monkeypatch.setattr(arenas, "exit_code_of", {process: code}.get)
        before = f"{arenas.TRACEBACK}\n"
        node.log_file.write_text(before + told)
        made.ended_well("n1", len(before))
        assert bool(made.bad_ends()) == is_told
        assert made.bad_ends() == []
        made.order("slow", "n1", lambda orders: orders)
        made.ended_well("n1", len(before))
        assert made.bad_ends() == []

    within_arena(tmp_path, act)


def status(*commits: int | None, last_index: int = 10, serving: bool = True) -> GroupStatus:
    """n2 leads; None: doesn't answer."""
    views = [
        NodeView(
            f"n{at}",
            "127.0.0.1:1",
            commit is not None,
            "leader" if at == 2 else "follower",
            1,
            last_index if at == 2 else commit,
            commit,
            commit,
            serving=serving and at == 2,
        )
        for at, commit in enumerate(commits, start=1)
    ]
    return GroupStatus.of("g", views)


def test_node_gets_an_empty_disk_only_when_all_others_hold_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed by the node and the leader alone would otherwise be on one disk."""
    told = [
        status(None, 9, 9, last_index=9, serving=False),  # nobody knows what is committed
        status(None, 9, None),  # another one doesn't run
        status(None, 9, 9),  # entry 10 isn't known as committed
        status(None, 12, 9, last_index=12),
        status(None, 12, 10, last_index=12),
    ]
    asked: list[GroupStatus] = []

    async def next_status(_: LocalGroup) -> GroupStatus:
        asked.append(told[len(asked)])
        return asked[-1]

    async def nothing(made: Arena, node_id: str) -> None:
        assert len(asked) == len(told)
        assert not made.data_directory(node_id).exists()

    monkeypatch.setattr(LocalGroup, "status", next_status)
    monkeypatch.setattr(Arena, "start", nothing)
    monkeypatch.setattr(Arena, "take_in", nothing)
    monkeypatch.setattr(arenas, "POLL_S", 0)

    async def act(made: Arena) -> None:
        made.data_directory("n1").mkdir()
        await made.start_anew("n1")

    within_arena(tmp_path, act)


def test_node_keeps_its_disk_where_others_lag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has a problem, and the data is there still."""

    async def lagging(_: LocalGroup) -> GroupStatus:
        return status(None, 10, 9)

    monkeypatch.setattr(LocalGroup, "status", lagging)
    monkeypatch.setattr(arenas, "POLL_S", 0)
    monkeypatch.setattr(arenas, "Patience", lambda: Patience(still_s=0.02))

    async def act(made: Arena) -> None:
        made.data_directory("n1").mkdir()
        with pytest.raises(LocalGroupError, match="n1 can't be given an empty disk"):
            await made.start_anew("n1")
        assert made.data_directory("n1").exists()

    within_arena(tmp_path, act)


def test_queues_are_the_same_only_with_the_same_names_and_bytes(tmp_path: Path) -> None:
    """A missing file, a wrong byte and a file of another queue are told apart from none."""
    for name in ("a", "b"):
        queue = tmp_path / name / "chaos" / "0"
        queue.mkdir(parents=True)
        (queue / ("0" * 20)).write_bytes(b"units")
    assert hash_of_queues(tmp_path / "a") == hash_of_queues(tmp_path / "b")
    file = tmp_path / "b" / "chaos" / "0" / ("0" * 20)
    file.write_bytes(b"unitz")
    assert hash_of_queues(tmp_path / "a") != hash_of_queues(tmp_path / "b")
    file.write_bytes(b"units")
    file.parent.rename(tmp_path / "b" / "chaos" / "1")
    assert hash_of_queues(tmp_path / "a") != hash_of_queues(tmp_path / "b")


class Stopped:
    """Two nodes that have stopped, with what is on their disks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.group = self

    async def down(self) -> list[str]:
        return []

    def data_directory(self, node_id: str) -> Path:
        return self.folder / node_id

    def log_end(self, node_id: str) -> int:
        return 0

    def ended_well(self, node_id: str, log_from: int) -> None:
        """They did."""

    def bad_ends(self) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        (None, None),
        (f"commitlog/{0:020}", "the first 4 bytes of the logs differ"),
        (f"consumequeue/chaos/0/{0:020}", "the ConsumeQueues differ"),
    ],
)
def test_replicas_are_compared_byte_by_byte(
    tmp_path: Path, changed: str | None, finding: str | None
) -> None:
    """Their logs up to where both have committed, and what was derived from them."""
    for node_id in ("n1", "n2"):
        for name in ("commitlog", "consumequeue/chaos/0"):
            folder = tmp_path / node_id / name
            folder.mkdir(parents=True)
            (folder / f"{0:020}").write_bytes(b"same")
    if changed is not None:
        (tmp_path / "n2" / changed).write_bytes(b"sane")
    statuses = {each: NodeStatus(commit_index=1, committed_offset=4) for each in ("n1", "n2")}
    found = asyncio.run(
        compare_replicas(cast(Arena, Stopped(tmp_path)), statuses, retains_all=True)
    )
    assert [each.partition(":")[0] for each in found] == ([] if finding is None else [finding])
