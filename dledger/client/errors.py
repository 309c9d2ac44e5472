"""Errors of the client library, each saying whether the thing happened.

This owns the mapping from what a node answers, or from how a call broke, to one exception that
a caller can act on. It must never guess in the comfortable direction: whatever is not known to
have been refused *may have happened*.

    ClientError
    ├── InvalidArgument      the request is wrong; the same one will never work
    │   ├── MessageTooLarge  a body over 4 MiB, or over what the brokers allow
    │   └── RecordCorrupt    record bytes whose lengths or CRC lie
    ├── BodyUnreadable       a message's body can't be decompressed
    │   └── CodecMissing     ... here: the library for it isn't installed
    ├── TopicNotFound
    ├── TopicReplaced        the topic that was meant is gone; another one has its name
    ├── TopicExists
    ├── TopicNotWritable     the topic's permission lets nobody send to it
    ├── TopicNotReadable     ... or read from it
    ├── QueueNotFound
    ├── QueueClosed          the queue takes no messages any more
    ├── QueuesChanged        the topic takes messages in other queues now (retriable)
    ├── QueuesUnread         a consumer group hasn't read queues that would go
    ├── OffsetOutOfRange
    ├── MessageNotFound
    ├── WrongBrokerGroup     the nodes at this address belong to another broker group
    ├── NotLeader            asked a node that does not lead (retriable)
    ├── NotReady             elected, not yet serving; or being stopped (retriable)
    ├── Busy                 a bound of the node is reached (retriable)
    ├── StorageFull          the leader's disk is full (retriable)
    ├── OutOfSequence        an earlier batch of this producer is missing (retriable)
    ├── UnknownProducer      the brokers have forgotten this producer
    ├── ProducerFenced       another producer has taken this one's name over
    ├── LeadershipLost       leadership changed while the answer was awaited (retriable)
    ├── LimitReached         a bound on queues, consumer groups or producers; an operator's matter
    ├── TransferFailed       leadership was not handed over: each try stalls writers
    ├── Unavailable          the node can't be reached, or the connection broke (retriable)
    ├── DeadlineExceeded     the time given by the caller is over
    ├── BrokerGroupUnreachable  no member was reached in that time
    ├── ServerError          a node failed in a way that only its log explains
    │   └── NotOffered       that node's program, or that address of it, doesn't have the call
    ├── ClientFault          this library failed; `__cause__` says how
    ├── BufferFull           the producer's bound is reached: wait for `room()` (retriable)
    ├── ProducerClosed       the producer was closed
    ├── ClientClosed         the client was closed
    ├── WrongThread          used in another event loop, or thread, than its own
    ├── Forked               connected before the process was forked
    ├── SendsFailed          messages failed whose futures nobody has looked at
    ├── ConsumerInUse        another loop reads this consumer
    ├── GroupHasMembers      the consumer group has members: commit as one, join in their style
    ├── GroupDiffers         its members agreed on other settings
    ├── SessionEnded         this member's session is over; it joins anew by itself
    ├── MemberReplaced       another process is this member now
    ├── LeaseLost            the queue is held by another member, or was meanwhile
    ├── GroupStyled          the group is used in another way: its queues, or single messages
    ├── ReceiptExpired       the message is in another hand by now, or was given back
    ├── UnknownStrategy      the leader doesn't know the group's strategy
    ├── GroupNotFound        nobody ever joined that consumer group, or committed for it
    ├── GroupExists
    └── OffsetsFileUnusable  a broadcast group's offsets can't be read or kept

Three facts are common to all: `code` (the wire's name for it), `retriable` (the same call may
succeed later) and `outcome`. Source: `proto/dledger/wire/errors.proto`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar, Final, Self

import grpc

from dledger.limits import ERROR_METADATA_KEY
from dledger.outcome import ExitCode, Outcome
from dledger.wire import errors_pb2 as pb


class Subject(Enum):
    """What an error is about: (name, what happens to it)."""

    REQUEST = ("the request", "carried out")
    MESSAGE = ("the message", "stored")
    MESSAGES = ("the messages", "stored")
    BODY = ("the body", "read")


class ClientError(Exception):
    """Root of the client's errors.

    Attributes:
        message: what went wrong, without the outcome; `str()` adds the outcome.
        retriable: the same call may succeed later, unchanged.
        outcome: whether the thing happened.
        leader: `(node id, address)` of the leader, where the node that refused knew one.
        term: the term of the node that refused, 0 when unknown.
        exit_code: what a program that ends with this error should tell its shell.
    """

    code: ClassVar[str] = "CLIENT_ERROR"
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    default_retriable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        outcome: Outcome = Outcome.DID_NOT_HAPPEN,
        retriable: bool | None = None,
        subject: Subject = Subject.REQUEST,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.outcome = outcome
        self.retriable = self.default_retriable if retriable is None else retriable
        self.subject = subject
        self.leader: tuple[str, str] | None = None
        self.term = 0

    def __str__(self) -> str:
        name, verb = self.subject.value
        if self.outcome is Outcome.DID_NOT_HAPPEN:
            was = "were" if self.subject is Subject.MESSAGES else "was"
            return f"{self.message}; {name} {was} not {verb}"
        return f"{self.message}; {name} may have been {verb}"

    def halfway(self, done: str) -> Self:
        """A copy for a call of two steps whose second failed: what is `done` has happened."""
        copy = type(self)(
            f"{done}; {self.message}", outcome=Outcome.MAY_HAVE_HAPPENED, retriable=self.retriable
        )
        copy.leader, copy.term = self.leader, self.term
        copy.__cause__ = self
        return copy

    def in_doubt(self) -> Self:
        """The same, of what may have happened before this attempt failed: a copy, as others may
        have been told of this one."""
        copy = type(self)(
            self.message,
            outcome=Outcome.MAY_HAVE_HAPPENED,
            retriable=self.retriable,
            subject=self.subject,
        )
        copy.leader, copy.term = self.leader, self.term
        copy.__cause__ = self.__cause__
        return copy

    def about_message(self, outcome: Outcome) -> Self:
        """A fresh copy for one message's future. Futures must not share an exception: each
        `await` that raises it would add its frames to the same traceback."""
        copy = type(self)(
            self.message, outcome=outcome, retriable=self.retriable, subject=Subject.MESSAGE
        )
        copy.leader, copy.term = self.leader, self.term
        copy.__cause__ = self.__cause__
        return copy


class InvalidArgument(ClientError, ValueError):
    """The request is wrong."""

    code = "INVALID_ARGUMENT"
    exit_code = ExitCode.USAGE


class MessageTooLarge(InvalidArgument):
    """The body is over the limit."""

    code = "MESSAGE_TOO_LARGE"
    exit_code = ExitCode.FAILED  # A program's arguments are right, its input is not.


class RecordCorrupt(InvalidArgument):
    """Record bytes contradict themselves; on a pull, the fault is the node's or the network's."""

    code = "RECORD_CORRUPT"
    exit_code = ExitCode.FAILED


class BodyUnreadable(ClientError):
    """A message's body was stored compressed and can't be decompressed: it is broken, larger than a
    body may be, or of a codec that isn't known here. `stored_body` has it as it is stored."""

    code = "BODY_UNREADABLE"


