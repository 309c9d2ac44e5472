"""A full disk: refused, served on, come back; neither a crash nor a second one at the next start.

The disk is the real one but for space, which is given and taken at the file layer of each node:
no mount, nothing filled.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import grpc
import pytest

from broker.config import NodeConfig, RetentionConfig
from broker.node import Machine
from broker.ports import Rhythm
from broker.replica import Replica
from dledger.level import LOG_START_LEVEL
from dledger.records.record import decode_records
from dledger.wire import broker_pb2, errors_pb2
from store.files import Buffer, Handle, OsFiles
from store.queue_flush import FlushWork
from tests.integration.group import WAIT_S, Group, error_of, make_configs

QUEUES = "consumequeue"
SIZE = 64 << 10
# What a client sees while leadership moves, and sends again after.
PASSING = (
    errors_pb2.NOT_LEADER,
    errors_pb2.NOT_READY,
    errors_pb2.LEADERSHIP_LOST,
    errors_pb2.BUSY,
    errors_pb2.STORAGE_FULL,
)

RETAINING = Rhythm(housekeeping_s=0.05, log_start_s=0.05, retention_s=0.05)

P = ParamSpec("P")


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """The test runs on an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Disk(OsFiles):
    """A disk whose ConsumeQueues take nothing while `queues_full`, and which has no free space
    while `is_full`."""

    def __init__(self) -> None:
        super().__init__()
        self.queues_full = self.is_full = False
        self._of_queues: set[Handle] = set()

    def create(self, path: Path) -> Handle:
        if QUEUES in path.parts:
            self._refuse(self.queues_full)
        return self._noted(super().create(path), path)

    def open(self, path: Path) -> Handle:
        return self._noted(super().open(path), path)

    def close(self, handle: Handle) -> None:
        self._of_queues.discard(handle)
        super().close(handle)

    def pwritev(self, handle: Handle, buffers: Sequence[Buffer], offset: int) -> int:
        self._refuse(self.queues_full and handle in self._of_queues)
        return super().pwritev(handle, buffers, offset)

    def fallocate(self, handle: Handle, size: int) -> None:
        self._refuse(self.is_full)
        super().fallocate(handle, size)

    def free_bytes(self, path: Path) -> int:
        return 0 if self.is_full else super().free_bytes(path)

    def _noted(self, handle: Handle, path: Path) -> Handle:
        if QUEUES in path.parts:
            self._of_queues.add(handle)
        return handle

    def _refuse(self, refused: bool) -> None:
        if refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disks:
    """One for each data directory; it outlives the node's process."""

    def __init__(self) -> None:
        self.of: dict[str, Disk] = {}

    def machine(self, config: NodeConfig) -> Machine:
        disk = self.of.setdefault(config.node_id, Disk())
        return Machine(disk, lambda: int(time.time() * 1000))

    def set_full(self, *, queues: bool = False, log: bool = False) -> None:
        for disk in self.of.values():
            disk.queues_full, disk.is_full = queues, log


@pytest.fixture
def disks() -> Disks:
    return Disks()


async def outcome(group: Group, sequence: int, size: int = 10) -> errors_pb2.ErrorCode:
    """What a send is answered with; UNSPECIFIED: it is stored."""
    return (await group.send(sequence, bytes(size))).error.code


async def pulled(group: Group) -> int:
    request = broker_pb2.PullRequest(topic="t", max_messages=100, max_bytes=1 << 20)
    return int((await group.ask("Pull", request)).count)


async def until_paused(group: Group) -> None:
    """Every node has found that its ConsumeQueues are full."""
    deadline = time.monotonic() + WAIT_S
    while not all(node.driver.statistics().is_apply_paused for node in group.nodes.values()):
        assert time.monotonic() < deadline, "a node doesn't notice"
        await asyncio.sleep(0.005)


@on_a_loop
async def test_full_consume_queues_pause_the_group_and_nothing_is_lost(
    tmp_path: Path, disks: Disks
) -> None:
    """A send under way waits, the next are refused, pulls go on; with space back the first is
    stored once, and no node has failed or been restarted."""
    group = Group(make_configs(tmp_path), disks.machine)
    try:
        await group.start()
        await group.create_topic()
        await group.send(0, b"before")
        await group.applied_everywhere()
        disks.set_full(queues=True)
        under_way = asyncio.create_task(group.send(1, b"under way"))
        await until_paused(group)
        assert await outcome(group, 2) == errors_pb2.STORAGE_FULL
        assert await pulled(group) == 1
        assert not under_way.done()
        disks.set_full()
        assert (await under_way).base_queue_offset == 1
        await group.send(2, b"after")
        assert await pulled(group) == 3
    finally:
        codes = await asyncio.gather(*(group.stop(name) for name in list(group.nodes)))
        await group.close()
    assert codes == [0, 0, 0]


