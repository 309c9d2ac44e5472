"""An event loop that measures its turns.

A turn is what the loop does between two looks at its sockets and timers: while one lasts, no
heartbeat is answered and no timer fires. It is counted in the processor time of the loop's thread,
so that what else runs on the machine, and waiting in the poll, count for nothing.

It is asyncio's own loop: uvloop, on which nodes run, can't be asked. The callbacks are the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from dledger_cli.bench.echo_server import echo

ASK_S = 30.0


class Turns:
    """The longest turn since it was last forgotten."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    @contextmanager
    def measured(self, into: dict[str, list[float]], name: str) -> Iterator[None]:
        """The longest turn of the block, milliseconds, is added to `into[name]`. The block begins
        and ends with a turn of its own: `await asyncio.sleep(0)` before and in it, at the end."""
        self.longest_s = 0.0
        yield
        into.setdefault(name, []).append(self.longest_s * 1e3)


class TurnLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, whose turns are measured into `turns`."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns()

    def _run_once(self) -> None:
        before = time.thread_time()
        super()._run_once()  # type: ignore[misc]  # the one place where a turn can be seen
        took = time.thread_time() - before
        self.turns.longest_s = max(self.turns.longest_s, took)


async def measure_echo(found: dict[str, list[float]], turns: Turns, name: str) -> None:
    """An echo on the same loop, asked from a thread, 64 in flight."""
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    service = grpc.method_handlers_generic_handler("e", {"e": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    def ask() -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(
                "/e/e", request_serializer=bytes, response_deserializer=bytes
            )
            for _ in range(30):
                for asked in [call.future(bytes(256)) for _ in range(64)]:
                    asked.result(timeout=ASK_S)

    await asyncio.to_thread(ask)
    with turns.measured(found, name):
        await asyncio.to_thread(ask)
    await server.stop(grace=None)
