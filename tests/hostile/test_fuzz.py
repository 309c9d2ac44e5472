"""The fuzzer: a short run holds, and it can tell when something doesn't."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from broker.doors.grpc.epochs import heed_epoch
from broker.doors.grpc.offered import OFFERED
from broker.errors import BrokerError
from broker.leader.epochs import FIRST, EpochFence
from chaos.cli import app
from chaos.fuzz import configurations, replicas, run
from chaos.fuzz.attacks import METHODS, NO_REQUEST, UNHEARD, _message, _request, _said
from chaos.fuzz.configurations import broken_configurations
from chaos.fuzz.replicas import Ran, read_what_is_left
from chaos.fuzz.run import FuzzOptions, _unhealthy, fuzz
from chaos.fuzz.target import GoodLoad, Vitals, harassed, loaded, vitals
from dledger.wire.cluster_pb2 import WatchLeaderRequest

SECONDS = 4.0


@pytest.mark.slow
def test_strangers_harm_nobody(tmp_path: Path) -> None:
    """Every kind of attack on every port, and who behaves loses nothing."""
    told: list[str] = []
    done = asyncio.run(fuzz(FuzzOptions(1, 3_000, SECONDS, tmp_path), told.append))
    assert done.problems == []
    assert done.holds
    assert done.good_sent == done.good_stored > 10
    assert all(done.requests[kind] for kind in ("malformed", "absurd", "configurations"))


def specimens(folder: Path) -> dict[str, Path]:
    """What three nodes might have left."""
    for node in ("n1", "n2", "n3"):
        (folder / node / "commitlog").mkdir(parents=True)
        (folder / node / "commitlog" / f"{0:020d}").write_bytes(bytes(5_000))
        (folder / node / "checkpoint").write_bytes(bytes(64))
    return {node: folder / node for node in ("n1", "n2", "n3")}


def test_what_tools_make_of_harmed_files_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No end, a traceback, an exit code that it hasn't, rot that isn't seen; and copies are harmed,
    never the originals."""
    left = specimens(tmp_path / "left")
    before = {path: path.read_bytes() for path in (tmp_path / "left").rglob("*") if path.is_file()}
    sound = Ran(0, json.dumps({"coverage": [{"end": 4_000}] * 3}).encode(), b"")
    answers: list[Ran] = []

    async def answer(arguments: list[str]) -> Ran:
        return answers.pop(0) if answers else Ran(1, b"", b"")

    monkeypatch.setattr(replicas, "_run", answer)

    def found(*ends: Ran) -> list[str]:
        answers[:] = [sound, *ends]
        work = read_what_is_left(Random(1), left, tmp_path / "copies", 20 * replicas.EACH)
        wrong, tried = asyncio.run(work)
        assert tried == 21
        return wrong

    assert found() == []
    for end, named in (
        (Ran(None, b"", b""), "no end"),
        (Ran(1, b"", b"Traceback (most recent call last)"), "Traceback"),
        (Ran(137, b"", b""), "137"),
        (Ran(0, b"", b""), "the verdict is 0"),
    ):
        (told,) = found(end)
        assert named in told
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_tools_end_on_harmed_files(tmp_path: Path) -> None:
    """Real ones, with their memory bounded."""
    left = specimens(tmp_path / "left")
    copies = tmp_path / "copies"
    wrong, tried = asyncio.run(read_what_is_left(Random(3), left, copies, replicas.EACH))
    assert (wrong, tried) == ([], 2)


@pytest.mark.slow
def test_loss_is_seen(tmp_path: Path) -> None:
    """A message that was acknowledged and isn't there, one that was refused, and a dead node."""

    async def scenario() -> None:
        async with harassed(tmp_path / "g") as group:
            async with loaded(group) as load:
                while len(load.stored) < 5:
                    await asyncio.sleep(0.05)
            assert await load.compare(group.addresses) == []
            worse = GoodLoad({**load.stored, (0, 99_999): b"good 1"}, ["b'x': refused"])
            assert len(await worse.compare(group.addresses)) == 2
            before = vitals(group)
            assert _unhealthy(before, vitals(group), 1.0) == []
            group.kill_all()
            assert _unhealthy(before, vitals(group), 1.0) == [
                f"{node} has ended" for node in ("n1", "n2", "n3")
            ]

    asyncio.run(scenario())


