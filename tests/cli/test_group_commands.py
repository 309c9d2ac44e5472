"""The commands against a group of real processes: one group for the whole module.

Each test gets the group with all nodes running; what a test disturbs is put right by the next
one's `up`, as an operator would do it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker.config import load_config
from broker.local_group import GROUP_FILE, GroupOptions, LocalGroup
from broker.local_group.disks import form_disks, one_by_one
from broker.local_group.ports import reserve_ports
from broker.local_group.process import is_running
from dledger.client import QueueStats, TopicInfo, TopicStats
from dledger.client.blocking import BlockingClient
from dledger.terminal.outcome import ExitCode
from dledger_cli.app import app
from dledger_cli.topic_stats import rates_of
from store.files import OsFiles

pytestmark = pytest.mark.slow

WAIT_S = 60.0
PROGRAM = (sys.executable, "-m", "dledger_cli")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the module's group; nothing runs afterwards."""
    folder = tmp_path_factory.mktemp("group") / "run"
    group = LocalGroup.create(folder)
    yield folder
    group.kill_all()


@pytest.fixture
def group(directory: Path, shared_runner: asyncio.Runner) -> LocalGroup:
    """The group, all nodes running."""
    group = LocalGroup.open(directory)
    shared_runner.run(group.up())
    return group


@pytest.fixture
def topic(group: LocalGroup, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with two queues."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", request.node.name)[:127]
    assert told(group, "topic", "create", name, "--queues", "2") == f"{name}: 2 queues\n"
    return name


def invoked(group: LocalGroup, *arguments: str) -> tuple[int, str, str]:
    """Exit code and both outputs of a command, run within this process."""
    where = [] if "--bootstrap" in arguments else ["--dir", str(group.directory)]
    result = CliRunner().invoke(app, [*arguments, *where])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def told(group: LocalGroup, *arguments: str) -> str:
    """What a command that must succeed prints."""
    code, out, err = invoked(group, *arguments)
    assert (code, err) == (0, "")
    return out


def facts(group: LocalGroup, *arguments: str) -> Any:
    """What a command that must succeed prints with --json."""
    return json.loads(told(group, *arguments, "--json"))


