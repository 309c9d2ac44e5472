"""A data directory that the release before level 1 wrote: it opens, and all of it is read.

`tests/fixtures/before-levels.tar.xz` is the directory of a group of one node. In it: the topic
`kept` with 2 queues and 40 messages in the second one, of which the group `readers` has committed
25; and `gone`, which got 7 messages, was deleted, and was made anew with 2 queues and 3 messages.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from audit.commands.app import app
from audit.proof.findings import Cause
from broker.config import NodeConfig, StoreConfig
from broker.recovery import Recovered, recover
from chaos.forming import form_disks
from dledger.codec import decode_configuration
from dledger.core.types import NodeId
from dledger.reading.decode import Wanted, read_records
from dledger.reading.ranges import checked_log, log_ranges
from dledger.reading.survey import survey_folder
from dledger.wire.raft_pb2 import Configuration
from store.files import OsFiles
from store.starting.errors import NotAMember
from tests.node.members import Members

FIXTURE = Path(__file__).parents[1] / "fixtures" / "before-levels.tar.xz"
SEGMENT = 8 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


def adopted(directory: Path) -> NodeConfig:
    """The configuration of the node, whose group was adopted: nothing is taken over silently."""
    address = "127.0.0.1:7001"
    config = NodeConfig(
        broker_group="local",
        node_id="n1",
        data_directory=directory,
        listen=address,
        peers={"n1": address},
        store=StoreConfig(segment_size_bytes=SEGMENT),
    )
    with pytest.raises(NotAMember, match="--adopt"):
        recover(config)
    form_disks([config], lambda _: OsFiles(), adopt=True)
    return config


def opened(directory: Path) -> Recovered:
    """As a node opens it."""
    return recover(adopted(directory))


async def mended(directory: Path) -> None:
    """What a node of today makes of it: derived files lie elsewhere, and are made while it runs."""
    group = Members([adopted(directory)])
    group.start()
    replica = await group.leader()
    await group.until(lambda: not replica.mender.is_at_work)
    await group.until(replica.log.configuration_entries)  # the first leader's
    ((_, body),) = replica.log.configuration_entries()
    named = decode_configuration(Configuration.FromString(body))
    assert named.disk_of(NodeId("n1")) == replica.member.describe().disk_id
    assert await group.stop(NodeId("n1"))


def test_node_opens_it_with_all_its_state(directory: Path) -> None:
    """Topics, offsets and messages are those that the older release had."""
    found = opened(directory)
    try:
        topics = {each.name: each.next_offsets for each in found.machine.topics.values()}
        assert topics == {"kept": [0, 40], "gone": [3, 0]}
        assert found.machine.offsets.of("readers", "kept") == {1: 25}
        assert found.machine.messages_applied == 50
        assert len(found.machine.producers) == 0  # they named themselves: ADR 25
    finally:
        found.log.close()
        found.directory.close()


def test_readers_see_every_message(directory: Path) -> None:
    """A message as data is what was sent, of deleted topics as well."""
    log = checked_log(survey_folder("n1", str(directory)))
    wanted = Wanted(columns=("topic", "queue_id", "queue_offset", "tags", "body"))
    rows = [
        row
        for part in log_ranges(log, 0, log.end)
        for records in read_records(part, wanted)
        for row in zip(*records.columns.values(), strict=True)
    ]
    kept: list[tuple[object, ...]]
    kept = [("kept", 1, n, "red", f"kept message {n + 1}".encode()) for n in range(40)]
    gone = [("gone", 0, n, None, f"gone message {n + 1}".encode()) for n in range(7)]
    anew = [("gone", 0, n, None, f"anew {n + 1}".encode()) for n in range(3)]
    assert sorted(rows, key=str) == sorted([*kept, *gone, *anew], key=str)


def test_audit_finds_nothing_wrong_with_it_but_that_it_must_be_adopted(directory: Path) -> None:
    """Two copies agree, with digests and ConsumeQueues; only, no node would start on them yet."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    replicas = ["--replica", f"n1={directory}", "--replica", f"n2={copy}"]
    result = CliRunner().invoke(app, ["replicas", *replicas, "--json"])
    assert result.exit_code == 3, result.output
    findings = json.loads(result.stdout)["findings"]
    found = [each["detail"] for each in findings if each["cause"] != Cause.SAME_DISK]
    assert len(found) == 2, findings
    assert all("init --adopt" in each for each in found)


def test_audit_finds_nothing_wrong_with_it_once_it_was_opened(directory: Path) -> None:
    """Whatever a newer node does to the derived files when it starts."""
    asyncio.run(mended(directory))
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    replicas = ["--replica", f"n1={directory}", "--replica", f"n2={copy}"]
    result = CliRunner().invoke(app, ["replicas", *replicas, "--json"])
    assert result.exit_code == 3, result.output
    findings = json.loads(result.stdout)["findings"]
    assert [each["cause"] for each in findings] == [Cause.SAME_DISK], findings
