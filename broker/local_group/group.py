"""Starting, asking, signalling and stopping the nodes of a local group.

Command line, demo, benchmarks and the chaos runner drive real processes through `LocalGroup`.
It must never signal a process that it didn't start (`process`), nor delete a file that isn't the
group's (`layout`), and it knows nothing of Raft beyond what a node's status tells.

`group.json` is read anew for each operation and replaced as a whole under a lock, so several
programs may work on one group. Idea: etcd's Procfile with goreman, TiUP's playground.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from broker.forming.calls import GrpcCalls
from broker.forming.initiator import form
from broker.local_group.errors import (
    GroupDiffers,
    GroupStillRuns,
    LocalGroupError,
    NoAnswer,
    NodeDied,
    NodeNotRunning,
    NoSuchNode,
    PortInUse,
)
from broker.local_group.layout import (
    GROUP_FILE,
    SECRET_FILE,
    GroupOptions,
    LocalGroupFile,
    LocalNode,
    check_unlocked,
    lay_out,
    locked,
    plan_group,
    plan_ports,
    read_group_file,
    remove_files,
    write_group_file,
)
from broker.local_group.ports import PortReservation
from broker.local_group.process import send_signal, spawn
from broker.local_group.status import GroupStatus, NodeView, probe
from broker.local_group.strangers import check_answers, is_it
from dledger.credentials.tls import TlsMaterial
from dledger.listening import is_listening, why_not_listening

START_TIMEOUT_S = 30.0
STOP_GRACE_S = 10.0  # from SIGTERM to SIGKILL
KILL_TIMEOUT_S = 5.0  # from SIGKILL until the kernel has cleared the process away
POLL_INTERVAL_S = 0.01
LISTENING_INTERVAL_S = 0.003
LOG_TAIL_LINES = 8
LOG_TAIL_BYTES = 16 << 10
AS_IT_IS = GroupOptions()

NodeCommand = Callable[[LocalNode], list[str]]  # what starts a node: the program, its arguments


def program(node: LocalNode) -> list[str]:
    """`dledger node`. -P: a folder `broker/` where the program was called is not ours to import."""
    return [sys.executable, "-P", "-m", "dledger_cli", "node", "--config", node.config]


class LocalGroup:
    """The group in a folder. Made with `create`, `open` or `open_or_create`.

    Args:
        directory: the folder.
        command: what starts a node of it.
    """

    def __init__(self, directory: Path, command: NodeCommand = program) -> None:
        self.directory = directory.absolute()
        self._command = command
        self._reservation: PortReservation | None = None  # of a group that was made here
        self.tls: TlsMaterial | None = None  # what its nodes are asked under; a benchmark sets it

    @classmethod
    def open(cls, directory: Path) -> LocalGroup:
        """The group that is in `directory`.

        Raises:
            NotAGroup: there is none.
            GroupFileBroken: its file can't be read or is something else.
        """
        group = cls(directory)
        read_group_file(group.directory)
        return group

    @classmethod
    def create(
        cls, directory: Path, options: GroupOptions = AS_IT_IS, command: NodeCommand = program
    ) -> LocalGroup:
        """A new group in `directory`, configured and not yet started.

        Raises:
            GroupDiffers: there is one already.
            PortInUse: with a base port; nothing is written that would hold on to that port.
            LocalGroupError: the directory can't be written, or no ports are free.
        """
        group = cls(directory, command)
        ports, group._reservation = plan_ports(options)
        record = plan_group(group.directory, options, ports)
        if group._reservation is None:
            for node in record.nodes:
                _refuse_taken(node)
        with locked(group.directory):
            if os.path.lexists(group.directory / GROUP_FILE):
                raise GroupDiffers(f"there is a group in {directory} already")
            lay_out(group.directory, record)
        return group

    @classmethod
    def open_or_create(cls, directory: Path, options: GroupOptions = AS_IT_IS) -> LocalGroup:
        """The group in `directory`, made if need be.

        Raises:
            GroupDiffers: it was made with other options than are asked for.
            LocalGroupError: as for `open` and `create`.
        """
        if not os.path.lexists(directory / GROUP_FILE):  # a link that leads nowhere is something
            return cls.create(directory, options)
        group = cls.open(directory)
        group._refuse_differences(options)
        return group

    # --- What it is -----------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[LocalNode, ...]:
        """The nodes, as the file describes them now."""
        return read_group_file(self.directory).nodes

    @property
    def has_secret(self) -> bool:
        """Whether its nodes prove to each other that they are its own; groups that were made
        before there were secrets go on without."""
        return (self.directory / SECRET_FILE).exists()

    @property
    def addresses(self) -> list[str]:
        """What a client bootstraps from."""
        return [node.address for node in self.nodes]

    def checked_addresses(self) -> list[str]:
        """The same, where nobody but the group's nodes answers.

        Raises:
            OtherGroupAnswers: somebody does.
        """
        nodes = self.nodes
        check_answers(self.directory, nodes)
        return [node.address for node in nodes]

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
        """What each node says of itself, asked all at once; a silent one takes a second. Another
        group's node that answers in its place counts as nobody."""
        record = read_group_file(self.directory)
        answers = await asyncio.gather(
            *(probe(node.address, tls=self.tls) for node in record.nodes)
        )
        views = [
            NodeView.of(node.id, node.address, answer)
            if answer is None or is_it(node, answer)
            else NodeView.stranger(node.id, node.address, answer)
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
        raise NoAnswer(f"no node says that it is a {who}")

    # --- Processes ------------------------------------------------------------------------

    async def up(self, timeout_s: float = START_TIMEOUT_S) -> GroupStatus:
        """Starts the nodes that don't run, and forms the group if it is new; true afterwards: all
        answer, and one leads and serves.

        Raises:
            FormationRefused: the directories aren't those of one group: one was wiped, say.
            PortInUse: a node can't listen; nothing was started.
            NodeDied: a node ended at its start; the others go on.
            NoAnswer: `timeout_s` passed.
        """
        self._form_if_new()
        log_ends = self._launch([node.id for node in self.nodes])
        status = await self._wait_until(lambda status: status.answers_fully, log_ends, timeout_s)
        if any(view.waits for view in status.nodes):
            await form(GrpcCalls(self.tls), self.addresses)
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
        """Stops every node, with SIGTERM first; the ids of those that had to be killed.

        Raises:
            GroupStillRuns: as for `kill_all`.
            NodeUnrecorded: one runs that nothing says was started here.
        """
        nodes = [node for node in self.nodes if node.is_running()]
        for node in nodes:
            if node.process and send_signal(node.process, signal.SIGTERM):
                send_signal(node.process, signal.SIGCONT)  # a stopped process would never hear it
        await asyncio.gather(*(self.wait_gone(node.id, grace_s) for node in nodes))
        killed = [node.id for node in nodes if node.is_running()]
        self.kill_all()
        check_unlocked(self.directory, read_group_file(self.directory))
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
            GroupStillRuns, NodeUnrecorded: a node still runs.
            LocalGroupError: something can't be removed.
        """
        with locked(self.directory):
            record = read_group_file(self.directory)
            if running := [node.id for node in record.nodes if node.is_running()]:
                raise GroupStillRuns(running)
            check_unlocked(self.directory, record)
            remove_files(self.directory, record)

    # --- Starting and waiting -------------------------------------------------------------

    def _refuse_differences(self, options: GroupOptions) -> None:
        record = read_group_file(self.directory)
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

    def _form_if_new(self) -> None:
        """A group that never ran is formed on its disks, which are all here, before it does. Where
        nodes are started in another way than `dledger node`, only they know what their disks are.
        Raises: FormationRefused, as `up` does.
        """
        if self._command is not program or any(node.process for node in self.nodes):
            return
        # The log's files, and numpy with them: imported by whoever needs them.
        from broker.local_group.disks import form_configured

        with locked(self.directory):
            nodes = self.nodes
            if not any(node.process for node in nodes):
                form_configured([Path(node.config) for node in nodes])

    def _launch(self, node_ids: list[str]) -> dict[str, int]:
        """Starts those that don't run; for each of them, where its log ended before.

        No await between a start and its entry in the file: a program that is interrupted
        leaves no process that nobody knows of.
        """
        log_ends: dict[str, int] = {}
        with locked(self.directory):
            record = read_group_file(self.directory)
            missing = [n for n in record.nodes if n.id in node_ids and not n.is_running()]
            for node in missing:
                _refuse_taken(node)
            for node in missing:
                log_ends[node.id] = _size(node.log_file)
                record = record.with_node(self._launch_one(node, record))
        return log_ends

    def _launch_one(self, node: LocalNode, record: LocalGroupFile) -> LocalNode:
        try:
            process = spawn(self._command(node), node.log_file)
        except OSError as error:
            raise LocalGroupError(f"can't start {node.id}: {error}") from error
        launched = node.model_copy(update={"pid": process.pid, "started": process.started})
        try:
            write_group_file(self.directory, record.with_node(launched))
        except LocalGroupError:
            send_signal(process, signal.SIGKILL)
            raise
        return launched

    async def _wait_until(
        self, reached: Callable[[GroupStatus], bool], log_ends: dict[str, int], timeout_s: float
    ) -> GroupStatus:
        deadline = time.monotonic() + timeout_s
        begun = [self.node(node_id).address for node_id in log_ends]
        while True:
            # A look at the port is a hundredth of a call, which would fail until it is open.
            while begun and is_listening(begun[-1]):
                begun.pop()
            if begun and time.monotonic() < deadline:
                self._check_alive(log_ends)
                await asyncio.sleep(LISTENING_INTERVAL_S)
                continue
            status = await self.status()
            if reached(status):
                return status
            self._check_alive(log_ends)
            if time.monotonic() >= deadline:
                silent = [view.id for view in status.nodes if not view.alive]
                detail = f"no answer from {', '.join(silent)}" if silent else "no serving leader"
                logs = self.directory / "*" / "node.log"
                raise NoAnswer(f"{detail} after {timeout_s:g} s (logs: {logs})")
            await asyncio.sleep(POLL_INTERVAL_S)

    def _check_alive(self, log_ends: dict[str, int]) -> None:
        for node_id, log_end in log_ends.items():
            node = self.node(node_id)
            if not node.is_running():
                raise NodeDied(node_id, node.log_file, _tail(node.log_file, log_end))


def _refuse_taken(node: LocalNode) -> None:
    for address in (node.address, node.metrics_address):
        if reason := why_not_listening(address):
            raise PortInUse(node.id, address, reason)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _tail(log: Path, start: int) -> list[str]:
    """The last lines that a node wrote after byte `start` of its log."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - LOG_TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
