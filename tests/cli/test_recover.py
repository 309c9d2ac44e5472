"""The last resort on real processes: two of three are lost with their disks, the third goes on
alone and grows again under load, and one that was given up comes back."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.config import dump_toml, load_config
from broker.local_group import LocalGroup
from broker.local_group.process import ProcessIdentity
from broker.local_group.status import OUT_OF_SERVICE_ROLE, probe
from dledger.client import StartFrom
from dledger.client.blocking import BlockingClient
from dledger.client.errors import ClientError
from dledger.outcome import Outcome
from dledger.terminal.outcome import ExitCode
from dledger.terminal.outcome import run as run_here
from dledger.wire.cluster_pb2 import NodeStatus
from tests.cli.called import command
from tests.integration.group import free_ports
from tests.warm import kill, node

pytestmark = pytest.mark.slow

PATIENCE_S = 120.0
GROUP = "local"


class Struck:
    """A local group of three, of which any may be lost."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[ProcessIdentity] = []
        done = self.command("group", "up", "--dir", str(folder))
        assert done.returncode == 0, done.stderr
        self.group = LocalGroup.open(folder)
        self.names = [node.id for node in self.group.nodes]

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return command(*words)

    def data(self, name: str) -> Path:
        return self.folder / name / "data"

    def recover(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.command("member", "recover", *words)

    def kill(self, *names: str) -> None:
        for name in names:
            self.group.signal(name, signal.SIGKILL)
        for name in names:
            assert run_here(self.group.wait_gone(name))

    def start(self, config: Path) -> None:
        self.processes.append(node(config, self.folder / "output"))

    def at(self, name: str) -> str:
        return self.group.node(name).address

    @property
    def bootstrap(self) -> str:
        return ",".join(map(self.at, self.names))

    def status(self, address: str) -> NodeStatus | None:
        return run_here(probe(address))

    def until(self, address: str, what: str, **wanted: Any) -> NodeStatus:
        """The node there says so."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.status(address)
            if found and all(getattr(found, name) == value for name, value in wanted.items()):
                return found
            assert time.monotonic() < deadline, (what, found)
            time.sleep(0.1)

    def close(self) -> None:
        for process in self.processes:
            kill(process)
        self.group.kill_all()


@pytest.fixture
def struck(tmp_path: Path) -> Iterator[Struck]:
    group = Struck(tmp_path / "run")
    yield group
    group.close()


class Load:
    """Somebody who sends one message after the other, all the time, and goes on when one fails."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[ClientError] = []
        self.tried = 0
        self.errors: list[Exception] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(bootstrap,))
        self._thread.start()

    def _run(self, bootstrap: str) -> None:
        try:
            with BlockingClient.connect(bootstrap) as client:
                client.create_topic("t", queues=1, if_not_exists=True)
                with client.producer() as producer:
                    while not self._ending.is_set():
                        body = b"%d" % self.tried
                        self.tried += 1
                        try:
                            producer.send("t", body).result(timeout=60)
                        except ClientError as error:
                            self.failed.append(error)
                        else:
                            self.acknowledged.append(body)
        except Exception as error:  # noqa: BLE001  told by whoever reads
            self.errors.append(error)

    def goes_on(self) -> None:
        """Five more are acknowledged."""
        wanted, deadline = len(self.acknowledged) + 5, time.monotonic() + PATIENCE_S
        while len(self.acknowledged) < wanted:
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, self.failed[-1:]
            time.sleep(0.02)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


