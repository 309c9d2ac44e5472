"""Messages handed out one by one: receiving them, and saying what became of them (ADR 57)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from broker.errors import BrokerError, ErrorCode
from broker.leader.deliveries.asking import (
    Handed,
    Place,
    Receiver,
    Settlement,
    Settler,
    Superseded,
    Wanted,
)
from broker.leader.deliveries.burying import Burying
from broker.leader.deliveries.desk import (
    RECHECK_S,
    Desk,
    Surroundings,
    UnitTaker,
    used_again_ms,
)
from broker.leader.deliveries.over import buried_bytes
from broker.leader.retries.own_topics import OwnTopics
from broker.reading.held import HeldPulls
from broker.reading.held_back import HeldBack
from broker.reading.queues import DEFAULT_BYTES, DEFAULT_MESSAGES, MAX_BYTES, Found, QueueReader
from broker.services.gate import Gate
from broker.services.messages import Call, Piece, PullRequest, Pulls
from broker.services.refused import partly, refused, unit_refused
from broker.services.soundness import Soundness
from broker.services.times import Times
from broker.state.delivering import KINDS, MAX_HIDDEN_MS
from broker.state.groups import Start
from broker.state.handouts import ATTEMPT_ID_SIZE, NO_ATTEMPT, SPAN
from broker.state.machine import StateMachine
from broker.state.topics import TopicRef, TopicState
from dledger.level import DELIVERY_LEVEL, TOPIC_RULES_LEVEL
from dledger.outcome import Outcome
from dledger.ports import Turns
from dledger.records.reserved import DEFAULT_ATTEMPTS, MOST_ATTEMPTS
from dledger.sparing import Sparing
from store.errors import CorruptionFound, StorageFull

MAX_RECEIVED: Final = 1_024  # messages of one receive
MAX_SETTLEMENTS: Final = 1_024  # of one call
GROUP_PATTERN: Final = re.compile(r"[A-Za-z0-9_%-]{1,119}")
MAX_OFFSET: Final = (1 << 63) - 1 - SPAN

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Receive:
    """Messages of a topic for a group. 0 messages or bytes: as many as is usual; `hold_ms` None: as
    long as is usual. `start`: of a group that is new in the topic."""

    group: str
    topic: TopicRef
    is_fifo: bool
    attempt_id: bytes
    is_again: bool
    max_messages: int
    max_bytes: int
    hold_ms: int | None
    hidden_ms: int
    start: int
    start_time_ms: int
    settled: tuple[Settlement, ...] = ()
    max_attempts: int = 0  # then a message is a dead letter; 0: as is usual


@dataclass(frozen=True, slots=True)
class Received:
    """What was handed out, and what of that which was to be settled wasn't. `held_ms`: from when
    the receive was heard until the messages were chosen; None: there are none."""

    handed: tuple[Handed, ...]
    superseded: tuple[Superseded, ...]
    incarnation: int
    held_ms: int | None = None


class Deliveries:
    """Hands out messages while this node leads."""

    def __init__(
        self,
        gate: Gate,
        units: UnitTaker,
        pulls: Pulls,
        reader: QueueReader,
        held: HeldPulls,
        state: StateMachine,
        now_ms: Callable[[], int],
        max_waiting: int,
        topics: OwnTopics,
        segment_bytes: int,
        unused_ms: int,
        turns: Turns,
        soundness: Soundness,
        check_begun: Callable[[int], None],
        is_placing: Callable[[str, str], bool],
    ) -> None:
        """Args:
        now_ms: the log's time.
        max_waiting: receivers that wait at once, over all groups.
        segment_bytes: of the log: no entry is longer.
        unused_ms: of lived time, after which an unused group is forgotten.
        turns: how long work shares the event loop.
        soundness: is told where the log has rotted.
        check_begun, is_placing: see `Surroundings`.
        """
        self._gate = gate
        self._soundness = soundness
        self._turns = turns
        self._times = Times(reader, soundness, turns)
        self._pulls = pulls
        self._reader = reader
        self._state = state
        self._max_waiting = max_waiting
        self._around = Surroundings(
            *(state, units, held, gate.serves, now_ms, refused),
            Burying(state, units, topics, unit_refused).bury,
            HeldBack(state, reader),
            buried_bytes(segment_bytes),
            turns,
            used_again_ms(unused_ms),
            pulls.budget.check_room,
            check_begun,
            is_placing,
            pulls.budget.hold,
        )
        self._desks: dict[Place, Desk] = {}
        self._use_due_s: dict[Place, float] = {}  # of those that were refused; else at once
        self._sparing = Sparing()

    # --- asked --------------------------------------------------------------------------------

    async def receive(self, wish: Receive, call: Call) -> Received:
        """The messages there are, or that come while it waits; none at the end of that, or where
        none can be handed out and something was settled: a refusal would deny that as well, and
        whoever asks next hears of it.

        Raises:
            BrokerError: INVALID_ARGUMENT, TOPIC_NOT_FOUND, TOPIC_NOT_READABLE, GROUP_STYLED,
                GROUP_DIFFERS, BUSY; whatever a command meets on its way into the log.
        """
        heard_s = asyncio.get_running_loop().time()
        _check(wish)
        topic = await self._topic(wish.group, wish.topic)
        if sum(desk.waiting for desk in self._desks.values()) >= self._max_waiting:
            raise BrokerError(ErrorCode.BUSY, f"{self._max_waiting} receivers wait, the limit")
        return await self._gate.denying_surely(self._receive(wish, topic, call, heard_s))

    async def _receive(
        self, wish: Receive, topic: TopicState, call: Call, heard_s: float
    ) -> Received:
        try:
            await self._check_readable(topic)
        except BrokerError as error:
            if error.code is ErrorCode.TOPIC_NOT_READABLE:
                self._keep_in_use(wish, topic)
            if not wish.settled:
                raise
            return await self._only_settled(wish, topic, error)
        leadership = self._gate.leadership
        desk = self._desk_for(wish, topic)
        settler = desk.settle(wish.settled) if wish.settled else None
        wanted = Wanted(
            wish.attempt_id,
            min(wish.max_messages or DEFAULT_MESSAGES, MAX_RECEIVED),
            min(wish.max_bytes or DEFAULT_BYTES, MAX_BYTES),
            wish.hidden_ms,
            wish.is_again,
        )
        receiver = desk.receive(wanted)
        self._set_to_work(desk)
        try:
            handed = await self._handed(desk, receiver, self._pulls.hold_s(wish.hold_ms))
        except BrokerError as error:
            if error.traits.outcome is Outcome.MAY_HAVE_HAPPENED:
                raise
            if settler is None or (wish.is_again and not error.traits.is_retriable):
                raise  # whoever asks again knows that a call before may have happened
            handed = ()
        # At once: whatever else is to be known, the desk counts it no more.
        self._pulls.account_handed_out(sum(len(each.records) for each in handed), call)
        if receiver.looks_back and (receiver.lacks or not handed):
            text = f"not all that attempt {wish.attempt_id.hex()} was given before can be read now"
            raise BrokerError(ErrorCode.LEADERSHIP_LOST, text)
        superseded = () if settler is None else await self._settled(settler, handed, leadership)
        if wish.is_again and not handed:
            await self._confirm_nothing(leadership)
        held_ms = int((receiver.chosen_at_s - heard_s) * 1000) if handed else None
        return Received(handed, superseded, topic.incarnation, held_ms)

    async def _only_settled(self, wish: Receive, topic: TopicState, error: BrokerError) -> Received:
        """The topic's messages can't be handed out. What was to be settled is settled all the same:
        that was said of messages handed out before. Who asks again may have been given some."""
        leadership = self._gate.leadership
        desk = self._desk_for(wish, topic)
        settler = desk.settle(wish.settled)
        self._set_to_work(desk)
        superseded = await self._settled(settler, (), leadership)
        if wish.is_again and error.traits.is_retriable:
            raise partly(error) from error
        if wish.is_again:
            raise error
        return Received((), superseded, topic.incarnation)

    async def _confirm_nothing(self, leadership: int) -> None:
        """Returns once it is sure that no other leader has given the attempt anything, as far as
        this one saw in that leadership.

        Raises:
            BrokerError: LEADERSHIP_LOST, the same attempt asks again.
        """
        try:
            await self._gate.confirm_since(leadership)
        except BrokerError as error:
            raise partly(error, "a call before may have brought messages") from error

    async def _handed(self, desk: Desk, receiver: Receiver, hold_s: float) -> tuple[Handed, ...]:
        """What comes while it is held. Whoever doesn't wait is looked after once, all the same."""
        try:
            await asyncio.wait((receiver.done,), timeout=hold_s)
            while not receiver.done.done():
                both = (receiver.done, receiver.looked)
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not receiver.done.done() and desk.withdraw(receiver):
                    return ()
                if receiver.looked.done():  # it is looked after once more just now
                    receiver.looked = asyncio.get_running_loop().create_future()
            return tuple(await receiver.done)
        finally:
            if not receiver.done.done():
                desk.withdraw(receiver)
                receiver.done.cancel()

    def _attempts(self, wish: Receive) -> int:
        """How often a message is handed out; 0: for ever. In order that holds up its queue, unless
        it is asked for."""
        if self._state.level.current < TOPIC_RULES_LEVEL:
            return 0
        return wish.max_attempts or (0 if wish.is_fifo else DEFAULT_ATTEMPTS)

    def _keep_in_use(self, wish: Receive, topic: TopicState) -> None:
        """Whoever is refused is still there: a group that has begun in the topic is in the log for
        it as seldom as one that waits, and goes on from where it is once the topic may be read."""
        group, state = self._state.groups.get(wish.group), self._state
        is_known = state.deliveries.is_fifo(wish.group, topic.incarnation) is wish.is_fifo
        if group is None or not is_known:
            return
        if state.lived_time.lived_ms - group.used_ms < self._around.used_again_ms:
            return
        now_s = asyncio.get_running_loop().time()
        place = Place(wish.group, topic.name, topic.incarnation)
        if now_s < self._use_due_s.get(place, 0.0):
            return  # it can't be told just now, and each that is refused would try
        self._use_due_s = {each: at for each, at in self._use_due_s.items() if at > now_s}
        self._use_due_s[place] = now_s + RECHECK_S
        desk = self._desk(wish.group, topic, is_fifo=wish.is_fifo)
        desk.keep_in_use()
        self._set_to_work(desk)

    async def _check_readable(self, topic: TopicState) -> None:
        """Returns if the topic's messages may be handed out. A desk is nobody's before that: one
        at which nobody waits would stay, as what whoever is refused has called it.

        Raises:
            BrokerError: TOPIC_NOT_READABLE, TOPIC_REPLACED, TOPIC_NOT_FOUND.
        """
        ref = TopicRef(topic.name, topic.incarnation)
        await self._gate.surely(lambda: self._reader.check_readable(ref))

    def _desk_for(self, wish: Receive, topic: TopicState) -> Desk:
        """The desk, which goes by what this receiver says from now on. It is set to work in the
        same turn."""
        desk = self._desk(wish.group, topic, is_fifo=wish.is_fifo)
        desk.starts = lambda state, first: self._starts(wish, state, first)
        desk.max_attempts = self._attempts(wish)
        return desk

    async def settle(
        self, group: str, topic: TopicRef, settled: tuple[Settlement, ...]
    ) -> tuple[Superseded, ...]:
        """What of it isn't settled, as it is in another hand by now; all the rest is.

        Raises:
            BrokerError: as `receive`.
        """
        _check_settled(group, settled)
        if not settled:
            raise _invalid("nothing is to be settled")
        state = await self._topic(group, topic)
        return await self._gate.denying_surely(self._settle(group, state, settled))

    async def _settle(
        self, group: str, state: TopicState, settled: tuple[Settlement, ...]
    ) -> tuple[Superseded, ...]:
        self._check_known(group, state)
        is_fifo = bool(self._state.deliveries.is_fifo(group, state.incarnation))
        desk = self._desk(group, state, is_fifo=is_fifo)
        leadership = self._gate.leadership
        settler = desk.settle(settled)
        self._set_to_work(desk)
        return await self._settled(settler, (), leadership)

    async def _settled(
        self, settler: Settler, handed: tuple[Handed, ...], leadership: int
    ) -> tuple[Superseded, ...]:
        """What isn't settled. Where that can't be told, and messages were handed out or some are
        settled already, it isn't said that nothing happened: the same attempt asks again, and is
        given the same."""
        try:
            return await self._surely(settler, leadership)
        except BrokerError as error:
            is_denied = error.traits.outcome is Outcome.DID_NOT_HAPPEN
            if not is_denied or not (handed or settler.took_effect):
                raise
            raise partly(error) from error

    async def _surely(self, settler: Settler, leadership: int) -> tuple[Superseded, ...]:
        """What isn't settled; that may be said by who has led ever since, as others may know more.
        They may have handed out what is denied."""
        superseded = tuple(await settler.done)
        if superseded:
            await self._gate.confirm_since(leadership)
        return superseded

    async def _topic(self, group: str, topic: TopicRef) -> TopicState:
        if self._state.level.current < DELIVERY_LEVEL:
            text = f"single messages are handed out from level {DELIVERY_LEVEL} on"
            raise BrokerError(ErrorCode.NOT_READY, text)
        self._gate.check_writable()
        return await self._gate.surely(lambda: self._reader.topic(topic))

    def _check_known(self, group: str, topic: TopicState) -> None:
        """Whoever has received anything is known."""
        if self._state.deliveries.is_fifo(group, topic.incarnation) is None:
            text = f"nothing of topic {topic.name!r} was handed out to group {group!r}"
            raise BrokerError(ErrorCode.RECEIPT_SUPERSEDED, text)

    # --- desks --------------------------------------------------------------------------------

    def is_waited_for(self, group: str) -> bool:
        """Whether somebody waits for messages of the group now."""
        return any(desk.waiting for place, desk in self._desks.items() if place.group == group)

    def _desk(self, group: str, topic: TopicState, *, is_fifo: bool) -> Desk:
        place = Place(group, topic.name, topic.incarnation)
        desk = self._desks.get(place)
        if desk is None:
            ref = TopicRef(topic.name, topic.incarnation)

            async def read(queue_id: int, offset: int, count: int, size: int) -> Found:
                return await self._pulls.read(PullRequest(ref, queue_id, offset, count, size))

            async def again(queue_id: int, offset: int, count: int, size: int) -> Found:
                request = PullRequest(ref, queue_id, offset, count, size)
                return await self._pulls.read_handed_out(request)

            desk = Desk(place, self._around, read, is_fifo=is_fifo, read_again=again)
            self._desks[place] = desk
        if desk.is_fifo != is_fifo:
            text = f"group {group!r} receives from {topic.name!r} in another way: FIFO or not"
            raise BrokerError(ErrorCode.GROUP_DIFFERS, text)
        return desk

    def _set_to_work(self, desk: Desk) -> None:
        if desk.task is None:
            task = asyncio.get_running_loop().create_task(self._work(desk), name="deliveries")
            desk.task = task

    async def _work(self, desk: Desk) -> None:
        """The desk's work, to its end; what goes wrong is told to those who wait, and logged."""
        try:
            await desk.work()
        except (CorruptionFound, StorageFull) as error:
            desk.fail_all(self._soundness.told(error))
        except Exception as error:
            if (unreported := self._sparing.due(type(error).__name__)) is not None:
                log.exception("handing_out_failed", group=desk.place.group, unreported=unreported)
            text = "the node failed to hand out messages; its log says why"
            desk.fail_all(BrokerError(ErrorCode.INTERNAL, text))
        finally:
            desk.task = None
            if self._desks.get(desk.place) is desk:
                del self._desks[desk.place]

    async def _starts(self, wish: Receive, topic: TopicState, first: int) -> Sequence[int]:
        """Where the group starts in the queues from `first` on; those born later begin at once."""
        ref = TopicRef(topic.name, topic.incarnation)
        found: list[int] = []
        piece = Piece(self._turns)
        for queue_id in range(first, len(topic.next_offsets)):
            low, high = self._reader.bounds(ref, queue_id)
            match Start.FIRST if first else Start(wish.start):
                case Start.FIRST:
                    found.append(low)
                case Start.LAST:
                    found.append(high)
                case Start.TIME:
                    time_ms = wish.start_time_ms
                    found.append(await self._times.offset(ref, queue_id, time_ms, piece))
        return found


