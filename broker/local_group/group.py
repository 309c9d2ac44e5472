"""A group of nodes as background processes of one machine, described by `<dir>/group.json`.

This owns the folder of a local group: its ports, the nodes' configuration files, their
processes, and the file that says which process is which. Command line, demo, benchmarks and the
chaos runner drive real processes through it. It must never signal a process that it didn't
start (`broker.local_process`), nor delete a file that isn't the group's, and it knows nothing of
Raft beyond what a node's status tells.

The file is read anew for each operation and replaced as a whole under a lock, so several
programs may work on one group. Idea: etcd's `goreman` Procfile, TiUP's playground.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broker.config import MAX_MEMBERS, MIB, NodeConfig, StoreConfig, dump_toml
from broker.local_errors import (
    GroupDiffers,
    GroupFileBroken,
    GroupStillRuns,
    LocalGroupError,
    NoAnswer,
    NodeDied,
    NodeNotRunning,
    NoSuchNode,
    NotAGroup,
    PortInUse,
)
from broker.local_ports import pick_ports, port_is_free
from broker.local_process import ProcessIdentity, is_running, send_signal, spawn_detached
from broker.local_status import GroupStatus, NodeView, probe

GROUP_FILE = "group.json"
LOCK_FILE = "group.lock"
FORMAT = "dledger-local-group/1"
DEFAULT_NODES = 3
DEFAULT_SEGMENT_SIZE_BYTES = 64 * MIB
START_TIMEOUT_S = 30.0
STOP_GRACE_S = 10.0  # from SIGTERM to SIGKILL
KILL_TIMEOUT_S = 5.0  # from SIGKILL until the kernel has cleared the process away
METRICS_PORT_DISTANCE = 1000  # with a base port: 7001 serves, 8001 has the metrics
POLL_INTERVAL_S = 0.02
LOG_TAIL_LINES = 8
LOG_TAIL_BYTES = 16 << 10

FlushName = Literal["sync", "async"]


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """What a new group is made with. For a group that exists, None asks for nothing."""

    nodes: int | None = None
    base_port: int | None = None
    segment_size_bytes: int | None = None
    flush: FlushName | None = None


class LocalNode(BaseModel):
    """One node of a local group, as `group.json` describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    address: str
    metrics_address: str
    pid: int | None = Field(default=None, gt=1)
    started: str | None = None
    data_directory: str
    config: str

    @property
    def process(self) -> ProcessIdentity | None:
        """The process that was last started for this node; it may be over."""
        if self.pid is None or self.started is None:
            return None
        return ProcessIdentity(self.pid, self.started)

    @property
    def log_file(self) -> Path:
        """Where the outputs of the node's processes are appended."""
        return Path(self.config).parent / "node.log"

    def is_running(self) -> bool:
        """Whether the node has a process (that may be stopped by a SIGSTOP)."""
        return self.process is not None and is_running(self.process)


class _GroupFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["dledger-local-group/1"]
    group: str
    base_port: int | None
    segment_size_bytes: int
    flush: FlushName
    nodes: tuple[LocalNode, ...] = Field(min_length=1, max_length=MAX_MEMBERS)