def program(
    group: LocalGroup, *arguments: str, data: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """The program in a process of its own, with pipes at both ends."""
    return subprocess.run(
        [*PROGRAM, *arguments, "--dir", str(group.directory)],
        input=data,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )


def begun(group: LocalGroup, *arguments: str) -> subprocess.Popen[bytes]:
    """The same, still running."""
    pipe = subprocess.PIPE
    command = [*PROGRAM, *arguments, "--dir", str(group.directory)]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def produced(group: LocalGroup, topic: str, lines: Sequence[bytes], *options: str) -> None:
    source = group.directory.parent / "produced"
    source.write_bytes(b"".join(line + b"\n" for line in lines))
    assert told(group, "produce", topic, "--input", str(source), *options) == ""


def consumed(group: LocalGroup, topic: str, *options: str) -> bytes:
    output = group.directory.parent / "consumed"
    output.unlink(missing_ok=True)  # a group's lines are added to what is there
    bounds = () if "--idle-timeout" in options else ("--idle-timeout", str(WAIT_S))
    assert told(group, "consume", topic, "--output", str(output), *options, *bounds) == ""
    return output.read_bytes()


# --- group --------------------------------------------------------------------------------------


def test_status_has_the_designs_keys(group: LocalGroup) -> None:
    """Three nodes, one leader, indexes that make sense."""
    status = facts(group, "group", "status")
    assert list(status) == ["group", "leader", "term", "nodes", "preferred"]
    assert [node["id"] for node in status["nodes"]] == ["n1", "n2", "n3"]
    for node in status["nodes"]:
        assert list(node) == [
            "id",
            "role",
            "term",
            "last_index",
            "commit_index",
            "applied_index",
            "address",
            "alive",
            "apply_stopped",
            "older_copies",
            "log_damages",
            "scrub_ended_ms",
            "newer_epoch",
        ]
        assert node["alive"]
        assert node["applied_index"] <= node["commit_index"] <= node["last_index"]
        assert node["role"] == ("leader" if node["id"] == status["leader"] else "follower")


def test_status_by_one_address_finds_all_members(group: LocalGroup) -> None:
    """Members are learned from any one of them."""
    here = facts(group, "group", "status")
    there = facts(group, "group", "status", "--bootstrap", group.addresses[0])
    assert there["leader"] == here["leader"]
    assert {(node["id"], node["address"]) for node in there["nodes"]} == {
        (node["id"], node["address"]) for node in here["nodes"]
    }


def test_status_for_people_names_leader_and_nodes(group: LocalGroup) -> None:
    """The same facts, aligned."""
    leader = facts(group, "group", "status")["leader"]
    head, titles, *rows = told(group, "group", "status").splitlines()
    assert head.startswith(f"group local: leader {leader}, term ")
    assert titles.split() == ["ID", "ROLE", "TERM", "LAST", "COMMIT", "APPLIED", "ADDRESS", "ALIVE"]
    assert [row.split()[0] for row in rows] == ["n1", "n2", "n3"]


def test_up_again_leaves_what_runs_alone(group: LocalGroup) -> None:
    """The same processes as before."""
    before = group.nodes
    told(group, "group", "up")
    assert group.nodes == before


def test_up_starts_what_is_missing_and_nothing_else(group: LocalGroup) -> None:
    """Repeating it mends."""
    before = {node.id: node.process for node in group.nodes}
    assert told(group, "group", "kill", "follower").endswith(": SIGKILL\n")
    told(group, "group", "up")
    after = {node.id: node.process for node in group.nodes}
    assert sum(before[node_id] != after[node_id] for node_id in before) == 1
    assert all(node.is_running() for node in group.nodes)


def test_killed_leader_is_replaced_and_comes_back_as_a_follower(
    group: LocalGroup, topic: str
) -> None:
    """A newer term, another leader, and the old one is started again."""
    before = facts(group, "group", "status")
    killed = facts(group, "group", "kill", "leader")
    assert killed == {"id": before["leader"], "signal": "KILL"}
    assert not group.node(killed["id"]).is_running()
    produced(group, topic, [b"after the kill"])
    after = facts(group, "group", "status")
    assert after["leader"] not in (None, killed["id"])
    assert after["term"] > before["term"]
    dead = next(node for node in after["nodes"] if node["id"] == killed["id"])
    assert (dead["alive"], dead["role"], dead["last_index"]) == (False, None, None)
    started = facts(group, "group", "start", killed["id"])
    assert all(node["alive"] for node in started["nodes"])
    assert started["leader"] == after["leader"]


def test_stopped_node_is_silent_until_it_goes_on(group: LocalGroup) -> None:
    """STOP and CONT; the process is the same, and `up` doesn't start a second one."""
    node_id = facts(group, "group", "kill", "follower", "--signal", "STOP")["id"]
    process = group.node(node_id).process
    status = facts(group, "group", "status")
    assert [node["id"] for node in status["nodes"] if not node["alive"]] == [node_id]
    assert group.node(node_id).is_running()
    told(group, "group", "kill", node_id, "--signal", "CONT")
    told(group, "group", "up")
    assert group.node(node_id).process == process


def test_terminated_leader_hands_over_and_ends(group: LocalGroup) -> None:
    """SIGTERM: its log says to whom."""
    leader = facts(group, "group", "kill", "leader", "--signal", "term")["id"]
    events = [json.loads(line) for line in group.node(leader).log_file.read_text().splitlines()]
    assert "leadership_handed_over" in [event["event"] for event in events[-20:]]
    assert events[-1]["event"] == "node_stopped"
    assert not events[-1]["failed"]


def test_leadership_goes_to_the_named_node(group: LocalGroup) -> None:
    """`group transfer ID` ends when that node leads."""
    status = facts(group, "group", "status")
    target = next(node["id"] for node in status["nodes"] if node["id"] != status["leader"])
    assert facts(group, "group", "transfer", target) == {"leader": target}
    assert facts(group, "group", "status")["leader"] == target


def test_leadership_for_a_node_that_is_gone_is_refused_and_tried_once(
    group: LocalGroup, topic: str
) -> None:
    """Each try would take the producers' leader away for as long as a transfer may last."""
    leader = facts(group, "group", "status")["leader"]
    gone = facts(group, "group", "kill", "follower")["id"]
    produced(group, topic, [b"before"])
    code, out, error = invoked(group, "group", "transfer", gone)
    assert (code, out) == (ExitCode.FAILED, ""), error
    assert error in (
        f"dledger: {gone} wasn't heard for an election timeout\n",
        f"dledger: the transfer to {gone} was aborted\n",
    )
    produced(group, topic, [b"after"])
    assert facts(group, "group", "status")["leader"] == leader
    lines = group.node(leader).log_file.read_text().splitlines()
    ended = [
        event
        for event in map(json.loads, lines)
        if event["event"] == "leadership_transfer_ended" and event.get("target") == gone
    ]
    assert len(ended) <= 1


def test_leadership_for_a_node_that_does_not_vote_ends_with_1(group: LocalGroup) -> None:
    """The command is right and the group is another one, as `group priority` says of it."""
    code, out, error = invoked(group, "group", "transfer", "n9")
    assert (code, out) == (ExitCode.FAILED, "")
    assert error == "dledger: n9 doesn't vote, and only who votes can lead: n1, n2, n3\n"


def test_node_that_is_not_there_ends_with_2(group: LocalGroup) -> None:
    """For every command that names one."""
    for command in (["group", "kill", "n9"], ["group", "start", "n9"]):
        code, _, error = invoked(group, *command)
        assert code == ExitCode.USAGE
        assert error == "dledger: no node 'n9' here; there are n1, n2, n3\n"


def test_signal_for_a_dead_node_ends_with_1(group: LocalGroup) -> None:
    """Twice dead is an error, not a success."""
    told(group, "group", "kill", "n1")
    code, _, error = invoked(group, "group", "kill", "n1")
    assert (code, error) == (ExitCode.FAILED, "dledger: n1 isn't running\n")


def test_group_without_a_majority_is_unreachable(group: LocalGroup, topic: str) -> None:
    """Status and a kill of the leader end with 3, as soon as one that was left alone knows it."""
    for node_id in ("n1", "n2"):
        told(group, "group", "kill", node_id)
    deadline = time.monotonic() + WAIT_S
    code, _, error = invoked(group, "group", "status", "--json")
    while code == 0 and time.monotonic() < deadline:
        code, _, error = invoked(group, "group", "status", "--json")
    assert (code, error) == (ExitCode.UNREACHABLE, "dledger: no leader serves\n")
    code, _, _ = invoked(group, "group", "kill", "leader")
    assert code == ExitCode.UNREACHABLE


def test_second_node_on_a_data_directory_ends_with_1(group: LocalGroup, tmp_path: Path) -> None:
    """Named in one line, without a traceback; the first one runs on."""
    node = group.node("n1")
    ports = reserve_ports(2).ports
    text = Path(node.config).read_text()
    text = text.replace(node.address, f"127.0.0.1:{ports[0]}")
    text = text.replace(node.metrics_address, f"127.0.0.1:{ports[1]}")
    text = text.replace('"data"', f'"{node.data_directory}"')
    (tmp_path / "node.toml").write_text(text)
    command = [*PROGRAM, "node", "--config", str(tmp_path / "node.toml")]
    result = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False, text=True)
    assert result.returncode == ExitCode.FAILED
    assert result.stderr.splitlines()[-1].startswith(
        f"dledger: data directory {node.data_directory} is in use by "
    )
    assert "Traceback" not in result.stderr
    assert node.is_running()


