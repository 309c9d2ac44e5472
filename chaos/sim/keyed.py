"""A topic that grows and shrinks beside senders with keys and a crew that reads in order (ADR 60).

Senders do what clients are to do: they choose a queue by what they know of the topic, say by what
they chose, and choose anew when they are told to; a key's next message is sent when the last one is
known to be stored. The crew must be handed each key's messages in the order of sending, whatever
the number of queues was meanwhile: before a message that lies in another queue than the one before
it, that one is finished. No queue goes before the crew has joined: nobody waits for a group of
which the brokers know nothing yet, and what had gone with such a queue it would miss by right. At
rest every message lies in a queue that its key belonged to where it lies in the log, once, none is
missing, and nothing is in a queue behind where it was closed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from broker.state.machine import StateMachine
from broker.state.queue_numbers import Numbers
from broker.state.topics import TopicRef
from chaos.errors import CallFailed
from chaos.sim.clients import BORN, Client, Shared
from chaos.sim.defect import Defect
from chaos.sim.members import Crew, Held, Member, Queue
from chaos.sim.node import SimNode
from dledger.client.routing import queue_of_key
from dledger.records.properties import encode_properties
from dledger.records.record import DecodedRecord, RecordTemplate, decode_records
from dledger.wire import broker_pb2 as pb
from dledger.wire import commands_pb2 as cpb
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as gpb

TOPIC: Final = "keyed"
GROUP: Final = "keyed-crew"
QUEUES: Final = 3  # at first
MAX_QUEUES: Final = 6
KEYS: Final = 4  # of each sender
READ_BYTES: Final = 1 << 20
WRONG: Final = (epb.INVALID_ARGUMENT, epb.INTERNAL, epb.QUEUE_NOT_FOUND)  # for who asks rightly

Key = str
Place = tuple[int, int]  # queue id, offset


@dataclass(slots=True)
class Book:
    """What was sent to the topic, and how often it was changed. By key the numbers of messages that
    are known to be stored, in the order of sending; a number that nobody knows of isn't there."""

    stored: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    finished: set[tuple[Key, int]] = field(default_factory=set)  # by the crew
    is_joined: bool = False  # the crew was told so: from then on queues that go wait for it
    changes: int = 0
    refusals: int = 0  # of what was chosen before a change


class KeyedSender(Client):
    """Sends messages with keys, one at a time."""

    def __init__(
        self, name: str, shared: Shared, chance: Random, interval_s: float, book: Book
    ) -> None:
        super().__init__(name, shared, chance)
        self._interval_s = interval_s
        self._book = book
        self._template = RecordTemplate(TOPIC, BORN)
        self._producer = b""
        self._topic: pb.Topic | None = None
        self._sequences: dict[int, int] = defaultdict(int)  # by queue
        self._sent: dict[Key, int] = defaultdict(int)

    async def run(self) -> None:
        """Until the run stops and the last message is answered."""
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            if self._topic is None:
                await self._create()
            elif not self._producer:
                await self._register()
            else:
                await self._send(f"{self.name}.{self.chance.randrange(KEYS)}")

    async def _create(self) -> None:
        request = pb.CreateTopicRequest(name=TOPIC, queue_count=QUEUES, if_not_exists=True)
        try:
            await self.call("create_topic", request)
        except CallFailed as failure:
            if failure.code != epb.TOPIC_EXISTS:  # of another size by now
                return
        await self._look()

    async def _look(self) -> None:
        try:
            answer = await self.call("describe_topic", pb.DescribeTopicRequest(name=TOPIC))
        except CallFailed:
            return
        self._topic = answer.topic

    async def _register(self) -> None:
        answer = await self.register()
        if answer is not None:
            self._producer = answer.producer_id
            self._sequences.clear()

    async def _send(self, key: Key) -> None:
        """Until it is stored, or nobody can know any more."""
        number, self._sent[key] = self._sent[key], self._sent[key] + 1
        self.shared.pending += 1
        while (queue_id := await self._attempt(key, number)) is None:
            await self.back_off()
        self.shared.pending -= 1
        if queue_id >= 0:
            self._book.stored[key].append(number)

    async def _attempt(self, key: Key, number: int) -> int | None:
        """Where it is stored; -1: nobody knows whether; None: it isn't known yet."""
        assert self._topic is not None
        queue_id = queue_of_key(key, self._topic.write_queues)
        record = self._template.encode(
            queue_id, b"%d" % number, encode_properties({"KEYS": key}), 0
        )
        batch = pb.SendBatch(
            topic=TOPIC,
            topic_incarnation=self._topic.incarnation,
            queue_id=queue_id,
            base_sequence=self._sequences[queue_id],
            count=1,
            records=record,
            queues_changed=self._topic.queues_changed,
        )
        request = pb.SendRequest(producer_id=self._producer, batches=[batch])
        try:
            (result,) = (await self.call("send", request)).results
        except CallFailed as failure:
            if failure.error is None:
                return None
            result = pb.SendResult(error=failure.error)
        if not result.HasField("error"):
            self._sequences[queue_id] += 1
            return queue_id
        return await self._on_error(result.error)

    async def _on_error(self, error: epb.Error) -> int | None:
        if error.code == epb.QUEUES_CHANGED:
            self._book.refusals += 1
            await self._look()
        elif error.code in (epb.UNKNOWN_PRODUCER, epb.PRODUCER_FENCED):
            self._producer = b""  # forgotten: what was under way is so, too
            return -1
        elif not error.retriable and error.code not in (epb.INTERNAL, epb.LIMIT_REACHED):
            raise Defect("honest producer refused", f"{self.name}: {error}")
        self.look_elsewhere()
        return None


