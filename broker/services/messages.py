"""Messages in and out: sends, pulls, and single messages by id or position.

A send is answered when its batches are committed and applied; what waits meanwhile is a future and
the bytes that the budget counts. A pull is served by a leader that has committed in its term, from
applied entries; one that finds nothing is held. Corruption is never skipped and never served: the
replica stops, and one with good bytes takes over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from broker.errors import BrokerError, ErrorCode, Failure
from broker.leader.batches import PART_WEIGHT, Batch, BatchAnswer
from broker.leader.budget import ANSWER_BYTES, ByteBudget
from broker.reading.held import HeldPulls
from broker.reading.queues import DEFAULT_BYTES, Found, QueueReader
from broker.reading.tags import UNITS_AT_ONCE, WantedTags, wanted_tags
from broker.services.gate import ABSENCES, Gate
from broker.services.soundness import Soundness
from broker.state.filters import malformed_tags
from broker.state.topics import TopicRef
from dledger.limits import MAX_SEND_BATCHES
from dledger.ports import Turns
from dledger.records.errors import InvalidRecord
from dledger.records.record import parse_message_id

REQUEST_BYTES: Final = 64 << 20  # over all Sends that wait for their commit
BATCH_WEIGHT: Final = 10  # checking a batch takes as long as checking so many records
BEHIND_WEIGHT: Final = 200  # and reading what was stored before, of an entry of any size


# --- sends -------------------------------------------------------------------------------------


class Sender(Protocol):
    """The appender, as far as sends go."""

    def send(self, producer_id: bytes, batches: Sequence[Batch]) -> Awaitable[list[BatchAnswer]]:
        """Takes the batches; awaiting gives one answer for each, in order."""
        ...

    def is_behind(self, producer_id: bytes, batch: Batch, /) -> bool:
        """Whether the batch may be stored already, and the log be read for its answer."""
        ...

    def check_in_steps(self, batch: Batch) -> Generator[None, None, Batch]:
        """The batch, its records checked, in steps of a few milliseconds."""
        ...


def _unmeasured(seconds: float) -> None:
    return None


@dataclass(frozen=True, slots=True)
class SendTimings:
    """Who is told how long a Send took, in seconds: until its batches were proposed, and until it
    was answered."""

    proposed: Callable[[float], None] = _unmeasured
    answered: Callable[[float], None] = _unmeasured


UNTIMED: Final = SendTimings()


class Sends:
    """Takes batches into the log."""

    def __init__(
        self,
        gate: Gate,
        sender: Sender,
        turns: Turns,
        timings: SendTimings = UNTIMED,
        part_weight: int = PART_WEIGHT,
    ) -> None:
        """`part_weight`: of the batches that are proposed in one turn, in records."""
        self._turns = turns
        self._in_order = asyncio.Lock()
        self._gate = gate
        self._sender = sender
        self._part_weight = part_weight
        self._timings = timings
        self.budget = ByteBudget(REQUEST_BYTES, "messages on their way into the log")

    async def send(self, producer_id: bytes, batches: Sequence[Batch]) -> list[BatchAnswer]:
        """One answer for each batch, in order; they are stored independently of each other.

        Args:
            producer_id: 16 bytes, from a registration; empty: no deduplication.

        Raises:
            BrokerError: nothing happened.
        """
        self._gate.check_writable()
        arrived = time.perf_counter()
        size = sum(len(batch.records) for batch in batches)
        self.budget.take(size)
        try:
            async with self._in_order:
                self._gate.check_writable()  # it may have waited for as long as a stop takes
                leadership = self._gate.leadership
                pending = await self._propose(producer_id, batches)
            del batches  # The log has them by now; while this waits nobody needs them twice.
            proposed = time.perf_counter()
            answers = [answer for part in pending for answer in await part]
        finally:
            self.budget.give_back(size)
        if any(_is_absence(each) for each in answers):
            answers = await self._doubt_absences(answers, leadership)
        self._timings.proposed(proposed - arrived)
        self._timings.answered(time.perf_counter() - arrived)
        return answers

    async def _propose(
        self, producer_id: bytes, batches: Sequence[Batch]
    ) -> list[Awaitable[list[BatchAnswer]]]:
        """What answers the batches, some at a time. One Send goes into the log wholly before the
        next: a producer's batches must not overtake each other. Leadership may change between
        two turns; the sender then refuses the batches that are left."""
        pending: list[Awaitable[list[BatchAnswer]]] = []
        for part in _parts(batches, self._part_weight, partial(self._weight, producer_id)):
            if pending:
                await self._turns.pause()
            if len(part) == 1 and part[0].count > self._part_weight:
                part = [await self._checked(part[0])]
            pending.append(self._sender.send(producer_id, part))
        return pending

    def _weight(self, producer_id: bytes, batch: Batch) -> int:
        """In records, as of now."""
        behind = producer_id and self._sender.is_behind(producer_id, batch)
        return BATCH_WEIGHT + batch.count + (BEHIND_WEIGHT if behind else 0)

    async def _checked(self, batch: Batch) -> Batch:
        """A large batch, its records checked in pieces. Nothing else is judged here: its place, its
        producer and whether this node leads are looked at in the turn that proposes it."""
        steps = self._sender.check_in_steps(batch)
        while True:
            try:
                next(steps)
            except StopIteration as checked:
                done: Batch = checked.value
                return done
            await self._turns.pause()

    async def _doubt_absences(
        self, answers: list[BatchAnswer], leadership: int
    ) -> list[BatchAnswer]:
        """A leader that was deposed without knowing it may lack what it says does not exist: only
        a confirmed one may say so, that has led since before it was asked; otherwise the batch is
        sent to the leader's door."""
        try:
            await self._gate.confirm()
            if self._gate.leadership != leadership:
                text = "leadership was lost and won again meanwhile"
                raise BrokerError(ErrorCode.NOT_READY, text)
        except BrokerError as error:
            return [error.failure if _is_absence(each) else each for each in answers]
        return answers