def test_every_metric_is_in_the_operations_page(group: LocalGroup) -> None:
    """And the page lists none that isn't there."""
    page = Path(__file__).parents[2] / "docs" / "operations.md"
    listed = set(re.findall(r"^\| `(dledger_\w+)` \|", page.read_text(), re.MULTILINE))
    listed = {name for name in listed if not name.startswith("dledger_audit_")}  # not a node's
    listed -= {"dledger_standing_by"}  # of a node that is no member yet: test_members
    listed -= {"dledger_refilling"}  # of a start that waits: tests/integration/test_refilling.py
    url = f"http://{group.nodes[0].metrics_address}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        served = set(re.findall(r"^# TYPE (\w+) ", answer.read().decode(), re.MULTILINE))
    ours = {name for name in served if name.startswith("dledger_")}
    assert {name for name in ours if not name.endswith("_created")} == listed


# --- topics -------------------------------------------------------------------------------------


def test_topic_is_created_listed_described_and_deleted(group: LocalGroup) -> None:
    """Its whole life, as JSON."""
    created = facts(group, "topic", "create", "life", "--queues", "3")
    assert (created["name"], created["queue_count"]) == ("life", 3)
    assert created in facts(group, "topic", "list")
    assert told(group, "topic", "update", "life", "--retention-hours", "0.5") == (
        "life: 3 queues, kept 0.5 h\n"
    )
    created |= {"retention_hours": 0.5}
    assert facts(group, "topic", "create", "life", "--queues", "3", "--if-not-exists") == created
    assert told(group, "topic", "update", "life", "--read-queues", "4", "--write-queues", "2") == (
        "life: 4 queues, 2 of them written, kept 0.5 h\n"
    )
    assert "life" in told(group, "topic", "list")
    assert "Queues 0 to 1 take messages." in told(group, "topic", "describe", "life")
    wrong = invoked(group, "topic", "update", "life", "--write-queues", "5")
    assert wrong[0] == ExitCode.USAGE
    created = facts(group, "topic", "update", "life", "--read-queues", "3", "--write-queues", "3")
    assert (created["queue_count"], created["write_queues"]) == (3, 3)
    described = facts(group, "topic", "describe", "life")
    empty = [{"queue_id": at, "min_offset": 0, "max_offset": 0} for at in range(3)]
    assert described == created | {"queues": empty, "groups": {}}
    assert facts(group, "topic", "delete", "life") == {"deleted": "life"}
    assert created not in facts(group, "topic", "list")


