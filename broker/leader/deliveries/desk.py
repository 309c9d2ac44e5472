"""A desk: what receivers of one group ask for in one topic, brought into the log together.

    asked ── waiting ── chosen (messages read) ── proposed ── applied ── answered
               ▲  └─ withdrawn                       │
               └──────── refused: look again ────────┘

One command of a desk is under way at a time, and what is asked meanwhile shares the next
(ADR 57). So whatever is chosen is chosen of a state that only this desk changes, where a group
begins aside (`broker.leader.deliveries.beginning`). Nothing that was
chosen leaves before its entry is applied. A desk works while somebody waits at it, and ends with
this node's leadership: whoever waits then is told what became of what he asked for.

Bounds: `MAX_…`, and the bound on held pulls for all that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

import structlog

from broker.errors import BrokerError, ErrorCode
from broker.leader.deliveries.asking import Place, Receiver, Settlement, Settler, Superseded, Wanted
from broker.leader.deliveries.beginning import Beginning, Records, Starts
from broker.leader.deliveries.choosing import Choice, Read, at_provisional
from broker.leader.deliveries.over import Burials, Bury
from broker.leader.units import ProposedUnit, UnitResult
from broker.reading.held import HeldPulls
from broker.reading.held_back import HeldBack
from broker.reading.queues import Found
from broker.state.delivering import Planning, begun
from broker.state.handouts import Record
from broker.state.listening import QueueKey
from broker.state.machine import StateMachine
from broker.state.refusals import GroupDiffers, GroupStyled, Refusal
from broker.state.topics import TopicState
from dledger.ports import Turns
from dledger.sparing import Sparing
from dledger.wire.commands_pb2 import Command, DeliverCommand

MAX_WAITING: Final = 16_384  # settlements of one desk; more are told to come again
MAX_SETTLED: Final = 512  # of one command: it is applied in one turn
MAX_CHOSEN: Final = 256  # receivers that one command gives something
MAX_REFUSED: Final = 3  # commands, one after the other, before whoever waits is told
RECHECK_S: Final = 5.0
SHORTEST_S: Final = 0.002  # until what is due a moment from now
RESTS_AT: Final = 256  # messages that those who wait would take, and that weren't there
LONGEST_REST_S: Final = 0.01
USED_AGAIN_MS: Final = 3_600_000  # of lived time: whoever waits so long is in the log again
USED_SHARE: Final = 4  # of the time after which an unused group is forgotten, at most
log = structlog.get_logger(__name__)


def used_again_ms(unused_ms: int) -> int:
    """How long a group at whose desk somebody waits is unused, where one is forgotten that is
    unused for so long; both are lived time."""
    return min(USED_AGAIN_MS, unused_ms // USED_SHARE)


class UnitTaker(Protocol):
    """`broker.leader.units.Units`, as far as it is used here."""

    def propose(
        self, wanted: ProposedUnit, *, is_single: bool = False
    ) -> Awaitable[UnitResult]: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What desks use of the node.

    Attributes:
        serves: which of its leaderships this node serves in; raises BrokerError unless it serves.
        now_ms: the log's time; no append time to come is below it.
        refused: the error of a refusal.
        bury: dead letters are made of messages of a queue that were read, in that hand; a refusal,
            or BrokerError, where they can't be.
        held_back: what FIFO groups aren't given yet.
        buried_bytes: of messages that become dead letters together; one at least.
        turns: how long work shares the event loop.
        used_again_ms: of lived time, after which whoever waits is in the log again.
        check_room: raises BrokerError unless an answer may be kept until it is read.
        check_begun: raises BrokerError, LIMIT_REACHED, unless groups may have offsets in so many
            queues more, behind what is on its way.
        is_placing: whether a group is about to go on elsewhere in a topic, by what is on its way.
        hold: so many bytes of answers are kept, until what it gives is called.
    """

    state: StateMachine
    units: UnitTaker
    held: HeldPulls
    serves: Callable[[], int]
    now_ms: Callable[[], int]
    refused: Callable[[Refusal], BrokerError]
    bury: Bury
    held_back: HeldBack
    buried_bytes: int
    turns: Turns
    used_again_ms: int
    check_room: Callable[[], None]
    check_begun: Callable[[int], None]
    is_placing: Callable[[str, str], bool]
    hold: Callable[[int], Callable[[], None]] = lambda _: _nothing
    sparing: Sparing = field(default_factory=Sparing)


