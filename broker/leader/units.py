"""The leader's way of units into the log: many share an entry, each has its own result (ADR 54).

One entry of units is under way at a time, and what is proposed meanwhile shares the next one, in
the order in which it came. So whoever's turn it is is judged by the applied state alone: of the
commands under way none has its keys. A unit whose keys are held waits, and holds back whatever
comes behind it with any of them; one that is wide waits for all of a topic. A message that failed
and stays finishes all before it, which no key says: what failed there waits as well (ADR 63).

This owns the units that wait and those under way. It must never put two units with one key into an
entry, nor hand out a queue offset that a batch on its way has. What the log is to say of refused
units is proposed here as well, as a unit like any other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Protocol

from broker.errors import BrokerError, ErrorCode, replaced
from broker.leader.batches import Batch, BatchRules, Placed
from broker.leader.closing import check_open
from broker.leader.flight import InFlight, UnitEnd
from broker.leader.offsets_room import OffsetsRoom, begun_by
from broker.leader.units_room import Room, UnitsRoom, kind_of
from broker.leader.voided import closed
from broker.state.compound import NO_PRODUCER, RECORDS, Claims, Judged, Key, UnitRefusal, keys_of
from broker.state.leases import MAX_RANGES, Place
from broker.state.machine import StateMachine
from broker.state.outcomes import Settlement
from broker.state.refusals import Refusal
from broker.state.topics import TopicState
from dledger.core.types import EntryKind
from dledger.driver import Stamp
from dledger.level import COMPOUND_LEVEL
from dledger.reading.compound import (
    UnitBody,
    build_body,
    exceeds,
)
from dledger.reading.entry import COMPOUND_VERSION, HEADER_SIZE, MAX_RECORD_COUNT
from dledger.records.layout import HOST
from dledger.records.record import BATCH_PREAMBLE
from dledger.wire.commands_pb2 import (
    Command,
    FailMessageCommand,
    RefusedUnit,
    SendBackCommand,
    SettleUnitsCommand,
)
from store.stamping import stamp_records

SHARED_BYTES: Final = 256 << 10  # an entry is given units up to here, and one at least
SHARED_PART: Final = 4  # of a segment at most: an entry has to fit in one
SHARED_UNITS: Final = 256  # of an entry: it is applied in one turn
LOOKED_AT: Final = 2_048  # units that wait, for one entry: what is behind them waits on


def shared_bytes(segment_bytes: int) -> int:
    """Up to where an entry is given units, the first one aside."""
    return min(SHARED_BYTES, segment_bytes // SHARED_PART)


def holds() -> None:
    """The condition of a unit that has none."""
    return


@dataclass(frozen=True, slots=True)
class ProposedUnit:
    """What is to take effect together.

    Attributes:
        batches: without producers and sequences; each is for a topic that is there.
        commands: each names its topic's incarnation.
        condition: is asked when nothing under way has the unit's keys: why it isn't proposed, or
            None; or it raises BrokerError, which the unit fails with. It reads the applied state
            and changes nothing.
    """

    batches: tuple[Batch, ...] = ()
    commands: tuple[Command, ...] = ()
    condition: Callable[[], Refusal | None] = holds


@dataclass(frozen=True, slots=True)
class UnitResult:
    """What became of a unit: why it was refused, or None; where its batches are stored, none of
    them if it was refused; and which entry it was in, 0: it was refused before it was in any."""

    refusal: UnitRefusal | None
    placed: tuple[Placed, ...] = ()
    index: int = 0


class ProposeEntry(Protocol):
    """The appender's proposal of an entry."""

    def __call__(
        self,
        kind: EntryKind,
        count: int,
        body: bytes | bytearray,
        stamp: Stamp | None,
        version: int,
    ) -> int: ...