def test_a_topic_is_closed_and_opened(group: LocalGroup, tmp_path: Path) -> None:
    """Who sends and who reads is told by name; what was stored is there when it is read again."""
    created = facts(group, "topic", "create", "gate", "--queues", "1", "--perm", "r")
    assert created["permission"] == "r"
    line, out = tmp_path / "line", tmp_path / "out"
    line.write_text("a\n")
    send = ("produce", "gate", "--input", str(line))
    read = ("consume", "gate", "--max", "1", "--output", str(out))
    code, _, error = invoked(group, *send)
    assert (code, "takes no messages" in error) == (ExitCode.FAILED, True)
    both = told(group, "topic", "update", "gate", "--perm", "w", "--retention-hours", "1")
    assert both == "gate: 1 queue, kept 1 h, only written\n"
    told(group, *send)
    code, _, error = invoked(group, *read)
    assert (code, "gives no messages" in error) == (ExitCode.FAILED, True)
    listed = [line.split() for line in told(group, "topic", "list").splitlines()]
    assert ["gate", "1", "1", "w"] in listed
    assert facts(group, "topic", "update", "gate", "--perm", "rw")["permission"] == "rw"
    told(group, *read)
    assert out.read_text() == "a\n"


def test_many_groups_and_long_names_fit_a_terminal(group: LocalGroup) -> None:
    """A column for each group as long as there is room."""
    name = "n" * 127
    told(group, "topic", "create", name, "--queues", "2")
    client = BlockingClient.connect(group.nodes[0].address)
    with client:
        client.commit_offsets("short", name, {0: 0})
        titles = told(group, "topic", "describe", name).splitlines()[0].split()
        assert titles == ["QUEUE", "MIN", "MAX", "short"]
        for number in range(3):
            client.commit_offsets(f"{number}" + "g" * 118, name, {0: 0})
    lines = told(group, "topic", "describe", name).splitlines()
    assert ["GROUP", "BEHIND"] in [line.split() for line in lines]
    assert max(map(len, lines + told(group, "topic", "list").splitlines())) <= 80
    told(group, "topic", "delete", name)


def test_a_topic_is_measured(group: LocalGroup, topic: str) -> None:
    """What it holds, within 80 columns; rates only over a time."""
    found = facts(group, "topic", "stats", topic, "--interval", "0")
    held = [queue["held"] for queue in found["queues"]]
    assert found["held"] == sum(held)
    for queue in found["queues"]:
        assert queue["rate_per_s"] is None
        assert (queue["last_stored_ms"] is None) == (queue["held"] == 0)
    lines = told(group, "topic", "stats", topic, "--interval", "0.05").splitlines()
    assert lines[0].split() == ["QUEUE", "MIN", "MAX", "HELD", "RATE", "LAST"]
    assert len(lines) == 2 + len(held), "one a queue, and one for all"
    assert max(map(len, lines)) <= 80
    assert invoked(group, "topic", "stats", "absent")[0] == ExitCode.FAILED
    assert invoked(group, "topic", "stats", topic, "--interval", "nan")[0] == ExitCode.USAGE


def test_rates_are_of_one_topic() -> None:
    """Of one that was made anew, or of a queue that is new, nothing is told."""

    def measured(incarnation: int, *ends: int) -> TopicStats:
        queues = [QueueStats(at, 0, end, None) for at, end in enumerate(ends)]
        return TopicStats(TopicInfo("t", len(ends), 0, incarnation), queues)

    assert rates_of(measured(5, 10), measured(5, 30, 7), 2.0) == {0: 10.0}
    assert rates_of(measured(5, 10), measured(6, 30), 2.0) == {}


def test_topic_that_exists_is_refused_unless_that_is_fine(group: LocalGroup, topic: str) -> None:
    """--if-not-exists is content with an equal one, not with another."""
    assert invoked(group, "topic", "create", topic)[0] == ExitCode.FAILED
    told(group, "topic", "create", topic, "--queues", "2", "--if-not-exists")
    assert invoked(group, "topic", "create", topic, "--queues", "3", "--if-not-exists")[0] == 1


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "describe", "absent"],
        ["topic", "delete", "absent"],
        ["produce", "absent", "--input", "/dev/null"],
        ["consume", "absent", "--idle-timeout", "1", "--output", "/dev/null"],
        ["query", "offset", "absent", "0", "0"],
    ],
    ids=" ".join,
)
def test_unknown_topic_ends_with_1(group: LocalGroup, command: list[str]) -> None:
    """And is named."""
    code, out, error = invoked(group, *command)
    assert (code, out) == (ExitCode.FAILED, "")
    assert "absent" in error


