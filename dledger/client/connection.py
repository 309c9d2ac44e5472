"""One node as the client sees it: a channel, the watch on its view, the calls under way.

A link never retries a call and never decides who leads. It keeps the WatchLeader stream open for
ever (`dledger.client.patience` says how soon it is tried again), reports each view and each loss,
and can abandon its calls: a leader that was stopped by SIGSTOP breaks no connection and answers
nothing, so only the news of its successor ends the waiting.

    connected       the watch breaks            no channel is dialed; the watch rests
    resting         its time is over, a nudge   knocked at
    resting         a call is made              dialed by that
    knocked at      refused                     resting
    knocked at      anything else               a new channel is dialed, by the next watch
    dialed          refused                     resting

A channel of gRPC's that has lost its node dials it again and again by itself, as long as it is
there; so a link without a call gives it up.

An address may be another group's by now. What is known of the group's epoch may shut a node
(ADR 52), so it goes along only with the group's name, or with calls to who leads the group.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar, assert_never

import grpc
from google.protobuf.message import Message

from dledger.client.errors import (
    ClientClosed,
    ClientError,
    LeadershipLost,
    Unavailable,
    WrongBrokerGroup,
    from_rpc,
)
from dledger.client.faults import contained, fault
from dledger.client.group_epoch import FIRST_EPOCH, EpochName, epoch_in
from dledger.client.knocking import is_refused
from dledger.client.leader_view import View, from_wire
from dledger.client.patience import Patience, Rests
from dledger.outcome import Outcome
from dledger.wire import broker_pb2 as pb
from dledger.wire import cluster_pb2 as cpb
from dledger.wire import deliveries_pb2 as dpb
from dledger.wire import groups_pb2 as gpb

GRACE_S: Final = 0.5
# gRPC counts nanoseconds in 64 bits: what is far beyond, or infinite, would be over at once.
MAX_CALL_S: Final = 365 * 86_400.0

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A unary method of the wire contract. `asks_node`: it is asked of any address, about the node
    there, whichever group's that is: nothing of the group's epoch is told or learnt with it."""

    path: str
    request: type[Request]
    response: type[Response]
    asks_node: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def _broker(
    name: str, request: type[Request], response: type[Response]
) -> Method[Request, Response]:
    return Method(f"/dledger.v1.Broker/{name}", request, response)


