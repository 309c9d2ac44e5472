"""Units of a compound entry take effect: those that `broker.state.compound` has let pass.

Files come first, of all units; then the queues go on, then commands take effect. A refused unit's
batches are in their queues as well, void. What was judged can't be refused any more: a refusal here
is this program's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from broker.state.compound import Judged, commit_of, judge, settlement_of
from broker.state.delivering import Plan
from broker.state.effects import Effects
from broker.state.queue_files import QueueFiles
from broker.state.refusals import Malformed
from broker.state.replicated import ReplicatedState
from broker.state.retries import Queue
from broker.state.retrying import fail, fired_of, send_back
from dledger.core.errors import InvariantViolation
from dledger.level import COMPOUND_LEVEL
from dledger.reading.entry import EntryHeader
from dledger.records.errors import FormatError
from dledger.wire.commands_pb2 import Command


class Units:
    """Applies compound entries to `state`; the arguments are those of `broker.state.commands`."""

    def __init__(
        self,
        state: ReplicatedState,
        effects: Effects,
        queues: QueueFiles,
        void: Callable[[int, Malformed], Malformed],
        *,
        derived_through: int,
    ) -> None:
        self._state = state
        self._effects = effects
        self._queues = queues
        self._void = void
        self._derived_through = derived_through

    def apply(self, header: EntryHeader, frame: bytes) -> None:
        """Each unit has taken effect, or was refused; see `broker.state.compound`."""
        if self._state.level.current < COMPOUND_LEVEL:
            self._void(header.index, Malformed("units are of a level above the one in use"))
            return
        try:
            units = judge(self._state, header, frame)
        except FormatError as error:
            self._void(header.index, Malformed(str(error)))
            return
        if header.index > self._derived_through:
            self._derive_units(units)
        for unit in units:
            for batch in unit.batches:
                self._state.topics.advance(batch.topic, batch.queue_id, batch.end)
                self._state.topics.derive(batch.topic, batch.queue_id, batch.units)
                self._state.messages_applied += batch.record_count
        for unit in units:
            plans = iter(unit.plans)
            for command in unit.commands:
                self._take_effect(command, plans)
        if header.record_count:
            refused = (n for n, each in enumerate(units) if each.refusal and each.batches)
            self._state.outcomes.note(header.index, refused)
        for unit in units:
            for batch in unit.batches:
                self._effects.listener.arrived((batch.topic.incarnation, batch.queue_id))
        self._effects.listener.units_applied(header.index, units)

    def _derive_units(self, units: Sequence[Judged]) -> None:
        """All that the entry does to files. Done again after a disk was full it is the same."""
        ended = {
            command.delete_topic.name
            for unit in units
            for command in unit.commands
            if command.HasField("delete_topic")
        }
        for unit in units:
            for batch in unit.batches:
                if batch.topic.name not in ended:
                    folder = batch.topic.folder
                    self._queues.dispatch(folder, batch.queue_id, batch.base, batch.units)
        for name in sorted(ended):
            self._queues.delete_topic(self._state.topics[name].folder)

    def _take_effect(self, command: Command, plans: Iterator[Plan]) -> None:
        """A command of a unit that was judged; all files are as they are to be. What it makes of
        handouts was planned then: no other unit of the entry is about the same ones."""
        state, effects = self._state, self._effects
        match command.WhichOneof("body"):
            case "commit_offsets":
                body = command.commit_offsets
                refusal = effects.commit(commit_of(body), state.topics[body.topic])
                if refusal is not None:
                    raise InvariantViolation(f"a unit's commit was judged, and is {refusal}")
            case "delete_topic":
                effects.end_topic(state.topics[command.delete_topic.name])
            case "deliver":
                given = command.deliver
                topic = state.topics[given.topic]
                effects.delivering.deliver(next(plans), topic, given.group, effects.moment())
            case "bury":
                bury = command.bury
                topic = state.topics[bury.topic]
                effects.delivering.deliver(next(plans), topic, bury.group, effects.moment())
            case "settle_units":
                state.outcomes.settle(settlement_of(command.settle_units))
            case "send_back":
                sent = command.send_back
                topic = state.topics[sent.topic]
                send_back(state, sent, topic, state.lived_time.lived_ms)
            case "fail_message":
                failed = command.fail_message
                fail(state, failed, state.topics[failed.topic], state.lived_time.lived_ms)
            case "fire_delayed":
                state.retries.fire(fired_of(command.fire_delayed))
            case "resend":
                dead = command.resend
                state.retries.resend(Queue(dead.incarnation, dead.queue_id), dead.offset)