@pytest.mark.parametrize("name", ["a b", "", "a/b", "a" * 128, "../x", "tr\u00e4nen"])
def test_ill_named_topic_ends_with_2(group: LocalGroup, name: str) -> None:
    """The rule is told."""
    code, _, error = invoked(group, "topic", "create", name)
    assert code == ExitCode.USAGE
    assert "1 to 127 characters of A-Z a-z 0-9 _ % -" in error


# --- produce and consume ------------------------------------------------------------------------

LINES = [b"one", b"", b"\xff\x00 not text", b"tr\xc3\xa4nen", b" spaces ", b"\rcr\r", b"last"]


def test_lines_come_back_as_they_were(group: LocalGroup, topic: str) -> None:
    """Through two pipes, silent but for the lines; a key keeps their order."""
    data = b"".join(line + b"\n" for line in LINES)
    result = program(group, "produce", topic, "--key", "k", data=data)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    result = program(group, "consume", topic, "--from", "first", "--max", str(len(LINES)))
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == data.replace(b"\rcr\r\n", b"\rcr\n")


def test_file_with_its_line_endings_comes_back_byte_by_byte(
    group: LocalGroup, topic: str, tmp_path: Path
) -> None:
    """--keep-line-ending one way and --raw the other, over files."""
    content = b"one\r\n\ntwo\n\x00\xff\nno newline at the end"
    (tmp_path / "in").write_bytes(content)
    options = ("--input", str(tmp_path / "in"), "--key", "k", "--keep-line-ending")
    told(group, "produce", topic, *options)
    out = str(tmp_path / "out")
    told(group, "consume", topic, "--raw", "--output", out, "--max", "5")
    assert (tmp_path / "out").read_bytes() == content


def test_produce_summary_has_the_designs_keys(
    group: LocalGroup, topic: str, tmp_path: Path
) -> None:
    """And its numbers fit each other."""
    (tmp_path / "in").write_bytes(b"x" * 99 + b"\n" + b"y\n" * 999)
    summary = facts(group, "produce", topic, "--input", str(tmp_path / "in"))
    assert (summary["sent"], summary["acked"]) == (1000, 1000)
    assert (summary["failed"], summary["unknown"]) == (0, 0)
    assert summary["msgs_per_s"] == pytest.approx(1000 / summary["duration_s"], rel=0.05)
    assert summary["mb_per_s"] == pytest.approx(1098e-6 / summary["duration_s"], abs=0.002)
    latency = summary["latency_ms"]
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    described = facts(group, "topic", "describe", topic)
    assert sum(queue["max_offset"] for queue in described["queues"]) == 1000


def test_consumer_group_goes_on_where_it_was(group: LocalGroup, topic: str) -> None:
    """--max commits what was written, no more, though more was fetched."""
    produced(group, topic, [b"1", b"2", b"3", b"4", b"5"], "--key", "k")
    assert consumed(group, topic, "--group", "g", "--max", "2") == b"1\n2\n"
    assert consumed(group, topic, "--group", "g", "--max", "1") == b"3\n"
    assert consumed(group, topic, "--group", "g", "--idle-timeout", "0.2") == b"4\n5\n"
    assert consumed(group, topic, "--group", "g", "--idle-timeout", "0.2") == b""
    told(group, "consumers", "reset-offset", "g", topic, "--to", "first")
    assert consumed(group, topic, "--group", "g", "--from", "first", "--max", "1") == b"1\n"
    told(group, "consumers", "skip", "g", topic, "--all")
    groups = facts(group, "topic", "describe", topic)["groups"]
    assert set(groups) == {"g"}
    assert sorted(groups["g"].values()) == [0, 5]


def test_consumer_without_a_group_commits_nothing(group: LocalGroup, topic: str) -> None:
    """It only looks."""
    produced(group, topic, [b"1"])
    assert consumed(group, topic, "--max", "1") == b"1\n"
    assert facts(group, "topic", "describe", topic)["groups"] == {}


def test_consumer_from_last_gets_only_what_comes(group: LocalGroup, topic: str) -> None:
    """What was there before isn't told."""
    produced(group, topic, [b"before"])
    assert consumed(group, topic, "--from", "last", "--idle-timeout", "0.2") == b""


def test_compressed_lines_are_consumed_as_they_were(group: LocalGroup, topic: str) -> None:
    """On real nodes, which store and check what they are given."""
    line = b"the same line again and again, " * 400
    produced(group, topic, [line, b"short"], "--compression", "zlib", "--key", "k")
    assert consumed(group, topic, "--max", "2") == line + b"\nshort\n"