class LocalGroup:
    """The group in a folder. Make one with `create`, `open` or `open_or_create`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    @classmethod
    def open(cls, directory: Path) -> LocalGroup:
        """The group that is in `directory`.

        Raises:
            NotAGroup: there is none.
            GroupFileBroken: its file can't be read or is something else.
        """
        group = cls(directory)
        group._read()
        return group

    @classmethod
    def create(cls, directory: Path, options: GroupOptions = GroupOptions()) -> LocalGroup:
        """A new group in `directory`, configured and not yet started.

        Raises:
            GroupDiffers: there is one already.
            LocalGroupError: the directory can't be written, or no ports are free.
        """
        group = cls(directory)
        with group._locked():
            if (group.directory / GROUP_FILE).exists():
                raise GroupDiffers(f"there is a group in {directory} already")
            group._lay_out(options)
        return group

    @classmethod
    def open_or_create(cls, directory: Path, options: GroupOptions = GroupOptions()) -> LocalGroup:
        """The group in `directory`, made if need be.

        Raises:
            GroupDiffers: it was made with other options than are asked for.
            LocalGroupError: as for `open` and `create`.
        """
        if not (directory / GROUP_FILE).exists():
            return cls.create(directory, options)
        group = cls.open(directory)
        group._refuse_differences(options)
        return group

    # --- What it is -----------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[LocalNode, ...]:
        """The nodes, as the file describes them now."""
        return self._read().nodes

    @property
    def addresses(self) -> list[str]:
        """What a client bootstraps from."""
        return [node.address for node in self.nodes]

    def node(self, node_id: str) -> LocalNode:
        """The node of that id.

        Raises:
            NoSuchNode: the group has none.
        """
        nodes = self.nodes
        for node in nodes:
            if node.id == node_id:
                return node
        raise NoSuchNode(node_id, [node.id for node in nodes])

    async def status(self) -> GroupStatus:
        """What each node says of itself, asked all at once; a silent one takes a second."""
        record = self._read()
        answers = await asyncio.gather(*(probe(node.address) for node in record.nodes))
        views = [
            NodeView.of(node.id, node.address, answer)
            for node, answer in zip(record.nodes, answers, strict=True)
        ]
        return GroupStatus.of(record.group, views)

    async def resolve(self, who: str) -> LocalNode:
        """The node that `who` means: a node's id, `leader`, or `follower` (the first one).

        Raises:
            NoSuchNode: neither a role nor an id of the group.
            NoAnswer: a role that no node has at present.
        """
        if who not in ("leader", "follower"):
            return self.node(who)
        status = await self.status()
        for view in status.nodes:
            if (view.id == status.leader) if who == "leader" else (view.role == "follower"):
                return self.node(view.id)
        raise NoAnswer(f"no node says that it is {who}")

    # --- Processes ------------------------------------------------------------------------

    async def up(self, timeout_s: float = START_TIMEOUT_S) -> GroupStatus:
        """Starts the nodes that don't run; true afterwards: all answer and one leads and serves.

        Raises:
            PortInUse: a node can't listen; nothing was started.
            NodeDied: a node ended at its start; the others go on.
            NoAnswer: `timeout_s` passed.
        """
        log_ends = self._launch([node.id for node in self.nodes])
        return await self._wait_until(lambda status: status.serves_fully, log_ends, timeout_s)

    async def start(self, node_id: str, timeout_s: float = START_TIMEOUT_S) -> GroupStatus:
        """Starts one node, unless it runs; true afterwards: it answers.

        Raises:
            NoSuchNode, PortInUse, NodeDied, NoAnswer: as for `up`.
        """
        log_ends = self._launch([self.node(node_id).id])
        return await self._wait_until(lambda status: status.answers(node_id), log_ends, timeout_s)

    def signal(self, node_id: str, number: signal.Signals) -> float:
        """Signals the node's process; the `time.monotonic()` of just before.

        Raises:
            NodeNotRunning: it has none.
        """
        process = self.node(node_id).process
        moment = time.monotonic()
        if process is None or not send_signal(process, number):
            raise NodeNotRunning(node_id)
        return moment

    async def wait_gone(self, node_id: str, timeout_s: float = STOP_GRACE_S) -> bool:
        """Waits until the node's process is over; False when it still runs after `timeout_s`."""
        node = self.node(node_id)
        deadline = time.monotonic() + timeout_s
        while node.is_running():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_INTERVAL_S)
        return True

    async def down(self, grace_s: float = STOP_GRACE_S) -> list[str]:
        """Stops every node, with SIGTERM first; the ids of those that had to be killed."""
        nodes = [node for node in self.nodes if node.is_running()]
        for node in nodes:
            if node.process and send_signal(node.process, signal.SIGTERM):
                send_signal(node.process, signal.SIGCONT)  # a stopped process would never hear it
        await asyncio.gather(*(self.wait_gone(node.id, grace_s) for node in nodes))
        killed = [node.id for node in nodes if node.is_running()]
        self.kill_all()
        return killed

    def kill_all(self) -> None:
        """Kills every node with SIGKILL at once; none runs afterwards.

        This blocks for some milliseconds and needs no event loop: the last resort of a program
        that is being interrupted.

        Raises:
            GroupStillRuns: a process outlived its SIGKILL by five seconds (a stuck disk).
        """
        nodes = self.nodes
        for node in nodes:
            if node.process:
                send_signal(node.process, signal.SIGKILL)
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while running := [node.id for node in nodes if node.is_running()]:
            if time.monotonic() >= deadline:
                raise GroupStillRuns(running)
            time.sleep(POLL_INTERVAL_S)

    def wipe(self) -> None:
        """Removes what the group put into its directory, and the directory if nothing is left.

        Raises:
            GroupStillRuns: a node still runs.
            GroupFileBroken: the file names folders outside of the group's.
        """
        with self._locked():
            nodes = self._read().nodes
            if running := [node.id for node in nodes if node.is_running()]:
                raise GroupStillRuns(running)
            for node in nodes:
                self._refuse_foreign(node)
            for node in nodes:
                shutil.rmtree(self.directory / node.id, ignore_errors=False)
            (self.directory / GROUP_FILE).unlink()
            (self.directory / LOCK_FILE).unlink()
        if not any(self.directory.iterdir()):
            self.directory.rmdir()

    # --- Making it ------------------------------------------------------------------------

    def _lay_out(self, options: GroupOptions) -> None:
        count = options.nodes or DEFAULT_NODES
        ports = self._ports(count, options.base_port)
        ids = [f"n{number}" for number in range(1, count + 1)]
        nodes = tuple(
            LocalNode(
                id=node_id,
                address=f"127.0.0.1:{ports[at]}",
                metrics_address=f"127.0.0.1:{ports[count + at]}",
                data_directory=str(self.directory / node_id / "data"),
                config=str(self.directory / node_id / "node.toml"),
            )
            for at, node_id in enumerate(ids)
        )
        record = _GroupFile(
            format=FORMAT,
            group="local",
            base_port=options.base_port,
            segment_size_bytes=options.segment_size_bytes or DEFAULT_SEGMENT_SIZE_BYTES,
            flush=options.flush or "sync",
            nodes=nodes,
        )
        self._write_configurations(record)
        self._write(record)

    def _ports(self, count: int, base_port: int | None) -> list[int]:
        if base_port is None:
            return pick_ports(2 * count)
        serving = range(base_port, base_port + count)
        return [*serving, *(port + METRICS_PORT_DISTANCE for port in serving)]

    def _write_configurations(self, record: _GroupFile) -> None:
        store = StoreConfig(segment_size_bytes=record.segment_size_bytes, flush=record.flush)
        for node in record.nodes:
            config = NodeConfig(
                group=record.group,
                node_id=node.id,
                data_directory=Path(node.data_directory),
                listen=node.address,
                metrics_listen=node.metrics_address,
                peers={peer.id: peer.address for peer in record.nodes},
                store=store,
            )
            folder = Path(node.config).parent
            try:
                folder.mkdir(exist_ok=True)
                Path(node.config).write_text(dump_toml(config, folder), encoding="utf-8")
            except OSError as error:
                raise LocalGroupError(f"can't write {node.config}: {error.strerror}") from error

    def _refuse_differences(self, options: GroupOptions) -> None:
        record = self._read()
        pairs = (
            ("nodes", options.nodes, len(record.nodes)),
            ("base port", options.base_port, record.base_port),
            ("segment size", options.segment_size_bytes, record.segment_size_bytes),
            ("flush", options.flush, record.flush),
        )
        for name, wanted, present in pairs:
            if wanted is not None and wanted != present:
                raise GroupDiffers(
                    f"the group in {self.directory} was made with {name} {present}, not {wanted}; "
                    "use another --dir, or remove it first (group down --wipe)"
                )

    # --- Starting and waiting -------------------------------------------------------------

    def _launch(self, node_ids: list[str]) -> dict[str, int]:
        """Starts those that don't run; for each of them, where its log ended before."""
        log_ends: dict[str, int] = {}
        with self._locked():
            record = self._read()
            missing = [n for n in record.nodes if n.id in node_ids and not n.is_running()]
            for node in missing:
                for address in (node.address, node.metrics_address):
                    if not port_is_free(address):
                        raise PortInUse(node.id, address)
            for node in missing:
                log = node.log_file
                log_ends[node.id] = log.stat().st_size if log.exists() else 0
                command = [sys.executable, "-m", "broker.cli", "node", "--config", node.config]
                try:
                    process = spawn_detached(command, log)
                except OSError as error:
                    raise LocalGroupError(f"can't start {node.id}: {error}") from error
                update = {"pid": process.pid, "started": process.started}
                started = node.model_copy(update=update)
                nodes = tuple(started if n.id == node.id else n for n in record.nodes)
                record = record.model_copy(update={"nodes": nodes})
                self._write(record)
        return log_ends

    async def _wait_until(
        self, reached: Callable[[GroupStatus], bool], log_ends: dict[str, int], timeout_s: float
    ) -> GroupStatus:
        deadline = time.monotonic() + timeout_s
        while True:
            status = await self.status()
            if reached(status):
                return status
            for node_id, log_end in log_ends.items():
                node = self.node(node_id)
                if not node.is_running():
                    raise NodeDied(node_id, node.log_file, _tail(node.log_file, log_end))
            if time.monotonic() >= deadline:
                silent = [view.id for view in status.nodes if not view.alive]
                detail = f"no answer from {', '.join(silent)}" if silent else "no serving leader"
                raise NoAnswer(f"{detail} after {timeout_s:g} s (logs in {self.directory}/*/)")
            await asyncio.sleep(POLL_INTERVAL_S)

    # --- The file -------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One program at a time changes the group; the sections under it never wait."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            reason = error.strerror or str(error)
            raise LocalGroupError(f"can't write to {self.directory}: {reason}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> _GroupFile:
        path = self.directory / GROUP_FILE
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            raise NotAGroup(self.directory) from None
        except OSError as error:
            raise GroupFileBroken(path, error.strerror or str(error)) from error
        try:
            return _GroupFile.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            reason = f"{place}: {first['msg']}" if place else first["msg"]
            raise GroupFileBroken(path, reason) from error

    def _write(self, record: _GroupFile) -> None:
        path = self.directory / GROUP_FILE
        fresh = path.with_suffix(".json.new")
        try:
            fresh.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")
            fresh.replace(path)  # a reader sees the old file or the new one, never half of one
        except OSError as error:
            raise LocalGroupError(f"can't write {path}: {error.strerror}") from error

    def _refuse_foreign(self, node: LocalNode) -> None:
        folder = self.directory / node.id
        if Path(node.config) != folder / "node.toml" or folder.is_symlink():
            path = self.directory / GROUP_FILE
            raise GroupFileBroken(path, f"{node.config} isn't in the folder of {node.id}")


def _tail(log: Path, start: int) -> list[str]:
    """The last lines that a node wrote after byte `start` of its log."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - LOG_TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