def test_one_of_three_goes_on_grows_again_and_an_old_one_comes_back(
    struck: Struck, tmp_path: Path
) -> None:
    """What was acknowledged while the survivor had it, and all that was since, is there, once and
    in order; the old disk is a member of nothing."""
    load = Load(struck.bootstrap)
    load.goes_on()
    running = struck.recover("--data", str(struck.data("n3")))
    assert running.returncode == ExitCode.FAILED
    assert "in use by process" in running.stderr
    struck.kill("n1", "n2")
    lost_from = len(load.acknowledged)  # n3 may lack the last one, and what is under way
    kept = tmp_path / "kept"
    shutil.move(struck.data("n1"), kept)
    shutil.rmtree(struck.data("n2"))
    struck.kill("n3")

    shown = struck.recover("--data", str(struck.data("n3")))
    assert shown.returncode == 0, shown.stderr
    assert "Nothing was written" in shown.stdout
    assert "n1, n2 are given up" in shown.stdout
    other = struck.recover("--data", str(struck.data("n3")), "--lose", "another")
    assert other.returncode == ExitCode.USAGE
    done = struck.recover("--data", str(struck.data("n3")), "--lose", GROUP, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["done"], facts["epoch"]) == (True, 1)
    assert [each["id"] for each in facts["given_up"]] == ["n1", "n2"]
    again = struck.recover("--data", str(struck.data("n3")), "--lose", GROUP, "--json")
    assert (again.returncode, again.stdout) == (0, done.stdout)

    struck.start(struck.folder / "n3" / "node.toml")
    struck.until(struck.at("n3"), "it doesn't serve", serving=True)
    load.goes_on()
    for name in ("n1", "n2"):  # machines of the same names, on new disks
        struck.start(struck.folder / name / "node.toml")
        struck.until(struck.at(name), "it doesn't stand by", role="unformed")
    words = [word for name in ("n1", "n2") for word in (name, struck.at(name))]
    added = struck.command("member", "add", *words, "--bootstrap", struck.at("n3"))
    assert added.returncode == 0, added.stderr
    load.goes_on()

    old = _put_back(struck, kept)
    out = struck.until(old, "it takes part", role=OUT_OF_SERVICE_ROLE)
    assert [each.hex() for each in out.divergence.recoveries] == [facts["recovery_id"]]
    load.goes_on()
    load.end()
    assert not load.errors, load.errors
    assert all(error.outcome is Outcome.MAY_HAVE_HAPPENED for error in load.failed), load.failed
    with BlockingClient.connect(struck.bootstrap) as client:
        consumer = client.pull_consumer("t", start=StartFrom.FIRST, idle_timeout_s=1)
        found = [message.body for message in consumer]
    assert len(set(found)) == len(found)
    assert found == sorted(found, key=int)
    missing = [body for body in load.acknowledged if body not in set(found)]
    assert set(missing) <= set(load.acknowledged[lost_from - 2 : lost_from + 2]), missing
    _make_anew(struck, tmp_path / "backup", found, facts["index"])


def _make_anew(struck: Struck, folder: Path, found: list[bytes], forced: int) -> None:
    """The recovered group's backup holds the forced entry, and what is made of it everything."""
    taken = struck.command("group", "backup", str(folder), "--bootstrap", struck.bootstrap)
    assert taken.returncode == 0, taken.stderr
    verified = struck.command("log", "dump", "--data", str(folder), "--json")
    assert verified.returncode == 0, verified.stderr
    entries = [json.loads(line) for line in verified.stdout.splitlines()]
    (kind,) = (each["kind"] for each in entries if each.get("index") == forced)
    assert kind == "configuration"
    config = _beside(struck, folder.parent / "new", {"broker_group": "anew", "node_id": "m1"})
    made = struck.command("group", "restore", str(folder), "--config", str(config))
    assert made.returncode == 0, made.stderr
    address = load_config(config).listen
    struck.start(config)
    struck.until(address, "it doesn't serve", serving=True)
    with BlockingClient.connect(address) as client:
        consumer = client.pull_consumer("t", start=StartFrom.FIRST, idle_timeout_s=1)
        assert [message.body for message in consumer] == found


def _put_back(struck: Struck, kept: Path) -> str:
    """n1's old disk runs again, on a machine of its own; its address."""
    file = _beside(struck, kept.parent / "old", {"data_directory": kept})
    struck.start(file)
    return load_config(file).listen


def _beside(struck: Struck, home: Path, changes: dict[str, Any]) -> Path:
    """The configuration of one more node, in a folder of its own, as n1's with `changes`; its
    file."""
    config = load_config(struck.folder / "n1" / "node.toml")
    port, metrics = free_ports(2)
    address = f"127.0.0.1:{port}"
    home.mkdir()
    name = changes.get("node_id", "n1")
    changed = config.model_copy(
        update={
            "data_directory": home / "data",
            "listen": address,
            "metrics_listen": f"127.0.0.1:{metrics}",
            "peers": {**config.peers, "n1": address} if name == "n1" else {name: address},
            **changes,
        }
    )
    (home / "node.toml").write_text(dump_toml(changed, home), encoding="utf-8")
    return home / "node.toml"


def test_nobody_is_given_up_while_a_majority_is_there(struck: Struck) -> None:
    """It runs, or it lies in directories on which its nodes would start."""
    load = Load(struck.bootstrap)
    load.goes_on()
    load.end()
    struck.kill("n1")
    struck.kill("n2")
    reached = struck.recover("--data", str(struck.data("n1")))
    assert reached.returncode == ExitCode.FAILED
    assert "n3 can be reached, and with n1 that is a majority" in reached.stderr
    struck.kill("n3")
    both = struck.recover(
        *("--data", str(struck.data("n1")), "--data", str(struck.data("n2")), "--lose", GROUP)
    )
    assert both.returncode == ExitCode.FAILED
    assert "with n2 it is a majority: nothing is lost for ever" in both.stderr
    nothing = struck.recover("--data", str(struck.folder))
    assert nothing.returncode == ExitCode.FAILED
    assert "isn't a member's" in nothing.stderr
