"""How far a broadcast member is, in a file of its own: JSON, replaced as a whole.

    {"format": 1, "group": "g",
     "topics": {"t": {"incarnation": 7, "queues": {"0": [frontier, [gap, count, ...]]}}}}

and `"whole": false` in a topic of which not every queue that was there at first has its place yet.

Nobody else knows where a broadcast member is, so a file that can't be read is an error and never a
fresh start; and two processes that kept theirs in one file would each undo the other's, so it is
locked (a second file, as the first one is replaced). A queue's place is in the file before any of
its messages is handed out: a member that dies before its first commit finds where it began.

Where there is none for a queue: the group's start if the topic is new to this member (a process
that dies between two parts of what it is told leaves it new), and its first message if the queue
was made since: since the file was written by the process before, or since this one was told
everything there is.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from dledger.client.arguments import milliseconds
from dledger.client.broker_group import BrokerGroup, Effect
from dledger.client.connection import GET_OFFSET_BY_TIME, GET_QUEUE_OFFSETS
from dledger.client.errors import OffsetsFileUnusable
from dledger.client.members.finished import Finished, Run, decode_runs, encode_runs
from dledger.client.members.member import Progress
from dledger.client.members.process_queue import Held, Place, ProcessQueue
from dledger.client.options import StartFrom
from dledger.wire import broker_pb2 as pb

FORMAT: Final = 1

Kept = tuple[int, list[Run]]
Topic = tuple[str, int]  # its name and incarnation


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
        self._path = Path(path)
        self._group = group
        self._broker_group = broker_group
        self._start = start
        self._writing = asyncio.Lock()
        self._lock = self._locked()
        try:
            self._kept, self._in_part = self._read()
            known = {_topic_of(place) for place in self._kept}
            self._known = known - self._in_part
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """The file may be somebody else's."""
        self._lock.close()

    # --- where to begin -----------------------------------------------------------------------

    async def locate(self, queues: Sequence[ProcessQueue], *, made_since: Container[Place]) -> None:
        """Each has its place to begin at, and the file has it. `made_since`: since this process was
        told everything there is.

        Raises:
            ClientError: the brokers couldn't be asked.
            OffsetsFileUnusable: the file can't be written.
        """
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
        content = _encoded(self._group, kept, self._in_part - settled)
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

    def _read(self) -> tuple[dict[Place, Kept], set[Topic]]:
        try:
            content = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}, set()
        except (OSError, UnicodeDecodeError) as error:
            raise OffsetsFileUnusable(f"{self._path}: {error}") from error
        with suppress(
            ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError
        ):
            return self._decoded(json.loads(content))
        raise OffsetsFileUnusable(
            f"{self._path} isn't a file of offsets of format {FORMAT} of group {self._group!r}; "
            "delete it only if the member may begin anew"
        )

    def _decoded(self, content: Any) -> tuple[dict[Place, Kept], set[Topic]]:
        if (content["format"], content["group"]) != (FORMAT, self._group):
            raise ValueError
        kept: dict[Place, Kept] = {}
        in_part: set[Topic] = set()
        for topic, of in content["topics"].items():
            if type(whole := of.get("whole", True)) is not bool:
                raise ValueError
            if not whole:
                in_part.add((topic, int(of["incarnation"])))
            for queue_id, (frontier, numbers) in of["queues"].items():
                place = Place(topic, int(of["incarnation"]), int(queue_id))
                if not all(type(each) is int and each >= 0 for each in (frontier, *numbers)):
                    raise ValueError
                kept[place] = (frontier, decode_runs(frontier, numbers))
        return kept, in_part


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


def _encoded(group: str, kept: Mapping[Place, Kept], in_part: Container[Topic]) -> str:
    topics: dict[str, dict[str, Any]] = {}
    for place in sorted(kept):
        frontier, runs = kept[place]
        fresh: dict[str, Any] = {"incarnation": place.incarnation, "queues": {}}
        if _topic_of(place) in in_part:
            fresh["whole"] = False
        of = topics.setdefault(place.topic, fresh)
        of["queues"][str(place.queue_id)] = [frontier, encode_runs(frontier, runs)]
    return json.dumps({"format": FORMAT, "group": group, "topics": topics}, indent=1) + "\n"
