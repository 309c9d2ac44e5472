"""Single messages in hand once more, from the log alone, by rules of their own: the simplest that
there are, an offset at a time. Used at a run's end, beside a state machine that applies the log
again an entry at a time.

    an offset is given       the first time in ascending order, or again once it is due
    while it is hidden       nobody else is given it
    it is finished           by the hand that has it, or passed over before it was ever given
    what is finished         is never given again
    it is a dead letter      once nobody has it, after its attempts, with a copy each: of it, and
                             of all that it has
    who asks again           is told of all that the attempt has
    in order                 nobody hides what is behind what another one has, or what comes first,
                             once another one was given something of the queue
    FIFO                     one attempt of a queue has anything that is hidden

What the machine says after each entry must be that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.state.compound import Judged
from broker.state.machine import StateMachine
from chaos.sim.defect import Defect
from chaos.sim.originals import Originals, lies_at, unit_records
from dledger.reading.entry import EntryHeader
from dledger.records.record import DecodedRecord
from dledger.wire import commands_pb2 as pb

Seat = tuple[str, int, int]  # group, incarnation, queue id
Hand = tuple[str, int, int, int, int]  # its seat, offset, and the entry that gave it


@dataclass(slots=True)
class _Spell:
    """How long an attempt had an offset in one hand, in entries."""

    hand: Hand
    given: int
    ended: int = 0  # the entry after which it hasn't; 0: it has


@dataclass(slots=True)
class _Held:
    """An offset in somebody's hand, or returned."""

    handout: int
    until_ms: int
    attempt: int
    spell: _Spell | None = None  # None: nobody's
    who: bytes = b""  # the attempt; empty: nobody's
    is_passed: bool = False  # since it was hidden another one was given something of a FIFO queue


@dataclass(slots=True)
class _Queue:
    start: int
    next: int
    held: dict[int, _Held] = field(default_factory=dict)
    passed_over: set[int] = field(default_factory=set)
    buried: set[int] = field(default_factory=set)


