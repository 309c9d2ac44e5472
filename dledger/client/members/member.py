"""A member of a consumer group, as its client has to behave. Pure: it is told what happened when.

    member     on                            becomes
    out        a stream is there             joining: its Join goes out
    joining    Joined, its session           in; leases as before
    joining    Joined, another session       in; everything dropped
    in         Assignment                    in; see `dledger.client.members.process_queue`
    any        the stream broke              out; leases as before, nothing is started
    any        Ended, SESSION_ENDED          joining, with a fresh token; everything dropped
    any        Ended, another error          over; everything dropped
    any        Ended, without one            over: goodbye

This owns what may be handed out, pulled, committed and released. It must never hand out a message
of a queue that is asked for, lost, or of another epoch, one that a handler of its own is at work on
since an earlier lease, nor any message while it is not *in*, or the last answered heartbeat was
sent more than two thirds of a session ago: somebody else may have the queue by then. It commits
what is finished and nothing else, and it forgets no message: what it holds and hasn't finished is
handed out again, for ever.

Times are seconds of a clock that never goes back.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Final, NamedTuple

from dledger.client.errors import ClientError
from dledger.client.members.alone import Alone
from dledger.client.members.counted import Counted, counted_concurrently, counted_in_order
from dledger.client.members.finished import Finished, Run
from dledger.client.members.process_queue import Bounds, Held, Order, Place, ProcessQueue, Work
from dledger.client.members.stragglers import Stragglers
from dledger.client.options import RETRY_DELAYS_S

STARTABLE_SHARE: Final = 2 / 3  # of a session, since the last answered heartbeat was sent
RELEASE_SHARE: Final = 0.8  # of a hand-over's time: the rest is for the commit
MAX_QUEUES_A_CALL: Final = 1_024
MAX_RUNS_A_CALL: Final = 16_384  # of finished ones, over all queues of a commit


class Standing(Enum):
    """Where a member is."""

    OUT = "out"
    JOINING = "joining"
    IN = "in"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Times:
    """What the leader said with Joined, in seconds."""

    heartbeat_s: float = 3.0
    session_s: float = 10.0
    release_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What a member is told once.

    Attributes:
        order: of a queue's messages.
        broadcast: nothing is leased; where to begin in a queue is looked up.
        tags: by topic, those that are wanted; topics without any aren't there.
        delays_s: before each next attempt; the last one goes on for ever.
        suspend_s: the same in order, where the queue waits.
        max_attempts: in order, after so many a message is a dead letter; None: never.
    """

    order: Order = Order.KEYS
    broadcast: bool = False
    tags: Mapping[str, Collection[str]] = field(default_factory=dict)
    bounds: Bounds = field(default_factory=Bounds)
    delays_s: Sequence[float] = RETRY_DELAYS_S
    suspend_s: float = 1.0
    max_attempts: int | None = None

    def counted(self, frontier: int, failures: int | None) -> Counted | None:
        """What follows from how often the message at the frontier has failed, as a lease says;
        None: the log doesn't count. An application that commits by itself goes by its own."""
        if failures is None or self.broadcast or self.order is Order.NONE:
            return None
        if self.order is Order.QUEUE:
            return counted_in_order(frontier, failures, self.max_attempts)
        return counted_concurrently(frontier, failures)


class Progress(NamedTuple):
    """What is to be committed of a queue. `begun`: its next message is all that the member is at
    work on."""

    queue: ProcessQueue
    frontier: int
    runs: list[Run]
    release: bool
    begun: bool = False


def in_calls(progress: Iterable[Progress]) -> Iterator[list[Progress]]:
    """As many as one commit may hold."""
    call: list[Progress] = []
    runs = 0
    for each in progress:
        if len(call) == MAX_QUEUES_A_CALL or (call and runs + len(each.runs) > MAX_RUNS_A_CALL):
            yield call
            call, runs = [], 0
        call.append(each)
        runs += len(each.runs)
    if call:
        yield call


