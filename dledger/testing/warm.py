"""Processes of the installed program, forked from a warm one (`dledger_cli.warm`, the other end).

A process's tests share one warm process: begun when it is first needed, gone with the tests'
process, however that ends, and with it whatever it forked and the folders that it was told of.

It is nobody else's: a process that is forked from the tests' one (`multiprocessing` does that)
holds no end of its leash, ends nothing by ending, and has a warm process of its own, should it need
one. It can ask the one of its parent as long as that is there.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from dledger.testing.errors import GroupFailed

MESSAGE_BYTES: Final = 128 << 10  # of a request: words and an environment
PATIENCE_S: Final = 120.0  # for one command; loaded machines take their time
START_S: Final = 60.0  # for a fork, or for all of the program's imports
END_S: Final = 10.0  # for killing what it forked and removing folders; then it is killed itself
REMOVAL_S: Final = 5.0  # a process that was killed may write until it is gone
PROGRAM: Final = "dledger_cli"


@dataclass(slots=True)
class Forked:
    """A process that was asked for. Who isn't interested in its end closes `_connection`."""

    pid: int
    started: str
    _connection: socket.socket

    @classmethod
    def of(
        cls, path: Path, module: str, words: Sequence[str], streams: tuple[int, int, int]
    ) -> Self:
        """`python -m MODULE WORDS` runs, in this process's folder and environment, without having
        been started.

        Args:
            path: the socket of the warm process.
            streams: descriptors that become its standard input, output and error.

        Raises:
            OSError: the warm process isn't there, or can't fork.
        """
        request = {
            "module": module,
            "words": list(words),
            "directory": str(Path.cwd()),
            "environment": dict(os.environ),
        }
        connection = connected(path)
        try:
            socket.send_fds(connection, [json.dumps(request).encode()], streams)
            told = answered(connection)
        except BaseException:
            connection.close()
            raise
        return cls(told["pid"], told["started"], connection)

    def wait(self, timeout_s: float) -> int:
        """Its exit code; the negative of a signal that ended it.

        Raises:
            TimeoutError: it still runs.
        """
        self._connection.settimeout(timeout_s)
        code: int = answered(self._connection)["code"]
        return code

    def close(self) -> None:
        """It goes on, and nobody here hears of it."""
        self._connection.close()


class WarmProgram:
    """The warm process. `shared` is what tests want: one for all of them."""

    def __init__(self, *preloaded: str) -> None:
        """It has imported what nodes and commands of the program need, and the modules
        `preloaded`.

        Raises:
            GroupFailed: it doesn't start: the extra `node` isn't installed, say.
        """
        self._owner = os.getpid()
        self._folder = Path(tempfile.mkdtemp(prefix="dledger-warm-"))
        self._folders = [self._folder]
        self.path = self._folder / "socket"
        try:
            self._process = self._started(preloaded)
        except OSError as error:
            remove(self._folder)
            raise GroupFailed(f"dledger can't be started: {error}") from error
        _leashes.add(self)
        atexit.register(self.close)
        try:
            self._begun()
        except BaseException:
            self.close()
            raise

    def _started(self, preloaded: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "dledger_cli.warm", str(self.path), *preloaded],
            bufsize=0,  # a buffer has a lock, which a fork would find held by a thread that is gone
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads aren't taken along by forks
            start_new_session=True,  # Ctrl-C is for the test; this acts when that has ended
        )

    def _begun(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            _, said = self._process.communicate()
            text = said.decode("utf-8", errors="replace").strip()
            raise GroupFailed(f"dledger can't be started: {text}")
        self.remove_in_the_end(self._folder)

    @property
    def is_running(self) -> bool:
        """Whether it can be asked; if not, what it had forked is over as well."""
        return self._process.poll() is None

    def remove_in_the_end(self, folder: Path) -> None:
        """The folder is removed when the tests' process is gone, unless it is before.

        Raises:
            OSError: the warm process isn't there.
        """
        self._folders.append(folder)
        with connected(self.path) as connection:
            connection.send(json.dumps({"remove": str(folder)}).encode())

    def run(
        self, *words: str, module: str = PROGRAM, timeout_s: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[str]:
        """`dledger WORDS`, or another module's program, nothing on its standard input.

        Raises:
            TimeoutError: it still runs.
            OSError: the warm process isn't there, or can't fork.
        """
        with (
            Path(os.devnull).open("rb") as nothing,
            tempfile.TemporaryFile("w+") as output,
            tempfile.TemporaryFile("w+") as errors,
        ):
            streams = (nothing.fileno(), output.fileno(), errors.fileno())
            forked = Forked.of(self.path, module, words, streams)
            try:
                code = forked.wait(timeout_s)
            finally:
                forked.close()
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(list(words), code, output.read(), errors.read())

    def close(self) -> None:
        """Nothing that it forked runs, and the folders that it was told of are gone. It is for the
        process that began it to say so; in one that was forked from that, nothing happens.

        Should it not end by itself, it is killed, and the kernel kills what it forked.
        """
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self.let_go()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for folder in self._folders:
            remove(folder)  # where it was killed

    def let_go(self) -> None:
        """This process holds no end of its pipes: it ends, unless another process holds one."""
        _leashes.discard(self)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def remove(folder: Path) -> None:
    """The folder is gone, where whoever writes into it has been killed and may not be over yet."""
    deadline = time.monotonic() + REMOVAL_S
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists() or time.monotonic() >= deadline:
            return
        time.sleep(0.01)


@contextmanager
def in_short(path: Path) -> Iterator[str]:
    """A name for a socket's address, which has 107 bytes, however far down it is."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connected(path: Path) -> socket.socket:
    """A connection to the warm process."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(START_S)
        with in_short(path) as name:
            connection.connect(name)
    except BaseException:
        connection.close()
        raise
    return connection


def answered(connection: socket.socket) -> dict[str, Any]:
    """What the warm process says next.

    Raises:
        ConnectionError: it is gone, or couldn't do it.
    """
    message = connection.recv(MESSAGE_BYTES)
    if not message:
        raise ConnectionError("the warm process is gone, or can't fork")
    told: dict[str, Any] = json.loads(message)
    return told


_leashes: set[WarmProgram] = set()
_shared: WarmProgram | None = None


def shared() -> WarmProgram:
    """This process's warm program: begun with the first call, and anew where it has died since.

    Raises:
        GroupFailed: it doesn't start.
    """
    global _shared
    if _shared is None or not _shared.is_running:
        _shared = WarmProgram()
    return _shared


def _let_go_of_all() -> None:
    """In a process that was just forked: the leashes are its parent's."""
    global _shared
    _shared = None
    for program in list(_leashes):
        program.let_go()


os.register_at_fork(after_in_child=_let_go_of_all)
