"""Receivers of single messages: they receive, work, acknowledge, and do what none should have to.

They are slower than their time, give back, ask for more time, forget what they have, lose answers
and ask again with the same attempt, or never; acknowledge twice, and late; name hands that they
never had. What is known to every one of them is noted (`Shop`), in the one true time: in the end
every message from the group's start on was finished by somebody who had it; whoever was told that
it is finished sees it never handed out again; what somebody was told to have, nobody else is told
as the same hand; an attempt that asks again is told of all that it has; in order each queue's
messages are told so; and where each attempt at an acknowledgement was told as one that did not
happen, none did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from broker.state.handouts import SPAN
from chaos.errors import CallFailed
from chaos.sim.clients import Client, Shared
from chaos.sim.defect import Defect
from chaos.sim.delivery_model import DeliveryModel
from dledger.records.record import decode_records
from dledger.wire import broker_pb2 as bpb
from dledger.wire import commands_pb2 as cpb
from dledger.wire import deliveries_pb2 as pb
from dledger.wire import errors_pb2 as epb

HIDDEN_MS = (150, 500, 2_000)
PEACE_HIDDEN_MS = 500
STEP_S = 0.02
ATTEMPTS = 6  # of one receive, and of one acknowledgement
DOUBTED_SHARE = 0.3  # of the answers to who doubts
DOUBT_S = (0.0, 0.4)
ASKED_ELSEWHERE_SHARE = 0.3  # of those
LATE = (cpb.SETTLING_FINISHED, cpb.SETTLING_RETURNED, cpb.SETTLING_EXTENDED)  # who doubts, of any

HANDED_OUT = 3  # times, then a message is a dead letter

Message = tuple[str, int, int, int]  # topic, incarnation, queue id, offset
Hand = tuple[Message, int]  # the entry that gave it


class ToldAgain(NamedTuple):
    """What an attempt that asked again was told, while the log went on from one entry to another
    for all that anybody knew: which hands, as (queue id, offset, entry), as they were told."""

    attempt_id: bytes
    incarnation: int
    since: int
    until: int
    told: tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class Shop:
    """One group: what all of its receivers have done."""

    group: str
    is_fifo: bool = False
    done: dict[Message, None] = field(default_factory=dict)  # somebody wanted it finished
    finished_us: dict[Message, int] = field(default_factory=dict)  # was told that it is
    hands: dict[Hand, str] = field(default_factory=dict)  # whose
    denied: set[Hand] = field(default_factory=set)  # whose acknowledgements did not happen
    refused: set[bytes] = field(default_factory=set)  # attempts that didn't happen
    again: list[ToldAgain] = field(default_factory=list)
    is_drained: Callable[[], bool] = lambda: True


@dataclass(slots=True)
class InHand:
    """A message that a receiver has."""

    message: Message
    handout: int
    attempt: int


class Popper(Client):
    """One receiver of a shop."""

    def __init__(self, name: str, shared: Shared, chance: Random, shop: Shop) -> None:
        super().__init__(name, shared, chance)
        self._shop = shop
        self.doubts: Random | None = None  # decides whether to ask again for what was answered
        self._in_hand: list[InHand] = []
        self._riding: list[InHand] = []  # acknowledged by the next receive

    async def run(self) -> None:
        """Until the run stops and everything has been worked on."""
        while not (self.shared.stopping and self._shop.is_drained()):
            await asyncio.sleep(STEP_S)
            for topic in list(self.shared.topics):
                await self._receive(topic)
                await self._work(topic)
            if not self.shared.stopping and self.chance.random() < 0.03:
                self._in_hand, self._riding = [], []  # killed, and started again
            if self.chance.random() < 0.02:
                await self._commit_simply()

    # --- receiving ---------------------------------------------------------------------------

    async def _receive(self, topic: str) -> None:
        """One receive, whose answer may be lost and is asked for again, or isn't."""
        riding, self._riding = self._riding, []
        mine = [each for each in riding if each.message[0] == topic]
        hidden_ms = PEACE_HIDDEN_MS if self.shared.stopping else self.chance.choice(HIDDEN_MS)
        request = pb.ReceiveRequest(
            group=self._shop.group,
            topic=topic,
            fifo=self._shop.is_fifo,
            attempt_id=self.chance.randbytes(7) + b"\1",
            max_messages=self.chance.choice((1, 5, 40)),
            max_bytes=self.chance.choice((0, 0, 1_000)),
            hold_ms=self.chance.choice((0, 60)),
            hidden_ms=hidden_ms,
            settled=list(map(_finishing, _together(mine))),
            max_attempts=HANDED_OUT,
        )
        for each in mine:
            self._shop.done[each.message] = None
        for _ in range(ATTEMPTS):
            sent_us, since = self.shared.group.now_us, self.shared.group.committed
            try:
                answer = await self.call("receive", request)
            except CallFailed as failure:
                self._check_refused(failure)
                if not (failure.may_have_happened or request.again):
                    self._shop.refused.add(request.attempt_id)
                    request.attempt_id = _next_attempt(request.attempt_id)
                request.again |= failure.may_have_happened
                if self.chance.random() < 0.2 and not self.shared.stopping:
                    break  # what it was given comes again, when its time is over
                await self.back_off()
                continue
            self._note_finished(mine, answer.unsettled)
            for handed in answer.handed:
                self._take(topic, answer.topic_incarnation, handed, sent_us)
            told = tuple(
                (each.queue_id, record.queue_offset, each.handout)
                for each in answer.handed
                for record in decode_records(each.records)
            )
            if self._shop.is_fifo:
                check_order(self.name, told)
            if request.again:
                until, topic_id = self.shared.group.committed, answer.topic_incarnation
                again = ToldAgain(request.attempt_id, topic_id, since, until, told)
                self._shop.again.append(again)
            if request.again or not await self._doubts():
                return
            request.again = True
        if not request.again:
            self._note_denied(mine)

    async def _doubts(self) -> bool:
        """Whether an answer is taken for lost, and asked for again after a while; of anybody."""
        if self.doubts is None or self.shared.stopping or self.doubts.random() >= DOUBTED_SHARE:
            return False
        await asyncio.sleep(self.doubts.uniform(*DOUBT_S))
        if self.doubts.random() < ASKED_ELSEWHERE_SHARE:
            self.target = self.doubts.choice(self.shared.group.members)
        return True

    def _check_refused(self, failure: CallFailed) -> None:
        wrong = (epb.INVALID_ARGUMENT, epb.GROUP_STYLED, epb.GROUP_DIFFERS, epb.INTERNAL)
        if failure.error is not None and failure.code in wrong:
            is_ours = "is hidden" not in failure.error.message  # nobody asks for what is hidden
            if is_ours and failure.code == epb.INTERNAL:
                return  # a disk has failed there, which others judge
            raise Defect("delivery", f"{self.name} is refused: {failure.error.message}")

    def _take(self, topic: str, incarnation: int, handed: pb.HandedOut, sent_us: int) -> None:
        records = decode_records(handed.records)
        if len(records) != handed.count or not records:
            raise Defect("delivery", f"{handed.count} messages are told, {len(records)} came")
        for record in records:
            if (record.topic, record.queue_id) != (topic, handed.queue_id):
                raise Defect("delivery", f"{self.name} got a message of another queue")
            message = (topic, incarnation, record.queue_id, record.queue_offset)
            told_us = self._shop.finished_us.get(message)
            if told_us is not None and told_us < sent_us:
                raise Defect("handed out after its acknowledgement", f"{self.name} got {message}")
            owner = self._shop.hands.setdefault((message, handed.handout), self.name)
            if owner != self.name:
                raise Defect("one hand, two receivers", f"{message} is {owner}'s and {self.name}'s")
            self._in_hand = [each for each in self._in_hand if each.message != message]
            self._in_hand.append(InHand(message, handed.handout, handed.attempt))

    # --- work --------------------------------------------------------------------------------

    async def _work(self, topic: str) -> None:
        mine = [each for each in self._in_hand if each.message[0] == topic]
        self._in_hand = [each for each in self._in_hand if each.message[0] != topic]
        if not mine:
            return
        what = 0.0 if self.shared.stopping else self.chance.random()
        if what < 0.35:
            self._riding += mine
        elif what < 0.65:
            await self._settle(topic, mine, cpb.SETTLING_FINISHED)
        elif what < 0.75:
            part = self.chance.randint(1, len(mine))
            await self._settle(topic, mine[:part], cpb.SETTLING_RETURNED)
            await self._settle(topic, mine[part:], cpb.SETTLING_FINISHED)
        elif what < 0.85:
            await self._settle(topic, mine, cpb.SETTLING_EXTENDED)
            self._riding += mine
        elif what < 0.93:
            await asyncio.sleep(self.chance.uniform(0.1, 4.0))  # longer than it may be
            late = cpb.SETTLING_FINISHED if self.doubts is None else self.doubts.choice(LATE)
            await self._settle(topic, mine, late)
        else:
            forged = [
                InHand(each.message, each.handout + self.chance.choice((-1, 1, 7)), each.attempt)
                for each in mine
            ]
            # Of what is finished that is no harm: nobody counts it as done by this.
            await self._settle(topic, forged, cpb.SETTLING_RETURNED)

    async def _settle(self, topic: str, mine: list[InHand], what: cpb.Settling) -> None:
        if not mine:
            return
        hidden_ms = self.chance.choice((0, 100, 800)) if what != cpb.SETTLING_FINISHED else 0
        request = pb.SettleRequest(
            group=self._shop.group,
            topic=topic,
            topic_incarnation=mine[0].message[1],
            settled=(
                list(map(_finishing, _together(mine)))
                if what == cpb.SETTLING_FINISHED
                else [_settlement(each, what, hidden_ms) for each in mine]
            ),
        )
        if what == cpb.SETTLING_FINISHED:
            for each in mine:
                self._shop.done[each.message] = None
        is_in_doubt = what != cpb.SETTLING_FINISHED
        for _ in range(ATTEMPTS):
            try:
                answer = await self.call("settle", request)
            except CallFailed as failure:
                self._check_refused(failure)
                is_in_doubt |= failure.may_have_happened
                await self.back_off()
                continue
            if what == cpb.SETTLING_FINISHED:
                self._note_finished(mine, answer.unsettled)
            return
        if not is_in_doubt:
            self._note_denied(mine)

    def _note_denied(self, mine: Iterable[InHand]) -> None:
        """Each attempt was told that it did not happen, and there will be no other one."""
        self._shop.denied.update((each.message, each.handout) for each in mine)

    def _note_finished(self, mine: list[InHand], unsettled: Iterable[pb.Unsettled]) -> None:
        """Whatever isn't told as superseded is finished."""
        left = {each.position: each.mask for each in unsettled}
        for position, hand in enumerate(_together(mine)):
            for each in hand:
                if not left.get(position, 0) >> each.message[3] - hand[0].message[3] & 1:
                    self._shop.finished_us.setdefault(each.message, self.shared.group.now_us)

    async def _commit_simply(self) -> None:
        """Offsets of a group that is handed messages are nobody's to commit, once it is known."""
        ((topic, _), *_) = self.shared.topics.items() or [("", 0)]
        if not topic or not self._shop.hands:
            return
        offset = bpb.QueueOffset(queue_id=0, offset=0)
        request = bpb.CommitOffsetsRequest(group=self._shop.group, topic=topic, offsets=[offset])
        try:
            await self.call("commit_offsets", request)
        except CallFailed:
            return
        raise Defect("two styles", f"offsets of {self._shop.group} were committed")


