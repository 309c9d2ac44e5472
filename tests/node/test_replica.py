"""A replica's life: what is joined to what, and in which order it stops and fails."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.batches import BatchAnswer, Placed
from broker.leader.changes import Change
from broker.ports import Rhythm
from broker.reading.queues import Found
from broker.replica import Replica
from broker.services.messages import PullRequest
from broker.state.topics import TopicRef
from dledger.core.types import NodeId, Role
from dledger.errors import ApplyPaused
from dledger.level import MEMBERS_CHANGE_LEVEL
from dledger.wire import commands_pb2 as kpb
from store.directory import DataDirectory, DirectoryState, Identity
from store.files import Handle, OsFiles
from tests.broker.leader import batch
from tests.node.members import Members, make_configs, members, nothing_to_shut

N1 = NodeId("n1")
P = ParamSpec("P")


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """The test runs on an event loop of its own, for a minute at most."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 60))

    return run


class StallingFiles(OsFiles):
    """A disk whose syncs of data wait while `gate` is shut, and whose fsyncs of the files below
    `broken` fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.broken = ""
        self._paths: dict[Handle, str] = {}

    def open(self, path: Path) -> Handle:
        handle = super().open(path)
        self._paths[handle] = str(path)
        return handle

    def fdatasync(self, handle: Handle) -> None:
        assert self.gate.wait(20)
        super().fdatasync(handle)

    def fsync(self, handle: Handle) -> None:
        if self.broken and self.broken in self._paths.get(handle, ""):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fsync(handle)


def topic(name: str) -> kpb.Command:
    return kpb.Command(create_topic=kpb.CreateTopicCommand(name=name, queue_count=1))


class Call:
    """What a service uses of a call's context."""

    def on_end(self, callback: Callable[[], None]) -> None:
        del callback


def held_pull(replica: Replica) -> asyncio.Task[Found]:
    """A pull that finds nothing, and has 20 seconds."""
    request = PullRequest(TopicRef("t"), 0, 0, hold_ms=20_000)
    return asyncio.create_task(replica.services.pulls.pull(request, Call()))


async def made_alone(tmp_path: Path, files: OsFiles) -> tuple[Members, Replica]:
    """A group of one that serves, with a topic, on that disk."""
    group = Members(make_configs(tmp_path, 1))
    group.files[N1] = files
    group.start()
    replica = await group.leader()
    await replica.appender.submit(topic("t"))
    return group, replica


@on_a_loop
async def test_entry_is_applied_on_every_member(tmp_path: Path) -> None:
    """Links, driver, flusher, state machine and appender are joined."""
    async with members(tmp_path) as group:
        leader = await group.leader()
        assert await leader.appender.submit(topic("orders")) is None
        await group.until(
            lambda: all("orders" in r.machine.topics for r in group.replicas.values())
        )


@on_a_loop
async def test_watchers_hear_of_other_members_though_the_leader_stays(tmp_path: Path) -> None:
    """From each member. Clients heard of members only with the next leader: one that had been given
    a single address lost the group when the member there was removed and stopped."""
    async with members(tmp_path) as group:
        leader = await group.leader()
        n = NodeId(leader.config.node_id)
        gone, stays = (each for each in group.replicas if each != n)
        watches = [group.replicas[each].services.cluster.watch_leader() for each in (n, stays)]
        for watch in watches:
            while (view := await anext(watch)).leader is None:
                pass
            assert [each.node_id for each in view.members] == sorted(group.replicas)
        await group.until(lambda: leader.machine.level.current >= MEMBERS_CHANGE_LEVEL)
        core = leader.driver.core
        await group.until(lambda: core.statistics().peers[NodeId(stays)].has_answered)
        await leader.services.cluster.change_members(Change(remove=frozenset({gone})))
        for watch in watches:
            while len((view := await anext(watch)).members) > 2:
                pass
            assert [each.node_id for each in view.members] == sorted({n, stays})
            assert (view.leader and view.leader.node_id, view.term) == (n, leader.driver.core.term)


@on_a_loop
async def test_leader_that_is_told_to_stop_hands_over_first(tmp_path: Path) -> None:
    """When the doors shut it leads no more, and its files can still be read."""
    async with members(tmp_path) as group:
        leader = await group.leader()
        del group.replicas[NodeId(leader.config.node_id)]
        seen: list[Role] = []

        async def shut() -> None:
            seen.append(leader.driver.core.role)
            assert leader.log.read(1, 1)

        assert await leader.stop(shut)
        assert seen == [Role.FOLLOWER]
        await group.leader()


@on_a_loop
async def test_stop_waits_for_those_who_wait_for_a_commit(tmp_path: Path) -> None:
    """The disk is slow, not dead: the answer is that of the commit."""
    files = StallingFiles()
    _, replica = await made_alone(tmp_path, files)
    files.gate.clear()
    waiting = replica.appender.submit(topic("late"))
    asyncio.get_running_loop().call_later(0.05, files.gate.set)
    assert await replica.stop(nothing_to_shut)
    assert await waiting is None


