"""Levels of formats and commands, over the product's replicas: of several releases, in one group.

Source: docs/adr/0023-levels.md.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.replica import Replica
from broker.services.messages import PullRequest
from broker.state.topics import TopicRef
from dledger.core.types import EntryKind, NodeId, Role
from dledger.wire import commands_pb2 as kpb
from tests.node.members import Members, make_configs
from tests.node.test_replica import Call, on_a_loop, topic

N1, N2, N3 = NodeId("n1"), NodeId("n2"), NodeId("n3")


async def started(directory: Path, **known: int) -> Members:
    """A group whose members know these levels, and that serves."""
    group = Members(make_configs(directory, len(known)))
    group.known_levels = {NodeId(name): level for name, level in known.items()}
    group.start()
    await group.leader()
    return group


async def stop(group: Members) -> None:
    await group.stop_all()


async def again(group: Members, name: NodeId, level: int) -> Replica:
    """The member is stopped, and started by a program that knows that level."""
    await group.stop(name)
    group.known_levels[name] = level
    group.start(name)
    return group.replicas[name]


def levels(group: Members) -> set[int]:
    return {replica.machine.level.current for replica in group.replicas.values()}


async def put_back(directory: Path) -> tuple[Members, Replica]:
    """A group at level 2 of which n3 was started by an older program, and has stopped applying."""
    group = await started(directory, n1=2, n2=2, n3=2)
    await group.until(lambda: levels(group) == {2})
    old = await again(group, N3, 1)
    await group.until(lambda: old.driver.statistics().apply_stopped)
    return group, old


@on_a_loop
async def test_level_is_raised_once_every_member_knows_it(tmp_path: Path) -> None:
    """The last one to be upgraded decides when."""
    group = await started(tmp_path, n1=2, n2=2, n3=1)
    leader = await group.leader()
    for _ in range(3):
        await leader.appender.submit(topic(f"t{_}"))
        await asyncio.sleep(0.1)
    assert levels(group) == {1}
    await again(group, N3, 2)
    await group.until(lambda: levels(group) == {2})
    await stop(group)


@on_a_loop
async def test_member_that_is_away_holds_the_level_back(tmp_path: Path) -> None:
    """What it will know when it comes back can't be told."""
    group = await started(tmp_path, n1=1, n2=1, n3=1)
    await group.stop(N3)
    for name in (N1, N2):
        await again(group, name, 2)
    await group.leader()
    await asyncio.sleep(0.3)
    assert levels(group) == {1}
    group.known_levels[N3] = 2
    group.start(N3)
    await group.until(lambda: levels(group) == {2})
    await stop(group)


@on_a_loop
async def test_entries_of_later_releases_are_copied_and_void(tmp_path: Path) -> None:
    """Of a kind, of a version, and of both: no member refuses an append for what it can't read."""
    group = await started(tmp_path, n1=1, n2=1, n3=1)
    leader = await group.leader()
    later = cast("EntryKind", 9)
    last = 0
    for kind, count, version in ((later, 0, 2), (EntryKind.DATA, 0, 77), (later, 3, 77)):
        last = leader.driver.propose(kind, count, b"of a later release", None, version).index
    await group.until(
        lambda: all(each.machine.applied_index >= last for each in group.replicas.values())
    )
    assert {each.machine.statistics().entries_void for each in group.replicas.values()} == {3}
    assert len({each.log.digest_at(last) for each in group.replicas.values()}) == 1
    await stop(group)


@on_a_loop
async def test_older_program_stops_applying_and_stays_a_member(tmp_path: Path) -> None:
    """It takes entries and counts for a majority; it says what is wrong; a newer one goes on."""
    group, old = await put_back(tmp_path)
    stopped_at = old.machine.applied_index
    leader = await group.leader()
    other = N1 if leader is group.replicas[N2] else N2
    await group.stop(other)  # Without n3 there is no majority now.
    leader = await group.leader()
    assert await leader.appender.submit(topic("later")) is None
    await group.until(lambda: old.driver.core.durable_index == leader.log.last_index)
    assert old.failure is None
    assert old.machine.applied_index == stopped_at
    status = await old.services.cluster.status()
    assert "install a newer one" in status.apply_stopped
    assert (status.level, status.known_level) == (1, 1)
    newer = await again(group, N3, 2)
    await group.until(lambda: "later" in newer.machine.topics)
    await stop(group)


@on_a_loop
async def test_older_program_that_is_elected_serves_nobody_and_hands_over(tmp_path: Path) -> None:
    """It can't apply what it would be asked about."""
    group, old = await put_back(tmp_path)
    leader = await group.leader()
    leader.driver.transfer_leadership(N3)
    await group.until(lambda: old.driver.core.role is Role.LEADER)
    with pytest.raises(BrokerError) as refused:
        await old.services.pulls.pull(PullRequest(TopicRef("t"), 0, 0), Call())
    assert refused.value.code is ErrorCode.NOT_READY
    assert await group.leader() is not old
    assert not old.leadership.serving
    await stop(group)


@on_a_loop
async def test_older_program_takes_no_derived_file_for_wrong(tmp_path: Path) -> None:
    """What a newer program derived lies beyond what this one can say; it is there when the newer
    one comes back."""
    group = await started(tmp_path, n1=2)
    await group.until(lambda: levels(group) == {2})
    leader = await group.leader()
    await leader.appender.submit(topic("t"))
    await group.stop(N1)
    group.known_levels[N1] = 1
    old = group.replicas[N1] = group.open(N1)
    old.start()
    await group.until(lambda: old.driver.statistics().apply_stopped)
    assert not old.leadership.serving
    newer = await again(group, N1, 2)
    await group.leader()
    assert "t" in newer.machine.topics
    await newer.appender.submit(kpb.Command(delete_topic=kpb.DeleteTopicCommand(name="t")))
    await stop(group)