class Resizer(Client):
    """Has the topic grow and shrink."""

    def __init__(
        self, name: str, shared: Shared, chance: Random, interval_s: float, book: Book
    ) -> None:
        super().__init__(name, shared, chance)
        self._interval_s = interval_s
        self._book = book

    async def run(self) -> None:
        """Until the run stops."""
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            topic = await self._look()
            if topic is None:
                continue
            try:
                await self._update(topic)
            except CallFailed as failure:
                if failure.code not in WRONG:
                    continue
                # One before it, that nobody had answered, may have come in between.
                may_be_late = failure.code != epb.INTERNAL
                if not may_be_late or await self._look() == topic:
                    raise Defect("resizer", f"{failure.error}") from failure

    async def _look(self) -> pb.Topic | None:
        """The topic as it is now; None: nobody has said."""
        try:
            answer = await self.call("describe_topic", pb.DescribeTopicRequest(name=TOPIC))
        except CallFailed as failure:
            if failure.code in WRONG:
                raise Defect("resizer", f"{failure.error}") from failure
            return None
        topic: pb.Topic = answer.topic
        return topic

    async def _update(self, topic: pb.Topic) -> None:
        read, write = topic.queue_count, topic.write_queues
        wanted = self.chance.randint(1, MAX_QUEUES)
        request = pb.UpdateTopicRequest(
            name=TOPIC, incarnation=topic.incarnation, write_queues=wanted
        )
        if write < read and self.chance.random() < 0.4 and self._book.is_joined:
            request.write_queues, request.read_queues = 0, write  # once all have read the rest
        elif wanted > read:
            request.read_queues = wanted
        changed = await self.call("update_topic", request)
        self._book.changes += changed.topic.queues_changed != topic.queues_changed