class CodecMissing(BodyUnreadable):
    """The library that reads and writes bodies of this codec isn't installed."""

    code = "CODEC_MISSING"
    exit_code = ExitCode.USAGE


class TopicNotFound(ClientError):
    """No topic of this name exists."""

    code = "TOPIC_NOT_FOUND"


class TopicReplaced(ClientError):
    """The topic that was meant was deleted, and another one has its name now. Nothing is done to
    that one; whoever means it asks anew."""

    code = "TOPIC_REPLACED"


class TopicExists(ClientError):
    """A topic of this name exists, perhaps with another number of queues."""

    code = "TOPIC_EXISTS"


class TopicNotWritable(ClientError):
    """The topic's permission says that nobody sends to it now."""

    code = "TOPIC_NOT_WRITABLE"


class TopicNotReadable(ClientError):
    """The topic's permission says that nobody reads it now. What was read and committed stays so,
    and can be committed."""

    code = "TOPIC_NOT_READABLE"


class QueueNotFound(ClientError):
    """The topic has fewer queues."""

    code = "QUEUE_NOT_FOUND"


class QueueClosed(ClientError):
    """The queue is read, and takes no messages any more."""

    code = "QUEUE_CLOSED"


class QueuesChanged(ClientError):
    """The topic takes messages in other queues than the sender knew: producers read it again by
    themselves."""

    code = "QUEUES_CHANGED"


