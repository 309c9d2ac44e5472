"""ConsumeQueues whose bytes are wrong: no wrong answer, no node that ends, the same bytes after.

The node is the product's, on a real disk; its files are spoilt from outside, as a disk does it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from broker.node import Machine
from broker.replica import Replica
from dledger.records.record import decode_records
from dledger.wire import broker_pb2, errors_pb2
from store.files import OsFiles
from tests.integration.group import SEGMENT_BYTES, WAIT_S, Group, error_of, make_configs
from tests.integration.test_full_disk import on_a_loop

QUEUES = 2
BATCHES = 30
SEEDS = [*range(3), *(pytest.param(each, marks=pytest.mark.long) for each in range(3, 6))]


def bodies(queue_id: int) -> list[bytes]:
    return [
        b"%d/%d/%d" % (queue_id, batch, n) for batch in range(BATCHES) for n in range(batch % 4)
    ]


@dataclass(slots=True)
class Rotten:
    """A group of one, its queues' files, and what they should be."""

    group: Group
    folder: Path
    sound: dict[Path, bytes]

    @property
    def node(self) -> Replica:
        return self.group.nodes["n1"]

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.folder.rglob("0*") if path.is_file()}

    def spoil(self, chance: Random) -> None:
        """One of the files has other bytes, or more, or fewer, or is gone."""
        path = chance.choice(sorted(self.sound))
        content = bytearray(path.read_bytes() if path.exists() else b"")
        held = len(self.sound[path].rstrip(b"\0"))
        at = chance.randrange(held + 40)
        match chance.choice(("flip", "flip", "zeros", "noise", "cut", "grow", "gone")):
            case "flip" if at < len(content):
                content[at] ^= 1 << chance.randrange(8)
            case "zeros":
                content[at : at + 60] = bytes(len(content[at : at + 60]))
            case "noise":
                content[at : at + 60] = chance.randbytes(len(content[at : at + 60]))
            case "cut":
                del content[at:]
            case "grow":
                content += chance.randbytes(30)
            case "gone":
                path.unlink(missing_ok=True)
                return
        if path.exists():
            with path.open("r+b") as file:  # in place, below a node that has it open
                file.write(content)
                file.truncate(len(content))

    async def ask_everything(self) -> int:
        """Each answer is right, or a refusal that says to try again; how many were refused."""
        refused = 0
        for queue_id in range(QUEUES):
            expected = bodies(queue_id)
            for offset in range(len(expected)):
                pull = broker_pb2.PullRequest(
                    topic="t", queue_id=queue_id, offset=offset, max_messages=7, max_bytes=1 << 20
                )
                answer = await self._ask("Pull", pull)
                if answer is None:
                    refused += 1
                    continue
                found = [(r.queue_offset, r.body) for r in decode_records(answer.records)]
                assert found == list(enumerate(expected))[offset : offset + answer.count]
                assert answer.count > 0
            refused += await self._ask_by_time(queue_id, len(expected))
        return refused

    async def _ask_by_time(self, queue_id: int, end: int) -> int:
        refused = 0
        for time_ms, expected in ((0, 0), (1 << 50, end)):
            request = broker_pb2.GetOffsetByTimeRequest(
                topic="t", queue_id=queue_id, time_ms=time_ms
            )
            answer = await self._ask("GetOffsetByTime", request)
            refused += answer is None
            assert answer is None or answer.offset == expected
        bounds = await self._ask(
            "GetQueueOffsets", broker_pb2.GetQueueOffsetsRequest(topic="t", queue_id=queue_id)
        )
        assert (bounds.min_offset, bounds.max_offset) == (0, end)
        return refused

    async def _ask(self, method: str, request: Message) -> Any:
        try:
            return await self.group.ask(method, request)
        except grpc.aio.AioRpcError as error:
            assert error_of(error).code == errors_pb2.NOT_READY  # noqa: PT017  or it was right
            return None

    async def mended(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while self.node.mender.is_at_work:
            assert time.monotonic() < deadline, "nobody mends it"
            await asyncio.sleep(0.005)


async def made(directory: Path) -> Rotten:
    """Nobody looks at the files but who is asked for what they hold: a scrub would find what a test
    has spoilt, and have it mended, before the test has asked."""
    unscrubbed = {"segment_size_bytes": SEGMENT_BYTES, "reserve_bytes": 0, "scrub_percent": 0}
    group = Group(
        make_configs(directory, count=1, store=unscrubbed),
        lambda _: Machine(OsFiles(), lambda: int(time.time() * 1000)),
    )
    await group.start()
    await group.create_topic(queues=QUEUES)
    sent = [0] * QUEUES
    for batch in range(BATCHES):
        for queue_id in range(QUEUES):
            count = batch % 4
            if count:
                own = bodies(queue_id)[sent[queue_id] : sent[queue_id] + count]
                await group.send(sent[queue_id], *own, queue_id=queue_id)
                sent[queue_id] += count
    await group.nodes["n1"].housekeeping.make_round()
    rotten = Rotten(group, directory / "n1" / "consumequeue", {})
    rotten.sound = rotten.files()
    assert len(rotten.sound) == QUEUES
    return rotten


@pytest.mark.parametrize("seed", SEEDS)
@on_a_loop
async def test_queues_that_rot_below_a_running_node(tmp_path: Path, seed: int) -> None:
    """Whatever byte changes: no wrong answer, and what was noticed is right again. What nobody
    asked for is found by the next start."""
    chance = Random(seed)
    rotten = await made(tmp_path)
    try:
        for _ in range(5):
            for _ in range(chance.randint(1, 3)):
                rotten.spoil(chance)
            await rotten.ask_everything()
            await rotten.mended()
            assert await rotten.ask_everything() == 0
        assert await rotten.group.stop("n1") == 0
        await rotten.group.start("n1")
        await rotten.group.leader()
        await rotten.mended()
        assert rotten.files() == rotten.sound
    finally:
        await rotten.group.close()


@pytest.mark.parametrize("seed", SEEDS)
@on_a_loop
async def test_queues_that_rot_while_their_node_is_down(tmp_path: Path, seed: int) -> None:
    """The start finds every byte of it, tags codes and what lies behind the end included."""
    chance = Random(seed)
    rotten = await made(tmp_path)
    try:
        for _ in range(5):
            assert await rotten.group.stop("n1") == 0
            for _ in range(chance.randint(1, 3)):
                rotten.spoil(chance)
            await rotten.group.start("n1")
            await rotten.group.leader()
            await rotten.ask_everything()
            await rotten.mended()
            assert rotten.files() == rotten.sound
            assert await rotten.ask_everything() == 0
    finally:
        await rotten.group.close()


@on_a_loop
async def test_nothing_new_is_noted_while_a_queue_is_known_to_be_wrong(tmp_path: Path) -> None:
    """The checkpoint speaks of all queues; new messages are taken and given all the same."""
    rotten = await made(tmp_path)
    try:
        node = rotten.node
        await node.mender.stop()
        before = node.log.checkpoint.state.consume_queue_index
        path = sorted(rotten.sound)[0]
        path.write_bytes(b"\1" * 200 + rotten.sound[path][200:])
        await rotten.ask_everything()
        assert node.mender.is_at_work
        await rotten.group.send(len(bodies(0)), b"new")
        await node.housekeeping.make_round()
        assert node.log.checkpoint.state.consume_queue_index == before
        request = broker_pb2.PullRequest(topic="t", offset=len(bodies(0)), max_messages=1)
        assert (await rotten.group.ask("Pull", request)).count == 1
        node.mender.start()
        await rotten.mended()
        await node.housekeeping.make_round()
        assert node.log.checkpoint.state.consume_queue_index > before
    finally:
        await rotten.group.close()


@on_a_loop
async def test_only_units_of_the_present_topic_are_mended_in(tmp_path: Path) -> None:
    """A topic deleted and made anew with fewer messages: what the log has of the earlier one is
    nowhere in its files, before, while and after they are mended."""
    rotten = await made(tmp_path)
    try:
        group, node = rotten.group, rotten.node
        await group.ask("DeleteTopic", broker_pb2.DeleteTopicRequest(name="t"))
        await group.create_topic(queues=QUEUES)
        await group.send(0, b"one", b"two")
        folder = rotten.folder / node.machine.topics["t"].folder
        path = folder / "0" / sorted(rotten.sound)[0].name
        sound = path.read_bytes()
        path.write_bytes(b"\1" * 40 + sound[40:])
        written: list[int] = []
        mend = node.queues.mend

        def noting(topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> int:
            written.append(mend(topic, queue_id, base_queue_offset, units))
            return written[-1]

        node.queues.mend = noting  # type: ignore[method-assign]
        with pytest.raises(grpc.aio.AioRpcError):
            await group.ask("Pull", broker_pb2.PullRequest(topic="t", max_messages=1))
        await rotten.mended()
        assert written == [2]
        assert path.read_bytes() == sound
    finally:
        await rotten.group.close()
