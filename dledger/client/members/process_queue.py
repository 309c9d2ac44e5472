"""One queue that a member holds: from fetched to finished. Pure; RocketMQ calls it ProcessQueue.

    fetched      waits, in the queue's order
    behind       waits for an earlier message of its key (or, in order, of its queue)
    parked       its turn has come, and a handler of a former lease of ours is at work on it
    running      handed out
    returning    failed, on its way back to the brokers, who finish it here
    to be tried  failed; back when its pause is over, and behind its key if that is at work
    finished     see `dledger.client.members.finished`

    queue       on                               becomes
    held        asked for                        asked: nothing of it is handed out any more
    asked       gained again, the same epoch     held: nothing else has changed
    asked       released                         releasing: whatever comes, its epoch is over
    any         another epoch, lost, committed   gone: nothing of it can be committed
                with release

This owns what of one queue may be handed out next. It must never hand out what is finished, what
its member is still at work on from an earlier lease (in order: anything then), two messages of one
key at a time, or in order two of the queue, and it forgets nothing: what is fetched and not
finished is in exactly one of those places. A *failed* message leaves its key's order; in order, it
stays in front of its queue, which is suspended.

Bounds: so many messages and bytes are in memory, and so far may fetching be beyond the frontier.

A queue whose holders have vanished is worked on *carefully* (ADR 63): a message is handed out when
all before it is finished and committed, so that the log knows which one kills its process. The one
in front of them is *doubted*: `dledger.client.members.alone` has it be the only one in hand, of all
the member's queues, and the log told so before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from dledger.client.members.counted import Counted
from dledger.client.members.finished import Finished, Run
from dledger.client.results import Message

MOST_MESSAGES: Final = 1_000  # RocketMQ's pullThresholdForQueue
MOST_BYTES: Final = 100 << 20  # pullThresholdSizeForQueue
MOST_SPAN: Final = 2_000  # consumeConcurrentlyMaxSpan


class Place(NamedTuple):
    """A queue of a topic that may have been made anew."""

    topic: str
    incarnation: int
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


class Order(Enum):
    """What waits for what."""

    KEYS = "keys"  # messages of one key for each other
    QUEUE = "queue"  # each message for the one before it
    NONE = "none"  # nothing: they are taken as they come


class Held(Enum):
    """What a queue is to the member that has it."""

    HELD = "held"
    ASKED = "asked"
    RELEASING = "releasing"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of a queue may wait or be under way in memory."""

    messages: int = MOST_MESSAGES
    bytes: int = MOST_BYTES
    span: int = MOST_SPAN


class Work:
    """A message and whose it is; `failures` counts those of this member."""

    __slots__ = ("failures", "key", "message", "queue")

    def __init__(self, message: Message, queue: ProcessQueue, key: str | None) -> None:
        self.message = message
        self.queue = queue
        self.key = key
        self.failures = 0


