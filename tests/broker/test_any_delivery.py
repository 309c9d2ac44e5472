"""Messages handed out one by one, from the first to the last, in a group of real replicas.

Workers ask, ask again as their answers are lost or their calls cut off, both calls of one attempt
are there at once; they settle, beside a receive or with it, or are too slow. The topic grows, its
write queues change, it may not be read for a while, its front goes, it is made anew; leaders step
down, crash and are cut off. What a worker is told is in its hand, and is what was sent there;
nothing is told that was acknowledged as finished before; who was told that nothing happened has
nothing; in order nothing is passed over. In the end all was finished by somebody's word or is a
dead letter, and neither a desk nor bytes are left.
"""

from __future__ import annotations

from asyncio import Task
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.leader.batches import Placed
from broker.leader.deliveries.asking import Handed, Settlement, Superseded
from broker.replica import Replica
from broker.services.deliveries import Receive, Received
from broker.services.topics import QueueWish
from broker.state.groups import Start
from broker.state.machine import StateMachine
from broker.state.registration import Registration
from broker.state.topic_permissions import USUAL, Permission
from broker.state.topics import TopicRef
from dledger.core.types import NodeId
from dledger.outcome import Outcome
from dledger.records.record import DecodedRecord, decode_records
from dledger.records.reserved import dead_letter_topic
from dledger.wire.commands_pb2 import (
    SETTLING_EXTENDED,
    SETTLING_FINISHED,
    SETTLING_RETURNED,
    Command,
    MoveQueueStartsCommand,
    QueueStart,
)
from tests.broker.asked import EndlessCall
from tests.broker.attended import Room
from tests.broker.leader import TOKEN, batch
from tests.node.world import WorldNode

STEPS = 60
LONG = pytest.mark.long
WAYS = (SETTLING_FINISHED, SETTLING_FINISHED, SETTLING_RETURNED, SETTLING_EXTENDED)
LONG_MS = 4_000  # nobody is so slow to be told what is in his hand
CALM_ROUNDS = 400

Message = tuple[int, int]  # queue, offset


class Ending(EndlessCall):
    """A call that may be over before somebody wants to know."""

    def __init__(self) -> None:
        super().__init__()
        self._is_over = False

    def on_end(self, callback: Callable[[], None]) -> None:
        if self._is_over:
            callback()
        else:
            super().on_end(callback)

    def end(self) -> None:
        self._is_over = True
        super().end()
        self._callbacks.clear()


class Hand(NamedTuple):
    """A message that somebody was told."""

    queue_id: int
    handout: int
    offset: int


@dataclass(eq=False)
class Asked:
    """A receive under way, at one start of a node; `finished`: what was, as it was asked."""

    wish: Receive
    node: WorldNode
    replica: Replica
    task: Task[Received]
    call: Ending
    finished: frozenset[Message]
    is_heard: bool = True  # else its worker asks again already

    @property
    def is_cut_off(self) -> bool:
        return not self.node.is_up or self.node.replica is not self.replica


class Settled(NamedTuple):
    """Settlements on their way without a receive."""

    settlements: tuple[Settlement, ...]
    incarnation: int
    task: Task[tuple[Superseded, ...]]


