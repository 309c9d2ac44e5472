"""Clients of the simulated group, and the history of what they did and saw.

Each client is a coroutine on a loop of its own. Consumers poll, commit and fetch offsets, ask for
ends. An administrator makes and deletes topics. Producers (`chaos.sim.producers`) and racers
(`chaos.sim.racers`) have modules of their own. Nobody here may count an unknown outcome as one or
the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from chaos.checkers.history import (
    Action,
    Commit,
    Create,
    Delete,
    End,
    Exists,
    Fetch,
    History,
    Operation,
    Poll,
    Result,
)
from chaos.errors import CallFailed
from chaos.sim.defect import Defect
from chaos.sim.gates import Gates
from dledger.core.types import NodeId
from dledger.history import Outcome
from dledger.records.errors import InvalidRecord
from dledger.records.record import RecordTemplate, decode_records
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2 as epb

BACK_OFF_S = (0.005, 0.1)
BORN = ("10.0.1.1", 9000)


class Group(Protocol):
    """The group as clients reach it."""

    members: list[NodeId]

    @property
    def now_us(self) -> int: ...

    @property
    def log_behind_us(self) -> int:
        """How far the time of the newest entry that was applied is behind the true one."""
        ...

    @property
    def committed(self) -> int:
        """The highest index that any node has called committed."""
        ...

    def call(self, client: str, node: NodeId, method: str, request: object) -> Awaitable[Any]:
        """The answer; raises CallFailed."""
        ...


@dataclass(slots=True)
class Shared:
    """What all clients have in common. `stopping` ends them; `topics` hold messages."""

    group: Group
    history: History
    topics: dict[str, int] = field(default_factory=dict)  # name -> queues
    moves_start: bool = False  # queues may begin later than at 0
    has_tags: bool = False  # messages carry tags
    gates: Gates = field(default_factory=Gates)  # of topics that are opened and closed
    stopping: bool = False
    pending: int = 0  # batches that nobody has answered yet


class Client:
    """One client: whom it believes to lead, and how it calls and records."""

    def __init__(self, name: str, shared: Shared, chance: Random) -> None:
        self.name = name
        self.shared = shared
        self.chance = chance
        self.target = chance.choice(shared.group.members)

    async def call(self, method: str, request: object) -> Any:
        """One attempt at whom it believes to lead; what it learns decides whom it asks next."""
        try:
            return await self.shared.group.call(self.name, self.target, method, request)
        except CallFailed as failure:
            hint = failure.error.leader.node_id if failure.error else ""
            self.target = NodeId(hint) if hint else self.chance.choice(self.shared.group.members)
            raise

    def look_elsewhere(self) -> None:
        """Asks another node next."""
        self.target = self.chance.choice(self.shared.group.members)

    async def record(
        self, action: Action, method: str, request: object, read: Callable[[Any], Result]
    ) -> Operation:
        """One attempt, recorded as one operation."""
        history, group = self.shared.history, self.shared.group
        operation = history.invoke(group.now_us, self.name, action)
        try:
            answer = await self.call(method, request)
        except CallFailed as failure:
            if not failure.may_have_happened:
                refusal = epb.ErrorCode.Name(failure.code) if failure.error else ""
                history.refuse(group.now_us, operation, refusal)
            self.check_refusal(action, failure)
            return operation
        try:
            result = read(answer)
        except InvalidRecord as error:
            raise Defect("poll", f"{action}: {error}") from error
        history.complete(group.now_us, operation, Outcome.OK, result)
        return operation

    def check_refusal(self, action: Action, failure: CallFailed) -> None:
        """A topic that nobody deletes exists, and its offsets do not vanish."""
        if self.shared.moves_start and failure.code == epb.OFFSET_OUT_OF_RANGE:
            return
        lies = (epb.TOPIC_NOT_FOUND, epb.QUEUE_NOT_FOUND, epb.OFFSET_OUT_OF_RANGE)
        if failure.code in lies and action.topic in self.shared.topics:
            message = failure.error.message if failure.error else ""
            raise Defect("stale refusal", f"{self.name}, {action}: {message}")

    async def register(
        self, name: str = "", previous: bytes = b"", token: bytes = b""
    ) -> pb.RegisterProducerResponse | None:
        """One attempt to register a producer; None if it failed or nobody knows."""
        request = pb.RegisterProducerRequest(
            token=token or self.chance.randbytes(8), name=name, previous=previous
        )
        try:
            answer = await self.call("register_producer", request)
        except CallFailed:
            return None
        assert isinstance(answer, pb.RegisterProducerResponse)
        return answer

    async def incarnation(self, name: str) -> int:
        """Of the topic that has the name now; 0 if there is none, or nobody says."""
        try:
            answer = await self.call("describe_topic", pb.DescribeTopicRequest(name=name))
        except CallFailed:
            return 0
        return int(answer.topic.incarnation)

    async def end(self, topic: str, queue_id: int) -> Operation:
        """Asks for the queue's maximum offset."""
        request = pb.GetQueueOffsetsRequest(topic=topic, queue_id=queue_id)
        return await self.record(
            End(topic, queue_id),
            "get_queue_offsets",
            request,
            lambda answer: int(answer.max_offset),
        )

    async def fetch(self, topic: str, queue_id: int, group: str) -> Operation:
        """Asks for a group's committed offset."""
        request = pb.FetchOffsetsRequest(group=group, topic=topic)

        def read(answer: Any) -> int | None:
            found = {each.queue_id: int(each.offset) for each in answer.offsets}
            return found.get(queue_id)

        return await self.record(Fetch(topic, group, queue_id), "fetch_offsets", request, read)

    async def back_off(self) -> None:
        """A moment, different each time."""
        await asyncio.sleep(self.chance.uniform(*BACK_OFF_S))