def test_consumed_json_tells_everything_and_query_finds_it(group: LocalGroup, topic: str) -> None:
    """One object a message; a body that isn't text is in base64 and says so."""
    produced(group, topic, [b"text", b"\xff"], "--key", "k", "--tag", "t")
    lines = consumed(group, topic, "--json", "--max", "2").splitlines()
    first, second = (json.loads(line) for line in lines)
    assert (first["topic"], first["queue_offset"], first["tags"]) == (topic, 0, "t")
    assert (first["body"], first["body_encoding"]) == ("text", "utf-8")
    assert (second["body"], second["body_encoding"]) == ("/w==", "base64")
    assert first["properties"]["KEYS"] == "k"
    assert first["born_time_ms"] > 0
    assert facts(group, "query", "id", first["message_id"]) == first
    place = (topic, str(second["queue_id"]), str(second["queue_offset"]))
    assert facts(group, "query", "offset", *place) == second
    assert f"message_id     {first['message_id']}\n" in told(
        group, "query", "id", first["message_id"]
    )


@pytest.mark.parametrize("arguments", [["id", "0" * 32], ["offset", "{topic}", "0", "99"]])
def test_message_that_is_not_there_ends_with_1(
    group: LocalGroup, topic: str, arguments: list[str]
) -> None:
    """By id, by place."""
    words = [word.format(topic=topic) for word in arguments]
    code, out, error = invoked(group, "query", *words)
    assert (code, out) == (ExitCode.FAILED, "")
    assert error.startswith("dledger: ")


def test_what_is_no_message_id_ends_with_2(group: LocalGroup) -> None:
    """It was typed wrongly: there is nothing to look for."""
    code, out, error = invoked(group, "query", "id", "nonsense")
    assert (code, out) == (ExitCode.USAGE, "")
    assert error.startswith("dledger: ")


def test_reader_that_has_enough_ends_consume_quietly(group: LocalGroup, topic: str) -> None:
    """`| head`: exit code 0, nothing on standard error."""
    produced(group, topic, [b"x" * 1000] * 500)
    with begun(group, "consume", topic) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"x" * 1000 + b"\n"
        running.stdout.close()
        assert running.wait(WAIT_S) == 0
        assert running.stderr.read() == b""


def test_interrupted_produce_tells_what_became_of_it(group: LocalGroup, topic: str) -> None:
    """Ctrl-C on an endless input: everything that was read is acknowledged, exit code 130."""
    with begun(group, "produce", topic, "--json") as running:
        assert running.stdin is not None
        running.stdin.write(b"1\n2\n3\nunfinished")
        running.stdin.flush()
        assert consumed(group, topic, "--max", "3").count(b"\n") == 3
        running.send_signal(signal.SIGINT)
        assert running.wait(WAIT_S) == ExitCode.INTERRUPTED
        assert running.stdout is not None
        summary = json.loads(running.stdout.read())
    assert (summary["sent"], summary["acked"], summary["unknown"]) == (3, 3, 0)


def test_interrupted_consume_has_committed(group: LocalGroup, topic: str) -> None:
    """Ctrl-C while it waits for more: the next run begins behind what was written."""
    produced(group, topic, [b"1", b"2"], "--key", "k")
    with begun(group, "consume", topic, "--group", "g-interrupted") as running:
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
        running.send_signal(signal.SIGINT)
        assert running.wait(WAIT_S) == ExitCode.INTERRUPTED
    assert consumed(group, topic, "--group", "g-interrupted", "--idle-timeout", "0.2") == b""


def test_line_that_is_too_long_is_named_and_those_before_are_stored(
    group: LocalGroup, topic: str
) -> None:
    """4 MiB is the largest message."""
    data = b"fine\n" + b"x" * ((4 << 20) + 2) + b"\nnever read\n"
    result = program(group, "produce", topic, "--json", data=data)
    assert result.returncode == ExitCode.FAILED
    assert b"dledger: line 2 is longer than" in result.stderr
    summary = json.loads(result.stdout)
    assert (summary["sent"], summary["acked"]) == (1, 1)


def test_largest_message_is_taken(group: LocalGroup, topic: str, tmp_path: Path) -> None:
    """Exactly 4 MiB, by way of a file."""
    (tmp_path / "in").write_bytes(b"x" * (4 << 20) + b"\n")
    assert facts(group, "produce", topic, "--input", str(tmp_path / "in"))["acked"] == 1


def test_input_that_is_not_there_ends_with_1(group: LocalGroup, topic: str) -> None:
    """The system's reason is told."""
    code, _, error = invoked(group, "produce", topic, "--input", "/nowhere")
    assert code == ExitCode.FAILED
    assert error == "dledger: /nowhere: No such file or directory\n"


def test_input_that_is_a_folder_is_named(group: LocalGroup, topic: str, tmp_path: Path) -> None:
    """A folder can be opened; what can't be done is reading it."""
    code, _, error = invoked(group, "produce", topic, "--input", str(tmp_path))
    assert code == ExitCode.FAILED
    said = f"reading stopped behind line 0: {tmp_path}: Is a directory"
    assert error == f"dledger: {said}\n"


