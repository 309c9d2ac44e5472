"""Receives of one consumer: those that are asked for in one moment share a call.

Work with many receives at once would make as many calls, and a call costs the brokers and the
client more than handing out thirty messages. So what is asked for in one turn of the event loop is
one wish for the sum, of one attempt, and what it brings is dealt out in the order of asking. Who
gets nothing of it and has time left is in the next call. In order nobody shares: of a queue only
one receive has something at a time.

    asked ── in a call ─┬─ dealt out
       ▲                ├─ its time is over: nothing
       │                ├─ refused, or its deadline is over: the error
       └── time left ───┘  as brokers hold no call longer than they like

Who gives up is in no further call. A call that is for nobody any more is ended, so that callers
without patience don't pile up at the brokers; not at once, as it may be handed something just then,
which would be hidden from all and have cost an attempt. If it acknowledges something, that has to
be heard: then the same attempt asks once more, and waits for nothing.

Who wants to begin at the end means the topic that there is when he asks first. One that is made
later begins with its first message, as it does for members: so calls name the topic that was told
of last, and once it is known to be gone all that is asked for begins at the first.

This owns who waits, and the calls; what becomes of messages afterwards is the consumer's. A call
whose answer was lost is made again as the same attempt, and brings the same messages. Bounds:
`MAX_…` of a call; how many are asked for is the application's.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Protocol

from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import RECEIVE
from dledger.client.delivery import Delivery, Receipt, Settled
from dledger.client.errors import (
    ClientError,
    RecordCorrupt,
    TopicNotFound,
    TopicReplaced,
    from_wire,
)
from dledger.client.faults import fault
from dledger.client.members.clock import clock
from dledger.client.pulled import handed_out
from dledger.client.results import Message
from dledger.outcome import Outcome
from dledger.wire import commands_pb2 as kpb
from dledger.wire import deliveries_pb2 as pb

SPAN: Final = 64  # offsets that one settlement names
MAX_SHARING: Final = 32  # receives of one call
MAX_SHARED: Final = 1_024  # messages that are wanted by one that is shared
MAX_SETTLED: Final = 1_024  # acknowledged by one that is shared: each may be a settlement
SHARE_BYTES: Final = 256 << 10  # for each of them, beyond which others are served first
AGAIN_S: Final = 0.02  # before an attempt asks again; and who got nothing, sooner than he wanted
COMPANY_S: Final = 0.001  # who got nothing waits so long for those who ask anew
SAME_MOMENT_S: Final = 0.001  # holds are told in milliseconds
EARLY_S: Final = 0.01  # so much sooner a call's time is over by the brokers' clock
MOST_HELD_S: Final = 120.0  # a call, by brokers that don't say for how long they held it
GRACE_S: Final = 1.0  # of a call: what there is when it asks it has long before that

Riding = tuple[pb.Settlement, list[Delivery]]
_RECEIPT: Final = attrgetter("receipt")
_IS_GIVEN_UP: Final = attrgetter("is_given_up")


class Hands(Protocol):
    """The consumer, as far as its receives use it."""

    invisible_s: float

    def made(self, message: Message, attempt: int, receipt: Receipt) -> Delivery:
        """A message that was handed out."""
        ...

    def track(self, deliveries: Sequence[Delivery]) -> None:
        """They are in hand."""
        ...

    def on_settled(self, deliveries: Sequence[Delivery]) -> None:
        """They aren't any more."""
        ...

    def keep(self, deliveries: Sequence[Delivery]) -> None:
        """Nobody was given these."""
        ...


@dataclass(eq=False, slots=True)
class _Asked:
    """A receive that waits. Times by the loop's clock."""

    count: int
    until_s: float
    done: Sequence[Delivery]  # acknowledged by its first call
    found: asyncio.Future[list[Delivery]]
    is_given_up: bool = False
    is_in_doubt: bool = False  # a call that it was in may have happened, or has

    def fail(self, error: BaseException) -> None:
        """It is told; never that nothing happened, where a call before may have."""
        if self.is_in_doubt and isinstance(error, ClientError):
            error = error.in_doubt()
        if not self.found.done():
            self.found.set_exception(error)
            self.found.exception()  # whoever awaited it may be gone


