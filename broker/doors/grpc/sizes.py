"""How long a request may be, and how many of each thing it may hold; asked before anything is made
of it.

To parse bytes, and to make plain values of what they say, is one step of the event loop in which
nobody votes and nobody is answered; and two bytes are an entry. So bytes are counted before they
are parsed, and entries, which costs one look at a number, before they are turned into values. The
numbers are the services' own: each asks again for what it takes. Every repeated field of a request
has one here, or the door doesn't open; all those at one path count together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import Message

from broker.services.audit import MAX_BLOCKS
from broker.services.deliveries import MAX_SETTLEMENTS
from broker.services.groups import MAX_QUEUES_IN_COMMIT, MAX_RUNS_IN_COMMIT
from broker.services.offsets import MAX_OFFSETS_IN_COMMIT
from broker.services.queue_pulls import MAX_QUEUES, MAX_TAGS_IN_ALL
from broker.services.retries import MAX_MESSAGES_IN_CALL
from broker.services.topics import MAX_QUEUES as MAX_TOPIC_QUEUES
from broker.state.filters import MAX_TAGS
from broker.state.groups import MAX_CHOICES, MAX_TOPICS
from dledger.core.group_epoch import MAX_RECOVERIES
from dledger.limits import MAX_SEND_BATCHES, RPC_LIMIT_BYTES

# Of most requests: the worst that can be parsed of it is some 20 ms. None that fits its counts is
# as long, except those below.
MAX_LENGTH: Final = 256 << 10
MAX_LENGTHS: Final = {
    "Broker.Send": RPC_LIMIT_BYTES,  # bodies; see MAX_FIELDS
    "Groups.CommitLeases": 1 << 20,  # a number of a run has up to ten bytes
    "Groups.PullQueues": 1 << 20,  # each queue names its tags
    "RaftPeer.Replicate": RPC_LIMIT_BYTES,  # peers', and entries
}
# Fields at the top of a request, where bytes alone don't bound what it costs to parse: its entries,
# and some that a later program may add. The last `MAX_LENGTH` aren't looked through, so that most
# Sends aren't at all: others may be as long.
MAX_FIELDS: Final = {"Broker.Send": MAX_SEND_BATCHES + 64}

MAX_NAMED: Final = 256  # members in one change
MAX_COUNTS: Final[dict[str, dict[str, int]]] = {
    "Audit.DigestRanges": {"edges": MAX_BLOCKS + 1},
    "Broker.CommitOffsets": {"offsets": MAX_OFFSETS_IN_COMMIT},
    "Broker.Pull": {"tags": MAX_TAGS},
    "Broker.Send": {"batches": MAX_SEND_BATCHES},
    "Cluster.ChangeMembers": {
        "add": MAX_NAMED,
        "add.held.epoch.earlier": MAX_NAMED * MAX_RECOVERIES,
        "remove": MAX_NAMED,
        "promote": MAX_NAMED,
        "demote": MAX_NAMED,
    },
    "Cluster.ReplaceDisk": {"held.epoch.earlier": MAX_RECOVERIES},
    "Consumers.MoveGroup": {"queue_ids": MAX_TOPIC_QUEUES},
    "Deliveries.Receive": {"settled": MAX_SETTLEMENTS},
    "Deliveries.Settle": {"settled": MAX_SETTLEMENTS},
    "Groups.Attend": {
        "join.settings.topics": MAX_TOPICS,
        "join.settings.filters.topics": MAX_TOPICS,
        "join.settings.filters.topics.tags": MAX_TAGS,
        "join.queues": MAX_CHOICES,
        "join.queues.queue_ids": MAX_CHOICES,
    },
    "Groups.CommitLeases": {
        "topics": MAX_QUEUES_IN_COMMIT,
        "topics.queues": MAX_QUEUES_IN_COMMIT,
        # Those of queues that have too many don't count in a commit: others aren't held up.
        "topics.queues.finished": 4 * MAX_RUNS_IN_COMMIT,
    },
    "Groups.PullQueues": {"queues": MAX_QUEUES, "queues.tags": MAX_TAGS_IN_ALL},
    "Groups.SendBack": {"messages": MAX_MESSAGES_IN_CALL},
}
# Not of the broker: theirs are looked at by who handles them.
_UNCOUNTED: Final = frozenset({"RaftPeer.Replicate"})

Excess = Callable[[Any], str]


def name_of(method: MethodDescriptor) -> str:
    """As it is called here."""
    return f"{method.containing_service.name}.{method.name}"


def not_worth_parsing(method: MethodDescriptor) -> Callable[[bytes], str]:
    """Says of a request's bytes why they aren't even parsed; empty if they are."""
    name = name_of(method)
    longest, fields = MAX_LENGTHS.get(name, MAX_LENGTH), MAX_FIELDS.get(name)

    def why(data: bytes) -> str:
        if len(data) > longest:
            return f"{name} takes {longest:,} bytes at most, not {len(data):,}"
        if fields is not None and _has_more(data, fields, len(data) - MAX_LENGTH):
            return f"{name} takes {fields:,} fields at most"
        return ""

    return why


def too_many(method: MethodDescriptor) -> Excess:
    """Says of a request what it holds too many of; empty if of nothing.

    Raises:
        KeyError: a repeated field has no bound.
    """
    name = name_of(method)
    paths = () if name in _UNCOUNTED else repeated(method.input_type)
    counted = [(path, path.split("."), MAX_COUNTS[name][path]) for path in paths]

    def why(request: Any) -> str:
        # What holds others comes before them, so that no look is longer than what is allowed.
        for path, names, most in counted:
            found = len(getattr(request, path)) if len(names) == 1 else _count(request, names)
            if found > most:
                return f"{name} takes {most:,} at most of {path}, not {found:,}"
        return ""

    return why


def repeated(message: Descriptor) -> Iterator[str]:
    """The paths of all repeated fields, the outer before the inner. No request holds itself."""
    for field in message.fields:
        if _is_repeated(field):
            yield field.name
        if field.message_type is not None:
            yield from (f"{field.name}.{path}" for path in repeated(field.message_type))


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _count(request: Message, names: list[str]) -> int:
    holders: Iterable[Any] = (request,)
    for name in names[:-1]:
        holders = [inner for each in holders for inner in _within(each, name)]
    return sum(len(getattr(each, names[-1])) for each in holders)


def _within(message: Message, name: str) -> Iterable[Any]:
    if _is_repeated(message.DESCRIPTOR.fields_by_name[name]):
        found: Iterable[Any] = getattr(message, name)
        return found
    return (getattr(message, name),) if message.HasField(name) else ()


# --- fields in bytes -----------------------------------------------------------------------------


def _has_more(data: bytes, most: int, end: int) -> bool:
    """Whether more than `most` fields begin before `end`, at the top; also of what no parser
    takes."""
    at = count = 0
    try:
        while at < end:
            count += 1
            if count > most:
                return True
            tag, at = _varint(data, at)
            match tag & 7:
                case 2:  # bytes, as all are that a Send has
                    size, at = _varint(data, at)
                    at += size
                case 0:
                    _, at = _varint(data, at)
                case 1:
                    at += 8
                case 5:
                    at += 4
                case _:
                    return True  # groups, which nobody sends, and what is none
    except IndexError:
        return True  # it ends within a field
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number there, and where it ends."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise IndexError
