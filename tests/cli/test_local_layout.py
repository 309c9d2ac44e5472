"""The folder of a local group: what is written, what is believed, what is removed."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from broker.config import load_config
from broker.local_group import (
    GROUP_FILE,
    GroupDiffers,
    GroupFileBroken,
    GroupOptions,
    LocalGroup,
    LocalGroupError,
    NoSuchNode,
    NotAGroup,
)
from broker.local_group.ports import reserve_ports
from dledger.addresses import split_address
from dledger.listening import why_not_listening
from store.files import OsFiles


def changed(directory: Path, **changes: object) -> None:
    """Rewrites keys of `group.json`."""
    path = directory / GROUP_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_new_group_has_a_configuration_for_each_node(tmp_path: Path) -> None:
    """The nodes know each other and nothing is started."""
    group = LocalGroup.create(tmp_path / "run", GroupOptions(nodes=5, flush="async"))
    configs = [load_config(Path(node.config)) for node in group.nodes]
    assert [config.node_id for config in configs] == ["n1", "n2", "n3", "n4", "n5"]
    assert {tuple(config.peers.items()) for config in configs} == {
        tuple((node.id, node.address) for node in group.nodes)
    }
    assert [str(config.data_directory) for config in configs] == [
        node.data_directory for node in group.nodes
    ]
    assert {config.store.flush for config in configs} == {"async"}
    assert {config.store.segment_size_bytes for config in configs} == {64 << 20}
    assert not any(node.is_running() for node in group.nodes)


def test_folder_of_a_new_group_is_on_disk_with_those_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in a folder outlives a power cut that takes the folder's own name."""
    synced: list[Path] = []
    monkeypatch.setattr(OsFiles, "fsync_directory", lambda _self, path: synced.append(path))
    LocalGroup.create(tmp_path / "a" / "run", GroupOptions(nodes=1))
    assert synced[:2] == [tmp_path, tmp_path / "a"]