def _check(wish: Receive) -> None:
    _check_settled(wish.group, wish.settled)
    if len(wish.attempt_id) != ATTEMPT_ID_SIZE or wish.attempt_id == NO_ATTEMPT:
        raise _invalid(f"an attempt id has {ATTEMPT_ID_SIZE} bytes, not all of them zeros")
    if not 0 < wish.hidden_ms <= MAX_HIDDEN_MS:
        raise _invalid(f"messages are hidden for 1 to {MAX_HIDDEN_MS} ms, not {wish.hidden_ms}")
    if wish.max_attempts > MOST_ATTEMPTS:
        raise _invalid(f"a message is handed out {MOST_ATTEMPTS} times at most")
    if wish.start not in set(Start) or wish.start_time_ms < 0:
        raise _invalid("a group starts at the first message, at the last, or at a time")


def _check_settled(group: str, settled: Sequence[Settlement]) -> None:
    if not GROUP_PATTERN.fullmatch(group):
        text = "1 to 119 characters of A-Z a-z 0-9 _ % - allowed"
        raise _invalid(f"consumer group name {group[:300]!r}: {text}")
    if len(settled) > MAX_SETTLEMENTS:
        raise _invalid(f"{len(settled)} settlements, {MAX_SETTLEMENTS} at most")
    for each in settled:
        if not each.mask or each.base > MAX_OFFSET or each.what not in KINDS:
            raise _invalid("a settlement names messages of a queue, and what becomes of them")
        if each.handout > MAX_OFFSET:
            raise _invalid(f"no entry has the index {each.handout}")
        if each.hidden_ms > MAX_HIDDEN_MS:
            raise _invalid(f"messages are hidden for {MAX_HIDDEN_MS} ms at most")


def _invalid(text: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_ARGUMENT, text)
