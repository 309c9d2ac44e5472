"""What the machine gives a program that does nothing: the measures beside every figure.

Two of them. The *echo*: a bare grpc.aio unary call of 256 bytes, server in its own process,
client in this one and on the same kind of event loop as the client under test. The *disk*: 4 KiB
appends, each made durable, into a preallocated file where the nodes keep their data. This owns
the echo server's process and the disk's file, and leaves neither behind.

What came of it, and on what machine: `docs/performance.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from dledger.terminal.figures import percentile
from dledger_cli.bench.echo_server import ECHO_METHOD

ECHO_SIZE_BYTES = 256
ECHO_IN_FLIGHT = 64
ECHO_CALLS = 500  # one at a time, for the latency
DISK_APPEND_SIZE_BYTES = 4096
DISK_FILE_SIZE_BYTES = 16 << 20
DISK_APPENDS = 200
SERVER_STOP_TIMEOUT_S = 5.0

Echo = Callable[[bytes], "grpc.aio.UnaryUnaryCall[bytes, bytes]"]


@dataclass(frozen=True, slots=True)
class EchoSample:
    """One round of the echo: calls a second with 64 in flight, median seconds with one."""

    calls_per_s: float
    p50_s: float


@dataclass(frozen=True, slots=True)
class DiskSample:
    """One round of the disk: durable 4 KiB appends a second, and seconds for one."""

    appends_per_s: float
    p50_s: float
    p99_s: float


@contextlib.contextmanager
def echo_server() -> Iterator[str]:
    """The address of an echo server that runs as long as the block.

    Raises:
        RuntimeError: it ended before it served; its words are on standard error.
    """
    program = [sys.executable, "-P", "-m", "dledger_cli.bench.echo_server"]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip().decode()
            if not port:
                raise RuntimeError("the echo server ended before it served")
            yield f"127.0.0.1:{port}"
        finally:
            process.stdin.close()
            try:
                process.wait(SERVER_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.asynccontextmanager
async def echo_client(address: str) -> AsyncIterator[Echo]:
    """A connected and warmed-up echo."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(
            ECHO_METHOD, request_serializer=bytes, response_deserializer=bytes
        )
        body = bytes(ECHO_SIZE_BYTES)
        await call(body, wait_for_ready=True)
        for _ in range(ECHO_CALLS):
            await call(body)
        yield call


async def sample_echo(echo: Echo, seconds: float) -> EchoSample:
    """One round: `seconds` with 64 in flight, then 500 calls one at a time."""
    return EchoSample(await _echo_rate(echo, seconds), await _echo_latency(echo))


async def _echo_rate(echo: Echo, seconds: float) -> float:
    body = os.urandom(ECHO_SIZE_BYTES)
    calls = 0
    began = time.perf_counter()
    end = began + seconds

    async def keep_calling() -> None:
        nonlocal calls
        while time.perf_counter() < end:
            await echo(body)
            calls += 1

    await asyncio.gather(*(keep_calling() for _ in range(ECHO_IN_FLIGHT)))
    return calls / (time.perf_counter() - began)


async def _echo_latency(echo: Echo) -> float:
    body = os.urandom(ECHO_SIZE_BYTES)
    took = []
    for _ in range(ECHO_CALLS):
        began = time.perf_counter()
        await echo(body)
        took.append(time.perf_counter() - began)
    return percentile(sorted(took), 0.5)


def sample_disk(directory: Path, appends: int = DISK_APPENDS) -> DiskSample:
    """One round in a file of its own, which is gone afterwards; it blocks.

    Args:
        directory: any directory on the file system in question.
        appends: how many; they go round in 16 MiB.

    Raises:
        OSError: the directory can't be written, or is full.
    """
    body = os.urandom(DISK_APPEND_SIZE_BYTES)
    took = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        descriptor = file.fileno()
        os.posix_fallocate(descriptor, 0, DISK_FILE_SIZE_BYTES)
        os.fsync(descriptor)
        for number in range(appends):
            began = time.perf_counter()
            os.pwrite(descriptor, body, number * len(body) % DISK_FILE_SIZE_BYTES)
            os.fdatasync(descriptor)
            took.append(time.perf_counter() - began)
    ordered = sorted(took)
    rate = appends / sum(took)
    return DiskSample(rate, percentile(ordered, 0.5), percentile(ordered, 0.99))
