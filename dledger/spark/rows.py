"""Rows into records: which columns a message is made of, its queue, and a spool that keeps them.

A task's rows have to be known to the last before the first is sent (ADR 33): the spool holds them,
encoded, in memory up to `SPOOL_BYTES` and in a temporary file beyond. What is known of a row in
memory is its place there and its digest. Nothing here talks to a broker.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dledger.client.errors import ClientError
from dledger.client.routing import hash_of_key, labels
from dledger.limits import MAX_MESSAGE_BYTES
from dledger.records.errors import InvalidRecord
from dledger.records.record import RecordTemplate, set_queue_id
from dledger.spark.brokers import Topic
from dledger.spark.errors import BadOption, RowRefused
from dledger.spark.layout import DIGEST_SIZE, Layout, Place

if TYPE_CHECKING:
    import pyarrow

SPOOL_BYTES: Final = 64 << 20
_NOWHERE: Final = ("0.0.0.0", 0)  # The born host: executors come and go.
_TEXT: Final = ("string",)
WRITTEN: Final[dict[str, tuple[str, ...]]] = {  # Column: Spark's types that it may have.
    "topic": _TEXT,
    "queue_id": ("tinyint", "smallint", "int", "bigint"),
    "keys": _TEXT,
    "tags": _TEXT,
    "properties": ("map<string,string>",),
    "body": ("binary", "string"),
}
# What a source has besides, and the brokers give a message anew.
PASSED_OVER: Final = frozenset(
    ("queue_offset", "physical_offset", "index", "term", "incarnation", "born_time", "store_time")
)


def check_columns(types: Mapping[str, str], topic: str) -> None:
    """Messages can be made of rows with these columns.

    Args:
        types: Spark's, by column.
        topic: the option; empty: the column says.

    Raises:
        BadOption: they can't.
    """
    for name, found in types.items():
        wanted = WRITTEN.get(name)
        if wanted is not None and found not in wanted:
            raise BadOption(f"column {name!r} is of type {found}: {' or '.join(wanted)} is wanted")
        if wanted is None and name not in PASSED_OVER:
            raise BadOption(f"no message has a column {name!r}; it may have {', '.join(WRITTEN)}")
    if "body" not in types:
        raise BadOption("there is no column 'body'")
    if topic and "topic" in types:
        raise BadOption("option topic and column 'topic' exclude each other; drop the column")
    if not topic and "topic" not in types:
        raise BadOption("topic: neither an option nor a column says where rows are written to")


class Row(NamedTuple):
    """What a message is made of. `encoded`: its properties, as they are stored."""

    topic: str
    queue_id: int | None
    key: str | None
    encoded: bytes
    body: bytes

    def digest(self) -> bytes:
        """Of what is stored of the row, and nothing else: the same row, the same digest."""
        sizes = len(self.encoded).to_bytes(4, "big")
        return hashlib.blake2b(sizes + self.encoded + self.body, digest_size=DIGEST_SIZE).digest()


def rows_of(batches: Iterable[pyarrow.RecordBatch], topic: str) -> Iterator[Row]:
    """The rows, in order.

    Args:
        topic: of all of them; empty: the column says.

    Raises:
        RowRefused: a row can't be a message.
    """
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for at in range(batch.num_rows):
            values = {name: column[at] for name, column in columns.items() if name in WRITTEN}
            yield _row(values, topic)


def _row(values: Mapping[str, Any], topic: str) -> Row:
    body, name = values["body"], topic or values["topic"]
    if body is None or name is None:
        raise RowRefused(f"a row whose {'body' if body is None else 'topic'!s} is null")
    body = body.encode() if isinstance(body, str) else bytes(body)
    if len(body) > MAX_MESSAGE_BYTES:
        raise RowRefused(f"a body of {len(body)} bytes, the limit is {MAX_MESSAGE_BYTES}")
    key, tag = values.get("keys"), values.get("tags")
    properties = dict(values.get("properties") or ())
    for stored, column in (("KEYS", "keys"), ("TAGS", "tags")):
        # A source's `properties` hold them too; that a row says both and not the same is an error.
        if column in values and properties.get(stored) == values[column]:
            properties.pop(stored, None)
    try:
        encoded = labels(key, tag, properties)
    except ClientError as error:
        raise RowRefused(f"a row that can't be a message: {error.message}") from error
    return Row(name, values.get("queue_id"), key, encoded, body)


@dataclass(frozen=True, slots=True)
class Target:
    """A topic that is written to, as it is now.

    Attributes:
        read_queues: those that are read.
        write_queues: the first so many of them take messages.
        changed: the entry since which so many do.
    """

    incarnation: int
    read_queues: int
    write_queues: int
    changed: int = 0

    @classmethod
    def of(cls, topic: Topic) -> Target:
        return cls(topic.incarnation, len(topic.bounds), topic.write_queues, topic.changed)


class Spool:
    """A task's rows as records, by topic and queue; a context manager.

    Args:
        now_ms: when they were born.
    """

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._file = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)  # noqa: SIM115 - `close`
        self._size = 0
        self._templates: dict[str, RecordTemplate] = {}
        self.topics: dict[str, list[Place]] = {}  # in the order in which they are sent

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, row: Row) -> None:
        """The row is kept.

        Raises:
            RowRefused: it can't be written into a record, or no topic has such a queue.
        """
        record = self._template(row.topic).encode(0, row.body, row.encoded, self._now_ms)
        self._file.write(record)
        place = _place(row, self._size, len(record))
        self.topics.setdefault(row.topic, []).append(place)
        self._size += len(record)

    def _template(self, topic: str) -> RecordTemplate:
        try:
            if topic not in self._templates:
                self._templates[topic] = RecordTemplate(topic, _NOWHERE)
        except InvalidRecord as error:
            raise RowRefused(f"a row whose topic is {topic[:160]!r}: {error}") from error
        return self._templates[topic]

    def sort(self) -> None:
        """The order of each topic is its rows' own, and not that in which they came."""
        for places in self.topics.values():
            places.sort(key=lambda place: place.digest)

    def read(self, places: Sequence[Place], queue_id: int) -> bytes:
        """The records at these places, back to back, for that queue."""
        found = bytearray()
        starts = []
        for place in places:
            starts.append(len(found))
            self._file.seek(place.start)
            found += self._file.read(place.size)
        set_queue_id(found, starts, queue_id)
        return bytes(found)


def _place(row: Row, start: int, size: int) -> Place:
    digest = row.digest()
    if row.queue_id is not None:
        if row.queue_id < 0:
            raise RowRefused(f"a row whose queue_id isn't there: {row.queue_id}")
        return Place(digest, start, size, row.queue_id, is_fixed=True)
    if row.key is not None:
        return Place(digest, start, size, hash_of_key(row.key))
    return Place(digest, start, size, int.from_bytes(digest[:8], "big"))


def check_queues(topic: str, layout: Layout, target: Target) -> None:
    """Every row's queue takes messages.

    Raises:
        RowRefused: one doesn't.
    """
    strange = sorted(queue_id for queue_id in layout if queue_id >= target.write_queues)
    if strange:
        told = f"{topic!r} takes messages in queues 0 to {target.write_queues - 1}"
        raise RowRefused(f"a row whose queue_id isn't there: topic {told}, not {strange[0]}")