class QueuesUnread(ClientError):
    """A consumer group hasn't read a queue that would go to its end, or nobody is known to have: no
    group has begun, or members of one that broadcasts are at work. Or failed messages wait to come
    to a topic of theirs that would go."""

    code = "QUEUES_UNREAD"


class OffsetOutOfRange(ClientError):
    """The offset is negative, deleted by retention, or beyond the end of the queue.

    Attributes:
        valid: the first offset that can be asked for, and one past the last message; None where the
            node didn't say.
    """

    code = "OFFSET_OUT_OF_RANGE"
    valid: tuple[int, int] | None = None


class MessageNotFound(ClientError):
    """No message is at this place."""

    code = "MESSAGE_NOT_FOUND"


class WrongBrokerGroup(ClientError):
    """The node is a member of another broker group than the one asked for."""

    code = "WRONG_BROKER_GROUP"


class NotLeader(ClientError):
    """The node does not lead; `leader` says who does, where it knows."""

    code = "NOT_LEADER"
    default_retriable = True


class NotReady(ClientError):
    """The node is elected but does not serve yet, or is being stopped."""

    code = "NOT_READY"
    default_retriable = True


class Busy(ClientError):
    """A bound of the node is reached."""

    code = "BUSY"
    default_retriable = True


class StorageFull(ClientError):
    """The leader's disk is full."""

    code = "STORAGE_FULL"
    default_retriable = True


class OutOfSequence(ClientError):
    """An earlier batch of this producer has not been stored."""

    code = "OUT_OF_SEQUENCE"
    default_retriable = True


class UnknownProducer(ClientError):
    """The brokers know no such producer, or none any more: what it sent may have been stored."""

    code = "UNKNOWN_PRODUCER"


class ProducerFenced(ClientError):
    """Another producer has registered the same name since: that one sends now, this one is over."""

    code = "PRODUCER_FENCED"


class LeadershipLost(ClientError):
    """Leadership changed after the request was taken, or while its answer was awaited."""

    code = "LEADERSHIP_LOST"
    default_retriable = True


class LimitReached(ClientError):
    """The brokers hold as many queues, consumer groups with offsets, or producers, as they may."""

    code = "LIMIT_REACHED"
    default_retriable = False


class TransferFailed(ClientError):
    """Leadership was not handed over: whom it was to go to can't take it now. Nothing asks again by
    itself, as a leader that hands over takes no messages meanwhile."""

    code = "TRANSFER_FAILED"
    default_retriable = False


class Unavailable(ClientError):
    """The node can't be reached, or the connection broke before the answer."""

    code = "UNAVAILABLE"
    default_retriable = True


class DeadlineExceeded(ClientError, TimeoutError):
    """The time for this is over."""

    code = "TIMED_OUT"
    exit_code = ExitCode.UNREACHABLE
    default_retriable = True


class BrokerGroupUnreachable(ClientError):
    """No member of the broker group could be reached."""

    code = "BROKER_GROUP_UNREACHABLE"
    exit_code = ExitCode.UNREACHABLE
    default_retriable = True


class ServerError(ClientError):
    """A node failed; its log says why."""

    code = "INTERNAL"


class NotOffered(ServerError):
    """That node's program, or that address of it, doesn't have what was asked for."""


class ClientFault(ClientError):
    """A defect of this library. The event loop's exception handler has been told of it."""

    code = "CLIENT_FAULT"


class BufferFull(ClientError):
    """The producer holds as many messages or bytes as it may."""

    code = "BUFFER_FULL"
    default_retriable = True


class ProducerClosed(ClientError):
    """The producer was closed."""

    code = "PRODUCER_CLOSED"


class ClientClosed(ClientError):
    """The client was closed, or the consumer."""

    code = "CLIENT_CLOSED"