class Life:
    """A group of workers of one topic, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.room = Room(random.choice((1, 3, 3)))
        self.world = self.room.world
        self.is_fifo = random.random() < 0.5
        self.max_attempts = random.choice((0, 0, 2, 3))
        self.riding = random.random() < 0.6
        self.operating = random.random() < 0.7
        self.failing = 0.0 if len(self.world.nodes) == 1 else random.choice((0, 0.02, 0.05))
        node = self.node
        registered = node.replica.services.producers.register(Registration(TOKEN))
        self.producer = self.world.run(node, registered).producer_id
        self.calls: list[Ending] = []
        self.asked: list[Asked] = []
        self.settled: list[Settled] = []
        self.bodies = self.attempts = 0
        self.begin()

    def begin(self) -> None:
        """The topic is new."""
        self.incarnation = self.machine.topics["t"].incarnation
        self.is_readable = True
        self.sequences: Counter[int] = Counter()
        self.sent: dict[Message, bytes] = {}
        self.finished: set[Message] = set()  # as was acknowledged
        self.said: set[Message] = set()  # that it is finished, whatever became of that
        self.gone: set[Message] = set()  # with the topic's front
        self.hands: list[Hand] = []
        self.again: list[Receive] = []
        self.denied: set[bytes] = set()  # attempts that were told so, and nobody asks for again
        self.empty: set[bytes] = set()  # that were told that there is nothing

    @property
    def node(self) -> WorldNode:
        return self.room.leader

    @property
    def machine(self) -> StateMachine:
        return self.room.machine

    @property
    def topic(self) -> TopicRef:
        return TopicRef("t", self.incarnation)

    @property
    def ends(self) -> list[int]:
        return list(self.machine.topics["t"].next_offsets)

    def step(self) -> None:
        drawn = self.random.random()
        if drawn < 0.2:
            self.send()
        elif drawn < 0.5:
            self.ask(self._wish())
        elif drawn < 0.62 and self.again:
            self.ask_again(self.again.pop(self.random.randrange(len(self.again))))
        elif drawn < 0.75:
            self.settle()
        elif drawn < 0.8 and self.asked:
            self.disturb(self.random.choice(self.asked))
        elif drawn < 0.84 and self.operating:
            self.operate()
        elif 0.84 <= drawn < 0.84 + self.failing:
            self.fail_over()
        self.world.run_for(self.random.choice((0, 0, 1, 3, 20, 60)))
        self.listen()

    # --- messages ------------------------------------------------------------------------------

    def send(self) -> None:
        """Some messages, sent again until it is known where they are."""
        numbers = self.machine.queue_numbers.of(self.incarnation, len(self.ends))
        queue_id = self.random.randrange(numbers.write_queues)
        bodies = [b"%d" % (self.bodies + each) for each in range(self.random.randint(1, 5))]
        self.bodies += len(bodies)
        wanted = batch(self.sequences[queue_id], *bodies, queue_id=queue_id)
        placed = None
        while not isinstance(placed, Placed):
            node = self.node
            sending = node.replica.services.sends.send(self.producer, [wanted])
            try:
                (placed,) = self.world.run(node, sending)
            except BrokerError as error:
                if not error.traits.is_retriable:
                    raise
                self.world.run_for(20)
        self.sequences[queue_id] += len(bodies)
        for at, body in enumerate(bodies):
            self.sent[queue_id, placed.base_queue_offset + at] = body

    # --- workers -------------------------------------------------------------------------------

    def _wish(self) -> Receive:
        random = self.random
        self.attempts += 1
        rides = self.riding and random.random() < 0.5
        return Receive(
            group="g",
            topic=self.topic,
            is_fifo=self.is_fifo,
            attempt_id=self.attempts.to_bytes(8, "big"),
            is_again=False,
            max_messages=random.choice((1, 1, 3, 10, 40)),
            max_bytes=0,
            hold_ms=random.choice((0, 0, 500, 3_000)),
            hidden_ms=random.choice((200, 1_000, 4_000, 20_000)),
            start=Start.FIRST,
            start_time_ms=0,
            settled=self._settlements() if rides else (),
            max_attempts=self.max_attempts,
        )

    def _settlements(self) -> tuple[Settlement, ...]:
        """Of some messages that were told; few of them are settled once more later."""
        random = self.random
        some = random.sample(self.hands, min(len(self.hands), random.randint(1, 4)))
        found: list[Settlement] = []
        for hand in some:
            way = random.choice(WAYS)
            hidden_ms = 0 if way == SETTLING_FINISHED else random.choice((0, 0, 300, 1_500))
            found.append(Settlement(hand.queue_id, hand.handout, hand.offset, 1, way, hidden_ms))
            if way == SETTLING_FINISHED:
                self.said.add((hand.queue_id, hand.offset))
            if way != SETTLING_EXTENDED and random.random() < 0.9:
                self.hands.remove(hand)
        return tuple(found)

    def ask(self, wish: Receive) -> None:
        node, call = self.node, Ending()
        self.calls.append(call)
        task = node.begin(node.replica.services.deliveries.receive(wish, call))
        finished = frozenset(self.finished)
        self.asked.append(Asked(wish, node, node.replica, task, call, finished))

    def ask_again(self, wish: Receive) -> None:
        hold_ms = self.random.choice((0, 0, 500, 3_000))
        self.ask(replace(wish, is_again=True, hold_ms=hold_ms))

    def disturb(self, asked: Asked) -> None:
        """Its call is cut off; or its worker takes it for dead, and asks again beside it."""
        match self.random.randrange(3):
            case 0:
                asked.task.cancel()
                asked.call.end()
            case 1 if asked.is_heard:
                asked.is_heard = False
                self.ask_again(asked.wish)
            case _:
                pass

    def settle(self) -> None:
        settlements = self._settlements()
        if settlements:
            node = self.node
            settling = node.replica.services.deliveries.settle("g", self.topic, settlements)
            self.settled.append(Settled(settlements, self.incarnation, node.begin(settling)))

    # --- what they are told --------------------------------------------------------------------

    def listen(self) -> None:
        for asked in [each for each in self.asked if each.task.done() or each.is_cut_off]:
            self.asked.remove(asked)
            if asked.task.done():
                asked.call.end()
                self._hear(asked)
            elif asked.is_heard and asked.wish.topic == self.topic:
                self.again.append(asked.wish)
        for settled in [each for each in self.settled if each.task.done()]:
            self.settled.remove(settled)
            self._hear_settled(settled)
        self.check()

    def _hear(self, asked: Asked) -> None:
        """The answer, unless it is lost on its way."""
        is_cancelled = asked.task.cancelled()
        error = None if is_cancelled else asked.task.exception()
        if asked.wish.topic != self.topic or not asked.is_heard:
            return
        if is_cancelled or self.random.random() < 0.15:
            self.again.append(asked.wish)
        elif error is None:
            self._told(asked, asked.task.result())
        else:
            self._refused(asked, error)

    def _refused(self, asked: Asked, error: BaseException) -> None:
        assert isinstance(error, BrokerError), error
        assert error.code is not ErrorCode.INTERNAL, error
        if asked.wish.is_again or error.traits.outcome is Outcome.MAY_HAVE_HAPPENED:
            self.again.append(asked.wish)
        elif not self._is_open(asked.wish.attempt_id):
            self.denied.add(asked.wish.attempt_id)

    def _is_open(self, attempt: bytes) -> bool:
        """Whether its worker still asks for it, or will."""
        wishes = [*(each.wish for each in self.asked), *self.again]
        return any(each.attempt_id == attempt for each in wishes)

    def _told(self, asked: Asked, received: Received) -> None:
        self._acknowledged(asked.wish.settled, received.superseded)
        if not received.handed and not self._is_open(asked.wish.attempt_id):
            self.empty.add(asked.wish.attempt_id)
        told: set[Message] = set()
        for handed in received.handed:
            for record in records_of(handed):
                message = handed.queue_id, record.queue_offset
                assert message not in told, "twice in one answer"
                assert self.sent[message] == record.body, "another message"
                assert message not in asked.finished, "finished, and told"
                told.add(message)
                self.hands.append(Hand(handed.queue_id, handed.handout, record.queue_offset))
                self._check_hand(asked, handed, record.queue_offset)
        self._check_all_told(asked, told)
        if self.is_fifo and not self.max_attempts:
            passed = {(queue, at) for queue, offset in told for at in range(offset)}
            assert not passed - told - self.said - self.gone, "passed over"

    def _check_hand(self, asked: Asked, handed: Handed, offset: int) -> None:
        """It is in the hand that was told, unless that may be over."""
        wish = asked.wish
        assert not self.max_attempts or handed.attempt <= self.max_attempts
        if wish.is_again or wish.hidden_ms < LONG_MS or not asked.replica.leadership.serving:
            return
        deliveries = asked.replica.machine.deliveries
        record = deliveries.in_topic("g", self.incarnation)[handed.queue_id]
        holding = [each for each in record if offset in each.offsets()]
        assert all(each.index == handed.handout for each in holding), "in another's hand"
        assert holding or (handed.queue_id, offset) in self.said | self.gone, "in nobody's hand"

    def _check_all_told(self, asked: Asked, told: set[Message]) -> None:
        """What it has for the first time is what it was told."""
        if asked.wish.is_again or not asked.replica.leadership.serving:
            return
        records = asked.replica.machine.deliveries.in_topic("g", self.incarnation)
        for queue_id, record in records.items():
            for each in record:
                if each.attempt_id == asked.wish.attempt_id:
                    kept = {(queue_id, offset) for offset in each.offsets()}
                    assert kept <= told, "in its hand, and not told"

    def _hear_settled(self, settled: Settled) -> None:
        error = settled.task.exception()
        if settled.incarnation != self.incarnation:
            return
        if error is not None:
            assert isinstance(error, BrokerError), error
            assert error.code is not ErrorCode.INTERNAL, error
            return
        self._acknowledged(settled.settlements, settled.task.result())

    def _acknowledged(
        self, settlements: Sequence[Settlement], superseded: Iterable[Superseded]
    ) -> None:
        stale = {each.position for each in superseded if each.mask}
        for position, each in enumerate(settlements):
            if position not in stale and each.what == SETTLING_FINISHED:
                self.finished.add((each.queue_id, each.base))

    def check(self) -> None:
        """Nobody has what he was told that he hasn't."""
        now_ms = self.node.replica.driver.log_time_ms
        for record in self.machine.deliveries.in_topic("g", self.incarnation).values():
            for each in record:
                assert each.attempt_id not in self.denied, "denied, and in its hand"
                if each.attempt_id in self.empty and each.hidden_until_ms > now_ms:
                    assert self._is_open(each.attempt_id), "told that there is nothing, and has it"
        self.machine.check_invariants()

    # --- operators and faults ------------------------------------------------------------------

    def operate(self) -> None:
        ways = (*(self.resize,) * 3, *(self.permit,) * 3, self.move_front, self.make_anew)
        try:
            self.random.choice(ways)()
        except BrokerError as error:
            if error.code is ErrorCode.INTERNAL:
                raise

    def resize(self) -> None:
        """It grows, or other queues of it are written."""
        random, node = self.random, self.node
        read = random.choice((0, min(9, len(self.ends) + random.randint(0, 2))))
        wish = QueueWish(read, random.randint(1, 4), False)
        self.world.run(node, node.replica.services.topics.update(self.topic, wish))

    def permit(self) -> None:
        self.is_readable = not self.is_readable
        node, wish = self.node, USUAL if self.is_readable else Permission.WRITE
        self.world.run(node, node.replica.services.topics.permit(self.topic, wish))

    def move_front(self) -> None:
        """The first one or two messages of a queue go."""
        queue_id, node = self.random.randrange(len(self.ends)), self.node
        low = max((offset + 1 for queue, offset in self.gone if queue == queue_id), default=0)
        offset = min(self.random.randint(0, self.ends[queue_id]), low + 2)
        if offset > low:
            start = QueueStart(queue_id=queue_id, offset=offset)
            move = MoveQueueStartsCommand(name="t", incarnation=self.incarnation, starts=[start])
            with node.running():
                node.replica.appender.submit(Command(move_queue_starts=move))
            self.world.settle()
            self.gone |= {(queue_id, at) for at in range(offset)}

    def make_anew(self) -> None:
        if self.random.random() < 0.3:
            node = self.node
            self.world.run(node, node.replica.services.topics.delete(self.topic))
            self.room.topic("t")
            self.begin()

    def fail_over(self) -> None:
        node, pause = self.node, self.random.choice((3, 20, 60, 100))
        other = self.random.choice([each for each in self.world.nodes if each != node.name])
        match self.random.randrange(4):
            case 0 | 1:
                self.world.lead(NodeId(other))
            case 2:
                self.world.crash(node.name)
                self.world.run_for(pause)
                self.world.serving()
                self.world.restart(node.name)
            case _:
                self.world.isolate(node.name)
                self.world.run_for(pause)
                self.world.cut.clear()
                self.world.run_for(30)

    # --- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """A worker receives what there is, beside whoever asks again: all is finished or dead, and
        nothing is kept for anybody."""
        self.world.cut.clear()
        if not self.is_readable:
            self.permit()
        for number in range(CALM_ROUNDS):
            if self._is_over():
                break
            self._receive_all(is_new=number % 4 == 0 or not self.again)
            self.listen()
        else:
            raise AssertionError(f"stuck: {self.ends}, {self._progress()}")
        dead = self._dead_letters()
        lost = self.sent.keys() - self.gone - self.said
        assert {self.sent[each] for each in lost} <= dead, "nobody finished it"
        assert self.max_attempts or not dead
        self.world.run_for(800)
        services = self.node.replica.services
        for call in self.calls:
            call.end()
        assert not services.deliveries._desks
        assert services.pulls.budget.used_bytes == 0

    def _progress(self) -> dict[int, int]:
        records = self.machine.deliveries.in_topic("g", self.incarnation)
        return {queue_id: record.frontier for queue_id, record in records.items()}

    def _is_over(self) -> bool:
        return not self.asked and self._progress() == dict(enumerate(self.ends))

    def _receive_all(self, *, is_new: bool) -> None:
        """One receive, of which all is finished."""
        node, call = self.node, Ending()
        wish = replace(self._wish(), settled=(), max_messages=40)
        if not is_new:
            former = self.again.pop()
            wish = replace(former, settled=(), is_again=True)
        wish = replace(wish, hold_ms=0, hidden_ms=500)
        deliveries = node.replica.services.deliveries
        self.calls.append(call)
        try:
            received = self.world.run(node, deliveries.receive(wish, call))
            done = [
                Settlement(each.queue_id, each.handout, at.queue_offset, 1, SETTLING_FINISHED, 0)
                for each in received.handed
                for at in records_of(each)
            ]
            told = {(each.queue_id, each.base) for each in done}
            assert not told & self.finished, "finished, and told in the end"
            self.said |= told
            if done:
                settling = deliveries.settle("g", self.topic, tuple(done))
                self._acknowledged(done, self.world.run(node, settling))
            else:
                self.world.run_for(200)
        except BrokerError as error:
            if not error.traits.is_retriable:
                raise
            self.world.run_for(60)

    def _dead_letters(self) -> set[bytes]:
        """What was given up."""
        topic = self.machine.topics.get(dead_letter_topic("g"))
        found: set[bytes] = set()
        at = 0
        while topic is not None and at < topic.next_offsets[0]:
            read = self.node.replica.reader.pull(TopicRef(topic.name), 0, at, 100, 1 << 20)
            found |= {record.body for record in decode_records(read.records)}
            at = read.next_offset
        return found


def records_of(handed: Handed) -> list[DecodedRecord]:
    records = decode_records(handed.records)
    assert len(records) == handed.count > 0
    return records


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(n, marks=LONG) for n in range(5, 60))])
def test_each_message_is_finished_by_who_was_told_it(seed: int) -> None:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.end()
