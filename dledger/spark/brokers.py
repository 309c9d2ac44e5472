"""The broker group as drivers and tasks ask it: blocking calls, a connection for as long as needed.

`Access` is what an option list says of the way there: a value that travels to executors. `Brokers`
is the connection, made in the process that uses it and closed there; it never travels. What is
asked here names incarnations and sequence numbers, which the public client keeps to itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dledger.addresses import parse_addresses
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import (
    COMMIT_OFFSETS,
    CREATE_TOPIC,
    DESCRIBE_TOPIC,
    FETCH_OFFSETS,
    GET_OFFSET_BY_TIME,
    GET_QUEUE_OFFSETS,
    PULL,
    REGISTER_PRODUCER,
    SEND,
    Method,
    Request,
    Response,
)
from dledger.client.errors import (
    BrokerGroupUnreachable,
    DeadlineExceeded,
    OffsetOutOfRange,
    QueueNotFound,
    ServerError,
    TopicNotFound,
    TopicReplaced,
)
from dledger.client.loop_thread import LoopThread
from dledger.client.options import ClientOptions
from dledger.credentials.tls import TlsFiles
from dledger.spark import options as opt
from dledger.spark.errors import BadOption
from dledger.wire import broker_pb2 as pb

ACCESS_OPTIONS: Final = (
    *("bootstrap", "brokerGroup", "timeoutSeconds"),
    *("tlsAuthority", "tlsCertificate", "tlsKey"),
)
PULL_BYTES: Final = 4 << 20  # An answer; nodes give 8 MiB at most.
PULL_MESSAGES: Final = 32_768
DEFAULT_TIMEOUT_S: Final = 60.0  # A call with all its retries: several elections.
_MAX_QUEUES: Final = 1_024  # of a topic, at the brokers
_CLOSED: Final = "Socket closed"  # gRPC's words
_NOTHING: Final = ((0, 0, 0), ())  # is known of a topic: no topic has this incarnation
_PAUSE_S: Final = 0.05  # before a former leader is asked again


@dataclass(frozen=True, slots=True)
class Access:
    """How a broker group is reached.

    Attributes:
        addresses: `host:port`; one living node is enough.
        broker_group: its name, where a mix-up must show itself; empty: any.
        timeout_s: for a call with all its retries.
        tls: PEM files, which lie at the same paths on every executor; None: in the clear.
    """

    addresses: tuple[str, ...]
    broker_group: str
    timeout_s: float
    tls: TlsFiles | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """What the options say.

        Raises:
            BadOption: they make no sense.
        """
        try:
            addresses = parse_addresses(options.get("bootstrap", ""))
        except ValueError as error:
            raise BadOption(f"bootstrap: {error}") from error
        timeout_s = opt.seconds(options, "timeoutSeconds", DEFAULT_TIMEOUT_S)
        return cls(tuple(addresses), options.get("brokerGroup", ""), timeout_s, _tls(options))


def _tls(options: Mapping[str, str]) -> TlsFiles | None:
    found = {name: options.get(name, "") for name in ACCESS_OPTIONS if name.startswith("tls")}
    ca, certificate, key = found.values()
    if not any(found.values()):
        return None
    if not ca:
        raise BadOption("tlsCertificate and tlsKey need tlsAuthority, which nodes are believed of")
    if bool(certificate) != bool(key):
        raise BadOption("tlsCertificate and tlsKey come together")
    for name, path in found.items():
        if path and not Path(path).is_file():
            raise BadOption(f"{name} is {path!r}: no such file")
    return TlsFiles(Path(ca), Path(certificate) if key else None, Path(key) if key else None)


def _hint(tls: TlsFiles | None) -> str:
    """Why a node may have closed each connection at once: it tells its log alone."""
    if tls is None:
        return " (as nodes do that talk under TLS: they need the option tlsAuthority)"
    if tls.certificate is None:
        return " (as nodes do that ask for certificates: they need tlsCertificate and tlsKey)"
    return " (as nodes do that don't believe tlsCertificate: their log says why)"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now; of each queue, by its id, the first offset kept and the one past the
    last message. The incarnation tells topics of a name apart within a broker group, the time of
    its creation those of different groups: logs that began alike have the same indexes.

    Attributes:
        bounds: of the queues that are read.
        write_queues: the first so many of them take messages.
        changed: the entry since which so many do; 0: since the topic is there.
    """

    name: str
    incarnation: int
    created_ms: int
    bounds: tuple[tuple[int, int], ...]
    write_queues: int
    changed: int = 0

    @property
    def queues(self) -> tuple[int, int, int]:
        """While it is the same, so are the queues that are read, and the ends of those that aren't:
        what took messages meanwhile would have `changed` it."""
        return self.incarnation, len(self.bounds), self.changed


