"""Replicas of several hosts under one path: nobody reads another's files for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from audit.engines import placed
from audit.engines.engine import LocalEngine
from audit.engines.placed import PlacedEngine, is_this_machine
from audit.engines.spark import names_of
from audit.errors import NotBesideFiles
from audit.proof.findings import Cause, Verdict
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Report
from audit.reading.replica import Replica
from dledger.outcome import ExitCode
from dledger.reading import files
from tests.audit.replicas import BLOCK, ReplicaSet
from tests.audit.test_scope import zero_units

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
        self._times: Counter[tuple[str, object]] = Counter()
        for module in (placed, files):
            patch.setattr(module, "machine", lambda: self._here)
        patch.setattr(placed, "is_this_machine", lambda host: host == f"host-{self._here}")

    @property
    def replicas(self) -> list[Replica]:
        return [Replica(name, str(self._path), f"host-{name}") for name in NAMES]

    def run(self, work, tasks, progress=lambda weight: None):  # type: ignore[no-untyped-def]
        done = []
        name = (work.args[0] if isinstance(work, partial) else work).__name__
        for task in tasks:
            key = name, getattr(task, "task", task)
            self._times[key] += 1
            self._here = self._chosen(name, task.host.removeprefix("host-"), self._times[key])
            self._path.unlink(missing_ok=True)
            self._path.symlink_to(self._three.paths[self._here])
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


def test_executor_is_preferred_under_each_name_of_its_host() -> None:
    """Nodes are told by address, executors register by name, or the other way round."""
    known = ["127.0.0.1", "192.0.2.7", "x.invalid"]
    assert names_of("localhost", known) == ["localhost", "127.0.0.1"]
    assert names_of("192.0.2.7", known) == ["192.0.2.7"]
    assert names_of("y.invalid", known) == ["y.invalid"]
