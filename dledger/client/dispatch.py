"""Gets gathered messages to the leader: when to send, how much, and what an answer means.

This owns a producer's lanes, its Send calls and their timing; the order and the fate of batches
belong to the lanes (`dledger.client.lane`), bounds and topics to the producer. Nothing here may
cost a task, timer, event or lock per message (ADR 10).

When the gathers are sent (self-clocking, as Nagle's algorithm and Kafka's linger):

    nothing in flight         on the next turn of the loop; one turn's sends share a batch
    something in flight       when an answer arrives, or `linger_ms` after the first message; as
                              that is longer than answers take, one Send is under way as a rule,
                              and what the brokers have to do doesn't grow with its delay
    ... and a message has a   within a quarter of that
    short deadline
    a gather reaches          at once
    `batch_bytes`

One Send carries batches of many queues; at most `max_inflight_requests` are under way. They go
to the leader that serves, to nobody while none does, and never to two nodes at a time: a newer
batch must not reach the next leader before an older one that is still in doubt at the last. After
a failure there is a pause (`dledger.client.pause`), unless word of another leader comes first.

No future is left pending past its delivery timeout, whatever fails here: an exception that nobody
foresaw costs its request another attempt, its lane what it holds, or everybody a pause
(`dledger.client.faults`), and the timer that ends what is overdue arms itself again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from dledger.client.broker_group import BrokerGroup
from dledger.client.connection import SEND, NodeLink
from dledger.client.epochs import Epochs
from dledger.client.errors import (
    Busy,
    ClientError,
    ClientFault,
    NotReady,
    QueueClosed,
    QueueNotFound,
    QueuesChanged,
    ServerError,
    TopicNotFound,
    TopicReplaced,
    Unavailable,
    from_wire,
)
from dledger.client.faults import contained, fault
from dledger.client.lane import NO_DEADLINE, Batch, BatchState, Failure, Lane
from dledger.client.options import (
    MAX_REQUEST_BYTES,
    MAX_SENT_BATCHES,
    ProducerOptions,
)
from dledger.client.pause import PAUSE_MIN_S, Pause
from dledger.client.registrar import Applicant, Registrar
from dledger.client.results import SendResult, stored_before
from dledger.limits import MAX_SEND_BATCHES
from dledger.outcome import Outcome
from dledger.wire import broker_pb2 as pb

COMPANY_SHARE = 0.25  # of its own deadline, that a message waits for company at most
Parcel = list[tuple[Lane, Batch]]  # the batches of one Send, in order
BatchError = tuple[Lane, Batch, ClientError]


@dataclass(frozen=True, slots=True)
class Sender:
    """How the producer is told what becomes of batches.

    Attributes:
        fail: a message's future gets this error.
        on_sealed: the lane's gather was closed.
        on_over: so many messages, of so many bytes together, are settled.
        on_place_gone: the lane's topic, or its queue, isn't what it was.
        on_queues_changed: the lane's topic takes messages in other queues.
    """

    fail: Callable[[asyncio.Future[SendResult], ClientError], None]
    on_sealed: Callable[[Lane], None]
    on_over: Callable[[int, int], None]
    on_place_gone: Callable[[Lane], None]
    on_queues_changed: Callable[[Lane], None]


class Dispatcher:
    """The lanes of one producer and the calls that empty them."""

    def __init__(self, broker_group: BrokerGroup, options: ProducerOptions, sender: Sender) -> None:
        self._broker_group = broker_group
        self._options = options
        self._sender = sender
        self._loop = asyncio.get_running_loop()
        self._batch_bytes = options.batch_bytes
        self._epochs = Epochs(options.name)
        self.registrar = Registrar(
            broker_group,
            self._epochs,
            options.delivery_timeout_ms / 1000,
            Applicant(self._on_name_forgotten, self._on_registration),
        )
        self._lanes: dict[tuple[str, int], Lane] = {}  # of the newest topic of each name
        self._active: dict[Lane, None] = {}  # lanes that hold anything, in order of arrival
        self._requests: dict[asyncio.Task[None], NodeLink] = {}
        self._flush_handle: asyncio.Handle | None = None
        self._flush_at = NO_DEADLINE  # when the handle is due
        self._expiry_handle: asyncio.Handle | None = None
        self._expiry_at = 0.0  # of the handle, which doesn't know it on every event loop
        self._pause = Pause(self._flush_gathers)
        self._failed_link: NodeLink | None = None
        self._closed = False
        self._moving: asyncio.Future[None] | None = None  # made by who waits for quiet lanes
        self.stored = self.failed = self.unknown = self.duplicates = 0  # messages
        self.requests = self.batches_retried = self.batches_busy = 0
        broker_group.listen(self._on_target_changed)

    @property
    def requests_in_flight(self) -> int:
        return len(self._requests)

    @property
    def told_early(self) -> int:
        """Messages that have failed and are still here, for the sake of the others' order."""
        held = (batch for lane in self._active for batch in lane.batches())
        return sum(batch.count for batch in held if batch.is_told)

    def lane(self, topic: str, queue_id: int, incarnation: int = 0) -> Lane:
        """A queue has one lane for as long as the producer and the topic live: its numbers must go
        on even if the topic is looked up again. A topic made anew has its own; what the old one's
        still holds is settled there, and nothing of it is sent to the new one."""
        lane = self._lanes.get((topic, queue_id))
        if lane is None or lane.incarnation < incarnation:
            lane = Lane(topic, queue_id, self._epochs, incarnation=incarnation)
            self._lanes[topic, queue_id] = lane
        return lane

    # --- other queues -------------------------------------------------------------------------

    def lanes_of(self, topic: str) -> list[Lane]:
        """Every lane of the newest topic of that name, by queue."""
        found = [lane for lane in self._lanes.values() if lane.topic == topic]
        return sorted(found, key=lambda lane: lane.queue_id)

    async def quieted(self, lanes: Iterable[Lane]) -> None:
        """Returns when it is known of all that these lanes, which are frozen, have sent whether it
        is stored. Each batch's limit ends that."""
        while not all(lane.is_quiet for lane in lanes):
            if self._moving is None or self._moving.done():
                self._moving = self._loop.create_future()
            await asyncio.wait([self._moving])

    def withdraw(self, lane: Lane) -> list[Batch]:
        """What is left in the lane, which is quiet, to be put into others."""
        left: list[Batch] = []

        def rule() -> list[Failure]:
            batches, failures = lane.withdraw()
            left.extend(batches)
            return failures

        self._judge(lane, rule)
        self._active.pop(lane, None)
        return left

    def put(self, lane: Lane, batch: Batch) -> None:
        """The batch, of messages that were accepted before, is sent behind all that is there. It is
        there at the end of this, or not at all."""
        lane.seal()
        self._arm_expiry(batch.deadline)
        self._active[lane] = None
        lane.ready.append(batch)

    def end(self, batch: Batch) -> None:
        """Its messages are in other batches: who waits for this one looks again."""
        batch.futures = []
        _wake(batch)

    def fail_message(self, batch: Batch, position: int, error: ClientError) -> None:
        """A message of a batch that was withdrawn isn't stored."""
        self._sender.fail(batch.futures[position], error.about_message(Outcome.DID_NOT_HAPPEN))
        self._sender.on_over(1, batch.sizes[position])
        self.failed += 1

    def break_off(self, lanes: Iterable[Lane], error: ClientError) -> None:
        """What these lanes hold fails."""
        for lane in lanes:
            lane.is_frozen = False
            self._judge(lane, partial(lane.break_off, error))
            self._active.pop(lane, None)

    def go_on(self) -> None:
        """What was put is sent."""
        self._flush_gathers()

    def _on_answers(self) -> None:
        """What is known of batches has changed."""
        if self._moving is not None and not self._moving.done():
            self._moving.set_result(None)

    # --- gathering ----------------------------------------------------------------------------

    def add(
        self,
        lane: Lane,
        record: bytes,
        future: asyncio.Future[SendResult],
        timeout_s: float | None = None,
    ) -> None:
        """`record` is sent with the lane's next batch. Runs once per message.

        Args:
            timeout_s: its own delivery timeout: it shares a batch with others of the same.
        """
        size = lane.gathered_bytes + len(record)
        if not lane.parts:
            self._begin_gather(lane, timeout_s)
        elif size > self._batch_bytes or lane.timeout_s != timeout_s:
            self._seal(lane)
            self._pump()
            self._begin_gather(lane, timeout_s)
            size = len(record)
        if self._flush_handle is None:  # first: where it fails, the message was not accepted
            self._schedule_flush()
        lane.gathered_bytes = size
        lane.parts.append(record)
        lane.futures.append(future)

    def add_waited(
        self,
        lane: Lane,
        record: bytes,
        future: asyncio.Future[SendResult],
        deadline: float,
        timeout_s: float | None = None,
        *,
        is_fixed: bool = False,
    ) -> None:
        """`add` for a message that has waited elsewhere already, and is due by `deadline`. With a
        timeout of its own it is a batch of its own: others have waited longer, or less.
        `is_fixed`: it names its queue itself."""
        self._arm_expiry(deadline)
        if timeout_s is not None:
            self._seal(lane)
        self.add(lane, record, future, timeout_s)
        if is_fixed:
            lane.fixed.append(len(lane.parts) - 1)
        lane.gather_deadline = min(lane.gather_deadline, deadline)
        if timeout_s is None:
            lane.gather_limit = min(lane.gather_limit, deadline)
        else:
            with contained("sealing", self._try_later):  # it is in the lane, and sent
                self._seal(lane)

    def seal_all(self) -> list[Batch]:
        """Sends what can be sent; every batch that is not over. What can't be made a batch fails,
        with all of its lane, so that it keeps nobody else's from being sent."""
        for lane in list(self._active):
            with contained("sealing", partial(self._give_up, lane)):
                self._seal(lane)
        self._pump()
        return [batch for lane in self._active for batch in lane.batches()]

    def _begin_gather(self, lane: Lane, timeout_s: float | None) -> None:
        limit = self.deadline(None)
        deadline = limit if timeout_s is None else self.deadline(timeout_s)
        self._arm_expiry(deadline)
        self._active[lane] = None
        lane.gather_deadline, lane.gather_limit, lane.timeout_s = deadline, limit, timeout_s
        if timeout_s is not None:
            self._hasten(COMPANY_SHARE * timeout_s)

    def deadline(self, timeout_s: float | None) -> float:
        """By when a message accepted now is settled, on the loop's clock.

        Args:
            timeout_s: its own; None: the producer's.
        """
        if timeout_s is None:
            timeout_s = self._options.delivery_timeout_ms / 1000
        return self._loop.time() + timeout_s

    def _schedule_flush(self) -> None:
        if self._requests:
            linger_s = self._options.linger_ms / 1000
            self._flush_at = self._loop.time() + linger_s
            self._flush_handle = self._loop.call_later(linger_s, self._flush_gathers)
        else:
            self._flush_at = self._loop.time()
            self._flush_handle = self._loop.call_soon(self._flush_gathers)

    def _hasten(self, within_s: float) -> None:
        """What is gathered is sent so soon: somebody has less time than to wait for company."""
        at = self._loop.time() + within_s
        if self._requests and within_s < self._options.linger_ms / 1000 and at < self._flush_at:
            if self._flush_handle is not None:
                self._flush_handle.cancel()
            self._flush_at = at
            self._flush_handle = self._loop.call_later(within_s, self._flush_gathers)

    def _flush_gathers(self) -> None:
        """Seals every gather that could be sent now, and sends."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle, self._flush_at = None, NO_DEADLINE
        failed: list[ClientFault] = []
        if len(self._requests) < self._options.max_inflight_requests:
            for lane in list(self._active):  # one that fails holds up no other one
                with contained("gathering", failed.append):
                    if lane.parts and lane.takes_more:
                        self._seal(lane)
        self._pump()
        for error in failed[:1]:  # behind that: in a pause nothing is sent
            self._try_later(error)

    def _seal(self, lane: Lane) -> None:
        lane.seal()
        with contained("turning to another queue"):
            self._sender.on_sealed(lane)

    def _try_later(self, _: ClientFault) -> None:
        """What failed is done again after a pause, as nobody else would ask for it."""
        self._hold_off(None)

    # --- requests -----------------------------------------------------------------------------

    def _pump(self) -> None:
        """Sends what is sealed, as far as leader and bounds allow."""
        target = self._broker_group.target
        if target is None or self._pause.lasts or self._closed:
            return
        if any(link is not target for link in self._requests.values()):
            return
        while len(self._requests) < self._options.max_inflight_requests:
            parcel: Parcel = []
            with contained("making a request", partial(self._on_unmade, parcel)):
                self._collect(parcel)
                if parcel:
                    # Now: until the task has its turn, a lane may have begun another epoch.
                    producer_id = self._epochs.producer_id(parcel[0][0].epoch)
                    task = self._loop.create_task(self._deliver(target, producer_id, parcel))
                    self._requests[task] = target
                    task.add_done_callback(partial(self._on_answered, target, parcel))
                    continue
            return

    def _on_unmade(self, parcel: Parcel, _: ClientFault) -> None:
        """The request was not made: its batches, still in order, are sent another time."""
        for lane, batch in parcel:
            lane.on_error(batch, NotReady("the request was not made"))
        self._hold_off(None)

    def _collect(self, parcel: Parcel) -> None:
        """The batches of the next request; all of one epoch, as a request names one id."""
        room = MAX_REQUEST_BYTES
        epoch = -1
        for lane in list(self._active):
            if len(parcel) > MAX_SEND_BATCHES - MAX_SENT_BATCHES:
                break
            if not self._epochs.is_registered(lane.sending_epoch):
                self.registrar.begin()
                continue
            if parcel and lane.sending_epoch != epoch:
                continue
            for batch in self._take(lane, room):
                epoch = lane.epoch
                room -= batch.size
                parcel.append((lane, batch))

    def _on_registration(self, error: ClientError | None) -> None:
        """The newest epoch can be sent under; or can't, and then nothing that waits for it."""
        if error is None:
            self._pause.forget()
            self._pause.end()
        elif error.retriable:
            self._hold_off(None)
        else:
            for lane in list(self._active):
                if not self._epochs.is_registered(lane.sending_epoch):
                    self._judge(lane, partial(lane.break_off, error))
                    self._active.pop(lane, None)
        self._on_answers()
        self._flush_gathers()

    def _on_name_forgotten(self, error: ClientError) -> None:
        self._on_answers()
        for lane in list(self._active):
            self._judge(lane, partial(lane.on_name_forgotten, error))
            if lane.is_empty:
                self._active.pop(lane, None)

    def _take(self, lane: Lane, room: int) -> list[Batch]:
        taken: list[Batch] = []
        with contained("taking batches", partial(self._give_up, lane)):
            taken += lane.take(room)
        return taken

    async def _deliver(self, link: NodeLink, producer_id: bytes, parcel: Parcel) -> None:
        """One Send and what its answer means."""
        asked = Outcome.DID_NOT_HAPPEN
        try:
            request = self._request(producer_id, parcel)
            self.requests += 1
            asked = Outcome.MAY_HAVE_HAPPENED
            answer = await link.call(SEND, request, self._options.request_timeout_ms / 1000)
            if len(answer.results) != len(parcel):
                raise ServerError(
                    f"{link.address} gave {len(answer.results)} results for {len(parcel)} batches",
                    outcome=asked,
                    retriable=True,
                )
            self._on_results(link, parcel, answer.results)
        except ClientError as error:
            self._on_failure(link, parcel, error)
        except Exception as error:  # noqa: BLE001 - a fault of ours costs an attempt
            again = fault("sending a request", error, asked, retriable=True)
            self._on_failure(link, parcel, again)

    def _request(self, producer_id: bytes, parcel: Parcel) -> pb.SendRequest:
        return pb.SendRequest(
            producer_id=producer_id,
            batches=[
                pb.SendBatch(
                    topic=lane.topic,
                    topic_incarnation=lane.incarnation,
                    queue_id=lane.queue_id,
                    base_sequence=batch.base_sequence,
                    count=batch.count,
                    records=batch.records,
                    queues_changed=lane.queues_changed,
                )
                for lane, batch in parcel
            ],
        )

    def _on_answered(self, link: NodeLink, parcel: Parcel, task: asyncio.Task[None]) -> None:
        del self._requests[task]
        if task.cancelled() and not self._closed:  # by who cancels all, perhaps before it began
            text = "the request was cancelled"
            self._on_failure(link, parcel, Unavailable(text, outcome=Outcome.MAY_HAVE_HAPPENED))
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, Exception):
                raise error
            fault("taking an answer", error)
        self._on_answers()
        if not self._closed:
            self._flush_gathers()

    # --- answers ------------------------------------------------------------------------------

    def _on_results(self, link: NodeLink, parcel: Parcel, results: Iterable[pb.SendResult]) -> None:
        errors: list[BatchError] = []
        for (lane, batch), result in zip(parcel, results, strict=True):
            if result.HasField("error"):
                errors.append((lane, batch, from_wire(result.error)))
            elif batch.state is BatchState.IN_FLIGHT:
                lane.on_stored(batch)
                with contained("telling results", partial(self._on_untold, batch)):
                    self._on_stored(lane, batch, result)
        if len(errors) < len(parcel) and not any(isinstance(e, Busy) for _, _, e in errors):
            self._pause.forget()  # room for some is no reason to ask for more any sooner
        self._settle(lane for lane, _ in parcel)
        if errors:
            self._on_errors(link, errors)

    def _on_failure(self, link: NodeLink, parcel: Parcel, error: ClientError) -> None:
        """Whatever of the request has no answer yet has got this one."""
        self._on_errors(link, [(lane, batch, error) for lane, batch in parcel])

    def _on_errors(self, link: NodeLink, errors: list[BatchError]) -> None:
        """Tells the lanes first: a change of target below may send at once."""
        before = self.batches_retried
        for lane, batch, error in errors:
            # Whom this forgot would be in flight for ever, with nothing on its way.
            with contained("taking an error", partial(self._give_up, lane)):
                if batch.state is BatchState.IN_FLIGHT:
                    self._on_error(link, lane, batch, error)
        self._settle(lane for lane, _, _ in errors)
        if self.batches_retried > before:
            self._hold_off(link)
        self._broker_group.on_refused(link, errors[-1][2])

    def _on_error(self, link: NodeLink, lane: Lane, batch: Batch, error: ClientError) -> None:
        """Of one batch, in flight."""
        self._broker_group.judge(link, error)
        if isinstance(error, QueuesChanged) and self._is_of_old(lane):
            # Nobody moves what is of a topic that was made anew since; and no copy is stored.
            batch.doubtful = False
            error = TopicReplaced(f"topic {lane.topic!r} was made anew")
        self.batches_retried += lane.on_error(batch, error)
        self.batches_busy += isinstance(error, Busy)
        if isinstance(error, QueuesChanged):
            with contained("looking for other queues"):
                self._sender.on_queues_changed(lane)
        elif isinstance(error, TopicNotFound | TopicReplaced | QueueNotFound | QueueClosed):
            with contained("forgetting a topic"):
                self._sender.on_place_gone(lane)

    def _is_of_old(self, lane: Lane) -> bool:
        return self._lanes.get((lane.topic, lane.queue_id)) is not lane

    def _on_stored(self, lane: Lane, batch: Batch, result: pb.SendResult) -> None:
        """Resolves a batch's futures: the one loop that runs per message on the way back."""
        if batch.is_told:
            self._end(batch)
            return
        if result.place_forgotten:
            self._on_stored_long_ago(lane, batch)
            return
        topic, queue_id = lane.topic, lane.queue_id
        offset, physical = result.base_queue_offset, result.base_physical_offset
        time_ms, host, duplicate = result.store_time_ms, result.store_host, result.duplicate
        make = tuple.__new__
        for future, size in zip(batch.futures, batch.sizes, strict=True):
            if not future.done():  # its caller may have cancelled it
                fields = (topic, queue_id, offset, physical, time_ms, host, duplicate)
                future.set_result(make(SendResult, fields))
            offset += 1
            physical += size
        self.stored += batch.count
        if duplicate:
            self.duplicates += batch.count
        self._end(batch)

    def _on_stored_long_ago(self, lane: Lane, batch: Batch) -> None:
        """Resolves a batch's futures whose places the brokers don't remember."""
        for future in batch.futures:
            if not future.done():
                future.set_result(stored_before(lane.topic, lane.queue_id))
        self.stored += batch.count
        self.duplicates += batch.count
        self._end(batch)

    def _on_untold(self, batch: Batch, error: ClientFault) -> None:
        self._fail([Failure(batch, error, Outcome.MAY_HAVE_HAPPENED)])

    def _settle(self, lanes: Iterable[Lane]) -> None:
        for lane in dict.fromkeys(lanes):
            self._judge(lane, lane.settle)
            if lane.is_empty:
                self._active.pop(lane, None)

    def _judge(self, lane: Lane, rule: Callable[[], list[Failure]]) -> None:
        """Fails what `rule` of the lane says. A rule that can't say must not keep it waiting."""
        failures: list[Failure] = []
        with contained("judging batches", partial(self._give_up, lane)):
            failures += rule()
        self._fail(failures)

    def _give_up(self, lane: Lane, error: ClientFault) -> None:
        """The lane's own rules have failed: what it holds fails, each with what is known, and so
        does what they had given up by then."""
        with contained("giving up"):
            lane.give_up(error)
        self._fail(lane.failures())
        if lane.is_empty:
            self._active.pop(lane, None)

    def _fail(self, failures: list[Failure]) -> None:
        for failure in failures:
            self._tell(failure)
            if failure.batch.has_ended:
                self._end(failure.batch)

    def _tell(self, failure: Failure) -> None:
        """The batch's messages have failed, and their callers hear of it, once."""
        batch, error, outcome = failure
        futures, batch.futures = batch.futures, []
        for future in futures:
            with contained("telling of a failure", partial(_last_word, future)):
                self._sender.fail(future, error.about_message(outcome))
        if outcome is Outcome.DID_NOT_HAPPEN:
            self.failed += len(futures)
        else:
            self.unknown += len(futures)
        _wake(batch)

    def _end(self, batch: Batch) -> None:
        batch.futures = []
        _wake(batch)
        self._sender.on_over(batch.count, batch.size)

    # --- pauses and deadlines -----------------------------------------------------------------

    def _hold_off(self, link: NodeLink | None) -> None:
        """No sends for a moment, unless word comes of another leader than `link`."""
        self._failed_link = link
        if not self._closed:
            self._pause.begin()

    def _on_target_changed(self) -> None:
        if self._broker_group.target is not self._failed_link:
            self._pause.forget()
            self._pause.end()
        self._flush_gathers()

    def _arm_expiry(self, deadline: float) -> None:
        """One timer for all batches. Deadlines grow, but for those of messages that had to wait
        until their topic was known."""
        if self._expiry_handle is not None:
            if self._expiry_at <= deadline:
                return
            self._expiry_handle.cancel()
        self._expiry_at = deadline
        self._expiry_handle = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._expiry_handle = None
        now = self._loop.time()
        with contained("ending what is overdue"):
            for lane in list(self._active):
                over = self.failed + self.unknown
                self._judge(lane, partial(lane.expire, now))
                if self.failed + self.unknown > over:  # perhaps the brokers know of no such place
                    self._sender.on_place_gone(lane)
                if lane.is_empty:
                    self._active.pop(lane, None)
        if self._active:
            soonest = min(lane.next_deadline() for lane in self._active)
            self._arm_expiry(max(soonest, now + PAUSE_MIN_S))
        self._on_answers()
        self._flush_gathers()

    async def abort(self, error: ClientError) -> None:
        """Fails with `error` whatever is not over, and ends every call and timer."""
        self._closed = True
        self._broker_group.unlisten(self._on_target_changed)
        self._pause.end()
        for handle in (self._flush_handle, self._expiry_handle):
            if handle is not None:
                handle.cancel()
        for lane in list(self._active):
            with contained("breaking off"):
                self._judge(lane, partial(lane.break_off, error))
        self._active.clear()
        await self.registrar.abort()
        if self._requests:
            for task in self._requests:
                task.cancel()
            await asyncio.wait(list(self._requests))


def _last_word(future: asyncio.Future[SendResult], error: ClientFault) -> None:
    """The caller hears at least that nobody could say what became of the message."""
    if not future.done():
        future.set_exception(error.about_message(Outcome.MAY_HAVE_HAPPENED))


def _wake(batch: Batch) -> None:
    """Who waits for the batch (flush) goes on."""
    if batch.settled is not None and not batch.settled.done():
        batch.settled.set_result(None)
