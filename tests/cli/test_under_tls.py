"""Every command that dials a node, against nodes that talk under TLS alone.

Clients show certificates, and clients, peers and administration have an address each. Commands are
given what a user has at hand: where the clients of one node come in.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from audit.commands.selection import wanted_replicas
from audit.engines.choice import EngineName
from broker.config import NodeConfig, dump_toml
from broker.local_group.process import ProcessIdentity
from dledger.reading.entry import HEADER_SIZE
from dledger.terminal.tls import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE
from dledger_cli.app import PROGRAMS, app
from tests.certificates import Authority
from tests.integration.group import free_ports
from tests.warm import kill, node

pytestmark = pytest.mark.slow

NAMES = ("n1", "n2", "n3")
WAIT_S = 90.0
PAUSE_S = 0.2  # the nodes' own start needs the processors


@dataclass
class Machines:
    """Three nodes as processes, each with a folder that could be a machine's."""

    folder: Path
    configs: dict[str, NodeConfig]
    processes: dict[str, ProcessIdentity] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, authority: Authority) -> Machines:
        ports = iter(free_ports(9))
        at = {name: [f"127.0.0.1:{next(ports)}" for _ in range(3)] for name in NAMES}
        configs = {
            name: NodeConfig.model_validate(
                {
                    "broker_group": "g1",
                    "node_id": name,
                    "data_directory": str(folder / name / "data"),
                    "listen": at[name][0],
                    "peer_listen": at[name][1],
                    "admin_listen": at[name][2],
                    "peers": {each: at[each][0] for each in NAMES},
                    "dial": {each: at[each][1] for each in NAMES if each != name},
                    "tls": {**authority.node(name), "client_certificates": "required"},
                    "store": {"segment_size_bytes": 8 << 20, "reserve_bytes": 0},
                }
            )
            for name in NAMES
        }
        for name, config in configs.items():
            (folder / name).mkdir()
            (folder / name / "node.toml").write_text(dump_toml(config, folder / name))
        return cls(folder, configs)

    def start(self, name: str) -> None:
        home = self.folder / name
        self.processes[name] = node(home / "node.toml", home / "node.log")

    def kill(self, name: str) -> None:
        kill(self.processes.pop(name))

    @property
    def bootstrap(self) -> str:
        return self.configs["n1"].listen


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certs") / "certs")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Machines]:
    """A group that isn't formed yet; nothing runs afterwards."""
    made = Machines.make(tmp_path_factory.mktemp("machines"), authority)
    try:
        for name in NAMES:
            made.start(name)
        yield made
    finally:
        for name in list(made.processes):
            made.kill(name)