@dataclass(slots=True)
class KeyedCrew(Crew):
    """What its members were handed: (key, number) by place."""

    book: Book = field(default_factory=Book)
    handed: dict[Place, tuple[Key, int]] = field(default_factory=dict)

    def settings(self, *topics: str) -> cpb.GroupSettings:
        return cpb.GroupSettings(orderly=True, topics=(TOPIC,))

    def hand(self, queue_id: int, record: DecodedRecord) -> None:
        """A member was handed the message.

        Raises:
            Defect: one before it of its key is in another queue, and nobody has finished it.
        """
        key, number = record.properties["KEYS"], int(record.body)
        self.handed[queue_id, record.queue_offset] = key, number
        here = {each for (queue, _), each in self.handed.items() if queue == queue_id}
        for before in self.book.stored[key]:
            if before >= number:
                return
            if (key, before) not in self.book.finished and (key, before) not in here:
                raise Defect(
                    "key out of order",
                    f"{key} {number} was handed out of queue {queue_id} at "
                    f"{record.queue_offset}, and {before} isn't finished",
                )

    def finish(self, queue_id: int, offsets: Iterable[int]) -> None:
        """A member has finished these."""
        self.book.finished |= {
            self.handed[queue_id, each] for each in offsets if (queue_id, each) in self.handed
        }


class KeyedMember(Member):
    """One process of that crew."""

    _crew: KeyedCrew

    def _on_joined(self, joined: gpb.Joined) -> None:
        super()._on_joined(joined)
        self._crew.book.is_joined = True

    def _note(self, queue: Queue, record: DecodedRecord) -> None:
        if queue[0] == TOPIC:
            self._crew.hand(queue[2], record)

    async def _finish_some(self, queue: Queue, held: Held) -> None:
        self._finish_all(queue, held)

    def _finish_all(self, queue: Queue, held: Held) -> None:
        if queue[0] == TOPIC:
            self._crew.finish(queue[2], held.unfinished)
        super()._finish_all(queue, held)


# --- at rest ----------------------------------------------------------------------------------


def is_through(machine: StateMachine) -> bool:
    """Whether the crew has finished all there is."""
    topic = machine.topics.get(TOPIC)
    if topic is None:
        return True
    known = machine.offsets.of(GROUP, TOPIC)
    return all(known.get(queue, 0) >= end for queue, end in enumerate(topic.next_offsets))


def check_keyed(book: Book, node: SimNode) -> None:
    """Every message is where its key belonged, once and in order, and none is missing.

    Raises:
        Defect: names what isn't so.
    """
    if node.life is None or node.has_another_log:
        return
    machine = node.life.replica.machine
    topic = machine.topics.get(TOPIC)
    if topic is None:
        if book.stored:
            raise Defect("lost message", f"{node.name} has no topic {TOPIC}")
        return
    numbers = machine.queue_numbers.of(topic.incarnation, len(topic.next_offsets))
    found: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    node.disk.is_observed = True
    for queue_id in range(len(topic.next_offsets)):
        for record in _records(node, queue_id):
            key = record.properties["KEYS"]
            wanted = queue_of_key(key, _written_at(numbers, queue_id, record.queue_offset))
            if wanted != queue_id:
                at = f"{TOPIC}/{queue_id} at {record.queue_offset}"
                raise Defect("wrong queue", f"{key} is in {at}, and belonged in {wanted}")
            found[key].append((record.physical_offset, int(record.body)))
    node.disk.is_observed = False
    for key, stored in book.stored.items():
        held = [number for _, number in sorted(found[key])]
        if held != sorted(set(held)):
            raise Defect("key out of order", f"{key} lies in the log as {held}")
        # What lay in queues that went, groups have read.
        missing = [n for n in stored if n not in held and (key, n) not in book.finished]
        if missing:
            raise Defect("lost message", f"{key}: {missing[:5]} on {node.name}")


def _written_at(numbers: Numbers, queue_id: int, offset: int) -> int:
    """How many write queues there were when that offset was stored."""
    for change in numbers.changes:
        if offset < change.end_of(queue_id):
            return change.write_queues
    return numbers.write_queues


def _records(node: SimNode, queue_id: int) -> Iterable[DecodedRecord]:
    assert node.life is not None
    reader, topic = node.life.replica.reader, TopicRef(TOPIC)
    at, high = reader.bounds(topic, queue_id)
    while at < high:
        answer = reader.pull(topic, queue_id, at, 1_000, READ_BYTES)
        yield from decode_records(answer.records)
        if answer.next_offset <= at:
            raise Defect("no progress", f"{TOPIC}/{queue_id} of {node.name} at {at}")
        at = answer.next_offset