def _parts(
    batches: Sequence[Batch], part_weight: int, weight_of: Callable[[Batch], int]
) -> Iterator[Sequence[Batch]]:
    """The batches in runs that take their sender milliseconds. A Send of too many batches, or of
    none, stays whole: it is refused as a whole."""
    first = weight = 0
    for at, batch in enumerate(batches):
        own = weight_of(batch)
        weight += own
        if weight > part_weight and at > first and len(batches) <= MAX_SEND_BATCHES:
            yield batches[first:at]
            first, weight = at, own
    yield batches[first:] if first else batches


def _is_absence(answer: BatchAnswer) -> bool:
    return isinstance(answer, Failure) and answer.code in ABSENCES


# --- pulls -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Messages of one queue from `offset` on. 0 messages or bytes: as many as is usual;
    `hold_ms` None: as long as is usual."""

    topic: TopicRef
    queue_id: int
    offset: int
    max_messages: int = 0
    max_bytes: int = 0
    hold_ms: int | None = None
    tags: WantedTags | None = None  # only messages with one of these
    end: int | None = None  # none from there on


@dataclass(frozen=True, slots=True)
class HoldTimes:
    """How long a pull that finds nothing waits, in milliseconds."""

    default_ms: int
    max_ms: int


class Call(Protocol):
    """The call that is being answered, as its door knows it."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """`callback` is called once, when the answer has left or nobody wants it any more."""
        ...


class Piece:
    """A share of the event loop that several reads take together: each by itself, a thousand short
    ones would be one turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.is_over = turns.share()

    async def pause(self) -> None:
        """Another one begins, in a later turn."""
        await self._turns.pause()
        self.is_over = self._turns.share()

    @classmethod
    async def begun(cls, turns: Turns) -> Piece:
        """One that isn't over yet. Who comes into a turn that others have used up waits here, where
        nothing is judged, read or taken: behind a first step it would hold as much of the budget as
        it may be given at most."""
        piece = cls(turns)
        if piece.is_over():
            await piece.pause()
        return piece


