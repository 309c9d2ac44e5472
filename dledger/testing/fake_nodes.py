"""A group of fake nodes behind real gRPC servers: one shared, replicated model in memory.

It keeps the contract of `proto/dledger/wire` that the client relies on: producer sequences with
deduplication of the last five batches, leader views, leader hints, long polls, offsets. What a
real group does by accident it does on command: a node is killed (its port closes, connections
break), frozen (connected, silent, as after SIGSTOP), elected, made to refuse the next calls with
an error, or to lose an answer after it has acted.

The model is one object for all nodes, as if replication took no time. Topics, and all that is of
consumer groups, have modules of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from dledger.limits import MESSAGE_LENGTHS
from dledger.records.errors import InvalidRecord
from dledger.records.record import decode_records, message_id, parse_message_id
from dledger.testing.fake_consumers import FakeConsumers
from dledger.testing.fake_deliveries import FakeDeliveries
from dledger.testing.fake_members import FakeMembers
from dledger.testing.fake_model import MAX_QUEUES, READ, STORE_HOST, Model
from dledger.testing.fake_retries import FakeRetries
from dledger.testing.fake_topics import FakeTopics, wire_offsets
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import broker_pb2 as pb
from dledger.wire import cluster_pb2 as cpb
from dledger.wire import consumers_pb2 as upb
from dledger.wire import deliveries_pb2 as dpb
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as gpb

SERVICES = {"Broker": pb, "Cluster": cpb, "Consumers": upb, "Deliveries": dpb, "Groups": gpb}
GROUP_PATTERN = re.compile(r"[A-Za-z0-9_%-]{1,255}")
SERVER_OPTIONS = (("grpc.so_reuseport", 0), *MESSAGE_LENGTHS)


Intercept = Callable[[str, "FakeNode", Any], Awaitable[None]]


class FakeNode:
    """One node: a gRPC server at an address that stays the same when it is restarted."""

    def __init__(self, group: FakeGroup, node_id: str) -> None:
        self.group = group
        self.node_id = node_id
        self.address = ""
        self.calls: Counter[str] = Counter()
        self.running = asyncio.Event()  # cleared: as after SIGSTOP
        self.running.set()
        self._calling = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers(tuple(map(self._handler, SERVICES)))
        port = server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = self.address or f"127.0.0.1:{port}"
        await server.start()
        self._server = server

    @property
    def is_listening(self) -> bool:
        return self._server is not None

    async def kill(self) -> None:
        """As SIGKILL: the port closes, connections break, nobody gets an answer."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace=None)

    async def called(self, name: str, times: int) -> None:
        """Returns once `name` has been called so often, answered or not."""
        while self.calls[name] < times:
            self._calling.clear()
            await self._calling.wait()

    def _count(self, name: str) -> None:
        self.calls[name] += 1
        self._calling.set()

    def _handler(self, service: str) -> grpc.GenericRpcHandler[Any, Any]:
        module = SERVICES[service]
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for method in module.DESCRIPTOR.services_by_name[service].methods:
            kinds = vars(module)
            make: Any = grpc.unary_unary_rpc_method_handler
            act: Any = self._unary(method.name)
            if method.client_streaming:
                make, act = grpc.stream_stream_rpc_method_handler, self._attend
            elif method.server_streaming:
                make, act = grpc.unary_stream_rpc_method_handler, self._watch
            methods[method.name] = make(
                act,
                request_deserializer=kinds[method.input_type.name].FromString,
                response_serializer=kinds[method.output_type.name].SerializeToString,
            )
        generic: grpc.GenericRpcHandler[Any, Any] = grpc.method_handlers_generic_handler(
            f"dledger.v1.{service}", methods
        )
        return generic

    def _unary(self, name: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(request: Any, context: Any) -> Any:
            self._count(name)
            await self.running.wait()
            try:
                for before in self.group.before:
                    await before(name, self, request)
                if name != "GetStatus":
                    self.group.check_leader(self)
                answer = await self.group.handler(name)(self, request)
                for after in self.group.after:
                    await after(name, self, request)
            except Refusal as refusal:
                metadata = (("dledger-error-bin", refusal.error.SerializeToString()),)
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "refused", metadata)
            await self.running.wait()
            return answer

        return handle

    async def _attend(self, requests: Any, context: Any) -> None:
        self._count("Attend")
        try:
            await self.group.members.attend(self, requests, context)
        except Refusal as refusal:
            metadata = (("dledger-error-bin", refusal.error.SerializeToString()),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "refused", metadata)

    async def _watch(self, request: cpb.WatchLeaderRequest, context: Any) -> None:
        self._count("WatchLeader")
        if request.broker_group and request.broker_group != self.group.name:
            error = wire_error(epb.WRONG_BROKER_GROUP, f"this is {self.group.name}")
            metadata = (("dledger-error-bin", error.SerializeToString()),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "refused", metadata)
        if self.group.refuse_watches:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watchers")
        changed = asyncio.Event()
        self.group.watchers.add(changed)
        try:
            while True:
                changed.clear()
                await self.running.wait()
                await context.write(self.group.view(self))
                await changed.wait()
        finally:
            self.group.watchers.discard(changed)