def test_bounds_are_looked_at() -> None:
    """Memory, descriptors, tracebacks, and what is logged."""
    was = Vitals("n1", True, 100, 10, 0.0, 0, 0)
    for change, named in (
        ({"resident_bytes": 1 << 40}, "MiB"),
        ({"descriptors": 5_000}, "descriptors"),
        ({"tracebacks": 1}, "tracebacks"),
        ({"log_bytes": 1 << 20}, "bytes"),
        ({"alive": False}, "ended"),
    ):
        (problem,) = _unhealthy([was], [replace(was, **change)], 1.0)
        assert named in problem


def test_files_outside_of_data_directories_are_seen(tmp_path: Path) -> None:
    """Wherever below the run's folder a node has put one."""

    async def scenario() -> list[str]:
        async with harassed(tmp_path / "group") as group:
            assert run._strange_files(tmp_path, group) == []
            (tmp_path / "passwd").write_text("x")
            (tmp_path / "group" / "n1" / "x").write_text("x")
            return run._strange_files(tmp_path, group)

    assert len(asyncio.run(scenario())) == 2


def test_requests_are_drawn_from_the_seed_and_fit_every_method() -> None:
    """The same again, and messages that protobuf takes."""
    for method in METHODS:
        first = _request(Random("x"), method.input_type, malformed=False)
        assert first == _request(Random("x"), method.input_type, malformed=False)
        chance = Random(7)
        for _ in range(50):
            _message(chance, method.input_type, 4).SerializeToString()


def test_every_service_is_asked() -> None:
    """Those that came later, too."""
    offered = {each.service.full_name for each in OFFERED}
    assert {method.containing_service.full_name for method in METHODS} == offered


def test_no_stranger_tells_an_epoch_that_shuts_who_is_right() -> None:
    """It is one that no group has; or comes with another group's name, with bytes that are no
    request, or to who hears of none. Both are told, and what shuts nobody only for that."""
    chance, kinds = Random(11), Counter[str]()
    for _ in range(3_000):
        said = _said(chance, malformed=chance.random() < 0.5)
        if not said.metadata:
            continue
        shut: list[bool] = []
        fence = EpochFence(tuple, partial(shut.append, True))
        cluster: Any = SimpleNamespace(epoch=FIRST, heard_epoch=fence.heard)
        context: Any = SimpleNamespace(invocation_metadata=partial(tuple, said.metadata))
        with suppress(BrokerError), capture_logs():
            heed_epoch(cluster, None, context)
        if not shut:
            kinds["odd"] += 1
        elif said.path == "/dledger.v1.Cluster/WatchLeader" and said.requests != [NO_REQUEST]:
            assert WatchLeaderRequest.FromString(said.requests[0]).broker_group.startswith("str")
            kinds["of another group"] += 1
        elif said.path.split("/")[1].rpartition(".")[2] not in UNHEARD:
            assert said.requests == [NO_REQUEST]
            assert not said.asks
            kinds["no request"] += 1
    assert min(kinds[each] for each in ("odd", "of another group", "no request")) > 20


def test_configurations_are_read_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And another error than the one that is promised is a finding."""
    chance = Random(5)
    assert [broken_configurations(chance)[0] for _ in range(100)] == [[]] * 100

    def fail(_: Path) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(configurations, "load_config", fail)
    wrong, tried = broken_configurations(chance)
    assert len(wrong) == tried
    assert "ValueError: a bug" in wrong[0]


@pytest.mark.slow
def test_command_prints_what_it_found(tmp_path: Path) -> None:
    """As facts, with exit code 0; a folder in the way is told with 2."""
    options = ["fuzz", "--requests", "200", "--seconds", "2", "--seed", "3", "--json"]
    ran = CliRunner().invoke(app, [*options, "--out", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.stderr
    facts = json.loads(ran.stdout)
    assert (facts["seed"], facts["holds"], len(facts["nodes"])) == (3, True, 3)
    assert CliRunner().invoke(app, [*options, "--out", str(tmp_path / "out")]).exit_code == 2
