"""What watchers of the leader are told, and what isn't worth telling thousands of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import cast

import pytest

import broker.services.cluster
from broker.doors.grpc.cluster import ClusterDoor
from broker.errors import NodeAddress
from broker.leader.changes import Change
from broker.leader.epochs import EpochFence
from broker.leader.leadership import LeaderView
from broker.leader.newcomers import HeldLog
from broker.services.cluster import Cluster, Members, NodeStatus
from broker.services.gate import Gate
from dledger.core.types import Configuration, Index, NodeId
from dledger.wire import cluster_pb2 as cpb
from tests.client.loops import async_test

LIMIT_S = 10.0
N1, N2, N3 = (NodeAddress(name, f"{name}:1") for name in ("n1", "n2", "n3"))
FOLLOWS_N2 = LeaderView("g", "n1", N2, 1, is_serving=False, members=(N1, N2, N3))
NOBODY = replace(FOLLOWS_N2, leader=None, term=2)
FOLLOWS_N3 = replace(FOLLOWS_N2, leader=N3, term=2)
ELECTED = replace(FOLLOWS_N2, leader=N1, term=2)
SERVES = replace(ELECTED, is_serving=True)


class Leads:
    """A leadership of which only the view is asked."""

    fence: EpochFence

    def __init__(self, view: LeaderView) -> None:
        self.now = view

    def view(self) -> LeaderView:
        return self.now

    def check_serving(self) -> None:
        raise AssertionError("nobody asks")

    def hand_over(self, target: NodeId | None) -> Awaitable[LeaderView]:
        raise AssertionError(target)


class Nobody:
    """Changes no members, and tells of none."""

    def replace(
        self, node_id: str, disk_id: bytes, held: HeldLog | None = None
    ) -> Awaitable[Configuration]:
        raise AssertionError(node_id, disk_id, held)

    def change(self, change: Change) -> Awaitable[Configuration]:
        raise AssertionError(change)

    @property
    def placed_at(self) -> Index:
        raise AssertionError("nobody asks")

    def status(self) -> NodeStatus:
        raise AssertionError("nobody asks")

    def members(self) -> Members:
        raise AssertionError("nobody asks")


class Told:
    """Where a watch writes to."""

    def __init__(self) -> None:
        self.messages: list[cpb.LeaderView] = []
        self.more = asyncio.Event()

    async def write(self, message: cpb.LeaderView, /) -> None:
        self.messages.append(message)
        self.more.set()


def watched(view: LeaderView) -> tuple[Leads, Cluster]:
    leads, nobody = Leads(view), Nobody()
    return leads, Cluster("g", leads, nobody, cast(Gate, nobody), nobody.status, nobody.members, 10)


@async_test
async def test_an_election_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a follower who leads next, of the next leader that it serves; what lies between nobody
    can act upon."""
    monkeypatch.setattr(broker.services.cluster, "UNDECIDED_S", LIMIT_S * 10)
    for passing, next_one in ((NOBODY, FOLLOWS_N3), (ELECTED, SERVES)):
        leads, cluster = watched(FOLLOWS_N2)
        async with asyncio.timeout(LIMIT_S), aclosing(cluster.watch_leader()) as views:
            assert await anext(views) == FOLLOWS_N2
            following = asyncio.ensure_future(anext(views))
            for leads.now in (passing, replace(passing, term=3), next_one):
                cluster.notify()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert following.done() is (leads.now is next_one)
            assert await following == next_one
            cluster.close()


@async_test
async def test_that_nobody_leads_is_told_if_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time after the first change, whatever changes meanwhile."""
    monkeypatch.setattr(broker.services.cluster, "UNDECIDED_S", 0.005)
    leads, cluster = watched(FOLLOWS_N2)
    async with asyncio.timeout(LIMIT_S), aclosing(cluster.watch_leader()) as views:
        assert await anext(views) == FOLLOWS_N2
        leads.now = NOBODY
        cluster.notify()
        assert await anext(views) == NOBODY
        cluster.close()


@async_test
async def test_a_leader_that_serves_no_more_says_so_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its clients would send to it."""
    monkeypatch.setattr(broker.services.cluster, "UNDECIDED_S", LIMIT_S * 10)
    leads, cluster = watched(SERVES)
    async with asyncio.timeout(LIMIT_S), aclosing(cluster.watch_leader()) as views:
        assert await anext(views) == SERVES
        for leads.now in (NOBODY, SERVES, ELECTED):
            cluster.notify()
            assert await anext(views) == leads.now
            if leads.now is NOBODY:
                assert leads.now.leader is None
        cluster.close()


@async_test
async def test_a_view_is_translated_once_for_all_who_watch() -> None:
    """Of one view all are written the same message, of another one another."""
    leads, cluster = watched(FOLLOWS_N2)
    door, told = ClusterDoor(cluster), [Told(), Told()]
    watches = [
        asyncio.create_task(door.watch_leader(cpb.WatchLeaderRequest(), each)) for each in told
    ]
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(each.more.wait() for each in told))
        for each in told:
            each.more.clear()
        leads.now = FOLLOWS_N3
        cluster.notify()
        await asyncio.gather(*(each.more.wait() for each in told))
        cluster.close()
        await asyncio.gather(*watches)
    first, second = (each.messages for each in told)
    assert [each.leader.node_id for each in first] == ["n2", "n3"]
    assert all(one is other for one, other in zip(first, second, strict=True))
