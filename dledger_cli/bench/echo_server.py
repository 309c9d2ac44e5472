"""A bare grpc.aio echo, in a process of its own: what the transport alone can do.

Prints its port on standard output, then serves until standard input ends, so it can't outlive
the benchmark that started it, however that one died. Run by `dledger_cli.bench.yardsticks`.
"""

from __future__ import annotations

import asyncio
import sys

import grpc

from dledger.terminal.loops import run

ECHO_METHOD = "/dledger.bench.Echo/Echo"


async def echo(request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    """What came in."""
    return request


async def serve() -> None:
    """Serves on a free port of the loopback interface until standard input ends."""
    service, method = ECHO_METHOD.strip("/").split("/")
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    await server.stop(grace=None)


if __name__ == "__main__":
    run(serve())
