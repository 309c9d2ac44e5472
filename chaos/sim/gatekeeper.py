"""Who opens and closes topics while others send to them and read them, as an operator would.

What lies in the log behind a permission is looked at in the end (`chaos.sim.permission_model`).
What clients are told is looked at meanwhile: between the answer that a topic takes no messages and
the next attempt to open it, no send that begins is stored. Before the run ends all are open again.
One topic is its own: there it closes in the midst of its own sends, so that some are on their way
together with that.
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

from chaos.errors import CallFailed
from chaos.sim.clients import BORN, Client, Shared
from chaos.sim.defect import Defect
from chaos.sim.racers import NAMES
from dledger.records.record import RecordTemplate
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2 as epb

BOTH, READ, WRITE = 6, 4, 2
OWN = "gate"
SENDS, AROUND_S = 8, 0.02


class Gatekeeper(Client):
    """One of them, for all topics."""

    def __init__(self, name: str, shared: Shared, chance: Random, interval_s: float) -> None:
        super().__init__(name, shared, chance)
        self._interval_s = interval_s
        self._tried: dict[str, None] = {}  # topics that may be closed

    async def run(self) -> None:
        """Until the run stops and every topic that is used to its end is open."""
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            topics = [*self.shared.topics, *self.shared.topics, *NAMES]
            if not self.shared.stopping:
                permission = self.chance.choice((BOTH, BOTH, READ, READ, WRITE))
                await self._permit(self.chance.choice(topics), permission)
                await self._close_among_sends()
        for topic in [each for each in self._tried if each in self.shared.topics]:
            while not await self._permit(topic, BOTH):
                await self.back_off()

    async def _close_among_sends(self) -> None:
        """What is proposed around the closing is stored before it, or refused."""
        try:
            await self.call(
                "create_topic",
                pb.CreateTopicRequest(name=OWN, queue_count=1, if_not_exists=True),
            )
        except CallFailed:
            return
        await self._permit(OWN, BOTH)
        sends = [self._send(self.chance.uniform(0, AROUND_S)) for _ in range(SENDS)]
        await asyncio.gather(self._permit(OWN, READ), *sends)

    async def _send(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        records = RecordTemplate(OWN, BORN).encode(0, b"x", b"", 0)
        batch = pb.SendBatch(topic=OWN, queue_id=0, count=1, records=records)
        with contextlib.suppress(CallFailed):
            await self.call("send", pb.SendRequest(batches=[batch]))

    async def _permit(self, topic: str, permission: int) -> bool:
        """Whether it is so now."""
        gates = self.shared.gates
        if permission & WRITE:
            gates.closed.pop(topic, None)  # from the attempt on it may be open
        self._tried[topic] = None
        request = pb.PermitTopicRequest(name=topic, permission=permission)
        try:
            answer = await self.call("permit_topic", request)
        except CallFailed as failure:
            if failure.code in (epb.INTERNAL, epb.INVALID_ARGUMENT):
                raise Defect("gatekeeper", f"{topic}: {failure}") from failure
            if permission & WRITE and failure.may_have_happened:
                gates.doubtful.add(topic)
            # Before that level nothing was ever closed.
            return failure.error is not None and "level" in failure.error.message
        if answer.topic.permission != permission and topic not in gates.doubtful:
            raise Defect("gatekeeper", f"{topic} was to have {permission}, and has {answer.topic}")
        if not permission & WRITE and topic in self.shared.topics:  # nobody makes it anew
            gates.close(topic)
        return True
