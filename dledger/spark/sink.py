"""Rows of a query into topics, each once: `df.write` and `writeStream` of the format `dledger`.

What a task does, in which order and why is ADR 33. This owns that order: spool, register, look
back, write the intent, send. The driver's part is to look whether somebody had begun who isn't
there any more. A write is an append, always; what an unfinished one has stored stays.
"""

from __future__ import annotations

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
from dledger.client.errors import QueuesChanged, TopicNotFound
from dledger.records.marks import mark_of, progress_topic
from dledger.spark import options as opt
from dledger.spark import progress
from dledger.spark.brokers import Access, Brokers, Topic
from dledger.spark.errors import BadOption, SparkError, WriteRefused
from dledger.spark.progress import Intent, Looked
from dledger.spark.rows import Row, Spool, Target, rows_of
from dledger.spark.sending import QueueSend, send_all
from dledger.spark.steps import Rows, Step, next_step, steps_of

if TYPE_CHECKING:
    import pyarrow

WRITE_OPTIONS: Final = (
    *("topic", "producer", "batchId", "order"),
    *("failOnLostIntents", "failOnLostMarks"),
)
ORDERS: Final = ("rows", "content")
_NAME: Final = re.compile(r"[A-Za-z0-9_%-]{1,100}")  # With what is put behind it, a topic's still.
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"

_CHANGES: Final = 16  # of its topics' queues that a task goes along with
_EPOCH_SIZE: Final = 8  # The first bytes of a producer's id: the entry that registered it.


@dataclass(frozen=True, slots=True)
class Writing:
    """What all tasks of one write share.

    Attributes:
        topic: of all rows; empty: the column says.
        producer: the names' first part; empty: of a stream, whose query's id is it.
        batch: what `producer` is writing; of a stream, whose tasks know, anything.
        has_intents: whether tasks write them: not for a producer that will never come back.
        as_of: without intents, an entry of before the first attempt of any task.
        fails_on_lost: whether a task ends where retention may have taken its intents.
        fails_on_lost_marks: and where nothing is left that says what batches are over.
        is_stream: whether batches are numbered one after the other.
    """

    access: Access
    topic: str
    producer: str
    batch: int
    order: str
    has_intents: bool = True
    as_of: int = 0
    fails_on_lost: bool = True
    fails_on_lost_marks: bool = True
    is_stream: bool = False

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
        return cls(
            *(Access.of(options), options.get("topic", ""), producer, int(text), order),
            fails_on_lost=opt.is_true(options, "failOnLostIntents"),
            fails_on_lost_marks=opt.is_true(options, "failOnLostMarks"),
        )

    @property
    def progress_topic(self) -> str:
        return progress_topic(self.producer)


class Written(WriterCommitMessage):
    """What a task did; the driver gets it."""

    def __init__(self, writing: Writing, partition: int, rows: int, stored_before: int) -> None:
        self.writing = writing
        self.partition = partition
        self.rows = rows
        self.stored_before = stored_before


