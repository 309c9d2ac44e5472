"""Gets gathered messages to the leader: when to send, how much, and what an answer means.

This owns a producer's lanes, its Send calls and their timing; the order and the fate of batches
belong to the lanes (`dledger.client.lane`), bounds and topics to the producer. Nothing here may
cost a task, timer, event or lock per message (D10).

When the gathers are sent (self-clocking, as Nagle's algorithm and Kafka's linger):

    nothing in flight         on the next turn of the loop; one turn's sends share a batch
    something in flight       when an answer arrives, or `linger_ms` after the first message
    a gather reaches          at once
    `batch_bytes`

One Send carries batches of many queues; at most `max_inflight_requests` are under way. They go
to the leader that serves, to nobody while none does, and never to two nodes at a time: a newer
batch must not reach the next leader before an older one that is still in doubt at the last. After
a failure there is a pause (5 ms, doubling to 500 ms, jittered), unless word of another leader
comes first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from dledger.client.connection import SEND, NodeLink
from dledger.client.errors import ClientError, QueueNotFound, ServerError, TopicNotFound, from_wire
from dledger.client.group import Group
from dledger.client.lane import Batch, BatchState, Epochs, Failure, Lane
from dledger.client.options import (
    MAX_REQUEST_BATCHES,
    MAX_REQUEST_BYTES,
    MAX_SENT_BATCHES,
    ProducerOptions,
)
from dledger.client.results import SendResult
from dledger.outcome import Outcome
from dledger.wire import broker_pb2 as pb

PAUSE_MIN_S: Final = 0.005
PAUSE_MAX_S: Final = 0.5

Parcel = list[tuple[Lane, Batch]]  # the batches of one Send, in order
BatchError = tuple[Lane, Batch, ClientError]


@dataclass(frozen=True, slots=True)
class Sender:
    """How the producer is told what becomes of batches.

    Attributes:
        on_sealed: the lane's gather was closed.
        on_over: so many messages, of so many bytes together, are settled.
        on_place_gone: the topic, or a queue of it, isn't what it was.
    """

    on_sealed: Callable[[Lane], None]
    on_over: Callable[[int, int], None]
    on_place_gone: Callable[[str], None]


class Dispatcher:
    """The lanes of one producer and the calls that empty them."""

    def __init__(self, group: Group, options: ProducerOptions, sender: Sender) -> None:
        self._group = group
        self._options = options
        self._sender = sender
        self._loop = asyncio.get_running_loop()
        self._batch_bytes = options.batch_bytes
        self._epochs = Epochs()
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._active: dict[Lane, None] = {}  # lanes that hold anything, in order of arrival
        self._requests: dict[asyncio.Task[None], NodeLink] = {}
        self._flush_handle: asyncio.Handle | None = None
        self._expiry_handle: asyncio.TimerHandle | None = None
        self._pause_handle: asyncio.TimerHandle | None = None
        self._pause_s = 0.0
        self._failed_link: NodeLink | None = None
        self._closed = False
        self.stored = self.failed = self.unknown = self.duplicates = 0  # messages
        self.requests = self.batches_retried = 0
        group.listen(self._on_target_changed)

    @property
    def requests_in_flight(self) -> int:
        return len(self._requests)

    def lane(self, topic: str, queue_id: int) -> Lane:
        """A queue has one lane for as long as the producer lives: its numbers must go on even if
        the topic is looked up again."""
        lane = self._lanes.get((topic, queue_id))
        if lane is None:
            lane = self._lanes[topic, queue_id] = Lane(topic, queue_id, self._epochs)
        return lane

    # --- gathering ----------------------------------------------------------------------------

    def add(self, lane: Lane, record: bytes, future: asyncio.Future[SendResult]) -> None:
        """`record` is sent with the lane's next batch. Runs once per message."""
        size = lane.gathered_bytes + len(record)
        if not lane.parts:
            self._begin_gather(lane)
        elif size > self._batch_bytes:
            self._seal(lane)
            self._pump()
            self._begin_gather(lane)
            size = len(record)
        lane.gathered_bytes = size
        lane.parts.append(record)
        lane.futures.append(future)
        if self._flush_handle is None:
            self._schedule_flush()

    def seal_all(self) -> list[Batch]:
        """Sends what can be sent; every batch that is not over."""
        for lane in self._active:
            self._seal(lane)
        self._pump()
        return [batch for lane in self._active for batch in lane.batches()]

    def _begin_gather(self, lane: Lane) -> None:
        self._active[lane] = None
        lane.gather_deadline = self._loop.time() + self._options.delivery_timeout_ms / 1000
        self._arm_expiry(lane.gather_deadline)

    def _schedule_flush(self) -> None:
        if self._requests:
            linger_s = self._options.linger_ms / 1000
            self._flush_handle = self._loop.call_later(linger_s, self._flush_gathers)
        else:
            self._flush_handle = self._loop.call_soon(self._flush_gathers)

    def _flush_gathers(self) -> None:
        """Seals every gather that could be sent now, and sends."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if len(self._requests) < self._options.max_inflight_requests:
            for lane in self._active:
                if lane.parts and lane.takes_more:
                    self._seal(lane)
        self._pump()

    def _seal(self, lane: Lane) -> None:
        lane.seal()
        self._sender.on_sealed(lane)

    # --- requests -----------------------------------------------------------------------------

    def _pump(self) -> None:
        """Sends what is sealed, as far as leader and bounds allow."""
        target = self._group.target
        if target is None or self._pause_handle is not None or self._closed:
            return
        if any(link is not target for link in self._requests.values()):
            return
        while len(self._requests) < self._options.max_inflight_requests:
            parcel = self._collect()
            if not parcel:
                return
            task = self._loop.create_task(self._deliver(target, parcel))
            self._requests[task] = target
            task.add_done_callback(self._on_answered)

    def _collect(self) -> Parcel:
        """The batches of the next request; all of one epoch, as a request names one id."""
        parcel: Parcel = []
        room = MAX_REQUEST_BYTES
        epoch = -1
        for lane in self._active:
            if len(parcel) > MAX_REQUEST_BATCHES - MAX_SENT_BATCHES:
                break
            if parcel and lane.sending_epoch != epoch:
                continue
            for batch in lane.take(room):
                epoch = lane.epoch
                room -= batch.size
                parcel.append((lane, batch))
        return parcel

    async def _deliver(self, link: NodeLink, parcel: Parcel) -> None:
        """One Send and what its answer means."""
        request = self._request(parcel)
        self.requests += 1
        try:
            answer = await link.call(SEND, request, self._options.request_timeout_ms / 1000)
            if len(answer.results) != len(parcel):
                raise ServerError(
                    f"{link.address} gave {len(answer.results)} results for {len(parcel)} batches",
                    outcome=Outcome.MAY_HAVE_HAPPENED,
                    retriable=True,
                )
        except ClientError as error:
            self._on_errors(link, [(lane, batch, error) for lane, batch in parcel])
        else:
            self._on_results(link, parcel, answer.results)

    def _request(self, parcel: Parcel) -> pb.SendRequest:
        return pb.SendRequest(
            producer_id=self._epochs.producer_id(parcel[0][0].epoch),
            batches=[
                pb.SendBatch(
                    topic=lane.topic,
                    queue_id=lane.queue_id,
                    base_sequence=batch.base_sequence,
                    count=batch.count,
                    records=batch.records,
                )
                for lane, batch in parcel
            ],
        )

    def _on_answered(self, task: asyncio.Task[None]) -> None:
        del self._requests[task]
        if not self._closed:
            self._flush_gathers()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error  # a fault of ours: the loop's exception handler tells of it

    # --- answers ------------------------------------------------------------------------------

    def _on_results(self, link: NodeLink, parcel: Parcel, results: Iterable[pb.SendResult]) -> None:
        errors: list[BatchError] = []
        for (lane, batch), result in zip(parcel, results, strict=True):
            if result.HasField("error"):
                errors.append((lane, batch, from_wire(result.error)))
            elif batch.state is BatchState.IN_FLIGHT:
                lane.on_stored(batch)
                self._on_stored(lane, batch, result)
        if len(errors) < len(parcel):
            self._pause_s = 0.0
        self._settle(lane for lane, _ in parcel)
        if errors:
            self._on_errors(link, errors)

    def _on_errors(self, link: NodeLink, errors: list[BatchError]) -> None:
        """Tells the lanes first: a change of target below may send at once."""
        before = self.batches_retried
        for lane, batch, error in errors:
            if batch.state is not BatchState.IN_FLIGHT:
                continue
            self.batches_retried += lane.on_error(batch, error)
            if isinstance(error, TopicNotFound | QueueNotFound):
                self._sender.on_place_gone(lane.topic)
        self._settle(lane for lane, _, _ in errors)
        if self.batches_retried > before:
            self._pause(link)
        self._group.on_refused(link, errors[-1][2])

    def _on_stored(self, lane: Lane, batch: Batch, result: pb.SendResult) -> None:
        """Resolves a batch's futures: the one loop that runs per message on the way back."""
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

    def _settle(self, lanes: Iterable[Lane]) -> None:
        for lane in dict.fromkeys(lanes):
            self._fail(lane.settle())
            if lane.is_empty:
                self._active.pop(lane, None)

    def _fail(self, failures: list[Failure]) -> None:
        for batch, error, outcome in failures:
            for future in batch.futures:
                fail_quietly(future, error.about_message(outcome))
            if outcome is Outcome.DID_NOT_HAPPEN:
                self.failed += batch.count
            else:
                self.unknown += batch.count
            self._end(batch)

    def _end(self, batch: Batch) -> None:
        batch.futures = []
        if batch.settled is not None and not batch.settled.done():
            batch.settled.set_result(None)
        self._sender.on_over(batch.count, batch.size)

    # --- pauses and deadlines -----------------------------------------------------------------

    def _pause(self, link: NodeLink) -> None:
        """No sends for a moment: what was refused would be refused again."""
        self._failed_link = link
        self._pause_s = min(max(2 * self._pause_s, PAUSE_MIN_S), PAUSE_MAX_S)
        if self._pause_handle is None and not self._closed:
            wait_s = self._pause_s * random.uniform(0.5, 1.0)
            self._pause_handle = self._loop.call_later(wait_s, self._resume)

    def _resume(self) -> None:
        if self._pause_handle is not None:
            self._pause_handle.cancel()
            self._pause_handle = None
        self._flush_gathers()

    def _on_target_changed(self) -> None:
        if self._group.target is not self._failed_link:
            self._pause_s = 0.0
            self._resume()
        else:
            self._flush_gathers()

    def _arm_expiry(self, deadline: float) -> None:
        """One timer for all batches. Deadlines only grow, so the armed one is the earliest."""
        if self._expiry_handle is None:
            self._expiry_handle = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._expiry_handle = None
        now = self._loop.time()
        for lane in list(self._active):
            self._fail(lane.expire(now))
            if lane.is_empty:
                del self._active[lane]
        if self._active:
            self._arm_expiry(min(lane.next_deadline() for lane in self._active))
        self._flush_gathers()

    async def abort(self, error: ClientError) -> None:
        """Fails with `error` whatever is not over, and ends every call and timer."""
        self._closed = True
        self._group.unlisten(self._on_target_changed)
        for handle in (self._flush_handle, self._expiry_handle, self._pause_handle):
            if handle is not None:
                handle.cancel()
        for lane in self._active:
            self._fail(lane.break_off(error))
        self._active.clear()
        if self._requests:
            for task in self._requests:
                task.cancel()
            await asyncio.wait(list(self._requests))


def fail_quietly(future: asyncio.Future[SendResult], error: ClientError) -> None:
    """Sets the exception and marks it as seen: a caller who drops the future has chosen not to
    know, and asyncio's report of every dropped future would bury the log."""
    if not future.done():
        future.set_exception(error)
        future.exception()
