"""Releases before this one, as programs that run, and what they wrote.

`tests/fixtures/program-of-level-1.tar.xz` are the modules that `dledger node` of the last commit
of level 1 imports, as they were; `program-of-level-4.tar.xz` those of the last commit of level 4.
`tests/fixtures/level-1.tar.xz` and `level-4.tar.xz` are the data directories of a group of three of
its nodes, stopped by SIGTERM; `python -m tests.integration.older_program LEVEL FILE` makes the like
of it, and did.

What they held: the topic `kept` with 2 queues and 40 messages in the second one, of which the group
`readers` has committed 25; and `gone`, which got 7 messages, was deleted, and was made anew with
2 queues and 3 messages.
"""

from __future__ import annotations

import asyncio
import compileall
import signal
import sys
import tarfile
import tempfile
from pathlib import Path

from broker.local_group import GroupOptions, LocalGroup, LocalNode
from broker.local_group.group import program
from dledger.client import Client
from dledger.level import FIRST_LEVEL

FIXTURES = Path(__file__).parents[1] / "fixtures"
LEVELS = (1, 4)  # of the programs that are kept
SEGMENT = 8 << 20
# Of a configuration, to the release of level 1; ours are their defaults.
UNKNOWN_KEYS = (
    *("scrub_percent", "[retention]", "age_hours =", "bytes =", "disk_percent ="),
    *("archive =", "archive_hold_hours =", "group_unused_hours ="),
)
UNKNOWN_TO_LEVEL_FOUR = ("group_unused_hours =",)
KEPT = [b"kept message %d" % number for number in range(1, 41)]
GONE = [b"gone message %d" % number for number in range(1, 8)]
ANEW = [b"anew %d" % number for number in range(1, 4)]
COMMITTED = 25
# `python -m dledger_cli node` would import every command's modules.
_SHIM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import typer; "
    "from dledger_cli.node import node; typer.run(node)"
)


def program_of(level: int) -> Path:
    """The modules of the last program of a level."""
    return FIXTURES / f"program-of-level-{level}.tar.xz"


def data_of(level: int) -> Path:
    """What that program wrote."""
    return FIXTURES / f"level-{level}.tar.xz"


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    # Once, and not by each of three nodes that start at the same time.
    compileall.compile_dir(folder, quiet=2)
    return folder


class MixedGroup:
    """A local group, each of whose nodes is started by the older program until it is upgraded."""

    def __init__(self, folder: Path, level: int = FIRST_LEVEL) -> None:
        """Args:
        level: of the older program.
        """
        self.level = level
        older = unpacked(program_of(level), folder / "older")
        self.upgraded: set[str] = set()

        def command(node: LocalNode) -> list[str]:
            if node.id in self.upgraded:
                return program(node)
            return [sys.executable, "-P", "-c", _SHIM, str(older), "--config", node.config]

        options = GroupOptions(segment_size_bytes=SEGMENT)
        self.local = LocalGroup.create(folder / "run", options, command)
        for node in self.local.nodes:
            file = Path(node.config)
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            unknown = UNKNOWN_KEYS if level == FIRST_LEVEL else UNKNOWN_TO_LEVEL_FOUR
            known = [line for line in lines if not line.startswith(unknown)]
            file.write_text("".join(known), encoding="utf-8")

    async def stop(self, node_id: str) -> None:
        """As an operator does: SIGTERM, and it is gone."""
        self.local.signal(node_id, signal.SIGTERM)
        assert await self.local.wait_gone(node_id, 30)


async def fill(group: LocalGroup) -> None:
    """What the fixture holds."""
    async with Client.connect(",".join(group.addresses)) as client:
        for name in ("kept", "gone"):
            await client.create_topic(name, queues=2)
        async with client.producer() as producer:
            for body in KEPT:
                await producer.send("kept", body, queue_id=1, tag="red")
            for body in GONE:
                await producer.send("gone", body, queue_id=0)
        await client.delete_topic("gone")
        await client.create_topic("gone", queues=2)
        async with client.producer() as producer:
            for body in ANEW:
                await producer.send("gone", body, queue_id=0)
        await client.commit_offsets("readers", "kept", {1: COMMITTED})


async def make(level: int, target: Path) -> None:
    """Data directories, by the older program alone."""
    with tempfile.TemporaryDirectory() as folder:
        mixed = MixedGroup(Path(folder), level)
        try:
            await mixed.local.up()
            await asyncio.sleep(3)  # the level is raised as far as the program knows
            await fill(mixed.local)
            await asyncio.sleep(3)  # all is applied and noted everywhere
            await mixed.local.down()
        finally:
            mixed.local.kill_all()
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for node in mixed.local.nodes:
                archive.add(Path(node.config).parent / "data", node.id)


if __name__ == "__main__":
    asyncio.run(make(int(sys.argv[1]), Path(sys.argv[2])))
