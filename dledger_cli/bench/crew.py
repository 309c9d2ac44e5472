"""Processes that a benchmark's clients run in: started, heard, and gone when the block ends.

Each is a module of this package, told what to do by its arguments, and works until its standard
input ends: so it can't outlive the benchmark, however that one died. What it says is lines on
standard output, of which each is given to the benchmark as it comes, by a thread for each process.

They are started as `subprocess` does it: what uvloop forks from a process that has gRPC's threads
dies in one of a hundred starts, before it is a program.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

from dledger_cli.bench.node_watch import process_use

END_S = 60.0
POLL_S = 0.02
Hear = Callable[["Worker", str], None]


@dataclass(eq=False, slots=True)
class Worker:
    """One process. `said`: how many lines."""

    number: int
    process: subprocess.Popen[bytes]
    said: int = 0
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time that it has used; 0 once it is gone."""
        use = process_use(self.process.pid)
        return 0.0 if use is None else use.cpu_s

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def tell(self, line: str) -> None:
        """Says something to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    async def end(self) -> None:
        """It is gone, by itself.

        Raises:
            RuntimeError: it failed; its words are on standard error.
            TimeoutError: it doesn't end.
        """
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(END_S):
            while self.process.poll() is None:  # noqa: ASYNC110  a process that is no child of asyncio
                await asyncio.sleep(POLL_S)
        self._check()

    def _check(self) -> None:
        if self.process.poll():
            raise RuntimeError(f"process {self.number} ended with {self.process.returncode}")

    async def until_it_says(self, lines: int) -> None:
        """It has said so many lines.

        Raises:
            RuntimeError: it ended before; its words are on standard error.
        """
        while self.said < lines:
            if self.process.poll() is not None:
                raise RuntimeError(f"process {self.number} ended with {self.process.returncode}")
            self._more.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._more.wait()

    def listen(self, hear: Hear) -> None:
        """Gives each line to `hear`, on this loop, until it ends."""
        assert self.process.stdout is not None
        arguments = (self.process.stdout, asyncio.get_running_loop(), hear)
        threading.Thread(target=self._read, args=arguments, daemon=True, name="hear").start()

    def _read(self, lines: IO[bytes], loop: asyncio.AbstractEventLoop, hear: Hear) -> None:
        with contextlib.suppress(RuntimeError, ValueError):  # the loop is closed, or the pipe
            for line in lines:
                loop.call_soon_threadsafe(self._on_line, hear, line.decode().strip())

    def _on_line(self, hear: Hear, line: str) -> None:
        hear(self, line)
        self.said += 1
        self._more.set()


@contextlib.asynccontextmanager
async def crew(
    module: str, arguments: Sequence[Sequence[object]], hear: Hear = lambda _worker, _line: None
) -> AsyncIterator[list[Worker]]:
    """One process for each of `arguments`; all are gone after the block."""
    workers: list[Worker] = []
    program = [sys.executable, "-P", "-m", f"dledger_cli.bench.{module}"]
    with contextlib.ExitStack() as stack:
        for number, words in enumerate(arguments):
            process = stack.enter_context(
                subprocess.Popen(  # noqa: ASYNC220  for a moment, before anything is measured
                    [*program, *map(str, words)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
            )
            stack.callback(process.kill)
            workers.append(Worker(number, process))
            workers[-1].listen(hear)
        yield workers
