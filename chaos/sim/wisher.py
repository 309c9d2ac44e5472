"""Who says for how long a topic's messages are wanted, and says something else a while later.

What a leader makes of it is looked at in the end (`chaos.sim.ages`): no queue may begin behind a
message that is younger than the least that its topic ever wished. Whoever reads meets queues that
begin later, as those do whose log lets its front go.
"""

from __future__ import annotations

import asyncio
from random import Random

from chaos.errors import CallFailed
from chaos.sim.clients import Client, Shared
from chaos.sim.defect import Defect
from chaos.sim.racers import NAMES
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2 as epb

WISHES_MS = (0, 1_000, 1_000, 2_000, 60_000)


class Wisher(Client):
    """One of them, for all topics."""

    def __init__(self, name: str, shared: Shared, chance: Random, interval_s: float) -> None:
        super().__init__(name, shared, chance)
        self._interval_s = interval_s

    async def run(self) -> None:
        """Until the run stops."""
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            topics = [*self.shared.topics, *self.shared.topics, *NAMES]
            request = pb.RetainTopicRequest(
                name=self.chance.choice(topics), retention_ms=self.chance.choice(WISHES_MS)
            )
            try:
                answer = await self.call("retain_topic", request)
            except CallFailed as failure:
                if failure.code in (epb.INTERNAL, epb.INVALID_ARGUMENT):
                    raise Defect("wisher", f"{request.name}: {failure}") from failure
                continue
            if answer.topic.name != request.name:
                raise Defect("wisher", f"{request.name}: {answer.topic}")
