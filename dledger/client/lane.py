"""The lane of one producer into one queue: batches, sequences, retries. Pure: no clock, no I/O.

A lane owns the order of its batches and what is known of each. It must never let a batch be
stored twice, nor let one be stored ahead of an earlier one, nor say *was not stored* of one that
may have been. Sequence numbers count messages within an *epoch* (a registration,
`dledger.client.epochs`); the brokers store a batch only if its number is the next one.

States of a batch:

    GATHERED ──take──▶ IN_FLIGHT ──stored──────────▶ STORED   leaves when it is the first
    (no number yet)     ▲     │──retriable error───▶ RETRY    same bytes, same number
                        └─────────────take───────────┘
                              ├──queues changed────▶ MOVED    leaves with all that is behind it
                              └──refused for good──▶ REFUSED  judged when it is the first
    any ──deadline, close, an earlier one in doubt─▶ DEAD     later answers are ignored
          (or `give_up`, when a rule below has failed itself)

The window holds the batches that have a number, oldest first, five at most (the brokers remember
five for deduplication). Rules, each held by a test:

 1. New batches follow at once while the window is clean. After any failure nothing is sent until
    every answer of the lane is in; then all RETRY batches go again, in order, before new ones.
 2. A batch is *doubtful* from the first attempt whose outcome is unknown; it stays so.
 3. The first of the window REFUSED, not doubtful: it alone fails, *was not stored*. As its number
    was never used, none behind it can have been stored, in doubt or not. They lose their numbers,
    and what follows begins with that one again; in a new epoch if any of them was in doubt, or of
    those that were refused with it:
    a late copy of one batch could be taken for another that has its number by then.
 4. The first REFUSED, doubtful: *may have been stored*. What follows must not be sent as if it
    had been: all of it fails (*was not stored*, unless sent and in doubt); a new epoch begins.
 5. UNKNOWN_PRODUCER and OUT_OF_SEQUENCE: behind an earlier batch they only say that that one is
    missing: RETRY. Of one that was sent as the first, all before which were acknowledged, they say
    that the brokers have forgotten: producers are, if they are unused for long, and machines that
    lose power together under `flush = "async"` lose messages. What is gone no retry brings back,
    so: not doubtful, rule 3 without a victim and with a new epoch; doubtful, rule 4.
 6. A batch's *limit* is the end of the producer's delivery timeout, or its own deadline if that is
    later. The limit of the first is over: if it is in flight or doubtful, rule 4; else rule 3.
    A deadline is over before that: its messages are told at once, *may have been stored* if it is
    in flight or doubtful, else *was not stored* (and it is REFUSED). One that has a number keeps
    its place until it is settled or its limit is over, so that a short deadline fails nobody else
    and what is behind is not stored ahead of it; one that has none, or loses it, is dropped.
 7. An empty lane moves to the producer's newest epoch, so that lanes share requests again. Under a
    name numbers go on over epochs, and the former one is fenced: once every answer is in, a lane
    moves with its window, numbers and all, and PRODUCER_FENCED of a former epoch is only RETRY.
    If the name was forgotten in between its numbers mean nothing: rule 5.
 8. QUEUES_CHANGED: the topic takes messages in other queues than it was chosen by. Any copy of it
    will be refused like that, so that it isn't stored and never will be, in doubt or not; nor
    what is behind it. Nothing new is sent (`freeze`); once every answer is in and nothing before
    it is in doubt, all goes back, in order, to who chooses queues (`withdraw`), and its numbers
    are given again.

Lanes are never dropped while their producer lives: about 2 KiB for each queue that was sent to.

Source: Kafka's idempotent producer (KIP-98, KIP-360), with the epoch given by the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum, auto
from itertools import chain
from typing import Final, NamedTuple

from dledger.client.epochs import Epochs
from dledger.client.errors import (
    ClientError,
    DeadlineExceeded,
    OutOfSequence,
    ProducerFenced,
    QueuesChanged,
    UnknownProducer,
)
from dledger.client.options import MAX_SENT_BATCHES
from dledger.client.results import SendResult
from dledger.outcome import Outcome

NO_DEADLINE: Final = float("inf")


class BatchState(Enum):
    """See the module's picture."""

    GATHERED = auto()
    IN_FLIGHT = auto()
    RETRY = auto()
    STORED = auto()
    REFUSED = auto()
    MOVED = auto()
    DEAD = auto()