def _next_attempt(attempt_id: bytes) -> bytes:
    """The first one is told not to have happened: whether that is so is looked at in the end."""
    return attempt_id[:-1] + bytes((attempt_id[-1] + 1,))


def _together(mine: Iterable[InHand]) -> list[list[InHand]]:
    """Those of one hand and queue, in order, as far as one settlement names them: as the library
    acknowledges what it was given together. Asked for more time each is by itself."""
    found: list[list[InHand]] = []
    for each in sorted(mine, key=lambda each: (each.message, each.handout)):
        place, offset = (each.message[:3], each.handout), each.message[3]
        first = found[-1][0] if found else None
        is_of_it = first is not None and (first.message[:3], first.handout) == place
        if first is not None and is_of_it and offset - first.message[3] < SPAN:
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _finishing(hand: list[InHand]) -> pb.Settlement:
    first = hand[0].message[3]
    settled = _settlement(hand[0], cpb.SETTLING_FINISHED)
    settled.mask = sum(1 << each.message[3] - first for each in hand)
    return settled


def _settlement(each: InHand, what: cpb.Settling, hidden_ms: int = 0) -> pb.Settlement:
    return pb.Settlement(
        queue_id=each.message[2],
        handout=each.handout,
        base=each.message[3],
        mask=1,
        what=what,
        hidden_ms=hidden_ms,
    )


