"""Reads queues of a topic that the application named, or all of them, and commits without a lease.

All of them are those that there are: one that the topic gets meanwhile is read, too, from its first
message on, as soon as a look at the topic finds it.

This owns what of a topic's queues is at hand, where each began, and what of them is committed; it
is the reading behind a `PullConsumer` that is no member of its group (`dledger.client.consumer`).
The Pulls behind it are `dledger.client.fetching`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Protocol

from dledger.client.arguments import milliseconds, offset_number, queue_ids, wanted_tags
from dledger.client.broker_group import BrokerGroup
from dledger.client.errors import ClientClosed, ClientError, InvalidArgument, QueueNotFound
from dledger.client.faults import client_error
from dledger.client.fetching import Chunk, Fetching
from dledger.client.group_use import Commits, GroupUse
from dledger.client.options import ALL, AllQueues, ConsumerOptions, StartFrom
from dledger.client.progress import Progress
from dledger.client.results import Message, QueueOffsets, TopicDescription

LOOK_S: Final = 10.0  # from one look at whether the topic has more queues to the next


class Offsets(Commits, Protocol):
    """The client, as far as a consumer asks it for its topic and its consumer group's offsets."""

    async def describe_topic(self, name: str, /) -> TopicDescription: ...
    async def queue_offsets(
        self, topic: str, queue_id: int, /, *, deadline_s: float | None = None
    ) -> QueueOffsets: ...
    async def offset_by_time(self, topic: str, queue_id: int, time_ms: int, /) -> int: ...


