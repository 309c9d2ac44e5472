"""The tests of an application that works on a topic, whole: one function by itself, its member of a
consumer group against a node that takes its queue away, and its sends through a failover.

.venv/bin/pytest examples/tests_of_billing.py
"""

from __future__ import annotations

import threading

from dledger.client import Message, Reject, RevokedQueues
from dledger.client.blocking import BlockingClient, BlockingPushConsumer
from dledger.testing import BlockingFakeGroup, BrokerGroup, make_message
from dledger.testing.fixtures import dledger_fake, dledger_group, dledger_three

__all__ = ["dledger_fake", "dledger_group", "dledger_three"]

# --- the application ------------------------------------------------------------------------------


class Billing:
    """Bills each order once, however often it is handed one."""

    def __init__(self) -> None:
        self.bills: dict[str, str] = {}

    def bill(self, message: Message) -> None:
        if message.keys is None:
            raise Reject  # nobody will ever know whose it is: a dead letter
        if message.body == b"later" and message.attempt == 1:
            raise ValueError("the rates aren't there yet")
        self.bills.setdefault(message.keys or "", message.body.decode())

    def member_of(self, client: BlockingClient, topic: str) -> BlockingPushConsumer:
        service = client.push_consumer("billing")
        service.on(topic)(self.bill)
        return service


# --- its tests ------------------------------------------------------------------------------------


def test_an_order_is_billed_once() -> None:
    """A handler is a function of a message: no node is needed."""
    billing = Billing()
    for _ in range(2):
        billing.bill(make_message("orders", b"12.50", key="order-1"))
    assert billing.bills == {"order-1": "12.50"}


def test_orders_of_a_topic_are_billed(dledger_group: BrokerGroup) -> None:
    """A real node, which the tests share: each takes a topic of its own."""
    billing, topic = Billing(), dledger_group.topic(queues=2)
    with BlockingClient.connect(dledger_group.addresses) as client:
        with client.producer() as producer:
            for number in range(20):
                producer.send(topic, b"1.00", key=f"order-{number}")
        for message in client.pull_consumer(topic, idle_timeout_s=0):
            billing.bill(message)
    assert len(billing.bills) == 20


def test_a_queue_that_is_taken_away_is_given_up(dledger_fake: BlockingFakeGroup) -> None:
    """As when another member joins. `take_away` does it without asking, `end_sessions` as if the
    member had been stopped for too long: the fake does at once what takes real groups seconds."""
    billing, topic = Billing(), dledger_fake.topic()
    given_up = threading.Event()

    def gone(queues: RevokedQueues) -> None:
        given_up.set()

    with BlockingClient.connect(dledger_fake.addresses) as client:
        with client.producer() as producer:
            producer.send(topic, b"1.00", key="order-1")
        service = billing.member_of(client, topic)
        service.on_revoke(gone)
        running = threading.Thread(target=service.run)
        running.start()
        while dledger_fake.committed("billing", topic) < 1:
            given_up.wait(0.01)
        dledger_fake.revoke("billing", topic)
        assert given_up.wait(60)
        service.stop()
        running.join()
    assert billing.bills == {"order-1": "1.00"}


def test_what_fails_comes_again_or_is_a_dead_letter(dledger_fake: BlockingFakeGroup) -> None:
    """As at real nodes, which take 10 s before the first retry."""
    billing, topic = Billing(), dledger_fake.topic()
    with BlockingClient.connect(dledger_fake.addresses) as client:
        with client.producer() as producer:
            producer.send(topic, b"later", key="order-1")
            producer.send(topic, b"nobody's")
        service = billing.member_of(client, topic)
        running = threading.Thread(target=service.run)
        running.start()
        while not billing.bills or not client.dead_letters("billing").count:
            running.join(0.01)
        service.stop()
        running.join()
    assert billing.bills == {"order-1": "later"}
    assert dledger_fake.bodies("%DLQ%billing") == [b"nobody's"]


def test_an_answer_that_is_lost_stores_nothing_twice(dledger_fake: BlockingFakeGroup) -> None:
    """The node has stored it, and its answer never comes."""
    topic = dledger_fake.topic()
    dledger_fake.lose_answer()
    with (
        BlockingClient.connect(dledger_fake.addresses) as client,
        client.producer() as producer,
    ):
        assert producer.send(topic, b"1.00").result().duplicate
    assert dledger_fake.bodies(topic) == [b"1.00"]


def test_orders_survive_the_leader(dledger_three: BrokerGroup) -> None:
    """Three real nodes, of which one is killed and another paused."""
    topic = dledger_three.topic()
    with BlockingClient.connect(dledger_three.addresses) as client, client.producer() as producer:
        producer.send(topic, b"1").result()
        killed = dledger_three.kill()
        producer.send(topic, b"2").result()
        dledger_three.restart(killed)
        paused = dledger_three.pause()
        producer.send(topic, b"3").result()
        dledger_three.resume(paused)
        bodies = [each.body for each in client.pull_consumer(topic, idle_timeout_s=0)]
    assert bodies == [b"1", b"2", b"3"]
