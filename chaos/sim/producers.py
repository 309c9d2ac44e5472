"""Producers of the simulated group: they register, number their batches, and never know too much.

Each sends batches to random queues, up to five of a queue under way at once so that they overtake
each other, and retries over all nodes until it knows. Some have a name, which another instance of
theirs takes over now and then: what was under way goes on under the new id, and the former one's
late attempts must be fenced. And each remembers batches that were answered long ago and sends them
again, whatever was forgotten meanwhile and however far a clock has stepped: the answer is *stored
before*, with the same place if any, or a refusal, and nothing is stored (ADR 25).

A producer that is in use must not be forgotten; one that was, ends what is under way as unknown
and begins anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from random import Random

from chaos.checkers.history import Operation, Send
from chaos.errors import CallFailed
from chaos.sim.clients import BORN, Client, Shared
from chaos.sim.defect import Defect
from chaos.sim.filtered import properties_of
from dledger.history import Outcome
from dledger.records.record import RecordTemplate
from dledger.wire import broker_pb2 as pb
from dledger.wire import errors_pb2 as epb

WINDOW = 5  # batches of a queue under way: as many as the broker remembers
REMEMBERED = 40  # answered batches of a producer that it may send again
TWICE_SHARE = 0.2  # of its attempts, that have the batch twice in one Send
AGAIN_SHARE = 0.15  # of its sends, beside which an old batch goes again
SUCCEEDED_SHARE = 0.02  # of a named one's sends, before which another instance takes over
MEANWHILE_S = 0.004  # between batches of an instance that is being succeeded
GONE = (epb.UNKNOWN_PRODUCER, epb.PRODUCER_FENCED)


@dataclass(frozen=True, slots=True)
class LifeSpan:
    """`name`: the producer's; empty: none. `used_us`: used within so much time it must be known."""

    name: str
    used_us: int


@dataclass(slots=True)
class Session:
    """One registration, and what is numbered under it or, with a name, under its origin."""

    producer_id: bytes
    origin: bytes
    is_over: bool = False


@dataclass(slots=True)
class Lane:
    """One producer's batches to one queue. `messages` and `batches` count over all sessions."""

    topic: str
    queue_id: int
    template: RecordTemplate
    sequence: int = 0
    messages: int = 0
    batches: int = 0
    under_way: dict[int, int] = field(default_factory=dict)  # base sequence -> number of the batch

    @property
    def has_room(self) -> bool:
        """Whether one more batch can be sent and the oldest unanswered one still be retried."""
        oldest = next(iter(self.under_way.values()), self.batches)
        return self.batches - oldest < WINDOW


@dataclass(frozen=True, slots=True)
class Answered:
    """A batch whose answer is known, as it was sent."""

    session: Session
    request: pb.SendRequest
    offset: int


