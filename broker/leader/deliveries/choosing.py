"""Which messages whoever waits is given: what is due first, then what never was given.

This makes one command: what is settled, and what is handed out to whom. It reads the messages that
it chooses, and what can't be read any more it finishes, since nobody could. It changes nothing: the
rules are those of `broker.state.delivering`, asked of the state as it is, which nobody else changes
meanwhile but by ending the topic or the group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from broker.errors import BrokerError, ErrorCode
from broker.leader.deliveries.asking import Handed, Receiver, Settlement, Settler, Superseded
from broker.leader.deliveries.hands import Hands, given_before, in_order, latest, onward, runs
from broker.reading.proof import MAX_RECORD_SIZE
from broker.reading.queues import MAX_BYTES, Found
from broker.state.delivering import Moment, Planning
from broker.state.handouts import NO_ATTEMPT, SPAN, Draft, Handout
from broker.state.refusals import Refusal
from broker.state.topics import TopicState
from dledger.ports import Turns, never_enough
from dledger.records.record import record_starts
from dledger.wire.commands_pb2 import (
    SETTLING_EXTENDED,
    SETTLING_FINISHED,
    SETTLING_RETURNED,
    DeliverCommand,
    GivenMessages,
    SettledMessages,
)

PROVISIONAL: Final = 1 << 63  # the entry that is being made: later than all there are
CHOSEN_BYTES: Final = 8 << 20  # for one command; who isn't reached by then is the next one's
MAX_GIVEN: Final = 256  # pieces given or told again, likewise: a command is applied in one turn
MAX_OVER: Final = 16  # handouts whose attempts are over, of one look; the others are the next one's
MOST_AGAIN: Final = MAX_BYTES + MAX_RECORD_SIZE  # bytes told again: no first answer is longer

# (queue id, offset, messages, bytes) -> what is there now. Raises BrokerError.
Read = Callable[[int, int, int, int], Awaitable[Found]]


@dataclass(slots=True)
class _Part:
    """Messages of one queue, chosen for one receiver."""

    queue_id: int
    attempt: int
    count: int
    records: list[bytes]
    handout: int = 0  # 0: this command's


@dataclass(slots=True)
class _Taken:
    """What was chosen for one receiver so far."""

    parts: list[_Part] = field(default_factory=list)
    count: int = 0
    size: int = 0  # of the records, in bytes

    def add(self, part: _Part) -> None:
        """Adjacent ones of one attempt number are told as one."""
        self.count += part.count
        self.size += sum(map(len, part.records))
        last = self.parts[-1] if self.parts else None
        if last and (last.queue_id, last.attempt, last.handout) == (part.queue_id, part.attempt, 0):
            last.count += part.count
            last.records += part.records
        else:
            self.parts.append(part)


_Step = Callable[[Receiver, int, _Taken], Awaitable[None]]


@dataclass(slots=True)
class Choice:
    """A command that is being made, and who is to be told of it."""

    planning: Planning
    topic: TopicState
    command: DeliverCommand
    now_ms: int
    read: Read
    end_of: Callable[[int], int]  # up to where a queue is given
    turns: Turns
    read_again: Read | None = None  # of what was given before; None: as anything else
    max_attempts: int = 0  # what is due after so many isn't given again; 0: nothing is over
    over: list[tuple[int, Handout]] = field(default_factory=list)  # by queue: those
    parts: dict[Receiver, list[_Part]] = field(default_factory=dict)
    failure: BrokerError | None = None  # of a queue that can't be read now
    _due: dict[int, Iterator[Handout]] = field(default_factory=dict)
    _hands: dict[int, Hands] = field(default_factory=dict)  # of queues of which much was told late
    _before: dict[bytes, dict[int, list[int]]] = field(default_factory=dict)  # by attempt, queue
    _kept: dict[int, Handout] = field(default_factory=dict)  # of `_due`: taken out, and not used
    _size: int = 0
    _again: int = 0  # pieces that were given before, and are told again
    _gone_before: int = 0  # of the queue that was read last, where that is known
    _is_enough: Callable[[], bool] = never_enough

    async def _breathe(self) -> None:
        """Others have had their turn, if this has had its share of one."""
        if self._is_enough():
            await self.turns.pause()
            self._is_enough = self.turns.share()

    # --- what is settled ----------------------------------------------------------------------

    async def settle(self, settler: Settler) -> None:
        """What of it is so takes effect; the rest is told. Nothing was given yet."""
        self._is_enough = self.turns.share()
        for position, wish in enumerate(settler.settled):
            await self._breathe()
            stale = await self._settle(wish)
            if stale:
                settler.superseded.append(Superseded(position, stale))

    async def _settle(self, wish: Settlement) -> int:
        """Which of the messages aren't in that hand; finished twice is finished."""
        draft = self.planning.draft(wish.queue_id)
        if not isinstance(draft, Draft):
            return wish.mask
        hides = wish.what == SETTLING_EXTENDED or (
            wish.what == SETTLING_RETURNED and wish.hidden_ms > 0
        )
        if hides and self._is_anothers(draft, wish.handout):
            return wish.mask
        told = wish.command()
        if self._take(told) is None:
            return 0
        hands = self._hands.get(wish.queue_id)
        if hands is None:
            hands = self._hands[wish.queue_id] = await Hands.of(draft, self.turns)
        mine, others = hands.held(wish.handout, wish.base, wish.mask)
        left = wish.mask & ~mine
        if wish.what == SETTLING_FINISHED:
            known = draft.next - wish.base
            never_given = left >> max(0, known) << max(0, known) if known < SPAN else 0
            left &= others | never_given
        if mine:
            told.mask = mine
            if self._take(told) is not None:
                return wish.mask
        return left

    def _take(self, told: SettledMessages) -> Refusal | None:
        """The command settles these, or why it can't."""
        refusal = self.planning.settle(told)
        if refusal is None:
            self.command.settled.append(told)
            hands = self._hands.get(told.queue_id)
            if hands is not None and told.what != SETTLING_EXTENDED:
                to = 0 if told.what == SETTLING_FINISHED else PROVISIONAL
                hands.move(told.handout, told.base, told.mask, to)
        return refusal

    # --- what is given ------------------------------------------------------------------------

    async def give_the_same(self, receiver: Receiver, queues: Iterable[int]) -> None:
        """What the receiver's attempt was given before; else it is like any other one from then on.
        To be done for all who look back before anything is given: who had a lot gets no second."""
        taken = _Taken()
        self._is_enough = self.turns.share()
        is_all = await self._of_each(queues, self._give_it_again, receiver, taken)
        receiver.looks_back = bool(taken.parts) or not is_all
        receiver.lacks = not is_all
        if taken.parts:
            self.parts[receiver] = taken.parts

    async def give(self, receiver: Receiver, queues: Iterable[int]) -> None:
        """Chooses messages for the receiver, of the queues in that order, if there are any."""
        taken = _Taken()
        order = list(queues)
        self._is_enough = self.turns.share()
        for step in (self._give_due, self._give_new):
            await self._of_each(order, step, receiver, taken)
        if taken.parts:
            self.parts[receiver] = taken.parts

    async def _of_each(
        self, queues: Iterable[int], step: _Step, receiver: Receiver, taken: _Taken
    ) -> bool:
        """Whether the step was taken in all of the queues: one that can't be read now holds up no
        other one."""
        is_all = True
        for queue_id in queues:
            await self._breathe()
            try:
                await step(receiver, queue_id, taken)
            except BrokerError as error:
                if error.code is ErrorCode.NOT_LEADER:
                    raise
                self.failure, is_all = error, False
        return is_all

    async def look_back(self, receivers: Iterable[Receiver]) -> None:
        """Of those who ask again it is known what they were given before, by looking once for all
        of them. Who was given nothing is like any other one from then on: nobody else gives its
        attempt anything. To be asked before anything is given."""
        again = [each for each in receivers if each.looks_back]
        if not again:
            return
        found = map(self.planning.draft, range(len(self.topic.next_offsets)))
        drafts = {at: each for at, each in enumerate(found) if isinstance(each, Draft)}
        attempts = {each.wanted.attempt_id for each in again}
        self._before = await given_before(drafts, attempts, self.turns)
        if self.planning.is_fifo:  # who was given others had lost all that it had before
            self._before = {who: latest(given) for who, given in self._before.items()}
        for each in again:
            each.looks_back = each.wanted.attempt_id in self._before

    async def _give_it_again(self, receiver: Receiver, queue_id: int, taken: _Taken) -> None:
        """All that the attempt was given before and hasn't finished, hidden anew, and in order told
        so, wherever the rows lie by now. It was within the receiver's bounds once, and a part of it
        would pass for the whole: they don't count here."""
        wanted = receiver.wanted
        entries = self._before.get(wanted.attempt_id, {}).get(queue_id, ())
        if not entries:
            return
        draft = self._draft(queue_id)
        mine = [index for index in entries if not self._is_anothers(draft, index)]
        rows = [each for index in mine for each in draft.of_entry(index)]
        hands = [each for each in rows if each.attempt_id == wanted.attempt_id]
        for each in in_order(hands) if self.planning.is_fifo else hands:
            for first, count in runs(each):
                base, records = await self._whole(queue_id, first, first + count, taken.size)
                count += first - base
                if not count:
                    continue
                longer = SettledMessages(
                    queue_id=queue_id,
                    handout=each.index,
                    base=base,
                    mask=(1 << count) - 1,
                    what=SETTLING_EXTENDED,
                    hidden_ms=wanted.hidden_ms,
                )
                if self.planning.settle(longer) is None:
                    self.command.settled.append(longer)
                    self._again += 1
                    taken.add(_Part(queue_id, each.attempt, count, records, each.index))

    async def _give_due(self, receiver: Receiver, queue_id: int, taken: _Taken) -> None:
        draft = self._draft(queue_id)
        if self.planning.is_fifo and self._is_held(queue_id, draft):
            return
        while self._left(receiver, taken) > 0 and not self.is_full:
            handout = self._kept.pop(queue_id, None) or next(self._due_of(queue_id, draft), None)
            if handout is None:
                return
            await self._breathe()
            if 0 < self.max_attempts <= handout.attempt:
                is_noted = len(self.over) < MAX_OVER
                if is_noted:
                    self.over.append((queue_id, handout))
                if self.planning.is_fifo:  # those behind it wait for that
                    if not is_noted:
                        self._kept[queue_id] = handout  # whoever comes next meets it, too
                    return
                continue
            left = await self._give_again(receiver, queue_id, handout, taken)
            if left is not None:
                self._kept[queue_id] = left

    async def _give_again(
        self, receiver: Receiver, queue_id: int, handout: Handout, taken: _Taken
    ) -> Handout | None:
        """As much of the handout as the receiver takes; what is left of it."""
        for base, length in runs(handout):
            count = min(length, self._left(receiver, taken))
            if count <= 0 or self.is_full:
                return onward(handout, base)
            try:
                found = await self._found(queue_id, base, count, _room(receiver, taken))
            except BrokerError:
                if self.planning.is_fifo:  # nobody is given what is behind it
                    self._kept[queue_id] = onward(handout, base)
                raise
            if found is None:
                gone = min(length, max(1, self._gone_before - base))
                self._finish_what_is_gone(queue_id, handout, base, gone)
                if gone < length:
                    return onward(handout, base + gone)
                continue
            wish = self._wish(receiver, queue_id, handout.index, base, found.count)
            if self.planning.give(wish) is None:
                self.command.given.append(wish)
                taken.add(_Part(queue_id, handout.attempt + 1, found.count, [found.records]))
            if found.count < length:
                return onward(handout, base + found.count)
        return None

    def _finish_what_is_gone(self, queue_id: int, handout: Handout, base: int, length: int) -> None:
        """The log's front has gone on: nobody can be given these any more."""
        mask = (1 << length) - 1
        gone = SettledMessages(queue_id=queue_id, handout=handout.index, base=base, mask=mask)
        if self.planning.settle(gone) is None:
            self.command.settled.append(gone)

    async def _give_new(self, receiver: Receiver, queue_id: int, taken: _Taken) -> None:
        draft = self._draft(queue_id)
        if self.planning.is_fifo and draft.unfinished:
            return
        while draft.next < (end := self.end_of(queue_id)) and not self.is_full:
            left = min(self._left(receiver, taken), end - draft.next)
            count = min(left, self.planning.room(queue_id))
            if count <= 0:
                return
            found = await self._found(queue_id, draft.next, count, _room(receiver, taken))
            if found is not None and found.count:
                first = draft.next + found.void_count
                if not self._give_found(receiver, queue_id, first, found, taken):
                    return
                continue
            passed = self._gone_before if found is None else found.next_offset
            if passed <= draft.next:
                return
            if self.planning.give(wish := self._wish(receiver, queue_id, 0, passed, 0)) is not None:
                return
            self.command.given.append(wish)

    def _give_found(
        self, receiver: Receiver, queue_id: int, base: int, found: Found, taken: _Taken
    ) -> bool:
        """Whether all of the messages, which never were given and begin there, are the receiver's:
        in as many handouts as it takes."""
        given = 0
        while given < found.count:
            count = min(SPAN, found.count - given)
            wish = self._wish(receiver, queue_id, 0, base + given, count)
            if self.planning.give(wish) is not None:
                break
            self.command.given.append(wish)
            given += count
        records = found.records
        if given < found.count:
            records = records[: record_starts(records, 0, given + 1)[given]]
        if given:
            taken.add(_Part(queue_id, 1, given, [records]))
        return given == found.count

    # --- reading ------------------------------------------------------------------------------

    async def _found(
        self, queue_id: int, offset: int, count: int, size: int, read: Read | None = None
    ) -> Found | None:
        """Up to `count` messages from there on; None: they have gone from the log."""
        await self._breathe()
        try:
            found = await (read or self.read)(queue_id, offset, count, size)
        except BrokerError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or error.failure.valid is None:
                raise
            self._gone_before = error.failure.valid[0]
            return None
        self._size += len(found.records)
        return found

    async def _whole(
        self, queue_id: int, base: int, end: int, size: int
    ) -> tuple[int, list[bytes]]:
        """The messages from `base` to `end` that the log holds, however many reads that takes:
        which is the first, and their records. The answer has `size` bytes without them.

        Raises:
            BrokerError: not all of them can be read now.
        """
        at, records = base, list[bytes]()
        while at < end:
            if size >= MOST_AGAIN:
                text = "the attempt was given more than one answer tells: it was used several times"
                raise BrokerError(ErrorCode.BUSY, text)
            found = await self._found(queue_id, at, end - at, MOST_AGAIN - size, self.read_again)
            if found is None:  # what was read of it has gone as well
                base = at = min(end, max(at + 1, self._gone_before))
                records.clear()
                continue
            if found.void_count or not found.count:
                text = f"offset {at} of queue {queue_id} was given and isn't there just now"
                raise BrokerError(ErrorCode.NOT_READY, text)
            at, size = at + found.count, size + len(found.records)
            records.append(found.records)
        return base, records

    def _left(self, receiver: Receiver, taken: _Taken) -> int:
        """How many messages the receiver takes yet."""
        if taken.size >= receiver.wanted.max_bytes:
            return 0
        return receiver.wanted.max_messages - taken.count

    def _draft(self, queue_id: int) -> Draft:
        """The queue's, which had started when this began.

        Raises:
            BrokerError: BUSY, its topic has been given other queues meanwhile.
        """
        draft = self.planning.draft(queue_id)
        if not isinstance(draft, Draft):
            text = f"queue {queue_id} has gone or come again just now: ask again"
            raise BrokerError(ErrorCode.BUSY, text)
        return draft

    def _due_of(self, queue_id: int, draft: Draft) -> Iterator[Handout]:
        found = self._due.get(queue_id)
        if found is None:
            due = (each for each in draft.due(self.now_ms) if each.index < PROVISIONAL)
            found = self._due[queue_id] = iter(in_order(due) if self.planning.is_fifo else due)
        return found

    def _is_anothers(self, draft: Draft, handout: int) -> bool:
        """In order: whether that hand's time is over, and somebody else has something of the queue,
        or something lies before it, given back or not: what is left is worked on when that is done,
        by whoever has it next, and hidden by nobody else. Finishing what one has done is heard all
        the same, and so is giving back what is due already."""
        if not self.planning.is_fifo:
            return False
        mine = list(draft.of_entry(handout))
        if any(each.hidden_until_ms > self.now_ms for each in mine):
            return False  # nobody was given anything of the queue meanwhile
        own = {each.attempt_id for each in mine}
        first = min((each.base for each in mine), default=0)
        return any(
            each.base < first
            or (
                each.attempt_id != NO_ATTEMPT
                and (each.hidden_until_ms > self.now_ms or each.index == PROVISIONAL)
            )
            for each in draft
            if each.attempt_id not in own
        )

    def _is_held(self, queue_id: int, draft: Draft) -> bool:
        """Whether somebody has something of a FIFO queue, or its first message is to be a dead
        letter before anything behind it is given."""
        is_hidden = any(
            each.hidden_until_ms > self.now_ms or each.index == PROVISIONAL for each in draft
        )
        is_over = any(queue_id == other for other, _ in self.over)
        return is_hidden or is_over or queue_id in self.planning.given

    def _wish(
        self, receiver: Receiver, queue_id: int, former: int, base: int, count: int
    ) -> GivenMessages:
        return GivenMessages(
            queue_id=queue_id,
            former=former,
            base=base,
            mask=(1 << count) - 1,
            attempt_id=receiver.wanted.attempt_id,
            hidden_ms=receiver.wanted.hidden_ms,
        )

    # --- the end ------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether enough is chosen for one command."""
        pieces = self._again + len(self.command.given)
        return self._size >= CHOSEN_BYTES or pieces >= MAX_GIVEN

    @property
    def is_empty(self) -> bool:
        """Whether nothing would change."""
        return not (self.command.starts or self.command.settled or self.command.given)

    def answers(self, index: int) -> dict[Receiver, list[Handed]]:
        """What each receiver is told once entry `index`, which holds the command, is applied."""
        return {
            receiver: [
                Handed(
                    part.queue_id,
                    part.handout or index,
                    part.attempt,
                    part.count,
                    b"".join(part.records),
                )
                for part in parts
            ]
            for receiver, parts in self.parts.items()
        }


def at_provisional(now_ms: int, level: int) -> Moment:
    """When the command would be applied, as far as that is known."""
    return Moment(PROVISIONAL, now_ms, 0, level)


def _room(receiver: Receiver, taken: _Taken) -> int:
    """How many bytes the receiver takes yet; a message at least."""
    return max(1, receiver.wanted.max_bytes - taken.size)
