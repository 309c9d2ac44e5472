"""Members of consumer groups over the wire, as plain as a client can be: what they are told is
kept, and nothing is done by itself but heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from dledger.wire import commands_pb2 as cpb
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as pb
from tests.integration.group import Group, error_of

WAIT_S = 60.0
BEATS_S = 0.2

Queue = tuple[str, int]


@dataclass
class Member:
    """What one slot of a stream was told."""

    join: pb.Join
    session: int = 0
    held: dict[Queue, pb.QueueLease] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)
    asked: set[Queue] = field(default_factory=set)
    is_whole: bool = False
    ended: pb.Ended | None = None

    @property
    def queues(self) -> set[int]:
        return {queue_id for _, queue_id in self.held}

    def take(self, told: pb.Assignment) -> None:
        for topic in told.gained:
            self.incarnations[topic.topic] = topic.incarnation
            for lease in topic.leases:
                self.held[topic.topic, lease.queue_id] = lease
                self.asked.discard((topic.topic, lease.queue_id))
        for named in told.asked:
            self.asked.update((named.topic, queue_id) for queue_id in named.queue_ids)
        for named in told.lost:
            for queue_id in named.queue_ids:
                del self.held[named.topic, queue_id]
                self.asked.discard((named.topic, queue_id))
        self.is_whole = self.is_whole or told.whole


class Stream:
    """One stream to a node."""

    def __init__(self, channel: Any) -> None:
        self._call = channel.stream_stream(
            "/dledger.v1.Groups/Attend",
            request_serializer=pb.AttendRequest.SerializeToString,
            response_deserializer=pb.AttendResponse.FromString,
        )()
        self.members: dict[int, Member] = {}
        self.answered = 0
        self.failure: epb.Error | None = None
        self.is_over = False
        self._number = 0
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._take(response)
                self._changed.set()
        except grpc.aio.AioRpcError as error:
            self.failure = error_of(error)
        finally:
            self.is_over = True
            self._changed.set()

    def _take(self, response: pb.AttendResponse) -> None:
        match response.WhichOneof("body"):
            case "joined":
                self.members[response.joined.slot].session = response.joined.session
            case "heartbeat_answered":
                self.answered = response.heartbeat_answered.number
            case "assignment":
                self.members[response.assignment.slot].take(response.assignment)
            case "ended":
                self.members[response.ended.slot].ended = response.ended

    async def _beat(self) -> None:
        while not self.is_over:
            await self.heartbeat()
            await asyncio.sleep(BEATS_S)

    async def heartbeat(self) -> None:
        self._number += 1
        await self.say(pb.AttendRequest(heartbeat=pb.Heartbeat(number=self._number)))

    def stop_beating(self) -> None:
        """The process sleeps, and its connection is up."""
        self._tasks[1].cancel()

    async def say(self, request: pb.AttendRequest) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with self._writing:
                await self._call.write(request)

    async def join(
        self,
        name: str = "m",
        *,
        group: str = "g",
        token: bytes = b"token--1",
        session: int = 0,
        topics: tuple[str, ...] = ("t",),
        **settings: Any,
    ) -> Member:
        """Says that the member is joining; what became of it is told later."""
        join = pb.Join(
            slot=len(self.members),
            group=group,
            member=name,
            token=token,
            session=session,
            settings=cpb.GroupSettings(topics=topics, **settings),
        )
        member = self.members[join.slot] = Member(join)
        await self.say(pb.AttendRequest(join=join))
        return member

    async def leave(self, member: Member) -> None:
        await self.say(pb.AttendRequest(leave=pb.Leave(slot=member.join.slot)))

    async def until(self, what: Callable[[], object]) -> None:
        """Returns as soon as it is so."""
        async with asyncio.timeout(WAIT_S):
            while not what():
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        """The process is gone."""
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def attending(group: Group) -> AsyncIterator[Callable[[], Any]]:
    """Opens streams to whoever leads; all are closed at the end."""
    streams: list[Stream] = []

    async def begin() -> Stream:
        leader = await group.leader()
        streams.append(Stream(group.channel(leader.config.node_id)))
        return streams[-1]

    try:
        yield begin
    finally:
        for stream in streams:
            await stream.close()


def commit_of(
    member: Member,
    queue_id: int,
    frontier: int,
    *finished: int,
    release: bool = False,
    epoch: int | None = None,
    topic: str = "t",
) -> pb.CommitLeasesRequest:
    """A commit of one queue; `finished` as runs."""
    held = member.held.get((topic, queue_id))
    queue = cpb.QueueProgress(
        queue_id=queue_id,
        epoch=epoch if epoch is not None or held is None else held.epoch,
        frontier=frontier,
        finished=finished,
        release=release,
    )
    done = cpb.TopicProgress(
        topic=topic, incarnation=member.incarnations.get(topic, 0), queues=[queue]
    )
    return pb.CommitLeasesRequest(
        group=member.join.group, member=member.join.member, session=member.session, topics=[done]
    )