class TopicsWriter(DataSourceArrowWriter):
    """One write. Without a name it is a producer of its own, of which nothing is written down: what
    is so in the log by now decides for all attempts of all tasks."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        if not writing.producer:
            self._writing = replace(
                writing,
                producer=f"spark-{uuid.uuid4()}",
                has_intents=False,
                as_of=_entry_now(writing.access),
            )

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        return write_task(self._writing, _context().partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nobody had begun who isn't there any more."""
        commit_batch(messages)

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
        writing = replace(self._writing, producer=producer, batch=int(batch), is_stream=True)
        return write_task(writing, context.partitionId(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nobody had begun who isn't there any more."""
        commit_batch(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What is stored stays stored; the batch done again goes on behind it."""


def _entry_now(access: Access) -> int:
    """An entry that is in the log since now: a producer's registration, as nothing else is told to
    a client by its index. Nobody sends by it, and it is forgotten within a day."""
    with Brokers(access) as brokers:
        identity = brokers.register("", os.urandom(TOKEN_SIZE)).producer_id
    return int.from_bytes(identity[:_EPOCH_SIZE], "big")


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SparkError("this is no task of Spark's")
    return context


def commit_batch(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Every partition that began to write in the batch has told its end; who begins later is told
    that the batch is over.

    Raises:
        WriteRefused: one hasn't, or a later batch has begun, or what would tell is gone.
    """
    told = [each for each in messages if isinstance(each, Written)]
    if not told or not told[0].writing.has_intents:
        return
    writing, partitions = told[0].writing, {each.partition for each in told}
    with Brokers(writing.access) as brokers:
        topic = brokers.topic(writing.progress_topic)
        if topic is None:
            if any(each.rows for each in told):
                raise WriteRefused(
                    f"there is no topic {writing.progress_topic!r} any more: nothing tells whether "
                    f"other partitions had begun to write batch {writing.batch}"
                )
            return  # No task had a row so far.
        looked = progress.look_back(brokers, topic.name, writing.batch, ())
        progress.check_all_told(looked, writing.batch, partitions)
        progress.check_all_seen(looked, writing.batch, {t.partition for t in told if t.rows})
        end = looked.bounds[1]
        if looked.intents:
            over = progress.Over(writing.batch, end).encode()
            _append(brokers, b"", topic, 0, over, writing.access.timeout_s)
            # Who wrote an intent before that is seen now, who does so behind it sees it (ADR 33).
            looked = progress.look_back(brokers, topic.name, writing.batch, (), behind=end)
            progress.check_all_told(looked, writing.batch, partitions)
            end = looked.bounds[1]
        mark = mark_of(topic.name, writing.batch)
        brokers.commit(mark, topic, progress.QUEUE, end)


def _append(
    brokers: Brokers, producer_id: bytes, topic: Topic, number: int, body: bytes, patience_s: float
) -> None:
    """The record is in the topic of intents."""
    with Spool(time.time_ns() // 1_000_000) as spool:
        spool.add(Row(topic.name, progress.QUEUE, None, b"", body))
        place = topic.name, topic.incarnation, progress.QUEUE, number
        send = QueueSend(*place, spool.topics[topic.name], 0, topic.changed)
        send_all(brokers, producer_id, spool, [send], patience_s)


# --- a task ------------------------------------------------------------------------------------


def write_task(writing: Writing, partition: int, batches: Iterator[pyarrow.RecordBatch]) -> Written:
    """The partition's rows are stored, each once, however often this was begun.

    Raises:
        RowRefused: a row can't be a message; nothing was sent.
        WriteRefused: the rows aren't those of an earlier attempt; nothing more was sent.
        ClientError: the brokers refused, or another attempt has taken the name over.
    """
    with Brokers(writing.access) as brokers, Spool(time.time_ns() // 1_000_000) as spool:
        _fill(writing, brokers, spool, batches)
        if not spool.topics:
            _check_nothing_begun(writing, partition, brokers)
            return Written(writing, partition, 0, 0)
        return _Task(writing, partition, brokers, spool).run()


def _fill(
    writing: Writing, brokers: Brokers, spool: Spool, batches: Iterator[pyarrow.RecordBatch]
) -> None:
    """Every row is in the spool, in the order in which it will be sent, and its topic is there."""
    for row in rows_of(batches, writing.topic):
        if row.topic not in spool.topics:
            _found(brokers, row.topic)
        spool.add(row)
    if writing.order == "content":
        spool.sort()


def _found(brokers: Brokers, name: str) -> Target:
    found = brokers.topic(name)
    if found is None:
        raise TopicNotFound(f"there is no topic {name!r} to write to")
    return Target.of(found)


def _check_nothing_begun(writing: Writing, partition: int, brokers: Brokers) -> None:
    """A task without rows had none at earlier attempts either."""
    if not writing.has_intents or brokers.topic(writing.progress_topic) is None:
        return
    looked = progress.look_back(brokers, writing.progress_topic, writing.batch, (partition,))
    progress.check_not_over(looked, writing.batch)
    for before in looked.intents:
        if before.partition == partition:
            progress.check_topics(_task(writing, partition), before, ())


def _task(writing: Writing, partition: int) -> str:
    return f"partition {partition} of batch {writing.batch}"


class _Task:
    """One attempt of one partition with rows, from its registration on."""

    def __init__(self, writing: Writing, partition: int, brokers: Brokers, spool: Spool) -> None:
        self._writing = writing
        self._partition = partition
        self._brokers = brokers
        self._spool = spool
        self._producer_id = b""
        self._looked_from = 0  # What is in the topic of intents from there on isn't known yet.
        self._numbers: dict[tuple[str, int], dict[int, int]] = {}  # topic, incarnation; queue

    def run(self) -> Written:
        """Every row is stored. Where a topic takes messages in other queues meanwhile, the task
        goes on as if it was repeated: what is stored by then is known once it is registered anew.
        """
        rows = sum(map(len, self._spool.topics.values()))
        before: int | None = None
        for left in reversed(range(_CHANGES)):
            sends = self._taken_up()
            if before is None:
                before = rows - sum(len(each.places) - each.at for each in sends)
            try:
                self._send(sends)
            except QueuesChanged:
                if not left:
                    raise
            else:
                break
        return Written(self._writing, self._partition, rows, before or 0)

    def _taken_up(self) -> list[QueueSend]:
        """What is left to be sent, and everybody else who could send it is fenced."""
        if self._writing.has_intents:
            self._brokers.create_topic(self._writing.progress_topic, 1)
        origin = self._register()
        targets = {topic: _found(self._brokers, topic) for topic in self._spool.topics}
        own = self._own_intents(origin) if self._writing.has_intents else []
        steps = {topic: self._step(topic, each, own) for topic, each in targets.items()}
        new = {topic: each.intent for topic, each in steps.items() if each.intent is not None}
        if new and self._writing.has_intents:
            self._write_down(Intent(self._writing.batch, self._partition, origin, new))
        return [
            QueueSend(
                topic,
                targets[topic].incarnation,
                queue_id,
                step.bases[queue_id],
                places,
                step.stored[queue_id],
                targets[topic].changed,
            )
            for topic, step in steps.items()
            for queue_id, places in step.layout.items()
        ]

    def _register(self) -> str:
        """The name is this attempt's; its origin."""
        name = f"{self._writing.producer}-{self._partition}"
        answer = self._brokers.register(name, os.urandom(TOKEN_SIZE), self._producer_id)
        self._producer_id = answer.producer_id
        self._numbers = {}
        for each in answer.next_sequences:
            numbers = self._numbers.setdefault((each.topic, each.topic_incarnation), {})
            numbers[each.queue_id] = each.sequence
        return answer.origin.hex()

    def _own_intents(self, origin: str) -> list[Intent]:
        """What earlier attempts wrote down, as far as it can be judged without the rows.

        Raises:
            WriteRefused: it is of other topics, or of a producer that was forgotten since.
        """
        writing = self._writing
        topic, batch = writing.progress_topic, writing.batch
        looked = progress.look_back(self._brokers, topic, batch, (self._partition,))
        if looked.bounds == (0, 0):
            self._set_first_mark()
        own = progress.own_intents(looked, batch, self._partition)
        if not own and not looked.is_whole:
            self._check_kept(looked)
        self._looked_from = looked.bounds[1]
        task = _task(writing, self._partition)
        for each in own:
            progress.check_origin(task, each, origin)
        for first in own[:1]:
            progress.check_topics(task, first, self._spool.topics)
        return own

    def _set_first_mark(self) -> None:
        """Before the first intent: from now on marks that aren't there were lost."""
        topic = self._brokers.topic(self._writing.progress_topic)
        if topic is not None:
            mark = mark_of(topic.name, self._writing.batch)
            self._brokers.commit(mark, topic, progress.QUEUE, 0)

    def _check_kept(self, looked: Looked) -> None:
        """Retention has taken nothing of this task's; or whoever wrote the options takes the risk.

        Raises:
            WriteRefused: it may have, or the batch is over.
        """
        writing = self._writing
        marks = progress.Marks.read(self._brokers, writing.progress_topic, writing.batch)
        if writing.is_stream:
            marks.check_not_committed()
        if not marks.are_set:
            if writing.fails_on_lost_marks:
                marks.check_there(looked)
            return
        # Whose next number there is 0 has never written an intent, in this batch or before; or is
        # forgotten, or a partition that a batch is given which was committed without it.
        numbers = self._numbers.get((writing.progress_topic, looked.incarnation), {})
        may_be_lost = numbers.get(progress.QUEUE, 0) or marks.own > marks.others
        if writing.fails_on_lost and may_be_lost:
            marks.check_kept(looked)

    def _step(self, topic: str, target: Target, own: Sequence[Intent]) -> Step:
        numbers = self._numbers.get((topic, target.incarnation), {})
        places = self._spool.topics[topic]
        rows = Rows(_task(self._writing, self._partition), topic, places, target, numbers)
        if not self._writing.has_intents:
            self._check_same_queues(rows)
            return next_step(rows, (), from_zero=True)
        taken = steps_of([each.topics for each in own], topic, target.incarnation)
        # Where the task had begun and the topic was made anew since, all in it is of this batch.
        return next_step(rows, taken, from_zero=bool(own))

    def _check_same_queues(self, rows: Rows) -> None:
        """What is stored went where it would go now.

        Raises:
            WriteRefused: nobody knows how many queues it was spread over.
        """
        if any(rows.numbers.values()) and rows.target.changed > self._writing.as_of:
            raise WriteRefused(
                f"topic {rows.topic!r} was given other queues while {rows.task} was being written, "
                "which is stored in part; a write with the option producer would go on"
            )

    def _send(self, sends: Sequence[QueueSend]) -> None:
        patience_s = self._writing.access.timeout_s
        send_all(self._brokers, self._producer_id, self._spool, sends, patience_s)

    def _write_down(self, intent: Intent) -> None:
        """The intent is in the log.

        Raises:
            WriteRefused: the batch was over by then: this attempt has outlived it.
        """
        writing = self._writing
        found = self._brokers.topic(writing.progress_topic)
        if found is None:
            raise WriteRefused(f"there is no topic {writing.progress_topic!r} any more")
        number = self._numbers.get((found.name, found.incarnation), {}).get(progress.QUEUE, 0)
        patience_s = writing.access.timeout_s
        _append(self._brokers, self._producer_id, found, number, intent.encode(), patience_s)
        looked = progress.look_back(
            self._brokers, found.name, writing.batch, (), behind=self._looked_from
        )
        progress.check_not_over(looked, writing.batch)
        if looked.over == writing.batch:
            raise WriteRefused(f"batch {writing.batch} was committed without this attempt")
