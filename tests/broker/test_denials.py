"""A leader that others have taken over from, and that hasn't heard of it, denies nothing (ADR 18):
what it lacks they may have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from broker.errors import TRAITS, BrokerError, ErrorCode, Failure
from broker.leader.changes import Change
from broker.leader.deliveries.asking import Settlement
from broker.services.consumers import MoveWish, To
from broker.services.deliveries import Receive
from broker.services.gate import ABSENCES, Gate
from broker.services.messages import PullRequest
from broker.services.retries import FailedMessage, SendBack
from broker.services.services import Services
from broker.services.topics import QueueWish as Numbers
from broker.services.updates import QueueOf
from broker.state.groups import Settings
from broker.state.registration import Registration
from broker.state.topics import TopicRef
from dledger.core.types import NodeId
from dledger.outcome import Outcome
from dledger.wire.commands_pb2 import SETTLING_FINISHED
from tests.broker.asked import EndlessCall
from tests.broker.leader import batch
from tests.broker.test_held_back import Shop, T
from tests.node.world import WorldNode

NEW = TopicRef("new")
RETRYING = Settings(topics=("t",), max_attempts=3)


class TakenOver(Shop):
    """Member `a` holds queues of t. Then others elect a leader: it has one message more in t/0, a
    topic more, and that one has a message."""

    def __init__(self, singles: str = "") -> None:
        """`singles`: a group that has received the one message that there is before."""
        super().__init__(3, RETRYING)
        self.send(0, b"one")
        if singles:
            deliveries = self.room.leader.replica.services.deliveries
            received = deliveries.receive(receive_of(singles), EndlessCall())
            self.room.world.run(self.room.leader, received)
        self.before = self.room.leader
        self.before.loop.paused = True
        self.room.world.isolate(self.before.name)
        self.room.world.ends.pop(self.before.name)
        while self.room.leader is self.before:
            self.room.world.tick()
        self.pass_ms(0)
        self.send(0, b"two")
        self.room.topic(NEW.name)
        services = self.room.leader.replica.services
        for queue_id in range(4):
            wanted = [batch(0, b"three", topic=NEW.name, queue_id=queue_id)]
            self.room.world.run(self.room.leader, services.sends.send(self.producer, wanted))
        assert self.before.replica.leadership.serving

    def disk(self) -> bytes:
        """The one of before's."""
        return self.before.replica.driver.core.configuration.disk_of(self.before.name)

    def answer_of(self, ask: Callable[[Services], Coroutine[Any, Any, Any]]) -> Any:
        """What the one of before says, at once."""
        self.room.world.timeline.resume(self.before.loop)
        try:
            return self.room.world.run(self.before, ask(self.before.replica.services))
        except BrokerError as error:
            return error.failure


def incarnation_of(node: WorldNode, topic: str) -> int:
    return node.replica.machine.topics[topic].incarnation


def failed(shop: TakenOver, offset: int, *, rejected: bool = False) -> SendBack:
    queue = QueueOf("t", incarnation_of(shop.before, "t"), 0)
    message = FailedMessage(queue, shop.member.held["t", 0], offset, rejected)
    return SendBack("g", "a", shop.member.session, (message,))


NOBODY = NodeId("n9")
OF_NOBODY = Settlement(0, 1, 0, 1, SETTLING_FINISHED, 0)


def receive_of(group: str) -> Receive:
    return Receive(group, T, False, b"attempt1", False, 1, 0, 0, 60_000, 0, 0, ())