@on_a_loop
async def test_stop_leaves_nobody_waiting(tmp_path: Path) -> None:
    """What doesn't commit in time may have been stored; a held pull looks elsewhere."""
    files = StallingFiles()
    group = Members(make_configs(tmp_path, 1), Rhythm(drain_s=0.01))
    group.files[N1] = files
    group.start()
    replica = await group.leader()
    await replica.appender.submit(topic("t"))
    pull = held_pull(replica)
    await group.until(lambda: replica.held.statistics().held)
    files.gate.clear()
    waiting = replica.appender.submit(topic("late"))
    codes: list[ErrorCode] = []

    async def shut() -> None:
        for each in (waiting, pull):
            with pytest.raises(BrokerError) as told:
                await asyncio.wait_for(each, 5)
            codes.append(told.value.code)
        files.gate.set()

    assert await replica.stop(shut)
    assert codes == [ErrorCode.LEADERSHIP_LOST, ErrorCode.SHUTTING_DOWN]


@on_a_loop
async def test_broken_stream_is_told_to_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader's death is noticed by its streams long before its silence."""
    group = Members(make_configs(tmp_path, 3))
    replica = group.open(N1)
    suspected: list[NodeId] = []
    monkeypatch.setattr(replica.driver, "suspect", suspected.append)
    transport: Any = replica.transport
    transport.on_broken(NodeId("n2"))
    assert suspected == ["n2"]
    await replica.close()


@on_a_loop
async def test_failure_ends_serving_and_the_log_is_not_marked_clean(tmp_path: Path) -> None:
    """Who waits is told at once; the next start verifies everything."""
    group, replica = await made_alone(tmp_path, OsFiles())
    pull = held_pull(replica)
    await group.until(lambda: replica.held.statistics().held)
    first = RuntimeError("a defect")
    replica.fail(first)
    replica.fail(RuntimeError("another"))
    assert replica.failure is first
    assert not replica.leadership.serving
    with pytest.raises(BrokerError):
        await asyncio.wait_for(pull, 5)
    await asyncio.wait_for(replica.wait(), 5)
    assert not await group.stop(N1)
    assert (tmp_path / "n1" / "abort").exists()


@on_a_loop
async def test_clean_stop_is_marked_and_leaves_nothing_to_derive(tmp_path: Path) -> None:
    """The checkpoint has what was applied."""
    group, replica = await made_alone(tmp_path, OsFiles())
    assert await group.stop(N1)
    assert not (tmp_path / "n1" / "abort").exists()
    again = group.open(N1)
    assert again.machine.applied_index == replica.machine.applied_index
    await again.close()


@on_a_loop
async def test_close_whose_flush_fails_is_no_clean_one(tmp_path: Path) -> None:
    """The files are closed all the same, and the exit code tells."""
    files = StallingFiles()
    group, replica = await made_alone(tmp_path, files)
    answer = await sent(replica)
    assert isinstance(answer[0], Placed)
    noted = replica.log.checkpoint.state.consume_queue_index
    files.broken = "consumequeue"
    assert not await group.stop(N1)
    assert (tmp_path / "n1" / "abort").exists()
    assert replica.log.checkpoint.state.consume_queue_index == noted
    files.broken = ""
    group.start(N1)
    await group.leader()
    assert await group.stop(N1)


async def sent(replica: Replica) -> list[BatchAnswer]:
    """One message to the topic."""
    return await replica.appender.send(b"", [batch(0, b"x")])


@on_a_loop
async def test_full_consume_queues_are_a_full_disk_to_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a busy one: it doesn't pass by itself. What was committed before waits for space."""
    group, replica = await made_alone(tmp_path, OsFiles())

    def no_space(frames: bytes, is_enough: object) -> int:
        raise ApplyPaused(replica.machine.applied_index, "no space left on device")

    monkeypatch.setattr(replica.machine, "apply", no_space)
    waiting = replica.appender.submit(topic("t"))
    await group.until(lambda: replica.driver.statistics().is_apply_paused)
    with pytest.raises(BrokerError) as told:
        await replica.appender.submit(topic("more"))
    assert told.value.code == ErrorCode.STORAGE_FULL
    assert not waiting.done()
    monkeypatch.undo()
    await waiting
    await group.stop(N1)


@on_a_loop
async def test_rounds_of_housekeeping_move_the_checkpoint(tmp_path: Path) -> None:
    """Of themselves, in the rhythm that was given."""
    async with members(tmp_path, 1, Rhythm(housekeeping_s=0.01)) as group:
        replica = await group.leader()
        await replica.appender.submit(topic("t"))
        applied, began = replica.machine.applied_index, time.monotonic()
        await group.until(lambda: replica.log.checkpoint.state.consume_queue_index >= applied)
        assert time.monotonic() - began < 10


@on_a_loop
async def test_disk_that_was_taken_in_notes_it_at_its_next_start_though_it_is_alone(
    tmp_path: Path,
) -> None:
    """What its checkpoint knows to be committed is enough: nobody else has to run."""
    async with members(tmp_path, 3, Rhythm(housekeeping_s=0.02)) as group:
        leader = await group.leader()
        await leader.appender.submit(topic("t"))
        name = next(each for each in group.configs if each != leader.config.node_id)
        noted = group.replicas[name].log.checkpoint
        await group.until(lambda: noted.state.consume_queue_index > 1)
        for each in list(group.replicas):
            await group.stop(each)
        config = group.configs[name]
        identity = Identity("g1", name, config.store.segment_size_bytes)
        with closing(DataDirectory.open(config.data_directory, identity)) as directory:
            directory.mark(DirectoryState.JOINING)
        stated = config.data_directory / "identity.json"
        assert '"formed"' not in stated.read_text()
        group.start(name)
        await group.until(lambda: '"formed"' in stated.read_text())
