"""Whatever is called in whatever order: what a user may believe after each call, held by a model.

Hypothesis drives the public surface (send, in bulk, flush, look, cancel, close, loops, commits, a
foreign thread) of one client, while leaders die, fall silent, lose answers or refuse. The model
knows what was promised: an accepted message is settled by flush; a failure that nobody looked at
is told exactly once; *stored* is stored once, *was not stored* is not; a consumer gives each queue
without gap or repetition of what it wants; committed is what is finished, never what is in hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from dledger.client import (
    ALL,
    BufferFull,
    Client,
    ClientError,
    ClientOptions,
    ConsumerInUse,
    ConsumerOptions,
    Message,
    NewMessage,
    Outcome,
    Producer,
    ProducerClosed,
    ProducerOptions,
    PullConsumer,
    SendResult,
    SendsFailed,
    StartFrom,
    WrongThread,
)
from dledger.records.record import decode_records
from dledger.testing.fake_nodes import FakeGroup
from dledger.testing.refusals import Refusal, wire_error
from dledger.wire import errors_pb2 as epb
from tests.grpc_noise import is_grpcs_own

Answer = TypeVar("Answer")
QUEUES = 2
BUFFER = 12
OPTIONS = ProducerOptions(
    delivery_timeout_ms=250, close_timeout_ms=400, linger_ms=0, max_buffered_messages=BUFFER
)
LIMIT_S = 20.0  # for any one call; a call that hangs fails there
SHORT_S = 0.05  # how long a loop waits for a message that may not come


class Sent:
    """A message that was accepted, as its sender sees it."""

    def __init__(self, body: bytes, future: asyncio.Future[SendResult]) -> None:
        self.body = body
        self.future = future
        self.looked = False

    @property
    def in_doubt(self) -> bool:
        """Whether it was told that it may have happened; asking here is no look at it."""
        if not self.future.done() or self.future.cancelled():
            return False
        error = getattr(self.future, "_exception", None)
        return isinstance(error, ClientError) and error.outcome is Outcome.MAY_HAVE_HAPPENED

    def look(self) -> ClientError | None:
        """What became of it; None: stored, or its caller has cancelled."""
        self.looked = True
        if self.future.cancelled():
            return None
        error = self.future.exception()
        assert error is None or isinstance(error, ClientError)
        return error


class Surface(RuleBasedStateMachine):
    """One client, one producer and one consumer at a time, three nodes."""

    @initialize(make_loop=st.sampled_from([asyncio.new_event_loop, uvloop.new_event_loop]))
    def begin(self, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.runner = asyncio.Runner(loop_factory=make_loop)
        self.loop = self.runner.get_loop()
        self.complaints: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.complain(context))
        self.group = FakeGroup()
        self.sent: list[Sent] = []
        self.one_way: list[bytes] = []
        self.numbers = 0
        self.finished: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.in_hand: Message | None = None
        self.tags: set[str] | None = None
        self.do(self.open())

    def complain(self, context: dict[str, Any]) -> None:
        if not is_grpcs_own(context["message"], context.get("exception")):
            self.complaints.append(context)

    async def open(self) -> None:
        await self.group.__aenter__()
        self.group.model.create("t", QUEUES)
        options = ClientOptions(presume_after_s=0.02, deadline_s=5.0)
        self.client = await Client.connect(self.group.bootstrap, options=options).__aenter__()
        self.producer: Producer = self.client.producer(OPTIONS)
        self.begin_reading()

    def begin_reading(self) -> None:
        """A new consumer of the group, which goes on at what is committed."""
        self.consumer: PullConsumer = self.client.pull_consumer(
            "t",
            group="g",
            queues=ALL,
            tags=self.tags,
            options=ConsumerOptions(hold_ms=50, pull_bytes=300),
        )
        self.next_offsets = dict(self.committed)
        self.finished, self.in_hand = {}, None

    def do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.loop.run_until_complete(asyncio.wait_for(work, LIMIT_S))

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.do(self.close())
            self.check_verdicts()
            assert not self.complaints, self.complaints
        finally:
            self.loop.run_until_complete(self.group.__aexit__())
            self.runner.close()  # with what gRPC's server has not ended yet

    async def close(self) -> None:
        await self.group.nodes[1].start() if not self.group.nodes[1].is_listening else None
        for node in self.group.nodes:
            node.running.set()
        self.group.elect(self.group.nodes[1])
        await self.told_exactly_once(self.client.close())
        assert all(sent.future.done() for sent in self.sent), "closed, and still pending"

    # --- sending ------------------------------------------------------------------------------

    def body(self) -> bytes:
        self.numbers += 1
        return b"%d" % self.numbers

    @rule(
        topic=st.sampled_from(["t", "t", "t", "absent"]),
        queue_id=st.sampled_from([None, 0, 1]),
        tag=st.sampled_from([None, "a", "b"]),
        deadline_s=st.sampled_from([None, None, 0.02, 0.1, 0.4]),
    )
    def send(
        self, topic: str, queue_id: int | None, tag: str | None, deadline_s: float | None
    ) -> None:
        async def sending() -> None:
            body = self.body()
            try:
                future = self.producer.send(
                    topic, body, tag=tag, queue_id=queue_id, deadline_s=deadline_s
                )
            except BufferFull:
                await self.full()
                return
            self.sent.append(Sent(body, future))

        self.do(sending())

    @rule(
        topic=st.sampled_from(["t", "t", "absent"]), deadline_s=st.sampled_from([None, None, 0.02])
    )
    def send_one_way(self, topic: str, deadline_s: float | None) -> None:
        async def sending() -> None:
            body = self.body()
            try:
                self.producer.send_one_way(topic, body, deadline_s=deadline_s)
            except BufferFull:
                await self.full()
                return
            self.one_way.append(body)

        self.do(sending())

    async def full(self) -> None:
        """The buffer is: somebody's message is under way, or is kept in its place, in doubt, or is
        one that nobody looks at."""
        assert self.producer.statistics().buffered_messages >= BUFFER
        hidden = [sent for sent in self.sent if sent.future.cancelled() or sent.in_doubt]
        assert self.one_way or hidden or any(not sent.future.done() for sent in self.sent)
        await self.producer.room()

    @rule(count=st.integers(1, 2 * BUFFER))
    def send_all(self, count: int) -> None:
        async def sending() -> None:
            bodies = [self.body() for _ in range(count)]
            try:
                told: SendsFailed | None
                stored = await self.producer.send_all(NewMessage("t", body) for body in bodies)
            except SendsFailed as failed:
                told = failed
            else:
                told, log = None, self.log()
                assert stored == count
            if told is not None:
                assert len(told.failures) == told.count <= count
                return
            assert all(log.count(body) == 1 for body in bodies)

        self.do(sending())

    @rule()
    def send_from_another_thread(self) -> None:
        async def sending() -> None:
            try:
                await asyncio.to_thread(self.producer.send, "t", b"never")
            except WrongThread:
                return
            raise AssertionError("it was taken")

        self.do(sending())

    @precondition(lambda self: self.sent)
    @rule(at=st.integers(0, 1_000), cancels=st.booleans())
    def look_or_cancel(self, at: int, cancels: bool) -> None:
        sent = self.sent[at % len(self.sent)]
        if cancels:
            sent.future.cancel()
            sent.looked |= sent.future.done()  # who cancels has chosen not to know
        elif sent.future.done():
            sent.look()

    @rule()
    def flush(self) -> None:
        async def flushing() -> None:
            before = list(self.sent)
            await self.told_exactly_once(self.producer.flush())
            assert all(sent.future.done() for sent in before), "flushed, and still pending"

        self.do(flushing())

    @rule(aborts=st.booleans())
    def another_producer(self, aborts: bool) -> None:
        async def changing() -> None:
            if aborts:
                await self.producer.abort()
                for sent in self.sent:
                    sent.look()
            else:
                await self.told_exactly_once(self.producer.close())
            assert all(sent.future.done() for sent in self.sent)
            try:
                self.producer.send("t", b"never")
            except ProducerClosed:
                self.producer = self.client.producer(OPTIONS)
                return
            raise AssertionError("a closed producer took a message")

        self.do(changing())

    async def told_exactly_once(self, ending: Coroutine[Any, Any, None]) -> None:
        """`ending` raises for the failures that nobody has looked at, and for no others."""
        told = 0
        try:
            await ending
        except SendsFailed as failed:
            told = failed.count
        unseen = [sent for sent in self.sent if sent.future.done() and not sent.looked]
        failures = [sent for sent in unseen if sent.look() is not None]
        assert told == len(failures), (told, failures)

    # --- what befalls the group ---------------------------------------------------------------

    @rule(number=st.integers(0, 2))
    def elect(self, number: int) -> None:
        async def electing() -> None:
            node = self.group.nodes[number]
            if not node.is_listening:
                await node.start()
            node.running.set()
            self.group.elect(node)

        self.do(electing())

    @rule()
    def nobody_leads(self) -> None:
        async def deposing() -> None:
            self.group.elect(None)

        self.do(deposing())

    @rule()
    def kill_the_leader(self) -> None:
        async def killing() -> None:
            if self.group.leader is not None:
                await self.group.leader.kill()
                self.group.elect(None)

        self.do(killing())

    @rule(code=st.sampled_from([epb.LEADERSHIP_LOST, epb.BUSY]), after=st.booleans())
    def spoil_the_next_send(self, code: epb.ErrorCode, after: bool) -> None:
        left = [1]

        async def spoil(method: str, node: object, request: object) -> None:
            if method == "Send" and left[0]:
                left[0] -= 1
                raise Refusal(wire_error(epb.LEADERSHIP_LOST if after else code))

        (self.group.after if after else self.group.before).append(spoil)

    # --- reading ------------------------------------------------------------------------------

    @rule(in_batches=st.booleans())
    def read(self, in_batches: bool) -> None:
        async def reading() -> None:
            loop = self.consumer.batches() if in_batches else aiter(self.consumer)
            for _ in range(3):
                try:
                    async with asyncio.timeout(SHORT_S):
                        taken: Any = await anext(loop)
                except TimeoutError:
                    self.finish()
                    return
                self.finish()
                for message in taken if in_batches else [taken]:
                    expected = self.next_wanted(message.queue_id)
                    assert message.queue_offset == expected, "a gap, or a repetition"
                    self.next_offsets[message.queue_id] = expected + 1
                    self.in_hand = message
            try:
                await anext(self.consumer)
            except ConsumerInUse:
                return
            raise AssertionError("a second loop was let in")

        if self.group.leader is not None and self.group.leader.is_listening:
            self.do(reading())

    def next_wanted(self, queue_id: int) -> int:
        """Where the consumer's next message of a queue is: that it has given is behind it."""
        at = self.next_offsets.get(queue_id, 0)
        for message in self.stored(queue_id)[at:]:
            if self.tags is None or message.tags in self.tags:
                break
            at += 1
        return at

    def stored(self, queue_id: int) -> list[Message]:
        records = self.group.model.topics["t"][queue_id].records
        return [decode_records(record)[0] for record in records]

    def finish(self) -> None:
        if self.in_hand is not None:
            self.finished[self.in_hand.queue_id] = self.in_hand.queue_offset + 1
            self.in_hand = None

    @rule(by_name=st.booleans())
    def commit(self, by_name: bool) -> None:
        async def committing() -> None:
            done = dict(self.finished)
            if by_name and self.in_hand is not None:
                done = {self.in_hand.queue_id: self.in_hand.queue_offset + 1}
                await self.consumer.commit(self.in_hand)
            else:
                await self.consumer.commit()
            self.check_commit(done, self.in_hand if not by_name else None)

        if self.group.leader is not None and self.group.leader.is_listening:
            self.do(committing())

    def check_commit(self, done: dict[int, int], in_hand: Message | None) -> None:
        """It covers what is done, maybe what was passed over behind it, and nothing else."""
        for queue_id in range(QUEUES):
            before = self.committed.get(queue_id, 0)
            least = max(done.get(queue_id, 0), before)
            most = max(self.next_wanted(queue_id), before) if self.tags else least
            if in_hand is not None and in_hand.queue_id == queue_id:
                most = max(before, in_hand.queue_offset)
            now = self.group.model.offsets.get(("g", "t"), {}).get(queue_id, 0)
            assert least <= now <= most, (queue_id, least, now, most)
            if now:
                self.committed[queue_id] = now

    @rule(queue_id=st.sampled_from([0, 1]), share=st.floats(0, 1))
    def set_back(self, queue_id: int, share: float) -> None:
        """The group's offset is reset, and the consumer begins there again."""

        async def setting_back() -> None:
            to = int(self.committed.get(queue_id, 0) * share)
            await self.client.commit_offsets("g", "t", {queue_id: to}, reset=True)
            await self.consumer.seek(queue_id, StartFrom.COMMITTED)
            self.committed[queue_id] = self.next_offsets[queue_id] = to
            self.finished.pop(queue_id, None)
            if self.in_hand is not None and self.in_hand.queue_id == queue_id:
                self.in_hand = None

        if self.group.leader is not None and self.group.leader.is_listening:
            self.do(setting_back())

    @rule(tags=st.sampled_from([None, {"a"}, {"a", "b"}]))
    def another_consumer(self, tags: set[str] | None) -> None:
        async def changing() -> None:
            await self.consumer.close()
            self.tags = tags
            self.begin_reading()

        self.do(changing())

    # --- what always holds --------------------------------------------------------------------

    def log(self) -> list[bytes]:
        return [body for q in range(QUEUES) for body in self.group.model.bodies("t", q)]

    @invariant()
    def committed_is_what_is_finished(self) -> None:
        if hasattr(self, "group"):
            assert self.group.model.offsets.get(("g", "t"), {}) == self.committed

    @invariant()
    def nothing_is_stored_twice(self) -> None:
        if hasattr(self, "group"):
            log = self.log()
            assert len(log) == len(set(log))

    def check_verdicts(self) -> None:
        """None lies, and what one producer's caller knows to be stored is in order."""
        log = self.log()
        assert b"never" not in log
        assert all(log.count(body) <= 1 for body in self.one_way), "stored twice"
        for sent in self.sent:
            if sent.future.cancelled():
                continue
            error = sent.look()
            if error is None:
                result = sent.future.result()
                stored = self.group.model.bodies("t", result.queue_id)[result.queue_offset]
                assert stored == sent.body, "stored elsewhere than told"
            elif error.outcome is Outcome.DID_NOT_HAPPEN:
                assert sent.body not in log, error


TestSurface = Surface.TestCase
TestSurface.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
)
