"""Errors that the broker tells its callers, whatever door they came through.

    BrokerError(code, message)      raised: what a caller learns; never our own fault's traceback
    └── failure                     the same as a plain value, for an answer that holds several

One table decides, for each `ErrorCode`, whether retrying can help and whether the thing happened:
`TRAITS`. How an error looks on the wire is each door's own affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from dledger.outcome import Outcome


class ErrorCode(Enum):
    """What went wrong. A door finds its own word for each of these by its name."""

    INVALID_ARGUMENT = auto()  # the request is wrong; retrying it is useless
    MESSAGE_TOO_LARGE = auto()
    RECORD_CORRUPT = auto()  # record bytes whose lengths or CRC lie
    TOPIC_NOT_FOUND = auto()
    TOPIC_REPLACED = auto()  # the one that was meant is gone; another one has its name
    TOPIC_EXISTS = auto()
    QUEUE_NOT_FOUND = auto()
    OFFSET_OUT_OF_RANGE = auto()
    MESSAGE_NOT_FOUND = auto()
    NOT_LEADER = auto()  # go to `leader`
    NOT_READY = auto()  # elected, but not yet serving
    BUSY = auto()  # a bound is reached
    STORAGE_FULL = auto()
    OUT_OF_SEQUENCE = auto()  # an earlier batch of this producer is missing
    UNKNOWN_PRODUCER = auto()  # no such producer is registered, or none any more
    PRODUCER_FENCED = auto()  # another one has registered the same name since
    LEADERSHIP_LOST = auto()  # proposed, then leadership was lost
    TIMED_OUT = auto()
    SHUTTING_DOWN = auto()
    WRONG_BROKER_GROUP = auto()  # another one than this node's
    LIMIT_REACHED = auto()  # a bound on replicated state
    TRANSFER_FAILED = auto()
    GROUP_HAS_MEMBERS = auto()  # that is done only while it has none
    GROUP_DIFFERS = auto()  # its settings are others
    SESSION_ENDED = auto()  # there is no such session, or none any more
    MEMBER_REPLACED = auto()  # another process has joined as this member
    LEASE_LOST = auto()  # the queue isn't held by that epoch
    STRATEGY_UNKNOWN = auto()  # the leader has no strategy of that name
    GROUP_NOT_FOUND = auto()  # nobody ever joined or committed
    GROUP_EXISTS = auto()
    GROUP_STYLED = auto()  # the group is used in another way
    RECEIPT_SUPERSEDED = auto()  # the message isn't in that hand any more
    QUEUES_CHANGED = auto()  # the topic takes messages in other queues than the sender knew
    QUEUE_CLOSED = auto()  # it takes no messages any more
    QUEUES_UNREAD = auto()  # queues that would go aren't read by every group
    TOPIC_NOT_WRITABLE = auto()  # its permission says so
    TOPIC_NOT_READABLE = auto()
    INTERNAL = auto()


@dataclass(frozen=True, slots=True)
class Traits:
    """What an error code implies. `is_retriable`: the same request may succeed later, or at the
    leader."""

    is_retriable: bool
    outcome: Outcome = Outcome.DID_NOT_HAPPEN


_FOR_GOOD = Traits(is_retriable=False)
_FOR_NOW = Traits(is_retriable=True)
TRAITS: dict[ErrorCode, Traits] = {
    ErrorCode.INVALID_ARGUMENT: _FOR_GOOD,
    ErrorCode.MESSAGE_TOO_LARGE: _FOR_GOOD,
    ErrorCode.RECORD_CORRUPT: _FOR_GOOD,
    ErrorCode.TOPIC_NOT_FOUND: _FOR_GOOD,
    ErrorCode.TOPIC_REPLACED: _FOR_GOOD,
    ErrorCode.TOPIC_EXISTS: _FOR_GOOD,
    ErrorCode.QUEUE_NOT_FOUND: _FOR_GOOD,
    ErrorCode.OFFSET_OUT_OF_RANGE: _FOR_GOOD,
    ErrorCode.MESSAGE_NOT_FOUND: _FOR_GOOD,
    ErrorCode.NOT_LEADER: _FOR_NOW,
    ErrorCode.NOT_READY: _FOR_NOW,
    ErrorCode.BUSY: _FOR_NOW,
    ErrorCode.STORAGE_FULL: _FOR_NOW,
    ErrorCode.OUT_OF_SEQUENCE: _FOR_NOW,
    # The state that would tell is gone, so the batch may be in the log.
    ErrorCode.UNKNOWN_PRODUCER: Traits(is_retriable=False, outcome=Outcome.MAY_HAVE_HAPPENED),
    ErrorCode.PRODUCER_FENCED: _FOR_GOOD,
    ErrorCode.LEADERSHIP_LOST: Traits(is_retriable=True, outcome=Outcome.MAY_HAVE_HAPPENED),
    ErrorCode.TIMED_OUT: Traits(is_retriable=True, outcome=Outcome.MAY_HAVE_HAPPENED),
    ErrorCode.SHUTTING_DOWN: _FOR_NOW,
    ErrorCode.WRONG_BROKER_GROUP: _FOR_GOOD,
    ErrorCode.LIMIT_REACHED: _FOR_GOOD,
    # Each try takes proposals away for the time of a transfer: whether to have another is for
    # whoever asked to say.
    ErrorCode.TRANSFER_FAILED: _FOR_GOOD,
    ErrorCode.GROUP_HAS_MEMBERS: _FOR_GOOD,
    ErrorCode.GROUP_DIFFERS: _FOR_GOOD,
    ErrorCode.SESSION_ENDED: _FOR_GOOD,
    ErrorCode.MEMBER_REPLACED: _FOR_GOOD,
    ErrorCode.LEASE_LOST: _FOR_GOOD,
    ErrorCode.STRATEGY_UNKNOWN: _FOR_GOOD,
    ErrorCode.GROUP_NOT_FOUND: _FOR_GOOD,
    ErrorCode.GROUP_EXISTS: _FOR_GOOD,
    ErrorCode.GROUP_STYLED: _FOR_GOOD,
    ErrorCode.RECEIPT_SUPERSEDED: _FOR_GOOD,
    ErrorCode.QUEUES_CHANGED: _FOR_NOW,  # from the queue that is chosen by what is so now
    ErrorCode.QUEUE_CLOSED: _FOR_GOOD,
    ErrorCode.QUEUES_UNREAD: _FOR_GOOD,
    ErrorCode.TOPIC_NOT_WRITABLE: _FOR_GOOD,
    ErrorCode.TOPIC_NOT_READABLE: _FOR_GOOD,
    ErrorCode.INTERNAL: Traits(is_retriable=False, outcome=Outcome.MAY_HAVE_HAPPENED),
}


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A member of the broker group and where it is reached (`host:port`)."""

    node_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Failure:
    """What a caller is told of what failed; `leader` is whom to ask instead, where one is known;
    `valid`, of an offset that is out of range: the first one that isn't, and the last.

    A value and no exception: an exception that is kept holds the frames it came through, and with
    them the bytes of the batch that it refused.
    """

    code: ErrorCode
    message: str
    leader: NodeAddress | None = None
    term: int = 0
    valid: tuple[int, int] | None = None

    @property
    def traits(self) -> Traits:
        """What the code implies."""
        return TRAITS[self.code]


