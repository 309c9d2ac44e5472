"""The services of one leader without a node, a network or a door: built by hand, one line each.

`Asked` joins them to a `Bench` that commits by itself in the next turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from broker.errors import BrokerError, ErrorCode, NodeAddress
from broker.leader.commands import Commands
from broker.leader.leadership import LeaderView
from broker.reading.held import HeldPulls
from broker.services.audit import Audit, AuditedPlace
from broker.services.cluster import Cluster, NodeStatus
from broker.services.gate import Gate
from broker.services.messages import HoldTimes, Lookups, Pulls, Sends
from broker.services.offsets import Offsets
from broker.services.producers import Producers
from broker.services.services import Services
from broker.services.soundness import Soundness
from broker.services.topics import Topics
from broker.turns import LoopTurns
from dledger.core.errors import ReadRefused
from dledger.core.types import EntryKind, NodeId, Proposed
from dledger.driver import Stamp
from dledger.ports import Turns
from tests.broker.leader import Bench

SEGMENT = 1 << 20
N1 = NodeAddress("n1", "10.0.0.1:7000")


class Leader:
    """Leadership and ReadIndex as a test wants them. `confirms` None: reads are refused."""

    def __init__(self) -> None:
        self.serves = True
        self.confirms: bool | None = True
        self.confirmed = 0

    def check_serving(self) -> None:
        if not self.serves:
            raise self.not_leader("")

    def check_writable(self) -> None:
        return None

    def not_leader(self, reason: str) -> BrokerError:
        return BrokerError(ErrorCode.NOT_LEADER, reason or "elsewhere", leader=N1, term=7)

    def read_index(self, done: Callable[[bool], None]) -> None:
        if self.confirms is None:
            raise ReadRefused("no majority", None)
        self.confirmed += 1
        done(self.confirms)

    def view(self) -> LeaderView:
        return LeaderView("g", "n1", N1 if self.serves else None, 7, self.serves, (N1,))

    async def hand_over(self, target: NodeId | None) -> LeaderView:
        return self.view()


class EndlessCall:
    """A call whose client is slow to read; `end` is when it has read."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def on_end(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback()


class CommittingBench(Bench):
    """Commits what is proposed, soon after."""

    def propose(
        self, kind: EntryKind, record_count: int, body: bytes | bytearray, stamp: Stamp | None
    ) -> Proposed:
        placed = super().propose(kind, record_count, body, stamp)
        asyncio.get_running_loop().call_soon(self.commit, placed.index)
        return placed


class WholeLog:
    """All of the bench's log is committed and on disk."""

    first_index = 1

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def start(self) -> int:
        return 0

    def durable_end(self) -> int:
        return sum(map(len, self._bench.log.frames))

    def record_at(self, physical_offset: int) -> bytes | None:
        end = self.durable_end()
        if not 0 <= physical_offset < end:
            return None
        size = int.from_bytes(self._bench.read_at(physical_offset, 4), "big")
        return self._bench.read_at(physical_offset, size)


class Membership:
    """Nobody's disk is ever lost."""

    async def replace(self, node_id: str, disk_id: bytes) -> bool:
        raise BrokerError(ErrorCode.BUSY, f"{node_id} keeps its disk")


def status() -> NodeStatus:
    """Of a node that leads and is idle."""
    return NodeStatus(
        broker_group="g",
        node_id="n1",
        role="leader",
        term=7,
        leader=N1,
        first_index=1,
        last_index=0,
        durable_index=0,
        commit_index=0,
        applied_index=0,
        end_offset=0,
        committed_offset=0,
        committed_digest=0,
        peers=(),
        version="0",
        segment_size_bytes=SEGMENT,
        data_directory="/data",
        is_serving=True,
        apply_stopped="",
        level=1,
        known_level=1,
    )


class Asked:
    """A leader that can be asked everything."""

    def __init__(self, folder: Path, turns: Turns | None = None) -> None:
        turns = turns or LoopTurns()
        self.leader = Leader()
        self.bench = bench = CommittingBench()
        self.held = HeldPulls(10)
        self.failures: list[BaseException] = []
        gate, commands = Gate(self.leader, self.leader), Commands(bench.appender)
        log = WholeLog(bench)
        soundness = Soundness(self.failures.append)
        hold = HoldTimes(default_ms=0, max_ms=1_000)
        self.services = Services(
            sends=Sends(gate, bench.appender, turns),
            pulls=Pulls(gate, bench.reader, self.held, hold, turns, soundness),
            lookups=Lookups(gate, bench.reader, log, soundness),
            offsets=Offsets(gate, bench.reader, commands, bench.machine, soundness),
            producers=Producers(gate, commands, bench.machine),
            topics=Topics(gate, bench.reader, commands, bench.machine),
            cluster=Cluster("g", self.leader, Membership(), status, max_watchers=2),
            audit=Audit(AuditedPlace("g", "n1", folder, SEGMENT), log, bytes_per_s=0),
        )
