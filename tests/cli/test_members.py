"""Members of a group of real processes: it grows from one to three and five and shrinks again while
messages are sent, and administrators are told what they may not do."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config import dump_toml, load_config
from broker.local_group import LocalGroup
from broker.local_group.process import ProcessIdentity
from dledger.client import StartFrom
from dledger.client.blocking import BlockingClient
from dledger.terminal.outcome import ExitCode
from tests.cli.called import command
from tests.integration.group import free_ports
from tests.warm import kill, node

pytestmark = pytest.mark.slow

PROGRAM = (sys.executable, "-m", "dledger_cli")
PATIENCE_S = 120.0


class Growing:
    """A local group of one, and nodes beside it that stand by until they are taken in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses: dict[str, str] = {}
        self.processes: dict[str, ProcessIdentity] = {}
        assert self.command("group", "up", "--nodes", "1", "--dir", str(folder)).returncode == 0
        self.group = LocalGroup.open(folder)
        self.addresses["n1"] = self.group.node("n1").address

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return command(*words)

    def member(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`dledger member`, asked of every node that there is."""
        bootstrap = ",".join(self.addresses.values())
        return self.command("member", *words, "--bootstrap", bootstrap)

    def wait_until_led(self) -> None:
        """Somebody leads: after a change or a kill nobody may, for the time of an election."""
        until = time.monotonic() + PATIENCE_S
        while (done := self.member("list")).returncode != 0:
            assert time.monotonic() < until, done.stderr
            time.sleep(0.1)

    def install(self, *names: str) -> list[str]:
        """Nodes run on empty directories, and know of nobody; `ID ADDRESS` of each."""
        return self.take_in(*names, broker_group="local")

    def take_in(self, *names: str, broker_group: str) -> list[str]:
        """As `install`, of a group of that name."""
        words = []
        first = load_config(Path(self.group.node("n1").config))
        for name in names:
            port, metrics = free_ports(2)
            home, address = self.folder / name, f"127.0.0.1:{port}"
            config = first.model_copy(
                update={
                    "broker_group": broker_group,
                    "node_id": name,
                    "data_directory": home / "data",
                    "listen": address,
                    "metrics_listen": f"127.0.0.1:{metrics}",
                    "peers": {name: address},
                }
            )
            home.mkdir()
            (home / "node.toml").write_text(dump_toml(config, home), encoding="utf-8")
            self.addresses[name] = address
            self.start(name)
            words += [name, address]
        for name in names:
            self.wait_until_it_listens(name)
        return words

    def wait_until_it_listens(self, name: str) -> None:
        host, port = self.addresses[name].rsplit(":", 1)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except OSError:
                assert time.monotonic() < until, f"{name} doesn't listen"
                time.sleep(0.1)
            else:
                return

    def start(self, name: str) -> None:
        home = self.folder / name
        self.processes[name] = node(home / "node.toml", home / "output")

    def said(self, name: str) -> str:
        """The last lines of what the process of that node put out."""
        output = self.folder / name / "output"
        return "\n".join(output.read_text(errors="replace").splitlines()[-20:])

    def stop(self, name: str) -> None:
        if name == "n1":
            self.group.signal("n1", signal.SIGKILL)
        else:
            kill(self.processes.pop(name))
        self.addresses.pop(name)

    def roles(self) -> dict[str, str]:
        facts = json.loads(self.member("list", "--json").stdout)
        assert not facts["joint"]
        return {each["id"]: each["role"] for each in facts["members"]}

    def close(self) -> None:
        for process in self.processes.values():
            kill(process)
        self.group.kill_all()


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    group = Growing(tmp_path / "run")
    yield group
    group.close()


class Load:
    """Somebody who sends all the time, one message after the other; notes how long each took."""

    def __init__(self, bootstrap: str) -> None:
        self.sent: list[bytes] = []
        self.took_s: list[float] = []
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
                        body = b"%d" % len(self.sent)
                        begun = time.monotonic()
                        producer.send("t", body).result(timeout=60)
                        self.took_s.append(time.monotonic() - begun)
                        self.sent.append(body)
        except Exception as error:  # noqa: BLE001  told by whoever reads
            self.errors.append(error)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


def test_group_grows_to_five_and_shrinks_to_one_under_load(growing: Growing) -> None:
    """Nothing that was acknowledged is lost, or there twice, or in another order; and the one that
    is left isn't the one that there was."""
    load = Load(growing.addresses["n1"])
    worst: list[tuple[str, float]] = []
    steps: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
        ("1 to 3", ("add",), ("n2", "n3")),
        ("3 to 5", ("add",), ("n4", "n5")),
        ("5 to 3", ("remove", "n1", "n2"), ()),
        ("3 to 2", ("remove", "n3"), ()),
        ("2 to 1", ("remove", "n4"), ()),
    ]
    gone = {"5 to 3": ("n1", "n2"), "3 to 2": ("n3",), "2 to 1": ("n4",)}
    for name, words, fresh in steps:
        installed = growing.install(*fresh)
        seen = len(load.took_s)
        growing.wait_until_led()
        done = growing.member(*words, *installed)
        assert done.returncode == 0, (name, done.stdout, done.stderr)
        assert not load.errors, load.errors
        until = time.monotonic() + PATIENCE_S
        while len(load.took_s) < seen + 5:
            assert time.monotonic() < until, name
            time.sleep(0.1)
        worst.append((name, max(load.took_s[seen:])))
        for each in gone.get(name, ()):
            growing.stop(each)
    load.end()
    assert not load.errors, load.errors
    assert growing.roles() == {"n5": "voter"}
    with BlockingClient.connect(growing.addresses["n5"]) as client:
        consumer = client.pull_consumer("t", start=StartFrom.FIRST, idle_timeout_s=1)
        assert [message.body for message in consumer] == load.sent
    usual = statistics.median(load.took_s) * 1000
    print(f"\n{len(load.sent)} sent, median {usual:.1f} ms; longest send while the group went")
    for name, took_s in worst:
        print(f"  from {name}: {took_s * 1000:.0f} ms")


