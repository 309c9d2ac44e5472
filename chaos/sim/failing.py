"""A crew that fails at messages: some now and then, some always, and nobody ever skips one.

Its members send failed messages back to the brokers (ADR 58), which have them come again after
delays that fit a run; in order they tell of them, and stay in front of them (ADR 63). What they say
twice, and what they say of queues that they have no more, must copy nothing and count nothing; what
is poison must be dead after its attempts.
The log is judged at the end (`chaos.sim.retry_model`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from zlib import crc32

from broker.state.machine import StateMachine
from broker.state.retries import Queue as Level
from chaos.errors import CallFailed
from chaos.sim.defect import Defect
from chaos.sim.members import Crew, Held, Member, Queue
from chaos.sim.retry_model import ATTEMPTS, Chain, RetryModel
from dledger.records.record import DecodedRecord
from dledger.records.reserved import (
    GIVEN_UP_IN_ORDER,
    ORIGIN_MESSAGE_ID,
    SCHEDULE_TOPIC,
    retry_topic,
)
from dledger.wire import commands_pb2 as cpb
from dledger.wire import errors_pb2 as epb
from dledger.wire import groups_pb2 as pb

POISON_SHARE = 5  # one of so many messages fails always
POISON_SHARE_IN_ORDER = 20  # where the others wait for it
CHANCE = 0.15  # of any other to fail, once more each time
BEGUN = 0.5  # of what is committed, where the log counts
TWICE = 0.3  # of what was sent back, once more
# What becomes of a lease or a session meanwhile: the message is somebody else's to work on.
WEATHER = (epb.LEASE_LOST, epb.LIMIT_REACHED, epb.SESSION_ENDED, epb.MEMBER_REPLACED)


@dataclass(slots=True)
class FailingCrew(Crew):
    """By message id of the first: poison that the brokers have taken back once."""

    poison: set[str] = field(default_factory=set)

    def settings(self, *topics: str) -> cpb.GroupSettings:
        return cpb.GroupSettings(
            start=self.start, topics=topics, max_attempts=ATTEMPTS, orderly=self.is_orderly
        )


class FailingMember(Member):
    """One process of such a crew."""

    _crew: FailingCrew

    def _begin_life(self) -> None:
        super()._begin_life()
        self._given: dict[tuple[Queue, int], DecodedRecord] = {}
        self._counted: dict[Queue, tuple[int, int]] = {}  # offset, failures

    def _on_gained(self, queue: Queue, lease: pb.QueueLease) -> None:
        if lease.HasField("failures"):
            self._counted[queue] = lease.frontier, lease.failures
        else:
            self._counted.pop(queue, None)

    async def _commit_simply(self) -> None:
        """Where nobody is a member it would forget what is finished behind the frontier, and what
        was sent back from there would be again."""

    def _begins(self, queue: Queue) -> bool:
        """Now and then, true or not: what follows from it is looked at, whoever says it."""
        return queue in self._counted and self.chance.random() < BEGUN

    def _note(self, queue: Queue, record: DecodedRecord) -> None:
        self._given[queue, record.queue_offset] = record

    async def _finish_some(self, queue: Queue, held: Held) -> None:
        for offset in sorted(held.unfinished):
            record = self._given.pop((queue, offset), None)
            if record is None or not self._fails(record):
                held.finish(offset)
                continue
            await self._send_back(queue, held, record)
            if self._crew.is_orderly and offset in held.unfinished:
                return  # those behind it wait

    def _failed(self, queue: Queue, record: DecodedRecord) -> int | None:
        """How often by now, as is told in order; None: nobody counts there. Some of those that
        failed for ever before aren't tried any more."""
        if not self._crew.is_orderly:
            return 0
        if queue not in self._counted:
            return None
        offset, failures = self._counted[queue]
        if offset != record.queue_offset:
            return 1
        is_given_up = failures >= max(ATTEMPTS, GIVEN_UP_IN_ORDER)
        return failures if is_given_up else failures + 1

    def _fails(self, record: DecodedRecord) -> bool:
        if self._is_poison(record):
            return True
        return not self.shared.stopping and self.chance.random() < CHANCE

    def _is_poison(self, record: DecodedRecord) -> bool:
        share = POISON_SHARE_IN_ORDER if self._crew.is_orderly else POISON_SHARE
        return crc32(record.body) % share == 0

    def _finish_all(self, queue: Queue, held: Held) -> None:
        """All but what can't be worked on."""
        for offset in sorted(held.unfinished):
            record = self._given.get((queue, offset))
            if record is None or not self._is_poison(record):
                held.finish(offset)
            elif self._crew.is_orderly:
                return

    async def _send_back(self, queue: Queue, held: Held, record: DecodedRecord) -> None:
        """It is the brokers' from now on; if they can't be asked it is worked on again."""
        topic, incarnation, queue_id = queue
        count = self._failed(queue, record)
        if count is None:
            held.finish(record.queue_offset)  # nobody can be told yet
            return
        failed = pb.FailedMessage(
            topic=topic,
            incarnation=incarnation,
            queue_id=queue_id,
            epoch=held.epoch,
            offset=record.queue_offset,
            rejected=not self._is_poison(record) and self.chance.random() < 0.1,
            failed=count,
        )
        request = pb.SendBackRequest(
            group=self._crew.group,
            member=self.name.partition("/")[0],
            session=self._session,
            messages=[failed],
        )
        for _ in range(2 if self.chance.random() < TWICE else 1):
            try:
                answer = await self.call("send_back", request)
            except CallFailed as failure:
                if (
                    failure.code == epb.NOT_READY
                    and failure.error
                    and "level" in (failure.error.message)
                ):
                    held.finish(record.queue_offset)  # nobody can be told yet
                else:
                    self._given[queue, record.queue_offset] = record
                return
            (sent,) = answer.messages
            if sent.failures:
                if not self._crew.is_orderly:
                    raise Defect("send back", f"{self.name}: {sent} where nothing is in order")
                self._counted[queue] = record.queue_offset, sent.failures
                self._given[queue, record.queue_offset] = record
            elif not sent.HasField("error"):
                if self._is_poison(record):
                    self._crew.poison.add(_origin(record))
                if record.queue_offset in held.unfinished:
                    held.finish(record.queue_offset)
            elif self._is_gone(sent.error, record):
                if record.queue_offset in held.unfinished:
                    held.finish(record.queue_offset)
            elif sent.error.code not in WEATHER and not sent.error.retriable:
                raise Defect("send back refused", f"{self.name}: {sent.error}")
            else:
                self._given[queue, record.queue_offset] = record

    def _is_gone(self, error: epb.Error, record: DecodedRecord) -> bool:
        """Whether retention has taken it, before it could be copied."""
        moved = self.shared.moves_start and error.code == epb.OFFSET_OUT_OF_RANGE
        return moved and record.queue_offset < error.valid.min_offset