class Pulls:
    """Gives messages to consumers."""

    def __init__(
        self,
        gate: Gate,
        reader: QueueReader,
        held: HeldPulls,
        hold: HoldTimes,
        turns: Turns,
        soundness: Soundness,
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        """Args:
        turns: how a long pull shares the event loop.
        answer_bytes: over all pulls whose clients have not read the answer.
        """
        self._turns = turns
        self._gate = gate
        self._reader = reader
        self._held = held
        self._hold = hold
        self._soundness = soundness
        self.budget = ByteBudget(answer_bytes, "pulled messages that were not read yet")

    async def pull(self, request: PullRequest, call: Call) -> Found:
        """The messages there are, or that arrive while the pull is held; none at its end.

        Raises:
            BrokerError: NOT_LEADER, NOT_READY, BUSY, and what `QueueReader.pull` raises.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + self.hold_s(request.hold_ms)
        voids = filtered = 0
        while True:
            self._gate.check_serving()
            looked = self._held.moment
            found = await self.read(request)
            voids += found.void_count
            filtered += found.filtered_count
            left = deadline - now()
            if found.count or _is_enough(request, found, filtered, left):
                self.account(len(found.records), call)
                return replace(found, void_count=voids, filtered_count=filtered)
            # Once it has waited for one topic it is told nothing of a later one of the name.
            topic = TopicRef(request.topic.name, found.incarnation)
            request = replace(request, topic=topic)
            if found.passed_over:
                request = _behind(request, found)
                await self._turns.pause()
            else:
                await self._held.wait(((found.incarnation, request.queue_id),), left, looked)

    def hold_s(self, wanted_ms: int | None) -> float:
        """How long a pull is held that is to be held so long, in seconds."""
        wanted_ms = self._hold.default_ms if wanted_ms is None else wanted_ms
        return min(wanted_ms, self._hold.max_ms) / 1000

    def account(self, size: int, call: Call) -> None:
        """The answer's bytes count until the call is over: a client may be slow to read."""
        if size:
            self.budget.take(size)
            self.give_back_at_end(size, call)

    def give_back_at_end(self, size: int, call: Call) -> None:
        """As `account`, of bytes that were taken from the budget as they were read."""
        call.on_end(lambda: self.budget.give_back(size))

    def account_handed_out(self, size: int, call: Call) -> None:
        """As `account`, of what can't be refused any more: the log says who has it."""
        self.budget.add(size)
        call.on_end(lambda: self.budget.give_back(size))

    async def read(self, request: PullRequest, piece: Piece | None = None) -> Found:
        """The messages there are, now.

        Args:
            piece: of the event loop, which others of the same pull have part of, and who asks has
                seen that it isn't over: what was judged for this read is read in the same turn.
                None: its own.

        Raises:
            BrokerError: see `pull`.
        """
        piece = piece or await Piece.begun(self._turns)
        await self._gate.surely(lambda: self._check(request))
        max_bytes = min(request.max_bytes or DEFAULT_BYTES, max(1, self.budget.left_bytes))
        return await self._read(request, max_bytes, piece, self.budget.take)

    async def read_handed_out(self, request: PullRequest) -> Found:
        """As `read`, of what the log says that somebody has: it was an answer once, so it is one
        again however little room there is, and counts.

        Raises:
            BrokerError: see `pull`.
        """
        piece = await Piece.begun(self._turns)
        await self._gate.surely(lambda: self._check(request))
        max_bytes = request.max_bytes or DEFAULT_BYTES
        return await self._read(request, max_bytes, piece, self.budget.add)

    async def _read(
        self, request: PullRequest, max_bytes: int, piece: Piece, take: Callable[[int], None]
    ) -> Found:
        place = (request.topic, request.queue_id, request.offset)
        wanted, end = request.max_messages, request.end
        if request.tags is None:
            steps = self._reader.pull_in_steps(*place, wanted, max_bytes, end)
        else:
            tags = request.tags
            steps = self._reader.pull_by_tags_in_steps(place, wanted, max_bytes, tags, end)
        return await self._in_turns(steps, max_bytes, piece, take)

    def _check(self, request: PullRequest) -> None:
        """The topic may be read, and the queue has that offset.

        Raises:
            BrokerError: TOPIC_NOT_READABLE, and what `QueueReader.check_offset` raises.
        """
        self._reader.check_readable(request.topic)
        self._reader.check_offset(request.topic, request.queue_id, request.offset)

    async def _in_turns(
        self,
        steps: Generator[None, None, Found],
        max_bytes: int,
        piece: Piece,
        take: Callable[[int], None],
    ) -> Found:
        """What `steps` give in the end; the event loop is everybody's between some of them. From
        the first pause on the answer's bytes are taken from the budget, as others may want them."""
        taken = 0
        try:
            while True:
                try:
                    self._soundness.read(lambda: next(steps))
                except StopIteration as found:
                    answer: Found = found.value
                    return answer
                if piece.is_over():
                    if not taken:
                        take(max_bytes)
                        taken = max_bytes
                    await piece.pause()
        finally:
            self.budget.give_back(taken)


def tags_of_pull(tags: Sequence[str]) -> WantedTags | None:
    """The tags that a pull names; None: it wants every message.

    Raises:
        BrokerError: INVALID_ARGUMENT.
    """
    if not tags:
        return None
    why = malformed_tags(list(tags))
    if why:
        raise BrokerError(ErrorCode.INVALID_ARGUMENT, why)
    return wanted_tags(tuple(tags))


def _is_enough(request: PullRequest, found: Found, filtered: int, left_s: float) -> bool:
    """Whether a pull that has found no message is answered all the same: its time is over, or it
    has passed over as much as one answer tells of."""
    if request.tags is not None:
        return left_s <= 0 or filtered >= UNITS_AT_ONCE
    is_asked = request.max_messages == 0 or request.max_messages > found.void_count
    return not is_asked or (left_s <= 0 and not found.void_count)


def _behind(request: PullRequest, found: Found) -> PullRequest:
    """The rest of a request, behind what is void or not wanted: nobody waits at that."""
    if request.tags is not None:
        return replace(request, offset=found.next_offset)
    left = request.max_messages and request.max_messages - found.void_count
    return replace(request, offset=found.next_offset, max_messages=left)


# --- single messages ---------------------------------------------------------------------------


class Records(Protocol):
    """`broker.reading.committed.CommittedLog`, as far as single records go."""

    def record_at(self, physical_offset: int) -> bytes | None: ...


class Lookups:
    """Finds single messages."""

    def __init__(
        self,
        gate: Gate,
        reader: QueueReader,
        records: Records,
        soundness: Soundness,
        account: Callable[[int, Call], None],
    ) -> None:
        """Args:
        account: an answer's bytes count until its call is over, as a pull's do (`Pulls.account`).
        """
        self._gate = gate
        self._soundness = soundness
        self._reader = reader
        self._records = records
        self._account = account

    async def by_id(self, message_id: str, call: Call) -> bytes:
        """The record that a message id (32 hex digits) names; of a topic that is there, one that
        can be read at its offset, too.

        Raises:
            BrokerError: MESSAGE_NOT_FOUND, INVALID_ARGUMENT, NOT_LEADER, NOT_READY, BUSY.
        """
        self._gate.check_serving()
        try:
            _, physical_offset = parse_message_id(message_id)
        except (ValueError, InvalidRecord) as error:
            raise BrokerError(
                ErrorCode.INVALID_ARGUMENT,
                f"message id {message_id[:64]!r}: 32 hex digits are expected",
            ) from error
        record = self._record_at(physical_offset)
        if record is None or self._reader.let_go_of(physical_offset, record):
            await self._gate.confirm()  # Only then may it be said that there is none.
            record = self._record_at(physical_offset)
        if record is None:
            raise BrokerError(ErrorCode.MESSAGE_NOT_FOUND, f"no message has the id {message_id}")
        if gone := self._reader.let_go_of(physical_offset, record):
            raise BrokerError(ErrorCode.MESSAGE_NOT_FOUND, gone)
        self._account(len(record), call)
        return record

    async def by_position(self, topic: TopicRef, queue_id: int, offset: int, call: Call) -> bytes:
        """The record at a queue's offset.

        Raises:
            BrokerError: MESSAGE_NOT_FOUND at the queue's end, BUSY, and what `QueueReader.pull`
                raises.
        """
        await self._gate.confirm()
        found = self._soundness.read(lambda: self._reader.pull(topic, queue_id, offset, 1, 1))
        if not found.count:
            place = f"{topic.name}/{queue_id}"
            text = f"{place} ends at offset {found.max_offset}"
            if found.void_count:
                text = f"offset {offset} of {place} is void: what was to be there was refused"
            raise BrokerError(ErrorCode.MESSAGE_NOT_FOUND, text)
        self._account(len(found.records), call)
        return found.records

    def _record_at(self, physical_offset: int) -> bytes | None:
        return self._soundness.read(lambda: self._records.record_at(physical_offset))
