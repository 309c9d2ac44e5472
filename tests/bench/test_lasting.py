"""What a group of years meets, measured in small: each command measures something, says whether
the promise is met, and leaves the group whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.local_group import GroupOptions, LocalGroup
from broker.state.offsets import MAX_PROGRESS
from broker.state.registration import STANDARD
from dledger_cli.bench import changes, cli, full_state, replace, restart, scrub
from dledger_cli.bench.changes import Waits
from dledger_cli.bench.filled import Shape
from dledger_cli.bench.restart import Tail, read_once, tail_of
from store.commitlog import CommitLog, CommitLogOptions

runner = CliRunner()
LOG = ["--log", "1MiB", "--rounds", "1"]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGroup]:
    """One for all of them: what one leaves the next goes on with."""
    made = LocalGroup.create(tmp_path_factory.mktemp("lasting"), GroupOptions(nodes=3))
    try:
        yield made
    finally:
        made.kill_all()


def measured(*arguments: str) -> dict[str, Any]:
    """The figures of a command's only report; what must hold holds."""
    result = runner.invoke(cli.app, [*arguments, "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    facts = json.loads(result.stdout)
    assert facts["holds"]
    return {each["name"]: each for each in (*facts["figures"], *facts["yardsticks"])}


def is_whole(group: LocalGroup) -> bool:
    return asyncio.run(group.status()).serves_fully


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("_nodes_are_started")
def test_a_killed_follower_is_timed_and_follows_again(
    group: LocalGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an interpreter and its tail; twenty messages are an entry where that is asked for."""
    monkeypatch.setattr(restart, "TAIL_BYTES", 4 << 20)
    figures = measured("restart", *LOG, "--per-entry", "20", "--dir", str(group.directory))
    assert figures["1MB_restart"]["median"] > figures["1MB_python"]["median"] / 1_000
    assert figures["1MB_restart"]["target"] == {
        "comparison": "at_most",
        "bound": 3.0,
        "of": "value",
        "must": False,
    }
    assert figures["1MB_restart_beside"]["ratio"]["median"] > 0
    tail, log = (figures[f"1MB_{name}"]["median"] * 1e6 for name in ("tail", "log"))
    assert 1 << 20 < tail <= log
    body_bytes = (1 << 20) / figures["1MB_entries"]["median"]
    assert 15 * 1024 < body_bytes < 25 * 1024
    assert is_whole(group)


@pytest.mark.slow
@pytest.mark.long
def test_a_wiped_member_is_timed_and_votes_again(
    group: LocalGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside what the disk takes; and what clients got of it before and meanwhile."""
    monkeypatch.setattr(replace, "BASELINE_S", 0.3)
    figures = measured("replace", *LOG, "--in-flight", "4", "--dir", str(group.directory))
    for name, least in (("quiet_copied", 0.3), ("loaded_copied", 0.3), ("rate_meanwhile", 0.5)):
        assert figures[name]["ratio"]["median"] > 0
        assert figures[name]["target"]["bound"] == least
    assert figures["rate_before"]["median"] > 0
    assert is_whole(group)


@pytest.mark.slow
@pytest.mark.long
def test_each_kind_of_change_is_made_and_what_sends_waited_is_told(
    group: LocalGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cycle; afterwards everybody is a voter as before."""
    monkeypatch.setattr(changes, "SETTLE_S", 0.05)
    monkeypatch.setattr(changes, "QUIET_S", 0.2)
    arguments = ["--changes", "9", "--rate", "100", "--dir", str(group.directory)]
    figures = measured("changes", *arguments)
    of_leaders = ("demote_leader", "promote_former", "remove_leader", "add_former")
    kinds = ("transfer", "demote", "promote", "remove", "add", *of_leaders)
    assert len(figures["longest_wait"]["rounds"]) == len(kinds)
    for kind in (*kinds, "quiet"):
        assert 0 < figures[f"{kind}_wait"]["median"] <= figures["longest_wait_worst"]["max"] + 1e5
    assert figures["failed"]["median"] == 0
    assert is_whole(group)


def test_a_log_is_scrubbed_for_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, each time, and a node beside."""
    monkeypatch.setattr(scrub, "SETTLE_S", 0.05)
    figures = measured("scrub", *LOG, "--seconds", "1", "--dir", str(tmp_path))
    for name in ("first_look", "looked_again", "xxh3", "rate_of_a_node"):
        assert figures[name]["median"] > 0
    assert figures["share"]["target"]["bound"] == 3.0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.long
def test_a_large_state_is_written_down_for_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its longest turn is judged, and its bytes are written once for the time. It is a tenth of
    what it may be."""
    monkeypatch.setattr(full_state, "TOPICS", full_state.TOPICS // 10)
    monkeypatch.setattr(full_state, "MAX_PROGRESS", MAX_PROGRESS // 10)
    few = replaced(STANDARD, producers=STANDARD.producers // 10)
    monkeypatch.setattr(full_state, "STANDARD", few)
    arguments = ["--rounds", "1", "--sequences", "1000", "--dir", str(tmp_path)]
    figures = measured("snapshot", *arguments)
    assert figures["snapshot_turn"]["median"] > 0
    assert figures["snapshot_turn"]["target"]["bound"] == 50.0
    assert figures["snapshot_took"]["ratio"]["median"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["restart", "--log", "much"], "much"),
        (["restart", "--log", "1KiB"], "1 MiB"),
        (["restart", "--per-entry", "4000"], "batch holds"),
        (["restart", "--per-entry", "1", "--size", "100"], "never alone"),
        (["restart", "--rounds", "0"], "--rounds"),
        (["replace", "--log", "0"], "1 MiB"),
        (["changes", "--changes", "0"], "--changes"),
        (["scrub", "--seconds", "0"], "--seconds"),
        (["snapshot", "--rounds", "no"], "--rounds"),
        (["snapshot", "--sequences", "100001"], "--sequences"),
    ],
)
def test_wrong_options_are_usage_errors(arguments: list[str], told: str) -> None:
    """Before anything is started, and in words."""
    result = runner.invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert told in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["restart", "--log", "1MiB", "--nodes", "1"], "no follower"),
        (["replace", "--log", "1MiB", "--nodes", "1"], "majority has to stay"),
        (["replace", "--log", "900000GiB"], "MiB left"),
        (["scrub", "--dir", "/nonexistent/folder"], "No such file"),
    ],
)
def test_what_cannot_be_measured_is_told(tmp_path: Path, arguments: list[str], told: str) -> None:
    """And nothing is left of it."""
    place = [] if "--dir" in arguments else ["--dir", str(tmp_path / "run")]
    result = runner.invoke(cli.app, [*arguments, *place])
    assert result.exit_code == 1
    assert told in result.output
    assert list(tmp_path.iterdir()) == []


def test_the_longest_wait_is_of_what_ends_meanwhile() -> None:
    """With all of its wait, whenever it was sent; and what fails is counted."""

    class Producer:
        def __init__(self) -> None:
            self.asked: list[asyncio.Future[Any]] = []

        def send(self, _topic: str, _body: bytes) -> asyncio.Future[Any]:
            self.asked.append(asyncio.get_running_loop().create_future())
            return self.asked[-1]

    async def wait() -> None:
        waits, producer = Waits(), Producer()
        for _ in range(3):
            waits.send(producer, "t", b"")  # type: ignore[arg-type]  # what it needs of one
        first = waits.oldest
        assert first is not None
        producer.asked[0].set_result(None)
        await asyncio.sleep(0.02)
        waits.begin()
        assert waits.longest_s == 0
        producer.asked[1].set_exception(ValueError())
        await asyncio.sleep(0)
        assert waits.longest_s >= 0.02
        assert (waits.failed, waits.sent, waits.under_way) == (1, 3, 1)
        assert (waits.oldest or 0) >= first
        producer.asked[2].cancel()
        await asyncio.sleep(0)
        assert waits.failed == 2

    asyncio.run(wait())


def test_the_tail_of_a_directory_without_snapshots_is_its_log(tmp_path: Path) -> None:
    """All of its segments' bytes are read, and no more than to its end."""
    options = CommitLogOptions(segment_size_bytes=2 << 20, reserve_bytes=0)
    CommitLog.open(tmp_path, options).close()
    assert tail_of(tmp_path, 5_000, 7) == Tail(0, 5_000, 7)
    assert read_once(tmp_path, Tail(0, 5_000, 7)) > 0


@pytest.mark.long
def test_entries_are_as_large_as_their_messages() -> None:
    """A topic's name is in each record."""
    one, many = Shape(1_024, 1), Shape(1_024, 200)
    assert many.entry_bytes("t") - 200 * one.entry_bytes("t") == -199 * 88
    assert one.wrong() is None
    assert many.wrong() is None