# --- consumers ---------------------------------------------------------------------------------


class Consumer(Client):
    """Polls queues from where it stands, commits and fetches offsets, asks for ends."""

    def __init__(self, name: str, shared: Shared, chance: Random, interval_s: float) -> None:
        super().__init__(name, shared, chance)
        self._interval_s = interval_s
        self._positions: dict[tuple[str, int], int] = {}
        self._sought: set[tuple[str, int]] = set()  # where it has gone on elsewhere
        self._generation = 0

    async def run(self) -> None:
        """Until the run stops."""
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            topics = self.shared.topics
            if not topics or self.shared.stopping:
                continue
            topic = self.chance.choice(list(topics))
            queue_id = self.chance.randrange(topics[topic])
            what = self.chance.random()
            if what < 0.45:
                await self.poll(topic, queue_id)
            elif what < 0.57:
                await self._commit(topic, 0)
            elif what < 0.7:
                self._doubt()
                await self.fetch(topic, 0, self._group())
            else:
                self._doubt()
                await self.end(topic, queue_id)

    def _doubt(self) -> None:
        """Asks anybody, now and then: a leader that was deposed must not answer."""
        if self.chance.random() < 0.5:
            self.look_elsewhere()

    async def poll(self, topic: str, queue_id: int, *, final: bool = False) -> bool:
        """One poll; tells whether it gave messages, or failed: then there may be more."""
        key = (topic, queue_id)
        seek = key not in self._positions or key in self._sought
        offset = self._positions.get(key, 0)
        hold_ms = 0 if final else self.chance.choice((0, 0, 200))
        request = pb.PullRequest(
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            max_messages=0 if final else self.chance.choice((1, 8, 64)),
            max_bytes=self.chance.choice((0, 1, 4096)),
            hold_ms=hold_ms,
        )
        action = Poll(topic, queue_id, offset, seek=seek, final=final)
        done = await self.record(action, "pull", request, lambda answer: _polled(action, answer))
        polled = done.result if isinstance(done.result, tuple) else ()
        if polled:
            self._positions[key] = polled[-1][0] + 1
            self._sought.discard(key)
        elif not done.is_ok and self.shared.moves_start:
            await self._go_to_the_first(topic, queue_id)
        return bool(polled) or not done.is_ok

    async def _go_to_the_first(self, topic: str, queue_id: int) -> None:
        """What it wanted may be gone: then it goes on with the first message that isn't."""
        request = pb.GetQueueOffsetsRequest(topic=topic, queue_id=queue_id)
        with contextlib.suppress(CallFailed):
            answer = await self.call("get_queue_offsets", request)
            if answer.min_offset > self._positions.get((topic, queue_id), 0):
                self._positions[topic, queue_id] = answer.min_offset
                self._sought.add((topic, queue_id))

    def _group(self) -> str:
        # A new group now and then keeps each one's history short enough to be decided.
        self._generation += self.chance.random() < 0.02
        return f"g{self._generation}"

    async def _commit(self, topic: str, queue_id: int) -> None:
        offset = self._positions.get((topic, queue_id), 0)
        if offset and self.chance.random() < 0.5:
            offset = self.chance.randrange(offset + 1)
        group = self._group()
        request = pb.CommitOffsetsRequest(
            group=group,
            topic=topic,
            offsets=[pb.QueueOffset(queue_id=queue_id, offset=offset)],
        )
        action = Commit(topic, group, queue_id, offset)
        await self.record(action, "commit_offsets", request, lambda _: None)


