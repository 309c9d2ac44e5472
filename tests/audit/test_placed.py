"""Replicas of several hosts under one path: nobody reads another's files for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from audit.contents.export import export_messages
from audit.contents.stats import sum_log
from audit.delivery.check import audit_delivery
from audit.engines import placed
from audit.engines.engine import LocalEngine
from audit.engines.placed import PlacedEngine
from audit.engines.spark import names_of
from audit.errors import NotBesideFiles, UsageMistake
from audit.proof.findings import Cause, Verdict
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report
from audit.reading.replica import Replica
from dledger.outcome import ExitCode
from dledger.reading import files, here
from dledger.reading.here import is_this_machine
from tests.audit.replicas import BLOCK, ReplicaSet
from tests.audit.test_scope import zero_units
from tests.audit.test_table import expected_rows

NAMES = ("n1", "n2", "n3")
PASSES = ("survey", "digest_blocks", "scan_segment", "read_chains", "check_ends", "judge_start")


class Hosts(LocalEngine):
    """A machine a replica, each with its own files under one path, which leads to those of the
    machine that a task is on.

    Args:
        chosen: the machine on which a task of a pass, of a host, runs the so-maniest time.
    """

    is_spread = True

    def __init__(
        self, three: ReplicaSet, patch: pytest.MonkeyPatch, chosen: Callable[[str, str, int], str]
    ) -> None:
        super().__init__(processes=1)
        self._three = three
        self._chosen = chosen
        self._path = next(iter(three.paths.values())).parent / "data"
        self._here = ""
        self.been: list[str] = []
        self._times: Counter[tuple[str, object]] = Counter()
        for module in (placed, files):
            patch.setattr(module, "machine", lambda: self._here)
        patch.setattr(placed, "is_this_machine", lambda host: host == f"host-{self._here}")

    @property
    def replicas(self) -> list[Replica]:
        return [Replica(name, str(self._path), f"host-{name}") for name in NAMES]

    def go_to(self, name: str) -> None:
        """This process is on that machine now."""
        self.been.append(name)
        self._here = name
        self._path.unlink(missing_ok=True)
        self._path.symlink_to(self._three.paths[name])

    def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
        done = []
        name = (work.args[0] if isinstance(work, partial) else work).__name__
        for task in tasks:
            key = name, getattr(task, "task", task)
            self._times[key] += 1
            self.go_to(self._chosen(name, task.host.removeprefix("host-"), self._times[key]))
            done += super().run(work, [task], progress)
        return done


def audit(hosts: Hosts) -> Report:
    return audit_replicas(hosts.replicas, hosts, Options(block_size=BLOCK)).report


def stolen(name: str | None, times: int = 1) -> Callable[[str, str, int], str]:
    """Tasks of that pass, or of all, are on n1's machine so many times."""
    return lambda work, of, time: "n1" if name in (work, None) and time <= times else of


