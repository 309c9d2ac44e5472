"""The group under test: real processes, the network between them, the disks below them.

This owns what is started and what is to be stopped: a local group whose nodes dial each other
through proxies and whose disks take orders. It signals only processes that the local group
started (known by id and start time, `broker.local_group.process`), and it knows at any time which
nodes are meant to be down: any other that is gone has ended by itself, which is a finding.
"""

from __future__ import annotations

import asyncio
import filecmp
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from random import Random
from typing import Final

from broker.config import (
    MIB,
    NodeConfig,
    RaftConfig,
    RetentionConfig,
    dump_toml,
    load_config,
)
from broker.forming.calls import GrpcCalls
from broker.forming.errors import FormationRefused, MemberUnreachable
from broker.forming.replacing import Replacement
from broker.forming.replacing import replace as replace_disk
from broker.local_group import (
    FlushName,
    GroupOptions,
    LocalGroup,
    LocalGroupError,
    LocalNode,
    NodeView,
)
from broker.local_group.process import exit_code_of
from chaos.faults import (
    FAULT_INJECTION_VARIABLE,
    NO_FAULTS,
    FaultOrders,
    Loss,
    cut_power,
    give_orders,
)
from chaos.real.network import Network, client_address
from chaos.real.patience import Patience
from dledger.listening import why_not_listening
from dledger.terminal.loops import uninterrupted

SEGMENT_BYTES: Final = 2 * MIB  # several roll within a run
MESSAGE_BYTES: Final = 256 << 10  # so small a segment takes no larger messages
RESERVE_BYTES: Final = 4 * MIB
GONE_TIMEOUT_S: Final = 10.0
START_TIMEOUT_S: Final = 120.0  # it replays its whole log
REPLACE_WAIT_S: Final = 5.0  # until a new disk votes, before the leader is looked for again
POLL_S: Final = 0.05
TRACEBACK: Final = "Traceback (most recent call last)"


@dataclass(frozen=True, slots=True)
class ArenaOptions:
    """What is started."""

    nodes: int
    seed: int
    base_port: int | None = None
    flush: FlushName = "sync"
    retain_bytes: int = 0  # of the log; 0: all of it


