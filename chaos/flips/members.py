"""A group whose members run in this process: real files, real ports, a brisk rhythm.

The product's nodes, each on a directory of its own, so that hundreds of starts and of passes of the
scrub take minutes. What they do once a second or once in ten elsewhere they do many times a second
here; nothing else of them is another. A start that refuses and a member that ends by itself are
what a campaign looks for: both are told and not raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import structlog

from broker.config import MIB, NodeConfig
from broker.errors import BrokerError
from broker.forming.calls import GrpcCalls
from broker.forming.errors import FormingError
from broker.local_group.ports import LOOPBACK, reserve_ports
from broker.node import Node
from broker.ports import Rhythm
from broker.scrubbing import ScrubPace
from broker.snapshots import SnapshotPace
from chaos.errors import GroupNeverLed
from chaos.forming import describe_disk, form_disks, join_disk
from dledger.client import Client, ClientError
from store.errors import GapFound
from store.files import OsFiles

SEGMENT_BYTES: Final = 2 * MIB
MESSAGE_BYTES: Final = 256 << 10
BRISK: Final = Rhythm(
    housekeeping_s=0.05,
    snapshots=SnapshotPace(entries=40, share=1, retry_s=0.5),
    scrub=ScrubPace(between_s=0.05, beside_every=1),
    log_start_s=0.05,
)
SCRUB_PERCENT: Final = 100.0
WITHIN_S: Final = 60.0
POLL_S: Final = 0.005

log = structlog.get_logger(__name__)


class Members:
    """The members by name, and which of them run."""

    def __init__(self, configs: list[NodeConfig]) -> None:
        self.configs = {config.node_id: config for config in configs}
        self.nodes: dict[str, Node] = {}
        self.addresses = [config.listen for config in configs]
        self._watchers: dict[str, asyncio.Task[None]] = {}

    def directory(self, name: str) -> Path:
        """The member's data directory."""
        return self.configs[name].data_directory

    async def start(self, name: str) -> Exception | None:
        """The member runs; or why it refuses to."""
        node = Node(self.configs[name], rhythm=BRISK)
        try:
            try:
                await node.start()
            except GapFound as found:  # as its process does it (`broker.node.run_node`)
                node = Node(self.configs[name], rhythm=BRISK)
                async with asyncio.timeout(WITHIN_S):
                    await node.refill(found)
                node = Node(self.configs[name], rhythm=BRISK)
                await node.start()
        except Exception as error:  # noqa: BLE001  whatever keeps it from starting is the finding
            return error
        self.nodes[name] = node
        self._watchers[name] = asyncio.create_task(self._reopened(name), name=f"watching {name}")
        return None

    async def _reopened(self, name: str) -> None:
        """A member that has got what its log is to begin with is opened again, as its process does
        it (`broker.node.run_node`)."""
        node = self.nodes[name]
        await node.replica.wait()
        if node.is_to_be_reopened:
            del self.nodes[name]
            await node.stop()
            if (refused := await self.start(name)) is not None:
                log.error("reopening_refused", reason=str(refused))

    async def stop(self, name: str) -> None:
        """The member doesn't run, whatever was wrong with it."""
        watcher = self._watchers.pop(name, None)
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        node = self.nodes.pop(name, None)
        if node is not None:
            node.ask_to_stop()
            await node.stop()

    def failure(self, name: str) -> BaseException | None:
        """Why the member has ended by itself; None: it hasn't."""
        return self.nodes[name].replica.failure if name in self.nodes else None

    def describe(self) -> list[str]:
        """What each member is, in words, where a group doesn't come to be whole."""
        found = [f"{name} doesn't run" for name in self.configs if name not in self.nodes]
        for name, node in self.nodes.items():
            core, replica = node.replica.driver.core, node.replica
            found.append(
                f"{name} is {core.role.name.lower()} of term {core.term}, committed "
                f"{core.commit_index} of {replica.log.last_index}, "
                f"{replica.repairs.statistics().damages} damages, failure {replica.failure}"
            )
        return found

    def leader(self) -> str | None:
        """Who serves."""
        serving = (n for n, node in self.nodes.items() if node.replica.leadership.serving)
        return next(serving, None)

    async def until(self, reached: Callable[[], bool], what: str) -> None:
        """Waits until it is so.

        Raises:
            GroupNeverLed: it isn't, in time.
        """
        deadline = time.monotonic() + WITHIN_S
        while not reached():
            if time.monotonic() > deadline:
                raise GroupNeverLed(f"{what} within {WITHIN_S:g} s")
            await asyncio.sleep(POLL_S)

    async def level(self) -> None:
        """One serves, everybody runs, has applied the same, and repairs nothing."""

        def is_level() -> bool:
            replicas = [node.replica for node in self.nodes.values()]
            return (
                self.leader() is not None
                and len(replicas) == len(self.configs)
                and len({each.log.last_index for each in replicas}) == 1
                and len({each.machine.applied_index for each in replicas}) == 1
                and replicas[0].machine.applied_index == replicas[0].log.last_index
                and not any(each.repairs.is_at_work for each in replicas)
                and not any(each.mender.statistics().queues_wrong for each in replicas)
            )

        await self.until(is_level, "the members aren't level")

    async def lead(self, name: str, client: Client) -> None:
        """That member serves.

        Raises:
            GroupNeverLed: it doesn't, in time.
        """
        deadline = time.monotonic() + WITHIN_S
        while self.leader() != name:
            if time.monotonic() > deadline:
                raise GroupNeverLed(f"{name} doesn't come to lead within {WITHIN_S:g} s")
            with contextlib.suppress(ClientError):
                await client.transfer_leadership(name, deadline_s=2.0)
            await asyncio.sleep(POLL_S)

    async def let_front_go(self, physical_offset: int) -> None:
        """Every member's log begins there, at a segment.

        Raises:
            GroupNeverLed: it doesn't, in time: a new group takes its time to use what its members
                know.
        """
        deadline, reason = time.monotonic() + WITHIN_S, ""
        while any(node.replica.log.first_index == 1 for node in self.nodes.values()):
            leader = self.nodes.get(self.leader() or "")
            if leader is not None and leader.replica.machine.log_start.first_index == 1:
                try:
                    index = leader.replica.log.index_at(physical_offset)
                    await leader.replica.propose_log_start(index)
                except BrokerError as error:
                    reason = f": {error}"
            if time.monotonic() > deadline:
                raise GroupNeverLed(f"the log doesn't begin later within {WITHIN_S:g} s{reason}")
            await asyncio.sleep(POLL_S)

    async def rebuild(self, name: str) -> None:
        """The member, which doesn't run, begins again on an empty disk, and votes: what
        `dledger member replace` does.

        Raises:
            GroupNeverLed: it doesn't, in time.
        """
        config, files = self.configs[name], OsFiles()
        shutil.rmtree(config.data_directory)
        disk_id = describe_disk(config, files).disk_id
        await self._named(name, disk_id)
        join_disk(config, files)
        if (refused := await self.start(name)) is not None:
            raise GroupNeverLed(f"{name} doesn't start on an empty disk: {refused}")
        deadline = time.monotonic() + WITHIN_S
        while not await self._named(name, disk_id):
            if time.monotonic() > deadline:
                raise GroupNeverLed(f"{name} doesn't vote on its new disk within {WITHIN_S:g} s")
            await asyncio.sleep(POLL_S)

    async def _named(self, name: str, disk_id: bytes) -> bool:
        """The group's log names that disk; whether it votes already."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            reason = "nobody leads"
            if (leader := self.leader()) is not None:
                try:
                    address = self.configs[leader].listen
                    return bool((await GrpcCalls().replace_disk(address, name, disk_id)).votes)
                except FormingError as error:
                    reason = str(error)
            if time.monotonic() > deadline:
                raise GroupNeverLed(f"the group doesn't take {name}: {reason}")
            await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def members(directory: Path, count: int) -> AsyncIterator[Members]:
    """A group that serves, in folders of `directory`; nobody runs afterwards."""
    reservation = reserve_ports(count)
    addresses = {f"n{i + 1}": f"{LOOPBACK}:{port}" for i, port in enumerate(reservation.ports)}
    store = {
        "segment_size_bytes": SEGMENT_BYTES,
        "reserve_bytes": 0,
        "scrub_percent": SCRUB_PERCENT,
    }
    configs = [
        NodeConfig.model_validate(
            {
                "broker_group": "flips",
                "node_id": name,
                "data_directory": str(directory / name),
                "listen": address,
                "peers": addresses,
                "store": store,
                "broker": {"max_message_bytes": MESSAGE_BYTES},
            }
        )
        for name, address in addresses.items()
    ]
    form_disks(configs, lambda _: OsFiles())
    made = Members(configs)
    try:
        for name in addresses:
            if (refused := await made.start(name)) is not None:
                raise refused
        await made.level()
        yield made
    finally:
        for name in list(made.nodes):
            await made.stop(name)
