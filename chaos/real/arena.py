"""The group under test: real processes, the network between them, the disks below them.

This owns what is started and what is to be stopped: a local group whose nodes dial each other
through proxies and whose disks take orders. It signals only processes that the local group
started (known by id and start time, `broker.local_group.process`), and it knows at any time which
nodes are meant to be down: any other that is gone has ended by itself, which is a finding.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from broker.bench.loops import uninterrupted
from broker.config import (
    FAULT_INJECTION_VARIABLE,
    MIB,
    FaultsConfig,
    NodeConfig,
    dump_toml,
    load_config,
)
from broker.local_group import FlushName, GroupOptions, LocalGroup, LocalGroupError
from chaos.faults import NO_FAULTS, FaultOrders, Loss, cut_power, give_orders
from chaos.real.network import Network

SEGMENT_BYTES: Final = 2 * MIB  # several roll within a run
MESSAGE_BYTES: Final = 256 << 10  # so small a segment takes no larger messages
RESERVE_BYTES: Final = 4 * MIB
GONE_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ArenaOptions:
    """What is started."""

    nodes: int
    seed: int
    base_port: int | None = None
    flush: FlushName = "sync"


class Arena:
    """A group that runs; made by `arena`."""

    def __init__(self, group: LocalGroup, network: Network) -> None:
        self.group = group
        self.network = network
        self.node_ids = tuple(node.id for node in group.nodes)
        self.addresses = {node.id: node.address for node in group.nodes}
        self.meant_to_be_down: set[str] = set()
        self._orders: dict[str, dict[str, FaultOrders]] = {each: {} for each in self.node_ids}

    # --- processes ----------------------------------------------------------------------------

    def kill(self, node_id: str) -> float:
        """SIGKILL; the `time.monotonic()` of just before. No error if it is gone already."""
        self.meant_to_be_down.add(node_id)
        return self._signal(node_id, signal.SIGKILL)

    def terminate(self, node_id: str) -> float:
        """SIGTERM: the node is asked to stop."""
        self.meant_to_be_down.add(node_id)
        return self._signal(node_id, signal.SIGTERM)

    def pause(self, node_id: str) -> float:
        """SIGSTOP."""
        return self._signal(node_id, signal.SIGSTOP)

    def resume(self, node_id: str) -> float:
        """SIGCONT."""
        return self._signal(node_id, signal.SIGCONT)

    async def gone(self, node_id: str) -> None:
        """Waits until the node's process is over.

        Raises:
            LocalGroupError: it isn't after ten seconds.
        """
        if not await self.group.wait_gone(node_id, GONE_TIMEOUT_S):
            raise LocalGroupError(f"{node_id} still runs {GONE_TIMEOUT_S:g} s after it had to end")

    async def start(self, node_id: str) -> None:
        """Starts the node unless it runs; true afterwards: it answers.

        Raises:
            LocalGroupError: it doesn't.
        """
        await self.group.start(node_id)
        self.meant_to_be_down.discard(node_id)

    def is_running(self, node_id: str) -> bool:
        """Whether the node has a process."""
        return self.group.node(node_id).is_running()

    def ended_by_themselves(self) -> list[str]:
        """Nodes without a process that nobody stopped."""
        return [
            node.id
            for node in self.group.nodes
            if node.id not in self.meant_to_be_down and not node.is_running()
        ]

    def _signal(self, node_id: str, number: signal.Signals) -> float:
        moment = time.monotonic()
        if self.is_running(node_id):
            moment = self.group.signal(node_id, number)
        return moment

    # --- disks --------------------------------------------------------------------------------

    def order(
        self, name: str, node_id: str, change: Callable[[FaultOrders], FaultOrders] | None
    ) -> None:
        """The node's disk and clock fail as `change` says, until None is ordered by that name."""
        orders = self._orders[node_id]
        orders.pop(name, None)
        if change is not None:
            orders[name] = change(NO_FAULTS)
        combined = NO_FAULTS
        for each in orders.values():
            combined = FaultOrders(
                failing={**combined.failing, **each.failing},
                sync_delay_ms=max(combined.sync_delay_ms, each.sync_delay_ms),
                free_bytes=combined.free_bytes if each.free_bytes is None else each.free_bytes,
                clock_offset_ms=combined.clock_offset_ms + each.clock_offset_ms,
            )
        give_orders(self.faults_folder(node_id), combined)

    def cut_power(self, node_id: str, chance: Random) -> Loss:
        """What the dead node had not synced is gone from its disk."""
        return cut_power(self.faults_folder(node_id), self.data_directory(node_id), chance)

    def faults_folder(self, node_id: str) -> Path:
        """Where the node's disk takes its orders."""
        return self.group.directory / node_id / "faults"

    def data_directory(self, node_id: str) -> Path:
        """What the node owns."""
        return Path(self.group.node(node_id).data_directory)

    def log_end(self, node_id: str) -> int:
        """How long the node's log of events is, to ask `log_since` about what comes."""
        log = self.group.node(node_id).log_file
        return log.stat().st_size if log.exists() else 0

    def log_since(self, node_id: str, start: int = 0) -> str:
        """What the node wrote to its log of events from byte `start` on."""
        with self.group.node(node_id).log_file.open("rb") as file:
            file.seek(start)
            return file.read().decode("utf-8", errors="replace")

    async def start_anew(self, node_id: str) -> None:
        """The node begins with an empty disk, as docs/operations.md describes it for one that
        found corruption. All others have to run.

        Raises:
            LocalGroupError: it doesn't start.
        """
        shutil.rmtree(self.data_directory(node_id))
        shutil.rmtree(self.faults_folder(node_id))
        self.faults_folder(node_id).mkdir()
        self.order("none", node_id, None)
        await self.start(node_id)


@asynccontextmanager
async def arena(directory: Path, options: ArenaOptions) -> AsyncIterator[Arena]:
    """A group in the fresh folder `directory`, configured and not yet started. Whatever happens,
    no process and no open port is left afterwards; the files stay.

    Raises:
        LocalGroupError: it can't be made: a port in use, a folder that can't be written.
    """
    with _fault_injection_admitted():
        group = LocalGroup.create(
            directory,
            GroupOptions(nodes=options.nodes, base_port=options.base_port, flush=options.flush),
        )
        network = Network({node.id: node.address for node in group.nodes}, options.seed)
        try:
            await network.open()
            made = Arena(group, network)
            for node in group.nodes:
                _configure(Path(node.config), network.dial_table(node.id))
                made.faults_folder(node.id).mkdir()
                made.order("none", node.id, None)
            yield made
        finally:
            with uninterrupted():
                group.kill_all()
            await network.close()


def _configure(file: Path, dial: dict[str, str]) -> None:
    """Adds to the node's configuration what makes it one under test."""
    config = load_config(file)
    store = {"segment_size_bytes": SEGMENT_BYTES, "reserve_bytes": RESERVE_BYTES}
    document = config.model_dump() | {
        "dial": dial,
        "faults": FaultsConfig(directory=file.parent / "faults"),
        "store": config.store.model_copy(update=store),
        "broker": config.broker.model_copy(update={"max_message_bytes": MESSAGE_BYTES}),
    }
    file.write_text(dump_toml(NodeConfig.model_validate(document), file.parent), encoding="utf-8")


@contextmanager
def _fault_injection_admitted() -> Iterator[None]:
    """Within it this program and the nodes that it starts may have disks that fail on order."""
    before = os.environ.get(FAULT_INJECTION_VARIABLE)
    os.environ[FAULT_INJECTION_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FAULT_INJECTION_VARIABLE]
        else:
            os.environ[FAULT_INJECTION_VARIABLE] = before