def test_output_without_room_is_named_and_nothing_is_committed(
    group: LocalGroup, topic: str, tmp_path: Path
) -> None:
    """What could not be written was not consumed."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"a\nb\n")
    told(group, "produce", topic, "--input", str(lines))
    arguments = ["consume", topic, "--group", "g-full", "--output", "/dev/full", "--max", "2"]
    code, _, error = invoked(group, *arguments)
    assert code == ExitCode.FAILED
    assert error == "dledger: /dev/full: No space left on device\n"
    assert facts(group, "topic", "describe", topic)["groups"] == {"g-full": {"0": 0, "1": 0}}


@pytest.mark.parametrize(
    "command",
    [
        ["produce", "{topic}", "--tag", "a\x01b", "--input", "{lines}"],
        ["consume", "{topic}", "--group", "a b", "--output", "{lines}"],
        ["query", "id", "nonsense"],
        ["query", "id", ""],
        ["group", "transfer", "a b"],
        ["group", "start", "../n1"],
        ["group", "kill", ""],
    ],
    ids=" ".join,
)
def test_wrong_name_ends_with_2(
    group: LocalGroup, topic: str, tmp_path: Path, command: list[str]
) -> None:
    """One line that says which, whoever of command line, client and group found it."""
    lines = tmp_path / "lines"
    lines.write_bytes(b"a\n")
    code, out, error = invoked(group, *[w.format(topic=topic, lines=lines) for w in command])
    assert (code, out) == (ExitCode.USAGE, ""), error
    assert error.count("\n") == 1


def test_one_queue_is_not_queues(group: LocalGroup) -> None:
    """Numbers are read by people, too."""
    assert told(group, "topic", "create", "single", "--queues", "1") == "single: 1 queue\n"


# --- groups of their own ------------------------------------------------------------------------


@pytest.fixture
def single(tmp_path: Path) -> Iterator[LocalGroup]:
    """A group of one node, not started."""
    group = LocalGroup.create(tmp_path / "run", GroupOptions(nodes=1))
    yield group
    if (group.directory / GROUP_FILE).exists():
        group.kill_all()


def test_group_goes_down_and_comes_up_with_what_it_held(single: LocalGroup) -> None:
    """Then down --wipe leaves nothing; a stopped process is ended as well."""
    told(single, "group", "up")
    told(single, "topic", "create", "kept")
    told(single, "group", "down")
    assert not any(node.is_running() for node in single.nodes)
    told(single, "group", "up")
    assert [topic["name"] for topic in facts(single, "topic", "list")] == ["kept"]
    told(single, "group", "kill", "n1", "--signal", "STOP")
    process = single.node("n1").process
    assert process is not None
    told(single, "group", "down", "--wipe")
    assert not is_running(process)
    assert not single.directory.exists()


def test_port_in_use_is_named_and_nothing_is_started(single: LocalGroup) -> None:
    """Before any process is made."""
    host, _, port = single.addresses[0].partition(":")
    with socket.create_server((host, int(port))) as listener:
        assert listener.getsockname()[1] == int(port)
        code, _, error = invoked(single, "group", "up")
    assert code == ExitCode.FAILED
    assert error == f"dledger: n1 can't listen on {host}:{port}: the port is in use\n"
    assert single.node("n1").process is None


def test_busy_base_port_leaves_no_group_behind(tmp_path: Path) -> None:
    """Another port can be tried without a word about a group that never ran."""
    directory = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # Of those below 61,000: there is room for metrics.
        arguments = ["group", "up", "--nodes", "1", "--dir", str(directory)]
        result = CliRunner().invoke(app, [*arguments, "--base-port", str(port)])
    assert result.exit_code == ExitCode.FAILED
    assert f"127.0.0.1:{port}: the port is in use" in result.stderr
    assert not directory.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        ["--base-port", "65535"],
        ["--base-port", "64536", "--nodes", "2"],
        ["--segment-size", "5"],
        ["--segment-size", "3MiB"],
        ["--segment-size", "4GiB"],
    ],
    ids=" ".join,
)
def test_group_that_can_not_be_made_ends_with_2(tmp_path: Path, wrong: list[str]) -> None:
    """Before anything is written."""
    directory = tmp_path / "run"
    result = CliRunner().invoke(app, ["group", "up", "--dir", str(directory), *wrong])
    assert (result.exit_code, result.stdout) == (ExitCode.USAGE, "")
    assert result.stderr.count("\n") == 1
    assert not directory.exists()


@pytest.mark.parametrize("key", ["listen", "metrics_listen"])
def test_address_of_another_machine_is_no_busy_port(tmp_path: Path, key: str) -> None:
    """TEST-NET-1 (RFC 5737) is nobody's: looking for who holds the port would take long."""
    place = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        place["listen"] = f"127.0.0.1:{free.getsockname()[1]}"
    place[key] = "192.0.2.1:7001"
    file = tmp_path / "node.toml"
    file.write_text(
        'broker_group = "g"\nnode_id = "n"\ndata_directory = "data"\ninsecure = true\n'
        + f'listen = "{place["listen"]}"\n'
        + (f'metrics_listen = "{place[key]}"\n' if key == "metrics_listen" else "")
        + f'[peers]\nn = "{place["listen"]}"\n[store]\nsegment_size_bytes = 8388608\n',
        encoding="utf-8",
    )
    result = subprocess.run(
        [sys.executable, "-P", "-m", "dledger_cli", "node", "--config", str(file)],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == ExitCode.FAILED
    assert b"this machine has no such address" in result.stderr
    assert b"in use" not in result.stderr


def test_new_group_is_formed_before_its_nodes_run(single: LocalGroup) -> None:
    """No node of it stands by; and what broke off in between is finished by the next `up`."""

    rounds: list[object] = []

    def lose(steps: Sequence[Callable[[], None]]) -> None:
        rounds.append(steps)
        if len(rounds) == 2:  # all have prepared, and nobody is to commit
            raise KeyboardInterrupt
        one_by_one(steps)

    config, files = load_config(Path(single.node("n1").config)), OsFiles()
    with pytest.raises(KeyboardInterrupt):
        form_disks([config], lambda _: files, run_all=lose)
    assert (config.data_directory / "formation.json").exists()
    told(single, "group", "up")
    log = single.node("n1").log_file.read_text()
    assert "node_started" in log
    assert "node_unformed" not in log


def test_node_that_dies_at_its_start_shows_the_end_of_its_log(single: LocalGroup) -> None:
    """The reason is in the error, not only in a file."""
    node = single.node("n1")
    Path(node.log_file).write_text("an earlier life\n")
    with open(node.config, "a", encoding="utf-8") as config:
        config.write("[nonsense]\n")
    code, _, error = invoked(single, "group", "up")
    assert code == ExitCode.FAILED
    assert error.startswith(f"dledger: n1 ended at its start; {node.log_file} says:\n")
    assert "nonsense: found an unknown key" in error
    assert "an earlier life" not in error


def test_data_of_another_segment_size_ends_the_node(single: LocalGroup) -> None:
    """A property of the group can't be changed in a file."""
    told(single, "group", "up")
    told(single, "group", "down")
    config = Path(single.node("n1").config)
    old, new = (f"segment_size_bytes = {size}" for size in (67108864, 33554432))
    config.write_text(config.read_text().replace(old, new))
    code, _, error = invoked(single, "group", "start", "n1")
    assert code == ExitCode.FAILED
    assert "segment_size_bytes 67108864, configured is 33554432" in error
    assert "Traceback" not in error


def test_corruption_ends_the_node_with_its_place(single: LocalGroup, tmp_path: Path) -> None:
    """File and offset are told, and what may help; the file isn't touched. With the bytes of a
    copy from before it is put right, and the node starts."""
    told(single, "group", "up")
    told(single, "topic", "create", "t", "--queues", "1")
    (tmp_path / "in").write_bytes(b"message\n" * 100)
    told(single, "produce", "t", "--input", str(tmp_path / "in"))
    told(single, "group", "down")
    segment = Path(single.node("n1").data_directory) / "commitlog" / f"{0:020}"
    copy = tmp_path / "copy"
    shutil.copytree(segment.parent.parent, copy)
    with segment.open("r+b") as file:
        file.seek(200)
        byte = file.read(1)
        file.seek(200)
        file.write(bytes([byte[0] ^ 1]))
    before = segment.read_bytes()
    code, _, error = invoked(single, "group", "start", "n1")
    assert code == ExitCode.FAILED
    assert f"corruption in {segment} at byte" in error
    assert "dledger log repair" in error
    assert "Traceback" not in error
    assert segment.read_bytes() == before
    arguments = ["--data", str(segment.parent.parent), "--from", str(copy)]
    result = CliRunner().invoke(app, ["log", "repair", *arguments])
    assert result.exit_code == 0, result.output
    told(single, "group", "start", "n1")
    told(single, "consume", "t", "--from", "first", "--max", "100", "--output", str(tmp_path / "o"))
    assert (tmp_path / "o").read_bytes() == (tmp_path / "in").read_bytes()


def test_environment_names_the_group(group: LocalGroup, topic: str, tmp_path: Path) -> None:
    """$DLEDGER_BOOTSTRAP goes before the group in `run`, which nobody has named."""
    environment = os.environ | {"DLEDGER_BOOTSTRAP": ",".join(group.addresses)}
    command = [*PROGRAM, "topic", "list", "--json"]
    result = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, timeout=WAIT_S, check=True
    )
    assert topic in [info["name"] for info in json.loads(result.stdout)]