class WrongThread(ClientError):
    """A client belongs to its event loop and to the thread of that, and was used in another one."""

    code = "WRONG_THREAD"


class Forked(ClientError):
    """A client was connected before the process was forked, and was used in the child."""

    code = "FORKED"


class SendsFailed(ClientError):
    """Messages failed, and nobody has looked at their futures; raised by `flush`, `close` and
    `send_all`.

    Attributes:
        failures: the messages' errors, each with its own `outcome`; the first 100.
        count: how many failed.
    """

    code = "SENDS_FAILED"
    MAX_FAILURES: Final = 100

    failures: Sequence[ClientError] = ()
    count = 0

    @classmethod
    def of(cls, failures: Sequence[ClientError], count: int) -> Self:
        """The error that tells of `count` failures; `failures` are all, or the first of them.
        Its outcome is the worst of theirs."""
        known = bool(failures) and count == len(failures)
        refused = known and all(e.outcome is Outcome.DID_NOT_HAPPEN for e in failures)
        what = "1 message" if count == 1 else f"{count:,} messages"
        first = f"; the first: {failures[0].message}" if failures else ""
        told = cls(
            f"{what} failed{first}",
            outcome=Outcome.DID_NOT_HAPPEN if refused else Outcome.MAY_HAVE_HAPPENED,
            subject=Subject.MESSAGE if count == 1 else Subject.MESSAGES,
        )
        told.failures, told.count = list(failures[: cls.MAX_FAILURES]), count
        if failures:
            told.__cause__ = failures[0]
        return told


class ConsumerInUse(ClientError):
    """A loop over this consumer has not ended: a second one would take its messages."""

    code = "CONSUMER_IN_USE"


class GroupHasMembers(ClientError):
    """The consumer group has members: offsets are committed by who holds the queue, and who joins
    in another style (in order, broadcast) waits until they have left."""

    code = "GROUP_HAS_MEMBERS"


class GroupDiffers(ClientError):
    """The members of the consumer group agreed on other settings; the message says which. A higher
    `version` changes them for all."""

    code = "GROUP_DIFFERS"


class SessionEnded(ClientError):
    """The member's session is over: it was silent for too long, or said goodbye."""

    code = "SESSION_ENDED"


class MemberReplaced(ClientError):
    """Another process has joined the consumer group under this member's name: it is the member."""

    code = "MEMBER_REPLACED"


class LeaseLost(ClientError):
    """The queue isn't this member's any more, or wasn't for a while: what it finished there and
    didn't commit before is handed out again, by whoever has the queue."""

    code = "LEASE_LOST"


class UnknownStrategy(ClientError):
    """The leader has no assignment strategy of this name."""

    code = "STRATEGY_UNKNOWN"


class GroupNotFound(ClientError):
    """Nobody ever joined the consumer group, or committed for it; or it is forgotten."""

    code = "GROUP_NOT_FOUND"


class GroupExists(ClientError):
    """Somebody has joined the consumer group, or committed for it: it can't be made, and topics of
    its failed messages can't go."""

    code = "GROUP_EXISTS"


class GroupStyled(ClientError):
    """The consumer group is used in another way: either its members hold queues, or single messages
    are handed out to it. It is so until nobody has used it for long."""

    code = "GROUP_STYLED"


class ReceiptExpired(ClientError):
    """The message isn't in this hand any more: its time was over and it was handed out again, or it
    was given back. Whatever was done with it will be done once more."""

    code = "RECEIPT_SUPERSEDED"


class OffsetsFileUnusable(ClientError):
    """The file with a broadcast group's offsets is another process's, no such file, or can't be
    written."""

    code = "OFFSETS_FILE_UNUSABLE"