class Arena:
    """A group that runs; made by `arena`."""

    def __init__(self, group: LocalGroup, network: Network) -> None:
        self.group = group
        self.network = network
        self.node_ids = tuple(node.id for node in group.nodes)
        self.addresses = {node.id: node.address for node in group.nodes}  # no fault cuts these
        self.client_addresses = [client_address(node.address) for node in group.nodes]
        self.meant_to_be_down: set[str] = set()
        self._found_gone: list[str] = []  # where somebody was to be hit
        self._bad_ends: list[str] = []
        self.rotten: set[str] = set()  # nodes whose disk was spoilt where they have to notice
        self._orders: dict[str, dict[str, FaultOrders]] = {each: {} for each in self.node_ids}

    # --- processes ----------------------------------------------------------------------------

    def kill(self, node_id: str) -> float:
        """SIGKILL; the `time.monotonic()` of just before. No error if it is gone already."""
        return self._end(node_id, signal.SIGKILL)

    def terminate(self, node_id: str) -> float:
        """SIGTERM: the node is asked to stop."""
        return self._end(node_id, signal.SIGTERM)

    def pause(self, node_id: str) -> float:
        """SIGSTOP."""
        return self._signal(node_id, signal.SIGSTOP)

    def resume(self, node_id: str) -> float:
        """SIGCONT."""
        return self._signal(node_id, signal.SIGCONT)

    async def gone(self, node_id: str) -> None:
        """Waits until the node's process is over and its port free: a process whose first thread
        has ended may have others that still hold its sockets.

        Raises:
            LocalGroupError: it isn't after ten seconds.
        """
        deadline = time.monotonic() + GONE_TIMEOUT_S
        is_over = await self.group.wait_gone(node_id, GONE_TIMEOUT_S)
        while is_over and why_not_listening(self.addresses[node_id]):
            is_over = time.monotonic() < deadline
            await asyncio.sleep(POLL_S)
        if not is_over:
            raise LocalGroupError(f"{node_id} still runs {GONE_TIMEOUT_S:g} s after it had to end")

    async def start(self, node_id: str) -> None:
        """Starts the node unless it runs; true afterwards: it answers.

        Raises:
            LocalGroupError: it doesn't.
        """
        await self.group.start(node_id, START_TIMEOUT_S)
        self.meant_to_be_down.discard(node_id)

    def ended_well(self, node_id: str, log_from: int) -> None:
        """Takes down whether the node, which was asked to stop and has, did it as one that is
        well; of one whose disk or clock was to fail nothing can be said. `log_from`: where its log
        of events ended before."""
        process = self.group.node(node_id).process
        code = None if process is None else exit_code_of(process)
        lines = self.log_since(node_id, log_from)
        if self._may_end_badly(node_id) or (not code and TRACEBACK not in lines):
            return
        last = " / ".join(lines.strip().splitlines()[-3:])
        self._bad_ends.append(f"{node_id} was asked to stop and ended with {code}: {last}")

    def bad_ends(self) -> list[str]:
        """Nodes that ended otherwise than they had to, in words, each told once."""
        found, self._bad_ends = self._bad_ends, []
        return found

    def is_running(self, node_id: str) -> bool:
        """Whether the node has a process."""
        return self.group.node(node_id).is_running()

    def ended_by_themselves(self) -> list[str]:
        """Nodes without a process that nobody stopped, each told once."""
        gone = [each for each in self.node_ids if not self._is_as_it_should_be(each)]
        found, self._found_gone = [*self._found_gone, *gone], []
        self.meant_to_be_down.update(gone)
        return found

    def _may_end_badly(self, node_id: str) -> bool:
        """Whether its disk or clock has orders to fail, or it is rotten."""
        return node_id in self.rotten or bool(self._orders[node_id])

    def _is_as_it_should_be(self, node_id: str) -> bool:
        return node_id in self.meant_to_be_down or self.is_running(node_id)

    def _end(self, node_id: str, number: signal.Signals) -> float:
        if not self._is_as_it_should_be(node_id):
            self._found_gone.append(node_id)  # nobody else will see it
        self.meant_to_be_down.add(node_id)
        return self._signal(node_id, number)

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
        self._give_orders(node_id)

    def _give_orders(self, node_id: str) -> None:
        combined = reduce(FaultOrders.and_also, self._orders[node_id].values(), NO_FAULTS)
        give_orders(self.faults_folder(node_id), combined)

    def cut_power(self, node_id: str, chance: Random) -> Loss:
        """What the dead node had not synced is gone from its disk."""
        return cut_power(self.faults_folder(node_id), self.data_directory(node_id), chance)

    def faults_folder(self, node_id: str) -> Path:
        """Where the node's disk takes its orders."""
        return _faults_folder(self.group.node(node_id))

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

    def set_aside(self, node_id: str, name: str, file: Path) -> None:
        """A copy of one of the node's files is kept under `name`."""
        data = self.data_directory(node_id)
        copy = self._copies(node_id, name) / file.relative_to(data)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)

    def put_back(self, node_id: str, name: str) -> bool:
        """The dead node has its old files again; whether any of them had changed since."""
        changed = self._changed(node_id, name)
        for copy, place in changed:
            shutil.copyfile(copy, place)
        shutil.rmtree(self._copies(node_id, name), ignore_errors=True)
        return bool(changed)

    def is_unchanged(self, node_id: str, name: str) -> bool:
        """Whether files of the node were set aside, and all of them are still the same."""
        return self._copies(node_id, name).exists() and not self._changed(node_id, name)

    def _changed(self, node_id: str, name: str) -> list[tuple[Path, Path]]:
        """Copies whose file differs, each with where it is."""
        copies, data = self._copies(node_id, name), self.data_directory(node_id)
        filecmp.clear_cache()  # a mapped file's times lag behind what was written to it
        pairs = [
            (copy, data / copy.relative_to(copies)) for copy in copies.rglob("*") if copy.is_file()
        ]
        return [
            (copy, place)
            for copy, place in pairs
            if place.exists() and not filecmp.cmp(copy, place, shallow=False)
        ]

    def empty(self, node_id: str) -> None:
        """Nothing is left in the node's directory, which is still there; under it, if it runs."""
        for path in self.data_directory(node_id).iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)  # a process may be making files there
            else:
                path.unlink(missing_ok=True)
        if not self.is_running(node_id):
            self._renew_faults(node_id)

    def unmount(self, node_id: str) -> None:
        """The dead node's directory isn't there."""
        aside = self._unmounted(node_id)
        aside.mkdir(parents=True)
        self.data_directory(node_id).rename(aside / "data")
        self.faults_folder(node_id).rename(aside / "faults")
        self._renew_faults(node_id)

    def mount_again(self, node_id: str) -> None:
        """The dead node's directory is there again, as it was; what was in its place is gone."""
        aside = self._unmounted(node_id)
        for name, place in (
            ("data", self.data_directory(node_id)),
            ("faults", self.faults_folder(node_id)),
        ):
            shutil.rmtree(place)
            (aside / name).rename(place)
        aside.rmdir()
        self._give_orders(node_id)

    async def waits(self, node_id: str) -> bool:
        """Whether the node, which runs, says that it is no member yet."""
        status = await self.group.status()
        return any(view.id == node_id and view.waits for view in status.nodes)

    def _renew_faults(self, node_id: str) -> None:
        """What was known of a directory that is gone is forgotten; the orders stay."""
        shutil.rmtree(self.faults_folder(node_id), ignore_errors=True)
        self.faults_folder(node_id).mkdir()
        self._give_orders(node_id)

    def _unmounted(self, node_id: str) -> Path:
        return self.group.directory / node_id / "unmounted"

    def _copies(self, node_id: str, name: str) -> Path:
        return self.group.directory / node_id / "copies" / name

    # --- replacement and configuration --------------------------------------------------------

    async def start_anew(self, node_id: str) -> None:
        """The node begins with an empty disk, as docs/operations.md describes it for one that
        found corruption: when all others run and hold everything that was committed.

        Raises:
            LocalGroupError: the others don't, or the node doesn't start.
        """
        await self._held_by_others(node_id)
        shutil.rmtree(self.data_directory(node_id))
        self._renew_faults(node_id)
        await self.start(node_id)
        await self.take_in(node_id)

    async def take_in(self, node_id: str) -> None:
        """The group has the node's new disk in the place of the old one, and it votes: what
        `dledger group replace` does, again after each change of the leader."""
        patience = Patience()
        address, reason = self.group.node(node_id).address, "no node leads"
        while True:
            status = await self.group.status()
            if patience.is_over(_held(view for view in status.nodes if view.id == node_id)):
                raise LocalGroupError(f"{node_id} isn't taken in on an empty disk: {reason}")
            if status.leader is not None:
                leader = self.group.node(status.leader).address
                wanted = Replacement(node_id, address, leader)
                try:
                    replaced = await replace_disk(GrpcCalls(), wanted, REPLACE_WAIT_S)
                except (FormationRefused, MemberUnreachable) as error:
                    reason = str(error)
                else:
                    if replaced.votes:
                        return
                    reason = "its new disk doesn't catch up"
            await asyncio.sleep(POLL_S)

    async def _held_by_others(self, node_id: str) -> None:
        """Waits until each other node knows all entries that the leader has now as committed."""
        patience = Patience()
        goal: int | None = None
        while True:
            status = await self.group.status()
            others = [view for view in status.nodes if view.id != node_id]
            if patience.is_over(_held(others)):
                raise LocalGroupError(
                    f"{node_id} can't be given an empty disk: the others don't come to hold "
                    "everything"
                )
            if status.serves and all(view.alive for view in others):
                if goal is None:
                    goal = max(view.last_index or 0 for view in others)
                if min(view.commit_index or 0 for view in others) >= goal:
                    return
            await asyncio.sleep(POLL_S)

    def retime(self, node_id: str, tick_ms: int | None) -> float:
        """The node's next process has ticks of that length, and as many of them in each of its
        times; None: as at first. How fast its timers run then, 1 being right."""
        file = Path(self.group.node(node_id).config)
        config = load_config(file)
        default = RaftConfig()
        tick = default.tick_ms if tick_ms is None else tick_ms
        times = {
            name: _scaled(value, tick, default.tick_ms)
            for name, value in default.model_dump().items()
            if name.endswith("_ms")
        }
        document = config.model_dump() | {"raft": config.raft.model_dump() | times}
        made = NodeConfig.model_validate(document)
        file.write_text(dump_toml(made, file.parent), encoding="utf-8")
        return default.tick_ms / tick