_UNDISTURBED: Final = (BatchState.IN_FLIGHT, BatchState.STORED)
_FAILED: Final = (BatchState.RETRY, BatchState.REFUSED, BatchState.MOVED)


class Batch:
    """Messages that are sent, stored and judged together; the bytes never change."""

    __slots__ = (
        "base_sequence",
        "count",
        "deadline",
        "doubtful",
        "error",
        "fixed",
        "futures",
        "is_told",
        "limit",
        "records",
        "sent_first",
        "settled",
        "size",
        "sizes",
        "state",
    )

    def __init__(
        self,
        parts: list[bytes],
        futures: list[asyncio.Future[SendResult]],
        deadline: float,
        limit: float,
        fixed: tuple[int, ...] = (),
    ) -> None:
        self.records = b"".join(parts)
        self.size = len(self.records)
        self.sizes = list(map(len, parts))
        self.futures = futures
        self.count = len(futures)
        self.deadline = deadline
        self.limit = limit  # until when it keeps its place; the deadline at least
        self.fixed = fixed  # which of its messages name their queue themselves
        self.is_told = False  # its deadline was over before anything else was (rule 6)
        self.base_sequence = -1
        self.state = BatchState.GATHERED
        self.doubtful = False
        self.sent_first = False  # nothing before it was open when it was sent last
        self.error: ClientError | None = None
        self.settled: asyncio.Future[None] | None = None  # made by who waits (flush)

    @property
    def is_over(self) -> bool:
        """Whether its futures have been told."""
        return self.is_told or self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether it has left, or is about to."""
        return self.state in (BatchState.STORED, BatchState.DEAD)


class Failure(NamedTuple):
    """What the messages' futures of a batch are told, unless they were told before; it is over, or
    keeps its place for the sake of the others (rule 6)."""

    batch: Batch
    error: ClientError
    outcome: Outcome


class Lane:
    """One producer's way into one queue of one topic, which a later one of the name is not.
    `parts`, `futures` and `gathered_bytes` are the open gather; the producer fills it directly, as
    that is done once per message."""

    __slots__ = (
        "_epochs",
        "_failed",
        "_freed_sequence",
        "_needs_epoch",
        "_next_sequence",
        "_renumber",
        "epoch",
        "fixed",
        "futures",
        "gather_deadline",
        "gather_limit",
        "gathered_bytes",
        "incarnation",
        "is_frozen",
        "parts",
        "queue_id",
        "queues_changed",
        "ready",
        "timeout_s",
        "topic",
        "window",
    )

    def __init__(self, topic: str, queue_id: int, epochs: Epochs, *, incarnation: int = 0) -> None:
        self.topic = topic
        self.incarnation = incarnation
        self.queue_id = queue_id
        self.queues_changed = 0  # what its messages were chosen by (rule 8)
        self.is_frozen = False
        self.fixed: list[int] = []  # of the gather: which name their queue themselves
        self.parts: list[bytes] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.gathered_bytes = 0
        self.gather_deadline = NO_DEADLINE
        self.gather_limit = 0.0  # if that is later
        self.timeout_s: float | None = None  # of the gather's messages; None: the producer's
        self.ready: deque[Batch] = deque()  # sealed, without a number
        self.window: deque[Batch] = deque()  # with a number
        self.epoch = epochs.newest
        self._epochs = epochs
        self._next_sequence: int | None = None  # None: where the epoch's registration says
        self._renumber = False  # rule 3 waits for the last answers
        self._needs_epoch = False  # ... and the brokers know this one no longer
        self._freed_sequence: int | None = None  # ... of the first that was refused
        # What a rule says of batches is kept here at once, so that no later step of it can lose it.
        self._failed: list[Failure] = []

    # --- gathering ----------------------------------------------------------------------------

    def seal(self) -> None:
        """What was gathered is a batch now."""
        if not self.parts:
            return
        limit = max(self.gather_limit, self.gather_deadline)
        fixed = tuple(self.fixed)
        self.ready.append(Batch(self.parts, self.futures, self.gather_deadline, limit, fixed))
        self._forget_gather()

    def _forget_gather(self) -> None:
        self.parts, self.futures, self.fixed, self.gathered_bytes = [], [], [], 0
        self.gather_deadline, self.gather_limit = NO_DEADLINE, 0.0

    @property
    def is_empty(self) -> bool:
        """Nothing waits here for anything."""
        return not (self.parts or self.ready or self.window)

    @property
    def takes_more(self) -> bool:
        """Whether a batch sealed now could be sent now; if not, it may as well go on growing."""
        clean = all(batch.state in _UNDISTURBED for batch in self.window)
        return clean and len(self.window) + len(self.ready) < MAX_SENT_BATCHES

    @property
    def sending_epoch(self) -> int:
        """The epoch under which `take` would send (rule 7)."""
        stays = self.window and not self._epochs.name
        return self.epoch if stays else self._epochs.newest

    def batches(self) -> list[Batch]:
        """Every batch that is not over, in order."""
        return [*self.window, *self.ready]

    # --- sending ------------------------------------------------------------------------------

    def take(self, room_bytes: int) -> list[Batch]:
        """The batches to send now, in order; they are in flight from here on.

        Args:
            room_bytes: the most they may hold together.
        """
        taken: list[Batch] = []
        if not self._may_send():
            return taken
        if not self._is_of(self.sending_epoch):
            return taken
        for batch in self.window:
            if batch.state in (BatchState.REFUSED, BatchState.MOVED):
                return taken
            if batch.state is not BatchState.RETRY:
                continue
            if batch.size > room_bytes:
                return taken
            room_bytes -= batch.size
            batch.state = BatchState.IN_FLIGHT
            batch.sent_first = batch is self.window[0]
            taken.append(batch)
        while self.ready and len(self.window) < MAX_SENT_BATCHES and not self.is_frozen:
            if self.ready[0].size > room_bytes:
                break
            batch = self.ready.popleft()
            room_bytes -= batch.size
            self._number(batch)
            batch.sent_first = batch is self.window[0]
            taken.append(batch)
        return taken

    def _is_of(self, epoch: int) -> bool:
        """Whether what is taken now is of `epoch`: the lane has moved there (rule 7)."""
        if self.epoch != epoch and not self.window:
            self._begin_epoch()
        elif self.epoch != epoch:
            if any(batch.state is BatchState.IN_FLIGHT for batch in self.window):
                return False
            self.epoch = epoch
        return True

    def _may_send(self) -> bool:
        """Rule 1."""
        states = {batch.state for batch in self.window}
        failed = self._renumber or not states.isdisjoint(_FAILED)
        return not (failed and BatchState.IN_FLIGHT in states)

    def _number(self, batch: Batch) -> None:
        if self._next_sequence is None:
            place = (self.topic, self.queue_id, self.incarnation)
            self._next_sequence = self._epochs.first_sequence(self.epoch, *place)
        batch.base_sequence = self._next_sequence
        self._next_sequence += batch.count
        batch.state = BatchState.IN_FLIGHT
        self.window.append(batch)

    # --- answers ------------------------------------------------------------------------------

    def on_stored(self, batch: Batch) -> None:
        """`batch`, in flight, is stored; its futures are the caller's to resolve."""
        batch.state = BatchState.STORED

    def on_error(self, batch: Batch, error: ClientError) -> bool:
        """An attempt of `batch`, in flight, failed; `settle` draws the conclusions. Whether the
        batch will be sent again."""
        batch.error = error
        if isinstance(error, QueuesChanged):
            batch.doubtful = False
            batch.state = BatchState.MOVED
            return True
        if isinstance(error, UnknownProducer | OutOfSequence):
            again = self._is_worth_repeating(batch)
        elif isinstance(error, ProducerFenced):
            again = bool(self._epochs.name) and self.epoch != self._epochs.newest
            self._needs_epoch |= not again
        else:
            again = error.retriable
            batch.doubtful |= error.outcome is Outcome.MAY_HAVE_HAPPENED
        batch.state = BatchState.RETRY if again else BatchState.REFUSED
        return again

    def _is_worth_repeating(self, batch: Batch) -> bool:
        """Rule 5. The attempt itself was refused, whatever the error
        says of earlier ones."""
        if not batch.sent_first:  # requests may overtake each other on their way
            return True
        if not batch.doubtful:
            self._renumber = self._needs_epoch = True
        return not batch.doubtful

    def failures(self) -> list[Failure]:
        """What the rules have said since they were asked last, told once. Each rule returns this;
        of one that broke halfway it is what that had said by then. The last word on a batch that
        is over is the one that counts."""
        failed, self._failed = self._failed, []
        return list({failure.batch: failure for failure in failed}.values())

    def settle(self) -> list[Failure]:
        """Drops from the front of the window what is over; the batches that failed with it.
        Called after the batches of an answer were told of it."""
        self._settle()
        return self.failures()

    def _settle(self) -> None:
        while self.window:
            first = self.window[0]
            if first.state is BatchState.REFUSED:
                if first.error is None:
                    raise AssertionError("a refused batch has an error")
                if first.doubtful and not self._renumber:
                    self._break_off(first.error)
                    return
                self._free(first)
                self._over(first, first.error, Outcome.DID_NOT_HAPPEN)
            elif first.state is not BatchState.STORED:
                break
            self.window.popleft()
        if self._renumber and all(b.state is not BatchState.IN_FLIGHT for b in self.window):
            self._take_numbers_back()

    def expire(self, now: float) -> list[Failure]:
        """Fails what is past its limit, and tells of what is past its deadline (rule 6)."""
        self._expire(now)
        return self.failures()

    def _expire(self, now: float) -> None:
        while self.window and self.window[0].limit <= now:
            first = self.window[0]
            error = DeadlineExceeded(_overdue(first.error))
            if first.doubtful or first.state is BatchState.IN_FLIGHT:
                self._break_off(error)
                return
            first.error, first.state = error, BatchState.REFUSED
            self._settle()
        for batch in self.window:
            if _is_overdue(batch, now):
                self._tell(batch)
        self._settle()
        if self.gather_deadline <= now:
            self.seal()
        for batch in [batch for batch in self.ready if batch.deadline <= now]:
            error = DeadlineExceeded(_overdue(batch.error))
            self._over(batch, error, Outcome.DID_NOT_HAPPEN)
            self.ready.remove(batch)

    def _tell(self, batch: Batch) -> None:
        """Its deadline is over and its limit isn't: it keeps its place."""
        error: ClientError = DeadlineExceeded(_overdue(batch.error))
        outcome = Outcome.MAY_HAVE_HAPPENED
        if not (batch.doubtful or batch.state is BatchState.IN_FLIGHT):
            outcome = Outcome.DID_NOT_HAPPEN
            if batch.state in (BatchState.RETRY, BatchState.MOVED) or batch.error is None:
                batch.state, batch.error = BatchState.REFUSED, error
            error = batch.error
        self._failed.append(Failure(batch, error, outcome))
        batch.is_told = True

    def next_deadline(self) -> float:
        """When `expire` has something to do, on the clock of the deadlines given."""
        first = self.window[0].limit if self.window else NO_DEADLINE
        untold = (batch.deadline for batch in self.batches() if not batch.is_over)
        return min(chain(untold, (first, self.gather_deadline)))

    def break_off(self, error: ClientError) -> list[Failure]:
        """Fails everything here (rule 4): the first batch with `error`, the rest for its sake."""
        self._break_off(error)
        return self.failures()

    def _break_off(self, error: ClientError) -> None:
        self.seal()
        is_first = True
        for batch in chain(self.window, self.ready):
            if batch.has_ended:
                continue
            unknown = batch.doubtful or batch.state is BatchState.IN_FLIGHT
            outcome = Outcome.MAY_HAVE_HAPPENED if unknown else Outcome.DID_NOT_HAPPEN
            self._over(batch, error, outcome)
            if is_first:
                is_first = False
                error = OutOfSequence(
                    f"an earlier message to {self.topic}/{self.queue_id} failed: {error.message}"
                )
        self.window.clear()
        self.ready.clear()
        self._begin_epoch()

    def give_up(self, error: ClientError) -> None:
        """Fails everything here without a look at any rule: one of them has failed itself. What
        has a number may have been sent. It doesn't rely on any of them either: what was gathered
        isn't made a batch to be sent, as that may be what has failed. See `failures`."""
        if self.futures:
            gathered = Batch([], self.futures, NO_DEADLINE, NO_DEADLINE)
            gathered.size = self.gathered_bytes
            self.ready.append(gathered)
            self._forget_gather()
        for batch in chain(self.window, self.ready):
            if not batch.has_ended:
                is_sent = batch.base_sequence >= 0
                outcome = Outcome.MAY_HAVE_HAPPENED if is_sent else Outcome.DID_NOT_HAPPEN
                self._failed.append(Failure(batch, error, outcome))
                batch.state = BatchState.DEAD
        self.window.clear()
        self.ready.clear()
        self.is_frozen = False  # whoever would have thawed it may be who has failed
        self._go_on_from(self._next_sequence)  # no number is used again, whatever breaks next
        self._begin_epoch()

    # --- other queues -------------------------------------------------------------------------

    def freeze(self) -> None:
        """Nothing that has no number yet is sent (rule 8)."""
        self.is_frozen = True

    @property
    def is_quiet(self) -> bool:
        """Whether it is known of all that was sent whether it is stored: what is left isn't."""
        if any(batch.state is BatchState.IN_FLIGHT for batch in self.window):
            return False
        return not self.window or self.window[0].state is BatchState.MOVED

    def withdraw(self) -> tuple[list[Batch], list[Failure]]:
        """All that is left here, in order, to be sent another way; and what has failed meanwhile.
        The lane is quiet; it is empty then, and sends again."""
        self.seal()
        left: list[Batch] = []
        for batch in chain(self.window, self.ready):
            if batch.is_told or batch.state is BatchState.REFUSED:
                error = batch.error or DeadlineExceeded(_overdue(None))
                self._over(batch, error, Outcome.DID_NOT_HAPPEN)
            else:
                left.append(batch)
        if self.window:
            self._go_on_from(self.window[0].base_sequence)
        self.window.clear()
        self.ready.clear()
        self.is_frozen = False
        for batch in left:  # last: until here they are the lane's
            batch.state = BatchState.DEAD
        return left, self.failures()

    # --- epochs -------------------------------------------------------------------------------

    def _take_numbers_back(self) -> None:
        """Rule 3: what is left goes again, under other numbers; but for what was refused and told
        (rule 6), which only kept its place: nobody may find it stored after that."""
        freed = self._freed_sequence
        self._needs_epoch |= any(b.state is BatchState.STORED or b.doubtful for b in self.window)
        for batch in self.window:
            if batch.is_told and batch.state is BatchState.REFUSED:
                error = batch.error or DeadlineExceeded(_overdue(None))
                self._over(batch, error, Outcome.DID_NOT_HAPPEN)
        if self._needs_epoch or freed is None:
            self._begin_epoch()
        else:
            self._go_on_from(freed)
        while self.window:  # the newest first
            batch = self.window[-1]
            if not batch.has_ended:
                batch.state = BatchState.GATHERED
                batch.base_sequence = -1
                batch.doubtful = False
                self.ready.appendleft(batch)
            self.window.pop()

    def _free(self, refused: Batch) -> None:
        """Rule 3: the number of a batch that was not stored was never used. Of one that is in doubt
        a copy may come yet, and has it."""
        self._renumber = True
        self._needs_epoch |= refused.doubtful
        if self._freed_sequence is None:
            self._freed_sequence = refused.base_sequence

    def on_name_forgotten(self, error: ClientError) -> list[Failure]:
        """Rule 7: the name's numbers begin anew, so that those here mean nothing."""
        if any(b.doubtful or b.state is BatchState.IN_FLIGHT for b in self.window):
            self._break_off(error)
        elif self.window:
            self._needs_epoch = True
            self._take_numbers_back()
        return self.failures()

    def _begin_epoch(self) -> None:
        self.epoch = self._epochs.after(self.epoch)
        self._go_on_from(None)

    def _go_on_from(self, sequence: int | None) -> None:
        self._next_sequence = sequence
        self._renumber = self._needs_epoch = False
        self._freed_sequence = None

    def _over(self, batch: Batch, error: ClientError, outcome: Outcome) -> None:
        self._failed.append(Failure(batch, error, outcome))
        batch.state = BatchState.DEAD


def _is_overdue(batch: Batch, now: float) -> bool:
    return not batch.is_over and batch.deadline <= now


def _overdue(last: ClientError | None) -> str:
    if last is None:
        return "the delivery timeout is over"
    return f"the delivery timeout is over; the last attempt: {last.message}"