_BY_CODE: Final[dict[int, type[ClientError]]] = {
    pb.INVALID_ARGUMENT: InvalidArgument,
    pb.MESSAGE_TOO_LARGE: MessageTooLarge,
    pb.RECORD_CORRUPT: RecordCorrupt,
    pb.TOPIC_NOT_FOUND: TopicNotFound,
    pb.TOPIC_REPLACED: TopicReplaced,
    pb.TOPIC_EXISTS: TopicExists,
    pb.TOPIC_NOT_WRITABLE: TopicNotWritable,
    pb.TOPIC_NOT_READABLE: TopicNotReadable,
    pb.QUEUE_NOT_FOUND: QueueNotFound,
    pb.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    pb.NOT_LEADER: NotLeader,
    pb.NOT_READY: NotReady,
    pb.BUSY: Busy,
    pb.STORAGE_FULL: StorageFull,
    pb.OUT_OF_SEQUENCE: OutOfSequence,
    pb.UNKNOWN_PRODUCER: UnknownProducer,
    pb.PRODUCER_FENCED: ProducerFenced,
    pb.LEADERSHIP_LOST: LeadershipLost,
    pb.TIMED_OUT: DeadlineExceeded,
    pb.SHUTTING_DOWN: NotReady,
    pb.WRONG_BROKER_GROUP: WrongBrokerGroup,
    pb.INTERNAL: ServerError,
    pb.MESSAGE_NOT_FOUND: MessageNotFound,
    pb.LIMIT_REACHED: LimitReached,
    pb.TRANSFER_FAILED: TransferFailed,
    pb.GROUP_HAS_MEMBERS: GroupHasMembers,
    pb.GROUP_DIFFERS: GroupDiffers,
    pb.SESSION_ENDED: SessionEnded,
    pb.MEMBER_REPLACED: MemberReplaced,
    pb.LEASE_LOST: LeaseLost,
    pb.STRATEGY_UNKNOWN: UnknownStrategy,
    pb.GROUP_NOT_FOUND: GroupNotFound,
    pb.GROUP_EXISTS: GroupExists,
    pb.GROUP_STYLED: GroupStyled,
    pb.QUEUES_CHANGED: QueuesChanged,
    pb.QUEUE_CLOSED: QueueClosed,
    pb.QUEUES_UNREAD: QueuesUnread,
    pb.RECEIPT_SUPERSEDED: ReceiptExpired,
}


def from_wire(error: pb.Error) -> ClientError:
    """The exception for an error that a node told. A code or an outcome that this version does
    not know is taken for the worse one."""
    kind = _BY_CODE.get(error.code, ServerError)
    refused = error.outcome == pb.DID_NOT_HAPPEN
    outcome = Outcome.DID_NOT_HAPPEN if refused else Outcome.MAY_HAVE_HAPPENED
    told = kind(error.message or kind.code, outcome=outcome, retriable=error.retriable)
    told.term = error.term
    if error.HasField("leader"):
        told.leader = (error.leader.node_id, error.leader.address)
    if isinstance(told, OffsetOutOfRange) and error.HasField("valid"):
        told.valid = (error.valid.min_offset, error.valid.max_offset)
    return told


def from_rpc(error: grpc.aio.AioRpcError, address: str) -> ClientError:
    """The exception for a call to `address` that ended without an answer."""
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == ERROR_METADATA_KEY and isinstance(value, bytes):
            return from_wire(pb.Error.FromString(value))
    details = error.details() or error.code().name
    return _from_status(error.code(), details, f"{address}: {details}")


def _from_status(status: grpc.StatusCode, details: str, text: str) -> ClientError:
    """gRPC's own failures. Only two of its texts prove that no handler saw the request; should
    a later gRPC word them otherwise, the outcome becomes "may have", which is safe."""
    unknown = Outcome.MAY_HAVE_HAPPENED
    match status:
        case grpc.StatusCode.UNAVAILABLE:
            never_sent = details.startswith("failed to connect to all addresses")
            return Unavailable(text, outcome=Outcome.DID_NOT_HAPPEN if never_sent else unknown)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(text, outcome=unknown)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            return MessageTooLarge(text, outcome=Outcome.DID_NOT_HAPPEN)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Busy(text, outcome=unknown)
        case grpc.StatusCode.CANCELLED | grpc.StatusCode.ABORTED:
            return Unavailable(text, outcome=unknown)
        case grpc.StatusCode.UNIMPLEMENTED:
            return NotOffered(text, outcome=Outcome.DID_NOT_HAPPEN)
        case grpc.StatusCode.UNAUTHENTICATED:
            return ServerError(text, outcome=Outcome.DID_NOT_HAPPEN)
        case _:
            return ServerError(text, outcome=unknown)