def check_order(who: str, told: Iterable[tuple[int, int, int]]) -> None:
    """In order what comes first in a queue is told first.

    Args:
        told: as (queue id, offset, entry).

    Raises:
        Defect: it isn't.
    """
    last: dict[int, int] = {}
    for queue_id, offset, _ in told:
        if offset <= last.get(queue_id, -1):
            text = f"{who} is told {offset} of queue {queue_id} after {last[queue_id]}"
            raise Defect("told out of order", text)
        last[queue_id] = offset


def check_shops(
    shops: Iterable[Shop],
    model: DeliveryModel,
    queue_of: Callable[[int, int], tuple[str, int]],
    first_of: Callable[[int, int], int],
) -> None:
    """Every message from a group's start on was finished by somebody who had it, or is a dead
    letter, unless it has gone from the log.

    Args:
        queue_of: a queue's topic, and where it ends, by incarnation and queue id.
        first_of: from where on nothing of the queue has gone, of anybody's.

    Raises:
        Defect: one was forgotten, or passed over, or handed out to who was told that it wasn't.
    """
    for shop in shops:
        if shop.refused & model.attempts:
            raise Defect("handed out", f"to receivers of {shop.group} that were refused")
        for (_, incarnation, queue_id, offset), handout in shop.denied:
            is_there = offset >= first_of(incarnation, queue_id)  # or it is nobody's any more
            if is_there and (shop.group, incarnation, queue_id, offset, handout) in model.ended:
                text = f"{shop.group} finished {offset} of queue {queue_id}, given by {handout}"
                raise Defect("told that it did not happen", text)
        _check_told_again(shop, model, first_of)
        passed_over = model.passed_over(shop.group)
        for (incarnation, queue_id), start in model.starts(shop.group).items():
            name, end = queue_of(incarnation, queue_id)
            first = first_of(incarnation, queue_id)
            skipped = {each for each in passed_over[incarnation, queue_id] if each >= first}
            done = {
                offset
                for topic, inc, queue, offset in shop.done
                if (topic, inc, queue) == (name, incarnation, queue_id)
            }
            missing = (
                set(range(max(start, first), end))
                - done
                - model.buried(shop.group, incarnation, queue_id)
            )
            if missing or skipped:
                raise Defect(
                    "message forgotten",
                    f"{shop.group} is through with {name}/{queue_id}, and nobody has finished "
                    f"{sorted(missing | skipped)[:5]}",
                )


def _check_told_again(
    shop: Shop, model: DeliveryModel, first_of: Callable[[int, int], int]
) -> None:
    """Whoever asked again was told of all that the attempt had all the while, and that the log
    still held."""
    for again in shop.again:
        for hand in sorted(model.held(again.attempt_id, again.since, again.until)):
            _, incarnation, queue_id, offset, handout = hand
            is_there = offset >= first_of(incarnation, queue_id)
            is_meant = incarnation == again.incarnation
            if is_there and is_meant and (queue_id, offset, handout) not in again.told:
                text = f"{again} was told to who has {offset} of queue {queue_id} by {handout}"
                raise Defect("told again in part", text)
