"""What an operator asks of the leader in the midst of everything, which may refuse it.

A request is no harm; that it comes at any moment is. It runs on the leader's event loop, as one
over its door does.
"""

from __future__ import annotations

import asyncio
from random import Random

from broker.errors import BrokerError
from broker.leader.changes import Change
from chaos.sim.defect import Defect
from chaos.sim.machine import Life
from chaos.sim.plan import Fault
from chaos.sim.strikes.aim import Aim, Strikes
from chaos.sim.timeline import ActorDied
from dledger.core.types import Configuration


class Requests:
    """Requests to a leader."""

    def __init__(self, aim: Aim) -> None:
        self._aim = aim
        self._world = aim.world

    @property
    def strikes(self) -> Strikes:
        return {
            Fault.TRANSFER: self._transfer,
            Fault.PRIORITY: self._priority,
            Fault.MOVE_START: self._move_start,
        }

    def _transfer(self, chance: Random) -> None:
        leader = self._aim.leader()
        if leader is None or leader.life is None or not leader.life.replica.leadership.serving:
            return
        target = chance.choice([None, *self._world.members])
        self._world.log("nemesis", f"asks {leader.name} to hand over to {target or 'anyone'}")
        self._world.timeline.after(0, leader.life.loop, leader.hand_over, target)

    def _priority(self, chance: Random) -> None:
        """An operator says who is preferred as the leader; a refusal is fine."""
        leader = self._aim.leader()
        if leader is None or leader.life is None or not leader.life.replica.leadership.serving:
            return
        voters = sorted(leader.life.core.configuration.voters)
        prefer = chance.choice([*voters, *voters, ""])
        self._world.log("operator", f"asks {leader.name} to prefer {prefer or 'nobody'}")
        self._world.timeline.after(0, leader.life.loop, ask_to_prefer, leader.life, prefer)

    def _move_start(self, chance: Random) -> None:
        leader = self._aim.leader()
        if leader is None or leader.life is None or not leader.life.replica.leadership.serving:
            return
        replica = leader.life.replica
        first, applied = replica.machine.log_start.first_index, replica.machine.applied_index
        index = first + chance.randrange(1, max(2, applied - first + 1))
        self._world.log("nemesis", f"asks {leader.name} to let entries before {index} go")
        self._world.timeline.after(0, leader.life.loop, leader.move_start, index)


def ask_to_prefer(leader: Life, prefer: str) -> None:
    """An operator's wish; on the leader's event loop, as its answer is awaited there. A refusal is
    fine."""
    task = leader.loop.create_task(leader.replica.membership.change(Change(prefer=prefer)))
    task.add_done_callback(_on_preferred)


def _on_preferred(done: asyncio.Task[Configuration]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, (BrokerError, ActorDied)):
        raise Defect("preferring", repr(error)) from error