class Producer(Client):
    """Sends numbered batches to random queues, in order per queue, until each is answered."""

    def __init__(
        self,
        name: str,
        shared: Shared,
        chance: Random,
        interval_s: float,
        life: LifeSpan,
        twofold: Random,
    ) -> None:
        super().__init__(name, shared, chance)
        self._interval_s = interval_s
        self._twofold = twofold
        self._life = life
        self._session: Session | None = None
        self._used_us = 0
        self._is_registering = False
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._answered: deque[Answered] = deque(maxlen=REMEMBERED)
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        """Until the run stops and every batch has been answered."""
        while not self.shared.stopping:
            await asyncio.sleep(self.chance.expovariate(1 / self._interval_s))
            topics = self.shared.topics
            if not topics or self.shared.stopping:
                continue
            if (
                self._session is None
                or self._session.is_over
                or (self._life.name and self.chance.random() < SUCCEEDED_SHARE)
            ):
                await self._register()
            topic = self.chance.choice(list(topics))
            queue_id = self.chance.randrange(topics[topic])
            if self._session is not None and not self._session.is_over:
                self._use(self._session, self._lane(topic, queue_id))
        if self._tasks:
            await asyncio.gather(*self._tasks)

    def _needs_session(self) -> bool:
        if self._session is None or self._session.is_over:
            return True
        return bool(self._life.name) and self.chance.random() < SUCCEEDED_SHARE

    def _use(self, session: Session, lane: Lane) -> None:
        if lane.has_room:
            self._send(session, lane)
        if self._answered and self.chance.random() < AGAIN_SHARE:
            self._begin(self._send_again(self.chance.choice(self._answered)))

    def _begin(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def _lane(self, topic: str, queue_id: int) -> Lane:
        key = (topic, queue_id)
        if key not in self._lanes:
            self._lanes[key] = Lane(topic, queue_id, RecordTemplate(topic, BORN))
        return self._lanes[key]

    # --- registering --------------------------------------------------------------------------

    async def _register(self) -> None:
        """A new session; of a name that is still known, with all that the former one has open."""
        token, former = self.chance.randbytes(8), self._session
        if former is not None and not former.is_over:
            self._begin(self._send_meanwhile(former))
        self._is_registering, began_us = True, self.shared.group.now_us
        while (answer := await self.register(self._life.name, b"", token)) is None:
            if self.shared.stopping and (former is None or former.is_over):
                return  # nothing is under way that the attempt could have fenced
            await self.back_off()
        self._is_registering = False
        session = Session(answer.producer_id, answer.origin)
        self._session = session
        self._used_us = self._in_log_time(began_us)
        was_alive = former is not None and not former.is_over
        if former is not None:
            former.is_over = True
        if former is not None and was_alive and former.origin == answer.origin:
            self._check_numbers(answer)
            for lane in self._lanes.values():
                self._begin(self._haunt(former, lane))
            return
        numbers = {(each.topic, each.queue_id): each.sequence for each in answer.next_sequences}
        for key, lane in self._lanes.items():
            lane.sequence = numbers.get(key, 0)
            lane.under_way.clear()

    async def _haunt(self, former: Session, lane: Lane) -> None:
        """A batch of the instance that was succeeded, numbered as it knows: it must be refused."""
        records = lane.template.encode(lane.queue_id, b"from the grave", b"", 0)
        batch = pb.SendBatch(
            topic=lane.topic,
            queue_id=lane.queue_id,
            base_sequence=lane.sequence,
            count=1,
            records=records,
        )
        result = await self._attempt(
            pb.SendRequest(producer_id=former.producer_id, batches=[batch])
        )
        if result is not None and not result.HasField("error"):
            place = f"{lane.topic}/{lane.queue_id} at {result.base_queue_offset}"
            raise Defect("fenced producer stored", f"{self.name}: {place}")

    async def _send_meanwhile(self, former: Session) -> None:
        """The instance that is succeeded knows nothing of it, and goes on sending."""
        for _ in range(4):
            await asyncio.sleep(self.chance.uniform(0, MEANWHILE_S))
            lanes = [lane for lane in self._lanes.values() if lane.has_room]
            if self._session is former and not former.is_over and lanes:
                self._send(former, self.chance.choice(lanes))

    def _check_numbers(self, answer: pb.RegisterProducerResponse) -> None:
        """What was acknowledged is below where the numbers go on, and what was never sent isn't."""
        numbers = {(each.topic, each.queue_id): each.sequence for each in answer.next_sequences}
        for key, lane in self._lanes.items():
            oldest = next(iter(lane.under_way), lane.sequence)
            if not oldest <= numbers.get(key, 0) <= lane.sequence:
                raise Defect(
                    "acknowledged and forgotten",
                    f"{self.name} goes on at {numbers.get(key, 0)} of {key}, sent {lane.sequence} "
                    f"and waits for {list(lane.under_way)}",
                )

    # --- sending ------------------------------------------------------------------------------

    def _send(self, session: Session, lane: Lane) -> None:
        chance = self.chance
        count = chance.choice((1, 1, 1, 2, 5))
        base = lane.sequence
        place = f"{self.name}.{lane.topic}.{lane.queue_id}"
        values = tuple(f"{place}.{lane.messages + i}" for i in range(count))
        padding = chance.choice((0, 10, 100, 700)) * b"."
        tell = properties_of if self.shared.has_tags else _no_properties
        records = b"".join(
            lane.template.encode(lane.queue_id, value.encode() + padding, tell(value), 0)
            for value in values
        )
        batch = pb.SendBatch(
            topic=lane.topic,
            queue_id=lane.queue_id,
            base_sequence=base,
            count=count,
            records=records,
        )
        action = Send(lane.topic, lane.queue_id, lane.messages, values)
        lane.sequence += count
        lane.messages += count
        lane.under_way[base] = lane.batches
        lane.batches += 1
        operation = self.shared.history.invoke(self.shared.group.now_us, self.name, action)
        self.shared.pending += 1
        self._begin(self._deliver(session, lane, batch, operation))

    async def _deliver(
        self, session: Session, lane: Lane, batch: pb.SendBatch, operation: Operation
    ) -> None:
        """Until the batch is answered, or what became of it can't be known any more."""
        base, began_us = batch.base_sequence, self.shared.group.now_us
        while True:
            # An earlier batch that is under way may be overtaken by this one.
            is_first = not any(other < base for other in lane.under_way)
            present = self._present(session)
            if present is None:
                self.shared.pending -= 1
                return
            request = pb.SendRequest(producer_id=present.producer_id, batches=[batch])
            result = await self._attempt(self._twice(request))
            if result is not None and not result.HasField("error"):
                break
            if result is not None:
                self._check_error(present, batch, result.error, is_first=is_first)
            await self.back_off()
        if self._present(session) is not None:
            # Its entry may be older than its answer by all that a majority was silent.
            self._used_us = max(self._used_us, self._in_log_time(began_us))
            lane.under_way.pop(base, None)
        self.shared.pending -= 1
        if result.place_forgotten:
            raise Defect(
                "place forgotten", f"{self.name}: sequence {base}, which was never answered"
            )
        offset = int(result.base_queue_offset)
        self.shared.history.complete(self.shared.group.now_us, operation, Outcome.OK, offset)
        self._answered.append(Answered(present, request, offset))

    def _present(self, session: Session) -> Session | None:
        """The session that goes on with what was numbered under `session`; None if none does."""
        present = self._session
        if not session.is_over:
            return session
        same = present is not None and present.origin == session.origin and not present.is_over
        return present if same else None

    async def _attempt(self, request: pb.SendRequest) -> pb.SendResult | None:
        """The answer of one attempt to the last of the batches, an error of the call's own as that
        of its batch; None if nobody knows."""
        topic, gates = request.batches[0].topic, self.shared.gates
        closing = gates.closed.get(topic)
        try:
            answer = await self.call("send", request)
        except CallFailed as failure:
            return pb.SendResult(error=failure.error) if failure.error is not None else None
        result = answer.results[-1]
        assert isinstance(result, pb.SendResult)
        is_new = not result.HasField("error") and not result.duplicate
        if is_new and closing is not None and gates.closed.get(topic) == closing:
            raise Defect("stored in a closed topic", f"{self.name}, in {topic}")
        if result.HasField("error") and result.error.code != epb.OUT_OF_SEQUENCE:
            self.look_elsewhere()
        return result

    def _twice(self, request: pb.SendRequest) -> pb.SendRequest:
        """Now and then the same batch twice in a Send: the second has another turn of the leader's
        loop, or is let in by one leadership and has its turn in the next."""
        if self._twofold.random() > TWICE_SHARE:
            return request
        twice = [*request.batches, *request.batches]
        return pb.SendRequest(producer_id=request.producer_id, batches=twice)

    async def _send_again(self, before: Answered) -> None:
        """A retry that comes late: it is known, or refused, and never stored."""
        result = await self._attempt(before.request)
        if result is None or result.HasField("error"):
            return
        batch = before.request.batches[0]
        what = f"{self.name}: sequence {batch.base_sequence} of {batch.topic}/{batch.queue_id}"
        if not result.duplicate:
            raise Defect("stored twice", what)
        if not result.place_forgotten and result.base_queue_offset != before.offset:
            raise Defect("stored twice", f"{what}: at {before.offset}, {result.base_queue_offset}")

    def _in_log_time(self, began_us: int) -> int:
        """When, by the log's time, what has just been answered was used. A leader that hears only
        clocks that are behind runs at half speed; in its first second it may step, over what was
        used meanwhile."""
        return began_us - self.shared.group.log_behind_us

    def _check_error(
        self, session: Session, batch: pb.SendBatch, error: epb.Error, *, is_first: bool
    ) -> None:
        """What a producer that does everything right must never be told."""
        fenced = error.code == epb.PRODUCER_FENCED
        if session.is_over or (fenced and self._life.name and self._is_registering):
            return  # another instance has its name, or it was forgotten
        place = f"{batch.topic}/{batch.queue_id}"
        if error.code == epb.OUT_OF_SEQUENCE and is_first:
            raise Defect("acknowledged and forgotten", f"{self.name}: {error.message}")
        if error.retriable or error.code in (epb.INTERNAL, epb.LIMIT_REACHED):
            return
        if error.code == epb.TOPIC_NOT_WRITABLE and self.shared.gates.has_keeper:
            return  # it is opened again before the run ends
        if error.code == epb.UNKNOWN_PRODUCER and not is_first:
            return  # the batch before it is on its way
        unused_us = self.shared.group.now_us - self._used_us
        if error.code in GONE and unused_us > self._life.used_us:
            session.is_over = True
            return
        raise Defect(
            "honest producer refused",
            f"{self.name}: sequence {batch.base_sequence} of {place}: "
            f"{epb.ErrorCode.Name(error.code)} {error.message}",
        )


def _no_properties(value: str) -> bytes:
    return b""
