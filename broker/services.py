"""The Broker and Cluster services: what each call checks, waits for, and answers.

This turns requests into calls on the leader's parts (Appender, QueueReader, HeldPulls) and on
the driver, and waits without holding anything but a future. It owns no state of its own but the
list of leader watchers. Reads that claim to be linearizable (queue offsets, committed offsets)
go through ReadIndex; pulls are served by a leader that has committed in its term, from applied
entries.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from broker.append import Appender
from broker.budget import ByteBudget
from broker.errors import BrokerError, refused
from broker.leadership import Leadership
from broker.reads import DEFAULT_BYTES, Found, HeldPulls, QueueReader
from broker.rpc import Context
from broker.state.refusals import TopicExists
from dledger.core.errors import ReadRefused
from dledger.core.types import NodeId
from dledger.records.errors import InvalidRecord
from dledger.records.record import TOPIC_PATTERN, parse_message_id
from dledger.wire import broker_pb2 as pb
from dledger.wire import cluster_pb2 as cpb
from dledger.wire import commands_pb2 as kpb
from dledger.wire import errors_pb2 as epb
from store.errors import CorruptionFound

if TYPE_CHECKING:
    from broker.node import Node

T = TypeVar("T")
ABSENCES = (
    epb.TOPIC_NOT_FOUND,
    epb.QUEUE_NOT_FOUND,
    epb.OFFSET_OUT_OF_RANGE,
    epb.UNKNOWN_PRODUCER,
    epb.OUT_OF_SEQUENCE,
)
DEFAULT_QUEUES = 4
MAX_QUEUES = 1_024
GROUP_PATTERN = re.compile(r"[A-Za-z0-9_%-]{1,255}")
MAX_OFFSETS_IN_COMMIT = MAX_QUEUES
REQUEST_BYTES = 64 << 20  # over all Sends that wait for their commit
ANSWER_BYTES = 32 << 20  # over all pulls whose clients have not read the answer


class BrokerService:
    """Handlers of `dledger.v1.Broker`, named as `broker.rpc` looks them up."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.requests = ByteBudget(REQUEST_BYTES, "messages on their way into the log")
        self.answers = ByteBudget(ANSWER_BYTES, "pulled messages that were not read yet")

    @property
    def _leadership(self) -> Leadership:
        return self._node.leadership

    @property
    def _appender(self) -> Appender:
        return self._node.appender

    @property
    def _reader(self) -> QueueReader:
        return self._node.reader

    @property
    def _held(self) -> HeldPulls:
        return self._node.held

    # --- messages -----------------------------------------------------------------------------

    async def send(self, request: pb.SendRequest, context: Context) -> pb.SendResponse:
        self._leadership.check_serving()
        self._leadership.check_writable()
        metrics = self._node.metrics
        arrived = time.perf_counter()
        size = request.ByteSize()
        self.requests.take(size)
        try:
            pending = self._appender.send(request.producer_id, request.batches)
            appended = time.perf_counter()
            answer = await pending
        finally:
            self.requests.give_back(size)
        if any(result.error.code in ABSENCES for result in answer.results):
            await self._doubt_absences(answer)
        metrics.append_seconds.observe(appended - arrived)
        metrics.send_seconds.observe(time.perf_counter() - arrived)
        return answer

    async def _doubt_absences(self, answer: pb.SendResponse) -> None:
        """A leader that was deposed without knowing it may lack what it says does not exist: only
        a confirmed one may say so; otherwise the batch is sent to the leader's door."""
        try:
            await self._confirm_leadership()
        except BrokerError as error:
            for result in answer.results:
                if result.error.code in ABSENCES:
                    result.error.CopyFrom(error.to_wire())

    async def _surely(self, check: Callable[[], T]) -> T:
        """What `check` gives; an absence that it finds is looked at again by a confirmed leader.

        Raises:
            BrokerError: what `check` raises, NOT_LEADER, NOT_READY.
        """
        try:
            return check()
        except BrokerError as error:
            if error.code not in ABSENCES:
                raise
        await self._confirm_leadership()
        return check()

    async def pull(self, request: pb.PullRequest, context: Context) -> pb.PullResponse:
        limits = self._node.config.broker
        wanted_ms = request.hold_ms if request.HasField("hold_ms") else limits.long_poll_default_ms
        hold_ms = min(wanted_ms, limits.long_poll_max_ms)
        now = asyncio.get_running_loop().time
        deadline = now() + hold_ms / 1000
        while True:
            self._leadership.check_serving()
            found = await self._pull_once(request)
            left = deadline - now()
            if found.count or left <= 0:
                self._account_answer(len(found.records), context)
                return pb.PullResponse(
                    records=found.records,
                    count=found.count,
                    next_offset=found.next_offset,
                    min_offset=found.min_offset,
                    max_offset=found.max_offset,
                )
            await self._held.wait((request.topic, request.queue_id), left)

    def _account_answer(self, size: int, context: Context) -> None:
        """The answer's bytes count until the call is over: a client may be slow to read."""
        if size:
            self.answers.take(size)

            def done(call: object) -> None:
                self.answers.give_back(size)

            context.add_done_callback(done)  # type: ignore[arg-type]  # any callable will do

    async def _pull_once(self, request: pb.PullRequest) -> Found:
        place = (request.topic, request.queue_id, request.offset)
        await self._surely(lambda: self._reader.check_offset(*place))
        try:
            return self._read(request, place)
        except CorruptionFound as error:
            # Never skipped, never served: a replica with good bytes takes over.
            self._node.fail(error)
            raise BrokerError(epb.NOT_READY, "this replica's log is corrupt; it stops") from error

    def _read(self, request: pb.PullRequest, place: tuple[str, int, int]) -> Found:
        max_bytes = min(request.max_bytes or DEFAULT_BYTES, max(1, self.answers.left_bytes))
        return self._reader.pull(*place, request.max_messages, max_bytes)

    async def get_message(
        self, request: pb.GetMessageRequest, context: Context
    ) -> pb.GetMessageResponse:
        self._leadership.check_serving()
        match request.WhichOneof("by"):
            case "message_id":
                record = await self._by_id(request.message_id)
            case "position":
                at = request.position
                await self._confirm_leadership()
                found = self._reader.pull(at.topic, at.queue_id, at.offset, 1, 1)
                record = found.records
                if not found.count:
                    raise BrokerError(
                        epb.MESSAGE_NOT_FOUND,
                        f"{at.topic}/{at.queue_id} ends at offset {found.max_offset}",
                    )
            case _:
                raise BrokerError(epb.INVALID_ARGUMENT, "give message_id or position")
        return pb.GetMessageResponse(record=record)

    async def _by_id(self, text: str) -> bytes:
        try:
            _, physical_offset = parse_message_id(text)
        except (ValueError, InvalidRecord) as error:
            raise BrokerError(
                epb.INVALID_ARGUMENT, f"message id {text[:64]!r}: 32 hex digits are expected"
            ) from error
        record = self._node.read_record(physical_offset)
        if record is None:
            await self._confirm_leadership()  # only then may it be said that there is none
            record = self._node.read_record(physical_offset)
        if record is None:
            raise BrokerError(epb.MESSAGE_NOT_FOUND, f"no message has the id {text}")
        return record

    # --- offsets ------------------------------------------------------------------------------

    async def get_queue_offsets(
        self, request: pb.GetQueueOffsetsRequest, context: Context
    ) -> pb.GetQueueOffsetsResponse:
        await self._confirm_leadership()
        low, high = self._reader.bounds(request.topic, request.queue_id)
        return pb.GetQueueOffsetsResponse(min_offset=low, max_offset=high)

    async def get_offset_by_time(
        self, request: pb.GetOffsetByTimeRequest, context: Context
    ) -> pb.GetOffsetByTimeResponse:
        await self._confirm_leadership()
        self._reader.bounds(request.topic, request.queue_id)
        offset = self._node.offset_by_time(request.topic, request.queue_id, request.time_ms)
        return pb.GetOffsetByTimeResponse(offset=offset)

    async def commit_offsets(
        self, request: pb.CommitOffsetsRequest, context: Context
    ) -> pb.CommitOffsetsResponse:
        self._leadership.check_serving()
        self._leadership.check_writable()
        _check_group(request.group)
        if not 0 < len(request.offsets) <= MAX_OFFSETS_IN_COMMIT:
            raise BrokerError(
                epb.INVALID_ARGUMENT, f"a commit holds 1 to {MAX_OFFSETS_IN_COMMIT} offsets"
            )
        for wanted in request.offsets:
            place = (request.topic, wanted.queue_id, wanted.offset)
            await self._surely(partial(self._check_committable, *place))
        command = kpb.CommitOffsetsCommand(
            group=request.group, topic=request.topic, reset=request.reset
        )
        for wanted in request.offsets:
            command.offsets.add(queue_id=wanted.queue_id, offset=wanted.offset)
        refusal = await self._appender.submit(kpb.Command(commit_offsets=command))
        if refusal is not None:
            raise refused(refusal)
        return pb.CommitOffsetsResponse(offsets=self._offsets(request.group, request.topic))

    def _check_committable(self, topic: str, queue_id: int, offset: int) -> None:
        _, high = self._reader.bounds(topic, queue_id)
        if offset > high:
            self._reader.check_offset(topic, queue_id, offset)

    async def fetch_offsets(
        self, request: pb.FetchOffsetsRequest, context: Context
    ) -> pb.FetchOffsetsResponse:
        _check_group(request.group)
        await self._confirm_leadership()
        self._reader.topic(request.topic)
        return pb.FetchOffsetsResponse(offsets=self._offsets(request.group, request.topic))

    def _offsets(self, group: str, topic: str) -> list[pb.QueueOffset]:
        offsets = self._node.machine.offsets.of(group, topic)
        return [pb.QueueOffset(queue_id=q, offset=o) for q, o in sorted(offsets.items())]

    # --- topics -------------------------------------------------------------------------------

    async def create_topic(
        self, request: pb.CreateTopicRequest, context: Context
    ) -> pb.CreateTopicResponse:
        self._leadership.check_serving()
        self._leadership.check_writable()
        name, queues = request.name, request.queue_count or DEFAULT_QUEUES
        if not TOPIC_PATTERN.fullmatch(name):
            raise BrokerError(
                epb.INVALID_ARGUMENT,
                f"topic name {name[:160]!r}: 1 to 127 characters of A-Z a-z 0-9 _ % - are allowed",
            )
        if queues > MAX_QUEUES:
            raise BrokerError(
                epb.INVALID_ARGUMENT, f"a topic has 1 to {MAX_QUEUES} queues, not {queues}"
            )
        command = kpb.CreateTopicCommand(name=name, queue_count=queues)
        refusal = await self._appender.submit(kpb.Command(create_topic=command))
        is_same = isinstance(refusal, TopicExists) and refusal.queue_count == queues
        if refusal is not None and not (request.if_not_exists and is_same):
            raise refused(refusal)
        return pb.CreateTopicResponse(topic=self._topic(name))

    async def delete_topic(
        self, request: pb.DeleteTopicRequest, context: Context
    ) -> pb.DeleteTopicResponse:
        self._leadership.check_serving()
        self._leadership.check_writable()
        await self._surely(lambda: self._reader.topic(request.name))
        command = kpb.DeleteTopicCommand(name=request.name)
        refusal = await self._appender.submit(kpb.Command(delete_topic=command))
        if refusal is not None:
            raise refused(refusal)
        return pb.DeleteTopicResponse()

    async def list_topics(
        self, request: pb.ListTopicsRequest, context: Context
    ) -> pb.ListTopicsResponse:
        await self._confirm_leadership()
        names = sorted(self._node.machine.topics)
        return pb.ListTopicsResponse(topics=[self._topic(name) for name in names])

    async def describe_topic(
        self, request: pb.DescribeTopicRequest, context: Context
    ) -> pb.DescribeTopicResponse:
        await self._confirm_leadership()
        topic = self._topic(request.name)
        queues = []
        for queue_id in range(topic.queue_count):
            low, high = self._reader.bounds(request.name, queue_id)
            queues.append(pb.QueueDescription(queue_id=queue_id, min_offset=low, max_offset=high))
        groups = [
            pb.GroupProgress(group=group, offsets=self._offsets(group, request.name))
            for group in sorted(self._node.machine.offsets.groups(request.name))
        ]
        return pb.DescribeTopicResponse(topic=topic, queues=queues, groups=groups)

    def _topic(self, name: str) -> pb.Topic:
        state = self._reader.topic(name)
        return pb.Topic(
            name=name, queue_count=len(state.next_offsets), created_time_ms=state.created_time_ms
        )

    # --- linearizable reads -------------------------------------------------------------------

    async def _confirm_leadership(self) -> None:
        """Returns once this node has been the leader since the call began (ReadIndex).

        Raises:
            BrokerError: NOT_LEADER, NOT_READY.
        """
        self._leadership.check_serving()
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(served: bool) -> None:  # noqa: FBT001  what a future is set to
            if not confirmed.done():
                confirmed.set_result(served)

        try:
            self._node.driver.read_index(done)
        except ReadRefused as error:
            raise self._leadership.not_leader(str(error)) from error
        if not await confirmed:
            raise self._leadership.not_leader("leadership was lost before the read was confirmed")