@dataclass(slots=True)
class _Unit:
    """A unit that waits or is under way, as it will lie in the entry."""

    wanted: ProposedUnit
    body: UnitBody
    starts: list[list[int]]  # of each batch's records
    keys: tuple[Key, ...]
    done: asyncio.Future[UnitResult]
    is_internal: bool
    placed: list[Placed] = field(default_factory=list)
    room: Room | None = None  # that it takes while it waits
    begun: int = 0  # queues in which groups get an offset by it, when it was its turn

    @property
    def own_keys(self) -> list[Key]:
        """Those that no other unit of its entry has."""
        return [key for key in self.keys if key.what != RECORDS]

    @property
    def sent_back(self) -> list[tuple[Place, int]]:
        """The messages that it finishes for a group, by a copy: queue and offset of each."""
        told = (each.send_back for each in self.wanted.commands if each.HasField("send_back"))
        return [_message(each) for each in told]

    @property
    def staying(self) -> list[tuple[Place, int]]:
        """Those that it says have failed, and stay in front of their queue."""
        told = (each.fail_message for each in self.wanted.commands if each.HasField("fail_message"))
        return [_message(each) for each in told]

    def is_behind(self, fronts: dict[Place, int]) -> bool:
        """Whether it is about a message that failed, and is before the front of its queue."""
        if not fronts:
            return False
        failed = chain(self.sent_back, self.staying)
        return any(offset < fronts.get(place, 0) for place, offset in failed)

    def fail(self, error: BrokerError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # whoever awaited it may be gone

    def finish(self, result: UnitResult) -> None:
        if not self.done.done():
            self.done.set_result(result)


def _message(failed: FailMessageCommand | SendBackCommand) -> tuple[Place, int]:
    """The message's queue, for its group, and its offset."""
    return Place(failed.group, failed.incarnation, failed.queue_id), failed.offset


class Units:
    """Takes units while this node leads; one owner thread."""

    def __init__(
        self,
        propose: ProposeEntry,
        machine: StateMachine,
        room: OffsetsRoom,
        flight: Callable[[], InFlight],
        rules: BatchRules,
        store_host: tuple[bytes, int],
        segment_bytes: int,
    ) -> None:
        """Starts idle; `begin` comes when this node leads.

        Args:
            propose: the appender's.
            machine: the applied state; read only.
            room: of what groups commit.
            flight: the appender's, of the term that is led.
            rules: what a batch must be like.
            store_host: IPv4 address (4 bytes) and port that records are stamped with.
            segment_bytes: of the log: no entry is longer.
        """
        self._shared_bytes = shared_bytes(segment_bytes)
        self._propose = propose
        self._machine = machine
        self._offsets_room = room
        self._flight = flight
        self._rules = rules
        self._store_host = store_host
        self._store_host_wire = HOST.struct().pack(*store_host)
        self._is_leading = False
        self._waiting: list[_Unit] = []
        self._room = UnitsRoom()
        self._under_way: tuple[int, list[_Unit]] | None = None  # index, units
        self._settling: asyncio.Future[UnitResult] | None = None
        self._refused: Settlement | None = None  # of this term, by the state

    # --- leadership ---------------------------------------------------------------------------

    def begin(self) -> None:
        """This node leads and has applied everything in its log."""
        self._forget_all()
        self._settling = self._refused = None
        self._is_leading = True
        self.go_on()

    def end(self, error: BrokerError) -> None:
        """Leadership is lost: who waits for an entry is told `error`; the others, that nothing of
        theirs has happened."""
        waiting, under_way = self._waiting, self._under_way
        self._forget_all()
        self._is_leading = False
        for unit in under_way[1] if under_way else ():
            unit.fail(error)
        for unit in waiting:
            unit.fail(BrokerError(ErrorCode.NOT_LEADER, "this node leads no more"))

    def _forget_all(self) -> None:
        self._waiting, self._room, self._under_way = [], UnitsRoom(), None

    def futures(self) -> list[asyncio.Future[UnitResult]]:
        """Of those that somebody waits for."""
        under_way = self._under_way[1] if self._under_way else []
        units = chain(under_way, self._waiting)
        return [unit.done for unit in units if not unit.is_internal]

    @property
    def are_taken(self) -> bool:
        """Whether the level in use has units."""
        return self._machine.level.current >= COMPOUND_LEVEL

    # --- proposing ----------------------------------------------------------------------------

    def propose(
        self, wanted: ProposedUnit, *, is_internal: bool = False, is_single: bool = False
    ) -> asyncio.Future[UnitResult]:
        """Takes a unit; the future gives its result. It may fail as a whole entry does.

        Args:
            is_internal: nobody waits for it but the brokers themselves.
            is_single: who proposes has one at a time, and isn't refused for what others have.

        Raises:
            BrokerError: nothing happened.
        """
        if not self.are_taken:
            text = f"units are of level {COMPOUND_LEVEL}, which isn't in use yet"
            raise BrokerError(ErrorCode.NOT_READY, text)
        if not self._is_leading:
            raise BrokerError(ErrorCode.NOT_LEADER, "this node doesn't lead")
        unit = self._made(wanted, is_internal=is_internal)
        kind = kind_of(
            has_messages=bool(wanted.batches), is_internal=is_internal, is_single=is_single
        )
        unit.room = self._room.take(kind, unit.body.size, unit.own_keys)
        self._waiting.append(unit)
        self._propose_next()
        return unit.done

    def check_readable(self) -> None:
        """A unit with a message that is yet to be read would be taken, however large that is.

        Raises:
            BrokerError: BUSY.
        """
        self._room.check_readable()

    def _made(self, wanted: ProposedUnit, *, is_internal: bool) -> _Unit:
        """The unit as it will lie in an entry, its records checked.

        Raises:
            BrokerError: it is none.
        """
        commands = [command.SerializeToString() for command in wanted.commands]
        batches: list[tuple[bytearray, int]] = []
        keys: list[Key] = []
        starts: list[list[int]] = []
        for batch in wanted.batches:
            starts.append(self._rules.record_starts(batch))
            body = bytearray(BATCH_PREAMBLE.size)
            batches.append((body + batch.records, batch.count))
            keys.append(Key(batch.topic, RECORDS))
        for command in wanted.commands:
            found = keys_of(command)
            if found is None:
                raise _invalid(f"no unit holds {command.WhichOneof('body')}")
            keys += found
        unit = UnitBody(batches, commands)
        excess = exceeds((unit,))
        if excess is None and not self._rules.takes_unit(unit.size):
            excess = f"a unit of {unit.size} bytes"
        if excess is not None:
            raise _invalid(excess)
        claims = Claims()
        for key in keys:
            if claims.conflict((key,)) is not None:
                raise _invalid("a unit whose parts are about the same")
            claims.hold((key,))
        done: asyncio.Future[UnitResult] = asyncio.get_running_loop().create_future()
        return _Unit(wanted, unit, starts, tuple(keys), done, is_internal)

    def _propose_next(self) -> None:
        """Those whose turn it is are on their way, in one entry."""
        while self._is_leading and self._under_way is None and self._waiting:
            waited = len(self._waiting)
            chosen = self._chosen()
            if not chosen and len(self._waiting) == waited:
                return
            if not chosen:
                continue  # those that were looked at are answered
            try:
                self._propose_entry(chosen)
            except BrokerError as error:
                for unit in chosen:
                    unit.fail(error)

    def _chosen(self) -> list[_Unit]:
        """The units of the next entry; those that can't be proposed are answered."""
        claims = Claims()
        chosen: list[_Unit] = []
        left: list[_Unit] = []
        places: Counter[Place] = Counter()
        fronts: dict[Place, int] = {}  # all before them is finished by this entry (ADR 63)
        size = records = begun = 0
        for unit in self._waiting[:LOOKED_AT]:
            is_free = claims.conflict(unit.keys) is None and not unit.is_behind(fronts)
            fits = not chosen or (
                len(chosen) < SHARED_UNITS
                and size + unit.body.size <= self._shared_bytes
                and records + unit.body.record_count <= MAX_RECORD_COUNT
                and all(places[each] < self._ranges_left(each) for each, _ in unit.sent_back)
            )
            if is_free and fits and self._is_answered(unit, begun):
                self._has_left(unit)
                continue
            claims.hold(unit.keys)  # also of one that waits: what is behind it doesn't overtake it
            if is_free and fits:
                chosen.append(unit)
                self._has_left(unit)
                places.update(place for place, _ in unit.sent_back)
                for place, offset in unit.staying:
                    fronts[place] = max(offset, fronts.get(place, 0))
                size += unit.body.size
                records += unit.body.record_count
                begun += unit.begun
            else:
                left.append(unit)
        self._waiting = left + self._waiting[LOOKED_AT:]
        return chosen

    def _ranges_left(self, place: Place) -> int:
        """How many single messages of a queue may be finished by one entry: before it is applied
        each counts as a range of its own, also next to each other. In the next entry what they
        became counts."""
        return max(1, MAX_RANGES - len(self._machine.leases.of(place).finished))

    def _has_left(self, unit: _Unit) -> None:
        """The unit waits no more."""
        if unit.room is not None:
            self._room.give_back(unit.room)

    def _is_answered(self, unit: _Unit, begun: int) -> bool:
        """Whether the unit is over without an entry: nobody waits for it, or it can't be, where
        groups get offsets in so many queues by those before it."""
        if unit.done.done():
            return True
        try:
            for batch in unit.wanted.batches:
                self._topic_of(batch)
            unit.begun = sum(begun_by(self._machine, each) for each in unit.wanted.commands)
            self._offsets_room.check(unit.begun, begun)
            refusal = unit.wanted.condition()
        except BrokerError as error:  # of the condition, too
            unit.fail(error)
            return True
        if refusal is not None:
            unit.finish(UnitResult(refusal))
        return refusal is not None

    def _topic_of(self, batch: Batch) -> TopicState:
        """The topic that the batch is for, and has the queue.

        Raises:
            BrokerError: there is none, or not for long.
        """
        topic = self._machine.topics.get(batch.topic)
        if topic is None or self._flight().is_deleting(batch.topic):
            text = f"topic {batch.topic!r} does not exist"
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, text)
        if batch.incarnation not in (0, topic.incarnation):
            raise replaced(batch.topic, batch.incarnation, topic.incarnation)
        check_open(self._machine, self._flight(), topic)
        if batch.queue_id >= len(topic.next_offsets):
            text = f"topic {batch.topic!r} has no queue {batch.queue_id}"
            raise BrokerError(ErrorCode.QUEUE_NOT_FOUND, text)
        if self._flight().is_changing(batch.topic):
            raise BrokerError(ErrorCode.BUSY, f"topic {batch.topic!r} is being changed")
        numbers = self._machine.queue_numbers
        refusal = numbers.refusal_of(topic.name, topic.incarnation, batch.queue_id)
        if refusal is not None:
            raise closed(refusal)
        return topic

    def _propose_entry(self, units: list[_Unit]) -> None:
        bases, ends = self._placed(units)
        body, firsts = build_body([unit.body for unit in units])
        batches = [(unit, starts) for unit in units for starts in unit.starts]

        def stamp(physical_offset: int, append_time_ms: int) -> None:
            for (unit, starts), base, first in zip(batches, bases, firsts, strict=True):
                record_at = physical_offset + HEADER_SIZE + first
                stamp_records(
                    body,
                    starts,
                    at=first,
                    base_queue_offset=base,
                    base_physical_offset=record_at,
                    store_time_ms=append_time_ms,
                    store_host=self._store_host,
                )
                host = self._store_host_wire
                unit.placed.append(Placed(base, record_at, append_time_ms, host))

        records = sum(unit.body.record_count for unit in units)
        index = self._propose(EntryKind.DATA, records, body, stamp, COMPOUND_VERSION)
        self._under_way = index, units
        self._flight().add_units(index, ends)
        self._flight().add_beginning(index, sum(unit.begun for unit in units))
        for unit in units:
            for command in unit.wanted.commands:
                self._flight().add_command(index, command)

    def _placed(self, units: Iterable[_Unit]) -> tuple[list[int], list[UnitEnd]]:
        """The queue offset of each batch's first record, and where each ends; the topics' are
        written into their preambles."""
        bases: list[int] = []
        ends: dict[tuple[int, int], int] = {}
        for unit in units:
            for batch, (body, count) in zip(unit.wanted.batches, unit.body.batches, strict=True):
                topic = self._topic_of(batch)
                place = topic.incarnation, batch.queue_id
                base = ends.get(place, self._flight().end_of(place))
                if base is None:
                    base = topic.next_offsets[batch.queue_id]
                assert isinstance(body, bytearray)
                BATCH_PREAMBLE.pack_into(body, 0, NO_PRODUCER, 0, topic.incarnation)
                bases.append(base)
                ends[place] = base + count
        return bases, [UnitEnd(*place, end) for place, end in ends.items()]

    # --- completion ---------------------------------------------------------------------------

    def on_applied(self, index: int, units: Sequence[Judged]) -> None:
        """The state machine has applied the units at `index`, or refused them."""
        if self._under_way is None or self._under_way[0] != index:
            return  # of another leader, or of a term before
        _, proposed = self._under_way
        self._under_way = None
        for unit, judged in zip(proposed, units, strict=True):
            if judged.refusal is None:
                unit.finish(UnitResult(None, tuple(unit.placed), index))
            else:
                unit.finish(UnitResult(judged.refusal, (), index))
        self._give_back(proposed, units)

    def _give_back(self, proposed: Sequence[_Unit], units: Sequence[Judged]) -> None:
        """Offsets that were to be taken and weren't: what follows them there is void as well."""
        taken = {
            (batch.topic.name, batch.queue_id, batch.base)
            for unit in units
            for batch in unit.batches
        }
        lost = [
            (batch.topic, batch.queue_id)
            for unit in proposed
            for batch, placed in zip(unit.wanted.batches, unit.placed, strict=True)
            if (batch.topic, batch.queue_id, placed.base_queue_offset) not in taken
        ]
        topics = self._machine.topics
        present = ((topics.get(name), queue_id) for name, queue_id in lost)
        self._flight().void_units((t.incarnation, queue) for t, queue in present if t is not None)

    def go_on(self) -> None:
        """Whatever was applied is told: what waits is proposed, and what is to be settled."""
        if not self._is_leading or not self.are_taken:
            return
        if self._settling is None or self._settling.done():
            settlement = self._machine.outcomes.to_settle()
            if settlement is not None and settlement != self._refused:
                self._settle(settlement)
        self._propose_next()

    def _settle(self, settlement: Settlement) -> None:
        """The log is to say which units were refused."""
        command = SettleUnitsCommand(
            through=settlement.through,
            refused=[RefusedUnit(index=i, unit=u) for i, u in settlement.refused],
        )
        wanted = ProposedUnit(commands=(Command(settle_units=command),))
        try:
            self._settling = self.propose(wanted, is_internal=True)
        except BrokerError:
            self._settling = None  # full of units: it is tried again at the next tick
            return

        def on_done(done: asyncio.Future[UnitResult]) -> None:
            # What the state has refused it would refuse again, and again, for ever.
            if not done.exception() and done.result().refusal is not None:
                self._refused = settlement

        self._settling.add_done_callback(on_done)


def _invalid(text: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_ARGUMENT, text)