class TopicReading:
    """What a consumer has of a topic's queues.

    Args:
        start: None: committed offsets with a group, else the first message.
    """

    crosses_threads = True  # what is fetched may be taken in another thread than the loop's

    def __init__(
        self,
        offsets: Offsets,
        broker_group: BrokerGroup,
        topic: str,
        *,
        consumer_group: str | None,
        tags: Collection[str] | None,
        start: StartFrom | datetime | None,
        queues: Sequence[int] | AllQueues | None,
        idle_timeout_s: float | None,
        options: ConsumerOptions,
    ) -> None:
        if start is None:
            start = StartFrom.FIRST if consumer_group is None else StartFrom.COMMITTED
        if isinstance(start, datetime):
            milliseconds("start", start)  # now, and not at the first message
        self.topic = topic
        self._offsets = offsets
        self._consumer_group = consumer_group
        self._use: GroupUse | None = None
        if consumer_group is not None:
            self._use = GroupUse(offsets, consumer_group, topic)
        self._start = start
        self._queues = None if queues is None or queues is ALL else queue_ids(queues)
        self._tags = None if tags is None else wanted_tags(tags)
        self._fetching = Fetching(broker_group, topic, options, idle_timeout_s, self._tags or ())
        self._beginning: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None  # for more queues
        self._incarnation = 0  # of the topic that it began with: positions are of no other
        self._started = False
        self._rest: dict[int, list[Message]] = {}  # by queue: decoded, last one first
        self._in_hand: list[Message] = []  # what was taken last
        self._paused: set[int] = set()
        self._read_to: dict[int, int] = {}  # by queue: where what is decoded ends
        self._progress = Progress(topic)
        self._skipped: dict[int, int] = {}

    def next_message(self) -> Message | None:
        """One of those that are here, from now on in hand; None: `fill` first."""
        rest = self._waiting()
        if rest is None:
            return None
        message = rest[-1]
        read_to = rest[-2].queue_offset if len(rest) > 1 else self._read_to[message.queue_id]
        self._hand_over([message], message, read_to)
        rest.pop()
        if not rest:
            self._rest.pop(message.queue_id, None)
        return message

    def next_messages(self) -> list[Message] | None:
        """All of one queue's that are here, from now on in hand; None: `fill` first."""
        rest = self._waiting()
        if rest is None:
            return None
        batch = rest[::-1]
        self._hand_over(batch[:], batch[-1], self._read_to[batch[-1].queue_id])
        self._rest.pop(batch[-1].queue_id, None)
        return batch

    def _hand_over(self, messages: list[Message], last: Message, read_to: int) -> None:
        """They are in hand, and still among the rest: whoever is interrupted from here on takes
        back what is in hand, and finds it there or not."""
        self._progress.finish()
        self._in_hand = messages
        self._progress.hand_over(last, read_to)

    def arrived(self) -> None:
        """The application has what was given last."""
        self._in_hand = []

    def take_back(self) -> None:
        """What is in hand never reached the application; it is given next. Interrupted, and done
        again, this is the same."""
        messages = self._in_hand
        if messages and self._progress.has_in_hand(messages[0].queue_id):
            rest = self._rest.get(messages[0].queue_id, [])
            if not rest or rest[-1].queue_offset > messages[-1].queue_offset:
                self._rest[messages[0].queue_id] = rest + messages[::-1]
            self._progress.take_back(messages[0])
        self._in_hand = []

    def _waiting(self) -> list[Message] | None:
        """Messages of some queue that isn't withheld, last one first."""
        for queue_id, rest in self._rest.items():
            if rest and queue_id not in self._paused:
                return rest
        return None

    def _has_waiting(self) -> bool:
        return self._waiting() is not None

    async def fill(self) -> bool:
        """There are messages to hand over; false when the iteration is over. Who is cancelled or
        interrupted here has lost none. What was in hand is finished, since more is asked for.

        Raises:
            ClientError: a queue can't be read any more; nothing was skipped.
        """
        self._progress.finish()
        if not self._fetching.has_ended:
            await self._begin()
        while (chunk := await self._take()) is not None:
            if self._unpack(chunk):
                return True
            await asyncio.sleep(0)  # a long stretch that isn't wanted holds nobody else up
        return self._has_waiting()  # a queue was resumed

    async def _take(self) -> Chunk | None:
        return await self._fetching.take(
            self._paused, self._has_waiting, lambda: any(self._rest.values())
        )

    def _unpack(self, chunk: Chunk) -> bool:
        """Whether there is something to hand over in it. What isn't wanted is passed over."""
        queue_id = chunk.reader.queue_id
        if chunk.answer is None:
            self._progress.pass_over(queue_id, chunk.skipped.stop)
            self._skipped[queue_id] = self._skipped.get(queue_id, 0) + len(chunk.skipped)
            return False
        begins, ends = chunk.answer.asked.offset, chunk.answer.next_offset
        try:
            messages = chunk.answer.messages()
            if self._tags is not None:
                messages = [message for message in messages if message.tags in self._tags]
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            told = client_error("decoding messages", error)
            self._fetching.break_off(chunk.reader, told)
            raise told  # noqa: B904 - it is the error itself, or has it as its cause
        first = messages[0].queue_offset if messages else ends
        if first > begins:
            self._progress.pass_over(queue_id, first)
        self._read_to[queue_id] = ends
        if messages:
            messages.reverse()
            self._rest[queue_id] = messages
        return bool(messages)

    # --- what is in hand, and what is finished ------------------------------------------------

    @property
    def positions(self) -> dict[int, int]:
        """By queue: one past the last message handed over, for queues that gave any. Finished or
        not: `commit` knows the difference."""
        return self._progress.positions

    @property
    def skipped(self) -> dict[int, int]:
        """By queue: how many messages were passed over because the next one had gone; see
        `ConsumerOptions.when_gone`. Queues without any aren't there."""
        return dict(self._skipped)

    async def commit(
        self, message: Message | None = None, *, deadline_s: float | None = None
    ) -> None:
        """The consumer group's offsets cover what is finished.

        Args:
            message: one that this consumer gave, and whose work is done: its queue is committed
                up to and with it. None: every message but the one (or the batch) in hand.

        Raises:
            InvalidArgument: the consumer is of no consumer group, or never gave this message.
        """
        if self._consumer_group is None or self._use is None:
            raise InvalidArgument("without a consumer group there is nothing to commit to")
        done = self._progress.finished if message is None else self._progress.up_to(message)
        moved = self._progress.uncommitted(done)
        if not moved:
            return
        group = self._consumer_group
        await self._offsets.commit_offsets(
            group, self.topic, moved, incarnation=self._incarnation, deadline_s=deadline_s
        )
        self._progress.on_committed(moved)
        self._use.on_committed(moved)

    async def lag(self, *, deadline_s: float | None = None) -> dict[int, int]:
        """See `PullConsumer.lag`."""
        await self._begin()
        found: dict[int, int] = {}
        for queue_id in self._fetching.queue_ids:
            bounds = await self._offsets.queue_offsets(self.topic, queue_id, deadline_s=deadline_s)
            done = self._progress.finished.get(queue_id)
            first = self._fetching.begun_at(queue_id) if done is None else done
            found[queue_id] = max(bounds.max_offset - max(first, bounds.min_offset), 0)
        return found

    # --- other places -------------------------------------------------------------------------

    async def seek(self, queue_id: int, to: int | StartFrom | datetime) -> None:
        """The queue's next message is the one at `to`; what was fetched of it is dropped. Works
        after a queue failed, too. Committed offsets stay: they only go forward, and what was
        finished and not committed before is not committed by a later `commit()`.

        Args:
            to: an offset, an end of the queue, or the first message stored at or after a time.

        Raises:
            QueueNotFound: the consumer doesn't read this queue.
        """
        await self._begin()
        if self._fetching.has_ended:
            return
        if queue_id not in self._fetching.queue_ids:
            raise QueueNotFound(f"queue {queue_id} is none of those read")
        offset = await self._offset_at(queue_id, to)
        self._rest.pop(queue_id, None)
        self._progress.forget(queue_id)
        self._fetching.begin_again(queue_id, offset)

    async def _offset_at(self, queue_id: int, to: int | StartFrom | datetime) -> int:
        if isinstance(to, datetime):
            time_ms = milliseconds("to", to)
            return await self._offsets.offset_by_time(self.topic, queue_id, time_ms)
        if not isinstance(to, StartFrom):
            return offset_number("to", to)
        if to is StartFrom.COMMITTED:
            if self._consumer_group is None:
                raise InvalidArgument("committed offsets need a consumer group")
            committed = await self._offsets.fetch_offsets(
                self._consumer_group, self.topic, incarnation=self._incarnation
            )
            if queue_id in committed:
                return committed[queue_id]
        bounds = await self._offsets.queue_offsets(self.topic, queue_id)
        return bounds.max_offset if to is StartFrom.LAST else bounds.min_offset

    def pause(self, *queue_ids: int) -> None:
        """Withholds these queues' messages, from now on; what is fetched waits, within bounds.
        A queue that has messages waiting is not idle."""
        self._paused.update(queue_ids)

    def resume(self, *queue_ids: int) -> None:
        """Hands these queues' messages over again, from where they were."""
        self._paused.difference_update(queue_ids)
        self._fetching.wake()

    # --- beginning and end --------------------------------------------------------------------

    async def _begin(self) -> None:
        """The queues are found, and where to start in each, and fetching has started. Who is
        cancelled while it waits ends nothing: were it begun anew each time, a caller whose patience
        is shorter than the beginning would never read anything. One that failed is begun again.
        """
        if self._started:
            return
        if self._beginning is None:
            self._beginning = asyncio.create_task(self._begin_once(), name=f"begin-{self.topic}")
            self._beginning.add_done_callback(_look)
        task = self._beginning
        if not task.done():
            await asyncio.wait([task])
        if self._beginning is task:
            self._beginning = None
        if not task.cancelled():
            task.result()
        elif not self._fetching.has_ended:  # by who cancels every task that there is
            raise ClientClosed("the reading was cancelled")

    async def _begin_once(self) -> None:
        description = await self._offsets.describe_topic(self.topic)
        queues = self._chosen_queues(description.topic.queue_count)
        self._incarnation = description.topic.incarnation
        known = await self._known_offsets(queues)
        last = self._start is StartFrom.LAST
        edges = {
            queue.queue_id: queue.max_offset if last else queue.min_offset
            for queue in description.queues
        }
        offsets = {queue: known.get(queue, edges[queue]) for queue in queues}
        self._fetching.begin(offsets, self._incarnation)
        if self._queues is None or self._use is not None:
            self._looking = asyncio.create_task(self._look_after(), name=f"look-{self.topic}")
        self._started = True

    async def _look_after(self) -> None:
        """Queues that the topic gets are read as well, unless they were chosen, and the consumer
        group is in use, to the end of the reading."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if self._queues is None:
                    with suppress(ClientError):  # of a topic that is gone each reading tells
                        await self._add_queues()
                if self._use is not None:
                    await self._use.renew(self._fetching.queue_ids, self._incarnation)
        except Exception as error:  # noqa: BLE001 - who iterates must hear of it
            self._fetching.fail(client_error("looking after the queues", error))

    async def _add_queues(self) -> None:
        """Their first message came after this reading had begun, so none is passed over, wherever
        it was to start; unless the group has been there before."""
        description = await self._offsets.describe_topic(self.topic)
        if description.topic.incarnation != self._incarnation:
            return
        read = self._fetching.queue_ids
        firsts = {q.queue_id: q.min_offset for q in description.queues if q.queue_id not in read}
        if firsts:
            is_committed = self._start is StartFrom.COMMITTED
            known = await self._known_offsets([*firsts]) if is_committed else {}
            self._fetching.add({queue: known.get(queue, first) for queue, first in firsts.items()})

    async def _known_offsets(self, queues: Sequence[int]) -> dict[int, int]:
        """Where to start, by queue, where it isn't an end of the queue."""
        if isinstance(self._start, datetime):
            time_ms = milliseconds("start", self._start)
            return {
                queue_id: await self._offsets.offset_by_time(self.topic, queue_id, time_ms)
                for queue_id in queues
            }
        if self._start is StartFrom.COMMITTED and self._use is not None:
            return await self._use.fetched(self._incarnation)
        return {}

    def _chosen_queues(self, queue_count: int) -> list[int]:
        if self._queues is None:
            return list(range(queue_count))
        for queue_id in self._queues:
            if not 0 <= queue_id < queue_count:
                raise QueueNotFound(
                    f"topic {self.topic!r} has queues 0 to {queue_count - 1}, not {queue_id}"
                )
        return self._queues

    def stop(self) -> None:
        """What was fetched and not handed over is dropped, and no more is."""
        self._rest = {}
        self._fetching.end()
        for task in (self._beginning, self._looking):
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """Stops; no task is left behind."""
        self.stop()
        tasks = [task for task in (self._beginning, self._looking) if task is not None]
        if tasks:
            await asyncio.wait(tasks)
        await self._fetching.close()


def _look(beginning: asyncio.Task[None]) -> None:
    """Its error is for whoever asks next: nobody may be waiting now."""
    if not beginning.cancelled():
        beginning.exception()
