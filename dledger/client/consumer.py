"""The consumer: reads queues ahead by long polling and hands messages over in queue order.

One task per queue keeps a Pull under way; what it brings waits as bytes and is decoded when it is
handed over. A queue has at most two answers waiting or under way, so that the records held stay
within `prefetch_bytes`. The consumer must never skip a message on its own: an offset that is
no longer kept ends the iteration with OffsetOutOfRange.

Order holds within a queue, not between queues. Delivery is at least once: `commit` covers what
was handed over, so call it after the work is done. Consumer groups that share queues among
members come later; until then members of one group would each read all queues they ask for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import PULL
from dledger.client.errors import ClientClosed, ClientError, InvalidArgument, QueueNotFound
from dledger.client.faults import client_error
from dledger.client.options import ConsumerOptions, StartFrom
from dledger.client.results import Message, TopicDescription, decode_messages
from dledger.wire import broker_pb2 as pb

MIN_PULL_BYTES: Final = 16 << 10
MAX_PULL_MESSAGES: Final = 32_768
MIN_HOLD_MS: Final = 50  # between looks at a queue that is idle while others aren't yet
ANSWERS_PER_QUEUE: Final = 2  # waiting or under way


class Offsets(Protocol):
    """The client, as far as a consumer asks it for its topic and its consumer group's offsets."""

    async def describe_topic(self, name: str, /) -> TopicDescription: ...
    async def fetch_offsets(
        self, group: str, topic: str, /, *, incarnation: int
    ) -> dict[int, int]: ...
    async def commit_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], /, *, incarnation: int
    ) -> dict[int, int]: ...


class Chunk(NamedTuple):
    """One Pull's answer, not yet decoded."""

    reader: QueueReader
    records: bytes


class QueueReader:
    """One queue of a consumer: the next offset to fetch, and how long it has been empty.

    It had nothing from `empty_since` to `empty_until`, times of the loop's clock: when the first
    Pull that found nothing was sent, and when the last one was answered. `empty_since` is None
    when the last Pull brought something.
    """

    __slots__ = ("empty_since", "empty_until", "next_offset", "queue_id", "room")

    def __init__(self, queue_id: int, offset: int) -> None:
        self.queue_id = queue_id
        self.next_offset = offset
        self.empty_since: float | None = None
        self.empty_until = 0.0
        self.room = asyncio.Semaphore(ANSWERS_PER_QUEUE)