class Brokers:
    """A connection; a context manager. Calls find the leader, whoever that is by then.

    Every call raises `ClientError` where the brokers refuse or can't be reached in time.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._thread = LoopThread()
        self._group: BrokerGroup | None = None
        self._gone: dict[str, tuple[tuple[int, int, int], tuple[int, ...]]] = {}  # by topic

    def __enter__(self) -> Self:
        try:
            self._group = self._thread.call(self._open())
        except BaseException:
            self._thread.stop()
            raise
        return self

    async def _open(self) -> BrokerGroup:
        access = self._access
        options = ClientOptions(deadline_s=access.timeout_s, tls=access.tls)
        return BrokerGroup(access.addresses, access.broker_group or None, options)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Every connection is closed."""
        group, self._group = self._group, None
        if group is not None:
            self._thread.call(group.close())
        self._thread.stop()

    def _call(
        self, method: Method[Request, Response], request: Request, effect: Effect
    ) -> Response:
        assert self._group is not None
        try:
            return self._thread.call(self._group.call(method, request, effect))
        except BrokerGroupUnreachable as error:
            hint = _hint(self._access.tls) if _CLOSED in error.message else ""
            raise BrokerGroupUnreachable(error.message + hint) from error

    # --- what is there ------------------------------------------------------------------------

    def topic(self, name: str) -> Topic | None:
        """The topic; None if there is none."""
        try:
            answer = self._call(DESCRIBE_TOPIC, pb.DescribeTopicRequest(name=name), Effect.NONE)
        except TopicNotFound:
            return None
        told, queues = answer.topic, sorted(answer.queues, key=lambda each: each.queue_id)
        bounds = [(each.min_offset, each.max_offset) for each in queues]
        if (
            told.name != name
            or [each.queue_id for each in queues] != [*range(told.queue_count)]
            or not all(low <= high for low, high in bounds)
        ):
            raise ServerError(f"what a node tells of topic {name!r} makes no sense: {told}")
        # A node of a release before says nothing of the two numbers, and takes messages in all.
        writes = told.write_queues or told.queue_count
        made = told.incarnation, told.created_time_ms
        return Topic(name, *made, tuple(bounds), writes, told.queues_changed)

    def with_gone(self, name: str) -> tuple[Topic, tuple[int, ...]] | None:
        """The topic, and where the queues behind the last that is read ended: nobody reads them any
        more, and they may come back. None if there is no topic. Asked for once while the topic is
        as it is: they take nothing meanwhile. Believed if it still is afterwards: of a queue that
        came back in between, what is told is no end.

        Raises:
            DeadlineExceeded: it became another one each time.
        """
        until = time.monotonic() + self._access.timeout_s
        topic = self.topic(name)
        while topic is not None and self._gone.get(name, _NOTHING)[0] != (asked := topic.queues):
            ends = tuple(self._ends_behind(topic))
            topic = self.topic(name)  # Once more.
            if topic is not None and topic.queues == asked:
                self._gone[name] = asked, ends
            elif time.monotonic() > until:
                raise DeadlineExceeded(f"topic {name!r} had other queues at each look")
        return None if topic is None else (topic, self._gone[name][1])

    def _ends_behind(self, topic: Topic) -> Iterator[int]:
        for queue_id in range(len(topic.bounds), _MAX_QUEUES):
            request = pb.GetQueueOffsetsRequest(
                topic=topic.name, queue_id=queue_id, topic_incarnation=topic.incarnation
            )
            try:
                yield self._call(GET_QUEUE_OFFSETS, request, Effect.NONE).max_offset
            except QueueNotFound:
                return

    def offset_by_time(self, topic: Topic, queue_id: int, time_ms: int) -> int:
        """Of the first message stored at or after `time_ms`, or one past the last."""
        request = pb.GetOffsetByTimeRequest(
            topic=topic.name,
            queue_id=queue_id,
            time_ms=time_ms,
            topic_incarnation=topic.incarnation,
        )
        return self._call(GET_OFFSET_BY_TIME, request, Effect.NONE).offset

    def pull(
        self, topic: str, incarnation: int, queue_id: int, offset: int, limit: int
    ) -> pb.PullResponse:
        """At most `limit` messages from `offset` on, and one at least.

        A leader that was voted out and hasn't heard of it ends its queues where it heard last, and
        answers there that there is nothing (yet): a consumer asks again, and so does this. Whether
        the queue ends is asked of a leader that others confirm.

        Raises:
            OffsetOutOfRange: the queue ends at `offset` or before, or begins behind it.
            TopicNotFound, TopicReplaced, QueueNotFound: there is no such queue.
            DeadlineExceeded: nobody gave what there is.
            ServerError: the answer is to another question.
        """
        request = pb.PullRequest(
            topic=topic,
            topic_incarnation=incarnation,
            queue_id=queue_id,
            offset=offset,
            max_messages=min(limit, PULL_MESSAGES),
            max_bytes=PULL_BYTES,
            hold_ms=0,
        )
        until = time.monotonic() + self._access.timeout_s
        while not (answer := self._call(PULL, request, Effect.NONE)).count:
            if answer.void_count:
                break
            self._check_more(request)
            if time.monotonic() > until:
                raise DeadlineExceeded(f"nobody gives offset {offset} of {topic}/{queue_id}")
            time.sleep(_PAUSE_S)
        if (
            answer.void_count + answer.count > request.max_messages
            or answer.next_offset != offset + answer.void_count + answer.count
            or answer.topic_incarnation != incarnation
        ):
            told = f"{answer.count} messages, up to {answer.next_offset}"
            raise ServerError(f"asked for {limit} from {offset} on, a node answers {told}")
        return answer

    def _check_more(self, request: pb.PullRequest) -> None:
        """The queue goes on at the offset that the request names."""
        topic = self.topic(request.topic)
        place = f"{request.topic}/{request.queue_id}"
        if topic is None:
            raise TopicNotFound(f"there is no topic {request.topic!r}")
        if topic.incarnation != request.topic_incarnation:
            raise TopicReplaced(f"topic {request.topic!r} was deleted and made anew")
        end = topic.bounds[request.queue_id][1]
        if end <= request.offset:
            raise OffsetOutOfRange(f"{place} ends at {end}")

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """The group's offset in the queue; None if it has none."""
        request = pb.FetchOffsetsRequest(group=group, topic=topic)
        answer = self._call(FETCH_OFFSETS, request, Effect.NONE)
        found = (each.offset for each in answer.offsets if each.queue_id == queue_id)
        return max(found, default=None)

    # --- what is written ----------------------------------------------------------------------

    def create_topic(self, name: str, queues: int) -> None:
        """The topic exists, with so many queues."""
        request = pb.CreateTopicRequest(name=name, queue_count=queues, if_not_exists=True)
        self._call(CREATE_TOPIC, request, Effect.IDEMPOTENT)

    def register(
        self, name: str, token: bytes, previous: bytes = b""
    ) -> pb.RegisterProducerResponse:
        """The producer `name` is whoever drew `token`; who was it before is fenced.

        Args:
            previous: whoever it has to have been; empty: anybody.
        """
        request = pb.RegisterProducerRequest(token=token, name=name, previous=previous)
        return self._call(REGISTER_PRODUCER, request, Effect.IDEMPOTENT)

    def send(self, producer_id: bytes, batches: list[pb.SendBatch]) -> list[pb.SendResult]:
        """What became of each batch, in order; sent again it is the same batch."""
        request = pb.SendRequest(producer_id=producer_id, batches=batches)
        return list(self._call(SEND, request, Effect.IDEMPOTENT).results)

    def commit(self, group: str, topic: Topic, queue_id: int, offset: int) -> None:
        """The group's offset in the queue is this, or further on."""
        request = pb.CommitOffsetsRequest(
            group=group,
            topic=topic.name,
            offsets=[pb.QueueOffset(queue_id=queue_id, offset=offset)],
            topic_incarnation=topic.incarnation,
        )
        self._call(COMMIT_OFFSETS, request, Effect.IDEMPOTENT)
