"""A node inside this process, for what can only be seen or counted there."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from broker.config import NodeConfig
from broker.leader.batches import Batch
from broker.node import Node
from broker.ports import STEADY, Rhythm
from chaos.forming import form_disks
from dledger.records.properties import encode_properties
from dledger.records.record import RecordTemplate
from store.files import OsFiles

SEGMENT_BYTES = 64 << 20
SERVE_S = 30.0
MAX_BATCHES = 1_024  # of one Send
MAX_SEND_BYTES = 4 << 20


@contextlib.asynccontextmanager
async def serving_node(
    directory: Path, rhythm: Rhythm = STEADY, scrub_percent: float | None = None
) -> AsyncIterator[Node]:
    """A node that leads its group of one; the group is formed if the directory is new.

    Args:
        scrub_percent: of a processor; None: as configured by default.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    store: dict[str, object] = {"segment_size_bytes": SEGMENT_BYTES, "reserve_bytes": 0}
    if scrub_percent is not None:
        store["scrub_percent"] = scrub_percent
    config = {
        "broker_group": "bench",
        "node_id": "n1",
        "data_directory": str(directory),
        "listen": address,
        "peers": {"n1": address},
        "store": store,
    }
    chosen = NodeConfig.model_validate(config)
    form_disks([chosen], lambda _: OsFiles())
    node = Node(chosen, rhythm=rhythm)
    await node.start()
    try:
        gc.collect()
        gc.freeze()
        async with asyncio.timeout(SERVE_S):
            while not node.replica.leadership.serving:  # noqa: ASYNC110  no event tells of it
                await asyncio.sleep(0.01)
        yield node
    finally:
        node.replica.ask_to_stop()
        await node.stop()


def small(topic: str, queue_id: int, count: int, body: bytes = b"x" * 8, tag: str = "") -> Batch:
    """A batch of `count` equal messages."""
    properties = encode_properties({"TAGS": tag}) if tag else b""
    record = RecordTemplate(topic, ("127.0.0.1", 5)).encode(queue_id, body, properties, 1)
    return Batch(topic, queue_id, 0, count, record * count)


async def fill_inside(node: Node, size: int, *, size_bytes: int, per_entry: int) -> None:
    """The node's log is `size` bytes long, or a little longer."""
    await node.replica.services.topics.create("filled", 1, if_not_exists=True)
    batch = small("filled", 0, per_entry, bytes(size_bytes))
    at_once = max(1, min(MAX_BATCHES, MAX_SEND_BYTES // len(batch.records)))
    while node.replica.log.end_offset < size:
        await node.replica.services.sends.send(b"", [batch] * at_once)