def _check_group(name: str) -> None:
    if not GROUP_PATTERN.fullmatch(name):
        raise BrokerError(
            epb.INVALID_ARGUMENT,
            f"group name {name[:300]!r}: 1 to 255 characters of A-Z a-z 0-9 _ % - are allowed",
        )


class ClusterService:
    """Handlers of `dledger.v1.Cluster`; every node answers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._watchers: set[asyncio.Event] = set()

    def notify(self) -> None:
        """The leader, or its readiness, changed."""
        for watcher in self._watchers:
            watcher.set()

    async def get_status(self, request: cpb.GetStatusRequest, context: Context) -> cpb.NodeStatus:
        return self._node.status()

    async def watch_leader(self, request: cpb.WatchLeaderRequest, context: Context) -> None:
        if request.group and request.group != self._node.config.group:
            raise BrokerError(
                epb.WRONG_GROUP,
                f"this node is of group {self._node.config.group!r}, not {request.group!r}",
            )
        if len(self._watchers) >= self._node.config.broker.max_held_pulls:
            raise BrokerError(epb.BUSY, f"{len(self._watchers)} watchers, the limit")
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            while not self._node.stopping:
                changed.clear()
                await context.write(self._node.leadership.view())
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    async def transfer_leadership(
        self, request: cpb.TransferLeadershipRequest, context: Context
    ) -> cpb.TransferLeadershipResponse:
        self._node.leadership.check_serving()
        target = NodeId(request.target) if request.target else None
        view = await self._node.leadership.hand_over(target)
        return cpb.TransferLeadershipResponse(leader=view.leader)
