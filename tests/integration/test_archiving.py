"""A group whose members give each segment to a command before it goes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

from broker.ports import Rhythm
from dledger.level import LOG_START_LEVEL
from dledger.wire import cluster_pb2
from tests.integration.group import WAIT_S, Group, make_configs

QUICK = Rhythm(housekeeping_s=0.05, log_start_s=0.05, retention_s=0.05)
BODY = b"x" * 1_000_000
KEPT = 16 << 20
COPIES = """
import pathlib, shutil, sys
source, target, allowed = map(pathlib.Path, sys.argv[1:])
if not allowed.exists():
    sys.exit("not allowed")
target = target / source.parent.parent.name
target.mkdir(parents=True, exist_ok=True)
shutil.copyfile(source, target / source.name)
"""


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it doesn't come to hold"
        await asyncio.sleep(0.02)


def test_segments_are_in_the_archive_before_they_go_and_stay_while_it_fails(
    tmp_path: Path,
) -> None:
    """Each member's own, byte for byte. While the command fails nothing goes, and each says so."""
    archive, allowed = tmp_path / "archive", tmp_path / "allowed"
    command = [sys.executable, "-c", COPIES, "{path}", str(archive), str(allowed)]
    retention = {"age_hours": 0, "bytes": KEPT, "archive": command}

    async def story() -> None:
        group = Group(make_configs(tmp_path, retention=retention), rhythm=QUICK)
        await group.start()
        try:
            await group.create_topic()
            leader = await group.leader()
            await until(lambda: leader.machine.level.current >= LOG_START_LEVEL)
            for sequence in range(30):
                await group.send(sequence, BODY)
            nodes = group.nodes
            await until(lambda: all("not allowed" in n.log_start.held for n in nodes.values()))
            before = {
                name: sorted((node.config.data_directory / "commitlog").iterdir())[0]
                for name, node in nodes.items()
            }
            contents = {name: path.read_bytes() for name, path in before.items()}
            assert {path.name for path in before.values()} == {f"{0:020d}"}
            for name, node in nodes.items():
                assert node.log.first_index == 1
                request = cluster_pb2.GetStatusRequest()
                status = await group.call(name, "Cluster", "GetStatus", request)
                assert "not allowed" in status.health.front_held
            allowed.touch()
            for node in nodes.values():
                node.archiver._failed_s.clear()  # rather than a minute
            await until(lambda: all(node.log.first_index > 1 for node in nodes.values()))
            for name, path in before.items():
                await until(lambda path=path: not path.exists())  # type: ignore[misc]
                kept = archive / path.parent.parent.name / path.name
                assert kept.read_bytes() == contents[name]
                assert nodes[name].archiver.statistics().archived >= 1
                assert not nodes[name].archiver.statistics().unarchived
                assert not nodes[name].log_start.held
        finally:
            await group.close()

    asyncio.run(story())
