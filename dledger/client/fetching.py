"""Reads queues ahead by long polling: one task a queue, answers as bytes, within bounds.

This owns a consumer's Pulls and what they have brought; who is given it, and when, is the
consumer's (`dledger.client.consumer`). A queue has at most two answers waiting or under way, so
that the records held stay within `prefetch_bytes`. It must never skip a message, unless that has
gone and the application said beforehand what then (`WhenGone`), and it tells which it passed over.
A queue that can't be read any more fails, the others then fetch no further, and the consumer is
told once what was fetched before has been taken. Where it was told that all queues are idle,
nothing is fetched until it asks for more; then silence is looked for anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping
from functools import partial
from typing import Final, NamedTuple, assert_never

from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import PULL
from dledger.client.errors import ClientClosed, ClientError, OffsetOutOfRange
from dledger.client.faults import client_error
from dledger.client.options import ConsumerOptions, WhenGone
from dledger.client.pulled import Asked, Pulled, pulled
from dledger.wire import broker_pb2 as pb

MIN_PULL_BYTES: Final = 16 << 10
MAX_PULL_MESSAGES: Final = 32_768
MIN_HOLD_MS: Final = 50  # between looks at a queue that is idle while others aren't yet
ANSWERS_PER_QUEUE: Final = 2  # waiting or under way


class Chunk(NamedTuple):
    """One Pull's answer, not yet decoded; or, without one, that the queue goes on at
    `skipped.stop`: those offsets are passed over, the first of which has gone."""

    reader: QueueReader
    answer: Pulled | None
    skipped: range = range(0)


class QueueReader:
    """One queue of a consumer: the next offset to fetch, and how long it has been empty.

    It had nothing from `empty_since` to `empty_until`, times of the loop's clock: when the first
    Pull that found nothing was sent, and when the last one was answered. `empty_since` is None
    when the last Pull brought something.
    """

    __slots__ = (
        "empty_since",
        "empty_until",
        "failure",
        "first_offset",
        "next_offset",
        "queue_id",
        "room",
        "task",
    )

    def __init__(self, queue_id: int, offset: int) -> None:
        self.queue_id = queue_id
        self.next_offset = self.first_offset = offset
        self.empty_since: float | None = None
        self.empty_until = 0.0
        self.room = asyncio.Semaphore(ANSWERS_PER_QUEUE)
        self.failure: ClientError | None = None  # set once: going on would skip messages
        self.task: asyncio.Task[None] | None = None


class Fetching:
    """The Pulls of one consumer.

    Args:
        idle_timeout_s: see `Client.pull_consumer`; it bounds how long a Pull is held.
        tags: what the brokers are to choose by; an older one gives everything all the same.
    """

    def __init__(
        self,
        broker_group: BrokerGroup,
        topic: str,
        options: ConsumerOptions,
        idle_timeout_s: float | None,
        tags: Collection[str] = (),
    ) -> None:
        self._broker_group = broker_group
        self._topic = topic
        self._tags = sorted(tags)
        self._options = options
        self._idle_timeout_s = idle_timeout_s
        self._loop = asyncio.get_running_loop()
        self._readers: dict[int, QueueReader] = {}
        self._chunks: deque[Chunk] = deque()  # `ANSWERS_PER_QUEUE` of each queue at most
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()  # nobody was told that all is idle, or has asked since
        self._wanted.set()
        self._wanted_since = 0.0
        self._ended = False
        self._incarnation = 0
        self._pull_bytes = options.pull_bytes
        self._failed: QueueReader | None = None  # the first one; the others stop for it
        self._told = False  # of that failure: nothing more is taken
        self._tasks: dict[asyncio.Task[None], None] = {}  # of readers, and of former ones

    @property
    def has_ended(self) -> bool:
        return self._ended

    @property
    def queue_ids(self) -> Collection[int]:
        return self._readers.keys()

    # --- from where ---------------------------------------------------------------------------

    def begin(self, offsets: Mapping[int, int], incarnation: int) -> None:
        """Fetches each queue from its offset on, of the topic with this incarnation."""
        self._incarnation = incarnation
        self.add(offsets)

    def add(self, offsets: Mapping[int, int]) -> None:
        """Fetches these queues as well, each from its offset on; none of them is read yet."""
        self._readers |= {queue: QueueReader(queue, offset) for queue, offset in offsets.items()}
        share = self._options.prefetch_bytes // (ANSWERS_PER_QUEUE * len(self._readers))
        self._pull_bytes = min(self._options.pull_bytes, max(share, MIN_PULL_BYTES))
        self._start()

    def fail(self, error: ClientError) -> None:
        """What is to be read can't be told: it ends as if a queue had failed."""
        self._fail(next(iter(self._readers.values())), error)

    def begin_again(self, queue_id: int, offset: int) -> None:
        """Fetches this queue from `offset` on; what was fetched of it is dropped. If it had
        failed, the others, which wait for it, go on as well."""
        old = self._readers[queue_id]
        if old.task is not None:
            old.task.cancel()
        self._drop(old)
        self._readers[queue_id] = QueueReader(queue_id, offset)
        if self._failed is old:
            left = (reader for reader in self._readers.values() if reader.failure is not None)
            self._failed, self._told = next(left, None), False
        self._start()
        self._changed.set()

    def _start(self) -> None:
        """A task for each reader that can be read and has none at work."""
        if self._ended or self._failed is not None:
            return
        for reader in self._readers.values():
            if reader.task is None or reader.task.done():
                name = f"fetch-{self._topic}-{reader.queue_id}"
                reader.task = self._loop.create_task(self._fetch(reader), name=name)
                self._tasks[reader.task] = None
                reader.task.add_done_callback(partial(self._on_ended, reader))

    def _on_ended(self, reader: QueueReader, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled() and reader.task is task and self._is_current(reader):
            self._fail(reader, ClientClosed("the reading was cancelled"))  # by who cancels all

    # --- what has come ------------------------------------------------------------------------

    async def take(
        self,
        withheld: Container[int],
        has_enough: Callable[[], bool],
        has_any: Callable[[], bool],
    ) -> Chunk | None:
        """The oldest answer of a queue that isn't `withheld`; None when there will be none: the
        reading was ended, or every queue was empty for the idle timeout.

        Args:
            withheld: queue ids; looked at anew after each wait.
            has_enough: ends the wait, with None; asked after each `wake` as well.
            has_any: whether something that was taken waits, withheld or not: that isn't the end.

        Raises:
            ClientError: a queue can't be read any more, and what came before was taken.
        """
        self._want()
        while not self._ended and not has_enough():
            chunk = None if self._told else self._next(withheld)
            if chunk is not None:
                return chunk
            if self._failed is not None and self._failed.failure is not None:
                self._told = True
                raise self._failed.failure
            if not self._chunks and not has_any() and self._is_idle():
                self._wanted.clear()
                return None
            await self._change()
        return None

    def _want(self) -> None:
        """Somebody asks. If that is after the end, whether anything has come since isn't known."""
        if not self._wanted.is_set():
            for reader in self._readers.values():
                reader.empty_since = None
            self._wanted_since = self._loop.time()
            self._wanted.set()

    def _next(self, withheld: Container[int]) -> Chunk | None:
        for at, chunk in enumerate(self._chunks):
            if chunk.reader.queue_id not in withheld:
                del self._chunks[at]
                chunk.reader.room.release()
                return chunk
        return None

    def _drop(self, reader: QueueReader) -> None:
        self._chunks = deque(chunk for chunk in self._chunks if chunk.reader is not reader)

    async def _change(self) -> None:
        """Returns when something has come, failed or ended since."""
        self._changed.clear()
        await self._changed.wait()

    def begun_at(self, queue_id: int) -> int:
        """Where the queue's reading began, or was begun again."""
        return self._readers[queue_id].first_offset

    def wake(self) -> None:
        """Who waits in `take` looks again."""
        self._changed.set()

    def break_off(self, reader: QueueReader, error: ClientError) -> None:
        """What this queue has brought can't be used: nothing more is taken until it is begun
        again, as going on would skip messages."""
        self._fail(reader, error)
        self._told = True
        if reader.task is not None:
            reader.task.cancel()
        self._drop(reader)

    def _is_idle(self) -> bool:
        """Whether all queues were seen to be empty together for the idle timeout. A queue that
        can't be asked isn't empty: an outage must not look like the end."""
        since = self._empty_together_since()
        if self._idle_timeout_s is None or since is None:
            return False
        until = min(reader.empty_until for reader in self._readers.values())
        return until - since >= self._idle_timeout_s

    def _empty_together_since(self) -> float | None:
        latest = 0.0
        for reader in self._readers.values():
            if reader.empty_since is None:
                return None
            latest = max(latest, reader.empty_since)
        return latest

    # --- the end ------------------------------------------------------------------------------

    def end(self) -> None:
        """Nothing more is fetched or taken."""
        self._ended = True
        self._chunks.clear()
        for task in self._tasks:
            task.cancel()
        self._changed.set()

    async def close(self) -> None:
        """Ends; no task is left behind."""
        self.end()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # --- fetching -----------------------------------------------------------------------------

    async def _fetch(self, reader: QueueReader) -> None:
        """Keeps one Pull under way until the reading ends, or this or another queue fails."""
        try:
            while self._failed is None:
                await reader.room.acquire()
                chunk = await self._next_of(reader)
                self._chunks.append(chunk)
                self._changed.set()
        except Exception as error:  # noqa: BLE001 - who iterates must hear of it
            self._fail(reader, client_error("reading a queue", error))

    async def _next_of(self, reader: QueueReader) -> Chunk:
        """What the queue has next, as soon as it has anything."""
        try:
            while (answer := await self._pull(reader)).next_offset <= reader.next_offset:
                self._changed.set()
                await self._wanted.wait()
        except OffsetOutOfRange as error:
            skipped = self._skippable(reader.next_offset, error)
            if not skipped:
                raise
            reader.next_offset = skipped.stop
            return Chunk(reader, None, skipped)
        reader.next_offset = answer.next_offset
        return Chunk(reader, answer)

    def _skippable(self, offset: int, error: OffsetOutOfRange) -> range:
        """What may be passed over of a queue whose next message is at `offset`: nothing, unless it
        has gone, and the application said what to do then. It never goes back, nor on from beyond
        the end: a queue that is shorter than it was is none that anything was let go of."""
        first, last = error.valid or (0, 0)
        if not 0 <= offset < first <= last:
            return range(0)
        match self._options.when_gone:
            case WhenGone.RAISE:
                return range(0)
            case WhenGone.FIRST:
                return range(offset, first)
            case WhenGone.LAST:
                return range(offset, last)
            case other:
                assert_never(other)

    def _is_current(self, reader: QueueReader) -> bool:
        return not self._ended and self._readers.get(reader.queue_id) is reader

    def _fail(self, reader: QueueReader, error: ClientError) -> None:
        """Ends the iteration, after what was fetched before."""
        reader.failure = reader.failure or error
        self._failed = self._failed or reader
        self._changed.set()

    async def _pull(self, reader: QueueReader) -> Pulled:
        """Asks once, and notes whether the queue was empty.

        Raises:
            RecordCorrupt: the answer contradicts itself.
        """
        asked = self._loop.time()
        hold_ms = self._hold_ms(asked)
        request = pb.PullRequest(
            topic=self._topic,
            topic_incarnation=self._incarnation,
            queue_id=reader.queue_id,
            offset=reader.next_offset,
            max_messages=MAX_PULL_MESSAGES,
            max_bytes=self._pull_bytes,
            hold_ms=hold_ms,
            tags=self._tags,
        )
        deadline_s = self._options.deadline_s + hold_ms / 1000
        answer = await self._broker_group.call(PULL, request, Effect.NONE, deadline_s=deadline_s)
        place = self._topic, self._incarnation, request.queue_id, request.offset
        found = pulled(answer, Asked(*place, by_tags=bool(self._tags)))
        if answer.count or answer.next_offset < answer.max_offset or asked < self._wanted_since:
            reader.empty_since = None
        else:
            reader.empty_since = asked if reader.empty_since is None else reader.empty_since
            # What the answer says was so when it was made, however late it is heard.
            reader.empty_until = min(self._loop.time(), asked + hold_ms / 1000)
        return found

    def _hold_ms(self, now: float) -> int:
        """How long the leader is to hold a Pull: not beyond the moment at which the iteration
        would end as idle."""
        if self._idle_timeout_s is None:
            return self._options.hold_ms
        since = self._empty_together_since()
        left_s = self._idle_timeout_s - (0.0 if since is None else now - since)
        left_ms = min(left_s * 1000, self._options.hold_ms)  # before it is cut: it may be infinite
        return min(self._options.hold_ms, max(int(left_ms) + 1, MIN_HOLD_MS))