@pytest.mark.parametrize("name", [*PASSES, None])
def test_task_on_another_machine_is_given_out_again(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """What n2's machine has is found wrong, whichever tasks came to n1's at first; and nobody is
    said to share a file."""
    zero_units(three.paths["n2"], "orders@1/0", 3, 5)
    three.flip("n2", three.header_of(after=20_000).physical_offset + 70)
    alone = audit(Hosts(three, monkeypatch, lambda work, of, time: of))
    report = audit(Hosts(three, monkeypatch, stolen(name)))
    assert {each.replicas for each in report.findings} == {("n2",)}
    assert {each.cause for each in report.findings} >= {Cause.QUEUE_MISSING, Cause.BAD_CRC}
    assert report.findings == alone.findings


def test_tasks_that_wander_make_no_healthy_replicas_suspect(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: as long as one comes to its machine each time."""
    report = audit(Hosts(three, monkeypatch, stolen(None, times=placed.MAX_IDLE_ROUNDS - 1)))
    assert (report.findings, report.verdict) == ((), Verdict.IDENTICAL)


@pytest.mark.parametrize("name", [*PASSES[:2], *PASSES[3:]])
def test_host_without_an_executor_is_no_replica_that_agrees(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its tasks run elsewhere: there is nothing to say, and that may pass."""
    with pytest.raises(NotBesideFiles) as caught:
        audit(Hosts(three, monkeypatch, stolen(name, times=1 << 30)))
    assert caught.value.exit_code == ExitCode.INCOMPLETE
    assert caught.value.retriable
    assert caught.value.hosts[-2:] == ("host-n2", "host-n3")


def test_two_replicas_of_a_host_are_read_on_one_machine(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first of them was, though a cluster has two machines of that name."""
    order = iter(["n3", "n2", "n3"])
    hosts = Hosts(three, monkeypatch, lambda work, of, time: next(order))
    monkeypatch.setattr(placed, "is_this_machine", lambda host: True)
    tasks = [Where("host-n2"), Where("host-n2")]
    assert PlacedEngine(hosts).run(where, tasks) == ["n3", "n3"]
    assert next(order, None) is None


@pytest.mark.parametrize("name", [*PASSES[1:4], None])
def test_containers_of_one_kernel_are_several_machines(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    """Each later task is asked for the host's name, too, and not the first alone."""
    zero_units(three.paths["n2"], "orders@1/0", 3, 5)
    three.flip("n2", three.header_of(after=20_000).physical_offset + 70)
    hosts = Hosts(three, monkeypatch, stolen(name))
    for module in (placed, files):
        monkeypatch.setattr(module, "machine", lambda: "the kernel")
    report = audit(hosts)
    assert {each.replicas for each in report.findings} == {("n2",)}
    assert {each.cause for each in report.findings} >= {Cause.QUEUE_MISSING, Cause.BAD_CRC}


def read_by(hosts: Hosts, replica: Replica, target: Path, command: str) -> int:
    """How many messages the command finds."""
    if command == "export":
        return export_messages(replica, target / "out", hosts).messages
    return sum(each.messages for each in sum_log(replica, hosts).queues.values())


@pytest.mark.parametrize("command", ["export", "stats"])
def test_messages_are_read_on_their_replicas_machine(
    three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A task that came to n1's, whose log is rotten, is given out again."""
    pytest.importorskip("pyarrow", reason="the audit extra is not installed")
    three.flip("n1", three.header_of(after=20_000).physical_offset + 70)
    hosts = Hosts(three, monkeypatch, stolen(None))
    hosts.go_to("n2")
    replica = hosts.replicas[1]
    assert read_by(hosts, replica, tmp_path, command) == len(expected_rows(three))
    assert NAMES[0] in hosts.been
    nowhere = Hosts(three, monkeypatch, stolen(None, times=1 << 30))
    nowhere.go_to("n2")
    with pytest.raises(NotBesideFiles):
        read_by(nowhere, replica, tmp_path / "nowhere", command)


@pytest.mark.parametrize("command", ["export", "stats"])
def test_a_command_reads_no_replica_of_another_machine(
    three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """What lies at its path here would tell its executors what to read."""
    pytest.importorskip("pyarrow", reason="the audit extra is not installed")
    hosts = Hosts(three, monkeypatch, lambda work, of, time: of)
    hosts.go_to("n1")
    with pytest.raises(UsageMistake, match="n2 lies on host-n2, and this command reads its log"):
        read_by(hosts, hosts.replicas[1], tmp_path, command)
    assert not (tmp_path / "out").exists()


def test_tasks_that_run_anywhere_read_no_host(
    three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a delivery audit do on a cluster; on the local engine all of it is here."""
    history = tmp_path / "history.jsonl"
    history.write_text("")
    hosts = Hosts(three, monkeypatch, lambda work, of, time: of)
    with pytest.raises(UsageMistake, match="n1 on host-n1, n2 on host-n2, n3 on host-n3: on a"):
        audit_delivery(hosts.replicas, [str(history)], hosts)
    named = Replica("n1", str(three.paths["n1"]), "x.invalid")
    assert audit_delivery([named], [str(history)], LocalEngine(processes=1)).replica == "n1"


class Where:
    """Says where it is."""

    weight = 1

    def __init__(self, host: str) -> None:
        self.host = host


def where(task: Where) -> str:
    return files.machine()


def test_local_engine_asks_for_no_name(three: ReplicaSet) -> None:
    """All of it is here, whatever hosts are called."""
    replicas = [
        Replica(name, str(path), f"of-{name}.invalid") for name, path in three.paths.items()
    ]
    report = audit_replicas(replicas, LocalEngine(processes=1)).report
    assert report.verdict is Verdict.IDENTICAL


@pytest.mark.parametrize(
    ("host", "is_it"),
    [("127.0.0.1", True), ("127.0.0.9", True), ("192.0.2.1", False), ("x.invalid", False)],
)
def test_machine_knows_its_own_addresses(host: str, is_it: bool) -> None:
    """TEST-NET-1 is nobody's."""
    assert is_this_machine(host) is is_it


@pytest.mark.parametrize(
    ("host", "is_it"), [("127.0.0.1", True), ("127.0.0.9", True), ("192.0.2.1", False)]
)
def test_an_address_that_may_be_had_for_others_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, is_it: bool
) -> None:
    """Where `ip_nonlocal_bind` is set, as beside floating addresses, any one can be bound."""
    allowed = tmp_path / "ip_nonlocal_bind"
    allowed.write_text("1\n")
    monkeypatch.setattr(here, "NONLOCAL", dict.fromkeys(here.NONLOCAL, str(allowed)))
    monkeypatch.setattr(here, "_can_be_bound", lambda family, address: True)
    assert is_this_machine(host) is is_it


def test_executor_is_preferred_under_each_name_of_its_host() -> None:
    """Nodes are told by address, executors register by name, or the other way round."""
    known = ["127.0.0.1", "192.0.2.7", "x.invalid"]
    assert names_of("localhost", known) == ["localhost", "127.0.0.1"]
    assert names_of("192.0.2.7", known) == ["192.0.2.7"]
    assert names_of("y.invalid", known) == ["y.invalid"]