class Returned(NamedTuple):
    """A message that goes back to the brokers. `failed`: how often by now, as the log counts where
    the message is; 0: once more."""

    work: Work
    is_rejected: bool
    failed: int = 0


class Gained(NamedTuple):
    """What a lease changes: the queue, if the member has it only now, and what it had of it by an
    earlier lease, which is lost by that."""

    queue: ProcessQueue | None
    ended: ProcessQueue | None


class Line:
    """Queues that may have something to hand out, each once, in turns: of the topics whose
    handlers are of one kind."""

    __slots__ = ("queues",)

    def __init__(self) -> None:
        self.queues: deque[ProcessQueue] = deque()

    def add(self, queue: ProcessQueue) -> None:
        """It has something new."""
        if not queue.is_queued:
            queue.is_queued = True
            self.queues.append(queue)


class Member:
    """One member's state.

    Args:
        fresh_token: makes 8 random bytes.
        line_of: by topic, the line of its handlers.
    """

    def __init__(
        self, rules: Rules, fresh_token: Callable[[], bytes], line_of: Mapping[str, Line]
    ) -> None:
        self.rules = rules
        self.standing = Standing.OUT
        self.session = 0
        self.times = Times()
        self.error: ClientError | None = None  # why it is over
        self._gives_up_at: float | None = None  # when it is stopping: the queues with what runs
        self.queues: dict[Place, ProcessQueue] = {}
        self._fresh_token = fresh_token
        self.token = fresh_token()
        self._line_of = line_of
        self._proved_at = float("-inf")
        self._told: set[Place] = set()  # on this stream
        self.is_whole = False  # everything was told on this stream
        self.was_whole = False  # on any
        self._failed: list[tuple[float, int, Work]] = []
        self._numbers = count()
        self._stragglers = Stragglers()
        self._alone = Alone(self._others_run)
        self.lost = 0  # queues that were not given up by a commit of its own

    # --- the stream ---------------------------------------------------------------------------

    def on_stream(self) -> None:
        """There is a new one, on which it joins."""
        if self.standing is not Standing.OVER:
            self.standing = Standing.JOINING
            self._told, self.is_whole = set(), False

    def on_broken(self) -> None:
        """There is none any more; what is held may still be."""
        if self.standing is not Standing.OVER:
            self.standing = Standing.OUT

    def on_joined(self, session: int, times: Times, sent_at: float) -> None:
        """The brokers know it. `sent_at`: when the Join was."""
        if self.standing is not Standing.JOINING:
            return
        if session != self.session:
            self._drop_all()
        self.session, self.times, self.standing = session, times, Standing.IN
        self._proved_at = sent_at

    def on_answered(self, sent_at: float) -> None:
        """A heartbeat that was sent then."""
        self._proved_at = max(self._proved_at, sent_at)

    def on_ended(self, error: ClientError | None, *, join_anew: bool) -> None:
        """The session is over, or never began. `join_anew`: another one may be asked for."""
        self._drop_all()
        self.session = 0
        if join_anew:
            self.token = self._fresh_token()
            self.on_stream()
        else:
            self.standing, self.error = Standing.OVER, error

    def on_session_over(self) -> None:
        """A call was told so; what becomes of it the stream will say."""
        self._drop_all()
        self.on_broken()

    # --- leases -------------------------------------------------------------------------------

    def knows(self, topic: str) -> bool:
        """Whether anybody here works on this topic's messages."""
        return topic in self._line_of

    def on_gained(
        self,
        place: Place,
        epoch: int,
        frontier: int,
        runs: Iterable[Run],
        failures: int | None = None,
    ) -> Gained:
        """The queue is its own. `failures`: of the message at the frontier; None: the log doesn't
        count them."""
        self._told.add(place)
        held = self.queues.get(place)
        if held is not None and held.epoch >= epoch:
            # An older epoch is old news: of a leader that was deposed and hasn't heard of it.
            if held.epoch == epoch and held.state is Held.ASKED and not self.is_stopping:
                held.state = Held.HELD
                self._enqueue(held)
            return Gained(None, None)
        if held is not None:
            self._drop(held)
        if self.is_stopping:  # what it gives back may come again, until it has said goodbye
            return Gained(None, held)
        queue = ProcessQueue(
            place,
            epoch,
            None if self.rules.broadcast else Finished(frontier, runs),
            order=self.rules.order,
            tags=self.rules.tags.get(place.topic),
            bounds=self.rules.bounds,
            counted=self.rules.counted(frontier, failures),
            late=self._stragglers.of(place),
        )
        self.queues[place] = queue
        return Gained(queue, held)

    def on_asked(self, place: Place, now: float) -> ProcessQueue | None:
        """Another one is to have the queue; nothing of it is started any more."""
        self._told.add(place)
        queue = self.queues.get(place)
        if queue is None or queue.state is not Held.HELD:
            return None
        self._give_back(queue, now + RELEASE_SHARE * self.times.release_s)
        return queue

    def _give_back(self, queue: ProcessQueue, until: float) -> None:
        if queue.state is Held.HELD:
            queue.state, queue.asked_until = Held.ASKED, until

    def on_lost(self, place: Place, epoch: int | None = None) -> ProcessQueue | None:
        """Somebody else has it, or may. `epoch`: of the lease that is meant; None: any."""
        queue = self.queues.get(place)
        if queue is None or (epoch is not None and queue.epoch != epoch):
            return None
        self._drop(queue)
        return queue

    def on_whole(self) -> list[ProcessQueue]:
        """Everything was told: what wasn't is lost; which queues those are."""
        self.is_whole = self.was_whole = True
        lost = [queue for place, queue in self.queues.items() if place not in self._told]
        for queue in lost:
            self._drop(queue)
        return lost

    def _drop_all(self) -> None:
        for queue in list(self.queues.values()):
            self._drop(queue)

    def _drop(self, queue: ProcessQueue) -> None:
        self.lost += queue.state is not Held.RELEASING
        self._end(queue)
        self._failed = [entry for entry in self._failed if entry[2].queue is not queue]
        heapq.heapify(self._failed)

    def _end(self, queue: ProcessQueue) -> None:
        """Its lease is over. Whatever runs of it goes on, and is waited for if it comes back."""
        self._stragglers.stay(queue)
        queue.drop()
        if self.queues.get(queue.place) is queue:
            del self.queues[queue.place]

    def _on_late_end(self, work: Work) -> None:
        """What was at work of a lease that is over isn't any more."""
        self._stragglers.end(work)
        if (queue := self.queues.get(work.queue.place)) is not None:
            queue.on_late_end(work.message.queue_offset)
            self._enqueue(queue)

    # --- handing out --------------------------------------------------------------------------

    @property
    def is_stopping(self) -> bool:
        """Whether it gives everything back."""
        return self._gives_up_at is not None

    def may_start(self, now: float) -> bool:
        """Whether anything may be handed out, or pulled for that."""
        return now <= self.may_start_until()

    def may_start_until(self) -> float:
        """Until when, if nobody says otherwise."""
        if self.standing is not Standing.IN or self.is_stopping:
            return float("-inf")
        return self._proved_at + STARTABLE_SHARE * self.times.session_s

    def take(self, line: Line, now: float) -> Work | None:
        """The next message for a handler of this line; it runs from now on."""
        if not self.may_start(now):
            return None
        if self._failed and self._failed[0][0] <= now:
            self.wake(now)
        queues = line.queues
        while queues and self._alone.queue is None:
            queue = queues.popleft()
            queue.is_queued = False
            if queue.is_doubted and queue.may_have_work(now):
                line.add(queue)
                self._alone.begin(queue)
                break
            work = queue.take(now)
            if work is not None:
                if queue.may_have_work(now):
                    line.add(queue)
                return work
        return self._take_alone(line, now)

    def _take_alone(self, line: Line, now: float) -> Work | None:
        """The message that is tried while nothing else is in hand, if it is this line's."""
        queue = self._alone.queue
        if queue is None or self._line_of[queue.place.topic] is not line:
            return None
        return queue.take(now) if self._alone.may_begin else None

    def _others_run(self, queue: ProcessQueue) -> bool:
        """Whether a handler is at work on a message of any other queue, or of a lease that is
        over."""
        if self._stragglers.are_there:
            return True
        return any(other.at_work for other in self.queues.values() if other is not queue)

    @property
    def is_alone(self) -> bool:
        """Whether it has, or is to have, one message in hand and nothing else."""
        return self._alone.queue is not None

    @property
    def wants_commit(self) -> bool:
        """Whether the log is to be told what is tried alone, or that it isn't any more."""
        return self._alone.wants_commit

    def put_back(self, work: Work) -> None:
        """Nobody has begun with it."""
        work.queue.put_back(work)
        if work.queue.state is Held.GONE:
            self._on_late_end(work)
        self._enqueue(work.queue)

    def succeed(self, work: Work) -> None:
        """Its handler has returned."""
        work.queue.succeed(work)
        if work.queue.state is Held.GONE:
            self._on_late_end(work)
        elif not work.queue.is_queued:
            self._enqueue(work.queue)

    def fail(self, work: Work, now: float) -> float:
        """Its handler has raised; when it is tried again."""
        resume_at = now + self._pause_s(work)
        if work.queue.fail(work, resume_at) or work.queue.state is not Held.GONE:
            heapq.heappush(self._failed, (resume_at, next(self._numbers), work))
        else:
            self._on_late_end(work)
        self._enqueue(work.queue)
        return resume_at

    def send_back(self, work: Work, *, is_rejected: bool) -> Returned | None:
        """Its handler has raised: what is to be told the brokers; None: it stays here."""
        rules = self.rules
        if rules.broadcast or work.queue.state is Held.GONE:
            return None
        if rules.order is Order.QUEUE and not is_rejected:
            if work.queue.counted is not None:
                known = work.queue.failures_of(work.message.queue_offset)
                work.queue.send_back(work)
                return Returned(work, is_rejected=False, failed=known + 1)
            is_rejected = work.failures + 1 >= (rules.max_attempts or float("inf"))
            if not is_rejected:
                return None
        work.queue.send_back(work)
        return Returned(work, is_rejected)

    def give_up(self, work: Work) -> Returned:
        """What is to be told the brokers of a message that isn't to be tried, as it kills whoever
        does."""
        known = work.queue.failures_of(work.message.queue_offset)
        work.queue.send_back(work)
        return Returned(work, is_rejected=False, failed=known)

    def on_counted(self, work: Work, failures: int, now: float) -> None:
        """The brokers have counted that it failed; in order it is tried again in its place."""
        resume_at = now + self._pause_s(work)
        work.queue.on_counted(work, failures, resume_at)
        if work.queue.state is not Held.GONE:
            heapq.heappush(self._failed, (resume_at, next(self._numbers), work))
        self._enqueue(work.queue)

    def on_sent_back(self, work: Work) -> None:
        """The brokers have it."""
        work.queue.on_sent_back(work)
        self._enqueue(work.queue)

    def on_given_up(self, work: Work) -> None:
        """It has gone from the log, and isn't tried any more."""
        work.queue.on_given_up(work)
        self._enqueue(work.queue)

    def on_kept(self, work: Work, now: float) -> float:
        """The brokers can't take it now; when it is tried again here."""
        resume_at = now + self._pause_s(work)
        if work.queue.on_kept(work, resume_at) or work.queue.state is not Held.GONE:
            heapq.heappush(self._failed, (resume_at, next(self._numbers), work))
        self._enqueue(work.queue)
        return resume_at

    def _pause_s(self, work: Work) -> float:
        delays = self.rules.delays_s
        if self.rules.order is Order.QUEUE:
            return self.rules.suspend_s
        return delays[min(work.failures, len(delays) - 1)]

    def wake(self, now: float) -> None:
        """Whose pause is over is in line again."""
        while self._failed and self._failed[0][0] <= now:
            work = heapq.heappop(self._failed)[2]
            if self.rules.order is not Order.QUEUE:
                work.queue.try_again(work)
            self._enqueue(work.queue)

    @property
    def next_wake(self) -> float | None:
        """When the next pause is over."""
        return self._failed[0][0] if self._failed else None

    @property
    def retrying(self) -> int:
        """How many messages wait to be tried again."""
        return len(self._failed)

    def _enqueue(self, queue: ProcessQueue) -> None:
        if queue.state is Held.HELD:
            self._line_of[queue.place.topic].add(queue)

    # --- pulling ------------------------------------------------------------------------------

    def to_pull(self, now: float) -> list[ProcessQueue]:
        """Queues of which more is wanted."""
        if not self.may_start(now):
            return []
        return [queue for queue in self.queues.values() if self._is_wanted(queue, now)]

    def _is_wanted(self, queue: ProcessQueue, now: float) -> bool:
        return (
            queue.state is Held.HELD
            and queue.is_located
            and now >= queue.rests_until
            and queue.has_good_room
        )

    def on_pulled(self, queue: ProcessQueue) -> None:
        """It has something new, perhaps."""
        self._enqueue(queue)

    # --- commits and hand-overs ---------------------------------------------------------------

    @property
    def is_calm(self) -> bool:
        """Whether it holds its queues, and nothing of them is in memory: no time that passes
        changes anything."""
        return not self._failed and all(
            queue.state is Held.HELD and queue.is_located and not queue.waiting_messages
            for queue in self.queues.values()
        )

    def drained(self, now: float) -> list[ProcessQueue]:
        """Queues that are asked for, and of which nothing runs, or for too long."""
        return [
            queue
            for queue in self.queues.values()
            if queue.state is Held.ASKED
            and (not (queue.running or queue.returning) or now >= queue.asked_until)
        ]

    def tell(self, queues: Iterable[ProcessQueue]) -> None:
        """The application is told that they go, with all that was handed out until now."""
        for queue in queues:
            queue.is_told = True

    def release(self, queues: Collection[ProcessQueue], now: float) -> None:
        """Those that are drained, and of which nothing was handed out since that was told, go with
        the next commit; of one of which it isn't known where to begin there is nothing to be
        committed. One that was held again meanwhile is told of anew when it goes."""
        for queue in self.drained(now):
            if queue.is_told and queue in queues:
                queue.state = Held.RELEASING
                if not queue.is_located:
                    self._drop(queue)

    def stop(self, give_up_at: float) -> None:
        """Nothing is handed out any more, and everything is given back when it has been worked
        off, at the latest then."""
        self._gives_up_at = give_up_at
        for queue in self.queues.values():
            self._give_back(queue, give_up_at)

    def to_commit(self) -> list[Progress]:
        """What is finished and wasn't committed yet, and what is to be released."""
        if self.standing is Standing.OVER or not self.session:
            return []
        return list(self._progress())

    def _progress(self) -> Iterator[Progress]:
        for queue in self.queues.values():
            if not queue.is_located:
                continue
            release = queue.state is Held.RELEASING
            frontier, runs = queue.finished.name()
            begun = self._alone.begins(queue)
            if release or queue.committed != (frontier, runs) or queue.is_begun != begun:
                yield Progress(queue, frontier, runs, release, begun)

    def on_committed(self, progress: Progress) -> None:
        """The brokers have taken it."""
        queue = progress.queue
        queue.committed = (progress.frontier, progress.runs)
        queue.is_in_doubt = False
        queue.is_begun = progress.begun
        queue.finished.on_taken(progress.runs)
        if queue.careful_until:
            self._enqueue(queue)  # it waited for that
        if progress.release and self.queues.get(queue.place) is queue:
            self._end(queue)

    @property
    def running(self) -> int:
        """How many messages are handed out, of queues that are held."""
        return sum(queue.running for queue in self.queues.values())
