"""Topics with messages in them, and what is in topics: for tests of the tables over the network."""

from __future__ import annotations

from typing import Any

from dledger.client.blocking import BlockingClient
from dledger.spark.network import TopicsSource

Row = dict[str, Any]


def fill(addresses: str, topic: str, queue_id: int, bodies: list[bytes], **labels: Any) -> None:
    """These messages are stored in the queue, in order."""
    with BlockingClient.connect(addresses) as client, client.producer() as producer:
        for body in bodies:
            producer.send(topic, body, queue_id=queue_id, **labels)
        producer.flush()


def stored(addresses: str, topic: str) -> dict[int, list[bytes]]:
    """The bodies in each queue that has any."""
    with BlockingClient.connect(addresses) as client:
        found: dict[int, list[bytes]] = {}
        for message in client.pull_consumer(topic, idle_timeout_s=0):
            found.setdefault(message.queue_id, []).append(message.body)
    return found


def renewed(addresses: str, topic: str, queues: int = 1) -> int:
    """The topic is deleted and made anew; its incarnation."""
    with BlockingClient.connect(addresses) as client:
        client.delete_topic(topic)
        return client.create_topic(topic, queues=queues).incarnation


def source(addresses: str, topics: str, **options: str) -> TopicsSource:
    """The source with these options."""
    return TopicsSource({"bootstrap": addresses, "topics": topics, **options})


def rows_of(reader: Any, partitions: Any = None) -> list[Row]:
    """Everything that a reader's tasks bring."""
    parts = reader.partitions() if partitions is None else partitions
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
