"""The service Deliveries of the fake nodes: messages handed out one by one, in memory.

It keeps the contract of `proto/dledger/wire/deliveries.proto` and of
docs/adr/0057-per-message-delivery.md, as far as a client can see it: what is handed out is hidden
for a while, comes again to anybody after that, and is a dead letter when it was handed out as often
as it may be; whoever names a hand that isn't any more is refused; the same attempt, asked again, is
given the same. Times are those of the requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dledger.client.members.settings import GROUP_PATTERN
from dledger.records.record import decode_records
from dledger.records.reserved import DEFAULT_ATTEMPTS, EXHAUSTED
from dledger.testing.fake_members import FakeMembers
from dledger.testing.fake_model import READ, FakeQueue, Model
from dledger.testing.fake_retries import FakeRetries
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import commands_pb2 as kpb
from dledger.wire import deliveries_pb2 as pb
from dledger.wire import errors_pb2 as epb

LOOK_S = 0.02  # between looks at what is due again
HOLD_MS = 15_000  # where a request says nothing
SPAN = 64


class Nodes(Protocol):
    """The group of nodes."""

    model: Model
    members: FakeMembers
    retries: FakeRetries


@dataclass
class FakeHand:
    """A message in somebody's hand, or waiting to be in the next one."""

    handout: int
    attempt: int
    attempt_id: bytes
    hidden_until: float


@dataclass
class FakeHanding:
    """One queue of a group's topic: what is in hand, by offset, and what is given next."""

    next: int
    hands: dict[int, FakeHand] = field(default_factory=dict)


@dataclass
class FakeDesk:
    """A group in a topic, with its queues."""

    queues: list[FakeQueue]
    is_fifo: bool
    handing: list[FakeHanding] = field(default_factory=list)
    turn: int = 0  # which queue comes first


class Given(NamedTuple):
    """A message that is handed out."""

    queue_id: int
    offset: int
    hand: FakeHand
    record: bytes


