"""The group that is harassed: real processes, the good load on them, and what they are watched by.

What must hold is that those who behave notice nothing: whatever the good producer was told is
stored is read at the end, once and in order, and each node's process lives, its memory and its
descriptors stay bounded, its log holds no traceback, and no file appears outside of its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from broker.config import KIB, MIB, NodeConfig, dump_toml, load_config
from broker.local_group import GroupOptions, LocalGroup, LocalNode
from dledger.client import Client, ClientError, ProducerOptions, SendResult

NODES: Final = 3
SEGMENT_BYTES: Final = 8 * MIB
TOPIC: Final = "good"
QUEUES: Final = 2
START_TIMEOUT_S: Final = 60.0
LOAD_PAUSE_S: Final = 0.02  # between two messages of the good producer
DELIVERY_TIMEOUT_MS: Final = 60_000
READ_DEADLINE_S: Final = 30.0
SETTLE_S: Final = 60.0
TRACEBACK: Final = b"Traceback (most recent call last)"


def limited(node: LocalNode, descriptors: int | None) -> list[str]:
    """What starts a node that may have so many descriptors; None: as many as this program."""
    words = [sys.executable, "-P", "-m", "dledger_cli", "node", "--config", node.config]
    if descriptors is None:
        return words
    return ["/bin/sh", "-c", f"ulimit -n {descriptors}; exec {shlex.join(words)}"]


@asynccontextmanager
async def harassed(
    directory: Path,
    *,
    descriptors: int | None = None,
    broker: Mapping[str, Any] | None = None,
    secret: bool = False,
) -> AsyncIterator[LocalGroup]:
    """A group in the fresh folder `directory` that serves; no process is left afterwards.

    Args:
        descriptors: how many each node may have.
        broker: what to change of the nodes' `[broker]`.
        secret: peers prove that they hold one, before the first word of theirs is believed.

    Raises:
        LocalGroupError: it can't be made or doesn't start.
    """
    group = LocalGroup.create(
        directory, GroupOptions(nodes=NODES), lambda node: limited(node, descriptors)
    )
    try:
        for node in group.nodes:
            _configure(Path(node.config), dict(broker or {}), secret=secret)
        await group.up(START_TIMEOUT_S)
        yield group
    finally:
        group.kill_all()


def _configure(file: Path, broker: dict[str, Any], *, secret: bool) -> None:
    config = load_config(file)
    document = config.model_dump() | {
        "secret_file": config.secret_file if secret else None,
        "store": config.store.model_copy(
            update={"segment_size_bytes": SEGMENT_BYTES, "reserve_bytes": MIB}
        ),
        "broker": config.broker.model_copy(update={"max_message_bytes": 256 * KIB, **broker}),
    }
    file.write_text(dump_toml(NodeConfig.model_validate(document), file.parent), encoding="utf-8")


# --- the good load --------------------------------------------------------------------------------


@dataclass(slots=True)
class GoodLoad:
    """One producer that sends on and on; what it was told counts."""

    stored: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (queue, offset) -> body
    refused: list[str] = field(default_factory=list)
    sent: int = 0

    async def send(self, addresses: list[str], stop: asyncio.Event) -> None:
        """Until `stop`; every message has an outcome afterwards."""
        options = ProducerOptions(delivery_timeout_ms=DELIVERY_TIMEOUT_MS)
        async with Client.connect(addresses) as client:
            await client.create_topic(TOPIC, queues=QUEUES)
            async with client.producer(options) as producer:
                while not stop.is_set():
                    body = b"good %d" % self.sent
                    future = producer.send(TOPIC, body, queue_id=self.sent % QUEUES)
                    self.sent += 1
                    future.add_done_callback(partial(self._settled, body))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOAD_PAUSE_S):
                            await stop.wait()

    def _settled(self, body: bytes, done: asyncio.Future[SendResult]) -> None:
        if done.cancelled():
            self.refused.append(f"{body!r} was cancelled")
        elif (error := done.exception()) is not None:
            self.refused.append(f"{body!r}: {error}")
        else:
            self.stored[done.result().queue_id, done.result().queue_offset] = body

    async def compare(self, addresses: list[str]) -> list[str]:
        """What is wrong with what can be read, by a new client; empty if nothing is."""
        found: dict[tuple[int, int], bytes] = {}
        async with Client.connect(addresses) as client:
            for queue_id in range(QUEUES):
                offset = 0
                while True:
                    pulled = await client.pull(
                        TOPIC, queue_id, offset, max_messages=1_000, deadline_s=READ_DEADLINE_S
                    )
                    found |= {(queue_id, each.queue_offset): each.body for each in pulled.messages}
                    offset = pulled.next_offset
                    if not pulled.messages or offset >= pulled.max_offset:
                        break
        wrong = [
            f"stored at {place} and not there: {body!r}"
            for place, body in self.stored.items()
            if found.get(place) != body
        ]
        if len(set(found.values())) != len(found):
            wrong.append("a message is there twice")
        return wrong + self.refused


@asynccontextmanager
async def loaded(group: LocalGroup) -> AsyncIterator[GoodLoad]:
    """Within it the good producer sends.

    Raises:
        ClientError: it can't even begin, or its end isn't acknowledged.
    """
    load, stop = GoodLoad(), asyncio.Event()
    sending = asyncio.create_task(load.send(group.addresses, stop))
    try:
        yield load
    finally:
        stop.set()
        async with asyncio.timeout(SETTLE_S):
            await sending


# --- the watch ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Vitals:
    """One node's process, as the kernel and its log tell it. `cpu_s` is since its start."""

    node: str
    alive: bool
    resident_bytes: int = 0
    descriptors: int = 0
    cpu_s: float = 0.0
    log_bytes: int = 0
    tracebacks: int = 0


def vitals(group: LocalGroup) -> list[Vitals]:
    """Each node, now."""
    return [_vitals_of(node) for node in group.nodes]


def _vitals_of(node: LocalNode) -> Vitals:
    log = node.log_file.read_bytes() if node.log_file.exists() else b""
    told = {"log_bytes": len(log), "tracebacks": log.count(TRACEBACK)}
    try:
        place = Path("/proc") / str(node.pid)
        pages = int((place / "statm").read_text().split()[1])
        times = (place / "stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        held = len(os.listdir(place / "fd"))
    except OSError:
        return Vitals(node.id, alive=False, **told)
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    return Vitals(node.id, node.is_running(), resident, held, cpu_s, **told)


def files_below(folder: Path) -> Iterator[Path]:
    """Every file, relative to `folder`."""
    for path in folder.rglob("*"):
        if not path.is_dir():
            yield path.relative_to(folder)


async def served(group: LocalGroup, within_s: float) -> bool:
    """Whether a new client is served by then."""
    try:
        async with asyncio.timeout(within_s), Client.connect(group.addresses) as client:
            await client.queue_offsets(TOPIC, 0, deadline_s=within_s)
    except (TimeoutError, ClientError):
        return False
    return True
