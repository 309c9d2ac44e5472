"""The directory of a member that has lived: written by a real replica, small enough to copy often.

A group of one in four lives: topics, one deleted and made anew, batches of several records, of a
registered producer and of none, committed offsets; some segments, some ConsumeQueue files, four
terms. As a clean stop leaves it, and as a kill does.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from broker.config import NodeConfig
from broker.leader.batches import Batch, Placed
from broker.ports import OnBroken, OnMessage, ReplicaPorts
from broker.recovery import StoreMachinery
from broker.replica import Replica
from broker.state.registration import producer_id
from broker.turns import LoopTurns
from chaos.forming import form_disks
from dledger.core.types import NodeId
from dledger.greeting import Identity as Greeting
from dledger.level import KNOWN_LEVEL
from dledger.wire import commands_pb2 as kpb
from store.directory import Identity
from store.files import Handle, OsFiles
from tests.audit.replicas import copy_sparse
from tests.broker.leader import batch
from tests.node.members import Inline, Loopback, Seconds, Wires, nothing_to_shut

GROUP, NODE = "g1", NodeId("n1")
SEGMENT = 16384
UNITS = 16  # a ConsumeQueue file
WHOSE = Identity(GROUP, NODE, SEGMENT)
LIVES = 4


@dataclass(frozen=True)
class Lived:
    """Two copies of one member's directory."""

    clean: Path
    killed: Path


class Unsynced(OsFiles):
    """A disk that loses nothing, whether it is synced or not: these tests cut no power."""

    def fdatasync(self, handle: Handle) -> None:
        """Nothing to do."""

    def fsync(self, handle: Handle) -> None:
        """Nothing to do."""

    def fsync_directory(self, path: Path) -> None:
        os.stat(path / ".")


def config_of(path: Path) -> NodeConfig:
    """The node that lived there; its segments are smaller than a configuration may say."""
    config = NodeConfig.model_validate(
        {
            "broker_group": GROUP,
            "node_id": NODE,
            "data_directory": str(path),
            "listen": "127.0.0.1:7001",
            "peers": {NODE: "127.0.0.1:7001"},
            "store": {"reserve_bytes": 0},
        }
    )
    store = config.store.model_copy(update={"segment_size_bytes": SEGMENT})
    return config.model_copy(update={"store": store})


def segment(path: Path, number: int) -> Path:
    """The file of the log that is the member's `number`th, from 0."""
    return path / "commitlog" / f"{number * SEGMENT:020d}"


def open_replica(path: Path, units_per_file: int = UNITS) -> Replica:
    """The replica, not started. Raises: see `Replica.open`."""
    loop, wires = asyncio.get_running_loop(), Wires()

    def connect(_: Greeting, on_message: OnMessage, on_broken: OnBroken) -> Loopback:
        return Loopback(wires, NODE, KNOWN_LEVEL, on_message=on_message, on_broken=on_broken)

    def call_from_worker(call: Callable[..., None], *arguments: object) -> None:
        loop.call_soon_threadsafe(call, *arguments)

    ports = ReplicaPorts(
        files=Unsynced(),
        hand=Inline(),
        connect=connect,
        store_host=(bytes((127, 0, 0, 1)), 7001),
        call_soon=loop.call_soon,
        turns=LoopTurns(),
        call_from_worker=call_from_worker,
        now_ms=lambda: int(time.time() * 1000),
        random=random.Random(NODE),
        latencies=Seconds(),
        machinery=StoreMachinery(units_per_file=units_per_file),
    )
    return Replica.open(config_of(path), ports)


def lived(root: Path, units_per_file: int = UNITS) -> Lived:
    """A member's directory after some lives."""
    path = root / "n1"
    form_disks([config_of(path)], lambda _: Unsynced())
    asyncio.run(_live(path, root / "killed", units_per_file))
    return Lived(path, root / "killed")


async def _live(path: Path, killed: Path, units_per_file: int) -> None:
    sequence = 0
    for life in range(LIVES):
        replica = open_replica(path, units_per_file)
        replica.start()
        deadline = time.monotonic() + 20
        # Its level is an entry of the log: raised now or later, it moves what comes behind it.
        while not (replica.leadership.serving and replica.machine.level.current == KNOWN_LEVEL):
            assert time.monotonic() < deadline, "it doesn't lead, or raises no level"
            await asyncio.sleep(0.002)
        if life == 0:
            for name in ("orders", "events", "brief"):
                await _do(replica, create_topic={"name": name, "queue_count": 2})
            await _do(replica, register_producer={"token": b"8 bytes!"})
            epoch = replica.machine.applied_index
        if life == 2:
            await _do(replica, delete_topic={"name": "brief"})
            await _do(replica, create_topic={"name": "brief", "queue_count": 1})
        for number in range(24):
            bodies = [bytes([number]) * (40 + 11 * number)] * (1 + number % 3)
            topic = ("orders", "events", "brief")[number % 3]
            await _send(replica, b"", batch(0, *bodies, topic=topic, tag="t"))
            own = batch(sequence, b"numbered", topic="orders", queue_id=1)
            await _send(replica, producer_id(epoch, b"8 bytes!"), own)
            sequence += 1
        await replica.housekeeping.make_round()
        await replica.snapshots.step()
        await _send(replica, b"", batch(0, b"behind the last round", topic="events"))
        if life == LIVES - 1:
            shutil.copytree(path, killed, copy_function=copy_sparse)
        assert await replica.stop(nothing_to_shut)


async def _send(replica: Replica, producer: bytes, sent: Batch) -> None:
    """It is stored; the next segment may have to be waited for."""
    deadline = time.monotonic() + 20
    while True:
        (answer,) = await replica.appender.send(producer, [sent])
        if isinstance(answer, Placed):
            return
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.002)


async def _do(replica: Replica, **command: dict[str, object]) -> None:
    refusal = await replica.appender.submit(kpb.Command(**command))
    assert refusal is None, refusal