@pytest.fixture(autouse=True)
def certificates(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shell that talks to this group all day has set."""
    files = authority.client() if not (authority.folder / "client.pem").exists() else None
    assert files is None or files.certificate is not None
    monkeypatch.setenv(CA_VARIABLE, str(authority.ca))
    monkeypatch.setenv(CERTIFICATE_VARIABLE, str(authority.folder / "client.pem"))
    monkeypatch.setenv(KEY_VARIABLE, str(authority.folder / "client.key"))


def invoked(*arguments: str) -> tuple[int, str, str]:
    """Exit code and both outputs of a command, run within this process."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def told(*arguments: str) -> str:
    """What a command that must succeed prints."""
    code, out, error = invoked(*arguments)
    assert code == 0, (arguments, out, error)
    return out


def dialing() -> set[str]:
    """Every command that can be told where nodes are."""
    found = set()
    commands = [
        (f"{name} ", typer.main.get_command(part.load())) for name, part in PROGRAMS.items()
    ]
    while commands:
        name, command = commands.pop()
        parts: dict[str, Any] = getattr(command, "commands", {})
        commands += [(f"{name}{each} ", part) for each, part in parts.items()]
        if any("--bootstrap" in option.opts for option in command.params):
            found.add(name.strip())
    return found


# In their order; {…} is filled in. What is done to the group comes before what looks at it.
TABLE: dict[str, list[str]] = {
    "group init": [],
    "group status": ["--json"],
    "member list": ["--json"],
    "group transfer": ["n2"],
    "group priority": ["n2", "--json"],
    "topic create": ["t", "--queues", "1"],
    "topic update": ["t", "--retention-hours", "5"],
    "topic stats": ["t", "--interval", "0", "--json"],
    "topic list": ["--json"],
    "group doctor": ["--json"],
    "topic describe": ["t"],
    "produce": ["t", "--input", "{lines}", "--json"],
    "consume": ["t", "--max", "2", "--group", "readers", "--output", "{out}"],
    "consumers list": ["--json"],
    "consumers clone": ["readers", "copy", "--json"],
    "consumers describe": ["copy", "--interval", "0", "--json"],
    "consumers reset-offset": ["copy", "t", "--to", "first", "--json"],
    "consumers skip": ["copy", "t", "--all", "--json"],
    "query offset": ["t", "0", "0", "--json"],
    "query id": ["{message_id}"],
    "dlq list": ["readers", "--json"],
    "audit replicas": ["--over", "grpc", "--json", "--processes", "1"],
    "group backup": ["{backup}", "--json"],
    "audit delivery": ["--history", "{history}", "--processes", "1"],
    "topic delete": ["t"],
    "log repair": ["--data", "{rotten}", "--json"],
    "group replace": ["{follower}", "--wait", "30", "--json"],
}
# What `produce` has sent, as one who hasn't heard of it, and what `consume` got: without that it
# would prove nothing.
IN_DOUBT = (
    '{"time_us":1,"event":"invoke","op":0,"process":"p","action":"send","topic":"t","queue_id":0,'
    '"sequence":0,"values":["one","two"]}\n'
    '{"time_us":2,"event":"invoke","op":1,"process":"c","action":"poll","topic":"t","queue_id":0,'
    '"offset":0}\n'
    '{"time_us":3,"event":"ok","op":1,"result":[[0,"one"],[1,"two"]]}\n'
)
BY_ITSELF = "audit watch"  # goes on until it is ended
# They take their time, and connect alike: tests/bench/test_under_tls.py has one of them; the others
# dial as `member list` and `group replace` do.
CHANGES = {
    "member add": ["n4", "127.0.0.1:1"],
    **{key: ["n2"] for key in ("member remove", "member promote")},
    **{key: ["n2"] for key in ("member demote", "member replace")},
}
# What a group that is well refuses: that it is reached shows in the refusal.
LAST_RESORT = "member recover"
# There are no dead letters; `dlq list` is asked the same way.
DEAD = {"dlq show": ["g", "0"], "dlq resend": ["g", "0"]}
BENCHES = [f"bench {name}" for name in ("produce", "consume", "push", "pop", "rebalance", "e2e")]
ALIKE = (*BENCHES, *DEAD, *CHANGES)


def test_table_has_every_command_that_dials() -> None:
    """A new one has to be seen under TLS as well."""
    assert dialing() == {*TABLE, BY_ITSELF, LAST_RESORT, *ALIKE}


def test_every_command_works_under_tls(machines: Machines, tmp_path: Path) -> None:
    """Given the clients' address of one node, which tells where the rest is."""
    words = {name: str(tmp_path / name) for name in ("lines", "out", "history", "backup")}
    (tmp_path / "lines").write_text("one\ntwo\n")
    (tmp_path / "history").write_text(IN_DOUBT)
    wait_until_all_answer(machines)
    said: dict[str, str] = {}
    for name, arguments in TABLE.items():
        if name == "group replace":
            words["follower"] = a_disk_is_lost(machines)
        if name == "log repair":
            follower = a_log_rots(machines)
            words["rotten"] = str(machines.folder / follower / "data")
        given = [word.format_map(words) for word in arguments]
        said[name] = told(*name.split(), *given, "--bootstrap", machines.bootstrap)
        if name == "group init":
            wait_until_served(machines)
        elif name == "log repair":
            machines.start(follower)
            wait_until_all_answer(machines)
        elif name == "query offset":
            words["message_id"] = json.loads(said[name])["message_id"]
    assert len(json.loads(said["group status"])["nodes"]) == 3
    assert json.loads(said["consumers skip"]) == [{"queue_id": 0, "before": 0, "offset": 2}]
    assert json.loads(said["group doctor"])["asked"] == list(NAMES)
    assert (tmp_path / "out").read_bytes() == b"one\ntwo\n"
    audited = json.loads(said["audit replicas"])
    assert (audited["verdict"], len(audited["coverage"])) == ("identical", 3)
    assert json.loads(said["group backup"])["silent"] == []
    place, total = (json.loads(line) for line in said["log repair"].splitlines())
    assert place["source"] in NAMES
    assert (total["repaired"], total["left"], total["verdict"]) == (1, 0, "sound")
    assert json.loads(said["group replace"])["votes"] is True
    admin = ",".join(config.admin_listen or "" for config in machines.configs.values())
    nodes = json.loads(told("group", "status", "--json", "--bootstrap", admin))["nodes"]
    assert sorted(node["id"] for node in nodes) == list(NAMES)  # each once
    assert told("group", "transfer", "--bootstrap", admin).endswith(" leads\n")
    watched(machines, tmp_path)
    nobody_is_given_up(machines)


def nobody_is_given_up(machines: Machines) -> None:
    """A member that is down finds the others, by its own log and under TLS."""
    leader = status_of(machines)["leader"]
    name = next(each for each in ("n3", "n2") if each != leader)
    deadline = time.monotonic() + WAIT_S  # a disk that was taken in is noted as a member's later
    while '"formed"' not in (machines.folder / name / "data" / "identity.json").read_text():
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S)
    machines.kill(name)
    code, _, error = invoked(*LAST_RESORT.split(), "--data", str(machines.folder / name / "data"))
    assert code == 1
    assert "can be reached, and with" in error
    machines.start(name)
    wait_until_all_answer(machines)