@on_a_loop
async def test_node_that_stopped_with_full_consume_queues_starts_again(
    tmp_path: Path, disks: Disks
) -> None:
    """What was not derived before the stop is derived after it, still on a full disk or not."""
    group = Group(make_configs(tmp_path, count=1), disks.machine)
    try:
        await group.start()
        await group.create_topic()
        await group.send(0, b"before")
        disks.set_full(queues=True)
        under_way = asyncio.create_task(group.send(1, b"under way"))
        await until_paused(group)
        assert await group.stop("n1") == 0
        await asyncio.gather(under_way, return_exceptions=True)
        await group.start("n1")
        await until_paused(group)
        disks.set_full()
        await group.leader()
        assert await pulled(group) == 2
    finally:
        await group.close()


@on_a_loop
async def test_consume_queues_that_can_not_be_mended_for_space_are_refused_until_it_is_back(
    tmp_path: Path, disks: Disks
) -> None:
    """They were lost and have to be derived again. The node starts all the same; the one queue is
    refused as not ready, and is there when there is space, in the same bytes."""
    group = Group(make_configs(tmp_path, count=1), disks.machine)
    try:
        await group.start()
        await group.create_topic()
        await group.send(0, b"x")
        await group.stop("n1")
        (folder,) = (tmp_path / "n1" / QUEUES).glob("t@*")
        unit_file = folder / "0" / f"{0:020d}"
        before = unit_file.read_bytes()
        unit_file.write_bytes(bytes(len(before)))
        disks.set_full(queues=True)
        await group.start("n1")
        await group.leader()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await pulled(group)
        assert error_of(refused.value).code == errors_pb2.NOT_READY
        disks.set_full()
        deadline = time.monotonic() + WAIT_S
        while group.nodes["n1"].mender.is_at_work:
            assert time.monotonic() < deadline, "nobody mends it"
            await asyncio.sleep(0.01)
        assert await pulled(group) == 1
        assert unit_file.read_bytes() == before
    finally:
        await group.close()


@on_a_loop
async def test_elections_on_full_logs_stop_no_node(tmp_path: Path, disks: Disks) -> None:
    """No segment can be made and the last one is all but full: leaders come and go all the same,
    sends are refused, pulls served, and space ends it."""
    configs = make_configs(tmp_path, store={"segment_size_bytes": 8 << 20, "reserve_bytes": 0})
    group = Group(configs, disks.machine)
    try:
        await group.start()
        await group.create_topic()
        disks.set_full(log=True)
        sequence = await fill(group)
        for _ in range(3):
            leader = await group.leader()
            await leader.leadership.hand_over(None)
            await group.leader()
            assert await outcome(group, sequence) == errors_pb2.STORAGE_FULL
        assert await pulled(group) >= 1
        disks.set_full()
        await until_stored(group, sequence)
        await group.applied_everywhere()
    finally:
        codes = await asyncio.gather(*(group.stop(name) for name in list(group.nodes)))
        await group.close()
    assert codes == [0, 0, 0]


@on_a_loop
async def test_full_disks_are_freed_by_what_is_too_much(tmp_path: Path, disks: Disks) -> None:
    """No node's disk has room, not even after a restart, where nothing is known of snapshots; the
    leader's `[retention]` lets go of the oldest segments all the same, and sends go on when that
    has given the disk something back."""
    changes: dict[str, Any] = {"store": {"segment_size_bytes": 8 << 20, "reserve_bytes": 0}}
    group = Group(make_configs(tmp_path, **changes), disks.machine, RETAINING)
    try:
        await group.start()
        await group.create_topic()
        leader = await group.leader()
        await until(lambda: leader.machine.level.current >= LOG_START_LEVEL)
        disks.set_full(log=True)
        sequence = await fill(group)
        await group.applied_everywhere()
        assert [await group.stop(name) for name in list(group.nodes)] == [0, 0, 0]
        retention = RetentionConfig(age_hours=0, bytes=12 << 20)
        for name, config in group.configs.items():
            group.configs[name] = config.model_copy(update={"retention": retention})
        await group.start()
        await until(lambda: all(node.log.first_index > 1 for node in group.nodes.values()))
        assert all(disk.is_full for disk in disks.of.values())
        disks.set_full()
        await until_stored(group, sequence)
        await group.applied_everywhere()
        firsts = {node.machine.log_start.first_index for node in group.nodes.values()}
        assert len(firsts) == 1
    finally:
        codes = await asyncio.gather(*(group.stop(name) for name in list(group.nodes)))
        await group.close()
    assert codes == [0, 0, 0]


