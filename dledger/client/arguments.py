"""Arguments that are of a wrong kind, or that protobuf would refuse with a text naming none.

What is merely wrong (a topic name with a blank, an offset out of range) is the brokers' to judge:
one judge, one wording. What is checked here is refused before anything else has happened.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from operator import index
from types import NoneType
from typing import Any, Final, SupportsIndex

from dledger.client.errors import InvalidArgument, Subject

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MAX_TAGS: Final = 1_024  # that one reader wants
MAX_TAGS_BYTES: Final = 8 << 10  # of them all
MAX_TAG_BYTES: Final = 4 << 10  # of one that a consumer group wants

Labels = tuple[str, bytes, str | None, str | None, int | None]

# The types of (topic, body, key, tag, queue_id) that need no second look: one test a message.
USUAL: Final = frozenset(
    product((str,), (bytes,), (str, NoneType), (str, NoneType), (int, NoneType))
)
# Blanks separate keys in RocketMQ's KEYS; control characters separate properties, or lines.
_ARGUMENT_OF: Final = {"KEYS": "give it as key=", "TAGS": "give it as tag="}
# What RocketMQ's clients and brokers write and act on. A message that carries one of them by
# accident would be delayed, sent back or counted as a copy by who takes the name at its word, and
# would change its meaning on the day that this broker does. Source: RocketMQ `MessageConst`.
RESERVED: Final = frozenset(
    (
        *("KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG"),
        *("PGROUP", "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID"),
        *("TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "MSG_REGION"),
        *("TRACE_ON", "UNIQ_KEY", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES"),
        *("CONSUME_START_TIME", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"),
        *("TRANSACTION_ID", "CHECK_IMMUNITY_TIME_IN_SECONDS", "INSTANCE_ID", "CORRELATION_ID"),
        *("REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE"),
        *("POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC"),
        *("TIMER_DELAY_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"),
        *("TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "TIMER_DEL_FLAG"),
        *("INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"),
        *("DUP_INFO", "BATCH_COMMIT", "CRC32", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
        *("BORN_HOST", "BORN_TIMESTAMP", "KEYS_LIST", "TRACE_CONTEXT"),
    )
)
_NOT_IN_A_KEY: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


def text(name: str, value: str) -> str:
    """`value`, which the wire can carry; protobuf's own error would name no argument.

    Raises:
        InvalidArgument: it is no text, or can't be UTF-8.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is of type {type(value).__name__}; wanted: a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} {value!r} is not valid Unicode") from error
    return value


def flag(name: str, value: object) -> bool:
    """`value`, which is True or False: that a text is truthy means nothing.

    Raises:
        InvalidArgument: it is neither.
    """
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} is of type {type(value).__name__}; wanted: True or False")
    return value


def mapping(name: str, value: object) -> Mapping[Any, Any]:
    """`value`, which names something for each of several.

    Raises:
        InvalidArgument: it is no mapping.
    """
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{name} is of type {type(value).__name__}; wanted: a mapping")
    return value


MAX_RETENTION_HOURS: Final = 36_500 * 24


def u32(name: str, value: int) -> int:
    """`value`, which fits an unsigned 32-bit field."""
    return _in_range(name, value, 0, (1 << 32) - 1)


def u64(name: str, value: int) -> int:
    """`value`, which fits an unsigned 64-bit field."""
    return _in_range(name, value, 0, (1 << 64) - 1)


def i64(name: str, value: int) -> int:
    """`value`, which fits a signed 64-bit field."""
    return _in_range(name, value, -(1 << 63), (1 << 63) - 1)


def offset_number(name: str, value: object) -> int:
    """`value`, which may be an offset of a queue.

    Raises:
        InvalidArgument: it is no whole number, or less than 0: none has a meaning of its own here.
    """
    return _in_range(name, _number(name, value), 0, (1 << 63) - 1)


