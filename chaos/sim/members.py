"""Members of consumer groups: they join, work, commit, and are killed, paused, replaced.

A member is a process with one stream. It does what docs/adr/0055-consumer-groups.md asks of
clients: starts nothing without an answered heartbeat, passes over what is finished, gives back what
it is asked for, comes back with its session. And it does what none should have to: it dies in the
midst of work, sleeps for longer than its session and commits as it wakes, says goodbye, and comes
again under the name of one that still lives. What it has worked on is noted (`Crew`): in the end
every message from the group's start on was, by somebody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from chaos.errors import CallFailed
from chaos.sim.clients import Client, Shared
from chaos.sim.defect import Defect
from chaos.sim.filtered import check_counts, filters
from chaos.sim.plan import MEMBER_PACE
from chaos.sim.streams import MemberStream
from dledger.records.record import DecodedRecord, decode_records
from dledger.wire import broker_pb2 as bpb
from dledger.wire import commands_pb2 as cpb
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as pb

STEP_S = 0.04
HEARTBEAT_S = MEMBER_PACE.heartbeat_ms / 1000
SESSION_S = MEMBER_PACE.session_ms / 1000
SLOT = 1
MAX_RUNS = 128

Queue = tuple[str, int, int]  # topic, incarnation, queue id


class Hall(Protocol):
    """Where streams are opened."""

    def open_stream(
        self,
        client: str,
        node: Any,
        on_response: Callable[[pb.AttendResponse], None],
        on_end: Callable[[epb.Error | None], None],
    ) -> MemberStream: ...


@dataclass(slots=True)
class Said:
    """What a session has said to one node, in the one true time."""

    node: str
    life: object
    stream: MemberStream
    times_us: list[int] = field(default_factory=list)
    has_left: bool = False
    takes_retries: bool = True


@dataclass(slots=True)
class Crew:
    """One group: how its members agree to work, and what all of them together have done."""

    group: str
    is_orderly: bool = False
    start: cpb.StartFrom = cpb.START_FIRST
    strategy: str = ""
    tags: tuple[str, ...] = ()  # only messages with one of these; none: all
    done: dict[Queue, dict[int, int]] = field(default_factory=dict)  # offset -> the newest epoch
    said: dict[int, Said] = field(default_factory=dict)  # by session
    gone: dict[Queue, int] = field(default_factory=dict)  # where it begins, as somebody was told
    is_drained: Callable[[], bool] = lambda: True

    def work(self, queue: Queue, offsets: Iterable[int], epoch: int) -> None:
        """These were worked on, or need not be, by that lease."""
        done = self.done.setdefault(queue, {})
        for offset in offsets:
            done[offset] = max(epoch, done.get(offset, 0))

    def settings(self, *topics: str) -> cpb.GroupSettings:
        settings = cpb.GroupSettings(
            orderly=self.is_orderly, start=self.start, strategy=self.strategy, topics=topics
        )
        settings.filters.CopyFrom(filters(self.tags, topics))
        return settings

    def wants(self, record: DecodedRecord) -> bool:
        return not self.tags or record.tags in self.tags


@dataclass(slots=True)
class Held:
    """A queue that a member holds, and its work there."""

    epoch: int
    frontier: int
    position: int
    finished: set[int]  # at or above the frontier
    unfinished: set[int] = field(default_factory=set)
    is_asked: bool = False

    @classmethod
    def of(cls, lease: pb.QueueLease) -> Held:
        finished: set[int] = set()
        at = lease.frontier
        for left, done in zip(lease.finished[::2], lease.finished[1::2], strict=True):
            finished.update(range(at + left, at + left + done))
            at += left + done
        return cls(lease.epoch, lease.frontier, lease.frontier, finished)

    def finish(self, offset: int) -> None:
        self.unfinished.discard(offset)
        self.finished.add(offset)
        self.advance()

    def advance(self) -> None:
        while self.frontier in self.finished:
            self.finished.discard(self.frontier)
            self.frontier += 1
        self.position = max(self.position, self.frontier)

    def pass_over(self, end: int) -> None:
        """Up to there nobody is given what isn't in hand: as good as finished."""
        self.finished.update(range(self.position, end))
        self.position = max(self.position, end)
        self.advance()

    def skip_to(self, offset: int) -> None:
        """What lies before has gone from the log."""
        self.finished = {each for each in self.finished if each >= offset}
        self.unfinished = {each for each in self.unfinished if each >= offset}
        self.frontier = max(self.frontier, offset)
        self.advance()

    def runs(self) -> list[int]:
        found: list[int] = []
        at = self.frontier
        for offset in sorted(self.finished):
            if found and offset == at:
                found[-1] += 1
            else:
                found += [offset - at, 1]
            at = offset + 1
        return found[: 2 * MAX_RUNS]


