"""A group of real nodes for a test: the installed program, in a folder of its own.

Everything goes through the program `dledger` (`group up`, `kill`, `start`, `down`), as a person
would do it. This owns the folder and a leash (`dledger.testing.leash`): a process that ends the
group when the test's process is gone, even by SIGKILL. The leash is there before the first node is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dledger.client.blocking import BlockingClient
from dledger.testing.errors import GroupFailed
from dledger.testing.program import PROGRAM

PATIENCE_S: Final = 120.0  # for one command; loaded machines take their time


class BrokerGroup:
    """Real nodes on this machine; a context manager.

    Args:
        nodes: 1, 3, or what `dledger group up` allows.

    Raises:
        GroupFailed: they could not be started.
    """

    def __init__(self, nodes: int = 3) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="dledger-test-"))
        self._leash: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-P", "-m", "dledger.testing.leash", str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the test; the leash acts when that has ended
        )
        self._numbers = count(1)
        try:
            self._group("up", "--nodes", str(nodes))
            known = json.loads((self._directory / "group.json").read_text())["nodes"]
            self._addresses = {node["id"]: node["address"] for node in known}
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
        """The node runs, whether it did before or not, and answers."""
        self._group("kill", node, tolerated=True)
        self._group("start", node)

    def close(self) -> None:
        """The nodes are killed, their folder is removed."""
        leash, self._leash = self._leash, None
        if leash is None:
            return
        if leash.stdin is not None:
            leash.stdin.close()
        leash.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _signal(self, node: str, name: str) -> str:
        told: str = json.loads(self._group("kill", node, "--signal", name, "--json"))["id"]
        return told

    def _group(self, *words: str, tolerated: bool = False) -> str:
        """What a command of `dledger group` prints."""
        done = subprocess.run(
            [*PROGRAM, "group", *words, "--dir", str(self._directory)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode and not tolerated:
            raise GroupFailed(f"dledger group {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout
