"""The watch: reports, metrics, what it survives; and asking nodes that run."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from prometheus_client import generate_latest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.commands.watch import parse_duration
from audit.commands.watching import Bounds, Watch, WatchMetrics
from audit.engines.engine import LocalEngine
from audit.errors import Unreachable, UsageMistake
from audit.keeping.history import Round
from audit.keeping.store import FILE, WatchStore
from audit.proof.findings import Cause, Verdict
from audit.proof.replicas import Options, audit_replicas
from audit.proof.report import Audit
from audit.reading.live import Over, replicas_of_directory, replicas_of_group
from audit.reading.replica import Replica
from dledger.outcome import ExitCode
from dledger.reading.survey import Position
from dledger.wire.cluster_pb2 import GetStatusRequest, NodeStatus
from tests.audit.replicas import BLOCK, ReplicaSet


def watch_of(
    three: ReplicaSet, folder: Path, rounds: int
) -> tuple[Watch, WatchMetrics, list[str], list[float]]:
    """A watch that ends after so many rounds; an audit takes 7 s of its clock."""
    now = [1_700_000_000.0]
    said: list[str] = []
    waits: list[float] = []

    def audit() -> Audit:
        now[0] += 7
        return audit_replicas(three.replicas, LocalEngine(), Options(block_size=BLOCK))

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        now[0] += seconds
        return len(waits) == rounds

    metrics = WatchMetrics()
    watch = Watch(
        audit, folder, metrics, kept=2, clock=lambda: now[0], steady=lambda: now[0], wait=wait,
        told=said.append,
    )  # fmt: skip
    return watch, metrics, said, waits


def test_watch_keeps_its_pace_and_its_last_reports(three: ReplicaSet, tmp_path: Path) -> None:
    """From begin to begin; two reports stay, and files of others are left alone."""
    folder = tmp_path / "audits"
    folder.mkdir()
    (folder / "audit-mine.json").touch()
    watch, _, said, waits = watch_of(three, folder, rounds=4)
    watch.run(60)
    assert waits == [53, 53, 53, 53]
    names = sorted(path.name for path in folder.iterdir())
    assert [name.rpartition(".")[2] for name in names] == ["html", "json", "html", "json", "json"]
    assert "audit-mine.json" in names
    report = json.loads((folder / names[1]).read_text(encoding="utf-8"))
    assert report["verdict"] == "identical"
    assert len(said) == 4


def test_rounds_that_end_within_a_second_have_a_report_each(
    three: ReplicaSet, tmp_path: Path
) -> None:
    """The later ones are numbered, and are the later ones, whatever has gone before; so it is where
    the clock is set back to a second that has a report."""
    wall = 1_700_000_000.0
    watch, *_ = watch_of(three, tmp_path / "audits", rounds=1)
    watch._clock = lambda: wall
    stamp, told = f"audit-{datetime.fromtimestamp(wall, UTC):%Y%m%dT%H%M%SZ}", list[str]()
    watch._told = told.append
    for number in range(1, 13):
        watch.once()
        newest = [stamp if n == 1 else f"{stamp}-{n}" for n in (number - 1, number) if n]
        found = {path.name for path in (tmp_path / "audits").iterdir()}
        assert found == {f"{name}.{kind}" for name in newest for kind in ("json", "html")}
        assert told[-1].endswith(f"{newest[-1]}.html")
    wall += 3600
    watch.once()
    wall -= 3600
    watch.once()
    named = sorted(path.stem for path in (tmp_path / "audits").glob("*.json"))
    assert named == sorted([f"{stamp}-12", f"{stamp}-13"])


def test_watch_that_was_started_wrongly_ends(three: ReplicaSet, tmp_path: Path) -> None:
    """A mistake of use in the first audit is the user's; in a later one it is the world's."""
    watch, metrics, said, _ = watch_of(three, tmp_path, rounds=2)
    identity = tmp_path / "n1" / "identity.json"
    kept = identity.read_bytes()
    identity.write_bytes(kept.replace(b'"group": "g"', b'"group": "other"'))
    with pytest.raises(UsageMistake):
        watch.run(60)
    assert said == []
    identity.write_bytes(kept)
    watch.once()
    identity.write_bytes(kept.replace(b'"group": "g"', b'"group": "other"'))
    watch.run(60)
    assert [line.partition(":")[0] for line in said] == ["identical", "failed", "failed"]
    assert 'outcome="failed"} 2.0' in generate_latest(metrics.registry).decode()


def test_report_that_cannot_be_kept_hides_no_verdict(three: ReplicaSet, tmp_path: Path) -> None:
    """Prometheus is told, and the watch goes on."""
    folder = tmp_path / "audits"
    folder.touch()
    three.flip("n2", three.header_of(after=20_000).physical_offset + 80)
    watch, metrics, said, _ = watch_of(three, folder, rounds=2)
    watch.run(60)
    assert [line.partition(" [")[0] for line in said] == ["bit rot: no report:"] * 2
    assert 'dledger_audit_runs_total{outcome="bit rot"} 2.0' in (
        generate_latest(metrics.registry).decode()
    )


def test_report_is_on_disk_before_it_has_its_name(
    three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut would leave a name with nothing under it, in the place of a finding."""
    folder, synced = tmp_path / "audits", dict[str, int]()
    sync = os.fsync

    def observed(descriptor: int) -> None:
        sync(descriptor)
        stat = os.fstat(descriptor)
        names = [each.name for each in folder.iterdir() if os.path.samestat(each.stat(), stat)]
        synced.update(dict.fromkeys(names, stat.st_size))

    monkeypatch.setattr(os, "fsync", observed)
    watch_of(three, folder, rounds=1)[0].once()
    reports = {each.name: each.stat().st_size for each in folder.glob("audit-*.*")}
    assert len(reports) == 2
    assert synced == {f"{name}.new": size for name, size in reports.items()}


def test_watch_tells_prometheus_who_has_rotted(three: ReplicaSet, tmp_path: Path) -> None:
    """One series a replica and verdict; the last audit counts."""
    three.flip("n2", three.header_of(after=20_000).physical_offset + 80)
    watch, metrics, _, _ = watch_of(three, tmp_path, rounds=1)
    watch.run(60)
    text = generate_latest(metrics.registry).decode()
    assert 'dledger_audit_verdict{replica="n2",verdict="bit rot"} 1.0' in text
    assert 'dledger_audit_verdict{replica="n1",verdict="bit rot"} 0.0' in text
    assert 'dledger_audit_runs_total{outcome="bit rot"} 1.0' in text


def test_lag_of_a_member_that_gives_no_answer_grows(three: ReplicaSet, tmp_path: Path) -> None:
    """From what it last said on: one whose node is down doesn't just vanish from the metrics. Of
    one that never said anything, nothing is known; who is no member any more has no series."""
    watch, metrics, _, _ = watch_of(three, tmp_path, rounds=1)
    n1, n2, n3 = three.replicas
    silent = Replica("n2", "h2:1", silence="h2:1 gives no answer")
    behind = three.end - 5_000  # what the members knew in the first round

    def lags(*replicas: Replica) -> dict[str, float]:
        watch._audit = lambda: audit_replicas(
            list(replicas), LocalEngine(), Options(block_size=BLOCK, derived=False)
        )
        watch.once()
        lines = generate_latest(metrics.registry).decode().splitlines()
        told = [line.split() for line in lines if line.startswith("dledger_audit_lag_bytes{")]
        return {name.split('"')[1]: float(lag) for name, lag in told}

    assert lags(n1, silent, n3) == {"n1": 0, "n3": 0}
    verdict = 'dledger_audit_verdict{replica="n2",verdict="incomplete"} 1.0'
    assert verdict in generate_latest(metrics.registry).decode()
    at = three.header_of(after=behind)
    end = at.physical_offset + at.total_size
    early = Position(end, at.digest, at.index, 1)
    assert lags(replace(n1, position=early), replace(n2, position=early)) == {"n1": 0, "n2": 0}
    missed = three.end - end
    assert lags(n1, silent, n3) == {"n1": 0, "n2": missed, "n3": 0}
    assert missed > 0
    assert lags(n1, silent, n3)["n2"] == missed
    assert lags(n1, n3) == {"n1": 0, "n3": 0}
    lags(*three.replicas)
    others = (replace(n1, position=early), replace(n3, position=early))
    told = lags(others[0], silent, others[1])
    assert told == {"n1": 0, "n2": 0, "n3": 0}, "nobody lags behind one that says nothing"
    assert lags(n1, silent, others[1])["n3"] == missed
    gone = Replica("n1", "h1:1", silence="h1:1 gives no answer")
    assert lags(gone, silent, others[1])["n3"] == missed, "it hasn't got what they had"
    before = three.header_of(after=three.end - 12_000)
    still = before.physical_offset + before.total_size
    assert still < end
    further = replace(n3, position=Position(still, before.digest, before.index, 1))
    assert lags(n1, silent, further)["n3"] == three.end - still
    assert lags(gone, silent, others[1])["n3"] == missed, "less what it has got since"
    assert lags(gone, silent, n3)["n3"] == 0


def test_watch_survives_an_audit_that_fails(three: ReplicaSet, tmp_path: Path) -> None:
    """Counted and told, and the next one is made."""
    said: list[str] = []
    metrics = WatchMetrics()

    def fail() -> Audit:
        raise Unreachable("n1", "no answer")

    ends = iter([False, True])
    Watch(
        fail, tmp_path, metrics, kept=1, clock=lambda: 0.0,
        steady=lambda: 0.0, wait=lambda _: next(ends), told=said.append,
    ).run(1)  # fmt: skip
    assert said == ["failed: n1 can't be reached: no answer"] * 2
    assert 'outcome="failed"} 2.0' in generate_latest(metrics.registry).decode()


@pytest.mark.parametrize("jump_s", [-30 * 86400.0, 30 * 86400.0])
def test_clock_that_is_set_stops_no_watch(three: ReplicaSet, tmp_path: Path, jump_s: float) -> None:
    """Set right by a month while it waits: rounds stay as far apart, it ends when it was to, and
    the reports that stay are those of the last rounds, whatever the older ones are called."""
    wall, steady, waits = [1_700_000_000.0], [5_000.0], list[float]()
    made: list[str] = []

    def pass_(seconds: float) -> None:
        wall[0] += seconds
        steady[0] += seconds

    def audit() -> Audit:
        pass_(7)
        made.append(f"audit-{datetime.fromtimestamp(wall[0], UTC):%Y%m%dT%H%M%SZ}.json")
        return audit_replicas(three.replicas, LocalEngine(), Options(block_size=BLOCK))

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        pass_(seconds)
        wall[0] += jump_s if len(waits) == 2 else 0
        return False

    watch = Watch(
        audit, tmp_path / "audits", WatchMetrics(), kept=2, clock=lambda: wall[0],
        steady=lambda: steady[0], wait=wait, told=lambda _: None,
    )  # fmt: skip
    watch.run(60, Bounds(seconds=300))
    assert waits == [53] * 4
    assert {path.name for path in (tmp_path / "audits").glob("*.json")} == set(made[-2:])


def test_watch_survives_what_nobody_foresaw(
    three: ReplicaSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug in an audit, or a library's own error: a round that failed, with its traceback."""
    watch, metrics, said, _ = watch_of(three, tmp_path, rounds=2)
    watch._audit = broken
    watch.run(60)
    assert said == ["failed: KeyError('nobody')"] * 2
    assert watch.exit_code == ExitCode.INCOMPLETE
    assert 'outcome="failed"} 2.0' in generate_latest(metrics.registry).decode()
    assert "in broken" in capsys.readouterr().err


def test_a_report_that_cannot_be_drawn_ends_no_watch(
    three: ReplicaSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was found is told and kept all the same; so it is where history itself fails."""
    watch, metrics, said, _ = watch_of(three, tmp_path, rounds=2)
    watch._kept = 1
    monkeypatch.setattr("audit.commands.watching.render_page", lambda audited: broken())
    monkeypatch.setattr(watch._history, "add", lambda each: broken())
    watch.run(60)
    lines = ["identical: no report: KeyError('nobody')"]
    lines.append("note: the round isn't kept: KeyError('nobody')")
    assert said == lines * 2
    assert watch.exit_code == ExitCode.CONSISTENT
    assert 'outcome="identical"} 2.0' in generate_latest(metrics.registry).decode()
    assert capsys.readouterr().err.count("in broken") == 4
    assert len(list(watch._folder.glob("audit-*.json"))) == 1, "as many as are to be kept"


def test_a_trend_that_cannot_be_drawn_hides_no_round(
    three: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the history and in the metrics' file."""
    folder, prom = tmp_path / "audits", tmp_path / "audit.prom"
    monkeypatch.setattr("audit.commands.watch.render_trend", lambda rounds, folder: broken())
    options = (f"--reports={folder}", f"--metrics-file={prom}", "--rounds=1", "--json")
    code, said = run_watch(three, *options)
    assert (code, json.loads(said)["problems"]) == (0, ["no trend page: KeyError('nobody')"])
    assert "dledger_audit_exit_code 0.0" in prom.read_text(encoding="utf-8")
    shown = CliRunner().invoke(app, ["history", f"--reports={folder}"])
    assert (shown.exit_code, "identical" in shown.stdout) == (0, True)


def broken() -> Audit:
    raise KeyError("nobody")


@pytest.mark.parametrize("error", [KeyError("nobody"), MemoryError()], ids=repr)
def test_what_nobody_foresaw_accuses_no_replica(
    three: ReplicaSet, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Exit code 1 says that replicas aren't consistent."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("audit.commands.app.run_audit", fail)
    named = [f"--replica={name}={path}" for name, path in three.paths.items()]
    done = CliRunner().invoke(app, ["replicas", *named])
    assert done.exit_code == ExitCode.INCOMPLETE
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("dledger: not foreseen")


def test_report_with_a_finding_is_displaced_by_no_good_one(
    three: ReplicaSet, tmp_path: Path
) -> None:
    """Two of each stay."""
    folder = tmp_path / "audits"
    watch, _, said, _ = watch_of(three, folder, rounds=9)
    path = three.flip("n2", three.header_of(after=20_000).physical_offset + 80)
    watch.run(60, Bounds(rounds=3))
    three.flip("n2", three.header_of(after=20_000).physical_offset + 80)
    assert path.exists()
    watch.run(60, Bounds(rounds=4))
    assert [line.partition(":")[0] for line in said] == ["bit rot"] * 3 + ["identical"] * 4
    verdicts = [
        json.loads(path.read_text(encoding="utf-8"))["verdict"]
        for path in sorted(folder.glob("*.json"))
    ]
    assert verdicts == ["bit rot", "bit rot", "identical", "identical"]
    assert len(list(folder.glob("*.html"))) == 4
    assert watch.exit_code == ExitCode.INCONSISTENT


def test_report_of_damage_is_displaced_by_no_incomplete_one(
    three: ReplicaSet, tmp_path: Path
) -> None:
    """Two of each exit code stay: a member that is down for days hides no rot of before."""
    folder = tmp_path / "audits"
    watch, _, said, _ = watch_of(three, folder, rounds=9)
    at = three.header_of(after=20_000).physical_offset + 80
    three.flip("n2", at)
    watch.run(60, Bounds(rounds=1))
    three.flip("n2", at)
    (three.paths["n3"] / "checkpoint").unlink()
    watch.run(60, Bounds(rounds=4))
    assert [line.partition(":")[0] for line in said] == ["bit rot"] + ["incomplete"] * 4
    verdicts = [
        json.loads(path.read_text(encoding="utf-8"))["verdict"]
        for path in sorted(folder.glob("*.json"))
    ]
    assert verdicts == ["bit rot", "incomplete", "incomplete"]
    assert len(list(folder.glob("*.html"))) == 3


def test_watch_ends_after_its_time_or_its_rounds(three: ReplicaSet, tmp_path: Path) -> None:
    """No round is begun that would begin later."""
    watch, _, said, waits = watch_of(three, tmp_path, rounds=99)
    watch.run(60, Bounds(rounds=3))
    assert (len(said), len(waits)) == (3, 2)
    watch.run(60, Bounds(seconds=180))
    assert len(said) == 6
    assert watch.exit_code == ExitCode.CONSISTENT


def run_watch(three: ReplicaSet, *more: str) -> tuple[int, str]:
    """`dledger audit watch` of the three, and what it printed."""
    named = [f"--replica={name}={path}" for name, path in three.paths.items()]
    done = CliRunner().invoke(app, ["watch", "--rate=1GB", *named, *more])
    return done.exit_code, done.stdout


def test_watch_of_one_round_tells_everybody(three: ReplicaSet, tmp_path: Path) -> None:
    """A line of JSON, the metrics' file, the history, the trend page, and the exit code."""
    folder, prom = tmp_path / "audits", tmp_path / "audit.prom"
    options = (f"--reports={folder}", f"--metrics-file={prom}", "--rounds=1", "--json")
    code, said = run_watch(three, *options)
    (line,) = said.splitlines()
    fields = json.loads(line)
    assert (code, fields["outcome"], fields["problems"]) == (0, "identical", [])
    assert fields["read"] == 3 * three.end
    assert [each["lag"] for each in fields["replicas"]] == [0, 0, 0]
    assert 'dledger_audit_log_bytes{how="believed"} 0.0' in prom.read_text(encoding="utf-8")
    three.flip("n2", three.header_of(after=20_000).physical_offset + 80)
    assert run_watch(three, *options)[0] == ExitCode.INCONSISTENT
    assert "dledger_audit_exit_code 1.0" in prom.read_text(encoding="utf-8")
    shown = CliRunner().invoke(app, ["history", f"--reports={folder}"])
    assert shown.exit_code == ExitCode.INCONSISTENT
    assert "bit rot on n2: bad crc" in shown.stdout
    short = CliRunner().invoke(app, ["history", f"--reports={folder}", "--since=1d", "--last=1"])
    assert short.exit_code == ExitCode.INCONSISTENT
    page = (folder / "trend.html").read_text(encoding="utf-8")
    assert "2 rounds, 1 of them not identical" in page
    assert "<script" not in page
    assert CliRunner().invoke(app, ["history", f"--reports={tmp_path}"]).exit_code == 2


def test_nobody_who_looked_is_no_good_news(tmp_path: Path) -> None:
    """A history without a round in the time asked for, and a watch without one, are incomplete;
    a good round behind a bad one changes nothing for who asks about both."""
    store = WatchStore(tmp_path)
    store.add(Round(1.0, 2.0, "bit rot", 1))
    store.add(Round(3.0, 4.0, "identical", 0))
    store.close()
    asked = ["history", f"--reports={tmp_path}"]
    for more, code in (([], 1), (["--last=1"], 0), (["--since=1h"], 3), (["--since=365d"], 3)):
        assert CliRunner().invoke(app, [*asked, *more]).exit_code == code
    watch = Watch(
        lambda: pytest.fail("no round"), tmp_path, WatchMetrics(), kept=1, clock=lambda: 0.0,
        steady=lambda: 0.0, wait=lambda _: True, told=lambda _: None,
    )  # fmt: skip
    assert watch.exit_code == ExitCode.INCOMPLETE


@pytest.mark.parametrize(
    ("number", "more", "code"),
    [
        (1, [], 3),
        (1, ["--last=1"], 0),
        (1, ["--since=1h"], 3),
        (1, ["--since=1h", "--last=1"], 3),
        (0, ["--since=1h"], 3),
        (0, ["--last=3"], 3),
        (0, ["--last=2"], 0),
    ],
)
def test_round_that_cannot_be_read_is_no_good_news(
    tmp_path: Path, number: int, more: list[str], code: int
) -> None:
    """Of those that are asked about; one that lies before all of them is told and counts for
    nothing."""
    store, now = WatchStore(tmp_path), time.time()
    for each in range(3):
        store.add(Round(now + each, now + each, "identical", 0))
    store.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as base, base:
        base.execute("UPDATE rounds SET sum = 'x' WHERE number = ?", (number + 1,))
    done = CliRunner().invoke(app, ["history", f"--reports={tmp_path}", *more])
    assert done.exit_code == code
    assert "1 rounds can't be read any more" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)], ids=["ctrl-c", "sigterm"]
)
def test_watch_is_ended_from_outside(
    three: ReplicaSet, tmp_path: Path, number: int, code: int
) -> None:
    """By Ctrl-C with 130; by whoever manages services with the worst of its rounds."""
    command = [sys.executable, "-m", "dledger_cli", "audit", "watch", "--every=1h"]
    command += [f"--reports={tmp_path / 'audits'}"]
    command += [f"--replica={name}={path}" for name, path in three.paths.items()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("identical: ")
        process.send_signal(number)
        assert process.wait() == code


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("10m", 600), ("2h", 7200)])
def test_durations(text: str, seconds: int) -> None:
    """Seconds, minutes, hours."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "0m", "m", "-1s"])
def test_no_duration(text: str) -> None:
    """What isn't one is refused."""
    with pytest.raises(UsageMistake):
        parse_duration(text)


class Nodes:
    """Servers that answer GetStatus as told, on ports of the system's choice."""

    def __init__(self) -> None:
        self.statuses: dict[str, NodeStatus] = {}
        self.addresses: dict[str, str] = {}
        self._servers: list[grpc.Server] = []

    def start(self, name: str) -> None:
        server = grpc.server(ThreadPoolExecutor(1))
        handler = grpc.unary_unary_rpc_method_handler(
            lambda request, context: self.statuses[name],
            request_deserializer=GetStatusRequest.FromString,
            response_serializer=NodeStatus.SerializeToString,
        )
        service = grpc.method_handlers_generic_handler("dledger.v1.Cluster", {"GetStatus": handler})
        server.add_generic_rpc_handlers((service,))
        self.addresses[name] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        self._servers.append(server)

    def stop(self) -> None:
        for server in self._servers:
            server.stop(None).wait()


@pytest.fixture
def nodes(three: ReplicaSet) -> Iterator[Nodes]:
    """Three nodes that say they are committed up to their logs' end."""
    made = Nodes()
    last = three.headers[-1]
    for name in three.paths:
        made.start(name)
        made.statuses[name] = NodeStatus(
            broker_group="g",
            node_id=name,
            commit_index=last.index,
            committed_offset=three.end,
            committed_digest=last.digest,
            data_directory=str(three.paths[name]),
            first_index=1,
        )
    for name, status in made.statuses.items():
        for other, address in made.addresses.items():
            if other != name:
                status.peers.add(node_id=other, address=address)
    yield made
    made.stop()


def test_members_are_learned_from_one_node(three: ReplicaSet, nodes: Nodes) -> None:
    """One address is enough; positions, paths and digests are the nodes' own."""
    replicas = replicas_of_group([nodes.addresses["n2"]], on_hosts=False, over=Over.FILES)
    assert [replica.id for replica in replicas] == ["n1", "n2", "n3"]
    assert {r.position.committed for r in replicas if r.position} == {three.end}
    report = audit_replicas(replicas, LocalEngine(), Options(block_size=BLOCK, derived=True)).report
    assert report.exit_code == ExitCode.CONSISTENT
    assert [each.compared_bytes for each in report.coverage] == [three.end] * 3


def test_only_what_is_committed_is_compared(three: ReplicaSet, nodes: Nodes) -> None:
    """A node that is behind is compared up to where it is, and noted; rot behind that is not
    looked at."""
    early = three.headers[40]
    end = early.physical_offset + early.total_size
    for name in nodes.statuses:
        if name == "n3":
            nodes.statuses[name].commit_index = early.index
            nodes.statuses[name].committed_offset = end
            nodes.statuses[name].committed_digest = early.digest
    three.flip("n3", three.headers[50].physical_offset + 60)
    replicas = replicas_of_group(list(nodes.addresses.values()), on_hosts=False, over=Over.FILES)
    report = audit_replicas(replicas, LocalEngine(), Options(block_size=BLOCK)).report
    assert report.exit_code == ExitCode.CONSISTENT
    assert report.coverage[2].compared_bytes == end
    assert any("n3: runs" in note for note in report.notes)