@dataclass(eq=False, slots=True)
class _Call:
    """Those who share it, when it began, and until when it is held; by the loop's clock."""

    asked: Sequence[_Asked]
    began_s: float
    until_s: float
    is_cut_short: bool = False  # it is cancelled only to be asked once more

    @property
    def is_for_nobody(self) -> bool:
        """Whether nobody waits for what it brings."""
        return all(each.is_given_up or each.found.done() for each in self.asked)

    @property
    def acknowledges(self) -> bool:
        """Whether it has to be heard."""
        return any(each.done for each in self.asked)

    def goes_on(self) -> bool:
        """Whether it was cut short just now, and not ended as well."""
        was_cut_short, self.is_cut_short = self.is_cut_short, False
        task = asyncio.current_task()
        return was_cut_short and task is not None and not task.uncancel()


class Receives:
    """Of one consumer.

    Args:
        broker_group: the client's.
        hands: the consumer.
        wish: what all of them ask for: whose, of what, where that begins.
    """

    def __init__(
        self, broker_group: Callable[[], BrokerGroup], hands: Hands, wish: pb.ReceiveRequest
    ) -> None:
        self._broker_group = broker_group
        self._hands = hands
        self._wish = wish
        self._start = wish.start
        self._incarnation = 0  # of the topic that was told of last
        self._asked: list[_Asked] = []  # in none of the calls
        self._is_due = False  # their call is made before the next turn ends
        self._calls: dict[asyncio.Task[None], _Call] = {}

    def ask(
        self, count: int, wait_s: float, done: Sequence[Delivery]
    ) -> asyncio.Future[list[Delivery]]:
        """Up to so many messages, or none if none came in time; cancelled once `close` is called,
        or after `give_up` if nothing came."""
        loop = asyncio.get_running_loop()
        asked = _Asked(count, loop.time() + wait_s, done, loop.create_future())
        self._asked.append(asked)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._call_soon)
        return asked.found

    def give_up(self, found: asyncio.Future[list[Delivery]]) -> None:
        """Whoever asked doesn't wait any more: what comes all the same is for whom it is told."""
        now = asyncio.get_running_loop().time()
        for each in self._asked:
            if each.found is found:
                if each.done:  # they are acknowledged all the same
                    each.is_given_up, each.until_s = True, now
                else:
                    self._asked.remove(each)
                    found.cancel()
                return
        for task, call in self._calls.items():
            for each in call.asked:
                if each.found is found:
                    each.is_given_up = True
                    self._end_if_idle(task, call)
                    return

    def _end_if_idle(self, task: asyncio.Task[None], call: _Call) -> None:
        if call.is_for_nobody:
            loop = asyncio.get_running_loop()
            loop.call_at(max(call.began_s + GRACE_S, loop.time()), self._end, task, call)

    def _end(self, task: asyncio.Task[None], call: _Call) -> None:
        """It leaves the brokers. If they may not have heard yet what it acknowledges, the same
        attempt asks once more, and is held no longer."""
        now = asyncio.get_running_loop().time()
        if not call.acknowledges:
            task.cancel()
        elif now < call.until_s:
            call.until_s, call.is_cut_short = now, True
            task.cancel()

    def close(self) -> list[Delivery]:
        """Nobody waits any more. What a call that is under way was given comes back when its time
        is over.

        Returns:
            What was to be acknowledged, and isn't known to be.
        """
        in_calls = (each for call in self._calls.values() for each in call.asked)
        done = [one for each in (*self._asked, *in_calls) for one in each.done]
        for asked in self._asked:
            asked.found.cancel()
        self._asked = []
        for task in self._calls:
            task.cancel()
        return [one for one in dict.fromkeys(done) if not one.is_settled]

    def _call_soon(self) -> None:
        self._is_due = False
        asked, self._asked = self._asked, []
        loop = asyncio.get_running_loop()
        for part in self._parts(asked):
            call = _Call(part, loop.time(), min(each.until_s for each in part))
            task = loop.create_task(self._call(call), name="receive")
            self._calls[task] = call
            task.add_done_callback(self._on_ended)

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        call = self._calls.pop(task)
        if task.cancelled():  # perhaps before it began
            for each in call.asked:
                each.found.cancel()

    def _parts(self, asked: Iterable[_Asked]) -> list[list[_Asked]]:
        """Those that share a call, in the order of asking."""
        parts: list[list[_Asked]] = []
        messages = settled = 0
        for each in asked:
            messages += each.count
            settled += len(each.done)
            is_alone = not parts or self._wish.fifo or len(parts[-1]) == MAX_SHARING
            if is_alone or messages > MAX_SHARED or settled > MAX_SETTLED:
                parts.append([each])
                messages, settled = each.count, len(each.done)
            else:
                parts[-1].append(each)
        return parts

    # --- a call -------------------------------------------------------------------------------

    async def _call(self, call: _Call) -> None:
        """Whatever ends it is told to those who asked, or they ask again."""
        try:
            await self._receive(call)
        except asyncio.CancelledError:
            raise
        except ClientError as error:
            self._failed(call, error)
        except Exception as error:  # noqa: BLE001  ours: what was acknowledged may be so
            self._failed(call, fault("receiving", error, Outcome.MAY_HAVE_HAPPENED))
        except BaseException as error:
            self._failed(call, error)
            raise

    async def _receive(self, call: _Call) -> None:
        asked = call.asked
        done = [one for each in asked for one in each.done]
        riding = together(one for one in done if not one.is_settled)
        gone = {one: expired for one in done if (expired := one.given_back()) is not None}
        request = pb.ReceiveRequest()
        request.CopyFrom(self._wish)
        self._begin(request)
        request.hidden_ms = in_ms(self._hands.invisible_s)
        request.attempt_id = os.urandom(7) + b"\1"
        request.max_messages = sum(each.count for each in asked)
        if len(asked) > 1:
            request.max_bytes = len(asked) * SHARE_BYTES
        request.settled.extend(wish for wish, _ in riding)
        answer, sent_s = await self._answer(request, call)
        self._incarnation = answer.topic_incarnation
        found = self._deliveries(answer, _hidden_from_s(answer, sent_s, request.hold_ms))
        late = self._settle(riding, answer.unsettled)
        if request.again:  # what is refused now a call before may have done
            late = {each: error.in_doubt() for each, error in late.items()}
        late |= gone
        for each in asked:
            if (error := next((late[one] for one in each.done if one in late), None)) is not None:
                each.fail(error)
        self._deal(call, found)

    def _begin(self, request: pb.ReceiveRequest) -> None:
        """Where, and in which topic: 0 is whichever has the name."""
        request.start = self._start
        is_meant = self._start == kpb.START_LAST
        request.topic_incarnation = self._incarnation if is_meant else 0

    def _is_for_another_topic(self, request: pb.ReceiveRequest, error: ClientError) -> bool:
        """Whether the same is asked once more, of another topic that has the name now. Any that
        there is from now on was made while somebody was there for it."""
        if self._start == kpb.START_LAST and isinstance(error, TopicReplaced | TopicNotFound):
            self._start = kpb.START_FIRST
        was_meant = bool(request.topic_incarnation) and isinstance(error, TopicReplaced)
        if was_meant:
            self._begin(request)
        return was_meant

    async def _answer(
        self, request: pb.ReceiveRequest, call: _Call
    ) -> tuple[pb.ReceiveResponse, float]:
        """The leader's; where one was lost, the next one gives the same attempt the same, hidden
        anew. With when that was asked for which is answered.

        So does one that is read too late: a process that was stopped meanwhile, or a machine that
        slept, may read it when others have the messages. What nobody has had since is given to the
        same attempt once more; thrown away, it would have cost an attempt that nobody made. Where
        answers take longer than messages are hidden that is done once, and then they are given."""
        group, loop = self._broker_group(), asyncio.get_running_loop()
        sent_s, is_late, late_s = clock(), False, 0.0

        def on_sent() -> None:
            nonlocal sent_s
            sent_s = clock()

        while True:
            deadline = max(call.until_s, late_s) + group.options.deadline_s
            try:
                if request.again:
                    await asyncio.sleep(AGAIN_S)
                request.hold_ms = in_ms(max(0.0, call.until_s - loop.time()))
                answer = await group.call(
                    *(RECEIVE, request, Effect.ONCE),
                    deadline_s=max(0.001, deadline - loop.time()),
                    on_sent=on_sent,
                )
                hidden_s = _hidden_from_s(answer, sent_s, request.hold_ms) + self._hands.invisible_s
                if is_late or not answer.handed or clock() < hidden_s:
                    return answer, sent_s
                is_late, late_s = True, loop.time()
            except asyncio.CancelledError:
                if not call.goes_on():
                    raise
            except ClientError as error:
                if self._is_for_another_topic(request, error):
                    continue
                is_lost = error.outcome is Outcome.MAY_HAVE_HAPPENED
                if not (is_lost and error.retriable) or loop.time() >= deadline:
                    if request.again:  # a refusal says nothing of the calls before
                        error.outcome = Outcome.MAY_HAVE_HAPPENED
                    raise
            request.again = True

    def _deliveries(self, answer: pb.ReceiveResponse, hidden_from_s: float) -> list[Delivery]:
        """What was handed out; in hand from now on.

        Raises:
            RecordCorrupt: the answer contradicts itself; its messages come again.
        """
        made, incarnation = self._hands.made, answer.topic_incarnation
        hidden_until_s = hidden_from_s + self._hands.invisible_s
        found: list[Delivery] = []
        for handed, messages in self._messages(answer):
            handout, attempt = handed.handout, handed.attempt
            for message in messages:
                place = message.queue_id, handout, message.queue_offset
                delivery = made(message, attempt, Receipt(incarnation, *place))
                delivery.hidden_until_s = hidden_until_s
                found.append(delivery)
        self._hands.track(found)
        return found

    def _messages(self, answer: pb.ReceiveResponse) -> list[tuple[pb.HandedOut, list[Message]]]:
        """Each part of the answer, judged before any of it is in hand."""
        try:
            return handed_out(answer.handed, self._wish.topic)
        except RecordCorrupt as error:  # they are hidden, and what was acknowledged may be so
            raise error.in_doubt() from error

    def _settle(
        self, riding: Sequence[Riding], unsettled: Iterable[pb.Unsettled]
    ) -> dict[Delivery, ClientError]:
        """All that rode is settled but what is told otherwise: that, and why."""
        told = {each.position: each for each in unsettled}
        late: dict[Delivery, ClientError] = {}
        for position, (wish, deliveries) in enumerate(riding):
            settled = deliveries
            if (refused := told.get(position)) is not None:
                late |= {
                    each: from_wire(refused.error)
                    for each in deliveries
                    if refused.mask >> (each.receipt.offset - wish.base) & 1
                }
                settled = [each for each in deliveries if each not in late]
            for each in settled:
                each.on_settled(Settled.FINISHED)
            self._hands.on_settled(settled)
        return late

    # --- what comes of it ---------------------------------------------------------------------

    def _deal(self, call: _Call, found: Sequence[Delivery]) -> None:
        """Everybody has his share, or nothing at the end of his time; or asks again. First come
        those who wait."""
        waiting = [each for each in call.asked if not each.found.done()]
        waiting.sort(key=_IS_GIVEN_UP)
        *shares, left = dealt([each.count for each in waiting], found)
        over_s = asyncio.get_running_loop().time()
        was_held = over_s >= call.until_s - EARLY_S
        if was_held and not found:  # whose time that was has waited enough, by the brokers' word
            over_s = max(over_s, call.until_s + SAME_MOMENT_S)
        again: list[_Asked] = []
        for each, share in zip(waiting, shares, strict=True):
            each.is_in_doubt |= bool(each.done)  # they are acknowledged, whatever comes next
            each.done = ()
            if share or each.is_given_up or each.until_s <= over_s:
                each.found.set_result(share)
            else:
                again.append(each)
        if left:
            self._hands.keep(left)
        self._ask_again(again, COMPANY_S if found or was_held else AGAIN_S)

    def _failed(self, call: _Call, error: BaseException) -> None:
        """It is told, but to those who have more time than the call had."""
        again: list[_Asked] = []
        over_s = call.until_s + SAME_MOMENT_S
        for each in call.asked:
            waits = not (each.is_given_up or each.found.done()) and each.until_s > over_s
            if waits and isinstance(error, ClientError) and error.retriable:
                each.is_in_doubt |= error.outcome is Outcome.MAY_HAVE_HAPPENED
                again.append(each)
            else:
                each.fail(error)
        self._ask_again(again, COMPANY_S)

    def _ask_again(self, again: list[_Asked], after_s: float) -> None:
        """Before all who ask anew, and with them: most of those were answered just now."""
        if again:
            self._asked = again + self._asked
            asyncio.get_running_loop().call_later(after_s, self._call_soon)