def has_moved_on(machine: StateMachine) -> bool:
    """Whether nothing waits in the schedule topic."""
    topic = machine.topics.get(SCHEDULE_TOPIC)
    return topic is None or all(
        machine.retries.moved_to(Level(topic.incarnation, queue_id)) == end
        for queue_id, end in enumerate(topic.next_offsets)
    )


def check_failed(
    crews: Iterable[Crew], model: RetryModel, first_held: Callable[[str], int]
) -> None:
    """Nothing waits any more, and what is poison is dead, after exactly its attempts, or with those
    counted for members that vanished (`RetryModel` says that it wasn't sooner); so is nothing
    else, but what was rejected or has failed as often. The log's front may have taken what lay in
    a retry topic like any other message, and nothing that waited.

    Args:
        first_held: where a retry topic begins by now.

    Raises:
        Defect: names what isn't so.
    """
    if model.waiting:
        raise Defect("retry", f"{model.waiting[:5]} wait for ever")
    dead = model.dead
    for chain, (failures, is_rejected) in dead.items():
        if failures < ATTEMPTS and not is_rejected:
            raise Defect("retry", f"{chain} is dead after {failures} attempts")
    for crew in crews:
        for origin in crew.poison if isinstance(crew, FailingCrew) else ():
            chain = Chain(crew.group, origin)
            is_gone = model.lies_before(chain, first_held(retry_topic(crew.group)))
            _, is_rejected = dead.get(chain, (0, True))
            if is_rejected and not is_gone:
                found = model.place(chain)
                raise Defect("retry", f"nobody can work on {origin}, and it is {found}")


def _origin(record: DecodedRecord) -> str:
    return record.properties.get(ORIGIN_MESSAGE_ID, record.message_id)