class ProcessQueue:
    """What a member has of one queue.

    Args:
        epoch: of its lease; 0: a broadcast group's.
        finished: None: where to begin isn't known yet.
        order: of the whole queue: a failed message holds up the others.
        tags: only messages with one of these are handed out; None: all.
        counted: None: the log doesn't count failures.
        late: offsets at which handlers of former leases are still at work, here; `on_late_end`
            tells of each.
    """

    __slots__ = (
        *("_behind", "_fetched", "_in_order", "_late", "_order", "_parked", "_ready", "_tags"),
        *("asked_until", "at_work", "bounds"),
        *("careful_until", "committed", "counted", "epoch", "finished", "is_begun", "is_in_doubt"),
        *("is_pulled", "is_queued", "is_told", "is_tried", "max_offset", "may_be_released"),
        *("next_offset", "paused"),
        *("place", "rests_until", "returning"),
        *("state", "suspended_until", "waiting_bytes", "waiting_messages"),
    )

    def __init__(
        self,
        place: Place,
        epoch: int,
        finished: Finished | None,
        *,
        order: Order,
        tags: Collection[str] | None = None,
        bounds: Bounds,
        counted: Counted | None = None,
        late: Collection[int] = (),
    ) -> None:
        self.place = place
        self.epoch = epoch
        self.bounds = bounds
        self.state = Held.HELD
        self.finished: Finished = finished or Finished(0)
        self.next_offset = -1 if finished is None else finished.next_unfinished(finished.frontier)
        self.max_offset = 0  # as the leader last said
        # What the brokers know: what the lease began with, or the last commit that went through.
        self.committed: tuple[int, list[Run]] | None = None
        if finished is not None:
            self.committed = finished.name()
        self.counted = counted
        self.careful_until = 0  # the frontier to which each message is by itself
        if counted is not None and counted.is_careful:
            self.careful_until = counted.offset + bounds.span
        self.is_begun = False  # as the log was told of the message at the frontier
        self.is_tried = False  # the message of `counted`, by this lease
        # A commit may have happened whose answer was lost; and one that gave the queue up.
        self.is_in_doubt = self.may_be_released = False
        self.is_pulled = False  # a pull of it is under way
        self.is_queued = False  # in its member's line of queues that have something
        self.is_told = False  # that it goes, to the application; nothing was handed out since
        self.paused = False
        self.asked_until = 0.0
        self.rests_until = 0.0  # not pulled before
        self.suspended_until = 0.0  # in order: nothing is handed out before
        self.at_work: set[int] = set()  # offsets of what is handed out
        self.returning = 0
        self.waiting_messages = 0  # in memory, running ones too
        self.waiting_bytes = 0
        self._order = order
        self._in_order = order is Order.QUEUE
        self._tags = tags
        self._fetched: deque[Message] = deque()
        self._ready: deque[Work] = deque()  # their keys are theirs
        self._behind: dict[str, deque[Work] | None] = {}  # by key that is at work
        self._late = set(late)
        self._parked: dict[int, Work] = {}  # by offset, one of the late ones; their keys are theirs

    # --- fetching -----------------------------------------------------------------------------

    @property
    def is_located(self) -> bool:
        """Whether it is known where to begin."""
        return self.next_offset >= 0

    def locate(self, finished: Finished) -> None:
        """It begins there."""
        self.finished = finished
        self.next_offset = finished.next_unfinished(finished.frontier)

    @property
    def room(self) -> int:
        """How many more messages may be fetched."""
        if self.waiting_bytes >= self.bounds.bytes:
            return 0
        span = self.bounds.span - (self.next_offset - self.finished.frontier)
        return max(min(self.bounds.messages - self.waiting_messages, span), 0)

    @property
    def has_good_room(self) -> bool:
        """Whether a pull is worth it: half of what may wait, or nothing is there to be done."""
        room = self.room
        return room > 0 and (
            2 * room >= min(self.bounds.messages, self.bounds.span) or not self.waiting_messages
        )

    def on_fetched(self, messages: Sequence[Message], next_offset: int, max_offset: int) -> None:
        """A pull from `next_offset` on has brought these, and goes on at another one. What has no
        message there, no wanted tag, or was finished before, is passed over."""
        at, tags, finished = self.next_offset, self._tags, self.finished
        self.max_offset = max_offset
        may_be_finished = finished.has_runs
        for message in messages:
            offset = message.queue_offset
            if offset < at:
                continue  # handed over by an earlier answer
            if offset > at:
                finished.pass_over(at, offset)
            at = offset + 1
            if tags is not None and message.tags not in tags:
                finished.pass_over(offset, at)
            elif not may_be_finished or offset not in finished:
                self._fetched.append(message)
                self.waiting_messages += 1
                self.waiting_bytes += message.size
        if at < next_offset:
            finished.pass_over(at, next_offset)
        self.next_offset = finished.next_unfinished(max(at, next_offset, self.next_offset))

    def skip_to(self, offset: int) -> range:
        """What lies between has gone, and is passed over; which offsets those are."""
        skipped = range(self.next_offset, max(offset, self.next_offset))
        if skipped:
            self.finished.pass_over(skipped.start, skipped.stop)
            self.next_offset = self.finished.next_unfinished(skipped.stop)
        return skipped

    # --- handing out --------------------------------------------------------------------------

    def may_have_work(self, now: float) -> bool:
        """Whether `take` is worth a try."""
        if self.state is not Held.HELD or self.paused or not (self._ready or self._fetched):
            return False
        if self._late and (self._in_order or self.careful_until):
            return False
        if self.careful_until and not self._is_settled():
            return False
        return not self._in_order or (not self.at_work and now >= self.suspended_until)

    def _is_settled(self) -> bool:
        """Whether nothing of a queue that is worked on carefully is under way, or was finished and
        isn't committed."""
        if self.finished.frontier >= self.careful_until:
            self.careful_until = 0
            return True
        is_idle = not (self.at_work or self.returning)
        return is_idle and self.committed == self.finished.name()

    @property
    def is_doubted(self) -> bool:
        """Whether its next message is the one that it is worked on carefully for: it may kill who
        tries it, and hasn't been tried by this lease."""
        known = self.counted
        if known is None or not known.is_careful or known.is_given_up or self.is_tried:
            return False
        is_there = bool(self._ready or self._fetched)
        if self.paused or not is_there or known.offset < self.finished.frontier:
            return False
        following = self._ready[0].message if self._ready else self._fetched[0]
        return following.queue_offset == known.offset

    def _leaves(self, work: Work) -> None:
        """The message is in nobody's hand any more, and whoever had it lives."""
        offset = work.message.queue_offset
        self.at_work.discard(offset)
        if self.counted is not None and self.counted.offset == offset:
            self.is_tried = True

    def take(self, now: float) -> Work | None:
        """The next message that may be handed out; it runs from now on."""
        if not self.may_have_work(now):
            return None
        work = self._next()
        while self._late and work is not None and work.message.queue_offset in self._late:
            self._parked[work.message.queue_offset] = work
            work = self._next()
        if work is not None:
            self.at_work.add(work.message.queue_offset)
            self.is_told = False
        return work

    @property
    def running(self) -> int:
        """How many messages are handed out."""
        return len(self.at_work)

    def on_late_end(self, offset: int) -> None:
        """The handler of a former lease has ended, however: it may be handed out."""
        self._late.discard(offset)
        if (work := self._parked.pop(offset, None)) is not None:
            self._ready.appendleft(work)

    def _next(self) -> Work | None:
        return self._ready.popleft() if self._ready else self._next_fetched()

    def _next_fetched(self) -> Work | None:
        """The first one that no other is to be waited for; those before it go behind their keys."""
        while self._fetched:
            message = self._fetched.popleft()
            if self._in_order and (known := self.failures_of(message.queue_offset)):
                message = message._replace(reconsume_times=known)
            if self._order is not Order.KEYS:
                return Work(message, self, None)
            key = message.keys
            work = Work(message, self, key)
            if key is None or self._begin_key(work, key):
                return work
        return None

    def failures_of(self, offset: int) -> int:
        """How often the message there has failed, as far as the log has counted and told."""
        known = self.counted
        return known.failures if known is not None and known.offset == offset else 0

    def is_given_up(self, work: Work) -> bool:
        """Whether the message isn't to be tried, as it kills whoever does."""
        known = self.counted
        return known is not None and known.is_given_up and known.offset == work.message.queue_offset

    def _begin_key(self, work: Work, key: str, *, first: bool = False) -> bool:
        """Whether the key is `work`'s now; otherwise that waits for it."""
        if key not in self._behind:
            self._behind[key] = None
            return True
        line = self._behind[key]
        if line is None:
            line = self._behind[key] = deque()
        if first:
            line.appendleft(work)
        else:
            line.append(work)
        return False

    def _end_key(self, key: str) -> None:
        """The next one of the key may go."""
        line = self._behind[key]
        if line:
            self._ready.append(line.popleft())
        else:
            del self._behind[key]

    def put_back(self, work: Work) -> None:
        """It was handed out, and nobody has begun with it; it is the next one again."""
        self.at_work.discard(work.message.queue_offset)
        if self.state is not Held.GONE:
            self._ready.appendleft(work)

    def succeed(self, work: Work) -> None:
        """Its handler has returned."""
        self._leaves(work)
        if self.state is Held.GONE:
            return
        self.finished.finish(work.message.queue_offset)
        self.waiting_messages -= 1
        self.waiting_bytes -= work.message.size
        if work.key is not None:
            self._end_key(work.key)

    def fail(self, work: Work, resume_at: float) -> bool:
        """Its handler has raised. In order it stays in front, and the queue is suspended until
        then; otherwise true: `try_again` is to be called then."""
        self._leaves(work)
        work.failures += 1
        if work.key is not None and self.state is not Held.GONE:
            self._end_key(work.key)
        return self._stays(work, resume_at)

    def _stays(self, work: Work, resume_at: float) -> bool:
        """It is tried again here; as `fail` says."""
        tried = work.message.reconsume_times + 1
        work.message = work.message._replace(reconsume_times=tried)
        if self.state is Held.GONE:
            return False
        if self._in_order:
            self._ready.appendleft(work)
            self.suspended_until = resume_at
            return False
        return True

    def send_back(self, work: Work) -> None:
        """Its handler has raised, and the brokers are to take it. In order the queue waits until
        they have."""
        self._leaves(work)
        work.failures += 1
        self.returning += 1
        if self._in_order:
            self.suspended_until = float("inf")
        if work.key is not None:
            self._end_key(work.key)

    def on_sent_back(self, work: Work) -> None:
        """The brokers have it: they have finished it here."""
        if self.state is not Held.GONE:
            self._let_go(work)
            self.finished.settle(work.message.queue_offset)

    def on_given_up(self, work: Work) -> None:
        """Nobody can take it: it is finished, and the brokers don't know that."""
        if self.state is not Held.GONE:
            self._let_go(work)
            self.finished.finish(work.message.queue_offset)

    def _let_go(self, work: Work) -> None:
        self._end_return()
        self.waiting_messages -= 1
        self.waiting_bytes -= work.message.size

    def on_kept(self, work: Work, resume_at: float) -> bool:
        """They can't take it now; as after `fail`."""
        if self.state is not Held.GONE:
            self._end_return()
        return self._stays(work, resume_at)

    def on_counted(self, work: Work, failures: int, resume_at: float) -> None:
        """It stays in front of its queue, as the log says by whom so often it has failed there."""
        if self.state is Held.GONE:
            return
        self.counted = Counted(work.message.queue_offset, failures)
        self.on_kept(work, resume_at)
        work.message = work.message._replace(reconsume_times=failures)

    def _end_return(self) -> None:
        self.returning -= 1
        self.suspended_until = 0.0

    def try_again(self, work: Work) -> None:
        """Its pause is over; it is the next of its key."""
        if self.state is Held.GONE:
            return
        if work.key is None or self._begin_key(work, work.key, first=True):
            self._ready.append(work)

    def drop(self) -> None:
        """It is somebody else's."""
        self.state = Held.GONE
        self._fetched.clear()
        self._ready.clear()
        self._behind.clear()
        self._parked.clear()
        self.waiting_messages = self.waiting_bytes = 0

    def seek(self, finished: Finished) -> None:
        """It goes on elsewhere; what was fetched, or is in somebody's hand, is dropped."""
        self._fetched.clear()
        self._ready.clear()
        self._parked.clear()
        self.at_work.clear()
        self.waiting_messages = self.waiting_bytes = 0
        self.locate(finished)
