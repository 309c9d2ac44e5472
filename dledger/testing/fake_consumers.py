"""The service Consumers of the fake nodes: which groups there are, how far they are, moved, copied.

It keeps the contract of `proto/dledger/wire/consumers.proto` and of
docs/adr/0061-administration-of-consumer-groups.md, as far as a client can see it. Nothing here
grows old: no group is forgotten, and none is unused for any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from dledger.client.members.finished import Finished
from dledger.records.record import decode_records
from dledger.testing.fake_deliveries import FakeDeliveries
from dledger.testing.fake_members import FakeMembers, FakePlace, FakeRecord
from dledger.testing.fake_model import FakeQueue, Model
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import consumers_pb2 as pb
from dledger.wire import errors_pb2 as epb


class Nodes(Protocol):
    """The group of nodes."""

    model: Model
    members: FakeMembers
    deliveries: FakeDeliveries
    page_size: int


class FakeConsumers:
    """Tells of consumer groups, and moves them."""

    def __init__(self, group: Nodes) -> None:
        self._group = group

    def _names(self) -> set[str]:
        committed = {name for name, _ in self._group.model.offsets}
        return {*self._group.members.records, *committed, *self._group.deliveries.names()}

    def _check(self, name: str) -> None:
        if name not in self._names():
            raise Refusal(wire_error(epb.GROUP_NOT_FOUND, f"no consumer group {name!r}"))

    def _record(self, name: str) -> FakeRecord | None:
        return self._group.members.records.get(name)

    # --- looking ------------------------------------------------------------------------------

    async def on_ListGroups(
        self, node: object, request: pb.ListGroupsRequest
    ) -> pb.ListGroupsResponse:
        names = sorted(name for name in self._names() if name > request.page_token)
        page = names[: self._group.page_size]
        answer = pb.ListGroupsResponse(groups=[self._summary(name) for name in page])
        answer.next_page_token = page[-1] if len(names) > len(page) else ""
        return answer

    def _summary(self, name: str) -> pb.GroupSummary:
        record = self._record(name)
        found = pb.GroupSummary(
            name=name,
            topic_count=len(self._topics(name)),
            singles=self._group.deliveries.has(name),
            singles_in_order=self._group.deliveries.is_fifo(name),
        )
        if record is not None:
            found.created, found.member_count = record.created, len(record.sessions)
            found.topic_count = len(record.settings.topics)
            found.settings.CopyFrom(record.settings)
        return found

    def _topics(self, name: str) -> list[str]:
        """Those that it wants, or has committed in."""
        record = self._record(name)
        committed = {topic for group, topic in self._group.model.offsets if group == name}
        committed |= self._group.deliveries.topics(name)
        wanted = committed if record is None else committed | set(record.settings.topics)
        return sorted(wanted & self._group.model.topics.keys())

    async def on_DescribeGroup(
        self, node: object, request: pb.DescribeGroupRequest
    ) -> pb.DescribeGroupResponse:
        self._check(request.group)
        record, members = self._record(request.group), self._group.members
        answer = pb.DescribeGroupResponse(group=self._summary(request.group))
        sessions = [] if record is None else sorted(record.sessions.values(), key=_by_name)
        left = [each for each in sessions if each.member > request.page_token]
        page = left[: self._group.page_size]
        for session in page:
            assert record is not None
            answer.members.add(
                member=session.member,
                session=session.number,
                version=session.version,
                queue_count=sum(at.session == session.number for at in record.leases.values()),
                attached=members.is_attached(session),
                expires_ms=max(0, int((session.present_until - members.now) * 1000)),
            )
        answer.next_page_token = page[-1].member if len(left) > len(page) else ""
        return answer

    async def on_GetGroupProgress(
        self, node: object, request: pb.GetGroupProgressRequest
    ) -> pb.GetGroupProgressResponse:
        self._check(request.group)
        start = request.start.topic, request.start.queue_id
        places = [at for at in self._places(request.group) if (at.topic, at.queue_id) >= start]
        page = places[: self._group.page_size]
        answer = pb.GetGroupProgressResponse()
        answer.queues.extend(self._progress(request.group, place) for place in page)
        if len(places) > len(page):
            following = places[len(page)]
            answer.next.topic, answer.next.queue_id = following.topic, following.queue_id
        return answer

    def _places(self, name: str) -> Iterator[FakePlace]:
        for topic in self._topics(name):
            for queue_id in range(len(self._group.model.topics[topic])):
                yield self._group.members.place(topic, queue_id)

    def _progress(self, name: str, place: FakePlace) -> pb.ProgressOfQueue:
        record, queue = self._record(name), self._group.model.queue(place.topic, place.queue_id)
        found = pb.ProgressOfQueue(
            topic=place.topic,
            incarnation=place.incarnation,
            queue_id=place.queue_id,
            min_offset=queue.min_offset,
            max_offset=len(queue.records),
        )
        frontier = self._group.model.offsets.get((name, place.topic), {}).get(place.queue_id)
        finished = self._finished(name, place)
        if frontier is not None:
            found.frontier = frontier
        found.finished_count, found.finished_runs = finished.count_above, len(finished.runs())
        first = max(finished.frontier, queue.min_offset)
        left = [at for at in range(first, len(queue.records)) if at not in finished]
        found.unfinished_count = len(left)
        if left:
            found.oldest_unfinished_ms = _stored_ms(queue, left[0])
        handing = self._group.deliveries.handing(name, place.topic, place.queue_id)
        if handing is not None:
            found.finished_runs = 0
            found.frontier = min(handing.hands, default=handing.next)
            first = max(found.frontier, queue.min_offset)
            done = handing.next - first - sum(at >= first for at in handing.hands)
            found.finished_count = max(0, done)
            found.unfinished_count = len(queue.records) - first - found.finished_count
            in_hand = [at for at in handing.hands if at >= first]
            found.in_hand_count = len(in_hand)
            oldest = min(in_hand, default=max(handing.next, first))
            found.oldest_unfinished_ms = _stored_ms(queue, oldest)
        lease = None if record is None else record.leases.get(place)
        if lease is not None:
            found.session, found.epoch = lease.session, lease.epoch
            found.asked = lease.asked_until is not None
        return found

    def _finished(self, name: str, place: FakePlace) -> Finished:
        record = self._record(name)
        known = None if record is None else record.finished.get(place)
        if known is not None:
            return known
        committed = self._group.model.offsets.get((name, place.topic), {})
        return Finished(committed.get(place.queue_id, 0))

    # --- moving -------------------------------------------------------------------------------

    async def on_MoveGroup(
        self, node: object, request: pb.MoveGroupRequest
    ) -> pb.MoveGroupResponse:
        self._check(request.group)
        record, model = self._record(request.group), self._group.model
        if record is not None and record.settings.broadcast:
            raise Refusal(wire_error(epb.INVALID_ARGUMENT, "its members know where they are"))
        model.queue(request.topic, 0, request.incarnation)
        if len(set(request.queue_ids)) < len(request.queue_ids):
            raise Refusal(wire_error(epb.INVALID_ARGUMENT, "a queue is named twice"))
        queue_ids = request.queue_ids or range(len(model.topics[request.topic]))
        places = [self._group.members.place(request.topic, queue_id) for queue_id in queue_ids]
        wanted = {place: self._target(request, place) for place in places}
        if self._group.deliveries.has(request.group):
            raise Refusal(wire_error(epb.GROUP_STYLED, f"{request.group} is handed single ones"))
        answer, offsets = pb.MoveGroupResponse(), model.offsets
        committed = offsets.setdefault((request.group, request.topic), {})
        for place, finished in wanted.items():
            moved = answer.queues.add(queue_id=place.queue_id, offset=finished.frontier)
            if place.queue_id in committed:
                moved.before = committed[place.queue_id]
            committed[place.queue_id] = finished.frontier
            if record is not None:
                record.finished[place] = finished
                record.leases.pop(place, None)
        if record is not None:
            self._group.members.assign(request.group)
        return answer

    def _target(self, request: pb.MoveGroupRequest, place: FakePlace) -> Finished:
        """What is finished of the queue then."""
        queue = self._group.model.queue(place.topic, place.queue_id)
        low, high = queue.min_offset, len(queue.records)
        known = self._finished(request.group, place)
        match request.WhichOneof("to"):
            case "offset":
                if not low <= request.offset <= high:
                    raise Refusal(self._group.model.out_of_range(queue, request.offset))
                return Finished(request.offset)
            case "skip":
                first = max(known.frontier, low)
                left = [at for at in range(first, high) if at not in known]
                skipped = left[: request.skip] if request.skip else left
                united = Finished(known.frontier, known.runs())
                united.pass_over(0, skipped[-1] + 1 if skipped else first)
                return united
        return Finished(queue.start(request.start, request.time_ms))

    async def on_CloneGroup(
        self, node: object, request: pb.CloneGroupRequest
    ) -> pb.CloneGroupResponse:
        offsets = self._group.model.offsets
        if request.target in self._names():
            raise Refusal(wire_error(epb.GROUP_EXISTS))
        found = {topic: dict(of) for (name, topic), of in offsets.items() if name == request.source}
        if not found:
            raise Refusal(wire_error(epb.GROUP_NOT_FOUND))
        for topic, committed in found.items():
            offsets[request.target, topic] = committed
        return pb.CloneGroupResponse(topic_count=len(found))


def _by_name(session: object) -> str:
    return str(getattr(session, "member", ""))


def _stored_ms(queue: FakeQueue, offset: int) -> int:
    """When the message was stored; 0: there is none."""
    if offset >= len(queue.records):
        return 0
    return decode_records(queue.records[offset])[0].store_time_ms
