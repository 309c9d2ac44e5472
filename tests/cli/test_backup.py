"""A running group is backed up, lost, and made anew from the backup: by the program's own commands,
on real processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.backing import taking
from audit.backing.taking import Taken
from broker.config import dump_toml, load_config
from broker.local_group import LocalGroup
from dledger.client import StartFrom
from dledger.client.blocking import BlockingClient
from dledger.reading.backup import Backup
from dledger.terminal.outcome import ExitCode
from tests.cli.called import command
from tests.cli.test_members import Growing, Load
from tests.integration.group import free_ports

pytestmark = pytest.mark.slow


class Running(Growing):
    """A local group of three; new nodes can be made beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses: dict[str, str] = {}
        self.processes = {}
        assert self.command("group", "up", "--dir", str(folder)).returncode == 0
        self.group = LocalGroup.open(folder)

    def backup(self, folder: Path) -> dict[str, object]:
        done = self.command("group", "backup", str(folder), "--dir", str(self.folder), "--json")
        assert done.returncode == 0, done.stderr
        said: dict[str, object] = json.loads(done.stdout)
        return said

    def configure(self, name: str, broker_group: str) -> Path:
        """A configuration of a first node, on a directory that was never used; its file."""
        port, metrics = free_ports(2)
        home, address = self.folder / name, f"127.0.0.1:{port}"
        home.mkdir()
        config = load_config(Path(self.group.node("n1").config)).model_copy(
            update={
                "broker_group": broker_group,
                "node_id": name,
                "data_directory": home / "data",
                "listen": address,
                "metrics_listen": f"127.0.0.1:{metrics}",
                "peers": {name: address},
            }
        )
        (home / "node.toml").write_text(dump_toml(config, home), encoding="utf-8")
        self.addresses[name] = address
        return home / "node.toml"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    group = Running(tmp_path / "run")
    yield group
    group.close()


def test_group_that_is_lost_is_made_anew_from_its_backup(running: Running, tmp_path: Path) -> None:
    """Everything acknowledged before the backup began is there, in order and once, with its
    consumers' offsets; the new group goes on and takes members in."""
    folder = tmp_path / "backup"
    load = Load(",".join(running.group.addresses))
    while len(load.sent) < 50:
        assert not load.errors, load.errors
    running.backup(folder)
    with BlockingClient.connect(running.group.addresses) as client:
        client.commit_offsets("readers", "t", {0: 17})
    acknowledged = len(load.sent)
    said = running.backup(folder)
    assert said["silent"] == []
    load.end()
    assert not load.errors, load.errors
    for node in ("n1", "n2", "n3"):
        running.group.signal(node, signal.SIGKILL)

    config = running.configure("m1", "second")
    restored = running.command("group", "restore", str(folder), "--config", str(config), "--json")
    assert restored.returncode == 0, restored.stderr
    facts = json.loads(restored.stdout)
    assert facts["last_index"] == said["last_index"] == facts["backup"]["last_index"]
    running.start("m1")
    with BlockingClient.connect(running.addresses["m1"]) as client:
        assert client.fetch_offsets("readers", "t") == {0: 17}
        consumer = client.pull_consumer("t", start=StartFrom.FIRST, idle_timeout_s=1)
        found = [message.body for message in consumer]
        assert len(found) >= acknowledged
        # One more may have been on its way when the last one was acknowledged.
        assert found == [b"%d" % number for number in range(len(found))]
        with client.producer() as producer:
            assert producer.send("t", b"more").result(timeout=60).queue_offset == len(found)
    words = running.take_in("m2", "m3", broker_group="second")
    added = running.command("member", "add", *words, "--bootstrap", running.addresses["m1"])
    assert added.returncode == 0, added.stderr
    assert running.roles() == {"m1": "voter", "m2": "voter", "m3": "voter"}
    with BlockingClient.connect(running.addresses["m2"]) as client:
        consumer = client.pull_consumer("t", start=StartFrom.FIRST, idle_timeout_s=1)
        assert [message.body for message in consumer] == [*found, b"more"]


def test_members_that_are_silent_are_told(running: Running, tmp_path: Path) -> None:
    """What only they knew to be committed may be missing; nothing else is wrong."""
    folder = tmp_path / "backup"
    running.group.signal("n3", signal.SIGKILL)
    words = ("group", "backup", str(folder), "--dir", str(running.folder))
    done = running.command(*words)
    assert done.returncode == ExitCode.INCOMPLETE
    assert "no answer from n3" in done.stderr
    assert "verified" in done.stdout
    refused = running.command(*words, "--node", "n3")
    assert refused.returncode == ExitCode.FAILED
    assert "n3 is no member that answers" in refused.stderr
    config = running.configure("m1", "local")
    assert running.command("group", "restore", str(folder), "--config", str(config)).returncode == 0
    again = running.command("group", "restore", str(folder), "--config", str(config))
    assert again.returncode == ExitCode.FAILED
    assert "not empty: it is formed" in again.stderr
    for wrong in (tmp_path, tmp_path / "nowhere"):
        refused = running.command("group", "restore", str(wrong), "--config", str(config))
        assert refused.returncode == ExitCode.FAILED
        assert "no backup" in refused.stderr


@pytest.mark.parametrize(
    ("silent", "leader", "code"),
    [((), "n1", 0), ((), "", 3), (("n3",), "n1", 3), (("n3",), "", 3)],
)
def test_only_what_has_all_that_was_acknowledged_ends_with_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, silent: tuple[str, ...], leader: str, code: int
) -> None:
    """Where all answer and nobody leads, nobody knows what the last leader acknowledged."""
    backup = Backup("g", "n2", 1 << 20, 1, 9, 1, 7, 900, 1)
    taken = Taken(backup, 900, (), silent, leader)
    monkeypatch.setattr(taking, "take_backup", lambda *_: taken)
    done = command("group", "backup", str(tmp_path / "b"), "--bootstrap", "127.0.0.1:1", "--json")
    assert done.returncode == code
    assert json.loads(done.stdout)["leader"] == leader
    assert ("nobody leads: what only the last leader knew" in done.stderr) == (not leader)
    assert ("no answer from n3" in done.stderr) == bool(silent)