def test_administrators_are_told_what_they_may_not(growing: Growing) -> None:
    words = growing.install("n2")
    refused = growing.member("remove", "n1")
    assert refused.returncode == ExitCode.FAILED
    assert "nobody would be left to vote" in refused.stderr
    gone = growing.member("remove", "n9")
    assert gone.returncode == 0, "it is so already"
    assert "n9 is no member: n1 are" in gone.stderr
    assert growing.member("remove", "n1", "n9").returncode == ExitCode.FAILED
    assert "n1, not n2" in growing.member("add", "n2", growing.addresses["n1"]).stderr
    assert growing.member("add", "n2").returncode != 0
    assert growing.member("add", *words, "--observe").returncode == 0
    assert growing.roles() == {"n1": "voter", "n2": "observer"}
    assert growing.member("add", *words, "--observe").returncode == 0, "it is so already"
    assert growing.member("promote", "n2").returncode == 0
    assert growing.roles() == {"n1": "voter", "n2": "voter"}
    # Two at once: one is told, by name, what the other is doing.
    more = growing.install("n3")
    both = [
        subprocess.Popen(
            [*PROGRAM, "member", *asked, "--bootstrap", growing.addresses["n1"]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for asked in (("add", *more), ("demote", "n2"))
    ]
    told = [(each.communicate(timeout=PATIENCE_S)[0], each.returncode) for each in both]
    assert any(code == 0 for _, code in told), (told, growing.said("n2"), growing.said("n3"))
    for text, code in told:
        assert code == 0 or "is under way" in text or "is being taken in" in text, told


def test_a_node_of_another_group_of_the_same_name_is_refused(growing: Growing) -> None:
    """Names don't tell groups apart. Its log would be taken for the beginning of this one's, and it
    would vote; it is refused, in the place of a lost disk as well, and both groups go on."""
    words = growing.install("n2")
    at = growing.addresses.pop("n2")
    ours = growing.addresses["n1"]
    assert growing.command("group", "init", "--bootstrap", at).returncode == 0
    until = time.monotonic() + PATIENCE_S
    while growing.command("group", "status", "--bootstrap", at).returncode != 0:
        assert time.monotonic() < until, growing.said("n2")
        time.sleep(0.1)
    refused = growing.command("member", "add", *words, "--bootstrap", ours)
    assert refused.returncode == ExitCode.FAILED
    assert "n2 holds a log" in refused.stderr
    assert "empty its directory" in refused.stderr
    both = growing.command("member", "list", "--bootstrap", f"{ours},{at}")
    assert (both.returncode, both.stdout.count("n1"), both.stdout.count("n2")) in (
        (0, 1, 0),
        (0, 0, 1),
    ), "each leads its own; nobody is a member of both"
    assert growing.roles() == {"n1": "voter"}
    # And once more in the place of a member's disk that was lost.
    growing.addresses["n2"] = at
    kill(growing.processes["n2"])
    data = growing.folder / "n2" / "data"
    data.rename(growing.folder / "n2" / "foreign")
    growing.start("n2")
    growing.wait_until_it_listens("n2")
    for _ in range(2):
        assert growing.member("add", *words, "--observe").returncode == 0
    kill(growing.processes["n2"])
    shutil.rmtree(data)
    (growing.folder / "n2" / "foreign").rename(data)
    growing.start("n2")
    growing.wait_until_it_listens("n2")
    replaced = growing.command("member", "replace", "n2", "--bootstrap", ours)
    assert replaced.returncode == ExitCode.FAILED, replaced
    assert "n2 holds a log" in replaced.stderr


def test_a_member_that_was_let_go_may_come_back_with_its_log(growing: Growing) -> None:
    """What it holds is the beginning of the group's; taking it back is the opposite command."""
    words = growing.install("n2")
    assert growing.member("add", *words).returncode == 0
    assert growing.member("remove", "n2").returncode == 0
    back = growing.member("add", *words)
    assert back.returncode == 0, back.stderr
    assert growing.roles() == {"n1": "voter", "n2": "voter"}


def test_a_member_that_is_lost_is_replaced(growing: Growing) -> None:
    """The same command as `group replace`, on a member that was taken in."""
    assert growing.member("add", *growing.install("n2", "n3")).returncode == 0
    kill(growing.processes["n3"])
    shutil.rmtree(growing.folder / "n3" / "data")
    growing.start("n3")
    growing.wait_until_it_listens("n3")
    # The leader may believe for an election timeout that the lost disk answers.
    done = growing.member("replace", "n3")
    assert done.returncode == 0, done.stderr
    assert growing.roles() == {"n1": "voter", "n2": "voter", "n3": "voter"}
    # And nobody leads for a moment when the leader is gone.
    growing.stop("n1")
    gone = growing.command("member", "remove", "n1", "--bootstrap", growing.addresses["n2"])
    assert gone.returncode == 0, gone.stderr
    assert "n1" not in gone.stdout


def test_doctor_knows_members_that_come_and_go(growing: Growing) -> None:
    """Who stands by, who observes, and who was taken out and runs on, each as what it is."""

    def found(*wanted: str) -> list[str]:
        """What the doctor says once it says this, of the nodes that run."""
        until = time.monotonic() + 60
        while True:
            asked = ("group", "doctor", "--json", "--bootstrap", bootstrap())
            said = json.loads(text := growing.command(*asked).stdout)
            kinds = [f"{each['kind']} {each['member']}" for each in said["findings"]]
            if kinds == list(wanted):
                assert (said["exit_code"] == 0) is not bool(wanted)
                return [each["remedy"] for each in said["findings"]]
            assert time.monotonic() < until, text
            time.sleep(0.5)

    def bootstrap() -> str:
        return ",".join(growing.addresses.values())

    words = growing.install("n2", "n3")
    remedies = found("no member yet n2", "no member yet n3")
    assert all("dledger member add" in each for each in remedies)
    assert growing.member("add", *words, "--observe").returncode == 0
    found()
    assert growing.member("promote", "n2", "n3").returncode == 0
    found()
    assert growing.member("remove", "n3").returncode == 0
    assert found("no member any more n3") == ["stop n3, and empty its directory"]
    growing.stop("n3")
    found()
