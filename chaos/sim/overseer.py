"""Who looks after the crews: moves them back and forth while they work, copies them, looks on.

What a move does to the state is in the log, and looked at there (`chaos.sim.lease_model`): no
commit by a lease that it ended may undo it. That the crew works on what it was sent back to is
looked at in the end (`chaos.sim.run`): every message from there on was worked on by a lease granted
after the move, unless it was passed over since. What is told of a group must be possible whenever.
"""

from __future__ import annotations

import asyncio
from random import Random

from chaos.errors import CallFailed
from chaos.sim.clients import Client, Shared
from chaos.sim.defect import Defect
from dledger.wire import commands_pb2 as cpb
from dledger.wire import consumers_pb2 as pb
from dledger.wire import errors_pb2 as epb


class Overseer(Client):
    """One of them, for all crews."""

    def __init__(
        self, name: str, shared: Shared, chance: Random, groups: list[str], interval_s: float
    ) -> None:
        super().__init__(name, shared, chance)
        self._groups = groups
        self._interval_s = interval_s
        self._clones = 0

    async def run(self) -> None:
        """Until the run stops."""
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            if self.shared.stopping or not self.shared.topics:
                continue
            group = self.chance.choice(self._groups)
            what = self.chance.random()
            try:
                if what < 0.45:
                    await self._move(group)
                elif what < 0.55:
                    self._clones += 1
                    target = f"{group}-clone-{self._clones % 8}"
                    await self.call(
                        "clone_group", pb.CloneGroupRequest(source=group, target=target)
                    )
                else:
                    await self._look(group)
            except CallFailed as failure:
                if failure.code in (epb.INTERNAL, epb.INVALID_ARGUMENT):
                    raise Defect("overseer", f"{group}: {failure}") from failure

    async def _move(self, group: str) -> None:
        topic, queues = self.chance.choice(sorted(self.shared.topics.items()))
        count = self.chance.randint(0, queues)
        request = pb.MoveGroupRequest(
            group=group, topic=topic, queue_ids=self.chance.sample(range(queues), count)
        )
        what = self.chance.random()
        if what < 0.3:
            request.start = cpb.START_FIRST
        elif what < 0.4:
            request.start = cpb.START_LAST
        elif what < 0.6:
            request.offset = self.chance.randrange(40)
        else:
            request.skip = self.chance.choice((0, 1, 1, 2, 5))
        await self.call("move_group", request)

    async def _look(self, group: str) -> None:
        answer = await self.call("describe_group", pb.DescribeGroupRequest(group=group))
        if answer.group.member_count != len(answer.members):
            raise Defect("overseer", f"{group} has other members than it has: {answer}")
        request = pb.GetGroupProgressRequest(group=group)
        progress = await self.call("get_group_progress", request)
        for queue in progress.queues:
            held = queue.max_offset - max(queue.frontier, queue.min_offset)
            if (
                queue.frontier > queue.max_offset
                or queue.min_offset > queue.max_offset
                or not 0 <= queue.unfinished_count <= max(held, 0)
                or (queue.session > 0) != (queue.epoch > queue.session)
                or (queue.oldest_unfinished_ms > 0 and not queue.unfinished_count)
            ):
                raise Defect("overseer", f"{group}: that can't be: {queue}")