class Member(Client):
    """One process of a crew."""

    takes_retries = True  # messages that failed are its work, too

    def __init__(self, name: str, shared: Shared, chance: Random, crew: Crew, hall: Hall) -> None:
        super().__init__(name, shared, chance)
        self._crew = crew
        self._hall = hall
        self._begin_life()
        self._stream: MemberStream | None = None
        self._sent: dict[int, float] = {}  # heartbeats on this stream, by number
        self._answered_s = 0.0  # when the last one that was answered was sent
        self._joins = 0
        self._is_joined = self._has_ended = self._is_replaced = self._is_leaving = False
        self._asleep: list[pb.AttendResponse] | None = None
        self._news = asyncio.Event()

    def _begin_life(self) -> None:
        """A process that has just started."""
        self._token = self.chance.randbytes(8)
        self._session = 0
        self._held: dict[Queue, Held] = {}

    async def run(self) -> None:
        """Until the run stops and everything has been worked on."""
        while not (self.shared.stopping and self._crew.is_drained()):
            if self.shared.topics:
                await self._attend()
            await self.back_off()
            if self._is_replaced:  # whoever did that works now; some users start it again
                if self.shared.stopping:
                    return
                self._is_replaced = False
                await asyncio.sleep(self.chance.uniform(1, 3))

    # --- the stream --------------------------------------------------------------------------

    async def _attend(self) -> None:
        """One stream, from its beginning to its end, or the process's."""
        self._is_joined = self._has_ended = self._is_leaving = False
        self._sent, self._answered_s = {}, 0.0
        stream = self._stream = self._hall.open_stream(
            self.name, self.target, self._on_response, self._on_end
        )
        join = pb.Join(
            slot=SLOT,
            group=self._crew.group,
            member=self.name.partition("/")[0],
            token=self._token,
            session=self._session,
            settings=self._crew.settings(*sorted(self.shared.topics)),
            no_retries=not self.takes_retries,
            attempt=self._next_attempt(),
        )
        stream.say(pb.AttendRequest(join=join))
        loop = asyncio.get_running_loop()
        beating = loop.create_task(self._beat(stream))
        try:
            await self._live(stream)
        finally:
            beating.cancel()
            stream.hang_up()

    def _next_attempt(self) -> int:
        """Every other member's client is an older one, which doesn't count its joins."""
        self._joins += 1
        return 0 if self.name.partition("/")[0].endswith("0") else self._joins

    async def _beat(self, stream: MemberStream) -> None:
        number = 0
        while not stream.is_over:
            await asyncio.sleep(HEARTBEAT_S)
            if self._asleep is not None:
                continue
            number += 1
            self._sent[number] = asyncio.get_running_loop().time()
            said = self._crew.said.get(self._session)
            is_sent = stream.say(pb.AttendRequest(heartbeat=pb.Heartbeat(number=number)))
            # What is said to a node that hasn't answered yet isn't heard by the one before.
            if is_sent and said is not None and said.stream is stream:
                said.times_us.append(self.shared.group.now_us)
                del said.times_us[:-8]

    def _on_end(self, error: epb.Error | None) -> None:
        if error is not None and error.leader.node_id:
            self.target = error.leader.node_id  # type: ignore[assignment]
        else:
            self.look_elsewhere()
        self._news.set()

    def _on_response(self, response: pb.AttendResponse) -> None:
        if self._asleep is not None:
            self._asleep.append(response)
            return
        match response.WhichOneof("body"):
            case "joined":
                self._on_joined(response.joined)
            case "heartbeat_answered":
                sent_s = self._sent.get(response.heartbeat_answered.number, 0.0)
                self._answered_s = max(self._answered_s, sent_s)
            case "assignment":
                self._on_assignment(response.assignment)
            case "ended":
                self._has_ended = True
                self._is_replaced = response.ended.error.code == epb.MEMBER_REPLACED
                if response.ended.error.code in (epb.SESSION_ENDED, epb.MEMBER_REPLACED):
                    self._begin_life()
        self._news.set()

    def _on_joined(self, joined: pb.Joined) -> None:
        if self._session not in (0, joined.session):
            raise Defect("session", f"{self.name} came back as {joined.session}")
        self._session, self._is_joined = joined.session, True
        self._answered_s = asyncio.get_running_loop().time()
        stream = self._stream
        assert stream is not None
        said = Said(stream.node.name, stream.life, stream)  # who slept says nothing by hearing it
        said.has_left, said.takes_retries = self._is_leaving, self.takes_retries
        self._crew.said[joined.session] = said

    def _on_assignment(self, told: pb.Assignment) -> None:
        named: set[Queue] = set()
        for topic in told.gained:
            for lease in topic.leases:
                queue = (topic.topic, topic.incarnation, lease.queue_id)
                named.add(queue)
                mine = self._held.get(queue)
                if mine is None or mine.epoch != lease.epoch:
                    self._held[queue] = Held.of(lease)
                    self._on_gained(queue, lease)
                else:
                    mine.is_asked = False
        for asked in told.asked:
            for queue_id in asked.queue_ids:
                mine = self._held.get((asked.topic, asked.incarnation, queue_id))
                if mine is not None:  # else it has given it back by itself
                    mine.is_asked = True
        for lost in told.lost:
            for queue_id in lost.queue_ids:
                self._held.pop((lost.topic, lost.incarnation, queue_id), None)

    def _on_gained(self, queue: Queue, lease: pb.QueueLease) -> None:
        """It holds that queue now."""

    def _may_start(self) -> bool:
        age_s = asyncio.get_running_loop().time() - self._answered_s
        return self._is_joined and age_s <= SESSION_S * 2 / 3

    # --- the process -------------------------------------------------------------------------

    async def _live(self, stream: MemberStream) -> None:
        began_s = asyncio.get_running_loop().time()
        while not stream.is_over and not self._has_ended:
            self._news.clear()
            await asyncio.sleep(STEP_S)
            silent_s = asyncio.get_running_loop().time() - max(self._answered_s, began_s)
            if silent_s > SESSION_S:
                self.look_elsewhere()
                return
            what = self.chance.random()
            if self.shared.stopping:
                if self._crew.is_drained():
                    await self._say_goodbye(stream)
                    return
            elif what < 0.01:
                self._begin_life()  # killed, and started again
                return
            elif what < 0.025:
                await self._sleep()
            elif what < 0.035:
                await self._say_goodbye(stream)
                return
            elif what < 0.045:
                return  # the connection is gone, and the process is not
            elif what < 0.06:
                await self._commit_simply()
            await self._work()

    async def _sleep(self) -> None:
        """The process stands still in the midst of its work; what it does first as it wakes is to
        finish and to commit it, whoever has the queues by then."""
        if self._may_start():
            await self._pull([queue for queue, held in self._held.items() if not held.is_asked])
        self._asleep = []
        await asyncio.sleep(self.chance.uniform(0.2, 2.5) * SESSION_S)
        for queue, held in self._held.items():
            self._finish_all(queue, held)
        await self._commit(list(self._held))
        backlog, self._asleep = self._asleep, None
        for response in backlog:
            self._on_response(response)

    async def _say_goodbye(self, stream: MemberStream) -> None:
        await self._commit(list(self._held), release=True)
        said = self._crew.said.get(self._session)
        self._is_leaving = True
        if said is not None:
            said.has_left = True
        stream.say(pb.AttendRequest(leave=pb.Leave(slot=SLOT)))
        for _ in range(20):
            if self._has_ended or stream.is_over:
                break
            await asyncio.sleep(STEP_S)
        self._begin_life()

    async def _commit_simply(self) -> None:
        """Without a lease, as if there were no members."""
        ((topic, _), *_) = self.shared.topics.items()
        offset = bpb.QueueOffset(queue_id=0, offset=0)
        request = bpb.CommitOffsetsRequest(group=self._crew.group, topic=topic, offsets=[offset])
        try:
            await self.call("commit_offsets", request)
        except CallFailed:
            return

    # --- work --------------------------------------------------------------------------------

    async def _work(self) -> None:
        if self._may_start():
            await self._pull([q for q, held in self._held.items() if not held.is_asked])
        asked = [queue for queue, held in self._held.items() if held.is_asked]
        for queue, held in list(self._held.items()):
            await self._finish_some(queue, held)
        await self._commit([queue for queue in self._held if queue not in asked])
        if asked and self.chance.random() < 0.9:
            await self._commit(asked, release=True)

    async def _finish_some(self, queue: Queue, held: Held) -> None:
        """What is asked for or in order, and most of the rest."""
        for offset in sorted(held.unfinished):
            if held.is_asked or self._crew.is_orderly or self.chance.random() < 0.7:
                held.finish(offset)

    def _finish_all(self, queue: Queue, held: Held) -> None:
        for offset in sorted(held.unfinished):
            held.finish(offset)

    def _note(self, queue: Queue, record: DecodedRecord) -> None:
        """It was handed this message."""

    async def _pull(self, queues: list[Queue]) -> None:
        wanted: list[tuple[Queue, Held]] = [(queue, self._held[queue]) for queue in queues]
        if not wanted:
            return
        self.chance.shuffle(wanted)
        request = pb.PullQueuesRequest(
            group=self._crew.group,
            max_messages=self.chance.choice((1, 8, 64)),
            hold_ms=self.chance.choice((0, 50)),
            # Some are from before filters: they are given everything, and choose by themselves.
            by_filter=bool(self._crew.tags) and self.chance.random() < 0.8,
            queues=[
                pb.QueuePull(
                    topic=topic,
                    topic_incarnation=incarnation,
                    queue_id=queue_id,
                    epoch=held.epoch,
                    offset=held.position,
                )
                for (topic, incarnation, queue_id), held in wanted
            ],
        )
        try:
            answer = await self.call("pull_queues", request)
        except CallFailed:
            return
        if self._asleep is not None or not self._may_start():
            return
        for part in answer.queues:
            queue, before = wanted[part.position]
            held = self._held.get(queue)
            if held is not None and held is before and not held.is_asked:
                self._take(queue, held, part)

    def _take(self, queue: Queue, held: Held, part: pb.PulledQueue) -> None:
        if part.HasField("error"):
            if part.error.code == epb.OFFSET_OUT_OF_RANGE:
                if not self.shared.moves_start:
                    raise Defect("stale refusal", f"{self.name} at {held.position}: {part.error}")
                first = part.error.valid.min_offset
                self._crew.gone[queue] = max(first, self._crew.gone.get(queue, 0))
                self._crew.work(queue, range(held.position, first), held.epoch)
                held.skip_to(first)
            return
        if self._crew.tags:
            check_counts(part, held.position)
        else:  # nobody reads those
            end = held.position + part.void_count
            self._crew.work(queue, range(held.position, end), held.epoch)
            held.pass_over(end)
        for record in decode_records(part.records):
            offset = record.queue_offset
            if self._crew.tags:
                held.pass_over(offset)
            if offset != held.position:
                raise Defect("poll", f"{self.name} asked for {held.position} and got {offset}")
            if not self._crew.wants(record):
                held.pass_over(offset + 1)
                continue
            held.position += 1
            if offset >= held.frontier and offset not in held.finished:
                held.unfinished.add(offset)
                self._note(queue, record)
                self._crew.work(queue, [offset], held.epoch)
            held.advance()
        held.pass_over(part.next_offset)

    def _begins(self, queue: Queue) -> bool:
        """Whether it says that it is at work on nothing but the queue's first message."""
        return False

    async def _commit(self, queues: list[Queue], *, release: bool = False) -> None:
        """Commits, whoever holds the queues by now."""
        done = [(queue, self._held[queue]) for queue in queues if queue in self._held]
        if not done or not self._session:
            return
        topics: dict[tuple[str, int], list[cpb.QueueProgress]] = {}
        for (topic, incarnation, queue_id), held in done:
            progress = cpb.QueueProgress(
                queue_id=queue_id,
                epoch=held.epoch,
                frontier=held.frontier,
                finished=held.runs(),
                release=release,
                begun=not release and self._begins((topic, incarnation, queue_id)),
            )
            topics.setdefault((topic, incarnation), []).append(progress)
        request = pb.CommitLeasesRequest(
            group=self._crew.group,
            member=self.name.partition("/")[0],
            session=self._session,
            topics=[
                cpb.TopicProgress(topic=topic, incarnation=incarnation, queues=each)
                for (topic, incarnation), each in topics.items()
            ],
        )
        try:
            answer = await self.call("commit_leases", request)
        except CallFailed:
            return
        refused = {(each.topic, each.incarnation, each.queue_id) for each in answer.refused}
        for each in answer.refused:
            if each.error.code not in (epb.LEASE_LOST, epb.LIMIT_REACHED):
                raise Defect("commit refused", f"{self.name}: {each.error}")
        for queue, held in done:
            if (release or queue in refused) and self._held.get(queue) is held:
                del self._held[queue]