def _nothing() -> None:
    """Nothing was held."""


class Desk:
    """One group's in one topic."""

    _numbers = count(1)

    def __init__(
        self,
        place: Place,
        around: Surroundings,
        read: Read,
        *,
        is_fifo: bool,
        read_again: Read | None = None,
    ) -> None:
        """Args:
        read_again: as `read`, however little room for answers there is.
        """
        self.place = place
        self._around = around
        self._read = read
        self._read_again = read_again or read
        self.is_fifo = is_fifo
        self.max_attempts = 0  # of who asked last; 0: for ever
        self._used_at_s = 0.0  # nor is the log told that somebody waits
        self.starts: Starts | None = None  # of who asked last: a group starts once
        self._receivers: dict[Receiver, None] = {}
        self._doubled: list[Receiver] = []  # who came while their attempt was looked after
        self._is_asked_in_vain = False
        self._settlers: list[Settler] = []
        self._taken: list[Settler] = []  # whose settlements are on their way
        self._burials = Burials(place, around.bury, around.buried_bytes, read)
        self._beginning = Beginning(
            *(place.group, around.state, around.check_begun, around.is_placing, around.sparing)
        )
        self._turn = 0  # of the queues: which comes first
        self._held: list[Callable[[], None]] = []  # what was read for the command under way
        self._bell: QueueKey = (-next(self._numbers), 0)  # no topic has that incarnation
        self._is_rung = False
        self.task: asyncio.Task[None] | None = None

    # --- asking -------------------------------------------------------------------------------

    def receive(self, wanted: Wanted) -> Receiver:
        """Takes a wish; the same attempt, asked again, takes its own place."""
        loop = asyncio.get_running_loop()
        receiver = Receiver(
            *(wanted, loop.create_future(), loop.create_future()), looks_back=wanted.is_again
        )
        self._receivers[receiver] = None
        if not self._has_its_place(receiver):
            self._doubled.append(receiver)
        self._ring()
        return receiver

    def _has_its_place(self, receiver: Receiver) -> bool:
        """Whether its attempt waits nowhere else any more: nobody listens there. Where messages may
        be on their way it still does."""
        attempt_id, is_alone = receiver.wanted.attempt_id, True
        for other in [each for each in self._receivers if each.wanted.attempt_id == attempt_id]:
            if other is receiver:
                continue
            if self.withdraw(other):
                other.fail(BrokerError(ErrorCode.BUSY, "this attempt has asked again"))
            else:
                is_alone = False
        return is_alone

    def _take_places(self) -> None:
        """Who has asked again while its attempt was looked after waits alone, if nothing came of
        that. Else the attempt would have what comes next by who is gone, and never look for it."""
        waiting = [each for each in self._doubled if each in self._receivers]
        self._doubled = [each for each in waiting if not self._has_its_place(each)]

    def withdraw(self, receiver: Receiver) -> bool:
        """The receiver waits no more; false: messages are on their way to it."""
        if receiver.is_under_way:
            return False
        self._receivers.pop(receiver, None)
        self._ring()
        return True

    def settle(self, settled: tuple[Settlement, ...]) -> Settler:
        """Takes settlements.

        Raises:
            BrokerError: BUSY.
        """
        if len(self._settlers) >= MAX_WAITING:
            raise BrokerError(ErrorCode.BUSY, f"{len(self._settlers)} settlements wait")
        settler = Settler(settled, asyncio.get_running_loop().create_future())
        self._settlers.append(settler)
        self._ring()
        return settler

    def keep_in_use(self) -> None:
        """Somebody asks for messages that may not be read now. Whether the log is to be told of it
        is looked at once, and nobody waits for that."""
        self._is_asked_in_vain = True
        self._ring()

    def _ring(self) -> None:
        self._is_rung = True
        self._around.held.wake(self._bell)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits."""
        return not (self._receivers or self._settlers or self._is_asked_in_vain)

    @property
    def waiting(self) -> int:
        """Who waits for messages."""
        return len(self._receivers)

    # --- at work ------------------------------------------------------------------------------

    async def work(self) -> None:
        """Until nobody waits. Whoever does is told what ends it."""
        try:
            await self._work()
        finally:
            self._let_go()

    async def _work(self) -> None:
        refused, loop = 0, asyncio.get_running_loop()
        while not self.is_idle:
            self._let_go()
            self._is_rung = False
            began_s = loop.time()
            looked = self._around.held.moment
            settlers, self._settlers = self._some_settlers()
            self._taken = settlers
            is_asked, self._is_asked_in_vain = self._is_asked_in_vain, False
            choice = None
            try:
                leadership = self._around.serves()
                choice = await self._chosen(settlers)
                self._check_still(leadership)
                if choice.is_empty:
                    self._let_go()
                    for settler in settlers:
                        _finish(settler)
                    if choice.failure is not None and not choice.over:
                        self._fail_receivers(choice.failure)
                        self._is_asked_in_vain = self._is_asked_in_vain or is_asked
                        continue
                    if await self._burials.bury(choice):
                        continue
                    if not await self._use(choice, is_asked=is_asked):
                        await self._wait(looked)
                    continue
                result = await self._propose(choice)
                if result.refusal is None:
                    refused = 0
                    self._answer(choice, settlers, result.index)
                    await self._burials.bury(choice)
                    await self._rest(loop.time() - began_s)
                    continue
            except BrokerError as error:
                if self._beginning.leave_out(choice, error):
                    self._take_back(settlers)
                    self._settlers = settlers + self._settlers
                else:
                    self.fail_all(error)
                continue
            # A deletion, a forgetting or a join came in between: what is so now is looked at.
            refused += 1
            self._take_back(settlers)
            if refused >= MAX_REFUSED:
                assert isinstance(result.refusal, Refusal)
                self.fail_all(self._around.refused(result.refusal))
                refused = 0
            else:
                self._settlers = settlers + self._settlers

    def _check_still(self, leadership: int) -> None:
        """What was chosen was so: other leaders may have handed out anything since one's own, and
        what one of before found is told by nobody.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY; nothing was proposed.
        """
        if self._around.serves() != leadership:
            raise BrokerError(ErrorCode.NOT_READY, "this node has been elected anew meanwhile")

    async def _rest(self, took_s: float) -> None:
        """Where those who wait could take many more messages than there were, what comes shares the
        next command, for as long as the last one took: an entry for many costs the group what one
        for few does. Who takes a few at a time waits for nothing."""
        unmet = sum(each.wanted.max_messages for each in self._receivers)
        if unmet >= RESTS_AT and not self.is_fifo:
            await asyncio.sleep(min(took_s, LONGEST_REST_S))

    def _some_settlers(self) -> tuple[list[Settler], list[Settler]]:
        """Those whose settlements share the next command, and the others."""
        total = 0
        for at, settler in enumerate(self._settlers):
            total += len(settler.settled)
            if total > MAX_SETTLED and at:
                return self._settlers[:at], self._settlers[at:]
        return self._settlers, []

    async def _use(self, choice: Choice, *, is_asked: bool) -> bool:
        """Whether the log was told that the group is in use: somebody waits, or would if the topic
        might be read, and nothing else has said so for long. What is forgotten would begin anew
        under those who wait for it."""
        group, loop = self._around.state.groups.get(self.place.group), asyncio.get_running_loop()
        if group is None or not (self._receivers or is_asked) or loop.time() < self._used_at_s:
            return False
        if self._around.state.lived_time.lived_ms - group.used_ms < self._around.used_again_ms:
            return False
        self._used_at_s = loop.time() + RECHECK_S
        try:
            why: object = (await self._propose(choice)).refusal
        except BrokerError as error:
            if error.code in (ErrorCode.NOT_LEADER, ErrorCode.LEADERSHIP_LOST):
                raise
            why = error  # no room, say: whoever waits can go on waiting
        if why is not None:
            log.warning("group_not_used", group=self.place.group, reason=str(why))
        return why is None

    async def _chosen(self, settlers: Sequence[Settler]) -> Choice:
        """The next command; it may be empty."""
        choice = await self._begun()
        for settler in settlers:
            settler.superseded.clear()
            await choice.settle(settler)
        await self._give(choice)
        self._take_places()
        return choice

    async def _give(self, choice: Choice) -> None:
        """Whoever waits is given what there is, in the order of coming. Where there is nothing for
        one there is nothing for those behind, but what they had before. Of one who asks for that
        in a queue that can't be read now it says nothing: no other one was looked at for him."""
        is_dry = False
        receivers = list(self._receivers)
        await choice.look_back(receivers)
        # What somebody had is kept for him, though its time is over, if nobody has had it since.
        for receiver in [each for each in receivers if each.looks_back]:
            if not (receiver.done.done() or self._has_enough(choice)):
                await self._choose(choice, choice.give_the_same, receiver)
        for receiver in receivers:
            if receiver.done.done():
                self._receivers.pop(receiver, None)  # whoever asked is gone
                continue
            if self._has_enough(choice):
                return  # the others' turn is the next command's
            if not (is_dry or receiver.looks_back):
                await self._choose(choice, choice.give, receiver)
                is_dry = not receiver.is_under_way
            if not (receiver.is_under_way or receiver.looked.done()):
                receiver.looked.set_result(None)

    def _has_enough(self, choice: Choice) -> bool:
        return len(choice.parts) >= MAX_CHOSEN or choice.is_full

    async def _choose(
        self,
        choice: Choice,
        give: Callable[[Receiver, Iterable[int]], Awaitable[None]],
        receiver: Receiver,
    ) -> None:
        """Of the queues in turn, so that none is always the last one."""
        queues = len(choice.planning.records)  # those in which the group has a start
        first = self._turn % queues
        self._turn += 1
        receiver.is_under_way = True
        receiver.chosen_at_s = asyncio.get_running_loop().time()
        await give(receiver, [*range(first, queues), *range(first)])
        receiver.is_under_way = receiver in choice.parts

    async def _begun(self) -> Choice:
        """A command in which nothing is settled or given yet; it is of the state now.

        Raises:
            BrokerError: as `_place_now`, and where it starts can't be told now.
        """
        state, place = self._around.state, self.place
        topic, records, starts = await self._beginning.found(self._place_now, self.starts)
        command = DeliverCommand(
            group=place.group, topic=topic.name, incarnation=topic.incarnation, fifo=self.is_fifo
        )
        command.first_start = len(records) if starts else 0
        command.starts.extend(starts)
        started = begun(state, topic, command, len(records))
        if not isinstance(started, dict):
            raise self._around.refused(started)
        records.update(started)
        now_ms = self._around.now_ms()
        at = at_provisional(now_ms, state.level.current)
        planning = Planning(state.deliveries, topic, self.is_fifo, at, records)
        attempts = self.max_attempts if self._burials.are_possible else 0

        def end_of(queue_id: int) -> int:
            if not self.is_fifo:
                return topic.next_offsets[queue_id]
            return self._around.held_back.end_of(place.group, topic, queue_id)

        turns = self._around.turns
        reads = self._read_to_give, end_of, turns, self._read_to_tell_again
        return Choice(planning, topic, command, now_ms, *reads, attempts)

    def _place_now(self) -> tuple[TopicState, Records]:
        """The topic, and what is known of its queues.

        Raises:
            BrokerError: the topic is gone, or the group isn't of this style.
        """
        state, place = self._around.state, self.place
        topic = state.topics.get(place.topic)
        if topic is None or topic.incarnation != place.incarnation:
            raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, f"topic {place.topic!r} is gone")
        if state.groups.joined(place.group) is not None:
            raise self._around.refused(GroupStyled(place.group, is_delivered=False))
        is_fifo = state.deliveries.is_fifo(place.group, topic.incarnation)
        if is_fifo not in (None, self.is_fifo):
            raise self._around.refused(GroupDiffers(place.group, ("is_fifo",), 0))
        return topic, dict(state.deliveries.in_topic(place.group, topic.incarnation))

    async def _read_to_give(self, queue_id: int, offset: int, count: int, size: int) -> Found:
        """What is chosen can be answered: once it is in the log that it was handed out it is too
        late to say that there is no room for the answer."""
        self._around.check_room()
        return self._kept(await self._read(queue_id, offset, count, size))

    async def _read_to_tell_again(self, queue_id: int, offset: int, count: int, size: int) -> Found:
        """What was an answer once isn't refused for what the same look has read of it: a part of it
        would pass for the whole. Whether there is any room is looked at before that."""
        if not self._held:
            self._around.check_room()
        return self._kept(await self._read_again(queue_id, offset, count, size))

    def _kept(self, found: Found) -> Found:
        self._held.append(self._around.hold(len(found.records)))
        return found

    def _let_go(self) -> None:
        """What was read is answered, and counted by who answers, or is nobody's."""
        held, self._held = self._held, []
        for each in held:
            each()

    async def _propose(self, choice: Choice) -> UnitResult:
        commands = (Command(deliver=choice.command),)
        unit = ProposedUnit(commands=commands, condition=lambda: self._beginning.refusal_of(choice))
        return await self._around.units.propose(unit, is_single=True)

    def _answer(self, choice: Choice, settlers: Sequence[Settler], index: int) -> None:
        for settler in settlers:
            _finish(settler)
        for receiver, handed in choice.answers(index).items():
            self._receivers.pop(receiver, None)
            if not receiver.done.done():
                receiver.done.set_result(handed)
        self._let_go()

    def _take_back(self, settlers: Sequence[Settler]) -> None:
        for receiver in self._receivers:
            receiver.is_under_way = False
        self._take_places()
        for settler in settlers:
            settler.superseded.clear()

    def fail_all(self, error: BrokerError) -> None:
        """Whoever waits is told; who only just came, too: it is about all of them."""
        for settler in (*self._taken, *self._settlers):
            settler.fail(error)
        self._taken, self._settlers = [], []
        self._fail_receivers(error)

    def _fail_receivers(self, error: BrokerError) -> None:
        """Whoever waits for messages is told, and nobody who has settled some: that is his own."""
        for receiver in self._receivers:
            receiver.fail(error)
        self._receivers.clear()
        self._doubled.clear()

    async def _wait(self, looked: int) -> None:
        """Until somebody asks, messages come that weren't there at that moment, something is due,
        or it is time to look again."""
        state, place = self._around.state, self.place
        if self._is_rung or self.is_idle:
            return
        topic = state.topics.get(place.topic)
        if topic is None:
            return
        records = state.deliveries.in_topic(place.group, place.incarnation).values()
        left_s = RECHECK_S
        for due_ms in filter(None, map(self._due_ms, records)):
            until_s = (due_ms - self._around.now_ms()) / 1000
            left_s = min(left_s, max(SHORTEST_S, until_s))
        queues = [(place.incarnation, number) for number in range(len(topic.next_offsets))]
        await self._around.held.wait((self._bell, *queues), left_s, looked)

    def _due_ms(self, record: Record) -> int | None:
        """When something of the queue may be given again; of a FIFO one, when all of it is due."""
        if self.is_fifo:
            return max((each.hidden_until_ms for each in record), default=None)
        return record.due_ms


def _finish(settler: Settler) -> None:
    if not settler.done.done():
        settler.done.set_result(list[Superseded](settler.superseded))
