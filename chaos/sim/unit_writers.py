"""Writers of units: messages and a commit that take effect together, or a refusal on purpose.

No service writes units with messages yet (ADR 54), so these call the leader's part itself, as a
service will. Each unit holds messages for some queues of a topic and a commit of a group that
nobody else has, which so says for good whether the unit took effect, whoever learned of it. Some
hold another commit besides, one beyond its queue's end: no such unit may take effect, and nobody
may ever read a message of it. Some are for topics that are raced for, by incarnation.

At rest every replica is held against all of it: what its readers give, what its state says, and
what the log says of its own units to who reads it as data.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from broker.leader.batches import Batch
from broker.leader.units import ProposedUnit
from broker.state.topics import TopicRef
from chaos.errors import CallFailed
from chaos.sim.archive import Archive
from chaos.sim.clients import BORN, Client, Shared
from chaos.sim.defect import Defect
from chaos.sim.node import WRITE_UNIT, SimNode
from chaos.sim.racers import MAX_QUEUES, NAMES, Track
from dledger.reading.compound import batches_in, commands_in, data_in
from dledger.reading.entry import parse_header
from dledger.records.record import RecordTemplate, decode_records
from dledger.wire import broker_pb2 as pb
from dledger.wire.commands_pb2 import Command, CommitOffsetsCommand, CommittedOffset

TOPIC = "units"
_NAME = TOPIC.encode()
QUEUES = 2
BEYOND = 1 << 40  # an offset that no queue reaches
REFUSED_SHARE = 0.3
RACED_SHARE = 0.2
SENT_SHARE = 0.3  # of the rest
MAX_TASKS = 12
MAX_ATTEMPTS = 8
READ_MESSAGES = 7  # at once: void ones come first, in the middle and last

Place = tuple[int, int]  # queue id, offset


@dataclass(slots=True)
class Unit:
    """What was written in one unit, and what became of it: None while nobody knows."""

    group: str
    values: tuple[str, ...]
    is_meant: bool  # to take effect
    took_effect: bool | None = None


@dataclass(slots=True)
class UnitBook:
    """All units of one run that are for the topic which nobody deletes."""

    units: list[Unit] = field(default_factory=list)
    sent: set[str] = field(default_factory=set)  # by themselves, and acknowledged
    incarnation: int = 0


class UnitWriter(Client):
    """Writes units, several at once, each until it is known whether it took effect, or can't be."""

    def __init__(
        self,
        name: str,
        shared: Shared,
        chance: Random,
        interval_s: float,
        books: tuple[UnitBook, Track],
    ) -> None:
        super().__init__(name, shared, chance)
        self._interval_s = interval_s
        self._book, self._track = books
        self._written = 0
        self._found: dict[str, int] = {}  # raced topics, as they were
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        """Until the run stops and everything is answered."""
        loop = asyncio.get_running_loop()
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            if not self._book.incarnation:
                await self._find()
            elif len(self._tasks) < MAX_TASKS:
                for _ in range(self.chance.randint(1, 4)):
                    task = loop.create_task(self._write())
                    self._tasks[task] = None
                    task.add_done_callback(self._tasks.pop)
        if self._tasks:
            await asyncio.gather(*self._tasks)

    async def _find(self) -> None:
        """The topic is there, and its incarnation is known."""
        request = pb.CreateTopicRequest(name=TOPIC, queue_count=QUEUES, if_not_exists=True)
        try:
            await self.call("create_topic", request)
        except CallFailed:
            return
        self._book.incarnation = await self.incarnation(TOPIC)

    async def _write(self) -> None:
        self._written += 1
        number = f"{self.name}.{self._written}"
        if self.chance.random() < RACED_SHARE:
            await self._race(self.chance.choice(NAMES), number)
            return
        if self.chance.random() < SENT_SHARE:
            await self._send(number)
            return
        queues = [self.chance.randrange(QUEUES) for _ in range(self.chance.randint(1, 3))]
        values = tuple(f"{number}.{n}" for n in range(len(queues)))
        is_meant = self.chance.random() >= REFUSED_SHARE
        unit = Unit(number, values, is_meant)
        self._book.units.append(unit)
        commands = [self._commit(TOPIC, self._book.incarnation, number, 0)]
        if not is_meant:
            bad = self._commit(TOPIC, self._book.incarnation, f"{number}-bad", BEYOND)
            commands.insert(self.chance.randrange(2), bad)
        batches = tuple(
            _batch(TOPIC, self._book.incarnation, queue_id, value)
            for queue_id, value in zip(queues, values, strict=True)
        )
        unit.took_effect = await self._propose(ProposedUnit(batches, tuple(commands)))
        if unit.took_effect and not is_meant:
            raise Defect("half a unit", f"{number} took effect, and one of its commands can't")

    async def _propose(self, wanted: ProposedUnit) -> bool | None:
        """Whether it took effect; None: nobody knows. Again only where it surely didn't happen."""
        for _ in range(MAX_ATTEMPTS):
            try:
                return bool(await self.call(WRITE_UNIT, wanted))
            except CallFailed as failure:
                if failure.may_have_happened:
                    return None
            await self.back_off()
        return False

    async def _send(self, value: str) -> None:
        """A message by itself, between those of units."""
        batch = _batch(TOPIC, self._book.incarnation, self.chance.randrange(QUEUES), value)
        wire = pb.SendBatch(
            topic=TOPIC,
            topic_incarnation=batch.incarnation,
            queue_id=batch.queue_id,
            count=1,
            records=batch.records,
        )
        try:
            answer = await self.call("send", pb.SendRequest(batches=[wire]))
        except CallFailed:
            return
        if not answer.results[0].HasField("error"):
            self._book.sent.add(value)

    async def _race(self, name: str, value: str) -> None:
        """A unit for a topic that may be another one by then, or is: some are for the one that had
        the name when it was first looked for."""
        incarnation = self._found.get(name, 0)
        if not incarnation or self.chance.random() < 0.5:
            incarnation = self._found[name] = await self.incarnation(name)
        if not incarnation:
            return
        self._track.meant[value] = incarnation
        batch = _batch(name, incarnation, self.chance.randrange(MAX_QUEUES), value)
        group = f"race-{self.chance.randrange(3)}"
        commands = (self._commit(name, incarnation, group, 0),) * self.chance.randrange(2)
        if await self._propose(ProposedUnit((batch,), commands)):
            self._track.settled_us[value] = self.shared.group.now_us

    def _commit(self, topic: str, incarnation: int, group: str, offset: int) -> Command:
        return Command(
            commit_offsets=CommitOffsetsCommand(
                group=group,
                topic=topic,
                offsets=[CommittedOffset(queue_id=0, offset=offset)],
                topic_incarnation=incarnation,
            )
        )


