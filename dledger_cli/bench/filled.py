"""Logs of a certain length, made by producing: so many bytes, so many messages an entry.

What a start or a copy takes depends on both: a log of 2 GB has two thousand entries of a mebibyte,
or two million of a kibibyte. Batches are filled exactly where the group keeps up, so the mean that
came of it (`messages_per_entry`) is told beside what was asked for.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from broker.local_group import LocalGroup, LocalGroupError, LocalNode
from broker.local_group.status import probe
from dledger.client import Client, NewMessage, ProducerOptions
from dledger.records.layout import FIRST_RECORD_AT, RECORD
from dledger.wire.cluster_pb2 import NodeStatus

QUEUES: Final = 64  # at most five batches of a queue are under way at once
LEVEL_S: Final = 600.0  # a follower applies what it was given, on a busy machine
POLL_S: Final = 0.05
SLICE_BYTES: Final = 64 << 20  # of log, between two looks at how long it is
LEAST_BATCH_BYTES: Final = 1 << 10  # what a producer can be told
MOST_BATCH_BYTES: Final = 3 << 20
RECORD_TAIL_BYTES: Final = 3  # lengths of topic and properties, behind the body


@dataclass(frozen=True, slots=True)
class Shape:
    """What a log is made of."""

    size_bytes: int  # of a body
    per_entry: int  # messages

    def record_bytes(self, topic: str) -> int:
        """Of one message in the log."""
        return RECORD.at("body") + self.size_bytes + RECORD_TAIL_BYTES + len(topic)

    def entry_bytes(self, topic: str) -> int:
        """Of one entry."""
        return FIRST_RECORD_AT + self.per_entry * self.record_bytes(topic)

    def wrong(self) -> str | None:
        """Why no producer makes such entries; None: it does."""
        size = self.per_entry * self.record_bytes("")
        if self.per_entry > 1 and size > MOST_BATCH_BYTES:
            return f"a producer's batch holds {MOST_BATCH_BYTES:,} bytes, not {size:,}"
        if self.per_entry == 1 and 2 * self.record_bytes("") <= LEAST_BATCH_BYTES:
            return f"bodies of {self.size_bytes} bytes are never alone in an entry: 512 are"
        return None


async def status_of(node: LocalNode) -> NodeStatus:
    """What a node that runs says of itself.

    Raises:
        LocalGroupError: it doesn't answer.
    """
    status = await probe(node.address)
    if status is None:
        raise LocalGroupError(f"{node.id} doesn't answer")
    return status


async def leader_status(group: LocalGroup) -> NodeStatus:
    """The same of the leader."""
    return await status_of(await group.resolve("leader"))


async def fill_to(
    group: LocalGroup, client: Client, topic: str, shape: Shape, size: int
) -> NodeStatus:
    """The log is `size` bytes long, or a little longer, on every member; what the leader says.

    Raises:
        ClientError, SendsFailed: the group refuses messages.
        LocalGroupError: a member doesn't follow.
    """
    batch_bytes = max(LEAST_BATCH_BYTES, shape.per_entry * shape.record_bytes(topic))
    options = ProducerOptions(batch_bytes=batch_bytes, max_inflight_requests=8)
    async with client.producer(options) as producer:
        while (left := size - (await leader_status(group)).end_offset) > 0:
            entries = -(-min(left, SLICE_BYTES) // shape.entry_bytes(topic))
            await producer.send_all(_messages(topic, shape, entries))
    return await until_level(group)


def _messages(topic: str, shape: Shape, entries: int) -> Iterator[NewMessage]:
    body = bytes(shape.size_bytes)
    queues = itertools.cycle(range(QUEUES))
    for queue_id in itertools.islice(queues, entries):
        for _ in range(shape.per_entry):
            yield NewMessage(topic, body, queue_id=queue_id)


async def until_level(group: LocalGroup) -> NodeStatus:
    """Every member has applied what the leader had committed; what the leader says.

    Raises:
        LocalGroupError: one of them doesn't.
    """
    deadline = time.monotonic() + LEVEL_S
    leader = await leader_status(group)
    while time.monotonic() < deadline:
        seen = await asyncio.gather(*(probe(node.address) for node in group.nodes))
        if all(each is not None and each.applied_index >= leader.commit_index for each in seen):
            return leader
        await asyncio.sleep(POLL_S)
    raise LocalGroupError(f"not every member has caught up within {LEVEL_S:g} s")
