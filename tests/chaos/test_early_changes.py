"""Changes of members that are asked of a leader at once, while a voter is away for long."""

from __future__ import annotations

from broker.leader.changes import Change
from chaos.sim.churn import Churn
from chaos.sim.node import SimNode
from chaos.sim.quiet import quiet_logs
from chaos.sim.run import Run
from tests.chaos.test_slow_disks import quiet

SETTLED_US = 3_000_000
MISSED_US = SETTLED_US + 1_000_000  # when who is away counts as active no more
AGAIN_US = 20_000  # `broker.forming.patience` asks a tenth as often
ASKED = 400  # times
MOVES_EVERY = 50  # times asked
MOVES_LEAST = 4


def serving(nodes: list[SimNode]) -> SimNode | None:
    """Who serves, as it believes itself."""
    lives = ((node, node.life) for node in nodes)
    return next((node for node, life in lives if life and life.replica.leadership.serving), None)


def test_who_is_away_for_long_counts_under_no_new_leader() -> None:
    """Of three voters one is away, leadership moves between the others, and an administrator asks
    whoever leads to take out the other of them, again and again: it has to be refused by each,
    as the two that would be left could neither commit that nor elect anybody."""
    with quiet_logs():
        run = Run(quiet(0))
        world = run.world
        world.start()
        run._spawn(run._create_topic())
        run._advance(SETTLED_US)
        nodes = list(world.nodes.values())
        leader = serving(nodes)
        away = next(node for node in nodes if node is not leader)
        away.is_kept_down = True
        away.kill("is away for long")
        left = [node for node in nodes if node is not away]
        before = len(world.watch.checker.leaders)
        churn = ask(run, left)
        run._advance(world.now_us + SETTLED_US)
        moves = len(world.watch.checker.leaders) - before
        leader = serving(left)
        assert leader is not None, f"nobody serves any more, after {moves} moves of leadership"
        assert leader.life is not None
        assert leader.life.core.configuration.voters == set(world.nodes)
        assert churn.taken_up == 0
        assert moves >= MOVES_LEAST
        world.clients.die()
        for node in nodes:
            if node.life is not None:
                node.life.loop.die()


def ask(run: Run, left: list[SimNode]) -> Churn:
    """Each of both wants to be rid of the other, while leadership moves between them."""
    world = run.world
    churn = Churn(world, world.plan.random("early"))
    for number in range(ASKED):
        run._advance(MISSED_US + number * AGAIN_US)
        leader = serving(left)
        if leader is None or leader.life is None:
            continue
        (other,) = (node.name for node in left if node is not leader)
        loop, wanted = leader.life.loop, Change(remove=frozenset({other}))
        world.timeline.after(0, loop, churn._ask, leader.life, wanted)
        if number % MOVES_EVERY == 0:
            world.timeline.after(AGAIN_US // 2, loop, leader.hand_over, other)
    return churn
