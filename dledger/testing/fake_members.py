"""The service Groups of the fake nodes: sessions, leases and commits, in memory.

It keeps the contract of `proto/dledger/wire/groups.proto` and of docs/adr/0055-consumer-groups.md,
as far as a client can see it: epochs fence commits, a lease is asked for before it is taken, a
session ends at goodbye, some time after its stream broke, or when nothing was heard of it. Times
are short by default, and a test may set them. Queues are shared out evenly, moving few.

What a test can do besides: end sessions, take a queue away, refuse or lose what is said on the
stream (`Join`, `Heartbeat`, `Leave`) as with any other call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NamedTuple, Protocol

from dledger.client.members.finished import Finished, decode_runs, encode_runs
from dledger.records.reserved import retry_topic
from dledger.testing.fake_model import READ, Model
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import commands_pb2 as kpb
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as gpb

TICK_S = 0.01
MAX_RUNS = 128

Intercept = Callable[[str, Any, Any], Awaitable[None]]


class Node(Protocol):
    """A node, as far as a stream to it goes."""

    running: asyncio.Event
    calls: Counter[str]


class Retries(Protocol):
    """What has failed."""

    takes_failed: bool

    def failures(self, group: str, place: FakePlace, offset: int) -> int: ...
    def tick(self, now: float) -> bool: ...
    def stand_still(self, seconds: float) -> None: ...


class Deliveries(Protocol):
    """What is handed out one by one."""

    def has(self, group: str) -> bool: ...


class Nodes(Protocol):
    """The group of nodes."""

    model: Model
    before: list[Intercept]
    after: list[Intercept]

    @property
    def retries(self) -> Retries: ...
    @property
    def deliveries(self) -> Deliveries: ...
    @property
    def leading(self) -> Node | None: ...
    def check_leads(self, node: Node) -> None: ...


class FakePlace(NamedTuple):
    """A queue."""

    topic: str
    incarnation: int
    queue_id: int


@dataclass
class FakeSession:
    """A member that is there."""

    number: int
    group: str
    member: str
    token: bytes
    topics: frozenset[str]
    present_until: float
    choices: frozenset[tuple[str, int]] = frozenset()
    takes_retries: bool = True
    version: int = 0


@dataclass
class FakeLease:
    """Who holds a queue."""

    session: int
    epoch: int
    asked_until: float | None = None  # another one is to have it


@dataclass
class FakeRecord:
    """A group: what it agreed on, who is in it, what is finished."""

    settings: kpb.GroupSettings
    name: str = ""
    created: int = 0  # by which entry
    sessions: dict[int, FakeSession] = field(default_factory=dict)
    leases: dict[FakePlace, FakeLease] = field(default_factory=dict)
    finished: dict[FakePlace, Finished] = field(default_factory=dict)
    started: set[tuple[str, int]] = field(default_factory=set)
    withheld: set[FakePlace] = field(default_factory=set)  # by the test


@dataclass
class FakeStream:
    """One Attend call: who is on it, and what each was told last."""

    node: Node
    slots: dict[int, FakeSession] = field(default_factory=dict)
    told: dict[int, dict[FakePlace, tuple[int, bool]]] = field(default_factory=dict)
    replies: list[gpb.AttendResponse] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def reply(self, **body: Any) -> None:
        self.replies.append(gpb.AttendResponse(**body))
        self.changed.set()


class FakeMembers:
    """All groups with members of a group of fake nodes."""

    def __init__(self, group: Nodes) -> None:
        self._group = group
        group.model.when_deleted.append(self._forget)
        self.records: dict[str, FakeRecord] = {}
        self.streams: list[FakeStream] = []
        self.commits: list[gpb.CommitLeasesRequest] = []
        self.pulls: list[gpb.PullQueuesRequest] = []
        self.heartbeat_ms = 50
        self.session_ms = 1_500
        self.release_ms = 500
        self.return_within_ms = 10
        self.away_s = 0.1  # after a stream broke
        self.return_s = 1.0  # for members to be back at a new leader
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._ticking = asyncio.create_task(self._tick_on(), name="fake-ticks")

    async def stop(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.wait([self._ticking])

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # --- what a test does and asks ------------------------------------------------------------

    def end_sessions(self, group: str) -> None:
        """All of the group's sessions end, as if their time were over."""
        for session in list(self.records[group].sessions.values()):
            self._end(session, epb.SESSION_ENDED)

    def take_away(self, group: str, topic: str, queue_id: int) -> None:
        """The queue's lease ends at once, and nobody gets one until `give_back`."""
        record = self.records[group]
        place = self.place(topic, queue_id)
        record.withheld.add(place)
        record.leases.pop(place, None)
        self._wake()

    def ask_for(self, group: str, topic: str, queue_id: int) -> None:
        """The queue is asked of who holds it, and nobody gets it until `give_back`."""
        record = self.records[group]
        place = self.place(topic, queue_id)
        record.withheld.add(place)
        if place in record.leases:
            record.leases[place].asked_until = self.now + self.release_ms / 1000
        self._wake()

    def give_back(self, group: str) -> None:
        """Nothing is withheld any more."""
        self.records[group].withheld.clear()
        self.assign(group)

    def holders(self, group: str) -> dict[tuple[str, int], str]:
        """By topic and queue: the member that holds it."""
        record = self.records.get(group)
        if record is None:
            return {}
        return {
            (place.topic, place.queue_id): record.sessions[lease.session].member
            for place, lease in record.leases.items()
        }

    def frontier(self, group: str, topic: str, queue_id: int = 0) -> int:
        """What is committed of a queue."""
        return self.finished(group, topic, queue_id).frontier

    def finished(self, group: str, topic: str, queue_id: int = 0) -> Finished:
        """All that is committed of a queue."""
        record = self.records.get(group)
        found = None if record is None else record.finished.get(self.place(topic, queue_id))
        return found or Finished(0)

    def is_attached(self, session: FakeSession) -> bool:
        """Whether its stream is here."""
        return any(session in stream.slots.values() for stream in self.streams)

    def has_sessions(self, group: str) -> bool:
        return group in self.records and bool(self.records[group].sessions)

    def place(self, topic: str, queue_id: int) -> FakePlace:
        """The queue of the topic that has the name now."""
        return FakePlace(topic, self._group.model.incarnations.get(topic, 0), queue_id)

    def meant(self, place: FakePlace) -> FakePlace:
        """The queue, where incarnation 0 is that of whichever topic has the name.

        Raises:
            Refusal: no such topic has it.
        """
        self._group.model.queues(place.topic, place.incarnation)
        return self.place(place.topic, place.queue_id)

    def _forget(self, topic: str) -> None:
        """The topic is deleted: nobody holds a queue of it, or has finished anything."""
        for name, record in self.records.items():
            for known in (record.leases, record.finished):
                for place in [each for each in known if each.topic == topic]:
                    del known[place]
            record.withheld = {each for each in record.withheld if each.topic != topic}
            record.started = {each for each in record.started if each[0] != topic}
            self.assign(name)

    # --- time ---------------------------------------------------------------------------------

    async def _tick_on(self) -> None:
        looked = self.now
        while True:
            await asyncio.sleep(TICK_S)
            leader, since, looked = self._group.leading, self.now - looked, self.now
            if leader is not None and leader.running.is_set():
                self._tick()
                if self._group.retries.tick(self.now):
                    await self._group.model.ring()
            else:
                self._stand_still(since)
                self._group.retries.stand_still(since)

    def _stand_still(self, seconds: float) -> None:
        """Nobody leads, or the leader is paused: only ticks that really ran count."""
        for record in self.records.values():
            for session in record.sessions.values():
                session.present_until += seconds
            for lease in record.leases.values():
                if lease.asked_until is not None:
                    lease.asked_until += seconds

    def _tick(self) -> None:
        now = self.now
        for name, record in self.records.items():
            for session in list(record.sessions.values()):
                if now > session.present_until:
                    self._end(session, epb.SESSION_ENDED)
            for place, lease in list(record.leases.items()):
                if lease.asked_until is not None and now > lease.asked_until:
                    del record.leases[place]
            self.assign(name)

    def on_elected(self) -> None:
        """A new leader counts all as present for a while; streams to the old one end."""
        for record in self.records.values():
            for session in record.sessions.values():
                session.present_until = self.now + self.return_s + self.session_ms / 1000
        self._wake()

    def _wake(self) -> None:
        for stream in self.streams:
            stream.changed.set()

    # --- assignment ---------------------------------------------------------------------------

    def _queues(self, record: FakeRecord) -> list[FakePlace]:
        topics = self._group.model.topics
        own = [] if record.settings.broadcast else [retry_topic(record.name)]
        return [
            self.place(topic, queue_id)
            for topic in (*record.settings.topics, *own)
            if topic in topics
            for queue_id in range(len(topics[topic]))
        ]

    def assign(self, name: str) -> None:
        """The group's queues are shared out anew, moving few."""
        record = self.records[name]
        queues = self._queues(record)
        for place in [place for place in record.leases if place not in queues]:
            del record.leases[place]
        if not record.settings.broadcast:
            target = self._target(record, queues)
            for place in queues:
                self._move(name, record, place, target.get(place))
        self._wake()

    def _target(self, record: FakeRecord, queues: list[FakePlace]) -> dict[FakePlace, int]:
        """Who is to hold which; what failed goes to one of those that work on it."""
        retry = [place for place in queues if place.topic == retry_topic(record.name)]
        others = [place for place in queues if place not in retry]
        takers = sorted(n for n, each in record.sessions.items() if each.takes_retries)
        target = self._shared_out(record, others)
        for place in retry if takers else ():
            lease = record.leases.get(place)
            is_held = lease is not None and lease.session in takers
            target[place] = lease.session if lease is not None and is_held else takers[0]
        return target

    def _shared_out(self, record: FakeRecord, queues: list[FakePlace]) -> dict[FakePlace, int]:
        sessions = sorted(record.sessions)
        if record.settings.strategy == "CONFIG":
            return {
                place: number
                for place in queues
                for number in sessions
                if (place.topic, place.queue_id) in record.sessions[number].choices
            }
        if not sessions:
            return {}
        most, extra = divmod(len(queues), len(sessions))
        held: dict[int, list[FakePlace]] = {number: [] for number in sessions}
        for place, lease in record.leases.items():
            if lease.session in held and place in queues:
                held[lease.session].append(place)
        by_size = sorted(sessions, key=lambda number: -len(held[number]))
        share = {number: most + (at < extra) for at, number in enumerate(by_size)}
        target = {place: number for number in sessions for place in held[number][: share[number]]}
        left = {n: share[n] - sum(t == n for t in target.values()) for n in sessions}
        for place, number in zip(
            (place for place in queues if place not in target), _handed_out(left), strict=False
        ):
            target[place] = number
        return target

    def _move(self, name: str, record: FakeRecord, place: FakePlace, target: int | None) -> None:
        lease = record.leases.get(place)
        if place in record.withheld:
            return
        if lease is None:
            if target is not None:
                self._grant(name, record, place, target)
        elif target not in (None, lease.session):
            if lease.asked_until is None:
                lease.asked_until = self.now + self.release_ms / 1000
        else:
            lease.asked_until = None

    def _grant(self, name: str, record: FakeRecord, place: FakePlace, session: int) -> None:
        self._group.model.entries += 1
        self._start(name, record, place)
        record.leases[place] = FakeLease(session, self._group.model.entries)

    def _start(self, name: str, record: FakeRecord, place: FakePlace) -> None:
        """The first grant in a topic writes where the group starts in all its queues: as it wishes
        in its own topics, if they are older than the group."""
        topic, settings = (place.topic, place.incarnation), record.settings
        committed = self._group.model.offsets.setdefault((name, place.topic), {})
        if topic not in record.started:
            record.started.add(topic)
            is_older = place.topic in settings.topics and place.incarnation <= record.created
            wish = settings.start if is_older else kpb.START_FIRST
            for queue_id, queue in enumerate(self._group.model.topics[place.topic]):
                committed.setdefault(queue_id, queue.start(wish, settings.start_time_ms))
        frontier = committed.setdefault(place.queue_id, 0)
        record.finished.setdefault(place, Finished(frontier))

    # --- the stream ---------------------------------------------------------------------------

    async def attend(
        self, node: Node, requests: AsyncIterator[gpb.AttendRequest], context: Any
    ) -> None:
        """One Attend call.

        Raises:
            Refusal: the node doesn't lead, or not any more.
        """
        stream = FakeStream(node)
        self.streams.append(stream)
        reading = asyncio.create_task(self._read(stream, requests))
        reading.add_done_callback(lambda _: stream.changed.set())
        try:
            while not reading.done():
                stream.changed.clear()
                await node.running.wait()
                self._group.check_leads(node)
                for answer in [*self._replies(stream), *self._news(stream)]:
                    await context.write(answer)
                await stream.changed.wait()
        finally:
            reading.cancel()
            self.streams.remove(stream)
            self._on_broken(stream)

    async def _read(self, stream: FakeStream, requests: AsyncIterator[gpb.AttendRequest]) -> None:
        async for request in requests:
            await stream.node.running.wait()
            await self._on_request(stream, request)

    async def _on_request(self, stream: FakeStream, request: gpb.AttendRequest) -> None:
        kind = request.WhichOneof("body") or ""
        stream.node.calls[kind.capitalize()] += 1
        body = getattr(request, kind)
        before = len(stream.replies)
        try:
            for look in self._group.before:
                await look(kind.capitalize(), stream.node, body)
            if kind == "join":
                self._on_join(stream, body)
            elif kind == "heartbeat":
                self._on_heartbeat(stream, body)
            else:
                self._on_leave(stream, body)
            for look in self._group.after:
                await look(kind.capitalize(), stream.node, body)
        except Refusal as refusal:
            del stream.replies[before:]
            if kind == "join":
                stream.slots.pop(body.slot, None)
                stream.reply(ended=gpb.Ended(slot=body.slot, error=refusal.error))

    def _replies(self, stream: FakeStream) -> list[gpb.AttendResponse]:
        replies, stream.replies = stream.replies, []
        return replies

    def _on_heartbeat(self, stream: FakeStream, heartbeat: gpb.Heartbeat) -> None:
        for session in stream.slots.values():
            session.present_until = self.now + self.session_ms / 1000
        stream.reply(
            heartbeat_answered=gpb.HeartbeatAnswered(
                number=heartbeat.number,
                return_within_ms=self.return_within_ms,
                heartbeat_ms=self.heartbeat_ms,
            )
        )

    def _on_leave(self, stream: FakeStream, leave: gpb.Leave) -> None:
        session = stream.slots.pop(leave.slot, None)
        if session is not None:
            self._end(session, None)
        stream.reply(ended=gpb.Ended(slot=leave.slot))

    def _on_join(self, stream: FakeStream, join: gpb.Join) -> None:
        record = self._record(join)
        known = [each for each in record.sessions.values() if each.member == join.member]
        session = known[0] if known else None
        if session is not None and session.token != join.token:
            self._end(session, epb.MEMBER_REPLACED)
            session = None
        if session is None:
            if join.session:
                raise Refusal(wire_error(epb.SESSION_ENDED))
            session = self._begin(record, join)
        session.present_until = self.now + self.session_ms / 1000
        stream.slots[join.slot] = session
        stream.told.pop(join.slot, None)
        stream.reply(
            joined=gpb.Joined(
                slot=join.slot,
                session=session.number,
                heartbeat_ms=self.heartbeat_ms,
                session_ms=self.session_ms,
                release_ms=self.release_ms,
                return_within_ms=self.return_within_ms,
                settings=record.settings,
            )
        )
        self.assign(join.group)

    def _record(self, join: gpb.Join) -> FakeRecord:
        record = self.records.get(join.group)
        if record is None:
            if self._group.deliveries.has(join.group):
                raise Refusal(wire_error(epb.GROUP_STYLED, f"{join.group} is handed single ones"))
            self._group.model.entries += 1
            record = FakeRecord(join.settings, join.group, self._group.model.entries)
            self.records[join.group] = record
        if record.settings == join.settings:
            return record
        if record.sessions and (record.settings.orderly, record.settings.broadcast) != (
            join.settings.orderly,
            join.settings.broadcast,
        ):
            raise Refusal(wire_error(epb.GROUP_HAS_MEMBERS, "members of another style"))
        if join.settings.version <= record.settings.version:
            raise Refusal(wire_error(epb.GROUP_DIFFERS, "the settings differ"))
        record.settings = join.settings
        return record

    def _begin(self, record: FakeRecord, join: gpb.Join) -> FakeSession:
        self._group.model.entries += 1
        session = FakeSession(
            self._group.model.entries,
            join.group,
            join.member,
            join.token,
            frozenset(join.settings.topics),
            0.0,
            frozenset((each.topic, q) for each in join.queues for q in each.queue_ids),
            not join.no_retries,
            join.settings.version,
        )
        record.sessions[session.number] = session
        return session

    def _end(self, session: FakeSession, code: epb.ErrorCode | None) -> None:
        record = self.records[session.group]
        record.sessions.pop(session.number, None)
        for place in [p for p, lease in record.leases.items() if lease.session == session.number]:
            del record.leases[place]
        for stream in self.streams:
            for slot in [slot for slot, each in stream.slots.items() if each is session]:
                del stream.slots[slot]
                if code is not None:
                    stream.reply(ended=gpb.Ended(slot=slot, error=wire_error(code)))
        self.assign(session.group)

    def _on_broken(self, stream: FakeStream) -> None:
        for session in stream.slots.values():
            if not any(session in each.slots.values() for each in self.streams):
                orderly = self.records[session.group].settings.orderly
                left_s = self.session_ms / 1000 if orderly else self.away_s
                session.present_until = min(session.present_until, self.now + left_s)

    def _news(self, stream: FakeStream) -> Iterator[gpb.AttendResponse]:
        """What has changed for each member since it was told last."""
        for slot, session in list(stream.slots.items()):
            whole = slot not in stream.told
            told = stream.told.setdefault(slot, {})
            held = self._holdings(session)
            news = gpb.Assignment(slot=slot, whole=whole)
            for place, (epoch, asked) in held.items():
                former = told.get(place)
                if former is None or former[0] != epoch or (former[1] and not asked):
                    self._tell_gained(news, session, place, epoch)
                if asked and (former is None or not former[1] or former[0] != epoch):
                    _add(news.asked, place)
            for place in told.keys() - held.keys():
                _add(news.lost, place)
            stream.told[slot] = held
            if whole or news.gained or news.asked or news.lost:
                yield gpb.AttendResponse(assignment=news)

    def _holdings(self, session: FakeSession) -> dict[FakePlace, tuple[int, bool]]:
        record = self.records[session.group]
        if record.settings.broadcast:
            return dict.fromkeys(self._queues(record), (0, False))
        return {
            place: (lease.epoch, lease.asked_until is not None)
            for place, lease in record.leases.items()
            if lease.session == session.number
        }

    def _tell_gained(
        self, news: gpb.Assignment, session: FakeSession, place: FakePlace, epoch: int
    ) -> None:
        topic = news.gained.add(topic=place.topic, incarnation=place.incarnation)
        lease = topic.leases.add(queue_id=place.queue_id, epoch=epoch)
        if epoch:
            finished = self.records[session.group].finished[place]
            lease.frontier = finished.frontier
            lease.finished.extend(encode_runs(finished.frontier, finished.runs()))
            if self._group.retries.takes_failed:
                at = session.group, place, finished.frontier
                lease.failures = self._group.retries.failures(*at)

    # --- calls --------------------------------------------------------------------------------

    def of_session(self, group: str, member: str, session: int) -> FakeRecord:
        """The group, which the member's session is of.

        Raises:
            Refusal: it isn't, or not any more.
        """
        record = self.records.get(group)
        if record is None or session not in record.sessions:
            members = () if record is None else record.sessions.values()
            replaced = any(each.member == member for each in members)
            raise Refusal(wire_error(epb.MEMBER_REPLACED if replaced else epb.SESSION_ENDED))
        return record

    def finish(self, group: str, place: FakePlace, offset: int) -> None:
        """The brokers have finished the message there."""
        finished = self.records[group].finished[place]
        finished.pass_over(offset, offset + 1)
        self._group.model.offsets[group, place.topic][place.queue_id] = finished.frontier

    def commit(self, request: gpb.CommitLeasesRequest) -> gpb.CommitLeasesResponse:
        """Each queue is judged by itself."""
        self.commits.append(request)
        record = self.of_session(request.group, request.member, request.session)
        answer = gpb.CommitLeasesResponse()
        for topic in request.topics:
            for queue in topic.queues:
                place = FakePlace(topic.topic, topic.incarnation, queue.queue_id)
                error = self._commit_queue(record, request, place, queue)
                if error is not None:
                    answer.refused.add(
                        topic=topic.topic,
                        incarnation=topic.incarnation,
                        queue_id=queue.queue_id,
                        error=error,
                    )
        self.assign(request.group)
        return answer

    def _commit_queue(
        self,
        record: FakeRecord,
        request: gpb.CommitLeasesRequest,
        place: FakePlace,
        queue: kpb.QueueProgress,
    ) -> epb.Error | None:
        try:
            place = self.meant(place)
        except Refusal as refusal:
            return refusal.error
        lease = record.leases.get(place)
        if lease is None or (lease.session, lease.epoch) != (request.session, queue.epoch):
            return wire_error(epb.LEASE_LOST)
        runs = decode_runs(queue.frontier, queue.finished)
        end = len(self._group.model.topics[place.topic][place.queue_id].records)
        if max([queue.frontier, *(run[1] for run in runs)]) > end:
            return wire_error(epb.OFFSET_OUT_OF_RANGE)
        known = record.finished[place]
        united = Finished(known.frontier, known.runs())
        united.pass_over(0, queue.frontier)
        for first, last in runs:
            united.pass_over(first, last)
        if len(united.runs()) > MAX_RUNS:
            return wire_error(epb.LIMIT_REACHED, "too many runs")
        record.finished[place] = united
        self._group.model.offsets[request.group, place.topic][place.queue_id] = united.frontier
        if queue.release:
            del record.leases[place]
        return None

    async def pull(self, request: gpb.PullQueuesRequest) -> gpb.PullQueuesResponse:
        """Messages of several queues; held while there are none."""
        self.pulls.append(request)
        answer = self._pulled(request)
        if not answer.queues and request.hold_ms:
            model = self._group.model
            async with model.arrived:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(model.hold_s(request.hold_ms)):
                        while not answer.queues:
                            await model.arrived.wait()
                            answer = self._pulled(request)
        return answer

    def _pulled(self, request: gpb.PullQueuesRequest) -> gpb.PullQueuesResponse:
        answer = gpb.PullQueuesResponse()
        messages, size = request.max_messages or 32, request.max_bytes or 262_144
        for position, wanted in enumerate(request.queues):
            try:
                place = self.meant(
                    FakePlace(wanted.topic, wanted.topic_incarnation, wanted.queue_id)
                )
                found, at = self._records_of(request, wanted, place, messages, size)
            except Refusal as refusal:
                answer.queues.add(position=position, error=refusal.error)
                continue
            queue = self._group.model.queue(wanted.topic, wanted.queue_id)
            messages -= len(found)
            size -= sum(map(len, found))
            if found or at > wanted.offset:
                answer.queues.add(
                    position=position,
                    records=b"".join(found),
                    count=len(found),
                    next_offset=at,
                    filtered_count=at - wanted.offset - len(found),
                    min_offset=queue.min_offset,
                    max_offset=len(queue.records),
                    topic_incarnation=place.incarnation,
                )
        return answer

    def _records_of(
        self,
        request: gpb.PullQueuesRequest,
        wanted: gpb.QueuePull,
        place: FakePlace,
        messages: int,
        size: int,
    ) -> tuple[list[bytes], int]:
        tags: list[str] = list(wanted.tags)
        if wanted.epoch:
            record = self.records.get(request.group)
            lease = None if record is None else record.leases.get(place)
            if lease is None or lease.epoch != wanted.epoch:
                raise Refusal(wire_error(epb.LEASE_LOST))
            if request.by_filter and record is not None:
                filters = record.settings.filters.topics
                tags = [tag for each in filters if each.topic == place.topic for tag in each.tags]
        queue = self._group.model.queue(wanted.topic, wanted.queue_id)
        if not queue.min_offset <= wanted.offset <= len(queue.records):
            raise Refusal(self._group.model.out_of_range(queue, wanted.offset))
        if wanted.offset < len(queue.records):
            self._group.model.check_permission(wanted.topic, READ)
        most = min(messages, wanted.max_messages or messages)
        if size <= 0 or most <= 0:
            return [], wanted.offset
        return self._group.model.chosen(queue, wanted.offset, tags, most=most, size=size)


def _handed_out(left: dict[int, int]) -> Iterator[int]:
    """Sessions in turns, each as often as it has room left."""
    for number in cycle(sorted(left)):
        if not any(count > 0 for count in left.values()):
            return
        if left[number] > 0:
            left[number] -= 1
            yield number


def _add(topics: Any, place: FakePlace) -> None:
    topics.add(topic=place.topic, incarnation=place.incarnation, queue_ids=[place.queue_id])
