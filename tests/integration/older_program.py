"""Releases before this one, as programs that run, and what they wrote.

`tests/fixtures/program-of-level-1.tar.xz` are the modules that `dledger node` of the last commit
of level 1 imports, as they were; `program-of-level-4.tar.xz` and `program-of-level-8.tar.xz` those
of the last commits of levels 4 and 8. `tests/fixtures/level-1.tar.xz`, `level-4.tar.xz` and
`level-8.tar.xz` are the data directories of a group of three of its nodes, stopped by SIGTERM;
`python -m tests.integration.older_program LEVEL FILE` makes the like of it, and did.

What they held: the topic `kept` with 2 queues and 40 messages in the second one, of which the group
`readers` has committed 25; and `gone`, which got 7 messages, was deleted, and was made anew with
2 queues and 3 messages. Of level 8 also `work` with 1 queue and 8 messages, every other one `red`:
the group `crew`, which wants those, has failed at the first one, which waits to be tried again,
rejected the second, and is through with the others; `shop` was handed 4 single ones, of which it is
done with the second and third.
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
from dledger.client import Client, Message, PushOptions, Reject
from dledger.level import DELIVERY_LEVEL, FIRST_LEVEL

FIXTURES = Path(__file__).parents[1] / "fixtures"
LEVELS = (1, 4, 8)  # of the programs that are kept
SEGMENT = 8 << 20
# Of a configuration, to the release of level 1; ours are their defaults.
UNKNOWN_KEYS = (
    *("scrub_percent", "[retention]", "age_hours =", "bytes =", "disk_percent ="),
    *("archive =", "archive_hold_hours =", "group_unused_hours ="),
)
UNKNOWN = {1: UNKNOWN_KEYS, 4: ("group_unused_hours =",), 8: ()}
KEPT = [b"kept message %d" % number for number in range(1, 41)]
GONE = [b"gone message %d" % number for number in range(1, 8)]
ANEW = [b"anew %d" % number for number in range(1, 4)]
COMMITTED = 25
WORK = [b"work %d" % number for number in range(8)]  # of level 8
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
            known = [line for line in lines if not line.startswith(UNKNOWN[level])]
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


async def fill_delivery(group: LocalGroup) -> None:
    """What the fixture of level 8 holds besides."""
    async with Client.connect(",".join(group.addresses)) as client:
        await client.create_topic("work", queues=1)
        async with client.producer() as producer:
            for number, body in enumerate(WORK):
                await producer.send("work", body, tag="blue" if number % 2 else "red")
        settings = PushOptions(member="crew-1", max_attempts=3)
        crew = client.push_consumer("crew", options=settings)
        done: list[bytes] = []

        @crew.on("work", tags=["red"])
        async def handle(message: Message) -> None:
            done.append(message.body)
            if message.body == WORK[0]:
                raise RuntimeError("for a while")
            if message.body == WORK[2]:
                raise Reject("nobody can")

        task = asyncio.ensure_future(crew.run())
        async with asyncio.timeout(60):
            while len(done) < len(WORK) // 2 or not (await client.dead_letters("crew")).count:
                await asyncio.sleep(0.05)
        crew.stop()
        await task
        shop = client.simple_consumer("work", "shop", invisible_s=3_600)
        handed = await shop.receive(4)
        await asyncio.gather(*(each.ack() for each in handed[1:3]))
        await shop.close()


async def make(level: int, target: Path) -> None:
    """Data directories, by the older program alone."""
    with tempfile.TemporaryDirectory() as folder:
        mixed = MixedGroup(Path(folder), level)
        try:
            await mixed.local.up()
            await asyncio.sleep(3)  # the level is raised as far as the program knows
            await fill(mixed.local)
            if level >= DELIVERY_LEVEL:
                await fill_delivery(mixed.local)
            await asyncio.sleep(3)  # all is applied and noted everywhere
            await mixed.local.down()
        finally:
            mixed.local.kill_all()
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for node in mixed.local.nodes:
                archive.add(Path(node.config).parent / "data", node.id)


if __name__ == "__main__":
    asyncio.run(make(int(sys.argv[1]), Path(sys.argv[2])))
