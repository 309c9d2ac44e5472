"""A group of real nodes for a test: the installed program, in a folder of its own.

Everything goes through the program `dledger` (`group up`, `kill`, `start`), as a person would do
it, and each of its processes is forked from a warm one (`dledger.testing.warm`), which ends the
group when the test's process is gone, even by SIGKILL. It knows of the folder before the first node
is there.
"""

from __future__ import annotations

import json
import os
import tempfile
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dledger.client.blocking import BlockingClient
from dledger.testing.errors import GroupFailed
from dledger.testing.warm import remove, shared

LOG_LINES: Final = 20  # of each node's log, where a start fails
LOG_BYTES: Final = 8 << 10


class BrokerGroup:
    """Real nodes on this machine; a context manager.

    Args:
        nodes: 1, 3, or what `dledger group up` allows.

    Raises:
        GroupFailed: they could not be started; with the end of each node's log.
    """

    def __init__(self, nodes: int = 3) -> None:
        self._owner = os.getpid()
        self._directory = Path(tempfile.mkdtemp(prefix="dledger-test-"))
        self._numbers = count(1)
        self._addresses: dict[str, str] = {}
        self._is_open = True
        try:
            self._warm = shared()
            self._warm.remove_in_the_end(self._directory)
            self._begin("*", "up", "--nodes", str(nodes))
            known = json.loads((self._directory / "group.json").read_text())["nodes"]
            self._addresses = {node["id"]: node["address"] for node in known}
        except OSError as error:
            self.close()
            raise GroupFailed(f"no group could be started: {error}") from error
        except BaseException:
            self.close()
            raise

    @property
    def addresses(self) -> str:
        """What a client connects to: every node's address."""
        return ",".join(self._addresses.values())

    @property
    def node_ids(self) -> list[str]:
        """The nodes' names, as `kill` and the others take them."""
        return list(self._addresses)

    def topic(self, queues: int = 1) -> str:
        """The name of a new topic."""
        self._check_open()
        name = f"topic-{next(self._numbers)}"
        with BlockingClient.connect(self.addresses) as client:
            client.create_topic(name, queues=queues, if_not_exists=True)
        return name

    def kill(self, node: str = "leader") -> str:
        """The node is killed (SIGKILL); its name.

        Args:
            node: a name, or `leader`: whoever leads now.

        Raises:
            GroupFailed: there is no such node, or no leader.
        """
        return self._signal(node, "KILL")

    def pause(self, node: str = "leader") -> str:
        """The node's process is stopped (SIGSTOP): connected, and silent; its name."""
        return self._signal(node, "STOP")

    def resume(self, node: str) -> None:
        """A paused node goes on (SIGCONT)."""
        self._signal(node, "CONT")

    def restart(self, node: str) -> None:
        """The node runs, whether it did before or not, and answers.

        Raises:
            GroupFailed: there is no such node, or it doesn't start; with the end of its log.
        """
        self._check_open()
        self._group("kill", node, tolerated=True)
        self._begin(node, "start", node)

    def close(self) -> None:
        """The nodes are killed, their folder is removed. In a process that was forked from the one
        that began the group nothing happens: it isn't that one's to end.

        Raises:
            GroupFailed: some couldn't be killed, with the first one's reason; they end with the
                tests' process.
        """
        if not self._is_open or os.getpid() != self._owner:
            return
        self._is_open = False
        failures: list[GroupFailed] = []
        try:
            for folder in sorted(self._directory.glob("*/node.toml")):
                try:
                    self._group("kill", folder.parent.name, tolerated=True)
                except GroupFailed as error:  # The next one may go.
                    failures.append(error)
        finally:
            remove(self._directory)
        if failures and self._warm.is_running:
            raise failures[0]

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise GroupFailed("the group is closed")

    def _signal(self, node: str, name: str) -> str:
        self._check_open()
        told: str = json.loads(self._group("kill", node, "--signal", name, "--json"))["id"]
        return told

    def _begin(self, nodes: str, *words: str) -> None:
        """Nodes are started. If that fails, the error has what their logs say last, and no names in
        a folder that is gone with the group: it is what a build keeps.

        Args:
            nodes: a pattern of their names.
        """
        try:
            self._group(*words)
        except GroupFailed as error:
            logs = sorted(self._directory.glob(f"{nodes}/node.log"))
            said = "\n".join([str(error), *map(_end, logs)])
            raise GroupFailed(said.replace(f"{self._directory}/", "")) from error.__cause__

    def _group(self, *words: str, tolerated: bool = False) -> str:
        """What a command of `dledger group` prints."""
        try:
            done = self._warm.run("group", *words, "--dir", str(self._directory))
        except OSError as error:
            gone = (
                "" if self._warm.is_running else "; what the nodes came from is gone, they with it"
            )
            raise GroupFailed(f"dledger group {' '.join(words)}: {error}{gone}") from error
        if done.returncode and not tolerated:
            raise GroupFailed(f"dledger group {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout


def _end(log: Path) -> str:
    """What a node's log says last: so many lines, or bytes."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return "\n  ".join([f"{log} ends:", *lines[-LOG_LINES:]])
