"""What the log says may be done with topics, by rules of its own, and that nothing lies behind it.

Reads the log entry by entry beside a state machine that applies it (`chaos.sim.replicas`): a batch
that became messages of a topic must have met a permission to write, whatever leaders knew of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.state.compound import Judged
from broker.state.machine import StateMachine
from chaos.sim.defect import Defect
from dledger.core.types import EntryKind
from dledger.reading.entry import HEADER_SIZE, EntryHeader, preamble_of
from dledger.wire.commands_pb2 import Command

WRITE = 2


class PermissionModel:
    """As of the last entry."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._closed: dict[int, int] = {}  # by incarnation: the entry since which nobody may send
        self.closings = 0

    def applied(self, header: EntryHeader, frame: bytes, units: Sequence[Judged]) -> None:
        """The machine has applied that entry; `units` as they were judged.

        Raises:
            Defect: messages of a topic that takes none.
        """
        if header.is_batch:
            self._check(header.index, preamble_of(header, frame)[2])
        for unit in units:
            for batch in unit.batches if unit.refusal is None else ():
                self._check(header.index, batch.topic.incarnation)
        if header.kind == EntryKind.COMMAND and not header.is_compound:
            command = Command.FromString(frame[HEADER_SIZE : header.total_size])
            if command.HasField("permit_topic"):
                self._permit(header.index, command)

    def _permit(self, index: int, command: Command) -> None:
        wanted = command.permit_topic
        topic = self._machine.topics.get(wanted.name)
        if topic is None or wanted.incarnation not in (0, topic.incarnation):
            return
        if wanted.permission & WRITE:
            self._closed.pop(topic.incarnation, None)
        else:
            self.closings += 1
            self._closed[topic.incarnation] = index

    def _check(self, index: int, incarnation: int) -> None:
        if (since := self._closed.get(incarnation)) is not None:
            raise Defect(
                "stored in a closed topic",
                f"entry {index} is for the topic of entry {incarnation}, which takes no messages "
                f"since entry {since}",
            )