class FakeGroup:
    """Some fake nodes; the first one leads in term 1. An async context manager.

    `before` and `after` are awaited around each call that isn't a watch: `before` may raise a
    Refusal; an exception or a wait in `after` loses the answer of a call that has taken effect.
    """

    def __init__(self, nodes: int = 3, name: str = "g1") -> None:
        self.name = name
        self.model = Model()
        self.page_size = 1_000
        self.nodes = [FakeNode(self, f"n{number + 1}") for number in range(nodes)]
        self.term = 1
        self.leader: FakeNode | None = self.nodes[0]
        self.serving = True
        self.watchers: set[asyncio.Event] = set()
        self.before: list[Intercept] = []
        self.after: list[Intercept] = []
        self.refuse_watches = False
        self.sends: list[pb.SendRequest] = []
        self.topics = FakeTopics(self)
        self.retries = FakeRetries(self)
        self.deliveries = FakeDeliveries(self)
        self.consumers = FakeConsumers(self)
        self.members = FakeMembers(self)

    async def __aenter__(self) -> FakeGroup:
        self.members.start()
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes:
            node.running.set()
            await node.kill()
        await self.members.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes)

    def is_at_work(self, group: str, topic: str) -> bool:
        """The consumer group is known, or something waits to come to that topic of its own."""
        is_known = group in self.members.records or self.deliveries.has(group)
        is_known = is_known or any(name == group for name, _ in self.model.offsets)
        return is_known or self.retries.waits(topic)

    def elect(self, node: FakeNode | None, *, serving: bool = True) -> None:
        """`node` leads in the next term; None: the term has no leader yet."""
        self.term += 1
        self.tell(node, serving=serving)

    def tell(self, node: FakeNode | None, *, serving: bool) -> None:
        """Changes leader and readiness within the term, and tells every watcher."""
        self.leader, self.serving = node, serving
        for watcher in self.watchers:
            watcher.set()
        self.members.on_elected()

    def view(self, node: FakeNode) -> cpb.LeaderView:
        leader = self.leader
        return cpb.LeaderView(
            broker_group=self.name,
            node_id=node.node_id,
            term=self.term,
            leader=self._address(leader) if leader is not None else None,
            serving=node is leader and self.serving,
            members=[self._address(member) for member in self.nodes],
        )

    def _address(self, node: FakeNode) -> epb.NodeAddress:
        return epb.NodeAddress(node_id=node.node_id, address=node.address)

    @property
    def leading(self) -> FakeNode | None:
        """As `leader`, for who only looks."""
        return self.leader

    def check_leads(self, node: object) -> None:
        """As `check_leader`, of any node.

        Raises:
            Refusal: it doesn't lead, or doesn't serve.
        """
        if node is not self.leader or not self.serving:
            raise Refusal(wire_error(epb.NOT_LEADER))

    def check_leader(self, node: FakeNode) -> None:
        if node is not self.leader:
            error = wire_error(epb.NOT_LEADER)
            error.term = self.term
            if self.leader is not None:
                error.leader.CopyFrom(self._address(self.leader))
            raise Refusal(error)
        if not self.serving:
            raise Refusal(wire_error(epb.NOT_READY))

    def handler(self, name: str) -> Callable[[FakeNode, Any], Awaitable[Any]]:
        """What answers that method, for any node."""
        parts = (self, self.topics, self.retries, self.deliveries, self.consumers)
        found = (getattr(part, f"on_{name}", None) for part in parts)
        handler: Callable[[FakeNode, Any], Awaitable[Any]] = next(filter(None, found))
        return handler

    # --- the services -------------------------------------------------------------------------

    async def on_Send(self, node: FakeNode, request: pb.SendRequest) -> pb.SendResponse:
        self.sends.append(request)
        answer = pb.SendResponse()
        for batch in request.batches:
            try:
                answer.results.append(self.model.store(request.producer_id, batch))
            except Refusal as refusal:
                answer.results.add(error=refusal.error)
        await self.model.ring()
        return answer

    async def on_RegisterProducer(
        self, node: FakeNode, request: pb.RegisterProducerRequest
    ) -> pb.RegisterProducerResponse:
        held = self.model.register(request.token, request.name, request.previous)
        answer = pb.RegisterProducerResponse(producer_id=held.producer_id, origin=held.origin)
        for (origin, topic, queue_id), state in self.model.sequences.items():
            if origin == held.origin:
                answer.next_sequences.add(
                    topic=topic,
                    queue_id=queue_id,
                    sequence=state.next_sequence,
                    topic_incarnation=self.model.incarnations[topic],
                )
        return answer

    async def on_Pull(self, node: FakeNode, request: pb.PullRequest) -> pb.PullResponse:
        queue = self.model.queue(request.topic, request.queue_id, request.topic_incarnation)
        incarnation = self.model.incarnations[request.topic]
        self.model.check_permission(request.topic, READ)
        if not queue.min_offset <= request.offset <= len(queue.records):
            raise Refusal(self.model.out_of_range(queue, request.offset))

        def look() -> tuple[list[bytes], int]:
            most, size = request.max_messages or 32, request.max_bytes or 262_144
            return self.model.chosen(queue, request.offset, request.tags, most=most, size=size)

        found, at = look()
        if not found and at == len(queue.records) and request.hold_ms:
            async with self.model.arrived:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.model.hold_s(request.hold_ms)):
                        while not found:
                            await self.model.arrived.wait()
                            self.model.queues(request.topic, incarnation)
                            found, at = look()
        return pb.PullResponse(
            records=b"".join(found),
            count=len(found),
            next_offset=at,
            min_offset=queue.min_offset,
            max_offset=len(queue.records),
            topic_incarnation=incarnation,
            filtered_count=at - request.offset - len(found),
        )

    async def on_GetQueueOffsets(
        self, node: FakeNode, request: pb.GetQueueOffsetsRequest
    ) -> pb.GetQueueOffsetsResponse:
        queue = self.model.queue(request.topic, request.queue_id, request.topic_incarnation)
        return pb.GetQueueOffsetsResponse(
            min_offset=queue.min_offset, max_offset=len(queue.records)
        )

    async def on_GetOffsetByTime(
        self, node: FakeNode, request: pb.GetOffsetByTimeRequest
    ) -> pb.GetOffsetByTimeResponse:
        queue = self.model.queue(request.topic, request.queue_id, request.topic_incarnation)
        return pb.GetOffsetByTimeResponse(offset=queue.offset_by_time(request.time_ms))

    async def on_GetMessage(
        self, node: FakeNode, request: pb.GetMessageRequest
    ) -> pb.GetMessageResponse:
        if request.WhichOneof("by") == "position":
            return pb.GetMessageResponse(record=self._record_at(request.position))
        try:
            parse_message_id(request.message_id)
        except (ValueError, InvalidRecord) as error:
            raise Refusal(wire_error(epb.INVALID_ARGUMENT, "32 hex digits")) from error
        for queues in self.model.topics.values():
            for queue in queues:
                for record in queue.records[queue.min_offset :]:
                    at = decode_records(record)[0].physical_offset
                    if message_id(STORE_HOST, at) == request.message_id:
                        return pb.GetMessageResponse(record=record)
        raise Refusal(wire_error(epb.MESSAGE_NOT_FOUND))

    def _record_at(self, at: pb.QueuePosition) -> bytes:
        queue = self.model.queue(at.topic, at.queue_id, at.topic_incarnation)
        if not queue.min_offset <= at.offset <= len(queue.records):
            raise Refusal(self.model.out_of_range(queue, at.offset))
        if at.offset == len(queue.records):
            raise Refusal(wire_error(epb.MESSAGE_NOT_FOUND))
        return queue.records[at.offset]

    async def on_CommitOffsets(
        self, node: FakeNode, request: pb.CommitOffsetsRequest
    ) -> pb.CommitOffsetsResponse:
        _check_group(request.group)
        if not 0 < len(request.offsets) <= MAX_QUEUES:
            raise Refusal(wire_error(epb.INVALID_ARGUMENT, "a commit holds 1 to 1024 offsets"))
        for wanted in request.offsets:
            place = request.topic, wanted.queue_id, request.topic_incarnation
            queue = self.model.queue(*place)
            if wanted.offset > len(queue.records):
                raise Refusal(self.model.out_of_range(queue, wanted.offset))
        if self.members.has_sessions(request.group):
            raise Refusal(wire_error(epb.GROUP_HAS_MEMBERS))
        if self.deliveries.has(request.group):
            raise Refusal(wire_error(epb.GROUP_STYLED))
        offsets = self.model.offsets.setdefault((request.group, request.topic), {})
        for wanted in request.offsets:
            if request.reset or wanted.offset > offsets.get(wanted.queue_id, -1):
                offsets[wanted.queue_id] = wanted.offset
        return pb.CommitOffsetsResponse(offsets=wire_offsets(offsets))

    async def on_FetchOffsets(
        self, node: FakeNode, request: pb.FetchOffsetsRequest
    ) -> pb.FetchOffsetsResponse:
        _check_group(request.group)
        self.model.queues(request.topic, request.topic_incarnation)
        offsets = self.model.offsets.get((request.group, request.topic), {})
        return pb.FetchOffsetsResponse(offsets=wire_offsets(offsets))

    async def on_CommitLeases(
        self, node: FakeNode, request: gpb.CommitLeasesRequest
    ) -> gpb.CommitLeasesResponse:
        return self.members.commit(request)

    async def on_PullQueues(
        self, node: FakeNode, request: gpb.PullQueuesRequest
    ) -> gpb.PullQueuesResponse:
        return await self.members.pull(request)

    async def on_GetStatus(self, node: FakeNode, request: cpb.GetStatusRequest) -> cpb.NodeStatus:
        return cpb.NodeStatus(
            broker_group=self.name,
            node_id=node.node_id,
            role="leader" if node is self.leader else "follower",
            term=self.term,
            leader=self._address(self.leader) if self.leader is not None else None,
        )

    async def on_TransferLeadership(
        self, node: FakeNode, request: cpb.TransferLeadershipRequest
    ) -> cpb.TransferLeadershipResponse:
        target = next((n for n in self.nodes if n.node_id == request.target), None)
        if target is None:
            raise Refusal(wire_error(epb.INVALID_ARGUMENT, f"no member {request.target!r}"))
        self.elect(target)
        return cpb.TransferLeadershipResponse(leader=self._address(target))


def _check_group(name: str) -> None:
    if not GROUP_PATTERN.fullmatch(name):
        text = f"no consumer group has the name {name[:300]!r}"
        raise Refusal(wire_error(epb.INVALID_ARGUMENT, text))