def _batch(topic: str, incarnation: int, queue_id: int, value: str) -> Batch:
    records = RecordTemplate(topic, BORN).encode(queue_id, value.encode(), b"", 0)
    return Batch(topic, queue_id, 0, 1, records, incarnation)


# --- at rest ----------------------------------------------------------------------------------


def check_units(book: UnitBook, node: SimNode, frames: Sequence[bytes]) -> None:
    """The node has each unit whole or not at all, and gives away nothing of those it refused.

    Args:
        frames: all entries that were committed; the node's own log may begin later.

    Raises:
        Defect: it hasn't, or does.
    """
    life = node.life
    if life is None or not book.incarnation or node.has_another_log:
        return
    machine = life.replica.machine
    topic = machine.topics.get(TOPIC)
    if topic is None or topic.incarnation != book.incarnation:
        raise Defect("lost unit", f"{node.name} has no topic {TOPIC}")
    node.disk.is_observed = True
    placed, refused = _said(frames)
    visible = [_read(node, queue_id) for queue_id in range(QUEUES)]
    node.disk.is_observed = False
    for queue_id, (first, found) in enumerate(visible):
        offsets = {place[1]: value for place, value in placed.items() if place[0] == queue_id}
        if sorted(offsets) != list(range(topic.next_offsets[queue_id])):
            raise Defect("offsets with gaps", f"{TOPIC}/{queue_id} of {node.name}")
        told = {at: value for at, value in offsets.items() if at >= first and value not in refused}
        if found != told:
            differing = sorted(set(found.items()) ^ set(told.items()))[:5]
            raise Defect("void message", f"{TOPIC}/{queue_id} of {node.name}: {differing}")
    known = set(placed.values()) - refused
    if book.sent - known:
        raise Defect("lost message", f"{sorted(book.sent - known)[:5]} on {node.name}")
    for unit in book.units:
        there = [value in known for value in unit.values]
        is_committed = bool(machine.offsets.of(unit.group, TOPIC))
        if {*there} != {is_committed} or (is_committed and not unit.is_meant):
            raise Defect("half a unit", f"{unit} on {node.name}: {there}, {is_committed}")
        if unit.took_effect is not None and unit.took_effect != is_committed:
            raise Defect("lost unit", f"{unit} on {node.name}: {is_committed}")


def committed_frames(nodes: Iterable[SimNode], archive: Archive | None) -> Sequence[bytes]:
    """Every entry, at rest, from the first on; none where nobody holds that."""
    if archive is not None:
        return archive.frames
    for node in nodes:
        life = node.life
        if life is None or life.replica.log.first_index != 1:
            continue
        node.disk.is_observed = True
        last = life.replica.machine.applied_index
        frames = [life.replica.log.read(index, index) for index in range(1, last + 1)]
        node.disk.is_observed = False
        return frames
    return ()


def _said(frames: Sequence[bytes]) -> tuple[dict[Place, str], set[str]]:
    """What a log says by itself: the value at each offset, and those of units that were refused."""
    placed: dict[Place, str] = {}
    of_units: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    refused: set[str] = set()
    for frame in frames:
        header = parse_header(frame, 0)
        if _NAME not in frame or not header.is_known:
            continue
        units = [each.unit for each in batches_in(header, frame)] if header.is_compound else [0]
        for unit, (alone, batch) in zip(units, data_in(header, frame), strict=False):
            for record in decode_records(batch[alone.first_record_at :]):
                if record.topic == TOPIC:
                    value = record.body.decode()
                    placed[record.queue_id, record.queue_offset] = value
                    of_units[header.index, unit].append(value)
    for frame in frames:
        header = parse_header(frame, 0)
        for body in commands_in(header, frame) if header.is_compound else ():
            for each in Command.FromString(body).settle_units.refused:
                refused.update(of_units[each.index, each.unit])
    return placed, refused


def _read(node: SimNode, queue_id: int) -> tuple[int, dict[int, str]]:
    """The first offset, and all that a reader of the node gets of the queue."""
    assert node.life is not None
    reader, topic = node.life.replica.reader, TopicRef(TOPIC)
    low, high = reader.bounds(topic, queue_id)
    at, found = low, dict[int, str]()
    while at < high:
        answer = reader.pull(topic, queue_id, at, READ_MESSAGES, 1 << 20)
        for record in decode_records(answer.records):
            found[record.queue_offset] = record.body.decode()
        if answer.next_offset <= at:
            raise Defect("no progress", f"{TOPIC}/{queue_id} of {node.name} at {at}")
        at = answer.next_offset
    return low, found