def seconds(name: str, value: object) -> float:
    """`value`, a time; what is negative is over, what is infinite never.

    Raises:
        InvalidArgument: it is no number.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        return value
    raise InvalidArgument(f"{name} is {value!r}; wanted: a number of seconds")


def retention_ms(hours: object) -> int:
    """Hours in milliseconds, for the wire; one at least, unless it is 0.

    Raises:
        InvalidArgument: it is no number of hours from 0 to a hundred years.
    """
    is_number = isinstance(hours, int | float) and not isinstance(hours, bool)
    if not is_number or not 0 <= hours <= MAX_RETENTION_HOURS:  # type: ignore[operator]
        limit = f"{MAX_RETENTION_HOURS:,}"
        raise InvalidArgument(f"a retention is {hours!r}; wanted: 0 to {limit} hours")
    return math.ceil(hours * 3_600_000)  # type: ignore[operator]


def queue_ids(value: object) -> list[int]:
    """The queue ids in `value`, each once, in its order.

    Raises:
        InvalidArgument: it is no sequence of numbers, or has none.
    """
    numbers = some_queue_ids(value)
    if not numbers:
        raise InvalidArgument("the list of queues to read is empty")
    return numbers


def some_queue_ids(value: object) -> list[int]:
    """As `queue_ids`, where none may be meant.

    Raises:
        InvalidArgument: it is no sequence of numbers.
    """
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Iterator):
        raise InvalidArgument(f"queues is of type {type(value).__name__}; wanted: numbers, or ALL")
    return list(dict.fromkeys(u32("queues: an id", queue_id) for queue_id in value))


def check_bounds_of_tags(tags: Collection[str]) -> None:
    """Raises when they are more than the brokers look for at once.

    Raises:
        InvalidArgument: they are.
    """
    if len(tags) > MAX_TAGS or sum(len(tag.encode()) for tag in tags) > MAX_TAGS_BYTES:
        raise InvalidArgument(
            f"{len(tags):,} tags wanted; at most {MAX_TAGS:,}, {MAX_TAGS_BYTES:,} bytes in all"
        )


def check_tags_of_group(tags: Collection[str]) -> None:
    """Raises when they are more than the brokers look for at once, or one is longer than they let a
    consumer group want.

    Raises:
        InvalidArgument: they are.
    """
    check_bounds_of_tags(tags)
    longest = max((len(tag.encode()) for tag in tags), default=0)
    if longest > MAX_TAG_BYTES:
        raise InvalidArgument(
            f"a tag of {longest:,} bytes wanted; a group's has {MAX_TAG_BYTES:,} at most"
        )


def wanted_tags(value: object) -> frozenset[str]:
    """The tags in `value`.

    Raises:
        InvalidArgument: it is no collection of tags; an expression of RocketMQ's (`*`, `a || b`),
            which as a tag would fit nothing, is none either; or it is too many.
    """
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise InvalidArgument(f"tags is of type {type(value).__name__}; wanted: several str")
    tags = frozenset(_plain("tags: one", tag) for tag in value)
    if not tags:
        raise InvalidArgument("the list of tags to read is empty; leave it out to read everything")
    for tag in tags:
        text("tags:", tag)
        if tag in ("", "*") or "||" in tag:
            raise InvalidArgument(f"tags: {tag!r} is no tag; name each one, or none for everything")
    check_bounds_of_tags(tags)
    return tags


def milliseconds(name: str, moment: datetime) -> int:
    """`moment` since the epoch, in whole milliseconds, rounded down.

    Raises:
        InvalidArgument: it has no time zone, so it names no moment.
    """
    if moment.tzinfo is None:
        raise InvalidArgument(f"{name} is {moment.isoformat()}, without a time zone")
    return (moment - EPOCH) // timedelta(milliseconds=1)


def message_arguments(
    topic: object, body: object, key: object, tag: object, queue_id: object
) -> Labels:
    """The arguments of a message in the types that are stored, for those not `USUAL`.

    Raises:
        InvalidArgument: one of them can't be taken for what it should be; it is named.
    """
    return (
        _plain("topic", topic),
        body_bytes(body),
        None if key is None else _key(key),
        None if tag is None else _plain("tag", tag),
        None if queue_id is None else _number("queue_id", queue_id),
    )


def property_texts(properties: object) -> dict[str, str]:
    """The properties as a mapping of one's own.

    Raises:
        InvalidArgument: it is no mapping, or not of texts to texts.
    """
    if not isinstance(properties, Mapping):
        raise _refused("properties", properties, "a mapping of str to str")
    taken = {
        _plain("properties: a name", name): _plain(f"properties: the value of {name!r}", value)
        for name, value in properties.items()
    }
    for name in taken:
        if name in RESERVED or name.startswith("__"):
            instead = _ARGUMENT_OF.get(name, "choose another name")
            raise InvalidArgument(
                f"properties: {name!r} is one of RocketMQ's own: {instead}",
                subject=Subject.MESSAGE,
            )
    return taken


def checked_key(key: str) -> str:
    """`key`, which is one key.

    Raises:
        InvalidArgument: it holds a blank, which would make it several, or a control character.
    """
    if _NOT_IN_A_KEY.search(key):
        raise InvalidArgument(
            f"key {key[:80]!r} has a blank or a control character", subject=Subject.MESSAGE
        )
    return key


def _key(key: object) -> str:
    if not isinstance(key, bytes):
        return _plain("key", key, "a str, or bytes in UTF-8")
    try:
        decoded = key.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"key {key[:80]!r} is not UTF-8: {error.reason}", subject=Subject.MESSAGE
        ) from error
    return checked_key(decoded)


def body_bytes(body: object) -> bytes:
    """A body's bytes, which nobody changes any more.

    Raises:
        InvalidArgument: it is of a wrong kind, or a view of a buffer that was let go.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise _refused("body", body, "bytes")
    try:
        return bytes(body)
    except ValueError as error:
        raise InvalidArgument(f"body can't be read: {error}", subject=Subject.MESSAGE) from error


def _plain(name: str, value: object, wanted: str = "a str") -> str:
    """Without what a subclass makes of it: an enum's member formats as its own name."""
    if isinstance(value, str):
        return str.__str__(value)
    raise _refused(name, value, wanted)


def _number(name: str, value: object) -> int:
    if not isinstance(value, bool):
        try:
            return index(value)  # type: ignore[arg-type]  # it is asked whether it can
        except TypeError:
            pass
    raise _refused(name, value, "an int")


def _refused(name: str, value: object, wanted: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name} is of type {type(value).__name__}; wanted: {wanted}", subject=Subject.MESSAGE
    )


def _in_range(name: str, value: int, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidArgument(f"{name} is of type {type(value).__name__}; wanted: an int")
    number = index(value)
    if not low <= number <= high:
        raise InvalidArgument(f"{name} is {number}, outside of {low} to {high}")
    return number