def test_nodes_that_disagree_on_a_digest_diverge(three: ReplicaSet, nodes: Nodes) -> None:
    """What nodes say is compared as well as what they hold."""
    nodes.statuses["n3"].committed_digest += 1
    replicas = replicas_of_group(list(nodes.addresses.values()), on_hosts=False, over=Over.FILES)
    report = audit_replicas(replicas, LocalEngine(), Options(block_size=BLOCK, derived=True)).report
    assert {f.cause for f in report.findings} == {Cause.POSITION_DIGEST}
    assert ("n3",) in {f.replicas for f in report.findings}
    assert report.verdict is Verdict.DIVERGENCE


def test_silent_member_is_named_and_the_others_are_audited(three: ReplicaSet, nodes: Nodes) -> None:
    """Incomplete, unless something graver is found on those that answer."""
    nodes.statuses["n1"].peers.add(node_id="n4", address="127.0.0.1:1")
    replicas = replicas_of_group([nodes.addresses["n1"]], on_hosts=False, over=Over.FILES)
    report = audit_replicas(replicas, LocalEngine(), Options(block_size=BLOCK, derived=True)).report
    (found,) = report.findings
    assert (found.cause, found.replicas) == (Cause.UNREACHABLE_NODE, ("n4",))
    assert (report.verdict, report.exit_code) == (Verdict.INCOMPLETE, ExitCode.INCOMPLETE)
    assert [each.compared_bytes for each in report.coverage] == [three.end] * 3 + [0]
    assert report.coverage[3].verdict is Verdict.INCOMPLETE
    assert "n4: nothing of it was audited: 127.0.0.1:1 gives no answer" in report.notes
    three.flip("n2", three.header_of(after=20_000).physical_offset + 80)
    graver = audit_replicas(replicas, LocalEngine(), Options(block_size=BLOCK)).report
    assert (graver.verdict, graver.exit_code) == (Verdict.BIT_ROT, ExitCode.INCONSISTENT)


def test_one_node_alone_is_incomplete_too(nodes: Nodes) -> None:
    """With nobody to compare it with, it still isn't used wrongly."""
    nodes.statuses["n1"].ClearField("peers")
    nodes.statuses["n1"].peers.add(node_id="n2", address="127.0.0.1:1")
    replicas = replicas_of_group([nodes.addresses["n1"]], on_hosts=False, over=Over.FILES)
    report = audit_replicas(replicas, LocalEngine(), Options(block_size=BLOCK)).report
    assert [finding.replicas for finding in report.findings] == [("n2",)]
    assert report.exit_code == ExitCode.INCOMPLETE


def test_no_answer_at_all_is_unreachable() -> None:
    """Then nothing is known, not even who the members are."""
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        replicas_of_group(["127.0.0.1:1"], on_hosts=False, over=Over.FILES)


def test_group_of_a_folder_is_asked_and_its_dead_read_as_copies(
    three: ReplicaSet, nodes: Nodes, tmp_path: Path
) -> None:
    """Who answers has a position; who doesn't is read by its checkpoint."""
    described = [
        {"id": name, "address": address, "data_directory": str(three.paths[name])}
        for name, address in (nodes.addresses | {"n3": "127.0.0.1:1"}).items()
    ]
    (tmp_path / "group.json").write_text(json.dumps({"nodes": described}), encoding="utf-8")
    replicas = replicas_of_directory(tmp_path)
    assert [replica.position is not None for replica in replicas] == [True, True, False]
    report = audit_replicas(replicas, LocalEngine(), Options(block_size=BLOCK)).report
    assert report.exit_code == ExitCode.CONSISTENT
    (tmp_path / "group.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UsageMistake, match="doesn't describe"):
        replicas_of_directory(tmp_path)
