"""A leader that is taken out hands over, and nobody waits for an election timeout, not even it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.leader.changes import Change
from chaos.sim.quiet import quiet_logs
from chaos.sim.run import Run
from chaos.sim.world import World
from dledger.core.types import NodeId
from tests.chaos.test_slow_disks import quiet

SETTLED_US = 3_000_000
LOOK_US = 10_000
MOST_US = 150_000  # the shortest election timeout is twice that
LONG = pytest.mark.long


def serving(world: World) -> list[NodeId]:
    """Who serves, as it believes itself."""
    lives = ((node.name, node.life) for node in world.nodes.values())
    return [name for name, life in lives if life and life.replica.leadership.serving]


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=LONG) for each in (1, 2, 3))])
def test_who_leaves_as_leader_hands_over(seed: int) -> None:
    """Under load, so that its followers hear at once that it is a member no more: they go on
    listening to it until they have heard who shall lead."""
    with quiet_logs():
        run = Run(replace(quiet(seed), nodes=5, rate=400, producers=4))
        world = run.world
        world.start()
        run._spawn(run._create_topic())
        for client in run.cast.make():
            run._spawn(client.run())
        run._advance(SETTLED_US)
        (leader,) = serving(world)
        life = world.nodes[leader].life
        assert life is not None

        async def leave() -> None:
            await life.replica.membership.change(Change(remove=frozenset({leader})))

        world.timeline.after(0, life.loop, lambda: life.loop.create_task(leave()))
        seen: list[list[NodeId]] = []
        while leader in serving(world) or not serving(world):
            assert world.now_us < SETTLED_US + MOST_US, f"since it was asked: {seen}"
            run._advance(world.now_us + LOOK_US)
            seen.append(serving(world))
        world.clients.die()
        for node in world.nodes.values():
            if node.life is not None:
                node.life.loop.die()
