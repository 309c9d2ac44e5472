"""A group of one that serves, and commits when told: the product's replica on a machine that stands
still (`tests.node.machine`). What is proposed waits until `commit` lets the disk and the event loop
do their work.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import patch

from broker.leader.append import Appender
from broker.leader.batches import Batch, BatchAnswer
from broker.reading.queues import QueueReader
from broker.state.machine import MachineOptions, StateMachine
from broker.state.refusals import Refusal
from broker.state.registration import producer_id
from chaos.sim.disk import SimulatedDisk
from dledger.core.types import EntryKind
from dledger.driver import Stamp
from dledger.level import FIRST_LEVEL
from dledger.ports import never_enough
from dledger.records.layout import file_name
from dledger.records.properties import encode_properties
from dledger.records.record import RecordTemplate
from dledger.wire.commands_pb2 import Command, CreateTopicCommand, RegisterProducerCommand
from store.commitlog import CommitLog
from tests.node.world import Kind, World

TOKEN = b"number01"
REGISTERED = 3  # behind the group's founding and its first leader's no-op
PRODUCER = producer_id(REGISTERED, TOKEN)  # every bench begins with its registration
FIRST_TOPIC = 4  # the index of the entry that follows, as a rule the creation of topic t


class NoQueues:
    """`QueueFiles` that keep nothing."""

    def dispatch(self, topic: str, queue_id: int, base_queue_offset: int, units: bytes) -> None:
        return None

    def delete_topic(self, topic: str) -> None:
        return None


class Bench:
    """One leader, whose process is the one that runs, from here on."""

    def __init__(
        self, options: MachineOptions | None = None, *, known_level: int = FIRST_LEVEL
    ) -> None:
        state = options or MachineOptions()
        self.world = World(1, kind=Kind(state=state, known_level=known_level))
        self.node = self.world.serving()
        self.world.timeline.switch(self.node.loop)
        self.registered: list[bytes] = []
        assert self.register(TOKEN) == PRODUCER

    # --- its parts ----------------------------------------------------------------------------

    @property
    def appender(self) -> Appender:
        return self.node.replica.appender

    @property
    def machine(self) -> StateMachine:
        return self.node.replica.machine

    @property
    def reader(self) -> QueueReader:
        return self.node.replica.reader

    @property
    def log(self) -> CommitLog:
        return self.node.log

    @property
    def disk(self) -> SimulatedDisk:
        return self.node.disk

    @property
    def now_ms(self) -> int:
        """What its wall clock shows."""
        return self.node.loop.wall_ms()

    # --- what happens -------------------------------------------------------------------------

    def commit(self, through: int | None = None) -> None:
        """Everything up to `through` (default: all) is committed, applied and answered; what comes
        behind it waits for another turn."""
        node, hand = self.node, self.node.hand
        if through is None:
            hand.begin = lambda: never_enough
            self.world.settle()
            return
        hand.begin = lambda: lambda: self.machine.applied_index >= through
        while self.machine.applied_index < through:
            node.turn()
            if not node.sync() and self.machine.applied_index < through:
                assert node.take_turns()

    def later(self, ms: int) -> None:
        """The machine has slept for so long."""
        self.world.stand_still(ms)

    def reboot(self) -> None:
        """The process was killed, and another one serves."""
        self.node.kill()
        self.node.boot()
        self.world.serving()
        self.world.timeline.switch(self.node.loop)

    def propose(
        self, kind: EntryKind, record_count: int, body: bytes | bytearray, stamp: Stamp | None
    ) -> int:
        """An entry past all that a leader checks; its index."""
        return self.node.driver.propose(kind, record_count, body, stamp).index

    def topic(self, name: str = "t", queues: int = 2) -> None:
        """Creates a topic and commits it."""
        command = Command(create_topic=CreateTopicCommand(name=name, queue_count=queues))
        self.appender.submit(command)
        self.commit()

    def register(self, token: bytes, name: str = "", previous: bytes = b"") -> bytes:
        """Registers a producer and commits it; its id, which the next entry gives."""
        wanted = RegisterProducerCommand(token=token, name=name, previous=previous)
        self.appender.submit(Command(register_producer=wanted))
        registered = self.log.last_index
        self.commit()
        self.registered.append(producer_id(registered, token))
        return self.registered[-1]

    def submit(self, *commands: Command) -> list[Refusal | None]:
        """Proposes commands and commits them; what became of each."""
        answers = [self.appender.submit(command) for command in commands]
        self.commit()
        return [answer.result() for answer in answers]

    def send(
        self,
        *batches: Batch,
        producer: bytes = PRODUCER,
    ) -> asyncio.Future[list[BatchAnswer]]:
        """Hands batches to the appender."""
        return self.appender.send(producer, list(batches))

    def broken_rule(
        self, known: StateMachine, late: Batch, producer: bytes = PRODUCER
    ) -> asyncio.Future[list[BatchAnswer]]:
        """Proposes by the state of `known` instead of the present one, as only a leader that broke
        the rules could, and commits it."""
        with (
            patch.object(self.machine, "topics", known.topics),
            patch.object(self.machine, "producers", known.producers),
        ):
            answer = self.send(late, producer=producer)
        self.commit()
        return answer

    # --- what is there ------------------------------------------------------------------------

    def replay(self, known_level: int = FIRST_LEVEL) -> StateMachine:
        """The same log, applied from the start."""
        machine = StateMachine(NoQueues(), options=self.machine.options, known_level=known_level)
        machine.apply(self.log.read(1, self.machine.applied_index))
        return machine

    def queue_file(self, topic: str = "t", queue_id: int = 0) -> Path:
        """The first file of a queue."""
        queues = self.node.config.data_directory / "consumequeue"
        folder = self.machine.topics[topic].folder
        return queues / folder / str(queue_id) / file_name(0)

    def units(self, topic: str = "t", queue_id: int = 0) -> bytes:
        """What a queue's files hold."""
        path = self.queue_file(topic, queue_id)
        return self.disk.content(path) if self.disk.exists(path) else b""


def batch(
    sequence: int,
    *bodies: bytes,
    topic: str = "t",
    queue_id: int = 0,
    tag: str | None = None,
) -> Batch:
    """A batch of one producer as the client would build it."""
    template = RecordTemplate(topic, ("127.0.0.1", 5555))
    properties = encode_properties({"TAGS": tag}) if tag else b""
    records = b"".join(template.encode(queue_id, body, properties, 1_000) for body in bodies)
    return Batch(
        topic=topic, queue_id=queue_id, base_sequence=sequence, count=len(bodies), records=records
    )