def node_under_test(node: LocalNode) -> list[str]:
    """Starts a node on a disk and a clock that take orders (`chaos.node`)."""
    folder = str(_faults_folder(node))
    return [
        *(sys.executable, "-P", "-m", "chaos.node"),
        *("--config", node.config, "--faults", folder),
    ]


def _faults_folder(node: LocalNode) -> Path:
    return Path(node.config).parent / "faults"


def _scaled(value: int | tuple[int, ...], tick: int, was: int) -> int | tuple[int, ...]:
    """A time, or a range of them, in whole ticks of the new length."""
    if isinstance(value, tuple):
        return tuple(each // was * tick for each in value)
    return value // was * tick


@asynccontextmanager
async def arena(directory: Path, options: ArenaOptions) -> AsyncIterator[Arena]:
    """A group in the fresh folder `directory`, configured and not yet started. Whatever happens,
    no process and no open port is left afterwards; the files stay.

    Raises:
        LocalGroupError: it can't be made: a port in use, a folder that can't be written.
    """
    with environment({FAULT_INJECTION_VARIABLE: "1"}):
        group = LocalGroup.create(
            directory,
            GroupOptions(nodes=options.nodes, base_port=options.base_port, flush=options.flush),
            node_under_test,
        )
        network = Network({node.id: node.address for node in group.nodes}, options.seed)
        try:
            await network.open()
            made = Arena(group, network)
            for node in group.nodes:
                _configure(Path(node.config), network.dial_table(node.id), options.retain_bytes)
                made.faults_folder(node.id).mkdir()
                made.order("none", node.id, None)
            with environment(network.client_environment()):
                yield made
        finally:
            with uninterrupted():
                group.kill_all()
            await network.close()


def _configure(file: Path, dial: dict[str, str], retain_bytes: int) -> None:
    """Makes what the node is configured with small, and lets it dial through the proxies."""
    config = load_config(file)
    store = {"segment_size_bytes": SEGMENT_BYTES, "reserve_bytes": RESERVE_BYTES}
    document = config.model_dump() | {
        "listen": client_address(config.listen),
        "peers": {name: client_address(address) for name, address in config.peers.items()},
        "dial": dial,
        "store": config.store.model_copy(update=store),
        "broker": config.broker.model_copy(update={"max_message_bytes": MESSAGE_BYTES}),
        "retention": RetentionConfig(age_hours=0, bytes=retain_bytes),
    }
    file.write_text(dump_toml(NodeConfig.model_validate(document), file.parent), encoding="utf-8")


def _held(views: Iterable[NodeView]) -> int:
    """What the one that has least of them holds of the log."""
    return min((view.commit_index or 0 for view in views), default=0)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Within it this program, and what it starts, has these environment variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