async def until(holds: Callable[[], bool]) -> None:
    """It holds."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it doesn't come to hold"
        await asyncio.sleep(0.01)


async def led_for_a_while(group: Group) -> Replica:
    """A leader that may hand over of itself."""
    leader = await group.leader()
    core = leader.driver.core
    deadline = time.monotonic() + WAIT_S
    while core._state.now_tick < core._state.disk.not_before_tick:
        assert time.monotonic() < deadline, "time stands still"
        await asyncio.sleep(0.01)
    return leader


@on_a_loop
async def test_leader_with_a_full_disk_hands_over_and_sends_go_on(
    tmp_path: Path, disks: Disks
) -> None:
    """Its disk alone takes no further segment: a node with room leads within a second, nothing
    is lost or stored twice, and leadership doesn't come back."""
    group = Group(make_configs(tmp_path), disks.machine)
    bodies: list[bytes] = []
    try:
        await group.start()
        await group.create_topic(queues=1)
        full = await led_for_a_while(group)
        disks.of[full.config.node_id].is_full = True
        slowest = 0.0
        while len(bodies) < 320:  # two segments and a half
            bodies.append(len(bodies).to_bytes(4, "big") * (SIZE // 4))
            began = time.monotonic()
            await deliver(group, len(bodies) - 1, bodies[-1])
            slowest = max(slowest, time.monotonic() - began)
        leader = await group.leader()
        assert leader is not full
        assert slowest < 1.5
        assert [record async for record in stored(group)] == bodies
        disks.set_full()
        await group.applied_everywhere()
        assert await group.leader() is leader, "nobody hands back"
    finally:
        codes = await asyncio.gather(*(group.stop(name) for name in list(group.nodes)))
        await group.close()
    assert codes == [0, 0, 0]


async def deliver(group: Group, sequence: int, body: bytes) -> None:
    """The message is stored, as a client that follows the leader and retries would do it."""
    deadline = time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < deadline, "the group takes no message"
        try:
            code = (await group.send(sequence, body)).error.code
        except grpc.aio.AioRpcError as failure:
            code = error_of(failure).code
        if not code:
            return
        assert code in PASSING, errors_pb2.ErrorCode.Name(code)
        await asyncio.sleep(0.005)


async def stored(group: Group) -> AsyncIterator[bytes]:
    """The bodies in the queue, in order."""
    offset = 0
    while True:
        request = broker_pb2.PullRequest(
            topic="t", offset=offset, max_messages=16, max_bytes=8 << 20, hold_ms=0
        )
        answer = await group.ask("Pull", request)
        if not answer.count:
            return
        for record in decode_records(answer.records):
            yield record.body
        offset = answer.next_offset


async def fill(group: Group) -> int:
    """Sends until the smallest message is refused; the next sequence number."""
    sequence, size = 0, 1 << 20
    for _ in range(1_000):
        code = await outcome(group, sequence, size)
        if not code:
            sequence += 1
        elif size == 1:
            return sequence
        else:
            assert code in (errors_pb2.STORAGE_FULL, errors_pb2.BUSY)
            size = max(1, size // 8)
    raise AssertionError("two segments take a thousand messages")


async def until_stored(group: Group, sequence: int) -> None:
    """The message is taken, as a client that retries would see it."""
    again = (errors_pb2.STORAGE_FULL, errors_pb2.BUSY, errors_pb2.NOT_LEADER, errors_pb2.NOT_READY)
    deadline = time.monotonic() + WAIT_S

    async def answer() -> errors_pb2.ErrorCode:
        try:
            return await outcome(group, sequence)
        except grpc.aio.AioRpcError as error:  # on a busy machine another one may lead by then
            return error_of(error).code

    while code := await answer():
        assert code in again
        assert time.monotonic() < deadline, "sends are refused although there is space"
        await asyncio.sleep(0.05)


@on_a_loop
async def test_consume_queues_that_cannot_be_synced_hold_the_checkpoint(
    tmp_path: Path, disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at a sync stops nothing, and nothing is called durable from then on; whatever
    else goes wrong there stops the node (ADR 8)."""
    group = Group(make_configs(tmp_path, count=1), disks.machine, Rhythm(housekeeping_s=0.01))
    failure: list[Exception] = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def sync() -> None:
        loop.call_soon_threadsafe(tried.set)
        if failure:
            raise failure[0]

    monkeypatch.setattr(FlushWork, "stages", lambda _: [[sync]])
    try:
        await group.start()
        await group.create_topic()
        await group.send(0, b"x")
        node = group.nodes["n1"]
        for _ in range(3):
            tried.clear()
            await asyncio.wait_for(tried.wait(), WAIT_S)
            failure.clear()  # a sync that succeeds later tells nothing of the one before
        assert node.log.checkpoint.state.consume_queue_index == 0
        failure.append(RuntimeError("a defect"))
        await asyncio.wait_for(node.wait(), WAIT_S)
        assert await group.stop("n1") == 1
    finally:
        await group.close()