def _hidden_from_s(answer: pb.ReceiveResponse, sent_s: float, hold_ms: int) -> float:
    """From when on the messages are hidden, at the latest; by the clock of leases. However late the
    answer is read, that is as long after the request as the leader says."""
    held_s = min(hold_ms / 1000, MOST_HELD_S)
    if answer.HasField("held_ms"):
        held_s = answer.held_ms / 1000
    return min(clock(), sent_s + held_s)


def dealt(counts: Sequence[int], found: Sequence[Delivery]) -> list[list[Delivery]]:
    """The share of each, who wants so many, in that order; and what is left, as the last one.
    Beyond `SHARE_BYTES` others are served first."""
    shares: list[list[Delivery]] = []
    at = 0
    for count in counts:
        end = at = min(at, len(found))
        size = 0
        for each in found[at : at + count]:
            size += each.message.size
            if size > SHARE_BYTES and end > at:
                break
            end += 1
        shares.append(list(found[at:end]))
        at = end
    for count, share in zip(counts, shares, strict=True):
        more = found[at : at + count - len(share)]
        share += more
        at += len(more)
    return [*shares, list(found[at:])]


def together(deliveries: Iterable[Delivery]) -> list[Riding]:
    """Acknowledgements, those of one hand as one: up to 64 offsets each."""
    found: list[tuple[Receipt, list[Delivery]]] = []
    hand: tuple[int, ...] = ()
    end, members = 0, list[Delivery]()
    for each in sorted(deliveries, key=_RECEIPT):
        receipt = each.receipt
        if receipt[:3] == hand and receipt.offset < end:
            members.append(each)
        else:
            hand, end, members = receipt[:3], receipt.offset + SPAN, [each]
            found.append((receipt, members))
    return [(_finished(first, members), members) for first, members in found]


def _finished(first: Receipt, members: Iterable[Delivery]) -> pb.Settlement:
    mask = 0
    for each in members:
        mask |= 1 << each.receipt.offset - first.offset
    return settlement(first, kpb.SETTLING_FINISHED, mask=mask)


def settlement(
    receipt: Receipt, what: kpb.Settling, hidden_s: float = 0, mask: int = 1
) -> pb.Settlement:
    """What becomes of the message, or of those that the bits stand for, it being the first."""
    return pb.Settlement(
        queue_id=receipt.queue_id,
        handout=receipt.handout,
        base=receipt.offset,
        mask=mask,
        what=what,
        hidden_ms=in_ms(hidden_s),
    )


def in_ms(wanted_s: float) -> int:
    """Milliseconds, rounded up."""
    return math.ceil(wanted_s * 1_000)