SEND: Final = _broker("Send", pb.SendRequest, pb.SendResponse)
REGISTER_PRODUCER: Final = _broker(
    "RegisterProducer", pb.RegisterProducerRequest, pb.RegisterProducerResponse
)
PULL: Final = _broker("Pull", pb.PullRequest, pb.PullResponse)
GET_QUEUE_OFFSETS: Final = _broker(
    "GetQueueOffsets", pb.GetQueueOffsetsRequest, pb.GetQueueOffsetsResponse
)
GET_OFFSET_BY_TIME: Final = _broker(
    "GetOffsetByTime", pb.GetOffsetByTimeRequest, pb.GetOffsetByTimeResponse
)
GET_MESSAGE: Final = _broker("GetMessage", pb.GetMessageRequest, pb.GetMessageResponse)
CREATE_TOPIC: Final = _broker("CreateTopic", pb.CreateTopicRequest, pb.CreateTopicResponse)
UPDATE_TOPIC: Final = _broker("UpdateTopic", pb.UpdateTopicRequest, pb.UpdateTopicResponse)
RETAIN_TOPIC: Final = _broker("RetainTopic", pb.RetainTopicRequest, pb.RetainTopicResponse)
PERMIT_TOPIC: Final = _broker("PermitTopic", pb.PermitTopicRequest, pb.PermitTopicResponse)
MEASURE_TOPIC: Final = _broker("MeasureTopic", pb.MeasureTopicRequest, pb.MeasureTopicResponse)
DELETE_TOPIC: Final = _broker("DeleteTopic", pb.DeleteTopicRequest, pb.DeleteTopicResponse)
LIST_TOPICS: Final = _broker("ListTopics", pb.ListTopicsRequest, pb.ListTopicsResponse)
DESCRIBE_TOPIC: Final = _broker("DescribeTopic", pb.DescribeTopicRequest, pb.DescribeTopicResponse)
COMMIT_OFFSETS: Final = _broker("CommitOffsets", pb.CommitOffsetsRequest, pb.CommitOffsetsResponse)
FETCH_OFFSETS: Final = _broker("FetchOffsets", pb.FetchOffsetsRequest, pb.FetchOffsetsResponse)
GET_STATUS: Final = Method(
    "/dledger.v1.Cluster/GetStatus", cpb.GetStatusRequest, cpb.NodeStatus, asks_node=True
)
TRANSFER_LEADERSHIP: Final = Method(
    "/dledger.v1.Cluster/TransferLeadership",
    cpb.TransferLeadershipRequest,
    cpb.TransferLeadershipResponse,
)
COMMIT_LEASES: Final = Method(
    "/dledger.v1.Groups/CommitLeases", gpb.CommitLeasesRequest, gpb.CommitLeasesResponse
)
PULL_QUEUES: Final = Method(
    "/dledger.v1.Groups/PullQueues", gpb.PullQueuesRequest, gpb.PullQueuesResponse
)
RECEIVE: Final = Method("/dledger.v1.Deliveries/Receive", dpb.ReceiveRequest, dpb.ReceiveResponse)
SETTLE: Final = Method("/dledger.v1.Deliveries/Settle", dpb.SettleRequest, dpb.SettleResponse)
SEND_BACK: Final = Method("/dledger.v1.Groups/SendBack", gpb.SendBackRequest, gpb.SendBackResponse)
GET_DEAD_LETTERS: Final = Method(
    "/dledger.v1.Groups/GetDeadLetters", gpb.GetDeadLettersRequest, gpb.GetDeadLettersResponse
)
RESEND_DEAD_LETTER: Final = Method(
    "/dledger.v1.Groups/ResendDeadLetter",
    gpb.ResendDeadLetterRequest,
    gpb.ResendDeadLetterResponse,
)
WATCH_LEADER_PATH: Final = "/dledger.v1.Cluster/WatchLeader"
ATTEND_PATH: Final = "/dledger.v1.Groups/Attend"
_EOF: Final = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


class WhenDeposed(Enum):
    """What becomes of a call when its node is known to lead no longer."""

    ABANDON = "abandon"  # give up at once and ask the next leader
    GRACE = "grace"  # give up soon: a refusal, if it comes, says more than giving up does
    AWAIT = "await"  # the answer comes from a node that leads no longer, as of a hand-over