def _polled(action: Poll, answer: Any) -> tuple[tuple[int, str], ...]:
    """The messages of an answer; their bytes are checked as a client checks them."""
    records = decode_records(answer.records)
    if len(records) != answer.count:
        raise InvalidRecord(0, "count", answer.count, len(records))
    expected = action.offset
    for record in records:
        found = (record.topic, record.queue_id, record.queue_offset)
        if found != (action.topic, action.queue_id, expected):
            raise InvalidRecord(0, "place", (action.topic, action.queue_id, expected), found)
        expected += 1
    return tuple((each.queue_offset, each.body.rstrip(b".").decode()) for each in records)


class Doubter(Client):
    """Asks any node for ends and offsets, without waiting for its answers: a leader that was
    deposed, or slept through its end, must not answer."""

    def __init__(self, name: str, shared: Shared, chance: Random, interval_s: float) -> None:
        super().__init__(name, shared, chance)
        self._interval_s = interval_s
        self._tasks: dict[asyncio.Task[Operation], None] = {}

    async def run(self) -> None:
        """Until the run stops and everything is answered."""
        loop = asyncio.get_running_loop()
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            for topic, queues in self.shared.topics.items():
                self.look_elsewhere()
                if self.chance.random() < 0.5:
                    task = loop.create_task(self.end(topic, self.chance.randrange(queues)))
                else:
                    group = f"g{self.chance.randrange(2)}"
                    task = loop.create_task(self.fetch(topic, 0, group))
                self._tasks[task] = None
                task.add_done_callback(self._tasks.pop)
                await asyncio.sleep(0)  # the question goes to the node just chosen
        if self._tasks:
            await asyncio.gather(*self._tasks)


# --- administration ----------------------------------------------------------------------------


class Administrator(Client):
    """Creates, deletes and looks up topics of its own, and throws messages and commits at them that
    nobody checks: they make the state machine drop and restart queues, with the producers and the
    offsets that hang on them."""

    def __init__(self, name: str, shared: Shared, chance: Random, interval_s: float) -> None:
        super().__init__(name, shared, chance)
        self._interval_s = interval_s

    async def run(self) -> None:
        """Until the run stops."""
        names = [f"admin-{i}" for i in range(3)]
        round_number = 0
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            round_number += 1
            name = f"{self.chance.choice(names)}-{round_number // 60}"
            what = self.chance.random()
            if what < 0.3:
                await self.create(name, 2)
            elif what < 0.5:
                request = pb.DeleteTopicRequest(name=name)
                await self.record(Delete(name), "delete_topic", request, lambda _: None)
            elif what < 0.75:
                await self._use_unchecked(name)
            else:
                await self._exists(name)

    async def create(self, name: str, queues: int) -> Operation:
        """One attempt to create a topic."""
        request = pb.CreateTopicRequest(name=name, queue_count=queues)
        return await self.record(Create(name, queues), "create_topic", request, lambda _: None)

    async def _exists(self, name: str) -> None:
        request = pb.ListTopicsRequest()
        await self.record(
            Exists(name),
            "list_topics",
            request,
            lambda answer: any(topic.name == name for topic in answer.topics),
        )

    async def _use_unchecked(self, name: str) -> None:
        """One batch of a producer that never comes back, and a commit behind it."""
        queue_id = self.chance.randrange(2)
        records = RecordTemplate(name, BORN).encode(queue_id, b"x" * 50, b"", 0)
        batch = pb.SendBatch(topic=name, queue_id=queue_id, count=1, records=records)
        registered = await self.register()
        if registered is None:
            return
        try:
            producer_id = registered.producer_id
            await self.call("send", pb.SendRequest(producer_id=producer_id, batches=[batch]))
            offset = pb.QueueOffset(queue_id=queue_id, offset=1)
            commit = pb.CommitOffsetsRequest(group="g0", topic=name, offsets=[offset])
            await self.call("commit_offsets", commit)
        except CallFailed:
            return
