"""Rows of a query into topics, each once: `df.write` and `writeStream` of the format `dledger`.

What a task does, in which order and why is ADR 33. This owns that order: spool, register, look
back, write the intent, send. The driver's part is to look whether somebody had begun who isn't
there any more. A write is an append, always; what an unfinished one has stored stays.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from dledger.client.epochs import TOKEN_SIZE
from dledger.client.errors import TopicNotFound
from dledger.spark import progress
from dledger.spark.brokers import Access, Brokers
from dledger.spark.errors import BadOption, SparkError, WriteRefused
from dledger.spark.progress import Intent, TopicIntent
from dledger.spark.rows import DIGEST_SIZE, QueueRows, Row, Spool, Target, rows_of
from dledger.spark.sending import QueueSend, send_all

if TYPE_CHECKING:
    import pyarrow

WRITE_OPTIONS: Final = ("topic", "producer", "batchId", "order")
ORDERS: Final = ("rows", "content")
_NAME: Final = re.compile(r"[A-Za-z0-9_%-]{1,100}")  # With what is put behind it, a topic's still.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"

Places = Mapping[tuple[str, int], int]  # by topic and queue


@dataclass(frozen=True, slots=True)
class Writing:
    """What all tasks of one write share.

    Attributes:
        topic: of all rows; empty: the column says.
        producer: the names' first part; empty: of a stream, whose query's id is it.
        batch: what `producer` is writing; of a stream, whose tasks know, anything.
        has_intents: whether tasks write them: not for a producer that will never come back.
    """

    access: Access
    topic: str
    producer: str
    batch: int
    order: str
    has_intents: bool = True

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Writing:
        """What the options say.

        Raises:
            BadOption: they make no sense.
        """
        producer = options.get("producer", "")
        if producer and not _NAME.fullmatch(producer):
            raise BadOption(f"producer is {producer!r}: 1 to 100 of A-Z a-z 0-9 _ % - are wanted")
        text = options.get("batchId", "0")
        if not text.isascii() or not text.isdigit() or int(text) >= 1 << 63:
            raise BadOption(f"batchId is {text!r}: a number from 0 on is wanted")
        if "batchId" in options and not producer:
            raise BadOption("batchId says nothing without producer")
        order = options.get("order", ORDERS[0])
        if order not in ORDERS:
            raise BadOption(f"order is {order!r}: {' or '.join(ORDERS)} is wanted")
        return cls(Access.of(options), options.get("topic", ""), producer, int(text), order)

    @property
    def progress_topic(self) -> str:
        return f"{self.producer}-progress"


class Written(WriterCommitMessage):
    """What a task did; the driver gets it."""

    def __init__(self, writing: Writing, partition: int, rows: int, stored_before: int) -> None:
        self.writing = writing
        self.partition = partition
        self.rows = rows
        self.stored_before = stored_before


class TopicsWriter(DataSourceArrowWriter):
    """One write. Without a name it is a producer of its own."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        if not writing.producer:
            self._writing = replace(writing, producer=f"spark-{uuid.uuid4()}", has_intents=False)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        return write_task(self._writing, _context().partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nobody had begun who isn't there any more."""
        check_told(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What is stored stays stored; the write done again goes on behind it if it has a name."""


class TopicsStreamWriter(DataSourceStreamArrowWriter):
    """The batches of a query."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query or batch is None:
            raise SparkError("Spark tells this task neither its query nor its batch")
        producer = self._writing.producer or f"spark-{query}"
        writing = replace(self._writing, producer=producer, batch=int(batch))
        return write_task(writing, context.partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nobody had begun who isn't there any more."""
        check_told(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What is stored stays stored; the batch done again goes on behind it."""


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SparkError("this is no task of Spark's")
    return context


def check_told(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Every partition that began to write in the batch has told its end.

    Raises:
        WriteRefused: one hasn't.
    """
    told = [each for each in messages if isinstance(each, Written)]
    if not told or not told[0].writing.has_intents:
        return
    writing = told[0].writing
    with Brokers(writing.access) as brokers:
        if brokers.topic(writing.progress_topic) is None:
            return  # No task had a row so far.
        intents = progress.intents_since(brokers, writing.progress_topic, writing.batch)
    progress.check_all_told(intents, writing.batch, {each.partition for each in told})


# --- a task ------------------------------------------------------------------------------------


def write_task(writing: Writing, partition: int, batches: Iterator[pyarrow.RecordBatch]) -> Written:
    """The partition's rows are stored, each once, however often this was begun.

    Raises:
        RowRefused: a row can't be a message; nothing was sent.
        WriteRefused: the rows aren't those of an earlier attempt; nothing more was sent.
        ClientError: the brokers refused, or another attempt has taken the name over.
    """
    with Brokers(writing.access) as brokers, Spool(time.time_ns() // 1_000_000) as spool:
        targets = _spooled(writing, brokers, spool, batches)
        if not spool.queues:
            _check_nothing_begun(writing, partition, brokers)
            return Written(writing, partition, 0, 0)
        return _Task(writing, partition, brokers, spool, targets).run()


def _spooled(
    writing: Writing, brokers: Brokers, spool: Spool, batches: Iterator[pyarrow.RecordBatch]
) -> dict[str, Target]:
    """Every row is in the spool, in the order in which it will be sent; the topics they are for."""
    targets: dict[str, Target] = {}
    for row in rows_of(batches, writing.topic):
        if row.topic not in targets:
            found = brokers.topic(row.topic)
            if found is None:
                raise TopicNotFound(f"there is no topic {row.topic!r} to write to")
            targets[row.topic] = Target(found.incarnation, len(found.bounds))
        spool.add(row, targets[row.topic])
    if writing.order == "content":
        spool.sort()
    return targets


def _check_nothing_begun(writing: Writing, partition: int, brokers: Brokers) -> None:
    """A task without rows had none at earlier attempts either."""
    if not writing.has_intents or brokers.topic(writing.progress_topic) is None:
        return
    intents = progress.intents_since(brokers, writing.progress_topic, writing.batch)
    before = progress.own_intent(intents, writing.batch, partition)
    if before is not None:
        progress.check_same(before, Intent(writing.batch, partition, "", {}))


class _Task:
    """One attempt of one partition with rows, from its registration on."""

    def __init__(
        self,
        writing: Writing,
        partition: int,
        brokers: Brokers,
        spool: Spool,
        targets: Mapping[str, Target],
    ) -> None:
        self._writing = writing
        self._partition = partition
        self._brokers = brokers
        self._spool = spool
        self._targets = targets
        self._producer_id = b""
        self._numbers: dict[tuple[str, int, int], int] = {}  # topic, incarnation, queue: the next

    def run(self) -> Written:
        if self._writing.has_intents:
            self._brokers.create_topic(self._writing.progress_topic, 1)
        name = f"{self._writing.producer}-{self._partition}"
        answer = self._brokers.register(name, os.urandom(TOKEN_SIZE))
        self._producer_id = answer.producer_id
        self._numbers = {
            (each.topic, each.topic_incarnation, each.queue_id): each.sequence
            for each in answer.next_sequences
        }
        bases = self._bases(answer.origin.hex()) if self._writing.has_intents else {}
        sends = [self._send(place, rows, bases) for place, rows in self._spool.queues.items()]
        before = sum(each.at for each in sends)
        patience_s = self._writing.access.timeout_s
        sent = send_all(self._brokers, self._producer_id, self._spool, sends, patience_s)
        return Written(self._writing, self._partition, sent.rows + before, before)

    def _next_number(self, topic: str, queue_id: int) -> int:
        return self._numbers.get((topic, self._targets[topic].incarnation, queue_id), 0)

    def _send(self, place: tuple[str, int], rows: QueueRows, bases: Places) -> QueueSend:
        """What is left of a queue's rows.

        Raises:
            WriteRefused: the brokers hold fewer or more of the producer's messages than can be.
        """
        topic, queue_id = place
        base = bases.get(place, 0)
        stored = self._next_number(topic, queue_id) - base
        if not 0 <= stored <= len(rows.places):
            raise WriteRefused(
                f"{topic}/{queue_id} holds {stored} of {len(rows.places)} rows of partition "
                f"{self._partition} of batch {self._writing.batch}: the brokers have lost "
                "messages, or another program uses this producer's name"
            )
        incarnation = self._targets[topic].incarnation
        return QueueSend(topic, incarnation, queue_id, base, rows.places, stored)

    # --- the intent ---------------------------------------------------------------------------

    def _bases(self, origin: str) -> Places:
        """Where the batch's numbers began in each queue: what is written down, or is from now on.

        Raises:
            WriteRefused: what is written down is of other rows.
        """
        writing = self._writing
        now = Intent(writing.batch, self._partition, origin, self._topics())
        intents = progress.intents_since(self._brokers, writing.progress_topic, writing.batch)
        before = progress.own_intent(intents, writing.batch, self._partition)
        if before is None:
            self._write_down(now)
            before = now
        else:
            progress.check_same(before, now)
        return {
            (topic, queue_id): base
            for topic, each in before.topics.items()
            if each.incarnation == self._targets[topic].incarnation
            for queue_id, (base, _) in each.queues.items()
        }

    def _topics(self) -> dict[str, TopicIntent]:
        """What the spool holds, as an intent tells it."""
        return {
            topic: TopicIntent(
                target.incarnation,
                {
                    queue_id: (self._next_number(topic, queue_id), len(rows.places))
                    for (name, queue_id), rows in self._spool.queues.items()
                    if name == topic
                },
                self._digest(topic),
            )
            for topic, target in self._targets.items()
        }

    def _digest(self, topic: str) -> str:
        """Of the topic's rows, queue by queue, in order."""
        digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
        for (name, queue_id), rows in sorted(self._spool.queues.items(), key=lambda each: each[0]):
            if name == topic:
                digest.update(queue_id.to_bytes(4, "big"))
                digest.update(len(rows.places).to_bytes(8, "big"))
                digest.update(b"".join(place.digest for place in rows.places))
        return digest.hexdigest()

    def _write_down(self, intent: Intent) -> None:
        """The intent is in the log."""
        found = self._brokers.topic(self._writing.progress_topic)
        if found is None:
            raise WriteRefused(f"there is no topic {self._writing.progress_topic!r} any more")
        number = self._numbers.get((found.name, found.incarnation, progress.QUEUE), 0)
        target = Target(found.incarnation, len(found.bounds))
        with Spool(time.time_ns() // 1_000_000) as spool:
            spool.add(Row(found.name, progress.QUEUE, None, b"", intent.encode()), target)
            places = spool.queues[found.name, progress.QUEUE].places
            send = QueueSend(found.name, found.incarnation, progress.QUEUE, number, places, 0)
            send_all(
                self._brokers, self._producer_id, spool, [send], self._writing.access.timeout_s
            )