Ask = Callable[[TakenOver, Services], Coroutine[Any, Any, Any]]
ASKED: dict[str, Ask] = {
    "send back": lambda shop, to: to.retries.send_back(failed(shop, 1)),
    "reject": lambda shop, to: to.retries.send_back(failed(shop, 1, rejected=True)),
    "resend": lambda _, to: to.retries.resend("g", 0, 0, 0),
    "dead letters": lambda _, to: to.retries.dead_letters("g"),
    "pull": lambda _, to: to.pulls.read(PullRequest(T, 0, 2)),
    "pull new": lambda _, to: to.pulls.read(PullRequest(NEW, 0, 0)),
    "get": lambda _, to: to.lookups.by_position(T, 0, 1, EndlessCall()),
    "bounds": lambda _, to: to.offsets.bounds(NEW, 0),
    "permit": lambda _, to: to.topics.permit(NEW, 1),
    "retain": lambda _, to: to.topics.retain(NEW, 1),
    "update": lambda _, to: to.topics.update(NEW, Numbers(8, 8)),
    "delete": lambda _, to: to.topics.delete(NEW),
    "receive": lambda _, to: to.deliveries.receive(receive_of("g"), EndlessCall()),
    "settle": lambda _, to: to.deliveries.settle("g", T, (OF_NOBODY,)),
    "shrink": lambda _, to: to.topics.update(T, Numbers(2, 2)),
    "remove": lambda _, to: to.cluster.change_members(Change(remove=frozenset({NOBODY}))),
    "replace": lambda _, to: to.cluster.replace_disk(NOBODY, bytes(16)),
    # What is as it is wanted to be: the others may have changed it meanwhile.
    "promote": lambda shop, to: to.cluster.change_members(
        Change(promote=frozenset({shop.before.name}))
    ),
    "same disk": lambda shop, to: to.cluster.replace_disk(shop.before.name, shop.disk()),
    "describe": lambda _, to: to.topics.describe(NEW),
    "move": lambda _, to: to.consumers.move(MoveWish("g", NEW, (), To.LAST)),
    "clone": lambda _, to: to.consumers.clone("nobody", "g"),
    "describe group": lambda _, to: to.consumers.describe("nobody"),
    "register": lambda _, to: to.producers.register(Registration(b"number02")),
}


@pytest.mark.parametrize("what", ASKED)
def test_a_leader_of_before_denies_nothing(what: str) -> None:
    """Whatever it is asked; whoever asked is sent on."""
    shop = TakenOver()
    answer = shop.answer_of(partial(ASKED[what], shop))
    told = answer if isinstance(answer, Failure) else answer[0] if answer else None
    assert isinstance(told, Failure), answer
    assert told.traits.is_retriable, told
    assert told.code is not ErrorCode.BUSY


def test_a_leader_of_before_tells_nobody_who_asks_again_that_there_was_nothing() -> None:
    """The next one has given that attempt a message, and its answer was lost: in doubt, so that
    the attempt asks on. Who hasn't asked before is told what this one knows."""
    shop = TakenOver(singles="h")
    wish = replace(receive_of("h"), attempt_id=b"attempt2")
    now = shop.room.leader
    deliveries = now.replica.services.deliveries
    given = shop.room.world.run(now, deliveries.receive(wish, EndlessCall()))
    assert len(given.handed) == 1
    wish = replace(wish, is_again=True)
    told = shop.answer_of(lambda to: to.deliveries.receive(wish, EndlessCall()))
    assert isinstance(told, Failure), told
    assert (told.traits.outcome, told.traits.is_retriable) == (Outcome.MAY_HAVE_HAPPENED, True)
    again = shop.room.world.run(now, deliveries.receive(wish, EndlessCall()))
    assert again.handed == given.handed


def test_who_asks_again_and_had_nothing_is_told_so() -> None:
    shop = Shop(3)
    asked = partial(replace, receive_of("h"), is_again=True)
    deliveries = shop.room.leader.replica.services.deliveries
    told = shop.room.world.run(shop.room.leader, deliveries.receive(asked(), EndlessCall()))
    assert told.handed == ()


class Leaderships:
    """Of a node that confirms whatever it is asked, and may have led in between."""

    times_served = 1

    def check_serving(self) -> None: ...
    def check_writable(self) -> None: ...

    def not_leader(self, reason: str) -> BrokerError:
        return BrokerError(ErrorCode.NOT_LEADER, reason)

    def read_index(self, done: Callable[[bool], None]) -> None:
        done(True)


@pytest.mark.parametrize("wins_again", [False, True])
def test_what_was_found_in_an_earlier_leadership_is_not_told_in_a_later_one(
    *, wins_again: bool
) -> None:
    """It was of what this node knew then."""
    leaderships = Leaderships()
    gate = Gate(leaderships, leaderships)

    async def work() -> None:
        leaderships.times_served += wins_again
        raise BrokerError(ErrorCode.TOPIC_NOT_FOUND, "there is none")

    with pytest.raises(BrokerError) as told:
        asyncio.run(gate.denying_surely(work()))
    wanted = ErrorCode.NOT_LEADER if wins_again else ErrorCode.TOPIC_NOT_FOUND
    assert told.value.code is wanted


def test_whatever_is_for_good_waits_for_a_majority() -> None:
    """But what the request alone shows, or the node."""
    for_good = {code for code, traits in TRAITS.items() if not traits.is_retriable}
    assert {code.name for code in for_good - ABSENCES} == {
        "MESSAGE_TOO_LARGE",
        "RECORD_CORRUPT",
        "WRONG_BROKER_GROUP",
        "STRATEGY_UNKNOWN",
        "PRODUCER_FENCED",
        "INTERNAL",
    }