def status_of(machines: Machines) -> dict[str, Any]:
    out = invoked("group", "status", "--json", "--bootstrap", machines.bootstrap)[1]
    found: dict[str, Any] = json.loads(out)
    return found


def wait_until_all_answer(machines: Machines) -> None:
    deadline = time.monotonic() + WAIT_S
    while not all(node["alive"] for node in status_of(machines)["nodes"]):
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S)


def wait_until_served(machines: Machines) -> None:
    deadline = time.monotonic() + WAIT_S
    while invoked("group", "status", "--bootstrap", machines.bootstrap)[0] != 0:
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S)


def a_disk_is_lost(machines: Machines) -> str:
    """A follower runs on an empty disk."""
    leader = status_of(machines)["leader"]
    name = next(each for each in ("n3", "n2") if each != leader)
    deadline = time.monotonic() + WAIT_S  # a disk that was taken in is noted as a member's later
    while '"formed"' not in (machines.folder / name / "data" / "identity.json").read_text():
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S)
    machines.kill(name)
    rmtree(machines.folder / name / "data")
    machines.start(name)
    wait_until_all_answer(machines)
    return name


def a_log_rots(machines: Machines) -> str:
    """A follower is dead, and one bit of its log's first entry is another."""
    leader = status_of(machines)["leader"]
    name = next(each for each in ("n3", "n2") if each != leader)
    deadline = time.monotonic() + WAIT_S  # a disk that was taken in is noted as a member's later
    while '"formed"' not in (machines.folder / name / "data" / "identity.json").read_text():
        assert time.monotonic() < deadline
        time.sleep(PAUSE_S)
    machines.kill(name)
    segment = machines.folder / name / "data" / "commitlog" / f"{0:020d}"
    content = bytearray(segment.read_bytes())
    content[HEADER_SIZE] ^= 1
    segment.write_bytes(content)
    return name


def watched(machines: Machines, folder: Path) -> None:
    """`audit watch`, until its first verdict."""
    command = [sys.executable, "-m", "dledger_cli", "audit", "watch", "--every", "1s"]
    command += ["--bootstrap", machines.bootstrap, "--reports", str(folder / "reports")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "identical" in process.stdout.readline().lower()
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


@pytest.mark.parametrize("name", [*TABLE, BY_ITSELF, LAST_RESORT, *ALIKE])
def test_authority_that_is_not_there_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line and exit code 2 from each command, before anything is dialed."""
    monkeypatch.setenv(CA_VARIABLE, str(tmp_path / "nowhere.pem"))
    (tmp_path / "file").write_text("x\n")
    words = dict.fromkeys(("lines", "history", "out", "backup"), str(tmp_path / "file"))
    words |= {
        "message_id": "7F00000100001B5900000000000000F0",
        "follower": "n2",
        "rotten": str(tmp_path),
    }
    given = [word.format_map(words) for word in {**DEAD, **CHANGES, **TABLE}.get(name, [])]
    if name == BY_ITSELF:
        given = ["--reports", str(tmp_path)]
    elif name == LAST_RESORT:
        given = ["--data", str(tmp_path)]
    code, out, error = invoked(*name.split(), *given, "--bootstrap", "127.0.0.1:1")
    assert (code, out) == (2, ""), error
    assert error.startswith("dledger: ")
    assert "nowhere.pem: No such file or directory" in error
    assert error.count("\n") == 1


def test_local_groups_are_audited_in_the_clear(tmp_path: Path) -> None:
    """Whatever the shell has set for another group: silent nodes would be audited as copies."""
    told("group", "up", "--nodes", "1", "--dir", str(tmp_path / "run"))
    try:
        (replica,) = wanted_replicas(None, tmp_path / "run", None, EngineName.LOCAL)
        assert replica.position is not None
    finally:
        told("group", "down", "--dir", str(tmp_path / "run"))
