"""The blocking face for scripts: the same verbs, an event loop on a thread of its own.

    with BlockingClient.connect("127.0.0.1:7001") as client:
        with client.producer() as producer:
            stored = producer.send("topic", b"body").result()
        for message in client.pull_consumer("topic", idle_timeout_s=1):
            ...

Everything happens on the loop's thread; the caller's threads only wait. Futures are
`concurrent.futures.Future`s, resolved on the loop's thread, so their callbacks must be short and
must not block.

What departs from the asynchronous face: `send` waits for room instead of raising BufferFull, and
what it can't accept (MessageTooLarge, InvalidArgument, ...) comes in the future.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import ref

from dledger.client.blocking_consumer import BlockingConsumer
from dledger.client.blocking_groups import BlockingConsumerGroups
from dledger.client.blocking_producer import BlockingProducer, on_loops_thread
from dledger.client.blocking_push import BlockingPushConsumer
from dledger.client.blocking_simple import BlockingDelivery, BlockingSimpleConsumer
from dledger.client.client import Client, warn_unclosed
from dledger.client.consumer import PullConsumer
from dledger.client.dead_letters import DeadLetters, Resent
from dledger.client.errors import ClientClosed, InvalidArgument, SendsFailed
from dledger.client.failed_sends import Sender, closed_together, here
from dledger.client.leaving import is_hurried, tell
from dledger.client.loop_thread import LoopThread
from dledger.client.members.push import PushConsumer
from dledger.client.members.revoking import on_a_thread
from dledger.client.options import (
    AllQueues,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    PushOptions,
    StartFrom,
)
from dledger.client.results import (
    LeaderInfo,
    Message,
    NodeState,
    Permission,
    PullResult,
    QueueOffsets,
    TopicDescription,
    TopicInfo,
    TopicStats,
)
from dledger.client.simple_consumer import SimpleConsumer

__all__ = [
    "BlockingClient",
    "BlockingConsumer",
    "BlockingConsumerGroups",
    "BlockingDelivery",
    "BlockingProducer",
    "BlockingPushConsumer",
    "BlockingSimpleConsumer",
]

Answer = TypeVar("Answer")


class BlockingClient:
    """`Client` for callers without an event loop; may be used from several threads."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        broker_group: str | None,
        options: ClientOptions | None,
    ) -> None:
        self._client = Client.connect(bootstrap, broker_group, options)
        self._thread: LoopThread | None = None
        self._ending = threading.RLock()  # one thread closes; the others wait until it has
        self._producers: list[BlockingProducer] = []  # of the loop's thread
        # Each change, and the copy, is one step: threads make consumers while another closes.
        self._consumers: set[ref[BlockingConsumer]] = set()
        self._is_leaving = False  # of the loop's thread

    @classmethod
    def connect(
        cls,
        bootstrap: str | Sequence[str],
        broker_group: str | None = None,
        options: ClientOptions | None = None,
    ) -> Self:
        """See `Client.connect`; enter it as a context manager."""
        return cls(bootstrap, broker_group, options)

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.check()
            raise InvalidArgument("the client is open already: enter it once, share it after that")
        thread = LoopThread()
        try:
            thread.call(self._client.__aenter__())
        except BaseException:
            thread.stop()
            raise
        self._is_leaving = False
        self._producers = []  # those of before ended with their thread
        self._thread = thread
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread = self._thread
        if thread is None or thread.is_of_another_process:
            return  # the connections are its parent's
        thread.check_outside()
        self._client._workers.check_outside()
        with self._ending:
            if self._thread is None:
                return
            for known in self._consumers.copy():
                if (consumer := known()) is not None:
                    consumer._leave(kind, error, trace)
            try:
                with suppress(ClientClosed):  # by a signal's handler, at the same time
                    thread.call(self._leave(here.sender, kind, error, trace))
            except SendsFailed as failed:
                tell(failed, error)
            finally:
                self._thread = None
                thread.stop()

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)  # none: it was refused while it was made
        if thread is not None and not thread.is_of_another_process:
            warn_unclosed(self)

    async def _leave(
        self,
        sender: Sender,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Everything is closed, the producers at the same time; who is interrupted does not wait
        for them to flush."""
        patient = not is_hurried(kind)
        if patient:
            await self._client._stop_work()
        self._is_leaving = True
        for producer in self._producers:
            producer._refuse_sends()
        try:
            if patient:
                await closed_together([each._close(sender) for each in self._producers])
            else:
                for producer in self._producers:
                    await producer._abort()
        finally:
            await self._client.__aexit__(kind, error, trace)

    def close(self) -> None:
        """See `Client.close`."""
        self.__exit__(None, None, None)

    def _open_thread(self) -> LoopThread:
        if self._thread is None:
            raise ClientClosed("the client is not open: use it as a context manager")
        return self._thread

    def _call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            thread = self._open_thread()
        except ClientClosed:
            work.close()
            raise
        return thread.call(work)

    # --- the verbs of `Client`; see there -------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        queues: int = 4,
        write_queues: int | None = None,
        if_not_exists: bool = False,
        retention_hours: float | None = None,
        permission: Permission | None = None,
        deadline_s: float | None = None,
    ) -> TopicInfo:
        """See `Client.create_topic`."""
        return self._call(
            self._client.create_topic(
                name,
                queues=queues,
                write_queues=write_queues,
                if_not_exists=if_not_exists,
                retention_hours=retention_hours,
                permission=permission,
                deadline_s=deadline_s,
            )
        )

    def retain_topic(
        self,
        name: str,
        hours: float,
        *,
        incarnation: int = 0,
        deadline_s: float | None = None,
    ) -> TopicInfo:
        """See `Client.retain_topic`."""
        return self._call(
            self._client.retain_topic(name, hours, incarnation=incarnation, deadline_s=deadline_s)
        )

    def update_topic(
        self,
        name: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        drop: bool = False,
        incarnation: int = 0,
        deadline_s: float | None = None,
    ) -> TopicInfo:
        """See `Client.update_topic`."""
        return self._call(
            self._client.update_topic(
                name,
                read_queues=read_queues,
                write_queues=write_queues,
                drop=drop,
                incarnation=incarnation,
                deadline_s=deadline_s,
            )
        )

    def permit_topic(
        self,
        name: str,
        permission: Permission,
        *,
        incarnation: int = 0,
        deadline_s: float | None = None,
    ) -> TopicInfo:
        """See `Client.permit_topic`."""
        asked = self._client.permit_topic(
            name, permission, incarnation=incarnation, deadline_s=deadline_s
        )
        return self._call(asked)

    def topic_stats(self, name: str, *, deadline_s: float | None = None) -> TopicStats:
        """See `Client.topic_stats`."""
        return self._call(self._client.topic_stats(name, deadline_s=deadline_s))

    def delete_topic(
        self, name: str, *, incarnation: int = 0, deadline_s: float | None = None
    ) -> None:
        """See `Client.delete_topic`."""
        self._call(self._client.delete_topic(name, incarnation=incarnation, deadline_s=deadline_s))

    def topics(self, *, deadline_s: float | None = None) -> list[TopicInfo]:
        """See `Client.topics`."""
        return self._call(self._client.topics(deadline_s=deadline_s))

    def describe_topic(self, name: str, *, deadline_s: float | None = None) -> TopicDescription:
        """See `Client.describe_topic`."""
        return self._call(self._client.describe_topic(name, deadline_s=deadline_s))

    def queue_offsets(
        self, topic: str, queue_id: int, *, deadline_s: float | None = None
    ) -> QueueOffsets:
        """See `Client.queue_offsets`."""
        return self._call(self._client.queue_offsets(topic, queue_id, deadline_s=deadline_s))

    def dead_letters(self, group: str, *, deadline_s: float | None = None) -> DeadLetters:
        """See `Client.dead_letters`."""
        return self._call(self._client.dead_letters(group, deadline_s=deadline_s))

    def resend(
        self, group: str, offset: int, *, queue_id: int = 0, deadline_s: float | None = None
    ) -> Resent:
        """See `Client.resend`."""
        return self._call(
            self._client.resend(group, offset, queue_id=queue_id, deadline_s=deadline_s)
        )

    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, *, deadline_s: float | None = None
    ) -> int:
        """See `Client.offset_by_time`."""
        return self._call(
            self._client.offset_by_time(topic, queue_id, time_ms, deadline_s=deadline_s)
        )

    def commit_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        reset: bool = False,
        incarnation: int = 0,
        deadline_s: float | None = None,
    ) -> dict[int, int]:
        """See `Client.commit_offsets`."""
        return self._call(
            self._client.commit_offsets(
                group,
                topic,
                offsets,
                reset=reset,
                incarnation=incarnation,
                deadline_s=deadline_s,
            )
        )

    def fetch_offsets(
        self, group: str, topic: str, *, incarnation: int = 0, deadline_s: float | None = None
    ) -> dict[int, int]:
        """See `Client.fetch_offsets`."""
        return self._call(
            self._client.fetch_offsets(group, topic, incarnation=incarnation, deadline_s=deadline_s)
        )

    def get_message(
        self,
        *,
        message_id: str | None = None,
        topic: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        deadline_s: float | None = None,
    ) -> Message:
        """See `Client.get_message`."""
        return self._call(
            self._client.get_message(
                message_id=message_id,
                topic=topic,
                queue_id=queue_id,
                offset=offset,
                deadline_s=deadline_s,
            )
        )

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 256 << 10,
        hold_ms: int = 0,
        deadline_s: float | None = None,
    ) -> PullResult:
        """See `Client.pull`."""
        return self._call(
            self._client.pull(
                topic,
                queue_id,
                offset,
                max_messages=max_messages,
                max_bytes=max_bytes,
                hold_ms=hold_ms,
                deadline_s=deadline_s,
            )
        )

    @property
    def consumer_groups(self) -> BlockingConsumerGroups:
        """See `Client.consumer_groups`."""
        return BlockingConsumerGroups(self._client.consumer_groups, self._call)

    def leader(self, *, deadline_s: float | None = None) -> LeaderInfo:
        """See `Client.leader`."""
        return self._call(self._client.leader(deadline_s=deadline_s))

    def status(self) -> list[NodeState]:
        """See `Client.status`."""
        return self._call(self._client.status())

    def transfer_leadership(
        self, target: str | None = None, *, deadline_s: float | None = None
    ) -> LeaderInfo:
        """See `Client.transfer_leadership`."""
        return self._call(self._client.transfer_leadership(target, deadline_s=deadline_s))

    # --- producers and consumers --------------------------------------------------------------

    def producer(self, options: ProducerOptions | None = None) -> BlockingProducer:
        """See `Client.producer`."""

        thread = self._open_thread()
        chosen = options or ProducerOptions()

        async def make() -> BlockingProducer:
            if self._is_leaving:
                raise ClientClosed("the client is being closed")
            producer = self._client.producer(on_loops_thread(chosen))
            blocking = BlockingProducer(thread, producer, chosen)
            self._producers = [known for known in self._producers if not known.is_closed]
            self._producers.append(blocking)
            return blocking

        return thread.call(make())

    def pull_consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: Collection[str] | None = None,
        start: StartFrom | datetime | None = None,
        queues: Sequence[int] | AllQueues | None = None,
        idle_timeout_s: float | None = None,
        options: ConsumerOptions | None = None,
    ) -> BlockingConsumer:
        """See `Client.pull_consumer`; `ConsumerOptions.on_revoke` runs on a thread of its own."""

        thread = self._open_thread()
        chosen = options or ConsumerOptions()
        on_revoke = None if chosen.on_revoke is None else on_a_thread(chosen.on_revoke)

        async def make() -> PullConsumer:
            return self._client.pull_consumer(
                topic,
                group=group,
                tags=tags,
                start=start,
                queues=queues,
                idle_timeout_s=idle_timeout_s,
                options=replace(chosen, around=None, on_revoke=on_revoke),
            )

        consumer = BlockingConsumer(thread, thread.call(make()), chosen)
        self._consumers.add(ref(consumer, self._consumers.discard))
        return consumer

    consumer = pull_consumer  # its name until 0.2

    def push_consumer(self, group: str, options: PushOptions | None = None) -> BlockingPushConsumer:
        """See `Client.push_consumer`."""

        thread = self._open_thread()

        async def make() -> PushConsumer:
            return self._client.push_consumer(group, options)

        return BlockingPushConsumer(thread, thread.call(make()))

    def simple_consumer(
        self,
        topic: str,
        group: str,
        *,
        invisible_s: float = 30,
        in_order: bool = False,
        start: StartFrom | datetime | None = None,
        max_attempts: int | None = None,
    ) -> BlockingSimpleConsumer:
        """See `Client.simple_consumer`."""

        thread = self._open_thread()

        async def make() -> SimpleConsumer:
            return self._client.simple_consumer(
                topic,
                group,
                invisible_s=invisible_s,
                in_order=in_order,
                start=start,
                max_attempts=max_attempts,
            )

        return BlockingSimpleConsumer(thread, thread.call(make()))