def test_base_port_decides_all_ports(tmp_path: Path) -> None:
    """Nodes from N on, their metrics a thousand above."""
    group = LocalGroup.create(tmp_path, GroupOptions(nodes=2, base_port=7001))
    assert group.addresses == ["127.0.0.1:7001", "127.0.0.1:7002"]
    metrics = [node.metrics_address for node in group.nodes]
    assert metrics == ["127.0.0.1:8001", "127.0.0.1:8002"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (GroupOptions(nodes=0), "1 to 15 nodes, not 0"),
        (GroupOptions(nodes=16), "1 to 15 nodes, not 16"),
        (GroupOptions(base_port=64_600), "ports 64600 to 65602"),
        (GroupOptions(segment_size_bytes=2 << 20), "store.segment_size_bytes: found 2097152"),
        (GroupOptions(segment_size_bytes=(64 << 20) + 1), "a multiple of 4096"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, options: GroupOptions, text: str
) -> None:
    """With a reason, and nothing is left behind."""
    with pytest.raises(LocalGroupError, match=text):
        LocalGroup.create(tmp_path / "run", options)
    assert not (tmp_path / "run").exists()


def test_reserved_ports_are_not_the_kernels() -> None:
    """None lies where the kernel finds ports for outgoing connections."""
    ports = reserve_ports(30).ports
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 30
    assert all(10_000 <= port < low for port in ports)


def test_reserved_port_is_free_for_its_node_and_for_no_other_picker() -> None:
    """Two groups that are made at one moment never share a port; a node may restart on its own."""
    reservation = reserve_ports(1)
    (port,) = reservation.ports
    for _ in range(2):
        assert not why_not_listening(f"127.0.0.1:{port}")  # listens for a moment, as a node does
        with socket.socket() as picker, pytest.raises(OSError, match="Address already in use"):
            picker.bind(("127.0.0.1", port))
    del reservation
    with socket.socket() as picker:
        picker.bind(("127.0.0.1", port))


def test_port_that_is_listened_on_is_not_free() -> None:
    """Until the listener is gone."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert why_not_listening(address) == "the port is in use"
    assert not why_not_listening(address)


def test_directory_without_a_group_is_told(tmp_path: Path) -> None:
    """With the command that makes one."""
    with pytest.raises(NotAGroup, match="dledger group up"):
        LocalGroup.open(tmp_path)


def test_existing_group_is_opened_when_nothing_else_is_asked(tmp_path: Path) -> None:
    """`None` asks for nothing; the same again is no difference."""
    made = LocalGroup.create(tmp_path, GroupOptions(nodes=2))
    for options in (GroupOptions(), GroupOptions(nodes=2, flush="sync")):
        assert LocalGroup.open_or_create(tmp_path, options).addresses == made.addresses


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (GroupOptions(nodes=5), "made with nodes 3, not 5"),
        (GroupOptions(base_port=7001), "made with base port None, not 7001"),
        (GroupOptions(segment_size_bytes=1 << 26 << 1), "segment size 67108864, not 134217728"),
        (GroupOptions(flush="async"), "made with flush sync, not async"),
    ],
)
def test_existing_group_is_not_taken_for_another(
    tmp_path: Path, options: GroupOptions, text: str
) -> None:
    """A group is never changed by starting it."""
    LocalGroup.create(tmp_path)
    with pytest.raises(GroupDiffers, match=text):
        LocalGroup.open_or_create(tmp_path, options)


def test_group_is_not_created_over_another(tmp_path: Path) -> None:
    """Neither its ports nor its processes would be known any more."""
    LocalGroup.create(tmp_path)
    with pytest.raises(GroupDiffers, match="there is a group in"):
        LocalGroup.create(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Invalid JSON"),
        ("{}", "format: Field required"),
        ('{"format": "other/1"}', "format: Input should be 'dledger-local-group/1'"),
        ('["a list"]', "Input should be an object"),
    ],
)
def test_file_that_is_not_ours_is_not_believed(tmp_path: Path, text: str, reason: str) -> None:
    """No process is signalled on the word of such a file."""
    (tmp_path / GROUP_FILE).write_text(text)
    with pytest.raises(GroupFileBroken, match=reason):
        LocalGroup.open(tmp_path)


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_process_ids_that_would_hit_everybody_are_refused(tmp_path: Path, pid: int) -> None:
    """0 and -1 mean more than one process to the system, 1 is init."""
    group = LocalGroup.create(tmp_path, GroupOptions(nodes=1))
    node = group.nodes[0].model_dump() | {"pid": pid, "started": "boot:1"}
    changed(tmp_path, nodes=[node])
    with pytest.raises(GroupFileBroken, match="greater than 1"):
        LocalGroup.open(tmp_path)


def test_folders_outside_of_the_group_are_refused(tmp_path: Path) -> None:
    """A file that was copied or tampered with must not make us delete something else."""
    LocalGroup.create(tmp_path / "original", GroupOptions(nodes=1))
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / GROUP_FILE).write_bytes((tmp_path / "original" / GROUP_FILE).read_bytes())
    with pytest.raises(GroupFileBroken, match="isn't in"):
        LocalGroup.open(copy).wipe()
    assert (tmp_path / "original" / "n1" / "node.toml").exists()


def test_two_nodes_of_one_id_are_refused(tmp_path: Path) -> None:
    """One would hide the other's process."""
    group = LocalGroup.create(tmp_path, GroupOptions(nodes=1))
    node = group.nodes[0].model_dump()
    changed(tmp_path, nodes=[node, node])
    with pytest.raises(GroupFileBroken, match="same id"):
        LocalGroup.open(tmp_path)


def test_wipe_leaves_what_it_did_not_make(tmp_path: Path) -> None:
    """Only the group's files go; a directory that holds more stays."""
    group = LocalGroup.create(tmp_path / "run", GroupOptions(nodes=2))
    (tmp_path / "run" / "notes.txt").write_text("mine")
    group.wipe()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_wipe_removes_an_otherwise_empty_directory(tmp_path: Path) -> None:
    """Nothing is left behind, and a repeated wipe says that there is no group."""
    group = LocalGroup.create(tmp_path / "run", GroupOptions(nodes=2))
    group.wipe()
    assert not (tmp_path / "run").exists()
    with pytest.raises(NotAGroup):
        LocalGroup.open(tmp_path / "run")


def test_wipe_follows_no_link(tmp_path: Path) -> None:
    """A node's folder that is a link elsewhere is somebody's treasure."""
    group = LocalGroup.create(tmp_path / "run", GroupOptions(nodes=1))
    (tmp_path / "run" / "n1").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "n1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GroupFileBroken, match="is a link"):
        group.wipe()
    assert (tmp_path / "elsewhere" / "node.toml").exists()


def test_directory_that_is_a_file_is_told(tmp_path: Path) -> None:
    """As is one that can't be written."""
    (tmp_path / "run").write_text("")
    with pytest.raises(LocalGroupError, match="can't write"):
        LocalGroup.create(tmp_path / "run")


def test_unknown_node_is_told_with_those_there_are(tmp_path: Path) -> None:
    """A typo is answered with the right names."""
    group = LocalGroup.create(tmp_path, GroupOptions(nodes=2))
    with pytest.raises(NoSuchNode, match="no node 'n7' here; there are n1, n2"):
        group.node("n7")


def test_addresses_are_on_the_loopback_interface(tmp_path: Path) -> None:
    """A local group is nobody else's business."""
    group = LocalGroup.create(tmp_path)
    assert {split_address(address)[0] for address in group.addresses} == {"127.0.0.1"}
