"""How far a broadcast member is, in a file of its own (`offsets_format`), replaced as a whole.

Nobody else knows where a broadcast member is, so a file that can't be read is an error and never a
fresh start; and two processes that kept theirs in one file would each undo the other's, so it is
locked (a second file, as the first one is replaced). A queue's place is in the file before any of
its messages is handed out: a member that dies before its first commit finds where it began.

Where there is none for a queue: the group's start if the topic is new to this member (a process
that dies between two parts of what it is told leaves it new), and its first message if the queue
was made since: since the file was written by the process before, or since this one was told
everything there is.

Places are of one topic of one broker group, in one epoch of that: brokers are asked when the topic
was made before any of its queues is read from where the file says. In another one other messages
are at those offsets, and nobody would see which were passed over.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TextIO

from dledger.client.arguments import milliseconds
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import DESCRIBE_TOPIC, GET_OFFSET_BY_TIME, GET_QUEUE_OFFSETS
from dledger.client.errors import OffsetsFileUnusable, TopicNotFound, TopicReplaced
from dledger.client.members.finished import Finished
from dledger.client.members.member import Progress
from dledger.client.members.offsets_format import (
    FORMAT,
    Kept,
    OffsetsFile,
    Origin,
    Topic,
    decode_file,
    encode_file,
)
from dledger.client.members.process_queue import Held, Place, ProcessQueue
from dledger.client.options import StartFrom
from dledger.wire import broker_pb2 as pb


class KeptOffsets:
    """The file, open and locked from now on.

    Raises:
        OffsetsFileUnusable: it is another process's, another group's, or can't be read.
    """

    def __init__(
        self,
        path: str | Path,
        group: str,
        broker_group: BrokerGroup,
        start: StartFrom | datetime,
    ) -> None:
        # Of a link the file that it leads to: what is renamed to a link's name takes its place.
        self._path = Path(os.path.realpath(path))
        self._group = group
        self._broker_group = broker_group
        self._start = start
        self._writing = asyncio.Lock()
        self._lock, self._locked_by = self._locked(), os.getpid()
        try:
            found = self._read()
            self._kept, self._in_part = dict(found.kept), set(found.in_part)
            self._origins = dict(found.origins)
            self._judged: set[Topic] = set()
            known = {_topic_of(place) for place in self._kept}
            self._known = known - self._in_part
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """The file may be somebody else's, also while a process is there that was forked meanwhile:
        it has the lock open, too. That one gives away nothing."""
        import fcntl

        if not self._lock.closed and self._locked_by == os.getpid():
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        self._lock.close()

    # --- where to begin -----------------------------------------------------------------------

    async def locate(self, queues: Sequence[ProcessQueue], *, made_since: Container[Place]) -> None:
        """Each has its place to begin at, and the file has it. `made_since`: since this process was
        told everything there is.

        Raises:
            ClientError: the brokers couldn't be asked.
            OffsetsFileUnusable: the file can't be written, or what it has of one of the topics is
                of another one.
        """
        queues = [queue for queue in queues if queue.state is not Held.GONE]
        await self._judge({_topic_of(queue.place) for queue in queues})
        found: dict[Place, Kept] = {}
        for queue in queues:
            place = queue.place
            if place in self._kept:
                found[place] = self._kept[place]
            elif place in made_since or _topic_of(place) in self._known:
                found[place] = (await self._end_of(place, StartFrom.FIRST), [])
            else:
                found[place] = (await self._begin_of(place), [])
                self._in_part.add(_topic_of(place))
        async with self._writing:
            # What was being written meanwhile, of the session before, is behind what was found.
            found |= {place: self._kept[place] for place in found if place in self._kept}
            await self._put(found)
        for queue in queues:
            if queue.state is not Held.GONE:
                queue.locate(Finished(*found[queue.place]))

    async def _judge(self, topics: Iterable[Topic]) -> None:
        """What the file has of these topics is of them.

        Raises:
            ClientError: the brokers couldn't be asked; or a topic is gone, and who has its queues
                is about to be told.
            OffsetsFileUnusable: it is of another topic of that name, or of messages that the broker
                group may have lost.
        """
        for topic in sorted(topics):
            if topic in self._judged and self._origins[topic].epoch == self._broker_group.epoch:
                continue
            found = await self._origin_of(topic)
            kept = {_topic_of(place) for place in self._kept if place.topic == topic[0]}
            if topic not in kept or topic not in self._origins:
                self._origins[topic] = found
            known = self._origins[topic]
            # One that was judged here has followed this one, which is gone, and told late.
            is_later = any(each[1] > topic[1] for each in kept - self._judged)
            if is_later or known.created_ms != found.created_ms:
                raise self._other(topic, "a topic of that name in another broker group")
            if known.epoch != found.epoch:
                raise self._other(topic, "an epoch of the broker group that another one follows")
            self._judged.add(topic)

    async def _origin_of(self, topic: Topic) -> Origin:
        name, incarnation = topic
        request = pb.DescribeTopicRequest(name=name, incarnation=incarnation)
        try:
            answer = await self._broker_group.call(DESCRIBE_TOPIC, request, Effect.NONE)
        except (TopicNotFound, TopicReplaced) as error:
            error.retriable = True
            raise
        # Who leads has told of its epoch by now.
        return Origin(answer.topic.created_time_ms, self._broker_group.epoch)

    def _other(self, topic: Topic, whose: str) -> OffsetsFileUnusable:
        return OffsetsFileUnusable(
            f"{self._path} has offsets of topic {topic[0]!r} that are of {whose}: messages behind "
            "them would be passed over; delete it only if the member may begin anew"
        )

    async def on_all_located(self) -> None:
        """Every queue that was there at first has its place: no topic in the file is new any more.

        Raises:
            OffsetsFileUnusable: the file can't be written.
        """
        if settled := frozenset(self._in_part):
            async with self._writing:
                await self._put({}, settled)

    async def _begin_of(self, place: Place) -> int:
        if isinstance(self._start, datetime):
            by_time = pb.GetOffsetByTimeRequest(
                topic=place.topic,
                queue_id=place.queue_id,
                time_ms=milliseconds("start", self._start),
            )
            return (await self._broker_group.call(GET_OFFSET_BY_TIME, by_time, Effect.NONE)).offset
        return await self._end_of(place, self._start)

    async def _end_of(self, place: Place, end: StartFrom) -> int:
        request = pb.GetQueueOffsetsRequest(topic=place.topic, queue_id=place.queue_id)
        bounds = await self._broker_group.call(GET_QUEUE_OFFSETS, request, Effect.NONE)
        return bounds.max_offset if end is StartFrom.LAST else bounds.min_offset

    # --- the file -----------------------------------------------------------------------------

    async def keep(self, progress: Sequence[Progress]) -> None:
        """It is in the file, on disk.

        Raises:
            OffsetsFileUnusable: it can't be written.
        """
        async with self._writing:
            await self._put({each.queue.place: (each.frontier, each.runs) for each in progress})

    async def _put(
        self, moved: Mapping[Place, Kept], settled: frozenset[Topic] = frozenset()
    ) -> None:
        """One at a time, and of each topic that was made anew the last: what was found or finished
        of a former one may come late. `settled`: topics that are new no more."""
        kept = self._kept | dict(moved)
        last = dict(sorted(map(_topic_of, kept)))
        kept = {place: of for place, of in kept.items() if last[place.topic] == place.incarnation}
        content = encode_file(self._group, kept, self._in_part - settled, self._origins)
        # No task: whoever cancels all there are, as a loop that ends does, would cancel it as well.
        loop = asyncio.get_running_loop()
        await _to_its_end(loop.run_in_executor(None, self._replace, content))
        self._kept = kept
        self._in_part -= settled

    def _replace(self, content: str) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            with fresh.open("w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise OffsetsFileUnusable(f"{self._path}: {error.strerror}", retriable=True) from error

    def _locked(self) -> TextIO:
        import fcntl  # not everywhere: the rest of the client does without

        lock = self._path.with_name(self._path.name + ".lock")
        try:
            file = lock.open("a", encoding="utf-8")
        except OSError as error:
            raise OffsetsFileUnusable(f"{lock}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise OffsetsFileUnusable(
                f"{self._path} is another member's: {lock} is held"
            ) from error
        return file

    def _read(self) -> OffsetsFile:
        try:
            content = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return OffsetsFile()
        except (OSError, UnicodeDecodeError) as error:
            raise OffsetsFileUnusable(f"{self._path}: {error}") from error
        with suppress(
            ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError
        ):
            return decode_file(content, self._group)
        raise OffsetsFileUnusable(
            f"{self._path} isn't a whole file of offsets of format {FORMAT} or 1 of group "
            f"{self._group!r}; delete it only if the member may begin anew"
        )


async def _to_its_end(writing: asyncio.Future[None]) -> None:
    """It is done, also where who waits is cancelled meanwhile: a thread can't be called back, and
    what it wrote into the file of the next one, or of another process, would spoil that."""
    cancelled: asyncio.CancelledError | None = None
    while not writing.done():
        try:
            await asyncio.wait([writing])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    writing.result()


def _topic_of(place: Place) -> Topic:
    return place.topic, place.incarnation