class FakeDeliveries:
    """Whatever groups of workers have in hand."""

    def __init__(self, group: Nodes) -> None:
        self._group = group
        group.model.when_deleted.append(self._forget)
        self._desks: dict[tuple[str, str], FakeDesk] = {}

    def has(self, group: str) -> bool:
        """Whether the group's messages are handed out one by one."""
        return any(of == group for of, _ in self._desks)

    def names(self) -> set[str]:
        """Groups that are handed messages one by one."""
        return {group for group, _ in self._desks}

    def is_fifo(self, group: str) -> bool:
        """Whether a queue's messages are handed out in order."""
        return any(desk.is_fifo for (of, _), desk in self._desks.items() if of == group)

    def handing(self, group: str, topic: str, queue_id: int) -> FakeHanding | None:
        """What the group has in hand of a queue; None: it is handed nothing of it."""
        desk = self._desks.get((group, topic))
        known = desk is not None and queue_id < len(desk.handing)
        return desk.handing[queue_id] if desk is not None and known else None

    def topics(self, group: str) -> set[str]:
        """Of which the group is handed messages."""
        return {topic for of, topic in self._desks if of == group}

    def _forget(self, topic: str) -> None:
        """The topic is deleted: what is in hand of it is nothing any more."""
        self._desks = {key: desk for key, desk in self._desks.items() if key[1] != topic}

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # --- calls --------------------------------------------------------------------------------

    async def on_Receive(self, node: object, request: pb.ReceiveRequest) -> pb.ReceiveResponse:
        _check_group(request.group)
        desk = self._desk(request)
        incarnation = self._group.model.incarnations[request.topic]
        answer = pb.ReceiveResponse(topic_incarnation=incarnation)
        answer.unsettled.extend(self._settle(desk, request.settled))
        try:
            self._group.model.check_permission(request.topic, READ)
        except Refusal:
            if not request.settled or request.again:
                raise
            return answer  # what rode along was done, and nothing is handed out
        hold_ms = request.hold_ms if request.HasField("hold_ms") else HOLD_MS
        heard_s = self._now
        until = heard_s + self._group.model.hold_s(hold_ms)
        while not (given := self._give(desk, request)) and (left := until - self._now) > 0:
            async with self._group.model.arrived:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_S)):
                        await self._group.model.arrived.wait()
            self._group.model.queues(request.topic, incarnation)
        for each in _together(given):
            answer.handed.append(each)
        if given:
            answer.held_ms = int((self._now - heard_s) * 1000)
        return answer

    async def on_Settle(self, node: object, request: pb.SettleRequest) -> pb.SettleResponse:
        _check_group(request.group)
        if not request.settled:
            raise Refusal(wire_error(epb.INVALID_ARGUMENT, "nothing is to be settled"))
        self._group.model.queues(request.topic, request.topic_incarnation)
        desk = self._desks.get((request.group, request.topic))
        if desk is None:
            raise Refusal(wire_error(epb.RECEIPT_SUPERSEDED, "nothing was handed out"))
        return pb.SettleResponse(unsettled=self._settle(desk, request.settled))

    def _desk(self, request: pb.ReceiveRequest) -> FakeDesk:
        model = self._group.model
        queues = model.queues(request.topic, request.topic_incarnation)
        desk = self._desks.get((request.group, request.topic))
        if desk is None:
            if request.group in self._group.members.records or any(
                of == request.group for of, _ in model.offsets
            ):
                raise Refusal(wire_error(epb.GROUP_STYLED, f"{request.group} reads queues"))
            desk = self._desks[request.group, request.topic] = FakeDesk(queues, request.fifo)
            desk.handing = [
                FakeHanding(queue.start(request.start, request.start_time_ms)) for queue in queues
            ]
        if desk.is_fifo != request.fifo:
            raise Refusal(wire_error(epb.GROUP_DIFFERS, "FIFO or not"))
        desk.handing += [FakeHanding(0) for _ in range(len(queues) - len(desk.handing))]
        return desk

    # --- what is settled ----------------------------------------------------------------------

    def _settle(self, desk: FakeDesk, settled: Iterable[pb.Settlement]) -> list[pb.Unsettled]:
        late: list[pb.Unsettled] = []
        for position, wish in enumerate(settled):
            if wish.queue_id >= len(desk.handing):
                mask = wish.mask
            else:
                mask = self._settle_one(desk.handing[wish.queue_id], wish)
            if mask:
                error = wire_error(epb.RECEIPT_SUPERSEDED, "in another hand by now")
                late.append(pb.Unsettled(position=position, error=error, mask=mask))
        return late

    def _settle_one(self, handing: FakeHanding, wish: pb.Settlement) -> int:
        """Which of the messages aren't in that hand; finished twice is finished."""
        late = 0
        for bit in range(SPAN):
            if not wish.mask >> bit & 1:
                continue
            offset = wish.base + bit
            hand = handing.hands.get(offset)
            is_finished = hand is None and offset < handing.next
            if is_finished and wish.what == kpb.SETTLING_FINISHED:
                continue
            if hand is None or hand.handout != wish.handout:
                late |= 1 << bit
            elif wish.what == kpb.SETTLING_FINISHED:
                del handing.hands[offset]
            else:
                hand.hidden_until = self._now + wish.hidden_ms / 1000
        return late

    # --- what is given ------------------------------------------------------------------------

    def _give(self, desk: FakeDesk, request: pb.ReceiveRequest) -> list[Given]:
        self._let_go(desk)
        if request.again and (same := self._the_same(desk, request)):
            return same
        most, size = request.max_messages or 32, request.max_bytes or 262_144
        handout, hidden_until = 0, self._now + request.hidden_ms / 1000
        given: list[Given] = []
        desk.turn += 1
        for at in range(len(desk.handing)):
            queue_id = (desk.turn + at) % len(desk.handing)
            for offset, attempt in list(self._offered(desk, queue_id, request)):
                record = desk.queues[queue_id].records[offset]
                if len(given) == most or (given and len(record) > size):
                    return given
                size -= len(record)
                if not handout:
                    self._group.model.entries += 1
                    handout = self._group.model.entries
                hand = FakeHand(handout, attempt, request.attempt_id, hidden_until)
                handing = desk.handing[queue_id]
                handing.hands[offset] = hand
                handing.next = max(handing.next, offset + 1)
                given.append(Given(queue_id, offset, hand, record))
        return given

    def _let_go(self, desk: FakeDesk) -> None:
        """What is in the queues no more nobody is given."""
        for queue, handing in zip(desk.queues, desk.handing, strict=True):
            handing.next = max(handing.next, queue.min_offset)
            for offset in [each for each in handing.hands if each < queue.min_offset]:
                del handing.hands[offset]

    def _the_same(self, desk: FakeDesk, request: pb.ReceiveRequest) -> list[Given]:
        found: list[Given] = []
        for queue_id, handing in enumerate(desk.handing):
            for offset, hand in sorted(handing.hands.items()):
                if hand.attempt_id == request.attempt_id:
                    hand.hidden_until = self._now + request.hidden_ms / 1000
                    record = desk.queues[queue_id].records[offset]
                    found.append(Given(queue_id, offset, hand, record))
        return found

    def _offered(
        self, desk: FakeDesk, queue_id: int, request: pb.ReceiveRequest
    ) -> Iterator[tuple[int, int]]:
        """Offsets that may be given of a queue, with the number of the attempt."""
        handing, queue = desk.handing[queue_id], desk.queues[queue_id]
        if desk.is_fifo and any(hand.hidden_until > self._now for hand in handing.hands.values()):
            return
        attempts = request.max_attempts or (0 if desk.is_fifo else DEFAULT_ATTEMPTS)
        for offset, hand in sorted(handing.hands.items()):
            if hand.hidden_until > self._now:
                continue
            if 0 < attempts <= hand.attempt:
                message = decode_records(queue.records[offset])
                self._group.retries.bury(message, request.group, hand.attempt, EXHAUSTED)
                del handing.hands[offset]
            else:
                yield offset, hand.attempt + 1
        if not desk.is_fifo or not handing.hands:
            yield from ((offset, 1) for offset in range(handing.next, len(queue.records)))


def _together(given: list[Given]) -> list[pb.HandedOut]:
    """Messages of one queue, hand and attempt as one."""
    found: dict[tuple[int, int, int], pb.HandedOut] = {}
    for queue_id, _, hand, record in given:
        key = queue_id, hand.handout, hand.attempt
        if key not in found:
            found[key] = pb.HandedOut(queue_id=queue_id, handout=hand.handout, attempt=hand.attempt)
        found[key].count += 1
        found[key].records += record
    return list(found.values())


def _check_group(name: str) -> None:
    if not GROUP_PATTERN.fullmatch(name):
        text = f"no consumer group that is handed messages has the name {name[:300]!r}"
        raise Refusal(wire_error(epb.INVALID_ARGUMENT, text))
