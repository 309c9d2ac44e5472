"""A member that was away while the others let go of what it needs, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from audit.backing.taking import take_backup
from audit.engines.engine import Progress, no_progress
from audit.errors import BackupRefused
from audit.proof.log import open_log, verify_log
from audit.proof.soundness import Soundness
from broker.errors import BrokerError
from broker.node import run_node
from broker.ports import Rhythm
from broker.recovery import REAL_MACHINERY, recover, site_of
from broker.replica import Replica
from broker.snapshots import SnapshotPace
from dledger.level import LOG_START_LEVEL
from dledger.reading.log_start import NOTE
from dledger.wire import broker_pb2, cluster_pb2
from store.backup import read_backup, write_backup
from store.errors import BackupUnusable
from store.files import OsFiles
from store.log_start import INTENT
from store.starting.judging import judge
from store.starting.restoring import restore
from tests.integration.group import WAIT_S, Group, make_configs

BUSY = Rhythm(
    housekeeping_s=0.05,
    snapshots=SnapshotPace(entries=3, share=1, retry_s=0.1),
    log_start_s=0.05,
    retention_s=0.05,
)
BODY = b"x" * 1_000_000


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    """What a node changes of its process is as it was."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


async def let_go(leader: Replica, before: int) -> None:
    """The leader's log begins later than entry `before`."""
    deadline = time.monotonic() + WAIT_S
    while leader.log.first_index <= before:
        assert time.monotonic() < deadline, "the log's front doesn't go"
        with contextlib.suppress(BrokerError):  # it was moved there already
            await leader.propose_log_start(leader.machine.applied_index)
        await asyncio.sleep(0.05)


async def is_here(group: Group, name: str, leader: Replica) -> Any:
    """The member has what the leader has; what it says of itself then."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            request = cluster_pb2.GetStatusRequest()
            status = await group.call(name, "Cluster", "GetStatus", request)
        except Exception:  # noqa: BLE001  it isn't up yet, or is being opened again
            status = None
        if status is not None and status.applied_index >= leader.driver.applied_index:
            return status
        await asyncio.sleep(0.05)
    raise AssertionError("it doesn't catch up")


async def story(directory: Path) -> None:
    configs = make_configs(directory)
    group = Group(configs, rhythm=BUSY)
    await group.start()
    try:
        await group.create_topic()
        leader = await group.leader()
        async with asyncio.timeout(WAIT_S):
            while leader.machine.level.current < LOG_START_LEVEL:  # who is away holds it back
                await asyncio.sleep(0.05)
        for sequence in range(3):
            await group.send(sequence, BODY)
        away = next(name for name in group.nodes if name != leader.config.node_id)
        last = group.nodes[away].log.last_index
        assert await group.stop(away) == 0
        for sequence in range(3, 40):
            await group.send(sequence, BODY)
            await asyncio.sleep(0.01)
        await let_go(leader, last + 1)
        back = asyncio.create_task(run_node(group.configs[away]))
        status = await is_here(group, away, leader)
        assert status.first_index > last
        assert (group.configs[away].data_directory / NOTE).exists()
        assert not (group.configs[away].data_directory / INTENT).exists()
        wanted = broker_pb2.PullRequest(topic="t", queue_id=0, offset=0)
        with pytest.raises(Exception, match="outside"):
            await group.call(leader.config.node_id, "Broker", "Pull", wanted)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(back, WAIT_S) == 0
    finally:
        await group.close()


def test_who_was_away_for_too_long_begins_anew_without_its_process_ending(tmp_path: Path) -> None:
    """It gets the state that the others' logs begin with, opens itself again, and copies the rest;
    who asks for a message that is gone is told what there is."""
    asyncio.run(story(tmp_path))


def rot(directory: Path, place: int) -> None:
    """A byte of the log's first segment is another one, and the next start reads all of it."""
    (directory / "abort").touch()
    for seal in (directory / "seal").glob("*"):
        seal.unlink()
    with (directory / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 0x40]))


async def begun_behind_rot(directory: Path) -> None:
    group = Group(make_configs(directory), rhythm=BUSY)
    await group.start()
    try:
        await group.create_topic()
        leader = await group.leader()
        async with asyncio.timeout(WAIT_S):
            while leader.machine.level.current < LOG_START_LEVEL:
                await asyncio.sleep(0.05)
        for sequence in range(3):
            await group.send(sequence, BODY)
        away = next(name for name in group.nodes if name != leader.config.node_id)
        await group.applied_everywhere()
        log = group.nodes[away].log
        last = log.last_index
        places = [log.position_of(index) for index in range(log.first_index, last + 1)]
        place = next(at + 60 for at, end in pairwise(places) if end - at > len(BODY))
        assert await group.stop(away) == 0
        rot(group.configs[away].data_directory, place)
        for sequence in range(3, 40):
            await group.send(sequence, BODY)
            await asyncio.sleep(0.01)
        await let_go(leader, last + 1)
        with capture_logs() as told:
            back = asyncio.create_task(run_node(group.configs[away]))
            status = await is_here(group, away, leader)
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(back, WAIT_S) == 0
        assert status.first_index > last
        begun = [each for each in told if each["event"] == "log_begins_behind_rot"]
        assert [each["is_kept_behind"] for each in begun] == [False]
    finally:
        await group.close()