class DeliveryModel:
    """All queues of which anything was ever handed out, as of the last entry."""

    def __init__(self, machine: StateMachine, originals: Originals) -> None:
        self._machine = machine
        self._originals = originals
        self._queues: dict[Seat, _Queue] = {}
        self.attempts: set[bytes] = set()  # that were given anything
        self._spells: dict[bytes, list[_Spell]] = {}  # by attempt
        self.ended: set[Hand] = set()  # in which a message was finished
        self.given = self.again = self.finished = self.returned = self.extended = 0

    def starts(self, group: str) -> dict[tuple[int, int], int]:
        """Where the group started, by (incarnation, queue id)."""
        return {seat[1:]: queue.start for seat, queue in self._queues.items() if seat[0] == group}

    def passed_over(self, group: str) -> dict[tuple[int, int], set[int]]:
        """What was never given to anybody and is finished, by (incarnation, queue id)."""
        return {
            seat[1:]: queue.passed_over for seat, queue in self._queues.items() if seat[0] == group
        }

    def buried(self, group: str, incarnation: int, queue_id: int) -> set[int]:
        """The queue's messages that are dead letters of the group."""
        return self._queues[group, incarnation, queue_id].buried

    def held(self, attempt_id: bytes, since: int, until: int) -> set[Hand]:
        """What the attempt had all the while from entry `since` to entry `until`."""
        return {
            each.hand
            for each in self._spells.get(attempt_id, ())
            if each.given <= since and not 0 < each.ended <= until
        }

    def applied(self, header: EntryHeader, frame: bytes, units: Sequence[Judged]) -> None:
        """The machine has applied that entry; of one of units, what became of them.

        Raises:
            Defect: it isn't as it should be.
        """
        records = unit_records(header, frame) if units else ()
        for unit, copies in zip(units, records, strict=True):
            for command in unit.commands:
                if command.HasField("deliver"):
                    self._deliver(command.deliver, header)
                elif command.HasField("bury"):
                    self._bury(command.bury, copies, header)
        self._drop_what_is_gone(header)
        changing = ("deliver", "bury")
        if any(c.WhichOneof("body") in changing for unit in units for c in unit.commands):
            self._compare(header)

    def _deliver(self, command: pb.DeliverCommand, header: EntryHeader) -> None:
        group, incarnation = command.group, command.incarnation
        known = sum(1 for seat in self._queues if seat[:2] == (group, incarnation))
        if command.starts and command.first_start == known:
            # Groups of the simulator that are handed messages have committed nothing before.
            for queue_id, offset in enumerate(command.starts, known):
                self._queues[group, incarnation, queue_id] = _Queue(offset, offset)
        for settled in command.settled:
            seat = group, incarnation, settled.queue_id
            queue = self._queue(command, settled.queue_id, header)
            if command.fifo and _hides(settled) and _is_passed(queue, settled.handout, header):
                text = f"{_offsets(settled.base, settled.mask)} of queue {settled.queue_id}"
                raise Defect("delivery", f"entry {header.index} hides {text}, and was passed")
            self._settle(queue, seat, settled, header, is_fifo=command.fifo)
        for given in command.given:
            seat = group, incarnation, given.queue_id
            self._give(self._queue(command, given.queue_id, header), seat, given, header)
        if command.fifo:
            self._check_fifo(command, header)

    def _bury(
        self, command: pb.BuryCommand, copies: Sequence[DecodedRecord], header: EntryHeader
    ) -> None:
        queue = self._queue(command, command.queue_id, header)
        offsets = _offsets(command.base, command.mask)
        where = f"entry {header.index}"
        topics = [each.topic for each in copies]
        if topics != [f"%DLQ%{command.group}"] * len(offsets):
            raise Defect("delivery", f"{where} copies {offsets} to {topics}")
        places = [lies_at(self._originals.of(each, where)) for each in copies]
        if places != [(command.topic, command.queue_id, offset) for offset in offsets]:
            raise Defect("delivery", f"{where} copies {places} for {offsets} of {command.topic}")
        for offset in offsets:
            held = queue.held.pop(offset, None)
            is_over = (
                held is not None
                and held.handout == command.handout
                and held.until_ms <= header.append_time_ms
                and held.attempt >= max(1, command.attempts)
            )
            if held is None or not is_over:
                raise Defect("delivery", f"entry {header.index} buries {offset}, which is {held}")
            _end(held, header)
            queue.buried.add(offset)

    def _queue(
        self, command: pb.DeliverCommand | pb.BuryCommand, queue_id: int, header: EntryHeader
    ) -> _Queue:
        queue = self._queues.get((command.group, command.incarnation, queue_id))
        if queue is None:
            raise Defect("delivery", f"entry {header.index} is about a queue without a start")
        return queue

    def _settle(
        self,
        queue: _Queue,
        seat: Seat,
        settled: pb.SettledMessages,
        header: EntryHeader,
        *,
        is_fifo: bool,
    ) -> None:
        for offset in _offsets(settled.base, settled.mask):
            held = queue.held.get(offset)
            if held is None or held.handout != settled.handout:
                raise Defect(
                    "delivery", f"entry {header.index} settles {offset} for who hasn't got it"
                )
            match settled.what:
                case pb.SETTLING_FINISHED:
                    _end(queue.held.pop(offset), header)
                    self.ended.add((*seat, offset, settled.handout))
                    self.finished += 1
                case pb.SETTLING_RETURNED:
                    until_ms = header.append_time_ms + settled.hidden_ms
                    _end(held, header)
                    queue.held[offset] = _Held(header.index, until_ms, held.attempt)
                    self.returned += 1
                    for behind, other in queue.held.items() if is_fifo else ():
                        if behind > offset:
                            # It comes first, once their time is over: no entry says when.
                            _end(other, header)
                case _:
                    held.until_ms = header.append_time_ms + settled.hidden_ms
                    held.is_passed = False
                    self.extended += 1

    def _give(
        self, queue: _Queue, seat: Seat, given: pb.GivenMessages, header: EntryHeader
    ) -> None:
        now_ms = header.append_time_ms
        until_ms = now_ms + given.hidden_ms
        if given.mask:
            self.attempts.add(given.attempt_id)
        if not given.former:
            wanted = _offsets(given.base, given.mask)
            end = given.base + given.mask.bit_length()
            if given.base < queue.next:
                raise Defect("delivery", f"entry {header.index} gives {given.base} as if new")
            queue.passed_over.update(set(range(queue.next, end)) - set(wanted))
            queue.next = end
            for offset in wanted:
                spell = self._begin(seat, offset, given.attempt_id, header)
                queue.held[offset] = _Held(header.index, until_ms, 1, spell, given.attempt_id)
                self.given += 1
            return
        for offset in _offsets(given.base, given.mask):
            held = queue.held.get(offset)
            if held is None or held.handout != given.former or held.until_ms > now_ms:
                raise Defect(
                    "delivery", f"entry {header.index} gives {offset}, which is {held} at {now_ms}"
                )
            _end(held, header)
            spell = self._begin(seat, offset, given.attempt_id, header)
            attempt = held.attempt + 1
            queue.held[offset] = _Held(header.index, until_ms, attempt, spell, given.attempt_id)
            self.again += 1

    def _begin(self, seat: Seat, offset: int, attempt_id: bytes, header: EntryHeader) -> _Spell:
        spell = _Spell((*seat, offset, header.index), header.index)
        self._spells.setdefault(attempt_id, []).append(spell)
        return spell

    def _check_fifo(self, command: pb.DeliverCommand, header: EntryHeader) -> None:
        for given in command.given:
            queue = self._queue(command, given.queue_id, header)
            index = header.index
            mine = {o for o, held in queue.held.items() if held.handout == index and held.who}
            others = {o: held for o, held in queue.held.items() if o not in mine}
            for held in others.values() if mine else ():
                _end(held, header)  # what lies behind is whoever's who has it next
                held.is_passed = True
            is_hidden = any(held.until_ms > header.append_time_ms for held in others.values())
            if mine and (is_hidden or any(offset < max(mine) for offset in others)):
                raise Defect("delivery", f"entry {header.index} gives {given} out of order")

    def _drop_what_is_gone(self, header: EntryHeader) -> None:
        there = {topic.incarnation for topic in self._machine.topics.values()}
        for seat in [
            seat
            for seat in self._queues
            if seat[1] not in there or self._machine.groups.get(seat[0]) is None
        ]:
            for held in self._queues.pop(seat).held.values():
                _end(held, header)

    def _compare(self, header: EntryHeader) -> None:
        names = {topic.incarnation: topic.name for topic in self._machine.topics.values()}
        for (group, incarnation, queue_id), queue in self._queues.items():
            record = self._machine.deliveries.in_topic(group, incarnation)[queue_id]
            found = {
                offset: (each.index, each.hidden_until_ms, each.attempt)
                for each in record
                for offset in each.offsets()
            }
            expected = {
                offset: (held.handout, held.until_ms, held.attempt)
                for offset, held in queue.held.items()
            }
            frontier = self._machine.offsets.of(group, names[incarnation]).get(queue_id)
            if (
                found != expected
                or record.next != queue.next
                or frontier != min(queue.held, default=queue.next)
            ):
                raise Defect(
                    "delivery",
                    f"after entry {header.index} {group} has {found} of queue {queue_id}, next "
                    f"{record.next}, frontier {frontier}, and should have {expected}, {queue.next}",
                )


def _hides(settled: pb.SettledMessages) -> bool:
    """Whether these messages are hidden from then on, by whoever settles them."""
    is_later = settled.what == pb.SETTLING_RETURNED and settled.hidden_ms > 0
    return is_later or settled.what == pb.SETTLING_EXTENDED


def _is_passed(queue: _Queue, handout: int, header: EntryHeader) -> bool:
    """Whether, in order, something comes before what that hand has, or somebody else has any, and
    its time was over when that was looked at: it was when another one was given something. What is
    hidden now was hidden then."""
    mine = {offset: held for offset, held in queue.held.items() if held.handout == handout}
    own = {held.who for held in mine.values()}
    if not mine or not all(held.is_passed for held in mine.values()):
        return False
    return any(
        offset < min(mine) or (held.who and held.until_ms > header.append_time_ms)
        for offset, held in queue.held.items()
        if held.who not in own
    )


def _end(held: _Held, header: EntryHeader) -> None:
    """That hand hasn't got it any more, from here on at the latest."""
    if held.spell is not None:
        held.spell.ended = held.spell.ended or header.index


def _offsets(base: int, mask: int) -> list[int]:
    return [base + bit for bit in range(mask.bit_length()) if mask >> bit & 1]