class NodeLink:
    """The connection to one address.

    Args:
        address: `host:port`.
        dial: a channel to there; closed with the link, or before.
        broker_group: the one that the node must belong to, as of now; empty: any.
        on_view: is given each view of the node.
        on_lost: is told when the watch broke, and why.
        epoch: the newest epoch of the group that the client knows, as of now.
        on_epoch: is told in which one an answer was given, if the node says so.
        patience: with a watch that breaks now.
    """

    def __init__(
        self,
        address: str,
        dial: Callable[[], grpc.aio.Channel],
        broker_group: Callable[[], str],
        on_view: Callable[[str, View], None],
        on_lost: Callable[[str, ClientError], None],
        epoch: Callable[[], EpochName],
        on_epoch: Callable[[str, EpochName], None],
        patience: Callable[[], Patience],
    ) -> None:
        self.address = address
        self._epoch, self._on_epoch = epoch, on_epoch
        self._watch_call: Any = None
        self._asks_again = False
        self._broker_group = broker_group
        self._is_anothers = False  # another group's, when it was heard last
        self._on_view = on_view
        self._on_lost = on_lost
        self._dial = dial
        self._channel = dial()
        self._callables: dict[str, Any] = {}
        self._calls: dict[Any, WhenDeposed] = {}
        self._abandoned: set[Any] = set()
        self._is_closed = False
        self._is_lost = False  # since it was heard last
        self._is_dialed = False  # the channel, or may be
        self._nudged = asyncio.Event()
        self._patience = patience
        self._rests = Rests()
        self._watching = asyncio.create_task(self._watch(), name=f"watch-leader-{address}")

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        timeout_s: float,
        when_deposed: WhenDeposed = WhenDeposed.ABANDON,
    ) -> Response:
        """The node's answer.

        Raises:
            ClientError: whatever went wrong; LeadershipLost when the call was abandoned.
        """
        task = asyncio.current_task()
        cancels = 0 if task is None else task.cancelling()
        epoch = self._epoch()
        told = FIRST_EPOCH if method.asks_node else epoch
        self._is_dialed = True
        call = self._callable(method)(
            request, timeout=min(timeout_s, MAX_CALL_S), metadata=told.metadata or None
        )
        self._calls[call] = when_deposed
        try:
            response: Response = await call
            if not method.asks_node:
                self._on_epoch(self.address, epoch_in(await call.trailing_metadata() or ()))
            if epoch != self._epoch():
                # Whoever answered may have been given up: its word isn't the group's.
                text = f"the group was recovered by force while {self.address} was asked"
                raise LeadershipLost(text, outcome=Outcome.MAY_HAVE_HAPPENED)
            return response
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self.address) from _without_call(error)
        except asyncio.CancelledError as cancelled:
            # A task that was cancelled before may be cleaning up: that is no news of this call.
            if task is not None and task.cancelling() > cancels:
                raise
            unknown = Outcome.MAY_HAVE_HAPPENED
            if call not in self._abandoned:
                if not self._is_closed:
                    raise  # asked for before this call began, and heeded here
                raise ClientClosed(
                    "the client was closed during the call", outcome=unknown
                ) from None
            text = f"{self.address} leads no longer and had not answered"
            _without_call(cancelled)
            raise LeadershipLost(text, outcome=unknown) from None
        finally:
            self._calls.pop(call, None)
            self._abandoned.discard(call)
            del call, task  # which would keep the error that it ends by, and that this frame

    @contextlib.contextmanager
    def attending(self) -> Iterator[AttendCall]:
        """The stream for members of consumer groups; ended afterwards. Whoever reads it while it is
        abandoned sees it cancelled."""
        attend: Any = self._channel.stream_stream(
            ATTEND_PATH,
            request_serializer=gpb.AttendRequest.SerializeToString,
            response_deserializer=gpb.AttendResponse.FromString,
        )
        self._is_dialed = True
        call = attend(metadata=self._epoch().metadata or None)
        self._calls[call] = WhenDeposed.ABANDON
        attending = AttendCall(call)
        try:
            yield attending
        finally:
            attending.forget()
            self._calls.pop(call, None)
            self._abandoned.discard(call)
            call.cancel()
            del call

    def abandon_calls(self) -> None:
        """The node leads no longer: ends its calls, each as it was made to."""
        for call, when_deposed in list(self._calls.items()):
            match when_deposed:
                case WhenDeposed.ABANDON:
                    self._abandon(call)
                case WhenDeposed.GRACE:
                    self._calls[call] = WhenDeposed.AWAIT
                    asyncio.get_running_loop().call_later(GRACE_S, self._abandon, call)
                case WhenDeposed.AWAIT:
                    pass
                case _:
                    assert_never(when_deposed)

    def _abandon(self, call: Any) -> None:
        if call in self._calls:
            self._abandoned.add(call)
            call.cancel()

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way here."""
        return not self._calls

    def nudge(self) -> None:
        """Tries the watch again now, if it is waiting to be tried."""
        self._nudged.set()

    def ask_again(self) -> None:
        """The watch ends, and another one begins, which tells the node of the newest epoch."""
        if self._watch_call is not None:
            self._asks_again = True
            self._watch_call.cancel()

    async def close(self) -> None:
        """Ends the watch and the channel, and with it every call."""
        self._is_closed = True
        self._watching.cancel()
        try:
            await asyncio.wait([self._watching])
        finally:
            await self._channel.close(None)

    def _callable(self, method: Method[Request, Response]) -> Any:
        known = self._callables.get(method.path)
        if known is None:
            known = self._callables[method.path] = self._channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return known

    async def _watch(self) -> None:
        while True:
            with contained(f"watching {self.address}"):
                error = await self._listen_if_there()
                self._on_lost(self.address, error)
                if isinstance(error, Unavailable):
                    await self._hang_up()
            with contained("waiting to watch again"):
                await self._pause(self._rests.next_s(self._patience()))

    async def _hang_up(self) -> None:
        """Nothing dials the node until somebody wants something of it; a call that is under way
        may be answered yet."""
        self._is_lost = True
        if self.is_idle and self._is_dialed:
            self._is_dialed = False
            lost, self._channel = self._channel, self._dial()  # which connects when it is used
            self._callables = {}
            await lost.close(None)

    async def _listen_if_there(self) -> ClientError:
        """As `_listen`, but that a node that was lost is knocked at first."""
        if self._is_lost and await is_refused(self.address):
            nothing = Outcome.DID_NOT_HAPPEN
            return Unavailable(f"{self.address}: connection refused", outcome=nothing)
        return await self._listen()

    async def _listen(self) -> ClientError:
        """Reports what the node says; why it is no longer heard."""
        self._is_dialed = True
        watch: Any = self._channel.unary_stream(
            WATCH_LEADER_PATH,
            request_serializer=cpb.WatchLeaderRequest.SerializeToString,
            response_deserializer=cpb.LeaderView.FromString,
        )
        name, told = self._broker_group(), self._epoch()
        if not name or self._is_anothers:
            told = FIRST_EPOCH
        request = cpb.WatchLeaderRequest(broker_group=name)
        call = watch(request, metadata=told.metadata or None)
        self._watch_call = call
        try:
            async for view in call:
                self._rests.forget()
                self._is_lost = False
                self._is_anothers = view.broker_group != (self._broker_group() or view.broker_group)
                self._on_view(self.address, from_wire(view))
        except grpc.aio.AioRpcError as error:
            failure = from_rpc(error, self.address)
            if isinstance(failure, WrongBrokerGroup) and not told.number:
                self._is_anothers = True  # where an epoch was told, it may be for that
            return failure
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._asks_again or (task is not None and task.cancelling()):
                raise
            return Unavailable(f"{self.address} is asked again, as the group's epoch is another")
        except Exception as error:  # noqa: BLE001 - what it said can't be relied on
            return fault(f"watching {self.address}", error)
        finally:
            self._watch_call, self._asks_again = None, False
            call.cancel()
        return Unavailable(f"{self.address} ended the watch")

    async def _pause(self, seconds: float) -> None:
        self._nudged.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudged.wait()


class AttendCall:
    """A stream for members, until that is forgotten. Those who read and write it keep this and not
    the call: it is in the frames of every error, and whoever keeps one would keep the call with it
    (`_without_call`)."""

    def __init__(self, call: Any) -> None:
        self._call: Any = call

    async def read(self) -> gpb.AttendResponse | None:
        """The next answer; None: the node has ended the stream.

        Raises:
            AioRpcError: it broke.
            CancelledError: it was cancelled, by this side or the transport.
        """
        try:
            answer = await self._going_on().read()
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            raise _without_call(error) from None
        return None if answer is _EOF else answer

    async def write(self, request: gpb.AttendRequest) -> None:
        """It is on its way. Raises: as `read`; InvalidStateError: the stream is over."""
        try:
            await self._going_on().write(request)
        except (grpc.aio.AioRpcError, asyncio.CancelledError, asyncio.InvalidStateError) as error:
            raise _without_call(error) from None

    def _going_on(self) -> Any:
        if self._call is None:
            raise asyncio.InvalidStateError("the stream is over")
        return self._call

    def forget(self) -> None:
        """The stream is over."""
        self._call = None


_Error = TypeVar("_Error", bound=BaseException)


def _without_call(error: _Error) -> _Error:
    """The error without the frames in which its call is known. Whoever keeps an error, as who tries
    again does, would keep the call, and by that its channel, closed or not, which goes on dialing a
    node that is gone."""
    return error.with_traceback(None)
