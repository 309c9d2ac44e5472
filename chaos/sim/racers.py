"""Racers: they send to a topic, delete it and make it anew with more or fewer queues, all at once.

A racer never waits before it acts again, so that batches, deletes and creations of one name lie
side by side in the log, in every order that the group permits. Producers retry until they know,
as real ones do. Nothing of this goes into the history: an outcome is rarely known before the next
one is under way, which would make the history undecidable. What is held against the group instead
is what no delete may leave behind: a message whose fate was known when an acknowledged delete
began is in no queue that is read after it. Most producers name the incarnation of the topic that
they found, and go on with a batch whose fate is unknown across deletes and creations: such a
message is in no other incarnation, whenever it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from chaos.errors import CallFailed
from chaos.sim.clients import BORN, Client, Shared
from chaos.sim.defect import Defect
from dledger.records.record import RecordTemplate, decode_records
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2 as epb

NAMES = ("race-0", "race-1")
MAX_QUEUES = 4  # of a topic that is raced for
MAX_ATTEMPTS = 12  # of a batch: its producer gives it up, and is never heard of again
MAX_TASKS = 24  # under way of one racer
NAMING = 0.7  # of the producers name the incarnation that they found


@dataclass(slots=True)
class Track:
    """What all racers know: when each message's fate was known, when each name was deleted, and
    which messages are for one incarnation of their topic only."""

    settled_us: dict[str, int] = field(default_factory=dict)  # message -> last attempt's end
    deleted_us: dict[str, int] = field(default_factory=dict)  # name -> newest delete, its beginning
    meant: dict[str, int] = field(default_factory=dict)  # message -> incarnation


class Racer(Client):
    """One of several that race for the same few names."""

    def __init__(
        self, name: str, shared: Shared, chance: Random, interval_s: float, track: Track
    ) -> None:
        super().__init__(name, shared, chance)
        self._interval_s = interval_s
        self._track = track
        self._sent = 0
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        """Until the run stops and everything is answered."""
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            if len(self._tasks) < MAX_TASKS:
                self._burst(self.chance.choice(NAMES))
        if self._tasks:
            await asyncio.gather(*self._tasks)

    def _burst(self, name: str) -> None:
        """A few things at once, in an order of their own."""
        chance = self.chance
        for _ in range(chance.randint(1, 5)):
            what = chance.random()
            if what < 0.5:
                self._begin(self._produce(name, chance.randrange(MAX_QUEUES)))
            elif what < 0.65:
                self._begin(self._delete(name))
            elif what < 0.85:
                self._begin(self._create(name, chance.randint(1, MAX_QUEUES)))
            else:
                self._begin(self._read(name, chance.randrange(MAX_QUEUES)))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _create(self, name: str, queues: int) -> None:
        try:
            await self.call("create_topic", pb.CreateTopicRequest(name=name, queue_count=queues))
        except CallFailed:
            return

    async def _delete(self, name: str) -> None:
        began_us = self.shared.group.now_us
        try:
            await self.call("delete_topic", pb.DeleteTopicRequest(name=name))
        except CallFailed:
            return
        self._track.deleted_us[name] = max(began_us, self._track.deleted_us.get(name, 0))

    async def _produce(self, name: str, queue_id: int) -> None:
        """A producer's first two batches, each sent again until it is stored or refused for good;
        what is under way when the producer gives up never counts as settled."""
        registered = await self.register()
        if registered is None:
            return
        producer_id = registered.producer_id
        incarnation = await self.incarnation(name) if self.chance.random() < NAMING else 0
        template = RecordTemplate(name, BORN)
        for sequence in range(2):
            self._sent += 1
            value = f"{self.name}.{self._sent}"
            records = template.encode(queue_id, value.encode(), b"", 0)
            batch = pb.SendBatch(
                topic=name, queue_id=queue_id, base_sequence=sequence, count=1, records=records
            )
            if incarnation:
                batch.topic_incarnation = incarnation
                self._track.meant[value] = incarnation
            request = pb.SendRequest(producer_id=producer_id, batches=[batch])
            if not await self._deliver(request):
                return
            self._track.settled_us[value] = self.shared.group.now_us

    async def _deliver(self, request: pb.SendRequest) -> bool:
        """Whether it was stored. An attempt that nobody answered may arrive later still: where no
        incarnation is named, at a later topic of the name, and nothing is known any more."""
        is_named = request.batches[0].topic_incarnation > 0
        for _ in range(MAX_ATTEMPTS):
            try:
                result = (await self.call("send", request)).results[0]
            except CallFailed as failure:
                if failure.may_have_happened and not is_named:
                    await self._ask_again(request)
                    return False
            else:
                if not result.HasField("error"):
                    return True
                if result.error.outcome == epb.MAY_HAVE_HAPPENED and not is_named:
                    await self._ask_again(request)
                    return False
                if not result.error.retriable:
                    return False
            await self.back_off()
        return False

    async def _ask_again(self, request: pb.SendRequest) -> None:
        """The retry of a batch whose fate is unknown."""
        try:
            await self.call("send", request)
        except CallFailed:
            return

    async def _read(self, name: str, queue_id: int) -> None:
        deleted_us = self._track.deleted_us.get(name, 0)
        request = pb.PullRequest(topic=name, queue_id=queue_id, offset=0, max_messages=64)
        try:
            answer = await self.call("pull", request)
        except CallFailed:
            return
        values = [each.body.decode() for each in decode_records(answer.records)]
        if len(set(values)) < len(values):
            raise Defect("stored twice", f"{name}/{queue_id}: {values}")
        for value in values:
            if self._track.meant.get(value, answer.topic_incarnation) != answer.topic_incarnation:
                raise Defect(
                    "message of another topic",
                    f"{value} was sent to {name} of entry {self._track.meant[value]}, and is in "
                    f"the one of entry {answer.topic_incarnation}",
                )
            settled_us = self._track.settled_us.get(value)
            if settled_us is None or settled_us >= deleted_us:
                continue
            # A leader that was succeeded without knowing it answers from the topic as it was: what
            # the present one says decides, and that one was made after the deletion.
            if await self.incarnation(name) == answer.topic_incarnation:
                raise Defect(
                    "message of an earlier topic",
                    f"{value} was stored before {name} was deleted, and is in the one made anew",
                )