class Consumer:
    """Messages of a topic, as an async iterator; made by `Client.consumer`.

    Use it as a context manager, or call `close`; the client closes it at the latest.
    """

    def __init__(
        self,
        offsets: Offsets,
        broker_group: BrokerGroup,
        topic: str,
        *,
        consumer_group: str | None,
        start: StartFrom,
        queues: Sequence[int] | None,
        idle_timeout_s: float | None,
        options: ConsumerOptions,
        on_closed: Callable[[Consumer], None],
    ) -> None:
        if start is StartFrom.COMMITTED and consumer_group is None:
            raise InvalidArgument("starting at committed offsets needs a consumer group")
        if queues is not None and not queues:
            raise InvalidArgument("the list of queues to read is empty")
        self.topic = topic
        self._offsets = offsets
        self._broker_group = broker_group
        self._consumer_group = consumer_group
        self._start = start
        self._queues = queues
        self._idle_timeout_s = idle_timeout_s
        self._options = options
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._incarnation = 0  # of the topic that it began with: positions are of no other
        self._readers: list[QueueReader] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._chunks: deque[Chunk] = deque()  # one per queue at most
        self._changed = asyncio.Event()
        self._failure: ClientError | None = None  # set once: going on would skip messages
        self._closed = self._started = False
        self._pull_bytes = options.pull_bytes
        self._current: list[Message] = []  # being handed over one by one, last one first
        self._handed_over: dict[int, int] = {}  # by queue: one past the last message given
        self._committed: dict[int, int] = {}

    # --- reading ------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """The next message.

        Raises:
            ClientError: a queue can't be read any more; nothing was skipped.
        """
        while not self._current:
            batch = await self._next_batch()
            if not batch:
                raise StopAsyncIteration
            batch.reverse()
            self._current = batch
        message = self._current.pop()
        self._hand_over(message)
        return message

    async def batches(self) -> AsyncIterator[list[Message]]:
        """The messages in lists, as they were fetched: one queue's each, in order."""
        while batch := await self._next_batch():
            self._hand_over(batch[-1])
            yield batch

    def _hand_over(self, message: Message) -> None:
        """`message`, and those before it in its queue, belong to the application: `commit`
        covers them. The iterators do this; who uses `_next_batch` does it itself."""
        self._handed_over[message.queue_id] = message.queue_offset + 1

    async def _next_batch(self) -> list[Message]:
        """The next messages of some queue; none when the iteration is over.

        Raises:
            ClientError: a queue can't be read any more; nothing was skipped.
        """
        if not self._started and not self._closed:
            await self._begin()
        while not self._chunks:
            if self._closed or self._is_idle():
                return []
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        chunk.reader.room.release()
        try:
            return decode_messages(chunk.records)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            # Going on would skip these messages.
            self._chunks.clear()
            self._failure = client_error("decoding messages", error)
            raise self._failure  # noqa: B904 - it is the error itself, or has it as its cause

    def _is_idle(self) -> bool:
        """Whether all queues were seen to be empty together for the idle timeout. A queue that
        can't be asked isn't empty: an outage must not look like the end."""
        since = self._empty_together_since()
        if self._idle_timeout_s is None or since is None:
            return False
        until = min(reader.empty_until for reader in self._readers)
        return until - since >= self._idle_timeout_s

    def _empty_together_since(self) -> float | None:
        latest = 0.0
        for reader in self._readers:
            if reader.empty_since is None:
                return None
            latest = max(latest, reader.empty_since)
        return latest

    def stop(self) -> None:
        """Ends the iteration; what was fetched and not handed over is dropped."""
        self._closed = True
        self._chunks.clear()
        self._current.clear()
        for task in self._tasks:
            task.cancel()
        self._changed.set()

    async def close(self) -> None:
        """Stops; no task is left behind. Commits nothing."""
        self.stop()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            self._on_closed(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- offsets ------------------------------------------------------------------------------

    @property
    def positions(self) -> dict[int, int]:
        """By queue: one past the last message handed over, for queues that gave any."""
        return dict(self._handed_over)

    async def commit(self) -> None:
        """The consumer group's committed offsets cover every message handed over so far.

        Raises:
            InvalidArgument: the consumer is of no consumer group.
        """
        if self._consumer_group is None:
            raise InvalidArgument("without a consumer group there is nothing to commit to")
        moved = {
            queue_id: offset
            for queue_id, offset in self._handed_over.items()
            if self._committed.get(queue_id) != offset
        }
        if moved:
            await self._offsets.commit_offsets(
                self._consumer_group, self.topic, moved, incarnation=self._incarnation
            )
            self._committed.update(moved)

    # --- fetching -----------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Finds the queues and where to start in each, and starts fetching."""
        description = await self._offsets.describe_topic(self.topic)
        queues = self._chosen_queues(description.topic.queue_count)
        incarnation = description.topic.incarnation
        committed: dict[int, int] = {}
        if self._start is StartFrom.COMMITTED and self._consumer_group is not None:
            committed = await self._offsets.fetch_offsets(
                self._consumer_group, self.topic, incarnation=incarnation
            )
        share = self._options.prefetch_bytes // (ANSWERS_PER_QUEUE * len(queues))
        self._pull_bytes = min(self._options.pull_bytes, max(share, MIN_PULL_BYTES))
        bounds = {queue.queue_id: queue for queue in description.queues}
        readers: list[QueueReader] = []
        for queue_id in queues:
            last = self._start is StartFrom.LAST
            edge = bounds[queue_id].max_offset if last else bounds[queue_id].min_offset
            readers.append(QueueReader(queue_id, committed.get(queue_id, edge)))
        self._incarnation = incarnation
        self._readers = readers  # as a whole: a beginning that failed is begun again
        self._started = True
        if not self._closed:
            self._start_fetching()

    def _chosen_queues(self, queue_count: int) -> list[int]:
        if self._queues is None:
            return list(range(queue_count))
        for queue_id in self._queues:
            if not 0 <= queue_id < queue_count:
                raise QueueNotFound(
                    f"topic {self.topic!r} has queues 0 to {queue_count - 1}, not {queue_id}"
                )
        return list(dict.fromkeys(self._queues))

    def _start_fetching(self) -> None:
        self._tasks = [
            self._loop.create_task(
                self._fetch(reader), name=f"fetch-{self.topic}-{reader.queue_id}"
            )
            for reader in self._readers
        ]

    async def _fetch(self, reader: QueueReader) -> None:
        """Keeps one Pull under way until the consumer is closed or the queue can't be read."""
        try:
            while True:
                await reader.room.acquire()
                while not (answer := await self._pull(reader)).count:
                    self._changed.set()
                reader.next_offset = answer.next_offset
                self._chunks.append(Chunk(reader, answer.records))
                self._changed.set()
        except asyncio.CancelledError:
            if not self._closed:  # by who cancels every task that there is
                self._fail(ClientClosed("the reading was cancelled"))
            raise
        except Exception as error:  # noqa: BLE001 - who iterates must hear of it
            self._fail(client_error("reading a queue", error))

    def _fail(self, error: ClientError) -> None:
        """Ends the iteration, after what was fetched before."""
        self._failure = self._failure or error
        self._changed.set()

    async def _pull(self, reader: QueueReader) -> pb.PullResponse:
        """Asks once, and notes whether the queue was empty."""
        asked = self._loop.time()
        hold_ms = self._hold_ms(asked)
        request = pb.PullRequest(
            topic=self.topic,
            topic_incarnation=self._incarnation,
            queue_id=reader.queue_id,
            offset=reader.next_offset,
            max_messages=MAX_PULL_MESSAGES,
            max_bytes=self._pull_bytes,
            hold_ms=hold_ms,
        )
        deadline_s = self._options.deadline_s + hold_ms / 1000
        answer = await self._broker_group.call(PULL, request, Effect.NONE, deadline_s=deadline_s)
        if answer.count:
            reader.empty_since = None
        else:
            reader.empty_since = asked if reader.empty_since is None else reader.empty_since
            reader.empty_until = self._loop.time()
        return answer

    def _hold_ms(self, now: float) -> int:
        """How long the leader is to hold a Pull: not beyond the moment at which the iteration
        would end as idle."""
        if self._idle_timeout_s is None:
            return self._options.hold_ms
        since = self._empty_together_since()
        left_s = self._idle_timeout_s - (0.0 if since is None else now - since)
        return min(self._options.hold_ms, max(int(left_s * 1000) + 1, MIN_HOLD_MS))