class BrokerError(Exception):
    """An error that a caller is told."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        leader: NodeAddress | None = None,
        term: int = 0,
        valid: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = Failure(code, message, leader, term, valid)

    @property
    def code(self) -> ErrorCode:
        """What went wrong."""
        return self.failure.code

    @property
    def message(self) -> str:
        """The text for people."""
        return self.failure.message

    @property
    def traits(self) -> Traits:
        """What the code implies."""
        return self.failure.traits


def out_of_range(place: str, offset: int, valid: tuple[int, int]) -> BrokerError:
    """What is told of an offset that isn't there, any more or yet."""
    text = f"offset {offset} of {place} is outside {valid[0]} to {valid[1]}"
    return BrokerError(ErrorCode.OFFSET_OUT_OF_RANGE, text, valid=valid)


def replaced(topic: str, meant: int, present: int) -> BrokerError:
    """What is told of a topic that is gone while another one has its name."""
    text = f"topic {topic!r} of entry {meant} was deleted, the one of entry {present} is another"
    return BrokerError(ErrorCode.TOPIC_REPLACED, text)


def own_topic(topic: str) -> BrokerError:
    """What is told of a topic that is the brokers' own: it can only be read."""
    text = f"topic {topic!r} is the brokers' own: it can be read, and nothing else"
    return BrokerError(ErrorCode.INVALID_ARGUMENT, text)


def not_writable(topic: str) -> BrokerError:
    """What is told of a topic to which nothing may be sent."""
    text = f"topic {topic!r} takes no messages: its permission doesn't say that it is written"
    return BrokerError(ErrorCode.TOPIC_NOT_WRITABLE, text)


def not_readable(topic: str) -> BrokerError:
    """What is told of a topic of which nothing may be read."""
    text = f"topic {topic!r} gives no messages: its permission doesn't say that it is read"
    return BrokerError(ErrorCode.TOPIC_NOT_READABLE, text)