def test_who_was_away_and_has_rotted_begins_behind_what_the_others_have_let_go_of(
    tmp_path: Path,
) -> None:
    """Peers tell where their logs begin, and give the state of there, on the streams that they
    dial: a start takes these although it is no member yet."""
    asyncio.run(begun_behind_rot(tmp_path))


def begin_of(node: Replica) -> int:
    """Where the first segment that it holds begins."""
    first = node.log.position_of(node.log.first_index)
    return first - first % node.log.options.segment_size_bytes


async def settled(group: Group, kept: int) -> None:
    """Nobody holds more than `kept` bytes, all begin at the same entry, and nothing goes on."""
    deadline = time.monotonic() + WAIT_S
    seen: set[tuple[int, int]] = set()
    while True:
        before, nodes = seen, group.nodes.values()
        seen = {(each.machine.log_start.first_index, each.driver.applied_index) for each in nodes}
        too_much = any(each.log.end_offset - begin_of(each) > kept for each in nodes)
        if not too_much and len(seen) == 1 and seen == before:
            return
        assert time.monotonic() < deadline, "the log's front doesn't go"
        await asyncio.sleep(4 * BUSY.retention_s)


async def retained(directory: Path) -> None:
    kept = 24 << 20
    configs = make_configs(directory, retention={"bytes": kept})
    group = Group(configs, rhythm=BUSY)
    await group.start()
    try:
        await group.create_topic()
        leader = await group.leader()
        size = leader.log.options.segment_size_bytes
        kept_ones, addresses = directory / "backup", [each.listen for each in configs]
        for sequence in range(60):
            await group.send(sequence, BODY)
            await asyncio.sleep(0.01)
            if sequence % 15 == 0:
                await asyncio.to_thread(take_backup, kept_ones, addresses, None, unshown)
        await settled(group, kept)
        for name, node in group.nodes.items():
            assert node.log.end_offset - begin_of(node) > kept - size, "no more than had to go"
            folder = group.configs[name].data_directory / "commitlog"
            assert min(folder.iterdir()).name == f"{begin_of(node):020d}"
        await group.send(60, BODY)
        await settled(group, kept)
        taken = await asyncio.to_thread(take_backup, kept_ones, addresses, None, unshown)
        total = verify_log(open_log(kept_ones))
        assert (total.verdict, total.first_index) == (Soundness.SOUND, 1)
        assert total.last_index == taken.backup.last_index > leader.log.first_index
        await check_restored(directory, await as_new(directory, addresses), leader)
        stale = directory / "stale"
        shutil.copytree(kept_ones, stale)
        backup = read_backup(OsFiles(), stale)
        assert backup is not None
        write_backup(OsFiles(), stale, replace(backup, last_index=leader.log.first_index - 2))
        with pytest.raises(BackupRefused, match="what lay between is gone"):
            await asyncio.to_thread(take_backup, stale, addresses, None, unshown)
    finally:
        await group.close()


async def as_new(directory: Path, addresses: list[str]) -> Path:
    """A first backup of a log that begins later; it goes on like any other."""
    folder = directory / "new"
    first = await asyncio.to_thread(take_backup, folder, addresses, None, unshown)
    assert first.backup.first_index > 1
    again = await asyncio.to_thread(take_backup, folder, addresses, None, unshown)
    assert (again.copied_bytes, again.backup.first_index) == (0, first.backup.first_index)
    total = verify_log(open_log(folder))
    assert total.verdict is Soundness.SOUND
    assert (total.first_index, total.last_index) == (
        again.backup.first_index,
        again.backup.last_index,
    )
    return folder


async def check_restored(directory: Path, folder: Path, leader: Replica) -> None:
    """A new group's only member has the state that the old group's leader has."""
    (config,) = make_configs(directory / "m", 1)
    site = site_of(config, OsFiles(), REAL_MACHINERY)
    done = await asyncio.to_thread(restore, folder, site, config.listen)
    assert done.last_index == leader.machine.applied_index
    assert judge(config.data_directory).starts
    found = recover(config)
    try:
        assert found.log.first_index == done.backup.first_index
        rest = found.log.read(found.machine.applied_index + 1, done.last_index)
        found.machine.apply(rest)
        assert list(found.machine.snapshot()) == list(leader.machine.snapshot())
    finally:
        found.log.close()
        found.directory.close()
    harmed = directory / "harmed"
    shutil.copytree(folder, harmed)
    (base,) = (harmed / "snapshot").iterdir()
    for name in (base, harmed / "log_start"):
        content = name.read_bytes()
        name.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        (other,) = make_configs(directory / f"m-{name.name}", 1)
        with pytest.raises(BackupUnusable):
            restore(harmed, site_of(other, OsFiles(), REAL_MACHINERY), other.listen)
        name.write_bytes(content)


def unshown(name: str, weight: int) -> Progress:
    return no_progress


def test_log_is_kept_as_long_as_it_may_be(tmp_path: Path) -> None:
    """By all members alike, and the group goes on; a backup that was begun in time keeps what goes,
    one that begins later has the state of before, and a group can be made of it."""
    asyncio.run(retained(tmp_path))
